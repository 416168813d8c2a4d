"""The figures of what stands in front of the replicas: response cache, second answers, fair turns; in sentences too."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.sim.records import CACHE, COMPLETED, REPLICA, RequestRecords
from simserve.units import format_seconds

if TYPE_CHECKING:
    from simserve.sim.simulate import Simulation

NOTICEABLE = 0.01
"""Share of the requests from which a mechanism is part of the explanation."""
_LONG_WAIT = 1.0
"""Mean seconds of waiting from which turns are part of the explanation."""
CACHE_KEYS = ("requests", "hit_share", "by_class", "output_tokens", "asked_first", "expired")
SECOND_KEYS = ("requests", "share", "discarded_output_tokens")


def served_by(records: RequestRecords, server: int) -> NDArray[np.bool_]:
    """Return which requests were answered by a server, an index into `simserve.sim.records.SERVERS`."""
    completed: NDArray[np.bool_] = records.status == COMPLETED
    if records.served_by is None:
        return completed if server == REPLICA else np.zeros(len(records), dtype=bool)
    found: NDArray[np.bool_] = completed & (records.served_by == server)
    return found


def gateway_figures(simulation: Simulation) -> dict[str, dict[str, Any]]:
    """Return the figures of each mechanism: ``response_cache asked_again fairness``."""
    return {
        "response_cache": _cache_figures(simulation),
        "asked_again": _second_figures(simulation),
        "fairness": _fairness_figures(simulation),
    }


def on_replicas(records: RequestRecords) -> NDArray[np.bool_]:
    """Return which requests a replica took up, whatever became of them."""
    taken: NDArray[np.bool_] = np.isfinite(records.scheduled_time)
    return taken if records.served_by is None else taken & (records.served_by == REPLICA)


def _cache_figures(simulation: Simulation) -> dict[str, Any]:
    """Return ``requests hit_share by_class output_tokens asked_first expired``; None each without a response cache.

    All over the whole run. ``hit_share``: hits over completed requests, and ``by_class`` over those of each class;
    ``output_tokens``: of the answers it gave; ``asked_first``: requests whose question nobody had asked before;
    ``expired``: requests that found their answer too old.
    """
    front, records = simulation.front, simulation.records
    if front is None or front.first_questions is None:
        return dict.fromkeys(CACHE_KEYS)
    hits, completed = served_by(records, CACHE), records.status == COMPLETED
    by_class = {
        name: _share(hits & (records.request_class == number), completed & (records.request_class == number))
        for number, name in enumerate(records.class_names)
        if records.request_class is not None
    }
    return {
        "requests": int(np.count_nonzero(hits)),
        "hit_share": _share(hits, completed),
        "by_class": by_class,
        "output_tokens": int(records.output_tokens[hits].sum()),
        "asked_first": front.first_questions,
        "expired": front.expired,
    }


def _second_figures(simulation: Simulation) -> dict[str, Any]:
    """Return ``requests share discarded_output_tokens`` of requests asked twice; None each without such a rule.

    ``share``: of all requests that were sent; the tokens are those of the first answers, which nobody reads.
    """
    front, records = simulation.front, simulation.records
    if front is None or front.asked_again is None:
        return dict.fromkeys(SECOND_KEYS)
    sent = int(np.count_nonzero(np.isfinite(records.arrival_time)))
    return {
        "requests": front.asked_again,
        "share": front.asked_again / sent if sent else math.nan,
        "discarded_output_tokens": front.discarded_tokens,
    }


def _fairness_figures(simulation: Simulation) -> dict[str, dict[str, float]]:
    """Return ``service_share mean_wait_s`` by class under fair turns; empty without them.

    ``service_share``: of prompt tokens plus twice the generated ones that replicas worked on, over the whole run;
    ``mean_wait_s``: from arrival to the first step, over the requests that a replica answered.
    """
    front, records = simulation.front, simulation.records
    if front is None or not front.service or records.request_class is None:
        return {}
    total = sum(front.service.values())
    answered = served_by(records, REPLICA)
    waits = records.scheduled_time - records.arrival_time
    found = {}
    for number, name in enumerate(records.class_names):
        own = waits[answered & (records.request_class == number)]
        found[name] = {
            "service_share": front.service[name] / total if total else math.nan,
            "mean_wait_s": float(own.mean()) if len(own) else math.nan,
        }
    return found


def gateway_sentences(simulation: Simulation) -> list[str]:
    """Return what the front kept from the replicas, and what it gave them twice."""
    front, records = simulation.front, simulation.records
    sent = int(np.count_nonzero(np.isfinite(records.arrival_time)))
    if front is None or not sent:
        return []
    found = []
    hits = int(np.count_nonzero(served_by(records, CACHE)))
    if hits >= NOTICEABLE * sent:
        found.append(f"The response cache answered {hits / sent:.0%} of the requests.")
    if front.asked_again and front.asked_again >= NOTICEABLE * sent:
        found.append(
            f"{front.asked_again / sent:.0%} of the requests were asked a second time, after "
            f"{front.discarded_tokens:,} tokens that did not do."
        )
    if front.limited >= NOTICEABLE * sent:
        found.append(f"The API answered 429 {front.limited:,} times: its rate limit is the bottleneck.")
    waits = {name: each["mean_wait_s"] for name, each in _fairness_figures(simulation).items()}
    if any(wait > _LONG_WAIT for wait in waits.values()):
        told = ", ".join(f"{name} {format_seconds(wait)}" for name, wait in waits.items() if math.isfinite(wait))
        found.append(f"Classes take turns by their shares, and waited for them: {told}.")
    return found


def _share(some: NDArray[np.bool_], of: NDArray[np.bool_]) -> float:
    count = int(np.count_nonzero(of))
    return int(np.count_nonzero(some)) / count if count else math.nan
