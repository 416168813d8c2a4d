"""What tests of several packages share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from simserve.sim import acceleration


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a Chromium; skips where Playwright or a Chromium is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs a chromium")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def fresh_acceleration() -> Iterator[None]:
    """Forget which compiled kernel was loaded and what was said of it, before and after."""
    _forget_acceleration()
    yield
    _forget_acceleration()


def _forget_acceleration() -> None:
    acceleration._load.cache_clear()
    acceleration._say.cache_clear()
