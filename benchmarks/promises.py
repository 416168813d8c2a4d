"""Do the promises of `simserve capacity` and `simserve plan` hold? Fresh seeds, longer runs, and brute force.

    python benchmarks/promises.py                    both tables of docs/promises.md, half an hour on one core
    python benchmarks/promises.py capacities         the first of them
    python benchmarks/promises.py plans --cases 3    three rows of the second

Every check is a `run` of its own with a seed that the search has not seen: it draws its own traffic and finds for
itself what the deployment finishes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import simserve as ss
from simserve.scenario.run import run

SHORT_RUNS = 20
"""Runs of the trial's own length at the rate that is promised."""
LONG_RUNS = 3
"""Runs ten times as long."""
LONGEST = 500_000
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
AS_STORED = ("deployment.quantization=auto", "deployment.kv_cache_dtype=auto")
Case = tuple[str, tuple[str, ...]]


def on(model: str, hardware: str, gpus: int, num_requests: int, *more: str) -> Case:
    """Return the traffic of `chatbot` on another deployment."""
    deployed = (f"deployment.hardware={hardware}", f"deployment.tensor_parallel_size={gpus}")
    return "chatbot", (f"model={model}", *deployed, f"workload.num_requests={num_requests}", *more)


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
        long: Fresh runs ten times as long that hold.
        answer: What was planned; empty of a capacity.
    """

    name: str
    promised: float
    low: float
    high: float
    brute: float
    requests: int
    short: int
    long: int
    answer: str = ""

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
    promised, requests, interval = answer["max_rate"], answer["requests"]["per_run"], answer["confidence_interval"]
    runs = Runs(name, overrides, answer["asked"])
    return Row(
        name=" ".join([name, *overrides]),
        promised=promised,
        low=interval["low"],
        high=interval["high"],
        brute=runs.brute_force(promised),
        requests=requests,
        short=runs.num_holding(promised, requests, SHORT_RUNS),
        long=runs.num_holding(promised, min(10 * requests, LONGEST), LONG_RUNS),
    )


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of one deployment that no search has seen."""

    name: str
    overrides: tuple[str, ...]
    asked: float

    def num_holding(self, rate: float, num_requests: int, count: int) -> int:
        """Return how many of the first fresh seeds hold the objective."""
        return sum(self._holds(rate, num_requests, seed) for seed in range(FIRST_SEED, FIRST_SEED + count))

    def brute_force(self, promised: float) -> float:
        """Return the rate at which long runs meet the objective exactly as often as asked."""
        low, high = promised, BRUTE_REACH * promised
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            runs = [self._run(middle, BRUTE_REQUESTS, seed) for seed in BRUTE_SEEDS]
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


def _capacities(cases: int) -> None:
    """Print the table of capacities."""
    print("| scenario | promised /s | interval | brute force /s | below it | requests a run | hold | long runs hold |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for name, overrides in CAPACITIES[:cases]:
        row = capacity_row(name, overrides)
        rows.append(row)
        print(
            f"| `{row.name}` | {row.promised:.3g} | {row.low:.3g} to {row.high:.3g} | {row.brute:.3g} | {row.below:.1%} "
            f"| {row.requests:,} | {row.short} of {SHORT_RUNS} | {row.long} of {LONG_RUNS} |",
            flush=True,
        )
    _sum_up(rows)
    print(f"Intervals that cover brute force: {sum(row.is_covered for row in rows)} of {len(rows)}.")


def _sum_up(rows: list[Row]) -> None:
    known = [row.below for row in rows if row.brute == row.brute]
    print(
        f"\nFresh runs that hold: {sum(row.short for row in rows)} of {SHORT_RUNS * len(rows)}; long ones: "
        f"{sum(row.long for row in rows)} of {LONG_RUNS * len(rows)}; below brute force: "
        f"{min(known):.1%} to {max(known):.1%}, {sum(below > 0.05 for below in known)} of {len(known)} more than 5%."
    )


TABLES: Mapping[str, Callable[[int], None]] = {"capacities": _capacities}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=[])
    parser.add_argument("--cases", type=int, default=30)
    asked: Any = parser.parse_args()
    for name in asked.tables or TABLES:
        TABLES[name](asked.cases)


if __name__ == "__main__":
    main()
