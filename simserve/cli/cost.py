"""`simserve cost`: self-hosting or an API, simulated or by arithmetic alone."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from simserve.cli.apis import TodayOption
from simserve.cli.one_line import Asked
from simserve.cli.options import SetOption, Shown, option, set_words, takes_flags, variants_of
from simserve.cli.progress import progress_bar
from simserve.errors import UsageError

if TYPE_CHECKING:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.report.cost import CostResult

_WITHOUT = "Without a scenario: "
_AMOUNT = re.compile(
    r"(\$?)\s*(-?(?:(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([kmb%]?)", re.IGNORECASE
)
_MULTIPLES = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "%": 0.01}
_MOST_REQUESTS = 10**15  # Most requests a month: about 4,000 a day for everybody on earth.


def _number(flag: str, text: str, *, maximum: float = math.inf) -> Any:
    # A function of its own: typer 0.19 asks a parser for its name, and a `partial` has none.
    return option(text, flag, metavar="NUMBER", parser=lambda given: _amount(given, flag, maximum))


def _amount(text: str | float, flag: str, maximum: float) -> float:
    """Return a number from ``1000000``, ``1,000,000``, ``1M``, ``$6`` or ``30%``."""
    found = _AMOUNT.fullmatch(str(text).strip())
    is_money, is_share = "usd" in flag, maximum == 1
    if found is None or (found[1] and not is_money) or (found[3] == "%" and not is_share):
        remedy = "write dollars, such as 2.50" if is_money else "write 1000000, 1,000,000 or 1M"
        remedy = "write 0.3 or 30%" if is_share else remedy
        raise UsageError(
            "is not a number" if found is None else "has another unit", key=flag, value=text, remedy=remedy
        )
    value = float(found[2].replace(",", "")) * _MULTIPLES[found[3].lower()]
    if not 0 <= value <= maximum:
        most = "" if maximum == math.inf else f" and at most {maximum:,.0f}"
        raise UsageError(f"must be at least 0{most}", key=flag, value=text)
    return value


@takes_flags()
def cost(
    asked: Asked,
    api: Annotated[str | None, option("API to compare with; simserve apis lists them.", metavar="NAME")] = None,
    api_input_usd: Annotated[float | None, _number("--api-input-usd", "API price of a million prompt tokens.")] = None,
    api_output_usd: Annotated[
        float | None, _number("--api-output-usd", "API price of a million output tokens.")
    ] = None,
    api_request_usd: Annotated[
        float | None, _number("--api-request-usd", _WITHOUT + "API price of a request, instead of tokens.")
    ] = None,
    requests_per_month: Annotated[
        float | None, _number("--requests-per-month", "Requests in a month of 720 hours.", maximum=_MOST_REQUESTS)
    ] = None,
    cached_share: Annotated[
        float | None,
        _number("--cached-share", _WITHOUT + "share of the prompt tokens that the API finds in its cache.", maximum=1),
    ] = None,
    gpu_hour_usd: Annotated[float | None, _number("--gpu-hour-usd", "Dollars a GPU-hour.")] = None,
    operations_usd: Annotated[
        float | None, _number("--operations-usd", _WITHOUT + "dollars a month for operations.")
    ] = None,
    share: Annotated[
        float | None,
        _number("--share", _WITHOUT + "share of the GPUs' cost that this use pays; 1 if absent.", maximum=1),
    ] = None,
    utilization: Annotated[
        float | None,
        _number("--utilization", _WITHOUT + "share of the GPUs' capacity that is used; 1 if absent.", maximum=1),
    ] = None,
    requests_per_second: Annotated[
        float | None, _number("--requests-per-second", _WITHOUT + "requests/s of the GPUs at full use.")
    ] = None,
    output_tokens_per_second: Annotated[
        float | None, _number("--output-tokens-per-second", _WITHOUT + "output tokens/s of the GPUs at full use.")
    ] = None,
    variants: Annotated[
        list[str] | None,
        option(
            "Another deployment for the same traffic; says from what volume on each is cheapest; repeats.",
            "--with",
            metavar="'NAME: KEY=VALUE, KEY=VALUE'",
        ),
    ] = None,
    overrides: SetOption = None,
    today: TodayOption = None,
    *,
    shown: Shown,
) -> None:
    """Say whether your own GPUs or an API cost less, from what volume on, and what that depends on.

    With a scenario the GPUs are simulated under its traffic, round the clock or over its day (pricing.daily). Without
    one the answer is arithmetic on the flags.

    simserve cost api-vs-self-host

    simserve cost api-vs-self-host --with 'one more: deployment.replicas=2'

    simserve cost Qwen/Qwen3-32B --gpus 2xH100 --rate 3 --prompt-tokens 2k --output-tokens 500 --api gpt-4o

    simserve cost --gpus 2 --gpu-hour-usd 6 --operations-usd 2000 --requests-per-month 1000000 --prompt-tokens 500
    --output-tokens 200 --api-input-usd 5 --api-output-usd 30
    """
    from simserve.api import cost as price

    shown.check()
    arithmetic = {
        "--api-request-usd": api_request_usd,
        "--cached-share": cached_share,
        "--operations-usd": operations_usd,
        "--share": share,
        "--utilization": utilization,
        "--requests-per-second": requests_per_second,
        "--output-tokens-per-second": output_tokens_per_second,
    }
    is_simulated = asked.scenario is not None or asked.like is not None
    if is_simulated and requests_per_month is not None:
        asked = _with_volume(asked, requests_per_month, overrides or ())
    if not is_simulated:
        arithmetic |= _numbers(asked)
    _check_positive({**arithmetic, "--requests-per-month": requests_per_month})
    prices = _api(api, api_input_usd, api_output_usd, api_request_usd)
    loaded, reference = None, [*asked.words]
    if not is_simulated:
        for flag, texts in (("--set", overrides), ("--with", variants)):
            if texts:
                raise UsageError("needs a scenario", key=flag, remedy="name one, or give flags alone")
        result = _by_arithmetic(arithmetic, gpu_hour_usd, requests_per_month, prices, today)
    else:
        for flag, value in arithmetic.items():
            if value is not None:
                raise UsageError("is for arithmetic without a scenario", key=flag, remedy="change it with --set")
        changes = [*(overrides or ()), *([] if gpu_hour_usd is None else [f"pricing.gpu_hour_usd={gpu_hour_usd}"])]
        others, reference = variants_of(variants or ()), [*reference, *set_words(changes)]
        loaded = asked.load(changes, quiet=shown.quiet)
        shown.notes(loaded)
        with shown.misfit_printed(loaded), progress_bar(is_shown=not shown.quiet) as progress:
            result = price(
                loaded,
                api=prices,
                requests_per_month=requests_per_month,
                today=today,
                progress=progress,
                variants=others,
            )
    from simserve.report.brief import deployed_brief
    from simserve.report.cost import cost_brief, render_cost

    own = loaded if requests_per_month is None else None  # a given volume is not the traffic of a run
    shown.answer(
        result.summary,
        lambda: cost_brief(result.summary, None if own is None else deployed_brief(own), reference),
        result.to_html,
        lambda out: render_cost(result.summary, out),
    )


def _numbers(asked: Asked) -> dict[str, float | None]:
    """Return the flags that arithmetic shares with a simulation, as plain numbers."""
    from simserve.planner.one_line import tokens

    found: dict[str, float | None] = {}
    for flag, value in asked.flags.items():
        if flag not in ("--gpus", "--prompt-tokens", "--output-tokens"):
            raise UsageError(
                "needs a scenario or a model", key=flag, remedy="name one, or give flags of arithmetic alone"
            )
        try:
            found[flag] = float(value)
        except ValueError:
            found[flag] = math.nan if flag == "--gpus" else tokens(value, flag)
        if not 0 <= (found[flag] or 0.0) < math.inf:
            rule = "must be a number without a scenario or a model"
            raise UsageError(rule, key=flag, value=value, remedy="name a model to simulate it")
    return found


def _check_positive(flags: dict[str, float | None]) -> None:
    """Refuse zeros that would become divisors."""
    may_be_zero = ("--api-request-usd", "--cached-share", "--operations-usd", "--prompt-tokens")
    for flag, value in flags.items():
        if value == 0 and flag not in may_be_zero:
            raise UsageError("must be above 0", key=flag, value=0)


def _api(
    name: str | None, input_usd: float | None, output_usd: float | None, request_usd: float | None
) -> ApiPrices | None:
    from simserve.metrics.api_cost import ApiPrices
    from simserve.profiles.api import TokenPrice, load_api

    given = {"--api-input-usd": input_usd, "--api-output-usd": output_usd}
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) == 1:
        (other,) = given.keys() - missing
        raise UsageError(f"needs {missing[0]} beside it", key=other)
    choices = {"--api": name, "--api-input-usd": input_usd, "--api-request-usd": request_usd}
    ways = [flag for flag, value in choices.items() if value is not None]
    if len(ways) > 1:
        raise UsageError(f"cannot stand beside {ways[0]}", key=ways[1], remedy="keep one of the two")
    if name is not None:
        return ApiPrices.of(load_api(name))
    if input_usd is None or output_usd is None:
        return None
    return ApiPrices(name="given", price=TokenPrice(input=input_usd, output=output_usd))


def _with_volume(asked: Asked, requests_per_month: float, changes: Sequence[str]) -> Asked:
    """Return what is asked, with the volume that is priced as the load of a model for which nothing gives one."""
    from simserve.units import SECONDS_PER_MONTH

    is_told = not {"--rate", "--concurrency", "--trace"}.isdisjoint(asked.flags)
    if is_told or requests_per_month <= 0 or asked.question(changes, needs_load=False, is_told=False).has_load:
        return asked
    return replace(asked, rate=requests_per_month / SECONDS_PER_MONTH)


def _by_arithmetic(
    flags: dict[str, float | None],
    gpu_hour_usd: float | None,
    requests_per_month: float | None,
    api: ApiPrices | None,
    today: str | None,
) -> CostResult:
    from simserve.api import cost as price

    given = {**flags, "--gpu-hour-usd": gpu_hour_usd}
    terms: dict[str, Any] = {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in given.items() if value is not None
    }
    return price(api=api, requests_per_month=requests_per_month, today=today, **terms)
