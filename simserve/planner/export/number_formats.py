"""The flags that name the number format of a server's arithmetic and of its KV cache. Knows no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Deployment
from simserve.planner.export.flags import Flags
from simserve.scenario.formats import COMPRESSED_KV

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Number format of a scenario -> what servers call it on ``--dtype``."""

_KV_FLAG = "--kv-cache-dtype"


def arithmetic_dtype(deployment: Deployment) -> str:
    """Return the format in which a deployment computes where its weights are not quantised."""
    quantization = deployment.quantization
    return quantization if quantization in DTYPES else deployment.model.dtype


def kv_cache_words(deployment: Deployment, flags: Flags, low_bit: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the flag of the KV cache's number format, or nothing where the server's default is it.

    Args:
        deployment: What is exported.
        flags: Those of the engine's version.
        low_bit: Format of 8 bits and fewer -> what the engine has called it, the newest name first.

    Raises:
        ScenarioError: The engine's version stores no such KV cache.
    """
    key, asked = "deployment.kv_cache_dtype", deployment.scenario.deployment.kv_cache_dtype
    if asked == "auto" and deployment.model.compressed_attention is not None:
        asked = COMPRESSED_KV  # vLLM from 0.20 to 0.29 stops at its own default
    if asked in DTYPES and (asked != arithmetic_dtype(deployment) or deployment.kv_of_auto not in DTYPES):
        return flags.render(_KV_FLAG, DTYPES[asked], key=key)
    if asked in DTYPES or asked == "auto":
        return [_KV_FLAG, "auto"] if deployment.is_explicit and flags.has(_KV_FLAG) else []
    value = next((each for each in low_bit.get(asked, ()) if flags.has(_KV_FLAG, each)), None)
    if value is None:
        raise ScenarioError(
            f"cannot be exported: {deployment.label} has no {asked} KV cache",
            key=key,
            value=asked,
            remedy="it stores " + ", ".join(flags.choices.get(_KV_FLAG, (deployment.model.dtype,))),
        )
    return [_KV_FLAG, value]


__all__ = ["DTYPES", "arithmetic_dtype", "kv_cache_words"]
