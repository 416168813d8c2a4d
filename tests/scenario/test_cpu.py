"""A server on a CPU: no CUDA graphs, launches on the thread that computes, and a host that nobody has measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from simserve.calibrate.factors import CPU_HOST_WIDTH, CPU_KERNEL_WIDTH, PRIORS
from simserve.calibrate.serving_factors import FactorCalibration
from simserve.calibrate.simulated import ServingModel
from simserve.perf.operators import COMPUTE
from simserve.perf.tables import price
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.scenario.schema import Scenario

PROFILE = Path(__file__).resolve().parents[2] / "calibration/runs/vllm-cpu-2026-11-26/profile-laid-out.yaml"


def served(folder: Path, *, is_cpu: bool, sampling: float | None = None, **engine: Any) -> Scenario:
    """Return a small model on the measured device, which its profile calls a CPU or not."""
    profile = {**yaml.safe_load(PROFILE.read_text(encoding="utf-8")), "is_cpu": is_cpu}
    if sampling is not None:
        profile["efficiency"]["sampling"] = sampling
    file = folder / f"{is_cpu}-{sampling}.yaml"
    file.write_text(yaml.safe_dump(profile), encoding="utf-8")
    options = {"name": "vllm", "version": "0.32.0", "async_scheduling": False, "block_size": 128, **engine}
    options["num_gpu_blocks_override"] = 200
    return from_mapping(
        {
            "name": "cpu",
            "model": "qwen2.5-0.5b",
            "deployment": {"hardware": str(file), "engine": options},
            "workload": {
                "arrivals": {"process": "poisson", "rate": 1},
                "prompt_tokens": 200,
                "output_tokens": 50,
                "num_requests": 20,
            },
        }
    )


def test_batches_are_not_padded_and_launches_add_up(tmp_path: Path) -> None:
    """On a GPU so slow launching would be hidden, and three sequences would run as four."""
    cpu, gpu = (resolve(served(tmp_path, is_cpu=is_cpu)).shape for is_cpu in (True, False))
    launching = cpu.model.num_hidden_layers * cpu.engine.eager_seconds_per_layer
    of_cpu, of_gpu = price(cpu), price(gpu)
    times, others = of_cpu.step_times, of_gpu.step_times

    assert cpu.engine.cuda_graph_sizes == ()
    assert gpu.engine.cuda_graph_max_batch > 0
    assert launching > 5e-3
    assert times.decode_base[4] - others.decode_base[4] == pytest.approx(launching, rel=1e-6)
    assert times.token_seconds[64] - others.token_seconds[64] == pytest.approx(launching, rel=1e-6)
    products_of_three, products_of_four = (of_cpu.parts.decode[COMPUTE, count] for count in (3, 4))
    assert products_of_three == pytest.approx(0.75 * products_of_four, rel=1e-6)
    assert of_gpu.parts.decode[COMPUTE, 3] == pytest.approx(of_gpu.parts.decode[COMPUTE, 4], rel=1e-6)


def test_who_turns_graphs_off_by_name_gets_the_same(tmp_path: Path) -> None:
    """`enforce_eager` and `cudagraph_mode` say what is so on a CPU in any case; so is scheduling in turn."""
    plain = price(resolve(served(tmp_path, is_cpu=True)).shape).step_times
    for options in ({"enforce_eager": True}, {"cudagraph_mode": "NONE"}, {"async_scheduling": None}):
        assert price(resolve(served(tmp_path, is_cpu=True, **options)).shape).step_times == plain


def test_what_a_cpu_turns_off_is_not_called_the_scenario_s(tmp_path: Path) -> None:
    """Unless it is."""
    own, asked = (
        resolve(served(tmp_path, is_cpu=True, async_scheduling=each)).shape.engine.sources["async_scheduling"]
        for each in (None, False)
    )

    assert own == "vllm, off on a CPU"
    assert asked == "scenario"


def test_sampling_takes_what_was_measured_of_it(tmp_path: Path) -> None:
    """Four passes over the logits in FP32, at a tenth of the bandwidth; a request more, as much more."""
    plain, slow = (resolve(served(tmp_path, is_cpu=True, sampling=each)).shape for each in (None, 0.1))
    logits = 16.0 * plain.model.vocab_size / plain.hardware.memory.bandwidth
    further = logits * (1 / 0.1 - 1 / plain.hardware.efficiency.memory)
    times, slower = price(plain).step_times, price(slow).step_times

    assert slower.decode_base[8] - times.decode_base[8] == pytest.approx(8 * further, rel=1e-6)
    assert slower.sequence_seconds[3] - times.sequence_seconds[3] == pytest.approx(3 * further, rel=1e-6)


def test_the_host_of_a_cpu_is_known_less_well(tmp_path: Path) -> None:
    """Its prior is as wide as hosts and shared cores make it; of what was measured on the core, narrower."""
    cpu, gpu = (FactorCalibration(ServingModel(served(tmp_path, is_cpu=each))).priors for each in (True, False))

    assert gpu == PRIORS
    computing = dict.fromkeys(("gpu", "prompts", "batch"), CPU_KERNEL_WIDTH)
    assert cpu.widths == {**PRIORS.widths, **computing, "host": CPU_HOST_WIDTH}
    assert cpu.misfit == PRIORS.misfit
    assert cpu.widths["host"] > 10 * PRIORS.widths["host"]
