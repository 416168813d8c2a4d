"""What every bundled scenario and many drawn clusters come to, as hashes: did a change of the code change a result?

    python -m benchmarks.fingerprint record FILE     write the hashes down, some minutes of CPU
    python -m benchmarks.fingerprint check FILE      compare with them; exit 99 names what differs
    ... --scenarios chatbot,disaggregation --clusters 100     fewer of them

Run it from the root of the repository. A scenario is run with its first 600 requests, three seeds, interpreted and
compiled: the hash of each key of `result.json` (of `simserve`, of each key below), of `requests.parquet` and of
`timeseries.parquet`. A new key is no change. Hashes hold for the versions of libraries that stand in the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import simserve as ss
from simserve.errors import InputError
from simserve.sim.acceleration import Accelerate
from simserve.sim.control import Control
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import simulate
from simserve.workload.requests import RequestSpecs
from tests.properties.test_conservation import controls, traffic
from tests.properties.test_fleet_conservation import Cluster, clusters, requests
from tests.sim.test_gateway import deployment_of, pools_of

SEEDS = (1, 2, 3)
NUM_REQUESTS = 600
NUM_CLUSTERS = 2_000
PLANES: tuple[Accelerate, ...] = ("off", "on")
TABLES = ("requests.parquet", "timeseries.parquet")
LIBRARIES = ("numpy", "scipy", "simpy", "numba", "duckdb", "hypothesis")
Hashes = dict[str, dict[str, str]]


def scenario_hashes(name: str, seed: int, accelerate: Accelerate) -> dict[str, str]:
    """Return the hashes of one run of a bundled scenario.

    Args:
        name: Of the scenario.
        seed: Of the run.
        accelerate: ``off`` or ``on``.
    """
    try:
        scenario = ss.load(name, {"run.seed": seed, "workload.num_requests": NUM_REQUESTS})
    except InputError:
        # Its length is that of a trace, or a duration.
        scenario = ss.load(name, {"run.seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        ss.run(scenario, accelerate=accelerate, advise=False, out=folder)
        written = json.loads((Path(folder) / "result.json").read_text())
        tables = {each: _digest((Path(folder) / each).read_bytes()) for each in TABLES}
    return {**_by_key(written), **tables}


def cluster_hashes(count: int) -> Hashes:
    """Return the hashes of drawn clusters: half with a gateway before two replicas, half of pools."""
    found: Hashes = {}
    drawn = settings(
        max_examples=count // 2,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )

    @drawn
    @given(traffic(), controls(), st.booleans())
    def gateways(specs: RequestSpecs, control: Control, is_ahead: bool) -> None:
        records = simulate(deployment_of(control, is_ahead), specs, accelerate="off").records
        found[f"gateway {len(found)}"] = {"records": _of_records(records)}

    @drawn
    @given(requests(), clusters())
    def pools(specs: RequestSpecs, cluster: Cluster) -> None:
        records = simulate(pools_of(cluster), specs, accelerate="off").records
        found[f"pools {len(found)}"] = {"records": _of_records(records)}

    gateways()
    pools()
    return found


def fingerprint(names: list[str], num_clusters: int) -> Hashes:
    """Return all hashes, with a line of progress a scenario on stderr."""
    found: Hashes = {}
    for name in names:
        print(name, file=sys.stderr, flush=True)
        for seed in SEEDS:
            for accelerate in PLANES:
                found[f"{name} seed {seed} {accelerate}"] = scenario_hashes(name, seed, accelerate)
    print(f"{num_clusters} clusters", file=sys.stderr, flush=True)
    return found | cluster_hashes(num_clusters)


def differences(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each key that was there before and is another now; of runs that both have."""
    return [
        f"{run}: {', '.join(changed)}"
        for run, hashes in now.items()
        if run in before and (changed := [key for key, each in before[run].items() if hashes.get(key) != each])
    ]


def _by_key(result: Mapping[str, Any]) -> dict[str, str]:
    flat = {key: value for key, value in result.items() if key != "simserve"}
    flat |= {f"simserve.{key}": value for key, value in result["simserve"].items() if key != "version"}
    return {key: _digest(json.dumps(value, sort_keys=True).encode()) for key, value in flat.items()}


def _of_records(records: RequestRecords) -> str:
    columns = [getattr(records, each.name) for each in fields(records)]
    return _digest(b"".join(each.tobytes() for each in columns if isinstance(each, np.ndarray)))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def main() -> int:
    """Record or check; return the exit code."""
    parser = argparse.ArgumentParser(description="Hashes of what scenarios and drawn clusters come to.")
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--scenarios", help="names, with commas; default: all bundled ones")
    parser.add_argument("--clusters", type=int, default=NUM_CLUSTERS)
    asked = parser.parse_args()
    logging.getLogger("simserve").setLevel(logging.ERROR)
    bundled = sorted(path.stem for path in Path("scenarios").glob("*.yaml"))
    names = asked.scenarios.split(",") if asked.scenarios else bundled
    versions = {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
    if asked.action == "record":
        text = json.dumps({"versions": versions, "hashes": fingerprint(names, asked.clusters)}, indent=0)
        asked.file.write_text(text + "\n")
        return 0
    recorded = json.loads(asked.file.read_text())
    for name, own in recorded["versions"].items():
        if versions.get(name) != own:
            print(f"recorded with {name} {own}, here {versions.get(name)}: hashes may differ for that alone")
    found = differences(recorded["hashes"], fingerprint(names, asked.clusters))
    print("\n".join(found) or "nothing differs")
    return 99 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
