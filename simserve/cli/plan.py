"""`simserve plan`: what to deploy for this traffic at this SLO."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from simserve.cli.one_line import Asked, refuse_flags
from simserve.cli.options import (
    SeedOption,
    SetOption,
    Shown,
    changes_of,
    check_page,
    given_command,
    option,
    set_words,
    takes_flags,
)
from simserve.cli.progress import Steps, progress
from simserve.errors import InfeasibleError, InterruptedRunError, UsageError

if TYPE_CHECKING:
    from simserve.planner.plan.plan import Plan
    from simserve.report.plan import PlanPage
    from simserve.scenario.schema import Scenario


@takes_flags(without=("tp", "pp", "replicas"))
def plan(
    asked: Asked,
    hardware: Annotated[
        list[str] | None,
        option(
            "Kinds of GPU to choose one from, without numbers. Default: the scenario's, and those with an "
            "on-demand price.",
            metavar="GPU,GPU",
        ),
    ] = None,
    max_gpus: Annotated[
        int | None,
        option("Most GPUs to use. Default: 256; for latency and throughput, as many as the scenario has.", min=1),
    ] = None,
    objective: Annotated[
        Literal["cost", "gpus", "latency", "energy", "throughput"],
        option(
            "What to minimise: dollars, GPUs, p95 E2E or watts; throughput: the most that fixed GPUs can do. "
            "Unless given, gpus where those that are named have no price."
        ),
    ] = "cost",
    headroom: Annotated[str, option("Extra traffic that the plan must sustain: 0.2 or 20%.", metavar="SHARE")] = "0",
    spare_replicas: Annotated[int, option("Replicas that may be lost; they are paid for.", min=0)] = 0,
    over: Annotated[
        list[str] | None,
        option("Values of a key to search, in place of the default ones; repeats.", "--over", metavar="KEY=V1,V2"),
    ] = None,
    keep: Annotated[
        list[str] | None,
        option(
            "What must not change: gpus, weights, kv-cache, tensor-parallel, replicas, engine, drafts, pools, ...",
            metavar="NAME,NAME",
        ),
    ] = None,
    spot: Annotated[bool, option("Rent at spot prices; a spot GPU may be taken away.", "--spot")] = False,
    trials: Annotated[int, option("Engine settings to try on each deployment that could win; 0: none.", min=0)] = 32,
    confidence: Annotated[
        str | None,
        option(
            "Share of real servers on which the SLO must hold, by the errors to expect: 0.9 or 90%. "
            "Default: it must hold as simulated, on about half of them.",
            metavar="SHARE",
        ),
    ] = None,
    horizon: Annotated[
        str | None,
        option(
            "Also say what to buy over this time (12mo, 3y): commitments, on-demand and spot hours.", metavar="TIME"
        ),
    ] = None,
    growth: Annotated[
        str | None, option("Growth of the traffic over --horizon: 5%/month or 60%/year.", metavar="SHARE")
    ] = None,
    price_decline: Annotated[
        str | None,
        option("Fall of GPU prices over --horizon, such as 20%/year. Default: the scenario's.", metavar="SHARE"),
    ] = None,
    budget: Annotated[
        str | None, option("What a month of --horizon may cost: 20000/month or 20k.", metavar="DOLLARS")
    ] = None,
    commitments: Annotated[
        str | None,
        option(
            "What is on offer besides on-demand hours, with its discount: 1y=30%,3y=50%,spot=60%; or none. "
            "Default: 1y=25%,3y=45% and the listed spot price.",
            metavar="TERMS",
        ),
    ] = None,
    interruptions: Annotated[
        str | None,
        option(
            "How spot replicas are taken back: mtbf=24h,mttr=10min; also notice=30s. Default: every 24 h, for the "
            "time that a replica takes to start.",
            metavar="TIMES",
        ),
    ] = None,
    autoscaler: Annotated[
        bool,
        option("Also find an autoscaler's metric, target, window and minimum for a load that changes.", "--autoscaler"),
    ] = False,
    jobs: Annotated[int | None, option("Worker processes. Default: one a core. The plan is the same.", min=1)] = None,
    out: Annotated[
        Path | None, option("Also write the plan as a scenario, for run and export.", metavar="FILE")
    ] = None,
    force: Annotated[bool, option("With --out: replace an existing file.", "--force")] = False,
    overrides: SetOption = None,
    seed: SeedOption = None,
    *,
    shown: Shown,
) -> None:
    """Find what to deploy: which GPUs, how the model is split over them, number formats, engine settings, replicas.

    Exits with 3 if nothing meets the SLO, and says what came closest. With --objective throughput the GPUs are fixed
    and the plan looks for the most load they can take, so no rate is needed.

    simserve plan chatbot

    simserve plan Qwen/Qwen3-32B --gpus 2xH100 --engine vllm==0.20 --rate 3 --prompt-tokens 2k --output-tokens 500
    --slo 'ttft=1.5s,tpot=50ms'

    simserve plan mine.yaml --hardware h100-sxm-80gb,l40s-48gb --max-gpus 32 --headroom 20% --spare-replicas 1

    simserve plan chatbot --over deployment.quantization=none,fp8 --objective gpus

    simserve plan chatbot --confidence 90%

    simserve plan chatbot --out best.yaml

    simserve plan chatbot --horizon 12mo --growth 5%/month

    simserve plan cold-start --keep gpus --autoscaler

    simserve plan chatbot --objective throughput --gpus 8xH100
    --slo 'ttft=1s,tpot=20ms'

    simserve plan chatbot --objective throughput --gpus 8xH100+8xH200
    """
    from simserve import api
    from simserve.planner.one_line import kinds_of_gpus, weight_format

    shown.check()
    check_page(out, "--out")
    if out is not None and out.exists() and not force:
        raise UsageError("is there already", key="--out", value=str(out), remedy="name another file, or add --force")
    changes = changes_of(overrides, seed)
    kinds = {} if asked.gpus is None else kinds_of_gpus(asked.gpus)
    if kinds:
        name, count = next(iter(kinds.items()))
        asked = replace(asked, gpus=f"{count}x{name}")
    names = _gpus_to_choose(hardware)
    question = asked.question(changes, quiet=shown.quiet, needs_load=objective != "throughput", is_plan=True)
    loaded = question.scenario
    if question.gpu is not None:
        rule = "cannot stand beside --gpus, which says the same"
        refuse_flags({"--hardware": hardware}, rule, "keep one of the two")
        refuse_flags({"--max-gpus": None if question.num_gpus is None else max_gpus}, rule, "keep one of the two")
        names, max_gpus = [*kinds] or [question.gpu], question.num_gpus or max_gpus
        if objective == "throughput" and max_gpus is None:
            rule = "does not say how many GPUs there are"
            raise UsageError(rule, key="--gpus", value=asked.gpus, remedy=f"write 8x{asked.gpus}")
    elif objective == "throughput" and max_gpus is None and not question.has_own_gpu:
        raise UsageError("lacks the GPUs that there are", key="--objective", remedy="add --gpus 8xH200")
    values = list(over or ())
    if asked.quantization is not None and not any(each.startswith("deployment.quantization=") for each in values):
        values.append(f"deployment.quantization={weight_format(asked.quantization, asked.engine)}")
    shown.notes(loaded)
    source = shown.context.get_parameter_source("objective")
    is_default = source is not None and source.name == "DEFAULT"
    if is_default and not spot and horizon is None and budget is None:
        objective = _objective(loaded, names)
    # The number in --gpus would be a layout in the command that runs the plan, not a limit.
    gpu = None if question.has_own_gpu else loaded.deployment.hardware
    with progress(is_shown=not shown.quiet, label="planning") as tell:
        steps = None if tell is None else Steps(tell)
        result = api.plan(
            loaded,
            hardware=names,
            max_gpus=kinds or max_gpus,
            objective=objective,
            headroom=_share(headroom, "--headroom"),
            spare_replicas=spare_replicas,
            over=values,
            keep=_names(keep, "--keep"),
            spot=spot,
            trials=trials,
            confidence=None if confidence is None else _share(confidence, "--confidence"),
            horizon=horizon,
            growth=growth,
            price_decline=price_decline,
            budget=budget,
            commitments=commitments,
            interruptions=interruptions,
            autoscaler=autoscaler,
            jobs=jobs or os.cpu_count() or 1,
            reference=(*replace(asked, gpus=gpu).words, *set_words(changes)),
            progress=None if steps is None else steps.count,
            on_stage=None if steps is None else steps.begin,
        )
    from simserve.report.plan import render_plan, runs_file, writes_file

    written = None if out is None else _write(result, out)
    as_file = f"{given_command(shown.context)} --out deployment.yaml"
    shown.answer(
        result.summary,
        lambda: writes_file(result.brief, as_file) if written is None else runs_file(result.brief, written),
        lambda file, command, _: result.to_html(file, command),
        lambda out: render_plan(result.summary, out),
        written,
    )
    _raise_outcome(result)


def _objective(scenario: Scenario, names: Sequence[str]) -> Literal["cost", "gpus"]:
    """Return the default objective: dollars, or GPUs if those to choose from have no price."""
    from simserve.planner.plan.price import price_of
    from simserve.profiles.hardware import hardware_name

    unpriced = [name for name in map(hardware_name, names) if price_of(scenario, name).usd is None]
    if not names or len(unpriced) < len(names):
        return "cost"
    told = f"{', '.join(unpriced)} {'has' if len(unpriced) == 1 else 'have'} no price: planned for the fewest GPUs"
    print(f"simserve: {told}; --set pricing.gpu_hour_usd=DOLLARS plans for dollars", file=sys.stderr)
    return "gpus"


def _write(result: PlanPage, out: Path) -> Path | None:
    """Write the scenario on the plan's deployment, autoscaler included; return the file, or None if there is no plan.

    Raises:
        UsageError: The file cannot be written.
    """
    from simserve.planner.importers.draft import Draft, moved
    from simserve.report.plan import plan_sections
    from simserve.report.thresholds import thresholds_lines

    deployed = result.scaled
    if deployed is None:
        return None
    mapping = moved(deployed.as_mapping(), deployed.folder or Path(), out.parent)
    told = next(plan_sections(result.summary)).lines
    if "autoscaling" in result.summary:
        told = [*told, *thresholds_lines(result.summary["autoscaling"])]
    notes = tuple(each.strip() for each in told[1:] if not each.startswith("simserve "))
    try:
        out.write_text(Draft(mapping, notes, told[0]).text, encoding="utf-8")
    except OSError as failure:
        raise UsageError(f"cannot be written: {failure.strerror}", key="--out", value=str(out)) from None
    return out


def _raise_outcome(result: Plan) -> None:
    if result.was_interrupted:
        if not result.is_feasible:
            raise InterruptedRunError("interrupted before a fleet that holds was found")
        if (result.summary["best"].get("confirmed") or {}).get("is_confirmed"):
            raise InterruptedRunError("interrupted; the plan is confirmed, but not all that would change it is known")
        raise InterruptedRunError("interrupted; the plan is the best found until then, and not confirmed")
    if not result.is_feasible:
        miss = result.summary["nearest_miss"] or {}
        raise InfeasibleError("no plan holds", remedy=str(miss.get("relax") or "allow more GPUs"))


def _gpus_to_choose(texts: Sequence[str] | None) -> Sequence[str]:
    """Return the GPUs of ``--hardware``, which are names alone."""
    from simserve.profiles.cloud_instances import instance_of
    from simserve.profiles.hardware import counted_gpu, hardware_name, is_known_gpu

    rented = {each: instance_of(each) for each in _names(texts, "--hardware")}
    names = list(dict.fromkeys(each if instance is None else instance.gpu for each, instance in rented.items()))
    for each in names:
        count, name = counted_gpu(each)
        if count is not None and is_known_gpu(hardware_name(name)):
            remedy = (
                f"--gpus {count}x{name} is at most that many of it; --hardware {name} --max-gpus {count} says the same"
            )
            raise UsageError("has a number, and names GPUs to choose from", key="--hardware", value=each, remedy=remedy)
    return names


def _names(texts: Sequence[str] | None, option: str) -> Sequence[str]:
    """Return the names listed by an option that is given once or several times."""
    text = ",".join(texts or ())
    names = [name.strip() for name in text.split(",")]
    if texts and not all(names):
        raise UsageError("must be names, separated by commas", key=option, value=text)
    return [name for name in dict.fromkeys(names) if name]


def _share(text: str, option: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise UsageError("must be a share such as 0.2 or 20%", key=option, value=text) from None
