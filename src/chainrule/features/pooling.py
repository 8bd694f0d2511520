"""Vectors of a pretrained model's own tokens, pooled onto the tokens of another tokenizer by character offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.huggingface import HuggingFace

REMEMBERED = 1 << 16  # alignments


class Alignment(NamedTuple):
    """The tokens of the pretrained model for a text, and which of them each token of the other tokenizer overlaps."""

    pieces: tuple[int, ...]  # P ids of the pretrained model
    overlaps: tuple[range, ...]  # for each of S tokens, positions in (first token, piece 1, …, piece P)

    def pool(self, vectors: Tensor) -> Tensor:
        """Vectors (P + 1, D) of the first token and the pieces to their means (S, D)."""
        weights = vectors.new_zeros(len(self.overlaps), len(vectors))
        for row, overlap in enumerate(self.overlaps):
            weights[row, overlap.start : overlap.stop] = 1 / len(overlap)
        return weights @ vectors


class TokenAligner:
    """Aligns the tokens of a tokenizer with those of a pretrained model.

    A token covers the characters that it decodes to. Its vector is the mean of those of all pieces that share a
    character with it. A token without such a piece (white space, EOS) has the vector of the last piece before it, or of
    the first token of the pretrained model, which precedes every text.
    """

    def __init__(self, own: HuggingFace, other: Tokenizer) -> None:
        self.own, self.other = own, other
        self.align = lru_cache(REMEMBERED)(self._align)

    def _align(self, ids: tuple[int, ...]) -> Alignment:
        surfaces = self._surfaces(ids)
        pieces, offsets = self.own.encode_with_offsets("".join(surfaces))
        overlaps, begin, first = [], 0, 0  # `first`: the first piece that does not end before the token
        for surface in surfaces:
            end = begin + len(surface)
            while first < len(offsets) and offsets[first][1] <= begin:
                first += 1
            last = first
            while surface and last < len(offsets) and offsets[last][0] < end:
                last += 1
            overlaps.append(range(first + 1, last + 1) if last > first else range(first, first + 1))
            begin = end
        return Alignment(tuple(pieces), tuple(overlaps))

    def _surfaces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; ids outside the vocabulary, such as BOS, have none."""
        inside = [index for index in ids if index < self.other.vocabulary]
        texts = iter(self.other.pieces(inside))
        return [next(texts) if index < self.other.vocabulary else "" for index in ids]


def pack_windows(alignments: Sequence[Alignment], first: int, size: int) -> list[list[int]]:
    """The inputs of the pretrained model: the first token and at most `size` pieces each, at least one per text."""
    return [
        [first, *one.pieces[begin : begin + size]]
        for one in alignments
        for begin in range(0, max(1, len(one.pieces)), size)
    ]


def pool_windows(alignments: Sequence[Alignment], vectors: Tensor, size: int, length: int) -> Tensor:
    """From vectors (W, L, D) of the windows of all texts to (B, S, D); zeros past the tokens of a text."""
    padding, rows, window = vectors.new_zeros(length, vectors.shape[-1]), [], 0
    for alignment in alignments:
        parts = [vectors[window, :1]]
        for begin in range(0, max(1, len(alignment.pieces)), size):
            parts.append(vectors[window, 1 : 1 + len(alignment.pieces[begin : begin + size])])
            window += 1
        pooled = alignment.pool(torch.cat(parts))
        rows.append(torch.cat([pooled, padding[len(pooled) :]]))
    return torch.stack(rows)
