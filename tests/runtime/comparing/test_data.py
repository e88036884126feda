"""Where inputs come from, and inputs that do not fit the model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from qrole.comparing import DataOptions, compare
from qrole.comparing.data import load_data
from qrole.errors import UsageError, UserCodeError
from qrole.loading import LoadedModel


class _Speech(nn.Linear):
    main_input_name = "input_features"


@pytest.fixture
def speech(tmp_path: Path) -> LoadedModel:
    (tmp_path / "tokenizer.json").write_text("{}")
    return LoadedModel("speech", "huggingface", module=_Speech(4, 4), directory=tmp_path)


def test_a_tokenizer_does_not_make_a_speech_model_read_text(speech: LoadedModel) -> None:
    with pytest.raises(UsageError, match="there is no input data for speech"):
        load_data(speech, DataOptions())


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", "Some words."), ("a.jsonl", '{"text": "Some words."}')]
)
def test_text_for_a_speech_model(
    speech: LoadedModel, tmp_path: Path, name: str, content: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(UsageError, match="reads input_features, which text does not give"):
        load_data(speech, DataOptions(file))


def test_inputs_that_the_forward_does_not_take() -> None:
    wide = torch.zeros(32, 5)
    model = LoadedModel("m", "python", module=nn.Linear(32, 32), example_inputs=lambda: (wide,))
    with pytest.raises(UserCodeError, match="forward pass of Linear raised") as caught:
        compare(model, "mxfp8")
    assert "forward(input)" in str(caught.value)


def test_samples_are_no_longer_than_the_model_has_positions(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"input_ids": list(range(100))}))
    module = nn.Linear(4, 4)
    module.config = SimpleNamespace(max_position_embeddings=24)  # type: ignore[assignment]
    model = LoadedModel("m", "huggingface", module=module, directory=tmp_path)
    (batch,) = load_data(model, DataOptions(file, seq_len=64)).batches
    assert isinstance(batch, dict)
    assert batch["input_ids"].tolist() == [list(range(24))]
