"""Trace: what every reader returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Recorded requests in order of arrival; row i is request i.

    Attributes:
        arrival_time: Seconds from the start of the run, ascending, float64.
        prompt_tokens: >= 1, int64.
        output_tokens: >= 1, int64.
        max_tokens: What the clients asked for, >= output_tokens, int64; None where the trace does not say.
    """

    arrival_time: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    max_tokens: NDArray[np.int64] | None = None
