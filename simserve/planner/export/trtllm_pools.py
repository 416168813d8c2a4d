"""The servers of a TensorRT-LLM deployment with prefill and decode pools, and the one that hands requests to them.

As NVIDIA/TensorRT-LLM's examples/disaggregated/README.md has it: a `trtllm-serve` a worker, each with an options file
of its role, and `trtllm-serve disaggregated` in front, which knows their addresses.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.trtllm import OPTIONS_FILE, options_text
from simserve.planner.export.workers import PORT, Worker, refuse_scaling

CONFIG_FILE = "disagg_config.yaml"
SERVERS_FILE = "start_servers.sh"
_GROUPS = {"prefill": "context_servers", "decode": "generation_servers"}
_BACKEND = "DEFAULT"
"""Who carries KV caches: what the release takes by itself (UCX in 1.0, NIXL in later ones)."""


@dataclass(frozen=True, slots=True)
class _Server:
    """One server: its kind, the host it lies on, the first of its GPUs there and its port."""

    worker: Worker
    host: int
    first_gpu: int
    port: int


def export_trtllm_pools(workers: list[Worker]) -> Export:
    """Return the command of the server in front, with the files that start the others.

    Raises:
        ScenarioError: TensorRT-LLM's front cannot do what was simulated; names the key.
    """
    refuse_scaling(workers, "trtllm", "size the pools without it")
    _refuse_roles_and_sizes(workers)
    servers = list(_placed(workers))
    num_hosts = servers[-1].host + 1
    names = ["localhost"] if num_hosts == 1 else [f"node-{number + 1}" for number in range(num_hosts)]
    front: dict[str, object] = {"hostname": "0.0.0.0", "port": PORT, "backend": "pytorch"}
    for role, group in _GROUPS.items():
        urls = [f"{names[each.host]}:{each.port}" for each in servers if each.worker.role == role]
        front[group] = {"num_instances": len(urls), "urls": urls}
    files = {CONFIG_FILE: yaml.safe_dump(front, sort_keys=False)}
    files |= {_options_file(worker): _options(worker) for worker in workers}
    files[SERVERS_FILE] = _script(servers, names)
    policy, link = workers[0].whole.routing.policy, workers[0].whole.disaggregation
    assert link is not None  # pools have roles
    notes = [note for worker in workers for note in worker.serving.notes]
    return Export(
        target="trtllm",
        version=workers[0].serving.version,
        command=("trtllm-serve", "disaggregated", "-c", CONFIG_FILE),
        files=files,
        notes=(
            f"start the servers first ({SERVERS_FILE}); written from the documentation and not run",
            "servers that prefill run without the overlapped scheduler, which TensorRT-LLM does not have for them",
            f"the front hands requests round robin; {policy} was simulated",
            f"KV caches were simulated to cross a link of {link.transfer_bandwidth / 1e9:g} GB/s: measure yours",
            *(["replace node-1 and so on by the names of the hosts"] if num_hosts > 1 else []),
            *dict.fromkeys(notes),
        ),
    )


def _refuse_roles_and_sizes(workers: list[Worker]) -> None:
    for worker in workers:
        if worker.role not in _GROUPS:
            raise ScenarioError(
                "cannot be exported to trtllm: every server behind its front prefills or decodes",
                key="deployment.pools",
                value=worker.name,
                remedy="give every pool the role prefill or decode",
            )
        if worker.num_nodes > 1:
            raise ScenarioError(
                "GPUs a worker cannot be exported to trtllm: over several hosts it is started by MPI",
                key="deployment.pools",
                value=worker.num_gpus,
                remedy="make tensor_parallel_size x pipeline_parallel_size smaller",
            )
    if len({worker.deployment.checkpoint for worker in workers}) > 1:
        raise ScenarioError(
            "cannot be exported to trtllm: both roles load one checkpoint",
            key="deployment.pools",
            remedy="leave out deployment.pools.N.model",
        )


def _placed(workers: list[Worker]) -> Iterator[_Server]:
    """Yield the servers, each on the first GPUs that are free; a worker that a host has no room for begins the next.

    Workers on another kind of GPU begin on another host.
    """
    host, used, port, kind = 0, 0, PORT, workers[0].deployment.resolved.shape.hardware.name
    for worker in workers:
        own = worker.deployment.resolved.shape.hardware.name
        for _ in range(worker.replicas):
            if own != kind or used + worker.num_gpus > worker.gpus_per_node:
                host, used, kind = host + 1, 0, own
            port += 1
            yield _Server(worker, host, used, port)
            used += worker.num_gpus


def _options_file(worker: Worker) -> str:
    return f"{worker.name}.yaml"


def _options(worker: Worker) -> str:
    """Return the options file of a role."""
    return options_text(role_options(worker), worker.serving.version)


def role_options(worker: Worker) -> dict[str, Any]:
    """Return the options of a server alone, and where it has a role how it passes KV caches on."""
    alone = worker.serving.files.get(OPTIONS_FILE)
    options: dict[str, Any] = {} if alone is None else yaml.safe_load(alone)
    if worker.role == "prefill":
        options["disable_overlap_scheduler"] = True
    if worker.role != "both":
        buffer = worker.deployment.engine.max_model_len
        options["cache_transceiver_config"] = {"backend": _BACKEND, "max_tokens_in_buffer": buffer}
    return options


def _script(servers: list[_Server], names: list[str]) -> str:
    """Return the commands that start the servers, host by host."""
    lines = ["#!/bin/sh"]
    for host, name in enumerate(names):
        lines.append(f"# on {name}")
        for server in servers:
            if server.host == host:
                gpus = range(server.first_gpu, server.first_gpu + server.worker.num_gpus)
                lines.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))} {shlex.join(_command(server))} &")
    return "\n".join([*lines, "wait", ""])


def _command(server: _Server) -> list[str]:
    words = list(server.worker.serving.command)
    if OPTIONS_FILE in words:
        place = words.index(OPTIONS_FILE)
        words = [*words[: place - 1], *words[place + 1 :]]
    reachable = ["--host", "0.0.0.0", "--port", str(server.port)]
    return [*words, *reachable, "--extra_llm_api_options", _options_file(server.worker)]
