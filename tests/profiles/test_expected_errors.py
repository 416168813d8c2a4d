"""The model of errors: what it says of a server, by distance and load, and the file that ships."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from simserve.errors import InvariantError, ProfileError
from simserve.profiles.expected_errors import (
    ALONE,
    FLOORS,
    SPECULATION,
    ErrorModel,
    Family,
    MetricExpectation,
    Server,
    band_of,
    expect,
    generation_of,
    load_error_model,
)
from tests.builders import coverage_bounds

SCALE = {"constant": math.log(0.1), "burst": 0.7, "host": 0.3, "served": 0.2, "clients": 0.5, "far_family": 0.4}
FAR = {"far_engine": 0.3, "far_mechanism": 0.6}


def errors(**changes: Any) -> dict[str, Any]:
    """Return the model of one metric."""
    return {
        "center": 0.0,
        "examined_center": 0.0,
        "experts_center": 0.0,
        "examined_experts_center": 0.0,
        "log_scale": SCALE | FAR,
        "p50": 0.5,
        "examined_p50": 0.4,
        "p90": 2.0,
        "examined_p90": 1.8,
        "constant_center": 0.0,
        "constant_90": 0.5,
        "sources": 9,
        "figures": 90,
        **changes,
    }


def family(hardware: str, *sources: str) -> dict[str, Any]:
    """Return what was measured of dense models under vLLM on a GPU."""
    return {
        "engine": "vllm from 0.8",
        "hardware": hardware,
        "has_experts": False,
        "servers": {"tpot": 14, "ttft": 3},
        "sources": list(sources),
    }


def make_model(**changes: Any) -> ErrorModel:
    """Return a model with two families, one of them measured by one source alone."""
    metrics = dict.fromkeys(FLOORS, errors(**changes))
    return ErrorModel.model_validate(
        {
            "made_by": "validate",
            "simserve": "1",
            "date": "2026-11-30",
            "left_out": "nothing",
            "metrics": metrics,
            "without": {"lone": dict.fromkeys(FLOORS, errors(**{**changes, "p90": 3.0, "examined_p90": 3.0}))},
            "families": [family("h100-sxm-80gb", "a", "b"), family("l4-24gb", "lone")],
            "mechanisms": {"models with Mamba-2 layers": ["lone"]},
        }
    )


def server(**changes: Any) -> Server:
    """Return a server of the first family under a light load."""
    fields: dict[str, Any] = {"generation": "vllm from 0.8", "hardware": "h100-sxm-80gb", "has_experts": False}
    return Server(**{**fields, **changes})


@pytest.mark.parametrize(
    ("requests", "band"), [(0.3, "1-4"), (4, "1-4"), (4.5, "5-16"), (256, "65-256"), (257, ">256")]
)
def test_bands_hold_their_upper_end(requests: float, band: str) -> None:
    """As the tables of the validation."""
    assert band_of(requests) == band


@pytest.mark.parametrize(
    ("engine", "version", "generation"),
    [
        ("vllm", "0.12", "vllm from 0.8"),
        ("vllm", "0.8", "vllm from 0.8"),
        ("vllm", "0.7.3", "vllm before 0.8"),
        ("tgi", "2.0", "tgi"),
    ],
)
def test_an_engine_has_generations(engine: str, version: str, generation: str) -> None:
    """V0's errors say nothing of V1."""
    assert generation_of(engine, version) == generation


@pytest.mark.parametrize("num_loads", [1, 3])
def test_a_calibration_that_misses_its_own_loads_has_intervals_as_wide(num_loads: int) -> None:
    """Both intervals of that metric widen alike, and the basis says so; what the loads meet stays as it was."""
    usual = expect(make_model(), server(calibrated_runs=num_loads))
    own = {"ttft": usual.metrics["ttft"].half_90 + 0.5, "tpot": 0.001}

    missed = expect(make_model(), server(calibrated_runs=num_loads, own_errors=own))

    before, after = usual.metrics["ttft"], missed.metrics["ttft"]
    assert after.half_90 == pytest.approx(own["ttft"] + abs(before.center))
    assert after.half_50 / before.half_50 == pytest.approx(after.half_90 / before.half_90)
    assert missed.basis == f"{usual.basis}; TTFT as far off as the calibration is at its own loads"
    assert {**missed.metrics, "ttft": before} == usual.metrics
    assert expect(make_model(), server(calibrated_runs=num_loads, own_errors={"tpot": 0.001})) == usual


def test_a_known_family_says_how_many_servers_are_behind_it() -> None:
    """The basis counts them, and each metric has its own number."""
    found = expect(make_model(), server())

    assert found.group == "known family"
    assert found.basis == "14 servers of dense models on h100-sxm-80gb under vllm from 0.8"
    assert found.shares["ttft"]["servers"] == 3
    assert found.shares["throughput"]["servers"] == 0


@pytest.mark.parametrize(
    ("changes", "group", "basis"),
    [
        ({"hardware": "b200-sxm-180gb"}, "foreign", "foreign: no measurement of dense models on b200-sxm-180gb"),
        ({"has_experts": True}, "known engine", "foreign: no measurement of mixtures of experts on h100"),
        ({"generation": "tgi"}, "foreign", "foreign: no measurement under tgi"),
        ({"mechanism": SPECULATION}, "foreign", "foreign: no measurement of servers that decode speculatively"),
        ({"num_gpus": 72}, "foreign", "foreign: no measurement of replicas of more than 8 GPUs"),
    ],
    ids=str,
)
def test_what_was_never_measured_has_a_number_and_says_why(changes: dict[str, Any], group: str, basis: str) -> None:
    """Always a number, and its basis in words."""
    found = expect(make_model(), server(**changes))

    assert found.group == group
    assert found.basis.startswith(basis)
    assert found.shares["tpot"]["p90"] > expect(make_model(), server()).shares["tpot"]["p90"]


def test_servers_whose_latencies_nobody_published_say_so() -> None:
    """A hundred figures of throughput alone are not a hundred of TPOT."""
    lone = Family.model_validate({**family("h100-sxm-80gb", "a"), "servers": {"throughput": 93}})

    found = expect(make_model().model_copy(update={"families": (lone,)}), server())

    assert found.basis == f"93 servers of dense models on h100-sxm-80gb under vllm from 0.8{ALONE}"


def test_layers_that_one_source_measured_are_known_to_all_others() -> None:
    """Mamba-2 layers of that source's own servers are foreign, those of anybody else's are of their family."""
    model, asked = make_model(), server(mechanism="models with Mamba-2 layers")

    own, other = expect(model, asked, "lone"), expect(model, asked)

    assert (own.group, own.basis) == ("foreign", "foreign: no measurement of models with Mamba-2 layers")
    assert other == expect(model, server())
    never = expect(model, server(mechanism=SPECULATION)).metrics["tpot"].half_90
    assert never == pytest.approx(2 * own.metrics["tpot"].half_90 * 2.0 / 3.0)


def test_a_gpu_that_no_other_source_measured_is_foreign() -> None:
    """Under a known engine; with the GPU known from another engine, the engine is known and the family is not."""
    families = [family("h100-sxm-80gb", "a"), {**family("l4-24gb", "b"), "engine": "sglang"}]
    model = make_model().model_copy(update={"families": tuple(Family.model_validate(each) for each in families)})

    groups = [expect(model, server(hardware=each)).group for each in ("h100-sxm-80gb", "l4-24gb", "x")]

    assert groups == ["known family", "known engine", "foreign"]


def test_further_away_is_never_narrower() -> None:
    """Known family, known engine, foreign engine, and a mechanism nobody measured."""
    model = make_model()
    ladder = [server(), server(hardware="x"), server(generation="y"), server(generation="y", mechanism="odd")]

    widths = [expect(model, each).metrics["tpot"].half_90 for each in ladder]

    assert widths == sorted(widths)
    assert len(set(widths)) == len(widths)


@pytest.mark.parametrize(
    "changes",
    [{"in_flight": 400.0}, {"host": 0.6}, {"at_once": 1.0, "in_flight": 300.0}, {"num_gpus": 16}],
    ids=str,
)
def test_a_heavier_load_is_less_certain(changes: dict[str, Any]) -> None:
    """More clients, more host time, a burst, and more GPUs than were ever measured widen the interval."""
    light, heavy = (expect(make_model(), each).metrics["ttft"].half_90 for each in (server(), server(**changes)))

    assert heavy > light


def test_a_batch_in_process_is_no_burst() -> None:
    """What waits in the engine's own process at the start is what it is fastest at."""
    assert not server(at_once=1.0, in_flight=500.0, is_served=False).is_burst
    assert server(at_once=1.0, in_flight=500.0).is_burst


def test_no_interval_is_narrower_than_the_floor() -> None:
    """TPOT 2 %, TTFT 5 %, however well sources agree."""
    found = expect(make_model(p50=0.0001, p90=0.0002), server()).metrics

    assert {metric: each.half_90 for metric, each in found.items()} == dict(FLOORS)
    assert all(each.half_50 < each.half_90 for each in found.values())


def test_a_source_does_not_count_for_its_own_servers() -> None:
    """Neither its errors nor that it measured the family."""
    own = expect(make_model(), server(hardware="l4-24gb"), "lone")
    other = expect(make_model(), server(hardware="l4-24gb"))

    assert (own.group, other.group) == ("foreign", "known family")
    assert own.metrics["tpot"].half_90 == pytest.approx(other.metrics["tpot"].half_90 * 1.5 * math.exp(0.4))


def test_a_bias_moves_the_interval() -> None:
    """Where the simulator is too low on most servers, real ones are higher."""
    found = expect(make_model(center=-0.1), server()).metrics["tpot"]

    assert found.low * found.high == pytest.approx(math.exp(0.2))


def test_a_server_that_lay_open_has_a_bias_of_its_own() -> None:
    """The figures of a measured source are held against the errors of such sources, those of others against theirs."""
    model = make_model(center=-0.1, examined_center=0.02).model_copy(update={"examined": ("known",)})

    looked_at, other = (expect(model, server(), source).metrics["tpot"] for source in ("known", "report"))

    assert (looked_at.center, other.center) == (0.02, -0.1)
    assert looked_at.half_50 == pytest.approx(0.8 * other.half_50)
    assert looked_at.half_90 == pytest.approx(0.9 * other.half_90)


def test_mixtures_of_experts_have_a_bias_of_their_own() -> None:
    """They are further from what is simulated than dense models, and in their own direction."""
    model = make_model(center=-0.1, experts_center=-0.2, examined_experts_center=-0.05)
    model = model.model_copy(update={"examined": ("known",)})

    own, known = (expect(model, server(has_experts=True), each).metrics["tpot"].center for each in ("", "known"))

    assert (own, known) == (-0.2, -0.05)
    assert expect(model, server()).metrics["tpot"].center == -0.1


def test_an_unknown_load_is_a_light_one() -> None:
    """A run that answered nothing has no requests in flight."""
    assert expect(make_model(), server(in_flight=math.nan)).metrics == expect(make_model(), server()).metrics


def test_a_missing_file_is_a_broken_installation(tmp_path: Path) -> None:
    """No result goes out without its error."""
    with pytest.raises(InvariantError, match="missing"):
        load_error_model(tmp_path / "missing.json")


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    file = tmp_path / "errors.json"
    file.write_text(json.dumps({"date": "2026-11-30"}), encoding="utf-8")

    with pytest.raises(ProfileError, match=r"errors\.json"):
        load_error_model(file)


def test_the_bundled_model_covers_the_measured_servers() -> None:
    """Dense models on H100 and H200 at least; every scale is at least its constant, and 90 % is wider than 50 %."""
    bundled = load_error_model()

    families = {(each.engine, each.hardware, each.has_experts) for each in bundled.families}
    assert ("vllm from 0.8", "h200-sxm-141gb", False) in families
    assert ("tensorrt-llm before 1.0", "h100-sxm-80gb", False) in families
    assert set(bundled.metrics) == set(FLOORS)
    for each in (bundled.metrics, *bundled.without.values()):
        assert all(one.p50 < one.p90 and one.examined_p50 < one.examined_p90 for one in each.values())
        assert all(value >= 0 for one in each.values() for name, value in one.log_scale.items() if name != "constant")


def test_the_bundled_intervals_hold() -> None:
    """With whole sources left out: 86 to 94 % at 90 %, 44 to 56 % at 50 %, and groups as near as they can tell."""
    rows = load_error_model().coverage

    for row in rows:
        if row.group == "all":
            assert 0.86 <= row.coverage_90 <= 0.94
            assert 0.44 <= row.coverage_50 <= 0.56
        lowest, highest = coverage_bounds(row.sources)
        assert row.sources < 5 or lowest <= row.coverage_90 <= highest
    assert {row.metric for row in rows} == set(FLOORS)


def test_the_distribution_of_errors_has_both_quantiles() -> None:
    """Half of all servers lie inside the 50 % interval, nine in ten inside the other, evenly about the center."""
    errors = MetricExpectation(center=0.1, half_50=0.05, half_90=0.3, servers=3)

    for share, log_factor in ((0.05, -0.4), (0.25, -0.15), (0.5, -0.1), (0.75, -0.05), (0.95, 0.2)):
        assert errors.factor(share) == pytest.approx(math.exp(log_factor))
        assert errors.share_below(math.exp(log_factor)) == pytest.approx(share)
    assert (errors.share_below(0.0), errors.share_below(math.inf)) == (0.0, 1.0)
    assert (errors.factor(0.0), errors.factor(1.0)) == (0.0, math.inf)


def test_laplace_errors_are_of_that_distribution() -> None:
    """A half-width at 90 % over one at 50 % of ln 10 / ln 2: sizes fall as an exponential."""
    errors = MetricExpectation(center=0.0, half_50=0.1 * math.log(2), half_90=0.1 * math.log(10), servers=3)

    assert 1 - errors.share_below(math.exp(0.2)) == pytest.approx(math.exp(-2) / 2)
