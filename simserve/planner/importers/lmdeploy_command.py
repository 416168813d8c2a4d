"""Turns a pasted `lmdeploy serve api_server` line into a scenario: what LMDeploy's flags mean."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simserve.errors import ScenarioError
from simserve.planner.export.flags import flags_of
from simserve.planner.importers.draft import Draft
from simserve.planner.importers.pasted import read_pasted, without_shell
from simserve.planner.importers.server import DTYPES, Reading, Vocabulary, assumptions, draft_of, read_arguments
from simserve.profiles.engine_profile import load_engine

_WHERE = "lmdeploy command"
_TITLE = "What does this LMDeploy server of {} do?"
_IMAGE = re.compile(r"(?:^|/)lmdeploy:v(\d+(?:\.\d+)+)")
_FORMATS = {"awq": "awq-int4", "gptq": "gptq-int4", "fp8": "fp8", "mxfp4": "mxfp4"}
"""LMDeploy's ``--model-format`` -> the scenario's; all others are 16-bit."""
_KV_BITS = {"4": "int4", "8": "int8"}
"""LMDeploy's ``--quant-policy`` -> the KV cache's format."""
_WITHOUT_EFFECT = re.compile(
    r"--(?:server-name|server-port|allow-.*|proxy-url|log-level|api-keys?|ssl|model-name|max-log-len|disable-fastapi-docs|"
    r"chat-template|revision|download-dir|device|tool-call-parser|reasoning-parser|num-tokens-per-iter|max-prefill-iters)"
)
"""Flags without effect on the simulation."""


def import_lmdeploy_command(
    text: str, *, hardware: str | None = None, version: str | None = None, model: str | None = None
) -> Draft:
    """Return the scenario that a command line describes.

    Args:
        text: ``lmdeploy serve api_server MODEL ...``, or a ``docker run`` of it, as pasted.
        hardware: GPU it runs on, not named in the line; None: an assumed one, with a note.
        version: LMDeploy's version; None: the image's tag, else the newest known.
        model: Profile or configuration to use instead of the one closest to the line's model.

    Raises:
        ScenarioError: The text is not such a command, or its model has no profile.
    """
    words = read_pasted(text, _WHERE).words
    tag = next((found[1] for word in words if (found := _IMAGE.search(word))), None)
    newest = load_engine("lmdeploy").versions[-1].version
    known = version or tag or newest
    reading = Reading("lmdeploy", known, _WHERE)
    read_arguments(_VOCABULARY, without_shell(_arguments(words)), flags_of("lmdeploy", known), reading)
    reading.notes[:0] = assumptions("lmdeploy", newest, hardware=hardware, says_version=bool(version or tag))
    if reading.model is None:
        raise ScenarioError("names no model", file=_WHERE, remedy="write lmdeploy serve api_server ORG/NAME")
    return draft_of(reading, model, hardware=hardware, title=_TITLE).checked()


def _arguments(words: Sequence[str]) -> Sequence[str]:
    for place, word in enumerate(words):
        if word == "api_server" and "serve" in words[:place]:
            return words[place + 1 :]
    remedy = "paste a line such as lmdeploy serve api_server ORG/NAME"
    raise ScenarioError("holds no lmdeploy serve api_server", file=_WHERE, value=" ".join(words)[:200], remedy=remedy)


def _format(reading: Reading, value: object) -> None:
    reading.quantization = _FORMATS.get(str(value))


def _dtype(reading: Reading, value: object) -> None:
    reading.dtype = DTYPES.get(str(value))


def _kv_policy(reading: Reading, value: object) -> None:
    if str(value) in _KV_BITS:
        reading.deployment["kv_cache_dtype"] = _KV_BITS[str(value)]


def _share(reading: Reading, value: object) -> None:
    reading.options["gpu_memory_utilization"] = reading.number("--cache-max-entry-count", value, "is not a share")


def _backend(reading: Reading, value: object) -> None:
    if value != "turbomind":
        reading.not_simulated.append(f"--backend {value}")


_VOCABULARY = Vocabulary(
    engine="lmdeploy",
    deployment_counts={"--tp": "tensor_parallel_size"},
    option_counts={
        "--session-len": "max_model_len",
        "--max-batch-size": "max_num_seqs",
        "--cache-block-seq-len": "block_size",
        "--max-prefill-token-num": "max_num_batched_tokens",
    },
    switches={"--enable-prefix-caching": ("enable_prefix_caching", True)},
    others={
        "--model-format": _format,
        "--dtype": _dtype,
        "--quant-policy": _kv_policy,
        "--cache-max-entry-count": _share,
        "--backend": _backend,
    },
    without_effect=_WITHOUT_EFFECT,
)
