"""Mistakes of sizes and hardware."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qrole import Float8CurrentScalingQuantizer, MXFP8Quantizer, QuantizerRole
from qrole.dtypes import DType
from qrole.factories.builtin import float8_block_scaling_factory, mxfp8_factory, nvfp4_factory
from qrole.factories.zoo import nvfp4_linear_fp8_dpa_factory
from qrole.modules import DotProductAttention
from tests.audit.building import case, decoder, one_layer, planned, tree

E4M3 = DType.kFloat8E4M3


def attention(head_size: int = 64) -> nn.Module:
    core = DotProductAttention(num_attention_heads=4, kv_channels=head_size, name="core")
    return nn.ModuleDict({"core": core, "proj": tree(fc=(256, 256)).fc})


def mxfp8_everywhere(role: QuantizerRole | None) -> Any:
    return MXFP8Quantizer(E4M3)


def fp8_attention(role: QuantizerRole | None) -> Any:
    return Float8CurrentScalingQuantizer(E4M3, device="cuda")


CASES = [
    case(
        "in_features that is no multiple of the block",
        "QR401",
        planned(lambda: tree(fc=(256, 100)), mxfp8_factory),
        planned(lambda: tree(fc=(256, 96)), mxfp8_factory),
    ),
    case(
        "out_features that dgrad can't take",
        "QR401",
        planned(lambda: tree(fc=(100, 256)), mxfp8_factory),
        planned(lambda: tree(fc=(100, 256)), mxfp8_factory, inference=True),
    ),
    case(
        "blocks of 128 in a narrow model",
        "QR401",
        planned(lambda: tree(fc=(192, 576)), float8_block_scaling_factory),
        planned(lambda: tree(fc=(192, 576)), mxfp8_factory),
    ),
    case(
        "MXFP8 on Hopper",
        "QR402",
        planned(one_layer, mxfp8_factory, target="sm_90"),
        planned(one_layer, mxfp8_factory, target="sm_100"),
    ),
    case(
        "MXFP8 on RTX Blackwell",
        "QR402",
        planned(one_layer, mxfp8_factory, target="sm_120"),
        planned(one_layer, nvfp4_factory, target="sm_120"),
    ),
    case(
        "FP8 blocks on Ada",
        "QR402",
        planned(one_layer, float8_block_scaling_factory, target="sm_89"),
        planned(one_layer, float8_block_scaling_factory, target="sm_90"),
    ),
    case(
        "the Hadamard transform in an fp16 model",
        "QR403",
        planned(lambda: tree(torch.float16, fc=(256, 256)), nvfp4_factory),
        planned(one_layer, nvfp4_factory),
    ),
    case(
        "NVFP4 for attention slots",
        "QR404",
        planned(attention, nvfp4_factory, fp8_dpa=True),
        planned(attention, nvfp4_linear_fp8_dpa_factory, fp8_dpa=True),
    ),
    case(
        "NVFP4 for attention slots that nothing reads",
        "QR404",
        planned(attention, nvfp4_factory, fp8_dpa=True),
        planned(attention, nvfp4_factory),
    ),
    case(
        "MXFP8 attention with a narrow head",
        "QR405",
        planned(lambda: attention(48), mxfp8_everywhere, fp8_dpa=True),
        planned(lambda: attention(64), mxfp8_everywhere, fp8_dpa=True),
    ),
    case(
        "MXFP8 attention over an odd sequence",
        "QR405",
        planned(attention, mxfp8_everywhere, fp8_dpa=True, sequence_length=1000),
        planned(attention, fp8_attention, fp8_dpa=True, sequence_length=1000),
    ),
    case(
        "eight GPUs for key heads of one block",
        "QR406",
        planned(decoder, float8_block_scaling_factory, tensor_parallel=8),
        planned(decoder, float8_block_scaling_factory, tensor_parallel=1),
    ),
]
