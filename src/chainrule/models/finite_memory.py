"""Finite memory: one shared network reads the last k tokens and predicts the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import Advance
from chainrule.nn import single_row
from chainrule.nn.dropout import Dropout
from chainrule.nn.layers import Projection, rms_norm
from chainrule.nn.mlp import SquaredReluMLP
from chainrule.nn.tokens import TokenReadout, TokenTable
from chainrule.types import Sequences, State


class FiniteMemoryConfig(ModelConfig):
    """The defaults have 0.7M parameters besides the embeddings."""

    memory: int = Field(12, ge=1, description="tokens that a prediction depends on: k; 1 is a Markov chain")
    layers: int = Field(4, ge=1, description="residual MLPs, one on top of the other")
    width: int = Field(128, ge=1, description="size of an embedding and of a hidden vector")
    mlp_ratio: int = Field(4, ge=1, description="width of the MLP's hidden layer divided by width")
    tied: bool = Field(False, description="the readout uses the embeddings as its weights")
    dropout: float = Field(0.0, ge=0, lt=1, description="on embeddings and on every MLP's output")
    segment: int = Field(32, ge=1, description="tokens in one row of training")


class FiniteMemory(TokenReadout):
    """A neural n-gram: one network reads the last k tokens, whatever came before them is forgotten.

    With e_t the embedding of the token read at t (BOS first, and before it a learned "nothing"), scaled to length √D,

        x⁰_t = U [e_{t−k+1}; …; e_t],    xˡ⁺¹ = xˡ + Vˡ φ(Wˡ norm(xˡ)),
        P(x_{t+1} | x_≤t) = softmax(E norm(xᴸ_t) + b)

    with φ(z) = max(0, z)² (So et al., 2021), RMS norms without weights; E holds the embeddings if they are tied. It is
    the neural language model of Bengio et al. (2003) with the residual layers of later years: unlike an n-gram table
    it knows that tokens resemble each other. With k = 1 it is a Markov chain.
    """

    Config = FiniteMemoryConfig
    task = "text"
    recipe: ClassVar[Mapping[str, Any]] = {"batch_tokens": 1024}
    config: FiniteMemoryConfig

    def __init__(self, config: FiniteMemoryConfig) -> None:
        super().__init__(config)
        self.tokens = TokenTable(config.vocabulary, config.width, input_only=2, tied=config.tied)  # BOS and "nothing"
        self.combine = Projection(config.memory * config.width, config.width)
        nn.init.normal_(self.combine.weight, std=(config.memory * config.width) ** -0.5)
        self.layers = nn.ModuleList(
            SquaredReluMLP(config.width, config.mlp_ratio * config.width, config.width) for _ in range(config.layers)
        )
        self.dropout = Dropout(config.dropout)

    @property
    def nothing(self) -> int:
        """The id that stands at every place before BOS."""
        return self.vocabulary + 1

    @property
    def segment(self) -> int:
        # What is carried from row to row are tokens, so an edge costs nothing; many short rows see more of the text.
        return self.config.segment

    @property
    def receptive_field(self) -> int:
        return self.config.memory

    def initial(self, source: Sequences | None, batch_size: int) -> Tensor:
        """(B, k − 1): the tokens that stand before the next one."""
        shape = (batch_size, self.config.memory - 1)
        return torch.full(shape, self.nothing, dtype=torch.int64, device=self.device)

    def advance(self, tokens: Tensor, state: State) -> Advance:
        window = torch.cat([cast(Tensor, state), tokens], dim=1)  # (B, k − 1 + K)
        after = window[:, tokens.shape[1] :]
        if single_row.is_applicable(tokens, self.tokens.matrix) and not self.training:
            return Advance(self._read_single_row(window), after)
        embedded = self.dropout(self.tokens.embed(window.unfold(1, self.config.memory, 1)))  # (B, K, k, D)
        x = self.combine(embedded.flatten(2))  # (B, K, D)
        for layer in self._stack:
            x = x + self.dropout(layer(rms_norm(x)))
        return Advance(rms_norm(x), after)

    def _read_single_row(self, window: Tensor) -> Tensor:
        """The same for one token of one text: from its last k tokens (1, k) to (1, 1, D)."""
        x = single_row.project(single_row.as_numpy(self.tokens.embed(window)).reshape(-1), self.combine)
        for layer in self._stack:
            x = x + layer.step(single_row.rms_norm(x))
        return torch.from_numpy(single_row.rms_norm(x))[None, None]

    @property
    def _stack(self) -> Iterable[SquaredReluMLP]:
        return cast(Iterable[SquaredReluMLP], self.layers)
