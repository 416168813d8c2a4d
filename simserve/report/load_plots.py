"""A run's deployment at other loads, as sketches and in words: `simserve.report.background` found the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.result import RunResult
from simserve.report.answer_plots import goodput_against_load, latency_against_load, load_label
from simserve.report.axes import GREY
from simserve.report.quantities import count, listed, number
from simserve.report.sketch import DOTTED, Mark, Note, Rule, Sketch


def latency(result: RunResult, found: Mapping[str, Any]) -> Sketch:
    """Return p95 of TTFT and TPOT against the load, with the bounds of the SLO."""
    slo = result.slo
    bounds = (None, None) if slo is None else (slo.ttft, slo.tpot)
    ttft, tpot = _values(found["p95_ttft"]), _values(found["p95_tpot"])
    label = load_label(is_closed=found["is_closed"])
    return latency_against_load(found["loads"], ttft, tpot, bounds, label, _own(found))


def goodput(found: Mapping[str, Any]) -> Sketch:
    """Return requests/s answered, and within the SLO, against the load, with the knee where it was seen."""
    answered, good = _values(found["throughput"]), _values(found["goodput"])
    label = load_label(is_closed=found["is_closed"])
    return goodput_against_load(found["loads"], answered, good, knee(found), label, _own(found))


def knee(found: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return load and requests/s where most are within the SLO; None where that is the highest load that was tried."""
    pairs = list(zip(found["loads"], _values(found["goodput"]), strict=True))
    known = [(load, good) for load, good in pairs if good > 0]
    if not known:
        return None
    best = max(known, key=lambda pair: pair[1])
    return None if best[0] == found["loads"][-1] else best


def knee_words(found: Mapping[str, Any], unit: str) -> str:
    """Return where goodput is highest."""
    seen = knee(found)
    if seen is not None:
        return f"Goodput is highest near {_load(found, seen[0])} {unit}: {number(seen[1])} requests/s within the SLO"
    if not any(found["goodput"]):
        return "At no load that was tried is a request within the SLO"
    return f"Goodput still rises at {_load(found, found['loads'][-1])} {unit}, the highest load that was tried"


def borne_words(result: RunResult, found: Mapping[str, Any], unit: str) -> str:
    """Return up to which of the loads the SLO holds."""
    asked = math.inf if result.slo is None else result.slo.attainment
    holds = [
        (share or 0.0) >= asked and stability != "overloaded"
        for share, stability in zip(found["attainment"], found["stability"], strict=True)
    ]
    loads = found["loads"]
    if not holds[0]:
        return f"the SLO does not hold even at {_load(found, loads[0])} {unit}"
    last = holds.index(False) - 1 if False in holds else len(loads) - 1
    beyond = "" if last == len(loads) - 1 else f", not at {_load(found, loads[last + 1])}"
    return f"the SLO holds at {_load(found, loads[last])} {unit}{beyond}"


def runs_words(found: Mapping[str, Any], unit: str) -> str:
    """Return of how many requests the runs are, and which of them are too short for what they show."""
    fewest, most = min(found["requests"]), max(found["requests"])
    told = f"From runs of {count(fewest)}" + ("" if fewest == most else f" to {count(most)}") + " requests"
    unsettled = [
        _load(found, load)
        for load, settled, stability in zip(found["loads"], found["settled"], found["stability"], strict=True)
        if settled is False and stability != "overloaded"
    ]
    if not unsettled:
        return told
    return f"{told}; too short to have settled at {listed(unsettled)} {unit}"


def _own(found: Mapping[str, Any]) -> list[Mark]:
    """Return the load of the run itself, named on the side where the knee is not."""
    at, seen = found["own"], knee(found)
    is_left_of = seen is None or seen[0] >= at
    note = Note(text="this run", x=at, y=None, right=-3 if is_left_of else 3, up=3, is_left_of=is_left_of)
    return [Rule(x=at, color=GREY, dashes=DOTTED), note]


def _load(found: Mapping[str, Any], load: float) -> str:
    return count(load) if found["is_closed"] else number(load)


def _values(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
