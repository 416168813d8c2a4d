"""Fits DeepEP's expert all-to-all and states its errors, including those on left-out numbers of nodes.

Rerun on tables in the layout of NVIDIA's AIConfigurator (``<system>/comm/sglang/<version>/wideep_deepep_*.parquet``)::

    python -m calibration.laboratory.fits.exchange_fit FOLDER [SYSTEM]   # constants and error table, Markdown
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb
import numpy as np
from numpy.typing import NDArray

from calibration.laboratory.fits.collective_fit import LINKS, SOFT_ERROR
from simserve.calibrate.curve_regressor import soft_fit
from simserve.perf.collectives import (
    CURVES,
    EXCHANGING_MULTIPROCESSORS,
    ExchangeCurve,
    ExchangeLinks,
    ExchangeMode,
    dispatched_bytes,
    exchange_seconds,
)
from simserve.perf.efficiency import Array

Direction = Literal["dispatch", "combine"]

NETWORK = 50e9
"""Bytes/s per GPU between nodes: one 400 Gbit/s port."""

RANKS_PER_NODE, HIDDEN_SIZE, CHOSEN = 8, 7168, 8
"""Of the rows over several nodes: GPUs per node, width of DeepSeek-V3, experts per token."""

NODES: dict[ExchangeMode, tuple[int, ...]] = {"deepep_low_latency": (1, 2, 4, 8), "deepep_high_throughput": (1, 2, 4)}
"""Numbers of nodes that are fitted. High throughput over eight moves 22 GB/s a GPU where two and four move 39 to 47:
another regime, only in these tables, which constants of the links cannot describe; it stays in the error table."""

FIRST = np.array([1e-5, 1e-5, 1e-5, 0.5, 0.8])
"""Initial values of fits, in whose units constants are fitted."""
LEAST, MOST = np.array([0.0, 0.0, 0.0, 0.1, 0.06]), np.array([20.0, 20.0, 20.0, 2.0, 1.5])
"""Bounds in these units."""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Measured exchanges: nodes, tokens per rank and seconds, arrays over the calls."""

    num_nodes: Array
    tokens: Array
    seconds: Array

    def where(self, chosen: NDArray[np.bool_]) -> Exchanges:
        """Return some of them."""
        return Exchanges(self.num_nodes[chosen], self.tokens[chosen], self.seconds[chosen])


def read_exchanges(root: Path, system: str, mode: ExchangeMode, direction: Direction) -> Exchanges:
    """Return the rows of the newest table that holds several nodes; None if there is no such table."""
    kind = "ll" if mode == "deepep_low_latency" else "normal"
    seconds = f"{direction}_avg_t_us" if kind == "ll" else f"{direction}_transmit_us + {direction}_notify_us"
    only = "" if kind == "ll" else f"and dispatch_sms = {EXCHANGING_MULTIPROCESSORS[mode]}"
    query = (
        f"select node_num, num_token, {seconds} from read_parquet(?) "
        f"where hidden_size = {HIDDEN_SIZE} and num_topk = {CHOSEN} {only} order by all"
    )
    for path in sorted((root / system / "comm" / "sglang").glob(f"*/wideep_deepep_{kind}_perf.parquet"), reverse=True):
        rows = np.array(duckdb.connect().execute(query, [str(path)]).fetchall(), dtype=np.float64)
        if len(rows) and rows[:, 0].max() > 1:
            return Exchanges(rows[:, 0], rows[:, 1], rows[:, 2] * 1e-6)
    empty = np.zeros(0)
    return Exchanges(empty, empty, empty)


def predict(mode: ExchangeMode, direction: Direction, curve: ExchangeCurve, calls: Exchanges, link: float) -> Array:
    """Return the seconds that a curve gives for measured exchanges."""
    width = dispatched_bytes(HIDDEN_SIZE, element_bytes=1.0 if direction == "dispatch" else 2.0)
    seconds = np.empty(len(calls.seconds))
    for nodes in np.unique(calls.num_nodes):
        links = ExchangeLinks(
            num_ranks=int(nodes) * RANKS_PER_NODE,
            ranks_per_node=RANKS_PER_NODE,
            local_bandwidth=link,
            network_bandwidth=NETWORK,
        )
        rows = calls.num_nodes == nodes
        seconds[rows] = exchange_seconds(mode, curve, calls.tokens[rows], width, CHOSEN, links)
    return seconds


def fit(mode: ExchangeMode, direction: Direction, calls: Exchanges, link: float) -> ExchangeCurve:
    """Return the curve with the least soft-L1 relative error."""

    def curve(values: Array) -> ExchangeCurve:
        return ExchangeCurve(*(values * FIRST).tolist())

    found = soft_fit(
        lambda values: predict(mode, direction, curve(values), calls, link),
        calls.seconds,
        first=np.ones(len(FIRST)),
        low=LEAST,
        high=MOST,
        soft_error=SOFT_ERROR,
    )
    return curve(found.values)


def held_out_errors(mode: ExchangeMode, direction: Direction, calls: Exchanges, link: float) -> dict[int, Array]:
    """Return the relative errors on each number of nodes above one with constants fitted to the others."""
    fitted, errors = np.isin(calls.num_nodes, NODES[mode]), {}
    for nodes in np.unique(calls.num_nodes[calls.num_nodes > 1]):
        left_out = calls.num_nodes == nodes
        curve, rows = fit(mode, direction, calls.where(fitted & ~left_out), link), calls.where(left_out)
        errors[int(nodes)] = np.abs(predict(mode, direction, curve, rows, link) / rows.seconds - 1.0)
    return errors


def error_table(root: Path, system: str) -> str:
    """Return constants and errors as Markdown."""
    lines = ["| exchange | nodes left out | median % | p90 % | rows |", "|---|---|---|---|---|"]
    for mode, directions in CURVES.items():
        for direction in directions:
            calls = read_exchanges(root, system, mode, direction)
            for nodes, errors in held_out_errors(mode, direction, calls, LINKS[system]).items():
                median, far = 100 * float(np.median(errors)), 100 * float(np.quantile(errors, 0.9))
                lines.append(f"| {mode} {direction} | {nodes} | {median:.1f} | {far:.1f} | {len(errors)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Print the constants and the error table of one system."""
    root, system = Path(arguments[0]), arguments[1] if len(arguments) > 1 else "h100_sxm"
    for mode, directions in CURVES.items():
        for direction in directions:
            calls = read_exchanges(root, system, mode, direction)
            calls = calls.where(np.isin(calls.num_nodes, NODES[mode]))
            print(mode, direction, fit(mode, direction, calls, LINKS[system]))
    print(error_table(root, system))


if __name__ == "__main__":
    main(sys.argv[1:])
