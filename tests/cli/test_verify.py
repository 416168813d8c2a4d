"""`simserve verify` and `simserve run --reference`: what they print, and how they end."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Simserve

FEW = ("--num-requests", "20")


def test_a_scenario_that_fares_the_same_ends_with_zero(simserve: Simserve) -> None:
    """One object on stdout, with the keys that are promised."""
    outcome = simserve("verify", "single-gpu-7b", *FEW, "--json")
    found = json.loads(outcome.stdout)

    assert outcome.code == 0
    assert (found["requests"], found["equal"]) == (20, True)
    assert found["largest_difference_s"] < 1e-9


@pytest.mark.slow
def test_of_a_long_run_the_first_requests_are_compared(simserve: Simserve) -> None:
    """The first line says how many of how many; the JSON says it too."""
    outcome = simserve("verify", "chatbot", "--set", "workload.output_tokens=2500")
    found = json.loads(simserve("verify", "chatbot", "--set", "workload.output_tokens=2500", "--json").stdout)

    assert outcome.code == 0
    assert outcome.stdout.startswith(
        "compared the first 20 of 5,000 requests; --num-requests N compares others\n20 of 20"
    )
    assert (found["requests"], found["requests_drawn"]) == (20, 5000)


def test_a_difference_ends_with_99(simserve: Simserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference whose steps take a millisecond longer is noticed, request by request."""
    from simserve.reference import scheduler

    right = scheduler.mixed_seconds
    monkeypatch.setattr(scheduler, "mixed_seconds", lambda *inputs: right(*inputs) + 0.001)

    outcome = simserve("verify", "single-gpu-7b", *FEW)

    assert outcome.code == 99
    assert outcome.stdout.startswith("0 of 20 requests are the same in both")


def test_what_is_not_covered_is_refused_by_its_key(simserve: Simserve) -> None:
    """One line, and nothing on stdout."""
    static = ("--set", "deployment.engine.batching=static", "--set", "deployment.admission={max_queue: 9}")
    for command in (("verify", "single-gpu-7b"), ("run", "single-gpu-7b", "--reference", "--out", "x")):
        outcome = simserve(*command, *static)

        assert outcome.code == 104
        assert outcome.stdout == ""
        assert "deployment.engine.batching: is not covered by the reference" in outcome.stderr


@pytest.mark.parametrize(("scenario", "key"), [("kv-offload", "kv_offload"), ("kv-tiers", "kv_tiers")])
def test_tiers_are_refused_by_the_key_that_asks_for_them(simserve: Simserve, scenario: str, key: str) -> None:
    """The reference serves them, but does not compute their totals: the key is one of the scenario."""
    outcome = simserve("run", scenario, "--reference", "--out", "x")

    assert outcome.code == 104
    assert f": deployment.engine.{key}: is not covered by the reference; run the scenario" in outcome.stderr


@pytest.mark.parametrize("scenario", ["small-model-first", "two-regions", "streaming"])
def test_rules_regions_and_streams_are_covered(simserve: Simserve, scenario: str) -> None:
    """Where a request may go by rule, where it is asked again, what is near to its client, and how it hears."""
    assert simserve("verify", scenario, *FEW, "--json").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["single-gpu-7b", "streaming"])
def test_a_run_by_the_reference_has_the_same_result(simserve: Simserve, scenario: str) -> None:
    """Every figure of result.json, KV use to a thousandth, which the plane interpolates inside a leap."""
    change = ("--set", "workload.num_requests=40", "--json", "--out")
    plane, reference = (
        json.loads(simserve("run", scenario, *how, *change, f"out-{number}").stdout)
        for number, how in enumerate(((), ("--reference",)))
    )

    kv = [each["simserve"].pop("kv") for each in (plane, reference)]
    assert flat(reference) == pytest.approx(flat(plane), rel=1e-9, nan_ok=True)
    assert flat(kv[1]) == pytest.approx(flat(kv[0]), rel=1e-3, abs=1e-3)


def flat(values: object, path: str = "") -> dict[str, object]:
    """Return the numbers of a nested result by their paths."""
    if isinstance(values, dict):
        return {name: one for key, each in values.items() for name, one in flat(each, f"{path}.{key}").items()}
    is_number = isinstance(values, int | float) and not isinstance(values, bool)
    return {path: values} if is_number else {}


@pytest.mark.parametrize("flag", [("--timeline",), ("--accelerate", "on")])
def test_a_run_by_the_reference_takes_no_flag_of_the_plane(simserve: Simserve, flag: tuple[str, ...]) -> None:
    """What would have no effect is refused."""
    outcome = simserve("run", "single-gpu-7b", "--reference", *flag)

    assert outcome.code == 2
    assert f"{flag[0]}: is not for a run with --reference" in outcome.stderr
