"""The class through which TransformerEngine's users reach its global state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qrole.autocasting import current_autocast
from qrole.state import registry

if TYPE_CHECKING:
    import torch.distributed as dist

    from qrole.recipes import Recipe

__all__ = ["FP8GlobalStateManager"]


class FP8GlobalStateManager:
    """Reads the autocast state and drives the delayed-scaling step."""

    @staticmethod
    def reset() -> None:
        """Forgets all delayed-scaling buffers."""
        registry.reset()

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Whether modules quantize here."""
        return current_autocast().enabled

    @staticmethod
    def is_fp8_calibration() -> bool:
        """Whether modules calibrate here."""
        return current_autocast().calibrating

    @staticmethod
    def get_fp8_recipe() -> Recipe:
        """The recipe of the region around; the default one outside of any."""
        return current_autocast().get_recipe()

    @staticmethod
    def get_fp8_group() -> dist.ProcessGroup | None:
        """The group that amaxes are taken over."""
        return current_autocast().amax_reduction_group

    @staticmethod
    def with_fp8_parameters() -> bool:
        """False: parameters stay in high precision."""
        return False

    @staticmethod
    def is_first_fp8_module() -> bool:
        """True for the first caller in an outermost region."""
        return registry.is_first_module()

    @staticmethod
    def reduce_and_update_fp8_tensors(forward: bool = True) -> None:
        """Ends a delayed-scaling step of one direction."""
        registry.update_delayed_scaling(forward=forward)

    @staticmethod
    def is_fp8_available() -> tuple[bool, str]:
        """(True, ""), and so for the formats below."""
        return True, ""

    is_mxfp8_available = is_fp8_available
    is_fp8_block_scaling_available = is_fp8_available
    is_nvfp4_available = is_fp8_available
