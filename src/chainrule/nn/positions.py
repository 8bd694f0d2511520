"""Where a token stands: sinusoids, or rotary positions, by which a query and a key meet at an angle.

    rotate(x, p) turns each pair (x_i, x_{i + D/2}) by the angle p / base^(2i/D), so that
    rotate(q, m) · rotate(k, n) is a function of q, k and m − n

Su et al., 2021, "RoFormer: enhanced Transformer with rotary position embedding". Sinusoids are the vectors of the
first Transformer (Vaswani et al., 2017). `Positions` puts them behind one interface, for families that let the user
choose.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.nn import single_row
from chainrule.nn.layers import input_projection
from chainrule.nn.single_row import Array


def require_pairs(width: int, heads: int, instead: str = "") -> None:
    """Refuse heads that cannot be rotated; `instead` is another way out."""
    if width // heads % 2:
        raise ValueError(
            f"heads of width {width // heads} cannot be rotated, since rotary positions rotate pairs; "
            f"try width {width + heads} with heads {heads}{instead}"
        )


class Rotary(nn.Module):
    """Angles for every position up to a capacity, ready to be applied.

    The tables follow from the settings, so they are not part of a checkpoint.
    """

    cosine: Tensor  # (C, D): each angle twice, once for either half of a vector
    sine: Tensor  # (C, D): its first half negated

    def __init__(self, width: int, capacity: int, base: float = 10_000.0) -> None:
        super().__init__()
        frequencies = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(capacity, dtype=torch.float64)[:, None] * frequencies  # (C, D/2)
        self.register_buffer("cosine", torch.cat([angles.cos(), angles.cos()], -1).float(), persistent=False)
        self.register_buffer("sine", torch.cat([-angles.sin(), angles.sin()], -1).float(), persistent=False)

    def forward(self, where: slice | Tensor) -> Rotation:
        """The rotation of K tokens: a slice of positions, or (B, K) where rows stand at different ones."""
        return Rotation(self.cosine[where][..., None, None, :], self.sine[where][..., None, None, :])

    def single_row(self, where: int | slice) -> single_row.RowRotation:
        """The rotation of one token of a single row, or of a slice of them."""
        return single_row.RowRotation(single_row.as_numpy(self.cosine)[where], single_row.as_numpy(self.sine)[where])


class Rotation:
    """Turns vectors by the angles of their positions."""

    def __init__(self, cosine: Tensor, sine: Tensor) -> None:
        self.cosine = cosine  # (K, 1, 1, D) or (B, K, 1, 1, D)
        self.sine = sine

    def __call__(self, vectors: Tensor) -> Tensor:
        """(B, K, ·, H, D), turned: three kernels, because swapping the halves is a roll."""
        swapped = vectors.roll(vectors.shape[-1] // 2, dims=-1)
        return torch.addcmul(vectors * self.cosine, swapped, self.sine)


def sinusoids(width: int, capacity: int) -> Tensor:
    """(C, D): position p is told by sin(p / 10000^(2i/D)) and cos(p / 10000^(2i/D)), side by side."""
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(capacity, dtype=torch.float64)[:, None] * frequencies  # (C, ⌈D/2⌉)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].float()


Rotate: TypeAlias = Callable[[Tensor], Tensor]
"""What positions do to queries and keys, (B, K, ·, H, D/H)."""

RotateRow: TypeAlias = Callable[[Array], Array]
"""The same for one token of one row, (·, H, D/H), or for some, (·, H, K, D/H)."""


class Positioned(NamedTuple):
    """Tokens that know where they stand."""

    vectors: Tensor  # (B, K, D)
    rotate: Rotate


class PositionedRow(NamedTuple):
    """Tokens of one row that do."""

    vectors: Array  # (D,) or (K, D)
    rotate: RotateRow


class Positions(nn.Module, ABC):
    """How embedded tokens learn where they stand."""

    @abstractmethod
    def forward(self, embedded: Tensor, where: slice | Tensor) -> Positioned:
        """(B, K, D) at a slice of positions, or at (B, K) where rows stand at different ones."""

    @abstractmethod
    def step(self, embedded: Array, where: int | slice) -> PositionedRow:
        """One token (D,) at its position, or some of one row, (K, D)."""


class RotaryPositions(Positions):
    """Nothing is done to what is read; a query and a key are turned before they meet."""

    def __init__(self, width: int, head_width: int, capacity: int) -> None:
        super().__init__()
        self.rotary = Rotary(head_width, capacity)

    def forward(self, embedded: Tensor, where: slice | Tensor) -> Positioned:
        return Positioned(embedded, self.rotary(where))

    def step(self, embedded: Array, where: int | slice) -> PositionedRow:
        return PositionedRow(embedded, self.rotary.single_row(where))


class AddedPositions(Positions):
    """e + p, with p a sinusoid."""

    sinusoids: Tensor  # (C, D); follows from the settings, so it is not part of a checkpoint

    def __init__(self, width: int, head_width: int, capacity: int) -> None:
        super().__init__()
        self.register_buffer("sinusoids", sinusoids(width, capacity), persistent=False)

    def forward(self, embedded: Tensor, where: slice | Tensor) -> Positioned:
        return Positioned(embedded + self.sinusoids[where], _as_they_are)

    def step(self, embedded: Array, where: int | slice) -> PositionedRow:
        return PositionedRow(embedded + single_row.as_numpy(self.sinusoids)[where], _as_it_is)


class ConcatenatedPositions(AddedPositions):
    """W [e; p], so that token and position can be kept apart; W brings twice the width back to one."""

    def __init__(self, width: int, head_width: int, capacity: int) -> None:
        super().__init__(width, head_width, capacity)
        self.narrow = input_projection(2 * width, width)

    def forward(self, embedded: Tensor, where: slice | Tensor) -> Positioned:
        positions = self.sinusoids[where].expand_as(embedded)
        return Positioned(self.narrow(torch.cat([embedded, positions], -1)), _as_they_are)

    def step(self, embedded: Array, where: int | slice) -> PositionedRow:
        both = np.concatenate((embedded, single_row.as_numpy(self.sinusoids)[where]), axis=-1)
        return PositionedRow(single_row.project(both, self.narrow), _as_it_is)


def _as_they_are(vectors: Tensor) -> Tensor:
    return vectors


def _as_it_is(vector: Array) -> Array:
    return vector
