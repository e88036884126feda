"""Comparing attention of transformers, asked for by `--attention`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from qrole.api import compare
from qrole.dtypes import DType
from qrole.errors import NothingMatchedError, OperandError
from qrole.quantizers import Float8CurrentScalingQuantizer, IdentityQuantizer
from qrole.roles import QuantizerRole

READ = {"qkv", "s", "o", "do", "dp", "dqkv"}


def _llama(attention: str, dropout: float = 0.0) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        attention_dropout=dropout,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()


def _ids(rows: int = 2) -> Tensor:
    return torch.randint(96, (rows, 64), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_slot_is_measured(attention: str, padded: bool) -> None:
    batch = {"input_ids": _ids()}
    if padded:
        batch["attention_mask"] = (torch.arange(64) >= torch.tensor([[0], [10]])).long()
    report = compare(_llama(attention), "current_scaling", data=[batch], attention=True)
    (found,) = report.candidates
    assert found.not_computed == {}
    for i in range(2):
        module = f"model.layers.{i}.self_attn"
        slots = {s.operand: s for s in found.slots if s.module == module}
        assert slots.keys() == READ
        assert all(s.sqnr_db is not None and s.sqnr_db > 20 for s in slots.values())
        (layer,) = [x for x in found.layers if x.module == module]
        assert (layer.group, layer.rerouted) == ("attention", 0)
        assert layer.sqnr_db is not None
        assert layer.sqnr_db > 20
    assert not any(gemm.group == "attention" for gemm in found.gemms)


def test_both_implementations_are_measured_alike() -> None:
    reports = [
        compare(_llama(name), "mxfp8", data=[{"input_ids": _ids()}], attention=True)
        for name in ("sdpa", "eager")
    ]
    one, other = (
        {(s.slot, s.usage): s.sqnr_db for s in report.candidates[0].slots} for report in reports
    )
    assert one.keys() == other.keys()
    assert all(one[key] == pytest.approx(other[key], abs=0.2) for key in one)


def test_attention_is_left_alone_unless_asked_for() -> None:
    report = compare(_llama("sdpa"), "mxfp8", data=[{"input_ids": _ids()}])
    assert not {s.operand for s in report.candidates[0].slots} & READ


def test_training_with_dropout() -> None:
    """Runs in training mode, where attention drops weights."""
    report = compare(
        _llama("sdpa", dropout=0.1),
        "current_scaling",
        data=[{"input_ids": _ids(), "labels": _ids()}],
        loss=lambda out, batch: out.loss,
        attention=True,
        steps=3,
    )
    reference, trained = report.training
    assert trained.losses != reference.losses
    assert trained.losses == pytest.approx(reference.losses, rel=0.02)


def test_one_role_at_a_time() -> None:
    report = compare(
        _llama("eager"),
        "current_scaling",
        data=[{"input_ids": _ids()}],
        attention=True,
        one_at_a_time="role",
    )
    (groups,) = report.sensitivity.values()
    found = {group.group: group.rel_err for group in groups}
    assert {"dpa/qkv", "dpa/s", "dpa/do", "dpa/dp", "linear/weight"} <= found.keys()
    assert all(found[name] > 0 for name in ("dpa/qkv", "dpa/s"))
    assert found["dpa/dp"] == 0  # Nothing of it reaches the output.


def test_formats_that_attention_cannot_use() -> None:
    with pytest.raises(OperandError, match="QKV quantizer is NVFP4Quantizer"):
        compare(_llama("sdpa"), "nvfp4", data=[{"input_ids": _ids()}], attention=True)


def test_models_without_attention() -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    with pytest.raises(NothingMatchedError, match="no module of Sequential is known to compute"):
        compare(model, "mxfp8", data=[(torch.ones(4, 32),)], attention=True)


def test_on_the_command_line(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "from tests.models.test_attention_compare import _ids, _llama\n"
        "def build():\n    return _llama('sdpa')\n"
        "def example_inputs():\n    return {'input_ids': _ids()}\n"
    )
    found = cli(
        "compare", tmp_path / "model.py", "-f", "nvfp4_linear_fp8_dpa", "--attention", "--json"
    )
    assert found.code == 0, found.err
    (candidate,) = json.loads(found.out)["candidates"]
    assert {s["operand"] for s in candidate["slots"]} >= READ


def _rounded(*tensors: Tensor) -> list[Tensor]:
    scale = 448.0 / max(x.abs().max() for x in tensors)
    return [(x * scale).to(torch.float8_e4m3fn).float() / scale for x in tensors]


def _oracle(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """FP8 attention in plain torch, causal."""
    q, k, v = _rounded(q, k, v)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    later = torch.ones(q.shape[2], q.shape[2]).triu(1).bool()
    logits = (q @ k.mT * options["scale"]).masked_fill(later, -math.inf)
    (weights,) = _rounded(logits.softmax(-1))
    return _rounded(weights @ v)[0]


@pytest.mark.slow
def test_smollm2_against_an_oracle(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def attention_alone(role: QuantizerRole) -> Any:
        if role.module_type == "dpa" or "dpa_" in role.name:
            return Float8CurrentScalingQuantizer(DType.kFloat8E4M3, device="cpu")
        return IdentityQuantizer()

    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    text = topics["assignment"] + topics["with"]
    ids = AutoTokenizer.from_pretrained(smollm2)(text, return_tensors="pt").input_ids[:, :512]
    with torch.no_grad():
        plain = model(ids).logits
        with monkeypatch.context() as patched:
            patched.setattr(F, "scaled_dot_product_attention", _oracle)
            rounded = model(ids).logits
    report = compare(
        model, attention_alone, data=[{"input_ids": ids}], attention=True, backward=False
    )
    (found,) = report.candidates
    assert found.not_computed == {}
    expected = float((rounded - plain).norm() / plain.norm())
    assert found.model.rel_err == pytest.approx(expected, rel=0.1)
    logs = [x[0].log_softmax(-1) for x in (plain, rounded)]
    kl = float(F.kl_div(logs[1], logs[0], reduction="batchmean", log_target=True))
    assert found.model.kl == pytest.approx(kl, rel=0.1)
