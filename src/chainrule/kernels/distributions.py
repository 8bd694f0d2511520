"""Mixtures and ensembles of distributions, and the features of their gates, compiled by Numba.

Distributions are log-probabilities at addresses. All measures of a distribution are computed in one pass over memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import OPTIONS, compiled, exponential, log_softmax, logarithm
from chainrule.kernels.caching import entry
from chainrule.kernels.registers import vector

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

BLOCK = 1024  # values whose average stays in the fastest cache
MAX_SURPRISAL = 20.0  # nats, bound on features of tokens that are impossible under a part


def exported(function: Any) -> Any:
    return entry(function, **OPTIONS)


@compiled
def _measure(addresses: Integers, size: int, found: npt.NDArray[np.float64], mean: Floats, like: Floats) -> None:
    """Entropy, maximum and divergence (P, 3) of the distributions; `mean` is working memory of BLOCK numbers."""
    parts = len(addresses)
    found[:] = 0.0
    found[:, 1] = -np.inf
    for first in range(0, size, BLOCK):
        count = min(BLOCK, size - first)
        mean[:] = like.dtype.type(0)
        for part in range(parts):
            values = vector(addresses[part], size, like)[first : first + count]
            for index in range(count):
                mean[index] += values[index]
        for part in range(parts):
            values = vector(addresses[part], size, like)[first : first + count]
            negative_entropy, crossed, highest = like.dtype.type(0), like.dtype.type(0), values[0]
            for index in range(count):
                probability = exponential(values[index])
                negative_entropy += probability * values[index]
                crossed += probability * mean[index]
            for index in range(count):
                highest = values[index] if values[index] > highest else highest
            found[part, 0] -= negative_entropy
            found[part, 1] = max(found[part, 1], highest)
            found[part, 2] += negative_entropy - crossed / parts


@exported
def measures(
    addresses: npt.NDArray[np.int64], rows: int, size: int, found: npt.NDArray[np.float64], like: Floats
) -> None:
    """Of the log-probabilities (rows, size) at each of P addresses: entropy, maximum, divergence from their mean.

    `found` is (rows, P, 3). The divergence is the sum of p (log p − the mean over all P of log p).
    """
    mean = np.empty(BLOCK, like.dtype)
    for row in range(rows):
        _measure(addresses + row * like.itemsize * size, size, found[row], mean, like)


@compiled
def gate_features(
    out: int,
    addresses: Integers,
    size: int,
    token: int,
    means: int,
    decays: int,
    mean: int,
    deviation: int,
    count: int,
    like: Floats,
) -> None:
    """The standardised features of a context gate, and its running means (P, `count`), which read a token.

    `addresses` (2 P,) are the predictions of that token and those of the next.
    """
    parts = len(addresses) // 2
    measured, working = np.empty((parts, 3)), np.empty(min(BLOCK, size), like.dtype)
    _measure(addresses[parts:], size, measured, working, like)
    features = vector(out, parts * (3 + count), like)
    running, decay = vector(means, parts * count, like), vector(decays, count, like)
    bound = like.dtype.type(MAX_SURPRISAL)
    for part in range(parts):
        features[3 * part] = measured[part, 0]
        features[3 * part + 1] = measured[part, 1]
        features[3 * part + 2] = min(like.dtype.type(measured[part, 2]), bound)
        past = max(vector(addresses[part], size, like)[token], -bound)
        for index in range(count):
            here = part * count + index
            running[here] = (like.dtype.type(1.0) - decay[index]) * past + running[here] * decay[index]
            features[3 * parts + here] = running[here]
    shifts, scales = vector(mean, len(features), like), vector(deviation, len(features), like)
    for index in range(len(features)):
        features[index] = (features[index] - shifts[index]) / scales[index]


@compiled
def log_mixture_of(out: int, addresses: Integers, scores: int, size: int, like: Floats) -> None:
    """The mixture log Σ_i softmax(s)_i P_i."""
    parts = len(addresses)
    weights, result = np.empty(parts, like.dtype), vector(out, size, like)
    log_softmax(weights.ctypes.data, scores, parts, 0.0, like)
    for part in range(parts):
        if weights[part] != weights[part]:
            result[:] = np.nan
            return
    highest = np.empty(BLOCK, like.dtype)
    for first in range(0, size, BLOCK):
        count = min(BLOCK, size - first)
        total = result[first : first + count]
        for index in range(count):
            highest[index] = -np.inf
            total[index] = like.dtype.type(0)
        for part in range(parts):
            values = vector(addresses[part], size, like)[first : first + count]
            for index in range(count):
                highest[index] = max(highest[index], values[index] + weights[part])
        for part in range(parts):
            values = vector(addresses[part], size, like)[first : first + count]
            for index in range(count):
                total[index] += exponential(values[index] + weights[part] - highest[index])
                total[index] += values[index] - values[index]  # NaN stays NaN
        for index in range(count):
            total[index] = highest[index] + logarithm(total[index])
    weights[0] = like[0]  # its last use: Numba frees an array after it, whatever still has its address


@compiled
def weighted_sum(out: int, addresses: Integers, weights: int, size: int, like: Floats) -> None:
    """Σ_i w_i log P_i, renormalised."""
    parts, result = len(addresses), vector(out, size, like)
    factors = vector(weights, parts, like)
    result[:] = like[0]
    for part in range(parts):
        values = vector(addresses[part], size, like)
        for index in range(size):
            result[index] += factors[part] * values[index]
    log_softmax(out, out, size, 0.0, like)
