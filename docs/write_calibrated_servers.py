"""Write what calibrating servers on two runs gains: ``python docs/write_calibrated_servers.py DATE [FOLDER]``.

The page, and the errors that are left, which `simserve` expects of a calibrated server. FOLDER holds the measurements
(../shared/data/measured). Each server with four replayed runs or more is given the two loads that stand for all of its
loads (`inner_places`), and beside that its lowest and its highest; the others are predicted.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from calibration.laboratory.sources import read_points
from simserve.calibrate.factors import FREEDOM, PRIORS, SCALE, FactorSearch, Linear, Priors, believed, solve
from simserve.calibrate.simulated import slowed
from simserve.perf.operators import PricedDeployment
from simserve.perf.tables import price
from simserve.planner.measured.point import MeasuredPoint, Metric
from simserve.planner.measured.reports import read_unseen
from simserve.planner.validation.prediction import Pricer, predict
from simserve.profiles.engine_options import FACTORS
from simserve.profiles.expected_errors import LEVEL
from simserve.scenario.resolve import ResolvedScenario
from simserve.scenario.schema import Scenario
from simserve.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/calibrated-servers.md"
ERRORS = ROOT / "calibration/calibrated_errors.json"
MEASURED = ROOT.parent / "shared/data/measured"
TABLE = "## Servers"
FEWEST_RUNS = 4
FITTED = ("tpot", "ttft")
PER_RUN = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_cudagraph_capture_size")
"""Settings that benchmarks choose for a load: they make no other server."""
FAR = 0.06
"""Error above which a server is expected to gain."""


class SlowedPricer(Pricer):
    """Prices deployments that take so many times as long."""

    def __init__(self, whole: Pricer, factors: Mapping[str, float]) -> None:
        super().__init__()
        self._whole, self._factors = whole, factors

    def of(self, scenario: Scenario) -> tuple[ResolvedScenario, PricedDeployment]:
        """Return the deployment of a scenario with its seconds."""
        resolved = slowed(self._whole.of(scenario)[0], self._factors)
        return resolved, price(resolved.shape)


@dataclass(slots=True)
class Server:
    """One server: its runs in order of load, as the simulator sees it."""

    name: tuple[str, ...]
    points: Sequence[MeasuredPoint]
    pricer: Pricer = field(default_factory=Pricer)
    before: list[Mapping[str, float]] = field(default_factory=list)

    @property
    def measured(self) -> list[dict[str, float]]:
        """The figures of each run that are scored."""
        return [
            {name: each.measured[name] for name in FITTED if name in each.measured and name not in each.shown_only}
            for each in self.points
        ]

    def figures(self, run: int, factors: Mapping[str, float]) -> Mapping[str, float]:
        """Return what the simulator says of a run; nothing where it cannot be replayed."""
        if all(value == 1.0 for value in factors.values()):
            return predict(self.points[run], self.pricer).predicted
        return predict(self.points[run], SlowedPricer(self.pricer, factors)).predicted


def servers_of(points: Sequence[MeasuredPoint]) -> list[Server]:
    """Return the servers with enough runs, each in order of load."""
    groups: dict[tuple[str, ...], list[MeasuredPoint]] = {}
    for each in points:
        if each.scenario and not each.reason and not each.pools and {*each.measured} - each.shown_only & {*FITTED}:
            groups.setdefault(_name(each), []).append(each)
    found = []
    for name, group in groups.items():
        if len(group) >= FEWEST_RUNS:
            server = Server(name, group)
            known = [(predict(each, server.pricer).predicted, each) for each in group]
            usable = [(figures, each) for figures, each in known if any(name in figures for name in _scored(each))]
            usable.sort(key=lambda pair: (pair[0].get("tpot", 0.0), pair[0].get("ttft", 0.0), pair[1].label))
            if len(usable) >= FEWEST_RUNS:
                found.append(Server(name, [each for _, each in usable], server.pricer, [f for f, _ in usable]))
    return found


def _scored(point: MeasuredPoint) -> list[str]:
    return [name for name in FITTED if name in point.measured and name not in point.shown_only]


def _name(point: MeasuredPoint) -> tuple[str, ...]:
    deployed = dict(point.scenario["deployment"])
    engine = {key: value for key, value in dict(deployed.pop("engine", {})).items() if key not in PER_RUN}
    deployed.pop("hardware", None)
    layout = json.dumps([deployed, engine, point.scenario["model"]], sort_keys=True, default=str)
    return (point.source, point.engine, point.version, point.hardware, point.model, layout)


def spread_of(servers: Sequence[Server]) -> list[Linear]:
    """Return some runs of every server around its profile: what the priors are derived from."""
    found = []
    for each in servers:
        count = len(each.points)
        runs = sorted({round(place) for place in np.linspace(0, count - 1, min(count, MOST_RUNS))})
        found.append(FactorSearch(each.measured, each.figures, PRIORS).linear_at(np.zeros(len(FACTORS)), runs))
    return found


def priors_of(spreads: Sequence[Linear]) -> Priors:
    """Return the widths under which the residuals of servers are most probable: empirical Bayes.

    Residuals of a server follow a multivariate t with the covariance that its slopes make of the widths, and its noise:
    odd servers do not widen all. A weak pull to the first guess keeps widths finite that no server tells.
    """

    def surprise(logs: Sequence[float]) -> float:
        priors, total = _as_priors(logs), 0.0
        for each in spreads:
            covariance = each.slopes @ priors.covariance() @ each.slopes.T + np.diag(each.noise(priors) ** 2)
            held = np.clip(each.residuals, -MOST_RESIDUAL, MOST_RESIDUAL)
            square = float(held @ np.linalg.solve(covariance, held)) / (FREEDOM - 2.0)
            total += float(np.linalg.slogdet(covariance)[1]) + (FREEDOM + len(held)) * float(np.log1p(square))
        return total + float(np.sum((np.asarray(logs) - np.log(GUESS)) ** 2))

    options = {"maxiter": 800, "xatol": 0.01}
    return _as_priors(minimize(surprise, np.log(GUESS), method="Nelder-Mead", options=options).x.tolist())


@dataclass(frozen=True, slots=True)
class Hoped:
    """What the fit would bring servers that are just as the priors say: one of many draws.

    Attributes:
        share: Of the error that is left, in the median of servers that were `FAR` off; of TPOT.
        num_worse: Others that get worse by more than a point.
        num_others: Others.
    """

    share: float
    num_worse: int
    num_others: int


def hoped_of(spreads: Sequence[Linear], priors: Priors, draws: int, seed: int = 0) -> list[Hoped]:
    """Draw servers from the priors, give each the two loads that stand for all, and predict its other runs.

    Factors, misfits and repeats follow Student's t with the scales of the priors, so that nothing about these servers
    is unknown to the fit but what two runs leave open: no rule can be hoped to do much better than this.
    """
    rng, found = np.random.default_rng(seed), []
    for _ in range(draws):
        errors = [pair for each in spreads if (pair := _drawn_errors(each, priors, rng)) is not None]
        far = [after / before for before, after in errors if before > FAR]
        near = [(before, after) for before, after in errors if before <= FAR]
        worse = sum(after > before + 0.01 for before, after in near)
        found.append(Hoped(float(np.median(far)), worse, len(near)))
    return found


def inner_places(count: int) -> tuple[int, int]:
    """Return the indices of the two of ``count`` loads that have the mean and the variance of all of them.

    Of four they are the first and the last, of seven the second and the last but one.
    """
    middle, deviation = (count - 1) / 2.0, math.sqrt((count**2 - 1) / 12.0)
    return round(middle - deviation), round(middle + deviation)


def _drawn_errors(spread: Linear, priors: Priors, rng: np.random.Generator) -> tuple[float, float] | None:
    """Return the median errors of TPOT of a drawn server, before and after; None without a run beside the given."""
    runs = np.unique(spread.runs)
    is_given = np.isin(spread.runs, runs[list(inner_places(len(runs)))])
    scored = ~is_given & np.array([name == "tpot" for name in spread.figures])
    if not scored.any():
        return None
    drawn = drawn_server(spread, priors, rng)
    given, start = drawn.of(is_given), np.zeros(len(FACTORS))
    aim = solve(given, start, priors)[0]
    aim = believed(given, start, aim, priors) * aim
    logs = drawn.residuals[scored]
    before, after = (np.abs(np.expm1(each)) for each in (logs, logs + drawn.slopes[scored] @ aim))
    return float(np.median(before)), float(np.median(after))


def drawn_server(spread: Linear, priors: Priors, rng: np.random.Generator) -> Linear:
    """Return a server with the same runs whose factors, misfits and repeats are drawn from the priors."""
    factors = priors.scales() * rng.standard_t(FREEDOM, len(FACTORS))
    noise = SCALE * spread.noise(priors) * rng.standard_t(FREEDOM, len(spread.figures))
    return replace(spread, residuals=noise - spread.slopes @ factors)


@dataclass(frozen=True, slots=True)
class Traded:
    """What a rule brings servers that are far from their profiles, and what it costs the others; TPOT.

    Attributes:
        share: Of the error that is left, in the median of the far.
        far_worse: Share of the far that get worse by more than a point.
        near_worse: The same of the others.
    """

    share: float
    far_worse: float
    near_worse: float


Found = Callable[[Linear, Priors], Sequence[NDArray[np.float64]]]
"""Given runs of a server and its priors -> log factors by each of the rules that are compared."""


def traded_by(servers: Sequence[tuple[Linear, Priors]], num_given: int, found: Found) -> list[Traded]:
    """Return what each of some rules trades, over the ways to give so many of a server's runs; servers count alike.

    Args:
        servers: Runs linearised at the profile, each with the priors that its source had no part in.
        num_given: How many runs are given; the others are predicted, along the slopes.
        found: The rules.
    """
    rows: list[list[tuple[float, float, float]]] = []
    for spread, priors in servers:
        runs = np.unique(spread.runs).tolist()
        ways = [
            way
            for way in itertools.combinations(runs, min(num_given, len(runs)))
            if len(way) < len(runs) and runs.index(way[-1]) - runs.index(way[0]) >= SPAN * (len(runs) - 1)
        ]
        for way in ways:
            is_given = np.isin(spread.runs, way)
            scored = ~is_given & np.array([name == "tpot" for name in spread.figures])
            if not scored.any():
                continue
            logs = spread.residuals[scored]
            before = float(np.median(np.abs(np.expm1(logs))))
            row = []
            for factors in found(spread.of(is_given), priors):
                after = float(np.median(np.abs(np.expm1(logs + spread.slopes[scored] @ factors))))
                row.append((before, after, 1.0 / len(ways)))
            rows.append(row)
    return [_traded(np.array(each)) for each in zip(*rows, strict=True)]


def _traded(rows: NDArray[np.float64]) -> Traded:
    before, after, weights = rows.T
    is_far, is_worse = before > FAR, after > before + 0.01
    ratios, far = (after / np.maximum(before, 1e-12))[is_far], weights[is_far]
    order = np.argsort(ratios)
    middle = int(np.searchsorted(np.cumsum(far[order]), 0.5 * far.sum() - 1e-12))
    return Traded(
        share=float(ratios[order][middle]),
        far_worse=float(np.average(is_worse[is_far], weights=far)),
        near_worse=float(np.average(is_worse[~is_far], weights=weights[~is_far])),
    )


def by_noise(given: Linear, priors: Priors) -> list[NDArray[np.float64]]:
    """Return what two runs say, less as noise counts more times."""
    start = np.zeros(len(FACTORS))
    aim = solve(given, start, priors)[0]
    share = believed(given, start, aim, priors)
    return [aim if times == 0.0 else share / (share + times * (1.0 - share)) * aim for times in NOISES]


def by_agreement(given: Linear, priors: Priors) -> list[NDArray[np.float64]]:
    """Return what some runs say, and the same where they foretell one another; nothing where not."""
    runs = np.unique(given.runs).tolist()
    places = [{name: place for place, name in enumerate(given.figures) if given.runs[place] == run} for run in runs]

    def figures(run: int, factors: Mapping[str, float]) -> Mapping[str, float]:
        moved = given.slopes @ np.log([factors[name] for name in FACTORS])
        return {name: float(np.exp(given.residuals[place] + moved[place])) for name, place in places[run].items()}

    start = np.zeros(len(FACTORS))
    aim = solve(given, start, priors)[0]
    kept = FactorSearch([dict.fromkeys(each, 1.0) for each in places], figures, priors).fit().is_kept
    taken = believed(given, start, aim, priors) * aim
    return [taken, taken if kept else start]


NOISES = (0.0, 0.5, 1.0, 2.0, 5.0)
"""How many times what noise alone would gain is counted (`believed`: once)."""
SPAN = 0.5
"""Least part of the range of a server's loads that those given have between them."""
DRAWN_SERVERS = 3
"""Servers drawn for each measured one."""


def _trades(spreads: Sequence[Linear], priors: Sequence[Priors]) -> list[str]:
    """Return tables of what is gained and what is lost, by how much of a fit is taken and by the runs given."""
    servers, rng = list(zip(spreads, priors, strict=True)), np.random.default_rng(0)
    drawn = [(drawn_server(each, own, rng), own) for _ in range(DRAWN_SERVERS) for each, own in servers]
    lines = [
        "### What is taken of a fit, and what it costs",
        "",
        "Two of up to six runs of a server are given, in every way that has half of its range of loads between them,",
        "and the others are predicted along the slopes at the profile; TPOT. Drawn are servers of the same runs:",
        "the fit knows all of them but the draw.",
        "",
        "| noise counted | far come to | far worse | near worse | drawn: far come to | far worse | near worse |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    pairs = zip(NOISES, *(traded_by(each, 2, by_noise) for each in (servers, drawn)), strict=True)
    names = {0.0: "never: all is taken", 1.0: "once (in use)"}
    lines += [f"| {names.get(n, f'{n:g} times')} | {_cells(one)} | {_cells(other)} |" for n, one, other in pairs]
    lines += [
        "",
        "From three runs up the profile is kept where they foretell one another no better than it does:",
        "",
        "| runs given | far come to | far worse | near worse | checked: far come to | far worse | near worse |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for num_given in (3, 4):
        always, checked = traded_by(servers, num_given, by_agreement)
        lines.append(f"| {num_given} | {_cells(always)} | {_cells(checked)} |")
    return lines


def _cells(each: Traded) -> str:
    return f"{each.share:.2f} | {each.far_worse:.0%} | {each.near_worse:.0%}"


def _as_priors(logs: Sequence[float]) -> Priors:
    *widths, tpot, ttft = (float(value) for value in np.exp(logs))
    return Priors(widths=dict(zip(FACTORS, widths, strict=True)), misfit={"tpot": tpot, "ttft": ttft})


GUESS = (0.1, 0.3, 0.15, 0.15, 0.5, 0.05, 0.15)
"""Widths of the factors, then misfits of TPOT and TTFT, where the search begins."""
DRAWS = 100
"""Of all servers, for what could be hoped for."""
MOST_RESIDUAL = 0.7
MOST_RUNS = 6
"""Runs of a server that the priors look at, evenly over its loads."""


Places = Callable[[int], tuple[int, int]]
"""Number of loads -> which two are given, in their order."""


def end_places(count: int) -> tuple[int, int]:
    """Return the first and the last."""
    return 0, count - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A server before and after two of its runs were given.

    Attributes:
        server: Which.
        factors: What the two said.
        simulated: Run that was not given -> its figures with these factors.
    """

    server: Server
    factors: Mapping[str, float]
    simulated: Mapping[int, Mapping[str, float]]

    def error(self, metric: str, among: Sequence[int] | None = None) -> tuple[float, float] | None:
        """Return the median absolute error of a metric before and after; None where no run has it.

        Args:
            metric: Which.
            among: Runs that count; None: all that were not given.
        """
        server, pairs = self.server, []
        for run in self.simulated if among is None else among:
            measured, known = server.measured[run], (server.before[run], self.simulated[run])
            if metric in measured and all(metric in each for each in known):
                pairs.append([abs(each[metric] / measured[metric] - 1.0) for each in known])
        if not pairs:
            return None
        before, after = np.median(pairs, axis=0).tolist()
        return before, after

    def logs(self, metric: Metric) -> list[float]:
        """Return log(predicted / measured) of a metric in the runs that the server was not given."""
        return _logs(self.server, self.simulated, metric)


def outcome_of(server: Server, priors: Priors, places: Places = inner_places) -> Outcome:
    """Return what the runs of a server come to that it was not given."""
    given = places(len(server.points))
    search = FactorSearch([server.measured[i] for i in given], lambda run, f: server.figures(given[run], f), priors)
    found = search.fit(is_held_out=False).factors
    others = [run for run in range(len(server.points)) if run not in given]
    return Outcome(server=server, factors=found, simulated={run: server.figures(run, found) for run in others})


METRICS: Sequence[Metric] = ("tpot", "ttft", "throughput")
"""Of the model of errors."""


def _logs(server: Server, simulated: Mapping[int, Mapping[str, float]], metric: Metric) -> list[float]:
    """Return log(predicted / measured) of a metric in the runs that a server was not given."""
    found = []
    for run, figures in simulated.items():
        point = server.points[run]
        if metric in point.measured and metric in figures and metric not in point.shown_only:
            found.append(float(np.log(figures[metric] / point.measured[metric])))
    return found


def calibrated_errors(outcomes: Sequence[Outcome], date: str) -> dict[str, Any]:
    """Return the file of the errors of calibrated servers: quantiles in which every source counts once."""
    metrics = {}
    for metric in METRICS:
        logs = {
            source: [log for each in outcomes if each.server.name[0] == source for log in each.logs(metric)]
            for source in sorted({each.server.name[0] for each in outcomes})
        }
        logs = {source: values for source, values in logs.items() if values}
        inside: dict[float, list[float]] = {0.5: [], LEVEL: []}
        for source, values in logs.items():
            rest = {name: each for name, each in logs.items() if name != source}
            center = _quantile(rest, 0.5)
            for level, shares in inside.items():
                half = _quantile({name: [abs(log - center) for log in each] for name, each in rest.items()}, level)
                shares.append(float(np.mean([abs(log - center) <= half for log in values])))
        center = _quantile(logs, 0.5)
        sizes = {name: [abs(log - center) for log in each] for name, each in logs.items()}
        metrics[metric] = {
            "center": round(center, 5),
            "p50": round(_quantile(sizes, 0.5), 5),
            "p90": round(_quantile(sizes, LEVEL), 5),
            "servers": sum(bool(each.logs(metric)) for each in outcomes),
            "sources": len(logs),
            "figures": sum(map(len, logs.values())),
            "coverage_90": round(float(np.mean(inside[LEVEL])), 3),
            "coverage_50": round(float(np.mean(inside[0.5])), 3),
        }
    made_by = "python docs/write_calibrated_servers.py"
    return {"made_by": made_by, "simserve": __version__, "date": date, "metrics": metrics}


def _quantile(values: Mapping[str, Sequence[float]], share: float) -> float:
    """Return a quantile of figures by source, each source weighing as much as any other."""
    every = np.concatenate([np.asarray(each) for each in values.values()])
    weights = np.concatenate([np.full(len(each), 1.0 / len(each)) for each in values.values()])
    order = np.argsort(every)
    place = int(np.searchsorted(np.cumsum(weights[order]), share * weights.sum() - 1e-9))
    return float(every[order][min(place, len(every) - 1)])


def page(folder: Path, date: str) -> tuple[str, dict[str, Any]]:
    """Return the page (what a person wrote above the table, and the tables), and the errors of calibrated servers."""
    servers = servers_of(read_points(folder, ()))
    spreads = spread_of(servers)
    sources = sorted({each.name[0] for each in servers})
    left_out = {
        source: priors_of([s for s, server in zip(spreads, servers, strict=True) if server.name[0] != source])
        for source in sources
    }
    measured = [Pair.of(each, left_out[each.name[0]]) for each in servers]
    unseen = [Pair.of(each, PRIORS) for each in servers_of(read_unseen())]
    errors = calibrated_errors([each.inner for each in (*measured, *unseen)], date)
    lines = [TABLE, "", *_summary(measured), "", *_hoped(hoped_of(spreads, PRIORS, DRAWS)), ""]
    lines += [*_trades(spreads, [left_out[each.name[0]] for each in servers]), ""]
    lines += ["By source, TPOT:", "", *_by_source(measured), "", *_table(measured), ""]
    lines += ["## Unseen reports", "", "These use the priors of `simserve/calibrate/factors.py`.", ""]
    lines += [*_summary(unseen), "", *_table(unseen), "", "## What is left", "", *_left(errors), "", "## Priors", ""]
    header = [*FACTORS, "misfit of TPOT", "misfit of TTFT"]
    lines += [f"| without | {' | '.join(header)} |", "|---|" + "---:|" * len(header)]
    lines += [_prior_row(source, priors) for source, priors in left_out.items()]
    lines += [_prior_row("(all sources)", priors_of(spreads)), _prior_row("in use", PRIORS)]
    text = PAGE.read_text()
    return "\n".join([text[: text.index(TABLE)].rstrip("\n"), "", *lines]) + "\n", errors


def _hoped(found: Sequence[Hoped]) -> list[str]:
    """Return a line on what could be hoped for."""
    low, middle, high = np.quantile([each.share for each in found], [0.05, 0.5, 0.95])
    worse = np.quantile([each.num_worse for each in found], [0.05, 0.5, 0.95])
    others = np.mean([each.num_others for each in found])
    return [
        f"If these servers were exactly as the priors say, the same fit to the same runs would come to {middle:.2f} of",
        f"the error in TPOT ({low:.2f} to {high:.2f} in nine of ten draws). It would make {worse[1]:.0f} of about",
        f"{others:.0f} others worse by more than a point ({worse[0]:.0f} to {worse[2]:.0f}).",
        f"This is from {len(found)} draws of the factors, misfits and repeats of all servers.",
    ]


def _left(errors: Mapping[str, Any]) -> list[str]:
    lines = [
        "These are the errors at the loads that a server was not given, `log(predicted / measured)`, for sources and",
        "for unseen reports. Each source counts once. A run of a calibrated server shows them as its interval.",
        "Coverage is that of intervals made without the source.",
        "",
        "| metric | center | half of 50 % | half of 90 % | servers | sources | figures | inside 50 % | inside 90 % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for metric, each in errors["metrics"].items():
        shares = [
            f"{each[name]:+.1%}" if name == "center" else f"{each[name]:.1%}" for name in ("center", "p50", "p90")
        ]
        counts = [str(each[name]) for name in ("servers", "sources", "figures")]
        covered = [f"{each[name]:.0%}" for name in ("coverage_50", "coverage_90")]
        lines.append(
            f"| {metric.upper() if metric != 'throughput' else metric} | {' | '.join([*shares, *counts, *covered])} |"
        )
    return lines


def _prior_row(name: str, priors: Priors) -> str:
    values = [*priors.widths.values(), *priors.misfit.values()]
    return f"| {name} | {' | '.join(f'{value:.3f}' for value in values)} |"


@dataclass(frozen=True, slots=True)
class Pair:
    """A server by the two loads that stand for all, and by its ends."""

    inner: Outcome
    ends: Outcome

    @classmethod
    def of(cls, server: Server, priors: Priors) -> Pair:
        """Return both; they are the same where the ends stand for all."""
        inner = outcome_of(server, priors)
        count = len(server.points)
        return cls(inner, inner if inner_places(count) == end_places(count) else outcome_of(server, priors, end_places))

    @property
    def common(self) -> list[int]:
        """Runs that neither was given."""
        return [run for run in self.inner.simulated if run in self.ends.simulated]


Errors = Sequence[tuple[float, float]]
"""Of servers: the median error before and after."""


def _summary(pairs: Sequence[Pair]) -> list[str]:
    """Return how far servers come, by both rules, on all their runs and on those that neither was given."""
    lines = [
        f"Far: servers with more than {FAR:.0%} of error before, and the share of it that they come to in the median.",
        "Worse: by more than a point. Mean: of all servers, before -> after.",
        "",
        "| given | predicted | metric | far | come to | worse | near | worse | mean |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for title in ("two inner loads", "lowest and highest"):
        for runs in ("all others", "those that neither has"):
            for name in FITTED:
                found = [_error(each, title, runs, name) for each in pairs]
                cells = _counts([each for each in found if each is not None])
                lines.append(f"| {title} | {runs} | {name.upper()} | {' | '.join(cells)} |")
    return lines


def _by_source(pairs: Sequence[Pair]) -> list[str]:
    """Return how far the servers of each source come, by both rules; TPOT."""
    header = "far | come to | worse | near | worse | mean"
    lines = [f"| source | two inner loads: {header} | lowest and highest: {header} |", "|---|" + "---:|" * 12]
    for source in sorted({each.inner.server.name[0] for each in pairs}):
        own = [each for each in pairs if each.inner.server.name[0] == source]
        cells = []
        for which in ("inner", "ends"):
            found = [getattr(each, which).error("tpot") for each in own]
            cells += _counts([each for each in found if each is not None])
        lines.append(f"| {source} | {' | '.join(cells)} |")
    return lines


def _error(pair: Pair, title: str, runs: str, name: str) -> tuple[float, float] | None:
    outcome = pair.inner if title == "two inner loads" else pair.ends
    return outcome.error(name, None if runs == "all others" else pair.common)


def _counts(errors: Errors) -> list[str]:
    far = [(before, after) for before, after in errors if before > FAR]
    near = [(before, after) for before, after in errors if before <= FAR]
    worse = [sum(after > before + 0.01 for before, after in group) for group in (far, near)]
    share = f"{np.median([after / before for before, after in far]):.2f}" if far else "-"
    before, after = np.mean(errors, axis=0) if errors else (np.nan, np.nan)
    return [f"{len(far)}", share, f"{worse[0]}", f"{len(near)}", f"{worse[1]}", f"{before:.1%} -> {after:.1%}"]


def _table(pairs: Sequence[Pair]) -> list[str]:
    """Return a row a server: errors by both rules, and the factors of the inner loads."""
    lines = ["| source | engine | GPU | model | predicted | TPOT | TTFT | TPOT by the ends | TTFT by the ends |"]
    lines[0] += f" {' | '.join(FACTORS)} |"
    lines.append("|---|---|---|---|---:|---:|---:|---:|---:|" + "---:|" * len(FACTORS))
    return lines + [_row(each) for each in pairs]


def _row(pair: Pair) -> str:
    source, engine, version, hardware, model, _ = pair.inner.server.name
    found = [outcome.error(name) for outcome in (pair.inner, pair.ends) for name in FITTED]
    errors = [f"{each[0]:.1%} -> {each[1]:.1%}" if each is not None else "" for each in found]
    factors = [f"{pair.inner.factors[name]:.2f}" for name in FACTORS]
    cells = [source, f"{engine} {version}", hardware, model, str(len(pair.inner.simulated)), *errors, *factors]
    return "| " + " | ".join(cells) + " |"


def main(date: str, folder: Path = MEASURED) -> None:
    """Write the page and the file."""
    text, errors = page(folder, date)
    PAGE.write_text(text)
    ERRORS.write_text(json.dumps(errors, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
