"""The memory wall, KV growth and number formats: what one step and one GPU do, from the step times used in runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from simserve.errors import InputError, SimserveError
from simserve.explore.queries import Check, DeploymentQuery, MemoryQuery, fixed, scenario_of
from simserve.perf.memory import plan_memory
from simserve.perf.operators import PART_NAMES, PricedDeployment
from simserve.perf.quantization import WEIGHT_FORMATS, quantize_symmetric, weight_bits
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from simserve.report.facts import PART_LABELS
from simserve.scenario.formats import published_quality
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import ResolvedScenario, engine_config, resolve
from simserve.units import format_bytes

_MOST_SEATS = 1024
_LLAMAS = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
"""Models from which one of a given size is made."""
_FOUR_WEIGHTS = (0.12, -0.83, 0.45, -0.21)  # An example for rounding.


def resolved_query(query: DeploymentQuery, **deployment: Any) -> ResolvedScenario:
    """Return one replica of the deployment asked for.

    Raises:
        InputError: The deployment is invalid.
        ValueError: The GPUs are not a whole number of replicas.
    """
    asked = {**query.deployment({"max_num_seqs": _MOST_SEATS, "max_num_batched_tokens": 8192}), **deployment}
    billions = query.billion_parameters if isinstance(query, MemoryQuery) else 0.0
    model = query.model
    if billions:  # the Llama 3 of the closest size, by ratio
        model = min(_LLAMAS, key=lambda name: abs(math.log(load_model(name).num_parameters / (billions * 1e9))))
    found = resolve(from_mapping(scenario_of(model, asked, {"process": "all_at_once"}, (fixed(1), fixed(1)), 1)))
    return _with_layers(found, billions) if billions else found


def _with_layers(found: ResolvedScenario, billions: float) -> ResolvedScenario:
    """Return a deployment whose model has the number of layers that comes closest to ``billions`` of parameters."""
    model = found.shape.model
    one, two = (model.model_copy(update={"num_hidden_layers": layers}).num_parameters for layers in (1, 2))
    layers = max(1, round(1 + (billions * 1e9 - one) / (two - one)))
    name = f"{billions:g} B of Llama 3"
    shape = replace(found.shape, model=model.model_copy(update={"num_hidden_layers": layers, "name": name}))
    memory = plan_memory(shape)
    return replace(found, shape=shape, memory=memory, engine=engine_config(shape, memory))


def decode_ms(priced: PricedDeployment, batch: int, context: float) -> dict[str, float]:
    """Return the milliseconds of a decode step by part, ``weights kv compute communication host``."""
    parts = 1e3 * priced.parts.decode[:, batch]
    found = dict(zip(PART_NAMES, parts.tolist(), strict=True))
    found["kv"] += 1e3 * priced.step_times.decode_slope[batch] * batch * context
    return found


def memory_wall(query: MemoryQuery, _check: Check) -> dict[str, Any]:
    """Return the parts of a decode step, for the batch asked for and for all others.

    Raises:
        InputError: The deployment is invalid.
    """
    found = resolved_query(query)
    priced, memory = price(found.shape), found.memory
    batch, context = query.batch, query.context_tokens
    step = decode_ms(priced, batch, context)
    total = sum(step.values())
    batches = sorted({*np.unique(np.geomspace(1, _MOST_SEATS, 40).astype(int)).tolist(), batch})
    curve = [decode_ms(priced, each, context) for each in batches]
    parts = priced.parts
    flops = batch * (parts.token_flops + parts.sequence_flops + parts.pair_flops * context)
    weights, kv = float(parts.weight_bytes[batch]), parts.kv_bytes_per_token * batch * context
    moved = weights + kv + parts.token_bytes * batch
    bound = moved / parts.peak_bandwidth
    return {
        "fits": memory.kv_bytes >= memory.kv_bytes_per_token * batch * context,
        "memory": _memory(found, batch * context),
        "step": {PART_LABELS[name]: value for name, value in step.items() if value},
        "step_ms": total,
        "tokens_per_second": 1e3 * batch / total,
        "tokens_per_second_each": 1e3 / total,
        "intensity": flops / moved,
        "ridge": parts.ridge_point,
        "bound_ms": 1e3 * max(bound, flops / parts.peak_flops),
        "curve": {
            "batch": batches,
            **{PART_LABELS[name]: [each[name] for each in curve] for name in PART_NAMES},
            "tokens_per_second": [1e3 * each / sum(point.values()) for each, point in zip(batches, curve, strict=True)],
        },
        "equations": [
            {
                "name": "The least a step can take",
                "formula": "max((weights + KV + activations) / bandwidth, FLOP / peak)",
                "numbers": (
                    f"max({moved / 1e9:.3g} GB / {parts.peak_bandwidth / 1e12:.3g} TB/s, {flops / 1e12:.3g} TFLOP / "
                    f"{parts.peak_flops / 1e12:.4g} TFLOP/s) = max({1e3 * bound:.3g}, "
                    f"{1e3 * flops / parts.peak_flops:.3g}) ms; modelled {total:.3g} ms"
                ),
            },
            {
                "name": "Arithmetic intensity",
                "formula": "FLOP / bytes, against peak FLOP/s / bandwidth",
                "numbers": f"{flops / moved:.3g} FLOP a byte; memory is the bottleneck below {parts.ridge_point:.3g}",
            },
        ],
        "fidelity": priced.fidelity,
    }


def _memory(found: ResolvedScenario, kv_tokens: float) -> dict[str, Any]:
    memory = found.memory
    return {
        "total": memory.total_bytes,
        "weights": memory.weights_bytes,
        "kv": memory.kv_bytes_per_token * kv_tokens,
        "kv_room": max(memory.kv_bytes, 0.0),
        "other": memory.total_bytes - memory.weights_bytes - max(memory.kv_bytes, 0.0),
        "kv_bytes_per_token": memory.kv_bytes_per_token,
    }


def kv_growth(query: MemoryQuery, _check: Check) -> dict[str, Any]:
    """Return how KV memory grows with requests and context, against the memory that a GPU has left for it.

    Raises:
        InputError: The deployment is invalid.
    """
    found = resolved_query(query)
    memory, model = found.memory, found.shape.model
    per_token, room = memory.kv_bytes_per_token, max(memory.kv_bytes, 0.0)
    most = int(room / (per_token * query.context_tokens)) if per_token else 0
    contexts = [256 * 2**power for power in range(10)]
    numbers = f"{per_token:,.0f} B on a GPU"
    if model.mla is None:
        layers, heads = model.num_attention_layers, max(model.num_key_value_heads / query.tensor_parallel_size, 1)
        element = per_token / (2 * layers * heads * model.head_dim)
        numbers = f"2 x {layers} x {heads:g} x {model.head_dim} x {element:g} B = {numbers}"
    used = per_token * query.context_tokens * query.batch
    return {
        "kv_bytes_per_token": per_token,
        "room": room,
        "memory": _memory(found, query.batch * query.context_tokens),
        "used": used,
        "most_requests": most,
        "fits": query.batch <= most,
        "curve": {
            "context": contexts,
            "one_request": [per_token * each for each in contexts],
            "all_requests": [per_token * each * query.batch for each in contexts],
            "most_requests": [room / (per_token * each) if per_token else 0.0 for each in contexts],
        },
        "weights_crossing_tokens": memory.weights_bytes / per_token if per_token else None,
        "equations": [
            {
                "name": "KV of a token",
                "formula": "2 x layers x KV heads x head size x bytes an element"
                if model.mla is None
                else "layers x (latent + rotary) x bytes an element, on every rank",
                "numbers": numbers,
            },
            {
                "name": "Requests at once",
                "formula": "memory left for KV / (KV of a token x tokens a request)",
                "numbers": (
                    f"{format_bytes(room)} / ({per_token:,.0f} B x {query.context_tokens:,}) = {most:,} requests"
                ),
            },
        ],
    }


def quantization(query: MemoryQuery, _check: Check) -> dict[str, Any]:
    """Return memory, speed and published quality of every format that this GPU and engine run.

    Raises:
        InputError: The deployment is invalid in every format.
    """
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    for name in WEIGHT_FORMATS:
        try:
            found = resolved_query(query, quantization=name)
            priced = price(found.shape)
        except InputError as error:
            refused.append({"format": name, "why": error.rule})
            continue
        memory = found.memory
        one, many = (decode_ms(priced, batch, query.context_tokens) for batch in (1, query.batch))
        size = found.shape.model.num_parameters / 1e9
        quality = published_quality(name, "auto", size)
        losses = [each["loss"] for each in quality]
        rows.append(
            {
                "format": name,
                "bits": weight_bits(name, found.shape.model.dtype)[0],
                "weights_bytes": memory.weights_bytes,
                "kv_bytes": max(memory.kv_bytes, 0.0),
                "fits": memory.fits,
                "requests": max(memory.kv_bytes, 0.0) / (memory.kv_bytes_per_token * query.context_tokens),
                "ms_alone": sum(one.values()),
                "ms_batch": sum(many.values()),
                "tokens_per_second": 1e3 * query.batch / sum(many.values()),
                "loss": [min(losses), max(losses)] if losses else None,
                "studies": sorted({each["cited_as"] for each in quality}),
                "note": found.shape.precision.note,
                "fidelity": priced.fidelity,
            }
        )
    if not rows:
        raise SimserveError("no format runs on this GPU")
    stored = load_model(query.model).stored.format if not query.billion_parameters else "none"
    asked = stored if query.quantization == "auto" else query.quantization
    chosen = next((row for row in rows if row["format"] == asked), rows[0])
    base = rows[0]
    return {
        "rows": rows,
        "stored": stored,
        "refused": refused,
        "equations": [
            {
                "name": f"Weights in {_format_name(chosen['format'])}",
                "formula": "parameters x bits a weight / 8, scales included; embeddings and LM head stay 16-bit",
                "numbers": f"{chosen['bits']:.4g} bit: {format_bytes(chosen['weights_bytes'])} a GPU, against "
                f"{format_bytes(base['weights_bytes'])} in {_format_name(base['format'])}",
            },
            {
                "name": "Speed-up",
                "formula": "step in the model's format / step in this one",
                "numbers": f"alone {base['ms_alone'] / chosen['ms_alone']:.2f}x, in a batch of {query.batch} "
                f"{base['ms_batch'] / chosen['ms_batch']:.2f}x",
            },
            {
                "name": "What rounding loses",
                "formula": "scale = largest |weight| / (2^(bits - 1) - 1), code = weight / scale, rounded",
                "numbers": f"{', '.join(map(str, _FOUR_WEIGHTS))} are {_rounded(8)}, {_rounded(4)}",
            },
        ],
    }


def _rounded(bits: int) -> str:
    rounded = quantize_symmetric(_FOUR_WEIGHTS, bits)
    codes = ", ".join(str(code) for code in rounded.codes)
    return f"in {bits} bit {rounded.scale:.4g} x ({codes}), off by at most {rounded.largest_error:.2g}"


def _format_name(quantization: str) -> str:
    return "the model's own format" if quantization == "none" else quantization
