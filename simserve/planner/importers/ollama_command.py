"""Turns a pasted `ollama` line and its variables into a scenario. Knows what Ollama's tags and settings mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from simserve.planner.importers.llama_cpp_command import gguf_format, keep_mxfp4, model_of
from simserve.planner.importers.model_names import find_model
from simserve.planner.importers.server import Program, Reading
from simserve.profiles.catalog import load_model
from simserve.profiles.checkpoint import WIDE_FORMATS
from simserve.profiles.model_names import KV_CACHE_TYPES

FORMAT = "gguf-q4_k_m"  # Format of the weights where a tag names none (ollama.com/library/llama3.1).
_COUNTS = {"OLLAMA_NUM_PARALLEL": "max_num_seqs", "OLLAMA_CONTEXT_LENGTH": "max_model_len"}
_KV_TYPE = "OLLAMA_KV_CACHE_TYPE"
_FLASH = "OLLAMA_FLASH_ATTENTION"
_WITHOUT_EFFECT = re.compile(
    r"OLLAMA_(?:HOST|MODELS|KEEP_ALIVE|DEBUG|ORIGINS|NOPRUNE|NOHISTORY|LOAD_TIMEOUT|TMPDIR|NO_CLOUD|MAX_QUEUE|"
    r"MAX_LOADED_MODELS|SCHED_SPREAD)"
)
"""Variables without effect on the simulation."""


def _spelled(reading: Reading, words: Sequence[str]) -> Sequence[str]:
    """Read the model, without the site's name of Hugging Face; it is all that a line says: settings are variables."""
    named = next((word for word in words if not word.startswith("-")), None)
    reading.model = named and re.sub(r"^(?:hf\.co|huggingface\.co)/", "", named)
    return ()


def _settle(reading: Reading) -> None:
    reading.model = reading.model or reading.asked
    if reading.model is not None:
        _read_variables(reading, reading.variables or {})
        _read_tag(reading)


def _read_variables(reading: Reading, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if name in _COUNTS:
            number = reading.count(name, value)
            if number:  # 0: Ollama chooses
                reading.options[_COUNTS[name]] = number
        elif name == _KV_TYPE and value in KV_CACHE_TYPES:
            is_flash = variables.get(_FLASH, "1").lower() in ("1", "true")
            if value != "f16" and not is_flash:
                reading.notes.append(f"{_KV_TYPE} {value} has no effect without {_FLASH}=1.")
            else:
                reading.deployment["kv_cache_dtype"] = KV_CACHE_TYPES[value]
        elif name.startswith("OLLAMA_") and name != _FLASH:
            seen = reading.ignored if _WITHOUT_EFFECT.fullmatch(name) else reading.not_simulated
            seen.append(f"{name} {value}" if seen is reading.not_simulated else name)


def _read_tag(reading: Reading) -> None:
    """Set the format of the weights: from the tag, or else Q4_K_M where the model is stored in 16 bits."""
    served = str(reading.model)
    known, note = gguf_format(served)
    if "/" in served:
        repository, _, chosen = served.partition(":")
        reading.model = model_of(repository, chosen)
    if known is not None:
        reading.quantization = known
        reading.notes += [] if note is None else [note]
        if "/" not in served:
            # 8b-instruct for 8b-instruct-q8_0.
            reading.model = re.sub(r"-(?:i?q\d\w*|fp16|f16|bf16)$", "", served, flags=re.IGNORECASE)
    profile = load_model(reading.asked or find_model(str(reading.model), reading.where).model)
    if known is not None:
        keep_mxfp4(reading, profile)
    elif profile.stored.format in WIDE_FORMATS:
        reading.quantization = FORMAT
        reading.notes.append(f"Ollama's {served} has {FORMAT} weights unless its tag says others.")


OLLAMA = Program(engine="ollama", spelled=_spelled, settle=_settle)
"""``ollama run NAME:TAG``, with the variables of ``ollama serve`` in front or on a separate line."""
