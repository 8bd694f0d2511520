"""The gated linear recurrence h_t = a_t ∘ h_{t−1} + b_t over a whole sequence at once.

Because nothing in it depends on h but h itself, all a_t and b_t are known before the first step, and what is left is
a scan. Its gradient is a scan as well, from the end to the start. With g_t the gradient of the loss by h_t alone,

    G_t = g_t + a_{t+1} ∘ G_{t+1}        ∂a_t = G_t ∘ h_{t−1}        ∂b_t = G_t        ∂h_0 = a_1 ∘ G_1

On a CPU a step is one fused multiply and add over (B, D) numbers. Where they are many, steps one after another run at
the speed of memory, and nothing that does more arithmetic is faster. Where they are few, calling costs more than
computing, so the sequence is cut into blocks that take their steps side by side, each from zero; then h at the end
of a block is added to the next one, shrunk by the product of its a (Blelloch, 1990). Cumulative products in log
space and scans by doubling were 2 to 16 times as slow (`benchmarks/scan.py`); the former also divides by products
that underflow. Here there is no division, and with |a| ≤ 1 nothing can grow.

Shape letters beside those of `chainrule.types`: C blocks, L steps in a block. Time comes first, so that a step is one
contiguous piece of memory.
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
"""Numbers in a step up to which calling costs so much more than computing that doing everything twice pays."""


def scan(decay: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """h_1 … h_T, (T, B, D), from a (T, B, D), b (T, B, D) and h_0 (B, D)."""
    if len(inputs) == 0:
        return inputs
    return cast(Tensor, _Scan.apply(decay, inputs, first))  # type: ignore[no-untyped-call]


def naive(decay: Tensor, inputs: Tensor, first: Tensor) -> Tensor:
    """What `scan` computes, as a plain loop that leaves the gradients to autograd: the reference."""
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
            turned = _in_blocks(decay_later.flip(0), earlier.flip(0), gradient[-1], blocks)
            earlier_grad.copy_(turned.flip(0))
        else:
            _steps(decay_later.unbind()[::-1], earlier.unbind()[::-1], gradient[-1], earlier_grad.unbind()[::-1])
        decay_grad = torch.empty_like(inputs_grad)
        torch.mul(inputs_grad[0], first, out=decay_grad[0])
        torch.mul(inputs_grad[1:], hidden[:-1], out=decay_grad[1:])
        return decay_grad, inputs_grad, decay[0] * inputs_grad[0]


def _blocks(inputs: Tensor) -> int:
    """How many blocks to cut (T, B, D) into; 0: none, since a step is wide enough."""
    steps, rows, width = inputs.shape
    blocks = isqrt(steps)  # as many blocks as steps in one: the fewest calls
    return blocks if blocks > 1 and rows * width <= NARROW else 0


def _steps(decay: Sequence[Tensor], inputs: Sequence[Tensor], before: Tensor, hidden: Sequence[Tensor]) -> None:
    """Fill `hidden`, one step after another."""
    for a, b, after in zip(decay, inputs, hidden, strict=True):
        torch.addcmul(b, a, before, out=after)
        before = after


def _in_blocks(decay: Tensor, inputs: Tensor, first: Tensor, blocks: int) -> Tensor:
    """The same by a loop over the steps of a block and one over blocks, in place of a loop over all steps."""
    steps = len(inputs)
    length = -(-steps // blocks)
    missing = blocks * length - steps  # steps past the end, which nobody reads
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
