"""A hardware profile from the fitted curves of a run, alone or merged into the profile of the same GPU, and its file.

Rates become shares of peaks here: of the base's (at most 1), or of the highest that any kernel reached. Knows profiles
and curves, no measurements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.calibrate import curve_forms as forms
from simserve.calibrate.device_factors import OWN_CURVE, SCALED, device_factors, scale
from simserve.calibrate.kernel_fit import HELD_SHAPE, FittedKind, KernelFit
from simserve.calibrate.kernels import points
from simserve.calibrate.run_folder import KernelRun
from simserve.calibrate.run_report import ending_line
from simserve.documents import yaml_text
from simserve.perf.efficiency import KERNEL_LATENCIES
from simserve.perf.stage import LOGIT_BYTES
from simserve.perf.tables import SAMPLING_PASSES
from simserve.profiles import catalog
from simserve.profiles.hardware import Calibration, HardwareProfile, load_hardware
from simserve.unfinished import write_text
from simserve.units import format_bandwidth, format_compute, format_seconds, parse, to_text
from simserve.validation import validate

ASSUMED = {"gemm": 0.6, "attention_prefill": 0.4, "memory": 0.8}
"""Efficiencies used where neither a fit nor a base profile gives one."""

ASSUMED_LATENCY = 5e-6
ASSUMED_PEAK, ASSUMED_BANDWIDTH = 1e12, 1e10
PCIE_BANDWIDTH = 32e9  # Bytes/s of PCIe 4.0 x16, one direction: the link of a GPU without a known profile.
ASSUMED_POWER = (300.0, 50.0)  # Watts of the board and idle, used where no source gives them.
NO_TILE_COMPUTE = 1e6
"""Share of a multiprocessor's peak for the longest tile, so large that nothing ever waits for that tile."""

_UNITS = {"time": ("us", 1e-6), "compute": ("TFLOP/s", 1e12), "bandwidth": ("GB/s", 1e9)}

_EXPERT_SHAPE = ("loop_overhead", "overlap", "routed_passes", "local_passes", "tile_rows")
"""Fixed constants of routed experts."""

NOT_SHOWN = 100.0
"""Ratio of an interval's upper to its lower end above which the calls do not determine the constant."""

NEVER = 1e-9  # Share of the link for an algorithm that is never to be the fastest.
DIGITS = 4


def fitted_profile(run: KernelRun, fit: KernelFit) -> HardwareProfile:
    """Return the profile, named for the base or the device and for the run."""
    base = fit.base
    mapping: dict[str, Any] = base.model_dump(mode="json", exclude_none=True) if base else _plain_device(run)
    builder = _Builder(run, fit, mapping)
    builder.take_rates()
    for kind, factor in builder.factors.items():
        if factor.action == SCALED:
            scale(mapping, fit.kinds_[kind], factor)
        elif factor.action == OWN_CURVE:
            builder.add(fit.kinds_[kind])
    builder.set_efficiencies()
    slug = re.sub(r"[^a-z0-9]+", "-", str(run.provenance["device_name"]).lower()).strip("-")
    mapping["name"] = f"{base.name if base else slug}-{run.folder.resolve().name}"
    what = base.description if base else str(run.provenance["device_name"])
    what = what.split(", calibrated")[0]
    mapping["description"] = f"{what}, calibrated with {run.folder.resolve().name} ({ending_line(run)})"
    mapping["calibration"] = _calibration(run, fit).model_dump(mode="json")
    return validate(HardwareProfile, mapping)


def _calibration(run: KernelRun, fit: KernelFit) -> Calibration:
    device, provenance = run.provenance["device"], run.provenance
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    return Calibration(
        run=run.folder.resolve().name,
        device=str(provenance["device_name"]),
        date=str(provenance["date"]),
        software=f"PyTorch {provenance['torch']}{driver}",
        is_complete=run.is_complete,
        ended=str(provenance["ended"]),
        num_points=run.num_points,
        num_planned=int(provenance["planned_points"]),
        not_fitted=tuple(fit.not_fitted_),
    )


def _plain_device(run: KernelRun) -> dict[str, Any]:
    """Return a profile for a device without a known one: peaks and bandwidth are filled in from the fit."""
    device = run.provenance["device"]
    who = f"simserve calibrate kernels, {run.provenance['date']}"
    board = float(device.get("power_limit_w") or ASSUMED_POWER[0])
    name = str(device["name"])
    makers = {"AMD": "AMD", "NVIDIA": "NVIDIA", "Intel": "Intel", "Apple": "Apple"}
    vendor = next((maker for text, maker in makers.items() if text.lower() in name.lower()), "unknown")
    mapping: dict[str, Any] = {
        "name": "",
        "vendor": "NVIDIA" if device["kind"] == "cuda" and vendor == "unknown" else vendor,
        "description": "",
        "memory": {
            "total": to_text(float(device["total_memory_bytes"]), "bytes"),
            "source": f"{who}: size as the system says; bandwidth the best that a kernel reached.",
        },
        "compute": {"source": f"{who}: the best that a kernel reached, not a data sheet. FP16 taken to be as BF16."},
        "intra_node": {"kind": "none", "gpus_per_node": 1, "source": "Not measured."},
        "inter_node": {"kind": "none", "source": "Not measured."},
        "host_link": {
            "kind": "unified" if device["kind"] == "cpu" else "pcie",
            "source": "Not measured: PCIe 4.0 x16 for a GPU; a CPU copies nothing.",
        },
        "power": {
            "board": to_text(board, "power"),
            "idle": to_text(min(ASSUMED_POWER[1], board), "power"),
            "source": "Board: nvidia-smi where there is one, else an assumption; idle: an assumption.",
        },
        "efficiency": {},
    }
    if device["kind"] == "cpu":
        mapping["is_cpu"] = True
    if device["kind"] == "cuda":
        mapping["compute"]["num_multiprocessors"] = int(device["num_multiprocessors"])
        mapping["compute_capability"] = device.get("compute_capability")
    return mapping


class _Builder:
    """Fills the mapping of a profile from fitted kinds."""

    def __init__(self, run: KernelRun, fit: KernelFit, mapping: dict[str, Any]) -> None:
        self.run, self.fit, self.mapping = run, fit, mapping
        self.base = fit.base
        self.factors = device_factors(fit)
        self.source = (
            f"simserve calibrate fit on {run.folder.resolve().name} ({run.provenance['device_name']}, PyTorch "
            f"{run.provenance['torch']}, {run.provenance['date']}; {ending_line(run)})"
        )
        self.peaks: dict[str, float] = {}
        self.bandwidth = 0.0

    def take_rates(self) -> None:
        """Set peaks and bandwidth: those of the base, or the highest that kernels reach."""
        base, compute = self.base, self.mapping["compute"]
        if base:
            self.bandwidth = base.memory.bandwidth
            self.peaks = {dtype: base.peak_flops(dtype) or 0.0 for dtype in base.supported_dtypes}
        for kind in self.fit.kinds_.values():
            constants = kind.regressor.constants_
            if not base and kind.table != points.ALL_REDUCE and is_shown(kind, forms.MEMORY):
                self.bandwidth = max(self.bandwidth, constants.get(forms.MEMORY, 0.0))
            dtype = forms.PEAK_OF.get(kind.number_format, "bf16")
            if is_shown(kind, forms.COMPUTE) and (not base or dtype not in self.peaks):
                self.peaks[dtype] = max(self.peaks.get(dtype, 0.0), constants[forms.COMPUTE])
                compute[dtype] = _text(self.peaks[dtype], "compute")
        if not base:
            self._assume_what_nothing_shows()

    def _assume_what_nothing_shows(self) -> None:
        """Assume the rates of a device without a data sheet that no kernel shows, and say so."""
        memory, compute = self.mapping["memory"], self.mapping["compute"]
        if not self.bandwidth:
            self.bandwidth = ASSUMED_BANDWIDTH
            memory["source"] += " Bandwidth: no kernel shows it, an assumption."
        memory["bandwidth"] = _text(self.bandwidth, "bandwidth")
        formats = [kind.number_format for kind in self.fit.kinds_.values() if kind.table == points.GEMM]
        for dtype in ("bf16", *(forms.PEAK_OF[each] for each in formats)):
            if dtype not in self.peaks:
                self.peaks[dtype] = self.peaks.get("bf16", ASSUMED_PEAK)
                compute[dtype] = _text(self.peaks[dtype], "compute")
                compute["source"] += f" {dtype.upper()}: no kernel shows it, an assumption."
        compute["fp16"] = compute["bf16"]

    def add(self, kind: FittedKind) -> None:
        """Put the curve of a kind into the profile."""
        if kind.table == points.GEMM:
            curves = self.mapping.setdefault("gemm_curves", {})
            curves[forms.CLASS_OF[kind.number_format]] = [self._product(kind)]
            if kind.number_format == "fp8":
                constants = kind.regressor.constants_
                self.mapping["activation_quantisation"] = {
                    "start_latency": _text(forms.ROUNDING_STARTS * constants[forms.START], "time"),
                    "memory_efficiency": self._memory_share(constants[forms.MEMORY] * constants[forms.ROUNDING]),
                    "fit": self._fit(kind),
                }
        elif kind.table == points.MOE:
            self.mapping.setdefault("grouped_gemm_curves", {})["bf16"] = [self._experts(kind)]
        elif kind.table == points.PREFILL and "decode attention" in self.fit.kinds_:
            self._add_attention(kind, self.fit.kinds_["decode attention"])
        elif kind.table == points.ALL_REDUCE:
            self._add_all_reduce(kind)

    def _add_all_reduce(self, kind: FittedKind) -> None:
        """Replace every engine's own all-reduce with the measured one; it is one line, NCCL's."""
        constants, link = kind.regressor.constants_, self.mapping["intra_node"]
        if link["kind"] == "none":
            link |= {
                "kind": "pcie",
                "bandwidth": _text(constants[forms.MEMORY], "bandwidth"),
                "latency": _text(constants[forms.START], "time"),
                "gpus_per_node": int(kind.calls["num_gpus"].max()),
                "source": f"{self.source}: what an all-reduce reached; which link it is was not asked.",
            }
        rate = constants[forms.MEMORY] / parse(link["bandwidth"], "bandwidth")
        curves = self.mapping.get("collective_curves") or {"all_reduce": [{"engine": "vllm"}]}
        one = {
            "start": _text(constants[forms.START], "time"),
            "start_per_doubling": _text(constants[forms.DOUBLING], "time"),
            "one_shot": NEVER,
            "two_shot_start_per_doubling": "0 s",
            "two_shot": _rounded(rate),
            "ring_start": "0 s",
            "ring": _rounded(rate),
            "fit": self._quality(kind) | {"valid_to": kind.range},
        }
        before = f" Others: {curves['source']}" if "source" in curves else ""
        self.mapping["collective_curves"] = curves | {
            "all_reduce": [{"engine": each["engine"], **one} for each in curves["all_reduce"]],
            "source": f"{self.source}.{before}",
        }

    def _product(self, kind: FittedKind) -> dict[str, Any]:
        constants = kind.regressor.constants_
        curve = forms.product_curve(constants, kind.shape)
        dtype = forms.PEAK_OF[kind.number_format]
        return {
            "start_latency": _text(curve.start_latency, "time"),
            "split_latency": _text(curve.split_latency, "time"),
            **{name: getattr(curve, name) for name in HELD_SHAPE},
            "efficiency": self._share(constants[forms.COMPUTE], dtype),
            "sustained_efficiency": self._share(constants[forms.COMPUTE] * curve.sustained_efficiency, dtype),
            "memory_efficiency": self._memory_share(constants[forms.MEMORY]),
            "fit": self._fit(kind),
        }

    def _experts(self, kind: FittedKind) -> dict[str, Any]:
        constants = kind.regressor.constants_
        curve = forms.grouped_curve(constants)
        return {
            "start_latency": _text(curve.start_latency, "time"),
            "expert_latency": _text(curve.expert_latency, "time"),
            **{name: getattr(curve, name) for name in _EXPERT_SHAPE},
            "efficiency": self._share(constants[forms.COMPUTE], "bf16"),
            "memory_efficiency": self._memory_share(constants[forms.MEMORY]),
            "fit": self._fit(kind),
        }

    def _fit(self, kind: FittedKind) -> dict[str, Any]:
        quality = self._quality(kind)
        return {"source": self.source, "num_points": quality.pop("points"), **quality, "range": kind.range}

    def _quality(self, kind: FittedKind) -> dict[str, Any]:
        regressor = kind.regressor
        quality: dict[str, Any] = {
            "points": regressor.num_points_,
            "median_error": round(regressor.median_error_, DIGITS),
        }
        if regressor.held_out_error_ is not None:
            quality["held_out_error"] = round(regressor.held_out_error_, DIGITS)
        return quality | {"intervals": {name: interval_words(kind, name) for name in regressor.fitted_}}

    def _add_attention(self, prefill: FittedKind, decode: FittedKind) -> None:
        device = self.run.provenance["device"]
        curves = self.mapping.get("attention_curves") or {
            "num_multiprocessors": int(device["num_multiprocessors"]),
            "l2_cache": to_text(float(device["cache_bytes"]), "bytes"),
            "kernels": [],
        }
        kept = [each for each in curves["kernels"] if each["kind"] != "heads" or each["kv_bits"] == 8]
        engines = list(dict.fromkeys(each["engine"] for each in curves["kernels"] if each["kind"] == "heads"))
        kernels = [
            {
                "engine": engine,
                "kind": "heads",
                "kv_bits": 16,
                "decode": self._decode(decode),
                "decode_fit": self._quality(decode) | {"valid_to": decode.range},
                "prefill": self._prefill(prefill, curves["num_multiprocessors"]),
                "prefill_fit": self._quality(prefill) | {"valid_to": prefill.range},
            }
            for engine in engines or ["vllm"]
        ]
        before = f" Other kernels: {curves['source']}" if kept else ""
        self.mapping["attention_curves"] = curves | {"kernels": kernels + kept, "source": f"{self.source}.{before}"}

    def _decode(self, kind: FittedKind) -> dict[str, Any]:
        constants = kind.regressor.constants_
        return {
            "start": _text(constants[forms.START], "time"),
            "start_per_width": "0 s",
            "context_doubling": "0 s",
            "wave": _text(constants[forms.WAVE], "time"),
            "wave_per_width": "0 s",
            "overlap": 1.0,
            "compute": NO_TILE_COMPUTE,
            "extra_width": 0.0,
            "wide_penalty": 1.0,
            "memory": self._memory_share(constants[forms.MEMORY]),
            "cache_bandwidth": _text(self.bandwidth, "bandwidth"),
        }

    def _prefill(self, kind: FittedKind, cores: int) -> dict[str, Any]:
        constants = kind.regressor.constants_
        element = _text(forms.ROW_BYTES / constants[forms.MEMORY], "time")
        tile = constants[forms.TILE_RATE]
        is_waiting = forms.TILE_RATE in kind.regressor.fitted_
        return {
            "start": _text(constants[forms.START], "time"),
            "compute": self._share(constants[forms.COMPUTE], "bf16"),
            "extra_width": 0.0,
            "query_element": element,
            "kv_element": element,
            "tile_compute": _rounded(tile / (self.peaks["bf16"] / cores)) if is_waiting else NO_TILE_COMPUTE,
            "wave": "0 s",
        }

    def set_efficiencies(self) -> None:
        """Set the class efficiencies, which price operators without a curve, from the curves of the same kind."""
        efficiency = self.mapping["efficiency"]
        kinds = {name: self.fit.kinds_[name] for name, each in self.factors.items() if each.action == OWN_CURVE}
        if self.base and not kinds:
            return
        found: dict[str, Any] = {}
        if "products bfloat16" in kinds:
            found["gemm"] = self._share(kinds["products bfloat16"].regressor.constants_[forms.COMPUTE], "bf16")
        if "prefill attention" in kinds:
            rate = kinds["prefill attention"].regressor.constants_[forms.COMPUTE]
            found["attention_prefill"] = self._share(rate, "bf16")
        if "element-wise" in kinds:
            constants = kinds["element-wise"].regressor.constants_
            found["memory"] = self._memory_share(constants[forms.MEMORY])
            found["kernel_latency"] = _text(constants[forms.START] / KERNEL_LATENCIES["elementwise"], "time")
        sampling = self.fit.kinds_.get("sampling")
        if sampling is not None and self.run.provenance["device"]["kind"] == "cpu":
            moved = SAMPLING_PASSES * LOGIT_BYTES / points.ELEMENTWISE_BYTES[points.SAMPLING]
            found["sampling"] = self._memory_share(sampling.regressor.constants_[forms.MEMORY] * moved)
        assumed = {**ASSUMED, "kernel_latency": _text(ASSUMED_LATENCY, "time")}
        missing = [name for name in assumed if name not in efficiency and name not in found]
        source = f"{self.source}: {', '.join(found) or 'nothing'}."
        source += f" Assumed: {', '.join(missing)}." if missing else ""
        before = f" Before: {efficiency['source']}" if "source" in efficiency else ""
        if not self.base:
            link = (
                _text(PCIE_BANDWIDTH, "bandwidth")
                if self.mapping["host_link"]["kind"] == "pcie"
                else self.mapping["memory"]["bandwidth"]
            )
            self.mapping["host_link"]["bandwidth"] = link
        self.mapping["efficiency"] = assumed | efficiency | found | {"source": source + before}

    def _share(self, rate: float, dtype: str) -> float:
        return min(_rounded(rate / self.peaks[dtype]), 1.0)

    def _memory_share(self, rate: float) -> float:
        return min(_rounded(rate / self.bandwidth), 1.0)


def is_shown(kind: FittedKind, name: str) -> bool:
    """Return whether a kind has a constant and its calls determine it."""
    low, high = kind.regressor.intervals_.get(name, (1.0, math.inf))
    return high <= NOT_SHOWN * low


def interval_words(kind: FittedKind, name: str) -> str:
    """Return the 95 % interval of a constant with its unit."""
    if not is_shown(kind, name):
        return "not shown by the calls"
    low, high = kind.regressor.intervals_[name]
    return f"{constant_words(name, low)} to {constant_words(name, high)}"


def constant_words(name: str, value: float) -> str:
    """Return a constant with its unit."""
    shown = {"s": format_seconds, "byte/s": format_bandwidth, "FLOP/s": format_compute}.get(forms.UNITS[name])
    return f"{value:.3g}" if shown is None else shown(value)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _text(value: float, dimension: str) -> str:
    """Return a quantity to four digits, in the unit that profiles use for it."""
    unit, factor = _UNITS[dimension]
    return f"{value / factor:.{DIGITS}g} {unit}"


FORMS, OTHER_FORMS = frozenset({"sxm", "pcie", "nvl"}), frozenset({"pcie", "nvl"})
"""Form factors in catalogue names; drivers always name them except SXM, which they name only sometimes."""

MEMORY_TOLERANCE = 0.05
"""Share by which the memory of a GPU may differ from its profile's, as drivers state it slightly differently."""


def bundled_profile_of(provenance: Mapping[str, Any]) -> HardwareProfile | None:
    """Return the catalogue's profile of a measured GPU, or None if none matches.

    The name that the driver gives must contain the chip of the catalogue name (``h100`` of ``h100-sxm-80gb``), the
    form factor must be in both or neither, and the memory must agree. Of several matches the nearest is taken.
    """
    device = provenance["device"]
    if device["kind"] != "cuda":
        return None
    words = set(re.split(r"[^a-z0-9]+", str(device["name"]).lower()))
    found = []
    for name in catalog.names("hardware"):
        parts = set(name.split("-"))
        chip = {part for part in parts if part not in FORMS and not part.endswith("gb")}
        if chip <= words and parts & OTHER_FORMS == words & OTHER_FORMS:
            profile = load_hardware(name)
            found.append((abs(profile.memory.total / float(device["total_memory_bytes"]) - 1.0), name, profile))
    near = [each for each in found if each[0] < MEMORY_TOLERANCE]
    return min(near, key=lambda each: each[:2])[2] if near else None


def profile_text(profile: HardwareProfile, header: str = "") -> str:
    """Return a profile as YAML, with units in the quantities and without values at their defaults.

    Args:
        header: Comment above it, in whole lines.
    """
    mapping = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return header + yaml_text(mapping, allow_unicode=True, width=116)


def write_profile(profile: HardwareProfile, file: Path, header: str = "") -> None:
    """Write a profile, whole or not at all.

    Raises:
        OSError: The file cannot be written.
    """
    write_text(file, profile_text(profile, header))
