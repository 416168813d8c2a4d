"""Images in a workload: drawn apart from all else, on top of the text, behind what prompts share."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.errors import ScenarioError, SimserveError
from simserve.planner.export.export import export
from simserve.scenario.fit import memory_report
from simserve.scenario.load import load
from simserve.scenario.replication import traffic
from simserve.scenario.resolve import resolve
from simserve.scenario.run import deploy, run
from simserve.scenario.verify import verify
from simserve.sim.simulate import simulate
from simserve.validation import validate
from simserve.workload.distributions import Draws
from simserve.workload.media import draw_images
from simserve.workload.media_spec import PREPROCESS_SECONDS, ImagesSpec
from simserve.workload.requests import RequestSpecs

SIZE = {"width": 1024, "height": 1024}


def drawn(**keys: Any) -> Any:
    """Return images of 2,000 requests."""
    spec = validate(ImagesSpec, {"sizes": [SIZE], **keys})
    return draw_images(spec, 2000, Draws(1))


def requests(*overrides: str) -> RequestSpecs:
    """Return the requests of the bundled scenario of images."""
    return traffic(load("images", overrides), 0)


def test_shares_are_as_asked() -> None:
    """A quarter of the requests, two images each, a third of which are large and half of which are known."""
    sizes = [SIZE | {"weight": 2}, {"width": 2048, "height": 2048}]
    images = drawn(share=0.25, count=2, sizes=sizes, cached_share=0.5)

    owners = np.bincount(images.owner, minlength=2000)
    assert set(owners.tolist()) == {0, 2}
    assert np.count_nonzero(owners) / 2000 == pytest.approx(0.25, abs=0.04)
    assert images.size.mean() == pytest.approx(1 / 3, abs=0.06)
    assert images.is_cached.mean() == pytest.approx(0.5, abs=0.06)


def test_one_part_moves_no_other() -> None:
    """Other sizes, or a cache, leave it as it was who has how many."""
    one, other = drawn(share=0.5, count=3), drawn(share=0.5, count=3, cached_share=0.9, sizes=[SIZE, SIZE])

    assert one.owner.tolist() == other.owner.tolist()


def test_images_come_on_top_of_the_text() -> None:
    """The prompts of the same scenario without images are shorter by their tokens alone."""
    everybody = ("workload.images.share=1", "workload.images.preprocess_time=0 ms")
    shown = requests(*everybody, "workload.images.count=2", "workload.images.sizes=[{width: 1024, height: 1024}]")
    text = requests("workload.images=null")

    assert text.images is None
    assert shown.images is not None
    assert shown.encoder_seconds is not None
    assert set(shown.images.tokens.tolist()) == {2048}
    assert (shown.prompt_tokens - shown.images.tokens).tolist() == text.prompt_tokens.tolist()
    assert len(set(shown.encoder_seconds.tolist())) == 1


def test_a_video_is_so_many_moments_that_attend_to_themselves() -> None:
    """64 frames of 720p: 32 moments of 364 tokens and their times; a CPU scales each frame, the tower sees moments."""
    sizes = "workload.images.sizes=[{{width: 1280, height: 720{}}}]"
    share = ["workload.images.share=1.0", "workload.images.count=1", "workload.prompt_tokens=100"]
    video, image = (requests(*share, sizes.format(each)) for each in (", frames: 64", ""))

    assert set(video.prompt_tokens.tolist()) == {100 + 32 * 364 + 278}
    assert video.images is not None
    assert image.images is not None
    assert video.images.preprocess_seconds[0] == pytest.approx(64 * image.images.preprocess_seconds[0])
    assert video.encoder_seconds is not None
    assert image.encoder_seconds is not None
    assert 2 < video.encoder_seconds[0] / image.encoder_seconds[0] < 20
    with pytest.raises(ScenarioError, match="needs a model whose profile says how it takes videos"):
        requests("model=gemma-3-27b", *share, sizes.format(", frames: 64"))


def test_a_prompt_with_images_is_ready_later_and_holds_up_nobody() -> None:
    """65 ms a megapixel; requests stand in the order in which they are ready."""
    specs = requests()

    assert specs.images is not None
    assert specs.own_wait is not None
    assert (np.diff(specs.arrival_time + specs.own_wait) >= 0).all()
    assert (np.diff(specs.arrival_time) < 0).any()
    assert specs.own_wait.tolist() == specs.images.preprocess_seconds.tolist()
    one = specs.images.preprocess_seconds[specs.images.count == 1]
    expected = [PREPROCESS_SECONDS * width * height / 1e6 for width, height in ((1920, 1080), (2048, 1536))]
    assert sorted(set(np.round(one, 9))) == pytest.approx(expected)


def test_what_prompts_share_stands_before_their_images() -> None:
    """The system prompt ends where it did; the request's own text ends later by the tokens of its images."""
    more = ("workload.shared_prefix={num_groups: 2, tokens: 100}", "workload.images.preprocess_time=0 ms")
    shown, text = requests(*more), requests(*more[:1], "workload.images=null")

    assert shown.prefixes is not None
    assert text.prefixes is not None
    assert shown.images is not None
    last = shown.prefixes.offsets[1:] - 1
    assert shown.prefixes.ends[last - 1].tolist() == text.prefixes.ends[last - 1].tolist()
    assert (shown.prefixes.ends[last] - text.prefixes.ends[last]).tolist() == shown.images.tokens.tolist()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=qwen3-32b", "workload.images: needs a model that takes images"),
        ("deployment.engine.batching=static", "workload.images: are encoded in the steps of continuous batching"),
        ("workload.images.sizes=[]", "workload.images.sizes"),
        ("workload.images.sizes=[{width: 640, height: 480, frames: 1}]", "workload.images.sizes.0.frames"),
    ],
)
def test_what_has_no_images_is_refused(override: str, message: str) -> None:
    """One line that says what is wrong."""
    with pytest.raises(ScenarioError) as caught:
        run(load("images", [override]))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["workload.images=null"], "encoder_disaggregation: has nothing to encode"),
        (["deployment.engine={name: tgi}"], "is not available with tgi: only "),
        (["deployment.overflow={api: gpt-4o, max_queue: 5}"], "deployment.overflow: encodes before the router"),
        (["deployment.encoder_disaggregation.hardware=h1000"], "h1000"),
    ],
)
def test_an_encoder_pool_that_does_nothing_is_refused(overrides: list[str], message: str) -> None:
    """One line that says what is wrong."""
    with pytest.raises(SimserveError) as caught:
        run(load("encoder-pool", overrides))
    assert message in str(caught.value)


def test_an_encoder_pool_is_said_where_memory_is_and_not_exported() -> None:
    """SGLang's replicas leave the tower out, vLLM's keep it; a worker holds it."""
    kept = memory_report(resolve(load("encoder-pool")))
    without = memory_report(resolve(load("encoder-pool", ["deployment.engine={name: sglang}"])))

    assert "vision_weights" in kept["parts"]
    assert "vision_weights" not in without["parts"]
    assert any(line.startswith("encoder pool: 2 x l40s-48gb, the vision tower takes") for line in kept["arithmetic"])
    with pytest.raises(ScenarioError, match=r"encoder_disaggregation: cannot be exported"):
        export(load("encoder-pool"), "k8s")


def test_later_turns_cost_an_encoder_pool_nothing() -> None:
    """Of a conversation's prompts, which hold all images so far, each brings the pool its own."""
    pool = "deployment.encoder_disaggregation={replicas: 2}"
    specs, alone = requests(TURNS, *SMALL, pool), requests(TURNS, *SMALL)
    assert specs.encoder_pool is not None
    assert specs.images is not None
    has_images = specs.images.count > 0

    assert specs.encoder_seconds is None
    assert specs.earlier_images is None
    assert (specs.encoder_pool.seconds > 0).tolist() == has_images.tolist()
    assert specs.encoder_pool.num_parts[has_images].tolist() == specs.images.count[has_images].tolist()
    np.testing.assert_array_equal(specs.prompt_tokens, alone.prompt_tokens)


TURNS = "workload.sessions={turns: 4, think_time: 2 s}"
TASKS = "workload.agents={calls: {distribution: geometric, mean: 4, max: 8}, subagent_share: 0.4, fork_share: 0.5}"
SMALL = (
    "workload.num_requests=60",
    "workload.prompt_tokens=40",
    "workload.output_tokens=20",
    "workload.images.sizes=[{width: 512, height: 512}]",
)
ROLES = "deployment.pools=[{name: p, role: prefill, replicas: 2}, {name: d, role: decode, replicas: 1}]"


def test_a_conversation_keeps_the_images_of_its_turns() -> None:
    """Each prompt holds the images of all turns up to its own, and is longer by their tokens than without images."""
    shown, text = requests(TURNS), requests(TURNS, "workload.images=null")

    images = shown.images
    assert images is not None
    assert shown.session is not None
    sums = np.cumsum(images.tokens)
    first = np.searchsorted(shown.session, shown.session)
    assert images.prompt_tokens.tolist() == (sums - sums[first] + images.tokens[first]).tolist()
    assert (shown.prompt_tokens - images.prompt_tokens).tolist() == text.prompt_tokens.tolist()


@pytest.mark.parametrize("kind", [TURNS, TASKS])
def test_what_turns_share_grows_by_their_images(kind: str) -> None:
    """Segments stay ascending, end with the answer, and mean the same tokens in every prompt."""
    specs = requests(kind)

    prefixes = specs.prefixes
    assert prefixes is not None
    ends = [prefixes.ends[low:high] for low, high in zip(prefixes.offsets, prefixes.offsets[1:], strict=False)]
    assert all((np.diff(each) > 0).all() for each in ends)
    assert [each[-1] for each in ends] == (specs.prompt_tokens + specs.output_tokens).tolist()
    _, inverse = np.unique(prefixes.segments, return_inverse=True)
    longest = np.zeros(inverse.max() + 1)
    np.maximum.at(longest, inverse, prefixes.ends)
    assert (longest[inverse] == prefixes.ends).all()


@pytest.mark.parametrize("kind", [TURNS, TASKS])
def test_a_prompt_knows_the_nearest_images_that_it_begins_with(kind: str) -> None:
    """Going from one to the next finds all tokens of images that the prompt holds."""
    specs = requests(kind)

    images, earlier = specs.images, specs.earlier_images
    assert images is not None
    assert earlier is not None
    found = images.tokens.copy()
    at = earlier.copy()
    while (at >= 0).any():
        found += np.where(at >= 0, images.tokens[at], 0)
        at = np.where(at >= 0, earlier[at], -1)
    assert found.tolist() == images.prompt_tokens.tolist()


def test_rows_that_are_chosen_keep_their_images() -> None:
    """What a prompt begins with is found again in another order, or is -1 where it was left out."""
    specs = requests(TURNS)
    order = np.arange(len(specs))[::-1]

    turned = specs.of_rows(order)

    assert specs.earlier_images is not None
    assert turned.earlier_images is not None
    before = np.where(turned.earlier_images >= 0, order[turned.earlier_images], -1)
    assert before.tolist() == specs.earlier_images[order].tolist()
    assert (specs.of_rows(np.array([3])).earlier_images == -1).all()  # type: ignore[operator]


def test_images_of_a_class_are_its_own() -> None:
    """A class's images take the place of the workload's, and leave the draws of the others as they were."""
    classes = (
        "workload.classes=[{name: a, share: 0.5}, {name: b, share: 0.5, images: {sizes: [{width: 64, height: 64}]}}]"
    )
    specs = requests(classes, "workload.images.preprocess_time=0 ms")

    assert specs.images is not None
    of_b = specs.request_class == 1
    assert set(specs.images.count[of_b].tolist()) == {1}
    assert set(specs.images.tokens[of_b].tolist()) == {64}
    assert set(specs.images.count[~of_b].tolist()) == {0, 1, 2}


def test_images_come_on_top_of_a_trace(tmp_path: Any) -> None:
    """Each request's own, behind what its prompt shares with others."""
    rows = [
        f'{{"timestamp": {1000 * row}, "input_length": 1024, "output_length": 5, "hash_ids": [1, {row + 2}]}}'
        for row in range(20)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(rows))
    replay = (f"workload.trace={{path: {path}}}", "workload.arrivals=null", "workload.prompt_tokens=null")
    ended = ("workload.output_tokens=null", "workload.num_requests=null", "workload.images.preprocess_time=0 ms")

    shown = requests(*replay, *ended)

    assert shown.images is not None
    assert shown.images.tokens.sum() > 0
    assert (shown.prompt_tokens - shown.images.tokens).tolist() == [1024] * 20
    assert shown.prefixes is not None
    assert shown.prefixes.ends[shown.prefixes.segments == shown.prefixes.segments[0]].tolist() == [512] * 20


def test_pools_that_encode_differently_are_refused() -> None:
    """An image takes as long on each of the pools that take prompts, or the scenario is not simulated."""
    pools = "deployment.pools=[{name: a}, {name: b, hardware: b200-sxm-180gb}]"

    with pytest.raises(ScenarioError, match=r"must be encoded alike by all pools that take prompts"):
        requests(pools)


@pytest.mark.parametrize(
    "overrides",
    [
        (TURNS,),
        (TURNS, "deployment.engine.enable_prefix_caching=false"),
        (TURNS, "deployment.engine.num_gpu_blocks_override=300", "deployment.engine.max_model_len=4096"),
        (TASKS,),
        (ROLES, "deployment.disaggregation={}"),
        (TURNS, ROLES, "deployment.disaggregation={}"),
    ],
)
def test_images_fare_alike_in_the_plain_simulator(overrides: tuple[str, ...]) -> None:
    """Conversations with and without a cache that holds their images, tasks, and workers by role."""
    found = verify(load("images", (*SMALL, *overrides)), accelerate="off")

    assert found.differing == {}


@pytest.mark.parametrize(("is_cached", "expected"), [("true", [1, 1, 1]), ("false", [1, 2, 3])])
def test_images_that_no_cache_holds_are_encoded_every_turn(is_cached: str, expected: list[int]) -> None:
    """A conversation alone on a replica: what the encoder adds to the first token of each turn, in images."""
    overrides = (
        *SMALL,
        "workload.sessions={turns: 3, think_time: 30 s}",
        "workload.num_requests=3",
        "workload.images={sizes: [{width: 512, height: 512}]}",
        f"deployment.engine.enable_prefix_caching={is_cached}",
    )
    scenario = load("images", overrides)
    shown = traffic(scenario, 0)
    assert shown.encoder_seconds is not None
    free = replace(shown, encoder_seconds=np.zeros(3))
    deployment = deploy(resolve(scenario))
    slow, fast = (simulate(deployment, specs).records for specs in (shown, free))

    added = (slow.first_token_time - slow.arrival_time) - (fast.first_token_time - fast.arrival_time)
    assert (added / shown.encoder_seconds).tolist() == pytest.approx(expected)


def recorded(path: Path, hashed: bool) -> tuple[str, ...]:
    """Return what replays three conversations of three turns, which share a system prompt, with an image each turn."""
    lines = []
    for turn in range(3):
        for talk in range(3):
            # Blocks of 512 tokens: the system prompt of all, two of each turn, and one that only it ends in.
            ids = [0, *(100 * talk + each for each in range(1, 2 * turn + 3)), 1000 + 10 * talk + turn]
            row = {"timestamp": 1000 * talk + 20_000 * turn, "input_length": 512 * len(ids) - 100, "output_length": 50}
            lines.append(json.dumps(row | {"session_id": str(talk)} | ({"hash_ids": ids} if hashed else {})))
    path.write_text("\n".join(lines), encoding="utf-8")
    drawn = ("workload.arrivals=null", "workload.prompt_tokens=null", "workload.output_tokens=null")
    image = "workload.images={sizes: [{width: 512, height: 512}], preprocess_time: 0 ms}"
    return (f"workload.trace={{path: {path}}}", *drawn, "workload.num_requests=null", "workload.sessions={}", image)


@pytest.mark.parametrize("hashed", [True, False])
def test_turns_of_a_trace_hold_the_images_of_those_before(tmp_path: Path, hashed: bool) -> None:
    """An image of 256 tokens a turn, where its new text begins; other conversations share none of them."""
    words = recorded(tmp_path / "t.jsonl", hashed)
    shown, text = requests(*words), requests(*words, "workload.images=null")
    assert shown.images is not None
    assert shown.turn is not None
    assert shown.prefixes is not None

    assert set(shown.images.tokens.tolist()) == {256}
    assert (shown.prompt_tokens - text.prompt_tokens).tolist() == (256 * shown.turn).tolist()
    if hashed:
        firsts = shown.prefixes.offsets[:-1]
        assert set(shown.prefixes.ends[firsts].tolist()) == {512}


@pytest.mark.parametrize("hashed", [True, False])
def test_the_prefix_cache_knows_images_of_a_traces_turns(tmp_path: Path, hashed: bool) -> None:
    """Later turns find them with the text around them, and nobody encodes them again; the plain simulator agrees."""
    words = recorded(tmp_path / "t.jsonl", hashed)
    cached, alone = (
        run(load("images", [*words, f"deployment.engine.enable_prefix_caching={is_on}"])) for is_on in ("true", "false")
    )
    encoding = [each.summary["simserve"]["steps"]["seconds_by_operator"]["image_encoder"] for each in (cached, alone)]

    assert encoding[1] > 1.5 * encoding[0]
    assert verify(load("images", list(words)), accelerate="off").differing == {}


DRAWN = ("workload.arrivals=null", "workload.prompt_tokens=null", "workload.output_tokens=null")


@pytest.mark.parametrize(
    "rows",
    [
        ["arrival_time,prompt_tokens,output_tokens,num_images", "0,100,10,2", "1,100,10,0", "2,100,10,"],
        [
            '{"arrival_time": 0, "prompt_tokens": 100, "output_tokens": 10, "images": ["a.png", "b.png"]}',
            '{"arrival_time": 1, "prompt_tokens": 100, "output_tokens": 10, "images": []}',
            '{"arrival_time": 2, "prompt_tokens": 100, "output_tokens": 10}',
        ],
    ],
    ids=["csv", "json"],
)
def test_a_trace_may_say_how_many_images_each_request_has(tmp_path: Path, rows: list[str]) -> None:
    """A number in a table, a list in JSON lines; the sizes are the scenario's."""
    path = tmp_path / "t.txt"
    path.write_text("\n".join(rows), encoding="utf-8")
    words = (f"workload.trace={{path: {path}, format: columns}}", *DRAWN, "workload.num_requests=null")
    shown = requests(*words, "workload.images={sizes: [{width: 512, height: 512}]}")
    assert shown.images is not None

    assert shown.images.count.tolist() == [2, 0, 0]
    assert shown.prompt_tokens.tolist() == [612, 100, 100]
    with pytest.raises(ScenarioError, match=r"workload.images.share: is not used: the trace says how many"):
        requests(*words, "workload.images={sizes: [{width: 512, height: 512}], share: 0.5}")


def test_a_count_of_images_that_is_none_is_named(tmp_path: Path) -> None:
    """With its row and its column."""
    path = tmp_path / "t.csv"
    path.write_text("arrival_time,prompt_tokens,output_tokens,num_images\n0,100,10,many\n", encoding="utf-8")

    with pytest.raises(SimserveError, match=r"num_images: 'many' is not a whole number of images, 1,000 at most"):
        requests(f"workload.trace={{path: {path}, format: columns}}", *DRAWN, "workload.num_requests=null")


@pytest.mark.parametrize(
    "rows",
    [
        [
            "arrival_time,prompt_tokens,output_tokens,image_sizes",
            "0,100,10,512x512; 1024 X 512",
            "1,100,10,",
            "2,100,10,1024x512",
        ],
        [
            '{"arrival_time": 0, "prompt_tokens": 100, "output_tokens": 10, "image_sizes": ["512x512", "1024x512"]}',
            '{"arrival_time": 1, "prompt_tokens": 100, "output_tokens": 10}',
            '{"arrival_time": 2, "prompt_tokens": 100, "output_tokens": 10, "image_sizes": '
            '[{"width": 1024, "height": 512}]}',
        ],
    ],
    ids=["csv", "json"],
)
def test_a_trace_may_say_how_large_each_image_is(tmp_path: Path, rows: list[str]) -> None:
    """Tokens and megapixels of every row are those of its own images: 256 and 512 tokens of Qwen3-VL."""
    path = tmp_path / "t.txt"
    path.write_text("\n".join(rows), encoding="utf-8")
    words = (f"workload.trace={{path: {path}, format: columns}}", *DRAWN, "workload.num_requests=null")
    shown = requests(*words, "workload.images={preprocess_time: 1 s}")
    assert shown.images is not None

    assert shown.images.count.tolist() == [2, 0, 1]
    assert shown.prompt_tokens.tolist() == [868, 100, 612]
    assert shown.images.preprocess_seconds.tolist() == pytest.approx([0.786432, 0.0, 0.524288])
    with pytest.raises(ScenarioError, match=r"workload.images.sizes: is not used: the trace says how large images are"):
        requests(*words, "workload.images={sizes: [{width: 512, height: 512}]}")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("large", "row 2, image_sizes: 'large' is not a list of sizes of images"),
        ("0x512", "is not a list of sizes of images"),
        ("512x200000", "of 100,000 pixels a side at most"),
        ("512x512; nan", "write width x height, of a video x frames, several with semicolons: 1920x1080; 1280x720x64"),
        ("512x512x1", "is not a list of sizes of images"),
    ],
)
def test_a_size_of_images_that_is_none_is_named(tmp_path: Path, cell: str, message: str) -> None:
    """With its row, its column and the remedy."""
    path = tmp_path / "t.csv"
    path.write_text(f"arrival_time,prompt_tokens,output_tokens,image_sizes\n0,100,10,{cell}\n", encoding="utf-8")

    with pytest.raises(SimserveError) as caught:
        requests(f"workload.trace={{path: {path}}}", *DRAWN, "workload.num_requests=null", "workload.images={}")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "cell", ['"1280x720x64; 512x512"', '[{"width": 1280, "height": 720, "frames": 64}, "512x512"]']
)
def test_a_trace_may_say_how_many_frames_a_video_has(tmp_path: Path, cell: str) -> None:
    """Beside an image, in both spellings; models that take no videos are refused by the trace's name."""
    path = tmp_path / "t.jsonl"
    row = f'{{"arrival_time": 0, "prompt_tokens": 100, "output_tokens": 10, "image_sizes": {cell}}}\n'
    path.write_text(row, encoding="utf-8")
    words = [f"workload.trace={{path: {path}}}", "workload.images={}"]
    words += [f"workload.{name}=null" for name in ("arrivals", "prompt_tokens", "output_tokens", "num_requests")]

    assert requests(*words).prompt_tokens.tolist() == [100 + 32 * 364 + 278 + 256]
    with pytest.raises(ScenarioError, match=r"workload.trace: needs a model whose profile says how it takes videos"):
        requests("model=gemma-3-27b", *words)


def test_as_many_sizes_as_images_or_it_is_an_error(tmp_path: Path) -> None:
    """A row that contradicts itself."""
    path = tmp_path / "t.csv"
    path.write_text("ts,prompt_tokens,output_tokens,num_images,image_sizes\n0,9,9,2,8x8\n", encoding="utf-8")

    with pytest.raises(SimserveError, match=r"num_images: '2' is not the number of the row's image sizes, 1"):
        requests(f"workload.trace={{path: {path}}}", *DRAWN, "workload.num_requests=null", "workload.images={}")


AZURE = (
    "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00,2,1000,10\n2024-10-15 00:00:01,0,300,9\n"
)


def test_azures_multimodal_trace_counts_images_among_its_tokens(tmp_path: Path) -> None:
    """Two images of 256 tokens are within a prompt of 1,000; said otherwise, they come on top of it."""
    path = tmp_path / "lmm.csv"
    path.write_text(AZURE, encoding="utf-8")
    images = "workload.images={sizes: [{width: 512, height: 512}]}"
    words = (*DRAWN, "workload.num_requests=null", images)
    within = requests(f"workload.trace={{path: {path}}}", *words)
    on_top = requests(f"workload.trace={{path: {path}, counts_media: false}}", *words)
    assert within.images is not None

    assert within.images.count.tolist() == [2, 0]
    assert within.images.prompt_tokens.tolist() == [512, 0]
    assert (within.prompt_tokens.tolist(), on_top.prompt_tokens.tolist()) == ([1000, 300], [1512, 300])
    assert within.encoder_seconds is not None
    assert within.encoder_seconds[0] > 0


def test_images_longer_than_the_prompt_that_counts_them_are_refused(tmp_path: Path) -> None:
    """With how many there are, and what may be done."""
    path = tmp_path / "lmm.csv"
    path.write_text(AZURE, encoding="utf-8")
    words = (f"workload.trace={{path: {path}}}", *DRAWN, "workload.num_requests=null")

    with pytest.raises(ScenarioError) as caught:
        requests(*words, "workload.images={sizes: [{width: 1920, height: 1080}]}")
    assert "those of 1 of 2 requests are as long or longer, such as 4,080 of 1,000 tokens" in str(caught.value)
    assert "give smaller workload.images.sizes, or workload.trace.counts_media: false" in str(caught.value)
    with pytest.raises(ScenarioError, match=r"has trace.counts_media, and neither images nor audio"):
        requests(
            f"workload.trace={{path: {path}, counts_media: true}}",
            *DRAWN,
            "workload.num_requests=null",
            "workload.images=null",
        )


def test_images_need_sizes_from_somewhere(tmp_path: Path) -> None:
    """From the scenario, or from the trace."""
    path = tmp_path / "t.csv"
    path.write_text("ts,prompt_tokens,output_tokens,num_images\n0,9,9,2\n", encoding="utf-8")

    with pytest.raises(ScenarioError, match=r"has images without sizes; give images.sizes, or a trace that says them"):
        requests("workload.images={}")
    with pytest.raises(
        ScenarioError, match=r"workload.images.sizes: is missing: the trace does not give the sizes of its images"
    ):
        requests(f"workload.trace={{path: {path}}}", *DRAWN, "workload.num_requests=null", "workload.images={}")
