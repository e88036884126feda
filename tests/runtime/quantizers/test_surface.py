"""Constructors take what TransformerEngine's take; what they refuse, they refuse in three parts."""

import inspect

import pytest
import torch

from qrole.dtypes import DType
from qrole.errors import ConfigError, OperandError
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)

SIGNATURES = {
    Float8Quantizer: "scale, amax, fp8_dtype, *, rowwise=True, columnwise=True",
    Float8CurrentScalingQuantizer: (
        "fp8_dtype, device, *, rowwise=True, columnwise=True, use_existing_amax=False, "
        "with_amax_reduction=False, amax_reduction_group=None, force_pow_2_scales=False, "
        "amax_epsilon=0.0, scale=None, amax=None"
    ),
    MXFP8Quantizer: "fp8_dtype, *, rowwise=True, columnwise=True, with_2d_quantization=False",
    Float8BlockQuantizer: (
        "fp8_dtype, *, rowwise, columnwise, amax_epsilon=0.0, force_pow_2_scales=True, "
        "block_scaling_dim=2"
    ),
    NVFP4Quantizer: (
        "fp4_dtype=kFloat4E2M1, rowwise=True, columnwise=True, with_amax_reduction=False, "
        "amax_reduction_group=None, with_rht=False, with_post_rht_amax=False, "
        "with_2d_quantization=False, stochastic_rounding=False, row_scaled_nvfp4=False, "
        "nvfp4_use_4over6=False, nvfp4_e4m3_max=448, nvfp4_4over6_err_mode='MAE', "
        "with_random_sign_mask=True"
    ),
    HybridQuantizer: "*, rowwise_quantizer, columnwise_quantizer, columnwise_source='original'",
    IdentityQuantizer: "*, dtype=None, rowwise=True, columnwise=True",
}


def _written(cls):
    shown = []
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = parameter.default
        value = default.name if isinstance(default, DType) else repr(default)
        shown.append(name if default is parameter.empty else f"{name}={value}")
    return ", ".join(shown)


@pytest.mark.parametrize("cls", SIGNATURES, ids=lambda cls: cls.__name__)
def test_signature(cls):
    assert _written(cls) == SIGNATURES[cls]


def _block(**options):
    return Float8BlockQuantizer(DType.kFloat8E4M3, rowwise=True, columnwise=True, **options)


LABELS = [
    (lambda: IdentityQuantizer(), "high precision"),
    (lambda: IdentityQuantizer(dtype=torch.bfloat16), "high precision bfloat16"),
    (lambda: Float8CurrentScalingQuantizer(DType.kFloat8E5M2, "cuda"), "FP8 current E5M2"),
    (
        lambda: Float8CurrentScalingQuantizer(
            DType.kFloat8E4M3, torch.device("cuda"), force_pow_2_scales=True
        ),
        "FP8 current E4M3 pow2",
    ),
    (
        lambda: Float8Quantizer(torch.ones(()), torch.zeros(()), DType.kFloat8E4M3),
        "FP8 delayed E4M3",
    ),
    (lambda: _block(block_scaling_dim=1), "FP8 block 1x128 E4M3"),
    (lambda: _block(force_pow_2_scales=False), "FP8 block 128x128 E4M3 fp32 scales"),
    (lambda: MXFP8Quantizer(DType.kFloat8E4M3, with_2d_quantization=True), "MXFP8 E4M3 2D"),
    (lambda: MXFP4Quantizer(), "MXFP4"),
    (lambda: MXFP4Quantizer("even"), "MXFP4 even"),
    (lambda: NVFP4Quantizer(with_rht=True, stochastic_rounding=True), "NVFP4 RHT SR"),
    (lambda: NVFP4Quantizer(with_2d_quantization=True), "NVFP4 2D"),
    (
        lambda: NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=256),
        "NVFP4 4/6 MAE max 256",
    ),
    (
        lambda: HybridQuantizer(
            rowwise_quantizer=MXFP8Quantizer(DType.kFloat8E4M3),
            columnwise_quantizer=IdentityQuantizer(),
            columnwise_source="rowwise_dequantized",
        ),
        "MXFP8 E4M3 | high precision (of row)",
    ),
]


@pytest.mark.parametrize(("make", "label"), LABELS, ids=[label for _, label in LABELS])
def test_label_equality_and_hash(make, label):
    one, other = make(), make()
    assert one.label == label
    assert one is not other
    assert one == other
    assert hash(one) == hash(other)
    assert one.describe() == other.describe()
    other.set_usage(columnwise=False)
    assert one == other, "usage is no option"


def test_all_labels_differ_where_options_do():
    quantizers = [make() for make, _ in LABELS]
    assert len(set(quantizers)) == len({q.label for q in quantizers}) == len(LABELS)


def test_either_dtype_flavour_is_taken():
    from enum import Enum

    class Foreign(Enum):
        kFloat8E5M2 = "something"

    assert MXFP8Quantizer(Foreign.kFloat8E5M2).dtype is DType.kFloat8E5M2
    assert MXFP8Quantizer(8).dtype is DType.kFloat8E5M2


REFUSED = [
    (lambda: MXFP8Quantizer(DType.kFloat32), "fp8_dtype is DType.kFloat32"),
    (lambda: MXFP8Quantizer("E4M3"), "'E4M3' is no element type"),
    (lambda: _block(block_scaling_dim=3), "block_scaling_dim=3"),
    (lambda: MXFP4Quantizer("ceil"), "scale_rule='ceil'"),
    (lambda: NVFP4Quantizer(nvfp4_e4m3_max=300), "nvfp4_e4m3_max=300"),
    (lambda: NVFP4Quantizer(nvfp4_4over6_err_mode="mae"), "nvfp4_4over6_err_mode='mae'"),
    (lambda: NVFP4Quantizer(DType.kFloat8E4M3), "dtype=<DType.kFloat8E4M3"),
]


@pytest.mark.parametrize(("make", "given"), REFUSED, ids=[given for _, given in REFUSED])
def test_values_that_are_refused(make, given):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.given.startswith(given)
    assert caught.value.expected
    assert caught.value.hint


EXCLUSIVE = [
    {"row_scaled_nvfp4": True, "with_rht": True, "with_post_rht_amax": True},
    {"row_scaled_nvfp4": True, "stochastic_rounding": True},
    {"row_scaled_nvfp4": True, "with_2d_quantization": True},
    {"row_scaled_nvfp4": True, "with_amax_reduction": True},
    {"nvfp4_use_4over6": True, "with_rht": True, "with_post_rht_amax": True},
    {"nvfp4_use_4over6": True, "stochastic_rounding": True},
    {"with_rht": True},
]


@pytest.mark.parametrize("options", EXCLUSIVE, ids=lambda o: "+".join(o))
def test_options_that_exclude_each_other_are_built_and_refused_in_use(options):
    quantizer = NVFP4Quantizer(**options)
    with pytest.raises(ConfigError, match=r"NVFP4|=True together with"):
        quantizer(torch.ones(16, 16))


def test_rht_without_columnwise_usage_needs_no_amax_after_it():
    quantized = NVFP4Quantizer(with_rht=True, columnwise=False)(torch.ones(16, 16))
    assert quantized.columnwise is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float8_e4m3fn])
def test_dtypes_that_are_refused(dtype):
    with pytest.raises(OperandError, match=r"float32, bfloat16 or float16"):
        MXFP8Quantizer(DType.kFloat8E4M3)(torch.ones(32, 32).to(dtype))


def test_without_any_usage():
    quantizer = MXFP8Quantizer(DType.kFloat8E4M3, rowwise=False, columnwise=False)
    with pytest.raises(OperandError, match="neither row-wise nor column-wise"):
        quantizer(torch.ones(32, 32))
