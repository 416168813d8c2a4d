"""What a plan says in lines."""

from __future__ import annotations

from typing import Any

import pytest

import simserve as ss
from simserve.report.plan import PlanPage, plan_brief, writes_file
from simserve.report.plan_lines import robustness_lines
from simserve.report.terminal import MOST_LINES, brief_lines


def planned(borne: float) -> dict[str, Any]:
    """Return what is said of robustness in the summary of a plan for one replica."""
    lost = {"without_spares": None, "spare_usd_per_month": 1000.0}
    best = {
        "traffic_borne": borne,
        "lost_replica": lost,
        "replicas": 1,
        "spot": None,
        "attainment": 0.99,
        "fidelity": "measured",
    }
    return {"best": best, "spare_replicas": 0}


@pytest.mark.parametrize(
    ("borne", "said"),
    [
        (4.0, "It can sustain at least 4 times the traffic before the SLO breaks."),
        (1.25, "It can sustain 25% more traffic before the SLO breaks."),
        (1.0, "It has no headroom: more traffic breaks the SLO."),
        (0.8, "It can sustain only 80% of the traffic once all conversations are under way; the run ends before."),
    ],
)
def test_how_much_traffic_is_borne_is_said_first(borne: float, said: str) -> None:
    """More, no more, and of conversations less."""
    assert robustness_lines(planned(borne))[0] == said


@pytest.mark.parametrize(
    ("requests", "replications", "is_confirmed", "shown"),
    [(60_000, 3, True, 20_000), (3_000, 3, True, 2_000), (60_000, 3, False, 2_000)],
)
def test_latencies_of_a_plan_are_those_of_a_run_as_long_as_its_proof(
    requests: int, replications: int, is_confirmed: bool, shown: int
) -> None:
    """So that the shares within the limits are those that the line about the SLO says."""
    confirmed = {"requests": requests, "replications": replications, "is_confirmed": is_confirmed}
    best = {"overrides": {"deployment.replicas": 2}, "confirmed": confirmed}
    page = PlanPage(summary={"best": best}, scenario=ss.load("chatbot", ["workload.num_requests=2000"]))

    assert page.deployed is not None
    found = page._as_confirmed(page.deployed)

    assert found.workload.num_requests == shown
    assert found.deployment.replicas == 2


def test_the_brief_of_a_plan_says_what_it_assumes_and_how_to_write_it_where_its_command_is_long() -> None:
    """The first clause of what is assumed stands; a command without room gives way to one that writes a scenario."""
    asked = ss.load("single-gpu-7b", ["workload.num_requests=200"])
    summary = ss.plan(asked, keep=["gpus", "weights", "kv-cache", "engine", "drafts", "pools"], trials=0).summary
    long = "simserve run single-gpu-7b " + " ".join(f"--set deployment.engine.option_{each}=100" for each in range(12))
    best = {**summary["best"], "assumes": ["a draft is accepted 0.6 of the time; measure it"], "command": long}

    brief = writes_file(plan_brief({**summary, "best": best}), "simserve plan single-gpu-7b --out deployment.yaml")
    lines = [each.text for each in brief_lines(brief, 80)]

    assert len(lines) <= MOST_LINES
    assert any(line.startswith("Assumes  a draft is accepted 0.6 of the time") for line in lines)
    assert "To do    To run it (-v prints the whole command), write it as a scenario:" in lines
    assert "  simserve plan single-gpu-7b --out deployment.yaml" in lines
    assert f"  {long}" in [each.text for each in brief_lines(brief, 80, is_whole=True)]
