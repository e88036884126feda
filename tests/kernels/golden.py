"""Reads the known-answer vectors of `tests/golden`, and notices what no test has looked at."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from torch import Tensor

FOLDER = Path(__file__).parents[1] / "golden"
INDEX: dict[str, list[str]] = json.loads((FOLDER / "index.json").read_text())


class Case(Mapping[str, Tensor]):
    """The tensors of one case by name; remembers which of them were never read."""

    def __init__(self, family: str, name: str, info: dict[str, Any], tensors: dict[str, Tensor]):
        self.family = family
        self.name = name
        self.info = info
        self.unread = set(tensors)
        self._tensors = tensors

    @property
    def params(self) -> dict[str, Any]:
        return self.info["params"]

    @property
    def element(self) -> str:
        return self.info.get("elem", "e4m3")

    def __getitem__(self, key: str) -> Tensor:
        self.unread.discard(key)
        return self._tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@cache
def _read(family: str) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    with safe_open(FOLDER / f"{family}.safetensors", "pt") as file:
        tensors: dict[str, dict[str, Tensor]] = {}
        for key in file.keys():  # noqa: SIM118 (the file is no mapping)
            case, name = key.split("/", 1)
            tensors.setdefault(case, {})[name] = file.get_tensor(key)
        return json.loads(file.metadata()["cases"]), tensors


def load(family: str, name: str) -> Case:
    """One case of one family."""
    infos, tensors = _read(family)
    return Case(family, name, infos[name], tensors[name])


def cases(*families: str, only: Iterable[str] | None = None) -> pytest.MarkDecorator:
    """Parametrize a test over cases of the families, as `case` (see conftest); all or `only`."""
    keys = [
        (family, name)
        for family in families
        for name in INDEX[family]
        if only is None or name in only
    ]
    ids = [f"{family}/{name}" for family, name in keys]
    return pytest.mark.parametrize("case", keys, ids=ids, indirect=True)


def families(prefix: str) -> list[str]:
    """The families whose name starts with `prefix`."""
    return [family for family in INDEX if family.startswith(prefix)]
