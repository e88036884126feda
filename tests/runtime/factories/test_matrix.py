"""Every factory for every role of the published matrix."""

import json
from pathlib import Path

import pytest

from qrole.factories import builtin, reference, zoo
from qrole.plugins import list_factories, load_factory
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from qrole.roles import DelayedScalingRequest, QuantizerRole

MATRIX = json.loads(Path(__file__).with_name("factory_matrix.json").read_text())
NOT_IN_THE_MATRIX = {
    "nvfp4_linear_mxfp8_dpa",
    "nvfp4_linear_mxfp8_grouped_linear",
    "current_scaling_ref",
    "nvfp4_ref_rht_2d",
}
ROLES = list(MATRIX["nvfp4_factory"])
SAMPLES = [(factory, role) for factory in MATRIX for role in ROLES]


def _role(text):
    if text == "None":
        return None
    if text == "bare":
        return QuantizerRole()
    if text.startswith("hint "):
        return QuantizerRole(name=f"block.attention.{text.removeprefix('hint ')}")
    module_type, tensor_type = text.split("/")
    return QuantizerRole(module_type, tensor_type, "block.layer")


def _factory(name):
    return getattr(builtin, name, None) or getattr(zoo, name)


def _element(dtype):
    return dtype.name.removeprefix("kFloat8")


def _nvfp4(quantizer):
    knobs = {
        "rht": quantizer.with_rht,
        "postamax": quantizer.with_post_rht_amax,
        "2d": quantizer.with_2d_quantization,
        "sr": quantizer.stochastic_rounding,
        "rowscaled": quantizer.row_scaled_nvfp4,
        "4over6": quantizer.nvfp4_use_4over6,
    }
    return f"NV({','.join(name for name, on in knobs.items() if on)})"


def _delayed(request):
    return (
        f"DSReq(len={request.amax_history_len},{request.amax_compute_algo},"
        f"{request.fp8_format.name},reduce={request.reduce_amax})"
    )


WRITTEN = {
    IdentityQuantizer: lambda q: "Identity",
    DelayedScalingRequest: _delayed,
    Float8CurrentScalingQuantizer: lambda q: f"CS({_element(q.dtype)})",
    Float8BlockQuantizer: lambda q: (
        f"BLK({_element(q.dtype)},dim={q.block_scaling_dim},pow2={q.force_pow_2_scales})"
    ),
    MXFP8Quantizer: lambda q: f"MX({_element(q.dtype)},2d={q.with_2d_quantization})",
    NVFP4Quantizer: _nvfp4,
    HybridQuantizer: lambda q: (
        f"HYB[row={_written(q.rowwise_quantizer)}; col={_written(q.columnwise_quantizer)}; "
        f"src={q.columnwise_source}]"
    ),
}


def _written(answer):
    return WRITTEN[type(answer)](answer)


@pytest.mark.parametrize(("name", "role"), SAMPLES, ids=[f"{f}-{r}" for f, r in SAMPLES])
def test_answer(name, role):
    assert _written(_factory(name)(_role(role))) == MATRIX[name][role]


@pytest.mark.parametrize("role", ROLES)
def test_attention_example(role):
    expected = (
        "MX(E4M3,2d=False)" if role.startswith(("dpa/", "hint ")) else MATRIX["nvfp4_factory"][role]
    )
    assert _written(zoo.nvfp4_linear_mxfp8_dpa_factory(_role(role))) == expected


@pytest.mark.parametrize("role", ROLES)
def test_experts_example(role):
    expected = "MX(E4M3,2d=False)" if role.startswith("grouped") else MATRIX["nvfp4_factory"][role]
    assert _written(zoo.nvfp4_linear_mxfp8_grouped_linear_factory(_role(role))) == expected


@pytest.mark.parametrize("role", ROLES)
def test_reference_factories(role):
    nvfp4 = reference.nvfp4_ref_rht_2d_factory(_role(role))
    weight = role.endswith("linear/weight")
    assert nvfp4.with_2d_quantization == weight
    assert nvfp4.with_rht == nvfp4.with_post_rht_amax == (not weight)
    assert not nvfp4.stochastic_rounding
    current = reference.current_scaling_ref_factory(_role(role))
    assert f"CS({_element(current.dtype)})" == MATRIX["current_scaling_factory"][role]
    for quantizer in (nvfp4, current):
        assert quantizer.rowwise_format.reference
        assert quantizer.columnwise_format.reference
        assert quantizer.label.endswith("reference")


@pytest.mark.parametrize("name", MATRIX)
def test_every_slot_gets_an_object_of_its_own(name):
    role = QuantizerRole("linear", "weight", "a")
    one, other = _factory(name)(role), _factory(name)(role)
    assert one is not other
    assert one == other


def test_all_are_entry_points_named_without_factory():
    ours = {e.name for e in list_factories() if e.package.startswith("qrole ")}
    assert {f"{name}_factory" for name in ours - NOT_IN_THE_MATRIX} == set(MATRIX)
    assert ours >= NOT_IN_THE_MATRIX


@pytest.mark.parametrize("entry", [e.name for e in list_factories() if e.package[:6] == "qrole "])
def test_entry_points_load(entry):
    factory = load_factory(entry)
    assert factory.qualname.endswith(f".{entry}_factory")
    assert factory.doc.endswith(".")
    assert factory.function(None) is not None
