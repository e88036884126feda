"""How serving engines store a linear layer, and how a plan's answers map to that.

A scheme is an encoding of the weight and a rule for the activations. Facts:
`docs/checkpoints.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qrole.errors import ConfigError
from qrole.quantizers.base import OperandFormat

__all__ = [
    "ENCODINGS",
    "SCHEMES",
    "Activations",
    "Encoding",
    "Fp8Mode",
    "Scheme",
    "WeightFormat",
    "scheme_of",
    "weight_format",
]


class Activations(StrEnum):
    """What an engine does to the layer's input."""

    NONE = "none"
    STATIC = "static"
    DYNAMIC = "dynamic"


class Fp8Mode(StrEnum):
    """How FP8 per-tensor scaling is stored, which engines do in more than one way.

    `static`: a calibrated input scale; `dynamic`: the input is scaled per token at run time;
    `channel`: that, and the weight is scaled per row.
    """

    STATIC = "static"
    DYNAMIC = "dynamic"
    CHANNEL = "channel"


@dataclass(frozen=True)
class Encoding:
    """A number format of stored weights.

    Attributes:
        name: Key in `ENCODINGS`.
        columns: in_features must be a multiple of this.
        element_bits: Bits per element without scales.
        scale_dtype: safetensors dtype of the block scales; `""` where there are none.
        scale_rows: Rows that share a stored scale (0: all).
        scale_columns: Columns that share one (0: all).
        shared: There is one scale for the whole tensor, which fused neighbours must share.
    """

    name: str
    columns: int
    element_bits: int
    scale_dtype: str
    scale_rows: int
    scale_columns: int
    shared: bool

    def data_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Shape of the stored codes; two E2M1 codes share a byte."""
        return (rows, columns * self.element_bits // 8)

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Shape of the stored block scales."""
        down = -(-rows // self.scale_rows) if self.scale_rows else 1
        across = -(-columns // self.scale_columns) if self.scale_columns else 1
        return (down, across)


ENCODINGS = {
    encoding.name: encoding
    for encoding in (
        Encoding("fp8_tensor", 1, 8, "", 0, 0, shared=True),
        Encoding("fp8_channel", 1, 8, "F32", 1, 0, shared=False),
        Encoding("fp8_block", 128, 8, "F32", 128, 128, shared=False),
        Encoding("mxfp8", 32, 8, "U8", 1, 32, shared=False),
        Encoding("mxfp4", 32, 4, "U8", 1, 32, shared=False),
        Encoding("nvfp4", 16, 4, "F8_E4M3", 1, 16, shared=True),
        # What a quantizer makes, in shapes of its own; see `qrole.checkpoint.native`.
        Encoding("native", 1, 8, "", 0, 0, shared=False),
    )
}


@dataclass(frozen=True)
class Scheme:
    """An encoding with a rule for the activations.

    Attributes:
        name: Key in `SCHEMES`, and what output and manifests show.
        encoding: Key in `ENCODINGS`.
        activations: What happens to the input.
    """

    name: str
    encoding: str
    activations: Activations

    @property
    def stored(self) -> Encoding:
        """The weight's encoding."""
        return ENCODINGS[self.encoding]


def _table() -> dict[str, Scheme]:
    none, static, dynamic = Activations.NONE, Activations.STATIC, Activations.DYNAMIC
    rows = [
        ("fp8_tensor", "fp8_tensor", static),
        ("fp8_tensor_dynamic", "fp8_tensor", dynamic),
        ("fp8_tensor_a16", "fp8_tensor", none),
        ("fp8_channel", "fp8_channel", dynamic),
        ("fp8_channel_a16", "fp8_channel", none),
        ("fp8_block", "fp8_block", dynamic),
        ("mxfp8", "mxfp8", dynamic),
        ("mxfp8_a16", "mxfp8", none),
        ("mxfp4", "mxfp4", dynamic),
        ("mxfp4_a16", "mxfp4", none),
        ("nvfp4", "nvfp4", static),
        ("nvfp4_a16", "nvfp4", none),
    ]
    return {name: Scheme(name, encoding, activations) for name, encoding, activations in rows}


SCHEMES = _table()


@dataclass(frozen=True)
class WeightFormat:
    """What the encoder is told beyond the encoding's name.

    Attributes:
        encoding: Key in `ENCODINGS`.
        power_of_two: FP8 scales are rounded down to powers of two.
        epsilon: Floor of an FP8 amax.
        block_rows: Rows that share a scale while quantizing: 16 for square NVFP4 blocks, 32 for
            square MXFP8 ones, 128 for FP8 blocks, else 1.
        e4m3_max: Largest NVFP4 block scale, 448 or 256.
        four_over_six: NVFP4's choice of block maximum: `""`, `mae` or `mse`.
        rule: MXFP4's scale rule.
    """

    encoding: str
    power_of_two: bool = False
    epsilon: float = 0.0
    block_rows: int = 1
    e4m3_max: int = 448
    four_over_six: str = ""
    rule: str = "rceil"


def weight_format(
    fmt: OperandFormat, mode: Fp8Mode, epsilon: float = 0.0
) -> tuple[WeightFormat | None, str]:
    """The storable form of a weight's row-wise format, and a note where it is not the same.

    Args:
        fmt: What the plan gives the weight.
        mode: How FP8 per-tensor scaling is stored.
        epsilon: The quantizer's amax floor.

    Returns:
        The format, None for high precision; and in words what differs, `""` where nothing does.

    Raises:
        ConfigError: No engine stores such weights.
    """
    if fmt.family == "high_precision":
        return None, ""
    if fmt.element == "e5m2":
        raise _unstorable(fmt, "E5M2 weights; engines read E4M3 only")
    pow2 = fmt.scale == "fp32_pow2"
    rows = fmt.block[0] if fmt.block else 1
    if fmt.family == "fp8_tensor":
        if mode is Fp8Mode.CHANNEL or fmt.row_scaled:
            note = "" if fmt.row_scaled else "one scale per output channel instead of per tensor"
            return WeightFormat("fp8_channel"), note
        note = "the scale is this weight's own, not one of an amax history" if fmt.delayed else ""
        return WeightFormat("fp8_tensor", power_of_two=pow2, epsilon=epsilon), note
    if fmt.family == "fp8_block":
        note = "" if rows == 128 else "weight blocks of 128x128 instead of 1x128"
        return WeightFormat("fp8_block", pow2, epsilon, block_rows=128), note
    if fmt.family == "mxfp8":
        return WeightFormat("mxfp8", block_rows=rows), ""
    if fmt.family == "mxfp4":
        return WeightFormat("mxfp4", rule=fmt.scale_rule), ""
    if fmt.family == "nvfp4":
        if fmt.row_scaled:
            raise _unstorable(fmt, "one NVFP4 global scale per row; engines keep one per tensor")
        note = "weights are rounded to nearest" if fmt.stochastic_rounding else ""
        four = fmt.four_over_six
        return WeightFormat("nvfp4", False, 0.0, rows, fmt.e4m3_max, four), note
    raise _unstorable(fmt, f"the format {fmt.family}")


def scheme_of(
    weight: WeightFormat, activations: OperandFormat | None, mode: Fp8Mode, weight_only: bool
) -> tuple[Scheme, str]:
    """The scheme for a weight and what the plan gives its input; a note where it differs.

    Args:
        weight: The weight's storable form.
        activations: Row-wise format of the layer's input; None where the plan has no such slot.
        mode: How FP8 per-tensor scaling is stored.
        weight_only: Leave activations in high precision whatever the plan says.

    Raises:
        ConfigError: No engine has this pair.
    """
    encoding = weight.encoding
    high = activations is None or activations.family == "high_precision"
    if activations is not None and not high and not weight_only:
        _check_pair(weight, activations)
    if encoding == "fp8_block":
        # Engines have no weight-only form of it: what reads the blocks quantizes the input too.
        note = "inputs are quantized in groups of 128" if high or weight_only else ""
        return SCHEMES["fp8_block"], note
    if weight_only or high:
        return SCHEMES[f"{encoding}_a16"], ""
    assert activations is not None
    if encoding == "fp8_tensor":
        if mode is Fp8Mode.DYNAMIC:
            return SCHEMES["fp8_tensor_dynamic"], "inputs are scaled per token at run time"
        note = "" if activations.delayed else "inputs get a calibrated static scale"
        return SCHEMES["fp8_tensor"], note
    if encoding == "fp8_channel":
        return SCHEMES["fp8_channel"], "inputs are scaled per token at run time"
    if encoding == "nvfp4":
        return SCHEMES["nvfp4"], "inputs get a calibrated static global scale"
    return SCHEMES[encoding], ""


def _check_pair(weight: WeightFormat, activations: OperandFormat) -> None:
    family = "fp8_tensor" if weight.encoding == "fp8_channel" else weight.encoding
    if activations.family == family and activations.element != "e5m2":
        return
    raise ConfigError(
        f"a {weight.encoding} weight meets an input in {activations.label}",
        expected="weight and input of one format, or an input in high precision",
        hint="let the factory give both roles the same format, or pass --weight-only",
    )


def _unstorable(fmt: OperandFormat, what: str) -> ConfigError:
    return ConfigError(
        f"the factory gives a weight {what}",
        expected="FP8 E4M3 per tensor, per channel or in blocks, MXFP8, NVFP4 or MXFP4",
        hint="let the factory give weights another quantizer",
    )
