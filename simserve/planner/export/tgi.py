"""The `text-generation-launcher` command of a deployment."""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Deployment, Export
from simserve.planner.export.flags import Flags, flags_of
from simserve.planner.export.shared_flags import DTYPES, arithmetic_dtype

QUANTIZE = {"fp8": "fp8", "int8-wo": "eetq", "awq-int4": "awq", "gptq-int4": "gptq"}
_ONLINE = ("fp8", "int8-wo")
"""Formats to which TGI converts weights on loading; the others are read from the checkpoint."""
_ROOM = 50  # TGI's default of max_batch_prefill_tokens is max_input_tokens plus this number.


def export_tgi(deployment: Deployment) -> Export:
    """Return the command that starts one replica.

    Raises:
        ScenarioError: TGI cannot do what the scenario asks for.
    """
    flags = flags_of("tgi", deployment.version)
    asked, engine = deployment.scenario.deployment, deployment.engine
    lacks = {"pipeline_parallel_size": "pipeline parallelism", "data_parallel_size": "data-parallel attention"}
    for key, what in lacks.items():
        if (size := getattr(asked, key)) > 1:
            raise ScenarioError(f"cannot be exported: TGI has no {what}", key=f"deployment.{key}", value=size)
    settable = ("max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens")
    for key in sorted(deployment.needed - {*settable, "enable_prefix_caching"}):
        rule = f"cannot be exported: {deployment.label} has no flag for it"
        raise ScenarioError(rule, key=f"deployment.engine.{key}", value=getattr(engine, key), remedy="leave it out")
    words = ["text-generation-launcher", *flags.render("--model-id", deployment.checkpoint, key="model")]
    words += flags.render("--num-shard", asked.tensor_parallel_size, key="deployment.tensor_parallel_size")
    words += _formats(deployment, flags) + _limits(deployment, flags)
    environment = {}
    if "enable_prefix_caching" in deployment.says and flags.version == "3.0":
        environment["PREFIX_CACHING"] = "1" if deployment.engine.enable_prefix_caching else "0"
    deployment.note("requests beyond --max-concurrent-requests are refused by TGI; in the simulation they wait")
    return deployment.started_by("tgi", words, environment=environment)


def _formats(deployment: Deployment, flags: Flags) -> list[str]:
    asked, words = deployment.scenario.deployment, []
    quantization, key = deployment.quantization, "deployment.quantization"
    if deployment.is_full_precision:
        if deployment.stored_quantization != "none":
            deployment.needs_checkpoint(f"it is stored in {deployment.stored_quantization}")
        words += flags.render("--dtype", DTYPES[arithmetic_dtype(deployment)], key=key)
    elif quantization not in QUANTIZE:
        rule = f"cannot be exported: {deployment.label} has no such format"
        raise ScenarioError(rule, key=key, value=quantization, remedy="it takes none, " + ", ".join(QUANTIZE))
    else:
        if quantization not in _ONLINE and quantization != deployment.stored_quantization:
            deployment.needs_checkpoint(f"TGI does not quantise to {quantization} while it loads")
        words += flags.render("--quantize", QUANTIZE[quantization], key=key)
    if asked.kv_cache_dtype in ("fp8", "int8", "int4"):
        value = "fp8_e4m3fn" if asked.kv_cache_dtype == "fp8" else asked.kv_cache_dtype
        words += flags.render("--kv-cache-dtype", value, key="deployment.kv_cache_dtype")
    elif asked.kv_cache_dtype not in ("auto", deployment.model.dtype):
        rule = f"cannot be exported: TGI keeps KV in the model's {deployment.model.dtype}, or in FP8"
        raise ScenarioError(rule, key="deployment.kv_cache_dtype", value=asked.kv_cache_dtype)
    return words


def _limits(deployment: Deployment, flags: Flags) -> list[str]:
    """Return all limits, as TGI's defaults depend on its own warm-up, which is not simulated."""
    engine = deployment.engine
    length, budget = engine.max_model_len, engine.max_num_batched_tokens
    longest = length - 1 if engine.enable_chunked_prefill else min(length - 1, max(budget - _ROOM, 1))
    prompt_flag = "--max-input-tokens" if flags.has("--max-input-tokens") else "--max-input-length"
    words = flags.render("--max-concurrent-requests", engine.max_num_seqs, key="deployment.engine.max_num_seqs")
    words += flags.render(prompt_flag, longest, key="deployment.engine.max_model_len")
    words += flags.render("--max-total-tokens", length, key="deployment.engine.max_model_len")
    words += flags.render("--max-batch-prefill-tokens", budget, key="deployment.engine.max_num_batched_tokens")
    if deployment.take("engine.enforce_eager") and flags.has("--cuda-graphs"):
        words += flags.render("--cuda-graphs", 0, key="deployment.engine.enforce_eager")
    if "gpu_memory_utilization" in deployment.says:
        share = engine.gpu_memory_utilization
        words += flags.render("--cuda-memory-fraction", share, key="deployment.engine.gpu_memory_utilization")
        deployment.note(
            "--cuda-memory-fraction is of all memory; the simulation takes the share of what is free after load"
        )
    return words
