"""The Modelfile, variables and commands of Ollama."""

from __future__ import annotations

import re
from dataclasses import replace

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Deployment, Export

MODELFILE = "Modelfile"
_QUANTIZE = {"gguf-q4_k_m": "q4_K_M", "gguf-q8_0": "q8_0"}
"""Formats that `ollama create --quantize` makes from 16-bit weights -> its names."""
_KV_CACHE = {"auto": "f16", "fp16": "f16", "int8": "q8_0", "int4": "q4_0"}
_GGUF = "gguf-"
_SPREAD = "OLLAMA_SCHED_SPREAD cuts the layers over all GPUs that CUDA_VISIBLE_DEVICES shows to Ollama"
"""Note on several GPUs (Ollama's envconfig/config.go: always schedule a model across all GPUs)."""
_SETTABLE = ("max_model_len", "max_num_seqs")


def export_ollama(deployment: Deployment) -> Export:
    """Return the Modelfile, the variables and the commands that create and serve the model.

    Raises:
        ScenarioError: Ollama cannot do what the scenario asks for.
    """
    _refuse(deployment)
    engine, scenario = deployment.engine, deployment.scenario
    environment = {"OLLAMA_NUM_PARALLEL": str(engine.max_num_seqs), "OLLAMA_CONTEXT_LENGTH": str(engine.max_model_len)}
    kv_cache_type = _KV_CACHE[scenario.deployment.kv_cache_dtype]
    if kv_cache_type != "f16":
        environment |= {"OLLAMA_FLASH_ATTENTION": "1", "OLLAMA_KV_CACHE_TYPE": kv_cache_type}
    if scenario.deployment.pipeline_parallel_size > 1:
        environment["OLLAMA_SCHED_SPREAD"] = "1"
        deployment.note(_SPREAD)
    # Its name has its format, as tags of Ollama have it: llama-3.2-1b-q8_0.
    name = re.sub(r"[^a-z0-9._-]+", "-", deployment.model.name.rsplit("/", 1)[-1].lower())
    weights = str(deployment.resolved.formats["weights"])
    is_tag = deployment.is_full_precision or weights.startswith(_GGUF)
    name = f"{name}-{weights.removeprefix(_GGUF)}" if is_tag else name
    modelfile = [f"FROM {_source(deployment)}", f"PARAMETER num_ctx {engine.max_model_len}"]
    layers = deployment.take("num_gpu") or deployment.take("engine.num_gpu")
    if layers is not None:
        modelfile.append(f"PARAMETER num_gpu {layers}")
    quantization = deployment.quantization
    flag = f" --quantize {_QUANTIZE[quantization]}" if quantization in _QUANTIZE else ""
    if deployment.is_own_checkpoint:
        flag = ""
    create = f"ollama create {name}{flag} -f {MODELFILE}"
    deployment.note(f"start the server with this command, then make the model (a script does): {create}")
    files = {MODELFILE: "\n".join(modelfile) + "\n"}
    export = deployment.started_by("ollama", ("ollama", "serve"), environment=environment, files=files)
    return replace(export, once_up=(create, f'ollama run {name} ""'), answers="ollama list", served_name=name)


def _refuse(deployment: Deployment) -> None:
    asked, engine = deployment.scenario.deployment, deployment.engine
    if asked.kv_cache_dtype not in _KV_CACHE:
        rule, remedy = "cannot be exported: Ollama has no such KV cache", "it stores fp16, int8 (q8_0), int4 (q4_0)"
        raise ScenarioError(rule, key="deployment.kv_cache_dtype", value=asked.kv_cache_dtype, remedy=remedy)
    for key in sorted(deployment.needed - {*_SETTABLE}):
        rule = "cannot be exported: Ollama has no setting for it"
        raise ScenarioError(rule, key=f"deployment.engine.{key}", value=getattr(engine, key), remedy="leave it out")


def _source(deployment: Deployment) -> str:
    """Return the source in the Modelfile: the user's weights, or the folder that the checkpoint is downloaded to."""
    if deployment.is_own_checkpoint:
        return deployment.checkpoint
    quantization = deployment.quantization
    if not deployment.is_full_precision and quantization not in _QUANTIZE:
        deployment.needs_checkpoint(f"ollama create does not quantise to {quantization}")
    stored = deployment.model.stored
    if not stored.is_wide:
        deployment.needs_checkpoint(f"it is stored in {stored.format}, and ollama create quantises 16-bit weights only")
    # A public GGUF repository would need a choice of one file; ollama create makes it from the 16-bit weights.
    repository = stored.repository or deployment.checkpoint
    folder = "./" + repository.rsplit("/", 1)[-1]
    deployment.note(f"FROM is a folder: huggingface-cli download {repository} --local-dir {folder}")
    return folder
