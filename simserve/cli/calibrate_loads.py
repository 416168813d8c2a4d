"""`simserve calibrate loads`: what to measure of a server, and what that brings."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simserve.cli.one_line import Asked
from simserve.cli.options import (
    JsonOption,
    QuietOption,
    SetOption,
    print_json,
    print_lines,
    print_version_notes,
    takes_flags,
)
from simserve.cli.progress import progress

if TYPE_CHECKING:
    from simserve.calibrate.loads import Proposal
    from simserve.profiles.expected_errors import Expectation


@takes_flags()
def loads(
    asked: Asked,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Name the two loads of a server that are most worth measuring, with the commands, and what they bring.

    They stand for all loads from one client to as many requests as the scenario has in flight at a time.

    simserve calibrate loads chatbot
    """
    from simserve.calibrate.loads import as_mapping, propose
    from simserve.calibrate.simulated import ServingModel

    scenario = asked.load(overrides or ())
    print_version_notes([scenario], as_json=as_json, quiet=quiet)
    with progress(is_shown=not quiet) as tell:
        proposal = propose(ServingModel(scenario), tell)
    if as_json:
        print_json(as_mapping(proposal))
    elif not quiet:
        _render(proposal, [*asked.words, *(word for change in overrides or () for word in ("--set", change))])


def _render(proposal: Proposal, words: Sequence[str]) -> None:
    metrics = tuple(proposal.open_before)
    now, later = (f"{_widths(each, metrics)} ({each.basis})" for each in (proposal.expected, proposal.calibrated))
    print_lines([f"Now: {now}", "", f"Two loads stand for all from 1 to {proposal.most_clients} clients:"])
    for number, each in enumerate(proposal.loads, 1):
        title = f"{number}. {each.num_clients} client{'s' * (each.num_clients > 1)}"
        print_lines([f"{title}: leaves the engine's pace open by {_open(each.deviations)}"])
        sys.stdout.write(f"  {each.command}\n")
    files = " ".join(f"clients-{each.num_clients}.json" for each in proposal.loads)
    print_lines(["", "Then:"])
    scenario = shlex.join(words)
    if len(words) > 1:  # flags: `calibrate serving` takes a file
        sys.stdout.write(f"  simserve run {scenario} --out my-server\n")
        scenario = "my-server/scenario.resolved.yaml"
    sys.stdout.write(f"  simserve calibrate serving {files} --scenario {scenario} --out my-engine.yaml\n")
    sys.stdout.write(f"  simserve run {scenario} --set deployment.engine.name=my-engine.yaml\n")
    print_lines(["", f"After that: {later}"])
    sys.stdout.flush()


def _widths(expected: Expectation, metrics: Sequence[str]) -> str:
    pairs = ((name.upper(), expected.metrics[name]) for name in metrics)
    return ", ".join(f"{name} x {each.low:.2f} to {each.high:.2f}" for name, each in pairs) + " on 90% of servers"


def _open(deviations: Mapping[str, float]) -> str:
    return ", ".join(f"{share:.1%} in {name.upper()}" for name, share in deviations.items())
