"""Recurrent layers that read whole sources, in one direction or both, each row up to its own end.

Shape letters: S source tokens, B rows, I inputs, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.recurrent import CELLS, Cell, LayerState, RecurrentLayer
from chainrule.types import merge, select


class Encoded(NamedTuple):
    """What was read from sources."""

    outputs: Tensor  # (S, B, D) of the last layer; zeros past a row's length
    states: tuple[LayerState, ...]  # of each layer, after the row's last token


class RecurrentEncoder(nn.Module):
    """A stack of layers; read in both directions, each direction has half of the width (Schuster & Paliwal, 1997)."""

    def __init__(self, cell: Cell, layers: int, width: int, *, bidirectional: bool, dropout: float) -> None:
        super().__init__()
        layer = CELLS[cell]
        directions = 2 if bidirectional else 1
        self.forward_layers = nn.ModuleList(layer(width, width // directions, 0.0) for _ in range(layers))
        self.backward_layers = nn.ModuleList(
            layer(width, width // directions, 0.0) for _ in range(layers if bidirectional else 0)
        )
        self.dropout = VariationalDropout(dropout)

    def forward(self, values: Tensor, lengths: Tensor) -> Encoded:
        """Read embedded sources (S, B, D), time first."""
        order = Order(lengths)
        backwards = reversed_rows(lengths, len(values))  # (S, B, 1)
        states = []
        for number, layer in enumerate(cast(Iterable[RecurrentLayer], self.forward_layers)):
            outputs, state = read_to_the_end(layer, values, order)
            if self.backward_layers:
                # A row starts at its own end: it is turned round within its length, read, and turned back.
                turned = values.gather(0, backwards.expand_as(values))
                other = cast(RecurrentLayer, self.backward_layers[number])
                from_the_end, last = read_to_the_end(other, turned, order)
                outputs = torch.cat([outputs, from_the_end.gather(0, backwards.expand_as(from_the_end))], -1)
                state = tuple(torch.cat(halves, -1) for halves in zip(state, last, strict=True))
            values = self.dropout(outputs)
            states.append(state)
        return Encoded(values, tuple(states))


class Order:
    """Rows from the longest to the shortest, and the times at which some of them end."""

    def __init__(self, lengths: Tensor) -> None:
        self.rows = lengths.argsort(descending=True, stable=True)  # (B,)
        self.places = self.rows.argsort()  # the way back
        self.lengths: list[int] = lengths[self.rows].tolist()
        self.ends = sorted(set(self.lengths))

    def running(self, time: int) -> int:
        """How many rows, from the first on, are at least so long."""
        return sum(length >= time for length in self.lengths)


def reversed_rows(lengths: Tensor, width: int) -> Tensor:
    """(S, B, 1): where each token is found when every row is read from its end; padding stays where it is."""
    times = torch.arange(width, device=lengths.device)[:, None]  # (S, 1)
    return torch.where(times < lengths, lengths - 1 - times, times)[..., None]


def read_to_the_end(layer: RecurrentLayer, values: Tensor, order: Order) -> tuple[Tensor, LayerState]:
    """Hidden vectors (S, B, D), zeros past each row's length, and the state of each row after its last token.

    No padding is read. The rows that are still running are read up to the next time at which some of them end; those
    leave with their state, and the others go on.
    """
    steps, rows, _ = values.shape
    values = values.index_select(1, order.rows)
    state = layer.initial(rows)
    outputs: list[Tensor] = []
    left: list[LayerState] = []
    start = 0
    for end in order.ends:
        running = order.running(end)
        read, state = layer(values[start:end, :running], tuple(part[:running] for part in state))
        outputs.append(F.pad(read, (0, 0, 0, rows - running)))
        going_on = order.running(end + 1)
        left.append(tuple(part[going_on:] for part in state))
        state = tuple(part[:going_on] for part in state)
        start = end
    hidden = F.pad(torch.cat(outputs), (0, 0, 0, 0, 0, steps - start))
    return hidden.index_select(1, order.places), select(merge(left[::-1]), order.places)


def gather_positions(values: Tensor, where: Tensor) -> Tensor:
    """(B, K, D): what values (B, P, D) are at positions (B, K); zeros past the last."""
    padded = F.pad(values, (0, 0, 0, 1))
    where = where.clamp(max=values.shape[1])
    return padded.gather(1, where[..., None].expand(-1, -1, values.shape[-1]))
