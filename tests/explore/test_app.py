"""The page's application: every question, every refusal, nothing read that is not the page's."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simserve as ss

pytest.importorskip("starlette", reason="the page needs simserve[explore]")
pytest.importorskip("httpx2", reason="starlette's test client needs it")

import anyio
from starlette.testclient import TestClient

from simserve.explore import app as application
from simserve.explore.app import _FILES, _PAGE, MAX_BODY, QUESTIONS, create_app
from simserve.explore.queries import BusyError, TooLongError
from simserve.explore.server import AnswerInParts, HurriedProtocol, Runner
from tests.fuzzing import examples

_HOST = "http://localhost"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Return a client of the page."""
    with TestClient(create_app(), base_url=_HOST) as found:
        yield found


@pytest.mark.parametrize(
    "question", [pytest.param(name, marks=pytest.mark.slow if name == "wizard" else ()) for name in QUESTIONS]
)
def test_every_question_has_an_answer(client: TestClient, question: str) -> None:
    """With nothing but defaults: figures, and the equation behind them."""
    answer = client.post(f"/api/{question}", json={})

    assert answer.status_code == 200, answer.text
    equations = answer.json()["equations"]
    assert equations
    assert all(each["name"] and each["formula"] and each["numbers"] for each in equations)


def test_the_same_question_has_the_same_answer(client: TestClient) -> None:
    """To the byte."""
    first, second = (client.post("/api/simulator", json={"num_requests": 100}).content for _ in range(2))

    assert first == second


def test_the_page_is_served_with_headers_that_keep_others_out(client: TestClient) -> None:
    """Its own scripts and styles alone, in no frame."""
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
    for name, file in _FILES.items():
        answer = client.get(f"/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == f"{kinds[file.suffix]}; charset=utf-8"
        assert answer.content == file.read_bytes()
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    """No address, no style or script inside the HTML."""
    for file in _FILES.values():
        text = file.read_text(encoding="utf-8").replace('"http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|@import|url\(", text), file
    page = (_PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script[^>]*>[^<]", page)


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/..%2f..%2fapp.py", "/%2e%2e/app.py", "/page/core.js", "/app.py", "//etc/passwd",
     "/api/nothing", "/core.js%00.html"],
)  # fmt: skip
def test_no_other_file_can_be_read(client: TestClient, path: str) -> None:
    """Whatever the path says."""
    answer = client.get(path)

    assert answer.status_code in (404, 405)
    assert "import" not in answer.text


_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a path for a model": ({"model": "/etc/passwd"}, "is no model of the catalogue"),
    "a path for a GPU": ({"hardware": "../hardware_profiles/a100-sxm-80gb.yaml"}, "is no hardware of the catalogue"),
    "an unknown key": ({"rat": 3}, "rat"),
    "too fast": ({"rate": 1e9}, "less than or equal to 2000"),
    "too many requests": ({"num_requests": 10**9}, "4000"),
    "half a replica": ({"gpus": 3, "tensor_parallel_size": 2}, "no whole number of replicas"),
    "a text for a number": ({"rate": "10"}, "rate"),
    "too large for the GPU": ({"model": "llama-3.1-405b"}, "does not fit"),
    "no such arithmetic": ({"hardware": "a100-sxm-80gb", "kv_cache_dtype": "int3"}, "kv_cache_dtype"),
    "heads that cannot be cut": ({"gpus": 16, "tensor_parallel_size": 3}, "no whole number"),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_bad_input_is_one_clear_line(client: TestClient, case: str) -> None:
    """As the command line says it."""
    body, words = _REFUSED[case]

    answer = client.post("/api/simulator", json=body)

    assert answer.status_code == 422, answer.text
    assert words in answer.json()["error"]
    assert answer.json()["kind"] == ("infeasible" if "too large" in case else "input")


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"rate=1", "application/x-www-form-urlencoded", 415),
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"[" * 8000, "application/json", 400),
        (b'{"rate": NaN}', "application/json", 422),
        (b'{"rate": 1e999}', "application/json", 422),
        (b" " * (MAX_BODY + 1), "application/json", 413),
    ],
)
def test_what_is_no_question_is_refused(client: TestClient, content: bytes, kind: str, status: int) -> None:
    """Without a traceback, whatever comes."""
    answer = client.post("/api/simulator", content=content, headers={"content-type": kind})

    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "kind"}


def test_another_name_for_this_machine_is_refused(client: TestClient) -> None:
    """A page elsewhere whose name points here cannot ask."""
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    with TestClient(create_app(hosts=("*",)), base_url="http://anything") as public:
        assert public.get("/").status_code == 200


def test_a_run_that_takes_too_long_is_ended() -> None:
    """With what to do about it."""
    with TestClient(create_app(runner=Runner(seconds=0.0)), base_url=_HOST) as client:
        answer = client.post("/api/simulator", json={"num_requests": 4000})

    assert answer.status_code == 422
    assert answer.json()["kind"] == "too_long"
    assert "fewer requests" in answer.json()["error"]


@pytest.mark.parametrize("limits", [{"max_of_client": 0}, {"max_waiting": 0}])
def test_who_asks_too_much_waits(limits: dict[str, int]) -> None:
    """Of one client, and of all."""
    with TestClient(create_app(runner=Runner(**limits, patience=0.0)), base_url=_HOST) as client:
        assert client.post("/api/batching", json={}).status_code == 429


def test_the_connection_that_was_silent_for_longest_makes_room() -> None:
    """Not one that is being answered, nor one that is closing."""
    closed = list[str]()

    def connection(name: str, since: float, *, is_working: bool = False, is_closing: bool = False) -> Any:
        found: Any = HurriedProtocol.__new__(HurriedProtocol)
        found._idle_since, found.connections = since, everybody
        found.cycle = SimpleNamespace(response_complete=not is_working)
        found.transport = SimpleNamespace(is_closing=lambda: is_closing, close=lambda: closed.append(name))
        everybody.add(found)
        return found

    everybody = set[Any]()
    newest = connection("newest", 0.0)
    connection("working", 1.0, is_working=True)
    connection("closing", 2.0, is_closing=True)
    connection("silent", 3.0)
    connection("young", 9.0)
    newest._make_room()

    assert closed == ["silent"]


def test_the_open_questions_of_all_clients_are_counted_together() -> None:
    """Two clients with a question each are as many as may be open: a third one is told to come back."""
    runner, has_been_refused = Runner(max_waiting=2), Event()

    async def ask() -> None:
        async with anyio.create_task_group() as group:
            for client in ("one", "other"):
                group.start_soon(runner.run, client, lambda _check: has_been_refused.wait(10.0))
            await anyio.sleep(0.01)
            try:
                with pytest.raises(BusyError, match="too many people"):
                    await runner.run("third", lambda _check: None)
            finally:
                has_been_refused.set()
        await runner.run("third", lambda _check: None)

    anyio.run(ask)


def test_a_further_question_of_a_client_waits_for_one_of_its_own() -> None:
    """Refused only where none ends in time."""
    runner = Runner(max_of_client=1)

    async def ask() -> list[int]:
        answers: list[int] = []

        async def one(number: int) -> None:
            answers.append(await runner.run("somebody", lambda _check: number))

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(one, number)
        return answers

    assert sorted(anyio.run(ask)) == [0, 1, 2]


def test_a_saved_scenario_runs_to_the_same_figures(client: TestClient, tmp_path: Path) -> None:
    """The file is what the page ran."""
    asked = {"rate": 20, "num_requests": 200, "paged_kv": False, "slo_ttft_ms": 250.0, "seed": 7}
    saved = client.post("/api/simulator/scenario", json=asked)
    (tmp_path / "explore.yaml").write_text(saved.text)

    result = ss.run(tmp_path / "explore.yaml")

    figures = client.post("/api/simulator", json=asked).json()["figures"]
    assert saved.headers["content-type"].startswith("application/yaml")
    assert yaml.safe_load(saved.text)["deployment"]["engine"]["kv_allocation"] == "static"
    assert all(figures[name] == result.summary[name] for name in figures if name in result.summary)
    assert figures["attainment"] == result.summary["simserve"]["slo"]["attainment"]


@pytest.mark.parametrize(
    "question", [pytest.param(name, marks=pytest.mark.slow if name == "wizard" else ()) for name in QUESTIONS]
)
def test_every_tab_is_saved_as_a_scenario_that_runs(client: TestClient, question: str, tmp_path: Path) -> None:
    """With what to do with it on top."""
    saved = client.post(f"/api/{question}/scenario", json={})
    (tmp_path / "explore.yaml").write_text(saved.text)

    result = ss.run(ss.load(tmp_path / "explore.yaml", ["workload.num_requests=8"]))

    assert saved.status_code == 200, saved.text
    assert saved.text.startswith("# ")
    assert result.summary["completed"] == 8


_PARTS = {"accept": "application/x-ndjson"}
_ALIKE = "one kind of replica"


def lines_of(answer: Any) -> list[dict[str, Any]]:
    """Return what an answer in parts consists of."""
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
@pytest.mark.usefixtures("best_alone")
def test_the_wizard_answers_at_once_and_then_better(client: TestClient) -> None:
    """A first fleet in the model's own format, how far the search is, and what it says when asked as a whole."""
    asked = {"model": "llama-3.2-1b", "hardware": ["l40s-48gb"], "rate": 1, "max_gpus": 1, "pools": _ALIKE}

    lines = lines_of(client.post("/api/wizard", json=asked, headers=_PARTS))
    whole = client.post("/api/wizard", json=asked).json()

    assert [next(iter(line)) for line in lines[:1]] == ["first"]
    assert lines[0]["first"]["best"]["usd_per_month"] >= lines[-1]["answer"]["best"]["usd_per_month"]
    assert "fp8" not in lines[0]["first"]["best"]["label"]
    assert "not confirmed" in " ".join(lines[0]["first"]["parts"][0]["lines"])
    assert lines[-1] == {"answer": whole}
    progress = [line["progress"] for line in lines[1:-1]]
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)
    assert progress[-1][0] == progress[-1][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"hardware": ["h100-sxm-80gb"], "model": "llama-3.1-405b", "max_gpus": 1, "pools": _ALIKE}, None, ""),
        ({"rate": 0}, 422, "rate"),
    ],
)
def test_parts_of_what_cannot_be_answered(
    client: TestClient, asked: dict[str, Any], status: int | None, words: str
) -> None:
    """No fleet is an answer; bad input is refused before anything is sent."""
    answer = client.post("/api/wizard", json=asked, headers=_PARTS)

    if status is None:
        assert lines_of(answer)[-1]["answer"]["feasible"] is False
    else:
        assert answer.status_code == status
        assert words in answer.json()["error"]


def test_parts_end_with_what_went_wrong() -> None:
    """Too long, or too many questions: a last line with the status that a whole answer would have had."""
    slow = TestClient(create_app(runner=Runner(seconds=0.0)), base_url=_HOST)
    full = TestClient(create_app(runner=Runner(max_of_client=0, patience=0.0)), base_url=_HOST)

    last = [lines_of(each.post("/api/wizard", json={}, headers=_PARTS))[-1] for each in (slow, full)]

    assert [(line["kind"], line["status"]) for line in last] == [("too_long", 422), ("input", 429)]


def test_work_that_nobody_waits_for_is_ended() -> None:
    """The connection is gone: the next look at the time ends the search."""
    ended: list[str] = []
    gone = anyio.Event()

    async def run(watched: Any) -> dict[str, Any]:
        gone.set()
        for _ in range(200):
            await anyio.sleep(0.01)
            try:
                watched(lambda _done, _known: None)
            except TooLongError as error:
                ended.append(str(error))
                raise
        return {}

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_message: dict[str, Any]) -> None:
        return None

    def work(check: Any, _tell: Any) -> dict[str, Any]:
        check(1, 2)
        return {}

    anyio.run(AnswerInParts(run, work, lambda error: {"error": str(error)}), {"type": "http"}, receive, send)

    assert ended == ["nobody waits for the answer any more"]


def test_a_plain_question_that_nobody_waits_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is free again soon after the connection is gone, not when the search would end."""
    ended: list[str] = []

    def search(_query: Any, check: Any) -> dict[str, Any]:
        try:
            for number in range(1000):
                time.sleep(0.01)
                check(number, 1000)
        except TooLongError as error:
            ended.append(str(error))
            raise
        return {}

    monkeypatch.setitem(application.QUESTIONS, "wizard", replace(QUESTIONS["wizard"], answer=search))
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/wizard", "headers": headers, "query_string": b""}
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        await anyio.sleep(0.02)
        return messages.pop(0)

    async def send(_message: Any) -> None:
        return None

    anyio.run(create_app(), {**scope, "http_version": "1.1", "scheme": "http"}, receive, send)

    assert ended == ["nobody waits for the answer any more"]


def test_a_page_that_is_closed_ends_its_questions() -> None:
    """At their next look at the time; the process waits for their threads."""
    runner = Runner()

    def work(check: Any) -> None:
        for number in range(1000):
            time.sleep(0.01)
            runner.is_ending = number > 1
            check(number, 1000)

    with pytest.raises(TooLongError, match="the page is being closed"):
        anyio.run(runner.run, "somebody", work)


def test_the_questions_describe_themselves(client: TestClient) -> None:
    """As OpenAPI, with the bounds of every field."""
    described = client.get("/api/openapi.json").json()

    asked = {f"/api/{name}{tail}" for name in QUESTIONS for tail in ("", "/scenario")}
    assert set(described["paths"]) == {*asked, "/api/catalogue"}
    content = described["paths"]["/api/simulator"]["post"]["requestBody"]["content"]["application/json"]
    assert content["schema"]["properties"]["num_requests"]["maximum"] == 4000


def test_the_commands_of_the_docs_are_answered(client: TestClient) -> None:
    """Every address on the page about it is described, and every `curl` has an answer."""
    text = (Path(__file__).parents[2] / "docs/explore.md").read_text(encoding="utf-8")
    described = client.get("/api/openapi.json").json()["paths"]
    commands = re.findall(r"curl -s \S+?(/api/\S+) -H 'Content-Type: (\S+)' -d '(.+)'", text)
    statuses = [
        client.post(path, content=body, headers={"Content-Type": kind}).status_code for path, kind, body in commands
    ]

    assert set(re.findall(r"/api/[a-z/.]+[a-z]", text)) - {"/api/openapi.json"} <= set(described)
    assert statuses == [200, 200]


def test_the_catalogue_has_defaults_that_are_in_it(client: TestClient) -> None:
    """4 GPUs, 10 requests/s, a batch of 32, weights as they are stored."""
    found = client.get("/api/catalogue").json()
    fields = found["fields"]["simulator"]

    names = {each["name"] for each in found["models"]}
    assert {query["model"]["default"] for query in found["fields"].values() if "model" in query} <= names
    asked = {name: fields[name]["default"] for name in ("gpus", "rate", "max_num_seqs", "quantization")}
    assert asked == {"gpus": 4, "rate": 10.0, "max_num_seqs": 32, "quantization": "auto"}
    assert all(field["about"] for name, field in fields.items())


_FIELDS = sorted({name for question in QUESTIONS.values() for name in question.query.model_fields})
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.integers(0, 3000),
    st.floats(),
    st.floats(0, 200),
    st.text(max_size=20),
    st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "h100-sxm-80gb", "l4-24gb", "fp8", "int4", "nvfp4", "gpt-4o"]),
    st.lists(st.integers(-2, 500), max_size=70),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def test_a_question_that_comes_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a client that sends a byte now and then holds nobody up."""
    monkeypatch.setattr(application, "BODY_SECONDS", 0.05)
    sent: list[dict[str, Any]] = []
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/batching", "headers": headers, "query_string": b""}

    async def receive() -> dict[str, Any]:
        await anyio.sleep(10)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def ask() -> None:
        with anyio.fail_after(5):
            await create_app()({**scope, "http_version": "1.1", "scheme": "http"}, receive, send)

    anyio.run(ask)

    assert sent[0]["status"] == 408


@pytest.fixture(scope="module")
def hurried() -> Iterator[TestClient]:
    """Return a client of a page that gives nobody long."""
    with TestClient(create_app(runner=Runner(seconds=0.05)), base_url=_HOST) as found:
        yield found


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    question=st.sampled_from([*QUESTIONS, *(f"{name}/scenario" for name in QUESTIONS)]),
    body=st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=4),
)
def test_hostile_input_is_answered(hurried: TestClient, question: str, body: dict[str, Any]) -> None:
    """With an answer or a line that says what is wrong; never a defect."""
    content = json.dumps({**body, "num_requests": 50} if question.startswith(("simulator", "load", "paging")) else body)

    answer = hurried.post(f"/api/{question}", content=content, headers={"content-type": "application/json"})

    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 422:
        assert "Traceback" not in answer.json()["error"]
        assert answer.json()["error"].strip()
