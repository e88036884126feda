"""Rules files: what they accept, what they answer, what they say of themselves."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from qrole.emitters import linear_slots
from qrole.errors import ConfigError, UsageError
from qrole.factories.patterns import NamePattern, ShapePattern
from qrole.factories.rules import RulesFactory, rule_uses, unclaimed
from qrole.plans import Inventory, Origin, Plan, PlanWarning, build_plan
from qrole.plugins import Factory, load_factory
from qrole.quantizers import HybridQuantizer, IdentityQuantizer, MXFP8Quantizer, NVFP4Quantizer
from qrole.roles import DelayedScalingRequest, QuantizerRole

# Most files here hold one rule for one point, and some rules are there to lose.
pytestmark = pytest.mark.filterwarnings("ignore::qrole.plans.PlanWarning")

SCHEMA = json.loads((files("qrole.factories") / "rules.schema.json").read_text())

RULES = """
description = "attention in MXFP8, the rest in NVFP4"

[[rule]]
label = "attention"
module = "layers.*.attn.*"
quantizer = "MXFP8Quantizer"
options = { fp8_dtype = "E4M3" }
expect = 6
reason = "attention needs the range"

[[rule]]
module = ["re:layers\\\\.\\\\d+\\\\.mlp\\\\..*", "experts.*"]
tensor_type = ["input", "weight"]
factory = "nvfp4"
expect = "1.."

[[rule]]
module = "layers.0.attn.q"
quantizer = "IdentityQuantizer"

[[rule]]
module = "gone.*"
quantizer = "IdentityQuantizer"
"""


def model() -> Inventory:
    slots = [
        slot
        for path in ("layers.0.attn.q", "layers.1.attn.q", "layers.0.mlp.up", "head")
        for slot in linear_slots(path, "torch.nn.Linear", weight=f"{path}.weight", shape=(64, 32))
    ]
    slots += linear_slots(
        "experts",
        "m.Experts",
        weight="experts.down_proj",
        shape=(32, 64),
        group="down_proj",
        module_type="grouped_linear",
        copies=8,
    )
    return Inventory("test model", tuple(slots), numel=1)


def write(folder: Path, text: str) -> str:
    path = folder / "rules.toml"
    path.write_text(text)
    return str(path)


def planned(folder: Path, text: str) -> tuple[Factory, RulesFactory, Plan]:
    factory = load_factory(write(folder, text))
    assert isinstance(factory.function, RulesFactory)
    return factory, factory.function, build_plan(model(), factory)


def test_first_match_decides_and_says_so(tmp_path: Path) -> None:
    factory, _, plan = planned(tmp_path, RULES)
    decision = plan.decision("layers.0.attn.q:forward[1]")
    assert decision.answer == MXFP8Quantizer(7)
    assert decision.origin == Origin(
        "rule",
        factory.name,
        4,
        "rule 1 (attention): module = layers.*.attn.* -> MXFP8Quantizer(fp8_dtype=E4M3)",
    )


def test_every_slot_gets_its_own_quantizer(tmp_path: Path) -> None:
    _, _, plan = planned(tmp_path, RULES)
    answers = [answer for decision in plan for answer in decision.answers]
    assert len({id(answer) for answer in answers}) == len(answers) == 12 + 3 * 8


def test_factory_of_a_rule_sees_the_role(tmp_path: Path) -> None:
    _, _, plan = planned(tmp_path, RULES)
    assert plan.decision("layers.0.mlp.up:forward[1]").answer == NVFP4Quantizer(
        with_2d_quantization=True
    )


def test_what_no_rule_matches_stays_in_high_precision(tmp_path: Path) -> None:
    _, rules, plan = planned(tmp_path, RULES)
    assert [slot.id for slot in unclaimed(rules, plan)] == [
        "layers.0.mlp.up:backward[0]",
        "head:forward[0]",
        "head:forward[1]",
        "head:backward[0]",
        "experts:backward[0]",
    ]
    decision = plan.decision("head:forward[0]")
    assert decision.answer == IdentityQuantizer()
    assert decision.origin is not None
    assert decision.origin.kind == "default"


def test_uses_count_experts_and_name_who_took_the_rest(tmp_path: Path) -> None:
    _, rules, plan = planned(tmp_path, RULES)
    attention, mlp, late, gone = rule_uses(rules, plan)
    assert (attention.decided, attention.matched, attention.lost_to) == (6, 6, ())
    assert mlp.decided == 2 + 2 * 8
    assert (late.decided, late.matched, late.lost_to) == (0, 3, ((rules.rules[0], 3),))
    assert (gone.decided, gone.matched) == (0, 0)
    assert 6 in rules.rules[0].expected
    assert 0 not in rules.rules[1].expected


def test_default_factory_takes_the_rest(tmp_path: Path) -> None:
    text = 'default = "mxfp8"\n[[rule]]\nmodule = "head"\nquantizer = "IdentityQuantizer"\n'
    _, _, plan = planned(tmp_path, text)
    assert plan.decision("experts:forward[0]").answer == MXFP8Quantizer(7)
    assert plan.decision("head:forward[0]").answer == IdentityQuantizer()


def test_a_layer_within_a_module_goes_by_both_paths(tmp_path: Path) -> None:
    text = '[[rule]]\nmodule = "experts.down_proj"\nquantizer = "NVFP4Quantizer"\n'
    _, _, plan = planned(tmp_path, text)
    assert plan.decision("experts:forward[1]").answer == NVFP4Quantizer()


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ('class = "Linear"', 12),
        ('class = "torch.nn.*"', 12),
        ('module_type = "grouped_linear"', 24),
        ('direction = "backward"', 4 + 8),
        ('tensor_type = "weight"\nshape = ["%64", 32]', 4),
        ('shape = [">=33", "*"]', 4),
        ('shape = ["!%64", "<=64"]', 8),
        ('name = "experts.down_proj"', 24),
    ],
)
def test_every_key_matches(tmp_path: Path, keys: str, count: int) -> None:
    text = f'[[rule]]\n{keys}\nquantizer = "IdentityQuantizer"\nexpect = {count}\n'
    _, rules, plan = planned(tmp_path, text)
    assert rule_uses(rules, plan)[0].decided == count


def test_a_role_alone_is_answered_by_its_name(tmp_path: Path) -> None:
    _, rules, _ = planned(tmp_path, RULES)
    role = QuantizerRole("linear", "weight", "layers.0.attn.q")
    assert rules(role) == MXFP8Quantizer(7)
    assert rules(None) == IdentityQuantizer()


def test_a_role_alone_never_matches_what_it_cannot_know(tmp_path: Path) -> None:
    text = '[[rule]]\nclass = "*"\nquantizer = "NVFP4Quantizer"\n'
    _, rules, _ = planned(tmp_path, text)
    assert rules(QuantizerRole("linear", "weight", "x")) == IdentityQuantizer()


def test_factory_paths_are_relative_to_the_rules_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from qrole import MXFP8Quantizer\ndef f(role):\n    return MXFP8Quantizer(7)\n"
    )
    _, _, plan = planned(tmp_path, '[[rule]]\nfactory = "mine.py:f"\n')
    assert plan.decision("head:forward[0]").answer == MXFP8Quantizer(7)


def test_nested_quantizers_and_requests(tmp_path: Path) -> None:
    text = """
[[rule]]
tensor_type = "grad_output"
quantizer = "DelayedScalingRequest"
options = { fp8_format = "HYBRID", amax_history_len = 16 }

[[rule]]
quantizer = "HybridQuantizer"
options = { columnwise_source = "rowwise_dequantized", rowwise_quantizer = { quantizer = \
"MXFP8Quantizer" }, columnwise_quantizer = { quantizer = "IdentityQuantizer" } }
"""
    _, _, plan = planned(tmp_path, text)
    request = plan.decision("head:backward[0]").answer
    assert isinstance(request, DelayedScalingRequest)
    assert request.amax_history_len == 16
    assert isinstance(plan.decision("head:forward[0]").answer, HybridQuantizer)


REFUSED = [
    ("", "no [[rule]]"),
    ("version = 2\n[[rule]]\nfactory='mxfp8'", "version is 2"),
    ("[[rule]]\nmodule = 'x'", "neither"),
    ("[[rule]]\nfactory = 'mxfp8'\nquantizer = 'MXFP8Quantizer'", "both"),
    ("[[rule]]\nfactory = 'mxfp8'\noptions = {}", "options stand beside"),
    ("[[rule]]\nmodules = 'x'\nfactory = 'mxfp8'", "no rule key 'modules'"),
    ("[[rule]]\nmodule = 7\nfactory = 'mxfp8'", "module is 7"),
    ("[[rule]]\nmodule = []\nfactory = 'mxfp8'", "empty list"),
    ("[[rule]]\nexpect = '..'\nfactory = 'mxfp8'", "expect is '..'"),
    ("[[rule]]\nexpect = -1\nfactory = 'mxfp8'", "expect is -1"),
    ("[[rule]]\nshape = ['/3']\nfactory = 'mxfp8'", "no pattern for a dimension"),
    ("[[rule]]\nfactory = 'other.toml'", "names the rules file"),
    ("top = 1\n[[rule]]\nfactory = 'mxfp8'", "no rules file key 'top'"),
]
REFUSED_BEYOND_SCHEMA = [
    ("[[rule]\n", "no TOML"),
    ("[[rule]]\nmodule = 're:('\nfactory = 'mxfp8'", "no regular expression"),
    ("[[rule]]\nexpect = '8..2'\nfactory = 'mxfp8'", "expect is '8..2'"),
    ("[[rule]]\nfactory = 'mxfp9'", "no factory 'mxfp9'"),
    ("[[rule]]\nquantizer = 'MXFP9Quantizer'", "no quantizer 'MXFP9Quantizer'"),
    ("[[rule]]\nquantizer = 'MXFP8Quantizer'\noptions = {rht = true}", "no option of MXFP8"),
    ("[[rule]]\nquantizer = 'MXFP8Quantizer'\noptions = {fp8_dtype = 'E3M4'}", "'E3M4'"),
]


@pytest.mark.parametrize(("text", "given"), REFUSED + REFUSED_BEYOND_SCHEMA)
def test_refusals_name_what_is_wrong(tmp_path: Path, text: str, given: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_factory(write(tmp_path, text))
    assert given in caught.value.given
    assert caught.value.expected
    assert caught.value.hint


@pytest.mark.parametrize("text", [text for text, _ in REFUSED])
def test_schema_refuses_the_same(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), SCHEMA)


def test_schema_accepts_what_is_read() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(tomllib.loads(RULES), SCHEMA)


def test_schema_and_reader_know_the_same_keys(tmp_path: Path) -> None:
    rule: dict[str, Any] = SCHEMA["$defs"]["rule"]["properties"]
    for known, text in (
        (set(rule), "[[rule]]\nunknown = 1\n"),
        (set(SCHEMA["properties"]), "unknown = 1\n"),
    ):
        with pytest.raises(UsageError) as caught:
            load_factory(write(tmp_path, text))
        assert set(caught.value.expected.removeprefix("one of ").split(", ")) == known


def test_error_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"rules\.toml:3: rule 2: it gives neither"):
        load_factory(write(tmp_path, "[[rule]]\nfactory = 'mxfp8'\n[[rule]]\nmodule = 'x'\n"))


def test_missing_file() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_factory("nowhere.toml")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("layers.*.mlp.*", "layers.3.mlp.up.weight", True),
        ("layers.?", "layers.10", False),
        ("*lm_head*", "model.lm_head", True),
        ("lm_head", "model.lm_head", False),
        ("re:.*gate", "mlp.gate_proj", False),
        ("re:.*gate.*", "mlp.gate_proj", True),
        ("Layer_[12]", "Layer_1", True),
    ],
)
def test_name_patterns_match_whole_names(pattern: str, name: str, matches: bool) -> None:
    assert NamePattern(pattern).matches(name) is matches


@pytest.mark.parametrize("dimension", [True, 1.5, "%0", "=3", "x"])
def test_bad_dimensions_are_refused(dimension: Any) -> None:
    with pytest.raises(ConfigError, match="no pattern for a dimension"):
        ShapePattern((dimension,))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ('module = "nowhere"', r"rule 1 \(module = nowhere\) decides no slot$"),
        ('module = "*"\nexpect = 9', "rule 1 decides 3 slots and expects 9"),
    ],
)
def test_a_rule_that_does_not_what_it_should_is_heard_everywhere(tmp_path, rule, text):
    path = tmp_path / "rules.toml"
    path.write_text(f'[[rule]]\n{rule}\nfactory = "mxfp8"\n')
    inventory = Inventory("m", tuple(linear_slots("fc", "", weight="fc.weight", shape=(32, 32))))
    with pytest.warns(PlanWarning, match=text):
        build_plan(inventory, load_factory(str(path)))
