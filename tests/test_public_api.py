"""The public names: what `import simserve` offers, and that it costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import simserve as ss
from simserve.errors import UsageError
from simserve.planner.layout import OneLine
from simserve.planner.one_line import ask
from tests.scenario.builders import make_scenario, scenario_mapping

_PUBLIC = [
    "RunResult",
    "Scenario",
    "SimserveError",
    "Simulation",
    "__version__",
    "capacity",
    "compare",
    "cost",
    "diff",
    "load",
    "memory",
    "plan",
    "run",
    "sweep",
    "validate",
    "verify",
]


def test_the_public_names_are_these() -> None:
    """A new one is a decision, not an accident."""
    assert sorted(ss.__all__) == _PUBLIC
    assert dir(ss) == _PUBLIC


@pytest.mark.parametrize("name", _PUBLIC)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    """Each resolves, and what can be called says what it does."""
    value = getattr(ss, name)

    assert isinstance(value, str) or value.__doc__


def test_one_line_in_python_is_the_one_on_the_command_line(caplog: pytest.LogCaptureFixture) -> None:
    """The same scenario as the flags make; what is assumed is logged, and what lacks or contradicts is refused."""
    limited = {"deployment.engine.max_num_seqs": 64}

    found = ss.load(
        "Qwen/Qwen3-8B", limited, gpus="2xL4", rate=3, prompt_tokens="2k", output_tokens=500, slo="ttft=1.5s"
    )

    assert (found.deployment.num_gpus, found.deployment.tensor_parallel_size) == (2, 2)
    assert found.deployment.engine.max_num_seqs == 64
    flags = OneLine(gpus="2xL4", rate=3.0, prompt_tokens="2k", output_tokens="500", slo="ttft=1.5s")
    assert found == ask("Qwen/Qwen3-8B", flags, ["deployment.engine.max_num_seqs=64"]).scenario
    assert ss.load("chatbot", rate=2).hash == ss.load("chatbot", ["workload.arrivals.rate=2"]).hash
    assert ss.load(like="vllm serve Qwen/Qwen3-8B", gpus="L4", rate=1).model == "qwen3-8b"
    assert "Nothing says what traffic arrives" in caplog.text
    with pytest.raises(UsageError, match="is a model, and lacks --rate"):
        ss.load("Qwen/Qwen3-8B", gpus="L4")
    with pytest.raises(UsageError, match="not with a mapping"):
        ss.load(scenario_mapping(), rate=2)


def test_another_name_is_an_attribute_error() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        ss.rnu  # noqa: B018


def test_importing_simserve_imports_nothing_heavy() -> None:
    """Names are imported when they are first used."""
    code = "import sys, simserve; print([n for n in ('numpy', 'pydantic', 'simpy', 'yaml') if n in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[1],
    )

    assert done.stdout == "[]\n"


def test_run_takes_a_scenario_a_path_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And writes no file unless it is asked to."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(scenario_mapping()), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    results = [ss.run(make_scenario()), ss.run("small.yaml"), ss.run(tmp_path / "small.yaml")]

    assert [result.summary["completed"] for result in results] == [20, 20, 20]
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_run_writes_where_it_is_told(tmp_path: Path) -> None:
    """All files of a result, and no others."""
    ss.run(make_scenario(), out=tmp_path / "out")

    assert len(list((tmp_path / "out").iterdir())) == 5


def test_run_refuses_an_unusable_folder(tmp_path: Path) -> None:
    """With the exception that the command line turns into exit code 2."""
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError):
        ss.run(make_scenario(), out=tmp_path / "file")


def test_load_takes_overrides_as_texts_or_values() -> None:
    """`--set` and keyword-like values do the same."""
    texts = ss.load("chatbot", ["deployment.replicas=2", "slo.ttft=2 s"])
    values = ss.load("chatbot", {"deployment.replicas": 2, "slo.ttft": "2 s"})

    assert texts.hash == values.hash


def test_memory_says_what_fits() -> None:
    """The same keys as the command's JSON."""
    report = ss.memory("chatbot")

    assert report["fits"]
    assert report["num_kv_blocks"] > 0


def test_the_summary_is_read_only() -> None:
    """A result stays what the run gave."""
    with pytest.raises(TypeError):
        ss.run(make_scenario()).summary["completed"] = 0  # type: ignore[index]


SHORT = {"workload.num_requests": 20}


def test_one_change_needs_no_list() -> None:
    """A text alone is that change, not the letters of it."""
    loaded = ss.load("chatbot", "deployment.replicas=2")
    found = ss.compare(ss.load("chatbot", SHORT), {"two": "deployment.replicas=2"}, replications=1)

    assert loaded.deployment.replicas == 2
    assert found.variants[0].changes == {"deployment.replicas": "2"}
    with pytest.raises(ss.SimserveError, match="needs a variant"):
        ss.compare("chatbot", ["deployment.replicas=2"])  # type: ignore[arg-type]


def test_one_value_of_a_grid_is_the_only_one() -> None:
    """A text is not read letter by letter."""
    found = ss.sweep(ss.load("chatbot", SHORT), {"deployment.hardware": "h200-sxm-141gb", "workload.arrivals.rate": 2})

    assert [row["values"] for row in found.rows] == [
        {"deployment.hardware": "h200-sxm-141gb", "workload.arrivals.rate": 2}
    ]


def test_numbers_of_numpy_are_numbers() -> None:
    """Those that a loop over a table yields."""
    asked = {"workload.num_requests": np.int64(20), "workload.arrivals.rate": np.float64(3.0)}
    scenario = ss.load("chatbot", asked)
    grid = {"deployment.replicas": np.array([1, 2]), "workload.arrivals.rate": np.float64(2.0)}

    assert scenario.workload.num_requests == 20
    assert ss.load(scenario.as_mapping() | {"run": {"seed": np.int64(7)}}).run.seed == 7
    assert [type(row["values"]["deployment.replicas"]) for row in ss.sweep(scenario, grid).rows] == [int, int]


def test_a_scenario_is_a_key() -> None:
    """Equal ones are one key: what was run can be kept in a dictionary."""
    scenario, same, other = (ss.load("chatbot", f"workload.arrivals.rate={rate}") for rate in (2, 2, 3))

    assert len({scenario, same, other}) == 2


def test_two_results_of_a_notebook_are_compared() -> None:
    """Neither has a folder."""
    slow, fast = (ss.run(ss.load("chatbot", SHORT | {"deployment.replicas": count})) for count in (1, 2))
    found = ss.diff(slow, fast)

    assert found.changed_keys == {"deployment.replicas": (1, 2)}
    assert found.names == ("chatbot", "chatbot")
    assert "figures moved, most of all" in found._repr_html_()
    assert "most of all std_" not in found._repr_html_()


def test_plan_takes_the_name_of_one_gpu() -> None:
    """Not the letters of it."""
    with pytest.raises(ss.SimserveError, match="'h1000' is not a known hardware; did you mean"):
        ss.plan("chatbot", hardware="h1000")


def test_a_run_is_verified_from_python() -> None:
    """As by the command: the fast engine beside the reference, on a bundled name, and how far apart they are."""
    found = ss.verify("single-gpu-7b", num_requests=20)

    assert found.is_equal
    assert (found.requests, found.differing) == (20, {})
    assert found.largest_difference < 1e-9
