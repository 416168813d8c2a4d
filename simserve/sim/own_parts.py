"""OwnParts: a user's router, admission control, autoscaler and step times as Python functions, and what they see.

What a function is shown is public and frozen: `RequestView`, `ReplicaView`, `PoolView`. What a router or an admission
control sees of replicas is as old as ``deployment.routing.update_interval`` says; an autoscaler sees their current
state. Knows neither the plane nor the reference: both call a `Judge`, once per arrival, autoscaler interval or step.
"""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simserve.errors import UsageError
from simserve.workload.requests import RequestSpecs

REFUSALS = ("rate_limit", "queue_full", "kv_headroom", "load", "deadline")
"""Reasons that an admission control may give for refusing a request: those of `deployment.admission`."""
REFUSED = "load"
_log = logging.getLogger("simserve")


class RequestView(NamedTuple):
    """What a router or an admission control may know of a request.

    How long its answer will be is not part of it, unless clients ask for exactly that (``workload.max_tokens: exact``).

    Attributes:
        number: Its number in the order of the workload, from 0.
        now: Seconds since the run began.
        class_name: Its class in the scenario's ``classes``; None without classes.
        session: Number of its conversation; None: it belongs to none.
        prompt_tokens: Tokens of its prompt.
        max_tokens: The most tokens that its answer may have.
        priority: Smaller values go first.
    """

    number: int
    now: float
    class_name: str | None
    session: int | None
    prompt_tokens: int
    max_tokens: int
    priority: int


class ReplicaView(NamedTuple):
    """What is known of a replica that takes requests.

    Attributes:
        number: Its number in the fleet, from 0.
        pool: The name of its pool; empty if there is only one.
        running: Requests in its batch.
        waiting: Requests sent to it that are not in its batch.
        tokens: Tokens of the prompts of both, and the most that they may generate.
        kv_share: Share of its KV memory in use, from 0 to 1; interpolated linearly between the ends of two steps.
        known_prefix: Leading tokens of the request's prompt that were sent to it before, as the router remembers them,
            whatever the replica has evicted since. 0 for an autoscaler.
    """

    number: int
    pool: str
    running: int
    waiting: int
    tokens: int
    kv_share: float
    known_prefix: int = 0


class PoolView(NamedTuple):
    """What an autoscaler sees of its pool.

    Attributes:
        name: Its name; empty if there is only one pool.
        now: Seconds since the run began.
        size: Replicas that serve, start or are down temporarily.
        replicas: Those that take requests.
        parked: Requests that wait for a replica to become ready.
    """

    name: str
    now: float
    size: int
    replicas: tuple[ReplicaView, ...]
    parked: int


RouterFunction = Callable[[RequestView, Sequence[ReplicaView]], Any]
AdmissionFunction = Callable[[RequestView, Sequence[ReplicaView]], Any]
AutoscalerFunction = Callable[[PoolView], Any]
StepSecondsFunction = Callable[[int, int, float], Any]
Gauges = tuple[int, str, int, int, int, float]  # Number, pool, running, waiting, tokens and KV share of a replica.


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnParts:
    """Functions that replace parts of a deployment; None: the scenario's own part."""

    router: RouterFunction | None = None
    """Takes a request and the replicas that may take it (at least one); returns one of them, or its number."""
    admission: AdmissionFunction | None = None
    """Takes the same, with no replicas while none takes requests; returns whether the request is admitted, or why it
    is not, one of `REFUSALS`; False counts as ``load``."""
    autoscaler: AutoscalerFunction | None = None
    """Takes a pool; returns how many replicas it should have. Intervals, limits and delays are those of
    ``deployment.autoscaling``."""
    step_seconds: StepSecondsFunction | None = None
    """Takes the prompt tokens of a step, the tokens that it decodes, and the tokens of the decoding sequences in the
    KV cache; returns its seconds."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that are replaced."""
        return tuple(
            name for name in ("router", "admission", "autoscaler", "step_seconds") if getattr(self, name) is not None
        )

    def notes(self, specs: RequestSpecs) -> list[str]:
        """Return the notes about them in the result of a run of ``specs``."""
        found = [f"a part of one's own decided: {', '.join(self.names)}; the scenario alone does not give this result"]
        sees_requests = self.router is not None or self.admission is not None
        if sees_requests and np.array_equal(specs.max_tokens, specs.output_tokens):
            found.append(
                "workload.max_tokens is exact: the max_tokens of a request, and the tokens of a replica, tell a router "
                "or an admission control how long answers will be; a number or model_limit does not"
            )
        return found


class Judge:
    """Calls a user's functions in one run, and checks what they return.

    Args:
        is_stale: Whether only `refresh` updates what is known of replicas.
    """

    def __init__(self, parts: OwnParts, specs: RequestSpecs, *, is_stale: bool) -> None:
        self.parts, self._specs, self._is_stale = parts, specs, is_stale
        self._seen: dict[int, Gauges] = {}
        self._sent: dict[int, set[int]] = {}

    def refresh(self, gauges: Iterable[Gauges]) -> None:
        """Update what is known of every replica, until the next update."""
        self._seen = {each[0]: each for each in gauges}

    def route(self, index: int, now: float, max_tokens: int, gauges: Sequence[Gauges]) -> int:
        """Return the number of the replica that a request goes to.

        Args:
            now: Seconds.
            max_tokens: The most tokens that its answer may have.
            gauges: The replicas that may take it, in their current state.

        Raises:
            UsageError: The router returns no replica, or one that was not offered.
        """
        if self.parts.router is None:
            return gauges[0][0]
        replicas = self._replicas(index, gauges)
        request = self._request(index, now, max_tokens)
        chosen = self._ask("router", self.parts.router, (request, replicas), f"request {index}", now)
        number = chosen.number if isinstance(chosen, ReplicaView) else chosen
        choices = [each.number for each in replicas]
        if isinstance(number, bool) or not isinstance(number, numbers.Integral) or int(number) not in choices:
            listed = ", ".join(map(str, choices))
            rule = f"is none of the replicas offered for request {index}"
            raise UsageError(rule, key="router", value=chosen, remedy=f"return one of them, or its number: {listed}")
        path = self._path(index)
        self._sent.setdefault(int(number), set()).update(segment for segment, _ in path)
        return int(number)

    def refusal(self, index: int, now: float, max_tokens: int, gauges: Sequence[Gauges]) -> str:
        """Return why a request is refused; empty: it is admitted (arguments as for `route`; there may be no replica).

        Raises:
            UsageError: The answer is neither True nor False, nor a reason.
        """
        assert self.parts.admission is not None
        arguments = self._request(index, now, max_tokens), self._replicas(index, gauges)
        answer = self._ask("admission", self.parts.admission, arguments, f"request {index}", now)
        if isinstance(answer, str) and answer in REFUSALS:
            return answer
        if str(answer) not in ("True", "False"):
            remedy = f"return True, False, or why it is refused: {', '.join(REFUSALS)}"
            raise UsageError(f"says nothing of request {index}", key="admission", value=answer, remedy=remedy)
        return "" if answer else REFUSED

    def wanted_in(self, name: str, now: float, size: int, gauges: Sequence[Gauges], parked: int) -> int:
        """Return how many replicas a pool should have (arguments as for `PoolView`).

        Raises:
            UsageError: The answer is not a whole number, or is below 0.
        """
        assert self.parts.autoscaler is not None
        pool = PoolView(name, now, size, tuple(ReplicaView(*each) for each in gauges), parked)
        where = f"pool {pool.name}" if pool.name else "the pool"
        answer = self._ask("autoscaler", self.parts.autoscaler, (pool,), where, pool.now)
        if isinstance(answer, bool) or not isinstance(answer, numbers.Integral) or answer < 0:
            raise UsageError(
                "is no number of replicas", key="autoscaler", value=answer, remedy="return a whole number, 0 or more"
            )
        return int(answer)

    def seconds(self, prompt_tokens: int, decode_tokens: int, context_tokens: float, now: float) -> float:
        """Return how long a step that begins ``now`` takes, seconds.

        Raises:
            UsageError: The answer is not a positive, finite number.
        """
        assert self.parts.step_seconds is not None
        arguments = (int(prompt_tokens), int(decode_tokens), float(context_tokens))
        answer = self._ask("step_seconds", self.parts.step_seconds, arguments, "a step", now)
        is_number = isinstance(answer, numbers.Real) and not isinstance(answer, bool)
        if not is_number or not 0.0 < float(answer) < math.inf:
            shown = f"({arguments[0]}, {arguments[1]}, {arguments[2]:g})"
            rule = f"are no seconds of a step of {shown}"
            raise UsageError(rule, key="step_seconds", value=answer, remedy="return a finite number above 0")
        return float(answer)

    @staticmethod
    def _ask(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], about: str, now: float) -> Any:
        """Call a user's function; an exception is logged in one line and raised unchanged."""
        try:
            return function(*arguments)
        except Exception as error:
            own = getattr(function, "__name__", type(function).__name__)
            _log.error("simserve: %s: %s raised %s for %s at %.6g s", name, own, type(error).__name__, about, now)
            raise

    def _request(self, index: int, now: float, max_tokens: int) -> RequestView:
        specs = self._specs
        kind = None if specs.request_class is None else specs.classes[int(specs.request_class[index])].name
        session = None if specs.session is None or specs.session[index] < 0 else int(specs.session[index])
        priority = 0 if specs.priority is None else int(specs.priority[index])
        return RequestView(index, now, kind, session, int(specs.prompt_tokens[index]), int(max_tokens), priority)

    def _replicas(self, index: int, gauges: Sequence[Gauges]) -> tuple[ReplicaView, ...]:
        path = self._path(index)
        views = []
        for live in gauges:
            number, pool, *_ = live
            # A replica newer than the last update counts as empty.
            shown = self._seen.get(number, (number, pool, 0, 0, 0, 0.0)) if self._is_stale else live
            sent = self._sent.get(number, ())
            views.append(ReplicaView(*shown, max((end for segment, end in path if segment in sent), default=0)))
        return tuple(views)

    def _path(self, index: int) -> list[tuple[int, int]]:
        """Return the segments that the prompt of a request begins with, and where each ends."""
        prefixes = self._specs.prefixes
        if prefixes is None:
            return []
        entries = slice(int(prefixes.offsets[index]), int(prefixes.offsets[index + 1]))
        return list(zip(prefixes.segments[entries].tolist(), prefixes.ends[entries].tolist(), strict=True))
