"""Dot products of several rows with several weight vectors, each rounded in one fixed order.

A compiler that may reorder sums rounds a dot product differently in a loop over four rows than in a loop over one, so
what a row gets would depend on how many rows are computed with it. Here the order is part of the program: partial sums
in `LANES` lanes, then their sum in pairs, then the rest of the vector. A row has the same result to the last bit in a
batch of any size, and in a chunk of any length.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_FEATURES = binding.get_host_cpu_features()
_X86 = "sse2" in _FEATURES
LANES, OUTPUTS = (16, 4) if _FEATURES.get("avx512f") else (8, 2)  # as many sums as there are registers for
ROWS = 4
SIZE = 4  # bytes of a float32
_FUSED = bool(_FEATURES.get("fma")) or not _X86  # elsewhere a fused product is a call of a library

_SINGLE, _INTEGER, _INDEX = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_LANES = ir.VectorType(_SINGLE, LANES)


class _Tile:
    """Writes the code of a tile."""

    def __init__(self, builder: Any, rows: int, outputs: int) -> None:
        self.builder, self.rows, self.outputs = builder, rows, outputs

    def write(self, x: Any, x_row: Any, matrix: Any, inputs: Any, sums: Any) -> None:
        builder = self.builder
        matrix_row = builder.mul(inputs, _INTEGER(SIZE))
        xs = [builder.add(x, builder.mul(x_row, _INTEGER(row))) for row in range(self.rows)]
        weights = [builder.add(matrix, builder.mul(matrix_row, _INTEGER(one))) for one in range(self.outputs)]
        whole, rest = self._accumulators(_LANES, [0.0] * LANES), self._accumulators(_SINGLE, 0.0)
        steps = builder.lshr(inputs, _INTEGER(LANES.bit_length() - 1))
        with cgutils.for_range(builder, steps) as loop:
            self._step(whole, xs, weights, builder.mul(loop.index, _INTEGER(SIZE * LANES)), _LANES)
        done = builder.and_(inputs, _INTEGER(-LANES))
        with cgutils.for_range_slice(builder, done, inputs, _INTEGER(1)) as (index, _):
            self._step(rest, xs, weights, builder.mul(index, _INTEGER(SIZE)), _SINGLE)
        for number, (lanes, single) in enumerate(zip(whole, rest, strict=True)):
            total = builder.fadd(self._sum_of_lanes(builder.load(lanes)), builder.load(single))
            builder.store(total, self._pointer(builder.add(sums, _INTEGER(SIZE * number)), _SINGLE))

    def _accumulators(self, kind: Any, zero: Any) -> list[Any]:
        start = ir.Constant(kind, zero)
        count = self.rows * self.outputs
        return [cgutils.alloca_once_value(self.builder, start) for _ in range(count)]  # type: ignore[no-untyped-call]

    def _step(self, accumulators: list[Any], xs: list[Any], weights: list[Any], offset: Any, kind: Any) -> None:
        """Multiply the numbers at an offset of every row and weight vector, and add the products."""
        builder = self.builder
        values = [self._load(builder.add(x, offset), kind) for x in xs]
        for output, weight in enumerate(weights):
            factor = self._load(builder.add(weight, offset), kind)
            for row, value in enumerate(values):
                place = accumulators[row * self.outputs + output]
                builder.store(self._multiply_add(value, factor, builder.load(place), kind), place)

    def _multiply_add(self, a: Any, b: Any, c: Any, kind: Any) -> Any:
        if not _FUSED:
            return self.builder.fadd(self.builder.fmul(a, b), c)
        name = "llvm.fma.f32" if kind is _SINGLE else f"llvm.fma.v{LANES}f32"
        kinds = ir.FunctionType(kind, [kind] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kinds, name)  # type: ignore[no-untyped-call]
        return self.builder.call(function, [a, b, c])

    def _pointer(self, address: Any, kind: Any) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    def _load(self, address: Any, kind: Any) -> Any:
        loaded = self.builder.load(self._pointer(address, kind))
        loaded.align = SIZE
        return loaded

    def _sum_of_lanes(self, value: Any) -> Any:
        width = LANES
        while width > 1:
            width //= 2
            unused = ir.Constant(value.type, ir.Undefined)
            low, high = (self.builder.shuffle_vector(value, unused, _indices(start, width)) for start in (0, width))
            value = self.builder.fadd(low, high)
        return self.builder.extract_element(value, _INDEX(0))


def _indices(start: int, count: int) -> Any:
    return ir.Constant(ir.VectorType(_INDEX, count), [_INDEX(start + index) for index in range(count)])


def _tile(rows: int, outputs: int) -> Any:
    """A function (x, x_row, matrix, inputs, sums) of addresses: rows · outputs dot products, written to `sums`."""

    @intrinsic
    def tile(_context: Any, x: Any, x_row: Any, matrix: Any, inputs: Any, sums: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            _Tile(builder, rows, outputs).write(*arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return tile


tile_of_rows = _tile(ROWS, OUTPUTS)
tile_of_row = _tile(1, 4)
tile_of_one = _tile(1, 1)
