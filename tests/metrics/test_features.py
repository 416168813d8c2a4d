"""What features add to the figures of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from simserve.metrics.features import media_figures, tier_figures
from tests.metrics.builders import make_records


def test_the_share_of_media_is_of_the_requests_whose_first_tokens_count() -> None:
    """Four requests of 0.1 s of media each; one outside the window waits long, one has media of 9 s and never ends."""
    anything: Any = SimpleNamespace
    media = np.array([0.1, 0.1, 0.1, 9.0])
    columns = anything(
        count=np.ones(4),
        tokens=np.ones(4),
        prompt_tokens=np.ones(4),
        preprocess_seconds=media,
        encoder_seconds=0 * media,
    )
    specs = anything(encoder_pool=None, encoder_seconds=0 * media, prompt_tokens=np.full(4, 2.0))
    latencies = anything(ttft=np.array([30.0, 0.2, 0.3, np.nan]), is_completed=np.array([True, True, True, False]))

    figures = media_figures(anything(), specs, columns, latencies, np.array([False, True, True, True]), "images")

    assert figures["ttft_share"] == (0.1 + 0.1) / (0.2 + 0.3)
    assert figures["mean_preprocess_ms"] == 1e3 * media.mean()


def test_the_hit_rate_of_a_tier_is_of_the_prompts_that_came_to_a_replica() -> None:
    """Five of ten tokens were loaded; ten more were never scheduled."""
    anything: Any = SimpleNamespace
    numbers = dict.fromkeys(("num_blocks", "peak_blocks", "loaded_blocks", "written_blocks", "declined_blocks"), 1)
    tier = anything(name="host", is_shared=False, load_seconds=0.0, load_token_seconds=0.0, loaded_tokens=5, **numbers)
    records = make_records([0.0, 1.0], scheduled_time=[0.0, np.nan])

    (figures,) = tier_figures(anything(tiers=(tier,), token_seconds=0.0), records, 1.0)

    assert figures["hit_rate"] == 0.5
