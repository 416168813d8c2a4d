"""Images and recordings of a scenario's requests: tokens by the rules of its model, and seconds of its encoders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from simserve.metrics.cost import gpu_hour
from simserve.perf.encoder import Tower, check_cut, encoder_seconds
from simserve.perf.gemm import ACTIVATION_BYTES
from simserve.perf.memory import ENCODER_BYTES
from simserve.perf.shape import ReplicaShape
from simserve.profiles.encoders import AudioTower, VisionTower
from simserve.profiles.hardware import load_hardware
from simserve.scenario.deployment_spec import EncoderDisaggregationSpec
from simserve.scenario.resolve import ResolvedScenario, replica_shape
from simserve.scenario.schema import Scenario, of_pool_alone
from simserve.units import format_bytes
from simserve.workload.distributions import Draws
from simserve.workload.media import draw_audio, draw_images
from simserve.workload.media_spec import AudioSpec, ImagesSpec
from simserve.workload.prefixes import PrefixSegments
from simserve.workload.requests import EncoderPool, MediaColumns, RequestSpecs

if TYPE_CHECKING:
    from simserve.sim.control import EncoderAutoscalingSpec
    from simserve.workload.traces.media import RecordedMedia

MEGAPIXEL = 1e6
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Medium:
    """The images, or the recordings, of all requests, one row per request; all of shape [N]."""

    tower: Tower  # Encoder of them.
    count: np.ndarray  # How many.
    tokens: np.ndarray  # Tokens that they become.
    preprocess_seconds: np.ndarray  # CPU time to prepare them.
    num_encoded: np.ndarray  # How many of them have to be encoded.
    positions: np.ndarray  # Positions that the encoder computes for those.
    pairs: np.ndarray  # How many pairs of these attend to each other.

    def seconds_on(self, shape: ReplicaShape) -> np.ndarray:
        """Return the time that the GPUs of a replica take to encode them."""
        return encoder_seconds(shape, self.tower, self.positions, self.pairs, self.num_encoded)


def check_encoders(scenario: Scenario) -> None:
    """Refuse a deployment that cannot encode the media of the scenario's workload, before any are drawn.

    Raises:
        ScenarioError: The model has no encoder for them, or the encoder cannot be split over the ranks.
    """
    if not scenario.workload.has_media:
        return
    shapes, spec = _prompt_takers(scenario), scenario.deployment.encoder_disaggregation
    encoders = shapes if spec is None else [encoder_worker(shapes[0], spec, scenario)]
    for key in _asked(scenario):
        tower = _tower(key, shapes, scenario)
        with scenario.blaming("deployment"):
            for each in encoders:
                check_cut(each, tower)


def _asked(scenario: Scenario) -> list[str]:
    workload = scenario.workload
    return ["images"] * workload.has_images + ["audio"] * workload.has_audio


def with_media(specs: RequestSpecs, scenario: Scenario, replication: int) -> RequestSpecs:
    """Return requests with the images and recordings of the scenario's workload; unchanged if it has none.

    Those of a turn come after its new text, and stay in the context of the turns that follow.

    Raises:
        ScenarioError: The model has no encoder for them, or the encoder cannot be split over the ranks.
    """
    if not scenario.workload.has_media:
        return specs
    shapes, spec = _prompt_takers(scenario), scenario.deployment.encoder_disaggregation
    media = {key: _drawn(key, specs, scenario, _tower(key, shapes, scenario), replication) for key in _asked(scenario)}
    encoders = shapes if spec is None else [encoder_worker(shapes[0], spec, scenario)]
    seconds = {}
    for key, medium in media.items():
        with scenario.blaming("deployment"):
            seconds[key], *others = (medium.seconds_on(shape) for shape in encoders)
        if not all(np.allclose(seconds[key], each) for each in others):
            _refuse_unlike(key, scenario)
    held = {key: medium.tokens for key, medium in media.items()}
    count, tokens = (_total(getattr(each, name) for each in media.values()) for name in ("count", "tokens"))
    earlier, ends, prefixes = None, None, specs.prefixes
    if prefixes is not None:
        is_turns = scenario.workload.trace is not None and specs.turn is not None
        own = _own_places(specs, prefixes, is_recorded=scenario.workload.trace is not None)
        owner = np.full(int(prefixes.segments.max()) + 1, NONE, dtype=np.int64)
        owner[prefixes.segments[own]] = np.arange(len(specs))
        held = {key: _lengthened(prefixes, owner, medium.tokens)[0] for key, medium in media.items()}
        if not specs.counts_media:
            _, prefixes = _lengthened(prefixes, owner, tokens)
        earlier = _earlier(prefixes, owner, count > 0)
    prompt_tokens = specs.prompt_tokens + (0 if specs.counts_media else _total(held.values()))
    if specs.counts_media:
        _check_counted(prompt_tokens, _total(held.values()), scenario)
    if prefixes is not None and is_turns:
        ends = np.minimum(prefixes.ends[own], prompt_tokens)
    columns = {
        key: MediaColumns(
            count=medium.count,
            tokens=medium.tokens,
            prompt_tokens=held[key],
            preprocess_seconds=medium.preprocess_seconds,
            encoder_seconds=seconds[key],
        )
        for key, medium in media.items()
    }
    specs = replace(
        specs.waiting(_total(each.preprocess_seconds for each in media.values())),
        prompt_tokens=prompt_tokens,
        prefixes=prefixes,
        images=columns.get("images"),
        audio=columns.get("audio"),
    )
    total = _total(seconds.values())
    if spec is None:
        return replace(specs, encoder_seconds=total, earlier_images=earlier, image_ends=ends)
    return replace(specs, encoder_pool=_pool(spec, encoders[0], list(media.values()), total))


def _check_counted(prompt_tokens: np.ndarray, held: np.ndarray, scenario: Scenario) -> None:
    """Refuse images and recordings that are longer than the prompts said to include them."""
    longer = np.flatnonzero(held >= prompt_tokens)
    if len(longer):
        first = longer[0]
        rule = (
            f"counts images and recordings among the prompts' tokens, and under this model those of "
            f"{len(longer):,} of {len(held):,} requests are as long or longer, such as {int(held[first]):,} of "
            f"{int(prompt_tokens[first]):,} tokens"
        )
        remedy = "give smaller workload.images.sizes, or workload.trace.counts_media: false to add them to the prompts"
        scenario.refuse("workload.trace.counts_media", rule, remedy)


def _total(columns: Iterable[np.ndarray]) -> np.ndarray:
    first, *others = columns
    return sum(others, start=first)


def encoder_worker(shape: ReplicaShape, spec: EncoderDisaggregationSpec, scenario: Scenario) -> ReplicaShape:
    """Return the shape of one GPU of the encoder pool: its hardware, with the engine of the replicas.

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
        pipeline_layer_partition=None,
        data_parallel_size=1,
        enable_expert_parallel=False,
    )


def encoders_usd_per_hour(resolved: ResolvedScenario) -> float:
    """Return what the GPUs of the encoder pool cost, 0 without one, NaN if no price is known."""
    scenario = resolved.scenario
    spec = scenario.deployment.encoder_disaggregation
    if spec is None:
        return 0.0
    price = gpu_hour(scenario.pricing, encoder_worker(resolved.shape, spec, scenario).hardware)
    return math.nan if price.usd is None else spec.replicas * price.usd


def encoder_startup_seconds(scaling: EncoderAutoscalingSpec, resolved: ResolvedScenario) -> float:
    """Return the seconds from the launch of a worker of the encoder pool to its first image."""
    return scaling.startup.seconds(_towers_bytes(resolved))


def encoder_power(resolved: ResolvedScenario) -> tuple[float, float] | None:
    """Return the idle and the maximum watts of a GPU of the encoder pool; None without such a pool."""
    spec = resolved.scenario.deployment.encoder_disaggregation
    if spec is None:
        return None
    power = encoder_worker(resolved.shape, spec, resolved.scenario).hardware.power
    return power.idle, power.board


def encoder_lines(resolved: ResolvedScenario) -> list[str]:
    """Return what a worker of the encoder pool holds, as lines for a person to check; none without one."""
    scenario, towers = resolved.scenario, _towers(resolved)
    spec = scenario.deployment.encoder_disaggregation
    if spec is None or not towers:
        return []
    worker = encoder_worker(resolved.shape, spec, scenario)
    size = format_bytes(_towers_bytes(resolved))
    names = " and ".join(f"the {tower.kind}" for tower in towers)
    total, verb = format_bytes(worker.hardware.memory.total), "takes" if len(towers) == 1 else "take"
    count = f"{spec.replicas}" if spec.autoscaling is None else f"{spec.replicas} to {spec.max_workers}"
    return [f"encoder pool: {count} x {worker.hardware.name}, {names} {verb} {size} of {total} of each"]


def _towers(resolved: ResolvedScenario) -> list[Tower]:
    """Return the encoders of the workload's images and recordings."""
    workload, model = resolved.scenario.workload, resolved.shape.model
    asked = ((workload.has_images, model.vision), (workload.has_audio, model.audio))
    return [tower for is_asked, tower in asked if is_asked and tower is not None]


def _towers_bytes(resolved: ResolvedScenario) -> float:
    """Return the bytes of the encoders' weights, which a worker of the encoder pool loads."""
    return sum(tower.num_parameters for tower in _towers(resolved)) * ENCODER_BYTES


def _pool(
    spec: EncoderDisaggregationSpec, worker: ReplicaShape, media: list[_Medium], seconds: np.ndarray
) -> EncoderPool:
    """Return the encoder pool, and each request's work for it; none for media whose embeddings it already has."""
    crossing, num_parts = np.full(len(seconds), spec.transfer_latency), np.zeros(len(seconds), dtype=np.int64)
    for medium in media:
        share = np.divide(medium.num_encoded, medium.count, out=np.zeros(len(seconds)), where=medium.count > 0)
        # Layers whose output is also handed over send as much again.
        per_token = max(medium.tower.num_mergers, 1) * worker.model.hidden_size * ACTIVATION_BYTES
        crossing += share * medium.tokens * per_token / spec.transfer_bandwidth
        num_parts += medium.num_encoded.astype(np.int64)
    return EncoderPool(
        num_workers=spec.replicas,
        max_workers=None if spec.autoscaling is None else spec.max_workers,
        seconds=seconds,
        num_parts=np.maximum(num_parts, 1),
        transfer_seconds=np.where(seconds > 0, crossing, 0.0),
    )


def _prompt_takers(scenario: Scenario) -> list[ReplicaShape]:
    """Return a replica of each pool that takes prompts, or that of a deployment without pools."""
    pools = scenario.deployment.pools
    if not pools:
        return [replica_shape(scenario)]
    numbers = [number for number, pool in enumerate(pools) if pool.role != "decode"]
    return [replica_shape(of_pool_alone(scenario, number), role=pools[number].role) for number in numbers]


def _tower(key: str, shapes: list[ReplicaShape], scenario: Scenario) -> Tower:
    """Return the encoder of images, or audio, in all pools that take prompts."""
    towers: list[Tower] = []
    for model in (shape.model for shape in shapes):
        found: Tower | None = model.vision if key == "images" else model.audio
        if found is None:
            block = "vision" if key == "images" else key
            rule = f"needs a model that takes {key}, and the profile of {model.name} has no {block} block"
            scenario.refuse(f"workload.{key}", rule, f"choose a model such as {_EXAMPLES[key]}")
        towers.append(found)
    if any(each != towers[0] for each in towers):
        _refuse_unlike(key, scenario)
    return towers[0]


_EXAMPLES = {
    "images": "qwen3-vl-32b, llama-4-scout or gemma-3-27b",
    "audio": "qwen3-omni-30b-a3b, voxtral-small-24b or voxtral-mini-3b",
}
"""Models that refusals name."""


def _refuse_unlike(key: str, scenario: Scenario) -> None:
    rule = "must be encoded alike by all pools that take prompts"
    scenario.refuse(f"workload.{key}", rule, "give those pools one model, hardware, engine and size, or leave it out")


def _kinds(
    key: str, specs: RequestSpecs, scenario: Scenario
) -> Iterator[tuple[ImagesSpec | AudioSpec, np.ndarray, str]]:
    """Yield the kind of images, or recordings, of some requests, their rows, and the suffix of their streams' names."""
    common, classes = getattr(scenario.workload, key), scenario.workload.classes or ()
    own = [number for number, each in enumerate(classes) if getattr(each, key) is not None]
    others = np.arange(len(specs))
    if own:
        assert specs.request_class is not None
        others = np.flatnonzero(~np.isin(specs.request_class, own))
    if common is not None:
        yield common, others, ""
    for number in own:
        assert specs.request_class is not None
        rows = np.flatnonzero(specs.request_class == number)
        yield getattr(classes[number], key), rows, f".{classes[number].name}"


def _drawn(key: str, specs: RequestSpecs, scenario: Scenario, tower: Tower, replication: int) -> _Medium:
    columns = {
        name: np.zeros(len(specs), dtype=np.int64 if name in ("count", "tokens") else np.float64)
        for name in ("count", "tokens", "preprocess_seconds", "num_encoded", "positions", "pairs")
    }
    for spec, rows, suffix in _kinds(key, specs, scenario):
        draws = Draws(scenario.run.seed, replication, scenario.folder, suffix)
        recorded = specs.recorded_images if key == "images" else specs.recorded_audio
        _check_recorded(key, spec, recorded, scenario)
        _check_videos(spec, recorded, tower, scenario)
        own = None if recorded is None else recorded.of_rows(rows)
        owner, is_cached, each = _pieces(spec, tower, len(rows), draws, own)
        for name, values in each.items():
            is_work = name in ("num_encoded", "positions", "pairs")
            weights = values * ~is_cached if is_work else values
            columns[name][rows] = np.bincount(owner, weights=weights, minlength=len(rows))
        columns["preprocess_seconds"][rows] *= spec.preprocess_seconds
    return _Medium(tower=tower, **columns)


def _check_recorded(key: str, spec: ImagesSpec | AudioSpec, recorded: RecordedMedia | None, scenario: Scenario) -> None:
    """Refuse keys that a trace already provides, and require those that it does not."""
    noun, how = ("images", "sizes") if key == "images" else ("recordings", "seconds")
    has_sizes = recorded is not None and recorded.sizes is not None
    said = () if recorded is None else ("share", "count", how) if has_sizes else ("share", "count")
    # A resolved scenario has all keys: a value equal to the default says nothing.
    given = [name for name in said if getattr(spec, name) != type(spec).model_fields[name].default]
    if given:
        what = "large" if key == "images" else "long"
        rule = f"is not used: the trace says how {what if given[0] == how else 'many'} {noun} "
        rule += "are" if given[0] == how else "each of its requests has"
        scenario.refuse(f"workload.{key}.{given[0]}", rule, f"leave it out, or the trace's column of {noun}")
    if not has_sizes and getattr(spec, how) is None:
        rule = f"is missing: the trace does not give the {how} of its {noun}"
        scenario.refuse(f"workload.{key}.{how}", rule, "add it")


def _check_videos(
    spec: ImagesSpec | AudioSpec, recorded: RecordedMedia | None, tower: Tower, scenario: Scenario
) -> None:
    if not isinstance(tower, VisionTower) or isinstance(spec, AudioSpec) or tower.frames_per_patch is not None:
        return
    are_recorded = recorded is not None and recorded.sizes is not None and recorded.sizes[:, 2].any()
    if are_recorded or any(each.frames for each in spec.sizes or ()):
        rule = "needs a model whose profile says how it takes videos"
        key = "workload.trace" if are_recorded else "workload.images.sizes.frames"
        scenario.refuse(key, rule, "choose a model such as qwen3-vl-32b, or leave videos out")


def _pieces(
    spec: ImagesSpec | AudioSpec, tower: Tower, num_requests: int, draws: Draws, recorded: RecordedMedia | None
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return each image's, or recording's, request, whether the encoder's cache has it, and its quantities;
    ``preprocess_seconds`` in megapixels, or in seconds of audio."""
    if isinstance(spec, ImagesSpec):
        assert isinstance(tower, VisionTower)
        images = draw_images(spec, num_requests, draws, recorded)
        sizes = images.sizes.tolist()
        shapes = [
            tower.video(width, height, frames) if frames else tower.image(width, height)
            for width, height, frames in sizes
        ]
        megapixels = [width * height * max(frames, 1) / MEGAPIXEL for width, height, frames in sizes]
        of_kind = [
            (shape.tokens, amount, shape.pieces * shape.patches, tower.pairs(shape))
            for shape, amount in zip(shapes, megapixels, strict=True)
        ]
        owner, is_cached, kind = images.owner, images.is_cached, images.size
    else:
        assert isinstance(tower, AudioTower)
        audio = draw_audio(spec, num_requests, draws, recorded)
        lengths, kind = np.unique(audio.seconds, return_inverse=True)
        heard = [tower.recording(float(each)) for each in lengths]
        of_kind = [
            (shape.tokens, float(seconds), shape.positions, shape.pairs)
            for shape, seconds in zip(heard, lengths, strict=True)
        ]
        owner, is_cached = audio.owner, audio.is_cached
    tokens, amounts, positions, pairs = np.array(of_kind, dtype=np.float64).reshape(-1, 4).T[:, kind]
    one = np.ones(len(owner))
    each = {"count": one, "tokens": tokens, "preprocess_seconds": amounts}
    return owner, is_cached, each | {"num_encoded": one, "positions": positions, "pairs": pairs}


def _own_places(specs: RequestSpecs, prefixes: PrefixSegments, *, is_recorded: bool) -> np.ndarray:
    """Return, for each request, the position of the segment that holds its images and recordings.

    For turns and calls that is the segment in which the prompt ends. A trace's prompts may end in blocks that others
    share: for its turns and calls it is then where their new text begins, for its other requests the one before the
    answer.
    """
    last = prefixes.offsets[1:] - 1
    own = last
    if specs.turn is not None and is_recorded:
        own = _first_new(specs, prefixes, last)
    elif specs.turn is not None:
        row = np.repeat(np.arange(len(specs)), np.diff(prefixes.offsets))
        is_end = prefixes.ends >= specs.prompt_tokens[row]
        own = np.flatnonzero(is_end)[np.unique(row[is_end], return_index=True)[1]]
    return own


def _first_new(specs: RequestSpecs, prefixes: PrefixSegments, last: np.ndarray) -> np.ndarray:
    """Return the position of the first segment of each turn, or call, that no earlier one and no other conversation
    has.

    ``last`` if all of them are shared.
    """
    assert specs.session is not None
    row = np.repeat(np.arange(len(specs)), np.diff(prefixes.offsets))
    session, segments = specs.session[row], prefixes.segments
    num_segments = int(segments.max()) + 1
    lowest = np.full(num_segments, np.iinfo(np.int64).max)
    highest = np.full(num_segments, np.iinfo(np.int64).min)
    np.minimum.at(lowest, segments, session)
    np.maximum.at(highest, segments, session)
    is_first = np.zeros(len(segments), dtype=bool)
    is_first[np.unique(segments, return_index=True)[1]] = True
    is_own = is_first & (lowest == highest)[segments]
    rows, places = np.unique(row[is_own], return_index=True)
    found = last.copy()
    found[rows] = np.flatnonzero(is_own)[places]
    return found


def _lengthened(prefixes: PrefixSegments, owner: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, PrefixSegments]:
    """Return the tokens that each prompt gains, and the segments with each request's own text longer by ``tokens``."""
    of_segment = np.where(owner >= 0, tokens[owner], 0)
    grown = np.cumsum(of_segment[prefixes.segments])
    before = np.concatenate([[0], grown])[prefixes.offsets]
    added = np.diff(before)
    ends = prefixes.ends + grown - np.repeat(before[:-1], np.diff(prefixes.offsets))
    return added, replace(prefixes, ends=ends)


def _earlier(prefixes: PrefixSegments, owner: np.ndarray, has_media: np.ndarray) -> np.ndarray:
    """Return the nearest request with images or recordings whose text each prompt begins with, `NONE`: none."""
    row = np.repeat(np.arange(len(has_media)), np.diff(prefixes.offsets))
    found = owner[prefixes.segments]
    is_earlier = (found >= 0) & (found != row) & has_media[found]
    earlier = np.full(len(has_media), NONE, dtype=np.int64)
    # Entries of a request are in the order of its tokens: the last one is kept.
    earlier[row[is_earlier]] = found[is_earlier]
    return earlier
