"""Turns of a conversation as one segment: the same to caches and routers, and fewer to look up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.sim.plane import in_chains, prefixes_of
from simserve.sim.simulate import replay, simulate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.prefixes import PrefixSegments
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_config, make_specs
from tests.engine.strategies import routings, shared_cases
from tests.engine.test_fuzz import CHECKS
from tests.fuzzing import examples
from tests.theory.builders import make_deployment


def paths(prefixes: PrefixSegments) -> list[list[tuple[int, int]]]:
    """Return the (segment, end) of every request."""
    pairs = list(zip(prefixes.segments.tolist(), prefixes.ends.tolist(), strict=True))
    return [pairs[start:end] for start, end in zip(prefixes.offsets[:-1], prefixes.offsets[1:], strict=True)]


def test_what_nothing_else_follows_on_is_one_segment() -> None:
    """Three turns over a system prompt that another conversation shares, whose second turn is asked twice."""
    prefixes = PrefixSegments(
        offsets=np.array([0, 2, 5, 9, 11, 14, 17, 17]),
        segments=np.array([0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 4, 0, 4, 5, 0, 4, 6]),
        ends=np.array([10, 20, 10, 20, 30, 10, 20, 30, 40, 10, 15, 10, 15, 25, 10, 15, 35]),
    )

    assert paths(in_chains(prefixes)) == [
        [(0, 10), (1, 20)],
        [(0, 10), (1, 30)],
        [(0, 10), (1, 40)],
        [(0, 10), (4, 15)],
        [(0, 10), (4, 15), (5, 25)],
        [(0, 10), (4, 15), (6, 35)],
        [],
    ]


@given(data=st.data())
@settings(max_examples=examples(150), deadline=None, derandomize=True, suppress_health_check=CHECKS)
def test_a_run_is_the_same_with_a_segment_for_every_turn(data: st.DataObject) -> None:
    """Whatever is cached, evicted, preempted or routed: every time, and every cached token."""
    case = data.draw(shared_cases().filter(lambda case: case.specs.turn is not None))
    num_replicas, routing = data.draw(st.integers(1, 3)), data.draw(routings())
    runs = [replay(case.config, case.times, case.specs, num_replicas=num_replicas, routing=routing)]
    with pytest.MonkeyPatch.context() as patch:
        for module in ("plane", "cluster"):
            patch.setattr(f"simserve.sim.{module}.prefixes_of", lambda specs: specs.prefixes)
        runs.append(replay(case.config, case.times, case.specs, num_replicas=num_replicas, routing=routing))

    for column in ("arrival_time", "scheduled_time", "finish_time", "cached_tokens", "replica_id", "num_preemptions"):
        one, other = (getattr(run.records, column) for run in runs)
        np.testing.assert_array_equal(one, other, err_msg=column)


def test_requests_of_a_trace_keep_their_segments() -> None:
    """They may meet, and then a cache gives up what they share in another order."""
    case_specs = replace(
        make_conversation(), turn=None, session=None, arrival_time=np.array([0.0, 1.0]), concurrency=None
    )

    assert prefixes_of(case_specs) is case_specs.prefixes


def make_conversation() -> RequestSpecs:
    """Return a conversation of two turns."""
    specs = make_specs([0.0, 1.0], [8, 16], [4, 4])
    prefixes = PrefixSegments(offsets=np.array([0, 1, 3]), segments=np.array([0, 0, 1]), ends=np.array([12, 12, 20]))
    return replace(specs, prefixes=prefixes, session=np.array([0, 0]), turn=np.array([1, 2]))


@pytest.mark.parametrize(("num_blocks", "found"), [(24, 4), (20, 0)])
def test_what_was_reserved_for_an_answer_that_nobody_waits_for_is_used_in_turn(num_blocks: int, found: int) -> None:
    """Each of five reserves seven blocks, caches three and hangs up; the other four lie before those, after older ones.

    Of 24 the fourth takes three fresh blocks and the first one's four that hold nothing. Of 20 six of the first's go to
    the third and the fourth, and its cached ones next, before what the second has given up since.
    """
    config = make_config(
        admission="reserve",
        max_num_seqs=1,
        num_blocks=num_blocks,
        block_size=2,
        max_model_len=20,
        enable_prefix_caching=True,
        evicts_by_block=True,
        ages_empty_blocks=True,
    )
    hasty = ClassSpec(name="hasty", share=1.0, timeout="1.5 s")
    specs = replace(
        make_specs([0.0, 3.0, 6.0, 9.0, 12.0], 6, 8),
        classes=(hasty,),
        request_class=np.zeros(5, dtype=np.int16),
        prefixes=PrefixSegments(offsets=np.arange(6), segments=np.array([1, 2, 3, 4, 1]), ends=np.full(5, 6)),
    )

    run = simulate(make_deployment(config, constant_step_times(1.0), 1), specs)

    assert run.records.cached_tokens is not None
    assert run.records.cached_tokens.tolist() == [0, 0, 0, 0, found]
