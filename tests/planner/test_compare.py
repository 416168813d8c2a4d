"""Comparisons: what is the same differs by nothing, what differs is shown, and intervals mean what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import ScenarioError, UsageError
from simserve.planner.compare import FIGURES, compare, parse_variant
from simserve.planner.statistics import independent_difference, paired_difference
from simserve.profiles.expected_errors import load_error_model
from simserve.scenario.load import from_mapping
from simserve.scenario.run import Replicator, run
from tests.scenario.builders import make_scenario

FIGURE = "mean_e2el_ms"
LONGER = {"workload.output_tokens.value": 103}
"""3 % more tokens an answer: 3 % more time for almost all of E2E."""


def small_base(seed: int = 1, num_requests: int = 150) -> Any:
    """Return a base whose mean E2E varies by about 1 % between replications: answers of 100 tokens."""
    return make_scenario(
        [
            f"run.seed={seed}",
            f"workload.num_requests={num_requests}",
            "workload.output_tokens.value=100",
            "workload.arrivals.rate=20",
        ]
    )


@pytest.mark.slow
def test_identical_variants_differ_by_exactly_nothing() -> None:
    """On common random numbers: not by a rounding, in no figure."""
    answer = compare(small_base(), {"same": {}, "same in words": ["deployment.replicas=1"]}, replications=5)

    for variant in answer.variants:
        for name, difference in variant.differences.items():
            assert math.isnan(difference.mean) or (difference.mean, difference.low, difference.high) == (0, 0, 0), name
            assert difference.relative_interval in (None, (0, 0)), name
            assert not difference.is_shown


@pytest.mark.slow
def test_every_difference_is_that_of_the_means() -> None:
    """And the interval is Student's over the replications."""
    answer = compare(small_base(), {"longer": LONGER}, replications=5)

    base, variant = (np.array([each[FIGURE] for each in part.summaries]) for part in (answer.base, answer.variants[0]))
    difference = answer.variants[0].differences[FIGURE]
    assert difference.mean == pytest.approx((variant - base).mean())
    half_width = 2.7764 * (variant - base).std(ddof=1) / math.sqrt(5)
    assert difference.half_width == pytest.approx(half_width, rel=1e-4)
    assert answer.variants[0].summary[FIGURE] == pytest.approx(variant.mean())


@pytest.mark.slow
def test_the_first_replication_is_the_run_of_the_scenario() -> None:
    """The same draws, so the same figures, at the length in which all of them settle."""
    base = small_base()

    answer = compare(base, {"longer": LONGER}, replications=2)

    assert answer.requests_each is not None
    assert answer.requests_each > 150
    settled = from_mapping(base.as_mapping(), {"workload.num_requests": answer.requests_each})
    assert answer.base.summaries[0][FIGURE] == run(settled).summary[FIGURE]


@pytest.mark.parametrize(
    ("arrivals", "runs"), [("{process: poisson, rate: 20}", 2), ("{process: constant, rate: 20}", 1), ("null", 1)]
)
def test_a_trace_is_drawn_again_where_its_arrivals_are(tmp_path: Path, arrivals: str, runs: int) -> None:
    """Lengths are those of the trace in every run; its times, or those of a clock, are the same in all of them."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time,prompt_tokens,output_tokens\n" + "".join(f"{n / 20},200,20\n" for n in range(40)))
    absent = [f"workload.{key}=null" for key in ("prompt_tokens", "output_tokens", "num_requests")]
    base = make_scenario([*absent, f"workload.trace={{path: {trace}}}", f"workload.arrivals={arrivals}"])

    answer = compare(base, {"longer": {"deployment.replicas": 2}}, replications=None if runs == 1 else runs)

    means = {summary["mean_ttft_ms"] for summary in answer.base.summaries}
    assert (len(answer.base.summaries), len(means)) == (runs, runs)


def test_fp8_is_faster_than_bf16_with_an_interval() -> None:
    """Half the bytes of weights a step: less time a token, shown after five short runs."""
    base = make_scenario(["workload.num_requests=60", "model=llama-3.1-8b"])

    answer = compare(base, {"fp8": ["deployment.quantization=fp8"]}, replications=5)

    tpot = answer.variants[0].differences["mean_tpot_ms"]
    assert tpot.is_shown
    assert tpot.high < 0
    assert -0.6 < tpot.relative < -0.15
    low, high = answer.summary["variants"][0]["differences"]["mean_tpot_ms"]["relative_real"]
    assert math.sqrt((1 + low) * (1 + high)) == pytest.approx(1 + tpot.relative)
    assert math.log((1 + high) / (1 + low)) == pytest.approx(2 * load_error_model().pairs["tpot"].p90)
    assert answer.summary["variants"][0]["differences"]["completed"]["relative_real"] is None


@pytest.mark.slow
def test_independent_streams_share_no_request() -> None:
    """Then a variant that changes nothing differs by chance."""
    answer = compare(small_base(), {"same": {}}, replications=3, is_independent=True)

    ours, theirs = ({each[FIGURE] for each in part.summaries} for part in (answer.base, answer.variants[0]))
    assert not ours & theirs
    assert answer.variants[0].differences[FIGURE].mean != 0


def figures(seeds: range, changes: Mapping[str, Any], num_replications: int, offset: int) -> np.ndarray:
    """Return the figure of replications ``offset`` on of every seed, ``[seeds, replications]``."""
    rows = []
    for seed in seeds:
        replicator = Replicator(from_mapping(small_base(seed).as_mapping(), changes))
        rows.append([replicator.summary(offset + each)[FIGURE] for each in range(num_replications)])
    return np.array(rows)


@pytest.mark.usefixtures("run_alone")
@pytest.mark.parametrize("num_seeds", [pytest.param(40, marks=pytest.mark.slow), 12])
def test_independent_intervals_cover_nothing_and_show_three_percent(num_seeds: int) -> None:
    """Of fixed seeds at least 88 % cover zero where there is nothing, and at least 80 % show 3 %."""
    seeds, count = range(1, num_seeds + 1), 5
    base = figures(seeds, {}, count, 0)
    same, longer = figures(seeds, {}, count, count), figures(seeds, LONGER, count, count)

    covered = sum(not independent_difference(a, b).is_shown for a, b in zip(base.tolist(), same.tolist(), strict=True))
    seen = sum(independent_difference(a, b).low > 0 for a, b in zip(base.tolist(), longer.tolist(), strict=True))

    assert covered >= 0.88 * num_seeds
    assert seen >= 0.8 * num_seeds


def test_a_figure_that_is_undefined_has_no_difference() -> None:
    """Attainment without an objective; of a figure that few replications define, those few count."""
    answer = compare(small_base(), {"longer": LONGER}, replications=2)

    assert math.isnan(answer.variants[0].differences["slo_attainment"].mean)
    assert paired_difference([1.0, None, 3.0], [2.0, 5.0, 5.0]).mean == 1.5
    assert math.isnan(paired_difference([None], [1.0]).mean)
    assert math.isnan(independent_difference([None, None], [1.0, 2.0]).mean)


def test_a_large_fall_has_an_interval_between_nothing_and_all() -> None:
    """Congested replications of the base: 88 % less may not read ±111 %, and a rise is the inverse of the fall."""
    before = np.array([100.0, 120.0, 2500.0, 90.0, 3000.0, 110.0, 95.0, 1800.0])
    after = 0.12 * before ** np.linspace(0.98, 1.02, 8)

    fall, rise = paired_difference(before.tolist(), after.tolist()), paired_difference(after.tolist(), before.tolist())
    independent = independent_difference(before.tolist(), after.tolist())

    assert fall.relative_interval is not None
    assert -1 < fall.relative_interval[0] < fall.relative < fall.relative_interval[1] < 0
    assert fall.is_shown
    assert 1 / rise.ratio_high == pytest.approx(fall.ratio_low)
    assert fall.low < -fall.base < 0 < fall.high  # in absolute figures nothing would be shown
    assert -1 < independent.ratio_low - 1 < fall.relative_interval[0]


def test_intervals_of_a_ratio_cover_it() -> None:
    """Of 400 comparisons of ten pairs of skewed figures at least 90 %, and not all."""
    draw = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        common = draw.lognormal(0, 0.6, 10)
        before, after = common * draw.lognormal(0, 0.1, 10), 0.5 * common * draw.lognormal(0, 0.1, 10)
        found = paired_difference(before.tolist(), after.tolist())
        covered += found.ratio_low < 0.5 < found.ratio_high

    assert 0.9 * 400 <= covered < 400


def test_four_pairs_have_no_interval() -> None:
    """Five have one, paired or not."""
    before, after = [1.0, 1.1, 0.9, 1.05, 1.0], [2.0, 2.1, 1.9, 2.05, 2.3]

    for difference in (paired_difference, independent_difference):
        few, enough = difference(before[:4], after[:4]), difference(before, after)

        assert math.isnan(few.low)
        assert few.relative_interval is None
        assert few.relative > 0.9
        assert enough.is_shown


def test_settled_runs_show_no_difference_that_is_only_a_tail() -> None:
    """A slower deployment that keeps up answers as many a second; in runs of 60 requests its longer tail said less."""
    base = make_scenario(["workload.num_requests=60", "model=llama-3.1-8b"])
    slower = ["deployment.hardware=l40s-48gb"]

    answer = compare(base, {"slower": slower}, replications=6)

    throughput = answer.variants[0].differences["request_throughput"]
    assert answer.variants[0].differences["mean_tpot_ms"].is_shown
    assert abs(throughput.relative) < 0.02
    assert not throughput.is_shown


def test_other_lengths_are_left_as_they_are() -> None:
    """A variant that asks for another number of requests, or arrivals all at once, is run as it says."""
    longer = compare(small_base(), {"more": ["workload.num_requests=300"]}, replications=2)
    batch = make_scenario(["workload.arrivals={process: all_at_once}", "workload.num_requests=20"])

    assert longer.requests_each is None
    assert longer.variants[0].summaries[0]["completed"] == 300
    assert compare(batch, {"same": {}}, replications=2).requests_each is None


def test_welch_is_as_in_the_textbook() -> None:
    """Two samples whose interval scipy gives too."""
    from scipy.stats import ttest_ind

    one, two = [1.0, 2.0, 4.0, 4.5, 2.5], [3.0, 3.5, 8.0, 3.2, 4.1, 6.0]

    ours = independent_difference(one, two)

    theirs = ttest_ind(two, one, equal_var=False).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_every_figure_is_one_of_the_result() -> None:
    """A renamed key of `result.json` would be noticed here."""
    summary = run(make_scenario()).summary
    for key in FIGURES.values():
        value: Any = summary
        for part in key.split("."):
            value = value[part]


@pytest.mark.parametrize(
    ("text", "name", "changes"),
    [
        ("fp8: deployment.quantization=fp8", "fp8", ["deployment.quantization=fp8"]),
        ("TP 8 : a=1,b=2", "TP 8", ["a=1", "b=2"]),
        ('x: slo={ttft: "1, s", tpot: 2 s}, b=[1, 2]', "x", ['slo={ttft: "1, s", tpot: 2 s}', "b=[1, 2]"]),
    ],
)
def test_a_variant_is_a_name_and_its_changes(text: str, name: str, changes: list[str]) -> None:
    """Commas inside brackets and quotes belong to the value."""
    assert parse_variant(text) == (name, changes)


@pytest.mark.parametrize("text", ["", "fp8", "fp8:", "a.b=c", ": a=b", "fp8: a", "base: a=b", "a=b: c"])
def test_what_is_no_variant_is_refused(text: str) -> None:
    """With an example."""
    with pytest.raises(UsageError, match="--with"):
        parse_variant(text)


def test_a_wrong_key_names_its_variant() -> None:
    """Of several variants, the one to mend."""
    with pytest.raises(ScenarioError, match=r"--with 'odd': deployment\.replica.*did you mean"):
        compare(small_base(), {"odd": ["deployment.replica=2"]})


def test_a_comparison_of_nothing_is_refused() -> None:
    """There must be something to compare with."""
    with pytest.raises(UsageError, match="needs a variant"):
        compare(small_base(), {})
