"""Rounds of rollouts in lines of text: how long they take, their tails and what they cost. Empty without rounds."""

from __future__ import annotations

from simserve.metrics.result import RunResult
from simserve.report.quantities import count, dollars, share
from simserve.units import format_seconds


def round_text(result: RunResult) -> str | None:
    """Return what a round takes and costs, in one line; None where none has finished."""
    rounds = result.summary["simserve"].get("rounds") or {}
    if not rounds.get("finished"):
        return None
    price = "" if rounds["usd_per_round"] is None else f", {dollars(rounds['usd_per_round'])} each"
    return (
        f"{format_seconds(rounds['mean_round_s'])} mean, {format_seconds(rounds['max_round_s'])} the longest; "
        f"{share(rounds['tail_share'])} of it for the last tenth of the answers{price}"
    )


def round_lines(result: RunResult) -> list[str]:
    """Return the figures of the rounds."""
    rounds = result.summary["simserve"].get("rounds") or {}
    text = round_text(result)
    if text is None:
        return []
    return [
        text,
        f"{count(round(rounds['begun']))} begun, {count(round(rounds['finished']))} finished; "
        f"half of the answers after {format_seconds(rounds['mean_half_s'])}",
        f"{share(rounds['generating_share'])} of the time is generating, the rest training and the new weights",
    ]
