"""The memory plan: every engine's rule, the split over ranks, and what it says when nothing fits."""

from __future__ import annotations

import dataclasses

import pytest

from simserve.errors import InputError
from simserve.perf.memory import (
    NEAR_FIT_SHARE,
    activation_bytes,
    context_cut_note,
    is_context_cut,
    kv_bytes_per_token,
    plan_memory,
    plan_with_room,
    relaid_expert_bytes,
)
from simserve.perf.shape import UNPADDED, ReplicaShape, weights_bytes, weights_bytes_per_gpu
from simserve.units import GIB
from tests.perf.shapes import bare_shape, make_hardware, make_model, make_shape


def test_vllm_takes_a_share_of_the_total() -> None:
    """KV is utilisation x total - weights - activations - runtime - budgeted graphs."""
    shape = make_shape(engine="vllm", gpu_memory_utilization=0.9)

    plan = plan_memory(shape)

    graphs = plan.cuda_graph_bytes if shape.engine.counts_cuda_graphs else 0.0
    taken = plan.weights_bytes + plan.activation_bytes + plan.non_torch_bytes + graphs
    assert plan.kv_bytes == pytest.approx(0.9 * plan.total_bytes - taken)
    assert plan.num_kv_blocks == int(plan.kv_bytes // (131072 * 16))


def test_tensorrt_llm_takes_a_share_of_what_is_free_after_load() -> None:
    """KV is share x (total - everything else)."""
    plan = plan_memory(make_shape(engine="tensorrt-llm", gpu_memory_utilization=0.5, max_model_len=4096))

    free = plan.total_bytes - plan.weights_bytes - plan.activation_bytes - plan.non_torch_bytes
    assert plan.kv_bytes <= 0.5 * free
    assert plan.kv_bytes == pytest.approx(0.5 * free, rel=0.02)


def test_sglang_share_holds_weights_and_kv() -> None:
    """KV is share x (total - runtime) - weights."""
    plan = plan_memory(make_shape(engine="sglang", gpu_memory_utilization=0.8, max_model_len=4096))

    assert plan.kv_bytes == pytest.approx(0.8 * (plan.total_bytes - plan.non_torch_bytes) - plan.weights_bytes)


@pytest.mark.parametrize(
    ("engine", "hardware", "model", "full"),
    [("sglang", "a100-sxm-80gb", "qwen3-32b", 40_960), ("vllm", "l4-24gb", "llama-3.1-8b", 131_072)],
)
def test_a_default_context_is_the_longest_that_fits(engine: str, hardware: str, model: str, full: int) -> None:
    """With a KV cache that is too small, the default length is what it holds, and the plan says so."""

    def at_length(length: int) -> ReplicaShape:
        return make_shape(hardware, model, engine=engine, max_model_len=length)

    shape = make_shape(hardware, model, engine=engine)
    assert not plan_memory(shape).fits

    cut = plan_with_room(shape, at_length).shape
    plan = plan_memory(cut)

    assert plan.fits
    assert plan.max_model_len == plan.longest_sequence == plan_memory(shape).longest_sequence < full
    assert not plan_memory(at_length(plan.max_model_len + shape.engine.block_size)).fits
    assert not is_context_cut(shape.engine)
    assert context_cut_note(shape.engine) is None
    assert is_context_cut(cut.engine)
    note = f"max_model_len {plan.max_model_len:,} of {full:,}: the longest that fits in the KV cache"
    assert context_cut_note(cut.engine) == note
    assert "max_model_len (the longest that fits in the KV cache) = 1.00 requests" in plan.arithmetic[-1]


@pytest.mark.parametrize(("hardware", "model"), [("h100-sxm-80gb", "llama-3.1-8b"), ("l4-24gb", "qwen3-32b")])
def test_a_context_that_fits_or_never_will_is_left_alone(hardware: str, model: str) -> None:
    """Room for all of it, and weights beyond the GPU."""
    shape = make_shape(hardware, model)

    assert plan_with_room(shape, lambda length: make_shape(hardware, model, max_model_len=length)).shape is shape


def test_a_shorter_context_counts_with_the_activations_that_it_saves() -> None:
    """Where vLLM does not chunk prefill the token budget follows the length, and more is left for KV."""

    def at_length(length: int) -> ReplicaShape:
        return make_shape("l4-24gb", "qwen2.5-7b", version="0.4", max_model_len=length)

    shape = at_length(32_768)
    at_full_length = plan_memory(shape).longest_sequence
    source = {**shape.engine.sources, "max_model_len": "the model's"}
    unset = dataclasses.replace(shape, engine=shape.engine.model_copy(update={"sources": source}))

    cut = plan_with_room(unset, at_length).shape

    assert plan_memory(cut).fits
    assert cut.engine.max_num_batched_tokens == cut.engine.max_model_len
    assert plan_memory(cut).longest_sequence > at_full_length


def test_a_small_shortage_is_simulated_and_said() -> None:
    """gpt-oss-120b on one H100 at vLLM 0.11's defaults lacks about 1 % of the GPU; a tenth more GPU lacks nothing."""
    near, roomy, far = (
        plan_memory(make_shape("h100-sxm-80gb", "gpt-oss-120b", quantization="mxfp4", version="0.11", **given))
        for given in (
            {"max_model_len": 4096},
            {"max_model_len": 4096, "gpu_memory_utilization": 0.95},
            {"max_model_len": 4096, "gpu_memory_utilization": 0.85},
        )
    )

    assert near.fits
    assert 0.0 < near.shortage_bytes < NEAR_FIT_SHARE * near.total_bytes
    assert near.kv_bytes == pytest.approx(NEAR_FIT_SHARE * near.total_bytes - near.shortage_bytes)
    assert sum(near.parts.values()) == pytest.approx(near.total_bytes)
    assert any("simulated with 2% of the GPU more" in line for line in near.arithmetic)
    assert roomy.fits
    assert roomy.shortage_bytes == 0.0
    assert not far.fits
    assert far.shortage_bytes == 0.0


def test_kv_never_takes_memory_that_is_not_there() -> None:
    """At a utilisation of 1 the graphs that vLLM 0.12 does not budget still need room."""
    plan = plan_memory(make_shape(version="0.12", gpu_memory_utilization=1.0))

    assert plan.parts["unused"] == pytest.approx(0.0, abs=1.0)
    assert any(line.startswith("but only") for line in plan.arithmetic)


def test_parts_sum_to_the_total() -> None:
    """Nothing is counted twice, nothing is lost."""
    plan = plan_memory(make_shape(tensor_parallel_size=2))

    assert sum(plan.parts.values()) == pytest.approx(plan.total_bytes)
    assert plan.parts["kv"] == plan.kv_bytes


def test_one_request_of_full_length_must_fit() -> None:
    """Llama-3.1-8B on 24 GB holds no 131,072 tokens; the plan says how many, and that many fit."""
    plan = plan_memory(make_shape("l4-24gb"))

    assert not plan.fits
    assert 0 < plan.longest_sequence < 131072
    assert plan_memory(make_shape("l4-24gb", max_model_len=8192)).fits


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    """Llama-3.1-70B has 8 KV heads: 16 ranks hold as much each as 8."""
    sizes = [kv_bytes_per_token(make_shape(model="llama-3.1-70b", tensor_parallel_size=ranks)) for ranks in (1, 8, 16)]

    assert sizes == [327680, 40960, 40960]


def test_pipeline_stages_hold_their_layers() -> None:
    """Half of 80 layers, and 41 of 81 where they do not divide."""
    model = make_model("llama-3.1-70b", num_hidden_layers=81)

    assert kv_bytes_per_token(make_shape(model="llama-3.1-70b", pipeline_parallel_size=2)) == 163840
    assert kv_bytes_per_token(make_shape(model=model, pipeline_parallel_size=2)) == 41 * 4096


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b", "mixtral-8x7b", "falcon-40b", "qwen3-8b"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_hold_the_model(name: str, ranks: int) -> None:
    """Never less than the model, and more only by what is replicated (norms, routers, KV heads)."""
    model = make_model(name)

    held = ranks * weights_bytes_per_gpu(model, "none", ranks)

    assert weights_bytes(model) <= held < 1.02 * weights_bytes(model)


def test_pipeline_stages_split_the_layers_of_untied_models() -> None:
    """Each of two stages of Llama-3.1-70B holds half the layers and one of embedding and head."""
    model = make_model("llama-3.1-70b")

    assert 2 * weights_bytes_per_gpu(model, "fp8", 1, 2) == pytest.approx(weights_bytes(model, "fp8"), rel=1e-3)


def test_quantised_checkpoints_keep_embeddings_in_16_bit() -> None:
    """Llama-3.1-8B in INT4: embedding and head, 2.1 GB, stay; in GGUF they shrink too."""
    model = make_model()

    assert weights_bytes(model, "int4") == pytest.approx(
        model.num_linear_parameters / 2 + 2 * model.num_unquantised_parameters
    )
    assert weights_bytes(model, "gguf-q2_k") == pytest.approx(model.num_parameters * 2.6 / 8)


@pytest.mark.parametrize(
    ("quantization", "gibibytes"),
    [("gguf-q6_k", 6.14), ("gguf-q5_k_m", 5.33), ("gguf-iq4_xs", 4.17), ("gguf-q3_k_m", 3.74)],
)
def test_gguf_files_are_as_large_as_published(quantization: str, gibibytes: float) -> None:
    """Llama-3.1-8B in the table of llama.cpp's tools/quantize/README.md; Q3_K_M: Llama-3-8B in its quantize.cpp."""
    assert weights_bytes(make_model(), quantization) == pytest.approx(gibibytes * 2**30, rel=0.01)


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama"])
@pytest.mark.parametrize(
    ("model", "gibibytes"),
    [("llama-3-8b", 0.275), ("llama-3.2-3b", 0.0), ("gemma-4-e4b", 1.575)],
)
def test_tokens_are_looked_up_in_host_memory(engine: str, model: str, gibibytes: float) -> None:
    """Llama-3-8B in Q4_K_M logs 281.81 MiB on the CPU; a tied one is the LM head too; Gemma has more tables."""
    shape = make_shape(model=model, engine=engine, quantization="gguf-q4_k_m")
    whole = weights_bytes(shape.model, "gguf-q4_k_m")

    assert (whole - plan_memory(shape).weights_bytes) / GIB == pytest.approx(gibibytes, rel=0.07)
    if gibibytes:
        assert "of embeddings stay in the mapped file" in plan_memory(shape).arithmetic[0]


def test_standard_attention_needs_room_for_its_scores() -> None:
    """4,096 queries x 4,096 keys x 32 heads x 2 B: 1.07 GB more."""
    model = make_model("llama-2-7b")
    flash, standard = (
        plan_memory(make_shape(model=model, max_num_batched_tokens=4096, attention=kernel)).activation_bytes
        for kernel in ("flash", "standard")
    )

    assert standard - flash == pytest.approx(4096 * 4096 * 32 * 2)


def test_without_a_kv_cache_only_weights_and_activations_must_fit() -> None:
    """No KV: fits, and the arithmetic says why."""
    plan = plan_memory(bare_shape(make_model("llama-2-7b"), kv_allocation="none"))

    assert plan.fits
    assert "no KV cache" in plan.arithmetic[-1]


def test_heads_that_do_not_divide_are_refused() -> None:
    """3 ranks do not share 32 heads."""
    with pytest.raises(InputError, match="tensor_parallel_size"):
        plan_memory(make_shape(tensor_parallel_size=3))


def test_gpus_without_links_are_refused() -> None:
    """Tensor parallelism needs a link."""
    lonely = make_hardware(intra_node={"kind": "none", "bandwidth": 0.0, "latency": 0.0})

    with pytest.raises(InputError, match="needs links between GPUs"):
        _ = make_shape(lonely, tensor_parallel_size=2).tensor_link


def test_more_stages_than_layers_are_refused() -> None:
    """32 layers make at most 32 stages."""
    with pytest.raises(InputError, match="32 layers"):
        plan_memory(make_shape(pipeline_parallel_size=33))


@pytest.mark.parametrize(("model", "gibibytes"), [("gpt-oss-20b", 13.47), ("gpt-oss-120b", 64.38)])
def test_mxfp4_weights_are_those_that_vllm_reports(model: str, gibibytes: float) -> None:
    """llm-d-planner, empirical vLLM memory results: H100, one GPU; padding of 2880 to 3072 included."""
    assert weights_bytes(make_model(model), "mxfp4") / 2**30 == pytest.approx(gibibytes, rel=0.01)


def test_the_kv_cache_of_gpt_oss_is_what_vllm_reports() -> None:
    """The same source: 3.33 GiB beside 7.38 GiB of activations, which add up at 0.95 of 79.18 GiB."""
    plan = plan_memory(
        make_shape(model="gpt-oss-120b", quantization="mxfp4", gpu_memory_utilization=0.95, version="0.12")
    )

    assert plan.kv_bytes / 2**30 == pytest.approx(3.33, rel=0.1)


def test_a_format_that_leaves_every_dense_layer_alone_unpacks_only_experts() -> None:
    """gpt-oss has no quantised linear layer outside its experts: NF4 writes those out in 16 bit."""
    shape = make_shape(model="gpt-oss-20b", quantization="nf4", version="0.12")

    assert plan_memory(shape).parts["activations"] > plan_memory(make_shape(model="gpt-oss-20b")).parts["activations"]


def test_mxfp4_slices_are_padded_on_every_rank() -> None:
    """2880 / 8 = 360 columns of an expert become 384, and 2880 of the model 3072."""
    model = make_model("gpt-oss-20b")
    narrow, wide = (weights_bytes_per_gpu(model, name, 8) for name in ("mxfp4", "bf16"))
    experts = 24 * 32 * 3

    assert wide - narrow == pytest.approx(experts * (2880 * 360 * 2 - 3072 * 384 * 4.25 / 8))


@pytest.mark.parametrize(
    ("hardware", "engine", "version", "widths"),
    [
        ("h100-sxm-80gb", "vllm", "0.19", (2880, 3072)),
        ("b200-sxm-180gb", "vllm", "0.19", (2880, 3072)),
        ("a100-sxm-80gb", "vllm", "0.19", (2944, 3072)),
        ("rtx-pro-6000-96gb", "vllm", "0.19", (2944, 3072)),
        ("h100-sxm-80gb", "sglang", "0.5.9", (2880, 3072)),
        ("m3-max-128gb", "llama.cpp", None, (2880, 2880)),
    ],
)
def test_experts_in_mxfp4_are_padded_as_the_kernels_want_them(
    hardware: str, engine: str, version: str | None, widths: tuple[int, int]
) -> None:
    """vLLM takes Triton's kernels on Hopper and B200, Marlin's elsewhere; llama.cpp reads the blocks as stored."""
    shape = make_shape(hardware, "gpt-oss-20b", quantization="mxfp4", engine=engine, version=version)
    plain = weights_bytes(shape.model, "mxfp4", UNPADDED)

    expected = plain + 24 * 32 * 3 * (widths[0] * widths[1] - 2880 * 2880) * 4.25 / 8
    # llama.cpp leaves the embedding in its mapped file.
    expected -= 2 * shape.model.num_embedding_parameters * (engine == "llama.cpp")
    assert plan_memory(shape).weights_bytes == pytest.approx(expected)
    assert plain == pytest.approx(13.76e9, rel=0.001)  # the size of openai/gpt-oss-20b on huggingface.co


def test_experts_placed_whole_take_as_much_as_slices_where_they_divide() -> None:
    """8 experts on 4 ranks are 2 each."""
    model = make_model("mixtral-8x7b")
    sliced, placed = (weights_bytes_per_gpu(model, "none", 4, enable_expert_parallel=each) for each in (False, True))

    assert placed == sliced


def test_the_rank_with_most_whole_experts_is_the_fullest() -> None:
    """128 experts over 12 ranks: 11 on the fullest, where slices would be 10.67 experts' worth."""
    model = make_model("qwen3-30b-a3b", num_attention_heads=48, num_key_value_heads=12)
    expert = 3 * 2048 * 768
    sliced, placed = (weights_bytes_per_gpu(model, "none", 12, enable_expert_parallel=each) for each in (False, True))

    assert placed - sliced == pytest.approx(48 * 2 * (11 - 128 / 12) * expert)


def test_the_memory_plan_follows_the_placement() -> None:
    """Fewer bytes are left for KV where the fullest rank holds more."""
    model = make_model("qwen3-30b-a3b", num_attention_heads=48, num_key_value_heads=12)
    sliced, placed = (
        plan_memory(bare_shape(model, tensor_parallel_size=12, enable_expert_parallel=each)).kv_bytes
        for each in (False, True)
    )

    assert placed < sliced


def test_experts_laid_out_anew_stay_in_memory_twice_where_there_is_room() -> None:
    """TensorRT-LLM's MXFP4 experts on an H200: 440,000 tokens of KV as measured (within 3 %); an H100 has no room."""
    one, four, small, dense = (
        make_shape(hardware, "gpt-oss-120b", engine="tensorrt-llm", version="1.1", quantization=quantization, **given)
        for hardware, quantization, given in (
            ("h200-sxm-141gb", "mxfp4", {"max_num_seqs": 64, "max_num_batched_tokens": 20000}),
            ("h200-sxm-141gb", "mxfp4", {"tensor_parallel_size": 4}),
            ("h100-sxm-80gb", "mxfp4", {}),
            ("b200-sxm-180gb", "fp8", {}),
        )
    )
    served = dataclasses.replace(one, engine=one.engine.model_copy(update={"gpu_memory_utilization": 0.85}))

    plan = plan_memory(served)

    assert plan.num_kv_blocks * plan.block_size == pytest.approx(440_000, rel=0.03)
    assert relaid_expert_bytes(one) == pytest.approx(36 * 128 * 5760 * 2880 * 4.25 / 8)
    assert relaid_expert_bytes(four) == pytest.approx(relaid_expert_bytes(one) / 4)
    assert plan_memory(small).non_torch_bytes < 1e9
    assert relaid_expert_bytes(dense) == 0.0


def test_kv_blocks_set_by_hand_replace_those_that_fit() -> None:
    """As many as asked for, and their bytes; more than there is room for do not fit, and none are there."""
    usual, fewer = (plan_memory(make_shape(num_gpu_blocks_override=blocks)) for blocks in (None, 3000))
    beyond = plan_memory(make_shape(num_gpu_blocks_override=10 * usual.num_kv_blocks))

    assert fewer.num_kv_blocks == 3000
    assert fewer.kv_bytes == pytest.approx(3000 * fewer.block_size * fewer.kv_bytes_per_token)
    assert sum(fewer.parts.values()) == pytest.approx(fewer.total_bytes)
    assert (beyond.fits, beyond.num_kv_blocks) == (False, 0)
    assert any("are there" in line for line in beyond.arithmetic)


def test_kv_bytes_set_by_hand_replace_the_share_of_the_memory() -> None:
    """Whatever `gpu_memory_utilization` is; the blocks follow."""
    plans = [
        plan_memory(make_shape(kv_cache_memory_bytes=20 * 10**9, gpu_memory_utilization=share)) for share in (0.5, 0.9)
    ]

    assert plans[0].num_kv_blocks == plans[1].num_kv_blocks
    assert plans[0].kv_bytes == 20e9
    assert plans[0].num_kv_blocks == int(20e9 // (plans[0].block_size * plans[0].kv_bytes_per_token))
    assert not plan_memory(make_shape(kv_cache_memory_bytes=200 * 10**9)).fits


@pytest.mark.parametrize("option", [{"num_gpu_blocks_override": 10}, {"kv_cache_memory_bytes": 10**9}])
def test_a_cache_that_is_none_has_no_size(option: dict[str, int]) -> None:
    """Nothing is accepted that does nothing."""
    with pytest.raises(InputError, match="needs a KV cache, and kv_allocation is none"):
        make_shape(kv_allocation="none", **option)


def test_gpus_on_pcie_have_no_buffers_for_nvlink() -> None:
    """vLLM from 0.17 on: 0.75 GiB a GPU where 2.1 are taken on NVLink; as before in older releases."""
    taken = {
        (name, version): plan_memory(make_shape(name, version=version, tensor_parallel_size=2)).non_torch_bytes / 2**30
        for name in ("rtx-5090-32gb", "h100-sxm-80gb")
        for version in ("0.12", "0.33")
    }

    assert list(taken.values()) == pytest.approx([0.55, 0.75, 0.55, 2.1])


@pytest.mark.parametrize(
    ("hardware", "ranks", "version", "quantization", "logged"),
    [
        ("b200-sxm-180gb", 8, "1.2", "fp8", 2_122_908),
        ("b200-sxm-180gb", 8, "1.2", "nvfp4", 2_917_306),
        ("b300-sxm-270gb", 2, "1.3", "nvfp4", 1_863_915),
    ],
)
def test_ranks_of_tensorrt_llm_leave_the_room_that_its_log_states(
    hardware: str, ranks: int, version: str, quantization: str, logged: int
) -> None:
    """DeepSeek-R1 with 0.8 of what is free, start-up logs of 2026 within 2 %; without NVLink as before 1.0."""
    given = {"engine": "tensorrt-llm", "version": version, "tensor_parallel_size": ranks}
    limits = {"max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.8, "max_model_len": 8192}
    plan = plan_memory(
        make_shape(hardware, "deepseek-r1", quantization=quantization, kv_cache_dtype="fp8", **given, **limits)
    )
    apart = plan_memory(make_shape("rtx-5090-32gb", engine="tensorrt-llm", version="1.2", tensor_parallel_size=2))

    assert plan.logged_tokens == pytest.approx(logged, rel=0.02)
    assert apart.non_torch_bytes == pytest.approx(1.5 * 2**30)


def test_what_ranks_summed_stays_taken_in_vllm_0_2_6_alone() -> None:
    """Llama-2-70B on four A100: 13.75 GiB more, of which PyTorch's allocator played through makes 13.5."""
    before, then, after = (
        plan_memory(
            make_shape("a100-sxm-80gb", "llama-2-70b", version=version, tensor_parallel_size=4, max_model_len=4096)
        ).activation_bytes
        for version in ("0.2.1", "0.2.6", "0.2.7")
    )

    assert before == after
    assert then - before == 80 * 4096 * (2 * 28672 / 4 + 8192) * 2
    alone = make_shape("a100-sxm-80gb", "llama-2-7b", version="0.2.6", max_model_len=4096)
    assert plan_memory(alone).activation_bytes < 2 * GIB


def test_awq_without_zero_points_needs_room_for_a_matrix() -> None:
    """Its kernels write gate and up of Mistral-Small-3.1 out in 16 bit, 671 MB, as vLLM's Marlin does not take it."""
    packed, unpacked = (
        activation_bytes(make_shape("a10g-24gb", "mistral-small-24b", quantization=name, version="0.8.3"))
        for name in ("awq-int4", "awq-int4-gemm")
    )

    assert unpacked - packed == 2 * 32768 * 5120 * 2


@pytest.mark.parametrize(("options", "tokens"), [({"max_model_len": 8192}, 8192), ({"max_num_seqs": 4}, None)])
def test_slots_with_one_buffer_hold_one_context(options: dict[str, int], tokens: int | None) -> None:
    """llama.cpp allocates --ctx-size once where slots share it; what is left of the GPU stays free."""
    plan = plan_memory(
        make_shape("rtx-4090-24gb", "qwen3-8b", engine="llama.cpp", quantization="gguf-q4_k_m", **options)
    )

    num_tokens = plan.num_kv_blocks * plan.block_size
    assert num_tokens == tokens if tokens else num_tokens > 100_000
    assert plan.kv_bytes == pytest.approx(num_tokens * plan.kv_bytes_per_token, rel=1e-4)


def test_scores_are_of_no_more_queries_than_a_prompt_can_have() -> None:
    """A chunk of 8,192 tokens where prompts have 2,048: 2,048 x 2,048 keys x 32 heads x 2 B."""
    flash, standard = (
        plan_memory(
            make_shape(model="llama-2-7b", max_num_batched_tokens=8192, max_model_len=2048, attention=kernel)
        ).activation_bytes
        for kernel in ("flash", "standard")
    )

    assert standard - flash == pytest.approx(2048 * 2048 * 32 * 2)


def test_requests_of_full_length_hold_whole_blocks() -> None:
    """1,000 tokens are 62.5 blocks of 16: each takes 63, as vLLM's start-up log counts."""
    plan = plan_memory(make_shape(max_model_len=1000))

    assert plan.max_concurrent_full_length == plan.num_kv_blocks / 63


def test_no_memory_is_added_to_a_cache_whose_size_is_set() -> None:
    """It is that of a real server: weights that are half a percent larger than the GPU do not fit, by then either."""
    weights = plan_memory(bare_shape(make_model("llama-2-7b"))).weights_bytes
    gpu = make_hardware("a100-sxm-80gb", memory={"total": weights / 1.005})
    free, given = (
        plan_memory(bare_shape(make_model("llama-2-7b"), hardware=gpu, max_model_len=512, **each))
        for each in ({}, {"kv_cache_memory_bytes": 10**9})
    )

    assert free.shortage_bytes == pytest.approx(0.005 * weights / 1.005)
    assert (given.shortage_bytes, given.fits) == (0.0, False)
