"""The importer and the bundled profiles agree: one ``config.json`` of every architecture family gives its profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simserve.profiles import catalog
from simserve.profiles.hf_config import from_hf_config
from simserve.profiles.model import ModelProfile, load_model

CONFIGS = Path(__file__).resolve().parents[2] / "../shared/data/model_configs"
NOT_ARCHITECTURE = {"name", "source", "checkpoints", "num_parameters_advertised"}

# Reference configuration -> bundled profile. A configuration of another release of the same architecture may
# differ in the context it is made for.
REFERENCES = [
    ("deepseek-ai--DeepSeek-R1", "deepseek-r1", ()),
    ("deepseek-ai--DeepSeek-R1", "deepseek-v3", ()),
    ("mistralai--Mixtral-8x7B-v0.1", "mixtral-8x7b", ()),
    ("Qwen--Qwen3-30B-A3B-FP8", "qwen3-30b-a3b", ()),
    ("Qwen--Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", ()),
    ("Qwen--Qwen3-32B-FP8-Static-PerTensor", "qwen3-32b", ()),
    ("openai--gpt-oss-20b", "gpt-oss-20b", ()),
    ("openai--gpt-oss-120b", "gpt-oss-120b", ()),
    ("meta-llama--Llama-4-Scout-17B-16E-Instruct", "llama-4-scout", ()),
    ("MiniMaxAI--MiniMax-M2.5", "minimax-m2", ()),
    ("moonshotai--Kimi-K2-Instruct", "kimi-k2", ()),
    ("moonshotai--Kimi-K2.5", "kimi-k2", ("max_position_embeddings",)),
    ("zai-org--GLM-5-FP8", "glm-5", ()),
]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

# The fields of published config.json files, by the profile they give.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-3.2-3b": {
        **LLAMA,
        "head_dim": 128,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 24,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "codellama-34b": {
        **LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 22016,
        "max_position_embeddings": 16384,
        "num_attention_heads": 64,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
    "mixtral-8x22b": {
        **LLAMA,
        "model_type": "mixtral",
        "hidden_size": 6144,
        "intermediate_size": 16384,
        "max_position_embeddings": 65536,
        "num_attention_heads": 48,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 56,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "sliding_window": None,
        "vocab_size": 32000,
    },
    "qwen2.5-72b": {
        **LLAMA,
        "model_type": "qwen2",
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "max_position_embeddings": 32768,
        "max_window_layers": 70,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
        "num_key_value_heads": 8,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3_text",
            "head_dim": 128,
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_attention_heads": 32,
            "num_hidden_layers": 62,
            "num_key_value_heads": 16,
            "query_pre_attn_scalar": 168,
            "sliding_window": 1024,
        },
    },
    "phi-4": {
        **LLAMA,
        "model_type": "phi3",
        "hidden_size": 5120,
        "intermediate_size": 17920,
        "max_position_embeddings": 16384,
        "num_attention_heads": 40,
        "num_hidden_layers": 40,
        "num_key_value_heads": 10,
        "sliding_window": None,
        "vocab_size": 100352,
    },
    "phi-4-mini": {
        **LLAMA,
        "model_type": "phi3",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 24,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "vocab_size": 200064,
    },
    "gpt-j-6b": {
        "model_type": "gptj",
        "n_embd": 4096,
        "n_head": 16,
        "n_inner": None,
        "n_layer": 28,
        "n_positions": 2048,
        "rotary_dim": 64,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "vocab_size": 50400,
    },
    "opt-66b": {
        "model_type": "opt",
        "ffn_dim": 36864,
        "hidden_size": 9216,
        "max_position_embeddings": 2048,
        "num_attention_heads": 72,
        "num_hidden_layers": 64,
        "torch_dtype": "float16",
        "vocab_size": 50272,
        "word_embed_proj_dim": 9216,
    },
    "falcon-180b": {
        "model_type": "falcon",
        "bias": False,
        "hidden_size": 14848,
        "multi_query": True,
        "new_decoder_architecture": True,
        "num_attention_heads": 232,
        "num_hidden_layers": 80,
        "num_kv_heads": 8,
        "parallel_attn": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 65024,
    },
    "bloom-176b": {
        "model_type": "bloom",
        "hidden_size": 14336,
        "n_head": 112,
        "n_layer": 70,
        "seq_length": 2048,
        "torch_dtype": "bfloat16",
        "vocab_size": 250880,
    },
}


def architecture(model: ModelProfile, *beside: str) -> dict[str, Any]:
    """Return all that a profile says about the architecture, without the fields of ``beside``."""
    return model.model_dump(exclude=NOT_ARCHITECTURE | set(beside))


@pytest.mark.parametrize(("config", "name", "beside"), REFERENCES)
def test_a_reference_configuration_gives_the_bundled_profile(config: str, name: str, beside: tuple[str, ...]) -> None:
    """Imported and bundled agree in every field of the architecture."""
    path = CONFIGS / f"{config}_config.json"
    if not path.is_file():
        pytest.skip(f"no reference configuration at {path}")

    assert architecture(load_model(str(path)), *beside) == architecture(load_model(name), *beside)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_configuration_gives_the_bundled_profile(name: str) -> None:
    """The fields that the publisher states, with the defaults of the family, are the bundled profile."""
    assert architecture(from_hf_config(PUBLISHED[name])) == architecture(load_model(name))


@pytest.mark.parametrize(("name", "like"), [("llama-3.3-70b", "llama-3.1-70b"), ("deepseek-v3", "deepseek-r1")])
def test_later_training_keeps_the_architecture(name: str, like: str) -> None:
    """A model trained further has the architecture of its base."""
    assert architecture(load_model(name)) == architecture(load_model(like))


@pytest.mark.parametrize("name", catalog.names("model"))
def test_a_bundled_profile_names_the_repository_its_source_names(name: str) -> None:
    """Except models whose weights nobody can download."""
    model = load_model(name)

    if name in ("gpt-3-175b", "opt-175b"):
        assert model.huggingface_id is None
    else:
        assert model.huggingface_id in model.source
