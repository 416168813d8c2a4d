"""The workers of an encoder pool: which targets have them, how each engine starts one, and the flags of its servers.

Knows neither hosts nor manifests.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from simserve.errors import ScenarioError
from simserve.planner.export.flags import flags_of
from simserve.planner.export.workers import Worker
from simserve.profiles.engine_options import version_key
from simserve.scenario.media import encoder_worker
from simserve.scenario.schema import Scenario

KEY = "deployment.encoder_disaggregation"
WITH_ENCODERS = ("vllm", "sglang", "dynamo")
"""Targets that start an encoder pool. SGLang's servers get its addresses (SGLang docs, epd_disaggregation), vLLM's
have a proxy in front (vllm-project/vllm, examples/disaggregated/disaggregated_encoder/README.md), Dynamo's discover it
(ai-dynamo 1.4.0, dynamo/vllm/backend_args.py and dynamo/sglang/args.py)."""
_STEP_TOKENS = "114688"
"""Token budget of vLLM's encoder workers: more than any batch of images, as in its example
(disagg_1e1pd_example.sh)."""
DYNAMO_ENCODER = ("--enable-multimodal", "--disaggregation-mode", "encode")
"""Flags that make a Dynamo worker encode for the others."""
SHARED_PATH = "/tmp/ec_cache"
_CONNECTOR = "ECExampleConnector"
"""vLLM's reference connector for embeddings: files in a folder that both sides see. ECConnectorFactory has it by
that name in vLLM 0.15.0, 0.20.2, 0.24.0 and 0.33.0 (distributed/ec_transfer/ec_connector/factory.py), with the roles
and the folder's key used below; in 0.12.0, which cannot leave out the language model, it was
ECSharedStorageConnector."""
_TRANSFER = ["--encoder-transfer-backend", "zmq_to_scheduler"]
"""SGLang's default transfer, over ZeroMQ to the scheduler."""
_MEDIA = "ForConditionalGeneration"  # End of the names of most classes that take images or audio.
_ENCODED: Mapping[str, tuple[str, ...]] = {
    "0.5.7": ("Qwen2_5_VL", "Qwen3VL", "Qwen3VLMoe"),
    "0.5.10": ("Qwen2VL", "Qwen3OmniMoe", "Qwen2Audio", "Qwen2_5Omni"),
    "0.5.11": ("Qwen3_5", "Qwen3_5Moe", "KimiVL", "KimiK25"),
    "0.5.12": ("InternS2Preview",),
    "0.5.16": ("MiMoV2ForCausalLM",),
    "0.5.20": ("Dots3NoteForCausalLM", "KimiK3", "Glm5Next"),
    "0.5.23": ("MiniMaxM3Sparse", "MuseSpark"),
}
"""Version of SGLang -> classes, without that end, whose encoder it can run separately from then on. From 0.5.10 on its
servers stop with an error for others (server_args.py, from 0.5.20 on arg_groups/pd_disaggregation_hook.py; read in
0.5.10, 0.5.11, 0.5.12, 0.5.16, 0.5.20 and 0.5.23); before, these were the models whose code knows `language_only`
(srt/models of 0.5.7 and 0.5.9)."""
_DYNAMO_ENCODED = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen3VLMoe", "Qwen3_5")
"""Classes of the catalogue that the vLLM encode workers of Dynamo 1.4.0 support; others stop with an error
(dynamo/vllm/multimodal_utils/model.py, encode_utils.py)."""
_DYNAMO_SGLANG = "0.5.16"
"""Version of SGLang that Dynamo 1.4.0 is built with (its METADATA); its encode workers run that code."""
_KEPT = ("--dtype", "--max-model-len", "--context-length")
"""Flags of a replica that its encoder workers get too, each with one value."""


def refuse_encoders(scenario: Scenario, target: str) -> None:
    """Refuse an encoder pool for a target that starts none.

    Raises:
        ScenarioError: The target starts none.
    """
    spec = scenario.deployment.encoder_disaggregation
    if spec is not None and target not in WITH_ENCODERS:
        rule = f"cannot be exported to {target}, which starts no workers that only encode"
        remedy = "use --to vllm, --to sglang or --to dynamo, or leave it out"
        raise ScenarioError(rule, key=KEY, remedy=remedy)
    if spec is not None and spec.autoscaling:
        rule = f"cannot be exported to {target}: no target has a documented autoscaler for workers that only encode"
        remedy = f"leave it out and set {KEY}.replicas to the peak that simserve run reports"
        raise ScenarioError(rule, key=f"{KEY}.autoscaling", remedy=remedy)


def refuse_unencoded(encoders: Worker, target: str) -> None:
    """Refuse an encoder pool if the engine, or Dynamo with it, cannot run the model's encoder separately.

    Args:
        target: Target of the export: ``dynamo`` for workers of Dynamo.

    Raises:
        ScenarioError: It cannot.
    """
    engine, version = encoders.serving.target, encoders.serving.version
    model, workload = encoders.deployment.resolved.shape.model, encoders.deployment.scenario.workload
    its = model.architecture or model.name
    kind = its.removesuffix(_MEDIA)
    remedy = "use --to vllm, or leave it out"
    if target == "dynamo" and workload.has_audio:
        rule = "cannot be exported to dynamo, whose encode workers take images and video alone"
        raise ScenarioError(rule, key=KEY, remedy=remedy)
    if target == "dynamo" and engine == "vllm":
        if kind not in _DYNAMO_ENCODED:
            rule = f"cannot be exported to dynamo, whose encode workers do not know {its}"
            raise ScenarioError(rule, key=KEY, remedy=remedy)
        return
    if engine != "sglang":
        return
    version = _DYNAMO_SGLANG if target == "dynamo" else version
    since = next((each for each, known in _ENCODED.items() if kind in known), None)
    if since is None or version_key(version) < version_key(since):
        later = "" if since is None else f" (from {since} on it does)"
        rule = f"cannot be exported to {target}: SGLang {version} does not run the encoder of {its} apart{later}"
        raise ScenarioError(rule, key=KEY, remedy=remedy)


def encoders_of(workers: Sequence[Worker]) -> Worker | None:
    """Return the workers of the encoder pool, with one GPU each; None: the deployment has no such pool."""
    spec = workers[0].whole.encoder_disaggregation
    if spec is None:
        return None
    first = workers[0].deployment
    shape = encoder_worker(first.resolved.shape, spec, first.scenario)
    alone = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1}
    deployment = first.scenario.deployment.model_copy(update={**alone, "hardware": shape.hardware.name})
    scenario = first.scenario.model_copy(update={"deployment": deployment})
    resolved = dataclasses.replace(first.resolved, scenario=scenario, shape=shape)
    return dataclasses.replace(
        workers[0],
        name="encoder",
        role="both",
        replicas=spec.replicas,
        scaling=None,
        deployment=dataclasses.replace(first, resolved=resolved),
    )


def encoder_command(encoders: Worker) -> list[str]:
    """Return the command of one encoder worker.

    Raises:
        ScenarioError: That version of the engine cannot leave out the language model.
    """
    serving = encoders.serving
    flags, key = flags_of(serving.target, serving.version), KEY
    start = next(place for place, word in enumerate(serving.command) if word.startswith("--"))
    if serving.target == "sglang":
        refuse_unencoded(encoders, serving.target)
        start += 2  # --model-path and its value
        only = flags.render("--encoder-only", True, key=key)
        return [*serving.command[:start], *_kept(encoders), *only, *_TRANSFER]
    return [
        *serving.command[:start],
        *_kept(encoders),
        *flags.render("--mm-encoder-only", True, key=key),
        "--enforce-eager",
        "--no-enable-prefix-caching",
        *("--max-num-batched-tokens", _STEP_TOKENS),
        *_handed_over(encoders, "ec_producer"),
    ]


def encoded_words(worker: Worker, urls: Sequence[str]) -> list[str]:
    """Return the flags of a server that receives embeddings; none for one that only decodes.

    Raises:
        ScenarioError: That version of the engine cannot receive them.
    """
    if worker.role == "decode":
        return []
    if worker.serving.target == "sglang":
        flags = flags_of("sglang", worker.serving.version)
        return [*flags.render("--language-only", True, key=KEY), "--encoder-urls", *urls, *_TRANSFER]
    return _handed_over(worker, "ec_consumer")


def encoder_notes(workers: Sequence[Worker]) -> list[str]:
    """Return notes for whoever starts them."""
    spec = workers[0].whole.encoder_disaggregation
    if spec is None:
        return []
    speed = f"embeddings were simulated to cross a link of {spec.transfer_bandwidth / 1e9:g} GB/s"
    if workers[0].serving.target == "sglang":
        return [f"{speed}; here they go over ZeroMQ: measure yours"]
    return [
        f"{speed}; {_CONNECTOR} writes them to {SHARED_PATH}, which all hosts must share: measure yours",
        "disagg_epd_proxy.py is in vLLM's repository, under examples, disaggregated_encoder: take it from the tag of "
        "your version; it spreads images over the encoder workers and picks the replica at random",
    ]


def dynamo_encoded_words(worker: Worker) -> list[str]:
    """Return the flags of a Dynamo worker that receives media, off by default, or their embeddings."""
    if not worker.deployment.scenario.workload.has_media or worker.serving.target == "trtllm":
        return []
    words = ["--enable-multimodal"]
    if worker.whole.encoder_disaggregation is None:
        return words
    if worker.serving.target == "sglang":
        mode = [] if worker.role != "both" else ["--disaggregation-mode", "pd"]
        return [*words, "--dedicated-mm-encoder", *mode]
    return words if worker.role == "decode" else [*words, "--route-to-encoder", "--enable-mm-embeds"]


def _kept(encoders: Worker) -> list[str]:
    words = encoders.serving.command
    return [each for flag in _KEPT if flag in words for each in (flag, words[words.index(flag) + 1])]


def _handed_over(worker: Worker, role: str) -> list[str]:
    """Return the flags that make a vLLM server send or receive embeddings."""
    flags = flags_of("vllm", worker.serving.version)
    config = {
        "ec_connector": _CONNECTOR,
        "ec_role": role,
        "ec_connector_extra_config": {"shared_storage_path": SHARED_PATH},
    }
    named = ["--enable-request-id-headers"] if flags.has("--enable-request-id-headers") else []
    return [*named, *flags.render("--ec-transfer-config", json.dumps(config), key=KEY)]
