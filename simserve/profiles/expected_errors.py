"""How wrong the simulator is on a server that nobody fitted: the model of its errors, asking it of a server, and the
interval that this makes of the figures of a run.

An error is ``log(predicted / measured)``. Of a source that was left out it is taken to be ``center + scale * z``.
Servers that nobody looked at while the simulator was built have a center of their own: what is not known of them mostly
takes time, so that they are slower than simulated. So have mixtures of experts, whose tokens are routed unevenly and
through kernels of which fewer were measured. The scale is ``exp`` of a few features of the deployment and its
load, and the quantiles of ``|z|`` are those over measured sources, each counted once (split conformal prediction with
the source as the unit: Dunn, Wasserman and Ramdas, "Distribution-free prediction sets for two-layer hierarchical
models", JASA 118, 2023). Knows figures by name; neither how servers were measured nor how a run is made.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from simserve.documents import read_mapping
from simserve.errors import InvariantError, ProfileError
from simserve.profiles import catalog
from simserve.profiles.engine_options import version_key
from simserve.profiles.engine_profile import load_engine
from simserve.validation import FrozenModel, validate

FILE = "calibration/expected_errors.json"

CALIBRATED_FILE = "calibration/calibrated_errors.json"

FEWEST_CALIBRATED_RUNS = 2
"""Loads of a server from which the errors of calibrated servers are expected of it: theirs are of two."""

LEVEL = 0.9
"""Share of foreign servers that an interval is to hold."""

Interval = tuple[float, float]

STATISTICS = ("mean", "median", "p90", "p95", "p99")

RATES = ("request_throughput", "output_throughput", "total_token_throughput")

DOLLARS = ("usd_per_million_output_tokens", "usd_per_million_tokens")
"""Figures of ``simserve.cost`` that fall as throughput rises."""

QUEUED = ("ttft_ms", "e2el_ms")
"""Latencies that hold the wait for a seat."""

LATENCY_ERRORS: Mapping[str, tuple[str, ...]] = {
    "ttft_ms": ("ttft",),
    "tpot_ms": ("tpot",),
    "itl_ms": ("tpot",),
    "e2el_ms": ("ttft", "tpot"),
}
"""Latency, as results name it -> the metrics whose errors it has."""

CONCURRENCY_BANDS = (4, 16, 64, 256)
"""Upper ends of the bands of concurrency, both ends included."""

FLOORS: Mapping[str, float] = {"tpot": 0.02, "ttft": 0.05, "throughput": 0.02}
"""Metric -> narrowest half-width of a 90 % interval, in logarithms: measuring the same server twice differs by as much
(InferenceX and MLPerf repeat TPOT within 1 to 3 %)."""

FLOOR_OF_HALF = 0.41
"""Of that, the narrowest half-width at 50 %: 0.674 over 1.645, as of a normal error."""

NARROWEST_RATIO = 1.01
"""Of the 90 % half-width to the 50 % one, at least: two quantiles that are the same make no distribution."""

LARGEST_LOG = 600.0
"""Of a factor: what is larger has no room in a float."""

BURST_SHARE, BURST_REQUESTS = 0.3, 16
"""A burst: more than this share of the requests in the first instant, and more than so many in flight."""

MANY_CLIENTS = 500.0
"""Requests in flight at a server at which the feature ``clients``, a logarithm, is 1."""

MOST_MEASURED_GPUS = 8
"""GPUs of the largest replica that the sources measured outside separate pools."""

BEYOND = math.log(2.0)
"""What the logarithm of the scale gains a doubling of GPUs beyond the measured ones, and for a mechanism that no source
at all measured: nothing was measured there, so it is assumed and not learnt."""

SPECULATION = "servers that decode speculatively"
"""A mechanism whose errors loads of one's own do not tell: how many drafts are accepted hangs on the text."""

ALONE = ", of which only throughput is known"
"""End of a basis of servers whose latencies nobody published."""

FEATURES = ("constant", "burst", "host", "served", "clients", "far_family", "far_engine", "far_mechanism", "unexamined")
"""What the scale is linear in (its logarithm): see `features`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A deployment under a load, as the model of errors knows it.

    Attributes:
        generation: Engine and generation: ``vllm from 0.8``.
        hardware: GPU, as the catalogue names it.
        has_experts: Whether the model is a mixture of experts.
        num_gpus: GPUs of a replica.
        is_served: Whether requests come through the engine's server, not from a batch in its own process.
        has_pools: Whether prompts and answers have replicas of their own.
        in_flight: Requests in the system on average, a replica; NaN: unknown.
        at_once: Share of the requests that arrived in the first instant.
        host: Share of the step time that is host work.
        mechanism: What few servers do and most do not, in words; empty: nothing of the kind.
        calibrated_runs: Loads of this very deployment that its engine profile was calibrated on; 0: none.
        calibrated_date: When they were measured, as far as the profile says.
    """

    generation: str
    hardware: str
    has_experts: bool
    num_gpus: int = 1
    is_served: bool = True
    has_pools: bool = False
    in_flight: float = 1.0
    at_once: float = 0.0
    host: float = 0.0
    mechanism: str = ""
    calibrated_runs: int = 0
    calibrated_date: str = ""

    @property
    def family(self) -> tuple[str, str, bool]:
        """Engine generation, GPU, and whether there are experts."""
        return self.generation, self.hardware, self.has_experts

    @property
    def is_burst(self) -> bool:
        """Whether many requests reach a server in one instant."""
        return self.is_served and self.at_once > BURST_SHARE and self.in_flight > BURST_REQUESTS

    @property
    def num_beyond(self) -> float:
        """Doublings of GPUs beyond the measured replicas."""
        return max(math.log2(self.num_gpus / MOST_MEASURED_GPUS), 0.0)

    @property
    def is_larger(self) -> bool:
        """Whether no measured replica has as many GPUs; separate pools were measured with more."""
        return self.num_gpus > MOST_MEASURED_GPUS and not self.has_pools


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a server is from what other sources measured.

    Attributes:
        is_family_known: Its engine generation, GPU and class of model together.
        is_engine_known: Its engine generation, on whatever GPU.
        is_hardware_known: Its GPU, under whatever engine.
        is_mechanism_known: Its mechanism, and as many GPUs; true where it has nothing of the kind.
        is_mechanism_measured: Its mechanism, by whatever source, its own as well.
        is_examined: Its own figures lay open while the simulator was built: those of the measured sources did, those of
            the unseen reports and of every other server did not.
    """

    is_family_known: bool
    is_engine_known: bool
    is_hardware_known: bool = True
    is_mechanism_known: bool = True
    is_mechanism_measured: bool = True
    is_examined: bool = False

    @property
    def group(self) -> str:
        """One of `GROUPS`, as `GROUPS_TOLD` has them."""
        if self.is_family_known:
            return "known family"
        is_all_known = self.is_engine_known and self.is_hardware_known and self.is_mechanism_known
        return "known engine" if is_all_known else "foreign"


GROUPS = ("known family", "known engine", "foreign")

GROUPS_TOLD = (
    "Known family: another source measured this engine generation, GPU and class of model (dense or mixture of "
    "experts) together. Known engine: other sources measured the engine generation and the GPU, but not together, or "
    "not with such a model. Foreign: no other source measured the engine generation, or the GPU, or layers like these."
)
"""What they are, for readers."""

CALIBRATED = "calibrated"
"""Group of a server whose own measurements its engine profile was calibrated on."""


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
    """Median of ``log(predicted / measured)`` of dense models on servers that nobody looked at: above 0, the simulator
    is too high."""
    examined_center: float
    """The same of the sources whose figures lay open while the simulator was built."""
    experts_center: float
    """Of mixtures of experts, on servers that nobody looked at."""
    examined_experts_center: float
    """Of mixtures of experts, of the sources whose figures lay open."""
    log_scale: dict[str, float]
    """Feature -> what it adds to the logarithm of the scale."""
    p50: float = Field(gt=0)
    """Median of the absolute error over the scale, of servers that nobody looked at."""
    examined_p50: float = Field(gt=0)
    """The same of the sources whose figures lay open."""
    p90: float = Field(gt=0)
    """90th percentile of it, of servers that nobody looked at."""
    examined_p90: float = Field(gt=0)
    """The same of the sources whose figures lay open."""
    constant_center: float
    """Median of all, about which one interval for every server lies."""
    constant_90: float = Field(gt=0)
    """Half-width of that 90 % interval, to compare with."""
    sources: int = Field(ge=1)
    """Sources behind it, each counted once."""
    figures: int = Field(ge=1)
    """Measured figures behind it."""

    def center_of(self, *, has_experts: bool, is_examined: bool) -> float:
        """Return the median of ``log(predicted / measured)`` of a class of model and a kind of source."""
        if has_experts:
            return self.examined_experts_center if is_examined else self.experts_center
        return self.examined_center if is_examined else self.center

    def half_widths(self, metric: str, server: Server, distance: Distance) -> tuple[float, float]:
        """Return half of the 50 % and of the 90 % interval, in logarithms."""
        values = zip(FEATURES, features(server, distance), strict=True)
        scale = math.exp(sum(self.log_scale.get(name, 0.0) * value for name, value in values))
        beyond = math.exp(BEYOND * (server.num_beyond + float(not distance.is_mechanism_measured)))
        floor = FLOORS[metric]
        kind = (self.examined_p50, self.examined_p90) if distance.is_examined else (self.p50, self.p90)
        return (
            max(kind[0] * scale, floor * FLOOR_OF_HALF) * beyond,
            max(kind[1] * scale, floor) * beyond,
        )


class Family(FrozenModel):
    """What was measured of one engine generation, GPU and class of model."""

    engine: str
    """Engine and generation: ``vllm from 0.8``."""
    hardware: str
    """GPU, as the catalogue names it."""
    has_experts: bool
    """Whether the models are mixtures of experts."""
    servers: dict[str, int]
    """Metric -> measured servers."""
    sources: tuple[str, ...]
    """Where they are from."""


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
        server: The deployment.
        families: What was measured.
        mechanisms: Mechanism -> sources with a server of it.
        without: Sources that do not count.
        is_examined: Whether its own figures lay open.
    """
    is_mechanism_known = not server.mechanism or any(
        source not in without for source in mechanisms.get(server.mechanism, ())
    )
    known = [each for each in families if any(source not in without for source in each.sources)]
    return Distance(
        is_family_known=is_mechanism_known and not server.is_larger and any(_is_of(each, server) for each in known),
        is_engine_known=any(each.engine == server.generation for each in known),
        is_hardware_known=any(each.hardware == server.hardware for each in known),
        is_mechanism_known=is_mechanism_known and not server.is_larger,
        is_mechanism_measured=not server.mechanism or server.mechanism in mechanisms,
        is_examined=is_examined,
    )


class Coverage(FrozenModel):
    """How well the intervals of a metric hold that were made without each figure's own source; a source counts once."""

    metric: str
    """Which."""
    group: str
    """``all``, or one of `GROUPS`."""
    sources: int
    """Sources with figures in it."""
    figures: int
    """Measured figures that no constant was fitted to."""
    coverage_90: float
    """Share of them inside the 90 % interval."""
    coverage_50: float
    """Inside the 50 % interval."""
    log_width: float
    """Mean width of the 90 % interval, in logarithms."""
    interval_score: float
    """Mean interval score of it: less is better."""
    constant_coverage_90: float
    """Share inside one 90 % interval for every server."""
    constant_log_width: float
    """Its width."""
    constant_interval_score: float
    """Its score."""
    range_90: tuple[float, float] = (0.0, 1.0)
    """Between what 90 % of draws of its sources, with replacement, have ``coverage_90``: so far few sources tell it."""


class Attainable(FrozenModel):
    """How narrow intervals of a metric can be, beside one interval for every server: ratios, 1 is as wide.

    Of draws, the median and between what 90 % of them lie.
    """

    metric: str
    """Which."""
    draws: int
    """Sets of errors that were drawn from the model of errors."""
    own_width: float
    """Mean width over sources that holds 90 % of each source's own figures: who knows every server's spread."""
    known_width: tuple[float, float, float]
    """In draws, the mean width of who knows the model that they are from."""
    known_score: tuple[float, float, float]
    """Interval score likewise."""
    learnt_width: tuple[float, float, float]
    """In the same draws, the mean width of who learns the model anew with the source left out."""
    learnt_score: tuple[float, float, float]
    """Interval score likewise."""


class PairErrors(FrozenModel):
    """How far the simulated ratio of two servers is from the measured one: of one source, one model, under one load.

    What is wrong with both alike cancels. In logarithms, every source counted once.
    """

    p50: float = Field(gt=0)
    """Median size."""
    p90: float = Field(gt=0)
    """90th percentile."""
    pairs: int = Field(ge=1)
    """Pairs behind it."""
    sources: int = Field(ge=1)
    """Their sources."""
    coverage_90: float
    """Share of pairs within the 90th percentile that is learnt without their own source."""


class ErrorModel(FrozenModel):
    """The file that ships."""

    made_by: str
    """The command."""
    simserve: str
    """Version that was validated."""
    date: str
    """When."""
    left_out: str
    """Which measured figures do not count, and which count for more."""
    metrics: dict[str, MetricErrors]
    """Metric (``tpot``, ``ttft``, ``throughput``) -> model of its error."""
    without: dict[str, dict[str, MetricErrors]]
    """Source -> metric -> what is learnt where the source is left out: for its own figures."""
    families: tuple[Family, ...]
    """What was measured."""
    mechanisms: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Mechanism that few servers have -> sources that measured one of them."""
    examined: tuple[str, ...] = ()
    """Sources whose figures lay open while the simulator was built."""
    coverage: tuple[Coverage, ...] = ()
    """How well it holds, whole sources left out."""
    pairs: dict[str, PairErrors] = Field(default_factory=dict)
    """Metric -> error of the ratio of two servers."""
    attainable: tuple[Attainable, ...] = ()
    """How narrow it could be."""

    def distance(self, server: Server, left_out: str = "") -> Distance:
        """Return how far a server is from the measured ones, those of one source not counted."""
        return distance_of(server, self.families, self.mechanisms, (left_out,), is_examined=left_out in self.examined)

    def of_metric(self, metric: str, left_out: str = "") -> MetricErrors:
        """Return the model of a metric, learnt without one source."""
        return self.without.get(left_out, self.metrics).get(metric, self.metrics[metric])


class CalibratedMetric(FrozenModel):
    """The error of one metric of calibrated servers at loads that they were not given, in logarithms."""

    center: float
    """Median of ``log(predicted / measured)``."""
    p50: float = Field(gt=0)
    """Half of the interval about it that holds half of the figures."""
    p90: float = Field(gt=0)
    """Half of the interval that holds `LEVEL` of them."""
    servers: int = Field(ge=1)
    """Servers behind it."""
    sources: int = Field(ge=1)
    """Their sources, each counted once."""
    figures: int = Field(ge=1)
    """Figures behind it."""
    coverage_90: float
    """Share of the figures inside the 90 % interval that is made without their own source; a source counts once."""
    coverage_50: float
    """Inside the 50 % interval."""


class CalibratedErrors(FrozenModel):
    """What is left of the error once two loads of a server were given to `simserve calibrate serving`; a file."""

    made_by: str
    """The command."""
    simserve: str
    """Version that predicted."""
    date: str
    """When."""
    metrics: dict[str, CalibratedMetric]
    """Metric (``tpot``, ``ttft``, ``throughput``) -> its error."""


@dataclass(frozen=True, slots=True)
class MetricExpectation:
    """What to expect of one metric, in logarithms of predicted over measured.

    Attributes:
        center: Median.
        half_50: Half of the interval that holds half of the servers.
        half_90: Half of the interval that holds `LEVEL` of them.
        servers: Measured servers of the same family.
    """

    center: float
    half_50: float
    half_90: float
    servers: int

    @property
    def low(self) -> float:
        """Factor from what is predicted to the lower end for a real server."""
        return math.exp(-self.center - self.half_90)

    @property
    def high(self) -> float:
        """Factor to the upper end."""
        return math.exp(-self.center + self.half_90)

    def factor(self, share: float) -> float:
        """Return the factor from what is predicted that ``share`` of real servers stay at or below, 0 to 1.

        Errors lie evenly about the center, and their sizes as a Weibull distribution that has both quantiles: the
        exponential sizes of a Laplace error are one of its kind, those of a normal error nearly.
        """
        beyond = abs(2 * share - 1)
        if beyond >= 1:
            return math.inf if share > 0.5 else 0.0
        size = self._scale * math.pow(-math.log1p(-beyond), 1 / self._power)
        return math.exp(min(-self.center + math.copysign(size, share - 0.5), LARGEST_LOG))

    def share_below(self, factor: float) -> float:
        """Return the share of real servers that stay at or below a factor: the inverse of `factor`."""
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
    """What to expect of a run on a real server.

    Attributes:
        basis: What it rests on, in words.
        group: One of `GROUPS`, or `CALIBRATED`.
        metrics: Metric -> its error.
    """

    basis: str
    group: str
    metrics: Mapping[str, MetricExpectation]

    @property
    def shares(self) -> dict[str, Any]:
        """``basis``, and by metric ``p50 p90`` of the absolute relative error (0.05: 5 %) with ``servers``."""
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


def expect(model: ErrorModel, server: Server, left_out: str = "") -> Expectation:
    """Return what to expect of a server that nobody fitted, or that was calibrated on its own runs.

    Args:
        model: Of the errors.
        server: The deployment under its load.
        left_out: A source that must not count, as it measured this server.
    """
    distance = model.distance(server, left_out)
    family = next((each for each in model.families if distance.is_family_known and _is_of(each, server)), None)
    metrics = {}
    for metric in model.metrics:
        errors = model.of_metric(metric, left_out)
        half_50, half_90 = errors.half_widths(metric, server, distance)
        servers = family.servers.get(metric, 0) if family is not None else 0
        center = errors.center_of(has_experts=server.has_experts, is_examined=distance.is_examined)
        metrics[metric] = MetricExpectation(center, half_50, half_90, servers)
    foreign = Expectation(_basis(server, distance, family), distance.group, metrics)
    if server.calibrated_runs < FEWEST_CALIBRATED_RUNS or server.mechanism == SPECULATION:
        return foreign
    return calibrated_expectation(foreign, server.calibrated_runs, server.calibrated_date)


def calibrated_expectation(foreign: Expectation, num_loads: int, date: str = "") -> Expectation:
    """Return what to expect of a server that was calibrated on its own runs: the errors of others like that.

    Of a metric whose error was smaller before, as few calibrated servers tell it, what was expected stays.

    Args:
        foreign: What is expected of it otherwise.
        num_loads: Loads of it that were measured.
        date: When; empty: not known.
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
    """Return the band of a number of requests in flight: ``5-16``, ``>256``."""
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
def load_calibrated_errors(file: Path | None = None) -> CalibratedErrors:
    """Return the errors of calibrated servers that ship.

    Raises:
        ProfileError: The file is invalid.
    """
    path = file or catalog.bundled_file(CALIBRATED_FILE)
    if not path.is_file():
        raise InvariantError(f"{CALIBRATED_FILE} is missing from this installation")
    return validate(CalibratedErrors, read_mapping(path, ProfileError), file=path, error=ProfileError)


@cache
def load_error_model(file: Path | None = None) -> ErrorModel:
    """Return the model that ships.

    Raises:
        ProfileError: The file is invalid.
    """
    path = file or catalog.bundled_file(FILE)
    if not path.is_file():
        raise InvariantError(f"{FILE} is missing from this installation")
    return validate(ErrorModel, read_mapping(path, ProfileError), file=path, error=ProfileError)


@dataclass(frozen=True, slots=True)
class _Run:
    """What of a run decides how an error of the steps shows.

    Attributes:
        load_ratio: Offered over finishable load of open arrivals; None: not known, or a closed loop.
        waiting: Share of the times to first tokens that requests waited for their first step.
        duration_ms: Of the whole run.
    """

    load_ratio: float | None
    waiting: float
    duration_ms: float


def prediction_interval(summary: Mapping[str, Any], expected: Expectation, waiting: float) -> dict[str, Any]:
    """Return ``level basis metrics queues``: by figure the low and high end that a real server keeps within.

    ``queues``: whether a server at the slow end cannot keep up with open arrivals. The high ends of first tokens and of
    whole answers are then what would queue up by the end of this run, and say nothing of a longer one.

    TPOT and gaps take the error of TPOT. Times to first tokens take that of TTFT, and of open arrivals no less than
    what a slower server does to the queue: at the load ratio r, waiting grows as ``1 / (1 - r)`` (M/G/1 in heavy
    traffic: Kingman, "The single server queue in heavy traffic", 1961), and over a run of T seconds by no more than the
    work that is left over, ``T (r' - r) / 2``. End-to-end times are made up of both, their errors taken as one. A
    server that keeps up with open arrivals finishes what arrives: its throughput falls only if a real one is too
    slow for the load.

    Args:
        summary: What `simserve.metrics.summary.summarize` returns.
        expected: Errors to expect.
        waiting: Share of the time to first tokens that requests waited for their first step.
    """
    inner = summary["simserve"]
    run = _Run(inner["load_ratio"], waiting, 1e3 * (summary["duration"] or 0.0))
    metrics: dict[str, list[float] | None] = {}
    for latency in LATENCY_ERRORS:
        for statistic in STATISTICS:
            metrics[f"{statistic}_{latency}"] = _listed(_latency(summary, statistic, latency, expected, run))
    rates = _rate_factors(expected, run.load_ratio)
    for name in RATES:
        metrics[name] = _listed(_scaled(summary[name], rates))
    for name in DOLLARS:
        metrics[name] = _listed(_scaled(inner["cost"].get(name), (1 / rates[1], 1 / rates[0])))
    queues = run.load_ratio is not None and _slow_load(run.load_ratio, expected) >= 1
    return {"level": LEVEL, "basis": expected.basis, "metrics": metrics, "queues": queues}


def _slow_load(load_ratio: float, expected: Expectation) -> float:
    """Return the load ratio of a server at the slow end."""
    return load_ratio * max(expected.metrics["tpot"].high, 1.0)


def _listed(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)


def _scaled(value: float | None, factors: Interval) -> Interval | None:
    return None if value is None else (value * factors[0], value * factors[1])


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
    """Return the interval of a time to first tokens, ms, of which ``base`` is no waiting."""
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
    """Return factors from a rate to its ends."""
    errors = expected.metrics["throughput"]
    if load_ratio is None or load_ratio >= 1:
        return errors.low, errors.high
    floor = math.exp(-FLOORS["throughput"])
    return min(floor, errors.low / load_ratio), 1 / floor
