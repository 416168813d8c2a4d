"""Which workers can read each other's KV caches. Simulates nothing.

A cache is handed over as the bytes that it is: of one checkpoint, in one number format, laid out by one attention
kernel. vLLM's NIXL connector compares all three before the first transfer and refuses what differs
(`compute_nixl_compatibility_hash` of its nixl_connector.py); the other engines are taken to ask for the same. An engine
chooses the kernel by the generation of the GPU. So weight formats differ between roles only where the engine makes them
of one checkpoint while it loads.
"""

from __future__ import annotations

from simserve.perf.shape import ReplicaShape
from simserve.profiles.hardware import HardwareProfile
from simserve.profiles.model import ModelProfile
from simserve.scenario.formats import formats_of

Handover = tuple[str, ...]
"""What two workers must have in common: checkpoint, KV format, and who lays the cache out."""

FLASH_GENERATIONS = ("8", "9")
"""CUDA major versions, Ampere, Ada and Hopper, on which engines take FlashAttention for everything but latent attention
(vLLM 0.20, `vllm/platforms/cuda.py`: FLASH_ATTN first; on 10 FLASHINFER is)."""


def handover_of(shape: ReplicaShape) -> Handover:
    """Return what another worker must have in common with a replica to read its KV caches."""
    checkpoint = formats_of(shape, "auto").checkpoint or shape.model.name
    return checkpoint, shape.kv_cache_dtype, *layout_of(shape.hardware, shape.model)


def layout_of(hardware: HardwareProfile, model: ModelProfile) -> tuple[str, str]:
    """Return whose GPU and which generation lays a model's KV cache out."""
    generation = (hardware.compute_capability or hardware.name).partition(".")[0]
    if generation in FLASH_GENERATIONS and model.mla is None:
        generation = FLASH_GENERATIONS[0]
    return hardware.vendor, generation
