"""Outcome: what the walker hands back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """What happened to every request (row i is request i) and to the replica.

    Attributes:
        arrival_time: Seconds; nan if never sent.
        ready_time: Seconds at which the scheduler sees the request; nan if never sent.
        scheduled_time: Start of the step that first holds the request, seconds; nan if none did, as below.
        first_token_time: Seconds.
        finish_time: Seconds; nan for a failed request.
        itl_max: Largest gap between two tokens, seconds.
        num_preemptions: Times the request lost its blocks.
        generated_tokens: Tokens it was given.
        status: ``completed`` or ``failed``.
        is_truncated: Whether the model's limit cut what was asked for.
        num_steps: Steps of the engine.
        gaps: Every gap between two consecutive tokens of one request, seconds.
        batches: Of each step (static: each batch) its start, decoding requests, prefill tokens and indices.
        step_ends: End of each step (static: each batch), seconds.
        deadlines: Static: instants at which a batch would start for having waited long enough, seconds.
        cached_tokens: Of each prompt, found in the prefix cache when it was first admitted.
        closest_estimate: ``estimate``: the nearest that the two sides of the admission test came, tokens.
    """

    arrival_time: np.ndarray
    ready_time: np.ndarray
    scheduled_time: np.ndarray
    first_token_time: np.ndarray
    finish_time: np.ndarray
    itl_max: np.ndarray
    num_preemptions: np.ndarray
    generated_tokens: np.ndarray
    status: list[str]
    is_truncated: np.ndarray
    num_steps: int
    gaps: list[float]
    batches: list[tuple[float, int, int, tuple[int, ...]]]
    step_ends: list[float]
    deadlines: list[float]
    closest_estimate: float
    cached_tokens: np.ndarray
