"""What the layout knows of one weight: who quantizes it, from which dtype, with which seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qrole.checkpoint.native.descriptions import described, rebuilt, stochastic
from qrole.errors import CheckpointError
from qrole.quantizers import Quantizer

if TYPE_CHECKING:
    import torch

__all__ = ["METADATA", "NativeWeight", "seed_of"]

#: Key of the safetensors metadata under which the weights of a file are described.
METADATA = "qrole.native/1"

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class NativeWeight:
    """How one weight is quantized.

    Attributes:
        quantizer: Makes both representations.
        dtype: safetensors dtype of the weight, which `dequantize` gives back.
        seed: Of the random bits of stochastic rounding; None where nothing is drawn.
    """

    quantizer: Quantizer
    dtype: str
    seed: int | None

    @property
    def torch_dtype(self) -> torch.dtype:
        """The weight's dtype."""
        import torch

        found: torch.dtype = getattr(torch, _DTYPES[self.dtype])
        return found

    def to_json(self, rows: int, columns: int) -> dict[str, Any]:
        """The record of a weight of that shape, from which `of_json` makes it again."""
        return {
            "quantizer": described(self.quantizer),
            "dtype": self.dtype,
            "seed": self.seed,
            "shape": [rows, columns],
        }

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> tuple[NativeWeight, int, int]:
        """The weight of a record, its rows and its columns.

        Raises:
            CheckpointError: The record is not one.
        """
        try:
            rows, columns = record["shape"]
            dtype, seed = record["dtype"], record["seed"]
            whole = isinstance(rows, int) and isinstance(columns, int) and min(rows, columns) > 0
            drawn = seed is None or isinstance(seed, int)
            if dtype in _DTYPES and whole and drawn:
                return cls(rebuilt(record["quantizer"]), dtype, seed), rows, columns
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed(record) from error
        raise _malformed(record)


def seed_of(quantizer: Quantizer, module: str) -> int | None:
    """A seed of a layer's own, the same in every run; None where nothing is drawn."""
    if not stochastic(quantizer):
        return None
    return int.from_bytes(hashlib.sha256(module.encode()).digest()[:7], "little")


def _malformed(record: object) -> CheckpointError:
    return CheckpointError(
        f"{record!r} describes no weight",
        expected="quantizer, dtype, seed and shape, as `qrole apply --layout native` writes them",
        hint="write the checkpoint again",
    )
