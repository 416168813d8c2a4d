"""Images of a scenario's requests: tokens by the rule of its model, and seconds of its encoder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.memory import VISION_BYTES
from simserve.perf.shape import ReplicaShape
from simserve.perf.vision import encoder_seconds
from simserve.profiles.hardware import load_hardware
from simserve.profiles.vision import VisionTower
from simserve.scenario.deployment_spec import EncoderDisaggregationSpec
from simserve.scenario.pricing import gpu_hour
from simserve.scenario.resolve import ResolvedScenario, of_pool_alone, replica_shape
from simserve.scenario.schema import Scenario
from simserve.units import format_bytes
from simserve.workload.image_spec import ImagesSpec
from simserve.workload.images import DrawnImages, draw_images
from simserve.workload.prefixes import PrefixSegments
from simserve.workload.requests import EncoderPool, ImageColumns, RequestSpecs

MEGAPIXEL = 1e6
NONE = -1
_Work = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of the images to encode of each request the patches, attended pairs and calls."""


def with_images(specs: RequestSpecs, scenario: Scenario, replication: int) -> RequestSpecs:
    """Return requests with the images that the scenario's workload says; the same where it says none.

    A turn's images stand behind its new text, and stay in the context of the turns that follow.

    Raises:
        ScenarioError: The model takes no images, or its tower cannot be cut over the ranks.
    """
    if not scenario.workload.has_images:
        return specs
    shapes, spec = _encoders(scenario), scenario.deployment.encoder_disaggregation
    towers = [_tower_of(shape, scenario) for shape in shapes]
    columns, work = _drawn(specs, scenario, towers[0], replication)
    encoders = shapes if spec is None else [encoder_worker(shapes[0], spec, scenario)]
    with scenario.blaming("deployment"):
        seconds, *others = (encoder_seconds(shape, towers[0], *work) for shape in encoders)
    if any(tower != towers[0] for tower in towers) or not all(np.allclose(seconds, each) for each in others):
        rule = "must be encoded alike by all pools that take prompts"
        scenario.refuse(
            "workload.images", rule, "give those pools one model, hardware, engine and size, or leave it out"
        )
    added, earlier, prefixes = columns.tokens, None, specs.prefixes
    if prefixes is not None:
        owner = _owners(specs, prefixes)
        added, prefixes = _lengthened(prefixes, owner, columns.tokens)
        earlier = _earlier(prefixes, owner, columns.count > 0)
    specs = replace(
        specs.waiting(columns.preprocess_seconds),
        prompt_tokens=specs.prompt_tokens + added,
        prefixes=prefixes,
        images=replace(columns, prompt_tokens=added),
    )
    if spec is None:
        return replace(specs, encoder_seconds=seconds, earlier_images=earlier)
    return replace(specs, encoder_pool=_pool(spec, encoders[0], towers[0], columns, work[2], seconds))


def encoder_worker(shape: ReplicaShape, spec: EncoderDisaggregationSpec, scenario: Scenario) -> ReplicaShape:
    """Return what one GPU of the encoder pool encodes with: its hardware, under the engine of the replicas.

    Raises:
        ScenarioError: Its hardware is unknown.
    """
    hardware = shape.hardware
    if spec.hardware is not None:
        with scenario.blaming("deployment.encoder_disaggregation.hardware"):
            hardware = load_hardware(spec.hardware, scenario.folder)
    return replace(
        shape,
        hardware=hardware,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        pipeline_layer_partition=None,
        enable_expert_parallel=False,
    )


def encoders_usd_per_hour(resolved: ResolvedScenario) -> float:
    """Return what the GPUs of the encoder pool cost, 0 without one, NaN where nobody's price is known."""
    scenario = resolved.scenario
    spec = scenario.deployment.encoder_disaggregation
    if spec is None:
        return 0.0
    price = gpu_hour(scenario.pricing, encoder_worker(resolved.shape, spec, scenario).hardware)
    return math.nan if price.usd is None else spec.replicas * price.usd


def encoder_lines(resolved: ResolvedScenario) -> list[str]:
    """Return what a worker of the encoder pool holds, as lines a person can check; none without one."""
    scenario = resolved.scenario
    spec, tower = scenario.deployment.encoder_disaggregation, resolved.shape.model.vision
    if spec is None or tower is None:
        return []
    worker = encoder_worker(resolved.shape, spec, scenario)
    size = format_bytes(tower.num_parameters * VISION_BYTES)
    total = format_bytes(worker.hardware.memory.total)
    return [f"encoder pool: {spec.replicas} x {worker.hardware.name}, the vision tower takes {size} of {total} of each"]


def _pool(
    spec: EncoderDisaggregationSpec,
    worker: ReplicaShape,
    tower: VisionTower,
    columns: ImageColumns,
    num_encoded: np.ndarray,
    seconds: np.ndarray,
) -> EncoderPool:
    """Return the encoder pool, and what each request asks of it; of images whose embeddings it has, nothing."""
    share = np.divide(num_encoded, columns.count, out=np.zeros(len(seconds)), where=columns.count > 0)
    # Layers whose output is handed over too send as much again.
    per_token = max(tower.num_mergers, 1) * worker.model.hidden_size * ACTIVATION_BYTES
    crossing = share * columns.tokens * per_token / spec.transfer_bandwidth + spec.transfer_latency
    return EncoderPool(
        num_workers=spec.replicas,
        seconds=seconds,
        num_parts=np.maximum(num_encoded, 1).astype(np.int64),
        transfer_seconds=np.where(seconds > 0, crossing, 0.0),
    )


def _encoders(scenario: Scenario) -> list[ReplicaShape]:
    """Return a replica of each pool that takes prompts, or that of a deployment without pools."""
    pools = scenario.deployment.pools
    if not pools:
        return [replica_shape(scenario)]
    numbers = [number for number, pool in enumerate(pools) if pool.role != "decode"]
    return [replica_shape(of_pool_alone(scenario, number), role=pools[number].role) for number in numbers]


def _tower_of(shape: ReplicaShape, scenario: Scenario) -> VisionTower:
    if shape.model.vision is None:
        rule = f"needs a model that takes images, and the profile of {shape.model.name} has no vision block"
        scenario.refuse("workload.images", rule, "choose such as qwen3-vl-32b, llama-4-scout or gemma-3-27b")
    return shape.model.vision


def _kinds(specs: RequestSpecs, scenario: Scenario) -> Iterator[tuple[ImagesSpec, np.ndarray, str]]:
    """Yield what the images of some requests are like, their rows, and what stands behind their streams' names."""
    common, classes = scenario.workload.images, scenario.workload.classes or ()
    own = [number for number, each in enumerate(classes) if each.images is not None]
    others = np.arange(len(specs))
    if own:
        assert specs.request_class is not None
        others = np.flatnonzero(~np.isin(specs.request_class, own))
    if common is not None:
        yield common, others, ""
    for number in own:
        images = classes[number].images
        assert images is not None
        assert specs.request_class is not None
        yield images, np.flatnonzero(specs.request_class == number), f".{classes[number].name}"


def _drawn(specs: RequestSpecs, scenario: Scenario, tower: VisionTower, replication: int) -> tuple[ImageColumns, _Work]:
    """Return the images of all requests, and what is to be encoded."""
    whole, num_requests = np.zeros((2, len(specs)), dtype=np.int64), len(specs)
    count, tokens = whole
    seconds, patches, pairs, calls = np.zeros((4, num_requests))
    for spec, rows, suffix in _kinds(specs, scenario):
        drawn = draw_images(
            spec,
            len(rows),
            seed=scenario.run.seed,
            replication=replication,
            base_path=scenario.folder,
            suffix=suffix,
        )
        columns, work = _columns(spec, tower, drawn, len(rows))
        count[rows], tokens[rows], seconds[rows] = columns.count, columns.tokens, columns.preprocess_seconds
        patches[rows], pairs[rows], calls[rows] = work
    return ImageColumns(count=count, tokens=tokens, prompt_tokens=tokens, preprocess_seconds=seconds), (
        patches,
        pairs,
        calls,
    )


def _columns(spec: ImagesSpec, tower: VisionTower, drawn: DrawnImages, num_requests: int) -> tuple[ImageColumns, _Work]:
    """Return the images by request, and of those to encode the work."""
    shapes = [tower.image(each.width, each.height) for each in spec.sizes]
    megapixels = [each.width * each.height / MEGAPIXEL for each in spec.sizes]

    def by_request(values: list[float], *, encoded: bool) -> np.ndarray:
        weights = np.array(values, dtype=np.float64)[drawn.size] * (~drawn.is_cached if encoded else 1.0)
        return np.bincount(drawn.owner, weights=weights, minlength=num_requests)

    tokens = by_request([each.tokens for each in shapes], encoded=False).astype(np.int64)
    columns = ImageColumns(
        count=np.bincount(drawn.owner, minlength=num_requests),
        tokens=tokens,
        prompt_tokens=tokens,
        preprocess_seconds=spec.preprocess_seconds * by_request(megapixels, encoded=False),
    )
    patches = by_request([each.pieces * each.patches for each in shapes], encoded=True)
    pairs = by_request([each.pieces * each.patches**2 for each in shapes], encoded=True)
    return columns, (patches, pairs, by_request([1.0] * len(shapes), encoded=True))


def _owners(specs: RequestSpecs, prefixes: PrefixSegments) -> np.ndarray:
    """Return which request each segment's images are of, `NONE` of those that are no request's own new text.

    Of turns and calls that is the segment in which the prompt ends; a trace's prompts may end in blocks that others
    share, and their images stand before the answer.
    """
    last = prefixes.offsets[1:] - 1
    own = last
    if specs.turn is not None:
        row = np.repeat(np.arange(len(specs)), np.diff(prefixes.offsets))
        is_end = prefixes.ends >= specs.prompt_tokens[row]
        own = np.flatnonzero(is_end)[np.unique(row[is_end], return_index=True)[1]]
    owner = np.full(int(prefixes.segments.max()) + 1, NONE, dtype=np.int64)
    owner[prefixes.segments[own]] = np.arange(len(specs))
    return owner


def _lengthened(prefixes: PrefixSegments, owner: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, PrefixSegments]:
    """Return the tokens that each prompt grows by, and the segments, where each request's own text does by so many."""
    of_segment = np.where(owner >= 0, tokens[owner], 0)
    grown = np.cumsum(of_segment[prefixes.segments])
    before = np.concatenate([[0], grown])[prefixes.offsets]
    added = np.diff(before)
    ends = prefixes.ends + grown - np.repeat(before[:-1], np.diff(prefixes.offsets))
    return added, replace(prefixes, ends=ends)


def _earlier(prefixes: PrefixSegments, owner: np.ndarray, has_images: np.ndarray) -> np.ndarray:
    """Return the nearest request with images whose text each prompt begins with, `NONE` where there is none."""
    row = np.repeat(np.arange(len(has_images)), np.diff(prefixes.offsets))
    found = owner[prefixes.segments]
    is_earlier = (found >= 0) & (found != row) & has_images[found]
    earlier = np.full(len(has_images), NONE, dtype=np.int64)
    # Entries of a request stand in the order of its tokens: the last one stays.
    earlier[row[is_earlier]] = found[is_earlier]
    return earlier
