"""The `deployment.regions` block: where clients and pools are, and how far apart. Routes nothing.

The text below a field is its entry in the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from simserve.units import Seconds
from simserve.validation import NAME_PATTERN, FrozenModel

Region = Annotated[str, Field(pattern=NAME_PATTERN, max_length=60)]


class RegionsSpec(FrozenModel):
    """Pools in regions (`region` of each pool), and clients that are nearer to some than to others.

    A request goes to the nearest region with a pool that may serve it and is ready. Its way there and the way of its
    answer back are part of TTFT and E2E, as its client sees them, beside `streaming.network_latency`. KV caches do not
    leave their region: one with a prefill pool has a decode pool. (Time limits of clients run until the replica has
    answered, not until the answer has arrived.)
    """

    clients: dict[Region, Annotated[float, Field(gt=0, le=1)]] = Field(default={})
    """Share of the clients in each region; they add up to 1. A class with a `region` of its own needs none."""
    latency: dict[Region, dict[Region, Seconds]] = Field(default={})
    """One way between two regions, network and gateways; given one way round, it is that of the other too."""
    within: Seconds = 0.002
    """One way between a client and a pool of its own region."""
    spill_above: Annotated[float, Field(gt=0)] | None = None
    """Requests a ready replica, on average over a region's pools, above which a request goes on to the next nearest
    region; where all are above, to the one with the fewest. Absent: it stays in the nearest."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.clients and abs(sum(self.clients.values()) - 1) > 1e-6:
            raise ValueError(
                f"clients have shares that add up to {sum(self.clients.values()):g}; they must add up to 1"
            )
        for here, there, seconds in self._links():
            if here == there:
                raise ValueError(f"latency of {here} to itself is `within`")
            back = self.latency.get(there, {}).get(here, seconds)
            if back != seconds:
                raise ValueError(f"latency between {here} and {there} is given twice, as {seconds:g} s and {back:g} s")
        return self

    def one_way(self, here: str, there: str) -> float | None:
        """Return the seconds from a client's region to a pool's; None where the block does not say."""
        if here == there:
            return self.within
        return self.latency.get(here, {}).get(there, self.latency.get(there, {}).get(here))

    def _links(self) -> Iterator[tuple[str, str, float]]:
        for here, others in self.latency.items():
            for there, seconds in others.items():
                yield here, there, seconds
