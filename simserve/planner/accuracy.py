"""`calibration/ACCURACY.md`: the error tables of a validation as Markdown. Replays nothing and has no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve import __version__
from simserve.planner.measured.point import METRICS
from simserve.planner.validate import Validation

NUM_WORST = 12
"""Groups in the table of the worst."""

FEWEST_OF_WORST = 3
"""Points below which a group is not called a worst one: one row says little of a model."""

CAUSES = {
    "accelmark": "vLLM 0.7.3 behind an in-process client: host time of the client is in TPOT and TTFT",
    "apex_plus": "TTFT of short prompts is host and launch time of engine V0, which no operator explains",
    "kaito": "network time is taken off TTFT as a constant; the vLLM release is not stated",
    "mlperf": "layout, seats and release are not in the logs and are assumed",
    "nvidia_aic_inhouse_agg": "engine settings and lengths are not stated; defaults are assumed",
    "splitwise_iterations": "vLLM of 2023 without CUDA graphs: a step takes as long as launching its kernels",
    "trtllm_perf_overview": "runs queue everything at once: seats and token budget of the build are not stated",
    "trtllm_static_batch": "early TensorRT-LLM: kernels of grouped-query attention and of experts were slower",
}
"""Source -> what its largest errors likely come from: read off the rows, not proved by an experiment."""


def accuracy_page(validation: Validation, date: str, held_out: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the page.

    Args:
        validation: Of every source that is there.
        date: When it was made, as the page shows it.
        held_out: Rows of the fit's out-of-sample scores: ``family points in_sample out_of_sample`` (medians of
            the absolute error); empty where nothing was fitted.
    """
    summary = validation.summary
    parts = [
        _head(summary, date),
        "## By source\n",
        _table(("source",), summary["sources"]),
        "## By engine, GPU and model\n",
        _table(("source", "engine", "hardware", "model"), summary["groups"]),
        "## By concurrency\n",
        _table(("source", "concurrency"), summary["bands"]),
        "## Out of sample\n",
        _held_out(held_out),
        "## What is worst, and the likely cause\n",
        _worst(summary["groups"]),
        "## What could not be run\n",
        _reasons(summary["not_covered"]),
    ]
    return "\n".join(parts)


def _head(summary: Mapping[str, Any], date: str) -> str:
    return f"""# Accuracy

Written by `simserve validate --accuracy`, simserve {__version__}, {date}. Do not edit.

{summary["covered"]} of {summary["points"]} measured points were run. A cell is the median / mean / 90th percentile of
the absolute relative error, then the bias (mean of predicted - measured over measured) and the number of points.
`*`: compared but not scored, as the source says its figure carries artefacts. Figures are means over requests unless
the source gives medians.
"""


def _table(names: Sequence[str], groups: Sequence[Mapping[str, Any]]) -> str:
    header = (*names, "points", "run", *METRICS)
    lines = [_row(header), _row(["---"] * len(header))]
    for group in groups:
        cells = [str(group[name]) for name in names]
        cells += [str(group["points"]), str(group["covered"])]
        lines.append(_row([*cells, *(_cell(group, metric) for metric in METRICS)]))
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(group: Mapping[str, Any], metric: str) -> str:
    is_scored = metric in group["metrics"]
    errors = group["metrics"].get(metric) or group["shown_only"].get(metric)
    if errors is None:
        return ""
    absolute = " / ".join(f"{100 * errors[key]:.1f}" for key in ("median_ape", "mean_ape", "p90_ape"))
    return f"{absolute} %, {100 * errors['bias']:+.1f} % ({errors['points']}){'' if is_scored else '*'}"


def _held_out(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "No serving parameter was fitted to these points: every error above is out of sample in that sense.\n"
    lines = [_row(("left out", "points", "in sample", "out of sample")), _row(["---"] * 4)]
    for row in rows:
        shares = [f"{100 * row[key]:.1f} %" for key in ("in_sample", "out_of_sample")]
        lines.append(_row([str(row["family"]), str(row["points"]), *shares]))
    return "\n".join(lines) + "\n"


def _worst(groups: Sequence[Mapping[str, Any]]) -> str:
    found = [
        (errors["median_ape"], metric, group)
        for group in groups
        for metric, errors in group["metrics"].items()
        if errors["points"] >= FEWEST_OF_WORST
    ]
    found.sort(key=lambda each: -each[0])
    lines = []
    for error, metric, group in found[:NUM_WORST]:
        where = " ".join(str(group[key]) for key in ("source", "engine", "hardware", "model"))
        cause = CAUSES.get(str(group["source"]), "not explained yet")
        lines.append(f"- {metric} {100 * error:.0f} % ({group['metrics'][metric]['points']} points) {where}: {cause}.")
    return "\n".join(lines) + "\n" if lines else "No group has enough points to say.\n"


def _reasons(rows: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(f"- {row['points']} of {row['source']}: {row['reason']}." for row in rows) + "\n"
