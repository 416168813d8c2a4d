"""Resolving: names become numbers, contexts are counted, and what does not go together is refused with its key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from simserve.errors import InfeasibleError, InputError, ScenarioError, SimserveError
from simserve.perf.tables import price
from simserve.profiles.hardware import load_hardware
from simserve.scenario.fit import check_fit, memory_report, remedies
from simserve.scenario.load import from_mapping, load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario
from simserve.workload.generate import decode_contexts
from tests.scenario.builders import make_scenario, scenario_mapping

_LARGE = {"model": "llama-3.1-70b"}
_SHORT_OF_KV = ["deployment.quantization=fp8", "deployment.engine.gpu_memory_utilization=0.96"]
EXPERTS = ["model=mixtral-8x7b", "deployment.data_parallel_size=2", "deployment.quantization=fp8"]
DELAYING = "deployment.engine={name: sglang, version: '0.5.15', enable_prefill_delayer: true}"
BALANCED = [
    "deployment.engine={name: tensorrt-llm, version: '1.2'}",
    "deployment.engine.attention_dp_timeout_iters=30",
]


def test_engine_limits_are_those_of_scenario_and_version() -> None:
    """A knob that is set is kept; one that is not is the version's on that GPU."""
    engine = resolve(make_scenario(["deployment.engine.max_num_seqs=8"])).engine

    assert engine.max_num_seqs == 8
    assert engine.max_num_batched_tokens == 8192
    assert engine.num_blocks > 0


def test_gpus_are_replicas_times_ranks_times_stages() -> None:
    """The bill counts every GPU of every replica."""
    overrides = [f"deployment.{key}=2" for key in ("replicas", "tensor_parallel_size", "pipeline_parallel_size")]

    assert resolve(make_scenario(overrides)).num_gpus == 8


def test_the_scenario_s_price_wins_over_the_profile_s() -> None:
    """Without one, the profile's is used, and the result says when it was seen."""
    own = resolve(make_scenario(["pricing.gpu_hour_usd=1.5"]))
    default = resolve(make_scenario())

    assert (own.gpu_hour_usd, own.gpu_hour_source) == (1.5, "scenario")
    assert default.gpu_hour_usd == default.shape.hardware.default_price
    assert (
        "fitted on-demand price of h100-sxm-80gb at specialised clouds, from 9 offers (5 there), seen"
        in default.gpu_hour_source
    )


def test_a_profile_path_is_relative_to_the_scenario(tmp_path: Path) -> None:
    """A folder with scenario and profile can be moved as a whole."""
    from simserve.profiles import catalog

    text = catalog.find("model", "llama-3.2-1b").read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(text.replace("llama-3.2-1b", "own"), encoding="utf-8")

    resolved = resolve(from_mapping(scenario_mapping(model="./own.yaml"), folder=tmp_path))

    assert resolved.shape.model.name == "own"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=llama-9-8b", "--set model: 'llama-9-8b' is not a known model; did you mean"),
        ("deployment.hardware=h100-sxn", "--set deployment.hardware: 'h100-sxn' is not a known hardware"),
        ("deployment.engine.name=vlm", "--set deployment.engine.name: 'vlm' is not a known engine"),
        ("deployment.engine.version=new", "--set deployment.engine.version: 'new' is not a version number"),
        ("deployment.tensor_parallel_size=3", "3 must divide the 32 attention heads"),
        ("deployment.pipeline_parallel_size=17", "17 must be at most the 16 layers of llama-3.2-1b"),
        ("deployment.engine.static_batch_size=4", "needs batching static"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_flag(override: str, message: str) -> None:
    """One line: the flag, the value, the rule, the remedy."""
    with pytest.raises(SimserveError) as caught:
        resolve(make_scenario([override]))

    assert caught.value.exit_code == 104
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("gpu", "engine", "able"),
    [
        ("tpu-v6e", "tensorrt-llm", "for Google choose from sglang, tgi, transformers, vllm"),
        ("m4-max", "sglang", "for Apple choose from llama.cpp, ollama, transformers, vllm"),
        ("mi355x", "tensorrt-llm", "for AMD choose from"),
        ("trn2", "llama.cpp", "for Amazon choose from"),
        ("arc-b580", "sglang", "for Intel choose from llama.cpp, transformers, vllm"),
    ],
)
def test_an_engine_is_refused_on_devices_it_does_not_run_on(gpu: str, engine: str, able: str) -> None:
    """The engine and the maker are named, and the engines that run there."""
    with pytest.raises(ScenarioError) as caught:
        resolve(make_scenario([f"deployment.hardware={gpu}", f"deployment.engine.name={engine}"]))

    assert str(caught.value).startswith(f"--set deployment.engine.name: '{engine}' does not run on ")
    assert able in str(caught.value)
    assert caught.value.exit_code == 104


def test_an_engine_is_refused_on_gpus_that_are_too_old_for_it() -> None:
    """Pascal has no Triton kernels: vLLM begins with Volta, llama.cpp runs."""
    with pytest.raises(ScenarioError) as caught:
        resolve(make_scenario(["deployment.hardware=p40", "model=qwen3-4b"]))

    assert "'vllm' takes CUDA compute capability 7.0 and newer, and p40-24gb has 6.1" in str(caught.value)
    assert "llama.cpp" in str(caught.value)
    assert "sglang" not in str(caught.value)
    llama_cpp = ["deployment.hardware=p40", "model=qwen3-4b", "deployment.engine={name: llama.cpp, version: b8350}"]
    assert resolve(make_scenario([*llama_cpp, "deployment.quantization=gguf-q4_k_m"])).num_gpus == 1


def test_an_engine_that_needs_a_plug_in_says_so() -> None:
    """vLLM on a Mac is vllm-metal, whose kernels nobody measured here; on NVIDIA's GPUs there is nothing to say."""
    mac = resolve(make_scenario(["deployment.hardware=m4-max"])).shape
    gpu = resolve(make_scenario(["deployment.hardware=h100"])).shape

    assert "vllm runs on Apple's devices through vllm-metal: its kernels are priced as a roofline" in mac.notes
    assert (mac.engine.plugin, gpu.engine.plugin) == ("vllm-metal", "")


def test_a_maker_that_no_engine_names_is_accepted(tmp_path: Path) -> None:
    """A user's own profile of an accelerator runs under any engine."""
    text = load_hardware("l4").model_copy(update={"vendor": "ACME"}).model_dump_json()
    (tmp_path / "own.json").write_text(text)

    resolved = resolve(from_mapping(scenario_mapping(deployment={"hardware": "./own.json"}), folder=tmp_path))

    assert resolved.shape.engine.plugin == ""


def test_a_short_name_resolves_to_the_full_one() -> None:
    """What is stored with a result does not depend on how the GPU was written."""
    short, full = (make_scenario([f"deployment.hardware={name}"]) for name in ("H100", "h100-sxm-80gb"))

    assert short.deployment.hardware == "h100-sxm-80gb"
    assert short.hash == full.hash


def test_no_kv_cache_needs_a_single_stage() -> None:
    """Without a cache every step recomputes everything, which stages in flight cannot share."""
    overrides = ["deployment.engine.kv_allocation=none", "deployment.pipeline_parallel_size=2"]

    with pytest.raises(SimserveError, match="must be 1 without a KV cache"):
        resolve(make_scenario(overrides))


def test_the_file_is_named_when_a_profile_is_unknown() -> None:
    """A wrong name in a file points to file and key."""
    scenario = from_mapping(scenario_mapping(model="llama-9-8b"), file="mine.yaml")

    with pytest.raises(SimserveError, match=r"^mine.yaml: model: 'llama-9-8b' is not a known model"):
        resolve(scenario)


def test_weights_that_do_not_fit_say_the_arithmetic_and_what_would() -> None:
    """141 GB of weights on 85 GB: the answer is a sum and a way out."""
    resolved = resolve(make_scenario(**_LARGE))

    with pytest.raises(InfeasibleError) as caught:
        check_fit(resolved)

    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert message.startswith(
        "llama-3.1-70b does not fit on 1 x h100-sxm-80gb in bf16, as stored in meta-llama/Llama-3.1-70B; KV bf16 "
        "(0.9 x 85.02 GB total - 141.1 GB weights - "
    )
    assert "141.1 GB" in message
    assert "--set deployment.tensor_parallel_size=" in message


def test_a_kv_cache_below_one_full_request_says_the_longest_that_fits() -> None:
    """The weights fit, one request of the length that the scenario sets does not."""
    resolved = resolve(make_scenario([*_SHORT_OF_KV, "deployment.engine.max_model_len=131072"], **_LARGE))

    with pytest.raises(InfeasibleError, match="KV cache smaller than one full-length request") as caught:
        check_fit(resolved)

    longest = resolved.memory.longest_sequence
    assert f"the longest that fits is {longest:,}" in str(caught.value)
    assert f"deployment.engine.max_model_len={longest}" in str(caught.value)


@pytest.mark.parametrize("overrides", [[], _SHORT_OF_KV])
def test_every_remedy_works(overrides: list[str]) -> None:
    """A change that is offered makes the deployment fit."""
    offered = remedies(resolve(make_scenario(overrides, **_LARGE)))

    assert offered
    for change in offered:
        assert resolve(make_scenario([*overrides, change], **_LARGE)).memory.fits, change


def test_what_fits_is_not_refused() -> None:
    """A deployment that fits raises nothing, and its report offers nothing."""
    resolved = resolve(make_scenario())

    check_fit(resolved)

    report = memory_report(resolved)
    assert report["fits"]
    assert report["what_fits"] == []


def test_memory_report_adds_up() -> None:
    """The parts of a GPU sum to its memory, and blocks to the KV cache."""
    report = memory_report(resolve(make_scenario()))

    assert sum(report["parts"].values()) == pytest.approx(report["total_bytes"])
    block_bytes = report["block_size"] * report["kv_bytes_per_token"]
    assert 0 <= report["kv_bytes"] - report["num_kv_blocks"] * block_bytes < block_bytes


@pytest.mark.parametrize(
    ("model", "engine", "message"),
    [
        ("llama-3.2-1b", "vllm", "enable_expert_parallel: True needs a model with experts, and llama-3.2-1b has none"),
        (
            "gpt-oss-20b",
            "llama.cpp",
            "enable_expert_parallel: True .* llama.cpp b11549 has no expert parallelism",
        ),
    ],
)
def test_experts_are_placed_only_where_there_are_some(model: str, engine: str, message: str) -> None:
    """A dense model, and engines that have no such option, are refused."""
    deployment = {"hardware": "h100-sxm-80gb", "engine": {"name": engine}, "enable_expert_parallel": True}

    with pytest.raises(SimserveError, match=message):
        resolve(make_scenario(model=model, deployment=deployment))


def test_more_ranks_than_experts_are_refused() -> None:
    """A rank without an expert has nothing to do."""
    deployment = {"hardware": "h200-sxm-141gb", "tensor_parallel_size": 16, "enable_expert_parallel": True}

    with pytest.raises(SimserveError, match="tensor_parallel_size: 16 must be at most the 8 experts"):
        resolve(make_scenario(model="mixtral-8x7b", deployment=deployment))


def test_a_published_format_is_offered_first_where_nothing_fits() -> None:
    """gpt-oss in BF16 does not fit on one H100; in MXFP4, as it is published, it does."""
    overrides = [f"deployment.engine.{key}" for key in ("max_model_len=8192", "gpu_memory_utilization=0.97")]
    resolved = resolve(make_scenario([*overrides, "deployment.quantization=none"], model="gpt-oss-120b"))

    assert "deployment.quantization=mxfp4" in remedies(resolved)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["deployment.data_parallel_size=2"], "has no experts that the ranks could share; raise replicas"),
        (
            [*EXPERTS, "deployment.engine.name=tgi", "deployment.engine.version=3.0"],
            "has no data-parallel attention",
        ),
        ([*EXPERTS, "deployment.pipeline_parallel_size=2"], "must be 1 with pipeline stages"),
        ([*EXPERTS, "deployment.engine.kv_allocation=static"], "needs continuous batching and paged"),
    ],
)
def test_data_parallel_attention_needs_experts_and_a_scheduler_for_it(overrides: list[str], message: str) -> None:
    """What it has no meaning for is refused, with what would have one."""
    with pytest.raises(InputError, match=message):
        resolve(make_scenario(overrides))


def test_ranks_of_data_parallel_attention_serve_together() -> None:
    """Two groups of two GPUs; every request is served, and the parts of the steps add up to their time."""
    scenario = make_scenario([*EXPERTS, "deployment.tensor_parallel_size=2", "deployment.enable_expert_parallel=true"])

    result = run(scenario)

    assert resolve(scenario).num_gpus == 4
    assert result.summary["completed"] == 20
    parts = result.summary["simserve"]["steps"]["seconds_by_part"]
    assert sum(parts.values()) == pytest.approx(result.simulation.totals.busy_seconds, rel=1e-6)


def test_answers_of_ranks_are_streamed() -> None:
    """Every token of every rank is an event, and the network is in the time to the first one."""
    plain = run(make_scenario(EXPERTS)).summary
    streamed = run(make_scenario([*EXPERTS, "deployment.streaming={network_latency: 50 ms}"])).summary

    assert streamed["simserve"]["streaming"]["events"] == streamed["total_output_tokens"]
    assert streamed["mean_ttft_ms"] > plain["mean_ttft_ms"] + 49


def test_ranks_whose_prompts_wait_for_each_other_compute_them_in_fewer_steps() -> None:
    """TensorRT-LLM's balance: fewer steps hold prompts, so tokens come sooner once the first has come, late."""
    clients = {"process": "closed_loop", "concurrency": 32}
    lengths = {"distribution": "uniform", "min": 150, "max": 250}
    prompts = {"distribution": "fixed", "value": 4000}
    load = {"arrivals": clients, "prompt_tokens": prompts, "output_tokens": lengths, "num_requests": 96}
    ranks = [*EXPERTS, "deployment.data_parallel_size=4", "deployment.enable_expert_parallel=true"]
    plain, balanced = (run(make_scenario([*ranks, *more], workload=load)) for more in ([BALANCED[0]], BALANCED))

    assert balanced.summary["mean_ttft_ms"] > plain.summary["mean_ttft_ms"]
    assert balanced.summary["mean_tpot_ms"] < plain.summary["mean_tpot_ms"]
    assert balanced.summary["completed"] == plain.summary["completed"] == 96


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (BALANCED, "has no meaning without data_parallel_size above 1"),
        ([*EXPERTS, BALANCED[1]], "vllm 0.12 has no waiting of prompts"),
    ],
)
def test_prompts_wait_for_each_other_only_in_ranks_of_tensorrt_llm(overrides: list[str], rule: str) -> None:
    """On one rank, and under another engine, the knob is refused."""
    with pytest.raises(InputError, match=f"attention_dp_timeout_iters.*{rule}"):
        resolve(make_scenario(overrides))


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ([DELAYING], "has no meaning without data_parallel_size above 1"),
        ([*EXPERTS, "deployment.engine.enable_prefill_delayer=true"], "vllm 0.12 has no delay of prompts"),
        ([*EXPERTS, DELAYING, "deployment.engine.version=0.5.7"], "sglang 0.5.7 has no delay of prompts"),
        ([*EXPERTS, DELAYING, "deployment.engine.async_scheduling=false"], "needs async_scheduling"),
    ],
)
def test_prompts_are_delayed_only_in_ranks_of_sglang(overrides: list[str], rule: str) -> None:
    """From 0.5.8 on, with the overlapped schedule."""
    with pytest.raises(InputError, match=f"deployment.engine.enable_prefill_delayer.*{rule}"):
        resolve(make_scenario(overrides))


def test_a_conservative_schedule_expects_more_of_those_that_run() -> None:
    """SGLang's first estimate is 0.7 of max_tokens times that factor, at most all; the least is 0.14 of it."""
    found = []
    for factor in (0.5, 1, 2):
        name = f"deployment.engine={{name: sglang, version: '0.5.15', schedule_conservativeness: {factor}}}"
        engine = resolve(make_scenario([name])).engine
        found.append((engine.new_token_ratio_initial, engine.new_token_ratio_minimum))

    assert found == [pytest.approx((each, 0.14 * each)) for each in (0.35, 0.7, 1.0)]
    with pytest.raises(InputError, match=r"schedule_conservativeness.*needs .* admission estimate, not reserve"):
        resolve(make_scenario([name, "deployment.engine.admission=reserve"]))


def test_a_server_that_expects_less_runs_more_at_once() -> None:
    """Answers are a tenth of max_tokens: with a factor of 0.1 three times as many begin, and nobody is preempted."""
    load = {
        "arrivals": {"process": "all_at_once"},
        "num_requests": 120,
        "prompt_tokens": {"distribution": "fixed", "value": 500},
        "output_tokens": {"distribution": "fixed", "value": 100},
        "max_tokens": 1000,
    }
    seconds = []
    for factor in (0.1, 1):
        options = f"version: '0.5.15', schedule_conservativeness: {factor}, num_gpu_blocks_override: 40000"
        scenario = make_scenario([f"deployment.engine={{name: sglang, {options}}}"], workload=load)
        seconds.append(run(scenario, explain=False, accelerate="off", finishable=None).summary["mean_ttft_ms"])

    assert seconds[0] < 0.8 * seconds[1]


@pytest.mark.parametrize(
    ("model", "version", "milliseconds"),
    [
        ("qwen3-8b", "0.11.0", 12.0),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "0.11.0", 6.4),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "0.11.0", 6.4),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "0.11.0", 12.0),
        ("glm-4.5-air", "0.11.0", 10.8),
        ("glm-4.5-air", "0.11.1", 0.0),
    ],
)
def test_a_chat_waits_as_long_as_its_template_takes(model: str, version: str, milliseconds: float) -> None:
    """Of the API server's time for a request, what a chat takes longer; vLLM 0.11.0 parses its template each time."""
    place = [f"model={model}", "deployment.hardware=h200-sxm-141gb", "deployment.tensor_parallel_size=4"]
    seconds = [
        resolve(
            make_scenario([*place, f"deployment.engine={{version: '{version}', endpoint: {endpoint}}}"])
        ).shape.engine.frontend_seconds_per_request
        for endpoint in ("completions", "chat")
    ]

    assert seconds[1] - seconds[0] == pytest.approx(milliseconds * 1e-3)


def test_limits_of_a_delay_need_the_delay() -> None:
    """Neither of them turns it on."""
    engine = "deployment.engine={name: sglang, version: '0.5.15', prefill_delayer_max_delay_passes: 9}"

    with pytest.raises(InputError, match=r"prefill_delayer_max_delay_passes.*needs enable_prefill_delayer"):
        resolve(make_scenario([*EXPERTS, engine]))


def test_servers_that_only_decode_delay_nothing() -> None:
    """What they admit has been prefilled; those that prefill wait for each other."""
    shapes = {
        role: resolve(make_scenario([*EXPERTS, DELAYING]), role=role).engine for role in ("both", "prefill", "decode")
    }

    assert {role: each.prefill_delayer_max_delay_passes for role, each in shapes.items()} == {
        "both": 30,
        "prefill": 30,
        "decode": 0,
    }


def test_a_delay_of_prompts_follows_the_release() -> None:
    """30 steps unless told; for seats too from 0.5.10 on, which 0.5.17 bounds; 0.5.18 forgets batches."""
    found = [
        resolve(make_scenario([*EXPERTS, DELAYING, f"deployment.engine.version={version}"])).engine
        for version in ("0.5.9", "0.5.10", "0.5.17", "0.5.18", "0.5.23")
    ]

    assert [each.prefill_delayer_max_delay_passes for each in found] == [30] * 5
    assert [each.delays_for_seats for each in found] == [False, True, True, True, True]
    assert [each.bounds_prompt_delay for each in found] == [False, False, True, True, True]
    assert [each.forgets_batches for each in found] == [False, False, False, True, True]


def test_a_layer_partition_reaches_the_replica() -> None:
    """As written; an engine that cannot place layers refuses it."""
    deployment = {"hardware": "h100-sxm-80gb", "pipeline_parallel_size": 2, "pipeline_layer_partition": [10, 22]}
    scenario = make_scenario(model="llama-3.1-8b", deployment=deployment)

    assert resolve(scenario).shape.layers_per_stage == (10, 22)
    with pytest.raises(ScenarioError, match=r"pipeline_layer_partition.*tgi 3\.3 has no choice"):
        resolve(make_scenario(model="llama-3.1-8b", deployment={**deployment, "engine": {"name": "tgi"}}))


def test_operator_tables_lie_beside_the_scenario(tmp_path: Path) -> None:
    """A relative folder starts where the file is; one without tables is refused with its key."""
    mapping = scenario_mapping()
    mapping["deployment"]["operator_tables"] = "tables"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mapping), encoding="utf-8")
    (tmp_path / "tables").mkdir()

    with pytest.raises(SimserveError, match=r"deployment.operator_tables.*tables' holds none of gemm_perf.parquet"):
        resolve(load(str(tmp_path / "mine.yaml")))


def test_an_offline_run_has_no_server_that_holds_up_launches() -> None:
    """TensorRT-LLM and SGLang leave the GPU idle between layers of a prompt while they serve, not when all is there."""
    served, offline = (
        resolve(
            make_scenario(
                ["deployment.engine.name=tensorrt-llm", 'deployment.engine.version="1.0"', *more],
            )
        ).shape.engine.eager_gap_seconds_per_layer
        for more in ([], ["workload.arrivals={process: all_at_once}"])
    )

    assert served > 0
    assert offline == 0


@pytest.mark.parametrize(("version", "is_bound"), [("0.5.10", True), ("0.5.11", False)])
def test_kimi_s_tokeniser_bounds_what_sglang_sends(version: str, is_bound: bool) -> None:
    """One process takes 0.3 ms a token: 3,333 tokens/s, whatever eight B300 can do."""
    sent = run(
        from_mapping(
            {
                "name": "kimi",
                "model": "kimi-k2.5",
                "deployment": {
                    "hardware": "b300-sxm-270gb",
                    "tensor_parallel_size": 8,
                    "quantization": "nvfp4",
                    "engine": {"name": "sglang", "version": version},
                },
                "workload": {
                    "arrivals": {"process": "closed_loop", "concurrency": 128},
                    "num_requests": 256,
                    "prompt_tokens": 64,
                    "output_tokens": 128,
                },
                "run": {"warmup": "none"},
            }
        )
    ).summary["output_throughput"]

    assert (sent < 1.0 / 300e-6) == is_bound


def test_answers_that_are_not_streamed_cost_the_scheduler_less() -> None:
    """vLLM before V1 makes an output object a request and step for a stream, on the thread that schedules."""
    streamed, whole, offline = (
        resolve(
            make_scenario(["deployment.engine.name=vllm", 'deployment.engine.version="0.7.3"', *more])
        ).shape.engine.host_seconds_per_request
        for more in (
            [],
            ["deployment.streaming={stream: false}"],
            ["workload.arrivals={process: all_at_once}"],
        )
    )

    assert streamed - whole == pytest.approx(34e-6)
    assert offline == whole


def test_nodes_of_older_gpus_have_slower_cores_unless_told_otherwise() -> None:
    """1.4 times the host time on A100, from the hardware profile; `host_slowdown` says another node's."""
    seconds = [
        resolve(make_scenario([f"deployment.hardware={gpu}", *more])).shape.engine.host_seconds_per_step
        for gpu, more in (
            ("h100-sxm-80gb", []),
            ("a100-sxm-80gb", []),
            ("a100-sxm-80gb", ["deployment.engine.host_slowdown=1"]),
        )
    ]

    assert seconds[1] == pytest.approx(1.4 * seconds[0])
    assert seconds[2] == seconds[0]


def windowed_scenario(changes: dict[str, Any] | None = None, **engine: Any) -> Scenario:
    """Return gpt-oss-20b, half of whose layers see 128 tokens, under vLLM 0.21, with top-level keys replaced."""
    settings = {"name": "vllm", "version": "0.21", **engine}
    deployment = {"hardware": "h100-sxm-80gb", "quantization": "mxfp4", "engine": settings}
    return make_scenario(model="gpt-oss-20b", deployment=deployment, **(changes or {}))


def test_windows_reach_the_scheduler() -> None:
    """Blocks of the pool instead of blocks of tokens: two for each, and nine at most in layers with a window."""
    resolved = resolve(windowed_scenario())

    assert resolved.memory.windows is not None
    assert resolved.engine.num_blocks == resolved.memory.windows.num_blocks
    assert resolved.engine.num_blocks // 2 == resolved.memory.num_kv_blocks
    assert (resolved.engine.window_groups, resolved.engine.window_blocks) == (1, 9)
    assert resolved.shape.engine.sources["windowed_kv"].startswith("kept: 12 layers")


def test_a_second_tier_keeps_everything_where_connectors_do() -> None:
    """vLLM 0.21 turns windows off beside a KV connector, and says so."""
    workload = {**scenario_mapping()["workload"], "shared_prefix": {"num_groups": 2, "tokens": 50}}
    resolved = resolve(windowed_scenario({"workload": workload}, kv_offload={"size": "64 GiB"}))

    assert resolved.engine.window_blocks == 0
    assert resolved.shape.engine.sources["windowed_kv"] == "not kept: vllm 0.21 does not with kv_offload"


@pytest.mark.parametrize(("version", "is_kept"), [("0.21", False), ("0.33", True)])
def test_pools_that_hand_caches_over_keep_windows_from_0_24_on(version: str, is_kept: bool) -> None:
    """Both roles move caches through a connector."""
    scenario = windowed_scenario(version=version)
    pools = [{"name": role, "role": role} for role in ("prefill", "decode")]
    changed = {**scenario.deployment.model_dump(exclude_unset=True), "pools": pools, "disaggregation": {}}
    resolved = resolve(make_scenario(model="gpt-oss-20b", deployment=changed))

    assert [pool.engine.window_blocks > 0 for pool in resolved.pools] == [is_kept, is_kept]


def test_long_requests_share_the_room_that_windows_leave() -> None:
    """Gemma-3-27B on one GPU: with windows kept, prompts of 8,000 tokens are preempted less and wait less."""
    workload = {
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": {"distribution": "fixed", "value": 8000},
        "output_tokens": {"distribution": "fixed", "value": 50},
        "num_requests": 12,
    }

    def together(version: str) -> float:
        deployment = {
            "hardware": "h100-sxm-80gb",
            "engine": {"name": "vllm", "version": version, "max_model_len": 9000},
        }
        scenario = make_scenario(model="gemma-3-27b", deployment=deployment, workload=workload)
        return float(run(scenario).summary["duration"])

    assert together("0.10.2") < 0.95 * together("0.9")


@pytest.mark.parametrize(("engine", "overlaps"), [("tensorrt-llm", [False, True]), ("vllm", [True, True])])
def test_workers_that_only_prefill_overlap_where_the_engine_can(engine: str, overlaps: list[bool]) -> None:
    """TensorRT-LLM has no overlapped scheduler for them; a replica that does both has."""
    version = {"tensorrt-llm": "1.2", "vllm": "0.20"}[engine]
    asked = [f"deployment.engine={{name: {engine}, version: '{version}', max_model_len: 32768}}"]
    apart = resolve(load("disaggregation", asked))
    together = resolve(load("disaggregation", [*asked, "deployment.pools=[]", "deployment.disaggregation=null"]))

    assert [pool.shape.engine.async_scheduling for pool in apart.pools] == overlaps
    assert together.shape.engine.async_scheduling


@pytest.mark.parametrize(("version", "is_expected"), [("0.5.21", False), ("0.5.22", True)])
def test_sglang_expects_all_of_requests_that_ignore_the_end(version: str, is_expected: bool) -> None:
    """From 0.5.22 on; a workload that does not say so has answers that may end early, in every release."""
    engine = ["deployment.engine.name=sglang", f'deployment.engine.version="{version}"']
    ignoring = resolve(make_scenario([*engine, "workload.ignore_eos=true"])).engine
    plain = resolve(make_scenario(engine)).engine

    assert ignoring.expects_max_tokens is is_expected
    assert not plain.expects_max_tokens


@pytest.mark.parametrize(
    ("model", "version", "settings", "factor"),
    [
        ("llama-3.1-70b", "0.4.6", {}, 1.0),
        ("llama-3.1-70b", "0.4.7", {}, 0.85),
        ("llama-3.1-70b", "0.5.23", {}, 0.85),
        ("llama-3.1-70b", "0.5.9", {"hardware": "h200-sxm-141gb"}, 1.0),
        ("llama-3.1-70b", "0.5.9", {"engine": {"max_model_len": 8192}}, 1.0),
        ("llama-3.1-70b", "0.5.9", {"engine": {"gpu_memory_utilization": 0.9}}, 0.85),
        ("deepseek-r1", "0.5.9", {}, 0.85),
        ("deepseek-r1", "0.5.9", {"tensor_parallel_size": 4}, 1.0),
        ("deepseek-r1", "0.5.9", {"tensor_parallel_size": 4, "engine": {"attention_backend": "aiter"}}, 0.85),
        ("deepseek-v3.2", "0.5.9", {}, 1.0),
        ("gpt-oss-120b", "0.5.9", {}, 1.0),
        ("gpt-oss-120b", "0.5.10", {}, 0.85),
    ],
)
def test_sglang_leaves_memory_for_attention_by_aiter(
    model: str, version: str, settings: dict[str, Any], factor: float
) -> None:
    """mem_fraction_static *= 0.85 above 8,192 tokens of context, whoever set it, where AITER's kernels run unasked."""
    usual = {"hardware": "mi300x-192gb", "tensor_parallel_size": 8, **settings}
    named = {"name": "sglang", "version": version}
    found, other = (
        resolve(make_scenario(model=model, deployment={**usual, "engine": {**named, **more}})).shape.engine
        for more in (settings.get("engine", {}), {**settings.get("engine", {}), "attention_backend": "triton"})
    )

    assert found.gpu_memory_utilization == pytest.approx(factor * other.gpu_memory_utilization)


@pytest.mark.parametrize(
    ("model", "version", "share"),
    [
        ("kimi-k2.5", "0.5.9", 0.8260405859375),
        ("qwen2.5-vl-72b", "0.4.9", 0.9),
        ("qwen2.5-vl-72b", "0.5.9", 0.95 * (1 - 0.1 * (1280**2 / 1024**2 - 1))),
    ],
)
def test_sglang_leaves_a_vision_tower_a_part_of_its_own_share(model: str, version: str, share: float) -> None:
    """An MI355X of Kimi-K2.5 prints 0.8260405859375 of 0.908; a share that somebody set stays."""
    gpus = {"hardware": "mi355x-288gb", "tensor_parallel_size": 8}
    engine = {"name": "sglang", "version": version}
    if model != "kimi-k2.5":  # whose eight heads a rank run on Triton anyway
        engine["attention_backend"] = "triton"
    text = {"kimi-k2.5": "kimi-k2", "qwen2.5-vl-72b": "llama-3.1-70b"}[model]
    found, of_text, asked = (
        resolve(make_scenario(model=name, deployment={**gpus, "engine": {**engine, **more}})).shape.engine
        for name, more in ((model, {}), (text, {}), (model, {"gpu_memory_utilization": 0.8}))
    )

    expected = share if model == "kimi-k2.5" else of_text.gpu_memory_utilization * share
    assert found.gpu_memory_utilization == pytest.approx(expected, rel=1e-9)
    assert found.gpu_memory_utilization < of_text.gpu_memory_utilization
    assert found.sources["gpu_memory_utilization"].endswith("beside a vision tower")
    assert asked.gpu_memory_utilization == 0.8


@pytest.mark.parametrize(
    ("model", "gpu", "version", "tokens"),
    [
        ("deepseek-v2-lite", "h100-sxm-80gb", "0.10.2", 64),
        ("deepseek-v2-lite", "h100-sxm-80gb", "0.20", 16),
        ("deepseek-v2-lite", "a100-sxm-80gb", "0.10.2", 16),
        ("deepseek-v2-lite", "b200-sxm-180gb", "0.10.2", 128),
        ("deepseek-v2-lite", "b200-sxm-180gb", "0.33", 64),
        ("glm-5.3", "b200-sxm-180gb", "0.33", 64),
        ("llama-3.1-8b", "b200-sxm-180gb", "0.33", 16),
    ],
)
def test_attention_kernels_of_vllm_force_their_blocks(model: str, gpu: str, version: str, tokens: int) -> None:
    """Of latent attention by GPU and version; what the scenario says holds."""
    asked = [f"model={model}", f"deployment.hardware={gpu}", f"deployment.engine.version='{version}'"]
    asked += [f"deployment.tensor_parallel_size={8 if model == 'glm-5.3' else 1}"]

    assert resolve(make_scenario(asked)).engine.block_size == tokens
    assert resolve(make_scenario([*asked, "deployment.engine.block_size=32"])).engine.block_size == 32


def workload(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """Return closed-loop traffic of one client and fixed lengths."""
    return {
        "arrivals": {"process": "closed_loop", "concurrency": 1},
        "prompt_tokens": prompt,
        "output_tokens": output,
        "num_requests": 4,
        **more,
    }


def test_contexts_of_fixed_lengths_lie_in_the_answer() -> None:
    """Half of the steps of an answer of 400 tokens are in its first half, at 1,100 tokens in the mean."""
    found = decode_contexts(make_scenario(workload=workload(1000, 400)).workload, None)

    assert found == (1100.0,) * 8 + (1300.0,) * 8


def test_contexts_are_those_of_the_file_in_this_folder(tmp_path: Path) -> None:
    """Scenarios of two folders name the same file, each its own."""
    found = []
    for name, tokens in (("a", 100), ("b", 900)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lengths.txt").write_text(f"{tokens}\n", encoding="utf-8")
        lengths = {"distribution": "empirical", "path": "lengths.txt"}
        spec = make_scenario(workload=workload(1, 400) | {"prompt_tokens": lengths}).workload
        found.append(decode_contexts(spec, tmp_path / name))

    assert found == [(200.0,) * 8 + (400.0,) * 8, (1000.0,) * 8 + (1200.0,) * 8]


def test_contexts_do_not_depend_on_the_length_of_the_run() -> None:
    """A deployment has the same step times whatever num_requests, the rate and the seed say."""
    lengths = {"distribution": "lognormal", "mean": 800, "cv": 1.0, "max": 8000}
    changes = ([], ["workload.num_requests=700"], ["run.seed=9"], ["workload.arrivals.concurrency=8"])
    found = {
        decode_contexts(make_scenario(each, workload=workload(1, 100) | {"prompt_tokens": lengths}).workload, None)
        for each in changes
    }

    assert len(found) == 1
    assert np.mean(found.pop()) == pytest.approx(850, rel=0.1)


def test_long_answers_count_for_more_steps() -> None:
    """One request in two answers with 1,900 tokens instead of 100: 19 of 20 steps are its."""
    classes = [
        {"name": "short", "share": 0.5, "prompt_tokens": 100, "output_tokens": 100},
        {"name": "long", "share": 0.5, "prompt_tokens": 5000, "output_tokens": 1900},
    ]
    mixed = {"arrivals": {"process": "poisson", "rate": 2.0}, "classes": classes, "num_requests": 50}
    found = decode_contexts(make_scenario(workload=mixed).workload, None)

    assert found is not None
    assert sum(each > 5000 for each in found) == 15


def test_a_window_far_behind_costs_the_window_alone() -> None:
    """Gemma-3 at 50,000 tokens: one more key is read in 10 of 62 layers; without traffic, by a quarter of the rest."""
    shape = resolve(make_scenario(model="gemma-3-27b", workload=workload(50_000, 64))).shape
    known, unknown = (price(each).step_times.decode_slope[1] for each in (shape, replace(shape, contexts=None)))

    assert shape.model.attention_layers[0].num_sliding_layers == 52
    assert unknown / known == pytest.approx((10 + 52 / 4) / 10)


def test_compiled_engines_attend_to_everything() -> None:
    """TensorRT-LLM before its PyTorch backend: a window only from who sets one."""

    def contexts(version: str) -> object:
        engine = {"name": "tensorrt-llm", "version": version, "max_model_len": 8192}
        changed = [f"deployment.engine={engine}", "model=mistral-7b"]
        return resolve(make_scenario(changed, workload=workload(6000, 64))).shape.contexts

    assert contexts("0.20") is None
    assert contexts("1.0") is not None


def test_models_without_such_a_window_keep_their_price() -> None:
    """Nothing is drawn for a model that sees everything, nor for gpt-oss, whose window of 128 is always full."""
    for model in ("llama-3.2-1b", "gpt-oss-20b"):
        assert resolve(make_scenario(model=model, workload=workload(1000, 64))).shape.contexts is None


def test_gpus_share_no_layer_under_ollama() -> None:
    """It spreads layers; the stages that stand for that are named."""
    deployment = {"hardware": "rtx-4090-24gb", "quantization": "gguf-q4_k_m", "engine": {"name": "ollama"}}
    model = "llama-3.3-70b"

    with pytest.raises(ScenarioError, match=r"tensor_parallel_size: 2 must be 1: .* set pipeline_parallel_size to 2"):
        resolve(make_scenario(model=model, deployment={**deployment, "tensor_parallel_size": 2}))
    assert resolve(make_scenario(model=model, deployment={**deployment, "pipeline_parallel_size": 2})).memory.fits


@pytest.mark.parametrize(
    ("model", "version", "options", "expected"),
    [
        ("gpt-oss-20b", "b7000", "", (0, 0)),
        ("gpt-oss-20b", "b7100", "", (64, 64)),
        ("gpt-oss-20b", "b8000", "", (512, 512)),
        ("gpt-oss-20b", "b9600", "", (516, 4)),
        ("gpt-oss-20b", "b9600", ", max_num_batched_tokens: 256", (256, 4)),
        ("qwen3.5-35b-a3b", "b9600", "", (516, 4)),
        ("llama-3.1-8b", "b9600", "", (0, 0)),
    ],
)
def test_llama_cpp_ends_chunks_at_checkpoints_of_caches_that_cannot_be_cut(
    model: str, version: str, options: str, expected: tuple[int, int]
) -> None:
    """Windows and states alone, where its server has ``checkpoint_offsets``, at most --batch-size before the end."""
    engine = f"engine={{name: llama.cpp, version: {version}, max_num_seqs: 4, max_model_len: 8192{options}}}"
    config = resolve(make_scenario([f"model={model}", "deployment.hardware=gb10-128gb", f"deployment.{engine}"])).engine

    assert (config.checkpoint_tokens, config.last_checkpoint_tokens) == expected


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("", None),
        ("workload.shared_prefix={num_groups: 1, tokens: 200}", True),
        ("workload.shared_prefix={num_groups: 1, tokens: 10}", None),
        ("workload.shared_prefix={num_groups: 4, tokens: 200}", None),
    ],
)
def test_requests_with_one_system_prompt_take_each_others_slots(workload: str, expected: bool | None) -> None:
    """Where it is more than a tenth of a prompt (llama.cpp, --slot-prompt-similarity)."""
    engine = "deployment.engine={name: llama.cpp, max_num_seqs: 8, max_model_len: 4096}"
    options = [
        engine,
        "workload.prompt_tokens=500",
        "deployment.hardware=rtx-4090-24gb",
        *([workload] if workload else []),
    ]

    assert resolve(make_scenario(options)).shape.engine.similar_prompts is expected


@pytest.mark.parametrize(
    ("engine", "workload", "expected"),
    [
        ("llama.cpp", "output_tokens=256", True),
        ("llama.cpp", "output_tokens={distribution: uniform, min: 255, max: 256}", False),
        ("vllm", "output_tokens=256", False),
    ],
)
def test_answers_of_one_length_leave_slots_in_order(engine: str, workload: str, expected: bool) -> None:
    """Where the engine has slots."""
    options = [f"deployment.engine={{name: {engine}, max_num_seqs: 8, max_model_len: 4096}}", f"workload.{workload}"]
    resolved = resolve(make_scenario([*options, "deployment.hardware=rtx-4090-24gb"]))

    assert resolved.shape.engine.equal_answers is expected


@pytest.mark.parametrize(
    ("engine", "version", "stages", "overlaps", "keeps", "in_turn"),
    [
        ("vllm", "0.6.2", 2, False, False, False),  # engine V0
        ("vllm", "0.11", 2, True, True, False),
        ("vllm", "0.11", 1, False, False, False),
        ("vllm", "0.16", 2, False, False, True),  # scheduled ahead: all wait for what the last stage samples
        ("vllm", "0.24", 2, True, False, True),
        ("vllm", "0.29", 2, True, False, False),  # the second model runner
        ("sglang", "0.5.10", 2, True, True, False),
        ("tensorrt-llm", "1.0", 2, False, False, False),
    ],
)
def test_what_stages_have_in_flight_is_the_releases_choice(
    engine: str, version: str, stages: int, overlaps: bool, keeps: bool, in_turn: bool
) -> None:
    """Overlapping chunks, kept micro-batches, or one at a time; and a prompt then has as many micro-batches a step."""
    deployment = {"hardware": "h100-sxm-80gb", "pipeline_parallel_size": stages}
    deployment |= {
        "engine": {"name": engine, "version": version, "max_num_batched_tokens": 2048, "max_model_len": 2048}
    }
    config = resolve(make_scenario(model="mixtral-8x7b", deployment=deployment)).engine

    assert (config.overlaps_chunks, config.keeps_micro_batches, config.samples_in_turn) == (overlaps, keeps, in_turn)
    assert config.max_chunk_tokens == 2048 * (stages if overlaps else 1)


def test_without_scheduling_ahead_stages_keep_their_micro_batches() -> None:
    """vLLM 0.24 with `async_scheduling: false`."""
    engine = {"name": "vllm", "version": "0.24", "async_scheduling": False}
    deployment = {"hardware": "h100-sxm-80gb", "pipeline_parallel_size": 2, "engine": engine}
    config = resolve(make_scenario(model="mixtral-8x7b", deployment=deployment)).engine

    assert (config.keeps_micro_batches, config.samples_in_turn) == (True, False)
