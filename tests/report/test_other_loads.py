"""A run at other loads: what the page of a run says beyond the load it was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from simserve.metrics.files import read_result
from simserve.report import other_loads as other_loads_module
from simserve.report.html import render_report
from simserve.report.other_loads import NUM_REQUESTS, other_loads
from simserve.report.panels import goodput_at_loads as goodput
from simserve.report.panels import knee, knee_words, runs_words, sustained_words
from simserve.report.panels import latency_at_loads as latency
from simserve.report.sketch import Curve, Level, Note, Rule
from simserve.sim.simulate import simulate
from tests.report.builders import run

SMALL = ["workload.num_requests=50"]


@pytest.fixture(scope="module")
def chatbot() -> dict[str, Any]:
    """Return the chatbot's deployment at other loads."""
    found = other_loads(ss.load("chatbot", SMALL))
    assert found is not None
    return found


def test_goodput_has_its_knee_inside(chatbot: dict[str, Any]) -> None:
    """It rises with the load, and falls once requests are late; latency only rises."""
    at = knee(chatbot)

    assert at is not None
    assert chatbot["loads"][0] < at[0] < chatbot["loads"][-1]
    assert chatbot["goodput"][0] == pytest.approx(chatbot["throughput"][0], rel=0.1)
    assert chatbot["goodput"][-1] < 0.5 * at[1]
    assert chatbot["p95_ttft"][0] < chatbot["p95_ttft"][-1]
    assert chatbot["p95_tpot"][0] < chatbot["p95_tpot"][-1]


@pytest.mark.slow
def test_it_agrees_with_capacity(chatbot: dict[str, Any]) -> None:
    """The load that `simserve capacity` finds lies between the last that holds and the first that does not."""
    holds = [share >= 0.95 for share in chatbot["attainment"]]
    first_missed = holds.index(False)

    most = ss.capacity(ss.load("chatbot"), replications=1).summary["max_rate"]

    assert chatbot["loads"][first_missed - 1] * 0.95 < most < chatbot["loads"][first_missed] * 1.05


def test_an_overloaded_run_is_looked_at_below(chatbot: dict[str, Any]) -> None:
    """Until the knee is seen: four times the load finds it where the load itself did."""
    found = other_loads(ss.load("chatbot", [*SMALL, "workload.arrivals.rate=40"]))

    assert found is not None
    below, here = knee(found), knee(chatbot)
    assert below is not None
    assert here is not None
    assert below[0] < found["own"]
    assert below[0] == pytest.approx(here[0], rel=0.5)


@pytest.mark.parametrize(
    "change",
    [
        "slo=null",
        "workload.arrivals={process: all_at_once}",
        "deployment.faults=[{kind: replica, at: 1 s, duration: 1 s}]",
    ],
)
def test_without_an_objective_or_a_load_there_is_nothing(change: str) -> None:
    """Nor where something happens at its own time."""
    assert other_loads(ss.load("chatbot", [*SMALL, "thresholds={}", change])) is None


def test_clients_of_a_closed_loop_are_whole() -> None:
    """A number of clients, named so."""
    found = other_loads(ss.load("single-gpu-7b", SMALL))

    assert found is not None
    assert found["is_closed"]
    assert all(load == round(load) for load in found["loads"])
    assert goodput(found).x.label == "clients"


def test_the_pictures_show_the_bounds_and_this_run(chatbot: dict[str, Any]) -> None:
    """Two curves each, the bounds of the SLO, a rule at the run's own load."""
    result = run("stable")

    pictures = latency(result, chatbot), goodput(chatbot)

    assert [sum(isinstance(mark, Curve) for mark in each.marks) for each in pictures] == [2, 2]
    assert len([mark for mark in pictures[0].marks if isinstance(mark, Level)]) >= 1
    assert all([mark.x for mark in each.marks if isinstance(mark, Rule)] == [chatbot["own"]] for each in pictures)
    assert any(isinstance(mark, Note) and mark.text.startswith("knee at") for mark in pictures[1].marks)


def test_words_say_what_the_pictures_show(chatbot: dict[str, Any]) -> None:
    """Where goodput is highest, and between which loads the SLO breaks; each end too."""
    result = run("stable")
    rising = {**chatbot, "goodput": chatbot["throughput"]}
    nothing = {**chatbot, "goodput": [0.0] * len(chatbot["loads"]), "attainment": [0.0] * len(chatbot["loads"])}
    everything = {
        **chatbot,
        "attainment": [1.0] * len(chatbot["loads"]),
        "stability": ["stable"] * len(chatbot["loads"]),
    }

    assert knee_words(chatbot, "requests/s").startswith("Goodput is highest near ")
    assert knee_words(rising, "requests/s").startswith("Goodput still rises at ")
    assert knee_words(nothing, "requests/s").startswith("At no load")
    assert ", not at " in sustained_words(result, chatbot, "requests/s")
    assert "not" not in sustained_words(result, everything, "requests/s")
    assert "does not hold even at" in sustained_words(result, nothing, "requests/s")


def test_the_page_of_a_run_has_it_and_so_has_one_written_anew(tmp_path: Path) -> None:
    """Stored with the run; a run that writes nothing does without."""
    scenario = ss.load("chatbot", SMALL)
    plain = ss.run(scenario)
    ss.run(scenario, out=tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")

    again = render_report(read_result(tmp_path / "out"))

    assert plain.background["loads"] is None
    assert "At other loads" in page
    assert again == page
    assert "From runs of " in page


def test_steady_loads_are_run_until_they_settle(chatbot: dict[str, Any]) -> None:
    """Whatever number of requests the scenario says; the two around the end of the SLO for 30,000 requests or 20
    minutes; above what is finished nothing settles, and nothing of length is spent there."""
    finishable = ss.run(ss.load("chatbot")).summary["simserve"]["finishable_throughput"]
    rows = list(
        zip(chatbot["loads"], chatbot["requests"], chatbot["settled"], chatbot["attainment"], strict=True),
    )

    below = [row for row in rows if row[0] < 0.965 * finishable]
    last = max(load for load, _, _, attained in below if attained >= 0.95)

    assert all(settled for _, _, settled, _ in below)
    assert all(requests >= 1200 * load for load, requests, _, _ in below if load == last)
    assert all(settled is False and requests <= 2000 for load, requests, settled, _ in rows if load >= finishable)


def test_words_name_the_runs_that_were_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget for short runs alone the loads near what is finished have not settled, and the page says so."""
    monkeypatch.setattr(other_loads_module, "BUDGET", 9 * NUM_REQUESTS)
    found = other_loads(ss.load("chatbot", SMALL))
    assert found is not None

    words = runs_words(found, "requests/s")

    assert words.startswith("From runs of 600 to ")
    assert "; too short to have settled at " in words
    assert "11" in words.split("settled at ")[1]
    assert runs_words({**found, "settled": [None] * len(found["loads"])}, "clients").endswith(" requests")


def test_stopped_meanwhile_the_run_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its page, which shows one thing less."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simserve.report.other_loads.probe_of", stopped)

    result = ss.run(ss.load("chatbot", SMALL), out=tmp_path / "out")

    assert result.background["loads"] is None
    assert "At other loads" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_other_loads_keep_to_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in simulated requests: with a third of it fewer loads are shown, with less than three runs none."""
    simulated: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        found = simulate(*arguments, **options)
        simulated.append(len(found.records))
        return found

    monkeypatch.setattr("simserve.planner.capacity.probe.simulate", counted)
    scenario = ss.load("chatbot", SMALL)
    shown = []
    for budget in (other_loads_module.BUDGET, 4 * NUM_REQUESTS, NUM_REQUESTS // 2):
        monkeypatch.setattr(other_loads_module, "BUDGET", budget)
        simulated.clear()

        found = other_loads(scenario)

        assert sum(simulated) <= budget
        assert found is None or found["own"] in found["loads"]
        shown.append(0 if found is None else len(found["loads"]))
    assert shown[0] > shown[1] > shown[2] == 0


def test_a_fleet_that_restarts_busy_replicas_is_not_tried_at_other_loads() -> None:
    """At twice the load what it holds is lost and tried again for ever: the search would not end."""
    assert other_loads(ss.load("long-context", ["deployment.liveness.in_flight=retry"])) is None
