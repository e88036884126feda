"""`qrole lock`: write a resolved plan, or check that today's is the one that was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qrole_cli.commands.diff import differing, show_changes
from qrole_cli.console import OutputFormat, finish
from qrole_cli.options import (
    AttentionOption,
    FactoryOption,
    FormatOption,
    JsonOption,
    ModelArgument,
    RemoteCodeOption,
    chosen_format,
)

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Plan")
    def lock(
        model: ModelArgument,
        factory: FactoryOption,
        file: Annotated[
            Path, typer.Option("--output", "-o", metavar="FILE", help="The lock file.")
        ] = Path("qrole.lock"),
        check: Annotated[
            bool, typer.Option("--check", help="Compare with the lock file; exit 1 if it differs.")
        ] = False,
        attention: AttentionOption = False,
        trust_remote_code: RemoteCodeOption = False,
        output: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Write which quantizer every slot gets, one slot a line; or check that it still does.

        Example: qrole lock sample_models/mlp.py -f nvfp4 && qrole lock sample_models/mlp.py -f \
nvfp4 --check
        """
        from qrole.api import plan as resolve
        from qrole.diff import Side, compare_sides
        from qrole.lock import lock_entries, read_lock, write_lock
        from qrole.rows import counted

        written = read_lock(file) if check else {}
        plan = resolve(model, factory, attention=attention, trust_remote_code=trust_remote_code)
        if not check:
            write_lock(plan, file)
            finish(True, f"{file}: {counted(len(plan.decisions), 'slot')}")
            return
        before = Side(str(file), written, {})
        changes = compare_sides(before, Side(factory, lock_entries(plan), {}))
        show_changes(changes, str(file), factory, chosen_format(output, as_json))
        if changes:
            finish(False, f"{differing(len(changes), 'slot')} from {file}")
            raise typer.Exit(1)
        finish(True, f"{counted(len(plan.decisions), 'slot')} as in {file}")
