"""A deployment served by the reference instead of the fast plane, and its records. Decides nothing, compares nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simserve.reference.cluster import Cluster
from simserve.reference.replica import Pool
from simserve.sim.control import Control
from simserve.sim.records import REASONS, SERVERS, STATUSES, RequestRecords
from simserve.sim.routing_spec import RoutingSpec

if TYPE_CHECKING:
    from simserve.reference.request import Request
    from simserve.sim.simulate import Deployment
    from simserve.workload.requests import RequestSpecs


def cluster_of(deployment: Deployment, specs: RequestSpecs) -> Cluster:
    """Return the reference's cluster for a deployment and its traffic, ready to run."""
    control = deployment.control or Control(routing=RoutingSpec(policy=deployment.routing))
    pools = [
        Pool(
            name=each.name,
            config=replace(each.engine, enable_prefix_caching=False) if each.role == "decode" else each.engine,
            times=each.step_times.as_lists(),
            role=each.role,
            num_replicas=each.num_replicas,
            autoscaling=each.autoscaling,
            startup_seconds=each.startup_seconds,
            weights_bytes=each.weights_bytes,
            replicas_per_node=each.replicas_per_node,
            kv_layout=each.kv_layout,
            kv_bytes_per_token=each.kv_bytes_per_token or control.kv_bytes_per_token,
        )
        for each in deployment.pools
    ]
    one = Pool(
        name="",
        config=deployment.engine,
        times=deployment.priced.step_times.as_lists(),
        role="both",
        num_replicas=deployment.num_replicas,
        autoscaling=control.autoscaling,
        startup_seconds=control.startup_seconds,
        weights_bytes=control.weights_bytes,
        replicas_per_node=control.replicas_per_node,
    )
    return Cluster(pools or [one], control, specs)


def records_of(cluster: Cluster) -> RequestRecords:
    """Return what happened to every request, as columns; after the run."""
    requests, specs = cluster.requests, cluster.specs

    def floats(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([getattr(request, name) for request in requests], dtype=np.float64)

    def whole(name: str, kind: type[np.generic] = np.int64) -> np.ndarray[Any, Any]:
        return np.array([getattr(request, name) for request in requests], dtype=kind)

    has_links, control = cluster.control.disaggregation is not None, cluster.control
    answers_elsewhere = control.overflow is not None or control.response_cache is not None or control.fairness
    return RequestRecords(
        arrival_time=floats("arrival"),
        admitted_time=np.array([np.nan if never_queued(one) else one.ready for one in requests]),
        scheduled_time=floats("scheduled"),
        first_token_time=floats("first_token"),
        finish_time=floats("finish"),
        prompt_tokens=np.asarray(specs.prompt_tokens, dtype=np.int64),
        output_tokens=whole("generated"),
        cached_tokens=whole("cached_tokens"),
        num_preemptions=whole("num_preemptions", np.int32),
        replica_id=whole("replica", np.int32),
        itl_max=floats("itl_max"),
        status=np.array([STATUSES.index(one.status) for one in requests], dtype=np.int8),
        reason=np.array([REASONS.index(one.reason) for one in requests], dtype=np.int8),
        is_truncated=whole("is_truncated", np.bool_),
        request_class=specs.request_class,
        class_names=tuple(each.name for each in specs.classes),
        session=specs.session,
        turn=specs.turn,
        served_by=np.array([SERVERS.index(one.server) for one in requests], dtype=np.int8) if answers_elsewhere else None,
        **(transfer_columns(cluster) if has_links else {}),
    )


def never_queued(request: Request) -> bool:
    """Whether a request never reached a queue: its prompt does not fit the model."""
    return request.reason == "prompt_too_long"


def transfer_columns(cluster: Cluster) -> dict[str, Any]:
    """Return the way of every KV cache between the pools."""
    found = [cluster.transfers.by_request.get(request) for request in cluster.requests]
    times = {
        "prefill_end_time": [np.nan if each is None else each.computed_at for each in found],
        "transfer_start_time": [np.nan if each is None else each.start for each in found],
        "transfer_end_time": [np.nan if each is None else each.lands_at for each in found],
    }
    columns: dict[str, Any] = {name: np.array(values, dtype=np.float64) for name, values in times.items()}
    for column in columns.values():
        column[np.isinf(column)] = np.nan
    sources = [-1 if each is None else each.source.number for each in found]
    return {**columns, "prefill_replica_id": np.array(sources, dtype=np.int32)}
