"""Small builders of scheduler inputs: every test states only what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from simserve.engine.config import EngineConfig
from simserve.engine.state import StepTimes
from simserve.sim.control import FaultSpec
from simserve.workload.requests import RequestSpecs


def make_faults(*faults: dict[str, Any]) -> tuple[FaultSpec, ...]:
    """Return faults as a scenario writes them."""
    return TypeAdapter(tuple[FaultSpec, ...]).validate_python(faults)


def make_config(**overrides: Any) -> EngineConfig:
    """Return a small replica: 4 seats, 32 tokens a step, 32 blocks of 4 tokens, 64 tokens a request.

    ``max_chunk_tokens`` follows ``max_num_batched_tokens`` unless it is given.
    """
    values: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "max_model_len": 64,
        "block_size": 4,
        "num_blocks": 32,
    }
    values.update(overrides)
    values.setdefault("max_chunk_tokens", values["max_num_batched_tokens"])
    return EngineConfig(**values)


def constant_step_times(seconds: float = 1.0, max_num_seqs: int = 8) -> StepTimes:
    """Return tables in which every step that holds anything takes ``seconds``."""
    return affine_step_times(max_num_seqs=max_num_seqs, step_seconds=seconds)


def affine_step_times(
    *,
    max_num_seqs: int = 32,
    step_seconds: float = 1.0,
    decode_sequence_seconds: float = 0.0,
    decode_context_seconds: float = 0.0,
    token_seconds: float = 0.0,
    sequence_seconds: float = 0.0,
    decode_attention_seconds: float = 0.0,
    prefill_request_seconds: float = 0.0,
    prefill_pair_seconds: float = 0.0,
    prefill_context_seconds: float = 0.0,
    num_table_tokens: int = 64,
) -> StepTimes:
    """Return tables that are affine in what a step holds.

    Args:
        max_num_seqs: Last index of the tables over sequences.
        step_seconds: Seconds of every step, whatever it holds.
        decode_sequence_seconds: Seconds a sequence in a step that only decodes.
        decode_context_seconds: Seconds a context token of the decoding sequences, in any step.
        token_seconds: Seconds a token in a step with prefill, inside the table and beyond it.
        sequence_seconds: Seconds a sequence in a step with prefill.
        decode_attention_seconds: Seconds a decoding sequence in a step with prefill.
        prefill_request_seconds: Seconds a prefilling request.
        prefill_pair_seconds: Seconds an attended pair.
        prefill_context_seconds: Seconds a key read.
        num_table_tokens: Last index of the table over tokens.
    """
    sequences = range(max_num_seqs + 1)
    return StepTimes(
        decode_base=[0.0 if n == 0 else step_seconds + decode_sequence_seconds * n for n in sequences],
        decode_slope=[0.0 if n == 0 else decode_context_seconds for n in sequences],
        token_seconds=[step_seconds + token_seconds * x for x in range(num_table_tokens + 1)],
        token_seconds_beyond=token_seconds,
        sequence_seconds=[sequence_seconds * n for n in sequences],
        decode_attention_base=[decode_attention_seconds * n for n in sequences],
        prefill_request_seconds=prefill_request_seconds,
        prefill_pair_seconds=prefill_pair_seconds,
        prefill_context_seconds=prefill_context_seconds,
    )


def make_specs(
    arrivals: Sequence[float],
    prompts: int | Sequence[int],
    outputs: int | Sequence[int],
    max_tokens: int | Sequence[int] | None = None,
) -> RequestSpecs:
    """Return open-loop requests that arrive at ``arrivals`` (seconds, ascending).

    Args:
        arrivals: Seconds, ascending; their number is the number of requests.
        prompts: Prompt tokens, one number for all or one each.
        outputs: Output tokens, one number for all or one each.
        max_tokens: What the client asks for; None: exactly the output, -1: the model's limit.
    """
    count = len(arrivals)
    output_tokens = _column(outputs, count)
    return RequestSpecs(
        arrival_time=np.asarray(arrivals, dtype=np.float64),
        prompt_tokens=_column(prompts, count),
        output_tokens=output_tokens,
        max_tokens=output_tokens.copy() if max_tokens is None else _column(max_tokens, count),
        think_time=np.empty(0, dtype=np.float64),
        concurrency=None,
        is_stationary=False,
        offered_rate=float("nan"),
    )


def make_closed_loop(
    concurrency: int,
    prompts: Sequence[int],
    outputs: int | Sequence[int],
    think_times: float | Sequence[float] = 0.0,
    max_tokens: int | Sequence[int] | None = None,
) -> RequestSpecs:
    """Return closed-loop requests, one a prompt, sent by ``concurrency`` clients.

    Args:
        concurrency: Number of clients.
        prompts: Prompt tokens of each request.
        outputs: Output tokens, one number for all or one each.
        think_times: Seconds between an answer and the request it lets go, one number for all or one each.
        max_tokens: What the client asks for; None: exactly the output, -1: the model's limit.
    """
    count = len(prompts)
    output_tokens = _column(outputs, count)
    return RequestSpecs(
        arrival_time=np.full(count, np.nan),
        prompt_tokens=_column(prompts, count),
        output_tokens=output_tokens,
        max_tokens=output_tokens.copy() if max_tokens is None else _column(max_tokens, count),
        think_time=np.broadcast_to(np.asarray(think_times, dtype=np.float64), count).copy(),
        concurrency=concurrency,
        is_stationary=False,
        offered_rate=float("nan"),
    )


def _column(values: int | Sequence[int], count: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(values, dtype=np.int64), count).copy()


def coverage_bounds(sources: int) -> tuple[float, float]:
    """Return between what shares a 90 % interval may hold, for a group of sources whose errors go together.

    80 to 97 %, and nearer to 90 % where many sources tell it: a source's own share scatters by some 0.15 about that of
    all, so the mean of n by 0.15 / sqrt(n), and 2.7 of that are 4 points for 100 sources.
    """
    reach = 0.4 / sources**0.5
    return max(0.9 - reach, 0.80), min(0.9 + reach, 0.97)
