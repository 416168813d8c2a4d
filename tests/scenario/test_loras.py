"""LoRA adapters in a scenario: memory, seconds, what is refused, and what routing by adapter recovers."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

import simserve as ss
from simserve.errors import ScenarioError
from simserve.metrics.features import LORA_KEYS
from simserve.metrics.files import read_result
from simserve.perf.loras import adapter_bytes, lora_gemms, stored_adapter_bytes
from simserve.perf.tables import price
from simserve.planner.export.export import export
from simserve.planner.importers.server import import_line
from simserve.planner.importers.sglang_command import SGLANG
from simserve.planner.importers.trtllm_command import TRTLLM
from simserve.planner.importers.vllm_command import VLLM
from simserve.scenario.load import load
from simserve.scenario.resolve import ResolvedScenario, resolve
from simserve.scenario.run import run
from simserve.scenario.verify import verify
from simserve.sim.simulate import Deployment, Simulation, simulate
from simserve.workload.generate import generate

TENANTS = "hundred-tenants"


def resolved(*overrides: str) -> ResolvedScenario:
    """Return the hundred tenants with changes, resolved."""
    return resolve(load(TENANTS, overrides))


def simulated(*overrides: str, num_requests: int = 800) -> Simulation:
    """Return a run of the tenants, interpreted."""
    found = resolved(*overrides)
    specs = generate(found.scenario.workload, seed=1).first(num_requests)
    deployment = Deployment(
        num_replicas=found.scenario.deployment.replicas,
        engine=found.engine,
        priced=price(found.shape),
        routing=found.scenario.deployment.routing.policy,
    )
    return simulate(deployment, specs, accelerate="off")


def p95_ttft(simulation: Simulation) -> float:
    """Return the 95th percentile of the time to the first token, seconds."""
    records = simulation.records
    return float(np.percentile(records.first_token_time - records.arrival_time, 95))


def test_an_adapter_has_the_bytes_of_its_matrices() -> None:
    """Llama-3.1-8B at rank 16, all linear layers: 41.9 M parameters, as PEFT counts them."""
    shape = resolved().shape
    per_layer = 3 * 4096 + (4096 + 2 * 1024) + 4096 + 4096 + 2 * 4096 + 2 * 14336 + 14336 + 4096

    assert stored_adapter_bytes(shape, 16, "all") == 2 * 32 * 16 * per_layer == 2 * 41_943_040
    assert [gemm.name for _, gemm in lora_gemms(shape, "attention", 1)] == ["qkv", "output"]


def test_a_cut_adapter_is_half_whole_on_every_rank() -> None:
    """Over two ranks more than half of it lies on each, and less than all."""
    one, two = resolved().shape, resolved("deployment.tensor_parallel_size=2").shape

    whole = adapter_bytes(one, 16, "all")
    assert 0.5 * whole < adapter_bytes(two, 16, "all") < whole


def test_slots_take_their_memory_from_the_kv_cache() -> None:
    """Sixteen slots at rank 64 instead of four at 16."""
    few, many = (
        resolved().memory,
        resolved("deployment.engine.max_loras=16", "deployment.engine.max_lora_rank=64").memory,
    )

    assert many.lora_bytes == 16 * few.lora_bytes
    assert few.kv_bytes - many.kv_bytes == pytest.approx(many.lora_bytes - few.lora_bytes)
    assert few.parts["lora_weights"] == few.lora_bytes


def test_one_adapter_for_all_is_none_but_for_the_kernels() -> None:
    """The same steps, each longer by what the kernels take; throughput and hit rate say so."""
    one = simulated("workload.loras.num_adapters=1", "deployment.routing=least_outstanding")
    none = simulated("workload.loras=null", "deployment.routing=least_outstanding")
    loras = one.totals.loras
    assert loras is not None

    assert loras.num_swaps == loras.num_disk_loads == 8
    assert loras.num_hits == loras.num_asked - 8
    assert p95_ttft(none) < p95_ttft(one) < 1.5 * p95_ttft(none)
    assert one.totals.blocked_seconds["loras"] == 0.0


def test_a_hundred_adapters_thrash_and_affinity_recovers_most_of_it() -> None:
    """Over 1,500 requests: what spreading by load adds to the p95 of TTFT, routing by adapter takes back most of."""
    by_load = simulated("deployment.routing=least_outstanding", num_requests=1500)
    by_adapter = simulated(num_requests=1500)
    without = simulated("workload.loras=null", "deployment.routing=least_outstanding", num_requests=1500)
    loads, own = by_load.totals.loras, by_adapter.totals.loras
    assert loads is not None
    assert own is not None

    assert p95_ttft(by_load) > 10 * p95_ttft(without)
    recovered = (p95_ttft(by_load) - p95_ttft(by_adapter)) / (p95_ttft(by_load) - p95_ttft(without))
    assert recovered > 0.5
    assert own.num_hits / own.num_asked > 2 * loads.num_hits / loads.num_asked
    assert own.num_swaps < 0.7 * loads.num_swaps


def test_the_result_says_what_adapters_did() -> None:
    """Every key, in numbers; without adapters every key and no number."""
    summary = run(load(TENANTS, ["workload.num_requests=200"])).summary["simserve"]
    plain = run(load(TENANTS, ["workload.num_requests=50", "workload.loras=null"])).summary["simserve"]

    assert tuple(summary["loras"]) == LORA_KEYS
    assert 0 < summary["loras"]["hit_rate"] < 1
    assert summary["loras"]["step_seconds"] > 0
    assert summary["steps"]["seconds_by_part"]["communication"] == pytest.approx(summary["loras"]["load_seconds"])
    assert plain["loras"] == dict.fromkeys(LORA_KEYS)
    assert "loras" not in plain["bottleneck"]["waiting_shares"]


def test_every_request_says_its_adapter(tmp_path: Path) -> None:
    """A column of the table, as it was drawn; read again from a folder it is the same."""
    overrides = ["workload.num_requests=60", "workload.loras.base_share=0.3", "workload.loras.num_adapters=5"]
    scenario = load(TENANTS, [*overrides, "deployment.replicas=1", "workload.arrivals.rate=3"])
    drawn = generate(scenario.workload, seed=scenario.run.seed).adapter
    assert drawn is not None
    result = ss.run(scenario, out=tmp_path / "out")

    assert result.requests["adapter"].fillna(-1).astype(int).tolist() == drawn.tolist()
    stored = read_result(tmp_path / "out").simulation
    np.testing.assert_array_equal(stored.records.adapter, drawn)
    assert stored.totals.loras == result.simulation.totals.loras


@pytest.mark.parametrize("policy", ["lora", "least_outstanding"])
def test_plane_and_reference_serve_the_tenants_alike(policy: str) -> None:
    """`simserve verify` on the cluster, a few requests a replica."""
    found = verify(load(TENANTS, [f"deployment.routing={policy}", "workload.num_requests=60", "deployment.replicas=2"]))

    assert found.is_equal


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("deployment.engine.max_loras=null", "is not set, and requests have adapters"),
        ("workload.loras.rank=64", "must be at least the adapters' rank, 64"),
        ("deployment.engine.max_cpu_loras=2", "must be at least max_loras"),
        ("deployment.engine.batching=static", "is not simulated with adapters"),
        ("deployment.engine.version=0.2", "has no LoRA adapters"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(override: str, rule: str) -> None:
    """With the key, the rule and a remedy."""
    overrides = [override]
    if "max_loras=null" in override:
        overrides += ["deployment.engine.max_lora_rank=null", "deployment.engine.max_cpu_loras=null"]
    with pytest.raises(ScenarioError, match=rule):
        resolved(*overrides)


def test_loads_need_adapters() -> None:
    """A block about loading without any adapter is an error, not silence."""
    with pytest.raises(ScenarioError, match="requests have no adapters"):
        resolved("workload.loras=null", "deployment.engine.lora_load={latency: 1 s}")


def test_sglang_counts_the_base_model_as_one_more() -> None:
    """Four seats are three beside requests without an adapter; host memory keeps all unless it is told otherwise."""
    sglang = ("deployment.engine={name: sglang, max_loras: 4}",)
    base = resolved(*sglang, "workload.loras.base_share=0.1").engine

    assert (base.max_loras, base.max_cpu_loras) == (3, 100)
    assert resolved(*sglang).engine.max_loras == 4


def test_loads_take_the_bandwidths_that_are_set() -> None:
    """84 MB at 100 MB/s and 1 s before; 8.4 GB/s to the GPU."""
    load_block = "deployment.engine.lora_load={disk_bandwidth: 100 MB/s, latency: 1 s, host_bandwidth: 8.388608 GB/s}"
    engine = resolved(load_block).engine

    assert engine.lora_disk_seconds == pytest.approx(1.8388608)
    assert engine.lora_host_seconds == pytest.approx(0.01)


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_the_command_line_says_it_and_is_read_again(target: str) -> None:
    """Seats, rank and host memory come back."""
    engine = f"deployment.engine={{name: {target}, max_loras: 6, max_lora_rank: 32, max_cpu_loras: 50}}"
    written = export(load(TENANTS, [engine, "deployment.routing=least_outstanding"]), target)
    line = written.line
    flags = {"vllm": "--enable-lora --max-loras 6", "sglang": "--enable-lora --max-loras-per-batch 6"}
    assert flags[target] in line
    program = {"vllm": VLLM, "sglang": SGLANG}[target]
    found = import_line(program, line, hardware="h100").scenario.deployment.engine

    assert (found.max_loras, found.max_lora_rank, found.max_cpu_loras) == (6, 32, 50)


def test_tensorrt_llm_reads_the_limits_from_its_options_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same names, below ``lora_config``; and back."""
    engine = "deployment.engine={name: tensorrt-llm, max_loras: 6, max_lora_rank: 32, max_cpu_loras: 50}"
    written = export(load(TENANTS, [engine, "deployment.routing=least_outstanding"]), "trtllm")
    options = yaml.safe_load(written.files["extra_llm_api_options.yaml"])
    assert options["lora_config"] == {"max_loras": 6, "max_lora_rank": 32, "max_cpu_loras": 50}
    (tmp_path / "extra_llm_api_options.yaml").write_text(written.files["extra_llm_api_options.yaml"])
    monkeypatch.chdir(tmp_path)
    found = import_line(TRTLLM, shlex.join(written.command), hardware="h100").scenario.deployment.engine

    assert (found.max_loras, found.max_lora_rank, found.max_cpu_loras) == (6, 32, 50)
