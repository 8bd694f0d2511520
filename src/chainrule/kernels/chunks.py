"""What a hybrid computes of a whole chunk of tokens: recurrent layers in both directions, and its allocation.

Shape letters: C tokens of the chunk, D width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import activate, compiled, exponential
from chainrule.kernels.instructions import SIGMOID, TANH
from chainrule.kernels.products import dot_products, linear, weighted_rows
from chainrule.kernels.registers import vector

Floats = npt.NDArray[np.floating[Any]]

SMALLEST = (1.1754943508222875e-38, 2.2250738585072014e-308)
"""Smallest normal numbers of single and double precision: no share of a mixture is less."""


@compiled
def smallest(like: Floats) -> float:
    return SMALLEST[0] if like.itemsize == 4 else SMALLEST[1]


@compiled
def log_shares(out: int, gamma: int, mass: int, threshold: float, like: Floats) -> None:
    """Log (1 − s) and log s of the share s = γ min(1, mass / threshold), or γ where there is mass if that is 0."""
    share, present = vector(gamma, 1, like)[0], vector(mass, 1, like)[0]
    one = like.dtype.type(1.0)
    if threshold > 0.0:
        share *= min(present / like.dtype.type(threshold), one)
    elif present <= like[0]:
        share = like[0]
    result = vector(out, 2, like)
    result[0] = like.dtype.type(math.log(max(float(one - share), smallest(like))))
    result[1] = like.dtype.type(math.log(max(float(share), smallest(like))))


@compiled
def lstm_scan(
    out: int,
    out_row: int,
    gates: int,
    gates_row: int,
    matrix: int,
    memory: int,
    width: int,
    count: int,
    backwards: bool,
    like: Floats,
) -> None:
    """The hidden vectors of an LSTM over `count` tokens, from the products W x + b of each (4 D), from either end."""
    size = like.itemsize
    cells = vector(memory, width, like)
    cells[:] = like[0]
    before = 0
    for number in range(count):
        token = count - 1 - number if backwards else number
        here, hidden = gates + token * gates_row, out + token * out_row
        if before != 0:
            linear(here, 0, before, 0, matrix, 0, 0, width, 4 * width, 1, True, like, like)
        activate(here, here, 2 * width, SIGMOID, like)
        activate(here + 2 * width * size, here + 2 * width * size, width, TANH, like)
        activate(here + 3 * width * size, here + 3 * width * size, width, SIGMOID, like)
        values, result = vector(here, 4 * width, like), vector(hidden, width, like)
        for index in range(width):
            cells[index] = values[width + index] * cells[index] + values[index] * values[2 * width + index]
            result[index] = cells[index]
        activate(hidden, hidden, width, TANH, like)
        for index in range(width):
            result[index] *= values[3 * width + index]
        before = hidden


@compiled
def allocate(
    contexts: int,
    contexts_row: int,
    queries: int,
    queries_row: int,
    keys: int,
    keys_row: int,
    vectors: int,
    vectors_row: int,
    mass: int,
    mass_row: int,
    working: int,
    working_row: int,
    width: int,
    count: int,
    scale: float,
    like: Floats,
) -> None:
    """`nn.branches.Allocation` of `count` vectors to as many positions, from its queries and keys.

    `working` has room for a score (C, C) of each position and vector.
    """
    factor = like.dtype.type(scale)
    for position in range(count):
        row = working + position * working_row
        dot_products(row, queries + position * queries_row, keys, keys_row, width, count, like)
        scores = vector(row, count, like)
        for source in range(count):
            scores[source] *= factor
    for source in range(count):  # the logarithm of the softmax over positions
        highest = vector(working, count, like)[source]
        for position in range(count):
            highest = max(highest, vector(working + position * working_row, count, like)[source])
        total = like[0]
        for position in range(count):
            total += exponential(vector(working + position * working_row, count, like)[source] - highest)
        shift = highest + like.dtype.type(math.log(total))
        for position in range(count):
            vector(working + position * working_row, count, like)[source] -= shift
    for position in range(count):
        row = working + position * working_row
        scores = vector(row, count, like)
        highest, present = scores[0], like[0]
        for source in range(count):
            highest = max(highest, scores[source])
            present += exponential(scores[source])
        vector(mass + position * mass_row, 1, like)[0] = max(present, like.dtype.type(smallest(like)))
        total = like[0]
        for source in range(count):
            scores[source] = exponential(scores[source] - highest)
            total += scores[source]
        share = like.dtype.type(1.0) / total
        for source in range(count):
            scores[source] *= share
        weighted_rows(contexts + position * contexts_row, row, vectors, vectors_row, width, count, like)
