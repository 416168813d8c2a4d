"""Servers of a Ray Serve application for language models, from a Serve configuration or a RayService.

Knows Ray Serve's keys and what vLLM calls its engine arguments; not what a flag means. Read as Ray 2.5x documents it
(docs.ray.io, serve/llm/user-guides/configuration and serve/llm/user-guides/prefill-decode).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from simserve.documents import parse_yaml
from simserve.errors import ScenarioError
from simserve.profiles.hardware import hardware_name, is_known_gpu

RAY_SERVICE = "RayService"  # Kind of KubeRay's resource, which holds a Serve configuration as text.
_ACCELERATORS = {
    "A100-80G": "a100-sxm-80gb",
    "A100-40G": "a100-sxm-40gb",
    "AMD-Instinct-MI300X-OAM": "mi300x-192gb",
    "AMD-Instinct-MI325X-OAM": "mi325x-256gb",
    "AMD-Instinct-MI350X-OAM": "mi350x-288gb",
    "AMD-Instinct-MI355X-OAM": "mi355x-288gb",
}
"""Ray's names of accelerators (ray.util.accelerators) that match no other name of the GPU."""
_INTERVAL = 10.0  # Seconds between two reports of a replica (AutoscalingConfig.metrics_interval_s).
_DOWN_AFTER = 600.0  # Seconds of lower load before replicas end (AutoscalingConfig.downscale_delay_s).
_NOT_FLAGS = ("hf_token",)  # Arguments of the engine that are no flags of the server, or secret.
_COUNTS_WAITING = (
    "Ray Serve scales on requests that run or wait, and adds replicas once they have been too many for upscale_delay_s "
    "(30 s); simulated are those that run, without that delay."
)
_UNSCALED = "How Ray Serve scales from {} to {} replicas is not in it: set deployment.autoscaling."
_AUTO = "How far Ray Serve scales with num_replicas: auto is its release's: set deployment.autoscaling."


def ray_servers(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each server of a Serve configuration: name, command, role, number, GPU, scaling and notes.

    Raises:
        ScenarioError: The configuration of a RayService is not YAML, or a model's is a file of its own.
    """
    if document.get("kind") == RAY_SERVICE:
        text = (document.get("spec") or {}).get("serveConfigV2") or ""
        inner = parse_yaml(text, f"manifest, {RAY_SERVICE}, serveConfigV2", ScenarioError)
        document = inner if isinstance(inner, Mapping) else {}
    for application in document.get("applications") or ():
        arguments = application.get("args") or {}
        for config in arguments.get("llm_configs") or ():
            yield _server(config, "both")
        for role in ("prefill", "decode"):
            if f"{role}_config" in arguments:
                yield _server(arguments[f"{role}_config"], role)


def _server(config: Mapping[str, Any] | str, role: str) -> dict[str, Any]:
    if isinstance(config, str):
        remedy = "put its text in place of its name"
        raise ScenarioError(
            "is the path of another file", file="manifest", key="llm_configs", value=config, remedy=remedy
        )
    loading = config["model_loading_config"]
    source = loading.get("model_source") or loading["model_id"]  # The id is then that of Hugging Face.
    served = source["bucket_uri"] if isinstance(source, Mapping) else source
    deployment = config.get("deployment_config") or {}
    scaling = deployment.get("autoscaling_config") or {}
    least, most = scaling.get("min_replicas", 1), scaling.get("max_replicas", 1)
    fixed = deployment.get("num_replicas", 1)
    found: dict[str, Any] = {
        "name": loading["model_id"].rpartition("/")[2] if role == "both" else role,
        "words": ["vllm", "serve", str(served), *_flags(config.get("engine_kwargs") or {})],
        "role": role,
        "replicas": scaling.get("initial_replicas", max(least, 1)) if scaling else 1 if fixed == "auto" else fixed,
    }
    accelerator = config.get("accelerator_type")
    named = None if accelerator is None else _ACCELERATORS.get(accelerator) or hardware_name(accelerator)
    if named is not None:
        found |= {"hardware": named} if is_known_gpu(named) else {"product": accelerator}
    if least != most and "target_ongoing_requests" in scaling:
        found["scaling"] = {
            "metric": "running",
            "target": scaling["target_ongoing_requests"],
            "min_replicas": least,
            "max_replicas": most,
            "interval": f"{scaling.get('metrics_interval_s', _INTERVAL):g} s",
            "stabilization": f"{scaling.get('downscale_delay_s', _DOWN_AFTER):g} s",
        }
        found["notes"] = (_COUNTS_WAITING,)
    elif least != most:
        found["notes"] = (_UNSCALED.format(least, most),)
    elif fixed == "auto" and "max_replicas" not in scaling:
        found["notes"] = (_AUTO,)
    return found


def _flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags of `vllm serve` that stand for arguments of its engine."""
    for key, value in arguments.items():
        name = key.replace("_", "-")
        if key in _NOT_FLAGS or value is None:
            continue
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        else:
            yield from (f"--{name}", json.dumps(value) if isinstance(value, dict | list) else str(value))
