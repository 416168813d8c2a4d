"""Repositories that people serve in 2026: each is a model of the catalogue, or refused for its layers."""

from __future__ import annotations

import pytest

from simserve.errors import ProfileError
from simserve.profiles.model import load_model

POPULAR = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "meta-llama/Llama-3.2-1B-Instruct": "llama-3.2-1b",
    "meta-llama/Llama-3.2-3B-Instruct": "llama-3.2-3b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.3-70b",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama-4-scout",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "Qwen/Qwen2.5-72B-Instruct": "qwen2.5-72b",
    "Qwen/Qwen2.5-VL-3B-Instruct": "qwen2.5-vl-3b",
    "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2.5-vl-7b",
    "Qwen/Qwen2.5-VL-32B-Instruct": "qwen2.5-vl-32b",
    "Qwen/Qwen2.5-VL-72B-Instruct": "qwen2.5-vl-72b",
    "Qwen/Qwen2.5-Coder-32B-Instruct": "qwen2.5-32b",
    "Qwen/QwQ-32B": "qwen2.5-32b",
    "Qwen/Qwen3-0.6B": "qwen3-0.6b",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": "qwen3-coder-480b-a35b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3-next-80b-a3b",
    "Qwen/Qwen3-VL-2B-Instruct": "qwen3-vl-2b",
    "Qwen/Qwen3-VL-4B-Instruct": "qwen3-vl-4b",
    "Qwen/Qwen3-VL-8B-Instruct": "qwen3-vl-8b",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "qwen3-vl-30b-a3b",
    "Qwen/Qwen3-VL-32B-Instruct": "qwen3-vl-32b",
    "Qwen/Qwen3-VL-235B-A22B-Instruct": "qwen3-vl-235b-a22b",
    "Qwen/Qwen3.5-0.8B": "qwen3.5-0.8b",
    "Qwen/Qwen3.5-4B": "qwen3.5-4b",
    "Qwen/Qwen3.5-9B": "qwen3.5-9b",
    "Qwen/Qwen3.5-27B": "qwen3.5-27b",
    "Qwen/Qwen3.5-35B-A3B": "qwen3.5-35b-a3b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "Qwen/Qwen3.6-35B-A3B": "qwen3.5-35b-a3b",
    "openai/gpt-oss-20b": "gpt-oss-20b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2",
    "deepseek-ai/DeepSeek-V4-Flash": "deepseek-v4-flash",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "deepseek-r1-distill-qwen-1.5b",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "llama-3.3-70b",
    "deepseek-ai/DeepSeek-V2-Lite-Chat": "deepseek-v2-lite",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "google/gemma-2-27b-it": "gemma-2-27b",
    "google/gemma-3-1b-it": "gemma-3-1b",
    "google/gemma-3-4b-it": "gemma-3-4b",
    "google/gemma-3-27b-it": "gemma-3-27b",
    "google/gemma-4-12B-it": "gemma-4-12b",
    "google/gemma-4-31B-it": "gemma-4-31b",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo-12b",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "mistral-small-24b",
    "mistralai/Ministral-8B-Instruct-2410": "ministral-8b",
    "mistralai/Ministral-3-3B-Instruct-2512": "ministral-3-3b",
    "mistralai/Ministral-3-8B-Instruct-2512": "ministral-3-8b",
    "mistralai/Ministral-3-14B-Instruct-2512": "ministral-3-14b",
    "mistralai/Mistral-Large-3-675B-Instruct-2512": "mistral-large-3",
    "mistralai/Devstral-2-123B-Instruct-2512": "devstral-2-123b",
    "mistralai/Devstral-Small-2-24B-Instruct-2512": "devstral-small-2-24b",
    "mistralai/Pixtral-12B-2409": "pixtral-12b",
    "microsoft/phi-4": "phi-4",
    "microsoft/Phi-4-mini-instruct": "phi-4-mini",
    "microsoft/Phi-4-reasoning": "phi-4",
    "microsoft/Phi-3.5-mini-instruct": "phi-3.5-mini",
    "nvidia/Llama-3.1-Nemotron-Nano-8B-v1": "llama-3.1-8b",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": "nemotron-nano-9b-v2",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron-3-nano-30b-a3b",
    "ibm-granite/granite-3.3-8b-instruct": "granite-3.3-8b",
    "ibm-granite/granite-4.0-h-small": "granite-4.0-h-small",
    "ibm-granite/granite-4.0-micro": "granite-4.0-micro",
    "ibm-granite/granite-4.0-h-tiny": "granite-4.0-h-tiny",
    "allenai/Olmo-3-7B-Instruct": "olmo-3-7b",
    "allenai/Olmo-3-32B-Think": "olmo-3-32b",
    "LGAI-EXAONE/EXAONE-4.0-32B": "exaone-4.0-32b",
    "CohereLabs/c4ai-command-a-03-2025": "command-a",
    "baidu/ERNIE-4.5-21B-A3B-PT": "ernie-4.5-21b-a3b",
    "baidu/ERNIE-4.5-300B-A47B-PT": "ernie-4.5-300b-a47b",
    "tencent/Hunyuan-A13B-Instruct": "hunyuan-a13b",
    "tencent/Hy3": "hy3",
    "moonshotai/Kimi-K2-Thinking": "kimi-k2",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "HuggingFaceTB/SmolLM3-3B": "smollm3-3b",
    "zai-org/GLM-4-9B-0414": "glm-4-9b",
    "zai-org/GLM-4-32B-0414": "glm-4-32b",
    "zai-org/GLM-4.5-Air": "glm-4.5-air",
    "zai-org/GLM-4.5V": "glm-4.5v",
    "zai-org/GLM-4.6": "glm-4.6",
    "zai-org/GLM-4.6V": "glm-4.6v",
    "zai-org/GLM-4.7": "glm-4.6",
    "zai-org/GLM-4.7-Flash": "glm-4.7-flash",
    "zai-org/GLM-5": "glm-5",
    "OpenGVLab/InternVL3-8B": "internvl3-8b",
    "OpenGVLab/InternVL3-78B": "internvl3-78b",
    "bigcode/starcoder2-15b": "starcoder2-15b",
    "01-ai/Yi-34B-Chat": "yi-34b",
    "ByteDance-Seed/Seed-OSS-36B-Instruct": "seed-oss-36b",
    "MiniMaxAI/MiniMax-M2": "minimax-m2",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "XiaomiMiMo/MiMo-7B-RL": "mimo-7b",
    "XiaomiMiMo/MiMo-V2-Flash": "mimo-v2-flash",
    "stepfun-ai/Step-3.5-Flash": "step-3.5-flash",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "mistralai/Mistral-Small-4-119B-2603": "mistral-small-4",
    "mistralai/Mistral-Medium-3.5-128B": "devstral-2-123b",
    "Qwen/Qwen3.8-27B": "qwen3.5-27b",
    "Qwen/Qwen2-7B-Instruct": "qwen2.5-7b",
    "Qwen/Qwen2-72B-Instruct": "qwen2.5-72b",
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": "qwen2.5-1.5b",
    "Qwen/Qwen2.5-14B-Instruct-1M": "qwen2.5-14b",
    "openai/gpt-oss-safeguard-20b": "gpt-oss-20b",
    "openai/gpt-oss-safeguard-120b": "gpt-oss-120b",
    "moonshotai/Kimi-Dev-72B": "qwen2.5-72b",
    "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct": "deepseek-v2-lite",
    "NousResearch/Hermes-4-70B": "llama-3.1-70b",
    "NousResearch/Hermes-4-405B": "llama-3.1-405b",
    "NousResearch/Hermes-4-14B": "qwen3-14b",
    "meta-llama/Llama-Guard-3-8B": "llama-3.1-8b",
    "01-ai/Yi-1.5-34B-Chat": "yi-34b",
    "google/gemma-2-2b-it": "gemma-2-2b",
    "google/gemma-7b-it": "gemma-7b",
    "google/codegemma-7b-it": "gemma-7b",
    "codellama/CodeLlama-7b-Instruct-hf": "codellama-7b",
    "codellama/CodeLlama-13b-Instruct-hf": "codellama-13b",
    "codellama/CodeLlama-70b-Instruct-hf": "codellama-70b",
    "mistralai/Codestral-22B-v0.1": "codestral-22b",
    "mistralai/Mistral-Small-Instruct-2409": "codestral-22b",
    "microsoft/phi-2": "phi-2",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3.5-mini",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "smollm2-1.7b",
    "HuggingFaceTB/SmolLM2-360M-Instruct": "smollm2-360m",
    "tiiuae/Falcon3-7B-Instruct": "falcon3-7b",
    "tiiuae/Falcon3-10B-Instruct": "falcon3-10b",
    "allenai/OLMo-2-1124-7B-Instruct": "olmo-2-7b",
    "allenai/OLMo-2-1124-13B-Instruct": "olmo-2-13b",
    "allenai/Llama-3.1-Tulu-3-70B": "llama-3.1-70b",
    "deepseek-ai/deepseek-llm-7b-chat": "deepseek-llm-7b",
    "deepseek-ai/deepseek-llm-67b-chat": "deepseek-llm-67b",
    "deepseek-ai/deepseek-coder-33b-instruct": "deepseek-coder-33b",
    "deepseek-ai/DeepSeek-V2.5": "deepseek-v2-236b",
    "deepseek-ai/DeepSeek-V2-Chat": "deepseek-v2-236b",
    "deepseek-ai/DeepSeek-Coder-V2-Instruct": "deepseek-v2-236b",
    "CohereLabs/command-a-reasoning-08-2025": "command-a",
    "HuggingFaceH4/zephyr-7b-beta": "mistral-7b",
    "teknium/OpenHermes-2.5-Mistral-7B": "mistral-7b",
    "lmsys/vicuna-13b-v1.5": "llama-2-13b",
    "ibm-granite/granite-3.1-8b-instruct": "granite-3.3-8b",
    "nvidia/OpenReasoning-Nemotron-32B": "qwen2.5-32b",
    "agentica-org/DeepCoder-14B-Preview": "qwen2.5-14b",
    "Salesforce/Llama-xLAM-2-8b-fc-r": "llama-3.1-8b",
    "AI-MO/Kimina-Prover-72B": "qwen2.5-72b",
    "sarvamai/sarvam-m": "mistral-small-24b",
}
"""Repository -> profile of its architecture."""

WITHOUT_FORMULA = (
    "meta-llama/Llama-3.2-11B-Vision-Instruct",
    "google/gemma-3n-E4B-it",
    "google/gemma-4-E4B-it",
    "microsoft/Phi-4-multimodal-instruct",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "moonshotai/Kimi-K3",
    "mistralai/Mamba-Codestral-7B-v0.1",
    "tiiuae/Falcon-H1-34B-Instruct",
    "openbmb/MiniCPM4.1-8B",
)


@pytest.mark.parametrize(("repository", "profile"), POPULAR.items())
def test_a_popular_repository_is_a_model_of_the_catalogue(repository: str, profile: str) -> None:
    """By the repositories of its checkpoints, or by the weights that it was tuned from; never by its name alone."""
    model = load_model(repository)

    assert model.catalogue_name == profile
    assert not model.is_named_like
    assert model.stored.repository is not None


@pytest.mark.parametrize("repository", WITHOUT_FORMULA)
def test_a_popular_repository_without_a_profile_has_layers_without_a_formula(repository: str) -> None:
    """A model engineer reads which."""
    with pytest.raises(ProfileError, match="has layers that simserve has no formula for: "):
        load_model(repository)


@pytest.mark.parametrize(
    ("weights", "checkpoint", "stored"),
    [
        (
            "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
            "ISTA-DASLab/Mistral-Small-3.1-24B-Instruct-2503-GPTQ-4b-128g",
            "gptq-int4",
        ),
        ("Qwen/Qwen3-Coder-Next", "Qwen/Qwen3-Coder-Next-FP8", "fp8"),
        ("Qwen/QwQ-32B", "Qwen/QwQ-32B-AWQ", "awq-int4"),
        (
            "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
            "RedHatAI/DeepSeek-R1-Distill-Llama-70B-FP8-dynamic",
            "fp8",
        ),
    ],
)
def test_tuned_weights_have_checkpoints_of_their_own(weights: str, checkpoint: str, stored: str) -> None:
    """Not those of the model that they were tuned from; each is found by its own name, and is no guess."""
    tuned, alone = load_model(weights), load_model(checkpoint)

    found = tuned.checkpoint(stored)
    assert found is not None
    assert found.repository == checkpoint
    assert {each.repository for each in tuned.checkpoints}.isdisjoint(
        each.repository for each in load_model(str(tuned.shape_of)).checkpoints
    )
    assert (alone.stored, alone.shape_of, alone.is_named_like) == (found, tuned.shape_of, False)
