"""Turns a pasted `lmdeploy serve api_server` line into a scenario: what LMDeploy's flags mean."""

from __future__ import annotations

import re
from typing import Any

from simserve.planner.importers.server import Program, Reading, chosen, counted, measured, only, read_dtype, switched

_FORMATS = {"awq": "awq-int4", "gptq": "gptq-int4", "fp8": "fp8", "mxfp4": "mxfp4"}
"""LMDeploy's ``--model-format`` -> the scenario's; all others are 16-bit."""


def _format(reading: Reading, _: str, value: Any) -> None:
    reading.quantization = _FORMATS.get(str(value))


LMDEPLOY = Program(
    engine="lmdeploy",
    title="LMDeploy",
    sign=re.compile(r"\blmdeploy\b"),
    starts=("serve api_server",),
    image=re.compile(r"(?:^|/)lmdeploy:v(\d+(?:\.\d+)+)"),
    lacks="holds no lmdeploy serve api_server",
    example="lmdeploy serve api_server ORG/NAME",
    names_model="write lmdeploy serve api_server ORG/NAME",
    readers={
        "--tp": counted("tensor_parallel_size", "deployment"),
        "--session-len": counted("max_model_len"),
        "--max-batch-size": counted("max_num_seqs"),
        "--cache-block-seq-len": counted("block_size"),
        "--max-prefill-token-num": counted("max_num_batched_tokens"),
        "--enable-prefix-caching": switched("enable_prefix_caching"),
        "--model-format": _format,
        "--dtype": read_dtype,
        "--quant-policy": chosen("kv_cache_dtype", {"4": "int4", "8": "int8"}, default="0", part="deployment"),
        "--cache-max-entry-count": measured("gpu_memory_utilization", "is not a share"),
        "--backend": only("turbomind"),
    },
    without_effect=re.compile(
        r"--(?:server-name|server-port|allow-.*|proxy-url|log-level|api-keys?|ssl|model-name|max-log-len|disable-fastapi-docs|"
        r"chat-template|revision|download-dir|device|tool-call-parser|reasoning-parser|num-tokens-per-iter|max-prefill-iters)"
    ),
)
"""``lmdeploy serve api_server MODEL ...``, or a ``docker run`` of it."""
