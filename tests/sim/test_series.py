"""Sums and counts over bins of time."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.sim.recorder import BinnedSums, mean_count, mean_running_and_waiting


def test_an_amount_is_spread_over_its_interval() -> None:
    """Six units over 3 ms of bins of 1 ms: two a bin, 2,000 a second."""
    sums = BinnedSums(("tokens",))
    sums.add(np.array([0.001]), np.array([0.003]), np.array([[6.0]]))

    edges, means = sums.means(0.005)

    np.testing.assert_allclose(edges, [0.0, 0.001, 0.002, 0.003, 0.004, 0.005])
    np.testing.assert_allclose(means["tokens"], [0.0, 2000.0, 2000.0, 2000.0, 0.0], atol=1e-9)


def test_bins_widen_without_losing_anything() -> None:
    """A run that outgrows the bins many times over keeps its sums, in no more bins."""
    sums = BinnedSums(("tokens", "busy"))
    for start in (0.0, 0.5, 40.0, 5000.0):
        starts = start + np.array([0.0, 0.01])
        sums.add(starts, np.array([0.005, 0.2]), np.array([[3.0, 4.0], [1.0, 0.0]]))

    edges, means = sums.means(5000.21)

    assert len(edges) <= 1025
    assert means["tokens"] @ np.diff(edges) == pytest.approx(28.0)
    assert means["busy"] @ np.diff(edges) == pytest.approx(4.0)


def test_intervals_of_several_replicas() -> None:
    """One replica's behind the other's, in any order and of any number: what each alone would give, added up."""
    generator = np.random.default_rng(8)
    together, alone = BinnedSums(("tokens", "busy")), BinnedSums(("tokens", "busy"))
    blocks = []
    for count in (1, 40, 3):
        gaps, seconds = generator.uniform(0.0, 0.02, count), generator.uniform(1e-4, 0.03, count)
        start = np.cumsum(gaps + np.concatenate(([0.0], seconds[:-1])))
        blocks.append((start, seconds, np.stack((generator.uniform(0, 9, count), seconds))))
        alone.add(*blocks[-1])
    starts, lengths, amounts = (np.concatenate(each, axis=-1) for each in zip(*blocks, strict=True))

    together.add(starts, lengths, amounts, [1, 40, 3])

    for name, expected in alone.means(3.0)[1].items():
        np.testing.assert_allclose(together.means(3.0)[1][name], expected, rtol=1e-9, atol=1e-9)


def test_the_last_bin_ends_with_the_run() -> None:
    """The mean of the last bin is over the part of it that the run lasted."""
    sums = BinnedSums(("busy",))
    sums.add(np.array([0.0]), np.array([0.0025]), np.array([[0.0025]]))

    edges, means = sums.means(0.0025)

    assert edges[-1] == 0.0025
    np.testing.assert_allclose(means["busy"], 1.0)


def test_counting_by_hand() -> None:
    """Inside from 0.5 to 2.0 and from 1.0 on; one never entered."""
    entered, left = np.array([0.5, 1.0, np.nan]), np.array([2.0, np.nan, np.nan])

    counts = mean_count(entered, left, np.array([0.0, 1.0, 2.0, 3.0]))

    np.testing.assert_allclose(counts, [0.5, 2.0, 1.0])


def test_nobody_at_all() -> None:
    """No entry: zero in every bin."""
    nobody = np.array([np.nan])

    assert mean_count(nobody, nobody, np.array([0.0, 1.0, 2.0])).tolist() == [0.0, 0.0]


def test_bins_reach_the_end_of_a_run_that_outlasts_its_steps() -> None:
    """What an API answers may end long after the last step of a replica."""
    sums = BinnedSums(("busy",))
    sums.add(np.array([0.0]), np.array([1.0]), np.array([[1.0]]))

    edges, means = sums.means(100.0)

    assert edges[-1] == 100.0
    assert means["busy"] @ np.diff(edges) == pytest.approx(1.0)


def test_an_end_on_the_edge_of_a_bin_begins_no_bin() -> None:
    """Whatever rounding made of it: a bin of no length would divide by nothing."""
    sums = BinnedSums(("busy",))
    sums.add(np.array([0.0]), np.array([0.003]), np.array([[0.003]]))

    edges, means = sums.means(np.nextafter(0.003, 1.0))

    assert len(edges) == 4
    np.testing.assert_allclose(means["busy"], [1.0, 1.0, 1.0])


def test_running_and_waiting_are_the_two_counts() -> None:
    """Also with requests that were never scheduled, never answered or never admitted, in any order of finishing."""
    admitted = np.array([0.0, 1.0, 1.5, np.nan, 2.0])
    scheduled = np.array([0.5, 1.0, np.nan, np.nan, 2.5])
    finish = np.array([4.0, 3.0, np.nan, np.nan, np.nan])
    edges = np.linspace(0.0, 5.0, 6)

    running, waiting = mean_running_and_waiting(admitted, scheduled, finish, edges)

    assert running == pytest.approx(mean_count(scheduled, finish, edges))
    assert waiting == pytest.approx(mean_count(admitted, scheduled, edges))
    assert running == pytest.approx([0.5, 2.0, 2.5, 2.0, 1.0])
