"""The twin of the page: observes a running deployment in its own thread, and keeps the latest state.

What it observes is set on the command line, never by the page.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from simserve.errors import InputError, SimserveError
from simserve.explore.queries import Check, TwinQuery
from simserve.metrics.summary import in_json
from simserve.planner.twin.answer import Twin

Looks = Callable[[Callable[[str], None]], Iterator[Twin]]
WhatIf = Callable[[Twin, list[str], Check], Twin]


class TwinFeed:
    """The latest look at a deployment, and when the next one is due.

    Args:
        looks: Returns looks one after another: one for saved metrics, endless ones for an address. It gets a function
            to call when a look fails.
        source: Name of what is observed, for the page.
        scenario: Name of the scenario that describes the deployment.
        every: Seconds between looks; None for a single look.
        what_if: Returns another look at the same hours, with some of the scenario's settings changed (as ``--set``
            takes them); None if that may not be asked.
    """

    def __init__(
        self, looks: Looks, *, source: str, scenario: str, every: float | None, what_if: WhatIf | None = None
    ) -> None:
        self._looks, self._every, self._what_if = looks, every, what_if
        self._last: Twin | None = None
        self._about = {"source": source, "scenario": scenario, "every_s": every}
        self._lock = threading.Lock()
        self._summary: dict[str, Any] | None = None
        self._error: str | None = None
        self._due = time.time() + (every or 0.0)
        self._count = 0

    def start(self) -> None:
        """Start to look; the thread ends with the process."""
        threading.Thread(target=self.look, name="twin", daemon=True).start()

    def look(self) -> None:
        """Look, and keep the result; if the source does not answer, keep the previous result and the reason."""
        while True:
            try:
                for found in self._looks(self._miss):
                    self._last = found
                    self._keep(in_json(found.summary), None)
            except SimserveError as failure:
                self._miss(str(failure))
            if self._every is None:
                return
            time.sleep(self._every)

    def asked(self, query: TwinQuery, check: Check) -> dict[str, Any]:
        """Return ``changes`` and the ``summary`` of the hours of the last look with these.

        Raises:
            InputError: There was no look yet, or the settings are not valid together.
            TooLongError: It took too long.
        """
        last = self._last
        if last is None or self._what_if is None:
            raise InputError("has not been looked at yet", key="what-if", remedy="wait for the first look")
        changes = query.overrides()
        found = self._what_if(last, changes, check)
        return {"changes": changes, "summary": in_json({**found.summary, "series": {}})}

    def state(self) -> dict[str, Any]:
        """Return ``source scenario every_s``, the last ``summary`` or null, the number of looks (``count``), why the
        last one failed (``error``), and when the next one is due (``due_s``, since 1970).
        """
        with self._lock:
            due = None if self._every is None else self._due
            return {**self._about, "summary": self._summary, "error": self._error, "count": self._count, "due_s": due}

    def _miss(self, words: str) -> None:
        self._keep(None, words)

    def _keep(self, summary: dict[str, Any] | None, error: str | None) -> None:
        with self._lock:
            self._summary = summary or self._summary
            self._error = error
            self._count += 1
            self._due = time.time() + (self._every or 0.0)
