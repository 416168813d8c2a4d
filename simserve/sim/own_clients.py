"""PlaneClients: a user's own clients as SimPy processes, on one clock with the data plane."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import simpy
from numpy.typing import NDArray

from simserve.sim.control import Control, RoutingSpec
from simserve.sim.decisions import data_plane
from simserve.sim.fleet_run import FleetRun
from simserve.sim.pools import request_table
from simserve.sim.records import STATUSES
from simserve.sim.simulate import frontend_latency, setups_of, simulation_of
from simserve.workload.requests import RequestSpecs

if TYPE_CHECKING:
    from simserve.sim.own_parts import OwnParts
    from simserve.sim.simulate import Deployment, Simulation
    from simserve.sim.step_log import StepLog

Environment: TypeAlias = simpy.Environment
Event: TypeAlias = simpy.Event
Process: TypeAlias = simpy.Process

_PER_REQUEST = ("arrival_time", "prompt_tokens", "output_tokens", "max_tokens", "pace", "priority", "request_class")
_LIMITED = ("prompt_tokens", "output_tokens", "max_tokens", "is_truncated", "status", "reason")


class Answer(NamedTuple):
    """What a user's own client learns when its request has ended."""

    number: int  # Number of the request in the order of submission, from 0.
    status: str  # ``completed``, ``rejected``, ``timed_out`` or ``failed``.
    ttft: float  # Seconds from sending to the first token; NaN: there was none.
    e2e: float  # Seconds from sending to the end.
    output_tokens: int  # Tokens generated.
    replica_id: int  # The replica that served it; -1: none did.


def unsent(specs: RequestSpecs) -> RequestSpecs:
    """Return drawn requests as requests that a user's own clients will send; none has been sent yet."""
    count = len(specs)
    return replace(
        specs,
        arrival_time=np.full(count, np.nan),
        prompt_tokens=np.array(specs.prompt_tokens),
        output_tokens=np.array(specs.output_tokens),
        max_tokens=np.array(specs.max_tokens),
        think_time=np.zeros(0),
        concurrency=None,
        is_stationary=False,
        offered_rate=np.nan,
        turn=None,
        ramp_up=None,
        loop=None,
        loops=(),
        # Requests that are never sent are left out of the records.
        closes_at=np.inf,
    )


class PlaneClients:
    """A run on the plane whose requests are submitted one by one.

    Args:
        specs: As `unsent` returns them; a request's lengths may be set before it is submitted.
        own: A user's own parts; None: there are none.
        log: Keeps every step; None: steps are not kept.
    """

    def __init__(
        self, deployment: Deployment, specs: RequestSpecs, own: OwnParts | None = None, log: StepLog | None = None
    ) -> None:
        self._control = deployment.control or Control(routing=RoutingSpec(policy=deployment.routing))
        self._deployment, self._specs, self._log = deployment, specs, log
        self._setups = setups_of(deployment)
        latency = frontend_latency(deployment.engine, specs)
        self._run = FleetRun(self._control, self._setups, specs, latency, None, log, "off", own, has_own_clients=True)
        assert self._run.fleet is not None
        self._fleet = self._run.fleet
        self._fleet.tell_ends(self._tell)
        self._waiting: dict[int, simpy.Event] = {}
        self.env = simpy.Environment()
        self._run.start(self.env)
        self.env.process(data_plane(self.env, self._fleet, is_fed=True))

    def submit(self, index: int) -> simpy.Event:
        """Send a request now; the returned event fires with its `Answer`."""
        row = _row(self._specs, index)
        table = request_table(self._setups, row, self._control.allowed)
        requests = self._fleet.requests
        for name in _LIMITED:
            getattr(requests, name)[index] = getattr(table, name)[0]
        self._specs.arrival_time[index] = self._run.arrival_time[index] = now = self.env.now
        latency: NDArray[np.float64] = frontend_latency(self._deployment.engine, row)
        self._fleet.submit(index, now, float(latency[0]))
        self._waiting[index] = event = self.env.event()
        return event

    def _tell(self, index: int, heard_at: float) -> None:
        """Queue the news of an end for its client, on SimPy's side."""
        self._fleet.news.append(lambda: self._answer(index, heard_at))

    def _answer(self, index: int, heard_at: float) -> None:
        requests, sent = self._fleet.requests, float(self._run.arrival_time[index])
        answer = Answer(
            index,
            STATUSES[requests.status[index]],
            requests.first_token_time[index] - sent,
            heard_at - sent,
            requests.generated_tokens[index],
            requests.replica_id[index],
        )
        answer_later(self.env, self._waiting.pop(index), answer, heard_at)

    def simulation(self, *, was_interrupted: bool) -> Simulation:
        """Return what happened so far."""
        self._run.flush()
        found = simulation_of(
            self._run, self._specs, self._control, self._setups, self._log, was_interrupted=was_interrupted
        )
        return replace(found, is_open_loop=False, has_clients=True)


def answer_later(env: simpy.Environment, event: simpy.Event, answer: Answer, heard_at: float) -> None:
    """Make an event fire with an answer at the time its client hears of it."""
    delay = heard_at - env.now
    if delay <= 0.0:
        event.succeed(answer)
        return
    timeout = env.timeout(delay)
    assert timeout.callbacks is not None

    def answer_now(_: simpy.Event) -> None:
        event.succeed(answer)

    timeout.callbacks.append(answer_now)


def _row(specs: RequestSpecs, index: int) -> RequestSpecs:
    row, columns = slice(index, index + 1), {name: getattr(specs, name) for name in _PER_REQUEST}
    own: dict[str, Any] = {name: None if values is None else values[row] for name, values in columns.items()}
    return replace(specs, **own, prefixes=None, session=None)
