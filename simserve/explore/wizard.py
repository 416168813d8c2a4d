"""What to deploy: the planner on the page, with few choices and little time, and manifests for its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simserve import api
from simserve.documents import parse_yaml
from simserve.errors import InfeasibleError, InputError
from simserve.explore.queries import Check, WizardQuery
from simserve.metrics.files import scenario_text
from simserve.planner.export.export import WHOLE, export
from simserve.profiles.catalog import load_model
from simserve.report.plan import PlanPage, plan_sections
from simserve.report.plan_lines import worth_scaling
from simserve.report.quantities import number
from simserve.scenario.load import from_mapping
from simserve.units import HOURS_PER_MONTH

_FIGURES = (
    *("label", "num_gpus", "replicas", "usd_per_month", "usd_per_hour", "p95_ttft_ms", "p95_tpot_ms", "attainment"),
)
"""Figures shown of the cheapest fleet."""
_FLEETS = ("label", "usd_per_month", "p95_tpot_ms")  # Figures shown of each of the others.
_OF_GPUS = (
    *("label", "num_gpus", "replicas", "rate", "output_throughput", "tokens_per_second_per_gpu"),
    *("tokens_per_second_per_user", "p95_ttft_ms", "p95_tpot_ms", "attainment"),
)
"""Figures shown of the fleet with the highest throughput on fixed GPUs."""
_LOADS = ("label", "rate", "tokens_per_second_per_gpu", "tokens_per_second_per_user", "holds")
"""Figures shown of the answer, and of each load and fleet on the Pareto front of short runs."""
_SECONDS_PER_DAY = 86_400.0
_NOT_HERE = ("Run it",)  # Sections that name a command of the terminal.
_FLAG = " (--spare-replicas 1)"
"""What the terminal adds to the line about a lost replica; the page has a control for it."""


def first(query: WizardQuery, check: Check) -> dict[str, Any] | None:
    """Return an answer within a second: on the GPUs named, with weights as stored and the engine's KV cache format.

    None if nothing meets the SLO in that format, and for questions that take longer: separate workers, an autoscaler,
    or what fixed GPUs can do. `wizard` tries the other formats, and variants of what it finds.

    Raises:
        InputError: The traffic is invalid, or a GPU cannot run the model at all.
        TooLongError: It took too long.
    """
    if query.throughput or query.is_apart or query.is_scaled:
        return None

    def until_found(done: int, _known: int) -> None:
        check(0, 1)
        # One part per GPU, and one that confirms the best. Then it stops, as by Ctrl-C on the terminal.
        if done == len(query.hardware) + 1:
            raise KeyboardInterrupt

    try:
        stored = load_model(query.model).stored.format
        own = (f"deployment.quantization={stored}", "deployment.kv_cache_dtype=auto")
        plan = _plan(query, until_found, over=own)
    except KeyboardInterrupt:
        return None
    if not plan.summary["best"]:
        return None
    found = _answer(query, plan)
    return {**found, "parts": found["parts"][:1], "fleets": [], "equations": []}


def wizard(query: WizardQuery, check: Check) -> dict[str, Any]:
    """Return the cheapest fleet that meets the SLO, or the most that the GPUs can do; the runners-up; the scenario to
    continue with; and its manifests.

    Raises:
        InputError: The traffic is invalid, a GPU cannot run the model at all, or the inputs contradict each other.
        TooLongError: It took too long.
        KeyboardInterrupt: Ctrl-C, for example in an export: the best by then is not an answer.
    """
    if query.is_scaled and (query.is_apart or query.spare_replicas):
        rule = "is a day for which an autoscaler is looked for: of equal replicas, without spare ones"
        raise InputError(rule, key="peak_to_mean", value=query.peak_to_mean, remedy="set it to 1")
    plan = _plan(query, check)
    if plan.was_interrupted:
        raise KeyboardInterrupt
    found = _answer(query, plan)
    return {**found, "manifests": [] if found["scenario"] is None else _manifests(found["scenario"])}


def _plan(query: WizardQuery, progress: Check, over: tuple[str, ...] = ()) -> PlanPage:
    return api.plan(
        from_mapping(query.mapping()),
        hardware=query.hardware,
        max_gpus=query.max_gpus,
        objective="throughput" if query.throughput else "cost",
        # The answer for fixed GPUs is itself a load: there is none to add headroom to.
        headroom=0.0 if query.throughput else query.headroom,
        spare_replicas=query.spare_replicas,
        over=over,
        keep=query.keep,
        autoscaler=query.is_scaled,
        trials=0,
        jobs=1,
        reference=("explore.yaml",),
        progress=progress,
    )


def _answer(query: WizardQuery, plan: PlanPage) -> dict[str, Any]:
    summary, deployed = plan.summary, plan.scaled
    best, scaled = summary["best"], worth_scaling(summary.get("autoscaling"))
    parts: list[dict[str, Any]] = [
        {
            "title": each.title,
            "lines": [line.strip().replace(_FLAG, "") for line in each.lines],
            "header": list(each.header),
            "rows": [list(row) for row in each.rows],
            "is_text": list(each.is_text),
        }
        for each in plan_sections(summary)
        if each.title not in _NOT_HERE
    ]
    if query.is_scaled:
        parts[0]["lines"].append(_day_line(query))
    told, shown = (_OF_GPUS, _LOADS) if query.throughput else (_FIGURES, _FLEETS)
    fleets = summary["pareto"]
    if best and query.throughput:
        # The answer, from long runs, is not among the points, which are from short runs.
        fleets = [{**best, "holds": True}, *fleets]
    elif best and best["label"] not in {each["label"] for each in fleets}:
        # At equal price the plan keeps the weights as they are; a quantised fleet may be faster.
        fleets = [best, *fleets]
    return {
        "objective": summary["objective"],
        "feasible": summary["feasible"],
        "best": None if best is None else {name: best[name] for name in told} | _scaled(scaled),
        "parts": parts,
        "fleets": [{name: each[name] for name in shown} for each in fleets],
        "scenario": None if deployed is None else scenario_text(deployed.as_mapping()),
        "simulations": summary["search"]["simulations"],
        "equations": list(_equations(query, summary, parts[0]["lines"])),
    }


def _scaled(scaled: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the figures that differ with the autoscaler, if it pays; its percentiles are unknown."""
    if scaled is None:
        return {}
    usd = scaled["usd_per_month"]
    return {
        "label": scaled["label"],
        "attainment": scaled["attainment"]["least"],
        "mean_gpus": scaled["mean_gpus"],
        "usd_per_month": usd,
        "usd_per_hour": None if usd is None else usd / HOURS_PER_MONTH,
        "p95_ttft_ms": None,
        "p95_tpot_ms": None,
    }


def _day_line(query: WizardQuery) -> str:
    if query.day_seconds >= _SECONDS_PER_DAY:
        return "The day is simulated whole."
    hours = number(query.day_seconds / 3600)
    return (
        f"The day is squeezed into {hours} h, so that its load climbs faster than yours and the autoscaler is set more "
        "carefully than it must be; simserve plan tries your own day."
    )


def _equations(query: WizardQuery, summary: Mapping[str, Any], lines: Sequence[str]) -> Iterator[dict[str, str]]:
    best = summary["best"]
    if query.throughput:
        each = "none holds"
        if best is not None:
            per_gpu = best["tokens_per_second_per_gpu"]
            each = f"{best['output_throughput']:,.0f} / {query.max_gpus} = {per_gpu:,.1f} output tokens/s a GPU"
        yield {
            "name": "Tokens a second a GPU",
            "formula": "output tokens a second at the highest load that holds / GPUs there are",
            "numbers": each,
        }
    elif best is not None and summary["roles"]:
        yield {
            "name": "How many workers of each role",
            "formula": "smallest numbers with which prompts have their first token, and answers their further ones, "
            "within the SLO at rate x (1 + headroom): each role is sized alone, then pairs are simulated whole",
            "numbers": "; ".join(
                f"{role['workers']} x {role['role']}"
                + ("" if role["finishes"] is None else f" can finish {role['finishes']:.3g} requests/s")
                for role in summary["roles"]
            ),
        }
    else:
        yield {
            "name": "How many replicas",
            "formula": "smallest number that can sustain rate x (1 + headroom) within the SLO, plus the spare ones",
            "numbers": next((line for line in lines if line.startswith("one replica can sustain")), "none holds"),
        }


def _manifests(scenario: str) -> list[dict[str, Any]]:
    """Return for each target the files that deploy a scenario, or why it cannot express it."""
    loaded = from_mapping(parse_yaml(scenario, "explore.yaml", InputError))
    found: list[dict[str, Any]] = []
    for target in WHOLE:
        try:
            written = export(loaded, target)
        except (InputError, InfeasibleError) as refusal:
            found.append({"target": target, "refused": str(refusal), "files": [], "notes": []})
            continue
        files = [{"name": name, "text": text} for name, text in written.files.items()]
        found.append({"target": target, "refused": None, "files": files, "notes": list(written.notes)})
    return found
