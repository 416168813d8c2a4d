"""What needs no server, in a real Chromium: the exported page and a film, opened from a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from simserve.report.film import write_film
from tests.explore.test_pages import SMALL

pages = pytest.importorskip("simserve.explore.pages", reason="needs simserve[explore]")

pytestmark = pytest.mark.slow


def watched(browser: Any, width: int) -> tuple[Any, list[str]]:
    """Return an open page, and the list that what goes wrong on it is added to."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or complaints.append(request.url)
    )
    return page, complaints


@pytest.mark.parametrize("width", [1440, 390])
def test_the_exported_page_opens_from_a_disk(browser: Any, tmp_path: Path, width: int) -> None:
    """Its controls offer what was computed, and another choice is answered from what lies there."""
    pages.write_pages(tmp_path, grids=SMALL)
    page, complaints = watched(browser, width)
    page.goto(f"{(tmp_path / 'index.html').as_uri()}#memory-wall")
    page.wait_for_selector("[data-key=tokens_per_second] dd")
    tile = page.locator("[data-key=tokens_per_second] dd")
    before = float(tile.get_attribute("data-value"))

    page.locator("#memory-wall-a-batch").select_option("1")
    page.wait_for_function("Number(document.querySelector('.answer').dataset.done) > 1")

    assert float(tile.get_attribute("data-value")) < before
    assert page.locator("#memory-wall-a-hardware").is_disabled()
    assert "answers of simserve" in page.locator("#panel").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_the_tour_and_films_lie_on_the_disk(browser: Any, tmp_path: Path, width: int) -> None:
    """A stop is answered from what lies there, its link leads to an answer that lies there, and a film plays."""
    grids = {
        "tour": {"stop": ("decoding", "paging")},
        "memory-wall": {"model": ("qwen3-32b", "llama-3.1-8b"), "hardware": ("h100-sxm-80gb",), "batch": (16, 1)},
        "film": {"num_requests": (40,), "against": ("static batching",)},
    }
    pages.write_pages(tmp_path, grids=grids)
    page, complaints = watched(browser, width)
    page.goto((tmp_path / "index.html").as_uri())
    page.get_by_role("button", name="Show the answer").click()
    page.wait_for_selector(".reveal h3")
    step = float(page.locator(".reveal h3").get_attribute("data-truth"))

    page.locator(".yours").click()
    page.wait_for_selector("[data-key=step_ms] dd")
    assert float(page.locator("[data-key=step_ms] dd").get_attribute("data-value")) == step
    for link in ("tour?stop=paging", "film"):
        page.goto("about:blank")
        page.goto(f"{(tmp_path / 'index.html').as_uri()}#{link}")
        if link != "film":
            page.get_by_role("button", name="Show the answer").click()
        page.wait_for_selector(".film canvas")
        assert page.locator(".film canvas").count() == 4
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_a_film_plays_from_a_disk(browser: Any, tmp_path: Path, width: int) -> None:
    """Its clock runs, stands still, goes step by step with the arrow keys, and what is under the pointer is told."""
    runs = {
        name: ss.run(ss.load("single-gpu-7b", ["workload.num_requests=60", *more]), steps=True)
        for name, more in (("as it is", []), ("few", ["deployment.engine.max_num_seqs=4"]))
    }
    write_film(runs, tmp_path / "film.html", "a film")
    page, complaints = watched(browser, width)
    page.goto((tmp_path / "film.html").as_uri())
    scrub, button = page.get_by_label("time"), page.get_by_role("button", name="Play")

    assert page.locator("canvas").count() == 4
    button.click()
    page.wait_for_timeout(400)
    page.get_by_role("button", name="Pause").click()
    there = float(scrub.input_value())
    page.wait_for_timeout(200)
    assert float(scrub.input_value()) == there > 600
    before = page.locator("output").inner_text()
    # It stands within a step: the first click goes to where that began, which may look the same.
    page.get_by_role("button").nth(1).click(click_count=2)
    assert page.locator("output").inner_text() != before
    page.locator(".film-strip").first.hover(position={"x": 60, "y": 138})
    assert page.locator(".film-tip").inner_text()
    assert page.locator(".film-now").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_a_film_tells_stages_and_drafts(browser: Any, tmp_path: Path, width: int) -> None:
    """Under the pointer and to a screen reader: micro-batches, bubbles, what was accepted and what was rejected."""
    stages = ["deployment.tensor_parallel_size=1", "deployment.pipeline_parallel_size=4", "workload.num_requests=60"]
    spreading = [*stages, 'deployment.engine.version="0.33"']  # requests over the stages; 0.12 keeps them together
    runs = {
        "stages": ss.run(ss.load("chatbot", stages), steps=True),
        "spread": ss.run(ss.load("chatbot", spreading), steps=True),
        "drafts": ss.run(ss.load("speculative-decoding", ["workload.num_requests=60"]), steps=True),
    }
    told = {}
    for name, result in runs.items():
        write_film({name: result}, tmp_path / f"{name}.html", name)
        page, complaints = watched(browser, width)
        page.goto((tmp_path / f"{name}.html").as_uri())
        canvas = page.locator(".film-drafts" if name == "drafts" else ".film-stages")
        box, said = canvas.bounding_box(), set()
        for place in range(40):
            canvas.hover(position={"x": (place + 0.5) * box["width"] / 40, "y": 11})
            said.add(page.locator(".film-tip").inner_text())
        told[name] = " ".join(said) + canvas.get_attribute("aria-label")
        assert page.locator("canvas").count() == 3
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []
        page.close()

    assert "Stage 1 idles here." in told["stages"]
    assert "micro-batch 2: " in told["spread"]
    assert "accepted" in told["drafts"]
    assert "rejected" in told["drafts"]
