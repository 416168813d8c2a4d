"""The comparison as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from calibration.real_server.campaign import PACE
from calibration.real_server.replay import COMPARED, Row

GOALS = {"mean_tpot": (0.05, 0.12), "mean_ttft": (0.10, 0.25), "output_throughput": (0.03, 0.12)}
"""Figure -> error in the median, and at worst, on loads that were held out; twice the spread of repeats if more."""


def summary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the median and the worst error of every figure on loads that were held out, by kernels and as fitted.

    Throughput counts where requests come at a rate: with clients it says what TPOT and TTFT say. At the pace that each
    server had by then, the load that tells it is not held out.
    """
    found = {}
    for figure in COMPARED:
        for which in ("kernels", "fitted", "paced"):
            chosen = [row for row in rows if not (row.is_given if which == "paced" else row.is_fitted)]
            chosen = [row for row in chosen if row.is_open or figure != "output_throughput"]
            if which == "paced":
                chosen = [row for row in chosen if row.paced]
            if not chosen:
                continue
            errors = [abs(row.error(which, figure)) for row in chosen]
            within = [
                error <= max(GOALS[figure][1], 2 * row.spread[figure])
                for error, row in zip(errors, chosen, strict=True)
            ]
            found[f"{which} {figure}"] = {
                "median": float(np.median(errors)),
                "worst": max(errors),
                "rows": len(errors),
                "beyond": within.count(False),
            }
    return found


def as_mapping(rows: Sequence[Row], provenance: dict[str, Any]) -> dict[str, Any]:
    """Return everything as plain values."""
    return {"provenance": provenance, "summary": summary(rows), "rows": [asdict(row) for row in rows]}


def as_markdown(rows: Sequence[Row], provenance: dict[str, Any]) -> str:
    """Return the page."""
    said = "Simulated over measured, by the kernels alone -> with five factors fitted to two loads (*)"
    said += f" -> at the server's pace, which {PACE} tells." if any(row.paced for row in rows) else "."
    figures = ("TPOT, ms", "TTFT, ms", "tokens/s")
    titles = [
        "server",
        "load",
        *(each for name in figures for each in (name, "repeats", "error")),
        "pace",
        "counted, simulated",
    ]
    lines = [f"{provenance['what']} {said}", "", "| " + " | ".join(titles) + " |"]
    lines += ["|---|---|" + "---:|" * 10 + "---|"]
    for row in rows:
        cells = [row.server, row.load + ("*" if row.is_fitted else "")]
        for figure in COMPARED:
            scale = 1.0 if figure == "output_throughput" else 1e3
            cells += [
                f"{row.measured[figure] * scale:.3g}",
                f"{row.spread[figure]:.1%}" if row.spread[figure] else "once",
            ]
            ways = ("kernels", "fitted", "paced") if row.paced else ("kernels", "fitted")
            cells.append(" -> ".join(f"{row.error(which, figure):+.1%}" for which in ways))
        cells.append("" if row.pace is None else f"{row.pace:.2f}")
        counts = [f"{key.replace('_', ' ')} {seen:.3g}, {ours:.3g}" for key, (seen, ours) in row.counts.items()]
        lines.append("| " + " | ".join([*cells, "; ".join(counts)]) + " |")
    lines += ["", "On loads that were held out (goal: median, and worst or twice the spread of the repeats):", ""]
    found = summary(rows)
    paces = [row.pace for row in rows if row.pace is not None and row.load == PACE]
    for figure, name in COMPARED.items():
        before, after = found[f"kernels {figure}"], found[f"fitted {figure}"]
        median, worst = GOALS[figure]
        kind = ", requests at a rate" if figure == "output_throughput" else ""
        lines.append(
            f"- {name}{kind}: median {before['median']:.1%} -> {after['median']:.1%} (goal {median:.0%}), "
            f"worst {before['worst']:.1%} -> {after['worst']:.1%} (goal {worst:.0%}; "
            f"{after['beyond']:.0f} of {after['rows']:.0f} loads beyond)"
        )
        if paced := found.get(f"paced {figure}"):
            lines[-1] += (
                f"; at each server's pace, but for {PACE}: median {paced['median']:.1%}, worst {paced['worst']:.1%} "
                f"({paced['beyond']:.0f} of {paced['rows']:.0f} loads beyond)"
            )
    if len(paces) > 1:
        found_paces = ", ".join(f"{each:.2f}" for each in paces)
        lines += ["", f"Pace: TPOT of {PACE} on a server over that on the first one: {found_paces}."]
    return "\n".join(lines) + "\n"
