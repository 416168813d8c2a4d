"""`gpus`, `models`, `engines`, `scenarios`, `schema`, `memory`, `--help`, `--version`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import simserve as ss
from simserve.profiles import catalog
from simserve.scenario.resolve import replica_shape
from tests.cli.conftest import Simserve
from tests.scenario.builders import make_scenario

_COMMANDS = ("run", "memory", "cost", "validate", "scenarios", "gpus", "models", "engines", "apis", "schema")


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_has_help(simserve: Simserve, command: str) -> None:
    """It opens with what the command answers."""
    outcome = simserve(command, "--help")

    assert outcome.code == 0
    assert "Usage: simserve" in outcome.stdout


def test_help_lists_every_command(simserve: Simserve) -> None:
    """Nothing is hidden."""
    stdout = simserve("--help").stdout

    assert all(command in stdout for command in _COMMANDS)


def test_version_is_printed(simserve: Simserve) -> None:
    """One line."""
    outcome = simserve("--version")

    assert (outcome.code, outcome.stdout) == (0, f"simserve {ss.__version__}\n")


@pytest.mark.parametrize(("command", "kind"), [("gpus", "hardware"), ("models", "model"), ("engines", "engine")])
def test_a_catalogue_lists_every_profile(simserve: Simserve, command: str, kind: catalog.Kind) -> None:
    """As a table and as JSON."""
    table, answer = simserve(command), json.loads(simserve(command, "--json").stdout)

    assert [row["name"] for row in answer[command]] == catalog.names(kind)
    assert all(name in table.stdout for name in catalog.names(kind))


def test_engines_fit_a_narrow_terminal(simserve: Simserve) -> None:
    """An engine is a line of 80 columns with the span of its versions; JSON has each."""
    lines = [line.rstrip() for line in simserve("engines").stdout.splitlines()]
    versions = {row["name"]: row["versions"] for row in json.loads(simserve("engines", "--json").stdout)["engines"]}
    rows = {line.split()[0]: line for line in lines if line.split()[0] in versions}

    assert set(rows) == set(versions)
    assert max(map(len, rows.values())) <= 80
    assert rows["lmdeploy"].endswith(f"{versions['lmdeploy'][0]} to {versions['lmdeploy'][-1]}")
    assert rows["orca"].endswith(versions["orca"][0])


def test_gpus_fit_a_terminal_of_80_columns(simserve: Simserve) -> None:
    """No row of the table and no line below it is longer."""
    lines = simserve("gpus").stdout.splitlines()

    assert len(lines) > 50
    assert max(len(line.rstrip()) for line in lines) <= 80


@pytest.mark.parametrize(("name", "file"), [("H100", "h100-sxm-80gb"), ("m4-max-64gb", "m4-max-128gb")])
def test_a_gpu_s_profile_is_printed_as_a_file_to_start_from(simserve: Simserve, name: str, file: str) -> None:
    """By any of its names, with every source; as it is, it can be run."""
    printed = simserve("gpus", name, "--profile").stdout

    found = yaml.safe_load(printed)
    assert found["name"] == file
    assert all("source" in found[block] for block in ("memory", "compute", "power"))
    assert json.loads(simserve("gpus", name, "--profile", "--json").stdout) == {"name": file, "yaml": printed}
    assert simserve("gpus", "h9000", "--profile").code == 104


@pytest.mark.parametrize("word", ["H100", "2xh100", "RTX 4090"])
def test_a_gpu_in_place_of_a_scenario_is_told_so(simserve: Simserve, word: str) -> None:
    """It was said to be like no scenario."""
    outcome = simserve("run", word)

    assert outcome.code == 104
    assert f"'{word}' is a GPU, neither a scenario nor a model" in outcome.error_line


def test_gpus_list_short_names_and_sizes(simserve: Simserve) -> None:
    """As JSON: what else means a GPU, and the hosts of an NVLink domain."""
    rows = {row["name"]: row for row in json.loads(simserve("gpus", "--json").stdout)["gpus"]}

    assert "h100" in rows["h100-sxm-80gb"]["aliases"]
    assert rows["m4-max-128gb"]["sizes"] == {"m4-max-48gb": 37.44 * 2.0**30, "m4-max-64gb": 51.84 * 2.0**30}
    assert (rows["gb200-186gb"]["gpus_per_node"], rows["gb200-186gb"]["gpus_per_host"]) == (72, 4)
    assert rows["gb300-279gb"]["fp4_flops"] == 15e15


def test_gpus_state_the_facts_that_matter(simserve: Simserve) -> None:
    """Memory, bandwidth, dense peaks, a price and its date."""
    rows = {row["name"]: row for row in json.loads(simserve("gpus", "--json").stdout)["gpus"]}

    assert rows["h100-sxm-80gb"]["bandwidth_bytes_per_s"] == pytest.approx(3.35e12)
    assert rows["a100-sxm-80gb"]["fp8_flops"] is None
    assert rows["h100-sxm-80gb"]["usd_per_hour"] > 0
    assert rows["h100-sxm-80gb"]["price_date"].startswith("20")


def test_models_state_parameters_and_kv_bytes(simserve: Simserve) -> None:
    """The golden value of Llama-3.1-8B."""
    rows = {row["name"]: row for row in json.loads(simserve("models", "--json").stdout)["models"]}

    assert rows["llama-3.1-8b"]["kv_bytes_per_token"] == 131_072
    assert rows["llama-3.1-8b"]["num_parameters"] == pytest.approx(8.03e9, rel=0.01)


def test_an_engine_s_knobs_resolve_by_version_and_gpu(simserve: Simserve) -> None:
    """vLLM gives an A100 a smaller token budget than an H100."""
    on = {
        gpu: json.loads(simserve("engines", "vllm", "--engine-version", "0.12", "--hardware", gpu, "--json").stdout)
        for gpu in ("a100-sxm-80gb", "h100-sxm-80gb")
    }

    assert on["a100-sxm-80gb"]["max_num_batched_tokens"] < on["h100-sxm-80gb"]["max_num_batched_tokens"]
    assert "max_num_batched_tokens" in simserve("engines", "vllm").stdout
    refused = simserve("engines", "vllm", "--gpus", "2xH100")
    assert refused.code == 2
    assert "--gpus: '2xH100' is a number of GPUs" in refused.stderr


def test_what_a_scenario_can_set_of_an_engine_comes_first(simserve: Simserve) -> None:
    """Sixty traits of its kernels stood before the number of seats."""
    first = [line.split()[0] for line in simserve("engines", "vllm").stdout.splitlines() if line]
    works = first.index("how")

    assert first.index("set") < first.index("max_num_seqs") < works
    assert first.index("enable_prefix_caching") < works < first.index("has_marlin")


def test_scenarios_are_listed_with_their_question(simserve: Simserve) -> None:
    """The list says what each one answers."""
    rows = json.loads(simserve("scenarios", "--json").stdout)["scenarios"]

    assert [row["name"] for row in rows] == catalog.names("scenario")
    assert all(row["question"].endswith("?") for row in rows)
    assert "chatbot" in simserve("scenarios").stdout


def test_a_printed_scenario_is_one_to_start_from(simserve: Simserve) -> None:
    """`simserve scenarios chatbot > mine.yaml` gives a file that runs."""
    Path("mine.yaml").write_text(simserve("scenarios", "chatbot").stdout, encoding="utf-8")

    assert yaml.safe_load(Path("mine.yaml").read_text(encoding="utf-8"))["name"] == "chatbot"
    assert simserve("run", "mine.yaml", "--check").code == 0


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_schema_is_the_json_schema(simserve: Simserve, flags: tuple[str, ...]) -> None:
    """With or without --json."""
    assert json.loads(simserve("schema", *flags).stdout)["title"] == "Scenario"


def test_memory_answers_what_fits(simserve: Simserve, small: str) -> None:
    """The documented keys, and the arithmetic for a person."""
    outcome = simserve("memory", small, "--json")

    answer = json.loads(outcome.stdout)
    keys = ["fits", "weights_bytes", "kv_bytes_per_token", "num_kv_blocks", "max_concurrent_full_length", "parts"]
    assert outcome.code == 0
    assert set(keys) <= set(answer)
    assert answer["kv_bytes_per_token"] == 32_768
    assert all(line in simserve("memory", small).stdout for line in answer["arithmetic"])


def test_an_engine_s_table_has_units_and_says_what_is_common_once(simserve: Simserve) -> None:
    """Bytes and seconds as a person writes them; "default" stands for engine, version and GPU."""
    stdout = simserve("engines", "vllm", "--engine-version", "0.12").stdout

    lines = [line for line in stdout.splitlines()[2:] if not line.startswith(" ")]  # others go on with a source
    rows = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in lines}
    assert stdout.splitlines()[0] == "default: vllm 0.12 default on h100-sxm-80gb"
    assert stdout.count("on h100-sxm-80gb") == 1
    assert rows["cuda_graph_bytes"].split() == ["536.9", "MB", "default"]
    assert rows["host_seconds_per_step"].split() == ["500", "us", "default"]
    assert rows["frontend_latency"].split() == ["5", "ms", "default"]
    assert rows["version"].split() == ["0.12", "scenario"]


def test_help_is_grouped_by_what_one_wants(simserve: Simserve) -> None:
    """Each command stands in one panel, in the order in which people come to them."""
    lines = simserve("--help").stdout.splitlines()
    panels = [line.strip("╭╮─ ") for line in lines if line.startswith("╭")]
    commands = [line.split()[1] for line in lines if line.startswith("│ ") and line[2] != " "]

    assert panels[1:] == ["Answer a question", "Bring your own, take it away", "Check it against measurements", "Look"]
    assert [each for each in commands if commands.count(each) > 1] == []
    assert commands.index("run") < commands.index("import") < commands.index("validate") < commands.index("explore")


@pytest.mark.parametrize(
    ("engine", "gpu", "model"),
    [
        ("sglang", "mi300x-192gb", "llama-3.1-8b"),
        ("sglang", "h200-sxm-141gb", "deepseek-v3"),
        ("tensorrt-llm", "h100-sxm-80gb", "qwen3-30b-a3b"),
    ],
)
def test_the_knobs_of_an_engine_are_those_of_a_run(simserve: Simserve, engine: str, gpu: str, model: str) -> None:
    """What depends on the model's kind and on the GPU's maker too: memory share, graphs, formats."""
    shown = json.loads(simserve("engines", engine, "--hardware", gpu, "--model", model, "--json").stdout)
    deployment = {"hardware": gpu, "engine": {"name": engine}, "tensor_parallel_size": 1}

    asked = make_scenario(model=model, deployment=deployment)
    known = json.loads(json.dumps(replica_shape(asked).engine.model_dump()).replace("Infinity", "null"))

    assert {key for key in known if shown[key] != known[key]} <= {"max_model_len", "sources"}
