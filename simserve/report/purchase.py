"""What a plan buys over months: in lines, as a table, as a plot. Knows only the summary of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from simserve.report.axes import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION
from simserve.report.plan_lines import Table
from simserve.report.quantities import counted, dollars, listed, number, share
from simserve.report.sketch import DASHED, Axis, Curve, Mark, Sketch, Steps, dollar_words
from simserve.units import format_seconds

_MOST_ROWS = 12
_COLORS = {"3": BLUE, "1": GREEN}
_ROOM = 1.12
_FAR = 2.0  # A budget above this multiple of the most expensive month is not drawn: it would compress the rest.


def purchase_lines(purchase: Mapping[str, Any]) -> list[str]:
    """Return what to buy, what else it could cost, and what would change the decision."""
    assumed = [f"Assumed: {'; '.join(purchase['assumes'])}."] if purchase["assumes"] else []
    return [*_bought(purchase), *_of_spot(purchase), *_beside(purchase), *assumed]


def purchase_title(purchase: Mapping[str, Any]) -> str:
    """Return the heading: how long, and how traffic grows."""
    growth = purchase["growth_per_month"]
    way = "grows" if growth > 0 else "shrinks"
    grows = f", while traffic {way} by {share(abs(growth))} a month" if growth else ""
    return f"What to buy for {counted(purchase['horizon_months'], 'month')}{grows}"


def purchase_table(purchase: Mapping[str, Any]) -> Table:
    """Return a row per month, beyond a year a row per quarter or year: replicas by term, dollars; the sums last."""
    years = sorted({term for row in purchase["months"] for term in row["committed"]}, reverse=True)
    has_spot = any(row["spot_replicas"] for row in purchase["months"])
    step = -(-len(purchase["months"]) // _MOST_ROWS)
    rows = []
    for row in purchase["months"][::step]:
        cells = [str(row["month"]), number(row["requests"] / 1e6)]
        cells += [str(row["committed"].get(term, 0)) for term in years]
        cells += [str(row["on_demand_replicas"]), *([str(row["spot_replicas"])] if has_spot else [])]
        cells += [dollars(row["usd"]), dollars(row["on_demand_usd"])]
        rows.append((*cells, *([] if row["api_usd"] is None else [dollars(row["api_usd"])])))
    months, sums = purchase["months"], ["usd", "on_demand_usd", *([] if purchase["api"] is None else ["api_usd"])]
    between = [""] * (len(rows[0]) - 2 - len(sums))
    totals = [dollars(sum(row[key] for row in months)) for key in sums]
    rows.append((f"all {len(months)}", number(sum(row["requests"] for row in months) / 1e6), *between, *totals))
    header = ["month", "million requests", *(f"replicas for {counted(int(term), 'year')}" for term in years)]
    header += ["replicas on demand", *(["spot replicas, reserve included"] if has_spot else []), "to pay"]
    header += ["all on demand", *([] if purchase["api"] is None else ["the API"])]
    return tuple(header), rows


def purchase_sketch(purchase: Mapping[str, Any]) -> Sketch:
    """Return dollars of each month: as bought, all on demand, at the API, and the budget."""
    months = purchase["months"]
    edges = np.arange(len(months) + 1, dtype=np.float64) + 0.5
    series = [("usd", "as bought", BLUE), ("on_demand_usd", "all on demand", GREY)]
    series.append(("api_usd", str(purchase["api"]), ORANGE))
    marks: list[Mark] = []
    highest = 0.0
    for key, name, color in series:
        if months[0][key] is None:
            continue
        values = np.array([row[key] for row in months])
        highest = max(highest, float(values.max()))
        if key == "usd":
            marks.append(Steps(edges=edges, values=values, color=color, label=name, is_filled=True))
            marks.append(Steps(edges=edges, values=values, color=color))
        else:
            marks.append(Steps(edges=edges, values=values, color=color, label=str(name), dashes=DASHED))
    budget = purchase["budget_usd_per_month"]
    if budget is not None and budget < _FAR * highest:
        highest = max(highest, budget)
        marks.append(Curve(x=edges[[0, -1]], y=np.full(2, budget), color=VERMILION, label="budget"))
    return Sketch(
        x=Axis(label="month", low=0.5, high=len(months) + 0.5, is_whole=True),
        y=Axis(label="dollars a month", high=highest * _ROOM, words=dollar_words),
        marks=marks,
    )


def replica_sketch(purchase: Mapping[str, Any]) -> Sketch:
    """Return the replicas of each month's busiest hour, with longer terms below."""
    months = purchase["months"]
    edges = np.arange(len(months) + 1, dtype=np.float64) + 0.5
    total = np.zeros(len(months))
    layers: list[tuple[str, str, np.ndarray[Any, np.dtype[np.float64]]]] = []
    for term in sorted({term for row in months for term in row["committed"]}, reverse=True):
        total = total + np.array([row["committed"].get(term, 0) for row in months], dtype=np.float64)
        layers.append((f"on {term}-year terms", _COLORS.get(term, GREY), total))
    for key, name, color in (("on_demand_replicas", "on demand", ORANGE), ("spot_replicas", "spot", SKY)):
        added = np.array([row[key] for row in months], dtype=np.float64)
        total = total + added
        if added.any():
            layers.append((name, color, total))
    # The highest area first: each lower one covers part of it.
    marks: list[Mark] = [
        Steps(edges=edges, values=values, color=color, label=name, is_filled=True)
        for name, color, values in reversed(layers)
    ]
    marks += [Steps(edges=edges, values=values, color=color) for _, color, values in layers]
    return Sketch(
        x=Axis(label="month", low=0.5, high=len(months) + 0.5, is_whole=True),
        y=Axis(label="replicas", high=float(total.max()) * _ROOM, is_whole=True),
        marks=marks,
    )


def _bought(purchase: Mapping[str, Any]) -> Iterator[str]:
    first, last = purchase["months"][0], purchase["months"][-1]
    committed = sorted(first["committed"].items(), reverse=True)
    terms = [f"{counted(count, 'replica')} for {counted(int(years), 'year')}" for years, count in committed]
    most = "up to " if first["mean_replicas"] < first["peak_replicas"] else ""
    if first["on_demand_replicas"]:
        terms.append(f"{most}{counted(first['on_demand_replicas'], 'replica')} on demand")
    if first["spot_replicas"]:
        spare = f" ({first['spot_reserve']} in reserve)" if first["spot_reserve"] else ""
        terms.append(f"{most}{counted(first['spot_replicas'], 'spot replica')}{spare}")
    peak = f"{counted(last['peak_replicas'], 'replica')} at the peak of month {last['month']}"
    yield f"Buy {listed(terms)} in month 1; {peak}."
    counts = [(row["month"], int(sum(row["committed"].values()))) for row in purchase["months"]]
    later = [f"{now - before} in month {month}" for (_, before), (month, now) in pairwise(counts) if now > before]
    if later:
        yield f"Commit to more replicas later: {', '.join(later)}."
    saved = 1 - purchase["total_usd"] / purchase["all_on_demand_usd"]
    less = f"{share(saved)} less than" if saved > 5e-4 else "the same as"
    yield (
        f"{dollars(purchase['total_usd'])} in {counted(purchase['horizon_months'], 'month')}, {less} all on demand "
        f"({dollars(purchase['all_on_demand_usd'])}); the last month's peak from the first day costs "
        f"{dollars(purchase['committed_at_peak_usd'])}."
    )


def _of_spot(purchase: Mapping[str, Any]) -> Iterator[str]:
    """Yield what spot replicas save, how often they are reclaimed, and what the reserve is for."""
    spot, without = purchase["spot"], purchase["without_spot_usd"]
    if spot is None:
        return
    if not any(row["spot_replicas"] for row in purchase["months"]):
        yield "Spot replicas with their reserve are no cheaper: none is bought."
        return
    saved = f"Without spot replicas it costs {dollars(without)}"
    largest = spot["reserves"][-1]
    count, reserve = largest["replicas"], largest["reserve"]
    away = f"taken back every {format_seconds(spot['mtbf_s'])}, and gone for {format_seconds(spot['mttr_s'])}"
    reached = f"{share(largest['attainment'])} of requests in the SLO (simulated)"
    if not reserve:
        yield f"{saved}. {counted(count, 'spot replica')}, each {away}, keep {reached}: no reserve is needed."
        return
    less = f"{share(largest['without'])} without a reserve"
    yield f"{saved}. {counted(count, 'spot replica')}, each {away}, keep {reached} with {reserve} in reserve, {less}."


def _beside(purchase: Mapping[str, Any]) -> Iterator[str]:
    budget, over = purchase["budget_usd_per_month"], purchase["over_budget_from"]
    if over is not None:
        yield f"The budget of {dollars(budget)} a month is passed in month {over}."
    elif budget is not None:
        most = max(row["usd"] for row in purchase["months"])
        yield f"The budget of {dollars(budget)} a month holds: the dearest costs {dollars(most)}."
    if purchase["api_usd"] is None:
        return
    less = "more" if purchase["cheaper"] == "self_host" else "less"
    apart = dollars(abs(purchase["api_usd"] - purchase["total_usd"]))
    yield f"The API {purchase['api']} bills {dollars(purchase['api_usd'])} for the same requests, {apart} {less}."
    flips, words = purchase["flips"], []
    if flips["gpu_price_factor"] is not None:
        words.append(f"GPUs at {number(flips['gpu_price_factor'])} times their price")
    if flips["traffic_factor"] is not None:
        factor = flips["traffic_factor"]
        words.append(f"{share(factor)} of the traffic" if factor < 1 else f"{number(factor)} times the traffic")
    if flips["growth_per_month"] is not None:
        growth = flips["growth_per_month"]
        way = f"{'grows' if growth > 0 else 'shrinks'} by {abs(growth):.1%} a month"
        words.append(f"traffic that {'stays as it is' if abs(growth) < 5e-4 else way}")
    if words:
        other = "The API" if purchase["cheaper"] == "self_host" else "Buying GPUs"
        yield f"{other} would cost no more with {', or '.join(words)}."
