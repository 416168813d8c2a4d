"""What adapters add to a step of a pipeline; their bytes and loads are tested with the scenarios that have them."""

from __future__ import annotations

import pytest

from simserve.perf.loras import lora_times
from tests.perf.shapes import make_shape


def test_stages_of_a_pipeline_share_the_tokens_of_adapters_and_not_their_matrices() -> None:
    """Half of the layers at a time for a token; every stage reads its adapters and starts its kernels."""
    shapes = [make_shape(pipeline_parallel_size=stages, max_loras=4, max_lora_rank=16) for stages in (1, 2)]
    one, two = (lora_times(each, each.machine) for each in shapes)

    assert two.token == pytest.approx(one.token / 2)
    assert (two.adapter, two.step) == (one.adapter, one.step)
