"""What fixed GPUs can do, in sentences, tables and a plot. Knows only the summary of a plan, not how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simserve.report.answer import warning_lines
from simserve.report.axes import BLUE, GREEN, GREY, INK
from simserve.report.brief import Brief, Fact, Way
from simserve.report.page import Section
from simserve.report.plan_lines import Table, part, probability_lines, term
from simserve.report.quantities import UNDEFINED, capital, counted, dollars, latency, listed, load_figure, number, share
from simserve.report.sketch import DOTTED, Curve, Dots, Mark, Note, Rule, Sketch, from_zero
from simserve.scenario.formats import formats_line
from simserve.units import HOURS_PER_MONTH

_MOST_LOST = 8
_MOST_FRONT = 10
_CIRCLE = 9.0  # Points: size of the circle around a marked point.


def throughput_sections(summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the parts of the plan in reading order; the first is the answer."""
    if not summary["feasible"]:
        miss = summary["nearest_miss"]
        near = [f"Nearest: {miss['label']}."] if miss["label"] else []
        head = f"No deployment of {counted(summary['max_gpus'], 'GPU')} holds the SLO at any load."
        yield part("", [head, *near, f"To relax: {miss['relax']}."])
    else:
        yield part("", _answer(summary))
        yield part("Run it", [summary["best"]["command"]])
    if summary["pareto"]:
        assumed = dict.fromkeys(words for each in summary["pareto"] for words in each["assumes"])
        title = "Tokens/s a GPU against tokens/s a user (by short runs; none here is beaten in both)"
        yield part(title, [f"With drafts it is assumed that {each}." for each in assumed], _front(summary))
    lost = _lost(summary) if summary["feasible"] else None
    if lost is not None and lost[1]:
        yield part("Runners-up", [], lost)


def throughput_brief(summary: Mapping[str, Any]) -> Brief:
    """Return the brief: what the GPUs can do and how to run it, or that nothing meets the SLO and what to relax."""
    lines = next(throughput_sections(summary)).lines
    warnings = warning_lines(summary)
    if not summary["feasible"]:
        facts = [Fact("Why", line) for line in lines[1:]]
        return Brief(verdict="missed", answer=lines[0], warnings=warnings, facts=facts)
    best = summary["best"]
    judged, *rest = (line.strip(" .") for line in lines[3:])
    rest = [f"{each[:1].lower()}{each[1:]}" for each in rest]
    facts = [Fact("SLO", lines[2].removeprefix("The SLO ").rstrip("."))]
    if best["usd_per_hour"] is not None:
        month = f"{dollars(best['usd_per_hour'] * HOURS_PER_MONTH)} a month on {counted(best['num_gpus'], 'GPU')}"
        facts.append(Fact("Cost", f"{month}; {dollars(best['usd_per_million_output_tokens'])} a million output tokens"))
    return Brief(
        verdict="holds",
        answer=lines[0],
        subject=lines[1].rstrip("."),
        warnings=warnings,
        ways=[Way("To run it:", best["command"])],
        facts=[*facts, Fact("Trust", "; ".join(rest)), Fact("Judged", judged, is_extra=True)],
    )


def _answer(summary: Mapping[str, Any]) -> list[str]:
    best = summary["best"]
    key, unit = _load_words(summary)
    idle = summary["max_gpus"] - best["num_gpus"]
    left = f" ({counted(idle, 'GPU')} left over)" if idle else ""
    kinds = summary["gpus_by_kind"] or {best["hardware"]: summary["max_gpus"]}
    there = listed([f"{number_of} x {kind}" for kind, number_of in kinds.items()])
    breaks = {
        None: "nothing breaks up to there",
        "overload": "beyond it the queue grows without end",
        "lost": "beyond it too many requests fail or are refused",
    }.get(summary["binding"], f"{term(summary['binding'])} breaks first")
    simulated = "" if best[key] == best[f"max_{key}"] else f" ({_load(summary, best[f'max_{key}'])} as simulated)"
    lines = [
        f"{there} can do {_whole(best['output_throughput'])} output tokens/s, "
        f"{_whole(best['tokens_per_second_per_gpu'])} a GPU and {number(best['tokens_per_second_per_user'])} a user: "
        f"{best['label']}{left}.",
        f"{capital(formats_line(best['formats']))}.",
        f"The SLO holds up to {_load(summary, best[key])} {unit}{simulated} (there {share(best['attainment'])} of "
        f"requests meet it, p95: TTFT {latency(best['p95_ttft_ms'])}, TPOT {latency(best['p95_tpot_ms'])}); {breaks}.",
        f"{capital(summary['judged']['words'])}.",
        *probability_lines(summary),
        *(f"It assumes that {each}." for each in best["assumes"]),
    ]
    at_90 = best.get(f"max_{key}_90")
    if summary["confidence"] is None and at_90 is not None:
        lines.append(f"On 90% of real servers it holds up to {_load(summary, at_90)} {unit}.")
    if best["usd_per_hour"] is not None:
        usd = best["usd_per_million_output_tokens"]
        lines.append(f"{dollars(best['usd_per_hour'])} an hour; {dollars(usd)} a million output tokens at that load.")
    return lines


def _load_words(summary: Mapping[str, Any]) -> tuple[str, str]:
    return ("concurrency", "clients") if summary["load"] == "closed" else ("rate", "requests/s")


def _load(summary: Mapping[str, Any], load: float) -> str:
    return load_figure(load, is_closed=summary["load"] == "closed")


def _front(summary: Mapping[str, Any]) -> Table:
    key, unit = _load_words(summary)
    points = summary["pareto"]
    users = np.array([each["tokens_per_second_per_user"] for each in points])
    wanted = np.linspace(users[0], users[-1], _MOST_FRONT)
    chosen = sorted({int(np.abs(users - each).argmin()) for each in wanted})
    rows = [
        (
            points[place]["label"],
            _load(summary, points[place][key]),
            _whole(points[place]["tokens_per_second_per_gpu"]),
            number(points[place]["tokens_per_second_per_user"]),
            latency(points[place]["p95_ttft_ms"]),
            "holds" if points[place]["holds"] else "misses",
        )
        for place in chosen
    ]
    return ("", unit, "tok/s/GPU", "tok/s/user", "p95 TTFT", "SLO"), rows


def _lost(summary: Mapping[str, Any]) -> Table:
    """Return the deployments that do less, each at its best settings, the best first, and why others were dropped."""
    ordered = sorted(summary["candidates"], key=lambda each: -(each["tokens_per_second_per_gpu"] or 0.0))
    known = {summary["best"]["label"], None}
    rows = []
    for each in ordered:
        if each["label"] in known or each["status"] not in ("holds", "misses", "not_better"):
            continue
        known.add(each["label"])
        has_load = each["output_throughput"] is not None
        why = each["reason"] or ("as the best was found" if each["is_promised"] else "by short runs")
        figures = (_whole(each["tokens_per_second_per_gpu"]), number(each["tokens_per_second_per_user"]))
        rows.append((each["label"], *(figures if has_load else (UNDEFINED, UNDEFINED)), why))
    return ("", "tok/s/GPU", "tok/s/user", ""), rows[:_MOST_LOST]


def _whole(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:,.0f}"


def throughput_front(summary: Mapping[str, Any]) -> Sketch | None:
    """Return tokens/s a GPU against tokens/s a user: the Pareto front, the other deployments, the limit on TPOT.

    None if nothing was run.
    """
    front = summary["pareto"]
    if not front:
        return None
    others = [each for each in summary["candidates"] if each["output_throughput"] and each["status"] != "best"]
    users, gpus = ([each[f"tokens_per_second_per_{name}"] for each in front] for name in ("user", "gpu"))
    marks: list[Mark] = []
    if others:
        marks.append(
            Dots(
                x=[each["tokens_per_second_per_user"] for each in others],
                y=[each["tokens_per_second_per_gpu"] for each in others],
                color=GREY,
                label="the most of other deployments",
                shape="square",
                is_hollow=True,
            )
        )
    marks.append(Curve(x=np.array(users), y=np.array(gpus), color=BLUE, label="unbeaten", shape="circle"))
    limit = summary["judged"]["limits_ms"]["tpot"]
    reach = list(users)
    if limit:
        slowest = 1e3 / limit
        reach.append(slowest)
        marks.append(Rule(x=slowest, color=GREEN, dashes=DOTTED))
        words = f"TPOT {latency(limit)}: {number(slowest)}"
        marks.append(Note(text=words, x=slowest, y=None, right=-4, up=3, is_left_of=True, color=GREEN))
    best = summary["best"]
    if best is not None:
        at, most = best["tokens_per_second_per_user"], best["tokens_per_second_per_gpu"]
        reach.append(at)
        marks.append(Dots(x=[at], y=[most], color=INK, is_hollow=True, size=_CIRCLE))
        marks.append(Note(text="the plan", x=at, y=most, right=6, up=4))
    return Sketch(
        left=0.14,
        x=from_zero("tokens/s a user (1 / TPOT)", reach),
        y=from_zero("output tokens/s a GPU", [*gpus, *(each["tokens_per_second_per_gpu"] for each in others)]),
        marks=marks,
    )


__all__ = ["throughput_brief", "throughput_front", "throughput_sections"]
