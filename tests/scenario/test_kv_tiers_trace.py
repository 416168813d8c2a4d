"""Hit rates of KV tiers on Mooncake's conversation trace, against a count that knows nothing of the simulator."""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import simserve as ss
from simserve.scenario.schema import Scenario
from simserve.workload.traces.mooncake import read_mooncake
from simserve.workload.traces.trace import Trace

TRACE = Path(__file__).resolve().parents[2] / "../shared/data/traces/mooncake/conversation_trace.jsonl.gz"
TOKENS = 512
"""Of a block of the trace, and of a KV block here."""
BLOCK_BYTES = 67_108_864
"""Of a KV block of 512 tokens of Llama-3.1-8B: 32 layers x 2 x 8 heads x 128 x 2 bytes a token."""
GPU_BLOCKS = 300
SIZES = (4_000, 20_000, 200_000)
"""Blocks behind the GPU; the last ones hold the whole trace."""
EVERYTHING = 10**9
"""Blocks that hold any trace."""

pytestmark = pytest.mark.skipif(not TRACE.is_file(), reason="../shared/data is not there")


class Recency:
    """A cache of blocks; what was used least recently gives way."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.blocks: OrderedDict[Any, None] = OrderedDict()

    def use(self, blocks: Iterable[Any]) -> None:
        """Make blocks the ones that were used last."""
        for block in blocks:
            self.blocks[block] = None
            self.blocks.move_to_end(block)

    def shrink(self, kept: set[Any], room: int) -> list[Any]:
        """Let blocks give way that are not ``kept``, until no more than ``room`` are left; return those."""
        excess = max(len(self.blocks) - room, 0)
        gone = list(islice((block for block in self.blocks if block not in kept), excess))
        for block in gone:
            del self.blocks[block]
        return gone


def paths_of(trace: Trace, count: int) -> list[list[int]]:
    """Return the blocks that each of the first requests begins with."""
    assert trace.prefix_blocks is not None
    ids, found, at = trace.prefix_blocks.ids.tolist(), [], 0
    for length in trace.prefix_blocks.counts[:count].tolist():
        found.append(ids[at : at + length])
        at += length
    return found


def served(trace: Trace, count: int) -> list[tuple[int, list[Any]]]:
    """Return of each request its prompt and the full blocks that it leaves, those of its answer nobody else's."""
    rows = zip(paths_of(trace, count), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=False)
    requests = []
    for number, (path, prompt, output) in enumerate(rows):
        blocks: list[Any] = path[: prompt // TOKENS]
        blocks += [(number, each) for each in range(len(blocks), (prompt + output - 1) // TOKENS)]
        requests.append((prompt, blocks))
    return requests


def length_of_prefix(path: Sequence[Any], *places: Recency) -> int:
    """Return how many of the first blocks lie in one place or another."""
    return next(
        (number for number, block in enumerate(path) if not any(block in each.blocks for each in places)), len(path)
    )


def count_hits(requests: Sequence[tuple[int, list[Any]]], size: int, *, is_shared: bool) -> tuple[float, float]:
    """Return the shares of the prompt tokens found on the GPU and behind it, one request served after the other."""
    gpu, behind = Recency(GPU_BLOCKS), Recency(size)
    hits = {"gpu": 0, "behind": 0}
    for prompt, path in requests:
        own = path[: (prompt - 1) // TOKENS]
        found = own[: length_of_prefix(own, gpu, behind)]
        hits["gpu"] += sum(block in gpu.blocks for block in found)
        hits["behind"] += sum(block not in gpu.blocks for block in found)
        if is_shared:
            # All that it asks for is used, whatever the GPU has, and written again when it has been computed.
            asked = path[: prompt // TOKENS]
            behind.use(reversed(asked[: length_of_prefix(asked, behind)]))
        else:
            for block in found:
                behind.blocks.pop(block, None)
        gpu.use(found)
        behind_it = gpu.shrink(set(path), GPU_BLOCKS - 1 - len([block for block in path if block not in gpu.blocks]))
        if is_shared:
            behind.use(reversed(path))
        else:
            behind.use(behind_it)
            for block in path:
                behind.blocks.pop(block, None)
        behind.shrink(set(), size)
        gpu.use(reversed(path))
    prompts = sum(prompt for prompt, _ in requests)
    return hits["gpu"] * TOKENS / prompts, hits["behind"] * TOKENS / prompts


def apart(count: int, folder: Path) -> Path:
    """Return a file with the first requests of the trace, an hour apart, so that no two of them meet."""
    path = folder / "apart.jsonl"
    with gzip.open(TRACE, "rt") as lines:
        rows = [
            {**json.loads(line), "timestamp": number * 3_600_000} for number, line in enumerate(islice(lines, count))
        ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def simulated(trace: Path, count: int, size: int, *, is_shared: bool) -> dict[str, Any]:
    """Return the KV figures of a replica that serves a trace."""
    place = {"tier": "remote", "shared": True} if is_shared else {"tier": "host"}
    tier = {**place, "capacity": f"{size * BLOCK_BYTES} B", "bandwidth": "100 GB/s", "fetch": "always"}
    engine = {
        "name": "vllm",
        # From 0.24 on, blocks that hold nothing to share are taken before cached ones, as counted here.
        "version": "0.33",
        "max_model_len": 131072,
        "block_size": TOKENS,
        "num_gpu_blocks_override": GPU_BLOCKS,
        "kv_tiers": [tier],
    }
    scenario = {
        "name": "mooncake",
        "model": "llama-3.1-8b",
        "deployment": {"hardware": "h200-sxm-141gb", "engine": engine},
        "workload": {"trace": {"path": str(trace), "format": "mooncake"}, "num_requests": count},
    }
    summary = ss.run(Scenario.model_validate(scenario), accelerate="off").summary
    figures: dict[str, Any] = summary["simserve"]["kv"]
    return figures


def assert_counted(count: int, size: int, folder: Path, *, is_shared: bool) -> None:
    """Assert that the simulator finds on each tier what an independent count finds there."""
    gpu, behind = count_hits(served(read_mooncake(TRACE), count), size, is_shared=is_shared)

    figures = simulated(apart(count, folder), count, size, is_shared=is_shared)

    assert figures["gpu_hit_rate"] == pytest.approx(gpu, abs=1e-12)
    assert figures["tiers"][0]["hit_rate"] == pytest.approx(behind, abs=1e-12)
    assert behind > 0.01


def test_an_endless_cache_finds_what_the_trace_publishes() -> None:
    """The count that the others rest on: 0.3664 of the blocks, those that are not full among them."""
    trace, known = read_mooncake(TRACE), Recency(EVERYTHING)
    paths = paths_of(trace, len(trace.prompt_tokens))
    found = 0
    for path in paths:
        found += length_of_prefix(path, known)
        known.use(path)

    assert found / sum(map(len, paths)) == pytest.approx(0.3664, abs=5e-5)


@pytest.mark.parametrize("is_shared", [True, False], ids=["store", "host"])
def test_hit_rates_are_those_of_an_independent_count(is_shared: bool, tmp_path: Path) -> None:
    """The beginning of the trace, with 4,000 blocks behind the GPU."""
    assert_counted(400, SIZES[0], tmp_path, is_shared=is_shared)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_shared", [True, False], ids=["store", "host"])
def test_hit_rates_of_the_whole_trace_are_those_of_an_independent_count(
    is_shared: bool, size: int, tmp_path: Path
) -> None:
    """All 12,031 requests, three sizes."""
    assert_counted(12_031, size, tmp_path, is_shared=is_shared)
