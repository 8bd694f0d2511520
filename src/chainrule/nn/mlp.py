"""The MLP of Transformer blocks."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from chainrule.nn import single_row
from chainrule.nn.layers import input_projection, output_projection, squared_relu
from chainrule.nn.single_row import Array


class SquaredReluMLP(nn.Module):
    """V max(0, W x)² without biases (So et al., 2021). V is initialised to zero, as the end of a residual branch."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.inside = input_projection(inputs, inner)
        self.out = output_projection(inner, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        return cast(Tensor, self.out(squared_relu(self.inside(x))))

    def step(self, x: Array) -> Array:
        """`forward` for a single row, (inputs,), or for the tokens of one, (K, inputs)."""
        return single_row.project(single_row.squared_relu(single_row.project(x, self.inside)), self.out)
