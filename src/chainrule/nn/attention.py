"""Causal attention, over whole sequences and over a cache of fixed capacity.

A block asks `attend(query, key, value)` and does not know which of the two answers, so its arithmetic is written
once. Shape letters: B rows, H heads, K new tokens, C capacity, S slots in use, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""query, key, value of the new tokens, (B, H, K, D) each, to what they gather from the past: (B, H, K, D)."""


@dataclass(slots=True)
class CausalAttention:
    """Every token attends to itself and to those before it, all at once: the way of training and scoring."""

    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=True)


@dataclass(slots=True)
class CachedAttention:
    """New tokens are written into a cache, in place, and attend to all that it holds of their row's past."""

    keys: Tensor  # (B, H, C, D)
    values: Tensor  # (B, H, C, D)
    place: Place

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        place = self.place
        place.write(self.keys, key)
        place.write(self.values, value)
        past_keys, past_values = self.keys[:, :, : place.end], self.values[:, :, : place.end]
        return F.scaled_dot_product_attention(query, past_keys, past_values, place.mask, is_causal=place.causal)


class Aligned:
    """All rows stand at the same position, so that a chunk is a slice and a single token needs no mask."""

    def __init__(self, start: int, chunk: int, device: torch.device) -> None:
        self.end = start + chunk
        self.where = slice(start, self.end)
        self.causal = start == 0 and chunk > 1
        self.mask: Tensor | None = None
        if start > 0 and chunk > 1:
            slots = torch.arange(self.end, device=device)
            self.mask = slots <= slots[start:, None]  # (K, S)

    def write(self, cache: Tensor, new: Tensor) -> None:
        cache[:, :, self.where] = new


class Ragged:
    """Rows stand at positions of their own; slots past a row's own end are masked, whatever they hold."""

    causal = False

    def __init__(self, positions: Tensor, chunk: int, end: int) -> None:
        self.end = end
        self.rows = torch.arange(len(positions), device=positions.device)[:, None]  # (B, 1)
        self.where = positions[:, None] + torch.arange(chunk, device=positions.device)  # (B, K)
        slots = torch.arange(end, device=positions.device)
        self.mask = (slots <= self.where[..., None])[:, None]  # (B, 1, K, S)

    def write(self, cache: Tensor, new: Tensor) -> None:
        cache[self.rows, :, self.where] = new.transpose(1, 2)


Place: TypeAlias = Aligned | Ragged
"""Where a chunk of K tokens goes: the slots to write, the mask to attend through."""


def place(positions: Tensor, chunk: int) -> Place:
    """The place of the next `chunk` tokens of rows at `positions` (B,): the one look at their values in a step."""
    starts = positions.tolist()
    first, last = min(starts), max(starts)
    return Aligned(first, chunk, positions.device) if first == last else Ragged(positions, chunk, last + chunk)
