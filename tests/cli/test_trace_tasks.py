"""`simserve trace` on tasks: what it says of them, and that the scenario it writes draws such tasks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from simserve.workload.conversations import draw_agents
from simserve.workload.distributions import Draws
from simserve.workload.generate import generate
from simserve.workload.spec import WorkloadSpec
from tests.cli.conftest import Simserve

BLOCK = 512
KNOBS: dict[str, Any] = {
    "calls": {"distribution": "geometric", "mean": 6, "max": 40},
    "tool_time": "2 s",
    "tool_time_cv": 0.5,
    "subagent_share": 0.2,
    "subagents": 2,
    "subagent_calls": 3,
    "fork_share": 0.5,
}


@pytest.fixture
def trace(folder: Path) -> Path:
    """Write drawn tasks as a recorded trace: what each waits for, its pause, and the blocks of its prompt."""
    workload = {
        "arrivals": {"process": "poisson", "rate": 20.0},
        "prompt_tokens": 600,
        "output_tokens": 40,
        "num_requests": 6000,
        "shared_prefix": {"num_groups": 1, "tokens": 2048},
        "agents": KNOBS,
    }
    spec = WorkloadSpec.model_validate(workload)
    assert spec.agents is not None
    specs = generate(spec, seed=5)
    agents = draw_agents(spec.agents, Draws(5), num_requests=6000)
    graph, prefixes = specs.dependencies, specs.prefixes
    assert graph is not None
    assert prefixes is not None
    assert specs.session is not None
    lines = []
    # The last task is cut.
    for row in range(int(np.searchsorted(specs.session, specs.session[-1]))):
        entries = slice(int(prefixes.offsets[row]), int(prefixes.offsets[row + 1]))
        begins = np.arange(0, int(specs.prompt_tokens[row]), BLOCK)
        # A block is that of the segment that holds its last token.
        held = np.searchsorted(
            prefixes.ends[entries], np.minimum(begins + BLOCK, specs.prompt_tokens[row]), side="left"
        )
        fields: dict[str, Any] = {
            "request_id": row,
            "session_id": int(agents.agent[row]),
            "input_length": int(specs.prompt_tokens[row]),
            "output_length": int(specs.output_tokens[row]),
            "hash_ids": (prefixes.segments[entries][held] * 1000 + begins // BLOCK).tolist(),
        }
        parents = graph.parents[graph.offsets[row] : graph.offsets[row + 1]].tolist()
        if parents:
            fields |= {"wait_for": parents, "tool_wait_ms": 1000 * float(specs.think_time[row])}
        else:
            fields["timestamp"] = 1000 * float(specs.arrival_time[row])
        lines.append(json.dumps(fields))
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_knobs_of_the_generator_come_back(simserve: Simserve, trace: Path, folder: Path) -> None:
    """Drawn, written, read and fitted: every knob is near, and what is drawn from the fit is as busy."""
    done = simserve("trace", trace.name, "--scenario", "like-it.yaml")
    workload = yaml.safe_load((folder / "like-it.yaml").read_text(encoding="utf-8"))["workload"]
    agents = workload["agents"]

    assert done.code == 0, done.stderr
    assert agents["calls"]["mean"] == pytest.approx(6, rel=0.1)
    assert float(agents["tool_time"].removesuffix(" s")) == pytest.approx(2.0, rel=0.05)
    assert agents["tool_time_cv"] == pytest.approx(0.5, rel=0.1)
    assert agents["subagent_share"] == pytest.approx(0.2, abs=0.03)
    assert agents["subagents"] == {"distribution": "fixed", "value": 2}
    assert agents["subagent_calls"]["value"] == 3
    assert agents["fork_share"] == pytest.approx(0.5, abs=0.08)
    assert workload["arrivals"]["rate"] == pytest.approx(20.0, rel=0.15)
    assert workload["prompt_tokens"]["value"] == 600
    assert workload["shared_prefix"]["tokens"] == 2048


def test_tasks_are_told_in_words_and_in_json(simserve: Simserve, trace: Path) -> None:
    """How many, their calls, tools, sub-agents and forks; null for a trace without tasks."""
    said = simserve("trace", trace.name).stdout
    tasks = json.loads(simserve("trace", trace.name, "--json").stdout)["tasks"]
    (trace.parent / "plain.csv").write_text(
        "arrival_time,prompt_tokens,output_tokens\n0,5,6\n1,5,6\n", encoding="utf-8"
    )

    told = re.search(
        r"([\d,]+) tasks of agents, ([\d.]+) calls each on average, ([\d.]+) of them the main agent's", said
    )
    assert told is not None, said
    each = len(trace.read_text(encoding="utf-8").splitlines()) / int(told[1].replace(",", ""))
    assert each > tasks["calls"]
    assert (float(told[2]), float(told[3])) == pytest.approx((each, tasks["calls"]), rel=0.01)
    assert "of them forks" in said
    assert tasks["subagents"] == 2.0
    assert tasks["shortened_contexts"] == 0
    assert json.loads(simserve("trace", "plain.csv", "--json").stdout)["tasks"] is None


def test_a_replay_of_tasks_is_written_and_runs(simserve: Simserve, trace: Path, folder: Path) -> None:
    """`import trace` adds the block that closes the loop."""
    written = simserve("import", "trace", trace.name, "--out", "replay.yaml")
    run = simserve("run", "replay.yaml", "--set", "workload.num_requests=300", "--json", "--out", "done")

    assert written.code == 0, written.stderr
    assert yaml.safe_load((folder / "replay.yaml").read_text(encoding="utf-8"))["workload"]["agents"] == {}
    assert run.code == 0, run.stderr
    assert json.loads(run.stdout)["simserve"]["tasks"]["finished"] > 10
