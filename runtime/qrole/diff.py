"""Two plans side by side: factories, rules files, lock files, manifests, written checkpoints.

Where both sides know slots, slots are compared. A manifest or a checkpoint knows how weights are
stored and nothing else; then the stored encodings of weights are compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qrole.auditing.declaration import read_declaration
from qrole.errors import CheckpointError, UsageError
from qrole.given import as_factory
from qrole.lock import lock_entries, natural_key, read_lock
from qrole.places import summarize_places
from qrole.plans import Decision, Inventory, Plan, build_plan
from qrole.plugins import Factory
from qrole.quantizers.base import OperandFormat

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Change", "ChangeGroup", "Side", "compare_sides", "group_changes", "read_sides"]

_HIGH = "high precision"
_EXPERT = re.compile(r"\.experts\.\d+\.")
_FUSED = {"gate_up_proj": ("gate_proj", "up_proj")}


@dataclass(frozen=True)
class Side:
    """One of the two things that are compared.

    Attributes:
        name: As the user named it.
        slots: Answers by slot id; None where only weights are known.
        weights: Encodings by module.
    """

    name: str
    slots: dict[str, str] | None
    weights: dict[str, str]


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        key: Slot id, or the module that holds a weight.
        before: What the first side says; None where it does not have it.
        after: What the second side says.
    """

    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class ChangeGroup:
    """Equal differences together.

    Attributes:
        before: What the first side says.
        after: What the second side says.
        count: Number of differences.
        places: Their modules, folded, with the number of differences in each.
    """

    before: str | None
    after: str | None
    count: int
    places: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """`MXFP8Quantizer(...) -> NVFP4Quantizer(...)`, an equal kind of role said once."""
        before, kind = _split(self.before)
        after, other = _split(self.after)
        if kind and kind == other:
            return f"{kind}: {before} -> {after}"
        return f"{self.before or 'nothing'} -> {self.after or 'nothing'}"


def _split(text: str | None) -> tuple[str, str]:
    """Answer and kind of role of an entry."""
    answer, _, kind = (text or "").rpartition(" for ")
    return answer, kind


def read_sides(specs: Iterable[str], model: Callable[[], Inventory] | None) -> list[Side]:
    """What a user names on the command line; all of it is looked at before a model is loaded.

    Args:
        specs: `.lock` files, `qrole_manifest.json`, directories of written checkpoints, factories.
        model: Gives the model that factories are asked about; None where none is named.

    Raises:
        UsageError: A factory without a model, or a directory that declares no quantization.
        QroleError: It cannot be read.
    """
    found = [_read(spec, model is not None) for spec in specs]
    inventory: Inventory | None = None
    sides = []
    for side in found:
        if isinstance(side, Factory):
            assert model is not None, "_read sees to it"
            inventory = inventory or model()
            plan = build_plan(inventory, side)
            side = Side(side.name, lock_entries(plan), _merge(_weights(plan)))
        sides.append(side)
    return sides


def _read(spec: str, has_model: bool) -> Side | Factory:
    """A side that is written somewhere, or the factory that has to be asked."""
    path = Path(spec)
    if path.is_dir():
        stored = read_declaration(path).stored
        return Side(spec, None, _merge((m, s.encoding or _HIGH) for m, s in stored.items()))
    if path.suffix == ".lock":
        return Side(spec, read_lock(path), {})
    if path.suffix == ".json":
        return Side(spec, None, _merge(_manifest(path)))
    factory = as_factory(spec)
    if not has_model:
        raise UsageError(
            f"{spec} is a factory, and no model is named",
            expected="--model MODEL, which the factory is asked about",
            hint="lock files, manifests and written checkpoints need none",
        )
    return factory


def compare_sides(one: Side, two: Side) -> list[Change]:
    """Everything that differs, in natural order.

    Raises:
        UsageError: A lock file, which knows no weights, meets a side that knows only weights.
    """
    if one.slots is not None and two.slots is not None:
        return _compare(one.slots, two.slots, None)
    for side, other in ((one, two), (two, one)):
        if side.slots is not None and not side.weights:
            raise UsageError(
                f"{side.name} knows slots, {other.name} knows stored weights",
                expected="two sides with something in common",
                hint="compare the factory itself with it: name the factory and --model MODEL",
            )
    return _compare(one.weights, two.weights, _HIGH)


def _compare(one: dict[str, str], two: dict[str, str], missing: str | None) -> list[Change]:
    changes = [
        Change(key, one.get(key, missing), two.get(key, missing))
        for key in sorted({**one, **two}, key=natural_key)
    ]
    return [change for change in changes if change.before != change.after]


def group_changes(changes: list[Change]) -> list[ChangeGroup]:
    """Equal changes together, the largest group first."""
    groups: dict[tuple[str | None, str | None], list[str]] = {}
    for change in changes:
        groups.setdefault((change.before, change.after), []).append(change.key)
    found = [
        ChangeGroup(
            before,
            after,
            len(keys),
            tuple(summarize_places(key.partition(":")[0] for key in keys)),
        )
        for (before, after), keys in groups.items()
    ]
    return sorted(found, key=lambda group: -group.count)


def _merge(entries: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> dict[str, str]:
    """Encodings by module; experts of one layer together, unless they differ."""
    found: dict[str, dict[str, None]] = {}
    for module, encoding in entries:
        found.setdefault(_EXPERT.sub(".experts.*.", module), {})[encoding] = None
    return {module: " and ".join(encodings) for module, encodings in found.items()}


def _manifest(path: Path) -> Iterator[tuple[str, str]]:
    from qrole.checkpoint.manifest import read_manifest

    if path.name != "qrole_manifest.json":
        raise UsageError(
            f"{path} is no manifest",
            expected="qrole_manifest.json, a .lock file, a directory, or a factory",
            hint="name the directory that `qrole apply` has written",
        )
    content = read_manifest(path.parent)
    try:
        for module, layer in content["layers"].items():
            yield module, str(layer["format"]["encoding"])
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} lacks {json.dumps(str(error))}",
            expected="a manifest that `qrole apply` has written",
            hint="write the checkpoint again",
        ) from error


def _weights(plan: Plan) -> Iterator[tuple[str, str]]:
    """Encodings of a plan's weights, under the names that a checkpoint has for them."""
    for decision in plan:
        if decision.slot.operand == "weight" and decision.slot.consumed and decision.rowwise:
            for module in _modules(decision):
                yield module, _encoding(decision.rowwise)


def _modules(decision: Decision) -> Iterator[str]:
    slot = decision.slot
    for name in slot.parameters:
        module = name.removesuffix(".weight")
        path, _, last = module.rpartition(".")
        if module.endswith(f"experts.{slot.group}") and slot.group:
            yield from (f"{path}.*.{part}" for part in _FUSED.get(last, (last,)))
        else:
            yield module


def _encoding(fmt: OperandFormat) -> str:
    return _HIGH if fmt.family == "high_precision" else fmt.family
