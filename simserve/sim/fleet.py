"""Fleet: the data plane of runs in which something stands in front of the replicas, or schedulers are of any kind.

Everything that happens at a time of its own (arrivals, time limits, transfers that land) is an event in one heap;
SimPy's side (autoscaler, faults, router ticks) calls in between two drives. What touches a replica inside a leap takes
effect at the end of the step that runs. At one instant steps end first, then events happen, then steps are planned.
Other runs take `simserve.sim.attended`, with the same result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from simserve.engine.callers import ANSWER, ARRIVE, FIRST_BYTE, LAND, SUBMIT, TIMEOUT, Event
from simserve.engine.data_parallel import (
    complete,
    num_running_at,
    num_steps_of,
    plan,
    seen_time,
    start_time_of,
    strike,
    submit,
)
from simserve.engine.door import end_pause, note_finishes
from simserve.engine.leaps import LEAP_BYTES
from simserve.engine.outcomes import ADMITTED, GAVE_UP, REJECTED, TIMED_OUT
from simserve.engine.slowing import use_times
from simserve.engine.state import COMPLETED, FAILED, INFINITY, UNFINISHED, RequestTable
from simserve.sim.callers import Callers
from simserve.sim.gate import Gate
from simserve.sim.lives import Lives
from simserve.sim.own_parts import Judge
from simserve.sim.recorder import FLUSH_ROWS
from simserve.sim.records import FAILED as LOST
from simserve.sim.records import REASONS
from simserve.sim.regions import Regions
from simserve.sim.routing import Router
from simserve.sim.schedulers import cancel, take_finished
from simserve.sim.units import DRAINING, Pool, Unit

EVENTS_BETWEEN_CHORES = 1024
NOWHERE = -1
_PARKED = -2
ELSEWHERE = -4


class Fleet(Lives):
    """Pools of replicas behind one router, advanced event by event.

    Args:
        pools: One or more, without replicas yet.
        requests: The table of all requests.
        events: What is still to happen, a heap that the callers fill too.
        on_progress: Called now and then with the number of requests that have ended.

    Attributes:
        refusals: How often each of `REASONS` was the answer at the door, tries that were repeated included.
        parked: Requests that wait for a replica to be ready.
        time: The last instant that was looked at, seconds.
        judge: Asks a user's own parts; None: there are none.
        way_back: With regions and streaming: seconds of each answer's way to its client, in no row then; else None.
    """

    router: Router
    callers: Callers
    gate: Gate | None = None
    judge: Judge | None = None
    regions: Regions | None = None
    way_back: list[float] | None = None

    def __init__(
        self,
        pools: list[Pool],
        requests: RequestTable,
        events: list[Event],
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(pools)
        self.requests = requests
        self.refusals = [0] * len(REASONS)
        self.parked: deque[int] = deque()
        self.num_lost_tokens = 0
        self.time = 0.0
        self._ends: list[float] = []
        self._events = events
        self._place = [NOWHERE] * len(requests.ready_time)
        self._held: set[int] = set()
        # When requests arrive that are on their way to another region.
        self._arrives_at: dict[int, float] = {}
        self._cursor = self._num_scheduled = 0
        self._on_progress = on_progress

    def _route_parked(self, now: float) -> None:
        # They have passed the door already, so they are not refused any more.
        parked, self.parked = self.parked, deque()
        for index in parked:
            self._place[index] = NOWHERE
            self._route(index, now)

    def _look_at(self, unit: Unit, time: float) -> None:
        self._ends[unit.number] = time

    def _new_unit(self, pool: Pool, now: float, place: int) -> Unit:
        self._ends.append(INFINITY)
        return Unit(len(self.units), pool, now, place)

    def _take_members(self, unit: Unit) -> list[int]:
        members, unit.members = list(unit.members), {}
        unit.load = unit.tokens = 0
        return members

    def _lose_request(self, index: int, unit: Unit, now: float) -> None:
        self._place[index] = NOWHERE
        self._held.discard(index)
        self._arrives_at.pop(index, None)
        if self._is_tried_again(index, unit):
            self.callers.again(index, now)
            self._route(index, now)
        else:
            self.callers.without_answer(index, now, LOST, unit.loss, free_at=now)

    def refresh(self, now: float) -> None:
        """Let the router look at the replicas."""
        self.router.refresh(now)

    def tell_ends(self, tell: Callable[[int], None]) -> None:
        """Call ``tell`` with every request that comes to its end."""
        self.callers.on_end.append(lambda index, _: tell(index))

    def num_parked(self, pool: Pool) -> int:
        """Return how many requests wait for a replica of a pool to be ready, whether or not others may serve them."""
        return sum(pool in self.router.allowed_pools(index) for index in self.parked)

    def schedule_all(self) -> None:
        """Open loop: every request of the table arrives at its ``ready_time`` (ascending)."""
        self._num_scheduled = len(self.requests.ready_time)

    @property
    def num_arrived(self) -> int:
        """Open loop: requests that have arrived so far."""
        return self._cursor

    @property
    def is_done(self) -> bool:
        """Whether every request has come to its end."""
        return self.callers.num_ended == self.callers.num_due

    def drive(self, until: float) -> None:
        """Advance to ``until`` (exclusive), to news for SimPy's side, or until nothing is left to do."""
        ends, units, requests = self._ends, self.units, self.requests
        countdown, next_moment = EVENTS_BETWEEN_CHORES, self._next_moment
        due: Sequence[int]
        has_own_seconds = self.judge is not None and self.judge.parts.step_seconds is not None
        while not self.news:
            end = min(ends, default=INFINITY)
            moment = next_moment()
            while moment < end:
                if moment >= until:
                    return
                self.time = moment
                self._happen(moment)
                if self.news:
                    return
                end = min(ends, default=INFINITY)
                moment = next_moment()
            if end >= until or end == INFINITY:
                return
            self.time = end
            due = (ends.index(end),) if ends.count(end) == 1 else [n for n, time in enumerate(ends) if time == end]
            for number in due:
                self.complete(units[number], end)
            while next_moment() == end:
                self._happen(end)
            for number in due:
                unit = units[number]
                replica = unit.replica
                if replica.end_time == end and not unit.is_frozen and self._may_step(unit, end):
                    plan(replica, requests)
                    if has_own_seconds:
                        self._take_own_seconds(unit)
                ends[number] = INFINITY if unit.is_frozen else replica.end_time
            countdown -= 1
            if not countdown:
                countdown = EVENTS_BETWEEN_CHORES
                self._do_chores()

    def flush(self) -> None:
        """Hand all leaps to the recorders of their pools."""
        for unit in self.units:
            unit.flush()

    def _do_chores(self) -> None:
        limit = FLUSH_ROWS * LEAP_BYTES
        for unit in self.units:
            if max(len(rank.leaps) for rank in unit.replica.ranks) >= limit:
                unit.flush()
        if self._on_progress is not None:
            self._on_progress(self.callers.num_ended)

    def _next_moment(self) -> float:
        moment = self._events[0][0] if self._events else INFINITY
        has_more = self._cursor < self._num_scheduled
        return min(moment, self.requests.ready_time[self._cursor]) if has_more else moment

    def _happen(self, now: float) -> None:
        """Let the next event happen: the next arrival, or what the heap holds."""
        if not self._events or self._events[0][0] != now:
            index = self._cursor
            self._cursor = index + 1
            self._arrive(index, now)
            return
        _, kind, index, about = heappop(self._events)
        if kind == ARRIVE:
            self._arrive(index, now)
        elif kind == SUBMIT:
            self._submit(index, about, now)
        elif kind == LAND:
            self._land(index, now)
        elif kind == ANSWER and self._place[index] == ELSEWHERE and self.callers.attempt(index) == about:
            self._place[index] = NOWHERE
            self.requests.status[index] = COMPLETED
            self.callers.ended(index, now)
        elif self.requests.status[index] != UNFINISHED or self.callers.attempt(index) != about:
            return
        elif kind == TIMEOUT or (kind == FIRST_BYTE and not self.requests.first_token_time[index] <= now):
            self._hang_up(index, now)

    def _arrive(self, index: int, now: float) -> None:
        if self.requests.status[index] == FAILED:
            self.callers.ended(index, now)
            return
        self.callers.wait_for(index, now)
        self._admit(index, now)

    def _admit(self, index: int, now: float) -> None:
        """Refuse a request, or route it."""
        number = self.router.choose(index, now)
        unit = None if number < 0 else self.units[number]
        if self._diverts(index, unit, now):
            return
        if self.judge is not None and self.judge.parts.admission is not None:
            reason = self._own_refusal(index, now)
            if reason != ADMITTED:
                self._refuse(index, reason, now, 0.0 if self.gate is None else self.gate.retry_after)
                return
        if self.gate is not None:
            reason = self.gate.refusal(index, unit, len(self.parked), now)
            if reason != ADMITTED:
                self._refuse(index, reason, now, self.gate.retry_after)
                return
        self._hand_to(index, number, now)

    def _refuse(self, index: int, reason: int, now: float, retry_after: float) -> None:
        self.refusals[reason] += 1
        self.callers.without_answer(index, now, REJECTED, reason, free_at=now, retry_after=retry_after)

    def _own_refusal(self, index: int, now: float) -> int:
        """Return why a user's own admission control refuses a request, an index into `REASONS`."""
        assert self.judge is not None
        gauges = self.router.gauges(self.router.ready_for(index), now)
        return REASONS.index(self.judge.refusal(index, now, self.requests.max_tokens[index], gauges))

    def _take_own_seconds(self, unit: Unit) -> None:
        """Let the planned step take the seconds of a user's own function; it is then alone in its leap."""
        assert self.judge is not None
        (replica,) = unit.replica.ranks
        if not replica.num_steps:
            return
        prompt = replica.prefill_tokens if replica.chunk_requests else 0
        decodes = replica.num_scheduled_decodes
        context = replica.context_sum if decodes else 0.0
        seconds = self.judge.seconds(prompt, decodes * replica.tokens_per_decode, context, replica.start_time)
        seconds += replica.times.swap_block_seconds * replica.moved_blocks
        replica.num_steps, replica.first_seconds, replica.increment_seconds = 1, seconds, 0.0
        unit.replica.end_time = replica.end_time = replica.start_time + seconds

    def _route(self, index: int, now: float) -> None:
        self._hand_to(index, self.router.choose(index, now), now)

    def _hand_to(self, index: int, number: int, now: float) -> None:
        if number < 0:
            self._place[index] = _PARKED
            self.parked.append(index)
            return
        unit = self.units[number]
        self._join(unit, index, now)
        if self.regions is not None:
            self._held.add(index)
            self._arrives_at[index] = there = now + self.regions.one_way(index, unit.pool)
            heappush(self._events, (there, SUBMIT, index, number))
            return
        self._enter(unit, index, now)

    def _enter(self, unit: Unit, index: int, now: float) -> None:
        """Let a request reach the scheduler of its replica."""
        self._begin(index, unit)
        if unit.pool.schedules_ahead:
            seen = seen_time(unit.replica, now)
            if seen > now:
                self.note_end(unit)
                self._held.add(index)
                heappush(self._events, (seen, SUBMIT, index, unit.number))
                return
        submit(unit.replica, self.requests, index, now)
        self.note_end(unit)

    def _submit(self, index: int, number: int, now: float) -> None:
        """Queue a request that was routed a moment ago, if it is still wanted there."""
        if index not in self._held or self._place[index] != number:
            return
        if self._arrives_at.get(index, now) != now:
            # The news of an attempt that was given up on the way.
            return
        self._held.discard(index)
        unit = self.units[number]
        if self._arrives_at.pop(index, None) is not None:
            self.requests.ready_time[index] = now
            self._enter(unit, index, now)
            return
        submit(unit.replica, self.requests, index, now)
        self.note_end(unit)

    def _join(self, unit: Unit, index: int, now: float) -> None:
        if not unit.load:
            end_pause(unit.finishes, now)
        tokens = self.requests.prompt_tokens[index] + self.requests.max_tokens[index]
        if unit.pool.paces is not None:
            self.requests.pace[index] = unit.pool.paces[index]
        self._place[index] = unit.number
        unit.members[index] = tokens
        unit.load += 1
        unit.tokens += tokens

    def _leave(self, unit: Unit, index: int) -> None:
        unit.tokens -= unit.members.pop(index)
        self._place[index] = NOWHERE
        unit.load -= 1

    def complete(self, unit: Unit, now: float) -> None:
        """End the step of a replica: answers go out, and who is doomed goes."""
        replica, requests = unit.replica, self.requests
        finished: list[int] = []
        if num_steps_of(replica):
            unit.busy_seconds += now - start_time_of(replica)
        if complete(replica, requests):
            finished = take_finished(replica)
            for index in finished:
                self._leave(unit, index)
            note_finishes(unit.finishes, len(finished), num_running_at(replica), now)
            if len(finished) > 1:
                finished.sort()
        doomed = unit.doomed
        if doomed:
            unit.doomed = {}
            for index in doomed:
                if index in unit.members:
                    cancel(replica, requests, index)
                    self._leave(unit, index)
                else:
                    # It has finished in this very step, and may come back.
                    strike(replica, index)
        for index in finished:
            if index not in doomed and not self._goes_on(index, unit, now):
                self.callers.ended(index, self._answered_at(index, unit, max(now, requests.finish_time[index])))
        if doomed:
            for index, decided_at in doomed.items():
                self.num_lost_tokens += requests.generated_tokens[index]
                self.callers.without_answer(index, decided_at, TIMED_OUT, GAVE_UP, free_at=now)
        if unit.next_times is not None:
            for rank in replica.ranks:
                use_times(rank, unit.next_times)
            unit.next_times = None
        if unit.is_freezing:
            unit.is_freezing, unit.is_frozen = False, True
        if unit.is_dying:
            self._bury(unit, now)
        elif unit.state == DRAINING and not unit.load:
            self.stop(unit, now)

    def _answered_at(self, index: int, unit: Unit, now: float) -> float:
        """Return when the answer is with its client; the row then says what the client sees, unless it is streamed."""
        if self.regions is None:
            return now
        back, requests = self.regions.one_way(index, unit.pool), self.requests
        if self.way_back is not None:
            self.way_back[index] = back
            return now + back
        requests.first_token_time[index] += back
        requests.finish_time[index] += back
        return now + back

    def _hang_up(self, index: int, now: float) -> None:
        """Drop a request whose client waits no longer, at the end of the step that runs."""
        place = self._place[index]
        if place in (_PARKED, ELSEWHERE):
            if place == _PARKED:
                self.parked.remove(index)
            self._place[index] = NOWHERE
            self.callers.without_answer(index, now, TIMED_OUT, GAVE_UP, free_at=now)
            return
        if self._drops(index, place, now) or place < 0:
            return
        unit = self.units[place]
        if index in self._held:
            self._held.discard(index)
            self._arrives_at.pop(index, None)
            self._leave(unit, index)
            self.callers.without_answer(index, now, TIMED_OUT, GAVE_UP, free_at=now)
            if unit.state == DRAINING and not unit.load:
                self.stop(unit, now)
            return
        unit.doomed.setdefault(index, now)
        if not self.ends_leap(unit, now):
            # A plan is due at this very instant: it is made without the request.
            self.complete(unit, now)

    def _diverts(self, _index: int, _unit: Unit | None, _now: float) -> bool:
        """Return whether a request is answered elsewhere (`simserve.sim.front`)."""
        return False

    # What a fleet of prefill and decode replicas does besides: `simserve.sim.disaggregation`.

    def _begin(self, _index: int, _unit: Unit) -> None:
        """Get a row ready for its replica."""

    def _may_step(self, _unit: Unit, _now: float) -> bool:
        """Return whether a replica may plan a step."""
        return True

    def _goes_on(self, _index: int, _unit: Unit, _now: float) -> bool:
        """Return whether a request that a replica has finished lives on, on another one."""
        return False

    def _land(self, _index: int, _now: float) -> None:
        """Take in what has crossed a link."""

    def _drops(self, _index: int, _place: int, _now: float) -> bool:
        """Return whether a request whose client has hung up was between two replicas, and is gone."""
        return False
