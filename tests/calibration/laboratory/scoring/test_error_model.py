"""The model of errors: learnt from drawn sources whose spread is known, with whole sources left out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.laboratory.scoring import error_model
from calibration.laboratory.scoring.error_model import (
    as_in_first_replay,
    attainable,
    counted_errors,
    first_replay_losses,
    fit_scale,
    learn,
    weighted_quantile,
    write_error_model,
)
from simserve.errors import InputError
from simserve.planner.validation.prediction import Prediction
from simserve.planner.validation.scoring import coverage_rows, held, report_of, source_of
from simserve.profiles.expected_errors import FLOORS, GROUPS, Coverage, ErrorModel, Server, expect, load_error_model
from tests.builders import coverage_bounds
from tests.planner.builders import make_point

SHARED = Path(__file__).parents[5] / "shared" / "data"


def make_server(**changes: object) -> Server:
    """Return a server of dense models under a light load."""
    fields: dict[str, object] = {"generation": "vllm from 0.8", "hardware": "h100-sxm-80gb", "has_experts": False}
    return Server(**{**fields, **changes})  # type: ignore[arg-type]


def drawn(
    num_sources: int, *, between: float = 0.15, within: float = 0.05, burst: float = 1.0, seed: int = 1, each: int = 12
) -> list[Prediction]:
    """Return figures of sources that are each off by an amount of their own; bursts are off by a multiple of it."""
    generator = np.random.default_rng(seed)
    found = []
    for source in range(num_sources):
        own = generator.normal(0, between)
        for place in range(each):
            is_burst = place % 3 == 0
            size = burst if is_burst else 1.0
            errors = size * (own + generator.normal(0, within, 3))
            measured = {"tpot": 0.02, "ttft": 0.2, "throughput": 900.0}
            predicted = {
                name: value * math.exp(error) for (name, value), error in zip(measured.items(), errors, strict=True)
            }
            server = make_server(at_once=1.0, in_flight=200.0) if is_burst else make_server()
            point = make_point(source=f"source-{source}", measured=measured)
            found.append(Prediction(point=point, predicted=predicted, server=server))
    return found


def everywhere(predictions: Sequence[Prediction]) -> dict[str, tuple[float, float]]:
    """Return coverage at 90 and 50 % by metric, sources left out."""
    rows = learn(predictions, "2026-11-30").coverage
    return {row.metric: (row.coverage_90, row.coverage_50) for row in rows if row.group == "all"}


def test_intervals_hold_sources_that_were_left_out() -> None:
    """40 sources with errors of their own: about 90 and 50 % of each counted once."""
    found = everywhere(drawn(40, each=6))

    for at_90, at_50 in found.values():
        assert at_90 == pytest.approx(0.9, abs=0.07)
        assert at_50 == pytest.approx(0.5, abs=0.12)


def test_many_figures_of_one_source_do_not_count_more() -> None:
    """A source with 50 times the figures, all exact, leaves the median error where the others have it."""
    few = drawn(9)
    exact = [
        Prediction(
            point=make_point(source="large", measured=one.point.measured),
            predicted=dict(one.point.measured),
            server=one.server,
        )
        for one in few * 6
    ]

    alone, together = (learn(each, "2026-11-30").metrics["tpot"] for each in (few, [*few, *exact]))

    assert together.sources == alone.sources + 1
    assert together.constant_90 > 0.8 * alone.constant_90


def test_bursts_that_are_further_off_get_wider_intervals() -> None:
    """The scale learns what load makes of an error, and the score beats one interval for all."""
    model = learn(drawn(24, burst=4.0), "2026-11-30")

    light, burst = (
        expect(model, each).metrics["tpot"].half_90
        for each in (make_server(), make_server(at_once=1.0, in_flight=200.0))
    )
    (row,) = (row for row in model.coverage if (row.metric, row.group) == ("tpot", "all"))

    assert burst > 2 * light
    assert row.interval_score < row.constant_interval_score
    assert row.log_width < row.constant_log_width


def test_layers_that_nobody_else_measured_are_wider_where_they_were_further_off() -> None:
    """Sources with a mechanism of their own that are four times as far off: the next such server is less certain."""
    odd = [
        replace(one, point=replace(one.point, source=f"odd-{place}"), server=make_server(mechanism=f"odd {place}"))
        for place in range(8)
        for one in drawn(1, between=0.6, within=0.2, seed=place + 50)
    ]

    model = learn([*drawn(16), *odd], "2026-11-30")

    new, known = (expect(model, make_server(mechanism=each)) for each in ("never seen", "odd 3"))
    own = expect(model, make_server(mechanism="odd 3"), "odd-3")
    assert model.mechanisms["odd 3"] == ("odd-3",)
    assert (new.group, own.group, known.group) == ("foreign", "foreign", "known family")
    assert model.metrics["tpot"].log_scale["far_mechanism"] > 0.2
    assert new.metrics["tpot"].half_90 > 2 * known.metrics["tpot"].half_90
    assert {row.group for row in model.coverage if row.sources == 8} == {"foreign"}


def test_tails_of_a_kind_are_half_way_to_those_of_all() -> None:
    """Reports of which some figures are far off: their 90 % interval is wider than half of their figures alone say."""
    generator = np.random.default_rng(7)
    heavy = [
        replace(
            one,
            point=replace(one.point, source="unseen", label=f"{one.point.source}: a row"),
            predicted={metric: value * math.exp(sign * 1.5) for metric, value in one.predicted.items()},
        )
        for one in drawn(12, seed=2, each=6)
        for sign in [generator.choice([-1.0, 0.0, 0.0, 0.0, 1.0])]
    ]

    errors = learn([*drawn(12, each=6), *heavy], "2026-11-30").metrics["tpot"]

    assert errors.p90 / errors.examined_p90 > 1.2 * errors.p50 / errors.examined_p50


@pytest.mark.slow
def test_how_narrow_intervals_can_be_hangs_on_what_servers_tell() -> None:
    """Where only loads tell sources apart, who knows the model gains what bursts are worth, and who learns it less."""
    burst, alike = (drawn(24, burst=each, each=6) for each in (5.0, 1.0))

    told, untold = (attainable(each, learn(each, "2026-11-30"), draws=8)[0] for each in (burst, alike))

    assert told.known_score[0] < 0.85
    assert told.known_score[0] <= told.learnt_score[0]
    assert untold.known_score[0] == pytest.approx(1.0, abs=0.1)
    assert told.known_width[1] <= told.known_width[0] <= told.known_width[2]


def test_what_lies_between_sources_counts_not_what_lies_within() -> None:
    """Sources that agree with themselves and not with each other are as uncertain as their spread."""
    model = learn(drawn(40, between=0.3, within=0.001, each=6), "2026-11-30")

    assert expect(model, make_server()).metrics["tpot"].half_90 == pytest.approx(0.3 * 1.645, rel=0.3)


def test_figures_that_were_fitted_are_not_learnt_from() -> None:
    """In-sample errors are never shown as expected ones."""
    exact = [
        Prediction(
            point=make_point(source=f"fitted-{source}", measured={"tpot": 0.02}, fitted=frozenset({"tpot"})),
            predicted={"tpot": 0.02},
            server=make_server(),
        )
        for source in range(30)
    ]

    honest = learn([*drawn(12), *exact], "2026-11-30")

    assert honest.metrics["tpot"] == learn(drawn(12), "2026-11-30").metrics["tpot"]
    assert all(row.figures == 12 * 12 for row in honest.coverage if row.group == "all")


def test_figures_with_artefacts_and_copies_do_not_count() -> None:
    """Shown figures are compared only; published ones stand in their own source too."""
    wrong = [
        Prediction(point=make_point(**changes), predicted={"tpot": 1.0}, server=make_server())
        for changes in ({"shown_only": frozenset({"tpot"}), "source": "odd"}, {"source": "published"})
    ]

    assert learn([*drawn(8), *wrong], "x").metrics == learn(drawn(8), "x").metrics


def test_the_interval_of_a_row_knows_nothing_of_its_source() -> None:
    """Worse figures of a source leave its own intervals as they were, and widen the others'."""
    before = drawn(12)
    after = [
        Prediction(point=one.point, predicted={"tpot": 3 * one.predicted["tpot"]}, server=one.server)
        if one.point.source == "source-3"
        else one
        for one in before
    ]

    old, new = ({row.source: row.half_90 for row in held(each, learn(each, "x"), "tpot")} for each in (before, after))

    assert new["source-3"] == pytest.approx(old["source-3"])
    assert new["source-5"] > old["source-5"]


@pytest.mark.slow
def test_a_server_that_nobody_looked_at_is_as_uncertain_as_the_unseen_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources that lay open are a third as far off as reports; a user's server gets the reports' interval.

    Over three draws the intervals of reports hold more than those of a model that does not tell the two apart.
    """
    draws = [
        [
            *drawn(20, between=0.1, within=0.03, each=6),
            *(
                replace(one, point=replace(one.point, source="unseen", label=f"{one.point.source}: a row"))
                for one in drawn(20, between=0.3, within=0.1, seed=seed, each=6)
            ),
        ]
        for seed in (2, 3, 4)
    ]
    models = [learn(predictions, "2026-11-30") for predictions in draws]
    monkeypatch.setattr(error_model, "_is_examined", lambda source: True)
    blind = [learn(predictions, "2026-11-30") for predictions in draws]

    known, unseen, own = (
        expect(models[0], make_server(), source).metrics["tpot"].half_90
        for source in ("source-1", "unseen/source-1", "")
    )

    assert unseen > 2 * known
    assert own == pytest.approx(unseen, rel=0.1)
    for one, other in zip(models, blind, strict=True):
        assert of_reports(one).coverage_50 > of_reports(other).coverage_50 + 0.05
    held = [sum(of_reports(each).coverage_90 for each in learnt) for learnt in (models, blind)]
    assert held[0] > held[1] + 0.01


def test_reports_have_a_bias_of_their_own() -> None:
    """Reports that are all slower than simulated move the interval of a server that nobody looked at, and no other."""
    slower = [
        replace(
            one,
            point=replace(one.point, source="unseen", label=f"{one.point.source}: a row"),
            predicted={metric: value * math.exp(-0.4) for metric, value in one.predicted.items()},
        )
        for one in drawn(12, seed=2, each=6)
    ]

    model = learn([*drawn(12, each=6), *slower], "2026-11-30")

    known, own = (expect(model, make_server(), source).metrics["tpot"].center for source in ("source-1", ""))
    errors = model.metrics["tpot"]
    assert own == pytest.approx(-0.4, abs=0.1)
    assert known == pytest.approx(0.0, abs=0.1)
    assert -0.4 < errors.constant_center < 0
    assert of_reports(model).interval_score < of_reports(model).constant_interval_score


def of_reports(model: ErrorModel) -> Coverage:
    """Return how well the TPOT of unseen reports is held."""
    (row,) = (row for row in model.coverage if (row.metric, row.group) == ("tpot", "unseen reports"))
    return row


def test_reports_count_as_in_their_first_replay() -> None:
    """A report that became nearer after it was read counts as far off as it was; one that did not counts as it is."""
    near, far = (
        Prediction(
            point=make_point(source="unseen", label=f"{report}: a row"),
            predicted={"tpot": 0.0101},
            server=make_server(),
        )
        for report in ("gpustack-gpt-oss-20b-a100", "a-new-report")
    )

    lost = first_replay_losses([near, far])

    assert lost[report_of(near.point), "tpot"] == pytest.approx(0.64 - math.log(1.01))
    assert lost[report_of(far.point), "tpot"] == 0.0
    assert source_of(near.point) == "unseen/gpustack-gpt-oss-20b-a100"


@pytest.mark.parametrize(
    ("recorded", "size"), [(0.3, 0.3), (-0.5, math.log(2)), (3.0, math.log(4)), (0.005, math.log(1.01))]
)
def test_errors_of_the_first_replay_are_logarithms_by_their_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorded: float, size: float
) -> None:
    """Half of what was measured is as far off as twice; an error that was smaller than now takes nothing back."""
    monkeypatch.setattr(error_model, "FIRST_REPLAY", tmp_path / "first.yaml")
    (tmp_path / "first.yaml").write_text(f"reports: {{one: {{tpot: {recorded}}}}}\n", encoding="utf-8")
    told = Prediction(
        point=make_point(source="unseen", label="one: a row"), predicted={"tpot": 0.0101}, server=make_server()
    )

    lost = first_replay_losses([told])

    assert math.log(1.01) + lost["unseen/one", "tpot"] == pytest.approx(size)


def test_what_two_servers_of_a_source_share_cancels_in_their_ratio() -> None:
    """Sources 0.5 apart whose own servers differ by 0.05: the ratio of two is known to some tenths of one server."""
    predictions = [
        replace(one, point=replace(one.point, version=f"0.{place}", load_kind="concurrency", load=8.0))
        for place, one in enumerate(drawn(16, between=0.5, within=0.05, each=6))
    ]

    model = learn(predictions, "x")

    pairs = model.pairs["tpot"]
    assert (pairs.sources, pairs.pairs) == (16, 16 * 6 * 5 // 2)
    assert pairs.p90 == pytest.approx(0.05 * math.sqrt(2) * 1.645, rel=0.2)
    assert pairs.coverage_90 == pytest.approx(0.9, abs=0.06)
    assert pairs.p90 < 0.3 * expect(model, make_server()).metrics["tpot"].half_90


def test_mixtures_of_experts_have_a_middle_of_their_own_as_far_as_their_sources_tell() -> None:
    """Slower by 0.4 in the logarithm than dense models: of 20 sources four fifths of that are believed, of 2 less."""

    def learnt(number: int) -> float:
        experts = [
            replace(
                one,
                point=replace(one.point, source=f"experts-{one.point.source}"),
                server=make_server(has_experts=True),
                predicted={metric: value * math.exp(-0.4) for metric, value in one.predicted.items()},
            )
            for one in drawn(number, between=0.02, within=0.02, seed=9, each=4)
        ]
        errors = learn([*drawn(20, between=0.02, within=0.02, each=4), *experts], "x").metrics["tpot"]
        return errors.examined_experts_center - errors.examined_center

    assert learnt(20) == pytest.approx(-0.4 * 20 / 25, abs=0.05)
    assert -0.3 < learnt(2) < -0.05


def test_what_a_report_has_lost_is_added_to_each_of_its_errors() -> None:
    """The median is as large as it was; the largest error is not larger by the same factor."""
    errors = np.array([0.02, -0.04, 0.06, -1.0, 0.3])
    sources = np.array(["unseen/a"] * 4 + ["b"])

    counted = as_in_first_replay(errors, sources, {"unseen/a": 0.1, "unseen/c": 2.0})

    assert counted == pytest.approx([0.12, -0.14, 0.16, -1.1, 0.3])
    assert np.median(np.abs(counted[:4])) == pytest.approx(0.1 + np.median(np.abs(errors[:4])))


def test_too_few_sources_are_refused() -> None:
    """A 90th percentile of four sources is none."""
    with pytest.raises(InputError, match="sources"):
        learn(drawn(4), "x")


def test_no_coefficient_is_negative() -> None:
    """Where far servers happen to be nearer, distance costs nothing; it never narrows."""
    generator = np.random.default_rng(3)
    is_far = np.repeat([0.0, 1.0], 200)
    sizes = np.abs(generator.laplace(0, np.where(is_far, 0.05, 0.2)))
    matrix = np.stack([np.ones(400), is_far], axis=1)

    near, far = (
        fit_scale(each, sizes, np.full(400, 1 / 400)) for each in (matrix, np.stack([np.ones(400), 1 - is_far], 1))
    )

    assert near[1] == 0.0
    assert far[1] > 0.5
    assert math.exp(near[0]) == pytest.approx(sizes.mean(), rel=1e-6)


@pytest.mark.parametrize(("share", "value"), [(0.1, 1.0), (0.5, 1.0), (0.6, 2.0), (1.0, 9.0)])
def test_a_weighted_quantile_is_a_value_that_was_seen(share: float, value: float) -> None:
    """Half the weight lies on 1, a quarter each on 2 and 9."""
    assert weighted_quantile(np.array([9.0, 1.0, 2.0]), np.array([0.25, 0.5, 0.25]), share) == value


def test_the_model_is_written_as_json(tmp_path: Path) -> None:
    """With date, command and the sources behind each family."""
    file = tmp_path / "errors.json"

    write_error_model(learn(drawn(6), "2026-11-30"), file)

    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["date"] == "2026-11-30"
    assert set(written["metrics"]) == set(FLOORS)
    assert written["families"][0]["servers"] == dict.fromkeys(FLOORS, 6)
    assert len(written["without"]) == 6


def test_figures_in_no_metric_have_no_coverage() -> None:
    """A validation of points that could not be run prints no table."""
    model = learn(drawn(6), "x")

    assert coverage_rows([Prediction(point=make_point(), reason="unknown")], model) == []


def is_told_to_miss(row: Coverage) -> bool:
    """Return whether a group's sources tell that its 90 % intervals hold too few or too many figures.

    Beyond a bound of `coverage_bounds` in more than 95 % of draws of its sources.
    """
    lowest, highest = coverage_bounds(row.sources)
    return row.sources > 1 and (row.range_90[0] > highest or row.range_90[1] < lowest)


@pytest.mark.parametrize(
    ("metric", "group"),
    [(metric, group) for metric in FLOORS for group in ("all", *GROUPS, "unseen reports")],
)
def test_the_shipped_intervals_hold_neither_too_few_nor_too_many(metric: str, group: str) -> None:
    """By group, as near to 90 % as its sources can tell: what is stated too wide says as little as too narrow."""
    row = next(each for each in load_error_model().coverage if (each.metric, each.group) == (metric, group))

    lowest, highest = coverage_bounds(row.sources)
    assert not is_told_to_miss(row)
    assert lowest <= row.coverage_90 <= highest


def test_intervals_are_held_against_the_errors_that_they_are_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the first replay where they are less now: today's would lie inside, which tells nothing of servers."""
    predictions = drawn(40, each=6)
    today = next(row for row in learn(predictions, "x").coverage if row.group == "all")
    monkeypatch.setattr(error_model, "as_in_first_replay", lambda errors, reports, lost: 3.0 * errors)

    model = learn(predictions, "x")
    then = next(row for row in model.coverage if row.group == "all")
    against_today = next(row for row in coverage_rows(predictions, model) if row.group == "all")

    assert then.log_width > 2.0 * today.log_width
    assert then.coverage_90 == pytest.approx(today.coverage_90, abs=0.05)
    assert against_today.coverage_90 > then.coverage_90


def test_sources_tell_what_share_of_figures_intervals_hold() -> None:
    """Of 40 sources to a few points, of 6 less well; a group whose every figure is inside misses its upper bound."""
    many, few = (
        next(row for row in learn(drawn(each, each=6), "x").coverage if row.group == "all") for each in (40, 6)
    )
    wide = learn(drawn(40, each=6), "x")
    wide = wide.model_copy(
        update={
            "without": {
                name: {metric: each.model_copy(update={"examined_p90": 50.0}) for metric, each in metrics.items()}
                for name, metrics in wide.without.items()
            }
        }
    )

    (held_all, *_) = coverage_rows(drawn(40, each=6), wide)

    assert many.range_90[0] < many.coverage_90 < many.range_90[1]
    assert many.range_90[1] - many.range_90[0] < few.range_90[1] - few.range_90[0]
    assert not is_told_to_miss(many)
    assert held_all.coverage_90 == 1.0
    assert is_told_to_miss(held_all)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured data is not here")
def test_the_committed_model_is_what_the_measurements_give() -> None:
    """Replayed now, every source and the unseen reports give the file that ships, and its intervals hold."""
    from simserve.api import validate

    predictions = (*validate(SHARED, jobs=2).predictions, *validate(None, ("unseen",), jobs=2).predictions)
    bundled = load_error_model()

    found = learn(predictions, bundled.date)

    for metric, errors in found.metrics.items():
        shipped = bundled.metrics[metric]
        assert (errors.p50, errors.p90) == pytest.approx((shipped.p50, shipped.p90), rel=0.05)
        assert errors.center == pytest.approx(shipped.center, abs=0.01)
        assert errors.log_scale == pytest.approx(shipped.log_scale, abs=0.05)
    for row in coverage_rows(predictions, bundled, counted_errors(predictions)):
        lowest, highest = coverage_bounds(row.sources)
        assert lowest <= row.coverage_90 <= highest
        assert row.group != "all" or (0.86 <= row.coverage_90 <= 0.94 and 0.44 <= row.coverage_50 <= 0.56)
