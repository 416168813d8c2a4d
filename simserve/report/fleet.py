"""Fleet and admission control in lines of text: replicas over the run, refusals, retries. Empty for a plain run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.metrics.result import RunResult
from simserve.report.quantities import count, counted, dollars, listed, number, share
from simserve.units import format_seconds

_CHANGES_SHOWN = 6


def fleet_lines(result: RunResult) -> list[str]:
    """Return how many replicas there were when, and what they took in GPU-hours; empty where that never changed."""
    pools = pool_lines(result)
    replicas = result.summary["simserve"]["replicas"]
    changes = replicas["timeline"]
    if len(changes) < 2:
        return [*pools, *region_lines(result)]
    pools += region_lines(result)
    lines = [
        f"{number(replicas['mean'])} replicas on average, {count(replicas['peak'])} at most, "
        f"{number(replicas['gpu_hours'])} GPU-hours from launch to the end"
    ]
    # Of changes at what is written as one moment, the last.
    later = [_moment(row["time_s"]) for row in changes[1:]] + [""]
    changes = [row for row, following in zip(changes, later, strict=True) if _moment(row["time_s"]) != following]
    shown = changes[:_CHANGES_SHOWN]
    steps = [f"{row['ready']} ready of {row['launched']} {_moment(row['time_s'])}" for row in shown]
    more = f", and {counted(len(changes) - len(shown), 'more change')}" if len(changes) > len(shown) else ""
    return [*pools, *lines, f"{', '.join(steps)}{more}", *_event_lines(replicas)]


def _moment(seconds: float) -> str:
    return f"at {format_seconds(seconds)}" if seconds > 0 else "at the start"


def _event_lines(replicas: Mapping[str, Any]) -> list[str]:
    """Return what rolling updates and the liveness probe did to the replicas."""
    lines = [
        f"rolling update from {format_seconds(each['start_s'])} "
        + (f"to {format_seconds(each['end_s'])}" if each["end_s"] is not None else "on, not over when the run was")
        + f": at least {counted(each['fewest_ready'], 'replica')} ready of {count(each['ready_before'])} before"
        for each in replicas["updates"]
    ]
    if replicas["killed"]:
        lines.append(f"the liveness probe restarted a replica {counted(replicas['killed'], 'time')}")
    return lines


def pool_lines(result: RunResult) -> list[str]:
    """Return a line a pool, and one about the links between them; empty where all replicas are alike."""
    simserve = result.summary["simserve"]
    lines = [
        f"{name} ({each['role']}): {counted(each['replicas'], 'replica')}, {counted(each['gpus'], 'GPU')}; "
        f"busy {share(each['busy'])}, KV {share(each['kv_usage_mean'])} on average and {share(each['kv_usage_peak'])} "
        f"at its peak, {number(each['mean_batch'])} sequences a step{_answered(each)}"
        for name, each in simserve["pools"].items()
    ]
    transfers = simserve["transfers"]
    if transfers["count"]:
        mean = transfers["link_seconds"] / transfers["count"]
        waited = transfers["waited_seconds"] / transfers["count"]
        stalled = format_seconds(transfers["stalled_seconds"])
        lines.append(
            f"{count(transfers['count'])} KV caches handed over, {format_seconds(mean)} on the link each after "
            f"{format_seconds(waited)} of waiting for it; prefill stood still {stalled} in all"
        )
    return lines


def region_lines(result: RunResult) -> list[str]:
    """Return a line a region of the clients; empty without regions."""
    return [
        f"clients in {name}: {counted(each['requests'], 'request')}, {share(each['served_elsewhere'] or 0.0)} served "
        f"elsewhere; TTFT {number(each['mean_ttft_ms'] or 0.0)} ms on average, "
        f"{number(each['p95_ttft_ms'] or 0.0)} ms p95"
        + ("" if each["attainment"] is None else f"; {share(each['attainment'])} within the SLO")
        for name, each in result.summary["simserve"]["regions"].items()
    ]


def _answered(pool: Mapping[str, Any]) -> str:
    """Return what a pool answered and what it costs, behind its other figures; empty where it answers nobody."""
    costs = "" if pool["usd_per_hour"] is None else f"; {dollars(pool['usd_per_hour'])} an hour"
    if not pool["requests"]:
        return costs
    met = "" if pool["attainment"] is None else f", {share(pool['attainment'])} within the SLO"
    a_million = pool["usd_per_million_output_tokens"]
    rate = "" if a_million is None or pool["role"] != "both" else f", {dollars(a_million)} a million output tokens"
    return f"; {counted(pool['requests'], 'request')} answered{met}{costs}{rate}"


def stream_lines(result: RunResult) -> list[str]:
    """Return how many events were sent and what they cost; empty where streaming is not looked at."""
    stream = result.summary["simserve"]["streaming"]
    if stream["events"] is None:
        return []
    return [
        f"{count(stream['events'])} events of {number(stream['tokens_per_event'])} tokens; the busiest API server "
        f"works {share(stream['api_server_busy'])} of the time, and an event waits "
        f"{format_seconds((stream['mean_event_delay_ms'] or 0.0) / 1000)} for it"
    ]


def admission_lines(result: RunResult) -> list[str]:
    """Return how many attempts were refused and why, and how many requests were sent again; empty without either."""
    simserve = result.summary["simserve"]
    refusals, resent = simserve["rejected"]["refusals"], simserve["requests"]["resent"]
    lines = []
    if refusals:
        reasons = listed([f"{name.replace('_', ' ')} {count(each)}" for name, each in refusals.items()])
        attempts = simserve["requests"]["submitted"] + resent
        lines.append(f"{count(sum(refusals.values()))} of {count(attempts)} attempts refused: {reasons}")
    if resent:
        per_request = 1 + resent / simserve["requests"]["submitted"]
        lines.append(f"clients sent {counted(resent, 'request')} again: {number(per_request, 4)} attempts a request")
    return lines


def gateway_lines(result: RunResult) -> list[str]:
    """Return a line for each mechanism in front of the replicas: cache, API, second answers, fair turns."""
    simserve = result.summary["simserve"]
    return [*_cache_lines(simserve), *_api_lines(simserve), *_second_lines(simserve), *_fairness_lines(simserve)]


def user_lines(result: RunResult) -> list[str]:
    """Return what the users of a scenario come to; empty where it counts none."""
    users = result.summary["simserve"]["users"]
    if users["users"] is None or users["request_rate"] is None:
        return []
    clients = "" if users["clients"] is None else f"{count(users['clients'])} clients in a closed loop, "
    return [
        f"{count(users['users'])} users: {clients}{number(users['request_rate'])} requests/s; "
        f"{count(round(users['waiting']))} of them ({share(users['waiting_share'])}) wait for an answer at any moment",
        f"each asks {number(users['requests_per_user_hour'])} times an hour, "
        f"{format_seconds(users['pause_s'])} after an answer",
    ]


def _cache_lines(simserve: Mapping[str, Any]) -> list[str]:
    cache = simserve["response_cache"]
    if cache["requests"] is None:
        return []
    by_class = listed([f"{name} {share(each)}" for name, each in cache["by_class"].items()])
    line = f"response cache: {count(cache['requests'])} answers given again, {share(cache['hit_share'])} of all"
    lines = [f"{line} ({by_class})" if by_class else line]
    if cache["asked_first"] or cache["expired"]:
        lines.append(
            f"{count(cache['asked_first'])} questions came for the first time, and {count(cache['expired'])} found an "
            "answer that had expired: a model answered those"
        )
    return lines


def _api_lines(simserve: Mapping[str, Any]) -> list[str]:
    api = simserve["overflow"]
    if api["requests"] is None:
        return []
    late = "" if api["p95_ttft_ms"] is None else f", p95 TTFT at the client {format_seconds(api['p95_ttft_ms'] / 1000)}"
    limited = f"; {counted(api['limited'], 'call')} met its rate limit (429)" if api["limited"] else ""
    usd = "" if api["usd_per_hour"] is None else f" for {dollars(api['usd_per_hour'])} an hour"
    answered = f"{count(api['requests'])} requests, {share(api['share'])} of all"
    return [f"{api['api']} answered {answered},{usd}{late}{limited}".replace(",,", ",")]


def _second_lines(simserve: Mapping[str, Any]) -> list[str]:
    second = simserve["asked_again"]
    if second["requests"] is None:
        return []
    return [
        f"{counted(second['requests'], 'request')} asked again of a second pool, {share(second['share'])} of all; "
        f"{count(second['discarded_output_tokens'])} tokens of first answers thrown away"
    ]


def _fairness_lines(simserve: Mapping[str, Any]) -> list[str]:
    classes = simserve["fairness"]
    if not classes:
        return []
    parts = [
        f"{name} {share(each['service_share'])}"
        + ("" if each["mean_wait_s"] is None else f" after {format_seconds(each['mean_wait_s'])}")
        for name, each in classes.items()
    ]
    return [f"service by class (prompt tokens and twice the generated ones), and mean wait: {listed(parts)}"]
