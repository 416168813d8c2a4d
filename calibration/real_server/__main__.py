"""``python -m calibration.real_server --env DIR --out DIR``: vLLM on this CPU, measured and simulated.

Makes an environment with vLLM for CPUs (outside the checkout, 3.5 GB, once), measures the kernels of a small model,
serves that model, sends loads with vLLM's own client, each twice, fits five factors to two of them by ``simserve
calibrate serving``, simulates all, and writes ``comparison.md`` and ``comparison.json``. What is measured already in
``--out`` is kept: the command goes on where it was stopped. Takes about 45 minutes of two quiet cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from calibration.real_server import campaign, environment, model, page, replay
from calibration.real_server.serving import bench, served

WORKER_CORE = "0"
"""Of several cores vLLM leaves the last one to its front end; of two its worker has the first."""


def main() -> int:
    """Measure, simulate and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, required=True, help="folder of the environment with vLLM; made if missing")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--budget", default="150s", help="time for the kernels")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="day that provenance names")
    parser.add_argument("--prompt-tokens", type=int, default=256, help="mean length; fewer for a CPU without BF16")
    parser.add_argument("--share", type=float, default=1.0, help="of the requests of each load")
    repeats = range(1, campaign.MOST_REPEATS + 1)
    parser.add_argument("--repeats", type=int, choices=repeats, default=campaign.REPEATS, help="of each load")
    parser.add_argument("--servers", nargs="+", metavar="NAME", help="measure these alone; all are compared")
    arguments = parser.parse_args()
    size = campaign.Size(arguments.prompt_tokens, arguments.share, arguments.repeats)
    names = [each.name for each in campaign.servers(1.0, 1.0, size)]
    if unknown := set(arguments.servers or ()) - set(names):
        parser.error(f"--servers: there is no {', '.join(sorted(unknown))}; use {', '.join(names)}")
    if environment.CPU_INFO.is_file() and (reason := environment.unfit(environment.CPU_INFO.read_text())):
        parser.error(reason)
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    commands = environment.make(arguments.env.resolve())
    folder = model.write(out / "model")
    measure_kernels(commands, out, arguments.budget, arguments.date)
    capacity = measure_capacities(commands, folder, out, size)
    servers = campaign.servers(capacity[campaign.MOST_CLIENTS], capacity[campaign.SEATS], size)
    wanted = [each for each in servers if not arguments.servers or each.name in arguments.servers]
    campaign.measure(commands, folder, out, wanted, size.repeats, tell)
    rows = replay.rows(out, servers)
    cpu = platform.processor() or platform.machine()
    provenance = {
        "what": f"vLLM {environment.VERSION} on {os.cpu_count()} cores ({cpu}), a Llama of 0.25 B, {arguments.date}.",
        "date": arguments.date,
        "vllm": environment.VERSION,
        "command": "python -m calibration.real_server",
    }
    mapping = json.dumps(page.as_mapping(rows, provenance), indent=1) + "\n"
    (out / "comparison.json").write_text(mapping, encoding="utf-8")
    text = page.as_markdown(rows, provenance)
    (out / "comparison.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def measure_kernels(commands: Path, out: Path, budget: str, date: str) -> None:
    """Measure and fit vLLM's kernels for the model on the core that the worker has, if that was not done."""
    kernels = out / "kernels"
    if (kernels / "profile.yaml").is_file():
        return
    tell("kernels")
    bound = ["taskset", "-c", WORKER_CORE] if sys.platform == "linux" else []
    own = ["-m", "simserve", "calibrate"]
    shape = str(out / "model" / "config.json")
    where = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(environment.CHECKOUT)}
    measured = [*bound, str(commands / "python"), *own, "kernels", "--device", "cpu", "--engine", "vllm"]
    measured += ["--model", shape, "--budget", budget, "--out", str(kernels), "--date", date]
    subprocess.run(measured, check=True, env=where)
    fitted = [sys.executable, *own, "fit", str(kernels), "--out", str(kernels / "profile.yaml"), "--force"]
    subprocess.run(fitted, check=True)


def measure_capacities(commands: Path, folder: Path, out: Path, size: campaign.Size) -> dict[int, float]:
    """Return the requests/s that so many clients get, which the rates are shares of."""
    files = {clients: out / f"capacity-{clients:02d}.json" for clients in (campaign.MOST_CLIENTS, campaign.SEATS)}
    missing = {clients: file for clients, file in files.items() if not file.is_file()}
    if missing:
        tell("capacity")
        with served(commands, folder, (), out / "first.log") as address:
            for clients, file in missing.items():
                load = campaign.Load("capacity", size.requests(3 * clients), clients, prompt_tokens=size.prompt_tokens)
                bench(commands, folder, address, load.arguments(5), file)
    return {
        clients: json.loads(file.read_text(encoding="utf-8"))["request_throughput"] for clients, file in files.items()
    }


def tell(text: str) -> None:
    """Say what is done now."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
