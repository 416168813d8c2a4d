"""Run SGLang's own scheduler over workloads and print what it scheduled. Imports SGLang; knows nothing of simserve.

As `tests.real_engines.vllm_schedule`, with `Scheduler.get_next_batch_to_run`, `PrefillAdder` and `ScheduleBatch` of the
wheel: its normal loop and its overlapped one, on token pools in host memory, with a radix cache where prompts share
tokens.
"""

# What the imports of SGLang ask for must be there before them.
# ruff: noqa: I001

from __future__ import annotations

import json
import sys
from collections import deque

import sglang_absent  # noqa: F401
import sglang
import torch

from sglang_ranks import Together

if sglang.__version__ == "0.5.9":
    from sglang_early import Bare, request_of
else:
    from sglang_recent import Bare, request_of

STOP = 0
ANSWERS, SPAN = 10_000_000, 10_000
"""Tokens of answers, as `tests.real_engines.workloads` draws what follows them."""


def ask(case, index, asked):
    """Return a request as its scheduler takes it."""
    sampling = {"max_new_tokens": asked.get("max_tokens", asked["output"]), "stop_token_ids": [STOP]}
    request = request_of(str(index), list(asked["prompt"]), {**sampling, "ignore_eos": case["ignore_eos"]})
    request.tokenizer = None
    request.priority = asked.get("priority", 0)
    return request


def next_token(case, request):
    """Return the token that a request generates next; one that stops it, where it may generate more."""
    index, position = int(request.rid), len(request.output_ids)
    asked = case["requests"][index]
    is_last = position + 1 == asked["output"] < asked.get("max_tokens", 0)
    return STOP if is_last else ANSWERS + SPAN * index + position


class Served:
    """A case on the scheduler, in its normal loop or, with ``async_scheduling``, in its overlapped one."""

    def __init__(self, case):
        self.case, self.scheduler = case, Bare(case)
        self.arrivals = deque(enumerate(case["requests"]))
        self.rows = [
            {"scheduled": None, "first_token": None, "finish": None, "preemptions": 0, "cached": 0}
            for _ in case["requests"]
        ]
        self.num_left = len(self.rows)
        self.now = self.free_at = 0.0

    def receive(self):
        """Hand over the requests that have arrived."""
        while self.arrivals and self.arrivals[0][1]["arrival"] <= self.now:
            index, asked = self.arrivals.popleft()
            self.scheduler.now = asked["arrival"]
            self.scheduler._add_request_to_queue(ask(self.case, index, asked))
        self.scheduler.now = self.now

    def launch(self, batch):
        """Return a batch as it is now, and when it has run: behind the one before it."""
        start = max(self.now, self.free_at)
        tokens = batch.extend_num_tokens if batch.forward_mode.is_extend() else len(batch.reqs)
        for request in batch.reqs:
            row = self.rows[int(request.rid)]
            if row["scheduled"] is None:
                row["scheduled"], row["cached"] = start, request.cached_tokens
        self.free_at = start + self.case["step_seconds"] + self.case["token_seconds"] * tokens
        # What it will have generated is known later; nothing reads these.
        batch.output_ids = torch.zeros(len(batch.reqs), dtype=torch.int64)
        return batch.copy(), self.free_at

    def process(self, batch, end):
        """Hand the tokens of a batch to the scheduler, and note who has got what at its end."""
        self.now, scheduler = max(self.now, end), self.scheduler
        scheduler.process(batch, [next_token(self.case, request) for request in batch.reqs])
        for request in batch.reqs:
            row = self.rows[int(request.rid)]
            if request.output_ids and row["first_token"] is None:
                row["first_token"] = self.now
            if request.finished() and row["finish"] is None:
                row["finish"] = self.now
                row["preemptions"] = scheduler.num_retracted.get(request.rid, 0)
                self.num_left -= 1

    def run(self):
        """Serve everything; overlapped, a batch is launched before the one before it is processed."""
        scheduler, is_overlapped, num_idle = self.scheduler, self.case["async_scheduling"], 0
        launched = deque()
        while self.num_left or launched:
            self.receive()
            batch = scheduler.next_batch(launched)
            if batch is not None:
                launched.append(self.launch(batch))
            if launched and (len(launched) > is_overlapped or batch is None):
                self.process(*launched.popleft())
                num_idle = 0
            elif batch is None:
                # Its loop goes round: the batch may only now be known to be empty.
                scheduler.begin_anew()
                num_idle += 1
                if num_idle == 3 or not scheduler.waiting_queue:
                    if not self.arrivals:
                        raise RuntimeError(f"stuck at {self.now} s")
                    self.now, num_idle = max(self.now, self.arrivals[0][1]["arrival"]), 0
            scheduler.last_batch = batch
        return {"requests": self.rows}


def main():
    """Serve the cases of stdin."""
    schedules = []
    for case in json.load(sys.stdin):
        is_ranked = case["data_parallel_size"] > 1
        schedules.append((Together(case, ask, next_token) if is_ranked else Served(case)).run())
    json.dump({"version": sglang.__version__, "schedules": schedules}, sys.stdout)


if __name__ == "__main__":
    main()
