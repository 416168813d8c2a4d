"""The blocks of an engine profile: versions written out, devices, how a measured server differs from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from simserve.errors import InputError, ProfileError
from simserve.profiles.checkpoint import WIDE_FORMATS, WeightFormatName
from simserve.validation import FrozenModel

_VERSION = re.compile(r"[vb]?(\d+(?:\.\d+)*)")
KEPT_VERSIONS = 1024
"""Version numbers that are read once: a search compares a few with each other in every trial."""
MARLIN_MAKER = "NVIDIA"
"""Whose GPUs have kernels that unpack weights in FP8 and NVFP4 where there is no arithmetic for them (Marlin)."""
FACTORS = ("gpu", "host", "prompts", "batch", "frontend")
"""Names of the factors of `MeasuredFactors`."""


def complete_versions(document: Mapping[str, Any], file: Path) -> list[dict[str, Any]]:
    """Return every block of each version, oldest first, as the file writes them: units and sources included.

    Args:
        document: What the file holds: ``defaults``, and ``versions`` with the keys that changed since the one before.
        file: Named in errors.

    Raises:
        ProfileError: A part is missing, or a changed block says no ``source``.
    """
    blocks = document.get("defaults")
    changes = document.get("versions")
    if not isinstance(blocks, dict):
        raise ProfileError("must be a mapping of blocks", file=file, key="defaults")
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        raise ProfileError("must be a list of mappings", file=file, key="versions")
    complete: list[dict[str, Any]] = []
    for change in changes:
        merged = dict(blocks)
        for block, values in change.items():
            if isinstance(values, dict):
                if "source" not in values:
                    key = f"versions.{change.get('version')}.{block}.source"
                    raise ProfileError("is missing", file=file, key=key, remedy="say where the numbers come from")
                merged[block] = {**merged.get(block, {}), **values}
            else:
                merged[block] = values
        complete.append(merged)
        blocks = {block: values for block, values in merged.items() if block != "version"}
    return complete


def version_key(version: str, known: list[str] | None = None) -> tuple[int, ...]:
    """Return a version as numbers that compare as versions do: ``"0.10.2"`` -> ``(0, 10, 2)``.

    A leading ``v`` or ``b`` (llama.cpp builds) and what follows the numbers (``rc2``) are ignored.

    Raises:
        InputError: The text does not begin with a number.
    """
    numbers = _numbers_of(version)
    if numbers is None:
        remedy = f"known are {', '.join(known)}" if known else None
        raise InputError("is not a version number", key="deployment.engine.version", value=version, remedy=remedy)
    return numbers


@lru_cache(maxsize=KEPT_VERSIONS)
def _numbers_of(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version without zeros at its end; None where the text does not begin with one."""
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


class Devices(FrozenModel):
    """Whose devices an engine runs on."""

    makers: Mapping[str, str]
    """Maker, as hardware profiles name it -> the plug-in that brings the kernels; "": they are the engine's own."""
    formats: Mapping[str, tuple[WeightFormatName, ...]] = {}
    """Maker -> weight formats below 16 bit that run there; of makers that are not named, all that the engine has."""
    source: str
    """Where that is said."""

    def restricted(self, maker: str, engine: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of an engine's facts is other on a maker's devices; of a maker that is not named nothing.

        Args:
            maker: As hardware profiles name it.
            engine: Its `supported_quantizations`, `quantises_on_load` and `quantises_before_loading`.
        """
        if maker not in self.makers or maker == MARLIN_MAKER:
            return {}
        changed: dict[str, Any] = {"has_weight_only_floats": False, "plugin": self.makers[maker]}
        if self.makers[maker]:
            # Graphs are CUDA's and HIP's: plug-ins compile, and keep no pool for them.
            changed |= {"cuda_graph_bytes": 0.0}
        if maker in self.formats:
            run = {*WIDE_FORMATS, *self.formats[maker]}
            changed |= {key: tuple(each for each in known if each in run) for key, known in engine.items()}
        return changed


class KernelBlock(FrozenModel):
    """Tokens of a KV block that an attention kernel forces, where nobody sets them."""

    since: str
    """First version that forces them."""
    until: str | None = None
    """First version that does not; absent: there is none."""
    attention: Literal["latent", "sparse"]
    """Whose: latent attention that reads all keys, or attention whose indexer chooses them."""
    capability_at_least: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which it is so; absent: from any."""
    capability_below: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which it is so no more; absent: at none."""
    tokens: int = Field(ge=1)
    """Tokens a block."""
    source: str
    """Where that is said."""

    def holds(self, version: str, attention: str | None, compute_capability: str | None) -> bool:
        """Return whether a version forces it for a kind of attention on a GPU; never on those of other makers."""
        if attention != self.attention or compute_capability is None:
            return False
        is_new = version_key(self.since) <= version_key(version)
        is_old = self.until is None or version_key(version) < version_key(self.until)
        least, below = self.capability_at_least or 0.0, self.capability_below or float("inf")
        return is_new and is_old and least <= float(compute_capability) < below


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
