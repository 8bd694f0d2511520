"""Position encodings: sinusoids and rotary embeddings.

    rotate(x, p) rotates each pair (x_i, x_{i + D/2}) by the angle p / base^(2i/D), so that
    rotate(q, m) · rotate(k, n) is a function of q, k and m − n

Su et al., 2021, "RoFormer: enhanced Transformer with rotary position embedding". Sinusoids are those
of Vaswani et al. (2017). `Positions` is their common interface, for families with a choice of position encodings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from chainrule.kernels.instructions import Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.nn.layers import input_projection

T = TypeVar("T")


def require_pairs(width: int, heads: int, instead: str = "") -> None:
    """Raise ValueError if the width of a head is odd; `instead` is appended to the suggested remedy."""
    if width // heads % 2:
        raise ValueError(
            f"rotary positions need heads of an even width (got {width // heads}); "
            f"try width {width + heads} with heads {heads}{instead}"
        )


class Rotary(nn.Module):
    """Rotary position embeddings, precomputed for every position up to a capacity.

    The tables are determined by the settings, so they are not part of a checkpoint.
    """

    cosine: Tensor  # (C, D): each angle twice, once per half of a vector
    sine: Tensor  # (C, D): its first half negated

    def __init__(self, width: int, capacity: int, base: float = 10_000.0) -> None:
        super().__init__()
        frequencies = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(capacity, dtype=torch.float64)[:, None] * frequencies  # (C, D/2)
        self.register_buffer("cosine", torch.cat([angles.cos(), angles.cos()], -1).float(), persistent=False)
        self.register_buffer("sine", torch.cat([-angles.sin(), angles.sin()], -1).float(), persistent=False)

    def forward(self, where: slice | Tensor) -> Rotation:
        """The rotation of K tokens at a slice of positions, or at positions (B, K)."""
        return Rotation(self.cosine[where][..., None, None, :], self.sine[where][..., None, None, :])


class Rotation:
    """Rotates vectors by the angles of their positions."""

    def __init__(self, cosine: Tensor, sine: Tensor) -> None:
        self.cosine = cosine  # (K, 1, 1, D) or (B, K, 1, 1, D)
        self.sine = sine

    def __call__(self, vectors: Tensor) -> Tensor:
        """(B, K, ·, H, D) to the same shape. Swapping the halves is a roll, so this takes three kernels."""
        swapped = vectors.roll(vectors.shape[-1] // 2, dims=-1)
        return torch.addcmul(vectors * self.cosine, swapped, self.sine)


def sinusoids(width: int, capacity: int) -> Tensor:
    """(C, D): sin(p / 10000^(2i/D)) and cos(p / 10000^(2i/D)) of each position p, interleaved."""
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(capacity, dtype=torch.float64)[:, None] * frequencies  # (C, ⌈D/2⌉)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].float()


Rotate: TypeAlias = Callable[[Tensor], Tensor]
"""The rotation of queries and keys (B, K, ·, H, D/H)."""


class Positioned(NamedTuple):
    """Embedded tokens with their positions encoded, and the rotation of their queries and keys."""

    vectors: Tensor  # (B, K, D)
    rotate: Rotate


class Positions(nn.Module, ABC):
    """A position encoding of embedded tokens."""

    @abstractmethod
    def forward(self, embedded: Tensor, where: slice | Tensor) -> Positioned:
        """Encode tokens (B, K, D) at a slice of positions, or at positions (B, K)."""

    @abstractmethod
    def describe(self, program: ProgramBuilder, embedded: Vector) -> Vector:
        """The vectors of `forward` in a compiled step."""

    @property
    def tables(self) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines (C, D/H) of the rotation of queries and keys, if there is one."""
        return None


class RotaryPositions(Positions):
    """Embeddings are unchanged; queries and keys are rotated."""

    def __init__(self, width: int, head_width: int, capacity: int) -> None:
        super().__init__()
        self.rotary = Rotary(head_width, capacity)

    def forward(self, embedded: Tensor, where: slice | Tensor) -> Positioned:
        return Positioned(embedded, self.rotary(where))

    def describe(self, program: ProgramBuilder, embedded: Vector) -> Vector:
        return embedded

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        return self.rotary.cosine, self.rotary.sine


class AddedPositions(Positions):
    """e + p, with p a sinusoid."""

    sinusoids: Tensor  # (C, D); determined by the settings, so not part of a checkpoint

    def __init__(self, width: int, head_width: int, capacity: int) -> None:
        super().__init__()
        self.register_buffer("sinusoids", sinusoids(width, capacity), persistent=False)

    def forward(self, embedded: Tensor, where: slice | Tensor) -> Positioned:
        return Positioned(embedded + self.sinusoids[where], _identity)

    def describe(self, program: ProgramBuilder, embedded: Vector) -> Vector:
        return program.add_position(embedded, self.sinusoids)


class ConcatenatedPositions(AddedPositions):
    """W [e; p] with a projection W from twice the width."""

    def __init__(self, width: int, head_width: int, capacity: int) -> None:
        super().__init__(width, head_width, capacity)
        self.narrow = input_projection(2 * width, width)

    def forward(self, embedded: Tensor, where: slice | Tensor) -> Positioned:
        positions = self.sinusoids[where].expand_as(embedded)
        return Positioned(self.narrow(torch.cat([embedded, positions], -1)), _identity)

    def describe(self, program: ProgramBuilder, embedded: Vector) -> Vector:
        both = program.new(2 * embedded.size)
        program.copy(embedded, program.part(both, 0, embedded.size))
        program.position(self.sinusoids, out=program.part(both, embedded.size, embedded.size))
        return program.apply(self.narrow, both)


def _identity(x: T) -> T:
    return x
