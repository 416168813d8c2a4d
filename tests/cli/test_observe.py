"""``simserve observe`` as a user meets it: files, next commands, refusals, Ctrl-C."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="needs httpx")

from simserve.cli.main import main
from tests.observe.stand_in import Ways, stand_in

QUICK = ["--budget", "4s", "--max-requests", "24", "--prompt-tokens", "40", "--output-tokens", "10"]


@pytest.mark.slow
def test_a_live_server_is_measured_calibrated_and_planned_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way, by the commands that it names: a scenario of the longest file, the engine, what it can take."""
    monkeypatch.chdir(tmp_path)
    with stand_in(Ways(token_seconds=0.01)) as server:
        loads = ["--concurrency", "1", "--concurrency", "4"]
        code = main(["observe", server.url, "--out", "observed", "--json", *loads, *QUICK])
    told = json.loads(capsys.readouterr().out)
    named = [each.replace("GPU", "H100").replace("MODEL", "llama-3.1-8b") for each in told["next"]]
    words = [shlex.split(each)[1:] for each in named]
    words[1][2:3] = [run["file"] for run in told["runs"]]
    codes = [main([*each, "--quiet"]) for each in words]
    capacity = json.loads(capsys.readouterr().out) if main([*words[2], "--json"]) == 0 else {}

    assert (code, codes) == (0, [0, 0, 0])
    assert words[0][2] == max(told["runs"], key=lambda run: run["completed"])["file"]
    assert capacity["max_concurrency"] > 4
    assert [(run["load"], run["failed"]) for run in told["runs"]] == [("clients-1", 0), ("clients-4", 0)]
    assert 10 <= told["runs"][0]["mean_tpot_ms"] < 40
    assert told["next"][1].startswith("simserve calibrate serving observed/*.json --scenario ")


@pytest.mark.slow
def test_the_answer_names_server_loads_and_next_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines that a person reads, and a file a load."""
    with stand_in() as server:
        code = main(["observe", server.url, "--out", str(tmp_path), "--rate", "20", *QUICK])
    answer = capsys.readouterr().out

    assert code == 0
    assert answer.startswith("tiny under vllm 0.20.2\n")
    assert "rate-20" in answer
    assert "simserve import bench" in answer
    assert " --gpus GPU --model MODEL --engine-version 0.20.2 " in answer
    assert json.loads((tmp_path / "rate-20.json").read_text())["request_rate"] == 20.0


def test_a_model_that_is_known_by_its_name_is_not_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the server calls the model is enough for the next command."""
    with stand_in(Ways(models=("meta-llama/Llama-3.1-8B-Instruct",))) as server:
        main(["observe", server.url, "--out", str(tmp_path), "--json", *QUICK])

    assert "--model" not in json.loads(capsys.readouterr().out)["next"][0]


def test_answers_that_are_held_back_until_they_are_whole_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proxy that buffers: many tokens in one piece have no TPOT, in the file neither."""
    with stand_in(Ways(is_held_back=True)) as server:
        code = main(["observe", server.url, "--out", str(tmp_path), "--concurrency", "2", "--json", *QUICK])
    told = json.loads(capsys.readouterr().out)
    document = json.loads((tmp_path / "clients-2.json").read_text())

    assert code == 0
    assert told["runs"][0]["mean_tpot_ms"] is None
    assert "mean_tpot_ms" not in document
    assert any("came in one piece" in note for note in told["notes"])


def test_answers_that_are_shorter_than_asked_for_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that knows no ``ignore_eos`` ends them where the model does."""
    with stand_in(Ways(longest=4)) as server:
        main(["observe", server.url, "--out", str(tmp_path), "--concurrency", "2", "--json", *QUICK])
    notes = json.loads(capsys.readouterr().out)["notes"]

    assert any("clients-2: the server ends answers early: 4 tokens in the mean, " in note for note in notes)


def test_a_result_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is sent, and nothing is overwritten without being told to."""
    (tmp_path / "clients-16.json").write_text("mine")
    with stand_in() as server:
        code = main(["observe", server.url, "--out", str(tmp_path), *QUICK])
        sent = len(server.bodies)

    assert (code, sent) == (2, 0)
    assert (tmp_path / "clients-16.json").read_text() == "mine"
    assert "--force" in capsys.readouterr().err


def test_a_key_is_sent_and_stands_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from the environment, and only from the variable that is named."""
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    with stand_in(Ways(key="sk-very-secret")) as server:
        code = main(["observe", server.url, "--out", str(tmp_path), "--api-key-env", "MY_KEY", "--json", *QUICK])
    streams = capsys.readouterr()

    assert code == 0
    assert not any("secret" in text for text in (streams.out, streams.err))
    assert not any("secret" in file.read_text() for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["localhost:8000"], 2, "address of a server"),
        (["http://127.0.0.1:9"], 104, "does not answer"),
        (["http://127.0.0.1:9", "--budget", "-1s"], 2, "--budget"),
        (["http://127.0.0.1:9", "--concurrency", "0"], 2, "--concurrency"),
        (["http://127.0.0.1:9", "--rate", "nan"], 2, "--rate"),
        (["http://127.0.0.1:9", "--api-key-env", "NO_SUCH_VARIABLE"], 2, "is not set"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code of its kind, and nothing on stdout."""
    found = main(["observe", *words, "--out", str(tmp_path / "new"), "--json"])
    streams = capsys.readouterr()

    assert found == code
    assert streams.out == ""
    assert said in streams.err
    assert streams.err.count("\n") == 1


_INTERRUPTIBLE = """
import signal, sys
from simserve.cli.main import main

# A shell in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_keeps_what_has_ended(tmp_path: Path) -> None:
    """The run that was going on is written with the answers it had; exit code 105."""
    with stand_in() as server:
        command = [sys.executable, "-c", _INTERRUPTIBLE, "observe", server.url, "--out", str(tmp_path)]
        asked = ["--budget", "60s", "--concurrency", "2", "--output-tokens", "10"]
        process = subprocess.Popen([*command, *asked], stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while len(server.bodies) < 12 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)

    assert process.returncode == 105
    assert b"interrupted" in error
    assert json.loads((tmp_path / "clients-2.json").read_text())["completed"] >= 1
