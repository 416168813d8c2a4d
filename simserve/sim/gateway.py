"""The gateway in front of the replicas: built from a scenario for `simserve.engine.gateway`.

Draws random numbers in advance, so that routing changes no draw. Knows no price.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.engine.admission_control import Bucket
from simserve.engine.client_state import TO_ANSWER, TO_PACE
from simserve.engine.gateway import (
    ALONE,
    ALWAYS,
    DEPENDS,
    EXCEPTED,
    NEVER,
    NO_LIMIT,
    NOT_MADE,
    REFUSE,
    STAY,
    WAIT,
    Api,
    FairTurns,
    Gateway,
    ResponseCache,
)
from simserve.engine.state import INFINITY, column
from simserve.sim.cluster import kinds_of
from simserve.sim.control import Control, FairnessSpec, OverflowSpec, ResponseCacheSpec
from simserve.sim.plane import Chance, LognormalChance, Rules
from simserve.workload.requests import RequestSpecs

_ANSWERS_AT_ONCE = 4096
_SECONDS_PER_MINUTE = 60.0
_WHEN_LIMITED = {None: STAY, "stay": STAY, "wait": WAIT, "refuse": REFUSE}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontTotals:
    """What the gateway did over the whole run."""

    first_questions: int | None = None
    """Requests whose question no model had answered yet; None: there is no response cache."""
    expired: int = 0  # Requests whose cached answer had expired.
    limited: int = 0  # How often the API answered 429.
    asked_again: int | None = None  # Requests whose first answer was not good enough; None: no rule asks twice.
    discarded_tokens: int = 0  # Tokens of those first answers.
    service: Mapping[str, float] = field(default_factory=dict)
    """With fairness, by class: prompt tokens plus twice the generated ones; else empty."""


def gateway_of(
    control: Control, specs: RequestSpecs, rules: Rules | None, numbers: dict[int, Chance]
) -> Gateway | None:
    """Return the gateway of a run; None: there is none.

    Args:
        rules: Where requests go by routing rule; None: there are no such rules.
        numbers: Sources of random numbers, by consumer; those of the API are added.
    """
    cache, api, fair = control.response_cache, control.overflow, control.fairness
    if cache is None and api is None and fair is None and rules is None:
        return None
    count = len(specs)
    return Gateway(
        count,
        None if cache is None else _cache_of(cache, specs),
        None if api is None else _api_of(api, specs, numbers),
        None if fair is None else _turns_of(fair, specs),
        [] if rules is None else [int(not pools) for pools in rules.allowed],
        column(np.full(count, NEVER) if rules is None else rules.second, np.int32),
    )


def gateway_totals(gateway: Gateway, rules: Rules | None, class_names: tuple[str, ...]) -> FrontTotals:
    """Return the totals of a gateway; after the run."""
    cache, api, fair = gateway.cache, gateway.api, gateway.fair
    return FrontTotals(
        first_questions=None if cache is None else cache.num_first,
        expired=0 if cache is None else cache.num_expired,
        limited=0 if api is None else api.num_limited,
        asked_again=None if rules is None or not rules.asks_twice else gateway.num_asked_again,
        discarded_tokens=gateway.discarded_tokens,
        service={} if fair is None else dict(zip(class_names, fair.service, strict=False)),
    )


def _cache_of(spec: ResponseCacheSpec, specs: RequestSpecs) -> ResponseCache:
    questions = _questions(spec, specs)
    return ResponseCache(
        column(questions, np.int64),
        column(np.full(questions.max(initial=0) + 1, NOT_MADE)),
        spec.questions is None,
        INFINITY if spec.expiry is None else spec.expiry,
        spec.latency,
    )


def _questions(spec: ResponseCacheSpec, specs: RequestSpecs) -> NDArray[np.int64]:
    """Return the number of each request's question, equal for requests that ask the same; -1: no other asks it."""
    count = len(specs)
    shares = np.array([spec.share_of(each.name) for each in specs.classes] or [spec.share_of(None)])
    number = np.zeros(count, dtype=np.int64) if specs.request_class is None else specs.request_class.astype(np.int64)
    comes_again = rng.stream(specs.seed, "response_cache", specs.replication).random(count) < shares[number]
    if spec.questions is None:
        return np.where(comes_again, 0, ALONE)
    weights = np.cumsum(np.arange(1.0, spec.questions + 1.0) ** -spec.zipf)
    uniforms = rng.stream(specs.seed, "response_cache.questions", specs.replication).random(count)
    drawn = np.minimum(np.searchsorted(weights, uniforms * weights[-1], side="right"), spec.questions - 1)
    return np.where(comes_again, drawn + spec.questions * number, ALONE)


def _api_of(spec: OverflowSpec, specs: RequestSpecs, numbers: dict[int, Chance]) -> Api:
    room = min(_ANSWERS_AT_ONCE, len(specs))
    ttft = numbers[TO_ANSWER] = LognormalChance(specs, "overflow", spec.ttft_cv, room)
    speed = LognormalChance(specs, "overflow.speed", spec.tokens_per_second_cv, room)
    numbers[TO_PACE] = speed
    rules = [DEPENDS] if specs.request_class is None else [_class_rule(spec, each.name) for each in specs.classes]
    return Api(
        max_queue=NO_LIMIT if spec.max_queue is None else spec.max_queue,
        above=None if spec.above_rate is None else Bucket(spec.above_rate.rate, spec.above_rate.burst),
        class_rule=rules,
        kinds=kinds_of(specs),
        calls=_a_minute(spec.requests_per_minute),
        tokens=_a_minute(spec.tokens_per_minute),
        when_limited=_WHEN_LIMITED[spec.when_limited],
        ttft=spec.ttft,
        tokens_per_second=spec.tokens_per_second,
        ttft_factors=ttft.uniforms,
        gap_factors=speed.uniforms,
    )


def _class_rule(spec: OverflowSpec, name: str) -> int:
    """Return whether a class always goes to the API, never does, or depends on the load."""
    if name in (spec.always or ()):
        return ALWAYS
    return EXCEPTED if name in (spec.never or ()) else DEPENDS


def _a_minute(limit: float | None) -> Bucket | None:
    """Return a limit per minute as a bucket that starts full."""
    return None if limit is None else Bucket(limit / _SECONDS_PER_MINUTE, limit)


def _turns_of(spec: FairnessSpec, specs: RequestSpecs) -> FairTurns:
    assert specs.request_class is not None, "checked where the scenario was resolved"
    shares = [float(spec.shares[each.name]) for each in specs.classes]
    return FairTurns(kinds_of(specs), shares, NO_LIMIT if spec.max_outstanding is None else spec.max_outstanding)
