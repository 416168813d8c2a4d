"""A plan in tables. Knows the summary of a plan, nothing that made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simserve.report.plan_lines import CHANGED, LEVERS
from simserve.report.quantities import UNDEFINED, counted, dollars, latency, share

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Titles of the columns, and cells."""

_MOST_RUNNERS_UP = 8
_MOST_FRONT = 8
_SAME_PRICE = 0.005
"""Dollars a month below which two prices are written alike."""


def runners_up(summary: Mapping[str, Any]) -> tuple[list[str], Table] | None:
    """Return the best of each kind of GPU that lost and why, with a line on those left off; None where none lost."""
    runners = list(summary["runners_up"])
    if not runners:
        return None
    ordered = sorted(runners, key=lambda each: (each["usd_per_month"] is None, each["usd_per_month"] or 0.0))
    rows = [
        (
            each["label"] or each["hardware"],
            dollars(each["usd_per_month"]),
            latency(each.get("p95_ttft_ms")),
            latency(each.get("p95_tpot_ms")),
            each["why"],
        )
        for each in ordered[:_MOST_RUNNERS_UP]
    ]
    left = len(ordered) - len(rows)
    notes = [f"and {counted(left, 'more kind')} of GPU (--json lists them)"] if left > 0 else []
    return notes, (("", "$/month", "p95 TTFT", "p95 TPOT", "why"), rows)


def front(summary: Mapping[str, Any]) -> Table:
    """Return the fleets that none beats in dollars, TTFT and TPOT at once."""
    shown = summary["pareto"][:_MOST_FRONT]
    rows = [
        (
            f"{each['label']}{_told_apart(each, shown)}",
            str(each["num_gpus"]),
            dollars(each["usd_per_month"]),
            latency(each["p95_ttft_ms"]),
            latency(each["p95_tpot_ms"]),
        )
        for each in shown
    ]
    return ("", "GPUs", "$/month", "p95 TTFT", "p95 TPOT"), rows


def _told_apart(fleet: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> str:
    """Return the settings in which a fleet differs from others of the same label; empty where it is the only one."""
    alike = [each["overrides"] for each in shown if each["label"] == fleet["label"]]
    keys = sorted({key for each in alike for key in each if any(other.get(key) != each[key] for other in alike)})
    own = fleet["overrides"] if keys else {}
    named = [(key.rpartition(".")[2], own.get(key)) for key in keys]
    return "".join(f", default {name}" if value is None else f", {name} {value}" for name, value in named)


def sensitivity(summary: Mapping[str, Any]) -> Table:
    """Return a row for each thing that may change: the GPUs and dollars that less and more of it take."""
    changes = sorted({each["change"] for each in summary["sensitivity"]})
    found = {(each["what"], each["change"]): each for each in summary["sensitivity"]}
    rows = [
        (CHANGED[what], *(_needed(found.get((what, change))) for change in changes))
        for what in dict.fromkeys(each["what"] for each in summary["sensitivity"])
    ]
    return ("", *(f"{change:+.0%}" for change in changes)), rows


def _needed(each: Mapping[str, Any] | None) -> str:
    if each is None:
        return UNDEFINED
    if each["replicas"] is None:
        return each["reason"] or "no fleet of four times the size holds"
    price = "" if each["usd_per_month"] is None else f", {dollars(each['usd_per_month'])}"
    return f"{counted(each['num_gpus'], 'GPU')}{price}"


def changes(summary: Mapping[str, Any]) -> Table:
    """Return the plan and a row for each variant of it: what it costs, and how quick it is or a token's dollars."""
    best = summary["best"]
    rows = [("The plan", "", dollars(best["usd_per_month"]), *_figures(best, best))]
    named = ""
    for each in summary["changes"]:
        lever = LEVERS[each["lever"]]
        instead = each["variant"] if each["replicas"] is not None else f"{each['variant']}: {_refused(each['reason'])}"
        rows.append(("" if lever == named else lever, instead, _price(each), *_figures(best, each)))
        named = lever
    figures = ("$/M tokens",) if _is_without_slo(best) else ("p95 TTFT", "p95 TPOT")
    return ("", "instead", "$/month", *figures), rows


def _price(each: Mapping[str, Any]) -> str:
    if each["replicas"] is None:
        return UNDEFINED
    more = each["usd_per_month_more"]
    if more is None:
        return counted(each["num_gpus"], "GPU")
    return "same" if abs(more) < _SAME_PRICE else dollars(each["usd_per_month"])


def _figures(best: Mapping[str, Any], each: Mapping[str, Any]) -> Iterator[str]:
    """Yield dollars a token where there is no SLO to size for, else latencies."""
    if _is_without_slo(best):
        yield dollars(each.get("usd_per_million_tokens"))
    else:
        yield latency(each.get("p95_ttft_ms"))
        yield latency(each.get("p95_tpot_ms"))


def _is_without_slo(best: Mapping[str, Any]) -> bool:
    return best["attainment"] is None and best["usd_per_million_tokens"] is not None


def _refused(reason: str) -> str:
    return reason if reason.startswith("does") else f"not possible, {reason}"


def single_changes(summary: Mapping[str, Any]) -> Table | None:
    """Return what each change alone makes of the throughput of the deployment as it is; None where none is possible."""
    possible = [each for each in (summary["single_changes"] or {"changes": ()})["changes"] if each["times"] is not None]
    if not possible:
        return None
    return ("", "output tokens/s"), [(each["variant"], _times(each["times"])) for each in possible]


def _times(times: float) -> str:
    """Return a factor as a reader takes it: ``'2.3 times'``, ``'+12%'``, ``'-7.3%'``."""
    return f"{times:.2g} times" if times >= 2 else f"{'+' if times >= 1 else '-'}{share(abs(times - 1))}"


def left_out(summary: Mapping[str, Any]) -> Table:
    """Return which options were not searched, and why."""
    return ("", "why"), [(LEVERS[name], why) for name, why in summary["search"]["left_out"].items()]


__all__ = ["Table", "changes", "front", "left_out", "runners_up", "sensitivity", "single_changes"]
