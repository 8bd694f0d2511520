"""Figures of hardware for `chainrule plan`, as their makers state them. Speeds are those of dense bfloat16 products.

Sources: NVIDIA's data sheets of V100, A100, H100, H200, L40S, A10 and RTX 4090. Bandwidths are per GPU and direction:
NVLink within a machine, or PCI Express where there is none; between machines a network of 200 Gbit/s per GPU, the
usual InfiniBand HDR, unless --network says otherwise. Prices are round figures of on-demand clouds, for comparison
only; --price replaces them.
"""

from __future__ import annotations

from typing import NamedTuple

GB = 1e9
NETWORK = 25 * GB  # bytes per second and GPU, between machines
PER_MACHINE = 8  # GPUs


class Accelerator(NamedTuple):
    """One GPU."""

    memory: float  # bytes
    operations: float  # per second, bfloat16 (float16 for V100)
    bandwidth: float  # bytes per second to the other GPUs of a machine, in one direction
    price: float  # dollars per hour


ACCELERATORS = {
    "V100": Accelerator(32 * GB, 125e12, 150 * GB, 1.0),
    "A10": Accelerator(24 * GB, 125e12, 32 * GB, 0.8),
    "RTX4090": Accelerator(24 * GB, 165e12, 32 * GB, 0.5),
    "L40S": Accelerator(48 * GB, 362e12, 32 * GB, 1.2),
    "A100": Accelerator(80 * GB, 312e12, 300 * GB, 1.8),
    "A100-40GB": Accelerator(40 * GB, 312e12, 300 * GB, 1.5),
    "H100": Accelerator(80 * GB, 989e12, 450 * GB, 2.5),
    "H200": Accelerator(141 * GB, 989e12, 450 * GB, 3.5),
}
