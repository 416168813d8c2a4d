"""`simserve import`: scenarios and profiles from the files and commands of other tools."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from simserve.cli.metrics_source import Scraping, Source
from simserve.cli.one_line import ColumnsOption
from simserve.cli.options import (
    JsonOption,
    QuietOption,
    SetOption,
    argument,
    option,
    print_json,
    print_lines,
    takes_flags,
    write_all,
)
from simserve.errors import ScenarioError, UsageError

if TYPE_CHECKING:
    from simserve.planner.importers.draft import Draft
    from simserve.planner.importers.engine_log import LogImport
    from simserve.scenario.schema import Scenario

app = typer.Typer(
    help="Make a scenario or a profile of a command line, a log, metrics, a configuration, a benchmark or a trace.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",  # the default of newer releases only
)

OutFileOption = Annotated[Path | None, option("Write it there. Default: to stdout.", "--out", metavar="FILE")]
ForceOption = Annotated[bool, option("Replace an existing file.", "--force")]
CommandArgument = Annotated[str, argument("The command in quotes, a file that holds it, or - for stdin.")]
HardwareOption = Annotated[str | None, option("Its GPUs, such as 2xH100.", "--gpus", "--hardware", metavar="[Nx]NAME")]
ModelOption = Annotated[str | None, option("Model profile or config.json, where the name is near to none.")]
EngineVersionOption = Annotated[str | None, option("The engine's version, such as 0.12.", metavar="VERSION")]
Imported = TypeVar("Imported")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Where an imported scenario goes: a group of flags of `takes_flags`."""

    out: OutFileOption = None
    force: ForceOption = False
    as_json: JsonOption = False
    quiet: QuietOption = False

    @property
    def is_printed(self) -> bool:
        """Whether the scenario is printed on stdout for people."""
        return not (self.as_json or self.quiet)

    @property
    def stem(self) -> str | None:
        """Name of the file without its ending; None without a file."""
        return None if self.out is None else self.out.stem

    @property
    def folder(self) -> Path | None:
        """Where the file goes; None without a file."""
        return None if self.out is None else self.out.parent

    def deliver(
        self, draft: Draft, *, measured: Mapping[str, float] | None = None, files: Mapping[str, str] | None = None
    ) -> None:
        """Write or print a scenario, with notes for its reader.

        Args:
            measured: Figures measured along with it; None without any.
            files: Further files, written beside it.

        Raises:
            UsageError: The file exists already, or cannot be written.
            ScenarioError: The keys are not a valid scenario.
        """
        _ = draft.scenario  # an invalid scenario is not written
        if self.out is not None:
            beside = {self.out.parent / name: text for name, text in (files or {}).items()}
            write_all(beside | {self.out: draft.text}, force=self.force)
        if self.as_json:
            print_json(
                {
                    "scenario": dict(draft.mapping),
                    "notes": list(draft.notes),
                    "file": None if self.out is None else str(self.out),
                    **({} if measured is None else {"measured": dict(measured)}),
                }
            )
        elif self.out is None:
            sys.stdout.write(draft.text)
        elif not self.quiet:
            print_lines([f"{self.out}: {draft.title}", *(f"- {note}" for note in draft.notes)])
            print(f"simserve run {self.out}")


def named_gpu(text: str | None) -> tuple[str | None, int | None]:
    """Return the catalogue name and the number of the GPUs in ``--gpus 2xH100``; None for what is not given.

    Raises:
        UsageError: There is no name, or no GPU.
        ProfileError: There is no such GPU; the message names the closest.
    """
    from simserve.planner.one_line import gpu_and_count

    return (None, None) if text is None else gpu_and_count(text)


def on_gpus(draft: Draft, count: int | None, *, is_laid_out: bool) -> Draft:
    """Return a scenario on the number of GPUs given with ``--gpus``.

    Args:
        count: Number of GPUs; None if not given.
        is_laid_out: Whether the import states how the model is laid out on its GPUs; else it is tensor parallel.

    Raises:
        UsageError: The import states another number.
    """
    if count is None:
        return draft
    if not is_laid_out:
        deployment = {**draft.mapping["deployment"], "tensor_parallel_size": count}
        return replace(draft, mapping={**draft.mapping, "deployment": deployment})
    found = draft.scenario.deployment.num_gpus
    if found != count:
        rule = f"is another number than the {found} that what is imported runs on"
        remedy = "name the GPU alone: --gpus NAME"
        raise UsageError(rule, key="--gpus", value=count, remedy=remedy)
    return draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What an import may not state: a group of flags of `takes_flags`."""

    hardware: HardwareOption = None
    model: ModelOption = None
    engine_version: EngineVersionOption = None

    @property
    def num_gpus(self) -> int | None:
        """The number in ``--gpus 2xH100``; None if there is none."""
        return named_gpu(self.hardware)[1]

    def read(self, read: Callable[..., Imported], *source: Any, **more: Any) -> Imported:
        """Return what an importer makes of its source with these flags."""
        gpu, _ = named_gpu(self.hardware)
        return read(*source, hardware=gpu, version=self.engine_version, model=self.model, **more)


def _deliver_line(engine: str | None, command: str, deployed: Deployed, delivery: Delivery) -> None:
    """Write or print the scenario of a line that starts a server, with a note if its engine does not start with it.

    Args:
        engine: Engine whose line it is; None: of whichever it starts.
        command: The line, or the file that holds it.
        deployed: What it may not state.
    """
    from simserve.planner.importers.command import PROGRAMS, import_command, refused_note
    from simserve.planner.importers.server import import_line

    text = _text_of(command)
    read = import_command if engine is None else partial(import_line, PROGRAMS[engine])
    draft = on_gpus(deployed.read(read, text), deployed.num_gpus, is_laid_out=True)
    note = refused_note(text, draft.scenario)
    delivery.deliver(draft if note is None else replace(draft, notes=(note, *draft.notes)))


@app.command("vllm-command")
@takes_flags()
def vllm_command(command: CommandArgument, deployed: Deployed, *, delivery: Delivery) -> None:
    """Make a scenario of a pasted vllm serve line; what it cannot hold is named.

    simserve import vllm-command 'vllm serve meta-llama/Llama-3.1-8B -tp 2' --gpus 2xH100 --out pasted.yaml
    """
    _deliver_line("vllm", command, deployed, delivery)


@app.command("sglang-command")
@takes_flags()
def sglang_command(command: CommandArgument, deployed: Deployed, *, delivery: Delivery) -> None:
    """Make a scenario of a pasted sglang.launch_server line; what it cannot hold is named.

    simserve import sglang-command 'python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2' --out pasted.yaml
    """
    _deliver_line("sglang", command, deployed, delivery)


@app.command("trtllm-command")
@takes_flags()
def trtllm_command(command: CommandArgument, deployed: Deployed, *, delivery: Delivery) -> None:
    """Make a scenario of a pasted trtllm-serve line and its options file; what it cannot hold is named.

    simserve import trtllm-command 'trtllm-serve Qwen/Qwen3-8B --tp_size 2' --gpus 2xH100 --out pasted.yaml
    """
    _deliver_line("tensorrt-llm", command, deployed, delivery)


@app.command("command")
@takes_flags()
def any_command(command: CommandArgument, deployed: Deployed, *, delivery: Delivery) -> None:
    """Make a scenario of a pasted line that starts a server, of whichever engine: TGI, LMDeploy, llama.cpp, Ollama too.

    simserve import command 'llama-server -hf unsloth/Qwen3-8B-GGUF -c 32768 -np 8' --gpus 4090 --out pasted.yaml
    """
    _deliver_line(None, command, deployed, delivery)


@app.command("manifest")
@takes_flags()
def manifest(
    files: Annotated[
        list[Path],
        argument(
            "Kubernetes manifests, a Compose file, values of llm-d or of vLLM's production stack, a configuration of "
            "Ray Serve; or the scripts that start servers and their router, with the files that these read.",
            metavar="FILE...",
            readable=False,
        ),
    ],
    deployed: Deployed,
    *,
    delivery: Delivery,
) -> None:
    """Make a scenario of a deployment: its servers, their number and roles, and what scales them.

    simserve import manifest cold-start.yaml --out cluster.yaml
    """
    from simserve.documents import read_text
    from simserve.planner.importers.manifest import import_manifest

    texts = [read_text(file, ScenarioError) for file in files]
    draft = deployed.read(import_manifest, texts, names=[file.name for file in files])
    delivery.deliver(on_gpus(draft, deployed.num_gpus, is_laid_out=True))


@app.command("log")
@takes_flags()
def log(
    file: Annotated[Path, argument("The log, plain or gzip.", metavar="FILE", readable=False)],
    scenario: Annotated[
        str | None, option("What the log's settings are put into.", "--scenario", metavar="SCENARIO")
    ] = None,
    *,
    deployed: Deployed,
    set_: SetOption = None,
    delivery: Delivery,
) -> None:
    """Read the settings, and the size of the KV cache, from a log of vLLM, SGLang, TensorRT-LLM or llama.cpp.

    Prints them as options of other commands, and how far simserve's own estimate is from them; --out writes a scenario.

    simserve import log server.log --scenario mine.yaml --out as-logged.yaml
    """
    from simserve.planner.importers.engine_log import import_log

    found = deployed.read(import_log, file, scenario=_loaded(scenario, set_), folder=delivery.folder)
    if found.draft is not None:
        on_gpus(found.draft, deployed.num_gpus, is_laid_out=True)
    if (out := delivery.out) is not None:
        if found.draft is None:
            raise UsageError("needs a model: the log does not say it", key="--out", remedy="name it with --model")
        write_all({out: found.draft.text}, force=delivery.force)
    if delivery.as_json:
        print_json(_log_answer(found) | {"file": None if out is None else str(out)})
    elif not delivery.quiet:
        _print_log(found, file, out)


def _loaded(scenario: str | None, overrides: list[str] | None) -> Scenario | None:
    """Return the scenario named with ``--scenario``; None without one."""
    from simserve.scenario.load import load

    if scenario is not None:
        return load(scenario, overrides or ())
    if overrides:
        raise UsageError("needs a scenario to override", key="--set", remedy="name one with --scenario")
    return None


def _log_answer(found: LogImport) -> dict[str, Any]:
    reading, kv = found.log.reading, found.log.kv
    return {
        "engine": reading.engine,
        "version": reading.version,
        "model": reading.model,
        "settings": found.log.settings,
        "kv": asdict(kv),
        "estimate": None
        if found.estimated_tokens is None
        else {"tokens": found.estimated_tokens, "difference": found.difference},
        "scenario": None if found.draft is None else dict(found.draft.mapping),
        "served": None if found.log.served is None else asdict(found.log.served),
        "notes": list(found.notes),
        "unread_lines": found.log.num_unread_lines,
    }


def _print_log(found: LogImport, file: Path, out: Path | None) -> None:
    reading, kv = found.log.reading, found.log.kv
    version = "" if reading.version is None else f" {reading.version}"
    print(f"{file}: {reading.engine}{version}" + ("" if reading.model is None else f", {reading.model}"))
    room = [
        f"{value:,}{unit}"
        for value, unit in ((kv.tokens, " tokens"), (kv.blocks, f" blocks of {kv.block_size}"))
        if value is not None and unit != " blocks of 1"
    ]
    if kv.bytes is not None:
        room.append(f"{kv.bytes / 2**30:.2f} GiB" + ("" if reading.engine == "llama.cpp" else " a GPU"))
    if room:
        print(f"KV cache: {', '.join(room)}")
    if found.difference is not None and found.estimated_tokens is not None:
        percent = abs(found.difference) * 100
        word = "fewer" if found.difference < 0 else "more"
        print(f"This server has {percent:.1f} % {word} KV tokens than simserve estimates ({found.estimated_tokens:,}).")
    for key, value in found.log.settings.items():
        print(f"--set {key}={shlex.quote(json.dumps(value) if isinstance(value, bool | list) else str(value))}")
    for note in found.notes:
        print(f"- {note}")
    if out is not None:
        print(f"simserve run {out}")


def _text_of(command: str) -> str:
    if command == "-":
        return sys.stdin.read()
    path = Path(command)
    try:
        is_file = path.is_file()
    except OSError:  # a command line is too long for a file name
        is_file = False
    if not is_file:
        return command
    from simserve.documents import read_text

    return read_text(path, ScenarioError)


@app.command("hf-config")
@takes_flags()
def hf_config(
    config: Annotated[Path, argument("A Hugging Face config.json, or its folder.", metavar="PATH", readable=False)],
    *,
    delivery: Delivery,
) -> None:
    """Make a model profile of a Hugging Face config.json, or of the folder that holds it; its name is the file's."""
    from simserve.planner.importers.hf_config import import_hf_config

    out = delivery.out
    profile, text = import_hf_config(config, delivery.stem)
    if out is not None:
        write_all({out: text}, force=delivery.force)
    if delivery.as_json:
        print_json({"profile": profile.model_dump(mode="json"), "file": None if out is None else str(out)})
    elif out is None:
        sys.stdout.write(text)
    elif not delivery.quiet:
        print(f"{out}: {text.splitlines()[0].removeprefix('# ')}")
        print(f"in a scenario: model: {out}")


@app.command("bench")
@takes_flags()
def bench(
    file: Annotated[
        Path,
        argument(
            "A result of vllm bench serve, SGLang, AIPerf, GuideLLM, inference-perf or llm-d, a documented CSV, "
            "or the text that the first two print.",
            metavar="FILE",
            readable=False,
        ),
    ],
    scenario: Annotated[
        str | None,
        option("What served it, and lengths and load that the file lacks.", "--scenario", metavar="SCENARIO"),
    ] = None,
    run: Annotated[int | None, option("Which run of a file that holds several.", metavar="N")] = None,
    *,
    deployed: Deployed,
    set_: SetOption = None,
    delivery: Delivery,
) -> None:
    """Make a scenario with the workload that a benchmark measured, and say what was measured.

    A result that lists its requests is replayed one by one: their trace is written beside --out.

    simserve import bench profile_export_aiperf.json --scenario mine.yaml --out measured.yaml
    """
    from simserve.planner.importers.bench import import_bench

    served = _loaded(scenario, set_)
    found = deployed.read(import_bench, file, scenario=served, run=run, name=delivery.stem, folder=delivery.folder)
    draft = on_gpus(found.draft, deployed.num_gpus, is_laid_out=scenario is not None)
    if found.files and delivery.out is None and not delivery.as_json:
        raise UsageError("is missing: a detailed result needs a trace file beside the scenario", key="--out")
    delivery.deliver(draft, measured=found.measured, files=found.files)
    if delivery.out is not None and delivery.is_printed:
        fitted = delivery.out.with_stem(f"{delivery.out.stem}-server").with_suffix(".yaml")
        words = ["simserve", "calibrate", "serving", str(file), "--scenario", str(delivery.out), "--out", str(fitted)]
        print_lines(["To compare it with what was measured, and to fit it to that:"])
        print(shlex.join(words))


@app.command("trace")
@takes_flags()
def trace(
    file: Annotated[Path, argument("The trace, plain or gzip.", metavar="FILE", readable=False)],
    trace_format: Annotated[
        str, option("As of simserve trace; auto tells it by the first row.", "--format", metavar="FORMAT")
    ] = "auto",
    columns: ColumnsOption = None,
    hardware: HardwareOption = None,
    model: ModelOption = None,
    *,
    delivery: Delivery,
) -> None:
    """Make a scenario that replays a trace; simserve trace FILE --scenario draws traffic like it instead."""
    from simserve.planner.importers.trace import replay_scenario
    from simserve.planner.one_line import trace_columns
    from simserve.workload.traces.formats import check_format
    from simserve.workload.traces.table import find_file

    check_format(trace_format)
    named = trace_columns(columns, trace_format)
    path = find_file(str(file))
    out = delivery.out
    shown = str(file) if out is None else os.path.relpath(path.resolve(), out.resolve().parent)
    gpu, count = named_gpu(hardware)
    draft = replay_scenario(path, trace_format, model=model, hardware=gpu, shown=shown, columns=named)
    delivery.deliver(on_gpus(draft, count, is_laid_out=False))


@app.command("metrics")
@takes_flags()
def metrics(
    source: Annotated[
        str,
        argument(
            "A saved page of /metrics, a file or folder of several, the answer of a Prometheus server, or the "
            "address of an engine or of a Prometheus server.",
            metavar="SOURCE",
        ),
    ],
    gpus: Annotated[str | None, option("GPUs of one engine, such as 2xH100.", metavar="[Nx]NAME")] = None,
    model: ModelOption = None,
    engine_version: EngineVersionOption = None,
    *,
    scraping: Scraping,
    delivery: Delivery,
) -> None:
    """Make a scenario of what a running vLLM, SGLang or TensorRT-LLM counts at /metrics: its settings and its traffic.

    One scrape gives lengths and, where it says since when it counts, the mean rate; several give rates over time. An
    address needs pip install 'simserve\\[observe]'; a server that asks for a key gets the environment's
    SIMSERVE_METRICS_TOKEN.

    simserve import metrics http://localhost:8000/metrics --for 5min --gpus H100 --out observed.yaml
    """
    from simserve.observe.windows import observed
    from simserve.planner.importers.metrics import import_metrics

    found = Source(source, scraping, quiet=not delivery.is_printed)
    seen = observed(found.scrapes(), source)
    answer = import_metrics(
        seen, source, gpus=gpus, model=model, version=engine_version or found.version, stem=delivery.stem
    )
    delivery.deliver(answer.draft, measured=answer.measured, files=answer.files)
