"""Every case of every family is read by some test, whole."""

import importlib
from pathlib import Path

from safetensors import safe_open

from tests.kernels import golden

MODULES = sorted(p.stem for p in Path(__file__).parent.glob("test_golden_*.py"))


def _parametrized_cases():
    for name in MODULES:
        module = importlib.import_module(f"tests.kernels.{name}")
        for test in vars(module).values():
            for mark in getattr(test, "pytestmark", ()):
                if mark.args and mark.args[0] == "case":
                    yield from mark.args[1]


def test_every_case_is_consumed():
    expected = {(family, name) for family, names in golden.INDEX.items() for name in names}
    assert expected == set(_parametrized_cases())


def test_the_index_lists_every_file_and_case():
    files = {path.stem for path in golden.FOLDER.glob("*.safetensors")}
    assert files == set(golden.INDEX)
    for family, names in golden.INDEX.items():
        with safe_open(golden.FOLDER / f"{family}.safetensors", "pt") as file:
            assert {key.split("/", 1)[0] for key in file.keys()} == set(names)  # noqa: SIM118
