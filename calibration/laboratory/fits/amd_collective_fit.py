"""Fits the all-reduce of engines on AMD GPUs to times published in pull requests, and states its errors.

Rerun, without any tables: ``python -m calibration.laboratory.fits.amd_collective_fit``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from calibration.laboratory.fits.collective_fit import ALL_REDUCE_RANGES, Calls, errors_of, fit
from simserve.perf.efficiency import COLLECTIVE_SHARE, Array
from simserve.profiles.kernel_curves import AllReduceCurve

KIB = 1024

TIMES: Mapping[tuple[int, float], Mapping[int, float]] = {
    (2, 48e9): {
        4: 7.07,
        8: 7.58,
        16: 7.53,
        32: 7.30,
        64: 7.66,
        128: 8.70,
        256: 11.45,
        512: 17.13,
        1024: 28.15,
        2048: 49.67,
        4096: 93.79,
        8192: 181.43,
        16384: 355.91,
    },
    (4, 48e9): {
        2: 7.18,
        16: 7.26,
        32: 7.58,
        256: 14.39,
        512: 14.65,
        1024: 22.91,
        2048: 36.64,
        4096: 63.86,
        8192: 118.31,
        16384: 230.48,
    },
    (8, 57.6e9): {24: 6.3, 48: 6.7, 96: 7.6, 192: 10.0, 384: 13.1, 768: 16.0, 1536: 24.2},
}
"""Ranks and bandwidth reached by a link between two of them (bytes/s) -> KiB of a message -> us of vLLM's all-reduce.

Two MI300X: ROCm/aiter pull request 801, column "vllm cr"; four: vLLM's 19744, before it; eight MI355X: vLLM's
pull request 39080, column of vLLM.
"""

PEER = 48e9
"""Bytes/s of the link between two MI300X, to which all messages here are converted."""

FIXED: Mapping[str, object] = {"engine": "vllm", "ring_start": 20e-6, "ring": COLLECTIVE_SHARE, "switch": None}
"""Values that no call reveals: RCCL takes over for longer messages, with the share of GPUs without a curve."""


def calls_of(ranks: tuple[int, ...] = (2, 4, 8)) -> Calls:
    """Return the calls over some numbers of ranks; messages are scaled to equal times over links of an MI300X."""
    rows = [
        (count, size * KIB * PEER / peer, us * 1e-6)
        for (count, peer), times in TIMES.items()
        if count in ranks
        for size, us in times.items()
    ]
    num_ranks, num_bytes, seconds = np.array(rows, dtype=np.float64).T
    return Calls(num_ranks, num_bytes / (num_ranks - 1), seconds)


def fit_all_reduce(calls: Calls) -> AllReduceCurve:
    """Return the curve with the least soft-L1 relative error."""
    curve = fit(AllReduceCurve, ALL_REDUCE_RANGES, calls, PEER, FIXED)
    assert isinstance(curve, AllReduceCurve)
    return curve


def errors(seen: tuple[int, ...], tested: tuple[int, ...]) -> Array:
    """Return predicted / measured - 1 of the calls above 10 us over some ranks, from a fit to others."""
    return errors_of(fit_all_reduce(calls_of(seen)), calls_of(tested), PEER)


def left_out() -> Array:
    """Return the errors of every call from a fit to the other numbers of ranks."""
    counts = tuple(count for count, _ in TIMES)
    return np.concatenate([errors(tuple(each for each in counts if each != left), (left,)) for left in counts])


def main() -> None:
    """Print the constants and their errors."""
    counts = tuple(count for count, _ in TIMES)
    print(fit_all_reduce(calls_of()))
    print(
        f"in sample {np.median(np.abs(errors(counts, counts))):.3f}, ranks left out {np.median(np.abs(left_out())):.3f}"
    )


if __name__ == "__main__":
    main()
