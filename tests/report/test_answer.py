"""The answer: does it hold, and is it stable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simserve.report.answer import advice_lines, answer, short_loop_caveat, steady_state_caveat, verdict, warnings
from tests.report.builders import CASES, run


def test_the_sentence_says_slo_and_stability() -> None:
    """All of a stable run's answer."""
    result = run("stable")

    assert verdict(result) == "holds"
    assert answer(result).startswith("The SLO holds: ")
    assert "the run is stable" in answer(result)


def test_an_overloaded_run_misses_and_is_marked() -> None:
    """In the sentence, beside the percentiles, and with the rates that say why."""
    result = run("overloaded")

    assert verdict(result) == "missed"
    assert answer(result).startswith("The SLO is missed: ")
    assert answer(result).endswith("1 threshold failed.")
    assert "overloaded" in answer(result)
    assert (steady_state_caveat(result) or "").startswith("not steady state")
    assert any(each.startswith("Overloaded: 30.0 requests/s arrive") for each in warnings(result))


def test_a_failed_threshold_is_a_warning_and_a_kept_one_is_not() -> None:
    """Each with its value."""
    failed = [each for each in warnings(run("overloaded")) if "Threshold" in each]

    assert len(failed) == 1
    assert "ttft_ms p(95)<1000" in failed[0]


def test_a_run_without_an_slo_is_not_judged() -> None:
    """It still says whether it is stable."""
    result = run("static")

    assert verdict(result) == "none"
    assert answer(result).startswith("No SLO is set; the run is backlogged")


def test_a_run_that_completes_nothing_says_why() -> None:
    """The count and the reason; they miss the SLO."""
    result = run("empty")

    assert answer(result) == "No request was completed: 20 failed (prompt too long)."
    assert any("20 failed (prompt too long); they count as missing the SLO" in each for each in warnings(result))


def test_an_interrupted_run_says_so_first() -> None:
    """What was finished is not the run."""
    result = run("stable")
    cut = replace(result, simulation=replace(result.simulation, was_interrupted=True))

    assert warnings(cut)[0].startswith("Interrupted")


@pytest.mark.parametrize("case", CASES)
def test_only_a_stable_run_has_a_steady_state(case: str) -> None:
    """Every other run carries a caveat."""
    is_stable = run(case).summary["simserve"]["stability"] == "stable"

    assert (steady_state_caveat(run(case)) is None) == is_stable


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"deployment.hardware": "b200-sxm-180gb"}, "On b200-sxm-180gb it holds (99.0%), $1,440 a month:"),
        ({"deployment.replicas": 2}, "With 2 replicas it holds (99.0%), $1,440 a month:"),
        ({"workload.arrivals.rate": 9.0}, "At 9.00 requests/s it holds (99.0%), $1,440 a month:"),
        ({"workload.arrivals.concurrency": 1}, "With 1 client it holds (99.0%), $1,440 a month:"),
        ({"a": None, "b": 1}, "With a=null and b=1 it holds (99.0%), $1,440 a month:"),
    ],
)
def test_what_would_hold_is_told_in_words(changes: dict[str, object], told: str) -> None:
    """Where it is one thing that everybody names; other keys stand as in a file."""
    advice = {"changes": changes, "attainment": 0.99, "usd_per_hour": 2.0, "command": "simserve run mine.yaml"}

    assert advice_lines({"simserve": {"advice": (advice,)}}) == [(told, "simserve run mine.yaml")]


@pytest.mark.parametrize(
    ("waits", "told"),
    [
        ({"seats": 0.9, "budget": 0.1}, "more clients than are served at once"),
        ({"seats": 0.0, "blocks": 0.2, "budget": 0.8}, "clients ask at the same time"),
        ({"blocks": 0.9, "budget": 0.1}, "the KV cache holds fewer requests than there are clients"),
        ({"step": 1.0}, "clients ask at the same time"),
    ],
)
def test_a_closed_loop_that_waits_says_for_what(waits: dict[str, float], told: str) -> None:
    """64 clients of 177 seats do not wait for a seat."""
    found = run("stable")
    inner = found.summary["simserve"]
    inner = {**inner, "stability": "backlogged", "load": "closed", "bottleneck": {"waiting_shares": waits}}
    caveat = steady_state_caveat(replace(found, summary={**found.summary, "simserve": inner}))

    assert caveat is not None
    assert caveat.startswith(told)


@pytest.mark.parametrize(
    ("think_time", "clients", "is_told"), [("30 s", 8, True), ("0 s", 8, False), ("30 s", 1, False)]
)
def test_clients_who_pause_and_ask_seldom_are_told(think_time: str, clients: int, *, is_told: bool) -> None:
    """With five requests each, the rate and the bill of an API came out at half of what a longer run shows."""
    found = run("stable")
    inner = {**found.summary["simserve"], "requests": {**found.summary["simserve"]["requests"], "submitted": 60}}
    arrivals = {"process": "closed_loop", "concurrency": clients, "think_time": think_time}
    loop = replace(
        found,
        scenario={**found.scenario, "workload": {**found.scenario["workload"], "arrivals": arrivals}},
        summary={**found.summary, "simserve": inner},
    )

    told = short_loop_caveat(loop)

    assert (told is not None) == is_told
    if told is not None:
        assert told.startswith("each client sends 7.5")
        assert "--num-requests 400" in told


def test_a_server_without_graphs_that_its_launches_slow_down_is_told() -> None:
    """Also where it holds: "Nothing has to change" was all that was said of TPOT at 2.7 times what one flag gives."""
    found = run("stable")
    inner = found.summary["simserve"]
    bound = {**inner["bottleneck"], "binding": "CPU and kernel launches"}
    engine = {**inner["engine_resolved"], "enforce_eager": True}
    eager = replace(found, summary={**found.summary, "simserve": {**inner, "engine_resolved": engine}})
    slow = {**inner, "engine_resolved": engine, "bottleneck": bound}

    told = warnings(replace(found, summary={**found.summary, "simserve": slow}))

    assert any("enforce_eager=false" in each for each in told)
    assert not any("enforce_eager" in each for each in (*warnings(eager), *warnings(found)))
