"""The autoregressive transformer (AT): a decoder without recurrence, connected over time by attention queries only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.interface.base import RECURRENT_RECIPE, Advance, readable, shift_right
from chainrule.interface.conditional import Conditional, EmbeddingConfig, HasAttention
from chainrule.kernels.instructions import RELU
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn.attention import padding_bias
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.recurrent_encoder import RecurrentEncoder
from chainrule.nn.tokens import PairTable, TokenReadout
from chainrule.types import Batch, Sequences, State


class AutoregressiveTransformerConfig(EmbeddingConfig):
    """Settings of the autoregressive transformer."""

    layers: int = Field(1, ge=1, description="LSTM layers of the encoder")
    width: int = Field(256, ge=1, description="width of the embeddings, the encoder and the MLP")
    attention_width: int = Field(128, ge=1, description="width of the hidden layer of the attention scores")
    tied: bool = Field(False, description="tie the readout to the target embeddings")
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout on embeddings, encoder layers and before the readout")


class AutoregressiveTransformerState(NamedTuple):
    """The last hidden vector, and the keys and values of the source, computed once."""

    hidden: Tensor  # (B, D) h
    keys: Tensor  # (B, S, A) W h̄
    values: Tensor  # (B, S, D) P h̄ + p
    lengths: Tensor  # (B,)


class AutoregressiveTransformer(Conditional, HasAttention, TokenReadout, Compilable):
    """AT: LSTM encoder; MLP decoder over the last token's embedding times an attention context, no recurrence.

    With h̄_n the encoder outputs, e_t the embedding of y_{t−1} (BOS first) and h_0 = h̄_N,

        α_tn = softmax_n(v · ReLU(H h_{t−1} + W h̄_n + U e_t + b))        c_t = Σ_n α_tn h̄_n
        h_t = ReLU(A (e_t ∘ (P c_t + p)) + a)                            P(y_t | y_<t, s) = softmax(B h_t + β)

    after the notes, whose two-layer MLP is A and B. Attention is additive (Bahdanau et al., 2015) with a ReLU. h is the
    hidden layer of the MLP; it enters the next step only through the attention scores. The decoder thus sees the last
    target token and, through h, where it attended before, and has no other memory of the target. As Σ_n α_tn = 1, P and
    p are applied to the encoder outputs once instead of to c_t at every step. p is initialised to 1, so that the
    product is initially close to e_t.
    """

    Config = AutoregressiveTransformerConfig
    task = "translation"
    recipe: ClassVar[Mapping[str, Any]] = {**RECURRENT_RECIPE, "label_smoothing": 0.1}
    config: AutoregressiveTransformerConfig
    tokens: PairTable

    def __init__(self, config: AutoregressiveTransformerConfig) -> None:
        super().__init__(config)
        width, scored = config.width, config.attention_width
        self.tokens = PairTable.of(config, width)
        self.encoder = RecurrentEncoder("lstm", config.layers, width, bidirectional=False, dropout=config.dropout)
        self.score_hidden = nn.Linear(width, scored, bias=False)  # H
        self.score_source = nn.Linear(width, scored)  # W, b
        self.score_token = nn.Linear(width, scored, bias=False)  # U
        self.score_weight = nn.Parameter(torch.randn(scored) * scored**-0.5)  # v
        self.project_context = nn.Linear(width, width)  # P, p
        nn.init.ones_(self.project_context.bias)
        self.mlp = nn.Linear(width, width)  # A, a
        self.dropout = VariationalDropout(config.dropout)

    def attention_maps(self, batch: Batch) -> Tensor:
        tokens = shift_right(readable(batch.target), bos=self.bos)
        return torch.stack(self._decode(tokens, self.initial(batch.source, len(tokens))).weights, dim=1)

    def initial(self, source: Sequences | None, batch_size: int) -> AutoregressiveTransformerState:
        given = self.require_source(source)
        embedded = self.dropout(self.tokens.embed_source(readable(given).t()))  # (S, B, D): time first
        vectors, states = self.encoder(embedded, given.lengths)
        vectors = vectors.transpose(0, 1)  # (B, S, D)
        return AutoregressiveTransformerState(
            states[-1][0], self.score_source(vectors), self.project_context(vectors), given.lengths
        )

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before = cast(AutoregressiveTransformerState, state)
        if tokens.shape[1] == 0:
            return Advance(before.hidden[:, None][:, :0], before)
        steps = self._decode(tokens, before).hidden
        hidden = self.dropout(torch.stack(steps)).transpose(0, 1)
        return Advance(hidden, before._replace(hidden=steps[-1]))

    def describe_step(self, program: ProgramBuilder) -> None:
        embedded = self.tokens.describe_embedding(program)
        hidden = program.state(0, self.config.width)
        query = program.apply(self.score_token, embedded)
        program.apply(self.score_hidden, hidden, add_to=query)
        context = program.additive_attention(query, self.score_weight, 1, 2, 3, self.config.width)
        program.apply(self.mlp, program.multiply(embedded, context, out=context), out=hidden)
        self.tokens.describe_readout(program, program.activate(hidden, RELU))

    def _decode(self, tokens: Tensor, state: AutoregressiveTransformerState) -> DecodedSteps:
        """Sequential, because the attention query of a step depends on the previous hidden vector."""
        embedded = self.dropout(self.tokens.embed(tokens.t()))  # (K, B, D)
        from_tokens = self.score_token(embedded)  # (K, B, A)
        padding = padding_bias(state.lengths, state.keys.shape[1], state.keys.dtype)
        hidden = state.hidden
        decoded = DecodedSteps([], [])
        for embedding, from_token in zip(embedded, from_tokens, strict=True):
            query = from_token + self.score_hidden(hidden)  # (B, A)
            scores = (state.keys + query[:, None]).relu_() @ self.score_weight  # (B, S)
            weights = (scores if padding is None else scores + padding[:, 0, 0]).softmax(-1)
            context = (weights[:, None] @ state.values)[:, 0]  # (B, D) P c + p
            hidden = self.mlp(embedding * context).relu()
            decoded.hidden.append(hidden)
            decoded.weights.append(weights)
        return decoded


class DecodedSteps(NamedTuple):
    """Hidden vectors and attention weights of the steps of a chunk."""

    hidden: list[Tensor]  # (B, D) each
    weights: list[Tensor]  # (B, S) each
