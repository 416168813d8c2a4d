"""`simserve calibrate check`: is the profile still right for this GPU and this engine; exit 99 where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.options import JsonOption, QuietOption, SetOption, print_json, print_lines, print_table, share
from simserve.errors import EXIT_THRESHOLD_FAILED, UsageError

if TYPE_CHECKING:
    from simserve.calibrate.drift import Drift
    from simserve.scenario.schema import Scenario

FORMATS = ("text", "md")


def check(
    profile: Annotated[
        str,
        typer.Argument(metavar="PROFILE", help="A hardware or engine profile, by name or path.", show_default=False),
    ],
    against: Annotated[
        list[Path],
        typer.Option(
            metavar="RUN|RESULTS",
            help="A folder of operator tables, or a file of benchmark results, which repeats.",
            show_default=False,
        ),
    ],
    tolerance: Annotated[
        str, typer.Option(metavar="SHARE", help="How far anything may have moved, either way.")
    ] = "5%",
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario", metavar="SCENARIO", help="What served the benchmarks; needed for RESULTS.", show_default=False
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", metavar="ENGINE", help="Whose kernels, where a profile or a folder has several engines'."
        ),
    ] = "vllm",
    may_be_faster: Annotated[
        bool,
        typer.Option("--may-be-faster", help="Benchmarks that are faster than promised pass; only slower ones fail."),
    ] = False,
    as_format: Annotated[str, typer.Option("--format", metavar="text|md", help="md: for a pull request.")] = "text",
    set_: SetOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Fail with exit code 99 where kernels or benchmarks have moved away from a profile, slower or faster.

    A profile that is too slow is as wrong as one that is too fast. A promise holds where the server is faster: with
    --may-be-faster, as the benchmark.sh of exports has it.

    simserve calibrate check h100-sxm-80gb --against runs/new

    simserve calibrate check my-vllm.yaml --against results.json --scenario mine.yaml --tolerance 10%
    """
    from simserve.calibrate.drift import markdown

    if as_format not in FORMATS:
        raise UsageError("must be text or md", key="--format", value=as_format)
    if as_json and as_format == "md":
        raise UsageError("cannot be had with --json", key="--format", value="md")
    limit = share(tolerance, "--tolerance")
    drift = _drift(profile, against, limit, scenario, engine, set_ or (), may_be_faster=may_be_faster)
    if as_json:
        print_json(drift.as_mapping())
    elif as_format == "md":
        print_lines(markdown(drift).splitlines())
    elif not quiet:
        _render(drift)
    if not drift.passed:
        raise typer.Exit(EXIT_THRESHOLD_FAILED)


def _drift(
    profile: str,
    against: list[Path],
    tolerance: float,
    scenario: str | None,
    engine: str,
    overrides: list[str] | tuple[()],
    *,
    may_be_faster: bool,
) -> Drift:
    from simserve.calibrate.drift import check_kernels, check_serving
    from simserve.profiles.hardware import load_hardware
    from simserve.scenario.load import load
    from simserve.workload.benchmarks.reading import read_results

    folders = [path for path in against if path.is_dir()]
    is_engine = _is_engine(profile)
    if folders and len(against) > 1:
        raise UsageError("must be one folder of operator tables, or files of results", key="--against")
    if folders:
        if is_engine:
            rule = "is an engine profile: operator tables say nothing of it"
            raise UsageError(rule, key="PROFILE", value=profile, remedy="give the hardware profile")
        if scenario is not None or overrides:
            raise UsageError("has no use with operator tables", key="--set" if overrides else "--scenario")
        if may_be_faster:
            rule = "has no use with operator tables: kernels that are faster need a new profile too"
            raise UsageError(rule, key="--may-be-faster", remedy="leave it out")
        return check_kernels(load_hardware(profile), folders[0], engine, tolerance, profile)
    if scenario is None:
        raise UsageError("is missing: benchmarks need what served them", key="--scenario")
    results = read_results(against)
    key = "deployment.engine.name" if is_engine else "deployment.hardware"
    loaded: Scenario = load(scenario, [*overrides, f"{key}={_absolute(profile)}"])
    files = [str(path) for path in against]
    return check_serving(loaded, results, tolerance, profile, files, may_be_faster=may_be_faster)


def _is_engine(profile: str) -> bool:
    """Return whether a profile is one of an engine; only an engine's has versions.

    Raises:
        ProfileError: There is neither such a hardware nor such an engine profile.
    """
    from simserve.documents import read_mapping
    from simserve.errors import ProfileError, nearest
    from simserve.profiles import catalog

    if _is_path(profile):
        return "versions" in read_mapping(catalog.find("hardware", profile), ProfileError)
    for kind in ("hardware", "engine"):
        if profile in catalog.names(kind):
            return kind == "engine"
    known = [*catalog.names("hardware"), *catalog.names("engine")]
    raise ProfileError("is no hardware and no engine profile", value=profile, remedy=nearest(profile, known))


def _is_path(profile: str) -> bool:
    return profile.endswith((".yaml", ".yml", ".json")) or "/" in profile


def _absolute(profile: str) -> str:
    """Return a path that means the same from the scenario's folder."""
    return str(Path(profile).resolve()) if _is_path(profile) else profile


def _render(drift: Drift) -> None:
    from simserve.calibrate.drift import cells

    count = len(drift.comparisons)
    faster = sum(each.verdict == "faster" for each in drift.comparisons if each.is_within)
    if drift.passed:
        more = f", {faster} of them faster than promised" if faster else ""
        within = "no slower than the tolerance allows" if faster else "within the tolerance"
        print_lines([f"{drift.profile} still holds: {count} of {count} {within}{more}"])
    else:
        print_lines([f"{drift.profile} has drifted: {len(drift.moved)} of {count} moved"])
    rest = [each for each in drift.comparisons if each.is_within]
    header = ("what", "calls", "profile", "measured", "change", "tolerance", "")
    print_table(header, [cells(each) for each in (*drift.moved, *rest)])
    print_lines([f"- {each}" for each in drift.left_out])
