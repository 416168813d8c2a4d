"""Turns a pasted `text-generation-launcher` line into a scenario: what TGI's flags mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from simserve.errors import ScenarioError
from simserve.planner.export.flags import Flags, flags_of
from simserve.planner.importers.draft import Draft
from simserve.planner.importers.pasted import read_pasted, without_shell
from simserve.planner.importers.server import DTYPES, Reading, Vocabulary, assumptions, draft_of, read_arguments
from simserve.profiles.engine_profile import load_engine

_WHERE = "tgi command"
_TITLE = "What does this TGI server of {} do?"
_IMAGE = re.compile(r"(?:^|/)text-generation-inference(?:[:@](?:sha-)?(\d+(?:\.\d+)+)?\S*)?$")
_QUANTIZATIONS = {
    "fp8": "fp8",
    "eetq": "int8-wo",
    "awq": "awq-int4",
    "gptq": "gptq-int4",
    "marlin": "gptq-int4",
    "bitsandbytes-nf4": "nf4",
}
"""TGI's names of weight formats -> the scenario's."""
_WITHOUT_EFFECT = re.compile(
    r"--(?:hostname|port|revision|trust-remote-code|validation-workers|sharded|max-best-of|max-stop-sequences|"
    r"max-top-n-tokens|shard-uds-path|master-.*|huggingface-hub-cache|weights-cache-override|json-output|otlp-.*|cors-.*|"
    r"api-key|tokenizer-config-path|usage-stats|max-client-batch-size|env|payload-limit|ngrok.*|watermark-.*)"
)
"""Flags without effect on the simulation."""


def import_tgi_command(
    text: str, *, hardware: str | None = None, version: str | None = None, model: str | None = None
) -> Draft:
    """Return the scenario that a command line describes.

    Args:
        text: ``text-generation-launcher --model-id MODEL ...``, or a ``docker run`` of TGI's image, as pasted. The
            launcher's variables (``-e MODEL_ID=...``) count as its flags.
        hardware: GPU it runs on, not named in the line; None: an assumed one, with a note.
        version: TGI's version; None: the image's tag, else the newest known.
        model: Profile or configuration to use instead of the one closest to the line's model.

    Raises:
        ScenarioError: The text is not such a command, or its model has no profile.
    """
    pasted = read_pasted(text, _WHERE)
    arguments, tag = _arguments(pasted.words)
    newest = load_engine("tgi").versions[-1].version
    reading = Reading("tgi", version or tag or newest, _WHERE)
    flags = flags_of("tgi", version or tag or newest)
    words = [*_of_variables(pasted.variables, flags), *without_shell(arguments)]
    read_arguments(_VOCABULARY, words, flags, reading)
    reading.notes[:0] = assumptions("tgi", newest, hardware=hardware, says_version=bool(version or tag))
    if reading.model is None:
        raise ScenarioError("names no model", file=_WHERE, remedy="write --model-id ORG/NAME")
    return draft_of(reading, model, hardware=hardware, title=_TITLE).checked()


def _arguments(words: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """Return the words after the program or image, and the version in the image's tag."""
    tag = None
    for place, word in enumerate(words):
        if word.rsplit("/", 1)[-1] == "text-generation-launcher":
            return words[place + 1 :], tag
        image = _IMAGE.search(word)
        if image is not None:
            tag = image[1]
            if "text-generation-launcher" not in words[place:]:
                return words[place + 1 :], tag
    remedy = "paste a line such as text-generation-launcher --model-id ORG/NAME"
    raise ScenarioError("holds no text-generation-launcher", file=_WHERE, value=" ".join(words)[:200], remedy=remedy)


def _of_variables(variables: Mapping[str, str], flags: Flags) -> Iterator[str]:
    """Yield the flags for variables: the launcher reads MODEL_ID as ``--model-id``."""
    for flag, takes in flags.takes.items():
        value = variables.get(flag.removeprefix("--").replace("-", "_").upper())
        if value is not None and takes == "value":
            yield from (flag, value)


def _model(reading: Reading, value: object) -> None:
    reading.model = str(value)


def _quantize(reading: Reading, value: object) -> None:
    known = _QUANTIZATIONS.get(str(value))
    if known is not None:
        reading.quantization = known
    elif value != "compressed-tensors":  # only the checkpoint gives the details
        reading.not_simulated.append(f"--quantize {value}")


def _dtype(reading: Reading, value: object) -> None:
    reading.dtype = DTYPES.get(str(value))


def _kv_cache_dtype(reading: Reading, value: object) -> None:
    reading.set_kv_cache_dtype("--kv-cache-dtype", str(value).removesuffix("fn"))


def _seats(reading: Reading, value: object) -> None:
    """Set the batch limit: the smaller of the router's limit on requests and that of a batch."""
    seats = reading.count("--max-concurrent-requests or --max-batch-size", value)
    reading.options["max_num_seqs"] = min(seats, reading.options.get("max_num_seqs", seats))


def _share(reading: Reading, value: object) -> None:
    reading.options["gpu_memory_utilization"] = reading.number("--cuda-memory-fraction", value, "is not a share")


def _graphs(reading: Reading, value: object) -> None:
    if value == "0":
        reading.options["enforce_eager"] = True
    else:
        reading.not_simulated.append(f"--cuda-graphs {value}")


def _speculate(reading: Reading, value: object) -> None:
    count = reading.count("--speculate", value)
    if count > 0:  # n-grams of the prompt, unless the checkpoint has heads of its own
        reading.speculation = {"method": "ngram", "num_speculative_tokens": count}


_VOCABULARY = Vocabulary(
    engine="tgi",
    deployment_counts={"--num-shard": "tensor_parallel_size"},
    option_counts={"--max-total-tokens": "max_model_len", "--max-batch-prefill-tokens": "max_num_batched_tokens"},
    switches={},
    others={
        "--model-id": _model,
        "--quantize": _quantize,
        "--dtype": _dtype,
        "--kv-cache-dtype": _kv_cache_dtype,
        "--max-concurrent-requests": _seats,
        "--max-batch-size": _seats,
        "--cuda-memory-fraction": _share,
        "--cuda-graphs": _graphs,
        "--speculate": _speculate,
    },
    without_effect=_WITHOUT_EFFECT,
)
