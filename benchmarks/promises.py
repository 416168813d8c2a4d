"""Does what `simserve capacity` promises hold? Fresh seeds, runs ten times as long, and the capacity by brute force.

    python benchmarks/promises.py            the table of docs/promises.md, some minutes of CPU
    python benchmarks/promises.py --cases 3  the first three rows

Every check is a `run` of its own with a seed that the search has not seen: it draws its own traffic and finds for
itself what the deployment finishes.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import simserve as ss

SHORT_RUNS = 20
"""Runs of the trial's own length at the rate that is promised."""
LONG_RUNS = 5
"""Runs ten times as long."""
LONGEST = 1_000_000
BRUTE_REQUESTS = 300_000
BRUTE_SEEDS = (9001, 9002)
BISECTIONS = 6
"""From 8 % below to 12 % above what is promised: the brute-force capacity is known to 0.3 %."""
FIRST_SEED = 5001

CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("chatbot", ()),
    ("chatbot", ("workload.num_requests=500", "deployment.replicas=8")),
    ("chatbot", ("workload.num_requests=20000", 'slo={ttft: "600 ms", attainment: 0.95}')),
    ("chatbot", ('slo={e2e: "60 s", attainment: 0.9}', "workload.arrivals={process: poisson, rate: 0.5}")),
    ("chatbot", ("deployment.hardware=a100-sxm-80gb", "deployment.tensor_parallel_size=8")),
    ("chatbot", ('slo={ttft: "2 s", tpot: "80 ms", attainment: 0.99}', "deployment.hardware=h200-sxm-141gb")),
    ("chatbot", ("workload.arrivals={process: gamma, rate: 5, cv: 2}",)),
    ("chatbot", ("model=llama-3.1-8b", "deployment.tensor_parallel_size=1", "workload.num_requests=1000")),
    ("chatbot", ("model=qwen3-32b", "deployment.tensor_parallel_size=2", 'slo={tpot: "40 ms", attainment: 0.95}')),
    ("first-token-in-100-ms", ()),
    ("code-completion", ()),
    ("disaggregation", ()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case: what was promised, and what brute force says.

    Attributes:
        name: Of the scenario, with its changes.
        promised: Requests/s.
        low: Of the interval.
        high: Likewise.
        brute: The capacity by brute force, requests/s.
        requests: Of one trial.
        short: Fresh runs of that length that hold.
        long: Fresh runs ten times as long that hold, and how many there were.
    """

    name: str
    promised: float
    low: float
    high: float
    brute: float
    requests: int
    short: int
    long: tuple[int, int]

    @property
    def below(self) -> float:
        """Share by which the promise lies below brute force."""
        return 1 - self.promised / self.brute

    @property
    def is_covered(self) -> bool:
        """Whether the interval covers brute force."""
        return self.low <= self.brute <= self.high


def examine(name: str, overrides: tuple[str, ...]) -> Row:
    """Return what is promised of a case, and what fresh runs make of it."""
    answer = ss.capacity(ss.load(name, list(overrides))).summary
    promised, requests, interval = answer["max_rate"], answer["requests"]["per_run"], answer["confidence_interval"]
    asked = answer["asked"]
    seeds = range(FIRST_SEED, FIRST_SEED + SHORT_RUNS)
    short = sum(_holds(name, overrides, promised, requests, seed, asked) for seed in seeds)
    long_requests = min(10 * requests, LONGEST)
    long = sum(_holds(name, overrides, promised, long_requests, seed, asked) for seed in list(seeds)[:LONG_RUNS])
    return Row(
        name=" ".join([name, *overrides]),
        promised=promised,
        low=interval["low"],
        high=interval["high"],
        brute=_brute_force(name, overrides, promised, asked),
        requests=requests,
        short=short,
        long=(long, LONG_RUNS),
    )


def _brute_force(name: str, overrides: tuple[str, ...], promised: float, asked: float) -> float:
    low, high = 0.92 * promised, 1.12 * promised
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        runs = [_run(name, overrides, middle, BRUTE_REQUESTS, seed) for seed in BRUTE_SEEDS]
        attained = sum(attainment for attainment, _ in runs) / len(runs)
        is_overloaded = all(stability == "overloaded" for _, stability in runs)
        low, high = (low, middle) if attained < asked or is_overloaded else (middle, high)
    return (low + high) / 2


def _holds(name: str, overrides: tuple[str, ...], rate: float, requests: int, seed: int, asked: float) -> bool:
    attainment, stability = _run(name, overrides, rate, requests, seed)
    return stability != "overloaded" and attainment >= asked


def _run(name: str, overrides: tuple[str, ...], rate: float, requests: int, seed: int) -> tuple[float, str]:
    changes = [f"workload.arrivals.rate={rate!r}", f"workload.num_requests={requests}", f"run.seed={seed}"]
    inner = ss.run(ss.load(name, [*overrides, *changes])).summary["simserve"]
    return inner["slo"]["attainment"] or 0.0, inner["stability"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=len(CASES))
    rows = []
    print(
        "| scenario | promised /s | interval | brute force /s | below it | requests a run | hold | ten times as long |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, overrides in CASES[: parser.parse_args().cases]:
        row = examine(name, overrides)
        rows.append(row)
        print(
            f"| {row.name} | {row.promised:.3g} | {row.low:.3g} to {row.high:.3g} | {row.brute:.3g} | {row.below:.1%} "
            f"| {row.requests:,} | {row.short} of {SHORT_RUNS} | {row.long[0]} of {row.long[1]} |",
            flush=True,
        )
    short, long = sum(row.short for row in rows), sum(row.long[0] for row in rows)
    covered = sum(row.is_covered for row in rows)
    print(
        f"\nFresh runs that hold: {short} of {SHORT_RUNS * len(rows)}; ten times as long: {long} of "
        f"{LONG_RUNS * len(rows)}; intervals that cover: {covered} of {len(rows)}; "
        f"farthest below: {max(row.below for row in rows):.1%}.",
        file=sys.stdout,
    )


if __name__ == "__main__":
    main()
