"""What each feature costs: simulated requests per user CPU second, one feature at a time and all together.

    python benchmarks/features.py            the tables, on stdout
    python benchmarks/features.py --quick    small sizes, to see that it runs

The clock covers what `throughput.py` times: traffic drawn, simulated, summarised. All rows run in one process, each the
best of its repetitions; imports and pricing are not counted, nor is compiling.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import inspect
import resource
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.throughput import RATE_AT_FULL_LOAD, SCENARIO

NUM_REPLICAS = 16
LOAD = 0.7
LONG_PROMPTS = "{distribution: lognormal, mean: 900, cv: 1.0, max: 8000}"
CLASSES = f"workload.classes=[{{name: chat, share: 0.8}}, {{name: long, share: 0.2, prompt_tokens: {LONG_PROMPTS}}}]"
SESSIONS = "workload.sessions={turns: {distribution: geometric, mean: 5, max: 30}, think_time: 20 s, think_time_cv: 1}"
PREFIXES = "workload.shared_prefix={num_groups: 10, tokens: 800}"
SHORT_PROMPTS = "workload.prompt_tokens={distribution: lognormal, mean: 120, cv: 1.0, max: 2000}"
AGENTS = (
    "workload.agents={calls: {distribution: geometric, mean: 8, max: 40}, tool_time: 5 s, tool_time_cv: 1, "
    "subagent_share: 0.1, subagents: {distribution: uniform, min: 1, max: 3}, "
    "subagent_calls: {distribution: geometric, mean: 3, max: 10}, fork_share: 0.5}"
)
ALL_TOGETHER = "conversations, prefix caching, two classes, prefix-aware routing"
FEATURES: Mapping[str, Sequence[str]] = {
    "none": (),
    "every option written out at its default": (
        "deployment.routing={policy: least_outstanding, update_interval: 0 s}",
        "deployment.engine.scheduling_policy=fcfs",
        "deployment.engine.preemption_mode=recompute",
        "deployment.engine.enable_prefix_caching=true",
    ),
    "round robin": ("deployment.routing=round_robin",),
    "two choices": ("deployment.routing=power_of_two",),
    "fewest tokens, seen every second": ("deployment.routing={policy: least_tokens, update_interval: 1 s}",),
    "two classes": (CLASSES,),
    "two classes, by priority": (
        "workload.classes=[{name: chat, share: 0.8, priority: 0}, {name: batch, share: 0.2, priority: 1}]",
        "deployment.engine.scheduling_policy=priority",
    ),
    "prefix caching of ten system prompts": (PREFIXES, SHORT_PROMPTS),
    "conversations, prefix caching": (SESSIONS, PREFIXES, SHORT_PROMPTS),
    "conversations, prefix caching, by session": (
        *(SESSIONS, PREFIXES, SHORT_PROMPTS),
        "deployment.routing=session",
    ),
    ALL_TOGETHER: (
        *(SESSIONS, PREFIXES, SHORT_PROMPTS, CLASSES),
        "deployment.routing={policy: prefix, imbalance_guard: 1.5}",
    ),
    "agents' tasks, prefix caching": (AGENTS, PREFIXES, SHORT_PROMPTS),
    "agents' tasks, prefix caching, prefix-aware routing": (
        *(AGENTS, PREFIXES, SHORT_PROMPTS),
        "deployment.routing={policy: prefix, imbalance_guard: 1.5}",
    ),
    "streaming to the client": ("deployment.streaming={network_latency: 20 ms, cost_per_event: 5 us}",),
    "an API beside the replicas": (
        "deployment.overflow={api: gpt-4o, max_queue: 100, ttft: 500 ms, tokens_per_second: 90}",
    ),
    "a response cache": (
        "deployment.response_cache={hit_share: 0.3, latency: 8 ms, questions: 300, zipf: 1.0, expiry: 10 min}",
    ),
    "fair turns of two tenants": (
        "workload.classes=[{name: one, share: 0.5}, {name: other, share: 0.5}]",
        "deployment.fairness={shares: {one: 1, other: 1}}",
    ),
    "rules, two pools": (
        "deployment.pools=[{name: first, replicas: 8}, {name: second, replicas: 8}]",
        "deployment.routing={rules: [{pool: first, max_prompt_tokens: 600}, {pool: second}]}",
        "deployment.replicas=1",
    ),
    "two regions": (
        "deployment.pools=[{name: first, region: eu, replicas: 8}, {name: second, region: us, replicas: 8}]",
        "workload.classes=[{name: one, share: 0.5, region: eu}, {name: other, share: 0.5, region: us}]",
        "deployment.regions={latency: {eu: {us: 45 ms}}, within: 5 ms, spill_above: 60}",
        "deployment.replicas=1",
    ),
    "shedding": ("deployment.admission={max_queue: 100, kv_headroom: 0.02}",),
    "time limits and retries": ("workload.classes=[{name: chat, share: 1, timeout: 30 s, retries: 2}]",),
    "two pools": (
        "deployment.pools=[{name: first, replicas: 8}, {name: second, hardware: h200-sxm-141gb, replicas: 8}]",
        "deployment.replicas=1",
    ),
    "prefill and decode pools": (
        "deployment.pools=[{name: p, role: prefill, replicas: 4}, {name: d, role: decode, replicas: 12}]",
        "deployment.disaggregation={transfer_bandwidth: 50 GB/s, transfer_latency: 2 ms}",
        "deployment.replicas=1",
    ),
    "autoscaling": (
        "deployment.autoscaling={metric: queue_depth, target: 10, min_replicas: 8, max_replicas: 24, interval: 15 s}",
    ),
    "a lost replica": ("deployment.faults=[{kind: replica, replica: 1, at: 10 s, duration: 10 s}]",),
    "speculative decoding": (
        "deployment.speculative={method: ngram, num_speculative_tokens: 3, acceptance_rate: 0.5}",
    ),
}

EXPERTS = (
    "model=deepseek-v3",
    "deployment.hardware=h200-sxm-141gb",
    "deployment.quantization=fp8",
    "workload.arrivals.rate=20",  # 70 % load of the first
)
RANKS: Mapping[str, Sequence[str]] = {
    "one scheduler, eight GPUs": ("deployment.tensor_parallel_size=8",),
    "data-parallel attention, eight ranks": (
        "deployment.data_parallel_size=8",
        "deployment.enable_expert_parallel=true",
    ),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, one repetition")
    quick = parser.parse_args().quick
    for title, lines in tables(quick=quick):
        print(f"\n## {title}\n")
        for line in lines:
            print(line, flush=True)


def tables(*, quick: bool) -> Iterable[tuple[str, Iterable[str]]]:
    """Yield title and lines of each table: features, replicas, seats, ranks."""
    num_requests, repetitions = (1_000, 1) if quick else (20_000, 2)
    measured(scenario(LOAD * RATE_AT_FULL_LOAD, 1_000), 1)  # what is imported and read once is not a feature's
    yield f"Features, {NUM_REPLICAS} replicas at 70 % load", _feature_lines(num_requests, repetitions)
    yield "Replicas, 70 % load", _replica_lines(num_requests, repetitions)
    yield "Seats, full load", _seat_lines(num_requests, repetitions)
    yield "DeepSeek-V3 on eight H200, 20 requests/s", _rank_lines(2 * num_requests, repetitions)


def _feature_lines(num_requests: int, repetitions: int) -> Iterable[str]:
    yield from _head("feature", "of none")
    base: dict[str, float] = {}
    rate = LOAD * RATE_AT_FULL_LOAD * NUM_REPLICAS
    for name, overrides in FEATURES.items():
        case = scenario(rate, num_requests, (f"deployment.replicas={NUM_REPLICAS}", *overrides))
        rates = measured(case, repetitions)
        base = base or rates
        yield _line(name, rates, base)


def _replica_lines(num_requests: int, repetitions: int) -> Iterable[str]:
    yield from _head("replicas", "of one")
    base: dict[str, float] = {}
    for replicas in (1, 4, 16, 64):
        case = scenario(LOAD * RATE_AT_FULL_LOAD * replicas, num_requests, (f"deployment.replicas={replicas}",))
        rates = measured(case, repetitions)
        base = base or rates
        yield _line(str(replicas), rates, base)


def _seat_lines(num_requests: int, repetitions: int) -> Iterable[str]:
    yield from _head("max_num_seqs", "of 256")
    seats = {
        limit: measured(
            scenario(1.05 * RATE_AT_FULL_LOAD, num_requests, (f"deployment.engine.max_num_seqs={limit}",)), repetitions
        )
        for limit in (16, 64, 256, 1024)
    }
    for limit, rates in seats.items():
        yield _line(str(limit), rates, seats[256])


def _rank_lines(num_requests: int, repetitions: int) -> Iterable[str]:
    yield from _head("attention", "of one scheduler")
    base: dict[str, float] = {}
    for name, overrides in RANKS.items():
        rates = measured(scenario(1.0, num_requests, (*EXPERTS, *overrides)), repetitions)
        base = base or rates
        yield _line(name, rates, base)


def scenario(rate: float, num_requests: int, overrides: Sequence[str] = ()) -> Any:
    """Return the benchmark's scenario at a rate, with overrides."""
    from simserve.scenario.load import from_mapping

    return from_mapping(
        SCENARIO, [f"workload.arrivals.rate={rate}", f"workload.num_requests={num_requests}", *overrides]
    )


def ways() -> list[str]:
    """Return how the kernel can be run: ``off``, interpreted; ``on``, compiled where numba is and covers the run."""
    from simserve.scenario.run import run

    can_compile = "accelerate" in inspect.signature(run).parameters and importlib.util.find_spec("numba") is not None
    return ["off", "on"] if can_compile else ["off"]


def measured(case: Any, repetitions: int) -> dict[str, float]:
    """Return the requests per user CPU second of each way."""
    from simserve.scenario.resolve import resolve
    from simserve.scenario.run import deploy, run

    deploy(resolve(case))
    rates = {}
    for how in ways():
        options: dict[str, Any] = {} if len(ways()) == 1 else {"accelerate": how}
        seconds = []
        for _ in range(repetitions + (how == "on")):
            gc.collect()
            start = user_seconds()
            run(case, explain=False, **options)
            seconds.append(user_seconds() - start)
        rates[how] = case.workload.num_requests / min(seconds)
    return rates


def user_seconds() -> float:
    """Return the user CPU seconds of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def _head(first: str, relative: str) -> Iterable[str]:
    names = {"off": "interpreted", "on": "compiled"}
    columns = [column for how in ways() for column in (f"{names[how]}, requests / CPU s", relative)]
    yield f"| {first} | " + " | ".join(columns) + " |"
    yield "|---|" + "---:|" * len(columns)


def _line(name: str, rates: Mapping[str, float], base: Mapping[str, float]) -> str:
    cells = [cell for how, value in rates.items() for cell in (f"{value:,.0f}", f"{value / base[how]:.2f}")]
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
