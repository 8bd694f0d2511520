"""The gated linear recurrence h_t = a_t ∘ h_{t−1} + b_t over a whole sequence at once.

All a_t and b_t are known before the first step, so this is a scan. Its gradient is a scan in reverse order. With g_t
the partial derivative of the loss by h_t,

    G_t = g_t + a_{t+1} ∘ G_{t+1}        ∂a_t = G_t ∘ h_{t−1}        ∂b_t = G_t        ∂h_0 = a_1 ∘ G_1

On a CPU a step is one fused multiply-add over (B, D) numbers. If they are many, sequential steps are bound by memory
bandwidth, and no algorithm with more arithmetic is faster. If they are few, call overhead dominates, so the sequence is
cut into blocks that are scanned in parallel, each from zero; then h at the end of a block is added to the next one,
scaled by the product of its a (Blelloch, 1990). Cumulative products in log space and scans by doubling were 2 to 16
times as slow (`benchmarks/scan.py`); the former also divides by products that underflow. Here there is no division, and
with
|a| ≤ 1 no value can grow.

Shape letters beside those of `chainrule.types`: C blocks, L steps in a block. Time comes first, so that a step is one
contiguous block of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

NARROW = 512
"""Numbers per step up to which call overhead dominates, so that the blocked scan is faster despite twice the work."""


def scan(decay: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """h_1 … h_T, (T, B, D), from a (T, B, D), b (T, B, D) and h_0 (B, D)."""
    if len(inputs) == 0:
        return inputs
    return cast(Tensor, _Scan.apply(decay, inputs, first))  # type: ignore[no-untyped-call]


def naive(decay: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """The reference for `scan`: a loop with gradients by autograd."""
    hidden = [first]
    for a, b in zip(decay, inputs, strict=True):
        hidden.append(a * hidden[-1] + b)
    return torch.stack(hidden[1:]) if len(inputs) else inputs


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, decay: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
        hidden = torch.empty_like(inputs)
        if blocks := _blocks(inputs):
            hidden.copy_(_in_blocks(decay, inputs, first, blocks))
        else:
            _steps(decay.unbind(), inputs.unbind(), first, hidden.unbind())
        ctx.save_for_backward(decay, first, hidden)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, first, hidden = ctx.saved_tensors
        inputs_grad = torch.empty_like(gradient)  # G
        inputs_grad[-1] = gradient[-1]
        decay_later, earlier, earlier_grad = decay[1:], gradient[:-1], inputs_grad[:-1]
        if blocks := _blocks(earlier):
            flipped = _in_blocks(decay_later.flip(0), earlier.flip(0), gradient[-1], blocks)
            earlier_grad.copy_(flipped.flip(0))
        else:
            _steps(decay_later.unbind()[::-1], earlier.unbind()[::-1], gradient[-1], earlier_grad.unbind()[::-1])
        decay_grad = torch.empty_like(inputs_grad)
        torch.mul(inputs_grad[0], first, out=decay_grad[0])
        torch.mul(inputs_grad[1:], hidden[:-1], out=decay_grad[1:])
        return decay_grad, inputs_grad, decay[0] * inputs_grad[0]


def _blocks(inputs: Tensor) -> int:
    """The number of blocks for (T, B, D); 0: a sequential scan, since a step is wide enough."""
    steps, rows, width = inputs.shape
    blocks = isqrt(steps)  # minimises the number of calls
    return blocks if blocks > 1 and rows * width <= NARROW else 0


def _steps(decay: Sequence[Tensor], inputs: Sequence[Tensor], before: Tensor, hidden: Sequence[Tensor]) -> None:
    """Fill `hidden` step by step."""
    for a, b, after in zip(decay, inputs, hidden, strict=True):
        torch.addcmul(b, a, before, out=after)
        before = after


def _in_blocks(decay: Tensor, inputs: Tensor, first: Tensor, blocks: int) -> Tensor:
    """The scan by a loop over the steps of a block and a loop over blocks, instead of one over all steps."""
    steps = len(inputs)
    length = -(-steps // blocks)
    missing = blocks * length - steps  # padding
    decay, inputs = (
        F.pad(part, (0, 0, 0, 0, 0, missing)).view(blocks, length, *first.shape) for part in (decay, inputs)
    )
    product, hidden = decay.clone(), inputs.clone()  # (C, L, B, D); right for the first step of each block
    for step in range(1, length):
        hidden[:, step].addcmul_(decay[:, step], hidden[:, step - 1])
        product[:, step].mul_(product[:, step - 1])
    carried = torch.empty_like(hidden[:, 0])  # h before each block
    carried[0] = first
    _steps(product[:-1, -1].unbind(), hidden[:-1, -1].unbind(), first, carried[1:].unbind())
    hidden.addcmul_(product, carried[:, None])
    return hidden.flatten(0, 1)[:steps]
