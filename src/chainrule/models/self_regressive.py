"""Self-regressive language models: a second LSTM reads the expected next embedding of a first LSTM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import RECURRENT_RECIPE, Advance, NeuralModel
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.layers import Projection, rms_norm
from chainrule.nn.recurrent import LSTM, LayerState
from chainrule.types import Sequences, State

FULL_EXPECTATION = 1000  # vocabularies up to this size take the expectation over all tokens
TOP_CANDIDATES = 32


class SelfRegressiveConfig(ModelConfig):
    """Settings of self-regressive language models."""

    width: int = Field(192, ge=1, description="width of the embeddings and of both LSTMs")
    candidates: int | None = Field(
        None, ge=1, description="most likely tokens in the expectation; none: all if there are at most 1,000, else 32"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and on the outputs of both LSTMs")
    segment: int = Field(32, ge=1, description="length of truncated back-propagation through time, in tokens")

    @property
    def expected_over(self) -> int:
        """The number of tokens in the expectation."""
        default = self.vocabulary if self.vocabulary <= FULL_EXPECTATION else TOP_CANDIDATES
        return min(self.vocabulary, self.candidates or default)


class SelfRegressiveState(NamedTuple):
    """The LSTM states of both stages; the first holds h_t, which the next prediction needs besides h_{t+1}."""

    first: LayerState
    second: LayerState


class SelfRegressive(NeuralModel, Compilable):
    """Mixture of two LSTM language models; the second one reads the first one's expected next embedding.

    With e_v the embedding of token v, E the embedding matrix, ê = √D e / ‖e‖, x_t the last input token (BOS first), and
    h_t and g_t the hidden vectors of the two stages,

        h_t = LSTM¹(ê_{x_t}, h_{t−1})             p¹_t = softmax(E (W h_{t−1} + U h_t) + b¹)
        g_t = LSTM²([ē_t ; h_t], g_{t−1})         p²_t = softmax(E g_t + b²)          ē_t = Σ_v p¹_t(v) ê_v

        P(x_{t+1} | x_≤t) = γ_t p¹_t + (1 − γ_t) p²_t          γ_t = σ(w · [h_t ; g_t] + c)

    after the notes' two-stage model. The likelihood is exact: stage 2 reads an expectation over x_{t+1}, never x_{t+1}
    itself. For large vocabularies the expectation is over the most likely tokens, renormalised; this changes the input
    of stage 2, while P stays normalised. Tied embeddings, dropout and truncated back-propagation are as in `recurrent`.
    """

    Config = SelfRegressiveConfig
    task = "text"
    recipe: ClassVar[Mapping[str, Any]] = {**RECURRENT_RECIPE, "batch_tokens": 512}
    config: SelfRegressiveConfig

    def __init__(self, config: SelfRegressiveConfig) -> None:
        super().__init__(config)
        width = config.width
        self.embedding = nn.Embedding(config.vocabulary + 1, width)  # the last row is BOS
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.first = LSTM(width, width)
        self.joined = Projection(2 * width, width)  # W beside U
        nn.init.zeros_(self.joined.weight[:, :width].detach())  # initially a plain LSTM: W = 0, U = 1
        nn.init.eye_(self.joined.weight[:, width:].detach())
        self.second = LSTM(2 * width, width)
        self.first_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.second_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.gate_weight = nn.Parameter(torch.zeros(2 * width))  # initially γ = ½
        self.gate_bias = nn.Parameter(torch.zeros(()))
        self.dropout = VariationalDropout(config.dropout)

    @property
    def segment(self) -> int:
        return self.config.segment

    def tables(self) -> Iterator[nn.Parameter]:
        yield cast(nn.Parameter, self.embedding.weight)

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self.first_bias.copy_(log_frequencies)
        self.second_bias.copy_(log_frequencies)

    def readout(self, hidden: Tensor) -> Tensor:
        """(..., 2D + 1), the vectors of both stages and the gate logit, to log P (..., V)."""
        first, second, gate = hidden.tensor_split([self.config.width, 2 * self.config.width], dim=-1)
        first_log_probs = F.log_softmax(self._first_logits(first), dim=-1)
        second_log_probs = F.log_softmax(F.linear(second, self._words, self.second_bias), dim=-1)
        return torch.logaddexp(first_log_probs + F.logsigmoid(gate), second_log_probs + F.logsigmoid(-gate))

    def initial(self, source: Sequences | None, batch_size: int) -> SelfRegressiveState:
        return SelfRegressiveState(self.first.initial(batch_size), self.second.initial(batch_size))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before, second_before = cast(SelfRegressiveState, state)
        read = self.dropout(rms_norm(self.embedding(tokens.t())))  # (K, B, D), time first
        h, after = self.first(read, before)
        previous = torch.cat([before[0][None], h[:-1]])[: len(h)]  # h_{t−1}
        both = self.dropout(torch.cat([previous, h], dim=-1))  # (K, B, 2D)
        first = self.joined(both.flatten(0, 1)).view_as(h)
        h = both[..., h.shape[-1] :]
        g, second_after = self.second(torch.cat([self.expected(first), h], dim=-1), second_before)
        g = self.dropout(g)
        gate = torch.cat([h, g], dim=-1) @ self.gate_weight + self.gate_bias  # (K, B)
        hidden = torch.cat([first, g, gate[..., None]], dim=-1)
        return Advance(hidden.transpose(0, 1), SelfRegressiveState(after, second_after))

    @property
    def has_program(self) -> bool:
        return self.config.expected_over == self.vocabulary

    def describe_step(self, program: ProgramBuilder) -> None:
        width, words = self.config.width, self._words
        embedded = program.embed(self.embedding.weight)
        x = program.rms_norm(embedded, out=embedded)
        both = program.new(2 * width)  # h_{t−1} and h_t
        program.copy(program.state(0, width), program.part(both, 0, width))
        h = self.first.describe(program, x, 0)
        program.copy(h, program.part(both, width, width))
        joined = program.apply(self.joined, both)
        first = program.log_softmax(program.linear(joined, words, self.first_bias))
        inputs = program.new(2 * width)
        program.expected_row(first, words, out=program.part(inputs, 0, width))
        program.copy(h, program.part(inputs, width, width))
        g = self.second.describe(program, inputs, 2)
        second = program.log_softmax(program.linear(g, words, self.second_bias))
        gate = program.linear(program.concatenate(h, g), self.gate_weight[None], self.gate_bias[None])
        program.keep_hidden(joined, g, gate)
        program.log_mixture(first, second, gate, out=program.result())

    def expected(self, first: Tensor) -> Tensor:
        """ē from the vectors of stage 1, (..., D) to (..., D)."""
        count = self.config.expected_over
        if count == self.vocabulary:
            return F.softmax(self._first_logits(first), dim=-1) @ rms_norm(self._words)
        with torch.no_grad():  # the selection needs no gradient
            candidates = self._first_logits(first).topk(count, dim=-1).indices  # (..., M)
        rows = F.embedding(candidates, self.embedding.weight)  # (..., M, D)
        logits = (rows @ first[..., None])[..., 0] + self.first_bias[candidates]
        return (F.softmax(logits, dim=-1)[..., None, :] @ rms_norm(rows))[..., 0, :]

    def _first_logits(self, first: Tensor) -> Tensor:
        return F.linear(first, self._words, self.first_bias)

    @property
    def _words(self) -> Tensor:
        """(V, D), without the row of BOS."""
        return self.embedding.weight[:-1]
