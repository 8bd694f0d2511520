"""The last W entries of a text, in a tensor with room for more.

Shape letters: B rows, W window, S room, K new entries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """The entries that new ones may use, and the tensor after them."""

    entries: Tensor  # W + K along the axis: the last ones before, and the new ones
    cache: Tensor  # W + S


class MovingWindow(NamedTuple):
    """The last W entries of each row, oldest first, in a tensor of W + S along an axis.

    After n entries they begin at n mod S; what is before them is older. So S entries are appended before the window has
    to be copied to the front, and it is always in one piece: compiled steps append in place.
    """

    size: int  # W
    room: int  # S

    @classmethod
    def of(cls, size: int) -> MovingWindow:
        return cls(size, max(1, size // 4))

    @property
    def capacity(self) -> int:
        return self.size + self.room

    def append(self, cache: Tensor, new: Tensor, positions: Tensor, dim: int) -> Window:
        """Append K entries to rows that have `positions` (B,). A new tensor is returned."""
        count, starts = new.shape[dim], positions.tolist()
        if min(starts) < max(starts):
            return self._append_by_rows(cache, new, positions, dim)
        start, after = starts[0] % self.room, (starts[0] + count) % self.room
        whole = torch.cat([cache.narrow(dim, 0, start + self.size), new], dim)
        entries = whole.narrow(dim, start, self.size + count) if start else whole
        kept = whole.narrow(dim, start + count - after, self.size + after)
        shape = list(new.shape)
        shape[dim] = self.room - after
        return Window(entries, torch.cat([kept, new.new_zeros(shape)], dim))

    def _append_by_rows(self, cache: Tensor, new: Tensor, positions: Tensor, dim: int) -> Window:
        """The same for rows whose windows begin at different indices."""
        count, start = new.shape[dim], positions % self.room
        shape = list(new.shape)
        shape[dim] = 1
        parts = torch.cat([cache, new, new.new_zeros(shape)], dim)

        def taken(first: Tensor, size: int) -> Tensor:
            index = first[:, None] + torch.arange(size, device=first.device)  # (B, ·) as if new entries followed
            ahead = index - (start + self.size)[:, None]
            index = torch.where(ahead < 0, index, self.capacity + ahead.clamp(max=count))
            form = [1] * parts.ndim
            form[0], form[dim] = index.shape
            return parts.take_along_dim(index.view(form), dim)

        moved = start + count - (positions + count) % self.room
        return Window(taken(start, self.size + count), taken(moved, self.capacity))
