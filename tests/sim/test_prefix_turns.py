"""Turns of a conversation run one after another: the cache need not watch whether two decode the same blocks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import simserve as ss
from simserve.scenario.run import run
from simserve.sim import plane

COLUMNS = ("arrival_time", "scheduled_time", "first_token_time", "finish_time", "cached_tokens", "num_preemptions")


def drawn(seed: int) -> dict[str, Any]:
    """Return short conversations: impatient clients, further tries, no pause, little memory, one step ahead or not."""
    chance = random.Random(seed)
    client: dict[str, Any] = {"name": "c", "share": 1.0}
    if chance.random() < 0.7:
        client |= {"timeout": f"{chance.choice([0.3, 1, 3])} s", "retries": chance.choice([1, 2])}
    open_loop, clients = {"process": "poisson", "rate": 20}, {"process": "closed_loop", "concurrency": 30}
    workload = {
        "arrivals": chance.choice([open_loop, clients]),
        "prompt_tokens": {"distribution": "lognormal", "mean": chance.choice([30, 200]), "cv": 1.0, "max": 900},
        "output_tokens": {"distribution": "lognormal", "mean": chance.choice([20, 120]), "cv": 1.0, "max": 600},
        "sessions": {"turns": {"distribution": "geometric", "mean": 5, "max": 12}, "think_time": "0 s"},
        "shared_prefix": {"num_groups": chance.choice([1, 3]), "tokens": chance.choice([40, 160, 333])},
        "num_requests": 120,
        "classes": [client],
    }
    engine = {
        "name": "vllm",
        "version": chance.choice(["0.12", "0.20", "0.33"]),
        "max_num_seqs": chance.choice([4, 32]),
        "num_gpu_blocks_override": chance.choice([120, 300]),
        "max_model_len": 1800,
        "max_num_batched_tokens": chance.choice([256, 2048]),
        "async_scheduling": chance.random() < 0.5,
    }
    routing = chance.choice(["session", "prefix", "round_robin"])
    deployment = {"hardware": "h100-sxm-80gb", "replicas": chance.choice([1, 2]), "engine": engine, "routing": routing}
    return {"model": "llama-3.1-8b", "deployment": deployment, "workload": workload, "run.seed": seed}


@pytest.mark.slow
def test_watching_them_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column to the bit, in runs with time-outs and preemptions."""
    num_preempted = num_late = 0
    for seed in range(24):
        scenario = ss.load("single-gpu-7b", drawn(seed))

        found = []
        for takes_turns in (plane._takes_turns, lambda specs: False):
            with monkeypatch.context() as patched:
                patched.setattr(plane, "_takes_turns", takes_turns)
                result = run(scenario, explain=False, finishable=None, accelerate="off")
            found.append(result.simulation.records)

        for name in COLUMNS:
            assert getattr(found[0], name).tobytes() == getattr(found[1], name).tobytes()
        num_preempted += int(found[0].num_preemptions.sum())
        num_late += int(np.isnan(found[0].finish_time).sum())
    assert num_preempted > 20
    assert num_late > 20
