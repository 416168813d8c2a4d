"""The page of the reports that nothing was fitted to: errors by report, engine and GPU. Replays nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simserve.planner.measured.point import METRICS, MeasuredPoint
from simserve.planner.measured.reports import Exclusion, read_exclusions
from simserve.planner.validation.prediction import Prediction
from simserve.planner.validation.scoring import grouped
from simserve.planner.validation.validate import Validation
from simserve.version import __version__

_HEAD = """# Reports that nothing was fitted to

Written by `simserve validate --source unseen --accuracy FILE --date DATE`, simserve {version}, {date}. Do not edit.

Public results of benchmarks that are in no table that simserve was fitted to or is scored by, from issues,
documentation and repositories of benchmarks: {covered} of {points} were run. The files beside this page hold every
figure with its report, its date and what had to be assumed; no constant may be fitted to them. Of each report all that
was read is here, but for what is listed below with its reason. Sweeps stand with their ends and two loads between.

A cell is the median / 90th percentile of the absolute relative error, then the bias (mean of predicted - measured over
measured; above 0: the simulator is too high) and the number of figures. `*`: compared but not scored, as the file says
why.

The first replay of the first 193 (2026-11-22), before any step time was changed for what they showed: TPOT
25 / 62 %, -11 % (105), TTFT 49 / 87 %, -17 % (98), E2E 10 / 27 %, -0 % (16), throughput 27 / 104 %,
+37 % (157). That one is the exam. Lengths of ShareGPT were taken as lognormal then; the same simulator with those that
the benchmark sends (lengths/README.md) gives 22, 48 and 27 % in the median of TPOT, TTFT and throughput.
Afterwards host time of vLLM before 0.5.5, experts in MXFP4 on A100, links of MI300X and PCIe, all-reduces over PCIe,
launches without CUDA graphs, what preempted requests find in the prefix cache, experts in 4 bits on A100, the rate of
Marlin's kernels, routers and shared experts of older vLLM, and kernels of GPUs without tables were changed with
constants of other sources, but in the knowledge of these errors: the tables below are of now, no longer of rows that
nobody had seen. DeepSeek-R1 under SGLang on eight H200 had been described as on 64 of them until 2026-11-26.
Four reports of GPUStack's laboratory were added that day, 52 loads, of which 45 run: the simulator that had not seen
them was 9.3 % off in TPOT, 25 % in TTFT and 18 % in throughput in the median. Their bursts of a thousand chats then led
to what API servers do one after another, and that they are chats is described since. Seven more were predicted blind
later that day, 48 loads of RTX 4090, A40, A6000, L40S, H20, H100 PCIe and MI300X: TPOT 16 %, TTFT 36 % and throughput
17 % in the median (an eighth, Qwen3-0.6B by 500 clients at once: throughput +102 %). What they showed led to memory
that vLLM's samplers leave to the KV cache, SGLang's experts in MXFP4 and curves of MI300X. Seven more, 54 loads of RTX
4090, 5090 and PRO 6000, L40S, A100, H200, B200 and MI300X, were predicted blind last: TPOT 14.5 % (42 figures), TTFT
23 % (35) and throughput 16.5 % (46) in the median, five loads refused. SGLang's memory under data-parallel attention
and Triton's attention on MI300X came of them. calibration/LOG.md says what moved.
"""


def unseen_page(validation: Validation, date: str) -> str:
    """Return the page as Markdown.

    Args:
        validation: Of this source alone.
        date: When it was made, as the page shows it.

    Raises:
        ProfileError: A file of reports is invalid.
    """
    predictions = validation.predictions
    summary = validation.summary
    parts = [
        _HEAD.format(version=__version__, date=date, covered=summary["covered"], points=summary["points"]),
        _section("All", predictions, lambda _: "all", "points"),
        _section("By report", predictions, lambda point: point.label.partition(":")[0], "report"),
        _section("By engine", predictions, _engine, "engine"),
        _section("By GPU", predictions, lambda point: point.hardware, "GPU"),
        _section("By kind of load", predictions, _load, "load"),
        _rooms(summary["memory"]),
        _not_run(summary["not_covered"]),
        _excluded(read_exclusions()),
    ]
    return "\n".join(parts)


def _engine(point: MeasuredPoint) -> str:
    return f"{point.engine} {'.'.join(point.version.split('.')[:2])}"


def _load(point: MeasuredPoint) -> str:
    if point.load_kind == "concurrency":
        requests = point.scenario["workload"]["num_requests"]
        return "all sent to a server at once" if point.load >= requests > 1 else "clients of a server"
    return {"rate": "Poisson", "batch": "a batch in process", "offline": "all queued in process"}[point.load_kind]


def _section(title: str, predictions: Sequence[Prediction], name_of: Callable[[MeasuredPoint], str], name: str) -> str:
    groups = grouped(predictions, lambda point: (name_of(point),), (name,))
    groups = sorted(groups, key=lambda group: str(group[name]))
    lines = [_row([name, "points", "run", *METRICS]), _row(["---"] * (3 + len(METRICS)))]
    for group in groups:
        cells = [str(group[name]), str(group["points"]), str(group["covered"])]
        lines.append(_row([*cells, *(_cell(group, metric) for metric in METRICS)]))
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(group: Mapping[str, Any], metric: str) -> str:
    shown = [(group["metrics"], ""), (group["shown_only"], "*")]
    cells = [
        f"{100 * errors['median_ape']:.0f} / {100 * errors['p90_ape']:.0f} %, {100 * errors['bias']:+.0f} % "
        f"({errors['points']}){mark}"
        for figures, mark in shown
        if (errors := figures.get(metric)) is not None
    ]
    return "; ".join(cells)


def _rooms(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        _row(["log", "engine", "GPU", "model", "logged, GiB", "planned, GiB", "of the KV", "of the GPU"]),
        _row(["---"] * 8),
    ]
    for row in rows:
        cells = [str(row["label"]), f"{row['engine']} {row['version']}", str(row["hardware"]), str(row["model"])]
        sizes = [f"{row['measured_kv_gib']:.2f}", f"{row['predicted_kv_gib']:.2f}"]
        errors = [f"{100 * row['error_of_kv']:+.1f} %", f"{100 * row['error_of_gpu']:+.1f} %"]
        lines.append(_row([*cells, *sizes, *errors]))
    return "## Room for KV\n\n" + "\n".join(lines) + "\n"


def _not_run(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "## What could not be run\n\nNothing.\n"
    return "## What could not be run\n\n" + "\n".join(f"- {row['points']}: {row['reason']}." for row in rows) + "\n"


def _excluded(rows: Sequence[Exclusion]) -> str:
    lines = [f"- {row.report}: {row.what}: {row.why}." for row in rows]
    return "## What the reports hold beside, and why it is left out\n\n" + "\n".join(lines) + "\n"
