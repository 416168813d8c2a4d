"""Is what `simserve plan` picks the cheapest that holds? Small problems whose whole space is searched by brute force.

    python -m benchmarks.plans               the table of docs/plan-proof.md, some minutes of CPU
    python -m benchmarks.plans --only chat   the problems whose name begins so
    python -m benchmarks.plans --part 1/2    every second one, from the first on
    python -m benchmarks.plans --seeds 5     whether five seeds of the search pick the same fleet, without brute force
    python -m benchmarks.plans --seeds 5 --own-seeds   and whether five seeds of the scenario do

Run it from the root of the repository. The brute force knows nothing of the planner: it writes out every deployment
and every number of replicas, in the order of their price, and runs them with traffic of its own. The first fleet that
holds in ten long runs of fresh seeds is the cheapest.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from simserve.errors import InputError
from simserve.planner.overrides import with_seed
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario

LONG_REQUESTS = 15_000
"""Requests of a long run of steady traffic; of a day, a burst or a trace it is the scenario's own length."""
LONG_RUNS = 10
FIRST_SEED = 7001
LOOK_REQUESTS = 800
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


@dataclass(frozen=True, kw_only=True)
class Pick:
    """What the planner says of a problem under one seed.

    Attributes:
        label: The fleet, in words; None: nothing holds.
        changes: Dotted key -> value, replicas included.
        usd_per_hour: Of the fleet; of a scaled one, what the run paid.
    """

    label: str | None
    changes: Mapping[str, Any]
    usd_per_hour: float | None


def picks_of(problem: Problem, seeds: Sequence[int], *, are_own: bool = False, **options: Any) -> list[Pick]:
    """Return what the planner picks under each seed.

    Args:
        problem: What is planned.
        seeds: Of the runs that decide in the search, which a user cannot choose.
        are_own: Whether they are the scenario's, which draw the runs that confirm the pick.
        options: Of the plan.
    """
    picks = []
    for seed in seeds:
        if are_own:
            found = plan(with_seed(problem.loaded, seed), problem.options(**options))
        else:
            found = plan(problem.loaded, problem.options(**options), search_seed=seed)
        best = found.summary["best"]
        if best is None:
            picks.append(Pick(label=None, changes={}, usd_per_hour=None))
        else:
            picks.append(Pick(label=best["label"], changes=best["overrides"], usd_per_hour=best["usd_per_hour"]))
    return picks


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
_SHAPES: Mapping[str, Sequence[Any]] = {TENSOR: [1, 2], STAGES: [1], WEIGHTS: ["none", "fp8"], CACHE: ["auto"]}
_PLAIN = {SEATS: [256], BUDGET: [8192], CHUNKED: [True], DRAFTS: [None]}
_FEW = {**_SHAPES, **_PLAIN}
"""4 deployments of a GPU."""
_SEATED = {**_FEW, SEATS: [64, 256], BUDGET: [2048, 8192]}
"""16, engine knobs among them."""
_WIDE = {
    **_SHAPES,
    STAGES: [1, 2],
    CACHE: ["auto", "fp8"],
    SEATS: [16, 64, 256],
    BUDGET: [1024, 2048, 8192],
    CHUNKED: [True, False],
    DRAFTS: [None],
}
"""288: more than are looked at one by one."""
_SMALL_GPUS = ("l4-24gb", "a10-24gb", "l40s-48gb")
_LARGE_GPUS = ("h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb")
_SCALINGS = (("queue_depth", 2.0, 4), ("queue_depth", 2.0, 2), ("kv_usage", 0.5, 4), ("kv_usage", 0.5, 2))
_DAY = {"process": "daily", "peak_to_mean": 1.8, "day": "40 min"}
_CLASSES = [
    {"name": "chat", "share": 0.7, "slo": {"ttft": "500 ms", "tpot": "50 ms", "attainment": 0.95}},
    {"name": "batch", "share": 0.3, "slo": {"e2e": "60 s", "attainment": 0.9}},
]


def _problem(
    name: str, scenario: Mapping[str, Any], over: Mapping[str, Sequence[Any]], *hardware: str, **more: Any
) -> Problem:
    return Problem(name=name, scenario=scenario, over=over, hardware=hardware, **more)


PROBLEMS: tuple[Problem, ...] = (
    _problem("chat, 8B", _scenario("llama-3.1-8b", 4.0, (500, 150), _CHAT), _SEATED, *_SMALL_GPUS),
    _problem("chat, 8B, 15 requests/s", _scenario("llama-3.1-8b", 15.0, (500, 150), _CHAT), _FEW, *_SMALL_GPUS),
    _problem("chat, 8B, half a request/s", _scenario("llama-3.1-8b", 0.5, (500, 150), _CHAT), _SEATED, *_SMALL_GPUS),
    _problem(
        "8 seats in the file",
        _scenario("llama-3.1-8b", 4.0, (500, 150), _CHAT, engine={"max_num_seqs": 8}),
        _WIDE,
        "l4-24gb",
        "l40s-48gb",
        max_gpus=4,
    ),
    _problem(
        "steps of 512 tokens in the file",
        _scenario("qwen3-8b", 3.0, (1500, 120), _CHAT, engine={"max_num_batched_tokens": 512}),
        _WIDE,
        "l4-24gb",
        "l40s-48gb",
        max_gpus=4,
    ),
    _problem(
        "whole prompts in the file",
        _scenario("mistral-7b", 4.0, (1200, 200), {"tpot": "30 ms"}, engine={"enable_chunked_prefill": False}),
        _WIDE,
        "l40s-48gb",
        max_gpus=4,
    ),
    _problem(
        "first tokens alone", _scenario("llama-3.1-8b", 20.0, (1000, 100), {"ttft": "300 ms"}), _SEATED, *_LARGE_GPUS
    ),
    _problem("tight TPOT", _scenario("llama-3.1-8b", 8.0, (600, 250), {"tpot": "12 ms"}), _SEATED, *_LARGE_GPUS),
    _problem(
        "tight TPOT, 4 GPUs",
        _scenario("llama-3.1-8b", 3.0, (600, 250), {"tpot": "9 ms"}),
        {**_FEW, TENSOR: [1, 2, 4]},
        *_LARGE_GPUS,
    ),
    _problem(
        "E2E, 99 %",
        _scenario("mistral-7b", 5.0, (400, 200), {"e2e": "12 s", "attainment": 0.99}),
        _SEATED,
        *_SMALL_GPUS,
    ),
    _problem(
        "E2E, half of them",
        _scenario("mistral-7b", 5.0, (400, 200), {"e2e": "6 s", "attainment": 0.5}),
        _FEW,
        *_SMALL_GPUS,
    ),
    _problem("chat, 32B", _scenario("qwen3-32b", 6.0, (800, 200), _CHAT), _SEATED, *_LARGE_GPUS),
    _problem(
        "chat, 32B, in two stages",
        _scenario("qwen3-32b", 3.15, (800, 200), _CHAT),
        {**_FEW, STAGES: [1, 2]},
        "l40s-48gb",
        "a100-sxm-80gb",
    ),
    _problem(
        "chat, 70B, bursty",
        _scenario("llama-3.1-70b", 3.0, (800, 200), _CHAT, arrivals={"process": "gamma", "cv": 2.0}),
        {**_FEW, TENSOR: [1, 2, 4]},
        *_LARGE_GPUS,
        max_gpus=16,
    ),
    _problem(
        "chat, 70B, INT8 and INT4",
        _scenario("llama-3.1-70b", 2.0, (800, 200), _CHAT),
        {**_FEW, TENSOR: [2, 4], WEIGHTS: ["none", "int8", "awq-int4"]},
        "a100-sxm-80gb",
        "l40s-48gb",
        max_gpus=16,
    ),
    _problem(
        "8B on Ampere and Ada, INT8",
        _scenario("llama-3.1-8b", 8.0, (1200, 100), _CHAT),
        {**_FEW, WEIGHTS: ["none", "fp8", "int8", "awq-int4"]},
        *_SMALL_GPUS,
    ),
    _problem(
        "experts, whole or split",
        _scenario("qwen3-30b-a3b", 10.0, (800, 200), _CHAT),
        {**_FEW, EXPERTS: [False, True]},
        *_LARGE_GPUS,
    ),
    _problem(
        "experts, small, tight TTFT",
        _scenario("gpt-oss-20b", 12.0, (1000, 200), {"ttft": "400 ms"}),
        {**_FEW, WEIGHTS: ["mxfp4"]},
        "l40s-48gb",
        *_LARGE_GPUS,
    ),
    _problem(
        "long prompts",
        _scenario("llama-3.1-8b", 3.0, (4000, 150), {"ttft": "2 s", "tpot": "40 ms"}),
        _SEATED,
        "l40s-48gb",
        *_LARGE_GPUS,
    ),
    _problem("long answers", _scenario("qwen3-8b", 3.0, (200, 500), {"tpot": "40 ms"}), _SEATED, *_SMALL_GPUS),
    _problem(
        "steady arrivals",
        _scenario("qwen3-14b", 5.0, (500, 150), _CHAT, arrivals={"process": "constant"}),
        _FEW,
        "l40s-48gb",
        *_LARGE_GPUS,
    ),
    _problem(
        "bursts, 8B",
        _scenario("llama-3.1-8b", 4.0, (500, 150), {"ttft": "2 s"}, arrivals={"process": "gamma", "cv": 3.0}),
        _SEATED,
        *_SMALL_GPUS,
    ),
    _problem(
        "two classes", _scenario("llama-3.1-8b", 6.0, (500, 150), {"ttft": "2 s"}, classes=_CLASSES), _FEW, *_SMALL_GPUS
    ),
    _problem(
        "two classes, few seats",
        _scenario("llama-3.1-8b", 10.0, (500, 150), {"ttft": "2 s"}, classes=_CLASSES),
        {**_FEW, SEATS: [16, 64, 256]},
        "l40s-48gb",
        "a100-sxm-80gb",
    ),
    _problem(
        "prefill and decode apart",
        _scenario("llama-3.1-8b", 6.0, (4000, 200), {"ttft": "3 s", "tpot": "14 ms"}),
        _FEW,
        "h100-sxm-80gb",
        max_gpus=6,
        pools=4,
    ),
    _problem(
        "prefill and decode apart, 32B",
        _scenario("qwen3-32b", 2.0, (4000, 200), {"ttft": "4 s", "tpot": "25 ms"}),
        _FEW,
        "h100-sxm-80gb",
        max_gpus=8,
        pools=4,
    ),
    _problem(
        "a day, scaled",
        _scenario("llama-3.1-8b", 6.0, (500, 150), {"ttft": "2 s"}, arrivals=_DAY, num_requests=14400),
        {**_FEW, TENSOR: [1]},
        "l40s-48gb",
        max_gpus=6,
        scaling=_SCALINGS,
    ),
    _problem(
        "a day, scaled, small GPUs",
        _scenario("llama-3.1-8b", 3.0, (500, 150), {"ttft": "2 s"}, arrivals=_DAY, num_requests=7200),
        {**_FEW, TENSOR: [1]},
        "l4-24gb",
        max_gpus=8,
        scaling=_SCALINGS,
    ),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--own-seeds", action="store_true")
    asked = parser.parse_args()
    part, parts = map(int, asked.part.split("/"))
    chosen = [each for each in PROBLEMS if each.name.startswith(asked.only)][part - 1 :: parts]
    if asked.seeds:
        _print_picks(chosen, range(1, asked.seeds + 1), are_own=asked.own_seeds)
        return
    print("| problem | fleets | cheapest that holds | $/h | the plan | $/h | verdict | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    verdicts = []
    for problem in chosen:
        row = examine(problem)
        verdicts.append(row.verdict)
        print(_line(row), flush=True)
    print("\n" + ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts))))


def _print_picks(problems: Sequence[Problem], seeds: Sequence[int], *, are_own: bool) -> None:
    print("| problem | what the seeds pick ($/h, seeds) | fleets | prices | CPU s |")
    print("|---|---|---|---|---|")
    for problem in problems:
        began = time.process_time()
        picks = picks_of(problem, seeds, are_own=are_own)
        seconds = time.process_time() - began
        dollars = {pick.label: pick.usd_per_hour for pick in picks}
        counts = Counter(pick.label for pick in picks)
        words = "; ".join(
            f"{label or 'nothing'} ({'-' if dollars[label] is None else f'{dollars[label]:.2f}'}, {count})"
            for label, count in counts.most_common()
        )
        fleets = len({repr(sorted(pick.changes.items())) for pick in picks})
        prices = len({pick.usd_per_hour for pick in picks})
        print(f"| {problem.name} | {words} | {fleets} | {prices} | {seconds:.0f} |", flush=True)


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
