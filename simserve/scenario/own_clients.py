"""A user's own clients: a scenario's deployment on SimPy's clock, to which they send requests one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from simserve.errors import UsageError
from simserve.scenario.reference_run import noted, refuse, simulation_of, uncounted
from simserve.scenario.replication import traffic
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy, run
from simserve.sim.own_clients import Answer, Environment, Event, PlaneClients, Process, answer_later, unsent
from simserve.sim.step_log import StepLog

if TYPE_CHECKING:
    from simserve.metrics.result import RunResult
    from simserve.reference.request import Request
    from simserve.scenario.schema import Scenario
    from simserve.sim.own_parts import OwnParts
    from simserve.sim.simulate import Deployment, Simulation
    from simserve.workload.requests import RequestSpecs


class _Served(Protocol):
    """Serves requests that are submitted one by one."""

    @property
    def env(self) -> Environment:
        """The clock."""

    def submit(self, index: int) -> Event:
        """Send a request now."""

    def simulation(self, *, was_interrupted: bool) -> Simulation:
        """Return what happened so far."""


class ReferenceClients:
    """Like `PlaneClients`, on the reference."""

    def __init__(
        self, deployment: Deployment, specs: RequestSpecs, own: OwnParts | None = None, *, keep_steps: bool = False
    ) -> None:
        self._deployment, self._specs, self._keep_steps = deployment, specs, keep_steps
        self._cluster, self._setups = noted(deployment, specs, own)
        self._cluster.start()
        self.env: Environment = self._cluster.clock

    def submit(self, index: int) -> Event:
        """Send a request now; the returned event fires with its `Answer`."""
        cluster = self._cluster
        request = cluster.requests[index] = cluster.request_of(index)
        request.arrival = request.sent = self._specs.arrival_time[index] = now = self.env.now
        config = cluster.pools[0].config
        base = config.frontend_latency + config.frontend_seconds_per_request
        latency = base + config.tokenization_per_token * request.prompt_tokens
        cluster.clients.latency[index] = latency
        life, answer = self.env.process(cluster.clients.live(request, now)), self.env.event()
        assert life.callbacks is not None
        life.callbacks.append(lambda ended: self._answer(request, answer, ended.value.heard_at))
        return answer

    def _answer(self, request: Request, event: Event, heard_at: float) -> None:
        sent = request.arrival
        status = request.status.replace(" ", "_")
        first, tokens = request.first_token - sent, request.generated
        answer = Answer(request.index, status, first, heard_at - sent, tokens, request.replica)
        answer_later(self.env, event, answer, heard_at)

    def simulation(self, *, was_interrupted: bool) -> Simulation:
        """Return what happened so far."""
        found = simulation_of(self._cluster, self._deployment, self._setups, keep_steps=self._keep_steps, is_fed=True)
        return replace(found, is_open_loop=False, has_clients=True, was_interrupted=was_interrupted)


class OwnClients:
    """A scenario's deployment whose clients are the user's own SimPy processes.

    The scenario's workload draws the lengths, classes and prefixes of the requests, in order. The clients decide when
    each is sent, and may set its lengths.

    Attributes:
        env: The SimPy environment.

    Args:
        by_reference: Whether the reference serves.
        steps: Whether every step is kept.
        own: Other parts of the user's own; None: there are none.

    Raises:
        UsageError: The scenario has options that cannot be combined with such clients.
        InfeasibleError: The model does not fit.
        InputError: A profile or trace is missing or invalid.
    """

    def __init__(self, scenario: Scenario, *, by_reference: bool, steps: bool, own: OwnParts | None) -> None:
        # A client's processes can be run once.
        once = scenario.run.model_copy(update={"replications": 1, "precision": None})
        self._resolved, self._own = resolve(scenario.model_copy(update={"run": once})), own
        deployment = deploy(self._resolved)
        control = deployment.control
        for key in ("streaming", "regions", "response_cache"):
            if control is not None and getattr(control, key) is not None:
                rule = "does not go with clients of one's own"
                raise UsageError(rule, key=f"deployment.{key}", remedy="leave it out")
        self._specs = unsent(traffic(self._resolved.scenario, 0))
        self._served: _Served
        if by_reference:
            asked = self._resolved.scenario
            refuse(asked, uncounted(deployment, asked.deployment), "leave by_reference out")
            self._served = ReferenceClients(deployment, self._specs, own, keep_steps=steps)
        else:
            self._served = PlaneClients(deployment, self._specs, own, StepLog() if steps else None)
        self.env = self._served.env
        self._num_sent = 0
        self._answers: list[Event] = []
        self._processes: list[Event] = []
        self._begin = self.env.process
        # Processes started before the run are the clients that it waits for.
        setattr(self.env, "process", self._note_process)  # noqa: B010
        self._has_run = False

    def _note_process(self, generator: Any) -> Process:
        process = self._begin(generator)
        self._processes.append(process)
        return process

    def submit(
        self, *, prompt_tokens: int | None = None, output_tokens: int | None = None, max_tokens: int | None = None
    ) -> Event:
        """Send the next request that the scenario draws; the returned event fires with its `Answer`.

        Args:
            prompt_tokens: Length of this request's prompt instead of the drawn one, at least 1.
            output_tokens: Likewise; also the client's limit, unless that is given too.
            max_tokens: The most tokens that the client asks for.

        Raises:
            UsageError: No request is left, or a length is invalid.
        """
        index, specs = self._num_sent, self._specs
        if index == len(specs):
            rule = f"has sent all {index} requests that the workload draws"
            raise UsageError(rule, key="submit", remedy="raise workload.num_requests")
        lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "max_tokens": max_tokens}
        for name, length in lengths.items():
            if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
                raise UsageError("must be a whole number, 1 or more", key=f"submit: {name}", value=length)
        if prompt_tokens is not None and specs.prefixes is not None:
            rule = "is what the workload shares between requests"
            raise UsageError(rule, key="submit: prompt_tokens", remedy="leave it out")
        if output_tokens is not None and max_tokens is None:
            lengths["max_tokens"] = output_tokens
        for name, length in lengths.items():
            if length is not None:
                getattr(specs, name)[index] = length
        self._num_sent += 1
        event = self._served.submit(index)
        self._answers.append(event)
        return event

    def run(self, until: float | None = None) -> RunResult:
        """Run until the clients started so far are done and everything they sent is answered, or until a time.

        Args:
            until: Seconds; None: to the end of the clients.

        Raises:
            UsageError: There is no client, or the run has already been made.
        """
        if self._has_run:
            raise UsageError("has been run", key="run", remedy="make another Simulation")
        if not self._processes and not self._answers:
            raise UsageError("has no client", key="run", remedy="begin one with sim.env.process(...)")
        self._has_run = True
        setattr(self.env, "process", self._begin)  # noqa: B010
        done = self.env.process(self._wait()) if until is None else self.env.timeout(until)
        was_interrupted = False
        try:
            while not done.processed and self.env.peek() < math.inf:
                self.env.step()
        except KeyboardInterrupt:
            was_interrupted = True
        simulation = self._served.simulation(was_interrupted=was_interrupted)
        return run(self._resolved, served=(self._specs, simulation), own=self._own)

    def _wait(self) -> Any:
        yield self.env.all_of(self._processes)
        while not all(each.processed for each in self._answers):
            yield self.env.all_of(self._answers)
