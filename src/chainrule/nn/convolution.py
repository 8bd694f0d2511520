"""Causal convolutions: over sequences, with a ring buffer for decoding, and over the pixels of images in raster order.

Sequences. The output of a causal convolution with kernel k and dilation d at t is a linear map of its taps, the inputs
at t, t − d, …, t − (k − 1) d; inputs before the start are zero. The state is the last (k − 1) d inputs, so its size and
the cost of a step do not depend on the length of the text. It is stored as a ring buffer of d slots, one for each phase
t mod d. A slot holds the last k − 1 inputs of its phase, oldest first, which together with the new input are the taps
at t. So a step reads and writes one slot, whatever the dilation, in the layout of the matrix product. Rows may be at
different positions, hence at different slots.
Shape letters beside those of `chainrule.types`: k kernel, d dilation, R = (k − 1) d buffered inputs.

Images. A pixel depends on the pixels before it, row by row. The vertical stack covers the rows up to the current one
and the columns on both sides, the horizontal stack the pixels of the current row up to the current one; see
`models.pixelcnn`. Whole images are (B, D, H, W) in contiguous memory, the fastest layout for convolutions on a CPU.
Shape letters: B images, D width, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.kernels.instructions import SIGMOID, Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.nn.dropout import Dropout
from chainrule.nn.layers import Projection, rms_norm


class Taps(NamedTuple):
    """The taps of each new input, and the ring buffer after them."""

    values: Tensor  # (B, K, k D), oldest first
    ring: Tensor  # (B, d, (k − 1) D)


@dataclass(frozen=True)
class DelayLine:
    """Concatenates the taps of a causal convolution, so that the convolution is one matrix product.

    `torch.nn.functional.conv1d` took 1.1 to 1.35 times as long, forward and backward, on one CPU core with 128 channels
    (`benchmarks/convolutions.py`).
    """

    width: int
    kernel: int
    dilation: int = 1

    @property
    def receptive_field(self) -> int:
        """The distance of the oldest tap: R."""
        return (self.kernel - 1) * self.dilation

    def initial(self, rows: int, like: Tensor) -> Tensor:
        """The initial ring buffer (B, d, (k − 1) D), with the type and device of `like`."""
        return like.new_zeros(rows, self.dilation, (self.kernel - 1) * self.width)

    def read(self, x: Tensor, ring: Tensor, positions: Tensor) -> Taps:
        """The taps of x (B, K, D) for rows at `positions` (B,).

        For a single input without gradients the ring buffer is updated in place; otherwise a new one is returned.
        """
        if x.shape[1] == 1 and not torch.is_grad_enabled():
            return self._read_one(x[:, 0], ring, positions)
        window = torch.cat([self.unroll(ring, positions), x], dim=1)  # (B, R + K, D)
        starts = range(0, self.receptive_field + 1, self.dilation)
        taps = torch.cat([window[:, start : start + x.shape[1]] for start in starts], dim=-1)
        return Taps(taps, self.roll(window[:, x.shape[1] :], positions + x.shape[1]))

    def _read_one(self, x: Tensor, ring: Tensor, positions: Tensor) -> Taps:
        rows, slots = torch.arange(len(x), device=x.device), positions % self.dilation
        taps = torch.cat([ring[rows, slots], x], dim=1)  # (B, k D)
        ring[rows, slots] = taps[:, self.width :]
        return Taps(taps[:, None], ring)

    def unroll(self, ring: Tensor, positions: Tensor) -> Tensor:
        """The inputs in the ring buffer in temporal order: (B, R, D)."""
        slots = positions[:, None] + torch.arange(self.dilation, device=positions.device)  # (B, d), oldest first
        phases = _take(ring, slots % self.dilation).view(len(ring), self.dilation, self.kernel - 1, self.width)
        return phases.transpose(1, 2).flatten(1, 2)

    def roll(self, past: Tensor, positions: Tensor) -> Tensor:
        """The ring buffer that holds the last inputs (B, R, D) of rows at `positions` (B,)."""
        phases = past.reshape(len(past), self.kernel - 1, self.dilation, self.width).transpose(1, 2).flatten(2)
        slots = torch.arange(self.dilation, device=positions.device) - positions[:, None]
        return _take(phases, slots % self.dilation)


def _take(slots: Tensor, order: Tensor) -> Tensor:
    """Slots (B, d, ·) of each row in the order (B, d)."""
    return slots[torch.arange(len(slots), device=slots.device)[:, None], order]


class GatedConvolution(nn.Module):
    """y = W_o ((W_a ∗ x) ∘ σ(W_b ∗ x)): a causal convolution with a gated linear unit (Dauphin et al., 2017).

    The output projection W_o is initialised to zero, as the last layer of a residual branch.
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
        """The initial ring buffer."""
        return self.line.initial(rows, self.out.weight)

    def forward(self, x: Tensor, ring: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K, D) to (B, K, D), and the ring buffer after it."""
        taps, ring = self.line.read(x, ring, positions)
        return self.out(self.value(taps) * self.gate(taps).sigmoid()), ring

    def describe(self, program: ProgramBuilder, x: Vector, ring: int, *, add_to: Vector) -> None:
        """`forward` in a compiled step, added to a residual stream; `ring` is the state tensor of the ring buffer."""
        taps = program.taps(x, ring, self.line.kernel, self.line.dilation)
        gate = program.activate(program.apply(self.gate, taps), SIGMOID)
        program.apply(self.out, program.multiply(program.apply(self.value, taps), gate, out=gate), add_to=add_to)

    def extra_repr(self) -> str:
        return f"kernel={self.line.kernel}, dilation={self.line.dilation}"


class Convolution(nn.Module):
    """A causal 2-D convolution whose weights are stored as one matrix, for Muon and for single-pixel products.

    A vertical one covers the rows up to the current one and the columns on both sides; a horizontal one covers the
    columns up to the current one.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, *, vertical: bool) -> None:
        super().__init__()
        half = kernel // 2 + 1
        self.form = (outputs, half, kernel, inputs) if vertical else (outputs, 1, half, inputs)
        self.dilation = dilation
        self.past = kernel // 2 * dilation  # receptive field: rows above, or pixels to the left
        fan_in = self.form[1] * self.form[2] * inputs
        self.weight = nn.Parameter(torch.empty(outputs, fan_in))
        nn.init.normal_(self.weight, std=fan_in**-0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    @property
    def kernel(self) -> Tensor:
        return self.weight.view(self.form).permute(0, 3, 1, 2)

    def downwards(self, x: Tensor) -> Tensor:
        """Vertical convolution of whole images (B, D, H, W)."""
        padded = F.pad(x, (self.past, self.past, self.past, 0))
        return F.conv2d(padded, self.kernel, self.bias, dilation=self.dilation)

    def rightwards(self, x: Tensor) -> Tensor:
        """Horizontal convolution of whole images (B, D, H, W)."""
        return F.conv2d(F.pad(x, (self.past, 0)), self.kernel, self.bias, dilation=self.dilation)

    def row(self, rows: Tensor, row: Tensor) -> Tensor:
        """Vertical convolution at a single row (B, D, 1, W), given the `past` rows above it."""
        taps = torch.cat([rows[:, :, :: self.dilation], row], dim=2)
        return F.conv2d(taps, self.kernel, self.bias, padding=(0, self.past), dilation=(1, self.dilation))

    def pixel(self, pixels: Tensor, pixel: Tensor) -> Tensor:
        """Horizontal convolution at a single pixel (B, D), given the `past` pixels before it (B, ·, D)."""
        taps = torch.cat([pixels[:, :: self.dilation], pixel[:, None]], dim=1)
        return F.linear(taps.flatten(1), self.weight, self.bias)


def pointwise(matrix: nn.Linear, x: Tensor) -> Tensor:
    """A linear map at every pixel of (B, D, H, W): a 1 × 1 convolution."""
    return F.conv2d(x, matrix.weight[:, :, None, None], matrix.bias)


def pixel_norm(x: Tensor) -> Tensor:
    """RMS norm of the vector of every pixel."""
    return rms_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def shift_down(x: Tensor) -> Tensor:
    """(B, D, H, W) shifted down by one row, with zeros in the first."""
    return F.pad(x, (0, 0, 1, 0))[:, :, :-1]


class GatedLayer(nn.Module):
    """One layer of both stacks."""

    def __init__(self, width: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.vertical = Convolution(width, 2 * width, kernel, dilation, vertical=True)
        self.horizontal = Convolution(width, 2 * width, kernel, dilation, vertical=False)
        self.join = matrix(width, 2 * width)
        self.outward = matrix(width, width)
        nn.init.zeros_(self.outward.weight)  # a residual branch starts at zero
        self.dropout = Dropout(dropout)

    def forward(self, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, H, W) of both stacks."""
        v = v + self.dropout(F.glu(self.vertical.downwards(pixel_norm(v)), 1))
        taps = self.horizontal.rightwards(pixel_norm(h)) + pointwise(self.join, shift_down(v))
        return v, h + pointwise(self.outward, self.dropout(F.glu(taps, 1)))

    def row(self, rows: Tensor, row: Tensor) -> Tensor:
        """The residual of a row (B, D, 1, W) of the vertical stack; the inputs are already normalised."""
        return F.glu(self.vertical.row(rows, row), 1)

    def pixel(self, pixels: Tensor, pixel: Tensor, above: Tensor) -> Tensor:
        """The residual of a pixel (B, D) of the horizontal stack; the inputs are already normalised."""
        return F.linear(F.glu(self.horizontal.pixel(pixels, pixel) + above, -1), self.outward.weight)


def matrix(inputs: int, outputs: int) -> nn.Linear:
    found = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(found.weight, std=inputs**-0.5)
    return found


class ShortConvolution(nn.Module):
    """x_t + Σ_j a_j ∘ x_{t−j} with 0 < j < k: a depthwise causal convolution that begins as the identity.

    A step of attention that looks for a phrase has to find the tokens before a token first. Here every position knows
    the last few tokens from the start, which saves a small model one layer.
    """

    def __init__(self, kernel: int, width: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.scales = nn.Parameter(torch.zeros((kernel - 1) * width))  # flat: scales for AdamW, not a map for Muon

    def forward(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """(B, K, D), after the last k − 1 vectors (B, k − 1, D), which are zero at the start of a text."""
        past = x.new_zeros(len(x), self.kernel - 1, x.shape[2]) if before is None else before
        padded, length = torch.cat([past, x], dim=1), x.shape[1]
        for distance, scale in enumerate(self.scales.view(self.kernel - 1, -1), start=1):
            start = self.kernel - 1 - distance
            x = torch.addcmul(x, padded[:, start : start + length], scale)
        return x

    def describe(self, program: ProgramBuilder, x: Vector, before: Sequence[Vector]) -> None:
        """`forward` in a compiled step, in place, after the last k − 1 vectors, the oldest first."""
        for distance, scale in enumerate(self.scales.chunk(self.kernel - 1), start=1):
            program.multiply(before[-distance], program.constant(scale), out=x, accumulate=True)
