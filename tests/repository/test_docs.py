"""The documentation is held to the code: reference, examples, output, links, schemas."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown.extensions.toc import slugify

from docs import examples, generate
from docs.schemas import KEYS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)")


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _blocks(page: Path, language: str, *, titled: bool | None = None) -> list[examples.Block]:
    found = examples.blocks(page.read_text())
    return [
        block
        for block in found
        if block.language == language and titled in (None, bool(block.title))
    ]


def _pages_with(language: str, *, titled: bool | None = None) -> list[Path]:
    return [page for page in PAGES if _blocks(page, language, titled=titled)]


def _commands() -> Mapping[str, Any]:
    import typer  # noqa: TID251 - the reference is compared with the terminal's app

    from qrole_cli.main import app

    found: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return found


def test_what_comes_from_the_source_is_current():
    stale = [
        name
        for name, text in generate.generated().items()
        if (ROOT / "docs" / name).read_text() != text
    ]
    assert stale == [], "run `make docs`"


def test_every_command_and_option_has_its_place_in_the_reference():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    sections = dict(
        re.findall(r"^## qrole (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    )
    assert sections.keys() == _commands().keys()
    missing = [
        f"{name} {option}"
        for name, command in _commands().items()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-") and f"`{option}`" not in sections[name]
    ]
    assert missing == []


def test_every_code_is_explained():
    from qrole.auditing.registry import codes

    page = (ROOT / "docs" / "reference" / "codes.md").read_text()
    assert [name for name in codes() if f"### {name}\n" not in page] == []


def test_every_command_is_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    assert [name for name in _commands() if f"qrole {name}" not in readme] == []


def test_options_named_in_prose_exist():
    """What prose and YAML call `qrole command --option`; console blocks are run anyway."""
    wrong = []
    for page in PAGES:
        text = page.read_text()
        lines = re.findall(r"`(qrole [^`\n]+)`", text)
        lines += [line for block in _blocks(page, "yaml") for line in block.body.splitlines()]
        for line in lines:
            words = line.partition("qrole ")[2].split()
            command = next((word for word in words if not word.startswith("-")), "")
            if command not in _commands():
                continue
            known = {o for p in _commands()[command].params for o in (*p.opts, *p.secondary_opts)}
            wrong += [
                f"{_name(page)}: {line}"
                for word in words
                if word.startswith("--") and word.partition("=")[0] not in known
            ]
    assert wrong == []


@pytest.mark.parametrize("page", _pages_with("pycon"), ids=_name)
def test_interactive_examples(page):
    text = "\n".join(block.body for block in _blocks(page, "pycon"))
    example = doctest.DocTestParser().get_doctest(text, {}, _name(page), str(page), 0)
    failed, tried = doctest.DocTestRunner().run(example)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("page", _pages_with("python", titled=False), ids=_name)
def test_python_examples_run(page):
    for block in _blocks(page, "python", titled=False):
        exec(compile(block.body, _name(page), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", [p for p in PAGES if examples.blocks(p.read_text())], ids=_name)
def test_files_of_a_page_are_well_formed_and_used(page):
    commands = " ".join(example.command for example in examples.examples(page.read_text()))
    for block in examples.blocks(page.read_text()):
        if block.language == "python":
            compile(block.body, block.title, "exec")
        elif block.language == "toml":
            tomllib.loads(block.body)
        elif block.language == "yaml":
            yaml.safe_load(block.body)
        if block.title:
            used = block.title.partition("/")[0]
            assert used in commands, f"no command of {_name(page)} uses {block.title}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_resolve(page):
    for target, anchor in _LINK.findall(
        re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    ):
        if "://" in target:
            continue
        found = page.parent / target if target else page
        assert found.exists(), f"{_name(page)} links to {target}"
        if anchor:
            assert anchor in _anchors(found), f"{_name(page)} links to {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {slugify(heading, "-") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


_RUNS = {
    "qrole.inspect/1": "inspect MODEL -f mxfp8",
    "qrole.audit/1": "audit MODEL -f nvfp4",
    "qrole.compare/1": "compare MODEL -f mxfp8 --save OUT/compare.json",
    "qrole.search/1": "search MODEL -f nvfp4 -f mxfp8 --bits 6 --data-free -o OUT/rules.toml",
    "qrole.bill/1": "apply MODEL -f mxfp8 --dry-run",
    "qrole.apply/1": "apply MODEL -f mxfp8 -o OUT/written",
    "qrole.verify/1": "verify OUT/written",
    "qrole.why/1": "why MODEL 0 -f mxfp8",
    "qrole.report/1": "report OUT/compare.json -o OUT/page.html",
    "qrole.diff/1": "diff mxfp8 nvfp4 --model MODEL",
    "qrole.explain/1": "explain QR304",
    "qrole.factories/1": "factories",
}
_LISTS = {"Slot": "slots", "Finding": "findings", "Reason": "slots", "Code": "codes"}


def test_json_output_has_the_keys_of_the_schemas_page(cli, samples, tmp_path):
    """New keys have to be documented, and documented ones printed."""
    import json

    assert KEYS.keys() - _RUNS.keys() == {"qrole.manifest/1"}
    for schema, command in _RUNS.items():
        line = command.replace("MODEL", str(samples / "mlp.py")).replace("OUT", str(tmp_path))
        printed = json.loads(cli(*shlex.split(line), "--json").out)
        assert printed["schema"] == schema
        _same_keys(printed, schema)
    manifest = json.loads((tmp_path / "written" / "qrole_manifest.json").read_text())
    assert manifest["schema"] == "qrole.manifest/1"
    _same_keys(manifest, "qrole.manifest/1")


def _same_keys(printed: Mapping[str, Any], schema: str) -> None:
    documented = {title: {key for key, *_ in keys} for title, keys in KEYS[schema].items()}
    assert printed.keys() == documented.pop(""), schema
    for title, keys in documented.items():
        for found in _objects(printed, title):
            assert found.keys() == keys, f"{schema} {title}"


def _objects(printed: Mapping[str, Any], title: str) -> Iterator[Mapping[str, Any]]:
    if title == "Gate":
        yield printed["gate"]
    elif title == "Violation":
        yield from printed["gate"]["violations"]
    elif title == "Data":
        yield printed["data"]
    else:
        found = printed[_LISTS.get(title, "factories")]
        assert found, f"{title} is printed"
        yield from found


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("a  1.50 dB", "a 1.52   dB", True),
        ("a 1.50 dB", "a 1.90 dB", False),
        ("37 layers", "38 layers", False),
        ("12.5% left", "12.6% left", True),
        ("one\n...\nlast", "one\ntwo\nthree\nlast", True),
        ("one\n...\nlast", "one\ntwo", False),
        ("took ... done", "took 3 s, done", True),
        ("one", "one\ntwo", False),
    ],
)
def test_output_is_compared_as_a_reader_would(expected, found, same):
    assert examples.agrees(expected.splitlines(), found.splitlines()) is same


@pytest.mark.slow
@pytest.mark.parametrize("page", _pages_with("console"), ids=_name)
def test_shell_examples_do_and_print_what_the_page_says(page, tmp_path):
    text = page.read_text()
    examples.prepare(tmp_path, text)
    for example in examples.examples(text):
        outcome = examples.run(example.command, tmp_path)
        shown = "\n".join((f"{_name(page)}: {example.command}", *outcome.lines))
        assert outcome.code == example.code, shown
        if example.output:
            assert examples.agrees(example.output, outcome.lines), shown


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    run = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "reference" / "commands" / "index.html").is_file()
