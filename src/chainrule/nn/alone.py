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

Row: TypeAlias = npt.NDArray[np.floating[Any]]

GELU_SCALE = 2 * (2 / np.pi) ** 0.5
LARGEST_EXPONENT = 80.0  # e^80 still is a float32


BLOCK = 32
"""Tokens of one row that NumPy still reads faster than torch."""

SENTENCE = 64
"""The same for encoders, and whoever else reads a row once and whole: beyond, both are equally fast."""


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
            return gather_each(query, self.keys[:, :end], self.values[:, :end], causal=True)
        self.keys[:, self.position] = key
        self.values[:, self.position] = value
        end = self.position + 1
        return gather(query, self.keys[:, :end], self.values[:, :end])


class Whole:
    """All tokens of one row are there at once, and each finds all of them."""

    def attend(self, query: Row, key: Row, value: Row) -> Row:
        """(H, K, D) each to (K, H · D)."""
        return gather_each(query, key, value)


class Attends(Protocol):
    """Who answers the queries of a layer: a cache of what came before, or all tokens at once."""

    def attend(self, query: Row, key: Row, value: Row) -> Row:
        """Queries, keys and values of the tokens that are read now, to what they find."""


def gather(query: Row, keys: Row, values: Row, bias: Row | None = None) -> Row:
    """What a query (H, D) finds among keys and values (H, S, D), with a bias (H, S) on their scores: (H · D,)."""
    scores = np.matmul(keys, query[:, :, None])[:, :, 0]  # (H, S)
    scores *= query.shape[-1] ** -0.5
    if bias is not None:
        scores += bias
    gathered: Row = np.matmul(_softmax(scores)[:, None], values)
    return gathered.reshape(-1)


def gather_each(query: Row, keys: Row, values: Row, *, causal: bool = False) -> Row:
    """What K queries (H, K, D) find among the slots (H, S, D): (K, H · D).

    If causal, the queries are those of the last K slots, and each finds the slots up to its own.
    """
    count, slots = query.shape[1], keys.shape[1]
    scores = np.matmul(query, keys.swapaxes(1, 2))  # (H, K, S)
    scores *= query.shape[-1] ** -0.5
    if causal:
        scores[:, :, slots - count :] += np.triu(np.full((count, count), -np.inf, scores.dtype), 1)
    gathered: Row = np.matmul(_softmax(scores), values)
    return gathered.transpose(1, 0, 2).reshape(count, -1)


def _softmax(scores: Row) -> Row:
    """Over the last axis, in place."""
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.add.reduce(scores, axis=-1, keepdims=True)
    return scores
