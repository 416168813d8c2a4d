"""Curves of MI300X from the times that AMD's kernel library ships: read, fitted, held out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibration.laboratory.fits import aiter_fit
from calibration.laboratory.fits.moe_fit import predict_experts
from simserve.perf.gemm import gemm_seconds
from simserve.perf.tables import price
from simserve.profiles.hardware import load_hardware
from simserve.profiles.kernel_curves import GemmClass, GemmCurve
from tests.perf.shapes import make_shape


def write_products(folder: Path, seconds: float = 1.0) -> None:
    """Write products as the library does, whose times are those of the bundled curve, times ``seconds``."""
    sizes = [(m, n, k) for n, k in ((512, 7168), (4096, 512), (7168, 2048)) for m in (16, 64, 256, 1024, 4096, 16384)]
    rows = pd.DataFrame(sizes, columns=["m", "n", "k"])
    curve = load_hardware("mi300x-192gb").gemm_curves["fp8_block"][0]
    us = aiter_fit.predict_products(curve, rows) * seconds * 1e6
    table = pd.DataFrame({"cu_num": 304, "M": rows["m"], "N": rows["n"], "K": rows["k"], "us": us})
    other = table.assign(cu_num=256, us=1.0)
    pd.concat([table, other]).to_csv(folder / "a8w8_blockscale_tuned_gemm.csv", index=False)


def test_products_of_the_gpu_alone_are_read(tmp_path: Path) -> None:
    """The table holds those of other GPUs, by their number of compute units."""
    write_products(tmp_path)

    rows = aiter_fit.product_rows(tmp_path)
    assert len(rows) == 18
    assert rows["seconds"].min() > 1e-6


def test_a_fit_follows_the_table_and_not_the_profile(tmp_path: Path) -> None:
    """Times three times as long make a curve of thrice the time, also for weights that it did not see."""
    write_products(tmp_path, seconds=3.0)
    rows = aiter_fit.product_rows(tmp_path)

    assert np.median(np.abs(aiter_fit.product_errors(rows, rows))) < 0.03
    assert aiter_fit.held_out(rows, ["n", "k"], aiter_fit.product_errors) < 0.2


def test_experts_are_the_fastest_call_of_each_size_on_the_smaller_gpu(tmp_path: Path) -> None:
    """Several kernels were timed; calls of few experts are of another kind."""
    row = {
        "cu_num": 80, "token": 16, "model_dim": 4096, "inter_dim": 384, "expert": 128, "topk": 8, "use_g1u1": 1,
        "q_type": "QuantType.No", "q_dtype_w": "torch.bfloat16", "us": 260.0,
    }  # fmt: skip
    others = [row | {"us": 250.0}, row | {"cu_num": 256}, row | {"expert": 8}, row | {"q_type": "QuantType.per_Token"}]
    pd.DataFrame([row, *others]).to_csv(tmp_path / "tuned_fmoe.csv", index=False)

    rows = aiter_fit.expert_rows(tmp_path, rounding="No", bits=16.0)
    assert rows["us"].tolist() == [250.0]
    calls = aiter_fit.expert_calls(rows, 16.0)
    assert calls.load.distinct[0] == pytest.approx(128 * (1 - (1 - 8 / 128) ** 16))


def test_experts_of_the_profile_take_what_the_table_says_and_the_kernels_beside_it() -> None:
    """16 tokens over 256 experts of 7,168 x 256 in FP8: 237 us on an MI308X, and 15 us of sorting and rounding."""
    table = pd.DataFrame(
        [{"token": 16, "model_dim": 7168, "inter_dim": 256, "expert": 256, "topk": 8, "use_g1u1": 1, "us": 237.1}]
    )
    curve = load_hardware("mi300x-192gb").grouped_gemm_curves_of("sglang")["fp8"]

    calls = aiter_fit.expert_calls(table, 8.0)
    taken = predict_experts(curve, calls, aiter_fit.expert_device(8.0))[0]
    assert taken == pytest.approx(calls.seconds[0] + 15e-6, rel=0.1)


@pytest.mark.parametrize("kernels", ["bf16", "fp8"])
def test_experts_by_triton_of_the_profile_are_aiters_with_the_shares_that_its_tables_tell(kernels: GemmClass) -> None:
    """Products of 8 experts and 64 to 4,096 tokens; those of weights left out within 11 % in the median."""
    profile = load_hardware("mi300x-192gb")
    triton, aiter = (profile.grouped_gemm_curves_of("vllm", backend)[kernels] for backend in ("triton", "aiter"))
    rows = aiter_fit.triton_rows(kernels)
    fitted = aiter_fit.fit_triton(rows, kernels)

    assert triton.efficiency == pytest.approx(fitted.efficiency, rel=0.01)
    assert triton.memory_efficiency == pytest.approx(fitted.memory_efficiency, rel=0.01)
    shares = {"efficiency", "memory_efficiency", "fit", "backend"}
    assert triton.model_dump(exclude=shares) == aiter.model_dump(exclude=shares)
    assert aiter_fit.held_out(rows, ["n"], partial(aiter_fit.triton_errors, kernels=kernels)) < 0.11


def test_experts_by_triton_take_longer_by_what_engines_measured() -> None:
    """Neither was fitted to. By AITER's experts DeepSeek-V3 over eight MI300X gains 25 to 35 %, a step of 64 sequences
    taking 45.8 ms then (SGLang pull request 4053); by Triton's Llama-4-Maverick takes 1.17 times as long between
    tokens, some 400 of 500 sequences in flight (vLLM pull request 17110)."""

    def seconds(model: str, backend: str, tokens: int, **rest: Any) -> float:
        shape = make_shape("mi300x-192gb", model, version="0.24", tensor_parallel_size=8, moe_backend=backend, **rest)
        return float(price(shape, 1024).parts.token[:, tokens].sum())

    triton, aiter = (seconds("deepseek-v3", backend, 64, quantization="fp8") for backend in ("triton", "aiter"))
    assert 0.25 < (triton - aiter) / 45.8e-3 < 0.35
    triton, aiter = (seconds("llama-4-maverick", backend, 400) for backend in ("triton", "aiter"))
    assert triton / aiter == pytest.approx(1.17, abs=0.05)


def test_a_fit_to_experts_in_mxfp4_follows_the_times() -> None:
    """Layers that take thrice as long make a curve of thrice the time."""
    rows = aiter_fit.mxfp4_rows()
    slower = rows.assign(us=3.0 * rows["us"])

    assert np.median(np.abs(aiter_fit.mxfp4_errors(slower, slower))) < 0.05


def test_experts_in_mxfp4_of_the_profiles_are_those_of_the_table() -> None:
    """Both GPUs have the same units. Eight tokens take 118 us and 16,384 take 6.6 ms, and 5 us of sorting."""
    curves = [
        load_hardware(name).grouped_gemm_curves["mxfp4_weight_only"][0] for name in ("mi300x-192gb", "mi325x-256gb")
    ]
    assert curves[0] == curves[1]

    calls = aiter_fit.mxfp4_calls(aiter_fit.mxfp4_rows())
    taken = predict_experts(curves[1].model_copy(update={"local_passes": 0.0}), calls, aiter_fit.MXFP4_DEVICE)
    assert taken - 5e-6 == pytest.approx(calls.seconds, rel=0.1)


@pytest.mark.parametrize("name", list(aiter_fit.INT4_PACES))
def test_experts_in_int4_of_the_profiles_are_those_of_the_layers_at_the_pace_of_the_gpu(name: str) -> None:
    """One fit serves two GPUs each; of MI300X's, layers of whole sources left out within 15 % in the median."""
    rows = aiter_fit.int4_rows()
    is_cdna4 = "mi35" in name
    fitted = aiter_fit.fit_int4(aiter_fit.cdna4_rows(), aiter_fit.INT4_TILES) if is_cdna4 else aiter_fit.fit_int4(rows)
    own = load_hardware(name).grouped_gemm_curves_of("vllm")["int4_weight_only"]

    assert own == load_hardware(name).grouped_gemm_curves_of("sglang")["int4_weight_only"]
    assert (own.efficiency, own.memory_efficiency) == pytest.approx(aiter_fit.int4_shares(fitted, name), rel=0.01)
    assert own.step_latency == pytest.approx(fitted.step_latency, rel=0.01)
    assert (own.tile_rows, own.narrow_tile_rows) == (fitted.tile_rows, fitted.narrow_tile_rows)
    assert aiter_fit.held_out(rows, ["source"], aiter_fit.int4_errors) < 0.15


def test_experts_in_int4_on_cdna4_are_flat_and_then_grow() -> None:
    """Times of an MI350X: within 20 % from 128 tokens to chunks of 16,384; single tokens of an MI355X as well."""
    rows = aiter_fit.cdna4_rows()
    fitted = aiter_fit.fit_int4(rows, aiter_fit.INT4_TILES)

    errors = aiter_fit.predict_int4(fitted, rows) / (rows["us"].to_numpy() * 1e-6) - 1.0

    assert np.abs(errors[rows["gpu"] == "mi350x-288gb"]).max() < 0.2
    assert np.abs(errors[(rows["gpu"] == "mi355x-288gb") & (rows["token"] <= 2)]).max() < 0.2


def test_a_prompt_of_kimi_on_four_mi355x_takes_what_was_measured() -> None:
    """No server was fitted to. 1,024 tokens to one client under vLLM 0.17: 566 ms, 276 with an MI300X's pace."""
    shape = make_shape("mi355x-288gb", "kimi-k2.5", version="0.17.0", tensor_parallel_size=4, quantization="int4")
    prompt = price(shape, 2048).parts.token[:, 1024].sum()

    assert 0.45 < prompt < 0.6


def test_a_fit_to_experts_in_int4_follows_the_times() -> None:
    """Layers that take thrice as long make a curve of about thrice the time."""
    rows = aiter_fit.int4_rows()
    slower = rows.assign(us=3.0 * rows["us"])

    assert np.median(np.abs(aiter_fit.int4_errors(slower, slower))) < 0.08


@pytest.mark.parametrize("name", ["mi300x-192gb", "mi325x-256gb"])
def test_products_by_triton_of_the_profiles_are_those_of_the_calls(name: str) -> None:
    """One constant for nine calls of two laboratories; those of the other laboratory within 10 % in the median."""
    rows = aiter_fit.triton_products()
    own = load_hardware(name).gemm_curves_of("triton")["fp8_block"]

    fitted = aiter_fit.fit_triton_products(rows)
    assert own.efficiency == own.sustained_efficiency == pytest.approx(fitted.efficiency, rel=0.01)
    assert own.model_dump(exclude={"efficiency", "sustained_efficiency", "fit", "engines"}) == fitted.model_dump(
        exclude={"efficiency", "sustained_efficiency", "fit", "engines"}
    )
    assert aiter_fit.held_out(rows, ["source"], aiter_fit.triton_product_errors) < 0.1
    slower = rows.assign(us=3.0 * rows["us"])
    assert np.median(np.abs(aiter_fit.triton_product_errors(slower, slower))) < 0.1


@pytest.mark.parametrize("name", ["mi300x-192gb", "mi325x-256gb"])
def test_tritons_own_tiles_are_aiters_products_at_its_share_of_the_peak(name: str) -> None:
    """Nothing is fitted. 2,048 by 3,072 with 1 to 32 rows is 2.3 to 3.3 times as quick as by the one tile (ROCm/aiter
    pull request 3493, MI325X), 3.4 times so."""
    tuned, plain = (load_hardware(name).gemm_curves_of(maker)["fp8_block"] for maker in ("triton_tuned", "triton"))
    aiters = load_hardware("mi300x-192gb").gemm_curves_of("vllm")["fp8_block"]

    rows = np.array([1.0, 8.0, 32.0])
    num_bytes = 2048.0 * 3072 + rows * (3072 + 2.0 * 2048)
    times = [
        gemm_seconds(curve, aiter_fit.MI300X, rows=rows, out_features=2048, in_features=3072, num_bytes=num_bytes).total
        for curve in (plain, tuned)
    ]

    own = {"efficiency": plain.efficiency, "sustained_efficiency": plain.efficiency}
    out = {"fit", "engines"}
    assert tuned.model_dump(exclude=out) == aiters.model_copy(update=own).model_dump(exclude=out)
    assert np.all((times[0] / times[1] > 2.3) & (times[0] / times[1] < 3.5))


def test_a_server_gains_by_aiters_products_of_few_rows_what_was_measured() -> None:
    """Not fitted to: Qwen3-14B in FP8 by blocks over two MI300X under SGLang, sixteen prompts of 1,024 and answers as
    long. With AITER's products up to 256 rows 830 tokens/s become 1,862 (AMD-AGI/GEAK pull request 304); a step of
    sixteen takes 2.2 times as long without."""

    def seconds(makers: dict[str, str]) -> float:
        shape = make_shape(
            "mi300x-192gb", "qwen3-14b", engine="sglang", version="0.5.13", quantization="fp8", tensor_parallel_size=2
        )
        shape = replace(shape, engine=shape.engine.model_copy(update={"block_scaled_kernels": makers}))
        return float(price(shape, 1024).step_times.decode_base[16])

    triton, aiter = seconds({"AMD": "triton"}), seconds({})
    assert 1.7 < triton / aiter < 2.7


SKINNY = (
    (13312, 17792, 101.95),
    (76032, 13312, 415.90),
    (38016, 13312, 218.97),
    (35584, 13312, 204.59),
    (19968, 13312, 124.36),
    (19008, 13312, 110.44),
    (17792, 13312, 102.21),
    (9984, 13312, 65.60),
    (8896, 13312, 51.32),
    (4992, 13312, 26.16),
    (8192, 12288, 42.34),
    (4096, 11008, 22.29),
    (13312, 8896, 52.52),
    (76032, 8192, 303.87),
)
"""Columns, reduction and microseconds of one row by wvSpltK on an MI300X (ROCm/rocm-libraries pull request 12329)."""


def test_one_row_in_16_bit_takes_what_vllms_kernel_takes() -> None:
    """14 calls, the start of two constants aside; one row by tiles takes 1.3 times as long in the median."""
    curves = {maker: load_hardware("mi300x-192gb").gemm_curves_of(maker)["bf16"] for maker in ("skinny", "sglang")}
    device = replace(aiter_fit.MI300X, peak=aiter_fit.PEAKS[16.0])

    def ratio(curve: GemmCurve) -> float:
        ratios = [
            gemm_seconds(
                curve, device, rows=np.ones(1), out_features=n, in_features=k, num_bytes=np.full(1, 2.0 * n * k)
            ).total[0]
            / (us * 1e-6 + curve.start_latency)
            for n, k, us in SKINNY
        ]
        return float(np.median(ratios))

    assert ratio(curves["skinny"]) == pytest.approx(1.0, abs=0.05)
    assert ratio(curves["sglang"]) > 1.25


def test_a_token_of_one_sequence_is_quicker_by_vllms_kernels_of_few_rows() -> None:
    """Not fitted to. Llama-3.1-70B in 16 bit over eight MI300X, 128 tokens: 1.412 s without the kernels, 1.289 s with
    them (vLLM pull request 15830)."""

    def seconds(version: str, name: str = "mi300x-192gb", engine: str = "vllm") -> float:
        shape = make_shape(name, "llama-3.1-70b", engine=engine, version=version, tensor_parallel_size=8)
        plain = replace(shape, engine=shape.engine.model_copy(update={"wide_kernels": {}}))
        steps = [price(each, 64).step_times.decode_base for each in (plain, shape)]
        assert steps[0][5] == steps[1][5]  # more rows have the tiles
        return float(steps[0][1] - steps[1][1])

    assert 0.5e-3 < seconds("0.8.5") < 2.5e-3  # 0.96 ms measured
    assert seconds("0.8.5", "mi325x-256gb") > 0.0
    assert seconds("0.8.4") == seconds("0.8.5", "h200-sxm-141gb") == seconds("0.5.9", engine="sglang") == 0.0


BATCHED = (
    (32, 1280, 8192, 123.5316),
    (128, 1280, 8192, 197.9104),
    (256, 1280, 8192, 256.7255),
    (512, 1280, 8192, 461.2279),
    (2048, 1280, 8192, 1381.6015),
    (32, 8192, 1024, 84.2878),
    (128, 8192, 1024, 125.0599),
    (256, 8192, 1024, 182.1985),
    (512, 8192, 1024, 322.0123),
    (2048, 8192, 1024, 1133.4458),
)
"""Rows, columns, reduction and microseconds of 16 products at once (bf16_tuned_batched_gemm.csv of amd-aiter 0.1.7)."""


def write_batched(folder: Path) -> None:
    """Write these products as the library does, with those of another GPU."""
    table = pd.DataFrame(BATCHED, columns=["M", "N", "K", "us"]).assign(cu_num=304, B=16)
    pd.concat([table, table.assign(cu_num=80, us=1.0)]).to_csv(folder / "bf16_tuned_batched_gemm.csv", index=False)


@pytest.mark.parametrize("name", ["mi300x-192gb", "mi325x-256gb"])
def test_arithmetic_of_16_bit_products_hides_no_memory_traffic_on_cdna_3(tmp_path: Path, name: str) -> None:
    """The exponent that follows AITER's times best is the least, 1; the rest of the curve is the class's."""
    write_batched(tmp_path)
    rows = aiter_fit.batched_rows(tmp_path)
    curve = load_hardware(name).gemm_curves_of("vllm")["bf16"]

    assert aiter_fit.fit_overlap(rows) == pytest.approx(1.0, abs=0.05)
    expected = aiter_fit.class_curve(name, 1.0)
    fields = ("start_latency", "efficiency", "loop_overhead", "overlap", "memory_efficiency", "split_latency")
    assert [getattr(curve, each) for each in fields] == pytest.approx([getattr(expected, each) for each in fields])
    if name == "mi300x-192gb":
        errors = np.abs(aiter_fit.predict_batched(curve, rows) / rows["seconds"] - 1.0)
        usual = np.abs(aiter_fit.predict_batched(aiter_fit.class_curve(name, 3.0), rows) / rows["seconds"] - 1.0)
        assert np.median(errors) < 0.15 < 0.2 < np.median(usual)


TOKEN_PRODUCTS = ((64, 20.6714), (128, 23.7352), (256, 29.6374), (512, 42.0669), (2048, 112.617))
"""Rows and microseconds of 7,168 columns and sums of 8,192 in FP8 by token on 256 compute units
(a8w8_bpreshuffle_tuned_gemm.csv)."""


def test_products_of_cdna_4_take_the_time_of_arithmetic_and_memory_one_after_the_other() -> None:
    """The class is within 10 % of AITER's times; with one hidden behind the other, up to 512 rows take 0.8 at most."""
    table = pd.DataFrame(TOKEN_PRODUCTS, columns=["m", "us"]).assign(n=7168, k=8192)
    overlap = load_hardware("mi355x-288gb").efficiency.gemm_overlap or 3.0

    own, hidden = (
        aiter_fit.predict_products(aiter_fit.class_curve("mi355x-288gb", each, "fp8"), table, aiter_fit.CDNA4[8.0])
        for each in (overlap, 3.0)
    )
    assert own * 1e6 == pytest.approx(table["us"], rel=0.1)
    assert np.all(hidden[:4] * 1e6 < 0.8 * table["us"][:4])


BLOCK_PRODUCTS = (
    (16, 7168, 2304, 8.6748),
    (128, 7168, 2304, 11.0009),
    (1024, 7168, 2304, 49.9650),
    (8192, 7168, 2304, 285.6152),
    (128, 7168, 8192, 27.4045),
    (1024, 7168, 8192, 101.4492),
    (8192, 7168, 8192, 617.8080),
)
"""Rows, columns, reduction and microseconds of AITER's kernel without shuffled weights, to which nothing is fitted
(a8w8_blockscale_tuned_gemm.csv of amd-aiter 0.1.7, 256 compute units)."""


def test_block_scaled_products_of_cdna_4_are_those_of_another_kernel_too() -> None:
    """Within 35 % each, 15 % in the median; the class takes less than 0.7 of the longest."""
    rows = pd.DataFrame(BLOCK_PRODUCTS, columns=["m", "n", "k", "us"])
    profile = load_hardware("mi355x-288gb")
    curves = profile.gemm_curves_of("vllm")["fp8_block"], aiter_fit.class_curve("mi355x-288gb", 1.0, "fp8")

    taken, by_class = (aiter_fit.predict_products(curve, rows, aiter_fit.CDNA4[8.0]) * 1e6 for curve in curves)
    errors = np.abs(taken / rows["us"] - 1.0)
    assert errors.max() < 0.35
    assert np.median(errors) < 0.15
    assert by_class[-1] < 0.7 * rows["us"].iloc[-1]
    assert profile.gemm_curves_of("sglang")["fp8_block"] == curves[0]


def test_an_mi350x_has_the_shares_of_an_mi355x() -> None:
    """Which of the two was timed is not said; each has them of its own peaks."""
    first, second = load_hardware("mi350x-288gb"), load_hardware("mi355x-288gb")

    assert first.gemm_curves_of("vllm") == second.gemm_curves_of("vllm")
    of_experts = [each.grouped_gemm_curves_of("vllm", "aiter")["fp8_block"] for each in (first, second)]
    assert of_experts[0] == of_experts[1]
    overlaps = [(each.efficiency.gemm_overlap, each.efficiency.grouped_gemm_overlap) for each in (first, second)]
    assert overlaps == [(1, 2), (1, 2)]


BLOCK_EXPERTS = (
    (256, 16, 112.93),
    (256, 128, 246.41),
    (256, 512, 416.20),
    (256, 1024, 729.28),
    (512, 16, 208.87),
    (512, 128, 482.44),
    (512, 512, 631.24),
    (512, 1024, 974.55),
)
"""Width of an expert, tokens and microseconds of DeepSeek-V3's layer on 256 compute units (tuned_fmoe.csv)."""


def test_block_scaled_experts_of_cdna_4_take_what_the_table_says_and_the_kernels_beside_it() -> None:
    """Each within a quarter, with 15 us of sorting and rounding."""
    table = pd.DataFrame(BLOCK_EXPERTS, columns=["inter_dim", "token", "us"])
    rows = table.assign(model_dim=7168, expert=256, topk=8, use_g1u1=1)
    calls = aiter_fit.expert_calls(rows, 8.0)
    curve = load_hardware("mi355x-288gb").grouped_gemm_curves_of("vllm", "aiter")["fp8_block"]

    taken = predict_experts(curve, calls, aiter_fit.CDNA4[8.0])
    assert taken - 15e-6 == pytest.approx(calls.seconds, rel=0.25)


def test_block_scales_add_passes_over_the_pairs_of_a_rank_on_mi300x() -> None:
    """Four layers of DeepSeek-V3 on an MI308X, of 512 and 1,024 tokens, are those of scales by token and ten passes."""
    table = [(256, 512, 703.6877), (256, 1024, 1110.7637), (512, 512, 1218.4273), (512, 1024, 1869.5469)]
    rows = pd.DataFrame(table, columns=["inter_dim", "token", "us"])
    rows = rows.assign(model_dim=7168, expert=256, topk=8, use_g1u1=1)
    curves = load_hardware("mi300x-192gb").grouped_gemm_curves_of("vllm", "aiter")
    bare = curves["fp8"].model_copy(update={"start_latency": curves["fp8"].start_latency - 15e-6})

    passes = curves["fp8_block"].local_passes
    assert passes == pytest.approx(aiter_fit.fit_block_passes(rows, bare), rel=0.03)
    kept = curves["fp8_block"].model_dump(exclude={"local_passes", "fit"})
    assert kept == curves["fp8"].model_dump(exclude={"local_passes", "fit"})


@pytest.mark.parametrize("name", ["mi350x-288gb", "mi355x-288gb"])
def test_tuned_experts_in_mxfp4_of_the_profiles_follow_the_tables(name: str) -> None:
    """78 layers of three models, sorting beside them: 5 % in the median, no call by more than half."""
    rows = aiter_fit.tuned_mxfp4_rows()
    curve = load_hardware(name).grouped_gemm_curves["mxfp4"][0]
    fitted = aiter_fit.fit_tuned_mxfp4(rows)
    errors = aiter_fit.tuned_mxfp4_errors(rows, rows)

    assert len(rows) == 78
    assert curve.engines == ("aiter",)
    assert curve.start_latency == pytest.approx(fitted.start_latency + aiter_fit.SORTING, rel=0.01)
    assert curve.efficiency == pytest.approx(fitted.efficiency, rel=0.01)
    assert curve.memory_efficiency == pytest.approx(fitted.memory_efficiency, rel=0.01)
    assert curve.loop_overhead == pytest.approx(fitted.loop_overhead, rel=0.01)
    assert np.median(np.abs(errors)) < 0.055
    assert np.max(np.abs(errors)) < 0.5
