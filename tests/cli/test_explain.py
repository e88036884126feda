"""`qrole explain` in the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from qrole.auditing import codes, documentation

Cli = Callable[..., Any]


def test_one_code(cli: Cli) -> None:
    result = cli("explain", "qr304")
    assert result.code == 0
    assert result.out.startswith("QR304 (error, GEMM pairing)\nOnly one operand of wgrad is ")
    assert "Set `with_rht` and `with_random_sign_mask` equally" in result.out


def test_all_codes(cli: Cli) -> None:
    result = cli("explain")
    assert [line.split()[0] for line in result.out.splitlines()[1:] if line[:2] == "QR"] == [
        *codes()
    ]


def test_the_whole_page(cli: Cli) -> None:
    assert cli("explain", "--all").out == documentation()


def test_json(cli: Cli) -> None:
    payload = json.loads(cli("explain", "QR001", "--json").out)
    assert payload["schema"] == "qrole.explain/1"
    assert payload["codes"][0]["code"] == "QR001"
    assert len(json.loads(cli("explain", "--json").out)["codes"]) == len(codes())


def test_an_unknown_code(cli: Cli) -> None:
    result = cli("explain", "QR399")
    assert result.code == 2
    assert "there is no code 'QR399'" in result.err


def test_torch_is_not_imported() -> None:
    program = (
        "import sys; from qrole_cli.main import invoke; invoke(['explain', 'QR304']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0
