"""`diff`: two results side by side, and a gate: which figures moved beyond what is tolerated. Prints nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from simserve.documents import read_mapping, read_text
from simserve.errors import InputError, UsageError, nearest
from simserve.metrics.files import RESULT_FILE, SCENARIO_FILE, check_unchanged
from simserve.metrics.result import RunResult
from simserve.metrics.summary import or_null
from simserve.planner.compare import FIGURES

_IDENTITY = ("scenario_name", "scenario_hash", "version", "seed", "formats")
SCENARIO, VERSION = "scenario", "version"
WATCHED = tuple(name for name in FIGURES if not name.startswith("std_") and name != "failed")
"""Figures to which an overall tolerance applies: all but spreads, and the count of failed requests, which is mostly
0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One figure of two results."""

    name: str  # Name of the figure.
    before: float  # Value in the first result; NaN where undefined.
    after: float  # Value in the second.
    half_width: float = math.nan  # Half width of the 95 % interval of the difference, if both have one; else NaN.
    tolerance: float | None = None
    """Relative change that is tolerated, up or down; None where the figure is not watched."""

    @property
    def change(self) -> float:
        """How much the second exceeds the first; NaN where either is undefined."""
        return self.after - self.before

    @property
    def relative(self) -> float:
        """The change divided by the first value; inf from 0, NaN where either is undefined."""
        if self.change == 0:
            return 0.0
        return self.change / abs(self.before) if self.before else math.copysign(math.inf, self.change)

    @property
    def has_moved(self) -> bool:
        """Whether the two differ at all; a figure that appears or vanishes does."""
        return self.change != 0 and not (math.isnan(self.before) and math.isnan(self.after))

    @property
    def is_noise(self) -> bool:
        """Whether the difference lies within its own interval."""
        return abs(self.change) <= self.half_width

    @property
    def is_beyond(self) -> bool:
        """Whether it moved by more than is tolerated, and by more than its interval."""
        if self.tolerance is None or not self.has_moved or self.is_noise:
            return False
        return math.isnan(self.change) or abs(self.relative) > self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Two results side by side.

    Attributes:
        names: Names of the results: their paths as given, or that of the scenario.
        moves: Every figure that either result defines, in the order of the result.
        differs_in: What differs between the two: ``scenario``, ``version``.
        changed_keys: Key of the scenario -> its two values, where it differs and both results contain their scenario.
        identities: ``scenario_name scenario_hash version seed formats`` of each.
        unlike: Why a gate fails whatever moved: the two differ in a way that it does not allow. None: they do not.
    """

    names: tuple[str, str]
    moves: tuple[Move, ...]
    differs_in: tuple[str, ...]
    changed_keys: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    identities: tuple[Mapping[str, Any], Mapping[str, Any]]
    unlike: str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether a gate fails."""
        return bool(self.failures) or self.unlike is not None

    @property
    def failures(self) -> list[Move]:
        """The watched figures that moved too far, the furthest first."""
        return sorted((each for each in self.moves if each.is_beyond), key=_distance, reverse=True)

    @property
    def moved(self) -> list[Move]:
        """The figures that moved, the furthest first."""
        return sorted((each for each in self.moves if each.has_moved), key=_distance, reverse=True)

    @property
    def summary(self) -> dict[str, Any]:
        """What `simserve diff --json` prints."""
        return {
            "a": {"name": self.names[0], **self.identities[0]},
            "b": {"name": self.names[1], **self.identities[1]},
            "differs_in": list(self.differs_in),
            "unlike": self.unlike,
            "changed_keys": {key: list(values) for key, values in self.changed_keys.items()},
            "metrics": {
                each.name: {
                    "a": or_null(each.before),
                    "b": or_null(each.after),
                    "change": or_null(each.change),
                    "relative": or_null(each.relative) if each.has_moved else 0.0,
                    "half_width": or_null(each.half_width),
                    "tolerance": each.tolerance,
                    "within_interval": each.is_noise,
                    "failed": each.is_beyond,
                }
                for each in self.moves
            },
            "failed": [each.name for each in self.failures],
        }


def diff(
    first: RunResult | str | Path,
    second: RunResult | str | Path,
    *,
    tolerance: float | None = None,
    tolerances: Mapping[str, float] | None = None,
    allow: Sequence[str] = (),
) -> Diff:
    """Return two results side by side; see `simserve.api.diff` for the arguments and errors."""
    for name in tolerances or {}:
        if name not in FIGURES:
            remedy = nearest(name, FIGURES)
            raise UsageError("is not a figure of a result", key="--tolerance", value=name, remedy=remedy)
    results = tuple(_read(each) for each in (first, second))
    identities = tuple({key: result["simserve"].get(key) for key in _IDENTITY} for result in results)
    scenarios = tuple(_scenario(each) for each in (first, second))
    changed = _changed(*scenarios) if all(scenarios) else {}
    kinds = {SCENARIO: "scenario_hash", VERSION: "version"}
    differs = tuple(kind for kind, key in kinds.items() if identities[0][key] != identities[1][key])
    is_gate = tolerance is not None or bool(tolerances)
    return Diff(
        names=(_name(first), _name(second)),
        moves=tuple(_moves(results[0], results[1], tolerance, tolerances or {})),
        differs_in=differs,
        changed_keys=changed,
        identities=(identities[0], identities[1]),
        unlike=_unlike([kind for kind in differs if kind not in allow], changed, identities) if is_gate else None,
    )


def _name(result: RunResult | str | Path) -> str:
    return str(result.summary["simserve"]["scenario_name"]) if isinstance(result, RunResult) else str(result)


def _read(result: RunResult | str | Path) -> Mapping[str, Any]:
    return result.summary if isinstance(result, RunResult) else _read_file(Path(result))


def _read_file(path: Path) -> Mapping[str, Any]:
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        text = read_text(file)
    except InputError as failure:
        remedy = f"name the folder of a result, or its {RESULT_FILE}"
        raise InputError(failure.rule, file=file, remedy=remedy) from None
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("is not JSON", file=file) from None
    if not isinstance(result, dict) or not isinstance(result.get("simserve"), dict):
        raise InputError("is no result of simserve", file=file, remedy="simserve run writes one")
    if path.is_dir():
        check_unchanged(path)
    for key in FIGURES.values():
        value = _valued(result, key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InputError("must be a number", file=file, key=key, value=value, remedy="run the scenario again")
    return result


def _scenario(result: RunResult | str | Path) -> dict[str, Any]:
    """Return the keys of the scenario of a result, or of that stored beside it, dotted; empty where there is none."""
    if isinstance(result, RunResult):
        return dict(_flat(result.scenario))
    path = Path(result)
    file = (path if path.is_dir() else path.parent) / SCENARIO_FILE
    return dict(_flat(read_mapping(file, InputError))) if file.is_file() else {}


def _flat(value: Any, key: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        return [pair for name, each in value.items() for pair in _flat(each, f"{key}.{name}" if key else str(name))]
    return [(key, value)]


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*first, *second])
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def _unlike(
    kinds: Sequence[str], changed: Mapping[str, tuple[Any, Any]], identities: Sequence[Mapping[str, Any]]
) -> str | None:
    if not kinds:
        return None
    one, other = identities
    reasons = []
    if SCENARIO in kinds:
        pairs = ((key, *("unset" if each is None else each for each in both)) for key, both in changed.items())
        keys = "; ".join(f"{key}: {before} against {after}" for key, before, after in islice(pairs, 5))
        hashes = f"{one['scenario_hash']} against {other['scenario_hash']}"
        reasons.append(f"of different scenarios or seeds ({keys or hashes})")
    if VERSION in kinds:
        reasons.append(f"by different versions of simserve ({one['version']} against {other['version']})")
    flags = " ".join(f"--allow {kind}" for kind in kinds)
    return f"the results are {' and '.join(reasons)}; to judge them all the same: {flags}"


def _moves(
    first: Mapping[str, Any], second: Mapping[str, Any], tolerance: float | None, tolerances: Mapping[str, float]
) -> list[Move]:
    found = []
    for name, key in FIGURES.items():
        before, after = (_at(result, key) for result in (first, second))
        if math.isnan(before) and math.isnan(after):
            continue
        found.append(
            Move(
                name=name,
                before=before,
                after=after,
                half_width=_half_width(name, first, second),
                tolerance=tolerances.get(name, tolerance if name in WATCHED else None),
            )
        )
    return found


def _at(result: Mapping[str, Any], key: str) -> float:
    value = _valued(result, key)
    return math.nan if value is None else float(value)


def _valued(result: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key; None if there is none."""
    value: Any = result
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _half_width(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """Return the half width of the interval of a difference of two independent means; NaN where either has none."""
    widths = [
        ((result["simserve"].get("confidence_intervals") or {}).get(name) or {}).get("half_width")
        for result in (first, second)
    ]
    one, other = widths
    return math.nan if one is None or other is None else math.hypot(one, other)


def _distance(move: Move) -> float:
    return math.inf if math.isnan(move.relative) else abs(move.relative)
