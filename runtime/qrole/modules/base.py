"""What TransformerEngine's modules share: a name, slots with roles, quantizers for them.

Quantizers are built in the first forward pass inside `autocast`, forward slots before backward
slots, and kept. TransformerEngine's rules for building them again are reproduced, also where they
surprise; `StaleQuantizersWarning` says when a change has not reached the quantizers.
"""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from qrole.autocasting import current_autocast
from qrole.errors import ConfigError
from qrole.modules.extra_state import ExtraState
from qrole.modules.rebuild import (
    RoleCountError,
    StaleQuantizersWarning,
    buffers_of,
    carry_history,
    serves,
)
from qrole.modules.slots import SlotFacts, describe_slots
from qrole.quantizers import QuantizedTensor, Quantizer
from qrole.recipes import CustomRecipe, Recipe
from qrole.roles import Direction, QuantizerRole, Slot
from qrole.state import DelayedBuffers, RecipeState, register

__all__ = ["MissingRoleWarning", "QuantizedModule", "default_name"]

_count = itertools.count(1)
_KEYS = {True: "scaling_fwd", False: "scaling_bwd"}


class MissingRoleWarning(UserWarning):
    """A quantized output was asked for whose consumer no role names."""


def default_name(name: str | None) -> str:
    """`name`, or `Layer_N` with N from a counter of the process, as TransformerEngine names."""
    return f"Layer_{next(_count)}" if name is None else name


class QuantizedModule(ExtraState, ABC):
    """Base of the modules whose tensors have quantizer slots.

    Args:
        name: Goes into the roles; `Layer_N` where None.

    Attributes:
        name: As given or made up.
        fp8: The last forward pass ran quantized.
        fp8_calibration: The last forward pass recorded amaxes without quantizing.
        fp8_initialized: Quantizers fit the recipe of the last forward pass.
        fp8_meta_tensors_initialized: Quantizers exist and no role has changed since.
        fp8_meta: The states of both directions (`scaling_fwd`, `scaling_bwd`) and the `recipe`.
        quantizers: The quantizers of both directions, under the same keys, in slot order.
        activation_dtype: Dtype of the last forward pass.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = default_name(name)
        self.fp8 = False
        self.fp8_calibration = False
        self.fp8_initialized = False
        self.fp8_meta_tensors_initialized = False
        self.fp8_meta: dict[str, Any] = {}
        self.quantizers: dict[str, list[Quantizer]] = {key: [] for key in _KEYS.values()}
        self.activation_dtype: torch.dtype | None = None
        self._output_quantizer_role: QuantizerRole | None = None
        self._grad_input_quantizer_role: QuantizerRole | None = None
        self._asked_factory: Any = None
        self._kept_weights: dict[str, QuantizedTensor] = {}
        self._device: torch.device | None = None

    @property
    @abstractmethod
    def slot_facts(self) -> tuple[list[SlotFacts], list[SlotFacts]]:
        """Facts of the forward and of the backward slots, in slot order."""

    def get_quantizer_roles(
        self, *, fwd: bool, num_quantizers: int
    ) -> list[QuantizerRole | None] | None:
        """One role per slot, None for a slot whose consumer is not known.

        Args:
            fwd: Slots of the forward pass.
            num_quantizers: Number of slots.

        Returns:
            The roles; None gives every slot a bare role, with a warning.
        """
        return None

    @property
    def output_quantizer_role(self) -> QuantizerRole | None:
        """Role of the output slot: whoever reads the output sets it. None by default.

        A new value has quantizers built again by the next `init_fp8_meta_tensors`, but not, as in
        TransformerEngine, by a forward pass with an equal recipe.
        """
        return self._output_quantizer_role

    @output_quantizer_role.setter
    def output_quantizer_role(self, role: QuantizerRole | None) -> None:
        if role != self._output_quantizer_role:
            self._output_quantizer_role = role
            self.fp8_meta_tensors_initialized = False

    @property
    def grad_input_quantizer_role(self) -> QuantizerRole | None:
        """Role of the slot of the input's gradient; otherwise as `output_quantizer_role`."""
        return self._grad_input_quantizer_role

    @grad_input_quantizer_role.setter
    def grad_input_quantizer_role(self, role: QuantizerRole | None) -> None:
        if role != self._grad_input_quantizer_role:
            self._grad_input_quantizer_role = role
            self.fp8_meta_tensors_initialized = False

    def quantizer_slots(self, path: str) -> list[Slot]:
        """The module's slots as plans and audits know them, forward then backward.

        Args:
            path: Dotted path of the module in the model.
        """
        slots = []
        for fwd, facts in zip((True, False), self.slot_facts, strict=True):
            roles = self.get_quantizer_roles(fwd=fwd, num_quantizers=len(facts))
            direction = Direction.FORWARD if fwd else Direction.BACKWARD
            slots += describe_slots(path, self, self.name, direction, facts, roles)
        return slots

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Takes over the state of `autocast` and builds quantizers where the recipe changed."""
        state = current_autocast()
        self.fp8, self.fp8_calibration = state.enabled, state.calibrating
        if not (state.enabled or state.calibrating):
            self.fp8_initialized = False
            return
        recipe, old = state.get_recipe(), self.fp8_meta.get("recipe")
        self.fp8_meta["num_gemms"] = num_gemms
        self.fp8_meta["fp8_group"] = state.amax_reduction_group
        if not (self.fp8_initialized and recipe == old):
            self.init_fp8_meta_tensors(recipe)
            self.fp8_meta["recipe"] = recipe
            self.fp8_initialized = True
            _warn_of_other_class(old, recipe)
        self._warn_of_stale_quantizers(recipe)
        for buffers in self.delayed_buffers().values():
            register(buffers, state.amax_reduction_group)

    def init_fp8_meta_tensors(self, recipe: Recipe) -> None:
        """Builds the quantizers of both directions, unless those at hand are for this recipe."""
        self.set_meta_tensor(True, recipe)
        self.set_meta_tensor(False, recipe)
        self.fp8_meta_tensors_initialized = True

    def set_meta_tensor(self, fwd: bool, recipe: Recipe) -> None:
        """Builds the quantizers of one direction, unless those at hand are for this recipe.

        A state that is replaced hands its delayed-scaling buffers on.
        """
        old: RecipeState | None = self.fp8_meta.get(_KEYS[fwd])
        if self.fp8_meta_tensors_initialized and old is not None and serves(old, recipe):
            return
        new = self._make_state(fwd, recipe)
        if old is not None:
            carry_history(old, new)
        self._asked_factory = getattr(recipe, "qfactory", None)
        self._kept_weights.clear()
        self.quantizers[_KEYS[fwd]] = self._make_quantizers(new, recipe)
        self.fp8_meta[_KEYS[fwd]] = new
        self.take_over_loaded()

    def _make_state(self, fwd: bool, recipe: Recipe) -> RecipeState:
        num_quantizers = len(self.slot_facts[0 if fwd else 1])
        roles = self.get_quantizer_roles(fwd=fwd, num_quantizers=num_quantizers)
        if roles is not None and len(roles) != num_quantizers:
            mode = "forward" if fwd else "backward"
            raise RoleCountError(
                f"{type(self).__name__} {self.name!r}", len(roles), num_quantizers, mode
            )
        return RecipeState.create(
            recipe,
            mode="forward" if fwd else "backward",
            num_quantizers=num_quantizers,
            device=self._device,
            roles=roles,
        )

    def _make_quantizers(self, state: RecipeState, recipe: Recipe) -> list[Quantizer]:
        return state.make_quantizers()

    @override
    def delayed_buffers(self) -> dict[str, DelayedBuffers]:
        states = {
            "forward": self.fp8_meta.get(_KEYS[True]),
            "backward": self.fp8_meta.get(_KEYS[False]),
        }
        found = {mode: buffers_of(state) for mode, state in states.items()}
        return {mode: buffers for mode, buffers in found.items() if buffers is not None}

    def _warn_of_stale_quantizers(self, recipe: Recipe) -> None:
        if not self.fp8_meta_tensors_initialized:
            changed = "a boundary role changed after the quantizers were built"
        elif isinstance(recipe, CustomRecipe) and self._asked_factory != recipe.qfactory:
            changed = "recipe.qfactory was replaced after the quantizers were built"
        else:
            return
        warnings.warn(
            f"{type(self).__name__} {self.name!r}: {changed}; as in TransformerEngine, a forward "
            "pass with an equal recipe keeps the old ones. Call init_fp8_meta_tensors() with a "
            "new recipe object to build them again",
            StaleQuantizersWarning,
            stacklevel=4,
        )

    def _prepare(self, x: Tensor, num_gemms: int = 1) -> Tensor:
        """Settles dtype and quantizers before a forward pass; returns the input in that dtype."""
        kind, self._device = x.device.type, x.device
        if torch.is_autocast_enabled(kind):
            self.activation_dtype = torch.get_autocast_dtype(kind)
        else:
            self.activation_dtype = x.dtype
            self._check_dtypes(x.dtype)
        self.init_fp8_metadata(num_gemms)
        return x if x.dtype == self.activation_dtype else x.to(self.activation_dtype)

    def _check_dtypes(self, dtype: torch.dtype) -> None:
        for name, parameter in self.named_parameters(recurse=False):
            if parameter.dtype != dtype:
                raise ConfigError(
                    f"an input of {dtype} and a parameter {name!r} of {parameter.dtype} in "
                    f"{type(self).__name__} {self.name!r}",
                    expected="Data types for parameters must match when outside of autocasted "
                    "region",
                    hint="pass params_dtype= to the module, cast the input, or use torch.autocast",
                )

    def _kept_weight(
        self, key: str, weight: Tensor, quantizer: Quantizer, first: bool | None
    ) -> QuantizedTensor | None:
        """The weight as the first microbatch of a step quantized it, for all of the step's.

        Args:
            key: Which of the module's weights.
            weight: The weight.
            quantizer: Its slot's quantizer.
            first: `is_first_microbatch` of the forward pass; None keeps nothing.
        """
        if first is None:
            return None
        if first or key not in self._kept_weights:
            quantizer.set_usage(rowwise=True, columnwise=True)
            self._kept_weights[key] = quantizer(weight.detach())
        return self._kept_weights[key]

    def _warn_of_missing_roles(self, fp8_output: bool, fp8_grad: bool) -> None:
        """Warns where a quantized boundary tensor is asked for and no role names its reader."""
        if not (self.fp8 and self.fp8_meta["recipe"].custom()):
            return
        for asked, flag, role in (
            (fp8_output, "fp8_output", "output_quantizer_role"),
            (fp8_grad, "fp8_grad", "grad_input_quantizer_role"),
        ):
            if asked and getattr(self, role) is None:
                warnings.warn(
                    f"{type(self).__name__} {self.name!r}: {flag}=True but {role} is not set; the "
                    "factory receives None for that slot",
                    MissingRoleWarning,
                    stacklevel=4,
                )

    def backward_dw(self) -> None:
        """Does nothing: weight gradients are there when the backward pass ends."""


def _warn_of_other_class(old: Recipe | None, new: Recipe) -> None:
    if old is not None and not (isinstance(new, type(old)) or isinstance(old, type(new))):
        warnings.warn(
            f"Recipe type changed from {type(old).__name__} to {type(new).__name__}. "
            "This may affect model behavior.",
            stacklevel=4,
        )
