"""The tables of a report, cell by cell: units, intervals, shares of a whole."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.report.tables import LATENCY_LABELS, STATISTICS, latency_rows, memory_rows


def latencies(milliseconds: float, half_width: float) -> dict[str, Any]:
    """Return a summary all of whose latencies are the same, with the interval of the mean TTFT."""
    figures = {f"{each}_{name}": milliseconds for name in LATENCY_LABELS for each in STATISTICS}
    return {**figures, "simserve": {"confidence_intervals": {"mean_ttft_ms": {"half_width": half_width}}}}


@pytest.mark.parametrize(
    ("milliseconds", "half_width", "unit", "text"),
    [(9999.0, 500.0, "ms", "9,999 ±500"), (20_000.0, 500.0, "s", "20.0 ±0.50"), (10_000.0, 250.0, "s", "10.0 ±0.25")],
)
def test_a_latency_and_its_interval_have_the_unit_of_the_row(
    milliseconds: float, half_width: float, unit: str, text: str
) -> None:
    """From ten seconds on they are seconds, and so are the intervals behind them."""
    row = latency_rows(latencies(milliseconds, half_width))[0]

    assert (row.label, row.unit, row.cells[0].text) == ("TTFT", unit, text)
    assert row.cells[0].value == milliseconds


def test_parts_of_memory_add_up_to_the_gpu() -> None:
    """What no part takes is unused; every part has its share of the whole."""
    parts = {"weights_bytes": 40e9, "kv_bytes": 20e9, "activation_bytes": 4e9, "non_torch_bytes": 2e9}
    memory = {**parts, "cuda_graph_bytes": 1e9, "total_bytes": 80e9}
    rows = {row.label: row.cells for row in memory_rows({"simserve": {"memory": memory}})}

    assert rows["Unused"][0].value == pytest.approx(80e9 - 67e9)
    assert rows["Weights"][1].text == "50%"
    assert sum(cells[0].value or 0.0 for label, cells in rows.items() if label != "GPU") == pytest.approx(80e9)
    assert sum(cells[1].value or 0.0 for label, cells in rows.items() if label != "GPU") == pytest.approx(1.0)
