"""What a scenario may ask of whole experts on many GPUs, and that each setting changes its result."""

from __future__ import annotations

import pytest

from simserve.errors import SimserveError
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
        ([*SENT, "deployment.engine.version=0.10.2"], "vllm 0.10.2 has no all-to-all of experts with DeepEP"),
        ([*WHOLE, COPIES, "deployment.engine.version=0.9"], "has no balancing of the load of experts"),
    ],
)
def test_settings_without_what_they_need_are_refused(overrides: list[str], rule: str) -> None:
    """A line names the key, its value and what it needs."""
    with pytest.raises(SimserveError, match=rule):
        resolve(make_scenario(overrides))


@pytest.mark.parametrize(("before", "setting"), [(WHOLE, SENT[-1]), (WHOLE, COPIES), (SENT, OVERLAP)])
def test_each_setting_changes_the_time_a_token(before: list[str], setting: str) -> None:
    """On four GPUs of one node, where requests are many enough to be split."""
    plain, changed = (run(make_scenario(each, workload=BUSY)).summary for each in (before, [*before, setting]))

    assert changed["mean_tpot_ms"] != pytest.approx(plain["mean_tpot_ms"], rel=1e-4)
    assert changed["completed"] == plain["completed"] == 256
