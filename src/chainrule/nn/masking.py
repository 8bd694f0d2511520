"""Which positions of a row are hidden."""

from __future__ import annotations

import torch
from torch import Tensor


def first(order: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """(B, K), true for the `count` positions of each row that come first in the order, among those that may."""
    places = order.masked_fill(~among, torch.inf).argsort(dim=1, stable=True)
    ranks = torch.empty_like(places).scatter_(
        1, places, torch.arange(order.shape[1], device=order.device).expand_as(places)
    )
    return (ranks < count[:, None]) & among
