"""The arithmetic of a decoding step on raw memory, compiled by Numba.

Vectors are given by the address of their first row and the distance in bytes between rows, so that weights, states and
working memory are used where they are. All functions exist for float32 and float64: `like` is an array of the type in
which the caller computes.

Every row is computed by itself; products with matrices are in `products`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from chainrule.kernels.instructions import GELU, RELU, SIGMOID, SQUARED_RELU, TANH
from chainrule.kernels.products import dot_products, weighted_rows
from chainrule.kernels.registers import OPTIONS as ORDERED
from chainrule.kernels.registers import pointer, vector

Floats = npt.NDArray[np.floating[Any]]

Function = TypeVar("Function", bound=Callable[..., Any])

FAST = {"contract", "reassoc", "nsz", "arcp"}  # sums may be reordered; infinities and NaN are kept
OPTIONS: dict[str, Any] = {**ORDERED, "fastmath": FAST}


def compiled(function: Function) -> Function:
    """Compile a function as part of those that call it; see `caching` for the ones that are called from Python."""
    return cast(Function, numba.njit(**OPTIONS)(function))


LOG2_E, LOG_2 = math.log2(math.e), math.log(2)
SMALLEST_EXPONENT = -87.0  # e^−87 is a normal float32


@intrinsic
def _float_from_bits(_context: Any, bits: Any) -> Any:
    """An int32 with the bits of a float32 as that float32."""

    def convert(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), convert


@compiled
def integers(address: int, size: int) -> npt.NDArray[np.int64]:
    return numba.carray(pointer(address), size, dtype=np.int64)  # type: ignore[attr-defined, call-arg]


def exponential(x: Any) -> Any:
    """e^x; for float32 a polynomial that vectorises, exact to two units in the last place."""
    return math.exp(x)


@overload(exponential, jit_options={"fastmath": FAST})
def _exponential(x: Any) -> Any:
    if x == types.float32:

        def single(x: Any) -> Any:
            x = min(max(x, np.float32(SMALLEST_EXPONENT)), np.float32(88.0))
            power = np.floor(x * np.float32(LOG2_E) + np.float32(0.5))
            rest = x - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)  # ln 2 in two parts
            value = np.float32(1.9875691500e-4)
            value = value * rest + np.float32(1.3981999507e-3)
            value = value * rest + np.float32(8.3334519073e-3)
            value = value * rest + np.float32(4.1665795894e-2)
            value = value * rest + np.float32(1.6666665459e-1)
            value = value * rest + np.float32(5.0000001201e-1)
            value = value * rest * rest + rest + np.float32(1.0)
            bits = np.int32((np.int32(power) + np.int32(127)) << np.int32(23))
            return value * _float_from_bits(bits)  # type: ignore[call-arg]

        return single

    def double(x: Any) -> Any:
        return math.exp(x)

    return double


@intrinsic
def _bits_of_float(_context: Any, number: Any) -> Any:
    """The bits of a float32 as an int32."""

    def convert(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), convert


def logarithm(x: Any) -> Any:
    """Natural logarithm; for float32 a polynomial that vectorises, exact to two units in the last place."""
    return math.log(x)


@overload(logarithm, jit_options={"fastmath": FAST})
def _logarithm(x: Any) -> Any:
    if x == types.float32:

        def single(x: Any) -> Any:
            bits: Any = _bits_of_float(x)  # type: ignore[call-arg]
            # x = (1 + rest) 2^power with 1 + rest between √½ and √2
            shifted = np.int32(bits - np.int32(0x3F3504F3))
            power = np.float32(shifted >> np.int32(23))
            mantissa = np.int32((shifted & np.int32(0x007FFFFF)) + np.int32(0x3F3504F3))
            rest: Any = _float_from_bits(mantissa)
            rest = rest - np.float32(1.0)
            square = rest * rest
            value = np.float32(7.0376836292e-2)
            value = value * rest - np.float32(1.1514610310e-1)
            value = value * rest + np.float32(1.1676998740e-1)
            value = value * rest - np.float32(1.2420140846e-1)
            value = value * rest + np.float32(1.4249322787e-1)
            value = value * rest - np.float32(1.6668057665e-1)
            value = value * rest + np.float32(2.0000714765e-1)
            value = value * rest - np.float32(2.4999993993e-1)
            value = value * rest + np.float32(3.3333331174e-1)
            value = value * rest * square - power * np.float32(2.12194440e-4) - np.float32(0.5) * square
            return rest + value + power * np.float32(0.693359375)

        return single

    def double(x: Any) -> Any:
        return math.log(x)

    return double


# Norms, activations and products of vectors; one row each


@compiled
def rms_norm(out: int, x: int, width: int, groups: int, epsilon: float, like: Floats) -> None:
    """Each of the groups of `width` numbers divided by the root of its mean square."""
    size = like.itemsize
    for group in range(groups):
        values = vector(x + group * width * size, width, like)
        result = vector(out + group * width * size, width, like)
        total = like[0]
        for index in range(width):
            total += values[index] * values[index]
        scale = like.dtype.type(1.0 / math.sqrt(total / width + epsilon))
        for index in range(width):
            result[index] = values[index] * scale


@compiled
def layer_norm(out: int, x: int, weight: int, bias: int, width: int, epsilon: float, like: Floats) -> None:
    values, result = vector(x, width, like), vector(out, width, like)
    scales, shifts = vector(weight, width, like), vector(bias, width, like)
    total = like[0]
    for index in range(width):
        total += values[index]
    mean = like.dtype.type(total / width)
    total = like[0]
    for index in range(width):
        total += (values[index] - mean) * (values[index] - mean)
    scale = like.dtype.type(1.0 / math.sqrt(total / width + epsilon))
    for index in range(width):
        result[index] = (values[index] - mean) * scale * scales[index] + shifts[index]


@compiled
def rotate(x: int, cosine: int, sine: int, width: int, groups: int, like: Floats) -> None:
    """Rotary position embedding of each group, in place, by the angles of one position."""
    cosines, sines = vector(cosine, width, like), vector(sine, width, like)
    half = width // 2
    for group in range(groups):
        values = vector(x + group * width * like.itemsize, width, like)
        for index in range(half):
            low, high = values[index], values[index + half]
            values[index] = low * cosines[index] + high * sines[index]
            values[index + half] = high * cosines[index + half] + low * sines[index + half]


@compiled
def attend(
    out: int,
    query: int,
    keys: int,
    values: int,
    key_strides: tuple[int, int],
    value_strides: tuple[int, int],
    width: int,
    heads: int,
    tokens: int,
    scale: float,
    scores: Floats,
    biases: Floats,
    like: Floats,
) -> None:
    """Attention of one query (H, D) over the first `tokens` keys and values of each head; `biases` (H, S) or none.

    Strides are the bytes between heads and between tokens.
    """
    size = like.itemsize
    factor = like.dtype.type(scale)
    where = scores.ctypes.data
    for head in range(heads):
        first_key = keys + head * key_strides[0]
        dot_products(where, query + head * width * size, first_key, key_strides[1], width, tokens, like)
        if len(biases) > 0:
            for token in range(tokens):
                scores[token] = scores[token] * factor + biases[head * tokens + token]
        else:
            for token in range(tokens):
                scores[token] *= factor
        softmax(scores, tokens, like)
        first_value = values + head * value_strides[0]
        weighted_rows(out + head * width * size, where, first_value, value_strides[1], width, tokens, like)


@compiled
def slow_attention(
    out: int,
    query: int,
    keys: int,
    values: int,
    key_stride: int,
    value_stride: int,
    key_width: int,
    width: int,
    heads: int,
    tokens: int,
    scores: Floats,
    like: Floats,
) -> None:
    """Attention of one query with the scores ‖ReLU(q + k)‖ / √d; strides are the bytes between tokens."""
    size = like.itemsize
    for head in range(heads):
        q = vector(query + head * key_width * size, key_width, like)
        for token in range(tokens):
            k = vector(keys + head * key_width * size + token * key_stride, key_width, like)
            total = like[0]
            for index in range(key_width):
                passed = max(q[index] + k[index], like[0])
                total += passed * passed
            scores[token] = like.dtype.type(math.sqrt(total / key_width))
        softmax(scores, tokens, like)
        first_value = values + head * width * size
        weighted_rows(out + head * width * size, scores.ctypes.data, first_value, value_stride, width, tokens, like)


@compiled
def softmax(scores: Floats, count: int, like: Floats) -> None:
    """Of the first `count` numbers, in place."""
    highest = scores[0]
    for index in range(count):
        highest = max(highest, scores[index])
    total = like[0]
    for index in range(count):
        scores[index] = exponential(scores[index] - highest)
        total += scores[index]
    share = like.dtype.type(1.0) / total
    for index in range(count):
        scores[index] *= share


@compiled
def activate(out: int, x: int, size: int, kind: int, like: Floats) -> None:
    """An elementwise function; `out` may be `x`.

    It is computed in place, since a loop over two vectors that may be one is not vectorised.
    """
    if out != x:
        copy(out, x, size, like)
    values = vector(out, size, like)
    one, two = like.dtype.type(1.0), like.dtype.type(2.0)
    if kind == SQUARED_RELU:
        for index in range(size):
            positive = max(values[index], like[0])
            values[index] = positive * positive
    elif kind == GELU:  # tanh approximation: x (1 + tanh u) / 2 = x / (1 + e^−2u)
        slope, cubic = like.dtype.type(-2 * math.sqrt(2 / math.pi)), like.dtype.type(0.044715)
        for index in range(size):
            x0 = values[index]
            values[index] = x0 / (one + exponential(slope * x0 * (one + cubic * x0 * x0)))
    elif kind == TANH:
        for index in range(size):
            values[index] = one - two / (one + exponential(two * values[index]))
    elif kind == SIGMOID:
        for index in range(size):
            values[index] = one / (one + exponential(-values[index]))
    elif kind == RELU:
        for index in range(size):
            values[index] = max(values[index], like[0])
    else:
        for index in range(size):
            values[index] = one - values[index]


@compiled
def add(out: int, x: int, y: int, size: int, like: Floats) -> None:
    first, second, result = vector(x, size, like), vector(y, size, like), vector(out, size, like)
    for index in range(size):
        result[index] = first[index] + second[index]


@compiled
def multiply(out: int, x: int, y: int, size: int, accumulate: bool, like: Floats) -> None:
    first, second, result = vector(x, size, like), vector(y, size, like), vector(out, size, like)
    if accumulate:
        for index in range(size):
            result[index] += first[index] * second[index]
    else:
        for index in range(size):
            result[index] = first[index] * second[index]


@compiled
def interpolate(out: int, x: int, y: int, weight: int, size: int, like: Floats) -> None:
    """X + weight (y − x)."""
    first, second, result = vector(x, size, like), vector(y, size, like), vector(out, size, like)
    weights = vector(weight, size, like)
    for index in range(size):
        result[index] = first[index] + weights[index] * (second[index] - first[index])


@compiled
def log_softmax(out: int, x: int, size: int, floor: float, like: Floats) -> None:
    """At least `floor`, if it is negative."""
    values, result = vector(x, size, like), vector(out, size, like)
    highest = values[0]
    for index in range(size):
        highest = max(highest, values[index])
    total = like[0]
    for index in range(size):
        total += exponential(values[index] - highest)
    shift = highest + like.dtype.type(math.log(total))
    least = like.dtype.type(floor if floor < 0.0 else -np.inf)
    for index in range(size):
        log_prob = values[index] - shift
        result[index] = least if log_prob < least else log_prob  # keeps NaN


@compiled
def copy(out: int, x: int, size: int, like: Floats) -> None:
    source, result = vector(x, size, like), vector(out, size, like)
    for index in range(size):
        result[index] = source[index]


@compiled
def additive_attention(
    out: int,
    query: int,
    weight: int,
    keys: int,
    key_stride: int,
    values: int,
    value_stride: int,
    size: int,
    width: int,
    tokens: int,
    scores: Floats,
    like: Floats,
) -> None:
    """Σ_n softmax_n(w · ReLU(k_n + q)) v_n."""
    q, w = vector(query, size, like), vector(weight, size, like)
    for token in range(tokens):
        k = vector(keys + token * key_stride, size, like)
        score = like[0]
        for index in range(size):
            score += w[index] * max(k[index] + q[index], like[0])
        scores[token] = score
    softmax(scores, tokens, like)
    weighted_rows(out, scores.ctypes.data, values, value_stride, width, tokens, like)


@compiled
def expected_row(out: int, log_probs: int, table: int, rows: int, width: int, epsilon: float, like: Floats) -> None:
    """Σ_v P(v) norm(row v), with the RMS norm."""
    chances, result = vector(log_probs, rows, like), vector(out, width, like)
    for index in range(width):
        result[index] = like[0]
    for row in range(rows):
        values = vector(table + row * width * like.itemsize, width, like)
        total = like[0]
        for index in range(width):
            total += values[index] * values[index]
        weight = like.dtype.type(math.exp(chances[row]) / math.sqrt(total / width + epsilon))
        for index in range(width):
            result[index] += weight * values[index]


@compiled
def log_mixture(out: int, first: int, second: int, gate: int, size: int, like: Floats) -> None:
    """log(σ(g) P₁ + (1 − σ(g)) P₂), computed with the larger of the two as the reference."""
    one, two, result = vector(first, size, like), vector(second, size, like), vector(out, size, like)
    logit = float(vector(gate, 1, like)[0])
    tail = math.log1p(math.exp(-abs(logit)))
    shift_one = like.dtype.type(min(logit, 0.0) - tail)
    shift_two = like.dtype.type(min(-logit, 0.0) - tail)
    for index in range(size):
        a, b = one[index] + shift_one, two[index] + shift_two
        result[index] = max(a, b) + like.dtype.type(math.log1p(math.exp(-abs(a - b))))
