"""What stands in front of the replicas: a response cache, an API beside them, fair turns, second answers.

A fleet with any of these is a `FrontedFleet`; one without has none of this code in its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

from simserve.engine.callers import ANSWER, TURN
from simserve.engine.delivery import note_leap
from simserve.engine.state import COMPLETED, FAILED
from simserve.sim.delivery import make_room
from simserve.sim.disaggregation import DisaggregatedFleet
from simserve.sim.fairness import FairQueue
from simserve.sim.fleet import ELSEWHERE, NOWHERE, Fleet
from simserve.sim.overflow import Overflow
from simserve.sim.records import API, API_LIMIT, CACHE, REJECTED, REPLICA
from simserve.sim.response_cache import ResponseCache
from simserve.sim.rules import NEVER, Rules
from simserve.sim.schedulers import as_one, each_of, strike
from simserve.sim.units import READY, Unit

_NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontTotals:
    """What the front of a fleet did, over the whole run.

    Attributes:
        first_questions: Requests that asked a question of the response cache first; None: there is no cache.
        expired: Requests that found their answer too old.
        limited: Times that the API answered 429.
        asked_again: Requests whose first answer did not do; None: no rule asks twice.
        discarded_tokens: Tokens of those first answers.
        service: By class under fair turns: prompt tokens plus twice the generated ones; empty without them.
    """

    first_questions: int | None = None
    expired: int = 0
    limited: int = 0
    asked_again: int | None = None
    discarded_tokens: int = 0
    service: Mapping[str, float] = field(default_factory=dict)


class FrontedFleet(Fleet):
    """A fleet with something in front of its replicas.

    Attributes:
        cache: Answers given again; None: none are.
        overflow: The API; None: there is none.
        fair: The queue in front of the replicas, which is then also what is `parked`; None: they have their own.
        rules: Which requests are asked twice; None: none.
        served_by: Of each request, who answers it, an index into `simserve.sim.records.SERVERS`.
    """

    cache: ResponseCache | None = None
    overflow: Overflow | None = None
    fair: FairQueue | None = None
    rules: Rules | None = None
    served_by: bytearray
    num_asked_again = 0
    num_discarded_tokens = 0

    def build_front(
        self,
        *,
        cache: ResponseCache | None,
        overflow: Overflow | None,
        fair: FairQueue | None,
        max_outstanding: int | None,
        rules: Rules | None,
    ) -> None:
        """Put up what stands in front; the router, the callers and the gate are there.

        Args:
            cache: See the class.
            overflow: Likewise.
            fair: Likewise.
            max_outstanding: With ``fair``: unanswered requests of a replica; None: its seats.
            rules: Likewise.
        """
        self.cache, self.overflow, self.fair, self.rules = cache, overflow, fair, rules
        self.served_by = bytearray(len(self.requests.ready_time))
        self._asked_again = bytearray(len(self.requests.ready_time))
        if cache is not None or fair is not None:
            self.callers.on_end.append(self._note_end)
        if fair is not None:
            self.parked = fair  # type: ignore[assignment]
            if self.gate is not None:
                self.gate.parked_before, self.gate.seconds_before = fair.waiting_of, fair.seconds_before
            self.router.has_room = lambda unit: (
                unit.load < (unit.replica.max_num_seqs if max_outstanding is None else max_outstanding)
            )

    def totals(self, class_names: tuple[str, ...]) -> FrontTotals:
        """Return what the front did; after the run."""
        service = [] if self.fair is None else self.fair.service
        return FrontTotals(
            first_questions=None if self.cache is None else self.cache.num_first,
            expired=0 if self.cache is None else self.cache.num_expired,
            limited=0 if self.overflow is None else self.overflow.num_limited,
            asked_again=None if self.rules is None or not self.rules.asks_twice else self.num_asked_again,
            discarded_tokens=self.num_discarded_tokens,
            service=dict(zip(class_names, service, strict=False)),
        )

    # Elsewhere: the cache and the API.

    def _arrive(self, index: int, now: float) -> None:
        cache = self.cache
        if cache is not None and self.requests.status[index] != FAILED and cache.answers(index, now):
            self.callers.wait_for(index, now)
            self._answer_elsewhere(index, cache.serve(index, now), CACHE)
            return
        super()._arrive(index, now)

    def _diverts(self, index: int, unit: Unit | None, now: float) -> bool:
        api = self.overflow
        if api is None:
            return False
        is_ruled = self.rules is not None and self.rules.goes_to_api(index)
        if not is_ruled and not api.takes(index, unit, len(self.parked), now):
            return False
        wait = api.wait(index, now)
        if wait > 0.0:
            api.num_limited += 1
            if api.when_limited == "stay" and not is_ruled:
                return False
            if api.when_limited == "refuse":
                self.refusals[API_LIMIT] += 1
                self.callers.without_answer(index, now, REJECTED, API_LIMIT, free_at=now, retry_after=wait)
                return True
        self._answer_elsewhere(index, api.serve(index, now + wait), API)
        return True

    def _answer_elsewhere(self, index: int, answered_at: float, server: int) -> None:
        self.served_by[index] = server
        self._place[index] = ELSEWHERE
        heappush(self._events, (answered_at, ANSWER, index, self.callers.attempt(index)))

    def _hang_up(self, index: int, now: float) -> None:
        if self._place[index] == ELSEWHERE:
            self._cut(index, now)
        super()._hang_up(index, now)
        self._offer_turn(now)

    def _cut(self, index: int, now: float) -> None:
        """Leave of an answer from elsewhere what has come by ``now``."""
        requests = self.requests
        first, last = requests.first_token_time[index], requests.finish_time[index]
        tokens = requests.generated_tokens[index]
        if not now >= first:
            requests.first_token_time[index] = float("nan")
            requests.generated_tokens[index] = 0
            requests.itl_max[index] = -1.0
        elif last > first:
            requests.generated_tokens[index] = 1 + int((now - first) / (last - first) * (tokens - 1))

    def _note_end(self, index: int, now: float) -> None:
        if self.cache is not None and self.requests.status[index] == COMPLETED and self.served_by[index] != CACHE:
            self.cache.keep(index, now)
        if self.fair is not None and self.served_by[index] == REPLICA:
            self.fair.charge_answer(index)

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
        self.served_by[index] = REPLICA
        if self.fair is None:
            super()._hand_to(index, number, now)
            return
        self.fair.begin_wait(index, now)
        # Whoever waits already may be before it.
        super()._hand_to(index, number if not len(self.fair) else _NOBODY, now)
        if self._place[index] >= 0:
            self.fair.charge_prompt(index)
        elif number >= 0:
            self._release(now)

    def complete(self, unit: Unit, now: float) -> None:
        """End the step of a replica, and offer the room that it leaves."""
        delivery = self.callers.delivery
        if delivery is not None:
            make_room(delivery, unit.number)
            num_decodes = sum(each.num_scheduled_decodes for each in each_of(unit.replica))
            note_leap(delivery, unit.number, as_one(unit.replica), num_decodes, now)
        super().complete(unit, now)
        if unit.state == READY:
            self._offer_turn(now)

    def _offer_turn(self, now: float) -> None:
        """Let those that wait be routed after everything else of this instant, if there is room for them."""
        if self.fair is not None and len(self.fair):
            heappush(self._events, (now, TURN, _NOBODY, 0))

    def _release(self, now: float) -> None:
        """Give what waits to replicas with room, in fair order."""
        fair = self.fair
        assert fair is not None
        found = True
        while found and len(fair):
            found = False
            for index in fair.in_turn():
                number = self.router.choose(index, now)
                if number >= 0:
                    fair.take_turn(index, now)
                    self._place[index] = NOWHERE
                    super()._hand_to(index, number, now)
                    fair.charge_prompt(index)
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
        if self.rules is None or self._asked_again[index] or self.rules.second[index] == NEVER:
            return False
        strike(unit.replica, index)
        self._asked_again[index] = 1
        self.num_asked_again += 1
        self.num_discarded_tokens += self.requests.generated_tokens[index]
        for pool in self.pools:
            if pool.paths is not None:
                pool.paths.cached_tokens[index] = 0
        if self.fair is not None:
            self.fair.charge_answer(index)
        self.rules.kinds[index] = self.rules.second[index]
        self.router.redirect(index, int(self.rules.second[index]))
        self.callers.again(index, now)
        # Between two replicas: at this instant other steps may still have to end.
        self._place[index] = ELSEWHERE
        heappush(self._events, (now, TURN, index, self.callers.attempt(index)))
        return True


class FrontedDisaggregatedFleet(FrontedFleet, DisaggregatedFleet):
    """Prefill and decode replicas with something in front of them."""
