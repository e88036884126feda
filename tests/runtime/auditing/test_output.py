"""Findings as JSON, as GitHub annotations, and as SARIF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from qrole.auditing import AuditReport, audit_model, group_findings
from qrole.auditing.findings import Finding, Place
from qrole.auditing.output import github_annotations, report_payload, sarif_log
from qrole.auditing.registry import Hit, find_code
from tests.audit.building import decoder, sourced
from tests.runtime.auditing.sarif_schema import SCHEMA

FACTORY = """
from qrole import IdentityQuantizer, MXFP8Quantizer

def f(role):
    if "gate" in role.name or "q_proj" in role.name:
        return IdentityQuantizer()
    if role.module_type == "conv, 100%":
        return IdentityQuantizer()
    return MXFP8Quantizer(7)
"""


@pytest.fixture
def report(tmp_path: Path) -> AuditReport:
    return sourced(decoder, FACTORY)(tmp_path)


def clean() -> AuditReport:
    return audit_model(decoder(), "mxfp8")


def test_equal_findings_are_grouped_and_folded(report: AuditReport) -> None:
    groups = group_findings(report.findings)
    assert [(g.code.name, g.places) for g in groups] == [
        ("QR505", (Place("layers.0-1.self_attn.q_proj", 2),)),
        ("QR505", (Place("layers.0-1.mlp.gate_proj", 2),)),
        ("QR207", (Place(f"{report.factory.rpartition(':')[0]}:8", 1),)),
    ]


def test_what_is_particular_to_a_place_stands_with_the_place() -> None:
    """A TransformerLayer builds unread slots in every module, in each others."""
    code = find_code("QR104")
    hits = [
        Hit(f"layers.{i}.{name}", "never read", "nothing", detail=detail)
        for i in range(2)
        for name, detail in (("qkv", "forward 2"), ("proj", "forward 2"), ("mlp", "backward 1"))
    ]
    findings = tuple(Finding(code, hit) for hit in hits)
    (group,) = group_findings(findings)
    assert list(map(str, group.places)) == [
        "layers.0-1.{qkv,proj} (4): forward 2",
        "layers.0-1.mlp (2): backward 1",
    ]
    report = AuditReport("m", "f", findings, (), 6, 1)
    (line,) = github_annotations(report)
    assert "layers.0-1.{qkv,proj} (4): forward 2; layers.0-1.mlp (2): backward 1: never" in line
    messages = [finding["message"] for finding in report_payload(report)["findings"]]
    assert messages[:3] == ["never read: forward 2"] * 2 + ["never read: backward 1"]


def test_json_has_every_finding(report: AuditReport) -> None:
    payload = json.loads(json.dumps(report_payload(report)))
    assert payload["schema"] == "qrole.audit/1"
    assert payload["counts"] == {"error": 4, "warning": 1, "note": 0}
    assert len(payload["findings"]) == 5
    assert payload["readings"] == {}
    first = payload["findings"][0]
    assert first["code"] == "QR505"
    assert first["module"] == "layers.0.self_attn.q_proj"
    assert first["line"] == 6
    assert set(first) == {
        "code", "severity", "meaning", "where", "module", "message", "to_do", "file", "line",
    }  # fmt: skip


def test_annotations_name_file_and_line_and_escape(report: AuditReport, tmp_path: Path) -> None:
    lines = github_annotations(report, tmp_path)
    assert len(lines) == 3
    assert lines[0].startswith("::error file=factory.py,line=6,title=QR505 Layers that engines")
    assert "layers.0-1.self_attn.q_proj (2)" in lines[0]
    assert "%0Ato do: give all of them equal quantizers" in lines[0]
    assert lines[2].startswith("::warning file=factory.py,line=8,title=QR207 ")
    assert "'conv, 100%25'" in lines[2]
    assert not any("\n" in line for line in lines)


def test_properties_escape_what_ends_them(tmp_path: Path) -> None:
    folder = tmp_path / "a,b:c"
    folder.mkdir()
    lines = github_annotations(sourced(decoder, FACTORY)(folder), tmp_path)
    assert "file=a%2Cb%3Ac/factory.py," in lines[0]


def test_sarif_is_valid(report: AuditReport, tmp_path: Path) -> None:
    log = json.loads(json.dumps(sarif_log(report, tmp_path)))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(log, SCHEMA)
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["QR207", "QR505"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    location = run["results"][0]["locations"][0]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "factory.py"},
        "region": {"startLine": 6},
    }
    assert location["logicalLocations"] == [
        {"fullyQualifiedName": "layers.0-1.self_attn.q_proj", "kind": "module"}
    ]


def test_sarif_of_a_clean_audit_is_valid() -> None:
    log = sarif_log(clean())
    jsonschema.validate(log, SCHEMA)
    assert log["runs"][0]["results"] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run["results"][0].update(level="fatal"),
        lambda run: run["results"][0].pop("message"),
        lambda run: run["results"][0].update(rule="QR505"),
        lambda run: run.pop("tool"),
    ],
    ids=["level", "message", "unknown key", "tool"],
)
def test_the_schema_refuses_what_the_standard_does(report: AuditReport, change: Any) -> None:
    log = sarif_log(report)
    change(log["runs"][0])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(log, SCHEMA)


def test_fingerprints_survive_moved_lines_and_folders(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    logs = []
    for i, folder in enumerate(folders):
        folder.mkdir()
        report = sourced(decoder, "\n" * i + FACTORY)(folder)
        logs.append(sarif_log(report, folder)["runs"][0]["results"])
    prints = [[r["partialFingerprints"]["qrole/v1"] for r in results] for results in logs]
    assert prints[0] == prints[1]
    assert len(set(prints[0])) == 3


def test_a_clean_audit_did_not_fail(report: AuditReport) -> None:
    assert report.failed()
    assert not clean().failed()
    assert github_annotations(clean()) == []
