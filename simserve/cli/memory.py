"""`simserve memory`: where the memory of a GPU goes, and what fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simserve.cli.one_line import Asked
from simserve.cli.options import PAGE, SetOption, Shown, console, print_lines, print_table, takes_flags

if TYPE_CHECKING:
    from simserve.scenario.resolve import ResolvedScenario


@takes_flags(without=PAGE)
def memory(asked: Asked, overrides: SetOption = None, *, shown: Shown) -> None:
    """Say what fits in memory: weights, KV cache, how many full-length requests at once, with the arithmetic.

    Exits with 3 if it does not fit.

    simserve memory Qwen/Qwen3-32B --gpus 2xH100 --engine vllm==0.20
    """
    from simserve.scenario.resolve import resolve

    show_memory(resolve(asked.load(overrides or (), needs_traffic=False)), shown)


def show_memory(resolved: ResolvedScenario, shown: Shown) -> None:
    """Print the memory of a deployment.

    Raises:
        InfeasibleError: It does not fit; the memory has been printed by then.
    """
    from simserve.scenario.fit import check_fit, memory_report

    shown.notes(resolved.scenario)
    report = memory_report(resolved)
    shown.tell(report, lambda: _render(report))
    check_fit(resolved)


def _render(report: Mapping[str, Any]) -> None:
    from simserve.report.answer import warning_lines
    from simserve.report.quantities import counted

    print_lines(warning_lines(report))
    if not report["pools"]:
        _render_replica(report)
    for name, pool in report["pools"].items():
        role = "" if pool["role"] == "both" else f" ({pool['role']})"
        _render_replica(pool, f"pool {name}{role}, {counted(pool['replicas'], 'replica')}: ")


def _render_replica(report: Mapping[str, Any], whose: str = "") -> None:
    """Print the memory of one kind of replica; ``whose``: its pool, with a colon."""
    from simserve.scenario.formats import formats_line, quality_lines
    from simserve.units import format_bytes

    verdict = "fits" if report["fits"] else "[red]does not fit[/red]"
    out = console()
    out.print(f"[bold]{whose}{report['model']} on {report['num_gpus']} x {report['hardware']}[/bold]: {verdict}")
    out.print(formats_line(report["formats"]), style="dim", highlight=False)
    if report["open_limits"] is not None:
        out.print(report["open_limits"], style="red", highlight=False)
    rows = [
        (part.replace("_", " "), format_bytes(size), f"{size / report['total_bytes']:.1%}")
        for part, size in report["parts"].items()
        if size or part != "cuda_graphs"
    ]
    print_table(("a GPU", "bytes", "share"), rows)
    print_lines(report["arithmetic"])
    print_lines([f"quality: {line}" for line in quality_lines(report["quality"])])
