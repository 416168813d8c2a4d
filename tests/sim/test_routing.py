"""Which pool and which replica an arrival goes to: policies, affinity, rules, second answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simserve as ss
from simserve.engine.plane_state import Router
from simserve.engine.routing import choose, preferred, remember
from simserve.metrics.summary import summarize
from simserve.scenario.load import from_mapping
from simserve.sim.cluster import Routing, router_of
from simserve.sim.control import Control, OverflowSpec, RoutingSpec
from simserve.sim.plane import prefix_affinity, session_affinity
from simserve.sim.pools import PoolSetup
from simserve.sim.records import API, COMPLETED, FAILED, RequestRecords
from simserve.sim.simulate import Simulation, replay, simulate
from simserve.validation import validate
from simserve.workload.class_spec import ClassSpec
from simserve.workload.requests import RequestSpecs
from tests.builders import constant_step_times, make_closed_loop, make_config, make_specs
from tests.metrics.builders import make_facts
from tests.theory.builders import make_deployment

pytestmark = pytest.mark.usefixtures("run_alone")

MOONCAKE = Path(__file__).resolve().parents[2] / "../shared/data/traces/mooncake/conversation_trace.jsonl.gz"


def routed(specs: RequestSpecs, num_replicas: int, routing: Routing, seats: int = 4) -> RequestRecords:
    """Return the records behind a router; every step takes a second."""
    config = make_config(max_num_seqs=seats)
    return simulate(make_deployment(config, constant_step_times(1.0), num_replicas, routing), specs).records


def test_round_robin_deals_in_turn() -> None:
    """Whatever their load, replicas take turns in order of arrival."""
    records = routed(make_specs([0.0, 0.1, 9.0, 9.0, 9.5, 30.0, 31.0], 4, [40, 1, 1, 1, 1, 1, 1]), 3, "round_robin")

    assert records.replica_id.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_a_prompt_that_is_too_long_takes_no_turn() -> None:
    """It fails before it is routed, so the next request takes the turn."""
    records = routed(make_specs([0.0, 1.0, 2.0], [4, 99, 4], 1), 2, "round_robin")

    assert records.replica_id.tolist() == [0, -1, 1]


def test_least_outstanding_goes_where_fewest_are() -> None:
    """Replica 0 works on a long answer, so three short ones find replica 1 no fuller than it."""
    records = routed(make_specs([0.0, 0.5, 5.0, 10.0], 4, [40, 2, 2, 2]), 2, "least_outstanding")

    assert records.replica_id.tolist() == [0, 1, 1, 1]


def test_least_outstanding_counts_the_waiting_too() -> None:
    """One seat each: a queue of one at replica 0 sends the next request to the idle seat, then to the shorter queue."""
    specs = make_specs([0.0, 0.1, 0.2, 0.3, 0.4], 4, [40, 3, 40, 40, 40])
    records = routed(specs, 2, "least_outstanding", seats=1)

    assert records.replica_id.tolist() == [0, 1, 0, 1, 0]


def test_ties_go_to_the_lowest_replica() -> None:
    """Idle replicas are all as good: the first is taken, again and again."""
    records = routed(make_specs([0.0, 10.0, 20.0], 4, 2), 4, "least_outstanding")

    assert records.replica_id.tolist() == [0, 0, 0]


def test_simultaneous_arrivals_spread() -> None:
    """Each counts for the next, though all arrive at one instant."""
    records = routed(make_specs([1.0] * 8, 4, 2), 4, "least_outstanding")

    assert records.replica_id.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_finish_comes_before_an_arrival_at_its_instant() -> None:
    """Replica 1 answers at 2.0; the request that arrives then counts it as empty."""
    records = routed(make_specs([0.0, 0.0, 2.0], 4, [9, 2, 1]), 2, "least_outstanding")

    assert records.replica_id.tolist() == [0, 1, 1]


def test_a_finish_just_after_an_arrival_does_not_count() -> None:
    """A thousandth of a second earlier both hold one, and the tie goes to replica 0."""
    records = routed(make_specs([0.0, 0.0, 1.999], 4, [9, 2, 1]), 2, "least_outstanding")

    assert records.replica_id.tolist() == [0, 1, 0]


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_one_replica_behind_a_router_is_one_replica(routing: Routing) -> None:
    """Nothing to choose: the records are those of `replay`, to the last bit."""
    specs = make_specs([0.4 * index for index in range(30)], [3, 9, 5] * 10, [7, 2, 12, 1, 4] * 6)
    config, times = make_config(num_blocks=12, max_model_len=24), constant_step_times(1.0)

    routed_records = simulate(make_deployment(config, times, 1, routing), specs).records

    alone = replay(config, times, specs).records
    assert routed_records.finish_time.tolist() == alone.finish_time.tolist()
    assert routed_records.num_preemptions.tolist() == alone.num_preemptions.tolist()


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_replicas_do_not_know_of_each_other(routing: Routing) -> None:
    """What each replica was given, it serves as if it were alone."""
    specs = make_specs([0.35 * index for index in range(60)], [3, 9, 5] * 20, [7, 2, 12, 1, 4] * 12)
    config, times = make_config(num_blocks=12, max_model_len=24), constant_step_times(1.0)

    records = simulate(make_deployment(config, times, 3, routing), specs).records

    for number in range(3):
        own = records.replica_id == number
        share = make_specs(specs.arrival_time[own].tolist(), specs.prompt_tokens[own], specs.output_tokens[own])
        assert replay(config, times, share).records.finish_time.tolist() == records.finish_time[own].tolist()


def test_least_outstanding_in_a_closed_loop_evens_out() -> None:
    """Eight clients on four replicas: never more than two requests on one."""
    specs = make_closed_loop(8, [4] * 200, [3, 9, 1, 5, 7] * 40)
    records = routed(specs, 4, "least_outstanding")

    for number in range(4):
        own = records.replica_id == number
        arrivals, finishes = records.arrival_time[own], np.sort(records.finish_time[own])
        inside = np.arange(1, own.sum() + 1) - np.searchsorted(finishes, np.sort(arrivals), side="right")
        assert inside.max() == 2


def make_control(policy: str, **routing: float) -> Control:
    """Return a router alone."""
    return Control(routing=RoutingSpec(policy=policy, **routing))


def controlled(specs: RequestSpecs, num_replicas: int, control: Control, seats: int = 4) -> RequestRecords:
    """Return the records behind a router; every step takes a second."""
    config = make_config(max_num_seqs=seats)
    deployment = make_deployment(config, constant_step_times(1.0, max(seats, 8)), num_replicas)
    return simulate(replace(deployment, control=control), specs).records


def test_least_tokens_weighs_requests() -> None:
    """A long request counts for more than two short ones."""
    specs = make_specs([0.0, 0.1, 0.2, 0.3], [20, 4, 4, 4], [30, 5, 5, 5])
    records = controlled(specs, 2, make_control("least_tokens"))

    assert records.replica_id.tolist() == [0, 1, 1, 1]


def test_random_spreads_evenly_and_repeats_itself() -> None:
    """Each replica gets a third within four standard errors; the same seed draws the same."""
    specs = make_specs([0.1 * index for index in range(900)], 1, 1)
    first, again = (controlled(specs, 3, make_control("random")).replica_id.tolist() for _ in range(2))
    other = controlled(replace(specs, seed=7), 3, make_control("random")).replica_id.tolist()

    assert first == again != other
    assert np.bincount(first) == pytest.approx(300, abs=4 * (900 * 2 / 9) ** 0.5)


def test_power_of_two_never_picks_the_fullest() -> None:
    """Of three replicas the one with a long answer is never the less loaded of two."""
    specs = make_specs([0.0, *(1.0 + 3.0 * index for index in range(18))], 1, [60, *[2] * 18])
    records = controlled(specs, 3, make_control("power_of_two"))

    assert records.replica_id[0] not in records.replica_id[1:].tolist()


def test_a_stale_view_sends_everybody_to_the_same_replica() -> None:
    """Until the next look at 10 s all four look empty; then the one with four requests is passed over."""
    specs = make_specs([0.5, 1.0, 2.0, 3.0, 10.5, 11.5], 1, 30)
    records = controlled(specs, 2, make_control("least_outstanding", update_interval="10 s"))

    assert records.replica_id.tolist() == [0, 0, 0, 0, 1, 1]


def make_router(affinity: Any, **spec: Any) -> Router:
    """Return a router that goes by what is remembered."""
    router = router_of(RoutingSpec(**{"policy": "session"} | spec), make_specs([0.0], 1, 1))
    router.affinity = affinity
    return router


def test_a_session_stays_where_it_began() -> None:
    """Its first request goes to the least loaded, the next ones there too; another session to its own."""
    router = make_router(session_affinity([7, 7, 8, 7]))

    assert [choose(router, index, [0, 1, 2], [3, 1, 2]) for index in (0, 1)] == [1, 1]
    assert [choose(router, index, [0, 1, 2], [3, 5, 2]) for index in (2, 3)] == [2, 1]


def test_a_session_moves_when_its_replica_is_gone() -> None:
    """And stays where it moved to."""
    router, loads = make_router(session_affinity([7, 7, 7])), [3, 1, 2]
    assert choose(router, 0, [0, 1, 2], loads) == 1

    assert choose(router, 1, [0, 2], loads) == 2
    assert choose(router, 2, [0, 1, 2], loads) == 2


def test_the_longest_known_prefix_decides() -> None:
    """Request 3 begins as 0 and 1 do, and goes on as 1 does."""
    ends = [100, 150, 100, 200, 250, 80, 100, 200, 260]
    affinity = prefix_affinity([0, 2, 5, 6, 9], [1, 10, 1, 2, 11, 5, 1, 2, 12], ends, [0.0] * 4)
    assert choose(make_router(affinity), 0, [0, 1, 2], [0, 9, 9]) == 0
    remember(affinity, 1, 2)
    remember(affinity, 2, 1)

    assert preferred(affinity, 3, [0, 1, 2]) == 2
    assert preferred(affinity, 3, [0, 1]) == -1


def test_a_replica_that_is_too_full_is_passed_over() -> None:
    """More than 1.5 times the mean, and more than four above the least: then the least loaded one takes it."""
    affinity = session_affinity([7, 7, 7])
    remember(affinity, 0, 1)

    assert choose(make_router(affinity), 1, [0, 1, 2], [8, 12, 10]) == 1
    assert choose(make_router(affinity), 1, [0, 1, 2], [0, 4, 0]) == 1
    assert choose(make_router(affinity), 1, [0, 1, 2], [0, 6, 0]) == 0
    remember(affinity, 0, 1)
    assert choose(make_router(affinity), 1, [0, 1, 2], [8, 30, 10]) == 0
    remember(affinity, 0, 1)
    assert choose(make_router(affinity, imbalance_guard=3.0), 1, [0, 1, 2], [8, 30, 10]) == 1


def test_a_prefix_that_all_have_in_common_draws_nobody() -> None:
    """Less than the threshold of the prompt is known there: the request is not sent after it."""
    offsets, segments, ends = [0, 2, 4], [1, 10, 1, 11], [100, 400, 100, 400]
    for least, expected in ((50.0, 2), (150.0, -1)):
        affinity = prefix_affinity(offsets, segments, ends, [least, least])
        remember(affinity, 0, 2)

        assert preferred(affinity, 1, [0, 1, 2]) == expected


@given(
    loads=st.lists(st.integers(0, 50_000), min_size=2, max_size=8),
    known=st.integers(1, 20_000),
    guard=st.floats(1.0, 4.0),
)
def test_the_guard_keeps_load_within_its_bound(loads: list[int], known: int, guard: float) -> None:
    """Whoever knows a prefix gets the request, unless it is too far beyond the mean for the tokens saved."""
    affinity = prefix_affinity([0, 1, 2], [1, 1], [known, known], [0.0, 0.0])
    remember(affinity, 0, 0)
    router = make_router(affinity, policy="prefix", imbalance_guard=guard)

    chosen = choose(router, 1, list(range(len(loads))), loads)

    bound = max(guard * sum(loads) / len(loads), min(loads) + known)
    assert loads[chosen] <= bound
    assert chosen == (0 if loads[0] <= bound else loads.index(min(loads)))


@pytest.mark.skipif(not MOONCAKE.exists(), reason="needs ../shared/data")
def test_a_real_trace_hits_more_and_answers_sooner_behind_a_router_that_knows_prefixes() -> None:
    """Mooncake's conversations on eight replicas: more than twice the hits, p95 TTFT a quarter lower, loads as even."""
    mapping: dict[str, Any] = {
        "name": "mooncake",
        "model": "llama-3.1-8b",
        "deployment": {
            "hardware": "h100-sxm-80gb",
            "replicas": 8,
            "engine": {"name": "vllm", "version": "0.12", "max_model_len": 131072},
        },
        "workload": {"trace": {"path": str(MOONCAKE), "format": "mooncake"}},
    }
    found = {}
    for policy in ("round_robin", "prefix"):
        mapping["deployment"]["routing"] = {"policy": policy}
        found[policy] = ss.run(from_mapping(mapping))
    rates = {policy: each.summary["simserve"]["kv"]["prefix_hit_rate"] for policy, each in found.items()}
    requests = found["prefix"].requests
    computed = (requests.prompt_tokens - requests.cached_tokens).groupby(requests.replica_id).sum()

    assert rates["prefix"] > 2.0 * rates["round_robin"]
    assert found["prefix"].summary["p95_ttft_ms"] < 0.75 * found["round_robin"].summary["p95_ttft_ms"]
    assert computed.max() < 1.2 * computed.mean()


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
    facts = make_facts(pool_memory={name: make_facts().memory for name in ("small", "large")})
    inner = summarize(ruled(make_specs([0.0, 0.1], 4, 5), rule), facts)["simserve"]

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
