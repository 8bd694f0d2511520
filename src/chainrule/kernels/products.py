"""Products of a matrix (out, in) and a few rows, compiled by Numba: the work of a decoding step.

Every output of a row is one dot product, and its sum has one order: lane l adds the products at l, l + LANES, …, the
lanes are added in a fixed tree, and then the rest of the products. The order does not depend on how many rows and
outputs are computed together, so the result of a row is the same to the last bit whatever rows share its batch and
whether its tokens are read one by one or in a block.

A few rows are bound by reading the matrix, more by arithmetic: tiles of rows and outputs stay in registers, and the
outputs after them are prefetched in the meantime, as one stream of addresses, since the processor alone asks for too
few of them ahead. Weights of int8 are converted in registers, which also takes arithmetic; see `integer_products` for
processors that multiply them as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from chainrule.kernels.registers import (
    INT32,
    INT64,
    LANES,
    LINE,
    TILE,
    WIDE,
    as_pointer,
    broadcast,
    constant,
    fused_multiply_add,
    lane_sums,
    memory,
    number_types,
    ordered,
    prefetch_line,
    vector,
)

Floats = npt.NDArray[np.floating[Any]]
Weights = npt.NDArray[Any]  # of int8, or of the type that the caller computes in

OUTPUTS = 4  # of a tile


def _dot_products(rows: int, outputs: int, *, ahead_lines: int | None = None) -> Any:
    """The address of the products of some rows and outputs, by rows, over the inputs that fill whole vectors.

    After each vector of inputs, `lines` cache lines from the address `ahead` on are prefetched. A loop over them takes
    a tenth of the time of a tile, so there are versions for a known number, `ahead_lines`.
    """

    @intrinsic
    def products(
        _context: Any,
        x: Any,
        x_row: Any,
        matrix: Any,
        matrix_row: Any,
        inputs: Any,
        ahead: Any,
        lines: Any,
        weights: Any,
        like: Any,
    ) -> Any:

        def generate(_target: Any, builder: Any, _signature: Any, values: Any) -> Any:
            x, x_row, matrix, matrix_row, inputs, ahead, lines = values[:7]
            _, numbers, size = number_types(like)
            weight_size = weights.dtype.bitwidth // 8
            stored = ir.VectorType(ir.IntType(8), LANES) if weights.dtype == types.int8 else numbers
            fma = fused_multiply_add(builder, numbers)
            zeros = ir.Constant(numbers, [0.0] * LANES)
            totals = [memory(builder, numbers) for _ in range(rows * outputs)]
            for total in totals:
                builder.store(zeros, total)
            of_row = [builder.add(x, builder.mul(x_row, constant(row))) for row in range(rows)]
            of_output = [builder.add(matrix, builder.mul(matrix_row, constant(output))) for output in range(outputs)]

            def prefetch(first: Any, line: Any) -> None:
                prefetch_line(builder, builder.add(first, builder.mul(line, constant(LINE))))

            with cgutils.for_range(builder, builder.udiv(inputs, constant(LANES))) as loop:
                if ahead_lines is None:
                    first = builder.add(ahead, builder.mul(loop.index, builder.mul(lines, constant(LINE))))
                    with cgutils.for_range(builder, lines) as line:
                        prefetch(first, line.index)
                else:
                    first = builder.add(ahead, builder.mul(loop.index, constant(ahead_lines * LINE)))
                    for number in range(ahead_lines):
                        prefetch(first, constant(number))
                offset = builder.mul(loop.index, constant(LANES * size))
                inputs_of = [
                    builder.load(as_pointer(builder, builder.add(base, offset), numbers), align=size) for base in of_row
                ]
                offset = builder.mul(loop.index, constant(LANES * weight_size))
                for output, base in enumerate(of_output):
                    weight = builder.load(as_pointer(builder, builder.add(base, offset), stored), align=weight_size)
                    if stored is not numbers:
                        weight = builder.sitofp(builder.sext(weight, ir.VectorType(INT32, LANES)), numbers)
                    for row, inputs_of_row in enumerate(inputs_of):
                        total = totals[row * outputs + output]
                        builder.store(builder.call(fma, [weight, inputs_of_row, builder.load(total)]), total)
            stored_sums = builder.ptrtoint(memory(builder, ir.ArrayType(numbers, -(-rows * outputs // LANES))), INT64)
            for start in range(0, len(totals), LANES):
                found = lane_sums(builder, [builder.load(total) for total in totals[start : start + LANES]])
                here = builder.add(stored_sums, constant(start * size))
                builder.store(found, as_pointer(builder, here, found.type), align=size)
            return stored_sums

        return types.int64(*(types.int64,) * 7, weights, like), generate

    return products


_one = _dot_products(1, 1, ahead_lines=0)
_some_outputs = _dot_products(1, OUTPUTS)
_tile = _dot_products(TILE, OUTPUTS)
_tile_and_line = _dot_products(TILE, OUTPUTS, ahead_lines=1)
_larger_tile = _dot_products(TILE + 1, OUTPUTS)
_larger_tile_ahead = _dot_products(TILE + 1, OUTPUTS, ahead_lines=OUTPUTS)
_some_outputs_ahead = _dot_products(1, OUTPUTS, ahead_lines=OUTPUTS)
_some_outputs_alone = _dot_products(1, OUTPUTS, ahead_lines=0)


def _weighted_sum(vectors: int) -> Any:
    """Store Σ_n w_n r_n over the first `vectors` vectors of `count` rows, `stride` bytes apart."""

    @intrinsic
    def weighted_sum(_context: Any, out: Any, weights: Any, rows: Any, stride: Any, count: Any, like: Any) -> Any:
        def generate(target: Any, builder: Any, _signature: Any, values: Any) -> Any:
            out, weights, rows, stride, count, _ = values
            number, numbers, size = number_types(like)
            fma = fused_multiply_add(builder, numbers)
            totals = [memory(builder, numbers) for _ in range(vectors)]
            for total in totals:
                builder.store(ir.Constant(numbers, [0.0] * LANES), total)
            with cgutils.for_range(builder, count) as loop:
                address = builder.add(weights, builder.mul(loop.index, constant(size)))
                weight = builder.load(as_pointer(builder, address, number))
                filled = broadcast(builder, weight, numbers)
                row = builder.add(rows, builder.mul(loop.index, stride))
                for index, total in enumerate(totals):
                    here = as_pointer(builder, builder.add(row, constant(index * LANES * size)), numbers)
                    found = builder.call(fma, [filled, builder.load(here, align=size), builder.load(total)])
                    builder.store(found, total)
            for index, total in enumerate(totals):
                here = as_pointer(builder, builder.add(out, constant(index * LANES * size)), numbers)
                builder.store(builder.load(total), here, align=size)
            return target.get_dummy_value()

        return types.void(*(types.int64,) * 5, like), generate

    return weighted_sum


_weighted_one, _weighted_four = _weighted_sum(1), _weighted_sum(4)


@ordered
def linear(
    out: int,
    out_row: int,
    x: int,
    x_row: int,
    matrix: int,
    scales: int,
    bias: int,
    inputs: int,
    outputs: int,
    rows: int,
    accumulate: bool,
    weights: Weights,
    like: Floats,
) -> None:
    """W x + b of each row with W (out, in), stored or, if it accumulates, added.

    The matrix has the type of `weights`. Each output is multiplied by its scale; the addresses of scales and of the
    bias are 0 if there are none.
    """
    row_bytes = inputs * weights.itemsize
    last = outputs - outputs % OUTPUTS
    larger = WIDE and rows % TILE == 1 and rows > TILE  # the last tile has one row more
    tiles = rows // TILE + (0 if larger else rows % TILE)
    lines = -(-(OUTPUTS * weights.itemsize * LANES // LINE) // tiles)
    rest = inputs % LANES > 0
    for output in range(0, last, OUTPUTS):
        here = matrix + output * row_bytes
        ahead = here + OUTPUTS * row_bytes
        row = 0
        while row < rows:
            x_here = x + row * x_row
            together = TILE if row + TILE <= rows else 1
            if larger and row + TILE + 1 == rows:
                together = TILE + 1
            if together > TILE and lines == OUTPUTS:
                found = _larger_tile_ahead(x_here, x_row, here, row_bytes, inputs, ahead, lines, weights, like)
            elif together > TILE:
                found = _larger_tile(x_here, x_row, here, row_bytes, inputs, ahead, lines, weights, like)
            elif together == TILE and lines == 1:
                found = _tile_and_line(x_here, x_row, here, row_bytes, inputs, ahead, lines, weights, like)
            elif together == TILE:
                found = _tile(x_here, x_row, here, row_bytes, inputs, ahead, lines, weights, like)
            elif lines == OUTPUTS:
                found = _some_outputs_ahead(x_here, 0, here, row_bytes, inputs, ahead, lines, weights, like)
            else:
                found = _some_outputs(x_here, 0, here, row_bytes, inputs, ahead, lines, weights, like)
            if rest:
                for one in range(together):
                    sums = found + one * OUTPUTS * like.itemsize
                    _add_rest(sums, x_here + one * x_row, here, row_bytes, OUTPUTS, inputs, weights, like)
            for one in range(together):
                sums, target = (
                    vector(found, together * OUTPUTS, like),
                    vector(out + (row + one) * out_row, outputs, like),
                )
                for number in range(OUTPUTS):
                    total = sums[one * OUTPUTS + number]
                    if scales != 0:
                        total *= vector(scales, outputs, like)[output + number]
                    if bias != 0:
                        total += vector(bias, outputs, like)[output + number]
                    target[output + number] = target[output + number] + total if accumulate else total
            row += together
            ahead += lines * LINE * (inputs // LANES)
    for output in range(last, outputs):
        here = matrix + output * row_bytes
        for row in range(rows):
            x_here, target = x + row * x_row, vector(out + row * out_row, outputs, like)
            found = _one(x_here, 0, here, 0, inputs, 0, 0, weights, like)
            if rest:
                _add_rest(found, x_here, here, row_bytes, 1, inputs, weights, like)
            total = vector(found, 1, like)[0]
            if scales != 0:
                total *= vector(scales, outputs, like)[output]
            if bias != 0:
                total += vector(bias, outputs, like)[output]
            target[output] = target[output] + total if accumulate else total


@ordered
def listed_linear(
    out: int, x: int, matrix: int, bias: int, inputs: int, outputs: int, listed: npt.NDArray[np.int64], like: Floats
) -> None:
    """W x + b of one row for the listed outputs, and −∞ for the others."""
    result = vector(out, outputs, like)
    result[:] = -np.inf
    rest = inputs % LANES > 0
    for output in listed:
        here = matrix + output * inputs * like.itemsize
        found = _one(x, 0, here, 0, inputs, 0, 0, like, like)
        if rest:
            _add_rest(found, x, here, 0, 1, inputs, like, like)
        total = vector(found, 1, like)[0]
        if bias != 0:
            total += vector(bias, outputs, like)[output]
        result[output] = total


@ordered
def _add_rest(
    sums: int, x: int, matrix: int, matrix_row: int, outputs: int, inputs: int, weights: Weights, like: Floats
) -> None:
    """Add the products of the inputs that fill no vector."""
    values, totals = vector(x, inputs, like), vector(sums, outputs, like)
    for output in range(outputs):
        others = vector(matrix + output * matrix_row, inputs, weights)
        for index in range(inputs - inputs % LANES, inputs):
            totals[output] += values[index] * like.dtype.type(others[index])


@ordered
def dot_products(out: int, x: int, rows: int, stride: int, width: int, count: int, like: Floats) -> None:
    """The product of x with each of `count` rows, `stride` bytes apart."""
    result = vector(out, count, like)
    rest = width % LANES > 0
    row = 0
    while row < count:
        here = rows + row * stride
        together = OUTPUTS if row + OUTPUTS <= count else 1
        if together == OUTPUTS:
            found = _some_outputs_alone(x, 0, here, stride, width, 0, 0, like, like)
        else:
            found = _one(x, 0, here, 0, width, 0, 0, like, like)
        if rest:
            _add_rest(found, x, here, stride, together, width, like, like)
        sums = vector(found, together, like)
        for one in range(together):
            result[row + one] = sums[one]
        row += together


@ordered
def weighted_rows(out: int, weights: int, rows: int, stride: int, width: int, count: int, like: Floats) -> None:
    """Σ_n w_n r_n over `count` rows, `stride` bytes apart."""
    size = like.itemsize
    last = width - width % LANES
    start = 0
    while start < last:
        if start + 4 * LANES <= last:
            _weighted_four(out + start * size, weights, rows + start * size, stride, count, like)
            start += 4 * LANES
        else:
            _weighted_one(out + start * size, weights, rows + start * size, stride, count, like)
            start += LANES
    if last < width:
        result, shares = vector(out, width, like), vector(weights, count, like)
        for index in range(last, width):
            result[index] = like[0]
        for row in range(count):
            values = vector(rows + row * stride, width, like)
            for index in range(last, width):
                result[index] += shares[row] * values[index]
