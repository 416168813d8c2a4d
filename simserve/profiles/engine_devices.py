"""Whose devices an engine runs on, what of it runs on a maker's, and the KV blocks that kernels force on some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from simserve.profiles.checkpoint import WIDE_FORMATS, WeightFormatName
from simserve.profiles.engine_blocks import version_key
from simserve.validation import FrozenModel

MARLIN_MAKER = "NVIDIA"
"""Whose GPUs have kernels that unpack weights in FP8 and NVFP4 where there is no arithmetic for them (Marlin)."""


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
