"""Draws the requests of one run from a specification; all randomness comes from named streams.

With rounds, requests come in batches, each of which waits for the last answer of the one before, like rollouts in
reinforcement learning: between two rounds the policy is trained and the replicas get its new weights. Knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import InputError, TraceError
from simserve.workload.arrival_spec import STATIONARY, AllAtOnceArrivals, ClosedLoopArrivals
from simserve.workload.class_spec import ClassSpec
from simserve.workload.classes import (
    Rows,
    draw_beginnings,
    draw_shares,
    draw_single,
    with_beginnings,
    with_beginnings_within,
    with_thinking,
)
from simserve.workload.conversations import draw_dialogues, draw_pauses
from simserve.workload.distributions import Draws, asked_tokens, offered_rate, some, start_times
from simserve.workload.prefixes import recorded_prefixes
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import TraceSpec, WorkloadSpec, with_adapters

if TYPE_CHECKING:
    from simserve.workload.traces.trace import Trace

_FEWEST_DRAWN, _ROUNDS_DRAWN = 1000, 4
"""Requests drawn at first for a closed loop that ends by time: at least the first number, and at least the second per
client."""

_CONTEXT_REQUESTS = 1000
"""Requests drawn for the contexts of step times, whatever the length of the run: a deployment has the same step times
in every run."""
_CONTEXT_QUANTILES = 16
_CONTEXT_DIGITS = 3  # Quantiles that represent all contexts, and the significant digits of each.


def generate(
    spec: WorkloadSpec,
    *,
    seed: int,
    replication: int = 0,
    base_path: Path | None = None,
    num_requests: int | None = None,
) -> RequestSpecs:
    """Return the requests of one run.

    The streams are ``arrivals``, ``prompt_tokens``, ``output_tokens`` and ``loras``, and every draw takes its own
    uniform: changing one part of the workload leaves the other draws unchanged.

    Args:
        seed: Seed of the run, >= 0. A trace that keeps its own times does not depend on it.
        replication: Index of the replication, >= 0.
        base_path: Folder in which relative paths are looked up before the working folder.
        num_requests: Closed loops that end by ``duration``: number of requests drawn for the clients of each loop, who
            send as many of them as they can. None: some rounds of all clients.

    Raises:
        TraceError: A trace or a file of lengths cannot be used.
        ScenarioError: No request arrives within the duration.
    """
    draws = Draws(seed, replication, base_path)
    specs = replace(_without_adapters(spec, draws, num_requests), seed=seed, replication=replication)
    if spec.loras is not None:
        specs = with_adapters(specs, spec.loras, draws)
    if not isinstance(spec.arrivals, AllAtOnceArrivals) or spec.arrivals.round_pause is None:
        return specs
    # To the clients a round is a turn of one conversation, whose requests are sent together. KV computed with the old
    # weights is void: no prompt finds anything of an earlier round.
    number, prefixes = np.arange(len(specs)) // max(len(specs) // spec.arrivals.rounds, 1), specs.prefixes
    if prefixes is not None:
        owner = np.repeat(number, np.diff(prefixes.offsets))
        apart = prefixes.segments + owner * (int(prefixes.segments.max(initial=0)) + 1)
        segments = np.unique(apart, return_inverse=True)[1].astype(np.int64)
        prefixes = replace(prefixes, segments=segments, is_recorded=True)
    return replace(
        specs,
        arrival_time=np.where(number == 0, 0.0, np.nan),
        think_time=np.where(number == 0, 0.0, spec.arrivals.round_pause or 0.0),
        session=np.zeros(len(specs), dtype=np.int64),
        turn=number + 1,
        prefixes=prefixes,
    )


def _without_adapters(spec: WorkloadSpec, draws: Draws, num_requests: int | None = None) -> RequestSpecs:
    if spec.is_mixed:
        from simserve.workload.mixture import draw_mixture

        return draw_mixture(spec, draws, num_requests)
    if isinstance(spec.arrivals, ClosedLoopArrivals) and spec.duration is not None:
        count = num_requests or max(_FEWEST_DRAWN, _ROUNDS_DRAWN * spec.arrivals.concurrency)
        if spec.trace is not None:
            from simserve.workload.traces.formats import read_trace
            from simserve.workload.traces.table import find_file

            source = spec.trace
            trace = read_trace(find_file(source.path, draws.base_path), source.format, source.columns)
            count = min(count, len(trace.prompt_tokens))
        counted = spec.of_length(count)
        return replace(_without_adapters(counted, draws), closes_at=spec.duration)
    if spec.trace is not None:
        return _from_trace(spec, spec.trace, draws)
    kind = spec.sessions or spec.agents
    if kind is not None:
        return draw_dialogues(spec, kind, draws)
    specs = _single(spec, draws)
    if spec.has_thinking:
        specs = with_thinking(specs, spec, draws)
    specs = specs.without_answers()
    if not spec.has_shared_prefix:
        return specs
    return with_beginnings(specs, draw_beginnings(spec, len(specs), draws, specs.request_class))


def _single(spec: WorkloadSpec, draws: Draws) -> RequestSpecs:
    """Return single requests, drawn class by class if there are classes."""
    if spec.classes is None:
        own: dict[str, NDArray[Any]] = {}
        if spec.client is not None:
            from simserve.workload.client_draws import client_draws

            own = client_draws(spec, draws)
        times = own.get("arrival_time")
        if times is None:
            times = some(start_times(spec.arrivals, draws, num_requests=spec.num_requests, duration=spec.duration))
        prompts, outputs = (
            own[part] if part in own else draws.lengths(getattr(spec, part), part, len(times))
            for part in ("prompt_tokens", "output_tokens")
        )
        rows = Rows(times, prompts, outputs, None)
    else:
        rows = draw_single(spec, draws)
    count = len(rows.arrival_time)
    sources = [each for each in (spec.arrivals, *(own.arrivals for own in spec.classes or ())) if each is not None]
    rates = [offered_rate(each, rows.arrival_time) for each in sources]
    is_stationary = all(isinstance(each, STATIONARY) for each in sources)
    has_sum = is_stationary or len(rates) == 1
    return RequestSpecs.arriving(
        spec.arrivals,
        spec.classes or (),
        **rows._asdict(),
        max_tokens=asked_tokens(spec.max_tokens, rows.output_tokens),
        think_time=_think_time(spec, count, draws),
        is_stationary=is_stationary,
        offered_rate=sum(rates) if has_sum else count / float(rows.arrival_time[-1]),
    )


def _from_trace(spec: WorkloadSpec, source: TraceSpec, draws: Draws) -> RequestSpecs:
    from simserve.workload.traces.formats import read_trace
    from simserve.workload.traces.table import find_file

    file = find_file(source.path, draws.base_path, takes_folder=True)
    trace = read_trace(file, source.format, source.columns).scaled(
        time=source.time_scale, prompt=source.prompt_scale, output=source.output_scale
    )
    if source.block_size is not None and trace.prefix_blocks is None:
        raise TraceError("holds no hash_ids", file=file, key="workload.trace.block_size", remedy="leave it out")
    if spec.arrivals is None and not trace.has_arrival_times:
        remedy = "add workload.arrivals beside the trace, such as {process: poisson, rate: 4}"
        raise TraceError("holds no arrival times", file=file, remedy=remedy)
    if spec.arrivals is None:
        num_requests = _num_replayed(spec, trace, file)
        arrival_time = some(trace.arrival_time[:num_requests])
        span = float(arrival_time[-1] - arrival_time[0])
        rate = (num_requests - 1) / span if span > 0 else np.nan
    else:
        num_asked = None if spec.duration is not None else _num_replayed(spec, trace, file)
        times = start_times(spec.arrivals, draws, num_requests=num_asked, duration=spec.duration)
        arrival_time = some(times)[: len(trace.prompt_tokens)]
        rate = offered_rate(spec.arrivals, arrival_time)
    num_requests = len(arrival_time)
    blocks, prompt_tokens = trace.blocks_of(source.block_size), trace.prompt_tokens[:num_requests]
    output_tokens = trace.output_tokens[:num_requests]
    asked = output_tokens if trace.max_tokens is None else trace.max_tokens[:num_requests]
    specs = RequestSpecs.arriving(
        spec.arrivals,
        spec.classes or (),
        _trace_classes(spec.classes, trace, num_requests, draws) if spec.classes else None,
        arrival_time=arrival_time,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_tokens=asked_tokens(spec.max_tokens, asked),
        think_time=_think_time(spec, num_requests, draws),
        offered_rate=rate,
        prefixes=None
        if blocks is None
        else recorded_prefixes(blocks, prompt_tokens, output_tokens, source.prompt_scale),
        session=None if trace.session is None else trace.session[:num_requests],
        recorded_images=None if trace.images is None else trace.images.first(num_requests),
        recorded_audio=None if trace.audio is None else trace.audio.first(num_requests),
        counts_media=trace.counts_media if source.counts_media is None else source.counts_media,
    )
    _check_recorded(spec, specs, file)
    if spec.agents is not None:
        return _in_tasks(spec, specs, trace, file, draws)
    return _with_company(spec, specs, draws)


def _in_tasks(spec: WorkloadSpec, specs: RequestSpecs, trace: Trace, file: Path, draws: Draws) -> RequestSpecs:
    """Return the rows of a trace as the calls of its tasks; an agent's context grows if the trace names no blocks."""
    from simserve.workload.recorded import in_tasks, session_prefixes

    if trace.tasks is None:
        rule, remedy = "does not say which call waited for which", "leave it out"
        raise TraceError(rule, file=file, key="workload.agents", remedy=remedy)
    tasks = trace.tasks.first(len(specs))
    if specs.prefixes is None:
        _, first_row, owner = np.unique(tasks.task, return_index=True, return_inverse=True)
        each = draw_beginnings(spec, len(first_row), draws)
        beginnings = None if each is None else each.of_rows(owner)
        grown = session_prefixes(tasks.agent, specs.prompt_tokens, specs.output_tokens, 1.0, beginnings)
        # Calls of an agent may be in progress together.
        specs = replace(specs, prefixes=replace(grown, is_recorded=True))
    assert spec.agents is not None
    return in_tasks(specs, tasks).within(spec.agents.max_execution_time)


def _check_recorded(spec: WorkloadSpec, specs: RequestSpecs, file: Path) -> None:
    """Refuse options that the trace lacks the data for, or that it sets itself."""
    key, blocks = "workload.sessions", specs.prefixes
    if spec.sessions is not None and specs.session is None:
        rule = "tells no conversations apart: no row says of which it is"
        raise TraceError(rule, file=file, key=key, remedy="leave it out, or draw conversations without a trace")
    if spec.sessions is not None and blocks is not None and spec.sessions.context_growth < 1:
        rule = "names the blocks that prompts share, so that it has no effect"
        raise TraceError(rule, file=file, key=f"{key}.context_growth", remedy="leave it out")
    if spec.has_shared_prefix and blocks is not None:
        rule = "names the blocks that prompts share, system prompts included"
        raise TraceError(rule, file=file, key="workload.shared_prefix", remedy="leave it out")


def _with_company(spec: WorkloadSpec, specs: RequestSpecs, draws: Draws) -> RequestSpecs:
    """Return the rows of a trace with the scenario's conversations and shared prefixes."""
    from simserve.workload.recorded import in_turns, session_prefixes

    if spec.sessions is None:
        return with_beginnings_within(specs, draw_beginnings(spec, len(specs), draws, specs.request_class))
    assert specs.session is not None
    if specs.prefixes is None:
        # All turns of a conversation begin alike.
        _, first_row, owner = np.unique(specs.session, return_index=True, return_inverse=True)
        class_of = None if specs.request_class is None else specs.request_class[first_row]
        each = draw_beginnings(spec, len(first_row), draws, class_of)
        beginnings = None if each is None else each.of_rows(owner)
        prefixes = session_prefixes(
            specs.session, specs.prompt_tokens, specs.output_tokens, spec.sessions.context_growth, beginnings
        )
        specs = replace(specs, prefixes=prefixes)
    return in_turns(specs, spec.sessions, draws)


def _trace_classes(classes: tuple[ClassSpec, ...], trace: Trace, num_requests: int, draws: Draws) -> NDArray[np.int16]:
    """Return the class of each row of a trace; the rows of a session are of one class."""
    if trace.session is None:
        return draw_shares(classes, num_requests, draws)
    owners, numbers = np.unique(trace.session[:num_requests], return_inverse=True)
    drawn: NDArray[np.int16] = draw_shares(classes, len(owners), draws)[numbers]
    return drawn


def _think_time(spec: WorkloadSpec, num_requests: int, draws: Draws) -> NDArray[np.float64]:
    if not isinstance(spec.arrivals, ClosedLoopArrivals):
        return np.empty(0)
    return draw_pauses(spec.arrivals, num_requests, draws)


def _num_replayed(spec: WorkloadSpec, trace: Trace, file: Path) -> int:
    available = len(trace.prompt_tokens)
    if spec.num_requests is not None and spec.num_requests > available:
        rule = f"asks for {spec.num_requests} requests, the trace holds {available}"
        raise TraceError(rule, file=file, key="workload.num_requests", remedy="lower it or leave it out")
    if spec.duration is not None and spec.arrivals is None:
        return int(np.searchsorted(trace.arrival_time, spec.duration, side="right"))
    return spec.num_requests or available


@dataclass(frozen=True, slots=True)
class _Traffic:
    """A workload that equals another with the same text, as a cache key."""

    text: str
    spec: WorkloadSpec = field(compare=False)
    folder: Path | None = field(compare=False)


def decode_contexts(spec: WorkloadSpec, base_path: Path | None) -> tuple[float, ...] | None:
    """Return equally likely context lengths of decode steps, in tokens; None if the traffic cannot be drawn.

    A request counts at ``prompt + answer / 4`` and ``prompt + 3 answer / 4`` tokens, in proportion to its answer. The
    seed and the length of the run do not matter.

    Args:
        base_path: Folder in which relative paths are looked up before the working folder.
    """
    if spec.trace is None and not spec.is_mixed and not isinstance(spec.arrivals, AllAtOnceArrivals):
        spec = spec.of_length(_CONTEXT_REQUESTS)
    return _contexts(_Traffic(f"{base_path} {spec!r}", spec, base_path))


@lru_cache(maxsize=64)
def _contexts(traffic: _Traffic) -> tuple[float, ...] | None:
    try:
        specs = generate(traffic.spec, seed=0, base_path=traffic.folder)
    except InputError:
        return None  # said where the requests of the run are drawn
    prompts, answers = specs.prompt_tokens.astype(np.float64), specs.output_tokens.astype(np.float64)
    contexts = np.concatenate([prompts + answers / 4.0, prompts + 3.0 * answers / 4.0])
    weights = np.concatenate([answers, answers])
    if not weights.sum():
        contexts, weights = prompts, np.ones_like(prompts)
    order = np.argsort(contexts, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    middles = (np.arange(_CONTEXT_QUANTILES) + 0.5) / _CONTEXT_QUANTILES
    found = contexts[order][np.minimum(np.searchsorted(reached, middles), len(order) - 1)]
    return tuple(float(f"{each:.{_CONTEXT_DIGITS}g}") for each in found)
