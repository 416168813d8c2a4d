"""Fits of collectives: which table of a framework is read."""

from pathlib import Path

import duckdb

from calibration.laboratory.fits.collective_fit import read_all_reduce


def test_the_last_version_is_the_highest_number(tmp_path: Path) -> None:
    """0.5.14 comes after 0.5.9, whatever the letters say."""
    for version, microseconds in (("0.5.9", 7.0), ("0.5.14", 5.0)):
        folder = tmp_path / "b200_sxm" / "comm" / "sglang" / version
        folder.mkdir(parents=True)
        row = f"SELECT 4 AS num_gpus, 4096 AS message_size, {microseconds / 1e3} AS latency, 'sglang_graph' AS backend"
        duckdb.sql(f"COPY ({row}) TO '{folder / 'custom_allreduce_perf.parquet'}' (FORMAT parquet)")

    calls = read_all_reduce(tmp_path, "b200_sxm", "sglang")

    assert calls is not None
    assert calls.seconds.tolist() == [5e-6]
