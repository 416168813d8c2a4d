"""Regions: where clients and pools are, from what a scenario says to what `simserve.engine.regions` goes by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simserve.engine import regions as engine
from simserve.engine.numbers import column
from simserve.engine.state import INFINITY
from simserve.sim.pools import PoolSetup
from simserve.sim.region_spec import RegionsSpec
from simserve.sim.regions import homes_of
from simserve.workload.requests import RequestSpecs


class Regions:
    """The regions of a run.

    Args:
        spec: Where clients are, and how far apart regions are; it covers all that are named.
        setups: All pools of the run, each with its region.
        specs: What arrives, for its seed and its classes.

    Attributes:
        names: The regions that clients are in.
        home: Of each request an index into ``names``, shape [N].
    """

    def __init__(self, spec: RegionsSpec, setups: Sequence[PoolSetup], specs: RequestSpecs) -> None:
        own = [each.region for each in specs.classes if each.region is not None]
        self.names = tuple(dict.fromkeys([*spec.clients, *own]))
        self.home = homes_of(spec, self.names, specs)
        self._spec, self._setups = spec, setups
        self._places = list(dict.fromkeys(each.region for each in setups))

    def on_plane(self, members: Sequence[Sequence[int]], *, is_streamed: bool) -> engine.Regions:
        """Return them as the plane goes by them.

        Args:
            members: The replicas of each pool.
            is_streamed: Whether tokens are on their way one by one.
        """
        spec, places, setups = self._spec, self._places, self._setups
        seconds = [[spec.one_way(name, place) or 0.0 for place in places] for name in self.names]
        nearest = [sorted(range(len(places)), key=own.__getitem__) for own in seconds]
        place_of_pool = [places.index(each.region) for each in setups]
        return engine.Regions(
            home=column(self.home, np.int32),
            num_places=len(places),
            nearest=[place for own in nearest for place in own],
            seconds=[way for own in seconds for way in own],
            place_of_pool=[place for each, place in zip(setups, place_of_pool, strict=True) if each.role != "decode"],
            place_of=[place for place, numbers in zip(place_of_pool, members, strict=True) for _ in numbers],
            spill_above=INFINITY if spec.spill_above is None else spec.spill_above,
            is_streamed=is_streamed,
        )
