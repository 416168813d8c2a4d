"""Flags that follow from what requests are: embeddings, and answers in a schema. Knows no other part of a workload."""

from __future__ import annotations

import json

from simserve.planner.export.deployment import Deployment
from simserve.planner.export.flags import Flags
from simserve.workload.length_spec import NoLength

_SGLANG_BACKENDS = {"guidance": "llguidance"}
"""What SGLang calls a compiler of grammars, where not as it calls itself (server_args.py, ``--grammar-backend``)."""


def vllm_kind_words(deployment: Deployment, flags: Flags) -> list[str]:
    """Return vLLM's flags: the runner of pooling models (``--task`` before 0.10.1), and who compiles grammars."""
    words = []
    if _are_embeddings(deployment, "--runner pooling"):
        key = "workload.output_tokens"
        flag, value = ("--runner", "pooling") if flags.has("--runner") else ("--task", "embed")
        words += flags.render(flag, value, key=key)
    backend = _grammar_backend(deployment)
    if backend is not None:
        key = "workload.structured_output.backend"
        if flags.has("--structured-outputs-config"):
            words += flags.render("--structured-outputs-config", json.dumps({"backend": backend}), key=key)
        else:
            words += flags.render("--guided-decoding-backend", backend, key=key)
    return words


def sglang_kind_words(deployment: Deployment, flags: Flags) -> list[str]:
    """Return SGLang's flags for the same."""
    words = []
    if _are_embeddings(deployment, "--is-embedding"):
        words += flags.render("--is-embedding", True, key="workload.output_tokens")
    backend = _grammar_backend(deployment)
    if backend is not None:
        name = _SGLANG_BACKENDS.get(backend, backend)
        words += flags.render("--grammar-backend", name, key="workload.structured_output.backend")
    return words


def _are_embeddings(deployment: Deployment, flag: str) -> bool:
    """Return whether no request has an answer; where some have one, say that these need a server of their own."""
    workload = deployment.scenario.workload
    own = [each.output_tokens or workload.output_tokens for each in workload.classes or ()]
    are_none = [isinstance(each, NoLength) for each in own or [workload.output_tokens]]
    if any(are_none) and not all(are_none):
        deployment.note(f"requests without output tokens are embeddings: they need a server of their own, with {flag}")
    return all(are_none)


def _grammar_backend(deployment: Deployment) -> str | None:
    """Return what compiles grammars, where it is not what engines take by themselves; None: that, or nothing."""
    structured = deployment.scenario.workload.structured_output
    if structured is None or (structured.backend == "xgrammar" and not deployment.is_explicit):
        return None
    return structured.backend
