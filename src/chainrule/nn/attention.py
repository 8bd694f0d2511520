"""Attention: causal, over whole sequences and over a cache of bounded capacity; both ways; and over a source.

A block asks `attend(query, key, value)`, or `look(query)` where the keys and values are those of a source, and does
not know who answers, so its arithmetic is written once. Shape letters: B rows, H heads, K new tokens, C capacity,
S slots in use or tokens of a source, D width of a head.
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
"""query, key, value of the new tokens, (B, H, K, D) each, to what they gather from the past: (B, H, K, D)."""

CrossAttend: TypeAlias = Callable[[Tensor], Tensor]
"""query of the new tokens, (B, H, K, D), to what they gather from their row's source: (B, H, K, D)."""


def require_heads(width: int, heads: int) -> None:
    """Refuse a width that cannot be shared out among the heads, as the settings of a model do."""
    if width % heads:
        below = width // heads * heads
        options = " or ".join(str(fitting) for fitting in (below, below + heads) if fitting)
        raise ValueError(f"width {width} is not divisible by heads {heads}; try {options}")


@dataclass(slots=True)
class CausalAttention:
    """Every token attends to itself and to those before it, all at once: the way of training and scoring."""

    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _gathered(query, key, value, dropout=self.dropout, causal=True)


@dataclass(slots=True)
class BidirectionalAttention:
    """Every token attends to all tokens of its row, before and after it: the way of encoders."""

    bias: Tensor | None  # see `padding_bias`
    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _gathered(query, key, value, self.bias, dropout=self.dropout)


@dataclass(slots=True)
class CachedAttention:
    """New tokens are written into a cache, in place, and attend to all that it holds of their row's past."""

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
    """All rows stand at the same position, so that a chunk is a slice and a single token needs no mask."""

    def __init__(self, start: int, chunk: int, device: torch.device) -> None:
        self.end = start + chunk
        self.where = slice(start, self.end)
        self.causal = start == 0 and chunk > 1
        self.mask: Tensor | None = None
        if start > 0 and chunk > 1:
            slots = torch.arange(self.end, device=device)
            self.mask = slots <= slots[start:, None]  # (K, S)

    def write(self, cache: Tensor, new: Tensor) -> None:
        cache[:, :, self.where] = new


class RaggedIndex:
    """Rows stand at positions of their own; slots past a row's own end are masked, whatever they hold."""

    causal = False

    def __init__(self, positions: Tensor, chunk: int, end: int) -> None:
        self.end = end
        self.rows = torch.arange(len(positions), device=positions.device)[:, None]  # (B, 1)
        self.where = positions[:, None] + torch.arange(chunk, device=positions.device)  # (B, K)
        slots = torch.arange(end, device=positions.device)
        self.mask = (slots <= self.where[..., None])[:, None]  # (B, 1, K, S)

    def write(self, cache: Tensor, new: Tensor) -> None:
        cache[self.rows, :, self.where] = new.transpose(1, 2)


CacheIndex: TypeAlias = AlignedIndex | RaggedIndex
"""Where a chunk of K tokens goes: the slots to write, the mask to attend through."""


def cache_index(positions: Tensor, chunk: int) -> CacheIndex:
    """The place of the next `chunk` tokens of rows at `positions` (B,): the one look at their values in a step."""
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


def grow_cache(cache: Tensor, slots: int, limit: int) -> Tensor:
    """A cache (B, H, C, D) that holds `slots`: this one, or one at least twice as large, up to the limit.

    Beams copy their caches at every step, so a cache should not be much larger than what it holds; doubling makes
    each token pay for a constant number of copies, however long the sequence grows.
    """
    capacity = cache.shape[2]
    if slots <= capacity:
        return cache
    return F.pad(cache, (0, 0, 0, min(limit, max(slots, 2 * capacity)) - capacity))


def padding_bias(lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores of sources padded to `width`: (B, 1, 1, S), 0 or −∞; None where all are full."""
    if int(lengths.min()) >= width:
        return None
    padding = ~length_mask(lengths, width)  # (B, S)
    zeros = torch.zeros(padding.shape, dtype=dtype, device=lengths.device)
    return zeros.masked_fill_(padding, -torch.inf)[:, None, None]


@dataclass(slots=True)
class SourceAttention:
    """New tokens attend to all tokens of their row's source, whose keys and values were computed once."""

    keys: Tensor  # (B, H, S, D)
    values: Tensor  # (B, H, S, D)
    bias: Tensor | None  # see `padding_bias`
    dropout: float = 0.0
    scale: float | None = None  # of the scores; none: 1 / √D

    def __call__(self, query: Tensor) -> Tensor:
        return _gathered(query, self.keys, self.values, self.bias, dropout=self.dropout, scale=self.scale)

    def weights(self, query: Tensor) -> Tensor:
        """(B, H, K, S): how much each token attends to each token of the source."""
        return _weights(query, self.keys, self.bias, self.scale)


def single_head_attention(source: Tensor, lengths: Tensor) -> SourceAttention:
    """Unscaled dot-product attention with source vectors (B, S, D) as keys and values."""
    vectors = source[:, None]
    return SourceAttention(vectors, vectors, padding_bias(lengths, source.shape[1], source.dtype), scale=1.0)


@dataclass(slots=True)
class RecordingAttention:
    """The same, and keeps the weights for whoever wants to see them."""

    attention: SourceAttention
    recorded: list[Tensor] = field(default_factory=list)  # (B, H, K, S) each

    def __call__(self, query: Tensor) -> Tensor:
        self.recorded.append(self.attention.weights(query))
        return self.attention(query)


def _gathered(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    *,
    dropout: float,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Values weighted by softmax(scale · query · key + bias), of which some weights are dropped."""
    if not dropout:
        return F.scaled_dot_product_attention(query, key, value, bias, is_causal=causal, scale=scale)
    if causal:
        later = torch.full((query.shape[2], key.shape[2]), -torch.inf, dtype=query.dtype, device=query.device)
        bias = later.triu_(1)
    return apply_dropout(_weights(query, key, bias, scale), dropout) @ value


def _weights(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """(B, H, K, S): how much each query attends to each key."""
    scores = (query.shape[-1] ** -0.5 if scale is None else scale) * query @ key.mT
    return (scores if bias is None else scores + bias).softmax(-1)


class AttentionPooling(nn.Module):
    """Weighted means of a text's vectors, by weights that learn where to look.

        α_hn = softmax_n(u_h · tanh(W m_n + b)),    c = [Σ_n α_1n m_n; …; Σ_n α_Hn m_n]

    The attention of Yang et al. (2016), with H of their context vectors u. They begin at zero, so that every mean is at
    first the plain one.
    """

    def __init__(self, inputs: int, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, width)
        self.heads = nn.Parameter(torch.zeros(heads, width))  # u

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """(B, S, D) and what of it is real, (B, S), to (B, H D)."""
        return (self.weights(vectors, mask) @ vectors.masked_fill(~mask[..., None], 0.0)).flatten(1)

    def weights(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """(B, H, S): how much each head looks at each vector."""
        scores = F.linear(torch.tanh(self.inner(vectors)), self.heads).transpose(1, 2)
        return scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
