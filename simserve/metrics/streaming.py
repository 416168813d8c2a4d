"""The figures of what was sent to clients, and whether an API server is what binds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from simserve.metrics.latency import MS

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

STREAM_KEYS = ("events", "tokens_per_event", "api_server_busy", "mean_event_delay_ms")
SATURATED = 0.95
"""Share of the run in which a core is at work from which it is what binds: the rest is the run's start and end."""
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
    stream = simulation.stream
    if stream is None or stream.busiest_share < SATURATED:
        return
    bottleneck["binding"] = API_SERVER
    bottleneck["explanation"] += (
        f" An API server is at work {stream.busiest_share:.0%} of the time: events times their cost fill its cores, "
        f"whatever the GPU could do; send more tokens an event, or add api_servers."
    )
