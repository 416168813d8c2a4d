"""KV blocks and tokens that engines printed, from the GiB they printed beside them."""

from __future__ import annotations

import pytest

from simserve.perf.memory import MemoryPlan, kv_bytes_per_token, plan_memory
from simserve.units import GIB
from tests.perf.shapes import make_hardware, make_model, make_shape


def _plan(model: str, kv_gibibytes: float, **fields: object) -> MemoryPlan:
    """Return the plan of a GPU that has exactly so much left for KV; limits are set, as defaults follow the memory."""
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 20_000, "block_size": 16}
    served = make_model(model, **fields)
    plan = plan_memory(make_shape(model=served, gpu_memory_utilization=1.0, **limits))
    total = plan.total_bytes - plan.kv_bytes + kv_gibibytes * GIB
    gpu = make_hardware(memory={"total": total})
    return plan_memory(make_shape(gpu, served, gpu_memory_utilization=1.0, **limits))


def test_vllm_issue_10517() -> None:
    """RTX 3090: 23.58 GiB x 0.90 - 17.06 peak - 0.35 = 3.81 GiB; 1,952 blocks, 1.56 requests of 20,000 tokens.

    The log rounds to 0.01 GiB, 5 blocks.
    """
    left = 23.58 * 0.90 - 17.06 - 0.35

    plan = _plan("llama-3.1-8b", left)

    assert left == pytest.approx(3.81, abs=0.005)
    assert plan.num_kv_blocks == pytest.approx(1952, abs=5)
    assert plan.max_concurrent_full_length == pytest.approx(1.56, abs=0.005)


def test_the_whole_plan_of_vllm_issue_10517() -> None:
    """Nothing given but the card: 17.06 GiB of weights and activations within 0.5 %, KV within 1 % of the GPU."""
    shape = make_shape("rtx-3090-24gb", version="0.6.3", max_model_len=20_000)

    plan = plan_memory(shape)

    assert (plan.weights_bytes + plan.activation_bytes) / GIB == pytest.approx(17.06, rel=0.005)
    assert plan.kv_bytes / GIB == pytest.approx(3.81, abs=0.01 * 23.58)


@pytest.mark.parametrize(
    ("hardware", "model", "quantization", "share", "kv_gib"),
    [
        ("rtx-4090-24gb", "llama-3.1-8b", "none", 0.9, 41_408 * 131_072 / GIB),
        ("a100-sxm-80gb", "gpt-oss-20b", "mxfp4", 0.65, 36.56),
    ],
)
def test_logs_of_vllm_0_19(hardware: str, model: str, quantization: str, share: float, kv_gib: float) -> None:
    """256 seats, where what sampling takes in any case shows: within 1 % of the GPU.

    LLMServingSim's replay on an RTX 4090 (41,408 tokens) and a start-up log on an A100 (36.56 GiB).
    """
    shape = make_shape(
        hardware,
        model,
        version="0.19.0",
        quantization=quantization,
        max_model_len=32_768,
        gpu_memory_utilization=share,
    )

    plan = plan_memory(shape)

    assert plan.kv_bytes / GIB == pytest.approx(kv_gib, abs=0.01 * plan.total_bytes / GIB)


def test_vllm_issue_19996() -> None:
    """Llama-3.1-8B and the layer of its EAGLE head: 33 layers of 4,096 B; 51.63 GiB are 410,128 tokens."""
    plan = _plan("llama-3.1-8b", 51.63, num_hidden_layers=33)

    assert plan.kv_bytes_per_token == 135_168
    assert plan.longest_sequence == 410_128


def test_hf_mem_issue_60() -> None:
    """gpt-oss-120b: 73,728 B a token, pages of sliding layers charged in full; 5.38 GiB are 78.4 k tokens."""
    plan = _plan("gpt-oss-120b", 5.38)

    assert plan.kv_bytes_per_token == 73_728
    assert plan.longest_sequence == pytest.approx(78_400, abs=100)


@pytest.mark.parametrize(
    ("model", "ranks", "num_bytes"),
    [("llama-3.1-8b", 1, 131_072), ("llama-3-70b", 1, 327_680), ("deepseek-v3", 1, 70_272), ("deepseek-v3", 8, 70_272)],
)
def test_kv_of_a_token(model: str, ranks: int, num_bytes: int) -> None:
    """32 x 8 x 128 x 2 x 2, 80 x 8 x 128 x 2 x 2; latent 61 x (512 + 64) x 2, the same on every tensor rank."""
    assert kv_bytes_per_token(make_shape(model=model, tensor_parallel_size=ranks)) == num_bytes
