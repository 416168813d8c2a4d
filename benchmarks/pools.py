"""Prefill and decode workers: what `simserve plan` picks, beside a brute-force search and AIConfigurator's answers.

    python -m benchmarks.pools                 every row, into benchmarks/pools.jsonl: some 10 minutes of CPU
    python -m benchmarks.pools --only llama    the problems whose name begins so
    python -m benchmarks.pools --page          writes docs/plan-pools.md from the rows

Run it from the root of the repository. The brute force knows nothing of the planner: it writes out every pair of worker
shapes with every pair of counts, and every number of equal replicas, that take fewer GPUs than the plan; of two fleets
of one pair of shapes, one of which has at least as many workers of each role, it runs the larger. Each is run with
traffic of its own: a short run, and ten long ones of fresh seeds where that is not far off.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.errors import InputError
from simserve.planner.capacity.answer import capacity
from simserve.planner.plan.explain import describe
from simserve.planner.plan.plan import PlanOptions, plan
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario

PAGE = Path("docs/plan-pools.md")
ROWS = Path("benchmarks/pools.jsonl")
ATTAINMENTS = (0.5, 0.95)
"""As means are judged, nearly; and as simserve's scenarios ask."""
PROMPT_TOKENS, OUTPUT_TOKENS = 4000, 1000
LONG_REQUESTS = 15_000
LONG_RUNS = 10
FIRST_SEED = 7001
LOOK_REQUESTS = 1500
LOOK_SEED = 6001
HOPELESS = 0.1
"""So far below the attainment asked for in a short run, no long run is tried."""
KEPT = ("weights", "kv-cache", "drafts")
"""What AIConfigurator's answers leave as it is."""
GPUS_PER_NODE, NVLINK_GB_PER_S = 8, 450
"""Of H100 and H200: over which caches may go where a fleet fits into one node."""
TENSOR_SIZES, STAGES, RANKS = (1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model on so many GPUs, and what AIConfigurator 0.12 answered.

    Attributes:
        name: In words.
        model: Profile.
        hardware: GPU.
        max_gpus: How many there are.
        slo: Limits.
        rate: Requests a second that the plan is asked for.
        quantization: Format of the weights.
        has_experts: Whether ranks may share experts.
        published: What its answer deploys: dotted keys below ``deployment``.
        claimed: Requests a second that it promises, judged by means.
        engine: Engine of its answer.
    """

    name: str
    model: str
    hardware: str
    max_gpus: int
    slo: Mapping[str, str]
    rate: float
    published: Mapping[str, Any]
    claimed: float
    engine: str
    quantization: str = "auto"
    has_experts: bool = False

    def scenario(self, attainment: float, **changes: Any) -> Scenario:
        """Return the scenario with so many requests in the SLO, and with dotted keys replaced."""
        return from_mapping(
            {
                "name": self.name,
                "model": self.model,
                "deployment": {"hardware": self.hardware, "quantization": self.quantization},
                "workload": {
                    "arrivals": {"process": "poisson", "rate": self.rate},
                    "prompt_tokens": PROMPT_TOKENS,
                    "output_tokens": OUTPUT_TOKENS,
                    "num_requests": 3000,
                },
                "slo": {**self.slo, "attainment": attainment},
            },
            changes,
        )


def _pools(prefill: Mapping[str, Any], decode: Mapping[str, Any]) -> dict[str, Any]:
    pools = [{"name": "prefill", "role": "prefill", **prefill}, {"name": "decode", "role": "decode", **decode}]
    return {"deployment.pools": pools, "deployment.disaggregation": {}}


_FAST, _SLOW = {"ttft": "1 s", "tpot": "20 ms"}, {"ttft": "2 s", "tpot": "40 ms"}
PROBLEMS = (
    Problem(
        name="llama-3.1-70b",
        model="llama-3.1-70b",
        hardware="h200-sxm-141gb",
        max_gpus=32,
        slo=_FAST,
        rate=16.0,
        quantization="fp8",
        published=_pools({"replicas": 12}, {"replicas": 5, "tensor_parallel_size": 4}),
        claimed=19.6,
        engine="TensorRT-LLM",
    ),
    Problem(
        name="qwen3-32b",
        model="qwen3-32b",
        hardware="h200-sxm-141gb",
        max_gpus=16,
        slo=_FAST,
        rate=12.0,
        quantization="fp8",
        published=_pools({"replicas": 6}, {"replicas": 5, "tensor_parallel_size": 2}),
        claimed=16.2,
        engine="TensorRT-LLM",
    ),
    Problem(
        name="deepseek-v3",
        model="deepseek-v3",
        hardware="h200-sxm-141gb",
        max_gpus=16,
        slo=_SLOW,
        rate=2.5,
        published={"deployment.data_parallel_size": 16, "deployment.enable_expert_parallel": True},
        claimed=6.2,
        engine="SGLang",
        has_experts=True,
    ),
    Problem(
        name="gpt-oss-120b",
        model="gpt-oss-120b",
        hardware="h100-sxm-80gb",
        max_gpus=8,
        slo=_FAST,
        rate=9.0,
        published={
            "deployment.data_parallel_size": 4,
            "deployment.enable_expert_parallel": True,
            "deployment.replicas": 2,
        },
        claimed=22.3,
        engine="vLLM",
        has_experts=True,
    ),
)


def sizes(problem: Problem) -> list[dict[str, Any]]:
    """Return the sizes of every worker that the model fits on, with its number of GPUs as ``gpus``."""
    found = []
    choices = (TENSOR_SIZES, STAGES, RANKS if problem.has_experts else (1,), (False, True)[: 1 + problem.has_experts])
    for tensor, stages, ranks, is_whole in itertools.product(*choices):
        size = {
            "tensor_parallel_size": tensor,
            "pipeline_parallel_size": stages,
            "data_parallel_size": ranks,
            "enable_expert_parallel": is_whole,
        }
        gpus = tensor * stages * ranks
        if gpus > problem.max_gpus or (ranks > 1 and not is_whole) or (is_whole and gpus == 1):
            continue
        try:
            resolved = resolve(problem.scenario(0.5, **{f"deployment.{key}": value for key, value in size.items()}))
        except InputError:
            continue
        if resolved.memory.fits and not resolved.memory.shortage_bytes:
            found.append({**size, "gpus": gpus})
    return found


def smaller_fleets(problem: Problem, fewer_than: int) -> Iterator[dict[str, Any]]:
    """Yield the fleets of fewer GPUs that no other of them contains."""
    workers, most = sizes(problem), fewer_than - 1
    for each in workers:
        if each["gpus"] <= most:
            own = {f"deployment.{key}": value for key, value in each.items() if key != "gpus"}
            yield {**own, "deployment.replicas": most // each["gpus"]}
    for one, other in itertools.product(workers, repeat=2):
        for count in range(1, (most - other["gpus"]) // one["gpus"] + 1):
            counts = count, (most - count * one["gpus"]) // other["gpus"]
            shapes = [{key: value for key, value in each.items() if key != "gpus"} for each in (one, other)]
            fleet = _pools(*({**shape, "replicas": number} for shape, number in zip(shapes, counts, strict=True)))
            gpus = [worker["gpus"] for worker in (one, other)]
            if sum(number * each for number, each in zip(counts, gpus, strict=True)) <= GPUS_PER_NODE:
                fleet["deployment.disaggregation"] = {"transfer_bandwidth": f"{min(gpus) * NVLINK_GB_PER_S} GB/s"}
            yield fleet


def holds(problem: Problem, attainment: float, changes: Mapping[str, Any]) -> bool:
    """Return whether a fleet keeps the SLO in ten long runs of fresh seeds."""
    if not _keeps(problem, attainment, changes, LOOK_SEED, LOOK_REQUESTS, HOPELESS):
        return False
    seeds = range(FIRST_SEED, FIRST_SEED + LONG_RUNS)
    return all(_keeps(problem, attainment, changes, seed, LONG_REQUESTS, 0.0) for seed in seeds)


def _keeps(
    problem: Problem, attainment: float, changes: Mapping[str, Any], seed: int, requests: int, tolerance: float
) -> bool:
    there = {**changes, "run.seed": seed, "workload.num_requests": requests}
    try:
        inner = run(problem.scenario(attainment, **there), explain=False).summary["simserve"]
    except InputError:
        return False
    reached = inner["slo"]["attainment"]
    is_kept_up = tolerance > 0 or inner["stability"] != "overloaded"
    return reached is not None and reached >= attainment - tolerance and is_kept_up


def examine(problem: Problem, attainment: float) -> dict[str, Any]:
    """Return a row: the plan at the rate, what brute force finds below it, and the published answer simulated."""
    options: dict[str, Any] = {"hardware": (problem.hardware,), "max_gpus": problem.max_gpus, "keep": KEPT}
    scenario = problem.scenario(attainment)
    began = time.process_time()
    best = plan(scenario, PlanOptions(objective="gpus", **options)).summary["best"]
    planned = time.process_time()
    most = plan(scenario, PlanOptions(objective="throughput", **options)).summary["best"]
    filled = time.process_time()
    gpus = problem.max_gpus + 1 if best is None else best["num_gpus"]
    tried, smaller = 0, None
    for changes in smaller_fleets(problem, gpus):
        tried += 1
        if holds(problem, attainment, changes):
            smaller = describe(problem.scenario(attainment, **changes))
            break
    searched = time.process_time()
    published = problem.scenario(attainment, **problem.published)
    return {
        "problem": problem.name,
        "attainment": attainment,
        "rate": problem.rate,
        "plan": None if best is None else best["label"],
        "gpus": None if best is None else gpus,
        "plan_holds": best is not None and holds(problem, attainment, best["overrides"]),
        "plan_seconds": planned - began,
        "most": None if most is None else most["label"],
        "most_rate": None if most is None else most["rate"],
        "most_seconds": filled - planned,
        "smaller": smaller,
        "tried": tried,
        "brute_seconds": searched - filled,
        "published": describe(published),
        "published_rate": capacity(published).summary["max_rate"],
        "claimed": problem.claimed,
        "engine": problem.engine,
        "max_gpus": problem.max_gpus,
    }


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of docs: what was asked, and both tables."""
    lines = [_HEAD]
    lines += [
        "| problem | share in the SLO | requests/s | the plan | GPUs | holds on ten fresh long seeds "
        "| fewer GPUs, brute force | CPU s, plan + brute force |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        smaller = row["smaller"] or f"none of {row['tried']:,} holds"
        lines.append(
            f"| {row['problem']} | {row['attainment']:.0%} | {row['rate']:g} | {row['plan'] or 'none'} "
            f"| {row['gpus'] or 'none'} | {'yes' if row['plan_holds'] else 'no'} | {smaller} "
            f"| {row['plan_seconds']:.0f} + {row['brute_seconds']:.0f} |"
        )
    lines += [
        _MIDDLE,
        "| problem | GPUs | share in the SLO | AIConfigurator's answer | it claims, requests/s | simserve simulates "
        "| `plan --objective throughput` | requests/s | CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        published = "never holds" if not row["published_rate"] else f"{row['published_rate']:.3g}"
        most = "none holds" if not row["most_rate"] else f"{row['most_rate']:.3g}"
        lines.append(
            f"| {row['problem']} | {row['max_gpus']} | {row['attainment']:.0%} | {row['published']} ({row['engine']}) "
            f"| {row['claimed']:g} | {published} | {row['most'] or 'none'} | {most} | {row['most_seconds']:.0f} |"
        )
    done = {(row["problem"], row["attainment"]) for row in rows}
    left = [
        f"{problem.name} at {share:.0%}"
        for problem, share in itertools.product(PROBLEMS, ATTAINMENTS)
        if (problem.name, share) not in done
    ]
    return "\n".join([*lines, _TAIL, *([_OPEN.format(names=", ".join(left)).lstrip()] if left else [])])


_HEAD = f"""# Prefill and decode workers that a plan picks

`simserve plan` sizes prefill and decode workers by role. Each role has its own kind of GPU, weight format, sizes (TP,
PP, and for mixtures of experts DP with whole experts), token budget or number of seats, and count. Equal replicas
compete in the same ranking. The answer says what each role can finish and what breaks first in it.

1. A bound gives the fewest workers of each shape that can do the work in time. It drops shapes on which even an idle
   worker is too slow (`simserve/planner/search/role_bound.py`).
2. Each role is simulated next to three times the workers that the other role needs, in that role's fastest shape. The
   counts that pass alone are listed by their cost. A count is given up if it misses alone by more than the possible
   error of a short run (5 percentage points). For each knob the setting that is best alone is taken, and settings far
   away are not tried: this is a heuristic.
3. Pairs are simulated together in the order of their cost. The first that holds, on fresh seeds and in runs of 20
   minutes, as every plan is [confirmed](promises.md), is the best. Pairs that cost as much compete with it on headroom.

Two workers can form a pair if one can read the other's KV caches: the same checkpoint, the same format, and GPUs on
which the engine lays a cache out alike (Hopper with Hopper; Ampere, Ada and Hopper without latent attention). vLLM
compares exactly that before the first transfer. So weight formats differ between roles only where the engine makes them
from one checkpoint while it loads. Kinds of GPU are not mixed where `pricing.gpu_hour_usd` gives one price for all of
them.

Caches cross the network ports of the workers' GPUs, at most 400 Gbit/s. If a pair misses over these ports and its first
tokens are late, it is tried over the link inside a node or NVLink domain that holds all of its workers. That link is
taken if it saves GPUs. The answer names the link. It also says what the next slower links do, the last of them TCP
(5 GB/s a GPU: `simserve/planner/space/links.py`): whether the SLO still holds, and what breaks if not. If the scenario
names the link in `deployment.disaggregation`, no other is tried. An RDMA network that is billed separately has its
price there (`usd_per_gpu_hour`, for each GPU of the workers), which counts in runs and plans. To compare two links, use
`--over 'deployment.disaggregation=LINK,LINK'`, with each link written as
`{{transfer_bandwidth: 50 GB/s, usd_per_gpu_hour: 0.4}}`. With `--objective throughput` the link is the network.

Fixed GPUs of two kinds (`--objective throughput --gpus 8xH100+8xH200`) are tried in three ways: each kind alone; all
prompts on one kind and all answers on the other; and the best equal replicas of each kind side by side. Side by side
means as pools that get as much of the traffic as each can sustain alone, and as one fleet. Workers of one role on both
kinds are not tried.

Separate workers are considered for prompts of 1,000 tokens on average and more, with a limit on TPOT, arrivals of their
own, and an engine that can transfer KV caches; or for a scenario that has `deployment.disaggregation` itself.

## Four problems

The problems have prompts of {PROMPT_TOKENS:,} tokens and answers of {OUTPUT_TOKENS:,}, Poisson arrivals, and the newest
vLLM of the catalogue, with weights, KV format and drafts as given. All rates are simulated; none is measured. TTFT must
be within 1 s and TPOT within 20 ms; for deepseek-v3, 2 s and 40 ms. `python -m benchmarks.pools` writes this page.

### The fewest GPUs at a rate

Brute force tries every pair of shapes with every pair of counts, and every number of equal replicas, on fewer GPUs than
the plan takes. Engine knobs stay as they are, and the link is NVLink where the workers fit into a node of eight GPUs.
Of the fleets of one pair of shapes, only those that no other fleet contains are run.
"""
_MIDDLE = """
### The most that the GPUs can do

AIConfigurator 0.12 answered these problems with the configurations and rates below (run 2026-11-22, `cli default`, best
tokens/s a GPU under limits on mean TTFT and TPOT, for the engine in brackets). "simserve simulates" is the highest rate
at which that same configuration holds here under vLLM, with each request judged by itself. A share of 50 % is roughly
equivalent to judging means. Where the two disagree, nothing here says which is right: only a real server can.

Engine knobs of the plan are its own, where `--trials` finds better ones: qwen3-32b at 50 % has 64 seats in each decode
worker. The load of another fleet is looked for only where that holds with 1 % more than the best so far. So
gpt-oss-120b gets 7 of its 8 GPUs: with a fourth prefill worker `simserve capacity` finds 17.5 requests/s for a share of
50 %, and 16.3 for 95 %.
"""
_TAIL = """
CPU seconds are those of one core of a shared machine with more processes than cores, with the compiled kernel.
"""
_OPEN = """
Not run yet: {names}.
"""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, in the order of the problems."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    order = {problem.name: place for place, problem in enumerate(PROBLEMS)}
    return sorted(rows, key=lambda row: (order[row["problem"]], row["attainment"]))


def main() -> None:
    """Append rows to a file, or write the page from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of rows, one JSON object a line")
    parser.add_argument("--only", default="", help="beginning of the names of the problems")
    parser.add_argument("--attainment", type=float, choices=ATTAINMENTS, help="one share alone")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE} from the rows")
    given = parser.parse_args()
    if given.page:
        PAGE.write_text(page(read_rows(given.rows)))
        return
    for problem, attainment in itertools.product(PROBLEMS, ATTAINMENTS):
        if problem.name.startswith(given.only) and given.attainment in (None, attainment):
            with given.rows.open("a") as rows_file:
                print(json.dumps(examine(problem, attainment)), file=rows_file, flush=True)


if __name__ == "__main__":
    main()
