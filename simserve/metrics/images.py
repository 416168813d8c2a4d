"""What images add to a run: tokens, the encoder's time, and its place in TTFT. Knows no pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.metrics.figures import ratio
from simserve.metrics.latency import MS, RequestLatencies

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation
    from simserve.workload.requests import RequestSpecs

IMAGE_KEYS = (
    "requests",
    "images",
    "tokens",
    "token_share",
    "mean_preprocess_ms",
    "mean_encoder_ms",
    "mean_encoder_wait_ms",
    "mean_transfer_ms",
    "encoder_utilization",
    "ttft_share",
)
_WAITING_SHARE = 0.2
"""Share of TTFT from which waiting for the encoder pool is what binds, as with other waits (`metrics.bottleneck`)."""
ENCODERS = "encoder_disaggregation.replicas"
"""What binds then."""


def image_figures(
    simulation: Simulation,
    specs: RequestSpecs | None,
    latencies: RequestLatencies,
    in_window: NDArray[np.bool_],
) -> dict[str, Any]:
    """Return what images add; None each where there are none.

    ``requests images tokens``: with images, those, and the tokens they become, of all requests that were drawn;
    ``token_share``: of all prompt tokens, those of the turns before that prompts hold included. ``mean_preprocess_ms
    mean_encoder_ms``: CPU and GPU time of a request with images, for these alone: what a turn encodes again, as no
    cache holds it, is not in it. ``mean_encoder_wait_ms mean_transfer_ms encoder_utilization``: of an encoder pool, how
    long images wait for a worker, how long their embeddings cross the link, each a mean over the requests with images,
    and the share of the run in which its GPUs encode; None where the replicas encode. ``ttft_share``: all of these
    times, of all requests, over TTFT, that of the window: an image also makes others wait, which is not in it.

    Args:
        simulation: The run.
        specs: What was drawn; None: it is not known.
        latencies: Seconds, one row a request.
        in_window: Whether the request counts, shape [requests].
    """
    found: dict[str, Any] = dict.fromkeys(IMAGE_KEYS)
    if specs is None or specs.images is None:
        return found
    images, pool = specs.images, specs.encoder_pool
    num_owners = int(np.count_nonzero(images.count > 0))
    seconds = {"preprocess": images.preprocess_seconds}
    if specs.encoder_seconds is not None:
        seconds["encoder"] = specs.encoder_seconds
    elif pool is not None and simulation.encoder_wait is not None:
        waits = simulation.encoder_wait
        was_encoded = np.isfinite(waits)
        parts = np.minimum(pool.num_parts, pool.num_workers)
        seconds["encoder"] = np.where(was_encoded, pool.seconds / parts, 0.0)
        seconds["encoder_wait"] = np.nan_to_num(waits)
        seconds["transfer"] = np.where(was_encoded, pool.transfer_seconds, 0.0)
        worked = float(pool.seconds[was_encoded].sum())
        found["encoder_utilization"] = ratio(worked, pool.num_workers * simulation.end_time)
    ttft = latencies.ttft[in_window & latencies.is_completed]
    spent = float(sum(each.mean() for each in seconds.values()))
    return found | {
        "requests": num_owners,
        "images": int(images.count.sum()),
        "tokens": int(images.tokens.sum()),
        "token_share": ratio(float(images.prompt_tokens.sum()), float(specs.prompt_tokens.sum())),
        **{f"mean_{name}_ms": ratio(MS * float(each.sum()), num_owners) for name, each in seconds.items()},
        "ttft_share": ratio(spent, float(ttft.mean())) if len(ttft) else np.nan,
    }


def name_encoders(bottleneck: dict[str, Any], simulation: Simulation, latencies: RequestLatencies) -> None:
    """Name the encoder pool as what binds, where waiting for it is a large share of the time to first tokens."""
    waits = simulation.encoder_wait
    if waits is None or not np.isfinite(waits).any():
        return
    ttft = latencies.ttft[np.isfinite(latencies.ttft)]
    share = float(np.nansum(waits)) / float(ttft.sum()) if len(ttft) else 0.0
    if share >= _WAITING_SHARE:
        bottleneck["binding"] = ENCODERS
        clause = f"Images waited for a worker of the encoder pool for {share:.0%} of the time to first tokens. "
        bottleneck["explanation"] = clause + bottleneck["explanation"]
