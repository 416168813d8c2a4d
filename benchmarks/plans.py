"""Is what `simserve plan` picks the cheapest that holds? Small problems whose whole space is searched by brute force.

    python -m benchmarks.plans               the table of docs/plan-proof.md, some minutes of CPU
    python -m benchmarks.plans --only chat   the problems whose name begins so
    python -m benchmarks.plans --part 1/2    every second one, from the first on

Run it from the root of the repository. The brute force knows nothing of the planner: it writes out every deployment
and every number of replicas, in the order of their price, and runs them with traffic of its own. The first fleet that
holds in ten long runs of fresh seeds is the cheapest.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from simserve.errors import InputError
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario

LONG_REQUESTS = 20_000
"""Requests of a long run of steady traffic; of a day, a burst or a trace it is the scenario's own length."""
LONG_RUNS = 10
FIRST_SEED = 7001
LOOK_REQUESTS = 1500
LOOK_SEED = 6001
HOPELESS = 0.1
"""So far below the attainment asked for in a short run, no long run is tried."""
NEAR_KNEE = 0.02
"""Share of the traffic within which a fleet is too near its knee to be told from one that holds."""
TOLERANCE = 0.02
"""Share by which a plan may be dearer than the cheapest fleet."""
TENSOR = "deployment.tensor_parallel_size"
STAGES = "deployment.pipeline_parallel_size"
EXPERTS = "deployment.enable_expert_parallel"
WEIGHTS = "deployment.quantization"
CACHE = "deployment.kv_cache_dtype"
SEATS = "deployment.engine.max_num_seqs"
BUDGET = "deployment.engine.max_num_batched_tokens"
CHUNKED = "deployment.engine.enable_chunked_prefill"
DRAFTS = "deployment.speculative"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A scenario and the deployments among which the cheapest is asked for.

    Attributes:
        name: In words.
        scenario: The file, as a mapping.
        over: Dotted key -> values.
        hardware: GPUs.
        max_gpus: Of a fleet.
        pools: Most prefill and decode replicas, where they may be apart.
        scaling: Ways to scale a fleet: metric, target, and the most over the fewest replicas.
    """

    name: str
    scenario: Mapping[str, Any]
    over: Mapping[str, Sequence[Any]]
    hardware: tuple[str, ...]
    max_gpus: int = 8
    pools: int = 0
    scaling: tuple[tuple[str, float, int], ...] = ()

    @cached_property
    def loaded(self) -> Scenario:
        """The scenario."""
        return from_mapping(self.scenario)

    def options(self, **changes: Any) -> PlanOptions:
        """Return the same space as the planner is asked for it."""
        asked = {"hardware": self.hardware, "max_gpus": self.max_gpus, "choices": self.over, **changes}
        return PlanOptions(**asked)


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """One deployment with its number of replicas.

    Attributes:
        problem: Whose.
        changes: Dotted key -> value, replicas included.
        usd_per_hour: Price of its GPUs; of a scaled fleet, of the fewest.
    """

    problem: Problem
    changes: Mapping[str, Any] = field(default_factory=dict)
    usd_per_hour: float = 0.0

    def holds(self, *, factor: float = 1.0) -> tuple[bool, float]:
        """Return whether ten long runs of fresh seeds hold, at a multiple of the traffic, and dollars an hour."""
        if not self._is_promising(factor):
            return False, 0.0
        paid = []
        for seed in range(FIRST_SEED, FIRST_SEED + LONG_RUNS):
            is_held, usd = _run(self, seed, LONG_REQUESTS, factor)
            if not is_held:
                return False, 0.0
            paid.append(usd)
        return True, sum(paid) / len(paid)

    def _is_promising(self, factor: float) -> bool:
        if _own_length(self.problem.loaded):
            return True
        inner = _summary(self, LOOK_SEED, LOOK_REQUESTS, factor)
        reached = inner["slo"]["attainment"]
        return reached is not None and reached >= _asked(self.problem.loaded) - HOPELESS


@dataclass(frozen=True, kw_only=True)
class Row:
    """What brute force and the planner say of a problem; dollars an hour, None where nothing holds.

    Attributes:
        problem: Which.
        fleets: Fleets that there are.
        tried: Fleets that were run.
        cheapest: The cheapest fleet that holds.
        cheapest_usd: What it costs.
        is_near: Whether that fleet no longer holds with 2 % more traffic.
        picked: What the planner says.
        picked_usd: What that costs.
        picked_holds: Whether the plan holds in the ten long runs, at its traffic and at 2 % less.
        seconds: CPU seconds of brute force and of the planner.
    """

    problem: Problem
    fleets: int
    tried: int
    cheapest: Fleet | None
    cheapest_usd: float | None
    is_near: bool
    picked: str | None
    picked_usd: float | None
    picked_holds: tuple[bool, bool]
    seconds: tuple[float, float]

    @property
    def ratio(self) -> float | None:
        """What is paid over what would do."""
        if self.picked_usd is None or self.cheapest_usd is None:
            return None
        return self.picked_usd / self.cheapest_usd

    @property
    def verdict(self) -> str:
        """``optimal``, ``near the knee`` (either fleet is within 2 % of it), ``too dear`` or ``does not hold``."""
        if self.cheapest_usd is None and self.picked_usd is None:
            return "nothing holds"
        if self.picked_usd is not None and not self.picked_holds[0]:
            return "near the knee" if self.picked_holds[1] else "does not hold"
        if self.ratio is not None and self.ratio <= 1 + TOLERANCE:
            return "optimal"
        return "near the knee" if self.is_near else "too dear"


def fleets_of(problem: Problem) -> list[Fleet]:
    """Return every fleet of a problem that the engine accepts and that fits, the cheapest first."""
    found = []
    for hardware, *values in itertools.product(problem.hardware, *problem.over.values()):
        changes = {"deployment.hardware": hardware, **dict(zip(problem.over, values, strict=True))}
        try:
            resolved = resolve(from_mapping(problem.scenario, changes))
        except InputError:
            continue
        if not resolved.memory.fits or resolved.memory.shortage_bytes:
            continue
        gpus, price = resolved.shape.num_gpus, resolved.gpu_hour_usd
        assert price is not None
        for number, smallest, added in _sizes(problem, gpus):
            usd = smallest * gpus * price
            found.append(
                (usd, number * gpus, len(found), Fleet(problem=problem, changes=changes | added, usd_per_hour=usd))
            )
    return [fleet for *_, fleet in sorted(found, key=lambda each: each[:3])]


def _sizes(problem: Problem, gpus: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the most and the fewest replicas of every fleet with so many GPUs a replica, and what makes it."""
    most = problem.max_gpus // gpus
    for replicas in range(1, most + 1):
        yield replicas, replicas, {"deployment.replicas": replicas}
        for metric, target, parts in problem.scaling:
            fewest = max(1, replicas // parts)
            scaled = {"metric": metric, "target": target, "min_replicas": fewest, "max_replicas": replicas}
            yield replicas, fewest, {"deployment.replicas": fewest, "deployment.autoscaling": scaled}
    for prefill, decode in itertools.product(range(1, problem.pools + 1), repeat=2):
        if prefill + decode <= most:
            pools = [
                {"name": "prefill", "role": "prefill", "replicas": prefill},
                {"name": "decode", "role": "decode", "replicas": decode},
            ]
            changes = {"deployment.pools": pools, "deployment.disaggregation": {}, "deployment.replicas": 1}
            yield prefill + decode, prefill + decode, changes


def cheapest_of(fleets: Sequence[Fleet]) -> tuple[Fleet | None, float | None, int]:
    """Return the cheapest fleet that holds, what it costs, and how many fleets were run to find it."""
    best, best_usd, tried = None, None, 0
    for fleet in fleets:
        if best_usd is not None and fleet.usd_per_hour >= best_usd:
            break
        tried += 1
        is_held, usd = fleet.holds()
        if is_held and (best_usd is None or usd < best_usd):
            best, best_usd = fleet, usd
    return best, best_usd, tried


def examine(problem: Problem, **options: Any) -> Row:
    """Return what brute force and the planner say of a problem."""
    began = time.process_time()
    fleets = fleets_of(problem)
    cheapest, cheapest_usd, tried = cheapest_of(fleets)
    searched = time.process_time()
    best = plan(problem.loaded, problem.options(**options)).summary["best"]
    ended = time.process_time()
    picked = None if best is None else Fleet(problem=problem, changes=best["overrides"])
    held, usd = (False, 0.0) if picked is None else picked.holds()
    is_dearer = held and cheapest_usd is not None and usd > (1 + TOLERANCE) * cheapest_usd
    return Row(
        problem=problem,
        fleets=len(fleets),
        tried=tried,
        cheapest=cheapest,
        cheapest_usd=cheapest_usd,
        is_near=(is_dearer or picked is None) and cheapest is not None and not cheapest.holds(factor=1 + NEAR_KNEE)[0],
        picked=None if best is None else best["label"],
        picked_usd=None if best is None else (usd if held else best["usd_per_hour"]),
        picked_holds=(held, held or (picked is not None and picked.holds(factor=1 - NEAR_KNEE)[0])),
        seconds=(searched - began, ended - searched),
    )


def _run(fleet: Fleet, seed: int, requests: int, factor: float) -> tuple[bool, float]:
    inner = _summary(fleet, seed, requests, factor)
    scenario, reached = fleet.problem.loaded, inner["slo"]["attainment"]
    is_held = reached is not None and reached >= _asked(scenario) and inner["stability"] != "overloaded"
    for each in scenario.workload.classes or ():
        own = inner["classes"][each.name]["slo"]["attainment"]
        if each.slo is not None and own is not None and own < each.slo.attainment:
            is_held = False
    return is_held, float(inner["cost"]["usd_per_hour"])


def _summary(fleet: Fleet, seed: int, requests: int, factor: float) -> Mapping[str, Any]:
    scenario = fleet.problem.loaded
    changes: dict[str, Any] = {**fleet.changes, "run.seed": seed}
    rate = getattr(scenario.workload.arrivals, "rate", None)
    if rate is not None:
        changes["workload.arrivals.rate"] = factor * rate
    if not _own_length(scenario):
        changes["workload.num_requests"] = requests
    return dict(run(from_mapping(fleet.problem.scenario, changes), explain=False).summary["simserve"])


def _own_length(scenario: Scenario) -> bool:
    return scenario.workload.arrivals is None or scenario.workload.arrivals.process not in (
        "poisson",
        "gamma",
        "constant",
    )


def _asked(scenario: Scenario) -> float:
    slo = scenario.slo
    return 0.0 if slo is None else slo.attainment


def _scenario(
    model: str,
    rate: float,
    lengths: tuple[int, int],
    slo: Mapping[str, Any],
    *,
    arrivals: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    **workload: Any,
) -> dict[str, Any]:
    prompt, output = lengths
    spread = {"distribution": "lognormal", "cv": 0.8}
    return {
        "name": "problem",
        "model": model,
        "deployment": {
            "hardware": "l4-24gb",
            "engine": {"name": "vllm", "version": "0.12", "max_model_len": 16384, **(engine or {})},
        },
        "workload": {
            "arrivals": {"process": "poisson", "rate": rate, **(arrivals or {})},
            "prompt_tokens": {**spread, "mean": prompt, "max": min(6 * prompt, 12000)},
            "output_tokens": {**spread, "mean": output, "max": min(6 * output, 3000)},
            "num_requests": 3000,
            **workload,
        },
        "slo": {"attainment": 0.95, **slo},
    }


_CHAT = {"ttft": "1 s", "tpot": "50 ms"}
_SHAPES = {TENSOR: [1, 2], STAGES: [1], WEIGHTS: ["none", "fp8"], CACHE: ["auto"]}
_PLAIN = {BUDGET: [8192], CHUNKED: [True], DRAFTS: [None]}
_SEATED = {**_SHAPES, SEATS: [64, 256], **_PLAIN}
_KNOBS = {**_SHAPES, SEATS: [16, 64, 256, 1024], BUDGET: [1024, 2048, 8192], CHUNKED: [True, False], DRAFTS: [None]}
"""4 x 48 combinations of a GPU."""
_WIDE = {**_KNOBS, TENSOR: [1, 2, 4], CACHE: ["auto", "fp8"]}
"""12 x 24 combinations: more than are looked at one by one."""
_SMALL_GPUS = ("l4-24gb", "a10-24gb", "l40s-48gb")
_LARGE_GPUS = ("h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb")
_FEW_SEATS = {"max_num_seqs": 8}
_SMALL_STEPS = {"max_num_batched_tokens": 1024, "max_num_seqs": 64}

PROBLEMS: tuple[Problem, ...] = (
    Problem(
        name="chat of an 8B model",
        scenario=_scenario("llama-3.1-8b", 4.0, (500, 150), _CHAT),
        over=_SEATED,
        hardware=_SMALL_GPUS,
    ),
    Problem(
        name="chat, 8 seats in the scenario",
        scenario=_scenario("llama-3.1-8b", 4.0, (500, 150), _CHAT, engine=_FEW_SEATS),
        over=_WIDE,
        hardware=_SMALL_GPUS,
    ),
    Problem(
        name="chat, steps of 1,024 tokens in the scenario",
        scenario=_scenario("qwen3-8b", 6.0, (1500, 120), _CHAT, engine=_SMALL_STEPS),
        over=_WIDE,
        hardware=_SMALL_GPUS,
    ),
    Problem(
        name="chat of a 32B model",
        scenario=_scenario("qwen3-32b", 6.0, (800, 200), _CHAT),
        over=_SEATED,
        hardware=_LARGE_GPUS,
    ),
    Problem(
        name="chat of a 70B model, bursty",
        scenario=_scenario("llama-3.1-70b", 3.0, (800, 200), _CHAT, arrivals={"process": "gamma", "cv": 2.0}),
        over={**_SEATED, TENSOR: [1, 2, 4]},
        hardware=_LARGE_GPUS,
        max_gpus=16,
    ),
    Problem(
        name="first tokens alone",
        scenario=_scenario("llama-3.1-8b", 20.0, (1000, 100), {"ttft": "300 ms"}),
        over=_WIDE,
        hardware=("l40s-48gb", "a100-sxm-80gb"),
    ),
    Problem(
        name="a tight TPOT",
        scenario=_scenario("llama-3.1-8b", 8.0, (600, 250), {"tpot": "12 ms"}),
        over=_WIDE,
        hardware=("l40s-48gb", "h100-sxm-80gb"),
    ),
    Problem(
        name="E2E alone, 99 %",
        scenario=_scenario("mistral-7b", 5.0, (400, 200), {"e2e": "12 s", "attainment": 0.99}),
        over=_SEATED,
        hardware=_SMALL_GPUS,
    ),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="1/1")
    asked = parser.parse_args()
    part, parts = map(int, asked.part.split("/"))
    chosen = [each for each in PROBLEMS if each.name.startswith(asked.only)][part - 1 :: parts]
    print("| problem | fleets | cheapest that holds | $/h | the plan | $/h | verdict | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    verdicts = []
    for problem in chosen:
        row = examine(problem)
        verdicts.append(row.verdict)
        print(_line(row), flush=True)
    print("\n" + ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts))))


def _line(row: Row) -> str:
    dollars = ["-" if each is None else f"{each:.2f}" for each in (row.cheapest_usd, row.picked_usd)]
    cheapest = "nothing" if row.cheapest is None else _label(row.cheapest)
    brute, planner = row.seconds
    return (
        f"| {row.problem.name} | {row.fleets:,} ({row.tried:,} run) | {cheapest} | {dollars[0]} "
        f"| {row.picked or 'nothing'} | {dollars[1]} | {row.verdict} | {brute:.0f} + {planner:.0f} |"
    )


def _label(fleet: Fleet) -> str:
    there = from_mapping(fleet.problem.scenario, fleet.changes).deployment
    engine = there.engine
    words = [
        "" if there.pools else f"{there.num_gpus} x {there.hardware}",
        " + ".join(f"{each.replicas} {each.name} of {there.hardware}" for each in there.pools),
        f"TP {there.tensor_parallel_size}" if there.tensor_parallel_size > 1 else "",
        f"PP {there.pipeline_parallel_size}" if there.pipeline_parallel_size > 1 else "",
        there.quantization.replace("none", "16-bit"),
        "" if there.kv_cache_dtype == "auto" else f"KV {there.kv_cache_dtype}",
        f"{engine.max_num_seqs} seats" if engine.max_num_seqs else "",
        f"{engine.max_num_batched_tokens} tokens a step" if engine.max_num_batched_tokens else "",
        "whole prompts" if engine.enable_chunked_prefill is False else "",
        ""
        if there.autoscaling is None
        else f"scaled on {there.autoscaling.metric} up to {there.autoscaling.max_replicas}",
    ]
    return ", ".join(word for word in words if word)


if __name__ == "__main__":
    main()
