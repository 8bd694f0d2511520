"""Implementations of the gated linear recurrence h_t = a_t ∘ h_{t−1} + b_t, forward and backward.

    python benchmarks/scan.py [--threads 1] [--repeats 9] [--json]

Ours against a plain loop with autograd, a scan by doubling (log₂ T passes over all steps; Hillis & Steele, 1986) and
cumulative products in log space, in chunks of 16 to prevent underflow. Medians of processor time, interleaved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from chainrule.nn.scan import naive, scan
from chainrule.training.process import keep_freed_memory

SHAPES = [(16, 128, 256), (32, 64, 256), (64, 32, 256), (512, 1, 256), (2048, 1, 128), (2048, 8, 256)]
CHUNK = 16


def doubling(decay: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    hidden = torch.cat([torch.addcmul(inputs[0], decay[0], first)[None], inputs[1:]])
    distance = 1
    while distance < len(inputs):
        hidden = torch.cat([hidden[:distance], torch.addcmul(hidden[distance:], decay[distance:], hidden[:-distance])])
        decay = torch.cat([decay[:distance], decay[distance:] * decay[:-distance]])
        distance *= 2
    return hidden


def log_space(decay: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    parts = []
    for a, b in zip(decay.split(CHUNK), inputs.split(CHUNK), strict=True):
        product = a.log().cumsum(0).exp()
        parts.append(product * (first + (b / product).cumsum(0)))
        first = parts[-1][-1]
    return torch.cat(parts)


IMPLEMENTATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ours": scan,
    "loop": naive,
    "doubling": doubling,
    "log space": log_space,
}


def measure(shape: tuple[int, int, int], repeats: int) -> dict[str, float]:
    """Milliseconds of each implementation."""
    decay = torch.rand(shape).mul_(0.5).add_(0.49).requires_grad_()
    inputs, first = torch.randn(shape, requires_grad=True), torch.randn(shape[1:], requires_grad=True)
    seconds: dict[str, list[float]] = {name: [] for name in IMPLEMENTATIONS}
    for _ in range(repeats + 1):
        for name, implementation in IMPLEMENTATIONS.items():
            began = time.process_time()
            torch.autograd.grad(implementation(decay, inputs, first).sum(), (decay, inputs, first))
            seconds[name].append(time.process_time() - began)
    return {name: 1000 * statistics.median(found[1:]) for name, found in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    keep_freed_memory()
    found = [measure(shape, arguments.repeats) for shape in SHAPES]
    if arguments.json:
        rows = [{"shape": shape, "milliseconds": times} for shape, times in zip(SHAPES, found, strict=True)]
        print(json.dumps({"threads": arguments.threads, "torch": torch.__version__, "rows": rows}, indent=2))
        return
    print(
        f"{'steps, rows, width':22}" + "".join(f"{name:>12}" for name in IMPLEMENTATIONS) + "   (ms of processor time)"
    )
    for shape, times in zip(SHAPES, found, strict=True):
        print(f"{shape!s:22}" + "".join(f"{times[name]:12.2f}" for name in IMPLEMENTATIONS))


if __name__ == "__main__":
    main()
