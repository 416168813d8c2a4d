"""The `deployment.disaggregation` block, and the roles of pools. Moves nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simserve.units import PositiveBytesPerSecond, Seconds
from simserve.validation import FrozenModel

Role = Literal["both", "prefill", "decode"]


class DisaggregationSpec(FrozenModel):
    """How KV caches get from prefill replicas to decode replicas: every prefill replica has a link of its own, and
    sends one cache after the other at full bandwidth.

    The first token reaches the client with the KV cache, when the decode replica has taken it in (as vLLM and SGLang
    answer from the decode instance), so the transfer and the wait for a seat there are part of TTFT.
    """

    transfer_bandwidth: PositiveBytesPerSecond = 50e9
    """Bandwidth of the link of one prefill replica."""
    transfer_latency: Seconds = 0.001
    """Time from the last byte sent to the decode replica's scheduler."""
    usd_per_gpu_hour: Annotated[float, Field(ge=0)] | None = None
    """Dollars an hour of the link, for each GPU of the prefill and decode workers, where it is billed apart (a network
    with RDMA that costs more than the plain one). Absent: the GPU's own price has it."""
    max_in_transfer: Annotated[int, Field(ge=1)] = 64
    """Most caches of one prefill replica on their way, those included that have arrived and wait for a seat; while so
    many are, the replica starts no further step (back-pressure)."""
