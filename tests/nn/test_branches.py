"""Time-step allocation."""

from __future__ import annotations

import torch

from chainrule.nn.branches import Allocation
from chainrule.nn.positions import sinusoids
from chainrule.types import length_mask


@torch.no_grad()
def test_every_source_vector_is_shared_out_whole_among_the_positions_of_its_row() -> None:
    torch.manual_seed(0)
    allocation, vectors = Allocation(6).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    lengths, counts = torch.tensor([5, 2]), torch.tensor([3, 7])
    contexts, mass = allocation(vectors, length_mask(lengths, 5), length_mask(counts, 7))
    torch.testing.assert_close(mass.sum(1), lengths.double())
    assert not mass[0, 3:].any()
    assert not contexts[0, 3:].any()
    alone = allocation(vectors[1:, :2], length_mask(lengths[1:], 2), length_mask(counts[1:], 7))
    torch.testing.assert_close(alone.contexts[0], contexts[1])
    torch.testing.assert_close(alone.mass[0], mass[1])


@torch.no_grad()
def test_a_context_is_the_mean_of_what_its_position_was_given() -> None:
    torch.manual_seed(0)
    allocation, vectors = Allocation(4).double(), torch.randn(1, 3, 4, dtype=torch.float64)
    contexts, mass = allocation(vectors, length_mask(torch.tensor([3]), 3), length_mask(torch.tensor([5]), 5))
    places = sinusoids(4, 5).double() @ allocation.positions.weight.T
    keys = places[:3] + vectors[0] @ allocation.vectors.weight.T
    shares = (places @ keys.T / 2).softmax(0)  # (P, S): of each vector over the positions
    torch.testing.assert_close(mass[0], shares.sum(1))
    torch.testing.assert_close(contexts[0], shares @ vectors[0] / shares.sum(1, keepdim=True))


@torch.no_grad()
def test_a_new_allocation_begins_along_the_diagonal() -> None:
    torch.manual_seed(0)
    allocation = Allocation(64)
    vectors = 0.01 * torch.randn(1, 12, 64)
    vectors[0, torch.arange(12), torch.arange(12)] += 1.0  # each vector tells where it stood
    contexts = allocation(vectors, length_mask(torch.tensor([12]), 12), length_mask(torch.tensor([12]), 12)).contexts
    assert contexts[0, :, :12].argmax(1).tolist() == list(range(12))
