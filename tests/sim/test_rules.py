"""Which pool a request goes to by its class and length, and what a wrong guess costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.metrics.summary import summarize
from simserve.sim.control import Control
from simserve.sim.overflow_spec import OverflowSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.records import API, COMPLETED, FAILED
from simserve.sim.routing_spec import RoutingSpec
from simserve.sim.simulate import Simulation, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs
from tests.metrics.builders import make_facts
from tests.theory.builders import make_deployment


def ruled(
    specs: RequestSpecs,
    *rules: dict[str, Any],
    allowed: tuple[tuple[int, ...], ...] = (),
    api: OverflowSpec | None = None,
    **small: Any,
) -> Simulation:
    """Return a run of a small pool (replica 0, 1 s a step) and a large one (replica 1, 2 s a step)."""
    pools = []
    for name, seconds, config in (("small", 1.0, small), ("large", 2.0, {})):
        engine, times = make_config(**{"max_num_seqs": 8, "num_blocks": 200, **config}), constant_step_times(seconds)
        priced = make_deployment(engine, times).priced
        pools.append(PoolSetup(name=name, engine=engine, step_times=times, priced=priced, num_replicas=1))
    routing = validate(RoutingSpec, {"rules": list(rules)})
    deployment = make_deployment(pools[0].engine, pools[0].step_times, 1)
    control = Control(routing=routing, allowed=allowed, overflow=api)
    return simulate(replace(deployment, pools=tuple(pools), control=control), specs)


def test_short_prompts_go_to_the_small_pool() -> None:
    """Up to 10 tokens; what no rule is about goes to the next one."""
    run = ruled(
        make_specs([0.0, 0.1, 0.2], [10, 11, 3], 2), {"pool": "small", "max_prompt_tokens": 10}, {"pool": "large"}
    )

    assert run.records.replica_id.tolist() == [0, 1, 0]


def test_what_fits_no_rule_goes_anywhere() -> None:
    """Long prompts to the large pool; of the others, the router takes the replica with less to do."""
    run = ruled(make_specs([0.0, 0.1, 0.2, 0.3], [4, 20, 4, 4], 5), {"pool": "large", "min_prompt_tokens": 20})

    assert run.records.replica_id.tolist() == [0, 1, 0, 1]


def test_a_rule_may_be_about_classes_alone() -> None:
    """Class b goes to the large pool; a class bound to a pool obeys no rule that does not name it."""
    classes = (ClassSpec(name="a", share=0.5), ClassSpec(name="b", share=0.5))
    specs = replace(
        make_specs([0.0, 0.0, 0.1, 0.1], 4, 5), classes=classes, request_class=np.array([0, 1, 0, 1], np.int16)
    )
    named = ruled(specs, {"pool": "large", "classes": ["b"]}, {"pool": "small"})
    bound = ruled(specs, {"pool": "large"}, allowed=((0, 1), (0,)))

    assert named.records.replica_id.tolist() == [0, 1, 0, 1]
    assert bound.records.replica_id.tolist() == [1, 0, 1, 0]


def test_a_wrong_guess_is_answered_twice_and_paid_twice() -> None:
    """The small model answers 5 tokens in 5 s, then the large one in 10 s: its first token comes at 7 s."""
    rule = {"pool": "small", "misclassified": 1.0, "retry_pool": "large"}
    run = ruled(make_specs([0.0], 4, 5), rule)
    records = run.records

    assert records.status.tolist() == [COMPLETED]
    assert records.replica_id.tolist() == [1]
    assert records.first_token_time.tolist() == [7.0]
    assert records.finish_time.tolist() == [15.0]
    assert records.output_tokens.tolist() == [5]
    assert run.front is not None
    assert (run.front.asked_again, run.front.discarded_tokens) == (1, 5)
    assert [pool.totals.num_steps for pool in run.pools] == [5, 5]


def test_the_share_of_wrong_guesses_is_drawn_from_a_stream_of_its_own() -> None:
    """Within four standard errors, and more of them contain the fewer."""
    specs = make_specs([0.5 * index for index in range(1000)], 4, 1)
    asked = []
    for share in (0.1, 0.3):
        run = ruled(specs, {"pool": "small", "misclassified": share, "retry_pool": "large"})
        asked.append(set(np.flatnonzero(run.records.replica_id == 1).tolist()))
        assert len(asked[-1]) / 1000 == pytest.approx(share, abs=4 * (share * (1 - share) / 1000) ** 0.5)

    assert asked[0] < asked[1]


def test_a_client_waits_for_the_second_answer() -> None:
    """Closed loop: 15 s a request; with a patience of 12 s it hangs up between them, and the answer is lost."""
    rule = {"pool": "small", "misclassified": 1.0, "retry_pool": "large"}
    patient = ruled(make_closed_loop(1, [4, 4], 5), rule)
    classes = (ClassSpec(name="a", share=1.0, timeout="12 s"),)
    hasty_specs = replace(make_specs([0.0], 4, 5), classes=classes, request_class=np.zeros(1, np.int16))
    hasty = ruled(hasty_specs, rule)

    assert patient.records.arrival_time.tolist() == [0.0, 15.0]
    assert hasty.records.status.tolist() == [2]
    assert hasty.records.finish_time.tolist() == [12.0]


def test_both_pools_limit_the_length_of_what_may_be_asked_twice() -> None:
    """A prompt too long for the small pool fails, whichever is asked first."""
    to_small, to_large = (
        {"pool": name, "misclassified": 1.0, "retry_pool": other}
        for name, other in (("small", "large"), ("large", "small"))
    )
    specs = make_specs([0.0], 40, 5)

    assert ruled(specs, to_small, max_model_len=32).records.status.tolist() == [FAILED]
    assert ruled(specs, to_large, max_model_len=32).records.status.tolist() == [FAILED]
    assert ruled(specs, {"pool": "large"}, max_model_len=32).records.status.tolist() == [COMPLETED]


def test_the_api_may_be_what_a_rule_names() -> None:
    """Long prompts go there, whatever fits in a replica; what the small pool gets wrong is asked of it, at 5 s."""
    api = validate(OverflowSpec, {"api": "any", "ttft": "2 s", "ttft_cv": 0, "tokens_per_second": 4})
    long = ruled(make_specs([0.0, 0.1], [60, 4], 20), {"pool": "api", "min_prompt_tokens": 50}, api=api)
    wrong = ruled(make_specs([0.0], 4, 5), {"pool": "small", "misclassified": 1.0, "retry_pool": "api"}, api=api)

    assert long.records.served_by is not None
    assert long.records.served_by.tolist() == [API, 0]
    assert long.records.finish_time[0] == pytest.approx(2.0 + 19 / 4)
    assert wrong.records.served_by is not None
    assert wrong.records.served_by.tolist() == [API]
    assert wrong.records.first_token_time.tolist() == [7.0]
    assert wrong.pools[0].totals.num_steps == 5


def test_second_answers_are_counted() -> None:
    """In the summary and in the sentence on what binds."""
    rule = {"pool": "small", "misclassified": 1.0, "retry_pool": "large"}
    inner = summarize(ruled(make_specs([0.0, 0.1], 4, 5), rule), make_facts())["simserve"]

    assert inner["asked_again"] == {"requests": 2, "share": 1.0, "discarded_output_tokens": 10}
    assert "asked a second time, after 10 tokens" in inner["bottleneck"]["explanation"]


def test_a_rule_says_what_it_lacks() -> None:
    """A share of wrong guesses without a pool to ask; the same pool twice; a range that is empty."""
    for rule, words in (
        ({"pool": "a", "misclassified": 0.1}, "needs both"),
        ({"pool": "a", "misclassified": 0.1, "retry_pool": "a"}, "another retry_pool"),
        ({"pool": "a", "min_prompt_tokens": 9, "max_prompt_tokens": 3}, "about no prompt"),
    ):
        with pytest.raises(Exception, match=words):
            validate(RoutingSpec, {"rules": [rule]})
