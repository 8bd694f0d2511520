"""Dropout for sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class VariationalDropout(nn.Module):
    """Dropout with one mask for all time steps of a row (Gal & Ghahramani, 2016).

    A fresh mask at each step adds noise that a recurrent net sees as a change in its input; a mask that stays makes
    the whole sequence pass through one thinned network. Each row has its own mask, and what survives is scaled up
    by 1 / (1 − rate), so that nothing changes when the model is put into evaluation mode.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor) -> Tensor:
        """Drop features of values (T, B, D), time first."""
        if not self.training or self.rate == 0:
            return values
        return values * F.dropout(torch.ones_like(values[:1]), self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
