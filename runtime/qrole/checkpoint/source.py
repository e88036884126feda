"""Where tensors come from: safetensors files by mapping, or a model's parameters in memory.

Weights stored in FP8 blocks of 128x128 (`weight` and `weight_scale_inv`) are seen as the fp32
matrices they stand for.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qrole.checkpoint.headers import DTYPE_BITS, TensorInfo, read_headers
from qrole.checkpoint.memory import Buffer, FileIdentity, MappedFile
from qrole.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["FLOATS", "Source", "SourceTensor", "open_source"]

#: Kernel names of the dtypes that can be quantized.
FLOATS = {"F32": "f32", "BF16": "bf16", "F16": "f16"}

_BLOCK = 128
_SCALE = "_scale_inv"


class SourceTensor(NamedTuple):
    """A tensor of the source.

    A named tuple, because a checkpoint has tens of thousands and a dataclass takes longer to make.

    Invariant: exactly one of `stored` and `memory` is there.

    Attributes:
        name: Full name.
        dtype: safetensors dtype of its values: of what the codes stand for where they are FP8.
        shape: Dimensions.
        stored: Its bytes in a file.
        scale: The fp32 scales of 128x128 blocks, for FP8 weights.
        memory: The tensor itself, contiguous on the CPU.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: TensorInfo | None = None
    scale: TensorInfo | None = None
    memory: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that a copy takes; of FP8 weights, those of the codes."""
        if self.stored is not None:
            return self.stored.nbytes
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8

    @property
    def stored_dtype(self) -> str:
        """Safetensors dtype of what is stored."""
        return self.stored.dtype if self.stored is not None else self.dtype

    @property
    def file(self) -> Path | None:
        """The file that holds it."""
        return self.stored.file if self.stored else None


class Source:
    """The tensors of a model and what comes with them; maps files when they are first read.

    Attributes:
        name: As the user named it.
        directory: Where config and tokenizer are; None where there is no directory.
        tensors: By name, in the order of files and bytes.
        config_text: The config.json as it stands; None without one.
        config: The same, parsed; empty without one.
        files: The weight files and config as they were when the source was opened.
        tied: Aliases that share another tensor's memory, by alias.
    """

    def __init__(
        self,
        name: str,
        tensors: Mapping[str, SourceTensor],
        directory: Path | None,
        config_text: str | None,
        tied: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.tensors = dict(tensors)
        self.directory = directory
        self.config_text = config_text
        self.config: dict[str, Any] = json.loads(config_text) if config_text else {}
        self.tied = dict(tied or {})
        paths = dict.fromkeys(t.stored.file for t in self.tensors.values() if t.stored)
        self.files = {path: FileIdentity.of(path) for path in paths}
        self._mapped: dict[Path, MappedFile] = {}

    @functools.cached_property
    def identity(self) -> list[tuple[str, int, int | str, int]]:
        """What differs where values may: place, size and time of files, hashes of memory."""
        files = [(str(f.path.resolve()), f.size, f.mtime_ns, f.inode) for f in self.files.values()]
        held = (t for t in self.tensors.values() if t.memory is not None)
        return [*files, *((t.name, t.nbytes, _digest(t.memory, t.nbytes), 0) for t in held)]

    def mapped(self, path: Path) -> MappedFile:
        """The mapping of one of the source's files."""
        if path not in self._mapped:
            identity = self.files[path]
            identity.check()
            self._mapped[path] = MappedFile(identity)
        return self._mapped[path]

    @contextlib.contextmanager
    def rows(
        self,
        tensor: SourceTensor,
        first: int,
        count: int,
        columns: int,
        work: Buffer,
        decode_to: str = "f32",
    ) -> Iterator[tuple[int, str]]:
        """Address and kernel dtype of `count` rows of a tensor seen as a matrix of `columns`.

        Args:
            tensor: One of `tensors`.
            first: First row; a multiple of 128 for FP8 weights.
            count: Rows.
            columns: Elements of a row.
            work: Room for the rows in fp32, used where they cannot be read in place.
            decode_to: Kernel dtype that FP8 weights are decoded to.
        """
        itemsize = DTYPE_BITS[tensor.dtype] // 8
        if tensor.memory is not None:
            yield tensor.memory.data_ptr() + first * columns * itemsize, FLOATS[tensor.dtype]
            return
        assert tensor.stored is not None
        file = self.mapped(tensor.stored.file)
        width = columns * DTYPE_BITS[tensor.stored.dtype] // 8
        start = tensor.stored.start + first * width
        end = start + count * width
        address = file.take(start, end)
        try:
            if tensor.scale is not None:
                self._decode(tensor, address, first, count, columns, work, decode_to)
                yield work.address, decode_to
            elif address % itemsize:
                ctypes.memmove(work.address, address, end - start)
                yield work.address, FLOATS[tensor.dtype]
            else:
                yield address, FLOATS[tensor.dtype]
        finally:
            file.give_back(start, end)

    def _decode(
        self,
        tensor: SourceTensor,
        data: int,
        first: int,
        count: int,
        columns: int,
        work: Buffer,
        dtype: str,
    ) -> None:
        from qrole_kernels import cpu

        assert tensor.scale is not None
        across = -(-columns // _BLOCK)
        start = tensor.scale.start + first // _BLOCK * across * 4
        end = start + -(-count // _BLOCK) * across * 4
        scales = self.mapped(tensor.scale.file).take(start, end)
        aligned = ctypes.create_string_buffer(ctypes.string_at(scales, end - start), end - start)
        cpu.host_dequantize_fp8_block(
            data,
            count,
            columns,
            ctypes.addressof(aligned),
            "e4m3",
            _BLOCK,
            dtype,
            work.address,
            threads=1,
        )

    def check_unchanged(self) -> None:
        """Raises CheckpointError where a weight file is no longer the one that was opened."""
        for identity in self.files.values():
            identity.check()

    def close(self) -> None:
        """Unmaps all files."""
        for file in self._mapped.values():
            file.close()
        self._mapped.clear()


def _digest(tensor: torch.Tensor | None, nbytes: int) -> str:
    assert tensor is not None, "in memory"
    held = (ctypes.c_char * nbytes).from_address(tensor.data_ptr()) if nbytes else b""
    return hashlib.sha256(held).hexdigest()


def open_source(path: Path, name: str | None = None) -> Source:
    """A `.safetensors` file or a directory of them, with its config.json where there is one.

    Raises:
        CheckpointError: Weights or config are missing, truncated or malformed.
        UsageError: The source is quantized already in a way that is not read.
    """
    headers = read_headers(path)
    directory = path if path.is_dir() else path.parent
    config_path = directory / "config.json"
    text = _read_config(config_path) if config_path.is_file() else None
    source = Source(name or str(path), _logical(headers), directory, text)
    _check_quantization(source)
    return source


def _read_config(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        parsed = json.loads(text)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}", expected="a JSON object", hint="fetch it again"
        ) from error
    if not isinstance(parsed, dict):
        raise CheckpointError(
            f"{path} holds a {type(parsed).__name__}",
            expected="a JSON object",
            hint="fetch it again",
        )
    return text


def _logical(headers: Mapping[str, TensorInfo]) -> dict[str, SourceTensor]:
    """Pairs FP8 codes with their scales; everything else stands for itself."""
    scales = {n: i for n, i in headers.items() if n.endswith(_SCALE)}
    tensors = {}
    for name, info in headers.items():
        if name in scales and name.removesuffix(_SCALE) in headers:
            continue
        scale = scales.get(name + _SCALE) if scales else None
        if scale is None:
            tensors[name] = SourceTensor(name, info.dtype, info.shape, info)
            continue
        blocks = tuple(-(-n // _BLOCK) for n in info.shape)
        if info.dtype != "F8_E4M3" or scale.dtype != "F32" or scale.shape != blocks:
            raise CheckpointError(
                f"{name} is {info.dtype} {list(info.shape)} with {scale.name} "
                f"{scale.dtype} {list(scale.shape)}",
                expected=f"F8_E4M3 codes with F32 scales {list(blocks)} of 128x128 blocks",
                hint="start from the checkpoint before it was quantized",
            )
        tensors[name] = SourceTensor(name, "F32", info.shape, info, scale)
    return tensors


def _check_quantization(source: Source) -> None:
    """Refuses what is quantized in any other way than FP8 blocks."""
    method = (source.config.get("quantization_config") or {}).get("quant_method")
    blocks = any(t.scale is not None for t in source.tensors.values())
    codes = [t.name for t in source.tensors.values() if t.dtype.startswith("F8") and not t.scale]
    if method not in (None, "fp8") or (method == "fp8" and not blocks) or codes:
        what = f"quant_method {method!r}" if method else f"FP8 tensor {codes[0]!r} without scales"
        raise UsageError(
            f"{source.name} is quantized already ({what})",
            expected="fp32, bf16 or fp16 weights, or FP8 in 128x128 blocks with weight_scale_inv",
            hint="start from the checkpoint before it was quantized",
        )
