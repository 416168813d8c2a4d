"""What stands in front of the replicas: a response cache, an API beside them, fair turns, second answers.

A fleet with any of these is a `FrontedFleet`; one without has none of this code in its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from simserve.engine.attendance import TO_ANSWER, TO_PACE
from simserve.engine.callers import ANSWER, TURN
from simserve.engine.data_parallel import num_running_at, num_seats_of, strike
from simserve.engine.delivery import note_leap
from simserve.engine.gateway import (
    NEVER,
    NO_LIMIT,
    REFUSE,
    STAY,
    FairTurns,
    Gateway,
    answer_again,
    answer_by_api,
    begin_wait,
    charge_answer,
    charge_prompt,
    cut,
    is_answered,
    is_taken,
    line_up,
    note_end,
    seconds_before,
    seconds_to_wait,
    step_out,
    take_turn,
)
from simserve.engine.state import FAILED
from simserve.sim.chance import Chance
from simserve.sim.delivery import make_room
from simserve.sim.disaggregation import DisaggregatedFleet
from simserve.sim.fleet import ELSEWHERE, NOWHERE, Fleet
from simserve.sim.records import API, API_LIMIT, CACHE, REJECTED, REPLICA
from simserve.sim.rules import Rules
from simserve.sim.units import READY, Unit

_NOBODY = -1


class FairQueue:
    """Requests that wait in front of the replicas in fair turns, as whoever parks them sees them."""

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._turns.num_parked

    def __iter__(self) -> Iterator[int]:
        """Go through those that wait, class by class."""
        turns = self._turns
        for index in turns.first:
            while index >= 0:
                yield index
                index = turns.behind[index]

    def append(self, index: int) -> None:
        """Let a request wait, behind those of its class."""
        line_up(self._turns, index)

    def remove(self, index: int) -> None:
        """Take a request out, wherever it stands."""
        step_out(self._turns, index)


def in_turn(turns: FairTurns) -> list[int]:
    """Return the first of each class that waits, whose turn it is first."""
    waiting = [own for own, index in enumerate(turns.first) if index >= 0]
    waiting.sort(key=lambda own: (turns.counters[own], own))
    return [turns.first[own] for own in waiting]


class FrontedFleet(Fleet):
    """A fleet with something in front of its replicas.

    Attributes:
        front: What that is.
        fair: Its queue, which is then also what is `parked`; None: who waits for a replica to be ready is in no turn.
        rules: Where requests go by rule, and which are asked twice; None: no rule says so.
    """

    front: Gateway
    fair: FairQueue | None = None
    rules: Rules | None = None

    def build_front(self, front: Gateway, rules: Rules | None, numbers: Mapping[int, Chance]) -> None:
        """Put up what stands in front; the router, the callers and the gate are there.

        Args:
            front: See the class.
            rules: Likewise.
            numbers: Where the random numbers of the API come from.
        """
        self.front, self.rules, self._numbers = front, rules, numbers
        if front.cache is not None or front.fair is not None:
            self.callers.on_end.append(lambda index, now: note_end(front, self.requests, index, now))
        fair = front.fair
        if fair is not None:
            self.fair = FairQueue(fair)
            self.parked = self.fair  # type: ignore[assignment]
            if self.gate is not None:
                self.gate.parked_before = lambda index: fair.num_waiting[fair.kinds[index]]
                self.gate.seconds_before = lambda index: seconds_before(fair, index)
            most = fair.max_outstanding
            self.router.has_room = lambda unit: unit.load < (num_seats_of(unit.replica) if most == NO_LIMIT else most)

    # Elsewhere: the cache and the API.

    def _arrive(self, index: int, now: float) -> None:
        cache, requests = self.front.cache, self.requests
        if cache is not None and requests.status[index] != FAILED and is_answered(cache, index, now):
            self.callers.wait_for(index, now)
            self._answer_elsewhere(index, answer_again(cache, requests, index, now), CACHE)
            return
        super()._arrive(index, now)

    def _diverts(self, index: int, unit: Unit | None, now: float) -> bool:
        api, requests = self.front.api, self.requests
        if api is None:
            return False
        is_ruled = self.rules is not None and self.rules.goes_to_api(index)
        load, num_running = (-1, 0) if unit is None else (unit.load, num_running_at(unit.replica))
        if not is_ruled and not is_taken(api, index, load, num_running, len(self.parked), now):
            return False
        wait = seconds_to_wait(api, requests, index, now)
        if wait > 0.0:
            api.num_limited += 1
            if api.when_limited == STAY and not is_ruled:
                return False
            if api.when_limited == REFUSE:
                self.refusals[API_LIMIT] += 1
                self.callers.without_answer(index, now, REJECTED, API_LIMIT, free_at=now, retry_after=wait)
                return True
        for taker in (TO_ANSWER, TO_PACE):
            self._numbers[taker].top_up(1)
        self._answer_elsewhere(index, answer_by_api(api, requests, index, now + wait), API)
        return True

    def _answer_elsewhere(self, index: int, answered_at: float, server: int) -> None:
        self.front.served_by[index] = server
        self._place[index] = ELSEWHERE
        heappush(self._events, (answered_at, ANSWER, index, self.callers.attempt(index)))

    def _hang_up(self, index: int, now: float) -> None:
        if self._place[index] == ELSEWHERE:
            cut(self.requests, index, now)
        super()._hang_up(index, now)
        self._offer_turn(now)

    # Fair turns.

    def ready(self, unit: Unit, now: float) -> None:
        """Let a replica take requests; under fair turns, those whose turn it is."""
        if self.fair is not None:
            self.parked = deque()
        super().ready(unit, now)
        if self.fair is not None:
            self.parked = self.fair  # type: ignore[assignment]
            self._offer_turn(now)

    def _hand_to(self, index: int, number: int, now: float) -> None:
        self.front.served_by[index] = REPLICA
        fair = self.front.fair
        if fair is None:
            super()._hand_to(index, number, now)
            return
        begin_wait(fair, index, now)
        # Whoever waits already may be before it.
        super()._hand_to(index, number if not fair.num_parked else _NOBODY, now)
        if self._place[index] >= 0:
            charge_prompt(fair, self.requests, index)
        elif number >= 0:
            self._release(now)

    def complete(self, unit: Unit, now: float) -> None:
        """End the step of a replica, and offer the room that it leaves."""
        delivery = self.callers.delivery
        if delivery is not None:
            make_room(delivery, unit.number)
            note_leap(delivery, unit.number, unit.replica, now)
        super().complete(unit, now)
        if unit.state == READY:
            self._offer_turn(now)

    def _offer_turn(self, now: float) -> None:
        """Let those that wait be routed after everything else of this instant, if there is room for them."""
        if self.fair is not None and len(self.fair):
            heappush(self._events, (now, TURN, _NOBODY, 0))

    def _release(self, now: float) -> None:
        """Give what waits to replicas with room, in fair order."""
        fair = self.front.fair
        assert fair is not None
        found = True
        while found and fair.num_parked:
            found = False
            for index in in_turn(fair):
                number = self.router.choose(index, now)
                if number >= 0:
                    take_turn(fair, index, now)
                    self._place[index] = NOWHERE
                    super()._hand_to(index, number, now)
                    charge_prompt(fair, self.requests, index)
                    found = True
                    break

    def _happen(self, now: float) -> None:
        if not self._events or self._events[0][:2] != (now, TURN):
            super()._happen(now)
            return
        _, _, index, attempt = heappop(self._events)
        if index == _NOBODY:
            self._release(now)
        elif self._place[index] == ELSEWHERE and self.callers.attempt(index) == attempt:
            self._place[index] = NOWHERE
            assert self.rules is not None
            if not self.rules.goes_to_api(index) or not self._diverts(index, None, now):
                self._route(index, now)

    # Second answers.

    def _goes_on(self, index: int, unit: Unit, now: float) -> bool:
        if super()._goes_on(index, unit, now):
            return True
        front = self.front
        if self.rules is None or front.asked_again[index] or self.rules.second[index] == NEVER:
            return False
        strike(unit.replica, index)
        front.asked_again[index] = 1
        front.num_asked_again += 1
        front.discarded_tokens += self.requests.generated_tokens[index]
        for pool in self.pools:
            if pool.paths is not None:
                pool.paths.cached_tokens[index] = 0
        if front.fair is not None:
            charge_answer(front.fair, self.requests, index)
        self.rules.kinds[index] = self.rules.second[index]
        self.router.redirect(index, int(self.rules.second[index]))
        self.callers.again(index, now)
        # Between two replicas: at this instant other steps may still have to end.
        self._place[index] = ELSEWHERE
        heappush(self._events, (now, TURN, index, self.callers.attempt(index)))
        return True


class FrontedDisaggregatedFleet(FrontedFleet, DisaggregatedFleet):
    """Prefill and decode replicas with something in front of them."""
