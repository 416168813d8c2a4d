"""The bundled scenarios: each opens with its question, fits, runs in seconds, and shows what it promises."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from simserve.metrics.result import RunResult
from simserve.profiles import catalog
from simserve.profiles.hardware import load_hardware
from simserve.scenario.load import load, question, text
from simserve.scenario.run import run
from simserve.scenario.schema import objective
from simserve.scenario.verify import verify
from tests.fuzzing import every_third

_NAMES = catalog.names("scenario")
_EXPECTED = [
    "api-vs-self-host",
    "batch-size-sweet-spot",
    "busy-scales-late",
    "canary",
    "chatbot",
    "code-completion",
    "coding-agents",
    "cold-start",
    "data-residency",
    "disaggregation",
    "embeddings",
    "encoder-pool",
    "fair-tenants",
    "first-token-in-100-ms",
    "framework-comparison",
    "halve-the-api-bill",
    "hundred-requests-a-second",
    "hundred-tenants",
    "images",
    "interactive-and-batch",
    "kv-offload",
    "kv-tiers",
    "limits-wide-open",
    "liveness-cascade",
    "long-context",
    "lost-replica",
    "mixed-traffic",
    "multi-turn",
    "offline-batch",
    "one-fleet-or-two",
    "overflow-to-api",
    "overload-and-shedding",
    "paged-vs-static",
    "prefix-routing",
    "reasoning",
    "response-cache",
    "rl-rollouts",
    "rolling-update",
    "single-gpu-7b",
    "small-model-first",
    "speculative-decoding",
    "stale-router",
    "static-vs-continuous",
    "streaming",
    "structured-output",
    "swap-or-recompute",
    "ten-thousand-users",
    "two-pools",
    "two-regions",
    "urgent-first",
    "voice-assistant",
]
_OVERLOADED = {
    "busy-scales-late",
    "cold-start",
    "limits-wide-open",
    "liveness-cascade",
    "overload-and-shedding",
    "rolling-update",
    "stale-router",
}
"""Scenarios whose point is that the objective is missed as they ship."""
_OUT_OF_REACH = {"hundred-requests-a-second"}
"""Scenarios that ask for more than any deployment gives, and say so."""
_LONG_TO_FILL = ("coding-agents", "halve-the-api-bill", "hundred-tenants", "kv-offload", "kv-tiers", "prefix-routing")
"""Scenarios of which it takes seconds to find the most that can be finished: of each the load ratio is in the full
tier, and whether the queue grows in both."""
_PROMISED = re.compile(r"--set ('[^']*'|\S+)")


@cache
def ran(name: str) -> RunResult:
    """Return a bundled scenario's run, as it ships: one for all tests."""
    return _run(name)


def _run(name: str, *overrides: str) -> RunResult:
    """Return a run; where that takes seconds, nothing is said of the most that the deployment could finish."""
    return run(load(name, overrides), finishable=None if name in _LONG_TO_FILL else "find")


def summary(name: str, *overrides: str) -> dict[str, Any]:
    """Return the figures of a bundled scenario."""
    return dict((_run(name, *overrides) if overrides else ran(name)).summary)


def suggestions(name: str) -> list[list[str]]:
    """Return the overrides that a scenario's comment suggests, those of one line together."""
    comment = [line for line in text(name).splitlines() if line.startswith("#")]
    found = [[match.strip("'") for match in _PROMISED.findall(line)] for line in comment]
    return [each for each in found if each]


def test_these_are_bundled() -> None:
    """Adding one adds it here."""
    assert _NAMES == _EXPECTED


@pytest.mark.parametrize("name", _EXPECTED)
def test_a_scenario_opens_with_its_question(name: str) -> None:
    """The first line says what running it answers; the name is the file's."""
    assert question(name).endswith("?")
    assert text(name).startswith("# ")
    assert load(name).name == name


@pytest.mark.parametrize("name", _EXPECTED)
def test_a_scenario_serves_everything_it_sends(name: str) -> None:
    """Nothing is lost, and an open loop is stable as it ships."""
    result = summary(name)

    inner = result["simserve"]
    requests = inner["requests"]
    assert requests["submitted"] > 0
    if name in _OVERLOADED:
        statuses = ("completed", "rejected", "timed_out", "failed", "unfinished")
        assert requests["submitted"] == sum(requests[fate] for fate in statuses)
        return
    assert result["completed"] == requests["submitted"]
    arrivals = load(name).workload.arrivals
    if arrivals is not None and arrivals.process in ("poisson", "gamma"):
        assert inner["stability"] == "stable" or name in _OUT_OF_REACH
        is_met = inner["slo"]["attainment"] >= objective(load(name)).attainment
        assert is_met == (name not in _OUT_OF_REACH)


@pytest.mark.slow
@pytest.mark.parametrize("name", _LONG_TO_FILL)
def test_what_takes_long_to_fill_is_stable_as_it_ships(name: str) -> None:
    """By its load ratio as well, of which the run says what it is."""
    inner = run(load(name)).summary["simserve"]

    assert inner["stability"] == "stable"
    assert 0 < inner["load_ratio"] < 1


@pytest.mark.parametrize("name", every_third(_EXPECTED))
def test_every_suggested_change_runs(name: str) -> None:
    """What the comment says to try can be tried, in a small version here."""
    assert suggestions(name)
    workload = load(name).workload
    # How many requests clients of a mix send is not known before.
    is_known = not (workload.is_mixed and workload.has_clients)
    few = ["workload.num_requests=48", *(["workload.duration=null"] if workload.duration else [])]
    for overrides in suggestions(name):
        small = load(name, [*overrides, *(few if is_known else ["workload.duration=20 s"])])
        completed = run(small, finishable=None).summary["completed"]
        assert completed == 48 if is_known else completed > 50, overrides


@pytest.mark.parametrize("name", _EXPECTED)
def test_littles_law_holds(name: str) -> None:
    """Requests in the system, integrated over time by the engine, are the stays of all requests together."""
    simulation = ran(name).simulation
    series, records = simulation.totals.series, simulation.records

    in_system = float(np.sum((series.running + series.waiting) * np.diff(series.edges)))

    sojourns = float(np.nansum(records.finish_time - records.admitted_time))
    if simulation.stream is not None:
        pytest.skip("the client's times are not the engine's")
    if simulation.timeline is not None:
        sojourns += float((simulation.timeline.tries[:, 2] - simulation.timeline.tries[:, 0]).sum())
    assert in_system == pytest.approx(sojourns, rel=1e-9)


@pytest.mark.parametrize("name", _EXPECTED)
def test_shares_are_shares(name: str) -> None:
    """What is called a share lies between 0 and 1, in every scenario."""
    inner = summary(name)["simserve"]
    shares = {
        **inner["utilization"],
        **{key: value for key, value in inner["kv"].items() if key not in ("num_blocks", "preemptions", "tiers")},
        **{(tier["tier"], key): tier[key] for tier in inner["kv"]["tiers"] for key in ("hit_rate", "peak_usage")},
        **inner["bottleneck"]["step_shares"],
        **inner["bottleneck"]["waiting_shares"],
    }

    assert {key: value for key, value in shares.items() if value is not None and not 0 <= value <= 1} == {}


def test_shedding_keeps_goodput_where_a_queue_and_retries_lose_it() -> None:
    """At 1.5 times capacity: within a tenth of its peak with shedding; overloaded without; nothing with retries."""
    peak = summary("overload-and-shedding", "workload.arrivals.rate=35", "deployment.admission=null")
    shed = summary("overload-and-shedding")
    queued = summary("overload-and-shedding", "deployment.admission=null")
    longer = summary("overload-and-shedding", "deployment.admission=null", "workload.num_requests=12000")
    retried = summary(
        "overload-and-shedding",
        "deployment.admission=null",
        "workload.classes.0.timeout=20 s",
        "workload.classes.0.retries={max: 10, backoff: 0 s}",
    )

    assert shed["request_goodput"] > 0.9 * peak["request_goodput"]
    # What is shed was offered: more than can be finished is overload, whatever becomes of it.
    assert shed["simserve"]["stability"] == "overloaded"
    assert shed["simserve"]["load_ratio"] > 1.4
    assert queued["simserve"]["stability"] == "overloaded"
    assert longer["p99_ttft_ms"] > 1.8 * queued["p99_ttft_ms"]
    assert retried["request_goodput"] < 0.05 * peak["request_goodput"]
    assert retried["request_throughput"] < 0.5 * queued["request_throughput"]
    assert "Retries are a load of their own" in retried["simserve"]["bottleneck"]["explanation"]


def test_a_cold_start_leaves_a_hole_that_spares_fill_at_a_price() -> None:
    """Between the spike at 300 s and the new replicas at about 495 s first tokens are late."""
    result = ran("cold-start")
    frame, simserve = result.requests, result.summary["simserve"]
    met = {
        name: float(frame.slo_ok[(frame.arrival_s >= start) & (frame.arrival_s < end)].mean())
        for name, start, end in (("before", 0, 290), ("hole", 330, 490), ("after", 900, 1500))
    }
    first_new = next(row["time_s"] for row in simserve["replicas"]["timeline"] if row["ready"] > 2)
    spares = summary("cold-start", "deployment.autoscaling.min_replicas=4", "deployment.replicas=4")

    assert met["before"] > 0.99
    assert met["hole"] < 0.2
    assert met["after"] > 0.99
    assert first_new == pytest.approx(300 + 15 + 180, abs=16)
    assert spares["simserve"]["slo"]["attainment"] > 0.99
    fixed = 4 * simserve["cost"]["gpu_hour_usd"]
    assert spares["simserve"]["cost"]["usd_per_hour"] == pytest.approx(fixed)


def test_a_replica_that_hangs_is_worse_than_one_that_crashes() -> None:
    """Retries mend a crash; where requests are dealt in turn, a quarter of them waits out an unnoticed hang."""
    at = "at: 4 min, duration: 3 min"
    crashed = summary("lost-replica")
    hang = f"deployment.faults=[{{kind: black_hole, {at}, probe: {{depth: shallow}}}}]"
    hung = summary("lost-replica", hang, "deployment.routing=round_robin")
    routed = summary("lost-replica", "deployment.faults.0.in_flight=retry")

    assert crashed["simserve"]["requests"]["failed"] == 0
    assert crashed["simserve"]["requests"]["resent"] > 10
    assert routed["simserve"]["requests"]["resent"] == 0
    assert crashed["simserve"]["slo"]["attainment"] > 0.98
    assert hung["simserve"]["slo"]["attainment"] < 0.95
    assert hung["p99_ttft_ms"] > 100 * crashed["p99_ttft_ms"]


def test_disaggregation_and_small_chunks_each_cut_the_gaps_between_tokens() -> None:
    """On the same four GPUs; both cost time to first token, and the summary says how busy each pool is."""
    same = ["deployment.pools=[]", "deployment.disaggregation=null", "deployment.replicas=4"]
    split, mixed = summary("disaggregation"), summary("disaggregation", *same)
    chunked = summary("disaggregation", *same, "deployment.engine.max_num_batched_tokens=1024")

    assert split["p99_itl_ms"] < 0.2 * mixed["p99_itl_ms"]
    assert chunked["p99_itl_ms"] < 0.4 * mixed["p99_itl_ms"]
    assert split["median_ttft_ms"] > 1.2 * mixed["median_ttft_ms"]
    assert chunked["median_ttft_ms"] > mixed["median_ttft_ms"]
    inner = split["simserve"]
    assert inner["transfers"]["count"] > 2900
    assert "Busy by pool: prefill" in inner["bottleneck"]["explanation"]
    assert "the way to a decode replica: " in inner["bottleneck"]["explanation"]
    assert inner["cost"]["usd_per_hour"] == mixed["simserve"]["cost"]["usd_per_hour"]


def test_buffering_five_tokens_sends_80_percent_fewer_events() -> None:
    """And saves the core, which is full where events times their cost are 1; first token and gaps change for it."""
    one = "deployment.streaming.buffer_tokens=1"
    buffered, single, four = (
        summary("streaming", *more) for more in ([], [one], [one, "deployment.streaming.api_servers=4"])
    )

    events = [each["simserve"]["streaming"]["events"] for each in (buffered, single)]
    assert 1 - events[0] / events[1] == pytest.approx(0.8, abs=0.005)
    assert single["simserve"]["bottleneck"]["binding"] == "API server"
    assert single["simserve"]["stability"] == "overloaded"
    assert events[1] / single["duration"] * 60e-6 == pytest.approx(1, abs=0.02)
    assert buffered["simserve"]["bottleneck"]["binding"] != "API server"
    assert four["median_ttft_ms"] < buffered["median_ttft_ms"] < 0.1 * single["median_ttft_ms"]
    assert buffered["mean_itl_ms"] == pytest.approx(5 * four["mean_itl_ms"], rel=0.05)


def test_a_router_that_remembers_prefixes_finds_them_again() -> None:
    """Nearly twice the hits of round robin, and first tokens in half the time; the guard keeps replicas even."""
    result = ran("prefix-routing")
    remembering, dealt = dict(result.summary), summary("prefix-routing", "deployment.routing=round_robin")

    hits = [each["simserve"]["kv"]["prefix_hit_rate"] for each in (remembering, dealt)]
    assert hits[0] > 0.9
    assert hits[1] < 0.6
    assert remembering["p95_ttft_ms"] < 0.6 * dealt["p95_ttft_ms"]
    served = np.bincount(result.simulation.records.replica_id, minlength=8)
    assert served.max() < 1.5 * served.mean()


def test_an_api_takes_the_top_of_the_load_for_less_than_a_second_gpu() -> None:
    """Within the objective, and cheaper than two replicas; waiting instead misses it."""
    hybrid = summary("overflow-to-api")
    second = summary("overflow-to-api", "deployment.overflow=null", "deployment.replicas=2")
    waiting = summary("overflow-to-api", "deployment.overflow=null")

    inner = hybrid["simserve"]
    assert 0.02 < inner["overflow"]["share"] < 0.5
    assert inner["slo"]["attainment"] > 0.95 > waiting["simserve"]["slo"]["attainment"]
    assert inner["cost"]["usd_per_hour"] < 0.9 * second["simserve"]["cost"]["usd_per_hour"]
    assert "went to deepinfra-llama-3.1-8b" in inner["bottleneck"]["explanation"]


def test_a_response_cache_bears_what_would_take_a_second_gpu() -> None:
    """At 9 requests a second one GPU holds with it and not without; expiry costs hits, and a request half as much."""
    cached = summary("response-cache")
    none = summary("response-cache", "deployment.response_cache=null")
    two = summary("response-cache", "deployment.response_cache=null", "deployment.replicas=2")
    short = summary("response-cache", "deployment.response_cache.expiry=1 min")
    full = summary("response-cache", "deployment.response_cache={hit_share: {faq: 0.6}, latency: 8 ms}")

    attained = [each["simserve"]["slo"]["attainment"] for each in (cached, none, two)]
    assert attained[0] > 0.95 > 0.8 > attained[1]
    assert attained[2] > 0.95
    prices = [each["simserve"]["cost"]["usd_per_request"] for each in (cached, two)]
    assert prices[0] == pytest.approx(prices[1] / 2, rel=0.03)
    hits = [each["simserve"]["response_cache"] for each in (short, cached, full)]
    assert hits[0]["hit_share"] < hits[1]["hit_share"] < hits[2]["hit_share"]
    assert hits[0]["expired"] > hits[1]["expired"]
    assert hits[2]["by_class"]["faq"] == pytest.approx(0.6, abs=0.04)
    assert hits[2]["by_class"]["chat"] == 0
    assert cached["request_goodput"] > 2 * none["request_goodput"]


def test_a_wrong_guess_is_paid_twice_and_late() -> None:
    """The small model saves nearly half the money; with more wrong guesses the slow tail grows."""
    shipped, worse = (
        summary("small-model-first", *more) for more in ([], ["deployment.routing.rules.0.misclassified=0.4"])
    )
    large = summary("small-model-first", "deployment.routing.rules=[{pool: large}]", "deployment.pools.1.replicas=2")

    assert shipped["simserve"]["cost"]["usd_per_hour"] < 0.6 * large["simserve"]["cost"]["usd_per_hour"]
    assert shipped["p95_ttft_ms"] > 5 * large["p95_ttft_ms"]
    assert worse["p95_ttft_ms"] > 2 * shipped["p95_ttft_ms"]
    asked = [each["simserve"]["asked_again"] for each in (shipped, worse)]
    assert asked[1]["share"] == pytest.approx(4 * asked[0]["share"], rel=0.2)
    assert asked[1]["discarded_output_tokens"] > 3 * asked[0]["discarded_output_tokens"]
    assert "asked a second time" in shipped["simserve"]["bottleneck"]["explanation"]


def test_fair_turns_keep_a_flood_to_itself() -> None:
    """The steady tenant's objective holds; first come, first served, it waits behind the other's job."""
    fair = summary("fair-tenants")
    served = summary("fair-tenants", "deployment.fairness=null")
    paid = summary("fair-tenants", "deployment.fairness.shares={steady: 1, flooding: 4}")

    steady = [each["simserve"]["classes"]["steady"] for each in (fair, served, paid)]
    assert steady[0]["slo"]["attainment"] > 0.99
    assert steady[1]["slo"]["attainment"] < 0.7
    assert steady[0]["p95_ttft_ms"] < steady[2]["p95_ttft_ms"]
    assert fair["output_throughput"] == pytest.approx(served["output_throughput"], rel=0.02)
    assert "Classes take turns by their shares" in fair["simserve"]["bottleneck"]["explanation"]
    assert (
        fair["simserve"]["fairness"]["steady"]["mean_wait_s"]
        < 1
        < 10
        < (fair["simserve"]["fairness"]["flooding"]["mean_wait_s"])
    )


def test_what_may_not_leave_waits_and_a_rate_limit_brings_the_queue_back() -> None:
    """No patient file is at the API; below the limit's rate nobody waits, above it everybody does."""
    result = ran("data-residency")
    records, inner = result.simulation.records, result.summary["simserve"]
    tight = summary("data-residency", "deployment.overflow.requests_per_minute=300")
    waits = summary("data-residency", "deployment.overflow.when_limited=wait")

    assert records.request_class is not None
    assert (records.replica_id[records.request_class == 1] >= 0).all()
    assert inner["overflow"]["requests"] > 1000
    assert inner["overflow"]["limited"] > 100
    assert tight["p95_ttft_ms"] > 5 * result.summary["p95_ttft_ms"]
    assert "its rate limit is the bottleneck" in tight["simserve"]["bottleneck"]["explanation"]
    assert waits["simserve"]["overflow"]["share"] > inner["overflow"]["share"]
    assert waits["simserve"]["classes"]["patients"]["p95_ttft_ms"] < inner["classes"]["patients"]["p95_ttft_ms"]


def test_a_canary_gets_its_share() -> None:
    """One request in ten; at equal weights a tenth of the replicas gets half of the load, and breaks."""
    simulation = ran("canary").simulation
    even = summary("canary", "deployment.routing.weights={stable: 1, canary: 1}")

    assert np.mean(simulation.records.replica_id == 9) == pytest.approx(0.1, abs=0.001)
    assert even["simserve"]["stability"] == "overloaded"
    assert even["simserve"]["pools"]["canary"]["busy"] > 0.99
    assert even["simserve"]["pools"]["stable"]["busy"] < 0.6


def test_one_fleet_serves_a_batch_sooner_and_two_pools_the_chats_a_little_better() -> None:
    """Preemption keeps most of what a pool of its own gives the chats; first come, first served loses it."""
    batch = "[{name: chat, replicas: 2}, {name: batch, replicas: 2}]"
    apart = [f"deployment.pools={batch}", "deployment.replicas=1"]
    apart += ["workload.classes.0.pool=chat", "workload.classes.1.pool=batch"]
    plain = ["deployment.engine.scheduling_policy=fcfs", "deployment.engine.priority_preemption=null"]
    plain += ["workload.classes.0.priority=null", "workload.classes.1.priority=null"]
    one, two, first = (summary("one-fleet-or-two", *more)["simserve"]["classes"] for more in ([], apart, plain))

    assert two["chat"]["p95_ttft_ms"] < one["chat"]["p95_ttft_ms"] < 1000 < first["chat"]["p95_ttft_ms"]
    assert one["reports"]["p95_e2el_ms"] < 0.9 * two["reports"]["p95_e2el_ms"]
    assert one["chat"]["slo"]["attainment"] > 0.95


def test_memory_a_user_decides_how_many_gpus_ten_thousand_users_take() -> None:
    """Question 2: 84 A100 hold P95 TTFT below 2 s, 68 do not; 8-bit KV on H100 needs 40."""
    shipped = summary("ten-thousand-users")
    few = summary("ten-thousand-users", "deployment.replicas=34")

    assert shipped["simserve"]["users"]["waiting"] == pytest.approx(3000)
    assert shipped["p95_ttft_ms"] < 500
    assert few["p95_ttft_ms"] > 2000
    assert few["simserve"]["bottleneck"]["binding"] == "KV memory"
    assert shipped["simserve"]["memory"]["max_concurrent_full_length"] == pytest.approx(37.4, abs=0.1)


def test_the_api_bill_is_halved() -> None:
    """Question 3: each lever of the four lowers a month of 98 M requests, and together they more than halve it."""
    at_api = "deployment.routing.rules=[{pool: api}]"
    long = "workload.classes.1.prompt_tokens.mean=3000"
    own = [at_api, "deployment.response_cache=null", long], [at_api, long], [at_api], []
    months = []
    for overrides in own:
        result = summary("halve-the-api-bill", *overrides)
        api = result["simserve"]["overflow"]["usd_per_hour"]
        gpus = result["simserve"]["cost"]["usd_per_hour"] - api if result["simserve"]["steps"]["count"] else 0.0
        months.append(gpus * 720 + api / 3600 / result["request_throughput"] * 98e6)

    assert months[0] == pytest.approx(500_000, rel=0.05)
    assert months == sorted(months, reverse=True)
    assert months[-1] < 0.5 * months[0]


def test_a_stale_view_makes_everybody_run_to_one_replica() -> None:
    """The rule that is best with a live view is the worst with an old one; two at random are in between."""
    p99 = {
        name: summary("stale-router", *more)["p99_ttft_ms"]
        for name, more in {
            "stale": (),
            "live": ("deployment.routing.update_interval=0 s",),
            "two": ("deployment.routing.policy=power_of_two",),
            "random": ("deployment.routing=random",),
        }.items()
    }

    assert p99["live"] < p99["random"] < p99["two"] < p99["stale"] / 10


def test_long_documents_make_the_chat_wait() -> None:
    """Shorter documents bring the chat's first tokens forward; each class is judged by its own objective."""
    long, short = (
        summary("interactive-and-batch", *more)["simserve"]["classes"]
        for more in ([], ["workload.classes.1.prompt_tokens.value=1500"])
    )

    assert short["chat"]["p95_ttft_ms"] < 0.7 * long["chat"]["p95_ttft_ms"]
    assert long["documents"]["slo"]["by_metric"]["ttft"] is None
    assert long["chat"]["slo"]["by_metric"]["e2e"] is None


def test_continuous_batching_wins_on_uneven_answers() -> None:
    """Three times and more; on equal answers the two forms agree."""
    continuous = ["deployment.engine.batching=continuous", "deployment.engine.static_batch_size=null"]
    equal = ["workload.output_tokens={distribution: fixed, value: 250}", "workload.num_requests=320"]

    uneven_gain = (
        summary("static-vs-continuous", *continuous)["output_throughput"]
        / summary("static-vs-continuous")["output_throughput"]
    )
    equal_gain = (
        summary("static-vs-continuous", *continuous, *equal)["output_throughput"]
        / summary("static-vs-continuous", *equal)["output_throughput"]
    )

    assert uneven_gain >= 3
    assert equal_gain == pytest.approx(1, abs=0.1)


def test_paging_fills_the_kv_memory_that_it_reserves() -> None:
    """The share of reserved KV memory that holds tokens: paged above 95 %, then oracle, pow2, static."""
    used = {
        allocation: 1
        - summary("paged-vs-static", f"deployment.engine.kv_allocation={allocation}")["simserve"]["kv"][
            "internal_waste"
        ]
        for allocation in ("paged", "oracle", "pow2", "static")
    }

    assert used["paged"] > 0.95
    assert used["paged"] > used["oracle"] > used["pow2"] > used["static"]


def test_throughput_rises_flattens_and_falls_with_the_seats() -> None:
    """Preemption begins where throughput turns, and the report names KV memory from there on."""
    runs = {
        seats: summary("batch-size-sweet-spot", f"deployment.engine.max_num_seqs={seats}")
        for seats in (8, 16, 32, 48, 128)
    }
    rate = {seats: result["output_throughput"] for seats, result in runs.items()}
    preempted = {seats: result["simserve"]["kv"]["preemptions"] for seats, result in runs.items()}

    assert rate[8] < 0.75 * rate[16] < 0.75 * rate[32]
    assert rate[32] / rate[16] < rate[16] / rate[8]
    assert rate[48] < 0.95 * rate[32]
    assert rate[128] < 0.95 * rate[32]
    assert preempted[16] == 0
    assert preempted[48] > 10 * preempted[32]
    assert runs[16]["simserve"]["bottleneck"]["binding"] == "max_num_seqs"
    assert runs[48]["simserve"]["bottleneck"]["binding"] == "KV memory"


def test_drafts_gain_at_low_load_and_cost_at_high_load() -> None:
    """Answers take well below two thirds of the time at 8 requests a second, and longer than without at 20."""
    ratio = {}
    for rate in (8, 20):
        load_of = f"workload.arrivals.rate={rate}"
        drafting, plain = (
            summary("speculative-decoding", load_of, *more) for more in ([], ["deployment.speculative=null"])
        )
        ratio[rate] = drafting["mean_e2el_ms"] / plain["mean_e2el_ms"]
        block = drafting["simserve"]["speculation"]
        assert (block["decode_speedup"] > 1) == (block["mean_batch"] < block["break_even_batch"])

    assert ratio[8] < 0.65
    assert ratio[20] > 1.2


def test_a_prefix_cache_holds_the_conversations() -> None:
    """Nine tenths of the prompt tokens are found, and with them the objective is kept that is missed without."""
    cached = summary("multi-turn")
    plain = summary("multi-turn", "deployment.engine.enable_prefix_caching=false")

    assert cached["simserve"]["kv"]["prefix_hit_rate"] > 0.85
    assert plain["simserve"]["kv"]["prefix_hit_rate"] is None
    assert plain["simserve"]["slo"]["attainment"] < 0.6
    assert plain["p95_ttft_ms"] > 10 * cached["p95_ttft_ms"]


def test_more_conversations_than_memory_keeps_find_less() -> None:
    """At twice the traffic turns come back to blocks that have given way."""
    rates = [
        summary("multi-turn", f"workload.arrivals.rate={rate}")["simserve"]["kv"]["prefix_hit_rate"] for rate in (3, 7)
    ]

    assert rates[1] < rates[0] - 0.2


def test_swapping_spares_the_others_a_prefill() -> None:
    """Each is preempted twice either way; copies stall the running requests less than computing again does."""
    swapped = summary("swap-or-recompute")
    again = summary("swap-or-recompute", "deployment.engine.preemption_mode=recompute")

    for result in (swapped, again):
        assert result["simserve"]["kv"]["preemptions"] > result["completed"]
    assert swapped["p99_itl_ms"] < 0.7 * again["p99_itl_ms"]
    assert swapped["simserve"]["steps"]["seconds_by_part"]["communication"] > 0
    assert again["simserve"]["steps"]["seconds_by_part"]["communication"] == 0
    assert "copied to host memory" in swapped["simserve"]["bottleneck"]["explanation"]


def test_interactive_requests_pass_the_batch() -> None:
    """Priority shortens their wait many times over, preemption to nothing; only without a cache is work done twice."""
    plain = ["deployment.engine.priority_preemption=null"]
    no_order = [f"workload.classes.{number}.priority=null" for number in (0, 1)]
    preempting = summary("urgent-first")["simserve"]
    ordered = summary("urgent-first", "deployment.engine.priority_preemption=false")["simserve"]
    fcfs, shortest = (
        summary("urgent-first", f"deployment.engine.scheduling_policy={policy}", *plain, *no_order)["simserve"]
        for policy in ("fcfs", "shortest_first")
    )

    waits = [each["classes"]["interactive"]["p95_ttft_ms"] for each in (preempting, ordered, fcfs)]
    assert waits[0] < 0.25 * waits[1] < 0.25 * 0.05 * waits[2]
    assert preempting["slo"]["attainment"] > 0.99 > fcfs["slo"]["attainment"]
    assert preempting["kv"]["preemptions"] > 0 == ordered["kv"]["preemptions"]
    uncached = "deployment.engine.enable_prefix_caching=false"
    again = summary("urgent-first", uncached)["simserve"]
    batch = [each["classes"]["batch"]["mean_ttft_ms"] for each in (again, preempting, ordered, fcfs)]
    assert batch[0] > 1.01 * batch[1]
    assert batch[1] == pytest.approx(batch[2], rel=0.01)
    assert batch[2] > batch[3]
    assert shortest["classes"]["interactive"]["p95_ttft_ms"] < 0.1 * waits[2]


def test_a_batch_slows_the_people_beside_it_and_smaller_batches_less() -> None:
    """Priority keeps their queue short; the pace of a step is everybody's, and only seats mend that."""
    wide, narrow = summary("mixed-traffic"), summary("mixed-traffic", "deployment.engine.max_num_seqs=24")
    people, narrowed = (each["simserve"]["classes"]["people"] for each in (wide, narrow))
    documents = [each["simserve"]["classes"]["documents"] for each in (wide, narrow)]

    assert wide["simserve"]["load"] == "mixed"
    assert people["p95_ttft_ms"] < 500 < 0.01 * documents[0]["p95_ttft_ms"]
    assert people["slo"]["attainment"] < 0.95 < narrowed["slo"]["attainment"]
    assert narrowed["p95_tpot_ms"] < 0.6 * people["p95_tpot_ms"]
    assert documents[1]["p95_e2el_ms"] > 1.5 * documents[0]["p95_e2el_ms"]


def test_reasoning_hides_most_of_its_tokens_and_a_budget_brings_the_answer_forward() -> None:
    """Four tokens in five are hidden; a budget of 1,024 more than halves p95 of the wait; a low limit costs answers."""
    plain, budget, limited = (
        summary("reasoning", *more)["simserve"]
        for more in ((), ("workload.thinking_token_budget=1024",), ("workload.max_tokens=1500",))
    )

    assert 0.75 < plain["reasoning"]["thinking_share"] < 0.85
    assert plain["slo"]["attainment"] >= 0.95
    assert budget["reasoning"]["ttfvt_ms"]["p95"] < 0.5 * plain["reasoning"]["ttfvt_ms"]["p95"]
    assert plain["reasoning"]["num_without_answer"] == 0
    assert limited["reasoning"]["num_without_answer"] > 100


def test_structured_output_costs_more_where_the_gpu_waits_for_masks() -> None:
    """vLLM 0.12 hides masks behind the GPU, 0.11 does not; a request in ten that is constrained hardly shows."""
    hidden, waited, few, outlines = (
        summary("structured-output", *more)
        for more in (
            (),
            ("deployment.engine.version=0.11",),
            ("workload.structured_output.share=0.1",),
            ("workload.structured_output.backend=outlines",),
        )
    )

    assert few["mean_tpot_ms"] < hidden["mean_tpot_ms"] < waited["mean_tpot_ms"] < outlines["mean_tpot_ms"]
    requests = _run("structured-output", "workload.structured_output.backend=outlines").requests
    assert (requests["ttft_ms"] >= 1340).sum() == 20  # one of every schema waits for its grammar
    assert outlines["p99_ttft_ms"] > 20 * waited["p99_ttft_ms"]


def test_embeddings_end_with_their_prompts() -> None:
    """No token is generated, the first one's time is the whole request's, and full steps make a token cheaper."""
    queries = summary("embeddings")
    corpus = summary("embeddings", "workload.arrivals={process: all_at_once}")

    assert queries["total_output_tokens"] == 0
    assert queries["mean_ttft_ms"] == queries["mean_e2el_ms"]
    assert queries["mean_tpot_ms"] is None
    assert queries["simserve"]["cost"]["usd_per_million_output_tokens"] is None
    costs = [each["simserve"]["cost"]["usd_per_million_tokens"] for each in (corpus, queries)]
    assert costs[0] < 0.7 * costs[1]


def test_an_encoder_pool_frees_steps_of_images_and_is_paid_for() -> None:
    """Tokens come faster; one worker makes images wait; its GPUs are in the dollars, and it can be what binds."""
    pool, alone, one, slow = (
        summary("encoder-pool", *more)
        for more in (
            (),
            ("deployment.encoder_disaggregation=null",),
            ("deployment.encoder_disaggregation.replicas=1",),
            ("deployment.encoder_disaggregation={hardware: l4}", "workload.num_requests=300"),
        )
    )

    images = [each["simserve"]["images"] for each in (pool, alone, one)]
    dollars = [each["simserve"]["cost"]["usd_per_hour"] for each in (pool, alone, one)]
    assert pool["mean_tpot_ms"] < 0.8 * alone["mean_tpot_ms"]
    assert images[2]["mean_encoder_wait_ms"] > 3 * images[0]["mean_encoder_wait_ms"]
    assert images[2]["encoder_utilization"] == pytest.approx(2 * images[0]["encoder_utilization"], rel=0.05)
    assert images[1]["encoder_utilization"] is None
    assert dollars[0] - dollars[1] == pytest.approx(2 * (dollars[2] - dollars[1]))
    power = [each["simserve"]["energy"]["encoder_watts"] for each in (pool, alone, one)]
    energy, busy = pool["simserve"]["energy"], images[0]["encoder_utilization"]
    l40s = load_hardware("l40s-48gb").power
    assert power[0] == pytest.approx(2 * (l40s.idle + (l40s.board - l40s.idle) * busy))
    assert power[1] == 0.0
    assert l40s.idle < power[2] < l40s.board
    assert energy["watts_mean"] == pytest.approx(energy["pue"] * (2 * energy["watts_per_gpu"] + power[0]))
    assert slow["simserve"]["load_ratio"] > 1
    assert slow["simserve"]["stability"] == "overloaded"
    assert slow["simserve"]["bottleneck"]["binding"] == "encoder_disaggregation.replicas"


SCALED = (
    "deployment.encoder_disaggregation={replicas: 1, hardware: l40s, autoscaling: {metric: busy, target: 0.6, "
    "max_replicas: 6, interval: 10 s, startup: {schedule: 5 s, image: 0 s, engine: 5 s}}}"
)


def test_an_encoder_pool_that_follows_its_load_is_paid_for_as_it_was_there() -> None:
    """From one worker on: the dollars are those of the mean, the load ratio that of the most, the watts in between."""
    one, scaled = (
        summary("encoder-pool", "deployment.encoder_disaggregation.replicas=1", "workload.num_requests=400", *more)
        for more in ((), (SCALED,))
    )

    alone, images = one["simserve"]["images"], scaled["simserve"]["images"]
    dollars = [each["simserve"]["cost"]["usd_per_hour"] for each in (one, scaled)]
    without = summary("encoder-pool", "deployment.encoder_disaggregation=null")
    hour = dollars[0] - without["simserve"]["cost"]["usd_per_hour"]
    assert images["mean_encoder_wait_ms"] < 0.9 * alone["mean_encoder_wait_ms"]
    assert 1 < images["mean_encoders"] < images["peak_encoders"] <= 6
    assert (alone["mean_encoders"], alone["peak_encoders"]) == (1, 1)
    assert dollars[1] - dollars[0] == pytest.approx(hour * (images["mean_encoders"] - 1), rel=0.02)
    worked = [each["encoder_utilization"] * each["mean_encoders"] for each in (alone, images)]
    assert worked[1] == pytest.approx(worked[0], rel=0.02)
    assert scaled["simserve"]["load_ratio"] <= one["simserve"]["load_ratio"]
    assert verify(load("encoder-pool", [SCALED, "workload.num_requests=120"]), accelerate="off").differing == {}


def test_images_cost_time_on_the_cpu_in_the_encoder_and_as_tokens() -> None:
    """Each of the three goes by itself: scaled by clients, known to the encoder's cache, or of 256 tokens each."""
    plain, scaled, cached, few = (
        summary("images", *more)
        for more in (
            (),
            ("workload.images.preprocess_time=0 ms",),
            ("workload.images.cached_share=1",),
            ("model=gemma-3-27b",),
        )
    )

    def images(result: dict[str, Any]) -> dict[str, Any]:
        return result["simserve"]["images"]

    assert 0.3 < images(plain)["ttft_share"] < 0.7
    assert scaled["mean_ttft_ms"] < plain["mean_ttft_ms"] - 0.8 * images(plain)["mean_preprocess_ms"] / 2
    assert images(cached)["mean_encoder_ms"] == 0.0
    assert cached["mean_ttft_ms"] < plain["mean_ttft_ms"]
    assert cached["total_input_tokens"] == plain["total_input_tokens"]
    assert images(few)["tokens"] == 256 * images(few)["images"]
    assert sum(plain["simserve"]["steps"]["seconds_by_part"].values()) == pytest.approx(
        plain["simserve"]["utilization"]["busy"] * plain["duration"], rel=0.02
    )


def test_a_round_of_rollouts_waits_for_its_longest_answers() -> None:
    """Half of the answers are there in less than half of the round; a shorter limit shortens it."""
    whole, cut = (summary("rl-rollouts", *more) for more in ((), ("workload.max_tokens=8192",)))

    rounds, shorter = whole["simserve"]["rounds"], cut["simserve"]["rounds"]
    assert rounds["finished"] == shorter["finished"] == 3
    assert rounds["mean_half_s"] < 0.5 * rounds["mean_round_s"]
    assert shorter["mean_round_s"] < 0.8 * rounds["mean_round_s"]
    assert whole["duration"] == pytest.approx(3 * rounds["mean_round_s"] + 2 * 92.0)
    assert whole["simserve"]["kv"]["prefix_hit_rate"] > 0.5
