"""Recurrent encoder–decoder, with dot-product attention after or before the recurrence, or without attention."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.errors import DecodingError
from chainrule.features.source import FeaturesConfig, SourceFeatures
from chainrule.interface.base import RECURRENT_RECIPE, Advance, readable, shift_right
from chainrule.interface.capabilities import FitsStatistics, TokenPairs
from chainrule.interface.conditional import Conditional, EmbeddingConfig, HasAttention
from chainrule.kernels.instructions import TANH
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn.attention import single_head_attention
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.recurrent import CELLS, Cell, LayerState, RecurrentLayer
from chainrule.nn.recurrent_encoder import RecurrentEncoder
from chainrule.nn.tokens import PairTable, TokenReadout
from chainrule.types import Batch, Progress, Sequences, State


class Seq2SeqConfig(FeaturesConfig, EmbeddingConfig):
    """Settings of the recurrent encoder–decoder."""

    attention: Literal["dot", "bahdanau", "none"] = Field(
        "dot",
        description="dot: by the decoder state after each step; bahdanau: by the state before it, and the context is "
        "an input of the step; none: the decoder sees only the final encoder state",
    )
    cell: Cell = Field("lstm", description="recurrent cell; docs/families/recurrent.md has the equations")
    layers: int = Field(2, ge=1, description="recurrent layers of the encoder and of the decoder")
    width: int = Field(128, ge=1, description="width of the embeddings and of all layers")
    bidirectional: bool | None = Field(None, description="bidirectional encoder; none: only with attention")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout on embeddings, between layers and before the readout")

    @property
    def is_bidirectional(self) -> bool:
        return self.attention != "none" if self.bidirectional is None else self.bidirectional

    @model_validator(mode="after")
    def _two_halves(self) -> Self:
        if self.is_bidirectional and self.width % 2:
            raise ValueError(
                f"width {self.width} is odd, but a bidirectional encoder uses half of it for each direction; "
                f"try {self.width + 1}, or bidirectional=false"
            )
        return self


class EncodedSource(NamedTuple):
    """The encoder outputs that the decoder attends to."""

    vectors: Tensor  # (B, S, D)
    lengths: Tensor  # (B,)


class Seq2SeqState(NamedTuple):
    layers: tuple[LayerState, ...]
    source: EncodedSource | tuple[()]  # empty without attention


class Seq2Seq(Conditional, HasAttention, FitsStatistics, TokenReadout, Compilable):
    """RNN, LSTM or GRU encoder–decoder with dot-product attention, or without attention.

    With the cells of `chainrule.nn.recurrent`, source tokens s_1 … s_N and target inputs BOS, y_1, …,

        m_n = encoder(s)_n,    stateˡ_0 = final encoder state of layer l,    h_t = decoder(y_<t, state_0)

    Without attention the final state is all the decoder sees of the source (Sutskever et al., 2014; Cho et al., 2014):

        P(y_t | y_<t, s) = softmax(E h_t + b)

    With attention (Bahdanau et al., 2015; in this form Luong et al., 2015):

        α_tn = softmax_n(h_t · m_n),    h̃_t = tanh(W [Σ_n α_tn m_n; h_t]),    P(y_t | y_<t, s) = softmax(E h̃_t + b)

    There is no input feeding of h̃_t into the next step, so that training runs one fused recurrence over the target.
    In Bahdanau's order the previous state attends, and the context is an input of the step, which makes it sequential;
    P is softmax(E h_t + b):

        α_tn = softmax_n(h_{t−1} · m_n),    h_t = decoder([y_{t−1}; Σ_n α_tn m_n], state_{t−1})

    With `features`, a pretrained BERT or GPT-2 with hidden vectors f takes the place of the encoder:

        m_n = W f_n + w,    stateˡ_0 = tanh(Vˡ mean(m) + vˡ)
    """

    Config = Seq2SeqConfig
    task = "translation"
    recipe: ClassVar[Mapping[str, Any]] = {**RECURRENT_RECIPE, "label_smoothing": 0.1}
    config: Seq2SeqConfig
    tokens: PairTable

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__(config)
        width = config.width
        self.features = SourceFeatures.of(config, config.source_vocabulary, width)
        self.tokens = PairTable.of(config, width, with_source=self.features is None)
        inputs = [2 * width if config.attention == "bahdanau" else width, *[width] * (config.layers - 1)]
        self.layers = nn.ModuleList(CELLS[config.cell](size, width, 0.0) for size in inputs)
        if self.features is None:
            self.encoder = RecurrentEncoder(
                config.cell, config.layers, width, bidirectional=config.is_bidirectional, dropout=config.dropout
            )
        else:
            self.config = config.model_copy(update=self.features.settings)
            parts = sum(len(layer.initial(1)) for layer in self._stack)
            self.begin = nn.Linear(width, parts * width)  # V and v of all layers
        self.combine = nn.Linear(2 * width, width) if config.attention == "dot" else None
        self.dropout = VariationalDropout(config.dropout)

    def attention_maps(self, batch: Batch) -> Tensor:
        tokens = shift_right(readable(batch.target), bos=self.bos)
        state = self.initial(batch.source, len(tokens))
        if not isinstance(state.source, EncodedSource):
            raise DecodingError("a model without attention has no attention maps; train with model.attention=dot")
        hidden, _ = self._decode(tokens, state)
        if self.config.attention == "bahdanau":  # the states before each step
            hidden = torch.cat([state.layers[-1][0][:, None], hidden[:, :-1]], 1)
        return single_head_attention(*state.source).weights(hidden[:, None])[:, 0]

    def initial(self, source: Sequences | None, batch_size: int) -> Seq2SeqState:
        given = self.require_source(source)
        vectors, states = self._encode(given) if self.features is None else self._features(given, self.features)
        if self.config.attention == "none":
            return Seq2SeqState(states, ())
        return Seq2SeqState(states, EncodedSource(vectors.contiguous(), given.lengths))

    def _encode(self, source: Sequences) -> tuple[Tensor, tuple[LayerState, ...]]:
        """m, (B, S, D), and the initial states of the decoder: the final ones of the encoder."""
        embedded = self.dropout(self.tokens.embed_source(readable(source).t()))  # (S, B, D): time first
        vectors, states = self.encoder(embedded, source.lengths)
        return vectors.transpose(0, 1), states

    def _features(self, source: Sequences, features: SourceFeatures) -> tuple[Tensor, tuple[LayerState, ...]]:
        """The same by a pretrained encoder."""
        vectors = features(source)
        parts = iter(self.begin(vectors.sum(1) / source.lengths[:, None]).tanh().split(self.config.width, -1))
        states = tuple(tuple(itertools.islice(parts, len(layer.initial(1)))) for layer in self._stack)
        return self.dropout(vectors.transpose(0, 1)).transpose(0, 1), states

    @property
    def source_context(self) -> int | None:
        return None if self.features is None else self.features.context

    def fit_statistics(self, train: TokenPairs, *, held_out: TokenPairs = (), progress: Progress | None = None) -> None:
        if self.features is not None:
            self.features.precompute(train, progress)

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before = cast(Seq2SeqState, state)
        hidden, layers = self._decode(tokens, before)
        if isinstance(before.source, EncodedSource) and self.combine is not None:
            context = single_head_attention(*before.source)(hidden[:, None])[:, 0]
            hidden = self.combine(torch.cat([context, hidden], -1)).tanh()
        hidden = self.dropout(hidden.transpose(0, 1)).transpose(0, 1)  # it expects time first
        return Advance(hidden, Seq2SeqState(layers, before.source))

    def describe_step(self, program: ProgramBuilder) -> None:
        slots = list(itertools.accumulate((len(layer.initial(1)) for layer in self._stack), initial=0))
        source = (slots[-1], slots[-1], slots[-1] + 1)  # the vectors are keys and values
        x = self.tokens.describe_embedding(program)
        if self.config.attention == "bahdanau":
            before = program.state(slots[-2], self.config.width)
            x = program.concatenate(x, program.cross_attention(before, *source, 1, scale=1.0))
        for layer, slot in zip(self._stack, slots, strict=False):
            x = layer.describe(program, x, slot)
        if self.combine is not None:
            context = program.cross_attention(x, *source, 1, scale=1.0)
            x = program.activate(program.apply(self.combine, program.concatenate(context, x)), TANH)
        self.tokens.describe_readout(program, x)

    def _decode(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, tuple[LayerState, ...]]:
        """The decoder recurrence: hidden vectors (B, K, D) for tokens (B, K), and the states after them."""
        values = self.tokens.embed(tokens.t())  # (K, B, D)
        if self.config.attention == "bahdanau":
            return self._decode_stepwise(values, state)
        after = []
        for layer, before in zip(self._stack, state.layers, strict=True):
            values, layer_state = layer(self.dropout(values), before)
            after.append(layer_state)
        return values.transpose(0, 1), tuple(after)

    def _decode_stepwise(self, embedded: Tensor, state: Seq2SeqState) -> tuple[Tensor, tuple[LayerState, ...]]:
        """The recurrence whose input (K, B, D) is joined by the context of the previous hidden vector, step by step."""
        attend = single_head_attention(*cast(EncodedSource, state.source))
        rows, layers = embedded.shape[1], state.layers
        # One mask for all steps, as in `VariationalDropout`.
        masks = [self.dropout(embedded.new_ones(1, rows, layer.input_weight.shape[1])) for layer in self._stack]
        hidden = [embedded.new_empty(rows, 0, self.config.width)]
        for token in embedded:
            query = layers[-1][0][:, None, None]  # (B, 1, 1, D)
            values = torch.cat([token, attend(query)[:, 0, 0]], -1)[None]
            after = []
            for layer, mask, before in zip(self._stack, masks, layers, strict=True):
                values, layer_state = layer(values * mask, before)
                after.append(layer_state)
            layers = tuple(after)
            hidden.append(values.transpose(0, 1))
        return torch.cat(hidden, 1), layers

    @property
    def _stack(self) -> Iterable[RecurrentLayer]:
        return cast(Iterable[RecurrentLayer], self.layers)
