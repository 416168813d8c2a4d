"""Compiling shows that it goes on, in a process that can be stopped; a run that must not wait never starts it."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from simserve.sim import acceleration


@pytest.mark.usefixtures("fresh_acceleration")
def test_compiling_says_now_and_then_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once where the code will be kept, then for how long it has been at it."""
    monkeypatch.setattr(acceleration, "_SECONDS_BEFORE_A_WORD", 0.01)
    monkeypatch.setattr(acceleration, "_SECONDS_BETWEEN_WORDS", 0.01)
    is_loaded = threading.Event()
    thread = threading.Thread(target=acceleration._tell, args=(is_loaded,))

    with caplog.at_level(logging.WARNING):
        thread.start()
        while len(caplog.messages) < 3:
            time.sleep(0.01)
        is_loaded.set()
        thread.join()

    assert "it is kept in" in caplog.messages[0]
    assert all("s so far" in each for each in caplog.messages[1:])


@pytest.mark.usefixtures("fresh_acceleration")
def test_code_that_is_there_is_loaded_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does a thread stay behind."""
    is_loaded = threading.Event()
    is_loaded.set()

    with caplog.at_level(logging.WARNING):
        acceleration._tell(is_loaded)

    assert not caplog.messages


@pytest.mark.usefixtures("fresh_acceleration")
def test_a_compiler_that_fails_elsewhere_is_asked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of its own has nowhere to say why; what fails here does."""
    asked: list[str] = []
    monkeypatch.setattr(acceleration, "is_warm", lambda: False)
    monkeypatch.setattr(acceleration, "_compile", lambda: asked.append("elsewhere"))
    monkeypatch.setitem(sys.modules, "simserve.engine.compiled.loader", None)

    drive, failure = acceleration._load()

    assert (drive, asked) == (None, ["elsewhere"])
    assert failure is not None


def test_compiling_is_left_to_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of this interpreter, and it has ended when this one goes on."""
    kept = tmp_path / "kept"
    monkeypatch.setattr(acceleration, "_COMPILING", f"import os; open({str(kept)!r}, 'w').write(str(os.getpid()))")

    acceleration._compile()

    assert int(kept.read_text()) != os.getpid()


@pytest.mark.parametrize(
    ("requests", "is_there", "is_loaded"), [(1_000_000, False, False), (5_000_000, False, True), (1_000, True, True)]
)
def test_a_kernel_is_compiled_only_for_runs_that_earn_it_back(
    monkeypatch: pytest.MonkeyPatch, requests: int, is_there: bool, is_loaded: bool
) -> None:
    """A million requests take 11 CPU seconds interpreted, compiling takes 40; what lies on disk is used."""
    loaded: list[int] = []
    monkeypatch.setattr(acceleration, "find_spec", lambda _: object())
    monkeypatch.setattr(acceleration, "is_warm", lambda: is_there)
    monkeypatch.setattr(acceleration, "_is_loaded", lambda: False)
    monkeypatch.setattr(acceleration, "_load", lambda: (loaded.append(requests), (None, None))[1])

    acceleration.compiled_for("auto", requests, None)

    assert bool(loaded) == is_loaded
