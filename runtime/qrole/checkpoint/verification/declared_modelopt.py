"""Reading a `modelopt` quantization_config as engines do, and what is wrong with it."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qrole.checkpoint.layouts.modelopt import ALGORITHMS
from qrole.checkpoint.verification.declared import Declared

__all__ = ["declared_modelopt"]

_SCHEMES = {algorithm: scheme for scheme, algorithm in ALGORITHMS.items()}


def declared_modelopt(
    config: Mapping[str, Any], modules: Sequence[str], directory: Path
) -> Declared:
    """Resolves a flat `quantization_config` against modules, and compares the nested copy."""
    found = Declared("modelopt")
    ignore = list(config.get("ignore") or ())
    layers = config.get("quantized_layers")
    for module in modules:
        if any(fnmatch.fnmatchcase(module, entry) for entry in ignore):
            found.ignored.add(module)
    for entry in ignore:
        wide = [m for m in modules if entry in m and m not in found.ignored]
        if wide:
            found.complain(
                "wide-ignore", "ignore", f"vLLM takes {entry!r} for a part of {', '.join(wide[:4])}"
            )
    if config.get("quant_algo") == "MIXED_PRECISION":
        _mixed(layers or {}, modules, found)
    else:
        scheme = _scheme(config, "config.json", found)
        names = [m for m in modules if m not in found.ignored]
        found.schemes.update(dict.fromkeys(names, scheme))
    _check_legacy(config, directory, found)
    return found


def _mixed(layers: Mapping[str, Any], modules: Sequence[str], found: Declared) -> None:
    for module, entry in layers.items():
        if module in found.ignored:
            found.complain("wide-ignore", module, "is both quantized and ignored")
        found.schemes[module] = _scheme(entry, module, found)
    for module in layers.keys() - set(modules):
        found.complain("missing-part", module, "is declared and has no weight")


def _scheme(entry: Mapping[str, Any], where: str, found: Declared) -> str:
    algorithm = str(entry.get("quant_algo"))
    scheme = _SCHEMES.get(algorithm.upper(), "")
    if not scheme:
        found.complain("config-scheme", where, f"quant_algo {algorithm!r} is none that is known")
    elif scheme.startswith("nvfp4") and entry.get("group_size") != 16:
        found.complain("config-scheme", where, f"group_size is {entry.get('group_size')}, not 16")
    return scheme


def _check_legacy(config: Mapping[str, Any], directory: Path, found: Declared) -> None:
    """TensorRT-LLM believes hf_quant_config.json, so it has to say the same."""
    path = directory / "hf_quant_config.json"
    if not path.is_file():
        found.complain("missing-file", path.name, "is not there; TensorRT-LLM reads it")
        return
    nested = json.loads(path.read_text(encoding="utf-8")).get("quantization") or {}
    for key, twin in (
        ("quant_algo", "quant_algo"),
        ("quantized_layers", "quantized_layers"),
        ("ignore", "exclude_modules"),
    ):
        if config.get(key) != nested.get(twin):
            found.complain("config-differs", path.name, f"{twin} differs from config.json")
