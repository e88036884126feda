"""QR4xx: sizes that a format can't take, and hardware that can't run it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from qrole.auditing.options import check_target
from qrole.auditing.pairing import layer_hit
from qrole.auditing.registry import Hit, Severity, check
from qrole.auditing.subject import ATTENTION, Layer, PlanSubject, is_hybrid
from qrole.quantizers.base import OperandFormat

#: What the sizes of a weight must be a multiple of: cuBLAS for FP8, the block for the others.
_MULTIPLE = {
    "fp8_tensor": 16,
    "fp8_block": 128,
    "mxfp8": 32,
    "mxfp4": 32,
    "nvfp4": 16,
}


@dataclass(frozen=True)
class Support:
    """Compute capabilities that run a format's GEMMs, as TransformerEngine states them.

    Attributes:
        least: Lowest one, without the dot.
        below: The first one that no longer does; None for no limit.
    """

    least: int
    below: int | None = None

    def __contains__(self, target: int) -> bool:
        return self.least <= target and (self.below is None or target < self.below)

    def __str__(self) -> str:
        text = f"sm_{self.least} and later"
        return text if self.below is None else f"{text}, before sm_{self.below}"


_SUPPORT = {
    "fp8_tensor": Support(89),
    "fp8_block": Support(90),
    "mxfp8": Support(100, 120),
    "mxfp4": Support(100),
    "nvfp4": Support(100),
}

_FP8_ATTENTION = ("fp8_tensor", "mxfp8")

#: Layers whose input is split among tensor-parallel ranks; the output of others is.
_ROW_PARALLEL = ("o_proj", "out_proj", "down_proj", "dense_4h_to_h", "c_proj", "w2", "wo", "fc2")


@check("QR401", Severity.ERROR)
def size_not_a_multiple(subject: PlanSubject) -> Iterator[Hit]:
    """A weight's size is no multiple of what its format needs.

    FP8 GEMMs need sizes that are multiples of 16, MXFP8 and MXFP4 of 32, NVFP4 of 16, blocks of FP8
    of 128. The kernels refuse other sizes, or engines refuse the written checkpoint. qrole's own
    emulation pads with zeros and runs.

    in_features must fit for fprop, out_features for dgrad. With `--inference` only in_features
    matters.

    Keep the layer in high precision, or give it a format with smaller blocks.
    """
    for layer in subject.layers:
        if layer.shape is None:
            continue
        sides = (("out_features", 0, "columnwise"), ("in_features", 1, "rowwise"))
        for name, axis, usage in sides[1:] if subject.options.inference else sides:
            need, label = _need(layer, usage)
            if layer.shape[axis] % need:
                yield layer_hit(
                    layer,
                    f"{name} {layer.shape[axis]} is no multiple of {need}, which {label} needs",
                    "keep the layer in high precision, or use a format with smaller blocks",
                    layer.weight,
                )


def _need(layer: Layer, usage: str) -> tuple[int, str]:
    """The largest multiple that the operands of one direction need, and who needs it."""
    operands = ("weight", "input") if usage == "rowwise" else ("weight", "grad_output")
    found = [(1, "")]
    for operand in operands:
        decision = layer.operands.get(operand)
        if decision is None:
            continue
        # dgrad reads the weight column-wise and the gradient row-wise.
        columnwise = usage == "columnwise" and operand == "weight"
        fmt = decision.columnwise if columnwise else decision.rowwise
        if fmt is not None:
            found.append((_MULTIPLE.get(fmt.family, 1), fmt.label))
    return max(found, key=lambda pair: pair[0])


@check("QR402", Severity.ERROR)
def target_lacks_format(subject: PlanSubject) -> Iterator[Hit]:
    """The target GPU does not run this format.

    FP8 with one scale per tensor needs compute capability 8.9 (Ada), FP8 blocks 9.0 (Hopper),
    MXFP8, MXFP4 and NVFP4 10.0 (Blackwell). TransformerEngine has no MXFP8 on 12.0 (RTX Blackwell)
    yet, whose hardware has the format.

    Checked with `--target sm_NN`. Choose a format that the GPU has.
    """
    if subject.options.target is None:
        return
    target = check_target(subject.options.target)
    reported: set[tuple[str, str]] = set()
    for decision in subject.usable:
        slot = decision.slot
        for fmt in (decision.rowwise, decision.columnwise):
            support = _SUPPORT.get(fmt.family) if fmt is not None else None
            if fmt is None or support is None or target in support:
                continue
            path = f"{slot.module}.{slot.group}" if slot.group else slot.module
            if (path, fmt.family) not in reported:
                reported.add((path, fmt.family))
                name = fmt.family.partition("_")[0].upper()
                yield Hit(
                    path or ".",
                    f"{subject.options.target} does not run {_kind(fmt, name)}; {support} does",
                    "choose a format that the GPU has",
                    slot.module,
                )


def _kind(fmt: OperandFormat, name: str) -> str:
    return f"{name} in blocks of 128" if fmt.family == "fp8_block" else name


@check("QR403", Severity.WARNING)
def transform_without_bf16(subject: PlanSubject) -> Iterator[Hit]:
    """The Hadamard transform is asked for in a model that is not bf16.

    The transform's kernel takes bf16 tensors only. TransformerEngine raises for fp16 and fp32
    activations. It is applied to what wgrad reads, so `--inference` does not ask for it.

    Build the model in bf16, run it under `torch.autocast(dtype=torch.bfloat16)`, or switch
    `with_rht` off.
    """
    if subject.options.inference:
        return
    for layer in subject.layers:
        transformed = any(
            d.columnwise is not None and d.columnwise.rht for d in layer.operands.values()
        )
        dtype = _dtype(subject, layer) if transformed else ""
        if dtype not in ("", "bfloat16"):
            yield layer_hit(
                layer,
                f"its parameters are {dtype}; the Hadamard transform takes bfloat16 only",
                "build the model in bfloat16, run it under autocast, or switch with_rht off",
            )


def _dtype(subject: PlanSubject, layer: Layer) -> str:
    """The dtype of the layer's weight; `""` where the values are not at hand."""
    model, weight = subject.model, layer.weight
    if model is None or weight is None or not weight.slot.parameters:
        return ""
    name = weight.slot.parameters[0]
    if model.tensors is not None and name in model.tensors:
        stored = model.tensors[name].dtype
        return {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}.get(stored, "")
    if model.module is None:
        return ""
    try:
        return str(model.module.get_parameter(name).dtype).removeprefix("torch.")
    except AttributeError:
        return ""


@check("QR404", Severity.ERROR)
def attention_format(subject: PlanSubject) -> Iterator[Hit]:
    """An attention slot has a format that FP8 attention can't use.

    The attention kernel takes FP8 with one scale per tensor (delayed or current) or MXFP8 for its
    six tensors QKV, O, S, dQKV, dO and dP. NVFP4, FP8 blocks, high precision and hybrid quantizers
    raise in the first forward pass. With `fp8_mha` the O slot has the role of the projection's
    input, so that a factory that knows only `dpa` roles gives it the linear layers' format.

    Checked with `--fp8-dpa`. Answer `dpa` roles, and the hints `dpa_output` and `dpa_grad_input`,
    with FP8 or MXFP8.
    """
    wrong: dict[tuple[str, str], list[str]] = defaultdict(list)
    for decision in subject.usable:
        slot = decision.slot
        if slot.operand not in ATTENTION:
            continue
        formats = {f.family for f in (decision.rowwise, decision.columnwise) if f is not None}
        if len(formats) != 1 or not formats <= set(_FP8_ATTENTION) or is_hybrid(decision):
            wrong[slot.module, decision.label].append(slot.operand)
    for (module, label), operands in wrong.items():
        yield Hit(
            module or ".",
            f"{label} for {', '.join(operands)}",
            "answer attention roles and hints with FP8 (one scale per tensor) or MXFP8",
            module,
        )


@check("QR405", Severity.ERROR)
def attention_sizes(subject: PlanSubject) -> Iterator[Hit]:
    """MXFP8 attention has sizes that its kernel can't take.

    MXFP8 attention needs head sizes that are multiples of 32 and sequence lengths that are
    multiples of 128.

    Checked with `--fp8-dpa`, sequences with `--sequence-length N`. Pad the sequences, or use
    per-tensor FP8 for the `dpa` roles.
    """
    modules = {
        d.slot.module: None
        for d in subject.usable
        if d.slot.operand == "qkv" and d.rowwise is not None and d.rowwise.family == "mxfp8"
    }
    length = subject.options.sequence_length
    for path in modules:
        sizes = [("head size", size, 32) for size in _head_sizes(subject, path)]
        sizes += [("sequence length", length, 128)] if length is not None else []
        for name, size, need in sizes:
            if size % need:
                yield Hit(
                    path or ".",
                    f"{name} {size} is no multiple of {need}, which MXFP8 attention needs",
                    "pad, or use per-tensor FP8 for the dpa roles",
                    path,
                )


def _head_sizes(subject: PlanSubject, path: str) -> list[int]:
    """Sizes of the key and value heads, as TransformerEngine's attention holds them."""
    module = subject.model.module if subject.model is not None else None
    found = module.get_submodule(path) if module is not None else None
    names = ("hidden_size_per_attention_head_k", "hidden_size_per_attention_head_v")
    sizes = [getattr(found, name, None) for name in names]
    return [size for size in dict.fromkeys(sizes) if isinstance(size, int)]


@check("QR406", Severity.ERROR)
def shard_not_a_multiple(subject: PlanSubject) -> Iterator[Hit]:
    """Split among tensor-parallel GPUs, a layer's shard is no multiple of the format's block.

    Engines split q, k, v, gate and up by rows and o and down by columns. FP8 blocks of 128 then
    need a shard of a multiple of 128, MX formats of 32, NVFP4 of 16. A size that fits on one GPU
    need not fit on eight.

    Checked with `--tensor-parallel N`. Use fewer GPUs, or another format for the layer.
    """
    ranks = subject.options.tensor_parallel
    if ranks == 1:
        return
    for layer in subject.layers:
        fmt = layer.weight.rowwise if layer.weight else None
        if layer.shape is None or fmt is None or fmt.family not in _MULTIPLE:
            continue
        need = _MULTIPLE[fmt.family]
        by_input = layer.path.rpartition(".")[2] in _ROW_PARALLEL
        size = layer.shape[1 if by_input else 0]
        if size % (need * ranks):
            most = max((n for n in range(1, ranks) if size % (need * n) == 0), default=0)
            name = "in_features" if by_input else "out_features"
            works = f"at most {most} GPUs work" if most else "no number of GPUs works"
            yield layer_hit(
                layer,
                f"{name} {size} over {ranks} GPUs is no multiple of {need} ({fmt.label}); {works}",
                "use fewer GPUs, or another format for the layer",
            )
