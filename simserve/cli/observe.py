"""`simserve observe`: measure a live server, as files that `calibrate serving` and `import bench` read."""

from __future__ import annotations

import json
import os
import shlex
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simserve.cli.options import (
    PAGE,
    Shown,
    argument,
    make_folder,
    option,
    print_lines,
    print_table,
    seconds_of,
    takes_flags,
)
from simserve.cli.progress import progress
from simserve.errors import InputError, InterruptedRunError, UsageError

if TYPE_CHECKING:
    from simserve.observe.measure import Load, Plan, Run
    from simserve.observe.target import Server

DEFAULT_CLIENTS = (2, 16)
"""The two loads that represent 1 to about 32 clients (`simserve.calibrate.loads.inner_clients`)."""
MOST_CLIENTS = 4_096
MOST_RATE = 10_000.0
MOST_LOADS = 20
_LEAST_LENGTH = 0.9
"""Share of the tokens asked for below which answers are told to be shorter."""


@takes_flags(without=PAGE)
def observe(
    url: Annotated[str, argument("Address of the server, such as http://localhost:8000.", metavar="URL")],
    out: Annotated[Path, option("Folder of the results, one file a load.", metavar="DIR")],
    budget: Annotated[str, option("Total time; nothing is sent after it.", metavar="TIME")] = "2 min",
    concurrency: Annotated[
        list[int] | None, option("Measure with this many clients; repeats. Default: 2 and 16.", metavar="N")
    ] = None,
    rate: Annotated[
        list[float] | None, option("Measure at this many requests/s; repeats.", "--rate", metavar="RATE")
    ] = None,
    prompt_tokens: Annotated[int, option("Mean length of prompts.", min=4, max=1_000_000)] = 512,
    output_tokens: Annotated[int, option("Mean length of answers.", min=4, max=100_000)] = 128,
    max_requests: Annotated[
        int,
        option("Most requests in all, besides a dozen of two tokens that find out how to ask.", min=1, max=1_000_000),
    ] = 1_000,
    model: Annotated[str | None, option("Which of the server's models to measure.", metavar="NAME")] = None,
    api_key_env: Annotated[
        str | None, option("Environment variable that holds the API key.", metavar="VARIABLE")
    ] = None,
    seed: Annotated[int, option("Seed of lengths, prompts and arrivals.", min=0)] = 0,
    force: Annotated[bool, option("Replace existing files.", "--force")] = False,
    *,
    shown: Shown,
) -> None:
    """Measure a live OpenAI-compatible server at a few loads. Needs pip install 'simserve\\[observe]'.

    Finds its model, engine and version, sends requests of random tokens to it for the budget's time, lengths 30 %
    around what is asked, and writes one file a load as vllm bench serve does. Says what to do with them.

    simserve observe http://localhost:8000 --out observed --budget 2min
    """
    try:
        import_module("httpx")
    except ImportError:
        raise UsageError("needs httpx", key="observe", remedy="pip install 'simserve[observe]'") from None
    from simserve.observe.measure import Plan
    from simserve.observe.target import address_of

    loads = _loads(concurrency, rate)
    plan = Plan(
        loads=loads,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        budget=seconds_of(budget, "--budget"),
        max_requests=max_requests,
        seed=seed,
    )
    address = address_of(url)
    kept = _Kept(out, [each.name for each in loads], force=force)
    key = _key(api_key_env)
    _measure(address, plan, model, key, kept, quiet=not shown.is_printed)
    shown.tell(kept.summary(address), kept.render)


def _measure(address: str, plan: Plan, model: str | None, key: str | None, kept: _Kept, *, quiet: bool) -> None:
    """Measure, keep each run when it ends, and report if none has an answer."""
    from simserve.observe.measure import observe as measure

    try:
        with progress(is_shown=not quiet) as tell:
            measure(address, plan, model=model, api_key=key, tell=tell, found=kept.found, keep=kept.keep)
    except KeyboardInterrupt:
        files = f"; {', '.join(row['file'] for row in kept.rows)} written" if kept.rows else ""
        raise InterruptedRunError(f"interrupted{files}") from None
    if not kept.rows:
        why = kept.notes[0] if kept.notes else "nothing was sent"
        raise InputError(f"was not measured: {why}", file=address, remedy="allow more time: --budget 10min")


def _loads(concurrency: list[int] | None, rate: list[float] | None) -> list[Load]:
    """Return the loads asked for."""
    from simserve.observe.measure import Load

    for clients in concurrency or ():
        if not 1 <= clients <= MOST_CLIENTS:
            raise UsageError(f"must be 1 to {MOST_CLIENTS:,}", key="--concurrency", value=clients)
    for each in rate or ():
        if not 0 < each <= MOST_RATE:
            raise UsageError(f"must be above 0 and at most {MOST_RATE:,.0f}", key="--rate", value=each)
    closed = concurrency or (() if rate else DEFAULT_CLIENTS)
    loads = [*(Load(concurrency=each) for each in closed), *(Load(rate=each) for each in rate or ())]
    unique = list({each.name: each for each in loads}.values())
    if len(unique) > MOST_LOADS:
        raise UsageError(f"must be at most {MOST_LOADS} loads", key="--concurrency", value=len(unique))
    return unique


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise UsageError("is not set", key="--api-key-env", value=variable, remedy="export it first")
    return key


class _Kept:
    """The folder of the results, and the notes on them."""

    def __init__(self, folder: Path, names: list[str], *, force: bool) -> None:
        self._folder = folder
        self.server: Server | None = None
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        make_folder(folder, [self._file(name).name for name in names], force=force)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def found(self, server: Server) -> None:
        """Note what the server is."""
        self.server = server

    def keep(self, run: Run) -> None:
        """Write a run that has answers, and add notes on it."""
        from simserve.observe.measure import bench_file, held_back

        server, answers, errors = self.server, run.answers, run.errors
        name = run.load.name
        if errors:
            self.notes.append(f"{name}: {len(errors)} of {len(run.exchanges)} requests failed: {errors[0][:160]}")
        if run.cut:
            self.notes.append(f"{name}: {run.cut} requests were in flight when their time was over, and are left out")
        if num_held_back := sum(held_back(answers)):
            self.notes.append(
                f"{name}: {num_held_back} of {len(answers)} answers came in one piece: something on the way holds them "
                "back until they are whole, as a proxy may; their TTFT is that of the last token, and they have no TPOT"
            )
        generated, wanted = sum(each.output_tokens for each in answers), sum(each.asked_tokens for each in answers)
        if generated < _LEAST_LENGTH * wanted:
            lengths = f"{generated / len(answers):.3g} tokens in the mean, {wanted / len(answers):.3g} were asked for"
            self.notes.append(f"{name}: the server ends answers early: {lengths}")
        if not answers or server is None:
            return
        document = bench_file(
            answers,
            backend=server.engine or "openai",
            model=server.model,
            request_rate="inf" if run.load.rate is None else run.load.rate,
            max_concurrency=run.load.concurrency,
            date=time.strftime("%Y%m%d-%H%M%S"),
            failed=len(errors),
        )
        document["server"] = {"engine": server.engine, "version": server.version, "kv": dict(server.kv)}
        file = self._file(name)
        try:
            file.write_text(json.dumps(document) + "\n", encoding="utf-8")
        except OSError as failure:
            raise UsageError(f"cannot be written: {failure.strerror}", file=file) from None
        shown = ("completed", "failed", "duration", "mean_ttft_ms", "mean_tpot_ms", "output_throughput")
        self.rows.append({"load": name, "file": str(file)} | {key: document.get(key) for key in shown})

    def commands(self) -> list[str]:
        """Return what to do next; MODEL and GPU are placeholders for what the server does not report."""
        from simserve.planner.importers.model_names import find_model

        server = self.server
        model = ""
        try:
            find_model(server.model if server is not None else "", self._folder)
        except InputError:
            model = " --model MODEL"
        version = f" --engine-version {shlex.quote(server.version)}" if server is not None and server.version else ""
        # A search in a closed loop cannot go beyond the number of requests.
        longest = shlex.quote(max(self.rows, key=lambda row: row["completed"])["file"])
        return [
            f"simserve import bench {longest} --gpus GPU{model}{version} --out my-server.yaml",
            f"simserve calibrate serving {shlex.quote(str(self._folder))}/*.json --scenario my-server.yaml "
            "--out my-engine.yaml",
            "simserve capacity my-server.yaml --set 'deployment.engine={name: my-engine.yaml}' --slo ttft=1s,tpot=50ms",
        ]

    def summary(self, url: str) -> dict[str, Any]:
        """Return the answer for JSON."""
        server = self.server
        assert server is not None
        return {
            "url": url,
            "model": server.model,
            "engine": server.engine or None,
            "version": server.version or None,
            "max_model_len": server.max_model_len,
            "kv": dict(server.kv),
            "runs": self.rows,
            "notes": self.notes,
            "next": self.commands(),
        }

    def render(self) -> None:
        """Print the answer."""
        server = self.server
        assert server is not None
        engine = f" under {server.engine} {server.version}".rstrip() if server.engine else ""
        print_lines([f"{server.model}{engine}"])
        header = ("load", "answered", "TTFT, ms", "TPOT, ms", "output tokens/s", "file")
        keys = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput")
        rows = [
            (
                row["load"],
                f"{row['completed']:,}",
                *("-" if row[key] is None else f"{row[key]:,.4g}" for key in keys),
                row["file"],
            )
            for row in self.rows
        ]
        print_table(header, rows, "TTFT and TPOT are means over requests, as the client saw them.")
        print_lines(self.notes)
        print_lines(["Next:", *(f"  {command}" for command in self.commands())])
