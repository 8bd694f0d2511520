"""Attentive convolutions: causal self-attention over features of causal convolutions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import Advance, readable, shift_right
from chainrule.interface.capabilities import AttentionHeads, BidirectionalEmbedder
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.models.gpt import GPTConfig, ModernBlock
from chainrule.nn.attention import (
    Attend,
    BidirectionalAttention,
    CachedAttention,
    CausalAttention,
    RecordingCausalAttention,
    cache_index,
    new_caches,
    padding_bias,
)
from chainrule.nn.convolution import GatedConvolution
from chainrule.nn.dropout import Dropout
from chainrule.nn.layers import rms_norm
from chainrule.nn.positions import Rotary, Rotation
from chainrule.nn.tokens import TokenReadout, TokenTable
from chainrule.types import Batch, Sequences, State


class AttentiveConvConfig(ModelConfig):
    """The defaults have 1.2M parameters besides the embeddings."""

    layers: int = Field(4, ge=1, description="number of blocks of convolution, attention and MLP")
    width: int = Field(128, ge=1, description="width of the hidden vectors")
    kernel: int = Field(3, ge=2, description="kernel size of the convolutions")
    heads: int = Field(2, ge=1, description="attention heads per block")
    context: int = Field(256, ge=1, description="maximum sequence length, in tokens")
    mlp_ratio: int = Field(4, ge=1, description="width of the MLP's hidden layer divided by width")
    tied: bool = Field(False, description="tie the readout to the embeddings")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on embeddings, attention and residual branches")

    @property
    def attention(self) -> GPTConfig:
        """The settings of the `gpt` block after each convolution."""
        return GPTConfig.parse(self.model_dump() | {"kernel": 1})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _ = self.attention  # validates the combination
        return self


class AttentiveConvState(NamedTuple):
    """The last inputs of the convolutions, and the key-value caches."""

    rings: tuple[Tensor, ...]  # (B, 1, (k − 1) D) each
    keys: tuple[Tensor, ...]  # (B, H, C, D/H) each, C the context
    values: tuple[Tensor, ...]
    positions: Tensor  # (B,) tokens read so far, including BOS


class AttentiveConv(TokenReadout, BidirectionalEmbedder, AttentionHeads, Compilable):
    """Blocks of gated causal convolution, causal self-attention and MLP; also usable as a text encoder.

    With e_t the embedding of the input token at t (BOS first), scaled to norm √D, and ∗ a causal convolution,

        c = xˡ + W_o ((W_a ∗ norm(xˡ)) ∘ σ(W_b ∗ norm(xˡ)))        x⁰ = e;  c_t sees the last few tokens
        a = c + Attention(norm(c))                                 a_t attends to c_≤t
        xˡ⁺¹ = a + MLP(norm(a))
        P(x_{t+1} | x_≤t) = softmax(E norm(xᴸ_t) + b)

    The convolution represents each position by a short phrase instead of a token, so that one attention layer can match
    patterns that otherwise take two (compare So et al., 2021, and Gulati et al., 2020, who combine convolutions with
    attention, too). Attention and MLP are the modern block of `gpt`: rotary positions, RMS norms, normalised queries
    and keys, squared ReLU.
    """

    Config = AttentiveConvConfig
    task = "text"
    recipe: ClassVar[Mapping[str, Any]] = {"batch_tokens": 1024}
    config: AttentiveConvConfig

    def __init__(self, config: AttentiveConvConfig) -> None:
        super().__init__(config)
        self.tokens = TokenTable(config.vocabulary, config.width, tied=config.tied)
        self.rotary = Rotary(config.attention.head_width, config.context)
        self.blocks = nn.ModuleList(AttentiveBlock(config) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)

    @property
    def context(self) -> int:
        return self.config.context

    def hidden(self, batch: Batch) -> Tensor:
        return self._whole(shift_right(readable(batch.target), self.bos))

    def attention_heads(self, batch: Batch) -> Tensor:
        attends = [RecordingCausalAttention() for _ in range(self.config.layers)]
        self._whole(shift_right(readable(batch.target), self.bos), attends)
        return torch.stack([weights for layer in attends for weights in layer.recorded])

    @property
    def embedding_width(self) -> int:
        return self.config.width

    def embed(self, texts: Sequences) -> Tensor:
        """(B, T, D) contextual vectors, causal: [:, t] depends on the tokens up to and including t.

        BOS is read first, so T can be at most the context minus one.
        """
        inputs = F.pad(readable(texts), (1, 0), value=self.bos)
        return self._whole(inputs)[:, 1:]

    def embed_bidirectional(self, texts: Sequences) -> Tensor:
        """The same blocks without the mask: attention to the whole text, and convolutions centred on each token."""
        length = texts.ids.shape[1]
        self.require_room(length)
        x = self.dropout(self.tokens.embed(readable(texts)))
        padding = padding_bias(texts.lengths, length, x.dtype)
        attend = BidirectionalAttention(padding, self.config.dropout if self.training else 0.0)
        for block in self._stack:
            x = block.bidirectional(x, texts.mask, self.rotary(slice(0, length)), attend)
        return rms_norm(x)

    def initial(self, source: Sequences | None, batch_size: int) -> AttentiveConvState:
        config = self.config
        like = self.tokens.matrix
        shape = (batch_size, config.heads, config.context, config.attention.head_width)
        keys, values = new_caches(like, config.layers, shape)
        return AttentiveConvState(self._rings(batch_size), keys, values, self._nothing_read(batch_size))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        rings, keys, values, positions = cast(AttentiveConvState, state)
        here = cache_index(positions, tokens.shape[1])
        self.require_room(here.end)
        if torch.is_grad_enabled():  # a backward pass still needs the caches as they were
            keys, values = tuple(k.clone() for k in keys), tuple(v.clone() for v in values)
        attends = [CachedAttention(k, v, here) for k, v in zip(keys, values, strict=True)]
        hidden, rings = self._read(tokens, rings, positions, here.where, attends)
        return Advance(hidden, AttentiveConvState(rings, keys, values, positions + tokens.shape[1]))

    def _whole(self, inputs: Tensor, attends: Sequence[Attend] | None = None) -> Tensor:
        """Hidden vectors of whole sequences."""
        rows, length = inputs.shape
        self.require_room(length)
        if attends is None:
            attends = [CausalAttention(self.config.dropout if self.training else 0.0)] * self.config.layers
        return self._read(inputs, self._rings(rows), self._nothing_read(rows), slice(0, length), attends)[0]

    def _read(
        self,
        tokens: Tensor,
        rings: tuple[Tensor, ...],
        positions: Tensor,
        where: slice | Tensor,
        attends: Sequence[Attend],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(B, K) to hidden vectors (B, K, D) and the rings after them, with one attention function per block."""
        rotate = self.rotary(where)
        x = self.dropout(self.tokens.embed(tokens))
        after = []
        for block, before, attend in zip(self._stack, rings, attends, strict=True):
            x, ring = block(x, before, positions, rotate, attend)
            after.append(ring)
        return rms_norm(x), tuple(after)

    def make_room(self, state: State, count: int) -> State:
        self.require_room(int(cast(AttentiveConvState, state).positions.max()) + count)
        return state

    def describe_step(self, program: ProgramBuilder) -> None:
        layers = self.config.layers
        program.positions = 3 * layers
        x = self.tokens.describe_embedding(program)
        for slot, block in enumerate(self._stack):
            with program.scratch():
                block.local.describe(program, program.rms_norm(x), slot, add_to=x)
                block.attentive.describe(program, x, self.rotary, (layers + slot, 2 * layers + slot))
        self.tokens.describe_readout(program, program.rms_norm(x))

    def _rings(self, rows: int) -> tuple[Tensor, ...]:
        return tuple(block.local.initial(rows) for block in self._stack)

    def _nothing_read(self, rows: int) -> Tensor:
        return torch.zeros(rows, dtype=torch.int64, device=self.device)

    @property
    def _stack(self) -> Iterable[AttentiveBlock]:
        return cast(Iterable[AttentiveBlock], self.blocks)


class AttentiveBlock(nn.Module):
    """A gated convolution followed by a `gpt` block."""

    def __init__(self, config: AttentiveConvConfig) -> None:
        super().__init__()
        self.local = GatedConvolution(config.width, kernel=config.kernel)
        self.attentive = ModernBlock(config.attention)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, ring: Tensor, positions: Tensor, rotate: Rotation, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """(B, K, D) to (B, K, D), and the ring after it."""
        y, ring = self.local(rms_norm(x), ring, positions)
        x = x + self.dropout(y)
        return self.attentive(x.flatten(0, 1), len(x), rotate, attend).view_as(x), ring

    def bidirectional(self, x: Tensor, real: Tensor, rotate: Rotation, attend: Attend) -> Tensor:
        """(B, T, D) to (B, T, D) for whole texts, `real` (B, T) where they have tokens."""
        ahead = self.local.line.receptive_field // 2  # the causal convolution, moved ahead by half of its kernel
        padded = F.pad(rms_norm(x) * real[..., None], (0, 0, 0, ahead))
        positions = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        y, _ = self.local(padded, self.local.initial(len(x)), positions)
        x = x + self.dropout(y[:, ahead:])
        return cast(Tensor, self.attentive(x.flatten(0, 1), len(x), rotate, attend)).view_as(x)
