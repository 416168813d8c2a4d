"""Loads on a live server: within the budget, no more than asked, whatever way the server wants to be asked."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx", reason="needs httpx")

from simserve.errors import InputError, UsageError
from simserve.observe.measure import Load, Plan, Run, observe
from simserve.observe.target import LARGEST_PAGE, Server, address_of
from tests.observe.stand_in import StandIn, Ways, stand_in

PLAN = Plan(loads=(Load(concurrency=3),), prompt_tokens=40, output_tokens=10, budget=30.0, max_requests=24, seed=1)
"""Ends with its requests, long before its time: machines may be slow."""
PROBES = 16
"""Requests of two tokens before the first load, at most."""


def measured(server: StandIn, plan: Plan = PLAN, **options: Any) -> tuple[list[Server], list[Run]]:
    """Return what was found out of a server, and the runs."""
    servers: list[Server] = []
    runs: list[Run] = []
    observe(server.url, plan, found=servers.append, keep=runs.append, **options)
    return servers, runs


def test_a_server_says_what_it_is() -> None:
    """Model, engine by its metrics' names, version, length and KV blocks."""
    with stand_in() as server:
        ((found,), _) = measured(server, replace(PLAN, max_requests=2))

    assert (found.model, found.engine, found.version, found.max_model_len) == ("tiny", "vllm", "0.20.2", 4096)
    assert found.kv["num_gpu_blocks"] == "4096"


def test_an_engine_of_another_kind_is_known_by_its_own_pages() -> None:
    """SGLang says its version, context and KV tokens on a page of its own."""
    info = '{"version": "0.5.9", "context_length": 8192, "max_total_num_tokens": 12345}'
    pages = {"/metrics": 'sglang:num_running_reqs{model_name="x"} 0\n', "/get_server_info": info}
    with stand_in(Ways(pages=pages)) as server:
        ((found,), _) = measured(server, replace(PLAN, max_requests=2))

    assert (found.engine, found.version, found.kv) == ("sglang", "0.5.9", {"max_total_num_tokens": 12345})


def test_times_are_those_of_the_server() -> None:
    """The first token after one pause, the others one pause apart: never less than the server took."""
    with stand_in(Ways(token_seconds=0.01)) as server:
        _, (run,) = measured(server, replace(PLAN, loads=(Load(concurrency=1),), max_requests=8))

    gaps = np.concatenate([np.diff(each.pieces) for each in run.answers])
    first = [each.pieces[0] - each.sent for each in run.answers]
    assert 0.010 <= float(np.median(gaps)) < 0.100
    assert min(first) >= 0.010


def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says of proxies: none of them knows a server here."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with stand_in() as server:
        _, (run,) = measured(server)

    assert not run.errors


def test_so_many_are_in_flight_as_there_are_clients() -> None:
    """A closed loop of three has three, never a fourth, and each sends when it has its answer."""
    with stand_in(Ways(waits_for=3)) as server:
        _, (run,) = measured(server)

    assert server.most_in_flight == 3
    assert len(run.answers) > 9
    assert not run.errors


def test_requests_come_at_their_rate_whatever_is_answered() -> None:
    """Poisson arrivals of 40 a second for most of a second, at a server that takes longer than their gaps."""
    with stand_in(Ways(token_seconds=0.01)) as server:
        _, (run,) = measured(server, replace(PLAN, loads=(Load(rate=40.0),)))

    sent = sorted(each.sent for each in run.exchanges)
    assert len(sent) == 24
    assert 0.2 < sent[-1] - sent[0] < 5.0
    assert server.most_in_flight > 1


def test_lengths_are_around_what_is_asked_and_as_the_server_counts_them() -> None:
    """Between 30 % below and 30 % above, not all alike, and the same for the same seed."""
    with stand_in() as server:
        _, (run,) = measured(server)
        bodies = [body for body in server.bodies if body["max_tokens"] > 2]  # probes ask for two

    prompts = {len(body["prompt"]) for body in bodies}
    assert 28 <= min(prompts) < max(prompts) <= 52
    assert prompts >= {each.prompt_tokens for each in run.answers}
    assert {body["max_tokens"] for body in bodies} >= {each.output_tokens for each in run.answers}


def test_no_prompt_begins_like_another() -> None:
    """A prefix cache finds nothing to share."""
    with stand_in() as server:
        measured(server)

    beginnings = [tuple(body["prompt"][:4]) for body in server.bodies]
    assert len(set(beginnings)) == len(beginnings)


@pytest.mark.slow
def test_nothing_is_sent_after_the_budget() -> None:
    """Not even where every load wants more time."""
    with stand_in(Ways(token_seconds=0.03)) as server:
        began = time.perf_counter()
        measured(
            server,
            replace(PLAN, loads=tuple(Load(concurrency=each) for each in (1, 2, 4)), budget=2.5, max_requests=500),
        )

    assert server.last_arrival - began <= 2.5 + 0.5


def test_no_more_requests_are_sent_than_may_be() -> None:
    """Over all loads, beside the few that find out how to ask."""
    with stand_in() as server:
        _, runs = measured(server, replace(PLAN, loads=(Load(concurrency=2), Load(rate=100.0)), max_requests=7))

    assert sum(len(run.exchanges) for run in runs) == 7
    assert len(server.bodies) <= 7 + PROBES


@pytest.mark.parametrize(
    ("ways", "is_as_asked"),
    [
        (Ways(takes_ignore_eos=False), lambda body: "ignore_eos" not in body and isinstance(body["prompt"], list)),
        (Ways(highest_id=500), lambda body: max(body["prompt"]) < 500),
        (Ways(takes_ids=False, tokens_per_word=2), lambda body: isinstance(body["prompt"], str)),
        (Ways(has_completions=False), lambda body: body["messages"][0]["role"] == "user"),
        (Ways(counts=False, takes_ignore_eos=False), lambda body: "stream_options" not in body),
    ],
    ids=["no ignore_eos", "a small vocabulary", "words alone", "chat alone", "no usage"],
)
def test_a_server_is_asked_in_a_way_that_it_takes(ways: Ways, is_as_asked: Callable[[dict[str, Any]], bool]) -> None:
    """Token ids, words or messages; lengths come out as asked in each."""
    with stand_in(ways) as server:
        _, (run,) = measured(server)
        last = server.bodies[-1]

    assert is_as_asked(last)
    assert np.mean([each.prompt_tokens for each in run.answers]) == pytest.approx(40, rel=0.2)
    assert np.mean([each.output_tokens for each in run.answers]) == pytest.approx(10, rel=0.2)


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        (Ways(models=()), "HTTP 404 at /v1/models"),
        (Ways(models=("a", "b")), "serves 2 models"),
        (Ways(error="no GPU left"), "no GPU left"),
        (Ways(broken=b"data: {}\n\n"), "without tokens"),
        (Ways(broken=b'{"choices": []}', kind="application/json"), "an answer of application/json that is no stream"),
        (Ways(broken=b"data: [1, 2]\n\n"), "no JSON object"),
        (Ways(broken=b"data: " + b"x" * 3_000_000), "more than 1,000,000 bytes"),
        (Ways(broken=b'data: {"error": {"message": "out of memory"}}\n\n'), "out of memory"),
        (Ways(key="secret"), r"HTTP 401 at /v1/models.*--api-key-env"),
        (Ways(moved_to="http://elsewhere/v1/models"), "redirects to http://elsewhere/v1/models"),
        (Ways(is_endless=True, token_seconds=0.0), "no end: more than 100 pieces for 2 tokens"),
        (Ways(breaks_after=1), "breaks off"),
        (Ways(most_at_once=0), "HTTP 429: too many requests"),
    ],
)
def test_what_answers_nothing_sensible_is_refused(ways: Ways, words: str) -> None:
    """In one line that says what came instead."""
    with stand_in(ways) as server, pytest.raises(InputError, match=words):
        measured(server)


def test_a_page_without_end_is_no_page() -> None:
    """Metrics of any size are read up to a limit; the server is measured all the same."""
    with stand_in(Ways(pages={"/metrics": "a 1\n" * (LARGEST_PAGE // 4 + 1), "/version": "[[[["})) as server:
        ((found,), _) = measured(server)

    assert (found.engine, found.version) == ("", "")


def test_nobody_there_is_said() -> None:
    """A port that nobody listens on."""
    with stand_in() as server:
        url = server.url
    with pytest.raises(InputError, match="does not answer"):
        observe(url, PLAN, found=lambda _: None, keep=lambda _: None)


@pytest.mark.slow
def test_a_server_that_falls_silent_ends_with_the_budget() -> None:
    """What had not ended is left out, and counted."""
    with stand_in(Ways(token_seconds=0.002)) as server:
        plan = replace(PLAN, loads=(Load(concurrency=2),), output_tokens=100_000, budget=2.5)
        _, (run,) = measured(server, plan)

    assert (len(run.exchanges), run.cut) == (0, 2)


@pytest.mark.slow
def test_who_is_refused_waits_as_long_as_the_server_says() -> None:
    """Two of six clients are served at a time; the others are told to come again in a minute, and do not till then."""
    with stand_in(Ways(most_at_once=2, token_seconds=0.005)) as server:
        plan = replace(PLAN, loads=(Load(concurrency=6),), max_requests=60, budget=3.0)
        _, (run,) = measured(server, plan)

    assert 4 <= len(run.errors) <= 6
    assert len(run.answers) > 10


def test_a_busy_server_is_not_asked_in_other_ways() -> None:
    """One refusal for want of room says nothing about how it wants to be asked."""
    with stand_in(Ways(most_at_once=0)) as server, pytest.raises(InputError):
        measured(server)

    assert len(server.bodies) == 1


def test_what_is_wrong_with_tls_is_said() -> None:
    """A server that speaks plain HTTP is asked by HTTPS."""
    with stand_in() as server, pytest.raises(InputError, match=r"does not answer: .*SSL"):
        observe(server.url.replace("http:", "https:"), PLAN, found=lambda _: None, keep=lambda _: None)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_certificate_of_ones_own_is_trusted_where_the_environment_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the answer says how to; a file without certificates is one line."""
    key, certificate = tmp_path / "key.pem", tmp_path / "own.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    subject = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *subject], check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    with stand_in(Ways(certificate=str(both))) as server:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(InputError, match=r"certificate.*SSL_CERT_FILE=authority\.pem"):
            measured(server)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        _, (run,) = measured(server, replace(PLAN, max_requests=4))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
        with pytest.raises(UsageError, match="SSL_CERT_FILE"):
            measured(server)

    assert len(run.answers) == 4


def test_a_load_at_which_everything_fails_is_given_up() -> None:
    """After a few failures nobody is asked again."""
    with stand_in() as server:

        def fail(found: Server) -> None:
            server.ways.error = ""

        runs: list[Run] = []
        plan = replace(PLAN, loads=(Load(rate=200.0),), max_requests=40)
        observe(server.url, plan, found=fail, keep=lambda run: runs.append(run))
        healthy = len(runs[0].exchanges)
        server.bodies.clear()
        server.ways.broken = b"data: nothing\n\n"
        with pytest.raises(InputError):
            observe(server.url, plan, found=fail, keep=runs.append)

    assert healthy > 30
    assert len(server.bodies) <= PROBES


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("https://host/some/path/v1?x=1", "https://host/some/path"),
    ],
)
def test_an_address_is_taken_with_or_without_its_path(text: str, address: str) -> None:
    """What clients write as their base address and what servers print both do."""
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["host:8000", "ftp://host", "http://", "", "http://me:secret@host", "http://[::1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """Before anything is sent; a password in it is not repeated."""
    with pytest.raises(UsageError) as refused:
        address_of(text)

    assert "secret" not in str(refused.value)
