"""Fits TensorRT-LLM's expert all-to-all over NVLink and states its errors on left-out numbers of ranks.

Rerun on tables in the layout of NVIDIA's AIConfigurator (``gb200/comm/trtllm/*/trtllm_alltoall_perf.parquet``)::

    python -m calibration.laboratory.fits.nvlink_exchange_fit FOLDER   # constants and error table, Markdown

The tables spread the experts of a token evenly, so that a token goes to ``min(experts per token, ranks)`` ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray

from calibration.laboratory.fits.collective_fit import LINKS, SOFT_ERROR
from calibration.laboratory.fits.exchange_fit import CHOSEN, HIDDEN_SIZE, Direction
from simserve.calibrate.curve_regressor import soft_fit
from simserve.perf.collectives import COMBINED_BYTES, CURVES, ExchangeCurve, ExchangeMode, dispatched_bytes
from simserve.perf.efficiency import Array

SYSTEM = "gb200"
"""The system whose tables hold these kernels."""

KERNELS: dict[ExchangeMode, str] = {"nvlink_one_sided": "NVLinkOneSided", "nvlink_two_sided": "NVLinkTwoSided"}
"""Names in the tables."""

LEAST_RANKS: dict[ExchangeMode, int] = {"nvlink_one_sided": 2, "nvlink_two_sided": 8}
"""Least ranks of fitted rows: two-sided exchanges run with more ranks than a token has experts."""

ELEMENT_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5}
"""Bytes per element of a token on its way, by the format of the experts, without scales."""

FIRST = np.array([1e-5, 1e-6, 0.7])
"""Start, start per doubling of the ranks and share of NVLink: initial values of fits, and units of their constants."""
LEAST, MOST = np.array([0.0, 0.0, 0.1]), np.array([20.0, 20.0, 1.4])
"""Bounds in these units."""

_QUERY = """
with calls as (
    select op_name, moe_dtype, moe_ep_size, num_tokens, avg(latency) / 1e3 as seconds from read_parquet(?)
    where kernel_source = ? and hidden_size = ? and topk = ? group by all
)
select moved.moe_ep_size, moved.num_tokens, moved.moe_dtype, moved.seconds + coalesce(prepared.seconds, 0)
from calls as moved left join calls as prepared
    on prepared.op_name = 'alltoall_prepare' and moved.op_name = 'alltoall_dispatch'
    and (prepared.moe_dtype, prepared.moe_ep_size, prepared.num_tokens)
        = (moved.moe_dtype, moved.moe_ep_size, moved.num_tokens)
where moved.op_name = ? order by all
"""


@dataclass(frozen=True, slots=True)
class NvlinkCalls:
    """Measured exchanges: ranks, tokens per rank, bytes per token and seconds, arrays over the calls."""

    num_ranks: Array
    tokens: Array
    token_bytes: Array
    seconds: Array

    def where(self, chosen: NDArray[np.bool_]) -> NvlinkCalls:
        """Return some of them."""
        return NvlinkCalls(self.num_ranks[chosen], self.tokens[chosen], self.token_bytes[chosen], self.seconds[chosen])


def read_nvlink_exchanges(root: Path, mode: ExchangeMode, direction: Direction) -> NvlinkCalls:
    """Return the rows of the newest table, with the preparation of a dispatch counted in it; None if there is none."""
    tables = sorted((root / SYSTEM / "comm" / "trtllm").glob("*/trtllm_alltoall_perf.parquet"), reverse=True)
    rows: list[tuple[float, float, str, float]] = []
    if tables:
        asked = [str(tables[0]), KERNELS[mode], HIDDEN_SIZE, CHOSEN, f"alltoall_{direction}"]
        rows = duckdb.connect().execute(_QUERY, asked).fetchall()
    sizes = {name: dispatched_bytes(HIDDEN_SIZE, element_bytes=each) for name, each in ELEMENT_BYTES.items()}
    width = HIDDEN_SIZE * COMBINED_BYTES
    return NvlinkCalls(
        np.array([row[0] for row in rows], dtype=np.float64),
        np.array([row[1] for row in rows], dtype=np.float64),
        np.array([sizes[row[2]] if direction == "dispatch" else width for row in rows], dtype=np.float64),
        np.array([row[3] for row in rows], dtype=np.float64),
    )


def predict(curve: ExchangeCurve, calls: NvlinkCalls, link: float) -> Array:
    """Return the seconds that a curve gives for measured exchanges."""
    copies = np.minimum(CHOSEN, calls.num_ranks) * (1.0 - 1.0 / calls.num_ranks)
    start = curve.start + curve.start_per_doubling * np.log2(calls.num_ranks)
    return np.asarray(start + calls.tokens * copies * calls.token_bytes / (link * curve.local_share))


def fit(calls: NvlinkCalls, link: float) -> ExchangeCurve:
    """Return the curve with the least soft-L1 relative error."""

    def curve(values: Array) -> ExchangeCurve:
        start, doubling, share = (values * FIRST).tolist()
        return ExchangeCurve(start, 0.0, doubling, share, 0.0)

    found = soft_fit(
        lambda values: predict(curve(values), calls, link),
        calls.seconds,
        first=np.ones(len(FIRST)),
        low=LEAST,
        high=MOST,
        soft_error=SOFT_ERROR,
    )
    return curve(found.values)


def held_out_errors(mode: ExchangeMode, calls: NvlinkCalls, link: float) -> dict[int, Array]:
    """Return the relative errors on each number of ranks with constants fitted to the others."""
    errors, fitted = {}, calls.where(calls.num_ranks >= LEAST_RANKS[mode])
    for ranks in np.unique(fitted.num_ranks):
        left_out = fitted.num_ranks == ranks
        rows = fitted.where(left_out)
        errors[int(ranks)] = np.abs(predict(fit(fitted.where(~left_out), link), rows, link) / rows.seconds - 1.0)
    return errors


def error_table(root: Path) -> str:
    """Return the errors on left-out numbers of ranks as Markdown."""
    lines = ["| exchange | ranks left out | median % | p90 % | rows |", "|---|---|---|---|---|"]
    for mode in KERNELS:
        for direction in CURVES[mode]:
            calls = read_nvlink_exchanges(root, mode, direction)
            for ranks, errors in held_out_errors(mode, calls, LINKS[SYSTEM]).items():
                median, far = 100 * float(np.median(errors)), 100 * float(np.quantile(errors, 0.9))
                lines.append(f"| {mode} {direction} | {ranks} | {median:.1f} | {far:.1f} | {len(errors)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Print the constants and the error table."""
    root = Path(arguments[0])
    for mode in KERNELS:
        for direction in CURVES[mode]:
            calls = read_nvlink_exchanges(root, mode, direction)
            print(mode, direction, fit(calls.where(calls.num_ranks >= LEAST_RANKS[mode]), LINKS[SYSTEM]))
    print(error_table(root))


if __name__ == "__main__":
    main(sys.argv[1:])
