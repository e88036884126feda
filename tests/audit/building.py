"""Small models and checkpoints for planted mistakes, and the case that holds one."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qrole.auditing import AuditOptions, AuditReport, audit_checkpoint, audit_model

Run = Callable[[Path], AuditReport]


@dataclass(frozen=True)
class Case:
    """A planted mistake and its correction.

    Attributes:
        name: What was done wrong.
        codes: Codes that the mistake must show; no other errors or warnings are allowed.
        mistake: Audits the mistake in an empty folder.
        corrected: Audits the same without the mistake.
        also: Codes that both show, because the model is what it is.
    """

    name: str
    codes: frozenset[str]
    mistake: Run
    corrected: Run
    also: frozenset[str] = frozenset()


def case(name: str, codes: str, mistake: Run, corrected: Run, also: str = "") -> Case:
    """A case; codes are separated by spaces."""
    return Case(name, frozenset(codes.split()), mistake, corrected, frozenset(also.split()))


def planned(model: Callable[[], nn.Module], factory: Callable[..., Any], **options: Any) -> Run:
    """Audits a factory on a model."""
    return lambda folder: audit_model(model(), factory, AuditOptions(**options))


def ruled(model: Callable[[], nn.Module], text: str, **options: Any) -> Run:
    """Audits a rules file on a model."""

    def run(folder: Path) -> AuditReport:
        path = folder / "rules.toml"
        path.write_text(text)
        return audit_model(model(), str(path), AuditOptions(**options))

    return run


def sourced(model: Callable[[], nn.Module], text: str, **options: Any) -> Run:
    """Audits a factory `f` that is written to a file of its own."""

    def run(folder: Path) -> AuditReport:
        path = folder / "factory.py"
        path.write_text(text)
        return audit_model(model(), f"{path}:f", AuditOptions(**options))

    return run


def tree(dtype: torch.dtype = torch.bfloat16, **layers: tuple[int, int]) -> nn.Module:
    """Linear layers without bias at dotted paths, written with `__`; (out, in) each; no memory."""
    root = nn.Module()
    for path, (rows, columns) in layers.items():
        *parents, last = path.split("__")
        owner = root
        for name in parents:
            if not hasattr(owner, name):
                owner.add_module(name, nn.Module())
            owner = owner.get_submodule(name)
        owner.add_module(last, nn.Linear(columns, rows, bias=False, device="meta", dtype=dtype))
    return root


def one_layer() -> nn.Module:
    """One bf16 linear layer, `fc`."""
    return tree(fc=(256, 256))


def decoder() -> nn.Module:
    """Two blocks of a Llama-like decoder, without a head."""
    layers = {}
    for i in range(2):
        sizes = {"q_proj": (256, 256), "k_proj": (128, 256), "v_proj": (128, 256)}
        layers |= {f"layers__{i}__self_attn__{name}": size for name, size in sizes.items()}
        layers[f"layers__{i}__self_attn__o_proj"] = (256, 256)
        layers |= {f"layers__{i}__mlp__{name}": (512, 256) for name in ("gate_proj", "up_proj")}
        layers[f"layers__{i}__mlp__down_proj"] = (256, 512)
    return tree(**layers)


class FusedExperts(nn.Module):
    """Experts in 3-D parameters, as transformers holds them."""

    def __init__(self, names: tuple[str, str] = ("gate_up_proj", "down_proj")) -> None:
        super().__init__()
        self.hidden_size = 256
        up, down = names
        shapes = {up: (4, 1024, 256), down: (4, 256, 512)}
        for name, shape in shapes.items():
            weight = torch.empty(shape, device="meta", dtype=torch.bfloat16)
            self.register_parameter(name, nn.Parameter(weight))


def fused_experts() -> nn.Module:
    """One mixture-of-experts block whose experts an emitter knows."""
    root = tree(o_proj=(256, 256))
    root.add_module("mlp", nn.Module())
    root.mlp.add_module("experts", FusedExperts())
    return root


Tensors = dict[str, tuple[str, tuple[int, ...], bytes | None]]
_BYTES = {"BF16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


def tensor(dtype: str, *shape: int) -> tuple[str, tuple[int, ...], bytes | None]:
    """A tensor of zeros."""
    return (dtype, shape, None)


def scalar(value: float) -> tuple[str, tuple[int, ...], bytes | None]:
    """An fp32 tensor of shape [1]."""
    return ("F32", (1,), struct.pack("<f", value))


def bf16(module: str, rows: int = 256, columns: int = 256) -> Tensors:
    """An unquantized weight."""
    return {f"{module}.weight": tensor("BF16", rows, columns)}


def fp8(module: str, rows: int = 256, columns: int = 256) -> Tensors:
    """A weight in FP8 with a scale per channel, as compressed-tensors stores it."""
    return {
        f"{module}.weight": tensor("F8_E4M3", rows, columns),
        f"{module}.weight_scale": tensor("F32", rows, 1),
    }


def mxfp8(module: str, rows: int = 256, columns: int = 256) -> Tensors:
    """A weight in MXFP8, as compressed-tensors and ModelOpt store it."""
    return {
        f"{module}.weight": tensor("F8_E4M3", rows, columns),
        f"{module}.weight_scale": tensor("U8", rows, columns // 32),
    }


def nvfp4(module: str, divisor: float = 2.0, rows: int = 256, columns: int = 256) -> Tensors:
    """A weight in NVFP4 with a static input scale, as compressed-tensors stores it."""
    return {
        f"{module}.weight_packed": tensor("U8", rows, columns // 2),
        f"{module}.weight_scale": tensor("F8_E4M3", rows, columns // 16),
        f"{module}.weight_global_scale": scalar(divisor),
        f"{module}.input_global_scale": scalar(3.0),
    }


def modelopt_fp8(module: str, rows: int = 256, columns: int = 256) -> Tensors:
    """A weight in FP8 with one scale, as ModelOpt stores it."""
    return {
        f"{module}.weight": tensor("F8_E4M3", rows, columns),
        f"{module}.weight_scale": ("F32", (), struct.pack("<f", 0.5)),
        f"{module}.input_scale": ("F32", (), struct.pack("<f", 0.25)),
    }


def _arguments(**own: Any) -> dict[str, Any]:
    return {"type": "float", "symmetric": True, "dynamic": False, **own}


FP8_GROUP = {
    "format": "float-quantized",
    "weights": _arguments(num_bits=8, strategy="channel"),
    "input_activations": _arguments(num_bits=8, strategy="token", dynamic=True),
    "output_activations": None,
}
_NVFP4 = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}
NVFP4_GROUP = {
    "format": "nvfp4-pack-quantized",
    "weights": _arguments(**_NVFP4, scale_dtype="torch.float8_e4m3fn"),
    "input_activations": _arguments(**_NVFP4, scale_dtype="torch.float8_e4m3fn", dynamic="local"),
    "output_activations": None,
}
_MXFP8 = {"num_bits": 8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
MXFP8_GROUP = {
    "format": "mxfp8-quantized",
    "weights": _arguments(**_MXFP8),
    "input_activations": _arguments(**_MXFP8, dynamic=True),
    "output_activations": None,
}


def compressed(*groups: tuple[dict[str, Any], list[str]], ignore: list[str]) -> dict[str, Any]:
    """A compressed-tensors quantization_config."""
    formats = {group["format"] for group, _ in groups}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "config_groups": {
            f"group_{i}": {**group, "targets": targets} for i, (group, targets) in enumerate(groups)
        },
        "ignore": ignore,
    }


def stored(
    tensors: Tensors,
    quantization: dict[str, Any],
    *,
    config: dict[str, Any] | None = None,
    tokenizer: bool = True,
    **options: Any,
) -> Run:
    """Audits a checkpoint with these tensors and this quantization_config."""

    def run(folder: Path) -> AuditReport:
        write_safetensors(folder / "model.safetensors", tensors)
        content = {"vocab_size": 100, **(config or {}), "quantization_config": quantization}
        (folder / "config.json").write_text(json.dumps(content))
        if tokenizer:
            (folder / "tokenizer.json").write_text("{}")
        return audit_checkpoint(folder, AuditOptions(**options))

    return run


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """A safetensors file with these tensors, in this order."""
    header: dict[str, Any] = {}
    data = bytearray()
    for name, (dtype, shape, raw) in tensors.items():
        content = raw if raw is not None else bytes(math.prod(shape) * _BYTES[dtype])
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
