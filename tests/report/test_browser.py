"""The pages of answers in a real Chromium: nothing wider than a phone, no column too narrow for a word, no errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from simserve.report.html import render_report
from simserve.report.validation import write_validation_page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a page of every kind."""
    folder = tmp_path_factory.mktemp("pages")
    small = ss.load("chatbot", ["workload.num_requests=150"])
    names = ("run", "fleet", "capacity", "compare", "sweep", "plan", "cost", "validate")
    found = {name: folder / f"{name}.html" for name in names}
    found["run"].write_text(render_report(ss.run(small)))
    found["fleet"].write_text(render_report(ss.run(ss.load("disaggregation", ["workload.num_requests=60"]))))
    ss.capacity(small, num_requests=120, replications=2).to_html(found["capacity"])
    changes = {"bf16": {"deployment.quantization": "none"}, "two": {"deployment.replicas": 2}}
    ss.compare(small, changes, replications=2).to_html(found["compare"])
    ss.sweep(small, {"workload.arrivals.rate": [2, 8], "deployment.replicas": [1, 2]}).to_html(found["sweep"])
    ss.plan(small, hardware=["h100-sxm-80gb", "a100-sxm-80gb"], max_gpus=8, trials=0).to_html(found["plan"])
    ss.cost(ss.load("api-vs-self-host", ["workload.num_requests=150"])).to_html(found["cost"])
    write_validation_page(ss.validate(), found["validate"])
    return found


_BROKEN = """() => [...document.querySelectorAll('th, td')].filter((cell) => {
  const words = cell.textContent.trim().split(/[\\s-]+|(?<=[._\\/])(?=.)/);
  const range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size;
  return lines > Math.max(words.length, 1);
}).map((cell) => cell.textContent)"""
"""Cells with more lines than words: somewhere a word was broken."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_a_page_fits_the_screen(browser: Any, pages: dict[str, Path], width: int, scheme: str) -> None:
    """Without sideways scrolling of the whole, broken words or a message on the console."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text))
    page.on("request", lambda asked: asked.url.startswith("file:") or complaints.append(asked.url))

    for name, file in pages.items():
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(_BROKEN) == [], name
        assert file.stat().st_size < 1_500_000

    assert complaints == []
    page.close()


_HIDDEN = """() => [...document.querySelectorAll('.scroll')]
  .filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => `${each.scrollWidth} of ${each.clientWidth}: ${each.textContent.trim().slice(0, 60)}`)"""
"""Tables that must be scrolled sideways."""


def test_a_plan_is_read_on_a_phone_without_scrolling_sideways(browser: Any, pages: dict[str, Path]) -> None:
    """Every column of every table of its answer is on the screen, and its longest words break where they may."""
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(pages["plan"].as_uri())

    assert page.evaluate("document.querySelectorAll('.scroll').length") > 3
    assert page.evaluate(_HIDDEN) == []
    page.close()


def test_the_brief_is_the_first_sheet_of_paper(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    """On A4 with the margins of Chromium, also under a long verdict: below the title, and whole."""
    changes = {"few seats": {"deployment.engine.max_num_seqs": 16}}
    small = ss.load("chatbot", ["workload.num_requests=150"])
    ss.compare(small, changes, replications=6).to_html(tmp_path / "long.html")
    page = browser.new_page(viewport={"width": 717, "height": 1046})  # pixels of A4 less 1 cm on every side
    page.emulate_media(media="print")
    briefs = [pages[name] for name in ("run", "capacity", "compare", "plan", "cost")]

    for file in (*briefs, tmp_path / "long.html"):
        page.goto(file.as_uri())
        box = page.locator(".brief").bounding_box()
        assert box["y"] + box["height"] < 1046, file.name
        assert page.evaluate("getComputedStyle(document.querySelector('.brief')).breakInside") == "auto"
    page.close()
