"""Tests of several runs together."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from simserve.metrics.replications import (
    _DESCRIBED,
    Sample,
    _degrees_of_freedom,
    _described,
    _jackknifed,
    _left_out,
    _of_jackknife,
    confidence_intervals,
    have_settled,
    pool,
    widest,
    widths,
)
from simserve.metrics.summary import latency_values, measure, steady_rates, summarize
from simserve.metrics.throughput import Offered
from simserve.scenario.load import load
from simserve.scenario.replication import replicate
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy
from simserve.scenario.schema import Scenario
from simserve.sim.records import Histogram, RequestRecords
from tests.metrics.builders import make_facts, make_records, make_simulation, make_slo, single_server_queue


def summary_of(seed: int, load: float = 0.5) -> dict[str, Any]:
    """Return the summary of an M/M/1 run."""
    facts = make_facts(slo=make_slo(e2e=2.0), thresholds={"e2el_ms": ["avg<2500"]}, warmup="none")
    return summarize(make_simulation(single_server_queue(load=load, num_requests=300, seed=seed)), facts)


def test_intervals_are_students() -> None:
    """Mean, t s / sqrt(n), and the number of runs: 2.776 is the 97.5 % point for four degrees of freedom."""
    summaries = [summary_of(seed) for seed in range(5)]
    values = [summary["mean_e2el_ms"] for summary in summaries]

    interval = confidence_intervals(summaries)["mean_e2el_ms"]

    half_width = 2.7764451 * np.std(values, ddof=1) / np.sqrt(5)
    assert interval["mean"] == pytest.approx(np.mean(values))
    assert interval["half_width"] == pytest.approx(half_width)
    assert interval["high"] == pytest.approx(np.mean(values) + half_width)
    assert interval["replications"] == 5


def test_intervals_cover_the_truth() -> None:
    """Of 60 intervals for the throughput of a queue at half load, 95 % and 4 standard errors less hold it."""
    covered = 0
    for block in range(60):
        summaries = [summary_of(seed) for seed in range(4 * block, 4 * block + 4)]
        interval = confidence_intervals(summaries)["request_throughput"]
        assert interval["low"] is not None
        assert interval["high"] is not None
        covered += interval["low"] <= 0.5 <= interval["high"]

    assert covered / 60 > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 60)


def test_a_spread_that_rests_on_one_run_has_few_degrees_of_freedom() -> None:
    """Values without a tail keep n - 1; one congested run of twenty leaves hardly any."""
    even, heavy = np.linspace(-1.0, 1.0, 20), np.append(np.linspace(-0.1, 0.1, 19), 10.0)
    normal = np.random.default_rng(1).normal(size=100_000)

    assert _degrees_of_freedom(even) == 19
    assert _degrees_of_freedom(heavy) < 4
    assert _degrees_of_freedom(np.zeros(20)) == 19
    assert _degrees_of_freedom(normal) == pytest.approx(99_999, rel=0.03)


@pytest.mark.slow
def test_tails_of_congested_runs_are_covered_more_often() -> None:
    """100 times 20 runs whose pace is skewed: p95 is covered 80 times or more, the mean 85 times."""
    draw = np.random.default_rng(12)
    pace = 1.0 + 0.3 * draw.gamma(0.5, 1.0, 40_000)
    whole = (pace[:, None] * draw.lognormal(0, 0.3, (40_000, 10))).ravel()
    truth = {"mean": whole.mean(), "p95": np.quantile(whole, 0.95)}
    covered = dict.fromkeys(truth, 0)
    for _ in range(100):
        runs = (1.0 + 0.3 * draw.gamma(0.5, 1.0, 20))[:, None] * draw.lognormal(0, 0.3, (20, 300))
        intervals = _jackknifed(
            [Sample(dict.fromkeys(("ttft_ms", "tpot_ms", "e2el_ms"), row), Histogram()) for row in runs]
        )
        for name, value in truth.items():
            interval = intervals[f"{name}_tpot_ms"]
            assert interval["low"] is not None
            assert interval["high"] is not None
            covered[name] += bool(interval["low"] <= 1e3 * value <= interval["high"])

    assert covered["mean"] >= 85
    assert covered["p95"] >= 80


@pytest.mark.slow
def test_tails_of_a_server_at_two_thirds_load_are_covered() -> None:
    """200 draws of 20 out of 400 runs of 2,000 requests: p99 of TPOT in at least 90 %, p50 and p95 in at least 92 %."""
    scenario = load("chatbot", ["workload.num_requests=2000", "workload.arrivals.rate=8.3"])
    resolved = resolve(scenario)
    deployment, offered = deploy(resolved), Offered(mean=0.66, peak=None)

    def tpots(asked: Scenario, replication: int) -> np.ndarray:
        _, simulation = replicate(deployment, asked, replication)
        return latency_values(measure(simulation, slo=None, warmup="auto", offered=offered))["tpot_ms"]

    longer = load("chatbot", ["workload.num_requests=600000", "workload.arrivals.rate=8.3", "run.seed=77"])
    truth = dict(zip(_DESCRIBED, _described(np.sort(tpots(longer, 0))), strict=True))
    runs = [tpots(scenario, replication) for replication in range(400)]
    alone, draw, covered = [_described(np.sort(run)) for run in runs], np.random.default_rng(4), {}
    for _ in range(200):
        chosen = draw.choice(len(runs), 20, replace=False)
        together, left_out = _left_out([runs[each] for each in chosen])
        for place, name in enumerate(_DESCRIBED):
            interval = _of_jackknife(
                together[place], [row[place] for row in left_out], [alone[each][place] for each in chosen]
            )
            assert interval["low"] is not None
            assert interval["high"] is not None
            covered[name] = covered.get(name, 0) + (interval["low"] <= 1e3 * truth[name] <= interval["high"])

    assert covered["p99"] >= 0.9 * 200
    assert min(covered["p50"], covered["p95"]) >= 0.92 * 200


def test_an_undefined_figure_has_no_interval() -> None:
    """Without a completed request there is nothing to average; one run has no spread."""
    empty = summarize(make_simulation(make_records([])), make_facts())

    assert confidence_intervals([empty, empty])["mean_ttft_ms"]["replications"] == 0
    assert confidence_intervals([empty, summary_of(1)])["mean_ttft_ms"]["half_width"] is None


def test_totals_add_up_and_figures_are_means() -> None:
    """So that totals over duration stay close to the rates."""
    summaries = [summary_of(seed) for seed in range(3)]

    pooled = pool(summaries)

    assert pooled["completed"] == 900
    assert isinstance(pooled["completed"], int)
    assert pooled["duration"] == pytest.approx(sum(each["duration"] for each in summaries))
    assert pooled["p99_e2el_ms"] == pytest.approx(np.mean([each["p99_e2el_ms"] for each in summaries]))
    assert pooled["simserve"]["steps"]["count"] == 30
    assert pooled["simserve"]["requests"]["submitted"] == 900
    assert pooled["simserve"]["memory"] == summaries[0]["simserve"]["memory"]
    assert pooled["simserve"]["seed"] == 1
    assert pooled["simserve"]["confidence_intervals"]["request_throughput"]["replications"] == 3


def sample_of(records: RequestRecords) -> tuple[dict[str, Any], Sample]:
    """Return the summary of a run with steady arrivals, and its latencies and rates."""
    simulation = make_simulation(records, is_stationary=True)
    measured = measure(simulation, slo=None, warmup="auto")
    sample = Sample(latency_values(measured), simulation.totals.itl, steady_rates(simulation, measured))
    return summarize(simulation, make_facts(), measured), sample


def long_sojourns(seed: int) -> RequestRecords:
    """Return 500 arrivals, eight a second, each of which stays for 20 seconds."""
    return make_records(np.random.default_rng(seed).exponential(1 / 8, 500).cumsum(), ttft=1.0, e2e=20.0)


def test_the_throughput_of_runs_too_short_for_a_window_is_what_comes() -> None:
    """Over the whole run it is a quarter less: the server fills up and drains."""
    summaries, samples = zip(*(sample_of(long_sojourns(seed)) for seed in range(20)), strict=True)

    interval = confidence_intervals(summaries, samples)["request_throughput"]

    assert np.mean([each["request_throughput"] for each in summaries]) < 6.3
    assert interval["mean"] == pytest.approx(8.0, rel=0.03)
    assert interval["low"] is not None
    assert interval["high"] is not None
    assert interval["low"] < 8.0 < interval["high"]
    assert pool(summaries, samples)["request_throughput"] == interval["mean"]


def test_where_a_run_falls_behind_rates_are_those_of_the_windows() -> None:
    """What comes is not what is served then."""
    summaries, samples = zip(
        *(sample_of(single_server_queue(load=load, num_requests=300, seed=1)) for load in (0.5, 3.0)), strict=True
    )

    assert pool(summaries, samples)["request_throughput"] == pytest.approx(
        np.mean([each["request_throughput"] for each in summaries])
    )


def test_the_worst_stability_is_the_one_told() -> None:
    """One overloaded run is enough."""
    assert pool([summary_of(1), summary_of(1, load=3.0)])["simserve"]["stability"] == "overloaded"


def test_thresholds_are_judged_on_the_pooled_figure() -> None:
    """A condition that one run misses can hold over all of them."""
    summaries = [summary_of(seed) for seed in range(6)]

    (result,) = pool(summaries)["simserve"]["thresholds"]

    assert result["value"] == pytest.approx(np.mean([each["mean_e2el_ms"] for each in summaries]))
    assert result["ok"] is (result["value"] < 2500)


def test_pooling_keeps_every_key_and_one_run_as_it_is() -> None:
    """The shape of a result does not depend on the number of runs."""
    summary = summary_of(1)

    pooled = pool([summary])

    pooled["simserve"]["confidence_intervals"] = None
    assert json.dumps(pooled, sort_keys=True) == json.dumps(summary, sort_keys=True)


def test_the_widest_figure_is_the_furthest_from_what_is_asked() -> None:
    """A tail is known less well than a mean; more runs narrow it; a share of one never satisfies nobody."""
    few, many = [summary_of(seed) for seed in range(5)], [summary_of(seed) for seed in range(40)]

    width, narrower = widest(few, 0.01), widest(many, 0.01)

    assert width is not None
    assert narrower is not None
    assert narrower.half_width < width.half_width
    assert not width.is_narrow
    intervals = confidence_intervals(few)
    assert all(
        intervals[f"{statistic}_e2el_ms"]["half_width"] / intervals[f"{statistic}_e2el_ms"]["mean"]  # type: ignore[operator]
        <= width.half_width + 1e-12
        for statistic in ("mean", "p50", "p99")
    )


def test_the_attainment_is_asked_for_to_a_percentage_point() -> None:
    """Where every latency is narrow enough, the attainment may still be the widest."""
    summaries = [summary_of(seed, load=0.8) for seed in range(5)]

    width = widest(summaries, 0.99)

    assert width is not None
    assert (width.metric, width.allowed) == ("slo_attainment", 0.01)


def test_a_percentile_between_two_modes_is_known_by_the_share_above_it() -> None:
    """Of a thousand values a run, about a tenth take three times as long: p90 is the one value or the other.

    Its share above is binomial, and that of 20 runs known to 2.09 sqrt(0.1 x 0.9 / 20,000), 4.4 % of a tenth. Of a p95
    amid values like it, the value is known.
    """
    generator, samples = np.random.default_rng(5), []
    for _ in range(20):
        values = np.where(generator.random(1000) < 0.1, 3.0, 1.0) * generator.uniform(0.99, 1.01, 1000)
        itl = Histogram()
        itl.add(values)
        samples.append(Sample(dict.fromkeys(("ttft_ms", "tpot_ms", "e2el_ms"), values), itl))
    summaries = [summary_of(seed) for seed in range(20)]

    found = {width.metric: width for width in widths(summaries, 0.1, samples)}

    for name in ("p90_ttft_ms", "p90_itl_ms"):
        interval = confidence_intervals(summaries, samples)[name]
        assert interval["half_width"] > 0.1 * interval["mean"]  # type: ignore[operator]
        assert found[name].is_of_share
        assert found[name].is_narrow
        assert found[name].half_width == pytest.approx(2.093 * np.sqrt(0.09 / 20_000) / 0.1, rel=0.5)
    assert not found["p95_ttft_ms"].is_of_share
    assert widest(summaries, 0.1) is not None


def test_a_figure_that_one_run_defines_is_not_known() -> None:
    """There is no interval, so it is infinitely wide."""
    empty = summarize(make_simulation(make_records([])), make_facts())

    lone = widest([empty, summary_of(1)], 0.5)

    assert lone is not None
    assert not lone.is_narrow


@pytest.mark.parametrize("sizes", [(50, 1, 7, 300), (20, 20, 20), (0, 2), (1, 3)])
def test_what_is_left_without_a_run_is_that_of_the_others_together(sizes: tuple[int, ...]) -> None:
    """Found by ranks, without a copy of all others: the same mean, deviation and percentiles, with ties too."""
    draw = np.random.default_rng(len(sizes))
    runs = [np.round(draw.lognormal(size=size), 1) for size in sizes]

    _, left_out = _left_out(runs)

    for number, found in enumerate(left_out):
        others = np.sort(np.concatenate([run for other, run in enumerate(runs) if other != number]))
        assert found == pytest.approx(_described(others), rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [([True, True, False], True), ([True, False], True), ([True, False, False], False), ([True, None], None)],
)
def test_runs_have_settled_where_most_of_them_have(verdicts: list[bool | None], expected: bool | None) -> None:
    """One that loses more to its warm-up than the others takes no interval away; more than half of them do."""
    assert have_settled([{"simserve": {"settled": verdict}} for verdict in verdicts]) is expected


def test_a_run_of_one_request_has_no_rate_in_the_long_run() -> None:
    """One arrival says nothing of how often more come."""
    _, sample = sample_of(make_records([3.0]))

    assert sample.rates == {}


def test_the_jackknife_of_a_mean_is_students_interval() -> None:
    """Leaving out one of n equal runs moves the mean by (x - mean) / (n - 1); 2.776 for four degrees of freedom."""
    runs = np.arange(1.0, 6.0)
    without = [float(np.delete(runs, each).mean()) for each in range(5)]

    found = _of_jackknife(3.0, without, runs.tolist())

    assert found["half_width"] == pytest.approx(1e3 * 2.7764451 * np.std(runs, ddof=1) / np.sqrt(5))
    assert (found["low"], found["high"]) == pytest.approx((3e3 - found["half_width"], 3e3 + found["half_width"]))


def test_one_congested_run_moves_an_interval_up() -> None:
    """Johnson (1978): by mu3 (1 + 2 t^2) / (6 s^2 n), where a t interval of skewed values is too low."""
    runs = np.array([1.0] * 9 + [11.0])
    without = [float(np.delete(runs, each).mean()) for each in range(10)]
    found = _of_jackknife(2.0, without, runs.tolist())
    assert found["low"] is not None
    assert found["high"] is not None

    third, squared = float(np.mean((runs - 2.0) ** 3)), float(np.var(runs, ddof=1))
    moved = third * (1 + 2 * 2.2621572**2) / (6 * squared * 10)
    assert (found["low"] + found["high"]) / 2 == pytest.approx(1e3 * (2.0 + moved))


def test_an_interval_is_as_wide_as_the_runs_differ() -> None:
    """Far out in the tail a percentile hardly moves when a run is left out, though those of the runs differ."""
    without, alone = [4.9, 5.0, 5.0, 5.1], [1.0, 3.0, 5.0, 7.0]

    narrow, wide = (_of_jackknife(5.0, without, each)["half_width"] for each in ([5.0] * 4, alone))

    assert narrow is not None
    assert wide is not None
    spread = np.std([(4 - 1) * (5.0 - each) for each in without], ddof=1)
    assert wide / narrow == pytest.approx(np.std(alone, ddof=1) / spread)
