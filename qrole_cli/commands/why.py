"""`qrole why`: which line or rule gave a slot its quantizer, and what lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from qrole_cli import console
from qrole_cli.options import (
    AttentionOption,
    FactoryOption,
    JsonOption,
    ModelArgument,
    RemoteCodeOption,
)

if TYPE_CHECKING:
    from qrole.why import Reason

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command(rich_help_panel="Plan")
    def why(
        model: ModelArgument,
        slot: Annotated[
            str,
            typer.Argument(
                metavar="SLOT",
                help="module:forward[0], or a module's path for all of its slots.",
                show_default=False,
            ),
        ],
        factory: FactoryOption,
        attention: AttentionOption = False,
        trust_remote_code: RemoteCodeOption = False,
        as_json: JsonOption = False,
    ) -> None:
        """Tell why a slot got its quantizer: the line, the conditions, the rules that lost.

        Example: qrole why sample_models/mlp.py 0:forward[1] -f nvfp4
        """
        from qrole.why import why as find_reasons

        reasons = find_reasons(
            model, slot, factory, attention=attention, trust_remote_code=trust_remote_code
        )
        if as_json:
            payload = {"schema": "qrole.why/1", "slots": [_payload(r) for r in reasons]}
            console.write(json.dumps(payload, indent=2, sort_keys=True) + "\n")
            return
        for i, reason in enumerate(reasons):
            if i:
                console.out.print()
            _print(reason)


def _print(reason: Reason) -> None:
    from qrole.rows import counted

    out = console.out
    decision = reason.decision
    slot = decision.slot
    out.print(Text.assemble((slot.id, "bold cyan"), f"  role {slot.role}"), soft_wrap=True)
    if decision.error:
        out.print(Text.assemble(("  no answer: ", "bold red"), decision.error))
    else:
        row, col = decision.rowwise, decision.columnwise
        out.print(Text.assemble("  gets ", (decision.label, "green")))
        if row is not None and col is not None:
            out.print(Text(f"  row-wise {row.label}, column-wise {col.label}"))
    _print_origin(reason)
    for verdict in reason.rules:
        outcome = "decides" if verdict.decides else verdict.mismatch or "matches too, too late"
        style = "green" if verdict.decides else "dim"
        out.print(Text(f"  {verdict.rule}: {outcome}", style=style))
    for operand, label in reason.layer.items():
        out.print(Text(f"  {operand} of the same layer: {label}"))
    for label, count in reason.alike:
        others = counted(count, "other module")
        out.print(Text(f"  the same slot of {others} of this name: {label}"))


def _print_origin(reason: Reason) -> None:
    out = console.out
    if reason.untraceable:
        out.print(Text(f"  the line is not known: {reason.untraceable}", style="yellow"))
    origin = reason.decision.origin
    if origin is None:
        return
    out.print(Text.assemble(("  decided by ", "bold"), str(origin)), soft_wrap=True)
    console.paragraph(origin.text, indent=4)
    for line, condition, outcome in origin.conditions:
        console.paragraph(f"line {line}: {condition} was {str(outcome).lower()}", indent=4)


def _payload(reason: Reason) -> dict[str, Any]:
    decision, origin = reason.decision, reason.decision.origin
    quantizer = decision.quantizer
    return {
        "id": decision.slot.id,
        "role": str(decision.slot.role),
        "label": decision.label,
        "quantizer": quantizer.describe() if quantizer is not None else None,
        "error": decision.error or None,
        "untraceable": reason.untraceable or None,
        "origin": None
        if origin is None
        else {
            "kind": origin.kind,
            "file": origin.file,
            "line": origin.line,
            "text": origin.text,
            "conditions": [
                {"line": line, "text": text, "outcome": outcome}
                for line, text, outcome in origin.conditions
            ],
        },
        "rules": [
            {"rule": str(v.rule), "mismatch": v.mismatch or None, "decides": v.decides}
            for v in reason.rules
        ],
        "layer": reason.layer,
        "alike": [{"label": label, "count": count} for label, count in reason.alike],
    }
