"""Images by the rules of their models: tokens, pieces and patches against what the models' processors say."""

from __future__ import annotations

import pytest

from simserve.errors import ProfileError
from simserve.profiles import catalog
from simserve.profiles.catalog import load_model
from simserve.profiles.encoders import VisionTower
from simserve.validation import validate


def tower(name: str) -> VisionTower:
    """Return the tower of a catalogue model."""
    found = load_model(name).vision
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("size", "tokens"),
    [((1024, 1024), 1024), ((1920, 1080), 60 * 34), ((100, 100), 64), ((33, 33), 64), ((4096, 4096), 16384)],
)
def test_qwen_makes_a_token_of_32_pixels_square(size: tuple[int, int], tokens: int) -> None:
    """Sides are rounded to 32 pixels; small images grow to 64 tokens, 2 x 2 patches each."""
    image = tower("qwen3-vl-32b").image(*size)

    assert image == (tokens, 1, 4 * tokens)


@pytest.mark.parametrize(
    ("video", "scaled", "tokens"),
    [
        ((1280, 720, 64), (832, 448), 32 * 364 + 278),
        ((1920, 1080, 16), (1664, 928), 8 * 1508 + 64),
        ((640, 480, 600), (224, 160), 300 * 35 + 2890),
        ((64, 64, 4), (64, 64), 2 * 4 + 16),
        ((40, 40, 2), (64, 64), 4 + 8),
    ],
)
def test_a_video_is_scaled_by_the_pixels_of_all_frames(
    video: tuple[int, int, int], scaled: tuple[int, int], tokens: int
) -> None:
    """Sides as transformers 5's Qwen3-VL processor has them; two frames are a moment, whose seconds are written."""
    shape = tower("qwen3-vl-8b").video(*video)

    assert shape == (tokens, video[2] // 2, scaled[0] * scaled[1] // 256)
    assert tower("qwen3-vl-8b").pairs(shape) == shape.pieces * shape.patches**2


def test_what_takes_videos_says_how_in_full() -> None:
    """One figure of the three is no rule; neither is one for tiles."""
    fields = tower("qwen3-vl-8b").model_dump()

    with pytest.raises(ProfileError, match="min_video_pixels and max_video_pixels go together"):
        validate(VisionTower, {**fields, "max_video_pixels": None}, error=ProfileError)


@pytest.mark.parametrize(
    ("size", "tokens"),
    [((1036, 1036), 37 * 37), ((1024, 1024), 37 * 37), ((1920, 1080), 69 * 39), ((56, 56), 4), ((20, 20), 4)],
)
def test_qwen_2_5_makes_a_token_of_28_pixels_square(size: tuple[int, int], tokens: int) -> None:
    """Sides are rounded to 28 pixels; the smallest image is of 4 tokens, 2 x 2 patches each."""
    assert tower("qwen2.5-vl-7b").image(*size) == (tokens, 1, 4 * tokens)


def test_layers_of_a_window_attend_to_64_patches() -> None:
    """Qwen2.5-VL: 4 of 32 layers attend to the whole image, the others to windows of 112 pixels; Qwen3-VL has none."""
    windowed, whole = tower("qwen2.5-vl-7b"), tower("qwen3-vl-8b")
    image = windowed.image(1120, 1120)

    assert image.patches == 80 * 80
    assert windowed.pairs(image) == (4 * 6400**2 + 28 * 6400 * 64) / 32
    assert whole.pairs(image) == 6400**2


def test_a_gated_mlp_has_three_matrices() -> None:
    """Qwen2.5-VL's tower: 0.63 B in its layers, of 0.68 B with patches, biases, norms and merger."""
    assert tower("qwen2.5-vl-7b").num_parameters == 32 * (4 * 1280**2 + 3 * 1280 * 3420)


def test_a_window_says_which_layers_have_none() -> None:
    """One without the other is no tower."""
    fields = tower("qwen2.5-vl-7b").model_dump()

    with pytest.raises(ProfileError, match="window and num_full_layers go together"):
        validate(VisionTower, {**fields, "num_full_layers": None}, error=ProfileError)
    with pytest.raises(ProfileError, match="num_full_layers must not exceed num_hidden_layers"):
        validate(VisionTower, {**fields, "num_full_layers": 33}, error=ProfileError)


def test_qwen_scales_large_images_down() -> None:
    """Of 80 megapixels 16.8 are left, in about the same proportions."""
    image = tower("qwen3-vl-32b").image(10_000, 8_000)

    assert 0.97 * 16384 < image.tokens <= 16384


@pytest.mark.parametrize(
    ("size", "tiles"), [((336, 336), 1), ((300, 200), 1), ((337, 336), 2), ((672, 672), 4), ((1344, 1344), 16)]
)
def test_llama_cuts_tiles_and_adds_the_whole(size: tuple[int, int], tiles: int) -> None:
    """144 tokens a tile of 336 pixels; where there are several, the whole image is one more."""
    pieces = tiles + (tiles > 1)

    assert tower("llama-4-scout").image(*size) == (144 * pieces, pieces, 576)


def test_llama_takes_no_more_than_sixteen_tiles() -> None:
    """A large photograph is scaled to the canvas that loses least."""
    image = tower("llama-4-scout").image(8000, 8000)

    assert image.pieces == 17


@pytest.mark.parametrize(("model", "expected"), [("gemma-3-27b", (256, 1, 4096)), ("gemma-4-31b", (280, 1, 2520))])
def test_gemma_makes_as_many_tokens_of_any_image(model: str, expected: tuple[int, int, int]) -> None:
    """Whatever its size."""
    assert tower(model).image(64, 64) == tower(model).image(4000, 3000) == expected


def test_the_tower_of_llama_is_nearly_all_of_what_its_page_counts() -> None:
    """34 layers of 23.8 M; adapter, projector and patches are the rest of 871.9 M."""
    rest = 871_932_416 - tower("llama-4-scout").num_parameters

    assert 0.05 < rest / 871_932_416 < 0.08


def test_every_tower_has_whole_heads_and_a_source() -> None:
    """Of all catalogue models that have one."""
    found = [load_model(name).vision for name in catalog.names("model")]
    towers = [each for each in found if each is not None]

    assert len(towers) >= 10
    assert all(each.hidden_size % each.num_attention_heads == 0 and each.source for each in towers)


def test_a_rule_needs_its_numbers() -> None:
    """A grid without a largest size is refused by its key."""
    known = tower("qwen3-vl-32b").model_dump() | {"max_pixels": None}

    with pytest.raises(ProfileError, match="rule grid needs max_pixels"):
        validate(VisionTower, known, error=ProfileError)


@pytest.mark.parametrize(("size", "tokens"), [((1024, 1024), 37 * 37), ((8000, 8000), 4096)])
def test_kimi_makes_a_token_of_28_pixels_square(size: tuple[int, int], tokens: int) -> None:
    """At most 16,384 patches of 14 x 14, four of which become a token."""
    assert tower("kimi-k2.5").image(*size).tokens == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(("name", "weights"), [("qwen3.5-0.8b", 85e6), ("qwen3.5-2b", 302e6), ("qwen3.5-4b", 302e6)])
def test_small_qwens_have_towers_too(name: str, weights: float) -> None:
    """12 layers of 768, or 24 of 1,024."""
    assert tower(name).num_parameters == pytest.approx(weights, rel=0.01)
