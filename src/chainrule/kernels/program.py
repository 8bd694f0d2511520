"""A decoding step as a program: operations on vectors, described once per family and executed by `interpreter`.

A family whose step is compiled describes it with a `ProgramBuilder`: it takes vectors from the embedding, from the
state and from earlier operations, and ends with the logits. Weights and states are used where they are, so a program
holds no copy of the model and changes the model's own state.

Shape letters: D width, H heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chainrule.kernels.composition import CompositeOperations
from chainrule.kernels.instructions import (
    ACTIVATE,
    ADD,
    ADD_POSITION,
    ADD_PREVIOUS_ROWS,
    ADDITIVE_ATTENTION,
    CROSS_ATTENTION,
    EMBED,
    EMBED_WINDOW,
    EXPECTED_ROW,
    FIRST_STATE,
    FULL_ATTENTION,
    INTERPOLATE,
    LAYER_NORM,
    LINEAR,
    LINEAR_IN_INTEGERS,
    LINEAR_INT8,
    LISTED_LINEAR,
    LOG_MIXTURE,
    LOG_SOFTMAX,
    MULTIPLY,
    NONE,
    POSITION,
    RMS_NORM,
    ROTATE,
    SELF_ATTENTION,
    SLOW_ATTENTION,
    TAPS,
    LinearLayer,
    Vector,
)

LARGEST_INT8 = 127


def quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (out, in) in int8, and the scale (out,) of each of its rows: the largest weight becomes ±127."""
    largest = matrix.abs().amax(1)
    scales = torch.where(largest > 0, largest / LARGEST_INT8, 1)
    return (matrix / scales[:, None]).round_().to(torch.int8), scales


@dataclass
class ProgramBuilder(CompositeOperations):
    """Collects the operations of a step. Methods return the vector of their result, in new working memory."""

    def embed(self, table: Tensor) -> Vector:
        """The row of the token in a table (R, D); tokens past its end share the last row."""
        out = self.new(table.shape[1])
        self._add(EMBED, out.place, self.constant(table).place, out.size, table.shape[0] - 1)
        return out

    def embed_window(self, table: Tensor, slot: int, length: int) -> Vector:
        """The rows of the last `length` tokens, concatenated; the state tensor holds all but the newest."""
        self.sequential = True
        out = self.new(length * table.shape[1])
        self._add(EMBED_WINDOW, out.place, self.constant(table).place, table.shape[1], length, FIRST_STATE + slot)
        return out

    def add_previous_rows(self, x: Vector, table: Tensor, scales: Tensor, slot: int) -> None:
        """X plus the rows of the tokens before, each scaled by a vector of `scales`, the nearest first; in place.

        The state tensor (B, 1, C, 1) holds all tokens by position; the new one is added.
        """
        count = scales.numel() // x.size
        rows, factors = self.constant(table).place, self.constant(scales).place
        self._add(ADD_PREVIOUS_ROWS, x.place, rows, factors, x.size, count, FIRST_STATE + slot)

    def linear(
        self,
        x: Vector,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        out: Vector | None = None,
        add_to: Vector | None = None,
    ) -> Vector:
        """W x + b with W (out, in), or added to another vector."""
        outputs, inputs = weight.shape
        assert inputs == x.size
        out = add_to or out or self.new(outputs)
        shift = NONE if bias is None else self.constant(bias).place
        accumulate = int(add_to is not None)
        self.matrices.append(weight)
        if self.int8:
            self._linear_int8(out, x, weight, shift, accumulate)
        else:
            self._add(LINEAR, out.place, x.place, self.constant(weight).place, shift, inputs, outputs, accumulate)
        return out

    def _linear_int8(self, out: Vector, x: Vector, weight: Tensor, bias: int, accumulate: int) -> None:
        """In integers where the processor has an instruction for it, otherwise with sums in float32 or float64."""
        from chainrule.kernels import integer_products

        outputs, inputs = weight.shape
        quantized, scales = quantize(weight.detach())
        if self.dtype == torch.float32 and integer_products.AVAILABLE:
            packed, sums = (torch.tensor(part) for part in integer_products.packed(quantized.numpy()))
            matrix, shifts = self._hold(packed).place, self._hold(sums).place
            scale = self.constant(nn.functional.pad(scales, (0, len(sums) - outputs))).place
            with self.scratch():
                rounded = self.new(integer_products.row_bytes(inputs) // self.dtype.itemsize).place
            parts = matrix, bias, inputs, outputs, accumulate, scale, shifts, rounded
            self._add(LINEAR_IN_INTEGERS, out.place, x.place, *parts)
        else:
            matrix, scale = self._hold(quantized).place, self.constant(scales).place
            self._add(LINEAR_INT8, out.place, x.place, matrix, bias, inputs, outputs, accumulate, scale)

    def logits(self, x: Vector, weight: Tensor, bias: Tensor | None = None) -> None:
        """W x + b as the result of the step."""
        self.linear(x, weight, bias, out=self.result())

    def listed_logits(self, x: Vector, weight: Tensor, bias: Tensor | None, *, listed: int, counts: int) -> None:
        """W x + b for some tokens of each row as the result of the step, and −∞ for the others.

        The first state tensor (B, L) has their ids, the second how many they are.
        """
        shift = NONE if bias is None else self.constant(bias).place
        places = self.result().place, x.place, self.constant(weight).place, shift
        self._add(LISTED_LINEAR, *places, x.size, self.outputs, FIRST_STATE + listed, FIRST_STATE + counts)

    def apply(
        self, layer: LinearLayer, x: Vector, *, out: Vector | None = None, add_to: Vector | None = None
    ) -> Vector:
        """A linear layer."""
        return self.linear(x, layer.weight, layer.bias, out=out, add_to=add_to)

    def rms_norm(self, x: Vector, *, groups: int = 1, out: Vector | None = None, epsilon: float = 1e-6) -> Vector:
        """RMS norm of each of the groups."""
        out = out or self.new(x.size)
        self._add(RMS_NORM, out.place, x.place, x.size // groups, groups, value=epsilon)
        return out

    def layer_norm(self, x: Vector, norm: nn.LayerNorm) -> Vector:
        out = self.new(x.size)
        scale, shift = self.constant(norm.weight).place, self.constant(norm.bias).place
        self._add(LAYER_NORM, out.place, x.place, scale, shift, x.size, value=norm.eps)
        return out

    def add_position(self, x: Vector, table: Tensor) -> Vector:
        """X plus the row of its position in a table (C, D)."""
        out = self.new(x.size)
        self._add(ADD_POSITION, out.place, x.place, self.constant(table).place, x.size)
        return out

    def rotate(self, x: Vector, cosine: Tensor, sine: Tensor, groups: int) -> None:
        """Rotary positions of each group, in place; tables (C, D/H) by position."""
        width = x.size // groups
        self._add(ROTATE, x.place, self.constant(cosine).place, self.constant(sine).place, width, groups)

    def self_attention(self, query: Vector, key: Vector, value: Vector, keys: int, values: int, heads: int) -> Vector:
        """Append key and value to the caches (B, H, C, D/H), and attend to them."""
        out = self.new(query.size)
        slots = FIRST_STATE + keys, FIRST_STATE + values
        width = query.size // heads
        self._add(
            SELF_ATTENTION, out.place, query.place, key.place, value.place, *slots, heads, width, value=width**-0.5
        )
        return out

    def full_attention(self, query: Vector, key: Vector, value: Vector, heads: int) -> Vector:
        """Attend to all tokens of the row, in both directions."""
        out = self.new(query.size)
        width = query.size // heads
        self._add(FULL_ATTENTION, out.place, query.place, key.place, value.place, heads, width, value=width**-0.5)
        return out

    def slow_attention(self, query: Vector, key: Vector, value: Vector, heads: int) -> Vector:
        """Attend to all tokens of the row by the scores of `nn.slow_attention`."""
        out = self.new(value.size)
        self._add(
            SLOW_ATTENTION, out.place, query.place, key.place, value.place, heads, query.size // heads,
            value.size // heads,
        )  # fmt: skip
        return out

    def cross_attention(
        self,
        query: Vector,
        keys: int,
        values: int,
        lengths: int,
        heads: int,
        *,
        scale: float | None = None,
        distances: tuple[Tensor, int] | None = None,
    ) -> Vector:
        """Attend to the keys and values (B, H, S, D/H) of the source, or (B, S, D) for one head.

        With `distances`, a table (2 M + 1, H) and the state tensor of the source positions, the score of each source
        token has a bias by its distance from the target position, clipped to M.
        """
        out = self.new(query.size)
        slots = FIRST_STATE + keys, FIRST_STATE + values, FIRST_STATE + lengths
        width = query.size // heads
        biases = (NONE, NONE, 0)
        if distances is not None:
            table, positions = distances
            biases = (self.constant(table).place, FIRST_STATE + positions, table.shape[0] // 2)
        factor = width**-0.5 if scale is None else scale
        self._add(CROSS_ATTENTION, out.place, query.place, *slots, heads, width, *biases, value=factor)
        return out

    def additive_attention(
        self, query: Vector, weight: Tensor, keys: int, values: int, lengths: int, size: int
    ) -> Vector:
        """Σ_n softmax_n(w · ReLU(k_n + q)) v_n over keys (B, S, A) and values (B, S, `size`)."""
        out = self.new(size)
        slots = FIRST_STATE + keys, FIRST_STATE + values, FIRST_STATE + lengths
        self._add(ADDITIVE_ATTENTION, out.place, query.place, self.constant(weight).place, *slots, query.size, size)
        return out

    def taps(self, x: Vector, ring: int, kernel: int, dilation: int) -> Vector:
        """The inputs of a causal convolution: x and those in the ring buffer (B, d, (k − 1) D), which is updated."""
        self.sequential = True
        out = self.new(kernel * x.size)
        self._add(TAPS, out.place, x.place, FIRST_STATE + ring, x.size, kernel, dilation)
        return out

    def activate(self, x: Vector, kind: int, *, out: Vector | None = None) -> Vector:
        """An elementwise function, in place unless `out` is given."""
        out = out or x
        self._add(ACTIVATE, out.place, x.place, x.size, kind)
        return out

    def add(self, x: Vector, y: Vector, *, out: Vector | None = None) -> Vector:
        out = out or self.new(x.size)
        self._add(ADD, out.place, x.place, y.place, x.size)
        return out

    def multiply(self, x: Vector, y: Vector, *, out: Vector | None = None, accumulate: bool = False) -> Vector:
        """X ∘ y, or out + x ∘ y."""
        out = out or self.new(x.size)
        self._add(MULTIPLY, out.place, x.place, y.place, x.size, int(accumulate))
        return out

    def interpolate(self, x: Vector, y: Vector, weight: Vector, *, out: Vector | None = None) -> Vector:
        """X + weight ∘ (y − x)."""
        out = out or self.new(x.size)
        self._add(INTERPOLATE, out.place, x.place, y.place, weight.place, x.size)
        return out

    def log_softmax(self, x: Vector, *, floor: float = 0.0) -> Vector:
        """Log-probabilities from logits, in place; at least `floor`, if it is negative."""
        self._add(LOG_SOFTMAX, x.place, x.place, x.size, value=floor)
        return x

    def expected_row(self, log_probs: Vector, table: Tensor, *, out: Vector, epsilon: float = 1e-6) -> Vector:
        """Σ_v P(v) norm(row v) of a table (V, D), with the RMS norm."""
        rows, width = table.shape
        self._add(EXPECTED_ROW, out.place, log_probs.place, self.constant(table).place, rows, width, value=epsilon)
        return out

    def log_mixture(self, first: Vector, second: Vector, gate: Vector, *, out: Vector) -> Vector:
        """log(σ(g) P₁ + (1 − σ(g)) P₂) from log-probabilities and the gate's logit."""
        self._add(LOG_MIXTURE, out.place, first.place, second.place, gate.place, first.size)
        return out

    def position(self, table: Tensor, *, out: Vector) -> None:
        """The row of the position in a table (C, D)."""
        self._add(POSITION, out.place, self.constant(table).place, out.size)

    def concatenate(self, *vectors: Vector) -> Vector:
        out = self.new(sum(vector.size for vector in vectors))
        start = 0
        for vector in vectors:
            self.copy(vector, self.part(out, start, vector.size))
            start += vector.size
        return out
