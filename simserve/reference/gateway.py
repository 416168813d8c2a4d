"""Gateway: what a request passes before a replica: response cache, rules, API, admission control, fair turns."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Protocol

import numpy as np

from simserve import rng
from simserve.reference.clock import IS_ANSWERED, TURNS, Chance
from simserve.reference.replica import FinishPace

if TYPE_CHECKING:
    from simserve.reference.clients import Clients
    from simserve.reference.clock import Clock, Steps
    from simserve.reference.replica import Replica
    from simserve.reference.request import Request
    from simserve.reference.router import Router, Rules
    from simserve.sim.control import AdmissionSpec, Control, FairnessSpec, OverflowSpec, ResponseCacheSpec
    from simserve.sim.own_parts import Judge
    from simserve.workload.requests import RequestSpecs

OUTPUT_WEIGHT = 2.0
"""A generated token counts as much service as two prompt tokens (Sheng et al., OSDI 2024)."""


class TokenBucket:
    """A rate limit that fills steadily up to a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self.level, self.filled_at = burst, 0.0

    def seconds_to(self, amount: float, now: float) -> float:
        """Return the seconds until ``amount`` may pass; more than the bucket's burst passes when it is full."""
        self.level = min(self.burst, self.level + self.rate * (now - self.filled_at))
        self.filled_at = now
        return max(0.0, (min(amount, self.burst) - self.level) / self.rate)

    def holds(self, amount: float, now: float) -> bool:
        """Whether ``amount`` may pass ``now``."""
        return self.seconds_to(amount, now) == 0.0

    def take(self, amount: float) -> None:
        """Let ``amount`` pass; the level may become negative."""
        self.level -= amount


class Admission:
    """The rules of `deployment.admission`; the first that refuses is the reason."""

    def __init__(self, spec: AdmissionSpec, control: Control, specs: RequestSpecs) -> None:
        self.spec, self.control, self.specs = spec, control, specs
        self.chance = Chance(specs, "admission")
        bucket = spec.token_bucket
        self.bucket = None if bucket is None else TokenBucket(bucket.rate, bucket.burst)

    def refusal(
        self, request: Request, replica: Replica | None, num_parked: int, parked_seconds: float, now: float
    ) -> str:
        """Return why a request is refused ``now``; empty if it is not.

        Args:
            request: The request.
            replica: Where the router would send it; None: it would wait in front of all replicas.
            num_parked: Number of requests ahead of it there.
            parked_seconds: Estimate of how long it would wait there.
            now: Seconds.
        """
        if self.bucket is not None and not self.bucket.holds(1.0, now):
            return "rate_limit"
        reason = (
            self.refusal_at_gateway(request, num_parked, parked_seconds)
            if replica is None
            else self.refusal_at(request, replica)
        )
        if not reason and self.bucket is not None:
            self.bucket.take(1.0)
        return reason

    def refusal_at_gateway(self, request: Request, num_parked: int, parked_seconds: float) -> str:
        """Return why a request may not wait in front of all replicas."""
        if self.spec.max_queue is not None and num_parked >= self.spec.max_queue:
            return "queue_full"
        if self.spec.deadline_aware and parked_seconds > self.patience(request):
            return "deadline"
        return ""

    def refusal_at(self, request: Request, replica: Replica) -> str:
        """Return why a request may not go to a replica."""
        # An idle replica serves it at once: it does not wait, so no limit on waiting applies.
        if self.spec.max_queue is not None and replica.load and replica.num_waiting >= self.spec.max_queue:
            return "queue_full"
        if self.spec.kv_headroom and 1.0 - replica.kv_share < self.spec.kv_headroom:
            return "kv_headroom"
        start = self.spec.probabilistic_from
        if start is not None:
            share = max(replica.kv_share, replica.load / replica.scheduler.max_num_seqs)
            if share >= start and self.chance.next() < (share - start) / (1.0 - start):
                return "load"
        if self.spec.deadline_aware and replica.num_waiting * replica.pace.interval > self.patience(request):
            return "deadline"
        return ""

    def patience(self, request: Request) -> float:
        """Return the seconds in which a first token must come: the TTFT objective, else the client's own limit."""
        has_classes = self.specs.request_class is not None
        ttft = self.control.limits[request.kind if has_classes else 0].ttft
        timeout = self.specs.classes[request.kind].timeout if has_classes else None
        return next((limit for limit in (ttft, timeout) if limit is not None), math.inf)


class Surroundings(Protocol):
    """What the gateway needs from the run around it."""

    clock: Clock
    control: Control
    router: Router
    rules: Rules | None
    judge: Judge | None
    clients: Clients

    def answered(self, request: Request, heard_at: float) -> None:
        """Tell a client that its request is answered."""

    def unanswered(self, request: Request, status: str, reason: str, heard_at: float, retry_after: float = 0.0) -> None:
        """Tell a client that its attempt failed."""

    def route_landed(self) -> None:
        """Route the KV caches that waited for a ready decode replica."""


class Gateway:
    """Everything in front of the replicas of a cluster; requests that wait for a replica wait here."""

    def __init__(self, cluster: Surroundings, control: Control, specs: RequestSpecs) -> None:
        self.cluster, self.clock = cluster, cluster.clock
        self.cache = None if control.response_cache is None else ResponseCache(control.response_cache, specs)
        self.api = None if control.overflow is None else Api(control.overflow, specs)
        self.admission = None if control.admission is None else Admission(control.admission, control, specs)
        self.fair = None if control.fairness is None else FairTurns(control.fairness, specs)
        self.parked: deque[Request] = deque()
        self.refusals: dict[str, int] = {}
        if self.fair is not None:
            most = self.fair.spec.max_outstanding
            cluster.router.has_room = lambda replica: (
                replica.load < (replica.scheduler.max_num_seqs if most is None else most)
            )

    @property
    def waiting(self) -> list[Request]:
        """Requests that no replica has taken yet."""
        return list(self.parked) if self.fair is None else [one for queue in self.fair.queues for one in queue]

    def receive(self, request: Request) -> None:
        """Answer a request from the cache or by the API, refuse it, or give it to a replica."""
        now = self.clock.now
        if self.cache is not None and self.cache.answers(request, now):
            self.clock.process(self.answer_elsewhere(request, self.cache.serve(request, now), "cache"))
            request.place = "elsewhere"
            return
        replica = None if self.is_for_api(request) else self.cluster.router.choose(request)
        if self.api is not None and self.diverts(request, replica):
            return
        if self.cluster.judge is not None and self.cluster.judge.parts.admission is not None:
            reason = self.own_refusal(self.cluster.judge, request)
            if reason:
                self.refuse(request, reason, 0.0 if self.admission is None else self.admission.spec.retry_after)
                return
        if self.admission is not None:
            own = len(self.waiting) if self.fair is None else self.fair.waiting_of(request)
            seconds = 0.0 if self.fair is None else self.fair.seconds_before(request)
            reason = self.admission.refusal(request, replica, own, seconds, now)
            if reason:
                self.refuse(request, reason, self.admission.spec.retry_after)
                return
        self.hand_over(request, replica)

    def is_for_api(self, request: Request) -> bool:
        """Whether a rule sends a request to the API regardless of the replicas."""
        return request.pools == [] or (self.api is not None and self.api.has_no_replica(request))

    def own_refusal(self, judge: Judge, request: Request) -> str:
        """Return why a user's own admission control refuses a request; empty if it does not."""
        router = self.cluster.router
        replicas = [replica for pool in router.pools_for(request) for replica in router.open_in(pool)]
        gauges = [replica.gauges for replica in replicas]
        return judge.refusal(request.index, self.clock.now, request.max_tokens, gauges)

    def refuse(self, request: Request, reason: str, retry_after: float) -> None:
        """Refuse a request."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self.cluster.unanswered(request, "rejected", reason, self.clock.now, retry_after)

    def diverts(self, request: Request, replica: Replica | None) -> bool:
        """Whether the API handles a request: answers it, or refuses it with 429."""
        api, now = self.api, self.clock.now
        assert api is not None
        is_for_api = self.is_for_api(request)
        if not is_for_api and not api.takes(request, replica, len(self.waiting), now):
            return False
        wait = api.seconds_to_limit(request, now)
        if wait > 0.0:
            api.num_limited += 1
            if api.when_limited == "stay" and not is_for_api:
                return False
            if api.when_limited == "refuse":
                self.refuse(request, "api_limit", wait)
                return True
        self.clock.process(self.answer_elsewhere(request, api.serve(request, now + wait), "api"))
        request.place = "elsewhere"
        return True

    def answer_elsewhere(self, request: Request, time: float, server: str) -> Steps:
        """Answer a request at ``time``, if its client still waits then."""
        request.server, attempt = server, request.attempt
        yield self.clock.at(time, IS_ANSWERED, request.index)
        if request.place == "elsewhere" and request.attempt == attempt:
            request.place, request.status = None, "completed"
            self.cluster.answered(request, self.clock.now)

    def hand_over(self, request: Request, replica: Replica | None) -> None:
        """Give a request to a replica, or let it wait for one; under fair turns it queues behind those waiting."""
        request.server = "replica"
        if self.fair is None:
            if replica is None:
                request.place = "parked"
                self.parked.append(request)
            else:
                replica.take(request)
            return
        self.fair.begin_wait(request, self.clock.now)
        if replica is not None and not self.waiting:
            replica.take(request)
            self.fair.charge(request, request.prompt_tokens)
            return
        request.place = "parked"
        self.fair.append(request)
        if replica is not None:
            self.release()

    def take_answer(self, request: Request, replica: Replica) -> None:
        """Send the answer of a replica to its client, unless a rule rejects it and the request is routed again."""
        now, rules, regions = self.clock.now, self.cluster.rules, self.cluster.router.regions
        if rules is not None and rules.asks_again(request):
            if self.fair is not None:
                self.fair.charge(request, OUTPUT_WEIGHT * request.generated)
            self.cluster.clients.tries.append((request.ready, request.scheduled, now))
            replica.scheduler.let_stand_in(request)
            request.forget()
            request.place, request.ready = "elsewhere", now
            self.clock.process(self.ask_again(request))
            return
        answered_at = max(now, request.finish)
        if regions is not None:
            back = regions.one_way(request, replica.pool)
            answered_at += back
            if self.cluster.control.streaming is not None:
                # Its tokens are sent one by one.
                request.way_back = back
            else:
                request.handed_over = request.first_token + back
                request.finish += back
                request.answer_began += back
        self.cluster.answered(request, answered_at)

    def ask_again(self, request: Request) -> Steps:
        """Route a request whose first answer was rejected, after everything else at this instant."""
        attempt = request.attempt
        yield self.clock.at(self.clock.now, TURNS, request.index + 1)
        if request.place == "elsewhere" and request.attempt == attempt:
            request.place = None
            if not (self.is_for_api(request) and self.diverts(request, None)):
                self.hand_over(request, self.cluster.router.choose(request))

    def route_again(self, request: Request) -> None:
        """Send a request that was lost with its replica to another one, unnoticed by its client."""
        self.cluster.clients.tries.append((request.ready, request.scheduled, self.clock.now))
        request.forget()
        request.ready = self.clock.now
        self.hand_over(request, self.cluster.router.choose(request))

    def route_parked(self) -> None:
        """Give waiting requests to replicas, now that one more is ready."""
        if self.fair is not None:
            self.offer_turn()
        parked, self.parked = self.parked, deque()
        for request in parked:
            request.place = None
            self.hand_over(request, self.cluster.router.choose(request))
        self.cluster.route_landed()

    def offer_turn(self) -> None:
        """Under fair turns: let waiting requests be routed after everything else at this instant."""
        if self.fair is not None and self.waiting:
            self.clock.process(self.take_turns())

    def take_turns(self) -> Steps:
        """Route the requests whose turn it is (a SimPy process)."""
        yield self.clock.at(self.clock.now, TURNS)
        self.release()

    def release(self) -> None:
        """Give waiting requests to replicas in turn, until no replica has room."""
        assert self.fair is not None
        found = True
        while found:
            found = False
            for request in self.fair.in_turn():
                replica = self.cluster.router.choose(request)
                if replica is not None:
                    self.fair.take_turn(request, self.clock.now)
                    replica.take(request)
                    self.fair.charge(request, request.prompt_tokens)
                    found = True
                    break

    def drop(self, request: Request) -> None:
        """Drop a request whose client no longer waits."""
        if self.fair is None:
            self.parked.remove(request)
        else:
            self.fair.remove(request)

    def note_end(self, request: Request, now: float) -> None:
        """Cache the model's answer and charge the class of a request that has ended."""
        if self.cache is not None and request.status == "completed" and request.server != "cache":
            self.cache.keep(request, now)
        if self.fair is not None and request.server == "replica":
            self.fair.charge(request, OUTPUT_WEIGHT * request.generated)


class ResponseCache:
    """Answers that are reused. Which requests ask the same is drawn beforehand."""

    def __init__(self, spec: ResponseCacheSpec, specs: RequestSpecs) -> None:
        self.spec = spec
        self.made_at: dict[int, float] = {}
        self.num_first = self.num_expired = 0
        comes_again = rng.stream(specs.seed, "response_cache", specs.replication).random(len(specs))
        which = rng.stream(specs.seed, "response_cache.questions", specs.replication).random(len(specs))
        kinds = np.zeros(len(specs), dtype=int) if specs.request_class is None else specs.request_class
        shares = [spec.share_of(each.name) for each in specs.classes] or [spec.share_of(None)]
        popularity = np.cumsum([rank**-spec.zipf for rank in range(1, (spec.questions or 1) + 1)])
        self.question: list[int | None] = []
        for again, uniform, kind in zip(comes_again, which, kinds.tolist(), strict=True):
            rank = int(np.searchsorted(popularity, uniform * popularity[-1], side="right"))
            own = min(rank, len(popularity) - 1) + len(popularity) * kind
            self.question.append(own if again < shares[kind] else None)

    def answers(self, request: Request, now: float) -> bool:
        """Whether a request is answered here: its answer is cached and no older than ``expiry``."""
        question = self.question[request.index]
        if question is None or self.spec.questions is None:
            return question is not None
        if question not in self.made_at:
            self.num_first += 1
            return False
        is_old = self.spec.expiry is not None and now - self.made_at[question] > self.spec.expiry
        self.num_expired += is_old
        return not is_old

    def serve(self, request: Request, now: float) -> float:
        """Answer a request all at once; return when."""
        request.scheduled, request.finish = now, now + self.spec.latency
        request.elsewhere = (request.finish, math.nan)
        request.generated = request.output_tokens
        return request.finish

    def keep(self, request: Request, now: float) -> None:
        """Cache the answer of a model."""
        question = self.question[request.index]
        if question is not None and self.spec.questions is not None:
            self.made_at[question] = now


class Api:
    """The API of `deployment.overflow`: when it is used, its limits per minute, and how fast it answers."""

    def __init__(self, spec: OverflowSpec, specs: RequestSpecs) -> None:
        self.spec, self.specs = spec, specs
        self.when_limited = spec.when_limited or "stay"
        self.above = None if spec.above_rate is None else TokenBucket(spec.above_rate.rate, spec.above_rate.burst)
        calls, tokens = spec.requests_per_minute, spec.tokens_per_minute
        self.calls = TokenBucket(math.inf if calls is None else calls / 60.0, math.inf if calls is None else calls)
        self.tokens = TokenBucket(math.inf if tokens is None else tokens / 60.0, math.inf if tokens is None else tokens)
        self.first_tokens = Lognormal(specs, "overflow", spec.ttft_cv)
        self.speeds = Lognormal(specs, "overflow.speed", spec.tokens_per_second_cv)
        self.num_limited = 0

    def name_of(self, request: Request) -> str | None:
        """Return the class of a request; None without classes."""
        return self.specs.classes[request.kind].name if self.specs.request_class is not None else None

    def has_no_replica(self, request: Request) -> bool:
        """Whether a request never reaches a replica: its class goes to the API, even after a 429."""
        return self.spec.never_stays and self.name_of(request) in (self.spec.always or ())

    def takes(self, request: Request, replica: Replica | None, num_parked: int, now: float) -> bool:
        """Whether a request goes to the API; also counts what the rate limit leaves to the replicas."""
        name = self.name_of(request)
        if name is not None and name in (self.spec.always or ()):
            return True
        is_within = self.above is not None and self.above.holds(1.0, now)
        if is_within and self.above is not None:
            self.above.take(1.0)
        if name is not None and name in (self.spec.never or ()):
            return False
        if self.above is not None and not is_within:
            return True
        if self.spec.max_queue is None:
            return False
        if replica is None:
            return num_parked >= self.spec.max_queue
        return replica.load > 0 and replica.num_waiting >= self.spec.max_queue

    def seconds_to_limit(self, request: Request, now: float) -> float:
        """Return the seconds until the API's limits let a request in."""
        waits = [0.0]
        if self.spec.requests_per_minute is not None:
            waits.append(self.calls.seconds_to(1.0, now))
        if self.spec.tokens_per_minute is not None:
            waits.append(self.tokens.seconds_to(request.asked_in_all, now))
        return max(waits)

    def serve(self, request: Request, now: float) -> float:
        """Answer a request that is admitted at ``now``; return when its last token arrives."""
        self.calls.take(1.0)
        self.tokens.take(request.asked_in_all)
        gap = self.speeds.next() / self.spec.tokens_per_second
        first = now + self.spec.ttft * self.first_tokens.next()
        request.scheduled, request.elsewhere = now, (first, gap if request.output_tokens > 1 else math.nan)
        request.finish = first + (request.output_tokens - 1) * gap
        request.generated = request.output_tokens
        return request.finish

    @staticmethod
    def cut(request: Request, now: float) -> None:
        """Cut an answer to the tokens that have arrived by ``now``."""
        assert request.elsewhere is not None
        first = request.elsewhere[0]
        if now < first:
            request.elsewhere, request.generated = None, 0
        elif request.finish > first:
            done = (now - first) / (request.finish - first) * (request.generated - 1)
            request.generated = 1 + int(done)


class Lognormal:
    """Lognormal draws with mean 1, in order."""

    def __init__(self, specs: RequestSpecs, name: str, cv: float) -> None:
        self.sigma = math.sqrt(math.log(1.0 + cv**2))
        self.random = rng.stream(specs.seed, name, specs.replication)
        self.scores: list[float] = []

    def next(self) -> float:
        """Return the next draw; normal scores are drawn in batches of 256 and used from the end."""
        self.scores = self.scores or self.random.standard_normal(256).tolist()
        return math.exp(self.sigma * self.scores.pop() - self.sigma**2 / 2)


class FairTurns:
    """A queue for each class; the class with the least service for its share goes first.

    The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): prompts are
    charged when they leave the queue, answers when they end.
    """

    def __init__(self, spec: FairnessSpec, specs: RequestSpecs) -> None:
        self.spec = spec
        self.shares = [spec.shares[each.name] for each in specs.classes]
        self.queues: list[deque[Request]] = [deque() for _ in specs.classes]
        self.counters = [0.0] * len(specs.classes)
        self.service = [0.0] * len(specs.classes)
        self.paces = [FinishPace(0.0) for _ in specs.classes]
        self.last_emptied = 0.0

    def waiting_of(self, request: Request) -> int:
        """Return the number of waiting requests of the same class."""
        return len(self.queues[request.kind])

    def seconds_before(self, request: Request) -> float:
        """Return how long a request would wait behind those of its class, at the rate at which they get turns."""
        return self.waiting_of(request) * self.paces[request.kind].interval

    def begin_wait(self, request: Request, now: float) -> None:
        """Note that the class of a request begins to wait, if none of its requests waits yet."""
        if not self.queues[request.kind]:
            self.paces[request.kind].begin(now)

    def append(self, request: Request) -> None:
        """Let a request wait. A class that was absent starts level with waiting ones: turns are not saved up."""
        kind = request.kind
        if not self.queues[kind]:
            waiting = [counter for counter, queue in zip(self.counters, self.queues, strict=True) if queue]
            self.counters[kind] = max(self.counters[kind], min(waiting, default=self.last_emptied))
        self.queues[kind].append(request)

    def remove(self, request: Request) -> None:
        """Remove a request from any position."""
        self.queues[request.kind].remove(request)
        if not self.queues[request.kind]:
            self.last_emptied = self.counters[request.kind]

    def take_turn(self, request: Request, now: float) -> None:
        """Let a request go when it is its turn."""
        self.remove(request)
        self.paces[request.kind].note(1, 0, now)

    def in_turn(self) -> list[Request]:
        """Return the first request of each waiting class, in the order of turns."""
        kinds = [kind for kind, queue in enumerate(self.queues) if queue]
        return [self.queues[kind][0] for kind in sorted(kinds, key=lambda kind: self.counters[kind])]

    def charge(self, request: Request, tokens: float) -> None:
        """Charge service of ``tokens`` to a request's class."""
        self.service[request.kind] += tokens
        self.counters[request.kind] += tokens / self.shares[request.kind]
