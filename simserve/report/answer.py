"""The answer of a run in one sentence, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from simserve.metrics.result import RunResult
from simserve.metrics.throughput import PARTS
from simserve.report.preemption import preemption_statement
from simserve.report.quantities import count, counted, dollars, listed, number, share
from simserve.units import HOURS_PER_MONTH, parse

Verdict = Literal["holds", "missed", "none"]

_OBVIOUS = ("failed", "rejected", "timed_out", "unfinished", "timeout")  # Reasons that repeat the status.
_MOST_GAVE_UP = 0.5  # If clients gave up more than this share of the requests, the latencies of the others say little.
_CLOSED = {
    "budget": "clients ask at the same time: latencies include waiting for the prompts of others",
    "seats": "more clients than are served at once: every latency includes queueing",
    "blocks": "the KV cache holds fewer requests than there are clients: every latency includes queueing",
}
"""What a closed loop waits for most (`waiting_shares`) -> the caveat; the first one also applies to all else."""
_LEAST_PER_CLIENT = 50
"""Fewest requests a client for the rate of a run whose clients pause. By Little's law 200 clients who pause 30 s
(exponential) and wait 11.5 s send 4.82 a second; the run says 2.38 with 5 requests each, 4.10 with 15, 4.33 with 50."""
_LOST = ("failed", "rejected", "timed_out", "unfinished")


def verdict(result: RunResult) -> Verdict:
    """Return whether the SLO ``holds`` or is ``missed``; ``none`` without an SLO, or without a request."""
    attainment = result.summary["simserve"]["slo"]["attainment"]
    if result.slo is None or attainment is None:
        return "none"
    return "holds" if attainment >= result.slo.attainment and not classes_missing(result) else "missed"


def fails(result: RunResult) -> bool:
    """Return whether a run misses its SLO, that of a class, or a threshold."""
    return verdict(result) == "missed" or bool(result.threshold_failures)


def answer(result: RunResult) -> str:
    """Return whether the SLO holds and whether the run is stable, then which classes and thresholds fail."""
    summary, simserve = result.summary, result.summary["simserve"]
    if not summary["completed"]:
        return f"No request was completed: {statuses(simserve) or 'none was sent'}."
    state = f"the run is {simserve['stability']}"
    if result.slo is None:
        text = f"No SLO is set; {state}."
    elif simserve["slo"]["attainment"] is None:
        text = f"The SLO cannot be judged, since no request was measured; {state}."
    else:
        held = "holds" if verdict(result) == "holds" else "is missed"
        asked, met = share_asked(result.slo.attainment), share(simserve["slo"]["attainment"])
        # The attainment is the smaller share, of requests or of tasks.
        whose = "tasks" if simserve["slo"]["by_metric"].get("task") == simserve["slo"]["attainment"] else "requests"
        text = f"The SLO {held}: {met} of {whose} met it ({asked} asked); {state}."
    missing, failed = classes_missing(result), len(result.threshold_failures)
    if missing:
        more = f" and {len(missing) - _MOST_CLASSES} more" if len(missing) > _MOST_CLASSES else ""
        text += (
            f" Missed by {listed(missing[:_MOST_CLASSES]) if not more else ', '.join(missing[:_MOST_CLASSES])}{more}."
        )
    return f"{text} {counted(failed, 'threshold')} failed." if failed else text


_MOST_CLASSES = 2  # Most classes named in the answer that miss their objective.
NO_WAY_OUT = "No single change of those tried is enough. To search for combinations:"


def has_no_way_out(result: RunResult) -> bool:
    """Return whether changes to a run that misses its SLO were tried and none is enough."""
    return fails(result) and result.summary["simserve"].get("advice") == ()


def advice_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what would meet the SLO, as pairs of a sentence and its command; empty if nothing is known to."""
    lines = []
    for each in summary["simserve"].get("advice") or ():
        met = "" if each["attainment"] is None else f" ({share(each['attainment'])})"
        hourly = each["usd_per_hour"]
        paid = "" if hourly is None else f", {dollars(hourly * HOURS_PER_MONTH)} a month"
        lines.append((f"{_changed(each['changes'])} it holds{met}{paid}:", each["command"]))
    return lines


def _changed(changes: Mapping[str, Any]) -> str:
    """Return what is different, in words if it is a single change that has them: ``'With 2 replicas'``."""
    if len(changes) == 1:
        [(key, value)] = changes.items()
        words: dict[str, Callable[[], str]] = {
            "deployment.hardware": lambda: f"On {value}",
            "deployment.replicas": lambda: f"With {counted(value, 'replica')}",
            "deployment.engine.enforce_eager": lambda: "With CUDA graphs",
            "workload.arrivals.rate": lambda: f"At {number(value)} requests/s",
            "workload.arrivals.concurrency": lambda: f"With {counted(value, 'client')}",
        }
        if key in words:
            return words[key]()
    if changes.keys() == {_READY, _REPLICAS}:
        return f"With at least {counted(changes[_READY], 'replica')}"
    changed = [f"{key}={'null' if value is None else value}" for key, value in changes.items()]
    return f"With {listed(changed)}"


_READY, _REPLICAS = "deployment.autoscaling.min_replicas", "deployment.replicas"


def share_asked(value: float) -> str:
    """Return a share from user input, with the digits of the input: ``'95%'``."""
    return f"{100 * value:.10g}%"


def classes_missing(result: RunResult) -> list[str]:
    """Return the classes that miss their own objective, with the share reached and the share asked."""
    if result.slo is None:
        return []
    missing = []
    for name, figures in result.summary["simserve"]["classes"].items():
        own, reached = result.slo.by_class.get(name), figures["slo"]["attainment"]
        if own is not None and reached is not None and reached < own.attainment:
            missing.append(f"{name} ({share(reached)}, {share_asked(own.attainment)} asked)")
    return missing


def steady_state_caveat(result: RunResult) -> str | None:
    """Return why latencies are not those of a steady state; None for a stable run."""
    simserve = result.summary["simserve"]
    if simserve["stability"] == "overloaded" and simserve["requests"]["rejected"]:
        return "overloaded: latencies are those of the requests that were not turned away"
    if simserve["stability"] == "overloaded":
        return "not steady state: the queue grows, and latencies with it"
    if simserve["requests"]["timed_out"] > _MOST_GAVE_UP * simserve["requests"]["submitted"]:
        return "not steady state: most clients gave up; latencies are those of the others"
    if simserve["stability"] == "backlogged":
        if simserve["load"] == "closed":
            waits = simserve["bottleneck"]["waiting_shares"]
            return _CLOSED[max(_CLOSED, key=lambda name: waits.get(name) or 0.0)]
        return "not steady state: latencies depend on how many requests came at once"
    return None


def short_loop_caveat(result: RunResult) -> str | None:
    """Return that clients who pause send too few requests each for the rate of the run; None: they send enough.

    The rate is that of the whole run. Some clients begin late or send their last request late, and it counts as long.
    """
    arrivals: Mapping[str, Any] = result.scenario["workload"].get("arrivals") or {}
    if arrivals.get("process") != "closed_loop" or not parse(arrivals.get("think_time", "0 s"), "time"):
        return None
    clients, sent = arrivals["concurrency"], result.summary["simserve"]["requests"]["submitted"]
    if sent >= _LEAST_PER_CLIENT * clients:
        return None
    enough = f"--num-requests {_LEAST_PER_CLIENT * clients}"
    return f"each client sends {number(sent / clients)} requests, few for a rate: {enough}"


def warning_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the warnings before an answer, one line each: ``'Warning: the architecture ...'``."""
    return [f"Warning: {each}." for each in summary.get("warnings", ())]


def warnings(result: RunResult) -> list[str]:
    """Return what limits the answer, the worst first: one sentence each."""
    return [*(_sentence(each) for each in result.summary["simserve"].get("warnings", ())), *cautions(result)]


def cautions(result: RunResult) -> list[str]:
    """Return `warnings` without those that a brief shows (`warning_lines`)."""
    simserve = result.summary["simserve"]
    found: list[str | None] = []
    if result.simulation.was_interrupted:
        found.append("Interrupted: only what was finished until then is counted.")
    if simserve["stability"] == "overloaded":
        found.append(_overload(result))
    lost = statuses(simserve)
    if lost:
        missed = "; they count as missing the SLO" if result.slo is not None else ""
        found.append(f"Of {counted(simserve['requests']['submitted'], 'request')}, {lost}{missed}.")
    if simserve["requests"]["truncated"]:
        cut = counted(simserve["requests"]["truncated"], "request")
        found.append(f"max_model_len cut the answers of {cut}.")
    if simserve["engine_resolved"].get("enforce_eager") and simserve["bottleneck"]["binding"] == PARTS["host"]:
        found.append(
            "Without CUDA graphs, launches take most of a step: deployment.engine.enforce_eager=false has them."
        )
    found.append(preemption_statement(result))
    found += [f"Threshold failed: {failure}." for failure in result.threshold_failures]
    found += [_sentence(note) for note in simserve["engine_resolved"].get("notes", ())]
    return [each for each in found if each is not None]


def _overload(result: RunResult) -> str:
    served, offered = result.summary["request_throughput"], result.simulation.offered_rate
    finishable = result.summary["simserve"]["finishable_throughput"]
    if math.isfinite(offered) and finishable is not None:
        return f"Overloaded: {number(offered)} requests/s arrive, {number(finishable)} can be finished."
    if not math.isfinite(offered):
        return f"Overloaded: more requests arrive than the {number(served)} a second that are served."
    return f"Overloaded: {number(offered)} requests/s arrive, {number(served)} are served."


def statuses(simserve: Any) -> str:
    """Return how many requests were lost, by status and reason: ``'12 failed (prompt too long)'``."""
    requests, reasons = simserve["requests"], simserve["rejected"]["by_reason"]
    lost_by = listed([f"{count(requests[fate])} {fate.replace('_', ' ')}" for fate in _LOST if requests[fate]])
    known = listed([name.replace("_", " ") for name, lost in reasons.items() if lost and name not in _OBVIOUS])
    return f"{lost_by} ({known})" if known else lost_by


def _sentence(text: str) -> str:
    start = text[:1] if "." in text.split(" ", 1)[0] else text[:1].upper()  # keys keep their spelling
    return f"{start}{text[1:].rstrip('.')}."
