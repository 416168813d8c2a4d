"""Length distributions: exact means, bounds, shapes, sampling, files."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simserve import rng
from simserve.errors import TraceError
from simserve.workload.distributions import LengthDistribution, length_distribution
from simserve.workload.length_spec import (
    EmpiricalLength,
    ExponentialLength,
    FixedLength,
    GeometricLength,
    LognormalLength,
    NormalLength,
    UniformLength,
)


@st.composite
def reachable(draw, reach=1.0):
    """Return min, max and a mean that lies in the lower share ``reach`` of the way between them."""
    shortest = draw(st.integers(1, 2000))
    width = draw(st.integers(1, 3000))
    share = draw(st.floats(0.002, 0.998))
    return {"min": shortest, "max": shortest + width, "mean": shortest + reach * share * width}


def deviation(distribution: LengthDistribution) -> float:
    """Return the standard deviation of a length, tokens."""
    return float(np.sqrt((distribution.probabilities * (distribution.values - distribution.mean) ** 2).sum()))


def assert_exact(spec):
    """Check that a distribution is one, stays within its bounds and has the mean asked for."""
    distribution = length_distribution(spec)
    assert distribution.mean == pytest.approx(spec.mean, rel=1e-10)
    assert distribution.probabilities.sum() == pytest.approx(1.0, rel=1e-12)
    assert (distribution.probabilities >= 0).all()
    assert distribution.values[0] >= getattr(spec, "min", 1)
    assert spec.max is None or distribution.values[-1] <= spec.max


@settings(max_examples=60, deadline=None, derandomize=True)
@given(reachable(), st.floats(0.01, 5.0))
def test_lognormal_mean_is_exact_after_truncation(bounds, cv):
    """Whatever the bounds cut off, the mean is the mean asked for."""
    assert_exact(LognormalLength(**bounds, cv=cv))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(reachable(), st.floats(0.001, 30.0))
def test_normal_mean_is_exact_after_truncation(bounds, relative_std):
    """Whatever the bounds cut off, the mean is the mean asked for."""
    assert_exact(NormalLength(**bounds, std=max(0.001, relative_std * bounds["mean"])))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(reachable(reach=0.499))
def test_exponential_mean_is_exact_after_truncation(bounds):
    """Up to the middle of the bounds, the most a falling distribution reaches."""
    assert_exact(ExponentialLength(**bounds))


@pytest.mark.parametrize(
    "spec",
    [
        LognormalLength(mean=1155, cv=1.0, max=8000),
        LognormalLength(mean=211, cv=0.8),
        LognormalLength(mean=1.001, cv=3.0),
        NormalLength(mean=5, std=500.0, max=2000),
        NormalLength(mean=100.5, std=0.001),
        ExponentialLength(mean=200),
        ExponentialLength(mean=1.0001),
        GeometricLength(mean=300),
        GeometricLength(mean=1.4999, max=2),
        GeometricLength(mean=50, max=100),
    ],
)
def test_mean_is_exact_at_the_corners(spec):
    """Open ends, narrow peaks and means next to a bound are solved as well."""
    assert_exact(spec)


def test_untruncated_shapes_are_the_textbook_ones():
    """Far from the bounds the standard deviation is the one asked for, and a geometric falls by one ratio."""
    assert deviation(length_distribution(NormalLength(mean=500, std=50))) == pytest.approx(50, abs=0.01)
    assert deviation(length_distribution(LognormalLength(mean=1e3, cv=0.5))) == pytest.approx(500, rel=1e-4)
    geometric = length_distribution(GeometricLength(mean=4.0)).probabilities
    assert geometric[:50] == pytest.approx(0.25 * 0.75 ** np.arange(50), rel=1e-6)


def test_masses_are_those_of_the_rounded_continuous_distribution():
    """With the location that was solved for, masses equal differences of scipy's distribution function."""
    distribution = length_distribution(LognormalLength(mean=20.0, cv=0.5, max=100_000))
    sigma = np.sqrt(np.log(1.25))

    edges = np.append(distribution.values - 0.5, distribution.values[-1] + 0.5)
    location = np.log(20.0) - sigma**2 / 2
    expected = np.diff(stats.lognorm.cdf(edges, sigma, scale=np.exp(location)))
    assert distribution.probabilities == pytest.approx(expected, abs=2e-5)


def test_far_tails_keep_their_shape():
    """A normal cut 30 standard deviations from its location falls as its density does: nothing cancels."""
    distribution = length_distribution(NormalLength(mean=2.0, min=1, max=200, std=30.0))

    logarithms = np.log(distribution.probabilities)
    curvature = np.diff(logarithms[:100], n=2)
    assert curvature == pytest.approx(np.full(98, -(30.0**-2)), rel=1e-2)


@pytest.mark.parametrize(
    "spec",
    [
        FixedLength(value=7),
        UniformLength(min=3, max=9),
        NormalLength(mean=200, std=80, min=50, max=300),
        LognormalLength(mean=1155, cv=1.0, max=8000),
        ExponentialLength(mean=100, max=1000),
        GeometricLength(mean=20),
    ],
)
def test_samples_follow_the_distribution(spec):
    """Sample means lie within 4 standard errors, samples are whole numbers within the bounds."""
    distribution = length_distribution(spec)
    for seed in range(3):
        lengths = distribution.sample(rng.stream(seed, "prompt_tokens"), 20_000)

        assert lengths.dtype == np.int64
        assert distribution.values[0] <= lengths.min()
        assert lengths.max() <= distribution.values[-1]
        standard_error = deviation(distribution) / np.sqrt(len(lengths))
        assert abs(lengths.mean() - distribution.mean) <= 4 * standard_error + 1e-12


def test_uniform_includes_both_ends_equally():
    """Every whole number from min to max is drawn, each with the same frequency."""
    lengths = length_distribution(UniformLength(min=3, max=6)).sample(rng.stream(1, "x"), 40_000)

    values, counts = np.unique(lengths, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_longer_mean_lengthens_every_draw():
    """Sampling is by inversion: the same uniforms give lengths that move together."""
    short = length_distribution(LognormalLength(mean=100, cv=1)).sample(rng.stream(1, "x"), 1000)
    long = length_distribution(LognormalLength(mean=200, cv=1)).sample(rng.stream(1, "x"), 1000)

    assert (long >= short).all()


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("10\n20\n20\n30\n", None),
        ("tokens\r\n10\r\n20\r\n20\r\n30\r\n", None),
        ("id,tokens\n1,10\n2,20\n3,20\n4,30\n", "tokens"),
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_empirical_lengths_are_resampled_from_a_file(tmp_path, text, column, is_compressed):
    """One column, with or without a header, or one that is named; plain or gzip."""
    content = gzip.compress(text.encode()) if is_compressed else text.encode()
    (tmp_path / "lengths.csv").write_bytes(content)

    distribution = length_distribution(EmpiricalLength(path="lengths.csv", column=column), tmp_path)
    assert distribution.values.tolist() == [10, 20, 30]
    assert distribution.probabilities.tolist() == [0.25, 0.5, 0.25]


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", None, "lengths.csv: is empty"),
        ("a,b\n1,2\n", None, "has several columns; name one with column: a, b"),
        ("a,b\n1,2\n", "c", "c: is missing; the columns are a, b"),
        ("5\n0\n", None, "row 2, length: '0' must be >= 1"),
        ("5\n\n7\n1.5\n", None, "row 4, length: '1.5' is not a whole number"),
        ("tokens\n", None, "has a header but no rows"),
    ],
)
def test_a_broken_file_of_lengths_is_one_clear_line(tmp_path, text, column, message):
    """The file, the row, the column and the rule are named."""
    (tmp_path / "lengths.csv").write_text(text)

    with pytest.raises(TraceError) as caught:
        length_distribution(EmpiricalLength(path="lengths.csv", column=column), tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lengths_are_tabulated_once_and_cannot_be_written_to() -> None:
    """All who ask for equal lengths share one table."""
    first = length_distribution(LognormalLength(mean=300, cv=1.0, max=4000))

    assert length_distribution(LognormalLength(mean=300, cv=1.0, max=4000)) is first
    with pytest.raises(ValueError, match="read-only"):
        first.probabilities[0] = 1.0


def test_a_file_of_lengths_that_has_changed_is_read_again(tmp_path):
    """Its state counts, not its name."""
    file = tmp_path / "lengths.txt"
    file.write_text("10\n30\n", encoding="utf-8")
    before = length_distribution(EmpiricalLength(path=str(file))).mean
    file.write_text("10\n30\n80\n", encoding="utf-8")

    assert (before, length_distribution(EmpiricalLength(path=str(file))).mean) == (20.0, 40.0)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_long_table_does_not_depend_on_the_number_of_cores(threads):
    """A product of BLAS over more than 10,000 values would, in its last digit."""
    spec = "LognormalLength(mean=3000, cv=1.5, max=200_000)"
    code = (
        "from simserve.workload.length_spec import LognormalLength\n"
        "from simserve.workload.distributions import length_distribution\n"
        f"drawn = length_distribution({spec})\n"
        "print(len(drawn.values), drawn.mean.hex(), drawn.probabilities[1000].hex())"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "OPENBLAS_NUM_THREADS": threads},
    )

    here = length_distribution(LognormalLength(mean=3000, cv=1.5, max=200_000))
    assert len(here.values) > 10_000
    assert done.stdout.split() == [str(len(here.values)), here.mean.hex(), here.probabilities[1000].hex()]


def test_many_lengths_are_those_that_few_at_a_time_would_be():
    """The guide of a long list finds the rank that bisection of the cumulated shares finds, for every draw."""
    distribution = length_distribution(LognormalLength(mean=1155, cv=1.0, max=8000))
    many = distribution.sample(rng.stream(1, "lengths"), 150_000)

    cumulative = np.cumsum(distribution.probabilities)
    uniforms = rng.stream(1, "lengths").random(150_000) * cumulative[-1]
    assert np.array_equal(many, distribution.values[np.searchsorted(cumulative, uniforms, side="right")])
