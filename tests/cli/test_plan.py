"""`simserve plan`: its answer, its JSON, its exit codes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import simserve as ss
from simserve.errors import UsageError
from simserve.planner.capacity.answer import capacity
from simserve.planner.one_line import kinds_of_gpus
from simserve.planner.plan import throughput
from simserve.planner.plan.findings import Findings
from tests.cli.conftest import Simserve
from tests.scenario.builders import scenario_mapping

pytestmark = pytest.mark.usefixtures("answered_once")

_KEYS = {"feasible", "best", "candidates", "pareto", "binding", "nearest_miss"}
_SMALL = [
    "--hardware",
    "l4-24gb,h100-sxm-80gb",
    "--over",
    "deployment.tensor_parallel_size=1",
    "--over",
    "deployment.pipeline_parallel_size=1",
    "--over",
    "deployment.engine.max_num_seqs=64",
    "--over",
    "deployment.engine.max_num_batched_tokens=2048",
    "--jobs",
    "1",
]


_KEPT = ["--keep", "weights,kv-cache,engine,drafts", "--jobs", "1"]
_ONE = ["--hardware", "l4-24gb", *_SMALL[2:]]
"""On the GPU that wins."""


@pytest.fixture
def scenario(folder: Path) -> str:
    """Return the path of a small scenario with an SLO."""
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(scenario_mapping(slo={"ttft": "300 ms", "tpot": "30 ms"})), encoding="utf-8")
    return file.name


@pytest.mark.slow
def test_the_json_has_the_documented_keys(simserve: Simserve, scenario: str) -> None:
    """One object on stdout and nothing else."""
    outcome = simserve("plan", scenario, "--json", *_SMALL)

    answer = json.loads(outcome.stdout)
    assert outcome.code == 0
    assert outcome.stderr == ""
    assert set(answer) >= _KEYS
    assert answer["feasible"] is True
    assert answer["best"]["hardware"] == "l4-24gb"
    assert 0.5 < answer["best"]["probability"] <= 1
    assert answer["best"]["probability_basis"].endswith("servers of dense models on l4-24gb under vllm from 0.8")
    assert [each["status"] for each in answer["candidates"]].count("best") == 1
    assert answer["nearest_miss"] is None


def test_the_answer_comes_first_and_its_command_runs(simserve: Simserve, scenario: str) -> None:
    """A person reads what to deploy, what it costs, and how to run it; the line can be pasted."""
    outcome = simserve("plan", scenario, *_SMALL, "-v")

    lines = outcome.stdout.splitlines()
    assert lines[0].startswith("Deploy 1 x l4-24gb")
    assert "a month" in lines[0]
    command = next(line for line in lines if line.startswith("simserve run "))
    again = simserve(*shlex.split(command)[1:], "--out", "again")
    assert again.code == 0
    assert "SLO holds" in again.stdout


@pytest.mark.usefixtures("best_alone")
def test_a_plan_is_written_as_a_scenario_that_runs(simserve: Simserve, scenario: str, folder: Path) -> None:
    """With what it rests on in its head; a relative trace is found from there, and no file is overwritten unasked."""
    (folder / "traffic.csv").write_text("timestamp,prompt,completion\n" + "".join(f"{n},90,20\n" for n in range(60)))
    inner = yaml.safe_load(Path(scenario).read_text(encoding="utf-8"))
    inner["workload"] = {"trace": {"path": "traffic.csv"}}
    Path(scenario).write_text(yaml.safe_dump(inner), encoding="utf-8")
    (folder / "plans").mkdir()
    written = Path("plans", "best.yaml")

    planned = simserve("plan", scenario, "--out", str(written), *_ONE)
    again = simserve("plan", scenario, "--out", str(written), *_ONE)
    run = json.loads(simserve("run", str(written), "--json", "--out", "run").stdout)

    text = written.read_text(encoding="utf-8")
    assert text.startswith("# Deploy 1 x l4-24gb")
    assert f"simserve run {written}" in planned.stdout
    assert f"Files  {written}" in planned.stdout
    assert (again.code, written.read_text(encoding="utf-8")) == (2, text)
    assert "--force" in again.error_line
    assert run["completed"] == 60
    assert run["simserve"]["slo"]["attainment"] >= 0.95


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
@pytest.mark.parametrize(("holds", "of_fixed"), [(True, 0.7), (False, 0.7), (True, 1.0)])
def test_a_plan_with_an_autoscaler_writes_the_autoscaler(
    holds: bool, of_fixed: float, simserve: Simserve, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it holds at less than the fixed fleet, and its thresholds in the head; else the fixed fleet stays.

    The answer is about what is written: fleet, latencies and load, which is told of as many replicas as there may be.
    """
    scaling = {"metric": "running", "target": 7, "min_replicas": 1, "max_replicas": 3, "stabilization": "300 s"}
    found: dict[str, Any] = {
        "metric": "running",
        "target": 7.0,
        "min_replicas": 1,
        "max_replicas": 3,
        "stabilization_s": 300.0,
        "holds": holds,
        "of_fixed": of_fixed,
        "of_clairvoyant": 1.05,
        "replica_hours": 20.0,
        "usd": None,
        "label": "1 to 3 x (1 x l4-24gb), scaled on running",
        "mean_gpus": 1.5,
        "usd_per_month": 410.0,
        "fresh_seeds": [1],
        "attainment": {"asked": 0.95, "least": 0.96, "mean": 0.97},
    }

    def searched(findings: Findings) -> dict[str, Any]:
        assert findings.fleet is not None
        changes = {**findings.fleet.overrides, "deployment.replicas": 1, "deployment.autoscaling": scaling}
        fixed = {"replicas": 2, "replica_hours": 48.0, "usd": None}
        known = {"replica_hours": 19.0, "usd": None}
        best = {**found, "overrides": changes, "command": "simserve run there"}
        steps = [{"time_s": 0.0, "requests_per_second": 1.0, "replicas": 1.0, "clairvoyant_replicas": 1}]
        told = {"startup_s": 90.0, "seconds": 300.0, "fixed": fixed, "clairvoyant": known, "tried": []}
        return {**told, "best": best, "over_time": steps}

    monkeypatch.setattr("simserve.planner.plan.plan.thresholds_of", searched)
    rising = "workload.arrivals={process: steps, steps: [{rate: 1, duration: 30 s}, {rate: 4, duration: 30 s}]}"
    line = ("--set", rising, "--set", "workload.num_requests=null", "--set", "workload.duration=1 min")

    outcome = simserve("plan", scenario, "--autoscaler", "--trials", "0", *line, "--out", "best.yaml", *_ONE)

    text = Path("best.yaml").read_text(encoding="utf-8")
    written = yaml.safe_load(text)["deployment"].get("autoscaling")
    assert outcome.code == 0, outcome.stderr
    (first,) = (line for line in outcome.stdout.splitlines() if line.startswith("Scaling"))
    assert ("No setting" in first) == (not holds or of_fixed >= 1)  # the answer begins with what to do
    assert "Scale on running requests: 7.00 a replica, 1 to 3 replicas" in " ".join(text.replace("\n#", "").split())
    assert (written is not None) == (holds and of_fixed < 1)
    assert written is None or written["target"] == 7
    assert simserve("export", "best.yaml", "--to", "k8s", "--quiet").code == 0
    run = simserve("run", "best.yaml", "--out", "run")
    for name in ("TTFT", "TPOT", "Load") if written is not None else ("TTFT", "TPOT"):
        planned, ran = (
            " ".join(next(line for line in text.splitlines() if line.startswith(name)).split()[:9])
            for text in (outcome.stdout, run.stdout)
        )
        assert planned == ran
    assert outcome.stdout.startswith("Deploy 1 to 3 x (1 x l4-24gb), scaled") == (written is not None)
    assert ("on 1.50 GPUs on average" in outcome.stdout) == (written is not None)


@pytest.mark.slow
def test_the_most_of_fixed_gpus_is_written_with_its_load(simserve: Simserve) -> None:
    """What runs is the deployment at the load that the answer names, not at the rate that was asked with."""
    line = ["plan", "llama-3.2-1b", "--objective", "throughput", "--gpus", "1xL4", "--rate", "1", "--trials", "0"]
    line += ["--prompt-tokens", "90", "--output-tokens", "20", "--slo", "ttft=1s,tpot=50ms"]

    answer = json.loads(simserve(*line, *_KEPT, "--out", "most.yaml", "--json").stdout)
    written = Path("most.yaml").read_text(encoding="utf-8")

    assert yaml.safe_load(written)["workload"]["arrivals"]["rate"] == answer["best"]["rate"] > 1
    assert written.startswith("# ")
    assert simserve("run", "most.yaml", "--check").code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_no_plan_ends_with_3_and_prints_the_miss(simserve: Simserve, scenario: str, folder: Path) -> None:
    """The JSON is still there; stderr says what to relax, and no scenario is written: there is nothing to run."""
    impossible = ["plan", scenario, "--set", "slo.tpot=10 us"]

    outcome = simserve(*impossible, "--json", "--out", str(folder / "best.yaml"), *_SMALL)

    answer = json.loads(outcome.stdout)
    assert outcome.code == 3
    assert not (folder / "best.yaml").exists()
    assert answer["feasible"] is False
    assert answer["nearest_miss"]["metric"] == "tpot"
    assert answer["nearest_miss"]["reached"] > 1e-5
    assert outcome.error_line.startswith("no plan holds; allow TPOT of at least")
    shown = simserve(*impossible, *_SMALL, "-v").stdout
    assert shown.startswith("No plan: no deployment here can keep TPOT within")
    assert "Within reach, without the limit on TPOT" in shown


@pytest.mark.usefixtures("best_alone")
def test_a_plan_that_is_unsure_says_how_to_be_surer(simserve: Simserve) -> None:
    """Beside the share of real servers that hold it, which stands before what that rests on."""
    line = ["plan", "llama-3.1-8b", "--gpus", "2xL4", "--prompt-tokens", "500", "--output-tokens", "100", "--rate", "1"]
    line += ["--slo", "ttft=2s,tpot=40ms", "--num-requests", "200", "--trials", "0", *_KEPT]

    unsure = simserve(*line).stdout

    trust = next(each for each in unsure.splitlines() if each.startswith("Trust"))
    assert re.match(r"Trust +[\d.]+% of real servers hold it.*; for more: --confidence 90%", trust)


@pytest.mark.usefixtures("best_alone")
def test_gpus_may_be_named_one_by_one(simserve: Simserve, scenario: str) -> None:
    """`--hardware` twice says the same as both names in one; the last of them alone counted."""
    alone = ["--hardware", "l4-24gb", "--hardware", "h100-sxm-80gb", *_SMALL[2:]]

    several, together = (simserve("plan", scenario, "--json", "--trials", "0", *each) for each in (alone, _SMALL))

    assert several.code == 0
    assert several.stdout == together.stdout


def test_a_model_that_needs_more_gpus_than_allowed_says_how_many(simserve: Simserve) -> None:
    """Before any latency that the missing GPUs would reach; the command names its GPU once."""
    line = ["plan", "llama-3.1-405b", "--gpus", "2xL4", "--prompt-tokens", "100", "--output-tokens", "20"]

    outcome = simserve(*line, "--rate", "1", "--slo", "ttft=1ms", "--trials", "0")

    assert outcome.code == 3
    assert outcome.stdout.startswith("No plan: at least 16 GPUs are needed (bound), 2 are allowed.")
    assert "--gpus l4-24gb" in outcome.stdout
    assert "deployment.hardware" not in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--headroom", "much"], 2),
        (["--headroom", "-1"], 2),
        (["--confidence", "sure"], 2),
        (["--confidence", "1.5"], 2),
        (["--objective", "throughput", "--headroom", "0.2"], 2),
        (["--objective", "throughput", "--gpus", "L4"], 2),
        (["--hardware", "l4-24gb,"], 2),
        (["--over", "deployment.replicas=1,2"], 2),
        (["--objective", "beauty"], 2),
        (["--max-gpus", "0"], 2),
        (["--hardware", "l5-24gb"], 104),
        (["--over", "deployment.nothing=1"], 104),
        (["--set", "deployment.replicas=none"], 104),
    ],
)
def test_bad_input_is_one_line(simserve: Simserve, scenario: str, arguments: list[str], code: int) -> None:
    """Nothing on stdout, the documented code."""
    outcome = simserve("plan", scenario, *arguments)

    assert outcome.code == code, outcome.stderr
    assert outcome.stdout == ""
    assert outcome.error_line


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
def test_headroom_is_read_as_a_share_or_percent(simserve: Simserve, scenario: str) -> None:
    """0.5 and 50% are the same plan."""
    one, two = (simserve("plan", scenario, "--json", "--headroom", text, *_ONE) for text in ("0.5", "50%"))

    assert one.stdout == two.stdout
    assert json.loads(one.stdout)["headroom"] == 0.5


def test_what_fixed_gpus_can_do_needs_no_rate(
    simserve: Simserve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model, GPUs, lengths and limits: tokens a second lead, and the page has the picture of the front."""
    monkeypatch.setattr(
        throughput, "capacity", lambda there, confidence: capacity(there, num_requests=300, replications=2)
    )
    asked = ["--gpus", "2xL4", "--prompt-tokens", "100", "--output-tokens", "20", "--slo", "ttft=300ms,tpot=16ms"]
    narrow = [*_SMALL[2:], "--trials", "0", "--keep", "weights,kv-cache,tensor-parallel"]
    narrow = [
        each for pair in zip(narrow[::2], narrow[1::2], strict=True) if "tensor_p" not in pair[1] for each in pair
    ]

    words = ["llama-3.2-1b", "--objective", "throughput", *asked, *narrow, "--html", "page.html", "-v"]
    outcome = simserve("plan", *words)

    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.startswith("2 x l4-24gb can do ")
    assert "percentiles, not means" in " ".join(outcome.stdout.split())
    assert "tokens/s a user (1 / TPOT)" in (folder / "page.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_notebook_shows_the_plan(scenario: str) -> None:
    """`ss.plan` gives the same answer, as HTML that is escaped."""
    found = ss.plan(scenario, hardware=["l4-24gb"], over=[each for each in _SMALL if "=" in each])

    page = found._repr_html_()
    assert found.is_feasible
    assert "Deploy 1 x l4-24gb" in page
    assert "<table>" in page
    assert "&" not in page.replace("&lt;", "").replace("&gt;", "").replace("&#x27;", "").replace("&amp;", "")


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("2xH100 + 1xH200", {"h100-sxm-80gb": 2, "h200-sxm-141gb": 1}), ("8xH100", {}), ("l4", {})],
)
def test_gpus_of_several_kinds_are_read(text: str, kinds: dict[str, int]) -> None:
    """Numbers and names, with a plus between."""
    assert kinds_of_gpus(text) == kinds


@pytest.mark.parametrize("text", ["2xH100+H200", "2xH100+1xH100", "2xH100+"])
def test_several_kinds_need_numbers_and_other_names(text: str) -> None:
    """One line that says how it is written."""
    with pytest.raises(UsageError, match="--gpus"):
        kinds_of_gpus(text)


@pytest.mark.slow
def test_gpus_without_a_price_are_planned_for_the_fewest(simserve: Simserve) -> None:
    """Other commands print a plan of them as what to do next; dollars are asked for in the key's own words."""
    card = [
        "plan",
        "llama-3.2-1b",
        "--gpus",
        "5060ti",
        "--rate",
        "1",
        "--prompt-tokens",
        "256",
        "--output-tokens",
        "32",
    ]
    asked = [*card, "--slo", "ttft=2s,tpot=50ms", "--trials", "0", "--jobs", "1", "-v"]
    found, priced = simserve(*asked), simserve(*asked, "--set", "pricing.gpu_hour_usd=0.1")
    refused = simserve(*asked, "--objective", "cost")

    assert (found.code, priced.code) == (0, 0)
    assert "rtx-5060-ti-16gb has no price: planned for the fewest GPUs; --set pricing.gpu_hour_usd=" in found.stderr
    assert "planned for" not in priced.stderr
    assert "a month" in priced.stdout
    assert refused.error_line.endswith("has no price; --set pricing.gpu_hour_usd=DOLLARS, or --objective gpus")


def test_a_plan_without_an_slo_speaks_of_none_and_says_once_where_step_times_are_from(simserve: Simserve) -> None:
    """An L4 has a data sheet and no measured curves."""
    words = ["llama-3.1-8b", "--rate", "2", "--prompt-tokens", "100", "--output-tokens", "20", "--num-requests", "200"]

    outcome = simserve("plan", *words, *_ONE, "--trials", "0", "--html", "plan.html")

    page = Path("plan.html").read_text(encoding="utf-8")
    assert outcome.code == 0, outcome.stderr
    assert "requests/s (simulated): " in page
    assert "within the SLO (simulated)" not in page
    assert page.count("roofline of the data sheet") >= 1
    assert "datasheet peaks, not measured" not in page


@pytest.mark.parametrize(
    ("part", "told", "begins"),
    [
        ("search_group", "interrupted before a fleet that holds was found", "Nothing was found"),
        ("confirm", "interrupted; the plan is the best found until then, and not confirmed", "Deploy 1 x l4-24gb"),
        (
            "_Planning._look_around",
            "interrupted; the plan is confirmed, but not all that would change it is known",
            "Deploy 1 x l4-24gb",
        ),
    ],
)
def test_what_an_interrupted_plan_rests_on_is_said(
    part: str, told: str, begins: str, monkeypatch: pytest.MonkeyPatch, simserve: Simserve, small: str
) -> None:
    """Ctrl-C in the first search, while the best is confirmed, or while what surrounds the plan is looked at."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"simserve.planner.plan.plan.{part}", interrupt)
    outcome = simserve("plan", small, *_ONE)

    assert (outcome.code, outcome.error_line) == (105, told)
    assert outcome.stdout.startswith(begins)
