"""n-gram language models: counting, modified Kneser–Ney smoothing, and back-off prediction.

All n-grams of one order are the nodes of one level of a trie, stored as a sorted array of keys:

    key of a k-gram = (node of its first k - 1 tokens among the (k-1)-grams) * base + its last token

with base = V + 1, since BOS has the id V. A node is the index of its key. So keys fit into 64 bits at any order and
vocabulary, the n-grams that extend a context are one contiguous range, and binary search finds each of them. Counts,
probabilities and tables read from ARPA files share this form: they are the tables of `nn.backoff`, in which the node of
a context is its node as an n-gram. No loop here runs over tokens or n-grams, only over orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from chainrule.config import ModelConfig
from chainrule.data.token_files import TokenFile
from chainrule.errors import ConfigError, TrainingError, in_units
from chainrule.interface.base import readable
from chainrule.interface.capabilities import DiskCounts, GreedyDrafts, TargetScorer, TargetScores, TokenGenerator
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Choices, Describable, is_enabled
from chainrule.nn.backoff import (
    BLOCK,
    LOG_BACKOFFS,
    LOG_PROBS,
    NOTHING_COUNTED,
    BackoffModel,
    BackoffTable,
    Counts,
    Levels,
    find_nodes,
    merge_counts,
)
from chainrule.nn.backoff_lookup import BackoffLookup, as_array, as_tensor
from chainrule.nn.columns import Column, Store, spans
from chainrule.nn.ctc import CandidatesOfRows, FusedTarget, FusionModel, FusionWeights, prefix_beam_search
from chainrule.nn.kneser_ney import KneserNey, TableColumns
from chainrule.nn.layers import EXACT
from chainrule.nn.quantisation import quantised
from chainrule.nn.run_counting import RunCounter, count_part, tokens_at_once
from chainrule.nn.sorted_runs import Run, SortedRuns, levels_of
from chainrule.types import Batch, Sequences, State, Step

LARGE_VOCABULARY = 1000  # words rather than characters, whose longer n-grams are seldom seen twice
LONG_ORDER = 24  # up to here any text is counted; beyond, most n-grams occur once
COUNTING_BYTES = 60  # per n-gram while counting and estimating, measured; a stored one takes 16
PENDING = 1 << 20  # tokens buffered before they are merged into the counts

Doubles = npt.NDArray[np.float64]
Keys = npt.NDArray[np.int64]

FEW = 24
"""Tokens for which compiled code, one after the other, is still faster than torch with all at once."""

REMEMBERED = 1 << 16  # answers about single tokens, about 20 MB


class NGramConfig(ModelConfig):
    order: int = Field(5, ge=1, description="maximum n-gram length; a token is predicted from order − 1 previous ones")
    prune: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="for unigrams (0), bigrams, …: n-grams that occur at most so often are left out; the last value is "
        "that of all longer ones",
    )
    bits: Literal[16, 32] = Field(32, description="bits per stored log-probability; 16: quantised, for a smaller table")

    @field_validator("prune", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _nested(self) -> Self:
        if self.prune and (self.prune[0] or list(self.prune) != sorted(self.prune) or len(self.prune) > self.order):
            given = ",".join(map(str, self.prune))
            raise ValueError(
                f"prune {given} is not possible: it begins with 0 for unigrams, no value is below the one before, and "
                f"there are at most {self.order}; try 0,0,1"
            )
        return self

    @property
    def thresholds(self) -> list[int]:
        """The values of `prune` for all orders."""
        given = self.prune or (0,)
        return [given[min(order, len(given) - 1)] for order in range(self.order)]


class NGram(BackoffModel, DiskCounts, GreedyDrafts, TargetScorer, TokenGenerator, Describable):
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
    config: NGramConfig

    def __init__(self, config: NGramConfig) -> None:
        super().__init__(config, config.order)
        self.config = config
        self._pending: list[tuple[Tensor, Tensor]] = []  # chunks not yet merged into the counts
        self._waiting = 0  # tokens in them
        self._known_lookup: tuple[Tensor, BackoffLookup] | None = None  # with a buffer it has, to detect changes
        self._store: Store | None = None  # if counts are on disk
        self._counter: RunCounter | None = None  # of what is observed, and
        self._runs: list[Run] = []  # what was counted elsewhere
        if config.bits == 16:
            for name in list(self._buffers):
                if name.startswith("log_") and name != "log_probs_1":
                    self.register_buffer(name, torch.empty(0, dtype=torch.int16))
            self.register_buffer("scales", torch.zeros(2 * self.order, 2))

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
        if self._store is None:
            self._pending.append((stream, counted))
            self._waiting += len(stream)
            # Buffering more as the counts grow keeps the total cost of merging linear in the text.
            known = 0 if self._counts is None else self._counts.numbers[-1].numel()
            if self._waiting >= max(PENDING, known // 8):
                self._merge_pending()
        else:
            self._counter = self._counter or RunCounter(self._store, self.order, self.base)
            self._counter.add(stream.numpy(), counted.numpy())
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

    # Counting on disk

    def count_on_disk(self, folder: Path, memory: int) -> None:
        self._store, self._counter, self._runs = Store(folder, memory), None, []

    @property
    def tokens_at_once(self) -> int | None:
        return None if self._store is None or self._store.memory is None else tokens_at_once(self._store.memory)

    def count_jobs(self, text: TokenFile, size: int, share: float) -> list[Callable[..., list[Run]]]:
        assert self._store is not None
        assert self._store.folder is not None
        assert self._store.memory is not None
        folder, memory = self._store.folder, int(share * self._store.memory)
        parts = list(spans(text.length, size))
        settings: dict[str, Any] = {"order": self.order, "base": self.base, "folder": folder, "memory": memory}
        return [
            partial(count_part, text.between(begin - self.order, end), begin, end, merged=len(parts) > 1, **settings)
            for begin, end in parts
        ]

    def add_counts(self, counts: list[Run]) -> None:
        self._runs += counts

    def estimate(self, progress: Callable[[float], None] | None = None) -> None:
        self._merge_pending()

        def report(share: float) -> None:
            if progress is not None:
                progress(share)

        if self._store is None:
            store, first = Store(), 0.0
            levels = levels_of(self._counted(), store)
        else:
            if self._counter is not None:
                self._runs += self._counter.finish()
                self._counter = None
            if not self._runs:
                raise TrainingError(NOTHING_COUNTED)
            store, first = self._store, 0.0 if len(self._runs) == 1 else 0.5  # the share of the time that merging takes
            levels = SortedRuns(self._runs, store, self.base).merge(lambda share: report(first * share))
            self._runs = []
        dtype = torch.empty(0, dtype=torch.get_default_dtype()).numpy().dtype
        smoothing = KneserNey(
            levels,
            self.base,
            store,
            thresholds=self.config.thresholds,
            dtype=dtype,
            progress=lambda share: report(first + (1 - first) * share),
        )
        self._set_columns(smoothing.tables(), store)

    def _set_columns(self, tables: Sequence[TableColumns], store: Store) -> None:
        """Set the tables, quantised if they are to be."""
        if self.config.bits == 16:
            for order, table in enumerate(tables, start=1):
                kinds = (table.log_probs, LOG_PROBS), (table.log_backoffs, LOG_BACKOFFS)
                probs, backoffs = (self._codes(column, kind, order, store) for column, kind in kinds)
                tables = [*tables[: order - 1], table._replace(log_probs=probs, log_backoffs=backoffs), *tables[order:]]
        self.set_tables(
            [
                BackoffTable(*(torch.from_numpy(column.whole()) for column in table))._replace(
                    log_probs=torch.from_numpy(table.log_probs.whole()[: None if order else self.vocabulary])
                )
                for order, table in enumerate(tables)
            ]
        )

    def _codes(self, values: Column, kind: int, order: int, store: Store) -> Column:
        """Numbers as codes, with their scale in the model; unigrams stay as they are."""
        if order == 1 and kind == LOG_PROBS:
            return values
        codes, scale = quantised(values, store)
        self.get_buffer("scales")[2 * (order - 1) + kind] = torch.tensor(scale)
        return codes

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        self._pending, self._waiting = [], 0
        super()._load_from_state_dict(state_dict, prefix, *rest)

    # Prediction

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        self._require_estimate()
        state = self._initial(batch_size if source is None else source.ids.shape[0])
        return Step(self._predict(state[:, None]), state)

    def extend(self, tokens: Tensor, state: State) -> Step:
        before = cast(Tensor, state)
        if tokens.numel() <= FEW and (lookup := self._lookup()) is not None:
            nodes = as_array(before)
            logits = torch.from_numpy(lookup.predict(as_array(tokens), nodes))
            return Step(logits, as_tensor(nodes, before))
        contexts = self._contexts(self._read(tokens, before))
        return Step(self._predict(contexts[:, 1:]), contexts[:, -1].clone())

    def generate(
        self, tokens: Tensor, state: State, noise: Doubles, rules: Doubles, suppressed: Keys
    ) -> tuple[Choices, State] | None:
        self._require_estimate()
        if (lookup := self._lookup()) is None:
            return None
        nodes = as_array(cast(Tensor, state))
        choices = lookup.generate(as_array(tokens), nodes, noise, rules, suppressed)
        return choices, as_tensor(nodes, tokens)

    @property
    def has_program(self) -> bool:
        """Of numbers, not of codes; those would make the compiled function much larger."""
        return self.config.bits == 32 and bool(self._log_probs(1).numel()) and self._lookup() is not None

    def describe_step(self, program: ProgramBuilder) -> None:
        lookup = self._lookup()
        assert lookup is not None
        program.backoff(lookup, 0)

    def greedy_draft(self, ids: Sequence[int], count: int) -> list[int]:
        """Greedy decoding from the last order − 1 tokens; a shorter text is read from BOS."""
        self._require_estimate()
        context = self.order - 1
        state = self._initial(1) if len(ids) < context else torch.full((1, context), -1, device=self.device)
        known = list(ids[len(ids) - min(context, len(ids)) :])
        if not known or (lookup := self._lookup()) is None:
            return self._greedy_steps(state, known, count)
        before = torch.tensor([known[:-1]], dtype=torch.int64, device=self.device)
        nodes = as_array(self._contexts(self._read(before, state))[:, -1])
        nothing = np.empty((1, count, 0))
        found = lookup.generate(np.array(known[-1:]), nodes, nothing, np.zeros(4), np.empty(0, np.int64))
        return [int(token) for token in found.ids[0]]

    def _greedy_steps(self, state: Tensor, ids: Sequence[int], count: int) -> list[int]:
        """Greedy decoding by steps, from a state and further tokens."""
        if ids:
            step = self.extend(torch.tensor([ids], device=self.device), state)
        else:
            step = Step(self._predict(state[:, None]), state)
        draft: list[int] = []
        for _ in range(count):
            token = step.logits[:, -1].argmax(-1)
            draft.append(int(token))
            step = self.extend(token[:, None], step.state)
        return draft

    def fused_targets(self, candidates: CandidatesOfRows, weights: FusionWeights, width: int) -> list[FusedTarget]:
        """The best target of each row by CTC beam search with shallow fusion."""
        if (lookup := self._lookup()) is None:
            model = self.fusion_model()
            return [prefix_beam_search(row, model, weights, width) for row in candidates.rows()]
        self._require_estimate()
        return lookup.search(np.array([self._first_nodes], dtype=np.int64), weights, width, candidates)

    def fusion_model(self) -> FusionModel:
        """The model for shallow fusion, one token at a time."""
        self._require_estimate()
        return FusionModel(self._first_nodes, lru_cache(REMEMBERED)(Levels.of(self.tables(), self.base).score))

    @property
    def _first_nodes(self) -> tuple[int, ...]:
        """The state before a target."""
        return (self.bos, *[-1] * self.receptive_field)[: self.receptive_field]

    def _lookup(self) -> BackoffLookup | None:
        """The compiled look-up in the current tables; None where only torch applies."""
        current = self._log_probs(1)
        if not is_enabled() or current.device.type != "cpu" or current.dtype not in EXACT:
            return None
        if self._known_lookup is None or self._known_lookup[0] is not current:
            self._known_lookup = (current, BackoffLookup(self._buffers, self.order, self.base))
        return self._known_lookup[1]

    def logits(self, batch: Batch) -> Tensor:
        self._require_estimate()
        tokens = readable(batch.target)
        contexts = self._contexts(self._read(tokens, self._initial(len(tokens))))
        return self._predict(contexts[:, :-1])

    def score_tokens(self, target: Sequences, state: State | None = None, *, hits: bool = False) -> TargetScores:
        """As `token_log_probs`, up to rounding, without the (B, T, V) in between; streams go on from a state."""
        self._require_estimate()
        tokens = readable(target)
        before = self._initial(len(tokens)) if state is None else cast(Tensor, state)
        if (lookup := self._lookup()) is None:
            return self._score_by_torch(target, tokens, before, hits=hits)
        nodes = as_array(before)
        found = lookup.score(as_array(tokens), as_array(target.lengths), nodes, hits=hits)
        log_probs = torch.from_numpy(found.log_probs).to(self._log_probs(1).dtype)
        return TargetScores(log_probs, torch.from_numpy(found.hits) if hits else None, as_tensor(nodes, before))

    def _score_by_torch(self, target: Sequences, tokens: Tensor, before: Tensor, *, hits: bool) -> TargetScores:
        """The same by torch, for other devices and types; hits by all probabilities, a few positions at a time."""
        nodes, rows = self._read(tokens, before), len(tokens)
        scores = self._log_probs(1)[tokens]
        for order in range(2, self.order + 1):
            contexts, found = nodes[order - 2][:, :-1], nodes[order - 1][:, 1:]
            backed_off = scores + self._log_backoffs_at(order - 1, contexts)
            scores = self._log_probs_at(order, found).where(found >= 0, backed_off)
        states = self._contexts(nodes)
        after = states[torch.arange(rows, device=tokens.device), target.lengths]
        best = None
        if hits:
            chunks = torch.split(states[:, :-1].flatten(0, 1), max(1, BLOCK // self.vocabulary))
            likeliest = torch.cat([self._predict(chunk[None])[0].argmax(-1) for chunk in chunks])
            best = (likeliest.view(tokens.shape) == tokens) & target.mask
        return TargetScores(scores.masked_fill(~target.mask, 0.0), best, after)

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
