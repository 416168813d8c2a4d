"""Special kinds of requests in a run, in lines of text and cells, empty if there are none; and all parts of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simserve.metrics.result import RunResult
from simserve.report import facts
from simserve.report.quantities import UNDEFINED, count, counted, dollars, number, share
from simserve.report.tables import Cell, Row
from simserve.units import format_seconds

CLASS_COLUMNS = ("requests", "lost", "TTFT p50", "TTFT p95", "TPOT p95", "E2E p95", "SLO met")
_LATENCIES = ("p50_ttft_ms", "p95_ttft_ms", "p95_tpot_ms", "p95_e2el_ms")  # Figures in the columns of latencies.
_LOST = ("rejected", "timed_out", "failed", "unfinished")  # Statuses that a row of classes counts as lost.


def reasoning_lines(result: RunResult) -> list[str]:
    """Return how long readers waited for the answer, and what the thinking before it cost; empty without thinking."""
    block = result.summary["simserve"].get("reasoning")
    if block is None or block["ttfvt_ms"] is None:
        return []
    times = block["ttfvt_ms"]
    known = (times[name] for name in ("mean", "p50", "p95", "p99"))
    shown = (UNDEFINED if each is None else f"{number(each / 1e3)} s" for each in known)
    lines = [
        "first visible token: {} mean, {} median, {} p95, {} p99 (TTFVT; TTFT counts hidden tokens)".format(*shown),
        f"{share(block['thinking_share'])} of the output tokens are thinking: {count(block['thinking_tokens'])} before "
        f"{count(block['visible_tokens'])} visible ones",
    ]
    dollar = block["usd_per_million_visible_tokens"]
    if dollar is not None:
        lines.append(f"{dollars(dollar)} a million visible tokens")
    if block["num_without_answer"]:
        lines.append(f"{counted(block['num_without_answer'], 'request')} thought up to the limit and answered nothing")
    return lines


def image_lines(result: RunResult) -> list[str]:
    """Return the tokens of images, and the time they take before a first token; empty without images."""
    return _lines(result, "images", "images", "image", ("a request with images", "to scale them"))


def audio_lines(result: RunResult) -> list[str]:
    """Return the tokens of recordings, and the time they take before a first token; empty without them."""
    return _lines(result, "audio", "recordings", "recording", ("a request with audio", "for the spectrogram"))


def _lines(result: RunResult, key: str, many: str, one: str, words: tuple[str, str]) -> list[str]:
    block = result.summary["simserve"].get(key)
    if block is None or not block[many]:
        return []
    whose, prepared = words
    source = "CPU time published" if key == "images" else "CPU time without decoding"
    lines = [
        f"{counted(block[many], one)} in {counted(block['requests'], 'request')}: {count(block['tokens'])} "
        f"tokens, {share(block['token_share'])} of all prompts (estimate: encoder as a roofline, {source})",
        f"{whose}: {number(block['mean_preprocess_ms'])} ms {prepared}, "
        f"{number(block['mean_encoder_ms'])} ms to encode them",
    ]
    if block["encoder_utilization"] is not None:
        workers, most = block["mean_encoders"], block["peak_encoders"]
        size = f", of {number(workers)} workers on average and {most} at most" if workers != most else ""
        lines.append(
            f"in an encoder pool{size}, busy {share(block['encoder_utilization'])}: "
            f"{number(block['mean_encoder_wait_ms'])} ms for a worker, {number(block['mean_transfer_ms'])} ms for the "
            f"embeddings on their way"
        )
    if block["ttft_share"] is not None:
        lines.append(f"together {share(block['ttft_share'])} of TTFT, over all requests")
    return lines


def round_text(result: RunResult) -> str | None:
    """Return the duration and cost of a round, in one line; None if none has finished."""
    rounds = result.summary["simserve"].get("rounds") or {}
    if not rounds.get("finished"):
        return None
    price = "" if rounds["usd_per_round"] is None else f", {dollars(rounds['usd_per_round'])} each"
    return (
        f"{format_seconds(rounds['mean_round_s'])} mean, {format_seconds(rounds['max_round_s'])} the longest; "
        f"{share(rounds['tail_share'])} of it for the last tenth of the answers{price}"
    )


def round_lines(result: RunResult) -> list[str]:
    """Return the figures of the rounds."""
    rounds = result.summary["simserve"].get("rounds") or {}
    text = round_text(result)
    if text is None:
        return []
    return [
        text,
        f"{count(round(rounds['begun']))} begun, {count(round(rounds['finished']))} finished; "
        f"half of the answers after {format_seconds(rounds['mean_half_s'])}",
        f"{share(rounds['generating_share'])} of the time is generating, the rest training and the new weights",
    ]


def speculation_lines(result: RunResult) -> list[str]:
    """Return how many drafts were accepted and how much faster that made decoding; empty without drafts."""
    block = result.summary["simserve"]["speculation"]
    if block["method"] is None:
        return []
    drafter = block["draft_model"] or block["method"]
    ahead = f"{drafter} drafts {counted(block['num_speculative_tokens'], 'token')} ahead"
    if not block["num_drafts"]:
        return [f"{ahead}; no request decoded"]
    length = number(block["mean_acceptance_length"])
    break_even = block["break_even_batch"]
    turning = "no batch is large enough to make it slower"
    if break_even is not None:
        turning = f"slower than without from {counted(break_even, 'sequence')} on"
    times = f"{number(block['decode_speedup'])}x as fast as without drafts"
    return [
        f"{ahead}: {length} tokens a step on average, {share(block['acceptance_rate'])} of the drafts accepted",
        f"steps that only decode: {times} at the mean batch of {number(block['mean_batch'])}; {turning}",
        "the tokens of a step arrive together: ITL is the gap between steps, TPOT that between tokens",
    ]


def task_text(result: RunResult) -> str | None:
    """Return the duration and cost of a task, in one line; None if none has finished."""
    tasks = result.summary["simserve"].get("tasks") or {}
    if not tasks.get("finished"):
        return None
    price = "" if tasks["usd_per_task"] is None else f", {dollars(tasks['usd_per_task'])} each"
    return (
        f"{format_seconds(tasks['mean_makespan_s'])} mean, {format_seconds(tasks['p95_makespan_s'])} p95; "
        f"{share(tasks['model_share'])} of it blocked on the model; {number(tasks['calls_per_task'])} calls{price}"
    )


def task_lines(result: RunResult) -> list[str]:
    """Return the figures of the tasks."""
    tasks = result.summary["simserve"].get("tasks") or {}
    text = task_text(result)
    if text is None:
        return []
    failed = f", {count(round(tasks['failed']))} failed" if tasks["failed"] else ""
    if tasks["cancelled"]:
        wasted = "" if tasks["cancelled_usd"] is None else f" and {dollars(tasks['cancelled_usd'])}"
        failed += (
            f", {count(round(tasks['cancelled']))} cancelled after {count(tasks['cancelled_tokens'])} tokens{wasted}"
        )
    model, tools = format_seconds(tasks["mean_model_s"]), format_seconds(tasks["mean_tool_s"])
    prompts, outputs = (count(round(tasks[f"{kind}_tokens_per_task"])) for kind in ("input", "output"))
    lines = [
        text,
        f"{count(round(tasks['begun']))} begun, {count(round(tasks['finished']))} finished{failed}; "
        f"{number(tasks['task_throughput'] * 3600)} an hour",
        f"blocked on the model {model}, on tools {tools}",
        f"{prompts} prompt tokens and {outputs} output tokens each",
    ]
    if tasks["attainment"] is not None:
        lines.append(f"{share(tasks['attainment'])} in time")
    return lines


def class_rows(result: RunResult) -> list[Row]:
    """Return a row per class with the cells of `CLASS_COLUMNS`; empty without classes."""
    classes: Mapping[str, Mapping[str, Any]] = result.summary["simserve"]["classes"]
    return [_row(name, figures) for name, figures in classes.items()]


def _row(name: str, figures: Mapping[str, Any]) -> Row:
    key = f"simserve.classes.{name}"
    lost = sum(figures[status] for status in _LOST)
    attainment = figures["slo"]["attainment"]
    return Row(
        name,
        "",
        (
            Cell(f"{key}.submitted", figures["submitted"], count(figures["submitted"])),
            Cell("", lost, count(lost)),
            *(Cell(f"{key}.{each}", figures[each], _time(figures[each])) for each in _LATENCIES),
            Cell(f"{key}.slo.attainment", attainment, share(attainment)),
        ),
    )


def _time(milliseconds: float | None) -> str:
    return UNDEFINED if milliseconds is None else format_seconds(milliseconds / 1000)


PARTS: Mapping[str, Callable[[RunResult], list[str]]] = {
    "Throughput": facts.throughput_lines,
    "Users": facts.user_lines,
    "Tasks": task_lines,
    "Rounds": round_lines,
    "Memory": facts.memory_lines,
    "Dollars": facts.cost_lines,
    "Energy": facts.energy_lines,
    "Step time": facts.step_lines,
    "Speculation": speculation_lines,
    "Reasoning": reasoning_lines,
    "Images": image_lines,
    "Audio": audio_lines,
    "Queue": facts.waiting_lines,
    "Front": facts.gateway_lines,
    "Admission": facts.admission_lines,
    "Fleet": facts.fleet_lines,
    "Stream": facts.stream_lines,
}
"""What a run tells besides its latencies, in reading order: a label, and the function that returns its lines."""
