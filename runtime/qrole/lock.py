"""A resolved plan as text, one slot a line, that is equal wherever it is made.

The file is TOML. It holds what the factory answered and for which kind of role, in a natural order
of the slots; no hashes, no paths, no names that a process numbers. Options that have their default
are left out, so that a new option changes nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from qrole.errors import CheckpointError, FactoryError, UsageError
from qrole.plans import Decision, Plan
from qrole.quantizers.base import Quantizer
from qrole.roles import Direction, QuantizerRequest, Slot

__all__ = ["answer_text", "lock_entries", "lock_text", "natural_key", "read_lock", "write_lock"]

_VERSION = 1
_HEADER = "# Which quantizer every slot gets: written by `qrole lock`, compared by `--check`.\n"


def lock_entries(plan: Plan) -> dict[str, str]:
    """The answer of every slot as text, by slot id, in natural order.

    Raises:
        FactoryError: A slot has no usable answer.
    """
    for decision in plan:
        if decision.error:
            raise FactoryError(
                decision.error,
                expected="a factory that answers every slot",
                hint="`qrole audit` lists everything that is wrong with the factory",
            )
    ordered = sorted(plan.decisions, key=lambda d: _order(d.slot))
    return {decision.slot.id: _line(decision) for decision in ordered}


def lock_text(plan: Plan) -> str:
    """The lock file of a plan."""
    lines = [f"{json.dumps(key)} = {json.dumps(text)}" for key, text in lock_entries(plan).items()]
    return f"{_HEADER}version = {_VERSION}\n\n[slots]\n" + "\n".join(lines) + "\n"


def write_lock(plan: Plan, path: Path) -> None:
    """Writes the lock file of a plan; an older one is replaced as a whole.

    Raises:
        CheckpointError: It cannot be written.
    """
    text = lock_text(plan)
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        os.replace(partial, path)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}",
            expected="a folder that can be written to",
            hint="name another file with -o",
        ) from error


def read_lock(path: Path) -> dict[str, str]:
    """The entries of a lock file.

    Raises:
        UsageError: It is missing, or is no lock file of this version.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}",
            expected="a file that `qrole lock` has written",
            hint="run `qrole lock` without --check first",
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _no_lock(path, str(error)) from error
    slots = content.get("slots")
    if content.get("version") != _VERSION or not isinstance(slots, dict):
        raise _no_lock(path, f"version {content.get('version')!r}")
    if not all(isinstance(text, str) for text in slots.values()):
        raise _no_lock(path, "a slot's entry is no text")
    return slots


def _no_lock(path: Path, what: str) -> UsageError:
    return UsageError(
        f"{path} is no lock file: {what}",
        expected=f"a lock file of version {_VERSION}",
        hint="write it anew with `qrole lock`",
    )


def _line(decision: Decision) -> str:
    """The answers of a slot's copies in runs, and the kind of its role."""
    texts = [answer_text(answer) for answer in decision.answers]
    runs = [(text, len(list(run))) for text, run in itertools.groupby(texts)]
    single = len(texts) == 1
    answer = runs[0][0] if single else ", ".join(f"{n} x {text}" for text, n in runs)
    role = decision.slot.role
    if role is None:
        return f"{answer} for no role"
    kind = f"{role.module_type}/{role.tensor_type}".strip("/")
    return f"{answer} for {kind or 'a bare role'}"


def answer_text(answer: Any) -> str:
    """A quantizer or request as a constructor call, options that have their default left out."""
    if isinstance(answer, Quantizer):
        values = {name: getattr(answer, name) for name in answer.options}
    elif isinstance(answer, QuantizerRequest):
        values = {f.name: getattr(answer, f.name) for f in dataclasses.fields(answer)}
    else:
        return _value(answer)
    parameters = inspect.signature(type(answer)).parameters
    shown = {
        name: value
        for name, value in values.items()
        if name not in parameters or not _is_default(parameters[name].default, value)
    }
    return f"{type(answer).__name__}({', '.join(f'{k}={_value(v)}' for k, v in shown.items())})"


def _is_default(default: Any, value: Any) -> bool:
    return (
        default is not inspect.Parameter.empty
        and type(default) is type(value)
        and (default is value or default == value)
    )


def _value(value: Any) -> str:
    """A text that is equal in every process: names of members and functions, no addresses."""
    if isinstance(value, Quantizer | QuantizerRequest):
        return answer_text(value)
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "name") and isinstance(value.name, str):
        return value.name
    text = repr(value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _order(slot: Slot) -> tuple[Any, ...]:
    return (natural_key(slot.module), slot.direction is not Direction.FORWARD, slot.index)


def natural_key(text: str) -> list[tuple[int, int | str]]:
    """Sort key that puts layer 2 before layer 10."""
    parts = re.split(r"(\d+)", text)
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts]
