"""Executes the program of a decoding step, for a few rows, or for many steps without returning to Python.

One compiled function serves all families: what differs between them is the program. An operation takes microseconds,
choosing the next one a few nanoseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import (
    OPTIONS,
    compiled,
    integers,
)
from chainrule.kernels.beams import Beams, grow, place
from chainrule.kernels.caching import entry
from chainrule.kernels.choice import choose, log_probability
from chainrule.kernels.instructions import (
    ADDITIVE_ATTENTION,
    CROSS_ATTENTION,
    EVERY_CHUNK,
    WINDOW_ATTENTION,
)
from chainrule.kernels.operations import operate
from chainrule.kernels.registers import vector

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


@compiled
def _execute(
    operations: Integers,
    values: npt.NDArray[np.float64],
    memories: Integers,
    offsets: Integers,
    pointers: Integers,  # (B, S) address of each memory for each row; those of constants and working memory are ignored
    strides: Integers,  # (B, S, 3) bytes between rows of the memory, and along its next two axes
    first_states: Integers,
    positions: Integers,
    counters: Integers,
    working_size: int,
    sequential: bool,
    tokens: Integers,  # (B, K)
    like: Floats,
) -> None:
    """Append tokens to the state and write the logits (B, K, V)."""
    rows, chunk = tokens.shape
    size = like.itemsize
    together = 1 if sequential else chunk
    longest, heads, inner = chunk, 1, 0
    for counter in counters:
        for row in range(rows):
            longest = max(longest, integers(pointers[row, counter], 1)[0] + chunk)
    for operation in range(len(operations)):
        code = operations[operation, 0]
        if code in (CROSS_ATTENTION, ADDITIVE_ATTENTION):
            lengths = operations[operation, 5 if code == CROSS_ATTENTION else 6] + first_states[operation]
            heads = max(heads, operations[operation, 6])
            for row in range(rows):
                longest = max(longest, integers(pointers[row, lengths], 1)[0])
        elif code == WINDOW_ATTENTION:
            heads = max(heads, operations[operation, 7])
        elif code == EVERY_CHUNK:
            inner = max(inner, operations[operation, 5] * operations[operation, 8])
    working = np.empty(rows * together * working_size + inner + 32, like.dtype)
    aligned = (working.ctypes.data + 63) // 64 * 64
    scores, biases = np.empty(longest, like.dtype), np.empty(longest * heads, like.dtype)
    addresses, row_strides = np.empty(len(memories), np.int64), np.empty(len(memories), np.int64)
    for first in range(0, chunk, together):
        _locate(
            memories, offsets, pointers, strides, aligned, working_size, first, together, addresses, row_strides, size
        )
        operation = 0
        while operation < len(operations):
            last = operation
            while last < len(operations) and operations[last, 0] != EVERY_CHUNK:
                last += 1
            _operate(
                operations[operation:last], values[operation:last], first_states[operation:last],
                positions[operation:last], addresses, row_strides, pointers, strides, tokens, first, together, scores,
                biases, like,
            )  # fmt: skip
            if last < len(operations):
                since, until = last + 1, last + 1 + operations[last, 7]
                place = aligned + (rows * together * working_size * size + 63) // 64 * 64
                _read_chunk(
                    operations[last], operations[since:until], values[since:until], first_states[last:until],
                    positions[last:until], memories, offsets, pointers, strides, tokens[:, first], place, scores,
                    biases, like,
                )  # fmt: skip
                last = until
            operation = last
        for counter in counters:
            for row in range(rows):
                integers(pointers[row, counter], 1)[0] += together
    working[0] = like[0]  # its last use: Numba frees an array after it, whatever still has its address


@compiled
def _locate(
    memories: Integers,
    offsets: Integers,
    pointers: Integers,
    strides: Integers,
    working: int,
    working_size: int,
    first: int,
    together: int,
    addresses: Integers,
    row_strides: Integers,
    size: int,
) -> None:
    """The address of each vector in the first row, and the bytes between rows."""
    for index in range(len(memories)):
        memory = memories[index]
        if memory == 0:
            addresses[index], row_strides[index] = offsets[index], 0
        elif memory == 1:
            addresses[index], row_strides[index] = working + offsets[index], working_size * size
        elif memory < 0:  # a vector for each token
            addresses[index] = pointers[0, -memory] + offsets[index] + first * strides[0, -memory, 1]
            row_strides[index] = strides[0, -memory, 1]
        elif memory == 2:
            addresses[index] = pointers[0, 2] + offsets[index] + first * strides[0, 2, 1]
            row_strides[index] = strides[0, 2, 1] if together > 1 else strides[0, 2, 0]
        else:
            addresses[index], row_strides[index] = pointers[0, memory] + offsets[index], strides[0, memory, 0]


@compiled
def _operate(
    operations: Integers,
    values: npt.NDArray[np.float64],
    first_states: Integers,
    positions: Integers,
    addresses: Integers,
    row_strides: Integers,
    pointers: Integers,
    strides: Integers,
    tokens: Integers,
    first: int,
    together: int,
    scores: Floats,
    biases: Floats,
    like: Floats,
) -> None:
    for number in range(len(operations)):
        operate(
            operations[number],
            values[number],
            addresses,
            row_strides,
            pointers[:, first_states[number] :],
            strides[:, first_states[number] :],
            positions[number],
            tokens,
            first,
            together,
            scores,
            biases,
            like,
        )


@compiled
def _read_chunk(
    chunk: Integers,
    operations: Integers,
    values: npt.NDArray[np.float64],
    first_states: Integers,  # of `chunk` itself, then of the operations
    positions: Integers,
    memories: Integers,
    offsets: Integers,
    pointers: Integers,
    strides: Integers,
    tokens: Integers,  # (B,)
    working: int,
    scores: Floats,
    biases: Floats,
    like: Floats,
) -> None:
    """Append a token to the chunk of each row. Rows whose chunk is complete then execute the operations on it."""
    recent, source, length, offset, working_size = chunk[3], chunk[4], chunk[5], chunk[6], chunk[8]
    addresses, row_strides = np.empty(len(memories), np.int64), np.empty(len(memories), np.int64)
    ids = np.empty((1, length), np.int64)
    for row in range(len(tokens)):
        position = integers(pointers[row, first_states[0] + positions[0]], 1)[0]
        current = integers(pointers[row, first_states[0] + recent], length)
        current[(position + offset) % length] = tokens[row]
        if (position + offset + 1) % length != 0:
            continue
        previous = integers(pointers[row, first_states[0] + source], length)
        for index in range(length):
            ids[0, index] = previous[index] = current[index]
            current[index] = 0
        here, there = pointers[row : row + 1], strides[row : row + 1]
        _locate(memories, offsets, here, there, working, working_size, 0, length, addresses, row_strides, like.itemsize)
        _operate(
            operations, values, first_states[1:], positions[1:], addresses, row_strides, here, there, ids, 0, length,
            scores, biases, like,
        )  # fmt: skip


def _advance(
    operations: Integers,
    values: npt.NDArray[np.float64],
    memories: Integers,
    offsets: Integers,
    pointers: Integers,
    strides: Integers,
    first_states: Integers,
    positions: Integers,
    counters: Integers,
    working_size: int,
    sequential: bool,
    tokens: Integers,  # (B, K)
    chosen: Integers,  # (B, S) the tokens that are chosen
    log_probs: npt.NDArray[np.float64],  # (B, S) and their log-probabilities
    noise: npt.NDArray[np.float64],  # (B, S, V) for sampling, or (B, S, 0) for greedy decoding
    rules: npt.NDArray[np.float64],  # (B, 4) temperature (0: greedy), top-k, top-p, min-p; 0: no filter
    suppressed: Integers,
    ended: npt.NDArray[np.bool_],  # (B,) rows whose end has been chosen
    end: int,  # the token that ends a row, or a negative number
    beams: Beams,
    like: Floats,
) -> None:
    """Append tokens to the state and write the results; then choose S more tokens, each of which is read next.

    If tokens are chosen, K is 1 and the result is (B, 1, V). The last one chosen is not read. Once half of the rows
    have ended, no more are chosen, and the rest of `chosen` is negative. With beams they grow by S tokens from the
    results of the last step.
    """
    if len(beams.live) > 0:
        for _ in range(chosen.shape[1]):
            count = grow(beams, pointers[:, 2], strides[0, 2, 1] // like.itemsize, suppressed, end, like)
            if count == 0:
                return
            latest = place(beams, count, pointers, strides, counters)
            _execute(
                operations, values, memories, offsets, pointers, strides, first_states, positions, counters,
                working_size, sequential, latest, like,
            )  # fmt: skip
        return
    if chosen.shape[1] == 0:
        _execute(
            operations, values, memories, offsets, pointers, strides, first_states, positions, counters, working_size,
            sequential, tokens, like,
        )  # fmt: skip
        return
    latest = tokens.copy()
    for step in range(chosen.shape[1]):
        _execute(
            operations, values, memories, offsets, pointers, strides, first_states, positions, counters, working_size,
            sequential, latest, like,
        )  # fmt: skip
        for row in range(len(tokens)):
            logits = vector(pointers[row, 2], strides[row, 2, 1] // like.itemsize, like)
            token = choose(logits, noise[row, step], rules[row], suppressed)
            latest[row, 0] = chosen[row, step] = token
            log_probs[row, step] = log_probability(logits, token)
            ended[row] |= token == end
        if 2 * np.sum(ended) >= len(ended):
            chosen[:, step + 1 :] = -1
            return


advance = entry(_advance, **OPTIONS)
