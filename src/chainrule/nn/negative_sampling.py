"""Negative sampling as products of small matrices: a text is cut into blocks of consecutive words.

All words of a block share its noise words, so that all scores of a block are one product of hidden vectors with output
vectors. Shape letters: N words, S blocks, L words in a block, W the maximum window, R vectors that a block reads, O
vectors that it scores, C noise words per word, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor


class AliasTable:
    """Draws from a distribution over V outcomes in time that does not depend on V (Walker 1977; Vose 1991).

    The probability mass is divided into V columns of height 1/V, each shared by at most two outcomes: a draw selects a
    column, then one of the two.
    """

    def __init__(self, probabilities: npt.NDArray[np.float64]) -> None:
        size = len(probabilities)
        heights = (probabilities * (size / probabilities.sum())).tolist()  # in columns
        others = list(range(size))
        # The lowest columns are filled first, so that those left over by rounding are nearly full, never impossible.
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
        """(count,) outcomes; without a generator from torch's global one, whose state is part of a checkpoint."""
        return self.at(torch.rand(count, dtype=torch.float64, generator=generator))

    def at(self, uniform: Tensor) -> Tensor:
        """The outcomes for uniform random numbers from [0, 1), one per draw."""
        # One number for both choices: the integer part selects the column, the fraction is compared with its height.
        points = uniform * len(self.heights)
        columns = points.long()
        return torch.where(points - columns < self.heights[columns], columns, self.others[columns])


Integers = npt.NDArray[np.int64]


class SampledWindows(NamedTuple):
    """Consecutive words with everything random about their loss drawn: windows and noise words."""

    words: Integers  # (N,)
    left: Integers  # (N,) number of words before each that are in its window
    right: Integers  # (N,) number of words after each
    noise: Integers  # (N, C) noise words drawn for each; all words of a block share those of the block

    def part(self, begin: int, end: int) -> SampledWindows:
        """Return the words from `begin` to `end`, with windows cut there."""
        room = np.arange(end - begin)
        return SampledWindows(
            self.words[begin:end],
            np.minimum(self.left[begin:end], room),
            np.minimum(self.right[begin:end], room[::-1]),
            self.noise[begin:end],
        )


class Blocks(NamedTuple):
    """Sampled windows as matrices: which vectors are read and scored, and the weight of each score."""

    read: Tensor  # (S, R) rows of the input vectors
    mix: Tensor | None  # (S, L, R) their weights in the hidden vectors; None: they are the hidden vectors
    scored: Tensor  # (S, O) rows of the output vectors
    positive: Tensor  # (S, L, O) 1 for words of the text, 0 for noise
    weight: Tensor  # (S, L, O) how often a score counts, as text or as noise


class _Neighbourhoods(NamedTuple):
    """The words of each block, the words around them, and which are in which window."""

    words: Tensor  # (S, L)
    around: Tensor  # (S, L + 2W)
    near: Tensor  # (S, L, L + 2W) 1 or 0
    noise: Tensor  # (S, LC)
    share: Tensor  # (S, 1, LC) weight of each noise word in their mean


def skip_gram_blocks(windows: SampledWindows, length: int, window: int, negatives: float, like: Tensor) -> Blocks:
    """Skip-gram: the vector of each word scores the words of its window, and the noise as often."""
    words, around, near, noise, share = _neighbourhoods(windows, length, window, like)
    asked = near.sum(-1, keepdim=True)  # (S, L, 1)
    positive = F.pad(near, (0, noise.shape[1]))
    weight = torch.cat([near, negatives * asked * share], dim=-1)
    return Blocks(words, None, torch.cat([around, noise], dim=1), positive, weight)


def cbow_blocks(windows: SampledWindows, length: int, window: int, negatives: float, like: Tensor) -> Blocks:
    """CBOW: the mean of the vectors in the window of a word scores the word, and the noise."""
    words, around, near, noise, share = _neighbourhoods(windows, length, window, like)
    count = near.sum(-1, keepdim=True)  # (S, L, 1)
    asked = (count > 0).to(like)
    own = torch.eye(length).to(like) * asked  # (S, L, L)
    positive = F.pad(own, (0, noise.shape[1]))
    weight = torch.cat([own, negatives * asked * share], dim=-1)
    return Blocks(around, near / count.clamp(min=1), torch.cat([words, noise], dim=1), positive, weight)


def _neighbourhoods(windows: SampledWindows, length: int, window: int, like: Tensor) -> _Neighbourhoods:
    """Tensors have the dtype and device of `like`. The padding of the last block is in no window and is no noise."""
    count, drawn = windows.noise.shape
    words, left, right, noise = (_in_blocks(part, length).to(like.device) for part in windows)
    inside = torch.arange(length, device=like.device)  # positions in a block
    outside = torch.arange(-window, length + window, device=like.device)  # ... and around it
    start = length * torch.arange(len(words), device=like.device)[:, None]
    around = words.flatten()[(start + outside).clamp(0, max(0, words.numel() - 1))]
    distance = outside - inside[:, None]  # (L, L + 2W)
    near = (distance >= -left[..., None]) & (distance <= right[..., None]) & (distance != 0)
    real = (start + inside < count).to(like).repeat_interleave(drawn, dim=1)  # (S, LC)
    return _Neighbourhoods(words, around, near.to(like), noise, (real / real.sum(1, keepdim=True))[:, None])


def _in_blocks(part: Integers, length: int) -> Tensor:
    """Reshape (N,) or (N, C) to (S, L) or (S, LC), padded with zeros."""
    columns = part if part.ndim == 2 else part[:, None]
    filled = np.pad(columns, ((0, -len(part) % length), (0, 0)))
    return torch.from_numpy(filled).view(-1, length * filled.shape[1])


def sampling_loss(scores: Tensor, blocks: Blocks) -> Tensor:
    """Sum over scores (S, L, O): −log σ(s) = softplus(s) − s for text, −log σ(−s) = softplus(s) for noise."""
    return (blocks.weight * F.softplus(scores)).sum() - (blocks.positive * scores).sum()


def hidden_vectors(inputs: Tensor, blocks: Blocks) -> Tensor:
    """Return (S, L, D), the vectors that score the rows of the output table."""
    vectors = F.embedding(blocks.read, inputs)
    return vectors if blocks.mix is None else blocks.mix @ vectors


# Gradient steps as matrix products. With scores S = H Oᵀ, targets A and weights W the loss is Σ W softplus(S) − A S, so
#
#     ∂loss/∂S = W σ(S) − A,    ∂loss/∂H = (∂loss/∂S) O,    ∂loss/∂O = (∂loss/∂S)ᵀ H
#
# and only the rows that were read or scored change. Autograd would compute gradients of the size of the tables.

BLOCKS_AT_ONCE = 64  # blocks whose gradients are computed from the same vectors


@torch.no_grad()
def descend(inputs: Tensor, outputs: Tensor, blocks: Blocks, rate: float) -> float:
    """Move the vectors down the gradient, some blocks at a time; return the loss before each step."""
    total = 0.0
    for some in _chunks(blocks):
        hidden = hidden_vectors(inputs, some)  # (S, L, D)
        scored = F.embedding(some.scored, outputs)  # (S, O, D)
        scores = hidden @ scored.mT  # (S, L, O)
        total += float(sampling_loss(scores, some))
        pull = some.positive - some.weight * scores.sigmoid()
        back, load = pull @ scored, some.weight.sum(2)  # (S, L, D), (S, L)
        if some.mix is not None:
            back, load = some.mix.mT @ back, (some.mix.mT @ load[..., None])[..., 0]
        _add_rows(inputs, some.read, back, load, rate)
        _add_rows(outputs, some.scored, pull.mT @ hidden, some.weight.sum(1), rate)
    return total


def _chunks(blocks: Blocks) -> Iterator[Blocks]:
    for begin in range(0, len(blocks.read), BLOCKS_AT_ONCE):
        some = slice(begin, begin + BLOCKS_AT_ONCE)
        mix = None if blocks.mix is None else blocks.mix[some]
        yield Blocks(blocks.read[some], mix, blocks.scored[some], blocks.positive[some], blocks.weight[some])


def _add_rows(table: Tensor, rows: Tensor, pulls: Tensor, load: Tensor, rate: float) -> None:
    """Add pulls (S, R, D) to rows (S, R) of a table; `load` (S, R) is the total weight of the scores behind each pull.

    One word at a time, a frequent word would move in many small steps, each from where the last one ended. All at once,
    their sum could overshoot and diverge. So a row with a load above 1/rate moves by the weighted mean of its pulls.
    """
    distinct, place = torch.unique(rows.flatten(), return_inverse=True)
    loads = load.new_zeros(len(distinct)).index_add_(0, place, load.flatten())
    rates = rate / (rate * loads).clamp(min=1.0)
    table.index_add_(0, rows.flatten(), pulls.flatten(0, 1) * rates[place, None])
