"""What all recipes share, and the small types in their fields."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import wraps
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from qrole.errors import ConfigError

__all__ = [
    "Format",
    "IgnoredSettingWarning",
    "MMParams",
    "QParams",
    "Recipe",
    "backward_override",
    "env",
    "env_flag",
    "recipe_class",
]

_BACKWARD_OVERRIDES = (None, "high_precision", "dequantized")


class IgnoredSettingWarning(UserWarning):
    """A setting that TransformerEngine drops or never reads, without a word of its own."""


class FormatRange(NamedTuple):
    """Largest values of a format: of tensors of the forward and of the backward pass."""

    max_fwd: float
    max_bwd: float


class Format(Enum):
    """Element format of the forward and the backward pass."""

    E2M1 = FormatRange(6, 6)
    E4M3 = FormatRange(448, 448)
    E5M2 = FormatRange(57344, 57344)
    HYBRID = FormatRange(448, 57344)


@dataclass(frozen=True)
class MMParams:
    """Options of a GEMM.

    Attributes:
        use_split_accumulator: Add partial sums in fp32 on Hopper. The emulated GEMM always does.
    """

    use_split_accumulator: bool = True


@dataclass(frozen=True)
class QParams:
    """Options of a quantization.

    Attributes:
        power_2_scale: Round scales down to powers of two.
        amax_epsilon: Floor of the amax, >= 0.
        random_hadamard_transform: Transform the column-wise data (NVFP4).
        stochastic_rounding: Round elements stochastically (NVFP4).
        fp4_2d_quantization: Scales per 16x16 block (NVFP4).
    """

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False


T = TypeVar("T")


@dataclass_transform(field_specifiers=(field,))
def recipe_class(cls: type[T]) -> type[T]:
    """A dataclass that drops keywords it does not know, as TransformerEngine's do, and says so."""
    made = dataclass(repr=False)(cls)
    names = [f.name for f in fields(made) if f.init]  # type: ignore[arg-type]
    construct = made.__init__

    @wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs.keys() - set(names):
            near = difflib.get_close_matches(name, names, n=1)
            warnings.warn(
                f"{cls.__name__} has no field {name!r}; TransformerEngine drops it silently"
                + (f". Did you mean {near[0]!r}?" if near else ""),
                IgnoredSettingWarning,
                stacklevel=2,
            )
        construct(self, *args, **{k: v for k, v in kwargs.items() if k in names})

    made.__init__ = init  # type: ignore[method-assign]
    return made


def env(name: str, default: str) -> Callable[[], str]:
    """A field's default that is read from the environment when a recipe is built."""
    return lambda: os.environ.get(name, default)


def env_flag(name: str) -> Callable[[], bool]:
    """Likewise, True where the variable is `1`."""
    return lambda: os.environ.get(name, "0") == "1"


def backward_override() -> str | None:
    """Default of the field of that name."""
    return os.environ.get("NVTE_BACKWARD_OVERRIDE")


class Recipe:
    """What all recipes share.

    Attributes:
        fp8_format: Element formats of the forward and the backward pass.
        fp8_dpa: Attention computes in FP8.
        fp8_mha: Attention's inputs and outputs are handed over in FP8 as well.
        backward_override: What dgrad and wgrad read: None the quantized operands;
            `high_precision` the saved unquantized ones; `dequantized` the dequantized ones of the
            forward pass. With either, grad_output is not quantized.
    """

    fp8_format: Format
    fp8_dpa: bool
    fp8_mha: bool
    backward_override: str | None

    #: `delayed`, `float8_current_scaling`, `float8_block_scaling`, `mxfp8`, `nvfp4`, `custom`.
    kind: ClassVar[str] = ""

    #: Fields that repr shows; None shows all.
    _shown: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def nvfp4(cls) -> bool:
        """Whether this is the NVFP4 recipe."""
        return cls.kind == "nvfp4"

    @classmethod
    def mxfp8(cls) -> bool:
        """Whether this is the MXFP8 recipe."""
        return cls.kind == "mxfp8"

    @classmethod
    def delayed(cls) -> bool:
        """Whether this is delayed scaling."""
        return cls.kind == "delayed"

    @classmethod
    def float8_current_scaling(cls) -> bool:
        """Whether this is current scaling."""
        return cls.kind == "float8_current_scaling"

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        """Whether this is FP8 with one scale per tensor."""
        return cls.delayed() or cls.float8_current_scaling()

    @classmethod
    def float8_block_scaling(cls) -> bool:
        """Whether this is FP8 in blocks of 128."""
        return cls.kind == "float8_block_scaling"

    @classmethod
    def custom(cls) -> bool:
        """Whether a factory chooses the quantizers."""
        return cls.kind == "custom"

    def check_common(self) -> None:
        """Checks the fields that all recipes have; raises ConfigError."""
        self.check_choice("backward_override", _BACKWARD_OVERRIDES)
        if not isinstance(self.fp8_format, Format):
            raise ConfigError(
                f"{type(self).__name__}(fp8_format={self.fp8_format!r})",
                expected="a member of Format",
                hint="pass Format.HYBRID or Format.E4M3",
            )
        if self.fp8_format is Format.E5M2 and not self.custom():
            raise ConfigError(
                f"{type(self).__name__}(fp8_format=Format.E5M2)",
                expected="a format whose forward tensors are E4M3",
                hint="pass Format.HYBRID for E5M2 gradients, or Format.E4M3",
            )

    def check_choice(self, name: str, allowed: tuple[Any, ...]) -> None:
        """Checks that a field has one of its values; raises ConfigError."""
        if getattr(self, name) not in allowed:
            raise ConfigError(
                f"{type(self).__name__}({name}={getattr(self, name)!r})",
                expected=f"one of {', '.join(map(repr, allowed))}",
                hint=f"leave {name} out to get the default, which the environment may set",
            )

    def __repr__(self) -> str:
        names = self._shown or tuple(f.name for f in fields(self) if f.init)  # type: ignore[arg-type]
        shown = (f"{name}={_short(getattr(self, name))}" for name in names)
        return ", ".join((f"recipe_type={type(self).__name__}", *shown))


def _short(value: object) -> str:
    return value.name if isinstance(value, Enum) else repr(value)
