"""``simserve import metrics`` and ``simserve twin`` as a user meets them: files, servers, servers that misbehave."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import simserve as ss
from simserve.cli.twin import MetricsEndpoint
from simserve.observe import scrapes
from simserve.observe.scrapes import samples_of
from simserve.scenario.load import from_mapping
from tests.cli.conftest import Simserve
from tests.planner.twin.exporter import page_at, series

_CHANGED = {"process": "steps", "steps": [{"rate": 4, "duration": "300 s"}, {"rate": 8, "duration": "1000 s"}]}

Answer = Callable[[BaseHTTPRequestHandler], None]


def _mapping(arrivals: object) -> dict[str, object]:
    return {
        "name": "served",
        "model": "llama-3.1-8b",
        "deployment": {"hardware": "h100-sxm-80gb", "engine": {"name": "vllm", "version": "0.12"}},
        "workload": {
            "arrivals": arrivals,
            "prompt_tokens": {"distribution": "lognormal", "mean": 400, "cv": 1.0, "max": 4000},
            "output_tokens": {"distribution": "lognormal", "mean": 80, "cv": 0.8, "max": 500},
            "duration": "10 min",
        },
    }


@pytest.fixture(scope="module")
def steady() -> str:
    """Scrapes of nine minutes at four requests a second."""
    return series(ss.run(from_mapping(_mapping({"process": "poisson", "rate": 4.0}))), begin=30, end=570)


@pytest.fixture(scope="module")
def doubled() -> str:
    """Scrapes of nine minutes in which the rate doubles after five."""
    return series(ss.run(from_mapping(_mapping(_CHANGED))), begin=30, end=570)


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Yield the address of a server on this machine that answers GET as told."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _send(handler: BaseHTTPRequestHandler, text: str, code: int = 200) -> None:
    handler.send_response(code)
    handler.end_headers()
    handler.wfile.write(text.encode())


def test_scrapes_become_a_scenario_that_runs(simserve: Simserve, steady: str) -> None:
    """Rate within 3 %, lengths within 5 %, settings as told; and `run` takes it."""
    Path("s.prom").write_text(steady)
    made = simserve("import", "metrics", "s.prom", "--gpus", "H100", "--out", "seen.yaml", "--json")
    found = json.loads(made.stdout)
    ran = simserve("run", "seen.yaml", "--check", "--quiet")

    workload = found["scenario"]["workload"]
    assert (made.code, ran.code) == (0, 0)
    assert workload["arrivals"]["rate"] == pytest.approx(4.0, rel=0.05)
    assert workload["prompt_tokens"]["mean"] == pytest.approx(400, rel=0.05)
    assert workload["output_tokens"]["mean"] == pytest.approx(80, rel=0.05)
    assert found["scenario"]["deployment"]["engine"]["block_size"] == 16
    assert any(note.startswith("Assumed: the newest known version") for note in found["notes"])


def test_a_rate_that_changes_becomes_steps(simserve: Simserve, doubled: str) -> None:
    """The scenario has the rates before and after, not their mean."""
    Path("s.prom").write_text(doubled)
    arrivals = json.loads(simserve("import", "metrics", "s.prom", "--gpus", "H100", "--json").stdout)["scenario"][
        "workload"
    ]["arrivals"]

    assert arrivals["process"] == "steps"
    assert arrivals["steps"][0]["rate"] < 6 < arrivals["steps"][-1]["rate"]


def test_a_gpu_is_asked_for(simserve: Simserve, steady: str) -> None:
    """Metrics do not say what the engine runs on."""
    Path("s.prom").write_text(steady)
    made = simserve("import", "metrics", "s.prom")

    assert made.code == 2
    assert made.error_line.startswith("--gpus: is missing: metrics do not say what the engine runs on")


def test_drift_ends_with_99_and_its_absence_with_0(simserve: Simserve, steady: str, doubled: str) -> None:
    """The same scenario, with what it says and with twice as much; both print the whole answer."""
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    Path("steady.prom").write_text(steady)
    Path("doubled.prom").write_text(doubled)
    words = ["--scenario", "s.yaml", "--once", "--json", "--horizon", "1h"]
    same = simserve("twin", "steady.prom", *words)
    other = simserve("twin", "doubled.prom", *words, "--out", "kept")
    found = json.loads(other.stdout)

    assert (same.code, other.code) == (0, 99)
    assert {"observed", "predicted", "drift", "forecast"} <= set(found)
    assert found["drift"]["rate"]["inside"] is False
    assert json.loads(Path("kept/twin.json").read_text()) == found
    assert "has no slo" in " ".join(found["notes"])


def test_a_change_of_the_scenario_changes_what_is_predicted(simserve: Simserve, steady: str) -> None:
    """`--set` is a what-if: on an L40S the same hours would have been slower than they were."""
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    Path("s.prom").write_text(steady)
    words = ["twin", "s.prom", "--scenario", "s.yaml", "--json", "--horizon", "0"]
    own = json.loads(simserve(*words).stdout)
    other = json.loads(simserve(*words, "--set", "deployment.hardware=l40s").stdout)

    assert other["predicted"]["tpot_ms"] > 1.5 * own["predicted"]["tpot_ms"]


@pytest.mark.parametrize("text", ["", "no metrics here\n", "\x00\xff{{{", '{"status": "success", "data": 3}'])
def test_what_is_no_metrics_ends_with_104(simserve: Simserve, text: str) -> None:
    """One line, and nothing on stdout."""
    Path("s.prom").write_text(text)
    made = simserve("import", "metrics", "s.prom", "--gpus", "H100")

    assert (made.code, made.stdout) == (104, "")
    assert made.error_line.startswith("s.prom: ")


def test_a_live_engine_is_scraped(simserve: Simserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page and its version; a server that asks for a key gets that of the environment, which is written nowhere."""
    pytest.importorskip("httpx", reason="needs httpx")
    text = page_at(ss.run(from_mapping(_mapping({"process": "poisson", "rate": 4.0}))), 500.0)
    seen: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers["Authorization"])
        if seen[-1] != "Bearer s3cret":
            _send(handler, "", 401)
        else:
            _send(handler, '{"version": "0.12.0"}' if handler.path == "/version" else text)

    with serving(answer) as url:
        refused = simserve("import", "metrics", url, "--gpus", "H100")
        monkeypatch.setenv("SIMSERVE_METRICS_TOKEN", "s3cret")
        made = simserve("import", "metrics", url, "--gpus", "H100")

    assert refused.code == 104
    assert "SIMSERVE_METRICS_TOKEN" in refused.error_line
    assert made.code == 0
    assert "version: 0.12.0" in made.stdout
    assert "s3cret" not in made.stdout + made.stderr


def _interrupted_after(rounds: int) -> SimpleNamespace:
    """Return a clock that is stopped by Ctrl-C at the end of so many rounds."""
    left = iter(range(rounds - 1))

    def sleep(_seconds: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    return SimpleNamespace(monotonic=time.monotonic, sleep=sleep)


@pytest.mark.slow
def test_watch_prints_a_line_a_round_and_once_ends_with_99(simserve: Simserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in exporter whose clock runs far faster than the scenario's: the rate is another one in every round."""
    pytest.importorskip("httpx", reason="needs httpx")
    result = ss.run(from_mapping(_mapping({"process": "poisson", "rate": 4.0})))
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    monkeypatch.setattr("simserve.cli.twin._SHORTEST_ROUND", 0.0)
    monkeypatch.setattr("simserve.cli.metrics_source.SHORTEST_INTERVAL", 0.0)
    monkeypatch.setattr("simserve.cli.twin.time", _interrupted_after(2))
    asked = itertools.count()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _send(handler, "{}" if handler.path == "/version" else page_at(result, 100.0 + 5.0 * next(asked)))

    words = ["--scenario", "s.yaml", "--horizon", "0", "--interval", "0.05 s"]
    with serving(answer) as url:
        watched = simserve("twin", url, *words, "--watch", "0.4 s")
        until = simserve("twin", url, *words, "--watch", "0.4 s", "--once")
        once = simserve("twin", url, *words, "--for", "0.4 s", "--once", "--json")

    lines = watched.stdout.splitlines()
    assert watched.code == 105
    assert len(lines) == 2
    assert all("drift: rate" in line for line in lines)
    assert until.code == 99
    assert len(until.stdout.splitlines()) == 1
    assert once.code == 99
    assert json.loads(once.stdout)["drift"]["rate"]["inside"] is False


def test_the_answer_opens_with_what_is_not_as_predicted(simserve: Simserve, steady: str) -> None:
    """As other commands open with a verdict; it had to be found in a column of the table."""
    Path("s.prom").write_text(steady)
    Path("four.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    Path("two.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 2.0})))

    held, drifted = (
        simserve("twin", "s.prom", "--scenario", name, "--horizon", "0").stdout.splitlines()[0]
        for name in ("four.yaml", "two.yaml")
    )

    assert held == "Every figure that is judged is as predicted."
    assert re.match(r"Not as predicted: rate \([34]\.?\d* observed, 2 predicted\)", drifted)


def test_a_round_without_an_answer_does_not_end_the_watch(
    simserve: Simserve, steady: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said in a line on stderr, and the next round looks again."""
    Path("s.prom").write_text(steady)
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    pages = iter(["garbage", steady])

    def sleep(_seconds: float) -> None:
        page = next(pages, None)
        if page is None:
            raise KeyboardInterrupt
        Path("s.prom").write_text(page)

    monkeypatch.setattr("simserve.cli.twin.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    watched = simserve("twin", "s.prom", "--scenario", "s.yaml", "--watch", "300s", "--horizon", "0")

    assert watched.code == 105
    assert len(watched.stdout.splitlines()) == 2
    assert "s.prom: holds no metrics" in watched.stderr


def test_watch_serves_its_own_metrics(simserve: Simserve, steady: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a round found stands at /metrics until the next one, and nothing else is there; a reader reads it."""
    Path("s.prom").write_text(steady)
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    pages: list[str] = []
    monkeypatch.setattr("simserve.cli.twin._SHORTEST_ROUND", 0.0)

    def sleep(_seconds: float) -> None:
        url = made.url
        with urllib.request.urlopen(url, timeout=5) as response:
            pages.append(response.read().decode())
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            urllib.request.urlopen(url.removesuffix("metrics"), timeout=5)
        missing.value.close()
        raise KeyboardInterrupt

    class Made(MetricsEndpoint):
        def __init__(self, address: str) -> None:
            nonlocal made
            super().__init__(address)
            made = self

    made = None  # type: ignore[assignment]
    monkeypatch.setattr("simserve.cli.twin.MetricsEndpoint", Made)
    monkeypatch.setattr("simserve.cli.twin.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    words = ("--scenario", "s.yaml", "--watch", "300s", "--horizon", "1h", "--metrics-address", "0")
    watched = simserve("twin", "s.prom", *words)

    assert watched.code == 105
    told = {(each.name, each.labels.get("figure")): each.value for each in samples_of(pages[0])}
    assert told["simserve_twin_drifted", None] == 0.0
    assert told["simserve_twin_inside", "rate"] == 1.0
    assert told["simserve_twin_observed", "rate"] == pytest.approx(4.0, rel=0.1)
    assert told["simserve_twin_predicted", "rate"] == pytest.approx(4.0)
    assert told["simserve_twin_next_hour_rate", None] == pytest.approx(4.0, rel=0.2)


@pytest.mark.parametrize("address", ["no", "127.0.0.1:70000", "::", "203.0.113.1:9464"])
def test_an_address_that_cannot_be_listened_at_is_one_line(simserve: Simserve, steady: str, address: str) -> None:
    """Before anything is looked at."""
    Path("s.prom").write_text(steady)
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    made = simserve("twin", "s.prom", "--scenario", "s.yaml", "--watch", "5min", "--metrics-address", address)

    assert (made.code, made.stdout) == (2, "")
    assert "--metrics-address" in made.error_line


def test_rounds_that_are_too_short_are_refused_before_anything_is_served(simserve: Simserve, steady: str) -> None:
    """Nothing stands on stdout."""
    Path("s.prom").write_text(steady)
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    made = simserve("twin", "s.prom", "--scenario", "s.yaml", "--watch", "20 s", "--metrics-address", "0")

    assert (made.code, made.stdout) == (2, "")
    assert "--watch" in made.error_line


def test_a_prometheus_server_is_told_from_an_engine_and_asked(simserve: Simserve, steady: str) -> None:
    """Its range query has the scrapes; what is asked for names series and a time."""
    pytest.importorskip("httpx", reason="needs httpx")
    rows: dict[tuple[str, tuple[tuple[str, str], ...]], list[list[object]]] = {}
    for scrape in scrapes.scrapes_of(steady, "x"):
        for sample in scrape.samples:
            rows.setdefault((sample.name, tuple(sample.labels.items())), []).append([scrape.time, str(sample.value)])
    result = [
        {"metric": {"__name__": name, **dict(labels)}, "values": points} for (name, labels), points in rows.items()
    ]
    asked: list[dict[str, list[str]]] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        address = urllib.parse.urlsplit(handler.path)
        if address.path == "/api/v1/query_range":
            asked.append(urllib.parse.parse_qs(address.query))
            _send(handler, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
        else:
            _send(handler, "prometheus_build_info 1\n")

    with serving(answer) as url:
        made = simserve(
            "import", "metrics", url, "--gpus", "H100", "--json", "--for", "9min", "--match", 'namespace="chat"'
        )

    assert made.code == 0
    assert json.loads(made.stdout)["scenario"]["workload"]["arrivals"]["rate"] == pytest.approx(4.0, rel=0.05)
    assert 'namespace="chat"' in asked[0]["query"][0]
    assert float(asked[0]["end"][0]) - float(asked[0]["start"][0]) == pytest.approx(540, abs=1)


def _endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"vllm:num_requests_running 1\n" * 4_000)


def _redirecting(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://192.0.2.1/metrics")
    handler.end_headers()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_endless, "more than 1 MB"),
        (_redirecting, "answers 302"),
        (lambda handler: _send(handler, "\x00garbage"), "holds no metrics"),
        (lambda handler: _send(handler, "", 500), "answers 500"),
    ],
    ids=["endless", "redirecting", "garbage", "broken"],
)
def test_a_hostile_exporter_ends_with_one_line(
    simserve: Simserve, monkeypatch: pytest.MonkeyPatch, answer: Answer, said: str
) -> None:
    """None of them hangs or crashes it."""
    pytest.importorskip("httpx", reason="needs httpx")
    from simserve.observe import scraping

    monkeypatch.setattr(scraping.page, "__kwdefaults__", {"most": 1_000_000, "seconds": 5.0})
    with serving(answer) as url:
        made = simserve("import", "metrics", f"{url}/metrics", "--gpus", "H100")

    assert made.code == 104
    assert said in made.error_line


@pytest.mark.slow
def test_nothing_is_lost_when_an_exporter_turns_bad_midway(simserve: Simserve, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was scraped before and after is compared, the rest is said, and all that came is in the file."""
    pytest.importorskip("httpx", reason="needs httpx")
    from simserve.observe import scraping

    monkeypatch.setattr(scraping.page, "__kwdefaults__", {"most": 1_000_000, "seconds": 5.0})
    monkeypatch.setattr("simserve.cli.metrics_source.SHORTEST_INTERVAL", 0.0)
    result = ss.run(from_mapping(_mapping({"process": "poisson", "rate": 4.0})))
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    bad: list[Answer] = [_endless, _redirecting, lambda each: _send(each, "\x00nan"), lambda each: _send(each, "", 500)]
    asked = itertools.count()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/version":
            return _send(handler, "{}")
        turn = next(asked)
        # The first answer is that to whether it is an engine.
        return bad[turn - 4](handler) if 4 <= turn < 8 else _send(handler, page_at(result, 100.0 + 5.0 * turn))

    words = ["--scenario", "s.yaml", "--horizon", "0", "--interval", "0.2 s", "--for", "3 s", "--out", "seen"]
    with serving(answer) as url:
        done = simserve("twin", url, *words)
    told = json.loads(Path("seen/twin.json").read_text())
    pages = Path("seen/scrapes.prom").read_text().count("# scraped_at ")

    assert done.code == 0
    assert re.search(r"simserve: 4 of \d+ scrapes failed: http://[^ ]+ answers 500", done.stderr)
    assert pages >= 5
    assert told["stretch"]["windows"] == pages - 1


def test_what_was_scraped_stays_where_it_cannot_be_compared(simserve: Simserve) -> None:
    """One page is no stretch of time; it is in the file all the same, and a round of --watch writes its answer."""
    pytest.importorskip("httpx", reason="needs httpx")
    result = ss.run(from_mapping(_mapping({"process": "poisson", "rate": 4.0})))
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    with serving(lambda handler: _send(handler, page_at(result, 100.0))) as url:
        done = simserve("twin", url, "--scenario", "s.yaml", "--out", "seen")
        kept = Path("seen/scrapes.prom").read_text()
        again = simserve("twin", url, "--scenario", "s.yaml", "--out", "seen")

    assert done.code != 0
    assert kept.count("# scraped_at ") == 1
    assert again.error_line.startswith("seen/scrapes.prom: is there already")
    assert Path("seen/scrapes.prom").read_text() == kept


def test_a_watch_writes_its_last_answer(simserve: Simserve, steady: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --out, every round."""
    Path("s.prom").write_text(steady)
    Path("s.yaml").write_text(yaml.safe_dump(_mapping({"process": "poisson", "rate": 4.0})))
    monkeypatch.setattr("simserve.cli.twin.time", _interrupted_after(1))
    words = ["--scenario", "s.yaml", "--watch", "300s", "--horizon", "0", "--out", "seen"]

    assert simserve("twin", "s.prom", *words).code == 105
    assert json.loads(Path("seen/twin.json").read_text())["stretch"]["windows"] > 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["http://user:pw@localhost:1/metrics"], 2, "must not hold credentials"),
        (["ftp://localhost/metrics"], 2, "must be the address of a server"),
        (["s.prom", "--for", "5min"], 2, "is for an address"),
        (["missing.prom"], 104, "no such file or folder"),
    ],
)
def test_wrong_sources_are_refused(simserve: Simserve, words: list[str], code: int, said: str) -> None:
    """Each with a line that says why; a password is not repeated."""
    made = simserve("import", "metrics", *words, "--gpus", "H100")

    assert made.code == code
    assert said in made.error_line
    assert "pw" not in made.error_line
