"""KV transfers: from pools and links to what `simserve.engine.transfers` goes by.

And back, to records and totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simserve.engine.plane_state import BOTH, DECODES, PREFILLS, Port, Transfers
from simserve.sim.pool_spec import DisaggregationSpec
from simserve.sim.pools import PoolSetup
from simserve.sim.records import RequestRecords

ROLES = {"both": BOTH, "prefill": PREFILLS, "decode": DECODES}


def transfers_of(
    spec: DisaggregationSpec,
    kv_bytes_per_token: float,
    setups: Sequence[PoolSetup],
    members: Sequence[Sequence[int]],
    num_requests: int,
) -> Transfers:
    """Return what is between prefill and decode replicas before anything is sent.

    Args:
        spec: The links.
        kv_bytes_per_token: Of the whole model, where a pool does not say.
        setups: The pools.
        members: The replicas of each.
        num_requests: Of the run.
    """
    ports = []
    for setup, numbers in zip(setups, members, strict=True):
        own = setup.kv_bytes_per_token
        readers = [] if setup.role != "prefill" else _readers(setup, setups, members)
        bytes_per_token = kv_bytes_per_token if own is None else own
        ports += [Port(ROLES[setup.role], bytes_per_token, list(readers)) for _ in numbers]
    return Transfers(ports, spec.transfer_bandwidth, spec.transfer_latency, spec.max_in_transfer, num_requests)


def _readers(source: PoolSetup, setups: Sequence[PoolSetup], members: Sequence[Sequence[int]]) -> list[int]:
    """Return the replicas that take in what a pool computes: those that decode its model and format
    in its region."""
    pairs = zip(setups, members, strict=True)
    alike = source.kv_layout, source.region
    pools = [numbers for each, numbers in pairs if each.role == "decode" and (each.kv_layout, each.region) == alike]
    return [number for numbers in pools for number in numbers]


def transfer_totals(transfers: Transfers) -> dict[str, float]:
    """Return what KV caches did between the pools."""
    senders = [transfers.ports[number] for number in transfers.senders]
    return {
        "count": float(transfers.num_transfers),
        "link_seconds": sum(port.seconds for port in senders),
        "waited_seconds": sum(port.waited for port in senders),
        "stalled_seconds": transfers.stalled,
    }


def with_transfers(records: RequestRecords, transfers: Transfers) -> RequestRecords:
    """Return the records with the way of every KV cache between the pools."""
    return replace(
        records,
        prefill_end_time=np.array(transfers.prefill_end),
        transfer_start_time=np.array(transfers.transfer_start),
        transfer_end_time=np.array(transfers.transfer_end),
        prefill_replica_id=np.array(transfers.prefill_replica, dtype=np.int32),
    )
