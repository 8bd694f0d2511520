"""Hybrid models: a mixture of an autoregressive branch and a non-autoregressive one."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.features import Pretrained
from chainrule.interface.base import RECURRENT_RECIPE, Advance, NeuralModel, readable, shift_right
from chainrule.interface.capabilities import BlockPredictor, Branched, FitsStatistics, Lookahead, TokenPairs
from chainrule.interface.conditional import Conditional, EmbeddingConfig, HasAttention
from chainrule.nn.attention import single_head_attention
from chainrule.nn.branches import Branches, TargetPlan
from chainrule.nn.layers import Projection
from chainrule.nn.recurrent import LayerState
from chainrule.nn.recurrent_encoder import RecurrentEncoder, gather_positions
from chainrule.nn.tokens import PairTable, TokenTable
from chainrule.types import Batch, Progress, Sequences, State

GammaName: TypeAlias = Literal["fixed", "learned", "gated"]


class Gamma(nn.Module, ABC):
    """The mixture weight γ ∈ [0, 1] of every prediction."""

    @abstractmethod
    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors of both branches, (..., D), to γ, (...)."""


class FixedGamma(Gamma):
    """A constant."""

    def __init__(self, share: float, width: int) -> None:
        super().__init__()
        self.share = share

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors.new_full(vectors.shape[:-1], self.share)

    def extra_repr(self) -> str:
        return f"{self.share:g}"


class LearnedGamma(Gamma):
    """σ(c): one number for all predictions."""

    def __init__(self, share: float, width: int) -> None:
        super().__init__()
        self.score = nn.Parameter(torch.tensor(_logit(share)))

    def forward(self, vectors: Tensor) -> Tensor:
        return self.score.sigmoid().expand(vectors.shape[:-1])


class GatedGamma(Gamma):
    """σ(w · v + c) with v the vectors of both branches; w is initialised to zero."""

    def __init__(self, share: float, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.tensor(_logit(share)))

    def forward(self, vectors: Tensor) -> Tensor:
        return torch.sigmoid(vectors @ self.weight + self.bias)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


GAMMAS: dict[GammaName, Callable[[float, int], Gamma]] = {
    "fixed": FixedGamma,
    "learned": LearnedGamma,
    "gated": GatedGamma,
}


def log_shares(gamma: Tensor) -> Tensor:
    """(...) to (..., 2): log (1 − γ) and log γ.

    No share is below the smallest number there is, e⁻⁸⁷ in single precision, so that neither a logarithm nor its
    derivative is infinite. Beside a share of 1 that is nothing.
    """
    shares = torch.stack([1 - gamma, gamma], -1)
    return shares.clamp(min=torch.finfo(shares.dtype).tiny).log()


def mixed(first: Tensor, second: Tensor, shares: Tensor) -> Tensor:
    """From log P₁ and log P₂, (..., V) each, and `log_shares` (..., 2) to log ((1 − γ) P₁ + γ P₂)."""
    return torch.logaddexp(first + shares[..., :1], second + shares[..., 1:])


class HybridSettings(ModelConfig):
    """Settings of hybrids for both tasks."""

    width: int = Field(256, ge=2, multiple_of=2, description="width of the embeddings and of all layers")
    layers: int = Field(2, ge=1, description="recurrent layers of the encoder and of each branch")
    gate: GammaName = Field("gated", description="γ is fixed, one learned number, or gated by the context")
    gamma: float = Field(
        0.2, ge=0, le=1, description="γ, the weight of the non-autoregressive branch, or its initial value"
    )
    branch_loss: float = Field(0.5, ge=0, description="weight of each branch's own loss in training")
    min_mass: float = Field(0.1, ge=0, description="θ: γ is reduced at positions with less source mass than this")
    features: str | None = Field(None, description="folder of a pretrained BERT or GPT-2 that encodes the source")
    fine_tune: bool = Field(False, description="fine-tune the pretrained model")
    features_fingerprint: str | None = Field(None, description="fingerprint of the pretrained model; set by training")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout on embeddings, between layers and before the readout")
    tied: bool = Field(True, description="tie the readout to the target embeddings")

    @model_validator(mode="after")
    def _gamma_can_move(self) -> Self:
        if self.gate != "fixed" and self.gamma in (0, 1):
            raise ValueError(
                f"gamma {self.gamma:g} has no gradient, so gate {self.gate!r} cannot learn from it; set gamma=0.2 or "
                "gate=fixed"
            )
        return self


class HybridModel(Branched, BlockPredictor, NeuralModel):
    """P(y_t | y_<t, s) = (1 − γ_t) P_AR(y_t | y_<t, s) + γ_t P_NAR(y_t | t, s), for any source s.

    With the vectors a_t and n_t of `nn.branches`, E the token table and b its bias,

        P_AR = softmax(E a_t + b),    P_NAR = softmax(E n_t + b),    γ_t = γ min(1, mass_t / θ)

    and γ fixed, learned, or σ(w · [a_t; n_t] + c). n_t and mass_t do not depend on the target, and a_t depends only on
    y_<t, so P is exact, normalised and causal. Past the last non-autoregressive position γ_t is 0.

    The likelihood of the mixture alone would train only the branch that predicts better. So training adds `branch_loss`
    times the loss of each branch; the non-autoregressive branch stays good enough to generate drafts by itself.
    """

    recipe: ClassVar[Mapping[str, Any]] = RECURRENT_RECIPE
    config: HybridSettings

    def __init__(self, config: HybridSettings, tokens: TokenTable, *, source_vocabulary: int) -> None:
        super().__init__(config)
        width = config.width
        self.tokens = tokens
        self.pretrained: Pretrained | None = None
        if config.features is not None:
            self.pretrained = Pretrained.open_matching(
                config.features,
                vocabulary=source_vocabulary,
                fine_tune=config.fine_tune,
                fingerprint=config.features_fingerprint,
            )
            self.config = config.model_copy(update={"features_fingerprint": self.pretrained.fingerprint})
            self.narrow = nn.Linear(self.pretrained.width, width)
        else:
            self.encoder = RecurrentEncoder("lstm", config.layers, width, bidirectional=True, dropout=config.dropout)
        self.branches = Branches(width, config.layers, min_mass=config.min_mass, dropout=config.dropout)
        self.gamma = GAMMAS[config.gate](config.gamma, 2 * width)

    @property
    def branch_loss(self) -> float:
        return self.config.branch_loss

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.tokens.tables()

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self.tokens.bias.copy_(log_frequencies)

    def branch_log_probs(self, hidden: Tensor) -> Tensor:
        """(..., 2D + 2) to (2, ..., V): log P_AR and log P_NAR."""
        autoregressive, parallel, _ = self._parts(hidden)
        return F.log_softmax(self.tokens.readout(torch.stack([autoregressive, parallel])), dim=-1)

    def mix(self, log_probs: Tensor, hidden: Tensor) -> Tensor:
        return mixed(log_probs[0], log_probs[1], self._parts(hidden)[2])

    def readout(self, hidden: Tensor) -> Tensor:
        return self.mix(self.branch_log_probs(hidden), hidden)

    def shares(self, hidden: Tensor) -> Tensor:
        """γ_t, (..., 2D + 2) to (...)."""
        return self._parts(hidden)[2][..., 1].exp()

    def lookahead_logits(self, vectors: Tensor) -> Tensor:
        return self.tokens.readout(vectors)

    def with_gamma(self, gamma: float) -> Self:
        """A copy of the model with a fixed γ."""
        twin = copy.deepcopy(self)
        twin.config = self.config.model_copy(update={"gate": "fixed", "gamma": gamma})
        twin.gamma = FixedGamma(gamma, 2 * self.config.width)
        return twin

    # For the two tasks

    @abstractmethod
    def embed_source(self, ids: Tensor) -> Tensor:
        """Source ids of any shape to vectors (..., D); used without a pretrained model."""

    def read_source(self, source: Sequences) -> Tensor:
        """m, (B, S, D); zeros past the lengths."""
        if self.pretrained is not None:
            return cast(Tensor, self.narrow(self.pretrained(source))) * source.mask[..., None]
        embedded = self.branches.dropout(self.embed_source(readable(source).t()))  # (S, B, D): time first
        return cast(Tensor, self.encoder(embedded, source.lengths).outputs).transpose(0, 1)

    def joined(self, autoregressive: Tensor, parallel: Tensor, weights: Tensor) -> Tensor:
        """Hidden vectors (B, K, 2D + 2) from a and n, (B, K, D) each, and the weights of their positions (B, K)."""
        both = torch.cat([autoregressive, parallel], -1)
        return torch.cat([both, log_shares(self.gamma(both) * weights)], -1)

    def _parts(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        width = self.config.width
        autoregressive, parallel, log_shares = hidden.tensor_split([width, 2 * width], dim=-1)
        return autoregressive, parallel, log_shares


class HybridConfig(HybridSettings, EmbeddingConfig):
    """Settings of the hybrid translation model."""

    length_ratio: float = Field(1.5, ge=0, description="non-autoregressive positions per source token,")
    length_margin: int = Field(8, ge=1, description="plus this many")


class HybridState(NamedTuple):
    plan: TargetPlan
    layers: tuple[LayerState, ...]
    positions: Tensor  # (B,) tokens read so far, including BOS


class Hybrid(Conditional, HasAttention, FitsStatistics, HybridModel):
    """Translation by a mixture of an autoregressive and a non-autoregressive branch, with exact likelihood.

    After the notes' "non-autoregressive sequence-to-sequence model for autoregressive language modelling". The source
    is encoded as m by a bidirectional LSTM or a pretrained model, and `nn.branches` allocates m to P = ⌈1.5 S⌉ + 8
    positions. P depends on the source alone, so it reveals nothing about the target's length. A GRU with attention
    (Bahdanau et al., 2015; Luong et al., 2015) reads y_<t, from h_0 = tanh(V mean(m) + v). A bidirectional LSTM reads
    the allocated contexts of all positions in parallel. `HybridModel` mixes their predictions.
    """

    Config = HybridConfig
    task = "translation"
    config: HybridConfig

    def __init__(self, config: HybridConfig) -> None:
        rows = config.own_source_rows if config.features is None else None
        tokens = PairTable(config.vocabulary, config.width, source_vocabulary=rows, tied=config.tied)
        super().__init__(config, tokens, source_vocabulary=config.source_vocabulary)
        self.begin = Projection(config.width, config.layers * config.width, bias=True)
        nn.init.normal_(self.begin.weight, std=config.width**-0.5)

    @property
    def source_context(self) -> int | None:
        return None if self.pretrained is None else self.pretrained.context

    def embed_source(self, ids: Tensor) -> Tensor:
        return cast(PairTable, self.tokens).embed_source(ids)

    def fit_statistics(self, train: TokenPairs, *, held_out: TokenPairs = (), progress: Progress | None = None) -> None:
        """Compute the frozen features of the training sources once and cache them on disk."""
        if self.pretrained is not None and not self.pretrained.fine_tune:
            fitting = (source for source, _ in train if len(source) <= self.pretrained.context)
            self.pretrained.precompute(fitting)

    def attention_maps(self, batch: Batch) -> Tensor:
        tokens = shift_right(readable(batch.target), bos=self.bos)
        plan, layers, positions = self.initial(batch.source, len(tokens))
        where = _next(positions, tokens.shape[1])
        hidden, _ = self.branches.decode(self.tokens.embed(tokens), gather_positions(plan.contexts, where), layers)
        return single_head_attention(plan.source, plan.lengths).weights(hidden[:, None])[:, 0]

    def initial(self, source: Sequences | None, batch_size: int) -> HybridState:
        plan = self.plan(self.require_source(source))
        mean = plan.source.sum(1) / plan.lengths[:, None]
        layers = tuple((state,) for state in self.begin(mean).tanh().chunk(self.config.layers, dim=1))
        return HybridState(plan, layers, torch.zeros_like(plan.lengths))

    def plan(self, source: Sequences) -> TargetPlan:
        """The plan of the target, which depends on the source alone."""
        return self.branches.plan(self.read_source(source), source.lengths, self._counts(source))

    def lookahead(self, source: Sequences | None, texts: Sequence[Sequence[int]]) -> Lookahead:
        given = self.require_source(source)
        return Lookahead(self.plan(given).drafts, [0] * len(texts), self._counts(given).tolist())

    def _counts(self, source: Sequences) -> Tensor:
        """(B,) number of non-autoregressive positions."""
        return (source.lengths * self.config.length_ratio).ceil().long() + self.config.length_margin

    def advance(self, tokens: Tensor, state: State) -> Advance:
        plan, layers, positions = cast(HybridState, state)
        where = _next(positions, tokens.shape[1])
        hidden, layers = self.branches.decode(self.tokens.embed(tokens), gather_positions(plan.contexts, where), layers)
        attended = self.branches.cross_attend(hidden, plan.source, plan.lengths)
        weights = gather_positions(plan.weights[..., None], where)[..., 0]
        hidden = self.joined(attended, gather_positions(plan.drafts, where), weights)
        return Advance(hidden, HybridState(plan, layers, positions + tokens.shape[1]))


def _next(positions: Tensor, count: int) -> Tensor:
    """(B, K): the positions that the next input tokens predict."""
    return positions[:, None] + torch.arange(count, device=positions.device)
