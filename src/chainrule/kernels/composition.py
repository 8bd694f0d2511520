"""The operations of composites, of hybrids and of windows that move with the text, as a program has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from chainrule.kernels.instructions import (
    ALLOCATE,
    BACKOFF,
    CACHE_LOOKUP,
    COMBINE,
    COPY,
    EVERY_CHUNK,
    FIRST_STATE,
    GATE_FEATURES,
    KEEP_TOKEN,
    LOG_SHARES,
    LSTM_SCAN,
    NONE,
    PIXELS,
    ROW_AT_POSITION,
    WINDOW_ATTENTION,
    BackoffTables,
    CacheSlots,
    MovingWindow,
    Vector,
)
from chainrule.kernels.layout import Layout


class CompositeOperations(Layout):
    """Collects operations that a single block of a network does not need."""

    def backoff(self, tables: BackoffTables, slot: int) -> None:
        """The log-probabilities of a back-off model as the result; the state tensor (B, order − 1) has its nodes."""
        self.constants.append(tables)
        levels = self._hold(torch.from_numpy(tables.levels)).place
        self._add(BACKOFF, self.result().place, levels, tables.order, tables.base, FIRST_STATE + slot, self.outputs)

    def _first(self, vectors: Sequence[Vector]) -> Vector:
        """The first of vectors that were made one after the other."""
        assert [vector.place - vectors[0].place for vector in vectors] == list(range(len(vectors)))
        return vectors[0]

    def gate_features(
        self,
        log_probs: Sequence[Vector],
        predicted: int,
        means: int,
        decays: Tensor,
        mean: Tensor,
        deviation: Tensor,
        measures: int,
    ) -> Vector:
        """The standardised features of a context gate (see `compose.gate`), `measures` for each part.

        The state tensors from `predicted` on have the previous predictions of the parts, `means` their running means.
        """
        out = self.new(len(log_probs) * measures)
        constants = [self.constant(tensor).place for tensor in (decays, mean, deviation)]
        slots = FIRST_STATE + predicted, FIRST_STATE + means
        first = self._first(log_probs)
        self._add(GATE_FEATURES, out.place, first.place, first.size, len(log_probs), *slots, *constants, len(decays))
        return out

    def combine(self, log_probs: Sequence[Vector], scores: Vector, *, mixture: bool) -> None:
        """The result from the log-probabilities of the parts: log Σ_i softmax(s)_i P_i, or Σ_i s_i log P_i."""
        out, first = self.result(), self._first(log_probs)
        self._add(COMBINE, out.place, first.place, scores.place, first.size, len(log_probs), int(mixture))

    def keep_token(self, tail: int, length: int, positions: int) -> None:
        """Append the token to the last ones in a state tensor (B, `length`), and count it in another."""
        nothing = self.new(0).place
        self._add(KEEP_TOKEN, nothing, nothing, FIRST_STATE + tail, length, FIRST_STATE + positions)

    def copy(self, x: Vector, out: Vector) -> None:
        self._add(COPY, out.place, x.place, x.size)

    def keep_hidden(self, *vectors: Vector) -> None:
        """Note the input of the readout, in pieces, where a composite needs it."""
        if self.hidden is not None:
            start = 0
            for vector in vectors:
                self.copy(vector, self.part(self.hidden, start, vector.size))
                start += vector.size
            assert start == self.hidden.size

    @contextmanager
    def keeping_hidden(self, hidden: Vector) -> Iterator[None]:
        """Inside the block, the input of a readout is kept in a vector."""
        outer, self.hidden = self.hidden, hidden
        yield
        self.hidden = outer

    def cache_lookup(
        self, logits: Vector, hidden: Vector, slot: int, parameters: Sequence[Tensor], window: MovingWindow
    ) -> None:
        """The result from the logits of a model and its neural cache (see `compose.neural_cache`).

        The state tensors from `slot` on are keys, values and the query. Parameters are θ, δ, a and b.
        """
        out = self.result()
        log_ages = torch.log1p(torch.arange(window.size, dtype=torch.float64))
        constants = self._first([self.constant(tensor) for tensor in (*parameters, log_ages)])
        with self.scratch():
            chances = self.new(logits.size)
        sizes = logits.size, hidden.size, window.size, window.room
        vectors = out.place, logits.place, hidden.place
        self._add(CACHE_LOOKUP, *vectors, FIRST_STATE + slot, constants.place, chances.place, *sizes)

    # Windows and plans of hybrids

    def window_attention(
        self, query: Vector, key: Vector, value: Vector, caches: CacheSlots, slopes: Tensor, window: MovingWindow
    ) -> Vector:
        """Attend to the last tokens, in caches (B, H, W + S, D/H), with a slope of the scores for each head."""
        out, heads = self.new(query.size), len(slopes)
        width = query.size // heads
        slots = (FIRST_STATE + slot for slot in caches)
        vectors = out.place, query.place, key.place, value.place
        sizes = heads, width, window.size, window.room, self.constant(slopes).place
        self._add(WINDOW_ATTENTION, *vectors, *slots, *sizes, value=width**-0.5)
        return out

    def row_at_position(
        self, slot: int, size: int, *, counts: int | None = None, offset: int = 0, modulus: int = 0
    ) -> Vector:
        """The row of the position in a state tensor (B, P, `size`), or (B, P) for one number.

        Rows from `counts` on, a state tensor, are zero. The position is shifted by `offset`, then taken modulo
        `modulus`.
        """
        out = self.new(size)
        bound = NONE if counts is None else FIRST_STATE + counts
        self._add(ROW_AT_POSITION, out.place, out.place, FIRST_STATE + slot, size, offset, modulus, bound)
        return out

    def log_shares(self, gamma: Vector, mass: Vector, threshold: float) -> Vector:
        """Log (1 − s) and log s of s = γ min(1, mass / threshold), or, if that is 0, γ where there is any mass."""
        out = self.new(2)
        self._add(LOG_SHARES, out.place, gamma.place, mass.place, value=threshold)
        return out

    @contextmanager
    def every_chunk(self, length: int, *, recent: int, source: int, offset: int) -> Iterator[None]:
        """Inside the block, describe what is computed of each complete chunk of tokens, before the rest of the step.

        The state tensor `recent` (B, `length`) collects the tokens, by their position plus `offset`; a complete chunk
        moves to `source`. Operations inside are on all of its tokens, whose positions are those in the chunk.
        """
        self.sequential = True
        outer = self.top, self.working_size
        self.top = self.working_size = 0
        nothing = self.new(0).place
        self._add(EVERY_CHUNK, nothing, nothing, FIRST_STATE + recent, FIRST_STATE + source, length, offset)
        first = len(self.operations)
        yield
        self.operations[first - 1] += [len(self.operations) - first, self.working_size]
        for index in range(first, len(self.operations)):
            self.positions_of[index] = NONE
        self.top, self.working_size = outer

    def lstm_scan(self, gates: Vector, recurrent_weight: Tensor, *, out: Vector, backwards: bool) -> None:
        """The hidden vectors of an LSTM over the tokens of a chunk, from the products W x + b of each, which change."""
        memory, weight = self.new(out.size), self.constant(recurrent_weight)
        self._add(LSTM_SCAN, out.place, gates.place, weight.place, memory.place, out.size, int(backwards))

    def allocate(self, queries: Vector, keys: Vector, vectors: Vector, length: int, *, mass: Vector) -> Vector:
        """The contexts and the mass of `nn.branches.Allocation`, of a chunk to as many positions."""
        out, scores = self.new(vectors.size), self.new(length)
        places = out.place, queries.place, keys.place, vectors.place, mass.place, scores.place
        self._add(ALLOCATE, *places, vectors.size, value=vectors.size**-0.5)
        return out

    def pixels(self, slot: int, parameters: Sequence[Tensor], shape: tuple[int, ...], *, levels: int) -> Vector:
        """The hidden vector of the next value of an image (see `models.pixelcnn`), whose state begins at `slot`.

        `shape` is layers, width, channels, columns, kernel, first kernel, cycle of dilations, width of embeddings.
        """
        _, width, _, columns, kernel, first_kernel, _, embedded = shape
        taps = columns * max((first_kernel // 2 + 1) * first_kernel * embedded, (kernel // 2 + 1) * kernel * width)
        out = self.new(2 * width)
        with self.scratch():
            working = self.new(columns * (max(embedded, width) + 3 * width) + taps)
        first = self._first([self.constant(tensor) for tensor in parameters])
        self.sequential = True
        self._add(PIXELS, out.place, working.place, first.place, FIRST_STATE + slot, *shape, value=levels)
        return out
