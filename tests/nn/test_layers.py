"""Elementary layers: squared ReLU, products with a single row."""

from __future__ import annotations

import pytest
import torch

from chainrule.nn.layers import is_single_row, matmul, squared_relu


def test_squared_relu_equals_its_definition_with_and_without_gradients() -> None:
    x = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = x.clamp(min=0) ** 2
    assert torch.equal(squared_relu(x), expected)
    assert torch.equal(squared_relu(x.clone().requires_grad_()).detach(), expected)


def test_squared_relu_has_the_gradient_of_its_definition() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(squared_relu, [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 3])
def test_matmul_equals_the_matrix_product_with_and_without_gradients(rows: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 5, generator=random, dtype=dtype)
    matrix = torch.randn(5, 9, generator=random, dtype=dtype)
    expected = torch.einsum("nd,do->no", x, matrix)
    torch.testing.assert_close(matmul(x, matrix), expected)
    with torch.no_grad():
        torch.testing.assert_close(matmul(x, matrix), expected)
        torch.testing.assert_close(matmul(x, matrix[:, :4]), expected[:, :4])  # a matrix that is not contiguous
    with torch.inference_mode():
        torch.testing.assert_close(matmul(x, matrix), expected)


def test_matmul_with_gradients_never_uses_numpy() -> None:
    x, matrix = torch.ones(1, 4, requires_grad=True), torch.ones(4, 2, requires_grad=True)
    assert not is_single_row(x)
    matmul(x, matrix).sum().backward()
    assert x.grad is not None
    assert matrix.grad is not None


def test_half_precision_never_uses_numpy() -> None:
    x, matrix = torch.ones(1, 4, dtype=torch.bfloat16), torch.ones(4, 2, dtype=torch.bfloat16)
    with torch.no_grad():
        assert matmul(x, matrix).dtype == torch.bfloat16
