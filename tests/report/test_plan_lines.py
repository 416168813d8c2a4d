"""What a plan says in lines."""

from __future__ import annotations

from typing import Any

import pytest

import simserve as ss
from simserve.report.plan import PlanPage, _with_probability, plan_brief, writes_file
from simserve.report.plan_lines import (
    changes,
    front,
    gpus_of,
    left_out,
    miss_lines,
    robustness_lines,
    runners_up,
    sensitivity,
    single_changes,
)
from simserve.report.quantities import UNDEFINED
from simserve.report.terminal import MOST_LINES, brief_lines


def planned(sustained: float) -> dict[str, Any]:
    """Return what is said of robustness in the summary of a plan for one replica."""
    lost = {"without_spares": None, "spare_usd_per_month": 1000.0}
    best = {
        "traffic_sustained": sustained,
        "lost_replica": lost,
        "replicas": 1,
        "spot": None,
        "attainment": 0.99,
        "fidelity": "measured",
    }
    return {"best": best, "spare_replicas": 0}


@pytest.mark.parametrize(
    ("deployment", "mean", "said"),
    [
        ({"pools": [{"name": "small"}]}, 6.4, "6.40 GPUs on average (3 at first)"),
        ({"autoscaling": {"max_replicas": 3}}, 1.7, "1.70 GPUs on average (3 at most)"),
        ({}, 3.0, "3 GPUs"),
    ],
)
def test_a_fleet_that_is_scaled_has_its_mean_number_of_gpus(deployment: dict[str, Any], mean: float, said: str) -> None:
    """Its price is theirs; pools with autoscalers of their own were told by the GPUs that they begin with."""
    assert gpus_of({"deployment": deployment, "num_gpus": 3, "mean_gpus": mean}) == said


@pytest.mark.parametrize(
    ("sustained", "said"),
    [
        (4.0, "It can sustain at least 4 times the traffic before the SLO breaks."),
        (1.25, "It can sustain 25% more traffic before the SLO breaks."),
        (1.0, "It has no headroom: more traffic breaks the SLO."),
        (0.8, "It can sustain only 80% of the traffic once all conversations are under way; the run ends before."),
    ],
)
def test_how_much_traffic_is_sustained_is_said_first(sustained: float, said: str) -> None:
    """More, no more, and of conversations less."""
    assert robustness_lines(planned(sustained))[0] == said


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


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
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


@pytest.mark.parametrize(
    ("probability", "confidence", "said"),
    [
        (0.35, None, "Deploy it: 2 GPUs; 35% of real servers hold the SLO with it."),
        (0.6, None, "Deploy it: 2 GPUs."),
        (0.45, 0.4, "Deploy it: 2 GPUs."),
        (None, None, "Deploy it: 2 GPUs."),
    ],
)
def test_a_plan_that_most_real_servers_miss_says_so_first(
    probability: float | None, confidence: float | None, said: str
) -> None:
    """In its first line, unless that much was asked for or nothing is known."""
    summary = {"best": {"probability": probability}, "confidence": confidence}

    assert _with_probability("Deploy it: 2 GPUs.", summary) == said


def _best(**changes: Any) -> dict[str, Any]:
    best = {
        "usd_per_month": 1000.0,
        "p95_ttft_ms": 299.0,
        "p95_tpot_ms": 26.5,
        "usd_per_million_tokens": 0.5,
        "attainment": 0.99,
    }
    return {**best, **changes}


def _variant(lever: str, variant: str, **changes: Any) -> dict[str, Any]:
    found = {
        "lever": lever,
        "variant": variant,
        "replicas": 1,
        "num_gpus": 4,
        "usd_per_month": 1000.0,
        "usd_per_month_more": 0.0,
        "reason": "",
        "p95_ttft_ms": 484.0,
        "p95_tpot_ms": 43.2,
        "usd_per_million_tokens": 0.7,
    }
    return {**found, **changes}


def _refused(lever: str, variant: str, reason: str) -> dict[str, Any]:
    nothing = {"replicas": None, "usd_per_month": None, "usd_per_month_more": None, "reason": reason}
    return {"lever": lever, "variant": variant, **nothing}


def test_variants_stand_below_the_plan_and_a_lever_is_named_once() -> None:
    """The first row is what they are compared with; a price that does not change is `same`."""
    dearer = {"usd_per_month": 2500.0, "usd_per_month_more": 1500.0}
    variants = [_variant("quantise", "16-bit weights"), _variant("quantise", "4-bit weights", **dearer)]

    found = changes({"best": _best(), "changes": variants})

    assert found.header == ("", "instead", "$/month", "p95 TTFT", "p95 TPOT")
    assert found.rows == [
        ("The plan", "", "$1,000", "299 ms", "26.5 ms"),
        ("Quantise weights", "16-bit weights", "same", "484 ms", "43.2 ms"),
        ("", "4-bit weights", "$2,500", "484 ms", "43.2 ms"),
    ]


def test_fleets_of_one_label_are_told_apart_by_their_settings() -> None:
    """Those in which they differ, and no others; one that leaves a setting alone says so."""

    def fleet(label: str, **overrides: Any) -> dict[str, Any]:
        figures = {"num_gpus": 3, "usd_per_month": 10.0, "p95_ttft_ms": 1.0, "p95_tpot_ms": 1.0}
        return {"label": label, "overrides": {"deployment.replicas": 3, **overrides}, **figures}

    budget = {"deployment.engine.max_num_batched_tokens": 2048}
    unbeaten = [fleet("3 x h100", **budget), fleet("3 x h100"), fleet("2 x h200", **budget)]

    rows = front({"pareto": unbeaten}).rows

    assert [row[0] for row in rows] == [
        "3 x h100, max_num_batched_tokens 2048",
        "3 x h100, default max_num_batched_tokens",
        "2 x h200",
    ]


def test_a_variant_that_cannot_be_says_why_and_shows_no_figures() -> None:
    """A rule that is broken, or a fleet that does not hold."""
    variants = [_refused("chunk", "whole prompts", "k must be 2"), _refused("batch", "one", "does not hold")]

    rows = changes({"best": _best(), "changes": variants}).rows

    assert rows[1:] == [
        ("Chunk prompts", "whole prompts: not possible, k must be 2", UNDEFINED, UNDEFINED, UNDEFINED),
        ("Batch", "one: does not hold", UNDEFINED, UNDEFINED, UNDEFINED),
    ]


def test_without_an_slo_variants_are_compared_in_dollars_a_token() -> None:
    """Nobody asked for a latency there."""
    found = changes({"best": _best(attainment=None), "changes": [_variant("quantise", "16-bit weights")]})

    assert found.header[-1] == "$/M tokens"
    assert [row[-1] for row in found.rows] == ["$0.500", "$0.700"]


def test_without_a_price_a_variant_is_told_in_gpus() -> None:
    """Of a GPU that nobody offers."""
    unpriced = _variant("batch", "8", usd_per_month=None, usd_per_month_more=None, num_gpus=12)

    rows = changes({"best": _best(usd_per_month=None), "changes": [unpriced]}).rows

    assert [row[2] for row in rows] == [UNDEFINED, "12 GPUs"]


def test_what_may_change_has_a_row_and_less_stands_before_more() -> None:
    """A fleet that would not hold says so in place of GPUs."""
    changes = [
        {"what": "traffic", "change": 0.2, "replicas": None, "num_gpus": None, "usd_per_month": None, "reason": None},
        {"what": "traffic", "change": -0.2, "replicas": 1, "num_gpus": 1, "usd_per_month": 500.0, "reason": None},
    ]

    found = sensitivity({"sensitivity": changes})

    assert found.header == ("", "-20%", "+20%")
    assert found.rows == [("Traffic", "1 GPU, $500.00", "no fleet of four times the size holds")]


def test_a_single_change_is_told_as_more_or_less_and_from_twice_on_as_a_factor() -> None:
    """`1 times` says nothing; what is not possible is left off."""
    changes = [
        {"variant": name, "times": times} for name, times in (("a", 2.34), ("b", 1.009), ("c", 0.757), ("d", None))
    ]

    found = single_changes({"single_changes": {"output_throughput": 100.0, "changes": changes}})

    assert found.rows == [("a", "2.3 times"), ("b", "+0.9%"), ("c", "-24%")]


def test_runners_up_that_are_too_many_are_counted() -> None:
    """The cheapest eight are shown, those without a price last."""
    fleets = [
        {"label": f"fleet {price}", "hardware": "gpu", "usd_per_month": price, "why": "costs more"}
        for price in (None, *range(10, 0, -1))
    ]

    (found,) = runners_up({"runners_up": fleets, "feasible": True})

    assert [row[1] for row in found.rows] == [f"${price}.00" for price in range(1, 9)]
    assert found.lines == ["and 3 more kinds of GPU (--json lists them)"]
    assert not list(runners_up({"runners_up": []}))


def test_what_was_not_searched_is_named_with_its_reason() -> None:
    """In the order in which it was decided."""
    reasons = {"route": "one replica", "cache": "no prompt begins like another"}

    assert left_out({"search": {"left_out": reasons}}).rows == [
        ("Route", "one replica"),
        ("Cache prefixes", "no prompt begins like another"),
    ]


def test_a_spare_replica_without_a_price_has_none() -> None:
    """A Mac has no price; it was a dash a month."""
    summary = planned(1.0)
    summary["best"]["lost_replica"]["spare_usd_per_month"] = None

    (line,) = [each for each in robustness_lines(summary) if each.startswith("One replica")]

    assert line == "One replica: while it is down, nothing answers; --spare-replicas 1 plans a spare one."


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ({"ttft_ms": 40.0, "tpot_ms": 8.0, "e2e_ms": 900.0},
         "Nearest: 2 x h100. On it, whatever the number of replicas: TTFT at least 40.0 ms, TPOT 8.00 ms, E2E 900 ms "
         "(bounds)."),
        ({"ttft_ms": 0.0, "tpot_ms": 8.0, "e2e_ms": None},
         "Nearest: 2 x h100. On it, whatever the number of replicas: TPOT at least 8.00 ms (bounds)."),
        ({"ttft_ms": 0.0, "tpot_ms": 0.0, "e2e_ms": 0.0}, "Nearest: 2 x h100."),
    ],
)  # fmt: skip
def test_the_nearest_miss_has_the_bounds_that_say_something(bound: dict[str, Any], said: str) -> None:
    """A latency of at least nothing was told of fleets whose prompts may be cached."""
    miss = {"metric": "ttft", "is_bound": False, "reached": 2.0, "asked": 1.0, "label": "2 x h100", "bound": bound}

    lines = miss_lines({"nearest_miss": {**miss, "relax": "allow more GPUs"}})

    assert lines[1] == said
