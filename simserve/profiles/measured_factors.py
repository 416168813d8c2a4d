"""MeasuredFactors: how one measured server differs from its engine's profile, as a profile of its own states it."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from simserve.validation import FrozenModel


class MeasuredFactors(FrozenModel):
    """How much longer or shorter one server takes than the rest of the profile says; `calibrate serving` fits them."""

    gpu: PositiveFloat = 1.0
    """Times as long as priced that the GPU (or the CPU that computes) takes for every step."""
    host: PositiveFloat = 1.0
    """Times as long that the host takes for a step and a request, and that kernels take to start."""
    prompts: PositiveFloat = 1.0
    """Times as long, beside `gpu`, that steps take which hold prompts."""
    batch: PositiveFloat = 1.0
    """Times as long, beside `gpu`, that a decode step takes for what it takes beyond one request without context."""
    frontend: PositiveFloat = 1.0
    """Times as long that a request takes from arrival to the scheduler; without effect where a scenario sets that."""
    measured_on: str
    """Model, GPUs and engine of that server, and how many runs: results that use the factors say so."""
    date: str | None = None
    """Day of the measurements, as their files or their owner say."""
    model: str | None = None
    """The model of that server, as the catalogue names it: what is expected of a server like it rests on its runs."""
    hardware: str | None = None
    """Its GPU, likewise."""
    gpus: PositiveInt | None = None
    """GPUs of a replica of it."""
    runs: PositiveInt | None = None
    """Loads that were measured."""
    source: str
    """Files, and what the fit found."""

    @property
    def values(self) -> dict[str, float]:
        """The factors by name."""
        return {name: getattr(self, name) for name in FACTORS}


FACTORS = ("gpu", "host", "prompts", "batch", "frontend")
"""Names of the factors of `MeasuredFactors`."""
