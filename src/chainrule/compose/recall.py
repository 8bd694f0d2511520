"""A neural model that also remembers the words of this very text, by the states in which it met them.

Shape letters: B rows, K tokens in a chunk, M memory, V vocabulary, D width.
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

from chainrule.compose.composite import build_part, part_settings
from chainrule.config import ModelConfig
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError, DataError
from chainrule.interface.base import AutoregressiveModel, NeuralModel, readable
from chainrule.interface.capabilities import Composite
from chainrule.types import Batch, Sequences, State, Step

CHUNK = 256  # tokens that look at the memory at once
EVIDENCE = 1 << 22  # numbers that a memory is fitted to
STEPS = 30
IMPOSSIBLE = -1e4  # nats: of an entry that does not count; −∞ would have no gradient


class RecallConfig(ModelConfig):
    model: dict[str, Any] = Field(description="the model that remembers: its family and that family's settings")
    memory: int = Field(2000, ge=1, description="the last so many tokens are remembered")


class RecallState(NamedTuple):
    inner: State
    keys: Tensor  # (B, M, D) the directions of the hidden vectors before the last tokens, oldest first
    values: Tensor  # (B, M) those tokens
    asking: Tensor  # (B, D) the direction of the hidden vector that predicts the next token
    filled: Tensor  # (B,) how many of the entries are real; they are the last ones


def can_recall(model: AutoregressiveModel) -> TypeIs[NeuralModel]:
    """Whether a model's hidden vectors can be compared across a text: it has some, and reads without a limit."""
    return isinstance(model, NeuralModel) and model.context is None


class Glance(NamedTuple):
    """Predictions in the making."""

    hidden: Tensor  # (B, K, D)
    scores: Tensor  # (B, K, M) ĥ_t · ĥ_i with the entries that each prediction sees, oldest first; −∞: none there yet
    values: Tensor  # (B, K, M) the tokens of those entries
    state: RecallState


class Recall(AutoregressiveModel, Composite):
    """A neural model with a memory of the text that it reads: what came before in states like this may come again.

    With h_t the hidden vector that predicts x_t, ĥ its direction and the memory the last M pairs (ĥ_i, x_i),

        s_i = θ ĥ_t · ĥ_i − δ log(t − i),    P_memory(w) = Σ_i softmax_i(s) [x_i = w],    λ_t = σ(a logsumexp_i(s) + b)
        P(x_t = w | x_<t) = (1 − λ_t) P_model(w) + λ_t P_memory(w)

    The continuous cache (Grave, Joulin & Usunier, 2017), in which memories fade with age, and with a weight λ that
    grows with how familiar the state is, as a pointer's sentinel does (Merity et al., 2017). θ, δ, a and b are fitted
    to held-out text; the model itself stays as it is.
    """

    Config = RecallConfig
    task = "language"
    config: RecallConfig

    def __init__(self, config: RecallConfig, model: AutoregressiveModel | None = None) -> None:
        super().__init__(config)
        model = model or build_part(config.model, config.vocabulary, where="model.model")
        if not can_recall(model):
            raise ConfigError(
                f"{config.model['family']!r} cannot recall: it takes a neural family that reads without a limit, "
                "such as recurrent or causal_conv"
            )
        self.model: NeuralModel = model
        self.memory = config.memory
        self.sharpness = nn.Parameter(torch.tensor(8.0))  # θ
        self.fading = nn.Parameter(torch.tensor(0.5))  # δ
        self.familiarity = nn.Parameter(torch.tensor(0.3))  # a
        self.bias = nn.Parameter(torch.tensor(-4.0))  # b

    @classmethod
    def of(cls, model: AutoregressiveModel, *, memory: int = 2000) -> Self:
        """A model that is there already, with a memory."""
        settings = part_settings(model)
        return cls(RecallConfig(vocabulary=model.vocabulary, model=settings, memory=memory), model).eval()

    @property
    def components(self) -> Sequence[AutoregressiveModel]:
        return (self.model,)

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        rows = batch_size if source is None else source.ids.shape[0]
        bos = torch.full((rows, 1), self.model.bos, dtype=torch.int64, device=self.device)
        hidden, inner = self.model.advance(bos, self.model.initial(None, rows))
        asking = direction(hidden[:, -1])
        state = RecallState(
            inner,
            asking.new_zeros(rows, self.memory, asking.shape[-1]),
            bos.new_zeros(rows, self.memory),
            asking,
            bos.new_zeros(rows),
        )
        return Step(self.model.readout(hidden), state)

    def extend(self, tokens: Tensor, state: State) -> Step:
        found = []
        for chunk in torch.split(tokens, CHUNK, dim=1):  # what a chunk sees of the memory is (B, K, M)
            glance = self.look(chunk, cast(RecallState, state))
            found.append(self._combine(self.model.readout(glance.hidden), glance.scores, glance.values))
            state = glance.state
        return Step(torch.cat(found, dim=1), state)

    def logits(self, batch: Batch) -> Tensor:
        ids = readable(batch.target)
        hidden = self.model.hidden(batch)  # (B, T, D), of which [:, t] predicts ids[:, t] and is later recalled with it
        queries = direction(hidden)
        own = self.model.readout(hidden)
        keys, values = F.pad(queries, (0, 0, self.memory, 0)), F.pad(ids, (self.memory, 0))
        found = [own[:, :1]]  # nothing can be recalled yet
        for first in range(1, ids.shape[1], CHUNK):
            here = slice(first, first + CHUNK)
            count = queries[:, here].shape[1]
            seen = slice(first - 1, first - 1 + self.memory + count)
            scores = self._scores(queries[:, here], keys[:, seen], torch.full_like(ids[:, 0], first - 1))
            found.append(self._combine(own[:, here], scores, self._seen(values[:, seen])))
        return torch.cat(found, dim=1)

    def look(self, tokens: Tensor, state: RecallState) -> Glance:
        """Read tokens (B, K), and see which entries of the memory each prediction after them is like."""
        inner, keys, values, asking, filled = state
        hidden, inner = self.model.advance(tokens, inner)
        queries = direction(hidden)  # (B, K, D)
        keys = torch.cat([keys, asking[:, None], queries[:, :-1]], dim=1)  # (B, M + K, D)
        values = torch.cat([values, tokens], dim=1)
        after = RecallState(
            inner,
            keys[:, -self.memory :].clone(),
            values[:, -self.memory :].clone(),
            queries[:, -1].clone(),
            (filled + tokens.shape[1]).clamp(max=self.memory),
        )
        return Glance(hidden, self._scores(queries, keys, filled), self._seen(values), after)

    def _seen(self, values: Tensor) -> Tensor:
        """Tokens (B, M + K) of entries to those that each of K predictions sees: (B, K, M)."""
        return values.unfold(1, self.memory, 1)[:, 1:]

    def weigh(self, scores: Tensor) -> Tensor:
        """s_i from ĥ_t · ĥ_i, both (..., M), oldest first."""
        ages = torch.arange(self.memory - 1, -1, -1, device=scores.device)
        unseen = scores.isneginf()  # kept out of the products, since −∞ times a gradient of 0 is not a number
        weighed = self.sharpness * scores.masked_fill(unseen, 0.0) - self.fading * torch.log1p(ages)
        return weighed.masked_fill(unseen, -math.inf)

    def share(self, familiar: Tensor) -> Tensor:
        """The logit of λ."""
        return self.familiarity * familiar + self.bias

    def _scores(self, queries: Tensor, keys: Tensor, filled: Tensor) -> Tensor:
        """ĥ_t · ĥ_i of queries (B, K, D) with the M newest of the keys (B, M + K, D) that each may see: (B, K, M)."""
        rows, count, _ = queries.shape
        width = self.memory + count
        similar = (queries @ keys.mT).contiguous()  # (B, K, M + K), of which query k sees the columns k + 1 … k + M
        band = similar.as_strided((rows, count, self.memory), (count * width, width + 1, 1), storage_offset=1)
        steps = torch.arange(1, count + 1, device=queries.device)
        blank = self.memory - (filled[:, None] + steps).clamp(max=self.memory)  # (B, K) entries never written
        places = torch.arange(self.memory, device=queries.device)
        return band.masked_fill(places < blank[..., None], -math.inf)

    def _combine(self, logits: Tensor, scores: Tensor, values: Tensor) -> Tensor:
        """The model's logits (B, K, V) and the entries' scores (B, K, M) to log-probabilities."""
        weighed = self.weigh(scores)
        familiar = weighed.logsumexp(-1, keepdim=True)  # (B, K, 1)
        weights = torch.exp(weighed - familiar)
        recalled = torch.zeros_like(logits).scatter_add_(-1, values, weights)
        recalled = recalled.clamp(min=torch.finfo(recalled.dtype).tiny)  # the logarithm of 0 has no gradient
        share = self.share(familiar)
        return torch.logaddexp(
            F.log_softmax(logits, dim=-1) + F.logsigmoid(-share), recalled.log() + F.logsigmoid(share)
        )


def direction(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1)


class RecallFit(NamedTuple):
    """How a memory was fitted; nats per token of the held-out text."""

    before: float  # the model alone
    after: float
    predictions: int


class Sightings(NamedTuple):
    """All that fitting a memory needs to know of N predictions that came true."""

    own: Tensor  # (N,) log P_model of the token that came
    scores: Tensor  # (N, M) ĥ_t · ĥ_i
    matches: Tensor  # (N, M) whether an entry holds that token


def fit_recall(
    model: Recall, corpus: Corpus, *, seed: int = 0, progress: Callable[[float], None] | None = None
) -> RecallFit:
    """Fit θ, δ, a and b in place, by L-BFGS, to text that the model was not trained on."""
    seen = _gather(model, corpus, seed, progress)
    parameters = [model.sharpness, model.fading, model.familiarity, model.bias]
    optimizer = torch.optim.LBFGS(parameters, max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        weighed = model.weigh(seen.scores)
        familiar = weighed.logsumexp(-1)
        recalled = weighed.masked_fill(~seen.matches, IMPOSSIBLE).logsumexp(-1) - familiar
        share = model.share(familiar)
        return -torch.logaddexp(seen.own + F.logsigmoid(-share), recalled + F.logsigmoid(share)).mean()

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return RecallFit(-float(seen.own.mean()), float(loss()), len(seen.own))


@torch.no_grad()
def _gather(model: Recall, corpus: Corpus, seed: int, progress: Callable[[float], None] | None) -> Sightings:
    """Read a corpus from its start, documents one after the other, and keep as many predictions as fit, at random."""
    length = len(corpus) - 1
    if length < 1:
        raise DataError(f"{len(corpus)} tokens are too few to fit a memory; give more validation data")
    chances = torch.rand(length, generator=torch.Generator().manual_seed(seed))
    kept = chances <= chances.kthvalue(min(length, max(CHUNK, EVIDENCE // model.memory))).values
    found = []
    state = cast(RecallState, model.start().state)
    for first in range(0, length, CHUNK):
        ids = torch.from_numpy(corpus.tokens[first : first + CHUNK + 1].astype(np.int64)).to(model.device)
        glance = model.look(ids[None, :-1], state)
        state = glance.state
        rows = kept[first : first + CHUNK].nonzero()[:, 0].to(model.device)
        targets = ids[1:][rows]
        own = F.log_softmax(model.model.readout(glance.hidden[0, rows]), dim=-1).gather(1, targets[:, None])[:, 0]
        found.append(Sightings(own, glance.scores[0, rows], glance.values[0, rows] == targets[:, None]))
        if progress is not None:
            progress(min(1.0, (first + CHUNK) / length))
    return Sightings(*(torch.cat(column) for column in zip(*found, strict=True)))
