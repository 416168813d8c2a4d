"""How the laboratory's benchmarks turned requests into figures: what each way changes."""

from __future__ import annotations

import pytest

from calibration.laboratory.protocol import Protocol
from simserve.planner.validation.prediction import Pricer, predict
from tests.planner.builders import make_point
from tests.planner.validation.test_validate import two_protocols
from tests.scenario.builders import scenario_mapping


def test_token_weighted_tpot_divides_by_every_generated_token() -> None:
    """20 tokens have 19 gaps."""
    mean = predict(make_point(), Pricer()).predicted["tpot"]
    weighted = predict(make_point(protocol=Protocol(is_token_weighted=True)), Pricer()).predicted["tpot"]

    assert weighted == pytest.approx(mean * 19 / 20)


def test_answers_of_a_cold_server_wait_for_the_prompts_behind_them() -> None:
    """A tenth of the answers takes 2 s longer, each over its tokens but the first; first tokens come as they did."""
    lengths = {"distribution": "fixed", "value": 21}
    warm, cold = two_protocols(Protocol(), Protocol(cold_stall_seconds=2.0), output_tokens=lengths)

    assert cold["ttft"] == warm["ttft"]
    assert cold["e2e"] - warm["e2e"] == pytest.approx(0.2)
    assert cold["tpot"] - warm["tpot"] == pytest.approx(0.1 * 2.0 / 20)


def test_a_distant_client_hears_of_every_first_token_later() -> None:
    """TPOT stays."""
    near, far = two_protocols(Protocol(), Protocol(front_seconds=0.01))

    assert far["ttft"] - near["ttft"] == pytest.approx(0.01)
    assert far["e2e"] - near["e2e"] == pytest.approx(0.01)
    assert far["tpot"] == near["tpot"]


def test_a_client_in_the_engines_process_hears_of_first_tokens_a_step_later() -> None:
    """vLLM V0 hands them over in the next step; V1 at once."""
    measured = {"tpot": 0.01, "ttft": 0.05}

    def ttft(version: str, is_in_process: bool) -> float:
        engine = {"name": "vllm", "version": version, "frontend_latency": "1 ms"}
        deployment = scenario_mapping()["deployment"] | {"engine": engine}
        point = make_point(
            scenario=scenario_mapping(deployment=deployment),
            measured=measured,
            protocol=Protocol(is_in_process=is_in_process),
        )
        return predict(point, Pricer()).predicted["ttft"]

    assert ttft("0.7.3", is_in_process=True) > ttft("0.7.3", is_in_process=False) + 0.001
    assert ttft("0.20", is_in_process=True) == ttft("0.20", is_in_process=False)
