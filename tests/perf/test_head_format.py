"""LM heads in a low-bit format: their bytes, and their share of a step."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.quantization import head_bits
from simserve.perf.roofline import roofline
from simserve.perf.shape import weights_bytes, weights_bytes_per_gpu
from simserve.perf.stage import stage_of
from simserve.perf.tables import price
from simserve.perf.traffic import traffic_of
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile
from tests.perf.shapes import make_shape

NVIDIA_S = [("nvidia/Qwen3.8-27B-NVFP4", "nvfp4"), ("nvidia/Qwen3.6-35B-A3B-NVFP4", "nvfp4-wo")]
LIGHTNING = ("nemotron-3.5-lightning-30b-a3b", "nvfp4-wo")


def with_wide_head(model: ModelProfile, quantization: str) -> ModelProfile:
    """Return the model with its checkpoint's head in 16 bit."""
    stored = model.checkpoint(quantization)  # type: ignore[arg-type]
    assert stored is not None
    rest = tuple(each for each in stored.other_formats if "lm_head" not in each.parts)
    return model.model_copy(update={"checkpoints": (stored.model_copy(update={"other_formats": rest}),)})


@pytest.mark.parametrize(("name", "quantization"), [*NVIDIA_S, LIGHTNING])
def test_a_head_in_four_bits_takes_fewer_bytes(name: str, quantization: str) -> None:
    """4.5 bits a weight with their scales instead of 16, on one GPU and divided over two."""
    model = load_model(name)
    wide = with_wide_head(model, quantization)
    saved = model.lm_head_gemm().num_weights * (16.0 - 4.5) / 8

    assert (head_bits(model, quantization), head_bits(wide, quantization)) == (4.5, 16.0)
    assert weights_bytes(wide, quantization) - weights_bytes(model, quantization) == pytest.approx(saved)
    held = [weights_bytes_per_gpu(each, quantization, 2) for each in (wide, model)]
    assert held[0] - held[1] == pytest.approx(saved / 2)


@pytest.mark.parametrize(("name", "quantization"), NVIDIA_S)
def test_a_head_in_four_bits_takes_less_of_a_step(name: str, quantization: str) -> None:
    """On a GB10 its reading is a good part of the step: at least what its bytes take less at the full bandwidth."""
    model = load_model(name)
    wide = with_wide_head(model, quantization)
    shapes = [make_shape("gb10-128gb", each, quantization=quantization, engine="sglang") for each in (wide, model)]
    saved = model.lm_head_gemm().num_weights * (16.0 - 4.5) / 8
    before, after = (price(shape, 4).step_times.decode_base[1] for shape in shapes)

    assert before - after > saved / 273e9


def test_a_tied_head_is_the_embedding() -> None:
    """Which tokens look up, so that no checkpoint's list makes it narrow."""
    model = load_model("nvidia/Qwen3.8-27B-NVFP4").model_copy(update={"tie_word_embeddings": True})

    assert head_bits(model, "nvfp4") == 16.0


def test_other_peoples_checkpoint_keeps_linear_attention_in_16_bit() -> None:
    """NVIDIA's has FP8 there; which is meant is said by the repository's name."""
    own, other = (load_model(f"{owner}/Qwen3.6-35B-A3B-NVFP4") for owner in ("nvidia", "RedHatAI"))

    assert own.formats_of("linear_attention", own.stored.format) == {"fp8": 1.0}
    assert other.formats_of("linear_attention", other.stored.format) == {"none": 1.0}
    assert (own.head_format("nvfp4-wo"), other.head_format("nvfp4")) == ("nvfp4-wo", None)


def test_the_last_stage_of_a_pipeline_holds_the_head() -> None:
    """Where it takes more than the embedding of the first one, in its own bits."""
    model = load_model("nvidia/Qwen3.8-27B-NVFP4")
    wide = with_wide_head(model, "nvfp4")
    whole, halved = ([weights_bytes_per_gpu(each, "nvfp4", 1, size) for each in (wide, model)] for size in (1, 2))
    last = weights_bytes_per_gpu(wide, "nvfp4", 1, 2, pipeline_layer_partition=(1, model.num_hidden_layers - 1))
    narrow = weights_bytes_per_gpu(model, "nvfp4", 1, 2, pipeline_layer_partition=(1, model.num_hidden_layers - 1))
    saved = model.lm_head_gemm().num_weights * (16.0 - 4.5) / 8

    assert whole[0] - whole[1] == pytest.approx(saved)
    # The first stage holds an embedding in 16 bit, as large as the wide head was.
    assert halved[0] == pytest.approx(halved[1])
    assert last - narrow == pytest.approx(saved)


def test_traffic_and_roofline_read_the_head_in_its_bits() -> None:
    """A step of one token reads it once."""
    model = load_model("nvidia/Qwen3.8-27B-NVFP4")
    wide = with_wide_head(model, "nvfp4")
    shapes = [make_shape("gb10-128gb", each, quantization="nvfp4", engine="sglang") for each in (wide, model)]
    saved = model.lm_head_gemm().num_weights * (16.0 - 4.5) / 8
    read = [traffic_of(stage_of(shape), np.array([1.0]))["weight_bytes"][0] for shape in shapes]
    heads = [
        next(
            point
            for point in roofline(shape, price(shape, 4), decoding=1, context_tokens=8, prompt_tokens=8).points
            if (point.name, point.phase) == ("lm_head", "decode")
        )
        for shape in shapes
    ]

    assert read[0] - read[1] == pytest.approx(saved)
    assert heads[1].intensity > 2.0 * heads[0].intensity
