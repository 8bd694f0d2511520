"""The beams of a search as arrays, and how they grow by one token: compiled by Numba, as `decoding.beam` defines it.

The live hypotheses of all prompts occupy the first rows of the state. The first one that grows from a row stays in it,
others are copied into free rows. Tensors of the source are never copied, since a row reads those of its prompt.

Shape letters: P prompts, W width, T tokens, E finished hypotheses, N results, S memories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import integers
from chainrule.kernels.ranking import best_of_row
from chainrule.kernels.registers import ordered, vector

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]

OF_SOURCE, CACHE, WHOLE = range(3)
"""What of a memory belongs to a hypothesis: nothing, the tokens read so far of a cache (H, C, D), or the whole row."""

BY_END, BY_LENGTH = range(2)
"""How a hypothesis is finished."""

BYTES: Any = np.zeros(1, dtype=np.int8)


class Beams(NamedTuple):
    """The hypotheses of all prompts, most probable first; `Beam` of `decoding.beam` for one prompt."""

    taken: Integers  # (1,) tokens of every live hypothesis; −1 if the model predicts NaN
    live: Integers  # (P,) number of live hypotheses
    rows: Integers  # (P, W) the row of each
    log_probs: Reals  # (P, W)
    tokens: Integers  # (P, T, W) the last token of the hypothesis at a rank after each step
    parents: Integers  # (P, T, W) the rank of its parent
    limits: Integers  # (P,) maximum number of tokens
    normalisers: Reals  # (T + 1,) of log P, by length
    ended: Integers  # (P,) number of finished hypotheses
    finished: Integers  # (P, E, 4) of each in the order of finishing: tokens, rank of the parent, last token, how
    finished_log_probs: Reals  # (P, E)
    costs: Reals  # (P, W) the least costs of finished hypotheses, ascending
    best: Reals  # (P, N, 2) the ranks of the best ones: whether it ended by itself, where that matters, and its score
    kinds: Integers  # (S,) of the memories
    sizes: Integers  # (S,) bytes of a row
    sources: Integers  # (P, S) the addresses of the source of each prompt
    ended_first: Integers  # (1,) whether those that ended by themselves rank before those cut by the limit

    @classmethod
    def start(
        cls, limits: Sequence[int], width: int, results: int, normalisers: Sequence[float], *, ended_first: bool = False
    ) -> Beams:
        """One hypothesis for each prompt, in rows 0 to P − 1; no memories."""
        prompts, steps = len(limits), max(limits, default=0)
        return cls(
            taken=np.zeros(1, np.int64),
            live=np.ones(prompts, np.int64),
            rows=np.arange(prompts, dtype=np.int64)[:, None].repeat(width, 1),
            log_probs=np.zeros((prompts, width)),
            tokens=np.empty((prompts, steps, width), np.int64),
            parents=np.empty((prompts, steps, width), np.int64),
            limits=np.array(limits, dtype=np.int64),
            normalisers=np.array(normalisers, dtype=np.float64),
            ended=np.zeros(prompts, np.int64),
            finished=np.empty((prompts, steps * width, 4), np.int64),
            finished_log_probs=np.empty((prompts, steps * width)),
            costs=np.full((prompts, width), np.inf),
            best=np.full((prompts, results, 2), -np.inf),
            kinds=np.empty(0, np.int64),
            sizes=np.empty(0, np.int64),
            sources=np.empty((prompts, 0), np.int64),
            ended_first=np.array([ended_first], np.int64),
        )


@ordered
def grow(beams: Beams, logits: Integers, size: int, suppressed: Integers, end: int, like: Any) -> int:
    """Extend the hypotheses of all prompts by one token; returns how many are live.

    `logits` (R,) are the addresses of the logits of each row. The rows of new hypotheses are those of their parents.
    """
    prompts, width = beams.rows.shape
    costs, ranks, tokens = np.empty(width), np.empty(width, np.int64), np.empty(width, np.int64)
    ids, log_probs, work = np.empty(width, np.int64), np.empty(width), np.empty(size, like.dtype)
    rows, ended_costs = np.empty(width, np.int64), np.empty(width)
    step, total = beams.taken[0], 0
    for prompt in range(prompts):
        if beams.live[prompt] == 0:
            continue
        found = 0
        for rank in range(beams.live[prompt]):
            row = beams.rows[prompt, rank]
            rows[rank] = row
            count = best_of_row(vector(logits[row], size, like), suppressed, work, ids, log_probs)
            if count < 0:
                beams.taken[0] = -1
                return 0
            for index in range(count):
                cost, token = -log_probs[index] - beams.log_probs[prompt, rank], ids[index]
                if cost == math.inf:
                    continue
                if found == width and not _precedes(cost, rank, token, costs[-1], ranks[-1], tokens[-1]):
                    continue
                place = min(found, width - 1)
                while place > 0 and _precedes(cost, rank, token, costs[place - 1], ranks[place - 1], tokens[place - 1]):
                    costs[place], ranks[place], tokens[place] = costs[place - 1], ranks[place - 1], tokens[place - 1]
                    place -= 1
                costs[place], ranks[place], tokens[place] = cost, rank, token
                found = min(found + 1, width)
        live, new = 0, 0
        for index in range(found):
            cost = costs[index]
            cheaper = index
            for place in range(width):
                cheaper += beams.costs[prompt, place] <= cost
            if cheaper >= width:
                break
            if tokens[index] == end or step + 1 == beams.limits[prompt]:
                how = BY_END if tokens[index] == end else BY_LENGTH
                _finish(beams, prompt, step + 1, ranks[index], tokens[index], how, cost)
                ended_costs[new] = cost
                new += 1
            else:
                beams.tokens[prompt, step, live], beams.parents[prompt, step, live] = tokens[index], ranks[index]
                beams.log_probs[prompt, live], beams.rows[prompt, live] = -cost, rows[ranks[index]]
                live += 1
        for index in range(new):
            _insert(beams.costs[prompt], ended_costs[index])
        if live > 0 and beams.ended[prompt] >= beams.best.shape[1] and not _can_improve(beams, prompt, step + 1):
            live = 0
        beams.live[prompt] = live
        total += live
    beams.taken[0] = step + 1
    return total


@ordered
def _precedes(cost: float, rank: int, token: int, other: float, other_rank: int, other_token: int) -> bool:
    """By cost, then by the rank of the parent, then by the id."""
    if cost != other:
        return cost < other
    return rank < other_rank or (rank == other_rank and token < other_token)


@ordered
def _insert(costs: Reals, cost: float) -> None:
    """Keep the least of the costs, in order."""
    place = len(costs) - 1
    if costs[place] <= cost:
        return
    while place > 0 and costs[place - 1] > cost:
        costs[place] = costs[place - 1]
        place -= 1
    costs[place] = cost


@ordered
def _finish(beams: Beams, prompt: int, length: int, parent: int, token: int, how: int, cost: float) -> None:
    number = beams.ended[prompt]
    record = beams.finished[prompt, number]
    record[0], record[1], record[2], record[3] = length, parent, token, how
    beams.finished_log_probs[prompt, number] = -cost
    beams.ended[prompt] += 1
    ended = 0.0 if beams.ended_first[0] != 0 and how == BY_LENGTH else 1.0
    score = -cost / beams.normalisers[length]
    best = beams.best[prompt]
    place = len(best)
    while place > 0 and (best[place - 1, 0] < ended or (best[place - 1, 0] == ended and best[place - 1, 1] < score)):
        if place < len(best):
            best[place] = best[place - 1]
        place -= 1
    if place < len(best):
        best[place, 0], best[place, 1] = ended, score


@ordered
def _can_improve(beams: Beams, prompt: int, length: int) -> bool:
    """Whether a live hypothesis could still be among the results; see `Beam`."""
    log_prob, normalisers = beams.log_probs[prompt, 0], beams.normalisers
    score = max(log_prob / normalisers[length + 1], log_prob / normalisers[beams.limits[prompt]])
    ended, to_beat = beams.best[prompt, -1]
    return bool(ended < 1.0 or score > to_beat)


@ordered
def place(beams: Beams, count: int, pointers: Integers, strides: Any, counters: Integers) -> Integers:
    """Give each of the `count` live hypotheses a row with its state and source; the token that each row reads next."""
    latest, taken = np.empty((count, 1), np.int64), np.zeros(count, np.bool_)
    step = beams.taken[0] - 1
    longest = 0
    for counter in counters:
        for row in range(len(pointers)):
            longest = max(longest, integers(pointers[row, counter], 1)[0])
    for moving in (False, True):
        free = 0
        for prompt in range(len(beams.live)):
            for rank in range(beams.live[prompt]):
                parent, token = beams.rows[prompt, rank], beams.tokens[prompt, step, rank]
                if moving and parent < 0:  # it stays in the row of its parent
                    beams.rows[prompt, rank] = -1 - parent
                    continue
                if moving:
                    while taken[free]:
                        free += 1
                    _copy_state(beams, parent, free, longest, pointers, strides)
                elif parent < count and not taken[parent]:
                    free = parent
                else:
                    continue
                taken[free] = True
                latest[free, 0] = token
                beams.rows[prompt, rank] = free if moving else -1 - free
                for memory in range(len(beams.kinds)):
                    if beams.kinds[memory] == OF_SOURCE:
                        pointers[free, memory] = beams.sources[prompt, memory]
    return latest


@ordered
def _copy_state(
    beams: Beams, parent: int, row: int, longest: int, pointers: Integers, strides: npt.NDArray[np.int64]
) -> None:
    for memory in range(len(beams.kinds)):
        here, there, size = pointers[row, memory], pointers[parent, memory], beams.sizes[memory]
        if beams.kinds[memory] == WHOLE:
            _copy_bytes(here, there, size)
        elif beams.kinds[memory] == CACHE:
            of_head, of_token = strides[0, memory, 1], strides[0, memory, 2]
            for start in range(0, size, of_head):
                _copy_bytes(here + start, there + start, min(longest * of_token, of_head))


@ordered
def _copy_bytes(out: int, source: int, size: int) -> None:
    read, written = vector(source, size, BYTES), vector(out, size, BYTES)
    for index in range(size):
        written[index] = read[index]


NO_BEAMS = Beams.start((), 0, 0, ())
