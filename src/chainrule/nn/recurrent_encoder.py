"""Recurrent encoders of padded sequences, unidirectional or bidirectional.

Shape letters: S source tokens, B rows, I inputs, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.kernels.instructions import Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.recurrent import CELLS, LSTM, Cell, LayerState, RecurrentLayer
from chainrule.types import merge, select


class EncodedSequences(NamedTuple):
    """The output of a recurrent encoder."""

    outputs: Tensor  # (S, B, D) of the last layer; zeros at padding
    states: tuple[LayerState, ...]  # final state of each layer, after the last token of each row


class RecurrentEncoder(nn.Module):
    """A stack of layers; if bidirectional, each direction has half of the width (Schuster & Paliwal, 1997)."""

    def __init__(self, cell: Cell, layers: int, width: int, *, bidirectional: bool, dropout: float) -> None:
        super().__init__()
        layer = CELLS[cell]
        directions = 2 if bidirectional else 1
        self.forward_layers = nn.ModuleList(layer(width, width // directions, 0.0) for _ in range(layers))
        self.backward_layers = nn.ModuleList(
            layer(width, width // directions, 0.0) for _ in range(layers if bidirectional else 0)
        )
        self.dropout = VariationalDropout(dropout)

    def forward(self, values: Tensor, lengths: Tensor) -> EncodedSequences:
        """Encode embedded sequences (S, B, D), time first, of `lengths` (B,)."""
        order = LengthOrder(lengths)
        backwards = reversal_index(lengths, len(values))  # (S, B, 1)
        states = []
        for number, layer in enumerate(cast(Iterable[RecurrentLayer], self.forward_layers)):
            outputs, state = run_to_lengths(layer, values, order)
            if self.backward_layers:
                # Each row is reversed within its length, read, and reversed back.
                flipped = values.gather(0, backwards.expand_as(values))
                other = cast(RecurrentLayer, self.backward_layers[number])
                from_the_end, last = run_to_lengths(other, flipped, order)
                outputs = torch.cat([outputs, from_the_end.gather(0, backwards.expand_as(from_the_end))], -1)
                state = tuple(torch.cat(halves, -1) for halves in zip(state, last, strict=True))
            values = self.dropout(outputs)
            states.append(state)
        return EncodedSequences(values, tuple(states))

    def describe(self, program: ProgramBuilder, x: Vector) -> Vector:
        """The outputs of `forward` in a program that reads whole chunks, of bidirectional layers of LSTM cells."""
        for layers in zip(self.forward_layers, self.backward_layers, strict=True):
            out = program.new(x.size)
            for layer, part, backwards in zip(layers, program.split(out, 2), (False, True), strict=True):
                assert isinstance(layer, LSTM)
                gates = program.linear(x, layer.input_weight, layer.bias)
                program.lstm_scan(gates, layer.recurrent_weight, out=part, backwards=backwards)
            x = out
        return x


class LengthOrder:
    """Rows in order of decreasing length, and the distinct lengths."""

    def __init__(self, lengths: Tensor) -> None:
        self.rows = lengths.argsort(descending=True, stable=True)  # (B,)
        self.inverse = self.rows.argsort()
        self.lengths: list[int] = lengths[self.rows].tolist()
        self.ends = sorted(set(self.lengths))

    def active(self, time: int) -> int:
        """The number of rows with a length of at least `time`."""
        return sum(length >= time for length in self.lengths)


def reversal_index(lengths: Tensor, width: int) -> Tensor:
    """(S, B, 1): the index that reverses every row within its length; padding keeps its position."""
    times = torch.arange(width, device=lengths.device)[:, None]  # (S, 1)
    return torch.where(times < lengths, lengths - 1 - times, times)[..., None]


def run_to_lengths(layer: RecurrentLayer, values: Tensor, order: LengthOrder) -> tuple[Tensor, LayerState]:
    """Hidden vectors (S, B, D), zeros at padding, and the state of each row after its last token.

    Padding is never processed: the active rows advance to the next time at which some of them end; those keep their
    state, and the remaining rows continue.
    """
    steps, rows, _ = values.shape
    values = values.index_select(1, order.rows)
    state = layer.initial(rows)
    outputs: list[Tensor] = []
    finished: list[LayerState] = []
    start = 0
    for end in order.ends:
        active = order.active(end)
        hidden, state = layer(values[start:end, :active], tuple(part[:active] for part in state))
        outputs.append(F.pad(hidden, (0, 0, 0, rows - active)))
        remaining = order.active(end + 1)
        finished.append(tuple(part[remaining:] for part in state))
        state = tuple(part[:remaining] for part in state)
        start = end
    hidden = F.pad(torch.cat(outputs), (0, 0, 0, 0, 0, steps - start))
    return hidden.index_select(1, order.inverse), select(merge(finished[::-1]), order.inverse)


def gather_positions(values: Tensor, where: Tensor) -> Tensor:
    """(B, K, D): values (B, P, D) at positions (B, K); zeros past the last position."""
    padded = F.pad(values, (0, 0, 0, 1))
    where = where.clamp(max=values.shape[1])
    return padded.gather(1, where[..., None].expand(-1, -1, values.shape[-1]))
