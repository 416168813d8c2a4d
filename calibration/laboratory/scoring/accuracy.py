"""`calibration/ACCURACY.md`: the error tables of a validation as Markdown. Replays nothing and has no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibration.laboratory.scoring.held_out import held_out_rows, sample_rows
from simserve.planner.measured.point import METRICS, MeasuredPoint
from simserve.planner.validation.prediction import Prediction
from simserve.planner.validation.scoring import OF_GPU, OF_KV, coverage_sentence
from simserve.planner.validation.validate import Validation
from simserve.profiles.expected_errors import (
    ErrorModel,
    generation_of,
    load_calibrated_errors,
    load_error_model,
)
from simserve.version import __version__

GROUPS_TOLD = (
    "Known family: another source measured this engine generation, GPU and class of model (dense or mixture of "
    "experts) together. Known engine: other sources measured the engine generation and the GPU, but not together, or "
    "not with such a model. Foreign: no other source measured the engine generation, or the GPU, or layers like these."
)
"""What the groups of the errors are."""

NUM_WORST = 12
"""Groups in the table of the worst errors."""

MOST_OF_SOURCE = 2
"""Most groups of one source in it."""

FEWEST_OF_WORST = 3
"""Least points of a group in it: one row says little about a model."""

STATIC_BATCHES = ("splitwise_iterations", "trtllm_static_batch")
"""Sources of batches that start and end together."""

_SAMPLES = """The operators' curves were fitted to tables of kernels, not to servers: for them every server of this page
is out of sample. Constants of serving were fitted to some points, and are scored on others; cells are medians of the
absolute error, with points.
"""

_LEFT_OUT = """Leaving a GPU, a model or an engine out: the figures of it that no constant was fitted to (`out`), beside
those that one was (`in`). A name without `in` was left out of every fit. Median absolute error, with figures.
"""

_SCORED = ("tpot", "ttft", "throughput")

FEWEST_OF_NAME = 5
"""Least points of a GPU, model or engine for a row of its own there."""

CAUSES = {
    "accelmark": "near the capacity half of 300 requests wait, so that medians of TTFT jump; the CPUs of its nodes are "
    "known by one factor each; its A100 decodes 7 % faster under vLLM 0.20.1 than the tables of kernels say",
    "apex_plus": "TTFT of short prompts is host and launch time of engine V0, a constant a layer here",
    "inferencex_agg": "TTFT of mixtures of experts: SGLang and TensorRT-LLM take 150 to 250 ms more for short prompts, "
    "which a launch time of 4 ms a layer would give for DeepSeek but neither for GLM-5 nor in kernels, and was dropped",
    "kaito": "network time is taken off TTFT as a constant; the vLLM release is not stated; at 32 requests/s its "
    "server is nearly full, where a step 10 % longer is 25 % more of TPOT",
    "llama_cpp": "its prompts of spring 2024 reached 0.27 of the FP16 rate of an RTX 6000 Ada and 0.22 of an H100's, "
    "where 0.55 and at most 300 TFLOP/s stand here; larger models reached 1.1 to 1.4 times as much",
    "mlperf": "submitters of the same machine are 20 to 40 % apart, by power (700 and 1,000 W) and settings; vLLM rows "
    "of the open division ran behind the reference harness; Mixtral's experts are priced too fast in large batches",
    "mlperf_official": "Mixtral's experts are priced too fast in large batches; H200 NVL, H100 PCIe, MI300X and "
    "MI325X have class efficiencies alone",
    "single_stream": "vLLM and llama.cpp of 2023 in releases that are assumed; on A10G, launching kernels and "
    "running them add up in FP16 and INT4 alike, where on A100 the longer of the two counts",
    "nvidia_aic_inhouse_agg": "engine settings and lengths are not stated; defaults are assumed",
    "splitwise_iterations": "vLLM of 2023: all-reduces of 64 MiB and more are slow over 4 and 8 GPUs, on A100 by "
    "amounts that differ twofold between batches and long prompts; decode steps over 2 A100 are priced 10 to 20 % slow",
    "trtllm_online_serving": "prompts are priced 13 % too fast, and every stall of a decode with them",
    "trtllm_perf_overview": "runs queue everything at once: seats and token budget of the build are not stated",
    "trtllm_static_batch": "early TensorRT-LLM: prompts of Falcon over 8 GPUs left 0.2 ms a layer idle; Mixtral's "
    "random weights sent all tokens to few experts (32 sequences decode in less time than all weights take to read)",
    "vllm_itl": "one sequence: kernels and their starts alone, 3 % from the tables",
}
"""Source -> likely causes of its largest errors: inferred from the rows, not proved by an experiment."""


def accuracy_page(
    validation: Validation,
    date: str,
    *,
    operators: Sequence[Mapping[str, Any]] = (),
    acceptance: Mapping[str, Any] | None = None,
    model: ErrorModel | None = None,
) -> str:
    """Return the page.

    Args:
        validation: Validation of every available source.
        date: Date of the page, as shown.
        operators: Errors of operators on GPUs left out of every fit (`fits.operator_errors`).
        acceptance: Errors of predicted acceptance lengths (`fits.speculation_report.length_summary`).
        model: Model of errors of uncalibrated servers; None: the one that ships with the package.
    """
    summary = validation.summary
    static = [group for group in summary["groups"] if group["source"] in STATIC_BATCHES]
    parts = [
        _head(summary, date),
        "## What a server that nobody fitted may expect\n",
        _foreign(model or load_error_model()),
        "## By source\n",
        _table(("source",), summary["sources"]),
        "## By engine, GPU and model\n",
        _table(("source", "engine", "hardware", "model"), summary["groups"]),
        "## By concurrency\n",
        _table(("source", "engine", "concurrency"), summary["bands"]),
        "## In and out of sample\n",
        _held_out(held_out_rows(validation.predictions)),
        _left_out(validation.predictions),
        "## Operators\n",
        _operators(operators),
        "## Memory\n",
        _memory(summary["memory"]),
        "## Speculative decoding\n",
        _acceptance(acceptance),
        "## Static batches: Splitwise, TensorRT-LLM\n",
        _table(("source", "engine", "hardware", "model"), static),
        "## What is worst, and the likely cause\n",
        _worst(summary["groups"]),
        "## What could not be run\n",
        _reasons(summary["not_covered"]),
    ]
    return "\n".join(parts)


def _head(summary: Mapping[str, Any], date: str) -> str:
    return f"""# Accuracy

Written by `simserve validate --accuracy`, simserve {__version__}, {date}. Do not edit.

{summary["covered"]} of {summary["points"]} measured points were run. {coverage_sentence(summary["coverage"])}

A cell is the median / mean / 90th percentile of
the absolute relative error, then the bias (mean of predicted - measured over measured) and the number of points.
`*`: compared but not scored, as the source says its figure carries artefacts. Figures are means over requests unless
the source gives medians.
"""


def _foreign(model: ErrorModel) -> str:
    """Return how well the intervals of runs hold, whole sources left out."""
    header = ("metric", "server", "sources", "figures", "in 90 %", "in 50 %", "log width", "score")
    lines = [
        "Every figure of a run carries an interval that is to hold 90 % of real servers (`prediction_interval`). It is "
        "learnt from the errors of all sources and of the unseen reports (`calibration/unseen`), figures that a "
        "constant was fitted to left out. Below, each figure is held against the interval that was made without its "
        "own source, and those of reports that came nearer since with the errors of their first replay; every source "
        "counts once. A log width of 0.7 reaches from 0.7 to 1.4 times what is predicted. "
        "Score: interval score, less is better. In brackets: of the share, what 90 % of draws of the sources with "
        "replacement have; of width and score, those of one interval for every server, and the ratio to it. "
        f"{GROUPS_TOLD} Made {model.date} with `{model.made_by}`.\n",
        _row(header),
        _row(["---"] * len(header)),
    ]
    lines += [
        _row(
            [
                row.metric,
                row.group,
                str(row.sources),
                str(row.figures),
                f"{100 * row.coverage_90:.0f} % ({100 * row.range_90[0]:.0f} to {100 * row.range_90[1]:.0f})",
                f"{100 * row.coverage_50:.0f} %",
                _beside(row.log_width, row.constant_log_width),
                _beside(row.interval_score, row.constant_interval_score),
            ]
        )
        for row in model.coverage
    ]
    return "\n".join([*lines, "", *_attainable(model), *_pairs(model), _once_measured(model)])


def _beside(value: float, constant: float) -> str:
    return f"{value:.2f} ({constant:.2f}: {value / constant:.2f})"


def _attainable(model: ErrorModel) -> list[str]:
    """Return how narrow the intervals could be, in three sentences; nothing if that was not drawn."""
    if not model.attainable:
        return []
    of_all = {row.metric: row for row in model.coverage if row.group == "all"}
    names = ", ".join(each.metric for each in model.attainable)
    shown = {
        "own": "{:.2f}",
        "known": "{:.2f}",
        "learnt": "{:.2f} ({:.2f} to {:.2f})",
    }
    widths = {
        who: ", ".join(form.format(*np.atleast_1d(getattr(each, f"{who}_width"))) for each in model.attainable)
        for who, form in shown.items()
    }
    scores = {
        who: ", ".join(shown[who].format(*getattr(each, f"{who}_score")) for each in model.attainable)
        for who in ("known", "learnt")
    }
    ratios = [of_all[each.metric].log_width / of_all[each.metric].constant_log_width for each in model.attainable]
    found = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return [
        f"What the ratio of widths can be ({names}; here {found}): who knows how widely each source's own errors are "
        f"spread, which nobody can of a new server, comes to {widths['own']} of one interval for all. Where errors are "
        f"drawn from this very model ({model.attainable[0].draws} times, for the same sources and loads), who knows "
        f"the model comes to {widths['known']} of the width and {scores['known']} of the score. Who has to learn it "
        f"from the other sources comes to {widths['learnt']} of the width and {scores['learnt']} of the score; in "
        "brackets, between what 90 % of the draws lie.\n"
    ]


def _pairs(model: ErrorModel) -> list[str]:
    """Return the errors of ratios of two servers, which `simserve compare` states; nothing if none were learnt."""
    if not model.pairs:
        return []
    shown = "; ".join(
        f"{metric} half within {each.p50:.2f}, 90 % within {each.p90:.2f} ({each.pairs} pairs of {each.sources} "
        f"sources; without their own source {100 * each.coverage_90:.0f} % are)"
        for metric, each in model.pairs.items()
    )
    return [
        "Two servers of one source, with one model under one load: what is wrong with both alike cancels in their "
        f"ratio, whose error in the logarithm is {shown}.\n"
    ]


def _once_measured(model: ErrorModel) -> str:
    """Return the interval widths of servers calibrated on two loads, relative to one interval for all servers."""
    constant = {row.metric: row.constant_log_width for row in model.coverage if row.group == "all"}
    shown = ", ".join(
        f"{metric} {2 * each.p90:.2f} ({2 * each.p90 / constant[metric]:.2f} of one interval for every server)"
        for metric, each in load_calibrated_errors().metrics.items()
        if metric in constant
    )
    return (
        f"Two loads of a server given to `simserve calibrate serving` bring the log width to {shown}: "
        "`docs/calibrated-servers.md`.\n"
    )


def _memory(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "No measured KV room is here.\n"
    within = sum(row["is_within"] for row in rows)
    header = ("engine", "hardware", "model", "measured KV", "planned KV", "error of the KV", "of the GPU's memory")
    lines = [
        f"KV room that the engine's log says beside the memory plan's, GiB a GPU; {within} of {len(rows)} are within "
        f"{100 * OF_GPU:.0f} % of the GPU's memory and, where KV takes more than a third of it, {100 * OF_KV:.0f} % of "
        "the KV.\n",
        _row(header),
        _row(["---"] * len(header)),
    ]
    lines += [
        _row(
            [
                f"{row['engine']} {row['version']}",
                row["hardware"],
                row["model"],
                f"{row['measured_kv_gib']:.2f}",
                f"{row['predicted_kv_gib']:.2f}",
                f"{100 * row['error_of_kv']:+.1f} %",
                f"{100 * row['error_of_gpu']:+.2f} %",
            ]
        )
        for row in rows
    ]
    return "\n".join(lines) + "\n"


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
        return "None of the points that serving constants were fitted to or tested on is here.\n"
    header = ("constant and what it was fitted to", "tested on", "metric", "in sample", "out of sample")
    lines = [_SAMPLES, _row(header), _row(["---"] * len(header))]
    for row in rows:
        inside = "" if row["in_sample"] is None else f"{100 * row['in_sample']:.1f} % ({row['fitted']})"
        outside = f"{100 * row['out_of_sample']:.1f} % ({row['points']})"
        lines.append(_row([row["constant"], row["test"], row["metric"], inside, outside]))
    return "\n".join(lines) + "\n"


def _left_out(predictions: Sequence[Prediction]) -> str:
    if not predictions:
        return ""
    tables = [
        _sample_table(title, sample_rows(predictions, name_of))
        for title, name_of in (
            ("GPU", lambda point: point.hardware),
            ("model", lambda point: point.model),
            ("engine", _generation),
        )
    ]
    return "\n".join([_LEFT_OUT, *tables])


def _generation(point: MeasuredPoint) -> str:
    return generation_of(point.engine, point.version)


def _sample_table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    header = (title, "run", *(f"{metric}, {sample}" for metric in _SCORED for sample in ("in", "out")))
    lines = [_row(header), _row(["---"] * len(header))]
    for row in rows:
        if row["points"] < FEWEST_OF_NAME:
            continue
        cells = [
            row["metrics"].get(metric, {}).get(key) for metric in _SCORED for key in ("in_sample", "out_of_sample")
        ]
        lines.append(_row([row["name"], str(row["points"]), *(_sample_cell(cell) for cell in cells)]))
    return "\n".join(lines) + "\n"


def _sample_cell(cell: tuple[float, int] | None) -> str:
    return "" if cell is None else f"{100 * cell[0]:.1f} % ({cell[1]})"


def _operators(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "No operator tables are here; `operators.md` and `attention_collectives.md` hold the last run.\n"
    within = sum(row["median_ape"] <= row["limit"] for row in rows)
    header = ("operator", "framework", "fitted -> tested", "calls", "median", "mean", "p90", "bias", "goal")
    lines = [
        "Single calls of 10 us and more against curves fitted anew on the H200 tables of the same framework (NVIDIA "
        "AIConfigurator): on H100 with its data sheet, on A100 with one scale from a tenth of its rows besides, "
        f"tested on the others. {within} of {len(rows)} are within the goal. Forms, experts and other collectives: "
        "`operators.md`, `attention_collectives.md`.\n",
        _row(header),
        _row(["---"] * len(header)),
    ]
    for row in rows:
        scale = "" if row["scale"] is None else f", x {row['scale']:.2f}"
        shares = (f"{100 * row[key]:.1f} %" for key in ("median_ape", "mean_ape", "p90_ape"))
        goal = f"{100 * row['limit']:.0f} %{'' if row['median_ape'] <= row['limit'] else ': missed'}"
        way = f"{_gpu(row['fitted'])} -> {_gpu(row['tested'])}{scale}"
        cells = (
            row["operator"],
            row["framework"],
            way,
            str(row["points"]),
            *shares,
            f"{100 * row['bias']:+.1f} %",
            goal,
        )
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def _gpu(hardware: str) -> str:
    return hardware.partition("-")[0].upper()


def _acceptance(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "No measured acceptance lengths are here; `speculation.md` holds the last run.\n"
    percent = {key: f"{100 * found[key]:.1f} %" for key in ("median", "largest")}
    independent = {key: f"{100 * found[f'independent_{key}']:.1f} %" for key in percent}
    return (
        "Conditional acceptance by position with one decay parameter, fitted to k = 1 to "
        f"{found['fitted_up_to']} drafts of {found['series']} pairs of model and drafter (InferenceX), predicts the "
        f"{found['points']} acceptance lengths at larger k with a median error of {percent['median']}, at most "
        f"{percent['largest']}; independent drafts: {independent['median']} and {independent['largest']}. Each series, "
        "and speed-ups beside Spec-Bench: `speculation.md`.\n"
    )


def _worst(groups: Sequence[Mapping[str, Any]]) -> str:
    found = [
        (errors["median_ape"], metric, group)
        for group in groups
        for metric, errors in group["metrics"].items()
        if errors["points"] >= FEWEST_OF_WORST
    ]
    found.sort(key=lambda each: -each[0])
    shown: Counter[str] = Counter()
    lines: list[str] = []
    for error, metric, group in found:
        source = str(group["source"])
        if shown[source] == MOST_OF_SOURCE or len(lines) == NUM_WORST:
            continue
        shown[source] += 1
        where = " ".join(str(group[key]) for key in ("source", "engine", "hardware", "model"))
        cause = CAUSES.get(source, "not explained yet")
        lines.append(f"- {metric} {100 * error:.0f} % ({group['metrics'][metric]['points']} points) {where}: {cause}.")
    return "\n".join(lines) + "\n" if lines else "No group has enough points to say.\n"


def _reasons(rows: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(f"- {row['points']} of {row['source']}: {row['reason']}." for row in rows) + "\n"
