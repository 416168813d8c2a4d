"""Links that KV caches may cross between prefill and decode workers, by what the GPUs and their nodes have.

Three, the fastest first: the links inside a node or NVLink domain, where all workers of both roles fit into one; the
network ports of the GPUs (InfiniBand, or Ethernet with RDMA); and TCP over the same network. Simulates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simserve.profiles.hardware import HardwareProfile
from simserve.sim.control import DisaggregationSpec
from simserve.units import to_text

TCP_PER_GPU = 5e9
"""Bytes/s over TCP, of each of the eight GPUs of a node, where its port has as much: Mooncake's transfer engine reached
87 and 190 GB/s over RDMA, 2.4 and 4.6 times what TCP did on these servers, which is 36 and 41 GB/s of a server
(kvcache-ai/Mooncake, README, Transfer Engine)."""
DOMAINS = {"nvlink": "NVLink", "infinity_fabric": "Infinity Fabric", "neuronlink": "NeuronLink", "ici": "ICI"}
"""Links inside a node over which a GPU reads another's memory at full speed -> how they are called."""
NETWORKS = {"infiniband": "InfiniBand", "ethernet": "Ethernet with RDMA"}
SLOWER = 0.95
"""Times the bandwidth of a link below which another is slower than it."""


@dataclass(frozen=True, slots=True)
class Link:
    """What KV caches cross.

    Attributes:
        name: In words.
        bandwidth: Bytes/s of one prefill worker.
    """

    name: str
    bandwidth: float

    @property
    def spec(self) -> dict[str, Any]:
        """`deployment.disaggregation` with this link."""
        if self.bandwidth == DisaggregationSpec().transfer_bandwidth:
            return {}
        return {"transfer_bandwidth": to_text(self.bandwidth, "bandwidth")}


@dataclass(frozen=True, slots=True)
class Side:
    """Workers of one role.

    Attributes:
        hardware: Their GPU.
        gpus: Of one of them.
        number: How many there are.
    """

    hardware: HardwareProfile
    gpus: int
    number: int


def links_between(sides: Sequence[Side]) -> list[Link]:
    """Return the links between workers, the fastest first; each is slower than the one before."""
    found: list[Link] = []
    for link in (domain_of(sides), network_of(sides), _tcp_of(sides)):
        if link is not None and (not found or link.bandwidth < SLOWER * found[-1].bandwidth):
            found.append(link)
    return found


def domain_of(sides: Sequence[Side]) -> Link | None:
    """Return the link of the one node or NVLink domain that holds all workers; None where none does."""
    domain = sides[0].hardware.intra_node
    is_one = len({each.hardware.name for each in sides}) == 1
    total = sum(each.gpus * each.number for each in sides)
    if domain.kind not in DOMAINS or not is_one or total > domain.gpus_per_node:
        return None
    bandwidth = domain.peer_bandwidth or domain.bandwidth
    return Link(DOMAINS[domain.kind], min(each.gpus for each in sides) * bandwidth)


def network_of(sides: Sequence[Side]) -> Link | None:
    """Return the link over the network ports, one a GPU: the slowest side's; None where a node has no network.

    Never faster than what stands there where a scenario says nothing, which is a port of 400 Gbit/s.
    """
    ports = [each.hardware.inter_node for each in sides]
    if any(port.kind == "none" for port in ports):
        return None
    slowest = min(each.gpus * port.bandwidth for each, port in zip(sides, ports, strict=True))
    kinds = {port.kind for port in ports}
    name = NETWORKS["infiniband" if kinds == {"infiniband"} else "ethernet"]
    return Link(name, min(slowest, DisaggregationSpec().transfer_bandwidth))


def _tcp_of(sides: Sequence[Side]) -> Link | None:
    if network_of(sides) is None:
        return None
    ports = (each.gpus * min(each.hardware.inter_node.bandwidth, TCP_PER_GPU) for each in sides)
    return Link("TCP", min(ports, default=math.inf))
