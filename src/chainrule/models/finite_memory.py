"""Finite-memory language models: an MLP over the embeddings of the last k tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import Advance
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn.dropout import Dropout
from chainrule.nn.layers import Projection, rms_norm
from chainrule.nn.mlp import SquaredReluMLP
from chainrule.nn.tokens import TokenReadout, TokenTable
from chainrule.types import Sequences, State


class FiniteMemoryConfig(ModelConfig):
    """The defaults have 0.7M parameters besides the embeddings."""

    memory: int = Field(12, ge=1, description="k, the number of tokens a prediction depends on; 1: a Markov chain")
    layers: int = Field(4, ge=1, description="number of residual MLP layers")
    width: int = Field(128, ge=1, description="width of the embeddings and hidden vectors")
    mlp_ratio: int = Field(4, ge=1, description="width of the MLP's hidden layer divided by width")
    tied: bool = Field(False, description="tie the readout to the embeddings")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on embeddings and on the output of every MLP")
    segment: int = Field(32, ge=1, description="tokens per row of a training batch")


class FiniteMemory(TokenReadout, Compilable):
    """Neural n-gram model: a residual MLP over the concatenated embeddings of the last k tokens.

    With e_t the embedding of the input token at t (BOS first, padding before it), scaled to norm √D,

        x⁰_t = U [e_{t−k+1}; …; e_t],    xˡ⁺¹ = xˡ + Vˡ φ(Wˡ norm(xˡ)),
        P(x_{t+1} | x_≤t) = softmax(E norm(xᴸ_t) + b)

    with φ(z) = max(0, z)² (So et al., 2021) and RMS norms without weights; E is the embedding matrix if tied. This is
    the neural language model of Bengio et al. (2003) with residual layers. Unlike an n-gram table it generalises over
    similar tokens. With k = 1 it is a Markov chain.
    """

    Config = FiniteMemoryConfig
    task = "text"
    recipe: ClassVar[Mapping[str, Any]] = {"batch_tokens": 1024}
    config: FiniteMemoryConfig

    def __init__(self, config: FiniteMemoryConfig) -> None:
        super().__init__(config)
        self.tokens = TokenTable(config.vocabulary, config.width, input_only=2, tied=config.tied)  # BOS, padding
        self.combine = Projection(config.memory * config.width, config.width)
        nn.init.normal_(self.combine.weight, std=(config.memory * config.width) ** -0.5)
        self.layers = nn.ModuleList(
            SquaredReluMLP(config.width, config.mlp_ratio * config.width, config.width) for _ in range(config.layers)
        )
        self.dropout = Dropout(config.dropout)

    @property
    def padding(self) -> int:
        """The id at all positions before BOS."""
        return self.vocabulary + 1

    @property
    def segment(self) -> int:
        # The carried state is the last tokens, so segment edges cost nothing; many short rows cover more of the text.
        return self.config.segment

    @property
    def contiguous(self) -> int:
        """Short pieces, since the state is only that of the receptive field."""
        return 256

    @property
    def receptive_field(self) -> int:
        return self.config.memory

    def initial(self, source: Sequences | None, batch_size: int) -> Tensor:
        """(B, k − 1): the last tokens before the next one."""
        shape = (batch_size, self.config.memory - 1)
        return torch.full(shape, self.padding, dtype=torch.int64, device=self.device)

    def advance(self, tokens: Tensor, state: State) -> Advance:
        window = torch.cat([cast(Tensor, state), tokens], dim=1)  # (B, k − 1 + K)
        after = window[:, tokens.shape[1] :]
        embedded = self.dropout(self.tokens.embed(window.unfold(1, self.config.memory, 1)))  # (B, K, k, D)
        x = self.combine(embedded.flatten(2))  # (B, K, D)
        for layer in self._stack:
            x = x + self.dropout(layer(rms_norm(x)))
        return Advance(rms_norm(x), after)

    def describe_step(self, program: ProgramBuilder) -> None:
        embedded = self.tokens.describe_window(program, 0, self.config.memory)
        x = program.apply(self.combine, embedded)
        for layer in self._stack:
            with program.scratch():
                layer.describe(program, program.rms_norm(x), add_to=x)
        self.tokens.describe_readout(program, program.rms_norm(x))

    @property
    def _stack(self) -> Iterable[SquaredReluMLP]:
        return cast(Iterable[SquaredReluMLP], self.layers)
