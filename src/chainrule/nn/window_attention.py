"""Causal self-attention over the last W tokens, with a cache of fixed size: for models of unlimited context.

Shape letters: B rows, H heads, K new tokens, W window, N blocks of L ≤ W tokens, D width of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.nn.moving_window import MovingWindow

STEEPEST = 8.0  # the smallest slope is 2⁻⁸


def head_slopes(heads: int) -> Tensor:
    """(H,) in double precision: how fast the score of each head decreases with the distance."""
    return torch.tensor([2 ** (-STEEPEST * (head + 1) / heads) for head in range(heads)], dtype=torch.float64)


def window_bias(positions: Tensor, count: int, *, window: int, heads: int, dtype: torch.dtype) -> Tensor:
    """Bias (B or 1, N, H, L, W + L) on the scores of `count` new tokens over the cached and new ones.

    A token attends to itself and to the W before it; the score decreases with the distance, with a slope for each head
    (ALiBi: Press et al., 2022). Rows have read `positions` (B,) tokens, so the first entries of the cache of a short
    text are not tokens. New tokens are in N blocks of L, each with the W tokens before it.
    """
    block, device = min(count, window), positions.device
    keys = torch.arange(window + block, device=device)
    distance = torch.arange(window, window + block, device=device)[:, None] - keys  # (L, W + L)
    slopes = head_slopes(heads).to(device, dtype)
    bias = -slopes[:, None, None] * distance
    bias = bias.masked_fill((distance < 0) | (distance > window), -math.inf)[None, None]
    missing = window - positions  # (B,)
    if int(missing.max()) <= 0:
        return bias.expand(1, -(-count // block), -1, -1, -1)
    starts = torch.arange(0, count, block, device=device)[:, None] + keys  # (N, W + L)
    absent = starts < missing[:, None, None]
    return bias.masked_fill(absent[:, :, None, None], -math.inf)


class WindowAttention:
    """New tokens attend to the cached ones and to each other; `keys` and `values` are then the caches after them."""

    def __init__(self, window: MovingWindow, keys: Tensor, values: Tensor, positions: Tensor, bias: Tensor) -> None:
        self.window = window
        self.keys, self.values = keys, values  # (B, H, W + S, D)
        self.positions = positions  # (B,) tokens read so far
        self.bias = bias

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(B, H, K, D) each to (B, H, K, D)."""
        # Training in half precision starts with caches in float32; from then on they have the type of the keys.
        keys, self.keys = self.window.append(self.keys.to(key.dtype), key, self.positions, 2)
        values, self.values = self.window.append(self.values.to(value.dtype), value, self.positions, 2)
        count, (_, blocks, _, block, _) = query.shape[2], self.bias.shape
        if blocks == 1:
            return _attention(query, keys, values, self.bias[:, 0])
        rows, heads, _, width = query.shape
        extra = blocks * block - count
        query, keys, values = (F.pad(part, (0, 0, 0, extra)) for part in (query, keys, values))
        found = _attention(
            query.reshape(rows, heads, blocks, block, width).transpose(1, 2),
            _reachable(keys, block),
            _reachable(values, block),
            self.bias,
        )  # (B, N, H, L, D)
        return found.transpose(1, 2).flatten(2, 3)[:, :, :count]


def _reachable(entries: Tensor, block: int) -> Tensor:
    """The entries (B, H, W + N W, D) that each block of W tokens reaches, its own and W before: (B, N, H, 2W, D).

    `Tensor.unfold` is the same without a copy, but its gradient takes several times as long.
    """
    rows, heads, _, width = entries.shape
    parts = entries.reshape(rows, heads, -1, block, width).transpose(1, 2)
    return torch.cat([parts[:, :-1], parts[:, 1:]], 3)


def _attention(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Queries (..., L, D) attend to keys and values (..., S, D), with a bias on the scores.

    Training on a CPU computes one product after the other, which keeps (W + L) L scores per block and head. In bfloat16
    torch's fused attention takes three times as long, forward and backward, with W = L = 128; in float32 as long.
    """
    if query.device.type != "cpu" or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(query, keys, values, bias)
    scores = query / math.sqrt(query.shape[-1]) @ keys.mT
    return (scores + bias.to(scores.dtype)).softmax(-1) @ values
