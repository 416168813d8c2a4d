"""The kernel's records in flat memory: the fields of `Replica`, `RequestTable` and the records that they refer to.

Most are those of a new object: what it holds shows how each is stored.
"""

from __future__ import annotations

from array import array
from dataclasses import fields
from typing import Any

import numpy as np

from simserve.engine.admission_control import Bucket
from simserve.engine.cache_state import KVTier, Loras, PrefixCache, PrefixPaths, RadixTree
from simserve.engine.compiled.layout import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    Column,
    Counts,
    Index,
    Items,
    Kind,
    Order,
    Pointer,
    Queue,
    Record,
    Records,
    Table,
)
from simserve.engine.config import EngineConfig, KVTierConfig
from simserve.engine.gateway import FairTurns, Gateway, ResponseCache
from simserve.engine.plane_state import Clients, ClientState, DataPlane, Delivery, FleetState, Port, Router, Transfers
from simserve.engine.sending import Sending
from simserve.engine.state import DataParallelReplica, Finishes, Replica, RequestTable, StepTimes, Uniforms

_NUMBERS = {"int": INTEGER, "float": FLOAT, "bool": BOOLEAN}
_TYPES: dict[type, Kind] = {list: Items("q"), int: INTEGER, float: FLOAT, bool: BOOLEAN}
"""Type of what a new object holds -> how it is stored; lists hold whole numbers unless a record says otherwise."""
_LONG = {"l": "q"}
"""Letter of NumPy's whole numbers of 64 bit -> that of `array.array`."""
_UNSEEN = ("judge", "batch_rows", "free_ranges")
"""Attributes that only interpreted code has."""


def _kinds(new: Any, **own: Kind) -> dict[str, Kind]:
    """Return how each attribute of a new object is stored; ``own`` says it of those that do not show it."""
    names = [name for name in type(new).__slots__ if name not in _UNSEEN]
    return {name: own[name] if name in own else _kind_of(getattr(new, name)) for name in names}


def _kind_of(value: Any) -> Kind:
    if isinstance(value, memoryview | array):
        code = value.format if isinstance(value, memoryview) else value.typecode
        return Column(_LONG.get(code, code))
    return _TYPES[type(value)]


CONFIG = Record("config", {each.name: _NUMBERS[each.type] for each in fields(EngineConfig) if each.type in _NUMBERS})
TIMES = Record("times", {each.name: FLOAT for each in fields(StepTimes) if each.type == "float"})
_SIZES = ("max_num_seqs", "max_num_batched_tokens", "max_chunk_tokens", "max_model_len", "block_size", "num_blocks")
_LEAST: dict[str, Any] = dict.fromkeys(_SIZES, 1)
_ENGINE = EngineConfig(**_LEAST)
_NO_TIMES: dict[str, Any] = {each.name: 0.0 if each.type == "float" else () for each in fields(StepTimes)}
_NEW = Replica(0, _ENGINE, StepTimes(**_NO_TIMES))

TIER = Record("tier", _kinds(KVTier(KVTierConfig(num_blocks=1)), order=Order(), slots=Index()))
_ONE, _NONE = np.ones(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
_PATHS = PrefixPaths(np.zeros(2, dtype=np.int64), _NONE, _NONE, 1, as_lists=False)
_READ = dict.fromkeys(("ends", "is_shared", "segments", "starts"), Column("q"))
PATHS = Record("paths", _kinds(_PATHS, **_READ, is_private=Column("b"), store=Pointer(TIER)))
_OF_TREE = dict.fromkeys(("answering", "begun", "children", "junctions", "nodes"), Index())
TREE = Record("tree", _kinds(RadixTree(_ENGINE), idle=Order(), **_OF_TREE))
_CACHE = _kinds(
    PrefixCache(_PATHS, _ENGINE),
    chains=Index(),
    decoders=Index(),
    idle=Order(),
    paths=Pointer(PATHS),
    reaches=Items("qqq"),
    slots=Index(),
    tiers=Records(TIER),
    tree=Pointer(TREE),
)
CACHE = Record("cache", {**_CACHE, "free_reach": INTEGER, "reach_heads": Items("q")})
"""``reaches`` holds chains of (blocks, requests, next), with 1 added to positions; ``reach_heads``: where each
begins."""
LORAS = Record("loras", _kinds(Loras(_ENGINE, ()), adapters=Column("i"), idle=Order(), in_host=Order()))
PROGRESS = Record(
    "progress",
    {
        **dict.fromkeys(
            ("_block_size", "_first_offset", "_lag", "_offset", "_period", "late_blocks", "pending_blocks", "total"),
            INTEGER,
        ),
        "counts": Counts(),
        "paces": Items("q"),
        "remainders": Counts(),
    },
)
"""Requests by pace, the existing paces, and requests by pace and remainder, two periods each."""

_SENT: dict[str, Kind] = {"Floats": Column("d"), "Integers": Column("q"), **_NUMBERS}
SENDING = Record("sending", {each.name: _SENT[str(each.type)] for each in fields(Sending)})
REQUESTS = Record("requests", _kinds(RequestTable(_ONE, _ONE, _ONE, _ENGINE)))

_FLOATS = ("estimate_shrinking", "estimate_sum", "late_estimate", "left_estimate", "window_sum")
"""Sums that begin as whole numbers."""
_SECONDS = (
    "decode_attention_base",
    "decode_base",
    "decode_slope",
    "sequence_seconds",
    "shared_seconds",
    "token_seconds",
)
_LOGS = ("advances", "batch_log", "gap_values", "irregular_gaps", "step_runs", "stall_times")
_REPLICA: dict[str, Kind] = {
    **dict.fromkeys(_FLOATS, FLOAT),
    **dict.fromkeys(_SECONDS, Table("d")),
    **dict.fromkeys(_LOGS, Items("d")),
    "finished": Items("q"),
    "cache": Pointer(CACHE),
    "config": Pointer(CONFIG),
    "held_back": Queue(),
    "loras": Pointer(LORAS),
    "progress": Pointer(PROGRESS),
    "times": Pointer(TIMES),
    "waiting": Queue(),
    "window_progress": Pointer(PROGRESS),
}
# What most leaps of most runs touch, in about the order of use: sixteen replicas share a small cache.
_HOT = (
    *("num_steps", "mode", "is_open", "end_time", "start_time", "first_seconds", "increment_seconds", "blocked_by"),
    *("num_scheduled_decodes", "grows", "block_size", "context_sum", "prefilled_tokens", "has_extras", "num_blocks"),
    *("free_blocks", "leap_index", "step", "last_decode_time", "ahead_until", "lead", "late_launch", "estimate_sum"),
    *("prefill_tokens", "scheduled_blocks"),
    *("num_queued", "late_arrivals_sum", "priced_tokens", "priced_decodes", "attended_pairs", "attended_keys"),
    *("num_decoding", "num_running", "max_num_seqs", "num_outstanding", "ratio_steps_skipped", "is_prefill_first"),
    *("is_ordered", "swaps", "uses_estimate", "has_plain_admission", "has_late_tokens", "token_budget"),
    *("round_tokens", "tokens_per_decode", "identity", "config", "times", "cache", "progress", "gap_values"),
    *("gap_step_runs", "residues", "finish_heap", "chunk_requests", "chunk_tokens", "step_runs", "running"),
    *("prefilling", "late_tokens", "stall_step_runs", "finished", "batch_log", "decode_slope", "decode_base"),
    *("decode_attention_base", "sequence_seconds", "token_seconds", "waiting", "keeps_windows", "block_weight"),
    *("releases_late", "departing", "is_full", "has_thinking", "answer_heap", "has_encoder", "has_overlap"),
    *("late_results", "num_beyond", "decodes_beyond", "growth_beyond"),
)
_OF_REPLICA = _kinds(_NEW, **_REPLICA)
REPLICA = Record("replica", {name: _OF_REPLICA[name] for name in (*_HOT, *_OF_REPLICA)})
RANKS = Record("ranks", _kinds(DataParallelReplica([_NEW]), ranks=Records(REPLICA)))

UNIFORMS = Record("uniforms", _kinds(Uniforms(0)))
AFFINITY = Record(
    "affinity",
    {
        **dict.fromkeys(("ends", "keys", "known", "offsets", "places"), Column("q")),
        "least": Column("d"),
        "worth": INTEGER,
    },
)
ROUTER = Record("router", _kinds(Router(0), affinity=Pointer(AFFINITY), uniforms=Pointer(UNIFORMS)))
CONVERSATIONS = Record(
    "conversations",
    {
        **dict.fromkeys(("child_edges", "children", "edges", "end_group"), Column("q")),
        **dict.fromkeys(("group", "next_group", "num_parents", "unanswered"), Column("q")),
        **dict.fromkeys(("arrival_time", "deadline", "last_answer", "think_time", "time_limit"), Column("d")),
        **dict.fromkeys(("num_begun", "num_groups", "num_idle"), INTEGER),
        **dict.fromkeys(("begins", "loop"), Column("b")),
        "closes_at": FLOAT,
        "due": Items("q"),
        **dict.fromkeys(("has_limits", "is_graph"), BOOLEAN),
    },
)
BUCKET = Record("bucket", _kinds(Bucket(1.0, 1.0)))
ADMISSION_CONTROL = Record(
    "admission_control",
    {
        **dict.fromkeys(("kv_headroom", "probabilistic_from", "retry_after"), FLOAT),
        "bucket": Pointer(BUCKET),
        "has_patience": BOOLEAN,
        "kinds": Column("i"),
        "max_queue": INTEGER,
        "patience": Column("d"),
        "uniforms": Pointer(UNIFORMS),
    },
)
PATIENCE = Record(
    "patience",
    {
        **dict.fromkeys(("backoff", "jitter", "max_backoff", "timeout"), Column("d")),
        "first_byte_timeout": FLOAT,
        "has_timeouts": BOOLEAN,
        "honors": Column("b"),
        "kinds": Column("i"),
        "max_tries": Column("q"),
        "uniforms": Pointer(UNIFORMS),
    },
)
_NO_PATIENCE: Any = None
_NO_CLIENTS = Clients(_NO_PATIENCE, array("d"), array("d"), array("d"))
CLIENTS = Record("clients", _kinds(_NO_CLIENTS, abandoned=Items("d"), events=Items("dqqq"), patience=Pointer(PATIENCE)))
_FLOWS = dict.fromkeys(("backlog", "batch", "seen_at"), Items("d"))
DELIVERY = Record("delivery", _kinds(Delivery(0, 0.0, 0.0, 0.0, streams=False), **_FLOWS))
FINISHES = Record("finishes", _kinds(Finishes(0.0)))
PORT = Record("port", _kinds(Port(0, 1.0, []), landed=Queue()))
TRANSFERS = Record("transfers", _kinds(Transfers([], 0.0, 0.0, 0.0, 0, 0), ports=Records(PORT), sends=Items("d")))
_STATE = FleetState(0, 0, notes_ends=False)
FLEET_STATE = Record("fleet_state", _kinds(_STATE, busy_seconds=Items("d"), heard_at=Items("d")))
_NO_ANSWERS = ResponseCache((), array("d"), False, 0.0, 0.0)
RESPONSE_CACHE = Record("response_cache", _kinds(_NO_ANSWERS, question=Column("q")))
API = Record(
    "api",
    {
        **dict.fromkeys(("above", "calls", "tokens"), Pointer(BUCKET)),
        "class_rule": Items("q"),
        **dict.fromkeys(("gap_factors", "ttft_factors"), Pointer(UNIFORMS)),
        "kinds": Column("i"),
        **dict.fromkeys(("max_queue", "num_limited", "when_limited"), INTEGER),
        **dict.fromkeys(("tokens_per_second", "ttft"), FLOAT),
    },
)
FAIR_TURNS = Record(
    "fair_turns",
    _kinds(
        FairTurns([], [], 0),
        **dict.fromkeys(("counters", "service", "shares"), Items("d")),
        kinds=Column("i"),
        paces=Records(FINISHES),
    ),
)
GATEWAY = Record(
    "gateway",
    _kinds(
        Gateway(0, None, None, None, [], []),
        api=Pointer(API),
        cache=Pointer(RESPONSE_CACHE),
        fair=Pointer(FAIR_TURNS),
        second=Column("i"),
    ),
)
REGIONS = Record(
    "regions",
    {
        **dict.fromkeys(("arrives_at", "way_back"), Column("d")),
        "home": Column("i"),
        **dict.fromkeys(("has_thinking", "is_streamed"), BOOLEAN),
        **dict.fromkeys(("nearest", "place_of", "place_of_pool"), Items("q")),
        "num_places": INTEGER,
        "seconds": Items("d"),
        "spill_above": FLOAT,
    },
)
PACES = Record("paces", {"first": Items("q"), "values": Column("q")})
_NEW_STATE = ClientState(_NO_CLIENTS, None, 0)
CLIENT_STATE = Record(
    "client_state",
    _kinds(
        _NEW_STATE,
        clients=Pointer(CLIENTS),
        delivery=Pointer(DELIVERY),
        admission_control=Pointer(ADMISSION_CONTROL),
        finishes=Records(FINISHES),
        gateway=Pointer(GATEWAY),
        going=Items("qd"),
        leaving=Items("qqd"),
        paces=Pointer(PACES),
        fleet_state=Pointer(FLEET_STATE),
        regions=Pointer(REGIONS),
        transfers=Pointer(TRANSFERS),
    ),
)
PART = Record("part", {"pools": Items("q"), "ready": Items("q")})
SHARES = Record("shares", {"credits": Items("d"), "weights": Items("d")})
PLANE = Record(
    "plane",
    _kinds(
        DataPlane([], Router(0), _NEW_STATE),
        **dict.fromkeys(("end_order", "ends"), Items("d")),
        client_state=Pointer(CLIENT_STATE),
        conversations=Pointer(CONVERSATIONS),
        kinds=Column("i"),
        parts=Records(PART),
        pools=Records(PART),
        ranks=Records(REPLICA),
        router=Pointer(ROUTER),
        shares=Pointer(SHARES),
        replicas=Records(RANKS),
    ),
)
