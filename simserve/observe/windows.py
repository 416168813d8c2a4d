"""What an engine did between two scrapes, in common terms for vLLM, SGLang and TensorRT-LLM.

A counter that falls was reset: it then shows what was counted since. Invalid figures (negative and infinite counters)
are left out and counted. Names and their sources: ``metric_names.yaml``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simserve.documents import read_mapping
from simserve.errors import InputError
from simserve.observe.scrapes import START, Sample, Scrape

ENGINES = {"vllm:": "vllm", "sglang:": "sglang", "trtllm_": "tensorrt-llm"}

_NAMES = read_mapping(Path(__file__).with_name("metric_names.yaml"))
COUNTERS, GAUGES, HISTOGRAMS, POSITIONS = (
    {what: tuple(names) for what, names in _NAMES[kind].items()}
    for kind in ("counters", "gauges", "histograms", "positions")
)
"""Measured quantity -> the engines' names for it, counters without ``_total``; of an engine's names the first one
present is used."""
_SUMMED = ("running", "waiting")  # Gauges that are added up over engines; others are averaged.
_MOST_COUNT = 2.0**53

Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(slots=True)
class Counts:
    """A histogram: the number of values in each bucket, and their sum."""

    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))
    """Upper bound -> values above the bound before it and up to this one."""
    total: float = 0.0  # Sum of the values.
    count: float = 0.0  # Number of values.

    @property
    def mean(self) -> float:
        """Mean of the values, NaN without any."""
        return self.total / self.count if self.count else math.nan

    def add(self, other: Counts) -> None:
        """Add the values of another."""
        for bound, count in other.buckets.items():
            self.buckets[bound] += count
        self.total += other.total
        self.count += other.count

    def bounds(self) -> NDArray[np.float64]:
        """Return upper bounds, ascending."""
        return np.array(sorted(self.buckets), dtype=np.float64)

    def values(self) -> NDArray[np.float64]:
        """Return the number of values in each bucket, in the order of `bounds`."""
        return np.array([self.buckets[bound] for bound in sorted(self.buckets)], dtype=np.float64)


@dataclass(slots=True)
class Window:
    """What happened between two scrapes."""

    start: float  # When it starts, seconds since 1970.
    end: float  # When it ends.
    counters: dict[str, float]  # Name -> how much it grew; missing names are not reported.
    gauges: dict[str, float]  # Name -> mean of its two ends.
    histograms: dict[str, Counts]  # Name -> values added.
    arrivals: float = math.nan  # Requests that arrived; NaN if not reported.

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Observed:
    """An engine over a period of time."""

    engine: str  # Its profile.
    model: str  # The model that it reports to serve; empty if it reports none.
    num_engines: int  # Engines counted together.
    about: Mapping[str, str]  # Labels of vLLM's ``cache_config_info``, and SGLang's ``max_total_num_tokens``.
    windows: Sequence[Window]
    """In order; for a single scrape one from the start of the server, if both times are known."""
    whole: Window  # Everything known: the windows together, or the counts of a single scrape since the start.
    is_single: bool  # Whether there is a single scrape.
    in_flight: float  # Requests in the system at the first scrape.
    num_resets: int  # Counters that fell.
    num_refused: int  # Invalid figures.

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens found in the prefix cache; NaN if not reported."""
        return hit_rate(self.whole)

    @property
    def rate(self) -> float:
        """Requests a second over the whole period; NaN if not reported."""
        return self.whole.arrivals / self.whole.seconds if self.whole.seconds > 0 else math.nan


def hit_rate(window: Window) -> float:
    """Return the share of prompt tokens found in the prefix cache; NaN if not reported."""
    queries = window.counters.get("queries", window.counters.get("prompt", 0.0) if "hits" in window.counters else 0.0)
    if queries:
        return min(window.counters.get("hits", 0.0) / queries, 1.0)
    return window.gauges.get("hit_rate", math.nan)


def mean_length(seen: Observed, name: str) -> float:
    """Return the mean of ``prompt_tokens`` or ``output_tokens`` by the counters; NaN if they report none."""
    tokens = seen.whole.counters.get({"prompt_tokens": "prompt", "output_tokens": "generated"}[name], math.nan)
    finished = seen.whole.counters.get("finished", 0.0)
    return tokens / finished if finished else math.nan


class _Series:
    """The figures of one scrape, by series; engines side by side are distinguished by their labels."""

    def __init__(self, scrape: Scrape) -> None:
        self.time = scrape.time
        self.values: dict[Key, float] = {}
        self.by_name: dict[str, list[Key]] = defaultdict(list)
        self.num_refused = 0
        for sample in scrape.samples:
            name = sample.name.replace("trtllm:", "trtllm_")
            if not 0 <= sample.value <= _MOST_COUNT:
                self.num_refused += 1
                continue
            key = (name.removesuffix("_total"), frozenset(sample.labels.items()))
            if key not in self.values:
                self.by_name[key[0]].append(key)
            self.values[key] = sample.value

    def name_of(self, names: Sequence[str], ending: str = "") -> str | None:
        """Return the first of an engine's names that is present."""
        return next((name for name in names if name + ending in self.by_name), None)

    def told(self) -> set[str]:
        """Return the counters and histograms that are reported."""
        counters = {what for what, names in COUNTERS.items() if self.name_of(names)}
        return counters | {what for what, names in HISTOGRAMS.items() if self.name_of(names, "_count")}

    def gauges(self) -> Iterator[tuple[str, float]]:
        """Yield the gauges that are reported."""
        for what, names in GAUGES.items():
            name = self.name_of(names)
            if name is not None:
                values = [self.values[key] for key in self.by_name[name]]
                yield what, sum(values) if what in _SUMMED else sum(values) / len(values)


class _Growth:
    """Growth from one scrape to the next, and the number of counters that fell."""

    def __init__(self) -> None:
        self.num_resets = 0

    def between(self, before: _Series | None, after: _Series) -> tuple[dict[str, float], dict[str, Counts]]:
        """Return the growth of counters and histograms; their full values if there is no earlier scrape."""
        counters: dict[str, float] = {}
        for what, names in COUNTERS.items():
            name = after.name_of(names)
            if name is not None:
                grown = [self._grown(before, after, key)[0] for key in after.by_name[name]]
                counters[what] = sum(grown)
        for what, names in POSITIONS.items():
            for key in after.by_name.get(after.name_of(names) or "", ()):
                place = f"{what}_{dict(key[1]).get('position', '')}"
                counters[place] = counters.get(place, 0.0) + self._grown(before, after, key)[0]
        histograms: dict[str, Counts] = {}
        for what, names in HISTOGRAMS.items():
            name = after.name_of(names, "_count")
            if name is not None:
                histograms[what] = self._counts(before, after, name)
        return counters, histograms

    def _grown(self, before: _Series | None, after: _Series, key: Key) -> tuple[float, bool]:
        """Return how much a series grew, and whether it was reset; a series that was not there before has not grown."""
        value = after.values[key]
        if before is None:
            return value, False
        old = before.values.get(key)
        if old is None:
            return 0.0, False
        if value < old:
            self.num_resets += 1
            return value, True
        return value - old, False

    def _counts(self, before: _Series | None, after: _Series, name: str) -> Counts:
        found = Counts()
        untold: set[frozenset[tuple[str, str]]] = set()
        whole: dict[frozenset[tuple[str, str]], tuple[float, bool]] = {}
        for key in after.by_name[f"{name}_count"]:
            grown, was_reset = self._grown(before, after, key)
            whole[key[1]] = grown, was_reset
            found.count += grown
            total = (f"{name}_sum", key[1])
            old = 0.0 if before is None or was_reset else before.values.get(total)
            if total in after.values and old is not None:
                found.total += max(after.values[total] - old, 0.0)
            elif grown:
                untold.add(key[1])
        cumulative: dict[frozenset[tuple[str, str]], dict[float, float]] = defaultdict(dict)
        for key in after.by_name.get(f"{name}_bucket", ()):
            labels = dict(key[1])
            bound = _bound(labels.pop("le", ""))
            group = frozenset(labels.items())
            if group not in whole or math.isnan(bound):
                continue
            old = 0.0 if before is None or whole[group][1] else before.values.get(key, after.values[key])
            cumulative[group][bound] = min(max(after.values[key] - old, 0.0), whole[group][0])
        for group, counts in cumulative.items():
            counts[math.inf] = whole[group][0]
            below, edge = 0.0, 0.0
            for bound in sorted(counts):
                count = max(counts[bound] - below, 0.0)
                found.buckets[bound] += count
                below = max(below, counts[bound])
                if group in untold:
                    # Without their sum, values are assumed in the middle of their buckets, in the open bucket at its
                    # edge.
                    found.total += count * (edge if math.isinf(bound) else (edge + bound) / 2)
                edge = bound
        if untold - cumulative.keys():
            found.total = math.nan
        return found


def observed(scrapes: Sequence[Scrape], where: object) -> Observed:
    """Return what scrapes show about an engine.

    Args:
        where: Name of the scrapes in errors.

    Raises:
        InputError: There are no metrics of an engine, or several scrapes without known times.
    """
    if not scrapes:
        raise InputError("holds no scrape", file=where)
    if len(scrapes) > 1 and (scrapes[0].time is None or scrapes[-1].time is None):
        remedy = "put '# scraped_at SECONDS' above each page, or seconds since 1970 into the files' names"
        raise InputError("holds several scrapes, and not when each was made", file=where, remedy=remedy)
    growth = _Growth()
    last = scrapes[0]
    first = before = _Series(last)
    num_refused = first.num_refused
    windows: list[Window] = []
    for scrape in scrapes[1:]:
        after = _Series(scrape)
        num_refused += after.num_refused
        if before.told() - after.told():
            # A truncated page, or one without numbers: what was counted meanwhile shows in the next one.
            continue
        windows.append(_window(growth, before, after))
        before, last = after, scrape
    is_single = len(scrapes) == 1
    if is_single:
        windows = [_since_start(growth, first, scrapes[0].samples)]
    if not windows:
        raise InputError("has no two scrapes that tell the same counters", file=where)
    whole = together(windows)
    about, num_engines = _about(last.samples)
    names = [sample.labels["model_name"] for sample in last.samples if sample.labels.get("model_name")]
    return Observed(
        engine=_engine(last.samples, where),
        model=next((name for name in names if name.isprintable() and len(name) <= 1_000), ""),
        num_engines=num_engines,
        about=about,
        windows=[] if is_single and not whole.seconds > 0 else windows,
        whole=whole,
        is_single=is_single,
        in_flight=sum(value for what, value in first.gauges() if what in _SUMMED),
        num_resets=growth.num_resets,
        num_refused=num_refused,
    )


def _window(growth: _Growth, before: _Series, after: _Series) -> Window:
    assert before.time is not None  # observed() refuses others
    assert after.time is not None
    counters, histograms = growth.between(before, after)
    old, new = dict(before.gauges()), dict(after.gauges())
    gauges = {what: (old.get(what, value) + value) / 2 for what, value in new.items()}
    window = Window(before.time, after.time, counters, gauges, histograms)
    known = [counters["finished"]] if "finished" in counters else []
    known += [histograms[name].count for name in ("e2e", "output_tokens") if name in histograms]
    if known:
        change = sum(new.get(what, 0.0) - old.get(what, 0.0) for what in _SUMMED)
        window.arrivals = max(known[0] + change, 0.0)
    elif "ttft" in histograms:
        window.arrivals = histograms["ttft"].count
    return window


def _since_start(growth: _Growth, only: _Series, samples: Sequence[Sample]) -> Window:
    """Return the counts of a single scrape, over the time since the server's start if both times are known."""
    counters, histograms = growth.between(None, only)
    starts = [sample.value for sample in samples if sample.name == START]
    end = only.time or 0.0
    start = starts[0] if starts and only.time is not None and 0 < starts[0] < end else end
    gauges = dict(only.gauges())
    window = Window(start, end, counters, gauges, histograms)
    finished = counters.get("finished", histograms["e2e"].count if "e2e" in histograms else math.nan)
    window.arrivals = finished + sum(gauges.get(what, 0.0) for what in _SUMMED)
    return window


def together(windows: Sequence[Window]) -> Window:
    """Return windows as one: counts are added up, gauges are means over time."""
    whole = Window(windows[0].start, windows[-1].end, {}, {}, {}, 0.0)
    weights: dict[str, float] = defaultdict(float)
    for window in windows:
        for what, count in window.counters.items():
            whole.counters[what] = whole.counters.get(what, 0.0) + count
        for what, value in window.gauges.items():
            weight = max(window.seconds, 1e-9)
            whole.gauges[what] = whole.gauges.get(what, 0.0) + value * weight
            weights[what] += weight
        for what, counts in window.histograms.items():
            whole.histograms.setdefault(what, Counts()).add(counts)
        whole.arrivals += window.arrivals
    for what, weight in weights.items():
        whole.gauges[what] /= weight
    return whole


def _about(samples: Sequence[Sample]) -> tuple[dict[str, str], int]:
    about: dict[str, str] = {}
    engines = set()
    for sample in samples:
        if sample.name == "vllm:cache_config_info":
            about = about or dict(sample.labels)
        elif sample.name == "sglang:max_total_num_tokens":
            about.setdefault("max_total_num_tokens", f"{sample.value:.0f}")
        if sample.name.replace("trtllm:", "trtllm_") in (*GAUGES["running"],):
            engines.add((sample.labels.get("instance", ""), sample.labels.get("engine", "")))
    return about, max(len(engines), 1)


def _engine(samples: Sequence[Sample], where: object) -> str:
    for sample in samples:
        for prefix, engine in ENGINES.items():
            if sample.name.replace("trtllm:", "trtllm_").startswith(prefix):
                return engine
    raise InputError("holds no metrics of vLLM, SGLang or TensorRT-LLM", file=where)


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
