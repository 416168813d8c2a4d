"""Regions: which pools are near to whom, when a request goes farther, and how long its way takes. Serves nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.engine import plane_state
from simserve.engine.numbers import column
from simserve.engine.state import INFINITY
from simserve.sim.pools import PoolSetup
from simserve.sim.region_spec import RegionsSpec
from simserve.workload.requests import RequestSpecs


class Regions:
    """The regions of a run.

    Args:
        spec: Where clients are, and how far apart regions are; it covers all that are named.
        pools: All pools of the run, each with its region.
        specs: What arrives, for its seed and its classes.

    Attributes:
        names: The regions that clients are in.
        home: Of each request an index into ``names``, shape [N].
    """

    def __init__(self, spec: RegionsSpec, pools: Sequence[PoolSetup], specs: RequestSpecs) -> None:
        own = [each.region for each in specs.classes if each.region is not None]
        self.names = tuple(dict.fromkeys([*spec.clients, *own]))
        self.home = _homes(spec, self.names, specs)
        self._pools, self._spill_above = pools, spec.spill_above
        self._has_thinking = specs.thinking_tokens is not None
        self._places = places = list(dict.fromkeys(pool.region for pool in pools))
        self._seconds = [{place: spec.one_way(name, place) or 0.0 for place in places} for name in self.names]
        self._nearest = [sorted(places, key=seconds.__getitem__) for seconds in self._seconds]

    def on_plane(self, members: Sequence[Sequence[int]], *, is_streamed: bool) -> plane_state.Regions:
        """Return them as the plane goes by them.

        Args:
            members: The replicas of each pool.
            is_streamed: Whether tokens are on their way one by one.
        """
        places, pools = self._places, self._pools
        place_of_pool = [places.index(each.region) for each in pools]
        return plane_state.Regions(
            home=column(self.home, np.int32),
            num_places=len(places),
            nearest=[places.index(place) for own in self._nearest for place in own],
            seconds=[own[place] for own in self._seconds for place in places],
            place_of_pool=[place for each, place in zip(pools, place_of_pool, strict=True) if each.role != "decode"],
            place_of=[place for place, numbers in zip(place_of_pool, members, strict=True) for _ in numbers],
            spill_above=INFINITY if self._spill_above is None else self._spill_above,
            is_streamed=is_streamed,
            has_thinking=self._has_thinking,
        )


def _homes(spec: RegionsSpec, names: tuple[str, ...], specs: RequestSpecs) -> NDArray[np.int16]:
    """Return the region of every client: its class's, or drawn by the shares."""
    count = len(specs)
    homes = np.zeros(count, dtype=np.int16)
    if spec.clients:
        generator = rng.stream(specs.seed, "regions", specs.replication)
        edges = np.cumsum(list(spec.clients.values()))[:-1]
        homes = np.searchsorted(edges, generator.random(count), side="right").astype(np.int16)
    if specs.request_class is not None:
        for number, each in enumerate(specs.classes):
            if each.region is not None:
                homes[specs.request_class == number] = names.index(each.region)
    return homes
