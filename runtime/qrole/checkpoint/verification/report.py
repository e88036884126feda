"""What verification finds: problems, and the measured error of every layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qrole.checkpoint.engines import Verdict
from qrole.json_values import plain

__all__ = ["LayerError", "Problem", "VerifyReport"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: A short, stable name, such as `missing-part`.
        where: Tensor, module or file.
        message: What was found, and what should be there.
    """

    kind: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.kind}]"


@dataclass(frozen=True)
class LayerError:
    """How far a layer's decoded weight is from the source.

    Attributes:
        module: The layer.
        scheme: How it is stored.
        sqnr_db: Signal to quantization noise, dB; infinite for no error.
        max_abs_err: Largest absolute error.
        worst: Largest error in units of what rounding can explain; above 1 is a defect.
    """

    module: str
    scheme: str
    sqnr_db: float
    max_abs_err: float
    worst: float


@dataclass(frozen=True)
class VerifyReport:
    """What was checked and what was found.

    Attributes:
        directory: The checkpoint.
        layout: Its layout.
        schemes: Number of quantized layers by scheme.
        tensors: Number of tensors looked at.
        nbytes: Their bytes.
        unchanged: Tensors that are byte-identical to the source; None without a source.
        errors: One per quantized layer; empty without a source.
        problems: What is wrong; empty for a sound checkpoint.
        verdicts: What each engine makes of it.
    """

    directory: Path
    layout: str
    schemes: dict[str, int]
    tensors: int
    nbytes: int
    unchanged: int | None
    errors: tuple[LayerError, ...]
    problems: tuple[Problem, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, under the schema `qrole.verify/1`."""
        found = {"ok": self.ok, **asdict(self), "directory": str(self.directory)}
        return {"schema": "qrole.verify/1", **plain(found)}

    def _repr_html_(self) -> str:
        from qrole.display import verify_html

        return verify_html(self)
