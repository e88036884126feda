"""The page of JSON schemas: keys from the dataclasses that are printed, the rest named here.

A test runs the commands and compares the keys that they print with the keys of this page.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from docs.markdown import cell, table
from qrole.auditing.registry import Code, Hit
from qrole.checkpoint.apply import ApplyReport
from qrole.checkpoint.bill import Bill
from qrole.checkpoint.verification.report import VerifyReport
from qrole.comparing.gate import Gate
from qrole.comparing.report import Report
from qrole.plans import Uncovered
from qrole.quantizers.operand_format import OperandFormat
from qrole.roles import Slot
from qrole.searching import SearchResult
from qrole.summary import PlanSummary

__all__ = ["KEYS", "attributes", "schemas_page"]

_INTRODUCTION = """\
`--json` prints one object with a key `schema`. The number in it changes when a key changes its
meaning or goes away; new keys may come at any time, so read what you know and leave the rest.
Numbers that JSON has no form for are the strings `"inf"`, `"-inf"` and `"nan"`."""

Key = tuple[str, str, str]

_SCHEMA: Key = ("schema", "string", "Name and version, as in the heading.")


def attributes(cls: type) -> dict[str, str]:
    """Meaning of each attribute, from the section `Attributes:` of a docstring."""
    text = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        entry = re.match(r"    (\w+): (.*)", line)
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif name and line.startswith("        "):
            found[name] += f" {line.strip()}"
        elif line.strip():
            break
    return {name: re.sub(r"\bNone\b", "null", meaning) for name, meaning in found.items()}


def _type(kind: Any) -> str:
    """A JSON type in words; dataclasses are tables of their own."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        named = [_type(part) for part in inner if part is not type(None)]
        return " or ".join([*named, "null"] if type(None) in inner else named)
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return f"list of {_type(inner[0])}"
    if origin is tuple:
        assert len(set(inner)) == 1, "a pair of one type"
        return f"list of {len(inner)} {_type(inner[0])}"
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin in (dict, Mapping):
        return f"object of {_type(inner[1])} by name"
    if dataclasses.is_dataclass(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"string: {', '.join(f'`{member.value}`' for member in kind)}"
    names = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "string"}
    return names.get(kind, "any")


def _keys(cls: type, *, without: tuple[str, ...] = ()) -> list[Key]:
    """Keys of a dataclass as `dataclasses.asdict` gives them."""
    meanings, kinds = attributes(cls), typing.get_type_hints(cls)
    return [
        (field.name, _type(kinds[field.name]), meanings[field.name])
        for field in dataclasses.fields(cls)
        if field.name not in without
    ]


def _nested(cls: type, seen: dict[str, type]) -> dict[str, type]:
    """The dataclasses that a dataclass holds, in order of first use."""
    for kind in typing.get_type_hints(cls).values():
        for part in _parts(kind):
            if dataclasses.is_dataclass(part) and part.__name__ not in seen:
                seen[part.__name__] = part
                _nested(part, seen)
    return seen


def _parts(kind: Any) -> Iterator[type]:
    inner = typing.get_args(kind)
    if not inner and isinstance(kind, type):
        yield kind
    for part in inner:
        yield from _parts(part)


_CODE, _HIT = attributes(Code), attributes(Hit)

_INSPECT: list[Key] = [
    _SCHEMA,
    ("model", "string", "How the model was named."),
    ("parameters", "integer", "Elements of all parameters, tied ones counted once."),
    ("slots", "list of [slots](#slot)", "Every slot, or those that `--module` left."),
    ("not_covered", "list of [Uncovered](#uncovered)", "Parameters that no slot quantizes."),
    ("tied", "list of list of string", "Groups of parameter names that share one tensor."),
    ("notes", "list of string", "Things the user should know."),
    ("factory", "object", "With `--factory`: its `name`, `qualname`, and `sha256` of its file."),
    ("totals", "[PlanSummary](#plansummary)", "With `--factory`: parameters and FLOPs by format."),
    ("warnings", "list of string", "With `--factory`: what it warned of."),
]
_SLOT: list[Key] = [
    ("id", "string", "`module:direction[index]`, unique in the model."),
    *_keys(Slot),
    ("reads", "list of string", "GEMMs that read it, and which data of it: `fprop.row`."),
    ("label", "string", "With `--factory`: short name of its answer."),
    ("quantizer", "object", "With `--factory`: class name under `quantizer`, and its options."),
    (
        "rowwise",
        "[OperandFormat](#operandformat) or null",
        "With `--factory`: its row-wise format.",
    ),
    ("columnwise", "[OperandFormat](#operandformat) or null", "Likewise, column-wise."),
]
_AUDIT: list[Key] = [
    _SCHEMA,
    ("model", "string", "How the model was named."),
    ("factory", "string or null", "How the factory was named; null for a written checkpoint."),
    ("slots", "integer", "Slots, or weights of a checkpoint, that were looked at."),
    ("checks", "integer", "Codes that were checked."),
    ("counts", "object of integer by name", "Findings by severity: `error`, `warning`, `note`."),
    ("findings", "list of [findings](#finding)", "Worst first."),
    ("notes", "list of string", "Things the user should know."),
    ("readings", "object", "For a checkpoint: what is `stored` and what each engine reads."),
]
_FINDING: list[Key] = [
    ("code", "string", _CODE["name"]),
    ("severity", "string: `error`, `warning`, `note`", _CODE["severity"]),
    ("meaning", "string", _CODE["summary"]),
    ("where", "string", _HIT["where"]),
    ("module", "string or null", "Path of the module; null for none."),
    ("message", "string", _HIT["message"]),
    ("to_do", "string", _HIT["to_do"]),
    ("file", "string or null", _HIT["file"]),
    ("line", "integer or null", _HIT["line"]),
]
_GATE: list[Key] = [
    ("passed", "boolean or null", "Null where there was nothing to judge."),
    ("judged", "list of string", attributes(Gate)["judged"]),
    ("violations", "list of [violations](#violation)", "What broke, worst first."),
]
_VIOLATION: list[Key] = [
    ("candidate", "string", "Name of the factory."),
    ("where", "string", "What was measured, in words."),
    ("metric", "string", "Name of the value."),
    ("value", "number", "What was found."),
    ("limit", "string", "The limit."),
    ("text", "string", "All of it in one line."),
]
_WHY: list[Key] = [
    ("id", "string", "The slot."),
    ("role", "string", "Its role as text."),
    ("label", "string", "Short name of its answer."),
    ("quantizer", "object or null", "Class name under `quantizer`, and its options."),
    ("error", "string or null", "Why there is no usable answer."),
    ("untraceable", "string or null", "Why the line is not known."),
    ("origin", "object or null", "`kind`, `file`, `line`, `text`, `conditions` of the decision."),
    ("rules", "list of object", "`rule`, `mismatch`, `decides` of each rule of a rules file."),
    ("layer", "object of string by name", "Answers of the layer's other operands."),
    ("alike", "list of object", "`label` and `count`: the same slot of modules of this name."),
]
_DIFF: list[Key] = [
    _SCHEMA,
    ("before", "string", "The first plan, as it was named."),
    ("after", "string", "The second."),
    (
        "changes",
        "list of object",
        "`where`, and `before` and `after`, null on the side without it.",
    ),
]
_EXPLAIN: list[Key] = [
    ("code", "string", _CODE["name"]),
    ("severity", "string", _CODE["severity"]),
    ("family", "string", "What the code is about."),
    ("meaning", "string", _CODE["summary"]),
    ("explanation", "string", _CODE["explanation"]),
]
_FACTORIES: list[Key] = [
    ("name", "string", "What `--factory` takes."),
    ("target", "string", "`module:attribute`."),
    ("package", "string", "Distribution that offers it, with its version."),
    ("description", "string", "First paragraph of its docstring."),
]
_MANIFEST: list[Key] = [
    _SCHEMA,
    ("qrole", "string", "Version that wrote it."),
    ("source", "object", "Name of the source; size and hash of the header of each weight file."),
    ("factory", "object", "`name`, `qualname` and `sha256` of the factory."),
    ("layout", "string", "Layout of the checkpoint."),
    ("options", "object", "Options that the bytes depend on."),
    (
        "layers",
        "object",
        "Every quantized layer: source tensor, scheme, format, slot, answer, amax.",
    ),
    ("kept", "object of string by name", "Why each other tensor stays as it is."),
    ("dropped", "object of string by name", "Tied tensors that are not written, and their twins."),
    ("notes", "list of string", "Where schemes differ from the plan."),
    ("calibration", "object or null", "Data and its hash, methods, input amax of each layer."),
]

_REPORT: list[Key] = [
    _SCHEMA,
    ("page", "string", "The file that was written."),
    ("slots", "integer", "Slots on it."),
    ("measurements", "integer", "Tensors, products and layers on it, of all candidates."),
    ("findings", "integer", "Findings on it, equal ones once."),
]

_DATA: list[Key] = [
    ("source", "string", "File, function or text that the inputs came from."),
    ("batches", "integer", "Forward passes."),
    ("samples", "integer", "Samples in all of them."),
    ("tokens", "integer", "Tokens that count; 0 where inputs are no tokens."),
    ("sha256", "string", "Hash of the inputs."),
]

#: What each command prints, by schema and object; the tests compare it with real output.
KEYS: dict[str, dict[str, list[Key]]] = {
    "qrole.inspect/1": {"": _INSPECT, "Slot": _SLOT},
    "qrole.audit/1": {"": _AUDIT, "Finding": _FINDING},
    "qrole.compare/1": {
        "": [
            _SCHEMA,
            *_keys(Report),
            ("gate", "[Gate](#gate)", "What was judged; not in files that `--save` writes."),
        ],
        "Gate": _GATE,
        "Violation": _VIOLATION,
        "Data": _DATA,
    },
    "qrole.search/1": {"": [_SCHEMA, *_keys(SearchResult)]},
    "qrole.apply/1": {"": [_SCHEMA, *_keys(ApplyReport)]},
    "qrole.bill/1": {"": [_SCHEMA, *_keys(Bill)]},
    "qrole.verify/1": {"": [_SCHEMA, ("ok", "boolean", "Nothing is wrong."), *_keys(VerifyReport)]},
    "qrole.why/1": {
        "": [_SCHEMA, ("slots", "list of object", "One per slot asked for; keys below.")],
        "Reason": _WHY,
    },
    "qrole.diff/1": {"": _DIFF},
    "qrole.report/1": {"": _REPORT},
    "qrole.explain/1": {
        "": [_SCHEMA, ("codes", "list of object", "One per code; keys below.")],
        "Code": _EXPLAIN,
    },
    "qrole.factories/1": {
        "": [_SCHEMA, ("factories", "list of object", "One per factory; keys below.")],
        "Factory": _FACTORIES,
    },
    "qrole.manifest/1": {"": _MANIFEST},
}
_ROOTS: dict[str, tuple[type, ...]] = {
    "qrole.inspect/1": (Slot, Uncovered, PlanSummary, OperandFormat),
    "qrole.compare/1": (Report,),
    "qrole.search/1": (SearchResult,),
    "qrole.apply/1": (ApplyReport,),
    "qrole.bill/1": (Bill,),
    "qrole.verify/1": (VerifyReport,),
}
_WRITERS = {
    "qrole.inspect/1": "`qrole inspect --json`",
    "qrole.audit/1": "`qrole audit --json`",
    "qrole.compare/1": "`qrole compare --json`, and `--save`",
    "qrole.search/1": "`qrole search --json`",
    "qrole.apply/1": "`qrole apply --json`",
    "qrole.bill/1": "`qrole apply --dry-run --json`",
    "qrole.verify/1": "`qrole verify --json`",
    "qrole.why/1": "`qrole why --json`",
    "qrole.diff/1": "`qrole diff --json`, and `qrole lock --check --json`",
    "qrole.report/1": "`qrole report --json`",
    "qrole.explain/1": "`qrole explain --json`",
    "qrole.factories/1": "`qrole factories --json`",
    "qrole.manifest/1": "`qrole_manifest.json` beside a written checkpoint",
}


def schemas_page() -> str:
    """Every schema, and the rules file's."""
    parts = ["# JSON schemas", _INTRODUCTION]
    done: set[str] = set()
    for name, objects in KEYS.items():
        parts += [f"## {name}", f"Written by {_WRITERS[name]}."]
        for title, keys in objects.items():
            parts += [*([f"### {title}"] if title else []), _table(keys)]
        for title, cls in _classes(name).items():
            if title not in done and title not in objects:
                done.add(title)
                parts += [f"### {title}", _table(_keys(cls))]
    parts += ["## Rules files", *_rules()]
    return "\n\n".join(parts) + "\n"


def _classes(name: str) -> dict[str, type]:
    found: dict[str, type] = {}
    for root in _ROOTS.get(name, ()):
        if root.__name__ not in ("Report", "SearchResult", "ApplyReport", "Bill", "VerifyReport"):
            found[root.__name__] = root
        _nested(root, found)
    return found


def _table(keys: list[Key]) -> str:
    rows = [(f"`{key}`", cell(kind), cell(meaning)) for key, kind, meaning in keys]
    return table(("key", "type", "meaning"), rows)


def _rules() -> Iterator[str]:
    """The rules file's keys, from `rules.schema.json`."""
    text = files("qrole.factories").joinpath("rules.schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    yield "TOML. `rules.schema.json` in the package `qrole.factories` is its JSON Schema."
    yield _table(list(_properties(schema)))
    yield "Keys of a `[[rule]]`:"
    yield _table(list(_properties(schema["$defs"]["rule"])))


def _properties(schema: Mapping[str, Any]) -> Iterator[Key]:
    for key, found in schema["properties"].items():
        kind = _schema_type(found)
        meaning = found.get("description", "")
        if key == "options":
            meaning = "Keywords of the quantizer's constructor."
        if key == "rule":
            meaning = "Rules, first match decides; at least one."
        yield key, kind, meaning


def _schema_type(found: Mapping[str, Any]) -> str:
    if "const" in found:
        return f"`{found['const']}`"
    if "oneOf" in found:
        kinds = [_schema_type(option) for option in found["oneOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if found.get("type") == "array":
        return f"list of {_schema_type(found['items'])}"
    return {"object": "table"}.get(found.get("type", ""), found.get("type", "table"))
