"""Vector registers and memory in LLVM's terms, for the functions whose instructions are chosen by hand.

A compiler that may reorder sums does so differently for every shape, so the products of `products` and
`integer_products` are written in vectors of `LANES` numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm
import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

Floats = npt.NDArray[np.floating[Any]]

Function = TypeVar("Function", bound=Callable[..., Any])

# `fastmath` is set because Numba gives a function that leaves it open the setting of whoever calls it first.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "fastmath": False}


def ordered(function: Function) -> Function:
    """Compile a function whose sums keep their order."""
    return cast(Function, numba.njit(**OPTIONS)(function))


WIDE = bool(llvm.get_host_cpu_features().get("avx512f"))
LANES, TILE = (16, 4) if WIDE else (8, 2)  # numbers in a register; rows of a tile, as many as there are registers for
LINE = 64  # bytes of a cache line

INT32, INT64 = ir.IntType(32), ir.IntType(64)


def constant(value: int) -> Any:
    return ir.Constant(INT64, value)


def lane_numbers(numbers: list[int]) -> Any:
    return ir.Constant(ir.VectorType(INT32, len(numbers)), numbers)


def lane_sums(builder: Any, vectors: list[Any]) -> Any:
    """A vector with the sum of the lanes of each: halves are added until one lane is left, two vectors at a time."""
    lanes, starts = LANES, range(1)
    while lanes > 1:
        half = lanes // 2
        paired = vectors if len(vectors) > 1 else [vectors[0], vectors[0]]
        starts = range(0, len(starts) * lanes * min(2, len(vectors)), lanes)
        low = lane_numbers([start + lane for start in starts for lane in range(half)])
        high = lane_numbers([start + half + lane for start in starts for lane in range(half)])
        vectors = [
            builder.fadd(builder.shuffle_vector(one, other, low), builder.shuffle_vector(one, other, high))
            for one, other in zip(paired[::2], paired[1::2], strict=True)
        ]
        lanes = half
    return vectors[0]


def as_pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def memory(builder: Any, kind: Any) -> Any:
    """Memory of the function for a value of this type, which LLVM keeps in a register if it can."""
    return cgutils.alloca_once(builder, kind)  # type: ignore[no-untyped-call]


def declare(builder: Any, kind: Any, name: str) -> Any:
    return cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]


def number_types(like: Any) -> tuple[Any, Any, int]:
    """The type of a number, that of a vector register, and the bytes of a number."""
    number = ir.FloatType() if like.dtype == types.float32 else ir.DoubleType()
    return number, ir.VectorType(number, LANES), like.dtype.bitwidth // 8


def broadcast(builder: Any, number: Any, kind: Any) -> Any:
    """A vector of a type whose lanes all have one value."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, first, lane_numbers([0] * kind.count))


def prefetch_line(builder: Any, address: Any) -> None:
    """Ask for the cache line at an address, which need not be valid."""
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, INT32, INT32, INT32])
    reading, near, data = (ir.Constant(INT32, value) for value in (0, 3, 1))
    line = builder.inttoptr(address, cgutils.voidptr_t)
    builder.call(declare(builder, kind, "llvm.prefetch.p0"), [line, reading, near, data])


def fused_multiply_add(builder: Any, numbers: Any) -> Any:
    bits = 32 if isinstance(numbers.element, ir.FloatType) else 64
    kind = ir.FunctionType(numbers, [numbers] * 3)
    return declare(builder, kind, f"llvm.fma.v{LANES}f{bits}")


@intrinsic
def pointer(_context: Any, address: Any) -> Any:
    """An integer as a pointer."""

    def convert(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), convert


@ordered
def vector(address: int, size: int, like: Floats) -> Floats:
    """The numbers at an address, as an array of the type of `like`."""
    return numba.carray(pointer(address), size, dtype=like.dtype)  # type: ignore[attr-defined, call-arg]
