"""What should I deploy: the planner on the page, with few choices and little time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve import api
from simserve.explore.limits import Check
from simserve.explore.queries import WizardQuery
from simserve.metrics.files import scenario_text
from simserve.profiles.model import load_model
from simserve.report.plan import plan_sections
from simserve.report.quantities import text_columns
from simserve.scenario.load import from_mapping

_FIGURES = (
    "label",
    "num_gpus",
    "replicas",
    "usd_per_month",
    "usd_per_hour",
    "p95_ttft_ms",
    "p95_tpot_ms",
    "attainment",
)
_NOT_HERE = ("Run it",)
"""Sections that name a command of the terminal."""
_FLAG = " (--spare-replicas 1)"
"""What the terminal adds to the line about a lost replica; here it is a control."""


def first(query: WizardQuery, check: Check) -> dict[str, Any] | None:
    """Return an answer within a second: the GPUs that were named, weights as stored, KV cache as the engine has it.

    None where nothing holds in that format. `wizard` looks at the other formats, and around what it finds.

    Raises:
        InputError: The traffic is none, or a GPU cannot run the model at all.
        TooLongError: It took too long.
    """

    def until_found(done: int, _known: int) -> None:
        check(0, 1)
        # A piece of work a GPU, and one that confirms the best. As Ctrl-C would on the terminal, it ends there.
        if done == len(query.hardware) + 1:
            raise KeyboardInterrupt

    try:
        stored = load_model(query.model).stored.format
        own = (f"deployment.quantization={stored}", "deployment.kv_cache_dtype=auto")
        summary = _plan(query, until_found, over=own).summary
    except KeyboardInterrupt:
        return None
    if not summary["best"]:
        return None
    found = _answer(query, summary)
    return {**found, "parts": found["parts"][:1], "fleets": [], "equations": []}


def wizard(query: WizardQuery, check: Check) -> dict[str, Any]:
    """Return the cheapest fleet that holds the objective, what lost, and the scenario to go on with.

    Raises:
        InputError: The traffic is none, or a GPU cannot run the model at all.
        TooLongError: It took too long.
    """
    return _answer(query, _plan(query, check).summary)


def _plan(query: WizardQuery, progress: Check, over: tuple[str, ...] = ()) -> Any:
    return api.plan(
        from_mapping(query.mapping()),
        hardware=query.hardware,
        max_gpus=query.max_gpus,
        headroom=query.headroom,
        spare_replicas=query.spare_replicas,
        over=over,
        trials=0,
        jobs=1,
        reference=("explore.yaml",),
        progress=progress,
    )


def _answer(query: WizardQuery, summary: Mapping[str, Any]) -> dict[str, Any]:
    best = summary["best"]
    parts: list[dict[str, Any]] = [
        {
            "title": title,
            "lines": [line.strip().replace(_FLAG, "") for line in lines],
            "header": list(table[0]) if table else [],
            "rows": [list(row) for row in table[1]] if table else [],
            "is_text": list(text_columns(table[1])) if table else [],
        }
        for title, lines, table in plan_sections(summary)
        if title not in _NOT_HERE
    ]
    chosen = {**query.mapping(), "deployment": best["deployment"]} if best else None
    fleets = summary["pareto"]
    if best and best["label"] not in {each["label"] for each in fleets}:
        # Of one price the plan takes the weights as they are; a quantised one may be faster.
        fleets = [best, *fleets]
    return {
        "feasible": summary["feasible"],
        "best": None if best is None else {name: best[name] for name in _FIGURES},
        "parts": parts,
        "fleets": [{name: each[name] for name in ("label", "usd_per_month", "p95_tpot_ms")} for each in fleets],
        "scenario": None if chosen is None else scenario_text(chosen),
        "simulations": summary["search"]["simulations"],
        "equations": [
            {
                "name": "How many replicas",
                "formula": "smallest number that can sustain rate x (1 + headroom) within the SLO, plus the spare ones",
                "numbers": next(
                    (line for line in parts[0]["lines"] if line.startswith("one replica can sustain")), "none holds"
                ),
            }
        ],
    }
