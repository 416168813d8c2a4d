"""The twin on a real Prometheus server, as Debian packages it: recorded scrapes of vLLM, filled in and asked for.

Skipped where there is none: `apt-get install prometheus`, or its two programs on the PATH.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Simserve

RECORDED = Path(__file__).resolve().parents[2] / "calibration/runs/vllm-cpu-2026-11-24-scrapes"
PROGRAMS = ("prometheus", "promtool")
UNITS = {"s": 1.0, "min": 60.0}
PATIENCE = 60.0
"""Seconds for the server to come up."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason="needs Debian's package prometheus"),
]


def _moved(text: str, end: float) -> str:
    """Return pages below ``# scraped_at`` lines as OpenMetrics, the last one scraped at ``end``, by name of series."""
    lines = text.splitlines()
    shift = end - max(float(line.split()[2]) for line in lines if line.startswith("# scraped_at"))
    at, by_name = 0.0, dict[str, list[str]]()
    for line in lines:
        if line.startswith("# scraped_at"):
            at = float(line.split()[2]) + shift
        elif line and not line.startswith("#"):
            by_name.setdefault(line.split("{")[0].split(" ")[0], []).append(f"{line} {at:.3f}\n")
    return "".join("".join(samples) for samples in by_name.values()) + "# EOF\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a Prometheus that has the recorded 20 minutes up to now."""
    recorded = gzip.decompress((RECORDED / "scrapes.prom.gz").read_bytes()).decode()
    (tmp_path / "pages.om").write_text(_moved(recorded, time.time() - 2))
    fill = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "pages.om", "data"]
    subprocess.run(fill, cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE)
    (tmp_path / "prometheus.yml").write_text("scrape_configs: []\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    process = subprocess.Popen(
        ["prometheus", *flags], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(f"http://{address}/-/ready")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def _wait_for(url: str) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)
    pytest.fail("prometheus did not come up")


def test_a_real_prometheus_tells_what_the_pages_tell(simserve: Simserve, server: str) -> None:
    """Range queries of twenty minutes, against the same pages read from the file; the change at noon ends with 99."""
    pytest.importorskip("httpx", reason="needs httpx")
    against = ("--scenario", str(RECORDED / "scenario.yaml"), "--once", "--json")

    asked = simserve("twin", server, "--for", "20min", *against)
    read = simserve("twin", str(RECORDED / "scrapes.prom.gz"), *against)

    assert (asked.code, read.code) == (99, 99)
    told, known = (json.loads(each.stdout)["drift"] for each in (asked, read))
    assert told["rate"]["ratio"] == pytest.approx(known["rate"]["ratio"], rel=0.02)
    for name in ("prompt_tokens", "output_tokens", "tpot_ms", "prefix_hit_rate"):
        assert told[name]["ratio"] == pytest.approx(known[name]["ratio"], rel=0.02)
        assert told[name]["inside"] == known[name]["inside"]


def test_a_scenario_is_made_of_what_a_real_prometheus_has(simserve: Simserve, server: str) -> None:
    """The load that changes at half time and the lengths are those that the client sent."""
    pytest.importorskip("httpx", reason="needs httpx")
    with gzip.open(RECORDED / "sent.csv.gz", "rt") as rows:
        sent = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(rows)]

    of = ("--gpus", "H100", "--model", str(RECORDED / "config.json"), "--json")
    made = simserve("import", "metrics", server, "--for", "20min", *of)

    assert made.code == 0
    workload = json.loads(made.stdout)["scenario"]["workload"]
    steps = workload["arrivals"]["steps"]
    lasting = [float(each["duration"].split()[0]) * UNITS[each["duration"].split()[1]] for each in steps]
    lasting[-1] = 1200.0 - sum(lasting[:-1])  # it goes on
    counted = [each["rate"] * seconds for each, seconds in zip(steps, lasting, strict=True)]
    asked_for = [row for row in sent if row["time"] > sent[-1]["time"] - 1200.0]
    assert sum(counted) == pytest.approx(len(asked_for), rel=0.03)
    third = len(steps) // 3
    assert sum(counted[-third:]) > 1.4 * sum(counted[:third])
    assert workload["output_tokens"]["mean"] == pytest.approx(_mean(sent, "output_tokens"), rel=0.05)
    prompts = workload["prompt_tokens"]["mean"] + workload["shared_prefix"]["tokens"]
    assert prompts == pytest.approx(_mean(sent, "prompt_tokens"), rel=0.05)


def _mean(rows: list[dict[str, float]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)
