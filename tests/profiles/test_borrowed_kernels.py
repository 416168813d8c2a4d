"""Fitted kernels of one GPU on another of its architecture."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.errors import ProfileError
from simserve.perf.tables import price
from simserve.profiles.hardware import load_hardware
from simserve.profiles.kernel_curves import GemmCurve, GroupedGemmCurve, TileCurve
from tests.perf.shapes import make_shape


def test_the_same_gpu_on_another_module_has_the_same_shares() -> None:
    """A GH200 holds an H100: curves and all, but for the fit that would say they were measured on it."""
    own, fitted = load_hardware("gh200-96gb"), load_hardware("h100-sxm-80gb")
    first, second = own.gemm_curves["fp8"][0], fitted.gemm_curves["fp8"][0]

    assert (first.efficiency, first.memory_efficiency) == (second.efficiency, second.memory_efficiency)
    assert own.attention_curves is not None
    assert first.fit is None


def test_a_module_in_a_node_of_four_sustains_what_its_power_leaves() -> None:
    """251 to 256 TFLOP/s in TF32 at 557 to 561 W (torch-hammer); arithmetic falls by as much, memory and starts not."""
    four, alone = load_hardware("gh200-nvl4-96gb"), load_hardware("gh200-96gb")
    slow, fast = four.gemm_curves["bf16"][0], alone.gemm_curves["bf16"][0]

    assert 251e12 <= four.efficiency.gemm * (four.peak_flops("tf32") or 0.0) <= 256e12
    assert four.power.board < alone.power.board
    share = four.efficiency.gemm / alone.efficiency.gemm
    assert slow.sustained_efficiency / fast.sustained_efficiency == pytest.approx(share)
    assert (slow.memory_efficiency, slow.start_latency) == (fast.memory_efficiency, fast.start_latency)
    assert four.efficiency.attention_prefill / alone.efficiency.attention_prefill == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize(
    ("name", "clock"),
    [("b200-sxm-180gb", 1.85), ("b300-sxm-270gb", 1.85), ("gb200-186gb", 2.06), ("gb300-279gb", 2.06)],
)
def test_marlins_experts_run_on_blackwell_as_fast_as_on_hopper(name: str, clock: float) -> None:
    """A multiprocessor runs Ampere's instructions alike at one clock, though its peak is twice Hopper's."""
    reached = []
    for hardware in (load_hardware(name), load_hardware("h200-sxm-141gb")):
        assert hardware.compute.bf16 is not None
        assert hardware.attention_curves is not None
        share = hardware.grouped_gemm_curves["int4_weight_only"][0].efficiency
        reached.append(share * hardware.compute.bf16 / hardware.attention_curves.num_multiprocessors)

    assert reached[0] / reached[1] == pytest.approx(clock / 1.83, rel=0.01)


def test_shares_go_with_those_of_the_class() -> None:
    """An A100 on PCIe reaches 0.70 of its peak where the SXM module reaches 0.80."""
    own, fitted = load_hardware("a100-pcie-80gb"), load_hardware("a100-sxm-80gb")

    assert own.gemm_curves["bf16"][0].efficiency == pytest.approx(
        fitted.gemm_curves["bf16"][0].efficiency * 0.70 / 0.80
    )


def test_collectives_need_the_same_link() -> None:
    """NVLink's curves say nothing of PCIe."""
    assert load_hardware("a100-pcie-80gb").collective_curves is None
    assert load_hardware("b200-sxm-180gb").collective_curves is not None


def test_decode_attention_goes_with_the_ordinary_cores() -> None:
    """From B200 to GB200 tensor cores grow 2.50 / 2.25 times, softmax and conversion with FP32: 80 for 75 TFLOP/s."""
    own, fitted = (load_hardware(name) for name in ("gb200-186gb", "b200-sxm-180gb"))
    ratio = (own.peak_flops("fp32") or 0.0) / (fitted.peak_flops("fp32") or 1.0)
    ratio /= (own.peak_flops("bf16") or 0.0) / (fitted.peak_flops("bf16") or 1.0)
    assert own.attention_curves is not None
    assert fitted.attention_curves is not None

    found = own.attention_curves.kernels[0].decode.compute / fitted.attention_curves.kernels[0].decode.compute

    assert found == pytest.approx(ratio, rel=1e-3)
    assert own.attention_curves.num_multiprocessors == 148


def test_borrowed_figures_are_no_fits() -> None:
    """The result says roofline."""
    priced = price(make_shape("gh200-96gb", "llama-3.1-8b"), 64)

    assert priced.fidelity == "roofline"
    assert priced.operators["attention"] == "roofline"


def test_a_gpu_without_curves_of_its_own_lends_none(tmp_path: Path) -> None:
    """Chains are refused: one line, with the key."""
    text = (Path(__file__).parents[2] / "hardware_profiles" / "gh200-96gb.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("kernels_of: h100-sxm-80gb", "kernels_of: a100-pcie-80gb"))

    with pytest.raises(ProfileError, match="curves of its own") as caught:
        load_hardware(str(path))
    assert caught.value.key == "kernels_of"


def test_blackwell_borrows_from_blackwell() -> None:
    """GB200 and Blackwell Ultra have the kernels of a B200, not of Hopper: decoding over FP8 keys, 128 heads a rank."""
    shapes = (
        make_shape(
            name,
            "deepseek-r1",
            engine="sglang",
            version="0.5.8",
            quantization="fp8",
            kv_cache_dtype="fp8",
            data_parallel_size=8,
            enable_expert_parallel=True,
        )
        for name in ("b200-sxm-180gb", "gb200-186gb", "b300-sxm-270gb", "gb300-279gb")
    )
    first, *others = (price(shape, 64).step_times.decode_slope[32] for shape in shapes)

    assert others == pytest.approx([first] * 3, rel=0.1)


def test_few_rows_are_no_tile_of_64_where_arithmetic_is_scarce() -> None:
    """An H20 has a seventh of an H100's arithmetic and more bandwidth: one sequence decodes no slower on it."""
    slow, fast = (
        price(make_shape(name, "llama-3.1-8b"), 64).step_times.decode_base[1] for name in ("h20-96gb", "h100-sxm-80gb")
    )

    assert slow < fast


@pytest.mark.parametrize(
    ("model", "engine", "version", "quantization"),
    [
        ("mixtral-8x7b", "sglang", "0.5.5", "none"),
        ("llama-3.1-8b", "vllm", "0.25", "none"),
        ("phi-4", "tensorrt-llm", "1.2", "awq-int4"),
    ],
)
def test_a_card_of_the_same_chip_is_no_quicker_than_its_module(
    model: str, engine: str, version: str, quantization: str
) -> None:
    """An A100 on PCIe has the kernels of the SXM module, less power and less bandwidth."""
    card, module = (
        price(make_shape(name, model, engine=engine, version=version, quantization=quantization), 64).step_times
        for name in ("a100-pcie-80gb", "a100-sxm-80gb")
    )

    for rows in (1, 8, 64):
        assert 1.0 <= card.decode_base[rows] / module.decode_base[rows] < 1.2


@pytest.mark.parametrize("name", ["a100-pcie-80gb", "a100-sxm-40gb", "b300-sxm-270gb", "gb300-279gb", "gh200-96gb"])
def test_tiles_are_the_lenders_where_compute_is_not_scarcer(name: str) -> None:
    """Whatever power and bandwidth are; an H20's are narrow."""
    document = (Path(__file__).parents[2] / "hardware_profiles" / f"{name}.yaml").read_text()
    lender = load_hardware(document.split("kernels_of: ")[1].split()[0])
    own, scarce, plenty = (load_hardware(each) for each in (name, "h20-96gb", "h200-sxm-141gb"))

    for each in ("gemm_curves", "grouped_gemm_curves"):
        for kernels, curves in getattr(lender, each).items():
            assert [_rows(curve) for curve in getattr(own, each)[kernels]] == [_rows(curve) for curve in curves]
    assert _rows(scarce.gemm_curves["bf16"][0]) == 16 < _rows(plenty.gemm_curves["bf16"][0])
    assert _rows(scarce.grouped_gemm_curves["bf16"][0]) == 16 < _rows(plenty.grouped_gemm_curves["bf16"][0])


def _rows(curve: TileCurve) -> int:
    return curve.tile_rows if isinstance(curve, GroupedGemmCurve) else GemmCurve.model_validate(curve).min_tile_rows


@pytest.mark.parametrize("engine", [("vllm", "0.25"), ("sglang", "0.5.18")])
def test_experts_in_sixteen_bit_run_on_an_mi325x_as_on_an_mi300x(engine: tuple[str, str]) -> None:
    """The same chip beside faster memory: never slower, and by no more than the bandwidth."""
    first, second = (
        price(make_shape(name, "qwen3-30b-a3b", engine=engine[0], version=engine[1]), 64).step_times
        for name in ("mi300x-192gb", "mi325x-256gb")
    )

    for rows in (1, 8, 64):
        assert 1.0 <= first.decode_base[rows] / second.decode_base[rows] <= 6.0 / 5.3


@pytest.mark.parametrize("name", ["h20-96gb", "rtx-4090-24gb", "l4-24gb"])
def test_weights_unpacked_in_a_product_leave_its_tiles_as_narrow(name: str) -> None:
    """TensorRT-LLM's kernels for INT4 weights have the tiles of plain ones: one row never takes longer for it."""
    packed, plain = (
        price(
            make_shape(name, "qwen3-8b", engine="tensorrt-llm", version="1.3", quantization=each, max_model_len=2048),
            64,
        ).step_times
        for each in ("awq-int4", "none")
    )

    assert packed.decode_base[1] < 0.8 * plain.decode_base[1]
