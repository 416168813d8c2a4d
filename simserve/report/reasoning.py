"""What a run thought before its answers, as lines of text."""

from __future__ import annotations

from simserve.metrics.result import RunResult
from simserve.report.quantities import UNDEFINED, count, counted, dollars, number, share


def reasoning_lines(result: RunResult) -> list[str]:
    """Return how long readers waited for the answer, and what the thinking before it cost; empty without thinking."""
    block = result.summary["simserve"].get("reasoning")
    if block is None or block["ttfvt_ms"] is None:
        return []
    times = block["ttfvt_ms"]
    shown = (_seconds(times[name]) for name in ("mean", "p50", "p95", "p99"))
    lines = [
        "first visible token: {} mean, {} median, {} p95, {} p99 (TTFVT; TTFT counts hidden tokens)".format(*shown),
        f"{share(block['thinking_share'])} of the output tokens are thinking: {count(block['thinking_tokens'])} before "
        f"{count(block['visible_tokens'])} visible ones",
    ]
    dollar = block["usd_per_million_visible_tokens"]
    if dollar is not None:
        lines.append(f"{dollars(dollar)} a million visible tokens")
    if block["num_without_answer"]:
        lines.append(f"{counted(block['num_without_answer'], 'request')} thought up to the limit and answered nothing")
    return lines


def _seconds(milliseconds: float | None) -> str:
    return UNDEFINED if milliseconds is None else f"{number(milliseconds / 1e3)} s"
