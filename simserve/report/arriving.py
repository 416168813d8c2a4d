"""What arrived, in words: how many requests, in which processes, and how long they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.result import RunResult
from simserve.report.quantities import counted, listed, number

_MOST_LISTED = 6
"""Classes with arrivals of their own that are named one by one."""
LOOPS = {"open": "open loop", "closed": "closed loop", "mixed": "open loop, and clients in a closed loop"}
"""What the values of ``simserve.load`` are called."""


def traffic(result: RunResult) -> str:
    """Return what arrived: ``'5,000 requests, poisson (rate 5.5)'``, and their mean lengths."""
    workload, summary = result.scenario["workload"], result.summary
    sent = counted(summary["simserve"]["requests"]["submitted"], "request")
    text = f"{sent}, {_sources(workload)}"
    completed = summary["completed"]
    if not completed:
        return text
    prompt, output = summary["total_input_tokens"] / completed, summary["total_output_tokens"] / completed
    return f"{text}; {number(prompt)} prompt and {number(output)} output tokens on average"


def _sources(workload: Mapping[str, Any]) -> str:
    """Return the processes: the common one, and those of classes with arrivals of their own."""
    classes: Sequence[Mapping[str, Any]] = workload.get("classes") or ()
    own = [each for each in classes if each.get("arrivals")]
    unnamed = "arrivals by class" if workload.get("trace") is None else "trace"
    common = _process(workload, unnamed)
    if not own:
        return common
    if len(own) > _MOST_LISTED:
        return common if workload.get("arrivals") is None else f"{common}, and arrivals by class"
    named = [f"{each['name']}: {_process(each, unnamed)}" for each in own]
    if workload.get("arrivals") is not None:
        names = listed([each["name"] for each in classes if each.get("share")])
        named.insert(0, f"{names}: {common}")
    return "; ".join(named)


def _process(source: Mapping[str, Any], unnamed: str) -> str:
    """Return one process with its settings: ``'gamma (rate 2.0, cv 2.0), in conversations'``."""
    arrivals = dict(source.get("arrivals") or {})
    steps = arrivals.pop("steps", ())
    if steps:
        arrivals["rate"] = " then ".join(f"{number(step['rate'])} for {step['duration']}" for step in steps)
    process = str(arrivals.pop("process", unnamed)).replace("_", " ")
    settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in arrivals.items())
    if source.get("num_requests") and "share" not in source and source.get("name"):
        settings = counted(source["num_requests"], "request")  # a batch of one class
    talks = ", in conversations" if source.get("sessions") else ", in agents' tasks" if source.get("agents") else ""
    return f"{process} ({settings}){talks}" if settings else f"{process}{talks}"
