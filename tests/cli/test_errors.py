"""Bad input: one clear line on stderr, the documented exit code, an empty stdout, nothing left on disk."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Simserve
from tests.scenario.builders import scenario_mapping

pytestmark = pytest.mark.usefixtures("page_alone")


def write_scenario(text: str | None = None, **changes: object) -> str:
    """Write the small scenario with changes, or ``text``, into the working folder and return its path."""
    Path("bad.yaml").write_text(text or yaml.safe_dump(scenario_mapping(**changes)), encoding="utf-8")
    return "bad.yaml"


def workload(**changes: object) -> dict[str, object]:
    """Return the small workload with some keys replaced."""
    return {**scenario_mapping()["workload"], **changes}


def assert_nothing_is_written(*inputs: str) -> None:
    """Check that the working folder holds the inputs and nothing else."""
    assert sorted(path.name for path in Path().iterdir()) == sorted(inputs)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"deploymnt": {}}, "bad.yaml: deploymnt: is not a known key; did you mean 'deployment'?"),
        (
            {"slo": {"ttft": 1000}},
            'bad.yaml: slo.ttft: 1000 needs a unit of time; write it as a string, for example "500 ms"',
        ),
        (
            {"workload": workload(arrivals={"process": "poisson", "rate": -1})},
            "bad.yaml: workload.arrivals.rate: -1 must be greater than 0",
        ),
        (
            {"model": "llama-3.1-8bb"},
            "bad.yaml: model: 'llama-3.1-8bb' is not a known model; did you mean 'llama-3.1-8b'",
        ),
        ({"name": ""}, "bad.yaml: name:"),
        ({"model": "m" * 300}, "bad.yaml: model: 'mmm"),
        ({"foo[0]": 1}, "bad.yaml: foo[0]: is not a known key"),
        (
            {"workload": workload(classes=[{"name": "a", "share": 1.0, "priority": 10**30}])},
            f"bad.yaml: workload.classes.0.priority: {10**30} must be less than or equal to 1000000000",
        ),
    ],
)
def test_a_bad_scenario_is_one_line_and_104(simserve: Simserve, changes: dict[str, object], line: str) -> None:
    """File, key, value, rule and remedy."""
    outcome = simserve("run", write_scenario(**changes), "--json")

    assert outcome.code == 104
    assert outcome.stdout == ""
    assert outcome.error_line.startswith(line)
    assert_nothing_is_written("bad.yaml")


def test_a_duplicate_key_is_one_line_and_104(simserve: Simserve) -> None:
    """Both lines are named."""
    outcome = simserve("run", write_scenario("name: a\nname: b\n"))

    assert outcome.code == 104
    assert outcome.error_line == "bad.yaml: name: stands twice, in lines 1 and 2; keep one of them"


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("memory",),
        ("capacity",),
        ("plan",),
        ("compare", "--with", "a: run.seed=2"),
        ("cost",),
        ("sweep", "--grid", "run.seed=1,2", "--out", "x.parquet"),
        ("export", "--to", "vllm"),
        ("verify",),
    ],
    ids=lambda words: words[0],
)
def test_all_unknown_names_of_a_file_are_said_at_once(simserve: Simserve, words: tuple[str, ...]) -> None:
    """Each with the file and its key, whichever command reads the file."""
    deployment = {**scenario_mapping()["deployment"], "hardware": "h1", "engine": {"name": "vllmm"}}
    scenario = write_scenario(model="llama-3.1-8bb", deployment=deployment, pricing={"api": "gpt-44"})

    outcome = simserve(words[0], scenario, *words[1:], "--json")

    assert outcome.code == 104
    assert outcome.stdout == ""
    assert [line.partition(" is not")[0] for line in outcome.stderr.splitlines()] == [
        "simserve: error: bad.yaml: model: 'llama-3.1-8bb'",
        "simserve: error: bad.yaml: deployment.hardware: 'h1'",
        "simserve: error: bad.yaml: deployment.engine.name: 'vllmm'",
        "simserve: error: bad.yaml: pricing.api: 'gpt-44'",
    ]


def test_unknown_names_are_said_with_the_other_errors_of_a_file(simserve: Simserve) -> None:
    """A wrong key does not hide a wrong name; what an override set is named by its flag."""
    scenario = write_scenario(model="llama-3.1-8bb", slo={"ttft": 1000})

    outcome = simserve("run", scenario, "--set", "deployment.engine.name=vllmm")

    assert outcome.code == 104
    assert [line.partition(": ")[2].rpartition(";")[0] for line in outcome.stderr.splitlines()] == [
        "error: bad.yaml: slo.ttft: 1000 needs a unit of time",
        "error: bad.yaml: model: 'llama-3.1-8bb' is not a known model",
        "error: --set deployment.engine.name: 'vllmm' is not a known engine",
    ]


def test_unknown_names_of_pools_are_said_at_once(simserve: Simserve) -> None:
    """By the keys of the pools; a name that no pool uses is not looked up."""
    pools = [{"name": "a", "hardware": "h1"}, {"name": "b", "hardware": "h2", "engine": {"name": "vllmm"}}]
    deployment = {**scenario_mapping()["deployment"], "hardware": "h3", "pools": pools}

    outcome = simserve("memory", write_scenario(deployment=deployment))

    assert outcome.code == 104
    assert [line.partition("bad.yaml: ")[2].partition(" is not")[0] for line in outcome.stderr.splitlines()] == [
        "deployment.pools.0.hardware: 'h1'",
        "deployment.pools.1.hardware: 'h2'",
        "deployment.pools.1.engine.name: 'vllmm'",
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("arrival_time,prompt_tokens,output_tokens\n", "trace.csv"),
        ("arrival_time,prompt_tokens,output_tokens\n0.0,10,5\n0.5,ten,5\n", "3"),
    ],
)
def test_a_bad_trace_is_one_line_and_104(simserve: Simserve, rows: str, expected: str) -> None:
    """An empty trace is named, a broken row by its number."""
    Path("trace.csv").write_text(rows, encoding="utf-8")
    scenario = write_scenario(workload={"trace": {"path": "trace.csv", "format": "csv"}})

    outcome = simserve("run", scenario, "--json")

    assert outcome.code == 104
    assert outcome.stdout == ""
    assert "trace.csv" in outcome.error_line
    assert expected in outcome.error_line
    assert_nothing_is_written("bad.yaml", "trace.csv")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("run", "missing.yaml"), "missing.yaml: no such file"),
        (("memory", "./missing.yaml"), "./missing.yaml: no such file"),
        (("run", "chatbt"), "'chatbt' is neither a scenario nor a model that has a profile; did you mean 'chatbot'"),
        (
            ("run", "Qwen/Qwen3-32"),
            "'Qwen/Qwen3-32' is neither a scenario nor a model that has a profile; give the path of its config.json in",
        ),
        (
            ("memory", "Zyphra/Zamba2-7B-Instruct", "--gpus", "h100"),
            "model: 'Zyphra/Zamba2-7B-Instruct' has layers that simserve has no formula for: layers of Mamba-2 beside",
        ),
        (
            ("run", "chatbot", "--set", "model=meta-llama/Llama-3.2-11B-Vision-Instruct"),
            "--set model: 'meta-llama/Llama-3.2-11B-Vision-Instruct' has layers that simserve has no formula for: ",
        ),
        (("memory", "qwen3-32b", "--gpus", "b20"), "--gpus: 'b20' is not a known GPU; did you mean 'b200' or 'gb200'?"),
        (("memory", "qwen3-32b", "--gpus", "2xH1000"), "--gpus: 'H1000' is not a known GPU; did you mean 'h100'?"),
        (
            ("run", "llama-70b", "--gpus", "h100"),
            "'llama-70b' is neither a scenario nor a model that has a profile; did you mean 'llama-3.3-70b' or",
        ),
        (
            ("memory", "chatbot", "--engine", "vlm==0.2"),
            "--engine: 'vlm==0.2' is not a known engine; did you mean 'vllm'",
        ),
        (
            ("memory", "chatbot", "--engine", "vllm==newer"),
            "--engine: 'vllm==newer' has no version behind its ==; write numbers and points, for example vllm==0.",
        ),
        (
            ("memory", "chatbot", "--quantization", "zz"),
            "--quantization: 'zz' is not a known weight format; choose from auto, none, ",
        ),
        (("memory", "chatbot", "--quantization", "fp7"), "--quantization"),
        (("scenarios", "chatbt"), "'chatbt' is not a known scenario; did you mean 'chatbot'"),
        (("run", "chatbot", "--set", "workload.trace={path: no.csv, format: csv}"), "--set workload.trace"),
        (
            ("run", "chatbot", "--set", "slo.attainment=95"),
            "--set slo.attainment: 95 must be less than or equal to 1; for 95% write 0.95",
        ),
        (
            ("run", "chatbot", "--set", "name=my chat"),
            "--set name: 'my chat' must consist of letters, digits, '.', '_' and '-', and begin with a letter",
        ),
        (("run", "chatbot", "--set", "run.sed=1"), "--set run.sed: is not a known key; did you mean 'seed'?"),
        (("memory", "chatbot", "--set", "run.seed"), "--set: 'run.seed' must be KEY=VALUE"),
        (("engines", "vlm"), "'vlm' is not a known engine; did you mean 'vllm'?"),
        (("engines", "vllm", "--hardware", "h100-sxm-80g"), "'h100-sxm-80g' is not a known hardware"),
    ],
)
def test_what_does_not_exist_is_one_line_and_104(simserve: Simserve, arguments: tuple[str, ...], line: str) -> None:
    """A file, a name, a key."""
    outcome = simserve(*arguments)

    assert outcome.code == 104
    assert outcome.stdout == ""
    assert outcome.error_line.startswith(line)
    assert_nothing_is_written()


@pytest.mark.parametrize(
    ("words", "missing", "example"),
    [
        (("compare", "chatbot"), "--with", "simserve compare chatbot --with 'bf16: deployment.quantization=none'"),
        (("export", "chatbot"), "--to", "simserve export chatbot --to vllm"),
        (("trace",), "FILE", "simserve trace traffic.csv"),
        (("calibrate", "fit"), "RUN", "simserve calibrate fit calibration/runs/my-gpu"),
    ],
)
def test_what_is_missing_comes_with_an_example(
    simserve: Simserve, words: tuple[str, ...], missing: str, example: str
) -> None:
    """The first command of the help."""
    outcome = simserve(*words)

    assert outcome.code == 2
    assert f"'{missing}'; for example {example}" in outcome.error_line


def test_a_flag_without_its_value_names_the_help_of_its_command(simserve: Simserve) -> None:
    """Not that of all commands."""
    outcome = simserve("plan", "chatbot", "--gpus")

    assert outcome.error_line == "Option '--gpus' requires an argument; try 'simserve plan --help'"


def test_a_terminal_gets_the_command_that_fits_as_a_shell_takes_it(
    simserve: Simserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On lines of its own, which a shell joins again; in a pipe it stays in the line of the error."""
    words = ["export", "mistral-small-24b", "--gpus", "rtx4090", "--to", "vllm", "--prompt-tokens", "1k"]
    words += ["--output-tokens", "50", "--rate", "0.5"]
    in_a_pipe = simserve(*words).error_line
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    lines = simserve(*words).stderr.splitlines()

    begin = next(place for place, line in enumerate(lines) if line.endswith("the first of them:")) + 1
    command = " ".join(line.strip().removesuffix(" \\") for line in lines[begin:])
    assert command == in_a_pipe.rpartition("the first of them: ")[2]
    assert all(line.endswith(" \\") for line in lines[begin:-1])
    assert max(map(len, lines)) <= 80


def test_a_trace_that_does_not_exist_is_104(simserve: Simserve) -> None:
    """The path is named as it was written."""
    outcome = simserve("run", write_scenario(workload={"trace": {"path": "no.csv", "format": "csv"}}))

    assert outcome.code == 104
    assert "no.csv" in outcome.error_line
    assert_nothing_is_written("bad.yaml")


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("run", ()),
        ("memory", ()),
        ("verify", ()),
        ("capacity", ("--slo", "ttft=1s")),
        ("compare", ("--with", "two: deployment.replicas=2")),
        ("export", ("--to", "vllm")),
    ],
)
def test_a_model_that_does_not_fit_is_3_with_json(
    simserve: Simserve, small: str, command: str, flags: tuple[str, ...]
) -> None:
    """The arithmetic and what would fit in one line; the JSON is still printed."""
    import json

    outcome = simserve(command, small, *flags, "--set", "model=llama-3.1-70b", "--json")

    answer = json.loads(outcome.stdout)
    assert outcome.code == 3
    assert answer["fits"] is False
    assert answer["what_fits"]
    assert "141.1 GB" in outcome.error_line
    assert "what fits: --set deployment." in outcome.error_line
    assert "--set deployment.tensor_parallel_size=2" in outcome.error_line
    assert_nothing_is_written("small.yaml")


@pytest.mark.parametrize("out", ["small.yaml", "small.yaml/below", "/dev/null/below"])
def test_an_unusable_out_is_2_before_anything_runs(simserve: Simserve, small: str, out: str) -> None:
    """Flags are checked first: the model that does not fit is not reached."""
    outcome = simserve("run", small, "--out", out, "--json", "--set", "model=llama-3.1-70b")

    assert outcome.code == 2
    assert outcome.stdout == ""
    assert outcome.error_line.startswith(f"{out}: --out: ")
    assert_nothing_is_written("small.yaml")


def test_the_result_of_another_seed_is_refused_without_force(simserve: Simserve, small: str) -> None:
    """A folder keeps its result until it is told otherwise."""
    simserve("run", small, "--out", "held")

    refused = simserve("run", small, "--out", "held", "--seed", "2")
    forced = simserve("run", small, "--out", "held", "--seed", "2", "--force")

    assert refused.code == 2
    assert "another scenario or seed" in refused.error_line
    assert forced.code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuch",), "No such command"),
        (("run", "chatbot", "--nosuch"), "No such option"),
        (("import", "docker run vllm/vllm-openai --model Qwen/Qwen3-8B"), "in quotes: simserve import command 'LINE'"),
        (("import", "vllm", "serve", "Qwen/Qwen3-8B"), "in quotes: simserve import command 'LINE'"),
        (("frameworks", "DeepSeek-R1"), "simserve compare DeepSeek-R1 --gpus N --with 'vllm: deployment.engine.name="),
        (("run", "chatbot", "--seed", "-1"), "--seed"),
        (
            ("run", "--model", "llama-3.1-8b"),
            "'llama-3.1-8b' is a model, and lacks --gpus, --rate (or --concurrency, --trace), --prompt-tokens, --out",
        ),
        (("run",), "lacks a scenario; name one such as chatbot"),
        (("memory",), "lacks a scenario; name one such as chatbot"),
        (("run", "chatbot", "--model", "qwen3-8b"), "--model: is in place of SCENARIO"),
        (("run", "qwen3-8b", "--gpus", "h100", "--hardware", "h200"), "--hardware: says the same as --gpus"),
        (("plan", "chatbot", "--gpus", "h100", "--hardware", "h200"), "--hardware: cannot stand beside --gpus"),
        (("plan", "chatbot", "--gpus", "2xh100", "--max-gpus", "3"), "--max-gpus: cannot stand beside --gpus"),
        (("run", "chatbot", "--rate", "2", "--concurrency", "3"), "--concurrency: cannot stand beside --rate"),
        (
            ("run", "chatbot", "--trace", "t.csv", "--rate", "3"),
            "--trace: cannot stand beside --rate; keep one of the two; for twice the load of a trace: --set "
            "workload.trace.time_scale=0.5",
        ),
        (
            ("run", "--like", "docker-compose.yml"),
            "; a file is read by simserve import manifest docker-compose.yml --out mine.yaml",
        ),
        (
            ("run", "chatbot", "--trace", "t.csv", "--prompt-tokens", "3"),
            "--prompt-tokens: cannot stand beside --trace",
        ),
        (("run", "chatbot", "--columns", "arrival_time=ts"), "--columns: has no effect without a trace"),
        (("run", "chatbot", "--trace", "t", "--columns", "time=ts"), "--columns: 'time' is nothing that a trace has"),
        (("run", "chatbot", "--prompt-tokens", "many"), "--prompt-tokens: 'many' must be a whole number of tokens"),
        (("run", "chatbot", "--rate", "0"), "--rate: '0' must be above 0; write 3 (requests a second)"),
        (("run", "chatbot", "--rate", "fast"), "--rate: 'fast' is no rate; write 3 (requests a second)"),
        (("run", "chatbot", "--slo", "ttft=1s,tpot"), "--slo: 'ttft=1s,tpot' must be LIMIT=VALUE"),
        (("memory", "qwen3-32b"), "'qwen3-32b' is a model, and lacks --gpus; add for example --gpus 2xH100"),
        (("memory", "qwen3-32b", "--gpus", "2"), "--gpus: '2' names no GPU"),
        (("memory", "qwen3-32b", "--gpus", "2xL4,1xH100"), "--gpus: '2xL4,1xH100' names several kinds of GPU"),
        (
            ("plan", "chatbot", "--gpus", "H100,L4"),
            "for a choice of one of them: simserve plan ... --hardware H100,L4;",
        ),
        (("plan", "chatbot", "--gpus", "H100+L4"), "or for a choice of one of them --hardware H100,L4"),
        (("plan", "chatbot", "--hardware", "L4,2xH100"), "--hardware: '2xH100' has a number, and names GPUs to choose"),
        (("gpus", "--profile"), "--profile: needs the name of a GPU"),
        (("memory", "qwen3-32b", "--gpus", "0xH100"), "--gpus: '0xH100' must be at least one GPU"),
        (("memory", "qwen3-32b", "--gpus", "3xH100", "--tp", "2"), "--gpus: '3xH100' are 3 GPUs, which"),
        (("memory", "qwen3-32b", "--gpus", "4xH100", "--tp", "2", "--replicas", "1"), "--gpus: '4xH100' are 4 GPUs"),
        (("memory", "chatbot", "--like", "vllm serve Qwen/Qwen3-8B"), "--like: cannot stand beside 'chatbot'"),
        (("cost", "--gpus", "2xH100"), "--gpus: '2xH100' must be a number without a scenario or a model"),
        (("cost", "--rate", "3"), "--rate: needs a scenario or a model"),
    ],
)
def test_wrong_flags_are_one_line_and_2(simserve: Simserve, arguments: tuple[str, ...], message: str) -> None:
    """Usage errors look like all others."""
    outcome = simserve(*arguments)

    assert outcome.code == 2
    assert outcome.stdout == ""
    assert message in outcome.error_line


def test_a_defect_is_one_line_and_1(simserve: Simserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback is for those who ask for it."""

    def broken(name: str) -> str:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("simserve.scenario.load.text", broken)

    outcome = simserve("scenarios")

    assert outcome.code == 1
    assert "a defect in simserve: ZeroDivisionError: by zero" in outcome.error_line
    monkeypatch.setenv("SIMSERVE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        simserve("scenarios")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("engines", "--hardware", "a100-sxm-80gb"), "--hardware: is for the knobs of one engine; name it"),
        (("engines", "--model", "llama-3.1-8b"), "--model: is for the knobs of one engine; name it"),
        (("engines", "--engine-version", "0.12", "--json"), "--engine-version: is for the knobs of one engine"),
        (("run", "chatbot", "--check", "--out", "x"), "--out: has no effect with --check, which writes nothing"),
        (("run", "chatbot", "--check", "--force"), "--force: has no effect with --check, which writes nothing"),
        (("run", "chatbot", "--out", ""), "--out: is empty; name a folder"),
    ],
)
def test_a_flag_without_effect_is_refused(simserve: Simserve, arguments: tuple[str, ...], line: str) -> None:
    """Who gives it expects something of it."""
    outcome = simserve(*arguments)

    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.error_line.startswith(line)
    assert_nothing_is_written()


def test_a_dangling_out_is_2_before_anything_runs(simserve: Simserve, small: str) -> None:
    """A link to nowhere is neither a folder nor the place of one."""
    Path("out").symlink_to("nowhere")

    outcome = simserve("run", small, "--out", "out", "--set", "model=llama-3.1-70b")

    assert outcome.code == 2
    assert outcome.error_line.startswith("out: --out: is a link to something that does not exist")


def test_somebody_else_s_report_is_2_before_anything_runs(simserve: Simserve, small: str) -> None:
    """A report.html without a result beside it is not ours."""
    Path("report.html").write_text("mine", encoding="utf-8")

    outcome = simserve("run", small, "--out", ".", "--set", "model=llama-3.1-70b")

    assert outcome.code == 2
    assert "holds a report.html that belongs to no result" in outcome.error_line
    assert Path("report.html").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("workload.arrivals.rate=true", "--set workload.arrivals.rate: True must be a valid number"),
        ("workload.num_requests='600'", "--set workload.num_requests: '600' must be a valid integer"),
        ("workload.arrivals.rate='3.0'", "--set workload.arrivals.rate: '3.0' must be a valid number"),
    ],
)
def test_a_text_or_a_switch_is_no_number(simserve: Simserve, small: str, override: str, line: str) -> None:
    """Nothing is guessed."""
    outcome = simserve("run", small, "--set", override, "--json")

    assert (outcome.code, outcome.stdout) == (104, "")
    assert outcome.error_line.startswith(line)


def test_a_folder_as_a_scenario_is_104(simserve: Simserve, folder: Path) -> None:
    """It is there, and it is a folder."""
    outcome = simserve("run", str(folder))

    assert outcome.code == 104
    assert outcome.error_line == f"{folder}: is a folder, not a scenario file; a model's has a config.json"


@pytest.mark.parametrize("name", ["done", "done/result.json"])
def test_a_result_in_place_of_its_scenario_is_one_line(simserve: Simserve, small: str, name: str) -> None:
    """The folder names the file in it; a result does not list every key that a scenario has not."""
    assert simserve("run", small, "--out", "done").code == 0

    outcome = simserve("capacity", name)

    assert outcome.code == 104
    assert outcome.error_line.endswith(f"; name the scenario in it: {Path('done/scenario.resolved.yaml')}")
    assert len(outcome.stderr.splitlines()) == 1


def test_a_folder_that_may_not_be_written_is_2_before_anything_is_simulated(
    simserve: Simserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a read-only disk; nothing is searched for minutes first."""
    monkeypatch.setattr(os, "access", lambda *_: False)

    outcome = simserve("capacity", "chatbot", "--html", "page.html")
    report = simserve("validate", "--report", "page.html")

    assert (outcome.code, outcome.stdout) == (report.code, report.stdout) == (2, "")
    assert "--html: 'page.html' cannot be written: permission denied" in outcome.error_line
    assert "--report: 'page.html' cannot be written: permission denied" in report.error_line


def test_want_of_memory_is_no_defect(simserve: Simserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what helps."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("simserve.profiles.catalog.names", fail)

    outcome = simserve("gpus")

    assert outcome.code == 1
    assert outcome.error_line.endswith("needs more memory than there is; ask for fewer requests")


def test_a_place_that_refuses_late_is_no_defect(simserve: Simserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights may change while a command runs."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "page.html")

    monkeypatch.setattr("simserve.api.diff", refused)
    outcome = simserve("diff", "one", "two")

    assert (outcome.code, outcome.error_line) == (
        2,
        "page.html: cannot be written or read: Permission denied",
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_trace_without_rights_is_104(simserve: Simserve) -> None:
    """Unreadable is not wrong flags."""
    Path("traffic.csv").touch(mode=0o000)

    outcome = simserve("trace", "traffic.csv")

    assert (outcome.code, outcome.stdout) == (104, "")
    assert "Permission denied" in outcome.error_line
