"""Windows that move with the text: attention to the last tokens of a text, and the look-up of a neural cache.

The last W entries of a row are in memory with room for W + S. After n entries, they begin at n mod S, the oldest first
(`nn.moving_window`). When S entries have been appended, the last W move to the front, so a token costs no copy of the
window, and the entries are always in one piece.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import attend, compiled, copy, exponential, integers, log_softmax
from chainrule.kernels.products import dot_products
from chainrule.kernels.registers import vector

Floats = npt.NDArray[np.floating[Any]]

SHORTEST = 1e-12  # of a vector whose direction is used, as in torch


@compiled
def _move(cache: int, stride: int, width: int, window: int, room: int, like: Floats) -> None:
    """Move the last entries to the front, and clear the room behind them."""
    for entry in range(window):
        copy(cache + entry * stride, cache + (entry + room) * stride, width, like)
    for entry in range(window, window + room):
        vector(cache + entry * stride, width, like)[:] = like[0]


@compiled
def window_attention(
    out: int,
    query: int,
    key: int,
    value: int,
    keys: int,
    values: int,
    key_strides: tuple[int, int],
    value_strides: tuple[int, int],
    slopes: int,
    heads: int,
    width: int,
    window: int,
    room: int,
    position: int,
    scale: float,
    scores: Floats,
    biases: Floats,
    like: Floats,
) -> None:
    """Attend to the new token and to the `window` tokens before it; scores decrease with the distance."""
    size = like.itemsize
    here = window + position % room
    for head in range(heads):
        offset = head * width * size
        copy(keys + head * key_strides[0] + here * key_strides[1], key + offset, width, like)
        copy(values + head * value_strides[0] + here * value_strides[1], value + offset, width, like)
    count = min(position, window) + 1
    first = here + 1 - count
    added, slope = biases[: heads * count], vector(slopes, heads, like)
    for head in range(heads):
        for index in range(count):
            added[head * count + index] = -slope[head] * like.dtype.type(count - 1 - index)
    first_key, first_value = keys + first * key_strides[1], values + first * value_strides[1]
    attend(
        out, query, first_key, first_value, key_strides, value_strides, width, heads, count, scale, scores, added, like
    )  # fmt: skip
    if (position + 1) % room == 0:
        for head in range(heads):
            _move(keys + head * key_strides[0], key_strides[1], width, window, room, like)
            _move(values + head * value_strides[0], value_strides[1], width, window, room, like)


@compiled
def cache_lookup(
    out: int,
    logits: int,
    hidden: int,
    keys: int,
    key_stride: int,
    values: int,
    query: int,
    parameters: npt.NDArray[np.float64],
    log_ages: int,
    chances: int,
    vocabulary: int,
    width: int,
    window: int,
    room: int,
    position: int,
    token: int,
    scores: Floats,
    like: Floats,
) -> None:
    """Append a token and the query that predicted it to a neural cache, and mix the logits with what it finds.

    `parameters` are θ, δ, a and b of `compose.neural_cache`; `chances` is working memory of the size of the vocabulary.
    """
    temperature, decay, slope, bias = parameters
    here = window + position % room
    count = min(position + 1, window)
    first = here + 1 - count
    copy(keys + here * key_stride, query, width, like)
    tokens = integers(values, window + room)
    tokens[here] = token
    given, direction = vector(hidden, width, like), vector(query, width, like)
    total = like[0]
    for index in range(width):
        total += given[index] * given[index]
    share = like.dtype.type(1.0 / max(math.sqrt(total), SHORTEST))
    for index in range(width):
        direction[index] = given[index] * share
    dot_products(scores.ctypes.data, query, keys + first * key_stride, key_stride, width, count, like)
    logs = vector(log_ages, window, like)
    sharpness, fading = like.dtype.type(temperature), like.dtype.type(decay)
    for index in range(count):
        scores[index] = sharpness * scores[index] - fading * logs[count - 1 - index]
    highest = scores[0]
    for index in range(count):
        highest = max(highest, scores[index])
    total = like[0]
    for index in range(count):
        scores[index] = exponential(scores[index] - highest)
        total += scores[index]
    logit = slope * (float(highest) + math.log(float(total))) + bias
    tail = math.log1p(math.exp(-abs(logit)))
    log_own, log_found = min(-logit, 0.0) - tail, min(logit, 0.0) - tail - math.log(float(total))
    log_softmax(out, logits, vocabulary, 0.0, like)
    result, found = vector(out, vocabulary, like), vector(chances, vocabulary, like)
    for index in range(vocabulary):
        result[index] += like.dtype.type(log_own)
    for index in range(first, first + count):
        found[tokens[index]] = like[0]
    for index in range(count):
        found[tokens[first + index]] += scores[index]
    for index in range(first, first + count):
        token = tokens[index]
        if found[token] > like[0]:
            log_chance = math.log(float(found[token])) + log_found
            own = float(result[token])
            result[token] = like.dtype.type(own + _softplus(log_chance - own))
            found[token] = like[0]
    if (position + 1) % room == 0:
        _move(keys, key_stride, width, window, room, like)
        for entry in range(window):
            tokens[entry] = tokens[entry + room]
        tokens[window:] = 0


@compiled
def _softplus(x: float) -> float:
    """log(1 + e^x); NaN of NaN."""
    return x + math.log1p(math.exp(-x)) if x > 0.0 else math.log1p(math.exp(x))
