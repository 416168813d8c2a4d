"""Images in a workload: drawn apart from all else, on top of the text, behind what prompts share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simserve.errors import ScenarioError
from simserve.scenario.load import load
from simserve.scenario.replication import traffic
from simserve.scenario.run import run
from simserve.validation import validate
from simserve.workload.image_spec import PREPROCESS_SECONDS, ImagesSpec
from simserve.workload.images import draw_images
from simserve.workload.requests import RequestSpecs

SIZE = {"width": 1024, "height": 1024}


def drawn(**keys: Any) -> Any:
    """Return images of 2,000 requests."""
    spec = validate(ImagesSpec, {"sizes": [SIZE], **keys})
    return draw_images(spec, 2000, seed=1, replication=0, base_path=None)


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
        ("workload.sessions={turns: 2, think_time: 1 s}", "has sessions and also images"),
        ("deployment.engine.batching=static", "workload.images: are encoded in the steps of continuous batching"),
        ("workload.images.sizes=[]", "workload.images.sizes"),
    ],
)
def test_what_has_no_images_is_refused(override: str, message: str) -> None:
    """One line that says what is wrong."""
    with pytest.raises(ScenarioError) as caught:
        run(load("images", [override]))
    assert message in str(caught.value)
