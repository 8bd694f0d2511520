"""Dropout for arbitrary tensors, and variational dropout for sequences.

On a CPU, PyTorch draws one random number per value, which took a tenth of the training time of a small Transformer.
Here one 64-bit random number decides for eight values, one byte each, which is 2.5 times as fast
(`benchmarks/dropout.py`). Rates are therefore rounded to multiples of 1/256, and values are scaled by the rounded rate.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 256  # values of a byte
LOWEST = -(2**63)  # smallest 64-bit integer


def apply_dropout(x: Tensor, rate: float) -> Tensor:
    """Set each value of x to 0 with probability `rate`, and scale the others to keep the expectation."""
    if not rate:  # the common case in decoding
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    lost = min(round(STEPS * rate), STEPS - 1)
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(LOWEST, None)
    survives = words.view(torch.uint8)[: x.numel()] >= lost
    return x * survives.view(x.shape).to(x.dtype).mul_(STEPS / (STEPS - lost))


class Dropout(nn.Module):
    """`apply_dropout` in training mode, the identity in evaluation mode."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def current_rate(self) -> float:
        """The rate in the current mode: 0 in evaluation."""
        return self.rate if self.training else 0.0

    def forward(self, values: Tensor) -> Tensor:
        return apply_dropout(values, self.current_rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class VariationalDropout(Dropout):
    """Dropout with one mask for all time steps of a row (Gal & Ghahramani, 2016).

    A new mask at each step would add noise to the input of a recurrent network; with a fixed mask the whole sequence
    passes through one thinned network. Each row has its own mask.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Drop features of values (T, B, D), time first."""
        return values * apply_dropout(torch.ones_like(values[:1]), self.current_rate) if self.current_rate else values
