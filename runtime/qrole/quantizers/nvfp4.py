"""NVFP4: E2M1 elements, an E4M3 scale per 16 of them, an fp32 amax per tensor or row."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from qrole.dtypes import DType
from qrole.errors import ConfigError
from qrole.quantizers.base import OperandFormat, Quantizer
from qrole.quantizers.reduction import reduce_amax
from qrole.quantizers.tensor import Representation
from qrole.roles import Usage

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from qrole_kernels.operand import Operand

__all__ = ["NVFP4Quantizer"]

_BLOCK = 16
_RANDOM_SIGNS = 0xD7E8
_ERROR_MODES = ("MAE", "MSE")


class NVFP4Quantizer(Quantizer):
    """NVFP4 with the options of TransformerEngine's training recipe.

    Row-wise data never sees the Hadamard transform. Column-wise data is the quantization of the
    transpose, transformed along the token dimension where `with_rht`; tokens are padded with zeros
    to a multiple of 16 then, and the transform is taken in bf16 whatever the tensor's dtype is.
    2D blocks have equal values in both directions.

    Args:
        fp4_dtype: E2M1, the only one.
        rowwise: Make row-wise data.
        columnwise: Make column-wise data, packed along M: (K, ceil(M/2)).
        with_amax_reduction: Take the tensor's amax over the ranks of a group.
        amax_reduction_group: That group; the default group where None.
        with_rht: Hadamard-transform the column-wise data. Needs `with_post_rht_amax`.
        with_post_rht_amax: The column-wise amax is that of the transformed tensor.
        with_2d_quantization: Scales per 16x16 block, meant for weights.
        stochastic_rounding: Round elements stochastically, meant for gradients.
        row_scaled_nvfp4: One amax per row instead of one per tensor.
        nvfp4_use_4over6: Per block, map its maximum to 4 where that errs less than 6.
        nvfp4_e4m3_max: Largest block scale that the amax maps to, 448 or 256.
        nvfp4_4over6_err_mode: The error to compare, `MAE` or `MSE`.
        with_random_sign_mask: Signs of the transform: the fixed random ones, or all +1.

    Raises:
        ConfigError: A value that is none of those named. Options that exclude each other are
            refused by `check`.
    """

    options: ClassVar[tuple[str, ...]] = (
        "fp4_dtype",
        "with_amax_reduction",
        "with_rht",
        "with_post_rht_amax",
        "with_2d_quantization",
        "stochastic_rounding",
        "row_scaled_nvfp4",
        "nvfp4_use_4over6",
        "nvfp4_e4m3_max",
        "nvfp4_4over6_err_mode",
        "with_random_sign_mask",
    )

    def __init__(
        self,
        fp4_dtype: DType = DType.kFloat4E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        with_amax_reduction: bool = False,
        amax_reduction_group: dist.ProcessGroup | None = None,
        with_rht: bool = False,
        with_post_rht_amax: bool = False,
        with_2d_quantization: bool = False,
        stochastic_rounding: bool = False,
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: int = 448,
        nvfp4_4over6_err_mode: str = "MAE",
        with_random_sign_mask: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = DType.cast(fp4_dtype)
        self.with_amax_reduction = with_amax_reduction
        self.amax_reduction_group = amax_reduction_group
        self.with_rht = with_rht
        self.with_post_rht_amax = with_post_rht_amax
        self.with_2d_quantization = with_2d_quantization
        self.stochastic_rounding = stochastic_rounding
        self.row_scaled_nvfp4 = row_scaled_nvfp4
        self.nvfp4_use_4over6 = nvfp4_use_4over6
        self.nvfp4_e4m3_max = nvfp4_e4m3_max
        self.nvfp4_4over6_err_mode = nvfp4_4over6_err_mode
        self.with_random_sign_mask = with_random_sign_mask
        self._check_values()

    def _check_values(self) -> None:
        for name, allowed in (
            ("dtype", (DType.kFloat4E2M1,)),
            ("nvfp4_e4m3_max", (448, 256)),
            ("nvfp4_4over6_err_mode", _ERROR_MODES),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}",
                    expected=f"one of {', '.join(map(repr, allowed))}",
                    hint="leave the keyword out to get the default",
                )

    @override
    def check(self) -> None:
        excluded = {
            "row_scaled_nvfp4": (
                "with_rht",
                "stochastic_rounding",
                "with_2d_quantization",
                "with_amax_reduction",
            ),
            "nvfp4_use_4over6": ("with_rht", "stochastic_rounding"),
        }
        for option, others in excluded.items():
            clash = [other for other in others if getattr(self, option) and getattr(self, other)]
            if clash:
                raise ConfigError(
                    f"{option}=True together with {', '.join(f'{c}=True' for c in clash)}",
                    expected=f"{option} without {', '.join(others)}",
                    hint=f"switch {clash[0]} off, or drop {option}",
                )
        if self.with_rht and self.columnwise_usage and not self.with_post_rht_amax:
            raise ConfigError(
                "an NVFP4 quantizer with_rht=True and with_post_rht_amax=False",
                expected="the column-wise amax taken after the transform",
                hint="pass with_post_rht_amax=True as well",
            )

    @property
    def fp4_dtype(self) -> DType:
        """The constructor's keyword for `dtype`."""
        return self.dtype

    @property
    @override
    def rowwise_format(self) -> OperandFormat:
        return self._format((1, _BLOCK))

    @property
    @override
    def columnwise_format(self) -> OperandFormat:
        return self._format((_BLOCK, 1), rht=self.with_rht)

    def _format(self, block: tuple[int, int], rht: bool = False) -> OperandFormat:
        return OperandFormat(
            "nvfp4",
            "e2m1",
            (_BLOCK, _BLOCK) if self.with_2d_quantization else block,
            "e4m3",
            rht=rht,
            random_sign_mask=rht and self.with_random_sign_mask,
            stochastic_rounding=self.stochastic_rounding,
            row_scaled=self.row_scaled_nvfp4,
            four_over_six=self._four_over_six,
            e4m3_max=self.nvfp4_e4m3_max,
        )

    @property
    def _four_over_six(self) -> str:
        return self.nvfp4_4over6_err_mode.lower() if self.nvfp4_use_4over6 else ""

    @property
    @override
    def label(self) -> str:
        marks = (
            (self.with_2d_quantization, "2D"),
            (self.with_rht, "RHT"),
            (self.with_rht and not self.with_random_sign_mask, "unsigned"),
            (self.stochastic_rounding, "SR"),
            (self.row_scaled_nvfp4, "row-scaled"),
            (self.nvfp4_use_4over6, f"4/6 {self.nvfp4_4over6_err_mode}"),
            (self.nvfp4_e4m3_max != 448, f"max {self.nvfp4_e4m3_max}"),
        )
        return " ".join(["NVFP4", *(text for on, text in marks if on)])

    @override
    def encode(
        self, x_MK: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[Representation | None, Representation | None]:
        if self.with_2d_quantization:
            return self._encode_square(x_MK, generator)
        rowwise = columnwise = amax = None
        if self.rowwise_usage:
            rowwise = self._quantize(x_MK, self._amax(x_MK), generator)
            # The transpose has the same amax, unless it is per row or of the transformed tensor.
            amax = None if self.row_scaled_nvfp4 or self.with_rht else rowwise.amax
        if self.columnwise_usage:
            x_KM = self._transformed(x_MK) if self.with_rht else x_MK.t()
            columnwise = self._quantize(x_KM, self._amax(x_KM) if amax is None else amax, generator)
        return rowwise, columnwise

    def _amax(self, x: torch.Tensor) -> torch.Tensor:
        from qrole_kernels import ops

        if self.row_scaled_nvfp4:
            return ops.amax_rows(x)
        amax = ops.amax(x)
        return reduce_amax(amax, self.amax_reduction_group) if self.with_amax_reduction else amax

    def _quantize(
        self, x: torch.Tensor, amax: torch.Tensor, generator: torch.Generator | None
    ) -> Representation:
        from qrole_kernels import ops

        codes, scale = ops.quantize_nvfp4(
            x,
            amax,
            _BLOCK if self.with_2d_quantization else 1,
            self.nvfp4_e4m3_max,
            self._four_over_six,
            _random_bytes(x, generator) if self.stochastic_rounding else None,
        )
        return Representation(codes, scale, amax)

    def _transformed(self, x_MK: torch.Tensor) -> torch.Tensor:
        """The transpose (K, M padded to 16), Hadamard-transformed along the tokens, in bf16."""
        import torch
        from torch.nn.functional import pad

        from qrole_kernels import ops

        x_KM, missing = x_MK.t().to(torch.bfloat16), -x_MK.shape[0] % _BLOCK
        return ops.hadamard16(pad(x_KM, (0, missing)) if missing else x_KM, self._sign_mask)

    @property
    def _sign_mask(self) -> int:
        return _RANDOM_SIGNS if self.with_random_sign_mask else 0

    def _encode_square(
        self, x_MK: torch.Tensor, generator: torch.Generator | None
    ) -> tuple[Representation | None, Representation | None]:
        """Blocks of 16x16; column-wise data are the very same values, transposed."""
        square = self._quantize(x_MK, self._amax(x_MK), generator)
        rowwise = square if self.rowwise_usage else None
        if not self.columnwise_usage:
            return rowwise, None
        assert square.scale_inv is not None, "blocks have scales"
        columns = x_MK.shape[1]
        scales = square.scale_inv[::_BLOCK].t().repeat_interleave(_BLOCK, 0)[:columns]
        return rowwise, Representation(
            _transpose_packed(square.data, columns), scales.contiguous(), square.amax
        )

    @override
    def decode(
        self, data: Representation, usage: Usage, shape: tuple[int, int], dtype: torch.dtype
    ) -> torch.Tensor:
        import torch

        rows, columns = shape
        if usage is Usage.ROWWISE:
            return self._dequantize(data, dtype)[:, :columns]
        if not self.with_rht:
            return self._dequantize(data, dtype)[:, :rows].t()
        matrix = self._rotated_back(self._dequantize(data, torch.float32))
        return matrix.to(dtype)[:, :rows].t()

    def _dequantize(self, data: Representation, dtype: torch.dtype) -> torch.Tensor:
        from qrole_kernels import ops

        assert data.scale_inv is not None, "blocks have scales"
        assert data.amax is not None, "NVFP4 has an amax"
        return ops.dequantize_nvfp4(
            data.data, data.scale_inv, data.amax, self.nvfp4_e4m3_max, dtype
        )

    @override
    def operand(self, data: Representation, usage: Usage, shape: tuple[int, int]) -> Operand:
        from qrole_kernels.operand import Operand

        columns = shape[1] if usage is Usage.ROWWISE else shape[0]
        padded = usage is Usage.COLUMNWISE and self.with_rht
        return Operand(
            "nvfp4",
            data.data,
            data.scale_inv,
            data.amax,
            e4m3_max=self.nvfp4_e4m3_max,
            columns=None if padded else columns,
        )

    def _rotated_back(self, y_KM: torch.Tensor) -> torch.Tensor:
        """Undoes the transform in fp32; its matrix is orthogonal."""
        import torch

        from qrole_kernels import ops

        identity = torch.eye(_BLOCK, dtype=torch.bfloat16, device=y_KM.device)
        matrix = ops.hadamard16(identity, self._sign_mask).float()
        return (y_KM.reshape(-1, _BLOCK) @ matrix.t()).view_as(y_KM)


def _random_bytes(x: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """One random byte per element, drawn where the generator lives."""
    import torch

    device = generator.device if generator is not None else x.device
    # Whole words: a byte drawn alone costs as much as a word of eight.
    words = torch.randint(
        -(1 << 63),
        (1 << 63) - 1,
        (-(-x.numel() // 8),),
        dtype=torch.int64,
        device=device,
        generator=generator,
    )
    return words.view(torch.uint8)[: x.numel()].view(x.shape).to(x.device)


def _transpose_packed(packed: torch.Tensor, columns: int) -> torch.Tensor:
    """Packed nibbles (M, ceil(K/2)) of a matrix (M, K) as those of its transpose (K, ceil(M/2))."""
    import torch
    from torch.nn.functional import pad

    nibbles_MK = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(1)[:, :columns]
    nibbles_KM = pad(nibbles_MK.t(), (0, nibbles_MK.shape[0] % 2))
    return nibbles_KM[:, 0::2] | (nibbles_KM[:, 1::2] << 4)
