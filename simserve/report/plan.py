"""A plan on a terminal and in a notebook: the answer and its arithmetic first. Knows only the summary."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.planner.plan.explain import command as command_of
from simserve.planner.plan.fleet import MOST_TRAFFIC
from simserve.planner.plan.plan import Plan
from simserve.report.answer import share_asked, warning_lines
from simserve.report.answer_plots import plan_candidates, plan_waterfall
from simserve.report.brief import ROOFLINE, Brief, Fact, Way, api_text, deployed_brief, fact_text, resting
from simserve.report.page import Page, Section, html_sections, write_page
from simserve.report.panels import Panel, panel
from simserve.report.plan_lines import (
    RUNNERS_UP,
    SURE,
    UNLIKELY,
    answer_lines,
    changes,
    deployed_month,
    front,
    gpus_of,
    left_out,
    met_line,
    miss_lines,
    part,
    robustness_lines,
    runners_up,
    scaled_met_line,
    self_host_lines,
    sensitivity,
    single_changes,
    term,
    worth_scaling,
)
from simserve.report.purchase import purchase_lines, purchase_sketch, purchase_table, purchase_title, replica_sketch
from simserve.report.quantities import capital, dollars, number, share
from simserve.report.sketch_figure import figure_or_none
from simserve.report.terminal import columns
from simserve.report.thresholds import TITLE as THRESHOLDS
from simserve.report.thresholds import load_sketch, thresholds_lines, thresholds_sketch, thresholds_table
from simserve.report.throughput import throughput_brief, throughput_front, throughput_sections
from simserve.scenario.load import from_mapping
from simserve.scenario.schema import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_WIDEST = 118
_TOLD_IN_BRIEF = ("Run it", "How it stands")  # Parts whose lines are in the brief at the top of a page.
_LEAST_MORE, _TOLD_AS_TIMES = 1.01, 2.0
"""Least multiple of the traffic that counts as headroom, and the one from which headroom is given as a multiple."""
_IN_BRIEF = 3  # Lines of the answer that its brief shows: what to deploy, in which formats, and how the SLO is met.


@dataclass(frozen=True, kw_only=True)
class PlanPage(Plan):
    """A plan that shows itself in a notebook, draws itself and writes itself as a page."""

    scenario: Scenario | None = None
    """What was asked; None if the plan was read from a file, so that its deployment cannot be run again."""
    reference: Sequence[str] = ()  # Arguments of ``simserve run`` that name the scenario.

    @cached_property
    def brief(self) -> Brief:
        """The brief of the answer: what to deploy, autoscaler included, and one run of it for its latencies."""
        deployed = self.scaled
        if deployed is None or self.was_interrupted:
            return plan_brief(self.summary, reference=self.reference)
        return plan_brief(self.summary, deployed_brief(self._as_confirmed(deployed)), self.reference)

    def _as_confirmed(self, deployed: Scenario) -> Scenario:
        """Return the plan's deployment with as many requests as in a run that confirmed it, if those are more."""
        # The highest load of fixed GPUs is found at that load, without runs that confirm it.
        confirmed, workload = self.summary["best"].get("confirmed"), deployed.workload
        if confirmed is None or not confirmed["is_confirmed"] or workload.num_requests is None:
            return deployed
        count = confirmed["requests"] // confirmed["replications"]
        if count <= workload.num_requests:
            return deployed
        return deployed.model_copy(update={"workload": workload.model_copy(update={"num_requests": count})})

    @cached_property
    def deployed(self) -> Scenario | None:
        """The scenario on the plan's deployment; None if nothing meets the SLO, or the plan was read from a file."""
        best = self.summary["best"]
        return None if best is None else self._with(best, best["overrides"])

    @cached_property
    def scaled(self) -> Scenario | None:
        """The same with the autoscaler found, if it meets the SLO at lower cost; the scenario of ``--out``."""
        found = worth_scaling(self.summary.get("autoscaling"))
        return self.deployed if found is None else self._with(self.summary["best"], found["overrides"])

    def _with(self, best: Mapping[str, Any], overrides: Mapping[str, Any]) -> Scenario | None:
        """Return the scenario with overrides, at the load of the plan if the plan sets one."""
        if self.scenario is None:
            return None
        changes = dict(overrides)
        for load in ("rate", "concurrency"):
            if load in best and hasattr(self.scenario.workload.arrivals, load):
                changes[f"workload.arrivals.{load}"] = best[load]
        return from_mapping(self.scenario.as_mapping(), changes, folder=self.scenario.folder)

    @property
    def plot(self) -> PlanPlots:
        """Its plots: ``candidates()``; for the goal ``throughput`` ``front()``."""
        return PlanPlots(self.summary)

    def to_html(self, file: str | Path, command: str = "") -> None:
        """Write the plan as one self-contained page; ``command`` is the command that reproduces it."""
        write_page(plan_page(self.summary, command, self.brief), file)

    def __repr__(self) -> str:
        return f"<Plan: {answer_lines(self.summary)[0]}>"

    def _repr_html_(self) -> str:
        """Return the plan as HTML: what the terminal shows."""
        answer, *parts = plan_sections(self.summary)
        return html_sections(answer.lines, parts)


@dataclass(frozen=True, slots=True)
class PlanPlots:
    """The plots of a plan."""

    summary: Mapping[str, Any]

    def candidates(self) -> Figure | None:
        """Return dollars a month against p95 TTFT of the simulated fleets; None if none was priced."""
        return figure_or_none(plan_candidates(self.summary))

    def front(self) -> Figure | None:
        """Return tokens/s a GPU against tokens/s a user; None if the goal of the plan is not ``throughput``."""
        return figure_or_none(throughput_front(self.summary) if self.summary["objective"] == "throughput" else None)


def plan_page(summary: Mapping[str, Any], command: str, brief: Brief | None = None) -> Page:
    """Return the plan as a page: what the terminal shows, and the fleets that were tried.

    Args:
        brief: The brief at the top of the page; None: one from the summary alone.
    """
    is_fixed = summary["objective"] == "throughput"
    parts = list(plan_sections(summary))
    answer = parts[0].lines
    sections = [
        replace(each, lines=(), notes=each.lines) if each.title == RUNNERS_UP else each
        for each in parts[1:]
        if each.title not in _TOLD_IN_BRIEF
    ]
    figure = throughput_front(summary) if is_fixed else plan_candidates(summary)
    if figure is not None and is_fixed:
        caption = "Each point is a load of a deployment; the plan is circled."
        picture = panel("front", "Tokens/s a GPU against tokens/s a user", caption, figure, f"The front. {caption}")
        sections.insert(min(1, len(sections)), Section(title="What the GPUs can do", panels=(picture,)))
    elif figure is not None:
        tried = sum(bool(each.get("usd_per_month")) for each in summary["candidates"])
        caption = f"Fleets that were simulated ({tried}; those slower by far are not drawn); the plan is circled."
        title = "Dollars against latency"
        pictures = [panel("candidates", title, caption, figure, f"Dollars a month against p95 TTFT. {caption}")]
        steps = plan_waterfall(summary)
        if steps is not None:
            # The line of the arithmetic that gives the number of replicas.
            how = next((f"{capital(line)}." for line in summary["best"]["arithmetic"] if "replica" in line), "")
            pictures.append(panel("waterfall", "From traffic to dollars", how, steps, f"{how} {answer[0]}"))
        sections.insert(0, Section(title="The answer in two pictures", panels=tuple(pictures)))
    if summary.get("purchase"):
        place = next(at for at, each in enumerate(sections) if each.title == purchase_title(summary["purchase"]))
        sections.insert(place + 1, Section(title="Month by month", panels=tuple(_purchase_panels(summary["purchase"]))))
    if summary.get("autoscaling"):
        place = next(at for at, each in enumerate(sections) if each.title == THRESHOLDS)
        note = "Replicas launched in one fresh run of the whole load, means of minutes."
        sketch = thresholds_sketch(summary["autoscaling"])
        picture = panel("autoscaler", "Replicas over time", note, sketch, f"Replicas over time. {note}")
        caption = "What arrives, means of the same minutes."
        load = panel("load", "Load over time", caption, load_sketch(summary["autoscaling"]), f"Requests/s. {caption}")
        sections.insert(place + 1, Section(title="Over time", panels=(picture, load)))
    return Page(
        name=f"simserve plan: {summary['scenario']}",
        brief=brief or plan_brief(summary),
        lines=[_full_sentence(line) for line in answer[_IN_BRIEF:]] if summary["feasible"] and not is_fixed else (),
        sections=sections,
        command=command,
    )


def _full_sentence(line: str) -> str:
    """Return an indented line of the terminal as a full sentence; a line that ends in a command gets no full stop."""
    sentence = line.strip()
    if not any(sign.isdigit() for sign in sentence.split(" ", 1)[0]):  # product names keep their spelling
        sentence = capital(sentence)
    return sentence if ": simserve " in sentence else f"{sentence.rstrip('.')}."


def _purchase_panels(bought: Mapping[str, Any]) -> Iterator[Panel]:
    note = "Each month, what is paid for replicas, people and platform."
    yield panel("purchase", "Dollars a month", note, purchase_sketch(bought), f"Dollars by month. {note}")
    note = "What the busiest hour of each month needs, by how it is bought."
    yield panel("replicas", "Replicas by term", note, replica_sketch(bought), f"Replicas by month and term. {note}")


def plan_brief(summary: Mapping[str, Any], deployed: Brief | None = None, reference: Sequence[str] = ()) -> Brief:
    """Return the brief of a plan: what to deploy and how to run it, or why nothing meets the SLO and what to relax.

    Args:
        deployed: Brief of one run of the plan's deployment; None if it was not run: its latencies are not shown.
        reference: Arguments of ``simserve run`` that name the scenario.
    """
    if summary["objective"] == "throughput":
        brief = throughput_brief(summary)
    elif not summary["feasible"]:
        brief = _missed_brief(summary, reference)
    else:
        brief = _held_brief(summary, deployed)
    return brief if deployed is None else replace(brief, latencies=deployed.latencies)


def runs_file(brief: Brief, file: Path) -> Brief:
    """Return the brief of a plan that was written as a scenario: its command runs that file."""
    way = Way(brief.ways[0].told, f"simserve run {shlex.quote(str(file))}")
    return replace(brief, ways=[way, *brief.ways[1:]])


def writes_file(brief: Brief, command: str) -> Brief:
    """Return the brief of a plan that ``command`` writes as a scenario: shown if the plan's own command is too long."""
    if not brief.ways:
        return brief
    first = brief.ways[0]
    written = Way(f"{first.told.rstrip(':')} (-v prints the whole command), write it as a scenario:", command)
    return replace(brief, ways=[replace(first, instead=written), *brief.ways[1:]])


def _missed_brief(summary: Mapping[str, Any], reference: Sequence[str]) -> Brief:
    (head, *lines), miss = miss_lines(summary), summary["nearest_miss"] or {}
    inner = miss.get("relaxed_plan")
    ways = []
    if inner and inner["feasible"]:
        terms = " and ".join(term(each) for each in miss["unreachable"])
        ways.append(Way(f"Within reach without the limit on {terms}:", inner["best"]["command"]))
    elif miss.get("label"):
        changes = miss["overrides"]
        ways.append(Way("To see what the nearest one does:", command_of(reference, changes)))
    named = {"Nearest": "Nearest", "simulated": "Run", "To relax": "Relax"}
    facts = []
    for line in lines:
        word, _, rest = line.strip().partition(": ")
        facts.append(Fact(named[word], rest.rstrip(".")) if word in named else Fact("", line.strip().rstrip("."), True))
    return Brief(verdict="missed", answer=head, warnings=warning_lines(summary), ways=ways, facts=facts)


def _held_brief(summary: Mapping[str, Any], deployed: Brief | None) -> Brief:
    best, month = summary["best"], deployed_month(summary)
    lines, scaled = answer_lines(summary), worth_scaling(summary.get("autoscaling"))
    usd = best["usd_per_month"] if month is None else month["self_host_usd_per_month"]
    facts = []
    if summary.get("purchase"):
        bought, paid, *beside = [line.rstrip(".") for line in purchase_lines(summary["purchase"])]
        facts = [Fact("To buy", f"{bought}. {paid}")]
        facts += [Fact("", line, is_extra=True) for line in beside if not line.startswith("Assumed")]
    met = met_line(summary, with_latencies=deployed is None) if scaled is None else scaled_met_line(scaled)
    unasked = "none is set: " if best["attainment"] is None else ""
    facts.append(Fact("SLO", f"{unasked}{met[:1].lower()}{met[1:]}".rstrip(".") if unasked else met.rstrip(".")))
    if usd is not None:
        paid = f"{dollars(usd)} a month on {gpus_of(best)}"
        if scaled is not None:
            paid = f"{dollars(scaled['usd_per_month'])} a month on {number(scaled['mean_gpus'])} GPUs on average"
        facts.append(Fact("Cost", paid if month is None else f"{paid}; {api_text(month)}", is_whole=True))
    if "autoscaling" in summary:
        first, *rest = [line.rstrip(".") for line in thresholds_lines(summary["autoscaling"])]
        facts.append(Fact("Scaling", first))
        facts += [Fact("", line, is_extra=True) for line in rest if not line.startswith("simserve ")]
    more, *stands = [line.rstrip(".") for line in robustness_lines(summary)]
    if scaled is not None and deployed is not None:
        # More traffic and a lost replica were tried without the autoscaler; only the source of step times still
        # applies.
        facts.append(Fact("Load", fact_text(deployed, "Load").partition("; ")[0]))
        stands = stands[-1:]
    else:
        alone = "" if deployed is None else fact_text(deployed, "Load").partition("; ")[0]
        load = _load(summary, deployed) or (alone if best["traffic_sustained"] is None else more)
        facts += [Fact("Load", load)] if load else []
        stands = stands if best["traffic_sustained"] is not None else [more, *stands]
    facts += [Fact("Assumes", line) for line in best["assumes"]]
    facts += [Fact("" if place else "Also", line, is_extra=True) for place, line in enumerate(stands[:-1])]
    sure = [] if best.get("probability") is None else [_sure(summary)]
    ranges = [] if deployed is None or sure else [fact_text(deployed, "Trust")]
    rest = [f"{each[:1].lower()}{each[1:]}" for each in stands[-1:]]
    if rest:  # says itself where the step times are from
        ranges = [each.removesuffix(f"; {ROOFLINE}") for each in ranges]
    return Brief(
        verdict="holds",
        answer=lines[0] if scaled is not None else _with_probability(lines[0], summary),
        subject=lines[1].rstrip("."),
        warnings=warning_lines(summary),
        ways=[Way("To run it:", (scaled or best)["command"])],
        facts=[*facts, Fact("Trust", "; ".join([*sure, *ranges, *rest]))],
    )


def _with_probability(line: str, summary: Mapping[str, Any]) -> str:
    """Return the first line of an answer that holds on fewer than half of all real servers with the share that does."""
    probability = summary["best"].get("probability")
    if probability is None or summary.get("confidence") is not None or probability >= UNLIKELY:
        return line
    return f"{line.rstrip('.')}; {share(probability)} of real servers hold the SLO with it."


def _load(summary: Mapping[str, Any], deployed: Brief | None) -> str:
    """Return the scenario's load, what can be sustained, and up to how much more the SLO holds; empty if unknown."""
    best = summary["best"]
    sustained = best["traffic_sustained"]
    if deployed is None or sustained is None or sustained < 1:
        return ""
    own = fact_text(deployed, "Load").partition("; ")[0]
    if best["attainment"] is None:
        return own
    if sustained < _LEAST_MORE:
        return f"{own}; no more holds the SLO"
    more = f"{share(sustained - 1)} more" if sustained < _TOLD_AS_TIMES else f"{number(sustained)}x that"
    return f"{own}; SLO holds at {more}{' or above' if sustained >= MOST_TRAFFIC else ''}"


def _sure(summary: Mapping[str, Any]) -> str:
    """Return the share of real servers on which the SLO holds, and how to raise it if no confidence was asked for."""
    best = summary["best"]
    is_unsure = best["probability"] < SURE - 0.005 and summary.get("confidence") is None
    without = "" if worth_scaling(summary.get("autoscaling")) is None else " without the autoscaler"
    claim = f"{share(best['probability'])} of real servers hold it{without}"
    first, *rest = sorted(resting(claim, best["probability_basis"]), key=lambda part: not part.startswith(claim))
    if not is_unsure:
        return "; ".join([first, *rest])
    basis = first.removeprefix(claim).removeprefix(", ")
    return "; ".join([claim, f"for more: --confidence {share_asked(SURE)}", *filter(None, [basis]), *rest])


def render_plan(summary: Mapping[str, Any], console: Console) -> None:
    """Print every figure: why, how to run it, the runners-up, its headroom, and which optimisations pay."""
    from rich.padding import Padding
    from rich.text import Text

    width = min(console.width, _WIDEST)
    for position, section in enumerate(plan_sections(summary)):
        if position:
            console.print()
        if section.title:
            console.print(Text(section.title, style="bold"), width=width)
        style = ("bold green" if summary["feasible"] else "bold red") if not section.title else ""
        for number_of, line in enumerate(section.lines):
            is_command = line.startswith("simserve ")
            text = Text(line.lstrip(), style=style if number_of == 0 else "")
            shown = Padding(text, (0, 0, 0, 2)) if line.startswith("  ") else text
            console.print(shown, width=None if is_command else width, soft_wrap=is_command)
        if section.rows:
            console.print(columns(section.header, section.is_text, section.rows, breaks=section.is_text), width=width)


def plan_sections(summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the parts of a plan in reading order; the first is the answer."""
    if summary["objective"] == "throughput":
        yield from throughput_sections(summary)
        return
    if not summary["feasible"]:
        yield part("", miss_lines(summary))
        inner = (summary["nearest_miss"] or {}).get("relaxed_plan")
        if inner and inner["feasible"]:
            terms = " and ".join(term.upper() for term in summary["nearest_miss"]["unreachable"])
            yield part(f"Within reach, without the limit on {terms}", answer_lines(inner))
        yield from runners_up(summary)
        return
    best = summary["best"]
    yield part("", answer_lines(summary))
    scaled = worth_scaling(summary.get("autoscaling"))
    yield part("Run it", [(scaled or best)["command"]])
    yield part("How it stands" if scaled is None else "How it stands without the autoscaler", robustness_lines(summary))
    if summary.get("purchase"):
        bought = summary["purchase"]
        yield part(purchase_title(bought), purchase_lines(bought), purchase_table(bought))
    if "autoscaling" in summary:
        found = summary["autoscaling"]
        yield part(THRESHOLDS, thresholds_lines(found), thresholds_table(found))
    yield from runners_up(summary)
    if len(summary["pareto"]) > 1:
        yield front(summary)
    if summary["sensitivity"]:
        yield sensitivity(summary)
    if summary["changes"]:
        yield changes(summary)
    if summary["single_changes"]:
        yield single_changes(summary)
    if summary["search"]["left_out"]:
        yield left_out(summary)
    yield part("When not to host it yourself", self_host_lines(summary))


__all__ = ["PlanPage", "plan_sections", "render_plan"]
