"""What a quantized model computes, independently of qrole's writers and of its CPU kernels.

Weights are quantized by the reference and decoded here; activations as compressed-tensors' scales
are defined. Everything is fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qrole.checkpoint.schemes import Scheme, WeightFormat
from qrole_kernels import reference

FLOAT32_MAX = torch.finfo(torch.float32).max
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def weight(w: torch.Tensor, fmt: WeightFormat, amax: torch.Tensor) -> torch.Tensor:
    """The values that engines read for a weight (o, i); those of MX and NVFP4 are bf16."""
    if fmt.encoding == "fp8_tensor":
        scale = reference.fp8_scale(amax, "e4m3", fmt.power_of_two, fmt.epsilon, FLOAT32_MAX)
        return _e4m3(reference.quantize_fp8(w, scale, "e4m3")) * (1.0 / scale)
    if fmt.encoding == "fp8_channel":
        codes, scale = reference.quantize_fp8_rows(w, "e4m3")
        return _e4m3(codes) * scale
    if fmt.encoding == "fp8_block":
        codes, scale = reference.quantize_fp8_block(w, "e4m3", 128, fmt.power_of_two, fmt.epsilon)
        return _e4m3(codes) * _spread(scale, 128, 128, w.shape)
    if fmt.encoding == "mxfp8":
        codes, scale = reference.quantize_mxfp8(w, "e4m3", fmt.block_rows, 32)
        return (
            (_e4m3(codes) * _spread(_e8m0(scale), fmt.block_rows, 32, w.shape)).bfloat16().float()
        )
    if fmt.encoding == "mxfp4":
        codes, scale = reference.quantize_mxfp4(w, fmt.rule)
        return (_e2m1(codes) * _spread(_e8m0(scale), 1, 32, w.shape)).bfloat16().float()
    codes, scale = reference.quantize_nvfp4(w, amax, fmt.block_rows, fmt.e4m3_max)
    divisor = torch.full_like(amax, 6.0 * fmt.e4m3_max) / amax
    unit = _spread(scale.view(torch.float8_e4m3fn).float() / divisor, 1, 16, w.shape)
    return (_e2m1(codes) * unit).bfloat16().float()


def activation(x: torch.Tensor, scheme: Scheme, input_amax: float) -> torch.Tensor:
    """The values that a layer multiplies instead of its input x (..., i)."""
    if scheme.activations.value == "none":
        return x
    if scheme.name == "fp8_tensor":
        return _fp8(x, 1.0 / (torch.tensor(448.0) / torch.tensor(input_amax)))
    if scheme.encoding in ("fp8_tensor", "fp8_channel"):
        return _fp8(x, x.abs().amax(-1, keepdim=True) / 448.0)
    if scheme.encoding == "nvfp4":
        blocks = x.unflatten(-1, (-1, 16))
        whole = torch.tensor(2688.0) / torch.tensor(input_amax)  # a float would divide twice
        scale = (whole * (blocks.abs().amax(-1, keepdim=True) / 6.0)).clamp(max=448.0)
        unit = scale.to(torch.float8_e4m3fn).float() / whole
        return (_nearest_e2m1(blocks / unit) * unit).flatten(-2)
    size = 128 if scheme.encoding == "fp8_block" else 32
    blocks = x.unflatten(-1, (-1, size))
    amax = blocks.abs().amax(-1, keepdim=True)
    if scheme.encoding == "fp8_block":
        return _fp8(blocks, amax / 448.0).flatten(-2)
    # The amax is rounded to the mantissa of E2M1 before its exponent is taken.
    exponent = (((amax.view(torch.int32) + (1 << 21)) >> 23) & 0xFF) - 127
    if scheme.encoding == "mxfp8":
        return _fp8(blocks, torch.exp2((exponent - 8).float())).flatten(-2)
    unit = torch.exp2((exponent - 2).float())
    return (_nearest_e2m1(blocks / unit) * unit).flatten(-2)


class FakeLinear(nn.Module):
    """A linear layer with the values that quantization leaves."""

    def __init__(self, linear: nn.Linear, w: torch.Tensor, scheme: Scheme, amax: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(w, requires_grad=False)
        self.bias = linear.bias
        self.scheme = scheme
        self.input_amax = amax

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(
            activation(x, self.scheme, self.input_amax), self.weight, self.bias
        )


def _e4m3(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.float8_e4m3fn).float()


def _e8m0(codes: torch.Tensor) -> torch.Tensor:
    return torch.exp2(codes.float() - 127)


def _e2m1(packed: torch.Tensor) -> torch.Tensor:
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    values = E2M1[(codes & 7).int()]
    return torch.where(codes >= 8, -values, values)


def _spread(scale: torch.Tensor, rows: int, columns: int, shape: Any) -> torch.Tensor:
    return scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: shape[0], : shape[1]]


def _fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float() * scale


def _nearest_e2m1(x: torch.Tensor) -> torch.Tensor:
    """To the nearest E2M1 value, ties to the even code."""
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    magnitude = x.abs().contiguous()
    below = torch.bucketize(magnitude, bounds, right=False)
    above = torch.bucketize(magnitude, bounds, right=True)
    codes = torch.where(above % 2 == 0, above, below)
    return E2M1[codes] * x.sign()
