"""The options of a plan: what is searched, for what, and how far ahead it buys. Searches nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simserve.errors import UsageError
from simserve.planner.plan.price import Market
from simserve.planner.search.member import OBJECTIVES, Objective
from simserve.units import MONTHS_PER_YEAR, parse

MOST_MONTHS = 120
COMMITMENTS: Mapping[int, float] = {1: 0.25, 3: 0.45}
"""Years of a commitment -> share below the on-demand price, where none are given: assumptions. One year: 20 to 40 % are
offered (packet.ai/blog/gpu-pricing-models-compared, June 2026); an index of one-year H100 contracts was $2.35 in
March 2026 (SemiAnalysis, as quoted by compux.net), 20 % below the $2.95 of 58 on-demand sellers; hyperscalers ask 35
to 40 % less (digiterialabs.com, first quarter of 2026). Three years: 30 to 60 % by term and payment
(disintermediate.global, first quarter of 2026)."""
MTBF = 24 * 3600.0
"""Mean seconds until a spot replica is taken back, where nobody says: a cautious assumption. Google's preemptible VMs
run for 24 hours at most (cloud.google.com/compute/docs/instances/preemptible); of AWS's p5 nodes (H100) 10 to 20 %
were interrupted in a month (Spot Instance Advisor, 2025-05-01, as quoted by thundercompute.com)."""
NOTICE = 30.0  # Seconds of warning, as given by Google Cloud and Azure; AWS gives two minutes.
SPOT = "spot"
_MONTHS = re.compile(r"(\d{1,4})\s*(mo|months?|y|years?)")
_SHARE = re.compile(r"(-?\d{1,6}(?:\.\d{1,6})?)\s*%\s*/\s*(month|mo|year|y)")
_BUDGET = re.compile(r"\$?\s*(\d[\d,]{0,18}(?:\.\d{1,2})?)\s*([kKmM]?)\s*(?:/\s*(?:month|mo))?")
_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6}
_SPOT = re.compile(r"spot(?:\s*=\s*(\d{1,2}(?:\.\d{1,4})?)\s*%)?")
_TIMES = ("mtbf", "mttr", "notice")
_COMMITMENT = re.compile(r"(\d)\s*y(?:ears?)?\s*=\s*(\d{1,2}(?:\.\d{1,4})?)\s*%")
DEFAULT_TRIALS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """How spot replicas are taken back."""

    mtbf: float = MTBF  # Mean seconds until one is taken back.
    mttr: float | None = None
    """Mean seconds from then until its successor takes requests; None: the start-up of a replica."""
    notice: float = NOTICE  # Seconds of warning before that.
    is_assumed: bool = True  # Whether these are assumptions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """How far ahead a purchase looks."""

    months: int  # Number of months, of 30 days each, to buy for.
    growth: float | None = None  # Share by which traffic grows from one month to the next; None: the scenario's.
    price_decline: float | None = None
    """Share by which a GPU-hour gets cheaper from one month to the next; None: the scenario's."""
    budget: float | None = None  # Most dollars that a month may cost; None: no limit.
    commitments: Mapping[int, float] = field(default_factory=lambda: COMMITMENTS)
    """Years of a term -> share below the on-demand price."""
    offers_spot: bool = True  # Whether spot replicas are on offer.
    spot_below: float | None = None  # Share below the on-demand price for a spot replica; None: as in the catalogue.
    interruptions: Interruptions = Interruptions()  # How spot replicas are taken back.
    is_assumed: bool = True  # Whether the shares of the commitments are those of `COMMITMENTS`.


def horizon_of(
    months: str | None,
    growth: str | None = None,
    price_decline: str | None = None,
    budget: str | None = None,
    commitments: str | None = None,
    interruptions: str | None = None,
) -> Horizon | None:
    """Return a horizon as a command line says it: ``12mo``, ``5%/month``, ``20%/year``, ``20k/month``, ``1y=30%,spot``.

    None where none is given.

    Raises:
        UsageError: One of them is malformed or out of range.
    """
    if months is None:
        others = {"--growth": growth, "--price-decline": price_decline, "--budget": budget}
        others |= {"--commitments": commitments, "--interruptions": interruptions}
        given = next(((name, text) for name, text in others.items() if text), None)
        if given is not None:
            raise UsageError("goes with --horizon", key=given[0], value=given[1], remedy="add --horizon 12mo")
        return None
    terms: dict[int | str, float | None] = {SPOT: None}
    terms.update(COMMITMENTS.items())
    if commitments is not None:
        terms = _commitments(commitments)
    if interruptions is not None and SPOT not in terms:
        rule = "says how spot replicas are taken back, and --commitments offers none"
        raise UsageError(rule, key="--interruptions", value=interruptions, remedy="add spot to --commitments")
    return Horizon(
        months=_months(months),
        growth=None if growth is None else _per_month(growth, "--growth"),
        price_decline=None if price_decline is None else _per_month(price_decline, "--price-decline", falls=True),
        budget=None if budget is None else _dollars(budget),
        commitments={years: share for years, share in terms.items() if isinstance(years, int) and share is not None},
        offers_spot=SPOT in terms,
        spot_below=terms.get(SPOT),
        interruptions=Interruptions() if interruptions is None else _interruptions(interruptions),
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


def _commitments(text: str) -> dict[int | str, float | None]:
    """Return years, or `SPOT`, -> the share below on demand; None: the catalogue's."""
    found: dict[int | str, float | None] = {}
    for part in () if text.strip() == "none" else text.split(","):
        match, spot = _COMMITMENT.fullmatch(part.strip()), _SPOT.fullmatch(part.strip())
        if spot is not None:
            found[SPOT] = None if spot[1] is None else float(spot[1]) / 100
        elif match is not None and int(match[1]):
            found[int(match[1])] = float(match[2]) / 100
        else:
            rule = "must be years and shares below on demand, and spot, such as 1y=30%,3y=50%,spot=60%, or none"
            raise UsageError(rule, key="--commitments", value=text)
    return found


def _interruptions(text: str) -> Interruptions:
    """Return the interruptions of ``mtbf=24h,mttr=10min,notice=30s``; what is left out is assumed."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            if name not in _TIMES or name in found:
                raise ValueError
            found[name] = parse(value, "time")
        except ValueError:
            rule = "must be times by name, such as mtbf=24h,mttr=10min,notice=30s"
            raise UsageError(rule, key="--interruptions", value=text) from None
    if not found.get("mtbf", MTBF) > 0 or found.get("mttr") == 0:
        raise UsageError("must have an mtbf and an mttr above 0", key="--interruptions", value=text)
    return Interruptions(**found, is_assumed="mtbf" not in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What is searched, and for what."""

    hardware: tuple[str, ...] = ()
    """GPUs; empty: the scenario's own and those of the catalogue that have an on-demand price."""
    max_gpus: int | None = None
    """Most GPUs of the fleet; None: 256, or for ``latency`` and ``throughput`` those of the scenario."""
    gpus_by_kind: Mapping[str, int] = field(default_factory=dict)
    """GPU -> number of it, where fixed GPUs are of several kinds (``throughput``)."""
    objective: Objective = "cost"
    """What to minimize: ``cost``, ``gpus``, ``latency`` (p95 of E2E) or ``energy`` (watts); or ``throughput``, to
    maximize what ``max_gpus`` GPUs can do, whatever load the scenario has."""
    headroom: float = 0.0  # Share of traffic that the plan must sustain beyond the scenario's.
    spare_replicas: int = 0  # Replicas that may be lost.
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Dotted key -> values to search instead of the default ones."""
    market: Market = "on_demand"  # ``on_demand`` or ``spot``.
    trials: int = DEFAULT_TRIALS
    """Settings of engine knobs and options that are tried on a shape where the space is too large to look at all of
    it; 0: only the scenario's own."""
    keep: tuple[str, ...] = ()  # Names of what is left unchanged (`simserve.planner.space.space.KEEPABLE`).
    confidence: float | None = None
    """Share of real servers on which the SLO must hold, by the errors to expect; None: it must hold as simulated."""
    horizon: Horizon | None = None  # How far ahead to buy; None: nothing is bought.
    autoscaler: bool = False  # Whether to find thresholds of an autoscaler for the plan's deployment.
    jobs: int = 1  # Worker processes; the result is the same with any number.


def check_options(options: PlanOptions) -> None:
    """Check that every option is in its range.

    Raises:
        UsageError: One is not.
    """
    if options.objective not in OBJECTIVES:
        remedy = "choose from " + ", ".join(OBJECTIVES)
        raise UsageError("is no objective", key="--objective", value=options.objective, remedy=remedy)
    for key, value, least in (
        ("--max-gpus", options.max_gpus, 1),
        ("--spare-replicas", options.spare_replicas, 0),
        ("--trials", options.trials, 0),
        ("--jobs", options.jobs, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"must be >= {least}", key=key, value=value)
    if options.gpus_by_kind and options.objective != "throughput":
        rule = "names GPUs of several kinds that are all there, which only --objective throughput asks about"
        given = " + ".join(f"{count}x{name}" for name, count in options.gpus_by_kind.items())
        remedy = "name those to choose from with --hardware, and the most with --max-gpus"
        raise UsageError(rule, key="--gpus", value=given, remedy=remedy)
    if options.confidence is not None and not 0 < options.confidence < 1:
        raise UsageError("must be a share between 0 and 1", key="--confidence", value=options.confidence)
    for option, wanted, what, instead in (
        ("--headroom", options.headroom, "which looks for the load itself", "use --confidence 0.9"),
        ("--horizon", options.horizon, "whose GPUs are there", "plan for dollars"),
        ("--autoscaler", options.autoscaler, "which looks for one load", "plan for dollars"),
    ):
        if options.objective == "throughput" and wanted:
            rule = f"has no meaning with --objective throughput, {what}"
            raise UsageError(rule, key=option, remedy=f"leave it out, or {instead}")
    for name, asked in (("--spare-replicas", options.spare_replicas), ("--confidence", options.confidence)):
        if options.autoscaler and asked:
            rule = f"does not go with {name}: its thresholds are those that hold as simulated, with all replicas"
            raise UsageError(rule, key="--autoscaler", remedy="leave one of the two away")
    if not 0 <= options.headroom <= 10:
        raise UsageError("must be between 0 and 10 times the traffic", key="--headroom", value=options.headroom)
