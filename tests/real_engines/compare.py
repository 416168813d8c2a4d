"""The kernel on the workloads of a real scheduler, and where the two schedules differ."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simserve.engine.config import Admission, EngineConfig, KVTierConfig
from simserve.engine.state import StepTimes
from simserve.sim.records import RequestRecords
from simserve.sim.simulate import Replay, replay
from simserve.workload.prefixes import PrefixSegments
from simserve.workload.requests import RequestSpecs
from tests.real_engines.trtllm_second import MAX_UTIL_FOR_RESUME
from tests.real_engines.workloads import ENDING_EARLY, RANKED, SHARING, STATEFUL

NEAR = 1e-7
DRIVERS = {engine: Path(__file__).parent / f"{engine}_schedule.py" for engine in ("vllm", "sglang", "trtllm")}
_RECENT = (*("skips_ended", "expects_max_tokens", "keeps_ratio", "reserves_page", "evicts_missing", "touches_waiting"),)
SGLANG: dict[str, dict[str, Any]] = {
    "0.5.9": {},
    "0.5.22": dict.fromkeys(_RECENT, True),
    "0.5.23": dict.fromkeys((*_RECENT, "strikes_at_once"), True),
}
"""Releases of SGLang whose schedulers the drivers know, with what `EngineConfig` holds of each."""
OF_SGLANG = (
    *("plain", "chunked", "kv_short", ENDING_EARLY, "priority", "prefix", "prefix_short", "conversations", "forks"),
    "kv_short_cached",
)
"""Classes of workloads that its driver serves, in its normal and its overlapped loop."""
DELAYS: dict[str, dict[str, Any]] = {
    "0.5.9": {},
    **dict.fromkeys(
        ("0.5.22", "0.5.23"), dict.fromkeys(("delays_for_seats", "bounds_prompt_delay", "forgets_batches"), True)
    ),
}
"""What `EngineConfig` holds of the delayer of each release, for ranks that step together (`RANKED`)."""
RETRACTING = ("kv_short", "kv_short_cached", "priority", "prefix_short", "delayed_short")
"""Classes that SGLang serves with so small an estimate of what answers need that it has to retract."""
TRTLLM: dict[str, bool] = {"1.2": True, "1.3": False}
"""Releases of TensorRT-LLM, with whether admission and the budget take a request as if it found nothing."""
SECOND = "1.4"
"""The release whose second KV cache manager is compared as it was read (`tests.real_engines.trtllm_second`)."""
POLICIES: dict[str, Admission] = {"GUARANTEED_NO_EVICT": "reserve", "MAX_UTILIZATION": "on_demand"}
"""Its ``capacity_scheduler_policy``, with what admission requires blocks for."""
OF_TRTLLM = ("plain", "chunked", "kv_short", "prefix", "prefix_short", "conversations", "forks", "kv_short_cached")
"""Classes of workloads that its driver serves, in its normal and its overlapped loop."""
_CACHE = {"caches_decoded": True, "evicts_by_block": True}
_PASS = {"ends_pass": True, "misses_next": True}
CACHED_STATES = tuple(kind for kind in STATEFUL if kind in SHARING)
"""Classes that find states of others in the cache; 0.12.0 does so in few models, with a state for every block."""
WITHOUT: dict[str, tuple[str, ...]] = {"0.12.0": ("watermark", *CACHED_STATES), "0.20.2": ("watermark",)}
"""Classes of workloads that ask for what a release lacks."""
RULES: dict[str, dict[str, Any]] = {
    "0.12.0": {
        **_CACHE,
        **_PASS,
        **dict.fromkeys(("ages_empty_blocks", "releases_late", "keeps_every_state", "aligns_plainly"), True),
    },
    "0.20.2": {
        **_CACHE,
        **_PASS,
        "ages_empty_blocks": True,
        "reserve_full_prompt": True,
        "releases_late": True,
        **dict.fromkeys(("keeps_every_state", "keeps_last_state", "aligns_plainly"), True),
    },
    "0.33.0": {
        **_CACHE,
        "reserve_full_prompt": True,
        "releases_late": True,
        "lifts_chunk_limit": True,
        "pads_lone_token": True,
        "caches_results": True,
    },
}
"""What `EngineConfig` holds of a release beyond what the case says."""


DENSE = ("0.12.0", "0.20.2")
"""Releases that keep every state at the end of a block that a step leaves (before 0.30)."""


def schedules_of(
    python: Path, cases: Sequence[Mapping[str, Any]], engine: str = "vllm", *folders: Path
) -> list[dict[str, Any]]:
    """Return what a real scheduler does with the cases; ``folders``: where it lies, if the driver wants to be told.

    Raises:
        RuntimeError: It failed; what it printed.
    """
    ran = subprocess.run(
        [python, DRIVERS[engine], *folders], input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr[-4000:])
    # Some libraries print to stdout as they are imported.
    schedules: list[dict[str, Any]] = json.loads(ran.stdout[ran.stdout.index('{"version"') :])["schedules"]
    return schedules


def as_vllm(case: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return a case as a release of vLLM takes it: the states that it caches by default, where it caches any."""
    sparse = {} if version in DENSE else {"prefix_cache_retention_interval": 0}
    return {**case, "mamba_cache_mode": "align" if case["enable_prefix_caching"] else "none", **sparse}


@dataclass(frozen=True)
class Difference:
    """The first figure in which two schedules differ; ``request`` is its row."""

    request: int
    figure: str
    real: float
    simulated: float

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return asdict(self)


def first_difference(
    case: Mapping[str, Any], schedule: Mapping[str, Any], rules: Mapping[str, Any]
) -> Difference | None:
    """Return the earliest difference between a real schedule and the kernel's; None: they are identical.

    Args:
        case: The workload.
        schedule: What the real scheduler did with it.
        rules: Fields of `EngineConfig` that this engine and version has.
    """
    return earliest_difference(schedule, simulate(case, rules).records)


def earliest_difference(schedule: Mapping[str, Any], simulated: RequestRecords) -> Difference | None:
    """Return the earliest difference between a real schedule and records of the kernel; None: there is none."""
    found: list[tuple[float, Difference]] = []
    for index, row in enumerate(schedule["requests"]):
        figures = {
            "scheduled": float(simulated.scheduled_time[index]),
            "first_token": float(simulated.first_token_time[index]),
            "finish": float(simulated.finish_time[index]),
            "preemptions": float(simulated.num_preemptions[index]),
            "cached": float(simulated.cached_tokens[index]),
        }
        for figure, value in figures.items():
            real = float(row[figure])
            if abs(real - value) > NEAR * max(1.0, abs(real)):
                when = min(real, value) if figure in ("scheduled", "first_token", "finish") else float(row["finish"])
                found.append((when, Difference(index, figure, real, value)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def as_sglang(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case as SGLang takes it: pages of one token, and its defaults (managers/scheduler.py of 0.5.9).

    Some classes with ``--schedule-conservativeness 0.1`` (`RETRACTING`).
    """
    conservativeness = 0.1 if case["kind"] in RETRACTING else 1.0
    chunk = case["max_num_batched_tokens"] if case["enable_chunked_prefill"] else None
    return {
        **case,
        # Without a radix cache SGLang admits such requests by another rule, which the kernel has not.
        "ignore_eos": case["enable_prefix_caching"] and case["kind"] != ENDING_EARLY and case["seed"] % 2 == 1,
        "num_tokens": case["num_gpu_blocks"] * case["block_size"],
        "chunked_prefill_size": chunk,
        # The kernel admits a prompt that takes the budget to its last token, SGLang one that leaves a token.
        "max_prefill_tokens": 16384 if chunk else case["max_num_batched_tokens"] + 1,
        "num_states": 0,
        "state_grid": 0,
        "new_token_ratio_initial": 0.7 * conservativeness,
        "new_token_ratio_minimum": 0.098 * conservativeness,
        "new_token_ratio_decay": 0.602 / 600 * conservativeness,
    }


def simulate_sglang(case: Mapping[str, Any], release: str) -> Replay:
    """Serve a case of `as_sglang` on the kernel, with the fields of `EngineConfig` that a release has."""
    rules = {**SGLANG[release], **(DELAYS[release] if case["kind"] in RANKED else {})}
    budget = case["max_num_batched_tokens"]
    config = EngineConfig(
        scheduler="prefill_first",
        admission="estimate",
        max_num_seqs=case["max_num_seqs"],
        max_num_batched_tokens=budget,
        max_chunk_tokens=budget,
        max_model_len=case["max_model_len"],
        enable_chunked_prefill=case["enable_chunked_prefill"],
        enable_prefix_caching=case["enable_prefix_caching"],
        scheduling_policy=case["scheduling_policy"],
        keeps_radix_tree=True,
        async_scheduling=case["async_scheduling"],
        overlaps_results=True,
        expects_max_tokens=case["ignore_eos"] and rules.get("expects_max_tokens", False),
        block_size=1,
        num_blocks=case["num_tokens"],
        **states_of(case),
        data_parallel_size=case["data_parallel_size"],
        rotates_ranks=True,
        **{name: case[name] for name in case if name.startswith(("new_token_ratio", "prefill_delayer"))},
        **{name: value for name, value in rules.items() if name != "expects_max_tokens"},
    )
    return replay(config, times_of(case), requests_of(case))


def states_of(case: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields of `EngineConfig` for the states of a case of `as_sglang`."""
    if not case["num_states"]:
        return {}
    tracked = (2 if case["async_scheduling"] else 1) if case["state_grid"] else 0
    grid = case["state_grid"]
    return {
        "tree_states": case["num_states"],
        "seat_states": 1 + tracked,
        "state_grid": grid,
        "state_interval": 4 * grid or 1,
        "keeps_bare_leaves": True,
    }


def as_trtllm(case: Mapping[str, Any], release: str, policy: str = "GUARANTEED_NO_EVICT") -> dict[str, Any]:
    """Return a case as TensorRT-LLM takes it: a budget that leaves a block for a prompt beside all that decode.

    Args:
        case: The workload.
        release: Of TensorRT-LLM.
        policy: Its ``capacity_scheduler_policy``.
    """
    budget = case["max_num_batched_tokens"]
    if case["enable_chunked_prefill"]:
        budget = max(budget, case["max_num_seqs"] + case["block_size"])
    return {
        **case,
        "max_num_batched_tokens": budget,
        "num_blocks": case["num_gpu_blocks"],
        "policy": policy,
        "credits_reuse": not TRTLLM.get(release, False),
    }


def simulate_trtllm(case: Mapping[str, Any]) -> Replay:
    """Serve a case of `as_trtllm` on the kernel."""
    config = replace(
        _trtllm_config(case),
        admission=POLICIES[case["policy"]],
        allocates_prompt=True,
        waits_for_prefix=True,
        ages_empty_blocks=True,
        ignores_found=not case["credits_reuse"],
    )
    return replay(config, times_of(case), requests_of(case))


def simulate_second(case: Mapping[str, Any]) -> Replay:
    """Serve a case of `as_trtllm` on the kernel, under the second KV cache manager."""
    config = replace(
        _trtllm_config(case),
        suspends=True,
        max_used_blocks=int(MAX_UTIL_FOR_RESUME * case["num_blocks"]),
        kv_tiers=(KVTierConfig(num_blocks=1_000_000),) if case["enable_prefix_caching"] else (),
    )
    return replay(config, times_of(case), requests_of(case))


def _trtllm_config(case: Mapping[str, Any]) -> EngineConfig:
    """Return what both cache managers have of a case."""
    budget = case["max_num_batched_tokens"]
    return EngineConfig(
        max_num_seqs=case["max_num_seqs"],
        max_num_batched_tokens=budget,
        max_chunk_tokens=budget,
        aligns_chunks=True,
        max_model_len=case["max_model_len"],
        enable_chunked_prefill=case["enable_chunked_prefill"],
        enable_prefix_caching=case["enable_prefix_caching"],
        evicts_by_block=True,
        block_size=case["block_size"],
        num_blocks=case["num_blocks"],
        async_scheduling=case["async_scheduling"],
        releases_late=True,
    )


def simulate(case: Mapping[str, Any], rules: Mapping[str, Any]) -> Replay:
    """Serve a case on the kernel."""
    return replay(config_of(case, rules), times_of(case), requests_of(case))


def config_of(case: Mapping[str, Any], rules: Mapping[str, Any]) -> EngineConfig:
    """Return the replica of a case, with the fields that a release has."""
    threshold = case["long_prefill_token_threshold"]
    budget = case["max_num_batched_tokens"]
    chunk = min(budget, threshold) if threshold else budget
    return EngineConfig(
        max_num_seqs=case["max_num_seqs"],
        max_num_batched_tokens=budget,
        max_chunk_tokens=chunk if case["enable_chunked_prefill"] else budget,
        max_model_len=case["max_model_len"],
        enable_chunked_prefill=case["enable_chunked_prefill"],
        enable_prefix_caching=case["enable_prefix_caching"],
        scheduling_policy=case["scheduling_policy"],
        block_size=case["block_size"],
        # One block is the null block.
        num_blocks=case["num_gpu_blocks"] - 1,
        watermark_blocks=int(case["watermark"] * case["num_gpu_blocks"]),
        async_scheduling=case["async_scheduling"],
        num_speculative_tokens=case["num_speculative_tokens"],
        num_lookahead_tokens=case["num_lookahead_tokens"],
        num_draft_states=case["num_speculative_tokens"] if case["state_groups"] else 0,
        # From 0.33 on, blocks that were found are told by the token behind them, and none is dropped.
        hashes_next_token=case["num_lookahead_tokens"] > 0 and rules.get("caches_results", False),
        drops_last_block=case["num_lookahead_tokens"] > 0 and not rules.get("caches_results", False),
        window_groups=case["window_groups"] or case["state_groups"] * (1 + case["num_speculative_tokens"]),
        window_blocks=window_blocks_of(case),
        window_tokens=case["sliding_window"],
        keeps_states=case["state_groups"] > 0,
        caches_states=True,
        **rules,
    )


def window_blocks_of(case: Mapping[str, Any]) -> int:
    """Return the most blocks across which a window can lie, wherever it begins; a state takes one; 0: neither."""
    windowed = (case["sliding_window"] - 2) // case["block_size"] + 2 if case["window_groups"] else 0
    return 1 if case["state_groups"] else windowed


def times_of(case: Mapping[str, Any]) -> StepTimes:
    """Return the step times of a case as the kernel takes them."""
    budget, seats, width = case["max_num_batched_tokens"], case["max_num_seqs"], 1 + case["num_speculative_tokens"]
    most = max(budget, seats * width)
    affine = [case["step_seconds"] + case["token_seconds"] * tokens for tokens in range(most + 1)]
    return StepTimes(
        decode_base=[0.0, *affine[width : seats * width + 1 : width]],
        decode_slope=[0.0] * (seats + 1),
        token_seconds=affine,
        token_seconds_beyond=case["token_seconds"],
        sequence_seconds=[0.0] * (seats + 1),
        decode_attention_base=[0.0] * (seats + 1),
        prefill_request_seconds=0.0,
        prefill_pair_seconds=0.0,
        prefill_context_seconds=0.0,
    )


def requests_of(case: Mapping[str, Any]) -> RequestSpecs:
    """Return the requests of a case as the kernel takes them."""
    requests = case["requests"]
    output = np.array([request["output"] for request in requests], dtype=np.int64)
    return RequestSpecs(
        arrival_time=np.array([request["arrival"] for request in requests]),
        prompt_tokens=np.array([len(request["prompt"]) for request in requests], dtype=np.int64),
        output_tokens=output,
        max_tokens=np.array([request.get("max_tokens", request["output"]) for request in requests], dtype=np.int64),
        think_time=np.empty(0),
        concurrency=None,
        is_stationary=False,
        offered_rate=float("nan"),
        priority=np.array([request.get("priority", 0) for request in requests], dtype=np.int64),
        pace=np.array([request["pace"] for request in requests]) if case["num_speculative_tokens"] else None,
        prefixes=prefixes_of(case) if case["kind"] in SHARING else None,
    )


def prefixes_of(case: Mapping[str, Any]) -> PrefixSegments:
    """Return which stretches of tokens the requests share, a segment for each run of tokens that stay together."""
    texts = [
        [*request["prompt"], *(10_000_000 + 10_000 * index + position for position in range(request["output"]))]
        for index, request in enumerate(case["requests"])
    ]
    # Cut every text where any two part.
    cuts: list[set[int]] = [{len(text)} for text in texts]
    for index, text in enumerate(texts):
        for other in range(index):
            shared = _common(text, texts[other])
            if shared:
                cuts[index].add(shared)
                cuts[other].add(shared)
    # A cut of one holds for all that share it.
    changed = True
    while changed:
        changed = False
        for index, text in enumerate(texts):
            for other in range(index):
                shared = _common(text, texts[other])
                both = {cut for cut in cuts[index] | cuts[other] if cut <= shared}
                if not both <= cuts[index] or not both <= cuts[other]:
                    cuts[index] |= both
                    cuts[other] |= both
                    changed = True
    identities: dict[tuple[int, ...], int] = {}
    offsets, segments, ends = [0], [], []
    for index, text in enumerate(texts):
        for cut in sorted(cuts[index]):
            segments.append(identities.setdefault(tuple(text[:cut]), len(identities)))
            ends.append(cut)
        offsets.append(len(segments))
    return PrefixSegments(
        offsets=np.array(offsets), segments=np.array(segments, dtype=np.int64), ends=np.array(ends, dtype=np.int64)
    )


def _common(one: list[int], other: list[int]) -> int:
    """Return how many tokens two texts share from their beginning."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
