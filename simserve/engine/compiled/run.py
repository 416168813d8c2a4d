"""A run on compiled code: replicas, requests and the data plane laid out flat, driven, and read again.

The columns of the request table are used where they are, so that a run leaves its results in them. Knows no numba:
whoever builds the compiled function hands it over.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simserve.engine.compiled import fields
from simserve.engine.compiled.layout import INTEGER, Column, Index, Items, Memory, Order, Pointer, Queue, Record, Table
from simserve.engine.config import EngineConfig
from simserve.engine.data_plane import DataPlane
from simserve.engine.leaps import LEAP_WIDTH
from simserve.engine.queue import OrderedQueue
from simserve.engine.state import CONTINUOUS, Replica, RequestTable
from simserve.engine.tables import StepTimes

Drive = Callable[[int, int, float], int]


def reason_against(config: EngineConfig, keeps_steps: bool) -> str | None:
    """Return what of a run compiled code does not cover, in a few words; None: it covers all."""
    checks = {
        "static batching": config.batching == "static",
        "serving without a KV cache": config.kv_allocation == "none",
        "contiguous KV allocation": config.kv_allocation in ("pow2", "oracle"),
        "preemption by priority": config.scheduling_policy == "priority" and config.priority_preemption,
        "a tier behind the prefix cache": config.num_offload_blocks > 0,
        "data-parallel attention": config.data_parallel_size > 1,
        "a timeline of every step": keeps_steps,
    }
    return next((name for name, applies in checks.items() if applies), None)


class Compiled:
    """The data plane in flat memory.

    Args:
        drive: The compiled `simserve.engine.data_plane.driver`.
        plane: Whose turn it is and what is to come.
        replicas: Those of the plane. They have not begun, and stay as they are.
        requests: All requests; their columns are filled.
    """

    def __init__(self, drive: Drive, plane: DataPlane, replicas: list[Replica], requests: RequestTable) -> None:
        self._drive = drive
        self.replicas = replicas
        self._requests = Memory(fields.REQUESTS)
        for name in fields.REQUESTS.fields:
            self._requests.put(name, getattr(requests, name))
        times = replicas[0].times
        tables = {name: np.array(getattr(times, name), dtype=np.float64) for name in _tables()}
        shared = {"config": _numbers(fields.CONFIG, replicas[0].config), "times": _numbers(fields.TIMES, times)}
        behind = np.zeros(len(requests.ready_time), dtype=np.int64)
        caches = _caches(replicas)
        queue = replicas[0].waiting
        ranks = np.array(queue.ranks if isinstance(queue, OrderedQueue) else (), dtype=np.float64)
        self._replicas = Memory(fields.REPLICA, len(replicas))
        for number, replica in enumerate(replicas):
            assert replica.mode == CONTINUOUS
            for name, kind in fields.REPLICA.fields.items():
                if isinstance(kind, Queue):
                    self._replicas.put(name, behind, number)
                    if isinstance(replica.waiting, OrderedQueue):
                        self._replicas.rank(name, ranks, requests.ready_time, replica.waiting.ageing, number)
                elif name in tables:
                    self._replicas.put(name, tables[name], number)
                elif name in shared:
                    self._replicas.put(name, shared[name], number)
                elif name == "progress":
                    self._replicas.put(name, _progress(replica, requests), number)
                elif name == "cache":
                    self._replicas.put(name, caches[number], number)
                elif not isinstance(kind, Pointer):
                    self._replicas.put(name, getattr(replica, name), number)
        self._plane = Memory(fields.PLANE)
        own = {"units": self._replicas, "router": _router(plane), "conversations": _conversations(plane)}
        for name in fields.PLANE.fields:
            self._plane.put(name, own[name] if name in own else getattr(plane, name))
        self._plane_address, self._requests_address = self._plane.address, self._requests.address

    def drive(self, until: float) -> int:
        """Drive to ``until``, as `simserve.engine.data_plane.driver` says."""
        return self._drive(self._plane_address, self._requests_address, until)

    @property
    def unsent(self) -> list[tuple[float, int]]:
        """Requests that were to reach the router, and have not: their times and indices."""
        return self._plane.pairs("sent")

    @property
    def num_arrived(self) -> int:
        """Requests that have arrived so far."""
        return int(self._plane.get("cursor"))

    @property
    def num_finished(self) -> int:
        """Requests that have completed so far."""
        return int(self._plane.get("num_finished"))

    def num_leaps(self, number: int) -> int:
        """Return how many leaps a replica has written down."""
        return self._replicas.length("leaps", number) // LEAP_WIDTH

    def take_leaps(self, number: int) -> NDArray[np.float64]:
        """Return the leaps that a replica has written down, shape [leaps, fields], and forget them."""
        return self._replicas.drain("leaps", number).reshape(-1, LEAP_WIDTH)

    def take_advances(self, number: int) -> NDArray[np.float64]:
        """Return what a step of each leap with decodes added to the contexts, where a replica speculates."""
        return self._replicas.drain("advances", number)

    def take_gaps(self, number: int) -> NDArray[np.float64]:
        """Return a replica's irregular gaps, shape [gaps, 2], and forget them."""
        return self._replicas.drain("irregular_gaps", number).reshape(-1, 2)

    def take_swapped_blocks(self, number: int) -> int:
        """Return how many blocks a replica has swapped since it was last asked."""
        blocks = int(self._replicas.get("num_swapped_blocks", number))
        self._replicas.put("num_swapped_blocks", 0, number)
        return blocks


def _tables() -> list[str]:
    return [name for name, kind in fields.REPLICA.fields.items() if isinstance(kind, Table)]


def _columns(record: Record, values: object) -> Memory:
    """Return an object of numbers and columns; columns in lists are copied, others used where they are."""
    memory = Memory(record)
    for name, kind in record.fields.items():
        value = getattr(values, name)
        if isinstance(kind, Column) and isinstance(value, list):
            value = np.array(value, dtype=kind.code)
        if not isinstance(kind, Pointer):
            memory.put(name, value)
    return memory


def _router(plane: DataPlane) -> Memory:
    memory = _columns(fields.ROUTER, plane.router)
    if plane.router.affinity is not None:
        memory.put("affinity", _columns(fields.AFFINITY, plane.router.affinity))
    return memory


def _conversations(plane: DataPlane) -> Memory | None:
    return None if plane.conversations is None else _columns(fields.CONVERSATIONS, plane.conversations)


def _numbers(record: Record, values: EngineConfig | StepTimes) -> Memory:
    memory = Memory(record)
    for name in record.fields:
        memory.put(name, getattr(values, name))
    return memory


def _caches(replicas: list[Replica]) -> list[Memory | None]:
    """Return the empty prefix caches of replicas, None where they have none."""
    first = replicas[0].cache
    if first is None:
        return [None] * len(replicas)
    paths = _columns(fields.PATHS, first.paths)
    caches: list[Memory | None] = []
    for _ in replicas:
        cache = Memory(fields.CACHE)
        for name, kind in fields.CACHE.fields.items():
            if isinstance(kind, Order | Index):
                cache.put(name, None)
            elif isinstance(kind, Items) and name not in ("reach_heads", "reaches"):
                cache.put(name, getattr(first, name))
        cache.put("reach_heads", first.num_others)
        cache.put("paths", paths)
        caches.append(cache)
    return caches


def _progress(replica: Replica, requests: RequestTable) -> Memory | None:
    """Return the counts by pace of a replica that has not begun, None where it does not speculate."""
    if replica.progress is None:
        return None
    memory = Memory(fields.PROGRESS)
    for name, kind in fields.PROGRESS.fields.items():
        if kind == INTEGER:
            memory.put(name, getattr(replica.progress, name))
    num_paces = max(requests.pace) + 1
    memory.put("counts", np.zeros(num_paces, dtype=np.int64))
    memory.put("remainders", np.zeros(2 * memory.get("_period") * num_paces, dtype=np.int64))
    return memory
