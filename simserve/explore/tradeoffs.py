"""Attention variants, speculative decoding and layouts of a model on GPUs: what each costs and gains per step."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.errors import InputError
from simserve.explore.lessons import decode_ms, resolved_query
from simserve.explore.queries import Check, MemoryQuery, ParallelQuery, SpeculationQuery
from simserve.perf.pipeline import pipeline_bubble
from simserve.perf.speculation import cycle_cost, decode_speedup, speedup
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from simserve.units import format_bytes
from simserve.workload.acceptance import expected_tokens

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MOST_DRAFTS = 12
_LATENT, _ROTARY = 512, 64  # Sizes of DeepSeek-V3's latent attention.


def attention(query: MemoryQuery, _check: Check) -> dict[str, Any]:
    """Return the KV bytes of a token and the requests that fit, for other groupings of the model's heads.

    Raises:
        InputError: The deployment is invalid.
    """
    found = resolved_query(query)
    model, room = found.shape.model, max(found.memory.kv_bytes, 0.0)
    size, ranks = found.shape.kv_element_bytes, query.tensor_parallel_size
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    groupings = [groups for groups in (16, 8, 4) if groups < heads and heads % groups == 0]
    kind = "MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else f"GQA, {kv_heads} groups"
    variants: list[tuple[str, dict[str, Any]]] = [
        ("MHA", {"num_key_value_heads": heads, "mla": None}),
        *((f"GQA, {groups} groups", {"num_key_value_heads": groups, "mla": None}) for groups in groupings),
        ("MQA", {"num_key_value_heads": 1, "mla": None}),
    ]
    rows = []
    for name, changes in variants:
        per_token = model.model_copy(update=changes).kv_bytes_per_token(size, ranks)
        rows.append(_kv_row(name, per_token, room, query))
    latent = model.num_hidden_layers * (_LATENT + _ROTARY) * size
    rows.append(_kv_row(f"MLA, {_LATENT} + {_ROTARY}", latent, room, query))
    own = found.memory.kv_bytes_per_token
    return {
        "rows": rows,
        "own": own,
        "own_name": "MLA" if model.mla is not None else kind,
        "equations": [
            {
                "name": f"{model.name}: {heads} query heads, {kv_heads} KV heads",
                "formula": "2 x layers x KV heads / TP x head size x bytes; a KV head is copied where TP exceeds them",
                "numbers": f"{own:,.0f} B a token on a GPU; {format_bytes(own * query.context_tokens)} for "
                f"{query.context_tokens:,} tokens",
            }
        ],
    }


def _kv_row(name: str, per_token: float, room: float, query: MemoryQuery) -> dict[str, Any]:
    return {
        "name": name,
        "bytes_per_token": per_token,
        "bytes_per_request": per_token * query.context_tokens,
        "requests": room / (per_token * query.context_tokens),
    }


def speculation(query: SpeculationQuery, _check: Check) -> dict[str, Any]:
    """Return the closed form over k, and the result of the engine for each batch size.

    Raises:
        InputError: The deployment is invalid.
    """
    rate, cost = query.acceptance_rate, query.draft_cost
    drafts = list(range(1, _MOST_DRAFTS + 1))
    tokens = [expected_tokens([rate] * count) for count in drafts]
    ideal = [float(speedup(each, cycle_cost(count, cost, 1.0))) for each, count in zip(tokens, drafts, strict=True)]
    best = drafts[int(np.argmax(ideal))]
    plain = price(resolved_query(query).shape)
    drafting = {"method": "eagle", "num_speculative_tokens": query.num_speculative_tokens, "acceptance_rate": rate}
    with_drafts = price(resolved_query(query, speculative=drafting).shape)
    accepted = expected_tokens([rate] * query.num_speculative_tokens)
    gains = decode_speedup(
        with_drafts, plain, accepted, np.array(_BATCHES, dtype=np.float64), query.context_tokens
    ).tolist()
    chosen = query.num_speculative_tokens
    return {
        "closed": {"k": drafts, "tokens": tokens, "speedup": ideal, "best": best},
        "engine": {"batch": list(_BATCHES), "speedup": gains},
        "accepted": accepted,
        "pays_up_to": max((batch for batch, gain in zip(_BATCHES, gains, strict=True) if gain > 1), default=0),
        "equations": [
            {
                "name": "Tokens a cycle",
                "formula": "(1 - a^(k+1)) / (1 - a)",
                "numbers": f"(1 - {rate:g}^{chosen + 1}) / (1 - {rate:g}) = {accepted:.3g}",
            },
            {
                "name": "Speed-up while memory is the bottleneck",
                "formula": "tokens a cycle / (1 + k x draft cost)",
                "numbers": f"{accepted:.3g} / (1 + {chosen} x {cost:g}) = {accepted / (1 + chosen * cost):.3g}; "
                f"best k is {best}",
            },
        ],
    }


def parallel(query: ParallelQuery, _check: Check) -> dict[str, Any]:
    """Return every layout of a model on the GPUs: replicas x pipeline x tensor.

    Raises:
        InputError: No layout is a valid deployment.
    """
    rows, refused = _layouts(query)
    best = _most_tokens(rows)
    quickest = min((row for row in rows if row["fits"]), key=lambda row: row["step_ms"], default=None)
    return {
        "rows": rows,
        "refused": refused,
        "best": None if best is None else best["layout"],
        "quickest": None if quickest is None else quickest["layout"],
        "equations": [
            {
                "name": "Pipeline bubble",
                "formula": "(stages - 1) / (micro-batches + stages - 1)",
                "numbers": "; ".join(
                    f"{stages} stages, {query.batch} micro-batches: {pipeline_bubble(stages, query.batch):.0%}"
                    for stages in (2, 4)
                ),
            },
            {
                "name": "Ring all-reduce",
                "formula": "latency(n) + 2 (n - 1) / n x bytes / bandwidth, twice a layer",
                "numbers": "shown as communication in each bar",
            },
        ],
    }


def best_layout(query: ParallelQuery) -> dict[str, Any] | None:
    """Return the deployment keys of the layout with the most tokens a second; None if none fits."""
    best = _most_tokens(_layouts(query)[0])
    return None if best is None else dict(best["deployment"])


def _most_tokens(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return max((row for row in rows if row["fits"]), key=lambda row: float(row["tokens_per_second"]), default=None)


def _layouts(query: ParallelQuery) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return the layouts that are valid deployments, and the others with the reason."""
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    sizes = [size for size in (1, 2, 4, 8, 16) if query.gpus % size == 0]
    is_moe = load_model(query.model).moe is not None
    for tensor in sizes:
        for stages in (size for size in sizes if query.gpus % (tensor * size) == 0):
            replicas = query.gpus // (tensor * stages)
            for expert in (False, True) if is_moe and tensor > 1 else (False,):
                name = f"{replicas} x TP {tensor} PP {stages}{' EP' if expert else ''}"
                layout: dict[str, Any] = {
                    "tensor_parallel_size": tensor,
                    "pipeline_parallel_size": stages,
                    "replicas": replicas,
                    **({"enable_expert_parallel": True} if expert else {}),
                }
                try:
                    found = resolved_query(query.model_copy(update={"tensor_parallel_size": tensor}), **layout)
                    rows.append({**_layout(name, found, replicas, stages, query), "deployment": layout})
                except InputError as error:
                    refused.append({"layout": name, "why": error.rule})
    return rows, refused


def _layout(name: str, found: Any, replicas: int, stages: int, query: ParallelQuery) -> dict[str, Any]:
    priced, memory = price(found.shape), found.memory
    step = decode_ms(priced, query.batch, query.context_tokens)
    times, tokens = priced.step_times, query.prompt_tokens
    pairs = tokens * (tokens + 1) / 2
    prefill = times.token_seconds[min(stages * tokens, len(times.token_seconds) - 1)] + times.sequence_seconds[1]
    prefill += times.prefill_request_seconds + times.prefill_pair_seconds * pairs / stages
    return {
        "layout": name,
        "fits": memory.fits,
        "weights_bytes": memory.weights_bytes,
        "kv_tokens": memory.num_kv_blocks * memory.block_size * replicas,
        "step_ms": sum(step.values()),
        "step": step,
        "prefill_ms": 1e3 * prefill,
        "tokens_per_second": 1e3 * query.batch * replicas / sum(step.values()),
    }
