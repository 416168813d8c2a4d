"""Expected errors of the simulator on servers without a calibration: the model of errors, a server's place in it, and
the resulting intervals of a run's figures.

An error is ``log(predicted / measured)``. For a source that was left out it is assumed to be ``center + scale * z``.
Servers that nobody looked at while the simulator was built have a center of their own: what is unknown about them
mostly takes time, so that they are slower than simulated. So do mixtures of experts, whose tokens are routed unevenly
and through kernels of which fewer were measured. The scale is ``exp`` of a few features of the deployment and its load.
The quantiles of ``|z|`` are those over measured sources, each counted once (split conformal prediction with the source
as the unit: Dunn, Wasserman and Ramdas, "Distribution-free prediction sets for two-layer hierarchical models", JASA
118, 2023). Knows figures by name; neither how servers were measured nor how a run is made.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from simserve.errors import InvariantError
from simserve.profiles import catalog
from simserve.profiles.engine_options import version_key
from simserve.profiles.engine_profile import load_engine
from simserve.validation import FrozenModel, read_valid

FILE = "calibration/expected_errors.json"

CALIBRATED_FILE = "calibration/calibrated_errors.json"

FEWEST_CALIBRATED_RUNS = 2
"""Least calibrated loads for the errors of calibrated servers to apply, which were calibrated on two."""

LEVEL = 0.9  # Intended share of uncalibrated servers inside an interval.
Interval = tuple[float, float]

_Read = TypeVar("_Read", bound=FrozenModel)

STATISTICS = ("mean", "median", "p90", "p95", "p99")

RATES = ("request_throughput", "output_throughput", "total_token_throughput")

DOLLARS = ("usd_per_million_output_tokens", "usd_per_million_tokens")
"""Figures of ``simserve.cost`` that fall as throughput rises."""

QUEUED = ("ttft_ms", "e2el_ms")  # Latencies that include the wait for a seat.

LATENCY_ERRORS: Mapping[str, tuple[str, ...]] = {
    "ttft_ms": ("ttft",),
    "tpot_ms": ("tpot",),
    "itl_ms": ("tpot",),
    "e2el_ms": ("ttft", "tpot"),
}
"""Latency, as named in results -> the metrics whose errors apply to it."""

CONCURRENCY_BANDS = (4, 16, 64, 256)  # Upper ends of the bands of concurrency, inclusive.
FLOORS: Mapping[str, float] = {"tpot": 0.02, "ttft": 0.05, "throughput": 0.02}
"""Metric -> least half-width of a 90 % interval, in logarithms: repeated measurements of the same server differ by this
much (InferenceX and MLPerf repeat TPOT within 1 to 3 %)."""

FLOOR_OF_HALF = 0.41  # Least half-width at 50 % as a share of that: 0.674 / 1.645, as for a normal error.
NARROWEST_RATIO = 1.01
"""Least ratio of the 90 % half-width to the 50 % one: two equal quantiles define no distribution."""

LARGEST_LOG = 600.0  # Largest logarithm of a factor: more does not fit in a float.
BURST_SHARE, BURST_REQUESTS = 0.3, 16
"""A burst: more than this share of the requests in the first instant, and more than this number in flight."""

MANY_CLIENTS = 500.0  # Requests in flight at which the feature ``clients``, a logarithm, is 1.
MOST_MEASURED_GPUS = 8  # GPUs of the largest measured replica, other than separate pools.
BEYOND = math.log(2.0)
"""Increase of the logarithm of the scale per doubling of GPUs beyond the measured ones, and for a mechanism that no
source measured. An assumption, as nothing was measured there."""

SPECULATION = "servers that decode speculatively"
"""A mechanism whose errors a user's own loads do not reveal: the share of accepted drafts depends on the text."""

ALONE = ", of which only throughput is known"  # End of the basis text for servers without published latencies.
FEATURES = ("constant", "burst", "host", "served", "clients", "far_family", "far_engine", "far_mechanism", "unexamined")
"""Features in which the logarithm of the scale is linear, see `features`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A deployment under a load, as described to the model of errors."""

    generation: str  # Engine and generation: ``vllm from 0.8``.
    hardware: str  # GPU, by its catalogue name.
    has_experts: bool  # Whether the model is a mixture of experts.
    num_gpus: int = 1  # GPUs per replica.
    is_served: bool = True
    """Whether requests come through the engine's server, not from a batch in the engine's own process."""
    has_pools: bool = False  # Whether prefill and decode have separate replicas.
    in_flight: float = 1.0  # Mean number of requests in a replica; NaN: unknown.
    at_once: float = 0.0  # Share of the requests that arrived in the first instant.
    host: float = 0.0  # Share of the step time that is host work.
    mechanism: str = ""  # An unusual mechanism of the server, in words; empty: none.
    calibrated_runs: int = 0  # Loads of this deployment on which its engine profile was calibrated; 0: none.
    calibrated_date: str = ""  # When they were measured, if the profile says so.
    own_errors: Mapping[str, float] = field(default_factory=dict)
    """Metric -> half-width of the interval that holds `LEVEL` of its errors at those loads, in logarithms."""

    @property
    def family(self) -> tuple[str, str, bool]:
        """Engine generation, GPU, and whether there are experts."""
        return self.generation, self.hardware, self.has_experts

    @property
    def is_burst(self) -> bool:
        """Whether many requests arrive in one instant."""
        return self.is_served and self.at_once > BURST_SHARE and self.in_flight > BURST_REQUESTS

    @property
    def num_beyond(self) -> float:
        """Doublings of GPUs beyond the measured replicas."""
        return max(math.log2(self.num_gpus / MOST_MEASURED_GPUS), 0.0)

    @property
    def is_larger(self) -> bool:
        """Whether no measured replica has this many GPUs; separate pools were measured with more."""
        return self.num_gpus > MOST_MEASURED_GPUS and not self.has_pools


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a server is from what other sources measured."""

    is_family_known: bool  # Its engine generation, GPU and class of model in combination.
    is_engine_known: bool  # Its engine generation, on any GPU.
    is_hardware_known: bool = True  # Its GPU, under any engine.
    is_mechanism_known: bool = True  # Its mechanism and number of GPUs; true without an unusual mechanism.
    is_mechanism_measured: bool = True  # Its mechanism, by any source including its own.
    is_examined: bool = False
    """Whether its own figures were known while the simulator was built: those of the measured sources were, those of
    the unseen reports and of all other servers were not."""

    @property
    def group(self) -> str:
        """One of `GROUPS`."""
        if self.is_family_known:
            return "known family"
        is_all_known = self.is_engine_known and self.is_hardware_known and self.is_mechanism_known
        return "known engine" if is_all_known else "foreign"


GROUPS = ("known family", "known engine", "foreign")

CALIBRATED = "calibrated"  # Group of servers whose engine profile was calibrated on their own measurements.


def features(server: Server, distance: Distance) -> tuple[float, ...]:
    """Return the values of `FEATURES`."""
    in_flight = 1.0 if math.isnan(server.in_flight) else max(server.in_flight, 1.0)
    return (
        1.0,
        float(server.is_burst),
        server.host,
        float(server.is_served),
        math.log(in_flight) / math.log(MANY_CLIENTS) if server.is_served else 0.0,
        float(not distance.is_family_known),
        float(not distance.is_engine_known),
        float(not distance.is_mechanism_known),
        float(not distance.is_examined),
    )


class MetricErrors(FrozenModel):
    """The model of one metric's error."""

    center: float
    """Median of ``log(predicted / measured)`` of dense models on servers that nobody looked at; above 0, the simulator
    predicts too much."""
    examined_center: float
    """The same for sources whose figures were known while the simulator was built."""
    experts_center: float
    """For mixtures of experts, on servers that nobody looked at."""
    examined_experts_center: float
    """For mixtures of experts, sources whose figures were known."""
    log_scale: dict[str, float]
    """Feature -> its contribution to the logarithm of the scale."""
    p50: float = Field(gt=0)
    """Median of absolute error over scale, for servers that nobody looked at."""
    examined_p50: float = Field(gt=0)
    """The same for sources whose figures were known."""
    p90: float = Field(gt=0)
    """90th percentile of absolute error over scale, for servers that nobody looked at."""
    examined_p90: float = Field(gt=0)
    """The same for sources whose figures were known."""
    constant_center: float
    """Median of all errors, the center of one interval for every server."""
    constant_90: float = Field(gt=0)
    """Half-width of that 90 % interval, for comparison."""
    sources: int = Field(ge=1)
    """Number of sources, each counted once."""
    figures: int = Field(ge=1)
    """Number of measured figures."""

    def center_of(self, *, has_experts: bool, is_examined: bool) -> float:
        """Return the median of ``log(predicted / measured)`` for a class of model and a kind of source."""
        if has_experts:
            return self.examined_experts_center if is_examined else self.experts_center
        return self.examined_center if is_examined else self.center

    def half_widths(self, metric: str, server: Server, distance: Distance) -> tuple[float, float]:
        """Return half the widths of the 50 % and 90 % intervals, in logarithms."""
        values = zip(FEATURES, features(server, distance), strict=True)
        scale = math.exp(sum(self.log_scale.get(name, 0.0) * value for name, value in values))
        beyond = math.exp(BEYOND * (server.num_beyond + float(not distance.is_mechanism_measured)))
        floor = FLOORS[metric]
        kind = (self.examined_p50, self.examined_p90) if distance.is_examined else (self.p50, self.p90)
        return (max(kind[0] * scale, floor * FLOOR_OF_HALF) * beyond, max(kind[1] * scale, floor) * beyond)


class Family(FrozenModel):
    """What was measured for one engine generation, GPU and class of model."""

    engine: str
    """Engine and generation: ``vllm from 0.8``."""
    hardware: str
    """GPU, by its catalogue name."""
    has_experts: bool
    """Whether the models are mixtures of experts."""
    servers: dict[str, int]
    """Metric -> number of measured servers."""
    sources: tuple[str, ...]
    """Their sources."""


def distance_of(
    server: Server,
    families: Sequence[Family],
    mechanisms: Mapping[str, Sequence[str]],
    without: Collection[str],
    *,
    is_examined: bool,
) -> Distance:
    """Return how far a server is from what was measured.

    Args:
        families: What was measured.
        mechanisms: Mechanism -> sources that measured a server with it.
        without: Sources to leave out.
        is_examined: Whether its own figures were known.
    """
    is_mechanism_known = not server.mechanism or any(
        source not in without for source in mechanisms.get(server.mechanism, ())
    )
    near = [each for each in families if each.engine == server.generation or each.hardware == server.hardware]
    known = [each for each in near if any(source not in without for source in each.sources)]
    return Distance(
        is_family_known=is_mechanism_known and not server.is_larger and any(_is_of(each, server) for each in known),
        is_engine_known=any(each.engine == server.generation for each in known),
        is_hardware_known=any(each.hardware == server.hardware for each in known),
        is_mechanism_known=is_mechanism_known and not server.is_larger,
        is_mechanism_measured=not server.mechanism or server.mechanism in mechanisms,
        is_examined=is_examined,
    )


class Coverage(FrozenModel):
    """How well intervals made without each figure's own source hold, for one metric; a source counts once."""

    metric: str
    """The metric."""
    group: str
    """``all``, or one of `GROUPS`."""
    sources: int
    """Sources with figures in the group."""
    figures: int
    """Measured figures that no constant was fitted to."""
    coverage_90: float
    """Share of figures inside the 90 % interval."""
    coverage_50: float
    """Share inside the 50 % interval."""
    log_width: float
    """Mean width of the 90 % interval, in logarithms."""
    interval_score: float
    """Mean interval score of the 90 % interval; lower is better."""
    constant_coverage_90: float
    """Share inside one 90 % interval for all servers."""
    constant_log_width: float
    """Its width."""
    constant_interval_score: float
    """Its score."""
    range_90: tuple[float, float] = (0.0, 1.0)
    """Range of ``coverage_90`` in 90 % of draws of its sources with replacement: the uncertainty from few sources."""


class Attainable(FrozenModel):
    """How narrow intervals of a metric can be, relative to one interval for all servers: ratios, 1 is equally wide.

    For draws: the median and the range of 90 % of them.
    """

    metric: str
    """The metric."""
    draws: int
    """Sets of errors drawn from the model of errors."""
    own_width: float
    """Mean width over sources that holds 90 % of each source's own figures, with the spread of every server known."""
    known_width: tuple[float, float, float]
    """In draws, the mean width if the model from which they are drawn is known."""
    known_score: tuple[float, float, float]
    """The interval score in that case."""
    learnt_width: tuple[float, float, float]
    """In the same draws, the mean width if the model is learnt again with the source left out."""
    learnt_score: tuple[float, float, float]
    """The interval score in that case."""


class PairErrors(FrozenModel):
    """Error of the simulated ratio of two servers relative to the measured one: same source, model and load.

    Errors common to both cancel. In logarithms, every source counted once.
    """

    p50: float = Field(gt=0)
    """Median size."""
    p90: float = Field(gt=0)
    """90th percentile."""
    pairs: int = Field(ge=1)
    """Number of pairs."""
    sources: int = Field(ge=1)
    """Number of their sources."""
    coverage_90: float
    """Share of pairs within the 90th percentile learnt without their own source."""


class ErrorModel(FrozenModel):
    """The file that ships with the package."""

    made_by: str
    """The command that made it."""
    simserve: str
    """Version that was validated."""
    date: str
    """Date."""
    left_out: str
    """Which measured figures do not count, and which have more weight."""
    metrics: dict[str, MetricErrors]
    """Metric (``tpot``, ``ttft``, ``throughput``) -> model of its error."""
    without: dict[str, dict[str, MetricErrors]]
    """Source -> metric -> the model learnt without that source, used for the source's own figures."""
    families: tuple[Family, ...]
    """What was measured."""
    mechanisms: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Unusual mechanism -> sources that measured it."""
    examined: tuple[str, ...] = ()
    """Sources whose figures were known while the simulator was built."""
    coverage: tuple[Coverage, ...] = ()
    """How well the model holds with whole sources left out."""
    pairs: dict[str, PairErrors] = Field(default_factory=dict)
    """Metric -> error of the ratio of two servers."""
    attainable: tuple[Attainable, ...] = ()
    """How narrow its intervals could be."""

    def distance(self, server: Server, left_out: str = "") -> Distance:
        """Return how far a server is from the measured ones, one source left out."""
        return distance_of(server, self.families, self.mechanisms, (left_out,), is_examined=left_out in self.examined)

    def of_metric(self, metric: str, left_out: str = "") -> MetricErrors:
        """Return the model of a metric, learnt without one source."""
        return self.without.get(left_out, self.metrics).get(metric, self.metrics[metric])


class CalibratedMetric(FrozenModel):
    """The error of one metric on calibrated servers at loads not used for calibration, in logarithms."""

    center: float
    """Median of ``log(predicted / measured)``."""
    p50: float = Field(gt=0)
    """Half-width of the interval about it that holds half of the figures."""
    p90: float = Field(gt=0)
    """Half-width of the interval that holds `LEVEL` of them."""
    servers: int = Field(ge=1)
    """Number of servers."""
    sources: int = Field(ge=1)
    """Number of their sources, each counted once."""
    figures: int = Field(ge=1)
    """Number of figures."""
    coverage_90: float
    """Share of the figures inside the 90 % interval made without their own source; a source counts once."""
    coverage_50: float
    """Share inside the 50 % interval."""


class CalibratedErrors(FrozenModel):
    """The error that remains after two loads of a server were given to `simserve calibrate serving`; a file."""

    made_by: str
    """The command that made it."""
    simserve: str
    """Version that made the predictions."""
    date: str
    """Date."""
    metrics: dict[str, CalibratedMetric]
    """Metric (``tpot``, ``ttft``, ``throughput``) -> its error."""


@dataclass(frozen=True, slots=True)
class MetricExpectation:
    """Expected error of one metric, in logarithms of predicted over measured."""

    center: float  # Median.
    half_50: float  # Half-width of the interval that holds half of the servers.
    half_90: float  # Half-width of the interval that holds `LEVEL` of them.
    servers: int  # Number of measured servers of the same family.

    @property
    def low(self) -> float:
        """Factor on a prediction that gives the lower end for a real server."""
        return math.exp(-self.center - self.half_90)

    @property
    def high(self) -> float:
        """Factor that gives the upper end."""
        return math.exp(-self.center + self.half_90)

    def factor(self, share: float) -> float:
        """Return the factor on a prediction that ``share`` (0 to 1) of real servers do not exceed.

        Errors are symmetric about the center. Their sizes follow the Weibull distribution with both quantiles, which
            includes the exponential sizes of a Laplace error and nearly those of a normal one.
        """
        beyond = abs(2 * share - 1)
        if beyond >= 1:
            return math.inf if share > 0.5 else 0.0
        size = self._scale * math.pow(-math.log1p(-beyond), 1 / self._power)
        return math.exp(min(-self.center + math.copysign(size, share - 0.5), LARGEST_LOG))

    def share_below(self, factor: float) -> float:
        """Return the share of real servers that do not exceed a factor: the inverse of `factor`."""
        if factor <= 0:
            return 0.0
        if math.isinf(factor):
            return 1.0
        size = math.log(factor) + self.center
        beyond = -math.expm1(-math.pow(abs(size) / self._scale, self._power))
        return 0.5 + math.copysign(beyond, size) / 2

    @property
    def _power(self) -> float:
        ratio = max(self.half_90 / self.half_50, NARROWEST_RATIO)
        return math.log(math.log(1 - LEVEL) / math.log(0.5)) / math.log(ratio)

    @property
    def _scale(self) -> float:
        return self.half_90 / math.pow(-math.log(1 - LEVEL), 1 / self._power)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected errors of a run on a real server."""

    basis: str  # The basis of the expectation, in words.
    group: str  # One of `GROUPS`, or `CALIBRATED`.
    metrics: Mapping[str, MetricExpectation]  # Metric -> its error.

    @property
    def shares(self) -> dict[str, Any]:
        """``basis``, and for each metric ``p50 p90`` of the absolute relative error (0.05: 5 %) with ``servers``."""
        return {
            "basis": self.basis,
            **{
                metric: {
                    "p50": round(math.expm1(math.hypot(each.center, each.half_50)), 4),
                    "p90": round(math.expm1(math.hypot(each.center, each.half_90)), 4),
                    "servers": each.servers,
                }
                for metric, each in self.metrics.items()
            },
        }

    def including(self, own_errors: Mapping[str, float]) -> Expectation:
        """Return the same with intervals that hold what a server's calibration misses at its own loads.

        Args:
            own_errors: Metric -> half-width about 0, in logarithms.
        """
        metrics = dict(self.metrics)
        for metric, own in own_errors.items():
            each = metrics[metric]
            if abs(each.center) + own > each.half_90:
                wider = (abs(each.center) + own) / each.half_90
                metrics[metric] = replace(each, half_50=wider * each.half_50, half_90=wider * each.half_90)
        widened = [name for name, each in metrics.items() if each != self.metrics[name]]
        if not widened:
            return self
        widened = [name if name == "throughput" else name.upper() for name in widened]
        basis = f"{self.basis}; {' and '.join(widened)} as far off as the calibration is at its own loads"
        return replace(self, basis=basis, metrics=metrics)


def expect(model: ErrorModel, server: Server, left_out: str = "") -> Expectation:
    """Return the expected errors of a server, calibrated on its own runs or not.

    Args:
        left_out: A source to leave out because it measured this server.
    """
    distance = model.distance(server, left_out)
    family = None
    if distance.is_family_known:
        family = next(each for each in model.families if _is_of(each, server))
    metrics = {}
    for metric in model.metrics:
        errors = model.of_metric(metric, left_out)
        half_50, half_90 = errors.half_widths(metric, server, distance)
        servers = family.servers.get(metric, 0) if family is not None else 0
        center = errors.center_of(has_experts=server.has_experts, is_examined=distance.is_examined)
        metrics[metric] = MetricExpectation(center, half_50, half_90, servers)
    foreign = Expectation(_basis(server, distance, family), distance.group, metrics)
    if server.calibrated_runs < FEWEST_CALIBRATED_RUNS or server.mechanism == SPECULATION:
        return foreign.including(server.own_errors)
    calibrated = calibrated_expectation(foreign, server.calibrated_runs, server.calibrated_date)
    return calibrated.including(server.own_errors)


def calibrated_expectation(foreign: Expectation, num_loads: int, date: str = "") -> Expectation:
    """Return the expected errors of a server that was calibrated on its own runs: those of other calibrated servers.

    A metric whose expected error was smaller before keeps it, as few calibrated servers were measured.

    Args:
        foreign: The errors expected without calibration.
        num_loads: Number of its measured loads.
        date: Date of the measurements; empty: not known.
    """
    errors = load_calibrated_errors()
    metrics = dict(foreign.metrics)
    for metric, each in errors.metrics.items():
        half_50, half_90 = max(each.p50, FLOORS[metric] * FLOOR_OF_HALF), max(each.p90, FLOORS[metric])
        if half_90 < metrics[metric].half_90:
            metrics[metric] = MetricExpectation(each.center, half_50, half_90, each.servers)
    day = f" of {date}" if date else ""
    count = max(each.servers for each in errors.metrics.values())
    basis = (
        f"calibrated on {num_loads} loads{day} of this server; errors of {count} servers at loads that "
        "they were not calibrated on"
    )
    return Expectation(basis, CALIBRATED, metrics)


def _is_of(family: Family, server: Server) -> bool:
    return (family.engine, family.hardware, family.has_experts) == server.family


def _basis(server: Server, distance: Distance, family: Family | None) -> str:
    models = "mixtures of experts" if server.has_experts else "dense models"
    if server.is_larger:
        return f"foreign: no measurement of replicas of more than {MOST_MEASURED_GPUS} GPUs"
    if not distance.is_mechanism_known:
        return f"foreign: no measurement of {server.mechanism}"
    if family is not None:
        count = max(family.servers.values())
        alone = "" if family.servers.keys() & {"tpot", "ttft"} else ALONE
        return f"{count} server{'s' * (count > 1)} of {models} on {server.hardware} under {server.generation}{alone}"
    if distance.is_engine_known:
        return f"foreign: no measurement of {models} on {server.hardware} under {server.generation}"
    return f"foreign: no measurement under {server.generation}"


def band_of(concurrency: float) -> str:
    """Return the band that a number of requests in flight falls into: ``5-16``, ``>256``."""
    lowest = 1
    for highest in CONCURRENCY_BANDS:
        if concurrency <= highest:
            return f"{lowest}-{highest}"
        lowest = highest + 1
    return f">{CONCURRENCY_BANDS[-1]}"


def generation_of(engine: str, version: str) -> str:
    """Return engine and generation: ``vllm from 0.8``, ``vllm before 0.8``, ``tgi``."""
    boundary = load_engine(engine).new_from
    if boundary is None:
        return engine
    side = "from" if version_key(version) >= version_key(boundary) else "before"
    return f"{engine} {side} {boundary}"


@cache
def load_calibrated_errors() -> CalibratedErrors:
    """Return the errors of calibrated servers that ship with the package.

    Raises:
        ProfileError: The file is invalid.
    """
    return _load(CalibratedErrors, catalog.bundled_file(CALIBRATED_FILE))


@cache
def load_error_model(file: Path | None = None) -> ErrorModel:
    """Return the model of errors that ships with the package.

    Raises:
        ProfileError: The file is invalid.
    """
    return _load(ErrorModel, file or catalog.bundled_file(FILE))


def _load(kind: type[_Read], path: Path) -> _Read:
    if not path.is_file():
        raise InvariantError(f"{path.name} is missing from this installation")
    return read_valid(kind, path)


@dataclass(frozen=True, slots=True)
class _Run:
    """Properties of a run that determine how an error of the steps shows."""

    load_ratio: float | None
    """Offered over finishable load with open-loop arrivals; None: not known, or a closed loop."""
    waiting: float  # Share of the times to first token spent waiting for the first step.
    duration_ms: float  # Duration of the whole run.


def prediction_interval(summary: Mapping[str, Any], expected: Expectation, waiting: float) -> dict[str, Any]:
    """Return ``level basis metrics queues``: for each figure the low and high end expected for a real server.

    ``queues``: whether a server at the slow end cannot keep up with open-loop arrivals. The high ends of TTFT and E2E
    are then what would queue up by the end of this run, and say nothing about a longer one.

    TPOT and ITL take the error of TPOT. TTFT takes its own error and, with open-loop arrivals, at least the effect of a
    slower server on the queue: at the load ratio r, waiting grows as ``1 / (1 - r)`` (M/G/1 in heavy traffic: Kingman,
    "The single server queue in heavy traffic", 1961), and over a run of T seconds by at most the work that is left
    over, ``T (r' - r) / 2``. E2E combines both, with their errors taken as one. A server that keeps up with open-loop
    arrivals finishes what arrives: its throughput falls only if a real one is too slow for the load.

    Args:
        summary: What `simserve.metrics.summary.summarize` returns.
        waiting: Share of the time to first token spent waiting for the first step.
    """
    inner = summary["simserve"]
    run = _Run(inner["load_ratio"], waiting, 1e3 * (summary["duration"] or 0.0))
    metrics: dict[str, list[float] | None] = {}
    for latency in LATENCY_ERRORS:
        for statistic in STATISTICS:
            found = _latency(summary, statistic, latency, expected, run)
            metrics[f"{statistic}_{latency}"] = None if found is None else list(found)
    low, high = _rate_factors(expected, run.load_ratio)
    metrics |= {name: _scaled(summary[name], low, high) for name in RATES}
    metrics |= {name: _scaled(inner["cost"].get(name), 1 / high, 1 / low) for name in DOLLARS}
    queues = run.load_ratio is not None and _slow_load(run.load_ratio, expected) >= 1
    return {"level": LEVEL, "basis": expected.basis, "metrics": metrics, "queues": queues}


def _slow_load(load_ratio: float, expected: Expectation) -> float:
    """Return the load ratio of a server at the slow end."""
    return load_ratio * max(expected.metrics["tpot"].high, 1.0)


def _scaled(value: float | None, low: float, high: float) -> list[float] | None:
    return None if value is None else [value * low, value * high]


def _latency(
    summary: Mapping[str, Any], statistic: str, latency: str, expected: Expectation, run: _Run
) -> Interval | None:
    value = summary[f"{statistic}_{latency}"]
    if value is None:
        return None
    tpot = expected.metrics["tpot"]
    errors = LATENCY_ERRORS[latency]
    if "ttft" not in errors:
        return value * tpot.low, value * tpot.high
    first = summary[f"{statistic}_ttft_ms"]
    if first is None:
        return None
    base = min(first, (summary["mean_ttft_ms"] or 0.0) * (1 - run.waiting))
    ttft = _first_token(first, base, expected, run)
    if "tpot" not in errors:
        return ttft
    rest = max(value - first, 0.0)
    shown = value - rest
    low, high = (shown * end / first if first > 0 else 0.0 for end in ttft)
    return low + rest * tpot.low, high + rest * tpot.high


def _first_token(value: float, base: float, expected: Expectation, run: _Run) -> Interval:
    """Return the interval of a time to first token, ms, of which ``base`` is not waiting."""
    errors = expected.metrics["ttft"]
    low, high = value * errors.low, value * errors.high
    ratio = run.load_ratio
    if ratio is None or ratio <= 0:
        return low, high
    slow = _slow_load(ratio, expected)
    wait = max(value - base, 0.0)
    longest = wait * errors.high + max(slow - ratio, 0.0) * run.duration_ms / 2
    if slow < 1:
        longest = min(longest, wait * (1 - ratio) / (1 - slow))
    return low, max(high, base * errors.high + longest)


def _rate_factors(expected: Expectation, load_ratio: float | None) -> Interval:
    """Return the factors that lead from a rate to its low and high ends."""
    errors = expected.metrics["throughput"]
    if load_ratio is None or load_ratio >= 1:
        return errors.low, errors.high
    floor = math.exp(-FLOORS["throughput"])
    return min(floor, errors.low / load_ratio), 1 / floor
