"""`simserve import`: what is printed and written, and that it runs."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from simserve.scenario.load import load
from tests.cli.conftest import Simserve
from tests.planner.importers.test_bench import PLAIN
from tests.workload.benchmarks import documents

LINE = "vllm serve meta-llama/Llama-3.2-1B --max-num-seqs 8 --max-model-len 4096 --frobnicate 1"
OPTIONS = ("--hardware", "l4-24gb", "--engine-version", "0.12")


def test_a_line_is_printed_as_a_scenario(simserve: Simserve, folder: Path) -> None:
    """What could not be understood stands in its comments, and it can be loaded."""
    done = simserve("import", "vllm-command", LINE, *OPTIONS)
    (folder / "mine.yaml").write_text(done.stdout, encoding="utf-8")

    assert done.code == 0
    assert done.stdout.startswith("# What does this vLLM server of meta-llama/Llama-3.2-1B do?\n")
    assert "# - vllm 0.12 has no --frobnicate" in done.stdout
    scenario = load("mine.yaml")
    assert scenario.deployment.hardware == "l4-24gb"
    assert scenario.deployment.engine.max_num_seqs == 8


@pytest.mark.parametrize("name", ["vllm-command", "sglang-command", "manifest", "log", "bench", "trace"])
def test_help_tells_what_flags_mean_there(simserve: Simserve, name: str) -> None:
    """GPUs are those of what is imported, with a scenario or without one."""
    words = " ".join(simserve("import", name, "--help").stdout.split())

    assert "Its GPUs, such as 2xH100." in words
    assert "With --scenario: its GPUs" not in words


@pytest.mark.parametrize("source", ["file", "stdin", "text"])
def test_the_line_comes_from_a_file_stdin_or_the_argument(
    simserve: Simserve, folder: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """All three give the same."""
    (folder / "serve.sh").write_text(LINE, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(LINE))
    argument = {"file": "serve.sh", "stdin": "-", "text": LINE}[source]

    done = simserve("import", "vllm-command", argument, *OPTIONS)
    assert yaml.safe_load(done.stdout)["deployment"]["engine"]["max_num_seqs"] == 8


def test_out_writes_a_file_that_runs(simserve: Simserve, folder: Path) -> None:
    """And replaces none; the notes are shown."""
    done = simserve("import", "vllm-command", LINE, *OPTIONS, "--out", "mine.yaml")
    again = simserve("import", "vllm-command", LINE, *OPTIONS, "--out", "mine.yaml")
    forced = simserve("import", "vllm-command", LINE, *OPTIONS, "--out", "mine.yaml", "--force", "--quiet")
    run = simserve("run", "mine.yaml", "--set", "workload.num_requests=5", "--out", "result", "--json")

    assert done.stdout.splitlines()[-1] == "simserve run mine.yaml"
    assert "- vllm 0.12 has no --frobnicate" in done.stdout
    assert again.code == 2
    assert "mine.yaml: is there already" in again.error_line
    assert (forced.code, forced.stdout) == (0, "")
    assert json.loads(run.stdout)["completed"] == 5


def test_json_is_one_object(simserve: Simserve) -> None:
    """The scenario, the notes and where it was written."""
    done = simserve("import", "vllm-command", LINE, *OPTIONS, "--json")

    answer = json.loads(done.stdout)
    assert list(answer) == ["scenario", "notes", "file"]
    assert answer["scenario"]["model"] == "llama-3.2-1b"
    assert answer["file"] is None


def test_what_is_no_command_ends_with_104(simserve: Simserve) -> None:
    """And nothing on stdout."""
    done = simserve("import", "vllm-command", "ls -l")

    assert (done.code, done.stdout) == (104, "")
    assert done.error_line.startswith("vllm command: 'ls -l' holds no vllm serve")


def test_a_trace_becomes_a_scenario_that_replays_it(simserve: Simserve, folder: Path) -> None:
    """The path is relative to the scenario's folder."""
    (folder / "t.csv").write_text("arrival_time,prompt_tokens,output_tokens\n0,50,5\n1,60,6\n", encoding="utf-8")
    (folder / "sub").mkdir()

    done = simserve("import", "trace", "t.csv", "--model", "llama-3.2-1b", "--out", "sub/replay.yaml")
    run = simserve("run", "sub/replay.yaml", "--out", "r", "--json")
    assert done.code == 0
    assert yaml.safe_load((folder / "sub/replay.yaml").read_text())["workload"]["trace"]["path"] == "../t.csv"
    assert json.loads(run.stdout)["total_input_tokens"] == 110
    assert simserve("import", "trace", "t.csv", "--format", "none").code == 2


def test_a_configuration_becomes_a_profile_that_runs(simserve: Simserve, folder: Path) -> None:
    """Named as its file."""
    config = {
        "model_type": "llama",
        "hidden_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    done = simserve("import", "hf-config", "config.json", "--out", "tiny.yaml")
    run = simserve(
        *("run", "--model", "tiny.yaml", "--hardware", "l4-24gb", "--rate", "1", "--prompt-tokens", "10"),
        *("--output-tokens", "5", "--num-requests", "5", "--out", "r", "--json"),
    )
    assert done.stdout.splitlines()[-1] == "in a scenario: model: tiny.yaml"
    assert json.loads(run.stdout)["completed"] == 5
    assert yaml.safe_load(simserve("import", "hf-config", "config.json").stdout)["hidden_size"] == 512
    assert json.loads(simserve("import", "hf-config", "config.json", "--json").stdout)["profile"]["family"] == "llama"
    assert simserve("import", "hf-config", "config.json", "--out", "tiny.yaml").code == 2


def test_a_benchmark_becomes_a_scenario_and_its_trace(simserve: Simserve, folder: Path) -> None:
    """Both or none is written; the JSON holds what was measured."""
    result = {
        "model_id": "meta-llama/Llama-3.2-1B",
        "request_rate": 2.0,
        "completed": 2,
        "duration": 3.0,
        "mean_ttft_ms": 12.5,
        "input_lens": [50, 60],
        "output_lens": [5, 6],
        "start_times": [7.0, 8.0],
    }
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")

    bare = simserve("import", "bench", "result.json")
    done = simserve("import", "bench", "result.json", "--out", "mine.yaml")
    run = simserve("run", "mine.yaml", "--out", "r", "--json")
    (folder / "mine.yaml").unlink()
    again = simserve("import", "bench", "result.json", "--out", "mine.yaml")
    answer = json.loads(simserve("import", "bench", "result.json", "--json").stdout)
    assert bare.code == 2
    assert "--out: is missing" in bare.error_line
    assert done.code == 0
    assert done.stdout.splitlines()[-3:] == [
        "simserve run mine.yaml",
        "To compare it with what was measured, and to fit it to that:",
        "simserve calibrate serving result.json --scenario mine.yaml --out mine-server.yaml",
    ]
    assert json.loads(run.stdout)["total_output_tokens"] == 11
    assert "mine.requests.csv: is there already" in again.error_line
    assert not (folder / "mine.yaml").exists()
    assert answer["measured"] == {
        "duration": 3.0,
        "completed": 2.0,
        "total_token_throughput": 121 / 3,
        "mean_ttft_ms": 12.5,
    }


def test_a_benchmark_without_lengths_takes_a_scenario_s(simserve: Simserve, folder: Path) -> None:
    """What served it is the scenario's too; an override needs one."""
    document = {key: value for key, value in documents.aiperf().items() if key != "input_sequence_length"}
    (folder / "aiperf.json").write_text(json.dumps(document), encoding="utf-8")
    lengths = "workload.prompt_tokens={distribution: fixed, value: 33}"

    alone = simserve("import", "bench", "aiperf.json", "--model", "llama-3.2-1b")
    done = simserve("import", "bench", "aiperf.json", "--scenario", "chatbot", "--set", lengths, "--out", "mine.yaml")
    bare = simserve("import", "bench", "aiperf.json", "--set", lengths)
    made = yaml.safe_load((folder / "mine.yaml").read_text(encoding="utf-8"))
    assert (alone.code, alone.stdout) == (104, "")
    assert "holds no prompt lengths; name a scenario that has them: --scenario FILE" in alone.error_line
    assert "- The file holds no prompt lengths: the scenario's are taken." in done.stdout
    assert made["workload"]["prompt_tokens"] == {"distribution": "fixed", "value": 33}
    assert made["deployment"]["tensor_parallel_size"] == load("chatbot").deployment.tensor_parallel_size
    assert bare.code == 2


LOG = """\
INFO [api_server.py:1882] vLLM API server version 0.10.2
INFO [utils.py:328] non-default args: {'model': 'meta-llama/Llama-3.2-1B', 'max_model_len': 4096, 'port': 8000}
INFO [kv_cache_utils.py:849] GPU KV cache size: 524,288 tokens
"""


def test_a_log_is_printed_as_options(simserve: Simserve, folder: Path) -> None:
    """They bring another command to the server's own room; how far the estimate is stands before them."""
    (folder / "server.log").write_text(LOG, encoding="utf-8")

    done = simserve("import", "log", "server.log", "--hardware", "l4-24gb")
    words = shlex.split(" ".join(line for line in done.stdout.splitlines() if line.startswith("--set ")))
    memory = simserve("memory", "chatbot", "--set", "model=llama-3.2-1b", *words, "--json")
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "server.log: vllm 0.10.2, meta-llama/Llama-3.2-1B",
        "KV cache: 524,288 tokens, 32,768 blocks of 16",
    ]
    assert re.fullmatch(
        r"This server has [\d.]+ % (?:more|fewer) KV tokens than simserve estimates \([\d,]+\)\.", lines[2]
    )
    assert "- Without effect on the simulation: --port." in lines
    assert json.loads(memory.stdout)["num_kv_blocks"] == 32_768


def test_a_log_goes_into_a_scenario_file(simserve: Simserve, folder: Path) -> None:
    """The JSON holds settings, room, the estimate and how many lines were not read."""
    (folder / "server.log").write_text(LOG + "something else\n", encoding="utf-8")

    done = simserve("import", "log", "server.log", "--scenario", "chatbot", "--out", "mine.yaml", "--json")
    answer = json.loads(done.stdout)
    assert list(answer) == [
        *(
            "engine",
            "version",
            "model",
            "settings",
            "kv",
            "estimate",
            "scenario",
            "served",
            "notes",
            "unread_lines",
            "file",
        ),
    ]
    assert answer["kv"] == {"tokens": 524_288, "blocks": 32_768, "bytes": None, "block_size": 16}
    assert (answer["unread_lines"], answer["file"]) == (1, "mine.yaml")
    assert answer["estimate"]["difference"] == pytest.approx(524_288 / answer["estimate"]["tokens"] - 1)
    made = load("mine.yaml")
    assert (made.model, made.deployment.engine.max_model_len) == ("llama-3.1-70b", 4096)
    assert made.workload == load("chatbot").workload


def test_a_log_without_a_model_makes_no_file(simserve: Simserve, folder: Path) -> None:
    """TensorRT-LLM's does not name it; no log ends with 104."""
    text = "[TensorRT-LLM][INFO] Number of tokens per block: 64.\n"
    (folder / "trt.log").write_text(text, encoding="utf-8")
    (folder / "no.log").write_text("hello\n", encoding="utf-8")

    unnamed = simserve("import", "log", "trt.log", "--out", "mine.yaml")
    nothing = simserve("import", "log", "no.log")
    assert (unnamed.code, unnamed.error_line.split("; ")[-1]) == (2, "name it with --model")
    assert not (folder / "mine.yaml").exists()
    assert (nothing.code, nothing.stdout) == (104, "")
    assert "no.log: holds no start-up line of vLLM, SGLang, TensorRT-LLM or llama.cpp" in nothing.error_line


@pytest.mark.parametrize(
    ("command", "line", "engine"),
    [
        ("sglang-command", "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2", "sglang"),
        ("trtllm-command", "trtllm-serve Qwen/Qwen3-8B --tp_size 2", "tensorrt-llm"),
        ("command", "lmdeploy serve api_server Qwen/Qwen3-8B --tp 2", "lmdeploy"),
    ],
)
def test_lines_of_other_engines_are_printed_as_scenarios(
    simserve: Simserve, folder: Path, command: str, line: str, engine: str
) -> None:
    """By a command of each engine's own."""
    done = simserve("import", command, line, "--out", "mine.yaml")

    made = load("mine.yaml")
    assert done.code == 0
    assert (made.deployment.engine.name, made.deployment.tensor_parallel_size) == (engine, 2)


def test_manifests_of_a_deployment_are_written_as_a_scenario(simserve: Simserve, folder: Path) -> None:
    """Several files, as a chart and its pool are."""
    simserve("export", "disaggregation", "--to", "llm-d", "--out", str(folder / "values.yaml"))

    files = [str(folder / name) for name in ("values.yaml", "disaggregation.inferencepool.yaml")]
    done = simserve("import", "manifest", *files, "--out", "cluster.yaml")

    deployment = load("cluster.yaml").deployment
    assert done.code == 0
    assert deployment.routing.policy == load("disaggregation").deployment.routing.policy
    assert [pool.replicas for pool in deployment.pools] == [2, 2]
    assert simserve("import", "manifest", "cluster.yaml").code == 104


def test_gpus_are_named_as_in_every_other_command(simserve: Simserve, tmp_path: Path) -> None:
    """Any alias; the number is that of the command's own server, and another one is refused."""
    line = ("import", "vllm-command", "vllm serve Qwen/Qwen3-8B -tp 2", "--json")
    for name in ("2xH100", "H100", "h100-sxm-80gb"):
        outcome = simserve(*line, "--gpus", name)
        assert json.loads(outcome.stdout)["scenario"]["deployment"]["hardware"] == "h100-sxm-80gb"
    other, unknown = (simserve(*line, "--gpus", name) for name in ("4xH100", "H1000"))

    assert (other.code, other.stdout) == (2, "")
    assert "--gpus: 4 is another number than the 2 that what is imported runs on" in other.stderr
    assert unknown.code == 104
    assert "--gpus: 'H1000' is not a known GPU" in unknown.stderr


def test_gpus_of_a_benchmark_share_the_model(simserve: Simserve, tmp_path: Path) -> None:
    """Its file does not say how the model lay on them: tensor parallel."""
    file = tmp_path / "result.json"
    file.write_text(json.dumps(PLAIN))
    outcome = simserve("import", "bench", str(file), "--gpus", "2xH200", "--json")

    deployment = json.loads(outcome.stdout)["scenario"]["deployment"]
    assert (deployment["hardware"], deployment["tensor_parallel_size"]) == ("h200-sxm-141gb", 2)
