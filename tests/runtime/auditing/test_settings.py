"""What an audit is asked for: options, `[tool.qrole]`, codes that are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qrole.auditing import AuditOptions, Engine, audit_model, load_settings
from qrole.auditing.options import check_target, expand_codes
from qrole.errors import UsageError
from qrole.factories.builtin import mxfp8_factory
from tests.audit.building import tree


def head() -> Any:
    return tree(lm_head=(256, 256), other__lm_head=(256, 256))


def found(**options: Any) -> list[tuple[str, str]]:
    report = audit_model(head(), mxfp8_factory, AuditOptions(**options))
    return [(f.code.name, f.hit.where) for f in report.findings]


def test_everything_is_selected_by_default() -> None:
    assert found() == [("QR501", "lm_head"), ("QR501", "other.lm_head")]


def test_select_takes_prefixes() -> None:
    assert found(select=("QR1", "QR3")) == []
    assert found(select=("qr50",)) == found()


def test_ignore_takes_codes_and_prefixes() -> None:
    assert found(ignore=("QR501",)) == []
    assert found(ignore=("QR5",)) == []


def test_module_ignores_take_globs() -> None:
    assert found(module_ignores={"other.*": ("QR501",)}) == [("QR501", "lm_head")]


def test_an_unused_ignore_is_a_finding_and_can_be_ignored() -> None:
    assert ("QR001", "ignore QR304") in found(ignore=("QR501", "QR304"))
    assert found(ignore=("QR501", "QR304", "QR001")) == []


def test_an_ignore_of_what_was_not_looked_for_is_not_unused() -> None:
    assert found(ignore=("QR304",), select=("QR1", "QR0")) == []


def test_inference_looks_at_the_forward_pass_only() -> None:
    def forward_only(role: Any) -> Any:
        from qrole import IdentityQuantizer, MXFP8Quantizer

        return IdentityQuantizer() if role.tensor_type == "grad_output" else MXFP8Quantizer(7)

    model = tree(fc=(256, 256))
    training = audit_model(model, forward_only)
    serving = audit_model(model, forward_only, AuditOptions(inference=True))
    assert {f.code.name for f in training.findings} == {"QR306"}
    assert serving.findings == ()


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"select": ("QR9",)}, "no code starts with 'QR9'"),
        ({"ignore": ("",)}, "no code starts with ''"),
        ({"module_ignores": {"*": ("X",)}}, "no code starts with 'X'"),
        ({"target": "hopper"}, "there is no target 'hopper'"),
        ({"target": "sm_99"}, "there is no target 'sm_99'"),
        ({"tensor_parallel": 0}, "tensor_parallel is 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], given: str) -> None:
    with pytest.raises(UsageError) as caught:
        AuditOptions(**options)
    assert given in caught.value.given


@pytest.mark.parametrize(("text", "number"), [("sm_89", 89), ("sm_100a", 100), ("sm_120f", 120)])
def test_targets(text: str, number: int) -> None:
    assert check_target(text) == number


def test_codes_expand_to_families() -> None:
    assert expand_codes(["QR30", "QR501"]) > {"QR301", "QR309", "QR501"}


SETTINGS = """
[tool.qrole]
select = ["QR3", "QR5"]
ignore = ["QR501"]
target = "sm_100"
engine = ["vllm", "sglang"]
tensor-parallel = 2
fp8-dpa = true
sequence-length = 4096
inference = true
weights = true

[tool.qrole.module-ignore]
"lm_head" = ["QR502"]
"""


def test_settings_of_the_nearest_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert load_settings(inner) == AuditOptions(
        select=("QR3", "QR5"),
        ignore=("QR501",),
        module_ignores={"lm_head": ("QR502",)},
        target="sm_100",
        engines=(Engine.VLLM, Engine.SGLANG),
        tensor_parallel=2,
        fp8_dpa=True,
        sequence_length=4096,
        inference=True,
        weights=True,
        settings_file=str(tmp_path / "pyproject.toml"),
    )


def test_no_settings_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.qrole]\n")
    assert load_settings(tmp_path) == AuditOptions(settings_file=str(tmp_path / "pyproject.toml"))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("ignored = []", "no key of [tool.qrole] 'ignored'"),
        ('ignore = "QR501"', "ignore is 'QR501'"),
        ('engine = "llama.cpp"', "no engine 'llama.cpp'"),
        ("inference = 1", "inference is 1"),
        ('tensor-parallel = "2"', "tensor-parallel is '2'"),
        ("module-ignore = 3", "module-ignore is 3"),
        ('target = "sm"', "there is no target 'sm'"),
        ("target = ", "cannot be read"),
    ],
)
def test_wrong_settings_are_refused_with_their_file(tmp_path: Path, text: str, given: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.qrole]\n{text}\n")
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path)
    assert str(tmp_path / "pyproject.toml") in caught.value.given
    assert given in caught.value.given
