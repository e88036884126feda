"""Where TransformerEngine's Python references may disagree with its kernels.

The references let NaN and inf poison the amax, and drop the sign of a zero. Everything else they
write has to equal what the kernels write.
"""

import torch
from torch import Tensor

from qrole_kernels.reference.blocks import expand_blocks, split_blocks
from qrole_kernels.reference.elements import unpack_nibbles
from tests.kernels.bitexact import assert_bits_equal


def assert_explained(
    x: Tensor,
    ours: tuple[Tensor, Tensor],
    theirs: tuple[Tensor, Tensor],
    amax_block: tuple[int, int],
    scale_block: tuple[int, int],
) -> None:
    """Assert that data and scales differ only where an amax was taken over NaN or inf.

    Args:
        x: The input (M, K).
        ours: Data and scales.
        theirs: Data and scales.
        amax_block: Extent of `x` that shares an amax.
        scale_block: Extent of `x` that shares an entry of the scales.
    """
    blocks = split_blocks(x.float(), *amax_block)
    poisoned = ~blocks.isfinite().all(3).all(1)
    allowed = expand_blocks(poisoned, *amax_block, x.shape)
    data, other_data = (_without_negative_zero(x, t) for t in (ours[0], theirs[0]))
    assert_bits_equal(torch.where(allowed, data, other_data), data, "data of finite blocks")
    allowed = allowed[:: scale_block[0], :: scale_block[1]]
    scales = torch.where(allowed, ours[1], theirs[1])
    assert_bits_equal(scales, ours[1], "scales of finite blocks")


def _without_negative_zero(x: Tensor, data: Tensor) -> Tensor:
    if data.shape == x.shape:
        return data
    codes = unpack_nibbles(data)[:, : x.shape[1]]
    return codes.masked_fill(codes == 8, 0)
