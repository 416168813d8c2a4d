"""Which LoRA adapter each request asks for, and what follows for shared prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from simserve.scenario.load import from_mapping
from simserve.workload.generate import generate
from simserve.workload.requests import RequestSpecs
from simserve.workload.spec import LorasSpec, WorkloadSpec

BASE: dict[str, Any] = {
    "arrivals": {"process": "poisson", "rate": 5.0},
    "prompt_tokens": {"distribution": "fixed", "value": 100},
    "output_tokens": {"distribution": "fixed", "value": 10},
    "num_requests": 20_000,
}


def drawn(loras: dict[str, Any] | None, **others: Any) -> RequestSpecs:
    """Return the requests of a workload with these adapters."""
    given = {**BASE, **others} | ({} if loras is None else {"loras": loras})
    return generate(WorkloadSpec.model_validate(given), seed=3)


def test_popularity_falls_as_zipf_says_and_a_share_has_no_adapter() -> None:
    """Ten adapters at exponent 1, a fifth of the requests for the base model: shares within a percentage point."""
    adapter = drawn({"num_adapters": 10, "zipf": 1.0, "base_share": 0.2}).adapter
    assert adapter is not None
    expected = 0.8 / np.arange(1, 11) / sum(1 / n for n in range(1, 11))

    assert np.mean(adapter == -1) == pytest.approx(0.2, abs=0.01)
    np.testing.assert_allclose(np.bincount(adapter[adapter >= 0], minlength=10) / len(adapter), expected, atol=0.01)


def test_shares_may_be_listed() -> None:
    """Three to one."""
    adapter = drawn({"num_adapters": 2, "shares": [3, 1]}).adapter
    assert adapter is not None

    assert np.mean(adapter == 0) == pytest.approx(0.75, abs=0.01)


def test_adapters_move_no_other_draw() -> None:
    """Arrivals and lengths are those of the same workload without adapters."""
    with_them, without = drawn({"num_adapters": 7}), drawn(None)

    assert without.adapter is None
    for name in ("arrival_time", "prompt_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(with_them, name), getattr(without, name))


def test_a_conversation_keeps_its_adapter() -> None:
    """All turns of a session have one, and several adapters come up."""
    sessions = {"turns": {"distribution": "fixed", "value": 4}, "think_time": "1 s"}
    specs = drawn({"num_adapters": 5}, sessions=sessions, num_requests=400)
    assert specs.session is not None
    assert specs.adapter is not None

    pairs = {(session, adapter) for session, adapter in zip(specs.session, specs.adapter, strict=True)}
    assert len(pairs) == len(set(specs.session.tolist()))
    assert len(set(specs.adapter.tolist())) == 5


def test_prompts_under_different_adapters_share_nothing() -> None:
    """One system prompt for all is one a pair of prompt and adapter."""
    shared = {"num_groups": 1, "tokens": 50}
    specs = drawn({"num_adapters": 3}, shared_prefix=shared, num_requests=300)
    assert specs.prefixes is not None
    assert specs.adapter is not None

    first = specs.prefixes.segments[specs.prefixes.offsets[:-1]]
    assert len(set(first.tolist())) == 3
    for adapter in range(3):
        assert len(set(first[specs.adapter == adapter].tolist())) == 1


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"num_adapters": 2, "shares": [1.0]}, "1 shares for 2 adapters"),
        ({"num_adapters": 2, "shares": [1.0, 1.0], "zipf": 1.0}, "keep one of the two"),
        ({"num_adapters": 0}, "greater than or equal to 1"),
        ({"num_adapters": 2, "base_share": 1.0}, "less than 1"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], rule: str) -> None:
    """With the rule in the message."""
    with pytest.raises(ValidationError, match=rule):
        LorasSpec.model_validate(given)


def test_a_scenario_holds_adapters() -> None:
    """The key stands under ``workload``."""
    workload = {**BASE, "loras": {"num_adapters": 3}}
    scenario = from_mapping({"model": "llama-3.1-8b", "deployment": {"hardware": "h100"}, "workload": workload})

    assert scenario.workload.loras == LorasSpec(num_adapters=3)
