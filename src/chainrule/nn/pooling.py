"""From the vectors of a text to one vector."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AttentionPooling(nn.Module):
    """Weighted means of a text's vectors, by weights that learn where to look.

        α_hn = softmax_n(u_h · tanh(W m_n + b)),    c = [Σ_n α_1n m_n; …; Σ_n α_Hn m_n]

    The attention of Yang et al. (2016), with H of their context vectors u. They begin at zero, so that every mean is at
    first the plain one.
    """

    def __init__(self, inputs: int, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, width)
        self.heads = nn.Parameter(torch.zeros(heads, width))  # u

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) and what of it is real, (B, S), to (B, H D)."""
        return (self.weights(vectors, mask) @ vectors.masked_fill(~mask[..., None], 0.0)).flatten(1)

    def weights(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """(B, H, S): how much each head looks at each vector."""
        scores = F.linear(torch.tanh(self.inner(vectors)), self.heads).transpose(1, 2)
        return scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)


class ScalarMix(nn.Module):
    """γ Σ_l softmax(w)_l x_l."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """(L, ...) to (...)."""
        return self.scale * torch.einsum("l,l...->...", self.weights.softmax(0), layers)
