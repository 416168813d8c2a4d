"""Fitted kernels of one GPU on another of its architecture."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.errors import ProfileError
from simserve.perf.tables import price
from simserve.profiles.hardware import load_hardware
from tests.perf.shapes import make_shape


def test_the_same_gpu_on_another_module_has_the_same_shares() -> None:
    """A GH200 holds an H100: curves and all, but for the fit that would say they were measured on it."""
    own, fitted = load_hardware("gh200-96gb"), load_hardware("h100-sxm-80gb")
    first, second = own.gemm_curves["fp8"][0], fitted.gemm_curves["fp8"][0]

    assert (first.efficiency, first.memory_efficiency) == (second.efficiency, second.memory_efficiency)
    assert own.attention_curves is not None
    assert first.fit is None


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
    """From H200 to B300 tensor cores grow 2.3 times, softmax and conversion with FP32: 75 for 66.9 TFLOP/s."""
    own, fitted = (load_hardware(name).attention_curves for name in ("b300-sxm-270gb", "h200-sxm-141gb"))
    assert own is not None
    assert fitted is not None
    ratio = own.kernels[0].decode.compute / fitted.kernels[0].decode.compute

    assert ratio == pytest.approx(75.0 / 66.9 / (2250.0 / 989.4), rel=1e-3)
    assert own.num_multiprocessors == 148


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


def test_few_rows_are_no_tile_of_64_where_arithmetic_is_scarce() -> None:
    """An H20 has a seventh of an H100's arithmetic and more bandwidth: one sequence decodes no slower on it."""
    slow, fast = (
        price(make_shape(name, "llama-3.1-8b"), 64).step_times.decode_base[1] for name in ("h20-96gb", "h100-sxm-80gb")
    )

    assert slow < fast
