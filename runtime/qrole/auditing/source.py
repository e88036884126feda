"""QR2xx: what the source of factory and model tells: dead branches, keywords without effect."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from qrole import recipes
from qrole.auditing.registry import Hit, Severity, check
from qrole.auditing.subject import PlanSubject


@check("QR207", Severity.WARNING)
def branch_never_reached(subject: PlanSubject) -> Iterator[Hit]:
    """No role of the model reached a branch of the factory.

    The lines and branches of the factory's own code are watched while it answers. A branch that no
    role reached is often a name that the model does not use, a module type that it does not emit, a
    comparison that can't be true, or a rule that an earlier `return` hides. The run succeeds and
    the tensors get what the other branch says.

    Fix the condition, or remove the branch. Branches that only raise are not reported. Only the
    first of a module's experts is watched.
    """
    yield from _unreached(subject, guards=False)


@check("QR208", Severity.NOTE)
def guard_never_reached(subject: PlanSubject) -> Iterator[Hit]:
    """A branch for roles that are None or empty was not needed.

    The model has no slot without a role, or none with that field empty. Such a branch belongs into
    every factory that is meant for more than one model.

    Nothing needs to be done.
    """
    yield from _unreached(subject, guards=True)


def _unreached(subject: PlanSubject, *, guards: bool) -> Iterator[Hit]:
    for found in subject.unreached:
        if found.guard is guards:
            yield Hit(
                f"{found.file}:{found.line}",
                f"{found.function}(): {found.why}; `{found.text}` never ran",
                "nothing" if guards else "fix the condition, or remove the branch",
                "",
                found.file,
                found.line,
            )


@check("QR213", Severity.WARNING)
def dropped_keyword(subject: PlanSubject) -> Iterator[Hit]:
    """A recipe is built with a keyword that TransformerEngine drops without a word.

    Recipes are dataclasses that ignore keywords they do not know: a misspelt option, or one of the
    attributes that only look like fields (`fp8_quant_fwd_inp`, `fp4_quant_bwd_grad`), has no
    effect.

    Correct the name, or remove the keyword.
    """
    known = {name: _parameters(getattr(recipes, name)) for name in recipes.__all__}
    for file in _sources(subject):
        for call in _calls(file):
            name = str(getattr(call.func, "attr", "") or getattr(call.func, "id", ""))
            if not known.get(name):
                continue
            for keyword in call.keywords:
                if keyword.arg is not None and keyword.arg not in known[name]:
                    yield Hit(
                        f"{file}:{keyword.value.lineno}",
                        f"{name}({keyword.arg}=...) has no effect",
                        f"the keywords of {name} are {', '.join(sorted(known[name]))}",
                        "",
                        file,
                        keyword.value.lineno,
                    )


def _parameters(cls: Any) -> frozenset[str]:
    if not (inspect.isclass(cls) and is_dataclass(cls)) or not issubclass(cls, recipes.Recipe):
        return frozenset()
    return frozenset(f.name for f in fields(cls) if f.init)


def _sources(subject: PlanSubject) -> list[str]:
    """The user's files: the factory's, and the model's where it is Python."""
    files: dict[str, None] = {}
    if subject.plan.factory.file and subject.plan.factory.file.endswith(".py"):
        files[subject.plan.factory.file] = None
    model = subject.model
    if model is not None and ".py" in model.spec:
        path = Path(model.spec.rpartition(":")[0] if ".py:" in model.spec else model.spec)
        files[str(path.resolve())] = None
    return list(files)


def _calls(file: str) -> Iterator[ast.Call]:
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


@check("QR214", Severity.NOTE)
def not_traced(subject: PlanSubject) -> Iterator[Hit]:
    """The factory can't be watched, so that branches that never fired are not known.

    Its source is not to be had, or its functions are not entered: a compiled extension, or a cache
    that answers without calling.

    Name the Python function behind it.
    """
    if subject.untraceable and subject.rules is None:
        yield Hit(
            subject.plan.factory.name,
            f"branches that never fired are not known: {subject.untraceable}",
            "name the Python function behind it as the factory",
        )
