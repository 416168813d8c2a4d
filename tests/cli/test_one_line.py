"""One line for everything: no file, an empty folder, and the answer that the equivalent file has."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.api import load
from simserve.cli.one_line import _written
from simserve.errors import InputError, ProfileError, UsageError
from simserve.planner.layout import OneLine
from simserve.planner.one_line import ask, gpu_and_count, kinds_of_gpus, weight_format
from simserve.profiles import catalog
from simserve.profiles.engine_profile import load_engine
from simserve.units import requests_per_second
from tests.cli.conftest import Simserve

pytestmark = pytest.mark.usefixtures("page_alone")

LINE = (
    "Qwen/Qwen3-32B --gpus 2xH100 --engine vllm==0.20 --rate 3 --prompt-tokens 2k --output-tokens 500 "
    "--slo 'ttft=1.5s,tpot=50ms'"
)
FILE: dict[str, Any] = {
    "name": "Qwen3-32B-h100-sxm-80gb",
    "model": "qwen3-32b",
    "deployment": {
        "hardware": "h100-sxm-80gb",
        "tensor_parallel_size": 2,
        "engine": {"name": "vllm", "version": "0.20"},
    },
    "workload": {
        "arrivals": {"process": "poisson", "rate": 3.0},
        "prompt_tokens": 2000,
        "output_tokens": 500,
        "num_requests": 1000,
    },
    "slo": {"ttft": "1.5 s", "tpot": "50 ms"},
}
SHORT = "--num-requests 40"


def write(mapping: dict[str, Any], name: str = "mine.yaml") -> str:
    """Write a scenario into the working folder and return its name."""
    Path(name).write_text(yaml.safe_dump(mapping), encoding="utf-8")
    return name


def answer(simserve: Simserve, line: str, code: int = 0) -> dict[str, Any]:
    """Return the JSON of a command."""
    outcome = simserve(*shlex.split(line), "--json")

    assert outcome.code == code, outcome.stderr
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def of_file(**changes: Any) -> dict[str, Any]:
    """Return the equivalent file with some blocks changed."""
    return {**FILE, **changes}


@pytest.mark.parametrize("command", ["memory", "export --to vllm"])
def test_an_answer_without_traffic_is_that_of_the_file(simserve: Simserve, command: str) -> None:
    """The flags of traffic may be left out."""
    word, *rest = command.split(maxsplit=1)
    tail = " ".join(rest)

    whole = answer(simserve, f"{word} {LINE} {tail}")
    alone = answer(simserve, f"{word} Qwen/Qwen3-32B --gpus 2xH100 --engine vllm==0.20 {tail}")

    assert whole == alone == answer(simserve, f"{word} {write(FILE)} {tail}")


def test_a_run_is_that_of_the_file(simserve: Simserve) -> None:
    """Byte for byte, the name included."""
    file = write(of_file(workload={**FILE["workload"], "num_requests": 40}))

    assert answer(simserve, f"run {LINE} {SHORT} --out one") == answer(simserve, f"run {file} --out two")


@pytest.mark.slow
def test_a_comparison_is_that_of_the_file(simserve: Simserve) -> None:
    """With --with on top."""
    file, variant = (
        write(of_file(workload={**FILE["workload"], "num_requests": 40})),
        "--replications 2 --with 'a: run.warmup=none'",
    )

    assert answer(simserve, f"compare {LINE} {SHORT} {variant}") == answer(simserve, f"compare {file} {variant}")


@pytest.mark.slow
def test_a_cost_is_that_of_the_file(simserve: Simserve) -> None:
    """A simulated one; the flags that arithmetic shares mean the scenario's here."""
    file = write(of_file(workload={**FILE["workload"], "num_requests": 40}))

    assert answer(simserve, f"cost {LINE} {SHORT} --api gpt-4o") == answer(simserve, f"cost {file} --api gpt-4o")


@pytest.mark.slow
def test_a_capacity_and_a_plan_are_those_of_the_file(simserve: Simserve) -> None:
    """In a plan the number of GPUs is a limit, and the layout is the plan's."""
    file = write(FILE)
    deployment = {key: value for key, value in FILE["deployment"].items() if key != "tensor_parallel_size"}
    planned = write(of_file(deployment=deployment), "planned.yaml")

    capacity = answer(simserve, f"capacity {LINE}")
    plan = answer(simserve, f"plan {LINE} --trials 0 --jobs 1")
    same = answer(simserve, f"plan {planned} --hardware h100-sxm-80gb --max-gpus 2 --trials 0 --jobs 1")

    assert capacity == answer(simserve, f"capacity {file}")
    assert plan["feasible"]
    commands = re.compile(r'simserve (?:run|calibrate loads) [^"]*')
    assert commands.sub("", json.dumps(plan)) == commands.sub("", json.dumps(same))


@pytest.mark.slow
def test_the_command_of_a_plan_runs_what_was_planned(simserve: Simserve) -> None:
    """Its --gpus says no number: that would be a layout."""
    simserve(*shlex.split(f"plan {LINE} --trials 0 --jobs 1 --quiet"))
    shown = simserve(*shlex.split(f"plan {LINE} --trials 0 --jobs 1"))
    lines = [line.strip() for line in shown.stdout.replace("\\\n", "").splitlines()]
    command = next(line for line in lines if line.startswith("simserve run"))

    assert "2xH100" not in command
    assert answer(simserve, f"{command.removeprefix('simserve ')} --check")["fits"]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("memory Qwen/Qwen3-32B --gpus 2xH100 --engine vllm==0.20", 0, "qwen3-32b on 2 x h100-sxm-80gb: fits"),
        ("memory qwen/qwen3-32b --gpus 2XH100", 0, "qwen3-32b on 2 x h100-sxm-80gb: fits"),
        ("memory zai-org/GLM-5-FP8 --gpus 8xH200", 0, "glm-5 on 8 x h200-sxm-141gb: fits"),
        ("memory openai/gpt-oss-120b --gpus H100", 0, "max_model_len 118,112 of 131,072: the longest that fits"),
        ("memory meta-llama/Llama-3.1-8B --gpus L4", 0, "max_model_len 31,456 of 131,072: the longest that fits"),
        ("memory llama-2-7b --gpus m2-max-96gb --engine llama.cpp==b8000", 0, "llama-2-7b on 1 x m2-max-96gb: fits"),
        ("memory mistral-small-24b --gpus RTX4090", 3, "does not fit"),
        ("memory mistral-small-24b --gpus '4xTesla V100-SXM2-16GB'", 0, "mistral-small-24b on 4 x v100-sxm-16gb: fits"),
        ("memory nvidia/Qwen3-32B-NVFP4 --gpus 'DGX Spark'", 0, "qwen3-32b on 1 x gb10-128gb: fits"),
        ("memory gratex/mistral-small-3.2-24b-Instruct-GPTQ-W4A16 --gpus rtx4090", 0, "as stored in gratex/mistral"),
    ],
)
def test_a_model_and_gpus_are_enough_for_what_fits(simserve: Simserve, line: str, code: int, said: str) -> None:
    """By profile, Hugging Face id and alias, in any case."""
    outcome = simserve(*shlex.split(line))

    assert outcome.code == code
    assert said in outcome.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run openai/gpt-oss-120b --gpus H100", "gpt-oss-120b on 1 x h100-sxm-80gb"),
        ("run zai-org/GLM-5-FP8 --gpus 8xH200", "glm-5 on 8 x h200-sxm-141gb"),
        ("run meta-llama/Llama-3.1-8B --gpus L4", "max_model_len 31,456 of 131,072: the longest that fits"),
        ("run llama-3.1-8b --gpus 4xH100 --tp 2", "llama-3.1-8b on 4 x h100-sxm-80gb, 2 replicas"),
        ("run llama-3.1-8b --gpus 8xH100 --tp 2 --pp 2", "llama-3.1-8b on 8 x h100-sxm-80gb, 2 replicas"),
        ("run chatbot --gpus 8xH100 --tp 4", "llama-3.1-70b on 8 x h100-sxm-80gb, 2 replicas"),
        (
            "run llama-3.1-8b --gpus 3xH100 --replicas 3 --set deployment.routing=round_robin",
            "llama-3.1-8b on 3 x h100-sxm-80gb, 3 replicas",
        ),
    ],
)
def test_a_run_needs_no_file(simserve: Simserve, line: str, said: str) -> None:
    """From an empty folder."""
    traffic = "--rate 0.5 --prompt-tokens 1k --output-tokens 50 --num-requests 10 --out out"
    outcome = simserve(*shlex.split(f"{line} {traffic}"))

    assert outcome.code == 0, outcome.stderr
    assert said in outcome.stdout


def test_mistral_small_on_an_rtx_4090_names_the_checkpoint_that_fits(simserve: Simserve) -> None:
    """As it is stored it is refused; the change that is named runs."""
    line = "run mistral-small-24b --gpus rtx4090 --rate 0.5 --prompt-tokens 1k --output-tokens 50 --num-requests 10"
    refused = simserve(*shlex.split(line))
    remedy = re.search(r"what fits: (--set \S+) \(checkpoint (\S+)\)", refused.error_line)

    assert refused.code == 3
    assert remedy is not None
    assert remedy[2] == "gratex/mistral-small-3.2-24b-Instruct-GPTQ-W4A16"
    assert answer(simserve, f"{line} {remedy[1]} --out out")["completed"] == 10


TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def test_a_config_and_its_folder_are_models(simserve: Simserve, folder: Path) -> None:
    """The result bears the folder's name; a scenario in JSON stays one."""
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    Path("mine.json").write_text(json.dumps(FILE), encoding="utf-8")

    by_file = answer(simserve, "memory tiny/config.json --gpus L4")
    by_folder = answer(simserve, "memory tiny --gpus L4")

    assert by_file["num_kv_blocks"] == by_folder["num_kv_blocks"] > 0
    assert answer(simserve, "memory mine.json")["model"] == "qwen3-32b"


def test_a_trace_with_usual_columns_is_replayed(simserve: Simserve) -> None:
    """`timestamp,prompt,completion`, and any other names with --columns."""
    rows = "".join(f"2026-11-20T10:00:{second:02d}Z,{500 + second},{50 + second}\n" for second in range(20))
    Path("usual.csv").write_text(f"timestamp,prompt,completion\n{rows}", encoding="utf-8")
    Path("other.csv").write_text(f"when,a,b\n{rows}", encoding="utf-8")
    columns = "arrival_time=when,prompt_tokens=a,output_tokens=b"

    usual = answer(simserve, "run llama-3.1-8b --gpus L4 --trace usual.csv --out one")
    other = answer(simserve, f"run llama-3.1-8b --gpus L4 --trace other.csv --columns {columns} --out two")
    listed = answer(simserve, f"trace other.csv --columns {columns}")
    imported = answer(simserve, f"import trace other.csv --columns {columns}")

    assert usual["completed"] == other["completed"] == listed["requests"] == 20
    assert usual["mean_ttft_ms"] == other["mean_ttft_ms"]
    assert usual["total_input_tokens"] == sum(500 + second for second in range(20))
    assert imported["scenario"]["workload"]["trace"]["columns"]["prompt_tokens"] == "a"


@pytest.mark.slow
def test_a_trace_has_its_images_and_recordings(simserve: Simserve) -> None:
    """Those that the model takes, as `import trace` has them; what is left out is said."""
    rows = "".join(f"{second},500,20,1024x1024; 512x512,12.5\n" for second in range(4))
    Path("media.csv").write_text(
        f"arrival_time,prompt_tokens,output_tokens,image_sizes,audio_seconds\n{rows}", encoding="utf-8"
    )
    simserve("import", "trace", "media.csv", "--model", "qwen3-omni-30b-a3b", "--gpus", "H100", "--out", "both.yaml")

    both = answer(simserve, "run qwen3-omni-30b-a3b --gpus H100 --trace media.csv --out one")
    imported = answer(simserve, "run both.yaml --out two")
    resolved = answer(simserve, "run two/scenario.resolved.yaml --out again")
    planned = answer(simserve, "plan both.yaml --keep gpus --slo ttft=5s --trials 0 --jobs 1")
    text = simserve("run", "llama-3.1-8b", "--gpus", "H100", "--trace", "media.csv", "--json", "--out", "three")

    assert both["simserve"]["images"]["images"] == imported["simserve"]["images"]["images"] == 8
    assert both["simserve"]["audio"]["recordings"] == imported["simserve"]["audio"]["recordings"] == 4
    assert both["total_input_tokens"] == imported["total_input_tokens"] == resolved["total_input_tokens"] > 2000
    assert planned["best"] is not None
    assert json.loads(text.stdout)["total_input_tokens"] == 2000
    assert "The trace has images, which llama-3.1-8b does not take: they are left out." in text.stderr
    assert "The trace has recordings, which llama-3.1-8b does not take: they are left out." in text.stderr


def test_a_file_of_an_engine_may_have_a_number_in_its_name(simserve: Simserve) -> None:
    """`my-vllm-2.yaml` is a file, and no version 2 of `my-vllm`."""
    profile = catalog.find("engine", "vllm").read_text(encoding="utf-8")
    Path("my-vllm-2.yaml").write_text(profile.replace("name: vllm", "name: my-vllm-2\nbase: vllm", 1), "utf-8")

    found = simserve("run", "chatbot", "--engine", "my-vllm-2.yaml", "--num-requests", "20", "--out", "one")

    assert found.code == 0, found.stderr
    resolved = yaml.safe_load(Path("one/scenario.resolved.yaml").read_text(encoding="utf-8"))
    assert resolved["deployment"]["engine"]["name"] == "my-vllm-2.yaml"


def test_flags_change_a_bundled_scenario(simserve: Simserve) -> None:
    """As --set would, and --set goes before them."""
    flags = "--gpus 2xH200 --rate 2 --quantization fp8 --prompt-tokens 1k --num-requests 30 --slo tpot=70ms --seed 3"
    sets = (
        "--set deployment.hardware=h200-sxm-141gb --set deployment.tensor_parallel_size=2 "
        "--set workload.num_requests=30 "
        "--set workload.arrivals.rate=2.0 --set deployment.quantization=fp8 --set workload.prompt_tokens=1000 "
        "--set slo.tpot=70ms --seed 3"
    )

    by_flags = answer(simserve, f"run chatbot {flags} --out one")

    assert by_flags == answer(simserve, f"run chatbot {sets} --out two")
    assert answer(simserve, "memory chatbot --gpus 4xH200 --set deployment.tensor_parallel_size=8")["num_gpus"] == 8
    assert answer(simserve, "memory qwen3-8b --gpus 2xv6e-4")["num_gpus"] == 8


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--rate 3 --set workload.arrivals.rate=4", "--set workload.arrivals.rate is taken in place of --rate"),
        ("--rate 3 --set workload.num_requests=9", ""),
        ("--tp 2 --set deployment.tensor_parallel_size=4", "deployment.tensor_parallel_size is taken in place of --tp"),
        ("--slo ttft=1s --set slo={ttft: 2 s}", "--set slo is taken in place of --slo"),
        ("--gpus 4xH100 --set deployment.tensor_parallel_size=2", ""),
        ("--gpus 4xH100 --set deployment.hardware=h200", "--set deployment.hardware is taken in place of --gpus"),
    ],
)
def test_a_key_that_set_takes_from_a_flag_is_said_once(line: str, told: str) -> None:
    """Whatever the flag sets, alone or within a block."""
    flags, _, change = line.partition(" --set ")
    flag, value = flags.split()
    given: dict[str, Any] = {flag[2:]: {"--tp": int, "--rate": float}.get(flag, str)(value)}
    question = ask("chatbot", OneLine(**given), [change])

    notes = [each for each in question.notes if "in place of" in each]

    assert len(notes) == bool(told)
    assert told in "".join(notes)


@pytest.mark.parametrize("flag", ["gpus", "slo", "engine", "quantization", "trace", "routing", "like", "columns"])
def test_an_empty_flag_is_refused(flag: str) -> None:
    """A variable of a script that is not set: an empty --slo let the scenario's own SLO pass in its place."""
    with pytest.raises(UsageError, match=f"^--{flag}: is empty; give it a value, or leave it out"):
        ask("chatbot", OneLine(**{flag: " "}))


def test_rates_are_the_same_words_in_python() -> None:
    """What the flag takes, or a number; other words are refused as the flag refuses them."""
    assert load("chatbot", rate="90/min").workload.arrivals.rate == 1.5  # type: ignore[union-attr]
    assert load("chatbot", rate=1.5) == load("chatbot", rate="90/min")
    with pytest.raises(UsageError, match="is no rate; write 3"):
        load("chatbot", rate="often")


@pytest.mark.parametrize(
    ("name", "gpus", "weights"),
    [
        ("deepseek-ai/DeepSeek-V3.2-Exp", "8xH200", "fp8"),
        ("moonshotai/Kimi-K2-Thinking", "8xH200", "int4"),
        ("moonshotai/Kimi-K2.6", "8xH200", "int4"),
        ("MiniMaxAI/MiniMax-M2.5", "8xH100", "fp8"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "2xH100", "bf16"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "H100", "fp8"),
        ("Qwen/Qwen3.5-27B-FP8", "H100", "fp8"),
    ],
)
def test_repositories_of_today_run_as_they_are_stored(simserve: Simserve, name: str, gpus: str, weights: str) -> None:
    """Also those that were tuned from a model on record."""
    told = answer(simserve, f"memory {name} --gpus {gpus}")

    assert told["fits"]
    assert (told["formats"]["weights"], told["formats"]["weights_source"]) == (weights, "as stored")


@pytest.mark.parametrize("name", ["trtllm==1.2", "TensorRT LLM==1.2", "tensorrt_llm@1.2", "TRT-LLM:1.2"])
def test_engines_are_read_as_people_write_them(simserve: Simserve, name: str) -> None:
    """With blanks, underscores and hyphens, and by the name that ``export --to`` has."""
    line = "memory qwen3-8b --gpus H100 --engine {}"

    assert answer(simserve, line.format(f"'{name}'")) == answer(simserve, line.format("tensorrt-llm==1.2"))
    assert answer(simserve, line.format(f"'{name}'")) != answer(simserve, line.format("vllm"))


@pytest.mark.parametrize("name", ["vLLM-0.20", "vllm 0.20", "vllm:v0.20"])
def test_versions_of_engines_are_read_as_people_write_them(simserve: Simserve, name: str) -> None:
    """Behind a hyphen, a blank or a colon."""
    assert answer(simserve, f"memory qwen3-8b --gpus H100 --engine '{name}'") == answer(
        simserve, "memory qwen3-8b --gpus H100 --engine vllm==0.20"
    )


@pytest.mark.parametrize(
    ("line", "weights"),
    [
        ("llama3.1:8b --engine ollama", "gguf-q4_k_m"),
        ("llama3.1:8b-instruct-q8_0 --engine ollama", "gguf-q8_0"),
        ("llama3.1:8b-instruct-q4_K_M --engine ollama", "gguf-q4_k_m"),
        ("llama3.1:8b --engine ollama --quantization none", "bf16"),
        ("gpt-oss:20b --engine ollama", "mxfp4"),
        ("llama3.1:8b", "bf16"),
    ],
)
def test_tags_of_ollama_say_their_format(simserve: Simserve, line: str, weights: str) -> None:
    """Q4_K_M where the tag says nothing and the model is stored in 16 bit."""
    assert answer(simserve, f"memory {line} --gpus 4090")["formats"]["weights"] == weights


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("'docker run vllm/vllm-openai:v0.10.0 --model Qwen/Qwen3-8B'", "put it behind --like"),
        ("'vllm serve Qwen/Qwen3-8B'", "put it behind --like"),
        ("--like 'transformers serve'", "MODEL --gpus N --engine NAME"),
        ("--like 'OLLAMA_NUM_PARALLEL=4 ollama serve'", "ollama run llama3.1:8b"),
        ("./Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q4_K_M --engine llama.cpp"),
    ],
)
def test_what_cannot_be_read_says_what_to_write(simserve: Simserve, line: str, remedy: str) -> None:
    """Command lines in the wrong place or of other engines, and files of weights."""
    outcome = simserve("memory", *shlex.split(line), "--gpus", "4090")

    assert outcome.code in (2, 104)
    assert remedy in outcome.error_line


def test_a_pasted_command_line_stands_for_the_scenario(simserve: Simserve) -> None:
    """Of any engine; --gpus says what it runs on."""
    line = "'vllm serve Qwen/Qwen3-8B --max-model-len 8192 --max-num-seqs 64'"
    shown = answer(simserve, f"memory --like {line} --gpus L4 --engine vllm==0.20")
    sglang = answer(simserve, "memory --like 'python -m sglang.launch_server --model-path Qwen/Qwen3-8B' --gpus H100")
    traffic = "--rate 1 --prompt-tokens 500 --output-tokens 50 --num-requests 20 --out out"

    assert (shown["model"], shown["hardware"]) == ("qwen3-8b", "l4-24gb")
    assert (shown["max_model_len"], shown["engine_resolved"]["max_num_seqs"]) == (8192, 64)
    assert sglang["engine_resolved"]["name"] == "sglang"
    for line_of, engine in (("ollama run qwen3:8b", "ollama"), ("llama-server -m Qwen3-8B-Q4_K_M.gguf", "llama.cpp")):
        other = answer(simserve, f"memory --like '{line_of}' --gpus 4090")
        assert (other["engine_resolved"]["name"], other["formats"]["weights"]) == (engine, "gguf-q4_k_m")
    assert answer(simserve, f"run --like {line} --gpus L4 {traffic}")["completed"] == 20


def test_a_line_that_vllm_refuses_says_so_and_what_it_lacks(simserve: Simserve) -> None:
    """vLLM starts with no context that its KV cache has no room for, unless it may choose."""
    short = "vllm serve Qwen/Qwen3-8B"
    refused = {
        line: simserve("memory", "--like", line, "--gpus", "L4")
        for line in (short, f"{short} --max-model-len 4096", f"{short} --max-model-len auto")
    }
    note = "vLLM refuses to start with this line: the KV cache has room for "

    assert {each.code for each in refused.values()} == {0}
    assert [note in each.stderr for each in refused.values()] == [True, False, False]
    assert "add --max-model-len " in refused[short].stderr
    assert f"# - {note}" in simserve("import", "command", short, "--gpus", "L4").stdout.replace("\n#  ", "")
    assert note not in simserve("memory", "--like", short, "--gpus", "H100").stderr


@pytest.mark.parametrize("more", ["", "---\napiVersion: v1\nkind: Service\n", "replicas: {{ .Values.replicas }}\n"])
def test_a_manifest_in_place_of_a_scenario_is_told(simserve: Simserve, more: str) -> None:
    """With the command that makes a scenario of it, not with every key that it should not have."""
    Path("k8s.yaml").write_text(f"apiVersion: apps/v1\nkind: Deployment\n{more}", encoding="utf-8")

    outcome = simserve("run", "k8s.yaml")

    assert outcome.code == 104
    assert outcome.error_line.endswith(
        "is a manifest, not a scenario; make one of it: simserve import manifest k8s.yaml --out mine.yaml"
    )


def test_clients_without_pauses_are_told_from_people(simserve: Simserve) -> None:
    """Two hundred people were taken for a benchmark of two hundred clients, and needed twenty times the GPUs."""
    line = ["run", "Qwen/Qwen3-8B", "--gpus", "H100", "--prompt-tokens", "200", "--output-tokens", "20"]

    told = simserve(*line, "--users", "4", "--num-requests", "8").stderr

    assert "4 clients all begin at the same time and ask again as soon as they are answered" in told
    people = "workload.arrivals={process: users, users: 4, think_time: 30 s}"
    assert f"--set '{people}'" in told
    assert "clients all begin" not in simserve(*line, "--set", people, "--num-requests", "8").stderr
    assert "clients all begin" not in simserve(*line, "--concurrency", "1", "--num-requests", "8").stderr
    paused = [*line, "--concurrency", "4", "--num-requests", "8", "--set", "workload.arrivals.think_time=3s"]
    remedy = "workload.arrivals.ramp_up=3s"
    assert f"for people: --set {remedy}." in simserve(*paused).stderr
    assert "clients all begin" not in simserve(*paused, "--set", remedy).stderr


def test_what_is_assumed_of_a_pasted_model_is_told_once(simserve: Simserve) -> None:
    """It leads the answer, so that stderr does not say it too."""
    done = simserve("memory", "--like", "vllm serve Qwen/Qwen3.8-27B-FP8", "--gpus", "2xH100")

    assert "is taken to have the architecture of qwen3.5-27b" in " ".join(done.stdout.split())
    assert "is taken to have" not in done.stderr


def test_arithmetic_of_cost_keeps_its_flags(simserve: Simserve) -> None:
    """Without a scenario --gpus is a number of them."""
    found = answer(
        simserve, "cost --gpus 2 --gpu-hour-usd 6 --requests-per-month 1000 --prompt-tokens 500 --output-tokens 9"
    )

    assert found["self_host"]["usd_per_month"] == 2 * 6 * 720


def test_all_errors_of_a_file_are_said(simserve: Simserve) -> None:
    """One line each, at its own key."""
    file = write(
        {"model": "qwen3-8b", "deploymnt": {}, "slo": {"ttft": 3}, "workload": {**FILE["workload"], "num_requests": 0}}
    )

    outcome = simserve("run", file)

    assert outcome.code == 104
    assert [line.split(": ")[3] for line in outcome.stderr.splitlines()] == [
        "deploymnt",
        "workload.num_requests",
        "slo.ttft",
    ]


def test_a_file_needs_no_name_and_no_number_of_requests(simserve: Simserve) -> None:
    """The name is the file's, and 1,000 requests are sent."""
    bare = {key: value for key, value in FILE.items() if key != "name"}
    bare["workload"] = {key: value for key, value in FILE["workload"].items() if key != "num_requests"}

    found = answer(simserve, f"run {write(bare, 'my chat.yaml')!r} --check")

    assert found["fits"]
    assert answer(simserve, f"run {write(bare, 'my chat.yaml')!r} --out out")["completed"] == 1000
    assert yaml.safe_load(Path("out/scenario.resolved.yaml").read_text(encoding="utf-8"))["name"] == "my-chat"


def test_models_and_gpus_are_filtered(simserve: Simserve) -> None:
    """By a part of any of their names."""
    models = {row["name"] for row in answer(simserve, "models qwen3-32b")["models"]}
    gpus = {row["name"] for row in answer(simserve, "gpus H100")["gpus"]}

    assert models == {"qwen3-32b"}
    assert gpus == {"h100-sxm-80gb", "h100-pcie-80gb", "h100-nvl-94gb"}
    assert simserve("gpus", "h1000").error_line.startswith("'h1000' is in no name; did you mean 'h100")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("qwen3.6", {"qwen3.5-27b", "qwen3.5-35b-a3b", "Qwen/Qwen3.6-27B", "Qwen/Qwen3.6-35B-A3B"}),
        ("'coder 480b'", {"qwen3-coder-480b-a35b"}),
        ("moonshotai/Kimi-K2.7", {"moonshotai/Kimi-K2.7-Code"}),
        ("Qwen/Qwen3.6-35B-A3B-FP8", {"Qwen/Qwen3.6-35B-A3B-FP8"}),
        ("llama3.1:8b", {"llama-3.1-8b"}),
    ],
)
def test_models_are_found_by_words_and_repositories(simserve: Simserve, words: str, found: set[str]) -> None:
    """Those whose shape alone is on record too, and one that a name stands for though it is in none."""
    assert {row["name"] for row in answer(simserve, f"models {words}")["models"]} == found


def test_a_config_is_listed_as_a_model(simserve: Simserve, folder: Path) -> None:
    """As the help says."""
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 1024,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")

    (row,) = answer(simserve, "models config.json")["models"]
    assert (row["num_hidden_layers"], row["max_position_embeddings"]) == (3, 4096)


def test_a_model_that_is_not_there_has_near_ones_and_a_way_in(simserve: Simserve) -> None:
    """The nearest names, of repositories too, and that its own file will do; or why its layers cannot be had."""
    unknown, layers = simserve("models", "qwen3.9-27b").error_line, simserve("models", "zamba2").error_line
    served = simserve("memory", "Qwen/Qwen3.9-27B", "--gpus", "H200").error_line

    assert "did you mean" in unknown
    assert "its config.json works as well" in unknown
    assert "has layers that simserve has no formula for" in layers
    assert "did you mean 'Qwen/Qwen3." in served
    assert "that has a profile; give the path of its config.json in place of the name; did you mean" in served


def test_help_and_version_are_words_too(simserve: Simserve) -> None:
    """As with other programs."""
    assert simserve("help", "memory").stdout == simserve("memory", "--help").stdout
    assert simserve("help").stdout == simserve("--help").stdout
    assert simserve("version").stdout == simserve("--version").stdout
    assert simserve("help", "nosuch").code == 2


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Mistral-Small", "mistral-small-24b"),
        ("Qwen3-235B", "qwen3-235b-a22b"),
        ("llama 3.3 70b", "llama-3.3-70b"),
        ("llama3.1:8b", "llama-3.1-8b"),
    ],
)
def test_a_model_is_known_by_the_name_that_people_give_it(simserve: Simserve, name: str, model: str) -> None:
    """Blanks and colons are hyphens, and the beginning of one name alone is that name."""
    outcome = simserve("memory", name, "--gpus", "8xH200")

    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.startswith(f"{model} on 8 x h200") or f"{model} on 8 x h200" in outcome.stdout
    assert simserve("memory", "gpt-oss", "--gpus", "H100").code == 104


@pytest.mark.parametrize("slo", ["ttft<1.5s, tpot<50ms", "TTFT <= 1.5 s; tpot: 50ms", "ttft 1.5s,tpot=50ms"])
def test_limits_are_written_as_people_write_them(simserve: Simserve, slo: str) -> None:
    """Signs, blanks and semicolons mean the same objective; a percentile is no limit."""
    words = ["run", "llama-3.1-8b", "--gpus", "H100", "--prompt-tokens", "100", "--output-tokens", "5", "--rate", "9"]

    said = simserve(*words, "--num-requests", "10", "--slo", slo, "--out", "one")

    assert said.code == 0, said.stderr
    resolved = yaml.safe_load(Path("one/scenario.resolved.yaml").read_text(encoding="utf-8"))["slo"]
    assert (resolved["ttft"], resolved["tpot"]) == ("1.5 s", "50 ms")
    assert "attainment is the share" in simserve(*words, "--slo", "p95 ttft < 2s").error_line


@pytest.mark.parametrize(
    ("slo", "code", "line"),
    [
        ("ttft=1", 2, "--slo ttft: '1' is no time with its unit; write ttft=1s or ttft=1ms"),
        ("task=60", 2, "--slo task: '60' is no time with its unit; write task=60s or task=60ms"),
        ("tpot=fast", 2, "--slo tpot: 'fast' is no time with its unit; write for example tpot=500ms"),
        ("e2e=0s", 2, "--slo e2e: '0s' must be above 0; leave it out for no limit"),
        ("ttft=1s,attainment=95", 2, "--slo attainment: '95' must be above 0 and at most 1; write attainment=0.95"),
        (
            "ttft=1s,attainment=0",
            2,
            "--slo attainment: '0' must be above 0 and at most 1; write for example 0.95 or 95%",
        ),
        ("tftt=1s", 104, "--slo tftt: is not a known key; did you mean 'ttft'?"),
        ("chatty", 104, "--slo: 'chatty' is not a preset; did you mean 'chat'?"),
    ],
)
def test_a_wrong_limit_is_a_wrong_flag_and_a_wrong_name_is_not(
    simserve: Simserve, slo: str, code: int, line: str
) -> None:
    """As with every other flag: a value that is none ends with 2, a name that nobody knows with 104."""
    outcome = simserve("run", "chatbot", "--slo", slo, "--out", "one")

    assert (outcome.code, outcome.stdout, outcome.error_line) == (code, "", line)


@pytest.mark.parametrize(("given", "shown"), [("200/min", "200/min"), ("90/min", "1.5"), ("1e-3", "0.001")])
def test_a_rate_is_written_so_that_it_is_read_to_the_bit(simserve: Simserve, given: str, shown: str) -> None:
    """In the unit that writes it shortest: never as 3.3333333333333335."""
    words = ["run", "llama-3.1-8b", "--gpus", "H100", "--prompt-tokens", "100", "--output-tokens", "5"]

    outcome = simserve(*words, "--rate", given, "--num-requests", "10")

    assert outcome.code == 0, outcome.stderr
    assert f" --rate {shown} " in outcome.stdout


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [
        ("90/min", 1.5),
        ("90rpm", 1.5),
        ("2 req/s", 2.0),
        ("7.2k/h", 2.0),
        ("3", 3.0),
        ("0.1728M/day", 2.0),
        ("1.2096M/week", 2.0),
        ("5.184m req/month", 2.0),
    ],
)
def test_a_rate_has_the_unit_that_is_written(simserve: Simserve, rate: str, seconds: float) -> None:
    """Requests a second where none is."""
    words = ["run", "llama-3.1-8b", "--gpus", "H100", "--prompt-tokens", "100", "--output-tokens", "5"]

    outcome = simserve(*words, "--rate", rate, "--num-requests", "10", "--out", "out")

    assert outcome.code == 0, outcome.stderr
    resolved = yaml.safe_load(Path("out/scenario.resolved.yaml").read_text(encoding="utf-8"))
    assert resolved["workload"]["arrivals"]["rate"] == seconds
    assert simserve(*words, "--rate", "3x").error_line.startswith("--rate: '3x' is no rate; write 3")


def test_capacity_needs_no_load_of_its_own(simserve: Simserve) -> None:
    """It looks for one; the latencies are those at the largest load, and the command asks for it."""
    words = "capacity llama-3.1-8b --gpus H100 --prompt-tokens 500 --output-tokens 50 --slo ttft=1s,tpot=50ms"

    outcome = simserve(*shlex.split(words), "--requests", "300", "--replications", "2")

    assert outcome.code == 0, outcome.stderr
    assert "The figures below are at that load." in outcome.stdout
    found = re.search(r"up to ([\d.]+) requests/s", outcome.stdout)
    assert found is not None
    assert f"--rate {found[1]}" in outcome.stdout
    assert "requests/s now" not in outcome.stdout


def test_what_a_pasted_line_leaves_open_is_said_by_its_flags(simserve: Simserve) -> None:
    """Traffic that the flags say is not called assumed."""
    like = ["--like", "vllm serve Qwen/Qwen3-8B", "--gpus", "H100", "--num-requests", "10"]
    whole = ["--rate", "1", "--prompt-tokens", "100", "--output-tokens", "10"]

    assert "assumed" not in simserve("run", *like, *whole, "--out", "one").stderr
    assert "assumed" not in simserve("memory", *like).stderr
    partly = simserve("run", *like, *whole[:2], "--out", "two").stderr
    assert "so this is assumed: prompts of 1,155 tokens on average (--prompt-tokens), answers" in partly


def test_a_long_line_is_advised_by_the_file_that_it_wrote(simserve: Simserve) -> None:
    """The command of what would hold fits on a terminal."""
    long = "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --served-model-name a --api-key b --seed 1"
    words = ["run", "--like", f"{long} --chat-template {'x' * 200}", "--gpus", "L4", "--rate", "6"]

    outcome = simserve(*words, "--prompt-tokens", "500", "--output-tokens", "50", "--slo", "ttft=900ms,tpot=60ms")

    assert "the command is long" not in outcome.stdout
    assert "scenario.resolved.yaml" in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_a_mac_runs_llama_cpp_unless_another_engine_is_named(simserve: Simserve) -> None:
    """vLLM is not what people run there."""
    line = ["memory", "qwen3-8b", "--gpus", "M4 Max"]

    assert answer(simserve, shlex.join(line))["engine_resolved"]["name"] == "llama.cpp"
    assert answer(simserve, shlex.join([*line, "--engine", "ollama"]))["engine_resolved"]["name"] == "ollama"


def test_what_does_not_fit_comes_with_a_command_that_does(simserve: Simserve) -> None:
    """The words of the command line, and the first change."""
    line = ["memory", "mistral-small-24b", "--gpus", "rtx4090"]

    refused = simserve("export", *line[1:], "--to", "vllm")

    assert refused.code == 3
    command = refused.error_line.rpartition("the first of them: ")[2]
    assert command.startswith("simserve export mistral-small-24b --gpus rtx4090 --to vllm --set deployment.quantiz")
    assert simserve(*shlex.split(command)[1:]).code == 0


def test_an_api_is_no_model_and_short_formats_are_formats(simserve: Simserve) -> None:
    """The remedy is the command that compares with it."""
    api = simserve("run", "gpt-4o", "--gpus", "H100")

    assert "'gpt-4o' is an API" in api.error_line
    assert "simserve cost MODEL --api gpt-4o" in api.error_line
    assert answer(simserve, "memory qwen3-8b --gpus H100 --quantization awq")["formats"]["weights"] == "awq-int4"


@pytest.mark.parametrize("gpus", ["H100:2", "H100x2", "h100 x 2", "2xH100"])
def test_the_number_of_gpus_stands_before_or_behind(simserve: Simserve, gpus: str) -> None:
    """As clouds and schedulers write it; an x of a name is none: RTX4090 is one GPU."""
    assert answer(simserve, f"memory qwen3-32b --gpus '{gpus}'")["num_gpus"] == 2
    assert answer(simserve, "memory llama-3.1-8b --gpus RTX4090")["num_gpus"] == 1


@pytest.mark.parametrize(
    ("other", "own"),
    [
        ("--isl 500 --osl=200", "--prompt-tokens 500 --output-tokens 200"),
        (
            "--input-len 500 --output-len 200 --num-prompts 7",
            "--prompt-tokens 500 --output-tokens 200 --num-requests 7",
        ),
        ("--users 3", "--concurrency 3"),
        ("--request-rate 2", "--rate 2"),
        ("--tensor-parallel-size 2", "--tp 2"),
        ("--dp 2", "--set deployment.data_parallel_size=2"),
        ("--ep --num-prompts 7", "--set deployment.enable_expert_parallel=true --num-requests 7"),
    ],
)
def test_flags_of_other_tools_are_read_as_those_of_this_one(simserve: Simserve, other: str, own: str) -> None:
    """The export of the scenario says all of it: flags of benchmarks, engines and load generators."""
    line = "export qwen3-30b-a3b --gpus 2xH100 --to vllm"

    assert answer(simserve, f"{line} {other}") == answer(simserve, f"{line} {own}")


def test_the_gpu_of_another_tool_is_that_of_this_one(simserve: Simserve) -> None:
    """Where a command has a flag of that name, as run has --hardware, it is the command's own."""
    assert answer(simserve, "memory qwen3-8b --gpu L4") == answer(simserve, "memory qwen3-8b --hardware L4")


def test_a_flag_of_another_tool_without_its_like_is_told_in_words_of_this_one(simserve: Simserve) -> None:
    """In the error's one line, all at once."""
    limits = simserve("run", "qwen3-8b", "--ttft", "1", "--num-gpus", "2")
    experts = simserve("run", "qwen3-30b-a3b", "--gpus", "4xH100", "--ep", "4")

    assert limits.code == experts.code == 2
    assert "--ttft is --slo 'ttft=1s,tpot=50ms' here, --num-gpus is --gpus 2xH100 here" in limits.error_line
    assert "--ep is --set deployment.enable_expert_parallel=true, without a number, here" in experts.error_line


@pytest.mark.parametrize(
    ("short", "key"),
    [
        ("ep", "deployment.enable_expert_parallel=true"),
        ("deployment.tp", "deployment.tensor_parallel_size=N"),
        ("rate", "workload.arrivals.rate=RATE"),
    ],
)
def test_a_key_by_its_flag_is_told_as_the_key(simserve: Simserve, short: str, key: str) -> None:
    """As of --with, so of --set."""
    outcome = simserve("run", "chatbot", "--set", f"{short}=2")

    assert outcome.code == 104
    assert outcome.error_line.endswith(f"--set {short}: is not a known key; write {key}")


@pytest.mark.parametrize(
    ("typed", "known"), [("Q6_K", "gguf-q6_k"), ("GGUF-q4_K_m", "gguf-q4_k_m"), ("q8", "gguf-q8_0")]
)
def test_a_format_of_a_scenario_has_llama_cpps_names_too(typed: str, known: str) -> None:
    """In --set, in files and in the draft's format as with --quantization."""
    scenario = ask("qwen3-8b", OneLine(gpus="4090"), [f"deployment.quantization={typed}"], needs_traffic=False).scenario

    assert scenario.deployment.quantization == known


def test_a_format_that_is_not_simulated_names_the_nearest(simserve: Simserve) -> None:
    """And not the list of all."""
    outcome = simserve("memory", "qwen3-8b", "--gpus", "4090", "--set", "deployment.quantization=Q5_K_S")

    assert outcome.code == 104
    assert outcome.error_line.endswith("'Q5_K_S' is not a known weight format; did you mean 'gguf-q5_k_m'?")


def _sizes(flags: OneLine, changes: tuple[str, ...] = ()) -> tuple[int, int, int]:
    deployment = ask("llama-3.1-70b", flags, changes, needs_traffic=False).scenario.deployment
    return deployment.tensor_parallel_size, deployment.pipeline_parallel_size, deployment.data_parallel_size


@pytest.mark.parametrize(
    ("flags", "changes", "sizes"),
    [
        (OneLine(gpus="2x4090", engine="llama.cpp"), (), (1, 2, 1)),
        (OneLine(gpus="4x4090", engine="ollama", replicas=2), (), (1, 2, 1)),
        (OneLine(gpus="2x4090"), ("deployment.engine.name=llama.cpp",), (1, 2, 1)),
        (OneLine(gpus="2x4090", engine="llama.cpp", tp=2), (), (2, 1, 1)),
        (OneLine(gpus="2x4090", engine="vllm"), (), (2, 1, 1)),
        (OneLine(gpus="8xH100"), ("deployment.data_parallel_size=4",), (2, 1, 4)),
    ],
)
def test_gpus_are_parted_as_the_engine_parts_them(
    flags: OneLine, changes: tuple[str, ...], sizes: tuple[int, int, int]
) -> None:
    """llama.cpp and Ollama give each GPU layers of its own; what --set says of ranks counts in."""
    assert _sizes(flags, changes) == sizes


@pytest.mark.parametrize(("mode", "sizes"), [("", (1, 2)), ("-sm layer", (1, 2)), ("--split-mode tensor", (2, 1))])
def test_a_pasted_line_of_llama_cpp_cuts_what_it_says(mode: str, sizes: tuple[int, int]) -> None:
    """And it is not said to lack memory on the one GPU that the line alone stands for."""
    line = f"llama-server -hf bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M -c 8192 {mode}"
    question = ask(None, OneLine(like=line, gpus="2x4090"), needs_traffic=False)
    deployment = question.scenario.deployment

    assert (deployment.tensor_parallel_size, deployment.pipeline_parallel_size) == sizes
    assert not [note for note in question.notes if "cannot be run" in note or "Not simulated" in note]


@pytest.mark.parametrize(("build", "mode", "other"), [("b8000", "row", "tensor"), ("b9250", "tensor", "row")])
def test_rows_of_llama_cpp_gave_way_to_tensors(build: str, mode: str, other: str) -> None:
    """Which of the two is simulated depends on the build; the other is told, and either divides every layer."""
    image = (
        f"docker run ghcr.io/ggml-org/llama.cpp:server-cuda-{build} -hf bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M"
    )
    told = {}
    for each in (mode, other):
        question = ask(None, OneLine(like=f"{image} -sm {each}", gpus="2x4090"), needs_traffic=False)
        assert question.scenario.deployment.tensor_parallel_size == 2
        told[each] = any(f"Not simulated: --split-mode {each}" in note for note in question.notes)

    assert told == {mode: False, other: True}


def test_a_number_of_gpus_that_a_change_multiplies_is_told() -> None:
    """--gpus counts those of all replicas; replicas that --set adds come on top."""
    asked = ask("qwen3-8b", OneLine(gpus="2xH100"), ["deployment.replicas=3"], needs_traffic=False)

    assert "--gpus says 2, and what --set changes makes it 6." in asked.notes


def test_a_model_for_two_nodes_comes_with_their_line(simserve: Simserve) -> None:
    """The flags that were given, in other numbers; the second line runs as it stands."""
    error = simserve("memory", "deepseek-r1", "--gpus", "8xH100").error_line

    assert "--gpus 16xh100-sxm-80gb --tp 8 --pp 2 (2 nodes) or --gpus 16xh100-sxm-80gb --tp 16 (2 nodes)" in error
    assert answer(simserve, "memory deepseek-r1 --gpus 16xh100-sxm-80gb --tp 8 --pp 2")["num_gpus"] == 16


def test_the_first_that_fits_replaces_the_gpus_that_were_given(simserve: Simserve) -> None:
    """Where more GPUs are all that helps."""
    error = simserve("memory", "llama-3.1-70b", "--gpus=2xL4", "--tp", "2", "--quantization", "nvfp4").error_line
    command = error.rpartition("the first of them: ")[2]

    assert command.startswith("simserve memory llama-3.1-70b --quantization nvfp4 --gpus ")
    assert simserve(*shlex.split(command)[1:]).code == 0


@pytest.mark.parametrize("flag", ["--tp", "--pp", "--replicas"])
def test_a_layout_is_what_a_plan_finds(simserve: Simserve, flag: str) -> None:
    """A line of run pasted behind plan says which word to leave out."""
    outcome = simserve("plan", "llama-3.1-8b", "--gpus", "2xL4", flag, "2", "--rate", "1")

    assert outcome.code == 2
    assert outcome.error_line.startswith(f"{flag} is what a plan finds: leave it out")


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["Qwen/Qwen3-8B", "--gpus", "2 L4"], "tensor_parallel_size", 2),
        (["Qwen/Qwen3-8B", "--gpus", "2 RTX 4090"], "hardware", "rtx-4090-24gb"),
        (["unsloth/Qwen3-8B-GGUF:Q8_0", "--gpus", "4090", "--engine", "llama.cpp"], "quantization", "gguf-q8_0"),
    ],
)
def test_a_number_before_a_blank_and_the_tag_of_a_gguf_repository_are_read(
    words: list[str], key: str, value: object
) -> None:
    """As people write them."""
    flags = dict(zip((each.removeprefix("--") for each in words[1::2]), words[2::2], strict=True))
    traffic = OneLine(rate=1, prompt_tokens="500", output_tokens="100", **flags)

    assert getattr(ask(words[0], traffic).scenario.deployment, key) == value


@pytest.mark.parametrize(
    ("typed", "known"), [("q6_k", "gguf-q6_k"), ("Q6_K", "gguf-q6_k"), ("q4", "gguf-q4_k_m"), ("FP8", "fp8")]
)
def test_formats_are_found_by_llama_cpps_names_and_in_capitals(typed: str, known: str) -> None:
    """As tags of GGUF repositories have them."""
    assert weight_format(typed, "llama.cpp") == known


@pytest.mark.parametrize(
    ("typed", "engine", "meant"),
    [
        ("4bit", "llama.cpp==b8000", "gguf-q4_k_m"),
        ("8-bit", "ollama", "gguf-q8_0"),
        ("4bit", "vllm", "awq-int4"),
        ("Q5_K_S", None, "gguf-q5_k_m"),
    ],
)
def test_a_format_that_is_none_gets_one_suggestion(typed: str, engine: str | None, meant: str) -> None:
    """The nearest of those that the engine runs, not the list of all."""
    with pytest.raises(InputError, match=rf"is not a known weight format; did you mean '{meant}'\?"):
        weight_format(typed, engine)


def test_a_trace_in_place_of_a_model_is_told(simserve: Simserve) -> None:
    """With where it belongs."""
    outcome = simserve("run", "traffic.csv", "--gpus", "L4")

    assert outcome.code == 104
    assert "simserve run MODEL --gpus 2xH100 --trace traffic.csv" in outcome.error_line


@pytest.mark.parametrize("policy", ["round_robin", "round-robin", "RoundRobin"])
def test_a_routing_policy_is_a_flag(policy: str) -> None:
    """Of replicas that nothing else describes, and over a scenario's, whose other settings stay."""
    traffic = OneLine(rate=1.0, prompt_tokens="500", output_tokens="20", num_requests=9)
    fleet = ask("Qwen/Qwen3-8B", replace(traffic, gpus="3xL4", replicas=3, routing=policy)).scenario.deployment
    over = ask("prefix-routing", OneLine(routing=policy)).scenario.deployment.routing

    assert (fleet.routing.policy, fleet.replicas) == ("round_robin", 3)
    assert over.policy == "round_robin"
    with pytest.raises(UsageError, match="is no routing policy"):
        ask("chatbot", OneLine(routing="nearest"))


@pytest.mark.parametrize(
    ("name", "policy"),
    [("kv", "prefix"), ("cache_aware", "prefix"), ("LEAST_REQUEST", "least_outstanding"), ("p2c", "power_of_two")],
)
def test_a_routing_policy_has_the_names_that_routers_give_it(name: str, policy: str) -> None:
    """Dynamo's, SGLang's, Envoy's."""
    assert ask("chatbot", OneLine(replicas=4, routing=name)).scenario.deployment.routing.policy == policy


def test_a_trace_with_images_replaces_those_of_the_scenario(simserve: Simserve) -> None:
    """What the trace says of them; the rest of the scenario's keys stays."""
    rows = "".join(f"{second},200,20,{second % 3},{';'.join(['640x480'] * (second % 3))}\n" for second in range(12))
    Path("seen.csv").write_text(f"timestamp,prompt,completion,num_images,image_sizes\n{rows}", encoding="utf-8")

    outcome = simserve("run", "images", "--trace", "seen.csv", "--out", "out")

    assert outcome.code == 0, outcome.stderr
    assert "The trace has images of its own: not used of workload.images: share, count, sizes." in outcome.stderr
    summary = json.loads(Path("out/result.json").read_text(encoding="utf-8"))
    assert summary["simserve"]["images"]["requests"] == 8


def test_models_are_found_by_the_names_of_their_tunings(simserve: Simserve) -> None:
    """With the model whose shape they have."""
    outcome = simserve("models", "qwen3.6")

    assert outcome.code == 0
    assert "Qwen/Qwen3.6-27B has the shape of" in outcome.stdout


_TWO = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2"


@pytest.mark.parametrize(
    ("line", "gpus", "layout"),
    [
        (_TWO, "2xH100", (2, 1, 1)),
        (_TWO, "4xH100", (2, 1, 2)),
        (_TWO, "H100", (2, 1, 1)),
        ("vllm serve Qwen/Qwen3-8B -tp 2 -pp 2", "8xH100", (2, 2, 2)),
        ("vllm serve Qwen/Qwen3-8B -dp 2", "4xH100", (1, 1, 4)),
        ("vllm serve Qwen/Qwen3-8B", "4xH100", (4, 1, 1)),
    ],
)
def test_a_pasted_line_keeps_its_layout(line: str, gpus: str, layout: tuple[int, int, int]) -> None:
    """GPUs that are left are those of more replicas; a line that says nothing takes all for one."""
    deployment = ask(None, OneLine(like=line, gpus=gpus), needs_traffic=False).scenario.deployment

    sizes = deployment.tensor_parallel_size, deployment.pipeline_parallel_size, deployment.replicas
    assert sizes == layout


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (OneLine(like=_TWO, gpus="1x3060"), "write 2x3060, or a multiple"),
        (OneLine(like=_TWO, gpus="3xH100"), "write 2xH100, or a multiple"),
        (OneLine(like=_TWO, gpus="2xH100", replicas=2), "write 4xH100, or change the line"),
    ],
)
def test_gpus_that_a_pasted_line_does_not_fill_are_refused(flags: OneLine, remedy: str) -> None:
    """With the number that it takes."""
    with pytest.raises(UsageError, match=r"the server of the command line \(tensor_parallel_size 2.*" + remedy):
        ask(None, flags, needs_traffic=False)


def test_a_flag_changes_the_layout_of_a_pasted_line() -> None:
    """It replaces what the line says."""
    deployment = ask(None, OneLine(like=_TWO, gpus="4xH100", tp=4), needs_traffic=False).scenario.deployment

    assert (deployment.tensor_parallel_size, deployment.replicas) == (4, 1)


def test_a_plus_in_the_name_of_a_gpu_parts_no_kinds() -> None:
    """It is AMD's."""
    assert gpu_and_count("2x Ryzen AI Max+ 395") == ("ryzen-ai-max-395-128gb", 2)
    assert kinds_of_gpus("Ryzen AI Max+ 395") == {}
    with pytest.raises(UsageError, match="several kinds"):
        gpu_and_count("2xH100+")
    assert kinds_of_gpus("8xH100+8xH200") == {"h100-sxm-80gb": 8, "h200-sxm-141gb": 8}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vllm==latest", "vllm"),
        ("vllm:nightly", "vllm"),
        ("llama-server:latest", "llama.cpp"),
    ],
)
def test_the_newest_version_of_an_engine_is_asked_for_in_a_word(text: str, name: str) -> None:
    """A note says which that is."""
    asked = ask("qwen3-8b", OneLine(gpus="H100", engine=text, quantization="none"), needs_traffic=False)

    assert (asked.scenario.deployment.engine.name, asked.scenario.deployment.engine.version) == (name, None)
    assert asked.notes == (f"{text} is taken to be {name} {_newest(name)}, the newest version known here.",)


@pytest.mark.parametrize("text", ["vllm==v1", "vLLM V1", "vllm:v1"])
def test_v1_is_vllms_engine_and_no_version(text: str) -> None:
    """It was read as version 1, "defaults of 0.33, the nearest older known"."""
    asked = ask("qwen3-8b", OneLine(gpus="H100", engine=text, quantization="none"), needs_traffic=False)

    assert asked.scenario.deployment.engine.version is None
    assert asked.notes == (
        f"{text} is taken to be vllm {_newest('vllm')}, the newest version known here "
        "(V1 is the engine of every vLLM from 0.8 on).",
    )
    with pytest.raises(ProfileError, match=r"V0 is the engine of vLLM up to 0\.7"):
        ask("qwen3-8b", OneLine(gpus="H100", engine="vllm==V0"), needs_traffic=False)


def _newest(engine: str) -> str:
    return load_engine(engine).newest.version


def test_an_engine_is_known_by_the_name_of_its_server() -> None:
    """``llama-server`` is llama.cpp's."""
    asked = ask("qwen3-8b", OneLine(gpus="H100", engine="llama-server"), needs_traffic=False)

    assert asked.scenario.deployment.engine.name == "llama.cpp"


@pytest.mark.parametrize(
    ("slo", "written"),
    [
        ("ttft p95<1s", "ttft=1s,attainment=0.95"),
        ("ttft_p95=1s", "ttft=1s,attainment=0.95"),
        ("p99.9 ttft < 1 s; tpot(p95)<50ms", "ttft=1s,tpot=50ms,attainment=0.999"),
        ("ttft p100<1s", "ttft=1s,attainment=1"),
        ("p95", "ttft=1.5s,tpot=50ms,attainment=0.95"),
    ],
)
def test_a_limit_of_a_percentile_is_told_as_one_of_requests(slo: str, written: str) -> None:
    """The user's own limits, to be pasted."""
    with pytest.raises(UsageError, match=f"; write '{written}'$"):
        ask("qwen3-8b", OneLine(gpus="H100", slo=slo), needs_traffic=False)


@pytest.mark.parametrize(
    ("word", "engine", "quantization", "is_told"),
    [
        ("qwen3-8b", "ollama", None, True),
        ("Qwen/Qwen3-8B", "llama.cpp==b8000", None, True),
        ("qwen3-8b", "ollama", "q8_0", False),
        ("qwen3-8b", "ollama", "none", False),
        ("qwen3:8b", "ollama", None, False),
        ("gpt-oss-20b", "ollama", None, False),
        ("qwen3-8b", "vllm", None, False),
    ],
)
def test_engines_of_gguf_files_ask_whether_16_bit_are_meant(
    word: str, engine: str, quantization: str | None, *, is_told: bool
) -> None:
    """What they are mostly given; not where the weights are said, or lie in fewer bits."""
    asked = ask(word, OneLine(gpus="h100", engine=engine, quantization=quantization), needs_traffic=False)

    assert [note for note in asked.notes if "is mostly given Q4_K_M: --quantization q4_k_m" in note] == (
        [
            f"qwen3-8b is simulated with its 16-bit weights; {engine.partition('==')[0]} is mostly given Q4_K_M: "
            "--quantization q4_k_m."
        ]
        if is_told
        else []
    )


@pytest.mark.parametrize("text", ["249482/month", "90000/week", "3"])
def test_a_rate_is_told_as_it_was_given(text: str) -> None:
    """In commands that are printed: a month's rate was told with seventeen digits a second."""
    assert _written(requests_per_second(text)) == text


@pytest.mark.parametrize(
    "line",
    [
        "unsloth/Qwen3-8B-GGUF --gpus 4090",
        "unsloth/Qwen3-8B-GGUF:Q4_K_M --gpus 4090",
        "Qwen/Qwen3-8B --gpus 4090 --quantization q4_k_m",
    ],
)
def test_gguf_weights_have_the_engine_that_runs_them(simserve: Simserve, line: str) -> None:
    """llama.cpp, where nothing names an engine; the newest vLLM refuses them."""
    outcome = simserve("memory", *shlex.split(line), "--json")

    assert outcome.code == 0, outcome.stderr
    assert "For GGUF weights the engine is llama.cpp unless --engine says another." in outcome.stderr
    told = simserve("memory", *shlex.split(line), "--engine", "vllm")
    assert told.code != 0
    assert "does not run under vllm" in told.stderr


def test_a_folder_is_no_gguf_repository_by_its_name(simserve: Simserve, folder: Path) -> None:
    """Its config.json says what its weights are stored in: 16 bit."""
    (folder / "tiny-gguf").mkdir()
    (folder / "tiny-gguf" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")

    outcome = simserve("memory", "tiny-gguf", "--gpus", "L4", "--json")

    assert outcome.code == 0, outcome.stderr
    assert "llama.cpp" not in outcome.stderr


def test_an_infinite_rate_sends_all_requests_at_once(simserve: Simserve) -> None:
    """As `vllm bench serve --request-rate inf` does; the advice asks for it again."""
    words = "run llama-3.1-8b --gpus H100 --prompt-tokens 100 --output-tokens 5 --rate inf --num-requests 10 --out out"

    outcome = simserve(*shlex.split(words))

    assert outcome.code == 0, outcome.stderr
    resolved = yaml.safe_load(Path("out/scenario.resolved.yaml").read_text(encoding="utf-8"))
    assert resolved["workload"]["arrivals"]["process"] == "all_at_once"
    assert "--rate inf" in outcome.stdout


@pytest.mark.parametrize("flag", ["--model Qwen/Qwen3-8B", "--model=Qwen/Qwen3-8B"])
def test_a_model_may_be_named_by_a_flag(simserve: Simserve, flag: str) -> None:
    """As engines name it; beside a scenario it is still refused, with what to write."""
    outcome = simserve("memory", *shlex.split(flag), "--gpus", "H100")

    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.startswith("qwen3-8b on 1 x h100-sxm-80gb: fits")
    assert "--model is the first word" in simserve("memory", "chatbot", *shlex.split(flag)).error_line


def test_the_version_of_an_engine_stands_behind_its_name(simserve: Simserve) -> None:
    """It is no flag of its own."""
    outcome = simserve("memory", "Qwen/Qwen3-8B", "--gpus", "H100", "--engine-version", "0.20")

    assert "--engine-version is --engine NAME==VERSION, such as vllm==0.20 here" in outcome.error_line
