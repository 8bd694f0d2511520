"""The n-gram family: counting, modified Kneser–Ney smoothing, and prediction from the tables that result.

All n-grams of one order are the nodes of one level of a trie, held as a sorted array of keys:

    key of a k-gram = (node of its first k - 1 tokens among the (k-1)-grams) * base + its last token

with base = V + 1, since BOS has the id V. A node is the position of its key. So keys fit into 64 bits at any order
and vocabulary, the n-grams that continue a context are one contiguous range, and a search in a sorted array finds
any of them. Counts and probabilities share this form, and so do tables read from an ARPA file. No loop here runs
over tokens or n-grams; loops run over orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from chainrule.config import ModelConfig
from chainrule.errors import DataError, TrainingError
from chainrule.models.base import AutoregressiveModel, CountModel, readable
from chainrule.models.capabilities import Guesses
from chainrule.models.ngram_alone import Levels, can_go_alone
from chainrule.types import Batch, Sequences, State, Step

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # where counts of counts are too few to estimate them, as KenLM does
BLOCK = 1 << 21  # predictions made at a time: few enough to stay in the cache
PENDING = 1 << 20  # tokens gathered before they are sorted into the counts


class NGramConfig(ModelConfig):
    order: int = Field(5, ge=1, description="length of the longest n-gram: a token is predicted from order - 1 others")


class Table(NamedTuple):
    """The n-grams of one order: n of them, sorted by key."""

    keys: Tensor  # (n,) int64; for unigrams 0 … V, every token and BOS
    log_probs: Tensor  # (n,) of the last token given the ones before it; for unigrams (V,), since BOS never follows
    log_backoffs: Tensor  # (n,) weight, as a context, of the shorter context for tokens not seen here; (0,) at the top


class NGram(AutoregressiveModel, CountModel, Guesses):
    """Counts of n-grams with interpolated modified Kneser–Ney smoothing: trained in seconds, strong on little data.

    p(w | c) = (a(cw) − D(a(cw))) / Σ_v a(cv) + γ(c) p(w | c′),    γ(c) = Σ_v D(a(cv)) / Σ_v a(cv)

    c is a context of up to order − 1 tokens and c′ the same without its first one; below the unigrams stands the
    uniform distribution. a is the count of an n-gram at the highest order and for n-grams that start with BOS, which
    nothing can precede; elsewhere it is the number of different tokens seen before it. D takes off D₁, D₂ or D₃
    according to a = 1, 2 or ≥ 3, each estimated for its order from how many n-grams have a = 1, 2, 3 and 4.

    Kneser & Ney, "Improved backing-off for m-gram language modeling", 1995; Chen & Goodman, "An empirical study of
    smoothing techniques for language modeling", 1998. Stored in back-off form: p(w | c) of each n-gram seen, and γ(c).

    The state is (B, order − 1): the node of the last 1, 2, … tokens, −1 where they were never seen together.
    """

    Config: ClassVar[type[ModelConfig]] = NGramConfig
    task: ClassVar[str] = "language"

    def __init__(self, config: NGramConfig) -> None:
        super().__init__(config)
        self.config = config
        self.order = config.order
        self.base = config.vocabulary + 1
        for order in range(1, self.order + 1):
            if order > 1:
                self.register_buffer(f"keys_{order}", torch.empty(0, dtype=torch.int64))
            self.register_buffer(f"log_probs_{order}", torch.empty(0))
            if order < self.order:
                self.register_buffer(f"log_backoffs_{order}", torch.empty(0))
        # What has been counted is no part of the saved model; it stays on the CPU, wherever the tables are.
        self._counts: Counts | None = None
        self._pending: list[tuple[Tensor, Tensor]] = []  # pieces not yet sorted into the counts
        self._waiting = 0  # tokens in them
        self._views: tuple[Tensor, Levels] | None = None  # and the buffer that tells whether they are up to date

    @property
    def bos(self) -> int:
        """The id that stands before the first token: one past the vocabulary, so no text can contain it."""
        return self.vocabulary

    @property
    def reach(self) -> int:
        return self.order - 1

    @property
    def sizes(self) -> list[int]:
        """How many n-grams of each order the model knows."""
        return [self._log_probs(order).numel() for order in range(1, self.order + 1)]

    # Counting

    def observe(self, target: Sequences, state: State | None = None) -> State:
        """Count the n-grams that end at each real token. The state is the last order − 1 tokens, −1 before BOS."""
        ids, lengths, real = readable(target).cpu(), target.lengths.cpu(), target.mask.cpu()
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary:
            raise DataError(
                f"token ids reach from {int(ids.min())} to {int(ids.max())}, but the vocabulary has "
                f"{self.vocabulary} tokens; encode the text with the model's own tokenizer"
            )
        rows = len(ids)
        if state is None:
            history = torch.full((rows, self.order - 1), -1)
            history[:, -1:] = self.bos
        else:
            history = cast(Tensor, state).cpu()
        # The rows become one stream. The -1 before each keeps n-grams from reaching into the row before.
        gap = torch.full((rows, 1), -1)
        stream = torch.cat([gap, history, ids.masked_fill(~real, -1)], dim=1).flatten()
        counted = F.pad(real, (self.order, 0)).flatten()
        self._pending.append((stream, counted))
        self._waiting += len(stream)
        # To wait longer as the counts grow keeps the cost of merging in proportion to the text.
        known = 0 if self._counts is None else self._counts.numbers[-1].numel()
        if self._waiting >= max(PENDING, known // 8):
            self._settle()
        last = lengths[:, None] + torch.arange(self.order - 1)
        return torch.cat([history, ids], dim=1).gather(1, last).to(target.ids.device)

    def _settle(self) -> None:
        """Sort what is pending into the counts."""
        if not self._pending:
            return
        streams, counted = zip(*self._pending, strict=True)
        self._pending, self._waiting = [], 0
        new = count(torch.cat(streams), torch.cat(counted), self.order, self.base)
        self._counts = new if self._counts is None else merge(self._counts, new, self.base)

    def estimate(self) -> None:
        self._settle()
        if self._counts is None or not self._counts.numbers[0].any():
            raise TrainingError("the n-gram model has counted no token; observe a text before estimating")
        self.set_tables(kneser_ney(self._counts, self.base))

    # Tables

    def set_tables(self, tables: Sequence[Table]) -> None:
        """Make these the model, one table an order, in the default floating-point type."""
        dtype, device = torch.get_default_dtype(), self.device
        for order, table in enumerate(tables, start=1):
            if order > 1:
                self.register_buffer(f"keys_{order}", table.keys.to(device))
            self.register_buffer(f"log_probs_{order}", table.log_probs.to(device, dtype))
            if order < self.order:
                self.register_buffer(f"log_backoffs_{order}", table.log_backoffs.to(device, dtype))

    def tables(self) -> Iterator[Table]:
        """One table an order, from unigrams up."""
        self._require_estimate()
        for order in range(1, self.order + 1):
            yield Table(
                self._keys(order) if order > 1 else torch.arange(self.base, device=self.device),
                self._log_probs(order),
                self._log_backoffs(order) if order < self.order else torch.empty(0, device=self.device),
            )

    def _keys(self, order: int) -> Tensor:
        return self.get_buffer(f"keys_{order}")

    def _log_probs(self, order: int) -> Tensor:
        return self.get_buffer(f"log_probs_{order}")

    def _log_backoffs(self, order: int) -> Tensor:
        return self.get_buffer(f"log_backoffs_{order}")

    def _require_estimate(self) -> None:
        if not self._log_probs(1).numel():
            raise TrainingError("the n-gram model has no probabilities yet; observe a text, estimate, or load a run")

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Take tables of any size; names, and the size of the vocabulary, must agree."""
        for name, buffer in list(self.named_buffers(recurse=False)):
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor) and (name != "log_probs_1" or len(saved) in (0, self.vocabulary)):
                self.register_buffer(name, buffer.new_empty(saved.shape))
        self._counts, self._pending, self._waiting = None, [], 0
        super()._load_from_state_dict(state_dict, prefix, *rest)

    # Prediction

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        self._require_estimate()
        state = self._initial(batch_size if source is None else source.ids.shape[0])
        return Step(self._predict(state[:, None]), state)

    def extend(self, tokens: Tensor, state: State) -> Step:
        if can_go_alone(tokens, self._log_probs(1)):
            return self._extend_alone(tokens, cast(Tensor, state))
        contexts = self._contexts(self._read(tokens, cast(Tensor, state)))
        return Step(self._predict(contexts[:, 1:]), contexts[:, -1].clone())

    def _extend_alone(self, tokens: Tensor, state: Tensor) -> Step:
        """The same, row by row and token by token."""
        levels = self._levels()
        logits = np.empty((*tokens.shape, self.vocabulary), dtype=levels.log_probs[0].dtype)
        after = []
        for row, (read, nodes) in enumerate(zip(tokens.tolist(), state.tolist(), strict=True)):
            for place, token in enumerate(read):
                nodes = levels.read(token, nodes)
                levels.predict(nodes, logits[row, place])
            after.append(nodes)
        return Step(torch.from_numpy(logits), torch.tensor(after, dtype=torch.int64).view(state.shape))

    def guess(self, ids: Sequence[int], count: int) -> list[int]:
        """From what is in reach, by its likeliest token at each step; a text of fewer tokens is read from BOS."""
        self._require_estimate()
        levels, reach = self._levels(), self.order - 1
        nodes = [-1] * reach if len(ids) >= reach else [self.bos, *[-1] * (reach - 1)]
        for token in ids[len(ids) - min(reach, len(ids)) :]:
            nodes = levels.read(token, nodes)
        guesses: list[int] = []
        for _ in range(count):
            guesses.append(levels.likeliest(nodes))
            nodes = levels.read(guesses[-1], nodes)
        return guesses

    def _levels(self) -> Levels:
        """The tables as NumPy sees them, until there are others."""
        current = self._log_probs(1)
        if self._views is None or self._views[0] is not current:
            self._views = (current, Levels.of(self._buffers, self.order, self.base))
        return self._views[1]

    def logits(self, batch: Batch) -> Tensor:
        self._require_estimate()
        tokens = readable(batch.target)
        contexts = self._contexts(self._read(tokens, self._initial(len(tokens))))
        return self._predict(contexts[:, :-1])

    def score_tokens(self, target: Sequences, state: State | None = None) -> tuple[Tensor, State]:
        """(B, T) nats of each token, zero past the end of a row, and the state after the last one.

        The same as `token_log_probs`, up to rounding, without the (B, T, V) in between; streams go on from a state.
        """
        self._require_estimate()
        tokens, rows = readable(target), len(target.ids)
        nodes = self._read(tokens, self._initial(rows) if state is None else cast(Tensor, state))
        scores = self._log_probs(1)[tokens]
        for order in range(2, self.order + 1):
            contexts, found = nodes[order - 2][:, :-1], nodes[order - 1][:, 1:]
            backed_off = scores + _at(self._log_backoffs(order - 1), contexts)
            scores = _at(self._log_probs(order), found).where(found >= 0, backed_off)
        after = self._contexts(nodes)[torch.arange(rows, device=tokens.device), target.lengths]
        return scores.masked_fill(~target.mask, 0.0), after

    def _initial(self, rows: int) -> Tensor:
        """The state that has read nothing but BOS."""
        state = torch.full((rows, self.order - 1), -1, device=self.device)
        state[:, :1] = self.bos
        return state

    def _read(self, tokens: Tensor, state: Tensor) -> list[Tensor]:
        """For every order (B, K + 1): the node of the n-gram that ends where the state does, then at each token."""
        before = F.pad(state, (0, 1), value=-1)  # of the highest order, nothing is remembered or needed
        nodes = [torch.cat([before[:, :1], tokens], dim=1)]
        for order in range(2, self.order + 1):
            found = find(self._keys(order), nodes[-1][:, :-1], tokens, self.base)
            nodes.append(torch.cat([before[:, order - 1 : order], found], dim=1))
        return nodes

    def _contexts(self, nodes: list[Tensor]) -> Tensor:
        """(B, K + 1, order − 1): the state before the tokens just read, then after each of them."""
        return torch.stack(nodes, dim=-1)[..., : self.order - 1]

    def _predict(self, contexts: Tensor) -> Tensor:
        """Contexts (B, K, order − 1) to log-probabilities (B, K, V)."""
        rows = contexts.flatten(0, 1)
        result = torch.empty(len(rows), self.vocabulary, dtype=self._log_probs(1).dtype, device=self.device)
        size = max(1, BLOCK // self.vocabulary)
        for first in range(0, len(rows), size):
            self._fill(result[first : first + size], rows[first : first + size])
        return result.view(*contexts.shape[:2], self.vocabulary)

    def _fill(self, result: Tensor, contexts: Tensor) -> None:
        """Write (P, V) log-probabilities: each order, upwards, over those of tokens that it has seen."""
        columns = [column.contiguous() for column in contexts.unbind(1)]  # (P,) each; [k - 1] is the last k tokens
        # What a prediction from the last k tokens still gets as a factor: the back-off of all longer contexts.
        factors = [torch.zeros_like(result[:, 0])]
        for order in range(self.order - 1, 0, -1):
            factors.insert(0, factors[0] + _at(self._log_backoffs(order), columns[order - 1]))
        torch.add(self._log_probs(1), factors[0][:, None], out=result)
        corner = torch.arange(len(result), device=result.device) * self.vocabulary
        for length, (nodes, factor) in enumerate(zip(columns, factors[1:], strict=True), start=1):
            keys = self._keys(length + 1)
            first = torch.searchsorted(keys, nodes * self.base)
            sizes = torch.searchsorted(keys, (nodes + 1) * self.base) - first  # none where the node is -1
            # One entry for each n-gram that continues one of the contexts: its row, and its node.
            rows = torch.repeat_interleave(sizes)
            found = (first - (sizes.cumsum(0) - sizes)).index_select(0, rows)
            found += torch.arange(len(rows), device=rows.device)
            places = keys.index_select(0, found)
            places += (corner - nodes * self.base).index_select(0, rows)  # now row * V + last token
            values = self._log_probs(length + 1).index_select(0, found)
            values += factor.index_select(0, rows)
            result.view(-1).scatter_(0, places, values)


class Counts(NamedTuple):
    """How often each n-gram was seen, for every order from 1 up."""

    keys: list[Tensor]  # (n,) each, sorted
    numbers: list[Tensor]  # (n,) each


def count(tokens: Tensor, counted: Tensor, order: int, base: int) -> Counts:
    """The n-grams of a stream (M,), in which -1 parts what does not belong together, that end where `counted` says.

    Those that end elsewhere get the number 0; they are here as the beginnings of others.
    """
    increments = counted.to(torch.int64)
    keys = [torch.arange(base)]
    numbers = [torch.bincount(tokens[counted], minlength=base)]
    nodes = tokens  # (M,) the node of the n-gram that ends here, -1 where there is none
    for _ in range(1, order):
        parents = F.pad(nodes[:-1], (1, 0), value=-1)
        places = ((parents >= 0) & (tokens >= 0)).nonzero()[:, 0]
        distinct, ranks = torch.unique(parents[places] * base + tokens[places], return_inverse=True)
        keys.append(distinct)
        numbers.append(torch.zeros_like(distinct).index_add_(0, ranks, increments[places]))
        nodes = torch.full_like(tokens, -1).index_copy_(0, places, ranks)
    return Counts(keys, numbers)


def merge(counts: Counts, more: Counts, base: int) -> Counts:
    """The counts of both texts together, in time linear in the first ones: the others are meant to be fewer."""
    merged = Counts([counts.keys[0]], [counts.numbers[0] + more.numbers[0]])
    places = more_places = counts.keys[0]  # of the nodes one order below, in what is merged
    for level in range(1, len(counts.keys)):
        keys, more_keys = counts.keys[level], more.keys[level]
        keys = places[keys // base] * base + keys % base  # still sorted, as places rise
        more_keys = more_places[more_keys // base] * base + more_keys % base
        union, places, more_places = _union(keys, more_keys)
        numbers = torch.zeros_like(union).index_copy_(0, places, counts.numbers[level])
        merged.keys.append(union)
        merged.numbers.append(numbers.index_add_(0, more_places, more.numbers[level]))
    return merged


def _union(keys: Tensor, more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two sorted sets as one, and the places that the members of each have in it."""
    below = torch.searchsorted(keys, more)  # how many of `keys` come before
    new = torch.searchsorted(keys, more, right=True) == below
    gaps, missing = below[new], more[new]
    shifts = torch.bincount(gaps, minlength=len(keys) + 1).cumsum(0)[: len(keys)]
    places = shifts + torch.arange(len(keys))
    union = keys.new_empty(len(keys) + len(missing)).index_copy_(0, places, keys)
    union.index_copy_(0, gaps + torch.arange(len(missing)), missing)
    return union, places, torch.searchsorted(union, more)


def kneser_ney(counts: Counts, base: int) -> list[Table]:
    """Interpolated modified Kneser–Ney probabilities in float64, as back-off tables."""
    parents = [keys // base for keys in counts.keys]  # the node without the last token
    suffixes = [torch.zeros_like(counts.keys[0])]  # the node without the first token
    for shorter, keys, parent in zip(counts.keys, counts.keys[1:], parents[1:], strict=False):
        suffixes.append(find(shorter, suffixes[-1][parent], keys % base, base))

    tables: list[Table] = []
    lower = torch.full((1,), 1 / (base - 1), dtype=torch.float64)  # p(w | c′); below the unigrams it is uniform
    for level, adjusted in enumerate(_adjusted(counts, suffixes, base)):
        amounts = torch.tensor((0.0, *_discounts(adjusted)), dtype=torch.float64)
        taken = amounts[adjusted.clamp(max=3)]
        contexts = len(tables[-1].keys) if tables else 1
        total = torch.zeros(contexts, dtype=torch.float64).index_add_(0, parents[level], adjusted.double())
        backoff = torch.zeros_like(total).index_add_(0, parents[level], taken) / total
        backoff = backoff.where(total > 0, 1.0)  # the last n-gram of a text may be the context of nothing
        lower = (adjusted - taken) / total[parents[level]] + backoff[parents[level]] * lower[suffixes[level]]
        if tables:
            tables[-1] = tables[-1]._replace(log_backoffs=backoff.log())
        tables.append(Table(counts.keys[level], lower.log(), torch.empty(0)))
    tables[0] = tables[0]._replace(log_probs=tables[0].log_probs[: base - 1])
    return tables


def _adjusted(counts: Counts, suffixes: list[Tensor], base: int) -> Iterator[Tensor]:
    """For every order a(·): how many different tokens come before an n-gram, or its count where that says nothing."""
    start = base - 1  # BOS has the largest id, so the n-grams that begin with it are the end of each array
    for level, numbers in enumerate(counts.numbers[:-1]):
        if level:
            start = int(torch.searchsorted(counts.keys[level], start * base))
        preceding = torch.bincount(suffixes[level + 1], minlength=len(numbers))
        preceding[start:] = numbers[start:]
        yield preceding
    yield counts.numbers[-1]


def _discounts(adjusted: Tensor) -> tuple[float, float, float]:
    """D₁, D₂ and D₃ of Chen & Goodman, if the counts of counts n₁ … n₄ give values between 0 and 1, 2 and 3."""
    n1, n2, n3, n4 = torch.bincount(adjusted.clamp(max=5), minlength=6)[1:5].tolist()
    if min(n1, n2, n3, n4) == 0:
        return FALLBACK_DISCOUNTS
    share = n1 / (n1 + 2 * n2)
    discounts = (1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3)
    return discounts if min(discounts) > 0 else FALLBACK_DISCOUNTS


def find(keys: Tensor, parents: Tensor, tokens: Tensor, base: int) -> Tensor:
    """The node that continues each parent with a token; -1 where there is none, or where the parent is -1."""
    if not keys.numel():
        return torch.full_like(parents, -1)
    wanted = parents * base + tokens  # negative for a parent of -1, which no key is
    places = torch.searchsorted(keys, wanted).clamp_(max=keys.numel() - 1)
    return places.where(keys[places] == wanted, -1)


def _at(values: Tensor, nodes: Tensor) -> Tensor:
    """The value of each node, 0 where the node is -1."""
    if not values.numel():
        return torch.zeros(nodes.shape, dtype=values.dtype, device=values.device)
    return values[nodes.clamp(min=0)].masked_fill(nodes < 0, 0.0)
