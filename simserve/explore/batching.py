"""Static against continuous batching by slots, and reserved against paged KV memory, in runs of the real engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.engine.config import EngineConfig
from simserve.engine.state import StepTimes
from simserve.explore.queries import BatchingQuery, Check, PagingQuery, lognormal, scenario_of, whole
from simserve.metrics.result import RunResult
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.sim.simulate import Replay, replay
from simserve.workload.requests import RequestSpecs

_ALLOCATIONS = ("paged", "oracle", "pow2", "static")
_MOST_SHOWN = 400


def batching(query: BatchingQuery, _check: Check) -> dict[str, Any]:
    """Return which request held which slot in which step, for both kinds of batching; a step takes one unit of time.

    A prompt is one token; its prefill is the first step of a request and yields the first token of its answer.
    """
    forms = {form: _form(_replay(query, form), query, form) for form in ("static", "continuous")}
    static, continuous = forms["static"], forms["continuous"]
    tokens = sum(query.lengths)
    return {
        "forms": forms,
        "gain": static["steps"] / continuous["steps"],
        "equations": [
            {
                "name": "Idle slots, static",
                "formula": "1 - tokens / (slots x steps)",
                "numbers": f"1 - {tokens:,} / ({query.slots} x {static['steps']:,}) = {static['idle']:.0%}",
            },
            {
                "name": "Gain of continuous batching",
                "formula": "steps of static batching / steps of continuous batching",
                "numbers": f"{static['steps']:,} / {continuous['steps']:,} = "
                f"{static['steps'] / continuous['steps']:.2f}x",
            },
        ],
    }


def _replay(query: BatchingQuery, form: str) -> Replay:
    outputs = np.array(query.lengths, dtype=np.int64)
    count = len(outputs)
    config = EngineConfig(
        batching="static" if form == "static" else "continuous",
        max_num_seqs=query.slots,
        static_batch_size=query.slots,
        max_num_batched_tokens=64,
        max_chunk_tokens=64,
        max_model_len=1024,
        block_size=16,
        num_blocks=2**16,
    )
    ones = [0.0, *[1.0] * query.slots]
    times = StepTimes(
        decode_base=ones,
        decode_slope=[0.0] * (query.slots + 1),
        token_seconds=[0.0, *[1.0] * 64],
        token_seconds_beyond=0.0,
        sequence_seconds=[0.0] * (query.slots + 1),
        decode_attention_base=[0.0] * (query.slots + 1),
        prefill_request_seconds=0.0,
        prefill_pair_seconds=0.0,
        prefill_context_seconds=0.0,
    )
    specs = RequestSpecs(
        arrival_time=np.zeros(count),
        prompt_tokens=np.ones(count, dtype=np.int64),
        output_tokens=outputs,
        max_tokens=outputs.copy(),
        think_time=np.empty(0),
        concurrency=None,
        is_stationary=False,
        offered_rate=float("nan"),
    )
    return replay(config, times, specs)


def _form(found: Replay, query: BatchingQuery, form: str) -> dict[str, Any]:
    records = found.records
    steps = round(float(records.finish_time.max()))
    free_at = [0.0] * query.slots
    spans = []
    for index in np.argsort(records.scheduled_time, kind="stable").tolist():
        start, end = float(records.scheduled_time[index]), float(records.finish_time[index])
        slot = min(range(query.slots), key=lambda each: (free_at[each] > start + 1e-9, free_at[each], each))
        free_at[slot] = end
        working = start + query.lengths[index] if form == "static" else end
        spans.append([slot, round(start), round(working), round(end), index])
    tokens = int(records.output_tokens.sum())
    return {
        "spans": spans,
        "steps": steps,
        "tokens_per_step": tokens / steps,
        "idle": 1 - tokens / (query.slots * steps),
        "mean_finish": float(records.finish_time.mean()),
    }


def paging(query: PagingQuery, check: Check) -> dict[str, Any]:
    """Return the results of each way to reserve KV memory: requests at once, waste, throughput, and a block map.

    Raises:
        InfeasibleError: The model does not fit.
        InputError: The deployment is invalid.
    """
    ways = {way: _way(query, way, check) for way in _ALLOCATIONS}
    paged, static = ways["paged"], ways["static"]
    per_request = query.max_model_len
    capacity = paged["capacity_tokens"]
    return {
        "ways": ways,
        "gain": paged["output_throughput"] / static["output_throughput"],
        "equations": [
            {
                "name": "Requests at once, reserved",
                "formula": "KV memory / longest sequence",
                "numbers": f"{capacity:,.0f} tokens / {per_request:,} = {int(capacity // per_request)}",
            },
            {
                "name": "Requests at once, paged",
                "formula": "KV memory / (tokens of a request, up to the next block)",
                "numbers": f"{capacity:,.0f} tokens / {paged['reserved_each']:.0f} on average = "
                f"{capacity / paged['reserved_each']:.0f}; the batch was {paged['mean_batch']:.0f} over the whole run",
            },
        ],
    }


def way_mapping(query: PagingQuery, way: str) -> dict[str, Any]:
    """Return the scenario of one way to reserve KV memory."""
    deployment = query.deployment({"kv_allocation": way, "max_num_seqs": 512, "max_num_batched_tokens": 8192})
    most = query.max_model_len // 2 - 1
    prompts, answers = (lognormal(mean, 1.0, max(mean, most)) for mean in (query.prompt_tokens, query.output_tokens))
    arrivals = {"process": "all_at_once"}
    return scenario_of(query.model, deployment, arrivals, (prompts, answers), query.num_requests, query.seed)


def _way(query: PagingQuery, way: str, check: Check) -> dict[str, Any]:
    result = whole(run(from_mapping(way_mapping(query, way)), progress=check, explain=False))
    kv, totals = result.summary["simserve"]["kv"], result.simulation.totals
    records = result.simulation.records
    running = float(np.nansum(records.finish_time - records.scheduled_time))
    return {
        "mean_batch": result.summary["simserve"]["steps"]["mean_batch"],
        "output_throughput": result.summary["output_throughput"],
        "internal_waste": kv["internal_waste"],
        "external_waste": kv["external_waste"],
        "usage_mean": kv["usage_mean"],
        "preemptions": kv["preemptions"],
        "capacity_tokens": totals.kv_capacity_tokens,
        "reserved_each": totals.kv_reserved_token_seconds / running if running else 0.0,
        "map": _map(result, query, way),
    }


def _map(result: RunResult, query: PagingQuery, way: str) -> list[list[int]]:
    """Return (tokens reserved, tokens held) of the requests that were running after a third of the run."""
    records, block = result.simulation.records, result.summary["simserve"]["memory"]["block_size"]
    now = result.simulation.end_time / 3
    inside = np.flatnonzero((records.scheduled_time <= now) & (records.finish_time > now))[:_MOST_SHOWN]
    shown = []
    for index in inside.tolist():
        prompt, output = int(records.prompt_tokens[index]), int(records.output_tokens[index])
        first, finish = float(records.first_token_time[index]), float(records.finish_time[index])
        progress = min(max((now - first) / (finish - first), 0.0), 1.0) if finish > first else 0.0
        held = prompt + int(progress * output)
        reserved = {
            "paged": -(-held // block) * block,
            "oracle": prompt + output,
            "pow2": 1 << (prompt + output - 1).bit_length(),
            "static": query.max_model_len,
        }[way]
        shown.append([min(max(reserved, held), query.max_model_len), held])
    return shown
