"""The two branches of the hybrid: one reads the target so far, the other plans all of it from the source alone.

Shape letters: B rows, S source vectors, P positions that are planned, K tokens in a chunk, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from chainrule.nn.attention import single_head_attention
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.positions import sinusoids
from chainrule.nn.recurrent import GRU, LayerState
from chainrule.nn.recurrent_encoder import RecurrentEncoder
from chainrule.types import length_mask

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


class TargetPlan(NamedTuple):
    """All that is known of a target before its first token: functions of the source and of nothing else."""

    source: Tensor  # (B, S, D) m
    lengths: Tensor  # (B,)
    contexts: Tensor  # (B, P, D) c; zeros past a row's positions, here and below
    drafts: Tensor  # (B, P, D) n
    weights: Tensor  # (B, P) min(1, mass / θ)


class Branches(nn.Module):
    """Vectors for P_AR and P_NAR at every position, up to the readout.

    c_t, mass_t = allocation of the source m to the positions
    n = BiLSTM(c_1 … c_P)                                                               sees no target
    h_t = GRU([e(y_{t−1}); c_t], h_{t−1}),    α_t = softmax_n(h_t · m_n),
    a_t = tanh(W [Σ_n α_tn m_n; h_t])                                                   sees y_<t
    """

    def __init__(self, width: int, layers: int, *, min_mass: float, dropout: float) -> None:
        super().__init__()
        self.min_mass = min_mass
        self.allocation = Allocation(width)
        self.drafting = RecurrentEncoder("lstm", layers, width, bidirectional=True, dropout=dropout)
        self.writing = nn.ModuleList(GRU(2 * width if not layer else width, width) for layer in range(layers))
        self.combine = nn.Linear(2 * width, width)
        self.dropout = VariationalDropout(dropout)

    def plan(self, source: Tensor, lengths: Tensor, counts: Tensor) -> TargetPlan:
        """For source vectors (B, S, D) and so many positions in each row, (B,)."""
        wanted = length_mask(counts, int(counts.max()))
        contexts, mass = self.allocation(source, length_mask(lengths, source.shape[1]), wanted)
        drafts = self.drafting(self.dropout(contexts.transpose(0, 1)), counts).outputs.transpose(0, 1)
        weights = (mass / self.min_mass).clamp(max=1) if self.min_mass else wanted.to(mass)
        return TargetPlan(source, lengths, contexts, drafts, weights)

    def decode(
        self, embedded: Tensor, contexts: Tensor, states: tuple[LayerState, ...]
    ) -> tuple[Tensor, tuple[LayerState, ...]]:
        """The GRU's h after tokens (B, K, D), each with the context (B, K, D) of what follows; and its states then."""
        values = torch.cat([embedded, contexts], -1).transpose(0, 1)  # (K, B, 2D): time first
        after = []
        for layer, before in zip(cast(Iterable[GRU], self.writing), states, strict=True):
            values, state = layer(self.dropout(values), before)
            after.append(state)
        return values.transpose(0, 1), tuple(after)

    def cross_attend(self, hidden: Tensor, source: Tensor, lengths: Tensor) -> Tensor:
        """From vectors h (B, K, D) to a, by attention over source vectors (B, S, D)."""
        context = single_head_attention(source, lengths)(hidden[:, None])[:, 0]
        attended = self.combine(torch.cat([context, hidden], -1)).tanh()
        return cast(Tensor, self.dropout(attended.transpose(0, 1))).transpose(0, 1)  # which takes time first
