"""A value of an image by `pixelcnn`: both stacks of convolutions, with cached inputs.

Shape letters: H rows, W columns, C channels, E width of embeddings, D width, V levels.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import activate, add, compiled, copy, integers, multiply, rms_norm
from chainrule.kernels.instructions import RELU, SIGMOID
from chainrule.kernels.products import linear
from chainrule.kernels.registers import vector

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]
Sizes: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""Layers, D, C, W, kernel, first kernel, cycle of dilations, E, V."""

EMBEDDING, ROWS, COLUMNS, VERTICAL, HORIZONTAL, JOIN, HEAD, EARLIER, LAYERS = 0, 1, 2, 3, 5, 7, 8, 9, 10
"""Where the parameters are among those of a model; a convolution has a weight and a bias."""

PER_LAYER = 6
"""Parameters of a layer: vertical and horizontal convolution, join and outward."""

EPSILON = 1e-6  # of RMS norms


@compiled
def _clear(out: int, size: int, like: Floats) -> None:
    vector(out, size, like)[:] = like[0]


@compiled
def _push(cache: int, entries: int, new: int, size: int, like: Floats) -> None:
    """Drop the first of the entries of a cache, and append one."""
    if entries == 0:
        return
    for entry in range(entries - 1):
        copy(cache + entry * size * like.itemsize, cache + (entry + 1) * size * like.itemsize, size, like)
    copy(cache + (entries - 1) * size * like.itemsize, new, size, like)


@compiled
def _embed(out: int, table: int, pixel: Integers, levels: int, width: int, like: Floats) -> None:
    """The sum of the embeddings of the channels of a pixel."""
    _clear(out, width, like)
    for channel in range(len(pixel)):
        add(out, out, table + (channel * levels + pixel[channel]) * width * like.itemsize, width, like)


@compiled
def _gate(out: int, gates: int, width: int, like: Floats) -> None:
    """A ∘ σ(b), added."""
    activate(gates + width * like.itemsize, gates + width * like.itemsize, width, SIGMOID, like)
    multiply(out, gates, gates + width * like.itemsize, width, True, like)


@compiled
def _vertical(
    out: int,
    x: int,
    cache: int,
    taps: int,
    weight: int,
    bias: int,
    columns: int,
    inputs: int,
    outputs: int,
    kernel: int,
    dilation: int,
    like: Floats,
) -> None:
    """A vertical convolution of a row of pixels x (W, inputs), after the rows in its cache, which is updated."""
    size, half = like.itemsize, kernel // 2
    fan_in = (half + 1) * kernel * inputs
    row_size = columns * inputs * size
    for column in range(columns):
        here = taps + column * fan_in * size
        for above in range(half + 1):
            source = x if above == half else cache + above * dilation * row_size
            for number in range(kernel):
                place = column + (number - half) * dilation
                if 0 <= place < columns:
                    copy(here, source + place * inputs * size, inputs, like)
                else:
                    _clear(here, inputs, like)
                here += inputs * size
    linear(
        out, outputs * size, taps, fan_in * size, weight, 0, bias, fan_in, outputs, columns, False, like, like
    )  # fmt: skip
    _push(cache, half * dilation, x, columns * inputs, like)


@compiled
def _horizontal(
    out: int,
    x: int,
    cache: int,
    taps: int,
    weight: int,
    bias: int,
    inputs: int,
    outputs: int,
    kernel: int,
    dilation: int,
    like: Floats,
) -> None:
    """A horizontal convolution of a pixel x (inputs), after the pixels in its cache, which is updated."""
    size, half = like.itemsize, kernel // 2
    for before in range(half):
        copy(taps + before * inputs * size, cache + before * dilation * inputs * size, inputs, like)
    copy(taps + half * inputs * size, x, inputs, like)
    fan_in = (half + 1) * inputs
    linear(out, 0, taps, 0, weight, 0, bias, fan_in, outputs, 1, False, like, like)
    _push(cache, half * dilation, x, inputs, like)


@compiled
def _enter_row(
    row: int,
    values: Integers,
    given: int,
    rows: Integers,
    above: Integers,
    pixels: Integers,
    constants: Integers,
    working: int,
    sizes: Sizes,
    like: Floats,
) -> None:
    """The vertical stack on the complete row above a row."""
    layers, width, channels, columns, kernel, first_kernel, cycle, embedded, levels = sizes
    size = like.itemsize
    x, v = working, working + columns * max(embedded, width) * size
    gates = v + columns * width * size
    taps = gates + columns * 2 * width * size
    first = 1 + (row - 1) * columns * channels
    for column in range(columns):
        pixel = values[first + column * channels : first + (column + 1) * channels]
        _embed(x + column * embedded * size, constants[EMBEDDING], pixel, levels, embedded, like)
    _vertical(
        v, x, rows[0], taps, constants[VERTICAL], constants[VERTICAL + 1], columns, embedded, width, first_kernel, 1,
        like,
    )  # fmt: skip
    for column in range(columns):
        here = v + column * width * size
        add(here, here, constants[ROWS] + (row - 1) * 2 * width * size, width, like)
        add(here, here, constants[COLUMNS] + column * 2 * width * size, width, like)
        add(here, here, given, width, like)
    linear(
        above[0], width * size, v, width * size, constants[JOIN], 0, 0, width, width, columns, False, like, like
    )  # fmt: skip
    for layer in range(layers):
        own, dilation = constants[LAYERS + layer * PER_LAYER :], 1 << (layer % cycle)
        rms_norm(x, v, width, columns, EPSILON, like)
        _vertical(gates, x, rows[layer + 1], taps, own[0], own[1], columns, width, 2 * width, kernel, dilation, like)
        for column in range(columns):
            _gate(v + column * width * size, gates + column * 2 * width * size, width, like)
        linear(
            above[layer + 1], 2 * width * size, v, width * size, own[4], 0, 0, width, 2 * width, columns, False, like,
            like,
        )  # fmt: skip
    _clear(pixels[0], first_kernel // 2 * embedded, like)
    for layer in range(layers):
        _clear(pixels[layer + 1], kernel // 2 * (1 << (layer % cycle)) * width, like)


@compiled
def _enter_pixel(
    row: int,
    column: int,
    values: Integers,
    given: int,
    above: Integers,
    pixels: Integers,
    here: int,
    constants: Integers,
    working: int,
    sizes: Sizes,
    like: Floats,
) -> None:
    """The horizontal stack on the last complete pixel, and the head."""
    layers, width, channels, columns, kernel, first_kernel, cycle, embedded, levels = sizes
    size = like.itemsize
    x = working
    h = x + max(embedded, width) * size
    gates = h + width * size
    taps = gates + 2 * width * size
    if column > 0:
        end = 1 + (row * columns + column) * channels
        _embed(x, constants[EMBEDDING], values[end - channels : end], levels, embedded, like)
    else:
        _clear(x, embedded, like)  # nothing is to the left of the first pixel
    weight, bias = constants[HORIZONTAL], constants[HORIZONTAL + 1]
    _horizontal(h, x, pixels[0], taps, weight, bias, embedded, width, first_kernel, 1, like)
    add(h, h, above[0] + column * width * size, width, like)
    add(h, h, constants[ROWS] + (2 * row + 1) * width * size, width, like)
    add(h, h, constants[COLUMNS] + (2 * column + 1) * width * size, width, like)
    add(h, h, given + width * size, width, like)
    for layer in range(layers):
        own, dilation = constants[LAYERS + layer * PER_LAYER :], 1 << (layer % cycle)
        rms_norm(x, h, width, 1, EPSILON, like)
        _horizontal(gates, x, pixels[layer + 1], taps, own[2], own[3], width, 2 * width, kernel, dilation, like)
        add(gates, gates, above[layer + 1] + column * 2 * width * size, 2 * width, like)
        _clear(x, width, like)
        _gate(x, gates, width, like)
        linear(h, 0, x, 0, own[5], 0, 0, width, width, 1, True, like, like)
    rms_norm(x, h, width, 1, EPSILON, like)
    linear(here, 0, x, 0, constants[HEAD], 0, 0, width, channels * 2 * width, 1, False, like, like)


@compiled
def read_value(
    out: int,
    token: int,
    position: int,
    memories: Integers,
    constants: Integers,
    working: int,
    sizes: Sizes,
    like: Floats,
) -> None:
    """Append a value to an image: relu of the head's output for the next one.

    `memories` are the addresses of the state: values, positions, the conditioning vector, then for every convolution
    its rows, what the row above passes on, and its pixels; and the output of the head.
    """
    layers, width, channels, columns, _, _, _, _, levels = sizes
    convolutions = layers + 1
    pixel, channel = position // channels, position % channels
    row, column = pixel // columns, pixel % columns
    values = integers(memories[0], max((pixel + 1) * channels, position) + 1)
    values[position] = token if token < levels else 0
    given, rows = memories[2], memories[3 : 3 + convolutions]
    above, pixels = memories[3 + convolutions : 3 + 2 * convolutions], memories[3 + 2 * convolutions :]
    here = memories[3 + 3 * convolutions]
    if channel == 0:
        if column == 0 and row > 0:
            _enter_row(row, values, given, rows, above, pixels, constants, working, sizes, like)
        _enter_pixel(row, column, values, given, above, pixels, here, constants, working, sizes, like)
    copy(out, here + channel * 2 * width * like.itemsize, 2 * width, like)
    first = position - channel + 1
    for earlier in range(channel):
        number = channel * (channel - 1) // 2 + earlier
        entry = number * levels + values[first + earlier]
        add(out, out, constants[EARLIER] + entry * 2 * width * like.itemsize, 2 * width, like)
    activate(out, out, 2 * width, RELU, like)
