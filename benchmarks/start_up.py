"""User CPU seconds of whole commands, start-up included, each in processes of its own.

    python benchmarks/start_up.py [--quick]

The best of three. Modules are compiled to bytecode beforehand, as installing a wheel does.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.processes import as_installed  # noqa: E402

COMMANDS: Mapping[str, Sequence[str]] = {
    "simserve --help": ("-m", "simserve", "--help"),
    "simserve memory chatbot": ("-m", "simserve", "memory", "chatbot"),
    "simserve run single-gpu-7b (2,000 requests, report and files)": (
        *("-m", "simserve", "run", "single-gpu-7b", "--out", "OUT", "--force"),
    ),
    "ss.run('single-gpu-7b') (the same from Python, no files)": (
        *("-c", "import simserve as ss; ss.run('single-gpu-7b')"),
    ),
    "simserve run chatbot (5,000 requests, report and files)": (
        *("-m", "simserve", "run", "chatbot", "--out", "OUT", "--force"),
    ),
    "simserve capacity chatbot": ("-m", "simserve", "capacity", "chatbot"),
    "simserve compare chatbot (two variants, ten runs each)": (
        *("-m", "simserve", "compare", "chatbot", "--with", "bf16: deployment.quantization=none"),
    ),
    "simserve sweep (24 points, one worker)": (
        *("-m", "simserve", "sweep", "single-gpu-7b", "--workers", "1", "--out", "OUT.parquet", "--force"),
        *(
            "--grid",
            "workload.arrivals.concurrency=8,12,16,20,24,28",
            "--grid",
            "deployment.engine.max_num_seqs=32,64,128,256",
        ),
    ),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first three, once")
    for line in table(quick=parser.parse_args().quick):
        print(line, flush=True)


def table(*, quick: bool) -> Iterable[str]:
    """Yield the lines of the table."""
    yield "| command | CPU s |"
    yield "|---|---:|"
    with tempfile.TemporaryDirectory() as folder:
        environment = as_installed(Path(folder))
        for name, arguments in list(COMMANDS.items())[: 3 if quick else None]:
            out = str(Path(folder) / "out")
            command = [sys.executable, *(each.replace("OUT", out) for each in arguments)]
            _seconds(command, environment)  # writes the bytecode
            best = min(_seconds(command, environment) for _ in range(1 if quick else 3))
            words, opened, note = name.partition(" (")
            yield f"| `{words}`{opened}{note} | {best:.2f} |"


def _seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the user CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, check=True, env=environment, cwd=ROOT, capture_output=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


if __name__ == "__main__":
    main()
