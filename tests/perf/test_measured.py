"""Operator tables of the user: what they cover is measured, what they do not stays a curve, and nothing speeds up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from simserve.errors import InputError
from simserve.perf.measured import measured_attention, measured_operators
from simserve.perf.tables import price
from tests.perf.shapes import make_shape

REAL = Path(__file__).resolve().parents[3] / "shared/data/kernels/aiconfigurator/h100_sxm"
SIZES = (1, 16, 64, 256, 1024)
HIDDEN = (1024, 4096, 16384, 65536)


def write(folder: Path, table: str, query: str, family: str = "gemm", backend: str = "vllm/1.0") -> Path:
    """Write a table by an SQL query, in the layout that is read."""
    path = folder / family / backend / f"{table}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    duckdb.sql(query).write_parquet(str(path))
    return path


def gemm_query(latency: str, sizes: tuple[int, ...] = SIZES, dtype: str = "bfloat16") -> str:
    """Return matrix products of all sizes at a latency in ms, an SQL expression of m, n and k."""
    axes = ", ".join(
        f"(select unnest({list(values)})) as t_{name}({name})"
        for name, values in (("m", sizes), ("n", HIDDEN), ("k", HIDDEN))
    )
    return f"select '{dtype}' as gemm_dtype, m, n, k, {latency} as latency from {axes}"


def attention_query(table: str, latency: str) -> str:
    """Return attention with the heads of Llama-3.1-8B at a latency in ms, an SQL expression of b and s."""
    length = "s as isl" if table.startswith("context") else "s - 1 as step"
    return (
        f"select b as batch_size, {length}, 32 as num_heads, 8 as num_key_value_heads, 128 as head_dim, "
        f"0 as window_size, 'bfloat16' as kv_cache_dtype, {latency} as latency from "
        "(select unnest([1, 4, 16, 64])) as t(b), (select unnest([128, 512, 2048])) as u(s)"
    )


def with_tables(folder: Path, **deployment: Any) -> Any:
    """Return a deployment that reads operator tables."""
    return dataclasses.replace(make_shape(**deployment), operator_tables=folder)


def test_a_product_takes_what_the_table_says(tmp_path: Path) -> None:
    """Measured at three times the curve's weights' time, the products of a step take it, in and between the sizes."""
    write(tmp_path, "gemm_perf", gemm_query("1e-8 * n * k / 1e3"))
    gemms = make_shape().model.attention_gemms(1) + make_shape().model.mlp_gemms(0, 1)
    expected = 32 * sum(1e-14 * gemm.num_weights for gemm in gemms)

    measured = price(with_tables(tmp_path), 64)
    curve = price(make_shape(), 64)
    others = curve.parts.token.sum(axis=0) - gemm_seconds(64)

    for tokens in (1, 10, 40):
        assert measured.step_times.token_seconds[tokens] - others[tokens] == pytest.approx(expected, rel=1e-6)


def gemm_seconds(num_tokens: int) -> np.ndarray:
    """Return what the products of Llama-3.1-8B take by the curves, all layers, by tokens (0 first)."""
    from simserve.perf.stage import projection, stage_of

    stage = stage_of(make_shape())
    gemms = make_shape().model.attention_gemms(1) + make_shape().model.mlp_gemms(0, 1)
    tokens = np.arange(1.0, num_tokens + 1)
    seconds = 32 * sum(projection(stage, gemm, tokens).sum(axis=0) for gemm in gemms)
    return np.concatenate(([0.0], np.asarray(seconds)))


def test_the_result_says_which_operators_are_measured(tmp_path: Path) -> None:
    """Products are, attention and the LM head (128,256 columns, more than measured) are not: the worst counts."""
    write(tmp_path, "gemm_perf", gemm_query("1e-8 * n * k / 1e3"))
    priced = price(with_tables(tmp_path), 64)

    assert priced.operators == {"gemm": "measured", "lm_head": "fitted", "attention": "fitted"}
    assert priced.fidelity == "fitted"


def test_attention_is_brought_into_the_forms_of_a_step(tmp_path: Path) -> None:
    """A decode step of 5 us and 1 ns a key, a prompt of 8 us, 2 ns a token and 0.01 ns a pair."""
    write(tmp_path, "gemm_perf", gemm_query("1e-8 * n * k / 1e3"))
    decode = attention_query("generation", "0.005 + 1e-6 * b * s")
    prompts = attention_query("context", "0.008 + 2e-6 * b * s + 1e-8 * b * s * (s + 1) / 2")
    write(tmp_path, "generation_attention_perf", decode, "attention")
    write(tmp_path, "context_attention_perf", prompts, "attention")

    priced = price(with_tables(tmp_path), 64)

    assert priced.operators["attention"] == "measured"
    assert priced.step_times.decode_slope[1] == pytest.approx(32 * 1e-9, rel=0.01)
    assert priced.step_times.prefill_pair_seconds == pytest.approx(32 * 1e-11, rel=0.01)


def test_an_all_reduce_takes_what_the_table_says(tmp_path: Path) -> None:
    """Message sizes are in elements of 16 bit; another number of ranks stays a curve."""
    query = (
        "select 'bfloat16' as allreduce_dtype, 2 as num_gpus, unnest([1024, 1048576]) as message_size, 0.5 as latency"
    )
    write(tmp_path, "custom_allreduce_perf", query, "comm")
    two, four = (price(with_tables(tmp_path, tensor_parallel_size=ranks), 64) for ranks in (2, 4))

    assert two.operators["all_reduce"] == "measured"
    assert two.parts.token[3, 8] == pytest.approx(64 * 0.5e-3, rel=0.02)
    assert four.operators["all_reduce"] == "fitted"


def test_experts_take_what_the_table_says(tmp_path: Path) -> None:
    """Sizes, experts and how they lie on the ranks must be those measured."""
    query = (
        "select 'bfloat16' as moe_dtype, unnest([1, 64, 1024]) as num_tokens, 4096 as hidden_size, "
        "14336 as inter_size, "
        "2 as topk, 8 as num_experts, 1 as moe_tp_size, 1 as moe_ep_size, 'balanced' as distribution, 20.0 as latency"
    )
    write(tmp_path, "moe_perf", query, "moe")
    one = price(with_tables(tmp_path, model="mixtral-8x7b", hardware="h200-sxm-141gb"), 64)
    two = price(with_tables(tmp_path, model="mixtral-8x7b", tensor_parallel_size=2), 64)

    assert one.operators["experts"] == "measured"
    assert one.step_times.token_seconds[32] > 32 * 20e-3
    assert two.operators["experts"] == "fitted"


def test_no_step_gets_faster_with_more_tokens_however_odd_the_table(tmp_path: Path) -> None:
    """Times that fall with m, jump, and end at 256 tokens: what follows is never below the table's last."""
    write(
        tmp_path, "gemm_perf", gemm_query("(3 + sin(m + n) - m / 500.0) * 1e-9 * n * k / 1e3 + 0.01", (1, 8, 64, 256))
    )
    times = np.asarray(price(with_tables(tmp_path), 2000).step_times.token_seconds)

    assert np.all(np.diff(times) >= 0)
    assert times[2000] >= times[256]


@pytest.mark.parametrize(("slow", "is_kept"), [(1.5, True), (1.05, False)], ids=["beyond repeats", "within repeats"])
def test_few_rows_stay_slower_than_more_where_repeats_say_so(tmp_path: Path, slow: float, is_kept: bool) -> None:
    """Two rows take half as much again as four; with repeats 10 % up and down, 5 % more is chance, and cut off."""
    time = f"(1e-9 * n * k * case when m = 2 then {slow} else 1 + m / 1e4 end)"
    calls = gemm_query(time, (1, 2, 4, 64))
    write(tmp_path, "gemm_perf", f"select *, 0.9 * latency as latency_p10, 1.1 * latency as latency_p90 from ({calls})")
    operators = measured_operators(tmp_path, "vllm")
    times = price(with_tables(tmp_path), 64).step_times

    assert operators.has_dips == is_kept
    assert (times.decode_base[2] > 1.3 * times.decode_base[4]) == is_kept
    assert (times.token_seconds[3] > 1.1 * times.token_seconds[4]) == is_kept
    assert (times.token_seconds[2] > 1.3 * times.token_seconds[4]) == is_kept
    if not is_kept:
        assert np.all(np.diff(times.decode_base) >= 0)


def test_outside_the_measured_sizes_the_curve_stays(tmp_path: Path) -> None:
    """A table of products up to 256 columns says nothing of a model's."""
    query = gemm_query("1.0").replace(str(list(HIDDEN)), "[32, 256]")
    write(tmp_path, "gemm_perf", query)

    assert price(with_tables(tmp_path), 64).operators["gemm"] == "fitted"
    assert price(with_tables(tmp_path), 64).step_times == price(make_shape(), 64).step_times


def test_the_newest_version_of_the_engine_s_backend_is_read(tmp_path: Path) -> None:
    """Other backends' tables are left alone; TensorRT-LLM's folder is trtllm."""
    for backend, scale in (("vllm/0.9", 9), ("vllm/0.10", 1), ("trtllm/1.0", 5)):
        write(tmp_path, "gemm_perf", gemm_query(f"{scale}e-8 * n * k / 1e3"), backend=backend)
    vllm, trtllm = (
        price(with_tables(tmp_path, engine=name), 64).step_times.token_seconds[8] for name in ("vllm", "tensorrt-llm")
    )

    assert vllm < trtllm
    assert str(tmp_path / "gemm/vllm/0.10/gemm_perf.parquet") in str(measured_operators(tmp_path, "vllm").key.files)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select 'bfloat16' as gemm_dtype, 1 as m, 2 as n, 0.1 as latency", "lacks the column k;"),
        ("select 'bfloat16' as gemm_dtype, 1 as m, 2 as n, 3 as k", "lacks the column latency"),
        (gemm_query("0.0"), "latency above 0 ms"),
        (gemm_query("'nan'::double"), "latency above 0 ms"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path: Path, query: str, expected: str) -> None:
    """With the file and what is missing."""
    path = write(tmp_path, "gemm_perf", query)

    with pytest.raises(InputError, match=expected) as failure:
        measured_operators(tmp_path, "vllm")

    assert str(path) in str(failure.value)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    """Missing, empty, no Parquet, or of another backend."""
    with pytest.raises(InputError, match="is no folder"):
        measured_operators(tmp_path / "absent", "vllm")
    with pytest.raises(InputError, match=r"holds none of gemm_perf.parquet"):
        measured_operators(tmp_path, "vllm")
    path = write(tmp_path, "gemm_perf", gemm_query("1.0"), backend="trtllm/1.0")
    with pytest.raises(InputError, match="holds tables of trtllm, and none of vllm"):
        measured_operators(tmp_path, "vllm")
    path.write_text("no table")
    with pytest.raises(InputError, match="is no Parquet table"):
        measured_operators(tmp_path, "tensorrt-llm")


@pytest.mark.skipif(not REAL.is_dir(), reason="../shared/data is not here")
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_real_tables_and_the_curves_fitted_on_others_of_their_kind_agree(model: str) -> None:
    """Steps of an H100 by its own tables are within 25 % of those by the curves."""
    measured, fitted = (price(each) for each in (with_tables(REAL, model=model), make_shape(model=model)))

    assert measured.operators["gemm"] == measured.operators["attention"] == "measured"
    for batch in (1, 16, 64, 256):
        times = [
            each.step_times.decode_base[batch] + 1000 * batch * each.step_times.decode_slope[batch]
            for each in (measured, fitted)
        ]
        assert times[0] == pytest.approx(times[1], rel=0.25), batch
    for tokens in (512, 2048, 8000):
        assert measured.step_times.token_seconds[tokens] == pytest.approx(
            fitted.step_times.token_seconds[tokens], rel=0.25
        )


@pytest.mark.skipif(not REAL.is_dir(), reason="../shared/data is not here")
def test_the_affine_forms_of_real_attention_follow_the_calls() -> None:
    """Half the decode calls of 128 to 2,048 keys within 15 %."""
    operators = measured_operators(REAL, "vllm")
    model = make_shape().model
    decode, prompts = (
        operators.attention(f"{kind}_attention_perf", model.attention_layers[0], 1, False)
        for kind in ("generation", "context")
    )
    assert decode is not None
    assert prompts is not None
    attention = measured_attention(decode, prompts)
    usual = (decode.tokens >= 128) & (decode.tokens <= 2048)

    predicted = (
        attention.decode_base_seconds(decode.batch) + attention.decode_key_seconds * decode.batch * decode.tokens
    )
    assert np.median(np.abs(predicted / decode.seconds - 1)[usual]) < 0.15
