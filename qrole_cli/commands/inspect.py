"""`qrole inspect`: the slots of a model, their roles, and what a factory answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from qrole_cli import console
from qrole_cli.console import Column, OutputFormat, show
from qrole_cli.options import (
    AttentionOption,
    FormatOption,
    JsonOption,
    ModelArgument,
    OptionalFactoryOption,
    RemoteCodeOption,
    chosen_format,
)

if TYPE_CHECKING:
    from qrole.plans import Decision, Inventory, Plan
    from qrole.roles import Slot

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Plan")
    def inspect(
        model: ModelArgument,
        factory: OptionalFactoryOption = None,
        module: Annotated[
            str | None,
            typer.Option("--module", "-m", metavar="GLOB", help="Only modules whose path matches."),
        ] = None,
        fold: Annotated[
            bool, typer.Option("--fold/--no-fold", help="Show runs of equal layers as one.")
        ] = True,
        wide: Annotated[
            bool, typer.Option("--wide", help="All columns, however narrow the terminal.")
        ] = False,
        attention: AttentionOption = False,
        trust_remote_code: RemoteCodeOption = False,
        output: FormatOption = OutputFormat.TABLE,
        as_json: JsonOption = False,
    ) -> None:
        """Show every slot of a model: its role, its GEMMs, and the quantizer it gets.

        Example: qrole inspect sample_models/mlp.py --factory nvfp4
        """
        from qrole.api import as_factory
        from qrole.api import inspect as find_slots
        from qrole.api import plan as resolve

        answering = as_factory(factory) if factory else None
        inventory = find_slots(model, attention=attention, trust_remote_code=trust_remote_code)
        plan = resolve(inventory, answering) if answering else None
        slots = _selected(inventory, module)
        chosen = chosen_format(output, as_json)
        entries = [(slot, plan.decision(slot.id) if plan else None) for slot in slots]
        rows = _rows(entries, fold and chosen is OutputFormat.TABLE)
        columns = _columns(rows, plan is not None)
        show(
            columns,
            [[row[column.name] for column in columns] for row in rows],
            _payload(model, entries, inventory, plan),
            chosen,
            wide=wide,
        )
        if chosen is OutputFormat.TABLE:
            _say_rest(inventory, plan, len(slots))


_COLUMNS = (
    Column("module", path=True),
    Column("class", path=True, drop=5),
    Column("TE name", path=True, drop=4),
    Column("slot"),
    Column("xN", right=True),
    Column("role", style="cyan"),
    Column("shape", right=True, drop=1),
    Column("read by", drop=2),
    Column("row-wise", style="green"),
    Column("column-wise", style="green"),
)


def _columns(rows: list[dict[str, str]], planned: bool) -> list[Column]:
    """The columns that have something to say."""
    silent = set() if planned else {"row-wise", "column-wise"}
    if not any(row["xN"] for row in rows):
        silent.add("xN")
    return [column for column in _COLUMNS if column.name not in silent]


def _selected(inventory: Inventory, pattern: str | None) -> list[Slot]:
    from fnmatch import fnmatchcase

    from qrole.errors import NothingMatchedError, UnknownNameError

    if not inventory.slots:
        held = "; ".join(f"{reason} ({numel:,})" for reason, numel in _uncovered(inventory))
        raise NothingMatchedError(
            f"{inventory.model} has no module that emits a role; it holds {held or 'no parameter'}",
            expected="at least one linear layer, or a module with get_quantizer_roles()",
            hint="check which model is named; packages add emitters through the entry points "
            "qrole.emitters",
        )
    if pattern is None:
        return list(inventory.slots)
    found = [slot for slot in inventory.slots if fnmatchcase(slot.module, pattern)]
    if not found:
        error = UnknownNameError("module", pattern, {slot.module for slot in inventory.slots})
        raise NothingMatchedError(error.given, expected=error.expected, hint=error.hint)
    return found


def _rows(entries: list[tuple[Slot, Decision | None]], folded: bool) -> list[dict[str, str]]:
    from qrole.folding import Folded, fold

    cells = [(slot, _cells(slot, decision)) for slot, decision in entries]
    if not folded:
        return [{**cell, "module": slot.module or "."} for slot, cell in cells]

    def key(item: tuple[Slot, dict[str, str]]) -> tuple[tuple[str, str], ...]:
        return tuple((k, v) for k, v in item[1].items() if k != "TE name")

    groups: list[Folded[tuple[Slot, dict[str, str]]]] = fold(
        cells, lambda item: item[0].module or ".", key
    )
    rows = []
    for group in groups:
        cell = dict(group.items[0][1])
        if len(group.items) > 1:
            cell["TE name"] = _fold_names([c["TE name"] for _, c in group.items])
        rows.append({**cell, "module": group.path})
    return rows


def _fold_names(names: list[str]) -> str:
    from qrole.folding import fold

    folded = fold(names, lambda name: name, lambda _: 0)
    return folded[0].path if len(folded) == 1 else f"{names[0]} and {len(names) - 1} more"


def _cells(slot: Slot, decision: Decision | None) -> dict[str, str]:
    short = "fwd" if slot.direction == "forward" else "bwd"
    return {
        "class": slot.module_class.rpartition(".")[2],
        "TE name": slot.te_name,
        "slot": f"{short} {slot.index}",
        "xN": f"x{slot.copies}" if slot.copies > 1 else "",
        "role": _role(slot),
        "shape": "x".join(map(str, slot.shape)) if slot.shape else "",
        "read by": " ".join(map(str, slot.reads)) if slot.consumed else "nothing",
        "row-wise": _format(decision, "rowwise"),
        "column-wise": _format(decision, "columnwise"),
    }


def _role(slot: Slot) -> str:
    role = slot.role
    if role is None:
        return f"None ({slot.operand})" if slot.operand else "None"
    if slot.bare:
        return "bare (no role list)"
    if not role.module_type and not role.tensor_type:
        return f"hint {role.name.rpartition('.')[2]}" if role.name else "bare"
    layer = f" {role.name.rpartition('.')[2]}" if slot.group else ""
    return f"{role.module_type}/{role.tensor_type}{layer}"


def _format(decision: Decision | None, usage: str) -> str:
    if decision is None:
        return ""
    found = decision.rowwise if usage == "rowwise" else decision.columnwise
    return found.label if found is not None else decision.label


def _say_rest(inventory: Inventory, plan: Plan | None, shown: int) -> None:
    from qrole.rows import counted, inventory_size

    out = console.out
    out.print(f"\n{inventory_size(inventory)}", style="bold")
    if plan is not None:
        _say_totals(plan)
    for reason, numel in _uncovered(inventory):
        out.print(f"not covered: {reason}: {numel:,} parameters", style="yellow")
    for group in inventory.tied:
        out.print(f"tied: {' = '.join(group)}")
    unread = sum(slot.copies for slot in inventory.slots if not slot.consumed)
    if unread:
        out.print(f"{counted(unread, 'slot')} built and never read")
    for text in inventory.notes:
        console.note(text)
    if shown < len(inventory.slots):
        rest = counted(len(inventory.slots) - shown, "slot")
        console.note(f"not shown: {rest} that --module left out")


def _say_totals(plan: Plan) -> None:
    from qrole.summary import summarize

    summary = summarize(plan)
    numel = sum(total.numel for total in summary.formats)
    rows = [
        [t.label, str(t.tensors), f"{t.numel:,}", f"{t.numel / numel:.1%}", f"{t.nbytes:,}"]
        for t in summary.formats
    ]
    columns = (
        Column("weights in", style="green"),
        Column("tensors", right=True),
        Column("parameters", right=True),
        Column("share", right=True),
        Column("bytes", right=True),
    )
    show(columns, rows, {}, OutputFormat.TABLE)
    works: dict[str, int] = {}
    for gemm in summary.gemms:
        works[gemm.gemm] = works.get(gemm.gemm, 0) + gemm.macs
    lines = [
        [t.gemm.value, " x ".join(t.operands), f"{t.macs / works[t.gemm]:.1%}"]
        for t in summary.gemms
    ]
    show(
        (Column("GEMM"), Column("operands", style="green"), Column("of its FLOPs", right=True)),
        lines,
        {},
        OutputFormat.TABLE,
    )


def _uncovered(inventory: Inventory) -> list[tuple[str, int]]:
    by_reason: dict[str, int] = {}
    for found in inventory.uncovered:
        by_reason[found.reason] = by_reason.get(found.reason, 0) + found.numel
    return sorted(by_reason.items(), key=lambda pair: -pair[1])


def _payload(
    model: str,
    entries: list[tuple[Slot, Decision | None]],
    inventory: Inventory,
    plan: Plan | None,
) -> dict[str, Any]:
    from dataclasses import asdict

    from qrole.summary import summarize

    payload: dict[str, Any] = {
        "schema": "qrole.inspect/1",
        "model": model,
        "parameters": inventory.numel,
        "slots": [_slot_payload(slot, decision) for slot, decision in entries],
        "not_covered": [asdict(found) for found in inventory.uncovered],
        "tied": [list(group) for group in inventory.tied],
        "notes": list(inventory.notes),
    }
    if plan is not None:
        payload["factory"] = {
            "name": plan.factory.name,
            "qualname": plan.factory.qualname,
            "sha256": plan.factory.sha256,
        }
        payload["totals"] = asdict(summarize(plan))
        payload["warnings"] = list(plan.warnings)
    return payload


def _slot_payload(slot: Slot, decision: Decision | None) -> dict[str, Any]:
    from dataclasses import asdict

    found: dict[str, Any] = {
        "id": slot.id,
        **asdict(slot),
        "reads": [str(read) for read in slot.reads],
    }
    if decision is not None:
        quantizer = decision.quantizer
        found["label"] = decision.label
        found["quantizer"] = quantizer.describe() if quantizer else {"request": decision.label}
        found["rowwise"] = asdict(decision.rowwise) if decision.rowwise else None
        found["columnwise"] = asdict(decision.columnwise) if decision.columnwise else None
    return found
