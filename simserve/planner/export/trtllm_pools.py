"""The servers of a TensorRT-LLM deployment with prefill and decode pools, and the one that hands requests to them.

As NVIDIA/TensorRT-LLM's examples/disaggregated/README.md has it: a `trtllm-serve` a worker, each with an options file
of its role, and `trtllm-serve disaggregated` in front, which knows their addresses.
"""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from simserve.planner.export.deployment import Export
from simserve.planner.export.role_servers import (
    SERVERS_FILE,
    Placed,
    host_names,
    placed,
    refuse_other_pools,
    start_script,
)
from simserve.planner.export.trtllm import OPTIONS_FILE, options_text
from simserve.planner.export.workers import PORT, Worker, refuse_scaling

CONFIG_FILE = "disagg_config.yaml"
GROUPS = {"prefill": "context_servers", "decode": "generation_servers"}
"""Role -> what the file of the front calls its servers."""
_BACKEND = "DEFAULT"
"""Who carries KV caches: what the release takes by itself (UCX in 1.0, NIXL in later ones)."""


def export_trtllm_pools(workers: list[Worker]) -> Export:
    """Return the command of the server in front, with the files that start the others.

    Raises:
        ScenarioError: TensorRT-LLM's front cannot do what was simulated; names the key.
    """
    refuse_scaling(workers, "trtllm", "size the pools without it")
    refuse_other_pools(workers, "trtllm")
    servers = list(placed(workers))
    names = host_names(servers)
    front: dict[str, object] = {"hostname": "0.0.0.0", "port": PORT, "backend": "pytorch"}
    for role, group in GROUPS.items():
        urls = [f"{names[each.host]}:{each.port}" for each in servers if each.worker.role == role]
        front[group] = {"num_instances": len(urls), "urls": urls}
    files = {CONFIG_FILE: yaml.safe_dump(front, sort_keys=False)}
    files |= {_options_file(worker): _options(worker) for worker in workers}
    files[SERVERS_FILE] = start_script(servers, names, _command)
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
            *(["replace node-1 and so on by the names of the hosts"] if len(names) > 1 else []),
            *dict.fromkeys(notes),
        ),
    )


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


def _command(server: Placed) -> str:
    words = list(server.worker.serving.command)
    if OPTIONS_FILE in words:
        place = words.index(OPTIONS_FILE)
        words = [*words[: place - 1], *words[place + 1 :]]
    reachable = ["--host", "0.0.0.0", "--port", str(server.port)]
    return shlex.join([*words, *reachable, "--extra_llm_api_options", _options_file(server.worker)])
