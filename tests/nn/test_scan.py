"""The scan of the gated linear recurrence against the reference loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chainrule.nn.scan import NARROW, naive, scan


def problem(steps: int, rows: int, width: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Decays in (0, 1), inputs, and the value before the first step."""
    random = torch.Generator().manual_seed(steps)
    decay = torch.rand(steps, rows, width, dtype=dtype, generator=random)
    inputs = torch.randn(steps, rows, width, dtype=dtype, generator=random)
    return decay, inputs, torch.randn(rows, width, dtype=dtype, generator=random)


NARROW_AND_WIDE = [(1, 2, 3), (2, 1, 3), (7, 2, 3), (64, 1, 4), (101, 2, 5), (1, 2, NARROW), (9, 2, NARROW)]


@pytest.mark.parametrize(("steps", "rows", "width"), NARROW_AND_WIDE)
def test_the_scan_has_the_values_and_gradients_of_the_reference_loop(steps: int, rows: int, width: int) -> None:
    parts = [part.requires_grad_() for part in problem(steps, rows, width)]
    weights = torch.randn(steps, rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, expected = scan(*parts), naive(*parts)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    gradients = torch.autograd.grad((found * weights).sum(), parts)
    for gradient, reference in zip(gradients, torch.autograd.grad((expected * weights).sum(), parts), strict=True):
        torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-10)


@pytest.mark.parametrize("width", [3, NARROW + 1])
def test_a_scan_in_two_parts_equals_the_whole(width: int) -> None:
    decay, inputs, first = problem(50, 2, width)
    whole = scan(decay, inputs, first)
    head = scan(decay[:17], inputs[:17], first)
    tail = scan(decay[17:], inputs[17:], head[-1])
    torch.testing.assert_close(torch.cat([head, tail]), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [4, NARROW + 1])
def test_inputs_need_not_be_contiguous(width: int) -> None:
    decay, inputs, first = problem(30, 3, width)
    behind = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in (decay, inputs)]
    torch.testing.assert_close(scan(behind[0], behind[1], first), scan(decay, inputs, first), rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [4, NARROW + 1])
@pytest.mark.parametrize("decay", [0.0, 1e-30, 0.5, 0.999999, 1.0])
def test_single_precision_is_stable_over_thousands_of_steps(decay: float, width: int) -> None:
    """Both where cumulative products underflow and where the decay is 1."""
    _, inputs, first = problem(3000, 1, width, torch.float32)
    rough_decays = torch.full_like(inputs, decay).requires_grad_()
    decays = rough_decays.detach().double().requires_grad_()
    rough = scan(rough_decays, inputs, first)
    exact = scan(decays, inputs.double(), first.double())
    torch.testing.assert_close(rough.double(), exact, rtol=1e-4, atol=2e-3)
    [gradient] = torch.autograd.grad(exact[-1].sum(), decays)
    [rough_gradient] = torch.autograd.grad(rough[-1].sum(), rough_decays)
    torch.testing.assert_close(rough_gradient.double(), gradient, rtol=1e-4, atol=1e-2)


def test_an_empty_sequence_has_an_empty_scan() -> None:
    decay, inputs, first = problem(0, 2, 3)
    assert scan(decay, inputs, first).shape == naive(decay, inputs, first).shape == (0, 2, 3)
