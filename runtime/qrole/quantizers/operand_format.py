"""The number format of one representation of a tensor, as everything but a quantizer needs it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OperandFormat"]


@dataclass(frozen=True)
class OperandFormat:
    """The number format of one representation (row-wise or column-wise) of a tensor.

    Two operands can meet in a GEMM when `qrole.gemm` says so; equal formats have equal fields.

    Attributes:
        family: `high_precision`, `fp8_tensor`, `fp8_block`, `mxfp8`, `mxfp4`, `nvfp4`, or `custom`
            for a quantizer class of the user's.
        element: `e4m3`, `e5m2`, `e2m1`; `""` for high precision; the class's name for `custom`.
        block: Elements that share a scale, as (rows, columns) of the tensor in its own orientation
            before any transpose; None for one scale per tensor. Row-wise MXFP8 is (1, 32),
            column-wise (32, 1).
        scale: `fp32`, `fp32_pow2`, `e8m0`, `e4m3`, or `""`.
        rht: The random Hadamard transform is applied before quantization.
        random_sign_mask: The transform's signs are the fixed random ones rather than all +1.
        stochastic_rounding: Elements are rounded stochastically.
        row_scaled: One global scale per row instead of per tensor (NVFP4).
        four_over_six: `""`, `mae` or `mse` (NVFP4).
        e4m3_max: Largest block scale, 448 or 256 (NVFP4); 0 elsewhere.
        scale_rule: Rounding of the MXFP4 scale: `rceil`, `floor` or `even`; `""` elsewhere.
        delayed: The scale comes from earlier steps (FP8 delayed scaling).
        reference: Made by one of TransformerEngine's Python references, which multiply with each
            other only.
    """

    family: str
    element: str = ""
    block: tuple[int, int] | None = None
    scale: str = ""
    rht: bool = False
    random_sign_mask: bool = False
    stochastic_rounding: bool = False
    row_scaled: bool = False
    four_over_six: str = ""
    e4m3_max: int = 0
    scale_rule: str = ""
    delayed: bool = False
    reference: bool = False

    @property
    def label(self) -> str:
        """A short name for tables, such as `MXFP8 E4M3`, `NVFP4 RHT SR` or `FP8 E5M2 1x128`."""
        if self.family == "high_precision":
            return "high precision"
        if self.family == "custom":
            return self.element
        blocks = {"mxfp8": (1, 32), "mxfp4": (1, 32), "nvfp4": (1, 16)}.get(self.family)
        words = [self.family.split("_")[0].upper()]
        if self.element != "e2m1":
            words.append(self.element.upper())
        if self.block is not None and self.block not in (blocks, blocks and blocks[::-1]):
            words.append(f"{self.block[0]}x{self.block[1]}")
        flags = {
            "delayed": self.delayed,
            "RHT": self.rht,
            "SR": self.stochastic_rounding,
            "row-scaled": self.row_scaled,
            "4over6": bool(self.four_over_six),
        }
        return " ".join(words + [word for word, on in flags.items() if on])

    @property
    def bits_per_element(self) -> float:
        """Storage bits per element, block scales included, per-tensor scales not.

        The scales of square MXFP8 and NVFP4 blocks are stored once per row, as kernels read them.
        """
        element = {"e4m3": 8.0, "e5m2": 8.0, "e2m1": 4.0}.get(self.element, 16.0)
        if self.block is None or not self.scale:
            return element
        if self.family in ("mxfp8", "nvfp4"):
            return element + 8.0 / max(self.block)
        scale = 32.0 if self.scale.startswith("fp32") else 8.0
        return element + scale / (self.block[0] * self.block[1])
