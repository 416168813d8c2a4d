"""What finds the replicas full and goes to an API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.api_cost import ApiPrices
from simserve.metrics.gateway import OVERFLOW_KEYS
from simserve.metrics.summary import summarize
from simserve.profiles.api import TokenPrice
from simserve.sim.control import Control, OverflowSpec
from simserve.sim.records import REASONS, TIMED_OUT
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.prefixes import system_prompts
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs
from tests.metrics.builders import make_facts
from tests.theory.builders import make_deployment

SPEC: dict[str, Any] = {"api": "any", "max_queue": 1, "ttft": "2 s", "ttft_cv": 0, "tokens_per_second": 4}


def overflowing(specs: RequestSpecs, **spec: Any) -> Simulation:
    """Return a run of one replica of one seat beside an API; every step takes a second."""
    control = Control(overflow=validate(OverflowSpec, {**SPEC, **spec}))
    deployment = make_deployment(make_config(max_num_seqs=1), constant_step_times(1.0), 1)
    return simulate(replace(deployment, control=control), specs)


def test_who_finds_the_queue_full_is_answered_by_the_api() -> None:
    """One runs, one waits; the third is answered at 0.6 + 2 s, and then a token every quarter second."""
    records = overflowing(make_specs([0.0, 0.5, 0.6, 30.0], 4, [5, 5, 5, 5])).records

    assert records.replica_id.tolist() == [0, 0, -1, 0]
    assert records.first_token_time[2] == pytest.approx(2.6)
    assert records.finish_time[2] == pytest.approx(3.6)
    assert records.itl_max[2] == pytest.approx(0.25)
    assert records.output_tokens.tolist() == [5, 5, 5, 5]
    assert (records.status == 0).all()


def test_a_client_of_a_closed_loop_goes_on_when_the_api_has_answered() -> None:
    """All come at once: one finds the seat, the others the API, which answers the last one first, at 3 s."""
    run = overflowing(make_closed_loop(3, [4] * 4, [9, 9, 5, 1], 1.0))

    assert run.records.replica_id[:3].tolist() == [0, -1, -1]
    assert run.records.arrival_time[3] == pytest.approx(4.0)


def test_a_client_may_hang_up_on_the_api() -> None:
    """It answers at 3.6 s, and the client waits until 2.6 s."""
    own = (ClassSpec(name="all", share=1.0, timeout="2 s"),)
    specs = replace(make_specs([0.0, 0.5, 0.6], 4, [2, 1, 5]), classes=own, request_class=np.zeros(3, dtype=np.int16))
    run = overflowing(specs)

    assert run.records.status[2] == TIMED_OUT
    assert run.records.finish_time[2] == pytest.approx(2.6)


def test_times_of_the_api_vary_and_repeat_themselves() -> None:
    """Lognormal with the mean asked for; the same seed draws the same."""
    specs = make_specs([0.001 * index for index in range(3000)], 1, 1)
    first, again = (overflowing(specs, ttft_cv=0.5) for _ in range(2))
    went = first.records.replica_id < 0
    seconds = (first.records.first_token_time - first.records.arrival_time)[went]

    assert seconds.mean() == pytest.approx(2.0, abs=4 * 1.0 / went.sum() ** 0.5)
    assert first.records.finish_time.tolist() == again.records.finish_time.tolist()


def test_its_tokens_are_paid_for() -> None:
    """4 prompt and 5 answer tokens at 1 and 3 dollars a token, in a window of ten seconds, on top of the GPUs."""
    run = overflowing(make_specs([0.0, 0.5, 0.6], 4, [5, 5, 5]))
    prices = ApiPrices(name="dear", price=TokenPrice(input=1e6, output=3e6))
    inner = summarize(run, make_facts(overflow=prices, num_gpus=1, gpu_hour_usd=3.0, warmup="none"))["simserve"]

    assert inner["overflow"]["requests"] == 1
    assert inner["overflow"]["share"] == pytest.approx(1 / 3)
    assert inner["overflow"]["usd_per_hour"] == pytest.approx((4 * 1 + 5 * 3) * 360)
    assert inner["cost"]["usd_per_hour"] == pytest.approx(3.0 + 19 * 360)


def test_without_an_overflow_there_are_no_figures() -> None:
    """All keys are there, and null."""
    run = overflowing(make_specs([0.0], 4, 5))
    figures = summarize(run, make_facts())["simserve"]["overflow"]

    assert tuple(figures) == OVERFLOW_KEYS
    assert set(figures.values()) == {None}
    assert np.count_nonzero(run.records.replica_id < 0) == 0


def classed(specs: RequestSpecs, *owners: int, **options: Any) -> RequestSpecs:
    """Return the requests as of two classes."""
    classes = tuple(ClassSpec(name=name, share=0.5, **options) for name in ("open", "secret"))
    return replace(specs, classes=classes, request_class=np.array(owners, dtype=np.int16))


def test_classes_may_be_kept_in_or_sent_out() -> None:
    """One that always goes, one that never does, whatever waits."""
    specs = classed(make_specs([0.0, 0.1, 0.2, 0.3], 4, 5), 0, 1, 1, 1)
    kept = overflowing(specs, never=["secret"])
    sent = overflowing(specs, max_queue=None, always=["secret"])

    assert kept.records.replica_id.tolist() == [0, 0, 0, 0]
    assert sent.records.replica_id.tolist() == [0, -1, -1, -1]


def test_what_comes_above_a_rate_goes_to_the_api() -> None:
    """One request a second and a burst of two: of five in the first half second, three are too many."""
    specs = make_specs([0.0, 0.1, 0.2, 0.3, 0.5, 3.0], 4, 1)
    run = overflowing(specs, max_queue=None, above_rate={"rate": 1, "burst": 2})

    assert run.records.replica_id.tolist() == [0, 0, -1, -1, -1, 0]


@pytest.mark.parametrize("limit", [{"requests_per_minute": 2}, {"tokens_per_minute": 18}])
def test_the_api_takes_so_much_a_minute(limit: dict[str, Any]) -> None:
    """Two calls of nine tokens are let in; the others stay, wait for the limit, or are refused, and all is counted."""
    specs = classed(make_specs([0.0, 1.0, 2.0, 3.0], 4, 5), 0, 0, 0, 0)
    out = {"max_queue": None, "always": ["open"], **limit}
    stay, wait, refuse = (overflowing(specs, **out, when_limited=what) for what in ("stay", "wait", "refuse"))

    assert stay.records.replica_id.tolist() == [-1, -1, 0, 0]
    assert wait.records.replica_id.tolist() == [-1] * 4
    assert wait.records.first_token_time.tolist() == pytest.approx([2.0, 3.0, 30.0 + 2.0, 60.0 + 2.0])
    assert [REASONS[reason] for reason in refuse.records.reason] == ["", "", "api_limit", "api_limit"]
    for run in (stay, wait, refuse):
        assert run.front is not None
        assert run.front.limited == 2


def test_a_refused_client_tries_again_when_it_is_told_to() -> None:
    """The limit lets one call in every 30 s: the third, refused at 2 s, is told to wait 28 s, and is let in."""
    specs = classed(make_specs([0.0, 1.0, 2.0], 4, 5), 0, 0, 0, retries={"max": 3, "backoff": "1 s", "jitter": 0})
    run = overflowing(specs, max_queue=None, always=["open"], requests_per_minute=2, when_limited="refuse")

    assert run.records.status.tolist() == [0, 0, 0]
    assert run.records.first_token_time[2] == pytest.approx(30.0 + 2.0)
    assert run.timeline is not None
    assert run.timeline.refusals == {"api_limit": 1}


def test_answers_of_the_api_differ_in_speed() -> None:
    """With a spread, the time a token varies around the mean."""
    specs = make_specs([0.001 * index for index in range(1000)], 1, 9)
    run = overflowing(specs, max_queue=0, tokens_per_second_cv=0.5)
    gaps = run.records.itl_max[run.records.replica_id < 0]

    assert gaps.mean() == pytest.approx(0.25, abs=4 * 0.125 / len(gaps) ** 0.5)
    assert gaps.std() == pytest.approx(0.125, rel=0.3)


def test_an_api_that_gets_nothing_is_refused() -> None:
    """Without a rule, and with a rule that contradicts itself."""
    for changes, words in (
        ({"always": ["a"], "never": ["a"]}, "keep one"),
        ({"when_limited": "wait"}, "without a limit"),
    ):
        with pytest.raises(Exception, match=words):
            validate(OverflowSpec, {**SPEC, **changes})


def test_a_class_that_always_goes_there_knows_no_limit_of_the_replicas() -> None:
    """A prompt of 100 tokens, where a replica takes 64: answered there; it fails where a 429 might bring it back."""
    specs = classed(make_specs([0.0, 0.1], [100, 4], 5), 0, 1)
    free = overflowing(specs, max_queue=None, always=["open"])
    limited = overflowing(specs, max_queue=None, always=["open"], requests_per_minute=60)

    assert free.records.status.tolist() == [0, 0]
    assert free.records.replica_id.tolist() == [-1, 0]
    assert [REASONS[reason] for reason in limited.records.reason] == ["prompt_too_long", ""]


def test_the_api_s_prompt_cache_knows_what_overflows_and_nothing_else() -> None:
    """Of six prompts with one beginning of 10 of 12 tokens the API gets four: three of them find it, at a tenth."""
    specs = make_specs([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], 12, 5)
    specs = replace(specs, prefixes=system_prompts(np.zeros(6, np.int64), 1, np.full(6, 10), specs.prompt_tokens + 5))
    run = overflowing(specs)
    prices = ApiPrices(name="caching", price=TokenPrice(input=1e6, cached_input=1e5, output=0.0))
    facts = make_facts(overflow=prices, num_gpus=1, gpu_hour_usd=3.0, warmup="none")

    cached, plain = (summarize(run, facts, specs=each)["simserve"]["overflow"] for each in (specs, None))

    assert cached["requests"] == plain["requests"] == 4
    assert cached["usd_per_hour"] / plain["usd_per_hour"] == pytest.approx((4 * 12 - 3 * 9) / (4 * 12))
