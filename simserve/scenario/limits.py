"""What goes wrong where a deployment's limits are left wide open: long steps, long requests, no memory to spare.

Says nothing of traffic: each is a property of the limits, with its arithmetic. Simulates nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from simserve.engine.tables import StepTimes
from simserve.perf.pricing import price
from simserve.scenario.resolve import ResolvedScenario
from simserve.units import format_bytes

LONG_STEP_SECONDS = 1.0
"""A step from which on everybody who reads an answer sees it stop: twenty times a TPOT of 50 ms."""
SHORTER_STEP_SECONDS = 0.25
FEW_FULL_LENGTH = 16.0
"""Requests of full length in the KV cache below which a handful of them stops all others."""
LEAST_SEVERAL = 1.05
"""Requests of full length below which the KV cache holds one of them."""
HIGH_UTILIZATION = 0.95
"""Share of the memory from which on vLLM's own advice is to lower it: graphs and other processes come on top."""


class _Problem(NamedTuple):
    wrong: str
    key: str
    value: float


def open_limits(resolved: ResolvedScenario) -> str | None:
    """Return in one sentence what goes wrong with the limits of a replica, and what to set instead; None if nothing."""
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
    if asked is not None or full is None or full >= FEW_FULL_LENGTH:
        return None
    longest = memory.max_model_len
    size = longest * memory.kv_bytes_per_token if memory.windows is None else memory.kv_bytes / full
    filling = "one of those fills" if full < LEAST_SEVERAL else f"{full:.1f} of those fill"
    wrong = (
        f"without a maximum length a request may take {longest:,} tokens, {format_bytes(size)} a GPU, and {filling} "
        "the KV cache, so that the others wait or are preempted"
    )
    shorter = 1 << (longest.bit_length() - 1)  # a power of two, as people set it
    while shorter > 2048 and full * longest / shorter < FEW_FULL_LENGTH:
        shorter //= 2
    return _Problem(wrong, "max_model_len", shorter)


def _little_left(resolved: ResolvedScenario) -> _Problem | None:
    memory, share = resolved.memory, resolved.shape.engine.gpu_memory_utilization
    if share < HIGH_UTILIZATION:
        return None
    left = memory.total_bytes - memory.usable_bytes
    wrong = (
        f"{share:.0%} of the memory leaves {format_bytes(left)} a GPU for CUDA graphs, fragments and other processes, "
        "so that a peak ends the server"
    )
    return _Problem(wrong, "gpu_memory_utilization", 0.9)


def _beyond_model(resolved: ResolvedScenario) -> _Problem | None:
    longest, known = resolved.memory.max_model_len, resolved.shape.model.max_position_embeddings
    if longest <= known:
        return None
    wrong = (
        f"{resolved.shape.model.name} was trained on {known:,} positions: seconds and bytes hold up to {longest:,}, "
        "the quality of the answers does not"
    )
    return _Problem(wrong, "max_model_len", known)
