"""Pricing a deployment once: the same one again costs a look-up, as sweeps, searches and curves over seats ask for.

Knows that equal deployments cost the same; what they cost is `simserve.perf.tables`'.
"""

from __future__ import annotations

from functools import lru_cache

from simserve.perf import tables
from simserve.perf.parts import PricedDeployment
from simserve.perf.shape import ReplicaShape

KEPT = 32
"""Deployments kept, about 1 MB each."""


class _ByValue:
    """A deployment that equals another of the same values: profiles hold mappings, which have no hash."""

    __slots__ = ("shape", "text")

    def __init__(self, shape: ReplicaShape) -> None:
        self.shape = shape
        self.text = repr(shape)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByValue) and self.text == other.text


def price(shape: ReplicaShape, max_tokens_in_table: int | None = None) -> PricedDeployment:
    """Return the seconds of every step that a replica can take, as `simserve.perf.tables.price`.

    The result is shared between callers: nobody may change its arrays. Deployments with operator tables are priced
    anew, since files change.

    Raises:
        InputError: The GPU, the engine or the links do not support the deployment.
    """
    if shape.operator_tables is not None:
        return tables.price(shape, max_tokens_in_table)
    return _price(_ByValue(shape), max_tokens_in_table)


@lru_cache(maxsize=KEPT)
def _price(key: _ByValue, max_tokens_in_table: int | None) -> PricedDeployment:
    return tables.price(key.shape, max_tokens_in_table)
