"""From a specification to the requests of one run; all chance is drawn here, from named streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.errors import InvariantError, ScenarioError, TraceError
from simserve.workload.arrival_spec import STATIONARY, AllAtOnceArrivals, Arrivals, ClosedLoopArrivals
from simserve.workload.arrivals import arrival_times
from simserve.workload.class_spec import ClassSpec
from simserve.workload.classes import draw_classes, draw_lengths, draw_shares
from simserve.workload.conversations import (
    contexts,
    draw_groups,
    draw_pauses,
    draw_shape,
    draw_think_times,
    mean_requests,
    slowed,
    with_system_prompts,
)
from simserve.workload.lengths import length_distribution
from simserve.workload.prefixes import recorded_prefixes
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import SessionsSpec
from simserve.workload.spec import TraceSpec, WorkloadSpec
from simserve.workload.traces.formats import read_trace
from simserve.workload.traces.table import find_file
from simserve.workload.traces.trace import Trace

_FEWEST_DRAWN, _ROUNDS_DRAWN = 1000, 4
"""Requests that are drawn at first for a closed loop that ends by time: so many, and so many a client."""
MODEL_LIMIT = -1
"""Stands in `RequestSpecs.max_tokens` for what the prompt leaves of the model's length."""


def generate(
    spec: WorkloadSpec,
    *,
    seed: int,
    replication: int = 0,
    base_path: Path | None = None,
    num_requests: int | None = None,
) -> RequestSpecs:
    """Return the requests of one run.

    The streams are ``arrivals``, ``prompt_tokens`` and ``output_tokens``, and every draw takes one uniform of
    its own: changing one part of the workload leaves the draws of the others as they were.

    Args:
        spec: What to draw or read.
        seed: Seed of the run, >= 0. A trace with times of its own does not depend on it.
        replication: Index of the replication, >= 0.
        base_path: Folder that relative paths are tried against before the working folder.
        num_requests: Closed loop that ends by ``duration``: how many requests are drawn for its clients, who send as
            many of them as they come to. None: some rounds of them all.

    Raises:
        TraceError: A trace or a file of lengths cannot be used.
        ScenarioError: No request arrives within the duration.
    """
    if isinstance(spec.arrivals, ClosedLoopArrivals) and spec.duration is not None:
        count = num_requests or max(_FEWEST_DRAWN, _ROUNDS_DRAWN * spec.arrivals.concurrency)
        if spec.trace is not None:
            count = min(count, len(read_trace(find_file(spec.trace.path, base_path), spec.trace.format).prompt_tokens))
        counted = spec.model_copy(update={"num_requests": count, "duration": None})
        specs = generate(counted, seed=seed, replication=replication, base_path=base_path)
        return replace(specs, closes_at=spec.duration)
    specs = replace(
        _drawn(spec, seed, replication, base_path),
        seed=seed,
        replication=replication,
        ramp_up=getattr(spec.arrivals, "ramp_up", None),
    )
    if spec.shared_prefix is not None and spec.sessions is None:
        specs = with_system_prompts(specs, spec.shared_prefix, seed=seed, replication=replication)
    return specs


def _drawn(spec: WorkloadSpec, seed: int, replication: int, base_path: Path | None) -> RequestSpecs:
    if spec.trace is not None:
        return _from_trace(spec, spec.trace, base_path, seed, replication)
    if spec.sessions is not None:
        return _from_sessions(spec, spec.sessions, seed, replication, base_path)
    if spec.classes is not None:
        return _from_classes(spec, base_path, seed, replication)
    if spec.arrivals is None or spec.prompt_tokens is None or spec.output_tokens is None:
        raise InvariantError("a workload without a trace has arrivals, prompt_tokens and output_tokens")
    arrival_time = _arrival_time(spec, seed, replication, spec.num_requests)
    num_requests = len(arrival_time)
    prompt_lengths = length_distribution(spec.prompt_tokens, base_path)
    output_lengths = length_distribution(spec.output_tokens, base_path)
    output_tokens = output_lengths.sample(rng.stream(seed, "output_tokens", replication), num_requests)
    return RequestSpecs(
        arrival_time=arrival_time,
        prompt_tokens=prompt_lengths.sample(rng.stream(seed, "prompt_tokens", replication), num_requests),
        output_tokens=output_tokens,
        max_tokens=_max_tokens(spec.max_tokens, output_tokens),
        think_time=_think_time(spec, num_requests, seed, replication),
        concurrency=getattr(spec.arrivals, "concurrency", None),
        is_stationary=isinstance(spec.arrivals, STATIONARY),
        offered_rate=_offered_rate(spec.arrivals, arrival_time),
    )


def _from_classes(spec: WorkloadSpec, base_path: Path | None, seed: int, replication: int) -> RequestSpecs:
    drawn = draw_classes(spec, seed=seed, replication=replication, base_path=base_path)
    sources = [spec.arrivals, *(each.arrivals for each in spec.classes or ())]
    rates = [_offered_rate(each, drawn.arrival_time) for each in sources if each is not None]
    return RequestSpecs(
        arrival_time=drawn.arrival_time,
        prompt_tokens=drawn.prompt_tokens,
        output_tokens=drawn.output_tokens,
        max_tokens=_max_tokens(spec.max_tokens, drawn.output_tokens),
        think_time=_think_time(spec, len(drawn), seed, replication),
        concurrency=getattr(spec.arrivals, "concurrency", None),
        is_stationary=all(isinstance(each, STATIONARY) for each in sources if each is not None),
        offered_rate=sum(rates)
        if len(rates) == 1 or all(isinstance(each, STATIONARY) for each in sources if each)
        else len(drawn) / float(drawn.arrival_time[-1]),
        classes=spec.classes or (),
        request_class=drawn.request_class,
        priority=_priority(spec.classes or (), drawn.request_class),
    )


def _priority(classes: Sequence[ClassSpec], request_class: NDArray[np.int16]) -> NDArray[np.int64] | None:
    """Return the place in the queue of each request, 0 where its class says none; None where no class does."""
    if all(each.priority is None for each in classes):
        return None
    return np.array([each.priority or 0 for each in classes], dtype=np.int64)[request_class]


def _from_sessions(
    spec: WorkloadSpec, sessions: SessionsSpec, seed: int, replication: int, base_path: Path | None
) -> RequestSpecs:
    assert spec.arrivals is not None
    drawn = {"seed": seed, "replication": replication}
    starting = spec.model_copy(update={"arrivals": slowed(spec.arrivals, mean_requests(sessions, base_path))})
    if spec.duration is None:
        shape = draw_shape(sessions, base_path=base_path, num_requests=spec.num_requests, **drawn)
        starts = _arrival_time(starting, seed, replication, shape.num_sessions)
    else:
        starts = _arrival_time(starting, seed, replication, None)
        shape = draw_shape(sessions, base_path=base_path, num_sessions=len(starts), **drawn)
    num_requests = len(shape.turn)
    request_class = None
    if spec.classes is not None:
        request_class = draw_shares(spec.classes, shape.num_sessions, **drawn)[shape.session]
        new_tokens, output_tokens = draw_lengths(spec, request_class, base_path=base_path, **drawn)
    else:
        assert spec.prompt_tokens is not None
        assert spec.output_tokens is not None
        new_tokens, output_tokens = (
            length_distribution(lengths, base_path).sample(rng.stream(seed, name, replication), num_requests)
            for name, lengths in (("prompt_tokens", spec.prompt_tokens), ("output_tokens", spec.output_tokens))
        )
    max_tokens = _max_tokens(spec.max_tokens, output_tokens)
    answers = np.where(max_tokens < 0, output_tokens, np.minimum(output_tokens, max_tokens))
    shared = spec.shared_prefix
    groups = None if shared is None else draw_groups(shared, shape.num_sessions, **drawn)
    system = 0 if shared is None else shared.tokens
    prompts, prefixes = contexts(shape, new_tokens, answers, sessions.context_growth, groups, system)
    think_time = draw_think_times(sessions, shape, **drawn)
    if isinstance(spec.arrivals, ClosedLoopArrivals):
        is_first = shape.turn == 1
        pauses = draw_pauses(spec.arrivals, shape.num_sessions, **drawn)
        think_time[is_first] = pauses[shape.session[is_first]]
    return RequestSpecs(
        arrival_time=np.where(shape.turn == 1, starts[shape.session], np.nan),
        prompt_tokens=prompts,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        think_time=think_time,
        concurrency=getattr(spec.arrivals, "concurrency", None),
        is_stationary=isinstance(spec.arrivals, STATIONARY),
        offered_rate=_offered_rate(spec.arrivals, starts, num_requests),
        prefixes=prefixes,
        session=shape.session,
        turn=shape.turn,
        classes=spec.classes or (),
        request_class=request_class,
        priority=None if request_class is None else _priority(spec.classes or (), request_class),
    )


def _offered_rate(arrivals: Arrivals, arrival_time: NDArray[np.float64], num_requests: int | None = None) -> float:
    """Return the mean requests a second that are sent, whatever comes of them; NaN where answers set the pace.

    ``num_requests`` are sent on ``arrival_time``, where it is not one at each.
    """
    if isinstance(arrivals, ClosedLoopArrivals | AllAtOnceArrivals):
        return float("nan")
    if isinstance(arrivals, STATIONARY):
        return arrivals.rate
    return (num_requests or len(arrival_time)) / float(arrival_time[-1])


def _arrival_time(spec: WorkloadSpec, seed: int, replication: int, num_requests: int | None) -> NDArray[np.float64]:
    match spec.arrivals:
        case ClosedLoopArrivals():
            return np.full(num_requests or 0, np.nan)
        case AllAtOnceArrivals():
            return np.zeros(num_requests or 0)
        case None:
            raise InvariantError("a workload without a trace has arrivals")
    times = arrival_times(
        spec.arrivals,
        rng.stream(seed, "arrivals", replication),
        num_requests=num_requests,
        duration=spec.duration,
        phases=rng.stream(seed, "arrival_phases", replication),
    )
    return _some(times)


def _from_trace(
    spec: WorkloadSpec, source: TraceSpec, base_path: Path | None, seed: int, replication: int
) -> RequestSpecs:
    file = find_file(source.path, base_path)
    trace = read_trace(file, source.format).scaled(
        time=source.time_scale, prompt=source.prompt_scale, output=source.output_scale
    )
    if source.block_size is not None and trace.prefix_blocks is None:
        raise TraceError("holds no hash_ids", file=file, key="workload.trace.block_size", remedy="leave it out")
    if spec.arrivals is None and not trace.has_arrival_times:
        raise TraceError(
            "holds no arrival times",
            file=file,
            remedy="add workload.arrivals beside the trace, such as {process: poisson, rate: 4}",
        )
    if spec.arrivals is None:
        num_requests = _num_replayed(spec, trace, file)
        arrival_time = _some(trace.arrival_time[:num_requests])
        span = float(arrival_time[-1] - arrival_time[0])
        timing = _Timing(arrival_time, (num_requests - 1) / span if span > 0 else np.nan, is_stationary=False)
    else:
        timing = _drawn_timing(spec, trace, file, seed, replication)
    num_requests = len(timing.arrival_time)
    blocks, prompt_tokens = trace.blocks_of(source.block_size), trace.prompt_tokens[:num_requests]
    output_tokens = trace.output_tokens[:num_requests]
    asked = output_tokens if trace.max_tokens is None else trace.max_tokens[:num_requests]
    classes = spec.classes or ()
    request_class = _trace_classes(classes, trace, num_requests, seed, replication) if classes else None
    return RequestSpecs(
        arrival_time=timing.arrival_time,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_tokens=_max_tokens(spec.max_tokens, asked),
        think_time=_think_time(spec, num_requests, seed, replication),
        concurrency=getattr(spec.arrivals, "concurrency", None),
        is_stationary=timing.is_stationary,
        offered_rate=timing.offered_rate,
        prefixes=None
        if blocks is None
        else recorded_prefixes(blocks, prompt_tokens, output_tokens, source.prompt_scale),
        session=None if trace.session is None else trace.session[:num_requests],
        classes=classes,
        request_class=request_class,
        priority=None if request_class is None else _priority(classes, request_class),
    )


def _trace_classes(
    classes: tuple[ClassSpec, ...], trace: Trace, num_requests: int, seed: int, replication: int
) -> NDArray[np.int16]:
    """Return the class of each row of a trace; the rows of a session are of one class."""
    if trace.session is None:
        return draw_shares(classes, num_requests, seed=seed, replication=replication)
    owners, numbers = np.unique(trace.session[:num_requests], return_inverse=True)
    drawn: NDArray[np.int16] = draw_shares(classes, len(owners), seed=seed, replication=replication)[numbers]
    return drawn


@dataclass(frozen=True, slots=True)
class _Timing:
    arrival_time: NDArray[np.float64]
    offered_rate: float
    is_stationary: bool


def _drawn_timing(spec: WorkloadSpec, trace: Trace, file: Path, seed: int, replication: int) -> _Timing:
    """Return drawn arrivals for the rows of a trace: all of them, or the first that the workload asks for."""
    num_requests = None if spec.duration is not None else _num_replayed(spec, trace, file)
    times = _arrival_time(spec, seed, replication, num_requests)[: len(trace.prompt_tokens)]
    rate = float("nan") if spec.arrivals is None else _offered_rate(spec.arrivals, times)
    return _Timing(times, rate, is_stationary=isinstance(spec.arrivals, STATIONARY))


def _think_time(spec: WorkloadSpec, num_requests: int, seed: int, replication: int) -> NDArray[np.float64]:
    if not isinstance(spec.arrivals, ClosedLoopArrivals):
        return np.empty(0)
    return draw_pauses(spec.arrivals, num_requests, seed=seed, replication=replication)


def _num_replayed(spec: WorkloadSpec, trace: Trace, file: Path) -> int:
    available = len(trace.prompt_tokens)
    if spec.num_requests is not None and spec.num_requests > available:
        rule = f"asks for {spec.num_requests} requests, the trace holds {available}"
        raise TraceError(rule, file=file, key="workload.num_requests", remedy="lower it or leave it out")
    if spec.duration is not None and spec.arrivals is None:
        return int(np.searchsorted(trace.arrival_time, spec.duration, side="right"))
    return spec.num_requests or available


def _some(times: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(times):
        remedy = "lengthen it or raise the rate"
        raise ScenarioError("is over before the first request arrives", key="workload.duration", remedy=remedy)
    return times


def _max_tokens(asked: int | Literal["exact", "model_limit"], exact: NDArray[np.int64]) -> NDArray[np.int64]:
    if asked == "exact":
        return exact
    return np.full(len(exact), MODEL_LIMIT if asked == "model_limit" else asked, dtype=np.int64)
