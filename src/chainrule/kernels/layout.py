"""Where the vectors of a program are: in constants, in working memory or in the state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from chainrule.kernels.instructions import (
    COLUMNS,
    CONSTANT,
    FIRST_STATE,
    NONE,
    RESULT,
    WORKING,
    Program,
    Vector,
)


@dataclass
class Layout:
    """Places the vectors of a step, and collects its operations."""

    dtype: torch.dtype
    outputs: int  # numbers that the program computes for each token: the vocabulary, for logits
    operations: list[list[int]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    constants: list[object] = field(default_factory=list)
    int8: bool = False  # whether matrices are stored in int8, with a scale for each output
    matrices: list[Tensor] = field(default_factory=list)  # those of linear maps, where they are
    top: int = 0  # working memory in use
    working_size: int = 0
    positions: int = NONE  # the state tensor with the positions, of this model or of the part that is described
    sequential: bool = False
    first_states: list[int] = field(default_factory=list)
    positions_of: list[int | None] = field(default_factory=list)  # of operations; None: those of `positions`
    counters: list[int] = field(default_factory=list)
    part_result: Vector | None = None  # where the logits go of the part that is described
    hidden: Vector | None = None  # where the input of its readout is kept, for a composite that needs it

    def build(self) -> Program:
        rows = [row + [0] * (COLUMNS - len(row)) for row in self.operations]
        self._assign_positions(0)
        return Program(
            np.array(rows, dtype=np.int64),
            np.array(self.values),
            np.array(self.memories, dtype=np.int64),
            np.array(self.offsets, dtype=np.int64),
            np.array(self.first_states, dtype=np.int64),
            np.array(self.positions_of, dtype=np.int64),
            np.array(self.counters, dtype=np.int64),
            self.working_size,
            self.sequential,
            self.outputs,
            self.dtype,
            tuple(self.constants),
        )

    # Vectors

    def new(self, size: int) -> Vector:
        """Uninitialised working memory."""
        vector = self._vector(WORKING, self.top * self.dtype.itemsize, size)
        self.top += -(-size // 16) * 16  # whole cache lines
        self.working_size = max(self.working_size, self.top)
        return vector

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Working memory that is taken inside the block is free after it."""
        top = self.top
        yield
        self.top = top

    @contextmanager
    def part_of_model(self, first: int, result: Vector) -> Iterator[None]:
        """Inside the block, describe a part of a model: its state begins at the state tensor `first`.

        Its logits become `result`. Its working memory is free afterwards.
        """
        operations, memories, counters = len(self.operations), len(self.memories), len(self.counters)
        outer = self.positions, self.part_result
        self.positions, self.part_result = NONE, result
        with self.scratch():
            yield
        self._assign_positions(operations)
        for index in range(operations, len(self.operations)):
            self.first_states[index] += first
        for index in range(counters, len(self.counters)):
            self.counters[index] += first
        for index in range(memories, len(self.memories)):
            if abs(self.memories[index]) >= FIRST_STATE:
                self.memories[index] += first if self.memories[index] > 0 else -first
        self.positions, self.part_result = outer

    def _assign_positions(self, since: int) -> None:
        """Note the positions of the operations since a number that have none yet, and that a token advances them."""
        own = NONE if self.positions == NONE else FIRST_STATE + self.positions
        for index in range(since, len(self.operations)):
            if self.positions_of[index] is None:
                self.positions_of[index] = own
        if own != NONE:
            self.counters.append(own)

    def constant(self, tensor: Tensor) -> Vector:
        """A parameter or buffer, used where it is; it must be contiguous."""
        held = tensor.detach().to(self.dtype)  # tables of positions are float32 in a model of float64
        return self._hold(held)

    def _hold(self, held: Tensor) -> Vector:
        assert held.is_contiguous(), "a program reads contiguous tensors"
        self.constants.append(held)
        return self._vector(CONSTANT, held.data_ptr(), held.numel())

    def state(self, slot: int, size: int) -> Vector:
        """A tensor of the state, by its index in the order of `types.tensors`. Writing to it makes steps sequential."""
        self.sequential = True
        return self._vector(FIRST_STATE + slot, 0, size)

    def given(self, slot: int, size: int) -> Vector:
        """A vector of each token, from a tensor (B, K, D) that is passed with the state."""
        return self._vector(-(FIRST_STATE + slot), 0, size)

    def part(self, vector: Vector, start: int, size: int) -> Vector:
        """Some of the numbers of a vector."""
        assert 0 <= start <= start + size <= vector.size
        offset = self.offsets[vector.place] + start * self.dtype.itemsize
        return self._vector(self.memories[vector.place], offset, size)

    def split(self, vector: Vector, parts: int) -> list[Vector]:
        """Equal parts of a vector."""
        size = vector.size // parts
        return [self.part(vector, index * size, size) for index in range(parts)]

    def _vector(self, memory: int, offset: int, size: int) -> Vector:
        self.memories.append(memory)
        self.offsets.append(offset)
        return Vector(len(self.memories) - 1, size)

    def _add(self, *operation: int, value: float = 0.0) -> None:
        self.operations.append(list(operation))
        self.values.append(value)
        self.first_states.append(0)
        self.positions_of.append(None)

    def result(self) -> Vector:
        """The logits of the step, or whatever else a program computes for each token."""
        if self.part_result is not None:
            return self.part(self.part_result, 0, self.outputs)
        return self._vector(RESULT, 0, self.outputs)
