"""A deployment and its simulation side by side: the same hours, figure by figure, and a forecast."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve import rng
from simserve.errors import InfeasibleError, InputError, ScenarioError
from simserve.metrics.result import RunResult
from simserve.observe.windows import Counts, Observed, Window, hit_rate, mean_length, together
from simserve.planner.capacity.answer import capacity
from simserve.planner.importers.lengths import lengths_like
from simserve.planner.twin.drift import (
    CHANGE,
    FALSE_ALARM_SECONDS,
    Alarm,
    first_alarm,
    length_ratios,
    rate_ratios,
    threshold_of,
)
from simserve.planner.twin.forecast import SCORE_90, Hour, forecast
from simserve.profiles.engine_profile import load_engine
from simserve.scenario.resolve import resolve
from simserve.scenario.run import Progress, run
from simserve.scenario.schema import Scenario
from simserve.sim.records import COMPLETED
from simserve.units import format_seconds
from simserve.workload.arrival_spec import DailyArrivals, RampArrivals, SpikeArrivals, StepArrivals
from simserve.workload.distributions import rate_curve_of
from simserve.workload.generate import generate
from simserve.workload.spec import WorkloadSpec

Floats = NDArray[np.float64]
MOST_REPLAYED = 300_000  # Most requests that are simulated: the last ones. Tests of traffic see all windows.
JUMP = 3.0  # Multiple of the median number of requests in the engine from which its load counts as a jump.
HIT_RATE_POINTS = 0.03  # A prefix hit rate within this distance of the predicted one counts as inside.
_LATENCIES = {"ttft": "mean_ttft_ms", "tpot": "mean_tpot_ms", "itl": "mean_itl_ms", "e2e": "mean_e2el_ms"}
_TRAFFIC = ("rate", "prompt_tokens", "output_tokens")
_NUM_DRAWN = 50_000
_LENGTH_NAMES = {"prompt_tokens": "prompt lengths", "output_tokens": "answer lengths"}
_SHORTEST_BLOCK = 60.0
_NUM_BLOCKS = 60
_LONGEST_LEAD = 120.0
_FEWEST_WINDOWS = 4
_HOUR = 3600.0
_GAUGE_PREFIX = "simserve_twin_"


@dataclass(frozen=True, slots=True)
class Twin:
    """The answer."""

    summary: Mapping[str, Any]  # What ``--json`` prints.
    has_drifted: bool  # Whether a test of the traffic has an alarm, or a figure lies outside its interval.
    seen: Observed | None = None  # What was observed, for another look at the same hours.


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What a scenario says about its traffic."""

    lengths: Mapping[str, Floats]  # ``prompt_tokens`` and ``output_tokens`` -> lengths.
    rate: float  # Mean requests a second; NaN: clients in a closed loop, or all requests at once.
    gaps: Floats  # Times between arrivals, seconds.


def twin(
    seen: Observed,
    where: object,
    scenario: Scenario,
    *,
    horizon: float = 86_400.0,
    calibrate_for: float = 0.0,
    calibration: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Twin:
    """Return how a deployment compares with its simulation, and the replicas that it will need.

    Traffic is predicted by the scenario. Everything else is predicted by what the scenario's deployment does under the
    traffic that was observed, window by window.

    Args:
        seen: What was observed.
        where: Name of the observations in errors.
        scenario: What is believed to be deployed, and to arrive.
        horizon: How far to forecast, seconds; 0: no forecast.
        calibrate_for: Seconds at the beginning that tell by what factor this server's latencies differ from the
            simulated ones; later ones are compared with the simulation times that factor. Intervals keep their relative
            width. 0: no calibration.
        calibration: Calibration from another look at the same hours, to be used instead: that of the deployment as it
            is, for one that might be.
        progress: Called now and then.

    Raises:
        InputError: There are too few scrapes, nothing arrived, or the calibration leaves nothing to compare.
        InfeasibleError: The model does not fit.
    """
    if seen.is_single or len(seen.windows) < _FEWEST_WINDOWS:
        found = 1 if seen.is_single else len(seen.windows) + 1
        rule = f"holds {found} scrape{'' if found == 1 else 's'}; needs {_FEWEST_WINDOWS + 1}"
        remedy = "give the server's address and scrape for longer (--for 10min), or a folder of several saved pages"
        raise InputError(rule, file=where, remedy=remedy)
    if not seen.whole.arrivals > 0:
        raise InputError("tells of no request in this time", file=where)
    notes = _notes(seen, scenario)
    drawn = _drawn(scenario)
    most = max(window.arrivals for window in seen.windows)
    if most > MOST_REPLAYED:
        rule = f"tells of {most:,.0f} requests between two scrapes; {MOST_REPLAYED:,} can be simulated"
        raise InputError(rule, file=where, remedy="scrape more often, or one server of the fleet")
    windows, replayed = _replayed(seen, scenario, drawn, notes, progress)
    traffic, alarms = _traffic(seen, drawn, scenario)
    scales: dict[str, float] = {}
    if calibration is not None:
        scales, windows = calibration["factors"], [each for each in windows if each.start >= calibration["end_s"]]
    elif calibrate_for > 0:
        first, windows = _parted(windows, calibrate_for, where)
        scales = _scales(first, replayed)
    rows = {**traffic, **_system(windows, replayed, scales)}
    drift = {name: row["drift"] for name, row in rows.items()}
    if drift.get("output_tokens", {}).get("inside") is False and _has_jumped(seen.windows):
        notes.append(
            "Answers are counted when they end: where the load jumps, the short ones end first, and seem to be shorter."
        )
    stretch = {"start_s": seen.windows[0].start, "end_s": seen.windows[-1].end, "windows": len(seen.windows)}
    summary: dict[str, Any] = {
        "stretch": stretch,
        "observed": {name: row["observed"] for name, row in rows.items()},
        "predicted": {name: row["predicted"] for name, row in rows.items()},
        "drift": drift,
        "calibration": {"end_s": windows[0].start, "factors": scales} if scales else None,
        "formats": replayed.summary["simserve"]["formats"],
        "has_drifted": any(row["inside"] is False for row in drift.values()),
        "false_alarms": {"mean_days_between": FALSE_ALARM_SECONDS / 86_400, "alarms": len(alarms), "change": CHANGE},
        "per_replica_rate": None,
        "forecast": [],
        "series": _series(seen, windows, drawn, replayed, scenario, tuple(rows)),
        "notes": notes,
    }
    if horizon > 0:
        summary |= _forecast(seen, scenario, horizon, notes, progress)
    return Twin(summary, bool(summary["has_drifted"]), seen)


def _has_jumped(windows: Sequence[Window]) -> bool:
    """Return whether the number of requests in the engine was once several times its median."""
    held = [sum(window.gauges.get(name, 0.0) for name in ("running", "waiting")) for window in windows]
    return max(held) > JUMP * float(np.median(held)) > 0


def _notes(seen: Observed, scenario: Scenario) -> list[str]:
    notes = []
    engine = scenario.deployment.engine.name
    profile = load_engine(engine, scenario.folder)
    if seen.engine not in (profile.name, profile.base):
        notes.append(f"The metrics are those of {seen.engine}; the scenario has {engine}.")
    if seen.num_resets:
        notes.append(f"{seen.num_resets} counters fell, as of a server that was started again; what came since counts.")
    if seen.num_refused:
        notes.append(f"{seen.num_refused} figures are left out: they are negative or too large.")
    missing = [_LENGTH_NAMES[name] for name in _TRAFFIC[1:] if name not in seen.whole.histograms]
    if missing:
        has_means = not math.isnan(mean_length(seen, "output_tokens"))
        how = "their means are those of the counters" if has_means else "they are the scenario's, and not tested"
        flag = "; SGLang tells them with --enable-metrics --collect-tokens-histogram" if seen.engine == "sglang" else ""
        notes.append(f"No histogram of {' and '.join(missing)} is told: {how}{flag}.")
    if scenario.workload.classes or scenario.workload.sessions:
        notes.append("Metrics do not tell classes or sessions apart: the replay has neither.")
    return notes


def _drawn(scenario: Scenario) -> _Drawn:
    workload = scenario.workload
    if workload.trace is None:
        workload = workload.of_length(_NUM_DRAWN)
    with scenario.blaming("workload"):
        specs = generate(workload, seed=scenario.run.seed, replication=0, base_path=scenario.folder)
    rate = float(specs.offered_rate) if specs.concurrency is None and np.isfinite(specs.offered_rate) else math.nan
    times = np.asarray(specs.arrival_time, dtype=np.float64)
    lengths = {name: np.asarray(getattr(specs, name), dtype=np.float64) for name in ("prompt_tokens", "output_tokens")}
    return _Drawn(lengths, rate, np.diff(np.sort(times[np.isfinite(times)])))


def _replayed(
    seen: Observed, scenario: Scenario, drawn: _Drawn, notes: list[str], progress: Progress | None
) -> tuple[list[Window], _Replay]:
    """Return the windows that are simulated, and their simulation."""
    windows: list[Window] = []
    total = 0.0
    for window in reversed(seen.windows):
        total += window.arrivals
        if total > MOST_REPLAYED and windows:
            notes.append(f"The last {len(windows)} of {len(seen.windows)} windows are simulated.")
            break
        windows.insert(0, window)
    span = windows[-1].end - windows[0].start
    lead = min(_LONGEST_LEAD, span / 4) if seen.in_flight else 0.0
    text = _trace(windows, seen, lead, drawn, scenario.run.seed)
    spec = scenario.workload
    block: dict[str, Any] = {"trace": {"path": "", "format": "csv"}, "max_tokens": spec.max_tokens}
    if spec.shared_prefix is not None:
        block["shared_prefix"] = spec.shared_prefix.model_dump()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "observed.csv"
        path.write_text(text, encoding="utf-8")
        block["trace"]["path"] = str(path)
        workload = WorkloadSpec.model_validate(block)
        settings = scenario.run.model_copy(update={"replications": 1, "warmup": "none"})
        copy = scenario.model_copy(update={"workload": workload, "run": settings, "thresholds": {}})
        result = run(resolve(copy), progress=progress)
    return windows, _Replay(result, lead, windows[0].start)


def _trace(windows: Sequence[Window], seen: Observed, lead: float, drawn: _Drawn, seed: int) -> str:
    """Return the requests that came: in each window as many as were counted, with lengths in its proportions.

    Buckets are wide: within them lengths are distributed as in the scenario. A prompt is then as often shorter than a
    shared prefix as in the scenario.
    """
    shapes = {name: np.sort(lengths) for name, lengths in drawn.lengths.items()}
    generator = rng.stream(seed, "twin", 0)
    first = windows[0]
    stretches = [(0.0, lead, first.arrivals / first.seconds * lead, first)] if lead else []
    stretches += [(each.start - first.start + lead, each.seconds, each.arrivals, each) for each in windows]
    lines = ["arrival_time,prompt_tokens,output_tokens"]
    carried = 0.0
    for start, seconds, arrivals, window in stretches:
        carried += arrivals
        count = math.floor(carried + 0.5)
        carried -= count
        if count <= 0:
            continue
        times = start + np.sort(generator.random(count)) * seconds
        columns = [_lengths(window, seen, name, count, shape, generator) for name, shape in shapes.items()]
        lines += [f"{time:.6f},{prompt},{output}" for time, prompt, output in zip(times, *columns, strict=True)]
    return "\n".join(lines) + "\n"


def _lengths(
    window: Window, seen: Observed, name: str, count: int, shape: Floats, generator: np.random.Generator
) -> NDArray[np.int64]:
    counts = window.histograms.get(name)
    if counts is None or not counts.count:
        counts = seen.whole.histograms.get(name)
    if counts is not None and counts.count:
        return generator.permutation(lengths_like(counts, count, shape))
    # Without a histogram, lengths are distributed as in the scenario, around the counters' mean where there is one.
    mean = mean_length(seen, name)
    drawn = generator.choice(shape, count)
    scaled = drawn if math.isnan(mean) else drawn * (mean / shape.mean())
    return np.asarray(np.maximum(np.rint(scaled), 1), dtype=np.int64)


class _Replay:
    """The simulated hours, on the clock of the observed ones.

    Args:
        lead: Seconds of the run before the first window.
        start: When the first window begins.

    Attributes:
        scales: Factors of this server's latencies over the simulated ones, by name; those that are missing are 1.
    """

    def __init__(self, result: RunResult, lead: float, start: float) -> None:
        self.summary = result.summary
        self.scales: Mapping[str, float] = {}
        records = result.simulation.records
        self._shift = start - lead
        self._records = records
        done = records.status == COMPLETED
        more = np.maximum(records.output_tokens - 1, 0)
        rest = records.finish_time - records.first_token_time
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where(more > 0, rest / more, 0.0)
        first = records.first_token_time - records.arrival_time
        ended = np.where(done, records.finish_time, np.nan)
        self._values = {
            "ttft": (records.first_token_time, first, np.ones(len(done))),
            "tpot": (ended, tpot, np.ones(len(done))),
            "itl": (ended, rest, more.astype(np.float64)),
            "e2e": (ended, records.finish_time - records.arrival_time, np.ones(len(done))),
        }

    def mean(self, name: str, window: Window) -> tuple[float, float]:
        """Return the mean of a latency over what happened in a window, seconds, and its standard error."""
        times, values, weights = self._values[name]
        start, end = window.start - self._shift, window.end - self._shift
        is_in = (times >= start) & (times < end) & (weights > 0) & np.isfinite(values)
        if not is_in.any():
            return math.nan, math.nan
        weight = weights[is_in].sum()
        found = values[is_in] if name != "itl" else values[is_in] / weights[is_in]
        scale = self.scales.get(name, 1.0)
        mean = float((found * weights[is_in]).sum() / weight)
        return scale * mean, scale * float(found.std() / math.sqrt(is_in.sum()))

    def compared(self, name: str, window: Window) -> tuple[float, float, tuple[float, float]] | None:
        """Return a latency as observed and as predicted over a window, and where it is expected to lie, in seconds.

        That is within the model's error, plus chance on both sides. None where one of them is not known.
        """
        counts, factors = window.histograms.get(name), self.factors(name)
        predicted, error = self.mean(name, window)
        if counts is None or factors is None or math.isnan(counts.mean) or math.isnan(predicted):
            return None
        chance = SCORE_90 * math.sqrt(2) * error
        return counts.mean, predicted, (max(predicted * factors[0] - chance, 0.0), predicted * factors[1] + chance)

    def number(self, name: str, window: Window) -> float:
        """Return the mean number of requests that were ``running`` or ``waiting`` over a window."""
        records = self._records
        start, end = window.start - self._shift, window.end - self._shift
        pairs = {
            "running": (records.scheduled_time, records.finish_time),
            "waiting": (records.arrival_time, records.scheduled_time),
        }
        begins, ends = pairs[name]
        inside = np.clip(np.nan_to_num(ends, nan=end), start, end) - np.clip(np.nan_to_num(begins, nan=end), start, end)
        return float(np.maximum(inside, 0.0).sum() / max(end - start, 1e-9))

    def factors(self, name: str) -> tuple[float, float] | None:
        """Return the ends of a figure's prediction interval, divided by the figure."""
        figure = _LATENCIES[name]
        value, interval = self.summary[figure], self.summary["simserve"]["prediction_interval"]["metrics"].get(figure)
        return (interval[0] / value, interval[1] / value) if value and interval else None


def _row(
    observed: float, predicted: float, inside: bool | None, interval: tuple[float, float] | None = None, **more: Any
) -> dict[str, Any]:
    ratio = observed / predicted if predicted and math.isfinite(predicted) and math.isfinite(observed) else None
    ends = None if interval is None else list(interval)
    drift = {"ratio": ratio, "inside": inside, "interval": ends, "since_s": None}
    return {
        "observed": observed if math.isfinite(observed) else None,
        "predicted": predicted if math.isfinite(predicted) else None,
        "drift": drift | more,
    }


def _traffic(seen: Observed, drawn: _Drawn, scenario: Scenario) -> tuple[dict[str, dict[str, Any]], list[Alarm]]:
    """Return rate and lengths compared with the scenario's, and the alarms of their tests."""
    windows, whole = seen.windows, seen.whole
    threshold = threshold_of(whole.seconds / len(windows))
    rows: dict[str, dict[str, Any]] = {}
    alarms = []

    def add(name: str, observed: float, predicted: float, up: Floats, down: Floats) -> None:
        alarm = first_alarm(up, down, threshold)
        more: dict[str, Any] = {"flagged_s": None}
        if alarm is not None:
            alarms.append(alarm)
            more = {"since_s": windows[alarm.since].start, "flagged_s": windows[alarm.flagged].end}
        rows[name] = _row(observed, predicted, alarm is None, **more)

    expected, dispersion = _expected(seen, drawn, scenario)
    if expected is None:
        rows["rate"] = _row(seen.rate, math.nan, None, flagged_s=None)
    else:
        counts = np.array([window.arrivals for window in windows])
        ratios = [rate_ratios(counts, expected, factor, dispersion) for factor in (CHANGE, 1 / CHANGE)]
        add("rate", seen.rate, float(expected.sum()) / whole.seconds, ratios[0], ratios[1])
    for name in _TRAFFIC[1:]:
        counts_of = [window.histograms.get(name) for window in windows]
        if name not in whole.histograms and not math.isnan(mean := mean_length(seen, name)):
            rows[name] = _row(mean, float(drawn.lengths[name].mean()), None, flagged_s=None)
        if name in whole.histograms:
            ratios = [length_ratios(counts_of, drawn.lengths[name], factor) for factor in (CHANGE, 1 / CHANGE)]
            add(name, whole.histograms[name].mean, float(drawn.lengths[name].mean()), ratios[0], ratios[1])
    return rows, alarms


def _expected(seen: Observed, drawn: _Drawn, scenario: Scenario) -> tuple[Floats | None, float]:
    """Return the arrivals that the scenario expects in each window, and their variance divided by their mean.

    Rates that change start at the first scrape; those that follow the hours of the day, at midnight UTC.
    """
    windows = seen.windows
    arrivals = scenario.workload.arrivals
    if isinstance(arrivals, RampArrivals | StepArrivals | SpikeArrivals | DailyArrivals):
        curve = rate_curve_of(arrivals)
        origin = 0.0 if isinstance(arrivals, DailyArrivals) else windows[0].start
        sums = [curve.integral(window.end - origin) - curve.integral(window.start - origin) for window in windows]
        return np.array(sums), 1.0
    if math.isnan(drawn.rate):
        return None, 1.0
    length = float(np.median([window.seconds for window in windows]))
    times = np.cumsum(drawn.gaps)
    edges = np.arange(0.0, times[-1] if len(times) else 0.0, length)
    counts = np.histogram(times, edges)[0] if len(edges) > 20 else np.zeros(0)
    dispersion = float(counts.var() / counts.mean()) if len(counts) and counts.mean() > 0 else 1.0
    # Over this many windows, Poisson counts have at most this by chance.
    chance = 1 + 3 * math.sqrt(2 / max(len(counts), 1))
    return np.array([drawn.rate * window.seconds for window in windows]), dispersion if dispersion > chance else 1.0


def _parted(windows: list[Window], seconds: float, where: object) -> tuple[list[Window], list[Window]]:
    """Return the windows at the beginning, and those after them."""
    first = [each for each in windows if each.end <= windows[0].start + seconds]
    rest = windows[len(first) :]
    if min(len(first), len(rest)) < _FEWEST_WINDOWS:
        parts = f"{len(first)} scrapes to calibrate with and {len(rest)} after them"
        rule = f"holds {parts}; {_FEWEST_WINDOWS} of each are needed"
        raise InputError(rule, file=where, remedy="calibrate for another time, or scrape for longer")
    return first, rest


def _scales(windows: Sequence[Window], replay: _Replay) -> dict[str, float]:
    """Return the factor of each latency over the simulated one: observed / predicted."""
    whole, found = together(windows), {}
    for name in _LATENCIES:
        counts, (predicted, _) = whole.histograms.get(name), replay.mean(name, whole)
        if counts is not None and counts.count and counts.total > 0 and predicted > 0:
            found[name] = counts.mean / predicted
    return found


def _system(windows: Sequence[Window], replay: _Replay, scales: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return what the deployment did compared with its simulation, whose latencies are multiplied by ``scales``."""
    replay.scales = scales
    whole = together(windows)
    blocks = _blocks(windows)
    rows = {}
    for name in _LATENCIES:
        if (compared := replay.compared(name, whole)) is None:
            continue
        observed, predicted, (low, high) = compared
        inside = low <= observed <= high
        since = None if inside else _since(name, blocks, replay)
        rows[f"{name}_ms"] = _row(observed * 1e3, predicted * 1e3, inside, (low * 1e3, high * 1e3), since_s=since)
    of = {"running": "e2e", "waiting": "ttft"}
    for name, latency in of.items():
        if name in whole.gauges:
            predicted = replay.number(name, whole) * scales.get(latency, 1.0)
            observed = whole.gauges[name]
            factors = replay.factors(latency)
            ends = None if factors is None else (predicted * factors[0], predicted * factors[1])
            # Below one request the gauge says little, since it is seen only at scrapes.
            is_inside = None if ends is None or max(observed, predicted) < 1 else ends[0] <= observed <= ends[1]
            rows[name] = _row(observed, predicted, is_inside, ends)
    inner = replay.summary["simserve"]["kv"]
    if "kv_usage" in whole.gauges:
        rows["kv_usage"] = _row(whole.gauges["kv_usage"], _float(inner["usage_mean"]), None)
    if not math.isnan(hit_rate(whole)):
        predicted, observed = _float(inner["prefix_hit_rate"], 0.0), hit_rate(whole)
        ends = (max(predicted - HIT_RATE_POINTS, 0.0), min(predicted + HIT_RATE_POINTS, 1.0))
        rows["prefix_hit_rate"] = _row(observed, predicted, ends[0] <= observed <= ends[1], ends)
    if "preemptions" in whole.counters:
        rows["preemptions"] = _row(whole.counters["preemptions"], _float(inner["preemptions"], 0.0), None)
    return rows


def _float(value: Any, other: float = math.nan) -> float:
    return other if value is None else float(value)


def _blocks(windows: Sequence[Window]) -> list[Window]:
    """Return windows joined into blocks that are long enough for a mean."""
    length = max(_SHORTEST_BLOCK, (windows[-1].end - windows[0].start) / _NUM_BLOCKS)
    found, part = [], []
    for window in windows:
        part.append(window)
        if window.end - part[0].start >= length:
            found.append(together(part))
            part = []
    return found + ([together(part)] if part else [])


def _whole(blocks: list[Window]) -> list[Window]:
    """Return blocks without a last one that is cut short: a mean of so few requests says nothing."""
    return blocks[:-1] if len(blocks) > 1 and blocks[-1].seconds < blocks[0].seconds / 2 else blocks


def _since(name: str, blocks: Sequence[Window], replay: _Replay) -> float | None:
    """Return since when a latency has been outside its interval; None: in no block.

    That is the beginning of the stretch in which it is furthest outside: the one with the largest sum of the logarithms
    of the blocks' means over the end that they pass, as Page dates a change by the last time that his sum was 0. One
    block outside, long before, is not the beginning.
    """
    onset, best, since, running = None, 0.0, None, 0.0
    for block in blocks:
        if (compared := replay.compared(name, block)) is None:
            continue
        observed, _, (low, high) = compared
        beyond = max(math.log(observed / high), math.log(max(low, 1e-12) / observed)) if observed > 0 else 0.0
        if running <= 0.0:
            onset, running = block.start, 0.0
        running += beyond
        if running > best:
            since, best = onset, running
    return since


def _series(
    seen: Observed, windows: Sequence[Window], drawn: _Drawn, replay: _Replay, scenario: Scenario, names: Sequence[str]
) -> dict[str, dict[str, list[float | None]]]:
    """Return each figure block by block: its end, what was observed and predicted, and the ends of the interval.

    Intervals of rate and lengths cover chance alone (90 %); those of latencies are prediction intervals, as in
    `_since`.
    """
    found: dict[str, dict[str, list[float | None]]] = {}

    def add(name: str, end: float, *values: float) -> None:
        of_figure = found.setdefault(name, {key: [] for key in ("end_s", "observed", "predicted", "low", "high")})
        for key, value in zip(of_figure, (end, *values), strict=True):
            of_figure[key].append(value if math.isfinite(value) else None)

    expected, dispersion = _expected(seen, drawn, scenario)
    for block in _whole(_blocks(seen.windows)):
        if expected is not None:
            times = np.array([seen.windows[0].start, *(window.end for window in seen.windows)])
            sums = np.concatenate([[0.0], np.cumsum(expected)])
            arrivals = float(np.interp(block.end, times, sums) - np.interp(block.start, times, sums))
            spread = SCORE_90 * math.sqrt(dispersion * arrivals)
            ends = (max(arrivals - spread, 0.0), arrivals + spread)
            values = (block.arrivals, arrivals, *ends)
            add("rate", block.end, *(value / block.seconds for value in values))
        for name in _TRAFFIC[1:]:
            counts, lengths = block.histograms.get(name), drawn.lengths[name]
            if counts is not None and counts.count:
                mean, spread = float(lengths.mean()), SCORE_90 * float(lengths.std()) / math.sqrt(counts.count)
                add(name, block.end, counts.mean, mean, max(mean - spread, 0.0), mean + spread)
    for block in _whole(_blocks(windows)):
        for name in _LATENCIES:
            if (compared := replay.compared(name, block)) is not None:
                observed, predicted, ends = compared
                add(f"{name}_ms", block.end, *(1e3 * value for value in (observed, predicted, *ends)))
        for name in ("running", "waiting"):
            if name in block.gauges:
                add(name, block.end, block.gauges[name], replay.number(name, block), math.nan, math.nan)
    return {name: found[name] for name in names if name in found}


def _forecast(
    seen: Observed, scenario: Scenario, horizon: float, notes: list[str], progress: Progress | None
) -> dict[str, Any]:
    seconds = seen.whole.seconds
    length = _HOUR if seconds >= 6 * _HOUR else max(seconds / 12, 1.0)
    times = np.array([seen.windows[0].start, *(window.end for window in seen.windows)])
    sums = np.concatenate([[0.0], np.cumsum([window.arrivals for window in seen.windows])])
    count = max(int((times[-1] - times[0]) / length + 1e-9), 1)
    edges = times[-1] - length * np.arange(count, -1, -1)
    rates = np.asarray(np.diff(np.interp(edges, times, sums)) / length, dtype=np.float64)
    known = min(horizon, max(seconds, _HOUR))
    hours, is_seasonal = forecast(rates, length, horizon=horizon, step=min(_HOUR, horizon))
    if not is_seasonal:
        shorter = "" if known == horizon else f", for no longer than {format_seconds(known)}"
        hours = [hour for hour in hours if hour.start < known]
        notes.append(f"Less than two days were seen: the forecast is one level, not hour by hour{shorter}.")
    per_replica = _per_replica(seen, scenario, notes, progress)
    rows = [_hour(hour, seen.windows[-1].end, per_replica) for hour in hours]
    return {"per_replica_rate": per_replica, "forecast": rows, "notes": notes}


def _hour(hour: Hour, end: float, per_replica: float | None) -> dict[str, Any]:
    replicas = None if not per_replica else max(math.ceil(hour.high / per_replica), 1)
    return {"start_s": end + hour.start, "rate": hour.rate, "low": hour.low, "high": hour.high, "replicas": replicas}


def _behind(counts: Counts, tokens: int) -> Counts:
    """Return the lengths of what follows a prefix of ``tokens`` tokens."""
    found = Counts(total=max(counts.total - tokens * counts.count, counts.count), count=counts.count)
    for bound, count in counts.buckets.items():
        found.buckets[max(bound - tokens, 1.0)] += count
    return found


def _per_replica(seen: Observed, scenario: Scenario, notes: list[str], progress: Progress | None) -> float | None:
    """Return the most that one replica can sustain within the SLO, with the observed lengths; None: not known."""
    if scenario.slo is None:
        notes.append(
            "How many replicas are needed is not known: the scenario has no slo (--set 'slo={ttft: 1 s, tpot: 50 ms}')."
        )
        return None
    if scenario.deployment.pools or scenario.deployment.autoscaling is not None:
        notes.append("How many replicas are needed is said only of a deployment without pools and autoscaling.")
        return None
    from simserve.planner.importers.lengths import fitted_block

    block: dict[str, Any] = {"arrivals": {"process": "poisson", "rate": max(seen.rate, 0.01)}, "num_requests": 2_000}
    for name in _TRAFFIC[1:]:
        counts, own = seen.whole.histograms.get(name), getattr(scenario.workload, name)
        if counts is not None and counts.count:
            block[name] = fitted_block(counts)[0]
        elif own is not None:
            block[name] = own.model_dump()
        else:
            notes.append(
                f"How many replicas are needed is not known: neither the metrics nor the scenario tell {name}."
            )
            return None
    if scenario.workload.shared_prefix is not None and "prompt_tokens" in seen.whole.histograms:
        # A scenario counts the prompt after the prefix; a server counts both.
        shared = scenario.workload.shared_prefix
        block["shared_prefix"] = shared.model_dump()
        block["prompt_tokens"] = fitted_block(_behind(seen.whole.histograms["prompt_tokens"], shared.tokens))[0]
    deployment = scenario.deployment.model_copy(update={"replicas": 1})
    copy = scenario.model_copy(
        update={"workload": WorkloadSpec.model_validate(block), "deployment": deployment, "thresholds": {}}
    )
    report = None if progress is None else lambda done, total: progress(done, round(total))
    try:
        found = capacity(copy, replications=2, num_requests=5_000, progress=report)
    except (InfeasibleError, ScenarioError) as failure:
        notes.append(f"How many replicas are needed is not known: {failure}.")
        return None
    value = found.found.largest.value
    return float(value) if value else None


def gauges_of(summary: Mapping[str, Any]) -> str:
    """Return a twin's summary as text, without figures that are undefined.

    ``observed``, ``predicted`` and ``inside`` have a label ``figure``; ``inside`` is 1 where a figure is as predicted.
    ``drifted`` is 1 where any is not. ``stretch_end_seconds`` is the time of the last scrape, seconds since 1970.
    """
    drift = summary["drift"]
    inside = {name: row["inside"] for name, row in drift.items()}
    hours = summary["forecast"]
    lines = [
        *_by_figure("observed", "What the engine's metrics tell.", summary["observed"]),
        *_by_figure("predicted", "What the simulation says.", summary["predicted"]),
        *_by_figure("inside", "1: as predicted, 0: outside.", inside),
        *_single("drifted", "1: a figure is outside, or the traffic has changed.", summary["has_drifted"]),
        *_single("stretch_end_seconds", "Time of the last scrape, since 1970.", summary["stretch"]["end_s"]),
        *_single("replica_rate", "Requests/s that one replica sustains.", summary["per_replica_rate"]),
        *_single("next_hour_rate", "Requests/s forecast for the next hour.", hours[0]["rate"] if hours else None),
        *_single("next_hour_replicas", "Replicas that it needs.", hours[0]["replicas"] if hours else None),
    ]
    return "\n".join(lines) + "\n"


def _by_figure(name: str, about: str, values: Mapping[str, float | None]) -> Iterator[str]:
    yield from _head(name, about)
    for figure, value in values.items():
        if value is not None:
            yield f'{_GAUGE_PREFIX}{name}{{figure="{figure}"}} {float(value)!r}'


def _single(name: str, about: str, value: float | None) -> Iterator[str]:
    if value is not None:
        yield from _head(name, about)
        yield f"{_GAUGE_PREFIX}{name} {float(value)!r}"


def _head(name: str, about: str) -> Iterator[str]:
    yield f"# HELP {_GAUGE_PREFIX}{name} {about}"
    yield f"# TYPE {_GAUGE_PREFIX}{name} gauge"
