"""Back-off models of pixels given their nearest neighbours: n-grams for images.

The context of a value is not the previous values of the sequence but the nearest pixels in the image, nearest first:
left, above, above left, above right, two to the left, …. Paths (x, n₁, n₂, …) of a value and its neighbours are counted
in a trie; contexts (n₁, …, n_k) are numbered in the same way, so that a context without its farthest neighbour is its
parent. Neighbours outside the image have the value V.

Shape letters: B images, K values in a chunk, N neighbours, R distance to the farthest of them in values, V levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor

from chainrule.config import RasterConfig
from chainrule.interface.base import readable
from chainrule.nn.backoff import BackoffModel, BackoffTable, Counts, find_nodes, merge_counts
from chainrule.types import Batch, Sequences, State, Step

MAX_OFFSET = 6  # rows and columns; far more neighbours than can be counted jointly
LARGEST = 1 << 62
STRENGTHS = tuple(2.0 ** (power / 2) for power in range(-6, 33))
"""Candidates for α. The largest ones all but ignore a farther neighbour."""


class NeighboursConfig(RasterConfig):
    neighbours: int = Field(
        16, ge=1, le=60, description="number of nearest previous pixels that a value is predicted from"
    )

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Rows up and columns to the left, nearest first; ties go to the nearer row."""
        aside = min(MAX_OFFSET, self.shape[2] - 1)
        before = [(up, left) for up in range(MAX_OFFSET + 1) for left in range(-aside, aside + 1) if up > 0 or left > 0]
        before.sort(key=lambda offset: (math.hypot(*offset), offset[0], -offset[1]))
        return before[: self.neighbours]


class NeighboursState(NamedTuple):
    history: Tensor  # (B, R) the last values read; V before the first
    positions: Tensor  # (B,) values read so far


class Neighbours(BackoffModel):
    """Back-off model of pixel values given their nearest neighbours; trained by counting, in seconds.

    p(x | n₁ … n_k) = (a(x n₁ … n_k) + α_k p(x | n₁ … n_{k−1})) / (Σ_v a(v n₁ … n_k) + α_k)

    with a the count of x with these neighbours, and a uniform base distribution: the hierarchical Dirichlet model of
    MacKay & Peto, 1995. α_k, the weight of the shorter context, maximises the leave-one-out likelihood of the training
    images, so neighbours that are too far to help do no harm. The discounts and continuation counts of Kneser–Ney, as
    in `ngram`, suit words; with a few levels that all follow each other they carry no information.

    With three channels the context starts with the index of the channel and the previous channels of the same pixel;
    all other neighbours are of the same channel. Only the width of the image is fixed; its height has no limit.
    """

    Config = NeighboursConfig
    task = "images"
    config: NeighboursConfig

    def __init__(self, config: NeighboursConfig) -> None:
        self.channels, _, self.width = config.shape
        own = self.channels if self.channels > 1 else 0  # the channel, and those of the same pixel before it
        super().__init__(config, order=1 + own + len(config.offsets))
        self.lags = [(up * self.width + left) * self.channels for up, left in config.offsets]
        for length in range(1, self.order):
            self.register_buffer(f"contexts_{length}", torch.empty(0, dtype=torch.int64))

    @property
    def receptive_field(self) -> int:
        return max(self.lags)

    # Counting

    def observe(self, target: Sequences, state: State | None = None) -> State:
        ids, lengths, real = readable(target).cpu(), target.lengths.cpu(), target.mask.cpu()
        self._require_known(ids)
        begun = self._initial(len(ids)) if state is None else cast(NeighboursState, state)
        before = NeighboursState(begun.history.cpu(), begun.positions.cpu())
        new = paths(ids[real], self._neighbours(ids, before)[:, :-1][real], self.base)
        self._counts = new if self._counts is None else merge_counts(self._counts, new, self.base)
        last = lengths[:, None] + torch.arange(self.receptive_field)
        history = torch.cat([before.history, ids], dim=1).gather(1, last)
        return NeighboursState(history.to(target.ids.device), (before.positions + lengths).to(target.ids.device))

    def estimate(self, progress: Callable[[float], None] | None = None) -> None:
        contexts, tables = interpolated(self._counted(), self.base)
        for length, keys in enumerate(contexts, start=1):
            self.register_buffer(f"contexts_{length}", keys.to(self.device))
        self.set_tables(tables)

    # Prediction

    def logits(self, batch: Batch) -> Tensor:
        values = readable(batch.target)
        return self._predict(self._nodes(self._neighbours(values, self._initial(len(values)))[:, :-1]))

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        self._require_estimate()
        state = self._initial(batch_size if source is None else source.ids.shape[0])
        nothing = torch.zeros(len(state.positions), 0, dtype=torch.int64, device=self.device)
        return Step(self._predict(self._nodes(self._neighbours(nothing, state))), state)

    def extend(self, tokens: Tensor, state: State) -> Step:
        before = cast(NeighboursState, state)
        nodes = self._nodes(self._neighbours(tokens, before)[:, 1:])
        history = torch.cat([before.history, tokens], dim=1)[:, -self.receptive_field :]
        return Step(self._predict(nodes), NeighboursState(history, before.positions + tokens.shape[1]))

    def _initial(self, rows: int) -> NeighboursState:
        history = torch.full((rows, self.receptive_field), self.vocabulary, device=self.device)
        return NeighboursState(history, torch.zeros(rows, dtype=torch.int64, device=self.device))

    def _neighbours(self, values: Tensor, state: NeighboursState) -> Tensor:
        """(B, K + 1, N): the context of each of the values (B, K) and of the one after them."""
        length = values.shape[1] + 1
        known = torch.cat([state.history, values], dim=1)  # (B, R + K)
        places = state.positions[:, None] + torch.arange(length, device=values.device)  # (B, K + 1)
        channel, column = places % self.channels, places // self.channels % self.width
        found = []
        if self.channels > 1:
            found.append(channel)
            found += [self._back(known, lag, length, channel >= lag) for lag in range(1, self.channels)]
        for lag, (_, left) in zip(self.lags, self.config.offsets, strict=True):
            inside = (column >= left) & (column - left < self.width)
            found.append(self._back(known, lag, length, inside))
        return torch.stack(found, dim=-1)

    def _back(self, known: Tensor, lag: int, length: int, inside: Tensor) -> Tensor:
        """The value `lag` before each of the last `length` positions, or V if outside the image."""
        first = self.receptive_field - lag
        return known[:, first : first + length].masked_fill(~inside, self.vocabulary)

    def _nodes(self, neighbours: Tensor) -> Tensor:
        """(B, K, N) values to nodes of the nearest, the nearest two, …; −1 for unseen contexts."""
        self._require_estimate()
        nodes = [torch.zeros_like(neighbours[..., 0])]
        for length, values in enumerate(neighbours.unbind(-1), start=1):
            nodes.append(find_nodes(self.get_buffer(f"contexts_{length}"), nodes[-1], values.contiguous(), self.base))
        return torch.stack(nodes[1:], dim=-1)


def paths(values: Tensor, neighbours: Tensor, base: int) -> Counts:
    """Count values (M,), each with its nearest neighbour, with its nearest two, …, from neighbours (M, N)."""
    columns = [values, *neighbours.unbind(1)]
    amounts = torch.ones_like(values)
    if base ** len(columns) < LARGEST:  # then a path fits into an integer, and repeated paths are merged first
        codes = values
        for column in columns[1:]:
            codes = codes * base + column
        codes, amounts = torch.unique(codes, return_counts=True)
        columns = [codes // base**power % base for power in reversed(range(len(columns)))]
    nodes = columns[0]
    counts = Counts([torch.arange(base)], [torch.zeros(base, dtype=torch.int64).index_add_(0, nodes, amounts)])
    for column in columns[1:]:
        keys, nodes = torch.unique(nodes * base + column, return_inverse=True)
        counts.keys.append(keys)
        counts.numbers.append(torch.zeros_like(keys).index_add_(0, nodes, amounts))
    return counts


def interpolated(counts: Counts, base: int) -> tuple[list[Tensor], list[BackoffTable]]:
    """The keys of contexts of 1, 2, … neighbours, and the tables, in float64."""
    tokens = counts.keys[0]  # of every path: its value, and the node of its context
    contexts = torch.zeros_like(tokens)
    lower = torch.full((base,), 1 / (base - 1), dtype=torch.float64)  # the base distribution
    unseen = lower  # the same with the value itself left out of all counts
    keys: list[Tensor] = []
    tables: list[BackoffTable] = []
    for level, (path, numbers) in enumerate(zip(*counts, strict=True)):
        if level:
            parents = path // base
            tokens, lower, unseen = tokens[parents], lower[parents], unseen[parents]
            found, contexts = torch.unique(contexts[parents] * base + path % base, return_inverse=True)
            keys.append(found)
        total = torch.zeros(len(keys[-1]) if keys else 1, dtype=torch.float64).index_add_(0, contexts, numbers.double())
        strength = best_strength(numbers, total[contexts], unseen)
        unseen = left_out(numbers, total[contexts], unseen, strength)
        lower = (numbers + strength * lower) / (total[contexts] + strength)
        if tables:
            tables[-1] = tables[-1]._replace(log_backoffs=(strength / (total + strength)).log())
        events, order = (contexts * base + tokens).sort()
        tables.append(BackoffTable(events, lower[order].log(), torch.empty(0)))
    tables[0] = tables[0]._replace(log_probs=tables[0].log_probs[: base - 1])
    return keys, tables


def best_strength(numbers: Tensor, totals: Tensor, unseen: Tensor) -> float:
    """The α with the best leave-one-out likelihood."""
    seen = numbers > 0
    numbers, totals, unseen = numbers[seen], totals[seen], unseen[seen]
    losses = [-float((numbers * left_out(numbers, totals, unseen, one).log()).sum()) for one in STRENGTHS]
    return float(STRENGTHS[losses.index(min(losses))])


def left_out(numbers: Tensor, totals: Tensor, unseen: Tensor, strength: float) -> Tensor:
    """The leave-one-out probability of each event."""
    return ((numbers - 1).clamp(min=0) + strength * unseen) / ((totals - 1).clamp(min=0) + strength)
