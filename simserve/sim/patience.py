"""Patience: from the classes of a workload to what their clients do, as `simserve.engine.clients` reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.clients import Clients, Patience
from simserve.engine.config import EngineConfig
from simserve.engine.numbers import column
from simserve.engine.plane_state import ClientState
from simserve.engine.state import INFINITY
from simserve.engine.uniforms import Uniforms
from simserve.sim.chance import Chance
from simserve.sim.streaming_spec import StreamingSpec
from simserve.workload.class_spec import ClassSpec
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
