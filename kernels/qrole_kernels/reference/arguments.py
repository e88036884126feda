"""Checks of the arguments that all functions of the reference share."""

import torch
from torch import Tensor

from qrole_kernels.errors import ArgumentError

INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_matrix(x: Tensor) -> None:
    """Check a high-precision matrix (M, K).

    Raises:
        ArgumentError: `x` is not 2-D or not fp32, bf16 or fp16.
    """
    if x.dim() != 2:
        raise ArgumentError(
            f"a tensor of shape {tuple(x.shape)}",
            "a matrix (M, K)",
            "Flatten the leading dimensions first.",
        )
    if x.dtype not in INPUT_DTYPES:
        raise ArgumentError(
            f"a tensor of {x.dtype}", "float32, bfloat16 or float16", "Convert the tensor first."
        )


def as_float32(x: Tensor) -> Tensor:
    """Check a high-precision matrix (M, K) and widen it to contiguous fp32, exactly.

    Raises:
        ArgumentError: `x` is not 2-D or not fp32, bf16 or fp16.
    """
    check_matrix(x)
    return x.float().contiguous()


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Check that an option has one of its values.

    Raises:
        ArgumentError: It hasn't.
    """
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ArgumentError(f"{name}={value!r}", f"one of {listed}", "Pass one of these values.")


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Check the shape of data or scales against the shape that their counterpart implies.

    Raises:
        ArgumentError: The shapes differ.
    """
    if tuple(tensor.shape) != shape:
        raise ArgumentError(
            f"{name} of shape {tuple(tensor.shape)}",
            f"shape {shape}",
            "Pass the compact scales and data of one and the same quantization.",
        )
