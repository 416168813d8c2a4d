"""Properties of every priced deployment: more work never takes less time, better hardware never more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.perf.operators import PricedDeployment
from simserve.perf.tables import price
from tests.fuzzing import examples
from tests.perf.shapes import make_hardware, make_model, make_shape

FEW = settings(max_examples=examples(40), deadline=None)

deployments = st.fixed_dictionaries(
    {
        "hardware": st.sampled_from(["h100-sxm-80gb", "a100-sxm-40gb", "l4-24gb", "rtx-4090-24gb"]),
        "model": st.sampled_from(["llama-3.1-8b", "llama-2-7b", "mixtral-8x7b", "falcon-40b", "gpt-3-175b"]),
        "tensor_parallel_size": st.sampled_from([1, 2, 4, 8]),
        "pipeline_parallel_size": st.sampled_from([1, 2, 3]),
        "quantization": st.sampled_from(["none", "fp8", "int8", "int4", "awq-int4"]),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8", "int4"]),
        "attention": st.sampled_from(["flash", "standard"]),
    }
)


def priced(deployment: dict[str, Any], **changes: Any) -> PricedDeployment:
    """Return a deployment priced over few tokens and seats."""
    return price(make_shape(**{**deployment, "max_num_seqs": 64, **changes}), 600)


def columns(result: PricedDeployment) -> dict[str, np.ndarray]:
    """Return every time of a deployment as an array."""
    times = result.step_times
    found = {name: np.atleast_1d(getattr(times, name)) for name in times.__slots__}
    found["mixed_decode_slope"] = found.pop("mixed_decode_factor") * found["decode_slope"]
    return found


@FEW
@given(deployments)
def test_more_work_never_takes_less_time(deployment: dict[str, Any]) -> None:
    """Monotone in tokens and sequences; every time is positive and finite."""
    times = columns(priced(deployment))

    for name in ("decode_base", "token_seconds", "sequence_seconds", "decode_attention_base"):
        assert np.all(np.diff(times[name]) >= 0), name
    assert all(np.all(np.isfinite(values)) and np.all(values >= 0) for values in times.values())
    assert times["token_seconds"][1] > 0
    assert times["token_seconds_beyond"][0] > 0


@FEW
@given(deployments, st.floats(1.0, 4.0), st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_better_hardware_never_takes_more_time(
    deployment: dict[str, Any], compute: float, memory: float, link: float
) -> None:
    """Monotone in peaks, memory bandwidth and link bandwidth: of layers and LM head together.

    Behind a last stage of fewer layers the head hides in what it saves, which is less on better hardware.
    """
    plain = make_hardware(deployment["hardware"])
    better = make_hardware(
        deployment["hardware"],
        memory={"bandwidth": plain.memory.bandwidth * memory},
        compute={name: plain.compute.__dict__[name] * compute for name in plain.supported_dtypes},
        intra_node={"bandwidth": plain.intra_node.bandwidth * link},
        inter_node={"bandwidth": plain.inter_node.bandwidth * link},
    )

    before, after = columns(priced(deployment)), columns(priced(deployment, hardware=better))

    before["step"], after["step"] = (_step_seconds(times) for times in (before, after))
    for name, values in before.items():
        hides_head = name == "sequence_seconds" and deployment["pipeline_parallel_size"] > 1
        assert hides_head or np.all(after[name] <= values * (1 + 1e-9)), name


def _step_seconds(times: dict[str, np.ndarray]) -> np.ndarray:
    """Return what steps take that sample one token for each, and one of them for the longest prompts."""
    sequence, token = times["sequence_seconds"], times["token_seconds"]
    return np.concatenate([sequence + token[: len(sequence)], sequence[1:2] + token[-1:]])


@FEW
@given(deployments)
def test_parts_sum_to_the_times(deployment: dict[str, Any]) -> None:
    """Columns of the parts sum to the arrays of the engine."""
    result = priced(deployment)

    assert result.parts.decode.sum(axis=0) == pytest.approx(result.step_times.decode_base, rel=1e-12, abs=0)
    assert result.parts.token.sum(axis=0) == pytest.approx(result.step_times.token_seconds, rel=1e-12, abs=0)
    assert result.parts.sequence.sum(axis=0) == pytest.approx(result.step_times.sequence_seconds, rel=1e-12, abs=0)


@FEW
@given(st.sampled_from(["llama-3.1-8b", "qwen3-8b", "llama-2-7b"]), st.sampled_from(["none", "fp8", "int4"]))
def test_twice_the_layers_take_twice_the_time(name: str, quantization: str) -> None:
    """Everything but LM head, sampling and host scales with the layers."""
    layers = make_model(name).num_hidden_layers
    once, twice = (
        price(make_shape(model=make_model(name, num_hidden_layers=count), quantization=quantization), 600)
        for count in (layers, 2 * layers)
    )

    assert twice.parts.token[:4] == pytest.approx(2 * once.parts.token[:4], rel=1e-9)
    assert twice.step_times.decode_slope[1] == pytest.approx(2 * once.step_times.decode_slope[1])


@FEW
@given(st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b"]), st.sampled_from([2, 4, 8]))
def test_tensor_parallelism_divides_weights_and_kv(name: str, ranks: int) -> None:
    """The time that weights and KV take falls with the ranks; routers and norms stay."""
    one, many = (price(make_shape(model=name, tensor_parallel_size=size), 64) for size in (1, ranks))

    assert many.parts.token[0, 1] == pytest.approx(one.parts.token[0, 1] / ranks, rel=0.02)
    assert many.step_times.decode_slope[1] == pytest.approx(one.step_times.decode_slope[1] / ranks)
    assert many.parts.token[3, 1] > one.parts.token[3, 1] == 0
