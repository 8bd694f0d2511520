"""Back-off models: tables of events observed in contexts of increasing length, and prediction from them.

The events of each context length are stored as a sorted array of keys,

    key of an event = (node of its context) * base + the token that follows

with base = V + 1, where a node is a number that the family assigns to every observed context. The table holds the
probability of each observed event; for other events, the prediction from the context shorter by one is multiplied by
the back-off weight of the context. The contexts of `ngram` are the last tokens of a text, those of `neighbours` the
nearest pixels of an image. Loops run over context lengths only, never over tokens or events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chainrule.config import ModelConfig
from chainrule.errors import DataError, TrainingError
from chainrule.interface.base import AutoregressiveModel, CountModel
from chainrule.nn.quantisation import decoded

NOTHING_COUNTED = "the model has counted no token; observe a text before estimating"
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # where too few counts of counts are known, as in KenLM
LOG_PROBS, LOG_BACKOFFS = 0, 1  # what is stored of an order
BLOCK = 1 << 21  # predictions computed at once; fits into the CPU cache


class BackoffTable(NamedTuple):
    """The events of one order: n of them, sorted by key. Those of order k have contexts of length k − 1."""

    keys: Tensor  # (n,) int64; at order 1 the tokens themselves, 0 … V, BOS among them
    log_probs: Tensor  # (n,) of the token given its context; at order 1 (V,), since BOS is never predicted
    log_backoffs: Tensor  # back-off weight of each context of length k, by its node; (0,) at the highest order


class BackoffModel(AutoregressiveModel, CountModel):
    """A model that predicts from back-off tables."""

    maps_weights = True  # a run's tables stay in its file, mapped into memory

    def __init__(self, config: ModelConfig, order: int) -> None:
        super().__init__(config)
        self.order = order  # maximum context length + 1
        self.base = config.vocabulary + 1
        for one in range(1, order + 1):
            if one > 1:
                self.register_buffer(f"keys_{one}", torch.empty(0, dtype=torch.int64))
            self.register_buffer(f"log_probs_{one}", torch.empty(0))
            if one < order:
                self.register_buffer(f"log_backoffs_{one}", torch.empty(0))
        # Counts are not part of a checkpoint and stay on the CPU, wherever the tables are.
        self._counts: Counts | None = None

    @property
    def bos(self) -> int:
        """The id of the beginning of a sequence: one past the vocabulary, so no text contains it."""
        return self.vocabulary

    @property
    def sizes(self) -> list[int]:
        """The number of events of each order."""
        return [self._log_probs(order).numel() for order in range(1, self.order + 1)]

    def _require_known(self, ids: Tensor) -> None:
        """Raise DataError if an id is outside the vocabulary."""
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary:
            raise DataError(
                f"token ids range from {int(ids.min())} to {int(ids.max())}, but the vocabulary has "
                f"{self.vocabulary} tokens; encode the text with the model's own tokenizer"
            )

    @property
    def events_counted(self) -> int:
        return 0 if self._counts is None else sum(numbers.numel() for numbers in self._counts.numbers)

    def _counted(self) -> Counts:
        """The counts. Raises TrainingError if nothing was observed."""
        if self._counts is None or not self._counts.numbers[0].any():
            raise TrainingError(NOTHING_COUNTED)
        return self._counts

    # Tables

    def set_tables(self, tables: Sequence[BackoffTable]) -> None:
        """Set the tables, one per order, in the default floating-point type."""
        dtype, device = torch.get_default_dtype(), self.device

        def stored(values: Tensor) -> Tensor:
            return values.to(device, dtype) if values.is_floating_point() else values.to(device)  # codes stay codes

        for order, table in enumerate(tables, start=1):
            if order > 1:
                self.register_buffer(f"keys_{order}", table.keys.to(device))
            self.register_buffer(f"log_probs_{order}", stored(table.log_probs))
            if order < self.order:
                self.register_buffer(f"log_backoffs_{order}", stored(table.log_backoffs))

    def tables(self) -> Iterator[BackoffTable]:
        """One table per order, from unigrams up."""
        self._require_estimate()
        for order in range(1, self.order + 1):
            yield BackoffTable(
                self._keys(order) if order > 1 else torch.arange(self.base, device=self.device),
                self.decoded(self._log_probs(order), LOG_PROBS, order),
                self.decoded(self._log_backoffs(order), LOG_BACKOFFS, order)
                if order < self.order
                else torch.empty(0, device=self.device),
            )

    def decoded(self, stored: Tensor, kind: int, order: int) -> Tensor:
        """Stored LOG_PROBS or LOG_BACKOFFS of an order as numbers; they may be codes."""
        if stored.is_floating_point():
            return stored
        return decoded(stored, self.get_buffer("scales")[2 * (order - 1) + kind])

    def _log_probs_at(self, order: int, nodes: Tensor) -> Tensor:
        """The log-probability of each event, 0 where the node is −1."""
        return self.decoded(node_values(self._log_probs(order), nodes), LOG_PROBS, order).masked_fill(nodes < 0, 0.0)

    def _log_backoffs_at(self, order: int, nodes: Tensor) -> Tensor:
        """The back-off weight of each context, 0 where the node is −1."""
        found = node_values(self._log_backoffs(order), nodes)
        return self.decoded(found, LOG_BACKOFFS, order).masked_fill(nodes < 0, 0.0)

    def _keys(self, order: int) -> Tensor:
        return self.get_buffer(f"keys_{order}")

    def _log_probs(self, order: int) -> Tensor:
        return self.get_buffer(f"log_probs_{order}")

    def _log_backoffs(self, order: int) -> Tensor:
        return self.get_buffer(f"log_backoffs_{order}")

    def _require_estimate(self) -> None:
        if not self._log_probs(1).numel():
            raise TrainingError("the model has no probabilities yet; observe a text, estimate, or load a run")

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Accept tables of any size; names and the vocabulary size must match.

        Tensors of the right type are taken as they are, not copied: those of a mapped file are read when they are used.
        """
        for name, buffer in list(self.named_buffers(recurse=False)):
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor) and (name != "log_probs_1" or len(saved) in (0, self.vocabulary)):
                alike = (saved.dtype, saved.device) == (buffer.dtype, buffer.device)
                self.register_buffer(name, saved if alike else buffer.new_empty(saved.shape))
        self._counts = None
        super()._load_from_state_dict(state_dict, prefix, *rest)

    # Prediction

    def _predict(self, contexts: Tensor) -> Tensor:
        """Contexts (B, K, order − 1) to log-probabilities (B, K, V)."""
        rows = contexts.flatten(0, 1)
        result = torch.empty(len(rows), self.vocabulary, dtype=self._log_probs(1).dtype, device=self.device)
        size = max(1, BLOCK // self.vocabulary)
        for first in range(0, len(rows), size):
            self._fill(result[first : first + size], rows[first : first + size])
        return result.view(*contexts.shape[:2], self.vocabulary)

    def _fill(self, result: Tensor, contexts: Tensor) -> None:
        """Fill (P, V) log-probabilities: each order, from low to high, overwrites those of its observed events."""
        columns = [column.contiguous() for column in contexts.unbind(1)]  # (P,) each; [k - 1] is the last k tokens
        # The factor of a prediction from the last k tokens: the product of the back-off weights of longer contexts.
        factors = [torch.zeros_like(result[:, 0])]
        for order in range(self.order - 1, 0, -1):
            factors.insert(0, factors[0] + self._log_backoffs_at(order, columns[order - 1]))
        torch.add(self._log_probs(1), factors[0][:, None], out=result)
        corner = torch.arange(len(result), device=result.device) * self.vocabulary
        for length, (nodes, factor) in enumerate(zip(columns, factors[1:], strict=True), start=1):
            keys = self._keys(length + 1)
            first = torch.searchsorted(keys, nodes * self.base)
            sizes = torch.searchsorted(keys, (nodes + 1) * self.base) - first  # 0 where the node is -1
            # One entry per n-gram that extends one of the contexts: its row and its node.
            rows = torch.repeat_interleave(sizes)
            found = (first - (sizes.cumsum(0) - sizes)).index_select(0, rows)
            found += torch.arange(len(rows), device=rows.device)
            indices = keys.index_select(0, found)
            indices += (corner - nodes * self.base).index_select(0, rows)  # now row * V + last token
            values = self._log_probs_at(length + 1, found)
            values += factor.index_select(0, rows)
            result.view(-1).scatter_(0, indices, values)


class Counts(NamedTuple):
    """The counts of each path of tokens, for every length from 1 up.

    The paths of one length are the nodes of one level of a trie: the key of a path is (node of the path without its
    last token) * base + that token, and a node is the index of its key.
    """

    keys: list[Tensor]  # (n,) each, sorted; at length 1 the tokens 0 … base − 1
    numbers: list[Tensor]  # (n,) each


def merge_counts(counts: Counts, more: Counts, base: int) -> Counts:
    """The sum of two counts, in time linear in the larger first one and linearithmic in the second."""
    merged = Counts([counts.keys[0]], [counts.numbers[0] + more.numbers[0]])
    indices = more_indices = counts.keys[0]  # new indices of the nodes one order below
    for level in range(1, len(counts.keys)):
        keys, more_keys = counts.keys[level], more.keys[level]
        keys = indices[keys // base] * base + keys % base  # still sorted, since indices increase
        more_keys = more_indices[more_keys // base] * base + more_keys % base
        union, indices, more_indices = _union(keys, more_keys)
        numbers = torch.zeros_like(union).index_copy_(0, indices, counts.numbers[level])
        merged.keys.append(union)
        merged.numbers.append(numbers.index_add_(0, more_indices, more.numbers[level]))
    return merged


def _union(keys: Tensor, more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The union of two sorted sets, and the index of each member in it."""
    below = torch.searchsorted(keys, more)  # number of smaller `keys`
    new = torch.searchsorted(keys, more, right=True) == below
    gaps, missing = below[new], more[new]
    shifts = torch.bincount(gaps, minlength=len(keys) + 1).cumsum(0)[: len(keys)]
    indices = shifts + torch.arange(len(keys))
    union = keys.new_empty(len(keys) + len(missing)).index_copy_(0, indices, keys)
    union.index_copy_(0, gaps + torch.arange(len(missing)), missing)
    return union, indices, torch.searchsorted(union, more)


def discounts_from(counts_of_counts: Sequence[int]) -> tuple[float, float, float]:
    """D₁, D₂ and D₃ of Chen & Goodman from n₁ … n₄; FALLBACK_DISCOUNTS if one is not positive."""
    n1, n2, n3, n4 = counts_of_counts
    if min(n1, n2, n3, n4) == 0:
        return FALLBACK_DISCOUNTS
    ratio = n1 / (n1 + 2 * n2)
    discounts = (1 - 2 * ratio * n2 / n1, 2 - 3 * ratio * n3 / n2, 3 - 4 * ratio * n4 / n3)
    return discounts if min(discounts) > 0 else FALLBACK_DISCOUNTS


def find_nodes(keys: Tensor, parents: Tensor, tokens: Tensor, base: int) -> Tensor:
    """The child node of each parent by a token; -1 if there is none, or if the parent is -1."""
    if not keys.numel():
        return torch.full_like(parents, -1)
    wanted = parents * base + tokens  # negative, hence no key, for a parent of -1
    indices = torch.searchsorted(keys, wanted).clamp_(max=keys.numel() - 1)
    return indices.where(keys[indices] == wanted, -1)


def node_values(values: Tensor, nodes: Tensor) -> Tensor:
    """The value of each node; any where the node is -1."""
    if not values.numel():
        return torch.zeros(nodes.shape, dtype=values.dtype, device=values.device)
    return values[nodes.clamp(min=0)]


@dataclass(frozen=True)
class Levels:
    """The back-off tables, one per order, as memory views: their elements are faster to read than those of arrays.

    For single tokens of many different states, as in a beam search: Python's own binary search takes a few
    microseconds, which is less than the call of a compiled function with all its arguments.
    """

    unigrams: Any
    longer: list[tuple[Any, Any, Any]]  # keys, log-probabilities, and back-off weights of the order below
    base: int

    @classmethod
    def of(cls, tables: Iterable[BackoffTable], base: int) -> Levels:
        """From the tables of an `NGram`."""
        unigrams, *longer = ([tensor.numpy().data for tensor in table] for table in tables)
        weights = [unigrams[2], *(backoffs for _, _, backoffs in longer)]
        levels = [(keys, log_probs, below) for (keys, log_probs, _), below in zip(longer, weights, strict=False)]
        return cls(unigrams[1], levels, base)

    def score(self, token: int, nodes: Sequence[int]) -> tuple[float, tuple[int, ...]]:
        """The log-probability of one token after these nodes, and the nodes after it."""
        nats, found = self.unigrams[token], [token]
        for (keys, log_probs, backoffs), node in zip(self.longer, nodes, strict=True):
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
