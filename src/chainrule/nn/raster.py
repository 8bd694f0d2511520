"""Convolutions over the pixels that come before one, row by row: of whole images, of a row, of a single pixel.

The vertical stack meets the rows up to this one and the columns on both sides, the horizontal stack the pixels of this
row up to this one. What a layer of both does is in the docstring of `models.pixelcnn`. Maps of whole images are (B, D,
H, W) with the width last in memory, which is how convolutions are fastest on a CPU.

Shape letters: B images, D width, H rows, W columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.nn.dropout import Dropout
from chainrule.nn.norms import normalised


class Convolution(nn.Module):
    """A convolution whose weights are one matrix, as Muon and a single pixel want them.

    Vertical, it meets the rows up to this one and the columns on both sides; horizontal, the columns up to this one.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, *, vertical: bool) -> None:
        super().__init__()
        half = kernel // 2 + 1
        self.form = (outputs, half, kernel, inputs) if vertical else (outputs, 1, half, inputs)
        self.dilation = dilation
        self.past = kernel // 2 * dilation  # rows above or pixels before that it reaches to
        fan_in = self.form[1] * self.form[2] * inputs
        self.weight = nn.Parameter(torch.empty(outputs, fan_in))
        nn.init.normal_(self.weight, std=fan_in**-0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    @property
    def kernel(self) -> Tensor:
        return self.weight.view(self.form).permute(0, 3, 1, 2)

    def downwards(self, x: Tensor) -> Tensor:
        """Of a vertical one, (B, D, H, W): every row from those up to it."""
        padded = F.pad(x, (self.past, self.past, self.past, 0))
        return F.conv2d(padded, self.kernel, self.bias, dilation=self.dilation)

    def rightwards(self, x: Tensor) -> Tensor:
        """Of a horizontal one: every column from those up to it."""
        return F.conv2d(F.pad(x, (self.past, 0)), self.kernel, self.bias, dilation=self.dilation)

    def row(self, rows: Tensor, row: Tensor) -> Tensor:
        """Of a vertical one: a single row (B, D, 1, W) from itself and the `past` rows above it."""
        met = torch.cat([rows[:, :, :: self.dilation], row], dim=2)
        return F.conv2d(met, self.kernel, self.bias, padding=(0, self.past), dilation=(1, self.dilation))

    def pixel(self, pixels: Tensor, pixel: Tensor) -> Tensor:
        """Of a horizontal one: a single pixel (B, D) from itself and the `past` pixels before it, (B, ·, D)."""
        met = torch.cat([pixels[:, :: self.dilation], pixel[:, None]], dim=1)
        return F.linear(met.flatten(1), self.weight, self.bias)


def across(matrix: nn.Linear, x: Tensor) -> Tensor:
    """(B, D, H, W) through a linear map at every pixel."""
    return F.conv2d(x, matrix.weight[:, :, None, None], matrix.bias)


def norm_across(x: Tensor) -> Tensor:
    """The norm of every pixel's vector."""
    return normalised(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def lowered(x: Tensor) -> Tensor:
    """(B, D, H, W) moved down by a row; above the first is nothing."""
    return F.pad(x, (0, 0, 1, 0))[:, :, :-1]


class GatedLayer(nn.Module):
    """One layer of both stacks."""

    def __init__(self, width: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.vertical = Convolution(width, 2 * width, kernel, dilation, vertical=True)
        self.horizontal = Convolution(width, 2 * width, kernel, dilation, vertical=False)
        self.join = matrix(width, 2 * width)
        self.outward = matrix(width, width)
        nn.init.zeros_(self.outward.weight)  # a residual branch begins at nothing
        self.dropout = Dropout(dropout)

    def forward(self, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, H, W) of both stacks."""
        v = v + self.dropout(F.glu(self.vertical.downwards(norm_across(v)), 1))
        met = self.horizontal.rightwards(norm_across(h)) + across(self.join, lowered(v))
        return v, h + across(self.outward, self.dropout(F.glu(met, 1)))

    def row(self, rows: Tensor, row: Tensor) -> Tensor:
        """What a complete row (B, D, 1, W) of the vertical stack gains; it and those above it come normalised."""
        return F.glu(self.vertical.row(rows, row), 1)

    def pixel(self, pixels: Tensor, pixel: Tensor, above: Tensor) -> Tensor:
        """What a pixel (B, D) of the horizontal stack gains; it and those before it come normalised."""
        return F.linear(F.glu(self.horizontal.pixel(pixels, pixel) + above, -1), self.outward.weight)


def matrix(inputs: int, outputs: int) -> nn.Linear:
    found = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(found.weight, std=inputs**-0.5)
    return found
