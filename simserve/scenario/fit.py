"""Whether a deployment fits its memory and its traffic: what an answer says first, what is lacking, what would fit.

Limits left wide open are reported with their arithmetic (`open_limits`), whatever the traffic: long steps, long
requests, no memory to spare. Simulates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.engine.config import Limited, limited
from simserve.engine.state import StepTimes
from simserve.errors import InfeasibleError, InputError
from simserve.perf.kv_layout import pool_block_bytes
from simserve.perf.memory import (
    NEAR_FIT_SHARE,
    MemoryPlan,
    are_seats_told,
    context_cut_note,
    is_context_cut,
    is_left_to_cpu,
    plan_memory,
)
from simserve.perf.shape import ReplicaShape
from simserve.perf.tables import price
from simserve.profiles.api import load_api, withdrawal_note
from simserve.profiles.checkpoint import WIDE_FORMATS, WeightFormatName
from simserve.scenario.combinations import model_notes
from simserve.scenario.cpu_layers import GPU_LAYERS
from simserve.scenario.deployment_spec import lora_lines, tier_lines
from simserve.scenario.formats import formats_available, formats_line, lacking_weights_notes, quality_of
from simserve.scenario.media import encoder_lines, with_media
from simserve.scenario.resolve import ResolvedScenario, assumed_architectures, replica_shape, resolve
from simserve.scenario.schema import Scenario
from simserve.units import format_bytes, format_seconds, to_text
from simserve.workload.arrival_spec import DailyArrivals, SpikeArrivals
from simserve.workload.distributions import rate_curve_of
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import WorkloadSpec

_LARGEST_TENSOR_PARALLEL = 64
_SIZES = ("deployment.tensor_parallel_size", "deployment.pipeline_parallel_size")
"""Keys by which a replica gets more GPUs."""
_FLAGS = {None, "--gpus", "--tp", "--pp"}  # Command-line flags that set them; None: the default.
_LARGEST_SHARE = 0.95
"""Largest share of a GPU's memory that is advised: above it, a peak of another process ends the server."""
NEAR_PEAK = 0.95  # Share of the highest rate of a day from which on a run counts as one that has seen it.
_LIMITS = ("max_num_seqs", "max_num_batched_tokens")  # Limits that activations grow with.
_FOUR_BITS: WeightFormatName = "awq-int4"
"""Format of weights that is tried where no known checkpoint is small enough."""
LONG_STEP_SECONDS = 1.0
"""Step time from which on every reader of an answer notices a pause: twenty times a TPOT of 50 ms."""
SHORTER_STEP_SECONDS = 0.25
FEW_FULL_LENGTH = 16.0  # Requests of full length in the KV cache below which a handful of them stops all others.
LEAST_SEVERAL = 1.05  # Requests of full length below which the KV cache counts as holding only one of them.
HIGH_UTILIZATION = 0.95
"""Share of the memory above which vLLM itself advises lowering it: graphs and other processes need more."""


def check_fit(resolved: ResolvedScenario) -> None:
    """Check that the deployment, or each of its pools, fits, and that a request of the traffic's mean length fits its
    KV cache.

    Raises:
        InfeasibleError: It does not; the message carries the arithmetic and what would fit.
        InputError: A trace is missing or invalid.
    """
    for each in resolved.pools or (resolved,):
        reason = _reason(each)
        if reason is not None:
            name = each.scenario.pool_alone
            whose = "" if name is None else f"pool {name}: "
            raise InfeasibleError(f"{whose}{reason}", remedy=each.scenario.with_keys_placed(_remedy(each)))


def leading_warnings(*scenarios: Scenario | ResolvedScenario) -> list[str]:
    """Return what every answer about scenarios begins with: assumptions on models and weights, what fits only with
    less.

    A scenario may already be resolved. One that cannot be resolved adds nothing: its own answer is the error.
    Raises:
        ProfileError: A model is missing or invalid.
    """
    asked = [each.scenario if isinstance(each, ResolvedScenario) else each for each in scenarios]
    found = dict.fromkeys(assumed_architectures(*asked))
    for plain, scenario in zip(asked, scenarios, strict=True):
        try:
            found.update(dict.fromkeys(model_notes(plain)))
            found.update(dict.fromkeys(_unseen_peak(plain.workload)))
            found.update(dict.fromkeys(_withdrawn(plain)))
            found.update(dict.fromkeys(fit_notes(resolve(scenario))))
        except InputError:
            continue
    return list(found)


def _withdrawn(scenario: Scenario) -> list[str]:
    """Return a note for each API that a scenario names and that is no longer served."""
    overflow = scenario.deployment.overflow
    names = {scenario.pricing.api, None if overflow is None else overflow.api}
    notes = [withdrawal_note(load_api(name, scenario.folder), None) for name in sorted(filter(None, names))]
    return [note for note in notes if note is not None]


def _unseen_peak(workload: WorkloadSpec) -> list[str]:
    """Return a note where a run ends before the busiest time of its day, or before its spike; empty: it does not."""
    arrivals = workload.arrivals
    if not isinstance(arrivals, DailyArrivals | SpikeArrivals) or workload.trace is not None:
        return []
    curve, count = rate_curve_of(arrivals), workload.num_requests
    end = workload.duration if count is None else float(curve.inverse(np.array([float(count)]))[0])
    busiest = np.maximum(curve.left, curve.right)
    seen = busiest[curve.edges[:-1] < (end or 0.0)].max(initial=0.0)
    if seen >= NEAR_PEAK * busiest.max():
        return []
    whole = float(curve.edges[-1])
    needed = f"num_requests={math.ceil(curve.integral(whole))}"
    if count is None:
        needed = f"duration={to_text(whole, 'time').replace(' ', '')}"
    return [
        f"the traffic ends after {format_seconds(end or 0.0)}, before its busiest time: at most {seen:.3g} requests/s "
        f"of {busiest.max():.3g}; for all of it: --set workload.{needed}"
    ]


def fit_notes(resolved: ResolvedScenario) -> list[str]:
    """Return what an answer says first about a deployment, by pool: weights that do not exist, what fits only with
    less.

    Raises:
        InputError: A trace is missing or invalid.
    """
    if not resolved.pools:
        return _own_notes(resolved)
    names = [spec.name for spec in resolved.scenario.deployment.pools]
    return [
        f"pool {name}: {pool.scenario.with_keys_placed(note)}"
        for name, pool in zip(names, resolved.pools, strict=True)
        for note in _own_notes(pool)
    ]


def _own_notes(resolved: ResolvedScenario) -> list[str]:
    memory, shape = resolved.memory, resolved.shape
    notes = lacking_weights_notes(shape)
    if not memory.fits:
        return notes
    if resolved.scenario.deployment.all2all_backend == "auto" and shape.all2all_backend.startswith("deepep"):
        overlap = " and two-batch overlap" if shape.enable_two_batch_overlap else ""
        notes.append(
            f"experts lie on {shape.expert_ranks} GPUs of several nodes: DeepEP{overlap} are assumed, which "
            f"{shape.engine.name} has to be told (deployment.all2all_backend)"
        )
    if is_left_to_cpu(shape.engine):
        notes.append(_moved(resolved))
    if memory.shortage_bytes:
        change = next(_remedies(resolved), None)
        notes.append(
            f"does not quite fit: {format_bytes(memory.shortage_bytes)} lack on each GPU "
            f"({memory.shortage_bytes / memory.total_bytes:.1%} of it), which is within the error of the estimate; "
            f"simulated as if {NEAR_FIT_SHARE:.0%} of the GPU more were there"
            + ("" if change is None else f"; what fits: --set {change}")
        )
    notes += [*_overfull_buffer(resolved), *_unfilled_slots(resolved)]
    if are_seats_told(shape.engine):
        notes.append(
            f"{shape.engine.name} does not start with its default of seats here, more than its KV pool has blocks for "
            f"their states: set deployment.engine.max_num_seqs; {shape.engine.max_num_seqs:,} are simulated"
        )
    cut = context_cut_note(resolved.shape.engine)
    if cut is None and not _takes_prompts_whole(resolved):
        return notes
    specs = _traffic(resolved)
    if cut is not None:
        limits = limited(specs.prompt_tokens, specs.output_tokens, specs.max_tokens, resolved.engine)
        notes.append(cut + _beyond(limits, len(specs)))
    return notes + _whole_prompt_notes(resolved, specs)


def _moved(resolved: ResolvedScenario) -> str:
    """Return what an engine leaves to the CPU by itself, and what would fit whole."""
    shape, layers = resolved.shape, resolved.shape.model.num_hidden_layers
    what = f"{layers - shape.num_cpu_layers} of {layers} layers of {shape.model.name}"
    if shape.num_cpu_expert_layers:
        what = f"{shape.model.name} without the experts of {shape.num_cpu_expert_layers} of {layers} layers"
    return (
        f"1 x {shape.hardware.name} holds {what}: {shape.engine.name} leaves the rest to the CPU, which takes several "
        f"times as long; {_remedy(resolved)}"
    )


def _beyond(limits: Limited, num_requests: int) -> str:
    """Return how many requests a context length cuts or refuses, as the end of a sentence."""
    too_long, cut = int(limits.is_too_long.sum()), int(limits.is_truncated.sum())
    parts = [f"{too_long:,} fail (prompt_too_long)"] if too_long else []
    parts += [f"{cut:,} are cut short"] if cut else []
    return f"; of {num_requests:,} requests {' and '.join(parts)}" if parts else ""


def _takes_prompts_whole(resolved: ResolvedScenario) -> bool:
    config = resolved.engine
    is_batched = config.batching == "continuous" and config.kv_allocation != "none"
    return is_batched and not config.enable_chunked_prefill and config.max_num_batched_tokens < config.max_model_len


def _whole_prompt_notes(resolved: ResolvedScenario, specs: RequestSpecs) -> list[str]:
    """Return a note that prompts fill the token budget of an engine that does not split them, and the options."""
    budget, prompts = resolved.engine.max_num_batched_tokens, specs.prompt_tokens
    if not _takes_prompts_whole(resolved) or not len(prompts) or int(prompts.max()) < budget:
        return []
    longer = int((prompts > budget).sum())
    failing = f", and {longer:,} of {len(prompts):,} requests are longer and fail (prompt_too_long)" if longer else ""
    return [
        f"without chunked prefill, prompts that fill the token budget of {budget:,} run one at a time{failing}; "
        "--set deployment.engine.enable_chunked_prefill=true, or a larger deployment.engine.max_num_batched_tokens"
    ]


def _traffic(resolved: ResolvedScenario) -> RequestSpecs:
    scenario = resolved.scenario
    with scenario.blaming("workload"):
        specs = generate(scenario.workload, seed=scenario.run.seed, base_path=scenario.folder)
    return with_media(specs, scenario, 0)


def _overfull_buffer(resolved: ResolvedScenario) -> Iterator[str]:
    """Yield a note if requests of mean length in all slots of a server with one shared buffer overfill the buffer."""
    memory, engine = resolved.memory, resolved.shape.engine
    if not engine.shares_buffer:
        return
    tokens = _request_tokens(_traffic(resolved))
    room, slots = memory.num_kv_blocks * memory.block_size, min(engine.max_num_seqs, len(tokens))
    if not slots or slots * float(tokens.mean()) <= room:
        return
    yield (
        f"{slots} slots share one KV buffer of {room:,} tokens, and requests take {tokens.mean():,.0f}: {engine.name} "
        "ends requests where it is full (Context size has been exceeded), here they wait or are computed again; a "
        "longer context helps, or fewer slots: --set deployment.engine.max_num_seqs=N"
    )


def _unfilled_slots(resolved: ResolvedScenario) -> Iterator[str]:
    """Yield a note if there is no memory for all slots of a server that allocates each from the beginning."""
    memory, engine = resolved.memory, resolved.shape.engine
    slots, full = engine.max_num_seqs, memory.max_concurrent_full_length or 0.0
    is_fitted = resolved.scenario.deployment.engine.max_model_len is None
    if not _lacks_share(resolved) or is_fitted or engine.kv_unified or not 0.0 < full < slots:
        return
    shorter = 1 << (max(int(memory.max_model_len * full / slots), 1).bit_length() - 1)
    yield (
        f"{slots} slots of {memory.max_model_len:,} tokens take {format_bytes(slots / full * memory.kv_bytes)} of KV a "
        f"GPU, and {format_bytes(memory.kv_bytes)} are there: {engine.name} does not start with all of them, or leaves "
        f"layers to the CPU, and {'one of them is' if full < 2 else f'{int(full)} of them are'} simulated; shorter "
        f"ones fit: --set deployment.engine.max_model_len={shorter}"
    )


def _request_tokens(specs: RequestSpecs) -> NDArray[np.int64]:
    """Return the tokens of prompt and answer of each request, with no limit but its own."""
    answers = np.where(specs.max_tokens < 0, specs.output_tokens, np.minimum(specs.output_tokens, specs.max_tokens))
    tokens: NDArray[np.int64] = specs.prompt_tokens + answers
    return tokens


def remedies(resolved: ResolvedScenario) -> list[str]:
    """Return changes of one key that make the deployment fit, as ``KEY=VALUE``: the mildest of each, cheapest first.

    Length, seats and token budget, share of the memory, a smaller format that has a checkpoint or that the engine
    makes, layers on the CPU, more GPUs.
    """
    return list(_remedies(resolved))


def _remedies(resolved: ResolvedScenario) -> Iterator[str]:
    needed = 0
    if resolved.scenario.deployment.engine.max_model_len is None:
        longest = int(_request_tokens(_traffic(resolved)).max(initial=0))
        needed = min(longest, resolved.shape.model.max_position_embeddings)
    for variants in _variants(resolved):
        change = next(_fitting(resolved.scenario, variants, needed), None)
        if change is not None:
            yield change


def _reason(resolved: ResolvedScenario) -> str | None:
    """Return why a deployment does not fit, with the arithmetic; None if it does."""
    memory, shape = resolved.memory, resolved.shape
    if memory.fits:
        return _mean_beyond(resolved) if is_context_cut(shape.engine) else None
    if memory.most_seats is not None and 0 < memory.most_seats < shape.engine.max_num_seqs:
        return (
            f"{shape.engine.name} {shape.engine.requested_version or shape.engine.version} does not start with "
            f"max_num_seqs {shape.engine.max_num_seqs:,}: the KV pool has {memory.most_seats:,} blocks, and each "
            f"running request needs one for its state ({'; '.join(memory.arithmetic)})"
        )
    if memory.longest_sequence == 0:
        where = f"{shape.num_gpus} x {shape.hardware.name}"
        held = formats_line(resolved.formats).removeprefix("weights ")
        # The line on what is left for KV, without the size of the weights: `simserve memory` shows that.
        left = next((line for line in memory.arithmetic if line.endswith(" for KV")), "; ".join(memory.arithmetic))
        return f"{shape.model.name} does not fit on {where} in {held} ({left})"
    return (
        f"KV cache smaller than one full-length request of {memory.max_model_len:,} tokens: the longest that "
        f"fits is {memory.longest_sequence:,} ({'; '.join(memory.arithmetic)})"
    )


def _mean_beyond(resolved: ResolvedScenario) -> str | None:
    """Return a message that the KV cache cannot hold one request of the traffic's mean length; None if it can."""
    tokens, longest = _request_tokens(_traffic(resolved)), resolved.memory.max_model_len
    if not len(tokens) or float(tokens.mean()) <= longest:
        return None
    return (
        f"KV cache smaller than one request of {tokens.mean():,.0f} tokens, the mean of the traffic: the longest that "
        f"fits is {longest:,} ({'; '.join(resolved.memory.arithmetic)})"
    )


def _remedy(resolved: ResolvedScenario) -> str:
    changes = remedies(resolved)
    if not changes:
        return "no change of one key makes it fit; take a GPU with more memory"
    return "what fits: " + " or ".join(f"{_words(resolved, change)}{_where(resolved, change)}" for change in changes)


def _words(resolved: ResolvedScenario, change: str) -> str:
    """Return a change as words of a command line; sizes set by ``--gpus`` are changed by its flags."""
    scenario, shape = resolved.scenario, resolved.shape
    key, _, value = change.partition("=")
    is_by_flags = scenario.set_by("deployment.hardware") == "--gpus" and {*map(scenario.set_by, _SIZES)} <= _FLAGS
    is_by_flags = is_by_flags and scenario.pool_alone is None
    if key not in _SIZES or not is_by_flags:
        return f"--set {change}"
    sizes = {each: int(value) if each == key else getattr(shape, each.rpartition(".")[2]) for each in _SIZES}
    others = shape.data_parallel_size * scenario.deployment.replicas
    tensor, stages = sizes.values()
    stages_told = f" --pp {stages}" if stages > 1 else ""
    return f"--gpus {tensor * stages * others}x{scenario.deployment.hardware} --tp {tensor}{stages_told}"


def _where(resolved: ResolvedScenario, change: str) -> str:
    """Return in brackets the checkpoint that a change of the weights' format stands for, or the number of nodes.

    Empty if there is neither.
    """
    key, _, value = change.partition("=")
    shape = resolved.shape
    if key in _SIZES:
        gpus = shape.num_gpus // getattr(shape, key.rpartition(".")[2]) * int(value)
        nodes = -(-gpus // shape.hardware.intra_node.gpus_per_node)
        return f" ({nodes} nodes)" if nodes > 1 else ""
    if key != "deployment.quantization":
        return ""
    available = formats_available(shape.model, shape.engine, shape.hardware)
    label = next((each.label for each in available if each.format == value and each.how != "stored"), "")
    if value not in {each.format for each in available}:
        label = "if there is such a checkpoint"
    return f" ({label})" if label else ""


def _variants(resolved: ResolvedScenario) -> Iterator[list[tuple[str, Any]]]:
    """Yield the changes to try, one list per kind: the mildest first, and kinds by what they cost."""
    shape, asked = resolved.shape, resolved.scenario.deployment.engine
    engine = shape.engine
    if asked.max_model_len is not None and is_left_to_cpu(engine):
        yield [("engine.max_model_len", 2**power) for power in reversed(range((asked.max_model_len - 1).bit_length()))]
    elif asked.max_model_len is not None and resolved.memory.longest_sequence >= 2:
        yield [("engine.max_model_len", resolved.memory.longest_sequence)]
    yield from _smaller_caches(resolved)
    for key in _LIMITS:
        below = int(getattr(engine, key)) - 1
        yield [(f"engine.{key}", 2**power) for power in reversed(range(below.bit_length()))]
    first = 100 if _lacks_share(resolved) else int(engine.gpu_memory_utilization * 100) + 1
    yield [("engine.gpu_memory_utilization", cent / 100) for cent in range(first, round(_LARGEST_SHARE * 100) + 1)]
    known = [each.format for each in formats_available(shape.model, engine, shape.hardware)]
    narrow = [each for each in known if each != shape.quantization and each not in WIDE_FORMATS]
    # Of most models somebody publishes weights in 4 bit, though no checkpoint of it may be in the catalogue.
    is_wide = shape.quantization in WIDE_FORMATS and shape.model.stored.is_wide
    yield [("quantization", each) for each in (*narrow, *((_FOUR_BITS,) if is_wide else ()))]
    if shape.num_gpus == 1 and not is_left_to_cpu(engine):
        layers = range(shape.model.num_hidden_layers - 1, 0, -1)
        if "n_cpu_moe" in engine.features and shape.model.moe is not None:
            yield [("engine.n_cpu_moe", each) for each in range(1, shape.model.num_hidden_layers + 1)]
        for key in (each for each in GPU_LAYERS if each in engine.features):
            yield [(f"engine.{key}", each) for each in layers]
    yield from _more_gpus(shape)


def _more_gpus(shape: ReplicaShape) -> Iterator[list[tuple[str, Any]]]:
    """Yield more tensor-parallel ranks, and more stages.

    Stages come first if more ranks would span several nodes, or if the engine gives each GPU layers of its own.
    """
    ranks, stages = shape.tensor_parallel_size, shape.pipeline_parallel_size
    sizes = [ranks * factor for factor in (2, 4, 8, 16, 32) if ranks * factor <= _LARGEST_TENSOR_PARALLEL]
    more_ranks = [("tensor_parallel_size", each) for each in sizes]
    more_stages = [("pipeline_parallel_size", stages * factor) for factor in (2, 4)]
    is_node_full = 2 * ranks > shape.hardware.intra_node.gpus_per_node
    is_layers = bool({*GPU_LAYERS} & {*shape.engine.features})
    yield from [more_stages, more_ranks] if is_node_full or is_layers else [more_ranks, more_stages]


def _smaller_caches(resolved: ResolvedScenario) -> Iterator[list[tuple[str, Any]]]:
    """Yield the largest KV cache that fits, if the scenario sets its size."""
    engine, memory = resolved.shape.engine, resolved.memory
    room = memory.total_bytes - sum(value for name, value in memory.parts.items() if name not in ("kv", "unused"))
    block_bytes = pool_block_bytes(resolved.shape, memory.draft_kv_bytes_per_token)
    block_bytes = memory.kv_bytes_per_token * memory.block_size if block_bytes is None else block_bytes
    for key, unit in (("num_gpu_blocks_override", block_bytes), ("kv_cache_memory_bytes", 1.0)):
        most = int(room // unit)
        if getattr(engine, key) is not None and most > 0:
            yield [(f"engine.{key}", most)]


def _fitting(scenario: Scenario, variants: list[tuple[str, Any]], needed: int) -> Iterator[str]:
    for key, value in variants:
        plan = _plan(scenario, key, value)
        if plan is None or not plan.fits or plan.shortage_bytes or is_left_to_cpu(plan.shape.engine):
            continue
        if plan.max_model_len >= needed:
            yield f"deployment.{key}={value}"


def _plan(scenario: Scenario, key: str, value: Any) -> MemoryPlan | None:
    """Return the memory of the scenario with one key changed, None if that cannot be deployed."""
    deployment = scenario.deployment
    if key.startswith("engine."):
        engine = deployment.engine.model_copy(update={key.removeprefix("engine."): value})
        changed = deployment.model_copy(update={"engine": engine})
    else:
        changed = deployment.model_copy(update={key: value})
    try:
        return plan_memory(replica_shape(scenario.model_copy(update={"deployment": changed})))
    except InputError:
        return None


def memory_report(resolved: ResolvedScenario) -> dict[str, Any]:
    """Return the answer of `simserve memory` as plain values; bytes are those of the fullest GPU.

    With several pools ``pools`` has the same of each by its name, with its role and replicas; the figures above are
    those of the first, but for ``warnings fits num_gpus formats what_fits``, which are of all of them.
    """
    specs = resolved.scenario.deployment.pools
    if not specs:
        return {"warnings": leading_warnings(resolved.scenario), **_own_report(resolved), "pools": {}}
    pools = {
        spec.name: {"role": spec.role, "replicas": spec.replicas, **_own_report(own)}
        for spec, own in zip(specs, resolved.pools, strict=True)
    }
    return {
        "warnings": leading_warnings(resolved.scenario),
        **_own_report(resolved.pools[0]),
        "fits": all(each["fits"] for each in pools.values()),
        "num_gpus": resolved.num_gpus,
        "formats": resolved.formats,
        "what_fits": [change for each in pools.values() for change in each["what_fits"]],
        "pools": pools,
    }


def _own_report(resolved: ResolvedScenario) -> dict[str, Any]:
    """Return what `memory_report` says of one kind of replica, without warnings."""
    memory, shape = resolved.memory, resolved.shape
    fits = _reason(resolved) is None
    limits = open_limits(resolved)
    changes = [] if fits and not memory.shortage_bytes else remedies(resolved)
    return {
        "fits": fits,
        "model": shape.model.name,
        "hardware": shape.hardware.name,
        "num_gpus": resolved.num_gpus,
        "formats": resolved.formats,
        "total_bytes": memory.total_bytes,
        "usable_bytes": memory.usable_bytes,
        "weights_bytes": memory.weights_bytes,
        "draft_weights_bytes": memory.draft_weights_bytes,
        "states_bytes": memory.states_bytes,
        "lora_bytes": memory.lora_bytes,
        "activation_bytes": memory.activation_bytes,
        "non_torch_bytes": memory.non_torch_bytes,
        "cuda_graph_bytes": memory.cuda_graph_bytes,
        "kv_bytes": memory.kv_bytes,
        "kv_bytes_per_token": memory.kv_bytes_per_token,
        "draft_kv_bytes_per_token": memory.draft_kv_bytes_per_token,
        "block_size": memory.block_size,
        "num_kv_blocks": memory.num_kv_blocks,
        "max_model_len": memory.max_model_len,
        "longest_sequence": memory.longest_sequence,
        "shortage_bytes": memory.shortage_bytes,
        "host_bytes": memory.host_bytes,
        "max_concurrent_full_length": memory.max_concurrent_full_length,
        "parts": dict(memory.parts),
        "arithmetic": [
            *memory.arithmetic,
            *lora_lines(resolved.engine, shape, resolved.scenario.workload.loras),
            *encoder_lines(resolved),
            *tier_lines(resolved.engine, memory.kv_bytes_per_token * shape.num_gpus),
        ],
        "open_limits": None if limits is None else resolved.scenario.with_keys_placed(limits),
        "quality": quality_of(shape),
        "what_fits": [resolved.scenario.with_keys_placed(change) for change in changes],
        "engine_resolved": shape.engine.model_dump(),
    }


class _Problem(NamedTuple):
    wrong: str
    key: str
    value: float


def open_limits(resolved: ResolvedScenario) -> str | None:
    """Return in one sentence what is wrong with the limits of a replica, and what to set instead; None if nothing."""
    if resolved.pools or not resolved.memory.fits:
        return None
    problems = (_long_step(resolved), _long_request(resolved), _little_left(resolved), _beyond_model(resolved))
    found = [each for each in problems if each]
    if not found:
        return None
    wrong = "; ".join(each.wrong for each in found)
    advice: dict[str, float] = {}
    for each in found:
        advice[each.key] = min(each.value, advice.get(each.key, each.value))
    instead = " ".join(f"--set deployment.engine.{key}={value}" for key, value in advice.items())
    return f"Limits wide open: {wrong}. To set them: {instead}"


def _long_step(resolved: ResolvedScenario) -> _Problem | None:
    config = resolved.engine
    budget = config.max_num_batched_tokens
    if config.batching == "static" or config.kv_allocation == "none":
        return None
    times = price(resolved.shape).step_times
    seconds = _token_seconds(times, budget)
    if seconds < LONG_STEP_SECONDS:
        return None
    shorter = budget
    while shorter > 1024 and _token_seconds(times, shorter) > SHORTER_STEP_SECONDS:
        shorter //= 2
    wrong = (
        f"a step of {budget:,} prompt tokens takes {seconds:.2g} s, not {1e3 * float(times.decode_base[1]):.0f} ms, "
        "and every running answer stands still meanwhile"
    )
    # An engine that does not chunk takes whole prompts: its budget follows the longest request.
    return _Problem(wrong, "max_num_batched_tokens" if config.enable_chunked_prefill else "max_model_len", shorter)


def _token_seconds(times: StepTimes, tokens: int) -> float:
    last = len(times.token_seconds) - 1
    return float(times.token_seconds[min(tokens, last)]) + times.token_seconds_beyond * max(tokens - last, 0)


def _long_request(resolved: ResolvedScenario) -> _Problem | None:
    memory, full = resolved.memory, resolved.memory.max_concurrent_full_length
    asked = resolved.scenario.deployment.engine.max_model_len
    has_slots = _lacks_share(resolved)  # each has its context from the beginning
    if asked is not None or full is None or full >= FEW_FULL_LENGTH or has_slots:
        return None
    longest = memory.max_model_len
    size = longest * memory.kv_bytes_per_token if memory.windows is None else memory.kv_bytes / full
    filling = "one of those fills" if full < LEAST_SEVERAL else f"{full:.1f} of those fill"
    wrong = (
        f"without a maximum length a request may take {longest:,} tokens, {format_bytes(size)} a GPU, and {filling} "
        "the KV cache, so that the others wait or are preempted"
    )
    shorter = 1 << (longest.bit_length() - 1)  # a power of two, as is customary
    while shorter > 2048 and full * longest / shorter < FEW_FULL_LENGTH:
        shorter //= 2
    return _Problem(wrong, "max_model_len", shorter)


def _little_left(resolved: ResolvedScenario) -> _Problem | None:
    memory, share = resolved.memory, resolved.shape.engine.gpu_memory_utilization
    if _lacks_share(resolved) or share < HIGH_UTILIZATION:
        return None
    left = memory.total_bytes - memory.usable_bytes
    wrong = (
        f"{share:.0%} of the memory leaves {format_bytes(left)} a GPU for CUDA graphs, fragments and other processes, "
        "so that a peak ends the server"
    )
    return _Problem(wrong, "gpu_memory_utilization", 0.9)


def _lacks_share(resolved: ResolvedScenario) -> bool:
    """Return whether the engine allocates what its slots need, and is given GPU layers instead of a share of memory."""
    return any(key in resolved.shape.engine.features for key in GPU_LAYERS)


def _beyond_model(resolved: ResolvedScenario) -> _Problem | None:
    longest, known = resolved.memory.max_model_len, resolved.shape.model.max_position_embeddings
    if longest <= known:
        return None
    wrong = (
        f"{resolved.shape.model.name} was trained on {known:,} positions: seconds and bytes hold up to {longest:,}, "
        "the quality of the answers does not"
    )
    return _Problem(wrong, "max_model_len", known)
