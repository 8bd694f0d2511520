"""GPT: a decoder-only Transformer.

    x⁰ = E[x_<t]                                    h = x + Attention(norm(x))      h_t attends to h_≤t
    P(x_t | x_<t) = softmax(W norm(xᴸ))             x' = h + MLP(norm(h))

There are two layouts. `gpt2` is Radford et al., 2019, and computes exactly what Hugging Face's GPT2LMHeadModel does, so
that checkpoints can be imported and exported. `modern` uses what has become common since: rotary positions (Su et al.,
2021), RMS norm (Zhang & Sennrich, 2019) without weights, normalised queries and keys (Henry et al., 2020), squared ReLU
(So et al., 2021), no biases, residual branches initialised to zero, and a short convolution of the embeddings, as So et
al. have it of queries, keys and values: x⁰_t = E[x_t] + Σ_j a_j ∘ E[x_{t−j}] with j < k, all a_j initialised to zero.

Shape letters: B rows, T positions, K tokens in a chunk, V vocabulary, D width, H heads, C capacity, k kernel.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import Advance, Table, TabledReadout, readable, shift_right
from chainrule.interface.capabilities import AttentionHeads, Rewindable, Shardable
from chainrule.kernels.instructions import GELU, SQUARED_RELU, CacheSlots, Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn.attention import (
    Attend,
    CachedAttention,
    CausalAttention,
    RecordingCausalAttention,
    cache_index,
    grow_cache,
    new_caches,
    require_heads,
)
from chainrule.nn.convolution import ShortConvolution
from chainrule.nn.dropout import apply_dropout
from chainrule.nn.layers import LayerNorm, Projection, rms_norm, squared_relu
from chainrule.nn.positions import Rotary, Rotation, require_pairs
from chainrule.types import Batch, Sequences, State

INITIAL_CAPACITY = 64  # of the caches of a new state; see `nn.attention.grow_cache`


class GPTConfig(ModelConfig):
    """The defaults have 1.2M parameters besides the embeddings."""

    layout: Literal["modern", "gpt2"] = Field("modern", description="gpt2 can be exported to Hugging Face")
    layers: int = Field(6, ge=1, description="number of Transformer blocks")
    width: int = Field(128, ge=1, description="width of the hidden vectors")
    heads: int = Field(2, ge=1, description="attention heads per block")
    context: int = Field(256, ge=1, description="maximum sequence length, in tokens")
    mlp_ratio: int = Field(4, ge=1, description="width of the MLP's hidden layer divided by width")
    kernel: int | None = Field(
        None, ge=1, description="tokens that the convolution of the embeddings spans; 1: none; default: 4, 1 for gpt2"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on embeddings, attention and residual branches")
    tied: bool | None = Field(None, description="tie the readout to the embeddings; none: only for gpt2")
    bos: int | None = Field(None, ge=0, description="id of BOS; none: 0 for gpt2, an extra id for modern")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def first(self) -> int:
        """The id of BOS."""
        if self.bos is not None:
            return self.bos
        return 0 if self.layout == "gpt2" else self.vocabulary

    @property
    def rows(self) -> int:
        """Rows of the embedding table: the vocabulary, and BOS if it is an extra id."""
        return max(self.vocabulary, self.first + 1)

    @property
    def span(self) -> int:
        """Tokens that the convolution of the embeddings spans."""
        if self.kernel is not None:
            return self.kernel
        return 1 if self.layout == "gpt2" else 4

    @property
    def shares_embeddings(self) -> bool:
        return self.layout == "gpt2" if self.tied is None else self.tied

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require_heads(self.width, self.heads)
        if self.layout == "modern":
            require_pairs(self.width, self.heads)
        if self.bos is not None and self.bos >= self.vocabulary:
            raise ValueError(
                f"bos {self.bos} is outside the vocabulary of {self.vocabulary} tokens; try 0, or leave it out"
            )
        return self


class GPTState(NamedTuple):
    """Key-value caches that grow with the text up to the context, a tensor for each layer."""

    keys: tuple[Tensor, ...]  # (B, H, C, D/H) each
    values: tuple[Tensor, ...]
    positions: Tensor  # (B,) tokens read so far, including BOS
    ids: tuple[Tensor, ...]  # one (B, 1, C, 1), these tokens, if their embeddings are convolved


class GPT(TabledReadout, Rewindable, AttentionHeads, Compilable, Shardable):
    """GPT: decoder-only Transformer, with rotary positions and QK norm or in the GPT-2 layout of Hugging Face."""

    Config = GPTConfig
    task = "text"
    compared_on = ("images",)
    width_per_layer = 64
    config: GPTConfig

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.tokens = TiedTokens(config) if config.shares_embeddings else UntiedTokens(config)
        self.convolution = ShortConvolution(config.span, config.width) if config.span > 1 else None
        self.trunk = ModernTrunk(config) if config.layout == "modern" else GPT2Trunk(config)
        # GPT-2 has no output bias. It lets training start from the unigram frequencies.
        self.bias = nn.Parameter(torch.zeros(config.vocabulary)) if config.layout == "modern" else None

    @property
    def bos(self) -> int:
        return self.config.first

    @property
    def context(self) -> int:
        return self.config.context

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.tokens.parameters()
        if isinstance(self.trunk, GPT2Trunk):
            yield self.trunk.positions

    def sharded_blocks(self) -> Iterator[nn.Module]:
        yield from self.trunk.blocks

    def hidden(self, batch: Batch) -> Tensor:
        attention = CausalAttention(self.config.dropout if self.training else 0.0)
        return self._whole(batch, [attention] * self.config.layers)

    def attention_heads(self, batch: Batch) -> Tensor:
        attends = [RecordingCausalAttention() for _ in range(self.config.layers)]
        self._whole(batch, attends)
        return torch.stack([weights for layer in attends for weights in layer.recorded])

    def _whole(self, batch: Batch, attends: Sequence[Attend]) -> Tensor:
        """Hidden vectors of whole targets, with one attention function per block."""
        inputs = shift_right(readable(batch.target), self.bos)
        length = inputs.shape[1]
        self.require_room(length)
        embedded = self.tokens.embed(inputs)
        if self.convolution is not None:
            embedded = self.convolution(embedded)
        return self.trunk.read(embedded, slice(0, length), attends)

    def readout_table(self) -> Table:
        return Table(self.tokens.matrix, self.bias)

    def readout(self, hidden: Tensor) -> Tensor:
        logits = self.tokens.readout(hidden.flatten(0, -2)).view(*hidden.shape[:-1], self.vocabulary)
        return logits if self.bias is None else logits + self.bias

    def initial(self, source: Sequences | None, batch_size: int) -> GPTState:
        config = self.config
        like = next(self.tokens.parameters())
        shape = (batch_size, config.heads, min(INITIAL_CAPACITY, config.context), config.head_width)
        keys, values = new_caches(like, config.layers, shape)
        positions = torch.zeros(batch_size, dtype=torch.int64, device=like.device)
        ids = () if self.convolution is None else (positions.new_zeros(batch_size, 1, shape[2], 1),)
        return GPTState(keys, values, positions, ids)

    def advance(self, tokens: Tensor, state: State) -> Advance:
        positions = cast(GPTState, state).positions
        here = cache_index(positions, tokens.shape[1])
        keys, values, _, ids = self._grown(cast(GPTState, state), here.end)
        if torch.is_grad_enabled():  # a backward pass still needs the caches as they were
            keys, values = tuple(k.clone() for k in keys), tuple(v.clone() for v in values)
        attends = [CachedAttention(k, v, here) for k, v in zip(keys, values, strict=True)]
        embedded = self.tokens.embed(tokens)
        if self.convolution is not None:
            here.write(ids[0], tokens[:, None, :, None])
            embedded = self.convolution(embedded, self._before(ids[0], positions))
        hidden = self.trunk.read(embedded, here.where, attends)
        return Advance(hidden, GPTState(keys, values, positions + tokens.shape[1], ids))

    def _before(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embeddings (B, k − 1, D) of the last tokens before the positions (B,), zero before the first."""
        index = positions[:, None] + torch.arange(1 - self.config.span, 0, device=positions.device)  # (B, k − 1)
        known = self.tokens.embed(ids[:, 0, :, 0].gather(1, index.clamp(min=0)))
        return known * (index >= 0)[..., None]

    def rewind(self, state: State, counts: Tensor) -> GPTState:
        """Cache entries past a row's position are never read, so they need not be cleared."""
        kept = cast(GPTState, state)
        return kept._replace(positions=kept.positions - counts)

    def make_room(self, state: State, count: int) -> State:
        before = cast(GPTState, state)
        return self._grown(before, int(before.positions.max()) + count)

    def _grown(self, state: GPTState, end: int) -> GPTState:
        """The state with room for positions up to `end`: the same one if it has it."""
        self.require_room(end)
        if end <= state.keys[0].shape[2]:
            return state
        keys, values, ids = (
            tuple(grow_cache(cache, end, self.context) for cache in caches)
            for caches in (state.keys, state.values, state.ids)
        )
        return GPTState(keys, values, state.positions, ids)

    def describe_step(self, program: ProgramBuilder) -> None:
        layers = self.config.layers
        program.positions = 2 * layers
        embedded = self.tokens.describe(program)
        if self.convolution is not None:
            program.add_previous_rows(embedded, self.tokens.table, self.convolution.scales, 2 * layers + 1)
        x = self.trunk.describe(program, embedded, [(layer, layers + layer) for layer in range(layers)])
        program.logits(x, self.tokens.matrix[: self.vocabulary], self.bias)


class Tokens(nn.Module, ABC):
    """Embedding and readout."""

    matrix: nn.Parameter  # (R, D) the readout, R ≥ V

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """(R, D) the embeddings."""

    @abstractmethod
    def readout(self, hidden: Tensor) -> Tensor:
        """(N, D) to (N, V)."""

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, K) to (B, K, D)."""
        return F.embedding(tokens, self.table)

    def describe(self, program: ProgramBuilder) -> Vector:
        """`embed` in a compiled step."""
        return program.embed(self.table)


class TiedTokens(Tokens):
    """One table (Press & Wolf, 2017)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.vocabulary = config.vocabulary
        self.matrix = nn.Parameter(torch.empty(config.rows, config.width))
        nn.init.normal_(self.matrix, std=0.02)

    @property
    def table(self) -> Tensor:
        return self.matrix

    def readout(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.matrix[: self.vocabulary])


class UntiedTokens(Tokens):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.rows, config.width)
        self.matrix = nn.Parameter(torch.empty(config.vocabulary, config.width))
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)

    @property
    def table(self) -> Tensor:
        return self.embedding.weight

    def readout(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.matrix)


class Trunk(nn.Module, ABC):
    """The Transformer blocks: from embedded tokens to hidden vectors.

    Internally the tokens of all rows are flattened to (N, D) with N = B·K; only attention needs the rows.
    """

    blocks: nn.ModuleList

    @abstractmethod
    def read(self, embedded: Tensor, where: slice | Tensor, attends: Sequence[Attend]) -> Tensor:
        """(B, K, D) at positions `where`, (K) or (B, K), to (B, K, D), with one attention function per block."""

    @abstractmethod
    def describe(self, program: ProgramBuilder, embedded: Vector, caches: Sequence[CacheSlots]) -> Vector:
        """`read` in a compiled step, without dropout; a cache for each block."""


class ModernTrunk(Trunk):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.rotary = Rotary(config.head_width, config.context)
        self.dropout = config.dropout
        self.blocks = nn.ModuleList(ModernBlock(config) for _ in range(config.layers))

    def read(self, embedded: Tensor, where: slice | Tensor, attends: Sequence[Attend]) -> Tensor:
        rows = embedded.shape[0]
        rotate = self.rotary(where)
        x = apply_dropout(rms_norm(embedded), self.dropout if self.training else 0.0).flatten(0, 1)
        for block, attend in zip(self.blocks, attends, strict=True):
            x = block(x, rows, rotate, attend)
        return rms_norm(x).view_as(embedded)

    def describe(self, program: ProgramBuilder, embedded: Vector, caches: Sequence[CacheSlots]) -> Vector:
        x = program.rms_norm(embedded)
        for block, cache in zip(self.blocks, caches, strict=True):
            with program.scratch():
                cast(ModernBlock, block).describe(program, x, self.rotary, cache)
        return program.rms_norm(x)


class ModernBlock(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_key_value = Projection(config.width, 3 * config.width)
        self.attention_out = Projection(config.width, config.width)
        self.mlp_in = Projection(config.width, config.mlp_ratio * config.width)
        self.mlp_out = Projection(config.mlp_ratio * config.width, config.width)
        self.dropout = config.dropout
        for inward in (self.query_key_value, self.mlp_in):
            nn.init.normal_(inward.weight, std=config.width**-0.5)
        for outward in (self.attention_out, self.mlp_out):
            nn.init.zeros_(outward.weight)

    def forward(self, x: Tensor, rows: int, rotate: Rotation, attend: Attend) -> Tensor:
        rate = self.dropout if self.training else 0.0
        x = x + apply_dropout(self.attention_out(self.attention(rms_norm(x), rows, rotate, attend)), rate)
        return x + apply_dropout(self.mlp_out(squared_relu(self.mlp_in(rms_norm(x)))), rate)

    def attention(self, x: Tensor, rows: int, rotate: Rotation, attend: Attend) -> Tensor:
        projected = self.query_key_value(x).view(rows, -1, 3, self.heads, x.shape[1] // self.heads)
        query, key = rotate(rms_norm(projected[:, :, :2])).transpose(1, 3).unbind(2)  # (B, H, K, D/H) each
        value = projected[:, :, 2].transpose(1, 2)
        return attend(query, key, value).transpose(1, 2).reshape(x.shape)

    def describe(self, program: ProgramBuilder, x: Vector, rotary: Rotary, cache: CacheSlots) -> None:
        """`forward` in a compiled step, in place."""
        projected = program.apply(self.query_key_value, program.rms_norm(x))
        query_key = program.part(projected, 0, 2 * x.size)
        program.rms_norm(query_key, groups=2 * self.heads, out=query_key)
        program.rotate(query_key, rotary.cosine, rotary.sine, 2 * self.heads)
        query, key, value = program.split(projected, 3)
        attended = program.self_attention(query, key, value, *cache, self.heads)
        program.apply(self.attention_out, attended, add_to=x)
        inner = program.activate(program.apply(self.mlp_in, program.rms_norm(x)), SQUARED_RELU)
        program.apply(self.mlp_out, inner, add_to=x)


class GPT2Trunk(Trunk):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(config.context, config.width))
        self.dropout = config.dropout
        self.blocks = nn.ModuleList(GPT2Block(config) for _ in range(config.layers))
        self.norm = LayerNorm(config.width)
        nn.init.normal_(self.positions, std=0.02)

    def read(self, embedded: Tensor, where: slice | Tensor, attends: Sequence[Attend]) -> Tensor:
        rows = embedded.shape[0]
        x = embedded + self.positions[where]
        x = apply_dropout(x, self.dropout if self.training else 0.0).flatten(0, 1)
        for block, attend in zip(self.blocks, attends, strict=True):
            x = block(x, rows, attend)
        return cast(Tensor, self.norm(x)).view_as(embedded)

    def describe(self, program: ProgramBuilder, embedded: Vector, caches: Sequence[CacheSlots]) -> Vector:
        x = program.add_position(embedded, self.positions)
        for block, cache in zip(self.blocks, caches, strict=True):
            with program.scratch():
                cast(GPT2Block, block).describe(program, x, cache)
        return program.layer_norm(x, self.norm)


class GPT2Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = LayerNorm(config.width)
        self.query_key_value = Projection(config.width, 3 * config.width, bias=True)
        self.attention_out = Projection(config.width, config.width, bias=True)
        self.mlp_norm = LayerNorm(config.width)
        self.mlp_in = Projection(config.width, config.mlp_ratio * config.width, bias=True)
        self.mlp_out = Projection(config.mlp_ratio * config.width, config.width, bias=True)
        self.dropout = config.dropout
        for inward in (self.query_key_value, self.mlp_in):
            nn.init.normal_(inward.weight, std=0.02)
        for outward in (self.attention_out, self.mlp_out):  # so that the residual stream does not grow with depth
            nn.init.normal_(outward.weight, std=0.02 / math.sqrt(2 * config.layers))

    def forward(self, x: Tensor, rows: int, attend: Attend) -> Tensor:
        rate = self.dropout if self.training else 0.0
        x = x + apply_dropout(self.attention_out(self.attention(self.attention_norm(x), rows, attend)), rate)
        return x + apply_dropout(self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh")), rate)

    def attention(self, x: Tensor, rows: int, attend: Attend) -> Tensor:
        projected = self.query_key_value(x).view(rows, -1, 3, self.heads, x.shape[1] // self.heads)
        query, key, value = projected.transpose(1, 3).unbind(2)  # (B, H, K, D/H) each
        return attend(query, key, value).transpose(1, 2).reshape(x.shape)

    def describe(self, program: ProgramBuilder, x: Vector, cache: CacheSlots) -> None:
        """`forward` in a compiled step, in place."""
        projected = program.apply(self.query_key_value, program.layer_norm(x, self.attention_norm))
        query, key, value = program.split(projected, 3)
        attended = program.self_attention(query, key, value, *cache, self.heads)
        program.apply(self.attention_out, attended, add_to=x)
        inner = program.activate(program.apply(self.mlp_in, program.layer_norm(x, self.mlp_norm)), GELU)
        program.apply(self.mlp_out, inner, add_to=x)
