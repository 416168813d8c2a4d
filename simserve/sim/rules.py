"""Rules: which pools a request may go to, by its class and its length, and whose answer has to be asked again.

Draws who is misclassified; knows no load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.sim.routing_spec import API_POOL, RuleSpec
from simserve.workload.requests import RequestSpecs

NEVER = -1
Kinds = NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Where every request may go.

    Attributes:
        allowed: Indices of the pools that take requests, by kind of request; none: the API does.
        kinds: Kind of each request, shape [N].
        second: Kind that a request becomes when its first answer does not do; -1: it does. Shape [N].
        asks_twice: Whether any rule misclassifies.
    """

    allowed: tuple[tuple[int, ...], ...]
    kinds: Kinds
    second: Kinds
    asks_twice: bool

    def for_limits(self) -> tuple[tuple[tuple[int, ...], ...], Kinds]:
        """Return all pools that may see a request, by kind, and those kinds: their length limits hold for it."""
        pairs, numbers = np.unique(np.stack([self.kinds, self.second]), axis=1, return_inverse=True)
        both = [
            tuple(sorted({*self.allowed[first], *(self.allowed[second] if second != NEVER else ())}))
            for first, second in pairs.T.tolist()
        ]
        return tuple(both), numbers.reshape(-1).astype(np.int16)


def rules_of(
    rules: Sequence[RuleSpec], allowed: Sequence[Sequence[int]], pools: Sequence[str], specs: RequestSpecs
) -> Rules | None:
    """Return where requests go under the rules of a router; None without rules.

    Args:
        rules: In order; the first that fits counts.
        allowed: Indices of pools by class; empty: all, for all. A class that is bound to a pool obeys a rule only
            where that names it.
        pools: Names of the pools that take requests.
        specs: What arrives.
    """
    if not rules:
        return None
    count = len(specs)
    everywhere = tuple(range(len(pools)))
    by_class = [tuple(each) for each in allowed] or [everywhere] * max(len(specs.classes), 1)
    own = np.zeros(count, dtype=np.int16) if specs.request_class is None else specs.request_class
    known = list(by_class)
    kinds, second = own.astype(np.int16), np.full(count, NEVER, dtype=np.int16)
    uniforms = rng.stream(specs.seed, "misclassified", specs.replication).random(count)
    is_open = np.ones(count, dtype=bool)
    for rule in rules:
        fits = is_open & _fits(rule, specs, own, by_class, everywhere)
        is_open &= ~fits
        known.append(_places(rule.pool, pools))
        kinds[fits] = len(known) - 1
        if rule.misclassified is not None and rule.retry_pool is not None:
            known.append(_places(rule.retry_pool, pools))
            second[fits & (uniforms < rule.misclassified)] = len(known) - 1
    asks_twice = any(rule.misclassified is not None for rule in rules)
    return Rules(allowed=tuple(known), kinds=kinds, second=second, asks_twice=asks_twice)


def _places(name: str, pools: Sequence[str]) -> tuple[int, ...]:
    return () if name == API_POOL else (pools.index(name),)


def _fits(
    rule: RuleSpec,
    specs: RequestSpecs,
    own: Kinds,
    by_class: Sequence[tuple[int, ...]],
    everywhere: tuple[int, ...],
) -> NDArray[np.bool_]:
    """Return which requests a rule is about."""
    fits = np.ones(len(specs), dtype=bool)
    if rule.min_prompt_tokens is not None:
        fits &= specs.prompt_tokens >= rule.min_prompt_tokens
    if rule.max_prompt_tokens is not None:
        fits &= specs.prompt_tokens <= rule.max_prompt_tokens
    names = [each.name for each in specs.classes]
    if rule.classes is not None:
        return fits & np.isin(own, [names.index(name) for name in rule.classes])
    bound = [number for number, each in enumerate(by_class) if each != everywhere]
    return fits & ~np.isin(own, bound)
