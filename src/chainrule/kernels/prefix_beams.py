"""CTC beam search with n-gram shallow fusion, compiled by Numba: `nn.ctc.prefix_beam_search` in the same order of sums.

Shape letters: B rows, F frames of all rows, M candidates of all frames, U frames of the longest row, N prefixes.
"""

from __future__ import annotations

import math

import numpy as np

from chainrule.kernels.backoff import Doubles, Floats, Integers, compiled, exported, read_token

TINY = 1e-300  # as in `nn.ctc`
NONE = -1
PARENT, TOKEN, CHILD, SIBLING, FRAME = range(5)  # of a prefix: its children are a list, the newest first
FUSION, BLANK, TOKEN_END, SCORE = range(4)


@compiled
def _score(numbers: Doubles) -> None:
    numbers[SCORE] = math.log(numbers[BLANK] + numbers[TOKEN_END] + TINY) + numbers[FUSION]


@compiled
def _keep_best(beam: Integers, count: int, width: int, numbers: Doubles) -> int:
    """Move the `width` prefixes with the highest scores to the front, in order; of equal ones, the first."""
    for place in range(1, count):
        moved = beam[place]
        if place >= width and numbers[beam[width - 1], SCORE] >= numbers[moved, SCORE]:
            continue
        here = min(place, width)
        while here > 0 and numbers[beam[here - 1], SCORE] < numbers[moved, SCORE]:
            beam[here] = beam[here - 1]
            here -= 1
        beam[here] = moved
    return width


@exported
def search(
    levels: Integers,
    base: int,
    scales: Doubles,
    first: Integers,  # (order,) the nodes of the language model before a target
    weights: Doubles,  # (2,) of the language model, and of the length
    width: int,
    blanks: Doubles,  # (F,) probabilities
    counts: Integers,  # (F,) number of candidates
    tokens: Integers,  # (M,)
    probs: Doubles,  # (M,)
    frames: Integers,  # (B,)
    ids: Integers,  # (B, U) the best target of each row,
    lengths: Integers,  # (B,) its length,
    nats: Doubles,  # (B, 2) its log-probability and the part of the score that the fusion adds
    like: Floats,
) -> None:
    """The best target of each row, with at most `width` prefixes kept after every frame."""
    start, begin = 0, 0  # the first frame of a row, and the first candidate of a frame
    for row in range(len(frames)):
        size, most = 1, 0
        for frame in range(start, start + frames[row]):
            size += width * counts[frame]
            most = max(most, counts[frame])
        links, numbers = np.empty((size, 5), np.int64), np.empty((size, 4))
        nodes = np.empty((size, len(first)), np.int64)
        beam, before = np.empty(width * (most + 1) + 1, np.int64), np.empty((width + 1, 2))
        links[0] = NONE
        numbers[0, FUSION], numbers[0, BLANK], numbers[0, TOKEN_END] = 0.0, 1.0, 0.0
        nodes[0] = first
        beam[0], count, known, log_scale = 0, 1, 1, 0.0
        for frame in range(start, start + frames[row]):
            kept = count
            for place in range(kept):
                prefix = beam[place]
                before[place, 0], before[place, 1] = numbers[prefix, BLANK], numbers[prefix, TOKEN_END]
                numbers[prefix, BLANK] = numbers[prefix, TOKEN_END] = 0.0
                links[prefix, FRAME] = frame
            for place in range(kept):
                prefix = beam[place]
                blank, token_end = before[place]
                total = blank + token_end
                numbers[prefix, BLANK] += total * blanks[frame]
                for index in range(begin, begin + counts[frame]):
                    token, prob = tokens[index], probs[index]
                    source = total
                    if token == links[prefix, TOKEN]:
                        numbers[prefix, TOKEN_END] += token_end * prob
                        source = blank
                    if source == 0.0:
                        continue
                    child = links[prefix, CHILD]
                    while child != NONE and links[child, TOKEN] != token:
                        child = links[child, SIBLING]
                    if child == NONE:
                        child = known
                        known += 1
                        found = read_token(levels, base, scales, token, nodes[prefix], nodes[child], like)
                        numbers[child, FUSION] = numbers[prefix, FUSION] + weights[0] * found + weights[1]
                        links[child, PARENT], links[child, TOKEN], links[child, CHILD] = prefix, token, NONE
                        links[child, SIBLING], links[child, FRAME] = links[prefix, CHILD], NONE
                        links[prefix, CHILD] = child
                    if links[child, FRAME] != frame:  # not in the previous beam
                        links[child, FRAME] = frame
                        numbers[child, BLANK] = numbers[child, TOKEN_END] = 0.0
                        beam[count] = child
                        count += 1
                    numbers[child, TOKEN_END] += source * prob
            begin += counts[frame]
            for place in range(count):
                _score(numbers[beam[place]])
            if count > width:
                count = _keep_best(beam, count, width, numbers)
            largest = 0.0
            for place in range(count):
                largest = max(largest, numbers[beam[place], BLANK] + numbers[beam[place], TOKEN_END])
            log_scale += math.log(largest)
            for place in range(count):
                numbers[beam[place], BLANK] /= largest
                numbers[beam[place], TOKEN_END] /= largest
        best = beam[0]
        for place in range(count):
            if numbers[beam[place], SCORE] > numbers[best, SCORE]:
                best = beam[place]
        nats[row, 0] = math.log(numbers[best, BLANK] + numbers[best, TOKEN_END]) + log_scale
        nats[row, 1] = numbers[best, FUSION]
        length, prefix = 0, best
        while prefix != 0:
            length, prefix = length + 1, links[prefix, PARENT]
        lengths[row], prefix = length, best
        while prefix != 0:
            length -= 1
            ids[row, length], prefix = links[prefix, TOKEN], links[prefix, PARENT]
        start += frames[row]
