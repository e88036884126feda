"""Quantizers as JSON values, and back: what a checkpoint keeps of who made its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qrole.dtypes import DType
from qrole.errors import CheckpointError, ConfigError
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    Quantizer,
)
from qrole.quantizers.reference import CurrentScalingQuantizerRef, NVFP4QuantizerRef

if TYPE_CHECKING:
    import torch

__all__ = [
    "both_ways",
    "check_describable",
    "described",
    "for_one_weight",
    "rebuilt",
    "stochastic",
]

_CLASSES: tuple[type[Quantizer], ...] = (
    CurrentScalingQuantizerRef,
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    NVFP4QuantizerRef,
)
_SIDES = ("rowwise_quantizer", "columnwise_quantizer")


def check_describable(quantizer: Quantizer) -> None:
    """Refuses a quantizer that cannot be built again from its description, or not used.

    Raises:
        ConfigError: It is of a class of the user's, or its options exclude each other.
    """
    for one in _parts(quantizer):
        if type(one) not in _CLASSES:
            raise ConfigError(
                f"a quantizer of the class {type(one).__name__}",
                expected=f"one of {', '.join(cls.__name__ for cls in _CLASSES)}",
                hint="let the factory give this role a quantizer of qrole's own",
            )
    both_ways(quantizer).check()


def both_ways(quantizer: Quantizer) -> Quantizer:
    """A copy that makes row-wise and column-wise data."""
    copied = quantizer.copy()
    copied.set_usage(rowwise=True, columnwise=True)
    return copied


def for_one_weight(quantizer: Quantizer) -> Quantizer:
    """A copy that makes both from a whole weight and changes nothing outside of it.

    No amax is reduced over ranks: a stored weight is whole, and ranks work on different ones.
    """
    copied = both_ways(quantizer)
    for one in _parts(copied):
        if isinstance(one, Float8CurrentScalingQuantizer | NVFP4Quantizer):
            one.with_amax_reduction = False
        if isinstance(one, Float8Quantizer):
            one.amax = one.amax.detach().clone()  # the factory's history stays as it is
    return copied


def stochastic(quantizer: Quantizer) -> bool:
    """Whether it rounds stochastically in one of the two directions."""
    formats = (quantizer.rowwise_format, quantizer.columnwise_format)
    return any(fmt.stochastic_rounding for fmt in formats)


def described(quantizer: Quantizer) -> dict[str, Any]:
    """`describe()`, with the scale where one is stored in the quantizer."""
    found = quantizer.describe()
    if isinstance(quantizer, HybridQuantizer):
        found |= {side: described(getattr(quantizer, side)) for side in _SIDES}
    if isinstance(quantizer, Float8Quantizer):
        found["scale"] = float(quantizer.scale)
    return found


def rebuilt(description: Mapping[str, Any]) -> Quantizer:
    """The quantizer that `described` was told of.

    Raises:
        CheckpointError: The description is not one that `described` gives.
    """
    options = dict(description)
    name = options.pop("quantizer", None)
    try:
        return _BUILDERS[name](**options)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"no quantizer can be built from {dict(description)!r}: {type(error).__name__} {error}",
            expected=f"one of {', '.join(sorted(_BUILDERS))} with its options",
            hint="read the checkpoint with the version of qrole that wrote it",
        ) from error


def _parts(quantizer: Quantizer) -> list[Quantizer]:
    """A quantizer, and those inside it."""
    found = [quantizer]
    if isinstance(quantizer, HybridQuantizer):
        for side in _SIDES:
            found += _parts(getattr(quantizer, side))
    return found


def _current(fp8_dtype: str, **options: Any) -> Quantizer:
    return Float8CurrentScalingQuantizer(DType[fp8_dtype], "cpu", **options)


def _delayed(fp8_dtype: str, scale: float) -> Quantizer:
    import torch

    return Float8Quantizer(torch.tensor(scale), torch.zeros(()), DType[fp8_dtype])


def _block(fp8_dtype: str, **options: Any) -> Quantizer:
    return Float8BlockQuantizer(DType[fp8_dtype], rowwise=True, columnwise=True, **options)


def _mxfp8(fp8_dtype: str, **options: Any) -> Quantizer:
    return MXFP8Quantizer(DType[fp8_dtype], **options)


def _nvfp4(fp4_dtype: str, **options: Any) -> Quantizer:
    return NVFP4Quantizer(DType[fp4_dtype], **options)


def _identity(dtype: str | None) -> Quantizer:
    return IdentityQuantizer(dtype=None if dtype is None else _torch_dtype(dtype))


def _hybrid(
    rowwise_quantizer: Mapping[str, Any],
    columnwise_quantizer: Mapping[str, Any],
    columnwise_source: str,
) -> Quantizer:
    return HybridQuantizer(
        rowwise_quantizer=rebuilt(rowwise_quantizer),
        columnwise_quantizer=rebuilt(columnwise_quantizer),
        columnwise_source=columnwise_source,
    )


def _current_reference(
    fp8_dtype: str, with_amax_reduction: bool, force_pow_2_scales: bool, amax_epsilon: float
) -> Quantizer:
    import torch

    element = {"kFloat8E4M3": torch.float8_e4m3fn, "kFloat8E5M2": torch.float8_e5m2}[fp8_dtype]
    made = CurrentScalingQuantizerRef(element, pow_2_scales=force_pow_2_scales, eps=amax_epsilon)
    made.with_amax_reduction = with_amax_reduction
    return made


def _nvfp4_reference(fp4_dtype: str, **options: Any) -> Quantizer:
    made = NVFP4QuantizerRef(DType[fp4_dtype])
    # The reference's constructor spells the same options differently.
    for name, value in options.items():
        if name not in NVFP4Quantizer.options:
            raise TypeError(f"has no option {name}")
        setattr(made, name, value)
    return made


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    found = getattr(torch, name.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is no dtype")
    return found


_BUILDERS: dict[Any, Callable[..., Quantizer]] = {
    "CurrentScalingQuantizerRef": _current_reference,
    "Float8BlockQuantizer": _block,
    "Float8CurrentScalingQuantizer": _current,
    "Float8Quantizer": _delayed,
    "HybridQuantizer": _hybrid,
    "IdentityQuantizer": _identity,
    "MXFP4Quantizer": MXFP4Quantizer,
    "MXFP8Quantizer": _mxfp8,
    "NVFP4Quantizer": _nvfp4,
    "NVFP4QuantizerRef": _nvfp4_reference,
}
