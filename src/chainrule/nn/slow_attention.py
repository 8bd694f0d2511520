"""Slow attention: the score of a query and a key is the norm of the ReLU of their sum.

    e_ij = ‖ReLU(q_i + k_j)‖₂ / √d        ∂e_ij / ∂q_i = ∂e_ij / ∂k_j = ReLU(q_i + k_j) / (d e_ij)

Unlike dot-product attention, it is not a matrix product. The direct implementation builds a tensor (B, H, T, S, d) and
keeps it for the backward pass. Since the norm is a sum over features, `scores` loops over the features instead: its
largest tensors have the size of the scores, (B, H, T, S), and the backward pass recomputes what it needs. This is also
faster (`benchmarks/slow_attention.py`).

Shape letters: B rows, H heads, T queries, S keys, d width of a key.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SMALL = 1 << 16
"""Size up to which all features are computed at once, because call overhead dominates."""


def scores(query: Tensor, key: Tensor) -> Tensor:
    """(B, H, T, S) from queries (B, H, T, d) and keys (B, H, S, d)."""
    if query.numel() * key.shape[2] <= SMALL and not torch.is_grad_enabled():
        return naive(query, key)
    return cast(Tensor, _Scores.apply(query, key))  # type: ignore[no-untyped-call]


def naive(query: Tensor, key: Tensor) -> Tensor:
    """The reference for `scores`, with one tensor (B, H, T, S, d)."""
    passed = (query[:, :, :, None] + key[:, :, None]).relu()
    length: Tensor = torch.linalg.vector_norm(passed, dim=-1)
    return length.mul(query.shape[-1] ** -0.5)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor) -> Tensor:
        by_query = query.movedim(-1, 0)[..., None].contiguous()  # (d, B, H, T, 1): a feature is one block
        by_key = key.movedim(-1, 0)[..., None, :].contiguous()  # (d, B, H, 1, S)
        total = query.new_zeros(*query.shape[:3], key.shape[2])
        passed = torch.empty_like(total)
        for q, k in zip(by_query, by_key, strict=True):
            torch.add(q, k, out=passed).clamp_min_(0)
            total.addcmul_(passed, passed)
        found = total.div_(query.shape[-1]).sqrt_()
        ctx.save_for_backward(by_query, by_key, found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        by_query, by_key, found = ctx.saved_tensors
        # The norm is not differentiable at 0; 0 is the subgradient that matches the ReLU.
        scale = (gradient / (len(by_query) * found)).masked_fill_(found == 0, 0.0)
        query_grad, key_grad = torch.empty_like(by_query), torch.empty_like(by_key)
        passed = torch.empty_like(found)
        for q, k, q_grad, k_grad in zip(by_query, by_key, query_grad, key_grad, strict=True):
            torch.add(q, k, out=passed).clamp_min_(0).mul_(scale)
            torch.sum(passed, -1, keepdim=True, out=q_grad)
            torch.sum(passed, -2, keepdim=True, out=k_grad)
        return query_grad[..., 0].movedim(0, -1), key_grad[..., 0, :].movedim(0, -1)
