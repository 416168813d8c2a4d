"""A command line as it is written, with flags that engines share: formats, experts, KV tiers, embeddings, grammars."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Deployment
from simserve.planner.export.flags import Flags
from simserve.scenario.deployment_spec import KVTierSpec
from simserve.scenario.formats import COMPRESSED_KV
from simserve.units import GIB, format_bytes
from simserve.workload.length_spec import NoLength

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Number format of a scenario -> its name in servers' ``--dtype``."""
FP8_ON_LOAD = "--quantization fp8 quantises a 16-bit checkpoint while it loads; drop it for one stored in FP8"
_KV_FLAG = "--kv-cache-dtype"
_GB = 1e9  # Bytes of a GB of ``--hicache-size`` (SGLang mem_cache/memory_pool_host.py).
_BACKENDS = {"disk": "file", "remote": "mooncake"}
"""Tier -> SGLang's ``--hicache-storage-backend``; other backends fit either tier."""
_SGLANG_BACKENDS = {"guidance": "llguidance"}
"""Grammar compiler -> SGLang's name of it, where that differs (server_args.py, ``--grammar-backend``)."""


def arithmetic_dtype(deployment: Deployment) -> str:
    """Return the format in which a deployment computes where its weights are not quantized."""
    quantization = deployment.quantization
    return quantization if quantization in DTYPES else deployment.model.dtype


@dataclass(slots=True)
class CommandLine:
    """The command line of a replica's server while it is written."""

    deployment: Deployment  # The replica.
    flags: Flags  # The flags of its engine's version.
    words: list[str]  # The words so far.

    @property
    def says_dtype(self) -> bool:
        """Whether the format it computes in is written out: where it is not the model's, or with every default."""
        return arithmetic_dtype(self.deployment) != self.deployment.model.dtype or self.deployment.is_explicit

    def add(self, flag: str, value: object, key: str, *, block: str = "deployment") -> None:
        """Add a flag that is set to a value.

        Args:
            flag: The flag with its dashes.
            value: True or False for a switch; anything else is written as text.
            key: Key of the scenario that requires it, below ``block``.
            block: Block of the scenario.

        Raises:
            ScenarioError: The version has no such flag, or does not accept the value.
        """
        self.words += self.flags.render(flag, value, key=f"{block}.{key}")

    def add_options(self, names: Mapping[str, str]) -> None:
        """Add the flags of the engine's options that the scenario sets: option -> flag."""
        for option, flag in names.items():
            if value := self.deployment.take(f"engine.{option}"):
                self.add(flag, value, f"engine.{option}")

    def add_kv_cache(self, low_bit: Mapping[str, Sequence[str]]) -> None:
        """Add the flag of the KV cache's number format, unless it is the server's default.

        Args:
            low_bit: Format of 8 bits and fewer -> the engine's names for it, the newest first.

        Raises:
            ScenarioError: The engine's version has no such KV cache.
        """
        deployment, key = self.deployment, "kv_cache_dtype"
        asked: str = deployment.scenario.deployment.kv_cache_dtype
        if asked == "auto" and deployment.model.compressed_attention is not None:
            asked = COMPRESSED_KV  # vLLM from 0.20 to 0.29 stops with an error at its own default
        if asked in DTYPES and (asked != arithmetic_dtype(deployment) or deployment.kv_of_auto not in DTYPES):
            self.add(_KV_FLAG, DTYPES[asked], key)
        elif asked in DTYPES or asked == "auto":
            self.words += [_KV_FLAG, "auto"] if deployment.is_explicit and self.flags.has(_KV_FLAG) else []
        else:
            value = next((each for each in low_bit.get(asked, ()) if self.flags.has(_KV_FLAG, each)), None)
            if value is None:
                rule = f"cannot be exported: {deployment.label} has no {asked} KV cache"
                remedy = "it stores " + ", ".join(self.flags.choices.get(_KV_FLAG, (deployment.model.dtype,)))
                raise ScenarioError(rule, key=f"deployment.{key}", value=asked, remedy=remedy)
            self.add(_KV_FLAG, value, key)

    def add_offload(self) -> None:
        """Add the flag of the weights kept in host memory, GiB."""
        if offloaded := self.deployment.take("cpu_offload_gb") or self.deployment.take("engine.cpu_offload_gb"):
            self.add("--cpu-offload-gb", f"{offloaded:g}", "cpu_offload_gb")

    def add_adapters(self, seats: str, kept: str, named: str) -> None:
        """Add the switch and the limits of LoRA adapters.

        Args:
            seats: Flag of the adapters on the GPU.
            kept: Flag of those kept in host memory.
            named: Flag that names the adapters, with its value.
        """
        count = self.deployment.take("engine.max_loras")
        if not count:
            return
        if self.flags.has("--enable-lora"):
            self.add("--enable-lora", True, "engine.max_loras")
        self.add(seats, count, "engine.max_loras")
        self.deployment.take("engine.max_lora_rank")
        if self.flags.has("--max-lora-rank"):
            self.add("--max-lora-rank", self.deployment.engine.max_lora_rank, "engine.max_lora_rank")
        self.deployment.note(f"name the adapters with {named}, or load them while the server runs")
        self.add_options({"max_cpu_loras": kept})

    def add_interval(self) -> None:
        """Add the flag of the tokens that are sent together after the first; the rest of `streaming` is no flag."""
        spec = self.deployment.unsaid.get("streaming")
        if spec is None or spec.stream_interval is None:
            return
        if spec.model_fields_set <= {"stream_interval", "cost_per_event"}:
            self.deployment.take("streaming")
        self.add("--stream-interval", spec.stream_interval, "streaming.stream_interval")

    def add_overlap(self, flag: str) -> None:
        """Add the switch that overlaps two micro-batches, where that was simulated."""
        self.deployment.take("enable_two_batch_overlap")
        if self.deployment.resolved.shape.enable_two_batch_overlap:
            self.add(flag, True, "enable_two_batch_overlap")

    def add_balancing(self, flag: str, copies: int | str) -> None:
        """Add the flags that place experts by their load, with the given number of redundant copies."""
        self.add("--enable-eplb", True, "num_redundant_experts")
        self.add(flag, copies, "num_redundant_experts")


def add_vllm_tiers(line: CommandLine) -> None:
    """Add vLLM's flags of KV tiers: the native connector for host memory alone, LMCache for more tiers."""
    deployment = line.deployment
    if not line.flags.has("--kv-offloading-size"):
        return
    offload = deployment.take("engine.kv_offload")
    tiers: tuple[KVTierSpec, ...] = deployment.unsaid.get("engine.kv_tiers") or ()
    if offload is not None:
        size, backend, key = offload.size, "native", "engine.kv_offload"
    elif tiers and tiers[0].tier == "host":
        deployment.take("engine.kv_tiers")
        size, backend, key = tiers[0].capacity, "native" if len(tiers) == 1 else "lmcache", "engine.kv_tiers"
        for tier in tiers[1:]:
            variable = f"LMCACHE_REMOTE_URL=URL of a store of {format_bytes(tier.capacity)}"
            if tier.tier == "disk":
                of_worker = tier.capacity / GIB / deployment.resolved.shape.num_gpus
                variable = f"LMCACHE_LOCAL_DISK=file:///PATH LMCACHE_MAX_LOCAL_DISK_SIZE={of_worker:g}"
            deployment.note(f"LMCache's {tier.tier} tier is set by variables of the server: {variable}")
    else:
        return
    line.add("--kv-offloading-size", f"{size / GIB:g}", key)
    line.add("--kv-offloading-backend", backend, key)


def add_sglang_tiers(line: CommandLine) -> None:
    """Add SGLang's flags of KV tiers: host memory per rank, and the storage behind it."""
    deployment = line.deployment
    offload = deployment.unsaid.get("engine.kv_offload")
    tiers: tuple[KVTierSpec, ...] = deployment.unsaid.get("engine.kv_tiers") or ()
    is_held = offload is not None or (tiers and tiers[0].tier == "host")
    if not is_held or not line.flags.has("--enable-hierarchical-cache"):
        return
    deployment.take("engine.kv_offload")
    deployment.take("engine.kv_tiers")
    resolved = deployment.resolved
    key = "engine.kv_tiers" if tiers else "engine.kv_offload"
    size = offload.size if offload is not None else tiers[0].capacity
    of_rank = max(int(size / resolved.shape.num_gpus / _GB), 1)
    if of_rank * _GB < resolved.memory.kv_bytes:
        more = f"more host memory of a rank than its KV cache of {format_bytes(resolved.memory.kv_bytes)} on the GPU"
        deployment.note(f"SGLang wants {more}: raise deployment.{key}")
    line.add("--enable-hierarchical-cache", True, key)
    line.add("--hicache-size", of_rank, key)
    for tier in tiers[1:2]:
        if line.flags.has("--hicache-storage-backend"):
            line.add("--hicache-storage-backend", _BACKENDS[tier.tier], key)
        else:
            deployment.note(f"{deployment.label} has no storage behind host memory: the {tier.tier} tier is left out")
    for tier in tiers[2:]:
        deployment.note(f"SGLang has one storage behind host memory: the {tier.tier} tier is left out")


def add_vllm_kind(line: CommandLine) -> None:
    """Add vLLM's flags: the runner of pooling models (``--task`` before 0.10.1) and the grammar compiler."""
    if _are_embeddings(line.deployment, "--runner pooling"):
        flag, value = ("--runner", "pooling") if line.flags.has("--runner") else ("--task", "embed")
        line.add(flag, value, "output_tokens", block="workload")
    backend = _grammar_backend(line.deployment)
    if backend is not None:
        flag, value = "--guided-decoding-backend", backend
        if line.flags.has("--structured-outputs-config"):
            flag, value = "--structured-outputs-config", json.dumps({"backend": backend})
        line.add(flag, value, "structured_output.backend", block="workload")


def add_sglang_kind(line: CommandLine) -> None:
    """Add SGLang's flags for embeddings and the grammar compiler."""
    if _are_embeddings(line.deployment, "--is-embedding"):
        line.add("--is-embedding", True, "output_tokens", block="workload")
    backend = _grammar_backend(line.deployment)
    if backend is not None:
        name = _SGLANG_BACKENDS.get(backend, backend)
        line.add("--grammar-backend", name, "structured_output.backend", block="workload")


def _are_embeddings(deployment: Deployment, flag: str) -> bool:
    """Return whether no request has output; add a note where only some do, as these need a separate server."""
    workload = deployment.scenario.workload
    own = [each.output_tokens or workload.output_tokens for each in workload.classes or ()]
    are_none = [isinstance(each, NoLength) for each in own or [workload.output_tokens]]
    if any(are_none) and not all(are_none):
        deployment.note(f"requests without output tokens are embeddings: they need a server of their own, with {flag}")
    return all(are_none)


def _grammar_backend(deployment: Deployment) -> str | None:
    """Return the grammar compiler, where it is not the engines' default; None: the default, or no grammars."""
    structured = deployment.scenario.workload.structured_output
    if structured is None or (structured.backend == "xgrammar" and not deployment.is_explicit):
        return None
    return structured.backend
