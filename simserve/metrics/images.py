"""What images add to a run: tokens, the encoder's time, and its place in TTFT. Knows no pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.figures import ratio
from simserve.metrics.latency import MS, RequestLatencies

if TYPE_CHECKING:
    from simserve.workload.requests import RequestSpecs

IMAGE_KEYS = (
    "requests",
    "images",
    "tokens",
    "token_share",
    "mean_preprocess_ms",
    "mean_encoder_ms",
    "ttft_share",
)


def image_figures(
    specs: RequestSpecs | None, latencies: RequestLatencies, in_window: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return what images add; None each where there are none.

    ``requests images tokens``: with images, those, and the tokens they become, of all requests that were drawn;
    ``token_share``: of all prompt tokens, those of the turns before that prompts hold included. ``mean_preprocess_ms
    mean_encoder_ms``: CPU and GPU time of a request with images, for these alone: what a turn encodes again, as no
    cache holds it, is not in it. ``ttft_share``: both, of all requests, over TTFT, that of the window: an image also
    makes others wait, which is not in it.

    Args:
        specs: What was drawn; None: it is not known.
        latencies: Seconds, one row a request.
        in_window: Whether the request counts, shape [requests].
    """
    if specs is None or specs.images is None or specs.encoder_seconds is None:
        return dict.fromkeys(IMAGE_KEYS)
    images, encoding = specs.images, specs.encoder_seconds
    owners = images.count > 0
    ttft = latencies.ttft[in_window & latencies.is_completed]
    spent = float((images.preprocess_seconds + encoding).mean())
    tokens = int(images.tokens.sum())
    num_owners = int(np.count_nonzero(owners))
    return {
        "requests": num_owners,
        "images": int(images.count.sum()),
        "tokens": tokens,
        "token_share": ratio(float(images.prompt_tokens.sum()), float(specs.prompt_tokens.sum())),
        "mean_preprocess_ms": ratio(MS * float(images.preprocess_seconds.sum()), num_owners),
        "mean_encoder_ms": ratio(MS * float(encoding.sum()), num_owners),
        "ttft_share": ratio(spent, float(ttft.mean())) if len(ttft) else np.nan,
    }
