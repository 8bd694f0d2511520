"""The loops of a GRU in training, compiled by Numba: only what depends on the step before it.

A step of a few rows takes less time than the calls of torch for it. Products over all steps at once stay with torch:
`nn.bptt` has the same loops in torch and says what the arrays hold. Time comes first, and all arrays are contiguous.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import activate, add, compiled, interpolate, multiply
from chainrule.kernels.caching import exported
from chainrule.kernels.instructions import SIGMOID, TANH
from chainrule.kernels.products import linear
from chainrule.kernels.registers import vector

Floats = npt.NDArray[np.floating[Any]]


@exported
def gru_forward(
    gates: int, hidden: int, recalled: int, matrix: int, steps: int, rows: int, width: int, like: Floats
) -> None:
    """Activate the gates (T, B, 3D) and write the hidden vectors (T + 1, B, D) from the second on, and U_n h.

    `gates` has the products with the inputs; the recurrent matrix is (3D, D).
    """
    row = width * like.itemsize
    for step in range(steps):
        here, before, kept = gates + step * rows * 3 * row, hidden + step * rows * row, recalled + step * rows * row
        linear(here, 3 * row, before, row, matrix, 0, 0, width, 2 * width, rows, True, like, like)
        linear(kept, row, before, row, matrix + 2 * width * row, 0, 0, width, width, rows, False, like, like)
        for _ in range(rows):
            candidate = here + 2 * row
            activate(here, here, 2 * width, SIGMOID, like)
            multiply(candidate, here, kept, width, True, like)
            activate(candidate, candidate, width, TANH, like)
            interpolate(before + rows * row, candidate, before, here + row, width, like)
            here, before, kept = here + 3 * row, before + row, kept + row


@exported
def gru_backward(
    slopes: int,
    recurrent: int,
    gates: int,
    output_grad: int,
    hidden_grad: int,
    transposed: int,
    steps: int,
    rows: int,
    width: int,
    like: Floats,
) -> None:
    """From the last step to the first, turn `slopes` (T, B, 3D) into gradients, write those of U h to `recurrent`.

    The gradient of the hidden vector (B, D), 0 at the end, is that of the initial one after the first step. The
    transposed recurrent matrix is (D, 3D).
    """
    row = width * like.itemsize
    for back in range(steps):
        step = steps - 1 - back
        for one in range(rows):
            at = step * rows + one
            _gru_gradient(
                slopes + at * 3 * row,
                recurrent + at * 3 * row,
                gates + at * 3 * row,
                output_grad + at * row,
                hidden_grad + one * row,
                width,
                like,
            )
        here = recurrent + step * rows * 3 * row
        linear(hidden_grad, row, here, 3 * row, transposed, 0, 0, 3 * width, width, rows, True, like, like)


@compiled
def _gru_gradient(
    slopes: int, recurrent: int, gates: int, output_grad: int, hidden_grad: int, width: int, like: Floats
) -> None:
    """One row of a step."""
    add(hidden_grad, hidden_grad, output_grad, width, like)
    row = width * like.itemsize
    by_reset, by_update, by_candidate = (
        vector(slopes, width, like),
        vector(slopes + row, width, like),
        vector(slopes + 2 * row, width, like),
    )
    reset, update, grad = vector(gates, width, like), vector(gates + row, width, like), vector(hidden_grad, width, like)
    found = vector(recurrent, 3 * width, like)
    for index in range(width):
        by_update[index] *= grad[index]
        by_candidate[index] *= grad[index]
        by_reset[index] *= by_candidate[index]
    for index in range(width):
        found[index] = by_reset[index]
        found[width + index] = by_update[index]
        found[2 * width + index] = by_candidate[index] * reset[index]
        grad[index] *= update[index]
