"""The way of answers to clients that wait for them: from a scenario to what `simserve.engine.delivery` goes by."""

from __future__ import annotations

from simserve.engine.delivery import Delivery
from simserve.sim.streaming_spec import StreamingSpec


def delivery_of(spec: StreamingSpec, num_replicas: int) -> Delivery:
    """Return the way of answers from so many replicas."""
    cost = spec.cost_per_event / spec.api_servers
    per_token = cost / spec.buffer_tokens if spec.stream else 0.0
    return Delivery(num_replicas, spec.network_latency, cost, per_token, spec.stream)
