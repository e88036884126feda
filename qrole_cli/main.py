"""The root command: options that all commands share, and errors as messages with exit codes."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

import qrole_cli.commands
from qrole.errors import FactoryError, QroleError, UserCodeError
from qrole_cli import console

__all__ = ["app", "invoke", "run"]

_INTERNAL = 3
_INTERRUPTED = 130


class _Group(TyperGroup):
    """Lists commands in the order of the work, not of the alphabet."""

    _order = ("inspect", "audit", "why", "explain", "factories", "lock", "diff", "apply", "verify",
              "compare", "search", "report")  # fmt: skip

    def list_commands(self, ctx: Any) -> list[str]:
        rank = {name: i for i, name in enumerate(self._order)}
        return sorted(super().list_commands(ctx), key=lambda name: rank.get(name, len(rank)))


class _Command(TyperCommand):
    """Leaves stdout to the command's data."""

    def invoke(self, ctx: Any) -> Any:
        with console.data_on_stdout():
            return super().invoke(ctx)


app = typer.Typer(
    name="qrole",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from qrole_cli.version import version_lines

        sys.stdout.write("\n".join(version_lines()) + "\n")
        raise typer.Exit


@app.callback()
def root(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only data and failures.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show tracebacks.")] = False,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of the kernels; default: as many as torch uses."),
    ] = None,
    te_shim: Annotated[
        bool,
        typer.Option(
            "--te-shim/--no-te-shim",
            help="Let files import transformer_engine where it is not installed.",
        ),
    ] = True,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Versions, and exit."),
    ] = False,
) -> None:
    """Which quantizer every tensor of a model gets: show it, check it, apply it, measure it."""
    console.settings.quiet = quiet
    console.settings.verbose = verbose
    if threads is not None:
        os.environ["QROLE_NUM_THREADS"] = str(threads)
    if not te_shim:
        os.environ["QROLE_NO_TE_SHIM"] = "1"


def _register() -> None:
    for module in pkgutil.iter_modules(qrole_cli.commands.__path__):
        importlib.import_module(f"qrole_cli.commands.{module.name}").register(app)
    for command in app.registered_commands:
        command.cls = _Command


def run(arguments: list[str] | None = None) -> None:
    """The console script: runs a command and exits with its code."""
    warnings.showwarning = _show_warning
    sys.exit(invoke(arguments))


def invoke(arguments: list[str] | None) -> int:
    """Runs a command in this process and returns its exit code; errors become messages."""
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="qrole")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if code == _INTERRUPTED:
            console.err.print(Text("interrupted", style="bold yellow"))
        return code
    except QroleError as error:
        _print_error(error)
        return error.exit_code
    except Exception as error:
        _print_internal(error)
        return _INTERNAL
    return 0


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """What Python code warns of, without the place in qrole that says it."""
    console.warn(str(message))


def _print_error(error: QroleError) -> None:
    lines = Text.assemble(("error: ", "bold red"), error.given)
    if error.expected:
        lines.append_text(Text.assemble("\n  ", ("expected: ", "bold"), error.expected))
    if error.hint:
        lines.append_text(Text.assemble("\n  ", ("to do: ", "bold"), error.hint))
    console.err.print(lines, soft_wrap=True)
    if isinstance(error, (UserCodeError, FactoryError)) and error.traceback:
        console.err.print(Text(error.traceback, style="dim"), soft_wrap=True)
    if console.settings.verbose:
        console.err.print(Text("".join(traceback.format_exception(error))), soft_wrap=True)


def _print_internal(error: Exception) -> None:
    console.err.print(
        Text.assemble(
            ("internal error: ", "bold red"),
            f"{type(error).__name__}: {error}\n  ",
            ("to do: ", "bold"),
            "report it with the output of `qrole --version` and of the command with -v",
        ),
        soft_wrap=True,
    )
    if console.settings.verbose:
        console.err.print(Text("".join(traceback.format_exception(error))), soft_wrap=True)


_register()
