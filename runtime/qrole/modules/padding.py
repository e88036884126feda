"""Fp8Padding and Fp8Unpadding: rows of each expert padded to what the format needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qrole.autocasting import current_autocast
from qrole.errors import ConfigError
from qrole.recipes import get_align_size_for_quantization

__all__ = ["Fp8Padding", "Fp8Unpadding"]


class _Padding(nn.Module):
    """Args: num_gemms, the number of experts; align_size, the recipe's at first use where None."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms = num_gemms
        self.align_size = align_size

    def _padded(self, m_splits: Sequence[int]) -> list[int]:
        if len(m_splits) != self.num_gemms:
            raise ConfigError(
                f"m_splits with {len(m_splits)} entries for {self.num_gemms} experts",
                expected="Number of splits should match number of GEMMs",
                hint="give experts without tokens a 0",
            )
        if self.align_size is None:
            self.align_size = get_align_size_for_quantization(current_autocast().get_recipe())
        return [-(-m // self.align_size) * self.align_size for m in m_splits]


class Fp8Padding(_Padding):
    """Pads each expert's rows with zeros to a multiple of the alignment.

    Args:
        num_gemms: Number of experts.
        align_size: The multiple; the recipe's at the first forward pass where None.
    """

    def forward(self, inp: Tensor, m_splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Pads.

        Args:
            inp: (M, K), rows of one expert after those of another.
            m_splits: Rows of each expert.

        Returns:
            The padded rows, and how many of them each expert has.
        """
        padded = self._padded(m_splits)
        if list(m_splits) == padded:
            return inp, list(m_splits)
        pieces: list[Tensor] = []
        for part, m, full in zip(torch.split(inp, list(m_splits)), m_splits, padded, strict=True):
            pieces += [part, part.new_zeros(full - m, *part.shape[1:])]
        return torch.cat(pieces), padded


class Fp8Unpadding(_Padding):
    """Takes the padding out again.

    Args:
        num_gemms: Number of experts.
        align_size: The multiple; the recipe's at the first forward pass where None.
    """

    def forward(self, inp: Tensor, m_splits: Sequence[int]) -> Tensor:
        """Takes out the padding.

        Args:
            inp: (M, K), padded rows.
            m_splits: Rows of each expert without padding.
        """
        padded = self._padded(m_splits)
        if list(m_splits) == padded:
            return inp
        parts = torch.split(inp, padded)
        return torch.cat([part[:m] for part, m in zip(parts, m_splits, strict=True)])
