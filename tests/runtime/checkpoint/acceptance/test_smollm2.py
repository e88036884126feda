"""SmolLM2-135M: a real model with a tied head and sizes that no 128-wide block divides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from qrole.checkpoint.apply import ApplyReport, apply
from qrole.checkpoint.constraints import OnShape
from qrole.checkpoint.inputs import CalibrationOptions
from qrole.checkpoint.job import ApplyOptions
from qrole.checkpoint.manifest import read_manifest
from qrole.checkpoint.schemes import SCHEMES
from qrole.checkpoint.verify import verify
from qrole.errors import ConfigError
from tests.runtime.checkpoint.acceptance.test_transformers import (
    CASES,
    error_of,
    fake_linears,
    input_ids,
    loaded,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

SMALL = CalibrationOptions(samples=2, seq_len=64)
FALLBACK: dict[str, Any] = {"on_shape": OnShape.FALLBACK}


class Reference:
    """The model in fp32, loaded once, whose layers stand aside for those of each case.

    Fake-quantized weights are kept until the next case: schemes that differ in what they do to
    inputs share them.
    """

    def __init__(self, source: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        self._known: dict[str, tuple[Any, torch.Tensor]] = {}
        self.plain = self._logits()

    def logits(self, directory: Path) -> torch.Tensor:
        """The logits of the fake-quant of what a checkpoint's manifest says."""
        fakes = dict(fake_linears(self._model, read_manifest(directory), self._known))
        originals = {module: self._model.get_submodule(module) for module in fakes}
        try:
            for module, fake in fakes.items():
                self._model.set_submodule(module, fake)
            return self._logits()
        finally:
            for module, original in originals.items():
                self._model.set_submodule(module, original)

    def _logits(self) -> torch.Tensor:
        with torch.no_grad():
            return self._model(input_ids=input_ids()).logits


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Reference:
    transformers_logging.disable_progress_bar()
    return Reference(smollm2)


def checked(source: Path, out: Path, case: str, reference: Reference, **more: Any) -> ApplyReport:
    """Writes a case, verifies it, and compares what transformers loads with the reference."""
    factory, options = CASES[case]
    made = apply(
        str(source), factory, out, options=ApplyOptions(**options, **more), calibration=SMALL
    )
    report = verify(out, str(source))
    assert report.ok, report.problems
    with torch.no_grad():
        found = loaded(out)(input_ids=input_ids()).logits
    assert error_of(found, reference.logits(out), reference.plain) < 1e-5
    return made


@pytest.mark.parametrize(
    "case", [*(name for name in SCHEMES if name != "fp8_block"), "mixed_three_formats"]
)
def test_it_loads_and_computes_the_fake_quant(
    smollm2: Path, tmp_path: Path, reference: Reference, case: str
) -> None:
    made = checked(smollm2, tmp_path / "out", case, reference)
    assert sum(made.schemes.values()) == 210
    assert made.schemes.keys() == {case} or len(made.schemes) == 3


def test_what_no_block_divides_fails_or_falls_back(
    smollm2: Path, tmp_path: Path, reference: Reference
) -> None:
    factory, _ = CASES["fp8_block"]
    with pytest.raises(ConfigError, match=r"180 weights do not fit .* 576 columns are no multiple"):
        apply(str(smollm2), factory, tmp_path / "out")
    made = checked(smollm2, tmp_path / "out", "fp8_block", reference, **FALLBACK)
    assert made.schemes == {"fp8_block": 30}
