"""Quantisation: numbers as codes of 16 bits, evenly spaced from the lowest to the highest.

A number is rounded down to the next code: quantised probabilities are never too high, so that the likelihood of a text
is a lower bound of that under the normalised predictions. Codes are stored as signed integers, which torch supports.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.nn.columns import Column, Store

CODES = 1 << 16
ZERO = 1 << 15  # what is subtracted from a code to store it


def quantised(values: Column, store: Store) -> tuple[Column, tuple[float, float]]:
    """The codes of the numbers, and their scale: the lowest number, and the distance between codes."""
    lowest, highest = np.inf, -np.inf
    for begin, end in store.spans(len(values)):
        chunk = values.read(begin, end)
        lowest, highest = min(lowest, float(chunk.min())), max(highest, float(chunk.max()))
    if not len(values):
        lowest = highest = 0.0
    step = (highest - lowest) / (CODES - 1) or 1.0
    codes = store.column(np.int16)
    for begin, end in store.spans(len(values)):
        codes.append(_codes(values.read(begin, end).astype(np.float64), lowest, step))
    return codes, (lowest, step)


def _codes(values: npt.NDArray[np.float64], lowest: float, step: float) -> npt.NDArray[np.int16]:
    codes = np.floor((values - lowest) / step * (1 + 1e-12)).clip(0, CODES - 1)  # the highest number keeps its own code
    return (codes - ZERO).astype(np.int16)


def decoded(codes: Tensor, scale: Tensor) -> Tensor:
    """Numbers in the type of the scale (2,)."""
    lowest, step = scale.double().unbind()
    return (lowest + step * (codes.to(torch.float64) + ZERO)).to(scale.dtype)
