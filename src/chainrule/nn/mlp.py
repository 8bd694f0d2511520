"""The MLP of Transformer blocks."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from chainrule.kernels.instructions import SQUARED_RELU, Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.nn.layers import input_projection, output_projection, squared_relu


class SquaredReluMLP(nn.Module):
    """V max(0, W x)² without biases (So et al., 2021). V is initialised to zero, as the end of a residual branch."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.inside = input_projection(inputs, inner)
        self.out = output_projection(inner, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        return cast(Tensor, self.out(squared_relu(self.inside(x))))

    def describe(self, program: ProgramBuilder, x: Vector, *, add_to: Vector) -> None:
        """`forward` in a compiled step, added to a residual stream."""
        program.apply(self.out, program.activate(program.apply(self.inside, x), SQUARED_RELU), add_to=add_to)
