"""The page of calibrated servers states the priors that `calibrate serving` uses."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docs import write_calibrated_servers as script
from simserve.calibrate.factors import PRIORS, Linear
from simserve.profiles.engine_options import FACTORS
from simserve.profiles.expected_errors import load_calibrated_errors

_ROOT = Path(__file__).resolve().parents[1]
_PAGE = _ROOT / "docs/calibrated-servers.md"


def _row(name: str) -> list[float]:
    line = next(line for line in _PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |"))
    return [float(cell) for cell in line.strip("| ").split("|")[1:]]


def test_the_priors_in_use_are_those_of_the_replayed_servers() -> None:
    """What the code states stands on the page, and is within a tenth of what all sources give."""
    stated = [*PRIORS.widths.values(), *PRIORS.misfit.values()]

    assert _row("in use") == pytest.approx(stated, abs=5e-4)
    assert stated == pytest.approx(_row("(all sources)"), rel=0.1)


def test_what_is_left_on_the_page_is_what_runs_show() -> None:
    """The table has the figures of the file that ships, and the calibration guide rounds them."""
    errors = load_calibrated_errors().metrics
    for title, name in {"TPOT": "tpot", "TTFT": "ttft", "throughput": "throughput"}.items():
        row = next(line for line in _PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {title} | "))
        cells = [float(cell.strip(" %")) for cell in row.strip("| ").split("|")[1:]]
        found = errors[name]
        shares = [found.center, found.p50, found.p90]
        counts = [found.servers, found.sources, found.figures]
        assert cells[:3] == pytest.approx([100 * each for each in shares], abs=0.06)
        assert cells[3:6] == counts
        assert cells[6:] == pytest.approx([100 * found.coverage_50, 100 * found.coverage_90], abs=0.6)

    guide = (_ROOT / "calibration/README.md").read_text(encoding="utf-8")
    said = re.search(r"half of them within (\d+) % of TPOT, nine in ten within (\d+) %", guide)
    assert said is not None
    tpot = errors["tpot"]
    assert [int(each) for each in said.groups()] == [round(100 * math.expm1(each)) for each in (tpot.p50, tpot.p90)]


def test_what_the_page_says_of_its_tables_stands_in_them() -> None:
    """Both targets by either choice of loads, the same runs side by side, and the unseen reports."""
    page = _PAGE.read_text(encoding="utf-8")
    text = " ".join(page.split())
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in page.splitlines() if line[:1] == "|"]

    def told(given: str, metric: str, predicted: str = "all others") -> list[list[str]]:
        """Return far, come to, worse, near, worse, mean: of the measured servers, then of the unseen reports."""
        return [row[3:] for row in rows if row[:3] == [given, predicted, metric]]

    ends, unseen_ends = told("lowest and highest", "TPOT")
    inner, unseen_inner = told("two inner loads", "TPOT")
    assert f"the median is {ends[1]}, and {ends[4]} of {ends[3]} get worse" in text
    assert f"Given two loads inside, it is {inner[1]} and {inner[4]} of {inner[3]}." in text
    same = [told(given, "TPOT", "those that neither has")[0][1] for given in ("two inner loads", "lowest and highest")]
    assert f"a little more of the error in TPOT ({same[0]} and {same[1]})" in text
    ttft_ends, ttft_inner = (told(given, "TTFT")[1][1] for given in ("lowest and highest", "two inner loads"))
    assert f"they come to {unseen_ends[1]} and {ttft_ends} given the ends" in text
    assert f"and to {unseen_inner[1]} and {ttft_inner} given the inner loads" in text


def test_a_source_weighs_as_much_as_any_other() -> None:
    """A thousand figures of one source do not drown ten of another."""
    rng = np.random.default_rng(1)
    values = {"large": rng.normal(0.0, 1.0, 1000).tolist(), "small": rng.normal(100.0, 1.0, 10).tolist()}

    assert script._quantile(values, 0.25) == pytest.approx(np.median(values["large"]), abs=0.01)
    assert script._quantile(values, 0.75) == pytest.approx(np.median(values["small"]), abs=0.5)
    assert script._quantile({"alone": [3.0, 1.0, 2.0, 4.0]}, 0.5) == 2.0


@pytest.mark.parametrize(("misfit", "low", "high"), [(0.001, 0.0, 0.35), (1.0, 0.9, 1.1)])
def test_what_could_be_hoped_for_follows_from_what_runs_scatter(misfit: float, low: float, high: float) -> None:
    """Servers drawn from the priors: two runs tell much where nothing else scatters, and nothing where all does."""
    slopes = np.zeros((5, len(FACTORS)))
    slopes[:, FACTORS.index("gpu")] = 1.0
    server = Linear(runs=np.arange(5), figures=("tpot",) * 5, residuals=np.zeros(5), slopes=slopes)
    priors = replace(PRIORS, widths={**PRIORS.widths, "gpu": 0.3}, misfit={"tpot": misfit, "ttft": misfit})

    drawn = script.hoped_of([server] * 12, priors, draws=8)

    assert low <= np.median([each.share for each in drawn]) <= high
    assert script.hoped_of([server] * 2, priors, draws=2) == script.hoped_of([server] * 2, priors, draws=2)


@pytest.mark.parametrize("count", range(4, 40))
def test_inner_places_have_the_mean_and_the_variance_of_all(count: int) -> None:
    """The mean to the digit, and of all pairs about the middle that variance which is nearest in its deviation."""
    places = np.arange(count)
    pairs = [(low, count - 1 - low) for low in range(count // 2)]

    found = script.inner_places(count)

    assert np.mean(found) == places.mean()
    assert found == min(pairs, key=lambda pair: abs(np.std(pair) - places.std()))


def _spread(logs: list[float]) -> Linear:
    """Return the runs of a server whose TPOT a factor on the GPU moves and nothing else."""
    slopes = np.zeros((len(logs), len(FACTORS)))
    slopes[:, FACTORS.index("gpu")] = 1.0
    return Linear(runs=np.arange(len(logs)), figures=("tpot",) * len(logs), residuals=np.array(logs), slopes=slopes)


def test_more_noise_counted_takes_less_and_harms_less() -> None:
    """All that is found, then ever less: far servers keep more of their error, and fewer near ones get worse."""
    far = [(_spread([-0.08] * 6), PRIORS)] * 3
    near = [(_spread([-0.06, 0.0, 0.0, 0.0, 0.0, -0.06]), PRIORS)] * 3

    found = script.traded_by([*far, *near], 2, script.by_noise)

    shares, harmed = [each.share for each in found], [each.near_worse for each in found]
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] + 0.2
    assert harmed == sorted(harmed, reverse=True)
    assert harmed[0] > harmed[-1]
    assert {each.far_worse for each in found} == {0.0}


def test_runs_that_do_not_agree_harm_nobody() -> None:
    """Two of three fast runs and one slow: the fit makes the rest worse, and the check keeps the profile."""
    servers = [(_spread([-0.12, 0.0, -0.12, 0.0, 0.09, 0.0]), PRIORS), (_spread([-0.2] * 6), PRIORS)]

    always, checked = script.traded_by(servers, 3, script.by_agreement)

    assert checked.near_worse < always.near_worse
    assert checked.share == pytest.approx(always.share)


def test_servers_count_alike_however_many_ways_they_have() -> None:
    """One far server of four runs and one of six: one is half of the far, whatever the number of its pairs."""
    rows = np.array([(0.10, 0.02, 0.5), (0.10, 0.03, 0.5), *[(0.10, 0.12, 0.2)] * 5, (0.02, 0.02, 1.0)])

    found = script._traded(rows)

    assert found.far_worse == pytest.approx(0.5)
    assert found.near_worse == 0.0
    assert found.share in (pytest.approx(0.3), pytest.approx(1.2))
