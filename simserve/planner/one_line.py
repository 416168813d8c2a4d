"""Turns one line, a word and a few flags, into the scenario that a command is asked about.

The word is a scenario file, a bundled scenario, a model, a Hugging Face id or a configuration; the flags describe the
rest, or override it. Knows no command.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from simserve.documents import read_mapping
from simserve.errors import InputError, ProfileError, ScenarioError, UsageError, nearest
from simserve.metrics.files import scenario_of_result
from simserve.planner.importers.command import import_command, refused_note
from simserve.planner.importers.draft import REFUSED, scenario_name
from simserve.planner.importers.llama_cpp_command import gguf_format
from simserve.planner.importers.model_names import NamedModel, find_model
from simserve.planner.importers.ollama_command import FORMAT as OLLAMA_FORMAT
from simserve.planner.importers.server import PLACEHOLDER_NOTE
from simserve.planner.layout import OneLine, client_notes, count_notes, laid_out, set_groups
from simserve.profiles import catalog
from simserve.profiles.catalog import catalogue_models, load_model
from simserve.profiles.checkpoint import WIDE_FORMATS, WeightFormatName
from simserve.profiles.cloud_instances import instance_of
from simserve.profiles.engine_profile import load_engine
from simserve.profiles.hardware import counted_gpu, hardware_name, is_known_gpu, load_hardware, remedy_for_gpu, slice_of
from simserve.profiles.model_names import format_of, layers_without_formula, meant_format, repositories_on_record
from simserve.scenario.load import Override, from_mapping
from simserve.scenario.schema import Scenario, SLOSpec
from simserve.sim.control import RoutingPolicy
from simserve.units import parse
from simserve.workload.spec import TraceColumn

if TYPE_CHECKING:
    from simserve.workload.traces.trace import Trace

DEFAULT_HARDWARE = "h100-sxm-80gb"  # GPU of a scenario that is only planned for: the plan chooses its own.
LLAMA_CPP = "llama.cpp"  # Engine on a Mac and of GGUF weights, where nothing names one.
_GGUF_ENGINES = ("llamacpp", "ollama")
_ENGINE_NAMES = {"trtllm": "tensorrt-llm", "llamaserver": "llama.cpp", "llamacppserver": "llama.cpp"}
"""Short names of engines, without hyphens -> the profile."""
_TOKENS = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([km]?)(?:\s*tok(?:en)?s?)?", re.IGNORECASE)
_ENGINE = re.compile(r"([A-Za-z][\w. -]*?)(?:==?|[:@ -])v?(b?\d\S*)")
_TIMES = re.compile(r"^(?:\d{1,5}\s*[x\u00d7*]\s*|\d{1,3}\s+)|\s*[:x\u00d7*]\s*\d{1,5}$")
"""How many of what is named, before or behind the name."""
_NEWEST = re.compile(
    r"(?:(?P<vllm>vllm)(?:==?|[:@ -])v1|"
    r"(?P<name>[A-Za-z][\w. -]*?)(?:==?|[:@ -])(?:latest|newest|nightly|main|dev|stable))",
    re.IGNORECASE,
)
"""An engine without a version number: ``vllm:nightly``. V1 is vLLM's name for what it has been since 0.8."""
_COMMAND = re.compile(r"\s--?\w|\b(?:vllm|sglang) serve\b|\b(?:docker|ollama) run\b")
"""What occurs only in a command line."""
_LIMIT = re.compile(r"([A-Za-z]\w*)\s*(?:<=|>=|[=<>:\u2264\u2265]|\s)\s*(\S.*)")
_PERCENTILE = re.compile(r"(?:[_(]|(?<![a-z\d]))p\(?(\d\d)(?:\.?(\d+))?\)?(?:_|(?![\d.]))", re.IGNORECASE)
"""``p95``, ``p(95)``, ``p99.9`` or ``p999``, also after an underscore."""
_CONFIG_KEYS = ("model_type", "architectures", "num_hidden_layers")
"""Keys that tell the configuration or the profile of a model from a scenario."""
_MANIFEST_KEYS = ("apiVersion", "services", "servingEngineSpec", "modelArtifacts")
"""Keys that tell a manifest of Kubernetes, Compose or a chart from a scenario."""
_API_VERSION = re.compile(rb"^apiVersion:", re.MULTILINE)
_ENDINGS = (".yaml", ".yml", ".json")
_TRACES = (".csv", ".jsonl", ".csv.gz", ".jsonl.gz", ".parquet")
_RATED = ("poisson", "constant", "gamma")  # Arrivals of which ``--rate`` changes the rate alone.
_LENGTHS = ("prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked."""

    scenario: Scenario  # The scenario, as if it came from a file.
    notes: tuple[str, ...] = ()  # What was inferred or assumed, in full sentences.
    gpu: str | None = None  # The GPU of ``--gpus``; None: the flag was not given.
    num_gpus: int | None = None  # How many of it; None: not given.
    has_own_gpu: bool = True  # Whether the scenario says its GPU itself, without any flag.
    has_load: bool = True  # Whether anything said how much traffic arrives; if not, one request a second is assumed.


@dataclass(frozen=True, slots=True)
class _Base:
    """The scenario keys that the word stands for, to which the flags are applied."""

    mapping: Mapping[str, Any]
    file: Path | None = None
    notes: tuple[str, ...] = ()
    is_complete: bool = True


def ask(
    word: str | None,
    flags: OneLine,
    changes: Sequence[str] = (),
    *,
    needs_traffic: bool = True,
    needs_load: bool = True,
    is_plan: bool = False,
) -> Question:
    """Return the scenario of one line.

    Args:
        word: A scenario file, a bundled scenario, a model profile, a Hugging Face id, a ``config.json`` or its folder;
            None: ``like`` names it.
        changes: ``KEY=VALUE``, applied last.
        needs_traffic: Whether the answer depends on what arrives; otherwise traffic may be left out.
        needs_load: Whether it depends on how much of it arrives; otherwise a bare model gets a rate to begin with.
        is_plan: Whether the GPUs are to be chosen: those of ``gpus`` are then a limit, and need not be given.

    Raises:
        UsageError: A flag is missing, or two contradict each other.
        InputError: A name is not known, or the scenario is invalid.
    """
    for flag, value in flags.given.items():
        if isinstance(value, str) and not value.strip():  # as a variable of a script that is not set leaves it
            raise UsageError("is empty", key=flag, remedy="give it a value, or leave it out")
    gpu, count = (None, None) if flags.gpus is None else gpu_and_count(flags.gpus)
    _check_traffic(flags)
    base = _as_tagged(_base(word, flags, gpu), word, flags)
    notes = [*base.notes]
    mapping = _with_defaults(base.mapping, gpu, is_plan=is_plan)
    folder = None if base.file is None else base.file.parent
    overrides = _overrides(flags, mapping, gpu, count, folder=folder, is_plan=is_plan, groups=set_groups(changes))
    if not base.is_complete:
        _check_complete(base, flags, changes, needs_traffic=needs_traffic, needs_load=needs_load, is_plan=is_plan)
        overrides = [*_filled(flags, mapping, gpu, needs_traffic=needs_traffic, needs_load=needs_load), *overrides]
        is_free = flags.engine is None and not any("deployment.engine" in each for each in changes)
        if is_free and (where := _where_llama_cpp(word, mapping, flags, gpu)):
            overrides.append(Override("deployment.engine.name", LLAMA_CPP, "--engine"))
            notes.append(f"{where} the engine is {LLAMA_CPP} unless --engine says another.")
    notes += _outdone(overrides, changes)
    has_own_gpu = flags.like is None and "hardware" in _block(base.mapping, "deployment")
    is_bare = flags.like is not None or not base.is_complete
    has_load = not is_bare or _sets_load(flags, changes)
    notes += _engine_notes(flags.engine)
    notes += _instance_notes(flags.gpus, scenario_provider=_block(mapping, "pricing").get("provider"), changes=changes)
    if flags.like is not None and needs_traffic:
        notes += _assumed(flags, changes, mapping, needs_load=needs_load)
    scenario = from_mapping(mapping, [*overrides, *changes], file=base.file, folder=folder)
    notes += _wide_notes(scenario) if is_bare and flags.like is None else []
    if media := _recorded_media(scenario, flags, notes):
        scenario = from_mapping(mapping, [*overrides, *media, *changes], file=base.file, folder=folder)
    if flags.like is not None and not is_plan and (refused := refused_note(flags.like, scenario)):
        notes.append(refused)
    if count is not None and not is_plan:
        notes += count_notes(scenario.deployment, count)
    if flags.concurrency is not None and needs_load:
        notes += client_notes(scenario)
    return Question(
        scenario=scenario, notes=tuple(notes), gpu=gpu, num_gpus=count, has_own_gpu=has_own_gpu, has_load=has_load
    )


def _outdone(overrides: Sequence[Override], changes: Sequence[str]) -> Iterator[str]:
    """Yield what ``--set`` says in place of a flag.

    The layout that follows from ``--gpus`` is left out: it is there to be changed.
    """
    keys = [change.partition("=")[0].strip() for change in changes]
    for each in overrides:
        if not each.label.startswith("--") or (each.label == "--gpus" and each.key != "deployment.hardware"):
            continue
        for key in keys:
            is_part = key.startswith(f"{each.key}.") and isinstance(each.value, Mapping)
            if key == each.key or each.key.startswith(f"{key}.") or (is_part and key.split(".")[-1] in each.value):
                yield f"--set {key} is taken in place of {each.label}."


def _where_llama_cpp(word: str | None, mapping: Mapping[str, Any], flags: OneLine, gpu: str | None) -> str | None:
    """Return where a bare model is served by llama.cpp, as its GPU or its weights tell; None: neither does."""
    if gpu is not None and load_hardware(gpu).vendor == "Apple":
        return "On a Mac"
    quantization = flags.quantization or _block(mapping, "deployment").get("quantization") or ""
    is_repository = word is not None and "gguf" in word.lower() and not os.path.exists(word)
    is_gguf = (format_of(quantization) or quantization).startswith("gguf") if quantization else is_repository
    return "For GGUF weights" if is_gguf else None


def _sets_load(flags: OneLine, changes: Sequence[str]) -> bool:
    keys = [change.partition("=")[0].strip() for change in changes]
    is_set = any(key == "workload" or key.startswith(("workload.arrivals", "workload.trace")) for key in keys)
    return is_set or any(each is not None for each in (flags.rate, flags.concurrency, flags.trace))


def _assumed(flags: OneLine, changes: Sequence[str], mapping: Mapping[str, Any], *, needs_load: bool) -> Iterator[str]:
    """Yield what is assumed about the traffic of a pasted command line, where no flag gives it."""
    if flags.trace is not None or any(change.strip().startswith("workload") for change in changes):
        return
    parts = []
    if needs_load and flags.rate is None and flags.concurrency is None:
        parts.append("1 request a second (--rate)")
    for key, what in zip(_LENGTHS, ("prompts", "answers"), strict=True):
        if getattr(flags, key) is None:
            mean = mapping["workload"][key]["mean"]
            parts.append(f"{what} of {mean:,} tokens on average (--{key.replace('_', '-')})")
    if parts:
        yield f"Nothing says what traffic arrives, so this is assumed: {', '.join(parts)}."


def _check_traffic(flags: OneLine) -> None:
    ways = [flag for flag in ("--rate", "--concurrency", "--trace") if flag in flags.given]
    if len(ways) > 1:
        remedy = "keep one of the two"
        if "--trace" in ways:
            remedy += "; for twice the load of a trace: --set workload.trace.time_scale=0.5"
        raise UsageError(f"cannot stand beside {ways[0]}", key=ways[1], remedy=remedy)
    lengths = [flag for flag in ("--prompt-tokens", "--output-tokens") if flag in flags.given]
    if flags.trace is not None and lengths:
        rule = "cannot stand beside --trace, which has lengths of its own"
        raise UsageError(rule, key=lengths[0], remedy="keep one of the two")


def _base(word: str | None, flags: OneLine, gpu: str | None) -> _Base:
    if flags.like is not None:
        if word is not None:
            rule = f"cannot stand beside {word!r}: the command line names the model"
            raise UsageError(rule, key="--like", remedy="keep one of the two")
        draft = import_command(flags.like, hardware=gpu, flag="--like")
        assumed = load_model(draft.mapping["model"]).assumption  # every answer says so anyway
        notes = (
            each.replace("; --model says another", "")
            for each in draft.notes
            if each != PLACEHOLDER_NOTE and not each.startswith(REFUSED) and not (assumed and each.startswith(assumed))
        )
        return _Base(draft.mapping, notes=tuple(notes))
    if word is None:
        remedy = "name one such as chatbot (simserve scenarios lists them), or a model (simserve models) with --gpus"
        raise UsageError("lacks a scenario", remedy=remedy)
    return _named(word)


def _named(word: str) -> _Base:
    """Return the scenario, or the bare model, that a word stands for; a scenario takes precedence."""
    if catalog.has("scenario", word):
        notes = (f"{word} is a bundled scenario and a model: the scenario is taken.",) * catalog.has("model", word)
        path = catalog.find("scenario", word)
        return _Base(read_mapping(path, ScenarioError), path, notes)
    path = Path(word).expanduser()
    if os.path.isdir(path) and not os.path.isfile(path / "config.json"):
        remedy = scenario_of_result(path) or "a model's has a config.json"
        raise ScenarioError("is a folder, not a scenario file", file=word, remedy=remedy)
    if os.path.isdir(path):
        return _of_model(NamedModel(word, None, is_exact=True), word)
    if word.lower().endswith(".gguf"):
        rule = "is a GGUF file of weights, which is not opened"
        remedy = f"name its model: {path.stem} --engine llama.cpp"
        raise ScenarioError(rule, value=word, remedy=remedy)
    if os.path.exists(path) and ("/" in word or os.sep in word or word.endswith(_ENDINGS)):
        remedy = f"make one of it: simserve import manifest {word} --out mine.yaml"
        is_manifest = ScenarioError("is a manifest, not a scenario", file=word, remedy=remedy)
        try:
            mapping = read_mapping(path, ScenarioError)
        except ScenarioError:
            if os.path.isfile(path) and _API_VERSION.search(path.read_bytes()):  # of several documents, or a template
                raise is_manifest from None
            raise
        if "model" not in mapping and any(key in mapping for key in _MANIFEST_KEYS):
            raise is_manifest
        if "model" not in mapping and any(key in mapping for key in _CONFIG_KEYS):
            return _of_model(NamedModel(word, None, is_exact=True), word)
        if "model" not in mapping and "simserve" in mapping:
            rule = "is the result of a run, not a scenario"
            raise ScenarioError(rule, file=word, remedy=scenario_of_result(path.parent) or "run its scenario")
        return _Base(mapping, path)
    if _COMMAND.search(word):
        rule = "is a command line, not the name of a scenario or a model"
        raise ScenarioError(rule, value=word, remedy="put it behind --like: --like 'vllm serve ...'")
    if word.endswith(_ENDINGS) or word.startswith((".", "/", "~")):
        catalog.find("scenario", word)  # raises, saying what is wrong with it
    if word.lower().endswith(_TRACES):
        remedy = f"name what serves it: simserve run MODEL --gpus 2xH100 --trace {word}"
        raise ScenarioError("is a trace, neither a scenario nor a model", value=word, remedy=remedy)
    repository, _, tag = word.partition(":")
    if tag and "gguf" in repository.lower():
        stored, note = gguf_format(tag)
        base = _of_model(replace(_known_model(repository), quantization=stored), repository)
        return replace(base, notes=(*base.notes, *filter(None, [note])))
    return _of_model(_known_model(word), word)


def _known_model(word: str) -> NamedModel:
    """Return the model that a name stands for."""
    try:
        named = find_model(word, None)
    except ScenarioError:
        if layers_without_formula(word) is not None:
            raise
        if catalog.has("api", word):
            rule = "is an API: its weights cannot be had"
            raise ScenarioError(
                rule, value=word, remedy=f"compare a model with it: simserve cost MODEL --api {word}"
            ) from None
        gpu = counted_gpu(word)[1]
        if is_known_gpu(hardware_name(gpu)):
            remedy = f"name what it serves: simserve run Qwen/Qwen3-8B --gpus {word} ...; simserve gpus {gpu} shows it"
            raise ScenarioError("is a GPU, neither a scenario nor a model", value=word, remedy=remedy) from None
        repositories = [model.stored.repository for model in catalogue_models().values()]
        of_owner = [*filter(None, repositories), *repositories_on_record()] if "/" in word else []
        choices = catalog.tuned_of_family(word) or of_owner or [*catalog.names("scenario"), *catalog.names("model")]
        rule = "is neither a scenario nor a model that has a profile"
        near = nearest(word, choices)
        if not near.startswith("did you mean"):
            near = "simserve scenarios and simserve models list what there is"
        given = "give the path of its config.json in place of the name"
        remedy = f"{given}; {near}" if "/" in word else f"{near.removesuffix('?')}, or {given}"
        raise ScenarioError(rule, value=word, remedy=remedy) from None
    return named


def _of_model(named: NamedModel, word: str) -> _Base:
    deployment = {} if named.quantization is None else {"quantization": named.quantization}
    notes: tuple[str, ...] = ()
    if not named.is_exact and named.model != word:  # otherwise every answer says so anyway
        stored = "" if named.quantization is None else f" and {named.quantization} weights"
        notes = (f"{word} is taken to be {named.model}{stored}, by its name.",)
    mapping = {"name": _last_part(word), "model": named.model, "deployment": deployment, "workload": {}}
    return _Base(mapping, notes=notes, is_complete=False)


def _as_tagged(base: _Base, word: str | None, flags: OneLine) -> _Base:
    """Return a model in the format of Ollama's tag: ``llama3.1:8b`` is Q4_K_M there (ollama.com/library/llama3.1)."""
    is_ollama = flags.engine is not None and _plain_name(flags.engine).startswith("ollama")
    is_tag = word is not None and ":" in word and "/" not in word
    if base.is_complete or not (is_ollama and is_tag) or flags.quantization or base.mapping["deployment"]:
        return base
    if load_model(base.mapping["model"]).stored.format not in WIDE_FORMATS:
        return base
    note = f"Ollama's {word} has {OLLAMA_FORMAT} weights unless its tag says others."
    return replace(
        base, mapping={**base.mapping, "deployment": {"quantization": OLLAMA_FORMAT}}, notes=(*base.notes, note)
    )


def _wide_notes(scenario: Scenario) -> list[str]:
    """Return a note on the usual format where an engine of GGUF files would run a 16-bit checkpoint, as few do."""
    engine, weights = scenario.deployment.engine.name, scenario.deployment.quantization
    if not _plain_name(engine).startswith(_GGUF_ENGINES) or weights != "auto":
        return []
    model = load_model(scenario.model, scenario.folder)
    if model.stored.format not in WIDE_FORMATS:
        return []
    return [
        f"{model.name} is simulated with its 16-bit weights; {engine} is mostly given Q4_K_M: --quantization q4_k_m."
    ]


def _last_part(word: str) -> str:
    """Return what names a model or a GPU in the name of a result: without folder or extension."""
    path = Path(word)
    last = path.stem if path.suffix in _ENDINGS else path.name
    return scenario_name(path.absolute().parent.name if last == "config" else last or "model")


_EXAMPLES = {"--gpus": "2xH100", "--rate": "3", "--prompt-tokens": "2k", "--output-tokens": "500"}
"""An example of each flag that a model needs, for the remedy."""


def _check_complete(
    base: _Base, flags: OneLine, changes: Sequence[str], *, needs_traffic: bool, needs_load: bool, is_plan: bool
) -> None:
    """Refuse a bare model, and name all that it lacks."""
    keys = [change.partition("=")[0].strip() for change in changes]
    lacking = []
    if not (flags.gpus or is_plan or any(key in ("deployment", "deployment.hardware") for key in keys)):
        lacking.append("--gpus")
    has_own = any(key.split(".")[0] == "workload" for key in keys)
    if needs_traffic and flags.trace is None and not has_own:
        if needs_load and flags.rate is None and flags.concurrency is None:
            lacking.append("--rate (or --concurrency, --trace)")
        lacking += [flag for flag in ("--prompt-tokens", "--output-tokens") if flag not in flags.given]
    if lacking:
        example = " ".join(f"{flag} {_EXAMPLES[flag]}" for flag in (each.partition(" ")[0] for each in lacking))
        rule = f"is a model, and lacks {', '.join(lacking)}"
        raise UsageError(rule, value=base.mapping["model"], remedy=f"add for example {example}")


def _with_defaults(mapping: Mapping[str, Any], gpu: str | None, *, is_plan: bool) -> dict[str, Any]:
    """Return a scenario's keys with a GPU, which a plan needs only to begin with."""
    deployment = mapping.get("deployment", {})
    if not is_plan or not isinstance(deployment, Mapping) or "hardware" in deployment:
        return dict(mapping)
    return {**mapping, "deployment": {"hardware": gpu or DEFAULT_HARDWARE, **deployment}}


_ROUTERS = {
    **dict.fromkeys(("kv", "kvaware", "prefixaware", "cacheaware", "prefixcacheaware"), "prefix"),
    **dict.fromkeys(("leastrequest", "leastrequests", "leastconn", "shortestqueue", "jsq"), "least_outstanding"),
    **dict.fromkeys(("p2c", "poweroftwochoices"), "power_of_two"),
    **dict.fromkeys(("sticky", "sessionaffinity"), "session"),
}
"""Names that routers have for a policy -> the policy: Dynamo's `kv`, SGLang's `cache_aware`, `prefixaware` of vLLM's
production stack, Envoy's `LEAST_REQUEST`, HAProxy's `leastconn`."""


def _overrides(
    flags: OneLine,
    mapping: Mapping[str, Any],
    gpu: str | None,
    count: int | None,
    *,
    folder: Path | None,
    is_plan: bool,
    groups: Mapping[str, Any],
) -> list[Override]:
    """Return what the flags change in a scenario's keys."""
    deployment, workload = (_block(mapping, key) for key in ("deployment", "workload"))
    found = [] if is_plan else laid_out(flags, {**deployment, **groups}, gpu, count)
    if flags.routing is not None:
        key = "deployment.routing.policy" if _block(deployment, "routing") else "deployment.routing"
        text, own = flags.routing, get_args(RoutingPolicy)
        known: dict[str, str] = _ROUTERS | {_plain_name(each): each for each in own}
        if _plain_name(text) not in known:
            remedy = f"choose from {', '.join(own)}"
            raise UsageError("is no routing policy", key="--routing", value=text, remedy=remedy)
        found.append(Override(key, known[_plain_name(text)], "--routing"))
    if flags.engine is not None:
        found += _engine(flags.engine, _block(deployment, "engine"))
    if flags.quantization is not None:
        chosen = weight_format(flags.quantization, flags.engine or _block(deployment, "engine").get("name"))
        found.append(Override("deployment.quantization", chosen, "--quantization"))
    found += _traffic(flags, workload, folder)
    if flags.slo is not None:
        found += _objective(flags.slo)
    return found


def _filled(
    flags: OneLine, mapping: Mapping[str, Any], gpu: str | None, *, needs_traffic: bool, needs_load: bool
) -> list[Override]:
    """Return what a bare model is given: the name of its result, and minimal traffic where the answer needs none."""
    name = mapping["name"] if gpu is None else f"{mapping['name']}-{_last_part(gpu)}"
    found = [Override("name", name[:100], "name")]
    is_free = flags.trace is None and flags.rate is None and flags.concurrency is None
    if is_free and not (needs_traffic and needs_load):
        found.append(Override("workload.arrivals", {"process": "poisson", "rate": 1.0}, "--rate"))
    if flags.trace is None and not needs_traffic:
        for key in _LENGTHS:
            if getattr(flags, key) is None:
                found.append(Override(f"workload.{key}", 1, f"--{key.replace('_', '-')}"))
    return found


def _block(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = mapping.get(key)
    return found if isinstance(found, Mapping) else {}


def kinds_of_gpus(text: str) -> dict[str, int]:
    """Return the number of each kind in ``16xH100 + 16xH200``; empty where it names one kind.

    Raises:
        UsageError: A part has no name or no number, or a kind occurs twice.
        ProfileError: There is no such GPU; names the nearest.
    """
    parts = [part.strip() for part in text.split("+")]
    if len(parts) < 2 or _has_plus_in_name(text):
        return {}
    found: dict[str, int] = {}
    for part in parts:
        name, count = gpu_and_count(part)
        if count is None or name in found:
            choice = ",".join(counted_gpu(each)[1] for each in parts)
            remedy = f"write 8xH100+8xH200, or for a choice of one of them --hardware {choice}"
            raise UsageError("must be a number of each kind of GPU", key="--gpus", value=text, remedy=remedy)
        found[name] = count
    return found


def _has_plus_in_name(text: str) -> bool:
    """Return whether a plus is part of a GPU's name, as in ``Ryzen AI Max+ 395``: what precedes it is no GPU."""
    before, whole = (hardware_name(counted_gpu(each)[1]) for each in (text.partition("+")[0], text))
    return is_known_gpu(whole) and not is_known_gpu(before)


def gpu_and_count(text: str) -> tuple[str, int | None]:
    """Return the GPU of ``2xH100`` or of a slice (``v6e-8``), and how many; None: not given.

    Raises:
        UsageError: There is no name, or the number is 0.
        ProfileError: There is no such GPU; names the nearest.
    """
    count, written = counted_gpu(text)
    name = hardware_name(written)
    if "," in text or ("+" in text and not _has_plus_in_name(text)):
        choice = ",".join(counted_gpu(each)[1] for each in re.split("[,+]", text.replace(" ", "")))
        remedy = (
            f"name one; for a choice of one of them: simserve plan ... --hardware {choice}; replicas of several kinds "
            "are pools of a scenario: simserve scenarios two-pools"
        )
        raise UsageError("names several kinds of GPU", key="--gpus", value=text, remedy=remedy)
    if not written or (written.isdecimal() and not is_known_gpu(name)):
        raise UsageError("names no GPU", key="--gpus", value=text, remedy="write 2xH100, or H100")
    if not is_known_gpu(name) and (part := slice_of(name)) is not None:
        name, count = part[0], part[1] * (1 if count is None else count)
    if count == 0:
        raise UsageError("must be at least one GPU", key="--gpus", value=text)
    if not is_known_gpu(name):
        if "/" in name or os.sep in name or name.endswith(_ENDINGS):
            catalog.find("hardware", name)  # raises, saying what is wrong with it
        else:
            raise ProfileError("is not a known GPU", key="--gpus", value=name, remedy=remedy_for_gpu(name))
    return name, count


def _plain_name(name: str) -> str:
    """Return an engine's name without separators: ``TensorRT LLM`` and ``tensorrt_llm`` are the same."""
    return re.sub(r"[-_. ]", "", name.casefold())


def _engine_named(text: str) -> tuple[str, str | None, bool]:
    """Return the engine and version that a text names, and whether it asks for the newest version by a word."""
    newest = _NEWEST.fullmatch(text)
    found = None if text.endswith(_ENDINGS) or newest is not None else _ENGINE.fullmatch(text)
    name, version = (text, None) if found is None else (found[1], found[2])
    if newest is not None:
        name = newest["vllm"] or newest["name"]
    engines = {_plain_name(each): each for each in catalog.names("engine")} | _ENGINE_NAMES
    return engines.get(_plain_name(name), name), version, newest is not None


def _engine_notes(text: str | None) -> list[str]:
    """Return a note on which version is meant where a word asks for the newest."""
    name, _, is_newest = _engine_named((text or "").strip())
    if not is_newest:
        return []
    why = " (V1 is the engine of every vLLM from 0.8 on)" if str(text).casefold().endswith("v1") else ""
    return [f"{text} is taken to be {name} {load_engine(name).newest.version}, the newest version known here{why}."]


def _instance_notes(text: str | None, *, scenario_provider: str | None, changes: Sequence[str]) -> list[str]:
    """Return a note on what a cloud rents under a name, and whose price counts unless the scenario names a provider."""
    written = _TIMES.sub("", (text or "").strip())
    instance = instance_of(written)
    if instance is None:
        return []
    note = f"{written} of {instance.provider} is {instance.num_gpus} x {instance.gpu}."
    sellers = {price.provider for price in load_hardware(instance.gpu).prices if price.kind == "on_demand"}
    if instance.provider not in sellers or scenario_provider is not None or any("pricing" in each for each in changes):
        return [note]
    return [f"{note[:-1]}; its price here is that of specialised clouds: --set 'pricing.provider={instance.provider}'."]


def _engine(text: str, engine: Mapping[str, Any]) -> list[Override]:
    """Return the engine and version of ``vllm==0.20``; an engine other than the scenario's gets its newest version."""
    known, version, is_newest = _engine_named(text.strip())
    if not catalog.has("engine", known) and not known.endswith(_ENDINGS):
        named = _engine_named(text.partition("==")[0].strip())[0]
        if catalog.has("engine", named):
            remedy = f"write numbers and points, for example {named}=={load_engine(named).newest.version}"
            if text.casefold().endswith("v0"):
                remedy = "V0 is the engine of vLLM up to 0.7: write for example vllm==0.7"
            raise ProfileError("has no version behind its ==", key="--engine", value=text, remedy=remedy)
        meant = nearest(known, catalog.names("engine")).removesuffix("?")
        remedy = f"{meant}; a version stands behind ==: vllm==0.20"
        raise ProfileError("is not a known engine", key="--engine", value=text, remedy=remedy)
    overrides = [Override("deployment.engine.name", known, "--engine")]
    if is_newest or version is not None or known != engine.get("name", "vllm"):
        overrides.append(Override("deployment.engine.version", version, "--engine"))
    return overrides


def weight_format(text: str, engine: str | None) -> str:
    """Return the weight format that ``--quantization`` names, for an engine by its name (None: any engine).

    Raises:
        InputError: It names no format; the error says which is meant.
    """
    if (found := format_of(text)) is not None:
        return found
    is_gguf = engine is not None and _plain_name(engine).startswith(_GGUF_ENGINES)
    meant = meant_format(text, is_gguf=is_gguf)
    known = ("auto", *get_args(WeightFormatName))
    remedy = nearest(text, known) if meant is None else f"did you mean '{meant}'?"
    remedy = "choose from " + ", ".join(known) if remedy.endswith("none like it") else remedy
    raise InputError("is not a known weight format", key="--quantization", value=text, remedy=remedy)


def _traffic(flags: OneLine, workload: Mapping[str, Any], folder: Path | None) -> list[Override]:
    found: list[Override] = []
    classes = workload.get("classes")
    of_classes = {key for each in classes if isinstance(each, Mapping) for key in each} if classes else set()
    asked = {
        "arrivals": next((f"--{key}" for key in ("rate", "concurrency") if getattr(flags, key) is not None), None),
        **{key: f"--{key.replace('_', '-')}" for key in _LENGTHS if getattr(flags, key) is not None},
    }
    for key, flag in asked.items():
        if flag is not None and key in of_classes:
            remedy = f"change a class with --set workload.classes.0.{key}=..."
            raise UsageError(
                f"has no effect on the scenario's classes, which have their own {key}", key=flag, remedy=remedy
            )
    if flags.trace is not None:
        found += _trace(flags.trace, folder)
    elif workload.get("trace") is not None and asked.keys() & set(_LENGTHS):
        rule = "cannot stand beside the scenario's trace, which has lengths of its own"
        raise UsageError(rule, key=next(flag for key, flag in asked.items() if key in _LENGTHS and flag))
    if flags.columns is not None:
        if flags.trace is None and workload.get("trace") is None:
            raise UsageError("has no effect without a trace", key="--columns", remedy="add --trace FILE")
        found.append(Override("workload.trace.columns", trace_columns(flags.columns, "auto"), "--columns"))
    if flags.rate is not None:
        process = _block(workload, "arrivals").get("process")
        if math.isinf(flags.rate):
            found.append(Override("workload.arrivals", {"process": "all_at_once"}, "--rate"))
        elif process in _RATED:
            found.append(Override("workload.arrivals.rate", flags.rate, "--rate"))
        else:
            found.append(Override("workload.arrivals", {"process": "poisson", "rate": flags.rate}, "--rate"))
    if flags.concurrency is not None:
        loop = {"process": "closed_loop", "concurrency": flags.concurrency}
        found.append(Override("workload.arrivals", loop, "--concurrency"))
    for key in _LENGTHS:
        text = getattr(flags, key)
        if text is not None:
            flag = f"--{key.replace('_', '-')}"
            found.append(Override(f"workload.{key}", {"distribution": "fixed", "value": tokens(text, flag)}, flag))
    if flags.num_requests is not None:
        found.append(Override("workload.num_requests", flags.num_requests, "--num-requests"))
        if workload.get("duration") is not None:
            found.append(Override("workload.duration", None, "--num-requests"))
    return found


def _trace(path: str, folder: Path | None) -> list[Override]:
    """Return a trace that replaces all traffic of a scenario; a relative path starts in the working folder."""
    absent = ("arrivals", *_LENGTHS, "num_requests", "duration", "classes", "sessions", "shared_prefix")
    here = Path(path).expanduser()
    is_hidden = folder is not None and (folder / here).exists() and not os.path.samefile(folder, os.curdir)
    found = Override("workload.trace", {"path": str(here.absolute() if is_hidden else here)}, "--trace")
    return [*(Override(f"workload.{key}", None, "--trace") for key in absent), found]


def _recorded_media(scenario: Scenario, flags: OneLine, notes: list[str]) -> list[Override]:
    """Return the images and recordings of ``--trace`` that a scenario does not describe; note what it leaves out."""
    source, workload = scenario.workload.trace, scenario.workload
    if flags.trace is None or source is None:
        return []
    # Readers of traces are loaded for traces alone.
    from simserve.planner.importers.trace import media_blocks, row_notes
    from simserve.workload.traces.formats import read_trace
    from simserve.workload.traces.table import find_file

    trace = read_trace(find_file(source.path, scenario.folder, takes_folder=True), source.format, source.columns)
    notes += row_notes(trace)
    told: list[str] = []
    blocks = media_blocks(trace, load_model(scenario.model, scenario.folder), told)
    if not workload.has_media:
        notes += told
        return [Override(f"workload.{key}", block, "--trace") for key, block in blocks.items()]
    return [each for key in blocks for each in _without_recorded(key, scenario, trace, notes)]


def _without_recorded(key: str, scenario: Scenario, trace: Trace, notes: list[str]) -> list[Override]:
    """Unset what a scenario says of its images, or recordings, that the trace records: how many, and how large."""
    spec = getattr(scenario.workload, key)
    recorded = getattr(trace, key)
    if spec is None or recorded is None:
        return []
    sizes = () if recorded.sizes is None else ("sizes" if key == "images" else "seconds",)
    given = [name for name in ("share", "count", *sizes) if name in spec.model_fields_set]
    if given:
        noun = "images" if key == "images" else "recordings"
        notes.append(f"The trace has {noun} of its own: not used of workload.{key}: {', '.join(given)}.")
    absent = type(spec)().model_dump(mode="json")
    return [Override(f"workload.{key}.{name}", absent[name], "--trace") for name in given]


def tokens(text: str, flag: str) -> int:
    """Return a number of tokens written as ``500``, ``2k`` or ``1.5k``; k is a thousand, m a million.

    Raises:
        UsageError: It is not such a number.
    """
    found = _TOKENS.fullmatch(text.strip().replace("_", "").replace(",", ""))
    number = 0.0 if found is None else float(found[1]) * {"": 1, "k": 10**3, "m": 10**6}[found[2].lower()]
    if number < 1 or not round(number, 6).is_integer():
        rule = "must be a whole number of tokens, at least 1"
        raise UsageError(rule, key=flag, value=text, remedy="for example 500 or 2k")
    return round(number)


def trace_columns(text: str | None, trace_format: str) -> dict[str, str] | None:
    """Return what ``--columns`` says of a trace: what is needed -> the column that holds it; None: it is not given.

    Raises:
        UsageError: It is not a list of ``NAME=COLUMN``, names what no trace has, or the format has its own columns.
    """
    if text is None:
        return None
    if trace_format not in ("auto", "columns"):
        rule = f"has no meaning in the format {trace_format}, which has names of its own"
        raise UsageError(rule, key="--columns", remedy="leave --format out")
    found: dict[str, str] = {}
    known = get_args(TraceColumn)
    for part in text.split(","):
        name, equals, column = (piece.strip() for piece in part.partition("="))
        if not (name and equals and column):
            remedy = "for example arrival_time=timestamp,prompt_tokens=prompt,output_tokens=completion"
            raise UsageError("must be NAME=COLUMN, separated by commas", key="--columns", value=text, remedy=remedy)
        found[name] = column
    for name in found:
        if name not in known:
            raise UsageError("is nothing that a trace has", key="--columns", value=name, remedy=nearest(name, known))
    return found


def _objective(text: str) -> list[Override]:
    """Return the limits of ``ttft=1.5s,tpot=50ms,attainment=0.95``, or the use case of a word alone.

    ``ttft < 1.5 s; tpot <= 50 ms`` says the same.

    Raises:
        UsageError: A part is not a limit, limits a percentile, or has a value that is none.
    """
    if text.strip().replace("-", "").replace("_", "").isalpha():
        return [Override("slo", text.strip(), "--slo")]
    found: list[Override] = []
    for part in filter(str.strip, re.split("[,;]", text)):
        limit = _LIMIT.fullmatch(part.strip())
        if _PERCENTILE.search(part):
            rule = "limits a percentile; here a limit holds for a request, and attainment is the share that meets all"
            raise UsageError(rule, key="--slo", value=text, remedy=f"write '{_without_percentiles(text)}'")
        if limit is None:
            remedy = "for example 'ttft=1.5s,tpot=50ms,attainment=0.95', or the name of a use case such as chat"
            raise UsageError("must be LIMIT=VALUE, separated by commas", key="--slo", value=text, remedy=remedy)
        name, value = limit[1].lower(), limit[2].strip()
        found.append(Override(f"slo.{name}", _limit(name, value), f"--slo {name}"))
    return found


def _limit(name: str, text: str) -> float | str:
    """Return the value of a part of ``--slo``: a share of requests, or a time with its unit."""
    if name == "attainment":
        share = _share(text)
        if not 0 < share <= 1:
            remedy = f"write {name}={share / 100:g}" if 1 < share <= 100 else "write for example 0.95 or 95%"
            raise UsageError("must be above 0 and at most 1", key=f"--slo {name}", value=text, remedy=remedy)
        return share
    if name not in SLOSpec.model_fields or name == "preset":
        return text
    try:
        is_positive = parse(text, "time") > 0
    except ValueError:
        is_number = re.fullmatch(r"\d+\.?\d*|\.\d+", text) is not None
        remedy = f"write {name}={text}s or {name}={text}ms" if is_number else f"write for example {name}=500ms"
        raise UsageError("is no time with its unit", key=f"--slo {name}", value=text, remedy=remedy) from None
    if not is_positive:
        raise UsageError("must be above 0", key=f"--slo {name}", value=text, remedy="leave it out for no limit")
    return text


def _without_percentiles(text: str) -> str:
    """Return limits on percentiles as limits on requests: ``ttft p95<1s`` is ``ttft=1s,attainment=0.95``.

    Of several percentiles the highest becomes the share that must meet all limits.
    """
    shares, limits, said = [], [], None
    for part in filter(str.strip, re.split("[,;]", text)):
        digits = [f"{found[1]}{found[2] or ''}" for found in _PERCENTILE.finditer(part)]
        shares += [1.0 if each == "100" else float(f"0.{each}") for each in digits]
        limit = _LIMIT.fullmatch(_PERCENTILE.sub(" ", part).strip())
        if limit is None:
            return "ttft=1.5s,tpot=50ms,attainment=0.95"
        name, value = limit[1].lower(), limit[2].strip().replace(" ", "")
        if name == "attainment":
            said = _share(value)
        else:
            limits.append(f"{name}={value}")
    return ",".join([*limits, f"attainment={max(shares) if said is None else said:g}"])


def _share(text: str) -> float:
    """Return a share written as ``0.95`` or ``95%``."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        rule = "attainment must be a share such as 0.95 or 95%"
        raise UsageError(rule, key="--slo", value=text) from None
