"""A model folder of one's own: a small Llama without weights, and a tokenizer whose words are its tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCABULARY = 32_000
CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""0.25 B parameters: half a gigabyte of weights, more than what is cached of them from one step to the next."""


def write(folder: Path, config: Mapping[str, Any] = CONFIG) -> Path:
    """Write the folder of a model, its ``config.json`` as given, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(int(config["vocab_size"]) - 3))]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    for name, content in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", kind)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
