"""Answers that are given again without a model: who gets one, when, and what it saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.summary import summarize
from simserve.sim.control import Control, ResponseCacheSpec
from simserve.sim.records import CACHE, COMPLETED, TIMED_OUT
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs
from tests.metrics.builders import make_facts, make_slo
from tests.theory.builders import make_deployment


def cached(specs: RequestSpecs, **spec: Any) -> Simulation:
    """Return a run of one replica behind a response cache; every step takes a second, a hit a quarter."""
    control = Control(response_cache=validate(ResponseCacheSpec, {"latency": "250 ms", **spec}))
    deployment = make_deployment(make_config(max_num_seqs=16, num_blocks=2000), constant_step_times(1.0, 16), 1)
    return simulate(replace(deployment, control=control), specs)


def of_two_classes(specs: RequestSpecs, **options: Any) -> RequestSpecs:
    """Return the requests as two classes in turn."""
    classes = tuple(ClassSpec(name=name, share=0.5, **options) for name in ("a", "b"))
    return replace(specs, classes=classes, request_class=np.arange(len(specs), dtype=np.int16) % 2)


def test_a_hit_is_answered_at_once_and_by_no_replica() -> None:
    """All tokens are there after the latency, in one piece, so that there is no time per token."""
    run = cached(make_specs([0.0, 10.0], 4, [5, 3]), hit_share=1.0)
    records = run.records

    assert records.served_by is not None
    assert records.served_by.tolist() == [CACHE, CACHE]
    assert records.replica_id.tolist() == [-1, -1]
    assert records.first_token_time.tolist() == records.finish_time.tolist() == [0.25, 10.25]
    assert records.output_tokens.tolist() == [5, 3]
    assert np.isnan(records.itl_max).all()
    assert run.totals.num_steps == 0


def test_the_share_of_hits_is_what_was_measured() -> None:
    """Each request alone, from a stream of its own: four standard errors; the same seed hits the same ones."""
    specs = make_specs([0.01 * index for index in range(4000)], 1, 1)
    first, more = cached(specs, hit_share=0.3), cached(specs, hit_share=0.6)
    hits = [run.records.served_by == CACHE for run in (first, more)]

    assert hits[0].mean() == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 4000) ** 0.5)
    assert not (hits[0] & ~hits[1]).any()


def test_a_class_has_its_own_share() -> None:
    """Half of the requests are of a class that always hits, the others never do."""
    run = cached(of_two_classes(make_specs([float(index) for index in range(10)], 1, 1)), hit_share={"b": 1.0})
    figures = summarize(run, make_facts())["simserve"]["response_cache"]

    assert figures["requests"] == 5
    assert figures["hit_share"] == 0.5
    assert figures["by_class"] == {"a": 0.0, "b": 1.0}
    assert figures["output_tokens"] == 5


def test_the_first_to_ask_a_question_waits_for_a_model() -> None:
    """One question: the answer is kept when it is made, at 5 s; whoever asks before that computes it too."""
    run = cached(make_specs([0.0, 1.0, 6.0, 100.0], 1, 5), hit_share=1.0, questions=1)

    assert run.records.served_by is not None
    assert run.records.served_by.tolist() == [0, 0, CACHE, CACHE]
    assert run.front is not None
    assert (run.front.first_questions, run.front.expired) == (2, 0)


def test_an_expired_answer_is_made_anew() -> None:
    """Made at 5 s and good for 10 s; the request at 20 s renews it at 25 s, and the next ones have it until 35 s."""
    run = cached(make_specs([0.0, 14.0, 20.0, 34.0, 36.0], 1, 5), hit_share=1.0, questions=1, expiry="10 s")

    assert run.records.served_by is not None
    assert run.records.served_by.tolist() == [0, CACHE, 0, CACHE, 0]
    assert run.front is not None
    assert (run.front.first_questions, run.front.expired) == (1, 2)


def test_popular_questions_come_again_sooner() -> None:
    """Of 100 questions, unequal ones hit more often than equal ones, and classes keep answers apart."""
    specs = make_specs([10.0 * index for index in range(300)], 1, 1)
    shares = {
        zipf: float(np.mean(cached(specs, hit_share=1.0, questions=100, zipf=zipf).records.served_by == CACHE))
        for zipf in (0.0, 1.0, 2.0)
    }
    apart = np.mean(cached(of_two_classes(specs), hit_share=1.0, questions=100).records.served_by == CACHE)

    assert shares[0.0] < shares[1.0] < shares[2.0]
    assert apart < shares[1.0]
    distinct = 100 * (1 - 0.99**300)
    assert shares[0.0] == pytest.approx(1 - distinct / 300, abs=0.05)


def test_a_closed_loop_goes_on_after_a_hit() -> None:
    """Ten requests of one client, a quarter of a second each, and a second of thought."""
    run = cached(make_closed_loop(1, [4] * 10, 5, 1.0), hit_share=1.0)

    assert run.records.finish_time[-1] == pytest.approx(10 * 0.25 + 9 * 1.0)


def test_a_client_may_hang_up_on_a_slow_cache() -> None:
    """What had not come by then is no answer."""
    run = cached(of_two_classes(make_specs([0.0], 4, 5), timeout="0.1 s"), hit_share=1.0)

    assert run.records.status.tolist() == [TIMED_OUT]
    assert run.records.output_tokens.tolist() == [0]
    assert np.isnan(run.records.first_token_time).all()


def test_hits_count_in_goodput_and_lower_the_price_of_a_request() -> None:
    """Half of the requests cost nothing: more requests a dollar, and the objective sees the short answers."""
    specs = make_specs([2.0 * index for index in range(400)], 4, 5)
    facts = make_facts(gpu_hour_usd=3.0, num_gpus=1, slo=make_slo(3.0, 2.0, 9.0), warmup="none")
    busy, halved = (
        summarize(cached(specs, hit_share=share, questions=questions), facts)
        for share, questions in ((1e-9, None), (0.5, None))
    )

    assert halved["completed"] == busy["completed"] == 400
    assert halved["request_goodput"] == pytest.approx(busy["request_goodput"], rel=0.02)
    assert halved["simserve"]["utilization"]["busy"] < 0.9 * busy["simserve"]["utilization"]["busy"]
    assert "The response cache answered" in halved["simserve"]["bottleneck"]["explanation"]
    assert (halved["simserve"]["kv"]["prefix_hit_rate"] or 0.0) == 0.0


def test_what_would_do_nothing_is_refused() -> None:
    """An expiry without questions that come again; no hits at all."""
    for spec, words in (
        ({"hit_share": 0.3, "expiry": "1 h"}, "give questions"),
        ({"hit_share": 0.3, "zipf": 2.0}, "add questions"),
        ({"hit_share": 0.0}, "leave the block out"),
    ):
        with pytest.raises(Exception, match=words):
            validate(ResponseCacheSpec, spec)


def test_everything_is_completed() -> None:
    """With and without hits nothing is lost."""
    run = cached(make_specs([0.1 * index for index in range(200)], 4, 5), hit_share=0.5, questions=7, expiry="3 s")

    assert (run.records.status == COMPLETED).all()
