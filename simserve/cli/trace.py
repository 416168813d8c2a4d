"""`simserve trace`: what is in a trace, and a scenario with traffic like it."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simserve.cli.importing import ForceOption, named_gpu, on_gpus
from simserve.cli.one_line import ColumnsOption
from simserve.cli.options import PAGE, Shown, argument, console, option, print_table, takes_flags, write_all
from simserve.cli.progress import progress
from simserve.errors import UsageError

if TYPE_CHECKING:
    from simserve.workload.traces.media import RecordedMedia
    from simserve.workload.traces.trace import Trace
    from simserve.workload.traces.usage import Usage

FormatOption = Annotated[
    str,
    option(
        "auto, azure, csv, mooncake, burstgpt, bailian, sharegpt, vllm-bench, vllm-timed, otel, agentic-mooncake, "
        "aiperf-messages, aiperf-conversations, dynamo, weka or columns.",
        "--format",
        metavar="FORMAT",
    ),
]
TraceModelOption = Annotated[str | None, option("With --scenario: its model.")]
_MOST_MODELS = 4  # Most models of a usage export that are named.


@takes_flags(without=PAGE)
def trace(
    file: Annotated[Path, argument("The trace, plain, gzip or Parquet.", metavar="FILE", readable=False)],
    trace_format: FormatOption = "auto",
    columns: ColumnsOption = None,
    scenario: Annotated[
        Path | None, option("Also write a scenario with traffic like it.", "--scenario", metavar="OUT.yaml")
    ] = None,
    model: TraceModelOption = None,
    hardware: Annotated[
        str | None, option("With --scenario: its GPUs, such as 2xH100.", "--gpus", "--hardware", metavar="[Nx]NAME")
    ] = None,
    force: ForceOption = False,
    *,
    shown: Shown,
) -> None:
    """Say what is in a trace (rate, burstiness, lengths, shared prefixes), and write a scenario like it.

    Of an export of usage, with sums by hour or by day, it says what a month comes to and which command prices it.

    simserve trace traffic.csv --scenario like-it.yaml

    simserve trace usage.csv

    simserve trace log.jsonl --columns arrival_time=sent,prompt_tokens=tokens_in,output_tokens=tokens_out
    """
    from simserve.planner.importers.trace import fitted_scenario
    from simserve.planner.one_line import trace_columns
    from simserve.workload.traces.formats import AUTO, COLUMNS, check_format, detect, read_trace
    from simserve.workload.traces.table import find_file

    if scenario is None and (model is not None or hardware is not None):
        given = "--model" if model is not None else "--gpus"
        raise UsageError("has no effect without --scenario", key=given, remedy="add --scenario OUT.yaml")
    path = find_file(str(file), takes_folder=True)
    check_format(trace_format)
    named = trace_columns(columns, trace_format)
    with progress(is_shown=not shown.quiet, label="reading"):
        used = _usage(path) if trace_format == AUTO and not named else None
    if used is not None:
        if scenario is not None:
            remedy = "price it with the command that is printed without --scenario"
            raise UsageError("needs a trace of single requests", key="--scenario", value=str(scenario), remedy=remedy)
        answer = {"file": str(file), "format": "usage", **used.as_mapping(), "command": _pricing(used)}
        shown.tell(answer, lambda: _show_usage(answer))
        return
    with progress(is_shown=not shown.quiet, label="reading"):
        known = COLUMNS if named else detect(path) if trace_format == AUTO else trace_format
        read = read_trace(path, known, named)
        answer = _answer(read, file, known)
    if scenario is not None:
        gpu, count = named_gpu(hardware)
        draft, files = fitted_scenario(path, read, model=model, hardware=gpu, name=scenario.stem)
        draft = on_gpus(draft, count, is_laid_out=False)
        texts = {scenario.parent / name: text for name, text in files.items()} | {scenario: draft.text}
        write_all(texts, force=force)
        answer |= {"scenario": str(scenario), "notes": list(draft.notes)}
    shown.tell(answer, lambda: _show(answer, columns))


def _usage(path: Path) -> Usage | None:
    """Return what an export of usage comes to; None where the file is something else."""
    from simserve.workload.traces.columns import header_of
    from simserve.workload.traces.table import read_text
    from simserve.workload.traces.usage import is_usage, read_buckets, read_usage, usage_columns

    text = "" if path.is_dir() else read_text(path).lstrip()
    if text[:1] in ("[", "{"):
        return read_buckets(path)
    names = header_of(text) if text else []
    columns = usage_columns(names)
    return None if columns is None or not is_usage(path, names) else read_usage(path, columns)


def _pricing(used: Usage) -> str | None:
    """Return the command that prices a month like it; None where its days are not known."""
    month = used.requests_per_month
    if month is None:
        return None
    lengths = [f"{max(round(each), 1)}" for each in (used.mean_prompt_tokens, used.mean_output_tokens)]
    words = ["simserve", "cost", "MODEL", "--gpus", "GPU", "--api", "API", "--rate", f"{round(month)}/month"]
    words += ["--prompt-tokens", lengths[0], "--output-tokens", lengths[1]]
    if used.hourly is not None:
        hours = ", ".join(f"{each:.4g}" for each in used.hourly)
        words += ["--set", f"pricing.daily={{rate_is: mean, hourly: [{hours}]}}"]
    return shlex.join(words)


def _show_usage(answer: dict[str, Any]) -> None:
    from simserve.units import SECONDS_PER_HOUR, SECONDS_PER_MONTH

    out, month, hourly = console(), answer["requests_per_month"], answer["hourly"]
    days = "" if answer["days"] is None else f" of {answer['days']} day{'' if answer['days'] == 1 else 's'}"
    lines = [f"{answer['requests']:,} requests in {answer['rows']:,} rows{days}: each row is a sum, not a request"]
    if month is not None:
        rate = f"{month:,.0f} in a month of 30 days, {_figure(month / SECONDS_PER_MONTH)} a second on average"
        busiest = (
            "" if hourly is None else f", {_figure(max(hourly) / SECONDS_PER_HOUR)} in the busiest hour of a mean day"
        )
        lines.append(rate + busiest)
    lengths = [f"{_figure(answer[key]['mean'])}" for key in ("prompt_tokens", "output_tokens")]
    totals = [_tokens(answer[key]["total"]) for key in ("prompt_tokens", "output_tokens")]
    lines.append(f"{lengths[0]} prompt and {lengths[1]} output tokens a request; {totals[0]} and {totals[1]} in all")
    if answer["cached_share"]:
        lines.append(f"{answer['cached_share']:.0%} of the prompt tokens were found in the API's cache, and cost less")
    if len(answer["models"]) > 1:
        shares = [f"{name or 'no name'} {count / answer['requests']:.0%}" for name, count in answer["models"].items()]
        more = f" and {len(shares) - _MOST_MODELS} more" if len(shares) > _MOST_MODELS else ""
        lines.append(f"Of several models, {', '.join(shares[:_MOST_MODELS])}{more}: price each from its own rows alone")
    for place, line in enumerate(lines):
        out.print(line, style="bold" if place == 0 else None, markup=False)
    if answer["command"] is None:
        out.print("Without dates no month is known: add a column date", markup=False)
        return
    out.print(f"To price a month of it: {answer['command']}", markup=False, soft_wrap=True)
    out.print("All its requests then have these mean lengths; a log of single requests would say more", markup=False)


def _tokens(total: int) -> str:
    """Return a sum of tokens: in millions from one million on, else as it is counted."""
    return f"{total / 1e6:,.1f} M" if total >= 1e6 else f"{total:,}"


def _answer(read: Trace, file: Path, known: str) -> dict[str, Any]:
    from simserve.workload.traces.statistics import arrival_statistics, length_statistics, task_statistics

    arrivals, tasks = arrival_statistics(read.arrival_time), task_statistics(read)
    return {
        "file": str(file),
        "format": known,
        "requests": len(read.prompt_tokens),
        "unserved": read.num_unserved,
        "remark": read.remark,
        "arrivals": None if arrivals is None else asdict(arrivals),
        "prompt_tokens": length_statistics(read.prompt_tokens).as_mapping(),
        "output_tokens": length_statistics(read.output_tokens).as_mapping(),
        "prefixes": _prefixes(read),
        "sessions": None if read.session is None else len(set(read.session.tolist())),
        "tasks": None if tasks is None else tasks.as_mapping(),
        "images": _media(read.images),
        "audio": _media(read.audio),
    }


def _prefixes(read: Trace) -> dict[str, Any] | None:
    blocks = read.prefix_blocks
    if blocks is None:
        return None
    return {
        "block_tokens": blocks.block_tokens,
        "blocks": len(blocks.ids),
        "distinct_blocks": blocks.num_distinct,
        "reuse": blocks.reuse,
    }


def _media(recorded: RecordedMedia | None) -> dict[str, float] | None:
    """Return the number of requests with images or recordings, and of these; for recordings also their length."""
    if recorded is None:
        return None
    counts, sizes = recorded.counts, recorded.sizes
    block: dict[str, float] = {"requests": int((counts > 0).sum()), "pieces": int(counts.sum())}
    if sizes is None or not len(sizes):
        return block
    if sizes.shape[1] == 1:
        return block | {"mean_seconds": float(sizes[:, 0].mean())}
    frames = sizes[:, 2].clip(min=1)
    pixels = sizes[:, 0] * sizes[:, 1] * frames  # for a video, those of all frames
    return block | {"mean_megapixels": float(pixels.mean() / 1e6)}


def _show(answer: dict[str, Any], columns: str | None) -> None:
    from simserve.report.quantities import counted
    from simserve.units import format_seconds

    out = console()
    arrivals, prefixes = answer["arrivals"], answer["prefixes"]
    head, bursts = "", "The format holds no arrival times: give a scenario its own workload.arrivals"
    if arrivals is not None and not arrivals["span_s"]:
        head, bursts = " at one moment", "That is too little for a rate or burstiness"
    elif arrivals is not None:
        rates = f"{_figure(arrivals['mean_rate'])} a second on average, {_figure(arrivals['peak_rate'])}"
        head = f" over {format_seconds(arrivals['span_s'])}: {rates} in the busiest minute"
        bursts = _burstiness(arrivals)
    out.print(f"[bold]{counted(answer['requests'], 'request')}{head}[/bold]")
    out.print(bursts)
    lengths = [(key, answer[key]) for key in ("prompt_tokens", "output_tokens")]
    names = [name for name in lengths[0][1] if name != "total"]
    rows = [(key.replace("_", " "), *(_figure(block[name]) for name in names)) for key, block in lengths]
    print_table(("", *names), rows)
    prompts, outputs = answer["prompt_tokens"]["total"], answer["output_tokens"]["total"]
    out.print(f"{prompts:,} prompt tokens and {outputs:,} output tokens in all; format {answer['format']}")
    if prefixes is not None:
        out.print(
            f"{prefixes['reuse']:.1%} of {prefixes['blocks']:,} prefix blocks of {prefixes['block_tokens']} tokens "
            "were there before: what an endless prefix cache would hit"
        )
    if answer["tasks"] is not None:
        out.print(_tasks(answer["tasks"], answer["requests"]))
    elif answer["sessions"] is not None:
        out.print(f"{answer['sessions']:,} conversations")
    for key, noun in (("images", "image"), ("audio", "recording")):
        if answer[key] is not None:
            out.print(_media_line(answer[key], noun))
    if answer["unserved"]:
        rows_left = "1 further row is" if answer["unserved"] == 1 else f"{answer['unserved']:,} further rows are"
        out.print(f"{rows_left} left out: nothing was served")
    if answer["remark"] is not None:
        out.print(answer["remark"], markup=False)
    if "scenario" in answer:
        out.print(f"{answer['scenario']}: traffic like it")
        for note in answer["notes"]:
            out.print(f"- {note}", markup=False, soft_wrap=True)
    elif arrivals is not None:
        named = () if columns is None else ("--columns", columns)
        command = shlex.join(["simserve", "run", "MODEL", "--gpus", "GPU", "--trace", answer["file"], *named])
        out.print(f"To replay it: {command}", markup=False, soft_wrap=True)
        out.print("At twice its load: --set workload.trace.time_scale=0.5", markup=False, soft_wrap=True)


def _media_line(block: dict[str, float], noun: str) -> str:
    from simserve.report.quantities import counted

    text = f"{counted(int(block['pieces']), noun)} in {counted(int(block['requests']), 'request')}"
    if "mean_seconds" in block:
        text += f", of {_figure(block['mean_seconds'])} s in the mean"
    if "mean_megapixels" in block:
        text += f", of {_figure(block['mean_megapixels'])} megapixels in the mean"
    return text


def _burstiness(arrivals: dict[str, float]) -> str:
    cv, dispersion = arrivals["interarrival_cv"], arrivals["dispersion_index"]
    text = f"Burstiness: times between requests have a cv of {_figure(cv)} (Poisson: 1)"
    if not math.isnan(dispersion):
        text += f", requests a minute a dispersion of {_figure(dispersion)} (Poisson: 1)"
    return text


def _tasks(tasks: dict[str, Any], num_calls: int) -> str:
    from simserve.report.quantities import counted

    text = f"{counted(tasks['tasks'], 'task')} of agents, {_figure(num_calls / tasks['tasks'])} calls each on average"
    if tasks["subagent_share"]:
        text += f", {_figure(tasks['calls'])} of them the main agent's"
    if not math.isnan(tasks["tool_time_s"]):
        text += f", {_figure(tasks['tool_time_s'])} s of tools between them (cv {_figure(tasks['tool_time_cv'])})"
    if tasks["subagent_share"]:
        text += f"; {tasks['subagent_share']:.0%} of the calls start sub-agents, {_figure(tasks['subagents'])} at once "
        text += f"with {_figure(tasks['subagent_calls'])} calls each"
        if not math.isnan(tasks["fork_share"]):
            text += f", {tasks['fork_share']:.0%} of them forks"
    return text


def _figure(value: float) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
