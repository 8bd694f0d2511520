"""Recurrent language models: stacked RNN, LSTM or GRU layers with a softmax readout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import RECURRENT_RECIPE, Advance, Table, TabledReadout
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.layers import rms_norm
from chainrule.nn.recurrent import CELLS, Cell, LayerState, RecurrentLayer
from chainrule.types import Sequences, State


class RecurrentConfig(ModelConfig):
    """Settings of recurrent language models."""

    cell: Cell = Field("lstm", description="recurrent cell; docs/families/recurrent.md has the equations")
    layers: int = Field(2, ge=1, description="number of stacked recurrent layers")
    width: int = Field(256, ge=1, description="width of the embeddings and of all layers")
    tied: bool = Field(True, description="tie the readout to the embeddings")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings, between layers and before the readout")
    recurrent_dropout: float = Field(0.0, ge=0, lt=1, description="fraction of recurrent weights dropped per segment")
    segment: int = Field(32, ge=1, description="length of truncated back-propagation through time, in tokens")


class Recurrent(TabledReadout, Compilable):
    """RNN, LSTM and GRU language models with six kinds of cell and a state of fixed size.

    With e_t the embedding of the input token at t (BOS first), D the width and L layers,

        h⁰_t = √D e_t / ‖e_t‖,    hˡ_t = cellˡ(hˡ⁻¹_t, stateˡ_{t−1}),    P(x_{t+1} | x_≤t) = softmax(E hᴸ_t + b)

    where E is the embedding matrix if tied (Press & Wolf, 2017; Inan et al., 2017). Training uses one dropout mask per
    segment (Gal & Ghahramani, 2016) and truncated back-propagation through time (Williams & Peng, 1990): the caller
    detaches the state between segments. The cells are in `chainrule.nn.recurrent`.
    """

    Config = RecurrentConfig
    task = "text"
    recipe: ClassVar[Mapping[str, Any]] = {**RECURRENT_RECIPE, "batch_tokens": 512}
    config: RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocabulary + 1, config.width)  # the last row is BOS
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)
        layer = CELLS[config.cell]
        self.layers = nn.ModuleList(
            layer(config.width, config.width, config.recurrent_dropout) for _ in range(config.layers)
        )
        self.dropout = VariationalDropout(config.dropout)
        self.readout_weight: nn.Parameter | None = None
        if not config.tied:
            self.readout_weight = nn.Parameter(self.embedding.weight.detach()[:-1].clone())
        self.readout_bias = nn.Parameter(torch.zeros(config.vocabulary))

    @property
    def segment(self) -> int:
        return self.config.segment

    def tables(self) -> Iterator[nn.Parameter]:
        yield cast(nn.Parameter, self.embedding.weight)
        if self.readout_weight is not None:
            yield self.readout_weight

    def readout_table(self) -> Table:
        weight = self.embedding.weight if self.readout_weight is None else self.readout_weight
        return Table(weight, self.readout_bias)

    def initial(self, source: Sequences | None, batch_size: int) -> State:
        return tuple(layer.initial(batch_size) for layer in self._stack)

    def advance(self, tokens: Tensor, state: State) -> Advance:
        # (K, B, D): time first, so that a step is contiguous. Normalised, because tied rows grow large as readout
        # vectors of frequent tokens and would saturate the gates as inputs.
        values = self.dropout(rms_norm(self.embedding(tokens.t())))
        after = []
        for layer, before in zip(self._stack, cast(tuple[LayerState, ...], state), strict=True):
            values, layer_state = layer(values, before)
            values = self.dropout(values)
            after.append(layer_state)
        return Advance(values.transpose(0, 1), tuple(after))

    def describe_step(self, program: ProgramBuilder) -> None:
        embedded = program.embed(self.embedding.weight)
        x = program.rms_norm(embedded, out=embedded)
        slot = 0
        for layer in self._stack:
            x = layer.describe(program, x, slot)
            slot += len(layer.initial(1))
        weight, bias = self.readout_table()
        program.keep_hidden(x)
        program.logits(x, weight[: self.vocabulary], bias)

    @property
    def _stack(self) -> Iterable[RecurrentLayer]:
        return cast(Iterable[RecurrentLayer], self.layers)
