"""The bound that people work out by hand, from the functions that price steps: no efficiencies, no latencies."""

from __future__ import annotations

from simserve.perf.quantization import kv_element_bytes
from simserve.perf.shape import weights_bytes
from simserve.profiles.hardware import HardwareProfile
from simserve.profiles.model import ModelProfile


def memory_wall_seconds(
    model: ModelProfile,
    hardware: HardwareProfile,
    weight_format: str = "none",
    *,
    num_gpus: int = 1,
    num_context_tokens: int = 0,
    kv_cache_dtype: str = "auto",
) -> float:
    """Return the least seconds of a decode step: every weight, and every cached key and value, is read once.

    Args:
        model: What decodes; all its experts are read.
        hardware: The GPU, at its full bandwidth.
        weight_format: As in a scenario's ``quantization``.
        num_gpus: GPUs that share the bytes evenly.
        num_context_tokens: Tokens in the KV cache, summed over the batch; 0: weights only.
        kv_cache_dtype: As in a scenario.
    """
    cached = num_context_tokens * model.kv_bytes_per_token(kv_element_bytes(kv_cache_dtype))
    num_bytes = weights_bytes(model, weight_format) + cached
    bandwidth = num_gpus * hardware.memory.bandwidth
    return num_bytes / bandwidth
