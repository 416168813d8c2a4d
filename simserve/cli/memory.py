"""`simserve memory`: what of a GPU's memory goes where, and what fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simserve.cli.options import JsonOption, QuietOption, ScenarioArgument, SetOption, console, print_json
from simserve.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from simserve.scenario.resolve import ResolvedScenario


def memory(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say what fits: weights, KV cache, how many requests of full length at once, with the arithmetic.

    Ends with 3 where it does not fit.
    """
    from simserve.scenario.load import load
    from simserve.scenario.resolve import resolve

    show_memory(resolve(load(scenario, overrides or ())), as_json=as_json, quiet=quiet)


def show_memory(resolved: ResolvedScenario, *, as_json: bool, quiet: bool = False) -> None:
    """Print the memory of a deployment.

    Raises:
        InfeasibleError: It does not fit; what there is to print has been printed.
    """
    from simserve.scenario.fit import check_fit, memory_report

    report = memory_report(resolved)
    if as_json:
        print_json(report)
    elif not quiet:
        _render(report, console())
    check_fit(resolved)


def _render(report: Mapping[str, Any], out: Console) -> None:
    from rich.table import Table

    title = f"{report['model']} on {report['num_gpus']} x {report['hardware']}"
    out.print(f"[bold]{title}[/bold]: {'fits' if report['fits'] else '[red]does not fit[/red]'}")
    table = Table("a GPU", "bytes", "share", box=None, pad_edge=False)
    for part, size in report["parts"].items():
        table.add_row(part.removesuffix("_bytes"), format_bytes(size), f"{size / report['total_bytes']:.1%}")
    out.print(table)
    for line in report["arithmetic"]:
        out.print(line, highlight=False, markup=False)
    out.print(
        f"{report['num_kv_blocks']:,} KV blocks of {report['block_size']} tokens: "
        f"{report['max_concurrent_full_length']:.1f} requests of full length "
        f"({report['max_model_len']:,} tokens) at once"
    )
