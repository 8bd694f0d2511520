"""Causal convolutions: a stack of dilated, gated convolutions over the tokens read so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import Advance
from chainrule.nn import single_row
from chainrule.nn.convolution import GatedConvolution
from chainrule.nn.dropout import Dropout
from chainrule.nn.layers import rms_norm
from chainrule.nn.tokens import TokenReadout, TokenTable
from chainrule.types import Sequences, State


class CausalConvConfig(ModelConfig):
    """The defaults have 1.1M parameters besides the embeddings and see the last 125 tokens."""

    layers: int = Field(10, ge=1, description="gated convolutions, one on top of the other")
    width: int = Field(128, ge=1, description="size of a hidden vector")
    kernel: int = Field(3, ge=2, description="inputs that a convolution meets at once")
    cycle: int = Field(5, ge=1, description="dilations double from layer to layer and begin again after so many")
    tied: bool = Field(False, description="the readout uses the embeddings as its weights")
    dropout: float = Field(0.0, ge=0, lt=1, description="on embeddings and on every layer's output")
    segment: int = Field(64, ge=1, description="tokens in one row of training; gradients stop at its edge")

    @property
    def dilations(self) -> list[int]:
        """One for each layer: 1, 2, 4, …, 1, 2, 4, …"""
        return [2 ** (layer % self.cycle) for layer in range(self.layers)]

    @property
    def receptive_field(self) -> int:
        """How many tokens a prediction can depend on, BOS among them."""
        return 1 + (self.kernel - 1) * sum(self.dilations)


class CausalConvState(NamedTuple):
    """The inputs that each layer will still meet; a ring has a fixed size."""

    rings: tuple[Tensor, ...]  # (B, d, (k − 1) D) for a layer of dilation d
    positions: Tensor  # (B,) tokens read so far, BOS among them


class CausalConv(TokenReadout):
    """Dilated causal convolutions, gated and residual: a window that widens with depth, read in parallel.

    With e_t the embedding of the token read at t (BOS first) and ∗ a causal convolution of dilation d_l,

        x⁰_t = √D e_t / ‖e_t‖,    xˡ⁺¹ = xˡ + W_o ((W_a ∗ norm(xˡ)) ∘ σ(W_b ∗ norm(xˡ))),
        P(x_{t+1} | x_≤t) = softmax(E norm(xᴸ_t) + b)

    Dilations 1, 2, 4, … make the receptive field grow exponentially with depth (WaveNet: van den Oord et al., 2016;
    Bai et al., 2018); the gated linear unit and the residual stack are those of Dauphin et al. (2017). Norms are RMS
    norms without weights; E holds the embeddings if they are tied. A prediction depends on the last
    `reach` tokens and on nothing before them, so text of any length is read with a state of fixed size.
    """

    Config = CausalConvConfig
    task = "text"
    # Small steps from many places: rows are lanes through the text, and a few long rows see little of it at a time.
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

    def initial(self, source: Sequences | None, batch_size: int) -> CausalConvState:
        rings = tuple(layer.initial(batch_size) for layer in self._stack)
        return CausalConvState(rings, torch.zeros(batch_size, dtype=torch.int64, device=self.device))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        rings, positions = cast(CausalConvState, state)
        if single_row.is_applicable(tokens, rings[0]) and not self.training:
            return self._advance_single_row(tokens, cast(CausalConvState, state))
        x = self.dropout(self.tokens.embed(tokens))  # (B, K, D)
        after = []
        for layer, before in zip(self._stack, rings, strict=True):
            y, ring = layer(rms_norm(x), before, positions)
            x = x + self.dropout(y)
            after.append(ring)
        return Advance(rms_norm(x), CausalConvState(tuple(after), positions + tokens.shape[1]))

    def _advance_single_row(self, token: Tensor, state: CausalConvState) -> Advance:
        """The same for one token of one text, in place."""
        position = int(state.positions)
        x = single_row.as_numpy(self.tokens.embed(token))[0, 0]
        for layer, ring in zip(self._stack, state.rings, strict=True):
            x = x + layer.step(single_row.rms_norm(x), single_row.as_numpy(ring)[0], position)
        hidden = torch.from_numpy(single_row.rms_norm(x))[None, None]
        return Advance(hidden, state._replace(positions=state.positions + 1))

    @property
    def _stack(self) -> Iterable[GatedConvolution]:
        return cast(Iterable[GatedConvolution], self.layers)
