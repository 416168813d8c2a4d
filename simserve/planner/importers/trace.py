"""From a trace to scenarios: one that replays it, and one that draws traffic like it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.planner.importers.draft import Draft, scenario_name
from simserve.profiles.model import load_model
from simserve.workload.length_spec import LognormalLength
from simserve.workload.lengths import length_distribution
from simserve.workload.traces.formats import AUTO, COLUMNS, detect, read_trace
from simserve.workload.traces.statistics import LengthStatistics, arrival_statistics, length_statistics
from simserve.workload.traces.trace import Trace

ASSUMED_MODEL, ASSUMED_HARDWARE = "llama-3.1-8b", "h100-sxm-80gb"
"""What serves a trace, which does not say what served it."""
_POISSON_CV = (0.9, 1.1)
"""Times between requests with a coefficient of variation in here count as exponential."""
_MAX_CV = 100.0
_WORST_DISTANCE = 0.1
"""Largest distance between the shares of a trace and of its fit up to any length (Kolmogorov-Smirnov) at which the
fit is taken; beyond it the lengths themselves are."""
_DEFAULT_RATE = 1.0
_SHORTEST_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Fit:
    """Traffic like a trace.

    Attributes:
        workload: The block of a scenario.
        files: Name -> text of the files of lengths it reads.
        notes: How well it fits.
    """

    workload: Mapping[str, Any]
    files: Mapping[str, str]
    notes: tuple[str, ...]


def replay_scenario(
    path: Path,
    trace_format: str,
    *,
    model: str | None,
    hardware: str | None,
    shown: str,
    columns: Mapping[str, str] | None = None,
) -> Draft:
    """Return a scenario that replays a trace.

    Args:
        path: The trace.
        trace_format: Its format, or ``auto``.
        model: Model that serves it; None: `ASSUMED_MODEL`, with a note.
        hardware: GPU that it runs on; None: `ASSUMED_HARDWARE`, with a note.
        shown: The path as the scenario says it.
        columns: As of `read_trace`.

    Raises:
        TraceError: The file is no trace of the format.
        ProfileError: There is no such model.
    """
    known = COLUMNS if columns else detect(path) if trace_format == AUTO else trace_format
    trace = read_trace(path, known, columns)
    named = {"columns": dict(columns)} if columns else {}
    workload: dict[str, Any] = {"trace": {"path": shown, "format": known, **named}}
    notes = list(_trace_notes(trace))
    if not trace.has_arrival_times:
        workload = {"arrivals": {"process": "poisson", "rate": _DEFAULT_RATE}, **workload}
        notes.append(f"The trace holds no arrival times: {_DEFAULT_RATE:g} request a second is a placeholder.")
    question = f"What does this deployment do under the recorded traffic of {path.name}?"
    return _draft(path, trace, workload, notes, question, model=model, hardware=hardware)


def fitted_scenario(
    path: Path, trace: Trace, *, model: str | None, hardware: str | None, name: str
) -> tuple[Draft, Mapping[str, str]]:
    """Return a scenario that draws traffic like a trace, and the files of lengths that it reads.

    Args:
        path: The trace, for its name.
        trace: What was read.
        model: As for `replay_scenario`.
        hardware: As for `replay_scenario`.
        name: Begins the names of the files.
    """
    fit = fit_workload(trace, name)
    question = f"What does this deployment do under traffic like that of {path.name}?"
    notes = [*_trace_notes(trace), *fit.notes]
    return _draft(path, trace, fit.workload, notes, question, model=model, hardware=hardware), fit.files


def fit_workload(trace: Trace, name: str) -> Fit:
    """Return arrivals and lengths like those of a trace.

    Arrivals are Poisson, or gamma with the cv of the times between requests. Lengths are lognormal with the trace's
    mean, cv and longest, or drawn from its own where that fits badly. What it loses: rates that change over time,
    and that long prompts may have long answers.
    """
    arrivals, arrival_note = _fit_arrivals(trace)
    workload: dict[str, Any] = {"arrivals": arrivals}
    notes, files = [arrival_note], {}
    for key, lengths in (("prompt_tokens", trace.prompt_tokens), ("output_tokens", trace.output_tokens)):
        block, distance = _fit_lengths(lengths)
        what = key.replace("_tokens", "s").replace("outputs", "answers")
        if block is None:
            file = f"{name}.{key}.csv"
            block = {"distribution": "empirical", "path": file, "column": key}
            files[file] = f"{key}\n" + "".join(f"{length}\n" for length in lengths)
            notes.append(f"No lognormal is near the {what} ({distance:.0%} off): they are drawn from {file}.")
        elif block["distribution"] == "lognormal":
            notes.append(f"The lognormal of the {what} is at most {distance:.1%} of requests off at any length.")
        workload[key] = block
    workload["num_requests"] = len(trace.prompt_tokens)
    return Fit(workload, files, tuple(notes))


def _fit_arrivals(trace: Trace) -> tuple[dict[str, Any], str]:
    statistics = arrival_statistics(trace)
    if statistics is None or math.isnan(statistics.mean_rate):
        rule = "holds no arrival times" if statistics is None else "holds a single instant"
        note = f"The trace {rule}: {_DEFAULT_RATE:g} request a second is a placeholder."
        return {"process": "poisson", "rate": _DEFAULT_RATE}, note
    rate, cv = float(f"{statistics.mean_rate:.4g}"), statistics.interarrival_cv
    lost = ""
    if statistics.dispersion_index > 2 * max(cv, 1.0) ** 2:
        lost = f" Its rate changes over minutes (dispersion {statistics.dispersion_index:.3g}), which is lost here."
    if math.isnan(cv) or _POISSON_CV[0] <= cv <= _POISSON_CV[1]:
        return {"process": "poisson", "rate": rate}, f"Times between requests vary as Poisson (cv {cv:.2f}).{lost}"
    if cv == 0:
        return {"process": "constant", "rate": rate}, "Requests come at equal distances."
    bounded = float(f"{min(cv, _MAX_CV):.4g}")
    return {"process": "gamma", "rate": rate, "cv": bounded}, f"Times between requests have a cv of {cv:.2f}.{lost}"


def _fit_lengths(lengths: NDArray[np.int64]) -> tuple[dict[str, Any] | None, float]:
    """Return a distribution, None where no lognormal fits, and its largest distance from the lengths."""
    statistics = length_statistics(lengths)
    if statistics.minimum == statistics.maximum:
        return {"distribution": "fixed", "value": statistics.maximum}, 0.0
    block = _lognormal_block(statistics)
    try:
        spec = LognormalLength.model_validate(block)
    except ValueError:  # such a mean is out of reach of a truncated lognormal
        return None, 1.0
    fitted = length_distribution(spec)
    shares = np.searchsorted(np.sort(lengths), fitted.values, side="right") / len(lengths)
    distance = float(np.abs(np.cumsum(fitted.probabilities) - shares).max())
    return (block if distance <= _WORST_DISTANCE else None), distance


def _lognormal_block(statistics: LengthStatistics) -> dict[str, Any]:
    return {
        "distribution": "lognormal",
        "mean": float(f"{statistics.mean:.5g}"),
        "cv": float(f"{statistics.cv:.4g}"),
        "max": statistics.maximum,
    }


def _trace_notes(trace: Trace) -> list[str]:
    notes = []
    if trace.num_unserved:
        notes.append(f"{trace.num_unserved:,} rows are left out: nothing was served.")
    if trace.remark is not None:
        notes.append(trace.remark[:1].upper() + trace.remark[1:] + ".")
    if trace.prefix_blocks is not None:
        notes.append(
            f"Of the prefix blocks {trace.prefix_blocks.reuse:.1%} were there before; a cache finds them in the trace "
            "itself, not in lengths drawn like its."
        )
    return notes


def _draft(
    path: Path,
    trace: Trace,
    workload: Mapping[str, Any],
    notes: list[str],
    question: str,
    *,
    model: str | None,
    hardware: str | None,
) -> Draft:
    assumed = [f"{key} {value}" for key, value, given in _assumptions(model, hardware) if given is None]
    if assumed:
        verb = "are" if len(assumed) > 1 else "is"
        notes.insert(0, f"The trace does not say what serves it: {' and '.join(assumed)} {verb} assumed.")
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    limit = load_model(model or ASSUMED_MODEL).max_position_embeddings
    max_model_len = min(max(1 << (longest - 1).bit_length(), _SHORTEST_CONTEXT), limit)
    mapping = {
        "name": scenario_name(path.name.split(".")[0]),
        "model": model or ASSUMED_MODEL,
        "deployment": {
            "hardware": hardware or ASSUMED_HARDWARE,
            "engine": {"name": "vllm", "max_model_len": max_model_len},
        },
        "workload": dict(workload),
    }
    too_long = "" if longest <= max_model_len else ", more than the model takes: such requests are cut or fail"
    notes.append(f"The longest request has {longest:,} tokens{too_long}.")
    return Draft(mapping, tuple(notes), question)


def _assumptions(model: str | None, hardware: str | None) -> tuple[tuple[str, str, str | None], ...]:
    return (("model", ASSUMED_MODEL, model), ("hardware", ASSUMED_HARDWARE, hardware))
