"""Philox4x32-10 (Salmon et al., SC 2011), the generator behind stochastic rounding on CUDA."""

import torch
from torch import Tensor

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox4x32_10(seed: int, subsequence: Tensor, offset: Tensor) -> Tensor:
    """Four random 32-bit words for each counter.

    Args:
        seed: The 64-bit key.
        subsequence: int64, upper half of the counter (on a GPU, the thread).
        offset: int64, lower half of the counter; broadcasts with `subsequence`.

    Returns:
        int64 (..., 4) of values 0 .. 2^32 - 1.
    """
    offset, subsequence = offset + 0 * subsequence, subsequence + 0 * offset
    words = [offset & _WORD, offset >> 32 & _WORD, subsequence & _WORD, subsequence >> 32 & _WORD]
    key = [seed & _WORD, seed >> 32 & _WORD]
    for _ in range(_ROUNDS):
        # 32x32-bit products wrap in int64, their upper half is still right after the masking.
        product_0, product_1 = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            (product_1 >> 32 & _WORD) ^ words[1] ^ key[0],
            product_1 & _WORD,
            (product_0 >> 32 & _WORD) ^ words[3] ^ key[1],
            product_0 & _WORD,
        ]
        key = [(k + w) & _WORD for k, w in zip(key, _WEYL, strict=True)]
    return torch.stack(words, dim=-1)


def random_bytes(
    seed: int, rows: int, cols: int, offset: int = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """Random bytes (rows, cols), uint8, for stochastic rounding.

    Row r is subsequence r; byte j of a row is byte j % 4 of word j // 4 of its stream: the elements
    of a group of four take the bytes of one word.
    """
    row = torch.arange(rows, device=device)[:, None]
    step = torch.arange(-(-cols // 16), device=device) + offset
    words = philox4x32_10(seed, row, step)
    shifts = torch.tensor([0, 8, 16, 24], device=device)
    return (words[..., None] >> shifts & 0xFF).to(torch.uint8).flatten(1)[:, :cols].contiguous()
