"""Speculative decoding in a scenario: what is refused, what is noted, what a run shows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simserve.errors import InputError, ScenarioError
from simserve.profiles.expected_errors import SPECULATION, load_error_model
from simserve.scenario.load import load
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.schema import Scenario
from simserve.scenario.speculative import SpeculativeSpec, speculation_facts
from simserve.workload.acceptance import expected_tokens
from tests.scenario.builders import make_scenario

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_rate": 0.6}
EAGLE = {**NGRAM, "method": "eagle"}
MODEL = {**NGRAM, "method": "draft_model", "draft_model": "llama-3.2-1b"}


def speculating(block: dict[str, Any], *overrides: str, **changes: Any) -> Scenario:
    """Return the small scenario on llama-3.1-8b with drafts."""
    deployment = {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.20"}, "speculative": block}
    return make_scenario(overrides, **{"model": "llama-3.1-8b", "deployment": deployment, **changes})


def summary(block: dict[str, Any] | None, *overrides: str) -> dict[str, Any]:
    """Return the figures of the small scenario."""
    if block is None:
        return dict(run(speculating(NGRAM, "deployment.speculative=null", *overrides)).summary)
    return dict(run(speculating(block, *overrides)).summary)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"acceptance_rate": None}, "exactly one of acceptance_rate and acceptance_per_position, and has neither"),
        ({"acceptance_per_position": [0.6, 0.3, 0.1]}, "and has both"),
        ({"acceptance_rate": None, "acceptance_per_position": [0.6, 0.3]}, r"must have num_speculative_tokens \(=3\)"),
        ({"acceptance_rate": None, "acceptance_per_position": [0.3, 0.6, 0.1]}, "must not rise"),
        (
            {"acceptance_rate": None, "acceptance_per_position": [0.6, 0.3, 0.1], "acceptance_decay": 0.9},
            "acceptance_decay goes with acceptance_rate",
        ),
        ({"acceptance_rate": 1.2}, "acceptance_rate"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"method": "draft_model"}, "method draft_model needs draft_model"),
        ({"draft_model": "llama-3.2-1b"}, "method ngram takes no draft_model"),
        ({"draft_quantization": "fp8"}, "ngram has no weights"),
        ({**MODEL, "draft_quantization": "fp9"}, "'fp9' must be 'auto', 'none'"),
        ({"draft_tensor_parallel_size": 1}, "goes with method draft_model"),
    ],
)
def test_a_block_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    """Each with the rule."""
    block = {key: value for key, value in {**NGRAM, **changes}.items() if value is not None}

    with pytest.raises(ScenarioError, match=message):
        speculating(block)


@pytest.mark.parametrize(
    ("block", "overrides", "message"),
    [
        ({**NGRAM, "method": "mtp"}, [], "llama-3.1-8b has no layer for multi-token prediction"),
        (NGRAM, ["deployment.engine.batching=static"], "needs batching: continuous"),
        (NGRAM, ["deployment.engine.kv_allocation=pow2"], "needs kv_allocation: paged"),
        (NGRAM, ["deployment.pipeline_parallel_size=2"], "must be 1 with speculative decoding"),
        (NGRAM, ["deployment.engine={name: orca}"], "orca 2022 has no speculative decoding by n-grams"),
        (
            {**MODEL, "draft_tensor_parallel_size": 2},
            ["deployment.tensor_parallel_size=4"],
            r"must be 1 or the target's tensor_parallel_size \(=4\)",
        ),
        ({**MODEL, "draft_model": "llama-9"}, [], "llama-9"),
        (
            {**MODEL, "draft_model": "phi-4"},
            ["deployment.tensor_parallel_size=8"],
            "draft_tensor_parallel_size: 8 must divide the 10 key-value heads of phi-4",
        ),
        (
            {**MODEL, "draft_model": "qwen2.5-7b"},
            ["deployment.tensor_parallel_size=8"],
            "draft_tensor_parallel_size: 8 must divide the 28 attention heads of qwen2.5-7b",
        ),
    ],
)
def test_a_deployment_that_cannot_speculate_is_refused(
    block: dict[str, Any], overrides: list[str], message: str
) -> None:
    """Each with the rule, and with the key that breaks it."""
    with pytest.raises(InputError, match=message) as raised:
        resolve(speculating(block, *overrides))

    assert "deployment." in str(raised.value)


def test_the_two_forms_of_acceptance_mean_the_same() -> None:
    """Shares of steps are the products of conditional probabilities."""
    conditional = speculating({**NGRAM, "acceptance_decay": 0.5})
    shares = {**NGRAM, "acceptance_per_position": [0.6, 0.6 * 0.3, 0.6 * 0.3 * 0.15]}
    del shares["acceptance_rate"]

    first, second = (
        each.deployment.speculative.conditional_acceptance
        for each in (conditional, speculating(shares))
        if each.deployment.speculative is not None
    )
    assert first == pytest.approx((0.6, 0.3, 0.15))
    assert second == pytest.approx(first)


def test_seats_that_the_budget_does_not_cover_are_taken_away_and_noted() -> None:
    """256 seats with four tokens each need 1,024 tokens a step; of 512 tokens 128 seats live."""
    overrides = ("deployment.engine.max_num_seqs=256", "deployment.engine.max_num_batched_tokens=512")
    result = run(speculating(NGRAM, *overrides)).summary["simserve"]["engine_resolved"]

    assert result["max_num_seqs"] == 128
    assert any("max_num_seqs is 128, not 256" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("draft", "note"),
    [
        ("qwen2.5-7b", "vocabulary of 152,064"),
        ("llama-3.1-70b", "is no smaller"),
        ("llama-2-7b", "is made for 4,096 tokens"),
    ],
)
def test_a_doubtful_draft_is_noted_and_runs(draft: str, note: str) -> None:
    """Another vocabulary, a large draft, a short context: warnings, no refusals."""
    block = {**MODEL, "draft_model": draft, "draft_quantization": "awq-int4"}
    shape = resolve(speculating(block, "deployment.tensor_parallel_size=4")).shape

    assert shape.speculation is not None
    assert any(note in each for each in shape.speculation.notes)


def test_drafts_make_answers_faster() -> None:
    """At low load; ITL is the time of a step, which is longer, TPOT that of a token, which is shorter."""
    plain, drafting = summary(None), summary(EAGLE)

    assert drafting["mean_tpot_ms"] < 0.75 * plain["mean_tpot_ms"]
    assert drafting["mean_itl_ms"] > plain["mean_itl_ms"]
    assert drafting["total_output_tokens"] == plain["total_output_tokens"]


def test_traffic_is_the_same_with_and_without_drafts() -> None:
    """Paces come from a stream of their own."""
    random = "workload.output_tokens={distribution: exponential, mean: 40}"
    plain, drafting = (
        run(speculating(NGRAM, random, *more)).simulation.records for more in (["deployment.speculative=null"], [])
    )

    assert plain.arrival_time.tolist() == drafting.arrival_time.tolist()
    assert plain.output_tokens.tolist() == drafting.output_tokens.tolist()


@pytest.mark.parametrize("block", [NGRAM, EAGLE, MODEL, {**NGRAM, "method": "mtp"}], ids=lambda each: each["method"])
@pytest.mark.parametrize("scheduler", ["mixed", "prefill_first"])
def test_every_second_has_a_part(block: dict[str, Any], scheduler: str) -> None:
    """Parts sum to the busy time, with chunks, queues and preemption; the drafts' part is what the block says."""
    overrides = [
        "workload.arrivals.rate=400",
        "workload.num_requests=150",
        "workload.prompt_tokens.value=900",
        "workload.output_tokens.value=150",
        f"deployment.engine.scheduler={scheduler}",
        "deployment.engine.max_model_len=2048",
        "deployment.engine.max_num_batched_tokens=512",
        "deployment.engine.max_num_seqs=64",
    ]
    model = "llama-3.1-8b"
    if block["method"] == "mtp":
        model = "deepseek-v3"
        overrides += ["deployment.hardware=h200-sxm-141gb", "deployment.tensor_parallel_size=8"]
        overrides += ["deployment.quantization=fp8"]
    else:
        overrides.append("deployment.engine.gpu_memory_utilization=0.3")
    result = run(speculating(block, *overrides, model=model))
    inner, totals = result.summary["simserve"], result.simulation.totals
    parts = inner["steps"]["seconds_by_part"]

    assert sum(parts.values()) == pytest.approx(totals.busy_seconds, rel=1e-9)
    assert all(seconds > 0 for part, seconds in parts.items() if part != "communication")
    assert parts["draft"] == inner["speculation"]["draft_seconds"]
    assert 0 < inner["utilization"]["mfu"] < 1
    assert 0 < inner["utilization"]["mbu"] < 1


def test_the_block_counts_drafts_as_vllm_does() -> None:
    """60 % three times: 2.176 tokens a step of a long answer, a third of a token and more accepted a draft."""
    block = summary(NGRAM, "workload.output_tokens.value=800")["simserve"]["speculation"]
    given = expected_tokens((0.6, 0.6, 0.6))

    assert block["expected_acceptance_length"] == pytest.approx(given)
    assert block["mean_acceptance_length"] == pytest.approx(given, rel=0.02)
    assert block["num_draft_tokens"] == 3 * block["num_drafts"]
    assert block["acceptance_rate"] == pytest.approx((given - 1) / 3, rel=0.03)
    assert block["num_accepted_tokens"] + block["num_drafts"] == pytest.approx(20 * 799, rel=0.01)


def test_without_drafts_the_block_is_empty() -> None:
    """Every key is there, none has a value."""
    block = summary(None)["simserve"]["speculation"]

    assert "num_drafts" in block
    assert set(block.values()) == {None}


def test_the_speedup_is_that_of_equal_batches() -> None:
    """Below the break-even batch drafts gain; servers with drafts were measured, so that the error is of their kind."""
    inner = run(load("speculative-decoding", ["workload.num_requests=200"])).summary["simserve"]
    block = inner["speculation"]

    assert block["decode_speedup"] > 1.5
    assert block["mean_batch"] < block["break_even_batch"]
    assert len(load_error_model().mechanisms[SPECULATION]) >= 5
    assert inner["expected_error"]["basis"].endswith("servers of dense models on h100-sxm-80gb under vllm from 0.8")
    assert inner["expected_error"]["tpot"]["servers"] > 0


def test_replications_draw_other_paces_and_pool_their_counts() -> None:
    """Two runs of one scenario differ in drafts; the pooled block adds them up."""
    alone = [run(speculating(NGRAM, f"run.seed={seed}")) for seed in (1, 2)]
    pooled = run(speculating(NGRAM, "run.replications=2")).summary["simserve"]["speculation"]

    assert not np.array_equal(*(each.simulation.records.finish_time for each in alone))
    assert pooled["num_drafts"] > 1.5 * alone[0].summary["simserve"]["speculation"]["num_drafts"]
    assert pooled["num_speculative_tokens"] == 3


def test_the_engine_schedules_ahead_only_beside_drafters_that_allow_it() -> None:
    """vLLM 0.20 names EAGLE and MTP; who drafts reaches the engine's defaults and the scheduler."""
    engines = [resolve(speculating(block)).shape.engine for block in (EAGLE, NGRAM, MODEL)]

    assert [engine.async_scheduling for engine in engines] == [True, False, False]
    assert engines[1].sources["async_scheduling"].endswith("off with drafts by ngram")


def test_tensorrt_llm_does_not_overlap_beside_a_drafter_outside_the_model() -> None:
    """Its documentation turns the overlapped scheduler off there, as the export does."""
    version = "deployment.engine={name: tensorrt-llm, version: '1.0'}"
    engines = [resolve(speculating(block, version)).shape.engine for block in (EAGLE, NGRAM, MODEL)]

    assert [engine.async_scheduling for engine in engines] == [True, False, False]
    assert [engine.host_overlap > 0 for engine in engines] == [True, False, False]


@pytest.mark.parametrize(("version", "is_async"), [("0.5.10", [False] * 3), ("0.5.11", [True, False, True])])
def test_sglang_overlaps_beside_drafts_from_its_second_version_of_them_on(version: str, is_async: list[bool]) -> None:
    """SGLANG_ENABLE_SPEC_V2 is off by default up to 0.5.10, on from 0.5.11 on; n-grams never overlap."""
    named = f"deployment.engine={{name: sglang, version: {version}}}"
    engines = [resolve(speculating(block, named)).shape.engine for block in (EAGLE, NGRAM, MODEL)]

    assert [engine.async_scheduling for engine in engines] == is_async
    assert [engine.host_overlap > 0 for engine in engines] == is_async


def test_sglang_seats_48_with_drafts_unless_told_otherwise() -> None:
    """max_running_requests is reset to 48 for speculative decoding."""
    engines = [
        resolve(speculating(EAGLE, f"deployment.engine={{name: sglang, version: 0.5.9{more}}}")).shape.engine
        for more in ("", ", max_num_seqs: 64")
    ]

    assert [engine.max_num_seqs for engine in engines] == [48, 64]
    assert engines[0].sources["max_num_seqs"].endswith("with drafts by eagle")


@pytest.mark.parametrize(("version", "ranks", "seats"), [("0.5.12", 1, 256), ("0.5.15", 4, 64)])
def test_sglang_seats_256_of_deepseek_v4(version: str, ranks: int, seats: int) -> None:
    """From 0.5.12 on its hook for this family sets 256 for the server, before drafts are looked at."""
    deployment = {
        "hardware": "b200-sxm-180gb",
        "tensor_parallel_size": 4 // ranks,
        "data_parallel_size": ranks,
        "engine": {"name": "sglang", "version": version},
    }
    scenario = make_scenario(model="deepseek-v4-flash", deployment=deployment)

    assert resolve(scenario).shape.engine.max_num_seqs == seats


@pytest.mark.parametrize("engine", [{"name": "vllm", "version": "0.20"}, {"name": "sglang", "version": "0.5.9"}])
def test_ranks_of_attention_that_draft_decode_faster(engine: dict[str, Any]) -> None:
    """DeepSeek-R1 on eight ranks with MTP; the seconds of its steps are those of their parts, drafts included."""
    drafts = {"method": "mtp", "num_speculative_tokens": 1, "acceptance_rate": 0.85}
    deployment = {"hardware": "h200-sxm-141gb", "data_parallel_size": 8, "enable_expert_parallel": True}
    closed = ("workload.arrivals={process: closed_loop, concurrency: 32}", "workload.num_requests=100")
    plain, drafting = (
        run(make_scenario(closed, model="deepseek-r1", deployment={**deployment, "engine": engine, **more})).summary
        for more in ({}, {"speculative": drafts})
    )
    steps = drafting["simserve"]["steps"]

    assert 0.55 < drafting["mean_tpot_ms"] / plain["mean_tpot_ms"] < 0.95
    assert steps["seconds_by_operator"]["draft"] == steps["seconds_by_part"]["draft"] > 0.0
    assert sum(steps["seconds_by_operator"].values()) == pytest.approx(sum(steps["seconds_by_part"].values()))


def test_sglang_takes_host_time_for_each_verified_token() -> None:
    """35 us on top of the 4 us of a request, which a step counts once for each token that it verifies."""
    named = "deployment.engine={name: sglang, version: 0.5.9}"
    with_drafts = resolve(speculating(EAGLE, named)).shape.engine
    without = resolve(speculating(None, named)).shape.engine

    assert with_drafts.host_seconds_per_request - without.host_seconds_per_request == pytest.approx(35e-6)


def test_seats_that_drafts_take_are_no_seats_of_a_static_batch() -> None:
    """Both are as many as the token budget holds with their drafts, said or not."""
    budget = "deployment.engine.max_num_batched_tokens=64"
    engine = resolve(speculating(NGRAM, budget)).shape.engine

    assert engine.max_num_seqs == 64 // (1 + 3)
    assert engine.static_batch_size == engine.max_num_seqs


def test_drafts_break_even_at_the_first_batch_that_they_slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten drafts in four steps are 2.5 sequences each: half way between the gains of two and three."""
    gains = np.array([2.0, 1.5, 0.9, 1.1, 0.8])
    monkeypatch.setattr("simserve.scenario.speculative.price", lambda _shape: None)
    monkeypatch.setattr("simserve.perf.speculation.decode_speedup", lambda *_: gains)
    spec = SpeculativeSpec.model_validate(NGRAM)
    shape = replace(resolve(make_scenario()).shape)
    shape = replace(shape, engine=shape.engine.model_copy(update={"max_num_seqs": 5}))
    totals: Any = SimpleNamespace(num_drafts=10, num_steps=4, context_tokens=1000)
    priced: Any = None

    facts = speculation_facts(spec, shape, priced, totals)

    assert (facts.mean_batch, facts.break_even_batch) == (2.5, 3)
    assert facts.decode_speedup == pytest.approx(1.2)


def test_llama_cpp_drafts_in_slots() -> None:
    """Of builds since May 2026, with the model's own layer: the more is accepted, the sooner the next token."""
    engine = {"name": "llama.cpp", "version": "b9180", "max_num_seqs": 2, "max_model_len": 4096}
    deployment = {"hardware": "rtx-3090-24gb", "quantization": "gguf-q4_k_m", "engine": engine}

    def tpot(acceptance: float | None, *overrides: str) -> float:
        drafts = {"method": "mtp", "num_speculative_tokens": 1, "acceptance_rate": acceptance}
        asked = {**deployment, "speculative": None if acceptance is None else drafts}
        return float(run(make_scenario(overrides, model="qwen3.5-27b", deployment=asked)).summary["mean_tpot_ms"])

    assert tpot(0.9) < tpot(0.5) < tpot(None)
    with pytest.raises(ScenarioError, match="b9000 has no"):
        tpot(0.9, "deployment.engine.version=b9000")
