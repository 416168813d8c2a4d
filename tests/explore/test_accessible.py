"""The page for everybody: axe-core finds nothing, charts and sliders can be read without a mouse, print is light."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.explore.builders import served

pytest.importorskip("uvicorn", reason="needs simserve[explore]")

pytestmark = pytest.mark.slow

_LINKS = (
    *("tour", "simulator", "simulator?b=1&b.rate=20", "film", "memory-wall", "kv-growth", "attention", "batching"),
    *("paging", "quantization", "speculation", "parallel", "cost?frameworks=vllm", "wizard?rate=3"),
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return where the page is."""
    with served() as found:
        yield found


def opened(browser: Any, address: str, link: str, **options: Any) -> Any:
    """Return a page that shows the answer of a link."""
    page = browser.new_page(**{"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce", **options})
    page.goto(f"{address}#{link}")
    page.wait_for_selector("h2")
    if link.startswith("tour"):
        answered(page)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.answer')].every((each) => Number(each.dataset.done ?? 0) > 0)",
        timeout=60_000,
    )
    return page


def answered(page: Any) -> None:
    """Predict something at a stop of the tour, and wait for the answer."""
    if page.locator("input[type=radio]").count():
        page.locator("input[type=radio]").first.check()
    page.get_by_role("button", name="Show the answer").click()
    page.wait_for_selector(".reveal h3", timeout=60_000)


@pytest.mark.parametrize("link", _LINKS)
def test_axe_finds_nothing(browser: Any, address: str, violations: Callable[[Any], list[str]], link: str) -> None:
    """With the answer shown."""
    page = opened(browser, address, link, color_scheme="light")

    assert violations(page) == []
    page.close()


def test_every_slider_says_what_it_stands_for(browser: Any, address: str) -> None:
    """A logarithm or a place in a list is nothing to read out."""
    for link in ("tour", "simulator", "batching", "memory-wall?billion_parameters=13"):
        page = opened(browser, address, link)
        said = page.eval_on_selector_all("input[type=range]", "all => all.map((each) => each.ariaValueText)")

        assert said
        assert all(said), link
        page.close()
    assert "13" in said


@pytest.mark.parametrize("link", ["memory-wall", "simulator", "parallel", "cost?frameworks=vllm"])
def test_charts_are_read_with_the_keyboard_and_the_pointer(browser: Any, address: str, link: str) -> None:
    """A crosshair stands at a spot and its values are said; Escape lets go."""
    page = opened(browser, address, link)
    charts = page.locator("#panel svg[role=img]")

    for place in range(charts.count()):
        chart = charts.nth(place)
        chart.focus()
        page.keyboard.press("ArrowRight")
        first = page.locator(".tip").inner_text()
        page.keyboard.press("End")
        last = page.locator(".tip").inner_text()
        assert any(map(str.isdigit, first)), place
        assert chart.locator(".cross line").count() >= 1
        assert any(map(str.isdigit, last)), place
        page.keyboard.press("Escape")
        assert page.locator(".tip").is_hidden()
        chart.hover()
        assert page.locator(".tip").is_visible()
        page.mouse.move(0, 0)
    page.close()


def test_the_tour_is_taken_with_the_keyboard_alone(browser: Any, address: str) -> None:
    """Predict with the arrow keys, see the answer, go on to the next stop."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.wait_for_selector(".predict")
    slider = page.locator(".predict input[type=range]")
    slider.focus()
    before = slider.get_attribute("aria-valuetext")
    for key in ("ArrowRight", "ArrowRight", "Tab", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector(".reveal h3")
    after = slider.get_attribute("aria-valuetext")

    assert after != before
    assert page.evaluate("document.activeElement.tagName") == "H3"
    assert f"You said {after}" in page.locator(".verdict").inner_text()
    page.locator(".next").focus()
    page.keyboard.press("Enter")
    assert page.url.endswith("#tour?stop=kv-cache")
    assert page.evaluate("document.activeElement.tagName") == "H2"
    assert page.locator("[aria-current=step]").inner_text().endswith("What the KV cache costs")
    page.close()


def test_print_is_light_and_has_no_buttons(browser: Any, address: str) -> None:
    """Whatever the screen is; the answer and its charts stay."""
    page = opened(browser, address, "memory-wall", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert not page.locator("#copy").is_visible()
    assert page.locator("h2").is_visible()
    assert page.locator("svg[role=img]").first.is_visible()
    page.close()
