"""Time-step allocation."""

from __future__ import annotations

import torch

from chainrule.nn.branches import Allocation
from chainrule.nn.positions import sinusoids
from chainrule.types import length_mask


@torch.no_grad()
def test_allocation_distributes_every_source_vector_over_the_positions_of_its_row() -> None:
    torch.manual_seed(0)
    allocation, vectors = Allocation(6).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    lengths, counts = torch.tensor([5, 2]), torch.tensor([3, 7])
    contexts, mass = allocation(vectors, length_mask(lengths, 5), length_mask(counts, 7))
    torch.testing.assert_close(mass.sum(1), lengths.double())
    assert not mass[0, 3:].any()
    assert not contexts[0, 3:].any()
    unpadded = allocation(vectors[1:, :2], length_mask(lengths[1:], 2), length_mask(counts[1:], 7))
    torch.testing.assert_close(unpadded.contexts[0], contexts[1])
    torch.testing.assert_close(unpadded.mass[0], mass[1])


@torch.no_grad()
def test_a_context_is_the_weighted_mean_of_the_vectors_allocated_to_its_position() -> None:
    torch.manual_seed(0)
    allocation, vectors = Allocation(4).double(), torch.randn(1, 3, 4, dtype=torch.float64)
    contexts, mass = allocation(vectors, length_mask(torch.tensor([3]), 3), length_mask(torch.tensor([5]), 5))
    positions = sinusoids(4, 5).double() @ allocation.positions.weight.T
    keys = positions[:3] + vectors[0] @ allocation.vectors.weight.T
    weights = (positions @ keys.T / 2).softmax(0)  # (P, S): of each vector over the positions
    torch.testing.assert_close(mass[0], weights.sum(1))
    torch.testing.assert_close(contexts[0], weights @ vectors[0] / weights.sum(1, keepdim=True))


@torch.no_grad()
def test_the_initial_allocation_is_close_to_the_diagonal() -> None:
    torch.manual_seed(0)
    allocation = Allocation(64)
    vectors = 0.01 * torch.randn(1, 12, 64)
    vectors[0, torch.arange(12), torch.arange(12)] += 1.0  # encodes the source position
    contexts = allocation(vectors, length_mask(torch.tensor([12]), 12), length_mask(torch.tensor([12]), 12)).contexts
    assert contexts[0, :, :12].argmax(1).tolist() == list(range(12))
