"""Reads CTranslate2's `model.bin`, version 6: named tensors, little-endian."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from qrole.errors import CheckpointError

VERSION = 6
_DTYPES = {0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16}


def read(file: Path) -> dict[str, Tensor]:
    """Every variable by name, without the aliases that end the file.

    Raises:
        CheckpointError: The file has another version.
    """
    with file.open("rb") as opened:
        version = _number(opened, "I")
        if version != VERSION:
            raise CheckpointError(
                f"{file.name} has the version {version}",
                expected=f"version {VERSION} of CTranslate2's format",
                hint="teach this reader the other version's layout",
            )
        _string(opened)  # the architecture
        _number(opened, "I")  # its revision
        return dict(_variable(opened) for _ in range(_number(opened, "I")))


def _variable(file: BinaryIO) -> tuple[str, Tensor]:
    name = _string(file)
    shape = [_number(file, "I") for _ in range(_number(file, "B"))]
    dtype = _DTYPES[_number(file, "B")]
    data = bytearray(file.read(_number(file, "I")))
    assert len(data) == math.prod(shape) * dtype.itemsize, f"{name} is cut off"
    return name, torch.frombuffer(data, dtype=dtype).reshape(shape)


def _number(file: BinaryIO, kind: str) -> int:
    form = f"<{kind}"
    (number,) = struct.unpack(form, file.read(struct.calcsize(form)))
    return int(number)


def _string(file: BinaryIO) -> str:
    length = _number(file, "H")
    return file.read(length).removesuffix(b"\0").decode()
