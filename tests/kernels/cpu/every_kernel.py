"""Every compiled kernel, in the variants that differ in more than a constant."""

from collections.abc import Iterator
from itertools import product

from qrole_kernels.cpu import (
    amax,
    counts,
    difference,
    fp8,
    fp8_block,
    hadamard,
    mxfp4,
    mxfp8,
    nvfp4,
    nvfp4_four_over_six,
    transpose,
)
from qrole_kernels.cpu.jit import KernelFamily

DTYPES, FP8, POWER_OF_TWO = ("bf16",), ("e4m3",), (True,)

VARIANTS: dict[KernelFamily, tuple[tuple[object, ...], ...]] = {
    amax.amax: (DTYPES,),
    amax.amax_or_nan: (DTYPES,),
    amax.amax_rows: (DTYPES,),
    counts.beyond: ((16, 128),),
    counts.masked: (),
    difference.difference: (),
    fp8.quantize_fp8: (DTYPES, FP8, (False, True)),
    fp8.quantize_fp8_rows: (DTYPES, FP8),
    fp8.dequantize_fp8: (FP8, DTYPES),
    fp8.dequantize_fp8_rows: (FP8, DTYPES),
    fp8_block.quantize_fp8_block: (DTYPES, FP8, (1, 128), POWER_OF_TWO),
    fp8_block.dequantize_fp8_block: (FP8, (1, 128), DTYPES),
    mxfp8.quantize_mxfp8_rows: (DTYPES, FP8, (1, 32)),
    mxfp8.quantize_mxfp8_columns: (DTYPES, FP8),
    mxfp8.dequantize_mxfp8_rows: (FP8, (1, 32), DTYPES),
    mxfp8.dequantize_mxfp8_columns: (FP8, DTYPES),
    mxfp4.quantize_mxfp4: (DTYPES, mxfp4.RULES),
    mxfp4.dequantize_mxfp4: (DTYPES,),
    nvfp4.quantize_nvfp4: (DTYPES, (1, 16), (False, True)),
    nvfp4_four_over_six.quantize_nvfp4_four_over_six: (DTYPES, (1, 16), ("mae",)),
    nvfp4.dequantize_nvfp4: (DTYPES,),
    hadamard.hadamard16: (),
    transpose.transpose: ((2, 4),),
}


def every_variant() -> Iterator[tuple[KernelFamily, tuple[object, ...]]]:
    for family, axes in VARIANTS.items():
        for variant in product(*axes):
            yield family, variant
