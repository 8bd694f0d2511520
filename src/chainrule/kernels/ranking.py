"""The most probable next tokens of every row, compiled by Numba: what a step of beam search ranks."""

from __future__ import annotations

import math
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import FAST, OPTIONS, compiled, exponential
from chainrule.kernels.caching import entry

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]

BLOCK = 64  # numbers, of which most blocks hold none of the best


def _highest(values: Floats) -> Any:
    highest = values[0]
    for index in range(len(values)):
        highest = max(highest, values[index])
    return highest


# Without NaN, the maximum is computed by vectors.
highest_number = cast(Any, numba.njit(**{**OPTIONS, "fastmath": FAST | {"nnan"}})(_highest))


@compiled
def best_of_row(scores: Floats, suppressed: Integers, work: Floats, ids: Integers, log_probs: Reals) -> int:
    """Write the most probable tokens of a row, best first, ties by the lower id, and return how many there are.

    There may be fewer than asked for. Suppressed tokens count in the distribution, but are not chosen. Returns −1 for
    scores with NaN. `work` has the size of the scores.
    """
    size, count, zero = len(scores), len(ids), scores.dtype.type(0.0)
    wrong = 0
    for index in range(size):
        wrong += scores[index] != scores[index]
        work[index] = scores[index]
    if wrong > 0:
        return -1
    highest = highest_number(work)
    total = 0.0
    for start in range(0, size, BLOCK):
        part = work[start : start + BLOCK]
        of_block = zero
        for index in range(len(part)):
            of_block += exponential(part[index] - highest)
        total += float(of_block)
    normaliser = float(highest) + math.log(total)
    for token in suppressed:
        work[token] = -np.inf
    found = 0
    for start in range(0, size, BLOCK):
        part = work[start : start + BLOCK]
        if found == count and float(highest_number(part)) <= log_probs[count - 1]:
            continue
        for index in range(len(part)):
            value = float(part[index])
            if value == -math.inf or (found == count and value <= log_probs[count - 1]):
                continue
            place = min(found, count - 1)
            while place > 0 and log_probs[place - 1] < value:
                log_probs[place], ids[place] = log_probs[place - 1], ids[place - 1]
                place -= 1
            log_probs[place], ids[place] = value, start + index
            found = min(found + 1, count)
    for place in range(found):
        log_probs[place] -= normaliser
    return found


def _best_tokens(
    suppressed: Integers,
    ids: Integers,  # (R, C)
    log_probs: Reals,  # (R, C)
    logits: Floats,  # (R, V)
) -> None:
    """`best_of_row` for each row; the id is −1 where there are no more, and all log-probabilities NaN for NaN."""
    work = np.empty(logits.shape[1], logits.dtype)
    for row in range(len(ids)):
        found = best_of_row(logits[row], suppressed, work, ids[row], log_probs[row])
        for place in range(max(found, 0), ids.shape[1]):
            ids[row, place] = -1
            log_probs[row, place] = -math.inf if found >= 0 else math.nan


best_tokens = entry(_best_tokens, **OPTIONS)
