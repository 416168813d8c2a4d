"""Figures of each class of requests, and objectives of their own."""

from __future__ import annotations

import numpy as np

from simserve.metrics.latency import SLO, attainment, request_latencies, requests_meeting
from simserve.metrics.summary import summarize
from simserve.sim.records import REJECTED
from tests.metrics.builders import make_facts, make_records, make_simulation, make_slo

NAMES = ("chat", "batch")
CLASSED = {"request_class": np.array([0, 1, 0, 1], dtype=np.int16), "class_names": NAMES}


def classed(**columns: object) -> object:
    """Return four requests, two of each class, with first tokens after 1, 2, 3 and 4 s."""
    from dataclasses import replace

    return replace(make_records([0.0, 1.0, 2.0, 3.0], ttft=[1.0, 2.0, 3.0, 4.0], e2e=6.0, **columns), **CLASSED)


def test_each_class_is_judged_by_its_own_bounds() -> None:
    """The chat must start within 2 s, the batch ones are judged by the whole."""
    latencies = request_latencies(classed())
    slo = SLO(ttft=10.0, tpot=None, e2e=5.0, attainment=0.9, by_class={"chat": make_slo(ttft=2.0)})

    assert requests_meeting(latencies, slo).tolist() == [True, False, False, False]
    shares = attainment(latencies, slo, np.ones(4, bool))
    assert shares.all_terms == 0.25
    assert shares.by_metric["ttft"] == 0.75


def test_the_summary_has_the_figures_of_each_class() -> None:
    """Latencies over its own requests, what was lost counted as missed, rates that add up."""
    records = classed(status=[0, 0, 0, REJECTED], finish_time=[6.0, 7.0, 8.0, 3.0])
    slo = SLO(ttft=None, tpot=None, e2e=None, attainment=0.9, by_class={"chat": make_slo(ttft=2.0)})
    summary = summarize(make_simulation(records), make_facts(slo=slo))
    classes = summary["simserve"]["classes"]

    assert list(classes) == ["chat", "batch"]
    assert classes["chat"]["mean_ttft_ms"] == 2000.0
    assert classes["batch"]["mean_ttft_ms"] == 2000.0
    assert classes["batch"]["rejected"] == 1
    assert classes["batch"]["submitted"] == 2
    assert classes["chat"]["slo"] == {"attainment": 0.5, "by_metric": {"ttft": 0.5, "tpot": None, "e2e": None}}
    assert classes["batch"]["slo"]["attainment"] is None
    together = sum(each["request_throughput"] for each in classes.values())
    assert together == summary["request_throughput"]


def test_without_classes_there_are_no_figures() -> None:
    """The key is there all the same."""
    assert summarize(make_simulation(make_records([0.0])), make_facts())["simserve"]["classes"] == {}
