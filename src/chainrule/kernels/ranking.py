"""The most probable next tokens of every row, compiled by Numba: what a step of beam search ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import OPTIONS, exponential
from chainrule.kernels.caching import entry

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


def _best_tokens(
    suppressed: Integers,  # ascending
    ids: Integers,  # (R, C)
    log_probs: npt.NDArray[np.float64],  # (R, C)
    logits: Floats,  # (R, V)
) -> None:
    """Write the C most probable tokens of each row, best first, ties by the lower id; −1 where there are no more.

    Suppressed tokens count in the distribution, but are not chosen. The log-probabilities of logits with NaN are NaN.
    """
    rows, count = ids.shape
    values = np.empty(count)
    for row in range(rows):
        scores = logits[row]
        highest = scores[0]
        for index in range(len(scores)):
            highest = max(highest, scores[index])
        total, wrong = 0.0, 0
        for index in range(len(scores)):
            total += float(exponential(scores[index] - highest))  # of NaN, it is a number
            wrong += scores[index] != scores[index]
        normaliser = math.nan if wrong > 0 else float(highest) + math.log(total)
        found, skipped = 0, 0
        for index in range(len(scores)):
            if skipped < len(suppressed) and suppressed[skipped] == index:
                skipped += 1
                continue
            value = float(scores[index])
            if value == -math.inf or (found == count and value <= values[count - 1]):
                continue
            place = min(found, count - 1)
            while place > 0 and values[place - 1] < value:
                values[place], ids[row, place] = values[place - 1], ids[row, place - 1]
                place -= 1
            values[place], ids[row, place] = value, index
            found = min(found + 1, count)
        for place in range(count):
            if place >= found:
                ids[row, place] = -1
            log_probs[row, place] = values[place] - normaliser if place < found else normaliser


best_tokens = entry(_best_tokens, **OPTIONS)
