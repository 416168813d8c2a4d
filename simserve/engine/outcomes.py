"""What becomes of requests besides completion, and why: the codes of the table's columns ``status`` and ``reason``."""

from __future__ import annotations

REJECTED, TIMED_OUT = 1, 2
"""Beside `simserve.engine.state`'s COMPLETED, FAILED and UNFINISHED."""

ADMITTED = 0
RATE_LIMIT, QUEUE_FULL, KV_HEADROOM, LOAD, DEADLINE, GAVE_UP = range(2, 8)
"""Refused at the admission control, by the rules of `simserve.engine.admission_control`; given up by its client."""
API_LIMIT = 10
"""Refused by the API that it went to."""
TASK_CANCELLED = 11
"""Given up with the agent's task that it is a call of, or never sent for that."""
