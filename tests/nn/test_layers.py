"""Elementary layers: squared ReLU."""

from __future__ import annotations

import torch

from chainrule.nn.layers import squared_relu


def test_squared_relu_equals_its_definition_with_and_without_gradients() -> None:
    x = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = x.clamp(min=0) ** 2
    assert torch.equal(squared_relu(x), expected)
    assert torch.equal(squared_relu(x.clone().requires_grad_()).detach(), expected)


def test_squared_relu_has_the_gradient_of_its_definition() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(squared_relu, [x])
