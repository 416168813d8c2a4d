"""PyTorch's norms, rotary embedding, activation, sampling and copies, each of a few launches."""

from __future__ import annotations

from collections.abc import Callable

from simserve.calibrate.kernels.cpu_engine import CpuEngine
from simserve.calibrate.kernels.kernel import CHECKED_ROWS, Kernel, relative_error, spread_indices
from simserve.calibrate.kernels.points import Point
from simserve.calibrate.kernels.torch_device import Tensor, TorchDevice

EPSILON = 1e-5
TOLERANCE = 0.02
CERTAIN = 1e3  # Logit of a token that is drawn whatever the noise; all other logits are 0.


def elementwise(point: Point, device: TorchDevice) -> Kernel:
    """Return one of the memory-bound kernels of a layer or of sampling."""
    return _OPERATORS[str(point.sizes["op_name"])](point, device)


def copy(point: Point, device: TorchDevice) -> Kernel:
    """Return a copy of bytes within the device's memory."""
    torch, size = device.torch, int(point.sizes["bytes"])
    target = torch.empty(size, dtype=torch.int8, device=device.kind)
    copies = device.num_copies(float(size))

    def call(number: int) -> Tensor:
        return target.copy_(device.random(torch.int8, (size,), number))

    def error() -> float:
        target.zero_()
        return 0.0 if torch.equal(call(0), device.random(torch.int8, (size,))) else float("inf")

    return Kernel(call=call, copies=copies, error=error, tolerance=0.0, source="torch copy_")


def _rms_norm(point: Point, device: TorchDevice) -> Kernel:
    torch = device.torch
    rows, width = _shape(point)
    weight = device.fresh(torch.bfloat16, (width,))

    def call(number: int) -> Tensor:
        return torch.nn.functional.rms_norm(
            device.random(torch.bfloat16, (rows, width), number), (width,), weight, EPSILON
        )

    def truth(x: Tensor) -> Tensor:
        wide = x.double()
        return wide * (wide.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt() * weight.double()

    return _by_rows(point, device, call, truth, "torch rms_norm")


def rotary_angles(device: TorchDevice, rows: int, head: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of positions 1 to ``rows``, to multiply by heads: ``[rows, 1, head]``."""
    torch = device.torch
    frequencies = 10000.0 ** (-torch.arange(0, head, 2, device=device.kind, dtype=torch.float32) / head)
    places = torch.arange(1, rows + 1, device=device.kind, dtype=torch.float32)
    angles = places.unsqueeze(1) * frequencies
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)


def rotated(device: TorchDevice, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return heads rotated by position: a product, a negation of half, a concatenation, a product and a sum."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + device.torch.cat((-second, first), dim=-1) * sine


def _rotary(point: Point, device: TorchDevice) -> Kernel:
    torch = device.torch
    rows, width = _shape(point)
    head = int(point.sizes["head_dim"])
    cosine, sine = rotary_angles(device, rows, head)

    def call(number: int) -> Tensor:
        x = device.random(torch.bfloat16, (rows, width // head, head), number)
        return rotated(device, x, cosine, sine).view(rows, width)

    def truth(x: Tensor) -> Tensor:
        picked = spread_indices(rows, CHECKED_ROWS)
        wide = x.double().view(len(picked), width // head, head)
        return rotated(device, wide, cosine[picked].double(), sine[picked].double()).view(len(picked), width)

    return _by_rows(point, device, call, truth, "torch mul, neg, cat, mul, add")


def _add(point: Point, device: TorchDevice) -> Kernel:
    """The residual."""
    torch = device.torch
    rows, width = _shape(point)

    def call(number: int) -> Tensor:
        state, residual = device.random(torch.bfloat16, (rows, 2 * width), number).chunk(2, dim=-1)
        return state + residual

    def truth(x: Tensor) -> Tensor:
        return x[:, :width].double() + x[:, width:].double()

    return _by_rows(point, device, call, truth, "torch add", columns=2 * width)


def _silu_and_mul(point: Point, device: TorchDevice) -> Kernel:
    torch = device.torch
    rows, width = _shape(point)

    def call(number: int) -> Tensor:
        gate, up = device.random(torch.bfloat16, (rows, 2 * width), number).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def truth(x: Tensor) -> Tensor:
        gate, up = x.double().chunk(2, dim=-1)
        return gate * torch.sigmoid(gate) * up

    return _by_rows(point, device, call, truth, "torch silu, mul", columns=2 * width)


def _sampling(point: Point, device: TorchDevice) -> Kernel:
    """Softmax of the logits in FP32 and the most likely token; an engine's own kernel draws randomly, as servers do."""
    torch = device.torch
    rows, width = _shape(point)
    copies = device.num_copies(2.0 * rows * width)
    if device.engine is not None and device.engine.has_sampling:
        return _drawing(device, device.engine, rows, width, copies)

    def call(number: int) -> Tensor:
        logits = device.random(torch.bfloat16, (rows, width), number).float()
        return logits.softmax(dim=-1).max(dim=-1)

    def error() -> float:
        result = call(0)
        picked = spread_indices(rows, CHECKED_ROWS)
        truth = device.random(torch.bfloat16, (rows, width))[picked].double().softmax(dim=-1).max(dim=-1).values
        return relative_error(result.values[picked], truth)

    return Kernel(call=call, copies=copies, error=error, tolerance=1e-3, source="torch softmax, max")


def _drawing(device: TorchDevice, engine: CpuEngine, rows: int, width: int, copies: int) -> Kernel:
    """Tokens drawn by their logits (Gumbel noise, one seed per row); in the check, one token per row always wins."""
    torch = device.torch

    def call(number: int) -> Tensor:
        seeds = torch.randint(0, 2**31, (rows,), dtype=torch.long)
        return engine.sample(device.random(torch.bfloat16, (rows, width), number).float(), seeds)

    def error() -> float:
        certain = torch.arange(rows) * (width - 1) // max(rows - 1, 1)
        logits = torch.zeros((rows, width)).scatter_(1, certain[:, None], CERTAIN)
        is_right = bool((engine.sample(logits, torch.arange(rows)).view(-1) == certain).all())
        drawn = call(0).view(-1)
        return 0.0 if is_right and bool(((drawn >= 0) & (drawn < width)).all()) else float("inf")

    return Kernel(call=call, copies=copies, error=error, tolerance=0.0, source=f"{engine.name} fused_gumbel_argmax")


def _by_rows(
    point: Point,
    device: TorchDevice,
    call: Callable[[int], Tensor],
    truth: Callable[[Tensor], Tensor],
    source: str,
    columns: int | None = None,
) -> Kernel:
    """Return a kernel whose rows are independent, with a check of some of them."""
    rows, width = _shape(point)
    shape = (rows, columns or width)

    def error() -> float:
        picked = spread_indices(rows, CHECKED_ROWS)
        inputs = device.random(device.torch.bfloat16, shape)[picked]
        return relative_error(call(0)[picked], truth(inputs))

    copies = device.num_copies(2.0 * shape[0] * shape[1])
    return Kernel(call=call, copies=copies, error=error, tolerance=TOLERANCE, source=source)


def _shape(point: Point) -> tuple[int, int]:
    return int(point.sizes["m"]), int(point.sizes["width"])


_OPERATORS: dict[str, Callable[[Point, TorchDevice], Kernel]] = {
    "rms_norm": _rms_norm,
    "rotary": _rotary,
    "add": _add,
    "silu_and_mul": _silu_and_mul,
    "sampling": _sampling,
}
