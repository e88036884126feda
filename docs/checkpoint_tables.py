"""Tables of the page on checkpoints: stored tensors, engines, fused neighbours."""

from __future__ import annotations

from docs.markdown import cell, table
from qrole.checkpoint import engines
from qrole.checkpoint.fused import DEFAULT_FUSIONS
from qrole.checkpoint.layers import Layer
from qrole.checkpoint.layouts import LAYOUTS, Content, Part
from qrole.checkpoint.layouts.modelopt import ALGORITHMS
from qrole.checkpoint.schemes import SCHEMES, Activations, Scheme, WeightFormat

__all__ = ["engine_tables", "expert_table", "fusion_table", "scheme_table", "tensor_tables"]

# Sizes of which no fraction in use equals another one's.
_ROWS, _COLUMNS = 1152, 2560
_SIZES = {
    1: "1",
    _ROWS: "o",
    _ROWS // 128: "o/128",
    _COLUMNS: "i",
    _COLUMNS // 2: "i/2",
    _COLUMNS // 16: "i/16",
    _COLUMNS // 32: "i/32",
    _COLUMNS // 128: "i/128",
}
_INPUTS = {
    Activations.NONE: "stay in high precision",
    Activations.STATIC: "calibrated scale",
    Activations.DYNAMIC: "scaled at run time",
}


def scheme_table() -> str:
    """Every scheme: what is stored, what happens to inputs, its name in ModelOpt."""
    rows = []
    for scheme in SCHEMES.values():
        stored = scheme.stored
        bits = stored.element_bits + _scale_bits(scheme)
        rows.append(
            (
                f"`{scheme.name}`",
                f"{bits:.4g}",
                f"a multiple of {stored.columns}" if stored.columns > 1 else "any",
                _INPUTS[scheme.activations],
                f"`{ALGORITHMS[scheme.name]}`" if scheme.name in ALGORITHMS else "",
            )
        )
    columns = ("scheme", "bits per weight", "in_features", "inputs", "ModelOpt's `quant_algo`")
    return table(columns, rows)


def _scale_bits(scheme: Scheme) -> float:
    """Bits of block scales per element; those of a whole row or tensor vanish in large ones."""
    stored = scheme.stored
    if not (stored.scale_rows and stored.scale_columns):
        return 0.0
    width = {"F32": 32, "U8": 8, "F8_E4M3": 8}[stored.scale_dtype]
    return width / (stored.scale_rows * stored.scale_columns)


def tensor_tables() -> str:
    """The stored tensors of each scheme, layout by layout."""
    parts = []
    for layout in LAYOUTS.values():
        if not layout.schemes:
            continue
        alike: dict[tuple[Part, ...], list[str]] = {}
        for scheme in SCHEMES.values():
            if scheme.name in layout.schemes:
                alike.setdefault(layout.parts(_layer(scheme)), []).append(f"`{scheme.name}`")
        rows = [
            (", ".join(names) if i == 0 else "", *_part(part))
            for stored, names in alike.items()
            for i, part in enumerate(stored)
        ]
        columns = ("scheme", "tensor", "dtype", "shape", "holds")
        parts += [f"`--layout {layout.name}`:", table(columns, rows)]
    return "\n\n".join(parts)


def _part(part: Part) -> tuple[str, str, str, str]:
    holds = {Content.DATA: "codes", Content.SCALE: "block scales"}
    shape = ", ".join(_SIZES[size] for size in part.shape)
    name = part.name.removeprefix("layer.")
    return (f"`{name}`", part.dtype, f"[{shape}]", holds.get(part.content, part.content.value))


def _layer(scheme: Scheme) -> Layer:
    return Layer(
        module="layer",
        tensor="layer.weight",
        first_row=0,
        rows=_ROWS,
        columns=_COLUMNS,
        scheme=scheme,
        weight=WeightFormat(scheme.encoding),
        slot="",
        place=("layer", "", 0),
        answer="",
        note="",
        group=("layer",),
    )


def engine_tables() -> str:
    """Which engine loads which scheme, layout by layout."""
    parts = []
    for layout, schemes in engines.SUPPORT.items():
        rows = [
            (f"`{scheme}`", *(_verdict(*entry) for entry in entries))
            for scheme, entries in schemes.items()
        ]
        columns = ("scheme", *engines.ENGINES.values())
        parts += [f"`--layout {layout}`:", table(columns, rows)]
    return "\n\n".join(parts)


def expert_table() -> str:
    """What transformers makes of experts in compressed-tensors."""
    rows = [(f"`{scheme}`", _verdict(*entry)) for scheme, entry in engines.EXPERT_SUPPORT.items()]
    return table(("scheme of the experts", "transformers"), rows)


def _verdict(level: engines.Level, reason: str) -> str:
    word = {
        engines.Level.YES: "loads",
        engines.Level.LIMITED: "limits",
        engines.Level.NO: "no",
    }[level]
    return f"{word}: {cell(reason)}" if reason else word


def fusion_table() -> str:
    """Sibling layers that must share scheme and global scale."""
    rows = [(", ".join(f"`{name}`" for name in fusion.names),) for fusion in DEFAULT_FUSIONS]
    return table(("siblings that engines join",), rows)
