"""Choosing the next token of one row, compiled: `decoding.sampling.choose` without a repetition penalty."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import compiled, exponential

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]


@compiled
def log_probability(logits: Floats, token: int) -> float:
    """The log-probability of a token under the model's own distribution; NaN if the logits have one."""
    highest = logits[0]
    for index in range(len(logits)):
        highest = max(highest, logits[index])
    total, wrong = 0.0, 0
    for index in range(len(logits)):
        total += float(exponential(logits[index] - highest))  # of NaN, it is a number
        wrong += logits[index] != logits[index]
    if wrong > 0:
        return math.nan
    return float(logits[token]) - float(highest) - math.log(total)


@compiled
def choose(logits: Floats, noise: npt.NDArray[np.float64], rules: npt.NDArray[np.float64], suppressed: Integers) -> int:
    """A sample after temperature, top-k, top-p and min-p; the most probable token without noise or temperature."""
    size = len(logits)
    temperature, top_k, top_p, min_p = rules
    greedy = len(noise) == 0 or temperature == 0.0
    if greedy and len(suppressed) == 0:
        best = 0
        for index in range(size):
            if logits[index] > logits[best]:
                best = index
        return best
    scores = np.empty(size, np.float64)
    for index in range(size):
        scores[index] = logits[index] if greedy or temperature == 1.0 else logits[index] / temperature
    for index in suppressed:
        scores[index] = -np.inf
    if not greedy:
        if 0 < top_k < size:
            smallest = np.partition(scores, size - int(top_k))[size - int(top_k)]
            for index in range(size):
                if scores[index] < smallest:
                    scores[index] = -np.inf
        if 0.0 < top_p < 1.0:
            _keep_top_p(scores, top_p)
        if min_p > 0.0:
            lowest = scores.max() + math.log(min_p)
            for index in range(size):
                if scores[index] < lowest:
                    scores[index] = -np.inf
        for index in range(size):
            scores[index] += noise[index]
    best = 0
    for index in range(size):
        if scores[index] > scores[best]:
            best = index
    return best


@compiled
def _keep_top_p(scores: npt.NDArray[np.float64], mass: float) -> None:
    """Keep the fewest most probable tokens whose probabilities reach `mass`; ties are ordered by id."""
    order = np.argsort(-scores, kind="mergesort")
    highest, total = scores[order[0]], 0.0
    for index in range(len(scores)):
        total += math.exp(scores[index] - highest)
    before = 0.0
    for rank in range(len(order)):
        probability = math.exp(scores[order[rank]] - highest) / total
        if before >= mass:
            scores[order[rank]] = -np.inf
        before += probability
