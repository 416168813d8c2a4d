"""Pasted lines of TensorRT-LLM and their options files: what is understood, and the way back from an export."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simserve.errors import ScenarioError
from simserve.planner.export.export import export
from simserve.planner.importers.draft import Draft
from simserve.planner.importers.server import import_line
from simserve.planner.importers.trtllm_command import TRTLLM
from tests.planner.importers.test_vllm_command import resolved_part
from tests.scenario.builders import make_scenario

LINE = "trtllm-serve meta-llama/Llama-3.1-8B"


def imported(text: str, version: str | None = "1.0", hardware: str = "h100-sxm-80gb") -> Draft:
    """Return the draft of a line on one GPU."""
    return import_line(TRTLLM, text, hardware=hardware, version=version)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("deployment.tensor_parallel_size=2", "deployment.engine.max_num_seqs=64"),
        ("deployment.engine.max_num_batched_tokens=4096", "deployment.engine.enable_prefix_caching=false"),
        ("deployment.kv_cache_dtype=fp8", "deployment.engine.max_model_len=4096"),
        ("deployment.engine.enable_chunked_prefill=true", "deployment.engine.block_size=64"),
        ("deployment.engine.gpu_memory_utilization=0.7", "deployment.engine.enforce_eager=true"),
        ("deployment.engine.async_scheduling=false",),
        ("deployment.engine.admission=on_demand",),
        ("deployment.engine.piecewise_cuda_graph_max_tokens=5000",),
        ("deployment.engine.cuda_graph_padding=false", "deployment.engine.max_cudagraph_capture_size=128"),
        (
            "model=deepseek-v3",
            "deployment.hardware=h200-sxm-141gb",
            "deployment.quantization=fp8",
            "deployment.data_parallel_size=8",
            "deployment.enable_expert_parallel=true",
            "deployment.engine.attention_dp_timeout_iters=10",
        ),
    ],
)
def test_an_exported_command_comes_back_as_the_same_deployment(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its options file beside it."""
    scenario = make_scenario(["deployment.engine={name: tensorrt-llm, version: '1.0'}", *overrides])
    monkeypatch.chdir(tmp_path)

    exported = export(scenario, "trtllm")
    for name, text in exported.files.items():
        Path(name).write_text(text, encoding="utf-8")
    back = imported(exported.lines, hardware=scenario.deployment.hardware)
    assert resolved_part(back.scenario) == resolved_part(scenario)


def test_a_server_that_is_told_nothing_captures_batches_up_to_128() -> None:
    """Its own default, which is not the tuned one that a scenario has: batches are not padded, which is said."""
    bare, eager = imported(LINE), imported(LINE, version="0.21")

    assert bare.scenario.deployment.engine.max_cudagraph_capture_size == 128
    assert bare.scenario.deployment.engine.cuda_graph_padding is False
    assert sum("enable_padding" in note for note in bare.notes) == 1
    assert eager.scenario.deployment.engine.max_cudagraph_capture_size is None


@pytest.mark.parametrize(("version", "read"), [(None, "0.21"), ("1.2", "0.21"), ("0.18", "0.18")])
def test_a_compiled_engine_of_a_later_release_is_one_of_the_last_that_had_no_other(
    version: str | None, read: str
) -> None:
    """From 1.0 on a profile is that of the PyTorch backend, whose Python launches kernels and has graphs of its own."""
    compiled = imported(f"{LINE} --backend tensorrt", version=version)
    named, other = imported(f"{LINE} --backend pytorch", version=version), imported(f"{LINE} --backend _autodeploy")

    assert compiled.scenario.deployment.engine.version == read
    assert compiled.scenario.deployment.engine.max_cudagraph_capture_size is None
    assert sum("A compiled engine is simulated as one of 0.21" in note for note in compiled.notes) == (read != version)
    assert not any("Not simulated" in note for note in compiled.notes)
    assert named.scenario.deployment.engine.version != "0.21"
    assert any("Not simulated: --backend _autodeploy." in note for note in other.notes)


@pytest.mark.parametrize(
    ("version", "options", "expected"),
    [
        ("0.16", "", {}),
        ("0.18", "", {"enforce_eager": True}),
        ("0.20", "", {"enforce_eager": True, "async_scheduling": True}),
        ("0.20", "disable_overlap_scheduler: true", {"enforce_eager": True, "async_scheduling": False}),
        ("0.21", "use_cuda_graph: true", {"cuda_graph_padding": False, "async_scheduling": True}),
        (
            "0.20",
            "use_cuda_graph: true, enable_overlap_scheduler: false",
            {"cuda_graph_padding": False, "async_scheduling": False},
        ),
    ],
)
def test_the_pytorch_backend_beside_engines_has_no_graphs_unless_told(
    tmp_path: Path, version: str, options: str, expected: dict[str, bool]
) -> None:
    """From 0.17 on, and its overlapped schedule from 0.20 on; a compiled engine has neither."""
    file = tmp_path / "extra.yaml"
    file.write_text(f"pytorch_backend_config: {{{options}}}\n", encoding="utf-8")
    line = f"{LINE} --extra_llm_api_options {file}" if options else LINE
    named, compiled = imported(f"{line} --backend pytorch", version=version), imported(LINE, version=version)

    assert named.scenario.deployment.engine.overrides() == expected
    assert not any(word in note for note in named.notes for word in ("Not simulated", "left out"))
    assert any("Without effect" in note for note in named.notes) == (version == "0.16")
    assert compiled.scenario.deployment.engine.overrides() == {}


def test_an_options_file_is_read_if_it_is_here(tmp_path: Path) -> None:
    """Keys that are not simulated are named; a file elsewhere is said."""
    options = tmp_path / "extra.yaml"
    options.write_text(
        "kv_cache_config: {max_tokens: 64000, tokens_per_block: 32, host_cache_size: 5}\n"
        "cuda_graph_config: {max_batch_size: 64}\nspeculative_config: {decoding_type: NGram, max_draft_len: 4}\n"
        "max_seq_len: 8192\nprint_iter_log: true\n",
        encoding="utf-8",
    )

    draft = imported(f"{LINE} --backend pytorch --extra_llm_api_options {options}")
    deployment = draft.scenario.deployment
    assert deployment.engine.overrides() == {
        "num_gpu_blocks_override": 2000,
        "cuda_graph_padding": False,
        "block_size": 32,
        "max_cudagraph_capture_size": 64,
        "max_model_len": 8192,
    }
    assert deployment.speculative is not None
    assert any("Not simulated: kv_cache_config.host_cache_size 5." in note for note in draft.notes)
    missing = imported(f"{LINE} --extra_llm_api_options elsewhere.yaml")
    assert any("elsewhere.yaml is not here" in note for note in missing.notes)


@pytest.mark.parametrize(
    ("version", "options", "admission"),
    [
        ("1.3", "scheduler_config: {capacity_scheduler_policy: GUARANTEED_NO_EVICT}", "reserve"),
        ("1.3", "kv_cache_config: {use_kv_cache_manager_v2: true}", "on_demand"),
        ("1.4", "scheduler_config: {capacity_scheduler_policy: GUARANTEED_NO_EVICT}", "on_demand"),
        ("1.4", "kv_cache_config: {use_kv_cache_manager_v2: true}", None),
        ("1.4", "kv_cache_config: {use_kv_cache_manager_v2: false}", "reserve"),
        (
            "1.4",
            "{kv_cache_config: {use_kv_cache_manager_v2: false}, scheduler_config: "
            "{capacity_scheduler_policy: MAX_UTILIZATION}}",
            "on_demand",
        ),
    ],
)
def test_the_policy_is_that_of_the_kv_cache_manager_that_runs(
    version: str, options: str, admission: str | None, tmp_path: Path
) -> None:
    """The second one, the default from 1.4 on, runs MAX_UTILIZATION whatever is asked for."""
    file = tmp_path / "extra.yaml"
    file.write_text(options, encoding="utf-8")

    draft = imported(f"{LINE} --extra_llm_api_options {file}", version=version)

    assert draft.scenario.deployment.engine.admission == admission
    is_noted = any("use_kv_cache_manager_v2 is simulated from 1.4 on" in note for note in draft.notes)
    assert is_noted == (version == "1.3" and "v2: true" in options)


@pytest.mark.parametrize("admission", ["reserve", "on_demand"])
def test_the_policy_of_1_4_comes_back_from_an_export(
    admission: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of ``max_tokens`` is only reserved by the first manager, which the options file then asks for."""
    engine = f"deployment.engine={{name: tensorrt-llm, version: '1.4', admission: {admission}}}"
    scenario = make_scenario([engine])
    monkeypatch.chdir(tmp_path)

    exported = export(scenario, "trtllm")
    for name, text in exported.files.items():
        Path(name).write_text(text, encoding="utf-8")

    assert ("use_kv_cache_manager_v2: false" in "".join(exported.files.values())) == (admission == "reserve")
    assert resolved_part(imported(exported.lines, version="1.4").scenario) == resolved_part(scenario)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm serve x", "holds no trtllm-serve"),
        ("trtllm-serve", "names no model"),
        (f"{LINE} --max_batch_size many", "--max_batch_size: 'many' is not a whole number"),
        (f"{LINE} --kv_cache_free_gpu_memory_fraction x", "'x' is not a share"),
    ],
)
def test_what_is_no_line_is_refused(text: str, message: str) -> None:
    """On one line."""
    with pytest.raises(ScenarioError, match=re.escape(message)):
        imported(text)


@pytest.mark.parametrize("flag", ["--cp_size", "--context_parallel_size"])
def test_ranks_that_divide_contexts_are_refused(flag: str) -> None:
    """They are GPUs besides those of tensor parallelism; one of them is what is simulated."""
    with pytest.raises(ScenarioError, match=rf"{flag}: 2 adds GPUs that divide contexts \(helix parallelism\)"):
        imported(f"{LINE} --tp_size 4 {flag} 2", version="1.2")
    assert imported(f"{LINE} --tp_size 4 {flag} 1", version="1.2").scenario.deployment.tensor_parallel_size == 4


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ("torch_compile_config: {enable_piecewise_cuda_graph: true, capture_num_tokens: [128, 4096]}", 4096),
        ("torch_compile_config: {enable_piecewise_cuda_graph: true}", 3072),
        ("torch_compile_config: {enable_fullgraph: true}", None),
        ("prefill_cuda_graph_backend: piecewise", 3072),
        ("prefill_cuda_graph_backend: piecewise\nprefill_capture_num_tokens: [1, 256, 512]", 512),
        ("prefill_capture_num_tokens: [1, 256, 512]\nprefill_cuda_graph_backend: piecewise", 512),
        ("prefill_cuda_graph_backend: disabled\nprefill_capture_num_tokens: [1, 256, 512]", None),
        ("prefill_capture_num_tokens: [1, 256, 512]", None),  # disabled unless told
    ],
)
def test_graphs_of_prompts_in_pieces_are_read(tmp_path: Path, options: str, tokens: int | None) -> None:
    """Both names of them, and the default list where none is written."""
    file = tmp_path / "extra.yaml"
    file.write_text(options, encoding="utf-8")

    draft = imported(f"{LINE} --extra_llm_api_options {file}", version="1.3")
    assert draft.scenario.deployment.engine.piecewise_cuda_graph_max_tokens == tokens


@pytest.mark.parametrize(
    "options",
    [
        "torch_compile_config: {enable_piecewise_cuda_graph: true, capture_num_tokens: [128, many]}",
        "prefill_capture_num_tokens: [128, many]",
        "cuda_graph_config: {batch_sizes: [128, many]}",
    ],
)
def test_a_size_of_a_graph_that_is_no_number_is_refused(tmp_path: Path, options: str) -> None:
    """In a line that names the key."""
    file = tmp_path / "extra.yaml"
    file.write_text(options, encoding="utf-8")

    with pytest.raises(ScenarioError, match=r"(num_tokens|batch_sizes).*is not a whole number"):
        imported(f"{LINE} --extra_llm_api_options {file}", version="1.3")


def test_tokens_that_are_sent_together_are_read(tmp_path: Path) -> None:
    """What its front end takes for an event is not known: only the gaps that clients see change."""
    file = tmp_path / "options.yaml"
    file.write_text("stream_interval: 5\n", encoding="utf-8")
    draft = imported(f"{LINE} --extra_llm_api_options {file}")

    assert draft.mapping["deployment"]["streaming"] == {"stream_interval": 5, "cost_per_event": "0 s"}
