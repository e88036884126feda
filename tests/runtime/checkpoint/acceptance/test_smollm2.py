"""SmolLM2-135M: a real model with a tied head and sizes that no 128-wide block divides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging as transformers_logging

from qrole.checkpoint.apply import apply
from qrole.checkpoint.constraints import OnShape
from qrole.checkpoint.inputs import CalibrationOptions
from qrole.checkpoint.job import ApplyOptions
from qrole.checkpoint.verify import verify
from qrole.errors import ConfigError
from tests.runtime.checkpoint.acceptance.test_transformers import CASES, relative_error

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

SMALL = CalibrationOptions(samples=2, seq_len=64)


@pytest.mark.parametrize("case", ["nvfp4", "mixed_fp8_nvfp4"])
def test_it_loads_and_computes_the_fake_quant(smollm2: Path, tmp_path: Path, case: str) -> None:
    transformers_logging.disable_progress_bar()
    factory, options = CASES[case]
    out = tmp_path / "out"
    apply(str(smollm2), factory, out, options=ApplyOptions(**options), calibration=SMALL)
    report = verify(out, str(smollm2))
    assert report.ok, report.problems
    assert relative_error(smollm2, out) < 1e-5


def test_what_no_block_divides_fails_or_falls_back(smollm2: Path, tmp_path: Path) -> None:
    factory, _ = CASES["fp8_block"]
    with pytest.raises(ConfigError, match=r"180 weights do not fit .* 576 columns are no multiple"):
        apply(str(smollm2), factory, tmp_path / "out")
    options: dict[str, Any] = {"on_shape": OnShape.FALLBACK}
    made = apply(str(smollm2), factory, tmp_path / "out", options=ApplyOptions(**options))
    assert made.schemes == {"fp8_block": 30}
    assert verify(tmp_path / "out", str(smollm2)).ok
    assert relative_error(smollm2, tmp_path / "out") < 1e-5
