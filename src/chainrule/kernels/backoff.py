"""Look-up in back-off tables, compiled by Numba: scoring given tokens, the most probable token, and generation.

The tables of all orders are given as one array of addresses, so that they are used where they are, in memory or in a
mapped file, and one compiled function serves every order. `levels` has a row per order: the addresses of its keys,
log-probabilities and back-off weights, the number of its events, and the addresses of the best continuation of each
context and of its log-probability (0 if they are not known), and that of an index into the keys: at i the number of
keys of contexts below i << shift, with the shift in the last column. Order 1 has no keys. Values are numbers of the
type of `like`, or codes if there are `scales` (2 * order, 2): row 2k has the lowest log-probability of order k + 1 and
the distance between codes, the next row those of its back-off weights (see `nn.quantisation`). The log-probabilities of
order 1 are always float64.

The nodes of a state are those of the last 1, 2, … tokens, −1 for unseen n-grams (see `models.ngram`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import integers
from chainrule.kernels.caching import entry
from chainrule.kernels.choice import choose
from chainrule.kernels.keyed_noise import BLOCK, block_size, exponential_of, least_of, owner_of
from chainrule.kernels.registers import vector

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
Flags = npt.NDArray[np.bool_]

Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "fastmath": False}


def compiled(function: Function) -> Function:
    """Compile a function as part of those that call it, with sums in the order in which they are written."""
    return cast(Function, numba.njit(**OPTIONS)(function))


ZERO = 1 << 15  # added to a stored code
KEYS, LOG_PROBS, LOG_BACKOFFS, SIZE, BEST_TOKENS, BEST_LOG_PROBS, INDEX, SHIFT, COLUMNS = range(9)


@compiled
def _decoded(code: int, scales: Doubles, row: int) -> float:
    return float(scales[row, 0] + scales[row, 1] * (code + ZERO))


@compiled
def _value(address: int, index: int, scales: Doubles, row: int, like: Floats) -> float:
    stored = vector(address, index + 1, like)[index]
    return _decoded(int(stored), scales, row) if len(scales) else float(stored)


@compiled
def _log_prob(levels: Integers, level: int, index: int, scales: Doubles, like: Floats) -> float:
    if level == 0:
        return float(vector(levels[0, LOG_PROBS], index + 1, scales)[index])
    return _value(levels[level, LOG_PROBS], index, scales, 2 * level, like)


@compiled
def _log_backoff(levels: Integers, level: int, index: int, scales: Doubles, like: Floats) -> float:
    return _value(levels[level, LOG_BACKOFFS], index, scales, 2 * level + 1, like)


@compiled
def _first_at_least(keys: Integers, wanted: int, first: int, end: int) -> int:
    """The first index from `first` to `end` whose key is not below `wanted`; without branches, for speed."""
    count = end - first
    while count > 0:
        half = count >> 1
        step = first + half
        below = keys[step] < wanted
        first = step + 1 if below else first
        count = count - half - 1 if below else half
    return first


@compiled
def _first_child(levels: Integers, level: int, node: int, wanted: int) -> int:
    """The first index whose key, that of a continuation of `node`, is not below `wanted`."""
    keys = integers(levels[level, KEYS], levels[level, SIZE])
    place = node >> levels[level, SHIFT]
    index = integers(levels[level, INDEX], place + 2)
    return _first_at_least(keys, wanted, index[place], index[place + 1])


@compiled
def _find(levels: Integers, level: int, node: int, token: int, base: int) -> int:
    """The node of an n-gram of `level` + 1 tokens from that of its context; −1 if it was not observed."""
    keys = integers(levels[level, KEYS], levels[level, SIZE])
    wanted = node * base + token
    index = _first_child(levels, level, node, wanted)
    return index if index < len(keys) and keys[index] == wanted else -1


@compiled
def read_token(
    levels: Integers, base: int, scales: Doubles, token: int, nodes: Integers, after: Integers, like: Floats
) -> float:
    """The log-probability of a token after `nodes`, and in `after` the nodes after it; each has one per order."""
    nats = _log_prob(levels, 0, token, scales, like)
    after[0] = token
    for level in range(1, len(levels)):
        node = nodes[level - 1]
        after[level] = -1
        if node >= 0:
            found = _find(levels, level, node, token, base)
            if found >= 0:
                nats = _log_prob(levels, level, found, scales, like)
                after[level] = found
            else:
                nats += _log_backoff(levels, level - 1, node, scales, like)
    return nats


@compiled
def _likeliest(
    levels: Integers,
    base: int,
    scales: Doubles,
    nodes: Integers,
    by_frequency: Integers,
    excluded: Integers,
    stamps: Integers,
    like: Floats,
) -> int:
    """The most probable token; of several, the one with the lowest id.

    It is among the best continuations of each context, unless such a continuation was also observed in a longer
    context, where it may be less probable; then, or if it is excluded, all observed continuations are compared.
    """
    best, highest, origin, factor = -1, -np.inf, -1, 0.0
    for level in range(len(levels) - 1, 0, -1):
        node = nodes[level - 1]
        if node < 0:
            continue
        log_prob = vector(levels[level, BEST_LOG_PROBS], node + 1, scales)[node] + factor
        token = integers(levels[level, BEST_TOKENS], node + 1)[node]
        if token >= 0 and (log_prob > highest or (log_prob == highest and token < best)):
            best, highest, origin = token, log_prob, level
        factor += _log_backoff(levels, level - 1, node, scales, like)
    log_prob = _log_prob(levels, 0, by_frequency[0], scales, like) + factor
    if log_prob > highest or (log_prob == highest and by_frequency[0] < best):
        best, highest, origin = by_frequency[0], log_prob, 0
    exact = True
    for token in excluded:
        exact = exact and token != best
    for level in range(origin + 1, len(levels)):
        if exact and nodes[level - 1] >= 0:
            exact = _find(levels, level, nodes[level - 1], best, base) < 0
    return best if exact else _likeliest_of_all(levels, base, scales, nodes, by_frequency, excluded, stamps, like)


@compiled
def _likeliest_of_all(
    levels: Integers,
    base: int,
    scales: Doubles,
    nodes: Integers,
    by_frequency: Integers,
    excluded: Integers,
    stamps: Integers,
    like: Floats,
) -> int:
    """The same from all observed continuations, longer contexts first, and the most frequent other token.

    `stamps` marks the tokens that are done: (V,), and one more for the number of this call.
    """
    stamps[-1] += 1
    now = stamps[-1]
    for token in excluded:
        stamps[token] = now
    best, highest, factor = -1, -np.inf, 0.0
    for level in range(len(levels) - 1, 0, -1):
        node = nodes[level - 1]
        if node < 0:
            continue
        keys = integers(levels[level, KEYS], levels[level, SIZE])
        corner = node * base
        index = _first_child(levels, level, node, corner)
        while index < len(keys) and keys[index] < corner + base:
            token = keys[index] - corner
            if stamps[token] != now:
                stamps[token] = now
                log_prob = _log_prob(levels, level, index, scales, like) + factor
                if log_prob > highest or (log_prob == highest and token < best):
                    best, highest = token, log_prob
            index += 1
        factor += _log_backoff(levels, level - 1, node, scales, like)
    for token in by_frequency:
        if stamps[token] != now:
            log_prob = _log_prob(levels, 0, token, scales, like) + factor
            if log_prob > highest or (log_prob == highest and token < best):
                best = token
            break
    return best


@compiled
def _is_free(levels: Integers, base: int, nodes: Integers, level: int, token: int, excluded: Integers) -> bool:
    """Whether a token is not excluded and was not observed in a longer context than that of a level."""
    for other in excluded:
        if token == other:
            return False
    for higher in range(level + 1, len(levels)):
        if nodes[higher - 1] >= 0 and _find(levels, higher, nodes[higher - 1], token, base) >= 0:
            return False
    return True


@compiled
def _sample(
    levels: Integers,
    base: int,
    scales: Doubles,
    nodes: Integers,
    key: float,
    temperature: float,
    excluded: Integers,
    block_best: Doubles,
    least: Doubles,
    reach: Doubles,
    like: Floats,
) -> int:
    """The token with the largest log P / temperature − log E, with E from the key of the position (`keyed_noise`).

    The least E of a block bounds what its tokens can reach, and `block_best` has the largest log-probability of its
    unigrams, so that E is computed for few tokens: those that may exceed the best one so far, longer contexts first.
    """
    vocabulary = base - 1
    for block in range(len(block_best)):
        least[block] = least_of(key, block, vocabulary)
        reach[block] = -math.log(least[block])
    best, highest, factor = -1, -np.inf, 0.0
    for level in range(len(levels) - 1, 0, -1):
        node = nodes[level - 1]
        if node < 0:
            continue
        keys = integers(levels[level, KEYS], levels[level, SIZE])
        corner = node * base
        index = _first_child(levels, level, node, corner)
        while index < len(keys) and keys[index] < corner + base:
            token = keys[index] - corner
            block = token // BLOCK
            score = (_log_prob(levels, level, index, scales, like) + factor) / temperature
            if score + reach[block] >= highest and _is_free(levels, base, nodes, level, token, excluded):
                score -= math.log(exponential_of(key, token, least[block], owner_of(key, block, vocabulary)))
                if score > highest or (score == highest and token < best):
                    best, highest = token, score
            index += 1
        factor += _log_backoff(levels, level - 1, node, scales, like)
    for block in range(len(block_best)):
        if (block_best[block] + factor) / temperature + reach[block] < highest:
            continue
        owner = owner_of(key, block, vocabulary)
        for token in range(block * BLOCK, block * BLOCK + block_size(block, vocabulary)):
            score = (_log_prob(levels, 0, token, scales, like) + factor) / temperature
            if score + reach[block] >= highest and _is_free(levels, base, nodes, 0, token, excluded):
                score -= math.log(exponential_of(key, token, least[block], owner))
                if score > highest or (score == highest and token < best):
                    best, highest = token, score
    return max(best, 0)


@compiled
def _fill(
    levels: Integers, base: int, scales: Doubles, nodes: Integers, factors: Doubles, result: Floats, like: Floats
) -> None:
    """All log-probabilities (V,): each order, from low to high, overwrites those of its observed n-grams."""
    factors[len(levels) - 1] = 0.0
    for level in range(len(levels) - 1, 0, -1):
        node = nodes[level - 1]
        factors[level - 1] = factors[level]
        if node >= 0:
            factors[level - 1] += _log_backoff(levels, level - 1, node, scales, like)
    for token in range(len(result)):
        result[token] = _log_prob(levels, 0, token, scales, like) + factors[0]
    for level in range(1, len(levels)):
        node = nodes[level - 1]
        if node < 0:
            continue
        keys = integers(levels[level, KEYS], levels[level, SIZE])
        corner = node * base
        index = _first_child(levels, level, node, corner)
        while index < len(keys) and keys[index] < corner + base:
            result[keys[index] - corner] = _log_prob(levels, level, index, scales, like) + factors[level]
            index += 1


@compiled
def next_log_probs(
    out: int, levels: int, order: int, base: int, nodes: int, token: int, size: int, like: Floats
) -> None:
    """Read a token and predict the next, all by addresses: `order` − 1 nodes, and `size` log-probabilities.

    The tables have numbers of the type of `like`, not codes.
    """
    tables = integers(levels, order * COLUMNS).reshape((order, COLUMNS))
    no_scales, state = np.empty((0, 2)), integers(nodes, order - 1)
    before, after, factors = np.full(order, -1), np.empty(order, np.int64), np.empty(order)
    before[: order - 1] = state
    read_token(tables, base, no_scales, token, before, after, like)
    state[:] = after[: order - 1]
    _fill(tables, base, no_scales, after, factors, vector(out, size, like), like)


def exported(function: Any) -> Any:
    return entry(function, **OPTIONS)


@exported
def score(
    levels: Integers,
    base: int,
    scales: Doubles,
    ids: Integers,
    lengths: Integers,
    nodes: Integers,
    log_probs: Doubles,
    by_frequency: Integers,
    hits: Flags,
    like: Floats,
) -> None:
    """Score the first tokens of each row (B, T) from its nodes (B, order), which are then those after them.

    `log_probs` (B, T) receives nats; `hits`, (B, T) or empty, whether a token was the most probable one.
    """
    after = np.empty(len(levels), np.int64)
    stamps = np.zeros(base, np.int64)
    none = np.empty(0, np.int64)
    for row in range(len(ids)):
        for position in range(lengths[row]):
            token = ids[row, position]
            if len(hits):
                found = _likeliest(levels, base, scales, nodes[row], by_frequency, none, stamps, like)
                hits[row, position] = found == token
            log_probs[row, position] = read_token(levels, base, scales, token, nodes[row], after, like)
            nodes[row, :] = after


@exported
def predict(
    levels: Integers, base: int, scales: Doubles, ids: Integers, nodes: Integers, result: Floats, like: Floats
) -> None:
    """Read tokens (B, K) from nodes (B, order), and predict the next after each: log-probabilities (B, K, V)."""
    after, factors = np.empty(len(levels), np.int64), np.empty(len(levels))
    for row in range(len(ids)):
        for position in range(ids.shape[1]):
            read_token(levels, base, scales, ids[row, position], nodes[row], after, like)
            nodes[row, :] = after
            _fill(levels, base, scales, after, factors, result[row, position], like)


@exported
def generate(
    levels: Integers,
    base: int,
    scales: Doubles,
    tokens: Integers,
    nodes: Integers,
    chosen: Integers,
    log_probs: Doubles,
    noise: Doubles,
    rules: Doubles,
    suppressed: Integers,
    by_frequency: Integers,
    block_best: Doubles,
    like: Floats,
) -> None:
    """Read a token (B,) in each row and choose the next, once for each position of `chosen` (B, S).

    Without noise, (B, S, 0), the most probable one; else a sample by `rules` (see `choice`), or, if the noise is keys,
    (B, S, 1), and there is `block_best`, by the temperature alone. The last is not read.
    """
    after, factors = np.empty(len(levels), np.int64), np.empty(len(levels))
    least, reach = np.empty(len(block_best)), np.empty(len(block_best))
    stamps, logits = np.zeros(base, np.int64), np.empty(base - 1, np.float64)
    for row in range(len(tokens)):
        token = tokens[row]
        for position in range(chosen.shape[1]):
            read_token(levels, base, scales, token, nodes[row], after, like)
            nodes[row, :] = after
            if noise.shape[2] == 0:
                token = _likeliest(levels, base, scales, after, by_frequency, suppressed, stamps, like)
            elif len(block_best) > 0:
                token = _sample(
                    levels, base, scales, after, noise[row, position, 0], rules[0], suppressed, block_best, least,
                    reach, like,
                )  # fmt: skip
            else:
                _fill(levels, base, scales, after, factors, logits, like)
                token = choose(logits, noise[row, position], rules, suppressed)
            chosen[row, position] = token
            log_probs[row, position] = read_token(levels, base, scales, token, nodes[row], after, like)


@exported
def index_of(keys: Integers, base: int, shift: int, index: Integers) -> None:
    """Fill an index: at i the number of keys of contexts below i << shift; the last is the number of keys."""
    first = 0
    for place in range(len(index) - 1):
        first = _first_at_least(keys, (place << shift) * base, first, len(keys))
        index[place] = first
    index[-1] = len(keys)


@exported
def best_continuations(
    keys: Integers, log_probs: Floats, scales: Doubles, row: int, base: int, tokens: Integers, best: Doubles
) -> None:
    """For each context, the most probable of its observed continuations, −1 if it has none, and its log-probability.

    Of several, the one with the lowest id. The scales are empty if the log-probabilities are not codes.
    """
    tokens[:] = -1
    best[:] = -np.inf
    for index in range(len(keys)):
        node = keys[index] // base
        log_prob = _decoded(int(log_probs[index]), scales, row) if len(scales) else float(log_probs[index])
        if log_prob > best[node]:
            tokens[node], best[node] = keys[index] - node * base, log_prob
