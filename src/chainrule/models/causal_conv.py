"""Causal convolutional language models: a stack of dilated, gated causal convolutions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import Advance
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn.convolution import GatedConvolution
from chainrule.nn.dropout import Dropout
from chainrule.nn.layers import rms_norm
from chainrule.nn.tokens import TokenReadout, TokenTable
from chainrule.types import Sequences, State


class CausalConvConfig(ModelConfig):
    """The defaults have 1.1M parameters besides the embeddings and a receptive field of 125 tokens."""

    layers: int = Field(10, ge=1, description="number of gated convolutions")
    width: int = Field(128, ge=1, description="width of the hidden vectors")
    kernel: int = Field(3, ge=2, description="kernel size of the convolutions")
    cycle: int = Field(5, ge=1, description="dilations double from layer to layer and restart after this many layers")
    tied: bool = Field(False, description="tie the readout to the embeddings")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on embeddings and on the output of every layer")
    segment: int = Field(64, ge=1, description="tokens per row of a training batch; gradients stop at its edge")

    @property
    def dilations(self) -> list[int]:
        """One for each layer: 1, 2, 4, …, 1, 2, 4, …"""
        return [2 ** (layer % self.cycle) for layer in range(self.layers)]

    @property
    def receptive_field(self) -> int:
        """The number of tokens that a prediction depends on, including BOS."""
        return 1 + (self.kernel - 1) * sum(self.dilations)


class CausalConvState(NamedTuple):
    """The last inputs of each layer, in ring buffers of fixed size."""

    rings: tuple[Tensor, ...]  # (B, d, (k − 1) D) for a layer of dilation d
    positions: Tensor  # (B,) tokens read so far, including BOS


class CausalConv(TokenReadout, Compilable):
    """Stack of dilated causal convolutions with gated linear units and residual connections (WaveNet, TCN).

    With e_t the embedding of the input token at t (BOS first) and ∗ a causal convolution of dilation d_l,

        x⁰_t = √D e_t / ‖e_t‖,    xˡ⁺¹ = xˡ + W_o ((W_a ∗ norm(xˡ)) ∘ σ(W_b ∗ norm(xˡ))),
        P(x_{t+1} | x_≤t) = softmax(E norm(xᴸ_t) + b)

    Dilations 1, 2, 4, … make the receptive field grow exponentially with depth (WaveNet: van den Oord et al., 2016;
    Bai et al., 2018); the gated linear unit and the residual stack are those of Dauphin et al. (2017). Norms are RMS
    norms without weights; E is the embedding matrix if tied. A prediction depends on the last `receptive_field` tokens
    only, so text of any length is read with a state of fixed size.
    """

    Config = CausalConvConfig
    task = "text"
    # Rows are contiguous streams of text, so a batch of few long rows would cover little of it per step.
    recipe: ClassVar[Mapping[str, Any]] = {"batch_tokens": 1024}
    config: CausalConvConfig

    def __init__(self, config: CausalConvConfig) -> None:
        super().__init__(config)
        self.tokens = TokenTable(config.vocabulary, config.width, tied=config.tied)
        self.layers = nn.ModuleList(
            GatedConvolution(config.width, kernel=config.kernel, dilation=dilation) for dilation in config.dilations
        )
        self.dropout = Dropout(config.dropout)

    @property
    def receptive_field(self) -> int:
        return self.config.receptive_field

    @property
    def segment(self) -> int:
        return self.config.segment

    @property
    def contiguous(self) -> int:
        """Short pieces, since the state is only that of the receptive field."""
        return 256

    def initial(self, source: Sequences | None, batch_size: int) -> CausalConvState:
        rings = tuple(layer.initial(batch_size) for layer in self._stack)
        return CausalConvState(rings, torch.zeros(batch_size, dtype=torch.int64, device=self.device))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        rings, positions = cast(CausalConvState, state)
        x = self.dropout(self.tokens.embed(tokens))  # (B, K, D)
        after = []
        for layer, before in zip(self._stack, rings, strict=True):
            y, ring = layer(rms_norm(x), before, positions)
            x = x + self.dropout(y)
            after.append(ring)
        return Advance(rms_norm(x), CausalConvState(tuple(after), positions + tokens.shape[1]))

    def describe_step(self, program: ProgramBuilder) -> None:
        program.positions = self.config.layers
        x = self.tokens.describe_embedding(program)
        for slot, layer in enumerate(self._stack):
            with program.scratch():
                layer.describe(program, program.rms_norm(x), slot, add_to=x)
        self.tokens.describe_readout(program, program.rms_norm(x))

    @property
    def _stack(self) -> Iterable[GatedConvolution]:
        return cast(Iterable[GatedConvolution], self.layers)
