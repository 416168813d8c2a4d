"""Weight and KV formats: what they are stored in, what they compute in, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simserve.errors import InputError
from simserve.perf.gemm import gemm_class, unpacking_parts
from simserve.perf.memory import activation_bytes
from simserve.perf.quantization import kv_element_bytes, part_bits, quantize_symmetric, weight_bits
from simserve.perf.shape import ReplicaShape, weights_bytes_per_gpu
from simserve.perf.stage import stage_of, stage_seconds
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from tests.perf.shapes import make_model, make_shape


def test_w8a8_computes_in_its_dtype_where_the_gpu_has_it() -> None:
    """FP8 on H100 multiplies in FP8 and quantises activations; embeddings stay 16-bit."""
    precision = make_shape("h100-sxm-80gb", quantization="fp8").precision

    assert (precision.arithmetic, precision.wide_arithmetic) == ("fp8", "bf16")
    assert (precision.weight_bits, precision.other_bits) == (8.0, 16.0)
    assert precision.is_quantizing_activations
    assert precision.note == ""


def test_fp8_on_a100_is_weight_only_under_vllm() -> None:
    """8-bit weights, 16-bit arithmetic, and the result says so."""
    precision = make_shape("a100-sxm-80gb", quantization="fp8").precision

    assert (precision.arithmetic, precision.weight_bits, precision.input_bytes) == ("bf16", 8.0, 2.0)
    assert "no fp8 arithmetic" in precision.note


def test_fp8_on_a100_is_refused_by_tensorrt_llm() -> None:
    """The error names what the GPU supports."""
    shape = make_shape("a100-sxm-80gb", engine="tensorrt-llm", quantization="fp8")

    with pytest.raises(InputError, match=r"fp8 arithmetic.*a100-sxm-80gb has .*int8.*choose from") as failure:
        _ = shape.precision

    assert "int8" in str(failure.value.remedy)
    assert "fp8" not in str(failure.value.remedy)


def test_unknown_formats_name_the_nearest() -> None:
    """A typing error is answered with the name that was meant."""
    with pytest.raises(InputError, match="gptq-int4"):
        weight_bits("gptq-int3", "bf16")
    with pytest.raises(InputError, match="fp8"):
        kv_element_bytes("fp7")


def test_a_format_the_engine_does_not_run_is_refused() -> None:
    """The engine profile decides, and the error names what it runs here."""
    shape = make_shape(engine="fastertransformer", quantization="awq-int4")

    with pytest.raises(InputError, match=r"does not run under fastertransformer [\d.]+; choose from none, .*int8-wo"):
        _ = shape.precision


def test_a_gguf_format_names_the_engine_that_runs_it() -> None:
    """Where this one does not."""
    shape = make_shape(engine="fastertransformer", quantization="gguf-q4_k_m")

    with pytest.raises(InputError, match=r"llama\.cpp and Ollama run it \(deployment\.engine\.name=llama\.cpp\)"):
        _ = shape.precision


@pytest.mark.parametrize(("name", "size"), [("auto", 2.0), ("bf16", 2.0), ("fp8", 1.0), ("int8", 1.0)])
def test_kv_element_bytes(name: str, size: float) -> None:
    """Bits over eight; 16-bit by default."""
    assert kv_element_bytes(name) == size


def test_int4_kv_counts_its_scales() -> None:
    """4 bits and an FP16 scale for 128 elements."""
    assert kv_element_bytes("int4") == 4.125 / 8


def test_only_zeros_quantise_to_zeros() -> None:
    """No division by a scale of zero."""
    assert quantize_symmetric([0.0, 0.0], 8).codes == (0, 0)


@pytest.mark.parametrize(
    ("name", "bits", "kernels"), [("mxfp4", 4.25, "mxfp4_weight_only"), ("nvfp4", 4.5, "int4_weight_only")]
)
def test_fp4_formats_are_weight_only(name: str, bits: float, kernels: str) -> None:
    """4 bits with a scale for 32 or 16 weights, 16-bit arithmetic and inputs."""
    precision = make_shape(quantization=name).precision

    assert (precision.weight_bits, precision.other_bits) == (bits, 16.0)
    assert (precision.arithmetic, precision.input_bytes) == ("bf16", 2.0)
    assert not precision.is_quantizing_activations
    assert gemm_class(precision) == kernels
    assert precision.note == (
        "" if name == "mxfp4" else "h100-sxm-80gb has no fp4 arithmetic: 4-bit weights, bf16 arithmetic"
    )


def test_blackwell_multiplies_in_fp4() -> None:
    """NVFP4 weights and activations, 4.5 bits each, at FP4's peak; MXFP4 weights with FP8 activations."""
    both = make_shape("b200-sxm-180gb", quantization="nvfp4").precision
    weights = make_shape("b200-sxm-180gb", "gpt-oss-20b", quantization="mxfp4").precision

    assert (both.arithmetic, both.input_bytes, both.compute_share) == ("fp4", 4.5 / 8, 1.0)
    assert (weights.arithmetic, weights.weight_bits) == ("fp8", 4.25)
    assert both.is_quantizing_activations
    assert not both.note
    assert "activations in fp8" in weights.note


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_nvfp4_without_scales_for_inputs_is_unpacked_on_blackwell_too(engine: str) -> None:
    """ModelOpt's W4A16_NVFP4 runs on Marlin: prompts take longer than in 16 bit, as in SGLang's cookbook."""
    shapes = {
        name: make_shape("b200-sxm-180gb", "qwen3.5-27b", engine=engine, quantization=name)
        for name in ("nvfp4-wo", "nvfp4", "none")
    }
    precision = shapes["nvfp4-wo"].precision
    seconds = {name: price(shape, 8192).step_times.token_seconds[8192] for name, shape in shapes.items()}

    assert (precision.arithmetic, precision.input_bytes, precision.weight_bits) == ("bf16", 2.0, 4.5)
    assert not precision.is_quantizing_activations
    assert gemm_class(precision) == "int4_weight_only"
    assert seconds["nvfp4-wo"] > 1.5 * seconds["none"] > 1.5 * seconds["nvfp4"]


def test_marlin_leaves_inputs_of_nvfp4_experts_in_16_bit() -> None:
    """vLLM's `--moe-backend marlin`: experts as of a checkpoint without scales for inputs, dense layers in 4 bit."""
    model, gpu = "qwen3-30b-a3b", "rtx-pro-6000-96gb"
    own, marlin = (
        make_shape(gpu, model, quantization="nvfp4", version="0.24", moe_backend=name) for name in (None, "marlin")
    )
    stored = make_shape(gpu, model, quantization="nvfp4-wo", version="0.24")
    seconds = {
        name: price(shape, 8192).step_times.token_seconds[8192]
        for name, shape in (("own", own), ("marlin", marlin), ("stored", stored))
    }

    assert [each.arithmetic for each, _ in marlin.precisions["experts"]] == ["bf16"]
    assert [each.arithmetic for each, _ in own.precisions["experts"]] == ["fp4"]
    assert marlin.precisions["attention"] == own.precisions["attention"]
    assert sum(share for _, share in marlin.precisions["experts"]) == 1.0
    assert seconds["own"] < seconds["marlin"] < seconds["stored"]


@pytest.mark.parametrize(
    ("gpu", "version", "arithmetic"),
    [("rtx-pro-6000-96gb", "0.21", "bf16"), ("rtx-pro-6000-96gb", "0.23", "fp4"), ("b200-sxm-180gb", "0.21", "fp4")],
)
def test_gemmas_experts_in_nvfp4_are_marlins_until_cutlass_has_their_activation(
    gpu: str, version: str, arithmetic: str
) -> None:
    """VLLM issue 47047: 0.21.0 picks Marlin on an RTX PRO 6000, 0.23.0 CUTLASS."""
    shape = make_shape(gpu, "gemma-4-26b-a4b", quantization="nvfp4", version=version)

    assert [each.arithmetic for each, _ in shape.precisions["experts"]] == [arithmetic]


def test_fp4_is_quicker_where_arithmetic_binds() -> None:
    """Twice the peak at 0.7 of the share of FP8; experts, which move their activations, gain less."""

    def prompt_seconds(model: str, quantization: str) -> float:
        shape = make_shape("b200-sxm-180gb", model, quantization=quantization)
        return price(shape, 8192).step_times.token_seconds[8192]

    fp4, fp8, plain = (prompt_seconds("llama-3.1-8b", name) for name in ("nvfp4", "fp8", "none"))

    assert fp4 < 0.85 * fp8 < plain
    assert prompt_seconds("qwen3-30b-a3b", "nvfp4") < 0.85 * prompt_seconds("qwen3-30b-a3b", "none")


def test_tensorrt_llm_has_no_nvfp4_without_blackwell() -> None:
    """It widens no weights: refused, with what the GPU runs."""
    with pytest.raises(InputError, match="fp4"):
        _ = make_shape("h200-sxm-141gb", engine="tensorrt-llm", quantization="nvfp4").precision


@pytest.mark.parametrize(("model", "kernels"), [("deepseek-v3", "fp8_block"), ("llama-3.1-8b", "fp8")])
def test_fp8_is_scaled_as_the_model_is_published(model: str, kernels: str) -> None:
    """128 x 128 blocks have kernels of their own; the same bits."""
    precision = make_shape("h200-sxm-141gb", model, tensor_parallel_size=8, quantization="fp8").precision

    assert gemm_class(precision) == kernels
    assert precision.weight_bits == 8.0


def test_fp8_by_blocks_takes_other_times() -> None:
    """The same model with a scale a tensor has other kernels, and so other steps."""
    blocks = make_model("qwen3-30b-a3b")
    tensors = make_model("qwen3-30b-a3b", checkpoints=())
    first, second = (price(make_shape(model=each, quantization="fp8"), 64).step_times for each in (blocks, tensors))

    assert first.token_seconds[64] != second.token_seconds[64]


def test_gpt_oss_quantises_its_experts_alone() -> None:
    """Attention, router and head stay 16-bit, in bytes and in kernels."""
    model = make_model("gpt-oss-20b")
    precisions = make_shape(model=model, quantization="mxfp4").precisions

    assert [(each.name, share) for each, share in precisions["attention"]] == [("none", 1.0)]
    assert [(each.name, share) for each, share in precisions["experts"]] == [("mxfp4", 1.0)]
    assert part_bits(model, "fp8", "attention") == 16.0
    assert part_bits(model, "fp8", "experts") == 8.0
    assert price(make_shape(model=model, quantization="mxfp4"), 64).fidelity == "fitted"


@pytest.mark.parametrize("hardware", ["rtx-5080-16gb", "gb10-128gb", "rtx-4090-24gb"])
def test_llama_cpp_multiplies_mxfp4_with_the_kernels_of_its_other_formats(hardware: str) -> None:
    """A row of gpt-oss reads as many bytes a second as one of Q4_0, on Blackwell too, where vLLM multiplies in FP8."""
    mxfp4, q4_0 = (
        make_shape(hardware, "gpt-oss-20b", engine="llama.cpp", version="b8000", quantization=each, max_num_seqs=1)
        for each in ("mxfp4", "gguf-q4_0")
    )
    expert, known = (shape.precisions["experts"][0][0] for shape in (mxfp4, q4_0))
    paces = [layer_seconds(shape) / each.weight_bits for shape, each in ((mxfp4, expert), (q4_0, known))]

    assert (expert.arithmetic, expert.min_tile_rows) == (known.arithmetic, known.min_tile_rows) == ("bf16", 8)
    assert expert.other_bits > expert.weight_bits
    assert paces[0] == pytest.approx(paces[1], rel=0.05)


def layer_seconds(shape: ReplicaShape) -> float:
    """Return the seconds of the routed experts of one token in all layers."""
    stage = replace(stage_of(shape), splits_operators=True)
    shares = stage_seconds(stage, np.array([1.0]), has_prompts=False).shares
    assert shares is not None
    return float(shares["experts"].sum())


def test_mxfp4_decodes_faster_than_16_bit() -> None:
    """A quarter of the bytes of the experts are read."""
    steps = [price(make_shape(model="gpt-oss-20b", quantization=name), 64).step_times for name in ("none", "mxfp4")]

    assert steps[1].decode_base[16] < steps[0].decode_base[16]


BITSANDBYTES = "0.27"
"""The last vLLM with bitsandbytes."""


def decode_seconds(quantization: str, batch: int, model: str = "llama-3.1-8b", **deployment: str) -> float:
    """Return the seconds of a decode step of short contexts."""
    times = price(make_shape(model=model, quantization=quantization, **deployment), 64).step_times
    return times.decode_base[batch] + times.decode_slope[batch] * 100 * batch


def test_default_tiles_bind_products_of_fp8_by_blocks_on_ada() -> None:
    """Qwen3-4B-FP8 runs at 80 tokens/s on an RTX 4090 where BF16 has 98 (vLLM 0.24, issue 48035)."""
    ada = {"hardware": "rtx-4090-24gb", "version": "0.24.0"}
    narrow, wide = (decode_seconds(name, 1, "qwen3-4b", **ada) for name in ("fp8", "none"))

    assert narrow == pytest.approx(1 / 80, rel=0.2)
    assert wide == pytest.approx(1 / 98, rel=0.2)
    assert decode_seconds("fp8", 1, "qwen3-4b") < decode_seconds("none", 1, "qwen3-4b")  # Hopper's kernels


def test_nf4_and_int3_count_their_scales() -> None:
    """NF4: 0.127 bit for double quantisation of blocks of 64; INT3: 0.125 for groups of 128."""
    assert weight_bits("nf4", "bf16")[0] == pytest.approx(4.127, abs=0.0005)
    assert weight_bits("int3", "bf16") == (3.125, 16.0)


def test_bitsandbytes_is_fast_for_one_sequence_and_slower_than_16_bit_for_two() -> None:
    """One row has a packed kernel; from two on weights are written out, and read again, in 16 bit."""
    assert decode_seconds("nf4", 1, version=BITSANDBYTES) < 0.6 * decode_seconds("none", 1)
    assert decode_seconds("nf4", 2, version=BITSANDBYTES) > 1.5 * decode_seconds("none", 2)
    assert decode_seconds("awq-int4", 2) < 0.6 * decode_seconds("none", 2)


def test_gptq_of_three_bits_unpacks_from_51_rows() -> None:
    """Below, a packed kernel; above, more traffic than 16-bit weights."""
    assert decode_seconds("int3", 48) < decode_seconds("none", 48)
    assert decode_seconds("int3", 56) > decode_seconds("none", 56)


def test_unpacked_experts_are_all_written_out() -> None:
    """Grouped products have no packed kernel: every expert a GPU holds is unpacked, however few a step uses."""
    name, gpu = "mixtral-8x7b", "a100-sxm-80gb"

    unpacked = decode_seconds("nf4", 1, name, hardware=gpu, version=BITSANDBYTES)
    assert unpacked > 2 * decode_seconds("none", 1, name, hardware=gpu, version=BITSANDBYTES)


def test_unpacking_needs_room_for_a_matrix() -> None:
    """The largest matrix of a layer in 16 bit: gate and up of Llama-3.1-8B, 235 MB."""
    packed, unpacked = (
        activation_bytes(make_shape(quantization=name, version=BITSANDBYTES)) for name in ("awq-int4", "nf4")
    )

    assert unpacked - packed == pytest.approx(2 * 14336 * 4096 * 2)


@pytest.mark.parametrize("engine", ["tensorrt-llm", "fastertransformer", "orca", "llama.cpp", "vllm"])
def test_engines_without_bitsandbytes_refuse_nf4(engine: str) -> None:
    """The engine profile decides."""
    with pytest.raises(InputError, match=f"does not run under {engine}"):
        _ = make_shape(engine=engine, quantization="nf4").precision


@pytest.mark.parametrize(
    ("model", "bound", "shares"), [("llama-3.1-8b", 3.2, (0.6, 0.8)), ("llama-3.1-70b", 3.7, (0.75, 0.95))]
)
def test_int4_at_batch_one_nears_the_ratio_of_the_bytes(model: str, bound: float, shares: tuple[float, float]) -> None:
    """16-bit over INT4 bytes, LM head at 16 bit in both, is 3.2 (8B) and 3.7 (70B); kernel starts, host and KV take
    the rest, more of it in the small model."""
    plain, low = (price(make_shape("a100-sxm-80gb", model, quantization=name), 64) for name in ("none", "gptq-int4"))
    bytes_ratio = plain.parts.weight_bytes[1] / low.parts.weight_bytes[1]

    assert bytes_ratio == pytest.approx(bound, abs=0.05)
    ratio = plain.step_times.decode_base[1] / low.step_times.decode_base[1]
    assert shares[0] * bytes_ratio < ratio < shares[1] * bytes_ratio


def test_gptq_without_marlin_is_slower_than_16_bit_beyond_50_rows() -> None:
    """The kernels of exllama write the weights out in 16 bit from 51 rows on; up to there they are the faster ones."""
    plain, packed = (
        [decode_seconds(name, batch, "llama-3.1-8b", hardware="a100-sxm-80gb") for batch in (1, 64)]
        for name in ("none", "gptq-int4-exllama")
    )

    assert packed[0] < 0.8 * plain[0]
    assert packed[1] > 1.5 * plain[1]


def test_gptq_runs_without_marlin_before_ampere() -> None:
    """Marlin needs compute capability 8.0."""
    old, new = (make_shape(gpu, quantization="gptq-int4").precision for gpu in ("v100s-32gb", "a100-sxm-80gb"))

    assert old.unpacked_from_rows == 51
    assert new.unpacked_from_rows is None


def test_awq_is_slower_than_fp8_at_large_batch() -> None:
    """Weights are unpacked for 16-bit arithmetic, and arithmetic binds; at batch 1 it is the faster one. A model large
    enough that the GPU binds, not the host."""
    awq, fp8 = (
        [decode_seconds(name, batch, "llama-3.1-70b", hardware="h200-sxm-141gb") for batch in (1, 256)]
        for name in ("awq-int4", "fp8")
    )

    assert awq[0] < 0.7 * fp8[0]
    assert awq[1] > 1.2 * fp8[1]


def test_llama_cpp_writes_k_quants_out_for_every_512_tokens_of_a_prompt() -> None:
    """Twice for 1,024 tokens: 16 + 4.8 bit over the bandwidth each time; up to 32 tokens are read packed."""
    shape, plain = (
        make_shape("rtx-4090-24gb", "llama-3-8b", engine="llama.cpp", version="b2700", quantization=name)
        for name in ("gguf-q4_k_m", "fp16")
    )
    low, wide = (price(each, 2048).step_times.token_seconds for each in (shape, plain))
    linear = sum(gemm.num_weights for gemm in shape.model.attention_gemms(1) + shape.model.mlp_gemms(0, 1))
    once = 32 * linear * (16 + 4.8) / 8 / (1008e9 * 0.92 * 0.95)

    assert low[512] - wide[512] == pytest.approx(once, rel=0.1)
    assert low[1024] - wide[1024] == pytest.approx(2 * once, rel=0.1)
    assert low[32] < wide[32]


def test_k_quants_of_experts_are_multiplied_as_they_are() -> None:
    """llama.cpp has a kernel for them: nothing is written out, in time or in memory."""
    mixtral = make_shape("h100-sxm-80gb", "mixtral-8x7b", engine="llama.cpp", quantization="gguf-q4_k_m")

    assert mixtral.precision.has_packed_experts
    unpacked = make_shape("h100-sxm-80gb", "mixtral-8x7b", quantization="nf4", version=BITSANDBYTES)
    assert not unpacked.precision.has_packed_experts
    assert activation_bytes(mixtral) < 1e9


@pytest.mark.parametrize(
    ("hardware", "engine", "quantization", "share"),
    [
        ("a100-sxm-80gb", "vllm", "awq-int4", 0.60),
        ("a100-sxm-80gb", "vllm", "fp8", 0.60),
        ("a100-sxm-80gb", "sglang", "gptq-int4", 0.60),
        ("rtx-6000-ada-48gb", "vllm", "gptq-int4", 0.82),
        ("h100-sxm-80gb", "vllm", "awq-int4", 0.39),
        ("h100-sxm-80gb", "sglang", "gptq-int4", 0.39),
        ("b200-sxm-180gb", "vllm", "awq-int4", 0.19),
        ("b300-sxm-270gb", "vllm", "awq-int4", 0.19),
    ],
)
def test_marlin_loses_what_unpacking_takes(hardware: str, engine: str, quantization: str, share: float) -> None:
    """The more tensor cores there are beside the cores that unpack; Hopper's and Blackwell's are called the old way."""
    precision = make_shape(hardware, engine=engine, quantization=quantization).precision

    assert precision.compute_share == pytest.approx(share, abs=0.01)
    assert precision.min_tile_rows == 16


@pytest.mark.parametrize(
    ("hardware", "engine", "quantization"),
    [
        ("h100-sxm-80gb", "vllm", "gptq-int4"),  # Machete
        ("a100-sxm-80gb", "tensorrt-llm", "awq-int4"),
        ("a100-sxm-80gb", "lmdeploy", "awq-int4"),
    ],
)
def test_other_kernels_that_unpack_keep_their_class_share(hardware: str, engine: str, quantization: str) -> None:
    """Kernels that are not Marlin's have no measured share."""
    precision = make_shape(hardware, engine=engine, quantization=quantization).precision

    assert (precision.compute_share, precision.overlap) == (0.8, 1.0)


def test_weights_are_unpacked_anew_for_every_so_many_rows() -> None:
    """GGUF writes them in 16 bit once for each 2,048 rows, here for each 512: one, two and three times."""
    precision = replace(make_shape("rtx-4090-24gb", engine="llama.cpp", quantization="gguf-q4_k_m").precision)
    precision = replace(precision, unpacked_from_rows=1, unpacked_rows=512)
    machine = make_shape("rtx-4090-24gb").machine
    once, same, twice, thrice = unpacking_parts(precision, machine, 1e9, np.array([1.0, 512.0, 513.0, 1500.0])).sum(
        axis=0
    )

    assert (same, twice, thrice) == pytest.approx((once, 2 * once, 3 * once))


@pytest.mark.parametrize(
    ("model", "quantization", "measured", "beside"),
    [("qwen3.5-27b", "gptq-int4", 27.51, 0.86), ("qwen3.5-35b-a3b", "awq-int4", 23.71, 0.86 + 1.6)],
)
def test_hybrids_in_4_bit_keep_attention_in_16(model: str, quantization: str, measured: float, beside: float) -> None:
    """GiB that vLLM loads of Qwen3.6-27B in Qwen's GPTQ layout and of QuantTrio's 35B-A3B, with its vision tower (and
    MTP), which are beside; all matrices in 4 bit would be 10 and 3 GiB less."""
    served = load_model(model)

    weights = weights_bytes_per_gpu(served, quantization) / 2**30

    assert weights == pytest.approx(measured - beside, rel=0.06)
    kept = ("attention", "attention_output", "linear_attention")
    assert [part_bits(served, quantization, part) for part in kept] == [16.0, 16.0, 16.0]
