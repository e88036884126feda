"""What is shown of an exception in the user's code: his lines and none of ours."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from qrole.errors import UnknownNameError, UserCodeError
from qrole.user_code import load_attribute, load_file, running_user_code


def test_syntax_error_shows_the_users_line_alone(tmp_path):
    (tmp_path / "broken.py").write_text("def build(:\n")
    with pytest.raises(UserCodeError, match="raised SyntaxError") as caught:
        load_file(tmp_path / "broken.py")
    assert caught.value.traceback.startswith(f'  File "{tmp_path / "broken.py"}", line 1')


def test_call_that_fails_before_the_users_first_line_shows_no_line_of_ours(tmp_path):
    def build(x):
        return x

    with pytest.raises(UserCodeError) as caught, running_user_code("build()", str(tmp_path)):
        build()
    assert "qrole/user_code.py" not in caught.value.traceback
    assert caught.value.traceback.endswith("missing 1 required positional argument: 'x'")


def test_unknown_attribute_says_where_it_was_looked_for(tmp_path):
    path = tmp_path / "factories.py"
    path.write_text("def mixed(role): ...\n")
    with pytest.raises(UnknownNameError) as caught:
        load_attribute(f"{path}:zzz")
    assert caught.value.given == f"there is no attribute 'zzz' in {path}"
    assert caught.value.expected == "one of mixed"
    assert caught.value.hint


def test_a_file_has_the_same_module_name_in_every_process(tmp_path):
    """It is part of what `inspect --json` and `lock` write."""
    (tmp_path / "mine.py").write_text("class Layer: ...\n")
    code = (
        "import pathlib, sys; from qrole.user_code import load_file; "
        "print(load_file(pathlib.Path(sys.argv[1])).Layer.__module__)"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "mine.py")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(names) == 1
