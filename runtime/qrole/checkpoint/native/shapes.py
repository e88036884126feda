"""Shapes and dtypes of what a quantizer makes of a matrix, from its formats alone."""

from __future__ import annotations

from collections.abc import Iterator

from qrole.errors import ConfigError
from qrole.quantizers import HybridQuantizer, IdentityQuantizer, OperandFormat, Quantizer

__all__ = ["AMAX", "DATA", "SCALE_INV", "Stored", "stored_parts"]

DATA = ("rowwise_data", "columnwise_data")
SCALE_INV = ("rowwise_scale_inv", "columnwise_scale_inv")
AMAX = ("amax_rowwise", "amax_columnwise")

#: Name, safetensors dtype and shape.
Stored = tuple[str, str, tuple[int, ...]]

_KEPT = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.bfloat16": "BF16",
    "torch.float16": "F16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
}


def stored_parts(quantizer: Quantizer, dtype: str, rows: int, columns: int) -> Iterator[Stored]:
    """What is stored of a weight: codes and scales as bytes, fp32 numbers, values that are kept.

    One buffer is stored once where it serves both directions, as that of an `IdentityQuantizer`.

    Args:
        quantizer: Who makes it.
        dtype: safetensors dtype of the weight.
        rows: out_features.
        columns: in_features.

    Raises:
        ConfigError: It keeps values in a dtype that safetensors does not have.
    """
    yield from _side(quantizer.rowwise_format, 0, rows, columns, _kept(quantizer, 0, dtype))
    if not isinstance(quantizer, IdentityQuantizer):
        yield from _side(quantizer.columnwise_format, 1, rows, columns, _kept(quantizer, 1, dtype))


def _side(fmt: OperandFormat, side: int, rows: int, columns: int, kept: str) -> Iterator[Stored]:
    """The parts of one direction; column-wise data is that of the transpose but where noted."""
    across = (columns, rows)[side]
    down = (rows, columns)[side]
    if fmt.family == "high_precision":
        yield DATA[side], kept, (rows, columns)
    elif fmt.family == "fp8_tensor":
        yield DATA[side], "U8", (down, across)
        yield SCALE_INV[side], "F32", ()
        if not fmt.delayed:
            yield AMAX[side], "F32", ()
    elif fmt.family == "fp8_block":
        assert fmt.block is not None, "blocks have a size"
        yield DATA[side], "U8", (down, across)
        yield SCALE_INV[side], "F32", (-(-down // fmt.block[side]), -(-across // 128))
    elif fmt.family == "mxfp8":
        yield DATA[side], "U8", (rows, columns)
        scales = (rows, -(-columns // 32)) if side == 0 else (-(-rows // 32), columns)
        yield SCALE_INV[side], "U8", scales
    elif fmt.family == "mxfp4":
        yield DATA[side], "U8", (down, -(-across // 2))
        yield SCALE_INV[side], "U8", (down, -(-across // 32))
    else:
        assert fmt.family == "nvfp4", fmt.family
        padded = fmt.rht and fmt.block != (16, 16)
        width = -(-across // 16) * 16 if padded else across
        yield DATA[side], "U8", (down, -(-width // 2))
        yield SCALE_INV[side], "U8", (down, -(-width // 16))
        yield AMAX[side], "F32", (down,) if fmt.row_scaled else ()


def _kept(quantizer: Quantizer, side: int, dtype: str) -> str:
    """The dtype that one direction keeps values in."""
    inner = quantizer
    if isinstance(quantizer, HybridQuantizer):
        inner = (quantizer.rowwise_quantizer, quantizer.columnwise_quantizer)[side]
    cast = inner.dtype if isinstance(inner, IdentityQuantizer) else None
    if cast is None:
        return dtype
    if str(cast) not in _KEPT:
        raise ConfigError(
            f"a weight is to be kept in {cast}",
            expected=f"one of {', '.join(_KEPT)}",
            hint="let the factory give the role another dtype",
        )
    return _KEPT[str(cast)]
