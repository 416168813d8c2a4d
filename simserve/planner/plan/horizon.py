"""How far ahead a plan buys: months, growth, prices and what may be spent, as a command line says them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from simserve.errors import UsageError

MONTHS_PER_YEAR = 12
MOST_MONTHS = 120
COMMITMENTS: Mapping[int, float] = {1: 0.25, 3: 0.45}
"""Years of a commitment -> share below the price on demand, where none are given: assumptions. One year: 20 to 40 % are
offered (packet.ai/blog/gpu-pricing-models-compared, June 2026); an index of one-year H100 contracts stood at $2.35 in
March 2026 (SemiAnalysis, as quoted by compux.net), 20 % below the $2.95 of 58 sellers on demand; hyperscalers ask 35
to 40 % less (digiterialabs.com, first quarter of 2026). Three years: 30 to 60 % by term and payment
(disintermediate.global, first quarter of 2026)."""
_MONTHS = re.compile(r"(\d{1,4})\s*(mo|months?|y|years?)")
_SHARE = re.compile(r"(-?\d{1,6}(?:\.\d{1,6})?)\s*%\s*/\s*(month|mo|year|y)")
_BUDGET = re.compile(r"\$?\s*(\d[\d,]{0,18}(?:\.\d{1,2})?)\s*([kKmM]?)\s*(?:/\s*(?:month|mo))?")
_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6}
_COMMITMENT = re.compile(r"(\d)\s*y(?:ears?)?\s*=\s*(\d{1,2}(?:\.\d{1,4})?)\s*%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """What a purchase looks ahead to.

    Attributes:
        months: Months of 30 days that are bought for.
        growth: Share by which traffic grows from one month to the next; None: the scenario's.
        price_decline: Share by which a GPU-hour gets cheaper from one month to the next; None: the scenario's.
        budget: Dollars that a month may cost; None: any.
        commitments: Years of a term -> share below the price on demand.
        is_assumed: Whether those shares are the ones of `COMMITMENTS`.
    """

    months: int
    growth: float | None = None
    price_decline: float | None = None
    budget: float | None = None
    commitments: Mapping[int, float] = field(default_factory=lambda: COMMITMENTS)
    is_assumed: bool = True


def horizon_of(
    months: str | None,
    growth: str | None = None,
    price_decline: str | None = None,
    budget: str | None = None,
    commitments: str | None = None,
) -> Horizon | None:
    """Return a horizon as a command line says it: ``12mo``, ``5%/month``, ``20%/year``, ``20k/month``, ``1y=30%``.

    None where there is none.

    Raises:
        UsageError: One of them says something else, or is out of range.
    """
    if months is None:
        others = {"--growth": growth, "--price-decline": price_decline, "--budget": budget}
        given = next(((name, text) for name, text in (others | {"--commitments": commitments}).items() if text), None)
        if given is not None:
            raise UsageError("goes with --horizon", key=given[0], value=given[1], remedy="add --horizon 12mo")
        return None
    return Horizon(
        months=_months(months),
        growth=None if growth is None else _per_month(growth, "--growth"),
        price_decline=None if price_decline is None else _per_month(price_decline, "--price-decline", falls=True),
        budget=None if budget is None else _dollars(budget),
        commitments=COMMITMENTS if commitments is None else _commitments(commitments),
        is_assumed=commitments is None,
    )


def _months(text: str) -> int:
    match = _MONTHS.fullmatch(text.strip())
    found = 0 if match is None else int(match[1]) * (MONTHS_PER_YEAR if match[2].startswith("y") else 1)
    if not 1 <= found <= MOST_MONTHS:
        raise UsageError(f"must be 1 to {MOST_MONTHS} months, such as 12mo or 3y", key="--horizon", value=text)
    return found


def _per_month(text: str, option: str, *, falls: bool = False) -> float:
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise UsageError("must be a share of a month or year, such as 5%/month", key=option, value=text)
    share = float(match[1]) / 100
    if not -0.9 <= share <= (0.9 if falls else 10):
        raise UsageError(f"must lie between -90% and {'90%' if falls else '1000%'}", key=option, value=text)
    if match[2].startswith("m"):
        return share
    return float(1 - (1 - share) ** (1 / MONTHS_PER_YEAR)) if falls else float((1 + share) ** (1 / MONTHS_PER_YEAR) - 1)


def _dollars(text: str) -> float:
    match = _BUDGET.fullmatch(text.strip())
    found = 0.0 if match is None else float(match[1].replace(",", "")) * _THOUSANDS[match[2].lower()]
    if not 0 < found < 1e15:
        raise UsageError("must be dollars a month, such as 20000/month or 20k", key="--budget", value=text)
    return found


def _commitments(text: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for part in () if text.strip() == "none" else text.split(","):
        match = _COMMITMENT.fullmatch(part.strip())
        if match is None or not int(match[1]):
            rule = "must be years and shares below on demand, such as 1y=30%,3y=50%, or none"
            raise UsageError(rule, key="--commitments", value=text)
        found[int(match[1])] = float(match[2]) / 100
    return found
