"""Single-row decoding in NumPy: one token, or a few, of one sequence.

Decoding a single sequence takes hundreds of operations on a few hundred numbers per token, and torch spends more time
on dispatch than on arithmetic. A NumPy call has less overhead, and its BLAS has a higher memory bandwidth for
matrix-vector products (see `layers.matmul`). This module holds single-row versions of `layers`, `positions` and
`attention`; `tests/nn/test_single_row.py` compares each with its batched counterpart.

The same holds for the few tokens that speculative decoding verifies at once: with 8 tokens and a width of 384, NumPy's
BLAS takes three quarters of the time of torch's.

Shape letters: D width, H heads, K tokens, C capacity of a cache, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.nn.layers import EXACT, LayerNorm, Projection

Array: TypeAlias = npt.NDArray[np.floating[Any]]

GELU_SCALE = 2 * (2 / np.pi) ** 0.5
LARGEST_EXPONENT = 80.0  # e^80 is still finite in float32


MAX_DECODER_TOKENS = 32
"""The largest chunk of one row for which NumPy is faster than torch."""

MAX_ENCODER_TOKENS = 64
"""The same for encoders, which read a row once: for longer rows both are equally fast."""


def is_applicable(tokens: Tensor, like: Tensor, *, max_tokens: int = 1) -> bool:
    """Whether the input is one row of at most `max_tokens` on the CPU, in full precision, without gradients."""
    return (
        len(tokens) == 1
        and tokens.numel() <= max_tokens
        and not torch.is_grad_enabled()
        and like.device.type == "cpu"
        and like.dtype in EXACT
    )


def as_numpy(tensor: Tensor) -> Array:
    """A NumPy view of the same memory."""
    view: Array = tensor.detach().numpy()
    return view


def project(x: Array, projection: Projection) -> Array:
    """(in,) to (out,), or (K, in) to (K, out)."""
    y: Array = x.dot(as_numpy(projection.weight))
    if projection.bias is not None:
        y += as_numpy(projection.bias)
    return y


def split_heads(x: Array, parts: int, heads: int) -> Array:
    """(parts · H · D,) to (parts, H, D), or (K, parts · H · D) to (parts, H, K, D)."""
    if x.ndim == 1:
        return x.reshape(parts, heads, -1)
    return x.reshape(len(x), parts, heads, -1).transpose(1, 2, 0, 3)


def rms_norm(x: Array) -> Array:
    """`layers.rms_norm`."""
    mean_square = np.add.reduce(x * x, axis=-1, keepdims=True) / x.shape[-1]
    scaled: Array = x / np.sqrt(mean_square + 1e-6)
    return scaled


def layer_norm(x: Array, norm: LayerNorm) -> Array:
    """`layers.LayerNorm`."""
    width = x.shape[-1]
    centred: Array = x - np.add.reduce(x, axis=-1, keepdims=True) / width
    centred /= np.sqrt(np.add.reduce(centred * centred, axis=-1, keepdims=True) / width + norm.eps)
    centred *= as_numpy(norm.weight)
    centred += as_numpy(norm.bias)
    return centred


def squared_relu(x: Array) -> Array:
    positive = np.maximum(x, 0.0)
    positive *= positive
    return positive


def gelu(x: Array) -> Array:
    """GELU, tanh approximation: x (1 + tanh u) / 2 = x / (1 + e^−2u)."""
    exponent = x * x
    exponent *= 0.044715
    exponent += 1.0
    exponent *= x
    exponent *= -GELU_SCALE
    np.minimum(exponent, LARGEST_EXPONENT, out=exponent)
    np.exp(exponent, out=exponent)
    exponent += 1.0
    divided: Array = x / exponent
    return divided


@dataclass(slots=True)
class RowRotation:
    """The rotary rotation of one position, or of several."""

    cosine: Array  # (D,) or (K, D)
    sine: Array

    def __call__(self, vectors: Array) -> Array:
        half = vectors.shape[-1] // 2
        swapped = np.concatenate((vectors[..., half:], vectors[..., :half]), axis=-1)
        swapped *= self.sine
        swapped += vectors * self.cosine
        return swapped


class RowCache(NamedTuple):
    """Keys and values of one layer, updated in place."""

    keys: Array  # (H, C, D)
    values: Array  # (H, C, D)
    position: int  # of the first new token

    def where(self, tokens: Array) -> int | slice:
        """The positions of the new token (D,), or tokens (K, D)."""
        return self.position if tokens.ndim == 1 else slice(self.position, self.position + len(tokens))

    def attend(self, query: Array, key: Array, value: Array) -> Array:
        """Append the key and the value, and attend to the cache: (H, D) each to (H · D,).

        With several tokens, (H, K, D) each to (K, H · D), attention is causal.
        """
        if query.ndim == 3:
            end = self.position + query.shape[1]
            self.keys[:, self.position : end] = key
            self.values[:, self.position : end] = value
            return attend_each(query, self.keys[:, :end], self.values[:, :end], causal=True)
        self.keys[:, self.position] = key
        self.values[:, self.position] = value
        end = self.position + 1
        return attend(query, self.keys[:, :end], self.values[:, :end])


class FullRowAttention:
    """Bidirectional attention over all tokens of one row."""

    def attend(self, query: Array, key: Array, value: Array) -> Array:
        """(H, K, D) each to (K, H · D)."""
        return attend_each(query, key, value)


class RowAttention(Protocol):
    """How a layer attends: through a `RowCache`, or bidirectionally."""

    def attend(self, query: Array, key: Array, value: Array) -> Array:
        """Queries, keys and values of the new tokens to the attention output."""


def attend(query: Array, keys: Array, values: Array, bias: Array | None = None) -> Array:
    """Attention of one query (H, D) over keys and values (H, S, D), with a bias (H, S) on the scores: (H · D,)."""
    scores = np.matmul(keys, query[:, :, None])[:, :, 0]  # (H, S)
    scores *= query.shape[-1] ** -0.5
    if bias is not None:
        scores += bias
    output: Array = np.matmul(_softmax(scores)[:, None], values)
    return output.reshape(-1)


def attend_each(query: Array, keys: Array, values: Array, *, causal: bool = False) -> Array:
    """Attention of K queries (H, K, D) over keys and values (H, S, D): (K, H · D).

    If causal, the queries are those of the last K positions, and each attends to the positions up to its own.
    """
    count, length = query.shape[1], keys.shape[1]
    scores = np.matmul(query, keys.swapaxes(1, 2))  # (H, K, S)
    scores *= query.shape[-1] ** -0.5
    if causal:
        scores[:, :, length - count :] += np.triu(np.full((count, count), -np.inf, scores.dtype), 1)
    output: Array = np.matmul(_softmax(scores), values)
    return output.transpose(1, 0, 2).reshape(count, -1)


def _softmax(scores: Array) -> Array:
    """Over the last axis, in place."""
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.add.reduce(scores, axis=-1, keepdims=True)
    return scores
