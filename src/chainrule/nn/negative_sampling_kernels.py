"""Gradient steps of negative sampling compiled by Numba: one exact step per word, on the loss of that word.

A word touches a few dozen rows, which stay in the fastest cache from the first product to the last. There are no locks:
threads that work on different parts of a text may write to the same row at once, and the loss in quality is negligible
(Recht et al. 2011, "Hogwild!").

The loops are written for vectorisation: rows are processed four at a time, so that the hidden vector is read once for
four rows, and inner loops have no branches or calls.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

compiled = numba.njit(nogil=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, cache=True, error_model="numpy")

ONE, HALF, ZERO = np.float32(1.0), np.float32(0.5), np.float32(0.0)
LOG2_E, LOG_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
SMALLEST = np.float32(126.0)  # 2^−126 is the smallest normal float32


class Buffers(NamedTuple):
    """Working memory, reused for every word."""

    hidden: Floats  # (D,)
    error: Floats  # (D,) update of the hidden vector
    rows: Integers  # (O,) rows that it is scored with, and up to three more
    scores: Floats  # (O,)
    tails: Floats  # (O,) exp(−|score|)
    bits: npt.NDArray[np.int32]  # (O,)


@compiled
def allocate(width: int, count: int) -> Buffers:
    size = count + 3
    return Buffers(
        np.empty(width, dtype=np.float32),
        np.empty(width, dtype=np.float32),
        np.zeros(size, dtype=np.int64),
        np.empty(size, dtype=np.float32),
        np.empty(size, dtype=np.float32),
        np.empty(size, dtype=np.int32),
    )


@compiled
def step(table: Floats, positives: int, count: int, weight: np.float32, rate: np.float32, buffers: Buffers) -> float:
    """Score the hidden vector with `count` rows of a table: first the words of the text, then noise.

    Updates the rows, writes the update of the hidden vector to `buffers.error`, and returns the loss.
    """
    rows, scores = buffers.rows, buffers.scores
    rows[count : count + 3] = rows[0]  # padding to a multiple of four, which is ignored
    score(buffers.hidden, table, rows, count, scores)
    exponentials(scores, count, buffers.tails, buffers.bits)
    # −log σ(s) = max(−s, 0) + log(1 + exp(−|s|)); the logarithms of several are computed as one of their product.
    text, noise = (
        softplus_sum(scores, buffers.tails, 0, positives, -ONE),
        softplus_sum(scores, buffers.tails, positives, count, ONE),
    )
    for place in range(count):
        high = ONE / (ONE + buffers.tails[place])  # σ(|s|)
        low = high * buffers.tails[place]
        hit, miss = (high, low) if scores[place] >= ZERO else (low, high)
        scores[place] = rate * miss if place < positives else -rate * weight * hit
    scores[count : count + 3] = ZERO
    apply_pulls(buffers.hidden, table, rows, count, scores, buffers.error)
    return text + float(weight) * noise


@compiled
def score(hidden: Floats, table: Floats, rows: Integers, count: int, scores: Floats) -> None:
    for place in range(0, count, 4):
        a, b, c, d = rows[place], rows[place + 1], rows[place + 2], rows[place + 3]
        first, second, third, fourth = ZERO, ZERO, ZERO, ZERO
        for i in range(len(hidden)):
            first += hidden[i] * table[a, i]
            second += hidden[i] * table[b, i]
            third += hidden[i] * table[c, i]
            fourth += hidden[i] * table[d, i]
        scores[place], scores[place + 1], scores[place + 2], scores[place + 3] = first, second, third, fourth


@compiled
def exponentials(scores: Floats, count: int, tails: Floats, bits: npt.NDArray[np.int32]) -> None:
    """exp(−|s|) = 2^−n exp(z) with integer n and z in ±½ log 2, by its power series to float32 precision."""
    for place in range(count):
        exponent = min(abs(scores[place]) * LOG2_E, SMALLEST)
        whole = np.floor(exponent + HALF)
        z = (whole - exponent) * LOG_2
        series = ONE + z / np.float32(5) * (ONE + z / np.float32(6))
        series = ONE + z / np.float32(3) * (ONE + z / np.float32(4) * series)
        tails[place] = ONE + z * (ONE + z * HALF * series)
        bits[place] = (np.int32(127) - np.int32(whole)) << np.int32(23)  # the bit pattern of 2^−n
    powers = bits.view(np.float32)
    for place in range(count):
        tails[place] *= powers[place]


@compiled
def softplus_sum(scores: Floats, tails: Floats, begin: int, end: int, sign: np.float32) -> float:
    """−Σ log σ(−sign · s)."""
    outside, inside = 0.0, 1.0
    for place in range(begin, end):
        outside += max(sign * scores[place], ZERO)
        inside *= 1.0 + tails[place]
    return outside + math.log(inside)


@compiled
def apply_pulls(hidden: Floats, table: Floats, rows: Integers, count: int, pulls: Floats, error: Floats) -> None:
    """Compute the update of the hidden vector before any row changes, since a row may occur twice."""
    error[:] = ZERO
    for place in range(0, count, 4):
        a, b, c, d = rows[place], rows[place + 1], rows[place + 2], rows[place + 3]
        first, second, third, fourth = pulls[place], pulls[place + 1], pulls[place + 2], pulls[place + 3]
        for i in range(len(hidden)):
            error[i] += first * table[a, i] + second * table[b, i] + third * table[c, i] + fourth * table[d, i]
    for place in range(count):
        row, strength = rows[place], pulls[place]
        for i in range(len(hidden)):
            table[row, i] += strength * hidden[i]


@compiled
def add_noise(rows: Integers, filled: int, noise: Integers, begin: int, end: int) -> int:
    """Append the noise words of some words to the rows; return the number of rows."""
    for word in range(begin, end):
        for drawn in noise[word]:
            rows[filled] = drawn
            filled += 1
    return filled


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
    """Take a step for every word; return the summed loss before each step."""
    width, count = inputs.shape[1], len(words)
    buffers = allocate(width, noise.shape[1] * block + (left.max() + right.max() if count else 0))
    total = 0.0
    for place in range(count):
        pairs = left[place] + right[place]
        if pairs == 0:
            continue
        filled = 0
        for near in range(place - left[place], place + right[place] + 1):
            if near != place:
                buffers.rows[filled] = words[near]
                filled += 1
        begin = place - place % block
        filled = add_noise(buffers.rows, filled, noise, begin, min(begin + block, count))
        word = words[place]
        for i in range(width):
            buffers.hidden[i] = inputs[word, i]
        weight = np.float32(negatives * pairs / (filled - pairs))
        total += step(outputs, pairs, filled, weight, np.float32(rate), buffers)
        for i in range(width):
            inputs[word, i] += buffers.error[i]
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
    """Take a step for every word; return the summed loss before each step."""
    width, count = inputs.shape[1], len(words)
    buffers = allocate(width, noise.shape[1] * block + 1)
    total = 0.0
    for place in range(count):
        pairs = left[place] + right[place]
        if pairs == 0:
            continue
        share = np.float32(1.0 / pairs)
        buffers.hidden[:] = ZERO
        for near in range(place - left[place], place + right[place] + 1):
            if near != place:
                word = words[near]
                for i in range(width):
                    buffers.hidden[i] += share * inputs[word, i]
        buffers.rows[0] = words[place]
        begin = place - place % block
        filled = add_noise(buffers.rows, 1, noise, begin, min(begin + block, count))
        weight = np.float32(negatives / (filled - 1))
        total += step(outputs, 1, filled, weight, np.float32(rate), buffers)
        for near in range(place - left[place], place + right[place] + 1):
            if near != place:
                word = words[near]
                for i in range(width):
                    inputs[word, i] += share * buffers.error[i]
    return total
