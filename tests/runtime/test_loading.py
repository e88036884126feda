"""What can stand for a model, and what is said when it cannot."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from qrole.errors import CheckpointError, UnknownNameError, UsageError, UserCodeError
from qrole.loading import load_model


def test_build_is_called_and_its_neighbours_are_kept(samples):
    loaded = load_model(str(samples / "mlp.py"), weights=True)
    assert loaded.kind == "python"
    assert loaded.example_inputs()[0].shape == (32, 64)
    assert loaded.loss is not None


def test_attribute_after_a_colon(tmp_path):
    path = tmp_path / "two.py"
    path.write_text("from torch import nn\nsmall = nn.Linear(2, 2)\nbig = nn.Linear(4, 4)\n")
    loaded = load_model(f"{path}:big", weights=True)
    assert loaded.module.in_features == 4


def test_unknown_attribute_names_the_nearest(tmp_path):
    path = tmp_path / "named.py"
    path.write_text("from torch import nn\nencoder = nn.Linear(2, 2)\n")
    with pytest.raises(UnknownNameError, match="did you mean 'encoder'"):
        load_model(f"{path}:encodr", weights=True)


def test_build_that_returns_no_module(tmp_path):
    (tmp_path / "wrong.py").write_text("def build():\n    return 3\n")
    with pytest.raises(UsageError, match="gives an object of type int"):
        load_model(str(tmp_path / "wrong.py"), weights=True)


def test_sys_exit_in_the_users_file_does_not_end_the_process(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(UserCodeError, match=r"called sys.exit\(0\)"):
        load_model(str(tmp_path / "script.py"), weights=True)


def test_something_that_is_no_model():
    with pytest.raises(UsageError, match="there is no model 'what-is-this'"):
        load_model("what-is-this", weights=True)


def test_huggingface_directory_on_meta_and_with_weights(minilm):
    meta = load_model(str(minilm), weights=False)
    assert next(meta.module.parameters()).device.type == "meta"
    real = load_model(str(minilm), weights=True)
    weight = real.module.get_parameter("encoder.layer.0.intermediate.dense.weight")
    assert weight.dtype == torch.float32
    assert weight.shape == (1536, 384)


def test_directory_without_model_type_is_weights_only(minilm, tmp_path):
    shutil.copy(minilm / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    loaded = load_model(str(tmp_path), weights=True)
    assert loaded.kind == "weights"
    assert loaded.module is None
    assert "config.json without model_type" in loaded.notes[0]


def test_config_that_is_no_json(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json cannot be read"):
        load_model(str(tmp_path), weights=False)


def test_missing_weight_is_an_error_not_a_random_value(minilm, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(minilm / "model.safetensors")
    del tensors["encoder.layer.3.output.dense.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(minilm / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"lacks 1 weights of BertModel"):
        load_model(str(tmp_path), weights=True)


def test_remote_code_needs_consent(minilm, tmp_path):
    config = json.loads((minilm / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_x.X"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(minilm / "model.safetensors", tmp_path)
    with pytest.raises(UsageError, match="--trust-remote-code"):
        load_model(str(tmp_path), weights=False)


def test_unknown_architecture(minilm, tmp_path):
    config = json.loads((minilm / "config.json").read_text())
    config["architectures"] = ["NoSuchModel"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(minilm / "model.safetensors", tmp_path)
    with pytest.raises(UsageError, match="architecture 'NoSuchModel'"):
        load_model(str(tmp_path), weights=False)


def test_unknown_model_type(minilm, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch"}')
    shutil.copy(minilm / "model.safetensors", tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot build the model of .*nonesuch") as caught:
        load_model(str(tmp_path), weights=False)
    assert caught.value.hint


def test_pickle_checkpoint_is_said_to_be_one(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"PK")
    with pytest.raises(UsageError, match=r"model\.pt is a file of a kind that is not read"):
        load_model(str(tmp_path / "model.pt"), weights=True)
