"""Control: everything of a deployment that decides while a run goes on, beside the plain spreading of requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from simserve.sim.admission_spec import AdmissionSpec
from simserve.sim.autoscaling_spec import AutoscalingSpec, EncoderAutoscalingSpec
from simserve.sim.fairness_spec import FairnessSpec
from simserve.sim.fault_spec import FaultSpec
from simserve.sim.liveness_spec import LivenessSpec
from simserve.sim.overflow_spec import OverflowSpec
from simserve.sim.pool_spec import DisaggregationSpec
from simserve.sim.region_spec import RegionsSpec
from simserve.sim.response_cache_spec import ResponseCacheSpec
from simserve.sim.routing_spec import API_POOL, RoutingSpec, RuleSpec
from simserve.sim.streaming_spec import StreamingSpec
from simserve.sim.update_spec import UpdateSpec


class Limits(NamedTuple):
    """The objective of a class: the most seconds of each latency of a request; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    ttfvt: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What decides in a run.

    Attributes:
        routing: How requests are spread.
        admission: Who is turned away; None: nobody.
        limits: Objective of each class; of all requests: one entry.
        task_limit: The most seconds of an agent's task; None: no limit.
        autoscaling: How the number of replicas follows the load; None: it does not.
        startup_seconds: From the launch of a replica to its first request.
        encoder_scaling: How the workers of an encoder pool follow the load; None: they do not, or there are none.
        encoder_startup_seconds: From the launch of such a worker to its first image.
        faults: What goes wrong.
        liveness: The probe that restarts replicas; None: there is none.
        updates: When replicas are replaced one after another.
        regions: Where clients and pools are; None: it does not matter.
        replicas_per_node: How many replicas fill a node.
        weights_bytes: Of one replica, over all its GPUs: what a start loads.
        disaggregation: How KV caches get from prefill to decode pools; None: every replica does both.
        kv_bytes_per_token: Of the whole model, for them.
        overflow: When requests go to an API; None: never.
        streaming: How tokens reach the client; None: at once.
        response_cache: Which requests are answered without a model; None: none.
        fairness: Whose turn it is; None: who comes first.
        allowed: Indices of the pools that may serve each class; empty: all, for all.
    """

    routing: RoutingSpec = field(default_factory=RoutingSpec)
    admission: AdmissionSpec | None = None
    limits: tuple[Limits, ...] = (Limits(),)
    task_limit: float | None = None
    autoscaling: AutoscalingSpec | None = None
    startup_seconds: float = 0.0
    encoder_scaling: EncoderAutoscalingSpec | None = None
    encoder_startup_seconds: float = 0.0
    faults: tuple[FaultSpec, ...] = ()
    liveness: LivenessSpec | None = None
    updates: tuple[UpdateSpec, ...] = ()
    regions: RegionsSpec | None = None
    replicas_per_node: int = 1
    weights_bytes: float = 0.0
    disaggregation: DisaggregationSpec | None = None
    kv_bytes_per_token: float = 0.0
    overflow: OverflowSpec | None = None
    streaming: StreamingSpec | None = None
    response_cache: ResponseCacheSpec | None = None
    fairness: FairnessSpec | None = None
    allowed: tuple[tuple[int, ...], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether nothing decides but a router that sends every request to a replica."""
        nothing_else = (self.admission, self.autoscaling, self.encoder_scaling, self.streaming, self.disaggregation)
        is_left_alone = not self.faults and not self.updates and self.liveness is None
        return is_left_alone and all(each is None for each in nothing_else) and not self.has_gateway

    @property
    def changes_fleet(self) -> bool:
        """Whether replicas, or encoder workers, come and go, or break; pools may besides have autoscalers."""
        return bool(self.autoscaling or self.encoder_scaling or self.faults or self.updates or self.liveness)

    @property
    def rules(self) -> tuple[RuleSpec, ...]:
        """The router's rules, before them that of the classes which never see a replica."""
        own, api = self.routing.rules or (), self.overflow
        if api is None or api.always is None or not api.never_stays:
            return own
        return (RuleSpec(pool=API_POOL, classes=api.always), *own)

    @property
    def has_gateway(self) -> bool:
        """Whether anything in front of the replicas answers requests, or says whose turn it is."""
        return bool(self.overflow or self.response_cache or self.fairness or self.routing.rules)
