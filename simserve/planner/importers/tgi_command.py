"""Turns a pasted `text-generation-launcher` line into a scenario: what TGI's flags mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simserve.planner.export.flags import flags_of
from simserve.planner.export.tgi import QUANTIZE
from simserve.planner.importers.server import Program, Reading, chosen, read_dtype, read_kv_cache_dtype

_QUANTIZATIONS = {name: known for known, name in QUANTIZE.items()} | {"marlin": "gptq-int4", "bitsandbytes-nf4": "nf4"}
"""TGI's names of weight formats -> the scenario's; of those of compressed-tensors only the checkpoint gives details."""


def _spelled(reading: Reading, words: Sequence[str]) -> list[str]:
    """Return the arguments behind the flags for variables: the launcher reads MODEL_ID as ``--model-id``."""
    variables, found = reading.variables or {}, list[str]()
    for flag, takes in flags_of("tgi", str(reading.version)).takes.items():
        value = variables.get(flag.removeprefix("--").replace("-", "_").upper())
        if value is not None and takes == "value":
            found += [flag, value]
    return [*found, *words]


def _seats(reading: Reading, flag: str, value: Any) -> None:
    """Set the batch limit: the smaller of the router's limit on requests and that of a batch."""
    seats = reading.count(flag, value)
    reading.options["max_num_seqs"] = min(seats, reading.options.get("max_num_seqs", seats))


def _speculate(reading: Reading, flag: str, value: Any) -> None:
    count = reading.count(flag, value)
    if count > 0:  # n-grams of the prompt, unless the checkpoint has heads of its own
        reading.speculation = {"method": "ngram", "num_speculative_tokens": count}


TGI = Program(
    engine="tgi",
    spelled=_spelled,
    own={
        "--quantize": chosen("quantization", "", _QUANTIZATIONS, default="compressed-tensors"),
        "--dtype": read_dtype,
        "--kv-cache-dtype": read_kv_cache_dtype,
        "--max-concurrent-requests": _seats,
        "--max-batch-size": _seats,
        "--speculate": _speculate,
    },
)
"""``text-generation-launcher --model-id MODEL ...``, or a ``docker run`` of TGI's image."""
