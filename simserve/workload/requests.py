"""RequestSpecs: what arrives, as columns, one row per request in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simserve.workload.arrival_spec import STATIONARY, Arrivals
from simserve.workload.class_spec import ClassSpec

if TYPE_CHECKING:
    from simserve.workload.dependencies import Dependencies
    from simserve.workload.prefixes import PrefixSegments
    from simserve.workload.traces.media import RecordedMedia

OPEN = -1  # In `RequestSpecs.loop`: the request, or its conversation, arrives at a time of its own.
_OF_ROWS = ("prefixes", "dependencies", "images", "audio", "recorded_images", "recorded_audio", "encoder_pool")
"""Columns that consist of several arrays and select rows themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaColumns:
    """The images, or the recordings, of all requests, one row per request; all shape [N]."""

    count: NDArray[np.int64]  # Images or recordings, int64.
    tokens: NDArray[np.int64]  # Tokens of the prompt that stand for them, int64.
    prompt_tokens: NDArray[np.int64]  # The same, including those of earlier turns that the prompt contains, int64.
    preprocess_seconds: NDArray[np.float64]  # CPU time to prepare them before the prompt is complete, float64.
    encoder_seconds: NDArray[np.float64]  # Time to encode them, over all GPUs that do, float64.

    def of_rows(self, rows: NDArray[np.int64]) -> MediaColumns:
        """Return the rows of some requests, in that order."""
        return MediaColumns(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPool:
    """GPUs that encode images and recordings before the router sees a request; one row per request, shape [N]."""

    num_workers: int  # Number of workers; at the start, if it follows the load.
    seconds: NDArray[np.float64]
    """Time to encode everything in a request, over all workers, float64; 0: nothing to encode."""
    num_parts: NDArray[np.int64]  # Number of equal parts that this is divided into, one per worker, int64.
    transfer_seconds: NDArray[np.float64]  # Time to transfer its embeddings to its replica, float64.
    max_workers: int | None = None  # Most workers, if their number follows the load; else None.

    def of_rows(self, rows: NDArray[np.int64]) -> EncoderPool:
        """Return the rows of some requests, in that order."""
        return replace(
            self,
            seconds=self.seconds[rows],
            num_parts=self.num_parts[rows],
            transfer_seconds=self.transfer_seconds[rows],
        )


@dataclass(frozen=True, slots=True)
class ClientLoop:
    """The clients of one closed loop."""

    concurrency: int  # Number of clients.
    ramp_up: float | None = None  # Seconds over which they begin, evenly, the first one at 0; None: all at 0.

    def begins_at(self, client: int) -> float:
        """Return when a client, counted from 0, sends its first request, seconds."""
        return (self.ramp_up or 0.0) * client / self.concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpecs:
    """The requests of one run, in order of arrival (row i is request i)."""

    arrival_time: NDArray[np.float64]
    """Seconds from the start of the run, ascending, float64 (of conversations: see ``turn``). In a closed loop
    (``concurrency`` not None) all NaN: a client sends request i when an earlier one is answered."""
    prompt_tokens: NDArray[np.int64]  # >= 1, int64.
    output_tokens: NDArray[np.int64]  # Tokens the model would generate before it stops, >= 1, int64.
    max_tokens: NDArray[np.int64]
    """Most tokens the client asks for, >= 1, int64. ``-1`` stands for the model's limit (``max_model_len -
    prompt_tokens``)."""
    think_time: NDArray[np.float64]
    """Closed loop and conversations: seconds between a client's answer and its sending of request i, float64; empty
    in an open loop without conversations."""
    concurrency: int | None
    """Closed loop: number of clients; the first ``concurrency`` requests are their first. None: open. With several
    closed loops: the total."""
    is_stationary: bool  # Whether arrivals are open-loop and stationary, so that a warm-up may be cut.
    offered_rate: float  # Requests/s that the scenario asks for, or NaN (closed loop, all at once).
    pace: NDArray[np.int64] | None = None
    """Speculative decoding: tokens per decode step that each request gains, drawn beforehand, in sixteenths
    (`simserve.engine.progress.GRID`), int64; None: not drawn."""
    priority: NDArray[np.int64] | None = None  # Lower goes first, int64; None: all equal.
    classes: tuple[ClassSpec, ...] = ()  # The classes of requests, in the order of the scenario; empty: no classes.
    request_class: NDArray[np.int16] | None = None
    """Class of each request, an index into ``classes``, int16; None without classes."""
    seed: int = 0  # Seed of the run that they were drawn for, for draws during the run (pauses, routes, losses).
    replication: int = 0  # Replication of that run.
    prefixes: PrefixSegments | None = None
    """Contents of the tokens of each request, if any are shared; None: all prompts are different."""
    session: NDArray[np.int64] | None = None
    """Number of the conversation of each request, int64; None: no conversations."""
    turn: NDArray[np.int64] | None = None
    """Its turn there, from 1, int64; None: arrivals wait for no answer. Requests of a conversation are adjacent, by
    turn; a turn may have several, which are sent together. The first turn arrives at ``arrival_time`` (in a closed
    loop, when a client is free), each further one ``think_time`` after the last answer of the turn before; its
    ``arrival_time`` is NaN, or the earliest time at which it is sent. Among conversations, a single request is a
    conversation of one turn with a negative number as its session."""
    adapter: NDArray[np.int64] | None = None
    """LoRA adapter of each request, from 0, -1: none, int64; None: no request has one."""
    dependencies: Dependencies | None = None
    """Agents' tasks: which calls each call waits for; None: no tasks. ``session`` is then the number of the task, and
    ``turn`` the depth of the call in it, from 1; rows of a task are adjacent, those without parents first. A call is
    sent ``think_time`` after the last answer to its parents; its ``arrival_time`` is NaN, or the earliest time at
    which it is sent."""
    ramp_up: float | None = None
    """Closed loop: seconds over which the clients begin, evenly, the first one at 0; None: all at 0."""
    closes_at: float | None = None
    """Closed loop: when clients stop, seconds; requests due then or later are never sent. None: they go on to the
    last request."""
    loop: NDArray[np.int8] | None = None
    """Which closed loop sends each request, an index into ``loops``, or `OPEN`, int8; those of a loop are adjacent.
    None: all requests are of one kind, open or closed loop."""
    loops: tuple[ClientLoop, ...] = ()  # With ``loop``: the clients.
    thinking_tokens: NDArray[np.int64] | None = None
    """Of ``output_tokens``, those of thinking before the answer, int64; None: no request thinks."""
    own_wait: NDArray[np.float64] | None = None
    """Seconds that each request waits after the tokeniser, for its images and recordings to be prepared and for its
    grammar, float64; others pass it (`in_order_of_readiness`). None: no waits."""
    is_prefill_only: NDArray[np.bool_] | None = None
    """Whether a request ends with its prompt, like an embedding: it generates one token for the engine, and none for
    its client, bool; None: all have answers."""
    recorded_images: RecordedMedia | None = None
    """Images of each request according to the trace; None: the trace does not say."""
    recorded_audio: RecordedMedia | None = None  # The same for recordings.
    counts_media: bool = False  # Whether ``prompt_tokens`` already include the tokens of both.
    images: MediaColumns | None = None  # Columns of the images of each request; None: no images.
    audio: MediaColumns | None = None  # Columns of the recordings of each request; None: no recordings.
    encoder_seconds: NDArray[np.float64] | None = None
    """Time that encoding them adds to its first step, float64; None: none to encode."""
    earlier_images: NDArray[np.int64] | None = None
    """Nearest earlier request whose prompt begins each one's prompt and that has images or recordings; -1: none,
    int64. Its images and recordings are encoded again if a prefix cache does not hold them. None: no prompt contains
    another."""
    image_ends: NDArray[np.int64] | None = None
    """Prompt token at which the images and recordings of each request end, int64; None: they end the prompt."""
    encoder_pool: EncoderPool | None = None
    """Encodes both instead of the replicas, between ``own_wait`` and the router; None: no such pool."""
    time_limit: NDArray[np.float64] | None = None
    """Seconds that the client of each call allows for its task, from the first call on, float64, inf: no limit; the
    same in all calls of a task. None: no limits."""

    @classmethod
    def arriving(
        cls,
        arrivals: Arrivals | None,
        classes: tuple[ClassSpec, ...],
        request_class: NDArray[np.int16] | None,
        **columns: Any,
    ) -> RequestSpecs:
        """Return requests with the given columns, and what their arrivals and classes say of them."""
        told: dict[str, Any] = {
            "concurrency": getattr(arrivals, "concurrency", None),
            "ramp_up": getattr(arrivals, "ramp_up", None),
            "is_stationary": isinstance(arrivals, STATIONARY),
            "classes": classes,
            "request_class": request_class,
        }
        if request_class is not None and any(each.priority is not None for each in classes):  # 0 if a class sets none
            told["priority"] = np.array([each.priority or 0 for each in classes], dtype=np.int64)[request_class]
        return cls(**told | columns)

    @property
    def client_loops(self) -> tuple[ClientLoop, ...]:
        """The clients of every closed loop; empty in an open one."""
        if self.loop is not None or self.concurrency is None:
            return self.loops
        return (ClientLoop(self.concurrency, self.ramp_up),)

    @property
    def loop_of_each(self) -> NDArray[np.int8]:
        """Index into `client_loops` of the loop that sends each request; `OPEN`: none."""
        if self.loop is not None:
            return self.loop
        return np.full(len(self), OPEN if self.concurrency is None else 0, dtype=np.int8)

    @property
    def has_open_arrivals(self) -> bool:
        """Whether any request, or conversation, arrives at a time of its own."""
        return self.concurrency is None if self.loop is None else bool((self.loop < 0).any())

    def begins_at(self, client: int) -> float:
        """Return when a client of a closed loop, counted from 0, sends its first request, seconds."""
        return self.client_loops[0].begins_at(client)

    @property
    def task(self) -> NDArray[np.int64] | None:
        """Number of the task of each call, negative if it has none; None: no tasks."""
        return None if self.dependencies is None else self.session

    @property
    def sends_out_of_order(self) -> bool:
        """Whether requests may be sent in a different order than that of the rows."""
        return self.turn is not None or self.ramp_up is not None or self.own_wait is not None

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.prompt_tokens)

    def of_rows(self, rows: NDArray[np.int64]) -> RequestSpecs:
        """Return some requests, in that order."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        changed: dict[str, Any] = {
            name: column[rows] for name, column in columns.items() if isinstance(column, np.ndarray) and len(column)
        }
        for name in _OF_ROWS:
            if columns[name] is not None:
                changed[name] = columns[name].of_rows(rows)
        if self.earlier_images is not None:
            place = np.full(len(self) + 1, -1, dtype=np.int64)
            place[rows] = np.arange(len(rows))
            changed["earlier_images"] = place[self.earlier_images[rows]]
        return replace(self, **changed)

    def with_roots_first(self) -> RequestSpecs:
        """Return tasks from which calls have been removed, with the calls that wait for no remaining call first."""
        assert self.dependencies is not None
        assert self.session is not None
        waits = self.dependencies.num_parents > 0
        task = np.cumsum(np.diff(self.session, prepend=self.session[:1]) != 0)
        order = np.lexsort((waits, task))
        ordered = self.of_rows(order)
        assert ordered.dependencies is not None
        return replace(ordered, turn=ordered.dependencies.depths())

    def first(self, num_requests: int) -> RequestSpecs:
        """Return only the first requests; all of them if there are fewer."""
        return self.of_rows(np.arange(min(num_requests, len(self))))

    def within(self, seconds: float | None) -> RequestSpecs:
        """Return tasks with ``seconds`` as the time limit of each; None: no limit."""
        return self if seconds is None else replace(self, time_limit=np.full(len(self), seconds))

    def waiting(self, seconds: NDArray[np.float64]) -> RequestSpecs:
        """Return requests with ``seconds`` added to the own wait of each before it reaches the router."""
        return replace(self, own_wait=seconds if self.own_wait is None else self.own_wait + seconds)

    def in_order_of_readiness(self) -> RequestSpecs:
        """Return requests that arrive at times of their own in the order in which their waits end; others unchanged."""
        is_open = self.turn is None and self.loop is None and self.concurrency is None
        if self.own_wait is None or not is_open:
            return self
        return self.of_rows(np.argsort(self.arrival_time + self.own_wait, kind="stable"))

    def without_answers(self) -> RequestSpecs:
        """Return the same, with requests without output tokens ending with their prompt."""
        has_none = self.output_tokens == 0
        if not has_none.any():
            return self
        return replace(
            self,
            output_tokens=np.maximum(self.output_tokens, 1),
            max_tokens=np.where(has_none, 1, self.max_tokens),
            is_prefill_only=has_none,
        )

    def visible_output(self, generated: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of the tokens that engines generated reach clients."""
        return generated if self.is_prefill_only is None else np.where(self.is_prefill_only, 0, generated)
