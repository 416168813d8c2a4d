"""Weights that are written out in 16 bit before a plain product reads them: bitsandbytes, GPTQ of 3 bits, GGUF.

Knows bytes and a GPU; which formats do so, and from how many rows, is `simserve.perf.quantization`'s.
"""

from __future__ import annotations

import numpy as np

from simserve.perf.efficiency import Array, Machine, memory_efficiency, start_latency
from simserve.perf.operators import HOST, PART_NAMES, WEIGHTS
from simserve.perf.quantization import Precision


def unpacking_parts(precision: Precision, machine: Machine, num_weights: float, rows: Array) -> Array:
    """Return the seconds by part of one kernel that reads packed weights and writes them in 16 bit.

    ``(packed + 16-bit bytes) / bandwidth`` at the share of it that element-wise kernels reach, once or for every
    `Precision.unpacked_rows`; nothing below `Precision.unpacked_from_rows`.
    """
    parts = np.zeros((len(PART_NAMES), len(rows)))
    times = _is_unpacked(precision, rows)
    if precision.unpacked_rows is not None:
        times = times * np.ceil(rows / precision.unpacked_rows)
    moved = num_weights * (precision.weight_bits + precision.unpacked_bits) / 8
    parts[WEIGHTS] = times * moved / (machine.bandwidth * memory_efficiency(machine, "elementwise"))
    parts[HOST] = times * start_latency(machine, "elementwise")
    return parts


def unpacked_parts(
    precision: Precision, machine: Machine, num_weights: float, rows: Array, packed: Array, plain: Array
) -> Array:
    """Return the seconds by part of a linear layer: packed kernel below the switch, unpacking and plain one above.

    Args:
        precision: The format.
        machine: The GPU.
        num_weights: Weights of the matrix on the rank.
        rows: Tokens m.
        packed: Parts of the kernel that unpacks inside, ``[5, rows]``.
        plain: Parts of the 16-bit kernel, ``[5, rows]``.
    """
    above = unpacking_parts(precision, machine, num_weights, rows) + plain
    return np.where(_is_unpacked(precision, rows), above, packed)


def _is_unpacked(precision: Precision, rows: Array) -> Array:
    switch = np.inf if precision.unpacked_from_rows is None else float(precision.unpacked_from_rows)
    return np.asarray(rows >= switch, dtype=np.float64)
