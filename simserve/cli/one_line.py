"""Scenarios in one line: the word and the flags that name a scenario, declared once for every command."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.progress import progress
from simserve.errors import UsageError

if TYPE_CHECKING:
    from simserve.planner.one_line import Question
    from simserve.scenario.schema import Scenario

_RATE = re.compile(
    r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*(k?|m(?=[^/m]*/))\s*"
    r"(?:(?:req(?:uests)?|r)?\s*/\s*(s|sec|second|min|minute|h|hour|d|day|w|week|month)|(rpm)|rps|req|qps)?",
    re.IGNORECASE,
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "month": 30 * 86400}
_MULTIPLES = {"": 1, "k": 1000, "m": 1_000_000}
_PANEL = "Instead of a file, or over it"


def _option(*names: str, help: str, metavar: str | None = None, **limits: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=_PANEL, **limits)


def _rate(text: str | float) -> float:
    """Return requests a second from ``3``, ``3/s``, ``90/min``, ``10k/h``, ``5M/day``, ``40M/week``, ``150M/month``.

    ``inf`` is what `vllm bench serve --request-rate inf` sends: all requests at once.

    Raises:
        UsageError: It is not a rate, or is 0.
    """
    if str(text).strip().lower() == "inf":
        return math.inf
    found = _RATE.fullmatch(str(text).strip().replace(",", ""))
    if found is None or not float(found[1]):
        remedy = "write 3 (requests a second), 3/s, 90/min, 10k/h, 5M/day, 40M/week or 150M/month; inf: all at once"
        raise UsageError("is no rate" if found is None else "must be above 0", key="--rate", value=text, remedy=remedy)
    multiple, unit = found[2].lower(), (found[3] or ("m" if found[4] else "s")).lower()
    return float(found[1]) * _MULTIPLES[multiple] / _SECONDS["month" if unit == "month" else unit[0]]


def _written(rate: float) -> str:
    """Return a rate in the unit with the shortest text that `_rate` reads back exactly."""
    if math.isinf(rate):
        return "inf"
    units = {"": 1, "/min": 60, "/h": 3600, "/d": 86400, "/week": 7 * 86400, "/month": 30 * 86400}
    whole = ((f"{rate * seconds:.10g}", unit) for unit, seconds in units.items())
    return min((text + unit for text, unit in whole if _rate(text + unit) == rate), key=len, default=repr(rate))


ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAME=COLUMN,...",
        help="Which columns hold what: arrival_time=ts,prompt_tokens=in,output_tokens=out. Usual names need none.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What names the scenario of a command, a group of flags of `simserve.cli.options.takes_flags`."""

    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO",
            help="A scenario file, a bundled scenario, a model, a Hugging Face id, or a config.json.",
        ),
    ] = None
    gpus: Annotated[
        str | None, _option("--gpus", metavar="[Nx]GPU", help="GPUs of all replicas together, such as 2xH100.")
    ] = None
    tp: Annotated[
        int | None,
        _option("--tp", min=1, help="Tensor-parallel size. Default: all the GPUs of a replica. Also --dp, --ep."),
    ] = None
    pp: Annotated[int | None, _option("--pp", min=1, help="Pipeline-parallel size.")] = None
    replicas: Annotated[int | None, _option("--replicas", min=1, help="Copies of the model.")] = None
    routing: Annotated[
        str | None, _option("--routing", metavar="POLICY", help="How requests are shared out, such as round_robin.")
    ] = None
    engine: Annotated[
        str | None, _option("--engine", metavar="NAME==VERSION", help="Serving engine, such as vllm==0.20.")
    ] = None
    quantization: Annotated[
        str | None, _option("--quantization", metavar="FORMAT", help="Weight format, such as fp8. Default: as stored.")
    ] = None
    rate: Annotated[
        float | None,
        _option("--rate", metavar="RATE", parser=_rate, help="Requests a second (Poisson): 3, 90/min or 5M/day."),
    ] = None
    concurrency: Annotated[
        int | None, _option("--concurrency", min=1, help="Clients, each with one request at a time; also --users.")
    ] = None
    trace: Annotated[str | None, _option("--trace", metavar="FILE", help="Recorded traffic to replay.")] = None
    columns: Annotated[
        str | None,
        _option(
            "--columns",
            metavar="NAME=COLUMN,...",
            help="Columns of the trace, if their names are unusual: prompt_tokens=in.",
        ),
    ] = None
    prompt_tokens: Annotated[
        str | None, _option("--prompt-tokens", metavar="TOKENS", help="Tokens of every prompt, such as 2k; also --isl.")
    ] = None
    output_tokens: Annotated[
        str | None,
        _option("--output-tokens", metavar="TOKENS", help="Tokens of every answer, such as 500; also --osl."),
    ] = None
    num_requests: Annotated[
        int | None, _option("--num-requests", min=1, help="Requests. Default: the scenario's, or 1,000.")
    ] = None
    slo: Annotated[str | None, _option("--slo", metavar="LIMITS", help="The SLO: 'ttft=1.5s,tpot=50ms'.")] = None
    like: Annotated[
        str | None,
        _option("--like", metavar="COMMAND", help="A command line that starts a server, in place of SCENARIO."),
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
