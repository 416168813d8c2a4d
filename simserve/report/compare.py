"""The answer of `simserve compare` on a terminal, as a page and in a notebook: figures side by side, what they show."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simserve.metrics.thresholds import at
from simserve.planner import compare
from simserve.planner.compare import FIGURES, PAIRED, Variant
from simserve.planner.plan.explain import command as command_of
from simserve.planner.plan.explain import plan_command
from simserve.planner.statistics import LEAST_PAIRS, Difference
from simserve.profiles.expected_errors import load_error_model
from simserve.report import answer_plots
from simserve.report.answer import warning_lines
from simserve.report.brief import STORED, Brief, Fact, Way, about, deployed_brief
from simserve.report.figures import SHOWN
from simserve.report.page import Page, Paged, Section, html_table
from simserve.report.panels import panel
from simserve.report.quantities import UNDEFINED, capital, dollars, latency, listed, number, share
from simserve.report.sketch_figure import sketch_figure
from simserve.report.terminal import columns, print_lines
from simserve.scenario.formats import formats_line
from simserve.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_ROWS = (
    *("slo_attainment", "mean_ttft_ms", "p95_ttft_ms", "mean_tpot_ms", "p95_tpot_ms", "p95_itl_ms", "p99_itl_ms"),
    *("p95_e2el_ms", "request_throughput", "request_goodput", "output_throughput", "busy", "kv_usage_mean"),
    *("usd_per_hour", "usd_per_million_output_tokens", "usd_per_million_tokens"),
)
_LEAST_LOST = 0.0005
"""Share of unserved requests from which the line of a variant mentions them: its latencies exclude them."""
_HEADLINES = (
    ("slo_attainment", "requests within the SLO"),
    ("mean_tpot_ms", "mean TPOT"),
    ("p95_ttft_ms", "p95 TTFT"),
    ("p99_itl_ms", "p99 ITL"),
    ("output_throughput", "output tokens/s"),
    ("usd_per_million_output_tokens", "dollars a million output tokens"),
)
_MORE_IS_BETTER = frozenset({"slo_attainment", "output_throughput"})
"""Headline figures for which more is better; for the others less is better."""
_DECIDES_FROM = 0.01  # A change of less than this share of the base does not decide.
_LEAST_GAP_FACTOR = 2.0
"""The p99 of ITL is a headline if it changes by this factor or more; else TPOT shows the same."""
_FACTOR_FROM = 10.0
"""From this multiple of the base on, a change is given as a factor: ``166x`` reads better than ``+16463%``."""
_COARSE = 2.0  # From this half width in percent on, decimals are dropped.
_NOTHING = 1e-9  # Widths below this percentage are rounding errors.
_EQUAL = "(equal)"  # Text for no difference at all.
_SMALLEST_SHARE = 5e-5  # A change of a share below this, interval included, does not show in any printed digit.


class Comparison(Paged, compare.Comparison):
    """A base and its variants: ``.summary``, ``.plot``, and a page in a notebook."""

    @property
    def plot(self) -> ComparisonPlots:
        """Its plot: ``differences()``."""
        return ComparisonPlots(self)

    def _page(self, command: str, brief: Brief | None) -> Page:
        lines = _ranked_lines(self)
        opening = brief or comparison_brief(self)
        brief_text = " ".join(each.text for each in opening.facts)
        figure = answer_plots.differences(self)
        note = "Filled: a difference is shown; hollow: the interval covers zero"
        description = f"{' '.join(lines)} {note}."
        pictures = [panel("differences", "Against the base", note, figure, description)]
        priced = answer_plots.compared_dollars(self)
        if priced is not None:
            read = "Each deployment; lower and further left is better."
            pictures.append(panel("dollars", "Dollars against latency", read, priced, read))
        changes = [
            (
                variant.name,
                ", ".join(f"{key}={value}" for key, value in variant.changes.items()),
                formats_line(variant.formats),
            )
            for variant in self.variants
        ]
        return Page(
            name=f"simserve compare: {self.base.scenario.name}",
            brief=opening,
            lines=[line for line in lines[1:] if line.partition(": ")[2].rstrip(".") not in brief_text],
            sections=(
                Section(title="What changes", panels=pictures),
                Section(title="Figures", header=header(self), rows=_rows(self), notes=_reading_lines(self)),
                Section(title="The variants", header=("variant", "changes", "formats"), rows=changes),
            ),
            command=command,
        )

    def __repr__(self) -> str:
        return f"<Comparison: {' '.join(_answer_lines(self))}>"

    def _repr_html_(self) -> str:
        base = formats_line(self.base.formats)
        others = [(each.name, formats_line(each.formats)) for each in self.variants]
        different = [f"{name}: {formats}." for name, formats in others if formats != base]
        notes = [*_reading_lines(self), f"Simulated with {base}.", *different]
        return html_table(comparison_lines(self), header(self), _rows(self), notes)


@dataclass(frozen=True, slots=True)
class ComparisonPlots:
    """The plot of a comparison."""

    answer: compare.Comparison

    def differences(self) -> Figure:
        """Return what each variant changes, in percent of the base, with 95 % intervals."""
        return sketch_figure(answer_plots.differences(self.answer))


def render_comparison(comparison: compare.Comparison, console: Console) -> None:
    """Print what the brief leaves out: the changes of further variants, the table, and how to read it."""
    from rich.text import Text

    print_lines(console, _ranked_lines(comparison)[1:], "bold")
    titles = header(comparison)
    table = columns(titles, [True, *[False] * (len(titles) - 1)])
    for label, base, cells in _cells(comparison):
        row: list[Text] = [Text(label), Text(base)]
        for value, change, is_shown in cells:
            row += [Text(value), Text(change, style="" if is_shown else "dim")]
        table.add_row(*row)
    console.print(table)
    console.print()
    print_lines(console, _reading_lines(comparison), "dim")


def header(comparison: compare.Comparison) -> list[str]:
    """Return the titles of the table."""
    titles = ["", comparison.base.name]
    for variant in comparison.variants:
        titles += [variant.name, "difference"]
    return titles


def comparison_lines(comparison: compare.Comparison) -> list[str]:
    """Return warnings, then one sentence for each variant: the headline figures that it is shown to change."""
    return [*warning_lines(comparison.summary), *_answer_lines(comparison)]


def _answer_lines(comparison: compare.Comparison) -> list[str]:
    lines = []
    for variant in comparison.variants:
        runs = len(comparison.base.summaries)
        shown = [
            f"{label} {_change(variant.differences[name], SHOWN[name].kind)}"
            for name, label in _HEADLINES
            if _is_headline(variant, name, runs)
        ]
        if 1 < runs < LEAST_PAIRS:
            text = f"too few runs for intervals (--replications {LEAST_PAIRS})"
        else:
            text = listed(shown) if shown else "no difference shown in latency, throughput, attainment or dollars"
        if runs == 1:
            text += f" (one run{' of the trace' if comparison.base.scenario.workload.trace is not None else ''} each)"
        lines.append(f"{variant.name}: {text}.")
    return lines


def _reading_lines(comparison: compare.Comparison) -> list[str]:
    """Return how the figures were obtained, and how to read them."""
    count = len(comparison.base.summaries)
    if count == 1:
        return ["The same trace through each, once; nothing is drawn, so there are no intervals.", *_real_lines()]
    seen = "on the same requests (common random numbers)" if comparison.is_paired else "each with requests of its own"
    each = comparison.requests_each
    length = "" if each is None else f" of {each:,} requests"
    runs = f"{count} runs{length} for each variant, {seen}"
    if count < LEAST_PAIRS:
        return [f"{runs}; an interval takes {LEAST_PAIRS}: --replications {LEAST_PAIRS}.", *_real_lines()]
    return [
        f"{runs}; after a difference stands its 95% interval.",
        "In brackets no difference is shown: the interval includes zero.",
        *_real_lines(),
    ]


def _real_text() -> str:
    """Return how far the ratio of two real servers may be from the simulated one, by latency; empty if not measured."""
    pairs = load_error_model().pairs
    shown = [f"{math.expm1(pairs[name].p90):.0%} in {name.upper()}" for name in ("tpot", "ttft") if name in pairs]
    return f"for 90% of real servers the ratio of the two is within {listed(shown)} of this one" if shown else ""


def _real_lines() -> list[str]:
    text = _real_text()
    return [f"{capital(text)}."] if text else []


def comparison_brief(comparison: compare.Comparison, reference: Sequence[str] = STORED) -> Brief:
    """Return the brief: what the variants change, what each costs and whether it meets the SLO, then the base as it is.

    Args:
        reference: Arguments that name the base in a command of simserve.
    """
    answered, *others = _ranked_lines(comparison)
    if comparison.was_interrupted:
        facts = [Fact("Trust", line.rstrip(".")) for line in _reading_lines(comparison)[:1]]
        return Brief(verdict="none", answer=answered, warnings=warning_lines(comparison.summary), facts=facts)
    shown = {line.partition(": ")[0]: line.partition(": ")[2].rstrip(".") for line in others}
    more = [
        Fact(
            variant.name, "; ".join(each for each in (_month(variant), shown.get(variant.name, "")) if each), place > 3
        )
        for place, variant in enumerate((comparison.base, *comparison.variants))
    ]
    deployed = deployed_brief(comparison.asked or comparison.base.scenario, reference)
    ways = [_way(comparison, reference)]
    runs = _reading_lines(comparison)[0].partition("; ")[0].partition(" (")[0].rstrip(".")
    trust = "; ".join(filter(None, [runs, _real_text()]))
    facts = [replace(each, text=f"{trust}; {each.text}") if each.label == "Trust" else each for each in deployed.facts]
    return about(replace(deployed, facts=facts), answered, "none", more=more, ways=ways)


def _as_asked(variant: Variant) -> str:
    """Return a variant as ``--with`` takes it."""
    changes = (
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in variant.changes.items()
    )
    return f"{variant.name}: {', '.join(changes)}"


def _way(comparison: compare.Comparison, reference: Sequence[str]) -> Way:
    """Return what to run: the cheapest that meets the SLO, of equals the faster one; else where to look."""
    best = _best(comparison)
    if _is_undecided(comparison):
        again = command_of(reference, {}, "compare", keeps_layout=True)
        asked = " ".join(f"--with {shlex.quote(_as_asked(each))}" for each in comparison.variants)
        return Way(
            "To decide, as without an SLO differences need intervals:", f"{again} {asked} --replications {LEAST_PAIRS}"
        )
    if best is None:
        return Way(
            "None of them holds the SLO. To find a deployment that does:", plan_command(reference, needs_more=True)
        )
    mixed = _mixed(comparison, best)
    if mixed is not None:
        gains, losses = _moved(mixed, comparison)
        text = f"{mixed.name} is better in {listed(gains)}, {comparison.base.name} in {listed(losses)}"
        return Way(f"{text}. To run {mixed.name}:", command_of(reference, mixed.changes, keeps_layout=True))
    if best is comparison.base:
        slo = comparison.base.scenario.slo
        misses = any(not _is_held(each, None if slo is None else slo.attainment) for each in comparison.variants)
        none = "None that holds the SLO" if misses else "None"
        return Way(
            f"{none} is cheaper than {best.name}, or faster at its price. To look further:", plan_command(reference)
        )
    is_alone = len(comparison.variants) == 1
    text = f"{best.name} is better than {comparison.base.name}" if is_alone else f"The best of them is {best.name}"
    return Way(f"{text}. To run it:", command_of(reference, best.changes, keeps_layout=True))


def _best(comparison: compare.Comparison) -> Variant | None:
    """Return the cheapest deployment that meets the SLO, of equals the faster one; None if none meets it."""
    slo = comparison.base.scenario.slo
    asked = None if slo is None else slo.attainment
    best = comparison.base if _is_held(comparison.base, asked) else None
    for variant in comparison.variants:
        if not _is_held(variant, asked):
            continue
        summaries: Any = variant.summary, (best or variant).summary
        price, known = (at(each, FIGURES["usd_per_hour"]) or 0.0 for each in summaries)
        is_equal = price == known
        if best is None or price < known or (is_equal and _is_faster(variant, best, len(comparison.base.summaries))):
            best = variant
    return best


def _is_faster(variant: Variant, best: Variant, runs: int) -> bool:
    """Return whether a variant shows less time per token than the best so far or, if neither shows more or less, an
    earlier first token; in one run, which has no intervals, from a change on that decides."""
    for name in ("mean_tpot_ms", "p95_ttft_ms"):
        summaries: Any = variant.summary, best.summary
        value, least = (at(each, FIGURES[name]) or 0.0 for each in summaries)
        if abs(value - least) >= _DECIDES_FROM * least if runs == 1 else variant.differences[name].is_shown:
            return value < least
    return False


def _mixed(comparison: compare.Comparison, best: Variant | None) -> Variant | None:
    """Return the variant to name if no SLO decides between its gains and its losses; None if one side is better."""
    if comparison.base.scenario.slo is not None:
        return None
    for variant in comparison.variants if best is comparison.base else (best,):
        if variant is not None and all(_moved(variant, comparison)):
            return variant
    return None


def _moved(variant: Variant, comparison: compare.Comparison) -> tuple[list[str], list[str]]:
    """Return the headlines in which a variant is shown to be better than the base, and those in which worse."""
    gains: list[str] = []
    losses: list[str] = []
    for name, label in _HEADLINES:
        change = variant.differences[name].relative
        if _is_headline(variant, name, len(comparison.base.summaries)) and abs(change) >= _DECIDES_FROM:
            (gains if (change > 0) == (name in _MORE_IS_BETTER) else losses).append(label)
    return gains, losses


def _ranked_lines(comparison: compare.Comparison) -> list[str]:
    """Return a sentence for each variant: the best first, the others in their order; the first says which to take."""
    best, lines = _best(comparison), _answer_lines(comparison)
    place = next((at for at, variant in enumerate(comparison.variants) if variant is best), 0)
    mixed = _mixed(comparison, best)
    if mixed is not None:
        place = comparison.variants.index(mixed)
    first, variant_named = lines[place], comparison.variants[place]
    if _is_undecided(comparison):
        first = (
            f"Too few runs to decide. {first.partition(': too few')[0]}: no intervals (--replications {LEAST_PAIRS})."
        )
    elif mixed is not None:
        first = f"Mixed, and no SLO decides. {first}"
    elif best is not None:
        first = f"Keep the base. {first}" if best is comparison.base else f"Take {first}"
    runs = len(comparison.base.summaries)
    doubts, pairs = [], load_error_model().pairs
    for name, label in _HEADLINES:
        errors, change = pairs.get(PAIRED.get(name.partition("_")[2], "")), variant_named.differences[name].relative
        if errors is None or not _is_headline(variant_named, name, runs) or change <= -1:
            continue
        if abs(math.log1p(change)) < errors.p50:
            doubts.append(f"{label} (median error {share(math.expm1(errors.p50))})")
    if doubts:
        first = f"{first} Within the error of such a comparison on real servers: {listed(doubts)}."
    return [first, *lines[:place], *lines[place + 1 :]]


def _is_undecided(comparison: compare.Comparison) -> bool:
    """Return whether runs are too few for intervals, and no SLO decides in their place."""
    return comparison.base.scenario.slo is None and 1 < len(comparison.base.summaries) < LEAST_PAIRS


def _is_held(variant: Variant, asked: float | None) -> bool:
    summary: Any = variant.summary
    met = at(summary, FIGURES["slo_attainment"])
    return asked is None or (met is not None and met >= asked)


def _month(variant: Variant) -> str:
    """Return how many requests of a variant meet the SLO, or are not served, its latencies, and its cost a month."""
    summary: Any = variant.summary
    hourly, attainment = at(summary, FIGURES["usd_per_hour"]), at(summary, FIGURES["slo_attainment"])
    paid = "no price is known" if hourly is None else f"GPUs {dollars(hourly * HOURS_PER_MONTH)} a month"
    means = [
        f"{term} {latency(value)}"
        for term, name in (("TTFT", "mean_ttft_ms"), ("TPOT", "mean_tpot_ms"))
        if (value := at(summary, FIGURES[name])) is not None
    ]
    latencies = [f"mean {', '.join(means)}"] if means else []
    met = [] if attainment is None else [f"{share(attainment)} meet the SLO"]
    lost = 1.0 - summary["completed"] / summary["simserve"]["requests"]["submitted"]
    unserved = [f"{share(lost)} not served"] if lost >= _LEAST_LOST else []
    return "; ".join([*met, *unserved, *latencies, paid])


def _rows(comparison: compare.Comparison) -> list[list[str]]:
    return [
        [label, base, *(text for value, change, _ in cells for text in (value, change))]
        for label, base, cells in _cells(comparison)
    ]


def _cells(comparison: compare.Comparison) -> list[tuple[str, str, list[tuple[str, str, bool]]]]:
    """Return label, figure of the base, and for each variant its figure, the difference, and whether that is shown."""
    found = []
    base: Any = comparison.base.summary
    summaries = [variant.summary for variant in comparison.variants]
    for name in _ROWS:
        figure = SHOWN[name]
        value = at(base, FIGURES[name])
        others = [at(summary, FIGURES[name]) for summary in summaries]
        if value is None and all(other is None for other in others):
            continue
        cells = [
            (figure.text(other), _change(variant.differences[name], figure.kind), variant.differences[name].is_shown)
            for variant, other in zip(comparison.variants, others, strict=True)
        ]
        found.append((figure.title, figure.text(value), cells))
    return found


def _change(difference: Difference, kind: str) -> str:
    """Return a difference relative to the base (shares: in percentage points) with its interval."""
    if math.isnan(difference.mean):
        return UNDEFINED
    if difference.mean == 0 and (math.isnan(difference.low) or difference.half_width == 0):
        return _EQUAL
    half_width = 0.0 if math.isnan(difference.low) else difference.half_width
    if kind == "share" and abs(difference.mean) + half_width < _SMALLEST_SHARE:
        return _EQUAL
    relative = None if kind == "share" else difference.relative_interval
    text = _absolute(difference, kind) if relative is None else _of_ratio(difference.relative, *relative)
    return text if difference.is_shown or math.isnan(difference.low) else f"({text})"


def _absolute(difference: Difference, kind: str) -> str:
    """Return a difference in percentage points, or for figures that may be 0, in percent of the base."""
    scale, unit = (100.0, " points") if kind == "share" or not difference.base else (100.0 / abs(difference.base), "%")
    moved = scale * difference.mean
    change = f"{moved:+.{_decimals(moved)}f}{unit}"
    width = scale * difference.half_width
    return change if math.isnan(width) or width < _NOTHING else f"{change} ±{width:.{_decimals(width)}f}"


def _of_ratio(relative: float, low: float, high: float) -> str:
    """Return a ratio minus one with its interval: in percent, or as a factor if it is large."""
    if relative >= _FACTOR_FROM - 1:
        change, ends = f"{number(1 + relative)}x", [number(1 + end) for end in (low, high)]
    else:
        moved, lowest, highest = 100 * relative, 100 * low, 100 * high
        half_width = (highest - lowest) / 2
        decimals = 0 if half_width >= _COARSE else _decimals(half_width if half_width >= _NOTHING else moved)
        change, ends = f"{moved:+.{decimals}f}%", [f"{end:+.{decimals}f}" for end in (lowest, highest)]
    return change if 100 * (high - low) < _NOTHING else f"{change} [{ends[0]}, {ends[1]}]"


def _decimals(value: float) -> int:
    """Return the decimals for a figure: one from 0.1 on, below that up to the first that is not zero."""
    size = abs(value)
    if size >= 0.1 or size < _NOTHING:
        return 0 if size >= 20 else 1
    return -math.floor(math.log10(size))


def _is_headline(variant: Variant, name: str, runs: int) -> bool:
    """Return whether a figure has changed; in one run of a trace, which draws no random numbers, any change counts."""
    difference = variant.differences[name]
    has_moved = difference.is_shown
    if runs == 1:
        has_moved = _change(difference, SHOWN[name].kind) not in (UNDEFINED, _EQUAL)
    if not has_moved or name != "p99_itl_ms":
        return has_moved
    low, high = sorted((difference.base, difference.variant))
    return high >= _LEAST_GAP_FACTOR * low
