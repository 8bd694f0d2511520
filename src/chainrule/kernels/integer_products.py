"""Products of int8 matrices and a few rows of float32 in integers, for processors with VNNI.

VNNI multiplies unsigned by signed bytes and adds four products to each int32 of a register in one instruction. Weights
are signed bytes. The inputs of a row are rounded to 16 bits, the largest to ±32,767, and are two unsigned bytes each:
x = s (256 (high − 128) + low). So a product takes two instructions, still a half of what float32 takes, and rounding
the inputs loses a hundredth of what rounding the weights does; with one byte each it would lose more than the weights.

Sums of integers are exact, so the result of a row does not depend on the rows and outputs that are computed with it.

A matrix is stored in the order in which it is read: for `LANES` outputs, four inputs of each, then the next four; then
the next outputs. So a register has the sums of as many outputs, and nothing is added across its lanes.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
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
    as_pointer,
    broadcast,
    constant,
    declare,
    memory,
    ordered,
    pointer,
    prefetch_line,
)

AVAILABLE = bool(llvm.get_host_cpu_features().get("avx512vnni" if LANES == 16 else "avxvnni"))
"""Whether this processor has the instruction for registers of this size."""

QUAD = 4  # inputs whose products one instruction adds
UNROLLED = 2  # quads that are added apart, so that an instruction need not wait for the one before
STEP = QUAD * UNROLLED
GROUPS = 2  # registers of outputs in a tile
LARGEST = 32767  # of a rounded input
HALF_DIGIT = 128  # subtracted from high digits
SMALLEST = 1e-30  # rows below it are taken as zeros, since their reciprocal may be infinite

FLOAT = ir.FloatType()
FLOATS, INTEGERS, BITS = (ir.VectorType(kind, LANES) for kind in (FLOAT, INT32, ir.IntType(1)))


def packed(matrix: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """A matrix (out, in) in the order in which it is read, and −128 times the sum of the weights of each output.

    Both are filled with zeros to whole registers of outputs and whole steps of inputs.
    """
    outputs, inputs = matrix.shape
    filled = np.zeros((padded(outputs, LANES), padded(inputs, STEP)), np.int8)
    filled[:outputs, :inputs] = matrix
    in_order = filled.reshape(len(filled) // LANES, LANES, -1, QUAD).swapaxes(1, 2)
    return np.ascontiguousarray(in_order), filled.sum(1, dtype=np.int32) * np.int32(-HALF_DIGIT)


def padded(count: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-count // step) * step


def row_bytes(inputs: int) -> int:
    """Memory for the rounded inputs of a row: a cache line with the scale, and two digits of each."""
    return LINE + 2 * padded(inputs, STEP)


@ordered
def _round_inputs(out: int, x: int, inputs: int, stored: int) -> None:
    """Store a row of float32 as its scale, the high digits of all inputs, and the low digits."""
    bits = numba.carray(pointer(x), inputs, dtype=np.int32)  # type: ignore[attr-defined, call-arg]
    values = numba.carray(pointer(x), inputs, dtype=np.float32)
    scale = numba.carray(pointer(out), 1, dtype=np.float32)
    high = numba.carray(pointer(out + LINE), stored, dtype=np.uint8)
    low = numba.carray(pointer(out + LINE + stored), stored, dtype=np.uint8)
    most = np.int32(0)  # numbers without sign are in the order of their bits, and a maximum of integers is vectorised
    for index in range(inputs):
        most = max(most, np.int32(bits[index] & np.int32(0x7FFFFFFF)))
    largest = _float_from_bits(most)
    factor = np.float32(0.0)
    scale[0] = largest / np.float32(LARGEST)
    if not largest < np.float32(np.inf):
        scale[0] = np.float32(np.nan)
    elif largest > np.float32(SMALLEST):
        factor = np.float32(LARGEST) / largest
    for index in range(inputs):
        number = np.int32(values[index] * factor + np.float32(256 * HALF_DIGIT + 0.5))
        high[index] = np.uint8(number >> 8)
        low[index] = np.uint8(number)
    for index in range(inputs, stored):  # their weights are zero
        high[index] = low[index] = np.uint8(0)


@intrinsic
def _float_from_bits(_context: Any, bits: Any) -> Any:
    """An int32 with the bits of a float32 as that float32."""

    def convert(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), convert


class _Tile:
    """The instructions for some rows and some registers of outputs; sums of `unrolled` quads are added at the end."""

    def __init__(self, builder: Any, rows: int, groups: int, unrolled: int) -> None:
        self.builder, self.rows, self.groups, self.unrolled = builder, rows, groups, unrolled
        self.sums = {
            (row, group, digit, part): memory(builder, INTEGERS)
            for row in range(rows)
            for group in range(groups)
            for digit in range(2)
            for part in range(unrolled)
        }

    def at(self, address: Any, count: Any, size: int | Any) -> Any:
        """The address `count` things of some bytes after another."""
        count, size = (constant(value) if isinstance(value, int) else value for value in (count, size))
        return self.builder.add(address, self.builder.mul(count, size))

    def load(self, address: Any, kind: Any) -> Any:
        return self.builder.load(as_pointer(self.builder, address, kind), align=4)

    def begin(self, shifts: Any) -> None:
        """Sums begin at −128 Σ w for the high digits, and at zero for the low ones."""
        for (_, group, digit, part), total in self.sums.items():
            first = digit == 0 and part == 0
            start = self.load(self.at(shifts, group, 4 * LANES), INTEGERS) if first else ir.Constant(INTEGERS, None)
            self.builder.store(start, total)

    def multiply(self, x: Any, x_row: Any, stored: Any, matrix: Any, ahead: Any) -> None:
        """Add the products of all inputs; one cache line at `ahead` is prefetched for each that is read."""
        builder = self.builder
        dot = declare(builder, ir.FunctionType(INTEGERS, [INTEGERS] * 3), f"llvm.x86.avx512.vpdpbusd.{32 * LANES}")
        group_bytes = builder.mul(stored, constant(LANES))
        digits = [
            [self.at(self.at(self.at(x, row, x_row), 1, LINE), digit, stored) for digit in range(2)]
            for row in range(self.rows)
        ]
        with cgutils.for_range(builder, builder.udiv(stored, constant(QUAD * self.unrolled))) as loop:
            for part in range(self.unrolled):
                quad = self.at(constant(part), loop.index, self.unrolled)
                weights = []
                for group in range(self.groups):
                    offset = self.at(builder.mul(quad, constant(QUAD * LANES)), group, group_bytes)
                    prefetch_line(builder, builder.add(ahead, offset))
                    weights.append(self.load(builder.add(matrix, offset), INTEGERS))
                for row in range(self.rows):
                    for digit in range(2):
                        inputs = self.load(self.at(digits[row][digit], quad, QUAD), INT32)
                        everywhere = broadcast(builder, inputs, INTEGERS)
                        for group, weight in enumerate(weights):
                            total = self.sums[row, group, digit, part]
                            builder.store(builder.call(dot, [builder.load(total), everywhere, weight]), total)

    def total(self, row: int, group: int) -> Any:
        """256 times the sums of high digits and those of low ones, as float32."""
        builder, both = self.builder, []
        for digit in range(2):
            found = builder.load(self.sums[row, group, digit, 0])
            for part in range(1, self.unrolled):
                found = builder.add(found, builder.load(self.sums[row, group, digit, part]))
            both.append(builder.sitofp(found, FLOATS))
        return builder.fadd(builder.fmul(both[0], ir.Constant(FLOATS, [256.0] * LANES)), both[1])

    def store(
        self, out: Any, out_row: Any, x: Any, x_row: Any, scales: Any, bias: Any, left: Any, accumulate: Any
    ) -> None:
        """Scale the sums and store them in `left` outputs at most."""
        builder = self.builder
        lanes = ir.Constant(ir.VectorType(INT64, LANES), list(range(LANES)))
        has_bias = broadcast(builder, builder.icmp_signed("!=", bias, constant(0)), BITS)
        accumulates = broadcast(builder, accumulate, BITS)
        for group in range(self.groups):
            real = builder.icmp_signed("<", lanes, broadcast(builder, self.at(left, group, -LANES), lanes.type))
            scale = self.load(self.at(scales, group, 4 * LANES), FLOATS)
            added = self._masked_load(self.at(bias, group, 4 * LANES), builder.and_(real, has_bias))
            for row in range(self.rows):
                of_row = broadcast(builder, self.load(self.at(x, row, x_row), FLOAT), FLOATS)
                result = builder.fmul(self.total(row, group), builder.fmul(scale, of_row))
                where = self.at(self.at(out, row, out_row), group, 4 * LANES)
                before = self._masked_load(where, builder.and_(real, accumulates))
                self._masked_store(builder.fadd(before, builder.fadd(result, added)), where, real)

    def _masked_load(self, address: Any, mask: Any) -> Any:
        kind = ir.FunctionType(FLOATS, [FLOATS.as_pointer(), INT32, BITS, FLOATS])
        load = declare(self.builder, kind, f"llvm.masked.load.v{LANES}f32.p0")
        where = as_pointer(self.builder, address, FLOATS)
        return self.builder.call(load, [where, ir.Constant(INT32, 4), mask, ir.Constant(FLOATS, None)])

    def _masked_store(self, numbers: Any, address: Any, mask: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [FLOATS, FLOATS.as_pointer(), INT32, BITS])
        store = declare(self.builder, kind, f"llvm.masked.store.v{LANES}f32.p0")
        where = as_pointer(self.builder, address, FLOATS)
        self.builder.call(store, [numbers, where, ir.Constant(INT32, 4), mask])


def _tile_of(rows: int, groups: int, unrolled: int) -> Any:
    """Compute and store the outputs of some rows in some registers, of which `left` are real."""

    @intrinsic
    def products(
        _context: Any,
        out: Any,
        out_row: Any,
        x: Any,
        x_row: Any,
        stored: Any,
        matrix: Any,
        shifts: Any,
        scales: Any,
        bias: Any,
        left: Any,
        ahead: Any,
        accumulate: Any,
    ) -> Any:
        def generate(target: Any, builder: Any, _signature: Any, values: Any) -> Any:
            out, out_row, x, x_row, stored, matrix, shifts, scales, bias, left, ahead, accumulate = values
            tile = _Tile(builder, rows, groups, unrolled)
            tile.begin(shifts)
            tile.multiply(x, x_row, stored, matrix, ahead)
            tile.store(out, out_row, x, x_row, scales, bias, left, accumulate)
            return target.get_dummy_value()

        return types.void(*(types.int64,) * 11, types.boolean), generate

    return products


_one = _tile_of(1, 1, UNROLLED)
_rows = _tile_of(TILE, 1, 1)
_tile = _tile_of(TILE, GROUPS, 1)


def _integer_linear(
    out: int,
    out_row: int,
    x: int,
    x_row: int,
    rounded: int,
    rounded_row: int,
    matrix: int,
    shifts: int,
    scales: int,
    bias: int,
    inputs: int,
    outputs: int,
    rows: int,
    accumulate: bool,
) -> None:
    """W x + b of each row with W as `packed` gives it, stored or, if it accumulates, added.

    `rounded` is memory for the rounded inputs of the rows. The address of the bias is 0 if there is none.
    """
    stored = (inputs + STEP - 1) // STEP * STEP
    group_bytes = stored * LANES
    for row in range(rows):
        _round_inputs(rounded + row * rounded_row, x + row * x_row, inputs, stored)
    first = 0
    while first < outputs:
        together = GROUPS if rows >= TILE and first + (GROUPS - 1) * LANES < outputs else 1
        here = matrix + first // LANES * group_bytes
        ahead = here + together * group_bytes
        shift, scale, added = shifts + 4 * first, scales + 4 * first, bias
        if bias != 0:
            added += 4 * first
        row = 0
        while row < rows:
            to, of, left = out + row * out_row + 4 * first, rounded + row * rounded_row, outputs - first
            if row + TILE <= rows and together == GROUPS:
                _tile(
                    to, out_row, of, rounded_row, stored, here, shift, scale, added, left, ahead, accumulate
                )  # fmt: skip
                row += TILE
            elif row + TILE <= rows:
                _rows(
                    to, out_row, of, rounded_row, stored, here, shift, scale, added, left, ahead, accumulate
                )  # fmt: skip
                row += TILE
            else:
                for group in range(together):
                    skipped = 4 * LANES * group
                    more = 0 if added == 0 else added + skipped
                    _one(
                        to + skipped, out_row, of, rounded_row, stored, here + group * group_bytes, shift + skipped,
                        scale + skipped, more, left - LANES * group, ahead, accumulate,
                    )  # fmt: skip
                row += 1
        first += together * LANES


def _without_instruction(*_: object) -> None:
    """Never called: programs have no such operation on these processors."""


integer_linear = ordered(_integer_linear if AVAILABLE else _without_instruction)
