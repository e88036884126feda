"""Tensors against the declaration: every part there, of its dtype and shape, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from qrole.checkpoint.headers import TensorInfo
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.layouts import Content, Layout
from qrole.checkpoint.schemes import SCHEMES, WeightFormat
from qrole.checkpoint.verification.declared import Declared
from qrole.checkpoint.verification.decoding import StoredLayer

__all__ = ["check_modules", "layer_of", "stored_layers"]

Complain = Callable[[str, str, str], None]

_HIGH = ("F32", "BF16", "F16")
#: Last name components of parts that some layout stores beside a weight.
_PARTS = (
    "weight_packed",
    "weight_scale",
    "weight_global_scale",
    "input_global_scale",
    "input_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "activation_scale",
    "pre_quant_scale",
)
_NUMBERS_MAY_BE = ("F32", "BF16")


def stored_layers(
    declared: Declared, layout: Layout, tensors: Mapping[str, TensorInfo], complain: Complain
) -> dict[str, StoredLayer]:
    """The layers whose parts are all there and of the right kind; complains about the others."""
    layers = {}
    for module, scheme_name in declared.schemes.items():
        if scheme_name not in layout.schemes:
            continue
        scheme = SCHEMES[scheme_name]
        data = tensors.get(layout.codes_name(module, scheme))
        if data is None or len(data.shape) != 2:
            complain(
                "missing-part",
                module,
                f"is declared {scheme_name} and has no {layout.codes_name(module, scheme)}",
            )
            continue
        rows, columns = data.shape[0], data.shape[1] * 8 // scheme.stored.element_bits
        layer = layer_of(module, scheme_name, rows, columns, (module,))
        parts = _parts(layer, layout, tensors, complain)
        if parts is not None:
            layers[module] = StoredLayer(module, scheme.stored, rows, columns, parts)
    return layers


def layer_of(module: str, scheme: str, rows: int, columns: int, group: tuple[str, ...]) -> Layer:
    """A layer as a checkpoint shows it: nothing is known of the plan."""
    return Layer(
        module=module,
        tensor=f"{module}.weight",
        first_row=0,
        rows=rows,
        columns=columns,
        scheme=SCHEMES[scheme],
        weight=WeightFormat(SCHEMES[scheme].encoding),
        slot=module,
        place=(module, "", 0),
        answer="",
        note="",
        group=group,
    )


def _parts(
    layer: Layer, layout: Layout, tensors: Mapping[str, TensorInfo], complain: Complain
) -> dict[Content, TensorInfo] | None:
    found: dict[Content, TensorInfo] = {}
    whole = True
    for part in layout.parts(layer):
        info = tensors.get(part.name)
        if info is None:
            complain("missing-part", part.name, f"is not there; {layer.scheme.name} needs it")
            whole = False
            continue
        number = part.content not in (Content.DATA, Content.SCALE)
        dtypes = _NUMBERS_MAY_BE if number or part.dtype == "F32" else (part.dtype,)
        if info.dtype not in dtypes or info.shape != part.shape:
            complain(
                "wrong-part",
                part.name,
                f"is {info.dtype} {list(info.shape)}, not {part.dtype} {list(part.shape)}",
            )
            whole = False
            continue
        found[part.content] = info
    return found if whole else None


def check_modules(
    declared: Declared,
    layout: Layout,
    tensors: Mapping[str, TensorInfo],
    modules: Iterable[str],
    layers: Mapping[str, StoredLayer],
    complain: Complain,
) -> None:
    """Every matrix is declared quantized or ignored, and no stray part lies around."""
    for module in modules:
        if module in declared.schemes:
            continue
        info = tensors.get(f"{module}.weight")
        if info is None or info.dtype not in _HIGH:
            complain("undeclared", module, "holds codes, and no group of the config targets it")
        elif module not in declared.ignored:
            complain("undeclared", module, "is in high precision and not in the ignore list")
    known = {info.name for layer in layers.values() for info in layer.parts.values()}
    for name in tensors:
        module, _, last = name.rpartition(".")
        broken = module in declared.schemes and module not in layers
        if last in _PARTS and name not in known and not broken:
            complain("stray-part", name, "belongs to no layer that the config declares")
