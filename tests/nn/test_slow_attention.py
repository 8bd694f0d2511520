"""Slow attention, feature by feature, against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from chainrule.nn.slow_attention import naive, scores

ROWS, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 5, 4, 7


def problem() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    query = torch.randn(ROWS, HEADS, QUERIES, WIDTH, dtype=torch.float64, generator=random)
    key = torch.randn(ROWS, HEADS, KEYS, WIDTH, dtype=torch.float64, generator=random)
    return query.requires_grad_(), key.requires_grad_()


def test_a_score_is_the_norm_of_the_relu_of_the_sum() -> None:
    query, key = problem()
    passed = (query[1, 2, 3] + key[1, 2, 0]).relu()
    assert scores(query, key)[1, 2, 3, 0].item() == pytest.approx((passed.square().sum() / WIDTH).sqrt().item())


def test_the_loop_over_features_has_the_values_and_gradients_of_the_reference() -> None:
    query, key = problem()
    weights = torch.randn(ROWS, HEADS, QUERIES, KEYS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, expected = scores(query, key), naive(query, key)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * weights).sum(), (query, key)),
        torch.autograd.grad((expected * weights).sum(), (query, key)),
    )
    with torch.no_grad():  # a different code path
        torch.testing.assert_close(scores(query, key), expected)


def test_the_gradient_of_a_zero_norm_is_zero() -> None:
    query, key = (part.detach().abs().neg().requires_grad_() for part in problem())
    found = scores(query, key)
    assert not found.any()
    for gradient in torch.autograd.grad(found.sum(), (query, key)):
        assert not gradient.any()


class Sizes(TorchFunctionMode):
    """The size of the largest tensor that a function creates."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize(("implementation", "largest"), [(scores, 1), (naive, WIDTH)])
def test_no_tensor_has_every_feature_of_every_pair(implementation: Any, largest: int) -> None:
    """In units of the scores; the reference shows that the test detects such a tensor."""
    query, key = problem()
    kept = []
    with Sizes() as sizes, torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        found = implementation(query, key)
        torch.autograd.grad(found.sum(), (query, key))
    pairs = ROWS * HEADS * QUERIES * KEYS
    features = ROWS * HEADS * QUERIES * WIDTH  # size of the queries
    assert max(sizes.largest, *kept) == max(largest * pairs, features)
