"""n-gram language models: counting, modified Kneser–Ney smoothing, and back-off prediction.

All n-grams of one order are the nodes of one level of a trie, stored as a sorted array of keys:

    key of a k-gram = (node of its first k - 1 tokens among the (k-1)-grams) * base + its last token

with base = V + 1, since BOS has the id V. A node is the index of its key. So keys fit into 64 bits at any order and
vocabulary, the n-grams that extend a context are one contiguous range, and binary search finds each of them. Counts,
probabilities and tables read from ARPA files share this form: they are the tables of `nn.backoff`, in which the node of
a context is its node as an n-gram. No loop here runs over tokens or n-grams, only over orders.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from chainrule.config import ModelConfig
from chainrule.errors import ConfigError, in_units
from chainrule.interface.base import readable
from chainrule.interface.capabilities import GreedyDrafts
from chainrule.nn.backoff import BackoffModel, BackoffTable, Counts, discounts, find_nodes, merge_counts, node_values
from chainrule.nn.ctc import FusionModel
from chainrule.nn.layers import EXACT
from chainrule.types import Batch, Sequences, State, Step

LARGE_VOCABULARY = 1000  # words rather than characters, whose longer n-grams are seldom seen twice
LONG_ORDER = 24  # up to here any text is counted; beyond, most n-grams occur once
COUNTING_BYTES = 60  # per n-gram while counting and estimating, measured; a stored one takes 16
PENDING = 1 << 20  # tokens buffered before they are merged into the counts

Numbers = npt.NDArray[np.floating[Any]]
Keys = npt.NDArray[np.int64]

FEW = 24
"""Tokens for which one after the other is still faster than all at once."""

REMEMBERED = 1 << 16  # answers about single tokens, about 20 MB


class NGramConfig(ModelConfig):
    order: int = Field(5, ge=1, description="maximum n-gram length; a token is predicted from order − 1 previous ones")


class NGram(BackoffModel, GreedyDrafts):
    """n-gram language model with interpolated modified Kneser–Ney smoothing; trained by counting, in seconds.

    p(w | c) = (a(cw) − D(a(cw))) / Σ_v a(cv) + γ(c) p(w | c′),    γ(c) = Σ_v D(a(cv)) / Σ_v a(cv)

    c is a context of up to order − 1 tokens and c′ the same without its first one; unigrams are interpolated with the
    uniform distribution. a is the count of an n-gram at the highest order and for n-grams that start with BOS, which
    nothing can precede; elsewhere it is the continuation count, the number of distinct tokens seen before it. The
    discount D is D₁, D₂ or D₃ for a = 1, 2 or ≥ 3, each estimated per order from the counts of counts 1 to 4.

    Kneser & Ney, "Improved backing-off for m-gram language modeling", 1995; Chen & Goodman, "An empirical study of
    smoothing techniques for language modeling", 1998. Stored in back-off form: p(w | c) of each n-gram seen, and γ(c).

    The state is (B, order − 1): the nodes of the last 1, 2, … tokens, −1 for unseen n-grams.
    """

    Config: ClassVar[type[ModelConfig]] = NGramConfig
    task: ClassVar[str] = "text"

    def __init__(self, config: NGramConfig) -> None:
        super().__init__(config, config.order)
        self.config = config
        self._pending: list[tuple[Tensor, Tensor]] = []  # chunks not yet merged into the counts
        self._waiting = 0  # tokens in them
        self._views: tuple[Tensor, Levels] | None = None  # with the buffer they were made from, to detect changes

    @property
    def receptive_field(self) -> int:
        return self.order - 1

    @classmethod
    def suggested_settings(cls, vocabulary: int) -> dict[str, Any]:
        return {"order": 7 if vocabulary < LARGE_VOCABULARY else 5}

    # Counting

    def require_countable(self, tokens: npt.NDArray[Any], memory: int) -> None:
        """Refuse an order above the longest repetition in the text: its n-grams all occur once, and fill the memory."""
        if self.order <= LONG_ORDER:
            return
        longest = longest_repetition(tokens, self.order)
        if self.order > longest + 1:
            raise ConfigError(
                f"model.order {self.order} is longer than any repetition in the training data: no sequence of more "
                f"than {longest} tokens occurs twice, so longer n-grams predict nothing new; set model.order to "
                f"{max(LONG_ORDER, longest + 1)} or less"
            )
        if (needed := self.order * len(tokens) * COUNTING_BYTES) > memory:
            raise ConfigError(
                f"model.order {self.order} on {len(tokens):,} tokens takes about {in_units(needed)} of memory, and "
                f"{in_units(memory)} is available; set model.order to "
                f"{max(LONG_ORDER, memory // (len(tokens) * COUNTING_BYTES))} or less"
            )

    def observe(self, target: Sequences, state: State | None = None) -> State:
        """Count the n-grams that end at each real token. The state is the last order − 1 tokens, −1 before BOS."""
        ids, lengths, real = readable(target).cpu(), target.lengths.cpu(), target.mask.cpu()
        self._require_known(ids)
        rows = len(ids)
        if state is None:
            history = torch.full((rows, self.order - 1), -1)
            history[:, -1:] = self.bos
        else:
            history = cast(Tensor, state).cpu()
        # The rows are concatenated. The -1 before each keeps n-grams from crossing rows.
        gap = torch.full((rows, 1), -1)
        stream = torch.cat([gap, history, ids.masked_fill(~real, -1)], dim=1).flatten()
        counted = F.pad(real, (self.order, 0)).flatten()
        self._pending.append((stream, counted))
        self._waiting += len(stream)
        # Buffering more as the counts grow keeps the total cost of merging linear in the text.
        known = 0 if self._counts is None else self._counts.numbers[-1].numel()
        if self._waiting >= max(PENDING, known // 8):
            self._merge_pending()
        last = lengths[:, None] + torch.arange(self.order - 1)
        return torch.cat([history, ids], dim=1).gather(1, last).to(target.ids.device)

    def _merge_pending(self) -> None:
        """Merge the buffered tokens into the counts."""
        if not self._pending:
            return
        streams, counted = zip(*self._pending, strict=True)
        self._pending, self._waiting = [], 0
        new = count(torch.cat(streams), torch.cat(counted), self.order, self.base)
        self._counts = new if self._counts is None else merge_counts(self._counts, new, self.base)

    def estimate(self) -> None:
        self._merge_pending()
        self.set_tables(kneser_ney(self._counted(), self.base))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        self._pending, self._waiting = [], 0
        super()._load_from_state_dict(state_dict, prefix, *rest)

    # Prediction

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        self._require_estimate()
        state = self._initial(batch_size if source is None else source.ids.shape[0])
        return Step(self._predict(state[:, None]), state)

    def extend(self, tokens: Tensor, state: State) -> Step:
        if _is_small(tokens, self._log_probs(1)):
            return self._extend_numpy(tokens, cast(Tensor, state))
        contexts = self._contexts(self._read(tokens, cast(Tensor, state)))
        return Step(self._predict(contexts[:, 1:]), contexts[:, -1].clone())

    def _extend_numpy(self, tokens: Tensor, state: Tensor) -> Step:
        """`extend` in NumPy, row by row and token by token."""
        levels = self._levels()
        logits = np.empty((*tokens.shape, self.vocabulary), dtype=levels.log_probs[0].dtype)
        after = []
        for row, (read, nodes) in enumerate(zip(tokens.tolist(), state.tolist(), strict=True)):
            for place, token in enumerate(read):
                nodes = levels.read(token, nodes)
                levels.predict(nodes, logits[row, place])
            after.append(nodes)
        return Step(torch.from_numpy(logits), torch.tensor(after, dtype=torch.int64).view(state.shape))

    def greedy_draft(self, ids: Sequence[int], count: int) -> list[int]:
        """Greedy decoding from the last order − 1 tokens; a shorter text is read from BOS."""
        self._require_estimate()
        levels, context = self._levels(), self.order - 1
        nodes = [-1] * context if len(ids) >= context else [self.bos, *[-1] * (context - 1)]
        for token in ids[len(ids) - min(context, len(ids)) :]:
            nodes = levels.read(token, nodes)
        draft: list[int] = []
        for _ in range(count):
            draft.append(levels.likeliest(nodes))
            nodes = levels.read(draft[-1], nodes)
        return draft

    def fusion_model(self) -> FusionModel:
        """The model for shallow fusion, one token at a time."""
        self._require_estimate()
        initial = (self.bos, *[-1] * self.receptive_field)[: self.receptive_field]
        return FusionModel(initial, self._levels().cached_score)

    def _levels(self) -> Levels:
        """NumPy views of the current tables."""
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
            backed_off = scores + node_values(self._log_backoffs(order - 1), contexts)
            scores = node_values(self._log_probs(order), found).where(found >= 0, backed_off)
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
            found = find_nodes(self._keys(order), nodes[-1][:, :-1], tokens, self.base)
            nodes.append(torch.cat([before[:, order - 1 : order], found], dim=1))
        return nodes

    def _contexts(self, nodes: list[Tensor]) -> Tensor:
        """(B, K + 1, order − 1): the state before the tokens just read, then after each of them."""
        return torch.stack(nodes, dim=-1)[..., : self.order - 1]


def longest_repetition(tokens: npt.NDArray[Any], limit: int) -> int:
    """The length of the longest sequence that occurs at least twice in a text, up to `limit`.

    The windows of length 2k are pairs of windows of length k, so ranks of windows of length 1, 2, 4, … take a sort
    each; then the longest length with a repetition is a sum of powers of two, found from the largest down.
    """

    def ranks_of(windows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.unique(windows, return_inverse=True)[1].astype(np.int64, copy=False)

    def joined(first: npt.NDArray[np.int64], length: int, second: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The ranks of windows made of one of `length` and the one that follows it."""
        count = len(second) - length
        if count <= 0:
            return np.empty(0, dtype=np.int64)
        pairs = first[:count] * (int(second.max()) + 1) + second[length:]
        return ranks_of(pairs)

    def repeats(ranks: npt.NDArray[np.int64]) -> bool:
        return len(ranks) > 0 and int(ranks.max()) + 1 < len(ranks)

    ranks = [ranks_of(tokens)]
    while 1 << len(ranks) <= limit and repeats(ranks[-1]):
        ranks.append(joined(ranks[-1], 1 << (len(ranks) - 1), ranks[-1]))
    length, found = 0, np.zeros(len(tokens), dtype=np.int64)
    for power in reversed(range(len(ranks))):
        longer = joined(found, length, ranks[power]) if length else ranks[power]
        if repeats(longer):
            length, found = length + (1 << power), longer
    return length


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


def kneser_ney(counts: Counts, base: int) -> list[BackoffTable]:
    """Interpolated modified Kneser–Ney probabilities in float64, as back-off tables."""
    parents = [keys // base for keys in counts.keys]  # the node without the last token
    suffixes = [torch.zeros_like(counts.keys[0])]  # the node without the first token
    for shorter, keys, parent in zip(counts.keys, counts.keys[1:], parents[1:], strict=False):
        suffixes.append(find_nodes(shorter, suffixes[-1][parent], keys % base, base))

    tables: list[BackoffTable] = []
    lower = torch.full((1,), 1 / (base - 1), dtype=torch.float64)  # p(w | c′); below the unigrams it is uniform
    for level, adjusted in enumerate(_adjusted(counts, suffixes, base)):
        amounts = torch.tensor((0.0, *discounts(adjusted)), dtype=torch.float64)
        taken = amounts[adjusted.clamp(max=3)]
        contexts = len(tables[-1].keys) if tables else 1
        total = torch.zeros(contexts, dtype=torch.float64).index_add_(0, parents[level], adjusted.double())
        backoff = torch.zeros_like(total).index_add_(0, parents[level], taken) / total
        backoff = backoff.where(total > 0, 1.0)  # the last n-gram of a text may be the context of nothing
        lower = (adjusted - taken) / total[parents[level]] + backoff[parents[level]] * lower[suffixes[level]]
        if tables:
            tables[-1] = tables[-1]._replace(log_backoffs=backoff.log())
        tables.append(BackoffTable(counts.keys[level], lower.log(), torch.empty(0)))
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


# A few tokens at a time, in NumPy: a batch takes about a hundred torch operations, whose dispatch costs more than a
# millisecond even for one token. Here a token takes a few binary searches, some tens of microseconds, which is fast
# enough for draft tokens (see `decoding.speculative`).


def _is_small(tokens: Tensor, like: Tensor) -> bool:
    """Whether the NumPy path applies: a few tokens on the CPU, in full precision."""
    return tokens.numel() <= FEW and like.device.type == "cpu" and like.dtype in EXACT


@dataclass(frozen=True)
class Levels:
    """NumPy views of the back-off tables, one per order."""

    keys: list[Keys]  # from bigrams up; the keys of unigrams are the tokens themselves
    log_probs: list[Numbers]  # from unigrams up
    log_backoffs: list[Numbers]  # from unigrams up, without the highest order
    base: int

    @classmethod
    def of(cls, buffers: Mapping[str, Tensor | None], order: int, base: int) -> Levels:
        """From the buffers of an `NGram`."""
        arrays = {name: buffer.numpy() for name, buffer in buffers.items() if buffer is not None}
        return cls(
            [arrays[f"keys_{level}"] for level in range(2, order + 1)],
            [arrays[f"log_probs_{level}"] for level in range(1, order + 1)],
            [arrays[f"log_backoffs_{level}"] for level in range(1, order)],
            base,
        )

    def read(self, token: int, nodes: Sequence[int]) -> list[int]:
        """From the nodes of the last 1, 2, … tokens, −1 for none, to those after one more token."""
        return list(self.score(token, nodes)[1])

    def score(self, token: int, nodes: Sequence[int]) -> tuple[float, tuple[int, ...]]:
        """The log-probability of one token after these nodes, and the nodes after it."""
        unigrams, *longer = self.plain
        nats, found = unigrams[token], [token]
        for (keys, log_probs, backoffs), node in zip(longer, nodes, strict=True):
            if node < 0:
                found.append(-1)
                continue
            wanted = node * self.base + token
            place = bisect_left(keys, wanted)
            if place < len(keys) and keys[place] == wanted:
                nats = log_probs[place]
                found.append(place)
            else:
                nats += backoffs[node]
                found.append(-1)
        return nats, tuple(found[:-1])

    @cached_property
    def plain(self) -> list[Any]:
        """The tables as memory views, whose single elements are faster to read than those of arrays."""
        views = zip(self.keys, self.log_probs[1:], self.log_backoffs, strict=True)
        return [self.log_probs[0].data, *(tuple(array.data for array in level) for level in views)]

    def predict(self, nodes: Sequence[int], result: Numbers) -> None:
        """Fill (V,) log-probabilities: each order, from low to high, overwrites those of its observed n-grams."""
        factors = [result.dtype.type(0)]
        for backoffs, node in zip(reversed(self.log_backoffs), reversed(nodes), strict=True):
            factors.append(factors[-1] + backoffs[node] if node >= 0 else factors[-1])
        np.add(self.log_probs[0], factors.pop(), out=result)
        for keys, log_probs, node in zip(self.keys, self.log_probs[1:], nodes, strict=True):
            factor = factors.pop()
            if node >= 0:
                corner = node * self.base
                first, last = keys.searchsorted((corner, corner + self.base))
                result[keys[first:last] - corner] = log_probs[first:last] + factor

    def likeliest(self, nodes: Sequence[int]) -> int:
        """The most likely token of `predict`, without computing the others.

        It is the most likely of the best continuations of each context. Interpolation never gives an observed token a
        lower probability than backing off would, so no token is missed.
        """
        best, best_log_prob, factor = 0, -math.inf, 0.0
        for (tokens, log_probs), backoffs, node in zip(
            reversed(self.best_continuations), reversed(self.log_backoffs), reversed(nodes), strict=True
        ):
            if node >= 0:
                if (log_prob := float(log_probs[node]) + factor) > best_log_prob:
                    best, best_log_prob = int(tokens[node]), log_prob
                factor += float(backoffs[node])
        token, log_prob = self.best_unigram
        return token if log_prob + factor > best_log_prob else best

    @cached_property
    def cached_score(self) -> Callable[[int, tuple[int, ...]], tuple[float, tuple[int, ...]]]:
        """`score` with a cache: a beam search asks for the same tokens again and again."""
        return lru_cache(REMEMBERED)(self.score)

    @cached_property
    def best_unigram(self) -> tuple[int, float]:
        """The most likely unigram and its log-probability."""
        token = int(self.log_probs[0].argmax())
        return token, float(self.log_probs[0][token])

    @cached_property
    def best_continuations(self) -> list[tuple[Keys, Numbers]]:
        """For contexts of 1, 2, … tokens: the best observed continuation of each node and its log-probability."""
        found = []
        for keys, log_probs, contexts in zip(self.keys, self.log_probs[1:], self.log_backoffs, strict=True):
            tokens, best = np.zeros(len(contexts), np.int64), np.full(len(contexts), -np.inf, log_probs.dtype)
            parents, last = np.divmod(keys, self.base)
            np.maximum.at(best, parents, log_probs)
            first = (log_probs == best[parents]).nonzero()[0][
                ::-1
            ]  # reversed: among ties the lowest id is assigned last
            tokens[parents[first]] = last[first]
            found.append((tokens, best))
        return found
