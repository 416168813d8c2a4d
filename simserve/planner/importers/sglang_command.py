"""Turns a pasted `sglang.launch_server` line into a scenario: what SGLang's flags mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import get_args

from simserve.errors import ScenarioError
from simserve.planner.export.flags import flags_of
from simserve.planner.importers.draft import Draft
from simserve.planner.importers.pasted import read_pasted, without_shell
from simserve.planner.importers.server import (
    DTYPES,
    FORMATS_OF_THE_CHECKPOINT,
    Reading,
    Vocabulary,
    assumptions,
    draft_of,
    json_object,
    read_arguments,
    read_balancing,
    read_cpu_offload,
    read_hicache_ratio,
    read_hicache_size,
    read_hicache_storage,
    read_hierarchical_cache,
    read_overlap,
    read_overrides,
    read_whole_encoders,
    redundant_experts,
    settle_hierarchical_cache,
)
from simserve.profiles.engine_options import AttentionBackend, Fp8GemmBackend
from simserve.profiles.engine_profile import load_engine

_WHERE = "sglang command"
_TITLE = "What does this SGLang server of {} do?"
_IMAGE = re.compile(r"(?:^|/)sglang(?:[:@](?:v(\d+(?:\.\d+)+))?|$)")
_ALIASES = {
    "--model": "--model-path",
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--pp": "--pp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size",
    "--ep": "--ep-size",
    "--expert-parallel-size": "--ep-size",
    "--speculative-draft-model": "--speculative-draft-model-path",
    "--max-prefill": "--max-prefill-tokens",
}
_QUANTIZATIONS = {
    "fp8": "fp8",
    "w8a8_fp8": "fp8",
    "modelopt": "fp8",
    "modelopt_fp8": "fp8",
    "w8a8_int8": "int8",
    "awq": "awq-int4",
    "awq_marlin": "awq-int4",
    "gptq": "gptq-int4-exllama",
    "gptq_marlin": "gptq-int4",
    "modelopt_fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "bitsandbytes": "nf4",
}
"""SGLang's names of weight formats -> the scenario's."""
_TORCHAO = {"int8wo": "int8-wo", "int4wo": "int4", "fp8wo": "fp8"}
_ALGORITHMS = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NEXTN": "mtp",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
}
"""SGLang's names of speculation methods -> vLLM's."""
_WITHOUT_EFFECT = re.compile(
    r"--(?:host|port|api-key|served-model-name|trust-remote-code|download-dir|tokenizer(?:-.*)?|random-seed|chat-.*|"
    r"revision|log-.*|enable-metrics|watchdog-timeout|tool-call-parser|reasoning-parser|load-format|nccl-.*|"
    r"dist-init-addr|nnodes|node-rank|allow-auto-truncate|show-time-cost|decode-log-interval|skip-server-warmup|warmups|"
    r"crash-dump-folder|file-storage-path|enable-cache-report|device|bucket-.*|collect-tokens-histogram)"
)
"""Flags without effect on the simulation."""


def import_sglang_command(
    text: str, *, hardware: str | None = None, version: str | None = None, model: str | None = None
) -> Draft:
    """Return the scenario that a command line describes.

    Args:
        text: ``python -m sglang.launch_server --model-path MODEL ...``, `sglang serve`, or a ``docker run`` of them, as
            pasted.
        hardware: GPU it runs on, not named in the line; None: an assumed one, with a note.
        version: SGLang's version; None: the image's tag, else the newest known.
        model: Profile or configuration to use instead of the one closest to the line's model.

    Raises:
        ScenarioError: The text is not such a command, or its model has no profile.
    """
    words = read_pasted(text, _WHERE).words
    arguments = _arguments(words)
    tag = next((found[1] for word in words if (found := _IMAGE.search(word))), None)
    newest = load_engine("sglang").versions[-1].version
    reading = read_sglang_arguments(without_shell(arguments), version or tag or newest, _WHERE)
    reading.notes[:0] = assumptions("sglang", newest, hardware=hardware, says_version=bool(version or tag))
    if reading.model is None:
        raise ScenarioError("names no model", file=_WHERE, remedy="write --model-path ORG/NAME")
    return draft_of(reading, model, hardware=hardware, title=_TITLE).checked()


def _arguments(words: Sequence[str]) -> Sequence[str]:
    for position, word in enumerate(words):
        if re.fullmatch(r"(?:sglang[./]launch_server|(?:.*/)?launch_server\.py)", word):
            return words[position + 1 :]
        if word.rsplit("/", 1)[-1] == "sglang" and words[position + 1 : position + 2] == ("serve",):
            return words[position + 2 :]
    remedy = "paste a line such as python -m sglang.launch_server --model-path ORG/NAME"
    raise ScenarioError("holds no sglang.launch_server", file=_WHERE, value=" ".join(words)[:200], remedy=remedy)


def read_sglang_arguments(arguments: Sequence[str], version: str, where: str) -> Reading:
    """Read SGLang's arguments.

    Args:
        arguments: The words after ``sglang.launch_server``.
        version: SGLang's version.
        where: Name of the arguments in errors.

    Raises:
        ScenarioError: A flag lacks its value, or has one that it does not accept.
    """
    reading = Reading("sglang", version, where)
    words = []
    for word in arguments:
        name, equals, value = word.partition("=")
        spelled = name.replace("_", "-") if name.startswith("--") else name
        words.append(f"{_ALIASES.get(spelled, spelled)}{equals}{value}")
    read_arguments(VOCABULARY, words, flags_of("sglang", version), reading)
    settle(reading)
    return reading


def settle(reading: Reading) -> None:
    """Convert what SGLang counts over all ranks, counts in tokens or names its own way to the scenario's keys.

    Raises:
        ScenarioError: A number of tokens is not a whole number of pages.
    """
    options = reading.options
    ranks = reading.data_parallel_size if reading.shares_attention_ranks else 1
    if options.get("enable_chunked_prefill") is not False:
        options.pop("unchunked_tokens", None)  # limits a batch of whole prompts; chunks are shorter
    elif (tokens := options.pop("unchunked_tokens", None)) is not None:
        options["max_num_batched_tokens"] = tokens
    for key in ("max_num_seqs", "max_num_batched_tokens"):
        if key in options:
            options[key] = max(options[key] // ranks, 1)
    tokens = options.pop("kv_tokens", None)
    if tokens is not None:
        options["num_gpu_blocks_override"] = max(tokens // options.get("block_size", 1), 1)
    if reading.experts.get("backend") == "deepep":
        # `auto`, the default, is read as the mode for decoding.
        is_normal = reading.experts.get("mode") == "normal"
        reading.deployment["all2all_backend"] = "deepep_high_throughput" if is_normal else "deepep_low_latency"
    _settle_speculation(reading)
    settle_hierarchical_cache(reading)


def _settle_speculation(reading: Reading) -> None:
    said = reading.speculation
    if "method" not in said:
        said.clear()
        return
    topk = said.pop("topk", 1)
    drafts = said.pop("num_draft_tokens", None)
    if topk != 1:
        reading.not_simulated.append(f"--speculative-eagle-topk {topk}")
    if "num_speculative_tokens" not in said and drafts is not None:
        said["num_speculative_tokens"] = max(drafts - 1, 1)
    if said["method"] == "eagle" and "model" not in said:
        said["method"] = "mtp"  # without a draft model, the model's own layers draft
    said.setdefault("num_speculative_tokens", 3)


def _model(reading: Reading, value: object) -> None:
    reading.model = str(value)


def _data_parallel(reading: Reading, value: object) -> None:
    reading.data_parallel_size = reading.count("--dp-size", value)


def _attention_ranks(reading: Reading, value: object) -> None:
    reading.shares_attention_ranks = value is True


def _experts(reading: Reading, value: object) -> None:
    if value is True or reading.count("--ep-size", value) > 1:
        reading.deployment["enable_expert_parallel"] = True


def _all2all_backend(reading: Reading, value: object) -> None:
    reading.experts["backend"] = str(value)
    if value not in ("deepep", "none"):
        reading.not_simulated.append(f"--moe-a2a-backend {value}")


def _pooling(reading: Reading, value: object) -> None:
    reading.is_pooling = value is True


def _fp8_gemm_backend(reading: Reading, value: object) -> None:
    if value in get_args(Fp8GemmBackend):
        reading.options["fp8_gemm_backend"] = value
    elif value != "auto":
        reading.not_simulated.append(f"--fp8-gemm-backend {value}")


def _deepep_mode(reading: Reading, value: object) -> None:
    reading.experts["mode"] = str(value)


def _share(reading: Reading, value: object) -> None:
    flag = "--mem-fraction-static"
    reading.options["gpu_memory_utilization"] = reading.number(flag, value, "is not a share")


def _enable_lora(reading: Reading, value: object) -> None:
    if value is True:
        reading.options.setdefault("max_loras", 8)  # SGLang's default, server_args.py


def _chunk(reading: Reading, value: object) -> None:
    if str(value) == "-1":
        reading.options["enable_chunked_prefill"] = False
    else:
        reading.options["max_num_batched_tokens"] = reading.count("--chunked-prefill-size", value)


def _prefill_tokens(reading: Reading, value: object) -> None:
    reading.options["unchunked_tokens"] = reading.count("--max-prefill-tokens", value)


def _total_tokens(reading: Reading, value: object) -> None:
    reading.options["kv_tokens"] = reading.count("--max-total-tokens", value)


def _quantization(reading: Reading, value: object) -> None:
    if value in FORMATS_OF_THE_CHECKPOINT:
        reading.as_stored = f"--quantization {value}"
        return
    known = _QUANTIZATIONS.get(str(value))
    if known is None:
        reading.not_simulated.append(f"--quantization {value}")
    reading.quantization = known or "none"


def _torchao(reading: Reading, value: object) -> None:
    known = _TORCHAO.get(str(value).partition("-")[0])
    if known is None:
        reading.not_simulated.append(f"--torchao-config {value}")
    else:
        reading.quantization = known


def _dtype(reading: Reading, value: object) -> None:
    reading.dtype = DTYPES.get(str(value))


def _kv_cache_dtype(reading: Reading, value: object) -> None:
    reading.set_kv_cache_dtype("--kv-cache-dtype", value)


def _policy(reading: Reading, value: object) -> None:
    if value == "fcfs":
        reading.options["scheduling_policy"] = "fcfs"
    else:
        reading.not_simulated.append(f"--schedule-policy {value}")


def _mixed(reading: Reading, value: object) -> None:
    if value is True:
        reading.options["scheduler"] = "mixed"


def _overrides(reading: Reading, value: object) -> None:
    flag = "--json-model-override-args"
    read_overrides(reading, flag, json_object(reading, flag, value))


def _algorithm(reading: Reading, value: object) -> None:
    reading.speculation["method"] = _ALGORITHMS.get(str(value).upper(), str(value).lower())


def _draft_model(reading: Reading, value: object) -> None:
    reading.speculation["model"] = str(value)


def _attention_backend(reading: Reading, value: object) -> None:
    if value in get_args(AttentionBackend):
        reading.options["attention_backend"] = value
    else:
        reading.not_simulated.append(f"--attention-backend {value}")


def _counted(flag: str, key: str) -> Callable[[Reading, object], None]:
    def read(reading: Reading, value: object) -> None:
        reading.speculation[key] = reading.count(flag, value)

    return read


VOCABULARY = Vocabulary(
    engine="sglang",
    deployment_counts={"--tp-size": "tensor_parallel_size", "--pp-size": "pipeline_parallel_size"},
    option_counts={
        "--context-length": "max_model_len",
        "--max-running-requests": "max_num_seqs",
        "--page-size": "block_size",
        "--cuda-graph-max-bs": "max_cudagraph_capture_size",
        "--cuda-graph-max-bs-decode": "max_cudagraph_capture_size",
        "--max-loras-per-batch": "max_loras",
        "--max-lora-rank": "max_lora_rank",
        "--max-loaded-loras": "max_cpu_loras",
    },
    switches={
        "--disable-radix-cache": ("enable_prefix_caching", False),
        "--disable-overlap-schedule": ("async_scheduling", False),
        "--disable-cuda-graph": ("enforce_eager", True),
        "--language-model-only": ("language_model_only", True),
    },
    others={
        "--model-path": _model,
        "--dp-size": _data_parallel,
        "--enable-dp-attention": _attention_ranks,
        "--ep-size": _experts,
        "--enable-ep-moe": _experts,
        "--moe-a2a-backend": _all2all_backend,
        "--attention-backend": _attention_backend,
        "--fp8-gemm-backend": _fp8_gemm_backend,
        "--mm-enable-dp-encoder": read_whole_encoders,
        "--is-embedding": _pooling,
        "--deepep-mode": _deepep_mode,
        "--enable-two-batch-overlap": read_overlap,
        "--enable-eplb": read_balancing,
        "--ep-num-redundant-experts": redundant_experts("--ep-num-redundant-experts"),
        "--mem-fraction-static": _share,
        "--cpu-offload-gb": read_cpu_offload,
        "--enable-lora": _enable_lora,
        "--enable-hierarchical-cache": read_hierarchical_cache,
        "--hicache-size": read_hicache_size,
        "--hicache-ratio": read_hicache_ratio,
        "--hicache-storage-backend": read_hicache_storage,
        "--chunked-prefill-size": _chunk,
        "--max-prefill-tokens": _prefill_tokens,
        "--max-total-tokens": _total_tokens,
        "--quantization": _quantization,
        "--torchao-config": _torchao,
        "--dtype": _dtype,
        "--kv-cache-dtype": _kv_cache_dtype,
        "--schedule-policy": _policy,
        "--enable-mixed-chunk": _mixed,
        "--json-model-override-args": _overrides,
        "--speculative-algorithm": _algorithm,
        "--speculative-draft-model-path": _draft_model,
        "--speculative-num-steps": _counted("--speculative-num-steps", "num_speculative_tokens"),
        "--speculative-num-draft-tokens": _counted("--speculative-num-draft-tokens", "num_draft_tokens"),
        "--speculative-eagle-topk": _counted("--speculative-eagle-topk", "topk"),
    },
    without_effect=_WITHOUT_EFFECT,
)
