"""`simserve export`: what is printed, what is written, and how refusals end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Simserve
from tests.observe.stand_in import Ways
from tests.observe.stand_in import stand_in as stand_in_server


def test_the_command_is_printed_with_a_line_a_flag(simserve: Simserve) -> None:
    """Notes go to stderr, so that the command can be piped."""
    done = simserve("export", "chatbot", "--to", "vllm")

    assert done.code == 0
    assert done.stdout.splitlines() == [
        "vllm serve RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8 \\",
        "  --tensor-parallel-size 4 \\",
        "  --kv-cache-dtype fp8 \\",
        "  --max-model-len 16384 \\",
        "  --max-num-seqs 256",
    ]
    assert done.stderr.startswith("note: simulated with weights fp8, checkpoint RedHatAI/")
    assert "is stored in fp8: no --quantization is needed" in done.stderr


def test_json_is_one_object(simserve: Simserve) -> None:
    """The command on one line."""
    done = simserve("export", "single-gpu-7b", "--to", "vllm", "--json")

    answer = json.loads(done.stdout)
    assert list(answer) == ["target", "version", "formats", "command", "files", "notes"]
    assert answer["formats"]["weights"] == "bf16"
    assert answer["command"] == "vllm serve mistralai/Mistral-7B-v0.1 --max-model-len 8192"
    assert (answer["target"], answer["version"]) == ("vllm", "0.12")


def test_explicit_and_checkpoint_change_the_command(simserve: Simserve) -> None:
    """Defaults are said, other weights are named."""
    done = simserve("export", "chatbot", "--to", "vllm", "--explicit", "--checkpoint", "org/mine")

    assert done.stdout.startswith("vllm serve org/mine \\")
    assert "--block-size 16" in done.stdout


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("moonshotai/Kimi-K2.6", "vllm serve moonshotai/Kimi-K2.6 "),
        ("nvidia/Llama-4-Maverick-17B-128E-Instruct-FP8", "vllm serve nvidia/Llama-4-Maverick-17B-128E-Instruct-FP8 "),
        ("Qwen/Qwen3-235B-A22B-FP8", "vllm serve Qwen/Qwen3-235B-A22B-FP8 "),
        ("qwen3-235b-a22b", "vllm serve Qwen/Qwen3-235B-A22B "),
    ],
)
def test_the_repository_that_was_named_is_loaded(simserve: Simserve, name: str, written: str) -> None:
    """Also where only its architecture is on record, by its name; not the one on record, nor quantised on load."""
    done = simserve("export", name, "--gpus", "8xH200", "--to", "vllm", "--json")

    command = json.loads(done.stdout)["command"]
    assert command.startswith(written)
    assert "--quantization" not in command


def test_out_writes_a_script_and_replaces_nothing(simserve: Simserve, folder: Path) -> None:
    """Unless it is forced to."""
    first = simserve("export", "chatbot", "--to", "vllm", "--out", "serve.sh", "--quiet")
    text = (folder / "serve.sh").read_text(encoding="utf-8")
    second = simserve("export", "single-gpu-7b", "--to", "vllm", "--out", "serve.sh")
    forced = simserve("export", "single-gpu-7b", "--to", "vllm", "--out", "serve.sh", "--force")

    assert (first.code, first.stdout, first.stderr) == (0, "", "")
    assert text.startswith("#!/bin/sh\n# simulated with weights fp8")
    assert "\nexec vllm serve RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8 \\\n" in text
    assert second.code == 2
    assert second.error_line == "serve.sh: is there already; name another file, or replace it with --force"
    assert forced.code == 0
    assert "Mistral" in (folder / "serve.sh").read_text(encoding="utf-8")


def test_what_is_written_is_said_with_its_notes(simserve: Simserve, folder: Path) -> None:
    """On stdout, as the command itself is in the file; manifests and further files too."""
    script = simserve("export", "chatbot", "--to", "vllm", "--out", "serve.sh")
    manifest = simserve("export", "chatbot", "--to", "k8s", "--out", "chat.yaml")
    model = simserve("export", "single-gpu-7b", "--to", "ollama", "--out", "ollama.sh")

    assert script.stdout.splitlines()[0] == "serve.sh: vllm, version 0.12"
    assert script.stdout.splitlines()[1].startswith("- simulated with weights fp8")
    assert (script.stderr, manifest.code, model.code) == ("", 0, 0)
    assert (folder / "chat.yaml").read_text(encoding="utf-8").startswith("# simulated with weights fp8")
    assert "kind: PodDisruptionBudget" in (folder / "chat.yaml").read_text(encoding="utf-8")
    assert (folder / "Modelfile").read_text(encoding="utf-8").startswith("FROM ./Mistral-7B-v0.1")


def test_a_folder_that_is_not_there_is_a_usage_error(simserve: Simserve) -> None:
    """With what went wrong."""
    done = simserve("export", "single-gpu-7b", "--to", "vllm", "--out", "none/serve.sh")

    assert (done.code, done.stdout) == (2, "")
    assert done.error_line == "none/serve.sh: cannot be written: No such file or directory"


def test_refusals_have_their_exit_codes(simserve: Simserve) -> None:
    """104 for what cannot be said, 3 for what does not fit, 2 for a target that is none; stdout stays empty."""
    static = simserve("export", "static-vs-continuous", "--to", "vllm")
    misfit = simserve("export", "chatbot", "--to", "vllm", "--set", "deployment.tensor_parallel_size=1")
    target = simserve("export", "chatbot", "--to", "vlm")
    fixed = simserve("export", "chatbot", "--to", "keda")
    unset = simserve("export", "busy-scales-late", "--to", "keda", "--set", "deployment.autoscaling=null")

    assert (static.code, static.stdout) == (104, "")
    assert "'static' cannot be exported: vllm 0.12 knows continuous only" in static.error_line
    assert (misfit.code, misfit.stdout) == (3, "")
    assert (target.code, target.stdout) == (2, "")
    assert "--to: 'vlm' is not a target; did you mean 'vllm'" in target.error_line
    assert "chatbot.yaml: deployment.autoscaling: is absent" in fixed.error_line
    assert "--set deployment.autoscaling: is absent" in unset.error_line


def stand_in(folder: Path, name: str, code: int) -> None:
    """Put a command on the script's path that writes down how it was called, and the file that it was asked for."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    wanted = "mkdir -p measured; echo {} > measured.json; echo {} > measured/1.json"
    program.write_text(f'#!/bin/sh\necho {name} "$@" >> called\n{wanted}\nexit {code}\n', encoding="utf-8")
    program.chmod(0o755)


def test_the_script_of_ollama_serves_the_model_and_is_read_as_what_was_simulated(
    simserve: Simserve, folder: Path
) -> None:
    """It passes the variables on, makes and loads the model once the server answers, and names it with its format."""
    traffic = ["--rate", "1", "--prompt-tokens", "100", "--output-tokens", "50"]
    asked = ["mistral-7b", "--gpus", "4090", "--engine", "ollama", "--quantization", "q8_0", *traffic]
    seats = ["--set", "deployment.engine.max_num_seqs=4"]
    assert simserve("export", *asked, *seats, "--to", "ollama", "--out", "ollama.sh").code == 0
    stand_in(folder, "ollama", 0)
    program = folder / "bin" / "ollama"
    program.write_text('#!/bin/sh\necho "$OLLAMA_NUM_PARALLEL" "$@" >> "$CALLED"\n', encoding="utf-8")
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "CALLED": str(folder / "called")}

    subprocess.run(["sh", folder / "ollama.sh"], cwd="/", env=environment, check=True)

    deadline = time.monotonic() + 20
    while len(called := (folder / "called").read_text(encoding="utf-8").splitlines()) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "4 serve" in called
    create = " create mistral-7b-q8_0 --quantize q8_0 -f Modelfile"
    assert [each for each in called if each != "4 serve"] == [" list", create, " run mistral-7b-q8_0 "]
    assert "--served-model-name mistral-7b-q8_0" in (folder / "benchmark.sh").read_text(encoding="utf-8")
    line = (folder / "ollama.sh").read_text(encoding="utf-8")
    read = json.loads(simserve("memory", "--like", line, "--gpus", "4090", "--json").stdout)
    assert (read["model"], read["formats"]["weights"]) == ("mistral-7b", "gguf-q8_0")
    assert read["engine_resolved"]["max_num_seqs"] == 4


@pytest.mark.parametrize(("name", "sender"), [("chatbot", "vllm bench serve"), ("single-gpu-7b", "simserve observe")])
def test_the_benchmark_sends_the_traffic_and_ends_as_the_check_does(
    name: str, sender: str, simserve: Simserve, folder: Path
) -> None:
    """By vLLM's client where it can, at the simulated rate and lengths; then the gate, whose code is the script's."""
    assert simserve("export", name, "--to", "vllm", "--out", "serve.sh").code == 0
    stand_in(folder, "vllm", 0)
    stand_in(folder, "simserve", 0 if sender.startswith("simserve") else 99)
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "URL": "http://host:9", "TOLERANCE": "7%"}

    done = subprocess.run(["sh", "benchmark.sh"], cwd=folder, env=environment, check=False)

    sent, checked = (folder / "called").read_text(encoding="utf-8").splitlines()
    assert sent.startswith(sender)
    assert "http://host:9" in sent
    assert ("--request-rate 5.5" in sent) == (name == "chatbot")
    assert checked.startswith("simserve calibrate check vllm --against measured")
    assert checked.endswith("--scenario benchmark.scenario.yaml --may-be-faster --tolerance 7%")
    assert done.returncode == (99 if name == "chatbot" else 0)
    assert simserve("run", "benchmark.scenario.yaml", "--check").code == 0


def test_a_second_export_has_a_benchmark_of_its_own(simserve: Simserve, folder: Path) -> None:
    """In the same folder, and nothing is replaced."""
    for out in ("one.sh", "two.sh"):
        assert simserve("export", "chatbot", "--to", "vllm", "--out", out).code == 0

    assert "--scenario two.benchmark.scenario.yaml" in (folder / "two.benchmark.sh").read_text(encoding="utf-8")
    assert (folder / "benchmark.sh").is_file()


@pytest.mark.slow
def test_a_server_that_does_not_keep_the_promise_ends_the_benchmark_with_99(simserve: Simserve, folder: Path) -> None:
    """The script as it is written, but for its time, against a small server whose tokens take ten times as long."""
    lengths = ["--set", "workload.prompt_tokens=64", "--set", "workload.output_tokens=16"]
    assert simserve("export", "single-gpu-7b", "--to", "vllm", "--out", "serve.sh", *lengths).code == 0
    script = folder / "benchmark.sh"
    script.write_text(script.read_text(encoding="utf-8").replace("--budget 5min", "--budget 10s"), encoding="utf-8")
    program = folder / "bin" / "simserve"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m simserve "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    root = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])

    with stand_in_server(Ways(token_seconds=0.2)) as server:
        environment = {**os.environ, "PATH": path, "PYTHONPATH": root, "URL": server.url}
        done = subprocess.run(["sh", "benchmark.sh"], cwd=folder, env=environment, capture_output=True, text=True)

    assert done.returncode == 99, done.stderr
    assert "--may-be-faster" in script.read_text(encoding="utf-8")
    assert "mean tpot" in done.stdout
    assert "slower" in done.stdout


@pytest.mark.parametrize(("name", "target"), [("Kubernetes", "k8s"), ("docker-compose", "compose"), ("vLLM", "vllm")])
def test_a_target_has_the_name_that_people_give_it(simserve: Simserve, name: str, target: str) -> None:
    """In any case."""
    told = [json.loads(simserve("export", "chatbot", "--to", each, "--json").stdout) for each in (name, target)]

    assert told[0] == told[1]
    assert told[0]["target"] == target
