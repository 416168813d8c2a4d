"""The `workload` block of a scenario: what arrives when, how long it is, and when it ends. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from simserve.units import Seconds
from simserve.validation import FrozenModel
from simserve.workload.arrival_spec import MAX_REQUESTS, AllAtOnceArrivals, Arrivals, ClosedLoopArrivals

MAX_TABULATED_TOKENS = 1_000_000
"""Longest length of a distribution that is tabulated token by token."""


Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]
TabulatedTokens = Annotated[int, Field(ge=1, le=MAX_TABULATED_TOKENS)]


class FixedLength(FrozenModel):
    """Every request has the same length."""

    distribution: Literal["fixed"] = "fixed"
    """`fixed`."""
    value: Tokens
    """Tokens."""


class UniformLength(FrozenModel):
    """Every whole number from `min` to `max`, both included, is equally likely."""

    distribution: Literal["uniform"] = "uniform"
    """`uniform`."""
    min: TabulatedTokens
    """Shortest, tokens."""
    max: TabulatedTokens
    """Longest, tokens."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} must not be above max {self.max}; swap them")
        return self


class _TruncatedLength(FrozenModel):
    """A distribution on the whole numbers from `min` to `max` with the mean `mean`."""

    mean: float = Field(gt=0)
    """Mean of the lengths drawn, tokens: exact after rounding to whole tokens and truncation."""
    min: TabulatedTokens = 1
    """Shortest, tokens."""
    max: TabulatedTokens | None = None
    """Longest, tokens. Default: where the tail beyond holds one request in 10^9, and 1,000,000 at most."""

    @model_validator(mode="after")
    def _check_mean(self) -> Self:
        longest = self.max or MAX_TABULATED_TOKENS
        if self.min >= longest:
            raise ValueError(f"min {self.min} must be below max {longest}; for one length write distribution: fixed")
        if not self.min < self.mean < longest:
            raise ValueError(
                f"mean {self.mean:g} must lie between min {self.min} and max {longest}; "
                "move the mean or the bound, or write distribution: fixed"
            )
        return self

    def _refuse_mean_above_middle(self) -> None:
        middle = (self.min + (self.max or MAX_TABULATED_TOKENS)) / 2
        if self.mean >= middle:
            raise ValueError(
                f"mean {self.mean:g} must be below {middle:g}, the middle of min and max: a distribution "
                "that falls reaches no more; raise max or lower the mean"
            )


class NormalLength(_TruncatedLength):
    """Normal lengths: the location is solved for the mean, `std` is kept."""

    distribution: Literal["normal"] = "normal"
    """`normal`."""
    std: float = Field(ge=0.001)
    """Standard deviation before truncation, tokens; at most 100 times the mean."""

    @model_validator(mode="after")
    def _check_std(self) -> Self:
        if self.std > 100 * self.mean:
            raise ValueError(f"std {self.std:g} must be at most 100 times mean {self.mean:g}; write uniform instead")
        return self


class LognormalLength(_TruncatedLength):
    """Lognormal lengths, as most traffic has: the location is solved for the mean, `cv` is kept."""

    distribution: Literal["lognormal"] = "lognormal"
    """`lognormal`."""
    cv: float = Field(ge=0.001, le=100)
    """Standard deviation over mean, before truncation."""


class ExponentialLength(_TruncatedLength):
    """Exponential lengths: the scale is solved for the mean."""

    distribution: Literal["exponential"] = "exponential"
    """`exponential`."""

    @model_validator(mode="after")
    def _check_reach(self) -> Self:
        self._refuse_mean_above_middle()
        return self


class GeometricLength(FrozenModel):
    """Geometric lengths from 1: every further token stops the answer with the same probability."""

    distribution: Literal["geometric"] = "geometric"
    """`geometric`."""
    mean: float = Field(gt=1, lt=MAX_TABULATED_TOKENS)
    """Mean of the lengths drawn, tokens: exact after truncation to `max`."""
    max: TabulatedTokens | None = None
    """Longest, tokens. Default: where the tail beyond holds one request in 10^9, and 1,000,000 at most."""

    @model_validator(mode="after")
    def _check_reach(self) -> Self:
        self.as_exponential()
        return self

    def as_exponential(self) -> ExponentialLength:
        """Return the exponential that rounds to the same distribution on the whole numbers from 1."""
        return ExponentialLength(mean=self.mean, max=self.max)


class EmpiricalLength(FrozenModel):
    """Lengths drawn with replacement from a file."""

    distribution: Literal["empirical"] = "empirical"
    """`empirical`."""
    path: str
    """CSV or text file with a length a row, plain or gzip; relative to the scenario's folder, then to the
    working folder."""
    column: str | None = None
    """Name of the column that holds the lengths. Default: the file has only one, with or without a header."""


def _refuse_bare_number(value: object) -> object:
    if isinstance(value, int | float):
        raise ValueError(f"must be a mapping; for one length write {{distribution: fixed, value: {value}}}")
    return value


Length = Annotated[
    FixedLength
    | UniformLength
    | NormalLength
    | LognormalLength
    | ExponentialLength
    | GeometricLength
    | EmpiricalLength,
    Field(discriminator="distribution"),
    BeforeValidator(_refuse_bare_number),
]


TraceFormat = Literal["auto", "azure", "csv", "mooncake", "burstgpt", "bailian", "sharegpt", "vllm-bench", "otel"]
Scale = Annotated[float, Field(gt=0, le=1e6)]


class TraceSpec(FrozenModel):
    """Recorded traffic to replay."""

    path: str
    """The file, plain or gzip; relative to the scenario's folder, then to the working folder."""
    format: TraceFormat = "auto"
    """`auto`: told by the first row. `azure`: TIMESTAMP, ContextTokens, GeneratedTokens; the first request arrives at
    0. `csv`: arrival_time (seconds from the start of the run), prompt_tokens, output_tokens, and max_tokens if there
    is one. `mooncake`, `bailian`: JSON lines; which blocks prompts share is read, and not simulated. `burstgpt`:
    requests that failed are left out. `sharegpt`: texts, lengths estimated, no arrival times. `vllm-bench`: a
    detailed result of `vllm bench serve`. `otel`: spans with gen_ai.usage attributes."""
    time_scale: Scale = 1.0
    """Multiplies the recorded times: 0.5 sends the same requests at twice the rate."""
    prompt_scale: Scale = 1.0
    """Multiplies the lengths of the prompts; they are rounded, and at least one token."""
    output_scale: Scale = 1.0
    """Multiplies the lengths of the answers (and the trace's own max_tokens)."""


class WorkloadSpec(FrozenModel):
    """The traffic of a scenario: a trace, or arrivals with lengths."""

    arrivals: Arrivals | None = None
    """When requests arrive; beside a trace: instead of its own times, in the order of its rows."""
    prompt_tokens: Length | None = None
    """Lengths of the prompts."""
    output_tokens: Length | None = None
    """Lengths of the answers the model would give."""
    max_tokens: int | Literal["exact", "model_limit"] = "exact"
    """Most tokens the client asks for: `exact` (the trace's own column where it has one, else the length of
    the answer), a number, or `model_limit` (what the prompt leaves of the model's length)."""
    num_requests: int | None = Field(default=None, ge=1, le=MAX_REQUESTS)
    """Number of requests; all are served to the end. With a trace: only its first."""
    duration: Seconds | None = Field(default=None, gt=0)
    """Arrivals stop then; what has arrived is served to the end."""
    trace: TraceSpec | None = None
    """Recorded traffic, instead of `arrivals` and lengths; `arrivals` beside it replace its times."""

    @field_validator("max_tokens", mode="before")
    @classmethod
    def _check_max_tokens(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            is_valid = value >= 1 and float(value).is_integer()
        else:
            is_valid = value in ("exact", "model_limit")
        if not is_valid:
            raise ValueError("must be exact, model_limit or a whole number >= 1")
        return value

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        drawn = {name: getattr(self, name) for name in ("arrivals", "prompt_tokens", "output_tokens")}
        given = [name for name, part in drawn.items() if part is not None]
        missing = [name for name, part in drawn.items() if part is None]
        if self.trace is not None and given not in ([], ["arrivals"]):
            raise ValueError(f"has a trace and also {' and '.join(given)}; keep one of the two")
        if self.trace is not None and self.arrivals is not None and self.trace.time_scale != 1.0:
            raise ValueError("has arrivals instead of the trace's times and also trace.time_scale; keep one of the two")
        if self.trace is None and missing:
            raise ValueError(
                f"lacks {' and '.join(missing)}; give arrivals, prompt_tokens and output_tokens, or a trace"
            )
        return self

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.num_requests is not None and self.duration is not None:
            raise ValueError("has num_requests and duration; keep one of the two")
        if self.trace is not None and (self.arrivals is None or self.duration is None):
            return self
        if self.num_requests is None and self.duration is None:
            raise ValueError('has no end; give num_requests, or duration such as "10 min"')
        if self.duration is not None and isinstance(self.arrivals, ClosedLoopArrivals | AllAtOnceArrivals):
            raise ValueError(f"cannot end {self.arrivals.process} arrivals by duration; give num_requests instead")
        rate = getattr(self.arrivals, "rate", 0.0)
        if self.duration is not None and rate * self.duration > MAX_REQUESTS / 2:
            raise ValueError(
                f"asks for about {rate * self.duration:.3g} requests, more than {MAX_REQUESTS // 2:,}; "
                "shorten duration or lower the rate"
            )
        return self
