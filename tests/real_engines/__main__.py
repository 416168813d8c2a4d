"""``python -m tests.real_engines``: how often the kernel schedules as a real engine does, by class of workload.

Makes an environment with the engine's wheel outside the checkout the first time. No GPU, no model, no weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.real_engines import environment
from tests.real_engines.compare import (
    OF_SGLANG,
    OF_TRTLLM,
    POLICIES,
    RULES,
    SECOND,
    SGLANG,
    TRTLLM,
    WITHOUT,
    as_sglang,
    as_trtllm,
    as_vllm,
    earliest_difference,
    first_difference,
    schedules_of,
    simulate_second,
    simulate_sglang,
    simulate_trtllm,
)
from tests.real_engines.trtllm_second import schedules_of_second
from tests.real_engines.workloads import CLASSES, DRAFTING, draw_case

VERSIONS = [
    *sorted(RULES),
    *(f"sglang-{release}" for release in SGLANG),
    *(f"tensorrt-llm-{each}" for each in (*TRTLLM, SECOND)),
]
EVERY_CLASS = ",".join((*CLASSES, *DRAFTING))


def main() -> None:
    """Compare and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_engines", description=__doc__)
    parser.add_argument("--version", default="0.33.0", choices=VERSIONS, help="release of vLLM, or ENGINE-RELEASE")
    parser.add_argument("--source", type=Path, help="TensorRT-LLM: folder of a checkout or of an unpacked wheel")
    parser.add_argument(
        "--policy",
        default="GUARANTEED_NO_EVICT",
        choices=list(POLICIES),
        help="TensorRT-LLM: capacity_scheduler_policy",
    )
    parser.add_argument("--cases", type=int, default=25, help="workloads of each class")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--classes", default=EVERY_CLASS)
    parser.add_argument("--differences", action="store_true", help="print the first difference of each case")
    parser.add_argument("--at-least", type=float, default=0.0, help="fail below this share of identical schedules")
    asked = parser.parse_args()
    engine, _, release = asked.version.rpartition("-")
    if engine == "sglang":
        compare_sglang(asked, release)
        return
    if engine == "tensorrt-llm" and release == SECOND:
        compare_second(asked)
        return
    if engine == "tensorrt-llm":
        if asked.source is None:
            parser.error(f"{asked.version} needs --source FOLDER, a checkout or an unpacked wheel of it")
        compare_trtllm(asked, release)
        return
    python = environment.make(asked.version)
    kinds = [kind for kind in asked.classes.split(",") if kind not in WITHOUT.get(asked.version, ())]
    seeds = range(asked.first_seed, asked.first_seed + asked.cases)
    # One process for all: importing the engine takes longer than its schedules.
    drawn_cases = (draw_case(kind, seed, is_async=ahead) for kind in kinds for ahead in (False, True) for seed in seeds)
    cases = [as_vllm(case, asked.version) for case in drawn_cases]
    schedules = schedules_of(python, cases)
    print(f"vLLM {asked.version}, {asked.cases} workloads a class: identical schedules")
    print(f"{'':14}{'synchronous':>14}{'asynchronous':>14}{'preemptions':>14}")
    equal: Counter[tuple[str, bool]] = Counter()
    preemptions: Counter[str] = Counter()
    for case, schedule in zip(cases, schedules, strict=True):
        kind, is_async = case["kind"], case["async_scheduling"]
        difference = first_difference(case, schedule, RULES[asked.version])
        equal[kind, is_async] += difference is None
        preemptions[kind] += sum(row["preemptions"] for row in schedule["requests"])
        if difference is not None and asked.differences:
            print(json.dumps({"kind": kind, "seed": case["seed"], "async": is_async, **difference.as_json()}))
    for kind in kinds:
        shares = [f"{equal[kind, each] / asked.cases:.0%}" for each in (False, True)]
        print(f"{kind:14}{shares[0]:>14}{shares[1]:>14}{preemptions[kind]:>14}")
    totals = []
    for is_async in (False, True):
        totals.append(sum(equal[kind, is_async] for kind in kinds) / (asked.cases * len(kinds)))
    print(f"{'all':14}{''.join(f'{total:>14.1%}' for total in totals)}{preemptions.total():>14}")
    if min(totals) < asked.at_least:
        parser.exit(1, f"less than {asked.at_least:.0%} are identical\n")


def compare_sglang(asked: argparse.Namespace, release: str) -> None:
    """Compare with a release of SGLang and print a table."""
    python = environment.make(release, "sglang")
    cases = [as_sglang(case) for case in drawn(asked, OF_SGLANG)]
    schedules = schedules_of(python, cases, "sglang")
    simulated = (simulate_sglang(case, release).records for case in cases)
    print_table(asked, f"SGLang {release}", zip(cases, schedules, simulated, strict=True))


def compare_trtllm(asked: argparse.Namespace, release: str) -> None:
    """Compare with the Python scheduler of TensorRT-LLM that lies in a folder, and print a table."""
    cases = [as_trtllm(case, release, asked.policy) for case in drawn(asked, OF_TRTLLM)]
    schedules = schedules_of(Path(sys.executable), cases, "trtllm", asked.source)
    simulated = (simulate_trtllm(case).records for case in cases)
    print_table(asked, f"TensorRT-LLM {release} {asked.policy}", zip(cases, schedules, simulated, strict=True))


def compare_second(asked: argparse.Namespace) -> None:
    """Compare with TensorRT-LLM's second KV cache manager as it was read, and print a table."""
    cases = [as_trtllm(case, SECOND) for case in drawn(asked, OF_TRTLLM)]
    simulated = (simulate_second(case).records for case in cases)
    name = f"TensorRT-LLM {SECOND}, second KV cache manager as read"
    print_table(asked, name, zip(cases, schedules_of_second(cases), simulated, strict=True))


def drawn(asked: argparse.Namespace, of_engine: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the cases of both loops, of the classes that were asked for or that the engine has."""
    kinds = of_engine if asked.classes == EVERY_CLASS else asked.classes.split(",")
    seeds = range(asked.first_seed, asked.first_seed + asked.cases)
    return [draw_case(kind, seed, is_async=each) for kind in kinds for each in (False, True) for seed in seeds]


def print_table(asked: argparse.Namespace, name: str, compared: Iterable[tuple[Any, Any, Any]]) -> None:
    """Print how many schedules of both loops are identical, by class.

    Args:
        asked: What to compare.
        name: The engine and its release.
        compared: Cases, with the real schedule and the simulated records of each.
    """
    equal: Counter[tuple[str, bool]] = Counter()
    preemptions: Counter[str] = Counter()
    print(f"{name}, {asked.cases} workloads a class: identical schedules")
    print(f"{'':16}{'normal loop':>14}{'overlapped':>14}{'preemptions':>14}")
    for case, schedule, simulated in compared:
        difference = earliest_difference(schedule, simulated)
        kind, is_overlapped = case["kind"], case["async_scheduling"]
        equal[kind, is_overlapped] += difference is None
        preemptions[kind] += sum(row["preemptions"] for row in schedule["requests"])
        if difference is not None and asked.differences:
            row = {"kind": kind, "seed": case["seed"], "overlapped": is_overlapped, **difference.as_json()}
            print(json.dumps(row))
    kinds, loops = list(preemptions), (False, True)
    for kind in kinds:
        shares = "".join(f"{equal[kind, each] / asked.cases:>14.0%}" for each in loops)
        print(f"{kind:16}{shares}{preemptions[kind]:>14}")
    totals = [sum(equal[kind, each] for kind in kinds) / (asked.cases * len(kinds)) for each in loops]
    print(f"{'all':16}{totals[0]:>14.1%}{totals[1]:>14.1%}{preemptions.total():>14}")
    if min(totals) < asked.at_least:
        raise SystemExit(f"less than {asked.at_least:.0%} are identical")


if __name__ == "__main__":
    main()
