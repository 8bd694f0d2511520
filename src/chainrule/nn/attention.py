"""Attention: causal, over whole sequences or through a key-value cache; bidirectional; cross-attention; pooling.

A Transformer block calls `attend(query, key, value)`, or `cross_attend(query)` for the keys and values of a source. It
is independent of the kind of attention, so a block is implemented once for training and decoding. Shape letters: B
rows, H heads, K new tokens, C capacity, S cached tokens or source tokens, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.nn.dropout import apply_dropout
from chainrule.types import length_mask

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Self-attention: query, key and value of the new tokens, (B, H, K, D) each, to (B, H, K, D)."""

CrossAttend: TypeAlias = Callable[[Tensor], Tensor]
"""Cross-attention to the source of each row: queries of the new tokens (B, H, K, D) to (B, H, K, D)."""


def require_heads(width: int, heads: int) -> None:
    """Raise ValueError if the width is not divisible by the number of heads."""
    if width % heads:
        below = width // heads * heads
        options = " or ".join(str(fitting) for fitting in (below, below + heads) if fitting)
        raise ValueError(f"width {width} is not divisible by heads {heads}; try {options}")


@dataclass(slots=True)
class CausalAttention:
    """Every token attends to itself and to those before it, in parallel: for training and scoring."""

    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _attention(query, key, value, dropout=self.dropout, causal=True)


@dataclass(slots=True)
class RecordingCausalAttention:
    """Causal attention that records its attention weights."""

    recorded: list[Tensor] = field(default_factory=list)  # (B, H, T, T) each

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = _attention_weights(query, key, _causal_bias(query, key), None)
        self.recorded.append(weights)
        return weights @ value


@dataclass(slots=True)
class BidirectionalAttention:
    """Every token attends to all tokens of its row: for encoders."""

    bias: Tensor | None  # see `padding_bias`
    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _attention(query, key, value, self.bias, dropout=self.dropout)


@dataclass(slots=True)
class CachedAttention:
    """New tokens are appended to a key-value cache in place, and attend to the tokens of their row in it."""

    keys: Tensor  # (B, H, C, D)
    values: Tensor  # (B, H, C, D)
    index: CacheIndex

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        index = self.index
        index.write(self.keys, key)
        index.write(self.values, value)
        past_keys, past_values = self.keys[:, :, : index.end], self.values[:, :, : index.end]
        return F.scaled_dot_product_attention(query, past_keys, past_values, index.mask, is_causal=index.causal)


class AlignedIndex:
    """All rows are at the same position, so a chunk is a slice and a single token needs no mask."""

    def __init__(self, start: int, chunk: int, device: torch.device) -> None:
        self.end = start + chunk
        self.where = slice(start, self.end)
        self.causal = start == 0 and chunk > 1
        self.mask: Tensor | None = None
        if start > 0 and chunk > 1:
            positions = torch.arange(self.end, device=device)
            self.mask = positions <= positions[start:, None]  # (K, S)

    def write(self, cache: Tensor, new: Tensor) -> None:
        cache[:, :, self.where] = new


class RaggedIndex:
    """Rows are at different positions; cache entries past the end of a row are masked."""

    causal = False

    def __init__(self, positions: Tensor, chunk: int, end: int) -> None:
        self.end = end
        self.rows = torch.arange(len(positions), device=positions.device)[:, None]  # (B, 1)
        self.where = positions[:, None] + torch.arange(chunk, device=positions.device)  # (B, K)
        cached = torch.arange(end, device=positions.device)
        self.mask = (cached <= self.where[..., None])[:, None]  # (B, 1, K, S)

    def write(self, cache: Tensor, new: Tensor) -> None:
        cache[self.rows, :, self.where] = new.transpose(1, 2)


CacheIndex: TypeAlias = AlignedIndex | RaggedIndex
"""Where a chunk of K tokens is written in the cache, and the attention mask for it."""


def cache_index(positions: Tensor, chunk: int) -> CacheIndex:
    """The index of the next `chunk` tokens of rows at `positions` (B,). Reads their values once per step (a sync)."""
    starts = positions.tolist()
    first, last = min(starts), max(starts)
    return (
        AlignedIndex(first, chunk, positions.device) if first == last else RaggedIndex(positions, chunk, last + chunk)
    )


def new_caches(like: Tensor, layers: int, shape: tuple[int, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Empty caches of keys and of values, a tensor (B, H, C, D) for each layer.

    They hold zeros rather than uninitialised memory: masked slots enter products with weight 0, and 0 · NaN is NaN.
    """
    keys, values = (tuple(like.new_zeros(shape) for _ in range(layers)) for _ in range(2))
    return keys, values


def grow_cache(cache: Tensor, size: int, limit: int) -> Tensor:
    """A cache (B, H, C, D) with room for `size` tokens: this one, or one at least twice as large, up to the limit.

    Beam search copies its caches at every step, so a cache should not be much larger than its content. Doubling makes
    the cost per token constant (amortised), however long the sequence grows.
    """
    capacity = cache.shape[2]
    if size <= capacity:
        return cache
    return F.pad(cache, (0, 0, 0, min(limit, max(size, 2 * capacity)) - capacity))


def padding_bias(lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor | None:
    """Bias (B, 1, 1, S) on the scores of sources padded to `width`: 0, or −∞ at padding; None without padding."""
    if int(lengths.min()) >= width:
        return None
    padding = ~length_mask(lengths, width)  # (B, S)
    zeros = torch.zeros(padding.shape, dtype=dtype, device=lengths.device)
    return zeros.masked_fill_(padding, -torch.inf)[:, None, None]


@dataclass(slots=True)
class SourceAttention:
    """Cross-attention: new tokens attend to the source of their row, whose keys and values are computed once."""

    keys: Tensor  # (B, H, S, D)
    values: Tensor  # (B, H, S, D)
    bias: Tensor | None  # see `padding_bias`
    dropout: float = 0.0
    scale: float | None = None  # of the scores; None: 1 / √D

    def __call__(self, query: Tensor) -> Tensor:
        return _attention(query, self.keys, self.values, self.bias, dropout=self.dropout, scale=self.scale)

    def weights(self, query: Tensor) -> Tensor:
        """Attention weights (B, H, K, S) of each token over the source."""
        return _attention_weights(query, self.keys, self.bias, self.scale)


def single_head_attention(source: Tensor, lengths: Tensor) -> SourceAttention:
    """Unscaled dot-product attention with source vectors (B, S, D) as keys and values."""
    vectors = source[:, None]
    return SourceAttention(vectors, vectors, padding_bias(lengths, source.shape[1], source.dtype), scale=1.0)


@dataclass(slots=True)
class RecordingAttention:
    """Cross-attention that records its attention weights."""

    attention: SourceAttention
    recorded: list[Tensor] = field(default_factory=list)  # (B, H, K, S) each

    def __call__(self, query: Tensor) -> Tensor:
        self.recorded.append(self.attention.weights(query))
        return self.attention(query)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    *,
    dropout: float,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale · query · key + bias) · value, with dropout on the weights."""
    if not dropout:
        return F.scaled_dot_product_attention(query, key, value, bias, is_causal=causal, scale=scale)
    if causal:
        bias = _causal_bias(query, key)
    return apply_dropout(_attention_weights(query, key, bias, scale), dropout) @ value


def _causal_bias(query: Tensor, key: Tensor) -> Tensor:
    """Bias (K, K) on the scores: −∞ at later tokens."""
    later = torch.full((query.shape[2], key.shape[2]), -torch.inf, dtype=query.dtype, device=query.device)
    return later.triu_(1)


def _attention_weights(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """Attention weights (B, H, K, S)."""
    scores = (query.shape[-1] ** -0.5 if scale is None else scale) * query @ key.mT
    return (scores if bias is None else scores + bias).softmax(-1)


class AttentionPooling(nn.Module):
    """Attention pooling: learned weighted means of the vectors of a sequence.

        α_hn = softmax_n(u_h · tanh(W m_n + b)),    c = [Σ_n α_1n m_n; …; Σ_n α_Hn m_n]

    As in Yang et al. (2016), with H context vectors u. They are initialised to zero, so pooling starts as the mean.
    """

    def __init__(self, inputs: int, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, width)
        self.heads = nn.Parameter(torch.zeros(heads, width))  # u

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) and the mask of real tokens (B, S) to (B, H D)."""
        return (self.weights(vectors, mask) @ vectors.masked_fill(~mask[..., None], 0.0)).flatten(1)

    def weights(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Attention weights (B, H, S) of each head."""
        scores = F.linear(torch.tanh(self.inner(vectors)), self.heads).transpose(1, 2)
        return scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
