"""Places and starts the servers of prefill, decode and encoder pools on hosts without a cluster.

Those of vLLM and SGLang are exported in full, with the engine's router in front (vllm-project/router, README,
Prefill-Decode Disaggregation; SGLang docs, advanced_features/pd_disaggregation).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.encoders import encoded_words, encoder_command, encoder_notes, encoders_of
from simserve.planner.export.workers import PORT, Worker, link_note, refuse_scaling, role_words

SERVERS_FILE = "start_servers.sh"
ROLES = ("prefill", "decode")
_FRONTS = {
    "vllm": ("vllm-router", "--vllm-pd-disaggregation"),
    "sglang": ("python", "-m", "sglang_router.launch_router", "--pd-disaggregation"),
}
"""Engine -> its router, whose last word here makes it prefill on one server and decode on another; each router is a
separate package on PyPI."""
FRONT_POLICIES = {
    "round_robin": "round_robin",
    "random": "random",
    "power_of_two": "power_of_two",
    "prefix": "cache_aware",
}
"""Routing policy -> `--policy` of both routers; power_of_two, which compares loads, stands in for the others."""
ENCODER_PROXY = ("python", "disagg_epd_proxy.py")
"""vLLM's proxy in front of encoder workers and the servers that receive their embeddings."""
_NIXL_PORT = 5600
"""vLLM's default `VLLM_NIXL_SIDE_CHANNEL_PORT`; each rank of a server takes one port from there on (vLLM docs,
nixl_connector_usage)."""
_BOOTSTRAP_PORT = 8998  # SGLang's default `--disaggregation-bootstrap-port`.


@dataclass(frozen=True, slots=True)
class Placed:
    """One server: its kind, its host, the first of its GPUs there and its port."""

    worker: Worker
    host: int
    first_gpu: int
    port: int


def export_role_servers(workers: list[Worker]) -> Export:
    """Return the command of the router, with the file that starts the servers and the encoder workers.

    Raises:
        ScenarioError: The engine's router cannot do what was simulated; names the key.
    """
    target, encoders = workers[0].serving.target, encoders_of(workers)
    refuse_other_pools(workers, target)
    servers = list(placed(workers if encoders is None else [*workers, encoders]))
    names = host_names(servers)
    urls = [_url(each, names) for each in servers if each.worker is encoders]
    serving = [each for each in servers if each.worker is not encoders]
    policy = workers[0].whole.routing.policy
    if encoders is not None and target == "vllm":
        front, is_asked = _encoder_proxy(urls, serving, names), policy == "random" or len(serving) == 1
        picks = "any server at random"
    else:
        front = [*_router(serving, names), "--policy", FRONT_POLICIES.get(policy, "power_of_two")]
        is_asked, picks = policy in FRONT_POLICIES or len(serving) == 1, "the emptier of two servers"
    files = {SERVERS_FILE: start_script(servers, names, lambda server: _command(server, names, urls, encoders))}
    other = [] if is_asked else [f"the router picks {picks}; {policy} was simulated"]
    notes = (*other, *link_note(workers), *encoder_notes(workers))
    return started(workers, (*front, "--host", "0.0.0.0", "--port", str(PORT)), files, names, notes)


def started(
    workers: list[Worker], command: tuple[str, ...], files: Mapping[str, str], names: list[str], notes: Iterable[str]
) -> Export:
    """Return the command of a router, with the files that start the servers behind it."""
    return Export(
        target=workers[0].serving.target,
        version=workers[0].serving.version,
        command=command,
        files=files,
        notes=(
            f"start the servers first ({SERVERS_FILE}); written from the documentation and not run",
            *notes,
            *(["replace node-1 and so on by the names of the hosts"] if len(names) > 1 else []),
            *dict.fromkeys(note for worker in workers for note in worker.serving.notes),
        ),
    )


def _url(server: Placed, names: list[str]) -> str:
    return f"http://{names[server.host]}:{server.port}"


def _router(servers: list[Placed], names: list[str]) -> list[str]:
    """Return the command of an engine's router, with the roles of its servers where they have any."""
    target = servers[0].worker.serving.target
    *words, by_role = _FRONTS[target]
    if servers[0].worker.role == "both":
        return [*words, "--worker-urls", *(_url(each, names) for each in servers)]
    words.append(by_role)
    for each in servers:
        bootstrap = [str(_BOOTSTRAP_PORT + each.first_gpu)] if target == "sglang" and _is_prefill(each) else []
        words += [f"--{each.worker.role}", _url(each, names), *bootstrap]
    return words


def _encoder_proxy(encoders: list[str], servers: list[Placed], names: list[str]) -> list[str]:
    """Return the command of vLLM's proxy, which has images encoded before a server gets the request."""
    prefill = [_url(each, names) for each in servers if _is_prefill(each)]
    others = [_url(each, names) for each in servers if not _is_prefill(each)]
    words = ["--encode-servers-urls", ",".join(encoders), "--prefill-servers-urls", ",".join(prefill) or "disable"]
    return [*ENCODER_PROXY, *words, "--decode-servers-urls", ",".join(others)]


def refuse_other_pools(workers: list[Worker], target: str) -> None:
    """Refuse pools that both prefill and decode, autoscaling, workers over several hosts, and different weights.

    Raises:
        ScenarioError: There is one.
    """
    for worker in workers:
        refuse_scaling(worker, target, "size the pools without it")
        if worker.role not in ROLES and worker.whole.pools:
            rule = f"cannot be exported to {target}: every server behind its gateway prefills or decodes"
            remedy = "give every pool the role prefill or decode"
            raise ScenarioError(rule, key="deployment.pools", value=worker.name, remedy=remedy)
        if worker.num_nodes > 1:
            how = "over several hosts it is started by MPI" if target == "trtllm" else "a server lies on one host"
            rule = f"GPUs a worker cannot be exported to {target}: {how}"
            remedy = "make tensor_parallel_size x pipeline_parallel_size smaller"
            raise ScenarioError(rule, key="deployment.pools", value=worker.num_gpus, remedy=remedy)
    if len({worker.deployment.checkpoint for worker in workers}) > 1:
        rule = f"cannot be exported to {target}: both roles load one checkpoint"
        raise ScenarioError(rule, key="deployment.pools", remedy="leave out deployment.pools.N.model")


def placed(workers: list[Worker]) -> Iterator[Placed]:
    """Yield the servers, each on the next free GPUs; one that does not fit on the current host begins the next.

    A change to another kind of GPU also begins another host.
    """
    host, used, port, kind = 0, 0, PORT, workers[0].deployment.resolved.shape.hardware.name
    for worker in workers:
        own = worker.deployment.resolved.shape.hardware.name
        for _ in range(worker.replicas):
            if own != kind or used + worker.num_gpus > worker.gpus_per_node:
                host, used, kind = host + 1, 0, own
            port += 1
            yield Placed(worker, host, used, port)
            used += worker.num_gpus


def host_names(servers: list[Placed]) -> list[str]:
    """Return the names of the hosts: localhost for one, placeholders for several."""
    num_hosts = servers[-1].host + 1
    return ["localhost"] if num_hosts == 1 else [f"node-{number + 1}" for number in range(num_hosts)]


def start_script(servers: list[Placed], names: list[str], command: Callable[[Placed], str]) -> str:
    """Return the commands that start the servers, host by host, with the GPUs of each server."""
    lines = ["#!/bin/sh"]
    for host, name in enumerate(names):
        there = [server for server in servers if server.host == host]
        lines.append(f"# on {name}: {there[0].worker.deployment.resolved.shape.hardware.name}")
        for server in there:
            gpus = range(server.first_gpu, server.first_gpu + server.worker.num_gpus)
            lines.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))} {command(server)} &")
    return "\n".join([*lines, "wait", ""])


def _is_prefill(server: Placed) -> bool:
    return server.worker.role == "prefill"


def _command(server: Placed, names: list[str], urls: list[str], encoders: Worker | None) -> str:
    """Return the line that starts a server, with the addresses of the encoder workers where there are any."""
    worker = server.worker
    if worker is encoders:
        return _line(encoder_command(worker), {}, server)
    words = [*worker.serving.command, *role_words(worker), *(encoded_words(worker, urls) if urls else [])]
    variables = dict(worker.serving.environment)
    is_sglang = worker.serving.target == "sglang"
    if is_sglang and _is_prefill(server):
        words += ["--disaggregation-bootstrap-port", str(_BOOTSTRAP_PORT + server.first_gpu)]
    elif not is_sglang and worker.role != "both":
        variables["VLLM_NIXL_SIDE_CHANNEL_HOST"] = names[server.host]
        variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(_NIXL_PORT + server.first_gpu)
    return _line(words, variables, server)


def _line(words: list[str], variables: Mapping[str, str], server: Placed) -> str:
    words = [*words, "--host", "0.0.0.0", "--port", str(server.port)]
    return " ".join([*(f"{key}={shlex.quote(value)}" for key, value in variables.items()), shlex.join(words)])
