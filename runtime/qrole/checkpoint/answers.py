"""What a plan answers for every stored weight: its scheme, experts one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from qrole.checkpoint.constraints import SelectOptions
from qrole.checkpoint.native.descriptions import check_describable
from qrole.checkpoint.schemes import (
    Activations,
    Scheme,
    WeightFormat,
    scheme_of,
    weight_format,
)
from qrole.checkpoint.source import Source
from qrole.dtypes import DType
from qrole.errors import ConfigError
from qrole.plans import Decision, Plan
from qrole.quantizers import Float8CurrentScalingQuantizer, Quantizer

__all__ = ["Answer", "Asked", "stored_weights"]


@dataclass(frozen=True)
class Answer:
    """How one weight is to be stored.

    Invariant: `weight` and `scheme` are there together.

    Attributes:
        label: Of the quantizer that the factory gave.
        weight: What the encoder is told; None for high precision.
        scheme: The scheme; None for high precision.
        note: Where the scheme differs from the plan.
        quantizer: Whom the layout native lets quantize the weight; None in other layouts.
    """

    label: str
    weight: WeightFormat | None = None
    scheme: Scheme | None = None
    note: str = ""
    quantizer: Quantizer | None = None

    def __post_init__(self) -> None:
        assert (self.weight is None) == (self.scheme is None), "together"


class StoredWeight(NamedTuple):
    """One stored weight of a slot; a named tuple, like the layer that it becomes.

    Attributes:
        module: Its name in the written checkpoint.
        tensor: The source tensor that holds it.
        first_row: First row there; not 0 for experts that the source holds in one tensor.
        rows: out_features.
        columns: in_features.
        copy: Which of the slot's copies it belongs to.
    """

    module: str
    tensor: str
    first_row: int
    rows: int
    columns: int
    copy: int


@dataclass(frozen=True)
class Asked:
    """A slot with its stored weights, and how each copy is to be stored.

    Attributes:
        slot: Its id.
        weights: What the source holds of it.
        places: Module, group and number of each copy.
        answers: How the weights of each copy are to be stored; equal ones are one object.
    """

    slot: str
    weights: tuple[StoredWeight, ...]
    places: tuple[tuple[str, str, int], ...]
    answers: tuple[Answer, ...]


def stored_weights(plan: Plan, source: Source, options: SelectOptions) -> Iterator[Asked]:
    """Every weight slot of a plan that a source holds weights of.

    Raises:
        ConfigError: A format, or a pair of formats, that no engine has; names the slot.
    """
    by_layer: dict[tuple[str, str], dict[str, Decision]] = defaultdict(dict)
    for decision in plan:
        slot = decision.slot
        if slot.consumed and slot.operand in ("weight", "input"):
            by_layer[slot.module, slot.group][slot.operand] = decision
    for (module, group), operands in by_layer.items():
        weight = operands.get("weight")
        stored = tuple(_stored(weight, source)) if weight is not None else ()
        if weight is not None and stored:
            answers = _Answers(weight, operands.get("input"), options).of_copies()
            places = tuple((module, group, copy) for copy in range(weight.slot.copies))
            yield Asked(weight.slot.id, stored, places, answers)


def _stored(weight: Decision, source: Source) -> Iterator[StoredWeight]:
    """The stored weights of a slot, in the order of its parameters."""
    slot = weight.slot
    names = [name for name in slot.parameters if name in source.tensors]
    for i, name in enumerate(names):
        shape, module = source.tensors[name].shape, name.removesuffix(".weight")
        if len(shape) == 2:
            copy = i * slot.copies // len(names)
            yield StoredWeight(module, name, 0, shape[0], shape[1], copy)
        elif len(shape) == 3 and shape[0] == slot.copies and shape[1:] == slot.shape:
            path, _, last = module.rpartition(".")
            for copy in range(slot.copies):
                expert = f"{path}.{copy}.{last}"
                yield StoredWeight(expert, name, copy * shape[1], shape[1], shape[2], copy)


class _Answers:
    """The answers of one layer's copies; equal quantizers are looked at once."""

    def __init__(self, weight: Decision, inputs: Decision | None, options: SelectOptions) -> None:
        self._weight, self._inputs, self._options = weight, inputs, options
        self._known: list[tuple[Any, Any, Answer]] = []

    def of_copies(self) -> tuple[Answer, ...]:
        """One answer per copy."""
        count = self._weight.slot.copies
        weights, inputs = _given(self._weight, count), _given(self._inputs, count)
        return tuple([self._of_pair(*pair) for pair in zip(weights, inputs, strict=True)])

    def _of_pair(self, weight: Any, inputs: Any) -> Answer:
        for known_weight, known_inputs, answer in self._known:
            if _alike(weight, known_weight) and _alike(inputs, known_inputs):
                return answer
        answer = self._look(weight, inputs)
        self._known.append((weight, inputs, answer))
        return answer

    def _look(self, weight: Any, inputs: Any) -> Answer:
        decision = replace(self._weight, answers=(weight,))
        slot_id, fmt = decision.slot.id, decision.rowwise
        if fmt is None:
            raise ConfigError(
                f"slot {slot_id} has no usable answer: {decision.error or decision.label}",
                expected="a quantizer or a delayed-scaling request",
                hint="run `qrole audit` on the factory",
            )
        if self._options.own_quantizers:
            return _own(decision)
        activations = None
        if self._inputs is not None:
            activations = replace(self._inputs, answers=(inputs,)).rowwise
        epsilon, options = float(getattr(weight, "amax_epsilon", 0.0)), self._options
        try:
            stored, note = weight_format(fmt, options.fp8, epsilon)
            if stored is None:
                return Answer(decision.label)
            scheme, differs = scheme_of(stored, activations, options.fp8, options.weight_only)
        except ConfigError as error:
            raise ConfigError(
                f"slot {slot_id}: {error.given}", expected=error.expected, hint=error.hint
            ) from error
        notes = "; ".join(text for text in (note, differs) if text)
        return Answer(decision.label, stored, scheme, notes)


def _own(decision: Decision) -> Answer:
    """The answer's own quantizer; delayed scaling starts from the weight's own amax."""
    quantizer, note = decision.quantizer, ""
    if quantizer is None:
        assert decision.rowwise is not None, "a delayed-scaling request"
        element = DType.kFloat8E5M2 if decision.rowwise.element == "e5m2" else DType.kFloat8E4M3
        quantizer = Float8CurrentScalingQuantizer(element, "cpu")
        note = "the scale is this weight's own, not one of an amax history"
    try:
        check_describable(quantizer)
    except ConfigError as error:
        raise ConfigError(
            f"slot {decision.slot.id}: {error.given}", expected=error.expected, hint=error.hint
        ) from error
    scheme = Scheme(quantizer.label, "native", Activations.NONE)
    return Answer(decision.label, WeightFormat("native"), scheme, note, quantizer)


def _given(decision: Decision | None, copies: int) -> Sequence[Any]:
    """The factory's answers, one per copy."""
    given = decision.answers if decision is not None and decision.answers else (None,)
    return given if len(given) == copies else given[:1] * copies


def _alike(one: Any, other: Any) -> bool:
    """Whether two answers are surely equal, without asking them to describe themselves."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    try:
        return bool(vars(one) == vars(other))
    except (TypeError, RuntimeError, ValueError):  # attributes that are tensors do not compare
        return False
