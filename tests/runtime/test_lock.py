"""Lock files: text that is equal wherever it is made."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from qrole import (
    DelayedScalingRequest,
    Float8CurrentScalingQuantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    QuantizerRole,
)
from qrole.api import plan
from qrole.dtypes import DType
from qrole.errors import CheckpointError, FactoryError, UsageError
from qrole.lock import answer_text, lock_entries, lock_text, natural_key, read_lock, write_lock
from qrole.plans import build_plan
from qrole.plugins import Factory
from qrole.recipes import Format
from tests.audit.building import fused_experts, one_layer, tree

LITERAL = """\
# Which quantizer every slot gets: written by `qrole lock`, compared by `--check`.
version = 1

[slots]
"fc:forward[0]" = "NVFP4Quantizer(with_rht=True, with_post_rht_amax=True) for linear/input"
"fc:forward[1]" = "NVFP4Quantizer(with_2d_quantization=True) for linear/weight"
"fc:backward[0]" = "NVFP4Quantizer(with_rht=True, with_post_rht_amax=True, \
stochastic_rounding=True) for linear/grad_output"
"""


def test_a_lock_file_literally() -> None:
    assert lock_text(plan(one_layer(), "nvfp4")) == LITERAL


def custom(history: Any) -> Any:
    return history.max()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (IdentityQuantizer(), "IdentityQuantizer()"),
        (MXFP8Quantizer(DType.kFloat8E5M2), "MXFP8Quantizer(fp8_dtype=kFloat8E5M2)"),
        (
            Float8CurrentScalingQuantizer(DType.kFloat8E4M3, device="cpu", amax_epsilon=0.5),
            "Float8CurrentScalingQuantizer(fp8_dtype=kFloat8E4M3, amax_epsilon=0.5)",
        ),
        (
            HybridQuantizer(
                rowwise_quantizer=MXFP8Quantizer(DType.kFloat8E4M3),
                columnwise_quantizer=NVFP4Quantizer(stochastic_rounding=True),
                columnwise_source="rowwise_dequantized",
            ),
            "HybridQuantizer(rowwise_quantizer=MXFP8Quantizer(fp8_dtype=kFloat8E4M3), "
            "columnwise_quantizer=NVFP4Quantizer(stochastic_rounding=True), "
            "columnwise_source='rowwise_dequantized')",
        ),
        (
            DelayedScalingRequest(fp8_format=Format.E4M3, amax_history_len=16),
            "DelayedScalingRequest(fp8_format=E4M3, amax_history_len=16)",
        ),
        (
            DelayedScalingRequest(amax_compute_algo=custom),
            f"DelayedScalingRequest(fp8_format=HYBRID, amax_compute_algo={__name__}.custom)",
        ),
    ],
)
def test_answers_as_text(answer: Any, text: str) -> None:
    assert answer_text(answer) == text


def test_experts_with_equal_and_with_different_answers() -> None:
    assert lock_entries(plan(fused_experts(), "mxfp8"))["mlp.experts:forward[0]"] == (
        "4 x MXFP8Quantizer(fp8_dtype=kFloat8E4M3) for grouped_linear/input"
    )
    calls = iter(range(1000))

    def counting(role: QuantizerRole) -> Any:
        return IdentityQuantizer() if next(calls) % 12 == 3 else MXFP8Quantizer(7)

    entries = lock_entries(plan(fused_experts(), counting))
    assert any("1 x IdentityQuantizer(), 3 x MXFP8" in text for text in entries.values())


def test_layers_are_in_natural_order_and_forward_first() -> None:
    model = tree(**{f"layers__{i}__fc": (32, 32) for i in (10, 2, 1)})
    keys = list(lock_entries(plan(model, "mxfp8")))
    assert keys[:4] == [
        "layers.1.fc:forward[0]",
        "layers.1.fc:forward[1]",
        "layers.1.fc:backward[0]",
        "layers.2.fc:forward[0]",
    ]
    assert keys[-1] == "layers.10.fc:backward[0]"


def test_natural_key_orders_any_shuffle() -> None:
    names = [f"a.{i}.b" for i in range(30)] + ["a.b", "a", "b.1"]
    expected = sorted(names, key=natural_key)
    shuffled = random.Random(0).sample(names, len(names))
    assert sorted(shuffled, key=natural_key) == expected


def test_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "qrole.lock"
    write_lock(plan(one_layer(), "nvfp4"), path)
    assert read_lock(path) == lock_entries(plan(one_layer(), "nvfp4"))
    assert tomllib.loads(path.read_text())["version"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["qrole.lock"]


def test_names_that_toml_must_escape(tmp_path: Path) -> None:
    model = tree(fc=(32, 32))
    model.add_module('we"ird ü', model.fc)
    del model.fc
    path = tmp_path / "qrole.lock"
    write_lock(plan(model, "mxfp8"), path)
    assert 'we"ird ü:forward[0]' in read_lock(path)


def test_the_same_text_in_another_process() -> None:
    program = (
        "import sys; from tests.audit.building import one_layer; from qrole.api import plan; "
        "from qrole.lock import lock_text; sys.stdout.write(lock_text(plan(one_layer(), 'nvfp4')))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert found.stdout == LITERAL


def test_a_plan_with_errors_is_not_locked() -> None:
    inventory = plan(one_layer(), "mxfp8").inventory
    broken = build_plan(inventory, Factory.of(lambda role: None), collect_errors=True)
    with pytest.raises(FactoryError, match="returned None"):
        lock_entries(broken)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("version = 2\n[slots]\n", "version 2"),
        ("[slots]\n", "version None"),
        ("version = 1\n", "version 1"),
        ("version = 1\n[slots]\na = 1\n", "no text"),
        ("not toml", "is no lock file"),
    ],
)
def test_what_is_no_lock_file_is_refused(tmp_path: Path, text: str, given: str) -> None:
    path = tmp_path / "x.lock"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_lock(path)
    assert given in caught.value.given


def test_a_missing_lock_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_lock(tmp_path / "qrole.lock")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_lock(plan(one_layer(), "mxfp8"), tmp_path / "gone" / "qrole.lock")
