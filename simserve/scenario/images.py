"""Images of a scenario's requests: tokens by the rule of its model, and seconds of its encoder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simserve.perf.vision import encoder_seconds
from simserve.profiles.vision import VisionTower
from simserve.scenario.resolve import replica_shape
from simserve.scenario.schema import Scenario
from simserve.workload.image_spec import ImagesSpec
from simserve.workload.images import DrawnImages, draw_images
from simserve.workload.requests import ImageColumns, RequestSpecs

MEGAPIXEL = 1e6


def with_images(specs: RequestSpecs, scenario: Scenario, replication: int) -> RequestSpecs:
    """Return requests with the images that the scenario's workload says; the same where it says none.

    Raises:
        ScenarioError: The model takes no images, or its tower cannot be cut over the ranks.
    """
    spec = scenario.workload.images
    if spec is None:
        return specs
    shape = replica_shape(scenario)
    tower = shape.model.vision
    if tower is None:
        rule = f"needs a model that takes images, and the profile of {shape.model.name} has no vision block"
        scenario.refuse("workload.images", rule, "choose such as qwen3-vl-32b, llama-4-scout or gemma-3-27b")
    drawn = draw_images(spec, len(specs), seed=scenario.run.seed, replication=replication, base_path=scenario.folder)
    columns, work = _columns(spec, tower, drawn, len(specs))
    with scenario.blaming("deployment"):
        seconds = encoder_seconds(shape, tower, *work)
    prefixes = specs.prefixes
    if prefixes is not None:
        # Images stand behind what is shared, in the text of each request's own.
        ends = prefixes.ends.copy()
        ends[prefixes.offsets[1:] - 1] += columns.tokens
        prefixes = replace(prefixes, ends=ends)
    specs = specs.waiting(columns.preprocess_seconds)
    return replace(
        specs,
        prompt_tokens=specs.prompt_tokens + columns.tokens,
        prefixes=prefixes,
        images=columns,
        encoder_seconds=seconds,
    )


def _columns(
    spec: ImagesSpec, tower: VisionTower, drawn: DrawnImages, num_requests: int
) -> tuple[ImageColumns, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the images by request, and of those to encode the patches, attended pairs and calls."""
    shapes = [tower.image(each.width, each.height) for each in spec.sizes]
    megapixels = [each.width * each.height / MEGAPIXEL for each in spec.sizes]

    def by_request(values: list[float], *, encoded: bool) -> np.ndarray:
        weights = np.array(values, dtype=np.float64)[drawn.size] * (~drawn.is_cached if encoded else 1.0)
        return np.bincount(drawn.owner, weights=weights, minlength=num_requests)

    columns = ImageColumns(
        count=np.bincount(drawn.owner, minlength=num_requests),
        tokens=by_request([each.tokens for each in shapes], encoded=False).astype(np.int64),
        preprocess_seconds=spec.preprocess_seconds * by_request(megapixels, encoded=False),
    )
    patches = by_request([each.pieces * each.patches for each in shapes], encoded=True)
    pairs = by_request([each.pieces * each.patches**2 for each in shapes], encoded=True)
    return columns, (patches, pairs, by_request([1.0] * len(shapes), encoded=True))
