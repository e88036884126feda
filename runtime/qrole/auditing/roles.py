"""QR1xx: roles that say too little, the same twice, or nothing at all."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from qrole.auditing.registry import Hit, Severity, check
from qrole.auditing.subject import PlanSubject

_AUTO_NAME = re.compile(r"Layer_\d+(\.|$)")
_EXPERT_PATH = re.compile(r"(^|\.)experts\.\d+(\.|$)")


@check("QR101", Severity.WARNING)
def auto_named(subject: PlanSubject) -> Iterator[Hit]:
    """The module has no name, so that its roles carry a number.

    TransformerEngine names a module that is built without `name=` after a counter of the process:
    `Layer_7`. The number depends on the order in which modules are built; it differs between two
    builds in one process and between ranks that build different stages. A factory that asks for
    names can't rely on it.

    Pass `name=` to the module, or match by module path in a rules file.
    """
    for module, name in _names(subject):
        if _AUTO_NAME.match(name):
            yield Hit(
                module or ".",
                "its roles are named after a counter (Layer_N)",
                "build the module with name=, or match its path in a rules file",
                module,
            )


@check("QR102", Severity.WARNING)
def unnamed(subject: PlanSubject) -> Iterator[Hit]:
    """The role's name is empty.

    Fusible operations of TransformerEngine have no name argument, so that their roles have an empty
    name unless the attribute `name` is set on them. A factory can't tell one such layer from
    another.

    Set the attribute `name` on the operation, or match by module path in a rules file.
    """
    for module, name in _names(subject):
        if not name:
            yield Hit(
                module or ".",
                "its roles have an empty name",
                "set the module's attribute `name`, or match its path in a rules file",
                module,
            )


def _names(subject: PlanSubject) -> list[tuple[str, str]]:
    """Module paths with the names in their roles; substitutes for missing lists left out."""
    found = {
        (slot.module, slot.role.name): None
        for slot in subject.inventory.slots
        if slot.role is not None and not slot.bare
    }
    return list(found)


@check("QR103", Severity.WARNING)
def same_name(subject: PlanSubject) -> Iterator[Hit]:
    """Two modules have roles of one name.

    A role is a label and not a key: nothing keeps two modules from having equal roles. A factory
    that singles out a layer by name then treats both alike, and tools that collect statistics by
    name mix them.

    Give the modules different names, or match by module path in a rules file.
    """
    modules: dict[str, dict[str, None]] = defaultdict(dict)
    for module, name in _names(subject):
        if name:
            modules[name][module] = None
    for name, found in modules.items():
        if len(found) > 1:
            paths = list(found)
            shown = ", ".join(p or "." for p in paths[1:4])
            more = f" and {len(paths) - 4} more" if len(paths) > 4 else ""
            yield Hit(
                paths[0] or ".",
                f"its role name {name!r} is also that of {shown}{more}",
                "give the modules different names, or match their paths in a rules file",
                paths[0],
            )


@check("QR104", Severity.NOTE)
def never_read(subject: PlanSubject) -> Iterator[Hit]:
    """A quantizer is built for the slot and nothing reads it.

    TransformerEngine asks the factory for every slot of a module, also for those that the module's
    settings leave unused: the output without `fp8_output`, the incoming gradient without
    `fp8_grad`, the repeated slots of LayerNormMLP, the output of a grouped linear layer. What the
    factory returns there must be a quantizer and changes nothing.

    Nothing needs to be done; don't read anything into these answers.
    """
    unread: dict[str, list[str]] = defaultdict(list)
    for slot in subject.inventory.slots:
        if not slot.consumed:
            operand = f" ({slot.operand})" if slot.operand else ""
            unread[slot.module].append(f"{slot.direction} {slot.index}{operand}")
    for module, slots in unread.items():
        yield Hit(
            module or ".",
            "never read",
            "nothing; answers for these slots have no effect",
            module,
            detail=", ".join(slots),
        )


@check("QR105", Severity.WARNING)
def boundary_without_role(subject: PlanSubject) -> Iterator[Hit]:
    """A tensor that leaves the module quantized has no role.

    Only the reader of an output knows what it is, so a module's output and incoming gradient have
    no role unless the model sets `output_quantizer_role` or `grad_input_quantizer_role`. Where the
    module was asked to quantize them all the same, the factory is called with None and has to guess
    the format that the reader expects.

    Set the property to the reader's role.
    """
    for slot in subject.inventory.slots:
        if slot.role is None and slot.consumed:
            prop = "grad_input" if slot.operand == "grad_input" else "output"
            yield Hit(
                slot.id.partition(":")[0],
                f"its quantized {slot.operand or 'boundary tensor'} has no role",
                f"set {prop}_quantizer_role of the module to the role of its reader",
                slot.module,
            )


@check("QR106", Severity.WARNING)
def bare_roles(subject: PlanSubject) -> Iterator[Hit]:
    """The module gives no list of roles, so that all of its slots look alike.

    A module whose `get_quantizer_roles` returns None gets an empty role for every slot:
    TransformerEngine warns once and goes on. The factory can't tell its weight from its gradient.

    Override `get_quantizer_roles` in the module.
    """
    for module in dict.fromkeys(slot.module for slot in subject.inventory.slots if slot.bare):
        yield Hit(
            module or ".",
            "it returns no list of roles; the factory sees empty ones",
            "override get_quantizer_roles() of the module",
            module,
        )


@check("QR107", Severity.WARNING)
def experts_as_linear(subject: PlanSubject) -> Iterator[Hit]:
    """Experts have the role of an ordinary linear layer.

    TransformerEngine's GroupedLinear module says `grouped_linear`, its fusible operation of the
    same name says `linear`, and experts that are separate linear layers say `linear` as well. A
    factory that singles out `grouped_linear` treats such experts as dense layers, without a word.

    Ask for the name or path of the experts too, or for `linear` and `grouped_linear` alike.
    """
    found: dict[str, None] = {}
    for slot in subject.inventory.slots:
        if slot.role is None or slot.role.module_type != "linear":
            continue
        if slot.copies > 1 or _EXPERT_PATH.search(slot.module):
            found[slot.module] = None
    for module in found:
        yield Hit(
            module or ".",
            "these experts have module type 'linear', not 'grouped_linear'",
            "let the factory ask for both, or for the experts' path",
            module,
        )


@check("QR108", Severity.WARNING)
def not_covered(subject: PlanSubject) -> Iterator[Hit]:
    """Weights of a matrix product have no role, so that no factory can quantize them.

    Convolutions, recurrent layers, fused 3-D experts in a layout that no emitter knows, and weights
    that a module multiplies with by itself, stay in high precision whatever the factory says. A
    model can lose most of its parameters this way while every rule seems to match.

    Register an emitter for the module's class (entry points of the group `qrole.emitters`), or
    ignore the code for these modules where that is meant.
    """
    missed = [found for found in subject.inventory.uncovered if found.quantizable]
    numel: Counter[str] = Counter()
    for found in missed:
        numel[found.reason] += found.numel
    total = max(subject.inventory.numel, 1)
    for found in missed:
        share = numel[found.reason] / total
        yield Hit(
            found.module or ".",
            f"{found.reason}; such are {share:.1%} of the model's parameters",
            "register an emitter for its class, or ignore this code for the module",
            found.module,
        )
