"""`simserve gpus`, `models`, `engines`: the catalogues, and the resolved knobs of an engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simserve.cli.apis import (
    DateOption,
    ForceOption,
    NameArgument,
    OutOption,
    PricesOption,
    TodayOption,
    fetched_at,
    is_named,
    price_facts,
    print_offers,
    refuse_none,
    say_written,
    seen,
)
from simserve.cli.one_line import refuse_flags
from simserve.cli.options import JsonOption, argument, option, print_json, print_lines, print_table
from simserve.errors import ProfileError, ScenarioError, UsageError, nearest

if TYPE_CHECKING:
    from simserve.profiles.gpu_prices import GpuPrice
    from simserve.profiles.hardware import HardwareProfile
    from simserve.profiles.model import ModelProfile
    from simserve.profiles.resolved_engine import ResolvedEngine

_16_BIT_BYTES = 2.0
_HARDWARE = "h100-sxm-80gb"
_MODEL = "llama-3.1-8b"
_TIMES = (
    "static_max_wait",
    "frontend_latency",
    "tokenizer_wait",
    "tokenization_per_token",
    "frontend_seconds_per_request",
)
"""Knobs in seconds whose names do not include the unit."""
_MONTH = len("2026-07")  # Characters of a date that the table of GPUs shows.


def gpus(
    name: NameArgument = None,
    offers: Annotated[bool, option("Print every price: on demand, reserved, spot.", "--offers")] = False,
    profile: Annotated[
        bool,
        option("Print the profile that NAME stands for, each number with its source: a file to copy.", "--profile"),
    ] = False,
    prices: PricesOption = None,
    provider: Annotated[
        str | None, option("With --prices: who sells. Default: as the file's path says.", metavar="NAME")
    ] = None,
    date: DateOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    today: TodayOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the GPUs: memory, bandwidth, peak FLOP/s (dense), price and its date.

    With --prices the offers of a file: SkyPilot's catalogs/vN/CLOUD/vms.csv, or gpuhunt's PROVIDER.csv.

    simserve gpus h100

    simserve gpus h100 --profile > mine.yaml

    simserve gpus --prices catalogs/v8/nebius/vms.csv --date 2026-11-20 --out my-prices
    """
    if prices is not None:
        if name is not None:
            raise UsageError("filters the list of GPUs, not a price file", key="NAME", value=name)
        refuse_flags({"--profile": profile or None}, "prints one GPU's profile, not a price file")
        _price_file(prices, provider, fetched_at(date), out, force=force, today=today, as_json=as_json)
        return
    of_file = {"--provider": provider, "--date": date, "--out": out, "--force": force or None}
    refuse_flags(of_file, "needs --prices FILE")
    from simserve.profiles import catalog
    from simserve.profiles.hardware import load_hardware
    from simserve.profiles.price_dates import check_today, newest
    from simserve.units import format_bytes

    if profile:
        _print_profile(name, as_json=as_json)
        return
    every = [load_hardware(each) for each in catalog.names("hardware")]
    profiles = [each for each in every if is_named(name, [each.name, *each.aliases, *each.sizes])]
    refuse_none(profiles, name, [each.name for each in every])
    dates = [price.date for profile in profiles for price in profile.prices]
    reference = check_today(today) if today is not None else newest(dates)
    rows = [_gpu(profile, reference) for profile in profiles]
    if as_json:
        print_json({"gpus": rows, "judged_at": reference})
        return
    if offers:
        print_offers(rows)
        return
    print_table(
        ("gpu", "memory", "GB/s", "16-bit", "fp8", "fp4", "USD/h", "seen"),
        [
            (
                row["name"],
                format_bytes(row["memory_bytes"]),
                f"{row['bandwidth_bytes_per_s'] / 1e9:,.0f}",
                _teraflops(row["bf16_flops"] or row["fp16_flops"]),
                _teraflops(row["fp8_flops"]),
                _teraflops(row["fp4_flops"]),
                "-" if row["usd_per_hour"] is None else f"{row['usd_per_hour']:.2f}",
                seen(row["price_date"] and row["price_date"][:_MONTH], row["price_is_old"]),
            )
            for row in rows
        ],
        "16-bit, fp8, fp4: dense peaks, TFLOP/s. USD/h: on demand at specialised clouds,\n"
        "fitted, and the month of the newest price; --offers lists all. Short names\n"
        "(h100, b300, m4-max) and other memory sizes (m4-max-64gb) mean these too;\n"
        "--json lists them. simserve gpus NAME --profile prints all, with sources.",
    )


def models(
    name: Annotated[
        str | None,
        argument(
            "Only those with this in their name, family or repository; or one repository or config.json.",
            metavar="[NAME]",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the models: parameters, KV bytes per token, context length. Also reads a config.json.

    simserve models qwen3

    simserve models config.json
    """
    profiles = _models_named(name)
    rows = [_model(profile) for profile in profiles]
    if as_json:
        print_json({"models": rows})
        return
    print_table(
        ("model", "parameters", "active", "layers", "KV bytes a token", "context", "stored"),
        [
            (
                row["name"],
                f"{row['num_parameters'] / 1e9:.2f} B",
                f"{row['num_active_parameters'] / 1e9:.2f} B",
                str(row["num_hidden_layers"]),
                f"{row['kv_bytes_per_token']:,.0f}",
                f"{row['max_position_embeddings']:,}",
                "16 bit" if row["stored"] == "none" else row["stored"],
            )
            for row in rows
        ],
        "KV bytes a token: all layers, 16-bit KV cache, one copy. Stored: the format of the checkpoint that the name "
        "stands for."
        + "".join(f" {each.name} has the shape of {each.shape_of}." for each in profiles if each.shape_of),
    )


def engines(
    name: Annotated[str | None, argument("Print what this engine's knobs resolve to.", metavar="[NAME]")] = None,
    version: Annotated[str | None, option("Version; the newest if absent.", "--engine-version")] = None,
    hardware: Annotated[
        str | None, option(f"GPU that the defaults depend on; {_HARDWARE} if absent.", "--hardware", "--gpus")
    ] = None,
    model: Annotated[str | None, option(f"Model that the longest request depends on; {_MODEL} if absent.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the engines and their known versions, or print the resolved defaults of one."""
    if name is not None:
        _refuse_several(hardware)
        resolved = _resolved(name, version, hardware or _HARDWARE, model or _MODEL)
        if as_json:
            print_json(resolved.model_dump())
        else:
            print_resolved(resolved)
        return
    for flag, value in (("--engine-version", version), ("--hardware", hardware), ("--model", model)):
        refuse_flags({flag: value}, "is for the knobs of one engine", f"name it: simserve engines vllm {flag} ...")
    from simserve.profiles import catalog
    from simserve.profiles.engine import load_engine

    profiles = [load_engine(each) for each in catalog.names("engine")]
    rows: list[dict[str, Any]] = [
        {
            "name": profile.name,
            "description": profile.description,
            "versions": [known.version for known in profile.versions],
            "batching": profile.newest.scheduling.batching,
            "scheduler": profile.newest.scheduling.scheduler,
            "admission": profile.newest.scheduling.admission,
            "kv_allocation": profile.newest.scheduling.kv_allocation,
        }
        for profile in profiles
    ]
    if as_json:
        print_json({"engines": rows})
        return
    columns = ("name", "batching", "scheduler", "admission", "kv_allocation")
    cells = [
        (*(str(row[column]) for column in columns), " to ".join(dict.fromkeys((versions[0], versions[-1]))))
        for row in rows
        if (versions := row["versions"])
    ]
    note = (
        "Rules are those of the newest version; of a version between, those of the nearest older known one. "
        "simserve engines NAME prints every resolved knob, --json every version."
    )
    print_table((*columns[:-1], "KV", "versions"), cells, note)


def _price_file(
    file: Path, provider: str | None, date: str, out: Path | None, *, force: bool, today: str | None, as_json: bool
) -> None:
    """Print the offers of a price file, and write profiles with them."""
    from simserve.planner.importers.prices import read_gpu_prices, write_hardware_profiles
    from simserve.profiles.price_dates import check_today, is_old

    reference = date if today is None else check_today(today)
    found = read_gpu_prices(file, date, provider)
    if not found.prices:
        raise ProfileError(
            "has no price of a GPU that a bundled profile stands for", file=file, remedy="simserve gpus lists them"
        )
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "prices": [{**price.model_dump(), "is_old": is_old(price.date, reference)} for price in own],
            "purchase_usd": None,
            "purchase_date": None,
        }
        for name, own in found.prices.items()
    ]
    if out is not None:
        say_written(write_hardware_profiles(found.prices, out, force=force), out)
    if as_json:
        print_json({"gpus": rows, "judged_at": reference, "skipped": list(found.skipped)})
        return
    print_offers(rows)
    if found.skipped:
        print_lines([f"Without a profile, left out: {', '.join(found.skipped)}"])


def _print_profile(name: str | None, *, as_json: bool) -> None:
    """Print the file of the profile that a name stands for."""
    from simserve.profiles import catalog
    from simserve.profiles.hardware import hardware_name, load_hardware

    if name is None:
        raise UsageError("needs the name of a GPU", key="--profile", remedy="simserve gpus h100 --profile")
    load_hardware(name)  # raises, naming the nearest
    files = {each: catalog.find("hardware", each) for each in catalog.names("hardware")}
    known = hardware_name(name)
    owners = {size: each for each in files for size in load_hardware(each).sizes}
    text = (files.get(owners.get(known, known)) or Path(name)).read_text(encoding="utf-8")
    if as_json:
        print_json({"name": owners.get(known, known), "yaml": text})
        return
    sys.stdout.write(text)


def _gpu(profile: HardwareProfile, today: str | None) -> dict[str, Any]:
    from simserve.profiles.price_dates import is_old

    on_demand = [price for price in profile.prices if price.kind == "on_demand"]
    newest: GpuPrice | None = max(on_demand, key=lambda price: price.date, default=None)
    return {
        "name": profile.name,
        "description": profile.description,
        "memory_bytes": profile.memory.total,
        "bandwidth_bytes_per_s": profile.memory.bandwidth,
        **{f"{name}_flops": profile.peak_flops(name) for name in ("fp16", "bf16", "fp8", "fp4")},
        "aliases": list(profile.aliases),
        "sizes": dict(profile.sizes),
        "gpus_per_node": profile.intra_node.gpus_per_node,
        "gpus_per_host": profile.intra_node.num_host_gpus,
        "usd_per_hour": profile.default_price,
        "price_date": None if newest is None else newest.date,
        "price_is_old": newest is not None and today is not None and is_old(newest.date, today),
        "prices": price_facts(profile, today),
        "purchase_usd": None if profile.purchase is None else profile.purchase.usd,
        "purchase_date": None if profile.purchase is None else profile.purchase.date,
    }


def _models_named(name: str | None) -> list[ModelProfile]:
    """Return the profiles and repositories whose names contain a name, or the one model that it stands for.

    Raises:
        ProfileError: No name contains it and it stands for no model; the message says why, or names the closest.
    """
    from simserve.planner.importers.model_names import find_model
    from simserve.profiles import catalog
    from simserve.profiles.catalog import catalogue_models, load_model
    from simserve.profiles.model_names import layers_without_formula, repositories_on_record

    profiles = list(catalogue_models().values())
    if name is None:
        return profiles
    found = [
        profile
        for profile in profiles
        if is_named(name, [profile.name, profile.family, *(each.repository or "" for each in profile.checkpoints)])
    ]
    found += [load_model(each) for each in repositories_on_record() if is_named(name, [each])]
    if found:
        return found
    try:
        return [load_model(name if name.endswith(".json") or Path(name).exists() else find_model(name, None).model)]
    except ScenarioError:
        if (layers := layers_without_formula(name)) is not None:
            raise ProfileError(layers, value=name) from None
        choices = [*repositories_on_record(), *catalog.names("model")]
        remedy = f"{nearest(name, choices)}; its config.json works as well: simserve models config.json"
        raise ProfileError("is in no name", value=name, remedy=remedy) from None


def _model(profile: ModelProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "family": profile.family,
        "num_parameters": profile.num_parameters,
        "num_active_parameters": profile.num_active_parameters,
        "num_hidden_layers": profile.num_hidden_layers,
        "kv_bytes_per_token": profile.kv_bytes_per_token(_16_BIT_BYTES),
        "max_position_embeddings": profile.max_position_embeddings,
        "stored": profile.stored.format,
        "checkpoints": [{"format": each.format, "repository": each.repository} for each in profile.checkpoints],
    }


def _refuse_several(hardware: str | None) -> None:
    """Refuse ``--gpus 2xH100``: defaults are those of a server on one GPU."""
    from simserve.planner.one_line import gpu_and_count

    if hardware is None or not hardware[:1].isdigit():
        return
    gpu, count = gpu_and_count(hardware)
    if count is not None:
        rule = "is a number of GPUs: the defaults shown are those of a server on one"
        raise UsageError(rule, key="--gpus", value=hardware, remedy=f"--gpus {gpu}")


def _resolved(name: str, version: str | None, hardware: str, model: str) -> ResolvedEngine:
    """Return an engine as a run resolves it that sets nothing but engine, GPU and model."""
    from simserve.profiles.catalog import load_model
    from simserve.profiles.engine import load_engine
    from simserve.profiles.hardware import load_hardware
    from simserve.scenario.load import from_mapping
    from simserve.scenario.resolve import resolved_engine

    name, gpu, served = load_engine(name).name, load_hardware(hardware), load_model(model)  # Errors name no key.
    traffic = {"arrivals": {"process": "poisson", "rate": 1.0}, "prompt_tokens": 1, "output_tokens": 1}
    scenario = from_mapping(
        {
            "name": "defaults",
            "model": model,
            "deployment": {"hardware": hardware, "engine": {"name": name, "version": version}},
            "workload": {**traffic, "num_requests": 1},
        }
    )
    return resolved_engine(scenario, gpu, served, "both")


def print_resolved(resolved: ResolvedEngine) -> None:
    """Print every knob of an engine, its value, and where the value comes from; the common source is printed once.

    Those that a scenario can set come first, then what is known of how this version works.
    """
    from simserve.scenario.deployment_spec import EngineSpec

    settings = resolved.model_dump()
    sources = settings.pop("sources")
    opening = f"{resolved.name} {resolved.version} default"
    defaults = [source for source in resolved.sources.values() if source.startswith(opening)]
    common = min(defaults, key=len, default=opening)
    print_lines([f"default: {common}"])
    for title, is_settable in (("set with deployment.engine.KEY", True), ("how this version works", False)):
        rows = [
            (key, _shown(key, value), sources.get(key, "").replace(common, "default"))
            for key, value in settings.items()
            if (key in EngineSpec.model_fields) == is_settable
        ]
        print_table((title, "value", "where it comes from"), rows)


def _shown(key: str, value: object) -> str:
    from simserve.units import format_bytes, format_seconds

    if isinstance(value, tuple | list):
        texts = [str(each) for each in value]
        return ", ".join(texts) if len(texts) <= 5 else f"{texts[0]} ... {texts[-1]} ({len(texts)})"
    if isinstance(value, float) and "_bytes" in key and not key.endswith("_factor"):
        return format_bytes(value)
    if isinstance(value, float) and ("seconds" in key or key in _TIMES):
        return format_seconds(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def _teraflops(flops: float | None) -> str:
    return "-" if flops is None else f"{flops / 1e12:,.0f}"
