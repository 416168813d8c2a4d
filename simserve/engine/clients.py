"""Clients: what they send and through which tokeniser, how long they wait, and what they do when they get no answer.

What happens to them at a time of its own is an event in one heap. They know no replica and no router.

One tokeniser serves all requests in the order in which they are sent: no request overtakes a long prompt.

Delivery: when a client has received the answer it waits for, so that it sends the next request no sooner.

Only for clients that wait for answers. The API server of a replica is a fluid queue here: tokens of a leap come evenly;
those of the last step come together, and half of them are ahead of a client's own. What a client then measures is
counted event by event after the run (`simserve.sim.streaming`).
"""

from __future__ import annotations

from heapq import heappush
from math import nan

from simserve.engine.admission_control import TIMED_OUT
from simserve.engine.data_parallel import num_decodes_of, num_steps_of, start_time_of
from simserve.engine.plane_state import NOBODY, Clients, Delivery
from simserve.engine.state import COMPLETED, INFINITY, UNFINISHED, DataParallelReplica, RequestTable, take_uniform

SEND, ARRIVE, TIMEOUT, SUBMIT, LAND, ANSWER, TURN, FIRST_BYTE, PARSE = range(9)
"""Kinds of events, in the order in which they happen at one instant."""
_MOST_DOUBLINGS = 60


def wait_for(clients: Clients, index: int, now: float) -> None:
    """Start the client's time limits for the attempt that arrives ``now``."""
    patience = clients.patience
    if patience.first_byte_timeout < INFINITY:
        first = max(clients.sent_at[index] + patience.first_byte_timeout, now)
        heappush(clients.events, (first, FIRST_BYTE, index, clients.tries[index]))
    if patience.has_timeouts:
        timeout = patience.timeout[patience.kinds[index]]
        if timeout < INFINITY:
            heappush(clients.events, (max(clients.sent_at[index] + timeout, now), TIMEOUT, index, clients.tries[index]))


def wait_for_task(clients: Clients, index: int, deadline: float, now: float) -> None:
    """Let the client hang up the attempt that arrives ``now`` at the deadline of its task."""
    if deadline < INFINITY:
        heappush(clients.events, (max(deadline, now), TIMEOUT, index, clients.tries[index]))


def send(clients: Clients, index: int, sent_at: float, free_at: float) -> None:
    """Let the current attempt be sent at ``sent_at``; it waits until the server has released the previous one."""
    clients.sent_at[index] = sent_at
    heappush(clients.events, (max(sent_at, free_at), SEND, index, clients.tries[index]))


def tokenize(clients: Clients, requests: RequestTable, index: int, now: float) -> None:
    """Let a request sent ``now`` pass through the tokeniser, after all that were sent before it."""
    begin = max(clients.tokenized_at, came_at(clients, index), now)
    ready_time = begin + clients.spacing
    clients.tokenized_at = ready_time
    if clients.has_own_waits:
        ready_time += clients.own_wait[index]
        heappush(clients.events, (ready_time, ARRIVE, next_to_come(clients, index), index))
    else:
        line_up(clients, index)
        if clients.spacing > 0.0 and not clients.will_parse:
            clients.will_parse = True
            heappush(clients.events, (begin, PARSE, NOBODY, 0))
    requests.ready_time[index] = ready_time


def came_at(clients: Clients, index: int) -> float:
    """Return when a request reaches the API server, before the server's own work on it."""
    return clients.sent_at[index] + clients.latency[index] - clients.spacing


def parse_together(clients: Clients, requests: RequestTable, now: float) -> None:
    """Let the API server accept all that have come by ``now``, and hand them over when it is done with the last.

    It runs an event loop: the next part of a request's work comes after all requests that have come in the meantime.
    """
    index = last = clients.first
    following = clients.behind[last]
    while following != NOBODY and came_at(clients, following) <= now:
        last, following = following, clients.behind[following]
    done_at = requests.ready_time[last]
    while index != last:
        requests.ready_time[index] = done_at
        index = clients.behind[index]
    clients.will_parse = following != NOBODY
    if clients.will_parse:
        heappush(clients.events, (max(done_at, came_at(clients, following)), PARSE, NOBODY, 0))


def is_at_encoders(clients: Clients, requests: RequestTable, index: int, now: float) -> bool:
    """Return whether images of a request are encoded; it then comes back when their embeddings are at its replica."""
    if not clients.num_encoders or clients.to_encode[index] <= 0.0:
        return False
    encoders, num_open = clients.encoders, 0
    for number in range(clients.num_encoders):
        if encoders[number] < INFINITY:
            num_open += 1
    parts = min(clients.encoder_parts[index], num_open)
    clients.encoder_parts[index] = parts
    seconds, done_at = clients.to_encode[index] / parts, now
    for part in range(parts):
        first = 0
        for number in range(1, clients.num_encoders):
            if encoders[number] < encoders[first]:
                first = number
        start = max(encoders[first], now)
        if not part:
            clients.encoder_wait[index] = start - now
        if clients.notes_encoder_starts:
            clients.encoder_starts[clients.num_encoder_starts] = start
            clients.num_encoder_starts += 1
        clients.encoder_given[first] += seconds
        encoders[first] = start + seconds
        done_at = max(done_at, encoders[first])
    clients.to_encode[index] = 0.0
    requests.ready_time[index] = done_at + clients.embedding_seconds[index]
    heappush(clients.events, (requests.ready_time[index], ARRIVE, next_to_come(clients, index), index))
    return True


def line_up(clients: Clients, index: int) -> None:
    """Put a request after those that are on their way to the router."""
    clients.behind[index] = NOBODY
    if clients.first == NOBODY:
        clients.first = index
    else:
        clients.behind[clients.last] = index
    clients.last = index


def next_to_come(clients: Clients, index: int) -> int:
    """Return the place of a request in the order of arrival."""
    clients.num_come += 1
    clients.came[index] = clients.num_come
    return clients.num_come


def send_again(
    clients: Clients,
    requests: RequestTable,
    index: int,
    now: float,
    free_at: float,
    retry_after: float,
    latest: float,
) -> bool:
    """Let a client that knows ``now`` that an attempt failed send the request again; False: it gives up.

    Args:
        clients: The clients.
        requests: The table.
        index: The request.
        now: Seconds.
        free_at: When the row is free for another attempt: the server has released it.
        retry_after: Least seconds to wait, from a refusal.
        latest: When the client gives up the request's task; what it would send then or later ends then.
    """
    patience, tries = clients.patience, clients.tries[index]
    kind = patience.kinds[index]
    if tries >= patience.max_tries[kind]:
        return False
    abandon(clients, requests, index, now)
    clients.tries[index] = tries + 1
    clients.num_resent += 1
    pause = patience.backoff[kind]
    doublings = 0
    while doublings < tries and doublings < _MOST_DOUBLINGS and pause < patience.max_backoff[kind]:
        pause *= 2.0
        doublings += 1
    pause = min(pause, patience.max_backoff[kind])
    pause *= 1.0 - patience.jitter[kind] * take_uniform(patience.uniforms)
    if patience.honors[kind]:
        pause = max(pause, retry_after)
    send(clients, index, min(now + pause, latest), max(free_at, now))
    return True


def abandon(clients: Clients, requests: RequestTable, index: int, now: float) -> None:
    """Clear the results of an attempt that ends ``now``; its preemptions stay counted."""
    clients.abandoned.extend((requests.ready_time[index], requests.scheduled_time[index], now))
    requests.status[index] = UNFINISHED
    requests.reason[index] = 0
    requests.generated_tokens[index] = requests.computed_tokens[index] = 0
    requests.scheduled_time[index] = requests.first_token_time[index] = requests.finish_time[index] = nan
    requests.last_token_time[index] = nan
    requests.itl_max[index] = -1.0
    requests.swapped_tokens[index] = 0
    requests.replica_id[index] = -1


def note_leap(delivery: Delivery, number: int, replica: DataParallelReplica, now: float) -> None:
    """Send what a replica has generated in the leap that ends ``now``, before it is completed.

    Args:
        delivery: The API servers.
        number: Number of the replica.
        replica: The replica.
        now: Seconds.
    """
    num_steps = num_steps_of(replica)
    if not num_steps:
        return
    start = start_time_of(replica)
    idle = max(0.0, start - delivery.seen_at[number])
    backlog = max(0.0, delivery.backlog[number] - idle)
    delivery.batch[number] = delivery.cost_per_token * num_decodes_of(replica)
    work = delivery.batch[number] * num_steps
    delivery.backlog[number] = max(0.0, backlog + work - (now - start))
    delivery.seen_at[number] = now


def seconds_to_client(delivery: Delivery, requests: RequestTable, index: int) -> float:
    """Return how long after its end at the server a client learns of a request."""
    status = requests.status[index]
    if status == TIMED_OUT:
        return 0.0
    number = requests.replica_id[index]
    if status != COMPLETED or number < 0:
        return delivery.network_latency
    waiting = delivery.backlog[number] + 0.5 * delivery.batch[number]
    if not delivery.streams:
        # Whole answers queue one after the other.
        delivery.backlog[number] += delivery.cost
    return delivery.network_latency + waiting + delivery.cost
