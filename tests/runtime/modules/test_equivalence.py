"""A factory that mirrors a built-in recipe trains like it, bit for bit."""

from __future__ import annotations

import pytest
import torch

from qrole.dtypes import DType
from qrole.factories import builtin, zoo
from qrole.modules import GroupedLinear, Linear
from qrole.quantizers import (
    Float8CurrentScalingQuantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from qrole.recipes import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from tests.runtime.modules.training import (
    BF16,
    KINDS,
    TOKENS,
    WIDTH,
    assert_same,
    build,
    differs,
    noise,
    step,
    train,
)

MIRRORS = {
    "delayed_scaling": (builtin.delayed_scaling_factory, DelayedScaling),
    "current_scaling": (builtin.current_scaling_factory, Float8CurrentScaling),
    "mxfp8": (builtin.mxfp8_factory, MXFP8BlockScaling),
    "float8_block_scaling": (builtin.float8_block_scaling_factory, Float8BlockScaling),
    "nvfp4": (builtin.nvfp4_factory, NVFP4BlockScaling),
}
kinds = pytest.mark.parametrize("kind", KINDS)
mirrors = pytest.mark.parametrize("format_name", MIRRORS)


@kinds
@mirrors
def test_mirror_factory_equals_the_built_in_recipe(kind, format_name):
    factory, recipe = MIRRORS[format_name]
    given, expected = train(kind, CustomRecipe(factory)), train(kind, recipe())
    assert_same(given, expected)
    plain = train(kind, None)[0]
    assert differs(given[0], plain) >= {"output", "input gradient"}, "nothing was quantized"


@kinds
def test_high_precision_factory_equals_no_autocast(kind):
    recipe = CustomRecipe(builtin.high_precision_factory)
    assert_same(train(kind, recipe, steps=2), train(kind, None, steps=2))


def test_nvfp4_gradients_are_rounded_stochastically_and_repeatably():
    recipe = NVFP4BlockScaling()
    module, x = build("Linear"), noise(TOKENS, WIDTH, seed=1)
    dy = noise(TOKENS, 2 * WIDTH, seed=2)
    first, again = (step(module, recipe, x=x, dy=dy, seed=3) for _ in range(2))
    other = step(module, recipe, x=x, dy=dy, seed=4)
    assert_same([again], [first])
    assert differs(first, other) == {"input gradient", "weight"}


def _stressed() -> torch.Tensor:
    """An output gradient whose columns are 1e8 and 1e-8 in turn, times noise."""
    scale = torch.where(torch.arange(2 * WIDTH) % 2 == 0, 1e8, 1e-8)
    return (noise(TOKENS, 2 * WIDTH, seed=5, dtype=torch.float32) * scale).to(BF16)


def _e5m2_for_gradients(role):
    """Keys the format on the tensor type alone; a boundary slot, role None, gets E4M3."""
    gradient = role is not None and role.tensor_type == "grad_output"
    dtype = DType.kFloat8E5M2 if gradient else DType.kFloat8E4M3
    return Float8CurrentScalingQuantizer(dtype, device="cuda")


def test_current_scaling_under_gradients_of_huge_range():
    x = noise(TOKENS, WIDTH, seed=6)
    custom, built_in = build("Linear"), build("Linear")
    given = step(custom, CustomRecipe(_e5m2_for_gradients), x=x, dy=_stressed())
    expected = step(built_in, Float8CurrentScaling(), x=x, dy=_stressed())
    assert_same([given], [expected])
    assert given["input gradient"].isfinite().all()

    def dtypes(module):
        return {key: [q.dtype.name[-4:] for q in qs] for key, qs in module.quantizers.items()}

    forward = ["E4M3", "E4M3", "E4M3"]
    assert dtypes(built_in) == {"scaling_fwd": forward, "scaling_bwd": ["E5M2", "E5M2"]}
    assert dtypes(custom) == {"scaling_fwd": forward, "scaling_bwd": ["E5M2", "E4M3"]}


def test_grouped_current_scaling_under_gradients_of_huge_range():
    def run(recipe):
        torch.manual_seed(0)
        module = GroupedLinear(3, WIDTH, 2 * WIDTH, params_dtype=BF16, name="experts")
        return step(
            module,
            recipe,
            x=noise(TOKENS, WIDTH, seed=6),
            dy=_stressed(),
            extra=([16, 16, 32],),
        )

    assert_same([run(CustomRecipe(_e5m2_for_gradients))], [run(Float8CurrentScaling())])


def _mx(**options):
    return MXFP8Quantizer(DType.kFloat8E4M3, **options)


def _hybrid_of(make):
    """Wraps what a factory returns into a hybrid of two equal quantizers."""

    def factory(role):
        return HybridQuantizer(rowwise_quantizer=make(role), columnwise_quantizer=make(role))

    return factory


def _nvfp4_without_chance(role):
    return NVFP4Quantizer(with_2d_quantization=role is not None and role.tensor_type == "weight")


VANILLA = {
    "mxfp8": builtin.mxfp8_factory,
    "current_scaling": builtin.current_scaling_factory,
    "float8_block_scaling": builtin.float8_block_scaling_factory,
    "nvfp4": _nvfp4_without_chance,
    "identity": builtin.high_precision_factory,
}


@pytest.mark.parametrize("kind", ["Linear", "LayerNormMLP", "GroupedLinear"])
@pytest.mark.parametrize("format_name", VANILLA)
def test_hybrid_of_equal_formats_equals_the_plain_quantizer(kind, format_name):
    factory = VANILLA[format_name]
    assert_same(train(kind, CustomRecipe(_hybrid_of(factory))), train(kind, CustomRecipe(factory)))


HIGH_PRECISION_BACKWARD = {
    "mxfp8": (
        zoo.mxfp8_fwd_high_precision_bwd_factory,
        lambda: MXFP8BlockScaling(backward_override="dequantized"),
    ),
    "nvfp4 row-scaled": (
        zoo.nvfp4_row_scaled_fwd_high_precision_bwd_factory,
        lambda: NVFP4BlockScaling(
            disable_rht=True,
            disable_stochastic_rounding=True,
            disable_2d_quantization=True,
            row_scaled_activation=True,
            backward_override="dequantized",
        ),
    ),
}


@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "GroupedLinear", "ops.Linear"])
@pytest.mark.parametrize("name", HIGH_PRECISION_BACKWARD)
def test_high_precision_backward_factories_equal_a_dequantized_override(kind, name):
    factory, recipe = HIGH_PRECISION_BACKWARD[name]
    assert_same(train(kind, CustomRecipe(factory)), train(kind, recipe()))


def test_overrides_read_what_they_say():
    """High precision: the unquantized operands; dequantized: what fprop's operands stand for."""
    x, dy = noise(TOKENS, WIDTH, seed=1), noise(TOKENS, 2 * WIDTH, seed=2)
    results = {
        override: step(build("Linear"), MXFP8BlockScaling(backward_override=override), x=x, dy=dy)
        for override in (None, "high_precision", "dequantized")
    }
    module = build("Linear")
    quantizer = _mx()
    weight = module.weight.detach()
    x_hat, w_hat = (quantizer(t).dequantize(direction="rowwise") for t in (x, weight))
    expected = {"high_precision": (x, weight), "dequantized": (x_hat, w_hat)}
    for override, (a, b) in expected.items():
        assert torch.equal(results[override]["input gradient"], dy @ b)
        assert torch.equal(results[override]["weight"], dy.t() @ a)
        assert torch.equal(results[override]["output"], results[None]["output"])
    assert not torch.equal(results[None]["weight"], results["dequantized"]["weight"])


@pytest.mark.parametrize("name", sorted(n for n in zoo.__all__ if "dpa" not in n))
@pytest.mark.parametrize("kind", ["Linear", "GroupedLinear", "LayerNormMLP"])
def test_mixed_factories_train(kind, name):
    results = train(kind, CustomRecipe(getattr(zoo, name)))[0]
    plain = train(kind, None)[0]
    for tensor, value in results.tensors.items():
        assert value.isfinite().all(), tensor
        exact = plain[tensor].float()
        assert (value.float() - exact).norm() <= 0.5 * exact.norm(), f"{tensor} is far off"


def test_gradient_of_the_bias_is_that_of_the_unquantized_gradient():
    dy = noise(TOKENS, 2 * WIDTH, seed=2)
    for recipe in (NVFP4BlockScaling(), Float8CurrentScaling(), MXFP8BlockScaling()):
        results = step(build("Linear"), recipe, x=noise(TOKENS, WIDTH, seed=1), dy=dy)
        assert torch.equal(results["bias"], dy.sum(0))


def test_operands_that_cannot_meet_are_refused():
    def factory(role):
        weight = role is not None and role.tensor_type == "weight"
        return IdentityQuantizer() if weight else _mx()

    from qrole.errors import OperandError

    module = Linear(WIDTH, WIDTH, params_dtype=BF16)
    with pytest.raises(OperandError, match="mxfp8 does not multiply with high_precision"):
        step(module, CustomRecipe(factory), x=noise(TOKENS, WIDTH, seed=1))
