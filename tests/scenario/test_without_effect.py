"""Settings that change nothing beside others: simulated as without them, and said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simserve.report.answer import warnings
from simserve.scenario.load import load
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario

CLASSES = "workload.classes=[{name: chat, share: 0.5, %s}, {name: batch, share: 0.5, %s}]"
PLAIN = CLASSES % ("timeout: 60 s", "timeout: 60 s")
THREE = "deployment.replicas=3"
STATIC = "deployment.engine={name: vllm, batching: static, static_batch_size: 8, static_max_wait: 100 ms}"
SHARED = "workload.shared_prefix={num_groups: 2, tokens: 100}"


def figures(*overrides: str) -> tuple[str, str]:
    """Return the figures of a run without what names the scenario, and its notes."""
    summary: dict[str, Any] = json.loads(json.dumps(run(make_scenario(overrides)).summary))
    notes = " ".join(summary["simserve"]["engine_resolved"]["notes"])
    for key in ("scenario_hash", "engine_resolved"):
        del summary["simserve"][key]
    return json.dumps(summary), notes


@pytest.mark.parametrize(
    ("without", "overrides", "words"),
    [
        ([THREE], ["deployment.routing.imbalance_guard=1.5"], "imbalance_guard has no effect under least_outstanding"),
        ([THREE], ["deployment.routing.cache_threshold=0.5"], "cache_threshold has no effect under least_outstanding"),
        (
            [THREE, "deployment.routing=random"],
            ["deployment.routing.update_interval=1 s"],
            "update_interval has no effect under random, which looks at nothing",
        ),
        ([THREE], ["deployment.routing.policy=session"], "session has nothing to go by, as no sessions are told apart"),
        (
            [THREE, "deployment.routing.policy=least_tokens"],
            ["deployment.routing.policy=prefix"],
            "prefix has nothing to go by, as no two prompts are known to begin alike",
        ),
        ([PLAIN], [CLASSES % ("timeout: 60 s, priority: 1", "timeout: 60 s, priority: 0")], "first come, first served"),
        (
            [],
            ["deployment.engine.scheduling_policy=priority"],
            "priority has no effect: no class of the workload has a priority",
        ),
        ([CLASSES % ("", "")], [CLASSES % ("retries: 2", "")], "retries of workload.classes have no effect"),
        ([], ["deployment.engine.swap_space=4 GiB"], "swap_space has no effect without preemption_mode swap"),
        ([], ["deployment.engine.priority_preemption=true"], "priority_preemption has no effect without"),
        ([], ["deployment.engine.priority_ageing=5 s"], "priority_ageing has no effect without"),
        ([], ["workload.ignore_eos=true"], "ignore_eos has no effect: the engine looks at no request's max_tokens"),
        ([STATIC], ["deployment.engine.scheduler=prefill_first"], "scheduler has no effect on a static batch"),
        ([STATIC], ["deployment.engine.admission=reserve"], "admission has no effect on a static batch"),
    ],
)
def test_what_does_nothing_is_said_and_does_nothing(without: list[str], overrides: list[str], words: str) -> None:
    """A comparison that changes one key keeps the others: they need not be taken out."""
    busy = ["workload.arrivals.rate=40"]
    before, silent = figures(*busy, *without)
    after, notes = figures(*busy, *without, *overrides)

    assert words in notes
    assert words not in silent
    assert after == before


@pytest.mark.parametrize(
    "overrides",
    [
        [THREE, SHARED, "deployment.routing={policy: prefix, imbalance_guard: 2.0, cache_threshold: 0.1}"],
        [THREE, "deployment.routing.update_interval=1 s"],
        ["deployment.engine.scheduling_policy=priority", CLASSES % ("priority: 1", "priority: 0")],
        [CLASSES % ("retries: 2, timeout: 5 s", "")],
        ["deployment.engine={name: sglang, version: 0.5.23}", "workload.ignore_eos=true"],
    ],
)
def test_what_may_have_an_effect_is_not_said(overrides: list[str]) -> None:
    """The same settings where they are at home."""
    assert "effect" not in figures(*overrides)[1]


@pytest.mark.parametrize(
    ("key", "start"),
    [
        ("deployment.autoscaling", "deployment.replicas"),
        ("deployment.pools.0.autoscaling", "deployment.pools.0.replicas"),
    ],
)
def test_a_scaled_deployment_starts_with_its_least_replicas_at_least(key: str, start: str) -> None:
    """What is said to be fewer, or not said, is raised; what is more stays."""

    def replicas(*overrides: str) -> int:
        rules = f"{key}={{min_replicas: 3, max_replicas: 6, target: 2}}"
        pools = ["deployment.pools=[{name: a}]"] if "pools" in key else []
        deployment = load("single-gpu-7b", [*pools, rules, *overrides]).deployment
        return deployment.pools[0].replicas if pools else deployment.replicas

    assert replicas() == 3
    assert replicas(f"{start}=2") == 3
    assert replicas(f"{start}=5") == 5


def test_turns_may_be_a_number() -> None:
    """`turns: 4` is four in each conversation."""
    short, long = (
        make_scenario([f"workload.sessions={{turns: {each}}}"]) for each in ("4", "{distribution: fixed, value: 4}")
    )

    assert short.workload == long.workload


def test_the_reader_sees_it_with_the_key_as_it_is_written() -> None:
    """Among the warnings, a key in its own spelling."""
    result = run(make_scenario([THREE, "deployment.routing.imbalance_guard=1.5"]))

    assert "deployment.routing.imbalance_guard has no effect under least_outstanding." in warnings(result)
