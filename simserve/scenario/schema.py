"""Scenario: what is deployed, what arrives, and its objectives. Knows no profile and runs nothing.

The key paths are public API. A key without effect is unknown; a key with only one supported value accepts that value.
Presets such as `slo: chat` are published limits, each with its source: a starting point for a deployment without an
objective of its own. Keys given beside a preset take precedence.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from simserve import units
from simserve.documents import read_mapping
from simserve.errors import InputError, ScenarioError, nearest
from simserve.metrics.cost import PricingSpec
from simserve.metrics.latency import SLO
from simserve.metrics.thresholds import ATTAINMENT, parse_threshold
from simserve.scenario.deployment_spec import DeploymentSpec, PoolSpec
from simserve.sim.control import Limits
from simserve.units import PositiveSeconds
from simserve.validation import NAME_PATTERN, FrozenModel, input_error
from simserve.workload.class_spec import LatencyLimits
from simserve.workload.spec import WorkloadSpec

UseCase = Literal["chat", "rag", "code-completion", "summarisation", "agents", "batch"]
_HASH_LENGTH = 12
_DEPLOYMENT_KEY = re.compile(r"\bdeployment(?:\.\w+)+")
MAX_REPLICATIONS = 1000
"""Most runs of one scenario: with a thousand, a mean's 95 % interval reaches 6 % of the standard deviation of one run
to each side (1.96 / sqrt(1000)), and all summaries are kept in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SLOPreset:
    """The objective of a use case."""

    limits: dict[str, str]  # ``ttft tpot e2e`` -> time with its unit, for those that the source states.
    attainment: float  # Share of requests that must meet all of them.
    reason: str  # Why these, in a few words.
    source: str  # Where they are published.


@cache
def slo_presets() -> Mapping[str, SLOPreset]:
    """Return the objectives of use cases, by the name of the preset."""
    known = read_mapping(Path(__file__).with_name("slo_presets.yaml"))
    return {name: SLOPreset(**each) for name, each in known.items()}


def _of_preset(slo: object) -> object:
    """Return the keys of an ``slo`` block with those of its preset filled in; a name alone is a preset.

    Raises:
        ValueError: There is no such preset; the message is a rule and a remedy, ready to follow ``slo``.
    """
    given = {"preset": slo} if isinstance(slo, str) else slo
    if not isinstance(given, dict) or given.get("preset") is None:
        return given
    name = given["preset"]
    preset = slo_presets().get(name) if isinstance(name, str) else None
    if preset is None:
        shown = "" if isinstance(slo, str) else f"{name!r} "
        raise ValueError(f"{shown}is not a preset; {nearest(str(name), get_args(UseCase))}")
    return {**preset.limits, "attainment": preset.attainment, **given}


class SLOSpec(LatencyLimits):
    """Service-level objective: limits of a request, and the share of requests that must meet them all."""

    task: PositiveSeconds | None = None
    """Longest makespan of an agent's task, from its first call to its last answer. The share `attainment` then applies
    to tasks, and to requests if they have limits of their own."""
    preset: Annotated[UseCase | None, Field(exclude=True)] = None
    """Use case whose published limits apply if not given here; `slo: chat` is short for `slo: {preset: chat}`."""

    @property
    def has_limit(self) -> bool:
        """Whether there is any limit."""
        return self.task is not None or super().has_limit


def _as_warmup(value: object) -> object:
    try:
        return value if value in ("auto", "none") else units.parse(value, "time")
    except ValueError as failure:
        raise ValueError(f"{failure}, or auto, or none") from None


def _as_precision(value: object) -> object:
    """Read `2%` or 0.02."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            pass
    if isinstance(value, str):
        raise ValueError('must be a share, such as "2%" or 0.02')
    return value


def _warmup_text(value: str | float) -> str:
    return value if isinstance(value, str) else units.to_text(value, "time")


class RunSpec(FrozenModel):
    """How the simulation is run."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of every random stream; the same seed gives the same result files, byte for byte."""
    replications: Annotated[int, Field(ge=1, le=MAX_REPLICATIONS)] = 1
    """Independent runs; two or more give 95 % confidence intervals. With a precision: the fewest runs."""
    precision: Annotated[
        float | None, Field(gt=0, lt=1), BeforeValidator(_as_precision, json_schema_input_type=float | str | None)
    ] = None
    """Runs are added until the 95 % interval of every latency is this narrow: half its width relative to the mean (and
    one percentage point for the attainment); `2%` or 0.02. Of a percentile with few values around it, the share above
    it. Absent: `replications` runs."""
    max_replications: Annotated[int, Field(ge=2, le=MAX_REPLICATIONS)] = 50
    """With a precision: the most runs."""
    warmup: Annotated[
        Literal["auto", "none"] | float,
        BeforeValidator(_as_warmup, json_schema_input_type=str),
        PlainSerializer(_warmup_text, when_used="json"),
    ] = "auto"
    """What is cut at the start: `auto` (MSER-5, for stationary open-loop arrivals at a fleet that does not change),
    `none`, or a time."""


@dataclass(frozen=True, slots=True)
class PoolPlace:
    """A pool that is looked at alone, as if it were the whole deployment."""

    number: int
    name: str
    keys: frozenset[str]  # Keys that the pool itself has; the others are the deployment's.


@dataclass(frozen=True, slots=True)
class Source:
    """Where a scenario was read from; not part of its content."""

    file: str | None = None  # The file, for messages.
    folder: Path | None = None  # Where its relative paths start; None: the working folder.
    overrides: Mapping[str, str] = field(default_factory=dict)  # Overridden key -> what set it, for messages.
    pool: PoolPlace | None = None  # The pool that the scenario was cut down to.

    def of(self, key: str) -> str | None:
        """Return what set ``key``: a flag, else the file."""
        place = self.placed(key)
        labels = (label for each, label in self.overrides.items() if f"{place}.".startswith(f"{each}."))
        return next(labels, self.file)

    def placed(self, key: str) -> str:
        """Return where ``key`` stands in the file: below the pool, if it is the pool that has it."""
        if self.pool is None:
            return key
        place = f"deployment.pools.{self.pool.number}"
        below = key.removeprefix("deployment.")
        is_own = below.partition(".")[0] in self.pool.keys and (below != key or key == "model")
        return place if key == "deployment" else f"{place}.{below}" if is_own else key


class Scenario(FrozenModel):
    """One question to the simulator: a model on a deployment, under a workload, against objectives."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)] = "scenario"
    """Name, used for the result folder: letters, digits, dot, dash and underscore. Absent: the file's name."""
    model: str
    """Model: a name that `simserve models` lists, a profile file, or a Hugging Face config.json."""
    deployment: DeploymentSpec
    """What serves."""
    workload: WorkloadSpec
    """What arrives."""
    slo: Annotated[SLOSpec | None, BeforeValidator(_of_preset, json_schema_input_type=UseCase | SLOSpec | None)] = None
    """Service-level objective: limits, or the name of a use case; absent: latencies are reported without a verdict."""
    thresholds: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(default_factory=dict)
    """Conditions on the result, exit code 99 if one fails: `{ttft_ms: ["p(95)<1000"]}`."""
    pricing: PricingSpec = PricingSpec()
    """What it costs."""
    run: RunSpec = RunSpec()
    """How it is simulated."""

    def __init__(self, /, **keys: Any) -> None:
        """Make a scenario of the keys that a file has.

        Raises:
            ScenarioError: A key is unknown or missing, or its value is invalid; one line, as for a file.
        """
        try:
            super().__init__(**keys)
        except ValidationError as failure:
            raise input_error(Scenario, failure, error=ScenarioError) from None

    # Files are validated by pydantic alone, which names them in its own errors.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("thresholds")
    @classmethod
    def _check_thresholds(cls, thresholds: dict[str, list[str]]) -> dict[str, list[str]]:
        for metric, expressions in thresholds.items():
            for expression in expressions:
                parse_threshold(metric, expression)
        return thresholds

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        has_objective = self.slo is not None or any(each.slo is not None for each in self.workload.classes or ())
        if ATTAINMENT in self.thresholds and not has_objective:
            raise ValueError(f"thresholds.{ATTAINMENT} needs an slo block: without limits nothing is attained")
        return self

    @model_validator(mode="after")
    def _check_replications(self) -> Self:
        run = self.run
        workload = self.workload
        is_drawn = workload.trace is None or workload.arrivals is not None or workload.classes is not None
        if not is_drawn and run.replications > 1:
            rule = "run.replications must be 1 with a trace: nothing is drawn, so every replication would be the same"
            raise ValueError(rule)
        if not is_drawn and run.precision is not None:
            raise ValueError("run.precision has no meaning with a trace: nothing is drawn, so there is no interval")
        if run.precision is None and run.max_replications != RunSpec.model_fields["max_replications"].default:
            raise ValueError("run.max_replications needs run.precision; without one, say run.replications")
        if run.precision is not None and run.max_replications < run.replications:
            raise ValueError(
                f"run.max_replications: {run.max_replications} must not be below run.replications, {run.replications}"
            )
        return self

    _source: Source = PrivateAttr(default_factory=lambda: Source())

    @property
    def folder(self) -> Path | None:
        """Folder to which relative paths (trace, model, profiles) refer; None: the working folder."""
        return self._source.folder

    def set_by(self, key: str) -> str | None:
        """Return what set ``key``, a flag or else the file; None: neither."""
        return self._source.of(key)

    @property
    def pool_alone(self) -> str | None:
        """Name of the pool that the scenario was cut down to; None: it is whole."""
        return None if self._source.pool is None else self._source.pool.name

    def with_keys_placed(self, text: str) -> str:
        """Return a text for users, with keys of the deployment where the file has them."""
        return _DEPLOYMENT_KEY.sub(lambda match: self._source.placed(match.group()), text)

    def of_length(self, num_requests: int) -> Self:
        """Return the scenario with traffic of so many requests, whatever ends it now."""
        return self.model_copy(update={"workload": self.workload.of_length(num_requests)})

    def cut_down_to(self, number: int) -> Self:
        """Return the scenario as one whose messages name the keys of one pool."""
        pool = self.deployment.pools[number]
        keys = frozenset(key for key in PoolSpec.model_fields if getattr(pool, key) is not None)
        return self.read_from(replace(self._source, pool=PoolPlace(number, pool.name, keys)))

    def read_from(self, source: Source) -> Self:
        """Return the scenario with ``source`` as its origin."""
        copy = self.model_copy()
        copy._source = source
        return copy

    def refuse(self, key: str, rule: str, remedy: str, value: object = None) -> NoReturn:
        """Refuse the scenario for the value at ``key``.

        Raises:
            ScenarioError: Always, with the place that the key came from.
        """
        with self.blaming(key):
            raise ScenarioError(rule, value=value, remedy=remedy)

    @contextmanager
    def blaming(self, key: str) -> Iterator[None]:
        """Add a place and key to an `InputError` raised inside that names no file.

        Args:
            key: Key of the scenario being examined; if the error names a key of its own, a dotted one is kept, and a
                plain one is placed below ``key``. Empty: the error's own key is complete.
        """
        try:
            yield
        except InputError as failure:
            if failure.file is not None:
                raise
            exact = key
            if failure.key is not None:
                exact = failure.key if not key or "." in failure.key else f"{key}.{failure.key}"
            exact = self._source.placed(exact)
            origin = self._source.of(exact)
            raise type(failure)(
                self.with_keys_placed(failure.rule),
                file=origin,
                key=None if origin == self._source.overrides.get(exact, "") else exact,
                value=failure.value,
                remedy=None if failure.remedy is None else self.with_keys_placed(failure.remedy),
            ) from None

    def as_mapping(self) -> dict[str, Any]:
        """Return the scenario with every default filled in, as a YAML file would hold it.

        Absent blocks are left out. Paths are as written.
        """
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def hash(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of `as_mapping`, seed included."""
        canonical = json.dumps(self.as_mapping(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_LENGTH]

    def __hash__(self) -> int:
        return hash(self.hash)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file; the descriptions are the docstrings of the fields."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(mode="validation"),
    }
    _drop_defaults_in_si(schema)
    return schema


def _drop_defaults_in_si(part: Any) -> None:
    """Remove defaults that are numbers in SI units if the file takes text with a unit."""
    if isinstance(part, list):
        for each in part:
            _drop_defaults_in_si(each)
    elif isinstance(part, dict):
        if part.get("type") == "string" and isinstance(part.get("default"), int | float):
            del part["default"]
        for each in part.values():
            _drop_defaults_in_si(each)


def objective(scenario: Scenario) -> SLO | None:
    """Return the objective of a scenario, with those of its classes; None if neither it nor a class has one."""
    by_class = {
        each.name: SLO(**each.slo.model_dump()) for each in scenario.workload.classes or () if each.slo is not None
    }
    if scenario.slo is not None:
        return SLO(**scenario.slo.model_dump(), by_class=by_class)
    if not by_class:
        return None
    # Classes without an objective have no bound, and need no share.
    least = min(each.attainment for each in by_class.values())
    return SLO(ttft=None, tpot=None, e2e=None, attainment=least, by_class=by_class)


def limits_by_class(scenario: Scenario) -> tuple[Limits, ...]:
    """Return the limits of latencies by class (without classes: one entry)."""
    slo, classes = objective(scenario), scenario.workload.classes
    if slo is None:
        return (Limits(),) * max(len(classes or ()), 1)
    owners = [slo] if classes is None else [slo.by_class.get(each.name, slo) for each in classes]
    return tuple(Limits(each.ttft, each.tpot, each.e2e, each.ttfvt) for each in owners)


def objective_mapping(scenario: Scenario) -> dict[str, Any] | None:
    """Return the objective as a scenario file writes it; None if neither the scenario nor a class has one.

    If only classes have one, ``by_class`` holds theirs, and ``attainment`` the smallest of theirs.
    """
    if scenario.slo is not None:
        return dict(scenario.as_mapping()["slo"])
    asked = objective(scenario)
    if asked is None:
        return None
    classes = scenario.as_mapping()["workload"]["classes"]
    return {"attainment": asked.attainment, "by_class": {each["name"]: each.get("slo") for each in classes}}


def of_pool_alone(scenario: Scenario, number: int) -> Scenario:
    """Return the scenario with one of its pools as the whole deployment; messages name the keys of the pool."""
    pool = scenario.deployment.pools[number]
    workload = scenario.workload
    if workload.classes is not None:
        anywhere = tuple(
            each.model_copy(update={"pool": None, "retries": None, "region": None}) for each in workload.classes
        )
        workload = workload.model_copy(update={"classes": anywhere})
    deployment = scenario.deployment.of_pool(pool)
    return scenario.cut_down_to(number).model_copy(
        update={"deployment": deployment, "workload": workload, "model": pool.model or scenario.model}
    )
