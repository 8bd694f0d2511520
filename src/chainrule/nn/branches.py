"""The two branches of the hybrid: an autoregressive decoder, and a non-autoregressive one that sees the source only.

Shape letters: B rows, S source vectors, P target positions of the plan, K tokens in a chunk, D width.
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

IMPOSSIBLE = -1e9  # a score; finite, so that the softmax of a row of padding is defined

SHARPNESS = 1.5


class Allocated(NamedTuple):
    """The source as allocated to target positions."""

    contexts: Tensor  # (B, P, D); zeros past the positions of a row
    mass: Tensor  # (B, P); sums to the number of source vectors


class Allocation(nn.Module):
    """Time-step allocation: distributes every source vector over the target positions before any token is known.

        score_tn = (W p_t) · (W p_n + U m_n) / √D              p: sinusoids
        A_tn = softmax_t score_tn                              positions compete for vector n
        c_t = Σ_n A_tn m_n / mass_t,    mass_t = Σ_n A_tn      weighted mean of the allocated vectors

    This is the notes' softmax(Q Kᵀ / √d), which "allocates the encoder's features to time steps". The softmax is over
    the time steps, so positions past the end of the target receive little mass. Positions of both sides are projected
    by one matrix W, so that the allocation is close to the diagonal at initialisation.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.positions = nn.Linear(width, width, bias=False)
        self.vectors = nn.Linear(width, width, bias=False)
        # An orthogonal matrix keeps the products of sinusoids. A larger SHARPNESS makes the initial allocation closer
        # to the diagonal and harder to change: on reversed texts, the drafts of a hybrid were right for all texts after
        # 200 steps with 1.5, and for half of them with 2.5.
        nn.init.orthogonal_(self.positions.weight, SHARPNESS)
        nn.init.normal_(self.vectors.weight, std=width**-0.5)

    def forward(self, vectors: Tensor, real: Tensor, wanted: Tensor) -> Allocated:
        """Source vectors (B, S, D), their mask (B, S), and the mask of target positions (B, P)."""
        _, length, width = vectors.shape
        positions = wanted.shape[1]
        encoded = self.positions(sinusoids(width, max(length, positions)).to(vectors))
        keys = encoded[:length] + self.vectors(vectors)  # (B, S, D)
        scores = encoded[:positions] @ keys.mT * width**-0.5  # (B, P, S)
        log_weights = scores.masked_fill(~wanted[..., None], IMPOSSIBLE).log_softmax(1)
        log_weights = log_weights.masked_fill(~real[:, None], IMPOSSIBLE)
        contexts = log_weights.softmax(-1) @ vectors
        mass = log_weights.exp().sum(-1)
        return Allocated(contexts * wanted[..., None], mass * wanted)


class TargetPlan(NamedTuple):
    """What the source determines about the target before its first token."""

    source: Tensor  # (B, S, D) m
    lengths: Tensor  # (B,)
    contexts: Tensor  # (B, P, D) c; zeros past a row's positions, here and below
    drafts: Tensor  # (B, P, D) n
    weights: Tensor  # (B, P) min(1, mass / θ)


class Branches(nn.Module):
    """Vectors for P_AR and P_NAR at every position, up to the readout.

    c_t, mass_t = allocation of the source m to the positions
    n = BiLSTM(c_1 … c_P)                                                               source only
    h_t = GRU([e(y_{t−1}); c_t], h_{t−1}),    α_t = softmax_n(h_t · m_n),
    a_t = tanh(W [Σ_n α_tn m_n; h_t])                                                   y_<t and source
    """

    def __init__(self, width: int, layers: int, *, min_mass: float, dropout: float) -> None:
        super().__init__()
        self.min_mass = min_mass
        self.allocation = Allocation(width)
        self.drafter = RecurrentEncoder("lstm", layers, width, bidirectional=True, dropout=dropout)
        self.decoder = nn.ModuleList(GRU(2 * width if not layer else width, width) for layer in range(layers))
        self.combine = nn.Linear(2 * width, width)
        self.dropout = VariationalDropout(dropout)

    def plan(self, source: Tensor, lengths: Tensor, counts: Tensor) -> TargetPlan:
        """The plan for source vectors (B, S, D), with `counts` (B,) target positions per row."""
        wanted = length_mask(counts, int(counts.max()))
        contexts, mass = self.allocation(source, length_mask(lengths, source.shape[1]), wanted)
        drafts = self.drafter(self.dropout(contexts.transpose(0, 1)), counts).outputs.transpose(0, 1)
        weights = (mass / self.min_mass).clamp(max=1) if self.min_mass else wanted.to(mass)
        return TargetPlan(source, lengths, contexts, drafts, weights)

    def decode(
        self, embedded: Tensor, contexts: Tensor, states: tuple[LayerState, ...]
    ) -> tuple[Tensor, tuple[LayerState, ...]]:
        """Hidden vectors and states of the GRU after tokens (B, K, D), each with the context (B, K, D) of the next."""
        values = torch.cat([embedded, contexts], -1).transpose(0, 1)  # (K, B, 2D): time first
        after = []
        for layer, before in zip(cast(Iterable[GRU], self.decoder), states, strict=True):
            values, state = layer(self.dropout(values), before)
            after.append(state)
        return values.transpose(0, 1), tuple(after)

    def cross_attend(self, hidden: Tensor, source: Tensor, lengths: Tensor) -> Tensor:
        """From h (B, K, D) to a (B, K, D), by attention over source vectors (B, S, D)."""
        context = single_head_attention(source, lengths)(hidden[:, None])[:, 0]
        attended = self.combine(torch.cat([context, hidden], -1)).tanh()
        return cast(Tensor, self.dropout(attended.transpose(0, 1))).transpose(0, 1)  # dropout takes time first
