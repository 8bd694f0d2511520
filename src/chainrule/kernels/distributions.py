"""Measures of distributions over a large vocabulary, compiled by Numba: all of them in one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import OPTIONS, exponential
from chainrule.kernels.caching import entry
from chainrule.kernels.products import vector

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

BLOCK = 1024  # values whose average stays in the fastest cache


def exported(function: Any) -> Any:
    return entry(function, **OPTIONS)


@exported
def measures(
    addresses: npt.NDArray[np.int64], rows: int, size: int, found: npt.NDArray[np.float64], like: Floats
) -> None:
    """Of the log-probabilities (rows, size) at each of P addresses: entropy, maximum, divergence from their mean.

    `found` is (rows, P, 3). The divergence is the sum of p (log p − the mean over all P of log p).
    """
    parts = len(addresses)
    mean = np.empty(BLOCK, like.dtype)
    width = like.itemsize * size
    for row in range(rows):
        found[row] = 0.0
        found[row, :, 1] = -np.inf
        for first in range(0, size, BLOCK):
            count = min(BLOCK, size - first)
            mean[:] = like.dtype.type(0)
            for part in range(parts):
                values = vector(addresses[part] + row * width, size, like)[first : first + count]
                for index in range(count):
                    mean[index] += values[index]
            for part in range(parts):
                values = vector(addresses[part] + row * width, size, like)[first : first + count]
                negative_entropy, crossed, highest = like.dtype.type(0), like.dtype.type(0), values[0]
                for index in range(count):
                    probability = exponential(values[index])
                    negative_entropy += probability * values[index]
                    crossed += probability * mean[index]
                for index in range(count):
                    highest = values[index] if values[index] > highest else highest
                found[row, part, 0] -= negative_entropy
                found[row, part, 1] = max(found[row, part, 1], highest)
                found[row, part, 2] += negative_entropy - crossed / parts
