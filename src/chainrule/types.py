"""The values that flow between models, decoders and training loops.

Shape letters, here and in every file: B rows, T positions, K tokens in a chunk, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

State: TypeAlias = "Tensor | tuple[State, ...] | dict[str, State]"
"""The state of a model after the tokens it has read: a tree of tensors, each with the batch as first axis.

Inner nodes are tuples (also named tuples) or dictionaries. If a model needs positions, they are a (B,) tensor in the
tree, so rows may be at different positions.
"""

StateT = TypeVar("StateT", bound=State)

Progress: TypeAlias = Callable[[int, int], None]
"""A callback for long work, called with the amount done and the total; a total of 0 means that it is not known."""


class Sequences(NamedTuple):
    """Token sequences of different lengths, padded on the right. There is no PAD token: `lengths` marks the padding."""

    ids: Tensor  # (B, T) int64 in [0, V); values past the length are never read
    lengths: Tensor  # (B,) int64

    @property
    def mask(self) -> Tensor:
        """(B, T) bool, false at padding."""
        return length_mask(self.lengths, self.ids.shape[1])

    @classmethod
    def full(cls, ids: Tensor) -> Sequences:
        """Rows without padding."""
        rows, width = ids.shape
        return cls(ids, torch.full((rows,), width, dtype=torch.int64, device=ids.device))

    @classmethod
    def pack(cls, rows: Sequence[Sequence[int] | npt.NDArray[Any]], device: torch.device | str = "cpu") -> Sequences:
        """Pad rows of unequal length with zeros on the right."""
        lengths = [len(row) for row in rows]
        ids = np.zeros((len(rows), max([1, *lengths])), dtype=np.int64)
        for index, row in enumerate(rows):
            ids[index, : lengths[index]] = row
        return cls(torch.from_numpy(ids), torch.tensor(lengths, dtype=torch.int64)).to(device)

    def to(self, device: torch.device | str) -> Sequences:
        return Sequences(self.ids.to(device), self.lengths.to(device))


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """Return a (B, width) bool tensor, true at the first `lengths` (B,) positions of each row."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


class Batch(NamedTuple):
    """Targets and their sources, as models are trained and scored on them. A class label is a source of length 1."""

    target: Sequences
    source: Sequences | None = None

    def to(self, device: torch.device | str) -> Batch:
        return Batch(self.target.to(device), None if self.source is None else self.source.to(device))


class Step(NamedTuple):
    """Logits of the next token, and the state to continue from."""

    logits: Tensor  # (B, K, V); [:, i] predicts the token after tokens[:, i]
    state: State


def map_state(change: Callable[[Tensor], Tensor], state: StateT) -> StateT:
    """Apply a function to every tensor of the tree."""
    return cast(StateT, _map(change, state))


def _map(change: Callable[[Tensor], Tensor], state: State) -> State:
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, dict):
        return {name: _map(change, part) for name, part in state.items()}
    parts = tuple(_map(change, part) for part in state)
    named = getattr(type(state), "_make", None)  # of a named tuple
    return parts if named is None else cast(State, named(parts))


def tensors(state: State) -> list[Tensor]:
    """Every tensor of the tree, in a fixed order."""
    found: list[Tensor] = []
    _collect(state, found)
    return found


def _collect(state: State, found: list[Tensor]) -> None:
    if isinstance(state, Tensor):
        found.append(state)
    else:
        for part in state.values() if isinstance(state, dict) else state:
            _collect(part, found)


def select(state: StateT, rows: Tensor) -> StateT:
    """Copy the given rows, in the given order; rows may be repeated."""
    return map_state(lambda tensor: tensor.index_select(0, rows), state)


def merge(states: Sequence[StateT]) -> StateT:
    """Concatenate the rows of several states.

    Sources of different widths and caches of different capacities are padded to the largest, with zeros on the right;
    lengths and positions in the state mark what is valid.
    """
    columns = zip(*(tensors(state) for state in states), strict=True)
    merged = iter([torch.cat(_of_one_size(column)) for column in columns])
    return map_state(lambda _: next(merged), states[0])


def _of_one_size(column: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Pad all axes but the first to the largest size among the tensors."""
    if all(tensor.shape[1:] == column[0].shape[1:] for tensor in column):
        return column
    largest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in column), strict=True)]
    padded = []
    for tensor in column:
        missing = [large - size for large, size in zip(largest, tensor.shape[1:], strict=True)]
        padded.append(F.pad(tensor, [side for count in reversed(missing) for side in (0, count)]))  # last axis first
    return tuple(padded)


def detach(state: StateT) -> StateT:
    """Detach every tensor: the boundary of truncated back-propagation."""
    return map_state(lambda tensor: tensor.detach(), state)
