"""The neural cache: a model interpolated with the tokens that followed similar hidden states earlier in the text.

Shape letters: B rows, K tokens in a chunk, M cache size, V vocabulary, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypeIs

from chainrule.compose.composite import build_part, part_settings, state_size
from chainrule.config import ModelConfig
from chainrule.data.corpus import Corpus
from chainrule.deadline import NO_DEADLINE, Deadline
from chainrule.errors import ConfigError, DataError
from chainrule.interface.base import AutoregressiveModel, NeuralModel, readable
from chainrule.interface.capabilities import Composite
from chainrule.kernels import step as kernels
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable, Describable
from chainrule.nn.moving_window import MovingWindow
from chainrule.types import Batch, Sequences, State, Step

CHUNK = 256  # queries compared with the cache at once
MAX_FIT_SCORES = 1 << 22  # similarities kept for fitting
LBFGS_STEPS, LBFGS_ROUNDS = 30, 6  # the deadline is checked after each round
FIT_SECONDS = 10.0  # before a deadline; with less time, fewer predictions are fitted
READ_PER_PREDICTION = 8  # tokens read per prediction that is fitted, if time is short
IMPOSSIBLE = -1e4  # nats, for cache entries with another token; −∞ would have no gradient


class NeuralCacheConfig(ModelConfig):
    model: dict[str, Any] = Field(description="the cached model: its family and that family's settings")
    size: int = Field(2000, ge=1, description="number of most recent tokens in the cache")


class CacheState(NamedTuple):
    inner: State
    keys: Tensor  # (B, M + S, D) normalised hidden states that predicted the last M tokens: a `MovingWindow`
    values: Tensor  # (B, M + S) those tokens
    query: Tensor  # (B, D) normalised hidden state that predicts the next token
    positions: Tensor  # (B,) tokens read so far


def supports_neural_cache(model: AutoregressiveModel) -> TypeIs[NeuralModel]:
    """Whether hidden states can be compared across a whole text: a neural model with unlimited context."""
    return isinstance(model, NeuralModel) and model.context is None


class CacheLookup(NamedTuple):
    """Hidden states of a chunk and their similarities to the cache entries that each may use."""

    hidden: Tensor  # (B, K, D)
    scores: Tensor  # (B, K, M) ĥ_t · ĥ_i, oldest first; −∞ where the cache is not filled yet
    values: Tensor  # (B, K, M) the tokens of those entries
    state: CacheState


class NeuralCache(AutoregressiveModel, Composite, Compilable):
    """A neural model with a continuous cache over the text read so far.

    With h_t the hidden state that predicts x_t, ĥ its unit vector, and the cache the last M pairs (ĥ_i, x_i),

        s_i = θ ĥ_t · ĥ_i − δ log(t − i),    P_cache(w) = Σ_i softmax_i(s) [x_i = w],    λ_t = σ(a logsumexp_i(s) + b)
        P(x_t = w | x_<t) = (1 − λ_t) P_model(w) + λ_t P_cache(w)

    This is the neural cache of Grave, Joulin & Usunier ("Improving neural language models with a continuous cache",
    ICLR 2017) with two additions: scores decay with age, and the interpolation weight λ depends on how well the cache
    matches, as with the sentinel of pointer sentinel mixture models (Merity et al., ICLR 2017). θ, δ, a and b are
    fitted to held-out text; the weights of the model are not changed.
    """

    Config = NeuralCacheConfig
    task = "text"
    config: NeuralCacheConfig

    def __init__(self, config: NeuralCacheConfig, model: AutoregressiveModel | None = None) -> None:
        super().__init__(config)
        model = model or build_part(config.model, config.vocabulary, where="model.model")
        if not supports_neural_cache(model):
            raise ConfigError(
                f"{config.model['family']!r} does not support a neural cache, which requires a neural family with "
                "unlimited context; use one such as recurrent or causal_conv"
            )
        self.model: NeuralModel = model
        self.size = config.size
        self.window = MovingWindow.of(config.size)
        self.inverse_temperature = nn.Parameter(torch.tensor(8.0))  # θ
        self.age_decay = nn.Parameter(torch.tensor(0.5))  # δ
        self.match_slope = nn.Parameter(torch.tensor(0.3))  # a
        self.bias = nn.Parameter(torch.tensor(-4.0))  # b

    @classmethod
    def of(cls, model: AutoregressiveModel, *, size: int = 2000) -> Self:
        """Add a cache to an existing model, which is held and not copied."""
        settings = part_settings(model)
        return cls(NeuralCacheConfig(vocabulary=model.vocabulary, model=settings, size=size), model).eval()

    @property
    def components(self) -> Sequence[AutoregressiveModel]:
        return (self.model,)

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        rows = batch_size if source is None else source.ids.shape[0]
        bos = torch.full((rows, 1), self.model.bos, dtype=torch.int64, device=self.device)
        hidden, inner = self.model.advance(bos, self.model.initial(None, rows))
        query = unit_vectors(hidden[:, -1])
        state = CacheState(
            inner,
            query.new_zeros(rows, self.window.capacity, query.shape[-1]),
            bos.new_zeros(rows, self.window.capacity),
            query.contiguous(),
            bos.new_zeros(rows),
        )
        return Step(self.model.readout(hidden), state)

    def extend(self, tokens: Tensor, state: State) -> Step:
        if (compiled := kernels.extend(self, tokens, state)) is not None:
            return compiled
        return self.extend_both(tokens, state)[1]

    def extend_both(self, tokens: Tensor, state: State) -> tuple[Tensor, Step]:
        """The logits of the model itself, and the step of the model with its cache."""
        own, found = [], []
        for chunk in torch.split(tokens, CHUNK, dim=1):  # bounds the memory of the scores, (B, K, M)
            lookup = self.look_up(chunk, cast(CacheState, state))
            own.append(self.model.readout(lookup.hidden))
            found.append(self._interpolate(own[-1], lookup.scores, lookup.values))
            state = lookup.state
        return torch.cat(own, dim=1), Step(torch.cat(found, dim=1), state)

    def logits(self, batch: Batch) -> Tensor:
        return self.logits_both(batch)[1]

    def logits_both(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits of the model itself, and those with its cache."""
        ids = readable(batch.target)
        hidden = self.model.hidden(batch)  # (B, T, D); [:, t] predicts ids[:, t] and is its key from then on
        queries = unit_vectors(hidden)
        own = self.model.readout(hidden)
        keys, values = F.pad(queries, (0, 0, self.size, 0)), F.pad(ids, (self.size, 0))
        found = [own[:, :1]]  # the cache is empty
        for first in range(1, ids.shape[1], CHUNK):
            here = slice(first, first + CHUNK)
            count = queries[:, here].shape[1]
            seen = slice(first - 1, first - 1 + self.size + count)
            scores = self._similarities(queries[:, here], keys[:, seen], torch.full_like(ids[:, 0], first - 1))
            found.append(self._interpolate(own[:, here], scores, self._bands(values[:, seen])))
        return own, torch.cat(found, dim=1)

    def look_up(self, tokens: Tensor, state: CacheState) -> CacheLookup:
        """Read tokens (B, K) and compare the hidden state after each with the cache."""
        inner, keys, values, query, positions = state
        hidden, inner = self.model.advance(tokens, inner)
        queries = unit_vectors(hidden)  # (B, K, D)
        new = torch.cat([query[:, None], queries[:, :-1]], dim=1)
        key_window = self.window.append(keys, new, positions, 1)
        value_window = self.window.append(values, tokens, positions, 1)
        similarities = self._similarities(queries, key_window.entries, positions.clamp(max=self.size))
        read = positions + tokens.shape[1]
        after = CacheState(inner, key_window.cache, value_window.cache, queries[:, -1].clone(), read)
        return CacheLookup(hidden, similarities, self._bands(value_window.entries), after)

    def _bands(self, values: Tensor) -> Tensor:
        """From the tokens (B, M + K) of all entries, the M that each of K queries may use: (B, K, M)."""
        return values.unfold(1, self.size, 1)[:, 1:]

    @property
    def has_program(self) -> bool:
        return isinstance(self.model, Describable) and kernels.has_program(self.model)

    def describe_step(self, program: ProgramBuilder) -> None:
        assert isinstance(self.model, Describable)
        state = cast(CacheState, self.start().state)
        keys = state_size(self.model)
        program.positions = keys + 3
        hidden, logits = program.new(state.query.shape[1]), program.new(self.vocabulary)
        with program.keeping_hidden(hidden), program.part_of_model(0, logits):
            self.model.describe_step(program)
        parameters = [self.inverse_temperature, self.age_decay, self.match_slope, self.bias]
        program.cache_lookup(logits, hidden, keys, parameters, self.window)

    def make_room(self, state: State, count: int) -> State:
        assert isinstance(self.model, Describable)
        before = cast(CacheState, state)
        inner = self.model.make_room(before.inner, count)
        return state if inner is before.inner else before._replace(inner=inner)

    def room(self, state: State) -> float:
        assert isinstance(self.model, Describable)
        return self.model.room(cast(CacheState, state).inner)

    def entry_scores(self, similarities: Tensor) -> Tensor:
        """s_i from ĥ_t · ĥ_i, both (..., M), oldest first."""
        ages = torch.arange(self.size - 1, -1, -1, dtype=similarities.dtype, device=similarities.device)
        empty = similarities.isneginf()  # kept out of the products: −∞ times a gradient of 0 is NaN
        scores = self.inverse_temperature * similarities.masked_fill(empty, 0.0) - self.age_decay * torch.log1p(ages)
        return scores.masked_fill(empty, -math.inf)

    def weight_logit(self, match: Tensor) -> Tensor:
        """The logit of λ from logsumexp_i(s)."""
        return self.match_slope * match + self.bias

    def _similarities(self, queries: Tensor, keys: Tensor, filled: Tensor) -> Tensor:
        """ĥ_t · ĥ_i of queries (B, K, D) with the M keys of (B, M + K, D) just before each of them: (B, K, M)."""
        rows, count, _ = queries.shape
        width = self.size + count
        similar = (queries @ keys.mT).contiguous()  # (B, K, M + K), of which query k uses the columns k + 1 … k + M
        band = similar.as_strided((rows, count, self.size), (count * width, width + 1, 1), storage_offset=1)
        steps = torch.arange(1, count + 1, device=queries.device)
        empty = self.size - (filled[:, None] + steps).clamp(max=self.size)  # (B, K) entries not filled yet
        indices = torch.arange(self.size, device=queries.device)
        return band.masked_fill(indices < empty[..., None], -math.inf)

    def _interpolate(self, logits: Tensor, similarities: Tensor, values: Tensor) -> Tensor:
        """Log-probabilities from the model's logits (B, K, V) and the similarities (B, K, M) of cache entries."""
        scores = self.entry_scores(similarities)
        match = scores.logsumexp(-1, keepdim=True)  # (B, K, 1)
        weights = torch.exp(scores - match)
        cached = torch.zeros_like(logits).scatter_add_(-1, values, weights)
        if self.size < self.vocabulary and not torch.is_grad_enabled():
            return self._interpolate_cached(logits, cached, values, self.weight_logit(match))
        cached = cached.clamp(min=torch.finfo(cached.dtype).tiny)  # the logarithm of 0 has no gradient
        weight = self.weight_logit(match)
        return torch.logaddexp(
            F.log_softmax(logits, dim=-1) + F.logsigmoid(-weight), cached.log() + F.logsigmoid(weight)
        )

    @staticmethod
    def _interpolate_cached(logits: Tensor, cached: Tensor, values: Tensor, weight: Tensor) -> Tensor:
        """The same for a cache smaller than the vocabulary: only the tokens in it need more than the model's part.

        `cached` (B, K, V) are their probabilities, `values` (B, K, M) the tokens; one that is there twice is written
        twice, with the same number.
        """
        found = F.log_softmax(logits, dim=-1).add_(F.logsigmoid(-weight))
        own = found.gather(-1, values)
        both = torch.logaddexp(own, cached.gather(-1, values).log() + F.logsigmoid(weight))
        return found.scatter_(-1, values, both)


def unit_vectors(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)


class NeuralCacheFit(NamedTuple):
    """Nats per token of the held-out text."""

    before: float  # of the model without a cache
    after: float
    predictions: int


class CacheEvidence(NamedTuple):
    """The N predictions that a cache is fitted to."""

    own: Tensor  # (N,) log P_model of the target token
    scores: Tensor  # (N, M) ĥ_t · ĥ_i
    matches: Tensor  # (N, M) whether an entry holds the target token


def fit_neural_cache(
    model: NeuralCache,
    corpus: Corpus,
    *,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> NeuralCacheFit:
    """Fit θ, δ, a and b in place by L-BFGS to text on which the model was not trained.

    With little time before the deadline fewer predictions are used; at the deadline the fit ends where it is.
    """
    predictions = max(CHUNK, MAX_FIT_SCORES // model.size)
    if deadline.remaining < FIT_SECONDS:
        predictions = max(CHUNK, int(predictions * max(0.0, deadline.remaining) / FIT_SECONDS))
        corpus = corpus.first(READ_PER_PREDICTION * predictions)
    evidence = _collect(model, corpus, predictions, seed, progress)
    parameters = [model.inverse_temperature, model.age_decay, model.match_slope, model.bias]
    optimizer = torch.optim.LBFGS(parameters, max_iter=LBFGS_STEPS // LBFGS_ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        scores = model.entry_scores(evidence.scores)
        match = scores.logsumexp(-1)
        cached = scores.masked_fill(~evidence.matches, IMPOSSIBLE).logsumexp(-1) - match
        weight = model.weight_logit(match)
        return -torch.logaddexp(evidence.own + F.logsigmoid(-weight), cached + F.logsigmoid(weight)).mean()

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    for _ in range(LBFGS_ROUNDS):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
        if deadline.passed:
            break
    with torch.no_grad():
        return NeuralCacheFit(-float(evidence.own.mean()), float(loss()), len(evidence.own))


@torch.no_grad()
def _collect(
    model: NeuralCache, corpus: Corpus, predictions: int, seed: int, progress: Callable[[float], None] | None
) -> CacheEvidence:
    """Read the corpus as one stream and keep a random sample of the predictions."""
    length = len(corpus) - 1
    if length < 1:
        raise DataError(f"{len(corpus)} tokens are too few to fit a neural cache; give more validation data")
    draws = torch.rand(length, generator=torch.Generator().manual_seed(seed))
    kept = draws <= draws.kthvalue(min(length, predictions)).values
    found = []
    state = cast(CacheState, model.start().state)
    for first in range(0, length, CHUNK):
        ids = torch.from_numpy(corpus.tokens[first : first + CHUNK + 1].astype(np.int64)).to(model.device)
        lookup = model.look_up(ids[None, :-1], state)
        state = lookup.state
        rows = kept[first : first + CHUNK].nonzero()[:, 0].to(model.device)
        targets = ids[1:][rows]
        own = F.log_softmax(model.model.readout(lookup.hidden[0, rows]), dim=-1).gather(1, targets[:, None])[:, 0]
        found.append(CacheEvidence(own, lookup.scores[0, rows], lookup.values[0, rows] == targets[:, None]))
        if progress is not None:
            progress(min(1.0, (first + CHUNK) / length))
    return CacheEvidence(*(torch.cat(column) for column in zip(*found, strict=True)))
