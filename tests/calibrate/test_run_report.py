"""What is said of a run: how it ended, how fast kernels were, what held the clock down."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.calibrate.fit_report import warnings
from simserve.calibrate.kernel_fit import KernelFit
from simserve.calibrate.run_folder import KernelRun, read_run
from simserve.calibrate.run_report import clock_lines, ending_line, spread_line, table_rows
from tests.calibrate.synthetic_run import write_run


def test_a_row_a_kind(tmp_path: Path) -> None:
    """Calls, shortest and longest, spread, best rate."""
    rows = {row[0]: row[1:] for row in table_rows(read_run(write_run(tmp_path / "run", noise=0.0)))}

    assert set(rows) == {
        *("products bfloat16", "prefill attention", "decode attention"),
        *("rms_norm", "rotary", "add", "silu_and_mul", "copies"),
    }
    calls, _, _, spread, best = rows["copies"]
    assert (calls, spread) == ("19", "4.0%")
    assert best.endswith("TB/s")
    assert 3.9 < float(best.split()[0]) <= 4.0


def test_the_ending_says_how_much_is_there(tmp_path: Path) -> None:
    """Complete or not."""
    run = read_run(write_run(tmp_path / "run", kinds=("copies",), ended="budget"))

    assert ending_line(run).startswith("INCOMPLETE, its budget was spent: 19 of ")


@pytest.mark.parametrize(
    ("reasons", "said"),
    [("0x0000000000000000", []), ("0x0000000000000001", []), ("0x0000000000000004", ["power cap"]), ("N/A", [])],
)
def test_throttling_is_said_and_warned_of(tmp_path: Path, reasons: str, said: list[str]) -> None:
    """An idle GPU is none that is held down."""
    sample = {"clocks.sm": "1980", "temperature.gpu": "61", "power.draw": "650.1", "reasons": reasons}
    run = read_run(write_run(tmp_path / "run", kinds=("copies",)))
    seen = KernelRun(run.folder, {**run.provenance, "clocks": [sample, {**sample, "clocks.sm": "1200"}]}, run.tables)

    first, *rest = clock_lines(seen)

    assert first == "SM clock 1590 MHz (1200 to 1980) in 2 looks, at most 61 C"
    assert rest == [f"throttled by {reason} in 2 of 2 looks" for reason in said]
    assert [line for line in warnings(seen, KernelFit().fit(seen)) if line.startswith("throttled")] == rest
    assert clock_lines(run) == []


def test_a_busy_device_is_suspected(tmp_path: Path) -> None:
    """Where the calls of a run spread by half of what they take."""
    run = read_run(write_run(tmp_path / "run", kinds=("copies",)))
    wide = run.tables["copy_perf"].assign(latency_p90=1.5 * run.tables["copy_perf"]["latency"])
    busy = KernelRun(run.folder, run.provenance, {"copy_perf": wide})

    assert spread_line(run) == ""
    assert spread_line(busy) == "half of the calls spread by more than 52%: was the device doing other work?"
    assert spread_line(busy) in warnings(busy, KernelFit().fit(busy))
