"""`report.html`: self-contained, valid, the numbers of `result.json`, the same bytes every time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simserve import api
from simserve.metrics.thresholds import at
from simserve.report.html import render_report, write_report
from simserve.report.quantities import UNDEFINED
from tests.report.builders import CASES, Page, page_text, run


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    """Return one kind of run."""
    return str(request.param)


def test_nothing_is_fetched(case: str) -> None:
    """No address anywhere, no reference but to the page's own parts, no import of styles; scripts stand in the page."""
    text = page_text(case)
    page = Page(text)

    assert not re.search(r"(https?:)?//[a-z0-9]", text, re.IGNORECASE)
    assert "@import" not in text
    assert page.attributes("src") == []
    assert all(link.startswith("#") for link in page.attributes("href"))
    assert all(link.startswith("#") for link in re.findall(r"url\(([^)]*)\)", text))
    assert not {"link", "iframe", "img", "object"} & {tag for tag, _ in page.elements}


def test_the_page_is_balanced_and_its_ids_are_unique(case: str) -> None:
    """Every element is closed in turn, every id stands once, every reference has a target."""
    page = Page(page_text(case))

    ids = page.attributes("id")
    targets = [link[1:] for link in page.attributes("href")]
    assert page.open == []
    assert len(ids) == len(set(ids))
    assert set(targets) <= set(ids)


def test_its_numbers_are_those_of_the_summary(case: str) -> None:
    """Every figure carries its key and its exact value; defined latencies and rates are all there."""
    summary = run(case).summary
    shown = {
        key: float(attributes["value"] or "nan")
        for _, attributes in Page(page_text(case)).elements
        if (key := attributes.get("data-key")) is not None
    }

    assert shown
    assert all(value == at(summary, key) for key, value in shown.items())
    headline = [f"{each}_{name}" for each in ("mean", "p50", "p95", "p99") for name in ("ttft_ms", "itl_ms", "e2el_ms")]
    headline += ["request_throughput", "output_throughput", "simserve.cost.usd_per_million_output_tokens"]
    assert all(key in shown for key in headline if at(summary, key) is not None)


def test_the_same_result_gives_the_same_bytes(case: str) -> None:
    """Also from another run of the same scenario."""
    name, *overrides = CASES[case]

    again = api.run(api.load(name, overrides))

    assert render_report(again) == page_text(case)


def test_every_figure_says_what_it_shows(case: str) -> None:
    """An image with a description, in colours of the page and text as text."""
    page = Page(page_text(case))
    figures = [attributes for tag, attributes in page.elements if tag == "svg"]

    assert all(each["role"] == "img" and len(each["aria-label"] or "") > 30 for each in figures)
    assert len(figures) == {"empty": 1, "static": 8, "uncached": 8, "preempting": 10}.get(case, 10)


def test_an_overloaded_run_is_marked() -> None:
    """At the percentiles and among the warnings; the failed threshold too."""
    text = Page(page_text("overloaded")).text

    assert "Not steady state" in text
    assert "Overloaded: 30.0 requests/s arrive" in text
    assert "Threshold failed: ttft_ms p(95)<1000" in text


def test_undefined_latencies_are_said_to_be_undefined() -> None:
    """Static batching has no TPOT."""
    text = Page(page_text("static")).text

    assert " ".join(["TPOT", "ms", *[UNDEFINED] * 5]) in text
    assert "TPOT and ITL are undefined" in text


def test_a_run_that_completes_nothing_still_reports() -> None:
    """Without figures, as there is nothing to draw."""
    text = Page(page_text("empty")).text

    assert "No request was completed: 20 failed (prompt too long)." in text


def test_it_says_how_to_reproduce_it_and_how_far_to_trust_it() -> None:
    """Command, hash, seed, version, fidelity, the scenario itself, the memory's arithmetic."""
    simserve = run("stable").summary["simserve"]
    text = Page(page_text("stable")).text

    for part in ("simserve run scenario.resolved.yaml", simserve["scenario_hash"], simserve["version"], "fitted"):
        assert part in text
    assert "xpected error (median): TPOT" in text
    assert "quantization: fp8" in text
    assert re.search(r"usable - 18.17 GB weights - .* = [\d.]+ GB for KV", text)


def test_text_of_a_scenario_is_escaped() -> None:
    """A path with a bracket stays text."""
    result = run("stable")
    scenario = {**result.scenario, "model": "<script>alert(1)</script>"}

    text = render_report(type(result)(summary=result.summary, scenario=scenario, simulation=result.simulation))

    assert "<script>" not in text


def test_the_page_stays_small(case: str) -> None:
    """A few hundred points a curve, whatever the number of requests."""
    assert len(page_text(case).encode()) < 200_000


def test_the_page_does_not_grow_with_the_requests() -> None:
    """Fifty times the requests, hardly a byte more."""
    result = run("stable")
    records = result.simulation.records
    columns = {name: getattr(records, name) for name in records.__slots__}
    many = type(records)(
        **{name: np.tile(each, 50) if isinstance(each, np.ndarray) else each for name, each in columns.items()}
    )
    simulation = result.simulation
    larger = type(simulation)(**{**{name: getattr(simulation, name) for name in simulation.__slots__}, "records": many})

    text = render_report(
        type(result)(summary=result.summary, scenario=result.scenario, simulation=larger, slo=result.slo)
    )

    assert len(text) < 1.1 * len(render_report(result))


def test_it_is_written_whole(tmp_path: Path) -> None:
    """Under its name, with nothing beside it."""
    path = write_report(run("stable"), tmp_path)

    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8") == render_report(run("stable"))


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """And nothing is left."""
    with pytest.raises(OSError, match="absent"):
        write_report(run("stable"), tmp_path / "absent")


@pytest.mark.slow
def test_importing_it_loads_no_heavy_library() -> None:
    """Neither Matplotlib nor Jinja2 until a report is written."""
    program = (
        "import sys, simserve.report.html, simserve.report.terminal; "
        "print([name for name in ('matplotlib', 'jinja2', 'pandas', 'rich', 'scipy') if name in sys.modules])"
    )

    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert shown.strip() == "[]"


def test_it_is_valid_html(case: str) -> None:
    """As the parser of the standard reads it: no error."""
    html5lib = pytest.importorskip("html5lib")
    parser = html5lib.HTMLParser(strict=False)

    parser.parse(page_text(case))

    assert parser.errors == []
