"""Turns the settings of a server, from its command line or log, into a scenario.

The `Program` of each engine says what its flags mean and fills a `Reading`; from there on all engines are treated
alike. Knows no flag of any engine.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simserve.errors import ScenarioError
from simserve.planner.export.flags import Flags, flags_of, newest_with, read_words, similar
from simserve.planner.importers.draft import Draft, scenario_name
from simserve.planner.importers.lengths import lognormal
from simserve.planner.importers.model_names import NamedModel, find_model
from simserve.planner.importers.pasted import read_pasted, without_shell
from simserve.planner.server_table import ServerTable, server_table
from simserve.planner.space.options import DRAFT_ACCEPTANCE, MTP_ACCEPTANCE
from simserve.profiles.catalog import load_model
from simserve.profiles.encoders import can_keep_tower_whole
from simserve.profiles.engine_profile import FEATURES, UNSIMULATED_METHODS, load_engine
from simserve.profiles.hardware import load_hardware
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_names import KV_CACHE_DTYPES, stored_format
from simserve.units import to_text

ASSUMED_HARDWARE = "h100-sxm-80gb"  # GPU of a server where neither its command line nor its log names one.
DTYPES = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
"""Servers' names of the format they compute in -> the scenario's."""
FORMATS_OF_THE_CHECKPOINT = ("compressed-tensors", "gguf")
"""Names of weight formats whose details only the checkpoint gives."""
_LENGTH_IS_FINAL = ("llama3", "longrope", "su", "default")
"""Kinds of position embeddings whose factor is already part of the model's length."""
_HUMAN = re.compile(r"(\d[\d_]*(?:\.\d+)?)([kKmMgG]?)(i?B?)")
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
"""Suffixes that vLLM reads: lower-case ones are decimal, upper-case ones binary."""
PLACEHOLDER_NOTE = (
    "The traffic is a placeholder, 1 request a second with the lengths of the Azure conversation trace of 2023: "
    "put yours in workload."
)
_PROMPT_MEAN, _OUTPUT_MEAN = 1155, 211  # Means of the trace, tokens.
_PROMPT_MAX, _OUTPUT_MAX = 8000, 1000
_SPECULATION_METHODS = {
    "ngram": "ngram",
    "[ngram]": "ngram",
    "draft_model": "draft_model",
    "eagle": "eagle",
    "eagle3": "eagle",
    "mtp": "mtp",
}
"""vLLM's names of methods -> the scenario's; names that end in `_mtp` are model-specific names of `mtp`."""
_NGRAM_ACCEPTANCE = 0.41
"""1.7 tokens per step: prompt look-up over all tasks of Spec-Bench (calibration/speculation.md)."""
_EAGLE_ACCEPTANCE = (0.81, 0.93)
"""Rate and decay, the means of EAGLE-3 layers on coding prompts (calibration/speculation.md)."""
_ACCEPTANCE: Mapping[str, tuple[float, float | None]] = {
    "draft_model": (DRAFT_ACCEPTANCE, None),
    "ngram": (_NGRAM_ACCEPTANCE, None),
    "eagle": _EAGLE_ACCEPTANCE,
    "mtp": MTP_ACCEPTANCE,
}


@dataclass(slots=True)
class Reading:
    """The settings of a server, as far as they have been read."""

    engine: str  # The engine's profile.
    version: str | None  # Version of the engine; None: not given.
    where: str  # Name of what is read, for errors.
    deployment: dict[str, Any] = field(default_factory=dict)  # Keys of ``deployment``.
    options: dict[str, Any] = field(default_factory=dict)  # Keys of ``deployment.engine``.
    is_pooling: bool = False  # Whether it answers with embeddings or scores.
    model: str | None = None  # The served model, as the server names it.
    quantization: str | None = None
    """Format of the weights that a flag sets, by the scenario's name; None: no flag sets it."""
    dtype: str | None = None  # Format that the server computes in.
    data_parallel_size: int = 1  # Data-parallel ranks, which share the experts of a model that has them.
    num_nodes: int = 1  # Nodes over which a replica's ranks are spread.
    shares_attention_ranks: bool = False  # Whether those ranks are groups of the tensor-parallel ones.
    speculation: dict[str, Any] = field(default_factory=dict)
    """vLLM's ``speculative_config``; another engine's settings under the same keys."""
    experts: dict[str, str] = field(default_factory=dict)
    """How tokens reach the experts of other ranks, in the engine's terms."""
    as_stored: str = ""  # Flag that leaves the format of the weights to the checkpoint; empty: none does.
    max_model_len: int | None = None
    """Longest sequence that overrides of the model's configuration set; None: the model's."""
    context_scale: float | None = None  # Factor of a scaled position embedding; None: the model's own.
    context_original: int | None = None  # Length that this factor multiplies; None: the model's.
    ignored: list[str] = field(default_factory=list)  # Flags without effect.
    not_simulated: list[str] = field(default_factory=list)  # Flags whose effect is not simulated.
    notes: list[str] = field(default_factory=list)  # Notes in full sentences.
    host_memory: HostMemory | None = None  # Part of the prefix cache in host memory; None: nothing.
    switches: dict[str, bool] = field(default_factory=dict)  # Switches that matter only together with other flags.
    variables: Mapping[str, str] | None = None  # Environment variables of the server; None: they are not known.
    asked: str | None = None  # Model that the caller names instead of the server's.

    def put(self, key: str, value: object, part: str = "options") -> None:
        """Set a key of a part of the reading; without a part, an attribute of the reading itself."""
        if part:
            getattr(self, part)[key] = value
        else:
            setattr(self, key, value)

    def count(self, flag: str, value: object) -> int:
        """Return a whole number in servers' forms: ``16384``, ``16_384``, ``16k`` (16,000) or ``16K`` (16,384).

        Raises:
            ScenarioError: The value is not such a number.
        """
        match = _HUMAN.fullmatch(str(value).strip())
        number = float(match[1]) * _SCALES[match[2]] if match and not match[3] else 0.5
        if not number.is_integer():
            raise ScenarioError("is not a whole number", file=self.where, key=flag, value=value)
        return int(number)

    def number(self, flag: str, value: object, rule: str) -> float:
        """Return a number that is not negative.

        Raises:
            ScenarioError: The value is not such a number; ``rule`` says what is expected.
        """
        try:
            number = float(str(value))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise ScenarioError(rule, file=self.where, key=flag, value=value)
        return number

    def size(self, flag: str, value: object) -> int:
        """Return a number of bytes in vLLM's forms, ``25.6k`` or ``10G``, also with ``iB``.

        Raises:
            ScenarioError: The value is not such a number.
        """
        match = _HUMAN.fullmatch(str(value).strip())
        number = math.inf
        if match is not None and not (match[3] and not match[2]):
            scale = _SCALES[match[2].upper() if match[3].startswith("i") else match[2]]
            number = float(match[1].replace("_", "")) * scale
        if number == math.inf:
            raise ScenarioError("is not a number of bytes", file=self.where, key=flag, value=value)
        return round(number)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Part of a server's prefix cache in host memory."""

    num_bytes: float  # Size, bytes.
    is_of_rank: bool  # Whether the size is that of each rank, not of all ranks together.
    overlaps: bool  # Whether blocks are loaded back layer by layer during the step.


Reader = Callable[[Reading, str, Any], None]  # Adds the meaning of a flag's value to a reading.


def read_nodes(reading: Reading, flag: str, value: Any) -> None:
    """Read over how many nodes a server's ranks are spread; a variable of a launcher has no effect."""
    if not str(value).isdigit():
        reading.ignored.append(flag)
        return
    reading.num_nodes = max(int(value), 1)


def readers_of(table: ServerTable) -> dict[str, Reader]:
    """Return flag -> function that reads its value, of the flags in an engine's table."""
    return {
        **{flag: counted(*_placed(key)) for flag, key in table.counts.items()},
        **{flag: measured(*each) for flag, each in table.numbers.items()},
        **{flag: switched(*_placed(key)) for flag, key in table.switches.items()},
        **{flag: switched(*_placed(key), stands=False) for flag, key in table.off_switches.items()},
        **{flag: implied(*_placed(key), value) for flag, (key, value) in table.implied.items()},
        **{flag: kept(*_placed(key)) for flag, key in table.texts.items()},
        **{flag: kept_as_is(attribute) for flag, attribute in table.attributes.items()},
        **{flag: only(*known) for flag, known in table.only.items()},
        **{flag: chosen(*_placed(each.key), each.known, default=each.default) for flag, each in table.choices.items()},
        **{flag: weights(names) for flag, names in table.weights.items()},
    }


def _placed(key: str) -> tuple[str, str]:
    """Return a key of the table as key and part of the reading."""
    part, dot, name = key.rpartition(".")
    return name, part if dot else "options"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A server that a pasted line starts, and what its flags mean."""

    engine: str  # The engine's profile.
    own: Mapping[str, Reader] = field(default_factory=dict)
    """Flag -> function that reads its value, beside those of the engine's table."""
    spelled: Callable[[Reading, Sequence[str]], Iterable[str]] = lambda _, words: words
    """Arguments of a line -> arguments as the engine's parser takes them, but for aliases."""
    settle: Callable[[Reading], None] = lambda _: None
    """Settles what depends on several flags, on variables, or on the model that the caller names."""

    @property
    def table(self) -> ServerTable:
        """The table of the server."""
        return server_table(self.engine)

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Flag -> function that reads its value."""
        return {**readers_of(self.table), **self.own}

    def is_without_effect(self, flag: str) -> bool:
        """Return whether a flag has no effect on the simulation."""
        patterns = (each if each.startswith("-") else f"--{each}" for each in self.table.without_effect)
        return any(re.fullmatch(each, flag) for each in patterns)

    @property
    def where(self) -> str:
        """Name of its lines in errors."""
        return f"{self.engine} command"

    def arguments(self, words: Sequence[str]) -> Sequence[str]:
        """Return the words of a line after the program, or after the image where that starts the server.

        Raises:
            ScenarioError: The line starts no such server.
        """
        table = self.table
        ends = (place + length for place in range(len(words)) if (length := self._started(words[place : place + 2])))
        images = (place + 1 for place, word in enumerate(words) if table.is_entrypoint and table.image.search(word))
        begin = next(ends, next(images, None))
        if begin is not None:
            return words[begin:]
        if not table.lacks:
            return ()
        line = " ".join(words)
        other = next((command for sign, command in table.others.items() if sign in line), None)
        remedy = f"this is a line for simserve import {other}" if other else f"paste a line such as {table.example}"
        raise ScenarioError(table.lacks, file=self.where, value=line[:200], remedy=remedy)

    def _started(self, words: Sequence[str]) -> int:
        """Return how many words at the beginning start the server."""
        ways = (way.split() for way in self.table.starts)
        fits = (len(way) for way in ways if len(way) <= len(words) and all(map(re.fullmatch, way, words)))
        return max(fits, default=0)

    def named(self, word: str) -> str:
        """Return a word with the parser's name of the flag in it."""
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-") if name.startswith("--") else name
        return f"{self.table.aliases.get(dashed, name)}{equals}{value}"


def import_line(
    program: Program, text: str, *, hardware: str | None = None, version: str | None = None, model: str | None = None
) -> Draft:
    """Return the scenario that a pasted line of one engine describes.

    Args:
        text: The line, or a ``docker run`` of the server's image, as pasted: over several lines or without line
            breaks, with variables in front.
        hardware: GPU it runs on, not named in the line; None: `ASSUMED_HARDWARE`, with a note.
        version: The engine's version; None: the image's tag, else the newest known with the line's flags.
        model: Profile or configuration to use instead of the one closest to the line's model.

    Raises:
        ScenarioError: The text is not such a line, or its model has no profile.
    """
    pasted = read_pasted(text, program.where)
    arguments = program.arguments(pasted.words)
    tag = next((found[1] for word in pasted.words if (found := program.table.image.search(word))), None)
    words = without_shell(arguments)
    likely, why = _likely_version(program, words)
    reading = Reading(program.engine, version or tag or likely, program.where, variables=pasted.variables, asked=model)
    read_server(program, words, reading)
    if reading.model is None:
        raise ScenarioError("names no model", file=program.where, remedy=program.table.names_model)
    assumptions = []
    if hardware is None:
        assumptions.append(f"The command does not say its GPU: {ASSUMED_HARDWARE} is assumed; --gpus names yours.")
    if not version and not tag:
        assumptions.append(f"No version is stated: read as {program.engine} {likely}, the newest {why}.")
    reading.notes[:0] = assumptions
    title = f"What does this {program.table.title} server of {{}} do?"
    return draft_of(reading, model, hardware=hardware, title=title).checked()


def _likely_version(program: Program, words: Sequence[str]) -> tuple[str, str]:
    """Return the version to assume for a line that states none, and why: it is the newest with the line's flags."""
    given = [program.named(word).partition("=")[0] for word in words if word.startswith("--")]
    asked = [flag for flag in given if not program.is_without_effect(flag)]
    found = newest_with(program.engine, asked) if program.readers else None
    if found is None:
        return load_engine(program.engine).newest.version, "known"
    version, gone = found
    return version, f"known with {' and '.join(gone)}"


def read_server(program: Program, arguments: Sequence[str], reading: Reading) -> None:
    """Read the arguments of a server, the words after its program, into a reading.

    Raises:
        ScenarioError: A flag lacks its value, or has one that it does not accept.
    """
    if words := [program.named(word) for word in program.spelled(reading, arguments)]:
        _read_arguments(program, words, reading)
    program.settle(reading)
    if reading.quantization == "fp8" and str(stored_format(reading.model or "")).startswith("nvfp4"):
        reading.quantization = None  # vLLM's `modelopt` is what the checkpoint says (override_quantization_method)


def _read_arguments(program: Program, words: Sequence[str], reading: Reading) -> None:
    """Read arguments; record the names of those that are unknown, not simulated or without effect."""
    flags = flags_of(program.engine, str(reading.version))
    readers = program.readers
    given, loose = read_words(flags, words)
    for word in given:
        flag, value = word.flag, word.value
        if program.is_without_effect(flag):
            # Also when unknown: not every list of a release's flags includes those of the front end.
            reading.ignored.append(flag)
        elif not word.is_known:
            shown = f"{flag} {value}" if value is not None else flag
            meant = similar(flags, flag)
            hint = f"; did you mean {meant}?" if meant else "."
            reading.notes.append(f"{flags.engine} {flags.version} has no {flag}: {shown} is left out{hint}")
        elif flag in readers:
            readers[flag](reading, flag, value)
        else:
            reading.not_simulated.append(_as_given(flag, value))
    if reading.model is None and loose:
        reading.model = loose.pop(0)
    if loose:
        reading.notes.append("Not understood: " + " ".join(loose) + ".")


def words_of(arguments: Mapping[str, Any], flags: Flags) -> list[str]:
    """Return named arguments of a configuration or a log as words of a command line; None is unset."""
    words: list[str] = []
    for key, value in arguments.items():
        flag = f"--{str(key).replace('_', '-')}"
        if value is False:
            words += [f"--no-{flag[2:]}"] if flags.takes.get(flag) == "toggle" else []
        elif isinstance(value, list | tuple) and all(isinstance(each, str | int) for each in value):
            words += [flag, *map(str, value)]
        elif isinstance(value, Mapping | list | tuple):
            words += [flag, json.dumps(value, default=str)]
        elif value is not None:
            words += [flag] if value is True else [flag, str(value)]
    return words


def counted(key: str, part: str = "options") -> Reader:
    """Return a reader that sets a key of a part of the reading to a whole number."""
    return lambda reading, flag, value: reading.put(key, reading.count(flag, value), part)


def measured(key: str, rule: str) -> Reader:
    """Return a reader that sets an option of the engine to a number; ``rule`` says what it is not, if it is none."""
    return lambda reading, flag, value: reading.put(key, reading.number(flag, value, rule))


def switched(key: str, part: str, *, stands: bool = True) -> Reader:
    """Return a reader that sets a key to ``stands`` where the switch is on, and to the opposite where it is off."""
    return lambda reading, _, value: reading.put(key, stands is (value is True), part)


def implied(key: str, part: str, set_to: Any) -> Reader:
    """Return a reader that sets a key where the switch is on and nothing else has set it."""

    def read(reading: Reading, _: str, value: Any) -> None:
        if value is True:
            getattr(reading, part).setdefault(key, set_to)

    return read


def chosen(key: str, part: str, known: Mapping[str, Any] | Sequence[str], *, default: str = "") -> Reader:
    """Return a reader that sets a key to what one of the simulated values stands for.

    Args:
        part: Part of the reading; empty: the key is an attribute of the reading itself.
        known: The values, which mean the same in a scenario, or value -> its meaning there.
        default: Value that sets nothing.
    """
    meanings = known if isinstance(known, Mapping) else dict(zip(known, known, strict=True))

    def read(reading: Reading, flag: str, value: Any) -> None:
        if str(value) in meanings:
            reading.put(key, meanings[str(value)], part)
        elif str(value) != default:
            reading.not_simulated.append(f"{flag} {value}")

    return read


read_dtype = chosen("dtype", "", DTYPES, default="auto")  # Reads the format that the server computes in.
read_kv_cache_dtype = chosen("kv_cache_dtype", "deployment", KV_CACHE_DTYPES)
"""Reads the format of the KV cache."""


def only(*known: str | bool) -> Reader:
    """Return a reader of a flag some of whose values are simulated anyway."""

    def read(reading: Reading, flag: str, value: Any) -> None:
        if value in known:
            reading.ignored.append(flag)
        else:
            reading.not_simulated.append(_as_given(flag, value))

    return read


def read_stream_interval(reading: Reading, flag: str, value: Any) -> None:
    """Read how many tokens are sent together after the first; an event costs as much as a token, if that is known."""
    size = reading.count(flag, value)
    if size == 1:
        reading.ignored.append(flag)
        return
    costs = load_engine(reading.engine).nearest_version(reading.version).host.api_server_seconds_per_token
    reading.deployment["streaming"] = {"stream_interval": size} | ({} if costs else {"cost_per_event": "0 s"})


def _as_given(flag: str, value: Any) -> str:
    """Return a flag and its value as written: a switch that is off in its ``--no-`` form."""
    if value is False:
        return f"--no-{flag.removeprefix('--')}"
    given = " ".join(map(str, value)) if isinstance(value, list) else value
    return flag if value is True else f"{flag} {given}"


def weights(names: Mapping[str, Sequence[str]]) -> Reader:
    """Return a reader of the format of the weights: the scenario's formats -> the engine's names of each."""
    formats = {name: known for known, several in names.items() for name in several}

    def read(reading: Reading, flag: str, value: Any) -> None:
        if (name := str(value)) in FORMATS_OF_THE_CHECKPOINT:
            reading.as_stored = f"{flag} {name}"
            return
        if name not in formats:
            reading.not_simulated.append(f"{flag} {name}")
        reading.quantization = formats.get(name, "none")

    return read


def kept_as_is(attribute: str) -> Reader:
    """Return a reader that keeps a value as an attribute of the reading."""
    return lambda reading, _, value: setattr(reading, attribute, value)


def kept(key: str, part: str) -> Reader:
    """Return a reader that keeps a value as text in a part of the reading."""
    return lambda reading, _, value: reading.put(key, str(value), part)


def read_expert_ranks(reading: Reading, flag: str, value: Any) -> None:
    """Read the number of ranks that share the experts, or the switch that makes all of them do so."""
    if value is True or reading.count(flag, value) > 1:
        reading.deployment["enable_expert_parallel"] = True


def json_object(reading: Reading, flag: str, value: object) -> Mapping[str, Any]:
    """Return the JSON object that a flag holds.

    Raises:
        ScenarioError: The value is not a JSON object.
    """
    try:
        found = json.loads(str(value))
    except (ValueError, RecursionError) as failure:
        raise ScenarioError(f"is not JSON: {failure}", file=reading.where, key=flag, value=value) from None
    if not isinstance(found, dict):
        raise ScenarioError("must be a JSON object", file=reading.where, key=flag, value=value)
    return found


def read_overrides(reading: Reading, flag: str, value: Any) -> None:
    """Read overrides of the model's configuration; only its length is simulated.

    Raises:
        ScenarioError: They are not a JSON object, or a length or a factor is invalid.
    """
    for key, setting in json_object(reading, flag, value).items():
        if key == "max_position_embeddings":
            reading.max_model_len = reading.count(f"{flag} {key}", setting)
        elif key in ("rope_scaling", "rope_parameters") and isinstance(setting, Mapping):
            read_rope_scaling(reading, f"{flag} {key}", setting)
        else:
            reading.not_simulated.append(f"{flag} {key} {setting}")


def read_rope_scaling(reading: Reading, flag: str, scaling: Mapping[str, Any]) -> None:
    """Read the length that a scaled position embedding reaches: its factor times the original length.

    Raises:
        ScenarioError: The factor or the length is not a number.
    """
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if factor is None:
        reading.not_simulated.append(f"{flag} {dict(scaling)}")
        return
    if scaling.get("rope_type", scaling.get("type")) in _LENGTH_IS_FINAL:
        return
    reading.context_scale = reading.number(f"{flag} factor", factor, "is not a number")
    if original is not None:
        reading.context_original = reading.count(f"{flag} original_max_position_embeddings", original)


def draft_of(
    reading: Reading, model: str | None, *, hardware: str | None, title: str, workload: Mapping[str, Any] | None = None
) -> Draft:
    """Return the scenario of a reading.

    Args:
        reading: What was read; its notes come first.
        model: Profile or configuration to use instead of the one closest to the server's model.
        hardware: GPU; None: `ASSUMED_HARDWARE`.
        title: First line of the file; ``{}`` stands for the served model.
        workload: Its traffic; None: a placeholder.

    Raises:
        ScenarioError: The reading names no model, or one without a profile.
    """
    served = reading.model
    if served is None:
        raise ScenarioError("names no model", file=reading.where, remedy="say which with --model")
    own = None if model is None else NamedModel(model, stored_format(served), is_exact=True)
    named = own or find_model(served, reading.where)
    profile = load_model(named.model)
    notes = reading.notes
    if not named.is_exact:
        notes.append(f"{named.assumption(served)}; --model says another.")
    deployment: dict[str, Any] = {"hardware": hardware or ASSUMED_HARDWARE, **reading.deployment}
    if profile.moe is None and deployment.pop("enable_expert_parallel", False):
        notes.append(f"Expert parallelism has no effect: {profile.name} has no experts.")
    deployment |= _ranks(reading, has_experts=profile.moe is not None)
    deployment |= _nodes(reading, deployment)
    if deployment.get("enable_expert_parallel") and _spans_nodes(deployment):
        # DeepEP is a scenario's default across nodes; engines use it only when told to.
        deployment.setdefault("all2all_backend", "allgather_reducescatter")
    quantization = _format(reading, named, profile, served)
    if quantization != "auto":
        deployment["quantization"] = quantization
    length = _overridden_length(reading, profile)
    if length is not None:
        reading.options.setdefault("max_model_len", length)
    keeps_whole = profile.vision is not None and can_keep_tower_whole(reading.engine, profile.family)
    if reading.options.get("mm_encoder_tp_mode") == "data" and not keeps_whole:
        del reading.options["mm_encoder_tp_mode"]
        rule = f"{reading.engine} is not known to do that with {profile.name}"
        notes.append(f"An image tower whole on each GPU is left out: {rule}.")
    version = {} if reading.version is None else {"version": reading.version}
    deployment["engine"] = {"name": reading.engine, **version, **reading.options}
    found = read_speculation(reading.speculation, reading.where) if reading.speculation else None
    if found is not None:
        deployment["speculative"], note = found
        notes.append(note)
    elif reading.speculation:
        notes.append(unsimulated_note(reading.speculation, reading.engine, reading.version))
    if reading.not_simulated:
        notes.append("Not simulated: " + ", ".join(reading.not_simulated) + ".")
    if reading.ignored:
        notes.append("Without effect on the simulation: " + ", ".join(dict.fromkeys(reading.ignored)) + ".")
    _keep_in_host(reading, deployment, workload)
    if workload is None:
        notes.append(PLACEHOLDER_NOTE)
        workload = _placeholder_workload(reading.options.get("max_model_len", profile.max_position_embeddings))
        if reading.is_pooling:
            notes.append("It answers with embeddings or scores: requests have no output tokens.")
            workload["output_tokens"] = 0
    mapping = {
        "name": scenario_name(served.rstrip("/").rsplit("/", 1)[-1]),
        "model": named.model,
        "deployment": deployment,
        "workload": dict(workload),
    }
    return Draft(mapping, tuple(notes), title.format(served))


def _keep_in_host(reading: Reading, deployment: dict[str, Any], workload: Mapping[str, Any] | None) -> None:
    """Add the host-memory tier if prompts share tokens; else add a note on what to set for such traffic."""
    held = reading.host_memory
    if held is None:
        return
    ranks = 1
    if held.is_of_rank:
        ranks = deployment.get("tensor_parallel_size", 1) * deployment.get("pipeline_parallel_size", 1)
    tier = {"tier": "host", "capacity": to_text(held.num_bytes * ranks, "bytes"), "fetch": "always"}
    tiers = [{**tier, "overlap": True} if held.overlaps else tier]
    if any((workload or {}).get(key) for key in ("sessions", "shared_prefix", "trace")):
        deployment["engine"]["kv_tiers"] = tiers
        return
    reading.notes.append(
        f"It keeps {tier['capacity']} of KV cache in host memory, of no use to traffic whose prompts share nothing: "
        f"with workload.sessions or shared_prefix, set deployment.engine.kv_tiers to {json.dumps(tiers)}."
    )


def _overridden_length(reading: Reading, profile: ModelProfile) -> int | None:
    """Return the longest sequence that overrides of the model's configuration set; None: there are none."""
    if reading.context_scale is None:
        return reading.max_model_len
    original = reading.context_original or reading.max_model_len or profile.max_position_embeddings
    return round(reading.context_scale * original)


def _spans_nodes(deployment: Mapping[str, Any]) -> bool:
    """Return whether the experts are shared by more ranks than a node has GPUs."""
    ranks = deployment.get("tensor_parallel_size", 1) * deployment.get("data_parallel_size", 1)
    per_node = deployment.get("gpus_per_node") or load_hardware(deployment["hardware"]).intra_node.gpus_per_node
    return bool(deployment.get("data_parallel_size", 1) > 1 and ranks > max(per_node, 1))


def _nodes(reading: Reading, deployment: dict[str, Any]) -> dict[str, int]:
    """Return the GPUs of a node if the server states them, or if its ranks do not fill the nodes they are spread
    over.

    A node is a host; full hosts of an NVLink domain (GB200: four GPUs) remain joined by it.
    """
    usual = load_hardware(deployment["hardware"]).intra_node.num_host_gpus
    sizes = (deployment.get(f"{each}_parallel_size", 1) for each in ("tensor", "pipeline", "data"))
    own = deployment.pop("gpus_per_node", None)
    is_one = reading.data_parallel_size == 1 or "replicas" not in deployment
    if own is None and reading.num_nodes > 1 and is_one:
        total = math.prod(sizes)
        own, rest = divmod(total, reading.num_nodes)
        if rest:
            rule = f"must divide the {total} GPUs of a replica, of which every node has as many"
            count, remedy = reading.num_nodes, "as many nodes as share them equally, or other parallel sizes"
            raise ScenarioError(rule, file=reading.where, key="number of nodes", value=count, remedy=remedy)
        if own < usual:
            reading.notes.append(f"Over {reading.num_nodes} nodes, of which each has {own} of its GPUs.")
    return {"gpus_per_node": own} if own and own < usual else {}


def _ranks(reading: Reading, *, has_experts: bool) -> dict[str, int]:
    """Return data-parallel ranks: as ranks of a replica where they share attention or experts, else as replicas."""
    size, tensor = reading.data_parallel_size, reading.deployment.get("tensor_parallel_size", 1)
    if size == 1:
        return {}
    if reading.shares_attention_ranks:
        if tensor % size:
            rule = f"must divide the tensor-parallel size {tensor}, as attention is cut among its ranks"
            raise ScenarioError(rule, file=reading.where, key="data-parallel size", value=size)
        return {"tensor_parallel_size": tensor // size, "data_parallel_size": size}
    if has_experts:
        return {"data_parallel_size": size}
    reading.notes.append(f"A data-parallel size of {size} is read as {size} replicas, each with its own scheduler.")
    return {"replicas": size}


def _format(reading: Reading, named: NamedModel, profile: ModelProfile, served: str) -> str:
    """Return the weight format: from the flag, else from the model's name, else as the model is stored."""
    asked, known = reading.quantization, (named.quantization, profile.stored.format)
    if asked is not None and not (asked == "nvfp4" and "nvfp4-wo" in known):  # one flag for both
        return asked
    if named.quantization is not None:
        if not named.is_exact:
            reading.notes.append(f"Weights are {named.quantization}, by the name of {served}.")
        return "auto" if named.quantization == profile.stored.format else named.quantization
    if not profile.stored.is_wide:
        return "auto"
    if reading.as_stored:
        reading.not_simulated.append(reading.as_stored)
    return reading.dtype if reading.dtype is not None and reading.dtype != profile.dtype else "auto"


def _placeholder_workload(max_model_len: int) -> dict[str, Any]:
    """Return a workload whose requests fit a context length in tokens."""
    longest_prompt = max(min(_PROMPT_MAX, max_model_len // 2), 1)
    longest_output = max(min(_OUTPUT_MAX, max_model_len // 4), 1)
    return {
        "arrivals": {"process": "poisson", "rate": 1.0},
        "prompt_tokens": lognormal(min(_PROMPT_MEAN, max(longest_prompt // 3, 1)), 1.0, longest_prompt),
        "output_tokens": lognormal(min(_OUTPUT_MEAN, max(longest_output // 3, 1)), 0.8, longest_output),
        "num_requests": 1000,
    }


def read_speculation(settings: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str] | None:
    """Return the scenario's `speculative` block and a note on its acceptance; None: the method is not simulated.

    Args:
        settings: Keys of vLLM's ``speculative_config``.
        where: Name of what is read, for errors.

    Raises:
        ScenarioError: The number of drafts is invalid, or the draft model has no profile.
    """
    model, asked = settings.get("model"), _asked(settings)
    method, key = _SPECULATION_METHODS.get(asked), "num_speculative_tokens"
    if method is None:
        return None
    count = settings.get(key)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ScenarioError("must be a whole number from 1", file=where, key=f"--speculative-config {key}", value=count)
    rate, decay = _ACCEPTANCE[method]
    block: dict[str, Any] = {"method": method, key: count, "acceptance_rate": rate}
    if decay is not None:
        block["acceptance_decay"] = decay
    if method == "draft_model":
        named = find_model(str(model), where)
        block["draft_model"] = named.model
        if named.quantization is not None:
            block["draft_quantization"] = named.quantization
        if settings.get("draft_tensor_parallel_size") is not None:
            block["draft_tensor_parallel_size"] = settings["draft_tensor_parallel_size"]
    kept = f"{rate:g}" + ("" if decay is None else f", {decay:g} times that from draft to draft")
    note = (
        f"How many drafts are accepted is a placeholder, acceptance_rate {kept} (published means of such drafts): "
        "put your server's in deployment.speculative."
    )
    return block, note


def unsimulated_note(settings: Mapping[str, Any], engine: str, version: str | None) -> str:
    """Return the note that a drafting method is left out because it is not simulated, and whether the engine has
    it."""
    asked, profile = _asked(settings), load_engine(engine)
    version = version or profile.newest.version
    if asked not in UNSIMULATED_METHODS:
        return f"Method {asked} of speculative decoding is not known here: left out."
    shown = f"{FEATURES[asked]} (method {settings.get('method', asked)})"
    if profile.feature_range(asked, version) is not None:
        return f"{engine} {version} knows {shown}, which is not simulated: left out."
    return f"{profile.lack(asked, version, '', None)}; {shown} is not simulated either: left out."


def _asked(settings: Mapping[str, Any]) -> str:
    """Return the method by vLLM's name; `mtp` for model-specific names, a feature's name for parallel drafting."""
    model = settings.get("model")
    asked = str(settings.get("method") or (model if model in _SPECULATION_METHODS else _by_name(model)))
    if asked == "draft_model" and settings.get("parallel_drafting") is True:
        return "parallel_draft_model"
    return "mtp" if asked.endswith("_mtp") else asked


def _by_name(model: object) -> str:
    """Return the method that vLLM infers from the name of a draft: a draft model by default."""
    name = str(model).lower()
    return next((method for method in ("eagle3", "eagle", "medusa", "mtp") if method in name), "draft_model")
