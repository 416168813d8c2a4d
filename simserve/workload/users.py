"""Users as a way to say arrivals: so many people, of whom a share is active, resolved to clients or to a rate.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from simserve.units import Seconds, to_text
from simserve.validation import FrozenModel, validate
from simserve.workload.arrival_spec import MAX_REQUESTS, Arrivals, ClosedLoopArrivals, PoissonArrivals

_SECONDS_PER_HOUR = 3600.0
_RAMP_UP = 60.0
"""Over how long clients begin that do not think: not all at one instant."""


class UsersArrivals(FrozenModel):
    """So many users, of whom a share is active at once: a way to say arrivals, resolved to clients or to a rate.

    Without `requests_per_hour` the active users are clients of a closed loop, who ask again `think_time` after an
    answer; at a think time of 0 each of them waits at any moment, so that `users: 10000, active_share: 0.3` keeps 3,000
    requests in the system. With `requests_per_hour` they come at that rate, whether answered or not (Poisson).
    """

    process: Literal["users"] = "users"
    """`users`."""
    users: int = Field(ge=1, le=1_000_000_000)
    """All users."""
    active_share: float = Field(default=1.0, gt=0, le=1)
    """Share of them that uses it at the same time."""
    think_time: Seconds | None = None
    """Mean time between the answer an active user got and the next request. Absent: none, each of them always waits."""
    think_time_cv: float | None = Field(default=None, ge=0, le=20)
    """Standard deviation of the think time over its mean (Weibull): 0 the same every time. Absent: 1, exponential."""
    ramp_up: Seconds | None = Field(default=None, ge=0)
    """Over how long the clients begin, evenly. Absent: the think time, or 60 s without one."""
    requests_per_hour: float | None = Field(default=None, gt=0)
    """Requests an hour of an active user: arrivals at a rate, instead of clients who wait."""
    peak_to_mean: float | None = Field(default=None, ge=1)
    """`requests_per_hour`: the hour that is simulated over the mean hour. Absent: 1."""

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
            raise ValueError(
                f"has {self.num_active:,} active users, more than {MAX_REQUESTS:,}; give requests_per_hour"
            )
        return self

    @property
    def num_active(self) -> int:
        """Users that use it at once, at least one."""
        return max(1, round(self.users * self.active_share))

    def resolved(self) -> ClosedLoopArrivals | PoissonArrivals:
        """Return the arrivals that the users are."""
        if self.requests_per_hour is not None:
            a_user = self.requests_per_hour / _SECONDS_PER_HOUR * (self.peak_to_mean or 1.0)
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
    """Annotation of arrivals: users are read too, and are from then on what they resolve to."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of all arrivals, with users resolved after they are checked."""
        return no_info_after_validator_function(_resolved, handler.generate_schema(_WithUsers))
