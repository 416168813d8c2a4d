"""Scenarios in one line: the word and the flags that name a scenario, declared once for every command."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from simserve.cli.options import argument, option
from simserve.cli.progress import progress
from simserve.errors import UsageError

if TYPE_CHECKING:
    from simserve.planner.one_line import Question
    from simserve.scenario.schema import Scenario

_PANEL = "Instead of a file, or over it"


def _option(text: str, *names: str, **settings: Any) -> Any:
    return option(text, *names, rich_help_panel=_PANEL, **settings)


def _rate(text: str | float) -> float:
    """Return requests a second from what the flag says."""
    from simserve.units import requests_per_second  # with pydantic, which help and version need not wait for

    return requests_per_second(text)


def _written(rate: float) -> str:
    """Return a rate in the unit with the shortest text that `_rate` reads back exactly."""
    if math.isinf(rate):
        return "inf"
    units = {"": 1, "/min": 60, "/h": 3600, "/d": 86400, "/week": 7 * 86400, "/month": 30 * 86400}
    whole = ((f"{rate * seconds:.10g}", unit) for unit, seconds in units.items())
    return min((text + unit for text, unit in whole if _rate(text + unit) == rate), key=len, default=repr(rate))


ColumnsOption = Annotated[
    str | None,
    option(
        "Which columns hold what: arrival_time=ts,prompt_tokens=in,output_tokens=out. Usual names need none.",
        "--columns",
        metavar="NAME=COLUMN,...",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What names the scenario of a command, a group of flags of `simserve.cli.options.takes_flags`."""

    scenario: Annotated[
        str | None,
        argument(
            "A scenario file, a bundled scenario, a model, a Hugging Face id, or a config.json.", metavar="SCENARIO"
        ),
    ] = None
    gpus: Annotated[
        str | None, _option("GPUs of all replicas together, such as 2xH100.", "--gpus", metavar="[Nx]GPU")
    ] = None
    tp: Annotated[
        int | None, _option("Tensor-parallel size. Default: all the GPUs of a replica. Also --dp, --ep.", "--tp", min=1)
    ] = None
    pp: Annotated[int | None, _option("Pipeline-parallel size.", "--pp", min=1)] = None
    replicas: Annotated[int | None, _option("Copies of the model.", "--replicas", min=1)] = None
    routing: Annotated[
        str | None, _option("How requests are shared out, such as round_robin.", "--routing", metavar="POLICY")
    ] = None
    engine: Annotated[
        str | None, _option("Serving engine, such as vllm==0.20.", "--engine", metavar="NAME==VERSION")
    ] = None
    quantization: Annotated[
        str | None, _option("Weight format, such as fp8. Default: as stored.", "--quantization", metavar="FORMAT")
    ] = None
    rate: Annotated[
        float | None,
        _option("Requests a second (Poisson): 3, 90/min or 5M/day.", "--rate", metavar="RATE", parser=_rate),
    ] = None
    concurrency: Annotated[
        int | None, _option("Clients, each with one request at a time; also --users.", "--concurrency", min=1)
    ] = None
    trace: Annotated[str | None, _option("Recorded traffic to replay.", "--trace", metavar="FILE")] = None
    columns: Annotated[
        str | None,
        _option(
            "Columns of the trace, if their names are unusual: prompt_tokens=in.",
            "--columns",
            metavar="NAME=COLUMN,...",
        ),
    ] = None
    prompt_tokens: Annotated[
        str | None, _option("Tokens of every prompt, such as 2k; also --isl.", "--prompt-tokens", metavar="TOKENS")
    ] = None
    output_tokens: Annotated[
        str | None, _option("Tokens of every answer, such as 500; also --osl.", "--output-tokens", metavar="TOKENS")
    ] = None
    num_requests: Annotated[
        int | None, _option("Requests. Default: the scenario's, or 1,000.", "--num-requests", min=1)
    ] = None
    slo: Annotated[str | None, _option("The SLO: 'ttft=1.5s,tpot=50ms'.", "--slo", metavar="LIMITS")] = None
    like: Annotated[
        str | None, _option("A command line that starts a server, in place of SCENARIO.", "--like", metavar="COMMAND")
    ] = None

    @property
    def words(self) -> list[str]:
        """What names the scenario, as words of a command line."""
        named = [] if self.scenario is None else [self.scenario]
        texts = {flag: _written(value) if flag == "--rate" else str(value) for flag, value in self.flags.items()}
        return [*named, *(word for flag, text in texts.items() for word in (flag, text))]

    @property
    def flags(self) -> dict[str, Any]:
        """The flags that were given."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "scenario"}
        return {f"--{name.replace('_', '-')}": value for name, value in values.items() if value is not None}

    def question(
        self,
        changes: Sequence[str],
        *,
        quiet: bool = True,
        needs_traffic: bool = True,
        needs_load: bool = True,
        is_plan: bool = False,
        is_told: bool = True,
    ) -> Question:
        """Return the question, and say on stderr how short input was understood, unless ``is_told`` is False.

        Unless ``quiet``, reading a long trace is shown.
        """
        from simserve.planner.layout import OneLine
        from simserve.planner.one_line import ask

        flags = OneLine(**{each.name: getattr(self, each.name) for each in fields(self) if each.name != "scenario"})
        needs = {"needs_traffic": needs_traffic, "needs_load": needs_load}
        with progress(is_shown=not quiet, label="reading the traffic"):
            asked = ask(self.scenario, flags, changes, is_plan=is_plan, **needs)
        for note in asked.notes if is_told else ():
            print(f"simserve: {note}", file=sys.stderr)
        return asked

    def load(self, changes: Sequence[str], *, quiet: bool = True, needs_traffic: bool = True) -> Scenario:
        """Return the scenario in question, as for `question`."""
        return self.question(changes, quiet=quiet, needs_traffic=needs_traffic).scenario


def refuse_flags(flags: dict[str, Any], rule: str, remedy: str | None = None) -> None:
    """Refuse the first of some flags that was given.

    Raises:
        UsageError: One was.
    """
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        raise UsageError(rule, key=given[0], remedy=remedy)
