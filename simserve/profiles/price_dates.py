"""Dates of prices: how much of a date is known, and whether a price is old. Does not know today's date.

Age is judged against a date that the caller gives, or the newest date of the catalogue: the same files give the same
answer on any day.
"""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from simserve.errors import UsageError

OLD_AFTER_DAYS = 365  # A price seen more than a year before the newest of its catalogue is marked old.


def _as_date_text(value: Any) -> Any:
    """Return a date as text: YAML reads an unquoted 2026-08-06 as a date."""
    return value.isoformat() if isinstance(value, datetime.date) else value


Date = Annotated[str, Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$"), BeforeValidator(_as_date_text)]
"""YYYY-MM-DD, YYYY-MM, or YYYY if no more is known."""


def last_day(date: str) -> datetime.date:
    """Return the last day that a date may mean: for ``"2026"`` its 31st of December.

    Raises:
        ValueError: There is no such day.
    """
    parts = [int(part) for part in date.split("-")]
    year, month = parts[0], parts[1] if len(parts) > 1 else 12
    day = parts[2] if len(parts) > 2 else calendar.monthrange(year, month)[1]
    return datetime.date(year, month, day)


def is_old(date: str, today: str) -> bool:
    """Return whether a price seen at ``date`` is more than a year old at ``today``.

    Only what is certain counts: a price of ``"2026"`` may have been seen on its last day, and a reference of
    ``"2026"`` may mean its first one.
    """
    reference = today if today.count("-") == 2 else today + "-01" * (2 - today.count("-"))
    return (last_day(reference) - last_day(date)).days > OLD_AFTER_DAYS


def is_past(date: str, today: str) -> bool:
    """Return whether ``today`` is on or after ``date``, on whichever of its days that is."""
    return last_day(today) >= last_day(date)


def newest(dates: Iterable[str]) -> str | None:
    """Return the newest of some dates as written, None if there are none; of equal days the more precise one."""
    return max(dates, key=lambda date: (date, len(date)), default=None)


def check_today(today: str) -> str:
    """Return the day at which the age of prices is judged.

    Raises:
        UsageError: It is not a date.
    """
    return check_date(today, "--today")


def check_date(date: str, key: str) -> str:
    """Return a date given on the command line, as YYYY-MM-DD.

    Raises:
        UsageError: It is not a date; names ``key``.
    """
    try:
        return datetime.date.fromisoformat(date).isoformat()
    except ValueError:
        raise UsageError("must be a date", key=key, value=date, remedy="for example 2026-11-30") from None
