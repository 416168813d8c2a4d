"""The page in a real Chromium: it opens, moves as physics says, and a link restores it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simserve.explore.queries import WizardQuery
from simserve.explore.wizard import first
from simserve.metrics.summary import in_json
from tests.explore.builders import no_limit, served

pytest.importorskip("uvicorn", reason="needs simserve[explore]")


pytestmark = pytest.mark.slow

_TABS = ("simulator", "film", "memory-wall", "kv-growth", "attention", "batching", "paging", "quantization",
         "speculation", "parallel", "cost", "wizard", "twin")  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return where the page is."""
    with served() as found:
        yield found


class Visit:
    """A page that is open, and what went wrong on it.

    Attributes:
        page: Playwright's page.
        complaints: Errors on the console, and requests to anywhere else.
    """

    def __init__(self, browser: Any, address: str, width: int = 1440) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900})
        self.complaints: list[str] = []
        self._address = address
        self.page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._note)

    def _note(self, request: Any) -> None:
        if not request.url.startswith((self._address, "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")

    def open(self, link: str) -> None:
        """Open a link of the page and wait for its answers."""
        self.page.goto("about:blank")
        self.page.goto(f"{self._address}#{link}")
        self.settle(0)

    def settle(self, done: int, place: int = 0) -> None:
        """Wait until an area has shown more than ``done`` answers."""
        self.page.wait_for_function(
            "([place, done]) => Number(document.querySelectorAll('.answer')[place]?.dataset.done ?? 0) > done",
            arg=[place, done],
            timeout=60_000,
        )

    def count(self, place: int = 0) -> int:
        """Return how many answers an area has shown."""
        return int(self.page.locator(".answer").nth(place).get_attribute("data-done") or 0)

    def value(self, key: str, place: int = 0) -> float:
        """Return the exact figure of a tile."""
        tile = self.page.locator(f".answer >> nth={place} >> [data-key={key}] dd")
        return float(tile.get_attribute("data-value"))

    def enter(self, control: str, value: object, place: int = 0) -> None:
        """Type a number into a control, choose an option or turn a switch, and wait for the answer."""
        done = self.count(place)
        found = self.page.locator(f"#{control}")
        if isinstance(value, bool):
            found.set_checked(value)
        elif isinstance(value, str):
            found.select_option(value)
        else:
            found.fill(str(value))
            found.press("Tab")
        self.settle(done, place)


def test_the_page_says_that_it_is_loading(browser: Any, address: str) -> None:
    """Until the catalogue has come, which takes seconds on a slow machine, the page is not blank."""
    visit = Visit(browser, address)
    waiting: list[Any] = []
    visit.page.route("**/api/catalogue", lambda route: waiting.append(route))
    visit.page.goto(address)
    visit.page.wait_for_function("document.fonts.ready")

    assert visit.page.locator("#panel").inner_text() == "Loading models and GPUs …"
    visit.page.wait_for_timeout(100)
    waiting[0].continue_()
    visit.page.wait_for_selector("#tabs button")
    assert visit.page.get_by_text("Loading models").count() == 0
    assert visit.complaints == []
    visit.page.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_every_tab_opens(browser: Any, address: str, width: int) -> None:
    """Without an error, an address elsewhere, or anything wider than the screen; with pictures that are described."""
    visit = Visit(browser, address, width)

    for tab in _TABS:
        visit.open(tab)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, tab
        assert visit.page.locator("h2").first.inner_text().endswith((".", "!")), tab
        labels = visit.page.eval_on_selector_all("svg[role=img]", "all => all.map((each) => each.ariaLabel)")
        assert labels or tab in ("wizard", "film", "twin"), tab
        assert all(len(label) > 8 for label in labels), tab
    assert visit.complaints == []
    visit.page.close()


def test_the_twin_shows_saved_metrics(browser: Any) -> None:
    """What was not as predicted, since when, in the table and in a curve a figure; on a phone as wide as it."""
    folder = Path(__file__).parents[2] / "calibration/runs/vllm-cpu-2026-11-24-scrapes"
    source = ("--twin", str(folder / "scrapes.prom.gz"), "--scenario", str(folder / "scenario.yaml"))
    with served(*source) as address:
        visit = Visit(browser, address, 390)
        visit.open("twin")
        page = visit.page

        heading = page.locator("h2").inner_text()
        rows = page.locator("tr:has(td:first-of-type:text-is('no')) th").all_inner_texts()
        outside = [each.split(",")[0] for each in rows]
        assert heading.startswith(f"Not as predicted: {', '.join(outside)}, since 02:47")
        assert {"Requests a second", "TPOT", "ITL"} <= set(outside)
        assert page.locator("tr", has_text="Prefix hit rate").locator("td").first.inner_text() == "yes"
        titles = page.locator("figcaption").all_inner_texts()
        assert {"Requests a second", "TPOT, ms", "TTFT, ms", "Running"} <= {title.split("\n")[0] for title in titles}
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert visit.complaints == []
        page.close()


_MOVES = (
    ("simulator", "simulator-a-rate", 60, "p95_ttft_ms", 1),
    ("simulator", "simulator-a-gpus", 8, "p95_tpot_ms", -1),
    ("simulator", "simulator-a-quantization", "int8", "p95_tpot_ms", -1),
    ("simulator", "simulator-a-continuous_batching", False, "p50_ttft_ms", 1),
    ("simulator", "simulator-a-speculative_decoding", True, "p95_tpot_ms", -1),
    ("memory-wall", "memory-wall-a-batch", 64, "tokens_per_second", 1),
    ("memory-wall", "memory-wall-a-batch", 64, "tokens_per_second_each", -1),
    ("memory-wall", "memory-wall-a-billion_parameters", 70, "step_ms", 1),
    ("kv-growth", "kv-growth-a-context_tokens", 8192, "most_requests", -1),
    ("batching", "batching-a-slots", 2, "gain", -1),
    ("paging", "paging-a-max_model_len", 2048, "waste_static", -1),
    ("speculation", "speculation-a-acceptance_rate", 0.9, "accepted", 1),
    ("cost", "cost-a-requests_per_month", 20000000, "api", 1),
    ("cost", "cost-a-discount", 0.5, "self_host", -1),
    ("cost", "cost-a-concurrency", 8, "usd_per_million", 1),
)


@pytest.mark.parametrize(("tab", "control", "value", "key", "direction"), _MOVES)
def test_controls_move_the_numbers(
    browser: Any, address: str, tab: str, control: str, value: object, key: str, direction: int
) -> None:
    """In the direction that physics says."""
    visit = Visit(browser, address)
    visit.open(tab)
    before = visit.value(key)

    visit.enter(control, value)

    assert (visit.value(key) - before) * direction > 0
    assert visit.complaints == []
    visit.page.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_the_tour_leads_from_a_guess_to_a_tab(browser: Any, address: str, width: int) -> None:
    """At every stop: predict, see the answer, play, and go on in the tab with the settings of the stop."""
    visit = Visit(browser, address, width)
    page = visit.page
    page.goto(address)
    links = []

    for place in range(6):
        page.wait_for_selector(f".tour >> text=Stop {place + 1} of 6")
        if page.locator("input[type=radio]").count():
            page.locator("input[type=radio]").last.check()
        page.get_by_role("button", name="Show the answer").click()
        page.wait_for_selector(".reveal h3[data-truth]", timeout=60_000)
        assert page.locator(".verdict").inner_text().startswith("You ")
        assert page.locator(".play svg, .play canvas").count() >= 1
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        links.append(page.locator(".yours").get_attribute("href"))
        if place < 5:
            page.locator(".next").click()
    assert "of 6 predictions were right" in page.locator(".reveal").inner_text()

    truth = page.locator(".stops button").first
    truth.click()
    page.wait_for_selector(".reveal h3[data-truth]")
    step = float(page.locator(".reveal h3").first.get_attribute("data-truth"))
    page.locator(".yours").click()
    visit.settle(0)
    assert page.locator("#tab-memory-wall").get_attribute("aria-selected") == "true"
    assert visit.value("step_ms") == step
    assert [link.split("?")[0] for link in links] == [
        *("#memory-wall", "#kv-growth", "#batching"),
        *("#paging", "#parallel", "#wizard"),
    ]
    assert visit.complaints == []
    page.close()


def test_a_chart_of_the_tour_moves(browser: Any, address: str) -> None:
    """By itself once it plays, and where the slider is drawn."""
    visit = Visit(browser, address)
    page = visit.page
    page.goto(f"{address}#tour?stop=fleet")
    page.locator("input[type=radio]").first.check()
    page.get_by_role("button", name="Show the answer").click()
    page.wait_for_selector(".play svg", timeout=60_000)
    slider, first = page.locator(".player input"), page.locator(".play svg").get_attribute("aria-label")

    slider.press("End")
    last = page.locator(".play svg").get_attribute("aria-label")
    assert last != first
    assert slider.get_attribute("aria-valuetext") == "80 requests a second"
    page.locator(".player button").click()
    page.wait_for_timeout(1500)
    assert page.locator(".play svg").get_attribute("aria-label") != last
    assert visit.complaints == []
    page.close()


def test_a_film_plays_on_the_page(browser: Any, address: str) -> None:
    """Again when a control was moved; the one that was there is gone."""
    visit = Visit(browser, address)
    visit.open("film")
    assert visit.page.locator(".film").count() == 1
    assert visit.page.locator(".film canvas").count() == 4

    visit.enter("film-a-against", "nothing")
    assert visit.page.locator(".film canvas").count() == 2
    scrub = visit.page.get_by_label("time", exact=True)
    before = scrub.get_attribute("aria-valuetext")
    visit.page.locator(".film-controls button").first.click()
    visit.page.wait_for_timeout(500)

    assert scrub.get_attribute("aria-valuetext") != before
    assert visit.complaints == []
    visit.page.close()


def test_lengths_come_from_examples(browser: Any, address: str) -> None:
    """Seven short answers and a long one: 500 steps, as many as continuous batching takes."""
    visit = Visit(browser, address)
    visit.open("batching")
    done = visit.count()

    visit.page.get_by_role("button", name="7 x 50 + 500").click()
    visit.settle(done)

    assert visit.value("gain") == 1
    assert visit.value("idle_static") == pytest.approx(1 - 850 / 4000)
    assert "lengths=50.50.50.50.50.50.50.500" in visit.page.url
    visit.page.close()


def test_a_slider_moves_with_the_keyboard(browser: Any, address: str) -> None:
    """And its number with it."""
    visit = Visit(browser, address)
    visit.open("simulator")
    slider = visit.page.get_by_label("Requests a second, slider")
    before, done = visit.value("request_throughput"), visit.count()

    for _ in range(60):
        slider.press("ArrowRight")
    visit.settle(done)
    visit.page.wait_for_timeout(500)

    assert float(visit.page.locator("#simulator-a-rate").input_value()) > 10
    assert visit.value("request_throughput") > before
    visit.page.close()


def test_tabs_move_with_the_arrow_keys(browser: Any, address: str) -> None:
    """As a list of tabs does: one stop, arrows inside."""
    visit = Visit(browser, address)
    visit.open("simulator")

    visit.page.locator("#tab-simulator").press("ArrowRight")
    visit.settle(0)

    assert visit.page.evaluate("document.activeElement.id") == "tab-film"
    assert visit.page.locator("[role=tab][tabindex='0']").count() == 1
    assert visit.page.url.endswith("#film")
    visit.page.close()


def test_a_link_restores_everything(browser: Any, address: str) -> None:
    """Two configurations, their controls and their numbers."""
    visit = Visit(browser, address)
    visit.open("simulator")
    visit.enter("simulator-a-rate", 30)
    visit.page.locator("#compare").click()
    visit.settle(0, 1)
    visit.enter("simulator-b-quantization", "int8", 1)
    visit.enter("simulator-b-gpus", 8, 1)
    link, figures = visit.page.url, [visit.value("p95_tpot_ms", place) for place in (0, 1)]

    again = Visit(browser, address)
    again.page.goto(link)
    again.settle(0, 0)
    again.settle(0, 1)

    assert "rate=30" in link
    assert [again.value("p95_tpot_ms", place) for place in (0, 1)] == figures
    assert figures[1] < figures[0]
    assert again.page.locator("#simulator-b-quantization").input_value() == "int8"
    assert again.page.locator("#simulator-b-gpus").input_value() == "8"
    assert again.page.locator(".changed").count() == 2
    assert "better" in again.page.locator(".answer >> nth=1 >> [data-key=p95_tpot_ms]").inner_text()
    assert visit.complaints + again.complaints == []
    visit.page.close()
    again.page.close()


def test_one_change_is_compared_at_a_click(browser: Any, address: str) -> None:
    """B is A but for it; the load that both bear comes when the controls rest."""
    visit = Visit(browser, address)
    visit.open("simulator")

    visit.page.get_by_role("button", name="FP8 weights").click()
    visit.settle(0, 1)
    for place in (0, 1):
        visit.page.locator(f".answer[data-loads] >> nth={place}").wait_for()

    assert visit.page.url.endswith("#simulator?b=1&b.quantization=fp8")
    assert visit.value("most", 1) > visit.value("most", 0)
    heads = visit.page.eval_on_selector_all(".both form", "all => all.map((each) => each.getBoundingClientRect().top)")
    assert heads[0] == heads[1]
    assert visit.complaints == []
    visit.page.close()


def test_a_framework_is_chosen_with_the_keyboard(browser: Any, address: str) -> None:
    """A row of the table against the API; the link keeps it."""
    visit = Visit(browser, address)
    visit.open("cost")
    radios, done = visit.page.locator("input[name=chosen]"), visit.count()

    radios.first.focus()
    radios.first.press("ArrowDown")
    visit.settle(done)

    chosen = visit.page.locator("input[name=chosen]:checked").get_attribute("value")
    assert "chosen=" in visit.page.url
    again = Visit(browser, address)
    again.page.goto(visit.page.url)
    again.settle(0)
    assert again.page.locator("input[name=chosen]:checked").get_attribute("value") == chosen
    assert visit.complaints + again.complaints == []
    visit.page.close()
    again.page.close()


def test_a_wrong_input_says_what_is_wrong(browser: Any, address: str) -> None:
    """In the place of the answer; the next right one is answered again."""
    visit = Visit(browser, address)
    visit.open("simulator")

    visit.enter("simulator-a-model", "llama-3.1-405b")
    assert "does not fit" in visit.page.locator("[role=alert]").inner_text()
    visit.enter("simulator-a-model", "llama-3.1-8b")

    assert visit.page.locator("[role=alert]").count() == 0
    assert re.match("The SLO", visit.page.locator("h2").inner_text())
    visit.page.close()


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("simulator?rate=12", "rate: 12"),
        ("memory-wall?batch=24", "concurrency: 24"),
        ("speculation", "method: eagle"),
        ("cost", "api: together-llama-3.1-8b"),
        ("wizard?rate=2", "replicas: "),
    ],
)
def test_a_scenario_is_saved(browser: Any, address: str, link: str, words: str) -> None:
    """As a file that simserve run takes; of the wizard, what it deploys."""
    visit = Visit(browser, address)
    visit.open(link)

    with visit.page.expect_download() as download:
        visit.page.locator("button:visible", has_text="Save as scenario").click()

    text = download.value.path().read_text(encoding="utf-8")
    assert download.value.suggested_filename == "explore.yaml"
    assert words in text
    assert visit.complaints == []
    visit.page.close()


def test_the_wizard_shows_a_first_answer_and_then_the_whole(browser: Any, address: str) -> None:
    """With how far it is; the bar goes when the search is over."""
    visit = Visit(browser, address)
    visit.page.goto(f"{address}#wizard?rate=3")
    visit.page.wait_for_function("() => Number(document.querySelector('.answer')?.dataset.firsts ?? 0) > 0")
    assert visit.page.locator("progress").count() == 1
    first = visit.page.locator(".answer h2").inner_text()

    visit.settle(0)

    assert first.startswith("Deploy ")
    assert visit.page.locator("progress").count() == 0
    assert visit.page.locator("h3", has_text="How it stands").count() == 1
    assert not visit.complaints


def test_a_search_that_takes_too_long_leaves_its_first_answer(browser: Any, address: str) -> None:
    """With a word on what was left out, in place of an error alone."""
    visit = Visit(browser, address)

    soon = in_json(first(WizardQuery(rate=3), no_limit))
    late = {"error": "this takes longer than 120 s here", "kind": "too_long", "status": 422}
    body = "".join(f"{json.dumps(line)}\n" for line in ({"first": soon}, late))

    def cut_short(route: Any) -> None:
        route.fulfill(content_type="application/x-ndjson", body=body)

    visit.page.route("**/api/wizard", cut_short)
    visit.open("wizard?rate=3")

    assert visit.page.locator(".answer h2").inner_text().startswith("Deploy ")
    assert "was stopped" in visit.page.locator(".answer .warn").inner_text()
    assert visit.page.locator("progress").count() == 0
    assert not visit.complaints
