"""The figures of what was sent to clients, and whether an API server is what binds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.metrics.latency import MS

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

STREAM_KEYS = ("events", "tokens_per_event", "api_server_busy", "mean_event_delay_ms")
SATURATED = 0.95
"""Share of the run in which a core is at work from which it is what binds: the rest is the run's start and end."""
FALLING_BEHIND = 0.85
"""The same of an engine's own server, which closed loops that start and end together leave idle for a while."""
API_SERVER = "API server"


def stream_figures(simulation: Simulation) -> dict[str, Any]:
    """Return ``events tokens_per_event api_server_busy mean_event_delay_ms``; None each where nothing is streamed.

    ``api_server_busy``: share of the run in which the API-server cores of the busiest replica were at work.
    ``mean_event_delay_ms``: how long an event waited for its core.
    """
    stream = simulation.stream
    if stream is None:
        return dict.fromkeys(STREAM_KEYS)
    count = stream.num_events
    return {
        "events": count,
        "tokens_per_event": stream.num_tokens / count if count else math.nan,
        "api_server_busy": stream.busiest_share,
        "mean_event_delay_ms": MS * stream.delay_seconds / count if count else math.nan,
    }


def name_api_server(bottleneck: dict[str, Any], simulation: Simulation) -> None:
    """Name the API server as what binds, where the cores of one are at work nearly all the time."""
    stream, seconds = simulation.stream, simulation.api_token_seconds
    if stream is not None and stream.busiest_share >= SATURATED:
        bottleneck["binding"] = API_SERVER
        bottleneck["explanation"] += (
            f" An API server is at work {stream.busiest_share:.0%} of the time: events times their cost fill its "
            f"cores, whatever the GPU could do; send more tokens an event, or add api_servers."
        )
    elif stream is None and (share := _busiest_share(simulation)) >= FALLING_BEHIND:
        bottleneck["binding"] = API_SERVER
        bottleneck["explanation"] += (
            f" An API server is at work {share:.0%} of the time: it detokenises and sends {1.0 / seconds:,.0f} "
            f"tokens/s at most, whatever the GPU could do; add replicas, send more tokens an event or add API servers "
            f"(deployment.streaming: buffer_tokens, api_servers)."
        )


def _busiest_share(simulation: Simulation) -> float:
    """Return the share of the run in which the engine's own API server of the busiest replica was at work."""
    records, end_time = simulation.records, simulation.end_time
    served = records.replica_id >= 0
    if not simulation.api_token_seconds or not served.any() or not end_time > 0.0:
        return 0.0
    tokens = np.bincount(records.replica_id[served], weights=records.output_tokens[served])
    return min(float(tokens.max()) * simulation.api_token_seconds / end_time, 1.0)
