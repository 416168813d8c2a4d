"""The device that kernels are measured on, through PyTorch: random data, memory, caches and a description.

PyTorch is imported when a device is opened. Knows no kernel.
"""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simserve.errors import UsageError

Tensor = Any  # `torch.Tensor`; PyTorch is not installed where types are checked.
DEFAULT_CACHE_BYTES = 50e6  # Last-level cache of a GPU that does not report it (H100: 50 MB).
CPU_CACHE_FILE = "/sys/devices/system/cpu/cpu0/cache"
RANDOM_ELEMENTS = 1 << 22
"""Number of elements drawn; the pool repeats them at other addresses, so that no cache holds them."""

POOL_SHARE = 0.2
MAX_POOL_BYTES = {"cuda": 6e9, "cpu": 1.2e9}
SAFE_SHARE = 0.8  # Share of the free memory that a point may ask for.
MAX_COPIES = 128

NEWER_FLASH_ATTENTION = {9: "FA3", 10: "FA4"}
"""Major compute capability -> flash attention that PyTorch can be told to call."""

LOAD_SIDE = 4096  # Rows and columns of the products that keep a GPU busy: 0.2 ms on an H100.
CLOCK_FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Names of the reasons in nvidia-smi; drivers before 535 use the second."""


class TooLargeError(Exception):
    """An input larger than the pool of random data."""


def import_torch() -> Any:
    """Return PyTorch.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import torch
    except ImportError as failure:
        if failure.name != "torch":
            raise UsageError(f"PyTorch is installed but cannot be loaded: {failure}") from None
        raise UsageError(
            "measuring kernels needs PyTorch, which is not installed", remedy="pip install 'simserve[calibrate]'"
        ) from None
    return torch


@dataclass(slots=True)
class TorchDevice:
    """One device and the random data that all kernels on it read."""

    torch: Any  # PyTorch.
    kind: str  # ``cuda`` or ``cpu``.
    name: str  # As the driver reports it.
    cache_bytes: float  # Last-level cache, which inputs must exceed to be cold.
    total_memory: float  # Bytes.
    num_multiprocessors: int  # Streaming multiprocessors, or threads of a CPU.
    compute_capability: str | None = None  # Of a GPU, as ``9.0``.
    flash_attention: str = "FA2"
    """Whose flash attention PyTorch calls: its own (FA2), or a newer one that is installed."""
    smi_id: str = "0"
    """The GPU's identifier in nvidia-smi, which also counts GPUs hidden by ``CUDA_VISIBLE_DEVICES``."""
    engine: Any = None
    """Kernels of an engine in place of PyTorch's (`simserve.calibrate.kernels.cpu_engine`); None: PyTorch's."""
    _pools: dict[str, Tensor] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU that CUDA (or HIP) drives."""
        return self.kind == "cuda"

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.is_cuda:
            self.torch.cuda.synchronize()

    def free_memory(self) -> float:
        """Return the bytes that can be allocated, PyTorch's own idle blocks included."""
        if self.is_cuda:
            free, _ = self.torch.cuda.mem_get_info()
            idle = self.torch.cuda.memory_reserved() - self.torch.cuda.memory_allocated()
            return float(free + idle)
        return available_memory(self.total_memory)

    def random(self, dtype: Any, shape: tuple[int, ...], copy: int = 0) -> Tensor:
        """Return normal values (bits for integers) of a shape: copy ``copy`` of it in the pool, read-only.

        Copies lie one after another; the pool is as large as `num_copies` requires, and wraps around.
        """
        pool = self._pool(dtype)
        count = math.prod(shape)
        places = pool.numel() // count
        if places < 1:
            raise TooLargeError(f"{count} elements are more than the pool of random data holds")
        start = (copy % places) * count
        return pool.narrow(0, start, count).view(shape)

    def keys_and_values(self, dtype: Any, shape: tuple[int, ...], copy: int = 0) -> tuple[Tensor, Tensor]:
        """Return two inputs of a shape that share no memory: reading one does not bring the other into a cache."""
        if 2 * math.prod(shape) > self._pool(dtype).numel():
            raise TooLargeError(f"twice {math.prod(shape)} elements are more than the pool of random data holds")
        return self.random(dtype, shape, 2 * copy), self.random(dtype, shape, 2 * copy + 1)

    def fresh(self, dtype: Any, shape: tuple[int, ...]) -> Tensor:
        """Return normal values in separate memory, which a kernel may write."""
        count = math.prod(shape)
        drawn = self._drawn(dtype, min(count, RANDOM_ELEMENTS))
        return drawn.repeat(-(-count // drawn.numel())).narrow(0, 0, count).view(shape)

    def placed(self, values: Tensor) -> Tensor:
        """Return host values, moved to the device."""
        return values.to(self.kind)

    def integers(self, end: int, shape: tuple[int, ...], seed: int) -> Tensor:
        """Return 32-bit integers from 0 up to, but excluding, ``end`` in separate memory."""
        torch = self.torch
        generator = torch.Generator(device=self.kind).manual_seed(seed)
        return torch.randint(0, end, shape, dtype=torch.int32, device=self.kind, generator=generator)

    def num_copies(self, num_bytes: float) -> int:
        """Return how many copies of an input exceed the cache twice over, as far as the pool holds them."""
        wanted = math.ceil(2.0 * self.cache_bytes / max(num_bytes, 1.0)) + 1
        return int(min(wanted, MAX_COPIES, max(self.pool_bytes // max(num_bytes, 1.0), 1)))

    @property
    def pool_bytes(self) -> float:
        """Bytes of a pool of random data."""
        most = MAX_POOL_BYTES[self.kind]
        return min(POOL_SHARE * self.total_memory, most)

    def occupy(self, seconds: float) -> None:
        """Give a GPU work for about ``seconds`` and return before it is done, so that readings are taken under load."""
        torch = self.torch
        square = self.random(torch.bfloat16, (LOAD_SIDE, LOAD_SIDE))
        product = torch.mm(square, square)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        torch.mm(square, square, out=product)
        after.record()
        self.synchronize()
        once = max(float(before.elapsed_time(after)) * 1e-3, 1e-6)
        for _ in range(math.ceil(seconds / once)):
            torch.mm(square, square, out=product)

    def release(self) -> None:
        """Release idle memory, so that the next point finds it unfragmented."""
        if self.is_cuda:
            self.torch.cuda.empty_cache()

    def _pool(self, dtype: Any) -> Tensor:
        name = str(dtype)
        if name not in self._pools:
            drawn = self._drawn(dtype, RANDOM_ELEMENTS)
            times = max(int(self.pool_bytes // (drawn.numel() * drawn.element_size())), 1)
            self._pools[name] = _repeated(self.torch, drawn, times)
        return self._pools[name]

    def _drawn(self, dtype: Any, count: int) -> Tensor:
        torch = self.torch
        generator = torch.Generator(device=self.kind).manual_seed(20261121)
        if dtype == torch.int8:
            return torch.randint(-127, 128, (count,), dtype=torch.int8, device=self.kind, generator=generator)
        values = torch.randn(count, dtype=torch.float32, device=self.kind, generator=generator)
        return values.to(dtype)


def _repeated(torch: Any, drawn: Tensor, times: int) -> Tensor:
    """Return ``times`` repeats; 8-bit floats, which not every device can repeat, are repeated as bytes."""
    if drawn.element_size() == 1:
        return drawn.view(torch.uint8).repeat(times).view(drawn.dtype)
    return drawn.repeat(times)


def open_device(kind: str | None) -> TorchDevice:
    """Return the device to measure: the first GPU, or the CPU if there is none or the CPU was requested.

    Raises:
        UsageError: PyTorch is missing, or finds no GPU although one was requested.
    """
    torch = import_torch()
    has_gpu = bool(torch.cuda.is_available())
    if kind == "cuda" and not has_gpu:
        raise UsageError("PyTorch sees no GPU", key="--device", value="cuda", remedy="try --device cpu")
    if has_gpu and kind != "cpu":
        return _cuda(torch)
    return TorchDevice(
        torch=torch,
        kind="cpu",
        name=_processor(),
        cache_bytes=_cpu_cache(),
        total_memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        num_multiprocessors=int(torch.get_num_threads()),
    )


def _cuda(torch: Any) -> TorchDevice:
    properties = torch.cuda.get_device_properties(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    return TorchDevice(
        torch=torch,
        kind="cuda",
        name=str(properties.name),
        cache_bytes=float(getattr(properties, "L2_cache_size", 0) or DEFAULT_CACHE_BYTES),
        total_memory=float(properties.total_memory),
        num_multiprocessors=int(properties.multi_processor_count),
        compute_capability=f"{properties.major}.{properties.minor}",
        flash_attention=_activate_flash_attention(torch, int(properties.major)),
        smi_id=_smi_id(str(getattr(properties, "uuid", ""))),
    )


def _activate_flash_attention(torch: Any, generation: int) -> str:
    """Let PyTorch call the flash attention that engines run on a GPU of this generation, and return which it calls.

    FlashAttention-3 on Hopper, 4 on Blackwell, where the package is installed; paged KV needs one of them. cuDNN's
    attention is disabled, as PyTorch would still prefer it there.
    """
    wanted = NEWER_FLASH_ATTENTION.get(generation)
    if wanted is None:
        return "FA2"
    try:
        from torch.nn.attention import activate_flash_attention_impl

        activate_flash_attention_impl(wanted)
    except (ImportError, ValueError, RuntimeError):
        return "FA2"
    torch.backends.cuda.enable_cudnn_sdp(False)
    return wanted


def _smi_id(uuid: str) -> str:
    """Return nvidia-smi's name for the GPU of an identifier; the first GPU where PyTorch knows no identifier."""
    return f"GPU-{uuid}" if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) else "0"


def _processor() -> str:
    """Return the name of the CPU."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cpu_cache() -> float:
    """Return the largest cache of the first core, bytes; 32 MB where the system does not report it."""
    sizes = [32e6]
    for file in Path(CPU_CACHE_FILE).glob("index*/size"):
        try:
            text = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text[:-1].isdigit():
            sizes.append(float(text[:-1]) * {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30}.get(text[-1], 1.0))
    return max(sizes)


def available_memory(total: float) -> float:
    """Return the bytes of host memory that are free or can be freed; half of all where the system reports none."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.5 * total
    free = [float(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:")]
    return free[0] if free else 0.5 * total


def describe(device: TorchDevice) -> dict[str, Any]:
    """Return what a reader of the measurements must know about the device and its software."""
    torch = device.torch
    facts: dict[str, Any] = {
        "kind": device.kind,
        "name": device.name,
        "num_multiprocessors": device.num_multiprocessors,
        "cache_bytes": device.cache_bytes,
        "total_memory_bytes": device.total_memory,
        "torch": str(torch.__version__),
    }
    if device.is_cuda:
        facts |= {
            "num_devices": int(torch.cuda.device_count()),
            "compute_capability": device.compute_capability,
            "flash_attention": device.flash_attention,
            "cuda": getattr(torch.version, "cuda", None),
            "hip": getattr(torch.version, "hip", None),
            "driver": _smi_line("driver_version", device.smi_id),
            "power_limit_w": _smi_line("power.limit", device.smi_id),
        }
    return facts


def read_clocks(smi_id: str = "0") -> dict[str, str] | None:
    """Return clocks, temperature, power and reasons for throttling of a GPU, or None without nvidia-smi."""
    for reason in REASON_FIELDS:
        line = _smi_line(",".join((*CLOCK_FIELDS, reason)), smi_id)
        values = [] if line is None else [value.strip() for value in line.split(",")]
        if len(values) == len(CLOCK_FIELDS) + 1:
            return dict(zip((*CLOCK_FIELDS, "reasons"), values, strict=True))
    return None


def _smi_line(fields: str, smi_id: str) -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={smi_id}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return str(done.stdout).strip() or None if done.returncode == 0 else None
