"""Sliding windows over texts longer than a model's context.

With context C, stride S ≤ C and overlap O = C − S, windows begin at positions 0, S, 2S, …. Each is read from BOS. The
first predicts C tokens, each later one the S tokens that follow its first O, so every prediction but those of the first
window sees between O and C − 1 tokens of history. Scoring, generation and the composite `sliding` all use this class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch.nn.functional as F
from torch import Tensor


class Window(NamedTuple):
    """Tokens [begin, end) are read from BOS; those from `scored` on are predictions of this window."""

    begin: int
    scored: int
    end: int
    document: int = 0


@dataclass(frozen=True)
class SlidingWindow:
    context: int
    stride: int

    @classmethod
    def half_overlapping(cls, context: int) -> Self:
        """Windows that move by half of the context, rounded down."""
        return cls(context, max(1, context // 2))

    @property
    def overlap(self) -> int:
        return self.context - self.stride

    def visible(self, length: int) -> int:
        """Number of tokens in the window that predicts the token after `length` tokens.

        It is at most C − 1, since the window that holds C tokens has made its last prediction, and a function of the
        length only: continuing a text gives what generating it in one go would have given.
        """
        return length if length < self.context else self.overlap + (length - self.context) % self.stride

    def room(self, length: int) -> int:
        """Number of tokens that can follow `length` tokens before the window moves."""
        return self.context - 1 - self.visible(length)

    def moves_at(self, length: int) -> bool:
        """Whether the token at the end of a text of `length` tokens moves the window."""
        return self.visible(length) <= self.visible(length - 1)

    def cut(self, begin: int, end: int, document: int = 0) -> Iterator[Window]:
        """Windows over the tokens [begin, end), each scoring what the earlier ones have not.

        Where the text ends within a stride, the last window begins earlier, so that it is full.
        """
        done = begin
        while done < end:
            stop = min(end, done + (self.context if done == begin else self.stride))
            yield Window(max(begin, stop - self.context), done, stop, document)
            done = stop

    def unfold(self, ids: Tensor) -> Tensor:
        """All windows (B, W, C) of ids (B, O + K) that together predict the last K; the last is padded with 0."""
        count = -(-(ids.shape[1] - self.overlap) // self.stride)
        padded = F.pad(ids, (0, self.overlap + count * self.stride - ids.shape[1]))
        return padded.unfold(1, self.context, self.stride)
