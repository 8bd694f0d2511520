"""The two branches of the hybrid: an autoregressive decoder, and a non-autoregressive one that sees the source only.

Shape letters: B rows, S source vectors, P target positions of the plan, K tokens in a chunk, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chainrule.kernels.instructions import Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.nn.dropout import Dropout, VariationalDropout
from chainrule.nn.layers import rms_norm
from chainrule.nn.mlp import SquaredReluMLP
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
        lowest = max(IMPOSSIBLE, torch.finfo(scores.dtype).min)  # float16 ends at −65,504
        log_weights = scores.masked_fill(~wanted[..., None], lowest).log_softmax(1)
        log_weights = log_weights.masked_fill(~real[:, None], lowest)
        contexts = log_weights.softmax(-1) @ vectors
        mass = log_weights.exp().sum(-1)
        mass = mass.clamp(min=torch.finfo(mass.dtype).tiny)  # of a row's positions none is exactly 0
        return Allocated(contexts * wanted[..., None], mass * wanted)

    def describe(self, program: ProgramBuilder, vectors: Vector, length: int, *, mass: Vector) -> Vector:
        """The contexts of `forward` in a program, of a chunk of `length` vectors to as many positions."""
        encoded = program.new(vectors.size)
        program.position(sinusoids(vectors.size, length), out=encoded)
        queries = program.apply(self.positions, encoded)
        keys = program.add(queries, program.apply(self.vectors, vectors))
        return program.allocate(queries, keys, vectors, length, mass=mass)


class TargetPlan(NamedTuple):
    """What the source determines about the target before its first token."""

    source: Tensor  # (B, S, D) m
    lengths: Tensor  # (B,)
    contexts: Tensor  # (B, P, D) c; zeros past a row's positions, here and below
    drafts: Tensor  # (B, P, D) n
    mass: Tensor  # (B, P); positive at a row's positions
    counts: Tensor  # (B,) a row's positions


class ParallelBranch(nn.Module):
    """Vectors for P_NAR at every position, up to the readout, from the source only.

    c_t, mass_t = allocation of the source m to the positions
    n = norm(BiLSTM(c_1 … c_P))
    """

    def __init__(self, width: int, layers: int, *, dropout: float) -> None:
        super().__init__()
        self.allocation = Allocation(width)
        self.lstm = RecurrentEncoder("lstm", layers, width, bidirectional=True, dropout=dropout)
        self.dropout = VariationalDropout(dropout)

    def plan(self, source: Tensor, lengths: Tensor, counts: Tensor, rows: Tensor | None = None) -> TargetPlan:
        """The plan for source vectors (B, S, D), with `counts` (B,) target positions per row.

        Only `rows`, if given, have drafts; those of the others are zero, and so is their mass.
        """
        wanted = length_mask(counts, int(counts.max()))
        contexts, mass = self.allocation(source, length_mask(lengths, source.shape[1]), wanted)
        if rows is None:
            return TargetPlan(source, lengths, contexts, self._drafts(contexts, counts), mass, counts)
        drafts = torch.zeros_like(contexts)
        if len(rows):  # in half precision, the LSTM's outputs are still in float32
            found = self._drafts(contexts[rows], counts[rows])
            drafts = drafts.to(found).index_put((rows,), found)
        absent = torch.ones_like(lengths, dtype=torch.bool).index_fill(0, rows, False)
        return TargetPlan(source, lengths, contexts, drafts, mass.masked_fill(absent[:, None], 0.0), counts)

    def describe(self, program: ProgramBuilder, source: Vector, length: int, *, drafts: Vector, mass: Vector) -> None:
        """The drafts and the mass of `plan` in a program, for a chunk of `length` vectors and as many positions."""
        contexts = self.allocation.describe(program, source, length, mass=mass)
        program.rms_norm(self.lstm.describe(program, contexts), out=drafts)

    def _drafts(self, contexts: Tensor, counts: Tensor) -> Tensor:
        return rms_norm(self.lstm(self.dropout(contexts.transpose(0, 1)), counts).outputs.transpose(0, 1))


class RecurrentBlock(nn.Module):
    """A block of the autoregressive branch: a GRU, attention, or both, and an MLP, each with a residual connection.

        g = x + GRU(norm(x))        h = g + Attention(norm(g))        x' = h + MLP(norm(h))

    Compare Merity (2019), whose language model is such a stack of LSTMs with attention, and Chen et al. (2018), who
    decode translations by recurrent layers that attend to a Transformer encoder.
    """

    def __init__(
        self, width: int, *, recurrent: bool, attention: nn.Module | None, mlp_ratio: int, dropout: float
    ) -> None:
        super().__init__()
        self.gru = GRU(width, width) if recurrent else None
        self.attention = attention
        self.mlp = SquaredReluMLP(width, mlp_ratio * width, width)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, state: LayerState, attend: Callable[[Tensor], Tensor] | None
    ) -> tuple[Tensor, LayerState]:
        """(B, K, D) and the state of the GRU to the same; `attend` applies the attention, if the block has any."""
        if self.gru is not None:
            hidden, state = self.gru(rms_norm(x).transpose(0, 1), state)  # time first
            x = x + self.dropout(hidden.transpose(0, 1))
        if attend is not None:
            x = x + self.dropout(attend(rms_norm(x)))
        return x + self.dropout(self.mlp(rms_norm(x))), state

    def describe(
        self, program: ProgramBuilder, x: Vector, slot: int, attend: Callable[[ProgramBuilder, Vector], None] | None
    ) -> None:
        """`forward` in a compiled step, in place; the state of the GRU is the state tensor `slot`."""
        with program.scratch():
            if self.gru is not None:
                program.add(x, self.gru.describe(program, program.rms_norm(x), slot), out=x)
            if attend is not None:
                attend(program, x)
            self.mlp.describe(program, program.rms_norm(x), add_to=x)
