"""One model under several frameworks on several GPUs, each combination by a run of the engine: rate and price."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from simserve.errors import InfeasibleError, InputError
from simserve.explore.limits import Check, whole
from simserve.explore.queries import CostQuery
from simserve.metrics.result import RunResult
from simserve.profiles.hardware import load_hardware
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run

_SIZES = (1, 2, 4, 8)
_RUN_LENGTH = 4
"""Requests of a run over those that are in hand at once."""
_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one replica of a framework on a GPU serves.

    Attributes:
        framework: Engine profile.
        version: Version of it.
        hardware: Hardware profile.
        gpus: GPUs of the replica.
        output_throughput: Output tokens/s while the replica is as full as it may be; 0 where it cannot run.
        ttft_ms: Median, queueing included.
        tpot_ms: Median; None where answers come whole.
        binding: What binds.
        fidelity: Where the step times are from.
        why_not: Why it cannot run; empty if it can.
    """

    framework: str
    hardware: str
    version: str = ""
    gpus: int = 0
    output_throughput: float = 0.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    binding: str = ""
    fidelity: str = ""
    why_not: str = ""


def replica(query: CostQuery, framework: str, hardware: str, gpus: int) -> dict[str, Any]:
    """Return the scenario of one replica at the concurrency that is asked."""
    return {
        "name": "explore",
        "model": query.model,
        "deployment": {
            "hardware": hardware,
            "tensor_parallel_size": gpus,
            "quantization": query.quantization,
            "engine": {"name": framework, "max_model_len": max(2048, 4 * (query.prompt_tokens + query.output_tokens))},
        },
        "workload": {
            "arrivals": {"process": "closed_loop", "concurrency": query.concurrency},
            "prompt_tokens": _lengths(query.prompt_tokens),
            "output_tokens": _lengths(query.output_tokens),
            "num_requests": max(_RUN_LENGTH * query.concurrency, 16),
        },
        "run": {"seed": 1},
    }


def _lengths(mean: int) -> dict[str, Any]:
    return {"distribution": "lognormal", "mean": mean, "cv": 0.5, "max": 2 * mean}


def served(query: CostQuery, check: Check) -> list[tuple[Served, float | None]]:
    """Return every framework on every GPU, with the dollars an hour of its replica (None: no price is known)."""
    # What a month is worth does not change what is simulated.
    asked = CostQuery(**query.model_dump(include={"model", "quantization", "concurrency", *_LENGTHS}))
    found: list[tuple[Served, float | None]] = []
    for hardware in dict.fromkeys(query.hardware):
        price = load_hardware(hardware).default_price
        for framework in dict.fromkeys(query.frameworks):
            check(len(found), len(query.hardware) * len(query.frameworks))
            each = _served(asked, framework, hardware)
            found.append((each, None if price is None else each.gpus * price * (1 - query.discount)))
    return found


_LENGTHS = ("prompt_tokens", "output_tokens")


@lru_cache(maxsize=1024)
def _served(query: CostQuery, framework: str, hardware: str) -> Served:
    """Run the smallest replica that holds the model."""
    why = ""
    for gpus in _SIZES:
        try:
            result = whole(run(from_mapping(replica(query, framework, hardware, gpus)), explain=False))
        except InfeasibleError as error:
            why = str(error)
            continue
        except InputError as error:
            return Served(framework=framework, hardware=hardware, why_not=error.rule)
        if not result.summary["completed"]:
            return Served(framework=framework, hardware=hardware, why_not="serves none of these requests")
        inner = result.summary["simserve"]
        return Served(
            framework=framework,
            version=inner["engine_resolved"]["version"],
            hardware=hardware,
            gpus=gpus,
            output_throughput=_steady_rate(result),
            ttft_ms=result.summary["p50_ttft_ms"],
            tpot_ms=result.summary["p50_tpot_ms"],
            binding=inner["bottleneck"]["binding"],
            fidelity=inner["fidelity"],
        )
    return Served(framework=framework, hardware=hardware, why_not=f"does not fit on up to {_SIZES[-1]} GPUs: {why}")


def _steady_rate(result: RunResult) -> float:
    """Return output tokens/s of the requests that finish in the middle half: before it fills, afterwards it drains."""
    records = result.simulation.records
    done = np.isfinite(records.finish_time)
    order = np.argsort(records.finish_time[done], kind="stable")
    finish, tokens = records.finish_time[done][order], records.output_tokens[done][order]
    first, last = len(order) // 4, 3 * len(order) // 4
    seconds = float(finish[last] - finish[first])
    whole = float(tokens.sum()) / float(finish[-1])
    return float(tokens[first:last].sum()) / seconds if seconds > 0 else whole


def per_million(usd_per_hour: float | None, tokens_per_second: float) -> float | None:
    """Return dollars a million tokens; None where either side is not known."""
    if usd_per_hour is None or not tokens_per_second:
        return None
    return usd_per_hour / (3600 * tokens_per_second) * _MILLION
