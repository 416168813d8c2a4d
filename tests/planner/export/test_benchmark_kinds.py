"""The benchmark script of traffic that a client of random prompts cannot send whole."""

from __future__ import annotations

import yaml

from simserve.planner.export.benchmark import JUDGED_BY, SCRIPT, benchmark_files
from simserve.scenario.load import load


def test_images_are_neither_sent_nor_judged() -> None:
    """The script says so, and the scenario that it is judged by has text alone."""
    files = benchmark_files(load("images"), "model")

    assert "without the scenario's images" in files[SCRIPT]
    assert "images" not in yaml.safe_load(files[JUDGED_BY])["workload"]


def test_plain_traffic_is_sent_whole() -> None:
    """Nothing is said of what is left out."""
    assert "Text alone" not in benchmark_files(load("chatbot"), "model")[SCRIPT]
