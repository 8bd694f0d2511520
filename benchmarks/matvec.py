"""A single row times a matrix, the work of decoding one text: NumPy's BLAS and torch's, as stored here and there.

    python benchmarks/matvec.py [--threads 1] [--width 384] [--json]

The matrices are those of six Transformer blocks, read one after the other, so that they come from memory and not from
a cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

REPEATS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != str(arguments.threads):  # NumPy reads it once, when it is loaded
        os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(arguments.threads)

    width = arguments.width
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * 6
    tall = [torch.randn(inputs, outputs) for inputs, outputs in shapes]
    wide = [matrix.T.contiguous() for matrix in tall]
    rows = {size: torch.randn(1, size) for size in (width, 4 * width)}
    ways: dict[str, Callable[[], object]] = {
        "numpy, (in, out)": lambda: [np.dot(rows[len(m)].numpy()[0], m.numpy()) for m in tall],
        "torch, (in, out)": lambda: [rows[len(m)] @ m for m in tall],
        "torch, (out, in)": lambda: [F.linear(rows[m.shape[1]], m) for m in wide],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode():
        for _ in range(REPEATS):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - began)
    size = 4 * sum(inputs * outputs for inputs, outputs in shapes)
    speeds = {name: size / statistics.median(times) / 1e9 for name, times in seconds.items()}
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "gigabytes_per_second": speeds}, indent=2))
        return
    for name, speed in speeds.items():
        ratio = speeds["numpy, (in, out)"] / speed
        print(f"{name:18} {speed:6.1f} GB/s   numpy is {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
