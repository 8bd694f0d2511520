"""Quantisation: numbers as codes of one byte into a table of 256 values.

The values are the means of 256 groups of equal size of the sorted numbers, so that they are dense where numbers are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

CODES = 256
SAMPLED = 1 << 20  # numbers, evenly spaced, that the table is made from


def codebook_of(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The sorted values (256,) that represent the numbers best; the last is repeated if fewer suffice."""
    if not len(values):
        return np.zeros(CODES, np.float32)
    sample = np.sort(values[:: -(-len(values) // SAMPLED)].astype(np.float64))
    distinct = np.unique(sample)
    if len(distinct) > CODES:
        distinct = np.unique([group.mean() for group in np.array_split(sample, CODES)])
    return np.append(distinct, np.full(CODES - len(distinct), distinct[-1])).astype(np.float32)


def codes_of(values: npt.NDArray[Any], codebook: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The code of the nearest value of each number."""
    borders = (codebook[1:].astype(np.float64) + codebook[:-1]) / 2
    return borders.searchsorted(values).astype(np.uint8)
