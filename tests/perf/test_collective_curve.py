"""Fitted collectives: monotone in the message, nothing for one rank, right sizes of known all-reduces."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.perf.collectives import all_reduce_curve_seconds, transfer_curve_seconds
from simserve.profiles.hardware import load_hardware
from simserve.profiles.kernel_curves import CollectiveCurves
from tests.perf.shapes import make_hardware, make_shape

MESSAGES = np.geomspace(1.0, 4e9, 400)
PROFILES = ("h100-sxm-80gb", "h200-sxm-141gb", "a100-sxm-80gb")


def curves_of(name: str) -> CollectiveCurves:
    """Return the collectives of a catalogue GPU that has them."""
    curves = load_hardware(name).collective_curves
    assert curves is not None
    return curves


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_larger_message_never_takes_less_time(name: str, ranks: int) -> None:
    """Across every change of algorithm."""
    curves = curves_of(name)
    times = [all_reduce_curve_seconds(curve, MESSAGES, ranks, 450e9) for curve in curves.all_reduce]
    times += [transfer_curve_seconds(curve, MESSAGES, ranks, 450e9) for curve in curves.transfers]

    assert all(np.all(np.diff(seconds) >= 0) for seconds in times)


@pytest.mark.parametrize("name", PROFILES)
def test_nccls_short_messages_take_longer_than_an_engines_own(name: str) -> None:
    """Tables of AIConfigurator: 1.5 to 4 times as long at 64 KiB; the same from 64 MiB on."""
    curves = curves_of(name)
    short, long = np.array([2.0**16]), np.array([2.0**26])

    for ranks in (2, 4, 8):
        nccl, own = (
            [all_reduce_curve_seconds(curves.all_reduce_of(each), size, ranks, 450e9)[0] for size in (short, long)]
            for each in ("nccl", "vllm")
        )
        assert 1.4 < nccl[0] / own[0] < 5.0
        assert nccl[1] == pytest.approx(own[1], rel=0.15)


@pytest.mark.parametrize(("engine", "version", "whose"), [("vllm", "0.2.1", "nccl"), ("vllm", "0.6.6", "vllm")])
def test_engines_without_an_all_reduce_of_their_own_call_nccl(engine: str, version: str, whose: str) -> None:
    """vLLM has one from 0.3.0 on; LMDeploy of 2024 had none."""
    assert make_shape(engine=engine, version=version, tensor_parallel_size=2).tensor_link.engine == whose
    assert make_shape(engine="lmdeploy", tensor_parallel_size=2).tensor_link.engine == "nccl"


def test_one_rank_waits_for_nobody() -> None:
    """A group of one communicates nothing."""
    curves = curves_of("h200-sxm-141gb")

    assert np.all(all_reduce_curve_seconds(curves.all_reduce[0], MESSAGES, 1, 450e9) == 0)
    assert np.all(transfer_curve_seconds(curves.transfers[0], MESSAGES, 1, 450e9) == 0)


@pytest.mark.parametrize(("num_bytes", "measured"), [(8192, 5.1e-6), (1 << 20, 14.1e-6), (1 << 28, 1052e-6)])
def test_all_reduce_of_vllm_on_eight_h200_is_near_the_table(num_bytes: int, measured: float) -> None:
    """8 KB, 1 MB and 256 MB (AIConfigurator, vLLM 0.24, CUDA graph), within 20 %."""
    curve = curves_of("h200-sxm-141gb").all_reduce_of("vllm")
    predicted = all_reduce_curve_seconds(curve, np.array([float(num_bytes)]), 8, 450e9)[0]

    assert predicted == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("ranks", "expected"), [(2, 15.5e9), (4, 13e9), (8, 6.5e9)])
def test_gpus_that_talk_through_host_memory_share_it(ranks: int, expected: float) -> None:
    """Each has its own link or its part of what passes host memory, whichever is less."""
    link = {"bandwidth": 15.5e9, "shared_bandwidth": 52e9}
    hardware = make_hardware("rtx-4090-24gb", intra_node=link)

    assert make_shape(hardware, tensor_parallel_size=ranks).tensor_link.bandwidth == pytest.approx(expected)


@pytest.mark.parametrize("name", ["rtx-2080-ti-11gb", "rtx-3090-24gb", "rtx-3090-ti-24gb", "rtx-4090-24gb"])
def test_geforce_cards_talk_through_host_memory(name: str) -> None:
    """Eight of them share what its memory moves."""
    assert make_shape(name, tensor_parallel_size=8).tensor_link.bandwidth == pytest.approx(6.5e9)


@pytest.mark.parametrize(("ranks", "expected"), [(2, 48e9), (4, 144e9), (8, 336e9)])
def test_gpus_of_a_mesh_talk_over_the_links_to_each_other(ranks: int, expected: float) -> None:
    """Two MI300X have one link of 48 GB/s between them, eight have seven each."""
    shape = make_shape("mi300x-192gb", tensor_parallel_size=ranks)

    assert shape.tensor_link.bandwidth == pytest.approx(expected)


def test_ranks_of_tensorrt_llm_on_blackwell_wait_less_for_one_another() -> None:
    """A fitted wait of an engine stands in place of that of all others, and of borrowers of the curves too."""

    def skew_kernels(hardware: str, engine: str) -> float:
        shape = make_shape(hardware, engine=engine, tensor_parallel_size=4)
        return shape.tensor_link.skew / shape.hardware.efficiency.kernel_latency

    assert skew_kernels("b200-sxm-180gb", "tensorrt-llm") == pytest.approx(0.2)
    assert skew_kernels("gb200-186gb", "tensorrt-llm") == pytest.approx(0.2)
    assert skew_kernels("b200-sxm-180gb", "vllm") == pytest.approx(0.8)
    assert skew_kernels("h200-sxm-141gb", "tensorrt-llm") == pytest.approx(0.8)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_a_rank_keeps_its_own_share_of_what_is_gathered(kind: str) -> None:
    """It sends (n - 1) / n of the bytes: half of them over two ranks, seven eighths over eight."""
    curve = next(each for each in curves_of("h200-sxm-141gb").transfers if each.kind == kind)
    two, eight = (np.diff(transfer_curve_seconds(curve, np.array([1e9, 2e9]), ranks, 450e9))[0] for ranks in (2, 8))

    assert eight / two == pytest.approx((7 / 8) / (1 / 2))
