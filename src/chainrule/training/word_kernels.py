"""The same steps compiled by Numba: word by word, each word's step an exact gradient step of its own loss.

A word touches a few dozen rows, so that all of them are in the fastest cache from the first product to the last. No
lock is held: threads that work on different stretches of a text may write to the same row at once, and what is lost by
that is as good as nothing (Recht et al. 2011, "Hogwild!").

The loops are written so that the compiler can make vector instructions of them: rows are gone through four at a time,
which reads the hidden vector once for all four, and there is no branch and no call inside.
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

ONE, HALF, NOTHING = np.float32(1.0), np.float32(0.5), np.float32(0.0)
LOG2_E, LOG_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
SMALLEST = np.float32(126.0)  # 2^−126 is the smallest number that a float spells in full


class Room(NamedTuple):
    """Room to work in, used again for every word."""

    hidden: Floats  # (D,)
    error: Floats  # (D,) what the hidden vector is to move by
    rows: Integers  # (O,) that it is scored with, and up to three more
    scores: Floats  # (O,)
    tails: Floats  # (O,) exp(−|score|)
    bits: npt.NDArray[np.int32]  # (O,)


@compiled
def room_for(width: int, count: int) -> Room:
    size = count + 3
    return Room(
        np.empty(width, dtype=np.float32),
        np.empty(width, dtype=np.float32),
        np.zeros(size, dtype=np.int64),
        np.empty(size, dtype=np.float32),
        np.empty(size, dtype=np.float32),
        np.empty(size, dtype=np.int32),
    )


@compiled
def pull(table: Floats, positives: int, count: int, weight: np.float32, rate: np.float32, room: Room) -> float:
    """The hidden vector against `count` rows of a table, of which the first are text and the rest noise.

    The rows move, `room.error` becomes what the hidden vector is to move by, and the loss is given.
    """
    rows, scores = room.rows, room.scores
    rows[count : count + 3] = rows[0]  # up to a multiple of four; what comes of them counts for nothing
    score(room.hidden, table, rows, count, scores)
    take_tails(scores, count, room.tails, room.bits)
    # −log σ(s) = max(−s, 0) + log(1 + exp(−|s|)); the logarithms of a few are taken together.
    text, noise = loss_of(scores, room.tails, 0, positives, -ONE), loss_of(scores, room.tails, positives, count, ONE)
    for place in range(count):
        high = ONE / (ONE + room.tails[place])  # σ(|s|)
        low = high * room.tails[place]
        chance, miss = (high, low) if scores[place] >= NOTHING else (low, high)
        scores[place] = rate * miss if place < positives else -rate * weight * chance
    scores[count : count + 3] = NOTHING
    move(room.hidden, table, rows, count, scores, room.error)
    return text + float(weight) * noise


@compiled
def score(hidden: Floats, table: Floats, rows: Integers, count: int, scores: Floats) -> None:
    for place in range(0, count, 4):
        a, b, c, d = rows[place], rows[place + 1], rows[place + 2], rows[place + 3]
        first, second, third, fourth = NOTHING, NOTHING, NOTHING, NOTHING
        for i in range(len(hidden)):
            first += hidden[i] * table[a, i]
            second += hidden[i] * table[b, i]
            third += hidden[i] * table[c, i]
            fourth += hidden[i] * table[d, i]
        scores[place], scores[place + 1], scores[place + 2], scores[place + 3] = first, second, third, fourth


@compiled
def take_tails(scores: Floats, count: int, tails: Floats, bits: npt.NDArray[np.int32]) -> None:
    """exp(−|s|) = 2^−n exp(z): n whole, z in ±½ log 2, by its power series to the last digit of a float."""
    for place in range(count):
        exponent = min(abs(scores[place]) * LOG2_E, SMALLEST)
        whole = np.floor(exponent + HALF)
        z = (whole - exponent) * LOG_2
        series = ONE + z / np.float32(5) * (ONE + z / np.float32(6))
        series = ONE + z / np.float32(3) * (ONE + z / np.float32(4) * series)
        tails[place] = ONE + z * (ONE + z * HALF * series)
        bits[place] = (np.int32(127) - np.int32(whole)) << np.int32(23)  # 2^−n, as a float is stored
    powers = bits.view(np.float32)
    for place in range(count):
        tails[place] *= powers[place]


@compiled
def loss_of(scores: Floats, tails: Floats, begin: int, end: int, sign: np.float32) -> float:
    """−Σ log σ(−sign · s)."""
    outside, inside = 0.0, 1.0
    for place in range(begin, end):
        outside += max(sign * scores[place], NOTHING)
        inside *= 1.0 + tails[place]
    return outside + math.log(inside)


@compiled
def move(hidden: Floats, table: Floats, rows: Integers, count: int, pulls: Floats, error: Floats) -> None:
    """First what the hidden vector is to move by, from rows that have not moved, since a row may be there twice."""
    error[:] = NOTHING
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
    """Write the noise of some words after the rows that are there; how many rows there are then."""
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
    """A lesson; the loss of every word is that before its step."""
    width, count = inputs.shape[1], len(words)
    room = room_for(width, noise.shape[1] * block + (left.max() + right.max() if count else 0))
    total = 0.0
    for place in range(count):
        pairs = left[place] + right[place]
        if pairs == 0:
            continue
        filled = 0
        for near in range(place - left[place], place + right[place] + 1):
            if near != place:
                room.rows[filled] = words[near]
                filled += 1
        begin = place - place % block
        filled = add_noise(room.rows, filled, noise, begin, min(begin + block, count))
        word = words[place]
        for i in range(width):
            room.hidden[i] = inputs[word, i]
        weight = np.float32(negatives * pairs / (filled - pairs))
        total += pull(outputs, pairs, filled, weight, np.float32(rate), room)
        for i in range(width):
            inputs[word, i] += room.error[i]
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
    room = room_for(width, noise.shape[1] * block + 1)
    total = 0.0
    for place in range(count):
        pairs = left[place] + right[place]
        if pairs == 0:
            continue
        share = np.float32(1.0 / pairs)
        room.hidden[:] = NOTHING
        for near in range(place - left[place], place + right[place] + 1):
            if near != place:
                word = words[near]
                for i in range(width):
                    room.hidden[i] += share * inputs[word, i]
        room.rows[0] = words[place]
        begin = place - place % block
        filled = add_noise(room.rows, 1, noise, begin, min(begin + block, count))
        weight = np.float32(negatives / (filled - 1))
        total += pull(outputs, 1, filled, weight, np.float32(rate), room)
        for near in range(place - left[place], place + right[place] + 1):
            if near != place:
                word = words[near]
                for i in range(width):
                    inputs[word, i] += share * room.error[i]
    return total
