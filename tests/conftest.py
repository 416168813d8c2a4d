"""What tests of several packages share."""

from __future__ import annotations

import gc
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from simserve.cli import progress
from simserve.sim import acceleration

_OBJECTS_BEFORE_COLLECTION = 250_000
"""Python's own 700 is for programs with few objects. Here a million stay, modules and tests, and searching them for
garbage time and again takes a third of what collecting the tests does."""


def pytest_sessionstart() -> None:
    """Search for garbage less often, and let what a property draws follow from its own text alone.

    Hypothesis also draws constants of the modules imported so far: other ones in another process, or after any commit.
    """
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    settings.register_profile("repeatable", derandomize=True)
    settings.load_profile("repeatable")
    no_constants = Constants()
    providers._get_local_constants = lambda: no_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Search for none while tests are collected, all of which stay, and leave them out of every further search."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command of a busy machine say how far it is, as it does after two seconds."""
    monkeypatch.setattr(progress, "AFTER_SECONDS", math.inf)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a Chromium; skips where Playwright or a Chromium is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs a chromium")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


_AXE = (
    Path("node_modules/axe-core"),
    Path("/usr/lib/node_modules/axe-core"),
    Path("/usr/local/lib/node_modules/axe-core"),
)
"""Where npm installs axe-core, the rules of accessible pages: here, or for all. ``AXE_CORE`` names another."""


@pytest.fixture(scope="session")
def violations() -> Callable[[Any], list[str]]:
    """Return what says which rules of axe-core a page breaks, wide and light and narrow and dark; skips without it."""
    places = [Path(os.environ["AXE_CORE"])] if "AXE_CORE" in os.environ else _AXE
    source = next((each / "axe.min.js" for each in places if (each / "axe.min.js").is_file()), None)
    if source is None:
        pytest.skip("needs axe-core: npm install axe-core")

    def found(page: Any) -> list[str]:
        page.evaluate(source.read_text(encoding="utf-8"))
        broken = []
        for width, scheme in ((1440, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            for each in page.evaluate("axe.run().then((found) => found.violations)"):
                broken += [f"{width} {scheme}: {each['id']}: {node['html'][:160]}" for node in each["nodes"]]
        return broken

    return found


@pytest.fixture
def best_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan without what stands around the best in the answer: levers, sensitivity, front and headroom.

    They are sized once the best is found, do not change it, and take three quarters of a small plan's time.
    """
    monkeypatch.setattr("simserve.planner.plan.plan._Planning._look_around", lambda *_: None)


@pytest.fixture
def headroom_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan with no more around the best than the traffic it can sustain, and what is left with one replica fewer.

    Levers, sensitivity, front and single changes take two thirds of a small plan's time.
    """
    nothing: dict[str, Any] = {"changes_of": (), "levers_of": [], "option_levers": [], "front_candidates": []}
    for name, value in {**nothing, "single_changes": None}.items():
        monkeypatch.setattr(f"simserve.planner.plan.plan.{name}", lambda *_, value=value: value)


@pytest.fixture
def run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without what further runs tell: what a month costs at other loads, and what can be finished at all.

    They take several times as long as a small run.
    """
    monkeypatch.setattr("simserve.planner.cost.month.month", lambda *_: None)
    monkeypatch.setattr("simserve.scenario.run.find_finishable", lambda *_: None)


@pytest.fixture
def page_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the page of a run without the deployment at other loads: a dozen runs, nearly half of what a small one
    takes. A brief then says how loaded it is, and not the highest of those loads that holds."""
    monkeypatch.setattr("simserve.report.background._loads", lambda *_: None)


@pytest.fixture
def fresh_acceleration() -> Iterator[None]:
    """Forget which compiled kernel was loaded and what was said of it, before and after."""
    _forget_acceleration()
    yield
    _forget_acceleration()


def _forget_acceleration() -> None:
    acceleration._load.cache_clear()
    acceleration._say.cache_clear()
