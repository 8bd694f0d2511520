"""Negative sampling as products of small matrices: a stretch of text, cut into blocks of neighbouring words.

All words of a block share the block's words of noise, so that everything they are asked is one product of hidden
vectors with output vectors. Shape letters: N words, S blocks, L words in a block, W the widest window, R vectors that a
block reads, O vectors that it scores, C words of noise for each word, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor


class AliasTable:
    """Draws from a distribution over V outcomes in time that does not depend on V (Walker 1977; Vose 1991).

    The mass is laid out in V columns of height 1/V, each shared by at most two outcomes: a draw chooses a column, then
    one of the two.
    """

    def __init__(self, probabilities: npt.NDArray[np.float64]) -> None:
        size = len(probabilities)
        heights = (probabilities * (size / probabilities.sum())).tolist()  # in columns
        others = list(range(size))
        # The lowest are filled first: what rounding leaves over at the end should be nearly full, and never impossible.
        small = sorted((index for index in others if heights[index] < 1), key=heights.__getitem__, reverse=True)
        large = [index for index, height in enumerate(heights) if height >= 1]
        while small and large:
            short, tall = small.pop(), large[-1]
            others[short] = tall  # the rest of the short column is filled from the tall one
            heights[tall] -= 1 - heights[short]
            if heights[tall] < 1:
                small.append(large.pop())
        for full in (*small, *large):  # up to rounding
            heights[full] = 1.0
        self.heights = torch.tensor(heights, dtype=torch.float64)
        self.others = torch.tensor(others)

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> Tensor:
        """(count,) outcomes; without a generator from torch's own random numbers, which a run saves and resumes."""
        return self.at(torch.rand(count, dtype=torch.float64, generator=generator))

    def at(self, chance: Tensor) -> Tensor:
        """The outcomes that belong to numbers from [0, 1), each of which decides one draw."""
        # One number for both choices: its whole part is the column, its fraction the height in it.
        points = chance * len(self.heights)
        columns = points.long()
        return torch.where(points - columns < self.heights[columns], columns, self.others[columns])


Integers = npt.NDArray[np.int64]


class Lesson(NamedTuple):
    """A stretch of text with all that is random about its loss decided."""

    words: Integers  # (N,)
    left: Integers  # (N,) how many words before each are in its window
    right: Integers  # (N,) and after it
    noise: Integers  # (N, C) words of noise that each brings; those of a block are shared by its words

    def part(self, begin: int, end: int) -> Lesson:
        """Some of its words; windows end where they do."""
        room = np.arange(end - begin)
        return Lesson(
            self.words[begin:end],
            np.minimum(self.left[begin:end], room),
            np.minimum(self.right[begin:end], room[::-1]),
            self.noise[begin:end],
        )


class Blocks(NamedTuple):
    """A lesson as matrices: which vectors are read and scored, and how much each score counts."""

    read: Tensor  # (S, R) rows of the input vectors
    mix: Tensor | None  # (S, L, R) how they are mixed into the hidden vectors; none: they are these
    scored: Tensor  # (S, O) rows of the output vectors
    positive: Tensor  # (S, L, O) 1 where a word of the text should score high
    weight: Tensor  # (S, L, O) how often a score is asked for, as text or as noise


class _Neighbourhoods(NamedTuple):
    """The words of each block, those around them, and who is in whose window."""

    words: Tensor  # (S, L)
    around: Tensor  # (S, L + 2W)
    near: Tensor  # (S, L, L + 2W) 1 or 0
    noise: Tensor  # (S, LC)
    share: Tensor  # (S, 1, LC) of each word of noise in the mean over them


def skip_gram_blocks(lesson: Lesson, length: int, window: int, negatives: float, like: Tensor) -> Blocks:
    """Each word, by its own vector, scores those of its window, and the noise as often as these."""
    words, around, near, noise, share = _neighbourhoods(lesson, length, window, like)
    asked = near.sum(-1, keepdim=True)  # (S, L, 1)
    positive = F.pad(near, (0, noise.shape[1]))
    weight = torch.cat([near, negatives * asked * share], dim=-1)
    return Blocks(words, None, torch.cat([around, noise], dim=1), positive, weight)


def cbow_blocks(lesson: Lesson, length: int, window: int, negatives: float, like: Tensor) -> Blocks:
    """The mean of the vectors in each word's window scores the word, and the noise."""
    words, around, near, noise, share = _neighbourhoods(lesson, length, window, like)
    count = near.sum(-1, keepdim=True)  # (S, L, 1)
    asked = (count > 0).to(like)
    own = torch.eye(length).to(like) * asked  # (S, L, L)
    positive = F.pad(own, (0, noise.shape[1]))
    weight = torch.cat([own, negatives * asked * share], dim=-1)
    return Blocks(around, near / count.clamp(min=1), torch.cat([words, noise], dim=1), positive, weight)


def _neighbourhoods(lesson: Lesson, length: int, window: int, like: Tensor) -> _Neighbourhoods:
    """With the type and the device of `like`. What fills up the last block is in no window and is no noise."""
    count, drawn = lesson.noise.shape
    words, left, right, noise = (_in_blocks(part, length).to(like.device) for part in lesson)
    inside = torch.arange(length, device=like.device)  # places in a block
    outside = torch.arange(-window, length + window, device=like.device)  # ... and around it
    start = length * torch.arange(len(words), device=like.device)[:, None]
    around = words.flatten()[(start + outside).clamp(0, max(0, words.numel() - 1))]
    distance = outside - inside[:, None]  # (L, L + 2W)
    near = (distance >= -left[..., None]) & (distance <= right[..., None]) & (distance != 0)
    real = (start + inside < count).to(like).repeat_interleave(drawn, dim=1)  # (S, LC)
    return _Neighbourhoods(words, around, near.to(like), noise, (real / real.sum(1, keepdim=True))[:, None])


def _in_blocks(part: Integers, length: int) -> Tensor:
    """(N,) or (N, C) to (S, L) or (S, LC), filled up with zeros."""
    columns = part if part.ndim == 2 else part[:, None]
    filled = np.pad(columns, ((0, -len(part) % length), (0, 0)))
    return torch.from_numpy(filled).view(-1, length * filled.shape[1])


def loss_of(scores: Tensor, blocks: Blocks) -> Tensor:
    """The sum over scores (S, L, O): −log σ(s) = softplus(s) − s for text, −log σ(−s) = softplus(s) for noise."""
    return (blocks.weight * F.softplus(scores)).sum() - (blocks.positive * scores).sum()
