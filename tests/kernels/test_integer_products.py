"""Products of int8 matrices in integers equal those of torch, but for the rounding of inputs to 16 bits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from chainrule.kernels import integer_products
from chainrule.kernels.instructions import LINEAR_IN_INTEGERS, LINEAR_INT8
from chainrule.kernels.integer_products import LARGEST
from chainrule.kernels.program import ProgramBuilder, quantize
from chainrule.kernels.step import run

pytestmark = pytest.mark.skipif(not integer_products.AVAILABLE, reason="needs a processor with VNNI")

SHAPES = [(1, 1), (3, 5), (8, 16), (30, 37), (64, 48), (65, 33), (384, 100)]


def product(x: Tensor, matrix: Tensor, bias: Tensor | None = None, *, added: bool = False) -> Tensor:
    """The linear map of rows (B, D) in a program with int8 weights; `added`: on top of itself."""
    builder = ProgramBuilder(torch.float32, len(matrix), int8=True)
    given, result = builder.given(0, x.shape[1]), builder.result()
    builder.linear(given, matrix, bias, out=result)
    if added:
        builder.linear(given, matrix, bias, add_to=result)
    program = builder.build()
    assert LINEAR_IN_INTEGERS in program.operations[:, 0]
    return run(program, torch.zeros(1, len(x), dtype=torch.long), x[None])[0]


def test_float64_keeps_sums_in_float64() -> None:
    builder = ProgramBuilder(torch.float64, 4, int8=True)
    builder.linear(builder.given(0, 3), torch.randn(4, 3, dtype=torch.float64), out=builder.result())
    assert builder.build().operations[0, 0] == LINEAR_INT8


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 16])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_equals_that_of_torch_with_inputs_of_16_bits(
    inputs: int, outputs: int, rows: int, biased: bool
) -> None:
    torch.manual_seed(inputs)
    x, matrix = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if biased else None
    weights, scales = quantize(matrix)
    largest = x.abs().amax(1, keepdim=True)
    factors = torch.full_like(largest, LARGEST) / largest
    rounded = ((x * factors + 32768.5).floor() - 32768).double() * (largest.double() / LARGEST)
    expected = rounded @ (weights.double() * scales.double()[:, None]).T + (0 if bias is None else bias.double())
    tolerance = 2e-6 * math.sqrt(inputs)
    torch.testing.assert_close(product(x, matrix, bias).double(), expected, atol=tolerance, rtol=1e-6)
    found = product(x, matrix, bias, added=True).double()
    torch.testing.assert_close(found, 2 * expected, atol=2 * tolerance, rtol=1e-6)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, matrix, bias = torch.randn(11, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    together = product(x, matrix, bias)
    for row in range(len(x)):
        assert torch.equal(product(x[row : row + 1], matrix, bias)[0], together[row])


def test_extreme_rows_keep_to_themselves() -> None:
    matrix, bias = torch.randn(20, 12), torch.randn(20)
    x = torch.randn(6, 12)
    x[0], x[1, 3], x[2, 5] = 0.0, math.inf, math.nan
    x[3], x[4] = 1e-38, 3e38 * torch.randn(12).sign()
    found = product(x, matrix, bias)
    assert torch.equal(found[0], bias)
    assert found[1:3].isnan().all()
    torch.testing.assert_close(found[3], bias)
    assert torch.equal(found[5], product(x[5:], matrix, bias)[0])
    weights, scales = quantize(matrix)
    torch.testing.assert_close(product(x[4:5] * 1e-2, matrix), x[4:5] * 1e-2 @ (weights * scales[:, None]).T)


def test_the_largest_weights_and_inputs_do_not_overflow() -> None:
    matrix, x = torch.ones(17, 60_000), torch.ones(2, 60_000)
    torch.testing.assert_close(product(x, matrix), torch.full((2, 17), 60_000.0))
    torch.testing.assert_close(product(-x, matrix), torch.full((2, 17), -60_000.0))
