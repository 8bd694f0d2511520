"""Matrix-vector products, the work of single-row decoding: BLAS of NumPy and of torch, in both memory layouts.

    python benchmarks/matvec.py [--threads 1] [--width 384] [--json]

The matrices are those of six Transformer blocks in sequence, so that they are read from memory and not from a cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from timing import set_threads

REPEATS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    set_threads(arguments.threads)

    width = arguments.width
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * 6
    tall = [torch.randn(inputs, outputs) for inputs, outputs in shapes]
    wide = [matrix.T.contiguous() for matrix in tall]
    rows = {size: torch.randn(1, size) for size in (width, 4 * width)}
    variants: dict[str, Callable[[], object]] = {
        "numpy, (in, out)": lambda: [np.dot(rows[len(m)].numpy()[0], m.numpy()) for m in tall],
        "torch, (in, out)": lambda: [rows[len(m)] @ m for m in tall],
        "torch, (out, in)": lambda: [F.linear(rows[m.shape[1]], m) for m in wide],
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    with torch.inference_mode():
        for _ in range(REPEATS):
            for name, multiply in variants.items():
                began = time.perf_counter()
                multiply()
                seconds[name].append(time.perf_counter() - began)
    size = 4 * sum(inputs * outputs for inputs, outputs in shapes)
    speeds = {name: size / statistics.median(times) / 1e9 for name, times in seconds.items()}
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "gigabytes_per_second": speeds}, indent=2))
        return
    for name, speed in speeds.items():
        ratio = speeds["numpy, (in, out)"] / speed
        print(f"{name:18} {speed:6.1f} GB/s   numpy: {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
