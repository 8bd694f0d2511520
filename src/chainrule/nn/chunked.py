"""Cross-entropy of a linear readout over a large vocabulary, a few rows at a time.

The logits of a batch (N, V) can take more memory than the model and all of its activations, several times over with
their softmax and gradient. Here the gradients with respect to the hidden vectors and the table are computed together
with the loss, chunk by chunk, so that only one chunk of logits exists at a time, and nothing is computed twice. Within
autocast, matrix products are in its type, and softmax and sums in that of the table.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_LOGITS = 1 << 22
"""Maximum number of logits of a chunk, but at least those of one row."""


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """The sum over rows of the cross-entropy of softmax(W h + b): hidden (N, D), W (V, D), b (V,), targets (N,)."""
    return cast(Tensor, _Chunked.apply(hidden, weight, bias, targets, label_smoothing))  # type: ignore[no-untyped-call]


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float
    ) -> Tensor:
        needs_hidden, needs_weight, needs_bias = context.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        grad_bias = torch.zeros_like(bias) if bias is not None and needs_bias else None
        rows = max(1, CHUNK_LOGITS // weight.shape[0])
        total = weight.new_zeros(())
        kind = hidden.device.type
        half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None  # of products
        factors, offsets = (one if one is None or half is None else one.to(half) for one in (weight, bias))
        assert factors is not None
        for start in range(0, len(hidden), rows):
            part, wanted = hidden[start : start + rows], targets[start : start + rows, None]
            if half is not None:
                part = part.to(half)
            logits = F.linear(part, factors, offsets).to(weight.dtype)
            normaliser = logits.logsumexp(-1, keepdim=True)
            total += normaliser.sum() - (1 - smoothing) * logits.gather(1, wanted).sum()
            if smoothing:
                total -= smoothing * logits.mean(-1).sum()
            if not (needs_hidden or needs_weight or needs_bias):
                continue
            error = logits.sub_(normaliser).exp_()  # softmax, then minus the target distribution
            if smoothing:
                error -= smoothing / error.shape[1]
            error.scatter_add_(1, wanted, torch.full_like(wanted, smoothing - 1, dtype=error.dtype))
            if grad_bias is not None:
                grad_bias += error.sum(0)
            if half is not None:
                error = error.to(half)
            if grad_hidden is not None:
                grad_hidden[start : start + rows] = error @ factors
            if grad_weight is not None and half is None:
                grad_weight.addmm_(error.t(), part)
            elif grad_weight is not None:
                grad_weight += error.t() @ part
        context.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(context: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        [scale] = grad_outputs
        found = (None if gradient is None else gradient * scale for gradient in context.saved_tensors)
        return (*found, None, None)
