"""A Docker Compose file: the replicas of one host behind nginx."""

from __future__ import annotations

from typing import Any

from simserve.documents import yaml_text
from simserve.errors import ScenarioError
from simserve.planner.export.deployment import Export
from simserve.planner.export.kubernetes import start_limit
from simserve.planner.export.workers import PORT, Target, Worker, gib, shared_notes

_TARGET = Target(name="compose", spans_nodes=True, without_scaling="use --to k8s or --to keda")
_NGINX = "nginx:1.29"
POLICIES = {
    "round_robin": "",
    "random": "random;",
    "least_outstanding": "least_conn;",
    "power_of_two": "random two least_conn;",
}
"""Routing policy -> line of an nginx upstream (nginx docs, ngx_http_upstream_module)."""


def export_compose(name: str, workers: list[Worker]) -> Export:
    """Return the file for one host (Compose specification, GPUs by device id).

    Raises:
        ScenarioError: One host cannot do what was simulated; names the key.
    """
    _TARGET.check(workers)
    _refuse_more_than_a_host(workers)
    (worker,) = workers
    is_routed = worker.replicas > 1
    services: dict[str, Any] = {}
    for number in range(worker.replicas):
        ids = [str(number * worker.num_gpus + each) for each in range(worker.num_gpus)]
        services[f"{worker.name}-{number}"] = _service(worker, ids, None if is_routed else PORT)
    texts: dict[str, str] = {}
    if is_routed:
        servers = list(services)
        services["router"] = {
            "image": _NGINX,
            "ports": [f"{PORT}:80"],
            "configs": [{"source": "nginx", "target": "/etc/nginx/conf.d/default.conf"}],
            "depends_on": {each: {"condition": "service_healthy"} for each in servers},
        }
        texts["nginx"] = _nginx(servers, _TARGET.route(workers, POLICIES, None, "whose router is nginx"))
    texts |= {f"{worker.name}-{index}": text for index, text in enumerate(worker.serving.files.values())}
    configs = {"configs": {source: {"content": text} for source, text in texts.items()}} if texts else {}
    document = {"name": name, "services": services, **configs, "volumes": {"weights": {}}}
    file = "compose.yaml"
    notes = [
        note.split(": kubectl create")[0] + ": set HF_TOKEN" if "kubectl" in note else note
        for note in shared_notes(workers)
    ]
    return Export(
        target="compose",
        version=worker.serving.version,
        command=("docker", "compose", "-p", name, "up"),
        files={file: yaml_text(document, width=110)},
        main_file=file,
        notes=tuple(notes),
    )


def _refuse_more_than_a_host(workers: list[Worker]) -> None:
    if len(workers) > 1:
        rule = "cannot be exported to compose: nothing there sends a class of requests to its pool"
        raise ScenarioError(rule, key="deployment.pools", value=len(workers), remedy="use --to k8s")
    (worker,) = workers
    gpus = worker.num_gpus * worker.replicas
    if gpus > worker.gpus_per_node:
        one = f"one of {worker.deployment.resolved.shape.hardware.name} has {worker.gpus_per_node}"
        rule = f"GPUs cannot be exported to compose: it runs on one host, and {one}"
        remedy = "use --to k8s" if worker.num_nodes == 1 else "use --to lws"
        raise ScenarioError(rule, key="deployment.replicas", value=gpus, remedy=remedy)


def _service(worker: Worker, gpus: list[str], port: int | None) -> dict[str, Any]:
    health = f"import urllib.request; urllib.request.urlopen('http://localhost:{PORT}{worker.server.health}')"
    found: dict[str, Any] = {
        "image": worker.image,
        "entrypoint": worker.command,
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **worker.serving.environment},
        "shm_size": gib(worker.shared_bytes).replace("Gi", "gb"),
        "volumes": [f"weights:{worker.server.cache}"],
        "healthcheck": {
            "test": ["CMD", "python3", "-c", health],
            "interval": "10s",
            "timeout": "5s",
            "start_period": f"{start_limit(worker, downloads=True):.0f}s",
        },
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "device_ids": gpus, "capabilities": ["gpu"]}]}
            }
        },
        "restart": "unless-stopped",
    }
    if port is not None:
        found["ports"] = [f"{port}:{PORT}"]
    if worker.serving.files:
        found["configs"] = [
            {"source": f"{worker.name}-{index}", "target": f"/config/{name}"}
            for index, name in enumerate(worker.serving.files)
        ]
    return found


def _nginx(servers: list[str], line: str) -> str:
    """Return the router, which sends each request to one server, by a line for the policy, and streams the answer."""
    upstream = "".join(f"  server {each}:{PORT};\n" for each in servers)
    policy = f"  {line}\n" if line else ""
    return (
        f"upstream servers {{\n{policy}{upstream}}}\n"
        "server {\n  listen 80;\n  client_max_body_size 0;\n  location / {\n    proxy_pass http://servers;\n"
        "    proxy_buffering off;\n    proxy_read_timeout 1h;\n  }\n}\n"
    )
