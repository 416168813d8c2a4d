"""The answer of `simserve capacity` on a terminal, as a page, in a notebook: the load, what fails first, the curve."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simserve.planner.capacity import answer as capacity_answer
from simserve.planner.plan.explain import plan_command
from simserve.profiles.expected_errors import CALIBRATED
from simserve.report import answer_plots
from simserve.report.answer import Verdict, share_asked, warning_lines
from simserve.report.brief import LOAD_KEYS, STORED, Brief, Fact, Way, about, deployed_brief, fact_text
from simserve.report.page import Page, Paged, Section, html_table
from simserve.report.panels import panel
from simserve.report.quantities import capital, count, counted, load_figure, number, share
from simserve.report.sketch_figure import sketch_figure
from simserve.report.tables import TERM_LABELS
from simserve.report.terminal import columns, print_lines
from simserve.scenario.formats import formats_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_WIDEST = 100
_LEAST_SHARE = 0.01
"""A load on nine in ten real servers below this share of the highest load is described in words, not as a rate."""
_HEADER = ("load", "within the SLO", "TTFT p95 ms", "TPOT p95 ms", "goodput /s", "output tok/s", "the run is")


class Capacity(Paged, capacity_answer.Capacity):
    """The highest load that a deployment can sustain: ``.summary``, ``.plot``, and a page in a notebook."""

    @property
    def plot(self) -> CapacityPlots:
        """Its plots: ``latency()`` and ``goodput()`` against the load."""
        return CapacityPlots(self)

    def _page(self, command: str, brief: Brief | None) -> Page:
        lines = _answer_lines(self)
        levels = self.found.levels
        description = f"{lines[0]} {counted(len(levels), 'load')} from {_load(self, levels[0].load)} on."
        panels = (
            panel("latency", "Latency against load", "", answer_plots.capacity_latency(self), description),
            panel(
                "goodput", "Requests within the SLO against load", "", answer_plots.capacity_goodput(self), description
            ),
        )
        return Page(
            name=f"simserve capacity: {self.scenario.name}",
            brief=brief or capacity_brief(self),
            lines=lines[1:],
            sections=(
                Section(title="Load, latency, goodput", panels=panels),
                Section(title="Every load that was tried", header=header(self), rows=rows(self)),
                Section(title="How far to trust it", notes=_trust_lines(self)),
            ),
            command=command,
        )

    def __repr__(self) -> str:
        return f"<Capacity: {_answer_lines(self)[0]}>"

    def _repr_html_(self) -> str:
        notes = [*_trust_lines(self), f"Simulated with {formats_line(self.summary['formats'])}."]
        lines = [*warning_lines(self.summary), *_answer_lines(self)]
        return html_table(lines, header(self), rows(self), notes)


@dataclass(frozen=True, slots=True)
class CapacityPlots:
    """The plots of a capacity."""

    answer: capacity_answer.Capacity

    def latency(self) -> Figure:
        """Return p95 of TTFT and TPOT against the load, with the bounds of the SLO."""
        return sketch_figure(answer_plots.capacity_latency(self.answer))

    def goodput(self) -> Figure:
        """Return requests/s answered and within the SLO against the load, with the knee."""
        return sketch_figure(answer_plots.capacity_goodput(self.answer))


def render_capacity(capacity: capacity_answer.Capacity, console: Console) -> None:
    """Print what the brief leaves out: what fails, the table of loads, how far to trust it."""
    width = min(console.width, _WIDEST)
    print_lines(console, _answer_lines(capacity)[1:], width=width)
    console.print()
    # Titles take two lines: on 80 columns they would be cut off.
    titles = [name.replace(" ", "\n", 1) for name in header(capacity)]
    table = columns(titles, [name == titles[-1] for name in titles])
    for row, level in zip(rows(capacity), capacity.found.levels, strict=True):
        found = capacity.found.largest
        emphasis = "bold green" if level.load == found.value else "red" if level.load == found.fails_at else ""
        table.add_row(*row, style=emphasis)
    console.print(table, width=width)
    console.print()
    print_lines(console, _trust_lines(capacity), "dim", width)


def _answer_lines(capacity: capacity_answer.Capacity) -> list[str]:
    summary, found = capacity.summary, capacity.found
    unit = "clients" if capacity.is_closed_loop else "requests/s"
    asked = share_asked(capacity.asked)
    value, interval = found.largest.value, summary["confidence_interval"]
    if not value:
        failing = found.level(found.largest.fails_at)
        shown = share(None if failing is None else failing.attainment)
        return [
            f"The SLO holds at no load: even at {_counted_load(capacity, found.largest.fails_at)}, {shown} of requests "
            f"meet it ({asked} asked); {_breaks(capacity)}."
        ]
    within, is_known = "", interval is not None and interval["method"] != "bracket"
    if found.is_promised:
        runs = "as long as the scenario's" if capacity.lasts_as_said else f"of {count(found.num_requests)} requests"
        within = f", in at least 95% of runs {runs}"
    elif interval is not None:
        low, high = _load(capacity, interval["low"]), _load(capacity, interval["high"])
        within = f" (95% interval {low} to {high})" if is_known else f" (and no longer at {high})"
    lines = [f"The SLO holds up to {_counted_load(capacity, value)}{within}; {_breaks(capacity)}."]
    if found.is_promised and interval is not None and (found.has_settled is not None or is_known):
        low, high = _load(capacity, interval["low"]), _load(capacity, interval["high"])
        mean = f"The mean run holds it up to {_load(capacity, found.capacity)} {unit}" if found.capacity else "Capacity"
        lines.append(f"{mean} (95% interval {low} to {high}).")
    sustained = capacity.sustained
    if sustained is not None:
        if not sustained.load:
            far = f"not even at {_load(capacity, sustained.lowest)}"
        elif sustained.load < _LEAST_SHARE * value:
            far = f"at less than {share(_LEAST_SHARE)} of that"
        else:
            far = f"up to {_load(capacity, sustained.load)} {unit}"
        whose = "90% sure, this server holds it" if _is_fitted(sustained) else "On 90% of real servers it holds"
        lines.append(f"{whose} {far} ({sustained.basis.removeprefix('foreign: ')}).")
    failing = found.level(found.largest.fails_at)
    if failing is not None:
        parts = ", ".join(f"{TERM_LABELS[name]} {share(part)}" for name, part in failing.by_metric.items())
        met = _below(failing.attainment, asked)
        whose = "tasks" if failing.by_metric.get("task") == failing.attainment else "requests"
        lines.append(
            f"At {_load(capacity, failing.load)} {unit}, {met} of {whose} meet it ({asked} "
            f"asked){f': {parts}' if parts else ''}; the run is {failing.stability}."
        )
    knee = found.knee
    if knee is not None:
        goodput = number(knee.mean("goodput"))
        peak = _load(capacity, knee.load)
        lines.append(f"Goodput (what meets the SLO) peaks near {peak} {unit}, at {goodput} requests/s within the SLO.")
    return lines


def header(capacity: capacity_answer.Capacity) -> tuple[str, ...]:
    """Return the titles of the table."""
    return ("clients" if capacity.is_closed_loop else "requests/s", *_HEADER[1:])


def rows(capacity: capacity_answer.Capacity) -> list[tuple[str, ...]]:
    """Return the table of loads, ascending."""
    return [
        (
            _load(capacity, level.load),
            share(level.attainment),
            number(1e3 * level.mean("p95_ttft")),
            number(1e3 * level.mean("p95_tpot")),
            number(level.mean("goodput")),
            number(level.mean("output_throughput"), 4),
            level.stability,
        )
        for level in capacity.found.levels
    ]


def _trust_lines(capacity: capacity_answer.Capacity) -> list[str]:
    """Return how many requests the answer is based on, and what limits it."""
    requests: dict[str, Any] = capacity.summary["requests"]
    needed = requests["needed"]
    enough = (
        f"; {share_asked(capacity.asked)} needs {count(needed)}" if needed is not None and requests["enough"] else ""
    )
    runs = requests["replications"]
    lines = [
        f"{counted(runs, 'run')} decided it, on random numbers common to all loads, with "
        f"{count(requests['measured'])} measured requests{enough}."
    ]
    finishable = capacity.found.finishable
    if finishable is not None:
        lines.append(f"With its queue never empty the deployment finishes {number(finishable.rate)} requests/s.")
    return lines + [f"{capital(note)}." for note in capacity.notes]


def capacity_brief(
    capacity: capacity_answer.Capacity,
    reference: Sequence[str] = STORED,
    *,
    has_load: bool = True,
    is_deployed: bool = True,
) -> Brief:
    """Return the brief: the highest load, then the deployment at its own traffic, what to do, how far to trust it.

    Args:
        reference: Arguments that name the scenario in a command of simserve.
        has_load: Whether the scenario sets a load; else the deployment is shown at the highest load.
        is_deployed: Whether the deployment is run and shown; it is not after an interrupted search.
    """
    answered, found = _answer_lines(capacity)[0], capacity.found
    verdict: Verdict = "holds" if found.largest.value else "missed"
    told = Brief(
        verdict=verdict,
        answer=answered,
        warnings=warning_lines(capacity.summary),
        facts=[Fact("Trust", "; ".join([*capacity.notes, _trust_lines(capacity)[0].rstrip(".")]))],
    )
    if capacity.was_interrupted or not is_deployed:
        return told
    if not has_load and found.largest.value:
        return _at_largest_load(capacity, answered, reference)
    deployed = deployed_brief(capacity.scenario, reference, is_whole=True)
    facts = _changed_facts(capacity, deployed, _beside_load(capacity, fact_text(deployed, "Load")))
    ways = _ways(capacity, reference, is_held=deployed.verdict == "holds")
    return about(replace(deployed, facts=facts), answered, verdict, ways=ways)


def _changed_facts(capacity: capacity_answer.Capacity, deployed: Brief, load: str) -> list[Fact]:
    """Return the facts of a deployment with what the search adds to its load and to how far to trust it."""
    runs = _trust_lines(capacity)[0].partition(",")[0]
    changed = {"Load": load, "Trust": "; ".join([*capacity.notes, fact_text(deployed, "Trust"), runs])}
    return [replace(each, text=changed.get(each.label, each.text)) for each in deployed.facts]


def _at_largest_load(capacity: capacity_answer.Capacity, answered: str, reference: Sequence[str]) -> Brief:
    """Return the brief of a deployment whose scenario sets no load, at the highest load."""
    scenario, load = capacity.scenario, capacity.found.largest.value
    arrivals = scenario.workload.arrivals
    assert arrivals is not None  # a load was found
    at_load = {"arrivals": arrivals.model_copy(update={capacity.load_key: load})}
    workload = scenario.workload.model_copy(update=at_load)
    deployed = deployed_brief(scenario.model_copy(update={"workload": workload}), reference, is_whole=True)
    known = _on_real_servers(capacity)
    load_text = f"{known}{'; ' if known else ''}{fact_text(deployed, 'Load').partition('; ')[0]}"
    facts = _changed_facts(capacity, deployed, load_text)
    command = shlex.join(["simserve", "run", *reference, "--rate", _load(capacity, load).replace(",", "")])
    way = Way("The figures below are at that load. To see all of it:", command)
    return replace(deployed, verdict="holds", answer=answered, facts=facts, ways=[way])


def _beside_load(capacity: capacity_answer.Capacity, text: str) -> str:
    """Return the scenario's load beside the highest one, and what nine in ten real servers can sustain."""
    unit, most = "clients" if capacity.is_closed_loop else "requests/s", capacity.found.largest
    own = getattr(capacity.scenario.workload.arrivals, capacity.load_key, None)
    if own is None or not most.value:
        return text
    ratio = own / most.value
    times = f"{number(ratio)} times" if ratio >= 1 else f"{share(ratio)} of"
    now, known = f"{_load(capacity, own)} {unit} now, {times} that", _on_real_servers(capacity)
    return f"{now}; {known}" if known else now


def _on_real_servers(capacity: capacity_answer.Capacity) -> str:
    """Return the load that nine in ten real servers can sustain; empty if it was not searched for, or there is none."""
    real, most = capacity.sustained, capacity.found.largest.value
    if real is None or not real.load or not most:
        return ""
    held = _load(capacity, real.load) if real.load >= _LEAST_SHARE * most else f"less than {share(_LEAST_SHARE)} of it"
    return f"this server holds {held}, 90% sure" if _is_fitted(real) else f"90% of real servers hold {held}"


def _is_fitted(real: capacity_answer.Sustained) -> bool:
    """Return whether the load is that of a server whose own loads were fitted, not of any server of its kind."""
    return real.basis.startswith(CALIBRATED)


def _ways(capacity: capacity_answer.Capacity, reference: Sequence[str], *, is_held: bool) -> list[Way]:
    """Return what to do: deploy more if the scenario's traffic is too much, else look at the highest load."""
    plan, more = plan_command(reference), plan_command(reference, needs_more=True)
    if not capacity.found.largest.value:
        return [Way("No load is low enough. To find a deployment that holds:", more)]
    own, largest = getattr(capacity.scenario.workload.arrivals, capacity.load_key, None), capacity.found.largest
    if not is_held:
        return [Way("Its own traffic is more than that. To find what holds:", more)]
    if own is not None and own > largest.value and largest.fails_at is not None:
        longer = "longer runs do not" if capacity.found.is_promised else "others do not"
        return [Way(f"Its own traffic is more than that: one run holds it, {longer}. To find what holds:", more)]
    key = LOAD_KEYS[capacity.is_closed_loop]
    if not hasattr(capacity.scenario.workload.arrivals, capacity.load_key):
        return [Way("It holds its own traffic. To look for a cheaper deployment:", plan)]
    load = _load(capacity, capacity.found.largest.value).replace(",", "")
    words, flag = [*reference], f"--{capacity.load_key}"
    if flag in words:
        words[words.index(flag) + 1] = load
    else:
        words += ["--set", f"{key}={load}"]
    return [Way("It holds its own traffic. To see it at the largest load:", shlex.join(["simserve", "run", *words]))]


def _load(capacity: capacity_answer.Capacity, load: float | None) -> str:
    return load_figure(load, is_closed=capacity.is_closed_loop)


def _counted_load(capacity: capacity_answer.Capacity, load: float | None) -> str:
    """Return a load with its unit: ``'1 client'``, ``'2.5 requests/s'``."""
    if capacity.is_closed_loop and load is not None:
        return counted(load, "client")
    return f"{_load(capacity, load)} requests/s"


def _below(attainment: float, asked: str) -> str:
    """Return a share below the one asked, with enough digits to show the difference."""
    shown = share(attainment)
    return f"{math.floor(1e4 * attainment) / 1e2:.2f}%" if shown.replace(".0%", "%") == asked else shown


def _breaks(capacity: capacity_answer.Capacity) -> str:
    binding = capacity.binding
    if binding is None:
        return "nothing breaks up to there, the highest load allowed"
    if binding == "overload":
        return "beyond it the queue grows without end"
    if binding == "lost":
        failing = capacity.found.level(capacity.found.largest.fails_at)
        lost = share(None if failing is None else failing.mean("lost"))
        return f"there {lost} of requests fail or are refused, however fast the others are"
    return f"{TERM_LABELS[binding]} breaks first"
