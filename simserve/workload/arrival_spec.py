"""When requests arrive: the `workload.arrivals` block of a scenario, and users as a form of it. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from simserve.units import SECONDS_PER_HOUR, PositiveSeconds, Seconds, to_text
from simserve.validation import FrozenModel, validate

MAX_REQUESTS = 100_000_000  # Most requests of one run: their columns alone take 4 GB.
_RAMP_UP = 60.0  # Ramp-up time of clients without think time, so that they do not all begin at one instant.


def _plausible_rate(rate: float) -> float:
    """Refuse rates at which times lose their digits: a clock of 1e12 s cannot tell milliseconds apart."""
    if not 1e-6 <= rate <= 1e9:
        raise ValueError("must be between 1e-6 and 1e9 requests per second")
    return rate


Rate = Annotated[float, Field(gt=0), AfterValidator(_plausible_rate)]


class PoissonArrivals(FrozenModel):
    """Independent users: exponential times between arrivals."""

    process: Literal["poisson"] = "poisson"
    """`poisson`."""
    rate: Rate
    """Mean requests per second."""
    users: Annotated[int, Field(ge=1)] | None = None
    """Users that send them, if this was resolved from `users`; for figures per user."""


def _refuse_no_variation(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        raise ValueError("is no variation; for arrivals at equal intervals write process: constant, without cv")
    return value


class GammaArrivals(FrozenModel):
    """Arrivals more bursty (cv > 1) or more regular (cv < 1) than Poisson: gamma times between them."""

    process: Literal["gamma"] = "gamma"
    """`gamma`."""
    rate: Rate
    """Mean requests per second."""
    cv: Annotated[float, Field(gt=0, le=100), BeforeValidator(_refuse_no_variation)]
    """Standard deviation of the time between arrivals over its mean; 1 is Poisson. `vllm bench` calls 1/cv^2
    burstiness."""


class ConstantArrivals(FrozenModel):
    """Arrivals at equal intervals, the first one interval after the start."""

    process: Literal["constant"] = "constant"
    """`constant`."""
    rate: Rate
    """Requests per second."""


class WeibullArrivals(FrozenModel):
    """Weibull times between arrivals: heavier tails than gamma at the same cv above 1."""

    process: Literal["weibull"] = "weibull"
    """`weibull`."""
    rate: Rate
    """Mean requests per second."""
    cv: Annotated[float, Field(ge=0.05, le=20), BeforeValidator(_refuse_no_variation)]
    """Standard deviation of the time between arrivals over its mean; 1 is Poisson."""


class BurstArrivals(FrozenModel):
    """Alternating bursts and quiet times of random length (a Markov-modulated Poisson process), Poisson within each."""

    process: Literal["burst"] = "burst"
    """`burst`."""
    rate: Rate
    """Mean requests per second, bursts and quiet times together."""
    factor: float = Field(gt=1)
    """Rate in a burst over the mean rate."""
    burst_duration: Seconds = Field(gt=0)
    """Mean length of a burst; exponential."""
    quiet_duration: Seconds = Field(gt=0)
    """Mean length of the time between two bursts; exponential."""

    @property
    def quiet_factor(self) -> float:
        """Rate between bursts over the mean rate."""
        return (self.burst_duration + self.quiet_duration - self.factor * self.burst_duration) / self.quiet_duration

    @model_validator(mode="after")
    def _check_mean(self) -> Self:
        if self.quiet_factor < 0.0:
            most = (self.burst_duration + self.quiet_duration) / self.burst_duration
            raise ValueError(
                f"factor {self.factor:g} must be at most {most:.4g}: bursts alone would exceed the mean rate; "
                "lower factor, shorten burst_duration or lengthen quiet_duration"
            )
        return self


class RampArrivals(FrozenModel):
    """Poisson arrivals whose rate changes linearly and then stays: a launch, a rollout, a load test."""

    process: Literal["ramp"] = "ramp"
    """`ramp`."""
    start_rate: float = Field(default=0.0, ge=0, le=1e9)
    """Requests per second at the start."""
    rate: Rate
    """Requests per second from the end of the ramp on."""
    ramp_duration: Seconds = Field(gt=0)
    """Duration of the ramp."""


class RateStep(FrozenModel):
    """A period of constant rate."""

    rate: float = Field(ge=0, le=1e9)
    """Requests per second; 0 is a pause."""
    duration: Seconds = Field(gt=0)
    """How long it lasts; the last step lasts for ever."""


class StepArrivals(FrozenModel):
    """Poisson arrivals whose rate jumps at given times."""

    process: Literal["steps"] = "steps"
    """`steps`."""
    steps: tuple[RateStep, ...] = Field(min_length=1)
    """Rates in order."""

    @model_validator(mode="after")
    def _check_last(self) -> Self:
        if not self.steps[-1].rate:
            raise ValueError("the rate of the last step must be above 0: it lasts until all requests have arrived")
        return self


class SpikeArrivals(FrozenModel):
    """Poisson arrivals with one spike: a mail to all customers, a failed region."""

    process: Literal["spike"] = "spike"
    """`spike`."""
    rate: Rate
    """Requests per second outside the spike."""
    factor: float = Field(gt=1, le=1e6)
    """Rate in the spike over `rate`."""
    at: Seconds = Field(gt=0)
    """When it starts."""
    spike_duration: Seconds = Field(gt=0)
    """How long it lasts."""


class DailyArrivals(FrozenModel):
    """Poisson arrivals that follow the hours of the day, and with `weekdays` the days of the week."""

    process: Literal["daily"] = "daily"
    """`daily`."""
    rate: Rate
    """Mean requests per second, over the whole day or week."""
    peak_to_mean: float = Field(default=1.6, ge=1, le=2)
    """Rate of the busiest hour over the mean, on a cosine curve; without `hours`."""
    peak_hour: float = Field(default=14.0, ge=0, lt=24)
    """Hour of the peak; without `hours`."""
    hours: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(default=None, min_length=24, max_length=24)
    """Weight of each hour, on any scale; the rate is constant within an hour."""
    weekdays: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(default=None, min_length=7, max_length=7)
    """Weight of each day from Monday on, on any scale. Absent: all days are equal."""
    start_hour: float = Field(default=0.0, ge=0, lt=24)
    """Hour of the (first) day at which the run starts."""
    day: Seconds = Field(default=86400.0, gt=0)
    """Length of a day: a shorter one compresses the curve."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        for name in ("hours", "weekdays"):
            weights = getattr(self, name)
            if weights is not None and not sum(weights):
                raise ValueError(f"{name} must not all be 0: nothing would arrive")
        return self


class ClosedLoopArrivals(FrozenModel):
    """A fixed number of clients, each of which sends its next request when it has its answer."""

    process: Literal["closed_loop"] = "closed_loop"
    """`closed_loop`."""
    concurrency: int = Field(ge=1, le=MAX_REQUESTS)
    """Number of clients."""
    think_time: Seconds = 0.0
    """Mean time between a client's answer and its next request."""
    think_time_cv: Annotated[float, Field(ge=0.05, le=20)] | None = None
    """Standard deviation of the think time over its mean (Weibull); 1 is exponential. Absent: always the same time."""
    ramp_up: PositiveSeconds | None = None
    """Time over which the clients begin, evenly. Absent: all first requests arrive at 0, as in benchmarks."""
    users: Annotated[int, Field(ge=1)] | None = None
    """Users that the clients are part of, if this was resolved from `users`; for figures per user."""

    @model_validator(mode="after")
    def _check_think_time(self) -> Self:
        if self.think_time_cv is not None and not self.think_time:
            raise ValueError("has think_time_cv without think_time; give both or neither")
        return self


class AllAtOnceArrivals(FrozenModel):
    """An offline batch: every request arrives at 0. Or rounds of such batches, like rollouts in reinforcement learning:
    after the last answer of a round the policy is trained and its weights are updated, then the next round begins.
    """

    process: Literal["all_at_once"] = "all_at_once"
    """`all_at_once`."""
    rounds: int = Field(default=1, ge=1, le=100_000)
    """Rounds, each of `num_requests / rounds` requests."""
    training_time: Seconds = 0.0
    """Time from the last answer of a round until the new weights are ready to send; the replicas wait."""
    weight_update: Seconds = 0.0
    """Time for the replicas to load the new weights: the weights of a GPU over the bandwidth at which they come. The KV
    cache of the old weights is then void, so that no prompt finds anything of an earlier round."""

    @property
    def round_pause(self) -> float | None:
        """Seconds from the last answer of a round to the next round; None: there is one round."""
        return None if self.rounds == 1 else self.training_time + self.weight_update

    @model_validator(mode="after")
    def _check_rounds(self) -> Self:
        given = [name for name in ("training_time", "weight_update") if getattr(self, name)]
        if given and self.rounds == 1:
            raise ValueError(f"has {given[0]} and one round; give rounds, or leave it out")
        return self


Arrivals = Annotated[
    PoissonArrivals
    | GammaArrivals
    | WeibullArrivals
    | ConstantArrivals
    | BurstArrivals
    | RampArrivals
    | StepArrivals
    | SpikeArrivals
    | DailyArrivals
    | ClosedLoopArrivals
    | AllAtOnceArrivals,
    Field(discriminator="process"),
]


STATIONARY = (PoissonArrivals, GammaArrivals, WeibullArrivals, ConstantArrivals, BurstArrivals)
"""Open-loop arrivals whose mean rate does not change, so that a warm-up may be cut."""


class UsersArrivals(FrozenModel):
    """A number of users, of whom a share is active at a time; resolved to clients or to a rate.

    Without `requests_per_hour` the active users are clients of a closed loop, who ask again `think_time` after an
    answer; at a think time of 0 each always has a request waiting, so that `users: 10000, active_share: 0.3` keeps
    3,000 requests in the system. With `requests_per_hour` requests arrive at that rate, whether answered or not
    (Poisson).
    """

    process: Literal["users"] = "users"
    """`users`."""
    users: int = Field(ge=1, le=1_000_000_000)
    """All users."""
    active_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the users that are active at the same time."""
    think_time: Seconds | None = None
    """Mean time between an active user's answer and the next request. Absent: none, each of them always waits."""
    think_time_cv: float | None = Field(default=None, ge=0, le=20)
    """Standard deviation of the think time over its mean (Weibull); 0: always the same time. Absent: 1, exponential."""
    ramp_up: Seconds | None = Field(default=None, ge=0)
    """Time over which the clients begin, evenly. Absent: the think time, or 60 s without one."""
    requests_per_hour: float | None = Field(default=None, gt=0)
    """Requests an hour per active user: arrivals at a rate, instead of clients who wait."""
    peak_to_mean: float | None = Field(default=None, ge=1)
    """`requests_per_hour`: load of the simulated hour over that of the mean hour. Absent: 1."""

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if self.requests_per_hour is not None:
            given = [name for name in ("think_time", "think_time_cv", "ramp_up") if getattr(self, name) is not None]
            if given:
                raise ValueError(f"has requests_per_hour and also {given[0]}; keep one: a rate, or clients who wait")
        elif self.peak_to_mean is not None:
            raise ValueError("has peak_to_mean without requests_per_hour, which it multiplies; add it")
        if self.think_time_cv is not None and not self.think_time:
            raise ValueError("has think_time_cv without think_time; give both or neither")
        if self.requests_per_hour is None and self.num_active > MAX_REQUESTS:
            rule = f"has {self.num_active:,} active users, more than {MAX_REQUESTS:,}; give requests_per_hour"
            raise ValueError(rule)
        return self

    @property
    def num_active(self) -> int:
        """Users active at the same time, at least one."""
        return max(1, round(self.users * self.active_share))

    def resolved(self) -> ClosedLoopArrivals | PoissonArrivals:
        """Return the arrivals that the users stand for."""
        if self.requests_per_hour is not None:
            a_user = self.requests_per_hour / SECONDS_PER_HOUR * (self.peak_to_mean or 1.0)
            return PoissonArrivals(rate=self.users * self.active_share * a_user, users=self.users)
        think_time = self.think_time or 0.0
        cv = 1.0 if self.think_time_cv is None else self.think_time_cv
        ramp_up = (think_time or _RAMP_UP) if self.ramp_up is None else self.ramp_up
        times = {"think_time": think_time, **({"ramp_up": ramp_up} if ramp_up else {})}
        return validate(
            ClosedLoopArrivals,
            {
                "concurrency": self.num_active,
                **{name: to_text(seconds, "time") for name, seconds in times.items()},
                "think_time_cv": cv if think_time and cv else None,
                "users": self.users,
            },
        )


_WithUsers = Annotated[Arrivals | UsersArrivals, Field(discriminator="process")]


def _resolved(arrivals: Arrivals | UsersArrivals) -> Arrivals:
    return arrivals.resolved() if isinstance(arrivals, UsersArrivals) else arrivals


class Entry:
    """Annotation of arrivals that also accepts users, and resolves them."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of all arrivals, with users resolved after they are checked."""
        return no_info_after_validator_function(_resolved, handler.generate_schema(_WithUsers))
