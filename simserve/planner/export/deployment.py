"""What every exporter works from: the resolved deployment, the knobs that must be set, and what cannot be expressed.

Knows no engine's flags.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from simserve.errors import ScenarioError
from simserve.perf.memory import are_seats_told, is_context_cut
from simserve.perf.shape import checkpoint_bytes
from simserve.profiles.catalog import load_model
from simserve.profiles.checkpoint import WIDE_FORMATS, Checkpoint
from simserve.profiles.engine_options import EngineOptions
from simserve.profiles.model import ModelProfile
from simserve.profiles.resolved_engine import ResolvedEngine
from simserve.scenario.fit import check_fit
from simserve.scenario.formats import kv_of_auto, loads
from simserve.scenario.resolve import ResolvedScenario, engine_of, resolve
from simserve.scenario.schema import Scenario
from simserve.scenario.speculative import SpeculativeSpec

KNOBS = (
    "max_model_len",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "async_scheduling",
)
"""Knobs for which some engine has a flag, in the order of a command line."""


_EAGLE_PLACEHOLDER = "ORG/EAGLE-HEAD"

_SAID = frozenset(
    {
        "hardware",
        "replicas",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
        "quantization",
        "kv_cache_dtype",
        "attention",
        "engine",
        "routing",
    }
)
"""Keys of a deployment that every export expresses or refuses, or that concern only the simulation."""
_SAID_OF_ENGINE = frozenset(
    {
        *KNOBS,
        "sampling",
        "endpoint",
        "batching",
        "scheduler",
        "admission",
        "scheduling_policy",
        "preemption_mode",
        "kv_allocation",
        "frontend_latency",
        "host_slowdown",
        "static_batch_size",
        "static_max_wait",
        "swap_space",
    }
)
"""The same for the keys of its engine."""


_SELECTABLE = {("tensorrt-llm", "admission"): ("reserve", "on_demand")}
"""Engine and key -> rules of its scheduler that its own options select."""


_PORT = 8000
_PORTS = {"sglang": 30000, "tgi": 3000, "ollama": 11434}
"""Target -> default port of its server; others take 8000 (SGLang's ServerArgs; TGI docs, reference/launcher; Ollama
docs, faq; vLLM and TensorRT-LLM docs, their serve commands)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What starts a deployment."""

    target: str  # Target of the export: an engine's command, or a cluster's manifests.
    version: str  # Version of the engine.
    command: tuple[str, ...]  # Words of the command line.
    environment: Mapping[str, str] = field(default_factory=dict)  # Environment variables of the command.
    files: Mapping[str, str] = field(default_factory=dict)  # Name -> text of the files it reads.
    main_file: str | None = None
    """File that is the result, where the command only passes it on; None: the command itself is the result."""
    notes: tuple[str, ...] = ()  # What the command cannot express, or a person needs to know.
    formats: Mapping[str, Any] = field(default_factory=dict)
    """Number formats of weights and KV cache, and where they come from."""
    checkpoint: str = ""  # Name under which the servers know the model.
    once_up: tuple[str, ...] = ()
    """Commands that complete the server once it answers, such as those that make its model."""
    answers: str = ""  # Command that succeeds as soon as the server answers; empty if there are none of those.
    served_name: str | None = None  # Name under which the server knows the model, if that is not the checkpoint's.

    @property
    def port(self) -> int:
        """Port at which the server, or the router in front, answers on its own host."""
        if "--port" in self.command:
            return int(self.command[self.command.index("--port") + 1])
        return _PORTS.get(self.target, _PORT)

    @property
    def script(self) -> str:
        """A shell script, without its first line: what runs once the server is up, and the server."""
        server = f"exec {'env ' if self.environment else ''}{self.lines}\n"
        if not self.once_up:
            return server
        waits = f"until {self.answers} > /dev/null 2>&1; do sleep 1; done"
        steps = " &&\n".join(self.once_up)
        return f'cd "$(dirname "$0")"\n(\n{waits}\n{steps}\n) &\n{server}'

    @property
    def line(self) -> str:
        """The command on one line, quoted for a shell, with its variables in front."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.command)])

    @property
    def lines(self) -> str:
        """The command with one flag per line."""
        parts: list[list[str]] = [[]]
        for word in self.command:
            if word.startswith("--"):
                parts.append([])
            parts[-1].append(word)
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        rows = [" ".join([*variables, shlex.join(parts[0])]), *(shlex.join(part) for part in parts[1:])]
        return " \\\n  ".join(rows)


@dataclass(slots=True, kw_only=True)
class Deployment:
    """One replica to export."""

    resolved: ResolvedScenario  # The scenario with its profiles.
    version: str  # The requested version of the engine, or else the known one.
    needed: frozenset[str]  # Knobs that the scenario sets to other values than the engine's defaults.
    says: frozenset[str]  # Knobs that are written out: those, or all.
    is_explicit: bool  # Whether defaults are written out too.
    checkpoint: str  # What the engine loads: a repository or a path.
    is_own_checkpoint: bool  # Whether the user named it.
    notes: list[str]  # Notes collected during the export.
    unsaid: dict[str, Any]
    """Dotted keys below `deployment` that only some exporters know, and that none has handled yet."""

    def take(self, key: str) -> Any:
        """Return the value of a rare key, which the caller then handles; None: the scenario does not set it."""
        return self.unsaid.pop(key, None)

    def started_by(
        self,
        target: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Export:
        """Return what starts it, with its notes, and one for each key that no exporter has handled."""
        unsaid = (f"deployment.{key} is not in what is written here: set it up by hand" for key in sorted(self.unsaid))
        notes = (*self.notes, *unsaid)
        return Export(
            target=target,
            version=self.version,
            command=tuple(command),
            environment=environment or {},
            files=files or {},
            notes=notes,
        )

    @property
    def scenario(self) -> Scenario:
        """The scenario."""
        return self.resolved.scenario

    @property
    def engine(self) -> ResolvedEngine:
        """The engine's knobs."""
        return self.resolved.shape.engine

    @property
    def block_size(self) -> int:
        """Tokens of a KV block on one GPU; GPUs that divide contexts count theirs together."""
        return self.engine.block_size // self.resolved.shape.decode_context_parallel_size

    @property
    def model(self) -> ModelProfile:
        """The model."""
        return self.resolved.shape.model

    @property
    def label(self) -> str:
        """Engine and version."""
        return f"{self.engine.name} {self.version}"

    def note(self, text: str) -> None:
        """Add a note, unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)

    def needs_no_quantization(self) -> bool:
        """Return whether the weights are simulated in 16 or 32 bit.

        Raises:
            ScenarioError: They are, and the checkpoint holds others.
        """
        if self.is_full_precision and self.stored_quantization != "none":
            self.needs_checkpoint(f"it is stored in {self.stored_quantization}")
        return self.is_full_precision

    def needs_checkpoint(self, why: str) -> None:
        """Check that the user has named the checkpoint.

        Raises:
            ScenarioError: None is named, and the model's own does not hold the simulated weights.
        """
        if not self.is_own_checkpoint:
            rule = f"needs a checkpoint that holds it, and {self.checkpoint} does not: {why}"
            remedy = "name one: --checkpoint ORG/NAME"
            raise ScenarioError(rule, key="deployment.quantization", value=self.quantization, remedy=remedy)

    def why_not_made(self, engine: str) -> str:
        """Return as a clause why an engine does not make the simulated format while it loads the checkpoint."""
        if not self.loaded.is_wide:
            return f"it is stored in {self.stored_quantization}, and {engine} quantises 16-bit weights only"
        return f"{engine} does not quantise to {self.quantization} while it loads"

    @property
    def quantization(self) -> str:
        """Weight format that was simulated."""
        return self.resolved.shape.quantization

    @property
    def stored_quantization(self) -> str:
        """Stored format of the checkpoint that is loaded where the user names none."""
        return self.loaded.format

    @property
    def loaded(self) -> Checkpoint:
        """The model's public checkpoint that is loaded: in the simulated format, else the one its name stands for."""
        return public_checkpoint(self.model, self.quantization)

    @property
    def is_made_on_load(self) -> bool:
        """Whether the engine converts the loaded checkpoint to the simulated format."""
        return self.loaded.is_wide and self.quantization in self.engine.quantises_on_load

    @property
    def kv_of_auto(self) -> str:
        """KV format that the engine chooses for this checkpoint by default."""
        return kv_of_auto(self.resolved.shape)

    @property
    def loaded_bytes(self) -> float:
        """Bytes of the loaded checkpoint: the model's own in its stored format, the user's in the simulated one."""
        own = self.stored_quantization
        return checkpoint_bytes(self.model, self.quantization if self.is_own_checkpoint else own)

    @property
    def is_beyond_model(self) -> bool:
        """Whether requests may be longer than the model's own limit, which engines allow only when told to."""
        return self.engine.max_model_len > self.model.max_position_embeddings

    @property
    def is_full_precision(self) -> bool:
        """Whether the weights are simulated in 16 or 32 bit."""
        return self.quantization in WIDE_FORMATS


def prepare(scenario: Scenario, *, explicit: bool, checkpoint: str | None) -> Deployment:
    """Return the replica of a scenario to export.

    Raises:
        InputError: The scenario is invalid, or asks for what no real server of that engine does.
        InfeasibleError: It does not fit.
    """
    resolved = resolve(scenario)
    _refuse_unreal(resolved)
    check_fit(resolved)
    engine, model = resolved.shape.engine, resolved.shape.model
    version = engine.requested_version or engine.version
    notes = []
    loaded = public_checkpoint(model, resolved.shape.quantization)
    if checkpoint is None and loaded.repository is None:
        notes.append(f"{model.name} has no Hugging Face repository on record: put the path of its weights instead")
    if "scenario" not in engine.sources["version"] and engine.requested_version is None:
        notes.append(f"no version of {engine.name} is named: written for {version}, the newest known")
    is_exact = engine.requested_version is None or engine.sources["version"].startswith("scenario")
    if not is_exact:
        notes.append(f"defaults of {engine.name} {version} are taken from {engine.version}, so every knob is said")
    for key in ("frontend_latency", "host_slowdown"):
        if getattr(scenario.deployment.engine, key) is not None:
            notes.append(f"deployment.engine.{key} describes the host and is no flag")
    needed = _needed_knobs(resolved)
    replicas = scenario.deployment.replicas
    if replicas > 1:
        policy = scenario.deployment.routing.policy
        notes.append(f"one of {replicas} replicas: start it {replicas} times behind a {policy} router")
    deployment = Deployment(
        resolved=resolved,
        version=version,
        needed=needed,
        says=frozenset(KNOBS) if explicit or not is_exact else needed,
        is_explicit=explicit,
        checkpoint=checkpoint or loaded.repository or model.name,
        is_own_checkpoint=checkpoint is not None,
        notes=notes,
        unsaid=_rare_keys(scenario),
    )
    if not loads(engine, deployment.loaded):
        deployment.needs_checkpoint(f"{deployment.label} loads no {deployment.loaded.method} checkpoint of that kind")
    return deployment


def public_checkpoint(model: ModelProfile, quantization: str) -> Checkpoint:
    """Return the public checkpoint that serves a model in a format: one in that format, or else the stored one."""
    return model.checkpoint("none" if quantization == model.dtype else quantization) or model.stored


def draft_checkpoint(deployment: Deployment, asked: SpeculativeSpec) -> str | None:
    """Return what the drafter is loaded from: a repository or a placeholder; None where none is needed."""
    if asked.method == "draft_model":
        assert asked.draft_model is not None
        draft = load_model(asked.draft_model, deployment.scenario.folder)
        return draft.huggingface_id or draft.name
    if asked.method == "eagle":
        deployment.note(f"put the repository of the EAGLE head of {deployment.checkpoint} for {_EAGLE_PLACEHOLDER}")
        return _EAGLE_PLACEHOLDER
    return None


def _rare_keys(scenario: Scenario) -> dict[str, Any]:
    """Return the keys that the scenario sets and that not every export knows."""
    deployment = scenario.deployment
    found = {key: getattr(deployment, key) for key in deployment.model_fields_set - _SAID}
    engine = deployment.engine.overrides()
    found |= {f"engine.{key}": value for key, value in engine.items() if key not in _SAID_OF_ENGINE}
    found["engine.kv_offload"] = deployment.engine.kv_offload
    found["engine.kv_tiers"] = deployment.engine.kv_tiers
    return {key: value for key, value in found.items() if value not in (None, False, [], ())}


def _engine_with(resolved: ResolvedScenario, options: EngineOptions) -> ResolvedEngine:
    """Return the engine of a deployment with other options, without their sources."""
    scenario = resolved.scenario
    engine = scenario.deployment.engine
    asked = engine.model_copy(update={key: getattr(options, key) for key in EngineOptions.model_fields})
    deployment = scenario.deployment.model_copy(update={"engine": asked})
    found = engine_of(scenario.model_copy(update={"deployment": deployment}))
    return found.model_copy(update={"sources": {}})


def _needed_knobs(resolved: ResolvedScenario) -> frozenset[str]:
    """Return the knobs of the scenario without which the engine would resolve to something else."""
    asked: EngineOptions = resolved.scenario.deployment.engine
    if is_context_cut(resolved.shape.engine):
        asked = asked.model_copy(update={"max_model_len": resolved.shape.engine.max_model_len})
    if are_seats_told(resolved.shape.engine):
        asked = asked.model_copy(update={"max_num_seqs": resolved.shape.engine.max_num_seqs})
    wanted = resolved.shape.engine.model_copy(update={"sources": {}})
    for key in [key for key in KNOBS if getattr(asked, key) is not None]:
        without = asked.model_copy(update={key: None})
        with suppress(ScenarioError):  # without it, the others may contradict each other
            asked = without if _engine_with(resolved, without) == wanted else asked
    return frozenset(asked.overrides()) & frozenset(KNOBS)


def _refuse_unreal(resolved: ResolvedScenario) -> None:
    """Refuse what the simulator can do and the engine cannot."""
    engine, scenario = resolved.shape.engine, resolved.scenario
    label = f"{engine.name} {engine.requested_version or engine.version}"
    own = _engine_with(resolved, EngineOptions())
    for key in ("batching", "kv_allocation"):
        _refuse_other(key, getattr(engine, key), getattr(own, key), label)
    asked = scenario.deployment.engine
    for key in ("scheduler", "admission"):
        value = getattr(asked, key)
        if value is not None and value not in _SELECTABLE.get((engine.name, key), ()):
            rest = asked.model_copy(update={key: None})
            _refuse_other(key, value, getattr(_engine_with(resolved, rest), key), label)
    if engine.scheduling_policy == "shortest_first":
        rule = f"cannot be exported: {label} has no such queue order"
        raise ScenarioError(rule, key="deployment.engine.scheduling_policy", value="shortest_first", remedy="use fcfs")
    if (attention := scenario.deployment.attention) != "flash":
        rule = f"cannot be exported: {label} computes attention with fused kernels"
        raise ScenarioError(rule, key="deployment.attention", value=attention, remedy="set it to flash")
    if resolved.shape.model.num_parameters_nominal is not None:
        rule = "cannot be exported: its size is nominal, there are no such weights"
        raise ScenarioError(rule, key="model", value=resolved.shape.model.name)


def _refuse_other(key: str, value: str, own: str, label: str) -> None:
    if value != own:
        rule, remedy = f"cannot be exported: {label} knows {own} only", f"leave it out, or set it to {own}"
        raise ScenarioError(rule, key=f"deployment.engine.{key}", value=value, remedy=remedy)
