"""The real server: what is sent, what is read of its counters, and what the page says, without a server."""

from __future__ import annotations

import json
import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.real_server import campaign, environment, llama_cpp, page, replay
from calibration.real_server.__main__ import main
from calibration.real_server.campaign import Load, Size, servers
from calibration.real_server.conversations import converse
from calibration.real_server.model import CONFIG, write
from calibration.real_server.replay import Row
from calibration.real_server.serving import ServerError, served
from calibration.real_server.steps import step_seconds
from simserve.profiles.catalog import load_model
from simserve.workload.benchmarks.reading import read_results
from tests.builders import make_specs
from tests.observe.stand_in import Ways, stand_in

METRICS = """# HELP vllm:num_preemptions_total Preemptions.
vllm:num_preemptions_total{engine="0",model_name="tiny"} %d
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} %d
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} %d
vllm:generation_tokens_total{engine="0",model_name="tiny"} %d
vllm:request_success_total{engine="0",finished_reason="length"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} %d
"""


def row(**changes: Any) -> Row:
    """Return a load that is 10 % off by kernels and 5 % as fitted."""
    base: dict[str, Any] = {
        "server": "plain",
        "load": "clients-04",
        "is_fitted": False,
        "is_open": False,
        "measured": {"mean_tpot": 0.1, "mean_ttft": 0.5, "output_throughput": 40.0},
        "spread": dict.fromkeys(replay.COMPARED, 0.01),
        "kernels": {"mean_tpot": 0.11, "mean_ttft": 0.55, "output_throughput": 36.0},
        "fitted": {"mean_tpot": 0.105, "mean_ttft": 0.475, "output_throughput": 38.0},
        "counts": {"preemptions": (65.0, 62.5)},
    }
    return Row(**{**base, **changes})


def test_the_model_is_read_as_the_server_reads_it(tmp_path: Path) -> None:
    """A quarter of a billion parameters, from the folder's own configuration."""
    folder = write(tmp_path)
    profile = load_model(str(folder / "config.json"))
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]

    assert profile.num_parameters == pytest.approx(0.25e9, rel=0.1)
    assert len(words) == CONFIG["vocab_size"] == len(set(words.values()))


def test_every_load_is_sent_with_a_seed_of_its_own_run() -> None:
    """Clients or a rate, never both; lengths of prefixes add up to the prompt's."""
    for server in servers(2.0, 1.0):
        for load in (part for each in server.loads for part in each.parts):
            first, second = load.arguments(7), load.arguments(107)
            assert [each for each in zip(first, second, strict=True) if each[0] != each[1]] == [("7", "107")]
            assert ("--max-concurrency" in first) != ("--request-rate" in first)
    words = Load("prefixes", 80, clients=8, prompt_tokens=1024, num_prefixes=5).arguments(1)
    sizes = {words[at]: int(words[at + 1]) for at in range(len(words)) if words[at].endswith("fix-len")}

    assert sum(sizes.values()) == 1024


def test_no_load_is_sent_the_prompts_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be in the prefix cache: every part of every load of a server, every time, has a seed of its own."""
    seeds: dict[str, list[int]] = {}

    def sent(*arguments: Any) -> None:
        words = arguments[3]
        seeds.setdefault(arguments[4].parent.name, []).append(int(words[words.index("--seed") + 1]))

    def held(address: str, out: Path, *, seed: int, **of: Any) -> None:
        seeds.setdefault(out.parent.name, []).append(seed)

    monkeypatch.setattr(campaign, "bench", lambda *each: (each[4].write_text("{}"), sent(*each)))
    monkeypatch.setattr(campaign, "converse", held)
    monkeypatch.setattr(campaign, "metrics", lambda address: "")
    monkeypatch.setattr(campaign, "served", lambda *_: nullcontext("http://127.0.0.1:1"))
    asked = servers(2.0, 1.0)
    campaign.measure(tmp_path, tmp_path, tmp_path / "out", asked, 2, lambda text: None)

    assert {name: len(each) for name, each in seeds.items()} == {
        server.name: 1 + 2 * sum(len(load.parts) for load in server.loads) for server in asked
    }
    assert all(len(set(each)) == len(each) for each in seeds.values())


def test_two_clients_at_once_are_one_stream_of_requests(tmp_path: Path) -> None:
    """By the clock that their files share; each request keeps its client's priority."""
    urgent = Load("urgent", 2, rate=1.0, priority=0, beside=Load("patient", 2, rate=1.0, priority=1))
    files = [tmp_path / "urgent.json", tmp_path / "patient.json"]
    for file, starts in zip(files, ([100.5, 103.0], [100.0, 101.0]), strict=True):
        file.write_text(json.dumps({"start_times": starts}))
    parts = [make_specs([0.0, 2.5], [10, 20], [5, 5]), make_specs([0.0, 1.0], [11, 21], [5, 5])]
    specs, client = replay.sent_at_once(urgent, files, parts)

    assert client.tolist() == [1, 0, 1, 0]
    assert specs.priority is not None
    assert specs.priority.tolist() == [1, 0, 1, 0]
    assert specs.arrival_time.tolist() == [0.0, 0.5, 1.0, 3.0]
    assert specs.prompt_tokens.tolist() == [11, 10, 21, 20]
    assert json.loads(urgent.arguments(1)[-1]) == {"priority": 0}


def test_n_grams_are_found_again_in_answers_of_two_words() -> None:
    """Which a request asks for by the tokens that it allows."""
    drafting = next(each for each in servers(2.0, 1.0) if each.name == "n-gram")
    asked = drafting.loads[1].arguments(7)

    assert json.loads(asked[asked.index("--extra-body") + 1]) == {"allowed_token_ids": [3, 4]}
    assert "--extra-body" not in drafting.loads[0].arguments(7)


def test_a_turn_begins_with_all_that_was_said_before_it(tmp_path: Path) -> None:
    """Prompts are the ones before, with their answers as the server said them; the file has every turn."""
    with stand_in() as server:
        out = tmp_path / "conversations-0.json"
        converse(server.url, out, clients=2, conversations=2, turns=3, new_tokens=20, output_tokens=5, seed=7)
        bodies = server.bodies
    written = read_results([out])
    prompts = [tuple(each["prompt"]) for each in bodies]
    follow = 0
    for body in bodies:
        answered = (*body["prompt"], *range(7, 7 + body["max_tokens"]))
        follow += sum(prompt[: len(answered)] == answered and len(prompt) - len(answered) <= 26 for prompt in prompts)

    assert len(bodies) == 2 * 2 * 3
    assert follow == 2 * 2 * 2
    assert sorted(json.loads(out.read_text())["input_lens"]) == sorted(map(len, prompts))
    assert written[0].measured["mean_ttft"] > 0


def test_a_conversation_needs_the_ids_of_its_answers(tmp_path: Path) -> None:
    """Without them the next prompt would not be what the server has in its cache."""
    out = tmp_path / "conversations-0.json"
    with (
        stand_in(Ways(says_ids=False)) as server,
        pytest.raises(ServerError, match="2 turns were not answered: the ids"),
    ):
        converse(server.url, out, clients=2, conversations=1, turns=3, new_tokens=20, output_tokens=5, seed=7)
    assert not out.exists()


def test_conversations_are_simulated_as_they_are_sent() -> None:
    """As many turns, of lengths between the same bounds, each after the answer before it."""
    load = next(each for server in servers(2.0, 1.0) for each in server.loads if each.turns > 1)
    specs, client = replay._conversations(load, seed=0)
    new = np.sort(specs.prompt_tokens)[: len(specs) // load.turns]

    assert len(specs) == load.num_prompts == len(client)
    assert new.min() >= 0.69 * load.prompt_tokens
    assert new.max() <= 1.31 * load.prompt_tokens
    assert specs.prompt_tokens.mean() == pytest.approx(
        load.prompt_tokens * (load.turns + 1) / 2 + load.output_tokens * (load.turns - 1) / 2, rel=0.05
    )


def test_a_server_that_there_is_not_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name, with those that there are."""
    words = [
        "real_server",
        "--env",
        str(tmp_path / "env"),
        "--out",
        str(tmp_path / "out"),
        "--servers",
        "plain",
        "drafts",
    ]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    assert "there is no drafts; use plain, short-of-kv, chunks-of-256, n-gram, priorities" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_counters_are_what_a_load_added(tmp_path: Path) -> None:
    """Preemptions, the hit rate of the prefix cache, and in which share of decode steps each guess was right."""
    pages = {"before": METRICS % (3, 100, 50, 100, 7, 5, 1), "after": METRICS % (8, 300, 110, 147, 17, 15, 3)}
    (tmp_path / "load-0.metrics.json").write_text(json.dumps(pages))
    counted = replay._counted(tmp_path / "load-0.json")

    assert counted == {"preemptions": 5.0, "prefix_hit_rate": 0.3, "acceptance": [0.4, 0.08]}


def test_the_page_counts_what_was_held_out() -> None:
    """A load that was fitted to is shown and not counted; one beyond its goal and its spread is."""
    far = {"mean_tpot": 0.2, "mean_ttft": 0.5, "output_throughput": 40.0}
    rows = [row(), row(load="clients-02", is_fitted=True, fitted=far), row(load="poisson-40", is_open=True)]
    found = page.summary([*rows, row(load="clients-08", fitted=far)])

    assert found["fitted mean_tpot"]["rows"] == 3
    assert found["fitted mean_tpot"]["beyond"] == 1
    assert found["fitted mean_tpot"]["median"] == pytest.approx(0.05)
    assert found["kernels output_throughput"]["rows"] == 1
    text = page.as_markdown(rows, {"what": "A server."})
    assert "| plain | clients-02* |" in text
    assert "preemptions 65, 62.5" in text


def test_a_cpu_without_wide_registers_is_refused() -> None:
    """As its flags say; a machine that has no such list, an ARM, is tried."""
    assert "AVX-512" in environment.unfit("processor: 0\nflags\t\t: fpu sse avx2\n")
    assert environment.unfit("flags\t\t: fpu avx2 avx512f amx_bf16\n") == ""
    assert environment.unfit("Features : fp asimd\n") == ""


def test_the_load_that_tells_a_servers_pace_is_not_held_out() -> None:
    """The page counts the others of that server, and says all three errors of each."""
    paced = {"mean_tpot": 0.102, "mean_ttft": 0.49, "output_throughput": 39.6}
    both = [row(load=name, is_open=True, pace=1.2, paced=paced) for name in ("clients-04", "poisson-70")]
    found = page.summary(both)
    text = page.as_markdown(both, {"what": "vLLM."})

    assert (found["fitted mean_tpot"]["rows"], found["paced mean_tpot"]["rows"]) == (2, 1)
    assert found["paced mean_tpot"]["median"] == pytest.approx(0.02)
    assert "+10.0% -> +5.0% -> +2.0%" in text
    assert "at each server's pace, but for clients-04: median 2.0%, worst 2.0% (0 of 1 loads beyond)" in text
    assert "pace" not in page.as_markdown([row(is_open=True)], {"what": "vLLM."}).splitlines()[0]


def test_a_server_that_ends_is_said(tmp_path: Path) -> None:
    """With the log that says why."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "vllm").write_text("#!/bin/sh\necho no memory\nexit 3\n")
    (commands / "vllm").chmod(0o755)

    with pytest.raises(ServerError, match="ended with 3"), served(commands, tmp_path, (), tmp_path / "log"):
        pass
    assert (tmp_path / "log").read_text() == "no memory\n"


def test_a_step_is_what_longer_answers_take_over_the_tokens_that_they_have_more() -> None:
    """Prompts, and a kernel that is compiled in one of the answers, do not count."""
    asked: list[tuple[int, int]] = []

    def answer(prompts: list[list[int]], tokens: int) -> float:
        asked.append((len(prompts), tokens))
        compiled = 3.0 if len(asked) == 3 else 0.0
        return 0.5 + 0.02 * (tokens - 1) + compiled

    row = step_seconds(answer, 8, 64, 1000, seed=1)

    assert row["seconds_per_step"] == pytest.approx(0.02)
    assert row["long"] == pytest.approx([4.94, 1.94])
    assert {count for count, _ in asked} == {8}


def test_a_model_folder_has_a_word_for_each_token_of_its_config(tmp_path: Path) -> None:
    """Also of somebody else's config."""
    folder = write(tmp_path / "own", {**CONFIG, "vocab_size": 50})

    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 50
    assert len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]) == 50


def test_a_gguf_model_has_the_tensors_of_its_config() -> None:
    """As many parameters as the profile of the same configuration."""
    sizes = [math.prod(shape) for shape in llama_cpp.tensors(CONFIG).values()]

    assert sum(sizes) == pytest.approx(0.254e9, rel=0.01)
    assert len(sizes) == 3 + 9 * CONFIG["num_hidden_layers"]


@pytest.mark.slow
def test_a_profile_of_four_speeds_gives_them_back(tmp_path: Path) -> None:
    """Prompts, single tokens and those with a context exactly; eight tokens at once by the nearest overlap."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    rows = [(512, 0, 0, 117.0), (8, 0, 0, 81.0), (0, 64, 0, 29.7), (0, 64, 512, 18.7)]
    names = ("n_prompt", "n_gen", "n_depth", "avg_ts")
    (tmp_path / "llama-bench.json").write_text(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
    speeds = llama_cpp.bench(tmp_path, tmp_path / "model.gguf", tmp_path)

    llama_cpp.write_profile(tmp_path, speeds, "2026-11-27")

    long, short, few = (llama_cpp.alone(tmp_path, tokens) for tokens in (512, 1, 8))
    assert long["mean_ttft"] == pytest.approx(512 / speeds["pp512"], rel=0.01)
    assert short["mean_tpot"] == pytest.approx(1 / speeds["tg64"], rel=0.01)
    assert long["mean_tpot"] == pytest.approx(1 / speeds["tg64@d512"], rel=0.01)
    assert few["mean_ttft"] == pytest.approx(8 / speeds["pp8"], rel=0.1)


def test_the_page_of_llama_cpp_has_the_figures_beside_it() -> None:
    """Median and worst of the loads that were held out, by llama-bench alone and calibrated."""
    folder = Path(llama_cpp.__file__).parents[1] / "runs" / "llama-cpp-cpu-2026-11-27"
    found = json.loads((folder / "comparison.json").read_text())["summary"]
    text = (folder / "README.md").read_text()
    rows = {"TPOT, 6 loads": "mean_tpot", "TTFT, 6 loads": "mean_ttft"}

    def percent(share: float) -> str:
        return f"{float(f'{100 * share:.2g}'):g}"

    for title, figure in {**rows, "tokens/s at a rate, 3 loads": "output_throughput"}.items():
        columns = [found[f"{which} {figure}"] for which in ("kernels", "fitted")]
        cells = [f"{percent(each['median'])} % ({percent(each['worst'])})" for each in columns]
        assert f"| {title} | {' | '.join(cells)} |" in text


def test_the_page_of_loads_at_their_servers_pace_has_the_figures_beside_it() -> None:
    """Median and worst of what was held out, and what the server counted."""
    folder = Path(replay.__file__).parents[1] / "runs" / "vllm-cpu-2026-11-30"
    found = json.loads((folder / "comparison-second.json").read_text())
    text = (folder / "README.md").read_text().partition("## Sent again")[2]

    for title, figure in {"TPOT": "mean_tpot", "TTFT": "mean_ttft", "tokens/s at a rate": "output_throughput"}.items():
        errors = found["summary"][f"paced {figure}"]
        row = rf"\| {title}, {errors['rows']} loads.* median \| (\S+) % .*\n\| \| worst \| (\S+) %"
        ((median, worst),) = re.findall(row, text)
        assert (float(median), float(worst)) == pytest.approx((100 * errors["median"], 100 * errors["worst"]), abs=0.05)
        assert errors["beyond"] == 0
    counts = [each["counts"].get("preemptions", [0, 0]) for each in found["rows"]]
    measured, simulated = max(counts)
    assert f"| {measured:.0f} measured | {simulated:.0f} |" in text


def test_the_readme_says_how_far_off_the_real_server_was() -> None:
    """The median of all loads that were held out, and how many there were, as the last campaign's table has them."""
    root = Path(__file__).parents[2]
    table = (root / "calibration/runs/vllm-cpu-2026-11-27-xeon/comparison.md").read_text(encoding="utf-8")
    median = re.search(r"^- TPOT: median \S+ -> (\S+)% .*of (\d+) loads", table, re.M)
    text = " ".join((root / "README.md").read_text(encoding="utf-8").split())

    assert median is not None
    assert f"(TPOT {median[1]} % off in the median of {median[2]})" in text


def test_a_shorter_campaign_sends_shorter_prompts_and_fewer_requests() -> None:
    """Every load but for its rate; the server short of KV starts with room for one request of the longest length."""
    whole, short = (servers(2.0, 1.0, each) for each in (Size(), Size(prompt_tokens=64, share=0.5)))
    pairs = [
        pair for both in zip(whole, short, strict=True) for pair in zip(*(each.loads for each in both), strict=True)
    ]

    assert all(few.prompt_tokens * 4 == many.prompt_tokens for many, few in pairs)
    assert all(few.num_prompts < many.num_prompts for many, few in pairs)
    assert [each.options.get("num_gpu_blocks_override") for each in (whole[1], short[1])] == [64, 33]
