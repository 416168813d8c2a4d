"""The `text-generation-launcher` command of a deployment."""

from __future__ import annotations

from simserve.errors import ScenarioError
from simserve.planner.export.command_line import DTYPES, CommandLine, arithmetic_dtype
from simserve.planner.export.deployment import Deployment, Export
from simserve.planner.export.flags import flags_of

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
    line = CommandLine(deployment, flags, ["text-generation-launcher", "--model-id", deployment.checkpoint])
    line.add("--num-shard", asked.tensor_parallel_size, "tensor_parallel_size")
    _add_formats(line)
    _add_limits(line)
    environment = {}
    if "enable_prefix_caching" in deployment.says and flags.version == "3.0":
        environment["PREFIX_CACHING"] = "1" if deployment.engine.enable_prefix_caching else "0"
    deployment.note("requests beyond --max-concurrent-requests are refused by TGI; in the simulation they wait")
    return deployment.started_by("tgi", line.words, environment=environment)


def _add_formats(line: CommandLine) -> None:
    deployment, quantization = line.deployment, line.deployment.quantization
    if deployment.needs_no_quantization():
        line.add("--dtype", DTYPES[arithmetic_dtype(deployment)], "quantization")
    elif quantization not in QUANTIZE:
        rule = f"cannot be exported: {deployment.label} has no such format"
        remedy = "it takes none, " + ", ".join(QUANTIZE)
        raise ScenarioError(rule, key="deployment.quantization", value=quantization, remedy=remedy)
    else:
        if quantization not in _ONLINE and quantization != deployment.stored_quantization:
            deployment.needs_checkpoint(f"TGI does not quantise to {quantization} while it loads")
        line.add("--quantize", QUANTIZE[quantization], "quantization")
    asked = deployment.scenario.deployment.kv_cache_dtype
    if asked in ("fp8", "int8", "int4"):
        line.add("--kv-cache-dtype", "fp8_e4m3fn" if asked == "fp8" else asked, "kv_cache_dtype")
    elif asked not in ("auto", deployment.model.dtype):
        rule = f"cannot be exported: TGI keeps KV in the model's {deployment.model.dtype}, or in FP8"
        raise ScenarioError(rule, key="deployment.kv_cache_dtype", value=asked)


def _add_limits(line: CommandLine) -> None:
    """Add all limits, as TGI's defaults depend on its own warm-up, which is not simulated."""
    deployment, engine = line.deployment, line.deployment.engine
    length, budget = engine.max_model_len, engine.max_num_batched_tokens
    longest = length - 1 if engine.enable_chunked_prefill else min(length - 1, max(budget - _ROOM, 1))
    prompt_flag = "--max-input-tokens" if line.flags.has("--max-input-tokens") else "--max-input-length"
    line.add("--max-concurrent-requests", engine.max_num_seqs, "engine.max_num_seqs")
    line.add(prompt_flag, longest, "engine.max_model_len")
    line.add("--max-total-tokens", length, "engine.max_model_len")
    line.add("--max-batch-prefill-tokens", budget, "engine.max_num_batched_tokens")
    if deployment.take("engine.enforce_eager") and line.flags.has("--cuda-graphs"):
        line.add("--cuda-graphs", 0, "engine.enforce_eager")
    if "gpu_memory_utilization" in deployment.says:
        line.add("--cuda-memory-fraction", engine.gpu_memory_utilization, "engine.gpu_memory_utilization")
        deployment.note(
            "--cuda-memory-fraction is of all memory; the simulation takes the share of what is free after load"
        )
