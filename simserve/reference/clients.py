"""Clients: SimPy processes that send requests, wait for answers, lose patience, and try again.

Also the workers of an encoder pool: the work of each, and how their number follows the load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from simserve.reference.clock import ARRIVES, IS_DUE, IS_SENT, PARSES, TIMES_OUT, Chance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import simpy

    from simserve.reference.clock import Clock, Steps
    from simserve.reference.request import Request
    from simserve.sim.control import Control, EncoderAutoscalingSpec
    from simserve.workload.class_spec import ClassSpec
    from simserve.workload.requests import ClientLoop, RequestSpecs

TOLERANCE = 0.1
"""Deviation from the target that is ignored (Kubernetes, ``--horizontal-pod-autoscaler-tolerance``)."""
MOST_DOUBLINGS = 60
Conversation = list[list["Request"]]
"""Turns in order; the requests of a turn are sent together."""


@dataclass(eq=False)
class Encoder:
    """One worker.

    Attributes:
        launched_at: When it was launched, seconds.
        place: Its place among workers that take images; None if it takes none.
        stopped_at: When it was released and done; inf if it was not.
        jobs: Start and end of all its work, seconds.
        since: When it was ready: before that it does nothing.
    """

    launched_at: float
    place: int | None = None
    stopped_at: float = math.inf
    jobs: list[tuple[float, float]] = field(default_factory=list)
    since: float = 0.0

    @property
    def free_at(self) -> float:
        """When it is done with all its work."""
        return self.jobs[-1][1] if self.jobs else self.since


class Encoders:
    """The workers of an encoder pool.

    Args:
        clock: The clock of the run.
        num_workers: Number of workers at the start.
    """

    def __init__(self, clock: Clock, num_workers: int) -> None:
        self.clock = clock
        self.workers = [Encoder(0.0, place) for place in range(num_workers)]
        self.asked: list[tuple[float, int]] = []

    @property
    def taking(self) -> list[Encoder]:
        """Workers that take images, by place."""
        return sorted((one for one in self.workers if one.place is not None), key=lambda one: one.place or 0)

    def give(self, seconds: float, num_parts: int) -> list[tuple[float, float]]:
        """Give equal parts of work to the workers that are free soonest; return when each part starts and ends."""
        taking, given = self.taking, []
        num_parts = min(num_parts, len(taking))
        for _ in range(num_parts):
            worker = min(taking, key=lambda one: one.free_at)
            start = max(worker.free_at, self.clock.now)
            worker.jobs.append((start, start + seconds / num_parts))
            given.append(worker.jobs[-1])
        return given

    def follow(self, spec: EncoderAutoscalingSpec, startup_seconds: float) -> Steps:
        """Keep the number of workers that the metric asks for (a SimPy process)."""
        while True:
            yield self.clock.timeout(spec.interval)
            self.scale(spec, startup_seconds, self.clock.now)

    def scale(self, spec: EncoderAutoscalingSpec, startup_seconds: float, now: float) -> None:
        """Grow at once; shrink to the most that was asked for within the stabilisation window."""
        present = [one for one in self.workers if one.stopped_at == math.inf]
        if spec.metric == "busy":
            level = sum(self.busy_share(one, now, spec.interval) for one in present)
        else:
            level = float(sum(start > now for one in self.workers for start, _ in one.jobs))
        asked = len(present)
        if abs(level / (spec.target * len(present)) - 1) > TOLERANCE:
            asked = math.ceil(level / spec.target)
        asked = min(max(asked, spec.min_replicas), spec.max_replicas)
        self.asked = [each for each in self.asked if each[0] >= now - spec.stabilization] + [(now, asked)]
        most = max(each for _, each in self.asked)
        for _ in range(asked - len(present)):
            self.workers.append(Encoder(now))
            self.clock.process(self.start_up(self.workers[-1], startup_seconds))
        if asked <= len(present):
            # Starting workers go first, then those with the least work, the newest of them first.
            newest_first = present[::-1]
            order = sorted(newest_first, key=lambda one: (one.place is not None, max(one.free_at - now, 0.0)))
            for worker in order[: max(len(present) - most, 0)]:
                worker.stopped_at = now if worker.place is None else max(worker.free_at, now)
                worker.place = None

    def start_up(self, worker: Encoder, seconds: float) -> Steps:
        """Let a launched worker take images after ``seconds``, unless it is released meanwhile."""
        yield self.clock.timeout(seconds)
        if worker.stopped_at == math.inf:
            taken = {one.place for one in self.workers}
            worker.place = next(place for place in range(len(self.workers)) if place not in taken)
            worker.since = self.clock.now

    @staticmethod
    def busy_share(worker: Encoder, now: float, interval: float) -> float:
        """Return the share of the interval in which a worker encoded."""
        begin = now - interval
        return sum(max(min(end, now) - max(start, begin), 0.0) for start, end in worker.jobs) / interval


class Reply(NamedTuple):
    """The outcome of an attempt, as its client needs it.

    Attributes:
        heard_at: When the client hears of it, seconds.
        free_at: When the server has dropped it, seconds: the next attempt arrives no sooner.
        retry_after: How long a refusal tells the client to wait, seconds.
    """

    heard_at: float
    free_at: float
    retry_after: float = 0.0


def latest(replies: Iterable[Reply]) -> Reply:
    """Return when the last of some replies is heard and the server has dropped all of them."""
    heard, free, _ = zip(*replies, strict=True)
    return Reply(max(heard), max(free))


class Front(Protocol):
    """The gateway, as clients see it."""

    def receive(self, request: Request) -> None:
        """Take a request that has arrived."""

    def note_end(self, request: Request, now: float) -> None:
        """Note that a request has ended."""


class Surroundings(Protocol):
    """What clients need from the run around them."""

    clock: Clock
    control: Control

    @property
    def gateway(self) -> Front:
        """Where their requests arrive."""

    def hang_up(self, request: Request) -> None:
        """Drop a request whose client no longer waits."""

    def heard_at(self, request: Request, time: float) -> float:
        """Return when a client hears of what happened to its request at ``time``."""

    def count_end(self, request: Request) -> None:
        """Note that a request has ended."""


class Clients:
    """All clients that send requests in a run.

    Args:
        cluster: The cluster that they send requests to.
        specs: What they send, and when.
        requests: The same as objects.
        latency: Seconds from sending each request to the end of tokenising.
        spacing: How long API servers work on one request while others wait, seconds; 0: no request delays others.

    Attributes:
        tokenized_at: When the tokeniser is done with the request that was sent last.
        to_parse: When requests reach the API servers, and the event to trigger when they are done, in sending order.
        encoders: The workers of the encoder pool; None without one.
        encoder_wait: Request -> how long its images waited for the first worker, seconds.
        encoder_parts: Request -> number of parts that its images were divided into.
    """

    def __init__(
        self,
        cluster: Surroundings,
        specs: RequestSpecs,
        requests: list[Request],
        latency: list[float],
        spacing: float = 0.0,
    ) -> None:
        self.cluster, self.clock = cluster, cluster.clock
        self.specs, self.requests, self.latency = specs, requests, latency
        self.tokenized_at = 0.0
        self.spacing = spacing
        self.to_parse: list[tuple[float, simpy.Event]] = []
        self.last_came, self.is_parsing = 0.0, False
        self.chance = Chance(specs, "retries")
        self.num_resent = 0
        self.encoders = Encoders(self.clock, 0 if specs.encoder_pool is None else specs.encoder_pool.num_workers)
        self.encoder_wait: dict[int, float] = {}
        self.encoder_parts: dict[int, int] = {}
        self.tries: list[tuple[float, float, float]] = []

    def start(self) -> simpy.Event:
        """Start all clients; return an event that happens when all have their answers."""
        if self.specs.turn is None and self.specs.concurrency is None:
            return self.clock.all_of([self.clock.process(each) for each in self.arrivals()])
        processes = []
        for loop, conversations in self.conversations().items():
            if loop < 0:
                for each in conversations:
                    begins_at = float(self.specs.arrival_time[each[0][0].index])
                    processes.append(self.clock.process(self.converse(each, Reply(begins_at, 0.0), thinks=False)))
                continue
            clients = self.specs.client_loops[loop]
            queue = iter(conversations)
            processes += [
                self.clock.process(self.client(clients, number, queue)) for number in range(clients.concurrency)
            ]
        return self.clock.all_of(processes)

    def arrivals(self) -> Iterator[Steps]:
        """Yield a process for each request that is sent at its own time, independent of others."""
        for request in self.requests:
            request.arrival = request.sent = float(self.specs.arrival_time[request.index])
            yield self.live(request, request.sent)

    def conversations(self) -> dict[int, list[Conversation]]:
        """Return the conversations of each closed loop; under -1, those that begin at their own times."""
        found: dict[int, list[Conversation]] = {}
        specs = self.specs
        loops = specs.loop_of_each.tolist()
        if specs.turn is None:
            for request in self.requests:
                found.setdefault(loops[request.index], []).append([[request]])
            return dict(sorted(found.items()))
        assert specs.session is not None
        turns = list(zip(specs.session.tolist(), specs.turn.tolist(), strict=True))
        for (_, turn), rows in groupby(self.requests, key=lambda one: turns[one.index]):
            together = list(rows)
            own = found.setdefault(loops[together[0].index], [])
            if turn == 1:
                own.append([])
            own[-1].append(together)
        return dict(sorted(found.items()))

    def client(self, loop: ClientLoop, number: int, conversations: Iterator[Conversation]) -> Steps:
        """Hold one conversation after another until none is left or it is time to stop (a SimPy process)."""
        last, thinks = Reply(loop.begins_at(number), 0.0), False
        closes_at = math.inf if self.specs.closes_at is None else self.specs.closes_at
        for conversation in conversations:
            think_time = float(self.specs.think_time[conversation[0][0].index]) if thinks else 0.0
            if last.heard_at + think_time >= closes_at:
                return
            last = yield self.clock.process(self.converse(conversation, last, thinks=thinks))
            thinks = True

    def converse(self, conversation: Conversation, last: Reply, *, thinks: bool) -> Steps:
        """Send one turn after another, each when all of the previous one is answered; return the last `Reply`.

        Args:
            conversation: The turns.
            last: The client's last reply, or when it begins.
            thinks: Whether the client thinks before the first turn.
        """
        if self.specs.dependencies is not None:
            calls = [call for turn in conversation for call in turn]
            return (yield self.clock.process(self.perform(calls, last, thinks=thinks)))
        for turn in conversation:
            lives = [self.clock.process(self.live(each, self.sent_on(each, last, thinks=thinks))) for each in turn]
            replies = yield self.clock.all_of(lives)
            last = latest(replies.values())
            thinks = True
        return last

    def sent_on(self, request: Request, last: Reply, *, thinks: bool) -> float:
        """Let a client send a request after a reply; return when it does, seconds."""
        think_time = float(self.specs.think_time[request.index]) if thinks else 0.0
        earliest = float(self.specs.arrival_time[request.index]) if thinks else math.nan
        sent = last.heard_at + think_time
        request.arrival = earliest if earliest > sent else sent
        return self.send(request, request.arrival, last)

    def send(self, request: Request, time: float, last: Reply) -> float:
        """Send a request at ``time``, or when the server has dropped it; end it if its task has no time for it."""
        request.sent = min(time, request.deadline)
        return max(request.sent, last.heard_at, last.free_at)

    def tokenize(self, request: Request) -> float:
        """Return when a request that is sent now reaches the router, seconds.

        One tokeniser serves all requests in sending order: none overtakes a long prompt. Waits after that do not delay
        other requests.
        """
        came = request.sent + self.latency[request.index] - self.spacing
        self.tokenized_at = max(self.tokenized_at, came, self.clock.now) + self.spacing
        return self.tokenized_at + (0.0 if self.specs.own_wait is None else float(self.specs.own_wait[request.index]))

    def parsed(self, request: Request) -> Steps:
        """Wait until the API servers have processed a request; return when they are done with it, seconds.

        An event loop processes all requests that have arrived, one after another, and hands them over after the last:
        the next work on a request queues behind all requests that have arrived in the meantime.
        """
        came = request.sent + self.latency[request.index] - self.spacing
        self.last_came = max(self.last_came, came, self.clock.now)
        is_done = self.clock.event()
        self.to_parse.append((self.last_came, is_done))
        if not self.is_parsing:
            self.is_parsing = True
            self.clock.process(self.parse())
        return (yield is_done)

    def parse(self) -> Steps:
        """Process the requests that have arrived until none is left."""
        while self.to_parse:
            start = max(self.clock.now, self.to_parse[0][0])
            yield self.clock.at(start, PARSES)
            together = [is_done for came, is_done in self.to_parse if came <= start]
            del self.to_parse[: len(together)]
            done_at = start
            for _ in together:
                done_at += self.spacing
            for is_done in together:
                is_done.succeed(done_at)
            yield self.clock.at(done_at, PARSES)
        self.is_parsing = False

    def needs_encoding(self, request: Request) -> bool:
        """Whether a request has images that the encoder pool has not encoded yet."""
        pool = self.specs.encoder_pool
        return pool is not None and pool.seconds[request.index] > 0 and request.index not in self.encoder_wait

    def encode(self, request: Request) -> float:
        """Give the images of a request to the workers that are free soonest; return when the router sees it, seconds.

        Each worker takes an equal part after its earlier work. When the last one is done, the embeddings are sent.
        """
        pool = self.specs.encoder_pool
        assert pool is not None
        given = self.encoders.give(float(pool.seconds[request.index]), int(pool.num_parts[request.index]))
        self.encoder_wait[request.index] = given[0][0] - self.clock.now
        self.encoder_parts[request.index] = len(given)
        return max(end for _, end in given) + float(pool.transfer_seconds[request.index])

    def perform(self, task: list[Request], last: Reply, *, thinks: bool) -> Steps:
        """Make the calls of a task, each when all its parents are answered and its tool has run; return when all are.

        Args:
            task: The calls, parents before children.
            last: The client's last reply, or when it begins.
            thinks: Whether the client thinks before the task.
        """
        graph = self.specs.dependencies
        assert graph is not None
        made: dict[int, simpy.Process] = {}
        if self.specs.time_limit is not None:
            begins_at = min(
                self.begins_at(call, last, thinks=thinks) for call in task if not graph.num_parents[call.index]
            )
            for call in task:
                call.deadline = begins_at + float(self.specs.time_limit[call.index])
        for call in task:
            parents = graph.parents[graph.offsets[call.index] : graph.offsets[call.index + 1]].tolist()
            awaited = [made[parent] for parent in parents]
            made[call.index] = self.clock.process(self.call(call, awaited, last, thinks=thinks))
        replies = yield self.clock.all_of(list(made.values()))
        return latest(replies.values())

    def begins_at(self, request: Request, last: Reply, *, thinks: bool) -> float:
        """Return when a call without parents is sent, seconds."""
        arrival_time = float(self.specs.arrival_time[request.index])
        if not thinks:
            return arrival_time if math.isfinite(arrival_time) else last.heard_at
        sent = last.heard_at + float(self.specs.think_time[request.index])
        return arrival_time if arrival_time > sent else sent

    def call(self, request: Request, parents: list[simpy.Process], last: Reply, *, thinks: bool) -> Steps:
        """Make one call of a task when its parents are answered (a SimPy process); return its last `Reply`."""
        if parents:
            replies = yield self.clock.all_of(parents)
            last, thinks = latest(replies.values()), True
        elif not thinks and math.isfinite(self.specs.arrival_time[request.index]):
            last = Reply(float(self.specs.arrival_time[request.index]), 0.0)
        return (yield self.clock.process(self.live(request, self.sent_on(request, last, thinks=thinks))))

    def live(self, request: Request, sent: float) -> Steps:
        """Send a request, with retries, until it is answered or given up; return the last `Reply`."""
        while True:
            yield self.clock.at(sent, IS_SENT, request.index)
            if request.sent >= request.deadline:
                return self.leave_out(request)
            one_by_one = self.spacing > 0 and self.specs.own_wait is None
            request.ready = (yield from self.parsed(request)) if one_by_one else self.tokenize(request)
            yield self.clock.at(request.ready, ARRIVES, next(self.clock.coming))
            if self.needs_encoding(request):
                request.ready = self.encode(request)
                yield self.clock.at(request.ready, ARRIVES, next(self.clock.coming))
            if request.status == "failed":
                self.cluster.count_end(request)
                return Reply(self.cluster.heard_at(request, self.clock.now), 0.0)
            request.answer = self.clock.event()
            self.start_patience(request)
            self.cluster.gateway.receive(request)
            reply = yield request.answer
            if self.is_last(request):
                return reply
            pause = self.pause(request, reply)
            self.tries.append((request.ready, request.scheduled, reply.heard_at))
            self.num_resent += 1
            request.forget()
            request.attempt += 1
            sent = self.send(request, reply.heard_at + pause, reply)

    def leave_out(self, request: Request) -> Reply:
        """End a call, or a retry of one, that is not sent any more because its task is given up."""
        request.status, request.reason = "timed_out", "task_cancelled"
        if request.attempt:
            request.finish = self.clock.now
        else:
            request.arrival = math.nan
        self.cluster.gateway.note_end(request, self.clock.now)
        self.cluster.count_end(request)
        return Reply(self.clock.now, 0.0)

    def is_last(self, request: Request) -> bool:
        """Whether this attempt is the last: the request is answered, or the client does not try again."""
        retries = self.class_of(request).retries if self.specs.request_class is not None else None
        if request.reason == "task_cancelled":
            return True
        return request.status == "completed" or retries is None or request.attempt >= retries.max

    def class_of(self, request: Request) -> ClassSpec:
        """Return the class of a request."""
        return self.specs.classes[request.kind]

    def start_patience(self, request: Request) -> None:
        """Start the client's time limit, from the sending of this attempt."""
        own = self.class_of(request).timeout if self.specs.request_class is not None else None
        streaming = self.cluster.control.streaming
        whole, first = (None, None) if streaming is None else streaming.timeouts
        timeout = min((each for each in (own, whole) if each is not None), default=None)
        if first is not None:
            due = max(request.sent + first, self.clock.now)
            self.clock.process(self.lose_patience(request, due, IS_DUE))
        if request.deadline < math.inf:
            self.clock.process(self.lose_patience(request, max(request.deadline, self.clock.now)))
        if timeout is not None:
            self.clock.process(self.lose_patience(request, max(request.sent + timeout, self.clock.now)))

    def lose_patience(self, request: Request, time: float, kind: int = TIMES_OUT) -> Steps:
        """Hang up at ``time`` if the attempt has not been answered by then (a SimPy process).

        Args:
            request: The client's request.
            time: When the client hangs up.
            kind: `IS_DUE`: the first token counts as an answer.
        """
        attempt = request.attempt
        yield self.clock.at(time, kind, request.index)
        if kind == IS_DUE and request.first_token <= time:
            return
        if request.status == "unfinished" and request.attempt == attempt:
            self.cluster.hang_up(request)

    def pause(self, request: Request, reply: Reply) -> float:
        """Return the seconds before the next attempt: exponential back-off with a cap and jitter."""
        retries = self.class_of(request).retries
        assert retries is not None
        pause = retries.backoff
        for _ in range(min(request.attempt, MOST_DOUBLINGS)):
            pause *= 2.0
        pause = min(pause, retries.max_backoff) * (1.0 - retries.jitter * self.chance.next())
        return max(pause, reply.retry_after) if retries.honor_retry_after else pause
