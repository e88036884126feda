"""Constants of `transformer_engine.pytorch.constants`."""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "MXFP8_BLOCK_SCALING_SIZE",
    "NVFP4_BLOCK_SCALING_SIZE",
    "FP8BwdTensorIdx",
    "FP8FwdTensorIdx",
]

MXFP8_BLOCK_SCALING_SIZE = 32
NVFP4_BLOCK_SCALING_SIZE = 16


class FP8FwdTensorIdx(IntEnum):
    """Forward slots: input, weight and output of each GEMM."""

    GEMM1_INPUT = 0
    GEMM1_WEIGHT = 1
    GEMM1_OUTPUT = 2
    GEMM2_INPUT = 3
    GEMM2_WEIGHT = 4
    GEMM2_OUTPUT = 5
    GEMM3_INPUT = 6
    GEMM3_WEIGHT = 7
    GEMM3_OUTPUT = 8


class FP8BwdTensorIdx(IntEnum):
    """Backward slots: output gradient and input gradient of each GEMM."""

    GRAD_OUTPUT1 = 0
    GRAD_INPUT1 = 1
    GRAD_OUTPUT2 = 2
    GRAD_INPUT2 = 3
    GRAD_OUTPUT3 = 4
    GRAD_INPUT3 = 5
