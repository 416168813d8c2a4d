"""`simserve frameworks`: one workload under eight serving frameworks, beside what was published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simserve.cli.options import PAGE, SetOption, Shown, console, print_lines, print_table, takes_flags
from simserve.cli.progress import progress_bar


@takes_flags(without=PAGE)
def frameworks(overrides: SetOption = None, *, shown: Shown) -> None:
    """Compare serving frameworks on one workload, and say where and why the published ratios differ.

    simserve frameworks

    simserve frameworks --set deployment.hardware=a100-sxm-80gb
    """
    from simserve.planner.frameworks import compare_frameworks

    with shown.misfit_printed(None), progress_bar(is_shown=not shown.quiet, label="frameworks") as progress:
        result = compare_frameworks(overrides=overrides or (), progress=progress)
    shown.tell(result, lambda: _render(result))


def _render(result: Mapping[str, Any]) -> None:
    from simserve.planner.frameworks import ratio_lines

    within = sum(ratio["verdict"] == "within" for ratio in result["ratios"])
    console().print(
        f"[bold]{within} of {len(result['ratios'])} published ratios are met[/bold] by {result['model']} on one "
        f"{result['hardware']}, {result['num_requests']} requests at once ({result['scenario']})"
    )
    rows = [
        (
            each["name"],
            f"{each['output_throughput']:,.0f}",
            f"{each['tokens_per_step']:.1f}",
            f"{each['step_ms']:.1f}",
            "-" if each["usd_per_million_output_tokens"] is None else f"${each['usd_per_million_output_tokens']:.2f}",
            each["binding"],
            f"{each['formats']['weights']}, KV {each['formats']['kv_cache']}",
        )
        for each in result["frameworks"]
    ]
    print_table(("framework", "tok/s", "tokens a step", "step ms", "a M tokens", "bottleneck", "formats"), rows)
    for ratio in result["ratios"]:
        print_lines(ratio_lines(ratio))
    print_lines([_throughput_line(each) for each in result["throughputs"]])
    print_lines([f"  {result['throughputs'][0]['source']}"])


def _throughput_line(each: Mapping[str, Any]) -> str:
    published = f"${each['published_usd_per_million_tokens']:.2f} a million"
    line = (
        f"published {each['published_tokens_per_second']:,.0f} tok/s for ${each['published_usd_per_hour']:.2f} an hour "
        f"({published}): {each['simulated_replicas']} of these GPUs under vllm"
    )
    dollars = each["simulated_usd_per_million_tokens"]
    return line if dollars is None else f"{line}, at ${dollars:.2f} a million"
