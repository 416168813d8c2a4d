"""Clients: from classes and conversations to what the clients and conversations of `simserve.engine` go by."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from simserve.engine.clients import Clients, Patience
from simserve.engine.config import EngineConfig
from simserve.engine.conversations import Conversations, next_beginning, start_limit
from simserve.engine.numbers import Uniforms, column
from simserve.engine.plane_state import ClientState
from simserve.engine.state import INFINITY
from simserve.sim.chance import Chance
from simserve.sim.control import StreamingSpec
from simserve.workload.class_spec import ClassSpec
from simserve.workload.dependencies import Dependencies
from simserve.workload.requests import RequestSpecs

_NO_CLASS = ClassSpec(name="all", share=1.0)


def clients_of(
    specs: RequestSpecs,
    streaming: StreamingSpec | None,
    latency: NDArray[np.float64],
    arrival_time: NDArray[np.float64],
    uniforms: Uniforms,
    spacing: float = 0.0,
) -> Clients:
    """Return the clients of a run, who have sent nothing yet.

    Args:
        specs: What they send.
        streaming: How tokens reach them, and how long a connection stays open; None: nothing to mention.
        latency: Seconds from sending through the tokeniser, shape [N].
        arrival_time: When each request is first sent, where that is known; shape [N].
        uniforms: For the pauses before they try again.
        spacing: Seconds that API servers work on one request, one after another.
    """
    whole, first = (None, None) if streaming is None else streaming.timeouts
    classes = specs.classes or (_NO_CLASS,)
    retries = [each.retries for each in classes]
    patience = Patience(
        kinds=kinds_of(specs),
        timeout=column([min(_or_never(each.timeout), _or_never(whole)) for each in classes]),
        first_byte_timeout=_or_never(first),
        max_tries=column([0 if each is None else each.max for each in retries], np.int64),
        backoff=column([0.0 if each is None else each.backoff for each in retries]),
        max_backoff=column([0.0 if each is None else each.max_backoff for each in retries]),
        jitter=column([0.0 if each is None else each.jitter for each in retries]),
        honors=column([each is not None and each.honor_retry_after for each in retries], np.int8),
        uniforms=uniforms,
    )
    own_wait = () if specs.own_wait is None else column(specs.own_wait)
    clients = Clients(patience, column(latency), column(arrival_time), own_wait, spacing)
    pool = specs.encoder_pool
    if pool is not None:
        places = np.arange(pool.num_workers if pool.max_workers is None else pool.max_workers)
        clients.num_encoders = len(places)
        clients.encoders = column(np.where(places < pool.num_workers, 0.0, INFINITY))
        clients.encoder_given, clients.to_encode = column(np.zeros(len(places))), column(pool.seconds)
        if pool.max_workers is not None:
            clients.notes_encoder_starts = True
            clients.encoder_starts = column(np.full(int(pool.num_parts[pool.seconds > 0].sum()), np.nan))
        clients.encoder_parts = column(pool.num_parts, np.int64)
        clients.embedding_seconds = column(pool.transfer_seconds)
        clients.encoder_wait = column(np.full(len(specs), np.nan))
    return clients


def plain_clients(
    specs: RequestSpecs,
    latency: NDArray[np.float64],
    arrival_time: NDArray[np.float64],
    num_replicas: int,
    spacing: float = 0.0,
) -> ClientState:
    """Return clients of whom none is refused, gives up or tries again; arguments as of `clients_of`."""
    clients = clients_of(specs, None, latency, arrival_time, Chance(specs, "retries").uniforms, spacing)
    return ClientState(clients, None, num_replicas)


def frontend_spacing(config: EngineConfig, num_replicas: int) -> float:
    """Return the seconds that API servers, one for each replica, work on one request."""
    return config.frontend_seconds_per_request / max(num_replicas, 1)


def kinds_of(specs: RequestSpecs) -> Any:
    """Return the class of every request as a column; 0 without classes."""
    classes = np.zeros(len(specs), dtype=np.int32) if specs.request_class is None else specs.request_class
    return column(classes, np.int32)


def _or_never(seconds: float | None) -> float:
    return INFINITY if seconds is None else seconds


def conversations_of(specs: RequestSpecs, arrival_time: NDArray[np.float64]) -> Conversations | None:
    """Return what is sent on which answer; None where nothing waits for answers.

    Args:
        specs: Requests; those of a conversation stand side by side, by turn. A closed loop of single requests is one
            of conversations of one turn. Of tasks the calls without parents stand first.
        arrival_time: Filled with when each request was sent, shape [N].
    """
    if specs.turn is None and specs.concurrency is None:
        return None
    is_first = np.ones(len(specs), dtype=bool)
    begins = np.ones(len(specs), dtype=bool)
    if specs.turn is not None:
        assert specs.session is not None
        turn = specs.turn if specs.dependencies is None else np.minimum(specs.turn, 2)
        is_first[1:] = (np.diff(specs.session) != 0) | (np.diff(turn) != 0)
        begins = turn[is_first] == 1
    edges = np.append(np.flatnonzero(is_first), len(specs))
    unanswered = np.diff(edges)
    if specs.dependencies is not None:
        tasks = np.append(np.flatnonzero(begins), len(begins))
        unanswered[begins] = np.diff(edges[tasks])
    owner = specs.loop_of_each[is_first]
    ranges = [np.flatnonzero(owner == loop) for loop in range(len(specs.client_loops))]
    return Conversations(
        group=column(np.cumsum(is_first) - 1, np.int64),
        edges=column(edges, np.int64),
        unanswered=column(unanswered, np.int64),
        begins=column(np.append(begins, True), np.int8),
        loop=column(owner, np.int8),
        next_group=column(np.array([each[0] if len(each) else 0 for each in ranges]), np.int64),
        end_group=column(np.array([each[-1] + 1 if len(each) else 0 for each in ranges]), np.int64),
        num_begun=int(np.count_nonzero(specs.loop_of_each < 0)),
        closes_at=math.inf if specs.closes_at is None else specs.closes_at,
        think_time=column(specs.think_time, np.float64),
        arrival_time=_seen(arrival_time),
        last_answer=column(np.zeros(len(begins)), np.float64),
        **({} if specs.dependencies is None else _graph_of(specs.dependencies)),
        **({} if specs.time_limit is None else _limits_of(specs.time_limit[edges[:-1]])),
    )


def _graph_of(dependencies: Dependencies) -> dict[str, Any]:
    """Return what `Conversations` knows of tasks besides."""
    edges, children = dependencies.children()
    return {
        "children": column(children, np.int64),
        "child_edges": column(edges, np.int64),
        "num_parents": column(dependencies.num_parents, np.int64),
    }


def _limits_of(time_limit: NDArray[np.float64]) -> dict[str, Any]:
    """Return what `Conversations` knows of tasks that clients give up."""
    return {
        "time_limit": column(time_limit, np.float64),
        "deadline": column(np.full(len(time_limit), math.inf), np.float64),
    }


def _seen(values: NDArray[Any]) -> Any:
    """Return values as both Python and compiled code read and write them, in place."""
    return memoryview(cast(bytes, values))


def first_sent(conversations: Conversations, specs: RequestSpecs) -> Iterable[int]:
    """Begin the conversations: yield the first requests, whose ``arrival_time`` says when they are sent.

    In an open loop the first turn of every conversation, at its time, or the calls of a task that wait for no other,
    each at its own; in a closed loop its clients hold one conversation after another, and begin at 0 or over the
    ramp-up.
    """
    edges = conversations.edges
    of_request = np.asarray(conversations.group)
    is_open = (np.asarray(conversations.begins)[of_request] == 1) & (np.asarray(conversations.loop)[of_request] < 0)
    if is_open.any():
        indices = np.flatnonzero(is_open)
        sent_at = np.asarray(conversations.arrival_time)
        if not conversations.is_graph:
            sent_at[indices] = sent_at[np.asarray(edges)[np.asarray(conversations.group)[indices]]]
        if conversations.has_limits:
            _start_limits(conversations, indices)
        yield from indices.tolist()
    for number, clients in enumerate(specs.client_loops):
        for client in range(clients.concurrency):
            sent = clients.begins_at(client)
            group = next_beginning(conversations, number, sent, thinks=False)
            if group < 0:
                continue
            for index in range(edges[group], edges[group + 1]):
                conversations.arrival_time[index] = sent
                yield index
            if conversations.has_limits:
                start_limit(conversations, group)


def _start_limits(conversations: Conversations, indices: NDArray[np.intp]) -> None:
    """Set the deadlines of tasks that begin at times of their own with these calls; none is sent later."""
    group, sent_at = np.asarray(conversations.group)[indices], np.asarray(conversations.arrival_time)
    for each in np.unique(group).tolist():
        start_limit(conversations, each)
    deadline = np.asarray(conversations.deadline)[group]
    sent_at[indices] = np.minimum(sent_at[indices], deadline)
