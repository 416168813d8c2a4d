"""The twin on scrapes of a real vLLM, recorded twice: ten minutes at one rate, ten at 1.6 of it.

Once hardly anything else computed on its two cores, and all is as predicted; once other programs did, and it is told.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.observe.scrapes import Scrape, scrapes_of
from simserve.observe.windows import Observed, observed
from simserve.planner.twin.answer import twin
from simserve.scenario.load import load

RUNS = Path(__file__).parents[3] / "calibration/runs"
QUIET, SLOWED = "vllm-cpu-2026-11-26-scrapes", "vllm-cpu-2026-11-24-scrapes"
CHANGE = 600.0
"""Seconds after the first scrape at which the load changes."""


@cache
def scrapes(name: str) -> tuple[Scrape, ...]:
    """Return all pages of a recording, in their order."""
    return tuple(scrapes_of(gzip.decompress((RUNS / name / "scrapes.prom.gz").read_bytes()).decode(), "scrapes"))


def begin_of(name: str) -> float:
    """Return when the first page was scraped."""
    begin = scrapes(name)[0].time
    assert begin is not None
    return begin


def seen(name: str, low: float, high: float) -> Observed:
    """Return what was observed between two times after the first scrape."""
    begin = begin_of(name)
    return observed([each for each in scrapes(name) if low <= (each.time or 0.0) - begin <= high], "scrapes")


def compared(name: str, low: float, high: float, rate: float) -> Mapping[str, Any]:
    """Return the twin of a stretch for a scenario of this rate."""
    scenario = load(RUNS / name / "scenario.yaml", [f"workload.arrivals.rate={rate}"])
    return twin(seen(name, low, high), "scrapes", scenario, horizon=0.0).summary


@pytest.mark.slow
@pytest.mark.parametrize("name", [QUIET, SLOWED])
@pytest.mark.parametrize(("low", "high"), [(0, 600), (600, 1200), (0, 1200)])
def test_what_is_read_from_the_scrapes_is_what_was_sent(name: str, low: float, high: float) -> None:
    """Rate within 3 %, mean lengths within 5 % of the client's own list."""
    lines = gzip.decompress((RUNS / name / "sent.csv.gz").read_bytes()).decode().splitlines()
    rows = np.loadtxt(lines, delimiter=",", skiprows=1)
    found = seen(name, low, high)
    start, end = found.windows[0].start, found.windows[-1].end
    sent = rows[(rows[:, 0] >= start) & (rows[:, 0] < end)]

    assert found.rate == pytest.approx(len(sent) / (end - start), rel=0.03)
    for column, length in ((1, "prompt_tokens"), (2, "output_tokens")):
        assert found.whole.histograms[length].mean == pytest.approx(sent[:, column].mean(), rel=0.05)


@pytest.mark.parametrize("name", [QUIET, SLOWED])
def test_a_load_that_changes_is_flagged_within_five_minutes(name: str) -> None:
    """And nothing else of the traffic is."""
    drift = compared(name, 0, 1200, 1.0)["drift"]
    change = begin_of(name) + CHANGE

    assert change < drift["rate"]["flagged_s"] <= change + 300
    assert abs(drift["rate"]["since_s"] - change) <= 60
    assert drift["prompt_tokens"]["inside"]
    assert drift["output_tokens"]["inside"]


STRETCHES = [(0, 300, 1.0), (300, 600, 1.0), (0, 600, 1.0), (600, 900, 1.6), (900, 1200, 1.6), (600, 1200, 1.6)]


@pytest.mark.parametrize("name", [QUIET, SLOWED])
@pytest.mark.parametrize(("low", "high", "rate"), STRETCHES)
def test_unchanged_stretches_have_no_alarm_and_the_predicted_hit_rate(
    name: str, low: float, high: float, rate: float
) -> None:
    """Traffic is as the scenario says; the prefix hit rate lies within three points, TTFT in its interval."""
    found = compared(name, low, high, rate)

    assert found["false_alarms"]["alarms"] == 0
    assert found["drift"]["prefix_hit_rate"]["inside"]
    assert found["drift"]["ttft_ms"]["inside"]


@pytest.mark.parametrize(("low", "high", "rate"), [*STRETCHES, (0, 1200, 1.0)])
def test_every_latency_of_an_undisturbed_server_is_as_predicted(low: float, high: float, rate: float) -> None:
    """Before the load changes, after it and over both: inside intervals that end 20 % (TPOT) above the prediction."""
    found = compared(QUIET, low, high, rate)

    for figure in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert found["drift"][figure]["inside"]
        assert found["drift"][figure]["since_s"] is None
    for ratio in (each / found["predicted"]["tpot_ms"] for each in found["drift"]["tpot_ms"]["interval"]):
        assert 0.8 < ratio < 1.2
    assert found["observed"]["tpot_ms"] == pytest.approx(found["predicted"]["tpot_ms"], rel=0.1)


def test_a_latency_is_dated_to_where_it_left_its_interval() -> None:
    """One minute outside, long before the change, does not date it."""
    row = compared(SLOWED, 0, 1200, 1.0)["drift"]["tpot_ms"]

    assert row["inside"] is False
    assert 0 <= row["since_s"] - begin_of(SLOWED) - CHANGE <= 60


def test_each_figure_is_told_minute_by_minute() -> None:
    """What came lies between what chance allows until the load changes, and above it from then on."""
    found = compared(SLOWED, 0, 1200, 1.0)["series"]
    rate = found["rate"]
    is_later = np.array(rate["end_s"]) > begin_of(SLOWED) + CHANGE + 90
    observed_rate, high = np.array(rate["observed"]), np.array(rate["high"])

    assert set(found) == {
        *("rate", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "running", "waiting")
    }
    assert (observed_rate > high)[is_later].all()
    assert (observed_rate > high)[~is_later].mean() < 0.3
    assert np.mean(found["tpot_ms"]["predicted"]) == pytest.approx(20.6, rel=0.1)
    assert all(len(values) == len(each["end_s"]) for each in found.values() for values in each.values())


@pytest.mark.parametrize("name", [QUIET, pytest.param(SLOWED, marks=pytest.mark.slow)])
def test_a_replica_sustains_more_where_prompts_share_their_beginning(name: str) -> None:
    """What stands in the prefix cache need not be computed: the forecast's replicas know it, as the server does."""
    limits = ["slo={ttft: 1 s, tpot: 100 ms, attainment: 0.9}"]
    shared = load(RUNS / name / "scenario.yaml", limits)
    alone = load(RUNS / name / "scenario.yaml", [*limits, "workload.shared_prefix=null"])
    rates = [
        twin(seen(name, 0, 600), "scrapes", each, horizon=3600.0).summary["per_replica_rate"]
        for each in (shared, alone)
    ]

    assert rates[0] > 3 * rates[1]


def calibrated(name: str, high: float, seconds: float) -> Mapping[str, Any]:
    """Return the twin of the first so many seconds, the first of which say how fast the server is."""
    scenario = load(RUNS / name / "scenario.yaml")
    return twin(seen(name, 0, high), "scrapes", scenario, horizon=0.0, calibrate_for=seconds).summary


def test_ten_unchanged_minutes_have_the_predicted_times_between_tokens() -> None:
    """Of a server of this kind, and nearer of this very one, whose first five minutes say how fast it is."""
    plain = compared(SLOWED, 0, 600, 1.0)["drift"]["tpot_ms"]
    own = calibrated(SLOWED, 600, 300)

    assert plain["inside"]
    assert own["drift"]["tpot_ms"]["inside"]
    assert own["drift"]["ttft_ms"]["inside"]
    assert 1 < own["drift"]["tpot_ms"]["ratio"] < 1.2 < plain["ratio"]
    assert own["calibration"]["factors"]["tpot"] == pytest.approx(1.29, abs=0.05)


def test_a_calibrated_twin_says_since_when_a_server_is_slower() -> None:
    """Other programs on its cores slow it down when the load has changed, and not before."""
    row = calibrated(SLOWED, 1200, 300)["drift"]["tpot_ms"]

    assert not row["inside"]
    assert 0 <= row["since_s"] - begin_of(SLOWED) - CHANGE <= 60


def test_a_calibrated_twin_of_an_undisturbed_server_has_no_drift() -> None:
    """Its first five minutes say how fast it is; the fifteen after them, half of them at another load, are so."""
    own = calibrated(QUIET, 1200, 300)

    for figure in ("ttft", "tpot", "itl", "e2e"):
        assert own["drift"][f"{figure}_ms"]["inside"]
        assert own["drift"][f"{figure}_ms"]["ratio"] == pytest.approx(1.0, abs=0.06)
        assert own["calibration"]["factors"][figure] == pytest.approx(0.94, abs=0.04)


def test_a_calibration_that_leaves_nothing_to_compare_is_refused() -> None:
    """Or that is shorter than four scrapes."""
    for seconds in (20.0, 590.0):
        with pytest.raises(InputError, match="to calibrate with"):
            calibrated(SLOWED, 600, seconds)
