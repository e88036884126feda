"""LayerNorm and RMSNorm with the constructors of TransformerEngine's modules."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Unpack

import torch

from qrole.errors import ConfigError
from qrole.modules.keywords import NormKeywords
from qrole.modules.ops import norm as ops

__all__ = ["LayerNorm", "RMSNorm"]


class LayerNorm(ops.LayerNorm):
    """Layer normalization over the last dimensions.

    Args:
        normalized_shape: Those dimensions.
        eps: Added to the variance.
        sequence_parallel: Accepted; no value depends on it.
        params_dtype: Deprecated name of `dtype`.
        zero_centered_gamma: Gamma is stored as its difference to 1.
        hidden_size: Deprecated name of `normalized_shape`.
        device: Of the parameters; CUDA, or the default device on a machine without it.
        dtype: Of the parameters; torch's default where None.
        keywords: TransformerEngine's further keywords, of no effect here: `keywords.py`.
    """

    def __init__(
        self,
        normalized_shape: Iterable[int] | int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **keywords: Unpack[NormKeywords],
    ) -> None:
        super().__init__(
            _shape(normalized_shape, hidden_size),
            eps=eps,
            device=device,
            dtype=_dtype(dtype, params_dtype),
            zero_centered_gamma=zero_centered_gamma,
            **keywords,
        )


class RMSNorm(ops.RMSNorm):
    """Normalization by the root of the mean square; arguments as for `LayerNorm`."""

    def __init__(
        self,
        normalized_shape: Iterable[int] | int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **keywords: Unpack[NormKeywords],
    ) -> None:
        super().__init__(
            _shape(normalized_shape, hidden_size),
            eps=eps,
            device=device,
            dtype=_dtype(dtype, params_dtype),
            zero_centered_gamma=zero_centered_gamma,
            **keywords,
        )


def _shape(shape: Iterable[int] | int | None, hidden_size: int | None) -> Iterable[int] | int:
    if hidden_size is not None and shape is None:
        warnings.warn(
            "`hidden_size` arg has been renamed to `normalized_shape`",
            DeprecationWarning,
            stacklevel=3,
        )
        return hidden_size
    if shape is None or hidden_size is not None:
        raise ConfigError(
            f"normalized_shape={shape!r} and hidden_size={hidden_size!r}",
            expected="one of the two",
            hint="pass normalized_shape; hidden_size is its deprecated name",
        )
    return shape


def _dtype(dtype: torch.dtype | None, params_dtype: torch.dtype | None) -> torch.dtype | None:
    if dtype is not None and params_dtype is not None:
        raise ConfigError(
            f"dtype={dtype} and params_dtype={params_dtype}",
            expected="one of the two",
            hint="pass dtype; params_dtype is its deprecated name",
        )
    return params_dtype if dtype is None else dtype
