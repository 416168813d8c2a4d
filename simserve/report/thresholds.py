"""The autoscaler of a plan: in lines, as a table, as a plot. Knows only the summary of a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simserve.report.axes import BLUE, GREEN, GREY, ORANGE
from simserve.report.plan_lines import Table
from simserve.report.quantities import counted, dollars, number, share
from simserve.report.sketch import DASHED, Axis, Mark, Sketch, Steps, area
from simserve.units import SECONDS_PER_HOUR

TITLE = "How to scale it"
_METRICS = {"running": "running requests", "kv_usage": "KV use", "queue_depth": "waiting requests"}
_ROOM = 1.12


def thresholds_lines(autoscaling: Mapping[str, Any] | None) -> list[str]:
    """Return the settings of the autoscaler, their cost, and the command that runs them."""
    if autoscaling is None:
        return ["No fixed number of replicas of this deployment holds the SLO: there are no thresholds to look for."]
    best = autoscaling["best"]
    if best is None:
        return [f"No setting of {len(autoscaling['tried'])} held the SLO: keep {_fixed(autoscaling)}."]
    return [*_found(autoscaling, best), best["command"]] if "command" in best else list(_found(autoscaling, best))


def _fixed(autoscaling: Mapping[str, Any]) -> str:
    return f"{counted(autoscaling['fixed']['replicas'], 'replica')} all the time"


def _found(autoscaling: Mapping[str, Any], best: Mapping[str, Any]) -> Iterator[str]:
    target = share(best["target"]) if best["metric"] == "kv_usage" else number(best["target"])
    attainment = best["attainment"]
    if not best["holds"]:
        least = share(attainment["least"])
        yield f"No setting holds the SLO on every fresh seed (least: {least}): keep {_fixed(autoscaling)}."
    elif best["of_fixed"] >= 1:
        yield f"No setting that holds costs less than {_fixed(autoscaling)}: keep those."
    yield (
        f"Scale on {_METRICS[best['metric']]}: {target} a replica, {best['min_replicas']} to {best['max_replicas']} "
        f"replicas, fewer after {number(best['stabilization_s'])} s; a start takes {autoscaling['startup_s']:.0f} s."
    )
    if best["holds"]:
        what = f"{share(attainment['least'])} of the requests or more, {share(attainment['asked'])} asked"
        yield f"It holds the SLO on {counted(len(best['fresh_seeds']), 'fresh seed')}: {what}."
    clairvoyant = autoscaling["clairvoyant"]
    yield (
        f"It takes {_paid(best)}; {_fixed(autoscaling)} would take {_paid(autoscaling['fixed'])}, and replicas that "
        f"start in time for a load known ahead {_paid(clairvoyant)}, of which this is "
        f"{best['of_clairvoyant']:.2f} times."
    )


def _paid(part: Mapping[str, Any]) -> str:
    hours = f"{number(part['replica_hours'])} replica-hours"
    return hours if part["usd"] is None else f"{hours} ({dollars(part['usd'])})"


def thresholds_table(autoscaling: Mapping[str, Any] | None) -> Table | None:
    """Return a row for the cheapest setting that met the SLO with each metric and window; None if none did."""
    rows: dict[tuple[str, float], Mapping[str, Any]] = {}
    for each in [] if autoscaling is None else autoscaling["tried"]:
        key = each["metric"], each["stabilization_s"]
        known = rows.get(key)
        if each["holds"] and (known is None or each["replica_hours"] < known["replica_hours"]):
            rows[key] = each
    if not rows:
        return None
    header = ("scaled on", "target", "window", "fewest", "replica-hours", "within the SLO")
    return header, [
        (
            _METRICS[each["metric"]],
            number(each["target"]),
            f"{number(each['stabilization_s'])} s",
            str(each["min_replicas"]),
            number(each["replica_hours"]),
            share(each["attainment"]),
        )
        for each in sorted(rows.values(), key=lambda each: float(each["replica_hours"]))
    ]


def thresholds_sketch(autoscaling: Mapping[str, Any]) -> Sketch:
    """Return replicas over the hours: with the autoscaler, fixed, and with the load known in advance."""
    steps = autoscaling["over_time"]
    hours = [each["time_s"] / SECONDS_PER_HOUR for each in steps]
    edges = np.array([*hours, autoscaling["seconds"] / SECONDS_PER_HOUR])
    needed = np.array([each["clairvoyant_replicas"] for each in steps], dtype=np.float64)
    fixed = float(autoscaling["fixed"]["replicas"])
    marks: list[Mark] = [
        *area(edges, needed, GREY, "load known ahead"),
        Steps(edges=edges, values=np.full(len(steps), fixed), color=ORANGE, label="all the time", dashes=DASHED),
    ]
    highest = max(fixed, float(needed.max()))
    if steps[0]["replicas"] is not None:
        scaled = np.array([each["replicas"] for each in steps])
        highest = max(highest, math.ceil(float(scaled.max())))
        marks.append(Steps(edges=edges, values=scaled, color=BLUE, label="autoscaler"))
    return Sketch(
        x=Axis(label="hours", high=float(edges[-1])),
        y=Axis(label="replicas", high=highest * _ROOM, is_whole=True),
        marks=marks,
    )


def load_sketch(autoscaling: Mapping[str, Any]) -> Sketch:
    """Return the load over the same hours, which the replicas follow."""
    steps = autoscaling["over_time"]
    edges = np.array([*(each["time_s"] for each in steps), autoscaling["seconds"]]) / SECONDS_PER_HOUR
    rates = np.array([each["requests_per_second"] for each in steps], dtype=np.float64)
    return Sketch(
        x=Axis(label="hours", high=float(edges[-1])),
        y=Axis(label="requests/s", high=float(rates.max()) * _ROOM or 1.0),
        marks=area(edges, rates, GREEN),
    )
