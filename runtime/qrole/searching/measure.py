"""What a choice costs in accuracy: in the weights alone, in the output, in the gradients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qrole.comparing.candidate import Candidate
from qrole.comparing.data import Data
from qrole.comparing.outputs import Objective
from qrole.comparing.passes import Reference, run_candidate, run_reference
from qrole.errors import CheckpointError
from qrole.execute import PlanState, WeightCache
from qrole.plans import Plan
from qrole.searching.units import Unit

__all__ = ["Journal", "Measured", "ModelMeter", "weight_noise"]


@dataclass(frozen=True)
class Measured:
    """Errors of the model as a whole under one plan.

    Attributes:
        kl: KL(reference || plan), nats per position; None where the output is no logits.
        rel_err: Norm of the output's error over norm of the reference.
        grad_rel_err: Likewise for all parameter gradients; None without a backward pass.
    """

    kl: float | None
    rel_err: float
    grad_rel_err: float | None

    @property
    def error(self) -> float:
        """What a search minimizes; errors of small perturbations add up in all three."""
        if self.grad_rel_err is not None:
            return self.grad_rel_err**2
        return max(self.kl, 0.0) if self.kl is not None else self.rel_err**2


class ModelMeter:
    """Runs a model under many plans against one reference run that is kept.

    Args:
        module: The model.
        base: The reference plan.
        inputs: What to feed.
        objective: Gives the scalar to differentiate.
        backward: Measure gradients too.
        seed: Of everything random.
    """

    def __init__(
        self,
        module: nn.Module,
        base: Plan,
        inputs: Data,
        objective: Objective,
        *,
        backward: bool,
        seed: int,
    ) -> None:
        self._module = module
        self._inputs = inputs
        self._objective = objective
        self._seed = seed
        self._weights = WeightCache()
        state = PlanState(base, seed=seed)
        self._references: list[Reference] = [
            run_reference(
                module,
                state,
                batch,
                objective,
                self._weights,
                backward=backward,
                keep_layers=False,
                seed=seed + i,
            )
            for i, batch in enumerate(inputs.batches)
        ]

    def measure(self, plan: Plan) -> Measured:
        """The model's errors under a plan, over all batches."""
        candidate = Candidate.of(plan, seed=self._seed, detailed=False)
        for i, (batch, reference) in enumerate(
            zip(self._inputs.batches, self._references, strict=True)
        ):
            run_candidate(
                self._module,
                candidate,
                batch,
                self._objective,
                reference,
                self._weights,
                seed=self._seed + i,
            )
        found = candidate.output
        kl = found.kl_sum / found.positions if found.positions else None
        grads = candidate.all_grads if candidate.grads else None
        return Measured(kl, found.error.rel_err or 0.0, grads.rel_err if grads else None)


@torch.no_grad()
def weight_noise(module: nn.Module, unit: Unit, plan: Plan) -> float:
    """Quantization noise of a unit's weights in units of their own power, times their elements.

    The sum over weights of numel * |W - Q(W)|^2 / |W|^2; needs no data.
    """
    total = 0.0
    for path, group in unit.layers:
        decision = plan.of_module(path, group)["weight"]
        for copy, weight in enumerate(_weights(module, decision.slot.parameters)):
            answer = decision.answers[min(copy, len(decision.answers) - 1)]
            exact = weight.float()
            error = answer.copy().quantize(weight).dequantize(torch.float32) - exact
            power = float(exact.square().sum())
            total += weight.numel() * float(error.square().sum()) / power if power else 0.0
    return total


def _weights(module: nn.Module, names: Sequence[str]) -> list[torch.Tensor]:
    """Each expert's matrix, or the one matrix of a layer."""
    found: list[torch.Tensor] = []
    for name in names:
        parameter = module.get_parameter(name).detach()
        found += list(parameter) if parameter.dim() == 3 else [parameter]
    return found


class Journal:
    """Measurements that a stopped search need not repeat, one JSON line each.

    Args:
        path: The file; it is made when the first measurement is written.
        identity: What the measurements depend on: model, data, seed, candidates.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        text = json.dumps(identity, sort_keys=True)
        self._identity = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._path = path
        self._known = self._read()
        self.reused = 0

    def get(self, key: str, measure: Callable[[], Measured]) -> Measured:
        """The measurement of a key, from the file or made now and written."""
        if key in self._known:
            self.reused += 1
            return self._known[key]
        found = measure()
        self._known[key] = found
        line = json.dumps({"of": self._identity, "key": key, **asdict(found)}, sort_keys=True)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise CheckpointError(
                f"{self._path} cannot be written: {error.strerror}",
                expected="a writable folder with space left",
                hint="name another output",
            ) from error
        return found

    def finish(self) -> None:
        """Removes the file: the search has its result."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Measured]:
        """What was written for the same identity; a line cut short by a kill is left out."""
        known: dict[str, Measured] = {}
        if not self._path.exists():
            return known
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if found.get("of") == self._identity:
                known[found["key"]] = Measured(found["kl"], found["rel_err"], found["grad_rel_err"])
        return known
