"""Frameworks and GPUs compared by cost, and one of them with an API: the figures of `simserve cost` for a month."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from simserve import api
from simserve.errors import InfeasibleError, InputError
from simserve.explore.queries import Check, CostQuery, lognormal, scenario_of, whole
from simserve.metrics.result import RunResult
from simserve.perf.memory import is_left_to_cpu
from simserve.profiles.hardware import load_hardware
from simserve.report.cost import sections
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.units import HOURS_PER_MONTH, SECONDS_PER_MONTH

_MILLION = 1e6
_NUM_POINTS = 60
_MOST_STEPS = 200
_SHOWN_PARTS = ("Self-host", "API", "36 months")
_TENSOR_SIZES = (1, 2, 4, 8)
_RUN_LENGTH = 4  # Requests of a run over those in flight at once.
_ASKED_LENGTHS = ("prompt_tokens", "output_tokens")


def cost(query: CostQuery, check: Check) -> dict[str, Any]:
    """Return every framework on every GPU, and the chosen one (by default the cheapest) against the API.

    Raises:
        InputError: No combination runs, or none of those that run has a price.
        TooLongError: It took too long.
    """
    rows = list(_served(query, check))
    priced = sorted((row for row in rows if row["usd_per_million"] is not None), key=lambda row: row["usd_per_million"])
    if not priced:
        why = next((row["why_not"] for row in rows if row["why_not"]), "no price is known of these GPUs")
        raise InputError(why, key="hardware", remedy="add a GPU, or choose a smaller format")
    chosen = next((row for row in priced if row["name"] == query.chosen), priced[0])
    return {
        "rows": [*priced, *(row for row in rows if row["usd_per_million"] is None)],
        "cheapest": priced[0]["name"],
        "chosen": chosen,
        **_against(query, chosen),
    }


def chosen_replica(query: CostQuery, check: Check) -> dict[str, Any]:
    """Return the scenario of the combination that is compared with the API, at the price asked for.

    Raises:
        InputError: As `cost`.
    """
    row = cost(query, check)["chosen"]
    mapping = replica(query, row["framework"], row["hardware"], row["gpus"])
    pricing = {"gpu_hour_usd": round(row["usd_per_hour"] / row["gpus"], 6), "api": query.api}
    return {**mapping, "pricing": pricing}


def _row(each: Mapping[str, Any], price: float | None, query: CostQuery) -> dict[str, Any]:
    """Return what a replica serves with its dollars; ``price``: of a GPU-hour, None if unknown."""
    rate = each["output_throughput"]
    usd_per_hour = None if price is None else each["gpus"] * price * (1 - query.discount)
    return {
        "name": f"{each['framework']} on {each['hardware']}",
        **each,
        "tokens_per_second_a_gpu": rate / each["gpus"] if each["gpus"] else None,
        "why_not": each["why_not"] or ("" if price is not None else "no price of this GPU is known"),
        "usd_per_hour": usd_per_hour,
        "usd_per_million": per_million(usd_per_hour, rate * query.utilization),
        "usd_per_million_full": per_million(usd_per_hour, rate),
    }


def _against(query: CostQuery, row: dict[str, Any]) -> dict[str, Any]:
    """Return a month of a row, a month of the API, and the lines that cross."""
    rate, gpu_hour = row["output_throughput"], row["usd_per_hour"] / row["gpus"]
    one = rate * query.utilization / query.output_tokens * SECONDS_PER_MONTH
    replicas = max(int(np.ceil(query.requests_per_month / one)), 1)
    found = api.cost(
        api=query.api,
        requests_per_month=query.requests_per_month,
        gpus=replicas * row["gpus"],
        gpu_hour_usd=gpu_hour,
        operations_usd=query.operations_usd,
        output_tokens_per_second=replicas * rate,
        utilization=query.utilization,
        prompt_tokens=query.prompt_tokens,
        output_tokens=query.output_tokens,
    )
    summary = found.summary
    own, other = summary["self_host"], summary["api"]
    per_replica = row["usd_per_hour"] * HOURS_PER_MONTH
    even = _crossing(one, per_replica, query.operations_usd, other["usd_per_request"])
    most = 2 * max(query.requests_per_month, min(even or 0.0, 10 * query.requests_per_month))
    # Each further replica is a step: a point on either side of it.
    full = one * np.arange(1, min(int(most / one), _MOST_STEPS) + 1)
    volumes = np.unique(np.concatenate([np.linspace(0, most, _NUM_POINTS), full, full * (1 + 1e-9)]))
    fleets = np.maximum(np.ceil(volumes / one), 1)
    return {
        "answer": found.answer,
        "cheaper": summary["cheaper"],
        "replicas": replicas,
        "self_host": {key: own[key] for key in ("usd_per_month", "usd_per_request", "usd_per_million_output_tokens")},
        "api": {key: other[key] for key in ("name", "date", "usd_per_month", "usd_per_request")},
        "break_even": even,
        "fleet_holds": one,
        "curve": {
            "requests": volumes.tolist(),
            "self_host": (fleets * per_replica + query.operations_usd).tolist(),
            "api": (volumes * (other["usd_per_request"] or 0.0)).tolist(),
        },
        "parts": {
            part.title: list(part.lines) for part in sections(summary) if part.lines and part.title in _SHOWN_PARTS
        },
        "equations": _equations(query, row, one, replicas, own["usd_per_month"]),
    }


def _crossing(holds: float, per_replica: float, operations: float, api_request: float | None) -> float | None:
    """Return the requests a month from which whole replicas plus operations cost less than the API; None: never."""
    if not api_request:
        return None
    for count in range(1, 10_000):
        volume = (count * per_replica + operations) / api_request
        if volume <= count * holds:
            return max(volume, (count - 1) * holds)
        if per_replica >= holds * api_request:
            return None
    return None


def _equations(
    query: CostQuery, row: dict[str, Any], holds: float, replicas: int, usd_per_month: float
) -> list[dict[str, str]]:
    rate = row["output_throughput"]
    return [
        {
            "name": f"Dollars a million output tokens, {row['name']}",
            "formula": "dollars an hour / (3600 x output tokens a second x used share) x 1,000,000",
            "numbers": f"${row['usd_per_hour']:,.2f} / (3600 x {rate:,.0f} x {query.utilization:.0%}) x 1,000,000 = "
            f"${row['usd_per_million']:,.3g}",
        },
        {
            "name": "What one replica holds a month",
            "formula": "output tokens/s x used share / tokens of an answer x seconds of a month",
            "numbers": f"{rate:,.0f} x {query.utilization:.0%} / {query.output_tokens:,.0f} x {SECONDS_PER_MONTH:,} = "
            f"{holds / _MILLION:.3g} M requests",
        },
        {
            "name": "A month",
            "formula": f"replicas x dollars an hour x {HOURS_PER_MONTH} + operations",
            "numbers": f"{replicas} x ${row['usd_per_hour']:,.2f} x {HOURS_PER_MONTH} + ${query.operations_usd:,.0f} = "
            f"${usd_per_month:,.0f}",
        },
    ]


def replica(query: CostQuery, framework: str, hardware: str, gpus: int) -> dict[str, Any]:
    """Return the scenario of one replica at the concurrency asked for."""
    deployment = {
        "hardware": hardware,
        "tensor_parallel_size": gpus,
        "quantization": query.quantization,
        "engine": {"name": framework, "max_model_len": max(2048, 4 * (query.prompt_tokens + query.output_tokens))},
    }
    prompts, answers = (lognormal(mean, 0.5, 2 * mean) for mean in (query.prompt_tokens, query.output_tokens))
    arrivals = {"process": "closed_loop", "concurrency": query.concurrency}
    num_requests = max(_RUN_LENGTH * query.concurrency, 16)
    return scenario_of(query.model, deployment, arrivals, (prompts, answers), num_requests)


def _served(query: CostQuery, check: Check) -> Iterator[dict[str, Any]]:
    """Yield the row of every framework on every GPU."""
    # The inputs about a month do not change what is simulated.
    asked = CostQuery(**query.model_dump(include={"model", "quantization", "concurrency", *_ASKED_LENGTHS}))
    pairs = list(product(dict.fromkeys(query.hardware), dict.fromkeys(query.frameworks)))
    for done, (hardware, framework) in enumerate(pairs):
        check(done, len(query.hardware) * len(query.frameworks))
        yield _row(_run_of(asked, framework, hardware), load_hardware(hardware).default_price, query)


@lru_cache(maxsize=1024)
def _run_of(query: CostQuery, framework: str, hardware: str) -> Mapping[str, Any]:
    """Run the smallest replica that the model fits on; return what it serves, or why it cannot run (``why_not``).

    Latencies are medians, queueing included; TPOT is None if answers arrive whole. Output tokens/s are those at the
    full concurrency, 0 if it cannot run.
    """
    nothing: dict[str, Any] = {
        "framework": framework,
        "version": "",
        "hardware": hardware,
        "gpus": 0,
        "output_throughput": 0.0,
        "ttft_ms": None,
        "tpot_ms": None,
        "binding": "",
        "fidelity": "",
        "why_not": "",
    }
    why = ""
    for gpus in _TENSOR_SIZES:
        try:
            scenario = from_mapping(replica(query, framework, hardware, gpus))
            if is_left_to_cpu(resolve(scenario).shape.engine):
                why = f"{framework} would leave a part of the model to the CPU"
                continue
            result = whole(run(scenario, explain=False))
        except InfeasibleError as error:
            why = str(error)
            continue
        except InputError as error:
            return {**nothing, "why_not": error.rule}
        if not result.summary["completed"]:
            return {**nothing, "why_not": "serves none of these requests"}
        inner = result.summary["simserve"]
        return {
            **nothing,
            "version": inner["engine_resolved"]["version"],
            "gpus": gpus,
            "output_throughput": _steady_rate(result),
            "ttft_ms": result.summary["p50_ttft_ms"],
            "tpot_ms": result.summary["p50_tpot_ms"],
            "binding": inner["bottleneck"]["binding"],
            "fidelity": inner["fidelity"],
        }
    return {**nothing, "why_not": f"does not fit on up to {_TENSOR_SIZES[-1]} GPUs: {why}"}


def _steady_rate(result: RunResult) -> float:
    """Return output tokens/s of the middle half of the finished requests: the run fills up before and drains after."""
    records = result.simulation.records
    done = np.isfinite(records.finish_time)
    order = np.argsort(records.finish_time[done], kind="stable")
    finish, tokens = records.finish_time[done][order], records.output_tokens[done][order]
    first, last = len(order) // 4, 3 * len(order) // 4
    seconds = float(finish[last] - finish[first])
    whole = float(tokens.sum()) / float(finish[-1])
    return float(tokens[first:last].sum()) / seconds if seconds > 0 else whole


def per_million(usd_per_hour: float | None, tokens_per_second: float) -> float | None:
    """Return dollars a million tokens; None if either figure is unknown."""
    if usd_per_hour is None or not tokens_per_second:
        return None
    return usd_per_hour / (3600 * tokens_per_second) * _MILLION
