"""Quantizers: one file per family of number formats, under TransformerEngine's names."""

from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.quantizers.fp8 import Float8CurrentScalingQuantizer, Float8Quantizer
from qrole.quantizers.fp8_block import Float8BlockQuantizer
from qrole.quantizers.hybrid import HybridQuantizer
from qrole.quantizers.identity import IdentityQuantizer
from qrole.quantizers.mxfp4 import MXFP4Quantizer
from qrole.quantizers.mxfp8 import MXFP8Quantizer
from qrole.quantizers.nvfp4 import NVFP4Quantizer
from qrole.quantizers.tensor import QuantizedTensor, QuantizedTensorStorage, Representation

__all__ = [
    "Float8BlockQuantizer",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "HybridQuantizer",
    "IdentityQuantizer",
    "MXFP4Quantizer",
    "MXFP8Quantizer",
    "NVFP4Quantizer",
    "OperandFormat",
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "Representation",
]
