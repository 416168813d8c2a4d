"""Two ways to serve a month of requests, in dollars: whole GPUs, or an API charged by the token. Simulates nothing.

A fleet consists of whole units (replicas): its price is a staircase over the volume, an API's a straight line. From
these two follow where they cross, how traffic is split between them, and what a change of a price does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simserve.errors import ScenarioError
from simserve.metrics.api_cost import ApiPrices
from simserve.units import HOURS_PER_DAY, SECONDS_PER_MONTH

MONTHS = 36
API_PRICE_FALL_PER_YEAR = 0.3
GPU_PRICE_FALL_PER_YEAR = 0.2
"""Yearly falls of prices where none are given: assumptions. A GPU-hour of an H100 fell from about $4 to $3 and less
between 2024 and 2026; prices of one API model stay the same for years, and better models come at lower ones."""
ASSUMED_OPERATIONS_USD = 3000.0
"""Cost of operations where none is given, shown but not counted: 30 hours a month at $100, an assumption."""
_MOST_UNITS = 100_000
_MOST_DIGITS = 6  # Most significant digits to distinguish two nearly equal prices.
GPUS = "GPUs of a replica, $ a month"
API = "API, $ a request"
TRAFFIC = "requests a month"
OPERATIONS = "operations, $ a month"
CAPACITY = "requests/s a replica holds"
_FACTORS = {GPUS: 1.5, API: 1.5, TRAFFIC: 1.5, OPERATIONS: 1.5, CAPACITY: 1.25}
"""Factor by which a tornado multiplies and divides each input. Capacity: the 90th percentile of the errors of simulated
throughput is near 25 % (calibration/ACCURACY.md); the others are assumptions."""
_MILLION = 1e6
PEAK_TO_MEAN = 1.7
PEAK_TO_TROUGH = 3.3
"""A week of a public chat service: its mean load is 1.7 times, its quietest 3.3 times below the peak
(DynamoLLM, arXiv:2408.00741, section III, Azure conversation trace)."""
_DEPTH = math.log(PEAK_TO_TROUGH) / math.log(PEAK_TO_MEAN)
"""Where only one ratio is given, the trough of a sharper day is deeper by the same power."""
_PEAK_HOUR = 14.5  # Middle of the busiest hour; its place in the day changes no figure.
_LARGEST_EXPONENT = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Costs of a month on either side."""

    unit_usd_per_month: float
    """Dollars for one unit's GPUs, including electricity where it is paid separately, for the part of the month in
    which there are any: ``paid_share``."""
    gpus_per_unit: float  # GPUs of one unit.
    units: int = 1  # Units that exist whatever the volume; the staircase starts here.
    paid_share: float = 1.0
    """Mean share of the month for which each of ``units`` is paid: 1 unless the fleet is scaled."""
    is_scaled: bool = False  # Whether the number of units follows the load.
    follows_day: bool = False  # Whether fewer units are paid in the hours that need fewer.
    spare_units: int = 0  # Units paid for beside those that serve.
    capacity: float | None = None
    """Requests/s that one unit can sustain; None if unknown: the fleet then never grows."""
    fixed_usd_per_month: float = 0.0  # Operations and platform.
    share: float = 1.0  # Share of the fleet that this use pays for.
    overflow_usd_per_request: float = 0.0
    """Dollars for the API in a mean request of the fleet, some of which go there."""
    api: ApiPrices | None = None  # What the API charges; None: nothing to compare with.
    api_usd_per_request: float | None = None  # List price of a mean request, batch discount applied; None if unknown.
    tokens_per_request: float | None = None  # Prompt and output tokens of a mean request; None if unknown.
    requests_per_month: float | None = None  # Volume; None if unknown.
    shape: tuple[float, ...] = (1.0,) * 24  # Traffic of each hour as a multiple of the mean.
    gpus_fall: bool = True  # Whether the price of the GPUs falls with the market, because they are rented.

    @property
    def from_one_unit(self) -> Comparison:
        """The same with a staircase that starts at one unit; unchanged where a unit's capacity is unknown.

        A unit of a scaled fleet was simulated at the loads of its own day. Fleets of other sizes pay for the units that
        each hour needs, the last of them too.
        """
        if self.capacity is None:
            return self
        if not self.is_scaled:
            return replace(self, units=1)
        return replace(self, units=1, unit_usd_per_month=self.full_unit_usd, paid_share=1.0, follows_day=True)

    @property
    def full_unit_usd(self) -> float:
        """Dollars for one unit's GPUs that are there all month."""
        return self.unit_usd_per_month / self.paid_share

    @property
    def peak_to_mean(self) -> float:
        """Traffic of the busiest hour over the mean."""
        return max(self.shape)

    @property
    def capacity_per_month(self) -> float:
        """Requests a month that one unit can sustain with this shape of the day; infinite where unknown."""
        return math.inf if self.capacity is None else self.capacity * SECONDS_PER_MONTH / self.peak_to_mean

    def units_for(self, requests: float) -> int:
        """Return the units that can sustain the busiest hour of a month of ``requests``."""
        # A volume that was derived from a whole number of units must not need one more because of rounding.
        return max(self.units, math.ceil(requests / self.capacity_per_month * (1 - 1e-12)))

    def fleet_usd(self, units: int) -> float:
        """Return a month's dollars for ``units`` and the spare ones, including operations.

        Where they follow the day, its busiest hour needs all of them.
        """
        return self.usd_with(units, units / self.peak_to_mean)

    def usd_with(self, units: int, mean: float) -> float:
        """Return a month's dollars for at most ``units``, where the load of the mean hour fills ``mean`` of them."""
        paid = float(units)
        if self.follows_day:
            needed = (math.ceil(mean * each * (1 - 1e-12)) for each in self.shape)
            paid = sum(min(each, units) for each in needed) / len(self.shape)
        spare = self.spare_units * self.full_unit_usd
        return self.fixed_usd_per_month + (paid * self.unit_usd_per_month + spare) * self.share

    @property
    def filled_unit_usd(self) -> float:
        """Dollars for one of many units that the busiest hour fills."""
        return self.unit_usd_per_month * self.share / (self.peak_to_mean if self.follows_day else 1.0)

    def self_host_usd(self, requests: float) -> float:
        """Return a month's dollars with one's own GPUs, including what overflows to an API."""
        return self.fleet_usd(self.units_for(requests)) + requests * self.overflow_usd_per_request

    def beside_overflow(self) -> Comparison:
        """Return both sides without what goes to an API either way: they cross at the same volume.

        Volume discounts are then taken at the price of that remainder.
        """
        if not self.overflow_usd_per_request or self.api_usd_per_request is None:
            return self
        rest = max(self.api_usd_per_request - self.overflow_usd_per_request, 0.0)
        return replace(self, api_usd_per_request=rest, overflow_usd_per_request=0.0)

    def api_usd(self, requests: float) -> float:
        """Return a month's dollars at the API."""
        if self.api_usd_per_request is None:
            return math.nan
        gross = requests * self.api_usd_per_request
        return gross if self.api is None else self.api.net(gross)

    def api_requests(self, usd: float) -> float:
        """Return the requests of a month that cost ``usd`` at the API."""
        if not self.api_usd_per_request:
            return math.nan
        return (usd if self.api is None else self.api.gross(usd)) / self.api_usd_per_request


def break_even(model: Comparison) -> dict[str, Any]:
    """Return the volume from which one's own GPUs are cheaper, on the staircase of whole units.

    ``requests_per_month`` is the first crossing. Beyond the end of a stair the API may become cheaper again;
    ``for_good_requests_per_month`` is the volume from which it no longer does. None where they never cross.
    """
    first = for_good = None
    units = model.units
    if model.api_usd_per_request:
        for stair in range(model.units, model.units + _MOST_UNITS):
            crossing, end = model.api_requests(model.fleet_usd(stair)), stair * model.capacity_per_month
            begin = 0.0 if stair == model.units else (stair - 1) * model.capacity_per_month
            if crossing > end:
                for_good = None
            elif crossing > begin or for_good is None:
                for_good = max(crossing, begin)
            if crossing <= end and first is None:
                first, units = crossing, stair
            if math.isinf(end) or _is_ahead(model, stair) or (crossing > end and not _gains(model)):
                break
    tokens = model.tokens_per_request
    return {
        "tokens_per_month": None if first is None or tokens is None else first * tokens,
        "requests_per_month": first,
        "gpus": None if first is None else (units + model.spare_units) * model.gpus_per_unit,
        "usd_per_month": None if first is None else model.fleet_usd(units),
        "for_good_requests_per_month": for_good,
        "why_never": None if first is not None else _why_never(model),
    }


def _gains(model: Comparison) -> bool:
    """Return whether a unit filled to the end of its stair is cheaper than the API for the same requests."""
    stair = model.capacity_per_month
    return model.api_usd(1e6 * stair) / 1e6 > model.filled_unit_usd


def _is_ahead(model: Comparison, stair: int) -> bool:
    """Return whether the next stair begins below the API's line, and so does every later one."""
    begins = model.fleet_usd(stair + 1)
    return _gains(model) and model.api_usd(stair * model.capacity_per_month) >= begins


def _why_never(model: Comparison) -> str:
    if model.api_usd_per_request is None:
        return "no API price of a request is known"
    if model.api_usd_per_request == 0:
        return "the API costs nothing"
    full = model.filled_unit_usd / model.capacity_per_month
    own, api = _distinct_texts(1000 * full, 1000 * model.api_usd_per_request)
    return (
        f"even fully loaded, {model.gpus_per_unit:g} {'GPU costs' if model.gpus_per_unit == 1 else 'GPUs cost'} "
        f"{own} per 1,000 requests, the API {api}"
    )


def _distinct_texts(own: float, other: float) -> tuple[str, str]:
    """Return two amounts in dollars with three significant digits, or as many as tell them apart.

    ``('$0.100', '$0.0430')``, ``('$12.50', '$12.00')``.
    """
    for digits in range(3, _MOST_DIGITS):
        texts = _usd(own, digits), _usd(other, digits)
        if texts[0] != texts[1]:
            return texts
    return _usd(own, _MOST_DIGITS), _usd(other, _MOST_DIGITS)


def _usd(usd: float, digits: int) -> str:
    """Return dollars with significant digits, at least cents; never in scientific notation."""
    whole = math.floor(math.log10(usd)) + 1 if usd > 0 else 1
    return f"${usd:,.{max(digits - whole, 2)}f}"


def hybrid(model: Comparison) -> dict[str, Any] | None:
    """Return the cheapest split: units for the base of the day, the excess to the API.

    None without a volume, an API price or a capacity. Hours are taken at their mean rate, so bursts within an hour go
    where the hour goes.
    """
    requests, capacity = model.requests_per_month, model.capacity
    if requests is None or model.api_usd_per_request is None or capacity is None:
        return None
    mean = requests / SECONDS_PER_MONTH
    rates = [mean * share for share in model.shape]
    splits = []
    for units in range(model.units_for(requests) + 1):
        over = sum(max(0.0, rate - units * capacity) for rate in rates) / len(rates) * SECONDS_PER_MONTH
        own = model.usd_with(units, mean / capacity) if units else 0.0
        splits.append(
            {
                "replicas": units,
                "gpus": (units + model.spare_units) * model.gpus_per_unit if units else 0,
                "api_share": over / requests if requests else 0.0,
                "self_host_usd_per_month": own,
                "api_usd_per_month": model.api_usd(over),
                "usd_per_month": own + model.api_usd(over),
            }
        )
    best = min(splits, key=lambda split: (split["usd_per_month"], split["replicas"]))
    return {**best, "usd_per_request": best["usd_per_month"] / requests if requests else None, "splits": splits}


def outlook(
    model: Comparison, *, api_fall: float | None = None, gpu_fall: float | None = None, growth: float = 0.0
) -> dict[str, Any] | None:
    """Return the next 36 months: both sides month by month while prices fall and traffic grows.

    The fleet grows with the traffic and never becomes smaller than it is. None without a volume or an API price.

    Args:
        api_fall: Share by which the API's price falls in a year; None: as assumed.
        gpu_fall: Share by which a rented GPU-hour falls in a year; None: as assumed.
        growth: Share by which traffic grows in a year.
    """
    requests = model.requests_per_month
    if requests is None or model.api_usd_per_request is None:
        return None
    api_fall = API_PRICE_FALL_PER_YEAR if api_fall is None else api_fall
    gpu_fall = GPU_PRICE_FALL_PER_YEAR if gpu_fall is None else gpu_fall
    rows: list[dict[str, Any]] = []
    for month in range(1, MONTHS + 1):
        then = _at_month(model, month, api_fall=api_fall, gpu_fall=gpu_fall)
        volume = requests * (1 + growth) ** (month / 12)
        rows.append(
            {
                "month": month,
                "requests_per_month": volume,
                "self_host_usd": then.self_host_usd(volume),
                "api_usd": then.api_usd(volume),
                "break_even_requests_per_month": break_even(then.beside_overflow())["requests_per_month"],
            }
        )
    own, api = (sum(row[key] for row in rows) for key in ("self_host_usd", "api_usd"))
    ahead = [row["self_host_usd"] < row["api_usd"] for row in rows]
    changes = [row["month"] for row, now, before in zip(rows[1:], ahead[1:], ahead, strict=False) if now != before]
    return {
        "months": MONTHS,
        "api_price_fall_per_year": api_fall,
        "gpu_price_fall_per_year": gpu_fall if model.gpus_fall else 0.0,
        "traffic_growth_per_year": growth,
        "self_host_usd": own,
        "api_usd": api,
        "cheaper": "self_host" if own < api else "api",
        "cheaper_changes_in_months": changes,
        "by_month": rows,
    }


def _at_month(model: Comparison, month: int, *, api_fall: float, gpu_fall: float) -> Comparison:
    """Return the comparison at a later month's prices; what is owned keeps its price."""
    api = model.api_usd_per_request
    fallen = (1 - gpu_fall) ** (month / 12) if model.gpus_fall else 1.0
    return replace(
        model,
        unit_usd_per_month=model.unit_usd_per_month * fallen,
        api_usd_per_request=None if api is None else api * (1 - api_fall) ** (month / 12),
        overflow_usd_per_request=model.overflow_usd_per_request * (1 - api_fall) ** (month / 12),
    )


def sensitivity(model: Comparison, ranges: Mapping[str, tuple[Any, Any]]) -> list[dict[str, Any]]:
    """Return the effect of each input on the month's saving, largest swing first: a tornado.

    Args:
        model: Today's month.
        ranges: Name -> (low, high), each a pair of its description and the comparison with it.
    """
    requests = model.requests_per_month
    if requests is None or model.api_usd_per_request is None:
        return []
    base = saving(model)
    rows = []
    for name, (low, high) in ranges.items():
        savings = [saving(changed) for _, changed in (low, high)]
        if savings[0] == savings[1] == base:
            continue
        rows.append(
            {
                "parameter": name,
                "low": low[0],
                "high": high[0],
                "saving_usd_per_month_low": savings[0],
                "saving_usd_per_month_high": savings[1],
                "swing_usd_per_month": abs(savings[1] - savings[0]),
                "changes_the_answer": any((each > 0) != (base > 0) for each in savings),
            }
        )
    return sorted(rows, key=lambda row: (-float(str(row["swing_usd_per_month"])), str(row["parameter"])))


def saving(model: Comparison) -> float:
    """Return what one's own GPUs save a month compared with the API, in dollars; negative: they cost more."""
    requests = model.requests_per_month or 0.0
    return model.api_usd(requests) - model.self_host_usd(requests)


def usual_ranges(model: Comparison) -> dict[str, tuple[Any, Any]]:
    """Return the ranges of a tornado: each input times and divided by its factor, except those 0 or unknown."""
    fields = {
        GPUS: "unit_usd_per_month",
        API: "api_usd_per_request",
        TRAFFIC: "requests_per_month",
        OPERATIONS: "fixed_usd_per_month",
        CAPACITY: "capacity",
    }
    ranges: dict[str, tuple[Any, Any]] = {}
    for name, field in fields.items():
        value, factor = getattr(model, field), _FACTORS[name]
        if not value:
            continue
        low, high = value / factor, value * factor
        ranges[name] = ((low, replace(model, **{field: low})), (high, replace(model, **{field: high})))
    return ranges


def day_shape(
    hourly: Sequence[float] | None = None, peak_to_mean: float | None = None, peak_to_trough: float | None = None
) -> tuple[float, ...]:
    """Return the traffic of each hour as a multiple of the mean.

    Without ``hourly`` it is one wave a day, ``trough + (1 - trough) w(h)^k`` of the peak with
    ``w = (1 + cos) / 2``, with the exponent k that satisfies both ratios.

    Args:
        hourly: 24 numbers in proportion to the traffic.
        peak_to_mean: Busiest hour over the mean.
        peak_to_trough: Busiest hour over the quietest.

    Raises:
        ScenarioError: No such wave exists: the mean would not be between trough and peak.
    """
    if hourly is not None:
        mean = sum(hourly) / len(hourly)
        return tuple(value / mean for value in hourly)
    to_mean = PEAK_TO_MEAN if peak_to_mean is None else peak_to_mean
    to_trough = to_mean**_DEPTH if peak_to_trough is None else peak_to_trough
    if to_mean == 1 and to_trough == 1:
        return (1.0,) * HOURS_PER_DAY
    trough = 1 / to_trough
    wanted = (1 / to_mean - trough) / (1 - trough) if trough < 1 else math.nan
    waves = [(1 + math.cos(2 * math.pi * (hour + 0.5 - _PEAK_HOUR) / HOURS_PER_DAY)) / 2 for hour in range(24)]
    floor, ceiling = _mean_power(waves, _LARGEST_EXPONENT), _mean_power(waves, 1 / _LARGEST_EXPONENT)
    if not floor <= wanted <= ceiling:
        raise ScenarioError(
            f"has no wave: the mean of a day lies between its trough and its peak, not at 1/{to_mean:g} of the peak "
            f"with a trough of 1/{to_trough:g}",
            key="pricing.daily",
            remedy="raise peak_to_trough, or give hourly",
        )
    # The mean of the waves falls with their exponent: bisection finds that of the wanted mean.
    low, high = 1 / _LARGEST_EXPONENT, _LARGEST_EXPONENT
    for _ in range(100):
        middle = math.sqrt(low * high)
        if _mean_power(waves, middle) > wanted:
            low = middle
        else:
            high = middle
    exponent = math.sqrt(low * high)
    shape = [trough + (1 - trough) * math.pow(wave, exponent) for wave in waves]
    mean = sum(shape) / len(shape)
    return tuple(value / mean for value in shape)


def _mean_power(waves: Sequence[float], exponent: float) -> float:
    return math.fsum(math.pow(wave, exponent) for wave in waves) / len(waves)
