"""The traffic of an imported deployment, of which nothing is known."""

from __future__ import annotations

from typing import Any

PLACEHOLDER_NOTE = (
    "The traffic is a placeholder, 1 request a second with the lengths of the Azure conversation trace of 2023: "
    "put yours in workload."
)
_PROMPT_MEAN, _OUTPUT_MEAN = 1155, 211
"""Means of the trace, tokens."""
_PROMPT_MAX, _OUTPUT_MAX = 8000, 1000


def placeholder_workload(max_model_len: int) -> dict[str, Any]:
    """Return a workload whose requests fit a context length, tokens."""
    longest_prompt = max(min(_PROMPT_MAX, max_model_len // 2), 1)
    longest_output = max(min(_OUTPUT_MAX, max_model_len // 4), 1)
    return {
        "arrivals": {"process": "poisson", "rate": 1.0},
        "prompt_tokens": {
            "distribution": "lognormal",
            "mean": min(_PROMPT_MEAN, max(longest_prompt // 3, 1)),
            "cv": 1.0,
            "max": longest_prompt,
        },
        "output_tokens": {
            "distribution": "lognormal",
            "mean": min(_OUTPUT_MEAN, max(longest_output // 3, 1)),
            "cv": 0.8,
            "max": longest_output,
        },
        "num_requests": 1000,
    }
