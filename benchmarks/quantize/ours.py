"""qrole's CPU kernels on one bf16 weight, into tensors that are given or new."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from qrole_kernels import cpu

Operation = Callable[[], object]
E4M3_MAX = 448.0
FORMATS = ("nvfp4", "mxfp8", "fp8_128x128", "fp8_tensor")


@dataclass(frozen=True)
class Outputs:
    """Where codes and scales of a (M, K) matrix go; scales take at most M * K / 16 bytes.

    Invariant: `codes` has M * K bytes, `scales` M * K / 16, both contiguous.
    """

    codes: Tensor
    scales: Tensor

    @classmethod
    def new(cls, x: Tensor) -> "Outputs":
        """Fresh memory."""
        codes = torch.empty(x.numel(), dtype=torch.uint8)
        return cls(codes, torch.empty(x.numel() // 16, dtype=torch.uint8))

    @property
    def places(self) -> tuple[int, int]:
        """Their addresses."""
        return self.codes.data_ptr(), self.scales.data_ptr()


class Quantization:
    """The formats of one matrix, on a number of threads."""

    def __init__(self, x: Tensor, threads: int) -> None:
        self._x = x
        self._source = x.data_ptr(), "bf16", x.shape[0], x.shape[1], x.stride(0)
        self._threads = threads

    def amax(self, out: Outputs) -> float:
        """The maximum alone, which per-tensor formats need first."""
        return cpu.host_amax(*self._source, threads=self._threads)

    def nvfp4(self, out: Outputs) -> None:
        """Amax, then 1x16 blocks."""
        options = self.amax(out), 1, 448
        cpu.host_quantize_nvfp4(*self._source, *options, *out.places, threads=self._threads)

    def mxfp8(self, out: Outputs) -> None:
        """1x32 blocks."""
        options = "e4m3", 1, 32
        cpu.host_quantize_mxfp8(*self._source, *options, *out.places, threads=self._threads)

    def fp8_128x128(self, out: Outputs) -> None:
        """128x128 blocks with fp32 scales."""
        options = "e4m3", 128, False, 0.0
        cpu.host_quantize_fp8_block(*self._source, *options, *out.places, threads=self._threads)

    def fp8_tensor(self, out: Outputs) -> None:
        """Amax, then one scale."""
        options = E4M3_MAX / self.amax(out), "e4m3", out.codes.data_ptr()
        cpu.host_quantize_fp8(*self._source, *options, threads=self._threads)

    def into(self, out: Outputs) -> dict[str, Operation]:
        """Every format into the same memory."""
        return {name: partial(getattr(self, name), out) for name in FORMATS}

    def fresh(self) -> dict[str, Operation]:
        """Every format into new memory."""
        return {name: partial(self._into_new, name) for name in FORMATS}

    def _into_new(self, name: str) -> Outputs:
        out = Outputs.new(self._x)
        getattr(self, name)(out)
        return out


class Dequantization:
    """The formats of one matrix decoded into one bf16 tensor, on a number of threads."""

    def __init__(self, x: Tensor, threads: int) -> None:
        self._y = torch.empty_like(x)
        self._threads = threads
        quantization = Quantization(x, threads)
        self._amax = quantization.amax(Outputs.new(x))
        self._held = {name: Outputs.new(x) for name in FORMATS}
        for name, out in self._held.items():
            quantization.into(out)[name]()

    def _codes(self, name: str) -> tuple[int, int, int]:
        return self._held[name].places[0], self._y.shape[0], self._y.shape[1]

    def _scales(self, name: str) -> int:
        return self._held[name].places[1]

    def nvfp4(self) -> None:
        """1x16 blocks."""
        options = self._scales("nvfp4"), self._amax, 448, "bf16", self._y.data_ptr()
        cpu.host_dequantize_nvfp4(*self._codes("nvfp4"), *options, threads=self._threads)

    def mxfp8(self) -> None:
        """1x32 blocks."""
        options = self._scales("mxfp8"), "e4m3", 1, 32, "bf16", self._y.data_ptr()
        cpu.host_dequantize_mxfp8(*self._codes("mxfp8"), *options, threads=self._threads)

    def fp8_128x128(self) -> None:
        """128x128 blocks."""
        options = self._scales("fp8_128x128"), "e4m3", 128, "bf16", self._y.data_ptr()
        cpu.host_dequantize_fp8_block(*self._codes("fp8_128x128"), *options, threads=self._threads)

    def fp8_tensor(self) -> None:
        """One scale."""
        options = self._amax / E4M3_MAX, "e4m3", "bf16", self._y.data_ptr()
        cpu.host_dequantize_fp8(*self._codes("fp8_tensor"), *options, threads=self._threads)

    def operations(self) -> dict[str, Operation]:
        """Every format."""
        return {name: getattr(self, name) for name in FORMATS}
