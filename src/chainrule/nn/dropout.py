"""Dropout: for any vectors, and for sequences.

On a CPU, PyTorch draws one random number for each value that may be dropped, which took a tenth of the time in which a
small Transformer learns. Here a number of eight random bytes decides for eight values, which is 2.5 times as fast
(`benchmarks/dropout.py`). So rates are multiples of 1/256, and what survives is scaled by what the rate really is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 256  # what a byte can be
LOWEST = -(2**63)  # of the numbers whose bytes are drawn


def apply_dropout(x: Tensor, rate: float) -> Tensor:
    """Each value of x, 0 with probability `rate` and else scaled up, so that it stays the same on average."""
    if not rate:  # decoding passes here in every block
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    lost = min(round(STEPS * rate), STEPS - 1)
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(LOWEST, None)
    survives = words.view(torch.uint8)[: x.numel()] >= lost
    return x * survives.view(x.shape).to(x.dtype).mul_(STEPS / (STEPS - lost))


class Dropout(nn.Module):
    """`apply_dropout` in training, nothing in evaluation mode."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def current_rate(self) -> float:
        """The rate as things stand."""
        return self.rate if self.training else 0.0

    def forward(self, values: Tensor) -> Tensor:
        return apply_dropout(values, self.current_rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class VariationalDropout(Dropout):
    """Dropout with one mask for all time steps of a row (Gal & Ghahramani, 2016).

    A fresh mask at each step adds noise that a recurrent net sees as a change in its input; a mask that stays makes
    the whole sequence pass through one thinned network. Each row has its own mask.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Drop features of values (T, B, D), time first."""
        return values * apply_dropout(torch.ones_like(values[:1]), self.current_rate) if self.current_rate else values
