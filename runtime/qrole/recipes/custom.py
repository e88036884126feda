"""The recipe whose quantizers a factory chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

from qrole.errors import ConfigError
from qrole.recipes.base import Format, Recipe, backward_override, recipe_class

if TYPE_CHECKING:
    from qrole.quantizers.base import Quantizer
    from qrole.roles import QuantizerRequest, QuantizerRole

__all__ = ["CustomRecipe"]


@recipe_class
class CustomRecipe(Recipe):
    """A factory chooses each slot's quantizer.

    Attributes:
        qfactory: Called with one positional argument, the slot's role, which is None for a
            boundary slot; returns a quantizer or a request.
        fp8_format: Chooses no quantizer.
        fp8_dpa: As in `Recipe`.
        fp8_mha: As in `Recipe`.
        backward_override: As in `Recipe`.
        quantization_alignment: Multiple that `Fp8Padding` pads each expert's tokens to, >= 1; the
            factory is not asked.
    """

    kind = "custom"
    _shown = ("qfactory", "backward_override", "quantization_alignment")

    qfactory: Callable[[QuantizerRole | None], Quantizer | QuantizerRequest] = None  # type: ignore[assignment]
    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = field(default_factory=backward_override)
    quantization_alignment: int = 128

    def __post_init__(self) -> None:
        self.check_common()
        if not callable(self.qfactory):
            raise ConfigError(
                f"CustomRecipe(qfactory={self.qfactory!r})",
                expected="a callable that takes a QuantizerRole and returns a quantizer",
                hint="pass the factory function itself",
            )
        if self.quantization_alignment <= 0:
            raise ConfigError(
                f"CustomRecipe(quantization_alignment={self.quantization_alignment})",
                expected="a positive number of rows",
                hint="128 suits every format",
            )
