"""SGLang's ranks of data-parallel attention, which step together, with its prefill delayer (`sglang_schedule`).

Every rank is a scheduler of its own, in a thread of its own: before each step all tell each other what they know, as
in the all-gather for which `Meeting` stands. An idle rank idles along. A request goes to the rank with the fewest.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import sglang
import torch
from sglang.srt.managers import prefill_delayer

if sglang.__version__ == "0.5.9":
    from sglang_early import Bare
else:
    from sglang_recent import Bare

WAITING_LONGEST = 5000.0
"""Milliseconds, its default: only the wait for a queue, which is off, asks for them."""


class Meeting:
    """Where the ranks tell each other what they know: each waits until all have come."""

    def __init__(self, num_ranks):
        self.rows, self.barrier = [None] * num_ranks, threading.Barrier(num_ranks)

    def gather(self, position, row):
        """Return what all have told, a row for each rank."""
        self.rows[position] = row
        self.barrier.wait()
        table = torch.tensor(self.rows)
        self.barrier.wait()
        return table


class Delayer(prefill_delayer.PrefillDelayer):
    """The delayer of a rank, without process groups."""

    def __init__(self, meeting, position, case):
        self.meeting, self.position = meeting, position
        self._max_delay_passes = case["prefill_delayer_max_delay_passes"]
        self._token_usage_low_watermark = case["prefill_delayer_token_usage_low_watermark"] or None
        self._queue_min_ratio = self._prefill_max_requests = self._metrics_collector = self._curr_state = None
        self._queue_trigger_enabled = self._debug_log_enabled = False
        self._max_delay_ms = WAITING_LONGEST
        # Their number of ranks is read only without data-parallel attention.
        self.attn_dp_enabled = self.enable_dp_attention = self.skip_first_delayer = True

    def _gather_info(self, **known):
        table = self.meeting.gather(self.position, [int(each) for each in known.values()])
        return (table[:, 0], table[:, 1]) if sglang.__version__ == "0.5.9" else table


class Together:
    """A case on the schedulers of several ranks, in their normal loop or, with ``async_scheduling``, overlapped."""

    def __init__(self, case, ask, next_token):
        self.case, self.ask, self.next_token = case, ask, next_token
        meeting = Meeting(case["data_parallel_size"])
        self.ranks = [Bare(case) for _ in meeting.rows]
        for position, rank in enumerate(self.ranks):
            rank.prefill_delayer = Delayer(meeting, position, case)
            rank.max_prefill_bs, rank.max_total_num_tokens = 0, case["num_tokens"]
            rank.observe_memory()
        self.arrivals = deque(enumerate(case["requests"]))
        self.rows = [
            {"scheduled": None, "first_token": None, "finish": None, "preemptions": 0, "cached": 0}
            for _ in case["requests"]
        ]
        self.num_left, self.now, self.free_at = len(self.rows), 0.0, 0.0
        self.on_way = []

    def receive(self, until):
        """Send what has arrived to the ranks in turn, as SGLang's controller does."""
        while self.arrivals and self.arrivals[0][1]["arrival"] <= until:
            index, asked = self.arrivals.popleft()
            self.on_way.append((index % len(self.ranks), self.ask(self.case, index, asked), asked["arrival"]))

    def hand_over(self):
        """Give the ranks what was sent to them."""
        for rank, request, arrival in self.on_way:
            self.ranks[rank].now = arrival
            self.ranks[rank]._add_request_to_queue(request)
        self.on_way.clear()
        for rank in self.ranks:
            rank.now = self.now

    def launch(self, batches):
        """Return the batches of all ranks as they are now, and when they have run: all as long as the longest."""
        start, tokens = max(self.now, self.free_at), 0
        for batch in batches:
            if batch is None:
                continue
            tokens = max(tokens, batch.extend_num_tokens if batch.forward_mode.is_extend() else len(batch.reqs))
            for request in batch.reqs:
                row = self.rows[int(request.rid)]
                if row["scheduled"] is None:
                    row["scheduled"], row["cached"] = start, request.cached_tokens
            batch.output_ids = torch.zeros(len(batch.reqs), dtype=torch.int64)
        self.free_at = start + self.case["step_seconds"] + self.case["token_seconds"] * tokens
        return [batch and batch.copy() for batch in batches], self.free_at

    def process(self, batches, end):
        """Hand the tokens of a step to the schedulers, and note who has got what at its end."""
        self.now = max(self.now, end)
        if not self.case["async_scheduling"]:
            self.receive(self.now)
        for rank, batch in zip(self.ranks, batches, strict=True):
            if batch is None:
                continue
            rank.process(batch, [self.next_token(self.case, request) for request in batch.reqs])
            for request in batch.reqs:
                row = self.rows[int(request.rid)]
                if request.output_ids and row["first_token"] is None:
                    row["first_token"] = self.now
                if request.finished() and row["finish"] is None:
                    row["finish"] = self.now
                    row["preemptions"] = rank.num_retracted.get(request.rid, 0)
                    self.num_left -= 1

    def run(self):
        """Serve everything; overlapped, a step is launched before the one before it is processed."""
        is_overlapped, num_idle, launched = self.case["async_scheduling"], 0, deque()
        with ThreadPoolExecutor(len(self.ranks)) as threads:
            while self.num_left or launched:
                self.receive(self.now)
                self.hand_over()
                queued = [
                    deque((batches[position], end) for batches, end in launched if batches[position])
                    for position in range(len(self.ranks))
                ]
                batches = list(threads.map(lambda rank, ahead: rank.next_batch(ahead), self.ranks, queued))
                is_idle = not any(batches)
                if not is_idle:
                    launched.append(self.launch(batches))
                if launched and (len(launched) > is_overlapped or is_idle):
                    self.process(*launched.popleft())
                    num_idle = 0
                elif is_idle:
                    # Their loops go round: prompts may begin once they have waited for long enough.
                    num_idle += 1
                    for rank in self.ranks:
                        rank.begin_anew()
                    is_waiting = any(rank.waiting_queue for rank in self.ranks)
                    if num_idle > 3 + self.case["prefill_delayer_max_delay_passes"] or not is_waiting:
                        if not self.arrivals:
                            raise RuntimeError(f"stuck at {self.now} s")
                        self.now, num_idle = max(self.now, self.arrivals[0][1]["arrival"]), 0
                for rank, batch in zip(self.ranks, batches, strict=True):
                    rank.last_batch = batch
        return {"requests": self.rows}
