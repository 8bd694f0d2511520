"""Rotary positions: a query and a key meet at an angle that depends only on their distance.

    rotate(x, p) turns each pair (x_i, x_{i + D/2}) by the angle p / base^(2i/D), so that
    rotate(q, m) · rotate(k, n) is a function of q, k and m − n

Su et al., 2021, "RoFormer: enhanced Transformer with rotary position embedding".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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


class Rotation:
    """Turns vectors by the angles of their positions."""

    def __init__(self, cosine: Tensor, sine: Tensor) -> None:
        self.cosine = cosine  # (K, 1, 1, D) or (B, K, 1, 1, D)
        self.sine = sine

    def __call__(self, vectors: Tensor) -> Tensor:
        """(B, K, ·, H, D), turned: three kernels, because swapping the halves is a roll."""
        swapped = vectors.roll(vectors.shape[-1] // 2, dims=-1)
        return torch.addcmul(vectors * self.cosine, swapped, self.sine)
