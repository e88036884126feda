"""Rendering: the view, the script, the style and Plotly in one file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from qrole.errors import CheckpointError, MissingExtraError, OutputExistsError, UsageError
from qrole.reporting.view import View, build_view

__all__ = ["check_free", "check_libraries", "render_page", "write_page", "write_report"]


def write_report(sources: Sequence[Path], output: Path, *, force: bool = False) -> View:
    """Writes one HTML page out of saved JSON.

    Args:
        sources: JSON files of inspect, audit and compare.
        output: The page.
        force: Overwrite it.

    Returns:
        What the page shows.

    Raises:
        UsageError: A source is missing or is no JSON of qrole's; the output exists.
        CheckpointError: The output cannot be written.
        MissingExtraError: Jinja2 or Plotly is not installed.
    """
    check_free(output, force)
    check_libraries()
    view = build_view([(str(path), _read(path)) for path in sources])
    write_page(view, output)
    return view


def check_free(output: Path, force: bool) -> None:
    """Refuses to overwrite a page unless forced to; raises OutputExistsError."""
    if output.exists() and not force:
        raise OutputExistsError(
            f"{output} exists", expected="a new file", hint="name another one, or pass --force"
        )


def check_libraries() -> None:
    """Raises MissingExtraError where Jinja2 or Plotly is not installed; imports neither."""
    for package in ("jinja2", "plotly"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "report", "the HTML report")


def write_page(view: View, output: Path) -> None:
    """Writes the page of a view.

    Raises:
        CheckpointError: The output cannot be written.
        MissingExtraError: Jinja2 or Plotly is not installed.
    """
    page = render_page(view)
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{output} cannot be written: {error.strerror}",
            expected="a writable path with space left",
            hint="name another one",
        ) from error


def render_page(view: View) -> str:
    """The page's HTML.

    Raises:
        MissingExtraError: Jinja2 or Plotly is not installed.
    """
    check_libraries()
    from jinja2 import Environment
    from plotly.offline import get_plotlyjs

    room = files("qrole.reporting")
    template = Environment(autoescape=True).from_string((room / "page.html.j2").read_text("utf-8"))
    return template.render(
        view=view,
        data=json.dumps(view.to_json(), separators=(",", ":")).replace("<", "\\u003c"),
        script=(room / "page.js").read_text("utf-8"),
        style=(room / "page.css").read_text("utf-8"),
        plotly=get_plotlyjs(),
    )


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no file {str(path)!r}",
            expected="JSON of qrole inspect, audit or compare",
            hint="write one with `qrole compare … --json > compare.json`",
        ) from error
    except (ValueError, OSError) as error:
        raise UsageError(
            f"{path} is no JSON: {error}",
            expected="what `qrole inspect|audit|compare --json` printed",
            hint="write it again",
        ) from error
