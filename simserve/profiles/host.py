"""The machine around the GPUs: host memory and CPU cores, as far as weights kept there need them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simserve.units import PositiveBytes, PositiveBytesPerSecond, PositiveFlopsPerSecond
from simserve.validation import FrozenModel


class Host(FrozenModel):
    """One node without its GPUs."""

    memory_total: PositiveBytes
    """Host memory of the node."""
    memory_bandwidth: PositiveBytesPerSecond
    """Peak read bandwidth of the host memory, all sockets."""
    compute: PositiveFlopsPerSecond
    """Peak rate of the CPU cores in 32-bit floats, vector units included."""
    source: Annotated[str, Field(min_length=1)]
    """Where the numbers of this block come from."""


class HostCores(FrozenModel):
    """How fast the cores of the nodes that usually hold a GPU run an engine's own work."""

    slowdown: Annotated[float, Field(gt=0)]
    """Times as long as on an H100 node that scheduling, launching kernels and handing over tokens take."""
    source: Annotated[str, Field(min_length=1)]
    """Where the number comes from."""


SERVER_HOST = Host.model_construct(
    memory_total=1.0e12,
    memory_bandwidth=409.6e9,
    compute=9.2e12,
    source=(
        "Class default where a profile has no host block: two sockets of 64 cores with 8 channels of DDR4-3200 each "
        "(2 x 204.8 GB/s), 64 x 2.25 GHz x 32 FLOP, as AMD EPYC 7742 in a DGX A100; 1 TB"
    ),
)
"""A two-socket GPU server."""
