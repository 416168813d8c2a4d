"""Windowed KV: groups and pools by hand, and what engines said when they started."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import simserve as ss
from simserve.perf.kv_layout import WindowLayout, window_layout, with_windowed_kv
from simserve.perf.memory import plan_memory, plan_with_room
from simserve.perf.shape import ReplicaShape
from simserve.profiles.engine import load_engine
from simserve.scenario.resolve import resolve
from simserve.units import GIB
from tests.perf.shapes import make_hardware, make_model, make_shape


def windowed(
    model: str = "gpt-oss-120b",
    engine: str = "vllm",
    version: str = "0.12",
    connector: str | None = None,
    quantization: str = "mxfp4",
    **rest: Any,
) -> ReplicaShape:
    """Return a deployment that keeps windows as that version does."""
    shape = make_shape(
        model=rest.pop("profile", model), engine=engine, version=version, quantization=quantization, **rest
    )
    return with_windowed_kv(shape, load_engine(engine).windows_of(version), connector)


def laid_out(shape: ReplicaShape, kv_bytes: float = 10 * GIB) -> WindowLayout:
    """Return the layout of so many bytes."""
    layout = window_layout(shape, kv_bytes, 0.0)
    assert layout is not None
    return layout


def test_gpt_oss_makes_two_groups_of_eighteen_layers() -> None:
    """18 layers x 2,048 B x 16 tokens is a block; tokens that all layers hold cost 73,728 B, as vLLM counts them."""
    layout = laid_out(windowed(), 10 * GIB)

    assert (layout.full_groups, layout.window_groups) == (1, 1)
    assert layout.num_blocks == 10 * GIB // 589_824
    assert layout.num_full_context_blocks == layout.num_blocks // 2
    # 128 tokens lie across 9 blocks of 16 at most.
    assert layout.window_blocks == 9


@pytest.mark.parametrize(
    ("model", "full_bytes", "window_bytes", "layers", "groups"),
    [
        # 5 layers of 2 heads of 512 and 25 of 8 of 256: 5 groups of 5 with a window, each two blocks
        ("gemma-4-26b-a4b", 2 * 2 * 512 * 2, 2 * 8 * 256 * 2, 5, 10),
        # 9 layers of 4 heads and 39 of 8, keys of 192 and values of 128: 5 groups of 9, each two blocks
        ("mimo-v2-flash", 4 * 320 * 2, 8 * 320 * 2, 9, 10),
    ],
)
def test_wider_heads_of_a_window_take_several_blocks(
    model: str, full_bytes: int, window_bytes: int, layers: int, groups: int
) -> None:
    """A block of the pool is one of the layers that see everything; those of a window are twice as long."""
    layout = laid_out(windowed(model, quantization="none"))

    assert window_bytes == 2 * full_bytes
    assert (layout.full_groups, layout.window_groups) == (1, groups)
    assert layout.num_blocks == int(10 * GIB // (layers * full_bytes * 16))


def test_two_pools_have_the_bytes_of_their_own_heads() -> None:
    """SGLang: 9 layers of 2,560 B a token and 0.8 x 39 of 5,120 for MiMo-V2-Flash."""
    layout = laid_out(windowed("mimo-v2-flash", "sglang", "0.5.9", quantization="none"))
    block = make_shape(model="mimo-v2-flash", engine="sglang", version="0.5.9", quantization="none").engine.block_size

    assert layout.num_blocks == int(10 * GIB // ((9 * 2560 + 0.8 * 39 * 5120) * block))


def test_full_length_is_reckoned_as_vllm_does() -> None:
    """8,192 blocks of the layers that see all, and 127 + 8,192 tokens in blocks and one more of the others."""
    layout = laid_out(windowed(max_num_batched_tokens=8192))

    assert layout.max_concurrent_full_length == layout.num_blocks / (8192 + 521)
    assert layout.longest_blocks(10**6) == layout.num_blocks - 521


def test_the_newest_check_counts_the_step_ahead() -> None:
    """From 0.33 on, with asynchronous scheduling, two budgets are in flight."""
    layout = laid_out(windowed(version="0.33", max_num_batched_tokens=8192))

    assert layout.max_concurrent_full_length == layout.num_blocks / (8192 + 1033)


def test_gemma_pads_its_layers_to_seven_groups() -> None:
    """10 layers see everything and 52 have a window: one group and six, 70 layers with the padding."""
    layout = laid_out(windowed("gemma-3-27b", quantization="none"))

    assert (layout.full_groups, layout.window_groups) == (1, 6)
    assert layout.num_blocks == 10 * GIB // (10 * 8192 * 16)
    assert layout.window_blocks == 65


@pytest.mark.parametrize(("version", "size", "groups"), [("0.10.2", 13, (1, 2)), ("0.12", 20, (1, 1))])
def test_nearly_equal_kinds_are_padded_from_0_12_on(version: str, size: int, groups: tuple[int, int]) -> None:
    """13 and 20 layers stay 13 each; 17 and 20 become 20 and 20 where padding costs less than a group."""
    full = 13 if version == "0.10.2" else 17
    profile = make_model("gpt-oss-20b", num_hidden_layers=full + 20, num_sliding_layers=20)
    layout = laid_out(windowed(profile=profile, version=version))

    assert (layout.full_groups, layout.window_groups) == groups
    assert layout.num_blocks == 10 * GIB // (size * 2048 * 16)


def test_several_groups_that_see_everything_share_a_block() -> None:
    """30 layers see everything and 10 have a window: blocks of 30 layers, and a window is charged as much."""
    profile = make_model("gpt-oss-20b", num_hidden_layers=40, num_sliding_layers=10)
    layout = laid_out(windowed(profile=profile))

    assert (layout.full_groups, layout.window_groups) == (1, 1)
    assert layout.num_blocks == 10 * GIB // (30 * 2048 * 16)


def test_a_model_whose_layers_all_have_the_window_is_never_too_long() -> None:
    """Mistral 7B holds 4,096 tokens of any request; with a prefix cache it is charged everything."""
    shape = windowed("mistral-7b", quantization="none", enable_prefix_caching=False)
    layout = laid_out(shape, 2 * GIB)

    assert (layout.full_groups, layout.window_groups) == (0, 1)
    assert layout.longest_blocks(2048) == 2048
    assert windowed("mistral-7b", quantization="none").windowed_kv is None


def test_sglang_splits_memory_in_two_pools() -> None:
    """Full tokens x (18 + 0.8 x 18) layers; the pool of the windows has 0.8 tokens for each, and 256 a request."""
    layout = laid_out(windowed(engine="sglang", version="0.5.9"))

    assert layout.num_blocks == int(10 * GIB // (2048 * 18 * 1.8))
    assert layout.num_window_blocks == int(0.8 * layout.num_blocks)
    assert (layout.full_groups, layout.window_groups, layout.window_blocks) == (1, 0, 256)


def test_the_ratio_of_sglangs_pools_can_be_set() -> None:
    """Full tokens x (18 + 0.1 x 18) layers: 1.64 times the tokens, an eighth as many of them in the other pool."""
    layout = laid_out(windowed(engine="sglang", version="0.5.9", swa_full_tokens_ratio=0.1))

    assert layout.num_blocks == int(10 * GIB // (2048 * 18 * 1.1))
    assert layout.num_window_blocks == int(0.1 * layout.num_blocks)


def test_the_newest_pools_are_sized_by_seats_that_are_set() -> None:
    """32 x (128 + 128 + 2) + 2 x 4,096 + 1 tokens of 18 layers with a window; what is left goes to the 18 others."""
    told = {"engine": "sglang", "enable_prefix_caching": False, "max_num_batched_tokens": 4096}
    layout = laid_out(windowed(version="0.5.22", max_num_seqs=32, **told))

    assert layout.num_window_blocks == 32 * 258 + 2 * 4096 + 1
    assert layout.num_blocks == int((10 * GIB - layout.num_window_blocks * 18 * 2048) // (18 * 2048))


@pytest.mark.parametrize(
    "more",
    [
        {"version": "0.5.21", "max_num_seqs": 32, "enable_prefix_caching": False},
        {"version": "0.5.22", "enable_prefix_caching": False},
        {"version": "0.5.22", "max_num_seqs": 32},
        {"version": "0.5.22", "max_num_seqs": 32, "enable_prefix_caching": False, "enable_chunked_prefill": False},
    ],
)
def test_other_pools_have_their_ratio(more: dict[str, Any]) -> None:
    """Before 0.5.22, with a prefix cache, with seats that nobody set and with whole prompts."""
    layout = laid_out(windowed(engine="sglang", **more))

    assert layout.num_window_blocks == int(0.8 * layout.num_blocks)


def test_a_model_of_windows_alone_has_no_pool_by_seats() -> None:
    """There is no other pool to give the rest to."""
    rules = {"engine": "sglang", "version": "0.5.22", "max_num_seqs": 32, "enable_prefix_caching": False}
    profile = make_model("gpt-oss-20b", num_sliding_layers=24)
    layout = laid_out(windowed("gpt-oss-20b", profile=profile, **rules))

    assert layout.num_window_blocks == int(0.8 * layout.num_blocks)


def test_pools_of_one_size_hold_what_sglang_logs() -> None:
    """MiMo-V2-Flash over four ranks: 77.63 GiB are 1,496,958 tokens in either pool (SGLang pull request 15464)."""
    shape = windowed(
        "mimo-v2-flash", "sglang", "0.5.9", quantization="none", tensor_parallel_size=4, swa_full_tokens_ratio=1.0
    )
    layout = laid_out(shape, 77.63 * GIB)

    tokens = layout.num_blocks * shape.engine.block_size
    assert tokens == pytest.approx(1_496_958, rel=2e-4)
    assert layout.num_window_blocks == layout.num_blocks


def test_one_release_counts_the_windows_of_mimo_twice() -> None:
    """0.5.8: 48 layers of 320 B and 39 of 640 B more, of which pools of 9 and 0.8 x 39 layers are made (SGLang 18039).

    Its log: 375,360 and 300,288 tokens in 8.38 + 5.59 GiB of windows.
    """
    shape = windowed("mimo-v2-flash", "sglang", "0.5.8", quantization="none", tensor_parallel_size=4)
    layout, later = laid_out(shape), laid_out(windowed("mimo-v2-flash", "sglang", "0.5.9", tensor_parallel_size=4))

    full, of_window = 320 * 2, 2 * 320 * 2
    assert layout.num_blocks == int(10 * GIB // ((48 * full + 39 * of_window) * (9 + 0.8 * 39) / 48))
    assert layout.num_blocks < 0.7 * later.num_blocks
    assert 300_288 * 39 * of_window == pytest.approx((8.38 + 5.59) * GIB, rel=1e-3)


def test_drafts_count_as_layers_that_see_everything() -> None:
    """An EAGLE layer beside 12 + 12: 13 and 12, padded to two groups of 13 (vLLM's own example)."""
    layout = window_layout(windowed("gpt-oss-20b"), 10 * GIB, 2048.0)

    assert layout is not None
    assert layout.num_blocks == 10 * GIB // (13 * 2048 * 16)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"version": "0.8.5", "quantization": "none"}, "keeps every token"),
        ({"engine": "tensorrt-llm", "version": "1.2"}, "keeps every token"),
        ({"engine": "sglang", "version": "0.5.4"}, "keeps every token"),
        (
            {"engine": "sglang", "version": "0.5.9", "model": "gemma-3-27b", "quantization": "none"},
            "gemma3_text models",
        ),
        ({"engine": "sglang", "version": "0.5.9", "hardware": "b200-sxm-180gb"}, "compute capability 10.0"),
        ({"model": "llama-4-scout", "quantization": "none"}, "llama4_text models"),
        ({"connector": "a KV connector between pools"}, "a KV connector between pools"),
        ({"engine_fields": {"plugin": "tpu-inference"}}, "tpu-inference"),
        ({"disable_hybrid_kv_cache_manager": True}, "vllm 0.12 is told not to"),
        ({"engine": "sglang", "version": "0.5.9", "disable_hybrid_kv_cache_manager": True}, "is told not to"),
        ({"admission": "reserve"}, "taken on demand"),
        ({"preemption_mode": "swap"}, "held whole"),
    ],
)
def test_where_everything_is_kept_the_engine_says_why(what: dict[str, Any], reason: str) -> None:
    """Version, family, GPU, connector or setting: the layout is as without windows, and the source names it."""
    shape = windowed(**what)

    assert shape.windowed_kv is None
    assert shape.engine.sources["windowed_kv"].startswith("not kept: ")
    assert reason in shape.engine.sources["windowed_kv"]
    assert plan_memory(shape).windows is None


def test_connectors_keep_windows_from_0_24_on() -> None:
    """vLLM's connectors keep the hybrid manager on since."""
    assert windowed(version="0.24", connector="a KV connector between pools").windowed_kv is not None


def test_models_without_a_window_say_nothing() -> None:
    """Llama has none: shape and sources are as they were."""
    shape = make_shape(version="0.12")

    assert with_windowed_kv(shape, load_engine("vllm").windows_of("0.12")) is shape


LOGS = [
    # model, share of the GPU, further settings, tokens logged or bytes / 73,728 B a token
    ("gpt-oss-120b", 0.95, {}, 3.33 * GIB / 73_728, "llm-d-planner, empirical vLLM memory results, vLLM 0.11, H100"),
]


@pytest.mark.parametrize(("model", "share", "settings", "tokens", "source"), LOGS)
def test_kv_tokens_are_those_of_start_up_logs(
    model: str, share: float, settings: dict[str, Any], tokens: float, source: str
) -> None:
    """Within 10 % of every log that could be found of one H100 with the weights as they are stored."""
    plan = plan_memory(windowed(model, gpu_memory_utilization=share, **settings))

    assert plan.num_kv_blocks * plan.block_size == pytest.approx(tokens, rel=0.1), source


def test_tokens_of_a_log_are_its_bytes_by_every_layer() -> None:
    """hf-mem issue 60: 5.38 GiB under vLLM are 78.4 thousand tokens of gpt-oss-120b."""
    layout = laid_out(windowed(), 5.38 * GIB)

    assert layout.num_full_context_blocks * 16 == pytest.approx(78_400, rel=0.01)


@pytest.mark.parametrize(
    ("version", "settings"),
    [("0.10.2", {}), ("0.11", {"gpu_memory_utilization": 0.95, "max_num_batched_tokens": 1024})],
)
def test_servers_that_did_not_start_do_not_fit(version: str, settings: dict[str, Any]) -> None:
    """vLLM issues 23278 (0.10.1, defaults: no KV at all) and 27508 (0.11.0: 1.71 GiB) of gpt-oss-120b on one H100."""
    plan = plan_memory(windowed(version=version, **settings))

    assert not plan.fits


def test_the_full_context_of_gpt_oss_fits_where_windows_are_kept() -> None:
    """On one H200; and on an H100 that leaves 5.5 GiB, where charging every layer in full would need 9 GiB."""
    assert plan_memory(windowed(hardware="h200-sxm-141gb", version="0.21")).fits

    shape = windowed(version="0.21", gpu_memory_utilization=0.94)
    plan = plan_memory(shape)
    assert plan.fits
    assert plan.kv_bytes < 131_072 * 73_728
    assert not plan_memory(dataclasses.replace(shape, windowed_kv=None)).fits


def test_sglang_cuts_the_context_to_what_its_pools_hold() -> None:
    """The longest request is what the pool of the layers that see everything holds."""
    plan = plan_with_room(
        windowed(engine="sglang", version="0.5.9"),
        lambda length: windowed(engine="sglang", version="0.5.9", max_model_len=length),
    )

    assert plan.windows is not None
    assert plan.fits
    assert plan.max_model_len == plan.windows.num_blocks


def test_pipeline_stages_split_both_kinds() -> None:
    """Half of 18 and 18 layers on each of two GPUs."""
    layout = laid_out(windowed(pipeline_parallel_size=2))

    assert layout.num_blocks == 10 * GIB // (9 * 2048 * 16)


def test_lines_say_what_a_block_is() -> None:
    """A person can divide bytes by layers, bytes and tokens, and sees what a window holds."""
    lines = plan_memory(windowed(hardware=make_hardware("h200-sxm-141gb"))).arithmetic

    assert any("18 layers x 2,048 B a token x 16 tokens a block" in line for line in lines)
    assert any("at most 9 each, 521 while its prompt is computed" in line for line in lines)


def slots(model: str, version: str, **rest: Any) -> ReplicaShape:
    """Return a deployment of llama.cpp, whose KV is static."""
    return windowed(model, "llama.cpp", version, quantization="none", hardware="h100-sxm-80gb", **rest)


@pytest.mark.parametrize(
    ("model", "options", "cells", "mebibytes", "bytes_a_token"),
    [
        # Start-up logs: 18.00 MiB of 768 cells in 12 layers, 3,072 MiB of 131,072 in the others; 765.00 MiB in Q8_0,
        # 8.5 bits, of 4,608 cells in 40 layers, 68.00 MiB of 8,192 in the others
        ("gpt-oss-20b", {"max_num_seqs": 1, "max_model_len": 131072}, 768, 18.0, 24_576.0),
        (
            "gemma-4-12b",
            {"kv_unified": True, "max_num_seqs": 4, "max_model_len": 8192},
            4608,
            765.0 * 16 / 8.5,
            16_384.0,
        ),
        ("gpt-oss-20b", {"kv_unified": False, "max_num_seqs": 4, "max_model_len": 4096}, 4 * 768, 4 * 18.0, 24_576.0),
    ],
)
def test_slots_hold_windows_and_a_micro_batch(
    model: str, options: dict[str, Any], cells: int, mebibytes: float, bytes_a_token: float
) -> None:
    """Of one buffer once a micro-batch; the rest is for layers that see everything."""
    layout = laid_out(slots(model, "b8637", **options))

    assert layout.lines[0].startswith(f"windows: {cells:,} tokens of {options['max_num_seqs']} slots, ")
    fitting = int((10 * GIB - mebibytes * 2**20) // bytes_a_token)
    assert layout.num_blocks == (options["max_model_len"] if options.get("kv_unified") else fitting)
    assert (layout.full_groups, layout.window_groups) == (1, 0)


def test_a_long_context_of_gpt_oss_fits_a_card_of_16_gb_under_llama_cpp() -> None:
    """12 of its 24 layers keep 98,304 tokens; builds before May 2025 kept them in all."""
    options: dict[str, Any] = {"max_num_seqs": 1, "max_model_len": 98_304, "hardware": "rtx-5060-ti-16gb"}
    kept = windowed("gpt-oss-20b", "llama.cpp", "b8000", **options)
    whole = dataclasses.replace(kept, windowed_kv=None)

    assert plan_memory(kept).fits
    assert not plan_memory(whole).fits
    assert load_engine("llama.cpp").windows_of("b5000") is None


def test_llama_cpp_keeps_everything_of_models_without_windows_of_its_own() -> None:
    """Mistral 7B's window is not in its files."""
    assert slots("mistral-7b", "b8000").windowed_kv is None


@pytest.mark.parametrize(
    "model", ["mellum2-12b-a2.5b", "laguna-xs-2.1", "muse-glimmer-30b", "trinity-mini-26b", "step-3.5-flash"]
)
def test_later_builds_keep_windows_of_more_families(model: str) -> None:
    """One slot of 8,192 tokens: window and micro-batch, rounded up to 256."""
    later = slots(model, "b11549", max_num_seqs=1, max_model_len=8192)
    cells = -(-(later.model.sliding_window + 512) // 256) * 256

    assert laid_out(later).lines[0].startswith(f"windows: {cells:,} tokens of 1 slots, ")
    assert slots(model, "b8000", max_num_seqs=1, max_model_len=8192).windowed_kv is None


def test_kinds_that_differ_by_a_quarter_are_not_padded() -> None:
    """vLLM pads below 1.25 times the fewer (``max < min * 1.25``): 16 and 20 layers stay 16 each."""
    profile = make_model("gpt-oss-20b", num_hidden_layers=36, num_sliding_layers=20)
    layout = laid_out(windowed(profile=profile))

    assert (layout.full_groups, layout.window_groups) == (1, 2)
    assert layout.num_blocks == 10 * GIB // (16 * 2048 * 16)


def test_the_longest_request_of_a_small_pool_has_not_filled_its_window() -> None:
    """A block of tokens takes two of 15 blocks until the window of 10 is full: 7 fit, and of 25 blocks 15."""
    layout = dataclasses.replace(laid_out(windowed()), window_groups=1, peak_window_blocks=10)

    fits = [dataclasses.replace(layout, num_blocks=blocks).longest_blocks(100) for blocks in (15, 19, 20, 25)]
    counted = [max(n for n in range(100) if n + min(n, 10) <= blocks) for blocks in (15, 19, 20, 25)]
    assert fits == counted == [7, 9, 10, 15]


def test_the_scarcer_of_two_pools_bounds_the_requests_of_full_length() -> None:
    """SGLang: each holds 131,072 tokens in one pool and at most a window in the other; short ones run out of windows.

    A context of 128 tokens needs as many in either pool, and that of the windows has 0.8 of the other's.
    """
    long, short = (laid_out(windowed(engine="sglang", version="0.5.9", max_model_len=size)) for size in (131072, 128))

    assert long.max_concurrent_full_length == long.num_blocks / 131072
    assert short.max_concurrent_full_length == short.num_window_blocks / 128


@pytest.mark.parametrize("layers", [1, 2, 10])
def test_a_gpu_that_holds_only_layers_with_windows_holds_any_context(layers: int) -> None:
    """gpt-oss-20b under Ollama on 8 GB: with one layer on the GPU a division by zero ended every command."""
    card = {"engine": "ollama", "concurrency": 1, "prompt_tokens": 300, "output_tokens": 50, "num_requests": 2}
    held = ss.load("gpt-oss-20b", {"deployment.engine.num_gpu": layers}, gpus="RTX 3070", **card)

    assert ss.run(held).summary["completed"] == 2
    chosen = ss.load("gpt-oss-20b", gpus="RTX 3070", **card)
    assert resolve(chosen).shape.engine.num_gpu in range(10, 24)
    assert ss.run(chosen).summary["completed"] == 2
