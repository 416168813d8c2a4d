"""The lessons of the page, against worked examples and the engine."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import yaml

from simserve.explore.batching import batching, paging
from simserve.explore.lessons import kv_growth, memory_wall, quantization
from simserve.explore.money import cost
from simserve.explore.queries import (
    BatchingQuery,
    CostQuery,
    MemoryQuery,
    PagingQuery,
    ParallelQuery,
    SpeculationQuery,
    WizardQuery,
)
from simserve.explore.tradeoffs import attention, parallel, speculation
from simserve.explore.wizard import wizard
from simserve.scenario.load import from_mapping
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


def test_lines_cross_at_the_break_even() -> None:
    """As `simserve cost` says."""
    found = cost(CostQuery(), no_limit)
    at = found["break_even"]

    assert at * found["api"]["usd_per_request"] == pytest.approx(found["self_host"]["usd_per_month"], rel=1e-6)
    assert found["cheaper"] == ("self_host" if CostQuery().requests_per_month > at else "api")


def test_the_wizard_names_a_fleet_that_can_be_run() -> None:
    """What it saves is a scenario of that many GPUs; where nothing holds it says what came nearest."""
    found = wizard(WizardQuery(hardware=("h100-sxm-80gb",), rate=4.0), no_limit)
    none = wizard(WizardQuery(hardware=("l4-24gb",), slo_ttft_ms=5.0, max_gpus=1), no_limit)

    scenario = from_mapping(yaml.safe_load(found["scenario"]))
    assert found["feasible"]
    assert scenario.deployment.num_gpus == found["best"]["num_gpus"]
    assert found["best"]["attainment"] >= 0.95
    assert "one replica bears" in found["equations"][0]["numbers"]
    assert not none["feasible"]
    assert none["best"] is none["scenario"] is None
    assert none["parts"][0]["lines"]
