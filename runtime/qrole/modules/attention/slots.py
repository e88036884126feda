"""The slots of attention: their roles, and the states behind their quantizers."""

from __future__ import annotations

import logging
import os
import warnings

import torch
from typing_extensions import override

from qrole.errors import OperandError
from qrole.modules.attention.fp8 import BACKWARD_INDEX, FORWARD_INDEX, AttentionQuantizers
from qrole.modules.base import QuantizedModule
from qrole.modules.slots import SlotFacts
from qrole.quantizers import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    Quantizer,
)
from qrole.recipes import DelayedScaling, IgnoredSettingWarning, Recipe
from qrole.roles import QuantizerRole
from qrole.state import DelayedScalingRecipeState, RecipeState

__all__ = ["AttentionModule"]

_RECIPE_VARIABLE = "NVTE_DPA_FP8_RECIPE"
_GROUPS = ({"qkv": 3, "o": 3, "s": 3}, {"dqkv": 2, "do": 2, "dp": 2})

_log = logging.getLogger(__name__)


class AttentionModule(QuantizedModule):
    """Base of `DotProductAttention`: nine forward and six backward slots.

    They come in groups of three (forward: QKV, O, S) and two (backward: dQKV, dO, dP); one of each
    group is read, and only with `fp8_dpa`, but the factory is asked for all fifteen in any case.

    Attributes:
        partial_attention: Some of attention's tensors may stay in high precision under `fp8_dpa`,
            which TransformerEngine refuses. Runs under a plan set it.
    """

    partial_attention: bool = False

    @property
    @override
    def slot_facts(self) -> tuple[list[SlotFacts], list[SlotFacts]]:
        read = (FORWARD_INDEX, BACKWARD_INDEX)
        facts: tuple[list[SlotFacts], list[SlotFacts]] = ([], [])
        for groups, index, found in zip(_GROUPS, read, facts, strict=True):
            for tensor, positions in groups.items():
                for _ in range(positions):
                    found.append(SlotFacts(tensor, consumed=len(found) == index[tensor]))
        return facts

    @override
    def get_quantizer_roles(
        self, *, fwd: bool, num_quantizers: int
    ) -> list[QuantizerRole | None] | None:
        def hint(boundary: str) -> QuantizerRole:
            return QuantizerRole(name=f"{self.name}.{boundary}" if self.name else boundary)

        if fwd:
            output = self.output_quantizer_role or hint("dpa_output")
            roles = {
                "qkv": QuantizerRole("dpa", "qkv", self.name),
                "o": output,
                "s": QuantizerRole("dpa", "s", self.name),
            }
        else:
            grad_input = self.grad_input_quantizer_role or hint("dpa_grad_input")
            roles = {
                "dqkv": grad_input,
                "do": QuantizerRole("dpa", "do", self.name),
                "dp": QuantizerRole("dpa", "dp", self.name),
            }
        groups = _GROUPS[0 if fwd else 1]
        listed: list[QuantizerRole | None] = [
            roles[tensor] for tensor, positions in groups.items() for _ in range(positions)
        ]
        return listed[:num_quantizers]

    @override
    def _make_state(self, fwd: bool, recipe: Recipe) -> RecipeState:
        if recipe.custom():
            return super()._make_state(fwd, recipe)
        if os.environ.get(_RECIPE_VARIABLE):
            warnings.warn(
                f"{_RECIPE_VARIABLE} is set; attention follows the recipe of autocast here",
                IgnoredSettingWarning,
                stacklevel=2,
            )
        mode = "forward" if fwd else "backward"
        if _splits(recipe):
            kernel = DelayedScaling(
                fp8_format=recipe.fp8_format,
                amax_history_len=1,
                amax_compute_algo="most_recent",
                backward_override=None,
            )
            return DelayedScalingRecipeState(
                kernel, mode=mode, num_quantizers=3 if fwd else 2, device=self._device
            )
        num_quantizers = len(self.slot_facts[0 if fwd else 1])
        return RecipeState.create(
            recipe, mode=mode, num_quantizers=num_quantizers, device=self._device
        )

    @override
    def _make_quantizers(self, state: RecipeState, recipe: Recipe) -> list[Quantizer]:
        made = super()._make_quantizers(state, recipe)
        if not _splits(recipe):
            return made
        current = RecipeState.create(
            recipe, mode=state.mode, num_quantizers=2 * len(made), device=self._device
        )
        return current.make_quantizers() + made

    def get_qkv_quantization_capabilities(
        self, device: torch.device | None = None
    ) -> tuple[bool, bool]:
        """Whether the QKV slot has current scaling, and whether it has MXFP8.

        Args:
            device: Of the tensors to come, where quantizers may have to be built for them.

        Raises:
            OperandError: It has neither, nor delayed scaling.
        """
        self._device = device or self._device
        self.init_fp8_metadata(num_gemms=3)
        quantizer = self.quantizers["scaling_fwd"][FORWARD_INDEX["qkv"]]
        if not isinstance(
            quantizer, (Float8CurrentScalingQuantizer, MXFP8Quantizer, Float8Quantizer)
        ):
            role = QuantizerRole("dpa", "qkv", self.name)
            raise OperandError(
                f"Unsupported CustomRecipe quantizer for {role}: {type(quantizer).__name__}",
                expected="delayed scaling, current scaling or MXFP8",
                hint="return one of them for module_type 'dpa', or switch fp8_mha off",
            )
        return (
            isinstance(quantizer, Float8CurrentScalingQuantizer),
            isinstance(quantizer, MXFP8Quantizer),
        )

    def _force_dpa(self) -> None:
        """FP8 multi-head attention includes FP8 attention: the recipe is changed, as in TE."""
        recipe = self.fp8_meta["recipe"] if self.fp8 else None
        if recipe is not None and recipe.fp8_mha and not recipe.fp8_dpa:
            recipe.fp8_dpa = True
            _log.warning("forcing fp8_dpa=True in the recipe, because fp8_mha=True")

    def _attention_quantizers(self) -> AttentionQuantizers | None:
        """Who quantizes what; None where attention stays in high precision."""
        if not (self.fp8 and self.fp8_meta["recipe"].fp8_dpa):
            return None
        found = AttentionQuantizers.of(self.quantizers, partial=self.partial_attention)
        return found if found.quantize else None


def _splits(recipe: Recipe) -> bool:
    """Current scaling with FP8 attention: S and dP inside the kernel have delayed scaling."""
    return recipe.float8_current_scaling() and (recipe.fp8_dpa or recipe.fp8_mha)
