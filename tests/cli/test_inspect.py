"""`qrole inspect` as a user runs it: sample models, a real one, and bad input."""

from __future__ import annotations

import json
import struct

import pytest


def test_mlp_shows_every_slot_with_its_role(cli, samples):
    result = cli("inspect", samples / "mlp.py")
    assert result.code == 0
    assert "6 slots in 2 modules, 9,866 parameters" in result.out
    for line in ("fwd 0 linear/input", "fwd 1 linear/weight", "bwd 0 linear/grad_output"):
        assert line in result.out


def test_factory_answers_are_shown_for_both_representations(cli, samples):
    result = cli("inspect", samples / "mlp.py", "-f", "nvfp4")
    assert result.code == 0
    assert "NVFP4 16x16" in result.out
    assert "NVFP4 RHT SR" in result.out
    assert "wgrad NVFP4 RHT SR x NVFP4 RHT       100.0%" in result.out


def test_equal_layers_fold_and_unfold(cli, samples):
    folded = cli("inspect", samples / "llama_tiny.py")
    unfolded = cli("inspect", samples / "llama_tiny.py", "--no-fold")
    assert "layers.0-3.self_attn.q_proj" in folded.out
    assert "layers.3.self_attn.q_proj" in unfolded.out
    assert "layers.0-3" not in unfolded.out


def test_tied_head_is_named(cli, samples):
    result = cli("inspect", samples / "llama_tiny.py")
    assert "tied: embed_tokens.weight = lm_head.weight" in result.out


def test_fused_experts_are_grouped_linear_with_their_number(cli, samples):
    payload = json.loads(cli("inspect", samples / "moe_tiny.py", "--json").out)
    experts = [s for s in payload["slots"] if s["group"] == "gate_up_proj"]
    assert {s["copies"] for s in experts} == {8}
    assert {s["role"]["module_type"] for s in experts} == {"grouped_linear"}


def test_vision_transformer_names_what_is_not_covered(cli, samples):
    result = cli("inspect", samples / "vit_tiny.py")
    assert "not covered: convolution: no emitter covers it: 18,432 parameters" in result.out
    assert "linear/weight in_proj" in result.out


def test_real_encoder_covers_every_linear_layer(cli, minilm):
    payload = json.loads(cli("inspect", minilm, "-f", "mxfp8", "--json").out)
    assert payload["schema"] == "qrole.inspect/1"
    assert len(payload["slots"]) == 3 * (6 * 6 + 1)
    covered = sum(t["numel"] for t in payload["totals"]["formats"])
    assert covered == payload["parameters"] == 22_713_216


def test_every_parameter_is_accounted_for_once(cli, samples):
    for model in ("mlp", "llama_tiny", "moe_tiny", "vit_tiny"):
        payload = json.loads(cli("inspect", samples / f"{model}.py", "-f", "mxfp8", "--json").out)
        counted = sum(total["numel"] for total in payload["totals"]["formats"])
        assert counted == payload["parameters"], model


def test_attention_slots_on_request(cli, minilm):
    payload = json.loads(cli("inspect", minilm, "--attention", "--json").out)
    attention = [s for s in payload["slots"] if s["group"] == "attention"]
    assert len(attention) == 6 * 15
    assert sum(s["consumed"] for s in attention) == 6 * 6


@pytest.mark.parametrize("fmt", ["csv", "markdown"])
def test_other_formats_hold_every_column(cli, samples, fmt):
    result = cli("inspect", samples / "mlp.py", "--format", fmt)
    header = result.out.splitlines()[0]
    for column in ("module", "class", "TE name", "slot", "role", "shape", "read by"):
        assert column in header


def test_module_filter_says_what_it_left_out(cli, samples):
    result = cli("inspect", samples / "llama_tiny.py", "--module", "lm_head")
    assert result.code == 0
    assert "not shown: 84 slots" in result.err


def test_missing_file(cli):
    result = cli("inspect", "nothing_here.py")
    assert result.code == 2
    assert "there is no file 'nothing_here.py'" in result.err


def test_python_file_without_a_model(cli, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    result = cli("inspect", tmp_path / "empty.py")
    assert result.code == 2
    assert "defines no model" in result.err
    assert "build() or build_model()" in result.err


def test_exception_in_the_users_file_shows_its_own_line(cli, tmp_path):
    (tmp_path / "broken.py").write_text("def build():\n    return missing_name\n")
    result = cli("inspect", tmp_path / "broken.py")
    assert result.code == 2
    assert 'broken.py", line 2, in build' in result.err
    assert "user_code.py" not in result.err
    assert "name 'missing_name' is not defined" in result.err


def test_syntax_error_in_the_users_file(cli, tmp_path):
    (tmp_path / "syntax.py").write_text("def build(:\n")
    result = cli("inspect", tmp_path / "syntax.py")
    assert result.code == 2
    assert "SyntaxError" in result.err


def test_unknown_factory_names_the_nearest(cli, samples):
    result = cli("inspect", samples / "mlp.py", "-f", "nvfp5")
    assert result.code == 2
    assert "did you mean 'nvfp4'" in result.err


def test_factory_that_raises(cli, samples, tmp_path):
    (tmp_path / "f.py").write_text("def f(role):\n    return role.tensor_typo\n")
    result = cli("inspect", samples / "mlp.py", "-f", f"{tmp_path / 'f.py'}:f")
    assert result.code == 2
    assert "raised AttributeError for slot 0:forward[0]" in result.err
    assert 'f.py", line 2, in f' in result.err


def test_factory_that_returns_none(cli, samples, tmp_path):
    (tmp_path / "g.py").write_text("def g(role):\n    pass\n")
    result = cli("inspect", samples / "mlp.py", "-f", f"{tmp_path / 'g.py'}:g")
    assert result.code == 2
    assert "returned None for slot" in result.err
    assert "IdentityQuantizer()" in result.err


def test_factory_that_returns_a_class(cli, samples, tmp_path):
    (tmp_path / "h.py").write_text("def h(role):\n    return int\n")
    result = cli("inspect", samples / "mlp.py", "-f", f"{tmp_path / 'h.py'}:h")
    assert result.code == 2
    assert "expected: an instance of qrole.Quantizer" in result.err


def test_nothing_matched_is_exit_5(cli, tmp_path):
    (tmp_path / "conv.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Conv2d(3, 8, 3)\n"
    )
    result = cli("inspect", tmp_path / "conv.py")
    assert result.code == 5
    assert "convolution: no emitter covers it (216)" in result.err


def test_truncated_safetensors(cli, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 1000) + b"{}")
    result = cli("inspect", tmp_path / "model.safetensors")
    assert result.code == 4
    assert "model.safetensors" in result.err


def test_unknown_command_suggests(cli):
    result = cli("inspekt")
    assert result.code == 2
    assert "inspect" in result.err


def test_what_the_users_file_prints_is_no_data(cli, tmp_path):
    (tmp_path / "talks.py").write_text(
        "from torch import nn\nprint('hello')\nmodel = nn.Linear(4, 4)\n"
    )
    result = cli("inspect", tmp_path / "talks.py", "--json")
    assert json.loads(result.out)["schema"] == "qrole.inspect/1"
    assert result.err.startswith("hello")
    assert cli("inspect", "--help").out


@pytest.mark.parametrize(
    ("module", "held"),
    [
        ("nn.Sequential()", "no parameter"),
        ("nn.Conv2d(3, 3, 3)", "convolution: no emitter covers it (81); bias (3)"),
    ],
)
def test_model_without_a_slot_says_what_it_holds(cli, tmp_path, module, held):
    (tmp_path / "other.py").write_text(f"from torch import nn\nmodel = {module}\n")
    result = cli("inspect", tmp_path / "other.py")
    assert result.code == 5
    assert f"has no module that emits a role; it holds {held}\n" in result.err
