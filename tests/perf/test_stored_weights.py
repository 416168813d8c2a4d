"""Weights as checkpoints store them, held to the sizes of published files and of start-up logs."""

from __future__ import annotations

import pytest

from simserve.perf.memory import plan_memory
from simserve.perf.shape import checkpoint_bytes, weights_bytes_per_gpu
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile
from simserve.units import GIB
from tests.perf.shapes import make_model, make_shape

ON_DISK = [
    # `total_size` of model.safetensors.index.json, except where another source stands.
    ("meta-llama/Llama-3.1-8B", 16_060_522_496),
    ("meta-llama/Llama-3.1-70B", 141_107_412_992),
    ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", 9_081_280_648),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", 72.7e9),  # its files on huggingface.co
    ("openai/gpt-oss-20b", 13_761_264_768),
    ("openai/gpt-oss-120b", 65_248_815_744),
    ("ggml-org/gpt-oss-20b-GGUF", 11.27 * GIB),  # llama.cpp benches/dgx-spark.md
    ("ggml-org/gpt-oss-120b-GGUF", 59.02 * GIB),  # the same
    ("deepseek-ai/DeepSeek-R1", 688_586_727_753),
    ("nvidia/DeepSeek-R1-0528-NVFP4-v2", 413_340_567_567),  # bytes of all its files
]


@pytest.mark.parametrize(("repository", "size"), ON_DISK)
def test_weights_take_what_their_files_take(repository: str, size: float) -> None:
    """Within 2 %; DeepSeek's files hold the layer for multi-token prediction too."""
    model = load_model(repository)

    found = checkpoint_bytes(model, model.stored.format) + _mtp_bytes(model)
    assert found == pytest.approx(size, rel=0.02)


def _mtp_bytes(model: ModelProfile) -> float:
    """Return the bytes of the layers for multi-token prediction, with the copies of embedding and head they bring."""
    if not model.num_mtp_layers:
        return 0.0
    longer = model.model_copy(update={"num_hidden_layers": model.num_hidden_layers + 1, "checkpoints": ()})
    kind = model.stored.mtp_format
    layer = checkpoint_bytes(longer, kind) - checkpoint_bytes(model.model_copy(update={"checkpoints": ()}), kind)
    return model.num_mtp_layers * (layer + 2 * 2 * model.num_embedding_parameters)


def test_metas_fp8_keeps_attention_and_two_mlps_wide() -> None:
    """Llama-3.1-405B-Instruct-FP8: 72 GB more for attention and 5 for two MLPs than ModelOpt's, all FP8."""
    metas, modelopts = (load_model(f"{name}/Llama-3.1-405B-Instruct-FP8") for name in ("meta-llama", "nvidia"))

    attention = 126 * sum(gemm.num_weights for gemm in metas.attention_gemms())
    mlps = 2 * sum(gemm.num_weights for gemm in metas.mlp_gemms())
    assert attention == pytest.approx(71.9e9, rel=1e-3)
    more = checkpoint_bytes(metas, "fp8") - checkpoint_bytes(modelopts, "fp8")
    assert more == pytest.approx(attention + mlps, rel=1e-9)


def test_metas_first_fp8_checkpoint_took_what_vllm_logged() -> None:
    """57.752 GiB a GPU of 8 (vLLM issue 6746, July 2024): it had 16 key-value heads, each of the 8 twice."""
    doubled = make_model("llama-3.1-405b", num_key_value_heads=16)

    assert weights_bytes_per_gpu(doubled, "fp8", 8) / GIB == pytest.approx(57.752, rel=0.002)


def test_what_metas_fp8_leaves_for_kv() -> None:
    """On 8 x H100 189,000 tokens, in all FP8 343,000; with the doubled heads of the first release half of that."""
    metas, modelopts = (load_model(f"{name}/Llama-3.1-405B-Instruct-FP8") for name in ("meta-llama", "nvidia"))
    doubled = make_model("llama-3.1-405b", num_key_value_heads=16)
    tokens = [
        plan_memory(make_shape(model=model, tensor_parallel_size=8, quantization="fp8")).kv_bytes
        / (126 * 2 * model.num_key_value_heads / 8 * 128 * 2)
        for model in (metas, modelopts, doubled)
    ]

    assert tokens[0] == pytest.approx(189_000, rel=0.02)
    assert tokens[1] == pytest.approx(343_000, rel=0.02)
    assert tokens[2] < 0.5 * tokens[0]


def test_part_of_the_layers_in_another_format_takes_part_of_the_time() -> None:
    """A step of a model with half of its MLPs in FP8 lies between one in FP8 and one in 16 bit."""
    other = {"parts": ["mlp"], "format": "none", "layers": list(range(16))}
    half, whole = (
        make_model(checkpoints=[{"format": "fp8", "other_formats": others, "source": "a test"}])
        for others in ([other], [])
    )
    mixed, narrow, wide = (
        price(make_shape(model=model, quantization=name), 64).step_times.decode_base[1]
        for model, name in ((half, "fp8"), (whole, "fp8"), (whole, "none"))
    )

    assert narrow < mixed < wide


def test_a_group_size_adds_its_scales() -> None:
    """Kimi-K2.5's groups of 32: 4.5 bits a weight, where groups of 128 have 4.125."""
    checkpoints = ([{"format": "int4", "group_size": size, "source": "a test"}] for size in (32, 128))
    narrow, wide = (make_shape(model=make_model(checkpoints=each), quantization="int4") for each in checkpoints)

    assert (narrow.precision.weight_bits, wide.precision.weight_bits) == (4.5, 4.125)
    assert plan_memory(narrow).weights_bytes > plan_memory(wide).weights_bytes
