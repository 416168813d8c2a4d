"""Where a router sends what it has seen before, and when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simserve as ss
from simserve.engine.plane_state import Router
from simserve.engine.routing import choose, preferred, remember
from simserve.scenario.load import from_mapping
from simserve.sim.affinity import prefix_affinity, session_affinity
from simserve.sim.routing import router_of
from simserve.sim.routing_spec import RoutingSpec
from tests.builders import make_specs

MOONCAKE = Path(__file__).resolve().parents[2] / "../shared/data/traces/mooncake/conversation_trace.jsonl.gz"


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
