"""A run on compiled code: replicas, requests and the data plane are laid out in flat memory, driven, and read back.

The columns of the request table are used in place, so that a run leaves its results in them. Knows no numba: whoever
builds the compiled function passes it in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.engine.cache_state import KVTier, PrefixPaths
from simserve.engine.compiled import fields
from simserve.engine.compiled.layout import (
    INTEGER,
    Column,
    Copy,
    Index,
    Items,
    Memory,
    Order,
    Pointer,
    Queue,
    Record,
    Records,
    Table,
    View,
)
from simserve.engine.config import EngineConfig
from simserve.engine.gateway import Gateway
from simserve.engine.plane_state import ClientState, DataPlane, Port
from simserve.engine.progress import Progress
from simserve.engine.queue import OrderedQueue
from simserve.engine.state import (
    CONTINUOUS,
    LEAP_WIDTH,
    DataParallelReplica,
    Replica,
    RequestTable,
    StepTimes,
    turn_into,
)

Drive = Callable[[int, int, float], int]
_OF_A_LINK = ("seconds", "waited")
_OF_A_REPLICA = ("identity", "rank")
_OF_REACHES = ("free_reach", "reach_heads", "reaches")


def reason_against(config: EngineConfig) -> str | None:
    """Return in a few words what compiled code does not cover of a run; None: it covers all."""
    checks = {
        "static batching": config.batching == "static",
        "serving without a KV cache": config.kv_allocation == "none",
        "contiguous KV allocation": config.kv_allocation in ("pow2", "oracle"),
    }
    return next((name for name, applies in checks.items() if applies), None)


class Compiled:
    """The data plane in flat memory.

    Args:
        drive: The compiled `simserve.engine.event_plane.drive`.
        plane: The router's state and what is to come. Its replicas have not begun, and are left unchanged.
        requests: All requests; their columns are filled.
    """

    def __init__(self, drive: Drive, plane: DataPlane, requests: RequestTable) -> None:
        self._drive = drive
        self.schedulers = plane.ranks
        self._requests = Memory(fields.REQUESTS)
        for name in fields.REQUESTS.fields:
            self._requests.put(name, getattr(requests, name))
        self._table = requests
        drawn: list[Any] = [requests.pace]
        if plane.client_state.paces is not None:
            drawn.append(plane.client_state.paces.values)
        self._num_paces = 1 + max(int(np.frombuffer(each, dtype=np.int64).max(initial=0)) for each in drawn)
        self._paths: dict[int, Memory] = {}
        self._tiers: dict[int, Memory] = {}
        self._loras: dict[int, Memory] = {}
        self._shared: dict[tuple[int, int, int], _Shared] = {}
        self._ranks = Memory(fields.REPLICA, len(plane.ranks))
        for number, rank in enumerate(plane.ranks):
            self._lay_out(number, rank)
        self._replicas, self._firsts = Memory(fields.RANKS, len(plane.replicas)), [0]
        for number, replica in enumerate(plane.replicas):
            self._lay_out_replica(number, replica)
            self._firsts.append(self._firsts[-1] + replica.num_ranks)
        self._find_ranks()
        self._plane = Memory(fields.PLANE)
        client_state = _laid_out(fields.CLIENT_STATE, plane.client_state)
        assert client_state is not None
        self._client_state = client_state
        own = {
            "client_state": self._client_state,
            "conversations": _laid_out(fields.CONVERSATIONS, plane.conversations),
            "parts": _side_by_side(fields.PART, plane.parts),
            "pools": _side_by_side(fields.PART, plane.pools),
            "router": _laid_out(fields.ROUTER, plane.router),
            "shares": _laid_out(fields.SHARES, plane.shares),
            "ranks": self._ranks,
            "replicas": self._replicas,
        }
        for name in fields.PLANE.fields:
            self._plane.put(name, own[name] if name in own else getattr(plane, name))
        self._plane_address, self._requests_address = self._plane.address, self._requests.address

    def _lay_out(self, number: int, replica: Replica) -> None:
        """Write a replica that has not begun into an empty record."""
        assert replica.mode == CONTINUOUS
        queue = replica.waiting
        ranks = queue.ranks if isinstance(queue, OrderedQueue) else ()
        group = id(replica.config), id(replica.times), id(ranks)
        if group not in self._shared:
            self._shared[group] = _Shared(replica, ranks)
        common = self._shared[group]
        if common.copy is None:
            self._write(number, replica, common)
            common.copy = self._ranks.copy_of(number)
        else:
            # Before they begin, equal replicas differ only in this.
            self._ranks.write_copy(common.copy, number)
            for name in _OF_A_REPLICA:
                self._ranks.put(name, getattr(replica, name), number)
        for name in ("progress", "window_progress"):
            self._ranks.put(name, _progress(getattr(replica, name), self._num_paces), number)
        self._ranks.put("cache", self._cache(replica, number), number)
        self._ranks.put("loras", self._adapters(replica, number), number)

    def _write(self, number: int, replica: Replica, common: _Shared) -> None:
        """Write all of a replica except its counts by pace and its prefix cache."""
        self._ranks.put_numbers(replica, number)
        for name, kind in fields.REPLICA.fields.items():
            if isinstance(kind, str):
                continue
            if isinstance(kind, Queue):
                if name == "waiting" and isinstance(replica.waiting, OrderedQueue):
                    ready_time, ageing = self._table.ready_time, replica.waiting.ageing
                    self._ranks.rank(name, common.ranks, ready_time, ageing, number)
            elif isinstance(kind, Table):
                self._ranks.put(name, common.tables[name], number)
            elif name == "config":
                self._ranks.put(name, common.config, number)
            elif name == "times":
                self._ranks.put(name, common.times, number)
            elif not isinstance(kind, Pointer):
                self._ranks.put(name, getattr(replica, name), number)

    def _lay_out_replica(self, number: int, replica: DataParallelReplica) -> None:
        self._replicas.put_numbers(replica, number)

    def _find_ranks(self) -> None:
        """Set the addresses of every replica's ranks."""
        for number, first in enumerate(self._firsts[:-1]):
            self._replicas.point("ranks", self._ranks, first, number)

    def _cache(self, replica: Replica, number: int) -> Memory | None:
        """Return the empty prefix cache of a replica, with the tiers behind it; None if it has none."""
        own = replica.cache
        if own is None:
            return None
        if id(own.paths) not in self._paths:
            self._paths[id(own.paths)] = paths = _columns(fields.PATHS, own.paths)
            if own.paths.store is not None:
                paths.put("store", _tiers([own.paths.store]))
        cache = Memory(fields.CACHE)
        for name, kind in fields.CACHE.fields.items():
            if isinstance(kind, Order | Index):
                cache.put(name, None)
            elif isinstance(kind, Items | str) and name not in _OF_REACHES:
                cache.put(name, getattr(own, name))
        if own.tiers:
            self._tiers[number] = _tiers(own.tiers)
            cache.put("tiers", self._tiers[number])
        for name in ("ages_empty", "evicts_by_block", "num_fresh"):
            cache.put(name, getattr(own, name))
        cache.put("reach_heads", own.num_others)
        if own.tree is not None:
            tree = Memory(fields.TREE)
            for name, kind in fields.TREE.fields.items():
                tree.put(name, None if isinstance(kind, Order | Index) else getattr(own.tree, name))
            cache.put("tree", tree)
        cache.put("paths", self._paths[id(own.paths)])
        return cache

    def _adapters(self, replica: Replica, number: int) -> Memory | None:
        """Return the adapters of a replica that has loaded none; None if requests have none."""
        own = replica.loras
        if own is None:
            return None
        self._loras[number] = loras = Memory(fields.LORAS)
        for name, kind in fields.LORAS.fields.items():
            loras.put(name, None if isinstance(kind, Order) else getattr(own, name))
        return loras

    def add(self, replica: DataParallelReplica, port: Port | None) -> None:
        """Add a replica to the plane; the caller adds what else the plane knows of it.

        Args:
            replica: The replica.
            port: Its way to other replicas; None: no caches are transferred.
        """
        for rank in replica.ranks:
            self._lay_out(self._ranks.grow(), rank)
        self._lay_out_replica(self._replicas.grow(), replica)
        self._firsts.append(self._firsts[-1] + replica.num_ranks)
        self._find_ranks()
        self._plane.put("ranks", self._ranks)
        self._plane.put("replicas", self._replicas)
        finishes = self._client_state.kept["finishes"]
        finishes.grow()
        self._client_state.put("finishes", finishes)
        if port is not None:
            transfers = self._client_state.kept["transfers"]
            ports = transfers.kept["ports"]
            number = ports.grow()
            for name, kind in fields.PORT.fields.items():
                if not isinstance(kind, Queue):
                    ports.put(name, getattr(port, name), number)
            transfers.put("ports", ports)

    def replace(self, number: int, replica: DataParallelReplica) -> None:
        """Put a replica that has not begun in place of one that is gone."""
        for position, rank in zip(self.ranks_of(number), replica.ranks, strict=True):
            self._ranks.clear(position)
            self._lay_out(position, rank)
        self._lay_out_replica(number, replica)

    def ranks_of(self, number: int) -> range:
        """Return the positions of the schedulers of a replica."""
        return range(self._firsts[number], self._firsts[number + 1])

    def use_times(self, number: int, times: StepTimes) -> None:
        """Let the steps of a rank take ``times`` from the next step on; only between two steps."""
        tables = _Shared.of_times(times)
        for name, table in tables.items():
            self._ranks.put(name, table, number)
        self._ranks.put("times", _numbers(fields.TIMES, times), number)

    @property
    def plane(self) -> View:
        """The data plane in its current state."""
        return View(self._plane)

    def replica(self, number: int) -> View:
        """Return a replica in its current state."""
        ranks = [View(self._ranks, each, config=self.schedulers[each].config) for each in self.ranks_of(number)]
        return View(self._replicas, number, ranks=ranks)

    def drive(self, until: float) -> int:
        """Drive to ``until``, as `simserve.engine.event_plane.drive` says."""
        return self._drive(self._plane_address, self._requests_address, until)

    @property
    def num_arrived(self) -> int:
        """Requests that have arrived so far."""
        return int(self._plane.get("cursor"))

    @property
    def num_ended(self) -> int:
        """Requests that have ended so far."""
        return int(self._client_state.kept["clients"].get("num_ended"))

    @property
    def num_leaving(self) -> int:
        """Requests whose clients have hung up, and that leave with the running step."""
        return self._client_state.length("leaving")

    def read_back(self, client_state: ClientState) -> None:
        """Write the results of the clients into the plane's own record of them."""
        client_state.lost_tokens = int(self._client_state.get("lost_tokens"))
        flat, clients = self._client_state.kept["clients"], client_state.clients
        clients.num_resent, clients.num_ended = int(flat.get("num_resent")), int(flat.get("num_ended"))
        clients.abandoned += flat.drain("abandoned").tolist()
        if client_state.gateway is not None:
            _read_gateway(self._client_state.kept["gateway"], client_state.gateway)
        transfers = client_state.transfers
        if transfers is not None:
            flat = self._client_state.kept["transfers"]
            transfers.num_transfers, transfers.stalled = int(flat.get("num_transfers")), float(flat.get("stalled"))
            transfers.senders = [number for (number,) in flat.entries("senders")]
            for number, port in enumerate(transfers.ports):
                port.seconds, port.waited = (float(flat.kept["ports"].get(name, number)) for name in _OF_A_LINK)

    def num_step_runs(self, numbers: Sequence[int]) -> list[int]:
        """Return how many leaps each of some replicas has recorded."""
        lengths: list[int] = (self._ranks.lengths("step_runs")[list(numbers)] // LEAP_WIDTH).tolist()
        return lengths

    def take_step_runs(self, number: int, rows: NDArray[np.float64]) -> None:
        """Copy the leaps that a replica has recorded into ``rows``, shape [fields, leaps], and clear them."""
        turn_into(rows, self._ranks.peek("step_runs", number).reshape(-1, LEAP_WIDTH))
        self._ranks.lengths("step_runs")[number] = 0

    def take_advances(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Return what a step of each leap with decodes added to the contexts, if replicas speculate."""
        return self._take("advances", numbers)

    def take_batch_log(self, number: int) -> NDArray[np.float64]:
        """Return the log of requests that entered or left a replica's batch, shape [3 * entries], and clear it."""
        return self._ranks.drain("batch_log", number)

    def take_gaps(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Return the irregular gaps of replicas, shape [gaps, 2], and clear them."""
        return self._take("irregular_gaps", numbers).reshape(-1, 2)

    def tiers_of(self, numbers: Sequence[int]) -> list[list[View]]:
        """Return the tiers behind the prefix cache of each of some replicas, in their current state."""
        found = [self._tiers[number] for number in numbers if number in self._tiers]
        return [[View(tiers, level) for level in range(tiers.count)] for tiers in found]

    def store_of(self, paths: PrefixPaths) -> View:
        """Return the store that replicas share, in its current state."""
        return View(self._paths[id(paths)].kept["store"])

    def loras_of(self, numbers: Sequence[int]) -> list[View]:
        """Return the LoRA adapters of some replicas, in their current state."""
        return [View(self._loras[number]) for number in numbers if number in self._loras]

    def take_swapped_blocks(self, numbers: Sequence[int]) -> int:
        """Return how many blocks replicas have swapped since the last call."""
        counts, several = self._ranks.numbers("num_swapped_blocks"), list(numbers)
        total = int(counts[several].sum())
        counts[several] = 0
        return total

    def _take(self, name: str, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Return the contents of a list of several replicas, one after the other, and clear it."""
        lengths = self._ranks.lengths(name)
        taken = [self._ranks.drain(name, number) for number in numbers if lengths[number]]
        return np.concatenate(taken) if taken else np.zeros(0)


class _Shared:
    """What equal replicas share: numbers of their configuration, step times, and ranks in their queues.

    Attributes:
        copy: One of them as it was laid out; None: none has been yet.
    """

    copy: Copy | None = None

    def __init__(self, replica: Replica, ranks: Sequence[float]) -> None:
        self.tables = self.of_times(replica.times)
        self.config = _numbers(fields.CONFIG, replica.config)
        self.times = _numbers(fields.TIMES, replica.times)
        self.ranks = np.array(ranks, dtype=np.float64)

    @staticmethod
    def of_times(times: StepTimes) -> dict[str, NDArray[np.float64]]:
        """Return the tables of step times, by the fields of a replica that hold them."""
        names = [name for name, kind in fields.REPLICA.fields.items() if isinstance(kind, Table)]
        return {name: np.array(getattr(times, name), dtype=np.float64) for name in names}


def _read_gateway(flat: Memory, gateway: Gateway) -> None:
    """Write the gateway's counts into the plane's own record of it."""
    gateway.num_asked_again, gateway.discarded_tokens = flat.get("num_asked_again"), flat.get("discarded_tokens")
    if gateway.cache is not None:
        cache = flat.kept["cache"]
        gateway.cache.num_first, gateway.cache.num_expired = cache.get("num_first"), cache.get("num_expired")
    if gateway.api is not None:
        gateway.api.num_limited = flat.kept["api"].get("num_limited")
    if gateway.fair is not None:
        gateway.fair.service = flat.kept["fair"].peek("service").tolist()


def _columns(record: Record, values: object) -> Memory:
    """Return an object of numbers and columns in flat memory; columns in lists are copied, others used in place."""
    memory = Memory(record)
    memory.put_numbers(values)
    for name, kind in record.fields.items():
        if isinstance(kind, str | Pointer | Records):
            continue
        value = getattr(values, name)
        if isinstance(kind, Column) and isinstance(value, list):
            value = np.array(value, dtype=kind.code)
        memory.put(name, value)
    return memory


def _laid_out(record: Record, values: object | None) -> Memory | None:
    """Return an object and those it refers to in flat memory; columns are used in place, and queues in it are empty."""
    if values is None:
        return None
    memory = _columns(record, values)
    for name, kind in record.fields.items():
        value = getattr(values, name)
        if isinstance(kind, Pointer):
            memory.put(name, _laid_out(kind.record, value))
        elif isinstance(kind, Records):
            memory.put(name, _side_by_side(kind.record, value))
    return memory


def _side_by_side(record: Record, values: Sequence[object]) -> Memory | None:
    """Return equal objects of numbers, lists and queues (as in `_laid_out`), None if there are none."""
    if not values:
        return None
    memory = Memory(record, len(values))
    for number, value in enumerate(values):
        memory.put_numbers(value, number)
        for name, kind in record.fields.items():
            if not isinstance(kind, str | Queue):
                memory.put(name, getattr(value, name), number)
    return memory


def _tiers(tiers: Sequence[KVTier]) -> Memory:
    """Return empty tiers, side by side."""
    memory = Memory(fields.TIER, len(tiers))
    for number, tier in enumerate(tiers):
        for name, kind in fields.TIER.fields.items():
            memory.put(name, None if isinstance(kind, Order | Index) else getattr(tier, name), number)
    return memory


def _numbers(record: Record, values: EngineConfig | StepTimes) -> Memory:
    memory = Memory(record)
    memory.put_numbers(values)
    return memory


def _progress(progress: Progress | None, num_paces: int) -> Memory | None:
    """Return the counts by pace of a replica that has not begun, None if it does not speculate."""
    if progress is None:
        return None
    memory = Memory(fields.PROGRESS)
    for name, kind in fields.PROGRESS.fields.items():
        if kind == INTEGER:
            memory.put(name, getattr(progress, name))
    memory.put("counts", np.zeros(num_paces, dtype=np.int64))
    memory.put("remainders", np.zeros(2 * memory.get("_period") * num_paces, dtype=np.int64))
    return memory
