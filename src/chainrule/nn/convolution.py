"""Causal convolutions over sequences, and the rings that let them go on from where they stopped.

A causal convolution with kernel k and dilation d gives at t a linear map of the inputs at t, t − d, …, t − (k − 1) d:
its taps. What came before the text is zero. To read on, it needs its last (k − 1) d inputs and nothing else, so its
state has a fixed size and a step costs the same however long the text is.

The state is a ring of d slots, one for each phase t mod d. A slot holds the last k − 1 inputs of its phase, oldest
first: at t that is just what the kernel meets beside the new input. So a step reads one slot and writes one slot,
whatever the dilation, and the slot is already laid out as the matrix product wants it. Rows may stand at different
positions, hence at different slots.

Shape letters beside those of `chainrule.types`: k kernel, d dilation, R = (k − 1) d inputs kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.nn import single_row
from chainrule.nn.dropout import Dropout
from chainrule.nn.layers import Projection, rms_norm
from chainrule.nn.single_row import Array


class Taps(NamedTuple):
    """What a kernel meets at each new input, and the ring after them."""

    met: Tensor  # (B, K, k D), oldest first
    ring: Tensor  # (B, d, (k − 1) D)


@dataclass(frozen=True)
class DelayLine:
    """Lays side by side the inputs that a causal kernel meets, so that a convolution is one matrix product.

    On one core of a CPU, at 128 channels, forward and backward, `torch.nn.functional.conv1d` took 1.1 to 1.35 times as
    long (`benchmarks/convolutions.py`).
    """

    width: int
    kernel: int
    dilation: int = 1

    @property
    def receptive_field(self) -> int:
        """How far back the oldest tap lies: R."""
        return (self.kernel - 1) * self.dilation

    def initial(self, rows: int, like: Tensor) -> Tensor:
        """The ring before anything was read, in the precision and place of `like`: (B, d, (k − 1) D)."""
        return like.new_zeros(rows, self.dilation, (self.kernel - 1) * self.width)

    def read(self, x: Tensor, ring: Tensor, positions: Tensor) -> Taps:
        """The taps of x (B, K, D) in rows that have read `positions` (B,) inputs before.

        A single input without gradients is written into the ring in place; otherwise the ring after is another one.
        """
        if x.shape[1] == 1 and not torch.is_grad_enabled():
            return self._read_one(x[:, 0], ring, positions)
        window = torch.cat([self.unroll(ring, positions), x], dim=1)  # (B, R + K, D)
        starts = range(0, self.receptive_field + 1, self.dilation)
        met = torch.cat([window[:, start : start + x.shape[1]] for start in starts], dim=-1)
        return Taps(met, self.roll(window[:, x.shape[1] :], positions + x.shape[1]))

    def _read_one(self, x: Tensor, ring: Tensor, positions: Tensor) -> Taps:
        rows, slots = torch.arange(len(x), device=x.device), positions % self.dilation
        met = torch.cat([ring[rows, slots], x], dim=1)  # (B, k D)
        ring[rows, slots] = met[:, self.width :]
        return Taps(met[:, None], ring)

    def step(self, x: Array, ring: Array, position: int) -> Array:
        """One input of one row, (D,) to its taps (k D,); the ring (d, (k − 1) D) is written in place."""
        slot = ring[position % self.dilation]
        met: Array = np.concatenate((slot, x))
        slot[:] = met[self.width :]
        return met

    def unroll(self, ring: Tensor, positions: Tensor) -> Tensor:
        """The inputs that a ring holds, in the order of time: (B, R, D)."""
        slots = positions[:, None] + torch.arange(self.dilation, device=positions.device)  # (B, d), oldest first
        phases = _take(ring, slots % self.dilation).view(len(ring), self.dilation, self.kernel - 1, self.width)
        return phases.transpose(1, 2).flatten(1, 2)

    def roll(self, past: Tensor, positions: Tensor) -> Tensor:
        """The ring that holds the last inputs (B, R, D) of rows that have read `positions` of them."""
        phases = past.reshape(len(past), self.kernel - 1, self.dilation, self.width).transpose(1, 2).flatten(2)
        slots = torch.arange(self.dilation, device=positions.device) - positions[:, None]
        return _take(phases, slots % self.dilation)


def _take(slots: Tensor, order: Tensor) -> Tensor:
    """Slots (B, d, ·) of each row in an order of its own, (B, d)."""
    return slots[torch.arange(len(slots), device=slots.device)[:, None], order]


class GatedConvolution(nn.Module):
    """y = W_o ((W_a ∗ x) ∘ σ(W_b ∗ x)): one causal convolution decides what of another passes.

    The gated linear unit of Dauphin et al. (2017), then a map of each position by itself. That map starts at zero, as
    a branch that will be added to its input should.
    """

    def __init__(self, width: int, *, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.line = DelayLine(width, kernel, dilation)
        self.value = Projection(kernel * width, width)
        self.gate = Projection(kernel * width, width)
        self.out = Projection(width, width)
        for convolution in (self.value, self.gate):
            nn.init.normal_(convolution.weight, std=(kernel * width) ** -0.5)
        nn.init.zeros_(self.out.weight)

    def initial(self, rows: int) -> Tensor:
        """The ring before anything was read."""
        return self.line.initial(rows, self.out.weight)

    def forward(self, x: Tensor, ring: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K, D) to (B, K, D), and the ring after it."""
        met, ring = self.line.read(x, ring, positions)
        return self.out(self.value(met) * self.gate(met).sigmoid()), ring

    def step(self, x: Array, ring: Array, position: int) -> Array:
        """`forward` for a single input of a single row."""
        met = self.line.step(x, ring, position)
        exponent = -single_row.project(met, self.gate)
        np.minimum(exponent, single_row.LARGEST_EXPONENT, out=exponent)
        return single_row.project(single_row.project(met, self.value) / (1.0 + np.exp(exponent)), self.out)

    def extra_repr(self) -> str:
        return f"kernel={self.line.kernel}, dilation={self.line.dilation}"


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
    return rms_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


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
