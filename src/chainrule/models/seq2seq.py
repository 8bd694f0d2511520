"""Recurrent encoder–decoder: one network reads the source into vectors, another writes the target from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.errors import DecodingError
from chainrule.interface.base import STEP_AFTER_STEP, Advance, readable, shift_right
from chainrule.interface.conditional import Conditional, EmbeddingConfig, HasAttention
from chainrule.nn.attention import SourceAttention, padding_bias
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.recurrent import CELLS, Cell, LayerState, RecurrentLayer
from chainrule.nn.recurrent_encoder import RecurrentEncoder
from chainrule.nn.tokens import PairTable, TokenReadout
from chainrule.types import Batch, Sequences, State


class Seq2SeqConfig(EmbeddingConfig):
    """Settings of the recurrent encoder–decoder."""

    attention: Literal["dot", "none"] = Field(
        "dot", description="none: the last state is all that is known of a source"
    )
    cell: Cell = Field("lstm", description="the recurrence; see docs/families/recurrent.md for the equations")
    layers: int = Field(2, ge=1, description="recurrent layers of the encoder, and as many of the decoder")
    width: int = Field(128, ge=1, description="width of the embeddings and of every layer")
    bidirectional: bool | None = Field(None, description="the source is read both ways; none: with attention")
    dropout: float = Field(0.2, ge=0, lt=1, description="on embeddings, between layers and before the readout")

    @property
    def both_ways(self) -> bool:
        return self.attention != "none" if self.bidirectional is None else self.bidirectional

    @model_validator(mode="after")
    def _two_halves(self) -> Self:
        if self.both_ways and self.width % 2:
            raise ValueError(
                f"width {self.width} is odd, and a source that is read both ways takes half of it for each direction; "
                f"try {self.width + 1}, or bidirectional=false"
            )
        return self


class Source(NamedTuple):
    """What attention looks at."""

    vectors: Tensor  # (B, S, D)
    lengths: Tensor  # (B,)


class Seq2SeqState(NamedTuple):
    layers: tuple[LayerState, ...]
    source: Source | tuple[()]  # nothing without attention: the layers have all that there is


class Seq2Seq(Conditional, HasAttention, TokenReadout):
    """RNN encoder–decoder, with dot-product attention or from the encoder's last state alone.

    With cells as in `chainrule.nn.recurrent`, an encoder that reads the source s_1 … s_N, in both directions if told,
    and a decoder that reads the target from BOS on,

        m_n = encoder(s)_n,    stateˡ_0 = the encoder's at layer l after all of s,    h_t = decoder(y_<t, state_0)

    plain, all of the source must fit into that one state (Sutskever et al., 2014; Cho et al., 2014):

        P(y_t | y_<t, s) = softmax(E h_t + b)

    With attention, each step also looks for what it needs (Bahdanau et al., 2015; in this form Luong et al., 2015):

        α_tn = softmax_n(h_t · m_n),    h̃_t = tanh(W [Σ_n α_tn m_n; h_t]),    P(y_t | y_<t, s) = softmax(E h̃_t + b)

    h̃_t is not fed back into the next step, so that training reads all steps of the target in one fused recurrence.
    """

    Config = Seq2SeqConfig
    task = "translation"
    recipe: ClassVar[Mapping[str, Any]] = {**STEP_AFTER_STEP, "label_smoothing": 0.1}
    config: Seq2SeqConfig
    tokens: PairTable

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__(config)
        width = config.width
        self.tokens = PairTable(config.vocabulary, width, source_vocabulary=config.own_source_rows, tied=config.tied)
        self.encoder = RecurrentEncoder(
            config.cell, config.layers, width, bidirectional=config.both_ways, dropout=config.dropout
        )
        self.layers = nn.ModuleList(CELLS[config.cell](width, width, 0.0) for _ in range(config.layers))
        self.combine = None if config.attention == "none" else nn.Linear(2 * width, width)
        self.dropout = VariationalDropout(config.dropout)

    def hidden(self, batch: Batch) -> Tensor:
        tokens = shift_right(readable(batch.target), bos=self.bos)
        return self.advance(tokens, self.initial(batch.source, len(tokens))).hidden

    def attention_maps(self, batch: Batch) -> Tensor:
        tokens = shift_right(readable(batch.target), bos=self.bos)
        state = self.initial(batch.source, len(tokens))
        if not isinstance(state.source, Source):
            raise DecodingError("this model was trained without attention, so there is no map; set model.attention=dot")
        written, _ = self._write(tokens, state.layers)
        return _attention(state.source).weights(written[:, None])[:, 0]

    def initial(self, source: Sequences | None, batch_size: int) -> Seq2SeqState:
        given = self.require_source(source)
        embedded = self.dropout(self.tokens.embed_source(readable(given).t()))  # (S, B, D): time first
        vectors, states = self.encoder(embedded, given.lengths)
        if self.combine is None:
            return Seq2SeqState(states, ())
        return Seq2SeqState(states, Source(vectors.transpose(0, 1).contiguous(), given.lengths))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before = cast(Seq2SeqState, state)
        hidden, layers = self._write(tokens, before.layers)
        if isinstance(before.source, Source) and self.combine is not None:
            context = _attention(before.source)(hidden[:, None])[:, 0]
            hidden = self.combine(torch.cat([context, hidden], -1)).tanh()
        hidden = self.dropout(hidden.transpose(0, 1)).transpose(0, 1)  # which takes time first
        return Advance(hidden, Seq2SeqState(layers, before.source))

    def _write(self, tokens: Tensor, states: tuple[LayerState, ...]) -> tuple[Tensor, tuple[LayerState, ...]]:
        """The decoder's recurrence: hidden vectors (B, K, D) of tokens (B, K), and the states after them."""
        values = self.tokens.embed(tokens.t())  # (K, B, D)
        after = []
        for layer, before in zip(cast(Iterable[RecurrentLayer], self.layers), states, strict=True):
            values, layer_state = layer(self.dropout(values), before)
            after.append(layer_state)
        return values.transpose(0, 1), tuple(after)


def _attention(source: Source) -> SourceAttention:
    """Attention with one head, whose keys and values are the encoder's vectors as they are."""
    vectors = source.vectors[:, None]  # (B, 1, S, D)
    bias = padding_bias(source.lengths, vectors.shape[2], vectors.dtype)
    return SourceAttention(vectors, vectors, bias, scale=1.0)
