"""The requests of conversations: turns, contexts and thinking times drawn together, from named streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve.workload.arrival_spec import STATIONARY, Arrivals, ClosedLoopArrivals
from simserve.workload.beginnings import draw_beginnings
from simserve.workload.class_spec import ClassSpec
from simserve.workload.classes import draw_lengths, draw_own_lengths, draw_shares
from simserve.workload.conversations import (
    contexts,
    draw_pauses,
    draw_shape,
    draw_think_times,
    mean_requests,
    slowed,
)
from simserve.workload.requests import RequestSpecs
from simserve.workload.session_spec import SessionsSpec
from simserve.workload.source import asked_tokens, offered_rate, priorities, some, start_times
from simserve.workload.spec import WorkloadSpec
from simserve.workload.thinking import draw_thinking


def draw_dialogues(
    spec: WorkloadSpec,
    sessions: SessionsSpec,
    *,
    seed: int,
    replication: int,
    base_path: Path | None,
    num_class: int | None = None,
) -> RequestSpecs:
    """Return the requests of conversations; rows stand by conversation, and these in order of their beginning.

    Args:
        spec: What to draw; ``num_requests`` or ``duration`` says how many.
        sessions: What the conversations are like.
        seed: Of the run.
        replication: Of the run.
        base_path: Folder that relative paths are tried against before the working folder.
        num_class: The class whose conversations they are, with arrivals and streams of its own; None: those that share
            the common arrivals.

    Raises:
        ScenarioError: Nothing arrives within the duration.
    """
    drawn = {"seed": seed, "replication": replication}
    classes = spec.classes or ()
    own = None if num_class is None else classes[num_class]
    suffix = "" if own is None else f".{own.name}"
    arrivals = spec.arrivals if own is None else own.arrivals
    assert arrivals is not None
    starting = slowed(arrivals, mean_requests(sessions, base_path))
    if isinstance(arrivals, ClosedLoopArrivals) or spec.duration is None:
        shape = draw_shape(sessions, base_path=base_path, num_requests=spec.num_requests, suffix=suffix, **drawn)
        starts = _starts(starting, spec, shape.num_sessions, suffix, seed, replication)
    else:
        starts = _starts(starting, spec, None, suffix, seed, replication)
        shape = draw_shape(sessions, base_path=base_path, num_sessions=len(starts), suffix=suffix, **drawn)
    num_requests = len(shape.turn)
    class_of = _class_of(classes, num_class, shape.num_sessions, seed, replication)
    request_class = None if class_of is None else class_of[shape.session]
    if request_class is not None and own is None:
        new_tokens, output_tokens = draw_lengths(spec, request_class, base_path=base_path, **drawn)
    else:
        new_tokens, output_tokens = draw_own_lengths(spec, own, base_path=base_path, num_requests=num_requests, **drawn)
    thinking = draw_thinking(spec, request_class, num_requests, base_path=base_path, **drawn)
    if thinking is not None:
        output_tokens = output_tokens + thinking
    max_tokens = asked_tokens(spec.max_tokens, output_tokens)
    answers = generated = np.where(max_tokens < 0, output_tokens, np.minimum(output_tokens, max_tokens))
    if thinking is not None:
        answers = np.maximum(generated - thinking, 0)
    beginnings = draw_beginnings(spec, shape.num_sessions, class_of=class_of, suffix=suffix, **drawn)
    prompts, prefixes = contexts(
        shape, new_tokens, answers, sessions.context_growth, beginnings, None if thinking is None else generated
    )
    think_time = draw_think_times(sessions, shape, suffix=suffix, **drawn)
    if isinstance(arrivals, ClosedLoopArrivals):
        is_first = shape.turn == 1
        pauses = draw_pauses(arrivals, shape.num_sessions, suffix=suffix, **drawn)
        think_time[is_first] = pauses[shape.session[is_first]]
    return RequestSpecs(
        arrival_time=np.where(shape.turn == 1, starts[shape.session], np.nan),
        prompt_tokens=prompts,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        think_time=think_time,
        concurrency=getattr(arrivals, "concurrency", None),
        ramp_up=getattr(arrivals, "ramp_up", None),
        is_stationary=isinstance(arrivals, STATIONARY),
        offered_rate=offered_rate(arrivals, starts, num_requests),
        prefixes=prefixes,
        session=shape.session,
        turn=shape.turn,
        classes=classes,
        request_class=request_class,
        priority=None if request_class is None else priorities(classes, request_class),
        thinking_tokens=thinking,
    )


def _class_of(
    classes: tuple[ClassSpec, ...], num_class: int | None, num_sessions: int, seed: int, replication: int
) -> NDArray[np.int16] | None:
    """Return the class of each conversation: the one asked for, or drawn by shares; None without classes."""
    if num_class is not None:
        return np.full(num_sessions, num_class, dtype=np.int16)
    return draw_shares(classes, num_sessions, seed=seed, replication=replication) if classes else None


def _starts(
    arrivals: Arrivals, spec: WorkloadSpec, count: int | None, suffix: str, seed: int, replication: int
) -> NDArray[np.float64]:
    duration = spec.duration if count is None else None
    times = start_times(
        arrivals, seed=seed, replication=replication, num_requests=count, duration=duration, suffix=suffix
    )
    # Of several sources one may be silent.
    return times if suffix else some(times)
