"""Self-host or API in words: the answer with its arithmetic, what it leaves out, what would change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simserve.planner.cost.scenario import NO_API_SERVES_THEM
from simserve.planner.plan.explain import plan_command
from simserve.report import answer_plots
from simserve.report.answer import warning_lines
from simserve.report.brief import NOW, SLO_MISSED, STORED, Brief, Fact, Way, api_text, asked_by, fact_text
from simserve.report.page import Page, Paged, Section, html_sections
from simserve.report.panels import panel
from simserve.report.quantities import UNDEFINED, count, counted, dollars, number, share
from simserve.report.sketch_figure import figure_or_none
from simserve.scenario.formats import formats_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console


_WIDEST = 100
_SIDES = {"self_host": "Self-hosting", "api": "The API"}
_MILLION = 1e6
_MOST_WAYS = 8
"""Most changes of the cheapest way that are listed."""
_MISSES = {"overloaded": "its queue grows"}
"""Stability -> why a level does not hold, other than its share within the SLO."""
_OLD = "more than a year before the newest of the catalogue"


@dataclass(frozen=True, slots=True)
class CostResult(Paged):
    """What `simserve cost` answers."""

    summary: Mapping[str, Any]  # Exactly what its ``--json`` prints.

    @property
    def answer(self) -> str:
        """The answer in a sentence."""
        return answer(self.summary)

    def __repr__(self) -> str:
        return f"<Cost: {self.answer}>"

    def _repr_html_(self) -> str:
        formats = self.summary.get("formats")
        notes = [f"Simulated with {formats_line(formats)}."] if formats else []
        lines = [*warning_lines(self.summary), self.answer]
        return html_sections(lines, [*sections(self.summary), Section(notes=notes)])

    @property
    def plot(self) -> CostPlots:
        """Its plots: ``break_even()`` and ``tornado()``."""

        return CostPlots(self.summary)

    def _page(self, command: str, brief: Brief | None) -> Page:
        return cost_page(self.summary, command, brief)


def _api_name(api: Mapping[str, Any]) -> str:
    """Return the name of an API; an API with prices from the command line has none."""
    return "the API" if api["name"] == "given" else str(api["name"])


def answer(summary: Mapping[str, Any]) -> str:
    """Return the answer: which side costs less and what both cost, or the one figure that is known."""
    own, api = summary["self_host"], summary["api"]
    cheaper = summary["cheaper"]
    if cheaper is not None and NO_API_SERVES_THEM in (summary.get("caveats") or ()):
        return f"No listed API serves these weights: {dollars(own['usd_per_month'])} a month for your own GPUs."
    if cheaper is not None and summary["saving_usd_per_month"] is not None:
        low, high = (own, api) if cheaper == "self_host" else (api, own)
        other = _api_name(api) if cheaper == "self_host" else "your own GPUs"
        return (
            f"{_SIDES[cheaper]} costs less: {dollars(low['usd_per_month'])} a month against "
            f"{dollars(high['usd_per_month'])} for {other}."
        )
    if own["usd_per_month"] is None:
        per = f", {dollars(api['usd_per_request'])} a request" if api["usd_per_request"] is not None else ""
        month = f"{dollars(api['usd_per_month'])} a month{per}"
        tokens = f"{dollars(api['usd_per_million_tokens'])} a million tokens"
        return f"{api['name']} costs {tokens if api['usd_per_month'] is None else month}."
    verb = "costs" if own["gpus"] == 1 else "cost"
    text = f"{_gpus(own)} {verb} {dollars(own['usd_per_month'])} a month"
    if own["usd_per_million_output_tokens"] is not None:
        text += f", {dollars(own['usd_per_million_output_tokens'])} a million output tokens"
    even = summary["break_even"]["tokens_per_month"]
    return text + (f"; break-even at {_tokens(even)} a month." if even is not None else ".")


def _gpus(own: Mapping[str, Any]) -> str:
    """Return the GPUs that are paid for; of a scaled fleet how many on average."""
    paid = own.get("gpus_paid_on_average", own["gpus"])
    return counted(own["gpus"], "GPU") if paid == own["gpus"] else f"{number(paid)} of {own['gpus']:g} GPUs on average"


def _tokens(amount: float | None) -> str:
    return f"{UNDEFINED} tokens" if amount is None else f"{number(amount / _MILLION)} M tokens"


def _requests(amount: float | None) -> str:
    if amount is None:
        return f"{UNDEFINED} requests"
    return f"{number(amount / _MILLION, 4)} M requests" if amount >= _MILLION else f"{count(round(amount))} requests"


def sections(summary: Mapping[str, Any]) -> list[Section]:
    """Return the parts of the answer that are not empty, in the order of a reader's questions."""
    parts = [
        Section(title="Self-host", lines=_self_host_lines(summary)),
        Section(title="API", lines=_api_lines(summary)),
        Section(title="Break-even", lines=_break_even_lines(summary)),
        Section(title="Cheapest way", lines=_way_lines(summary)),
        _left_out(summary),
        _capacity(summary),
        _hours(summary),
        Section(title="Hybrid", lines=_hybrid_lines(summary)),
        Section(title="36 months", lines=_outlook_lines(summary)),
        _tornado(summary),
        Section(title="Assumptions", lines=summary.get("caveats") or ()),
    ]
    return [part for part in parts if part.lines or part.rows]


def _way_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return which of several ways is cheapest, and from which volume on."""
    lines = []
    for each in summary.get("ways", ()):
        start, end = each["from_requests_per_month"], each["to_requests_per_month"]
        begins = f"from {_requests(start)}" if start else ""
        ends = f"to {_requests(end)}" if end is not None else "on"
        lines.append(f"{' '.join(part for part in (begins, ends) if part)} a month: {each['name']}")
    num_hidden = len(lines) - _MOST_WAYS
    if num_hidden > 0:
        between = f"({num_hidden} more changes of what is cheapest, as whole replicas are added)"
        lines = [*lines[: _MOST_WAYS - 1], between, lines[-1]]
    return [*_option_lines(summary), *lines]


def _option_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what this traffic costs a month on each deployment that is compared with the scenario's."""
    return [
        f"{each['name']}: {dollars(each['usd_per_month'])} a month on {counted(each['gpus'], 'GPU')} for this traffic"
        for each in summary.get("options", ())[1:]
    ]


def _self_host_lines(summary: Mapping[str, Any]) -> list[str]:
    own, terms = summary["self_host"], summary.get("terms") or {}
    if own["usd_per_month"] is None:
        return []
    lines = []
    hour = own.get("gpu_hour_usd", terms.get("gpu_hour_usd"))
    if hour is not None:
        spare = f" ({own['spare_replicas']} of the replicas spare)" if own.get("spare_replicas") else ""
        source = f" ({own['gpu_hour_source']})" if own.get("gpu_hour_source") else ""
        fleet = f"{_gpus(own)}{spare} x {dollars(hour)} x 720 hours = {_exact(own['fleet_usd_per_month'])}"
        lines.append(f"{fleet} a month{source}")
    if terms.get("share", 1.0) != 1.0:
        lines.append(f"this use pays {share(terms['share'])} of it: {_exact(own['gpu_usd_per_month'])}")
    extra = {
        "electricity": own.get("electricity_usd_per_month"),
        "operations": own["operations_usd_per_month"],
        "platform": own.get("platform_usd_per_month"),
        "overflow to the API": own.get("overflow_usd_per_month"),
    }
    added = " ".join(f"+ {_exact(usd)} of {what}" for what, usd in extra.items() if usd)
    if added:
        lines.append(f"{added} = {_exact(own['usd_per_month'])} a month")
    lines.append(_unit_prices(own))
    return [line for line in lines if line]


def _unit_prices(side: Mapping[str, Any]) -> str:
    shown = {
        "a request": side["usd_per_request"],
        "a million tokens": side["usd_per_million_tokens"],
        "a million output tokens (all of the cost put on them)": side.get("usd_per_million_output_tokens"),
    }
    if shown["a million tokens"] == side.get("usd_per_million_output_tokens"):
        shown.pop("a million tokens")
        shown["a million output tokens"] = shown.pop("a million output tokens (all of the cost put on them)")
    text = ", ".join(f"{dollars(value)} {what}" for what, value in shown.items() if value is not None)
    used = side.get("utilization")
    return text + (f"; {share(used)} of what it holds in one run is used" if text and used is not None else "")


def _exact(usd: float) -> str:
    return f"${usd:,.0f}" if round(usd, 2) == round(usd) or usd >= 10_000 else f"${usd:,.2f}"


def _api_lines(summary: Mapping[str, Any]) -> list[str]:
    api, terms = summary["api"], summary.get("terms") or {}
    if api["name"] is None:
        return ["no API named: --api NAME (simserve apis lists them), or --api-input-usd and --api-output-usd"]
    lines = []
    if api.get("input_usd_per_month") is not None:
        requests = (summary.get("day") or terms)["requests_per_month"]
        prompt, output = (requests * (api if key in api else terms)[key] for key in ("prompt_tokens", "output_tokens"))
        lines.append(
            f"{_tokens(prompt)} of prompts {_exact(api['input_usd_per_month'])} + {_tokens(output)} "
            f"of answers {_exact(api['output_usd_per_month'])} = {_exact(api['usd_per_month'])} a month"
        )
    if api.get("cached_share"):
        lines.append(f"{share(api['cached_share'])} of the prompt tokens from its cache{_caching(api)}")
    prices = _unit_prices(api)
    seen = "" if api["date"] is None else f"; {api['name']}, price seen {api['date']}"
    if api.get("is_old"):
        seen += f", {_OLD}"
    return [*lines, *([prices + seen] if prices else []), *_peak_lines(api), *_latency_lines(api)]


def _peak_lines(api: Mapping[str, Any]) -> list[str]:
    """Return what hours with higher prices come to; none if the API has none."""
    found = api.get("peak_hours")
    if found is None:
        return []
    charged = f"{found['factor']:g} times as much in {found['hours_per_week']:g} of 168 hours a week"
    mean = f"priced for a load that is even over the week, {found['mean_factor']:.2f} times its lower price"
    return [f"{api['name']} charges {charged}: {mean}"]


def _latency_lines(api: Mapping[str, Any]) -> list[str]:
    """Return how fast the API answers, as measured; none if no measurement is known."""
    found = api.get("latency")
    if found is None:
        return []
    tail = "" if found["p95_ttft_ms"] is None else f", {number(found['p95_ttft_ms'])} ms p95"
    return [
        f"TTFT {number(found['median_ttft_ms'])} ms median{tail}, then {number(found['tokens_per_second'])} tokens/s, "
        f"measured {found['date']}",
        f"by {found['measured']}",
    ]


def _caching(api: Mapping[str, Any]) -> str:
    """Return the rules of an API's prompt cache; nothing if the provider states none."""
    offer = api.get("prompt_caching")
    if offer is None:
        return ""
    dearer = offer["write_factor"]
    written = f"; what is written costs {dearer:g} times the input price" if dearer > 1 else ""
    return f", which keeps prefixes from {offer['min_tokens']:,} tokens on for {offer['lifetime']} after use{written}"


def _beyond(summary: Mapping[str, Any]) -> str:
    """Return why the API costs less at a volume above the break-even, and up to where; empty if it does not."""
    even, api = summary["break_even"], summary["api"]
    first, bill, each = even["requests_per_month"], api["usd_per_month"], api["usd_per_request"]
    if summary["cheaper"] != "api" or not (first and bill and each) or bill / each <= first:
        return ""
    good = even.get("for_good_requests_per_month")
    until = f" until {_requests(good)}" if good is not None else ""
    return f"; beyond what these can serve, the further GPUs make the API cheaper again{until}"


def _break_even_lines(summary: Mapping[str, Any]) -> list[str]:
    even = summary["break_even"]
    if summary["api"]["name"] is None or summary["self_host"]["usd_per_month"] is None:
        return []
    least = even.get("least_requests_per_month")
    lower = "" if least is None else f"; {_requests(least)} if fewer replicas lose no prefix hits"
    if even["requests_per_month"] is None and even["tokens_per_month"] is None:
        return [f"never: {even['why_never']}{lower}"] if even.get("why_never") else []
    amounts = []
    if even["requests_per_month"] is not None:
        amounts.append(_requests(even["requests_per_month"]))
    if even["tokens_per_month"] is not None:
        amounts.append(_tokens(even["tokens_per_month"]))
    doubt = "" if even.get("is_simulated", True) else "; that these serve so much is not simulated"
    lines = [f"{' or '.join(amounts)} a month, on {counted(even['gpus'], 'GPU')}{lower}{doubt}"]
    good, first = even.get("for_good_requests_per_month"), even["requests_per_month"]
    if good is not None and first is not None and good > first * 1.001:
        lines.append(
            f"self-hosting costs less for good from {_requests(good)}; in between, each further replica makes the API "
            "cheaper again for a while"
        )
    return lines


def _left_out(summary: Mapping[str, Any]) -> Section:
    found = summary.get("left_out") or []
    has = {
        unit: any(row[f"break_even_{unit}_per_month"] is not None for row in found) for unit in ("requests", "tokens")
    }
    unit = "requests" if has["requests"] else "tokens"
    rows = []
    for position, row in enumerate(found):
        crossing = row[f"break_even_{unit}_per_month"]
        even = _requests(crossing) if unit == "requests" else _tokens(crossing)
        rows.append(
            (
                row["term"],
                f"+{dollars(row['adds_usd_per_month'])}" if position and row["adds_usd_per_month"] else "",
                dollars(row["self_host_usd_per_month"]),
                *([even.removesuffix(f" {unit}")] if has[unit] else []),
                "counted" if row["is_counted"] else "left out",
            )
        )
    even_title = (f"break-even, {unit}",) if has[unit] else ()
    header = ("what the month counts or leaves out", "adds", "a month", *even_title, "here")
    return Section(title="What is counted", header=header, rows=rows)


def _capacity(summary: Mapping[str, Any]) -> Section:
    rows = [
        (
            share(row["utilization"]),
            UNDEFINED if row["requests_per_month"] is None else f"{number(row['requests_per_month'] / _MILLION, 4)} M",
            dollars(row["usd_per_request"]),
            dollars(row["usd_per_million_output_tokens"]),
            UNDEFINED if row["api_over_self_host"] is None else f"{number(row['api_over_self_host'], 4)}x",
        )
        for row in summary.get("capacity") or []
    ]
    header = ("of the capacity", "requests a month", "a request", "a M output tokens", "API over self-host")
    return Section(title="Capacity", header=header, rows=rows)


def _hours(summary: Mapping[str, Any]) -> Section:
    rows = [
        (
            f"{number(row['load'] or row['rate'])}",
            share(row["busy"]),
            f"{number(row['watts_per_gpu'])} W",
            UNDEFINED if row["attainment"] is None else share(row["attainment"]),
            row["stability"]
            if row["holds"]
            else f"{row['stability']}, {_MISSES.get(row['stability'], 'misses the SLO')}",
        )
        for row in summary.get("load_levels") or []
    ]
    loads = "clients" if summary.get("load_is_clients") else "requests/s"
    header = (loads, "busy", "power a GPU", "within the SLO", "")
    return Section(title="Load levels of the deployment as it is", header=header, rows=rows)


def _hybrid_lines(summary: Mapping[str, Any]) -> list[str]:
    best = summary["hybrid"]
    if best is None:
        return []
    month = f"{dollars(best['usd_per_month'])} a month"
    if best["replicas"] == 0:
        return [f"no split is worth it: sending all of it to the API costs least, {month}"]
    if best["api_share"] == 0:
        return [f"no split is worth it: {counted(best['gpus'], 'GPU')} for all of it cost least, {month}"]
    return [
        f"{counted(best['gpus'], 'GPU')} for the base of the day, {share(best['api_share'])} of the requests to the "
        f"API: {month} ({dollars(best['self_host_usd_per_month'])} + {dollars(best['api_usd_per_month'])})"
    ]


def _outlook_lines(summary: Mapping[str, Any]) -> list[str]:
    years = summary["outlook"]
    if years is None:
        return []
    falls = (
        f"API prices fall {share(years['api_price_fall_per_year'])} a year, GPU-hours "
        f"{share(years['gpu_price_fall_per_year'])}, traffic grows {share(years['traffic_growth_per_year'])}"
    )
    at_end = years["by_month"][-1]["break_even_requests_per_month"]
    end = (
        "self-hosting does not break even by then"
        if at_end is None
        else f"break-even is then at {_requests(at_end)} a month"
    )
    changes = years["cheaper_changes_in_months"]
    flips = f"; the cheaper side changes in month {', '.join(str(month) for month in changes)}" if changes else ""
    return [
        f"{dollars(years['self_host_usd'])} self-hosted, {dollars(years['api_usd'])} at the API ({falls}){flips}; {end}"
    ]


def _tornado(summary: Mapping[str, Any]) -> Section:
    rows = [
        (
            row["parameter"],
            f"{_plain(row['low'])} to {_plain(row['high'])}",
            f"{_signed(row['saving_usd_per_month_low'])} to {_signed(row['saving_usd_per_month_high'])}",
            "changes the answer" if row["changes_the_answer"] else "",
        )
        for row in summary["sensitivity"]
    ]
    return Section(title="Sensitivity", header=("input", "from, to", "saving of self-hosting a month", ""), rows=rows)


def _plain(value: object) -> str:
    if not isinstance(value, float | int):
        return str(value)
    return f"{number(value / _MILLION)} M" if value >= _MILLION else number(value)


def _signed(usd: float) -> str:
    return f"-{dollars(-usd)}" if usd < 0 else dollars(usd)


def render_cost(summary: Mapping[str, Any], console: Console) -> None:
    """Print the parts of the answer that the brief summarises."""
    from rich.table import Table
    from rich.text import Text

    width = min(console.width, _WIDEST)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", width=12)
    grid.add_column()
    for part in sections(summary):
        for position, line in enumerate(part.lines):
            grid.add_row("" if position else part.title, Text(line, overflow="fold"))
        if part.rows:
            table = Table(box=None, pad_edge=False, header_style="")
            for title, is_text in zip(part.header, part.is_text, strict=True):
                table.add_column(title, overflow="fold", justify="left" if is_text else "right")
            for row in part.rows:
                table.add_row(*(Text(cell) for cell in row))
            grid.add_row("" if part.lines else part.title, table)
    console.print(grid, width=width)


def cost_page(summary: Mapping[str, Any], command: str = "", brief: Brief | None = None) -> Page:
    """Return the answer as a page: its parts, and the break-even.

    Args:
        brief: The brief at the top of the page; None: one from the summary alone.
    """
    text = answer(summary)
    panels = [
        panel(name, title, note, figure, f"{text} {note}")
        for name, title, note, figure in (
            ("break-even", "Dollars a month", "", answer_plots.break_even(summary)),
            (
                "tornado",
                "What matters most",
                "The saving of self-hosting as each input goes from its low to its high value; dashed: as it is",
                answer_plots.tornado(summary),
            ),
        )
        if figure is not None
    ]
    parts = sections(summary)
    pictures = [Section(title="The two sides", panels=panels)] if panels else []
    return Page(
        name=f"simserve cost: {summary.get('scenario') or 'self-host or API'}",
        brief=brief or cost_brief(summary),
        sections=[*pictures, *parts],
        command=command,
    )


def cost_brief(summary: Mapping[str, Any], deployed: Brief | None = None, reference: Sequence[str] = STORED) -> Brief:
    """Return the brief: which side costs less, what both cost, how busy the GPUs are, and the break-even.

    Args:
        deployed: Brief of one run of the deployment as it is; None if nothing was simulated.
        reference: Arguments that name the scenario in a command of simserve.
    """
    day = summary.get("day")
    is_as_it_is = day is not None and day["capacity_rate_per_replica"] is None  # its only level is the traffic as sent
    levels = [] if day is None else summary["load_levels"]
    asked = [each for each in levels if is_as_it_is or (day and each["rate"] == day["mean_rate"])]
    # Latencies must be those of the fleet that is priced: with more replicas they are unknown.
    is_priced = deployed is not None and bool(asked) and bool(asked[0]["holds"])
    lines = [] if deployed is None else [Fact(NOW, deployed.answer.rstrip("."))]
    held, is_served = "", True
    if day is not None and deployed is not None and asked and not is_priced:
        # For traffic without a rate the deployment is priced as it is, else as many replicas as can serve it.
        is_served = not is_as_it_is
        if deployed.verdict == "missed":
            held = " that hold the SLO" if is_served else f", {SLO_MISSED}"
    lines.append(Fact("Cost", _both(summary, held, is_served=is_served), is_whole=True))
    if day is not None:
        own_load = "" if deployed is None or not is_priced else fact_text(deployed, "Load")
        lines.append(Fact("Load", own_load or _priced_load(summary)))
    lines += [Fact("Break-even", f"{line}{_beyond(summary)}") for line in _break_even_lines(summary)[:1]]
    lines += [Fact("Option", line, is_whole=True) for line in _option_lines(summary)]
    lines += [Fact("API", line, is_extra=True) for line in _latency_lines(summary["api"])[:1]]
    api = summary["api"]
    other = "" if deployed is None else fact_text(deployed, "Cost").partition("; ")[2]
    lines_of = {each.label: each.text for each in lines}
    if other and " bills " not in other and " bills " in lines_of["Cost"]:
        # What one run says about the API; the API compared with serves other weights.
        own_side, _, asked_for = lines_of["Cost"].partition("; ")
        lines = [replace(each, text=f"{own_side}; {other}") if each.label == "Cost" else each for each in lines]
        lines.append(Fact("Also", f"of other weights, {asked_for}"))
    elif " bills " in other and api["name"] is not None and not other.startswith(f"{api['name']} bills "):
        lines.append(Fact("Also", other))
    old = [f"the price of {api['name']} was seen {api['date']}, {_OLD}"] if api.get("is_old") else []
    ranges = [fact_text(deployed, "Trust")] if deployed is not None and is_priced else []
    trust = [*old, *_peak_lines(api), *(ranges or (summary.get("caveats") or ())[-1:])]
    lines += [Fact("Trust", "; ".join(trust))] if trust else []
    return Brief(
        verdict="none",
        answer=answer(summary),
        subject=summary.get("question") or "" if deployed is None else deployed.subject,
        warnings=warning_lines(summary),
        ways=[_way(summary, reference)],
        latencies=deployed.latencies if deployed is not None and is_priced else (),
        facts=lines,
    )


def _priced_load(summary: Mapping[str, Any]) -> str:
    """Return the load of the GPUs that are priced, if it differs from that of one run of the deployment."""
    own, levels = summary["self_host"], summary["load_levels"]
    if summary["day"]["capacity_rate_per_replica"] is None:
        return f"the GPUs are busy {share(own['busy'])} of the time"
    has_slo = any(each["attainment"] is not None for each in levels)
    return f"{share(own['utilization'])} of {'the rate at which the SLO holds' if has_slo else 'what it can sustain'}"


def _both(summary: Mapping[str, Any], held: str, *, is_served: bool) -> str:
    """Return dollars a month of both sides; for an unknown side, how to provide it.

    Args:
        held: Note about the GPUs that are priced.
        is_served: Whether they serve all of the traffic within the SLO.
    """
    own, api = summary["self_host"], summary["api"]
    if own["usd_per_month"] is None:
        return answer(summary).rstrip(".")
    bought = {"spot": "spot ", "reserved": "reserved ", "owned": "owned "}.get(own.get("purchase", ""), "")
    paid = f"{dollars(own['usd_per_month'])} a month on {_gpus(own).replace('GPU', f'{bought}GPU')}{held}"
    if api["usd_per_month"] is None:
        return f"{paid}; no API is named: --api NAME" if api["name"] is None else paid
    named = {**api, "name": _api_name(api)}
    if held.endswith(SLO_MISSED):
        return f"{paid}; {asked_by(named)}"
    cheaper = summary["cheaper"] if is_served else None
    return f"{paid}; {api_text({'self_host_usd_per_month': own['usd_per_month'], 'api': named, 'cheaper': cheaper})}"


def _way(summary: Mapping[str, Any], reference: Sequence[str]) -> Way:
    """Return what to do next: look for fewer GPUs, or simulate instead of arithmetic."""
    if summary.get("day") is None:
        return Way("This is arithmetic on what was given. To simulate a deployment:", "simserve cost api-vs-self-host")
    if summary["cheaper"] == "api":
        return Way("To see whether fewer or other GPUs cost less:", plan_command(reference, takes_others=True))
    return Way("To look for a cheaper deployment:", plan_command(reference, takes_others=True))


@dataclass(frozen=True, slots=True)
class CostPlots:
    """The plots of a cost comparison; None if there is nothing to draw."""

    summary: Mapping[str, Any]

    def break_even(self) -> Figure | None:
        """Return dollars a month of both sides against the requests of a month."""
        return figure_or_none(answer_plots.break_even(self.summary))

    def tornado(self) -> Figure | None:
        """Return how much each input changes the saving of self-hosting."""
        return figure_or_none(answer_plots.tornado(self.summary))
