"""Time-step allocation: which of the positions of a target, before any of it is known, each source vector is for.

Shape letters: B rows, S source vectors, P positions of the target, D width.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from chainrule.nn.positions import sinusoids

IMPOSSIBLE = -1e9  # a score; finite, so that a row of padding has a softmax, too

SHARPNESS = 1.5


class Allocated(NamedTuple):
    """What was allocated to the positions."""

    contexts: Tensor  # (B, P, D); zeros where there is no position
    mass: Tensor  # (B, P) of source vectors; all positions together have as much as there are vectors


class Allocation(nn.Module):
    """Shares every source vector out among the positions, and gives each position the mean of its shares.

        score_tn = (W p_t) · (W p_n + U m_n) / √D              p: sinusoids
        A_tn = softmax_t score_tn                              vector n goes to the positions that want it most
        c_t = Σ_n A_tn m_n / mass_t,    mass_t = Σ_n A_tn      a position with little mass has little to say

    The notes' softmax(Q Kᵀ / √d), which "allocates the encoder's features to time steps". It is taken over the time
    steps, so that they compete for the source: a position past the end of the target is left with little. Positions
    of both sides go through one matrix W. So a new allocation begins along the diagonal.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.positions = nn.Linear(width, width, bias=False)
        self.vectors = nn.Linear(width, width, bias=False)
        # Orthogonal, so that products of positions are those of their sinusoids. Sharper, a new allocation is nearer to
        # the diagonal and slower to leave it: learning to turn texts round, a hybrid's second branch was right in all
        # of them after 200 steps at 1.5, and in half of them at 2.5.
        nn.init.orthogonal_(self.positions.weight, SHARPNESS)
        nn.init.normal_(self.vectors.weight, std=width**-0.5)

    def forward(self, vectors: Tensor, real: Tensor, wanted: Tensor) -> Allocated:
        """Source vectors (B, S, D), which of them are real (B, S), and which positions there are (B, P)."""
        _, length, width = vectors.shape
        positions = wanted.shape[1]
        places = self.positions(sinusoids(width, max(length, positions)).to(vectors))
        keys = places[:length] + self.vectors(vectors)  # (B, S, D)
        scores = places[:positions] @ keys.mT * width**-0.5  # (B, P, S)
        log_shares = scores.masked_fill(~wanted[..., None], IMPOSSIBLE).log_softmax(1)
        log_shares = log_shares.masked_fill(~real[:, None], IMPOSSIBLE)
        contexts = log_shares.softmax(-1) @ vectors
        mass = log_shares.exp().sum(-1)
        return Allocated(contexts * wanted[..., None], mass * wanted)
