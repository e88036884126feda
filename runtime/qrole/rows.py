"""Results as rows of text, which terminals and notebooks show alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qrole.comparing.report import CandidateReport, SensitivityReport
    from qrole.plans import Inventory
    from qrole.searching import Point

__all__ = [
    "LAYER_COLUMNS",
    "MODEL_COLUMNS",
    "POINT_COLUMNS",
    "counted",
    "inventory_size",
    "layer_rows",
    "model_row",
    "number",
    "point_row",
    "sensitivity_row",
]

MODEL_COLUMNS = ("factory", "output dB", "cosine", "KL", "top-1", "loss diff", "grad cosine")
LAYER_COLUMNS = (
    "layer",
    "input x weight",
    "fprop dB",
    "dgrad dB",
    "wgrad dB",
    "output dB",
    "cosine",
)
POINT_COLUMNS = ("choice", "bits", "bytes", "predicted", "measured", "layers")


def model_row(candidate: CandidateReport) -> list[str]:
    """One candidate's errors of the model as a whole, under `MODEL_COLUMNS`."""
    found = candidate.model
    return [
        candidate.factory,
        number(found.sqnr_db, ".1f"),
        number(found.cosine, ".5f"),
        number(found.kl, ".5f"),
        number(found.top1_agreement, ".1%"),
        number(found.loss_diff, "+.5f"),
        number(found.grad_cosine, ".5f"),
    ]


def layer_rows(candidate: CandidateReport) -> list[list[str]]:
    """One candidate's layers, worst first, under `LAYER_COLUMNS`."""
    gemms = {(g.module, g.group, g.gemm): g.sqnr_db for g in candidate.gemms}
    rows = []
    for layer in sorted(candidate.layers, key=lambda x: (x.cosine is None, x.cosine or 0.0)):
        products = [gemms.get((layer.module, layer.group, g)) for g in ("fprop", "dgrad", "wgrad")]
        rows.append(
            [
                layer.layer,
                layer.formats,
                *(number(value, ".1f") for value in products),
                number(layer.sqnr_db, ".1f"),
                number(layer.cosine, ".5f"),
            ]
        )
    return rows


def point_row(point: Point) -> list[str]:
    """One choice of formats, under `POINT_COLUMNS`."""
    return [
        point.name,
        f"{point.bits:.3f}",
        f"{point.nbytes:,}",
        f"{point.predicted:.4g}",
        f"{point.measured.error:.4g}" if point.measured is not None else "",
        ", ".join(f"{name} {count}" for name, count in point.counts.items()),
    ]


def sensitivity_row(group: SensitivityReport) -> list[str]:
    """One group quantized alone: its name, KL, errors of output and gradients."""
    errors = ((group.kl, ".5f"), (group.rel_err, ".4f"), (group.grad_rel_err, ".4f"))
    return [group.group, *(number(value, form) for value, form in errors)]


def counted(count: int, noun: str) -> str:
    """`1 limit`, `3 limits`, `1,024 slots`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def inventory_size(inventory: Inventory) -> str:
    """Slots, experts counted one by one, modules and parameters of a model."""
    slots = counted(sum(slot.copies for slot in inventory.slots), "slot")
    modules = counted(len({slot.module for slot in inventory.slots}), "module")
    return f"{slots} in {modules}, {counted(inventory.numel, 'parameter')}"


def number(value: float | None, form: str) -> str:
    """A formatted number; nothing for None."""
    return "" if value is None else format(value, form)
