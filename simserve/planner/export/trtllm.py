"""The `trtllm-serve` commands of a deployment and its prefill and decode pools, and YAML for options without a flag.

Pools are served as in NVIDIA/TensorRT-LLM's examples/disaggregated/README.md: one `trtllm-serve` per worker with the
options file of its role, and `trtllm-serve disaggregated` in front, which knows their addresses.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from simserve.documents import yaml_text
from simserve.errors import ScenarioError
from simserve.planner.export.command_line import CommandLine
from simserve.planner.export.deployment import Deployment, Export, draft_checkpoint
from simserve.planner.export.flags import flags_of, without
from simserve.planner.export.role_servers import (
    SERVERS_FILE,
    Placed,
    host_names,
    placed,
    refuse_other_pools,
    start_script,
    started,
)
from simserve.planner.export.workers import PORT, Worker
from simserve.profiles.engine_options import version_key

OPTIONS_FILE = "extra_llm_api_options.yaml"
_SINCE = version_key("1.0")
"""First version with PyTorch as default backend and `--extra_llm_api_options`; before, an engine had to be built."""
_KV_CACHE = {"fp8": "fp8", "fp16": "auto", "bf16": "auto", "auto": "auto"}
_NUMBERS = {
    "max_model_len": "--max_seq_len",
    "gpu_memory_utilization": "--kv_cache_free_gpu_memory_fraction",
    "max_num_seqs": "--max_batch_size",
    "max_num_batched_tokens": "--max_num_tokens",
}
POLICIES = {"reserve": "GUARANTEED_NO_EVICT", "on_demand": "MAX_UTILIZATION"}
"""What admission requires blocks for -> `scheduler_config.capacity_scheduler_policy`."""
DRAFTERS = {"eagle": "Eagle", "mtp": "MTP", "draft_model": "DraftTarget", "ngram": "NGram"}
"""Drafting method -> `speculative_config.decoding_type`."""
_NGRAM_TOKENS = 4  # Longest look-up of the prompt that TensorRT-LLM's documentation uses for n-gram speculation.
_READER = "trtllm-serve --extra_llm_api_options"
CONFIG_FILE = "disagg_config.yaml"
GROUPS = {"prefill": "context_servers", "decode": "generation_servers"}
"""Role -> name of its servers in the router's file."""
_BACKEND = "DEFAULT"  # Backend of the KV transfer: the default of the release (UCX in 1.0, NIXL in later ones).


def export_trtllm(deployment: Deployment) -> Export:
    """Return the command that starts one replica, and its options file.

    Raises:
        ScenarioError: The version's `trtllm-serve` takes no model, or has no option for what the scenario asks for.
    """
    if version_key(deployment.version) < _SINCE:
        rule = "cannot be exported: before 1.0 TensorRT-LLM serves an engine that trtllm-build has made"
        remedy = 'use "1.0" or newer'
        raise ScenarioError(rule, key="deployment.engine.version", value=deployment.version, remedy=remedy)
    flags = flags_of("tensorrt-llm", deployment.version)
    line = CommandLine(deployment, flags, ["trtllm-serve", deployment.checkpoint])
    _add_flags(line)
    options = _options(deployment) | _speculative(deployment)
    files = {}
    if options:
        line.add("--extra_llm_api_options", OPTIONS_FILE, "engine")
        files[OPTIONS_FILE] = options_text(options, deployment.version)
    _check_weights(deployment)
    return deployment.started_by("trtllm", line.words, files=files)


def options_text(options: Mapping[str, Any], version: str, reader: str = _READER) -> str:
    """Return a file of options of TensorRT-LLM's LLM API.

    Raises:
        ScenarioError: The version lacks one of the keys.
    """
    flags = flags_of("tensorrt-llm", version)
    parts = [f"{key}.{part}" for key, block in options.items() if isinstance(block, dict) for part in block]
    for name in [*options, *parts]:
        if not flags.has(name):
            rule = f"cannot be passed to TensorRT-LLM {flags.version}, whose options have no such key"
            raise ScenarioError(rule, key=name)
    kind = options.get("speculative_config", {}).get("decoding_type")
    if kind is not None and not flags.accepts("speculative_config.decoding_type", kind):
        rule = f"cannot be passed to TensorRT-LLM {flags.version}, which has no decoding_type {kind}"
        raise ScenarioError(rule, key="deployment.speculative.method")
    return f"# For {reader}\n" + yaml_text(dict(options))


def _add_flags(line: CommandLine) -> None:
    deployment, asked = line.deployment, line.deployment.scenario.deployment
    # Attention ranks are counted there among the tensor-parallel ones.
    ranks = asked.tensor_parallel_size * asked.data_parallel_size
    sizes = (("tensor", "--tp_size", ranks), ("pipeline", "--pp_size", asked.pipeline_parallel_size))
    for kind, flag, size in sizes:
        if size > 1 or deployment.is_explicit:
            line.add(flag, size, f"{kind}_parallel_size")
    if asked.enable_expert_parallel:
        line.add("--ep_size", ranks, "enable_expert_parallel")
    for key, flag in _NUMBERS.items():
        if key in deployment.says:
            line.add(flag, getattr(deployment.engine, key), f"engine.{key}")


def _options(deployment: Deployment) -> dict[str, Any]:
    engine, says, options = deployment.engine, deployment.says, dict[str, Any]()
    if "enable_chunked_prefill" in says:
        options["enable_chunked_prefill"] = engine.enable_chunked_prefill
    if "async_scheduling" in says:
        options["disable_overlap_scheduler"] = not engine.async_scheduling
    options["cuda_graph_config"] = _graphs(deployment)
    if deployment.take("engine.piecewise_cuda_graph_max_tokens"):
        sizes = list(engine.piecewise_cuda_graph_sizes)
        options["torch_compile_config"] = {"capture_num_tokens": sizes, "enable_piecewise_cuda_graph": True}
    if deployment.scenario.deployment.data_parallel_size > 1:
        options["enable_attention_dp"] = True
    if deployment.take("engine.attention_dp_timeout_iters"):
        iters = engine.attention_dp_timeout_iters
        options["attention_dp_config"] = {"enable_balance": True, "timeout_iters": iters, "batching_wait_iters": 0}
    limits = {key: deployment.take(f"engine.{key}") for key in ("max_loras", "max_lora_rank", "max_cpu_loras")}
    if limits["max_loras"]:
        block = {**limits, "max_lora_rank": engine.max_lora_rank}
        options["lora_config"] = {key: value for key, value in block.items() if value}
        deployment.note("name what the adapters are made for in lora_config: lora_target_modules, or a lora_dir")
    if deployment.scenario.deployment.engine.admission is not None:
        options["scheduler_config"] = {"capacity_scheduler_policy": POLICIES[engine.admission]}
    kv_cache: dict[str, Any] = {}
    if engine.suspends and engine.admission != "on_demand":
        # The second KV cache manager runs MAX_UTILIZATION whatever policy is asked for.
        kv_cache["use_kv_cache_manager_v2"] = False
    asked = deployment.scenario.deployment.kv_cache_dtype
    if asked not in _KV_CACHE or (asked in ("fp16", "bf16") and asked != deployment.model.dtype):
        rule = f"cannot be exported: {deployment.label} has no {asked} KV cache for a {deployment.model.dtype} model"
        raise ScenarioError(rule, key="deployment.kv_cache_dtype", value=asked, remedy="it stores auto, fp8")
    if asked in ("fp16", "bf16") and deployment.kv_of_auto != asked:
        why = f"{deployment.checkpoint} asks for a {deployment.kv_of_auto} KV cache, and {deployment.label} keeps it so"
        rule = f"cannot be exported: {why}"
        raise ScenarioError(rule, key="deployment.kv_cache_dtype", value=asked, remedy="leave it at auto")
    if _KV_CACHE[asked] != "auto" or deployment.is_explicit:
        kv_cache["dtype"] = _KV_CACHE[asked]
    if "enable_prefix_caching" in says:
        kv_cache["enable_block_reuse"] = engine.enable_prefix_caching
    if "block_size" in says:
        kv_cache["tokens_per_block"] = engine.block_size
    blocks = deployment.take("engine.num_gpu_blocks_override")
    if blocks:
        kv_cache["max_tokens"] = blocks * engine.block_size
    if kv_cache:
        options["kv_cache_config"] = kv_cache
    return options


def _graphs(deployment: Deployment) -> dict[str, Any] | None:
    """Return the CUDA graph settings: by default, batches are not padded to a graph and none above 128 has one."""
    deployment.take("engine.max_cudagraph_capture_size")
    deployment.take("engine.cuda_graph_padding")
    if deployment.take("engine.enforce_eager"):
        return None
    engine = deployment.engine
    return {"enable_padding": engine.cuda_graph_padding, "max_batch_size": engine.max_cudagraph_capture_size}


def _speculative(deployment: Deployment) -> dict[str, Any]:
    """Return the drafting method and number of tokens; drafters outside the model need the overlap scheduler off."""
    asked = deployment.take("speculative")
    if asked is None:
        return {}
    count, drafter = asked.num_speculative_tokens, draft_checkpoint(deployment, asked)
    settings: dict[str, Any] = {"decoding_type": DRAFTERS[asked.method], "max_draft_len": count}
    if drafter is not None:
        settings["speculative_model_dir"] = drafter
    elif asked.method == "mtp":
        settings["num_nextn_predict_layers"] = count
    else:
        settings["max_matching_ngram_size"] = _NGRAM_TOKENS
    deployment.note("acceptance is measured, not set: compare the server's acceptance length with the scenario's")
    is_outside = asked.method in ("draft_model", "ngram")
    return {"speculative_config": settings} | ({"disable_overlap_scheduler": True} if is_outside else {})


def _check_weights(deployment: Deployment) -> None:
    """Check that the checkpoint is in the simulated format: the PyTorch backend loads weights as they are stored."""
    quantization = deployment.quantization
    if deployment.needs_no_quantization():
        if quantization not in ("none", deployment.model.dtype):
            rule = f"cannot be exported: trtllm-serve has no flag for the dtype and runs {deployment.model.dtype}"
            raise ScenarioError(rule, key="deployment.quantization", value=quantization)
    elif quantization != deployment.stored_quantization or deployment.is_own_checkpoint:
        deployment.needs_checkpoint("trtllm-serve takes weights as they are stored (ModelOpt makes such checkpoints)")
        deployment.note(
            f"{deployment.checkpoint} must hold {quantization} weights; trtllm-serve reads the format from it"
        )


def export_trtllm_pools(workers: list[Worker]) -> Export:
    """Return the command of the router, with the files that start the other servers.

    Raises:
        ScenarioError: TensorRT-LLM's router cannot do what was simulated; names the key.
    """
    refuse_other_pools(workers, "trtllm")
    servers = list(placed(workers))
    names = host_names(servers)
    front: dict[str, object] = {"hostname": "0.0.0.0", "port": PORT, "backend": "pytorch"}
    for role, group in GROUPS.items():
        urls = [f"{names[each.host]}:{each.port}" for each in servers if each.worker.role == role]
        front[group] = {"num_instances": len(urls), "urls": urls}
    files = {CONFIG_FILE: yaml_text(front)}
    files |= {_options_file(each): options_text(role_options(each), each.serving.version) for each in workers}
    files[SERVERS_FILE] = start_script(servers, names, _command)
    policy, link = workers[0].whole.routing.policy, workers[0].whole.disaggregation
    assert link is not None  # pools have roles
    notes = (
        "servers that prefill run without the overlapped scheduler, which TensorRT-LLM does not have for them",
        f"the front hands requests round robin; {policy} was simulated",
        f"KV caches were simulated to cross a link of {link.transfer_bandwidth / 1e9:g} GB/s: measure yours",
    )
    return started(workers, ("trtllm-serve", "disaggregated", "-c", CONFIG_FILE), files, names, notes)


def _options_file(worker: Worker) -> str:
    return f"{worker.name}.yaml"


def role_options(worker: Worker) -> dict[str, Any]:
    """Return the options of a server, with those of the KV transfer where it only prefills or decodes."""
    alone = worker.serving.files.get(OPTIONS_FILE)
    options: dict[str, Any] = {} if alone is None else yaml.safe_load(alone)
    if worker.role == "prefill":
        options["disable_overlap_scheduler"] = True
    if worker.role != "both":
        buffer = worker.deployment.engine.max_model_len
        options["cache_transceiver_config"] = {"backend": _BACKEND, "max_tokens_in_buffer": buffer}
    return options


def _command(server: Placed) -> str:
    words = without(server.worker.serving.command, {"--extra_llm_api_options": 1})
    reachable = ["--host", "0.0.0.0", "--port", str(server.port)]
    return shlex.join([*words, *reachable, "--extra_llm_api_options", _options_file(server.worker)])
