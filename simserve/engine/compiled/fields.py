"""The kernel's records in flat memory: the fields of `Replica`, `RequestTable` and the records that they refer to."""

from __future__ import annotations

from dataclasses import fields

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
from simserve.engine.config import EngineConfig
from simserve.engine.plane_state import DataPlane
from simserve.engine.sending import Sending
from simserve.engine.state import Replica, RequestTable, StepTimes

_NUMBERS = {"int": INTEGER, "float": FLOAT, "bool": BOOLEAN}

CONFIG = Record("config", {each.name: _NUMBERS[each.type] for each in fields(EngineConfig) if each.type in _NUMBERS})
TIMES = Record("times", {each.name: FLOAT for each in fields(StepTimes) if each.type == "float"})

TIER = Record(
    "tier",
    {
        **dict.fromkeys(("block_seconds", "free_at", "latency", "load_seconds", "loading_seconds"), FLOAT),
        **dict.fromkeys(("free_slots", "held", "segments"), Items("q")),
        **dict.fromkeys(("has_choice", "overlaps"), BOOLEAN),
        **dict.fromkeys(("num_blocks", "num_declined", "num_loaded", "num_stored", "num_written", "peak"), INTEGER),
        "order": Order(),
        "slots": Index(),
        "store_block_seconds": FLOAT,
    },
)
PATHS = Record(
    "paths",
    {
        **dict.fromkeys(
            ("cached_tokens", "ends", "is_shared", "loaded_tokens", "pinned_until", "segments"), Column("q")
        ),
        **dict.fromkeys(("promised_blocks", "shared_blocks", "starts"), Column("q")),
        **dict.fromkeys(("block_size", "num_levels"), INTEGER),
        "is_private": Column("b"),
        "store": Pointer(TIER),
    },
)
TREE = Record(
    "tree",
    {
        **dict.fromkeys(("ends", "entries", "free_nodes", "offsets", "parents", "starts", "users"), Items("q")),
        "children": Index(),
        **dict.fromkeys(("found", "num_looks"), INTEGER),
        "idle": Order(),
        "nodes": Index(),
    },
)
CACHE = Record(
    "cache",
    {
        **dict.fromkeys(("free_slots", "held", "num_others", "reach_heads", "segments", "used", "users"), Items("q")),
        "contested": Items("q"),
        **dict.fromkeys(("num_duplicates", "num_idle", "num_loading", "num_tiers", "free_reach"), INTEGER),
        **dict.fromkeys(("has_choice", "has_tiers"), BOOLEAN),
        **dict.fromkeys(("loading_seconds", "pair_seconds", "token_seconds"), FLOAT),
        **dict.fromkeys(("above", "below", "free_stretches", "shallowest"), Items("q")),
        **dict.fromkeys(("stretch_slot", "stretch_start"), Items("q")),
        **dict.fromkeys(("num_decoders", "num_empty", "num_fresh"), INTEGER),
        **dict.fromkeys(("ages_empty", "evicts_by_block"), BOOLEAN),
        "decoders": Index(),
        "idle": Order(),
        "paths": Pointer(PATHS),
        "reaches": Items("qqq"),
        "slots": Index(),
        "tiers": Records(TIER),
        "tree": Pointer(TREE),
    },
)
"""``reaches`` holds chains of (blocks, requests, next), with 1 added to positions; ``reach_heads``: where each
begins."""
LORAS = Record(
    "loras",
    {
        "adapters": Column("i"),
        **dict.fromkeys(("load_seconds", "loading_seconds"), FLOAT),
        **dict.fromkeys(("marks", "places", "skipped", "users", "waiting"), Items("q")),
        **dict.fromkeys(
            ("mark", "max_cpu_loras", "max_loras", "num_active", "num_asked", "num_decoding", "num_disk_loads"), INTEGER
        ),
        **dict.fromkeys(("num_eligible", "num_hits", "num_in_host", "num_on_gpu", "num_swaps"), INTEGER),
        **dict.fromkeys(("idle", "in_host"), Order()),
    },
)
PROGRESS = Record(
    "progress",
    {
        **dict.fromkeys(("_block_size", "_offset", "_period", "pending_blocks", "total"), INTEGER),
        "counts": Counts(),
        "paces": Items("q"),
        "remainders": Counts(),
    },
)
"""Requests by pace, the existing paces, and requests by pace and remainder, two periods each."""

_COLUMNS = {
    **dict.fromkeys(("status", "reason", "is_truncated"), "b"),
    **dict.fromkeys(
        (
            "adapter",
            "computed_tokens",
            "max_tokens",
            "num_preemptions",
            "output_tokens",
            "prompt_tokens",
            "rank",
            "replica_id",
        ),
        "i",
    ),
    **dict.fromkeys(
        (
            *("ready_time", "scheduled_time", "first_token_time", "finish_time", "itl_max", "last_token_time"),
            *("answer_time", "encoder_seconds"),
        ),
        "d",
    ),
}
_SENT: dict[str, Kind] = {"Floats": Column("d"), "Integers": Column("q"), **_NUMBERS}
SENDING = Record("sending", {each.name: _SENT[str(each.type)] for each in fields(Sending)})
REQUESTS = Record("requests", {name: Column(_COLUMNS.get(name, "q")) for name in RequestTable.__slots__})

_REPLICA: dict[str, Kind] = {
    **dict.fromkeys(
        (
            "ahead_until",
            "api_free_at",
            "api_token_seconds",
            "attended_keys",
            "attended_pairs",
            "context_sum",
            "encoder_seconds",
            "end_time",
            "estimate_shrinking",
            "estimate_sum",
            "first_seconds",
            "increment_seconds",
            "last_decode_time",
            "last_requeue_time",
            "late_arrivals_sum",
            "late_estimate",
            "late_launch",
            "late_start",
            "lead",
            "left_estimate",
            "new_token_ratio",
            "start_time",
            "window_sum",
        ),
        FLOAT,
    ),
    **dict.fromkeys(
        (
            "grows",
            "has_encoder",
            "has_extras",
            "has_late_first_token",
            "has_late_tokens",
            "has_ordered_pass",
            "has_overlap",
            "has_padding",
            "has_retracted",
            "has_plain_admission",
            "has_aligned_chunks",
            "has_prefix_waits",
            "has_whole_prompts",
            "has_suspension",
            "takes_lazily",
            "has_priorities",
            "has_slots",
            "has_thinking",
            "is_contiguous",
            "is_full",
            "is_open",
            "is_ordered",
            "has_window_pool",
            "is_prefill_first",
            "keeps_full",
            "keeps_states",
            "keeps_windows",
            "releases_late",
            "samples_in_turn",
            "swaps",
            "uses_estimate",
        ),
        BOOLEAN,
    ),
    **dict.fromkeys(
        (
            "answer_heap",
            "chunk_requests",
            "chunk_tokens",
            "claimed",
            "contributed",
            "crossing_heap",
            "deferred",
            "departing",
            "departing_blocks",
            "departing_tokens",
            "departing_window_blocks",
            "finish_heap",
            "finished",
            "gap_step_runs",
            "late_prefix_tokens",
            "late_prefixes",
            "late_prompts",
            "late_tokens",
            "micro_batches",
            "passed_over",
            "prefilling",
            "residues",
            "running",
            "stall_counts",
            "stall_step_runs",
            "swapped_in",
            "window_residues",
        ),
        Items("q"),
    ),
    **dict.fromkeys(("advances", "batch_log", "gap_values", "irregular_gaps", "step_runs", "stall_times"), Items("d")),
    **dict.fromkeys(
        ("decode_attention_base", "decode_base", "decode_slope", "sequence_seconds", "shared_seconds", "token_seconds"),
        Table("d"),
    ),
    "cache": Pointer(CACHE),
    "config": Pointer(CONFIG),
    "held_back": Queue(),
    "loras": Pointer(LORAS),
    "progress": Pointer(PROGRESS),
    "times": Pointer(TIMES),
    "waiting": Queue(),
    "window_progress": Pointer(PROGRESS),
}
_UNSEEN = ("batch_rows", "free_ranges")
# What most leaps of most runs touch, in about the order of use: sixteen replicas share a small cache.
_HOT = (
    *("num_steps", "mode", "is_open", "end_time", "start_time", "first_seconds", "increment_seconds", "blocked_by"),
    *("num_scheduled_decodes", "grows", "block_size", "context_sum", "prefilled_tokens", "has_extras", "num_blocks"),
    *(
        "free_blocks",
        "leap_index",
        "step",
        "last_decode_time",
        "ahead_until",
        "lead",
        "late_launch",
        "estimate_sum",
        "prefill_tokens",
        "scheduled_blocks",
    ),
    *(
        "num_queued",
        "late_arrivals_sum",
        "priced_tokens",
        "priced_decodes",
        "attended_pairs",
        "attended_keys",
        "num_decoding",
    ),
    *("num_running", "max_num_seqs", "num_outstanding", "ratio_steps_skipped", "is_prefill_first", "is_ordered"),
    *(
        "swaps",
        "uses_estimate",
        "has_plain_admission",
        "has_late_tokens",
        "token_budget",
        "round_tokens",
        "tokens_per_decode",
    ),
    *("identity", "config", "times", "cache", "progress", "gap_values", "gap_step_runs", "residues", "finish_heap"),
    *(
        "chunk_requests",
        "chunk_tokens",
        "step_runs",
        "running",
        "prefilling",
        "late_tokens",
        "stall_step_runs",
        "finished",
    ),
    *("batch_log", "decode_slope", "decode_base", "decode_attention_base", "sequence_seconds", "token_seconds"),
    *("waiting", "keeps_windows", "block_weight", "releases_late", "departing", "is_full"),
    *("has_thinking", "answer_heap", "has_encoder", "has_overlap", "late_results", "num_beyond"),
)
_OTHERS = tuple(name for name in Replica.__slots__ if name not in (*_HOT, *_UNSEEN))
REPLICA = Record("replica", {name: _REPLICA.get(name, INTEGER) for name in (*_HOT, *_OTHERS)})
RANKS = Record(
    "ranks",
    {
        **dict.fromkeys(("alike_steps", "held_steps", "num_ranks", "timeout_steps"), INTEGER),
        **dict.fromkeys(("end_time", "largest_batch"), FLOAT),
        "has_passed": BOOLEAN,
        "ranks": Records(REPLICA),
    },
)

UNIFORMS = Record("uniforms", {"place": Column("q"), "values": Column("d")})
AFFINITY = Record(
    "affinity",
    {
        **dict.fromkeys(("ends", "keys", "known", "offsets", "places"), Column("q")),
        "least": Column("d"),
        "worth": INTEGER,
    },
)
ROUTER = Record(
    "router",
    {
        **dict.fromkeys(("policy", "turn"), INTEGER),
        "affinity": Pointer(AFFINITY),
        "guard": FLOAT,
        "uniforms": Pointer(UNIFORMS),
    },
)
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
BUCKET = Record("bucket", dict.fromkeys(("burst", "filled_at", "level", "rate"), FLOAT))
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
CLIENTS = Record(
    "clients",
    {
        **dict.fromkeys(("latency", "own_wait", "sent_at"), Column("d")),
        **dict.fromkeys(("embedding_seconds", "encoder_given", "encoder_starts"), Column("d")),
        **dict.fromkeys(("encoder_wait", "encoders", "to_encode"), Column("d")),
        **dict.fromkeys(("behind", "came", "encoder_parts"), Column("q")),
        **dict.fromkeys(("first", "last", "num_come", "num_ended", "num_resent"), INTEGER),
        **dict.fromkeys(("num_encoder_starts", "num_encoders"), INTEGER),
        **dict.fromkeys(("has_own_waits", "notes_encoder_starts", "will_parse"), BOOLEAN),
        **dict.fromkeys(("spacing", "tokenized_at"), FLOAT),
        "abandoned": Items("d"),
        "events": Items("dqqq"),
        "patience": Pointer(PATIENCE),
        "tries": Column("i"),
    },
)
DELIVERY = Record(
    "delivery",
    {
        **dict.fromkeys(("backlog", "batch", "seen_at"), Items("d")),
        **dict.fromkeys(("cost", "cost_per_token", "network_latency"), FLOAT),
        "streams": BOOLEAN,
    },
)
FINISHES = Record("finishes", {"interval": FLOAT, "is_warm": BOOLEAN, "last": FLOAT})
PORT = Record(
    "port",
    {
        **dict.fromkeys(("bytes_per_token", "free_at", "pace", "seconds", "stalled_since", "waited"), FLOAT),
        **dict.fromkeys(("answers_lone_token", "has_sent"), BOOLEAN),
        **dict.fromkeys(("num_on_way", "role"), INTEGER),
        "landed": Queue(),
        "readers": Items("q"),
    },
)
TRANSFERS = Record(
    "transfers",
    {
        **dict.fromkeys(("asked_max", "asked_output", "prefill_replica"), Column("i")),
        **dict.fromkeys(("bandwidth", "latency", "stalled", "token_latency"), FLOAT),
        **dict.fromkeys(("max_in_transfer", "num_transfers"), INTEGER),
        **dict.fromkeys(("prefill_end", "transfer_end", "transfer_start"), Column("d")),
        "ports": Records(PORT),
        **dict.fromkeys(("senders", "stranded"), Items("q")),
        **dict.fromkeys(("is_counted", "stage"), Column("b")),
        "notes_sends": BOOLEAN,
        "sends": Items("d"),
    },
)
FLEET_STATE = Record(
    "fleet_state",
    {
        "busy_seconds": Items("d"),
        **dict.fromkeys(("calls", "ended", "last_joined", "marks", "parked"), Items("q")),
        "heard_at": Items("d"),
        **dict.fromkeys(("num_joined", "order", "reason", "subject"), INTEGER),
        "joined": Column("q"),
        "notes_ends": BOOLEAN,
        "time": FLOAT,
    },
)
RESPONSE_CACHE = Record(
    "response_cache",
    {
        **dict.fromkeys(("expiry", "latency"), FLOAT),
        "is_filled": BOOLEAN,
        "made_at": Column("d"),
        **dict.fromkeys(("num_expired", "num_first"), INTEGER),
        "question": Column("q"),
    },
)
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
    {
        **dict.fromkeys(("before", "behind"), Column("q")),
        **dict.fromkeys(("counters", "service", "shares"), Items("d")),
        **dict.fromkeys(("first", "last", "num_waiting", "tried"), Items("q")),
        "kinds": Column("i"),
        "last_emptied": FLOAT,
        **dict.fromkeys(("max_outstanding", "num_parked"), INTEGER),
        "paces": Records(FINISHES),
    },
)
GATEWAY = Record(
    "gateway",
    {
        "api": Pointer(API),
        **dict.fromkeys(("asked_again", "served_by"), Column("b")),
        "cache": Pointer(RESPONSE_CACHE),
        **dict.fromkeys(("discarded_tokens", "num_asked_again"), INTEGER),
        "fair": Pointer(FAIR_TURNS),
        "is_ruled": Items("q"),
        "second": Column("i"),
    },
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
CLIENT_STATE = Record(
    "client_state",
    {
        "asks": INTEGER,
        "clients": Pointer(CLIENTS),
        "delivery": Pointer(DELIVERY),
        "admission_control": Pointer(ADMISSION_CONTROL),
        "draws": INTEGER,
        "finishes": Records(FINISHES),
        "gateway": Pointer(GATEWAY),
        "going": Items("qd"),
        "has_left": Column("b"),
        "leaving": Items("qqd"),
        "lost_tokens": INTEGER,
        "mid_position": INTEGER,
        "mid_time": FLOAT,
        **dict.fromkeys(("num_leaving", "open", "open_pools"), Items("q")),
        "paces": Pointer(PACES),
        "place": Column("i"),
        "fleet_state": Pointer(FLEET_STATE),
        "refusals": Column("q"),
        "regions": Pointer(REGIONS),
        "transfers": Pointer(TRANSFERS),
    },
)
PART = Record("part", {"pools": Items("q"), "ready": Items("q")})
SHARES = Record("shares", {"credits": Items("d"), "weights": Items("d")})
_PLANE: dict[str, Kind] = {
    **dict.fromkeys(
        (
            "counts_tokens",
            "has_ranks",
            "is_divided",
            "is_stale",
            "notes_finishes",
            "routes_least",
            "schedules_ahead",
            "weighs_tokens",
        ),
        BOOLEAN,
    ),
    **dict.fromkeys(("due", "finished", "load_order", "loads", "ready", "seen", "tokens"), Items("q")),
    **dict.fromkeys(("renew_at", "renew_interval"), FLOAT),
    "end_order": Items("d"),
    "client_state": Pointer(CLIENT_STATE),
    "conversations": Pointer(CONVERSATIONS),
    "ends": Items("d"),
    "kinds": Column("i"),
    "parts": Records(PART),
    "pools": Records(PART),
    "ranks": Records(REPLICA),
    "router": Pointer(ROUTER),
    "shares": Pointer(SHARES),
    "replicas": Records(RANKS),
}
PLANE = Record("plane", {name: _PLANE.get(name, INTEGER) for name in DataPlane.__slots__})
