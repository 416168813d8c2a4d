"""Reports that nothing was fitted to: how their files are read, and what the page says of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from simserve.errors import ProfileError, TraceError
from simserve.planner.measured.reports import UNSEEN, read_exclusions, read_own, read_unseen, read_unseen_memory
from simserve.planner.measured.shipped import read_shipped, read_shipped_memory
from simserve.planner.validation.prediction import Pricer, predict
from simserve.planner.validation.scoring import compare_memory
from simserve.planner.validation.validate import Validation
from simserve.profiles import catalog
from simserve.scenario.load import from_mapping
from simserve.scenario.run import run
from simserve.workload.generate import generate

DEPLOYMENT = {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12.0", "max_model_len": 4096}}
RUN = {"name": "c2", "clients": 2, "requests": 6, "prompt": 100, "output": 20, "measured": {"tpot": "7 ms"}}


def report(folder: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Write a report and make it the only one."""
    server = {"name": "s", "model": "llama-3.1-8b", "deployment": DEPLOYMENT, "runs": [RUN]}
    content = {"title": "T", "citation": "C", "url": "https://example.org/t", "date": "2026-01-02", "servers": [server]}
    (folder / "mine.yaml").write_text(yaml.safe_dump(content | fields), encoding="utf-8")
    monkeypatch.setattr(catalog, "folders", lambda kind: [folder] if kind == UNSEEN else real(kind))


real = catalog.folders


def servers(*runs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one server with some loads."""
    return [{"name": "s", "model": "llama-3.1-8b", "deployment": DEPLOYMENT, "runs": list(runs)}]


@pytest.mark.slow
def test_every_bundled_report_is_a_valid_scenario_of_a_known_model_and_gpu() -> None:
    """Each point could be written to a file and run; each says its engine's release, and so does every pool's engine,
    which takes nothing from the deployment's."""
    points = read_unseen()

    assert len(points) > 150
    for point in points:
        scenario = from_mapping(point.scenario)
        assert (scenario.model, scenario.deployment.hardware) == (point.model, point.hardware)
        assert point.version
        assert all(pool.engine is None or pool.engine.version for pool in scenario.deployment.pools), point.label
        assert point.source == UNSEEN
    assert len({point.label for point in points}) == len(points)


@pytest.mark.slow
def test_reports_are_replayed_only_where_they_are_asked_for() -> None:
    """Accuracy and expected errors are of other sources."""
    assert not any(point.source == UNSEEN for point in read_shipped())
    assert {point.source for point in read_shipped((UNSEEN,))} == {UNSEEN}
    assert read_shipped_memory() == []
    assert read_shipped_memory((UNSEEN,)) == read_unseen_memory() != []


def test_loads_become_arrivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients, a rate, a batch, a queue; lengths fixed, between two, or by mean and spread."""
    common = {"prompt": {"min": 5, "max": 100}, "output": {"mean": 20, "cv": 0.5, "max": 40}}
    figures = {"measured": {"throughput": 100}}
    runs = [
        RUN,
        {"name": "r", "rate": 2.5, "requests": 9, **common, **figures},
        {"name": "b", "batch": 8, **common, "measured": {"e2e": "2 s"}},
        {"name": "q", "queued": 30, **common, "measured": {"total_throughput": 300}},
    ]
    report(tmp_path, monkeypatch, servers=servers(*runs))

    closed, poisson, batch, queued = read_unseen()

    assert [p.load_kind for p in (closed, poisson, batch, queued)] == ["concurrency", "rate", "batch", "offline"]
    assert closed.scenario["workload"]["arrivals"] == {"process": "closed_loop", "concurrency": 2}
    assert closed.measured == {"tpot": pytest.approx(0.007)}
    assert poisson.scenario["workload"]["arrivals"] == {"process": "poisson", "rate": 2.5}
    assert poisson.scenario["workload"]["prompt_tokens"] == {"distribution": "uniform", "min": 5, "max": 100}
    assert poisson.scenario["workload"]["output_tokens"]["distribution"] == "lognormal"
    assert batch.scenario["workload"]["num_requests"] == 8
    assert (queued.measured, queued.protocol.is_total_throughput) == ({"throughput": 300.0}, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"servers": servers({**RUN, "rate": 1.0})}, "exactly one of clients, rate, batch and queued"),
        ({"servers": servers({k: v for k, v in RUN.items() if k != "requests"})}, "needs requests"),
        ({"servers": servers({**RUN, "measured": {}})}, "must hold a figure"),
        ({"servers": servers({**RUN, "measured": {"throughput": 1, "total_throughput": 2}})}, "cannot both be given"),
        ({"url": "somewhere"}, "url"),
        ({"kv_rooms": [{"name": "k", "model": "llama-3.1-8b", "deployment": DEPLOYMENT}]}, "needs tokens or gib"),
    ],
)
def test_a_report_that_cannot_be_read_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], message: str
) -> None:
    """On one line, with the file."""
    report(tmp_path, monkeypatch, **fields)

    with pytest.raises(ProfileError, match=message):
        read_unseen()


def test_kv_rooms_are_tokens_or_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """131,072 bytes a token of Llama-3.1-8B."""
    room = {"name": "k", "model": "llama-3.1-8b", "deployment": DEPLOYMENT}
    report(tmp_path, monkeypatch, kv_rooms=[{**room, "tokens": 8192}, {**room, "name": "g", "gib": 2.5}])

    tokens, gib = compare_memory(read_unseen_memory())

    assert tokens.measured_bytes == 8192 * 131_072
    assert gib.measured_bytes == 2.5 * 1024**3
    assert (tokens.is_own_count, gib.is_own_count) == (False, False)


def test_a_room_whose_deployment_is_refused_is_listed_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight ranks hold one copy of each of Llama's heads: no contexts to divide."""
    refused = {**DEPLOYMENT, "tensor_parallel_size": 8, "decode_context_parallel_size": 8}
    room = {"name": "k", "model": "llama-3.1-8b", "deployment": DEPLOYMENT, "tokens": 8192}
    report(tmp_path, monkeypatch, kv_rooms=[room, {**room, "name": "r", "deployment": refused}])

    found = Validation(predictions=(), memory=compare_memory(read_unseen_memory())).summary

    assert [each["label"] for each in found["memory"]] == ["mine: k"]
    ((source, reason),) = [(each["source"], each["reason"]) for each in found["not_covered"]]
    assert source == "logged KV cache size, mine: r"
    assert "decode_context_parallel_size: 8 must be at most the copies that ranks hold" in reason


def test_tokens_of_a_model_with_windows_are_counted_by_each_release_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an error in them is told apart; bytes are bytes."""
    room = {"name": "k", "model": "gemma-3-12b", "deployment": DEPLOYMENT}
    report(tmp_path, monkeypatch, kv_rooms=[{**room, "tokens": 8192}, {**room, "name": "g", "gib": 2.5}])

    tokens, gib = compare_memory(read_unseen_memory())

    assert (tokens.is_own_count, gib.is_own_count) == (True, False)


@pytest.mark.parametrize(
    ("model", "deployment", "tokens"),
    [
        ("gpt-oss-120b", {"version": "0.30.0", "max_model_len": 131072, "kv_cache_memory_bytes": "8 GiB"}, 225_706),
        ("gemma-4-26b-a4b", {"version": "0.30.0", "max_model_len": 32768, "kv_cache_memory_bytes": "3 GiB"}, 122_521),
        ("nemotron-3.5-lightning-30b-a3b", {"version": "0.30.0", "kv_cache_memory_bytes": "2 GiB"}, 342_016),
        # 16,384 blocks of 16 tokens in 18 layers, divided by the two groups
        ("gpt-oss-120b", {"version": "0.20.0", "max_model_len": 131072, "kv_cache_memory_bytes": "9 GiB"}, 131_072),
    ],
    ids=["gpt-oss", "gemma", "nemotron", "before 0.20.1"],
)
def test_tokens_in_a_pool_of_groups_are_those_that_the_release_prints(
    model: str, deployment: dict[str, Any], tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GB10: requests of full length from 0.20.1 on (edurdias's logs of 0.30, to the token), blocks by groups before."""
    engine = {"name": "vllm", "max_model_len": 32768, "max_num_seqs": 4, "language_model_only": True, **deployment}
    kv = {} if model == "gpt-oss-120b" else {"kv_cache_dtype": "fp8"}
    room = {"name": "k", "model": model, "deployment": {"hardware": "gb10-128gb", "engine": engine, **kv}}
    report(tmp_path, monkeypatch, kv_rooms=[{**room, "tokens": tokens}])

    (found,) = compare_memory(read_unseen_memory())

    assert found.predicted_bytes == pytest.approx(found.measured_bytes, abs=0.5)


def test_what_a_report_leaves_out_is_kept_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the page that names it."""
    report(tmp_path, monkeypatch, excluded=[{"what": "the rest", "why": "too old"}])

    ((file, excluded),) = read_exclusions()

    assert (file, excluded.what, excluded.why) == ("mine", "the rest", "too old")


def test_lengths_of_a_file_are_found_beside_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is relative to the file that names it, wherever the command runs."""
    (tmp_path / "seen.csv").write_text("prompt,output\n30,4\n500,90\n", encoding="utf-8")
    lengths = {part: {"path": "seen.csv", "column": part} for part in ("prompt", "output")}
    report(tmp_path, monkeypatch, servers=servers(RUN | lengths))

    (point,) = read_unseen()

    specs = generate(from_mapping(point.scenario).workload, seed=1)
    assert set(specs.prompt_tokens.tolist()) == {30, 500}
    assert set(specs.output_tokens.tolist()) == {4, 90}


def test_rows_of_a_file_are_sent_once_each_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a rate and by clients; arrivals are drawn as before."""
    (tmp_path / "seen.csv").write_text("asked,said\n30,4\n500,90\n7,8\n30,5\n", encoding="utf-8")
    kept = {key: RUN[key] for key in ("name", "measured")} | {"requests": 4}
    rows = {"rows": {"path": "seen.csv", "prompt": "asked", "output": "said"}}
    report(tmp_path, monkeypatch, servers=servers(*(kept | rows | load for load in ({"rate": 2.0}, {"clients": 2}))))

    for point in read_unseen():
        specs = generate(from_mapping(point.scenario).workload, seed=1)

        assert specs.prompt_tokens.tolist() == [30, 500, 7, 30]
        assert specs.output_tokens.tolist() == [4, 90, 8, 5]


@pytest.mark.parametrize("load", [{"clients": 2}, {"rate": 0.5}], ids=str)
def test_a_text_that_prompts_share_is_computed_once(
    load: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on top of the prompt's length, and requests after the first find it in the cache."""
    kept = {key: value for key, value in RUN.items() if key not in ("clients", "name")} | {"requests": 60}
    shared: dict[str, Any] = {"shared_prefix": {"num_groups": 1, "tokens": 3000}}
    runs = [{"name": "alone", "prompt": 3100} | load, {"name": "shared"} | shared | load]
    report(tmp_path, monkeypatch, servers=servers(*(kept | each | {"measured": {"ttft": "1 s"}} for each in runs)))

    points = read_unseen()
    lengths = [generate(from_mapping(point.scenario).workload, seed=1).prompt_tokens.tolist() for point in points]
    alone, together = (predict(point, Pricer()).predicted["ttft"] for point in points)

    assert lengths == [[3100] * 60] * 2
    assert together < 0.6 * alone


def test_clients_may_begin_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once all prompts of a round are computed together; else each is computed beside the others' answers."""
    kept = {**RUN, "clients": 16, "requests": 160, "prompt": 1000, "output": 200, "measured": {"ttft": "1 s"}}
    runs = ({"name": "together"}, {"name": "apart", "ramp_up": "2 s"})
    report(tmp_path, monkeypatch, servers=servers(*(kept | run for run in runs)))

    together, apart = (predict(point, Pricer()).predicted["ttft"] for point in read_unseen())

    assert apart < 0.4 * together


def test_a_ramp_is_of_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests at a rate have their own times."""
    load = {key: value for key, value in RUN.items() if key != "clients"} | {"rate": 2.0, "ramp_up": "2 s"}
    report(tmp_path, monkeypatch, servers=servers(load))

    with pytest.raises(ProfileError, match="needs clients beside ramp_up"):
        read_unseen()


@pytest.mark.parametrize(
    "load", [{"batch": 4}, {"clients": 2, "rows": {"path": "s.csv", "prompt": "a", "output": "b"}}]
)
def test_a_shared_text_is_of_requests_whose_prompts_have_a_length(
    load: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch in process finds no earlier request, and a file's rows hold whole prompts."""
    kept = {"name": "r", "requests": 4, "measured": {"e2e": "2 s"}, "shared_prefix": {"num_groups": 1, "tokens": 50}}
    lengths = {} if "rows" in load else {"prompt": 100, "output": 20}
    report(tmp_path, monkeypatch, servers=servers(kept | lengths | load))

    with pytest.raises(ProfileError, match="needs clients, rate or queued, and prompt, beside shared_prefix"):
        read_unseen()


@pytest.mark.parametrize("kept", [("prompt", "output"), ("prompt",), ()])
def test_rows_stand_in_place_of_both_lengths(
    kept: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both together would say two things of one request, and without rows both lengths are needed."""
    rows = {} if kept == ("prompt",) or not kept else {"rows": {"path": "seen.csv", "prompt": "a", "output": "b"}}
    load = {key: value for key, value in RUN.items() if key in kept or key not in ("prompt", "output")}
    report(tmp_path, monkeypatch, servers=servers(load | rows))

    with pytest.raises(ProfileError, match="needs prompt and output, or rows alone"):
        read_unseen()


def test_lengths_of_a_file_that_is_not_there_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the file."""
    report(tmp_path, monkeypatch, servers=servers(RUN | {"prompt": {"path": "gone.csv"}}))

    with pytest.raises(TraceError, match="no such file") as found:
        read_unseen()

    assert found.value.file == "gone.csv"


def test_shared_lengths_have_the_means_that_their_reports_print() -> None:
    """217 and 201 tokens of ShareGPT; a tenth of the answers is of 13 tokens or fewer."""
    table = np.loadtxt(
        catalog.find(UNSEEN, "a6000-vllm-0.13").parent / "lengths/sharegpt.csv", delimiter=",", skiprows=1
    )

    assert table.mean(axis=0) == pytest.approx((217, 201), abs=0.5)
    assert np.percentile(table[:, 1], 10) <= 13


def test_separate_workers_of_a_file_prefill_and_decode_apart(tmp_path: Path) -> None:
    """What is predicted of a server with pools is what a run of it says, and not that of replicas that do both."""
    together = {"engine": DEPLOYMENT["engine"], "hardware": "h100-sxm-80gb"}
    pools = [{"name": role, "role": role, "replicas": 1} for role in ("prefill", "decode")]
    apart = together | {"pools": pools, "disaggregation": {"transfer_bandwidth": "1 GB/s", "transfer_latency": "30 ms"}}
    load = RUN | {"prompt": 2000, "measured": {"tpot": "7 ms", "ttft": "90 ms"}}
    found = []
    for name, deployment in (("apart", apart), ("together", together)):
        written = tmp_path / f"{name}.yaml"
        server = {"name": name, "model": "llama-3.1-8b", "deployment": deployment, "runs": [load]}
        written.write_text(yaml.safe_dump({"servers": [server]}), encoding="utf-8")
        (point,), _ = read_own([written])
        found.append((point, predict(point, Pricer())))
    (point, parted), (_, whole) = found
    summary = run(from_mapping(point.scenario)).summary

    assert parted.predicted["ttft"] == pytest.approx(summary["mean_ttft_ms"] / 1e3, rel=1e-9)
    assert parted.predicted["tpot"] == pytest.approx(summary["mean_tpot_ms"] / 1e3, rel=1e-9)
    assert parted.predicted["ttft"] > whole.predicted["ttft"] + 0.25  # 0.26 GB of keys and values at 1 GB/s
    assert parted.server is not None
    assert parted.server.has_pools


def test_a_batch_takes_until_its_last_answer(tmp_path: Path) -> None:
    """Prompts that do not fit into one step are answered one after another; the mean would say less."""
    written = tmp_path / "batch.yaml"
    load = {"name": "b8", "batch": 8, "prompt": 3000, "output": 1, "measured": {"e2e": "1 s"}}
    written.write_text(yaml.safe_dump({"servers": servers(load)}), encoding="utf-8")
    (point,), _ = read_own([written])
    summary = run(from_mapping(point.scenario)).summary

    assert predict(point, Pricer()).predicted["e2e"] == pytest.approx(summary["duration"], rel=1e-9)
    assert summary["mean_e2el_ms"] / 1e3 < 0.8 * summary["duration"]
