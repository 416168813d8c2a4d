"""Start-up logs: lines as servers of each engine and version wrote them, what they say, and the scenario they make."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import ScenarioError, SimserveError, TraceError
from simserve.planner.importers import engine_log
from simserve.planner.importers.engine_log import EngineLog, KVRoom, fields_of, import_log, read_engine_log, value_of
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from tests.fuzzing import examples
from tests.scenario.builders import make_scenario

VLLM_V0 = """\
INFO 11-27 10:00:00 api_server.py:585] vLLM API server version 0.6.4.post1
INFO 11-27 10:00:00 api_server.py:586] args: Namespace(subparser='serve', model_tag='meta-llama/Llama-3.1-8B', \
config='', host=None, port=8000, allowed_origins=['*'], model='meta-llama/Llama-3.1-8B', dtype='auto', \
max_model_len=8192, tensor_parallel_size=2, block_size=16, gpu_memory_utilization=0.95, max_num_seqs=64, \
enforce_eager=False, \
kv_cache_dtype='auto', dispatch_function=<function serve at 0x7f>)
INFO 11-27 10:00:09 llm_engine.py:249] Initializing an LLM engine (v0.6.4.post1) with config: \
model='meta-llama/Llama-3.1-8B', speculative_config=None, dtype=torch.bfloat16, max_seq_len=8192, \
tensor_parallel_size=2, pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, \
observability_config=ObservabilityConfig(a=None, b=False), enable_prefix_caching=False, chunked_prefill_enabled=True
INFO 11-27 10:00:20 distributed_gpu_executor.py:57] # GPU blocks: 65117, # CPU blocks: 4096
"""
VLLM_V1 = """\
(APIServer pid=7) INFO 09-03 16:28:10 [api_server.py:1882] vLLM API server version 0.10.2
(APIServer pid=7) INFO 09-03 16:28:10 [utils.py:328] non-default args: {'model_tag': 'Qwen/Qwen3-8B', \
'model': 'Qwen/Qwen3-8B', 'port': 8001, 'gpu_memory_utilization': 0.85, 'tensor_parallel_size': 2, \
'served_model_name': ['q'], 'enable_prefix_caching': False, 'kv_cache_dtype': 'fp8', 'max_num_seqs': 32}
INFO 09-03 16:28:17 [__init__.py:1773] Using max model len 32768
INFO 09-03 16:28:17 [scheduler.py:222] Chunked prefill is enabled with max_num_batched_tokens=2048.
(EngineCore_DP0 pid=9) INFO 09-03 16:28:23 [core.py:75] Initializing a V1 LLM engine (v0.10.2) with config: \
model='Qwen/Qwen3-8B', speculative_config=None, dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=2, \
pipeline_parallel_size=1, enforce_eager=False, kv_cache_dtype=fp8, enable_prefix_caching=False, \
chunked_prefill_enabled=True, compilation_config={"level":3,"cudagraph_capture_sizes":[512,504]}
(Worker_TP1 pid=11) INFO 09-03 16:28:40 [gpu_worker.py:277] Available KV cache memory: 55.14 GiB
(Worker_TP0 pid=10) INFO 09-03 16:28:40 [gpu_worker.py:277] Available KV cache memory: 55.04 GiB
(EngineCore_DP0 pid=9) INFO 09-03 16:28:40 [kv_cache_utils.py:849] GPU KV cache size: 1,603,136 tokens
(EngineCore_DP0 pid=9) INFO [kv_cache_utils.py:853] Maximum concurrency for 32,768 tokens per request: 48.92x
(APIServer pid=7) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK
"""
SGLANG = """\
[2025-07-14 05:48:20] server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B', tokenizer_path='x, y', tp_size=1, \
context_length=None, mem_fraction_static=0.8, max_running_requests=None, max_total_tokens=None, \
chunked_prefill_size=8192, max_prefill_tokens=16384, schedule_policy='fcfs', page_size=1, kv_cache_dtype='auto', \
dp_size=1, enable_dp_attention=False, disable_radix_cache=True, cuda_graph_bs=[1, 2], speculative_algorithm=None)
[2025-07-14 05:48:43 TP0] KV Cache is allocated. #tokens: 38141, K size: 2.33 GB, V size: 2.33 GB
[2025-07-14 05:49:02 TP0] max_total_num_tokens=38141, chunked_prefill_size=2048, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=32768, available_gpu_mem=0.83 GB
"""
TRTLLM = """\
[TensorRT-LLM] TensorRT-LLM version: 0.17.0
[TensorRT-LLM][INFO] KV cache block reuse is disabled
[TensorRT-LLM][INFO] Max KV cache pages per sequence: 2048
[TensorRT-LLM][INFO] Number of tokens per block: 64.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.00 GiB for max tokens in paged KV cache (8192).
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 26.91 GiB for max tokens in paged KV cache (220480).
[02/14/2025-09:38:53] [TRT-LLM] [I] max_seq_len=131072, max_num_requests=2048, max_num_tokens=8192
"""
LLAMA_CPP = """\
  Device 0: NVIDIA A100-PCIE-40GB, compute capability 8.0, VMM: yes
build: 7342 (2fbe3b7bb) with GNU 11.4.0 for Linux x86_64
srv    load_model: loading model '/models/Qwen3-Coder-30B-A3B-Instruct-Q8_0.gguf'
print_info: file type   = Q8_0
load_tensors: offloaded 49/49 layers to GPU
load_tensors:        CUDA0 model buffer size = 30658.12 MiB
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 65536
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: kv_unified    = true
llama_kv_cache: size = 6144.00 MiB ( 65536 cells,  48 layers,  4/1 seqs), K (f16): 3072.00 MiB, V (f16): 3072.00 MiB
srv          init: initializing slots, n_slots = 4
slot         init: id  0 | task -1 | new slot, n_ctx = 65536
prompt eval time =     751.87 ms /  1025 tokens (    0.73 ms per token,  1363.25 tokens per second)
       eval time =    1913.19 ms /   192 tokens (    9.96 ms per token,   100.36 tokens per second)
"""
LLAMA_CPP_LATER = """\
0.00.023.100 I common_params_print_info: build 11146 (961e4b26a) with GNU 13.3.0 for Linux x86_64
0.00.030.316 I srv    load_model: loading model '/models/gemma-3-27b-it-Q4_K_M.gguf'
0.01.819.829 I llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:c1:00.0) - 23733 MiB free
0.02.903.538 I load_tensors:      CUDA0 model buffer size = 8755.36 MiB
0.02.903.538 I load_tensors:      CUDA1 model buffer size = 8755.36 MiB
0.06.511.228 I llama_context: n_ctx         = 16384
0.06.511.229 I llama_context: kv_unified    = false
0.06.726.103 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 8192, kv_unified = 'false'
0.06.726.118 I slot   load_model: id  0 | task -1 | new slot, n_ctx = 8192
2.29.118.072 I slot print_timing: id  0 | task 9 | prompt eval time =  100.00 ms /    50 tokens (    2.0 ms per token
2.29.118.072 I slot print_timing: id  0 | task 9 |        eval time =  800.00 ms /   100 tokens (    8.0 ms per token
2.39.118.072 I slot print_timing: id  1 | task 10 | prompt eval time =  300.00 ms /   150 tokens (    2.0 ms per token
2.39.118.072 I slot print_timing: id  1 | task 10 |        eval time =  2400.00 ms /   200 tokens (    12.0 ms per token
2.49.118.072 I slot print_timing: id  1 | task 11 |        eval time =  0.01 ms /     1 tokens (    0.0 ms per token
"""
LLAMA_CPP_OF_OLLAMA = """\
llama_model_loader: loaded meta data with 27 key-value pairs and 707 tensors from /root/.ollama/models/blobs/\
sha256-3291abe70f16 (version GGUF V3 (latest))
print_info: file type   = Q4_K - Medium
print_info: general.name     = Qwen3 32B
load_tensors: offloaded 29/65 layers to GPU
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 8192
llama_kv_cache: size = 1088.00 MiB (  8192 cells,  64 layers,  1/1 seqs), K (q8_0):  544.00 MiB, V (q8_0):  544.00 MiB
"""


def logged(folder: Path, text: str) -> EngineLog:
    """Write a log and read it."""
    return read_engine_log(written(folder, text))


def written(folder: Path, text: str) -> Path:
    """Write a log."""
    file = folder / "server.log"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "said", "room", "unread"),
    [
        (
            VLLM_V0,
            {
                "engine.name": "vllm",
                "engine.version": "0.6.4",
                "tensor_parallel_size": 2,
                "pipeline_parallel_size": 1,
                "engine.max_model_len": 8192,
                "engine.gpu_memory_utilization": 0.95,
                "engine.max_num_seqs": 64,
                "engine.block_size": 16,
                "engine.enable_prefix_caching": False,
                "engine.enable_chunked_prefill": True,
                "engine.num_gpu_blocks_override": 65_117,
            },
            KVRoom(tokens=65_117 * 16, blocks=65_117, block_size=16),
            0,
        ),
        (
            VLLM_V1,
            {
                "engine.name": "vllm",
                "engine.version": "0.10.2",
                "tensor_parallel_size": 2,
                "pipeline_parallel_size": 1,
                "kv_cache_dtype": "fp8",
                "engine.max_model_len": 32_768,
                "engine.gpu_memory_utilization": 0.85,
                "engine.max_num_seqs": 32,
                "engine.max_num_batched_tokens": 2048,
                "engine.enable_prefix_caching": False,
                "engine.enable_chunked_prefill": True,
                "engine.num_gpu_blocks_override": 100_196,
            },
            KVRoom(tokens=1_603_136, blocks=100_196, bytes=round(55.04 * 2**30), block_size=16),
            2,
        ),
        (
            SGLANG,
            {
                "engine.name": "sglang",
                "tensor_parallel_size": 1,
                "engine.max_model_len": 32_768,
                "engine.gpu_memory_utilization": 0.8,
                "engine.max_num_seqs": 2048,
                "engine.max_num_batched_tokens": 2048,
                "engine.scheduling_policy": "fcfs",
                "engine.block_size": 1,
                "engine.enable_prefix_caching": False,
                "engine.num_gpu_blocks_override": 38_141,
            },
            KVRoom(tokens=38_141, blocks=38_141, bytes=round(4.66 * 2**30), block_size=1),
            0,
        ),
        (
            TRTLLM,
            {
                "engine.name": "tensorrt-llm",
                "engine.version": "0.17.0",
                "engine.max_model_len": 131_072,
                "engine.max_num_seqs": 2048,
                "engine.max_num_batched_tokens": 8192,
                "engine.block_size": 64,
                "engine.enable_prefix_caching": False,
                "engine.num_gpu_blocks_override": 3445,
            },
            KVRoom(tokens=220_480, blocks=3445, bytes=round(26.91 * 2**30), block_size=64),
            1,
        ),
    ],
    ids=["vllm-v0", "vllm-v1", "sglang", "tensorrt-llm"],
)
def test_a_log_says_room_and_settings(
    tmp_path: Path, text: str, said: dict[str, Any], room: KVRoom, unread: int
) -> None:
    """Of the fullest rank, after a trial run, without flags that change nothing; other lines are counted."""
    log = logged(tmp_path, text)

    assert log.settings == {f"deployment.{key}": value for key, value in said.items()}
    assert log.kv == room
    assert log.num_unread_lines == unread


@pytest.mark.parametrize(
    ("line", "room"),
    [
        ("INFO gpu_executor.py:122] # GPU blocks: 1381, # CPU blocks: 512", (1381 * 16, 1381)),
        ("INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381", (1381 * 16, 1381)),
        ("INFO 03-12 executor_base.py:111] # cuda blocks: 2054, # CPU blocks: 2048", (2054 * 16, 2054)),
        ("INFO 03-12 executor_base.py:111] # rocm blocks: 2054, # CPU blocks: 2048", (2054 * 16, 2054)),
        ("(EngineCore_0 pid=1) INFO [kv_cache_utils.py:849] GPU KV cache size: 922,496 tokens", (922_496, 57_656)),
        ("(EngineCore pid=1) INFO [kv_cache_utils.py:2327] CPU KV cache size: 65,536 tokens, Maximum", (65_536, 4_096)),
        (
            "INFO GPU KV cache size: 922,496 tokens\nINFO loggers.py:142] Engine 000: vllm cache_config_info with "
            "initialization after num_gpu_blocks is: 28828",
            (922_496, 28_828),
        ),
        ("Setting attention block size to 400 tokens\nGPU KV cache size: 80,400 tokens", (80_400, 201)),
        (
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 600000, K size: 9.16 GB, V size: 9.16 GB",
            (600_000, 600_000),
        ),
        (
            "KV Cache is allocated. #tokens: 600000, K size: 9.16 GB, V size: 9.16 GB\n"
            "KV Cache is allocated. #tokens: 900000, K size: 0.31 GB, V size: 0.31 GB",  # of the draft model
            (600_000, 600_000),
        ),
        (
            "(Worker_TP0) GPU KV cache size: 80,400 tokens\n(Worker_TP1) GPU KV cache size: 80,000 tokens",
            (80_000, 5_000),
        ),
    ],
)
def test_lines_of_every_version_give_tokens_and_blocks(tmp_path: Path, line: str, room: tuple[int, int]) -> None:
    """Blocks of the size that the log says or that both figures give, else of the engine's own size."""
    kv = logged(tmp_path, f"{line}\n").kv

    assert (kv.tokens, kv.blocks) == room


def test_memory_stands_for_tokens_that_are_not_said(tmp_path: Path) -> None:
    """A log that ends before the tokens, or of V0's profiling."""
    kv = logged(tmp_path, "INFO worker.py:232] the rest of the memory reserved for KV Cache is 54.86GiB.\n").settings

    assert kv["deployment.engine.kv_cache_memory_bytes"] == round(54.86 * 2**30)


def test_the_last_start_counts(tmp_path: Path) -> None:
    """A server that was restarted writes on; ranks of one start do not begin another."""
    again = VLLM_V1.replace("0.85", "0.9").replace("1,603,136", "1,603,200")

    assert logged(tmp_path, VLLM_V1 + again).kv.tokens == 1_603_200
    ranks = VLLM_V1 + "(EngineCore_DP1) Initializing a V1 LLM engine (v0.10.2) with config: model='Qwen/Qwen3-8B'\n"
    log = logged(tmp_path, f"{ranks}(EngineCore_DP1) GPU KV cache size: 1,600,000 tokens\n")
    assert (log.kv.tokens, log.reading.options["gpu_memory_utilization"]) == (1_600_000, 0.85)


@pytest.mark.parametrize("form", ["gzip", "utf-16", "colours"])
def test_the_file_may_be_packed_wide_or_coloured(tmp_path: Path, form: str) -> None:
    """As log collectors, PowerShell and terminals write them."""
    file = tmp_path / "server.log"
    if form == "gzip":
        file.write_bytes(gzip.compress(VLLM_V1.encode()))
    else:
        text = VLLM_V1.replace("INFO", "\x1b[1;36mINFO\x1b[0m") if form == "colours" else VLLM_V1
        file.write_text(text, encoding="utf-16" if form == "utf-16" else "utf-8")

    assert read_engine_log(file).kv.tokens == 1_603_136


def test_a_log_makes_a_scenario_that_runs_with_its_room(tmp_path: Path) -> None:
    """The estimate of the same deployment stands beside it."""
    found = import_log(written(tmp_path, VLLM_V1), hardware="h100-sxm-80gb")

    assert found.draft is not None
    resolved = resolve(found.draft.scenario)
    assert (resolved.memory.num_kv_blocks, resolved.engine.max_num_seqs) == (100_196, 32)
    assert found.estimated_tokens is not None
    assert found.difference == pytest.approx(1_603_136 / found.estimated_tokens - 1)
    assert abs(found.difference) < 0.1
    assert import_log(written(tmp_path, VLLM_V1)).difference is None  # its GPU is not known


@pytest.mark.parametrize(
    ("memory_line", "blocks"),
    [("INFO 10-31 15:07:49 [gpu_worker.py:298] Available KV cache memory: 3.33 GiB\n", 6062), ("", 6060)],
    ids=["bytes", "tokens"],
)
def test_tokens_of_layers_with_windows_take_a_block_for_each_group(
    tmp_path: Path, memory_line: str, blocks: int
) -> None:
    """vLLM 0.11 prints what every layer holds: 48,480 tokens are 3,030 blocks for those with a window, and as many."""
    text = (
        "INFO 10-31 15:07:01 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: "
        "model='openai/gpt-oss-120b', max_seq_len=32768, tensor_parallel_size=1, pipeline_parallel_size=1\n"
        f"{memory_line}INFO 10-31 15:07:50 [kv_cache_utils.py:1087] GPU KV cache size: 48,480 tokens\n"
    )
    found = import_log(written(tmp_path, text), hardware="h100-sxm-80gb")

    assert found.draft is not None
    memory = resolve(found.draft.scenario).memory
    assert found.log.settings["deployment.engine.num_gpu_blocks_override"] == blocks
    assert memory.kv_bytes == pytest.approx(3.33 * 2**30, rel=0.002)


def test_tokens_of_layers_with_windows_are_those_of_requests_in_newer_releases(tmp_path: Path) -> None:
    """vLLM 0.30 on a GB10: 8 GiB are 14,563 blocks of gpt-oss-120b, 225,706 tokens in requests of 131,072."""
    text = (
        "INFO 11-20 15:07:01 [core.py:77] Initializing a V1 LLM engine (v0.30.0) with config: "
        "model='openai/gpt-oss-120b', max_seq_len=131072, tensor_parallel_size=1, pipeline_parallel_size=1\n"
        "INFO 11-20 15:07:50 [kv_cache_utils.py:2395] GPU KV cache size: 225,706 tokens, "
        "Maximum concurrency for 131,072 tokens per request: 1.72x\n"
    )
    found = import_log(written(tmp_path, text), hardware="gb10-128gb")

    assert found.draft is not None
    memory = resolve(found.draft.scenario).memory
    assert found.log.settings["deployment.engine.num_gpu_blocks_override"] == 8 * 2**30 // 589_824
    assert memory.logged_tokens == 225_706


@pytest.mark.parametrize("memory_line", ["Available KV cache memory: 29.47 GiB", ""], ids=["bytes", "tokens"])
def test_tokens_of_hybrids_are_those_of_requests_of_full_length(tmp_path: Path, memory_line: str) -> None:
    """Qwen3.6-27B under vLLM 0.20.2: 43.93 requests of 8,192 tokens, each eleven blocks of 784 and three of states."""
    text = (
        "INFO 05-07 10:00:00 [core.py:97] Initializing a V1 LLM engine (v0.20.2) with config: "
        "model='Qwen/Qwen3.5-27B', max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, "
        "enable_prefix_caching=False\n"
        "INFO 05-07 10:00:10 [interface.py:570] Setting attention block size to 784 tokens to ensure that attention "
        "page size is >= mamba page size.\n"
        f"INFO 05-07 10:01:00 [gpu_worker.py:300] {memory_line}\n"
        "INFO 05-07 10:01:00 [kv_cache_utils.py:1087] GPU KV cache size: 359,862 tokens\n"
    )
    found = import_log(written(tmp_path, text), hardware="rtx-pro-6000-96gb")

    assert found.draft is not None
    memory = resolve(found.draft.scenario).memory
    assert found.log.settings["deployment.engine.num_gpu_blocks_override"] == 615
    assert memory.max_concurrent_full_length == pytest.approx(43.93, abs=0.005)


def test_tokens_of_hybrids_were_blocks_by_groups_before(tmp_path: Path) -> None:
    """Until 0.20.0 the log divides a pool by its groups: 100 blocks of 784 tokens are 400 with three of states."""
    text = (
        "INFO 05-07 10:00:00 [core.py:97] Initializing a V1 LLM engine (v0.20.0) with config: "
        "model='Qwen/Qwen3.5-27B', max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, "
        "enable_prefix_caching=False\n"
        "INFO 05-07 10:00:10 [interface.py:570] Setting attention block size to 784 tokens to ensure that attention "
        "page size is >= mamba page size.\n"
        "INFO 05-07 10:01:00 [kv_cache_utils.py:1087] GPU KV cache size: 78,400 tokens\n"
        "INFO 05-07 10:01:00 [core.py:300] max_num_seqs=16\n"
    )
    found = import_log(written(tmp_path, text), hardware="rtx-pro-6000-96gb")

    assert found.log.settings["deployment.engine.num_gpu_blocks_override"] == 400


def test_tokens_of_hybrids_are_of_their_own_blocks_where_the_log_does_not_say_them(tmp_path: Path) -> None:
    """vLLM issue 40691 (0.19.0, H20): 371 blocks of 784 tokens and four groups; read as blocks of 16 it was 3.7 TB."""
    text = (
        "INFO 04-20 [api_server.py:1] vLLM API server version 0.19.0\n"
        "INFO 04-20 non-default args: {'model_tag': 'Qwen/Qwen3.5-27B', 'model': 'Qwen/Qwen3.5-27B', "
        "'max_model_len': 32768, 'max_num_seqs': 16, 'max_num_batched_tokens': 16384}\n"
        "INFO [kv_cache_utils.py:1319] GPU KV cache size: 290,864 tokens\n"
    )
    found = import_log(written(tmp_path, text), hardware="h20-141gb")

    assert found.draft is not None
    memory = resolve(found.draft.scenario).memory
    assert found.log.settings["deployment.engine.num_gpu_blocks_override"] == 4 * 371
    assert memory.max_concurrent_full_length == pytest.approx(33.04, abs=0.1)


@pytest.mark.parametrize(("name", "format_"), [("NVFP4", None), ("FP8", "fp8")])
def test_modelopt_is_nvfp4_where_the_name_says_so(tmp_path: Path, name: str, format_: str | None) -> None:
    """It was read as FP8, which did not fit on the GPU that the server ran on."""
    text = VLLM_V1.replace("Qwen/Qwen3-8B", f"nvidia/Qwen3-8B-{name}").replace(
        "'max_num_seqs'", "'quantization': 'modelopt', 'max_num_seqs'"
    )
    found = import_log(written(tmp_path, text), hardware="rtx-5090-32gb")

    assert found.log.settings.get("deployment.quantization") == format_
    assert found.draft is not None
    assert resolve(found.draft.scenario).formats["weights"] == name.lower()


@pytest.mark.parametrize("text", [SGLANG, TRTLLM], ids=["sglang", "tensorrt-llm"])
def test_the_room_of_every_engine_replaces_the_estimate(tmp_path: Path, text: str) -> None:
    """Also where vLLM's name of the option is none of the engine's."""
    found = import_log(written(tmp_path, text), model="llama-3.1-8b", hardware="h100-sxm-80gb")

    assert found.draft is not None
    memory = resolve(found.draft.scenario).memory
    assert memory.num_kv_blocks * memory.block_size == found.log.kv.tokens


@pytest.mark.parametrize(("ranks", "tokens"), [(1, 715_072), (8, 5_721_088)])
def test_tokens_of_latent_attention_fill_blocks_as_long_as_its_kernels(tmp_path: Path, ranks: int, tokens: int) -> None:
    """64 tokens on Hopper, on each of the ranks that divide contexts, of which the log says nothing."""
    text = VLLM_V1.replace("Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V2-Lite").replace("1,603,136", f"{tokens:,}")
    text = text.replace(
        "'tensor_parallel_size': 2", f"'tensor_parallel_size': 8, 'decode_context_parallel_size': {ranks}"
    )
    text = text.replace("tensor_parallel_size=2", "tensor_parallel_size=8").replace("'kv_cache_dtype': 'fp8', ", "")
    found = import_log(
        written(tmp_path, text.replace("kv_cache_dtype=fp8", "kv_cache_dtype=auto")), hardware="h200-sxm-141gb"
    )

    assert found.draft is not None
    memory = resolve(found.draft.scenario).memory
    assert memory.block_size == 64 * ranks
    assert memory.num_kv_blocks * memory.block_size == tokens


def test_blocks_span_the_ranks_that_divide_contexts(tmp_path: Path) -> None:
    """Blocks of 16 tokens on each of two ranks: blocks of 32 hold the tokens that the log counts."""
    text = VLLM_V1.replace("'tensor_parallel_size': 2", "'tensor_parallel_size': 2, 'decode_context_parallel_size': 2")
    log = read_engine_log(written(tmp_path, text))

    assert (log.kv.tokens, log.kv.block_size, log.kv.blocks) == (1_603_136, 32, 1_603_136 // 32)


def test_settings_go_into_a_scenario(tmp_path: Path) -> None:
    """Its traffic and targets stay; options of another engine go."""
    served = make_scenario(["deployment.engine.max_num_seqs=7", "slo={ttft: 1 s}"], model="llama-3.1-8b")

    found = import_log(written(tmp_path, SGLANG), scenario=served)
    assert found.draft is not None
    made = found.draft.scenario
    assert (made.workload, made.slo, made.model) == (served.workload, served.slo, "llama-3.1-8b")
    assert (made.deployment.engine.name, made.deployment.engine.version) == ("sglang", None)
    assert made.deployment.engine.max_num_seqs == 2048
    assert run(made).summary["simserve"]["kv"]["num_blocks"] == 38_141
    assert "The log does not say sglang's version; --engine-version names it." in found.notes
    assert not any("is kept" in note for note in found.notes)


def test_speculation_of_a_log_is_read(tmp_path: Path) -> None:
    """How many drafts are accepted is the scenario's where it has drafts, else a placeholder."""
    text = VLLM_V1.replace("'port'", "'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 3}, 'port'")
    drafting = "{method: ngram, num_speculative_tokens: 2, acceptance_rate: 0.5}"

    bare = import_log(written(tmp_path, text), scenario=make_scenario(model="qwen3-8b"))
    kept = import_log(
        written(tmp_path, text),
        scenario=make_scenario([f"deployment.speculative={drafting}"], model="qwen3-8b"),
    )
    assert bare.draft is not None
    assert kept.draft is not None
    assert bare.draft.mapping["deployment"]["speculative"]["num_speculative_tokens"] == 3
    assert kept.draft.mapping["deployment"]["speculative"]["num_speculative_tokens"] == 2


def test_a_scenario_with_pools_takes_no_log(tmp_path: Path) -> None:
    """A log is of one server."""
    pools = "[{name: a, replicas: 1}, {name: b, replicas: 1}]"

    with pytest.raises(ScenarioError, match=r"deployment\.pools: has pools, and a log is of one server"):
        import_log(written(tmp_path, TRTLLM), scenario=make_scenario([f"deployment.pools={pools}"]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; log the server from its start"),
        (
            b"INFO: Started server process\n" * 10,
            "holds no start-up line of vLLM, SGLang, TensorRT-LLM or llama.cpp in its first 64 MiB",
        ),
        (b"\0" * 1000, "is no text: it holds zero bytes"),
        (b"\x1f\x8b\x08rubbish", "cannot be read"),
        (b"\xff\xfe\xff", "holds no start-up line"),
        (b"GPU KV cache size: 3 tokens\n", "KV tokens: 3 is less than one block of 16"),
        (b"non-default args: {'max_num_seqs': 'many'}\n", "--max-num-seqs: 'many' is not a whole number"),
    ],
)
def test_what_is_no_log_ends_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    """Empty, of something else, binary, broken, or with a setting that is none."""
    file = tmp_path / "x.log"
    file.write_bytes(content)

    with pytest.raises(SimserveError, match=message) as failure:
        read_engine_log(file)
    assert failure.value.exit_code == 104


def test_a_log_without_end_is_read_as_far_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands behind the limit is not looked at, and the answer says so."""
    monkeypatch.setattr(engine_log, "MAX_BYTES", 5000)
    file = written(tmp_path, VLLM_V1 + "x" * 10_000 + "\nGPU KV cache size: 16 tokens\n")

    found = import_log(file, hardware="h100-sxm-80gb")
    assert found.log.kv.tokens == 1_603_136
    assert any("Only the first" in note for note in found.notes)
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_engine_log(tmp_path / "missing.log")


def test_printed_objects_are_taken_apart() -> None:
    """Commas in texts, lists and objects part nothing; what is no literal stays a text."""
    found = fields_of("a=1, b='x, y=2', c=[1, 2], d=Foo(e=3, f=4), g=<Level.X: 3>, h=torch.bfloat16) tail=5")

    assert found == {
        "a": "1",
        "b": "'x, y=2'",
        "c": "[1, 2]",
        "d": "Foo(e=3, f=4)",
        "g": "<Level.X: 3>",
        "h": "torch.bfloat16",
    }
    assert [value_of(found[key]) for key in "abch"] == [1, "x, y=2", [1, 2], "torch.bfloat16"]


@pytest.mark.parametrize("tag", ["-1", "None", "['a']"])
@pytest.mark.parametrize("model", [None, "llama-3.1-8b"])
def test_an_argument_that_is_no_name_names_no_model(tag: str, model: str | None, tmp_path: Path) -> None:
    """As one that is cut or garbled reads; the caller may name the model."""
    text = (
        f"vLLM API server version 0.11.0\nnon-default args: {{'model_tag': {tag}}}\nGPU KV cache size: 100,000 tokens\n"
    )

    found = import_log(written(tmp_path, text), model=model, hardware="h100-sxm-80gb")

    assert found.log.kv is not None
    assert found.log.reading.model == model


_LOGS = (VLLM_V0, VLLM_V1, SGLANG, TRTLLM)
_NOISE = st.sampled_from(("(", ")", "'", '"', "{", "}", "9" * 30, "None", "=", ",", "\\", "-1", "True", "\n", "é\0"))


def is_answered(folder: Path, text: str) -> bool:
    """Return whether a log is read, or refused with one line."""
    try:
        found = import_log(written(folder, text), model="llama-3.1-8b", hardware="h100-sxm-80gb")
    except SimserveError as failure:
        return "\n" not in str(failure)
    return found.log.kv is not None


def mutated(text: str, places: list[tuple[float, int, str]]) -> str:
    """Return a text with some of its parts cut out and noise put in."""
    for place, length, noise in places:
        start = int(place * len(text))
        text = text[:start] + noise + text[start + length :]
    return text


_PLACES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30), _NOISE), min_size=1, max_size=6)


@settings(max_examples=examples(120), deadline=None)
@given(st.sampled_from(_LOGS), _PLACES)
def test_no_log_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str, places: Any) -> None:
    """A log that was cut or garbled is read or refused."""
    assert is_answered(tmp_path_factory.getbasetemp(), mutated(text, places))


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(_LOGS), _PLACES)
def test_no_log_of_thousands_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, text: str, places: Any
) -> None:
    """As above, longer."""
    assert is_answered(tmp_path_factory.getbasetemp(), mutated(text, places))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            LLAMA_CPP,
            {
                "engine.name": "llama.cpp",
                "engine.version": "b7342",
                "quantization": "gguf-q8_0",
                "engine.max_num_seqs": 4,
                "engine.max_num_batched_tokens": 2048,
                "engine.ubatch_size": 512,
                "engine.kv_unified": True,
                "engine.max_model_len": 65_536,
            },
        ),
        (
            LLAMA_CPP_LATER,
            {
                "engine.name": "llama.cpp",
                "engine.version": "b11146",
                "quantization": "gguf-q4_k_m",
                "pipeline_parallel_size": 2,
                "engine.max_num_seqs": 2,
                "engine.max_model_len": 8_192,
            },
        ),
        (
            LLAMA_CPP_OF_OLLAMA,
            {
                "engine.name": "llama.cpp",
                "quantization": "gguf-q4_k_m",
                "kv_cache_dtype": "int8",
                "engine.max_num_seqs": 1,
                "engine.max_model_len": 8_192,
                "engine.n_gpu_layers": 29,
            },
        ),
    ],
    ids=["b7342", "b11146", "Ollama's"],
)
def test_llama_cpp_says_slots_context_layers_and_formats(tmp_path: Path, text: str, said: dict[str, Any]) -> None:
    """Also the log of one that Ollama started, whose file has no name of its own."""
    log = logged(tmp_path, text)

    assert log.settings == {f"deployment.{key}": value for key, value in said.items()}


def test_llama_cpp_says_what_its_cache_takes_as_simserve_does(tmp_path: Path) -> None:
    """Four slots share 65,536 tokens of 98,304 bytes."""
    found = import_log(written(tmp_path, LLAMA_CPP), hardware="a100-sxm-40gb")

    assert found.draft is not None
    assert found.log.kv.bytes == 6144 * 2**20
    assert resolve(found.draft.scenario).memory.kv_bytes == found.log.kv.bytes


def test_requests_that_llama_cpp_served_are_summed_up(tmp_path: Path) -> None:
    """Times per output token weigh with the tokens; an answer of one token has none."""
    found = import_log(written(tmp_path, LLAMA_CPP_LATER))

    served = found.log.served
    assert served is not None
    assert (served.num_requests, served.mean_prompt_tokens, served.mean_output_tokens) == (2, 100, 150)
    assert (served.mean_prompt_ms, served.tpot_ms) == (pytest.approx(200), pytest.approx(3200 / 300))
    assert any("--prompt-tokens 100 --output-tokens 150" in note for note in found.notes)


def test_the_gpu_that_llama_cpp_names_is_taken(tmp_path: Path) -> None:
    """One that has no profile is named beside the assumed one."""
    known = import_log(written(tmp_path, LLAMA_CPP_LATER))
    unknown = import_log(written(tmp_path, LLAMA_CPP))

    assert known.draft is not None
    assert known.draft.mapping["deployment"]["hardware"] == "rtx-3090-24gb"
    assert any("without profile, NVIDIA A100-PCIE-40GB: h100-sxm-80gb is assumed" in note for note in unknown.notes)
