"""Pasted lines of SGLang: what is understood, and the way back from an export."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.errors import ScenarioError, SimserveError
from simserve.planner.export.export import export
from simserve.planner.export.flags import flags_of, read_words
from simserve.planner.importers.draft import REFUSED, Draft
from simserve.planner.importers.server import import_line
from simserve.planner.importers.sglang_command import SGLANG
from simserve.scenario.resolve import resolve
from tests.fuzzing import examples
from tests.planner.importers.test_vllm_command import resolved_part
from tests.scenario.builders import make_scenario

LINE = "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B"


def imported(text: str, version: str | None = "0.5.4", hardware: str = "h100-sxm-80gb") -> Draft:
    """Return the draft of a line on one GPU."""
    return import_line(SGLANG, text, hardware=hardware, version=version)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("deployment.tensor_parallel_size=2", "deployment.engine.max_num_seqs=64"),
        ("deployment.engine.max_num_batched_tokens=4096", "deployment.engine.enable_prefix_caching=false"),
        ("deployment.kv_cache_dtype=fp8", "deployment.engine.max_model_len=4096"),
        (
            "deployment.engine.enable_chunked_prefill=false",
            "deployment.engine.max_num_batched_tokens=16384",
            "deployment.engine.max_model_len=16384",
        ),
        ("deployment.engine.gpu_memory_utilization=0.7", "deployment.engine.enforce_eager=true"),
        ("deployment.engine.cuda_graph_padding=false",),
        ("deployment.engine.schedule_conservativeness=0.3",),
        (
            "model=qwen3-next-80b-a3b",
            "deployment.hardware=b200-sxm-180gb",
            "deployment.engine.mamba_ssm_cache_dtype=bfloat16",
            "deployment.engine.mamba_full_memory_ratio=0.5",
        ),
        (
            "model=qwen3.5-9b",
            "deployment.engine.version=0.5.15",
            "deployment.engine.max_mamba_cache_size=64",
        ),
        ("deployment.engine.async_scheduling=false", "deployment.engine.block_size=64"),
        (
            "model=deepseek-v3",
            "deployment.hardware=h200-sxm-141gb",
            "deployment.quantization=fp8",
            "deployment.tensor_parallel_size=8",
            "deployment.decode_context_parallel_size=4",
            "deployment.engine.version=0.5.17",
            "deployment.engine.block_size=64",
        ),
        ("model=gpt-oss-20b", "deployment.engine.moe_backend=triton"),
        ("deployment.engine.version=0.5.12", "deployment.engine.cudagraph_mode=FULL_DECODE_ONLY"),
        ("deployment.engine.version=0.5.23", "deployment.engine.cudagraph_mode=FULL_DECODE_ONLY"),
        ("deployment.tensor_parallel_size=8", "deployment.engine.enable_nccl_nvls=true"),
        ("model=gpt-oss-20b", "deployment.engine.version=0.5.12", "deployment.engine.swa_full_tokens_ratio=0.3"),
        (
            "model=gpt-oss-20b",
            "deployment.engine.version=0.5.12",
            "deployment.engine.disable_hybrid_kv_cache_manager=true",
        ),
        ("model=gpt-oss-20b", "deployment.engine.version=0.5.12", "deployment.engine.moe_backend=marlin"),
        (
            "model=qwen3-30b-a3b",
            "deployment.hardware=mi300x-192gb",
            "deployment.engine.version=0.5.12",
            "deployment.engine.moe_backend=triton",
        ),
        (
            "model=deepseek-v3",
            "deployment.hardware=h200-sxm-141gb",
            "deployment.quantization=fp8",
            "deployment.data_parallel_size=8",
            "deployment.enable_expert_parallel=true",
            "deployment.engine.max_model_len=4096",
            "deployment.engine.max_num_seqs=32",
        ),
        (
            "model=mixtral-8x7b",
            "deployment.quantization=none",
            "deployment.tensor_parallel_size=2",
            "deployment.data_parallel_size=2",
            "deployment.engine.version=0.5.15",
            "deployment.engine.enable_prefill_delayer=true",
            "deployment.engine.prefill_delayer_max_delay_passes=50",
            "deployment.engine.prefill_delayer_token_usage_low_watermark=0.25",
        ),
    ],
)
def test_an_exported_command_comes_back_as_the_same_deployment(overrides: tuple[str, ...]) -> None:
    """Limits that SGLang counts over all ranks included."""
    scenario = make_scenario(["deployment.engine={name: sglang, version: '0.5.4'}", *overrides])

    line = export(scenario, "sglang").lines
    back = imported(line, hardware=scenario.deployment.hardware, version=scenario.deployment.engine.version)
    assert resolved_part(back.scenario) == resolved_part(scenario)


@pytest.mark.parametrize(
    ("version", "flag"),
    [("0.4.9", "--cuda-graph-max-bs"), ("0.5.10", "--cuda-graph-max-bs"), ("0.5.23", "--cuda-graph-max-bs-decode")],
)
def test_graphs_that_are_set_come_back(version: str, flag: str) -> None:
    """Under the flag's name in that release, with seats that are set and without."""
    largest = f"deployment.engine={{name: sglang, version: {version}, max_cudagraph_capture_size: 32}}"
    for overrides in ([largest], [largest, "deployment.engine.max_num_seqs=64"]):
        scenario = make_scenario(overrides)

        exported = export(scenario, "sglang")

        assert f"{flag} 32" in exported.lines
        assert not any("max_cudagraph_capture_size" in note for note in exported.notes)
        assert resolved_part(imported(exported.lines, version=version).scenario) == resolved_part(scenario)


def test_the_delay_of_prompts_needs_its_switch_and_ranks() -> None:
    """Without the switch its limits have no effect; on one scheduler it delays by rules that are not simulated."""
    numbers = "--prefill-delayer-max-delay-passes 9 --prefill-delayer-token-usage-low-watermark 0.4"

    lines = f"{LINE} {numbers}", f"{LINE} --enable-prefill-delayer {numbers}"
    off, alone = (imported(each, version="0.5.15") for each in lines)

    for each in (off, alone):
        assert each.scenario.deployment.engine.prefill_delayer_max_delay_passes is None
    assert not any(note.startswith("Not simulated") for note in off.notes)
    assert any("--enable-prefill-delayer without --enable-dp-attention" in note for note in alone.notes)


def test_what_sglang_does_anyway_is_not_called_left_out() -> None:
    """A flag at its default, which is what is simulated; another value is named."""
    usual = imported(f"{LINE} --attn-cp-size 1", "0.5.15")
    other = imported(f"{LINE} --attn-cp-size 2", "0.5.15")

    assert not any(note.startswith("Not simulated") for note in usual.notes)
    assert "Not simulated: --attn-cp-size 2." in other.notes


def test_seats_that_sglang_chooses_itself_leave_the_graphs_alone_once_they_are_told() -> None:
    """From 0.5.22 on max_running_requests limits the graphs where it is set, and the 48 of drafts are set later."""
    drafts = "deployment.speculative={method: ngram, num_speculative_tokens: 3, acceptance_rate: 0.6}"
    scenario = make_scenario(["deployment.engine={name: sglang, version: 0.5.23}", drafts])

    short, whole = (export(scenario, "sglang", explicit=explicit).lines for explicit in (False, True))

    assert "--cuda-graph-max-bs-decode" not in short
    assert "--max-running-requests 48" in whole
    assert f"--cuda-graph-max-bs-decode {resolve(scenario).shape.engine.cuda_graph_max_batch}" in whole


def test_the_kernels_of_attention_come_back() -> None:
    """Triton's on AMD; others are said not to be simulated."""
    scenario = make_scenario(
        [
            "deployment.engine={name: sglang, version: '0.5.9', attention_backend: triton, max_model_len: 4096}",
            "deployment.hardware=mi300x-192gb",
        ]
    )

    line = export(scenario, "sglang").lines
    back = imported(line, version="0.5.9", hardware="mi300x-192gb").scenario
    other = imported(f"{LINE} --attention-backend fa3", version="0.5.9")

    assert "--attention-backend triton" in line
    assert resolved_part(back) == resolved_part(scenario)
    assert other.scenario.deployment.engine.attention_backend is None
    assert any("--attention-backend fa3" in note for note in other.notes)


def test_a_tower_whole_on_each_rank_comes_back() -> None:
    """SGLang's switch is vLLM's mode `data`."""
    scenario = make_scenario(
        [
            "deployment.engine={name: sglang, version: '0.5.10', mm_encoder_tp_mode: data, max_model_len: 4096}",
            "model=qwen3-vl-8b",
            "deployment.tensor_parallel_size=2",
        ]
    )

    back = imported(export(scenario, "sglang").lines, version="0.5.10").scenario

    assert back.deployment.engine.mm_encoder_tp_mode == "data"
    assert resolved_part(back) == resolved_part(scenario)


def test_the_kernels_of_fp8_products_come_back() -> None:
    """FlashInfer's on Blackwell; `auto` is none, and what is not simulated is said."""
    scenario = make_scenario(
        [
            "deployment.engine={name: sglang, version: '0.5.9', fp8_gemm_backend: flashinfer_trtllm}",
            "model=deepseek-v3",
            "deployment.hardware=b200-sxm-180gb",
            "deployment.tensor_parallel_size=8",
            "deployment.engine.max_model_len=4096",
        ]
    )

    line = export(scenario, "sglang").lines
    back = imported(line, version="0.5.9", hardware="b200-sxm-180gb").scenario
    other = imported(f"{LINE} --fp8-gemm-backend cutlass", version="0.5.9")

    assert "--fp8-gemm-backend flashinfer_trtllm" in line
    assert back.deployment.engine.fp8_gemm_backend == "flashinfer_trtllm"
    assert resolved_part(back) == resolved_part(scenario)
    assert (
        imported(f"{LINE} --fp8-gemm-backend auto", version="0.5.9").scenario.deployment.engine.fp8_gemm_backend is None
    )
    assert other.scenario.deployment.engine.fp8_gemm_backend is None
    assert any("--fp8-gemm-backend cutlass" in note for note in other.notes)


@pytest.mark.parametrize(
    "text",
    [
        f"{LINE} --tp 2 --max-running-requests 8",
        f"{LINE} \\\\ --tp-size=2 \\\\ --max_running_requests 8 --port 30000",
        "sglang serve --model meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --max-running-requests 8 > log 2>&1",
        "docker run lmsysorg/sglang:v0.5.4 python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp 2 "
        "--max-running-requests 8",
    ],
)
def test_the_forms_of_a_line_are_understood(text: str) -> None:
    """The module, the program, a container; short names of sizes."""
    deployment = imported(text, version=None).scenario.deployment

    assert (deployment.tensor_parallel_size, deployment.engine.max_num_seqs) == (2, 8)
    assert (deployment.engine.version == "0.5.4") == ("v0.5.4" in text)


def test_flags_become_keys() -> None:
    """Room for KV caches in tokens, mixed steps, a configuration's length."""
    draft = imported(
        f"{LINE} --max-total-tokens 100000 --page-size 64 --enable-mixed-chunk --quantization w8a8_int8 --dtype half "
        """--json-model-override-args '{"max_position_embeddings": 9000}' --schedule-policy lpm --dp 2 --frobnicate"""
    )

    deployment = draft.scenario.deployment
    assert deployment.engine.overrides() == {
        "num_gpu_blocks_override": 1562,
        "block_size": 64,
        "scheduler": "mixed",
        "max_model_len": 9000,
    }
    assert (deployment.quantization, deployment.replicas) == ("int8", 2)
    assert any("Not simulated: --schedule-policy lpm." in note for note in draft.notes)
    assert any("has no --frobnicate" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("words", "method", "count"),
    [
        ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 5", "ngram", 4),
        (
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path org/head --speculative-num-steps 3 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
            "eagle",
            3,
        ),
        (
            "--speculative-algorithm STANDALONE --speculative-draft-model-path meta-llama/Llama-3.2-1B "
            "--speculative-num-steps 4",
            "draft_model",
            4,
        ),
    ],
)
def test_speculation_is_read_in_sglangs_words(words: str, method: str, count: int) -> None:
    """Steps are drafts where one is drawn a step."""
    found = imported(f"{LINE} --context-length 8192 {words}").scenario.deployment.speculative

    assert found is not None
    assert (found.method, found.num_speculative_tokens) == (method, count)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("vllm serve x", "holds no sglang.launch_server"),
        ("python -m sglang.launch_server --tp 2", "names no model"),
        (f"{LINE} --tp", "--tp-size: lacks its value"),
        (f"{LINE} --mem-fraction-static x", "--mem-fraction-static: 'x' is not a share"),
        (f"{LINE} --tp 3 --dp 2 --enable-dp-attention", "must divide the tensor-parallel size 3"),
    ],
)
def test_what_is_no_line_is_refused(text: str, message: str) -> None:
    """On one line."""
    with pytest.raises(ScenarioError, match=re.escape(message)):
        imported(text)


_PIECES = (
    *("--tp", "2", "--dp", "--enable-dp-attention", "--chunked-prefill-size", "-1", "--max-total-tokens", "'", "{"),
    *("--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "--page-size", "0", "--torchao-config", "x"),
    *("=", "$A", "\\"),
)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from(_PIECES)), st.text(max_size=20))
def test_no_line_ends_in_a_traceback(pieces: list[str], noise: str) -> None:
    """A mutated line is a scenario or one error."""
    try:
        draft = imported(f"{LINE} {' '.join(pieces)} {noise}")
    except SimserveError as failure:
        text = str(failure)
    else:
        text = draft.title
    assert text
    assert "\n" not in text


def test_a_hierarchical_cache_is_host_memory_behind_the_prefix_cache() -> None:
    """GB of each rank; without the switch, sizes mean nothing; placeholder traffic has no use for it."""
    on = imported(f"{LINE} --tp-size 2 --enable-hierarchical-cache --hicache-size 100 --hicache-storage-backend file")
    off = imported(f"{LINE} --hicache-size 100")
    ratio = imported(f"{LINE} --enable-hierarchical-cache --hicache-ratio 2")

    tier = '[{"tier": "host", "capacity": "200 GB", "fetch": "always", "overlap": true}]'
    assert any(tier in note for note in on.notes)
    assert any("--hicache-storage-backend file is a KV tier" in note for note in on.notes)
    assert not any("host memory" in note for note in off.notes)
    assert any("--hicache-ratio 2 is a multiple" in note for note in ratio.notes)


def test_tiers_are_exported_to_a_hierarchical_cache() -> None:
    """Host memory of each rank, and one storage behind it; further tiers are notes."""
    tiers = "[{tier: host, capacity: 400 GB}, {tier: disk, capacity: 1 TB, bandwidth: 5 GB/s}]"
    words = ["deployment.engine.name=sglang", "deployment.engine.version=0.5.4", f"deployment.engine.kv_tiers={tiers}"]
    scenario = make_scenario([*words, "workload.shared_prefix={num_groups: 2, tokens: 50}"])

    result = export(scenario, "sglang")

    assert "--enable-hierarchical-cache --hicache-size 400 --hicache-storage-backend file" in result.line


@pytest.mark.parametrize(
    ("model", "quantization"), [("nvidia/Qwen3.6-27B-NVFP4", "nvfp4-wo"), ("nvidia/Gemma-4-26B-A4B-NVFP4", "nvfp4")]
)
def test_one_flag_names_nvfp4_with_and_without_inputs_in_4_bit(model: str, quantization: str) -> None:
    """The checkpoint says which."""
    line = f"python -m sglang.launch_server --model-path {model} --quantization modelopt_fp4"

    draft = imported(line, version="0.5.15", hardware="b200-sxm-180gb")

    assert resolve(draft.scenario).shape.precision.name == quantization


@pytest.mark.parametrize(
    ("words", "version", "backend", "told"),
    [
        ("marlin", "0.5.12", "marlin", ""),
        ("triton_kernel", "0.5.8", "triton", ""),
        ("auto", "0.5.8", None, ""),
        ("flashinfer_mxfp4", "0.5.8", None, "Not simulated: --moe-runner-backend flashinfer_mxfp4."),
        ("triton", "0.5.12", None, "Not simulated: --moe-runner-backend triton, which turns MXFP4 into 16 bit."),
    ],
)
def test_the_kernels_of_experts_are_read(words: str, version: str, backend: str | None, told: str) -> None:
    """`triton` expands gpt-oss to 16 bit; FlashInfer's kernels are not among those simulated."""
    draft = imported(f"sglang serve --model-path openai/gpt-oss-20b --moe-runner-backend {words}", version)

    assert draft.scenario.deployment.engine.moe_backend == backend
    assert [each for each in draft.notes if "moe-runner" in each] == ([told] if told else [])


def test_the_kernels_of_experts_on_amd_are_the_flags_from_the_release_that_has_aiter() -> None:
    """Before 0.5.11 a variable decides, whatever the flag says."""
    line = "sglang serve --model-path Qwen/Qwen3-30B-A3B --moe-runner-backend triton"
    late, early = (imported(line, version, "mi300x-192gb") for version in ("0.5.11", "0.5.10"))

    assert late.scenario.deployment.engine.moe_backend == "triton"
    assert early.scenario.deployment.engine.moe_backend is None
    assert "Not simulated: --moe-runner-backend triton." in early.notes


def test_an_export_names_a_release_without_the_kernels() -> None:
    """Marlin's are among the values from 0.5.12 on."""
    scenario = make_scenario(
        ["model=gpt-oss-20b", "deployment.engine={name: sglang, version: '0.5.8', moe_backend: marlin}"]
    )

    with pytest.raises(
        ScenarioError, match=r"moe_backend: 'marlin' is not accepted by --moe-runner-backend of sglang 0.5.8"
    ):
        export(scenario, "sglang")


def test_nodes_that_do_not_share_the_ranks_equally_are_refused() -> None:
    """Eight ranks over three nodes: the server does not start either."""
    with pytest.raises(ScenarioError, match=r"number of nodes: 3 must divide the 8 GPUs of a replica"):
        imported(f"{LINE} --tp 8 --nnodes 3")
    assert imported(f"{LINE} --tp 8 --nnodes 2").scenario.deployment.gpus_per_node == 4


@pytest.mark.parametrize(
    ("backend", "version", "told"),
    [("a2a", "0.5.23", False), ("ag_rs", "0.5.23", True), ("ag_rs", "0.5.17", False), ("a2a", "0.5.17", True)],
)
def test_how_outputs_travel_is_simulated_as_the_version_does_by_itself(backend: str, version: str, told: bool) -> None:
    """Another backend than the version's own is left out."""
    line = "sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp 8 --decode-context-parallel-size 8"
    draft = imported(f"{line} --dcp-comm-backend {backend}", version, "h200-sxm-141gb")

    assert draft.scenario.deployment.decode_context_parallel_size == 8
    assert any(f"Not simulated: --dcp-comm-backend {backend}" in each for each in draft.notes) is told


def test_ranks_share_the_states_that_a_server_is_told_to_keep() -> None:
    """``--max-mamba-cache-size`` counts those of all ranks with an attention of their own; a rank has its part."""
    line = "sglang serve --model-path Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4 --dp 4 --enable-dp-attention"
    draft = imported(f"{line} --max-mamba-cache-size 256", "0.5.9", "h200-sxm-141gb")

    assert draft.scenario.deployment.engine.max_mamba_cache_size == 64


@pytest.mark.parametrize("backend", ["deepep", "mooncake"])
def test_an_exchange_of_tokens_spreads_the_experts_over_all_ranks(backend: str) -> None:
    """No ``--ep-size`` is needed: the server sets it to that of the tensor-parallel ranks."""
    line = "sglang serve --model-path deepseek-ai/DeepSeek-R1 --tp 16 --nnodes 2 --dp 16 --enable-dp-attention"
    draft = imported(f"{line} --moe-a2a-backend {backend}", "0.5.9", "h200-sxm-141gb")

    deployment = draft.scenario.deployment
    assert deployment.enable_expert_parallel
    assert (deployment.tensor_parallel_size, deployment.data_parallel_size) == (1, 16)
    assert not any(note.startswith(REFUSED) for note in draft.notes)
    assert (deployment.all2all_backend == "deepep_low_latency") is (backend == "deepep")


def test_an_exchange_among_ranks_that_share_attention_is_said_not_to_be_simulated() -> None:
    """It sends the tokens of data-parallel ranks; here there is one batch for all."""
    line = "sglang serve --model-path deepseek-ai/DeepSeek-R1 --tp 8 --moe-a2a-backend deepep"
    draft = imported(line, "0.5.9", "h200-sxm-141gb")

    assert draft.scenario.deployment.enable_expert_parallel
    assert "Not simulated: --moe-a2a-backend deepep without --enable-dp-attention." in draft.notes
    assert not any(note.startswith(REFUSED) for note in draft.notes)


def test_the_beginning_of_a_flag_stands_for_it_where_it_fits_no_other() -> None:
    """As Python's parser reads it: recipes write ``--speculative-algo``."""
    line = "sglang serve --model-path Qwen/Qwen3-8B --speculative-algo NGRAM --speculative-num-draft-tokens 8"
    speculative = imported(line, "0.5.9").scenario.deployment.speculative

    assert speculative is not None
    assert speculative.method == "ngram"
    assert any("has no --speculative: " in note for note in imported(f"{LINE} --speculative x").notes)


def test_the_beginning_of_a_negated_flag_stands_for_it() -> None:
    """Toggles of vLLM have a second name in its parser."""
    words, _ = read_words(flags_of("vllm", "0.33"), ["--no-enable-prefix", "--no-frobnicate"])

    assert [(each.flag, each.value, each.is_known) for each in words] == [
        ("--enable-prefix-caching", False, True),
        ("--no-frobnicate", None, False),
    ]


def test_a_line_without_a_version_is_read_as_one_that_has_its_flags() -> None:
    """The newest would not start with a flag that was renamed since."""
    draft = imported(f"{LINE} --cuda-graph-max-bs 128 --host 0.0.0.0", None)

    assert any("the newest known with --cuda-graph-max-bs." in note for note in draft.notes)
    assert draft.scenario.deployment.engine.max_cudagraph_capture_size == 128
    assert any("the newest known." in note for note in imported(f"{LINE} --frobnicate 3", None).notes)
    assert any(
        "has no --cuda-graph-max-bs" in note for note in imported(f"{LINE} --cuda-graph-max-bs 8", "0.5.23").notes
    )
