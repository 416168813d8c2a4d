"""States of linear attention that share the KV pool (vLLM), held to what servers logged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simserve.errors import InfeasibleError
from simserve.perf.kv_layout import exports_states, pool_block_bytes, pools_states
from simserve.planner.export.export import export
from simserve.scenario.fit import check_fit, fit_notes
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import ResolvedScenario, resolve

GIB = 1024**3


def served(model: str, hardware: str, version: str, **deployment: Any) -> ResolvedScenario:
    """Return a hybrid model under vLLM; keys of the engine and of the deployment alike."""
    own = {
        key: deployment.pop(key)
        for key in ("tensor_parallel_size", "kv_cache_dtype", "speculative")
        if key in deployment
    }
    return resolve(
        from_mapping(
            {
                "name": "hybrid",
                "model": model,
                "deployment": {
                    "hardware": hardware,
                    **own,
                    "engine": {"name": "vllm", "version": version, "language_model_only": True, **deployment},
                },
                "workload": {
                    "arrivals": {"process": "poisson", "rate": 1},
                    "prompt_tokens": 256,
                    "output_tokens": 64,
                    "num_requests": 20,
                },
            }
        )
    )


@pytest.mark.parametrize(
    ("model", "hardware", "version", "room", "length", "seats", "block", "blocks", "tokens"),
    [
        ("qwen3.5-27b", "rtx-pro-6000-96gb", "0.20.2", 29.47, 8192, 512, 784, 615, 359_862),
        ("qwen3.5-9b", "rtx-4090-24gb", "0.27.1", 1.74, 24_576, 8, 528, 108, 53_084),
    ],
)
def test_blocks_and_tokens_are_those_of_the_log(
    model: str, hardware: str, version: str, room: float, length: int, seats: int, block: int, blocks: int, tokens: int
) -> None:
    """Start-up logs of Qwen3.6-27B (pool, blocks, tokens) and of an image model's prompt writer of Qwen3.5-9B's shape.

    vLLM prints the tokens of as many requests of full length as there is room for.
    """
    limits = {"max_model_len": length, "max_num_seqs": seats}
    found = served(model, hardware, version, kv_cache_memory_bytes=f"{room} GiB", **limits)

    assert found.shape.engine.block_size == found.engine.block_size == block
    assert found.engine.num_blocks == pytest.approx(blocks, abs=1)
    # The log rounds the room to a hundredth of a GiB.
    assert found.memory.max_concurrent_full_length * length == pytest.approx(tokens, rel=0.005 / room + 0.008)
    assert found.memory.num_kv_blocks * block == pytest.approx(tokens, rel=0.005 / room + 0.015)
    assert found.memory.states_bytes == 0


def test_a_block_of_two_ranks_is_half_as_large() -> None:
    """Two RX 7900 XT of vLLM issue 49064, Qwen3.8-27B: 3.86 GiB a GPU are 161 blocks, 123,399 tokens of 122,633."""
    found = served(
        "qwen3.5-27b",
        "rtx-pro-6000-96gb",
        "0.23.1",
        tensor_parallel_size=2,
        max_model_len=122_633,
        max_num_seqs=16,
        kv_cache_memory_bytes="3.86 GiB",
    )

    assert found.engine.block_size == 784
    assert found.engine.num_blocks == pytest.approx(161, abs=1)
    assert found.memory.max_concurrent_full_length * 122_633 == pytest.approx(123_399, rel=0.01)


def test_states_weigh_as_much_as_the_layers_that_share_a_block() -> None:
    """48 layers of states, 16 of keys: three blocks for a state, beside a cache too, and three more for each draft.

    What vLLM logs as the most requests of full length reckons with a second state beside a cache.
    """
    model, hardware = "qwen3.5-27b", "h200-sxm-141gb"
    limits = {"max_model_len": 8192, "max_num_seqs": 64}
    plain = served(model, hardware, "0.24", **limits)
    cached = served(model, hardware, "0.24", enable_prefix_caching=True, **limits)
    drafted = served(
        model,
        hardware,
        "0.24",
        speculative={"method": "ngram", "num_speculative_tokens": 2, "acceptance_rate": 0.5},
        **limits,
    )

    groups = [each.engine.window_groups for each in (plain, cached, drafted)]
    assert groups == [3, 3, 9]
    full, beside = (each.memory.max_concurrent_full_length / each.engine.num_blocks for each in (plain, cached))
    assert (1 / full, 1 / beside) == pytest.approx((11 + 3, 11 + 6))
    assert plain.engine.keeps_states
    assert (plain.engine.full_groups, plain.engine.window_blocks) == (1, 1)
    assert pool_block_bytes(plain.shape, 0.0) == 784 * 4096 * 16


def test_narrow_keys_make_blocks_longer() -> None:
    """Of a byte an element twice as many tokens are as large as a state."""
    wide, narrow = (
        served("qwen3.5-27b", "h200-sxm-141gb", "0.24", max_num_seqs=64, max_model_len=8192, kv_cache_dtype=each)
        for each in ("auto", "fp8")
    )

    assert (wide.engine.block_size, narrow.engine.block_size) == (784, 1568)
    assert wide.engine.num_blocks == pytest.approx(narrow.engine.num_blocks, rel=0.01)


def test_the_engine_starts_with_no_more_seats_than_blocks() -> None:
    """From 0.20 on an explicit 1,024 is refused, with the most there is room for; the default becomes that."""
    model, hardware = "qwen3.5-27b", "h100-sxm-80gb"
    asked = served(model, hardware, "0.24", max_model_len=8192, max_num_seqs=1024)
    default = served(model, hardware, "0.24", max_model_len=8192)
    before = served(model, hardware, "0.19", max_model_len=8192, max_num_seqs=1024)

    assert not asked.memory.fits
    most = asked.memory.most_seats
    assert most is not None
    with pytest.raises(
        InfeasibleError, match=f"does not start with max_num_seqs 1,024: the KV pool has {most:,} blocks"
    ):
        check_fit(asked)
    assert 0.9 * most < default.engine.max_num_seqs <= (default.memory.most_seats or 0)
    assert default.shape.engine.sources["max_num_seqs"].endswith("room for their states")
    assert before.memory.fits
    [note] = [each for each in fit_notes(default) if "seats" in each]
    assert f"{default.engine.max_num_seqs} are simulated" in note
    assert not [each for each in fit_notes(before) if "seats" in each]
    assert f"--max-num-seqs {default.engine.max_num_seqs}" in export(default.scenario, "vllm").line


def test_earlier_releases_and_other_engines_keep_states_beside_the_pool() -> None:
    """vLLM's engine V0 and SGLang have room of their own for them."""
    pooled = served("qwen3.5-27b", "h200-sxm-141gb", "0.24", max_num_seqs=8)
    others = [
        served("nemotron-nano-9b-v2", "h200-sxm-141gb", "0.10.1", max_num_seqs=8),
        served("qwen3.5-27b", "h200-sxm-141gb", "0.5.23", name="sglang", max_num_seqs=8),
    ]

    assert pools_states(pooled.shape)
    for each in others:
        assert not pools_states(each.shape)
        assert each.memory.states_bytes > 0
        assert not each.engine.keeps_states
        assert each.memory.most_seats is None


@pytest.mark.parametrize(
    ("model", "hardware", "version", "exports", "block"),
    [
        ("qwen3.5-9b", "h100-sxm-80gb", "0.32", False, 528),
        ("qwen3.5-9b", "h100-sxm-80gb", "0.33", True, 576),
        ("qwen3.5-9b", "a100-sxm-80gb", "0.33", False, 528),
        ("qwen3.5-9b", "rtx-4090-24gb", "0.33", False, 528),
        ("nemotron-3-nano-30b-a3b", "h100-sxm-80gb", "0.31", False, 2096),
        ("nemotron-3-nano-30b-a3b", "a100-sxm-80gb", "0.32", True, 2096),
    ],
)
def test_states_amid_a_chunk_need_the_release_and_the_gpu_that_write_them(
    model: str, hardware: str, version: str, exports: bool, block: int
) -> None:
    """Gated DeltaNet from Hopper on, in blocks of whole 64 tokens; Mamba-2 anywhere, and its blocks stay."""
    found = served(model, hardware, version, max_model_len=16384, max_num_seqs=4)

    assert (exports_states(found.shape), found.shape.engine.block_size) == (exports, block)


def test_layers_of_fixed_decay_write_no_state_amid_a_chunk() -> None:
    """Lightning attention has kernels of its own."""
    shape = served("qwen3.5-9b", "h100-sxm-80gb", "0.33", max_model_len=16384, max_num_seqs=4).shape
    fixed = shape.model.state_layers.model_copy(update={"has_fixed_decay": True})  # type: ignore[union-attr]
    model = shape.model.model_copy(update={"linear_attention": fixed})

    assert not exports_states(replace(shape, model=model))


def test_logs_before_0_20_1_divide_blocks_by_their_groups() -> None:
    """Of four groups, three keep states: a quarter of the pool's blocks, in tokens."""
    plan = served("qwen3.5-9b", "h100-sxm-80gb", "0.20.0", max_model_len=16384, max_num_seqs=4).memory

    assert plan.windows is not None
    assert plan.logged_tokens == plan.windows.num_blocks // 4 * plan.block_size
