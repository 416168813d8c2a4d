"""The blocks of an engine profile: versions written out, devices, what it keeps free of memory, how a server differs.

Memory: of the GPU besides weights and KV, and of KV for requests that run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from simserve.errors import InputError, ProfileError
from simserve.profiles.checkpoint import WIDE_FORMATS, WeightFormatName
from simserve.units import Bytes
from simserve.validation import FrozenModel

_VERSION = re.compile(r"[vb]?(\d+(?:\.\d+)*)")
KEPT_VERSIONS = 1024
"""Version numbers that are read once: a search compares a few with each other in every trial."""
MARLIN_MAKER = "NVIDIA"
"""Whose GPUs have kernels that unpack weights in FP8 and NVFP4 where there is no arithmetic for them (Marlin)."""
FACTORS = ("gpu", "host", "prompts", "batch", "frontend")
"""Names of the factors of `MeasuredFactors`."""
TOWER_LAYERS, TOWER_WIDTH = 24, 1024
"""Layers and width of the tower that `TowerReserve` compares with (ViT-L/14), which SGLang also takes for a size that a
file does not name as it expects: Qwen's call the layers ``depth`` (server_args.py, adjust_mem_fraction_for_vlm)."""
TOWER_GROWTH, TOWER_LEAST, TOWER_MOST = 0.1, 0.8, 1.05
"""What a tower of twice the weights takes off the share, and the limits of it (the same place)."""


def complete_versions(document: Mapping[str, Any], file: Path) -> list[dict[str, Any]]:
    """Return every block of each version, oldest first, as the file writes them: units and sources included.

    Args:
        document: What the file holds: ``defaults``, and ``versions`` with the keys that changed since the one before.
        file: Named in errors.

    Raises:
        ProfileError: A part is missing, or a changed block says no ``source``.
    """
    blocks = document.get("defaults")
    changes = document.get("versions")
    if not isinstance(blocks, dict):
        raise ProfileError("must be a mapping of blocks", file=file, key="defaults")
    if not isinstance(changes, list) or not all(isinstance(change, dict) for change in changes):
        raise ProfileError("must be a list of mappings", file=file, key="versions")
    complete: list[dict[str, Any]] = []
    for change in changes:
        merged = dict(blocks)
        for block, values in change.items():
            if isinstance(values, dict):
                if "source" not in values:
                    key = f"versions.{change.get('version')}.{block}.source"
                    raise ProfileError("is missing", file=file, key=key, remedy="say where the numbers come from")
                merged[block] = {**merged.get(block, {}), **values}
            else:
                merged[block] = values
        complete.append(merged)
        blocks = {block: values for block, values in merged.items() if block != "version"}
    return complete


def version_key(version: str, known: list[str] | None = None) -> tuple[int, ...]:
    """Return a version as numbers that compare as versions do: ``"0.10.2"`` -> ``(0, 10, 2)``.

    A leading ``v`` or ``b`` (llama.cpp builds) and what follows the numbers (``rc2``) are ignored.

    Raises:
        InputError: The text does not begin with a number.
    """
    numbers = _numbers_of(version)
    if numbers is None:
        remedy = f"known are {', '.join(known)}" if known else None
        raise InputError("is not a version number", key="deployment.engine.version", value=version, remedy=remedy)
    return numbers


@lru_cache(maxsize=KEPT_VERSIONS)
def _numbers_of(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version without zeros at its end; None where the text does not begin with one."""
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


class Devices(FrozenModel):
    """Whose devices an engine runs on."""

    makers: Mapping[str, str]
    """Maker, as hardware profiles name it -> the plug-in that brings the kernels; "": they are the engine's own."""
    formats: Mapping[str, tuple[WeightFormatName, ...]] = {}
    """Maker -> weight formats below 16 bit that run there; of makers that are not named, all that the engine has."""
    source: str
    """Where that is said."""

    def restricted(self, maker: str, engine: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of an engine's facts is other on a maker's devices; of a maker that is not named nothing.

        Args:
            maker: As hardware profiles name it.
            engine: Its `supported_quantizations`, `quantises_on_load` and `quantises_before_loading`.
        """
        if maker not in self.makers or maker == MARLIN_MAKER:
            return {}
        changed: dict[str, Any] = {"has_weight_only_floats": False, "plugin": self.makers[maker]}
        if self.makers[maker]:
            # Graphs are CUDA's and HIP's: plug-ins compile, and keep no pool for them.
            changed |= {"cuda_graph_bytes": 0.0}
        if maker in self.formats:
            run = {*WIDE_FORMATS, *self.formats[maker]}
            changed |= {key: tuple(each for each in known if each in run) for key, known in engine.items()}
        return changed


class KernelBlock(FrozenModel):
    """Tokens of a KV block that an attention kernel forces, where nobody sets them."""

    since: str
    """First version that forces them."""
    until: str | None = None
    """First version that does not; absent: there is none."""
    attention: Literal["latent", "sparse"]
    """Whose: latent attention that reads all keys, or attention whose indexer chooses them."""
    capability_at_least: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which it is so; absent: from any."""
    capability_below: float | None = Field(default=None, gt=0)
    """CUDA compute capability from which it is so no more; absent: at none."""
    tokens: int = Field(ge=1)
    """Tokens a block."""
    source: str
    """Where that is said."""

    def holds(self, version: str, attention: str | None, compute_capability: str | None) -> bool:
        """Return whether a version forces it for a kind of attention on a GPU; never on those of other makers."""
        if attention != self.attention or compute_capability is None:
            return False
        is_new = version_key(self.since) <= version_key(version)
        is_old = self.until is None or version_key(version) < version_key(self.until)
        least, below = self.capability_at_least or 0.0, self.capability_below or float("inf")
        return is_new and is_old and least <= float(compute_capability) < below


class MeasuredFactors(FrozenModel):
    """How much longer or shorter one server takes than the rest of the profile says; `calibrate serving` fits them."""

    gpu: PositiveFloat = 1.0
    """Times as long as priced that the GPU (or the CPU that computes) takes for every step."""
    host: PositiveFloat = 1.0
    """Times as long that the host takes for a step and a request, and that kernels take to start."""
    prompts: PositiveFloat = 1.0
    """Times as long, beside `gpu`, that steps take which hold prompts."""
    batch: PositiveFloat = 1.0
    """Times as long, beside `gpu`, that a decode step takes for what it takes beyond one request without context."""
    frontend: PositiveFloat = 1.0
    """Times as long that a request takes from arrival to the scheduler; without effect where a scenario sets that."""
    measured_on: str
    """Model, GPUs and engine of that server, and how many runs: results that use the factors say so."""
    date: str | None = None
    """Day of the measurements, as their files or their owner say."""
    model: str | None = None
    """The model of that server, as the catalogue names it: what is expected of a server like it rests on its runs."""
    hardware: str | None = None
    """Its GPU, likewise."""
    gpus: PositiveInt | None = None
    """GPUs of a replica of it."""
    runs: PositiveInt | None = None
    """Loads that were measured."""
    source: str
    """Files, and what the fit found."""

    @property
    def values(self) -> dict[str, float]:
        """The factors by name."""
        return {name: getattr(self, name) for name in FACTORS}


class SizeRange(FrozenModel):
    """Equally spaced sizes, both ends included."""

    start: int = Field(alias="from", ge=1)
    """First size."""
    stop: int = Field(alias="to", ge=1)
    """Last size."""
    step: int = Field(ge=1)
    """Distance."""

    @property
    def sizes(self) -> range:
        """The captured sizes of the range."""
        return range(self.start, self.stop + 1, self.step)


class StaticReserve(FrozenModel):
    """SGLang's estimate of what must stay free besides weights and KV; the rest is the static share."""

    memory_at_least: Bytes = 0.0
    """GPU memory from which this estimate holds, bytes."""
    base: Bytes
    """Bytes for metadata, or for everything where no other term is given."""
    chunk_token: Bytes = 0.0
    """Bytes a token of the prefill chunk."""
    minimum_chunk_tokens: int = 0
    """The chunk is taken to be at least this long, tokens."""
    graph_sequence: Bytes = 0.0
    """Bytes a sequence of the largest captured CUDA graph."""
    prompt_graph: Bytes = 0.0
    """Bytes a captured graph of prompts; none are captured under data-parallel attention."""
    prompt_graph_sizes: tuple[SizeRange, ...] = ()
    """Tokens of the graphs of prompts; those up to the chunk are captured."""
    rank: Bytes = 0.0
    """Bytes a rank (tensor x pipeline)."""
    group_sequence: Bytes = 0.0
    """Bytes a sequence of the largest CUDA graph and group of data-parallel attention, where there are several."""
    large_group_sequence: Bytes = 0.0
    """What that is more where the largest graph holds more sequences than `large_graph`."""
    large_graph: int = 0
    """Sequences of the largest graph above which that holds."""
    minimum: Bytes = 0.0
    """Least reserve, bytes, on GPUs above `minimum_above`."""
    minimum_above: Bytes = 0.0
    """GPU memory above which `minimum` holds, bytes."""

    def share(
        self, gpu_memory_bytes: float, chunk_tokens: int, graph_sequences: int, ranks: int, groups: int = 1
    ) -> float:
        """Return the share of GPU memory for weights and KV, rounded to 0.001 as SGLang does.

        ``ranks`` counts those of all ``groups`` of data-parallel attention.
        """
        reserved = self.base + self.chunk_token * max(chunk_tokens, self.minimum_chunk_tokens)
        reserved += self.graph_sequence * graph_sequences + self.rank * ranks
        if groups > 1:
            is_large = graph_sequences > self.large_graph
            each = self.group_sequence + (self.large_group_sequence if is_large else 0.0)
            reserved += each * graph_sequences * groups
        else:
            captured = (
                range(each.start, min(each.stop, chunk_tokens) + 1, each.step) for each in self.prompt_graph_sizes
            )
            reserved += self.prompt_graph * sum(map(len, captured))
        if gpu_memory_bytes > self.minimum_above:
            reserved = max(reserved, self.minimum)
        return round((gpu_memory_bytes - reserved) / gpu_memory_bytes, 3)


class TowerReserve(FrozenModel):
    """What SGLang takes off the share that it computes itself for a model with a vision tower."""

    factor: float = Field(gt=0, le=1)
    """Of the share, what is left with a usual tower."""
    grows_with_tower: bool = False
    """Whether larger towers leave less."""

    def share(self, num_layers: int, width: int) -> float:
        """Return the factor on the share of GPU memory for a tower of that many layers and that width."""
        if not self.grows_with_tower:
            return self.factor
        size = num_layers * width**2 / (TOWER_LAYERS * TOWER_WIDTH**2)
        return self.factor * max(TOWER_LEAST, min(TOWER_MOST, 1.0 - TOWER_GROWTH * (size - 1.0)))


class RuntimeMemory(FrozenModel):
    """Inputs of the rule for memory that is neither weights nor KV; `perf` computes the bytes."""

    non_torch_single: Bytes
    """CUDA context and libraries on one GPU, bytes."""
    non_torch_parallel: Bytes
    """The same a GPU under tensor parallelism, with communication buffers, bytes."""
    non_torch_pcie: Bytes | None = None
    """That between GPUs that PCIe alone joins, where buffers for NVLink are not made; absent: the same."""
    activation_token_factor: float = Field(ge=0)
    """Peak activations: times `max_num_batched_tokens` x (hidden + intermediate / TP) x bytes an element."""
    activation_hidden_share: float = Field(default=1.0, ge=0, le=1)
    """Of the hidden vectors that `activation_token_factor` counts, those that are there at once."""
    activation_logit: Bytes
    """Peak of sampling: bytes a logit, times `max_num_seqs` x vocabulary."""
    flashinfer_sampler: bool = False
    """Whether the official image of the version samples with FlashInfer's kernels."""
    flashinfer_activation_logit: Bytes | None = None
    """The same with FlashInfer's kernels; absent: the version has no choice."""
    activation_base: Bytes = 0.0
    """Peak of sampling: bytes beside the logits, however many seats (workspaces of kernels and of the sampler)."""
    linear_states_per_cached_seat: int = Field(default=1, ge=1)
    """States of linear attention that a seat holds beside a prefix cache; one without."""
    linear_states_to_overlap: int = Field(default=0, ge=0)
    """As many more where steps are scheduled ahead, for states that a step under way still writes."""
    relaid_expert_formats: tuple[str, ...] = ()
    """Weight formats whose experts are laid out anew on the GPU, where their first matrices then stay twice."""
    tower_reserve: TowerReserve | None = None
    """What a vision tower takes off a share of memory that nobody set; absent: nothing."""
    keeps_reduced: bool = False
    """Whether nothing that ranks have summed is free again before a step ends, so that each layer takes new memory."""
    source: str
    """Where the figures come from."""

    def logit_bytes(self, flashinfer: bool) -> float:
        """Return the bytes a logit at the peak of sampling, with FlashInfer's kernels or without."""
        other = self.flashinfer_activation_logit
        return other if flashinfer and other is not None else self.activation_logit

    @property
    def between_pcie(self) -> float:
        """What CUDA, libraries and buffers take of a GPU that PCIe alone joins to others, bytes."""
        return self.non_torch_parallel if self.non_torch_pcie is None else self.non_torch_pcie


class WindowedKV(FrozenModel):
    """From which version on an engine keeps no more of a layer with a sliding window than the window, and how.

    Two layouts: groups of equally many layers that share one pool of blocks (vLLM), or a pool of its own for the
    layers with a window (SGLang).
    """

    since: str
    """Version from which this holds, until the next entry."""
    own_pool_ratio: float | None = Field(default=None, gt=0, le=1)
    """Tokens of the pool of layers with a window for each of the other pool; absent: all share one pool."""
    padding_limit: float = Field(default=1.0, ge=1)
    """One pool: where one kind has fewer times this as many layers as the other, groups are as large as the larger kind
    and the smaller one is padded; otherwise as large as the smaller kind."""
    recheck_windows: NonNegativeInt = 0
    """Windows that a request grows by before the engine looks for tokens that have left its window."""
    recheck_tokens: NonNegativeInt = 0
    """The same in tokens."""
    keeps_with_connector: bool = False
    """Whether it does so too where a KV connector moves caches between servers."""
    counts_steps_ahead: bool = False
    """Whether the start-up check also counts the chunk of a step that is scheduled ahead."""
    families: tuple[str, ...] = ()
    """Families of models, by the beginnings of their names, that alone are kept so; empty: all."""
    except_families: tuple[str, ...] = ()
    """Families that are not."""
    below_capability: float | None = None
    """CUDA compute capability from which on it is off; absent: none."""
    source: str
    """Where the rules come from."""

    def keeps(self, family: str) -> bool:
        """Return whether models of a family are kept so."""
        is_named = not self.families or family.startswith(self.families)
        return is_named and not family.startswith(self.except_families or ("\0",))


class NewTokenRatio(FrozenModel):
    """SGLang's decaying share of `max_tokens` that a running request is expected to still need."""

    initial: float = Field(ge=0, le=1)
    """Share at first."""
    minimum_factor: float = Field(ge=0, le=1)
    """The share stops decaying at this factor of `initial`."""
    decay_steps: int = Field(ge=1)
    """Decode steps from `initial` to the minimum."""
    groups_factor: float = Field(default=1.0, gt=0, le=1)
    """What `initial` is times, where there are several groups of data-parallel attention."""
    source: str
    """Where the constants come from."""

    def first(self, groups: int) -> float:
        """Return the share at first, of that many groups of data-parallel attention."""
        return self.initial * (self.groups_factor if groups > 1 else 1.0)
