"""Which role every slot has, who is named how, and how often the factory is asked."""

from __future__ import annotations

import re

import pytest
import torch

import qrole.modules as M
from qrole.autocasting import autocast
from qrole.dtypes import DType
from qrole.factories import builtin, zoo
from qrole.modules import ops
from qrole.quantizers import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from qrole.recipes import CustomRecipe
from qrole.roles import QuantizerRole
from qrole.state import BareRolesWarning
from tests.runtime.modules.training import BF16, noise


def _roles(module) -> tuple[list[str], list[str]]:
    """Roles of both directions as `module_type/tensor_type/name`, `-` for None."""
    listed = []
    for fwd, facts in zip((True, False), module.slot_facts, strict=True):
        roles = module.get_quantizer_roles(fwd=fwd, num_quantizers=len(facts))
        listed.append([_text(role) for role in roles])
    return listed[0], listed[1]


def _text(role) -> str:
    return "-" if role is None else f"{role.module_type}/{role.tensor_type}/{role.name}"


class TestLayout:
    """The slots of each module in order, as TransformerEngine lays them out."""

    @pytest.mark.parametrize("kind", [M.Linear, M.LayerNormLinear])
    def test_linear(self, kind):
        assert _roles(kind(16, 16, name="n")) == (
            ["linear/input/n", "linear/weight/n", "-"],
            ["linear/grad_output/n", "-"],
        )

    def test_layernorm_mlp_labels_inner_tensors_by_their_reader(self):
        assert _roles(M.LayerNormMLP(16, 16, name="n")) == (
            [
                "linear/input/n.fc1",
                "linear/weight/n.fc1",
                "linear/input/n.fc2",
                "linear/input/n.fc2",
                "linear/weight/n.fc2",
                "-",
            ],
            [
                "linear/grad_output/n.fc1",
                "-",
                "linear/grad_output/n.fc2",
                "linear/grad_output/n.fc1",
            ],
        )

    def test_layernorm_mlp_with_an_empty_name(self):
        forward, _ = _roles(M.LayerNormMLP(16, 16, name=""))
        assert forward[0] == "linear/input/fc1"

    def test_grouped_linear_repeats_for_every_expert(self):
        one = ["grouped_linear/input/n", "grouped_linear/weight/n", "-"]
        back = ["grouped_linear/grad_output/n", "-"]
        assert _roles(M.GroupedLinear(3, 16, 16, name="n")) == (one * 3, back * 3)

    def test_attention_with_hints_at_its_boundaries(self):
        module = M.DotProductAttention(4, 16, name="n")
        assert _roles(module) == (
            ["dpa/qkv/n"] * 3 + ["//n.dpa_output"] * 3 + ["dpa/s/n"] * 3,
            ["//n.dpa_grad_input"] * 2 + ["dpa/do/n"] * 2 + ["dpa/dp/n"] * 2,
        )

    def test_attention_without_a_name_hints_without_a_prefix(self):
        forward, backward = _roles(M.DotProductAttention(4, 16, name=""))
        assert forward[3] == "//dpa_output"
        assert backward[0] == "//dpa_grad_input"

    def test_boundary_roles_take_the_places_of_none_and_hints(self):
        role = QuantizerRole("linear", "input", "next")
        for module, places in (
            (M.Linear(16, 16), {2}),
            (M.LayerNormMLP(16, 16), {5}),
            (M.DotProductAttention(4, 16), {3, 4, 5}),
        ):
            module.output_quantizer_role = role
            forward, _ = _roles(module)
            assert {i for i, text in enumerate(forward) if text == _text(role)} == places

    def test_ops(self):
        linear, grouped = ops.BasicLinear(16, 16), ops.GroupedLinear(2, 16, 16)
        linear.name = "n"
        assert [_text(r) for r in linear.get_quantizer_roles("forward")] == [
            "linear/input/n",
            "linear/weight/n",
        ]
        assert [_text(r) for r in linear.get_quantizer_roles("backward")] == [
            "linear/grad_output/n"
        ]
        pair = ["linear/input/", "linear/weight/"]
        assert [_text(r) for r in grouped.get_quantizer_roles("forward")] == pair * 2
        assert [_text(r) for r in grouped.get_quantizer_roles("backward")] == [
            "linear/grad_output/"
        ] * 2

    @pytest.mark.parametrize(
        "op",
        [ops.Bias(16), ops.GELU(), ops.LayerNorm(16), ops.Dropout(0.1), ops.Reshape([-1])],
        ids=lambda op: type(op).__name__,
    )
    def test_ops_without_slots(self, op):
        assert (op.num_quantizers("forward"), op.num_quantizers("backward")) == (0, 0)
        assert op.quantizer_slots("path") == []

    def test_quantize_has_a_slot_per_direction_it_quantizes_and_no_roles(self):
        for forward, backward in ((True, False), (False, True), (True, True)):
            op = ops.Quantize(forward, backward)
            slots = (op.num_quantizers("forward"), op.num_quantizers("backward"))
            assert slots == (int(forward), int(backward))
            assert op.get_quantizer_roles("forward") is None


class TestNames:
    def test_unnamed_modules_count_up_over_the_whole_process(self):
        names = [
            M.Linear(16, 16).name,
            M.MultiheadAttention(64, 4).name,
            M.TransformerLayer(64, 64, 4, name="given").name,
            M.Linear(16, 16).name,
        ]
        assert names[2] == "given"
        numbers = [int(re.fullmatch(r"Layer_(\d+)", n).group(1)) for n in names if n != "given"]
        # The unnamed attention counts itself and its three children.
        assert numbers[1] == numbers[0] + 1
        assert numbers[2] == numbers[1] + 4

    def test_children_of_a_named_layer(self):
        layer = M.TransformerLayer(64, 64, 4, layer_type="decoder", name="tl")
        names = {path: m.name for path, m in layer.named_modules() if getattr(m, "name", "")}
        assert names == {
            "": "tl",
            "self_attention": "tl.self_attention",
            "self_attention.layernorm_qkv": "tl.self_attention.layernorm_linear_qkv",
            "self_attention.core_attention": "tl.self_attention.core_attention",
            "self_attention.proj": "tl.self_attention.proj",
            "inter_attention": "tl.inter_attention",
            "inter_attention.layernorm_query": "tl.inter_attention.layernorm_linear_q",
            "inter_attention.key_value": "tl.inter_attention.linear_kv",
            "inter_attention.core_attention": "tl.inter_attention.core_attention",
            "inter_attention.proj": "tl.inter_attention.proj",
            "layernorm_mlp": "tl.layernorm_mlp",
        }

    def test_an_unnamed_layer_names_its_children_all_the_same(self):
        layer = M.TransformerLayer(64, 64, 4)
        assert re.fullmatch(r"Layer_\d+\.self_attention\.proj", layer.self_attention.proj.name)

    def test_attention_without_input_norm(self):
        module = M.MultiheadAttention(64, 4, name="a")
        assert module.qkv.name == "a.linear_qkv"
        cross = M.MultiheadAttention(64, 4, attention_type="cross", name="a")
        assert cross.key_value.name == "a.linear_kv"
        assert re.fullmatch(r"Layer_\d+", cross.query_layer.name), "TE passes no name here"

    def test_children_of_an_unnamed_attention_have_names_of_their_own(self):
        module = M.MultiheadAttention(64, 4)
        assert module.qkv.name != module.proj.name
        assert re.fullmatch(r"Layer_\d+", module.proj.name)


class _Recorder:
    """A factory that remembers what it was asked."""

    def __init__(self, make=IdentityQuantizer) -> None:
        self.asked: list[QuantizerRole | None] = []
        self.make = make

    def __call__(self, role):
        self.asked.append(role)
        return self.make()

    @property
    def texts(self) -> list[str]:
        return [_text(role) for role in self.asked]


def _pass(module, recipe, x, *extra):
    with autocast(recipe=recipe):
        y = module(x, *extra)
    y.sum().backward()


class TestCalls:
    """The factory is asked once per slot, forward slots first, and never again."""

    def test_linear_asks_for_all_five_slots(self):
        factory, module = _Recorder(), M.Linear(32, 32, name="n")
        for _ in range(3):
            _pass(module, CustomRecipe(factory), torch.randn(16, 32))
        assert factory.texts == [
            "linear/input/n",
            "linear/weight/n",
            "-",
            "linear/grad_output/n",
            "-",
        ]

    def test_equal_recipes_share_quantizers_and_another_factory_does_not(self):
        module, first, second = M.Linear(32, 32), _Recorder(), _Recorder()
        for factory in (first, first, second):
            _pass(module, CustomRecipe(factory), torch.randn(16, 32))
        assert (len(first.asked), len(second.asked)) == (5, 5)

    def test_grouped_linear_asks_once_per_expert(self):
        factory = _Recorder()
        _pass(
            M.GroupedLinear(3, 32, 32, name="experts"),
            CustomRecipe(factory),
            torch.randn(16, 32),
            [4, 4, 8],
        )
        named = [role for role in factory.asked if role is not None]
        assert len(factory.asked) == 15
        assert {(r.module_type, r.name) for r in named} == {("grouped_linear", "experts")}
        assert {r.tensor_type for r in named} == {"input", "weight", "grad_output"}

    def test_attention_asks_for_all_fifteen_slots_even_without_fp8_dpa(self):
        factory, x = _Recorder(), torch.randn(8, 2, 4, 16, requires_grad=True)
        _pass(M.DotProductAttention(4, 16), CustomRecipe(factory), x, x, x)
        assert len(factory.asked) == 15

    def test_ops_linear_asks_for_three(self):
        factory = _Recorder()
        _pass(ops.Linear(32, 32), CustomRecipe(factory), torch.randn(16, 32))
        assert factory.texts == ["linear/input/", "linear/weight/", "linear/grad_output/"]

    def test_quantize_gets_a_bare_role_and_a_warning(self):
        factory = _Recorder()
        with pytest.warns(BareRolesWarning, match="bare QuantizerRole"):
            _pass(ops.Quantize(), CustomRecipe(factory), torch.randn(4, 32, requires_grad=True))
        assert factory.asked == [QuantizerRole()]


def test_layers_can_be_chosen_by_name():
    """Three transformer layers and four single modules, each layer another format."""

    def factory(role):
        name = "" if role is None else role.name
        if name.startswith("tl1"):
            return MXFP8Quantizer(DType.kFloat8E4M3)
        if name.startswith("tl3"):
            return Float8BlockQuantizer(
                DType.kFloat8E4M3, rowwise=True, columnwise=True, block_scaling_dim=1
            )
        if ".layernorm_mlp" in name:
            return Float8CurrentScalingQuantizer(DType.kFloat8E4M3, device="cuda")
        return builtin.nvfp4_factory(role)

    torch.manual_seed(0)
    options = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "params_dtype": BF16}
    layers = [M.TransformerLayer(64, 128, 4, name=f"tl{i}", **options) for i in range(3)]
    single = [
        M.LayerNormLinear(64, 64, name="tl3.qkv", params_dtype=BF16),
        M.Linear(64, 64, name="tl3.proj", params_dtype=BF16),
        M.LayerNormLinear(64, 128, name="tl3.fc1", params_dtype=BF16),
        M.Linear(128, 64, name="tl3.fc2", params_dtype=BF16),
    ]
    recorder = _Recorder()

    def recording(role):
        recorder.asked.append(role)
        return factory(role)

    x = noise(32, 2, 64, seed=1).requires_grad_()
    with autocast(recipe=CustomRecipe(recording)):
        y = x
        for module in (*layers, *single):
            y = module(y)
    y.backward(noise(*y.shape, seed=2))
    assert x.grad is not None
    named = {role.name for role in recorder.asked if role is not None and role.module_type}
    suffixes = (
        "self_attention.layernorm_linear_qkv",
        "self_attention.proj",
        "layernorm_mlp.fc1",
        "layernorm_mlp.fc2",
    )
    assert named >= {f"tl{i}.{suffix}" for i in range(3) for suffix in suffixes}
    assert named >= {"tl3.qkv", "tl3.proj", "tl3.fc1", "tl3.fc2"}
    types = {role.module_type for role in recorder.asked if role is not None}
    assert types == {"linear", "dpa", ""}

    def input_class(module, index=0):
        return type(module.quantizers["scaling_fwd"][index])

    assert input_class(layers[0].self_attention.proj) is NVFP4Quantizer
    assert input_class(layers[0].layernorm_mlp, 3) is Float8CurrentScalingQuantizer
    assert input_class(layers[1].self_attention.layernorm_qkv) is MXFP8Quantizer
    assert input_class(layers[1].layernorm_mlp) is MXFP8Quantizer
    assert all(input_class(module) is Float8BlockQuantizer for module in single)


NONE = dict.fromkeys(("qkv output", "proj grad", "dpa output", "dpa grad"), "-")
ALL = {
    "qkv output": "dpa/qkv/a.core_attention",
    "proj grad": "dpa/do/a.core_attention",
    "dpa output": "linear/input/a.proj",
    "dpa grad": "linear/grad_output/a.layernorm_linear_qkv",
}


class TestBoundaries:
    """The roles that multi-head attention gives the tensors between its children."""

    def _attention(self, recipe, *, kind="self", rotary=False, norm=True):
        torch.manual_seed(0)
        module = M.MultiheadAttention(
            64,
            4,
            attention_dropout=0.0,
            attention_type=kind,
            input_layernorm=norm,
            params_dtype=BF16,
            name="a",
        )
        x = noise(32, 2, 64, seed=1).requires_grad_()
        options = {"encoder_output": x} if kind == "cross" else {}
        if rotary:
            options["rotary_pos_emb"] = M.RotaryPositionEmbedding(16)(32)
        with autocast(recipe=recipe):
            y = module(x, **options)
        y.backward(noise(*y.shape, seed=2))
        return module

    def _wired(self, module) -> dict[str, str]:
        first = module.first_projection
        return {
            "qkv output": _text(first.output_quantizer_role),
            "proj grad": _text(module.proj.grad_input_quantizer_role),
            "dpa output": _text(module.core_attention.output_quantizer_role),
            "dpa grad": _text(module.core_attention.grad_input_quantizer_role),
        }

    def test_custom_recipe_with_fp8_mha_wires_all_four(self):
        recipe = CustomRecipe(builtin.delayed_scaling_factory, fp8_dpa=True, fp8_mha=True)
        assert self._wired(self._attention(recipe)) == ALL

    @pytest.mark.parametrize("factory", [builtin.current_scaling_factory, builtin.mxfp8_factory])
    def test_roles_stay_where_the_format_then_rules_the_tensor_out(self, factory):
        recipe = CustomRecipe(factory, fp8_dpa=True, fp8_mha=True)
        assert self._wired(self._attention(recipe)) == ALL

    def test_rotary_embedding_keeps_queries_in_high_precision(self):
        recipe = CustomRecipe(builtin.delayed_scaling_factory, fp8_dpa=True, fp8_mha=True)
        assert self._wired(self._attention(recipe, rotary=True)) == {**ALL, "qkv output": "-"}

    def test_cross_attention_names_the_query_projection(self):
        recipe = CustomRecipe(builtin.delayed_scaling_factory, fp8_dpa=True, fp8_mha=True)
        module = self._attention(recipe, kind="cross")
        expected = {**ALL, "dpa grad": "linear/grad_output/a.layernorm_linear_q"}
        assert self._wired(module) == expected
        assert _text(module.key_value.output_quantizer_role) == ALL["qkv output"]

    def test_custom_recipe_with_fp8_dpa_alone_wires_nothing(self):
        recipe = CustomRecipe(zoo.nvfp4_linear_fp8_dpa_factory, fp8_dpa=True)
        assert self._wired(self._attention(recipe)) == NONE

    @pytest.mark.parametrize(
        ("name", "options", "wired"),
        [
            ("DelayedScaling", {}, ()),
            ("DelayedScaling", {"fp8_dpa": True}, ("proj grad", "dpa output", "dpa grad")),
            ("DelayedScaling", {"fp8_dpa": True, "fp8_mha": True}, tuple(ALL)),
            ("Float8CurrentScaling", {"fp8_dpa": True}, ("dpa output", "dpa grad")),
            (
                "Float8CurrentScaling",
                {"fp8_dpa": True, "fp8_mha": True},
                ("dpa output", "dpa grad"),
            ),
            ("MXFP8BlockScaling", {"fp8_dpa": True, "fp8_mha": True}, ()),
            ("NVFP4BlockScaling", {}, ()),
        ],
    )
    def test_built_in_recipes(self, name, options, wired):
        import qrole.recipes

        module = self._attention(getattr(qrole.recipes, name)(**options))
        assert self._wired(module) == {
            key: role if key in wired else "-" for key, role in ALL.items()
        }

    def test_roles_are_taken_back_outside_autocast(self):
        recipe = CustomRecipe(builtin.delayed_scaling_factory, fp8_dpa=True, fp8_mha=True)
        module = self._attention(recipe)
        module(noise(32, 2, 64, seed=1))
        assert self._wired(module) == NONE

    def test_the_mixed_factory_breaks_under_fp8_mha(self):
        """O then bears the role of proj's input, for which the factory returns NVFP4."""
        recipe = CustomRecipe(zoo.nvfp4_linear_fp8_dpa_factory, fp8_dpa=True, fp8_mha=True)
        with pytest.raises(TypeError, match="O quantizer is NVFP4Quantizer"):
            self._attention(recipe)
