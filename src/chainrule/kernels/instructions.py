"""The instructions of a decoding step: operations on vectors, which `interpreter` executes.

Families do not write them but describe their step with a `program.ProgramBuilder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

(
    EMBED,
    EMBED_WINDOW,
    ADD_PREVIOUS_ROWS,
    LINEAR,
    LINEAR_INT8,
    LINEAR_IN_INTEGERS,
    RMS_NORM,
    LAYER_NORM,
    ROTATE,
    SELF_ATTENTION,
    FULL_ATTENTION,
    CROSS_ATTENTION,
    ADDITIVE_ATTENTION,
    TAPS,
    ACTIVATE,
    ADD,
    ADD_POSITION,
    POSITION,
    MULTIPLY,
    INTERPOLATE,
    COPY,
    LOG_SOFTMAX,
    EXPECTED_ROW,
    LOG_MIXTURE,
    BACKOFF,
    GATE_FEATURES,
    COMBINE,
    KEEP_TOKEN,
    ROW_AT_POSITION,
    LOG_SHARES,
    EVERY_CHUNK,
    LSTM_SCAN,
    ALLOCATE,
    WINDOW_ATTENTION,
    CACHE_LOOKUP,
    PIXELS,
    SLOW_ATTENTION,
    LISTED_LINEAR,
) = range(38)

SQUARED_RELU, GELU, TANH, SIGMOID, RELU, ONE_MINUS = range(6)
"""Elementwise functions."""

COLUMNS = 14  # integers per operation: its code, then vectors, slots and sizes

CONSTANT, WORKING, RESULT, FIRST_STATE = 0, 1, 2, 3
"""Where a vector is: in a parameter, in working memory, in the result, or in a tensor of the state, in their order.

A negative number is a tensor of the state with a vector for each token, and not for each row.
"""

NONE = -1

CacheSlots: TypeAlias = tuple[int, int]
"""The state tensors with the keys and the values of a layer."""

SourceSlots: TypeAlias = tuple[int, int, int]
"""The state tensors with the keys, the values and the lengths of the source."""


class LinearLayer(Protocol):
    """A layer with a weight (out, in) and a bias: `nn.Linear` or `nn.layers.Projection`."""

    @property
    def weight(self) -> Tensor: ...

    @property
    def bias(self) -> Tensor | None: ...


class BackoffTables(Protocol):
    """The tables of a back-off model in the form of `kernels.backoff`: `nn.backoff_lookup.BackoffLookup`."""

    order: int
    base: int

    @property
    def levels(self) -> npt.NDArray[np.int64]: ...


class MovingWindow(Protocol):
    """The last `size` entries of a text, in memory with room for `room` more: `nn.moving_window.MovingWindow`."""

    @property
    def size(self) -> int: ...

    @property
    def room(self) -> int: ...


class Vector(NamedTuple):
    """A vector of every row: its place in the table of vectors, and its length."""

    place: int
    size: int


@dataclass(frozen=True)
class Program:
    """The operations of a step, and where its vectors are."""

    operations: npt.NDArray[np.int64]  # (N, COLUMNS)
    values: npt.NDArray[np.float64]  # (N,) a real argument of each operation
    memories: npt.NDArray[np.int64]  # (M,) where each vector is
    offsets: npt.NDArray[np.int64]  # (M,) its offset in bytes there, or the address of a constant
    first_states: npt.NDArray[np.int64]  # (N,) where the state begins that an operation counts its tensors from
    positions: npt.NDArray[np.int64]  # (N,) the memory with the positions of an operation, from there, or NONE
    counters: npt.NDArray[np.int64]  # the memories with positions that a token advances
    working_size: int  # numbers of working memory per row
    sequential: bool  # whether a token needs the state after the one before; attention alone does not
    outputs: int
    dtype: torch.dtype
    constants: tuple[object, ...]  # kept alive, since the program has their addresses

    @property
    def state_vectors(self) -> list[int]:
        """The state tensors that are operands of operations on all rows, unlike caches."""
        return sorted({int(memory) - FIRST_STATE for memory in self.memories if memory >= FIRST_STATE})

    @cached_property
    def source_slots(self) -> set[int]:
        """The state tensors of the source, which no token changes."""
        found: set[int] = set()
        for operation, first in zip(self.operations.tolist(), self.first_states.tolist(), strict=True):
            if operation[0] == CROSS_ATTENTION:
                slots = operation[3:6] + ([operation[9]] if operation[8] != NONE else [])
            elif operation[0] == ADDITIVE_ATTENTION:
                slots = operation[4:7]
            elif operation[0] == LISTED_LINEAR:
                slots = operation[7:9]
            else:
                continue
            found |= {slot + first - FIRST_STATE for slot in slots}
        return found

    @cached_property
    def cache_slots(self) -> set[int]:
        """The state tensors that are caches (B, H, C, D/H) of keys or values."""
        return {
            slot + first - FIRST_STATE
            for operation, first in zip(self.operations.tolist(), self.first_states.tolist(), strict=True)
            if operation[0] == SELF_ATTENTION
            for slot in operation[5:7]
        }
