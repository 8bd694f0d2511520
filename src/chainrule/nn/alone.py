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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.nn.linear import EXACT, Projection
from chainrule.nn.norms import LayerNorm

Row: TypeAlias = npt.NDArray[np.floating[Any]]

GELU_SCALE = 2 * (2 / np.pi) ** 0.5
LARGEST_EXPONENT = 80.0  # e^80 still is a float32


BLOCK = 32
"""Tokens of one row that NumPy still reads faster than torch."""


def can_go_alone(tokens: Tensor, like: Tensor, *, most: int = 1) -> bool:
    """One row of one token, or of `most`, on the CPU, in full precision, that nobody wants the gradient of."""
    return (
        len(tokens) == 1
        and tokens.numel() <= most
        and not torch.is_grad_enabled()
        and like.device.type == "cpu"
        and like.dtype in EXACT
    )


def array(tensor: Tensor) -> Row:
    """The same memory as NumPy sees it."""
    found: Row = tensor.detach().numpy()
    return found


def project(x: Row, projection: Projection) -> Row:
    """(in,) to (out,), or (K, in) to (K, out)."""
    y: Row = x.dot(array(projection.weight))
    if projection.bias is not None:
        y += array(projection.bias)
    return y


def in_heads(x: Row, parts: int, heads: int) -> Row:
    """(parts · H · D,) to (parts, H, D), or (K, parts · H · D) to (parts, H, K, D)."""
    if x.ndim == 1:
        return x.reshape(parts, heads, -1)
    return x.reshape(len(x), parts, heads, -1).transpose(1, 2, 0, 3)


def normalised(x: Row) -> Row:
    """RMS norm over the last axis, without a weight."""
    mean_square = np.add.reduce(x * x, axis=-1, keepdims=True) / x.shape[-1]
    scaled: Row = x / np.sqrt(mean_square + 1e-6)
    return scaled


def layer_normalised(x: Row, norm: LayerNorm) -> Row:
    """The last axis to mean 0 and variance 1, then the learned scale and shift."""
    width = x.shape[-1]
    centred: Row = x - np.add.reduce(x, axis=-1, keepdims=True) / width
    centred /= np.sqrt(np.add.reduce(centred * centred, axis=-1, keepdims=True) / width + norm.eps)
    centred *= array(norm.weight)
    centred += array(norm.bias)
    return centred


def squared_relu(x: Row) -> Row:
    positive = np.maximum(x, 0.0)
    positive *= positive
    return positive


def gelu(x: Row) -> Row:
    """The tanh form: x (1 + tanh u) / 2 is x / (1 + e^−2u)."""
    exponent = x * x
    exponent *= 0.044715
    exponent += 1.0
    exponent *= x
    exponent *= -GELU_SCALE
    np.minimum(exponent, LARGEST_EXPONENT, out=exponent)
    np.exp(exponent, out=exponent)
    exponent += 1.0
    divided: Row = x / exponent
    return divided


@dataclass(slots=True)
class Turn:
    """The rotation of one position, or of some."""

    cosine: Row  # (D,) or (K, D)
    sine: Row

    def __call__(self, vectors: Row) -> Row:
        half = vectors.shape[-1] // 2
        swapped = np.concatenate((vectors[..., half:], vectors[..., :half]), axis=-1)
        swapped *= self.sine
        swapped += vectors * self.cosine
        return swapped


class Cache(NamedTuple):
    """Keys and values of one layer, written in place."""

    keys: Row  # (H, C, D)
    values: Row  # (H, C, D)
    position: int  # of the token that is read now, or of the first of them

    def where(self, tokens: Row) -> int | slice:
        """The positions of a token (D,), or of tokens (K, D), that are read now."""
        return self.position if tokens.ndim == 1 else slice(self.position, self.position + len(tokens))

    def attend(self, query: Row, key: Row, value: Row) -> Row:
        """(H, D) each: remember the key and the value, and gather what the query finds: (H · D,).

        Of several tokens, (H, K, D) each, every one finds itself and those before it: (K, H · D).
        """
        if query.ndim == 3:
            end = self.position + query.shape[1]
            self.keys[:, self.position : end] = key
            self.values[:, self.position : end] = value
            return gather_causally(query, self.keys[:, :end], self.values[:, :end])
        self.keys[:, self.position] = key
        self.values[:, self.position] = value
        end = self.position + 1
        return gather(query, self.keys[:, :end], self.values[:, :end])


def gather(query: Row, keys: Row, values: Row, bias: Row | None = None) -> Row:
    """What a query (H, D) finds among keys and values (H, S, D), with a bias (H, S) on their scores: (H · D,)."""
    weights = np.matmul(keys, query[:, :, None])[:, :, 0]  # (H, S)
    weights *= query.shape[-1] ** -0.5
    if bias is not None:
        weights += bias
    weights -= np.maximum.reduce(weights, axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= np.add.reduce(weights, axis=-1, keepdims=True)
    gathered: Row = np.matmul(weights[:, None], values)
    return gathered.reshape(-1)


def gather_causally(query: Row, keys: Row, values: Row) -> Row:
    """What K queries (H, K, D), those of the last K slots, find among the slots (H, S, D) up to their own."""
    count, slots = query.shape[1], keys.shape[1]
    weights = np.matmul(query, keys.swapaxes(1, 2))  # (H, K, S)
    weights *= query.shape[-1] ** -0.5
    weights[:, :, slots - count :] += np.triu(np.full((count, count), -np.inf, weights.dtype), 1)
    weights -= np.maximum.reduce(weights, axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= np.add.reduce(weights, axis=-1, keepdims=True)
    gathered: Row = np.matmul(weights, values)
    return gathered.transpose(1, 0, 2).reshape(count, -1)
