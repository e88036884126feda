"""The documentation is held to the code: reference, examples, links."""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in _FENCE.findall(page.read_text()) if kind == language]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _generated() -> dict[str, str]:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return generate.pages()


@pytest.mark.parametrize("name", ["commands.md", "codes.md"])
def test_reference_pages_are_what_the_source_says(name):
    committed = (ROOT / "docs" / "reference" / name).read_text()
    assert committed == _generated()[name], "run `make docs`"


@pytest.mark.parametrize("page", [p for p in PAGES if _blocks(p, "pycon")], ids=_name)
def test_interactive_examples(page):
    text = "\n".join(_blocks(page, "pycon"))
    example = doctest.DocTestParser().get_doctest(text, {}, _name(page), str(page), 0)
    failed, tried = doctest.DocTestRunner().run(example)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("page", [p for p in PAGES if _blocks(p, "python")], ids=_name)
def test_python_examples_run(page):
    for block in _blocks(page, "python"):
        exec(compile(block, _name(page), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{_name(page)} links to {target}"


def test_every_command_is_in_the_readme(root):
    import typer

    from qrole_cli.main import app

    readme = (root / "README.md").read_text()
    missing = [name for name in typer.main.get_command(app).commands if f"qrole {name}" not in readme]
    assert missing == []


def _shell_examples() -> list[tuple[str, list[str]]]:
    found = []
    for page in PAGES:
        lines = [
            line.removeprefix("$ ")
            for block in _blocks(page, "console")
            for line in block.splitlines()
            if line.startswith("$ ")
        ]
        if lines:
            found.append((_name(page), lines))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("page", "lines"), _shell_examples(), ids=lambda v: v if isinstance(v, str) else "")
def test_shell_examples_run(page, lines, tmp_path, monkeypatch, minilm, samples):
    """Each line runs in turn in a folder with the samples; `# exit N` says what is expected."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(samples, "sample_models", ignore=shutil.ignore_patterns("__pycache__"))
    Path("all-minilm-l6-v2").symlink_to(minilm)
    (tmp_path / "mixed.py").write_text(_blocks(ROOT / "docs" / "write-a-factory.md", "python")[0])
    shutil.copytree(ROOT / "docs" / "examples", "examples")
    for line in lines:
        command, _, comment = line.partition("  # exit ")
        expected = int(comment or 0)
        if not command.startswith("qrole"):
            continue
        run = subprocess.run(
            [sys.executable, "-m", "qrole_cli", *shlex.split(command)[1:]]
            if ">" not in command
            else ["bash", "-c", command.replace("qrole", f"{sys.executable} -m qrole_cli", 1)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == expected, f"{page}: {line}\n{run.stderr}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    run = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
