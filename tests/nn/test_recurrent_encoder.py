"""Recurrent encoders of padded batches, unidirectional and bidirectional."""

from __future__ import annotations

import pytest
import torch

from chainrule.nn.recurrent import CELLS, Cell
from chainrule.nn.recurrent_encoder import (
    EncodedSequences,
    LengthOrder,
    RecurrentEncoder,
    reversal_index,
    run_to_lengths,
)

LENGTHS = torch.tensor([3, 6, 1, 3])

every_cell = pytest.mark.parametrize("cell", CELLS)


def encoder(cell: Cell, *, bidirectional: bool) -> RecurrentEncoder:
    torch.manual_seed(0)
    return RecurrentEncoder(cell, layers=2, width=6, bidirectional=bidirectional, dropout=0.0).double()


def values() -> torch.Tensor:
    return torch.randn(6, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def rows_of(encoded: EncodedSequences) -> list[torch.Tensor]:
    """All outputs and states of each row as one vector."""
    states = torch.cat([part for state in encoded.states for part in state], -1)
    return [
        torch.cat([outputs.flatten(), state]) for outputs, state in zip(encoded.outputs.unbind(1), states, strict=True)
    ]


@every_cell
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_row_is_independent_of_padding_and_of_other_rows(cell: Cell, bidirectional: bool) -> None:
    model, inputs = encoder(cell, bidirectional=bidirectional), values()
    together = model(inputs, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        outputs, states = model(inputs[:length, row : row + 1], torch.tensor([length]))
        torch.testing.assert_close(together.outputs[:length, row], outputs[:, 0])
        assert not together.outputs[length:, row].any()
        for found, single in zip(together.states, states, strict=True):
            for part, own in zip(found, single, strict=True):
                torch.testing.assert_close(part[row], own[0])


@every_cell
def test_run_to_lengths_equals_a_loop_that_stops_at_the_length_of_each_row(cell: Cell) -> None:
    torch.manual_seed(0)
    layer, inputs = CELLS[cell](6, 5, 0.0).double(), values()
    outputs, state = run_to_lengths(layer, inputs, LengthOrder(LENGTHS))
    for row, length in enumerate(LENGTHS.tolist()):
        expected, last = layer.naive(inputs[:length, row : row + 1], layer.initial(1), layer.recurrent_weight)
        torch.testing.assert_close(outputs[:length, row : row + 1], expected)
        for part, own in zip(state, last, strict=True):
            torch.testing.assert_close(part[row : row + 1], own)


def test_the_backward_direction_starts_at_the_end_of_each_row() -> None:
    where = reversal_index(LENGTHS, 6)[..., 0].t().tolist()
    assert where == [[2, 1, 0, 3, 4, 5], [5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5], [2, 1, 0, 3, 4, 5]]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_only_a_bidirectional_encoder_depends_on_later_tokens(bidirectional: bool) -> None:
    model, inputs = encoder("lstm", bidirectional=bidirectional), values().requires_grad_()
    first = model(inputs, LENGTHS).outputs[0, 1].sum()
    (gradient,) = torch.autograd.grad(first, inputs)
    assert bool(gradient[5, 1].any()) is bidirectional


def test_padding_has_no_gradient() -> None:
    model, inputs = encoder("lstm", bidirectional=True), values().requires_grad_()
    torch.stack([row.square().sum() for row in rows_of(model(inputs, LENGTHS))]).sum().backward()
    reached = inputs.grad.abs().sum(-1) > 0  # (S, B)
    assert torch.equal(reached, torch.arange(6)[:, None] < LENGTHS)
