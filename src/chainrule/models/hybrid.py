"""Hybrid models: a mixture of an autoregressive branch and a non-autoregressive one."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.features.source import FeaturesConfig, SourceFeatures
from chainrule.interface.base import Advance, NeuralModel, readable, shift_right
from chainrule.interface.capabilities import BlockPredictor, Branched, FitsStatistics, Lookahead, TokenPairs
from chainrule.interface.conditional import Conditional, EmbeddingConfig, HasAttention
from chainrule.kernels.instructions import Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.models.transformer import (
    CrossAttention,
    EncoderMemory,
    Transformer,
    TransformerConfig,
    TransformerEncoder,
)
from chainrule.nn.attention import CrossAttend, RecordingAttention, require_heads
from chainrule.nn.branches import ParallelBranch, RecurrentBlock, TargetPlan
from chainrule.nn.dropout import Dropout
from chainrule.nn.gamma import GAMMAS, FixedGamma, GammaName, log_shares, mixed
from chainrule.nn.layers import Projection, output_projection, rms_norm
from chainrule.nn.recurrent import LayerState
from chainrule.nn.recurrent_encoder import gather_positions
from chainrule.nn.tokens import PairTable, TokenTable
from chainrule.types import Batch, Progress, Sequences, State


class HybridSettings(FeaturesConfig):
    """Settings of hybrids for both tasks."""

    width: int = Field(128, ge=2, multiple_of=2, description="width of the embeddings and of all layers")
    layers: int = Field(2, ge=1, description="blocks of the autoregressive branch: GRU, attention and MLP")
    recurrent_layers: int | None = Field(
        None, ge=1, description="blocks that have a GRU, from the first on; none: all of them"
    )
    parallel_layers: int = Field(1, ge=1, description="LSTM layers of the non-autoregressive branch")
    heads: int = Field(4, ge=1, description="attention heads per block")
    mlp_ratio: int = Field(4, ge=1, description="width of the MLP's hidden layer divided by width")
    gate: GammaName = Field("gated", description="γ is fixed, one learned number, or gated by the context")
    gamma: float = Field(
        0.2, ge=0, le=1, description="γ, the weight of the non-autoregressive branch, or its initial value"
    )
    branch_loss: float = Field(0.5, ge=0, description="weight of each branch's own loss in training")
    branch_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="share of the pairs, or of the steps, for which training computes the non-autoregressive branch",
    )
    min_mass: float = Field(0.1, ge=0, description="θ: γ is reduced at positions with less source mass than this")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout on embeddings, attention and residual branches")
    tied: bool = Field(True, description="tie the readout to the target embeddings")

    @property
    def attention(self) -> TransformerConfig:
        """The settings of the `transformer` whose encoder and attention are used."""
        return TransformerConfig(
            vocabulary=self.vocabulary,
            source_vocabulary=self.vocabulary,
            width=self.width,
            heads=self.heads,
            mlp_ratio=self.mlp_ratio,
            dropout=self.dropout,
        )

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        require_heads(self.width, self.heads)
        return self

    @model_validator(mode="after")
    def _gamma_can_move(self) -> Self:
        if self.gate != "fixed" and self.gamma in (0, 1):
            raise ValueError(
                f"gamma {self.gamma:g} has no gradient, so gate {self.gate!r} cannot learn from it; set gamma=0.2 or "
                "gate=fixed"
            )
        return self


class PlanSlots(NamedTuple):
    """The state tensors of a plan, and how a position is turned into an index of it."""

    drafts: int
    mass: int
    counts: int
    offset: int = 0
    modulus: int = 0  # none


class HybridModel(Branched, BlockPredictor, NeuralModel, Compilable):
    """P(y_t | y_<t, s) = (1 − γ_t) P_AR(y_t | y_<t, s) + γ_t P_NAR(y_t | t, s), for any source s.

    With the vectors a_t and n_t of `nn.branches`, E the token table and b its bias,

        P_AR = softmax(E a_t + b),    P_NAR = softmax(E n_t + b),    γ_t = γ min(1, mass_t / θ)

    and γ fixed, learned, or σ(w · [a_t; n_t] + c). n_t and mass_t do not depend on the target, and a_t depends only on
    y_<t, so P is exact, normalised and causal. Past the last non-autoregressive position γ_t is 0.

    The likelihood of the mixture alone would train only the branch that predicts better. So training adds `branch_loss`
    times the loss of each branch; the non-autoregressive branch stays good enough to generate drafts by itself.
    """

    config: HybridSettings

    def __init__(self, config: HybridSettings, tokens: TokenTable, *, source_vocabulary: int) -> None:
        super().__init__(config)
        width = config.width
        self.tokens = tokens
        self.features = SourceFeatures.of(config, source_vocabulary, width)
        if self.features is None:
            self.encoder = self.new_encoder()
        else:
            self.config = config.model_copy(update=self.features.settings)
        self.parallel = ParallelBranch(width, config.parallel_layers, dropout=config.dropout)
        self.use_context = output_projection(width, width) if self.reads_contexts else None  # U: of c_t
        recurrent = config.layers if config.recurrent_layers is None else config.recurrent_layers
        self.blocks = nn.ModuleList(
            RecurrentBlock(
                width,
                recurrent=number < recurrent,
                attention=self.new_attention(recurrent=number < recurrent),
                mlp_ratio=config.mlp_ratio,
                dropout=config.dropout,
            )
            for number in range(config.layers)
        )
        self.dropout = Dropout(config.dropout)
        self.gamma = GAMMAS[config.gate](config.gamma, 2 * width)

    @property
    def branch_loss(self) -> float:
        return self.config.branch_loss

    @property
    def branch_share(self) -> float:
        return self.config.branch_share

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.tokens.tables()

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self.tokens.bias.copy_(log_frequencies)

    def branch_logits(self, hidden: Tensor, branch: int) -> Tensor:
        return self.tokens.readout(self._parts(hidden)[branch])

    def has_second(self, hidden: Tensor) -> Tensor:
        return (self._parts(hidden)[1] != 0).any(-1)

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

    @property
    def fixed_gamma(self) -> float | None:
        return self.gamma.share if isinstance(self.gamma, FixedGamma) else None

    @property
    def one_pass(self) -> bool:
        return self.fixed_gamma == 1

    def with_gamma(self, gamma: float) -> Self:
        if not 0 <= gamma <= 1:
            raise ConfigError(f"gamma {gamma:g} is not a weight; give a number from 0 to 1")
        twin = copy.deepcopy(self)
        twin.config = self.config.model_copy(update={"gate": "fixed", "gamma": gamma})
        twin.gamma = FixedGamma(gamma, 2 * self.config.width)
        return twin

    # For the two tasks

    @abstractmethod
    def new_encoder(self) -> nn.Module:
        """The encoder of the source; used without a pretrained model."""

    @abstractmethod
    def new_attention(self, *, recurrent: bool) -> nn.Module | None:
        """The attention of a block of the autoregressive branch, which has a GRU if it is `recurrent`."""

    @property
    def reads_contexts(self) -> bool:
        """Whether the autoregressive branch reads the allocated contexts."""
        return True

    @abstractmethod
    def encode(self, source: Sequences) -> Tensor:
        """m, (B, S, D), by the encoder; zeros past the lengths."""

    def read_source(self, source: Sequences) -> Tensor:
        """m, (B, S, D); zeros past the lengths."""
        return self.encode(source) if self.features is None else cast(Tensor, self.features(source))

    def new_plan(self, source: Sequences, counts: Tensor) -> TargetPlan:
        """The plan for `counts` (B,) target positions; in training only a random share of the rows has drafts."""
        rows = None
        if self.training and self.branch_share < 1:
            rows = (torch.rand(len(counts), device=self.device) < self.branch_share).nonzero()[:, 0]
        return self.parallel.plan(self.read_source(source), source.lengths, counts, rows)

    def read_target(
        self,
        embedded: Tensor,
        contexts: Tensor | None,
        states: Sequence[LayerState],
        attends: Sequence[Callable[[Tensor], Tensor] | None],
    ) -> tuple[Tensor, tuple[LayerState, ...]]:
        """A (B, K, D) and the states after embedded tokens (B, K, D), each with the context of the next one."""
        x = embedded
        if self.use_context is not None and contexts is not None:
            x = x + self.use_context(contexts)
        x = self.dropout(x)
        after = []
        for block, before, attend in zip(self.stack, states, attends, strict=True):
            x, state = block(x, before, attend)
            after.append(state)
        return rms_norm(x), tuple(after)

    @property
    def stack(self) -> Sequence[RecurrentBlock]:
        return cast(Sequence[RecurrentBlock], self.blocks)

    def joined(self, autoregressive: Tensor, plan: TargetPlan, where: Tensor) -> Tensor:
        """Hidden vectors (B, K, 2D + 2) from a (B, K, D) and the plan at the positions (B, K) that they predict."""
        both = torch.cat([autoregressive, gather_positions(plan.drafts, where)], -1)
        mass = gather_positions(plan.mass[..., None], where)[..., 0]
        return torch.cat([both, log_shares(self.gamma(both) * self._participation(mass))], -1)

    def describe_mixture(self, program: ProgramBuilder, autoregressive: Vector, plan: PlanSlots) -> None:
        """`joined` and `readout` in a compiled step, from a."""
        if self.fixed_gamma == 0 and program.hidden is None:
            out = program.result()
            self.tokens.describe_logits(program, autoregressive, out)
            program.log_softmax(out)
            return
        where = {"counts": plan.counts, "offset": plan.offset, "modulus": plan.modulus}
        parallel = program.row_at_position(plan.drafts, autoregressive.size, **where)
        mass = program.row_at_position(plan.mass, 1, **where)
        gamma = self.gamma.describe(program, program.concatenate(autoregressive, parallel))
        threshold = 0.0 if self.one_pass else self.config.min_mass
        shares = program.log_shares(gamma, mass, threshold)
        log_probs = [program.new(self.vocabulary) for _ in range(2)]
        for hidden, out in zip((autoregressive, parallel), log_probs, strict=True):
            self.tokens.describe_logits(program, hidden, out)
            program.log_softmax(out)
        program.keep_hidden(autoregressive, parallel, shares)
        program.combine(log_probs, shares, mixture=True)

    def _participation(self, mass: Tensor) -> Tensor:
        """The factor of γ at positions with this mass: min(1, mass / θ); at γ = 1, whether there is a position."""
        if self.one_pass or not self.config.min_mass:
            return (mass > 0).to(mass)
        return (mass / self.config.min_mass).clamp(max=1)

    def _parts(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        width = self.config.width
        autoregressive, parallel, log_shares = hidden.tensor_split([width, 2 * width], dim=-1)
        return autoregressive, parallel, log_shares


class HybridConfig(HybridSettings, EmbeddingConfig):
    """Settings of the hybrid translation model."""

    branch_loss: float = Field(0.1, ge=0, description="weight of each branch's own loss in training")
    encoder_layers: int = Field(3, ge=1, description="encoder blocks")
    context: int = Field(256, ge=1, description="maximum number of source tokens")
    length_ratio: float = Field(1.5, ge=0, description="non-autoregressive positions per source token,")
    length_margin: int = Field(8, ge=1, description="plus this many")

    @property
    def attention(self) -> TransformerConfig:
        return super().attention.model_copy(update={"encoder_layers": self.encoder_layers, "context": self.context})


class HybridState(NamedTuple):
    plan: TargetPlan
    memory: EncoderMemory
    layers: tuple[LayerState, ...]
    positions: Tensor  # (B,) tokens read so far, including BOS


class Hybrid(Conditional, HasAttention, FitsStatistics, HybridModel):
    """Translation by a mixture of an autoregressive and a non-autoregressive branch, with exact likelihood.

    After the notes' "non-autoregressive sequence-to-sequence model for autoregressive language modelling". The source
    is encoded as m by the encoder of `transformer` or a pretrained model, and `nn.branches` allocates m to
    P = ⌈1.5 S⌉ + 8 positions. P depends on the source alone, so it reveals nothing about the target's length. GRUs with
    attention to m read y_<t, each from h_0 = tanh(V mean(m) + v). A bidirectional LSTM reads the allocated contexts of
    all positions in parallel. `HybridModel` mixes their predictions.
    """

    Config = HybridConfig
    task = "translation"
    recipe: ClassVar[Mapping[str, Any]] = Transformer.recipe
    config: HybridConfig

    def __init__(self, config: HybridConfig) -> None:
        tokens = PairTable.of(config, config.width, with_source=config.features is None)
        super().__init__(config, tokens, source_vocabulary=config.source_vocabulary)
        self.begin = Projection(config.width, config.layers * config.width, bias=True)
        nn.init.normal_(self.begin.weight, std=config.width**-0.5)

    def new_encoder(self) -> nn.Module:
        return TransformerEncoder(self.config.attention)

    def new_attention(self, *, recurrent: bool) -> nn.Module:
        return CrossAttention(self.config.attention)

    @property
    def source_context(self) -> int | None:
        return self.config.context if self.features is None else self.features.context

    def encode(self, source: Sequences) -> Tensor:
        embedded = cast(PairTable, self.tokens).embed_source(readable(source))
        return cast(Tensor, self.encoder(embedded, source.lengths)) * source.mask[..., None]

    def fit_statistics(self, train: TokenPairs, *, held_out: TokenPairs = (), progress: Progress | None = None) -> None:
        if self.features is not None:
            self.features.precompute(train, progress)

    def attention_maps(self, batch: Batch) -> Tensor:
        tokens = shift_right(readable(batch.target), bos=self.bos)
        state = self.initial(batch.source, len(tokens))
        layers = [RecordingAttention(layer) for layer in state.memory.cross_attention(self._attention_dropout)]
        self._read(tokens, state, layers)
        return torch.stack([weights for layer in layers for weights in layer.recorded]).mean((0, 2))

    def initial(self, source: Sequences | None, batch_size: int) -> HybridState:
        plan = self.plan(self.require_source(source))
        mean = plan.source.sum(1) / plan.lengths[:, None]
        layers = tuple((state,) for state in self.begin(mean).tanh().chunk(self.config.layers, dim=1))
        keys, values = zip(
            *(cast(CrossAttention, block.attention).key_values(plan.source) for block in self.stack), strict=True
        )
        return HybridState(plan, EncoderMemory(keys, values, plan.lengths), layers, torch.zeros_like(plan.lengths))

    def plan(self, source: Sequences) -> TargetPlan:
        """The plan of the target, which depends on the source alone."""
        return self.new_plan(source, self._counts(source))

    def lookahead(self, source: Sequences | None, texts: Sequence[Sequence[int]]) -> Lookahead:
        given = self.require_source(source)
        plan = self.plan(given)
        generated = plan.mass >= self.config.min_mass
        return Lookahead(plan.drafts, [0] * len(texts), self._counts(given).tolist(), generated)

    def _counts(self, source: Sequences) -> Tensor:
        """(B,) number of non-autoregressive positions."""
        return (source.lengths * self.config.length_ratio).ceil().long() + self.config.length_margin

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before = cast(HybridState, state)
        attended, layers = self._read(tokens, before, before.memory.cross_attention(self._attention_dropout))
        where = _next(before.positions, tokens.shape[1])
        hidden = self.joined(attended, before.plan, where)
        return Advance(hidden, before._replace(layers=layers, positions=before.positions + tokens.shape[1]))

    def _read(
        self, tokens: Tensor, state: HybridState, attention: Sequence[CrossAttend]
    ) -> tuple[Tensor, tuple[LayerState, ...]]:
        contexts = gather_positions(state.plan.contexts, _next(state.positions, tokens.shape[1]))
        attends = [
            partial(cast(CrossAttention, block.attention), cross_attend=layer)
            for block, layer in zip(self.stack, attention, strict=True)
        ]
        return self.read_target(self.tokens.embed(tokens), contexts, state.layers, attends)

    def describe_step(self, program: ProgramBuilder) -> None:
        layers = self.config.layers
        lengths, hidden = 6 + 2 * layers, 7 + 2 * layers  # the plan has six tensors
        program.positions = hidden + layers
        x = self.tokens.describe_embedding(program)
        assert self.use_context is not None
        context = program.row_at_position(2, x.size, counts=5)
        program.apply(self.use_context, context, add_to=x)
        for layer, block in enumerate(self.stack):
            attention = cast(CrossAttention, block.attention)
            source = (6 + layer, 6 + layers + layer, lengths)
            block.describe(program, x, hidden + layer, partial(attention.describe, source=source))
        self.describe_mixture(program, program.rms_norm(x), PlanSlots(drafts=3, mass=4, counts=5))

    @property
    def _attention_dropout(self) -> float:
        return self.dropout.current_rate


def _next(positions: Tensor, count: int) -> Tensor:
    """(B, K): the positions that the next input tokens predict."""
    return positions[:, None] + torch.arange(count, device=positions.device)
