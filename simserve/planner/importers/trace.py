"""Turns a trace into scenarios: one that replays it, and one that draws similar traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.planner.importers.draft import Draft, scenario_name
from simserve.planner.importers.lengths import WORST_DISTANCE, lognormal
from simserve.planner.importers.server import ASSUMED_HARDWARE
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile
from simserve.units import to_text
from simserve.workload.conversations import mean_calls
from simserve.workload.distributions import length_distribution
from simserve.workload.length_spec import LognormalLength
from simserve.workload.session_spec import AgentsSpec
from simserve.workload.traces.formats import AUTO, COLUMNS, detect, read_trace
from simserve.workload.traces.media import RecordedMedia
from simserve.workload.traces.statistics import (
    TaskStatistics,
    arrival_statistics,
    length_statistics,
    mean,
    spread,
    task_statistics,
)
from simserve.workload.traces.trace import Trace

ASSUMED_MODEL = "llama-3.1-8b"  # A trace does not say what served it.
_POISSON_CV = (0.9, 1.1)
"""Times between requests count as exponential if their coefficient of variation is in this range."""
_MAX_CV = 100.0
_DEFAULT_RATE = 1.0
_LEAST_CV, _MOST_CV = 0.05, 20.0  # Range of `workload.agents.tool_time_cv`; below it, times count as equal.
_SHORTEST_CONTEXT = 2048
ASSUMED_IMAGE = {"width": 1024, "height": 1024}
"""Pixels of images whose size a trace does not give: a placeholder, with a note."""
MOST_SIZES = 20  # Most different image sizes in a scenario fitted to a trace.


@dataclass(frozen=True, slots=True)
class Fit:
    """Traffic fitted to a trace."""

    workload: Mapping[str, Any]  # The `workload` block of a scenario.
    files: Mapping[str, str]  # Name -> text of the files of lengths that it reads.
    notes: tuple[str, ...]  # How well it fits.


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
        trace_format: Its format, or ``auto``.
        model: Model that serves it; None: `ASSUMED_MODEL`, with a note.
        hardware: GPU that it runs on; None: `ASSUMED_HARDWARE`, with a note.
        shown: The path as written in the scenario.
        columns: As for `read_trace`.

    Raises:
        TraceError: The file is not a trace of that format.
        ProfileError: There is no such model.
    """
    known = COLUMNS if columns else detect(path) if trace_format == AUTO else trace_format
    trace = read_trace(path, known, columns)
    named = {"columns": dict(columns)} if columns else {}
    workload: dict[str, Any] = {"trace": {"path": shown, "format": known, **named}}
    if trace.tasks is not None:
        workload["agents"] = {}
    notes = list(_trace_notes(trace))
    workload |= media_blocks(trace, load_model(model or ASSUMED_MODEL), notes)
    if not trace.has_arrival_times:
        workload = {"arrivals": {"process": "poisson", "rate": _DEFAULT_RATE}, **workload}
        notes.append(f"The trace holds no arrival times: {_DEFAULT_RATE:g} request a second is a placeholder.")
    question = f"What does this deployment do under the recorded traffic of {path.name}?"
    return _draft(path, trace, workload, notes, question, model=model, hardware=hardware)


def fitted_scenario(
    path: Path, trace: Trace, *, model: str | None, hardware: str | None, name: str
) -> tuple[Draft, Mapping[str, str]]:
    """Return a scenario that draws traffic like a trace's, and the files of lengths that it reads.

    Args:
        path: File of the trace, for its name.
        model: As for `replay_scenario`.
        hardware: As for `replay_scenario`.
        name: Prefix of the names of the files.
    """
    fit = fit_workload(trace, name)
    question = f"What does this deployment do under traffic like that of {path.name}?"
    notes = [*_trace_notes(trace), *fit.notes]
    media = _taken_media(trace, load_model(model or ASSUMED_MODEL), notes)
    workload = {**fit.workload, **{key: _fit_media(recorded) for key, recorded in media.items()}}
    return _draft(path, trace, workload, notes, question, model=model, hardware=hardware), fit.files


def fit_workload(trace: Trace, name: str) -> Fit:
    """Return arrivals and lengths like those of a trace.

    Arrivals are Poisson, or gamma with the cv of the times between requests. Lengths are lognormal with the trace's
    mean, cv and maximum, or drawn from the trace's own where that fits badly. Two things are lost: changes of the rate
    over time, and the correlation between the lengths of prompts and answers.
    """
    tasks = task_statistics(trace)
    if tasks is not None:
        return _fit_tasks(trace, tasks, name)
    arrivals, arrival_note = _fit_arrivals(trace.arrival_time)
    workload: dict[str, Any] = {"arrivals": arrivals}
    notes = [arrival_note]
    files: dict[str, str] = {}
    for key, lengths in (("prompt_tokens", trace.prompt_tokens), ("output_tokens", trace.output_tokens)):
        workload[key] = _fit_column(key, lengths, name, files, notes)
    workload["num_requests"] = len(trace.prompt_tokens)
    return Fit(workload, files, tuple(notes))


def _fit_column(
    key: str, lengths: NDArray[np.int64], name: str, files: dict[str, str], notes: list[str]
) -> dict[str, Any]:
    """Return a distribution fitted to lengths; add its file, if any, to ``files`` and the quality of the fit to
    ``notes``."""
    block, distance = _fit_lengths(lengths)
    what = key.replace("_tokens", "s").replace("outputs", "answers")
    if block is None:
        file = f"{name}.{key}.csv"
        block = {"distribution": "empirical", "path": file, "column": key}
        files[file] = f"{key}\n" + "".join(f"{length}\n" for length in lengths)
        notes.append(f"No lognormal is near the {what} ({distance:.0%} off): they are drawn from {file}.")
    elif block["distribution"] == "lognormal":
        notes.append(f"The lognormal of the {what} is at most {distance:.1%} of requests off at any length.")
    return block


def _fit_tasks(trace: Trace, tasks: TaskStatistics, name: str) -> Fit:
    """Return tasks like those of a trace.

    A prompt consists of the context and new text. Prompt lengths are fitted to the new text of an agent's calls after
    the first; the excess of first prompts over that is the system prompt. Sub-agents of sub-agents are not drawn.
    """
    files: dict[str, str] = {}
    agents = _fit_agents(tasks)
    spec = AgentsSpec.model_validate(agents)
    arrivals, arrival_note = _fit_arrivals(tasks.starts)
    notes = [arrival_note.replace("requests", "tasks")]
    if "rate" in arrivals:
        # Convert tasks per second to calls per second.
        arrivals["rate"] = float(f"{arrivals['rate'] * mean_calls(spec, None):.4g}")
    new_tokens = tasks.new_tokens if len(tasks.new_tokens) else tasks.first_tokens
    system = round(float(np.median(tasks.first_tokens)) - mean(new_tokens))
    workload: dict[str, Any] = {
        "arrivals": arrivals,
        "prompt_tokens": _fit_column("prompt_tokens", new_tokens, name, files, notes),
        "output_tokens": _fit_column("output_tokens", trace.output_tokens, name, files, notes),
        "num_requests": len(trace.prompt_tokens),
        "agents": agents,
    }
    if system >= 1:
        workload["shared_prefix"] = {"num_groups": 1, "tokens": system}
    if tasks.num_shortened:
        notes.append(f"{tasks.num_shortened:,} calls have a shorter context than before, which drawn tasks never have.")
    return Fit(workload, files, tuple(notes))


def _fit_agents(tasks: TaskStatistics) -> dict[str, Any]:
    agents: dict[str, Any] = {"calls": _fit_count(tasks.calls)}
    pause, cv = mean(tasks.tool_time), spread(tasks.tool_time)
    if pause > 0:
        agents["tool_time"] = to_text(float(f"{pause:.4g}"), "time")
        if cv >= _LEAST_CV:
            agents["tool_time_cv"] = float(f"{min(cv, _MOST_CV):.4g}")
    if len(tasks.subagent_calls) and tasks.subagent_share > 0:
        agents["subagent_share"] = float(f"{tasks.subagent_share:.4g}")
        agents["subagents"] = _fit_count(tasks.fan_out)
        agents["subagent_calls"] = _fit_count(tasks.subagent_calls)
        if tasks.fork_share > 0:
            agents["fork_share"] = float(f"{tasks.fork_share:.4g}")
    return agents


def _fit_count(counts: NDArray[np.int64]) -> dict[str, Any]:
    """Return a distribution with the mean of some counts: fixed, lognormal where it fits, or else geometric."""
    block, _ = _fit_lengths(counts)
    return block or {"distribution": "geometric", "mean": float(f"{counts.mean():.4g}"), "max": int(counts.max())}


def _fit_arrivals(times: NDArray[np.float64]) -> tuple[dict[str, Any], str]:
    statistics = arrival_statistics(times)
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
    block = lognormal(float(f"{statistics.mean:.5g}"), float(f"{statistics.cv:.4g}"), statistics.maximum)
    try:
        fitted = length_distribution(LognormalLength.model_validate(block))
    except ValueError:  # a truncated lognormal cannot reach such a mean
        return None, 1.0
    shares = np.searchsorted(np.sort(lengths), fitted.values, side="right") / len(lengths)
    distance = float(np.abs(np.cumsum(fitted.probabilities) - shares).max())
    return (block if distance <= WORST_DISTANCE else None), distance


def media_blocks(trace: Trace, profile: ModelProfile, notes: list[str]) -> dict[str, Any]:
    """Return the `workload.images` and `workload.audio` that replay a trace's media, where the model takes them.

    Args:
        notes: Receives notes on what is assumed and left out.
    """
    media = _taken_media(trace, profile, notes)
    return {key: {} if each.sizes is not None else {"sizes": [ASSUMED_IMAGE]} for key, each in media.items()}


def _taken_media(trace: Trace, profile: ModelProfile, notes: list[str]) -> dict[str, RecordedMedia]:
    """Return the images and recordings of a trace that a model takes; add notes on what is assumed and left out."""
    found = {}
    for key, recorded, tower, noun in (
        ("images", trace.images, profile.vision, "images"),
        ("audio", trace.audio, profile.audio, "recordings"),
    ):
        if recorded is None or not recorded.counts.any():
            continue
        if tower is None:
            notes.append(f"The trace has {noun}, which {profile.name} does not take: they are left out.")
        elif recorded.sizes is None and trace.counts_media:
            notes.append(f"The trace has {noun} and not how large they are: they are left out; add workload.{key}.")
        else:
            found[key] = recorded
            if recorded.sizes is None:
                size = f"{ASSUMED_IMAGE['width']} x {ASSUMED_IMAGE['height']}"
                notes.append(f"The trace does not say how large its {noun} are: {size} is assumed.")
    return found


def _fit_media(recorded: RecordedMedia) -> dict[str, Any]:
    """Return `workload.images` or `workload.audio`: the share of requests with media, their number and their sizes.

    Images have the `MOST_SIZES` most frequent sizes; recordings a lognormal of whole seconds, or else their mean.
    """
    counts = recorded.counts[recorded.counts > 0]
    block: dict[str, Any] = {"share": float(f"{len(counts) / len(recorded.counts):.4g}"), "count": _fit_count(counts)}
    if recorded.sizes is None:
        return {**block, "sizes": [ASSUMED_IMAGE]}
    if recorded.sizes.shape[1] == 1:
        seconds = np.maximum(np.rint(recorded.sizes[:, 0]), 1).astype(np.int64)
        block["seconds"] = _fit_lengths(seconds)[0] or {"distribution": "fixed", "value": round(mean(seconds))}
        return block
    sizes, weights = np.unique(recorded.sizes.astype(np.int64), axis=0, return_counts=True)
    most = np.argsort(-weights, kind="stable")[:MOST_SIZES]
    each = zip(sizes[most].tolist(), weights[most].tolist(), strict=True)
    block["sizes"] = [
        {"width": width, "height": height, **({"frames": frames} if frames else {}), "weight": weight}
        for (width, height, frames), weight in each
    ]
    return block


def row_notes(trace: Trace) -> list[str]:
    """Return what was left out of a trace, and how it was read."""
    notes = []
    if trace.num_unserved:
        rows = "1 row is" if trace.num_unserved == 1 else f"{trace.num_unserved:,} rows are"
        notes.append(f"{rows} left out: nothing was served.")
    if trace.remark is not None:
        notes.append(trace.remark[:1].upper() + trace.remark[1:] + ".")
    return notes


def _trace_notes(trace: Trace) -> list[str]:
    notes = row_notes(trace)
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
    assumed = [] if model is not None else [f"model {ASSUMED_MODEL}"]
    assumed += [] if hardware is not None else [f"hardware {ASSUMED_HARDWARE}"]
    if assumed:
        verb = "are" if len(assumed) > 1 else "is"
        notes.insert(0, f"The trace does not say what serves it: {' and '.join(assumed)} {verb} assumed.")
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    limit = load_model(model or ASSUMED_MODEL).max_position_embeddings
    # With images or recordings, the scenario's own rule includes the tokens that these add.
    has_media = "images" in workload or "audio" in workload
    max_model_len = min(max(1 << (longest - 1).bit_length(), _SHORTEST_CONTEXT), limit)
    mapping = {
        "name": scenario_name(path.name.split(".")[0]),
        "model": model or ASSUMED_MODEL,
        "deployment": {
            "hardware": hardware or ASSUMED_HARDWARE,
            "engine": {"name": "vllm"} if has_media else {"name": "vllm", "max_model_len": max_model_len},
        },
        "workload": dict(workload),
    }
    too_long = "" if longest <= max_model_len else ", more than the model takes: such requests are cut or fail"
    notes.append(f"The longest request has {longest:,} tokens{too_long}.")
    return Draft(mapping, tuple(notes), question)
