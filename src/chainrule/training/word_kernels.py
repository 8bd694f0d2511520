"""The same steps compiled by Numba: word by word, each word's step an exact gradient step of its own loss.

A word touches a few dozen rows, so that all of them are in the fastest cache from the first product to the last. No
lock is held: threads that work on different stretches of a text may write to the same row at once, and what is lost by
that is as good as nothing (Recht et al. 2011, "Hogwild!").
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

compiled = numba.njit(nogil=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, cache=True, error_model="numpy")


@compiled
def pull(
    hidden: Floats,
    table: Floats,
    rows: Integers,
    positives: int,
    count: int,
    weight: float,
    rate: float,
    pulls: Floats,
    error: Floats,
) -> float:
    """One hidden vector against `count` rows of a table, of which the first are text and the rest noise.

    The rows move, `error` becomes what the hidden vector is to move by, and the loss is given. `pulls` is room to work.
    """
    width = len(hidden)
    outside, inside = 0.0, 1.0  # −log σ(s) = max(−s, 0) + log(1 + exp(−|s|)); the logarithms are taken together
    loss = 0.0
    for place in range(count):
        row = rows[place]
        score = np.float32(0.0)
        for d in range(width):
            score += hidden[d] * table[row, d]
        if place == positives:
            loss, outside, inside = outside + math.log(inside), 0.0, 1.0
        tail = math.exp(-abs(score))
        high = np.float32(1.0) / (np.float32(1.0) + tail)  # σ(|s|)
        chance = high if score >= 0.0 else tail * high
        inside *= 1.0 + tail
        if place < positives:
            outside += max(-score, np.float32(0.0))
            pulls[place] = rate * (np.float32(1.0) - chance)
        else:
            outside += max(score, np.float32(0.0))
            pulls[place] = -rate * weight * chance
    loss += weight * (outside + math.log(inside))
    error[:] = 0.0
    for place in range(count):
        row, strength = rows[place], pulls[place]
        for d in range(width):
            error[d] += strength * table[row, d]
    for place in range(count):
        row, strength = rows[place], pulls[place]
        for d in range(width):
            table[row, d] += strength * hidden[d]
    return loss


@compiled
def skip_gram(
    inputs: Floats,
    outputs: Floats,
    words: Integers,
    left: Integers,
    right: Integers,
    noise: Integers,
    block: int,
    negatives: float,
    rate: float,
) -> float:
    """A lesson; the loss of every word is that before its step."""
    width, count = inputs.shape[1], len(words)
    hidden, error = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    longest = block + (left.max() + right.max() if count else 0)
    rows, pulls = np.empty(longest, dtype=np.int64), np.empty(longest, dtype=np.float32)
    total = 0.0
    for place in range(count):
        pairs = left[place] + right[place]
        if pairs == 0:
            continue
        filled = 0
        for near in range(place - left[place], place + right[place] + 1):
            if near != place:
                rows[filled] = words[near]
                filled += 1
        begin = place - place % block
        shared = min(block, count - begin)
        for other in range(begin, begin + shared):
            rows[filled] = noise[other]
            filled += 1
        word = words[place]
        for d in range(width):
            hidden[d] = inputs[word, d]
        weight = negatives * pairs / shared
        total += pull(hidden, outputs, rows, pairs, filled, np.float32(weight), np.float32(rate), pulls, error)
        for d in range(width):
            inputs[word, d] += error[d]
    return total


@compiled
def cbow(
    inputs: Floats,
    outputs: Floats,
    words: Integers,
    left: Integers,
    right: Integers,
    noise: Integers,
    block: int,
    negatives: float,
    rate: float,
) -> float:
    """A lesson; the loss of every word is that before its step."""
    width, count = inputs.shape[1], len(words)
    hidden, error = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    rows, pulls = np.empty(1 + block, dtype=np.int64), np.empty(1 + block, dtype=np.float32)
    total = 0.0
    for place in range(count):
        pairs = left[place] + right[place]
        if pairs == 0:
            continue
        share = np.float32(1.0 / pairs)
        hidden[:] = 0.0
        for near in range(place - left[place], place + right[place] + 1):
            if near != place:
                word = words[near]
                for d in range(width):
                    hidden[d] += share * inputs[word, d]
        rows[0] = words[place]
        begin = place - place % block
        shared = min(block, count - begin)
        for other in range(shared):
            rows[1 + other] = noise[begin + other]
        weight = negatives / shared
        total += pull(hidden, outputs, rows, 1, 1 + shared, np.float32(weight), np.float32(rate), pulls, error)
        for near in range(place - left[place], place + right[place] + 1):
            if near != place:
                word = words[near]
                for d in range(width):
                    inputs[word, d] += share * error[d]
    return total
