"""The limits of one GPU and its links: memory, peaks, bandwidths and power.

Knows data sheets and class defaults, not how an operator, a model or an engine uses them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, model_validator

from simserve.documents import read_mapping
from simserve.errors import InputError, ProfileError, nearest
from simserve.profiles import catalog
from simserve.profiles.catalog import Itself
from simserve.profiles.cloud_instances import instance_of, instances_like
from simserve.profiles.gpu_prices import GpuPrice, GpuPurchase, Source, class_price, dear_reservation
from simserve.profiles.kernel_curves import (
    ActivationQuantisation,
    AttentionCurves,
    AttentionKernel,
    CollectiveCurves,
    GemmClass,
    GemmCurve,
    GroupedGemmCurve,
    Share,
    TileCurve,
)
from simserve.units import (
    BytesPerSecond,
    PositiveBytes,
    PositiveBytesPerSecond,
    PositiveFlopsPerSecond,
    PositiveSeconds,
    PositiveWatts,
    Seconds,
)
from simserve.validation import FrozenModel, validate

_Curve = TypeVar("_Curve", bound=TileCurve)
DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")
_NAMES_NO_GPU = {"nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "radeon", "intel", "apple", "google", "aws"}
_NAMES_NO_GPU |= {
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "generation",
    "blackwell",
    "server",
    "edition",
    "r",
    "tm",
    "graphics",
}
"""Words in GPU names reported by drivers that do not tell two GPUs of the catalogue apart."""
_COUNT_BEFORE = re.compile(r"(?:(\d{1,5})\s*[x\u00d7*]\s*|(\d{1,3})\s+(?=[a-z]))(\S.*)", re.IGNORECASE)
_COUNT_BEHIND = re.compile(r"(\S.*?)\s*[:x\u00d7*]\s*(\d{1,5})", re.IGNORECASE)
"""``H100:2`` and ``H100x2``, if the part in front is the name of a GPU."""
_MACHINES = re.compile(r"\b(?:mac[ -]?book(?:[ -](?:pro|air))?|mac[ -]?(?:studio|mini|pro)|imac(?:[ -]pro)?)\b")
"""Machines that people name beside the chip in them: ``Mac Studio M4 Max``."""
_LIKENESS = 0.7  # Least share of letters that an unknown name shares with a suggested GPU: numbers alone look alike.
NARROW_TILE_ROWS = 16
"""Rows of the smallest tile where compute is scarce (H20): the libraries' kernels with swapped operands show there."""
SCARCE_COMPUTE = 0.5
"""FLOP/s per byte/s, relative to the lender's, below which they do: 0.15 and 0.18 on H20, 0.56 and more on the others.
Those have the lender's kernels, whose times its tables hold (AIConfigurator). With tiles of 16 rows an A100's experts
in 16 bit would take 0.56 to 0.71 of the tabled time up to 128 tokens (with its own 0.95 to 1.04, from 4 tokens on), a
B200's in MXFP4 and NVFP4, up to 1,100 columns a rank, 0.68 to 0.90 for 16 to 512 tokens (0.83 to 1.07), and an A100's
products of up to 16 rows in 16 bit 0.87 to 0.95 (0.97 to 1.06)."""


class Calibration(FrozenModel):
    """A run of ``simserve calibrate kernels``."""

    run: str = Field(min_length=1)
    """Name of its folder."""
    device: str = Field(min_length=1)
    """Device name reported by its driver."""
    date: str = Field(min_length=1)
    """Day of the measurement."""
    software: str = Field(min_length=1)
    """PyTorch and driver."""
    is_complete: bool
    """Whether every planned call was measured."""
    ended: str = Field(min_length=1)
    """How the measurement ended: complete, budget, interrupted, killed, out of memory, device failed."""
    num_points: int = Field(ge=0)
    """Calls that were measured."""
    num_planned: int = Field(ge=0)
    """Calls that were planned."""
    not_fitted: tuple[str, ...] = ()
    """Kinds of kernels with too few calls, which keep class efficiencies or the base profile's curves."""

    @property
    def note(self) -> str:
        """What a reader of a result should know: empty for a complete measurement."""
        if self.is_complete:
            return ""
        share = f"{self.num_points} of {self.num_planned} calls"
        missing = f"; not fitted: {', '.join(self.not_fitted)}" if self.not_fitted else ""
        return f"the hardware profile was fitted to an incomplete measurement ({self.ended}, {share}){missing}"


class Memory(FrozenModel):
    """Device memory of one GPU."""

    total: PositiveBytes
    """Memory that the CUDA driver offers to one process; engines apply their memory share to it."""
    bandwidth: PositiveBytesPerSecond
    """Peak read bandwidth."""
    source: Source
    """Where the numbers of this block come from."""


class Compute(FrozenModel):
    """Dense peak rates of one GPU. A multiply-add counts as two operations; an absent dtype is unsupported."""

    fp32: PositiveFlopsPerSecond | None = None
    """FP32 on the ordinary cores."""
    tf32: PositiveFlopsPerSecond | None = None
    """TF32 on the tensor cores."""
    fp16: PositiveFlopsPerSecond | None = None
    """FP16 on the tensor cores, accumulated in FP32."""
    fp16_accumulated: PositiveFlopsPerSecond | None = None
    """FP16 on the tensor cores, accumulated in FP16, if that is faster (GeForce); absent: as `fp16`."""
    bf16: PositiveFlopsPerSecond | None = None
    """BF16 on the tensor cores, accumulated in FP32."""
    fp8: PositiveFlopsPerSecond | None = None
    """FP8 on the tensor cores, accumulated in FP32."""
    fp4: PositiveFlopsPerSecond | None = None
    """FP4 on the tensor cores with one scale per 16 elements (NVFP4), accumulated in FP32."""
    int8: PositiveFlopsPerSecond | None = None
    """INT8 on the tensor cores, accumulated in INT32."""
    int4: PositiveFlopsPerSecond | None = None
    """INT4 on the tensor cores: 4-bit weights and activations, which no weight-only format uses."""
    num_multiprocessors: int | None = Field(default=None, ge=1)
    """Streaming multiprocessors over which the tiles of a kernel are distributed; absent: unknown, and no kernel waits
    for a partly filled round of tiles."""
    source: Source
    """Where the numbers of this block come from."""

    @model_validator(mode="after")
    def _has_a_peak(self) -> Self:
        if all(getattr(self, dtype) is None for dtype in DTYPES):
            raise ValueError("must give the peak of at least one dtype")
        return self


class _Link(FrozenModel):
    """A link of one GPU; ``none`` has neither bandwidth nor latency, any other kind has both."""

    kind: str
    """What the link is."""
    bandwidth: BytesPerSecond = 0.0
    """Peak bandwidth per direction and per GPU."""
    latency: Seconds = 0.0
    """Time of a message too small for the bandwidth to matter."""
    source: Source
    """Where the numbers of this block come from."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.kind == "none" and (self.bandwidth or self.latency):
            raise ValueError("must have no bandwidth and no latency where kind is none")
        if self.kind != "none" and not (self.bandwidth > 0 and self.latency > 0):
            raise ValueError(f"must have a bandwidth and a latency above 0 where kind is {self.kind}")
        return self


class IntraNodeLink(_Link):
    """Links between the GPUs of one node. The latency is that of a small all-reduce."""

    kind: Literal["nvlink", "infinity_fabric", "ici", "neuronlink", "ethernet", "pcie", "none"]
    """NVLink, Infinity Fabric (AMD), inter-chip interconnect (TPU), NeuronLink (Trainium), Ethernet ports of the
    devices themselves (Gaudi), PCIe, or no path between the GPUs."""
    gpus_per_node: int = Field(ge=1)
    """GPUs of a typical node: those that the link joins, which in an NVLink domain belong to several hosts."""
    gpus_per_host: int | None = Field(default=None, ge=1)
    """GPUs of one host, if the link joins several hosts (GB200 NVL72: 4 of 72); absent: as many as the node's."""
    latency_gpus: int | None = Field(default=None, ge=1)
    """GPUs of the all-reduce that has the `latency`; absent: those of a node."""
    peer_bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth per direction to one other GPU, if each pair has its own link: n GPUs use n - 1 of them; absent: the
    full bandwidth, through a switch."""
    shared_bandwidth: PositiveBytesPerSecond | None = None
    """Bandwidth that communicating GPUs share if transfers pass through host memory; absent: each has its own."""

    @property
    def num_host_gpus(self) -> int:
        """GPUs of one host: visible to one operating system, available to one pod, sharing host memory."""
        return self.gpus_per_host or self.gpus_per_node

    @property
    def is_ring(self) -> bool:
        """Whether the latency of an all-reduce grows with every GPU: PCIe that reaches the other's memory by itself."""
        return self.kind == "pcie" and self.shared_bandwidth is None

    @property
    def num_latency_gpus(self) -> int:
        """GPUs of the all-reduce that has the latency."""
        return self.latency_gpus or self.gpus_per_node

    @model_validator(mode="after")
    def _hosts_fill_the_node(self) -> Self:
        if self.gpus_per_node % self.num_host_gpus:
            raise ValueError("must have gpus_per_node as a multiple of gpus_per_host")
        return self


class InterNodeLink(_Link):
    """Network between nodes. The latency is that of one small message between GPUs of two nodes."""

    kind: Literal["infiniband", "ethernet", "none"]
    """InfiniBand, Ethernet, or no network."""


class HostLink(FrozenModel):
    """Link between one GPU and host memory."""

    kind: Literal["pcie", "nvlink_c2c", "unified"]
    """PCIe, NVLink-C2C (Grace), or one memory shared by both, without copies."""
    bandwidth: PositiveBytesPerSecond
    """Peak bandwidth per direction."""
    source: Source
    """Where the numbers of this block come from."""


class Power(FrozenModel):
    """Electric power of one GPU board."""

    board: PositiveWatts
    """Most power that the board draws by default."""
    idle: PositiveWatts
    """Power that the driver reports while no process uses the GPU."""
    source: Source
    """Where the numbers of this block come from."""

    @model_validator(mode="after")
    def _idle_below_board(self) -> Self:
        if self.idle > self.board:
            raise ValueError("must have an idle power at most as high as the board power")
        return self


class Efficiency(FrozenModel):
    """Shares of the peaks that large kernels reach: class defaults, until kernels are measured or fitted."""

    gemm: Share
    """Share of the compute peak in large matrix products."""
    gemm_overlap: float | None = Field(default=None, ge=1)
    """Exponent p in the time of large products, (arithmetic^p + memory^p)^(1/p): 1 where loads and arithmetic
    alternate, as before Ampere's asynchronous copies; absent: that of the GPUs whose products were fitted."""
    grouped_gemm_overlap: float | None = Field(default=None, ge=1)
    """The same in the products of routed experts, where their kernels differ; absent: as `gemm_overlap`."""
    tile_rows: int | None = Field(default=None, ge=1, le=64)
    """Rows of the smallest tile of a matrix product: 1 if few rows are multiplied on the ordinary cores, row by row
    (Metal); absent: the 16 of tensor cores, or as the weight format says."""
    unpacking: Share | None = None
    """Share of a 16-bit product's FLOP/s that remains if weights below 16 bits are unpacked inside the kernel for any
    number of rows (Metal); absent: as the weight format says."""
    attention_prefill: Share
    """Share of the compute peak in flash attention over long prompts."""
    attention_decode: Share | None = None
    """Share of the bandwidth, if decode attention on long contexts was measured; absent: 1.05 times `memory`."""
    triton_attention_decode: Share | None = None
    """The same for Triton's kernels, if they differ much from the GPU's own; absent: the same value."""
    indexer_prefill: Share | None = None
    """Share of the FP8 peak at which an indexer scores the keys of prompts, if its kernel was timed; absent: as
    `attention_prefill`."""
    indexer_prefill_flydsl: Share | None = None
    """The same for FlyDSL's kernel, which later engines call; absent: the same value."""
    memory: Share
    """Share of the bandwidth peak in kernels that stream weights or KV."""
    sampling: Share | None = None
    """The same for sampling, if measured (on a CPU, whose arithmetic limits it); absent: as `memory`."""
    kernel_latency: PositiveSeconds
    """Least time of a kernel inside a CUDA graph."""
    source: Source
    """Where the numbers of this block come from."""

    def indexer(self, is_flydsl: bool) -> float | None:
        """Return the share of the FP8 peak in an indexer's scores of prompts; None: as prefill attention."""
        return (self.indexer_prefill_flydsl if is_flydsl else None) or self.indexer_prefill


class HardwareProfile(FrozenModel):
    """One GPU, its node and its cost."""

    name: str = Field(min_length=1)
    """Catalogue name and file name."""
    vendor: str = Field(min_length=1)
    """Maker of the GPU."""
    description: str = Field(min_length=1)
    """One line by which a person recognises the GPU."""
    aliases: tuple[str, ...] = ()
    """Short names of this GPU, in any case (``H100``)."""
    slices: tuple[str, ...] = ()
    """Maker's name for several of them, before ``-N`` for N: ``v6e`` of ``v6e-8``."""
    sizes: dict[str, PositiveBytes] = Field(default_factory=dict)
    """Other memory sizes of the same GPU: name -> memory available to one process."""
    memory: Memory
    """Device memory."""
    compute: Compute
    """Dense compute peaks."""
    is_cpu: bool = False
    """Whether it is a CPU: one thread calls and runs the kernels, and there are no CUDA graphs."""
    compute_capability: str | None = Field(default=None, pattern=r"^\d+\.\d+$")
    """CUDA compute capability as text (``"9.0"``); none for other makers."""
    intra_node: IntraNodeLink
    """Links between the GPUs of a node."""
    inter_node: InterNodeLink
    """Network between nodes."""
    host_link: HostLink
    """Link to host memory."""
    host: Host | None = None
    """Host memory and cores of the node; absent: those of a two-socket server."""
    host_cores: HostCores | None = None
    """Speed of its cores at an engine's own work; absent: as in H100 nodes."""
    power: Power
    """Electric power."""
    efficiency: Efficiency
    """Default efficiencies of its class; absent in a file: those of `kernels_of`."""
    kernels_of: str | None = None
    """GPU of the same architecture whose fitted curves replace missing ones, scaled to this GPU's peaks and class
    efficiencies, and whose class efficiencies apply if this file states none; absent: class efficiencies."""
    gemm_curves: dict[GemmClass, tuple[GemmCurve, ...]] = Field(default_factory=dict)
    """Fitted matrix products by number format; a format without a curve runs at the class efficiencies."""
    grouped_gemm_curves: dict[GemmClass, tuple[GroupedGemmCurve, ...]] = Field(default_factory=dict)
    """Fitted routed experts by number format."""
    activation_quantisation: ActivationQuantisation | None = None
    """Fitted rounding of activations to 8 bits."""
    attention_curves: AttentionCurves | None = None
    """Fitted attention kernels; absent: class efficiencies."""
    collective_curves: CollectiveCurves | None = None
    """Fitted collectives inside a node; absent: latency and bandwidth of the link."""
    calibration: Calibration | None = None
    """The measurement to which its curves were fitted, if made by ``simserve calibrate fit``."""
    prices: tuple[GpuPrice, ...] = ()
    """Observed prices, each with date and source."""
    purchase: GpuPurchase | None = None
    """Purchase cost; absent: no price is known."""

    @model_validator(mode="after")
    def _check_reservations(self) -> Self:
        dear = dear_reservation(self.prices)
        if dear is not None:
            reserved, price = dear
            raise ValueError(
                f"has a reserved price of {reserved.provider} (${reserved.usd_per_hour:g}) above its on-demand price "
                f"(${price.usd_per_hour:g}); correct one of them"
            )
        return self

    @property
    def runs_cuda(self) -> bool:
        """Whether it runs CUDA kernels, or on AMD GPUs kernels compiled by HIP."""
        return self.compute_capability is not None or (self.vendor == "AMD" and not self.is_cpu)

    @property
    def supported_dtypes(self) -> tuple[str, ...]:
        """Dtypes that have a compute peak, in the order of `DTYPES`."""
        return tuple(dtype for dtype in DTYPES if self.peak_flops(dtype) is not None)

    @property
    def default_price(self) -> float | None:
        """Dollars per GPU-hour on demand at specialised clouds, fitted; None if no offer was seen.

        A scenario's ``pricing.provider`` or ``pricing.gpu_hour_usd`` replaces it.
        """
        price = class_price(self.prices)
        return None if price is None else price.usd_per_hour

    @property
    def host_slowdown(self) -> float:
        """Factor on an engine's CPU time relative to an H100 node."""
        return 1.0 if self.host_cores is None else self.host_cores.slowdown

    @property
    def host_of_node(self) -> Host:
        """Host memory and cores of the node, or those of its class."""
        return self.host or SERVER_HOST

    def gemm_curves_of(self, engine: str) -> dict[GemmClass, GemmCurve]:
        """Return the curve of each number format for the kernels that an engine runs."""
        return _of_engine(self.gemm_curves, engine)

    def grouped_gemm_curves_of(
        self, engine: str, backend: str | None = None, makers: Mapping[GemmClass, str] | None = None
    ) -> dict[GemmClass, GroupedGemmCurve]:
        """Return the curve of routed experts of each number format for the kernels that an engine runs.

        Args:
            backend: Kernels with which it runs experts; curves of other backends are left out.
            makers: Format -> whose kernels it calls instead, if a curve names them; a curve may name the engine too.
        """
        fitting = {
            name: tuple(curve for curve in curves if curve.backend in (None, backend))
            for name, curves in self.grouped_gemm_curves.items()
        }
        chosen = _of_engine(fitting, engine)
        for name, maker in (makers or {}).items():
            if named := [curve for curve in self.grouped_gemm_curves.get(name, ()) if maker in curve.engines]:
                chosen[name] = max(named, key=lambda curve: engine in curve.engines)
        return chosen

    def peak_flops(self, dtype: str) -> float | None:
        """Return the dense compute peak in FLOP/s (OP/s for integers); None if the GPU lacks the dtype.

        Raises:
            ProfileError: ``dtype`` is not one of `DTYPES`.
        """
        if dtype not in DTYPES:
            raise ProfileError("is not a known dtype", key="dtype", value=dtype, remedy=nearest(dtype, DTYPES))
        peak: float | None = getattr(self.compute, dtype)
        return peak


def _of_engine(curves: Mapping[GemmClass, Sequence[_Curve]], engine: str) -> dict[GemmClass, _Curve]:
    """Return for each class the curve that names the engine, otherwise the one that names none."""
    chosen = {}
    for name, candidates in curves.items():
        own = [curve for curve in candidates if engine in curve.engines]
        anyones = [curve for curve in candidates if not curve.engines]
        if own or anyones:
            chosen[name] = (own or anyones)[0]
    return chosen


def load_hardware(name: str, relative_to: Path | None = None) -> HardwareProfile:
    """Return the profile of a catalogue name or a path.

    Args:
        name: A catalogue name (``h100-sxm-80gb``), one of the ``aliases`` or ``sizes`` of a profile in any case, or the
            path of a profile file.
        relative_to: Folder in which a relative path is looked up first.

    Raises:
        ProfileError: There is no such profile, or the file is invalid; names file, key and remedy.
    """
    name = hardware_name(name)
    size = None if catalog.has("hardware", name) else _sizes().get(name)
    if not is_known_gpu(name) and not _is_path(name):
        raise ProfileError("is not a known hardware", value=name, remedy=remedy_for_gpu(name))
    path = catalog.find("hardware", size or name, relative_to)
    profile = _read(path)
    if size is not None:
        memory = profile.memory.model_copy(update={"total": profile.sizes[name]})
        return profile.model_copy(update={"name": name, "memory": memory, "sizes": {}})
    if path.stem == name and profile.name != name:
        rule = "must equal the name of the file"
        raise ProfileError(rule, file=path, key="name", value=profile.name, remedy=f"write {name}")
    return profile


@lru_cache(maxsize=64)
def _in_nodes(profile: Itself[HardwareProfile], gpus_per_node: int) -> HardwareProfile:
    own = profile.value.intra_node
    fewer = {
        "gpus_per_node": gpus_per_node,
        "gpus_per_host": None if gpus_per_node <= own.num_host_gpus else own.gpus_per_host,
        "latency_gpus": own.num_latency_gpus,
    }
    return profile.value.model_copy(update={"intra_node": own.model_copy(update=fewer)})


def in_nodes(profile: HardwareProfile, gpus_per_node: int | None) -> HardwareProfile:
    """Return a GPU in nodes of fewer GPUs than its profile's; None: in those.

    Raises:
        InputError: They are more, or no whole number of hosts.
    """
    own, key = profile.intra_node, "deployment.gpus_per_node"
    if gpus_per_node is None or gpus_per_node == own.gpus_per_node:
        return profile
    if gpus_per_node > own.gpus_per_node:
        rule = f"must be at most {own.gpus_per_node}, the GPUs that a node of {profile.name} joins"
        remedy = "larger nodes need a profile of their own: simserve gpus NAME --profile prints one to start from"
        raise InputError(rule, key=key, value=gpus_per_node, remedy=remedy)
    hosts = own.num_host_gpus
    if gpus_per_node > hosts and gpus_per_node % hosts:
        rule = f"must be a multiple of {hosts}, the GPUs of a host of {profile.name}"
        raise InputError(rule, key=key, value=gpus_per_node)
    return _in_nodes(Itself(profile), gpus_per_node)


def hardware_name(name: str) -> str:
    """Return the catalogue name for a GPU's name, alias or size in any case; otherwise the name itself.

    Accepts names reported by drivers (``NVIDIA H100 80GB HBM3``, ``Tesla T4``). A path stays a path. A name that the
    catalogue does not know is returned as it is; loading it reports the nearest names.
    """
    if catalog.has("hardware", name) or _is_path(name):
        return name
    lower = name.casefold()
    if catalog.has("hardware", lower):
        return lower
    aliases = _aliases()
    if lower in aliases:
        return aliases[lower]
    plain = {_plain(each): each for each in (*aliases, *catalog.names("hardware"))}
    found = plain.get(_plain(name), name)
    return aliases.get(found, found)


def is_known_gpu(name: str) -> bool:
    """Return whether a profile of the catalogue, or a memory size of one, has this name."""
    return catalog.has("hardware", name) or name in _sizes()


def _is_path(name: str) -> bool:
    return Path(name).name != name or name.endswith((".yaml", ".yml", ".json"))


_LAPTOP = re.compile(r"[\s-]*\b(laptop|mobile|max-?q|notebook)\b( gpu)?", re.IGNORECASE)
"""Words that makers add to the name of a desktop's GPU for the smaller one of a laptop."""


def remedy_for_gpu(name: str) -> str:
    """Return the remedy for an unknown GPU name: the nearest names, or how to describe a GPU."""
    if (instance := instance_of(name)) is not None:
        return f"{instance.provider} rents {instance.num_gpus} x {instance.gpu} under it: write {instance.gpu}"
    if family := instances_like(name):
        return f"did you mean {' or '.join(repr(each) for each in family)}?"
    desktop = hardware_name(_LAPTOP.sub("", name).strip(" -"))
    if is_known_gpu(desktop) and desktop != name:
        start = f"simserve gpus {desktop} --profile prints the desktop's to start from"
        return (
            f"a laptop's is another, slower chip than {desktop}: describe it in a YAML file, and give its path; {start}"
        )
    near = nearest(name, hardware_names(), meaning=hardware_name, likeness=_LIKENESS)
    if near.startswith("did you mean"):
        return near
    how = (
        "describe it in a YAML file, as hardware_profiles/h100-sxm-80gb.yaml does its GPU, and give the path in place "
        "of the name"
    )
    return f"simserve gpus lists those that are, and none is like it; {how}"


def counted_gpu(text: str) -> tuple[int | None, str]:
    """Return the number of GPUs in a text and the name as written: ``2xH100``, ``2 H100``, ``H100:2``; None: no number.

    A name that is known as a whole contains no number of GPUs (``7900xtx``); for several nodes all GPUs are counted
    (``2x8xH100``). A cloud instance counts with all of its GPUs (``p5.48xlarge``: eight H100).
    """
    instance = instance_of(text)
    if instance is not None:
        return instance.num_gpus, instance.gpu
    count, name = None, text.strip()
    while not is_known_gpu(hardware_name(name)) and (found := _COUNT_BEFORE.fullmatch(name)) is not None:
        count, name = (1 if count is None else count) * int(found[1] or found[2]), found[3]
        if (instance := instance_of(name)) is not None:
            return count * instance.num_gpus, instance.gpu
    behind = None if count is not None or is_known_gpu(hardware_name(name)) else _COUNT_BEHIND.fullmatch(name)
    if behind is not None and is_known_gpu(hardware_name(behind[1])):
        return int(behind[2]), behind[1]
    if behind is not None and (instance := instance_of(behind[1])) is not None:
        return int(behind[2]) * instance.num_gpus, instance.gpu
    return count, name


def slice_of(name: str) -> tuple[str, int] | None:
    """Return the catalogue name and number of a maker's slice (``v6e-8``: eight); None: it is not a slice."""
    kind, _, number = name.casefold().rpartition("-")
    found = next((each.name for each in _bundled() if kind in each.slices), None)
    return (found, int(number)) if found is not None and number.isdecimal() else None


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    """Return a name without vendor, product line, machine, kind of memory, generation, blanks and hyphens."""
    words = re.findall(r"[a-z0-9]+", _MACHINES.sub(" ", name.casefold()))
    return "".join("sxm" if re.fullmatch(r"sxm\d", word) else word for word in words if word not in _NAMES_NO_GPU)


def hardware_names() -> list[str]:
    """Return all names by which a GPU can be requested: profiles, their aliases and memory sizes, sorted."""
    return sorted({*catalog.names("hardware"), *_aliases()})


def _aliases() -> dict[str, str]:
    """Return the meaning of each alias and size of a bundled profile: a size itself, an alias the profile's name."""
    profiles = _bundled()
    known = {alias.casefold(): profile.name for profile in profiles for alias in profile.aliases}
    return {size.casefold(): size for profile in profiles for size in profile.sizes} | known


def _sizes() -> dict[str, str]:
    """Return the profile of each further memory size."""
    return {size: profile.name for profile in _bundled() for size in profile.sizes}


def _bundled() -> list[HardwareProfile]:
    """Return the profiles that can be requested by name, without files of a user's folder that are not GPUs."""
    profiles = []
    for path in catalog.files("hardware").values():
        try:
            profiles.append(_read(path))
        except ProfileError:
            continue
    return profiles


@catalog.remembered
def _read(path: Path) -> HardwareProfile:
    document = read_mapping(path, ProfileError)
    fitted = None
    if isinstance(named := document.get("kernels_of"), str):
        fitted = _read(catalog.find("hardware", named, path.parent))
        has_fits = any(curve.fit is not None for curves in fitted.gemm_curves.values() for curve in curves)
        if fitted.kernels_of is not None and not has_fits:
            raise ProfileError("must name a GPU with curves of its own", file=path, key="kernels_of", value=named)
        document = {"efficiency": fitted.efficiency.model_dump(mode="json"), **document}
    profile = validate(HardwareProfile, document, file=path, error=ProfileError)
    return profile if fitted is None else _with_kernels_of(profile, fitted)


class Host(FrozenModel):
    """One node without its GPUs."""

    memory_total: PositiveBytes
    """Host memory of the node."""
    memory_bandwidth: PositiveBytesPerSecond
    """Peak read bandwidth of the host memory, all sockets."""
    compute: PositiveFlopsPerSecond
    """Peak rate of the CPU cores in 32-bit floats, vector units included."""
    source: Annotated[str, Field(min_length=1)]
    """Where the numbers of this block come from."""


class HostCores(FrozenModel):
    """Speed of the usual host cores of a GPU at an engine's own work."""

    slowdown: Annotated[float, Field(gt=0)]
    """Factor on the time for scheduling, launching kernels and handing over tokens, relative to an H100 node."""
    source: Annotated[str, Field(min_length=1)]
    """Where the number comes from."""


SERVER_HOST = Host.model_construct(
    memory_total=1.0e12,
    memory_bandwidth=409.6e9,
    compute=9.2e12,
    source=(
        "Class default where a profile has no host block: two sockets of 64 cores with 8 channels of DDR4-3200 each "
        "(2 x 204.8 GB/s), 64 x 2.25 GHz x 32 FLOP, as AMD EPYC 7742 in a DGX A100; 1 TB"
    ),
)
"""A two-socket GPU server."""


def _with_kernels_of(profile: HardwareProfile, fitted: HardwareProfile) -> HardwareProfile:
    """Return a profile with the fitted curves of another GPU, scaled by the ratio of the two GPUs' class efficiencies.

    Starts, tiles (but for `SCARCE_COMPUTE`) and overlaps are those of the architecture; shares of the peaks scale with
    the class efficiencies.
    Apart from memory, decode attention is limited by the ordinary cores (softmax, conversion of 8-bit keys), and scales
    with their peak. Collectives are taken if both have the same kind of link, the borrower's at least as fast. Curves
    of its own stay. The borrowed ones have no ``fit``: their fidelity is ``roofline``.

    Not for GPUs with a much lower power limit: FP8 runs at the limit, and falls further than the 16-bit class
    efficiency says (H100 NVL and PCIe: MLPerf's offline runs would be predicted 30 % too fast).
    """
    own, other = profile.efficiency, fitted.efficiency
    compute, memory = own.gemm / other.gemm, own.memory / other.memory
    per_byte = _peak_ratio(profile, fitted, "bf16") * fitted.memory.bandwidth / profile.memory.bandwidth
    most_rows = NARROW_TILE_ROWS if per_byte < SCARCE_COMPUTE else None
    changes: dict[str, object] = {
        "gemm_curves": _scaled(fitted.gemm_curves, compute, memory, most_rows) | profile.gemm_curves,
        "grouped_gemm_curves": (
            _scaled(fitted.grouped_gemm_curves, compute, memory, most_rows) | profile.grouped_gemm_curves
        ),
        "activation_quantisation": profile.activation_quantisation or fitted.activation_quantisation,
    }
    if profile.attention_curves is None and fitted.attention_curves is not None:
        changes["attention_curves"] = _attention(profile, fitted, fitted.attention_curves)
    link, theirs = profile.intra_node, fitted.intra_node
    if profile.collective_curves is None and link.kind == theirs.kind and link.bandwidth >= theirs.bandwidth:
        changes["collective_curves"] = fitted.collective_curves
    return profile.model_copy(update=changes)


def _scaled(
    curves: Mapping[GemmClass, Sequence[_Curve]], compute: float, memory: float, most_rows: int | None
) -> dict[GemmClass, tuple[_Curve, ...]]:
    return {name: tuple(_slowed(curve, compute, memory, most_rows) for curve in each) for name, each in curves.items()}


def _slowed(curve: _Curve, compute: float, memory: float, most_rows: int | None) -> _Curve:
    changes: dict[str, object] = {
        "efficiency": min(curve.efficiency * compute, 1.0),
        "memory_efficiency": min(curve.memory_efficiency * memory, 1.0),
        "fit": None,
    }
    if isinstance(curve, GemmCurve):
        changes["sustained_efficiency"] = min(curve.sustained_efficiency * compute, 1.0)
    if most_rows is not None:
        rows = "tile_rows" if isinstance(curve, GroupedGemmCurve) else "min_tile_rows"
        changes[rows] = min(getattr(curve, rows), most_rows)
    return curve.model_copy(update=changes)


def _attention(profile: HardwareProfile, fitted: HardwareProfile, curves: AttentionCurves) -> AttentionCurves:
    own, other = profile.efficiency, fitted.efficiency
    prompt, memory = own.attention_prefill / other.attention_prefill, own.memory / other.memory
    cores = _peak_ratio(profile, fitted, "fp32") / _peak_ratio(profile, fitted, "bf16")
    return curves.model_copy(
        update={
            "num_multiprocessors": profile.compute.num_multiprocessors or curves.num_multiprocessors,
            "kernels": tuple(_slowed_kernel(each, prompt, prompt * cores, memory) for each in curves.kernels),
        }
    )


def _peak_ratio(profile: HardwareProfile, fitted: HardwareProfile, dtype: str) -> float:
    own, other = profile.peak_flops(dtype), fitted.peak_flops(dtype)
    return own / other if own is not None and other is not None else 1.0


def _slowed_kernel(kernel: AttentionKernel, prompt: float, step: float, memory: float) -> AttentionKernel:
    decode, prefill = kernel.decode, kernel.prefill
    slower_decode = {"compute": decode.compute * step, "memory": min(decode.memory * memory, 1.0)}
    slower_prefill = {"compute": prefill.compute * prompt, "tile_compute": prefill.tile_compute * prompt}
    return kernel.model_copy(
        update={"decode": decode.model_copy(update=slower_decode), "prefill": prefill.model_copy(update=slower_prefill)}
    )
