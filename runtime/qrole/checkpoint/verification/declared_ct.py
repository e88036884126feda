"""Reading `quantization_config` of compressed-tensors as engines do, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qrole.checkpoint.layouts.compressed_tensors import group_of
from qrole.checkpoint.schemes import SCHEMES
from qrole.checkpoint.targets import hits
from qrole.checkpoint.verification.declared import Declared

__all__ = ["declared_ct"]

_GROUP_KEYS = {"format", "targets", "weights", "input_activations", "output_activations"}
_ARGUMENT_KEYS = {
    "num_bits",
    "type",
    "symmetric",
    "group_size",
    "strategy",
    "block_structure",
    "dynamic",
    "actorder",
    "scale_dtype",
    "zp_dtype",
    "observer",
    "observer_kwargs",
}
_TELLING = ("num_bits", "type", "strategy", "group_size", "block_structure", "dynamic")


def declared_ct(config: Mapping[str, Any], modules: Sequence[str]) -> Declared:
    """Resolves a `quantization_config` against the modules of a checkpoint."""
    found = Declared("compressed-tensors")
    if config.get("quantization_status") != "compressed":
        found.complain(
            "config-status",
            "config.json",
            f"quantization_status is {config.get('quantization_status')!r}; readers take packed "
            "weights only for 'compressed'",
        )
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        found.complain("config-groups", "config.json", "there are no config_groups")
        return found
    targets: dict[str, list[str]] = {}
    for name, group in groups.items():
        scheme = _scheme(name, group, found)
        targets[name] = list(group.get("targets") or ())
        _check_targets(name, targets[name], found)
        for module in modules:
            if any(hits(target, module) for target in targets[name]):
                _assign(module, name, scheme, found)
    _check_format(config, groups, found)
    _ignore(config.get("ignore") or (), modules, found)
    return found


def _scheme(name: str, group: Mapping[str, Any], found: Declared) -> str:
    """The scheme whose telling keys a group has; `""` where there is none."""
    unknown = set(group) - _GROUP_KEYS
    for part in ("weights", "input_activations"):
        unknown |= set(group.get(part) or {}) - _ARGUMENT_KEYS
    if unknown:
        found.complain(
            "config-key", name, f"unknown keys {sorted(unknown)}; readers refuse the checkpoint"
        )
    for scheme in SCHEMES:
        known = group_of(scheme, [])
        same = all(_telling(group.get(p)) == _telling(known[p]) for p in _PARTS)
        if same and _scale_dtype(group) == _scale_dtype(known):
            if group.get("format") != known["format"]:
                found.complain(
                    "config-format",
                    name,
                    f"format is {group.get('format')!r}, its arguments mean {known['format']!r}",
                )
            return scheme
    found.complain("config-scheme", name, "its arguments are no scheme that engines have")
    return ""


_PARTS = ("weights", "input_activations")


def _telling(arguments: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {key: arguments.get(key) for key in _TELLING} if arguments else None


def _scale_dtype(group: Mapping[str, Any]) -> object:
    """Tells MX groups from others of equal size."""
    weights = group.get("weights") or {}
    return weights.get("scale_dtype") if weights.get("strategy") == "group" else None


def _check_targets(name: str, targets: Iterable[str], found: Declared) -> None:
    for target in targets:
        if target.startswith("re:") and not target.endswith("$"):
            found.complain(
                "open-pattern", name, f"target {target!r} does not end in $ and hits longer names"
            )
        elif not target.startswith("re:") and target[:1].isupper() and "." not in target:
            found.complain(
                "class-target",
                name,
                f"target {target!r} is a class name, which engines resolve in different orders",
            )


def _assign(module: str, group: str, scheme: str, found: Declared) -> None:
    if module in found.schemes:
        found.complain("overlapping-targets", module, f"is hit by {group} and by a group before it")
        return
    found.schemes[module] = scheme


def _check_format(config: Mapping[str, Any], groups: Mapping[str, Any], found: Declared) -> None:
    formats = {group.get("format") for group in groups.values()}
    wanted = formats.pop() if len(formats) == 1 else "mixed-precision"
    if config.get("format") != wanted:
        found.complain(
            "config-format", "config.json", f"format is {config.get('format')!r}, not {wanted!r}"
        )


def _ignore(entries: Iterable[str], modules: Sequence[str], found: Declared) -> None:
    for entry in entries:
        hit = [module for module in modules if hits(entry, module)]
        if entry.startswith("re:") and not entry.endswith("$"):
            found.complain("open-pattern", "ignore", f"{entry!r} does not end in $")
        if "*" in entry and not entry.startswith("re:"):
            found.complain("glob", "ignore", f"{entry!r} is a glob, which hits nothing")
        wide = [module for module in hit if module in found.schemes]
        if wide:
            found.complain("wide-ignore", "ignore", f"{entry!r} also hits {', '.join(wide[:4])}")
        found.ignored.update(hit)
