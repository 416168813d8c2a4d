"""Running a scenario: a result with its inputs, replications, progress, interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.errors import InfeasibleError, ScenarioError
from simserve.metrics.files import summary_text
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario


def test_a_run_serves_every_request() -> None:
    """All that arrive are finished, and the result carries its inputs."""
    scenario = make_scenario()

    result = run(scenario)

    assert result.summary["completed"] == 20
    assert result.summary["simserve"]["scenario_hash"] == scenario.hash
    assert result.scenario == scenario.as_mapping()


def test_the_same_seed_gives_the_same_summary() -> None:
    """Byte for byte."""
    assert summary_text(run(make_scenario()).summary) == summary_text(run(make_scenario()).summary)


def test_a_resolved_scenario_gives_the_summary_of_its_scenario() -> None:
    """Whoever has resolved it needs not have it done again."""
    scenario = make_scenario()
    resolved = resolve(scenario)

    assert resolve(resolved) is resolved
    assert summary_text(run(resolved).summary) == summary_text(run(scenario).summary)


def test_another_seed_gives_another_summary() -> None:
    """Chance comes from the seed alone."""
    assert summary_text(run(make_scenario(["run.seed=2"])).summary) != summary_text(run(make_scenario()).summary)


def test_replications_give_confidence_intervals() -> None:
    """Independent runs are pooled; one run has no interval."""
    pooled = run(make_scenario(["run.replications=3"])).summary
    single = run(make_scenario()).summary

    interval = pooled["simserve"]["confidence_intervals"]["mean_ttft_ms"]
    assert pooled["completed"] == 60
    assert interval["low"] < interval["mean"] < interval["high"]
    assert single["simserve"]["confidence_intervals"] is None


def test_a_precision_adds_runs_until_it_is_reached() -> None:
    """A looser one stops earlier; the intervals are as narrow as was asked."""
    loose = run(make_scenario(["run.precision=60%"])).summary
    tight = run(make_scenario(["run.precision=10%", "run.max_replications=200"])).summary

    assert loose["simserve"]["replications"]["reached"]
    assert tight["simserve"]["replications"]["reached"]
    assert tight["simserve"]["replications"]["done"] > loose["simserve"]["replications"]["done"] >= 5
    interval = tight["simserve"]["confidence_intervals"]["p99_ttft_ms"]
    assert interval["half_width"] <= 0.1 * interval["mean"]


def test_a_precision_out_of_reach_ends_at_the_most_runs_and_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs become twice as long, as long as all together stay below a bound; the result names what is known least."""
    scenario = make_scenario(["run.precision=5%", "run.max_replications=6"])
    monkeypatch.setattr("simserve.scenario.run.OUT_OF_REACH", 1_000_000)
    length = run(make_scenario([])).summary["completed"]
    monkeypatch.setattr("simserve.scenario.run.MOST_TOGETHER", 5 * 6 * length)

    replications = run(scenario, explain=False).summary["simserve"]["replications"]

    assert (replications["asked"], replications["done"], replications["reached"]) == (6, 6, False)
    assert replications["requests_each"] == 4 * length
    assert replications["widest"]["half_width"] > replications["widest"]["allowed"]


def test_a_precision_that_a_million_requests_would_miss_is_not_tried_for() -> None:
    """The result says how many it takes: as many times more as the square of what the interval is too wide by."""
    scenario = make_scenario(["run.precision=0.0001", "run.max_replications=6"])
    length = run(make_scenario([])).summary["completed"]

    replications = run(scenario, explain=False).summary["simserve"]["replications"]

    assert (replications["done"], replications["requests_each"], replications["reached"]) == (6, length, False)
    factor = replications["widest"]["half_width"] / replications["widest"]["allowed"]
    assert replications["needed_requests"] == pytest.approx(factor**2 * 6 * length, abs=1)


def test_a_precision_lengthens_runs_until_they_settle() -> None:
    """At a load of 0.9 runs of 1,500 requests claim no interval; with a precision all are as long as it takes."""
    near = ["workload.arrivals.rate=11.3", "workload.num_requests=1500"]

    short = run(load("chatbot", [*near, "run.replications=2"]), explain=False).summary["simserve"]
    precise = ["run.precision=0.9", "run.max_replications=2"]
    long = run(load("chatbot", [*near, *precise]), explain=False).summary["simserve"]

    assert not short["settled"]
    assert short["confidence_intervals"]["p95_ttft_ms"]["half_width"] is None
    assert long["settled"]
    assert long["replications"]["requests_each"] == 12_000
    assert long["confidence_intervals"]["p95_ttft_ms"]["half_width"] is not None


def test_a_precision_takes_a_trace_beside_arrivals_as_long_as_it_is(tmp_path: Path) -> None:
    """Forty requests do not reach 1 %, and there are no more: as many runs as there may be, none of them longer."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time,prompt_tokens,output_tokens\n" + "0,200,20\n" * 40)
    absent = [f"workload.{key}=null" for key in ("prompt_tokens", "output_tokens", "num_requests")]
    precise = ["run.precision=0.01", "run.max_replications=3"]

    done = run(make_scenario([*absent, f"workload.trace={{path: {trace}}}", *precise])).summary["simserve"]

    assert not done["replications"]["reached"]
    assert (done["replications"]["requests_each"], done["replications"]["done"]) == (40, 3)


def test_equal_runs_reach_any_precision_with_the_pilot() -> None:
    """Where nothing is drawn every run is the same, and no interval has a width."""
    fixed = [
        "workload.prompt_tokens={distribution: fixed, value: 64}",
        "workload.output_tokens={distribution: fixed, value: 8}",
    ]

    summary = run(
        make_scenario([*fixed, "workload.arrivals={process: constant, rate: 2}", "run.precision=0.1%"])
    ).summary

    assert summary["simserve"]["replications"]["done"] == 5
    assert summary["simserve"]["replications"]["reached"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run.precision=soon", "2%"),
        ("run.precision=2", "less than 1"),
        ("run.max_replications=9", "needs run.precision"),
    ],
)
def test_a_precision_that_cannot_be(override: str, says: str) -> None:
    """One line that says what to write."""
    with pytest.raises(ScenarioError, match=says):
        make_scenario([override])


def test_the_first_replication_is_the_single_run() -> None:
    """Asking for intervals does not change the first run."""
    first = run(make_scenario(["run.replications=2"])).simulation
    single = run(make_scenario()).simulation

    assert (first.records.arrival_time == single.records.arrival_time).all()


def test_progress_counts_over_all_replications() -> None:
    """The bar reaches its end once, not once a replication."""
    seen: list[tuple[int, int]] = []

    run(make_scenario(["run.replications=2"]), progress=lambda done, total: seen.append((done, total)))

    assert seen == [(20, 40), (40, 40)]


def test_an_interrupted_run_keeps_what_was_finished() -> None:
    """Ctrl-C ends the run, not the result."""

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    result = run(make_scenario(["workload.num_requests=30000"]), progress=interrupt)

    assert result.simulation.was_interrupted
    assert result.summary["completed"] < 30000


def test_what_does_not_fit_is_not_simulated() -> None:
    """The run ends with the arithmetic."""
    with pytest.raises(InfeasibleError, match="does not fit"):
        run(make_scenario(model="llama-3.1-70b"))


def test_an_slo_is_judged() -> None:
    """Limits that nobody can miss are attained, thresholds on them hold."""
    result = run(make_scenario(slo={"ttft": "1 h"}, thresholds={"slo_attainment": ["rate>=0.95"]}))

    assert result.summary["simserve"]["slo"]["attainment"] == 1.0
    assert result.threshold_failures == []


def test_replicas_share_the_load() -> None:
    """Round robin over two replicas gives each half of the requests."""
    result = run(make_scenario(["deployment.replicas=2", "deployment.routing=round_robin"]))

    assert (result.simulation.records.replica_id == 0).sum() == 10


def test_an_interrupted_run_reports_the_rate_it_saw() -> None:
    """What was still to come does not dilute throughput, attainment or dollars."""
    overrides = ["workload.num_requests=30000", 'slo={ttft: "10 s", tpot: "1 s"}']

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    result = run(make_scenario(overrides), progress=interrupt).summary

    whole = run(make_scenario(["workload.num_requests=2000", *overrides[1:]])).summary
    assert result["simserve"]["interrupted"] is True
    assert whole["simserve"]["interrupted"] is False
    assert result["request_throughput"] == pytest.approx(whole["request_throughput"], rel=0.1)
    assert result["simserve"]["slo"]["attainment"] > 0.9


def test_an_interrupt_keeps_the_replications_that_are_done() -> None:
    """The third replication is broken off: two are reported, and that it was four that were asked."""
    calls = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    result = run(make_scenario(["workload.num_requests=50", "run.replications=4"]), progress=interrupt).summary

    replications = result["simserve"]["replications"]
    assert (replications["asked"], replications["done"]) == (4, 2)
    assert result["simserve"]["interrupted"] is True
    assert result["completed"] == 100


def test_a_warm_up_that_leaves_nothing_is_refused() -> None:
    """Before simulating, with the time of the last arrival."""
    with pytest.raises(ScenarioError, match=r"warmup: '1 h' must end before the last of the arrivals"):
        run(make_scenario(['run.warmup="1 h"', "workload.num_requests=50"]))


def test_replications_of_a_trace_are_refused(tmp_path: Path) -> None:
    """Nothing is drawn from a trace: equal runs would pretend to an interval of zero."""
    (tmp_path / "t.csv").write_text("arrival_time,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n")

    with pytest.raises(ScenarioError, match=r"replications must be 1 with a trace"):
        make_scenario([f"workload={{trace: {{path: {tmp_path}/t.csv, format: csv}}}}", "run.replications=2"])
