"""Slots from tensor names and shapes alone: weights without a model, headers without values."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qrole.emitters.base import linear_slots
from qrole.plans import Inventory, Uncovered
from qrole.roles import Slot

if TYPE_CHECKING:
    from qrole.checkpoint.headers import TensorInfo

__all__ = ["walk_tensors"]

#: Number, sort key of the projection, and name of an expert's tensor.
_Expert = tuple[float, list[str | int], str]

# Two projections of one input that transformers holds as one matrix; the slot is the fused one, so
# that a factory sees the same role whether the model or its file is walked.
_FUSED_EXPERTS = {
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "w1": "gate_up_proj",
    "w3": "gate_up_proj",
    "down_proj": "down_proj",
    "w2": "down_proj",
}
_EXPERT = re.compile(r"^(?P<experts>.*\.experts)\.(?P<index>\d+)\.(?P<projection>\w+)\.weight$")
_FUSED_EXPERT = re.compile(r"^(?P<experts>.*\.experts)\.(?P<projection>gate_up_proj|down_proj)$")
_DIGITS = re.compile(r"(\d+)")
_EMBEDDING = re.compile(r"(^|\.)(\w*embed\w*|wte|wpe|word_embeddings)\.", re.IGNORECASE)
_NORM = re.compile(r"(^|[._])(layer|rms|batch|group)?_?norm\w*\.|(^|\.)ln_?\w*\.", re.IGNORECASE)
_ROUTER = re.compile(r"(^|\.)(router|gate|shared_expert_gate)(\.\w+)?$", re.IGNORECASE)
_FLOATING = ("F64", "F32", "F16", "BF16", "F8_E4M3")


def walk_tensors(tensors: Mapping[str, TensorInfo], name: str) -> Inventory:
    """Linear slots for 2-D weights that are neither embeddings nor routers; experts grouped.

    Args:
        tensors: Headers, by tensor name.
        name: What the user named, for the inventory.
    """
    slots: list[Slot] = []
    rest: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    by: dict[str, str] = {}
    experts, others = _experts(tensors)
    for tensor in sorted(others, key=_natural):
        info = tensors[tensor]
        path = tensor.rpartition(".")[0]
        reason, quantizable = _reason(tensor, info)
        if tensor.endswith(".weight") and len(info.shape) == 2 and not reason:
            slots += linear_slots(path, "", weight=tensor, shape=tuple(info.shape))
            by[path] = "tensor names"
            continue
        rest[path, reason or "not a 2-D weight", quantizable].append(tensor)
    slots += _expert_slots(experts, tensors, by)
    return Inventory(
        model=name,
        slots=tuple(slots),
        uncovered=tuple(
            Uncovered(
                path,
                "",
                tuple(names),
                sum(math.prod(tensors[n].shape) for n in names),
                reason,
                quantizable,
            )
            for (path, reason, quantizable), names in rest.items()
        ),
        numel=sum(math.prod(info.shape) for info in tensors.values()),
        emitters=by,
    )


def _experts(
    tensors: Mapping[str, TensorInfo],
) -> tuple[dict[tuple[str, str], list[_Expert]], list[str]]:
    """Experts' tensors by path and projection, in order; and the names of all other tensors."""
    found: dict[tuple[str, str], list[_Expert]] = defaultdict(list)
    others: list[str] = []
    keys: dict[str, list[str | int]] = {}
    for name, info in tensors.items():
        if len(info.shape) == 2 and (expert := _EXPERT.match(name)):
            path, index, projection = expert.groups()
            group = _FUSED_EXPERTS.get(projection, projection)
            key = keys.get(projection) or keys.setdefault(projection, _natural(projection))
            found[path, group].append((int(index), key, name))
        elif len(info.shape) == 3 and (fused := _FUSED_EXPERT.match(name)):
            found[fused["experts"], fused["projection"]].append((math.inf, [], name))
        else:
            others.append(name)
    for members in found.values():
        members.sort()
    return dict(sorted(found.items(), key=lambda item: _natural(item[1][0][2]))), others


def _expert_slots(
    experts: Mapping[tuple[str, str], list[_Expert]],
    tensors: Mapping[str, TensorInfo],
    by: dict[str, str],
) -> list[Slot]:
    slots: list[Slot] = []
    groups: dict[str, int] = defaultdict(int)
    for (path, group), members in experts.items():
        names = [name for _, _, name in members]
        first = tensors[names[0]].shape
        if len(first) == 3:
            copies, shape = first[0], tuple(first[1:])
        else:
            copies = len({index for index, _, _ in members})
            per_expert = len(names) // copies
            shape = (first[0] * per_expert, first[1])
        i = groups[path]
        slots += linear_slots(
            path,
            "",
            weight=names[0],
            shape=shape,
            group=group,
            module_type="grouped_linear",
            copies=copies,
            start=(2 * i, i),
            parameters=names,
        )
        groups[path] += 1
        by[path] = "tensor names"
    return slots


def _reason(tensor: str, info: TensorInfo) -> tuple[str, bool]:
    """Why a tensor is no linear weight (`""`: it is one), and whether it feeds a product."""
    path = tensor.rpartition(".")[0]
    if info.dtype not in _FLOATING:
        return f"stored as {info.dtype}", False
    if _EMBEDDING.search(tensor):
        return "embedding (a lookup, no matrix product)", False
    if _ROUTER.search(path):
        return "router: kept in high precision", False
    if tensor.endswith("_scale_inv"):
        return "scale of a quantized weight", False
    if len(info.shape) <= 1:
        return "bias" if tensor.endswith("bias") else "norm or other vector", False
    if _NORM.search(tensor):
        return "norm", False
    if len(info.shape) >= 3:
        return f"{len(info.shape)}-D tensor: no emitter covers it", True
    return "", False


def _natural(name: str) -> list[str | int]:
    """Sort key that puts layer 2 before layer 10: texts and numbers in turn, a text first."""
    parts: list[str | int] = [*_DIGITS.split(name)]
    parts[1::2] = map(int, parts[1::2])
    return parts
