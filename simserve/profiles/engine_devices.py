"""Whose devices an engine runs on, and what of it runs on a maker's: not everything that runs on NVIDIA's does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.profiles.checkpoint import WIDE_FORMATS, WeightFormatName
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
