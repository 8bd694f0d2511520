"""One token of one text, or a few, in NumPy.

Writing a single text, a model does hundreds of operations on a few hundred numbers for every token, and torch spends
more time on dispatching them than on doing them. A call to NumPy costs less, and its BLAS reads a matrix
from memory faster (see `linear.times`). Here are the single-row twins of what `linear`, `norms`, `activations`,
`positions` and `attention` do for batches; `tests/nn/test_alone.py` compares each with its twin.

Decoding by drafts reads a few tokens at once (see `decoding.speculative`), and there the same holds: at 8 tokens of a
width of 384, NumPy's BLAS needs three quarters of the time of torch's.

Shape letters: D width, H heads, K tokens, C capacity of a cache, S slots in use.
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
LARGEST_EXPONENT = 80.0  # e^80 still is a float32


MAX_DECODER_TOKENS = 32
"""Tokens of one row that NumPy still reads faster than torch."""

MAX_ENCODER_TOKENS = 64
"""The same for encoders, and whoever else reads a row once and whole: beyond, both are equally fast."""


def is_applicable(tokens: Tensor, like: Tensor, *, max_tokens: int = 1) -> bool:
    """One row of one token, or of `most`, on the CPU, in full precision, that nobody wants the gradient of."""
    return (
        len(tokens) == 1
        and tokens.numel() <= max_tokens
        and not torch.is_grad_enabled()
        and like.device.type == "cpu"
        and like.dtype in EXACT
    )


def as_numpy(tensor: Tensor) -> Array:
    """The same memory as NumPy sees it."""
    found: Array = tensor.detach().numpy()
    return found


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
    """RMS norm over the last axis, without a weight."""
    mean_square = np.add.reduce(x * x, axis=-1, keepdims=True) / x.shape[-1]
    scaled: Array = x / np.sqrt(mean_square + 1e-6)
    return scaled


def layer_norm(x: Array, norm: LayerNorm) -> Array:
    """The last axis to mean 0 and variance 1, then the learned scale and shift."""
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
    """The tanh form: x (1 + tanh u) / 2 is x / (1 + e^−2u)."""
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
    """The rotation of one position, or of some."""

    cosine: Array  # (D,) or (K, D)
    sine: Array

    def __call__(self, vectors: Array) -> Array:
        half = vectors.shape[-1] // 2
        swapped = np.concatenate((vectors[..., half:], vectors[..., :half]), axis=-1)
        swapped *= self.sine
        swapped += vectors * self.cosine
        return swapped


class RowCache(NamedTuple):
    """Keys and values of one layer, written in place."""

    keys: Array  # (H, C, D)
    values: Array  # (H, C, D)
    position: int  # of the token that is read now, or of the first of them

    def where(self, tokens: Array) -> int | slice:
        """The positions of a token (D,), or of tokens (K, D), that are read now."""
        return self.position if tokens.ndim == 1 else slice(self.position, self.position + len(tokens))

    def attend(self, query: Array, key: Array, value: Array) -> Array:
        """(H, D) each: remember the key and the value, and gather what the query finds: (H · D,).

        Of several tokens, (H, K, D) each, every one finds itself and those before it: (K, H · D).
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
    """All tokens of one row are there at once, and each finds all of them."""

    def attend(self, query: Array, key: Array, value: Array) -> Array:
        """(H, K, D) each to (K, H · D)."""
        return attend_each(query, key, value)


class RowAttention(Protocol):
    """Who answers the queries of a layer: a cache of what came before, or all tokens at once."""

    def attend(self, query: Array, key: Array, value: Array) -> Array:
        """Queries, keys and values of the tokens that are read now, to what they find."""


def attend(query: Array, keys: Array, values: Array, bias: Array | None = None) -> Array:
    """What a query (H, D) finds among keys and values (H, S, D), with a bias (H, S) on their scores: (H · D,)."""
    scores = np.matmul(keys, query[:, :, None])[:, :, 0]  # (H, S)
    scores *= query.shape[-1] ** -0.5
    if bias is not None:
        scores += bias
    gathered: Array = np.matmul(_softmax(scores)[:, None], values)
    return gathered.reshape(-1)


def attend_each(query: Array, keys: Array, values: Array, *, causal: bool = False) -> Array:
    """What K queries (H, K, D) find among the slots (H, S, D): (K, H · D).

    If causal, the queries are those of the last K slots, and each finds the slots up to its own.
    """
    count, slots = query.shape[1], keys.shape[1]
    scores = np.matmul(query, keys.swapaxes(1, 2))  # (H, K, S)
    scores *= query.shape[-1] ** -0.5
    if causal:
        scores[:, :, slots - count :] += np.triu(np.full((count, count), -np.inf, scores.dtype), 1)
    gathered: Array = np.matmul(_softmax(scores), values)
    return gathered.transpose(1, 0, 2).reshape(count, -1)


def _softmax(scores: Array) -> Array:
    """Over the last axis, in place."""
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.add.reduce(scores, axis=-1, keepdims=True)
    return scores
