"""Files that were written for TransformerEngine, by every way that they import it."""

import warnings
from pathlib import Path

import pytest

from qrole.factories.string_roles import StringRoleWarning
from qrole.plugins import load_factory
from qrole.roles import DelayedScalingRequest, QuantizerRole
from qrole.te_shim import OlderNameWarning, te_shim, uninstall
from qrole.user_code import load_file

FILES = Path(__file__).with_name("files")
ROLES = [
    QuantizerRole("linear", "input", "layer"),
    QuantizerRole("linear", "weight", "layer"),
    QuantizerRole("linear", "grad_output", "layer"),
    QuantizerRole("dpa", "qkv", "attention"),
    None,
]
FACTORIES = sorted(p.stem for p in FILES.glob("*.py") if p.stem != "model")


@pytest.fixture(autouse=True)
def _fresh():
    uninstall()
    yield
    uninstall()


def _label(answer):
    if isinstance(answer, DelayedScalingRequest):
        return f"FP8 delayed {answer.fp8_format.name}"
    return answer.label


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_file_runs_unchanged(name):
    path = FILES / f"{name}.py"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        factory = load_factory(f"{path}:factory")
    module = load_file(path)
    assert [_label(factory.function(role)) for role in ROLES] == module.EXPECTED
    notes = getattr(module, "NOTES", [])
    assert len(caught) == len(notes)
    for note in notes:
        match = [w for w in caught if note in str(w.message)]
        assert len(match) == 1
        assert issubclass(match[0].category, (OlderNameWarning, StringRoleWarning))


@pytest.mark.parametrize("name", ["older_module_names", "older_string_roles"])
def test_a_note_points_at_the_users_line(name):
    path = FILES / f"{name}.py"
    code = compile(path.read_text(), str(path), "exec")
    with te_shim(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(code, {"__name__": "older"})
    files = {w.filename for w in caught if issubclass(w.category, OlderNameWarning)}
    assert files == {str(path)}
