"""`simserve`: the only place that turns errors into a line and an exit code.

Imports almost nothing itself, so that it handles interrupts from the very start.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import shlex
import signal
import sys
import threading
from _thread import interrupt_main
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from simserve.errors import EXIT_DONE, InfeasibleError, InterruptedRunError, InvariantError, SimserveError, UsageError

DEBUG_VARIABLE = "SIMSERVE_DEBUG"  # Environment variable that shows the traceback of a defect.
_OBJECTS_BEFORE_COLLECTION = 250_000
"""Python's default of 700 is for programs that leave cycles behind. A command creates hundreds of thousands of objects
that stay, models and modules, and scanning them repeatedly takes 10 % of a short command."""

_SECONDS_UNTIL_AGAIN = 0.02
"""Python drops an interrupt that arrives in a callback, such as that of an imported module, and continues. The
interrupt is sent again this much later, when it will most likely be handled."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # Errors of a full device; not a defect.
_FITTING = "what fits: "  # Start of a remedy that names changes, the mildest first.

_STARTERS = (
    "docker",
    "podman",
    "kubectl",
    "python",
    "python3",
    "vllm",
    "sglang",
    "trtllm-serve",
    "llama-server",
    "ollama",
)
"""First words of a line that starts a server."""

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors of a path that the user may not use, or that is impossible, if nothing detected it earlier."""


def command() -> NoReturn:
    """Run the process's command and end the process, if possible without a last scan of all its objects.

    The interpreter searches them for cycles and frees them one by one, which takes 10 % of a short command. It still
    does so if other threads are running, or under a debugger, a profiler or coverage.
    """
    code = main()
    if code == InterruptedRunError.exit_code:
        _end_at_next_interrupt(code)
    if threading.active_count() == 1 and sys.gettrace() is None and sys.getprofile() is None:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # its reader has gone
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _end_at_next_interrupt(code: int) -> None:
    """Let a second Ctrl-C end the process at once, without the interpreter's own words about its threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has gone
            stream.flush()
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    An error is one line on stderr; each error in a file has its own line. Codes: 0 done; 2 wrong flags or an unusable
    ``--out``; 3 it does not fit; 99 a threshold failed; 104 a scenario, profile, trace or ``--set`` is missing or
    invalid; 105 interrupted, by Ctrl-C or by SIGTERM; 1 a full disk, a reader of stdout that has closed it (without a
    line), or a defect (its traceback with ``SIMSERVE_DEBUG=1``).

    Args:
        arguments: The words after ``simserve``; None: those of the process.
    """
    interrupts: list[int] = []
    thresholds = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, *thresholds[1:])
    try:
        with _noting(interrupts):
            _replace_closed_streams()
            _write_any_text()
            code = _run_app(arguments)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return _report(InterruptedRunError("interrupted"))
    except InfeasibleError as error:
        return _report(error, _fitting_command(error, sys.argv[1:] if arguments is None else arguments))
    except SimserveError as error:
        return _report(error)
    except BrokenPipeError:
        _abandon_stdout()
        return SimserveError.exit_code
    except Exception as error:  # the one place where a defect becomes an exit code
        if interrupts:  # A library that was interrupted while loading may fail on what it has not loaded.
            return _report(InterruptedRunError("interrupted"))
        if isinstance(error, OSError) and error.errno in _FULL:
            _abandon_stdout()
            return _report(SimserveError(f"the answer or its files cannot be written: {error.strerror}"))
        if isinstance(error, MemoryError):
            return _report(SimserveError("needs more memory than there is", remedy="ask for fewer requests"))
        if os.environ.get(DEBUG_VARIABLE):
            raise
        if isinstance(error, OSError) and error.errno in _FORBIDDEN:
            place = f"{error.filename}: " if error.filename else ""
            return _report(UsageError(f"{place}cannot be written or read: {error.strerror}"))
        return _report(
            InvariantError(
                f"a defect in simserve: {type(error).__name__}: {error}",
                remedy=f"please report it with the traceback that {DEBUG_VARIABLE}=1 prints",
            )
        )
    finally:
        if arguments is not None:  # else the process ends; a changed threshold starts a collection at once
            gc.set_threshold(*thresholds)


@contextmanager
def _noting(interrupts: list[int]) -> Iterator[None]:
    """Note every Ctrl-C, and treat SIGTERM (from ``timeout``, batch queues and containers) the same.

    This way finished work is kept. A signal that the process was started to ignore, or that has another handler, is
    left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    def tell(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            threading.Timer(_SECONDS_UNTIL_AGAIN, _interrupt_again, (interrupts[-1],)).start()
        else:
            usual_hook(dropped)

    own = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    taken = {number: usual for number, usual in own.items() if signal.getsignal(number) is usual}
    for number in taken:
        signal.signal(number, interrupt)
    usual_hook, sys.unraisablehook = sys.unraisablehook, tell if taken else sys.unraisablehook
    try:
        yield
    finally:
        sys.unraisablehook = usual_hook
        for number, usual in taken.items():
            signal.signal(number, usual)


def _interrupt_again(number: int) -> None:
    """Send the main thread a signal, which ends its waiting on systems that have such signals."""
    main_thread = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main_thread is not None:
        signal.pthread_kill(main_thread, number)
    else:
        interrupt_main(signal.Signals(number))


def _run_app(arguments: Sequence[str] | None) -> int:
    # Searching all installed packages for pydantic plugins takes 0.01 s, and none is wanted here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from simserve.cli.app import EXIT_INTERRUPTED, WrongFlagsError, command_of  # slow: an interrupt may come meanwhile

    words = sys.argv[1:] if arguments is None else list(arguments)
    run = command_of(words[0] if words else None)
    try:
        try:
            code = run(args=words, prog_name="simserve", standalone_mode=False, obj=words)
        except WrongFlagsError as error:
            from simserve.cli.spelling import said_here

            words, given = said_here(words, getattr(error, "option_name", None)), words
            if words == given:
                raise
            code = run(args=words, prog_name="simserve", standalone_mode=False, obj=words)
    except WrongFlagsError as error:
        return _report_usage(error, words)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else EXIT_DONE


def _replace_closed_streams() -> None:
    """Discard what is printed if the process was started without stdout or stderr."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (lives as long as the process)


def _write_any_text() -> None:
    """Write UTF-8 to pipes and files in every locale, and replacement characters to terminals with fewer characters.

    File names that are not UTF-8 are written unchanged.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
            stream.reconfigure(errors="surrogateescape")
        elif stream.isatty():
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def _abandon_stdout() -> None:
    """Discard what is left in the buffer of stdout: the interpreter would fail on it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _report_usage(error: Exception, words: Sequence[str]) -> int:
    message = getattr(error, "format_message", lambda: str(error))().replace("Value error, ", "")
    if not message:  # no command given: the help has been printed
        return UsageError.exit_code
    from simserve.cli.spelling import MEANT

    flag = getattr(error, "option_name", None)
    if flag in MEANT:
        # All flags with other names in other tools together, starting with the one that was refused.
        others = [word for word in (each.partition("=")[0] for each in words) if word in MEANT]
        told = [f"{each} is {MEANT[each]} here" for each in dict.fromkeys([flag, *others])]
        message = f"No such option: {flag}; {', '.join(told)}"
    context = getattr(error, "ctx", None)
    named = [*words[:1]] if not words[:1] or not words[0].startswith("-") else []
    command = context.command_path if context is not None else " ".join(["simserve", *named])
    if command == "simserve plan":
        from simserve.planner.plan.explain import LAYOUT_FLAGS

        message = f"{flag} is what a plan finds: leave it out" if flag in LAYOUT_FLAGS else message
    example = _example(context) if message.startswith("Missing") else ""
    remedy = f"for example {example}" if example else _elsewhere(command, words) or f"try '{command} --help'"
    return _report(UsageError(" ".join(message.split()).rstrip("."), remedy=remedy))


def _elsewhere(command: str, words: Sequence[str]) -> str:
    """Return the command for what another one was given by mistake: a pasted line, a model; "" if there is none."""
    asked = words[1] if len(words) > 1 else ""
    if command == "simserve import" and asked.partition(" ")[0] in _STARTERS:
        return "a line that starts a server, in quotes: simserve import command 'LINE'"
    if command == "simserve frameworks" and asked and not asked.startswith("-"):
        engines = "--with 'vllm: deployment.engine.name=vllm' --with 'sglang: deployment.engine.name=sglang'"
        return f"engines of a model of your own: simserve compare {asked} --gpus N {engines}"
    return ""


def _example(context: Any) -> str:
    """Return the first example command in the help of a command; "" if it has none."""
    told = getattr(getattr(context, "command", None), "help", None) or ""
    return next((" ".join(each.split()) for each in told.split("\n\n") if each.startswith("simserve ")), "")


def _fitting_command(error: InfeasibleError, words: Sequence[str]) -> str:
    """Return the command with the first of the changes that an error names; "" if it names none."""
    remedy = error.remedy or ""
    if not remedy.startswith(_FITTING):
        return ""
    change = shlex.split(remedy.removeprefix(_FITTING).partition(" or ")[0].partition(" (")[0])
    kept = [
        word
        for place, word in enumerate(words)
        if change[0] == "--set" or not {word.partition("=")[0], words[place - 1] if place else ""} & {*change[::2]}
    ]
    return shlex.join(["simserve", *kept, *change])


def _report(error: SimserveError, command: str = "") -> int:
    """Print an error and the command that fixes it: on a terminal below it, ready for a shell, else on its line."""
    first, *others = error.lines
    if command and sys.stderr.isatty():
        import shutil

        from simserve.report.terminal import command_lines

        lines = command_lines(command, shutil.get_terminal_size().columns)
        print(_wrapped(f"simserve: error: {first}; the first of them:"), *lines, sep="\n", file=sys.stderr)
    else:
        told = f"; the first of them: {command}" if command else ""
        print(_wrapped(f"simserve: error: {first}{told}"), file=sys.stderr)
    for line in others:
        print(_wrapped(f"simserve: error: {line}"), file=sys.stderr)
    return error.exit_code


def _wrapped(line: str) -> str:
    """Return a line broken between words to fit a terminal; in a pipe it remains one line."""
    if not sys.stderr.isatty():
        return line
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
