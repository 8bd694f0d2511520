"""Causal convolutions equal `conv1d`, on whole sequences and in chunks with a state of fixed size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.nn.convolution import DelayLine, GatedConvolution
from chainrule.nn.layers import Projection

WIDTH = 5
LENGTH = 23

every_shape = pytest.mark.parametrize(("kernel", "dilation"), [(2, 1), (2, 4), (3, 1), (3, 3), (4, 2), (3, 16)])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def start(line: DelayLine, rows: int) -> tuple[Tensor, Tensor]:
    """The initial ring buffer and positions."""
    return line.initial(rows, random(1)), torch.zeros(rows, dtype=torch.int64)


def convolved(x: Tensor, weight: Tensor, kernel: int, dilation: int) -> Tensor:
    """Reference: torch's causal convolution of x (B, T, D) with a weight matrix (O, k D)."""
    filters = weight.view(-1, kernel, x.shape[2]).mT  # (O, D, k)
    padded = F.pad(x.mT, ((kernel - 1) * dilation, 0))
    return F.conv1d(padded, filters, dilation=dilation).mT


@every_shape
def test_taps_times_a_matrix_equal_a_dilated_causal_convolution(kernel: int, dilation: int) -> None:
    line, x, weight = DelayLine(WIDTH, kernel, dilation), random(2, LENGTH, WIDTH), random(7, kernel * WIDTH, seed=1)
    torch.testing.assert_close(
        line.read(x, *start(line, 2)).values @ weight.t(), convolved(x, weight, kernel, dilation)
    )


@every_shape
@pytest.mark.parametrize("chunks", [[1] * LENGTH, [4, 1, 1, 9, 8], [0, 22, 1]])
@torch.no_grad()
def test_taps_of_chunks_equal_those_of_the_whole_sequence(kernel: int, dilation: int, chunks: list[int]) -> None:
    line, x = DelayLine(WIDTH, kernel, dilation), random(2, LENGTH, WIDTH)
    ring, positions = start(line, 2)
    found = []
    for chunk in x.split(chunks, dim=1):
        taps, ring = line.read(chunk, ring, positions)
        positions = positions + chunk.shape[1]
        found.append(taps)
    torch.testing.assert_close(torch.cat(found, dim=1), line.read(x, *start(line, 2)).values)


@every_shape
@pytest.mark.parametrize("chunk", [1, 2])
@torch.no_grad()
def test_rows_at_different_positions_use_their_own_buffers(kernel: int, dilation: int, chunk: int) -> None:
    line, x = DelayLine(WIDTH, kernel, dilation), random(3, LENGTH, WIDTH)
    starts = [0, 5, 12]
    rings = [line.read(x[row : row + 1, :begin], *start(line, 1)).ring for row, begin in enumerate(starts)]
    new = torch.stack([x[row, begin : begin + chunk] for row, begin in enumerate(starts)])
    found, ring = line.read(new, torch.cat(rings), torch.tensor(starts))
    ends = torch.tensor(starts) + chunk
    following = line.read(torch.stack([x[row, end] for row, end in enumerate(ends)])[:, None], ring, ends).values
    whole = line.read(x, *start(line, 3)).values
    expected = torch.stack([whole[row, begin : begin + chunk + 1] for row, begin in enumerate(starts)])
    torch.testing.assert_close(torch.cat([found, following], dim=1), expected)


@every_shape
def test_unrolling_a_ring_buffer_gives_the_last_inputs_in_temporal_order(kernel: int, dilation: int) -> None:
    line, x = DelayLine(WIDTH, kernel, dilation), random(1, 40, WIDTH)
    ring = line.read(x, *start(line, 1)).ring
    assert ring.numel() == line.receptive_field * WIDTH
    torch.testing.assert_close(line.unroll(ring, torch.tensor([40])), x[:, 40 - line.receptive_field :])


@torch.no_grad()
def test_a_single_step_updates_one_slot_whatever_the_dilation() -> None:
    line = DelayLine(WIDTH, kernel=3, dilation=8)
    ring = random(1, 8, 2 * WIDTH)
    before = ring.clone()
    after = line.read(random(1, 1, WIDTH, seed=1), ring, torch.tensor([21])).ring
    assert after is ring
    assert (ring != before).any(dim=-1).nonzero()[:, 1].tolist() == [21 % 8]


def test_a_ring_buffer_is_not_modified_while_gradients_are_enabled() -> None:
    line, ring = DelayLine(WIDTH, kernel=3, dilation=2), random(1, 2, 2 * WIDTH)
    before = ring.clone()
    line.read(random(1, 1, WIDTH, seed=1), ring, torch.tensor([5]))
    assert torch.equal(ring, before)


@every_shape
def test_gradients_through_chunks_equal_those_through_the_whole_sequence(kernel: int, dilation: int) -> None:
    line, x = DelayLine(WIDTH, kernel, dilation), random(2, LENGTH, WIDTH).requires_grad_()
    weights = random(2, LENGTH, kernel * WIDTH, seed=1)
    ring, positions = start(line, 2)
    found = []
    for chunk in x.split([9, 1, 13], dim=1):
        taps, ring = line.read(chunk, ring, positions)
        positions = positions + chunk.shape[1]
        found.append(taps)
    (chunked,) = torch.autograd.grad((torch.cat(found, dim=1) * weights).sum(), x)
    (whole,) = torch.autograd.grad((line.read(x, *start(line, 2)).values * weights).sum(), x)
    torch.testing.assert_close(chunked, whole)


def gated(kernel: int, dilation: int) -> GatedConvolution:
    layer = GatedConvolution(WIDTH, kernel=kernel, dilation=dilation).double()
    with torch.no_grad():
        for seed, parameter in enumerate(layer.parameters()):
            parameter.copy_(random(*parameter.shape, seed=seed))
    return layer


@every_shape
def test_a_gated_convolution_multiplies_a_convolution_by_the_sigmoid_of_another(kernel: int, dilation: int) -> None:
    layer, x = gated(kernel, dilation), random(2, LENGTH, WIDTH)
    value, gate = (convolved(x, part.weight, kernel, dilation) for part in (layer.value, layer.gate))
    found, _ = layer(x, layer.initial(2), torch.zeros(2, dtype=torch.int64))
    torch.testing.assert_close(found, (value * gate.sigmoid()) @ layer.out.weight.t())


def test_every_weight_is_one_matrix() -> None:
    layer = gated(3, 2)
    assert {name: type(part) for name, part in layer.named_children()} == dict.fromkeys(
        ("value", "gate", "out"), Projection
    )
    assert {tuple(parameter.shape) for parameter in layer.parameters()} == {(WIDTH, 3 * WIDTH), (WIDTH, WIDTH)}
