"""Lines of reasoning and images: said where they are there, and nothing where they are not."""

from __future__ import annotations

from simserve.report.media import image_lines
from simserve.report.reasoning import reasoning_lines
from simserve.scenario.load import load
from simserve.scenario.run import run


def test_reasoning_says_the_wait_the_share_and_the_dollars() -> None:
    """And how many answers the limit left out; of images nothing."""
    result = run(load("reasoning", ["workload.num_requests=60", "workload.max_tokens=1500"]), finishable=None)

    lines = reasoning_lines(result)
    assert len(lines) == 4
    assert lines[0].startswith("first visible token: ")
    assert "of the output tokens are thinking" in lines[1]
    assert "a million visible tokens" in lines[2]
    assert "thought up to the limit" in lines[3]
    assert image_lines(result) == []


def test_images_say_tokens_and_times() -> None:
    """Of reasoning nothing."""
    result = run(load("images", ["workload.num_requests=60"]), finishable=None)

    lines = image_lines(result)
    assert len(lines) == 3
    assert "images in" in lines[0]
    assert "to scale them" in lines[1]
    assert lines[2].endswith("of TTFT, over all requests")
    assert reasoning_lines(result) == []
