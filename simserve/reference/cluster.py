"""Cluster: all parts of a run, put together and run. It specifies, in plain SimPy, what the fast plane does.

A client is a process, a request an object, an engine step an event. Read `clients` first, which sends the requests;
then `gateway`, which receives them; `replica`, which serves them step by step by the rules of `scheduler`; and `fleet`,
which changes the set of replicas.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from simserve.reference.clients import Clients, Reply
from simserve.reference.clock import Clock
from simserve.reference.fleet import Autoscaler, Faults, Fleet, Liveness, Updates
from simserve.reference.gateway import Gateway
from simserve.reference.replica import Pool, Replica
from simserve.reference.request import ONE_TOKEN, Request
from simserve.reference.router import Regions, Router, Rules
from simserve.reference.streaming import Delivery
from simserve.reference.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simserve.reference.steps import Step
    from simserve.sim.control import Control
    from simserve.sim.own_parts import Judge
    from simserve.workload.requests import RequestSpecs


class Cluster:
    """A run.

    Args:
        pools: The pools that serve requests.
        control: The control policies.
        specs: The requests that arrive.
        judge: Calls a user's own functions; None if there are none.

    Attributes:
        requests: All requests, by index.
        delivery: How answers reach clients that wait for them; None: they hear of them at once.
        landed: KV caches that have crossed their link while no decode replica is ready.
        num_lost_tokens: Tokens of requests that were then given up.
    """

    def __init__(
        self, pools: Sequence[Pool], control: Control, specs: RequestSpecs, judge: Judge | None = None
    ) -> None:
        self.clock, self.pools, self.control, self.specs = Clock(), list(pools), control, specs
        self.judge = judge
        self.replicas: list[Replica] = []
        self.landed: deque[Request] = deque()
        self.num_lost_tokens = 0
        entrances = [pool for pool in self.pools if pool.role != "decode"]
        self.transfers = Transfers(self, control.disaggregation, control.landing_seconds_per_token)
        self.router = Router(control.routing, entrances, control.allowed, specs, self.replicas)
        self.router.judge = judge
        rules = control.routing.rules
        self.rules = None if rules is None else Rules(rules, entrances, control.allowed, specs)
        if control.regions is not None:
            self.router.regions = Regions(control.regions, self.pools, specs)
        decoding = [pool for pool in self.pools if pool.role == "decode"]
        plain = type(control.routing)()
        self.decode_router = Router(plain, decoding, (), specs, self.replicas)
        self.decode_router.obeys_rules = False
        self.decode_router.reads = lambda request, pool: pool.reads(self.source_of(request))
        self.fleet = Fleet(self)
        self.gateway = Gateway(self, control, specs)
        self.requests = [self.request_of(index) for index in range(len(specs))]
        self.clients = Clients(self, specs, self.requests, self.latencies(), self.spacing())
        self.autoscalers: list[Autoscaler] = []
        waits = specs.concurrency is not None or specs.turn is not None
        self.delivery = Delivery(control.streaming) if waits and control.streaming is not None else None

    def request_of(self, index: int) -> Request:
        """Return a client's request, under the limits of the strictest pool that may serve it."""
        specs = self.specs
        prompt, output, asked = (
            int(column[index]) for column in (specs.prompt_tokens, specs.output_tokens, specs.max_tokens)
        )
        request = Request(index, prompt, output, asked)
        request.pace = ONE_TOKEN if specs.pace is None else int(specs.pace[index])
        request.thinking_tokens = 0 if specs.thinking_tokens is None else int(specs.thinking_tokens[index])
        request.images = list(self.images_in(index))
        request.priority = 0 if specs.priority is None else int(specs.priority[index])
        request.adapter = -1 if specs.adapter is None else int(specs.adapter[index])
        request.kind = 0 if specs.request_class is None else int(specs.request_class[index])
        if specs.prefixes is not None:
            entries = slice(int(specs.prefixes.offsets[index]), int(specs.prefixes.offsets[index + 1]))
            ends = specs.prefixes.ends[entries].tolist()
            request.path = list(zip(specs.prefixes.segments[entries].tolist(), ends, strict=True))
        else:
            # When it is tried again, it finds its own unshared blocks.
            request.path = [(index, prompt + output)]
        if self.router.regions is not None:
            request.home = self.router.regions.home_of(request)
        if self.rules is not None and not self.gateway.is_for_api(request):
            self.rules.apply(request)
        serving = [] if self.gateway.is_for_api(request) and request.second_pools is None else self.serving(request)
        if serving:
            longest = min(pool.config.max_model_len for pool in serving)
            whole = [pool.config for pool in serving if pool.role != "decode" and not splits_prompts(pool)]
            request.limit(longest, min((config.max_num_batched_tokens for config in whole), default=longest))
        else:
            request.limit(2**40, 2**40)
        return request

    def images_in(self, index: int) -> Iterator[tuple[int, float]]:
        """Yield the end and the seconds of the images of a prompt, including those of its prefix."""
        seconds, earlier = self.specs.encoder_seconds, self.specs.earlier_images
        ends = self.specs.prompt_tokens if self.specs.image_ends is None else self.specs.image_ends
        while seconds is not None and index >= 0:
            yield int(ends[index]), float(seconds[index])
            index = -1 if earlier is None else int(earlier[index])

    def serving(self, request: Request) -> list[Pool]:
        """Return the pools that may serve a request, including those that decode what others prefill."""
        pools = [*self.router.pools_for(request), *self.router.named(request.second_pools or ())]
        sources = [pool for pool in pools if pool.role == "prefill"]
        readers = [pool for pool in self.pools if pool.role == "decode"]
        return [*pools, *(pool for pool in readers if any(pool.reads(source) for source in sources))]

    def computes_again(self, source: Pool) -> bool:
        """Whether pools that read the KV caches of a pool recompute the last token of a prompt."""
        readers = [pool for pool in self.pools if pool.role == "decode" and pool.reads(source)]
        return any(pool.config.has_late_first_token for pool in readers)

    def latencies(self) -> list[float]:
        """Return the seconds from sending each request to the end of tokenising, over the network."""
        config = self.pools[0].config
        way = 0.0 if self.control.streaming is None else self.control.streaming.network_latency
        base, per_token = config.frontend_latency + config.frontend_seconds_per_request, config.tokenization_per_token
        return [base + per_token * one.prompt_tokens + way for one in self.requests]

    def spacing(self) -> float:
        """Return how long API servers (one per replica) work on one request while others wait, seconds."""
        first = self.pools[0]
        return first.config.frontend_seconds_per_request / max(first.num_replicas, 1)

    def run(self) -> None:
        """Run until every request has ended or nothing can happen any more."""
        self.start()
        done = self.clients.start()
        while not done.processed and self.clock.peek() < math.inf:
            self.clock.step()

    def start(self) -> None:
        """Launch the replicas, and start all control processes."""
        for pool in self.pools:
            for place in range(pool.num_replicas):
                self.fleet.launch(pool, place).become_ready()
        self.start_deciding()

    def start_deciding(self) -> None:
        """Start all control processes."""
        control = self.control
        for pool in self.pools:
            if pool.autoscaling is not None:
                self.autoscalers.append(Autoscaler(self, pool.autoscaling, pool))
                self.clock.process(self.autoscalers[-1].run())
        if control.encoder_scaling is not None and self.specs.encoder_pool is not None:
            scaling = self.clients.encoders.follow(control.encoder_scaling, control.encoder_startup_seconds)
            self.clock.process(scaling)
        if control.faults:
            Faults(self, control.faults).start()
        if control.liveness is not None:
            Liveness(self, control.liveness).start()
        if control.updates:
            Updates(self, control.updates).start()
        if control.routing.update_interval:
            self.clock.process(self.router.look(self.clock))

    # What happens to a request.

    def answered(self, request: Request, heard_at: float) -> None:
        """Tell a client that its request is answered."""
        self.end(request, Reply(heard_at, 0.0))

    def unanswered(self, request: Request, status: str, reason: str, heard_at: float, retry_after: float = 0.0) -> None:
        """Tell a client that its attempt failed; it may try again."""
        if reason == "timeout" and heard_at >= request.deadline:
            reason = "task_cancelled"
        request.status, request.reason, request.finish = status, reason, heard_at
        self.end(request, Reply(heard_at, self.clock.now, retry_after))

    def end(self, request: Request, reply: Reply) -> None:
        """Hand over a reply; if it is the last one, also count the request as ended."""
        request.place = None
        if self.clients.is_last(request):
            reply = reply._replace(heard_at=self.heard_at(request, reply.heard_at))
            self.gateway.note_end(request, reply.heard_at)
            self.count_end(request)
        assert request.answer is not None
        request.answer.succeed(reply)

    def heard_at(self, request: Request, time: float) -> float:
        """Return when a client hears of what happened to its request at ``time``."""
        return time if self.delivery is None else time + self.delivery.seconds_to_client(request)

    def count_end(self, request: Request) -> None:
        """Tell the autoscalers that a request has ended."""
        request.has_ended = True
        for autoscaler in self.autoscalers:
            autoscaler.note_end(request)

    def hang_up(self, request: Request) -> None:
        """Drop a request whose client no longer waits: at once, or at the end of the running step."""
        place, now = request.place, self.clock.now
        if place == "elsewhere":
            if self.gateway.api is not None and request.server == "api":
                self.gateway.api.cut(request, now)
            else:
                request.elsewhere, request.generated = None, 0
        elif place == "parked":
            self.gateway.drop(request)
        elif place == "crossing":
            if request in self.landed:
                self.landed.remove(request)
            self.transfers.drop(request, None)
        else:
            assert isinstance(place, Replica)
            if request in place.landed:
                self.transfers.drop(request, place)
                place.leave(request)
            elif not place.let_go(request):
                self.gateway.offer_turn()
                return
            elif place.state == "draining" and not place.load:
                place.stop()
        self.unanswered(request, "timed_out", "timeout", now)
        self.gateway.offer_turn()

    def goes_on(self, request: Request, replica: Replica) -> bool:
        """Whether a request that a replica has finished goes on at a decode replica."""
        if replica.pool.role != "prefill" or not self.transfers.send(request, replica):
            return False
        request.place = "crossing"
        return True

    def source_of(self, request: Request) -> Pool:
        """Return the pool that computed the KV cache of a request."""
        return self.transfers.by_request[request].source.pool

    def seconds_to(self, request: Request, pool: Pool) -> float | None:
        """Return the seconds that a request travels to a pool; None: regions do not matter."""
        regions = self.router.regions
        return None if regions is None else regions.one_way(request, pool)

    def take_to_decode(self, request: Request) -> None:
        """Route a KV cache that has arrived to a decode replica."""
        replica = self.decode_router.choose(request)
        if replica is None:
            self.landed.append(request)
            return
        replica.join(request)
        replica.landed.append(request)
        replica.wake()

    def route_landed(self) -> None:
        """Route the KV caches that waited for a ready decode replica."""
        landed, self.landed = self.landed, deque()
        for request in landed:
            self.take_to_decode(request)

    def num_parked(self, pool: Pool) -> int:
        """Return the number of requests that wait for a ready replica of a pool, even if other pools may serve them."""
        if pool.role == "decode":
            return sum(pool.reads(self.source_of(request)) for request in self.landed)
        return sum(pool in self.router.pools_for(request) for request in self.gateway.waiting)

    def meets_slo(self, request: Request) -> bool:
        """Whether a request that has ended met the objective of its class."""
        limits = self.control.limits
        own = limits[0 if self.specs.request_class is None else request.kind]
        first, last, gaps = request.first_token, request.finish, request.generated - 1
        return request.status == "completed" and (
            (own.ttft is None or first - request.arrival <= own.ttft)
            and (own.e2e is None or last - request.arrival <= own.e2e)
            and (own.tpot is None or not gaps or last - first <= own.tpot * gaps)
            and (own.ttfvt is None or request.first_visible_token - request.arrival <= own.ttfvt)
        )

    def ended_task(self, request: Request) -> list[Request]:
        """Return all calls of the agent's task that ends with this one; empty if the task goes on."""
        if self.specs.dependencies is None or self.specs.session is None or self.specs.session[request.index] < 0:
            return []
        rows = (self.specs.session == self.specs.session[request.index]).nonzero()[0].tolist()
        calls = [self.requests[row] for row in rows]
        return calls if all(call.has_ended for call in calls) else []

    def note_step(self, replica: Replica, step: Step) -> None:
        """Note a step that has been scheduled."""

    def note_step_end(self, replica: Replica, step: Step) -> None:
        """Note a step that is over, before its effects."""

    def note_finished(self, replica: Replica, num_finished: int) -> None:
        """Note how many requests have all their tokens after the step that is over."""


def splits_prompts(pool: Pool) -> bool:
    """Whether a pool computes a prompt in parts, or needs no room for it in a step."""
    config = pool.config
    return config.batching == "static" or config.enable_chunked_prefill or config.kv_allocation == "none"
