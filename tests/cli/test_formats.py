"""One model that is stored in four bits, through every command: each answer names the same formats."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

import simserve as ss
from simserve.cli.app import _COMMANDS
from simserve.explore.lessons import resolved_query
from simserve.explore.queries import MemoryQuery, SimulatorQuery, WizardQuery
from simserve.explore.simulator import simulator
from simserve.explore.wizard import first
from simserve.report.plan_lines import answer_lines
from simserve.report.terminal import MOST_LINES
from tests.cli.conftest import Outcome, Simserve
from tests.planner.twin.exporter import series
from tests.scenario.builders import scenario_mapping

pytestmark = pytest.mark.usefixtures("page_alone")

STORED = {
    "weights": "mxfp4",
    "weights_source": "as stored",
    "checkpoint": "openai/gpt-oss-20b",
    "kv_cache": "bf16",
    "kv_cache_source": "16 bit by default",
    "pools": {},
}
CONFIG = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "attention_bias": True,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}
"""The model's config.json, as far as it is looked at."""
NOT_OF_A_DEPLOYMENT = {
    "trace": "of workloads",
    "schema": "of the file",
    "validate": "of many deployments: its rows name those that a server's flags set",
    "observe": "measures a live server",
    "calibrate": "fits constants, which have no formats of their own",
    "scenarios": "a list",
    "gpus": "a list",
    "models": "a list, which names what each checkpoint stores (test_catalogues.py)",
    "engines": "a list",
    "apis": "of providers, whose formats nobody states",
    "help": "text",
    "version": "a line",
}
"""Commands that answer about no deployment of one model, and why."""
LINE = "weights mxfp4, as stored in openai/gpt-oss-20b; KV bf16"
_LINE_OF_FORMATS = re.compile(r"weights [\w-]+, (?:as stored in|checkpoint) [\w./-]*\w; KV \w+")
Walk = Callable[[Simserve, str, Path], object]


_WRITES_NOTHING = ("plan", "capacity", "cost", "memory", "export", "verify")


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, ...], Outcome]:
    """Return what commands have printed so far."""
    return {}


@pytest.fixture
def simserve(simserve: Simserve, known: dict[tuple[str, ...], Outcome]) -> Simserve:
    """Return a function that runs `simserve`; the same words of a command that writes nothing run once."""

    def run(*words: str) -> Outcome:
        if words[0] not in _WRITES_NOTHING or "--out" in words:
            return simserve(*words)
        if words not in known:
            known[words] = simserve(*words)
        return known[words]

    return run


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a scenario of gpt-oss-20b that says nothing of formats."""
    engine = {"name": "vllm", "version": "0.33", "max_model_len": 8192, "max_num_seqs": 64}
    mapping = scenario_mapping(
        model="gpt-oss-20b",
        deployment={"hardware": "h100-sxm-80gb", "engine": engine},
        slo={"ttft": "2 s", "tpot": "100 ms", "attainment": 0.9},
    )
    path = tmp_path_factory.mktemp("formats") / "stored.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return str(path)


def answer(simserve: Simserve, *words: str) -> dict[str, Any]:
    """Return what a command prints with --json."""
    outcome = simserve(*words, "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def test_run_names_the_formats(simserve: Simserve, stored: str, tmp_path: Path) -> None:
    """In result.json, on the terminal, and in the report."""
    out = ("--out", str(tmp_path / "out"))
    assert answer(simserve, "run", stored, *out)["simserve"]["formats"] == STORED

    assert LINE in " ".join(simserve("run", stored, *out).stdout.split())
    assert LINE in (tmp_path / "out" / "report.html").read_text()
    asked = yaml.safe_load((tmp_path / "out" / "scenario.resolved.yaml").read_text())["deployment"]
    assert asked["quantization"] == "auto"


def test_a_run_by_flags_names_the_formats(simserve: Simserve, tmp_path: Path) -> None:
    """One line and no file: as stored too."""
    flags = ("--model", "gpt-oss-20b", "--hardware", "h100-sxm-80gb", "--rate", "1")
    tokens = ("--prompt-tokens", "100", "--output-tokens", "20", "--num-requests", "20")
    length = ("--set", "deployment.engine.max_model_len=8192", "--out", str(tmp_path / "out"))

    assert answer(simserve, "run", *flags, *tokens, *length)["simserve"]["formats"] == STORED


@pytest.mark.parametrize("num_settings", [0, 2, 4, 6])
def test_the_brief_names_the_formats_however_long_its_command(
    simserve: Simserve, tmp_path: Path, num_settings: int
) -> None:
    """What is cut for room is never the formats, nor the times to the first and per token."""
    settings = {
        "workload.arrivals": "{process: closed_loop, concurrency: 4}",
        "deployment.engine.max_num_batched_tokens": "4096",
        "deployment.engine.gpu_memory_utilization": "0.85",
        "deployment.engine.enable_prefix_caching": "false",
        "deployment.engine.max_model_len": "8192",
        "deployment.engine.max_num_seqs": "32",
    }
    chosen = [word for key in list(settings)[:num_settings] for word in ("--set", f"{key}={settings[key]}")]
    named = ("gpt-oss-20b", "--gpus", "H100", "--engine", "vllm==0.33", "--num-requests", "20", *chosen)
    lengths = ("--prompt-tokens", "100", "--output-tokens", "20", "--out", str(tmp_path / "out"))

    lines = simserve("run", *named, *lengths, *(() if chosen else ("--rate", "1"))).stdout.splitlines()

    text = " ".join(line.strip() for line in lines)
    assert "weights mxfp4, as stored" in text
    assert "KV bf16" in text
    assert {"TTFT", "TPOT"} <= {line.split()[0] for line in lines}
    assert len(lines) <= MOST_LINES


def test_memory_names_the_formats(simserve: Simserve, stored: str) -> None:
    """Beside the bytes that follow from them."""
    assert answer(simserve, "memory", stored)["formats"] == STORED
    assert LINE in " ".join(simserve("memory", stored).stdout.split())


def test_capacity_names_the_formats(simserve: Simserve, stored: str) -> None:
    """Of the deployment whose load it is."""
    fast = ("--requests", "100", "--replications", "2", "--max", "40")

    assert answer(simserve, "capacity", stored, *fast)["formats"] == STORED
    assert LINE in " ".join(simserve("capacity", stored, *fast, "-v").stdout.split())


@pytest.mark.slow
def test_plan_names_the_formats(simserve: Simserve, stored: str) -> None:
    """Of the fleet that it recommends, which starts from the stored one."""
    one_each = (
        "deployment.kv_cache_dtype=auto",
        "deployment.tensor_parallel_size=1",
        "deployment.pipeline_parallel_size=1",
        "deployment.enable_expert_parallel=false",
        "deployment.engine.max_num_seqs=64",
        "deployment.engine.max_num_batched_tokens=8192",
        "deployment.engine.enable_chunked_prefill=true",
    )
    words = ("plan", stored, "--hardware", "h100-sxm-80gb", "--max-gpus", "2", "--trials", "0", "--jobs", "1")
    choices = [word for each in one_each for word in ("--over", each)]

    found = answer(simserve, *words, *choices)
    assert found["best"]["formats"] == STORED
    assert "mxfp4" in found["best"]["label"]
    assert f"W{LINE[1:]}." in answer_lines(found)


def test_compare_names_the_formats_of_each(simserve: Simserve, stored: str) -> None:
    """Of the base, and of a variant in another."""
    words = ("compare", stored, "--with", "wide: deployment.quantization=none", "--replications", "2")

    found = answer(simserve, *words)
    assert found["base"]["formats"] == STORED
    wide = found["variants"][0]["formats"]
    assert (wide["weights"], wide["weights_source"]) == ("bf16", "checkpoint unsloth/gpt-oss-20b-BF16")
    assert LINE in " ".join(simserve(*words, "-v").stdout.split())


def test_cost_names_the_formats(simserve: Simserve, stored: str) -> None:
    """Of the GPUs of one's own."""
    words = ("cost", stored, "--api", "gpt-4o", "--set", "pricing.gpu_hour_usd=3")

    found = answer(simserve, *words)
    assert found["formats"] == STORED
    assert LINE in found["question"]


def test_export_names_the_formats(simserve: Simserve, stored: str) -> None:
    """And loads the checkpoint that is stored so."""
    found = answer(simserve, "export", stored, "--to", "vllm")

    assert found["formats"] == STORED
    assert any(LINE in note for note in found["notes"])
    assert "openai/gpt-oss-20b" in found["command"]


def test_sweep_names_the_formats_of_each_point(simserve: Simserve, stored: str, tmp_path: Path) -> None:
    """A column of weights and one of KV, and above the table each with where it comes from."""
    out = tmp_path / "points.parquet"
    words = ("sweep", stored, "--grid", "deployment.quantization=auto,none", "--out", str(out))
    found = answer(simserve, *words)

    wide = "weights bf16, checkpoint unsloth/gpt-oss-20b-BF16; KV bf16"
    assert found["formats"] == {LINE: 1, wide: 1}
    rows = duckdb.sql(f"SELECT weights_format, kv_cache_format, formats FROM '{out}' ORDER BY point").fetchall()
    assert rows == [("mxfp4", "bf16", LINE), ("bf16", "bf16", wide)]
    assert LINE in " ".join(simserve(*words).stdout.split())


def test_the_page_names_the_formats() -> None:
    """The simulator, the lessons and the wizard of `simserve explore`."""
    model = {"model": "gpt-oss-20b", "hardware": "h100-sxm-80gb", "gpus": 1}
    run = simulator(SimulatorQuery(**model, quantization="auto", num_requests=50), lambda _done, _total: None)
    lesson = resolved_query(MemoryQuery(**model))
    asked = WizardQuery(model="gpt-oss-20b", hardware=("h100-sxm-80gb",), rate=1.0)
    plan = first(asked, lambda _done, _total: None)

    assert run["formats"] == LINE
    assert lesson.formats == STORED
    assert plan is not None
    assert any("mxfp4, as stored" in line for line in plan["parts"][0]["lines"])


def test_a_check_names_the_formats(simserve: Simserve, stored: str) -> None:
    """Before anything is simulated."""
    assert answer(simserve, "run", stored, "--check")["formats"] == STORED


def test_two_results_name_the_formats(simserve: Simserve, stored: str, tmp_path: Path) -> None:
    """Once where they are the same, both where they differ; the report that is written anew, too."""
    folders = [str(tmp_path / name) for name in ("a", "b")]
    for folder, weights in zip(folders, ("auto", "none"), strict=True):
        simserve("run", stored, "--set", f"deployment.quantization={weights}", "--out", folder)

    found = answer(simserve, "diff", *folders)
    assert (found["a"]["formats"], found["b"]["formats"]["weights"]) == (STORED, "bf16")
    assert f"{LINE} → weights bf16" in simserve("diff", *folders).stdout
    assert f"Both with {LINE}." in simserve("diff", folders[0], folders[0]).stdout
    page = tmp_path / "anew.html"
    assert simserve("report", folders[0], "--html", str(page)).code == 0
    assert LINE in page.read_text()


def test_verification_names_the_formats(simserve: Simserve, stored: str) -> None:
    """Of what both the plane and the reference ran."""
    assert answer(simserve, "verify", stored)["formats"] == STORED
    assert LINE in simserve("verify", stored).stdout


def test_a_twin_names_the_formats(simserve: Simserve, stored: str, tmp_path: Path) -> None:
    """Of the deployment that the scrapes are compared with."""
    long = ss.load(stored, ["workload.num_requests=2000"])
    scrapes = tmp_path / "scrapes.prom"
    scrapes.write_text(series(ss.run(long), begin=30, end=330))

    found = answer(simserve, "twin", str(scrapes), "--scenario", stored, "--horizon", "0")
    assert found["formats"] == STORED
    assert f"simulated with {LINE}" in simserve("twin", str(scrapes), "--scenario", stored, "--horizon", "0").stdout


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("vllm-command", "vllm serve openai/gpt-oss-20b --max-model-len 8192"),
        ("sglang-command", "sglang serve --model-path openai/gpt-oss-20b --context-length 8192"),
        ("trtllm-command", "trtllm-serve openai/gpt-oss-20b --max_seq_len 8192"),
    ],
)
def test_an_import_names_the_formats(simserve: Simserve, tmp_path: Path, kind: str, line: str) -> None:
    """Of the scenario that a command line becomes, which leaves them to the checkpoint; its run names the same."""
    command, out = tmp_path / "command.txt", tmp_path / "imported.yaml"
    command.write_text(line)

    found = answer(simserve, "import", kind, str(command), "--out", str(out), "--hardware", "h100-sxm-80gb")
    assert f"Simulated with {LINE}." in found["notes"]
    assert "quantization" not in found["scenario"]["deployment"]
    assert answer(simserve, "run", str(out), "--check")["formats"] == STORED


def test_an_imported_configuration_is_stored_in_the_same_format(simserve: Simserve, tmp_path: Path) -> None:
    """`import hf-config` writes the checkpoint's format into the profile, and a run of that profile names it."""
    config, profile = tmp_path / "openai--gpt-oss-20b_config.json", tmp_path / "own.yaml"
    config.write_text(json.dumps(CONFIG))
    assert simserve("import", "hf-config", str(config), "--out", str(profile)).code == 0

    line = ("--gpus", "H100", "--rate", "1", "--prompt-tokens", "100", "--output-tokens", "20")
    found = answer(simserve, "run", str(profile), *line, "--set", "deployment.engine.max_model_len=8192", "--check")
    assert found["formats"] == STORED


def test_python_and_notebooks_name_the_formats(stored: str) -> None:
    """What a cell shows of each answer, without a command line."""
    run = ss.run(stored)
    weights = {"sixteen bit": ["deployment.quantization=none"]}

    assert run.summary["simserve"]["formats"] == STORED
    shown = {
        "run": run._repr_html_(),
        "compare": ss.compare(stored, weights, replications=2)._repr_html_(),
        "capacity": ss.capacity(stored, num_requests=100, replications=2)._repr_html_(),
        "cost": ss.cost(stored)._repr_html_(),
        "sweep": ss.sweep(stored, {"run.seed": [1, 2]})._repr_html_(),
    }
    assert {name for name, cell in shown.items() if LINE.removeprefix("w") not in cell} == set()
    assert "sixteen bit: weights bf16, checkpoint unsloth/gpt-oss-20b-BF16" in shown["compare"]


def test_another_engine_names_the_same_weights(simserve: Simserve, stored: str) -> None:
    """What is stored does not depend on who serves it."""
    for engine in ("sglang", "tensorrt-llm"):
        found = answer(simserve, "memory", stored, "--engine", engine)["formats"]
        assert (found["weights"], found["weights_source"], found["checkpoint"]) == tuple(STORED.values())[:3]


def _words(*words: str) -> Walk:
    """Return a walk through one command with ``--json``, ``{stored}`` being the scenario."""
    return lambda simserve, stored, _: answer(simserve, *(word.format(stored=stored) for word in words))


def _run(simserve: Simserve, stored: str, folder: Path) -> object:
    """Run the scenario into a folder."""
    return answer(simserve, "run", stored, "--out", str(folder / "run"))


def _report(simserve: Simserve, stored: str, folder: Path) -> object:
    """Write the report of a run anew, and return what it says."""
    _run(simserve, stored, folder)
    page = folder / "anew.html"
    assert simserve("report", str(folder / "run"), "--html", str(page)).code == 0
    return page.read_text()


def _diff(simserve: Simserve, stored: str, folder: Path) -> object:
    """Compare a run with itself."""
    _run(simserve, stored, folder)
    return answer(simserve, "diff", str(folder / "run"), str(folder / "run"))


def _twin(simserve: Simserve, stored: str, folder: Path) -> object:
    """Compare the scrapes of a longer run with the scenario."""
    scrapes = folder / "scrapes.prom"
    scrapes.write_text(series(ss.run(ss.load(stored, ["workload.num_requests=2000"])), begin=30, end=330))
    return answer(simserve, "twin", str(scrapes), "--scenario", stored, "--horizon", "0")


def _import(simserve: Simserve, _: str, folder: Path) -> object:
    """Make a scenario of a command line."""
    command = folder / "command.txt"
    command.write_text("vllm serve openai/gpt-oss-20b --max-model-len 8192")
    out = ("--out", str(folder / "imported.yaml"), "--hardware", "h100-sxm-80gb")
    return answer(simserve, "import", "vllm-command", str(command), *out)


def _sweep(simserve: Simserve, stored: str, folder: Path) -> object:
    """Run two points of a grid, and return the answer and its rows."""
    out = folder / "points.parquet"
    words = ("sweep", stored, "--grid", "deployment.engine.max_num_seqs=32,64", "--out", str(out))
    found = answer(simserve, *words)
    return [found, duckdb.sql(f"SELECT formats FROM '{out}'").fetchall()]


def _explore(_: Simserve, __: str, ___: Path) -> object:
    """Ask what the page asks: a run of its simulator, and one of its lessons."""
    model = {"model": "gpt-oss-20b", "hardware": "h100-sxm-80gb", "gpus": 1}
    query = SimulatorQuery(**model, quantization="auto", num_requests=50)
    lesson = resolved_query(MemoryQuery(**model))
    return {"run": simulator(query, lambda _done, _total: None)["formats"], "formats": dict(lesson.formats)}


_ONE_PLAN = (
    "deployment.kv_cache_dtype=auto",
    "deployment.tensor_parallel_size=1",
    "deployment.pipeline_parallel_size=1",
    "deployment.enable_expert_parallel=false",
    "deployment.engine.max_num_seqs=64",
    "deployment.engine.max_num_batched_tokens=8192",
    "deployment.engine.enable_chunked_prefill=true",
)
WALKS: Mapping[str, Walk] = {
    "run": _run,
    "plan": _words(
        *("plan", "{stored}", "--hardware", "h100-sxm-80gb", "--max-gpus", "2", "--trials", "0", "--jobs", "1"),
        *(word for each in _ONE_PLAN for word in ("--over", each)),
    ),
    "capacity": _words("capacity", "{stored}", "--requests", "100", "--replications", "2", "--max", "40"),
    "compare": _words(
        "compare", "{stored}", "--with", "seats: deployment.engine.max_num_seqs=32", "--replications", "2"
    ),
    "sweep": _sweep,
    "cost": _words("cost", "{stored}", "--api", "gpt-4o", "--set", "pricing.gpu_hour_usd=3"),
    "memory": _words("memory", "{stored}"),
    "export": _words("export", "{stored}", "--to", "vllm"),
    "verify": _words("verify", "{stored}"),
    "import": _import,
    "twin": _twin,
    "report": _report,
    "diff": _diff,
    "explore": _explore,
}
"""Command -> the walk through it with the model that is stored in four bits."""


def named_in(found: object) -> set[str]:
    """Return every line of formats that an answer holds, however deep, in words."""
    if isinstance(found, str):
        return {match.group() for match in _LINE_OF_FORMATS.finditer(" ".join(found.split()))}
    if isinstance(found, Mapping):
        own = set()
        if {"weights", "weights_source", "kv_cache"} <= found.keys():
            place = f" in {found['checkpoint']}" if found.get("checkpoint") else ""
            own = {f"weights {found['weights']}, {found['weights_source']}{place}; KV {found['kv_cache']}"}
        return own.union(*(named_in(part) for pair in found.items() for part in pair))
    return set().union(*map(named_in, found)) if isinstance(found, list | tuple) else set()


@pytest.mark.parametrize("command", sorted(_COMMANDS.keys() - NOT_OF_A_DEPLOYMENT.keys() - {"frameworks"}))
def test_every_command_is_walked(simserve: Simserve, stored: str, tmp_path: Path, command: str) -> None:
    """Each that answers about a deployment names the stored formats and no others; a new one has no walk and fails."""
    assert command in WALKS, "has no walk: add one, or say in NOT_OF_A_DEPLOYMENT why it names no formats"

    assert named_in(WALKS[command](simserve, stored, tmp_path)) == {LINE}


def test_frameworks_are_walked_with_a_model_that_all_of_them_run(simserve: Simserve) -> None:
    """Transformers of 2023 runs no MXFP4, and the command says so; of its own model all nine name the same weights."""
    refusal = simserve("frameworks", "--set", "model=gpt-oss-20b", "--set", "deployment.hardware=h100-sxm-80gb")
    found = answer(simserve, "frameworks", "--set", "workload.num_requests=50")

    assert "'auto' is mxfp4, as gpt-oss-20b is stored in openai/gpt-oss-20b" in refusal.error_line
    assert len({line.partition(";")[0] for line in named_in(found)}) == 1
    assert len(found["frameworks"]) == 9


def test_commands_that_name_no_formats_exist() -> None:
    """The list of exceptions holds no command that is gone."""
    assert NOT_OF_A_DEPLOYMENT.keys() | WALKS.keys() <= _COMMANDS.keys()
    assert not NOT_OF_A_DEPLOYMENT.keys() & WALKS.keys()
