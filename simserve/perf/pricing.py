"""Pricing a deployment once: the same one again costs a look-up, as sweeps, searches and curves over seats ask for.

Knows that equal deployments cost the same; what they cost is `simserve.perf.tables`'.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache

from simserve.perf import tables
from simserve.perf.parts import PricedDeployment
from simserve.perf.shape import ReplicaShape

_OTHER_FIELDS = [each.name for each in fields(ReplicaShape) if each.name not in ("hardware", "model", "speculation")]
KEPT = 64
"""Deployments kept, about 1 MB each."""


class _ByValue:
    """A deployment that equals another of the same values: profiles hold mappings, which have no hash.

    Of the GPU and the model it is the very profile, as the catalogue reads each file once: spelling out their curves
    takes a tenth as long as pricing.
    """

    __slots__ = ("profiles", "shape", "text")

    def __init__(self, shape: ReplicaShape) -> None:
        self.shape = shape
        self.profiles: list[object] = []
        self.text = self._spelled(shape)

    def _spelled(self, shape: ReplicaShape) -> str:
        self.profiles += (shape.hardware, shape.model)
        others = [getattr(shape, name) for name in _OTHER_FIELDS]
        speculation = shape.speculation
        if speculation is None or speculation.draft is None:
            return repr((others, speculation))
        return repr((others, replace(speculation, draft=None), self._spelled(speculation.draft)))

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _ByValue)
            and self.text == other.text
            and all(mine is theirs for mine, theirs in zip(self.profiles, other.profiles, strict=True))
        )


def price(shape: ReplicaShape, max_tokens_in_table: int | None = None) -> PricedDeployment:
    """Return the seconds of every step that a replica can take, as `simserve.perf.tables.price`.

    The result is shared between clients: nobody may change its arrays. Deployments with operator tables are priced
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
