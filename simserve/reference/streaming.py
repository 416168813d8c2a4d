"""Streaming: how answers reach their clients as events, through the API server of a replica and a network.

Nothing on this path slows an engine down. Only clients that wait for an answer send their next request later, and
their waits come from a fluid model (`Delivery`): at any instant a server has some seconds of work left. What each
client measures is computed event by event when the run is over (`send`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from simserve.reference.request import ONE_TOKEN, Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simserve.reference.steps import Step
    from simserve.sim.control import StreamingSpec


@dataclass
class ApiServer:
    """Fluid model of a replica's API server: seconds of work ``unsent`` at ``seen_at``, ``added`` by the last step."""

    unsent: float = 0.0
    seen_at: float = 0.0
    added: float = 0.0


class Delivery:
    """When clients that wait for answers hear of them."""

    def __init__(self, spec: StreamingSpec) -> None:
        self.spec, self.cost = spec, spec.cost_per_event / spec.api_servers
        self.servers: dict[int, ApiServer] = defaultdict(ApiServer)

    def note_step(self, replica: int, step: Step, now: float) -> None:
        """Give a replica's server the tokens of a step that ends ``now``; it sends until and during that step."""
        server = self.servers[replica]
        cost_per_token = self.cost / (self.spec.stream_interval or self.spec.buffer_tokens) if self.spec.stream else 0.0
        server.added = cost_per_token * sum(len(part.decoding) for part in step.parts or [step])
        left = max(0.0, server.unsent - max(0.0, step.start - server.seen_at))
        server.unsent, server.seen_at = max(0.0, left + server.added - (now - step.start)), now

    def seconds_to_client(self, request: Request) -> float:
        """Return how long after its end at the server a client hears of its request; 0 for one that has hung up.

        Half of the events of the last step are sent before its own. Whole answers queue behind each other.
        """
        if request.status == "timed_out":
            return 0.0
        if request.status != "completed" or request.replica < 0:
            return self.spec.network_latency
        server = self.servers[request.replica]
        waiting = server.unsent + 0.5 * server.added
        if not self.spec.stream:
            server.unsent += self.cost
        return self.spec.network_latency + waiting + self.cost


class Event(NamedTuple):
    """Tokens of an answer that are sent together: when they are ready, and which token is the last."""

    time: float
    token: int


@dataclass
class Sent:
    """An answer as it left its server: ``times`` of its events, ``answer_time`` of that with its first visible token.

    ``delay`` is the total seconds that they waited for the server.
    """

    times: list[float]
    answer_time: float
    delay: float

    @property
    def gaps(self) -> list[float]:
        """Return the seconds between its events."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


def events_of(request: Request, spec: StreamingSpec) -> list[Event]:
    """Return the events of a completed answer: one per ``buffer_tokens``, or one for the first token and one per
    ``stream_interval`` after it; and only the last one of each step."""
    if not spec.stream:
        return [Event(request.finish, request.generated)]
    last, size = request.generated, spec.stream_interval or spec.buffer_tokens
    first = size if spec.stream_interval is None else 1
    by_step = {step_of(token, request): token for token in [*range(first, last, size), last]}
    return [Event(time_of(token, request), token) for token in by_step.values()]


def step_of(token: int, request: Request) -> int:
    """Return the step in which a request gets a token, 0 for the first; with drafts a decode step brings several."""
    if request.first_decodes:
        return math.ceil(ONE_TOKEN * token / request.pace) - 1
    return math.ceil(ONE_TOKEN * (token - 1) / request.pace)


def time_of(token: int, request: Request) -> float:
    """Return when a token of an answer was generated.

    For a preempted request only the first and the last are known; the others count as spread evenly between them.
    """
    first, last = request.first_token, request.finish
    if token == request.generated:
        return last
    if token == 1:
        return first
    if request.num_preemptions:
        return first + (last - first) * (token - 1) / (request.generated - 1)
    return request.token_times[step_of(token, request)]


def send(requests: Iterable[Request], spec: StreamingSpec) -> dict[Request, Sent]:
    """Send the answers of one replica through its API server, which handles one event after another.

    At one instant, events of the first rank go first, and within a rank those of the request with the lowest index.

    Args:
        requests: Requests that the replica has completed.
        spec: How tokens are sent.

    Returns:
        Each answer as it left the server, before it crosses the network.
    """
    events = {request: events_of(request, spec) for request in requests}
    queue = sorted(
        (event.time, request.rank, request.index, number, request)
        for request, own in events.items()
        for number, event in enumerate(own)
    )
    cost, free_at = spec.cost_per_event / spec.api_servers, -math.inf
    sent = {request: Sent([], math.nan, 0.0) for request in events}
    for time, _, _, number, request in queue:
        free_at = max(free_at, time) + cost
        answer, event = sent[request], events[request][number]
        answer.times.append(free_at)
        answer.delay += free_at - time - cost
        if math.isnan(answer.answer_time) and event.token > request.thinking_tokens:
            answer.answer_time = free_at
    return sent


def is_sent_by(request: Request, replica: int) -> bool:
    """Whether an answer goes through the API server of a replica: not one from the API, nor one that never came."""
    return request.status == "completed" and request.replica == replica


def busy_share(sent: Sequence[Sent], spec: StreamingSpec, end_time: float) -> float:
    """Return the share of a run, which ends at ``end_time`` or with the last event, in which a server is busy."""
    until = max([end_time, *(each.times[-1] for each in sent)])
    busy = spec.cost_per_event / spec.api_servers * sum(len(each.times) for each in sent)
    return busy / until if until > 0 else 0.0
