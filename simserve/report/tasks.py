"""Agents' tasks in lines of text: makespans, what they wait for, calls, tokens and dollars. Empty without tasks."""

from __future__ import annotations

from simserve.metrics.result import RunResult
from simserve.report.quantities import count, dollars, number, share
from simserve.units import format_seconds


def task_text(result: RunResult) -> str | None:
    """Return what a task takes and costs, in one line; None where none has finished."""
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
