"""A measured run as ``vllm bench serve --save-result --save-detailed`` writes it, figures by that tool's definitions.

vllm/benchmarks/serve.py, ``calculate_metrics``: TPOT is (latency - TTFT) / (output tokens - 1) of each request with
more than one token; ITL pools every gap between the pieces of an answer. Summaries are ms, the lists seconds. An answer
that comes in one piece has no TPOT here, where that tool says 0: something on the way holds answers back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

DIGITS = 6
"""Decimals of the seconds of a file: microseconds."""

PERCENTILES = (50, 90, 95, 99)


class Answered(NamedTuple):
    """One request that was answered; times in seconds of one clock."""

    sent: float
    """When it was sent."""
    pieces: Sequence[float]
    """When each piece of the answer came, at least one."""
    prompt_tokens: int
    output_tokens: int


def held_back(answers: Sequence[Answered]) -> list[bool]:
    """Return which answers came in one piece that the server made of several: their times are not the server's.

    A server that drafts brings several tokens in a step: as many as a piece of its other answers holds are no sign.
    """
    in_pieces = [each for each in answers if len(each.pieces) > 1]
    of_a_piece = max((-(-each.output_tokens // len(each.pieces)) for each in in_pieces), default=1)
    return [len(each.pieces) == 1 and each.output_tokens > of_a_piece for each in answers]


def bench_file(
    answers: Sequence[Answered],
    *,
    backend: str,
    model: str,
    request_rate: float | str,
    max_concurrency: int | None,
    date: str,
    failed: int = 0,
) -> dict[str, Any]:
    """Return the JSON of a run.

    Args:
        answers: At least one, in the order in which they were sent.
        backend: Who was asked: its engine.
        model: The name under which the model is served.
        request_rate: Requests/s of Poisson arrivals, or ``"inf"`` of a closed loop.
        max_concurrency: Clients of a closed loop.
        date: When it was measured.
        failed: Requests that were not answered.
    """
    sent = np.array([each.sent for each in answers])
    last = np.array([each.pieces[-1] for each in answers])
    ttft = np.array([each.pieces[0] for each in answers]) - sent
    gaps = [np.diff(each.pieces) for each in answers]
    prompts, outputs = [each.prompt_tokens for each in answers], [each.output_tokens for each in answers]
    written = np.array(outputs)
    has_tpot = (written > 1) & ~np.array(held_back(answers))
    tpot = ((last - sent - ttft) / np.maximum(written - 1, 1))[has_tpot]
    duration = float(last.max() - sent.min())
    document: dict[str, Any] = {
        "date": date,
        "backend": backend,
        "model_id": model,
        "num_prompts": len(answers) + failed,
        "request_rate": request_rate,
        "burstiness": 1.0,
        "max_concurrency": max_concurrency,
        "duration": duration,
        "completed": len(answers),
        "failed": failed,
        "total_input_tokens": sum(prompts),
        "total_output_tokens": sum(outputs),
        "request_throughput": len(answers) / duration,
        "output_throughput": sum(outputs) / duration,
        "total_token_throughput": (sum(outputs) + sum(prompts)) / duration,
    }
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", np.concatenate(gaps)), ("e2el", last - sent)):
        document |= _summary(name, values) if len(values) else {}
    return document | {
        "input_lens": prompts,
        "output_lens": outputs,
        "start_times": [round(float(each - sent.min()), DIGITS) for each in sent],
        "ttfts": [round(float(each), DIGITS) for each in ttft],
        "itls": [[round(float(gap), DIGITS) for gap in each] for each in gaps],
        "errors": [""] * len(answers),
    }


def _summary(name: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    figures = {f"mean_{name}_ms": values.mean(), f"median_{name}_ms": np.median(values), f"std_{name}_ms": values.std()}
    figures |= {f"p{share}_{name}_ms": np.percentile(values, share) for share in PERCENTILES}
    return {key: float(value) * 1e3 for key, value in figures.items()}
