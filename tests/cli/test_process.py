"""`simserve` as a process of its own: interrupts, pipes, full disks, terminals, and the examples of its help."""

from __future__ import annotations

import inspect
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import simserve as ss
from simserve.cli.app import app_of
from simserve.cli.main import main
from tests.calibrate.synthetic_run import write_run
from tests.cli.conftest import Simserve
from tests.profiles.test_hf_config import make_config
from tests.scenario.builders import scenario_mapping
from tests.workload.benchmarks import documents

pytestmark = pytest.mark.usefixtures("page_alone")

_ROOT = Path(ss.__file__).resolve().parents[1]
_FEW_REQUESTS = "workload.num_requests=50"
_INTERRUPTED_AT = """
import sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from simserve.cli.main import main
sys.exit(main({arguments!r}))
"""
_TERMINATED_IN = """
import os, signal, sys
from simserve.cli.main import main
from simserve.scenario import run

replicate = run.replicate

def terminated(deployment, scenario, replication, **more):
    if replication == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    return replicate(deployment, scenario, replication, **more)

run.replicate = terminated
sys.exit(main(["run", "small.yaml", "--replications", "4", "--out", "kept", "--quiet"]))
"""


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with the package on the path."""
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


_LOG = """\
INFO 11-02 10:00:00 [core.py:93] Initializing a V1 LLM engine (v0.12.0) with config: model='meta-llama/Llama-3.1-8B'
INFO 11-02 10:01:00 [kv_cache_utils.py:1229] GPU KV cache size: 200,000 tokens
"""


def examples() -> list[str]:
    """Return every command line that the help of a command shows."""
    app = app_of()
    apps = [app, *(group.typer_instance for group in app.registered_groups if group.typer_instance)]
    commands = [command for each in apps for command in each.registered_commands]
    texts = [inspect.getdoc(command.callback) or "" for command in commands if command.callback]
    return [line.strip() for text in texts for line in text.splitlines() if line.strip().startswith("simserve ")]


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("typer", ["--help"]), ("simserve.cli.app", ["gpus"]), ("yaml", ["gpus"]), ("numpy", ["run", "chatbot"])],
)
def test_an_interrupt_while_modules_load_is_105(folder: Path, module: str, arguments: list[str]) -> None:
    """One line, wherever it comes."""
    code = _INTERRUPTED_AT.format(module=module, arguments=arguments)

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (105, "simserve: error: interrupted\n")
    assert done.stdout == ""
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_sigterm_keeps_what_is_done_as_an_interrupt_does(folder: Path, small: str) -> None:
    """`timeout`, a batch queue or a container that ends a process loses no more than Ctrl-C."""
    done = subprocess.run(
        [sys.executable, "-c", _TERMINATED_IN],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (105, "")
    assert done.stderr == "simserve: error: interrupted; what was finished until then is written\n"
    kept = json.loads((folder / "kept/result.json").read_text(encoding="utf-8"))["simserve"]
    assert (kept["interrupted"], kept["replications"]["done"]) == (True, 2)


_INTERRUPTED_WHERE_PYTHON_DROPS_IT = """
import os, signal, sys, time
from simserve.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(1)

def unheard(arguments):
    Dying()
    time.sleep(60)

main._run_app = unheard
sys.exit(main.main(["gpus"]))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_that_python_drops_comes_again(folder: Path, name: str) -> None:
    """One that comes in a callback raises nothing there, and the command would go on to its end: 105 all the same."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_WHERE_PYTHON_DROPS_IT.format(name=name)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )

    assert (done.returncode, done.stderr) == (105, "simserve: error: interrupted\n")


_INTERRUPTED_AND_BROKEN = """
import os, signal, sys
from simserve.cli import main

# A shell in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def broken(arguments):
    try:
        os.kill(os.getpid(), signal.{name})
        while True:
            pass
    except KeyboardInterrupt:
        raise KeyError("none") from None

main._run_app = broken
sys.exit(main.main(["gpus"]))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_breaks_because_of_an_interrupt_is_the_interrupt(folder: Path, name: str) -> None:
    """A library that is stopped half-way through its imports may raise anything afterwards: 105, and no defect."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_AND_BROKEN.format(name=name)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (105, "simserve: error: interrupted\n")


PRINTING = ["gpus", "gpus --json", "schema", "scenarios chatbot", "memory chatbot", "--help"]
"""Commands that print tables, JSON, texts and help."""


@pytest.mark.parametrize("arguments", PRINTING)
def test_a_closed_pipe_ends_quietly(arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`simserve schema | head` is no error worth a line, whatever is printed."""
    complaints = io.StringIO()
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", complaints)

        try:
            code: Any = main(arguments.split())
        except SystemExit as ended:  # Rich ends the process by itself
            code = ended.code
        monkeypatch.undo()

    assert (code, complaints.getvalue()) == (1, "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["gpus", "schema"])
def test_a_process_whose_pipe_is_closed_ends_quietly(arguments: str, folder: Path) -> None:
    """What fits into the buffer fails when it is written out, and more than that while it is printed."""
    reading, writing = os.pipe()
    os.close(reading)

    command = [sys.executable, "-m", "simserve", *arguments.split()]
    done = subprocess.run(
        command, cwd=folder, env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)

    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("before", "exits"),
    [
        pytest.param("", ["exit handler"], marks=pytest.mark.slow),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n",
         ["thread", "exit handler"]),
    ],
    ids=["alone", "with a thread"],
)  # fmt: skip
def test_a_process_ends_with_its_code_and_all_that_waits_for_its_end(before: str, exits: list[str]) -> None:
    """Handlers run, threads end, everything printed arrives, though the interpreter is not taken apart."""
    code = (
        "import atexit, sys\natexit.register(print, 'exit handler')\nsys.argv = ['simserve', 'run', 'nope']\n"
        f"{before}from simserve.cli.main import command\ncommand()"
    )

    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.splitlines()) == (104, exits)
    assert done.stderr.splitlines()[-1].startswith("simserve: error: 'nope' is neither a scenario nor a model")


def test_a_second_interrupt_ends_a_process_that_waits_for_a_thread(folder: Path) -> None:
    """At once, with what was printed, and without the interpreter's own words about its threads."""
    code = (
        "import os, signal, threading, time\n"
        "from simserve.cli import main\n"
        "done = threading.Event()\n"
        "def interrupt():\n"
        "    done.wait()\n"
        "    time.sleep(0.5)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(20)\n"
        "threading.Thread(target=interrupt).start()\n"
        "main.main = lambda: (print('answer'), done.set(), main.InterruptedRunError.exit_code)[2]\n"
        "main.command()"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )

    assert (done.returncode, done.stdout, done.stderr) == (105, "answer\n", "")


@pytest.mark.slow
def test_what_is_printed_before_an_error_arrives_through_a_pipe(folder: Path) -> None:
    """What does not fit ends with 3, and its JSON is still printed: stdout is buffered, and written out at the end."""
    too_large = "run --model llama-3.1-405b --hardware a10-24gb --rate 1 --prompt-tokens 9 --output-tokens 9 --json"
    buffered = {**environment(), "PYTHONUNBUFFERED": ""}

    done = subprocess.run(
        [sys.executable, "-m", "simserve", *too_large.split()],
        cwd=folder,
        env=buffered,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 3
    assert json.loads(done.stdout)["fits"] is False


_CLOSED = {"gpus": ">&-", "gpus --json": "2>&-", "run small.yaml --quiet": ">&- 2>&-"}
"""Each command with another stream closed; the full tier tries every command with every stream."""


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        pytest.param(arguments, closed, marks=[] if _CLOSED[arguments] == closed else pytest.mark.slow)
        for arguments in _CLOSED
        for closed in _CLOSED.values()
    ],
)
def test_a_process_without_stdout_or_stderr_works(arguments: str, closed: str, folder: Path, small: str) -> None:
    """A service manager may start it so: what is printed goes nowhere."""
    command = f"{shlex.quote(sys.executable)} -m simserve {arguments} {closed}"

    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("run small.yaml", marks=pytest.mark.slow),
        "gpus --json",
        pytest.param("run small.yaml --json", marks=pytest.mark.slow),
        pytest.param("gpus", marks=pytest.mark.slow),
    ],
)
def test_a_pipe_gets_the_same_bytes_in_every_locale(
    arguments: str, folder: Path, small: str, simserve: Simserve
) -> None:
    """Where nothing but ASCII is known, a terminal gets a sign for the others, and a pipe UTF-8."""
    narrow = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "simserve", *arguments.split()]
    here = simserve(*arguments.split())

    there = subprocess.run(command, cwd=folder, env=environment(**narrow), capture_output=True, check=False)

    assert (here.code, there.returncode) == (0, 0), there.stderr
    assert there.stdout.decode("utf-8") == here.stdout != ""


_FULL = "simserve: error: the answer or its files cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("arguments", PRINTING)
def test_what_no_disk_takes_is_one_line(arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is printed."""
    complaints = io.StringIO()
    with Path("/dev/full").open("w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", complaints)

        code = main(arguments.split())
        monkeypatch.undo()

    assert (code, complaints.getvalue()) == (1, _FULL)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_one_line(folder: Path) -> None:
    """It is the disk's fault, not a defect; of a process of its own, too."""
    command = [sys.executable, "-m", "simserve", "gpus"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=folder, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert (done.returncode, done.stderr) == (1, _FULL)


_ALL_TO_A_TERMINAL = """
import sys
from simserve.cli.main import main

for arguments in ("memory chatbot", "engines vllm", "run chatbot --check", "engines sglang"):
    assert main(arguments.split()) == 0, arguments
    print("printed", arguments)
"""


@pytest.mark.slow
def test_no_line_is_wider_than_the_terminal(folder: Path) -> None:
    """At 80 columns, whatever is printed wraps between words."""
    reading, writing = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", _ALL_TO_A_TERMINAL],
        cwd=folder,
        env=environment(COLUMNS="80", TERM="dumb", NO_COLOR="1"),
        stdout=writing,
        stdin=subprocess.DEVNULL,
    )
    os.close(writing)
    chunks = []
    while True:
        try:
            chunk = os.read(reading, 65536)
        except OSError:  # Linux ends a terminal without a writer so
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(reading)

    assert done.wait() == 0
    lines = b"".join(chunks).decode().splitlines()
    commands = [place for place, line in enumerate(lines) if line.startswith("printed ")]
    assert len(commands) == 4
    assert all(after - before > 1 for before, after in pairwise([-1, *commands]))
    assert max(len(line) for line in lines) <= 80


def test_help_shows_examples() -> None:
    """The test below would pass without any."""
    assert len(examples()) >= 4


_SLOW = ("plan chatbot", "plan cold-start", "validate", "verify")
"""Examples that search many deployments or replay hundreds of points; others plan and run, and the commands have
tests of their own."""


def _example(line: str) -> Any:
    marks = [pytest.mark.slow] if line.removeprefix("simserve ").startswith(_SLOW) else []
    return pytest.param(line, marks=marks)


_FEW_RUNS = {
    "capacity": f"--set {_FEW_REQUESTS} --requests 300 --replications 2",
    "compare": f"--set {_FEW_REQUESTS} --replications 2",
    "frameworks": f"--set {_FEW_REQUESTS}",
    "run": f"--set {_FEW_REQUESTS}",
    "sweep": f"--set {_FEW_REQUESTS} --workers 1",
}
"""Command -> what makes its example a short one."""


def _shortened(line: str) -> str:
    """Return an example with fewer requests, and plans of the largest over one GPU."""
    command = line.split()[1]
    if line.startswith("simserve plan chatbot --objective"):
        return f"{line} --gpus 2xh100 --trials 1"
    if line.startswith("simserve plan chatbot"):
        return f"{line} --hardware h100 --max-gpus {8 if '--confidence' in line else 4} --trials 1"
    if command == "plan":
        return f"{line} --trials 0 --jobs 1"
    return f"{line} {_FEW_RUNS[command]}" if command in _FEW_RUNS else line


@pytest.mark.slow
@pytest.mark.usefixtures("best_alone")
@pytest.mark.parametrize("example", [_example(line) for line in examples()])
def test_an_example_of_the_help_works(example: str, folder: Path, simserve: Simserve) -> None:
    """As it is written, with fewer requests, and plans of the largest over one GPU."""
    others = ("--data", "--prices", "calibrate kernels", "calibrate serving", "calibrate check", "observe")
    if any(part in example for part in (*others, "explore --export")):
        pytest.skip("needs files that others keep, a server, or minutes")
    if "calibrate fit" in example:
        write_run(folder / "calibration/runs/my-gpu", kinds=("copies",))
    (folder / "mine.yaml").write_text(yaml.safe_dump(scenario_mapping()), encoding="utf-8")
    for name in ("before", "after") if "results/before" in example else ():
        ss.run(ss.load(folder / "mine.yaml"), out=folder / "results" / name)
    rows = "".join(f"{index},{90 + index},{10 + index % 5}\n" for index in range(20))
    (folder / "traffic.csv").write_text(f"arrival_time,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    hours = "".join(f"2026-10-01T{hour:02}:00:00Z,{hour + 1},900,300\n" for hour in range(24))
    (folder / "usage.csv").write_text(f"timestamp,requests,input_tokens,output_tokens\n{hours}", encoding="utf-8")
    sent = "".join(json.dumps({"sent": each, "tokens_in": 90, "tokens_out": 10}) + "\n" for each in range(20))
    (folder / "log.jsonl").write_text(sent, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(make_config()), encoding="utf-8")
    (folder / "profile_export_aiperf.json").write_text(json.dumps(documents.aiperf()), encoding="utf-8")
    (folder / "server.log").write_text(_LOG, encoding="utf-8")
    if "import manifest" in example:
        simserve("export", "cold-start", "--to", "k8s", "--out", "cold-start.yaml")

    if any(sign in example for sign in "|<>;"):  # what a shell does is part of it
        python = shlex.quote(sys.executable)
        lines = "; ".join(map(_shortened, example.split("; ")))
        script = f'simserve() {{ {python} -m simserve "$@"; }}; set -e; {lines}'
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment(), capture_output=True, text=True, check=False
        )
        code, stderr = done.returncode, done.stderr
    else:
        outcome = simserve(*shlex.split(_shortened(example))[1:])
        code, stderr = outcome.code, outcome.stderr

    told = [line for line in stderr.splitlines() if not re.fullmatch(r"simserve: \d+ s: .*", line)]  # after two seconds
    assert (code, told) == (0, [])


@pytest.mark.parametrize(
    ("words", "place", "completed"), [("simserve ru", 1, "run"), ("simserve plan --conf", 2, "--confidence")]
)
def test_a_shell_completes_commands_and_flags(words: str, place: int, completed: str) -> None:
    """As `--install-completion` makes bash ask."""
    asked = {"_SIMSERVE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}

    done = subprocess.run(
        [sys.executable, "-m", "simserve"], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )

    assert done.stdout.split() == [completed]
