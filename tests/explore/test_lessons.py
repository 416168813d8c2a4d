"""The lessons of the page, against worked examples and the engine."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import yaml

import simserve as ss
from simserve import api
from simserve.errors import InputError
from simserve.explore.batching import batching, paging
from simserve.explore.exports import export
from simserve.explore.lessons import kv_growth, memory_wall, quantization
from simserve.explore.money import cost, replica
from simserve.explore.queries import (
    BatchingQuery,
    CostQuery,
    MemoryQuery,
    PagingQuery,
    ParallelQuery,
    SimulatorQuery,
    SpeculationQuery,
    TooLongError,
    WizardQuery,
)
from simserve.explore.simulator import load, simulator
from simserve.explore.tradeoffs import attention, best_layout, parallel, speculation
from simserve.explore.wizard import first, wizard
from simserve.metrics.files import scenario_text
from simserve.planner.export.export import WHOLE
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from tests.explore.builders import no_limit


def wall(**changes: Any) -> dict[str, Any]:
    """Return the memory wall of the defaults, changed."""
    return memory_wall(MemoryQuery(**changes), no_limit)


def test_a_batch_shares_the_weights() -> None:
    """Sixteen times the sequences take far less than sixteen times as long; each still reads its own KV."""
    one, many = wall(batch=1, context_tokens=500), wall(batch=16, context_tokens=500)

    assert many["step_ms"] < 3 * one["step_ms"]
    assert many["tokens_per_second"] > 5 * one["tokens_per_second"]
    assert many["step"]["reading KV"] > 4 * one["step"]["reading KV"]
    assert many["step_ms"] >= many["bound_ms"]
    assert many["intensity"] > one["intensity"]


def test_the_curve_passes_through_the_point() -> None:
    """The batch that is asked stands in it."""
    found = wall(batch=24)

    place = found["curve"]["batch"].index(24)
    assert found["curve"]["tokens_per_second"][place] == pytest.approx(found["tokens_per_second"])


def test_kv_of_a_token_is_the_worked_example() -> None:
    """Llama-2-7B, FP16: 524,288 B a token, 1.07 GB for 2,048."""
    found = kv_growth(MemoryQuery(model="llama-2-7b", quantization="none", batch=1, context_tokens=2048), no_limit)

    assert found["kv_bytes_per_token"] == 524_288
    assert found["used"] == pytest.approx(1.0737e9, rel=1e-3)
    assert "2 x 32 x 32 x 128 x 2 B = 524,288 B" in found["equations"][0]["numbers"]
    assert found["fits"]
    assert not kv_growth(MemoryQuery(model="llama-2-7b", batch=1024, context_tokens=4096), no_limit)["fits"]


def test_rounding_is_the_worked_example() -> None:
    """Symmetric INT4 of four weights: scale 0.1186, codes 1 -7 4 -2, largest error 0.027; INT8 loses less."""
    found = quantization(MemoryQuery(model="llama-2-7b", quantization="int4"), no_limit)

    assert "in 4 bit 0.1186 x (1, -7, 4, -2), off by at most 0.027" in found["equations"][-1]["numbers"]
    assert "in 8 bit 0.006535 x (18, -127, 69, -32), off by at most 0.0024" in found["equations"][-1]["numbers"]


def test_shared_heads_shrink_the_cache() -> None:
    """MQA is 64 times smaller than MHA for 64 heads; the model's own kind is named."""
    found = attention(MemoryQuery(model="llama-3.1-70b", quantization="int4"), no_limit)
    rows = {row["name"]: row["bytes_per_token"] for row in found["rows"]}

    assert rows["MHA"] == 64 * rows["MQA"]
    assert found["own_name"] == "GQA, 8 groups"
    assert found["own"] == rows["GQA, 8 groups"] == 327_680


def test_slots_are_those_of_the_worked_example() -> None:
    """7 x 20 and 1 x 500 tokens in 8 slots: 3,360 idle slot-steps in 500 steps, whatever fills a static batch."""
    found = batching(BatchingQuery(lengths=(*[20] * 7, 400), slots=8), no_limit)
    static = found["forms"]["static"]

    assert static["steps"] == 400
    assert static["idle"] == pytest.approx(1 - (140 + 400) / 3200)
    assert all(slot < 8 and start < end <= held for slot, start, end, held, _ in static["spans"])


@pytest.mark.parametrize("form", ["static", "continuous"])
def test_no_slot_holds_two_requests(form: str) -> None:
    """At any step; and every request gets as many steps as it has tokens."""
    query = BatchingQuery()
    spans = batching(query, no_limit)["forms"][form]["spans"]

    for slot in range(query.slots):
        held = sorted((start, until) for at, start, _, until, _ in spans if at == slot)
        assert all(until <= following for (_, until), (following, _) in pairwise(held))
    assert {index: end - start for _, start, end, _, index in spans} == dict(enumerate(query.lengths))


def test_equal_answers_gain_nothing() -> None:
    """Static and continuous batching agree."""
    assert batching(BatchingQuery(lengths=(30,) * 16), no_limit)["gain"] == 1.0


def test_paging_fills_the_memory() -> None:
    """The order of the vLLM paper: paged wastes least, the longest sequence reserved most."""
    found = paging(PagingQuery(num_requests=300), no_limit)
    waste = [found["ways"][way]["internal_waste"] for way in ("paged", "oracle", "pow2", "static")]

    assert waste == sorted(waste)
    assert waste[0] < 0.05
    assert found["gain"] > 1.2
    assert all(held <= reserved for reserved, held in found["ways"]["static"]["map"])


def test_fewer_bits_are_fewer_bytes() -> None:
    """INT4 is about a quarter of 16 bit, and what is asked is in the table; published quality has its studies."""
    found = quantization(MemoryQuery(quantization="int4"), no_limit)
    rows = {row["format"]: row for row in found["rows"]}

    assert rows["none"]["weights_bytes"] / rows["int4"]["weights_bytes"] == pytest.approx(3.7, abs=0.3)
    assert rows["int4"]["ms_alone"] < rows["none"]["ms_alone"]
    assert "int4" in found["equations"][0]["name"]
    assert all(row["studies"] for row in rows.values() if row["loss"] is not None)


def test_drafts_are_the_closed_form_and_stop_paying() -> None:
    """a = 0.8, a draft at 5 %: best k is 8 (3.09x); in the engine the gain falls with the batch."""
    found = speculation(SpeculationQuery(acceptance_rate=0.8, draft_cost=0.05), no_limit)
    gains = found["engine"]["speedup"]

    assert found["closed"]["best"] == 8
    assert max(found["closed"]["speedup"]) == pytest.approx(3.09, abs=0.01)
    assert gains[0] > 1.5
    assert gains[-1] < 0.7 * gains[0]


def test_tensor_ranks_shorten_a_step_and_replicas_bring_tokens() -> None:
    """Of a 70B model on eight GPUs; what does not fit is said."""
    found = parallel(ParallelQuery(), no_limit)
    rows = {row["layout"]: row for row in found["rows"]}

    assert found["quickest"] == "1 x TP 8 PP 1"
    assert rows["1 x TP 8 PP 1"]["step_ms"] < rows["2 x TP 4 PP 1"]["step_ms"]
    assert rows["2 x TP 4 PP 1"]["tokens_per_second"] > rows["1 x TP 8 PP 1"]["tokens_per_second"]
    assert not rows["8 x TP 1 PP 1"]["fits"]


def two_by_two(**changes: Any) -> dict[str, Any]:
    """Return the cost tab of two frameworks on two GPUs, changed."""
    asked = {
        "frameworks": ("vllm", "llama.cpp"),
        "hardware": ("h100-sxm-80gb", "l40s-48gb"),
        "concurrency": 16,
        **changes,
    }
    return cost(CostQuery(**asked), no_limit)


def test_every_framework_on_every_gpu_has_a_price() -> None:
    """Dollars an hour over tokens an hour at the used share; cheapest first; a discount is one."""
    found, off = two_by_two(), two_by_two(discount=0.5)
    rows = {row["name"]: row for row in found["rows"]}
    row = rows["vllm on h100-sxm-80gb"]

    assert set(rows) == {f"{each} on {gpu}" for each in ("vllm", "llama.cpp") for gpu in ("h100-sxm-80gb", "l40s-48gb")}
    assert row["usd_per_million"] == pytest.approx(1e6 * row["usd_per_hour"] / (3600 * row["output_throughput"] * 0.4))
    assert row["output_throughput"] > 2 * rows["llama.cpp on h100-sxm-80gb"]["output_throughput"]
    prices = [each["usd_per_million"] for each in found["rows"]]
    assert prices == sorted(prices)
    assert found["cheapest"] == found["chosen"]["name"] == found["rows"][0]["name"]
    assert off["chosen"]["usd_per_hour"] == pytest.approx(found["chosen"]["usd_per_hour"] / 2)


def test_the_rate_of_a_framework_is_that_of_its_full_loop() -> None:
    """Of the middle of the run: no less than over the whole, which fills first and drains at last."""
    query = CostQuery(concurrency=16)
    row = next(each for each in cost(query, no_limit)["rows"] if each["name"] == "vllm on h100-sxm-80gb")
    whole = run(from_mapping(replica(query, "vllm", "h100-sxm-80gb", 1))).summary["output_throughput"]

    assert whole <= row["output_throughput"] < 1.5 * whole


@pytest.mark.slow
def test_what_cannot_run_says_why() -> None:
    """And the rest is compared without it; where nothing runs there is one clear line."""
    found = two_by_two(model="llama-3.1-70b", hardware=("h100-sxm-80gb", "t4-16gb", "v100s-32gb"))
    why = {row["hardware"]: row["why_not"] for row in found["rows"] if row["framework"] == "vllm"}

    assert why["h100-sxm-80gb"] == ""
    assert "does not fit on up to 8 GPUs" in why["t4-16gb"]
    assert why["v100s-32gb"] == "no price of this GPU is known"
    assert [row["usd_per_million"] is None for row in found["rows"]] == sorted(
        bool(row["why_not"]) for row in found["rows"]
    )
    with pytest.raises(InputError, match="does not fit"):
        two_by_two(model="llama-3.1-405b", hardware=("l4-24gb",))


def test_lines_cross_at_the_break_even() -> None:
    """The first volume from which whole replicas and people cost no more than the API."""
    found = two_by_two(api="gpt-4o", requests_per_month=1e6)
    at, curve = found["break_even"], found["curve"]
    row = found["chosen"]
    replicas = max(-(-at // found["fleet_holds"]), 1)

    assert at * found["api"]["usd_per_request"] >= replicas * row["usd_per_hour"] * 720 + 2000 - 1e-6
    below = [own > other for volume, own, other in zip(*curve.values(), strict=True) if volume < at]
    assert below
    assert all(below)
    assert found["cheaper"] == ("self_host" if at < 1e6 else "api")


def test_what_is_chosen_is_set_against_the_api() -> None:
    """Another than the cheapest costs more; a name that is not there means the cheapest."""
    dear = two_by_two(chosen="llama.cpp on h100-sxm-80gb")

    assert dear["chosen"]["name"] == "llama.cpp on h100-sxm-80gb"
    assert dear["self_host"]["usd_per_month"] > two_by_two()["self_host"]["usd_per_month"]
    assert two_by_two(chosen="nothing")["chosen"]["name"] == dear["cheapest"]


@cache
def most_load(**changes: Any) -> dict[str, Any]:
    """Return what the page says of the most load of few requests: once for all tests."""
    return load(SimulatorQuery(num_requests=200, **changes), no_limit)


@pytest.mark.slow
def test_the_most_load_is_where_the_objective_breaks() -> None:
    """Every slower rate that was run holds, every faster one does not; a tighter objective bears less."""
    found, tight = most_load(), most_load(slo_tpot_ms=24.0)
    curve = found["curve"]

    holds = [rate for rate, share in zip(curve["rate"], curve["attainment"], strict=True) if share >= 0.95]
    assert found["most"] == max(holds) > found["asked"]
    assert not found["open_ended"]
    assert tight["most"] < found["most"]
    assert load(SimulatorQuery(num_requests=100, slo_tpot_ms=2.0), no_limit)["most"] is None


@pytest.mark.slow
def test_the_most_load_is_the_same_whatever_rate_was_asked_for() -> None:
    """To 3 %, from a load that is far below it."""
    assert most_load(rate=0.1)["most"] == pytest.approx(most_load()["most"], rel=0.03)


@pytest.mark.slow
def test_the_most_load_is_the_capacity() -> None:
    """The page and `simserve capacity` search alike, so they say the same."""
    query = SimulatorQuery(num_requests=200)

    assert most_load()["most"] == ss.capacity(query.scenario()).found.largest.value


def test_the_load_that_a_deployment_bears_is_what_its_time_allows() -> None:
    """Stopped in the middle it says what the runs have shown; before the first run is over there is nothing to say."""
    calls = 0

    def some(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise TooLongError("the run takes longer than 5 s")

    def none(done: int, total: int) -> None:
        raise TooLongError("the run takes longer than 5 s")

    assert load(SimulatorQuery(), some)["curve"]["rate"]
    with pytest.raises(TooLongError):
        load(SimulatorQuery(), none)


CHAT = SimulatorQuery(num_requests=2000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "query", "after"), [(simulator, CHAT, 0), (load, CHAT, 0), (load, CHAT, 4), (wizard, WizardQuery(), 0)]
)
def test_what_ctrl_c_breaks_off_is_no_answer(answer: Any, query: Any, after: int) -> None:
    """Neither the run that was under way nor the search, whatever it had seen: an export ends there."""
    calls = 0

    def interrupted(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(query, interrupted)


@pytest.mark.slow
def test_experts_are_spread_where_there_are_any() -> None:
    """Expert-parallel layouts of a mixture of experts, none of a dense model."""
    moe = parallel(ParallelQuery(model="mixtral-8x7b"), no_limit)

    assert any(row["deployment"].get("enable_expert_parallel") for row in moe["rows"])
    assert not any("EP" in row["layout"] for row in parallel(ParallelQuery(), no_limit)["rows"])
    assert best_layout(ParallelQuery()) == {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "replicas": 4}


@pytest.mark.slow
def test_the_wizard_names_a_fleet_that_can_be_run() -> None:
    """What it saves is a scenario of that many GPUs; where nothing holds it says what came nearest."""
    alike = {"pools": "one kind of replica"}
    found = wizard(WizardQuery(hardware=("h100-sxm-80gb",), rate=4.0, **alike), no_limit)
    none = wizard(WizardQuery(hardware=("l4-24gb",), slo_ttft_ms=5.0, max_gpus=1, **alike), no_limit)

    scenario = from_mapping(yaml.safe_load(found["scenario"]))
    assert found["feasible"]
    assert scenario.deployment.num_gpus == found["best"]["num_gpus"]
    assert found["best"]["attainment"] >= 0.95
    assert found["best"]["label"] in {each["label"] for each in found["fleets"]}
    assert "one replica can sustain" in found["equations"][0]["numbers"]
    assert not none["feasible"]
    assert none["best"] is none["scenario"] is None
    assert none["parts"][0]["lines"]


_LONG = {"hardware": ("h100-sxm-80gb",), "rate": 4.0, "prompt_tokens": 3000, "max_gpus": 2}


@pytest.mark.slow
def test_the_wizard_sizes_workers_of_each_role_and_writes_them_down() -> None:
    """Prefill and decode apart, as asked: pools in the scenario, what each role can do, the counts in manifests."""
    query = WizardQuery(pools="prefill and decode apart", **_LONG)
    found = wizard(query, no_limit)

    deployment = yaml.safe_load(found["scenario"])["deployment"]
    counts = {pool["role"]: pool["replicas"] for pool in deployment["pools"]}
    by_target = {each["target"]: each for each in found["manifests"]}
    components = yaml.safe_load(by_target["dynamo"]["files"][0]["text"])["spec"]["components"]
    replicas = {each["name"]: each["replicas"] for each in components}
    assert set(counts) == {"prefill", "decode"}
    assert sum(counts.values()) == found["best"]["replicas"]
    assert "x prefill can finish" in found["equations"][0]["numbers"]
    assert {name: replicas[f"Vllm{name.title()}Worker"] for name in counts} == counts
    assert by_target["k8s"]["refused"].startswith("deployment.disaggregation")
    assert set(by_target) == set(WHOLE)
    assert first(query, no_limit) is None
    assert "--keep disaggregation,drafts" in export("wizard", query, no_limit).partition("\n")[0]


_DAY = {"hardware": ("l40s-48gb",), "rate": 10.0, "peak_to_mean": 1.6}


def test_a_day_asks_the_wizard_for_an_autoscaler() -> None:
    """One curve of the day, about as many requests as the page has time for; level days and fixed GPUs have none."""
    query = WizardQuery(**_DAY)
    arrivals = query.mapping()["workload"]["arrivals"]

    assert (arrivals["process"], arrivals["peak_to_mean"], arrivals["day"]) == ("daily", 1.6, "4000 s")
    assert query.mapping()["workload"]["duration"] == "4000 s"
    assert "pools" in query.keep
    assert WizardQuery(**{**_DAY, "rate": 0.1}).mapping()["workload"]["arrivals"]["day"] == "86400 s"
    assert "--autoscaler --out best.yaml" in export("wizard", query, no_limit).partition("\n")[0]
    assert first(query, no_limit) is None
    for level in (WizardQuery(**{**_DAY, "peak_to_mean": 1.1}), WizardQuery(**_DAY, throughput=True)):
        assert level.mapping()["workload"]["arrivals"]["process"] == "poisson"
    for other in ({"spare_replicas": 1}, {"pools": "prefill and decode apart"}):
        with pytest.raises(InputError, match=r"peak_to_mean: 1\.6 is a day for which an autoscaler is looked for"):
            wizard(WizardQuery(**_DAY, **other), no_limit)


@pytest.mark.slow
def test_the_wizard_writes_the_autoscaler_that_it_found() -> None:
    """Its scenario is that of `plan --autoscaler --out`, and so are the bounds of the HorizontalPodAutoscaler."""
    query = WizardQuery(**_DAY)
    found = wizard(query, no_limit)
    plan = api.plan(
        from_mapping(query.mapping()),
        hardware=query.hardware,
        max_gpus=query.max_gpus,
        headroom=query.headroom,
        keep=query.keep,
        autoscaler=True,
        trials=0,
        jobs=1,
    )

    assert plan.scaled is not None
    scaling = plan.scaled.deployment.autoscaling
    assert scaling is not None
    assert found["scenario"] == scenario_text(plan.scaled.as_mapping())
    (k8s,) = (each for each in found["manifests"] if each["target"] == "k8s")
    (scaler,) = (
        each for each in yaml.safe_load_all(k8s["files"][0]["text"]) if each["kind"] == "HorizontalPodAutoscaler"
    )
    assert scaler["spec"]["minReplicas"] == scaling.min_replicas
    assert scaler["spec"]["maxReplicas"] == scaling.max_replicas
    assert found["best"]["mean_gpus"] < found["best"]["num_gpus"]
    assert "squeezed into 1.11 h" in found["parts"][0]["lines"][-1]


@pytest.mark.slow
def test_the_wizard_says_what_fixed_gpus_can_do() -> None:
    """The most tokens of the GPUs that were named, on one kind of replica; the scenario has the load that holds."""
    query = WizardQuery(throughput=True, pools="one kind of replica", model="llama-3.2-1b", output_tokens=50, **_LONG)
    found = wizard(query, no_limit)

    best, scenario = found["best"], from_mapping(yaml.safe_load(found["scenario"]))
    assert found["objective"] == "throughput"
    assert best["num_gpus"] == scenario.deployment.num_gpus == 2
    assert not scenario.deployment.pools
    assert scenario.workload.arrivals.rate == pytest.approx(best["rate"], rel=1e-3)
    assert best["rate"] > query.rate
    assert best["output_throughput"] / 2 == pytest.approx(best["tokens_per_second_per_gpu"])
    answer, *others = found["fleets"]
    users = [each["tokens_per_second_per_user"] for each in others]
    assert (answer["label"], answer["rate"], answer["holds"]) == (best["label"], best["rate"], True)
    assert users == sorted(users, reverse=True)
    assert "/ 2 =" in found["equations"][0]["numbers"]
    assert "--objective throughput --max-gpus 2" in export("wizard", query, no_limit).partition("\n")[0]
    with pytest.raises(InputError, match="spare replicas are of one kind"):
        wizard(WizardQuery(pools="prefill and decode apart", spare_replicas=1, **_LONG), no_limit)
