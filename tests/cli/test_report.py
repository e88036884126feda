"""`qrole report` writes a page, and the page works in a browser without a network."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.runtime.reporting import payloads


@pytest.fixture
def saved(cli, samples, tmp_path):
    """JSON of all three commands in files."""
    inspect = cli("inspect", samples / "llama_tiny.py", "-f", "nvfp4", "--json").out
    (tmp_path / "inspect.json").write_text(inspect)
    (tmp_path / "compare.json").write_text(json.dumps(payloads.compare(4, 2, loss=True)))
    (tmp_path / "audit.json").write_text(json.dumps(payloads.audit()))
    return tmp_path


def _write(cli, saved):
    page = saved / "report.html"
    files = [saved / f"{name}.json" for name in ("inspect", "compare", "audit")]
    result = cli("report", *files, "-o", page)
    assert result.code == 0, result.err
    return page


def test_page_is_self_contained(cli, saved):
    page = _write(cli, saved).read_text()
    assert "<script src" not in page
    assert "<link" not in page
    assert "formats do not \\u003cpair>" in page


def test_json_says_what_was_written(cli, saved):
    page = saved / "page.html"
    result = cli("report", saved / "audit.json", "-o", page, "--json")
    found = json.loads(result.out)
    assert found == {
        "schema": "qrole.report/1",
        "page": str(page),
        "slots": 0,
        "measurements": 0,
        "findings": len(payloads.audit()["findings"]),
    }
    assert page.exists()


def test_existing_page_is_kept(cli, saved):
    (saved / "report.html").write_text("mine")
    result = cli("report", saved / "audit.json", "-o", saved / "report.html")
    assert result.code == 2
    assert "--force" in result.err
    assert (saved / "report.html").read_text() == "mine"


def test_missing_and_broken_files(cli, tmp_path):
    assert "there is no file" in cli("report", tmp_path / "no.json").err
    (tmp_path / "bad.json").write_text("{")
    result = cli("report", tmp_path / "bad.json")
    assert result.code == 2
    assert "is no JSON" in result.err


@pytest.mark.parametrize("command", ["inspect", "audit", "compare"])
def test_half_a_file(cli, tmp_path, command):
    (tmp_path / "half.json").write_text(json.dumps({"schema": f"qrole.{command}/1"}))
    result = cli("report", tmp_path / "half.json", "-o", tmp_path / "page.html")
    assert result.code == 2
    assert "half.json: something is missing or malformed: 'model'" in result.err


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium of the system; no browser is downloaded."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path is not None, "apt-get install chromium"
    with sync_playwright() as play:
        chromium = play.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield chromium
        chromium.close()


def _open(browser, page_file, **options):
    errors: list[str] = []
    context = browser.new_context(offline=True, **options)
    page = context.new_page()
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(page_file.as_uri())
    page.wait_for_function("document.documentElement.dataset.readyMs !== undefined")
    return page, errors


@pytest.mark.slow
def test_page_opens_filters_and_switches(browser, cli, saved):
    page, errors = _open(browser, _write(cli, saved))
    assert page.locator("#heatmap .heatmaplayer").count() == 1
    before = page.locator("#worsttable tbody tr").first.inner_text()
    page.select_option("#candidate", "1")
    assert page.locator("#worsttable tbody tr").first.inner_text() != before
    page.select_option("#metric", "mse")
    assert "0.0001" in page.locator("#worsttable tbody tr").first.inner_text()
    page.select_option("#what", "wgrad")
    assert page.input_value("#metric") == "sqnr_db"
    page.fill("#planfilter", "q_proj weight")
    assert page.inner_text("#plancount").startswith("4 of 87 slots")
    page.fill("#findingfilter", "pair")
    assert page.inner_text("#findingcount") == "1 of 2 findings"
    assert page.locator("#curves .scatterlayer .trace").count() == 1
    assert page.locator("#sensitivitychart .barlayer .trace").count() == 1
    assert errors == []


@pytest.mark.slow
def test_page_follows_the_scheme_and_its_switch(browser, cli, saved):
    page, errors = _open(browser, _write(cli, saved), color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(20, 23, 27)"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert errors == []


@pytest.mark.slow
def test_a_thousand_layers_stay_usable(browser, tmp_path, cli):
    (tmp_path / "compare.json").write_text(json.dumps(payloads.compare(1000)))
    page_file = tmp_path / "report.html"
    assert cli("report", tmp_path / "compare.json", "-o", page_file).code == 0
    page, errors = _open(browser, page_file)
    assert page.evaluate("document.querySelectorAll('*').length") < 5000
    assert page.locator("#worsttable tbody tr").count() == 20
    assert errors == []


def test_compare_writes_and_opens_the_page(cli, samples, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    page = tmp_path / "page.html"
    result = cli("compare", samples / "mlp.py", "-f", "mxfp8", "--html", page, "--open")
    assert result.code == 0, result.err
    assert opened == [page.as_uri()]
    assert '"module":"0"' in page.read_text()
