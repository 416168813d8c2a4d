"""Links for KV transfers between prefill and decode workers, depending on the GPUs and their nodes.

Three, the fastest first: the links inside a node or NVLink domain, if all workers of both roles fit into one; the
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
"""Bytes/s over TCP for each of the eight GPUs of a node, if its port allows as much: Mooncake's transfer engine reached
87 and 190 GB/s over RDMA, 2.4 and 4.6 times TCP on these servers, so TCP reached 36 and 41 GB/s per server
(kvcache-ai/Mooncake, README, Transfer Engine)."""
DOMAINS = {"nvlink": "NVLink", "infinity_fabric": "Infinity Fabric", "neuronlink": "NeuronLink", "ici": "ICI"}
"""Links inside a node over which a GPU reads another's memory at full speed -> their names."""
NETWORKS = {"infiniband": "InfiniBand", "ethernet": "Ethernet with RDMA"}
SLOWER = 0.95  # Share of a link's bandwidth below which another link counts as slower.


@dataclass(frozen=True, slots=True)
class Link:
    """A link for KV transfers."""

    name: str  # Its name in words.
    bandwidth: float  # Bytes/s of one prefill worker.

    @property
    def spec(self) -> dict[str, Any]:
        """`deployment.disaggregation` with this link."""
        if self.bandwidth == DisaggregationSpec().transfer_bandwidth:
            return {}
        return {"transfer_bandwidth": to_text(self.bandwidth, "bandwidth")}


@dataclass(frozen=True, slots=True)
class Side:
    """Workers of one role."""

    hardware: HardwareProfile  # Their GPU.
    gpus: int  # GPUs of one worker.
    number: int  # Number of workers.


def links_between(sides: Sequence[Side]) -> list[Link]:
    """Return the links between workers, the fastest first; each is slower than the one before."""
    found: list[Link] = []
    for link in (domain_of(sides), network_of(sides), _tcp_of(sides)):
        if link is not None and (not found or link.bandwidth < SLOWER * found[-1].bandwidth):
            found.append(link)
    return found


def domain_of(sides: Sequence[Side]) -> Link | None:
    """Return the link of the one node or NVLink domain that holds all workers; None if none does."""
    domain = sides[0].hardware.intra_node
    is_one = len({each.hardware.name for each in sides}) == 1
    total = sum(each.gpus * each.number for each in sides)
    joined = min(each.hardware.intra_node.gpus_per_node for each in sides)
    if domain.kind not in DOMAINS or not is_one or total > joined:
        return None
    bandwidth = domain.peer_bandwidth or domain.bandwidth
    return Link(DOMAINS[domain.kind], min(each.gpus for each in sides) * bandwidth)


def network_of(sides: Sequence[Side]) -> Link | None:
    """Return the link over the network ports, one per GPU: the slowest side's; None if a node has no network.

    Never faster than the default of a scenario, a port of 400 Gbit/s.
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
