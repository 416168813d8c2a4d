"""What a name of published weights reveals: their number format, and the model without tuning and format.

Knows names of formats and repositories, no profiles.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator

from simserve.profiles.checkpoint import KVCacheDtype, Quantization, WeightFormatName

_KEPT_NAMES = 4096  # Names whose plain form is kept: the catalogue's are compared with every name that is asked for.
_FORMATS = (
    ("unquantized", "none"),
    ("gptq-int8", "int8-wo"),
    ("gptq-8bit", "int8-wo"),
    ("awq-8bit", "int8-wo"),
    ("bnb-8bit", "int8-wo"),
    ("bnb-4bit", "nf4"),
    ("awq", "awq-int4"),
    ("gptq", "gptq-int4"),
    ("q6_k", "gguf-q6_k"),
    ("q5_k_m", "gguf-q5_k_m"),
    ("q4_k_m", "gguf-q4_k_m"),
    ("iq4_xs", "gguf-iq4_xs"),
    ("q3_k_m", "gguf-q3_k_m"),
    ("q2_k", "gguf-q2_k"),
    ("q8_0", "gguf-q8_0"),
    ("q4_0", "gguf-q4_0"),
    ("gguf", "gguf-q4_k_m"),
    ("nvfp4a16", "nvfp4-wo"),
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("fp4", "nvfp4"),
    ("w4a16", "int4"),
    ("w8a16", "int8-wo"),
    ("w8a8-fp8", "fp8"),
    ("fp8", "fp8"),
    ("w8a8", "int8"),
    ("int8", "int8"),
    ("int4", "int4"),
    ("bf16", "none"),
)
"""Part of a name -> format; the first that is found counts."""
_BITS_ALONE = (("3bit", "int3"), ("4bit", "int4"), ("8bit", "int8-wo"))
"""Parts of a repository's name without any other format -> integers of that width, as MLX names them."""
_OF_THEMSELVES = ("nvfp4", "mxfp4", "fp8", "int8", "int4", "bf16")  # Parts that are format names themselves.
_NEAREST_GGUF = (
    ("q8", "gguf-q8_0"),
    ("q6", "gguf-q6_k"),
    ("q5", "gguf-q5_k_m"),
    ("q4_0", "gguf-q4_0"),
    ("q4", "gguf-q4_k_m"),
    ("iq4_xs", "gguf-iq4_xs"),
    ("iq4", "gguf-q4_k_m"),
    ("q3_k_l", "gguf-iq4_xs"),
    ("q3", "gguf-q3_k_m"),
    ("iq3", "gguf-q3_k_m"),
    ("mxfp4", "mxfp4"),
    ("", "gguf-q2_k"),
)
"""Prefix of llama.cpp's name of a format -> the simulated format nearest in size, the first found. From the table of
its tools/quantize/README.md: Q4_K_S 4.67 bits per weight, IQ4_NL 4.68, Q3_K_L 4.30, IQ3_M 3.76, Q2_K_S 2.97."""
_GGUF_NAME = re.compile(r"(?:i?q[1-8](?:_\w+)?|tq[12]_0|mxfp4_moe)")
_BITS = re.compile(r"(?:int)?([48])[- ]?bits?")
_SUFFIX = re.compile(
    r"[-._](?:instruct|thinking|chat|hf|it|base|text|pretrained|gguf|awq|gptq|marlin|quantized|qat|dynamic|static|pertensor|"
    r"autoround|a?sym|kv|channel|block|(?:ud-)?i?q\d-(?:[0k](?:-(?:x{0,2}[sml]))?|x{0,2}[sml]|nl|\d)|"
    r"(?:int|fp|nvfp|mxfp|bf|q)\d+\w*|w\d+a\d+|\d+bit|bnb|g?128g?|v0\.\d+|\d{4}|tensor|modelopt|latest|cloud|rl|"
    r"unsloth|mlx|mixed|abliterated|gptq-4b|w-mxfp\d-a-\w+|qad|(?<=fp[48]-)(?:v2|preview)|unquantized|i1|dwq|(?<=dwq-)v\d|"
    r"(?<=abliterated-)v\d|gptqmodel)$"
)
"""Names of a tuning or a number format; versions from 1 on name another model, as deepseek-v3 and -v3.2 do."""
_PARTING = re.compile(r"[-_: ]+")
_PREFIX = re.compile(
    r"^(?:(?:qwen|google|mistralai|deepseek-ai|zai-org|openai|nvidia|meta-llama|microsoft|moonshotai|ibm-granite|"
    r"minimaxai|tencent|lgai-exaone|allenai|liquidai|cohereforai|coherelabs)_)?(?:meta-|unsloth-|nvidia-)?"
)
"""Owners before an underscore are those of files of bartowski: ``Qwen_Qwen3-32B-GGUF``."""
SAME_SHAPE = {
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.1-Terminus": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.2-Exp": "deepseek-v3.2",
    "deepseek-ai/DeepSeek-V3.2-Speciale": "deepseek-v3.2",
    "moonshotai/Kimi-K2.6": "kimi-k2.5",
    "moonshotai/Kimi-K2.7-Code": "kimi-k2.5",
    "MiniMaxAI/MiniMax-M2.1": "minimax-m2",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": "mistral-small-24b",
    "mistralai/Devstral-Small-2507": "mistral-small-24b",
    "mistralai/Magistral-Small-2509": "mistral-small-24b",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3-30b-a3b",
    "Qwen/Qwen3-Coder-Next": "qwen3-next-80b-a3b",
    "Qwen/Qwen3.6-27B": "qwen3.5-27b",
    "Qwen/Qwen3.6-35B-A3B": "qwen3.5-35b-a3b",
    "Qwen/Qwen3.8-27B": "qwen3.5-27b",
    "mistralai/Mistral-Medium-3.5-128B": "devstral-2-123b",
    "mistralai/Mathstral-7B-v0.1": "mistral-7b-v0.3",
    "openai/gpt-oss-safeguard-20b": "gpt-oss-20b",
    "openai/gpt-oss-safeguard-120b": "gpt-oss-120b",
    "moonshotai/Kimi-Dev-72B": "qwen2.5-72b",
    "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct": "deepseek-v2-lite",
    "nvidia/Nemotron-Cascade-8B": "qwen3-8b",
    "baichuan-inc/Baichuan-M2-32B": "qwen2.5-32b",
    "meta-llama/Llama-Guard-3-8B": "llama-3.1-8b",
    "NousResearch/Hermes-4-14B": "qwen3-14b",
    "NousResearch/Hermes-4-70B": "llama-3.1-70b",
    "NousResearch/Hermes-4-405B": "llama-3.1-405b",
    "Qwen/Qwen2-7B-Instruct": "qwen2.5-7b",
    "Qwen/Qwen2-72B-Instruct": "qwen2.5-72b",
    "Qwen/Qwen2.5-14B-Instruct-1M": "qwen2.5-14b",
    "Qwen/Qwen2.5-7B-Instruct-1M": "qwen2.5-7b",
    "Qwen/Qwen2.5-Math-7B-Instruct": "qwen2.5-7b",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": "qwen2.5-0.5b",
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": "qwen2.5-1.5b",
    "Qwen/Qwen2.5-Coder-3B-Instruct": "qwen2.5-3b",
    "01-ai/Yi-1.5-34B-Chat": "yi-34b",
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": "qwen3-8b",
    "zai-org/GLM-4.7": "glm-4.6",
    "google/medgemma-27b-text-it": "gemma-3-27b",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "llama-3.1-8b",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "llama-3.3-70b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "qwen2.5-14b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": "qwen2.5-32b",
    "NousResearch/Hermes-3-Llama-3.1-8B": "llama-3.1-8b",
    "NousResearch/Hermes-3-Llama-3.1-70B": "llama-3.1-70b",
    "NousResearch/Hermes-3-Llama-3.1-405B": "llama-3.1-405b",
    "Qwen/Qwen2.5-Coder-7B-Instruct": "qwen2.5-7b",
    "Qwen/Qwen2.5-Coder-14B-Instruct": "qwen2.5-14b",
    "Qwen/Qwen2.5-Coder-32B-Instruct": "qwen2.5-32b",
    "Qwen/QwQ-32B": "qwen2.5-32b",
    "microsoft/Phi-4-reasoning": "phi-4",
    "microsoft/Phi-4-reasoning-plus": "phi-4",
    "microsoft/Phi-4-mini-reasoning": "phi-4-mini",
    "nvidia/Llama-3.1-Nemotron-Nano-8B-v1": "llama-3.1-8b",
    "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF": "llama-3.1-70b",
    "zai-org/GLM-Z1-9B-0414": "glm-4-9b",
    "zai-org/GLM-Z1-32B-0414": "glm-4-32b",
    "allenai/Olmo-3.1-32B-Think": "olmo-3-32b",
    "allenai/Llama-3.1-Tulu-3-8B": "llama-3.1-8b",
    "allenai/Llama-3.1-Tulu-3-70B": "llama-3.1-70b",
    "NousResearch/Hermes-2-Pro-Llama-3-8B": "llama-3-8b",
    "NousResearch/Hermes-3-Llama-3.2-3B": "llama-3.2-3b",
    "HuggingFaceH4/zephyr-7b-beta": "mistral-7b",
    "teknium/OpenHermes-2.5-Mistral-7B": "mistral-7b",
    "lmsys/vicuna-7b-v1.5": "llama-2-7b",
    "lmsys/vicuna-13b-v1.5": "llama-2-13b",
    "google/codegemma-7b-it": "gemma-7b",
    "ibm-granite/granite-3.1-8b-instruct": "granite-3.3-8b",
    "nvidia/OpenReasoning-Nemotron-32B": "qwen2.5-32b",
    "nvidia/AceReason-Nemotron-14B": "qwen2.5-14b",
    "agentica-org/DeepCoder-14B-Preview": "qwen2.5-14b",
    "open-thoughts/OpenThinker3-7B": "qwen2.5-7b",
    "simplescaling/s1.1-32B": "qwen2.5-32b",
    "NovaSky-AI/Sky-T1-32B-Preview": "qwen2.5-32b",
    "all-hands/openhands-lm-32b-v0.1": "qwen2.5-32b",
    "SWE-bench/SWE-agent-LM-32B": "qwen2.5-32b",
    "Salesforce/xLAM-2-32b-fc-r": "qwen2.5-32b",
    "Salesforce/Llama-xLAM-2-8b-fc-r": "llama-3.1-8b",
    "watt-ai/watt-tool-8B": "llama-3.1-8b",
    "AI-MO/Kimina-Prover-72B": "qwen2.5-72b",
    "sarvamai/sarvam-m": "mistral-small-24b",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3.5-mini",
    "microsoft/Phi-3-mini-128k-instruct": "phi-3.5-mini",
    "CohereLabs/command-a-reasoning-08-2025": "command-a",
    "CohereLabs/aya-expanse-32b": "command-r-08-32b",
    "CohereLabs/c4ai-command-r-plus-08-2024": "command-r-plus",
    "CohereLabs/aya-23-8B": "aya-expanse-8b",
    "CohereLabs/aya-23-35B": "command-r-35b",
    "LGAI-EXAONE/EXAONE-Deep-2.4B": "exaone-3.5-2.4b",
    "LGAI-EXAONE/EXAONE-Deep-7.8B": "exaone-3.5-7.8b",
    "LGAI-EXAONE/EXAONE-Deep-32B": "exaone-3.5-32b",
    "inclusionAI/Ring-mini-2.0": "ling-mini-2.0",
    "inclusionAI/Ring-flash-2.0": "ling-flash-2.0",
    "inclusionAI/Ring-1T": "ling-1t",
    "inclusionAI/Ling-3.0-flash-Fin": "ling-3.0-flash",
    "inclusionAI/Ling-3.0-flash-Sante": "ling-3.0-flash",
    "XiaomiMiMo/MiMo-V2.5": "mimo-v2-flash",
    "XiaomiMiMo/MiMo-V2.5-Omni": "mimo-v2-flash",
    "XiaomiMiMo/MiMo-V2.6-Flash": "mimo-v2-flash",
    "XiaomiMiMo/MiMo-V2.6-Pro": "mimo-v2.5-pro",
    "nvidia/Nemotron-Cascade-2-30B-A3B": "nemotron-3-nano-30b-a3b",
    "LiquidAI/LFM2.5-1.2B-Instruct": "lfm2-1.2b",
    "google/translategemma-27b-it": "gemma-3-27b",
    "LLM360/K2-Think": "qwen2.5-32b",
    "microsoft/Phi-3-medium-4k-instruct": "phi-3-medium-14b",
    "01-ai/Yi-6B-Chat": "yi-6b",
    "01-ai/Yi-9B": "yi-9b",
    "internlm/internlm2_5-7b-chat": "internlm2-chat-7b",
    "internlm/internlm2_5-20b-chat": "internlm2-20b",
    "Qwen/Qwen2-0.5B-Instruct": "qwen2.5-0.5b",
    "Qwen/Qwen2-1.5B-Instruct": "qwen2.5-1.5b",
    "Qwen/Qwen2.5-Math-1.5B-Instruct": "qwen2.5-1.5b",
    "Qwen/Qwen2.5-Math-72B-Instruct": "qwen2.5-72b",
    "Qwen/Qwen3Guard-Gen-8B": "qwen3-8b",
    "Nexusflow/Athene-V2-Chat": "qwen2.5-72b",
    "agentica-org/DeepSWE-Preview": "qwen3-32b",
    "agentica-org/DeepScaleR-1.5B-Preview": "deepseek-r1-distill-qwen-1.5b",
    "PrimeIntellect/INTELLECT-2": "qwen2.5-32b",
    "PrimeIntellect/INTELLECT-3": "glm-4.5-air",
    "allenai/Llama-3.1-Tulu-3-405B": "llama-3.1-405b",
    "tokyotech-llm/Llama-3.3-Swallow-70B-Instruct-v0.4": "llama-3.3-70b",
    "katanemo/Arch-Router-1.5B": "qwen2.5-1.5b",
    "defog/llama-3-sqlcoder-8b": "llama-3-8b",
    "google/shieldgemma-9b": "gemma-2-9b",
    "google/medgemma-4b-it": "gemma-3-4b",
    "Phind/Phind-CodeLlama-34B-v2": "codellama-34b",
    "alpindale/WizardLM-2-8x22B": "mixtral-8x22b",
    "deepseek-ai/deepseek-math-7b-instruct": "deepseek-llm-7b",
    "ibm-granite/granite-4.1-3b": "granite-4.0-micro",
    "LGAI-EXAONE/EXAONE-4.0.1-32B": "exaone-4.0-32b",
    "tencent/Hunyuan-MT-7B": "hunyuan-7b",
    "ai21labs/AI21-Jamba-1.5-Mini": "jamba-mini-1.7",
    "ai21labs/AI21-Jamba-Mini-1.6": "jamba-mini-1.7",
    "ai21labs/AI21-Jamba2-Mini": "jamba-mini-1.7",
    "ai21labs/Jamba-v0.1": "jamba-mini-1.7",
    "ai21labs/AI21-Jamba-1.5-Large": "jamba-large-1.7",
    "ai21labs/AI21-Jamba-Large-1.6": "jamba-large-1.7",
    "meituan-longcat/LongCat-Flash-Thinking": "longcat-flash-560b",
    "MiniMaxAI/MiniMax-M1-40k": "minimax-text-01",
    "MiniMaxAI/MiniMax-M1-80k": "minimax-text-01",
    "tiiuae/Falcon-H1R-7B": "falcon-h1-7b",
    "inclusionAI/Ling-2.5-1T": "ling-2.6-1t",
    "inclusionAI/Ring-2.5-1T": "ling-2.6-1t",
    "inclusionAI/Ring-2.6-1T": "ling-2.6-1t",
    "tencent/Hy3-preview": "hy3",
    "LiquidAI/LFM2.5-350M": "lfm2-350m",
    "deepseek-ai/DeepSeek-Math-V2": "deepseek-v3.2",
    "google/medgemma-1.5-4b-it": "gemma-3-4b",
    "google/gemma-1.1-2b-it": "gemma-2b",
    "google/gemma-1.1-7b-it": "gemma-7b",
    "google/codegemma-2b": "gemma-2b",
    "meta-llama/Llama-Guard-3-1B": "llama-3.2-1b",
    "HuggingFaceTB/SmolLM-135M-Instruct": "smollm2-135m",
    "HuggingFaceTB/SmolLM-360M-Instruct": "smollm2-360m",
    "HuggingFaceTB/SmolLM-1.7B-Instruct": "smollm2-1.7b",
    "bigscience/bloomz-560m": "bloom-560m",
    "bigscience/bloomz-7b1": "bloom-7b1",
    "databricks/dolly-v2-12b": "pythia-12b",
    "zai-org/GLM-4.6V-Flash": "glm-4.1v-9b",
    "moonshotai/Kimi-VL-A3B-Thinking": "kimi-vl-a3b",
    "baidu/ERNIE-4.5-VL-28B-A3B-Thinking": "ernie-4.5-vl-28b-a3b",
    "nvidia/NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-BF16": "nemotron-3-super-120b-a12b",
    "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16": "nemotron-3-nano-30b-a3b",
    "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp": "deepseek-v4-flash",
    "inclusionAI/Ling-3.0-flash-VL": "ling-3.0-flash",
    "tencent/Hy4": "hy4-preview",
    "IFM/Jais-3-32B": "k2-horizon-32b",
    "IFM/Jais-3-7B": "k2-horizon-7b",
}
"""Repositories of weights tuned from another model -> profile with their shape, as config.json or the model card says
which model they were tuned from.

Qwen3.6: the class and sizes of Qwen3.5, lemonade-sdk/lemonade pull request 1650. Qwen3.8-27B: 64 layers of 5,120, 24
heads of 256, 48 linear value heads of 128 and a vocabulary of 248,320 in public code that runs it. Mistral Medium 3.5:
88 layers of 12,288, and its 133.6 GB in FP8 are those of Devstral 2 with a vision tower of 5 GB. Aya, Command R+ of
August 2024, EXAONE Deep, Ring, Yi, InternLM 2.5, Qwen2, Phi-3 medium 4k and LFM2.5: the same sizes and number of
parameters as published. MiMo-V2.5, V2.6-Flash and V2.6-Pro: the layers, heads and experts of their config.json in
public code that reads it. Granite 4.1 3B: the metadata of its GGUF file on ollama.com. EXAONE 4.0.1, Jamba,
Hunyuan MT (89 rows more), LongCat-Flash-Thinking and MiniMax-M1: their config.json or model card. Ling and Ring 2.5 and
2.6: one base, by their model cards. SmolLM, Gemma 1.1, CodeGemma, BLOOMZ, Dolly v2, LFM2.5 350M, Llama Guard 3 1B,
MedGemma 1.5, DeepSeek-Math-V2, Kimi-VL-A3B-Thinking, ERNIE-4.5-VL-28B-A3B-Thinking: the model from which each was
made, by its model card. GLM-4.6V-Flash: the metadata of its GGUF file on ollama.com. Nemotron 3.5 Super VL and Nemotron
3 Nano Omni: the language models in them, by NVIDIA's pages of Megatron Bridge and models/nvidia of
vllm-project/recipes. DeepSeek-V4-Flash-Vision-Exp and Ling-3.0-flash-VL: the same, by models/deepseek-ai and
models/inclusionAI there. Hy4: HYV4VLTextConfig of transformers 5.24.0. Jais 3: the stored size of models/IFM there
(34.78 B) and the class of K2 Horizon.
"""


TEXT_ONLY = frozenset({"mistralai/Devstral-Small-2507", "sarvamai/sarvam-m"})
"""Those of them without the tower of the model from which they were tuned (Devstral's model card: "the vision encoder
was removed"; sarvam-m is a `MistralForCausalLM`)."""


def stored_format(name: str) -> str | None:
    """Return the number format that a name of weights states; None: none. A file behind a colon says it first."""
    last = _last_part(name)
    tag = last.rpartition(":")[2] if ":" in last else ""
    if _GGUF_NAME.fullmatch(tag.removeprefix("ud-")):
        return nearest_gguf(tag)
    return next((quantization for part, quantization in (*_FORMATS, *_BITS_ALONE) if part in last), None)


def letters(name: str) -> str:
    """Return a name without its word separators: ``llama 3.3:70b`` and ``llama-3.3-70b`` are equal."""
    return _PARTING.sub("", name.lower())


def format_named(text: str) -> str:
    """Return the number format for a short name: ``awq`` is awq-int4. Other texts are returned unchanged.

    Also accepts llama.cpp's names in any case: ``Q6_K`` is gguf-q6_k, ``q4`` gguf-q4_k_m.
    """
    short = text.strip().lower().removeprefix("gguf-")
    named = {part: known for part, known in _FORMATS if part not in _OF_THEMSELVES}
    is_gguf = _GGUF_NAME.fullmatch(short) is not None and is_gguf_name_of(short, nearest_gguf(short))
    return named.get(short, nearest_gguf(short) if is_gguf else text)


def nearest_gguf(name: str) -> str:
    """Return the simulated format nearest in size to one of llama.cpp, given its name there (``Q5_K_S``, ``iq3_m``)."""
    plain = name.lower().removeprefix("ud-")
    return next(known for begin, known in _NEAREST_GGUF if plain.startswith(begin))


def is_gguf_name_of(name: str, known: str) -> bool:
    """Return whether a name of llama.cpp means exactly a simulated format: ``q4`` and ``Q4_K`` are Q4_K_M."""
    own = known.removeprefix("gguf-")
    return name.lower() in (own, own.removesuffix("_m"), own.partition("_")[0])


def meant_format(text: str, *, is_gguf: bool) -> str | None:
    """Return the format that a name most likely means, for an engine of GGUF files or another: ``4bit``, ``Q5_K_S``.

    None: the name gives no hint.
    """
    short = text.strip().lower()
    if _GGUF_NAME.fullmatch(short.removeprefix("ud-")):
        return nearest_gguf(short)
    bits = _BITS.fullmatch(short)
    if bits is None:
        return None
    return {"4": "gguf-q4_k_m", "8": "gguf-q8_0"}[bits[1]] if is_gguf else {"4": "awq-int4", "8": "fp8"}[bits[1]]


def format_of(text: str) -> str | None:
    """Return the format that a name means, including ``auto``: ``Q6_K``, ``awq``, ``FP8``; None: not a format."""
    known, named = ("auto", *get_args(WeightFormatName)), format_named(text)
    return next((each for each in (named, named.strip().lower()) if each in known), None)


def _format_asked(value: Any) -> Any:
    """Return the format that a scenario's text means; other texts are passed on and checked against the formats."""
    if not isinstance(value, str) or (found := format_of(value)) is not None:
        return found if isinstance(value, str) else value
    meant = meant_format(value, is_gguf=True) or ""
    if meant.startswith("gguf") and not value.strip()[0].isdigit():  # 4bit may be any
        raise ValueError(f"is not a known weight format; did you mean '{meant}'?")
    return value


AskedQuantization = Annotated[Quantization, BeforeValidator(_format_asked)]
"""As in scenarios: also by llama.cpp's names and in capitals."""

KV_CACHE_DTYPES = {
    "auto": "auto",
    "float16": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e4m3fn": "fp8",
    "fp8_e5m2": "fp8",
    "int8_per_token_head": "int8",
    "fp8_per_token_head": "fp8",
    "int4_per_token_head": "int4",
}
"""Servers' names of the format of their KV cache -> the scenario's."""
KV_CACHE_TYPES = {"f16": "fp16", "bf16": "bf16", "q8_0": "int8", "q4_0": "int4"}
"""Simulated KV cache types of llama.cpp -> the scenario's."""
_OTHER_KV_CACHE_TYPES = {"f32": "f16", "q4_1": "q4_0", "iq4_nl": "q4_0", "q5_0": "q4_0", "q5_1": "q4_0"}
"""Those that are not simulated (llama.cpp's ``--cache-type-k``) -> the nearest in size that is."""


def _kv_cache_asked(value: Any) -> Any:
    """Return the KV format that a scenario's text means; other texts are passed on and checked against the formats."""
    if not isinstance(value, str):
        return value
    short = value.strip().lower()
    near = _OTHER_KV_CACHE_TYPES.get(short)
    if near is not None:
        raise ValueError(f"is a KV cache type that is not simulated; the nearest is '{near}', {KV_CACHE_TYPES[near]}")
    return {**KV_CACHE_DTYPES, **KV_CACHE_TYPES}.get(short, value)


AskedKVCacheDtype = Annotated[KVCacheDtype, BeforeValidator(_kv_cache_asked)]
"""As in scenarios: also by the names of vLLM, SGLang and TGI (``fp8_e4m3``) and of llama.cpp (``q8_0``)."""


@lru_cache(maxsize=_KEPT_NAMES)
def plain_name(name: str) -> str:
    """Return a name without owner, tuning and number format: ``org/Meta-Llama-3.1-8B-Instruct-FP8`` is llama-3.1-8b."""
    plain = _PREFIX.sub("", name.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix(".gguf"))
    plain = plain.replace("_", "-").replace(":", "-")  # a tag of Ollama, or a file of a repository: ...-GGUF:Q4_K_M
    while (shorter := _SUFFIX.sub("", plain)) != plain:
        plain = shorter
    return plain


_ACTIVE = re.compile(r"(?<=\db)-a\d+(?:\.\d+)?b$")


def without_active(plain: str) -> str:
    """Return a plain name without the parameters that are active, which tags of Ollama leave out: ``qwen3-30b``."""
    return _ACTIVE.sub("", plain)


_TUNED = {
    letters(short(plain_name(repository))): (repository, profile)
    for short in (without_active, str)
    for repository, profile in SAME_SHAPE.items()
}
"""Letters of the name without tuning and format, with active parameters and without -> repository, profile."""
_DISTILLED = {
    "1.5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "8b": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "14b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
    "32b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
    "70b": "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
    "671b": "deepseek-ai/DeepSeek-R1",
    "8b-llama": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
}
"""Size in a tag of Ollama's deepseek-r1 -> its weights (ollama.com/library/deepseek-r1): all but the largest are
smaller models that were tuned on its answers."""
_DISTILLED_TAG = re.compile(r"deepseek-r1:(\d+(?:\.\d+)?b)(-llama)?(?:-.*)?", re.IGNORECASE)


def distilled(name: str) -> str | None:
    """Return the repository for a tag of Ollama's deepseek-r1: ``deepseek-r1:32b``; None: not such a tag."""
    found = _DISTILLED_TAG.fullmatch(name)
    return None if found is None else _DISTILLED.get(f"{found[1]}{found[2] or ''}".lower())


def tuned_from(name: str) -> tuple[str, str] | None:
    """Return the repository of weights tuned from another model, and the profile of their shape; None: not tuned, or
    not known."""
    return _TUNED.get(letters(plain_name(name)))


_WITHOUT_FORMULA = {
    "llama-3.2-11b-vision": "cross-attention to images in 8 of 40 layers; of text alone it is llama-3.1-8b",
    "llama-3.2-90b-vision": "cross-attention to images in 20 of 100 layers; of text alone it is llama-3.1-70b",
    "deepseek-v4.1": "a decoder that prompts do not pass, memories of n-grams, and compressed keys that layers share",
    "phi-4-mini-flash": "Mamba-1, windows, and layers that share the keys of one (SambaY)",
    "phi-4-multimodal": "adapters for images and speech in all layers; of text alone it is phi-4-mini",
    "llama-3-3-nemotron-super": "layers that differ from each other (block_configs): some have no attention",
    "llama-3-1-nemotron-ultra": "layers that differ from each other (block_configs): some have no attention",
    "mamba-codestral": "Mamba-2 in all layers, none with attention",
    "minicpm4": "block-sparse attention chosen by the keys themselves (InfLLM v2)",
    "falcon-mamba": "Mamba-1 in all layers, none with attention",
    "zamba2": "layers of Mamba-2 beside attention that layers share",
    "longcat-flash-lite": "embeddings of n-grams beside those of tokens",
    "mistral-large-4": "latents that layers share, and layers without rotation beside them",
    "inkling": "attention with a bias for relative positions, and short convolutions beside it in all layers",
    "k2-horizon-mova": "attention whose values come from routed experts (MoVA)",
    "k2-horizon-36b": "attention whose values come from routed experts (MoVA)",
    "k2-horizon-375b": "attention whose values come from routed experts (MoVA)",
    "gpt-oss-puzzle": "layers that differ from each other: in the number of experts and in their windows",
    "ernie-4.5-vl-424b": "experts for images whose width is not known here; that of 28B-A3B is known",
    "bitnet": "weights of three values",
    "phi-3-small": "block-sparse attention in every second layer",
    "mamba": "a state in all layers, none with attention",
    "jais-3-mova": "attention whose values come from routed experts (MoVA)",
    "lfm3": "windows beside short convolutions",
    "a.x-k2": "norms with gates of their own (Gated Norm) beside sparse gated attention",
    "dots3-note": "windows beside latent attention that an indexer makes sparse",
    "zaya1": "attention over a compressed, convolved hidden state (CCA)",
}
"""Prefixes of the names of models with layers that have no formula here -> those layers: from their config.json (keys
of `simserve.profiles.hf_families.UNSUPPORTED_KEYS`) or modelling code in huggingface/transformers and vLLM 0.33; for
DeepSeek-V4.1-Flash from ztxz16/fastllm pull request 727."""


def layers_without_formula(name: str) -> str | None:
    """Return as a clause why a model with this name cannot be simulated; None: not such a model."""
    plain = plain_name(name)
    found = next((layers for begin, layers in _WITHOUT_FORMULA.items() if f"{plain}-".startswith(begin)), None)
    return None if found is None else f"has layers that simserve has no formula for: {found}"


_NEAREST = {
    "deepseek-v4.1": "deepseek-v4-flash",
    "phi-4-mini-flash": "phi-4-mini",
    "phi-4-multimodal": "phi-4-mini",
    "llama-3-3-nemotron-super": "llama-3.3-70b",
    "llama-3-1-nemotron-ultra": "llama-3.1-405b",
    "mamba-codestral": "nemotron-h-8b",
    "minicpm4": "llama-3.1-8b",
    "falcon-mamba": "falcon-h1-7b",
    "zamba2": "falcon-h1-7b",
    "mistral-large-4": "mistral-large-3",
    "k2-horizon-mova": "k2-horizon-32b",
    "k2-horizon-36b": "k2-horizon-32b",
    "jais-3-mova": "k2-horizon-32b",
    "gpt-oss-puzzle": "gpt-oss-120b",
    "ernie-4.5-vl-424b": "ernie-4.5-300b-a47b",
    "phi-3-small": "mistral-7b",
    "lfm3": "lfm2-24b-a2b",
    "a.x-k2": "a.x-k1",
    "dots3-note": "deepseek-v3.2",
}
"""Prefixes of the names of models without a formula -> the profile nearest in kind and size, where one is near."""


def nearest_with_formula(name: str) -> str | None:
    """Return the profile nearest to a model that cannot be simulated; None: none is near."""
    plain = plain_name(name)
    return next((profile for begin, profile in _NEAREST.items() if f"{plain}-".startswith(begin)), None)


_CONTEXTS = {
    "HuggingFaceTB/SmolLM-135M": 2_048,
    "HuggingFaceTB/SmolLM-360M": 2_048,
    "HuggingFaceTB/SmolLM-1.7B": 2_048,
    "XiaomiMiMo/MiMo-V2.5": 1_048_576,
    "inclusionAI/Ling-3.0-flash-VL": 131_072,
    "Qwen/Qwen3-4B-Instruct-2507": 262_144,
    "Qwen/Qwen3-4B-Thinking-2507": 262_144,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": 262_144,
    "Qwen/Qwen3-30B-A3B-Thinking-2507": 262_144,
    "Qwen/Qwen3-235B-A22B-Instruct-2507": 262_144,
    "Qwen/Qwen3-235B-A22B-Thinking-2507": 262_144,
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": 262_144,
    "Qwen/QwQ-32B": 40_960,
    "Qwen/Qwen2.5-7B-Instruct-1M": 1_010_000,
    "Qwen/Qwen2.5-14B-Instruct-1M": 1_010_000,
    "Qwen/Qwen2.5-Math-7B-Instruct": 4_096,
    "microsoft/Phi-3-mini-4k-instruct": 4_096,
    "CohereLabs/aya-expanse-32b": 8_192,
    "CohereLabs/aya-23-35B": 8_192,
    "microsoft/Phi-3-medium-4k-instruct": 4_096,
    "Qwen/Qwen2.5-Math-1.5B-Instruct": 4_096,
    "Qwen/Qwen2.5-Math-72B-Instruct": 4_096,
    "PrimeIntellect/INTELLECT-2": 40_960,
    "microsoft/Phi-3-mini-128k-instruct": 131_072,
    "moonshotai/Kimi-Dev-72B": 131_072,
    "zai-org/GLM-4.6V-Flash": 131_072,
    "baichuan-inc/Baichuan-M2-32B": 131_072,
    "microsoft/Phi-4-reasoning": 32_768,
    "microsoft/Phi-4-reasoning-plus": 32_768,
    "moonshotai/Kimi-K2-Instruct-0905": 262_144,
    "moonshotai/Kimi-K2-Thinking": 262_144,
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": 131_072,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 131_072,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": 131_072,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": 131_072,
}
"""Repositories of weights -> their longest context, tokens, if it differs from the profile of their shape: model cards
and config.json."""
_TUNINGS = (
    "deepseek-ai/DeepSeek-R1-0528",
    "deepseek-ai/DeepSeek-V3-0324",
    "meta-llama/Llama-3.1-405B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.2-3B-Instruct",
    "meta-llama/Meta-Llama-3-70B-Instruct",
    "meta-llama/Meta-Llama-3-8B-Instruct",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "codellama/CodeLlama-7b-Instruct-hf",
    "codellama/CodeLlama-13b-Instruct-hf",
    "codellama/CodeLlama-34b-Instruct-hf",
    "codellama/CodeLlama-70b-Instruct-hf",
)
"""Repositories with another tuning of a profile's weights, with the same size and context: model cards."""


def repositories_on_record() -> tuple[str, ...]:
    """Return the repositories whose shape is on record although no profile lists them as checkpoints."""
    return tuple(dict.fromkeys((*SAME_SHAPE, *_CONTEXTS, *_TUNINGS)))


def is_on_record(repository: str) -> bool:
    """Return whether the shape of a repository that no profile lists is on record; otherwise its name decides."""
    return repository.lower() in (each.lower() for each in repositories_on_record())


def context_of(name: str) -> int | None:
    """Return the longest context of weights in any format by their name; None: that of their shape."""
    lengths = {_last_part(known): length for known, length in _CONTEXTS.items()}
    last = _last_part(name)
    while last not in lengths and (shorter := _SUFFIX.sub("", last)) != last:
        last = shorter
    return lengths.get(last)


def repository_of_context(name: str) -> str | None:
    """Return the repository with its own context that a name without owner means; None: not such a name."""
    return next((known for known in _CONTEXTS if _last_part(known) == name.lower()), None)


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()
