"""What decides in a scenario's runs, and what is refused in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simserve.errors import InputError
from simserve.profiles.api import load_api
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import control_of, deploy
from simserve.sim.simulate import Deployment

SLOW = "{kind: slow, at: 1 s, duration: 1 s"
LINK = "{kind: link, at: 1 s, duration: 1 s"
SPLIT = "[{name: p, role: prefill}, {name: d, role: decode}]"
HOST = "{tier: host, capacity: 10 GiB}"
STORE = "{tier: remote, capacity: 1 TB, bandwidth: 5 GB/s, shared: true}"
SHARED = "workload.shared_prefix={num_groups: 2, tokens: 100}"
CLASSES = "workload.classes=[{name: chat, share: 1.0, %s}]"


SGLANG = ["deployment.engine={name: sglang}"]


@pytest.mark.parametrize(
    ("overrides", "seconds", "cost"),
    [
        (SGLANG, 50e-6, None),
        ([*SGLANG, "deployment.streaming={}"], 0.0, 50e-6),
        ([*SGLANG, "deployment.streaming={cost_per_event: 20 us}"], 0.0, 20e-6),
        ([*SGLANG, "workload.arrivals={process: all_at_once}"], 0.0, None),
        (["deployment.streaming={}"], 0.0, 30e-6),
        ([], 0.0, None),
    ],
)
def test_tokens_are_sent_by_the_engine_or_as_the_block_says(
    overrides: list[str], seconds: float, cost: float | None
) -> None:
    """SGLang's API server takes 50 us for a token; a block replaces it and, where it says no cost, takes that over."""
    resolved = resolve(load("chatbot", overrides))

    streaming = control_of(resolved).streaming
    assert resolved.engine.api_token_seconds == pytest.approx(seconds)
    assert (None if streaming is None else streaming.cost_per_event) == (None if cost is None else pytest.approx(cost))


def refusal(*overrides: str, name: str = "chatbot") -> str:
    """Return the line that a scenario is refused with."""
    with pytest.raises(InputError) as caught:
        resolve(load(name, list(overrides)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["deployment.admission={}"], "refuses nobody"),
        (["deployment.admission={deadline_aware: true}", "slo={e2e: 9 s}"], "no deadline to look at"),
        ([CLASSES % "pool: fast"], "names no pool"),
        (["deployment.streaming={}", "deployment.engine.batching=static"], "has nothing to stream"),
        (["deployment.streaming={}", "deployment.engine.kv_allocation=none"], "with a KV cache only"),
        (
            [
                "deployment.pools=[{name: a, role: prefill}, {name: b, role: decode}]",
                "deployment.disaggregation={}",
                "deployment.engine.batching=static",
            ],
            "continuous batching and a KV cache",
        ),
        (["deployment.routing.weights={a: 1}"], "must name every pool"),
        (["deployment.pools=[{name: a}, {name: a}]"], "two pools of one name"),
        (["deployment.pools=[{name: a, role: prefill}]"], "add deployment.disaggregation"),
        (["deployment.disaggregation={}"], "needs pools of the roles"),
        (["deployment.pools=[{name: a}]", "deployment.replicas=2"], "no effect beside pools"),
        (["deployment.pools=[{name: a}]", f"deployment.faults=[{SLOW}, pool: b}}]"], "names no pool"),
        (
            ["deployment.pools=[{name: a}]", f"deployment.faults=[{SLOW}, replica: 1}}]"],
            "the replicas it may strike, 1",
        ),
        (["deployment.faults=[{kind: link, at: 1 s, duration: 1 s}]"], "has no link to strike"),
        (
            [f"deployment.pools={SPLIT}", "deployment.disaggregation={}", f"deployment.faults=[{LINK}, pool: d}}]"],
            "no KV",
        ),
        (["deployment.pools=[{name: a, replicas: 3, autoscaling: {max_replicas: 2, target: 1}}]"], "must lie between"),
        (["deployment.updates=[{at: 1 s, max_unavailable: 0}]"], "never goes on"),
        (["deployment.updates=[{at: 1 s, pool: b}]"], "names no pool"),
        (["deployment.liveness={timeout: 20 s}"], "must not be longer than period"),
        (["deployment.engine.kv_offload={size: 10 GiB}"], "no two prompts of the workload begin alike"),
        ([SHARED, "deployment.engine.kv_offload={size: 10 kB}"], "holds no KV block"),
        (
            [SHARED, "deployment.engine.kv_offload={size: 1 GB}", "deployment.engine.enable_prefix_caching=false"],
            "is off",
        ),
        ([f"deployment.engine.kv_tiers=[{HOST}]"], "no two prompts of the workload begin alike"),
        ([SHARED, f"deployment.engine.kv_tiers=[{HOST.replace('10 GiB', '10 kB')}]"], "holds no KV block"),
        ([SHARED, f"deployment.engine.kv_tiers=[{STORE}, {HOST}]"], "the nearest first"),
        ([SHARED, f"deployment.engine.kv_tiers=[{HOST}, {HOST}]"], "write each once"),
        (
            [SHARED, f"deployment.engine.kv_tiers=[{{{HOST[1:-1]}, shared: true}}, {STORE}]"],
            "only the last may be shared",
        ),
        ([SHARED, "deployment.engine.kv_tiers=[{tier: disk, capacity: 1 TB}]"], "needs the bandwidth of disk"),
        ([SHARED, f"deployment.engine.kv_tiers=[{{{HOST[1:-1]}, total_bandwidth: 1 GB/s}}]"], "is not shared"),
        (
            [SHARED, f"deployment.engine.kv_tiers=[{HOST}]", "deployment.engine.kv_offload={size: 1 GB}"],
            "keep one of the two",
        ),
        (["deployment.faults=[{kind: slow, at: 1 s, duration: 1 s, replica: 3}]"], "must be below deployment.replicas"),
        (["deployment.faults=[{kind: slow, at: 1 s, mttr: 1 s}]"], "give duration, not mttr"),
        (["deployment.autoscaling={max_replicas: 4, target: 3, metric: busy}"], "is a share"),
        (["deployment.response_cache={hit_share: {chat: 0.2}}"], "workload.classes has none"),
        (["deployment.overflow={api: gpt-4o, max_queue: 3, never: [chat]}"], "names no class"),
        (["deployment.fairness={shares: {chat: 1, other: 2}}", CLASSES % ""], "names no class"),
        (["deployment.routing.rules=[{pool: small}]"], "names no pool"),
        (["deployment.overflow={api: gpt-4o}"], "sends nothing to the API"),
        (["deployment.overflow={api: gpt-4oo, max_queue: 3}"], "deployment.overflow.api: 'gpt-4oo' is not a known api"),
        (["pricing.api=gpt-4oo"], "--set pricing.api: 'gpt-4oo' is not a known api; did you mean 'gpt-4o'"),
        (["deployment.overflow={api: gpt-4o, max_queue: 3}", "deployment.pools=[{name: api}]"], "rename it"),
        (
            ["deployment.pools=[{name: a}, {name: b}]", "deployment.routing.rules=[{pool: a, classes: [x]}]"],
            "names no class",
        ),
        (["deployment.streaming={stream: false, buffer_tokens: 3}"], "no effect with stream"),
        (["deployment.streaming={stream: false, stream_interval: 3}"], "stream_interval has no effect with stream"),
        (["deployment.streaming={buffer_tokens: 2, stream_interval: 3}"], "keep one of the two"),
        (["deployment.overflow={api: gpt-9, max_queue: 3}"], "is not a known api"),
        (["deployment.response_cache={hit_share: 1.3}"], "deployment.response_cache.hit_share: 1.3 must be less than"),
        (["deployment.fairness={shares: {a: 1}}"], "must have at least 2 entries, not 1"),
        (
            [f"deployment.pools={SPLIT}", "deployment.disaggregation={}", "deployment.pools.1.kv_cache_dtype=fp16"],
            "prefills KV caches of llama-3.1-70b in fp8, and no decode pool has these",
        ),
    ],
)
def test_what_would_do_nothing_or_is_not_simulated_is_refused(overrides: list[str], words: str) -> None:
    """One line names the key, the rule and what to do."""
    assert words in refusal(*overrides)


def test_a_timeout_and_a_door_make_retries_mean_something(**_: Any) -> None:
    """With either of them the same retries are accepted."""
    resolve(load("chatbot", [CLASSES % "retries: 2, timeout: 5 s"]))
    resolve(load("chatbot", [CLASSES % "retries: 2", "deployment.admission={max_queue: 9}"]))


def test_an_api_is_as_fast_as_it_was_measured_where_the_scenario_does_not_say() -> None:
    """What it says counts, and a mean of its own keeps the spread that goes with it; others keep the defaults."""

    def overflow(api: str, options: str = "") -> Any:
        resolved = resolve(load("chatbot", [f"deployment.overflow={{api: {api}, max_queue: 5{options}}}"]))
        return control_of(resolved).overflow

    measured = load_api("groq-llama-3.3-70b").latency
    assert measured is not None

    told, own, unknown = (
        overflow("groq-llama-3.3-70b"),
        overflow("groq-llama-3.3-70b", ", ttft: 1 s"),
        overflow("gpt-5"),
    )

    assert (told.ttft, told.ttft_cv) == (measured.mean_ttft, measured.ttft_cv)
    assert told.tokens_per_second == own.tokens_per_second == measured.tokens_per_second
    assert (own.ttft, own.ttft_cv) == (1.0, 0.5)
    assert (unknown.ttft, unknown.ttft_cv, unknown.tokens_per_second) == (0.5, 0.5, 80.0)


APART: dict[str, Any] = {
    "pools": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}],
    "disaggregation": {"transfer_bandwidth": "50 GB/s"},
}


def _apart(engine: dict[str, Any], **link: str) -> Deployment:
    """Return the deployment of the chatbot whose prefill and decode are apart."""
    document = {**APART, "engine": engine, "disaggregation": {**APART["disaggregation"], **link}}
    settings = [f"deployment.{key}={json.dumps(value)}" for key, value in document.items()]
    return deploy(resolve(load("chatbot", settings)))


@pytest.mark.parametrize(
    ("engine", "version", "seconds", "is_computed_again"),
    [
        ("sglang", "0.4.6", 0.09, False),
        ("sglang", "0.5.23", 0.09, False),
        ("tensorrt-llm", "1.2.0", 0.001, False),
        ("vllm", "0.8.5", 0.001, False),
        ("vllm", "0.9.0", 0.001, True),
        ("vllm", "0.29", 0.001, True),
    ],
)
def test_an_engine_says_what_handing_over_costs(
    engine: str, version: str, seconds: float, is_computed_again: bool
) -> None:
    """A time that the scenario gives counts alone; who computes a token again also takes the prompt in again."""
    named = {"name": engine, "version": version}
    deployed, given = _apart(named), _apart(named, transfer_latency="7 ms")
    assert deployed.control is not None
    assert given.control is not None
    assert deployed.control.disaggregation is not None
    assert given.control.disaggregation is not None
    decode = deployed.pools[1].engine
    again = decode.frontend_latency + decode.frontend_seconds_per_request if is_computed_again else 0.0
    per_token = decode.tokenization_per_token if is_computed_again else 0.0

    assert deployed.control.disaggregation.landing_seconds == pytest.approx(seconds + again)
    assert deployed.control.landing_seconds_per_token == per_token
    assert (given.control.disaggregation.landing_seconds, given.control.landing_seconds_per_token) == (0.007, 0.0)
    assert [each.engine.recomputes_last_token for each in deployed.pools] == [False, is_computed_again]
