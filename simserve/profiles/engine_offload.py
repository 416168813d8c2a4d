"""Weights outside the GPU: which engine keeps them there, and by which knob. Knows no model and no hardware."""

from __future__ import annotations

from collections.abc import Mapping

from simserve.profiles.engine_options import EngineOptions, refuse
from simserve.profiles.engine_profile import version_key

STREAMED, ON_CPU = ("cpu_offload_gb",), ("n_gpu_layers", "num_gpu")
KNOBS: Mapping[str, tuple[str, str]] = {
    "vllm": ("cpu_offload_gb", "0.5.5"),
    "sglang": ("cpu_offload_gb", "0"),
    "llama.cpp": ("n_gpu_layers", "0"),
    "ollama": ("num_gpu", "0"),
}
"""Engine -> its knob and the version it is there from. vLLM --cpu-offload-gb (pull request 6496, July 2024) and
SGLang --cpu-offload-gb keep weights in host memory and read them over the link in every step; llama.cpp
--n-gpu-layers and Ollama num_gpu run the first layers on the CPU."""


def check_offload(asked: EngineOptions, name: str, version: str) -> None:
    """Do nothing where the engine can keep weights outside the GPU as asked.

    Raises:
        ScenarioError: The engine, or its version, has no such knob.
    """
    own, since = KNOBS.get(name, ("", ""))
    for knob in (*STREAMED, *ON_CPU):
        value = getattr(asked, knob)
        if value is not None and knob != own:
            remedy = f"write {own}" if own else "it keeps all weights on its GPUs: leave it out"
            raise refuse(knob, value, f"is no knob of {name}", remedy)
        if value is not None and version_key(version) < version_key(since):
            raise refuse(knob, value, f"is not in {name} {version}", f"use {since} or newer")
