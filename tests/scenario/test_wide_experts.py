"""What a scenario may ask of whole experts on many GPUs, and that each setting changes its result."""

from __future__ import annotations

import pytest

from simserve.errors import SimserveError
from simserve.scenario.fit import leading_warnings
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from tests.scenario.builders import make_scenario

EXPERTS = ["model=mixtral-8x7b", "deployment.data_parallel_size=4", "deployment.quantization=fp8"]
WHOLE = [*EXPERTS, "deployment.enable_expert_parallel=true"]
SENT = [*WHOLE, "deployment.all2all_backend=deepep_low_latency"]
COPIES, OVERLAP = "deployment.num_redundant_experts=4", "deployment.enable_two_batch_overlap=true"
BUSY = {
    "arrivals": {"process": "all_at_once"},
    "prompt_tokens": {"distribution": "fixed", "value": 64},
    "output_tokens": {"distribution": "fixed", "value": 32},
    "num_requests": 256,
}


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ([*EXPERTS, SENT[-1]], "all2all_backend: 'deepep_low_latency' needs enable_expert_parallel"),
        ([*EXPERTS, COPIES], "num_redundant_experts: 4 needs enable_expert_parallel"),
        ([*WHOLE, OVERLAP], "enable_two_batch_overlap: True needs an all2all_backend of DeepEP"),
        ([*SENT, "deployment.engine.version=0.9.1"], "vllm 0.9.1 has no all-to-all of experts with DeepEP"),
        ([*WHOLE, COPIES, "deployment.engine.version=0.9"], "has no balancing of the load of experts"),
    ],
)
def test_settings_without_what_they_need_are_refused(overrides: list[str], rule: str) -> None:
    """A line names the key, its value and what it needs."""
    with pytest.raises(SimserveError, match=rule):
        resolve(make_scenario(overrides))


WIDE = ["model=deepseek-v3", "deployment.hardware=h200-sxm-141gb", "deployment.enable_expert_parallel=true"]
SGLANG = [
    *("deployment.engine.name=sglang", "deployment.engine.max_model_len=8192"),
    *("deployment.engine.gpu_memory_utilization=0.8", "deployment.engine.max_num_batched_tokens=8192"),
]
"""With what such servers are told: by itself SGLang leaves 72 ranks no memory, and each 113 tokens a step."""


@pytest.mark.parametrize(
    ("ranks", "version", "backend", "overlaps"),
    [
        (8, "0.5.10", "allgather_reducescatter", False),
        (72, "0.5.10", "deepep_low_latency", True),
        (16, "0.4.6", "allgather_reducescatter", False),
    ],
)
def test_experts_on_several_nodes_are_reached_as_such_servers_reach_them(
    ranks: int, version: str, backend: str, overlaps: bool
) -> None:
    """By DeepEP, where the engine has it, which the answer says first; an API server a node sends the tokens."""
    asked = [f"deployment.data_parallel_size={ranks}", f"deployment.engine.version={version}"]
    resolved = resolve(make_scenario([*WIDE, *SGLANG, *asked]))

    shape = resolved.shape
    assert (shape.all2all_backend, shape.enable_two_batch_overlap) == (backend, overlaps)
    assert any("DeepEP" in warning for warning in leading_warnings(resolved)) == overlaps
    assert resolved.engine.api_token_seconds == shape.engine.api_server_seconds_per_token / -(-ranks // 8)


@pytest.mark.parametrize(
    ("hardware", "ranks", "version", "backend"),
    [
        ("gb200-186gb", 4, "1.2", "nvlink_one_sided"),
        ("gb200-186gb", 32, "1.2", "nvlink_one_sided"),
        ("gb200-186gb", 32, "1.1", "nvlink_two_sided"),
        ("gb200-186gb", 8, "1.1", "allgather_reducescatter"),
        ("b200-sxm-180gb", 8, "1.2", "allgather_reducescatter"),
    ],
)
def test_tensorrt_llm_exchanges_tokens_over_the_nvlink_of_a_rack(
    hardware: str, ranks: int, version: str, backend: str
) -> None:
    """By itself, one-sided from 1.2 on, before with more ranks than a token has experts; a node's GPUs gather."""
    asked = [f"deployment.data_parallel_size={ranks}", f"deployment.engine.version={version}"]
    engine = ["deployment.engine.name=tensorrt-llm", "deployment.engine.max_model_len=8192"]
    resolved = resolve(make_scenario([*WIDE, f"deployment.hardware={hardware}", *engine, *asked]))

    assert resolved.shape.all2all_backend == backend
    assert not any("DeepEP" in warning for warning in leading_warnings(resolved))


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (["deployment.engine.name=vllm"], "has no two-sided all-to-all of experts over NVLink"),
        (
            ["deployment.engine={name: tensorrt-llm, version: '1.2'}", "deployment.data_parallel_size=16"],
            "joins 8 GPUs",
        ),
    ],
)
def test_an_exchange_over_nvlink_needs_engine_and_link(overrides: list[str], rule: str) -> None:
    """One line names what is missing."""
    asked = ["deployment.data_parallel_size=8", "deployment.all2all_backend=nvlink_two_sided"]
    with pytest.raises(SimserveError, match=rule):
        resolve(make_scenario([*WIDE, *asked, "deployment.engine.max_model_len=8192", *overrides]))


def test_wide_experts_keep_the_output_of_a_node() -> None:
    """EP 72 on H200 under SGLang, 128 requests a GPU: at least 85 % of the output that EP 8 has a GPU."""
    seconds = []
    for ranks in (8, 72):
        closed = {"process": "closed_loop", "concurrency": 128 * ranks}
        load = {
            "arrivals": closed,
            "num_requests": 128 * ranks,
            "output_tokens": {"distribution": "fixed", "value": 60},
        }
        asked = [*WIDE, *SGLANG, f"deployment.data_parallel_size={ranks}", "deployment.engine.version=0.5.10"]
        seconds.append(run(make_scenario(asked, workload=BUSY | load), explain=False).summary["mean_tpot_ms"])

    # As many sequences a GPU: their tokens come as much sooner.
    assert seconds[1] < seconds[0] / 0.85


@pytest.mark.parametrize(("before", "setting"), [(WHOLE, SENT[-1]), (WHOLE, COPIES), (SENT, OVERLAP)])
def test_each_setting_changes_the_time_a_token(before: list[str], setting: str) -> None:
    """On four GPUs of one node, where requests are many enough to be split."""
    plain, changed = (run(make_scenario(each, workload=BUSY)).summary for each in (before, [*before, setting]))

    assert changed["mean_tpot_ms"] != pytest.approx(plain["mean_tpot_ms"], rel=1e-4)
    assert changed["completed"] == plain["completed"] == 256
