"""How long the communication of a training step takes, and how much of it computation hides.

A collective takes a latency per call and a time per byte. GPUs communicate by a ring beside their computation.
Processes on a CPU compute with the cores that also move the bytes and sum them, so that nothing is hidden; their
numbers are measured (`benchmarks/distributed.py`), and the computation of FSDP has its copying of blocks in it.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

LATENCY = 20e-6  # seconds of one call between GPUs
BUCKET = 25 << 20  # bytes of gradients that DDP sums in one call
FIRST_BUCKET = 1 << 20


class Collective(NamedTuple):
    """One kind of communication between all processes."""

    latency: float  # seconds per call
    bandwidth: float  # bytes per second, of the whole tensor

    def seconds(self, size: float, calls: int) -> float:
        return calls * self.latency + size / self.bandwidth


class Network(NamedTuple):
    """What connects the processes."""

    all_reduce: Collective
    all_gather: Collective
    reduce_scatter: Collective
    overlaps: bool = True  # whether processes compute meanwhile

    @classmethod
    def ring(cls, processes: int, bandwidth: float, latency: float = LATENCY) -> Self:
        """Each of the processes sends and receives `bandwidth` bytes per second: 1/n of a tensor n − 1 times."""
        whole = bandwidth * processes / (processes - 1)
        return cls(Collective(latency, whole / 2), Collective(latency, whole), Collective(latency, whole))


class StepTime(NamedTuple):
    """Seconds of a step: its computation, its communication, and both with what overlaps."""

    compute: float
    communication: float
    seconds: float


def replicated_step(compute: float, size: float, pieces: int, network: Network) -> StepTime:
    """DDP: gradients of `size` bytes are summed in buckets during the backward pass of the last of the pieces."""
    buckets = 1 + math.ceil(max(0.0, size - FIRST_BUCKET) / BUCKET)
    communication = network.all_reduce.seconds(size, buckets)
    hidden = compute * 2 / 3 / pieces if network.overlaps else 0.0
    return StepTime(compute, communication, compute + max(0.0, communication - hidden))


def sharded_step(compute: float, size: float, rest: float, blocks: int, pieces: int, network: Network) -> StepTime:
    """FSDP: weights are gathered block by block in both passes of every piece, gradients scattered in the last one.

    Of the `size`, `rest` bytes are in no block: they are gathered once per piece, and kept until the backward pass.
    """
    gathering = pieces * network.all_gather.seconds(2 * size - rest, 2 * blocks + 1)
    communication = gathering + network.reduce_scatter.seconds(size, blocks + 1)
    hidden = (1 - 1 / blocks) * compute if network.overlaps else 0.0  # all but the first block
    return StepTime(compute, communication, compute + max(0.0, communication - hidden))
