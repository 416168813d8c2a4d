"""The pages that commands write, for everybody: axe-core finds nothing on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from simserve.report.film import write_film

pytestmark = pytest.mark.slow


def _run(page: Path) -> None:
    ss.run(ss.load("chatbot", ["workload.num_requests=200"])).to_html(page)


def _film(page: Path) -> None:
    write_film({"a run": ss.run(ss.load("single-gpu-7b", ["workload.num_requests=40"]), steps=True)}, page, "a film")


def _capacity(page: Path) -> None:
    ss.capacity(ss.load("chatbot"), num_requests=150, replications=2).to_html(page)


def _compare(page: Path) -> None:
    scenario = ss.load("chatbot", ["workload.num_requests=100"])
    ss.compare(scenario, {"two": {"deployment.replicas": 2}}).to_html(page)


def _plan(page: Path) -> None:
    ss.plan(ss.load("single-gpu-7b"), hardware=["l4-24gb", "a10-24gb"], max_gpus=4, trials=0).to_html(page)


def _cost(page: Path) -> None:
    ss.cost(ss.load("chatbot", ["workload.num_requests=200"])).to_html(page)


@pytest.mark.parametrize("write", [_run, _film, _capacity, _compare, _plan, _cost])
def test_axe_finds_nothing(
    browser: Any, violations: Callable[[Any], list[str]], tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """On a page as it is opened from a disk."""
    write(tmp_path / "page.html")
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto((tmp_path / "page.html").as_uri())

    assert violations(page) == []
    page.close()
