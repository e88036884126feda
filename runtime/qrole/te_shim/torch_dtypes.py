"""TransformerEngine's element types of torch's dtypes."""

from __future__ import annotations

import torch

from qrole.dtypes import DType

__all__ = ["TE_DType"]

TE_DType = {
    torch.uint8: DType.kByte,
    torch.int32: DType.kInt32,
    torch.float32: DType.kFloat32,
    torch.float16: DType.kFloat16,
    torch.bfloat16: DType.kBFloat16,
    torch.float8_e4m3fn: DType.kFloat8E4M3,
    torch.float8_e5m2: DType.kFloat8E5M2,
}
