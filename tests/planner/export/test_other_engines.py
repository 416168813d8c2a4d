"""SGLang, TensorRT-LLM, TGI and Ollama: their own flags, files and variables, and what each refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from simserve.errors import ScenarioError, UsageError
from simserve.planner.export.deployment import Export
from simserve.planner.export.export import export
from simserve.planner.export.flags import flags_of, read_words
from simserve.profiles.engine_profile import load_engine
from simserve.scenario.load import load
from tests.scenario.builders import make_scenario

ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm", "tgi": "tgi", "ollama": "ollama"}


def exported(
    target: str, *overrides: str, version: str | None = None, checkpoint: str | None = None, explicit: bool = False
) -> Export:
    """Return the export of the small scenario under the target's own engine."""
    engine: dict[str, Any] = {"name": ENGINES[target]} | ({"version": version} if version else {})
    deployment = {"hardware": "h100-sxm-80gb", "engine": engine}
    scenario = make_scenario(["deployment.engine.max_model_len=4096", *overrides], deployment=deployment)
    return export(scenario, target, checkpoint=checkpoint, explicit=explicit)


def refusal(target: str, *overrides: str, version: str | None = None, explicit: bool = False) -> str:
    """Return why it cannot be exported."""
    with pytest.raises(ScenarioError) as caught:
        exported(target, *overrides, version=version, explicit=explicit)
    return str(caught.value)


_VERSIONS = [
    (target, version.version)
    for target in ("sglang", "trtllm", "tgi")
    for version in load_engine(ENGINES[target]).versions
    if not (target == "trtllm" and version.version.startswith("0."))
]


@pytest.mark.parametrize(("target", "version"), _VERSIONS)
@pytest.mark.parametrize("explicit", [False, True])
def test_commands_parse_with_the_flags_of_their_version(target: str, version: str, explicit: bool) -> None:
    """Every flag is one of that version's, with a value that it accepts."""
    result = exported(
        target,
        "deployment.tensor_parallel_size=2",
        "deployment.engine.max_num_seqs=64",
        version=version,
        explicit=explicit,
    )

    flags = flags_of(ENGINES[target], version)
    words, _ = read_words(flags, result.command)
    assert [word.flag for word in words if not word.is_known] == (["-m"] if target == "sglang" else [])
    assert all(flags.has(word.flag, word.value) for word in words if word.is_known and isinstance(word.value, str))
    assert "64" in result.command
    assert "2" in result.command


def test_sglang_flags_follow_the_knobs() -> None:
    """A chunk size, a page, a share, switches that disable."""
    line = exported(
        "sglang",
        "deployment.engine.max_num_batched_tokens=4096",
        "deployment.engine.block_size=64",
        "deployment.engine.gpu_memory_utilization=0.8",
        "deployment.engine.enable_prefix_caching=false",
        "deployment.engine.async_scheduling=false",
        "deployment.kv_cache_dtype=fp8",
        version="0.5.4",
    ).line

    assert line == (
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.2-1B --kv-cache-dtype fp8_e4m3 "
        "--context-length 4096 --mem-fraction-static 0.8 --page-size 64 --chunked-prefill-size 4096 "
        "--disable-radix-cache --disable-overlap-schedule"
    )


def test_a_queue_by_priority_is_told_to_sglang() -> None:
    """Smaller numbers first, as simulated; running requests stay, where the release can be told so."""
    asked = "deployment.engine.scheduling_policy=priority"
    newest, older = (exported("sglang", asked, version=version) for version in ("0.5.20", "0.5.5"))

    assert newest.command[-5:] == (
        "--schedule-policy",
        "fcfs",
        "--enable-priority-scheduling",
        "--schedule-low-priority-values-first",
        "--disable-priority-preemption",
    )
    assert "--disable-priority-preemption" not in older.command
    assert any("puts running requests back" in note for note in older.notes)


@pytest.mark.parametrize("target", ["vllm", "sglang", "trtllm", "tgi"])
def test_no_engine_serves_the_shortest_first(target: str) -> None:
    """The simulator does; no export writes it."""
    reason = refusal(target, "deployment.engine.scheduling_policy=shortest_first")

    assert "has no such queue order; use fcfs" in reason


def test_sglang_without_chunks_says_minus_one() -> None:
    """And the budget is that of a prefill batch."""
    off = ("deployment.engine.enable_chunked_prefill=false", "deployment.engine.max_num_batched_tokens=8192")

    assert "--chunked-prefill-size -1 --max-prefill-tokens 8192" in exported("sglang", *off, version="0.5.4").line


def test_sglang_differs_by_version() -> None:
    """FP8 KV in another format, another default order, no pages, expert parallelism as a switch."""
    fp8 = "deployment.kv_cache_dtype=fp8"
    experts = ("model=mixtral-8x7b", "deployment.tensor_parallel_size=4", "deployment.enable_expert_parallel=true")

    assert exported("sglang", fp8, version="0.3").line.endswith("fp8_e5m2 --context-length 4096 --schedule-policy fcfs")
    assert "has no --page-size" in refusal("sglang", "deployment.engine.block_size=16", version="0.3")
    assert "--enable-ep-moe --ep-size 4" in exported("sglang", *experts, version="0.4.1").line
    assert "--ep-size 4" in exported("sglang", *experts, version="0.5.23").line
    assert "--enable-ep-moe" not in exported("sglang", *experts, version="0.5.23").line


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("sglang", "--tp-size 8 --dp-size 8 --enable-dp-attention"),
        ("sglang", "--max-running-requests 128 --chunked-prefill-size 8192"),
        ("trtllm", "--tp_size 8"),
    ],
)
def test_data_parallel_attention_is_said(target: str, words: str) -> None:
    """SGLang divides seats and chunks among the ranks, so those of all are said."""
    ranks = [
        "deployment.tensor_parallel_size=1",
        "deployment.data_parallel_size=8",
        "deployment.engine.max_num_seqs=16",
    ]
    model = ["model=deepseek-v3", "deployment.quantization=fp8", "deployment.hardware=h200-sxm-141gb"]
    try:
        result = exported(target, *model, *ranks)
    except ScenarioError:
        pytest.skip("the schema has no data-parallel attention")

    assert words in result.line
    assert target == "sglang" or "enable_attention_dp: true" in result.files["extra_llm_api_options.yaml"]


def test_balanced_prompts_of_tensorrt_llm_are_said() -> None:
    """As attention_dp_config, which turns the balance on."""
    ranks = ["deployment.data_parallel_size=8", "deployment.engine.attention_dp_timeout_iters=60"]
    model = ["model=deepseek-v3", "deployment.quantization=fp8", "deployment.hardware=h200-sxm-141gb"]

    options = exported("trtllm", *model, *ranks).files["extra_llm_api_options.yaml"]

    assert "enable_balance: true" in options
    assert "timeout_iters: 60" in options


def test_sglang_quantises_or_needs_a_checkpoint() -> None:
    """FP8 and torchao's formats while it loads; GGUF from a file only; no integer KV."""
    assert "--torchao-config int8wo" in exported("sglang", "deployment.quantization=int8-wo", version="0.5.4").line
    on_load = ("model=llama-2-7b", "deployment.quantization=fp8")
    assert "--quantization fp8" in exported("sglang", *on_load, version="0.5.4").line
    stored = exported("sglang", "deployment.quantization=fp8", version="0.5.4").line
    assert "RedHatAI/Llama-3.2-1B-Instruct-FP8" in stored
    assert "--quantization" not in stored
    assert "name one: --checkpoint" in refusal("sglang", "deployment.quantization=awq-int4", version="0.5.4")
    gguf = "deployment.quantization=gguf-q4_k_m"
    assert "SGLang reads GGUF from a .gguf file only" in refusal("sglang", gguf, version="0.5.4")
    line = exported("sglang", gguf, version="0.5.4", checkpoint="m.gguf").line
    assert "--load-format gguf --quantization gguf" in line
    assert "sglang 0.5.4 has no INT8 KV cache" in refusal("sglang", "deployment.kv_cache_dtype=int8", version="0.5.4")
    assert "knows prefill_first only" in refusal("sglang", "deployment.engine.scheduler=mixed", version="0.5.4")


def test_trtllm_says_the_rest_in_its_options_file() -> None:
    """Chunks, overlap, the KV cache's dtype, reuse and blocks have no flag."""
    result = exported(
        "trtllm",
        "deployment.engine.enable_chunked_prefill=true",
        "deployment.engine.async_scheduling=false",
        "deployment.engine.enable_prefix_caching=false",
        "deployment.engine.block_size=64",
        "deployment.engine.gpu_memory_utilization=0.8",
        "deployment.kv_cache_dtype=fp8",
        version="1.0",
    )

    assert result.line == (
        "trtllm-serve meta-llama/Llama-3.2-1B --max_seq_len 4096 --kv_cache_free_gpu_memory_fraction 0.8 "
        "--extra_llm_api_options extra_llm_api_options.yaml"
    )
    assert yaml.safe_load(result.files["extra_llm_api_options.yaml"]) == {
        "enable_chunked_prefill": True,
        "disable_overlap_scheduler": True,
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": 2048},
        "kv_cache_config": {"dtype": "fp8", "enable_block_reuse": False, "tokens_per_block": 64},
    }


def test_trtllm_refusals() -> None:
    """Versions that serve built engines, weights in another format, KV that it does not store."""
    assert "trtllm-build has made" in refusal("trtllm", version="0.14")
    assert "takes weights as they are stored" in refusal("trtllm", "deployment.quantization=int8-wo")
    assert "no flag for the dtype" in refusal("trtllm", "deployment.quantization=fp16")
    assert "versions with it: 0.5 to before 1.0" in refusal("trtllm", "deployment.kv_cache_dtype=int8")
    assert "--checkpoint" not in exported("trtllm", "deployment.quantization=fp8", checkpoint="nvidia/x-FP8").line


def test_tgi_says_every_limit() -> None:
    """Its own defaults depend on a warm-up; prefix caching is a variable."""
    result = exported("tgi", "deployment.engine.enable_prefix_caching=false", "deployment.engine.max_num_seqs=64")

    assert result.line == (
        "PREFIX_CACHING=0 text-generation-launcher --model-id meta-llama/Llama-3.2-1B --num-shard 1 --dtype bfloat16 "
        "--max-concurrent-requests 64 --max-input-tokens 4095 --max-total-tokens 4096 --max-batch-prefill-tokens 4096"
    )
    assert "--max-input-length 4046" in exported("tgi", version="1.4").line
    assert "--quantize eetq" in exported("tgi", "deployment.quantization=int8-wo").line
    assert "--kv-cache-dtype fp8_e4m3fn" in exported("tgi", "deployment.kv_cache_dtype=fp8").line


@pytest.mark.parametrize("explicit", [False, True])
def test_tgi_refusals(explicit: bool) -> None:
    """What it has no flag for, said or not."""
    assert "TGI has no pipeline parallelism" in refusal("tgi", "deployment.pipeline_parallel_size=2", explicit=explicit)
    assert "has no flag for it" in refusal("tgi", "deployment.engine.block_size=32", explicit=explicit)
    assert "tgi 3.3 has no INT8 KV cache" in refusal("tgi", "deployment.kv_cache_dtype=int8", explicit=explicit)
    fp8 = "deployment.kv_cache_dtype=fp8"
    assert "versions with it: 2.4 and newer" in refusal("tgi", fp8, version="2.0", explicit=explicit)


def test_ollama_is_variables_and_a_modelfile() -> None:
    """The slots and the context are the server's, the weights are made by `ollama create`."""
    result = exported(
        "ollama",
        "deployment.engine.max_num_seqs=4",
        "deployment.quantization=gguf-q4_k_m",
        "deployment.kv_cache_dtype=int8",
    )

    assert result.line == (
        "OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_FLASH_ATTENTION=1 "
        "OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve"
    )
    assert result.files["Modelfile"] == "FROM ./Llama-3.2-1B\nPARAMETER num_ctx 4096\n"
    create = "ollama create llama-3.2-1b-q4_k_m --quantize q4_K_M -f Modelfile"
    assert any(create in note for note in result.notes)
    assert result.once_up == (create, 'ollama run llama-3.2-1b-q4_k_m ""')
    mine = exported("ollama", "deployment.quantization=gguf-q4_k_m", checkpoint="./mine.gguf")
    assert mine.files["Modelfile"].startswith("FROM ./mine.gguf\n")
    assert not any("--quantize" in note for note in mine.notes)


def test_ollama_spreads_layers_over_all_gpus() -> None:
    """Without a size, which it has no setting for; one GPU needs none."""
    spread = exported("ollama", "deployment.pipeline_parallel_size=2")

    assert spread.environment["OLLAMA_SCHED_SPREAD"] == "1"
    assert any("CUDA_VISIBLE_DEVICES" in note for note in spread.notes)
    assert "OLLAMA_SCHED_SPREAD" not in exported("ollama").environment


@pytest.mark.parametrize("explicit", [False, True])
def test_ollama_refusals(explicit: bool) -> None:
    """Tensor parallelism, FP8 KV, knobs it has no setting for, formats it does not make."""
    two = "deployment.tensor_parallel_size=2"
    assert "gives each GPU layers of its own" in refusal("ollama", two, explicit=explicit)
    assert "ollama 0.33 has no FP8 KV cache" in refusal("ollama", "deployment.kv_cache_dtype=fp8", explicit=explicit)
    assert "no setting for it" in refusal("ollama", "deployment.engine.block_size=16", explicit=explicit)
    assert "does not quantise to gguf-q2_k" in refusal("ollama", "deployment.quantization=gguf-q2_k", explicit=explicit)


def test_a_target_that_is_none_is_a_usage_error() -> None:
    """With the nearest."""
    with pytest.raises(UsageError, match="'lmdeploy' is not a target; choose from compose, dynamo, k8s"):
        export(make_scenario(), "lmdeploy")


def test_sglang_is_told_to_allow_a_length_beyond_the_model() -> None:
    """It refuses a --context-length above the model's own without its variable."""
    beyond = exported("sglang", "model=llama-2-7b", "deployment.engine.max_model_len=8192")

    assert beyond.line.startswith("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 python")
    assert not exported("sglang", "model=llama-2-7b", "deployment.engine.max_model_len=4096").environment


def trtllm_pools(*overrides: str, version: str = "1.0") -> Export:
    """Return the export of two TensorRT-LLM workers that prefill and one of two GPUs that decodes."""
    pools = [
        {"name": "prefill", "role": "prefill", "replicas": 2},
        {"name": "decode", "role": "decode", "tensor_parallel_size": 2},
    ]
    deployment = {
        "hardware": "h100-sxm-80gb",
        "engine": {"name": "tensorrt-llm", "version": version, "max_model_len": 4096},
        "pools": pools,
        "disaggregation": {},
    }
    return export(make_scenario(list(overrides), deployment=deployment), "trtllm")


def test_prefill_and_decode_servers_of_tensorrt_llm() -> None:
    """A server in front that knows the others, and these with their GPUs, ports and options by role."""
    result = trtllm_pools()

    front = yaml.safe_load(result.files["disagg_config.yaml"])
    lines = [line for line in result.files["start_servers.sh"].splitlines() if line.startswith("CUDA")]
    options = {name: yaml.safe_load(text) for name, text in result.files.items() if name.endswith("code.yaml")}
    assert result.line == "trtllm-serve disaggregated -c disagg_config.yaml"
    assert front["context_servers"] == {"num_instances": 2, "urls": ["localhost:8001", "localhost:8002"]}
    assert front["generation_servers"] == {"num_instances": 1, "urls": ["localhost:8003"]}
    assert [line.split()[0] for line in lines] == [f"CUDA_VISIBLE_DEVICES={gpus}" for gpus in ("0", "1", "2,3")]
    assert "--tp_size 2" in lines[2]
    assert "--port 8003 --extra_llm_api_options" in lines[2]
    (decode,) = options.values()
    assert decode["cache_transceiver_config"] == {"backend": "DEFAULT", "max_tokens_in_buffer": 4096}
    assert "disable_overlap_scheduler" not in decode
    (prefill,) = (yaml.safe_load(text) for name, text in result.files.items() if name.endswith("prefill.yaml"))
    assert prefill["disable_overlap_scheduler"] is True


@pytest.mark.parametrize(
    ("target", "front", "told"),
    [
        ("vllm", "vllm-router --vllm-pd-disaggregation", '--kv-transfer-config \'{"kv_connector": "NixlConnector"'),
        ("sglang", "python -m sglang_router.launch_router --pd-disaggregation", "--disaggregation-mode prefill"),
        ("trtllm", "trtllm-serve disaggregated", "--extra_llm_api_options disaggregation-prefill.yaml"),
    ],
)
def test_prefill_and_decode_servers_are_written_whole(target: str, front: str, told: str) -> None:
    """As many of each role as were simulated, each on GPUs and ports of its own, and who hands requests to them."""
    counts = ["deployment.pools.0.replicas=3", "deployment.pools.1.tensor_parallel_size=2"]
    result = export(load("disaggregation", counts), target)

    lines = [line for line in result.files["start_servers.sh"].splitlines() if line.startswith("CUDA")]
    gpus = [line.split()[0].removeprefix("CUDA_VISIBLE_DEVICES=") for line in lines]
    assert result.line.startswith(front)
    assert gpus == ["0", "1", "2", "3,4", "5,6"]
    assert all(f"--port 800{number}" in line for number, line in enumerate(lines, 1))
    assert all(told in line for line in lines[:3])
    if target != "trtllm":
        assert [result.command.count(role) for role in ("--prefill", "--decode")] == [3, 2]
    sides = [re.findall(r"(?:SIDE_CHANNEL_PORT=|bootstrap-port )(\d+)", line) for line in lines]
    ports = [port for found in sides for port in found]
    assert len(set(ports)) == len(ports) == {"vllm": 5, "sglang": 3, "trtllm": 0}[target]
    assert not any("set it up by hand" in note for note in result.notes)
    is_other = any(note.startswith("the scenario simulates vllm 0.12") for note in result.notes)
    assert is_other == (target != "vllm")


def test_pools_of_another_engine_are_refused() -> None:
    """The router in front speaks to servers of its own engine."""
    other = "deployment.pools.1.engine={name: sglang, version: '0.5.4', max_model_len: 32768}"

    with pytest.raises(ScenarioError, match="servers of vllm alone"):
        export(load("disaggregation", [other]), "vllm")


def test_servers_that_one_host_has_no_room_for_begin_the_next() -> None:
    """Eight GPUs a host: seven that prefill leave one, and two that decode lie on the second."""
    result = trtllm_pools("deployment.pools.0.replicas=7")

    front = yaml.safe_load(result.files["disagg_config.yaml"])
    assert {url.split(":")[0] for url in front["context_servers"]["urls"]} == {"node-1"}
    assert front["generation_servers"]["urls"] == ["node-2:8008"]
    assert any("node-1" in note for note in result.notes)


def test_pools_that_the_front_of_tensorrt_llm_cannot_serve() -> None:
    """A worker over several hosts, and one that does both."""
    both = "deployment.pools=[{name: a, role: prefill}, {name: b, role: decode}, {name: c}]"

    with pytest.raises(ScenarioError, match="started by MPI"):
        trtllm_pools("deployment.pools.1.tensor_parallel_size=8", "deployment.pools.1.pipeline_parallel_size=2")
    with pytest.raises(ScenarioError, match="prefills or decodes"):
        trtllm_pools(both)


def test_sglang_is_told_the_room_in_tokens() -> None:
    """4,000 blocks of 16."""
    pages = ["deployment.engine={name: sglang, block_size: 16, num_gpu_blocks_override: 4000}"]
    line = export(make_scenario(pages), "sglang").line

    assert "--page-size 16" in line
    assert "--max-total-tokens 64000" in line
