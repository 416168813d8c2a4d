"""Seconds of the encoder: what it must grow with, its attention against tables, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import simserve as ss
from simserve.errors import InputError
from simserve.perf import encoder
from simserve.perf.encoder import (
    BLACKWELL_TILES,
    HOPPER_TILES,
    LAUNCH_SECONDS,
    AttentionTiles,
    attention_seconds,
    encoder_seconds,
)
from simserve.perf.memory import activation_bytes, plan_memory
from simserve.perf.shape import ReplicaShape
from simserve.profiles.encoders import VisionTower
from tests.perf.shapes import make_shape

H100_MS = {
    (16, 1024, 1): 0.0429,
    (16, 2304, 1): 0.0758,
    (16, 4096, 1): 0.1935,
    (16, 6400, 1): 0.4886,
    (16, 9216, 1): 0.8579,
    (16, 16384, 1): 2.6909,
    (8, 4096, 1): 0.1251,
    (4, 10816, 1): 0.3738,
    (2, 9216, 1): 0.1555,
    (2, 16384, 1): 0.4338,
    (16, 64, 64): 0.0495,
    (8, 576, 8): 0.0346,
}
GB200_MS = {
    (16, 1024, 1): 0.0243,
    (16, 2304, 1): 0.0415,
    (16, 4096, 1): 0.1191,
    (16, 6400, 1): 0.2623,
    (16, 9216, 1): 0.5453,
    (16, 16384, 1): 1.7212,
    (8, 4096, 1): 0.0630,
    (4, 10816, 1): 0.2907,
    (2, 16384, 1): 0.2118,
    (16, 64, 64): 0.0475,
    (8, 576, 8): 0.0312,
}
"""Milliseconds of attention without a mask by heads, patches of an image and images, heads of 72 in bf16: tables of
vLLM 0.24.0 in ai-dynamo/aiconfigurator, encoder_attention. Nothing is fitted to these two GPUs."""


GRAPHED_MS = {(1, 300): 2.11, (1, 1000): 2.46, (1, 3000): 3.39, (4, 1000): 4.13, (16, 1000): 11.43, (16, 3000): 32.31}
"""Milliseconds of Qwen3-Omni's audio encoder on one H100 in bf16 on a CUDA graph, by recordings and frames of each:
sgl-project/sglang-omni pull request 333."""


SGLANG_MS = {2: 492.13, 4: 465.80, 8: 523.80}
"""Milliseconds of Qwen2.5-VL-72B's tower for the four images of a request on so many ranks of H20: LMSYS, "EPD
Disaggregation" (2026-01-12); 1080p, as the page's benchmark has them."""


def qwen(hardware: str = "h100-sxm-80gb", ranks: int = 1) -> tuple[ReplicaShape, VisionTower]:
    """Return Qwen3-VL-32B in FP8, and its tower."""
    shape = make_shape(hardware, "qwen3-vl-32b", quantization="fp8", tensor_parallel_size=ranks)
    assert shape.model.vision is not None
    return shape, shape.model.vision


def of_image(patches: float, hardware: str = "h100-sxm-80gb", ranks: int = 1) -> float:
    """Return the seconds of one image."""
    row = np.array([patches])
    return float(encoder_seconds(*qwen(hardware, ranks), row, row**2, np.ones(1))[0])


def test_requests_without_images_take_nothing() -> None:
    """Beside one with an image."""
    patches = np.array([0.0, 8160.0, 0.0])
    seconds = encoder_seconds(*qwen(), patches, patches**2, np.array([0.0, 1.0, 0.0]))

    assert seconds.tolist() == [0.0, of_image(8160.0), 0.0]


def test_a_screenshot_takes_some_tens_of_milliseconds() -> None:
    """No less than its arithmetic at the peak of 989 TFLOP/s, and no more than a third of that speed."""
    _, tower = qwen()
    flops = 2 * tower.num_parameters * 8160 + 4 * tower.hidden_size * 8160**2 * tower.num_hidden_layers
    bound = flops / 989e12

    assert bound < of_image(8160.0) < 3 * bound


def test_more_patches_take_longer_and_more_ranks_less() -> None:
    """Large images are cut over the ranks; small ones are bound by launches, and gain 1 % at most."""
    sizes = [256.0, 1024.0, 8160.0, 47376.0]
    times = [of_image(each) for each in sizes]

    assert times == sorted(times)
    assert of_image(47376.0, ranks=4) < 0.5 * times[-1]
    assert of_image(64.0, ranks=2) > 0.99 * of_image(64.0)


def test_windows_and_gates_of_qwen_2_5_vl_are_priced() -> None:
    """A large image takes less in windows than whole, and more with three matrices a layer than with two; no less than
    its arithmetic at the peak of 989 TFLOP/s."""
    shape = make_shape("h100-sxm-80gb", "qwen2.5-vl-7b")
    tower = shape.model.vision
    assert tower is not None
    image = tower.image(3584, 3584)

    def seconds(kind: VisionTower) -> float:
        patches, pairs = np.array([float(image.patches)]), np.array([kind.pairs(image)])
        return float(encoder_seconds(shape, kind, patches, pairs, np.ones(1))[0])

    whole = tower.model_copy(update={"window": None, "num_full_layers": None})
    plain = tower.model_copy(update={"is_gated_mlp": False})
    flops = 2 * tower.num_parameters * image.patches + 4 * 1280 * tower.pairs(image) * 32
    assert image.patches == 4 * 128**2
    assert seconds(plain) < seconds(tower) < 0.5 * seconds(whole)
    assert flops / 989e12 < seconds(tower) < 3 * flops / 989e12


def test_two_images_attend_to_themselves_alone() -> None:
    """Two of 4,096 patches take less than one of 8,192."""
    shape, tower = qwen()
    two = encoder_seconds(shape, tower, np.array([8192.0]), np.array([2 * 4096.0**2]), np.array([2.0]))

    assert two[0] < of_image(8192.0)


@pytest.mark.parametrize(
    ("table", "kernel", "peak", "num_multiprocessors"),
    [(H100_MS, HOPPER_TILES, 989e12, 132), (GB200_MS, BLACKWELL_TILES, 2500e12, 148)],
)
def test_attention_is_near_tables_it_was_not_fitted_to(
    table: dict[tuple[int, int, int], float], kernel: AttentionTiles, peak: float, num_multiprocessors: int
) -> None:
    """Within 25 % from 2,304 patches on and of many small images, 12 % in the median."""
    errors = {}
    for (heads, patches, images), measured in table.items():
        seconds = attention_seconds(
            kernel,
            length=np.array(float(patches)),
            pieces=np.array(float(images)),
            num_heads=heads,
            head_dim=72,
            peak=peak,
            num_multiprocessors=num_multiprocessors,
        )
        errors[heads, patches, images] = abs(1e3 * float(seconds) / measured - 1)

    assert np.median(list(errors.values())) < 0.12
    assert max(error for key, error in errors.items() if key != (16, 1024, 1)) < 0.25


def test_attention_goes_in_whole_rounds_of_tiles() -> None:
    """One head of 16,384 patches is 86 tiles, on 132 multiprocessors at once, one of 25,000 too; two heads are not."""

    def seconds(patches: float, heads: int) -> float:
        return float(
            attention_seconds(
                HOPPER_TILES,
                length=np.array(patches),
                pieces=np.array(1.0),
                num_heads=heads,
                head_dim=64,
                peak=989e12,
                num_multiprocessors=132,
            )
        )

    one, more, two = seconds(16384.0, 1), seconds(25000.0, 1), seconds(16384.0, 2)
    start = HOPPER_TILES.start
    assert (more - start - 4.1e-6) / (one - start - 4.1e-6) == pytest.approx(25000 / 16384)
    assert (two - start) / (one - start) == pytest.approx(2.0)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_a_tower_whole_on_each_rank_takes_what_one_gpu_takes_for_the_images_of_the_fullest(count: int) -> None:
    """Four ranks: one image costs as on one GPU, nine as three of them, and what they made is gathered.

    Cutting the tower is quicker for two at most.
    """
    shape, tower = qwen(ranks=4)
    spread = replace(shape, engine=shape.engine.model_copy(update={"mm_encoder_tp_mode": "data"}))
    alone, _ = qwen()
    image = tower.image(1920, 1080)

    def seconds(of: ReplicaShape, images: float) -> float:
        rows, pairs = np.array([images * image.patches]), np.array([images * tower.pairs(image)])
        return float(encoder_seconds(of, tower, rows, pairs, np.array([images]))[0])

    gathering = seconds(spread, count) - seconds(alone, -(-count // 4))
    assert 0 < gathering < 0.003
    assert (seconds(spread, count) < seconds(shape, count)) == (count > 2)
    odd = tower.model_copy(update={"num_attention_heads": 9})
    rows = np.array([float(image.patches)])
    assert encoder_seconds(spread, odd, rows, rows**2, np.ones(1))[0] > 0


@pytest.mark.parametrize(("side", "tiles"), [(672, 5), (1344, 17)])
def test_llama_4_whole_on_each_of_eight_gpus_is_three_times_as_fast_as_cut(side: int, tiles: int) -> None:
    """With nine images a request, as vLLM's pull request 18368 says ("~3x"); its tiles are dealt out one by one."""
    shape = make_shape("h100-sxm-80gb", "llama-4-scout", tensor_parallel_size=8)
    spread = replace(shape, engine=shape.engine.model_copy(update={"mm_encoder_tp_mode": "data"}))
    tower = shape.model.vision
    assert tower is not None
    image = tower.image(side, side)
    assert image.pieces == tiles

    def seconds(of: ReplicaShape, images: int) -> float:
        rows, pairs = np.array([float(images * tiles * image.patches)]), np.array([images * tower.pairs(image)])
        return float(encoder_seconds(of, tower, rows, pairs, np.array([float(images)]))[0])

    assert 2.5 < seconds(shape, 9) / seconds(spread, 9) < 4


def of_recordings(count: int, seconds: float, model: str = "qwen3-omni-30b-a3b") -> float:
    """Return the milliseconds of some recordings of one request on an H100."""
    shape = make_shape("h100-sxm-80gb", model, engine_fields={"eager_seconds_per_layer": 0.0})
    tower = shape.model.audio
    assert tower is not None
    heard = tower.recording(seconds)
    rows = (np.array([float(count * each)]) for each in (heard.positions, heard.pairs, 1))
    return 1e3 * float(encoder_seconds(shape, tower, *rows)[0])


def test_audio_on_a_graph_is_near_published_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of them, within 30 %, none of them used to fit anything; the median is 22 % low."""
    monkeypatch.setattr(encoder, "LAUNCH_SECONDS", 0.0)
    errors = [of_recordings(count, frames / 100) / ms - 1 for (count, frames), ms in GRAPHED_MS.items()]

    assert max(abs(each) for each in errors) < 0.3
    assert -0.25 < np.median(errors) < -0.15


def test_short_recordings_take_what_their_launches_take() -> None:
    """32 layers, whatever they hold: 15.6 ms of 4 s under vLLM with transformers' modules, some 11 with its own (vllm
    pull request 30735), 7 of Whisper under SGLang on B200."""
    least = 32 * LAUNCH_SECONDS * 1e3

    assert least < of_recordings(1, 1.0) < of_recordings(1, 4.0) < 1.1 * least
    assert of_recordings(16, 30.0) > 2 * least


def test_convolutions_are_a_fifth_of_qwen3_omni_and_hardly_any_of_whisper() -> None:
    """By their arithmetic against that of the layers."""
    shares = {}
    for model in ("qwen3-omni-30b-a3b", "voxtral-mini-3b"):
        tower = make_shape("h100-sxm-80gb", model).model.audio
        assert tower is not None
        work = sum(each.outputs_per_position * each.inputs * each.channels for each in tower.convolutions)
        shares[model] = work / (work + tower.num_parameters)

    assert shares["qwen3-omni-30b-a3b"] == pytest.approx(0.21, abs=0.02)
    assert shares["voxtral-mini-3b"] < 0.015


def test_the_tower_takes_memory_where_prompts_have_images() -> None:
    """Half of its 411 M weights in 16 bit on each of two GPUs, which KV has no more."""
    shape, tower = qwen(ranks=2)
    text, images = plan_memory(shape), plan_memory(replace(shape, encodes_images=True))

    assert "vision_weights" not in text.parts
    assert images.parts["vision_weights"] == tower.num_parameters
    assert text.kv_bytes - images.kv_bytes == pytest.approx(tower.num_parameters)
    assert any("vision tower" in line for line in images.arithmetic)
    spread = replace(shape, encodes_images=True, engine=shape.engine.model_copy(update={"mm_encoder_tp_mode": "data"}))
    assert plan_memory(spread).parts["vision_weights"] == 2 * tower.num_parameters


def test_the_largest_image_is_tried_before_kv_is_counted() -> None:
    """vLLM's peak of Qwen3.5's tower of 27 layers is 1.59 GiB as it prints it: 65,536 patches, four hidden states each
    and both ends of the activation of an MLP."""
    shape = make_shape("rtx-5090-32gb", "qwen3.5-35b-a3b", quantization="fp8", tensor_parallel_size=2)
    text, images = (activation_bytes(replace(shape, encodes_images=each)) for each in (False, True))

    assert images / 2**30 == pytest.approx(1.59, rel=0.03)
    assert text < images


def test_a_tower_on_one_gpu_is_too_fast_by_as_much_as_the_docs_say() -> None:
    """vLLM 0.19.1 on an H100, Qwen2.5-VL-7B, a 1080p image: 126 ms with its prompt (vllm-project/vllm issue 41267)."""
    scenario = ss.load(
        "images",
        {
            "model": "qwen2.5-vl-7b",
            "deployment.tensor_parallel_size": 1,
            "deployment.hardware": "h100-sxm-80gb",
            "deployment.quantization": "none",
            "deployment.engine.version": "0.19",
            "deployment.engine.max_num_batched_tokens": 8192,
            "workload.images": {"share": 1.0, "count": 1, "sizes": [{"width": 1920, "height": 1080}]},
            "workload.prompt_tokens": 30,
            "workload.output_tokens": 1,
            "workload.arrivals": {"process": "constant", "rate": 0.5},
            "workload.num_requests": 2,
        },
    )

    result = ss.run(scenario, advise=False)

    step = result.requests["first_token_s"] - result.requests["scheduled_s"]
    images = result.summary["simserve"]["images"]
    assert list(step) == pytest.approx([0.0895] * 2, abs=0.001)
    assert images["mean_encoder_ms"] == pytest.approx(35, abs=0.5)
    assert images["mean_preprocess_ms"] == pytest.approx(135, abs=1)


def test_heads_that_cannot_be_cut_are_refused() -> None:
    """Sixteen heads over three ranks."""
    shape, tower = qwen()
    odd = tower.model_copy(update={"num_attention_heads": 9})

    with pytest.raises(InputError, match="must divide the 9 heads of the vision tower"):
        encoder_seconds(qwen(ranks=2)[0], odd, np.ones(1), np.ones(1), np.ones(1))
    assert shape.tensor_parallel_size == 1


@pytest.mark.parametrize(("ranks", "low"), [(2, 0.30), (4, 0.56), (8, 0.76)])
def test_a_tower_that_is_cut_over_ranks_is_too_fast_by_as_much_as_the_docs_say(ranks: int, low: float) -> None:
    """Held to SGLang's published times; the least is that a cut tower takes no longer than one that is not."""
    shape = make_shape("h20-96gb", "qwen2.5-vl-72b", tensor_parallel_size=ranks)
    tower = shape.model.vision
    assert tower is not None
    image = tower.image(1920, 1080)
    work = (np.array([4.0 * image.patches]), np.array([4.0 * tower.pairs(image)]), np.array([4.0]))

    milliseconds = 1000 * float(encoder_seconds(shape, tower, *work)[0])

    assert 1 - milliseconds / SGLANG_MS[ranks] == pytest.approx(low, abs=0.01)


def test_ranks_share_the_weights_of_an_audio_encoder() -> None:
    """Two bytes each, half of them on each of two GPUs."""
    shape = replace(make_shape("h100-sxm-80gb", "voxtral-mini-3b", tensor_parallel_size=2), encodes_audio=True)
    assert shape.model.audio is not None

    assert plan_memory(shape).parts["audio_weights"] == shape.model.audio.num_parameters
