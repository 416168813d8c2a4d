"""vLLM's words for who drafts, as the scenario's. Knows no acceptance of this traffic: what was published stands in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.importers.model_names import find_model
from simserve.planner.space.options import DRAFT_ACCEPTANCE, MTP_ACCEPTANCE
from simserve.profiles.engine_profile import FEATURES, UNSIMULATED_METHODS, load_engine

_METHODS = {
    "ngram": "ngram",
    "[ngram]": "ngram",
    "draft_model": "draft_model",
    "eagle": "eagle",
    "eagle3": "eagle",
    "mtp": "mtp",
}
"""vLLM's names of methods -> the scenario's; what ends in `_mtp` is one model's name for `mtp`."""
_NGRAM_ACCEPTANCE = 0.41
"""1.7 tokens a step: prompt look-up over all tasks of Spec-Bench (calibration/speculation.md)."""
_EAGLE_ACCEPTANCE = (0.81, 0.93)
"""Rate and decay, the means of EAGLE-3 layers on coding prompts (calibration/speculation.md)."""
_ACCEPTANCE: Mapping[str, tuple[float, float | None]] = {
    "draft_model": (DRAFT_ACCEPTANCE, None),
    "ngram": (_NGRAM_ACCEPTANCE, None),
    "eagle": _EAGLE_ACCEPTANCE,
    "mtp": MTP_ACCEPTANCE,
}


def settings_of(value: object, where: str) -> dict[str, Any]:
    """Return the mapping that ``--speculative-config`` holds.

    Raises:
        ScenarioError: It is no JSON object.
    """
    key = "--speculative-config"
    try:
        found = json.loads(str(value))
    except ValueError as failure:
        raise ScenarioError(f"is not JSON: {failure}", file=where, key=key, value=value) from None
    if not isinstance(found, dict):
        raise ScenarioError("must be a JSON object", file=where, key=key, value=value)
    return found


def read_speculation(settings: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str] | None:
    """Return the scenario's `speculative` block and a note on its acceptance; None: nothing like it is simulated.

    Args:
        settings: Keys of vLLM's ``speculative_config``.
        where: What is read, for errors.

    Raises:
        ScenarioError: The number of drafts is none, or the draft has no profile.
    """
    model, asked = settings.get("model"), _asked(settings)
    method, key = _METHODS.get(asked), "num_speculative_tokens"
    if method is None:
        return None
    count = settings.get(key)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ScenarioError("must be a whole number from 1", file=where, key=f"--speculative-config {key}", value=count)
    rate, decay = _ACCEPTANCE[method]
    block: dict[str, Any] = {"method": method, key: count, "acceptance_rate": rate}
    if decay is not None:
        block["acceptance_decay"] = decay
    if method == "draft_model":
        named = find_model(str(model), where)
        block["draft_model"] = named.model
        if named.quantization is not None:
            block["draft_quantization"] = named.quantization
        if settings.get("draft_tensor_parallel_size") is not None:
            block["draft_tensor_parallel_size"] = settings["draft_tensor_parallel_size"]
    kept = f"{rate:g}" + ("" if decay is None else f", {decay:g} times that from draft to draft")
    note = (
        f"How many drafts are accepted is a placeholder, acceptance_rate {kept} (published means of such drafts): "
        "put your server's in deployment.speculative."
    )
    return block, note


def unsimulated_note(settings: Mapping[str, Any], engine: str, version: str | None) -> str:
    """Return what became of a way to draft that nothing here simulates: whether that engine knows it, and that it is
    left out."""
    asked, profile = _asked(settings), load_engine(engine)
    version = version or profile.versions[-1].version
    if asked not in UNSIMULATED_METHODS:
        return f"Method {asked} of speculative decoding is not known here: left out."
    shown = f"{FEATURES[asked]} (method {settings.get('method', asked)})"
    if profile.feature_range(asked, version) is not None:
        return f"{engine} {version} knows {shown}, which is not simulated: left out."
    return f"{profile.lack(asked, version, '', None)}; {shown} is not simulated either: left out."


def _asked(settings: Mapping[str, Any]) -> str:
    """Return the method by vLLM's name, one model's name for `mtp` and parallel drafting by the name of a feature."""
    model = settings.get("model")
    asked = str(settings.get("method") or (model if model in _METHODS else _by_name(model)))
    if asked == "draft_model" and settings.get("parallel_drafting") is True:
        return "parallel_draft_model"
    return "mtp" if asked.endswith("_mtp") else asked


def _by_name(model: object) -> str:
    """Return the method that vLLM takes for a draft that comes without one: by its name, else a small model."""
    name = str(model).lower()
    return next((method for method in ("eagle3", "eagle", "medusa", "mtp") if method in name), "draft_model")
