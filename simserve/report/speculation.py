"""Speculative decoding of a run as lines of text: what it accepts, what it gains, from which batch on it costs."""

from __future__ import annotations

from simserve.metrics.result import RunResult
from simserve.report.quantities import counted, number, share


def speculation_lines(result: RunResult) -> list[str]:
    """Return how many drafts were accepted and how much faster decoding was for it; empty without drafts."""
    block = result.summary["simserve"]["speculation"]
    if block["method"] is None:
        return []
    drafter = block["draft_model"] or block["method"]
    ahead = f"{drafter} drafts {counted(block['num_speculative_tokens'], 'token')} ahead"
    if not block["num_drafts"]:
        return [f"{ahead}; no request decoded"]
    length = number(block["mean_acceptance_length"])
    return [
        f"{ahead}: {length} tokens a step on average, {share(block['acceptance_rate'])} of the drafts accepted",
        _gain(block["decode_speedup"], block["mean_batch"], block["break_even_batch"]),
        "the tokens of a step arrive together: ITL is the gap between steps, TPOT that between tokens",
    ]


def _gain(speedup: float, batch: float, break_even: int | None) -> str:
    turning = "no batch is large enough to make it slower"
    if break_even is not None:
        turning = f"slower than without from {counted(break_even, 'sequence')} on"
    times = f"{number(speedup)}x as fast as without drafts"
    return f"steps that only decode: {times} at the mean batch of {number(batch)}; {turning}"
