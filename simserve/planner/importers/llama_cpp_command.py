"""Turns a pasted `llama-server` line into a scenario: what llama.cpp's flags and names of GGUF files mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from simserve.perf.quantization import WEIGHT_FORMATS, format_name
from simserve.planner.importers.model_names import find_model
from simserve.planner.importers.server import Program, Reader, Reading, chosen
from simserve.profiles.catalog import catalogue_models, load_model
from simserve.profiles.engine_profile import load_engine
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_names import KV_CACHE_TYPES, is_gguf_name_of, nearest_gguf

_SIZES = re.compile(
    r"(?:^|[-_.:])((?:ud-)?(?:i?q[1-8](?:_\w+)?|tq[12]_0|mxfp4(?:_moe)?|(?:bf|fp|f)(?:16|32)))(?=$|[-_.])",
    re.IGNORECASE,
)
_DRAFTING_MARK = re.compile(r"[-_]mtp(?=$|[-_.])", re.IGNORECASE)
"""Part of a GGUF file's name that says that the layer which drafts is in it."""
_EXPERTS = ("up", "down", "gate")
_OTHERS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "ffn_up_shexp", "ffn_up")
"""Tensors of a layer in a GGUF file: of its routed experts (``ffn_up_exps``), and beside them."""
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")  # Part of a file's name that marks it as one of several.


def gguf_format(name: str) -> tuple[str | None, str | None]:
    """Return the format that a GGUF file, a tag or a repository names, and a note if another format replaces it.

    The nearest in size replaces a format that is not simulated.

    Args:
        name: ``Qwen3-8B-Q4_K_M.gguf``, ``Q6_K``, ``org/name-GGUF:UD-Q4_K_XL``.

    Returns:
        The scenario's format; None: none is named. The note; None: exactly that format is simulated.
    """
    found = _SIZES.search(name)
    if found is None:
        return None, None
    label = found[1].lower()
    if label.endswith(("16", "32")):
        return {"f32": "fp32", "fp32": "fp32", "bf16": "bf16"}.get(label, "fp16"), None
    taken = nearest_gguf(label)
    if is_gguf_name_of(label, taken):
        return taken, None
    bits = WEIGHT_FORMATS[format_name(taken)].bits
    what = f"the nearest in size that is simulated ({bits:g} bits a weight)"
    return taken, f"Weights of {found[1].upper()} are read as {taken.removeprefix('gguf-').upper()}, {what}."


def model_of(repository: str, tag: str) -> str:
    """Return the name of the model: the repository; only its last part where a tag chooses one of its files."""
    return repository.rsplit("/", 1)[-1] if tag else repository


def _settle(reading: Reading) -> None:
    """Set the context per slot, the whole of it where slots share one buffer, and the GPU layers if not all of them."""
    if reading.model is None:
        return
    options, features = reading.options, load_engine("llama.cpp").features_of(reading.version, None)
    split = options.pop("split", "layer")
    if split not in ("layer", "tensor" if "tensor_split" in features else "row"):
        reading.not_simulated.append(f"--split-mode {split}")
    context, seats = options.pop("context", 0), options.get("max_num_seqs")
    has_buffer = "kv_unified" in features
    is_shared = options.get("kv_unified", seats is None) and has_buffer
    if seats is None and not has_buffer:
        options["max_num_seqs"] = seats = 1
    if context:
        options["max_model_len"] = context if is_shared else max(context // (seats or 1), 1)
    layers = options.pop("layers", None)
    profile = load_model(reading.asked or find_model(str(reading.model), reading.where).model)
    keep_mxfp4(reading, profile)
    if layers is not None and layers < profile.num_hidden_layers:
        options["n_gpu_layers"] = layers
    if options.pop("all_experts", False):
        options["n_cpu_moe"] = profile.num_hidden_layers
    if "method" in reading.speculation:
        reading.speculation.setdefault("num_speculative_tokens", 3)  # --spec-draft-n-max
    else:
        reading.speculation.clear()
    for flag, overrides in options.pop("tensors", []):
        found = _layers_of(overrides, profile)
        if found is None:
            reading.not_simulated.append(f"{flag} {overrides}")
        else:
            options["n_cpu_moe"] = found
    if options.get("n_cpu_moe") and profile.moe is None:
        reading.notes.append(f"{profile.name} has no experts that the CPU could run.")
        del options["n_cpu_moe"]


def keep_mxfp4(reading: Reading, profile: ModelProfile) -> None:
    """Keep the experts of a model stored in MXFP4 in that format, whatever the name of its GGUF file says.

    The other tensors, a seventh of gpt-oss-20b, are those of the checkpoint that the engine has (model card of
    bartowski/openai_gpt-oss-20b-GGUF: all quants keep the feed-forward networks in MXFP4; llama.cpp issue 15117).
    """
    quantization = reading.quantization
    if quantization in (None, "mxfp4") or profile.stored.format != "mxfp4":
        return
    reading.quantization = "mxfp4"
    reading.notes.append(
        f"Experts of {profile.name} are in MXFP4 in every GGUF file; that the other tensors are in "
        f"{str(quantization).removeprefix('gguf-').upper()} is left out."
    )


def _weights(reading: Reading, _: str, value: Any) -> None:
    known, note = gguf_format(str(value))
    if known is not None:
        reading.quantization = known
    if note is not None:
        reading.notes.append(note)


def _file(reading: Reading, flag: str, value: Any) -> None:
    name = _PART.sub("", str(value).replace("\\", "/").rsplit("/", 1)[-1])
    reading.model = reading.model or _DRAFTING_MARK.sub("", _SIZES.sub("", name).removesuffix(".gguf"))
    _weights(reading, flag, name)


def _repository(reading: Reading, flag: str, value: Any) -> None:
    repository, _, tag = str(value).partition(":")
    on_record = (each for model in catalogue_models().values() for each in model.checkpoints if each.method == "gguf")
    if repository in [each.repository for each in on_record]:
        reading.model = repository  # its only file, in the format given in its profile
        return
    reading.model = _DRAFTING_MARK.sub("", model_of(repository, tag))
    if tag or reading.quantization is None:
        _weights(reading, flag, tag or "Q4_K_M")


def _count_unless(default: str, key: str) -> Reader:
    """Return a reader of a whole number; values of a pattern leave the choice to llama.cpp."""

    def read(reading: Reading, flag: str, value: Any) -> None:
        if not re.fullmatch(default, str(value), re.DOTALL):
            reading.options[key] = reading.count(flag, value)

    return read


def _drafting(reading: Reading, flag: str, value: Any) -> None:
    for each in str(value).split(","):
        if each in ("draft-mtp", "mtp"):
            reading.speculation["method"] = "mtp"
        elif each != "none":
            reading.not_simulated.append(f"{flag} {each}")


def _split(reading: Reading, _: str, value: Any) -> None:
    reading.options["split"] = str(value)


def _tensors(reading: Reading, flag: str, value: Any) -> None:
    reading.options.setdefault("tensors", []).append((flag, str(value)))


def _layers_of(overrides: str, profile: ModelProfile) -> int | None:
    """Return how many first layers keep their experts on the CPU by tensor patterns; None: the patterns do more.

    Which layers they are does not matter, so the same number of first layers with experts represents them.

    Args:
        overrides: ``PATTERN=CPU``, several with commas; a pattern is searched for in the tensors' names.
    """
    places = [each.rpartition("=") for each in overrides.split(",")]
    try:
        patterns = [re.compile(pattern) for pattern, _, place in places if place == "CPU"]
    except re.error:
        return None
    with_experts = [layer for layer in range(profile.num_hidden_layers) if profile.is_moe_layer(layer)]
    kept = [layer for layer in with_experts if all(_is_kept(patterns, layer, f"ffn_{each}_exps") for each in _EXPERTS)]
    is_other = any(_is_kept(patterns, layer, each) for layer in range(profile.num_hidden_layers) for each in _OTHERS)
    return None if is_other or not kept or len(patterns) < len(places) else with_experts[len(kept) - 1] + 1


def _is_kept(patterns: Sequence[re.Pattern[str]], layer: int, tensor: str) -> bool:
    return any(each.search(f"blk.{layer}.{tensor}.weight") for each in patterns)


def _kv_value_type(reading: Reading, flag: str, value: Any) -> None:
    if KV_CACHE_TYPES.get(str(value).lower()) != reading.deployment.get("kv_cache_dtype"):
        reading.not_simulated.append(f"{flag} {value}")


_VARIABLES = {
    "MODEL": "--model",
    "MODEL_URL": "--model-url",
    "HF_REPO": "--hf-repo",
    "HF_FILE": "--hf-file",
    "CTX_SIZE": "--ctx-size",
    "N_PARALLEL": "--parallel",
    "BATCH": "--batch-size",
    "UBATCH": "--ubatch-size",
    "N_GPU_LAYERS": "--gpu-layers",
    "N_CPU_MOE": "--n-cpu-moe",
    "CACHE_TYPE_K": "--cache-type-k",
    "CACHE_TYPE_V": "--cache-type-v",
}
"""Variable, without ``LLAMA_ARG_`` -> the flag that it stands for (llama.cpp's tools/server/README.md)."""


def _spelled(reading: Reading, words: Sequence[str]) -> Sequence[str]:
    """Put the flags that variables stand for before those of the line, which override them."""
    variables = reading.variables or {}
    told = [
        (flag, variables[f"LLAMA_ARG_{name}"]) for name, flag in _VARIABLES.items() if f"LLAMA_ARG_{name}" in variables
    ]
    return [*(word for pair in told for word in pair), *words]


LLAMA_CPP = Program(
    engine="llama.cpp",
    spelled=_spelled,
    settle=_settle,
    own={
        "--model": _file,
        "--model-url": _file,
        "--hf-repo": _repository,
        "--hf-file": _weights,
        "--gpu-layers": _count_unless("all|auto|-.*", "layers"),
        "--parallel": _count_unless("-.*", "max_num_seqs"),
        "--cache-type-k": chosen("kv_cache_dtype", "deployment", KV_CACHE_TYPES),
        "--cache-type-v": _kv_value_type,
        "--n-cpu-moe": _count_unless("0", "n_cpu_moe"),
        "--override-tensor": _tensors,
        "--split-mode": _split,
        "--spec-type": _drafting,
    },
)
"""``llama-server -m FILE.gguf ...`` or ``-hf ORG/NAME:QUANT``, or a ``docker run`` of its image; a version is a build,
such as b8000."""
