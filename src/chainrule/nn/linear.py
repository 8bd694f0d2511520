"""Linear maps that are fast for many rows and for a single one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

EXACT = (torch.float32, torch.float64)


class Projection(nn.Module):
    """A linear map whose matrix is stored (in, out), the way that a product with a single row reads it fastest.

    Such products are made in `alone`.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) to (N, out)."""
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """(N, D) @ (D, O).

    A product with a single row reads the matrix once and hardly computes, so its speed is that of memory. NumPy's
    BLAS comes nearer to that than torch's, 1.1 to 1.7 times as fast in runs on one core (`benchmarks/matvec.py`).
    """
    if is_lone_row(x) and x.dtype == matrix.dtype:
        return torch.from_numpy(np.dot(x.numpy()[0], matrix.detach().numpy()))[None]
    return x @ matrix


def is_lone_row(x: Tensor) -> bool:
    """One row on the CPU, in full precision, that nobody wants the gradient of."""
    return len(x) == 1 and not torch.is_grad_enabled() and x.device.type == "cpu" and x.dtype in EXACT


def inward(inputs: int, outputs: int, *, bias: bool = False) -> Projection:
    """A matrix at the beginning of a residual branch."""
    projection = Projection(inputs, outputs, bias=bias)
    nn.init.normal_(projection.weight, std=inputs**-0.5)
    return projection


def outward(inputs: int, outputs: int) -> Projection:
    """A matrix at the end of one: zero, so that the model begins as its embeddings and readout."""
    projection = Projection(inputs, outputs)
    nn.init.zeros_(projection.weight)
    return projection
