"""Weights outside the GPU: what fits then, and what it costs by the physics of host memory and links."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from simserve.perf.memory import host_bytes, kv_bytes_per_token, plan_memory
from simserve.perf.offload import EXPERTS_LATENCY, HOST_MEMORY_SHARE, link_bandwidth, offload_notes, offload_parts
from simserve.perf.operators import COMMUNICATION
from simserve.perf.stage import stage_blocks, stage_of
from simserve.perf.tables import price
from simserve.profiles.hardware import HardwareProfile
from simserve.units import GIB
from tests.perf.shapes import make_hardware, make_model, make_shape

LLAMA_CPP: dict[str, Any] = {"hardware": "rtx-4090-24gb", "engine": "llama.cpp", "quantization": "gguf-q4_k_m"}
EXPERTS = {**LLAMA_CPP, "model": "qwen3-30b-a3b"}
"""48 layers of 128 experts, 8 a token, 3 x 2,048 x 768 weights each."""
VLLM: dict[str, Any] = {"hardware": "h100-sxm-80gb", "model": "llama-3.1-70b", "max_model_len": 4096}


def tokens_per_second(**deployment: Any) -> float:
    """Return the rate of one sequence of 300 tokens."""
    times = price(make_shape(**deployment), 256).step_times
    return 1 / (times.decode_base[1] + 300 * times.decode_slope[1])


def small_desktop(gigabytes_per_second: float) -> HardwareProfile:
    """Return a GPU of 16 GB and 448 GB/s in a host whose memory gives llama.cpp so much."""
    gpu = make_hardware("rtx-4090-24gb", memory={"total": 16e9, "bandwidth": 448e9})
    assert gpu.host is not None
    host = gpu.host.model_copy(update={"memory_bandwidth": gigabytes_per_second * 1e9 / HOST_MEMORY_SHARE})
    return gpu.model_copy(update={"host": host})


def test_a_model_that_does_not_fit_fits_with_layers_on_the_cpu() -> None:
    """70 B in Q4_K_M is 42 GB; 40 of 80 layers are half of that, and the host holds the rest with its KV."""
    whole, split = (plan_memory(make_shape(model="llama-3.1-70b", **LLAMA_CPP, **each)) for each in ({}, half_of_80()))

    assert not whole.fits
    assert split.fits
    assert split.weights_bytes == pytest.approx(0.51 * whole.weights_bytes, rel=0.02)
    assert split.host_bytes > 20e9
    assert any("in host memory" in line for line in split.arithmetic)


def half_of_80() -> dict[str, int]:
    """Return the knobs of half the layers on the GPU, and a context that leaves room."""
    return {"n_gpu_layers": 40, "max_num_seqs": 1, "max_model_len": 4096}


def test_layers_on_the_cpu_run_at_host_bandwidth() -> None:
    """Each takes its bytes over the bandwidth that host memory reaches, whatever the GPU does."""
    shapes = [make_shape(model="llama-3.1-8b", **LLAMA_CPP, n_gpu_layers=layers) for layers in (31, 30)]
    slower = price(shapes[1], 64).step_times.decode_base[1] - price(shapes[0], 64).step_times.decode_base[1]
    layer = 0.6 * 218.1e6  # 218 M weights a layer at 4.8 bit
    host = shapes[0].hardware.host_of_node

    on_cpu, on_gpu = layer / (host.memory_bandwidth * HOST_MEMORY_SHARE), layer / shapes[0].hardware.memory.bandwidth
    assert slower == pytest.approx(on_cpu - on_gpu, rel=0.1)


def test_a_published_sweep_of_gpu_layers_is_linear_in_the_layers() -> None:
    """Qwen2.5-Coder-14B Q4_K_M on an RTX 5060 Ti, -ngl 0 to 40 of 48 (inventivehq.com, VRAM offload cliff benchmark):
    with the one rate of that host, 24 GB/s, every point is within 8 %."""
    model = make_model("qwen2.5-32b", num_hidden_layers=48, intermediate_size=13824)
    published = {8: 3.58, 16: 4.24, 24: 5.61, 32: 7.26, 40: 12.5}

    for layers, rate in published.items():
        simulated = tokens_per_second(
            **{**LLAMA_CPP, "hardware": small_desktop(24.0)}, model=model, n_gpu_layers=layers
        )
        assert simulated == pytest.approx(rate, rel=0.08), layers


def test_vllm_streams_offloaded_weights_over_the_link_in_every_step() -> None:
    """20 GiB more take 20 GiB over the bandwidth of the link more, for one sequence as for many."""
    plain, offloaded = (price(make_shape(**VLLM, cpu_offload_gb=size), 64).step_times for size in (70, 90))
    seconds = 20 * GIB / link_bandwidth(make_shape(**VLLM, cpu_offload_gb=70))

    assert offloaded.decode_base[1] - plain.decode_base[1] == pytest.approx(seconds)
    assert offloaded.decode_base[64] - plain.decode_base[64] == pytest.approx(seconds)
    assert offloaded.token_seconds[64] - plain.token_seconds[64] == pytest.approx(seconds)


def test_offloaded_weights_make_room_for_the_kv_cache() -> None:
    """70 B in 16 bit on one H100: 141 GB; with 75 GiB in host memory it fits."""
    plans = [plan_memory(make_shape(**VLLM, cpu_offload_gb=size)) for size in (0, 75)]

    assert [plan.fits for plan in plans] == [False, True]
    assert plans[0].weights_bytes - plans[1].weights_bytes == 75 * GIB == plans[1].host_bytes


def test_a_published_offload_on_a_gh200_is_met() -> None:
    """Llama-3-70B in 16 bit under vLLM, weights above 0.8 of the GPU in host memory: 4.6 tok/s (vLLM pull request
    6317); that is some 60 GB."""
    rate = tokens_per_second(**{**VLLM, "hardware": "gh200-96gb"}, cpu_offload_gb=60e9 / GIB)

    assert rate == pytest.approx(4.6, rel=0.15)


def test_ranks_share_the_host() -> None:
    """Eight GPUs that read at once get an eighth of the host memory each, where that is less than their link."""
    one, eight = (link_bandwidth(make_shape(**VLLM, tensor_parallel_size=size)) for size in (1, 8))

    assert one == pytest.approx(0.8 * 64e9)
    assert eight == pytest.approx(HOST_MEMORY_SHARE * 614e9 / 8)


def test_seconds_never_fall_with_tokens_or_layers_on_the_cpu() -> None:
    """Also where prompts of 32 tokens are copied to the GPU rather than computed by the cores."""
    priced = [price(make_shape(model="llama-3.1-8b", **LLAMA_CPP, n_gpu_layers=layers), 512) for layers in (32, 20, 1)]
    times = [np.asarray(each.step_times.token_seconds) for each in priced]

    assert all(np.all(np.diff(each) >= 0) for each in times)
    assert np.all(times[1][1:] > times[0][1:])
    assert np.all(times[2][1:] > times[1][1:])


def test_host_memory_bounds_what_the_cpu_s_layers_cache() -> None:
    """Blocks of KV lie on both sides: a small host leaves fewer than the GPU could hold."""
    large = make_shape(model="llama-3.1-8b", **LLAMA_CPP, n_gpu_layers=8)
    assert large.hardware.host is not None
    small = large.hardware.model_copy(update={"host": large.hardware.host.model_copy(update={"memory_total": 8e9})})
    deployment = {**LLAMA_CPP, "hardware": small}

    plan = plan_memory(make_shape(model="llama-3.1-8b", **deployment, n_gpu_layers=8))

    assert 0 < plan.num_kv_blocks < plan_memory(large).num_kv_blocks
    assert plan.num_kv_blocks * 24 * 4096 < 8e9


def test_the_result_says_what_lies_outside_the_gpu() -> None:
    """Which layers or bytes, and at which bandwidth they are read."""
    assert any("12 of 32 layers run on the CPU" in note for note in _notes(**LLAMA_CPP, n_gpu_layers=20))
    assert any("the experts of 7 of 48 layers run on the CPU" in note for note in _notes(**EXPERTS, n_cpu_moe=7))
    assert any("cross a link of 64 GB/s" in note for note in _notes(**VLLM, cpu_offload_gb=10))
    assert offload_notes(make_shape(**LLAMA_CPP)) == ()


def _notes(**deployment: Any) -> tuple[str, ...]:
    return price(make_shape(**deployment), 64).notes


def test_llama_cpp_copies_a_layer_from_32_tokens_on() -> None:
    """GGML_OP_OFFLOAD_MIN_BATCH is 32, that number included: slow cores then wait for the link alone."""
    shape = make_shape(model="llama-3.1-8b", **LLAMA_CPP, n_gpu_layers=1)
    assert shape.hardware.host is not None
    host = shape.hardware.host.model_copy(update={"compute": 1e9})
    slow = dataclasses.replace(shape, hardware=shape.hardware.model_copy(update={"host": host}))
    before, since = offload_parts(stage_of(slow), np.array([31.0, 32.0])).sum(axis=0)

    assert since < before / 10


def test_activations_cross_the_link_there_and_back() -> None:
    """4,096 values of two bytes a token to the layers on the CPU, and as many from them."""
    stage = stage_of(make_shape(model="llama-3.1-8b", **LLAMA_CPP, n_gpu_layers=31))
    crossing = offload_parts(stage, np.array([1.0, 1000.0]))[COMMUNICATION]

    assert crossing * link_bandwidth(stage.shape) == pytest.approx([2 * 4096 * 2, 1000 * 2 * 4096 * 2])


def test_the_gpu_holds_the_keys_of_its_own_layers_alone() -> None:
    """Half of 32 layers of 4,096 B a token."""
    shape = make_shape(model="llama-3.1-8b", **LLAMA_CPP, n_gpu_layers=16)

    assert kv_bytes_per_token(shape) == 16 * 4096


def test_host_memory_holds_no_more_keys_than_slots_can_fill() -> None:
    """Two slots of 4,096 tokens, whatever the GPU would have room for."""
    shape = make_shape(model="llama-3.1-8b", **LLAMA_CPP, n_gpu_layers=16, max_num_seqs=2, max_model_len=4096)
    weights = host_bytes(shape, 0)

    assert host_bytes(shape, 10**9) - weights == pytest.approx(16 * 4096 * 2 * 4096)
    assert host_bytes(shape, 1000) - weights == pytest.approx(16 * 4096 * 1000)


def test_blocks_that_are_swapped_cross_the_link_whole() -> None:
    """16 tokens of 131,072 B over what copies reach of PCIe 5.0."""
    shape = make_shape(max_num_seqs=8)

    assert price(shape, 64).step_times.swap_block_seconds == pytest.approx(16 * 131072 / link_bandwidth(shape))


def test_experts_on_the_cpu_leave_the_gpu_all_else() -> None:
    """Weights of ten layers' 128 experts at 4.8 bits move to the host; every key stays on the GPU."""
    whole, split = (plan_memory(make_shape(**EXPERTS, **each)) for each in ({}, {"n_cpu_moe": 10}))
    precision = make_shape(**EXPERTS).precision
    moved = 10 * 128 * 3 * 2048 * 768 * precision.weight_bits / 8

    assert whole.weights_bytes - split.weights_bytes == pytest.approx(moved, rel=0.02)
    assert split.host_bytes == pytest.approx(whole.weights_bytes - split.weights_bytes)
    assert split.kv_bytes_per_token == whole.kv_bytes_per_token
    assert any("for experts on the CPU" in line for line in split.arithmetic)


def test_experts_on_the_cpu_are_read_at_host_bandwidth() -> None:
    """One token: eight experts a layer over what host memory reaches and a wait, in the place of the GPU's reading."""
    shapes = [make_shape(**EXPERTS, n_cpu_moe=layers) for layers in (20, 10)]
    slower = np.subtract(*(price(each, 64).step_times.decode_base[1] for each in shapes)) / 10
    num_bytes = 8 * 3 * 2048 * 768 * shapes[0].precision.weight_bits / 8
    host = num_bytes / (shapes[0].hardware.host_of_node.memory_bandwidth * HOST_MEMORY_SHARE)
    (experts,) = (
        each for each in stage_blocks(stage_of(shapes[0])) if [call.operator for call in each.calls] == ["experts"]
    )
    on_gpu = experts.seconds(stage_of(shapes[0]), np.array([1.0])).parts.sum()

    assert experts.count == 28
    assert slower == pytest.approx(host + EXPERTS_LATENCY - on_gpu, rel=0.02)


def test_first_layers_without_experts_have_none_to_leave() -> None:
    """DeepSeek-V3's first three are dense: of its first five, two leave their experts. Layers on the CPU leave none."""
    counts = [
        make_shape(**{**LLAMA_CPP, "model": "deepseek-v3"}, n_cpu_moe=layers).num_cpu_expert_layers
        for layers in (3, 5, 500)
    ]
    both = make_shape(**EXPERTS, n_cpu_moe=10, n_gpu_layers=45)

    assert counts == [0, 2, 58]
    assert (both.num_cpu_layers, both.num_cpu_expert_layers) == (3, 7)
    assert [each.count for each in stage_blocks(stage_of(both)) if each.calls[0].operator == "experts"] == [45 - 7]


def test_published_rates_with_experts_on_the_cpu_are_met() -> None:
    """Two rows of one machine with DDR5-6000, which the wait is fitted to (`EXPERTS_LATENCY`), and two machines that
    nothing is fitted to, taken to have DDR5: gpt-oss-120b with the experts of 26 layers on the CPU beside an RTX 3090,
    32.3 tokens/s (ai-maestro.online, llama-bench), and with all 36 beside a Core i9-14900K, 25.6 at 13,000 tokens
    (r/LocalLLaMA, August 2025)."""
    fitted = {**LLAMA_CPP, "hardware": _with_host("rtx-5070-ti-16gb", 96.0), "model": "qwen3.5-35b-a3b"}
    rtx_3090, rtx_4090 = (
        {"hardware": _with_host(gpu, 89.6), "engine": "llama.cpp", "quantization": "mxfp4", "model": "gpt-oss-120b"}
        for gpu in ("rtx-3090-24gb", "rtx-4090-24gb")
    )

    assert tokens_per_second(**fitted, n_cpu_moe=40) == pytest.approx(51, rel=0.05)
    assert tokens_per_second(**fitted, n_cpu_moe=20) == pytest.approx(79, rel=0.05)
    assert tokens_per_second(**rtx_3090, n_cpu_moe=26) == pytest.approx(32.3, rel=0.15)
    assert tokens_per_second(**rtx_4090, n_cpu_moe=36) == pytest.approx(25.6, rel=0.15)


def _with_host(name: str, gigabytes_per_second: float) -> HardwareProfile:
    gpu = make_hardware(name)
    assert gpu.host is not None
    host = gpu.host.model_copy(update={"memory_bandwidth": gigabytes_per_second * 1e9})
    return gpu.model_copy(update={"host": host})


def test_prompts_copy_the_experts_once_a_micro_batch() -> None:
    """Micro-batches of 2,048 tokens wait for a quarter of the copies of 512: three to four times the speed, where a
    published sweep of -ub has 2.9 and is said to be informal (gpt-oss-120b, RTX 3090, 25 layers)."""
    seconds = [
        price(
            make_shape(
                hardware="rtx-3090-24gb",
                engine="llama.cpp",
                model="gpt-oss-120b",
                quantization="mxfp4",
                n_cpu_moe=25,
                ubatch_size=size,
            ),
            4096,
        ).step_times.token_seconds[4096]
        for size in (512, 2048)
    ]

    assert 2.5 < seconds[0] / seconds[1] < 4.0
