"""Scores: errors, whether ranges cover, whether choices are right, and what a wrong one costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from benchmarks.exam.rows import Key, Prediction, Row

APART = 0.03
"""Measured throughputs that are nearer to each other than this are no pair to be put in order."""
LIMITS = (15.0, 25.0, 40.0, 60.0)
"""Limits on TPOT, ms, under which a configuration is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a simulator reaches on some rows; None: it cannot be said.

    Attributes:
        rows: Rows that count.
        errors: ``ttft`` or ``tpot`` -> median, mean, 90th percentile of the absolute error, and the median error.
        coverage: ``ttft`` or ``tpot`` -> share of measurements inside the 90 % range.
        engines: Share of pairs of engines, else alike, whose tokens/s a GPU are in the right order; and pairs.
        layouts: The same of parallel layouts of one engine.
        kept: Measured tokens/s a GPU of its choices under a limit on TPOT, over those of the best ones; and choices.
        broken: Share of these choices that do not hold the limit when measured.
    """

    rows: int
    errors: Mapping[str, tuple[float, float, float, float]]
    coverage: Mapping[str, float | None]
    engines: tuple[float | None, int]
    layouts: tuple[float | None, int]
    kept: tuple[float | None, int]
    broken: float | None


def scores(rows: Mapping[Key, Row], said: Mapping[Key, Prediction], keys: Iterable[Key]) -> Scores:
    """Return the scores of one simulator.

    Args:
        rows: The measurements.
        said: Its predictions.
        keys: Rows that count; it has a figure for each of them.
    """
    chosen = [key for key in keys if key in rows]
    pairs = [(rows[key], said[key]) for key in chosen]
    engines = _order(pairs, lambda row: (*_same(row), row.clients, row.gpus), lambda row: row.engine)
    layouts = _order(pairs, lambda row: (*_same(row), row.engine, row.clients / row.gpus), lambda row: row.layout)
    kept, broken = _choices(pairs)
    return Scores(
        rows=len(chosen),
        errors={name: _errors(pairs, name) for name in ("tpot", "ttft")},
        coverage={name: _coverage(pairs, name) for name in ("tpot", "ttft")},
        engines=engines,
        layouts=layouts,
        kept=(fmean(kept) if kept else None, len(kept)),
        broken=broken,
    )


def throughput(row: Row, ttft: float, tpot: float) -> float:
    """Return output tokens/s a GPU of a closed loop whose requests take such times, milliseconds."""
    return row.clients * row.output / ((ttft + tpot * (row.output - 1)) / 1e3) / row.gpus


def _same(row: Row) -> tuple[object, ...]:
    return row.model, row.hardware, row.precision, row.prompt, row.output


def _errors(pairs: Sequence[tuple[Row, Prediction]], name: str) -> tuple[float, float, float, float]:
    found = [getattr(said, name) / getattr(row, name) - 1 for row, said in pairs]
    sizes = [abs(each) for each in found]
    if len(sizes) < 2:
        return (math.nan,) * 4
    return median(sizes), fmean(sizes), quantiles(sizes, n=10)[-1], median(found)


def _coverage(pairs: Sequence[tuple[Row, Prediction]], name: str) -> float | None:
    ranges = [(getattr(row, name), *getattr(said, f"{name}_range")) for row, said in pairs]
    inside = [low <= value <= high for value, low, high in ranges if not math.isnan(low)]
    return fmean(inside) if inside else None


def _order(
    pairs: Sequence[tuple[Row, Prediction]],
    same: Callable[[Row], tuple[object, ...]],
    differs: Callable[[Row], str],
) -> tuple[float | None, int]:
    """Return the share of pairs, alike but in one thing, that are put in the order of measured tokens/s a GPU."""
    right = []
    for group in _grouped(pairs, same).values():
        for (row, said), (other, there) in itertools.combinations(group, 2):
            measured = throughput(row, row.ttft, row.tpot) / throughput(other, other.ttft, other.tpot)
            if differs(row) == differs(other) or abs(math.log(measured)) < APART:
                continue
            predicted = throughput(row, said.ttft, said.tpot) / throughput(other, there.ttft, there.tpot)
            right.append((measured > 1) == (predicted > 1))
    return (fmean(right) if right else None), len(right)


def _choices(pairs: Sequence[tuple[Row, Prediction]]) -> tuple[list[float], float | None]:
    """Return what choices under limits on TPOT keep of the best, and the share of them that break their limit."""
    kept, broken = [], []
    for group in _grouped(pairs, _same).values():
        for limit in LIMITS:
            fits = [row for row, _ in group if row.tpot <= limit]
            said = [(row, each) for row, each in group if each.tpot <= limit]
            if len({(row.engine, row.layout) for row, _ in group}) < 2 or not fits or not said:
                continue
            best = max(throughput(row, row.ttft, row.tpot) for row in fits)
            row, _ = max(said, key=lambda pair: throughput(pair[0], pair[1].ttft, pair[1].tpot))
            # Who is late serves fewer clients: the fastest row of its layout that fits counts.
            alike = [each for each in fits if (each.engine, each.layout) == (row.engine, row.layout)]
            there = max((throughput(each, each.ttft, each.tpot) for each in alike), default=0.0)
            broken.append(row.tpot > limit)
            kept.append((throughput(row, row.ttft, row.tpot) if row.tpot <= limit else there) / best)
    return kept, (fmean(broken) if broken else None)


def _grouped(
    pairs: Sequence[tuple[Row, Prediction]], same: Callable[[Row], tuple[object, ...]]
) -> dict[tuple[object, ...], list[tuple[Row, Prediction]]]:
    found: dict[tuple[object, ...], list[tuple[Row, Prediction]]] = {}
    for row, said in pairs:
        found.setdefault(same(row), []).append((row, said))
    return found
