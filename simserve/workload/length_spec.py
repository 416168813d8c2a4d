"""How long prompts and answers are: the length blocks of a workload. Draws nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from simserve.validation import FrozenModel

MAX_TABULATED_TOKENS = 1_000_000  # Longest length of a distribution that is tabulated token by token.
_LEAST_SPREAD = 0.001  # Least spread of lengths that are drawn.


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
    """Longest, tokens. Default: the length that one request in 10^9 exceeds, at most 1,000,000."""

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


def _refuse_no_spread(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LEAST_SPREAD:
        raise ValueError(f"must be at least {_LEAST_SPREAD:g}; if all lengths are the same, write the length alone")
    return value


class NormalLength(_TruncatedLength):
    """Normal lengths: the location is solved for the mean, `std` is kept."""

    distribution: Literal["normal"] = "normal"
    """`normal`."""
    std: Annotated[float, Field(ge=_LEAST_SPREAD), BeforeValidator(_refuse_no_spread)]
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
    cv: Annotated[float, Field(ge=_LEAST_SPREAD, le=100), BeforeValidator(_refuse_no_spread)]
    """Standard deviation over mean, before truncation."""


class ExponentialLength(_TruncatedLength):
    """Exponential lengths: the scale is solved for the mean."""

    distribution: Literal["exponential"] = "exponential"
    """`exponential`."""

    @model_validator(mode="after")
    def _check_reach(self) -> Self:
        middle = (self.min + (self.max or MAX_TABULATED_TOKENS)) / 2
        if self.mean >= middle:
            raise ValueError(
                f"mean {self.mean:g} must be below {middle:g}, the middle of min and max: a distribution "
                "that falls reaches no more; raise max or lower the mean"
            )
        return self


class GeometricLength(FrozenModel):
    """Geometric lengths from 1: every further token stops the answer with the same probability."""

    distribution: Literal["geometric"] = "geometric"
    """`geometric`."""
    mean: float = Field(gt=1, lt=MAX_TABULATED_TOKENS)
    """Mean of the lengths drawn, tokens: exact after truncation to `max`."""
    max: TabulatedTokens | None = None
    """Longest, tokens. Default: the length that one request in 10^9 exceeds, at most 1,000,000."""

    @model_validator(mode="after")
    def _check_reach(self) -> Self:
        self.as_exponential()
        return self

    def as_exponential(self) -> ExponentialLength:
        """Return the exponential that rounds to the same distribution on the whole numbers from 1."""
        return ExponentialLength(mean=self.mean, max=self.max)


class EmpiricalLength(FrozenModel):
    """Lengths drawn with replacement from a file. A `trace` with `columns`, beside `arrivals`, sends each row once."""

    distribution: Literal["empirical"] = "empirical"
    """`empirical`."""
    path: str
    """CSV or text file with one length per row, plain or gzip; looked up in the scenario's folder, then in the working
    folder."""
    column: str | None = None
    """Name of the column that holds the lengths. Default: the file has only one, with or without a header."""


class NoLength(FrozenModel):
    """No answer: only the prompt is computed, as for embeddings and rerankers."""

    distribution: Literal["none"]
    """`none`; `output_tokens: 0` is short for it."""


def _as_length(value: object) -> object:
    """Read a bare number as the length of all requests."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"distribution": "fixed", "value": value} if is_number else value


_Drawn = (
    FixedLength | UniformLength | NormalLength | LognormalLength | ExponentialLength | GeometricLength | EmpiricalLength
)
_Distribution = Annotated[_Drawn, Field(discriminator="distribution")]
Length = Annotated[_Distribution, BeforeValidator(_as_length, json_schema_input_type=int | _Distribution)]
"""Lengths of requests; a bare number is the length of all."""


def _as_answer(value: object) -> object:
    """Read 0 as no answer."""
    is_none = isinstance(value, int | float) and not isinstance(value, bool) and value == 0
    return {"distribution": "none"} if is_none else _as_length(value)


_Answer = Annotated[_Drawn | NoLength, Field(discriminator="distribution")]
AnswerLength = Annotated[_Answer, BeforeValidator(_as_answer, json_schema_input_type=int | _Answer)]
"""Lengths of answers: as `Length`, or 0 for none."""
