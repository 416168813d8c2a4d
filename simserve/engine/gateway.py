"""Gateway: what is in front of the replicas: a response cache, rules, an API beside them, fair turns.

These are the state and the decisions of each; the path of a request is in `simserve.engine.entrance`. Everything random
has been drawn before.
"""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from math import nan

from simserve.engine.admission_control import Bucket, end_pause, holds, note_finishes, take, wait
from simserve.engine.slots import slotted
from simserve.engine.state import COMPLETED, INFINITY, Finishes, RequestTable, Uniforms, take_uniform

REPLICA, API, CACHE = range(3)
"""Who answers a request, as in `simserve.sim.records.SERVERS`."""
NEVER = -1
"""In place of the second kind of a request: it is asked only once."""
ALONE = -1
"""Question number of a request whose question no other request asks."""
NOT_MADE = -1.0
"""Time of an answer that has not been made."""
STAY, WAIT, REFUSE = range(3)
"""What follows when the API answers 429."""
DEPENDS, ALWAYS, EXCEPTED = range(3)
"""Whether a class goes to the API."""
NO_LIMIT = -1
NOBODY = -1
_OUTPUT_WEIGHT = 2.0


@slotted
class ResponseCache:
    """Answers that are returned again.

    Attributes:
        question: For each request a number shared by all that ask the same; `ALONE`: no other asks it. Shape [N].
        made_at: For each question, when a model last answered it, seconds; `NOT_MADE`: not yet.
        is_filled: Whether all answers are there from the start, and never expire.
        expiry: Seconds for which an answer is valid; inf: for ever.
        latency: Seconds until it reaches the client.
        num_first: Requests whose question no model had answered yet, so that one had to: several of one question
            where they come before its first answer.
        num_expired: Requests whose answer was cached but too old.
    """

    def __init__(
        self, question: Sequence[int], made_at: MutableSequence[float], is_filled: bool, expiry: float, latency: float
    ) -> None:
        self.question, self.made_at = question, made_at
        self.is_filled, self.expiry, self.latency = is_filled, expiry, latency
        self.num_first = self.num_expired = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Api:
    """An API beside the replicas.

    Attributes:
        max_queue: Waiting requests of a replica from which on the API answers; `NO_LIMIT`: no queue limit.
        above: Rate that the replicas serve, the rest being the API's; None: no rate limit.
        class_rule: For each class: `DEPENDS`, `ALWAYS` or `EXCEPTED`.
        kinds: Class of each request.
        calls: Its limit on requests; None: it has none.
        tokens: Likewise on tokens.
        when_limited: `STAY`, `WAIT` or `REFUSE`.
        ttft: Mean seconds to the first token.
        tokens_per_second: Mean rate of one answer after that.
        ttft_factors: Time to the first token as a multiple of the mean, answer by answer.
        gap_factors: Likewise for the time between two tokens.
        num_limited: How often it answered 429.
    """

    max_queue: int
    above: Bucket | None
    class_rule: Sequence[int]
    kinds: Sequence[int]
    calls: Bucket | None
    tokens: Bucket | None
    when_limited: int
    ttft: float
    tokens_per_second: float
    ttft_factors: Uniforms
    gap_factors: Uniforms
    num_limited: int = 0


@slotted
class FairTurns:
    """Requests that wait in front of the replicas, in one queue per class, and whose turn it is.

    The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with its weights
    of 1 per prompt token and 2 per generated token. Prompts are charged when a request leaves the queue, answers when
    they end: before that their length is not known in front of the replicas.

    Args:
        kinds: Class of each request.
        shares: Share of each class.
        max_outstanding: Unanswered requests that a replica may have; `NO_LIMIT`: as many as it has seats.

    Attributes:
        first: For each class, the request that has waited longest; `NOBODY`: none waits.
        last: Likewise the one that came last.
        behind: For each waiting request, the next one of its class.
        before: Likewise the previous one.
        num_waiting: Waiting requests of each class.
        num_parked: Waiting requests of all classes.
        counters: Service that each class has had, divided by its share.
        service: Service that each class has had: prompt tokens plus twice the generated ones.
        last_emptied: The counter of the class whose queue emptied last.
        paces: How fast the turns of each class come.
        tried: Classes whose first request found no replica in the current turn.
    """

    def __init__(self, kinds: Sequence[int], shares: list[float], max_outstanding: int) -> None:
        count = len(shares)
        self.kinds, self.shares, self.max_outstanding = kinds, shares, max_outstanding
        self.first, self.last = [NOBODY] * count, [NOBODY] * count
        self.behind, self.before = (array("q", [NOBODY]) * len(kinds) for _ in range(2))
        self.num_waiting = [0] * count
        self.num_parked = 0
        self.counters, self.service = [0.0] * count, [0.0] * count
        self.last_emptied = 0.0
        self.paces = [Finishes(0.0) for _ in range(count)]
        self.tried: list[int] = [0] * count


@slotted
class Gateway:
    """What is in front of the replicas of a plane; each part may be absent.

    Args:
            num_requests: Requests of the run.
            second: For each request the kind that it becomes if its first answer is not good enough; `NEVER`: it is.

        Attributes:
            is_ruled: For each kind of request, whether a rule sends it to the API.
            served_by: For each request, what answers it.
            asked_again: 1 if the first answer was not good enough.
            num_asked_again: How many those are.
            discarded_tokens: Tokens of those answers.
    """

    def __init__(
        self,
        num_requests: int,
        cache: ResponseCache | None,
        api: Api | None,
        fair: FairTurns | None,
        is_ruled: list[int],
        second: Sequence[int],
    ) -> None:
        self.cache, self.api, self.fair = cache, api, fair
        self.is_ruled, self.second = is_ruled, second
        self.served_by = array("b", [REPLICA]) * num_requests
        self.asked_again = array("b", [0]) * num_requests
        self.num_asked_again = self.discarded_tokens = 0


# The response cache.


def is_answered(cache: ResponseCache, index: int, now: float) -> bool:
    """Return whether a request that arrives ``now`` is answered by the cache."""
    question = cache.question[index]
    if question == ALONE:
        return False
    if cache.is_filled:
        return True
    made_at = cache.made_at[question]
    if made_at < 0.0:
        cache.num_first += 1
        return False
    if now - made_at > cache.expiry:
        cache.num_expired += 1
        return False
    return True


def answer_again(cache: ResponseCache, requests: RequestTable, index: int, now: float) -> float:
    """Answer a request from the cache, in one piece; return when."""
    answered_at = now + cache.latency
    requests.scheduled_time[index] = now
    requests.first_token_time[index] = requests.finish_time[index] = answered_at
    requests.generated_tokens[index] = requests.output_tokens[index]
    return answered_at


# The API.


def is_taken(api: Api, index: int, load: int, num_running: int, num_parked: int, now: float) -> bool:
    """Return whether a request goes to the API instead of a replica's queue.

    Requests within the rate that the replicas serve are counted here.

    Args:
        api: The API.
        index: The request.
        load: Requests of the replica that the router has chosen; an idle one takes a request at once, so it has no
            queue. Negative: no replica is ready.
        num_running: Those of them that run.
        num_parked: Requests that wait in front of all replicas.
        now: Seconds.
    """
    rule, above = api.class_rule[api.kinds[index]], api.above
    if rule == ALWAYS:
        return True
    if above is not None:
        is_within = holds(above, 1.0, now)
        if is_within:
            take(above, 1.0)
        elif rule == DEPENDS:
            return True
    if rule == EXCEPTED or api.max_queue == NO_LIMIT:
        return False
    if load < 0:
        return num_parked >= api.max_queue
    return load > 0 and load - num_running >= api.max_queue


def seconds_to_wait(api: Api, requests: RequestTable, index: int, now: float) -> float:
    """Return the seconds until the API's limits let a request in; 0: at once."""
    seconds = 0.0
    if api.calls is not None:
        seconds = max(seconds, wait(api.calls, 1.0, now))
    if api.tokens is not None:
        seconds = max(seconds, wait(api.tokens, asked_tokens(requests, index), now))
    return seconds


def answer_by_api(api: Api, requests: RequestTable, index: int, now: float) -> float:
    """Let the API answer a request that it accepts at ``now``; return when its last token is there."""
    if api.calls is not None:
        take(api.calls, 1.0)
    if api.tokens is not None:
        take(api.tokens, asked_tokens(requests, index))
    gap = take_uniform(api.gap_factors) / api.tokens_per_second
    ttft = api.ttft * take_uniform(api.ttft_factors)
    tokens = requests.output_tokens[index]
    finish = now + ttft + (tokens - 1) * gap
    requests.scheduled_time[index] = now
    requests.first_token_time[index] = now + ttft
    requests.finish_time[index] = finish
    requests.generated_tokens[index] = tokens
    if tokens > 1:
        requests.itl_max[index] = gap
    return finish


def asked_tokens(requests: RequestTable, index: int) -> float:
    """Return the tokens that a request counts for under a limit on them: its prompt and the most it may generate."""
    return float(requests.prompt_tokens[index] + requests.max_tokens[index])


def cut(gateway: Gateway, requests: RequestTable, index: int, now: float) -> None:
    """Keep of an answer from elsewhere what has come by ``now``; of the cache's, which comes in one piece, nothing."""
    first, last = requests.first_token_time[index], requests.finish_time[index]
    tokens = requests.generated_tokens[index]
    if gateway.served_by[index] == CACHE or not now >= first:
        requests.first_token_time[index] = nan
        requests.generated_tokens[index] = 0
        requests.itl_max[index] = -1.0
    elif last > first:
        requests.generated_tokens[index] = 1 + int((now - first) / (last - first) * (tokens - 1))


# Fair turns.


def line_up(fair: FairTurns, index: int) -> None:
    """Let a request wait after those of its class; a class that was away starts level with those that wait."""
    own = fair.kinds[index]
    if not fair.num_waiting[own]:
        # Turns are not saved up.
        level = INFINITY
        for other in range(len(fair.counters)):
            if fair.num_waiting[other]:
                level = min(level, fair.counters[other])
        fair.counters[own] = max(fair.counters[own], fair.last_emptied if level == INFINITY else level)
        fair.first[own] = index
    else:
        fair.behind[fair.last[own]] = index
    fair.before[index] = fair.last[own]
    fair.behind[index] = NOBODY
    fair.last[own] = index
    fair.num_waiting[own] += 1
    fair.num_parked += 1


def step_out(fair: FairTurns, index: int) -> None:
    """Take a request out of its queue, wherever it is."""
    own = fair.kinds[index]
    before, behind = fair.before[index], fair.behind[index]
    if before == NOBODY:
        fair.first[own] = behind
    else:
        fair.behind[before] = behind
    if behind == NOBODY:
        fair.last[own] = before
    else:
        fair.before[behind] = before
    fair.num_waiting[own] -= 1
    fair.num_parked -= 1
    if not fair.num_waiting[own]:
        fair.last_emptied = fair.counters[own]


def take_turn(fair: FairTurns, index: int, now: float) -> None:
    """Let a request go when it is its turn."""
    step_out(fair, index)
    note_finishes(fair.paces[fair.kinds[index]], 1, 0, now)


def begin_wait(fair: FairTurns, index: int, now: float) -> None:
    """Record that the class of a request begins to wait, if none of its requests does."""
    own = fair.kinds[index]
    if not fair.num_waiting[own]:
        end_pause(fair.paces[own], now)


def seconds_before(fair: FairTurns, index: int) -> float:
    """Return how long a request would wait: after those of its class, at the pace at which their turns come."""
    own = fair.kinds[index]
    return fair.num_waiting[own] * fair.paces[own].interval


def next_class(fair: FairTurns) -> int:
    """Return the class whose turn it is, among those that wait and were not tried; `NOBODY`: there is none."""
    least = NOBODY
    for own in range(len(fair.counters)):
        if not fair.num_waiting[own] or fair.tried[own]:
            continue
        if least == NOBODY or fair.counters[own] < fair.counters[least]:
            least = own
    return least


def charge_prompt(fair: FairTurns, requests: RequestTable, index: int) -> None:
    """Count a prompt that goes to a replica."""
    _charge(fair, index, float(requests.prompt_tokens[index]))


def charge_answer(fair: FairTurns, requests: RequestTable, index: int) -> None:
    """Count what was generated for a request that has ended."""
    _charge(fair, index, _OUTPUT_WEIGHT * requests.generated_tokens[index])


def _charge(fair: FairTurns, index: int, tokens: float) -> None:
    own = fair.kinds[index]
    fair.service[own] += tokens
    fair.counters[own] += tokens / fair.shares[own]


def note_end(gateway: Gateway, requests: RequestTable, index: int, now: float) -> None:
    """Keep the answer that a model has given, and count what its class has received."""
    server, cache, fair = gateway.served_by[index], gateway.cache, gateway.fair
    if cache is not None and server != CACHE and requests.status[index] == COMPLETED:
        question = cache.question[index]
        if question != ALONE and not cache.is_filled:
            cache.made_at[question] = now
    if fair is not None and server == REPLICA:
        charge_answer(fair, requests, index)
