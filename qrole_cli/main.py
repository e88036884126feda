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
from qrole.te_shim import ShimFinder
from qrole_cli import console
from qrole_cli.streams import guard_streams

__all__ = ["app", "invoke", "run"]

_INTERNAL = 3
_INTERRUPTED = 130

#: Options of qrole itself that stand before the command or after it.
_EVERYWHERE = ("quiet", "verbose", "threads", "te_shim")
_PANEL = "Before or after every command"


class _Group(TyperGroup):
    """Lists commands in the order of the work, not of the alphabet."""

    _order = ("inspect", "audit", "why", "explain", "factories", "lock", "diff", "apply", "verify",
              "compare", "search", "report")  # fmt: skip

    def list_commands(self, ctx: Any) -> list[str]:
        rank = {name: i for i, name in enumerate(self._order)}
        return sorted(super().list_commands(ctx), key=lambda name: rank.get(name, len(rank)))

    def get_params(self, ctx: Any) -> list[Any]:
        return _typeless_flags(super().get_params(ctx))


def _typeless_flags(params: list[Any]) -> list[Any]:
    """Parameters whose help does not say of flags that they are true or false."""
    for parameter in params:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return params


class _Command(TyperCommand):
    """Takes the options of qrole itself too, and leaves stdout to the command's data."""

    def get_params(self, ctx: Any) -> list[Any]:
        shared = [p for p in ctx.find_root().command.params if p.name in _EVERYWHERE]
        return _typeless_flags([*super().get_params(ctx), *shared])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [
            piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)
        ]

    def invoke(self, ctx: Any) -> Any:
        given = {name: ctx.find_root().params[name] for name in _EVERYWHERE}
        for name in _EVERYWHERE:
            value = ctx.params.pop(name)
            if ctx.get_parameter_source(name).name == "COMMANDLINE":
                given[name] = value
        _obey(**given)
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
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Only data and failures.", rich_help_panel=_PANEL),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show tracebacks.", rich_help_panel=_PANEL)
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads of the kernels; default: as many as torch uses.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    te_shim: Annotated[
        bool,
        typer.Option(
            "--te-shim/--no-te-shim",
            help="Let files import transformer_engine where it is not installed.",
            rich_help_panel=_PANEL,
        ),
    ] = True,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Versions, and exit."),
    ] = False,
) -> None:
    """Which quantizer every tensor of a model gets: show it, check it, apply it, measure it."""


def _obey(*, quiet: bool, verbose: bool, threads: int | None, te_shim: bool) -> None:
    console.settings.quiet = quiet
    console.settings.verbose = verbose
    if threads is not None:
        os.environ["QROLE_NUM_THREADS"] = str(threads)
    if not te_shim:
        os.environ["QROLE_NO_TE_SHIM"] = "1"
    ShimFinder.on_use = _say_shim


def _say_shim() -> None:
    console.note(
        "transformer_engine is not installed; qrole's classes stand in for it "
        "(--no-te-shim turns that off)"
    )


def _register() -> None:
    for module in pkgutil.iter_modules(qrole_cli.commands.__path__):
        importlib.import_module(f"qrole_cli.commands.{module.name}").register(app)
    for command in app.registered_commands:
        command.cls = _Command


def run(arguments: list[str] | None = None) -> None:
    """The console script: runs a command and exits with its code."""
    warnings.showwarning = _show_warning
    guard_streams()
    sys.exit(invoke(arguments))


def invoke(arguments: list[str] | None) -> int:
    """Runs a command in this process and returns its exit code; errors become messages."""
    try:
        _dispatch(arguments)
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


def _dispatch(arguments: list[str] | None) -> None:
    """Runs a command; what it left in stdout's buffer is written while errors still have a say."""
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="qrole")
    finally:
        sys.stdout.flush()


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
