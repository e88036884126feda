"""The page of commands, from the terminal's app: usage, arguments, options, exit codes."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer  # noqa: TID251 - the page is about the terminal

from docs.markdown import cell, table
from qrole import errors
from qrole_cli.main import app

__all__ = ["commands_page"]

_INTRODUCTION = """\
Every command prints data on stdout and everything else on stderr. What judges or writes says in its
last line, on stderr, how it went: PASSED, FAILED or DONE. `--json` has a [schema](schemas.md) with
a version. Output that is no terminal has 80 columns, no colours and no progress bars.

The examples run in a checkout, which brings `sample_models`; `path/to/model` is any
HuggingFace-style directory. `# exit 1` behind an example is its exit code, where it is not 0."""

_ENVIRONMENT = (
    ("`QROLE_NUM_THREADS`", "Threads of the CPU kernels, as `--threads`."),
    ("`QROLE_CACHE_DIR`", "Where compiled CPU kernels are kept; default `~/.cache/qrole`."),
    ("`QROLE_NO_TE_SHIM`", "`1`: never stand in for TransformerEngine, as `--no-te-shim`."),
    ("`NO_COLOR`, `FORCE_COLOR`, `COLUMNS`", "Colours and width of the output."),
    ("`NVTE_…`", "What TransformerEngine's recipes read, read by qrole's in the same way."),
    ("`GITHUB_ACTIONS`, `GITHUB_STEP_SUMMARY`", "Turn on annotations and summary of `compare`."),
    ("`RANK`, `WORLD_SIZE`, `MASTER_ADDR`", "Set by `torchrun`: `apply` shares the work."),
)

# What an example needs that a checkout does not have, and the exit codes that are not 0.
_BEFORE = {
    "report": (
        "qrole inspect sample_models/llama_tiny.py -f nvfp4 --json > inspect.json",
        "qrole compare sample_models/llama_tiny.py -f nvfp4 --json > compare.json",
    )
}
_EXIT = {"audit": 1, "diff": 1}


def commands_page() -> str:
    """One section per command."""
    root: Any = typer.main.get_command(app)
    context = root.context_class(root, info_name="qrole")
    names = root.list_commands(context)
    parts = ["# Commands", _INTRODUCTION, _overview(root, context, names)]
    parts += ["## Options of qrole itself", *_options(root)]
    for name in names:
        parts += [f"## qrole {name}", *_command(name, root.get_command(context, name))]
    parts += ["## Exit codes", _exit_codes(), "## Environment", _environment()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _overview(root: Any, context: Any, names: list[str]) -> str:
    rows = []
    for name in names:
        command = root.get_command(context, name)
        rows.append((f"[`{name}`](#qrole-{name})", _summary(command.help)))
    return table(("command", "what it does"), rows)


def _summary(text: str | None) -> str:
    return (text or "").split("\n\n")[0]


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(["qrole", name, *(_metavar(p) for p in arguments), "[OPTIONS]"])
    text, _, example = (command.help or "").partition("\n\nExample: ")
    yield f"```text\n{usage}\n```"
    yield text
    lines = [*_BEFORE.get(name, ()), *_example(example)]
    if name in _EXIT:
        lines[-1] += f"  # exit {_EXIT[name]}"
    if lines:
        yield "```console\n" + "".join(f"$ {line}\n" for line in lines) + "```"
    if arguments:
        yield table(
            ("argument", "meaning"), [(f"`{_metavar(p)}`", cell(p.help)) for p in arguments]
        )
    yield from _options(command)


def _example(text: str) -> list[str]:
    return [line for line in text.replace("\\\n", "").splitlines() if line.strip()]


def _options(command: Any) -> Iterator[str]:
    """A table per group of options."""
    groups: dict[str, list[Any]] = {}
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            groups.setdefault(getattr(option, "rich_help_panel", None) or "", []).append(option)
    values = _value_types(command)
    for title, options in sorted(groups.items(), key=lambda pair: pair[0] != ""):
        if title:
            yield f"{title}:"
        rows = [_option(option, values.get(option.name)) for option in options]
        yield table(("option", "meaning", "default"), rows)


def _value_types(command: Any) -> dict[str, Any]:
    function = inspect.unwrap(command.callback)
    return typing.get_type_hints(function)


def _option(option: Any, kind: Any) -> tuple[str, str, str]:
    value = _value(option, kind)
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    required = "required" if option.required else ""
    flag = option.default is True or option.default is False or option.default is None
    default = "" if flag or option.default in ((), [], "") else f"`{_shown(option.default)}`"
    if option.default is True and option.secondary_opts:
        default = f"`{option.opts[0]}`"
    return f"{names}{value}", cell(option.help), required or default


def _value(option: Any, kind: Any) -> str:
    """What an option takes: ` ` and words in code, nothing for a flag."""
    choices = option.metavar or ""
    if not choices and isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = "|".join(str(member.value) for member in kind)
    if not choices:
        names = {int: "N", float: "X", Path: "FILE", str: "TEXT"}
        choices = next((name for found, name in names.items() if found in _parts(kind)), "")
    return " " + " or ".join(f"`{word}`" for word in choices.split("|")) if choices else ""


def _parts(kind: Any) -> Iterator[Any]:
    yield kind
    for part in typing.get_args(kind):
        yield from _parts(part)


def _shown(value: Any) -> str:
    return str(value.value if isinstance(value, enum.Enum) else value)


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper()) + "..." * (parameter.nargs != 1)


def _exit_codes() -> str:
    meanings = {
        0: "it was done, and nothing was found",
        1: "findings, differences, or a broken limit",
    }
    tree = [errors.QroleError, *_below(errors.QroleError)]
    for cls in tree:
        if cls is errors.QroleError:
            text = "an error in qrole itself; report it with `qrole --version` and `-v`"
        else:
            text = _summary(inspect.getdoc(cls)).rstrip(".").replace("\n", " ")
            text = text[:1].lower() + text[1:]
        known = meanings.get(cls.exit_code)
        meanings[cls.exit_code] = f"{known}; {text}" if known else text
    return table(("code", "meaning"), [(str(code), meanings[code]) for code in sorted(meanings)])


def _below(cls: type[errors.QroleError]) -> Iterator[type[errors.QroleError]]:
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
        yield from _below(child)


def _environment() -> str:
    return table(("variable", "meaning"), _ENVIRONMENT)
