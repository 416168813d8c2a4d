"""Converts sources' names of engines, GPUs, models and number formats to the catalogue's."""

from __future__ import annotations

import re

_ENGINES = (
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("trtllm", "tensorrt-llm"),
    ("tensorrt-llm", "tensorrt-llm"),
    ("lmdeploy", "lmdeploy"),
    ("turbomind", "lmdeploy"),
    ("llama.cpp", "llama.cpp"),
    ("exllama", "exllama"),
    ("mlc", "mlc-llm"),
)
"""Prefix of a framework's name -> engine profile; the profile need not exist."""

_HARDWARE = (
    (r"h100.*nvl", "h100-nvl-94gb"),
    (r"h100.*pcie", "h100-pcie-80gb"),
    (r"h100.*pcap", "h100-sxm-80gb-power-capped"),
    (r"h100", "h100-sxm-80gb"),
    (r"gh200.*(120|nvl4)", "gh200-nvl4-96gb"),
    (r"gh200", "gh200-96gb"),
    (r"h200.*nvl", "h200-nvl-141gb"),
    (r"h200", "h200-sxm-141gb"),
    (r"h20\b", "h20-96gb"),
    (r"gb200", "gb200-186gb"),
    (r"gb300", "gb300-279gb"),
    (r"b300", "b300-sxm-270gb"),
    (r"b200", "b200-sxm-180gb"),
    (r"a100.*pcie", "a100-pcie-80gb"),
    (r"a100.*40", "a100-sxm-40gb"),
    (r"a100", "a100-sxm-80gb"),
    (r"a10g", "a10g-24gb"),
    (r"a10\b", "a10-24gb"),
    (r"a40", "a40-48gb"),
    (r"rtx ?pro ?6000|6000 pro", "rtx-pro-6000-96gb"),
    (r"6000 ada", "rtx-6000-ada-48gb"),
    (r"5000 ada", "rtx-5000-ada-32gb"),
    (r"4000 ada", "rtx-4000-ada-20gb"),
    (r"a6000", "rtx-a6000-48gb"),
    (r"5090", "rtx-5090-32gb"),
    (r"4090", "rtx-4090-24gb"),
    (r"3090 ti|3090ti", "rtx-3090-ti-24gb"),
    (r"3090", "rtx-3090-24gb"),
    (r"\bl4\b", "l4-24gb"),
    (r"l40s", "l40s-48gb"),
    (r"v100s", "v100s-32gb"),
    (r"\bt4\b", "t4-16gb"),
    (r"mi300x", "mi300x-192gb"),
    (r"mi325x", "mi325x-256gb"),
    (r"mi355x", "mi355x-288gb"),
    (r"m1 max 32.core", "m1-max-64gb"),
    (r"m2 max", "m2-max-96gb"),
    (r"m2 ultra 76.core", "m2-ultra-192gb"),
    (r"m3 max 40.core", "m3-max-64gb"),
)
"""Pattern in a source's name, lower case -> hardware profile; first match."""

_MODELS = (
    (r"llama-?\s?v?3\.3[- ]70b", "llama-3.3-70b"),
    (r"llama-?\s?v?3\.1[- ]405b", "llama-3.1-405b"),
    (r"llama-?\s?v?3\.1[- ]70b", "llama-3.1-70b"),
    (r"llama-?\s?v?3\.1[- ]8b", "llama-3.1-8b"),
    (r"llama-?\s?v?3[- ]70b", "llama-3-70b"),
    (r"llama-?\s?v?3[- ]8b", "llama-3-8b"),
    (r"codellama[- ]34b", "codellama-34b"),
    (r"llama-?_?2?[-_ ](chat-)?70b", "llama-2-70b"),
    (r"llama-?_?2?[-_ ](chat-)?13b", "llama-2-13b"),
    (r"llama-?_?2?[-_ ](chat-)?7b", "llama-2-7b"),
    (r"mixtral[- ]8x22b", "mixtral-8x22b"),
    (r"mixtral[- ]8x7b", "mixtral-8x7b"),
    (r"mistral[- ]7b", "mistral-7b"),
    (r"falcon[- ]180b", "falcon-180b"),
    (r"gpt-?j", "gpt-j-6b"),
    (r"bloom-176b", "bloom-176b"),
    (r"internlm-20b", "internlm-20b"),
    (r"internlm2-chat-7b", "internlm2-chat-7b"),
    (r"qwen3-235b-a22b", "qwen3-235b-a22b"),
    (r"qwen3-30b-a3b", "qwen3-30b-a3b"),
    (r"qwen3-32b", "qwen3-32b"),
    (r"qwen3\.5-397b-a17b", "qwen3.5-397b-a17b"),
    (r"qwen3-next-80b-a3b", "qwen3-next-80b-a3b"),
    (r"qwen2\.5-72b", "qwen2.5-72b"),
    (r"qwen2\.5-32b", "qwen2.5-32b"),
    (r"qwen2\.5-7b", "qwen2.5-7b"),
    (r"gemma-3-27b", "gemma-3-27b"),
    (r"llama[- ]4[- ]scout", "llama-4-scout"),
    (r"qwen2\.5-0\.5b", "qwen2.5-0.5b"),
    (r"deepseek-v3", "deepseek-v3"),
    (r"deepseek-r1", "deepseek-r1"),
    (r"gpt-oss-120b", "gpt-oss-120b"),
    (r"gpt-oss-20b", "gpt-oss-20b"),
    (r"minimax-m2", "minimax-m2"),
    (r"glm-5", "glm-5"),
    (r"kimi-k2", "kimi-k2"),
    (r"phi-4-mini", "phi-4-mini"),
)
"""Pattern in a source's name, lower case -> model profile; first match."""

_FORMATS = {
    "": "none",
    "bf16": "none",
    "fp16": "none",
    "bfloat16": "none",
    "mixed(fp16/bf16)": "none",
    "fp8": "fp8",
    "w8a8": "int8",
    "w8a16": "int8-wo",
    "w4a16": "gptq-int4",
    "w4a16 (awq)": "awq-int4",
    "int4 awq": "awq-int4",
    "int4_awq": "awq-int4",
    "int8_wo": "int8-wo",
    "int4_wo": "int4",
    "gptq": "gptq-int4",
    "f16": "none",
    "w4a16 awq": "awq-int4",
    "q4_k_m": "gguf-q4_k_m",
    "q2_k": "gguf-q2_k",
    "q8_0": "gguf-q8_0",
    "q4_0": "gguf-q4_0",
    "q6_k": "gguf-q6_k",
    "q5_k_m": "gguf-q5_k_m",
    "q3_k_m": "gguf-q3_k_m",
    "iq4_xs": "gguf-iq4_xs",
    "fp4": "mxfp4",
}
"""Source's precision, lower case -> quantization; "FP4" on Hopper is mxfp4."""

_WITH_FP4 = ("b200", "b300", "gb200", "gb300", "rtx-pro-6000")
"""Prefixes of the hardware profiles of GPUs with FP4 arithmetic."""

_VERSION = re.compile(r"\d+(?:\.\d+)*")


def engine_name(framework: str) -> str:
    """Return the engine profile's name; if none is known, the source's own in lower case."""
    lower = framework.lower()
    return next((name for start, name in _ENGINES if lower.startswith(start)), lower)


def hardware_name(hardware: str) -> str:
    """Return the hardware profile's name; if none is known, the source's own in lower case."""
    lower = hardware.lower().replace("_", " ")
    return next((name for pattern, name in _HARDWARE if re.search(pattern, lower)), lower)


def model_name(model: str) -> str:
    """Return the model profile's name; if none is known, the source's own in lower case."""
    lower = model.lower()
    return next((name for pattern, name in _MODELS if re.search(pattern, lower)), lower)


def quantization_name(precision: str, hardware: str = "") -> str:
    """Return the scenario's weight format; if none is known, the source's own in lower case.

    Args:
        precision: As the source writes it.
        hardware: Catalogue name: "FP4" on Blackwell is NVFP4 (except for gpt-oss, which readers know by name).
    """
    lower = precision.lower()
    if lower == "fp4" and hardware.startswith(_WITH_FP4):
        return "nvfp4"
    return _FORMATS.get(lower, lower)


def version_number(version: str) -> str:
    """Return the leading number of a version (``1.2.0rc6`` -> ``1.2.0``), "" if there is none."""
    found = _VERSION.match(version.lstrip("v"))
    return found.group() if found else ""
