"""Headers of safetensors files, read with the standard library: names, dtypes, shapes, places.

A file is an 8-byte little-endian length, a JSON object of that length, and the tensors' bytes.
"""

from __future__ import annotations

import json
import math
import struct
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from qrole.errors import CheckpointError

__all__ = ["DTYPE_BITS", "TensorInfo", "read_file_header", "read_headers", "read_index"]

#: Bits per element of every dtype that a safetensors header may name.
DTYPE_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}

#: What the safetensors library accepts at most.
MAX_HEADER_BYTES = 100_000_000

_INT = {int}

_FETCH = "fetch or write the file again"


class TensorInfo(NamedTuple):
    """Where one stored tensor is, and what it is.

    A named tuple, because a checkpoint has tens of thousands and a dataclass takes longer to make.

    Invariants, checked where the header is read: `end - start` bytes hold `shape` elements of
    `dtype`; the bytes lie inside `file` and belong to no other tensor.

    Attributes:
        name: Full name.
        dtype: safetensors dtype, such as `BF16`.
        shape: Dimensions; `()` for a scalar.
        file: The file that holds it.
        start: First byte, counted from the file's begin.
        end: One past the last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return self.end - self.start

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_headers(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a `.safetensors` file, or of a directory of them; no weights are read.

    In a directory the index says which files are the checkpoint; without one all `.safetensors`
    files are.

    Args:
        path: File or directory.

    Returns:
        By name, in the order of files and of bytes within a file.

    Raises:
        CheckpointError: Something is missing, truncated or malformed.
    """
    if not path.is_dir():
        return read_file_header(path)[0]
    index = find_index(path)
    weight_map = read_index(index) if index else None
    files = sorted(set(weight_map.values())) if weight_map is not None else _all_files(path)
    tensors: dict[str, TensorInfo] = {}
    places: dict[str, str] = {}
    for name in files:
        if index and not (path / name).is_file():
            raise CheckpointError(
                f"{index} names {name}, which is not there",
                expected="every shard of the index beside it",
                hint="fetch the missing shard",
            )
        found = read_file_header(path / name)[0]
        if not tensors.keys().isdisjoint(found):
            key = next(key for key in found if key in tensors)
            raise CheckpointError(
                f"tensor {key!r} is in {tensors[key].file} and in {found[key].file}",
                expected="every tensor in one file",
                hint="remove the files that do not belong to the checkpoint",
            )
        tensors |= found
        places |= dict.fromkeys(found, name)
    if index and weight_map:
        _check_index(index, weight_map, places)
    return tensors


def find_index(directory: Path) -> Path | None:
    """The directory's `*.safetensors.index.json`; None where it has none.

    Raises:
        CheckpointError: There are several, or there is a `model.safetensors` beside an index
            that does not name it.
    """
    found = sorted(directory.glob("*.safetensors.index.json"))
    if len(found) > 1:
        raise CheckpointError(
            f"{directory} holds {len(found)} index files: {', '.join(p.name for p in found)}",
            expected="one *.safetensors.index.json",
            hint="name one file, or move the others away",
        )
    if not found:
        return None
    single = directory / "model.safetensors"
    if single.is_file() and single.name not in read_index(found[0]).values():
        raise CheckpointError(
            f"{directory} holds model.safetensors and an index that does not name it",
            expected="one checkpoint",
            hint=f"remove the stale one of model.safetensors and {found[0].name}",
        )
    return found[0]


def read_index(path: Path) -> dict[str, str]:
    """The `weight_map` of an index file: file name by tensor name.

    Raises:
        CheckpointError: It cannot be read or is no index.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}", expected="a JSON object with weight_map", hint=_FETCH
        ) from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path} has no weight_map", expected='{"weight_map": {tensor: file}}', hint=_FETCH
        )
    seen: set[str] = set()
    for name, file in weight_map.items():
        if isinstance(file, str) and file in seen:
            continue
        if not isinstance(file, str) or "/" in file or "\\" in file or file in ("", ".", ".."):
            raise CheckpointError(
                f"{path} places tensor {name!r} in {file!r}",
                expected="the name of a file beside the index",
                hint=_FETCH,
            )
        seen.add(file)
    return weight_map


def read_file_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors of one file, in the order of their bytes, and its metadata.

    Raises:
        CheckpointError: It is missing, truncated or malformed.
    """
    header, base, size = _read_json(path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _malformed(path, "__metadata__ is no object")
    tensors = [_entry(path, name, entry, base) for name, entry in header.items()]
    tensors.sort(key=attrgetter("start", "end"))
    _check_cover(path, tensors, base, size)
    return {info.name: info for info in tensors}, metadata


def _all_files(directory: Path) -> list[str]:
    files = sorted(p.name for p in directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(
            f"{directory} holds no .safetensors file",
            expected="safetensors weights, with an index where they are in several files",
            hint="convert pickle checkpoints to safetensors first",
        )
    return files


def _read_json(path: Path) -> tuple[dict[str, Any], int, int]:
    """The header as parsed, the offset of the first data byte, and the file's size."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            prefix = file.read(8)
            length = _header_length(path, prefix, size)
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror or error}",
            expected="a readable .safetensors file",
            hint="check the path and its permissions",
        ) from error
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"the header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _malformed(path, f"the header is a JSON {type(header).__name__}")
    return header, 8 + length, size


def _header_length(path: Path, prefix: bytes, size: int) -> int:
    # A length below the limit has zeros in its upper bytes, whatever its lowest byte looks like.
    if prefix == b"version " or (prefix.startswith(b"<") and prefix[4:] != bytes(4)):
        raise CheckpointError(
            f"{path} is a Git LFS pointer or a web page, not the weights",
            expected="a safetensors file",
            hint="fetch the file itself (git lfs pull)",
        )
    if len(prefix) < 8:
        raise CheckpointError(
            f"{path} has {size} bytes",
            expected="at least the 8 bytes of a header length",
            hint=_FETCH,
        )
    length: int = struct.unpack("<Q", prefix)[0]
    if length > MAX_HEADER_BYTES:
        raise _malformed(path, f"the header is said to have {length} bytes")
    if 8 + length > size:
        raise CheckpointError(
            f"{path} is truncated: its header has {length} bytes, the file {size}",
            expected=f"at least {8 + length} bytes",
            hint=_FETCH,
        )
    return length


def _entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = (*shape, start, end)
        whole = {*map(type, numbers)} == _INT and min(numbers) >= 0
        bits = math.prod(shape) * DTYPE_BITS[dtype] if whole else -1
    except (TypeError, ValueError, KeyError) as error:
        raise _malformed(path, f"the entry of tensor {name!r} is {str(entry)[:120]}") from error
    if bits != (end - start) * 8:
        raise _malformed(
            path, f"tensor {name!r} of {dtype} {shape} is given bytes {start} to {end}"
        )
    return TensorInfo(name, dtype, tuple(shape), path, base + start, base + end)


def _check_cover(path: Path, tensors: list[TensorInfo], base: int, size: int) -> None:
    """Every byte behind the header belongs to exactly one tensor."""
    at = base
    for info in tensors:
        if info.start != at:
            kind = "overlaps the tensor before it" if info.start < at else "leaves a hole before it"
            raise _malformed(path, f"tensor {info.name!r} {kind}")
        at = info.end
    if at > size:
        raise CheckpointError(
            f"{path} is truncated: tensors end at byte {at}, the file at {size}",
            expected=f"{at} bytes",
            hint=_FETCH,
        )
    if at < size:
        raise _malformed(path, f"{size - at} bytes at the end belong to no tensor")


def _check_index(index: Path, weight_map: dict[str, str], places: dict[str, str]) -> None:
    """Raises where the index names another file than the one that holds a tensor."""
    if weight_map.items() <= places.items():
        return
    name, file = next(i for i in weight_map.items() if places.get(i[0]) != i[1])
    raise CheckpointError(
        f"{index} places tensor {name!r} in {file}, which does not hold it",
        expected="an index that fits its shards",
        hint="fetch index and shards of the same revision",
    )


def _malformed(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is corrupt: {what}",
        expected="a safetensors file whose header covers its bytes without holes",
        hint=_FETCH,
    )
