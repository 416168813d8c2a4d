"""Sweeps: every combination a row, the same bytes on any number of workers, nothing finished is run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from simserve.errors import ScenarioError, SimserveError, UsageError
from simserve.planner import workers
from simserve.planner.sweep import sweep as sweep_module
from simserve.planner.sweep import workers as sweep_workers
from simserve.planner.sweep.point import Row, Task, run_task
from simserve.planner.sweep.sweep import Sweep, parse_grid, sweep
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario, scenario_mapping

GRID: dict[str, Any] = {"workload.arrivals.rate": [2, 5.5, 9], "deployment.quantization": ["none", "fp8"]}
_REPOSITORY = Path(__file__).resolve().parents[3]


def read(out: Path) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    found = duckdb.sql(f"SELECT * FROM '{out}'")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def test_every_combination_is_a_row_with_the_figures_of_its_run(tmp_path: Path) -> None:
    """In the order of the grid, the last key varying fastest."""
    answer = sweep(make_scenario(), GRID, out=tmp_path / "x.parquet")

    rows = read(tmp_path / "x.parquet")
    assert [(row["workload.arrivals.rate"], row["deployment.quantization"]) for row in rows] == [
        (rate, format_) for rate in (2, 5.5, 9) for format_ in ("none", "fp8")
    ]
    expected = run(make_scenario(["workload.arrivals.rate=5.5", "deployment.quantization=fp8"])).summary
    assert rows[3]["p95_ttft_ms"] == expected["p95_ttft_ms"]
    assert rows[3]["slo_attainment"] is None
    assert rows[3]["scenario_hash"] == expected["simserve"]["scenario_hash"]
    assert (answer.num_points, answer.num_failed) == (6, 0)
    assert answer.points["mean_tpot_ms"][3] == expected["mean_tpot_ms"]
    assert os.listdir(tmp_path) == ["x.parquet"]


def test_what_cannot_run_is_a_row_with_its_error(tmp_path: Path) -> None:
    """It does not fit, or it is no scenario; an apostrophe in the error is no accident."""
    grid = {"model": ["llama-3.2-1b", "llama-3.1-405b"], "deployment.quantization": ["none", "int99"]}

    answer = sweep(make_scenario(), grid, out=tmp_path / "x.parquet")

    rows = read(tmp_path / "x.parquet")
    assert [row["status"] for row in rows] == ["ok", "invalid", "infeasible", "invalid"]
    assert "does not fit" in rows[2]["error"]
    assert "'int99'" in rows[1]["error"]
    assert answer.summary["failed"] == 3
    assert [each["point"] for each in answer.summary["errors"]] == [1, 2, 3]


@pytest.mark.slow
def test_a_sample_is_drawn_by_the_seed_and_keeps_its_places() -> None:
    """Another seed, another sample; a sample of more than there are is all of them."""
    grid = {"workload.arrivals.rate": list(range(1, 16))}

    one, again = (sweep(make_scenario(["workload.num_requests=2"]), grid, sample=5) for _ in range(2))
    other = sweep(make_scenario(["workload.num_requests=2", "run.seed=2"]), grid, sample=5)
    everything = sweep(make_scenario(["workload.num_requests=2"]), grid, sample=99)

    places = [[row["point"] for row in answer.rows] for answer in (one, again, other)]
    assert places[0] == places[1] != places[2]
    assert len(places[0]) == 5
    assert [row["values"]["workload.arrivals.rate"] for row in one.rows] == [place + 1 for place in places[0]]
    assert len(everything.rows) == 15


def interrupt_after(count: int) -> Callable[[Task], Row]:
    """Return what runs points until so many are done, then is interrupted."""
    done = 0

    def interrupting(task: Task) -> Row:
        nonlocal done
        if done == count:
            raise KeyboardInterrupt
        done += 1
        return run_task(task)

    return interrupting


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was finished is not run again, and the bytes are those of a sweep in one go."""
    sweep(make_scenario(), GRID, out=tmp_path / "whole.parquet")
    monkeypatch.setattr(sweep_workers, "run_task", interrupt_after(4))
    first = sweep(make_scenario(), GRID, out=tmp_path / "x.parquet")
    assert (first.was_interrupted, len(first.rows)) == (True, 4)
    assert not (tmp_path / "x.parquet").exists()
    with (tmp_path / "x.parquet.partial").open("ab") as partial:
        partial.write(b'{"version": "0.1.0", "row": {"sce')

    monkeypatch.setattr(sweep_workers, "run_task", interrupt_after(2))
    second = sweep(make_scenario(), GRID, out=tmp_path / "x.parquet")

    assert (second.was_interrupted, second.num_resumed) == (False, 4)
    assert (tmp_path / "x.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["whole.parquet", "x.parquet"]


def test_points_of_another_version_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their figures may have moved."""
    monkeypatch.setattr(sweep_workers, "run_task", interrupt_after(4))
    sweep(make_scenario(), GRID, out=tmp_path / "x.parquet")
    partial = tmp_path / "x.parquet.partial"
    partial.write_text(partial.read_text().replace('"version": "', '"version": "0.0.'), encoding="utf-8")
    monkeypatch.undo()

    assert sweep(make_scenario(), GRID, out=tmp_path / "x.parquet").num_resumed == 0


@pytest.mark.slow
def test_workers_write_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the order in which they finish, and whatever processes they are."""
    for jobs, backend in ((1, "auto"), (2, "auto"), (2, "loky")):
        sweep(make_scenario(), GRID, out=tmp_path / f"{jobs}{backend}.parquet", workers=jobs, backend=backend)

    assert len({each.read_bytes() for each in tmp_path.iterdir()}) == 1
    assert len(list(tmp_path.iterdir())) == 3


def die(task: Task) -> Row:
    """End the worker as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return run_task(task)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A worker stopped")
def test_workers_that_keep_dying_end_the_sweep_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with a traceback, and not for ever."""
    monkeypatch.setattr(sweep_workers, "run_task", die)
    monkeypatch.setattr(workers, "MOST_DEATHS", 1)

    with pytest.raises(SimserveError, match=r"keep dying.*fewer --workers"):
        sweep(make_scenario(), GRID, workers=2, backend="loky")


def test_the_same_sweep_may_be_written_again_and_another_not(tmp_path: Path) -> None:
    """Nobody's table is lost by a wrong name."""
    out = tmp_path / "x.parquet"
    grid = {"deployment.replicas": [1, 2]}
    sweep(make_scenario(), grid, out=out)

    sweep(make_scenario(), grid, out=out)
    with pytest.raises(UsageError, match="holds another table"):
        sweep(make_scenario(), {"deployment.replicas": [1]}, out=out)

    assert len(read(out)) == 2
    assert len(sweep(make_scenario(), {"deployment.replicas": [1]}, out=out, force=True).rows) == 1


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("rates", [(5.0, 6.0), (1.0, 2.0)])
def test_two_sweeps_at_once_do_not_write_one_table(tmp_path: Path, rates: tuple[float, ...], force: bool) -> None:
    """The second, the same or another, is refused in one line, and the first loses nothing."""
    out = tmp_path / "x.parquet"
    told: list[str] = []

    def start_another(done: int, total: int) -> None:
        with pytest.raises(UsageError) as refused:
            sweep(make_scenario(), {"workload.arrivals.rate": list(rates)}, out=out, force=force)
        told.append(str(refused.value))

    sweep(make_scenario(), {"workload.arrivals.rate": [1.0, 2.0]}, out=out, progress=start_another)

    assert told == [f"{out}: --out: is being written by another sweep; wait for it, or choose another file"] * 2
    assert [row["workload.arrivals.rate"] for row in read(out)] == [1.0, 2.0]
    assert [each.name for each in tmp_path.iterdir()] == ["x.parquet"]


def test_the_points_that_another_sweep_was_interrupted_at_are_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused like its table; `force` replaces them."""
    out, partial = tmp_path / "x.parquet", tmp_path / "x.parquet.partial"
    monkeypatch.setattr(sweep_workers, "run_task", interrupt_after(1))
    sweep(make_scenario(), {"workload.arrivals.rate": [1.0, 2.0]}, out=out)
    monkeypatch.undo()
    kept = partial.read_bytes()

    with pytest.raises(UsageError, match="holds 1 finished point of another sweep; choose another file, or --force"):
        sweep(make_scenario(), {"workload.arrivals.rate": [5.0]}, out=out)

    assert partial.read_bytes() == kept
    sweep(make_scenario(), {"workload.arrivals.rate": [5.0]}, out=out, force=True)
    assert [row["workload.arrivals.rate"] for row in read(out)] == [5.0]
    assert not partial.exists()


_WRITING = """
import sys, time
from pathlib import Path
from simserve.unfinished import only_writer

with only_writer(Path(sys.argv[1])):
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_killed_sweep_does_not_keep_others_out(tmp_path: Path) -> None:
    """While another process writes the table it is refused, and not once that is killed."""
    out, grid = tmp_path / "x.parquet", {"workload.arrivals.rate": [1.0]}
    with subprocess.Popen([sys.executable, "-c", _WRITING, str(out)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(UsageError, match="is being written by another sweep"):
            sweep(make_scenario(), grid, out=out)
        process.kill()

    sweep(make_scenario(), grid, out=out)

    assert [each.name for each in tmp_path.iterdir()] == ["x.parquet"]


def test_a_name_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    """Before any point is run: the table could not be written there."""
    with pytest.raises(UsageError, match="--out: is not a UTF-8 name"):
        sweep(make_scenario(), {"deployment.replicas": [1]}, out=tmp_path / os.fsdecode(b"caf\xe9.parquet"))

    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_table_is_not_replaced(tmp_path: Path) -> None:
    """Nor one that is neither Parquet nor CSV by its name, nor a folder."""
    for name in ("x.parquet", "x.csv"):
        (tmp_path / name).write_text("mine")

    for out in (tmp_path / "x.parquet", tmp_path / "x.csv", tmp_path / "x.json", tmp_path):
        with pytest.raises(UsageError, match="--out"):
            sweep(make_scenario(), GRID, out=out)


def test_a_table_can_be_csv(tmp_path: Path) -> None:
    """The same rows; another sweep does not replace it, the same one does."""
    for name in ("x.parquet", "x.csv", "x.csv"):
        sweep(make_scenario(), GRID, out=tmp_path / name)
    tables = [duckdb.sql(f"SELECT * FROM '{tmp_path / name}'") for name in ("x.csv", "x.parquet")]

    assert tables[0].columns == tables[1].columns
    assert len(tables[0].fetchall()) == len(tables[1].fetchall()) > 1
    assert tables[0].project("scenario_hash, mean_ttft_ms").fetchall() == (
        tables[1].project("scenario_hash, mean_ttft_ms").fetchall()
    )
    with pytest.raises(UsageError, match="holds another table"):
        sweep(make_scenario(), {"deployment.replicas": [3]}, out=tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("texts", "grid"),
    [
        (["a.b=1,2", "c=x, y"], {"a.b": [1, 2], "c": ["x", "y"]}),
        (["a={b: 1, c: 2},[3,4]"], {"a": [{"b": 1, "c": 2}, [3, 4]]}),
        (["deployment.engine.version=0.10,0.12"], {"deployment.engine.version": ["0.10", "0.12"]}),
        (["a=1 s,true,null"], {"a": ["1 s", True, None]}),
        (["a=1:4:1,8"], {"a": [1, 2, 3, 4, 8]}),
        (["a=0.5:1.1:0.2", "b=4:0:-2"], {"a": [0.5, 0.7, 0.9, 1.1], "b": [4, 2, 0]}),
        (["a=06:30,1:2"], {"a": ["06:30", "1:2"]}),
    ],
)
def test_a_grid_is_read_as_set_reads_values(texts: list[str], grid: dict[str, list[Any]]) -> None:
    """YAML, and version 0.10 is not 0.1."""
    assert parse_grid(texts) == grid


@pytest.mark.parametrize(
    "texts", [["a"], ["=1"], ["a="], ["a=1,,2"], ["a=1", "a=2"], ["a=1:4:0"], ["a=4:1:1"], ["a=0:9:0.000001"]]
)
def test_what_is_no_grid_is_refused(texts: list[str]) -> None:
    """With an example."""
    with pytest.raises(UsageError, match="--grid"):
        parse_grid(texts)


def test_a_wrong_key_is_not_a_table_of_errors(tmp_path: Path) -> None:
    """Where no point is a scenario, it is the grid that is wrong."""
    with pytest.raises(ScenarioError, match=r"no point of the grid is a scenario.*did you mean 'replicas'"):
        sweep(make_scenario(), {"deployment.replica": [1, 2]}, out=tmp_path / "x.parquet")


def test_a_backend_that_is_not_there_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is run."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    for backend in ("dask", "ray"):
        with pytest.raises(UsageError, match=rf"pip install 'simserve\[{backend}\]'"):
            sweep(make_scenario(), GRID, backend=backend)
    with pytest.raises(UsageError, match="loky, dask, ray"):
        sweep(make_scenario(), GRID, backend="spark")
    with pytest.raises(UsageError, match="--scheduler"):
        sweep(make_scenario(), GRID, scheduler="tcp://nowhere:1")


def test_progress_counts_the_points() -> None:
    """Up to all of them."""
    told: list[tuple[int, int]] = []

    sweep(make_scenario(), GRID, progress=lambda done, total: told.append((done, total)))

    assert told == [(done, 6) for done in range(1, 7)]


# --- 200 points, a killed worker and an interrupt -------------------------------------------------------------------

LARGE = {
    "workload.arrivals.rate": [1 + 0.5 * step for step in range(50)],
    "deployment.quantization": ["none", "fp8"],
    "deployment.engine.max_num_seqs": [16, 64],
}
LARGE_FLAGS = [part for key, values in LARGE.items() for part in ("--grid", f"{key}={','.join(map(str, values))}")]


@pytest.fixture(scope="module")
def in_one_go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the table of 200 points, made by one process without a stop."""
    out = tmp_path_factory.mktemp("large") / "whole.parquet"
    assert len(sweep(make_scenario(["workload.num_requests=300"]), LARGE, out=out).rows) == 200
    return out


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    """Start the sweep of 200 points in a process of its own."""
    mapping = scenario_mapping()
    mapping["workload"]["num_requests"] = 300
    (folder / "small.yaml").write_text(yaml.safe_dump(mapping), encoding="utf-8")
    command = [sys.executable, "-m", "simserve", "sweep", "small.yaml", *LARGE_FLAGS, "--out", "x.parquet", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
    return subprocess.Popen(
        [*command, *flags], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_points(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many points are kept."""
    partial = folder / "x.parquet.partial"
    while not partial.exists() or partial.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def children(process: int, marker: str) -> Iterator[int]:
    """Yield the processes below one whose command line holds a word."""
    found = subprocess.run(["ps", "-ewwo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    for line in found.splitlines()[1:]:
        pid, parent, command = line.split(None, 2)
        if int(parent) == process and marker in command:
            yield int(pid)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "marker"), [("auto", "simserve"), ("loky", "popen_loky")])
def test_200_points_survive_a_killed_worker_and_an_interrupt_here(
    tmp_path: Path, in_one_go: Path, backend: str, marker: str
) -> None:
    """And end in the same bytes."""
    first = start(tmp_path, "--workers", "2", "--backend", backend)
    wait_for_points(tmp_path, 20, first)
    os.kill(next(children(first.pid, marker)), signal.SIGKILL)
    wait_for_points(tmp_path, 60, first)
    first.send_signal(signal.SIGINT)
    _, stderr = first.communicate(timeout=60)
    assert first.returncode == 105, stderr
    assert "points are kept" in stderr

    second = start(tmp_path, "--workers", "2", "--backend", backend)
    stdout, stderr = second.communicate(timeout=300)

    assert second.returncode == 0, stderr
    assert '"resumed": 0' not in stdout
    assert (tmp_path / "x.parquet").read_bytes() == in_one_go.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_200_points_survive_a_killed_worker_and_an_interrupt_on_dask(tmp_path: Path, in_one_go: Path) -> None:
    """A real scheduler with two worker processes, one of which is killed."""
    distributed = pytest.importorskip("distributed", reason="pip install 'simserve[dask]'")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, env={"PYTHONPATH": str(_REPOSITORY)}
    ) as cluster:
        flags = ("--backend", "dask", "--scheduler", cluster.scheduler_address)
        first = start(tmp_path, *flags)
        wait_for_points(tmp_path, 20, first)
        os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
        wait_for_points(tmp_path, 60, first)
        first.send_signal(signal.SIGINT)
        _, stderr = first.communicate(timeout=60)
        assert first.returncode == 105, stderr

        second = start(tmp_path, *flags)
        _, stderr = second.communicate(timeout=300)

    assert second.returncode == 0, stderr
    assert (tmp_path / "x.parquet").read_bytes() == in_one_go.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_writes_the_same_bytes(tmp_path: Path, in_one_go: Path) -> None:
    """A cluster of its own with two processes."""
    pytest.importorskip("ray", reason="pip install 'simserve[ray]'")

    process = start(tmp_path, "--backend", "ray", "--workers", "2")
    _, stderr = process.communicate(timeout=300)

    assert process.returncode == 0, stderr
    assert (tmp_path / "x.parquet").read_bytes() == in_one_go.read_bytes()


def test_a_sweep_holds_what_was_asked() -> None:
    """The module's function and its result go by the same name."""
    assert isinstance(sweep_module.sweep(make_scenario(), {"deployment.replicas": [1]}), Sweep)
