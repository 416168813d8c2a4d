"""Speculative decoding of one run in figures. Knows totals, not how drafts come about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simserve.sim.drafts import SpeculationTotals
    from simserve.sim.recorder import RunTotals

_KEYS = (
    "method",
    "draft_model",
    "num_speculative_tokens",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "acceptance_rate",
    "mean_acceptance_length",
    "expected_acceptance_length",
    "draft_seconds",
    "mean_batch",
    "decode_speedup",
    "break_even_batch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationFacts:
    """What is known of speculative decoding besides what a run counts.

    Attributes:
        method: Who drafts.
        draft_model: Its name; None where no model of its own drafts.
        num_speculative_tokens: Drafts a step.
        expected_tokens: Tokens a step that the acceptance given leads to, of an answer without end.
        mean_batch: Sequences in a decode step on average; None: no request decoded.
        decode_speedup: Of decode steps at that batch, against the same batch without drafts.
        break_even_batch: Fewest sequences at which decode steps are slower than without drafts; None: none.
    """

    method: str
    draft_model: str | None
    num_speculative_tokens: int
    expected_tokens: float
    mean_batch: float | None
    decode_speedup: float | None
    break_even_batch: int | None


def speculation_summary(
    facts: SpeculationFacts | None, counted: SpeculationTotals | None, totals: RunTotals
) -> dict[str, Any]:
    """Return the block ``speculation`` of a summary, every value None without speculative decoding.

    vLLM's terms: ``num_drafts`` counts the times a sequence was drafted for, ``acceptance_rate`` is accepted over
    drafted tokens, ``mean_acceptance_length`` one more than accepted tokens a draft. What the last step of an answer
    would have brought beyond its end does not count, so short answers stay below ``expected_acceptance_length``. Where
    pools differ, ``counted`` and the facts are those of the one that drafts most.
    """
    if facts is None or counted is None:
        return dict.fromkeys(_KEYS)
    drafted = counted.num_drafts * facts.num_speculative_tokens
    accepted = counted.num_tokens - counted.num_drafts
    values = (
        facts.method,
        facts.draft_model,
        facts.num_speculative_tokens,
        counted.num_drafts,
        drafted,
        round(accepted),
        accepted / drafted if drafted else math.nan,
        1.0 + accepted / counted.num_drafts if drafted else math.nan,
        facts.expected_tokens,
        totals.seconds_by_part["draft"],
        facts.mean_batch,
        facts.decode_speedup,
        facts.break_even_batch,
    )
    return dict(zip(_KEYS, values, strict=True))
