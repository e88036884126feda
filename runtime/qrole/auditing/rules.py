"""QR2xx: rules of a rules file that did nothing, too little, or too much."""

from __future__ import annotations

from collections.abc import Iterator

from qrole.auditing.registry import Hit, Severity, check
from qrole.auditing.subject import PlanSubject
from qrole.factories.rules import Facts, Rule, RuleUse, rule_uses, unclaimed


def _uses(subject: PlanSubject) -> list[RuleUse]:
    return rule_uses(subject.rules, subject.plan) if subject.rules is not None else []


def _hit(subject: PlanSubject, rule: Rule, message: str, to_do: str) -> Hit:
    assert subject.rules is not None
    file = subject.rules.file
    where = f"{file}:{rule.line}" if rule.line else file
    return Hit(where, f"{rule} ({rule.condition}) {message}", to_do, "", file, rule.line)


@check("QR209", Severity.ERROR)
def matched_nothing(subject: PlanSubject) -> Iterator[Hit]:
    """A rule matches no slot of the model.

    A name that the model no longer has, a glob where a regular expression was meant, a shape that
    no tensor has. The slots that it was written for get what a later rule says.

    Correct the pattern, or remove the rule. Write `expect = 0` for a rule that is meant to match
    nothing in this model.
    """
    for use in _uses(subject):
        meant = use.rule.expected is not None and 0 in use.rule.expected
        if not use.matched and not meant:
            yield _hit(
                subject,
                use.rule,
                f"matches no slot{_nearest(subject, use.rule)}",
                "correct the pattern, or remove the rule",
            )


def _nearest(subject: PlanSubject, rule: Rule) -> str:
    """The first key that no slot satisfies on its own, to tell which pattern is wrong."""
    facts = [Facts.of_slot(slot) for slot in subject.inventory.slots]
    for key, patterns in rule.names.items():
        values = {v for fact in facts for v in fact.values(key) or ()}
        if not any(p.matches(v) for p in patterns for v in values):
            return f": no slot has a {key} like that"
    return ""


@check("QR210", Severity.ERROR)
def shadowed(subject: PlanSubject) -> Iterator[Hit]:
    """A rule never decides, because earlier rules take all that it matches.

    The first rule that matches decides. A general rule above a special one makes the special one
    dead.

    Move the special rule up.
    """
    for use in _uses(subject):
        if use.matched and not use.decided:
            takers = ", ".join(f"{rule} ({n})" for rule, n in use.lost_to)
            yield _hit(
                subject,
                use.rule,
                f"decides nothing: its {use.matched} slots are taken by {takers}",
                f"move it above {use.lost_to[0][0]}",
            )


@check("QR211", Severity.ERROR)
def count_missed(subject: PlanSubject) -> Iterator[Hit]:
    """A rule decides another number of slots than it expects.

    `expect` pins how many slots a rule decides, experts counted one by one. The model or an earlier
    rule has changed.

    Look at the slots with `qrole inspect`, then correct the pattern or the count.
    """
    for use in _uses(subject):
        expected = use.rule.expected
        # A rule that decides nothing at all is reported as such.
        if expected is not None and use.decided and use.decided not in expected:
            yield _hit(
                subject,
                use.rule,
                f"decides {use.decided} slots, {expected} expected",
                "correct the pattern, or the count",
            )


@check("QR212", Severity.WARNING)
def no_rule(subject: PlanSubject) -> Iterator[Hit]:
    """No rule matches the slot, and the rules file names no default.

    Such slots stay in high precision.

    Add a rule for them, or write `default = "high_precision"` at the top of the file to say that it
    is meant.
    """
    rules = subject.rules
    if rules is None or rules.default is not None:
        return
    looked_at = {decision.slot.id for decision in subject.decisions}
    for slot in unclaimed(rules, subject.plan):
        if slot.id not in looked_at:
            continue
        role = slot.role
        kind = f"{role.module_type}/{role.tensor_type}" if role else "boundary"
        yield Hit(
            slot.module or ".",
            f"no rule matches its {kind} slot; it stays in high precision",
            'add a rule, or write default = "high_precision"',
            slot.module,
            rules.file,
        )
