"""What a plan says of deployments that it leaves out."""

from __future__ import annotations

from simserve.planner.search.explain import context_shortage, shortage
from simserve.scenario.load import from_mapping
from simserve.scenario.resolve import resolve
from simserve.workload.generate import generate
from tests.scenario.builders import make_scenario


def shortage_of(prompt_tokens: int, **engine: object) -> str | None:
    """Return the shortage of SGLang with a 32B model in BF16 on one 80 GB GPU: KV for about 19,000 tokens."""
    scenario = from_mapping(
        {
            "name": "short",
            "model": "qwen3-32b",
            "deployment": {"hardware": "a100-sxm-80gb", "engine": {"name": "sglang", **engine}},
            "workload": {
                "arrivals": {"process": "poisson", "rate": 1},
                "prompt_tokens": {"distribution": "fixed", "value": prompt_tokens},
                "output_tokens": {"distribution": "fixed", "value": 100},
                "num_requests": 4,
            },
        }
    )
    resolved = resolve(scenario)
    assert resolved.memory.fits
    return context_shortage(resolved, generate(scenario.workload, seed=0))


def test_requests_longer_than_a_context_cut_to_the_kv_cache_do_not_fit() -> None:
    """SGLang would start and cut them off; a context that the scenario sets is the scenario's wish."""
    assert shortage_of(1000) is None
    found = shortage_of(30_000)
    assert found is not None
    assert found.startswith("does not fit: KV memory for ")
    assert found.endswith(" of the 30,100 tokens of one request")
    assert shortage_of(30_000, max_model_len=16_384) is None


def test_a_small_shortage_is_no_candidate() -> None:
    """A run simulates gpt-oss-120b on one H100 at vLLM 0.11.2's defaults with a warning; no plan recommends it."""
    scenario = make_scenario(["deployment.engine.version='0.11.2'"], model="gpt-oss-120b")

    reason = shortage(resolve(scenario))

    assert reason == "does not quite fit: 866 MB lack on each GPU"
