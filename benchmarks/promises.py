"""Do the promises of `simserve capacity` and `simserve plan` hold? Fresh seeds, longer runs, and brute force.

    python benchmarks/promises.py                    the tables of docs/promises.md, half an hour on one core
    python benchmarks/promises.py capacities         the first of them
    python benchmarks/promises.py plans --cases 3    three rows of the second
    python benchmarks/promises.py --rows FILE        rows of capacities and plans are kept there, and not made again

Every check is a `run` of its own with a seed that the search has not seen: it draws its own traffic and finds for
itself what the deployment finishes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import simserve as ss
from simserve.planner.capacity.probe import LoadProbe, probe_of
from simserve.scenario.run import run

CASES = 30
"""Rows of a table at most; of the experiments on coverage that share is made."""
SHORT_RUNS = 20
"""Runs of the trial's own length at the rate that is promised."""
LONG_RUNS = 3
"""Runs ten times as long."""
LONGEST = 500_000
CAPACITY_REQUESTS = 30_000
"""Of a run at the traffic that a plan is said to bear: those of the shortest trial that promised it."""
BRUTE_REQUESTS = 300_000
BRUTE_SEEDS = (9001, 9002)
BISECTIONS = 4
BRUTE_REACH = 1.08
"""From what is promised up to 8 % above it: the brute-force capacity is known to 0.25 %."""
FIRST_SEED = 5001
MOST_TRAFFIC = 4.0
"""Times the scenario's traffic up to which a plan is asked; beyond it there is no capacity to compare with."""

STRICT = 'slo={ttft: "1 s", tpot: "40 ms", attainment: 0.95}'
LAX = 'slo={ttft: "3 s", tpot: "80 ms", attainment: 0.95}'
SMALL_GPU = 'slo={ttft: "3 s", tpot: "120 ms", attainment: 0.95}'
PLAIN = ("deployment.quantization=none", "deployment.kv_cache_dtype=auto")
NEWEST = "deployment.engine.version=null"
AS_STORED = ("deployment.quantization=auto", "deployment.kv_cache_dtype=auto")
Case = tuple[str, tuple[str, ...]]
PlanCase = tuple[Case, tuple[str, ...]]
PLAN_TRIALS = 0
"""Engine knobs that a plan of the table samples: none, which leaves the shapes and the replicas."""


def on(model: str, hardware: str, gpus: int, num_requests: int, *more: str, traffic: str = "chatbot") -> Case:
    """Return the traffic of a bundled scenario on another deployment."""
    deployed = (f"deployment.hardware={hardware}", f"deployment.tensor_parallel_size={gpus}")
    return traffic, (f"model={model}", *deployed, f"workload.num_requests={num_requests}", *more)


def talks(model: str, hardware: str, *more: str) -> Case:
    """Return the conversations of `multi-turn` on one GPU, or ranks of it, under the newest engine."""
    return on(model, hardware, 1, 3000, NEWEST, *more, traffic="multi-turn")


CAPACITIES: tuple[Case, ...] = (
    ("chatbot", ()),
    ("chatbot", ("workload.num_requests=500", "deployment.replicas=8")),
    ("chatbot", ("workload.num_requests=20000", 'slo={ttft: "600 ms", attainment: 0.95}')),
    ("chatbot", ('slo={e2e: "60 s", attainment: 0.9}', "workload.arrivals={process: poisson, rate: 0.5}")),
    ("chatbot", ("deployment.hardware=a100-sxm-80gb", "deployment.tensor_parallel_size=8")),
    ("chatbot", ('slo={ttft: "2 s", tpot: "80 ms", attainment: 0.99}', "deployment.hardware=h200-sxm-141gb")),
    ("chatbot", ("workload.arrivals={process: gamma, rate: 5, cv: 2}",)),
    ("first-token-in-100-ms", ()),
    ("code-completion", ()),
    ("disaggregation", ()),
    on("llama-3.1-8b", "h100-sxm-80gb", 1, 1000, 'slo={ttft: "1 s", tpot: "50 ms", attainment: 0.95}'),
    on("qwen3-32b", "h100-sxm-80gb", 2, 5000, 'slo={tpot: "40 ms", attainment: 0.95}'),
    on("llama-3.1-8b", "l4-24gb", 1, 500, SMALL_GPU),
    on("llama-3.1-8b", "l40s-48gb", 1, 2000, 'slo={ttft: "2 s", tpot: "60 ms", attainment: 0.9}'),
    on(
        "llama-3.1-8b",
        "a100-sxm-40gb",
        1,
        20000,
        *PLAIN,
        'slo={ttft: "500 ms", tpot: "50 ms", attainment: 0.95}',
    ),
    on("llama-3.3-70b", "h200-sxm-141gb", 2, 1000, STRICT),
    on("llama-3.3-70b", "b200-sxm-180gb", 2, 500, STRICT),
    on("qwen3-30b-a3b", "h100-sxm-80gb", 1, 3000, STRICT),
    on("qwen3-235b-a22b", "h200-sxm-141gb", 4, 1000, 'slo={ttft: "2 s", tpot: "60 ms", attainment: 0.95}'),
    on("gpt-oss-120b", "h100-sxm-80gb", 2, 5000, AS_STORED[0], STRICT),
    on("gpt-oss-20b", "rtx-4090-24gb", 1, 700, AS_STORED[0], 'slo={ttft: "1 s", tpot: "30 ms", attainment: 0.95}'),
    on("mistral-small-24b", "a100-sxm-80gb", 1, 1500, LAX),
    on("gemma-3-27b", "h100-sxm-80gb", 1, 800, 'slo={e2e: "30 s", attainment: 0.95}'),
    on("mixtral-8x7b", "a100-sxm-80gb", 2, 4000, *PLAIN, 'slo={ttft: "1 s", tpot: "60 ms", attainment: 0.9}'),
    on("deepseek-v3", "h200-sxm-141gb", 8, 600, *AS_STORED, LAX),
    on("qwen2.5-7b", "a10g-24gb", 1, 900, *PLAIN, 'slo={ttft: "2 s", tpot: "80 ms", attainment: 0.95}'),
    on("phi-4", "l40s-48gb", 2, 12000, 'slo={ttft: "1 s", tpot: "50 ms", attainment: 0.99}'),
    on(
        "llama-3.1-8b",
        "h100-sxm-80gb",
        1,
        20000,
        "deployment.replicas=2",
        "workload.arrivals={process: gamma, rate: 20, cv: 1.5}",
        'slo={tpot: "30 ms", attainment: 0.9}',
    ),
    on("llama-3.3-70b", "mi300x-192gb", 2, 1000, 'slo={ttft: "3 s", tpot: "60 ms", attainment: 0.95}'),
    on(
        "qwen3-32b",
        "h100-sxm-80gb",
        4,
        500,
        "deployment.engine.name=sglang",
        "deployment.engine.version=null",
        STRICT,
    ),
)


def traffic(model: str, rate: float, num_requests: int, hardware: str, slo: str, *more: str) -> PlanCase:
    """Return the lengths of `chatbot` at a rate, to be planned on some GPUs."""
    arrivals = f"workload.arrivals={{process: poisson, rate: {rate}}}"
    changes = (f"model={model}", arrivals, f"workload.num_requests={num_requests}", *AS_STORED, slo, *more)
    return ("chatbot", changes), tuple(hardware.split(","))


PLANS: tuple[PlanCase, ...] = (
    traffic("llama-3.1-8b", 0.5, 500, "l4-24gb,a10-24gb", SMALL_GPU),
    traffic("llama-3.1-8b", 2, 1000, "l4-24gb,l40s-48gb", SMALL_GPU),
    traffic("llama-3.1-8b", 5, 20000, "l40s-48gb", STRICT),
    traffic("llama-3.1-8b", 10, 500, "a100-sxm-80gb", STRICT),
    traffic("llama-3.1-8b", 20, 2000, "h100-sxm-80gb", STRICT),
    traffic("llama-3.1-8b", 40, 5000, "h100-sxm-80gb,l40s-48gb", STRICT),
    traffic("llama-3.1-8b", 80, 1000, "h100-sxm-80gb", LAX),
    traffic("qwen2.5-7b", 1, 700, "a10g-24gb", SMALL_GPU),
    traffic("qwen2.5-7b", 8, 3000, "l40s-48gb", LAX),
    traffic("qwen2.5-7b", 30, 500, "h100-sxm-80gb", STRICT),
    traffic("qwen3-32b", 1, 1000, "l40s-48gb", LAX),
    traffic("qwen3-32b", 4, 20000, "a100-sxm-80gb", LAX),
    traffic("qwen3-32b", 12, 500, "h100-sxm-80gb", LAX),
    traffic("qwen3-32b", 29, 2000, "h200-sxm-141gb", STRICT),
    traffic("llama-3.3-70b", 0.5, 500, "h100-sxm-80gb", LAX),
    traffic("llama-3.3-70b", 3, 1500, "h100-sxm-80gb", LAX),
    traffic("llama-3.3-70b", 6, 10000, "h200-sxm-141gb", STRICT),
    traffic("llama-3.3-70b", 15, 500, "b200-sxm-180gb", STRICT),
    traffic("llama-3.3-70b", 40, 1000, "h200-sxm-141gb", LAX),
    traffic("qwen3-30b-a3b", 5, 4000, "a100-sxm-80gb", STRICT),
    traffic("qwen3-30b-a3b", 25, 800, "h100-sxm-80gb", LAX),
    traffic("gpt-oss-20b", 4, 600, "l40s-48gb", LAX),
    traffic("gpt-oss-120b", 10, 2000, "h100-sxm-80gb", LAX),
    traffic("gpt-oss-120b", 50, 500, "b200-sxm-180gb", STRICT),
    traffic("mistral-small-24b", 2, 12000, "l40s-48gb", LAX),
    traffic("mistral-small-24b", 18, 900, "h100-sxm-80gb", STRICT),
    traffic("gemma-3-27b", 7, 500, "h100-sxm-80gb", 'slo={e2e: "30 s", attainment: 0.95}'),
    traffic("phi-4", 3, 2500, "a100-sxm-40gb", 'slo={ttft: "1 s", tpot: "50 ms", attainment: 0.99}'),
    traffic("mixtral-8x7b", 6, 1000, "a100-sxm-80gb", 'slo={ttft: "1 s", tpot: "60 ms", attainment: 0.9}'),
    traffic("qwen3-235b-a22b", 5, 500, "h200-sxm-141gb", LAX),
)
CONVERSATIONS: tuple[PlanCase, ...] = (
    (("multi-turn", ()), ("l40s-48gb",)),
    (("prefix-routing", ()), ("l40s-48gb",)),
    (
        (
            "multi-turn",
            (
                "deployment.engine.enable_prefix_caching=false",
                "deployment.hardware=h100-sxm-80gb",
                "workload.arrivals.rate=8",
            ),
        ),
        ("h100-sxm-80gb",),
    ),
    (
        ("chatbot", ('workload.sessions={turns: {distribution: fixed, value: 3}, think_time: "10 s"}',)),
        ("h100-sxm-80gb",),
    ),
    (
        ("multi-turn", ('workload.sessions.think_time="60 s"', 'slo={e2e: "20 s", attainment: 0.9}')),
        ("l40s-48gb",),
    ),
)
"""Traffic of conversations, and the GPUs on which it is planned."""

TEN_PREFIXES = "workload.shared_prefix={num_groups: 10, tokens: 4000}"
APART = (
    "deployment.pools=[{name: prefill, role: prefill, replicas: 1}, {name: decode, role: decode, replicas: 1}]",
    'deployment.disaggregation={transfer_bandwidth: "50 GB/s"}',
    "workload.prompt_tokens.mean=4000",
)
RANKS = ("deployment.data_parallel_size=8", "deployment.enable_expert_parallel=true")
URGENT = (
    "deployment.engine.scheduling_policy=priority",
    "workload.classes=[{name: urgent, share: 0.3, priority: 0}, {name: other, share: 0.7, priority: 1}]",
)
SCALED = "deployment.autoscaling={metric: running, target: 60, max_replicas: 3}"
CLIENTS = "workload.arrivals={process: closed_loop, concurrency: 30}"
DRAFTS = "deployment.speculative={method: mtp, num_speculative_tokens: 2, acceptance_rate: 0.7}"
MECHANISMS: tuple[Case, ...] = (
    on("gpt-oss-120b", "h200-sxm-141gb", 1, 2000, *AS_STORED, NEWEST, STRICT),
    talks("gpt-oss-20b", "l40s-48gb"),
    on("gpt-oss-120b", "b200-sxm-180gb", 1, 2000, *AS_STORED, NEWEST, TEN_PREFIXES, STRICT),
    on("gpt-oss-120b", "h100-sxm-80gb", 1, 2000, *AS_STORED, NEWEST, *APART, LAX),
    on("qwen3.5-35b-a3b", "h100-sxm-80gb", 2, 2000, *AS_STORED, NEWEST, STRICT),
    talks("qwen3.5-9b", "l40s-48gb"),
    on("qwen3.5-35b-a3b", "h200-sxm-141gb", 1, 2000, *AS_STORED, NEWEST, TEN_PREFIXES, LAX),
    on("qwen3.5-27b", "h100-sxm-80gb", 2, 2000, *AS_STORED, NEWEST, "deployment.engine.name=sglang", LAX),
    on("qwen3.5-122b-a10b", "b200-sxm-180gb", 4, 2000, *AS_STORED, NEWEST, DRAFTS, STRICT),
    on("deepseek-v3", "h200-sxm-141gb", 1, 2000, *AS_STORED, NEWEST, *RANKS, LAX),
    talks("deepseek-v3.2", "b200-sxm-180gb", *RANKS),
    on("qwen3-235b-a22b", "h200-sxm-141gb", 1, 2000, *AS_STORED, NEWEST, *RANKS, TEN_PREFIXES, LAX),
    on("qwen3.5-9b", "l40s-48gb", 1, 2000, *AS_STORED, NEWEST, *URGENT, LAX),
    on("gpt-oss-20b", "l40s-48gb", 1, 6000, *AS_STORED, NEWEST, SCALED, LAX),
    on("gpt-oss-20b", "l40s-48gb", 1, 2000, *AS_STORED, NEWEST, CLIENTS, LAX),
    ("coding-agents", ()),
    ("coding-agents", ("model=qwen3.5-122b-a10b", "deployment.hardware=b200-sxm-180gb", AS_STORED[0], NEWEST)),
    ("urgent-first", ()),
    ("interactive-and-batch", ()),
    ("two-pools", ()),
    ("kv-offload", ()),
    ("cold-start", ()),
    ("hundred-tenants", ()),
    ("speculative-decoding", ()),
    ("reasoning", ()),
)
"""Windows, states, ranks, workers apart, conversations, agents, prefixes, priorities and scaling, under new engines."""


SHARES = (0.95, 1.03, 1.1, 1.3)
"""Of what a long run finishes, the loads that short runs are to judge."""
SHORT_LENGTHS = (500, 2000)
SHORT_SEEDS = 4
JUDGE_REQUESTS = 400_000
JUDGE_SEED = 8001
JUDGED_AT = 1.3
JUDGED_FROM = 0.2
"""Share of the arrivals from which on the long run is looked at: its queue is never empty then."""
OVERLOADS: tuple[Case, ...] = (
    ("chatbot", ()),
    ("chatbot", ("deployment.replicas=8",)),
    ("chatbot", ("workload.arrivals={process: gamma, rate: 5, cv: 2}",)),
    ("code-completion", ()),
    ("disaggregation", ()),
    ("first-token-in-100-ms", ()),
    on("llama-3.1-8b", "l4-24gb", 1, 500),
    on("qwen3-32b", "h100-sxm-80gb", 4, 500, "deployment.engine.name=sglang", "deployment.engine.version=null"),
    on("deepseek-v3", "h200-sxm-141gb", 8, 600, *AS_STORED),
    on("phi-4", "l40s-48gb", 2, 12000),
    ("chatbot", ("deployment.engine.num_gpu_blocks_override=2500",)),
    ("chatbot", ("workload.shared_prefix={num_groups: 2000, tokens: 2000}", "deployment.replicas=2")),
    (
        "chatbot",
        (
            "deployment.engine.batching=static",
            "deployment.engine.static_batch_size=32",
            'deployment.engine.static_max_wait="1 s"',
        ),
    ),
    on("llama-3.1-8b", "l4-24gb", 1, 500, "deployment.engine.name=tensorrt-llm", "deployment.engine.version=null"),
    (
        "chatbot",
        (
            "model=deepseek-v3",
            "deployment.hardware=h200-sxm-141gb",
            "deployment.tensor_parallel_size=1",
            "deployment.data_parallel_size=8",
            "deployment.enable_expert_parallel=true",
            *AS_STORED,
        ),
    ),
)


GROWS_FROM, GROWS_TO = 0.4, 0.8
"""Shares of the arrivals of a long run between which its queue grows or does not."""
LEAST_GROWTH = 0.003
"""Of the requests that arrive meanwhile, those that a growing queue keeps."""
GROWTH_REACH = 0.08
GROWTH_BISECTIONS = 4
"""Bisections from 8 % below what is found to 8 % above it: to 0.5 %."""
AT_MOST_FOUR = ("deployment.autoscaling={metric: running, target: 60, max_replicas: 4}",)
GROWTHS: tuple[tuple[Case, tuple[str, ...]], ...] = (
    (("chatbot", ("workload.arrivals={process: gamma, rate: 5, cv: 3}",)), ()),
    (("disaggregation", ()), ()),
    (("two-pools", ()), ()),
    (("multi-turn", ()), ()),
    (("prefix-routing", ()), ()),
    (("speculative-decoding", ()), ()),
    (("chatbot", AT_MOST_FOUR), ("deployment.autoscaling=null", "deployment.replicas=4")),
    (("overload-and-shedding", ()), ("deployment.admission=null",)),
    (("overflow-to-api", ("workload.arrivals={process: poisson, rate: 30}",)), ("deployment.overflow=null",)),
    (("hundred-tenants", ()), ()),
    (("kv-tiers", ()), ()),
    (("kv-offload", ()), ()),
    (("chatbot", ('workload.sessions={turns: {distribution: fixed, value: 3}, think_time: "10 s"}',)), ()),
)
"""Cases, and what is changed where a long run judges them: nobody is turned away there, and all replicas are up."""


EXPERIMENTS = 400
EXPERIMENT_REPLICATIONS, EXPERIMENT_REQUESTS = 20, 2000
COVERED_SHARES = (0.66, 0.8)
"""Load ratios at which runs of that length have settled."""
NEAR_SHARE = 0.9
"""One at which they have not, and `--precision` lengthens them."""
NEAR_EXPERIMENTS = 24
NEAR_PRECISION = 0.05
TRUTH_RUNS = 8
NEAR_TRUTH_RUNS = 24
"""Runs of `LONGEST` requests that say what is true. The intervals of `--precision` near the limit are so narrow that
eight runs are not enough: of mean and p99 TTFT they said 0.8 and 2.2 % more than 18, and 84 % of intervals held."""
COVERED = tuple(
    f"{statistic}_{latency}_ms" for latency in ("ttft", "tpot") for statistic in ("mean", "p50", "p95", "p99")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case: what was promised, and what brute force says.

    Attributes:
        name: Of the scenario, with its changes.
        promised: Requests/s.
        low: Of the interval; NaN where a promise has none.
        high: Likewise.
        brute: The capacity by brute force, requests/s; NaN where the search was stopped below it.
        requests: Of one trial.
        short: Fresh runs of that length that hold.
        long: Fresh runs ten times as long that hold; None where a run lasts as long as the scenario says.
        answer: What was planned; empty of a capacity.
        planned: Of a plan, fresh runs of the scenario's own rate that hold, and long ones.
    """

    name: str
    promised: float
    low: float
    high: float
    brute: float
    requests: int
    short: int
    long: int | None
    answer: str = ""
    planned: tuple[int, int] = (0, 0)

    @property
    def below(self) -> float:
        """Share by which the promise lies below brute force."""
        return 1 - self.promised / self.brute

    @property
    def is_covered(self) -> bool:
        """Whether the interval covers brute force."""
        return self.low <= self.brute <= self.high


def capacity_row(name: str, overrides: tuple[str, ...]) -> Row:
    """Return what `capacity` promises of a case, and what fresh runs make of it."""
    answer = ss.capacity(ss.load(name, list(overrides))).summary
    promised = answer["max_rate"] if "max_rate" in answer else answer["max_concurrency"]
    requests, interval = answer["requests"]["per_run"], answer["confidence_interval"] or {}
    runs = runs_of(name, overrides, answer["asked"])
    return Row(
        name=" ".join([name, *overrides]),
        promised=promised,
        low=interval.get("low", math.nan),
        high=interval.get("high", math.nan),
        brute=runs.brute_force(promised) if runs.has_any_length else math.nan,
        requests=requests,
        short=runs.num_holding(promised, requests, SHORT_RUNS),
        long=runs.num_holding(promised, min(10 * requests, LONGEST), LONG_RUNS) if runs.has_any_length else None,
    )


def plan_row(case: Case, hardware: tuple[str, ...]) -> Row | None:
    """Return what `plan` promises of a case, and what fresh runs make of it; None where nothing holds."""
    name, overrides = case
    scenario = ss.load(name, list(overrides))
    summary = ss.plan(scenario, hardware=hardware, trials=PLAN_TRIALS).summary
    best = summary["best"]
    if best is None:
        return None
    rate = scenario.workload.arrivals.rate  # type: ignore[union-attr]
    confirmed, multiple = best["confirmed"], best["traffic_sustained"]
    requests = confirmed["requests"] // confirmed["replications"]
    promised, is_open_ended = multiple * rate, multiple >= MOST_TRAFFIC
    deployed = (*overrides, *(f"{key}={json.dumps(value)}" for key, value in best["overrides"].items()))
    runs = runs_of(name, deployed, scenario.slo.attainment, BRUTE_SEEDS[:1])  # type: ignore[union-attr]
    long = min(10 * requests, LONGEST)
    return Row(
        name=" ".join([name, *overrides]),
        promised=promised,
        low=math.nan,
        high=math.nan,
        brute=math.nan if is_open_ended else runs.brute_force(promised),
        requests=requests,
        short=runs.num_holding(promised, CAPACITY_REQUESTS, SHORT_RUNS),
        long=runs.num_holding(promised, min(10 * CAPACITY_REQUESTS, LONGEST), LONG_RUNS),
        answer=best["label"],
        planned=(runs.num_holding(rate, requests, SHORT_RUNS), runs.num_holding(rate, long, LONG_RUNS)),
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of capacities and plans that were made, one JSON line each, so that an interrupted table goes on.

    Attributes:
        path: The file; None keeps none.
    """

    path: Path | None = None

    def row(self, key: str, make: Callable[[], Row | None]) -> Row | None:
        """Return the row of a key: as it was kept, else made and kept. None where nothing holds."""
        lines = self.path.read_text().splitlines() if self.path is not None and self.path.exists() else []
        known = {each["key"]: each["row"] for each in map(json.loads, lines)}
        if key in known:
            row = known[key]
            return None if row is None else Row(**{**row, "planned": tuple(row["planned"])})
        made = make()
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, "row": None if made is None else asdict(made)}) + "\n")
        return made


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of one deployment that no search has seen."""

    name: str
    overrides: tuple[str, ...]
    asked: float
    brute_seeds: tuple[int, ...] = BRUTE_SEEDS

    @property
    def has_any_length(self) -> bool:
        """Whether a run may be longer than the scenario says."""
        return True

    def num_holding(self, rate: float, num_requests: int, count: int) -> int:
        """Return how many of the first fresh seeds hold the objective."""
        return sum(self._holds(rate, num_requests, seed) for seed in range(FIRST_SEED, FIRST_SEED + count))

    def brute_force(self, promised: float) -> float:
        """Return the rate at which long runs meet the objective exactly as often as asked."""
        low, high = promised, BRUTE_REACH * promised
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            runs = [self._run(middle, BRUTE_REQUESTS, seed) for seed in self.brute_seeds]
            attained = sum(attainment for attainment, _ in runs) / len(runs)
            is_overloaded = all(stability == "overloaded" for _, stability in runs)
            low, high = (low, middle) if attained < self.asked or is_overloaded else (middle, high)
        return (low + high) / 2

    def _holds(self, rate: float, num_requests: int, seed: int) -> bool:
        attainment, stability = self._run(rate, num_requests, seed)
        return stability != "overloaded" and attainment >= self.asked

    def _run(self, rate: float, num_requests: int, seed: int) -> tuple[float, str]:
        changes = [f"workload.arrivals.rate={rate!r}", f"workload.num_requests={num_requests}", f"run.seed={seed}"]
        inner = run(ss.load(self.name, [*self.overrides, *changes]), explain=False).summary["simserve"]
        return inner["slo"]["attainment"] or 0.0, inner["stability"]


@dataclass(frozen=True, slots=True)
class ProbedRuns(Runs):
    """Runs as the search makes them, with requests that it has not seen.

    A `run` of conversations begins at a lower rate, and may end before its own is reached: these are measured from when
    as many of them end as begin. Patterns in time, clients, and classes with limits of their own are not at one rate.
    """

    probe: LoadProbe | None = None

    @property
    def has_any_length(self) -> bool:
        """Whether a run may be longer than the scenario says."""
        assert self.probe is not None  # see runs_of
        return self.probe.is_steady

    def _run(self, rate: float, num_requests: int, seed: int) -> tuple[float, str]:
        assert self.probe is not None  # see runs_of
        found = replace(self.probe, _drawn={})(rate, seed, num_requests)  # no more than one run's requests in memory
        return float(found.attainment), found.stability


def runs_of(name: str, overrides: tuple[str, ...], asked: float, brute_seeds: tuple[int, ...] = BRUTE_SEEDS) -> Runs:
    """Return what runs a case at any rate; where that is a probe, it draws requests from a seed of its own."""
    scenario = ss.load(name, [*overrides, f"run.seed={FIRST_SEED}"])
    has_own_limits = any(each.slo is not None for each in scenario.workload.classes or ())
    probe = probe_of(scenario)
    if probe.is_steady and not scenario.workload.has_sessions and not has_own_limits:
        return Runs(name, overrides, asked, brute_seeds)
    return ProbedRuns(name, overrides, asked, brute_seeds, probe=probe)


def _conversations(cases: int, kept: Rows) -> None:
    """Print the tables of conversations: capacities, then plans."""
    _print_capacities([case for case, _ in CONVERSATIONS[:cases]], kept)
    print()
    _print_plans(CONVERSATIONS[:cases], kept)


def _mechanisms(cases: int, kept: Rows) -> None:
    """Print the table of capacities with today's engines and what they have beside plain prompts and answers."""
    _print_capacities(MECHANISMS[:cases], kept)


def _capacities(cases: int, kept: Rows) -> None:
    """Print the table of capacities."""
    _print_capacities(CAPACITIES[:cases], kept)


def _print_capacities(cases: Iterable[Case], kept: Rows) -> None:
    print("| scenario | promised /s | interval | brute force /s | below it | requests a run | hold | long runs hold |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for name, overrides in cases:
        row = kept.row(" ".join(["capacity", name, *overrides]), partial(capacity_row, name, overrides))
        assert row is not None
        rows.append(row)
        is_known = row.long is not None
        knee, below = (f"{row.brute:.3g}", f"{row.below:.1%}") if is_known else ("", "")
        print(
            f"| `{row.name}` | {row.promised:.3g} | {row.low:.3g} to {row.high:.3g} | {knee} | {below} "
            f"| {row.requests:,} | {row.short} of {SHORT_RUNS} | {f'{row.long} of {LONG_RUNS}' if is_known else ''} |",
            flush=True,
        )
    _sum_up(rows)
    known = [row for row in rows if row.long is not None]
    print(f"Intervals that cover brute force: {sum(row.is_covered for row in known)} of {len(known)}.")


def _plans(cases: int, kept: Rows) -> None:
    """Print the table of plans."""
    _print_plans(PLANS[:cases], kept)


def _print_plans(cases: Iterable[PlanCase], kept: Rows) -> None:
    print(
        "| traffic | GPUs | plan | hold | long runs hold | can sustain /s | brute force /s | below it | hold there "
        "| long runs hold there |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for case, hardware in cases:
        row = kept.row(" ".join(["plan", case[0], *case[1], *hardware]), partial(plan_row, case, hardware))
        if row is None:
            print(f"| `{' '.join(case[1])}` | {', '.join(hardware)} | nothing holds | | | | | | | |", flush=True)
            continue
        rows.append(row)
        knee = "" if math.isnan(row.brute) else f"{row.brute:.3g}"
        below = "" if math.isnan(row.brute) else f"{row.below:.1%}"
        print(
            f"| `{row.name}` | {', '.join(hardware)} | {row.answer} | {row.planned[0]} of {SHORT_RUNS} "
            f"| {row.planned[1]} of {LONG_RUNS} | {row.promised:.3g} | {knee} | {below} "
            f"| {row.short} of {SHORT_RUNS} | {row.long} of {LONG_RUNS} |",
            flush=True,
        )
    short, long = (sum(row.planned[each] for row in rows) for each in (0, 1))
    print(
        f"\nAt the planned rate fresh runs that hold: {short} of {SHORT_RUNS * len(rows)}; long ones: {long} of "
        f"{LONG_RUNS * len(rows)}. At the rate that can be sustained:"
    )
    _sum_up(rows)


def _sum_up(rows: list[Row]) -> None:
    known = [row.below for row in rows if not math.isnan(row.brute)]
    long = [row.long for row in rows if row.long is not None]
    print(
        f"\nFresh runs that hold: {sum(row.short for row in rows)} of {SHORT_RUNS * len(rows)}; long ones: "
        f"{sum(long)} of {LONG_RUNS * len(long)}; below brute force: "
        f"{min(known):.1%} to {max(known):.1%}, {sum(below > 0.05 for below in known)} of {len(known)} more than 5%."
    )


def finished(name: str, overrides: tuple[str, ...], rate: float) -> float:
    """Return the requests/s that a deployment finishes at a rate above that, until the last of them has arrived."""
    changes = [f"workload.arrivals.rate={rate!r}", f"workload.num_requests={JUDGE_REQUESTS}", f"run.seed={JUDGE_SEED}"]
    records = run(ss.load(name, [*overrides, *changes]), explain=False, finishable=None).simulation.records
    begin, end = (float(np.quantile(records.arrival_time, share)) for share in (JUDGED_FROM, 1.0))
    done = np.count_nonzero((records.finish_time > begin) & (records.finish_time <= end))
    return float(done / (end - begin))


def _overloads(cases: int, _: Rows) -> None:
    """Print the table of load ratios."""
    rows = (
        (case, lambda found, case=case: finished(case[0], case[1], JUDGED_AT * found)) for case in OVERLOADS[:cases]
    )
    _judge("a long run finishes /s", rows)


def _growths(cases: int, _: Rows) -> None:
    """Print the load from which on a long queue grows, beside what is found, and what short runs are called there."""
    rows = (
        ((name, own), lambda found, name=name, own=own, relaxed=relaxed: grows_from(name, (*own, *relaxed), found))
        for (name, own), relaxed in GROWTHS[:cases]
    )
    _judge("a long queue grows from /s", rows)


def _judge(truth_name: str, rows: Iterable[tuple[Case, Callable[[float], float]]]) -> None:
    """Print what is found of each case beside what long runs say, and whether short runs are judged right.

    Args:
        truth_name: Heading of what long runs say.
        rows: Cases, and from what is found to what long runs say.
    """
    print(f"| scenario | finishable /s | {truth_name} | off by | short runs judged right |")
    print("|---|---|---|---|---|")
    errors, right, count = [], 0, 0
    for (name, overrides), truth_of in rows:
        first = run(ss.load(name, [*overrides, "workload.num_requests=500"]), explain=False).summary["simserve"]
        found = first["finishable_throughput"]
        truth = truth_of(found)
        judged = [
            (_verdict(name, overrides, share * truth, num_requests, seed) == "overloaded") == (share > 1)
            for share in SHARES
            for num_requests in SHORT_LENGTHS
            for seed in range(FIRST_SEED, FIRST_SEED + SHORT_SEEDS)
        ]
        errors.append(abs(found / truth - 1))
        right, count = right + sum(judged), count + len(judged)
        title = " ".join([name, *overrides])
        row = f"| `{title}` | {found:.4g} | {truth:.4g} | {found / truth - 1:+.1%} | {sum(judged)} of {len(judged)} |"
        print(row, flush=True)
    print(f"\nJudged right: {right} of {count}; farthest off: {max(errors):.1%}.")


def grows_from(name: str, overrides: tuple[str, ...], found: float) -> float:
    """Return the load from which on the queue of a long run grows, near what is found, requests/s."""
    low, high = (1 - GROWTH_REACH) * found, (1 + GROWTH_REACH) * found
    for _ in range(GROWTH_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if grows(name, overrides, middle) else (middle, high)
    return (low + high) / 2


def grows(name: str, overrides: tuple[str, ...], rate: float) -> bool:
    """Return whether the queue of a long run grows for as long as requests come."""
    changes = [f"workload.arrivals.rate={rate!r}", f"workload.num_requests={JUDGE_REQUESTS}", f"run.seed={JUDGE_SEED}"]
    records = run(ss.load(name, [*overrides, *changes]), explain=False, finishable=None).simulation.records
    is_served = np.isfinite(records.finish_time)  # prompts that are too long never are, whatever the load
    arrived, finished_at = np.sort(records.arrival_time[is_served]), np.sort(records.finish_time[is_served])
    ends = [int(share * len(arrived)) for share in (GROWS_FROM, GROWS_TO)]
    inside = [each - int(np.searchsorted(finished_at, arrived[each])) for each in ends]
    return inside[1] - inside[0] > LEAST_GROWTH * (ends[1] - ends[0])


def _verdict(name: str, overrides: tuple[str, ...], rate: float, num_requests: int, seed: int) -> str:
    changes = [f"workload.arrivals.rate={rate!r}", f"workload.num_requests={num_requests}", f"run.seed={seed}"]
    summary = run(ss.load(name, [*overrides, *changes]), explain=False).summary
    return str(summary["simserve"]["stability"])


def _coverage(cases: int, _: Rows) -> None:
    """Print how often the 95 % intervals of replications hold what runs of 500,000 requests find."""
    heads = (*COVERED, "request_throughput")
    print(f"| load | runs | settled | {' | '.join(heads)} |")
    print("|---|---|---|" + "---|" * len(heads))
    finishable = run(ss.load("chatbot"), explain=False).summary["simserve"]["finishable_throughput"]
    several = f"{EXPERIMENT_REPLICATIONS} x {EXPERIMENT_REQUESTS:,}"
    replicated = ("run.replications=20", f"workload.num_requests={EXPERIMENT_REQUESTS}")
    experiments = cases * EXPERIMENTS // CASES
    for share in COVERED_SHARES:
        _covered(share * finishable, share, several, experiments, replicated)
    _covered(NEAR_SHARE * finishable, NEAR_SHARE, several, NEAR_EXPERIMENTS, replicated)
    precise = (f"run.precision={NEAR_PRECISION}", "run.max_replications=20", replicated[1])
    precision = f"--precision {NEAR_PRECISION:g}"
    _covered(NEAR_SHARE * finishable, NEAR_SHARE, precision, NEAR_EXPERIMENTS, precise, NEAR_TRUTH_RUNS)


def _covered(
    rate: float, share: float, runs: str, experiments: int, options: tuple[str, ...], truth_runs: int = TRUTH_RUNS
) -> None:
    """Print one row: a load, and what is asked of its runs."""
    arrivals = f"workload.arrivals.rate={rate!r}"
    names = (*COVERED, "request_throughput")
    long = [
        run(
            ss.load("chatbot", [arrivals, f"workload.num_requests={LONGEST}", f"run.seed={JUDGE_SEED + each}"]),
            explain=False,
            finishable=None,
        ).summary
        for each in range(truth_runs)
    ]
    truth = {name: float(np.mean([summary[name] for summary in long])) for name in names}
    hits, stated, settled = dict.fromkeys(names, 0), dict.fromkeys(names, 0), 0
    for seed in range(FIRST_SEED, FIRST_SEED + experiments):
        inner = run(ss.load("chatbot", [arrivals, *options, f"run.seed={seed}"]), explain=False).summary["simserve"]
        settled += inner["settled"]
        for name in names:
            interval = inner["confidence_intervals"][name]
            if interval["low"] is not None:
                stated[name] += 1
                hits[name] += interval["low"] <= truth[name] <= interval["high"]
    told = " | ".join(f"{hits[name] / stated[name]:.3f}" if stated[name] else "none stated" for name in names)
    print(f"| {share:g} | {runs} | {settled} of {experiments} | {told} |", flush=True)


TABLES: Mapping[str, Callable[[int, Rows], None]] = {
    "capacities": _capacities,
    "plans": _plans,
    "overloads": _overloads,
    "growths": _growths,
    "coverage": _coverage,
    "conversations": _conversations,
    "mechanisms": _mechanisms,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=[])
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--rows", type=Path, help="file in which rows of capacities and plans are kept")
    asked: Any = parser.parse_args()
    for name in asked.tables or TABLES:
        TABLES[name](asked.cases, Rows(asked.rows))


if __name__ == "__main__":
    main()
