"""What would make a deployment fit."""

from __future__ import annotations

import pytest

from simserve.errors import InfeasibleError
from simserve.scenario.fit import check_fit, remedies
from simserve.scenario.resolve import resolve
from tests.scenario.builders import make_scenario


@pytest.mark.parametrize("key", ["max_num_seqs", "max_num_batched_tokens"])
def test_a_limit_that_leaves_no_memory_is_named(key: str) -> None:
    """Activations grow with what the scenario sets; the largest power of two that fits is offered."""
    resolved = resolve(make_scenario([f"deployment.engine.{key}=1e9"]))

    with pytest.raises(InfeasibleError, match=f"--set deployment.engine.{key}="):
        check_fit(resolved)

    change = next(each for each in remedies(resolved) if key in each)
    check_fit(resolve(make_scenario([change])))


def test_a_limit_that_the_scenario_does_not_set_is_left_alone() -> None:
    """A default is not to blame for a model that is too large."""
    changes = remedies(resolve(make_scenario(["model=llama-3.1-70b"])))

    assert changes
    assert not [change for change in changes if "max_num" in change]


def test_a_cache_too_large_for_the_gpu_comes_with_the_largest_that_fits() -> None:
    """In the option that the scenario set."""
    asked = make_scenario(["deployment.engine.num_gpu_blocks_override=100000000"])
    found = remedies(resolve(asked))

    (change,) = [each for each in found if "num_gpu_blocks_override" in each]
    assert resolve(make_scenario([change])).memory.fits
