"""Headers: what is read, and every malformed file by the text of its error."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qrole.checkpoint.headers import read_file_header, read_headers
from qrole.errors import CheckpointError


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


TWO = {"b": entry("BF16", [2, 3], 0, 12), "a": entry("F32", [], 12, 16)}


def test_a_file_gives_tensors_in_byte_order_with_absolute_offsets(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"__metadata__": {"format": "pt"}, **TWO}, b"x" * 16)
    tensors, metadata = read_file_header(path)
    assert list(tensors) == ["b", "a"]
    assert (tensors["b"].dtype, tensors["b"].shape, tensors["b"].nbytes) == ("BF16", (2, 3), 12)
    assert path.read_bytes()[tensors["a"].start : tensors["a"].end] == b"xxxx"
    assert tensors["a"].end == path.stat().st_size
    assert metadata == {"format": "pt"}


def test_sub_byte_elements_must_fill_whole_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors", {"a": entry("F4", [2, 8], 0, 8)}, b"x" * 8)
    assert read_headers(path)["a"].numel == 16


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{", b"", "the header is no JSON"),
        ([], b"", "the header is a JSON list"),
        ({"a": entry("F32", [1], 0, 4)}, b"xx", "truncated: tensors end at byte"),
        ({"a": entry("F32", [1], 0, 4)}, b"x" * 6, "2 bytes at the end belong to no tensor"),
        ({"a": entry("F32", [1], 4, 8)}, b"x" * 8, "'a' leaves a hole before it"),
        (
            {"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)},
            b"x" * 8,
            "'b' overlaps the tensor before it",
        ),
        ({"a": entry("F32", [2], 0, 4)}, b"xxxx", "'a' of F32 [2] is given bytes 0 to 4"),
        ({"a": entry("F99", [1], 0, 4)}, b"xxxx", "the entry of tensor 'a' is"),
        ({"a": entry("F32", [-1], 0, 4)}, b"xxxx", "'a' of F32 [-1] is given bytes"),
        ({"a": {"dtype": "F32"}}, b"xxxx", "the entry of tensor 'a' is"),
        ({"a": 7}, b"xxxx", "the entry of tensor 'a' is 7"),
        ({"__metadata__": 1}, b"", "__metadata__ is no object"),
    ],
)
def test_malformed_headers(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    path = write(tmp_path / "m.safetensors", header, data)
    with pytest.raises(CheckpointError) as caught:
        read_headers(path)
    assert message in str(caught.value)
    assert str(path) in caught.value.given
    assert caught.value.expected
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes"),
        (b"\x01\x02", "has 2 bytes"),
        (struct.pack("<Q", 1 << 40) + b"{}", "the header is said to have 1099511627776 bytes"),
        (struct.pack("<Q", 100) + b"{}", "truncated: its header has 100 bytes, the file 10"),
        (b"version https://git-lfs", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "a web page"),
    ],
)
def test_files_that_are_no_safetensors(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_headers(path)


def test_a_missing_file_and_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_headers(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        read_headers(tmp_path)


def sharded(directory: Path) -> Path:
    write(directory / "x-1.safetensors", {"a": entry("F32", [1], 0, 4)}, b"aaaa")
    write(directory / "x-2.safetensors", {"b": entry("F32", [1], 0, 4)}, b"bbbb")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}))
    return index


def test_the_index_says_which_files_are_the_checkpoint(tmp_path: Path) -> None:
    sharded(tmp_path)
    write(tmp_path / "consolidated.safetensors", {"z": entry("F32", [1], 0, 4)}, b"zzzz")
    tensors = read_headers(tmp_path)
    assert {name: info.file.name for name, info in tensors.items()} == {
        "a": "x-1.safetensors",
        "b": "x-2.safetensors",
    }


def test_without_an_index_all_files_are_the_checkpoint(tmp_path: Path) -> None:
    sharded(tmp_path).unlink()
    assert list(read_headers(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "x-1.safetensors", "b": "gone.safetensors"}, r"names gone\.safetensors, which is"),
        ({"a": "x-1.safetensors", "c": "x-2.safetensors"}, "places tensor 'c' in x-2"),
        ({"a": "x-2.safetensors", "b": "x-2.safetensors"}, "places tensor 'a' in x-2"),
        ({"a": "../x-1.safetensors"}, "places tensor 'a' in '../x-1"),
        ({"a": 1}, "places tensor 'a' in 1"),
        ({}, "has no weight_map"),
    ],
)
def test_an_index_that_does_not_fit(
    tmp_path: Path, weight_map: dict[str, Any], message: str
) -> None:
    sharded(tmp_path).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=message):
        read_headers(tmp_path)


def test_an_index_that_is_no_json(tmp_path: Path) -> None:
    sharded(tmp_path).write_text("{")
    with pytest.raises(CheckpointError, match=r"index\.json cannot be read"):
        read_headers(tmp_path)


def test_two_checkpoints_in_one_directory(tmp_path: Path) -> None:
    sharded(tmp_path)
    write(tmp_path / "model.safetensors", {"a": entry("F32", [1], 0, 4)}, b"aaaa")
    with pytest.raises(CheckpointError, match="an index that does not name it"):
        read_headers(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "other.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds 2 index files"):
        read_headers(tmp_path)


def test_one_tensor_in_two_files(tmp_path: Path) -> None:
    sharded(tmp_path).unlink()
    write(tmp_path / "x-2.safetensors", {"a": entry("F32", [1], 0, 4)}, b"bbbb")
    with pytest.raises(CheckpointError, match="tensor 'a' is in"):
        read_headers(tmp_path)


def test_importing_the_checkpoint_room_does_not_import_torch() -> None:
    code = "import sys, qrole.checkpoint.headers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
