"""The encoder–decoder Transformer.

    source   x⁰ = E_s[s]        h = x + Attention(norm(x))                  bidirectional
                                x' = h + MLP(norm(h))                       m = norm(xᴸ)
    target   y⁰ = E_t[y_<t]     h = y + Attention(norm(y))                  causal
                                g = h + Attention(norm(h), over m)          cross-attention
                                y' = g + MLP(norm(g))
    P(y_t | y_<t, s) = softmax(W norm(yᴸ) + b)

    Attention, for each of H heads:  Σ_j softmax_j(q_i · k_j / √d) v_j      with q, k and v linear in the inputs

Vaswani et al., 2017, "Attention is all you need", with what has become common since and trains without warm-up:
pre-norm (Xiong et al., 2020), RMS norm without weights (Zhang & Sennrich, 2019), normalised queries
and keys (Henry et al., 2020), squared ReLU (So et al., 2021), no biases, and residual branches initialised to zero.

Positions are the sinusoids p of the paper, added to the embeddings, or concatenated with them as in the notes: W [e; p]
with a projection W back to the width. Rotary positions (Su et al., 2021) encode only distances within one sequence;
cross-attention must then align target and source by content, which small models learn more slowly.

With `features`, m = norm(W f + w) for the hidden vectors f of a pretrained BERT or GPT-2 instead.

Shape letters: B rows, T positions, K tokens in a chunk, S source tokens, V vocabulary, D width, H heads, C capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.features.source import FeaturesConfig, SourceFeatures
from chainrule.interface.base import Advance, readable, shift_right
from chainrule.interface.capabilities import AttentionHeads, FitsStatistics, Rewindable, Shardable, TokenPairs
from chainrule.interface.conditional import Conditional, EmbeddingConfig, HasAttention
from chainrule.kernels.instructions import CacheSlots, SourceSlots, Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn import compiled_encoder
from chainrule.nn.attention import (
    Attend,
    BidirectionalAttention,
    CachedAttention,
    CausalAttention,
    CrossAttend,
    RecordingAttention,
    SourceAttention,
    cache_index,
    grow_cache,
    new_caches,
    padding_bias,
    require_heads,
)
from chainrule.nn.dropout import Dropout
from chainrule.nn.layers import input_projection, output_projection, rms_norm
from chainrule.nn.mlp import SquaredReluMLP
from chainrule.nn.positions import (
    AddedPositions,
    ConcatenatedPositions,
    Positions,
    RotaryPositions,
    Rotate,
    require_pairs,
)
from chainrule.nn.tokens import PairTable, TokenReadout
from chainrule.types import Batch, Progress, Sequences, State

POSITIONS: dict[str, type[AddedPositions | RotaryPositions]] = {
    "added": AddedPositions,
    "concatenated": ConcatenatedPositions,
    "rotary": RotaryPositions,
}
INITIAL_CAPACITY = 16  # of the caches of a new state; see `nn.attention.grow_cache`


class TransformerConfig(EmbeddingConfig):
    """The defaults have 1.4M parameters besides the embeddings: minutes of training on a few cores."""

    encoder_layers: int = Field(3, ge=1, description="encoder blocks")
    decoder_layers: int = Field(3, ge=1, description="decoder blocks")
    width: int = Field(128, ge=1, description="width of the hidden vectors")
    heads: int = Field(4, ge=1, description="attention heads per block")
    mlp_ratio: int = Field(4, ge=1, description="width of the MLP's hidden layer divided by width")
    context: int = Field(256, ge=1, description="maximum number of source tokens, and of target tokens")
    positions: Literal["added", "concatenated", "rotary"] = Field(
        "added", description="sinusoids added to or concatenated with the embeddings, or rotary positions"
    )
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout on embeddings, attention and residual branches")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require_heads(self.width, self.heads)
        if self.positions == "rotary":
            require_pairs(self.width, self.heads, instead=", or positions=added")
        return self


class TranslationTransformerConfig(FeaturesConfig, TransformerConfig):
    """The same with a choice of the encoder: blocks of its own, or a pretrained model."""


class DecoderSlots(NamedTuple):
    """The state tensors of one decoder layer: keys, values and lengths of the source, and a cache if it is causal."""

    source: SourceSlots
    cache: CacheSlots | None


class EncoderMemory(NamedTuple):
    """Keys and values of the encoder outputs for the cross-attention of each decoder layer."""

    keys: tuple[Tensor, ...]  # (B, H, S, D/H) each
    values: tuple[Tensor, ...]
    lengths: Tensor  # (B,)

    def cross_attention(self, dropout: float = 0.0) -> list[SourceAttention]:
        """The cross-attention function of each decoder layer."""
        bias = padding_bias(self.lengths, self.keys[0].shape[2], self.keys[0].dtype)
        return [
            SourceAttention(keys, values, bias, dropout) for keys, values in zip(self.keys, self.values, strict=True)
        ]


class TransformerState(NamedTuple):
    """The encoder memory, and key-value caches of the target, whose capacity doubles when they are full."""

    source: EncoderMemory
    keys: tuple[Tensor, ...]  # (B, H, C, D/H) each
    values: tuple[Tensor, ...]
    positions: Tensor  # (B,) tokens read so far, including BOS


class Transformer(
    Conditional, HasAttention, AttentionHeads, FitsStatistics, TokenReadout, Rewindable, Compilable, Shardable
):
    """Encoder–decoder Transformer (pre-norm, RMS norm, QK norm) for translation."""

    Config: ClassVar[type[TransformerConfig]] = TranslationTransformerConfig
    task = "translation"
    recipe: ClassVar[Mapping[str, Any]] = {"label_smoothing": 0.1}
    config: TransformerConfig
    tokens: PairTable

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.features = SourceFeatures.of(config, config.source_vocabulary, config.width)
        self.tokens = PairTable.of(config, config.width, with_source=self.features is None)
        if self.features is None:
            self.encoder = TransformerEncoder(config)
        else:
            self.config = config.model_copy(update=self.features.settings)
        self.decoder = TransformerDecoder(config)

    @property
    def context(self) -> int:
        return self.config.context

    @property
    def source_context(self) -> int | None:
        return self.config.context if self.features is None else self.features.context

    def fit_statistics(self, train: TokenPairs, *, held_out: TokenPairs = (), progress: Progress | None = None) -> None:
        if self.features is not None:
            self.features.precompute(train, progress)

    def sharded_blocks(self) -> Iterator[nn.Module]:
        if self.features is None:
            yield from self.encoder.layers
        for layer in self.decoder.stack:
            yield layer.cross_attention.key_value  # called for all layers before the first of them
            yield layer

    def hidden(self, batch: Batch) -> Tensor:
        return self.decode(batch, self.encoder_memory(batch.source).cross_attention(self.dropout_rate))

    def attention_maps(self, batch: Batch) -> Tensor:
        return self.attention_heads(batch).mean((0, 2))

    def attention_heads(self, batch: Batch) -> Tensor:
        memory = self.encoder_memory(batch.source)
        layers = [RecordingAttention(layer) for layer in memory.cross_attention(self.dropout_rate)]
        self.decode(batch, layers)
        return torch.stack([weights for layer in layers for weights in layer.recorded])

    def initial(self, source: Sequences | None, batch_size: int) -> TransformerState:
        return self.begin(self.encoder_memory(source))

    def begin(self, memory: EncoderMemory) -> TransformerState:
        """The state before BOS, for an encoded source."""
        rows, heads, _, head_width = memory.keys[0].shape
        shape = (rows, heads, min(INITIAL_CAPACITY, self.context), head_width)
        keys, values = new_caches(memory.keys[0], len(memory.keys), shape)
        return TransformerState(memory, keys, values, torch.zeros(rows, dtype=torch.int64, device=self.device))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before = cast(TransformerState, state)
        source, _, _, positions = before
        here = cache_index(positions, tokens.shape[1])
        keys, values = self._grown_caches(before, here.end)
        if torch.is_grad_enabled():  # a backward pass still needs the caches as they were
            keys, values = (tuple(cache.clone() for cache in caches) for caches in (keys, values))
        attends = [CachedAttention(key, value, here) for key, value in zip(keys, values, strict=True)]
        hidden = self.decoder(self.tokens.embed(tokens), here.where, attends, source.cross_attention(self.dropout_rate))
        return Advance(hidden, TransformerState(source, keys, values, positions + tokens.shape[1]))

    def rewind(self, state: State, counts: Tensor) -> TransformerState:
        """Cache entries past a row's position are never read, so they need not be cleared."""
        kept = cast(TransformerState, state)
        return kept._replace(positions=kept.positions - counts)

    def make_room(self, state: State, count: int) -> TransformerState:
        before = cast(TransformerState, state)
        keys, values = self._grown_caches(before, int(before.positions.max()) + count)
        return before._replace(keys=keys, values=values)

    def describe_step(self, program: ProgramBuilder) -> None:
        layers = self.config.decoder_layers
        program.positions = 4 * layers + 1
        slots = [
            DecoderSlots((layer, layers + layer, 2 * layers), (2 * layers + 1 + layer, 3 * layers + 1 + layer))
            for layer in range(layers)
        ]
        hidden = self.decoder.describe(program, self.tokens.describe_embedding(program), slots)
        self.tokens.describe_readout(program, hidden)

    def _grown_caches(self, state: TransformerState, end: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Caches of keys and of values with room for positions up to `end`."""
        self.require_room(end)
        keys, values = (
            tuple(grow_cache(cache, end, self.context) for cache in caches) for caches in (state.keys, state.values)
        )
        return keys, values

    def _describe_source(self, program: ProgramBuilder) -> None:
        """`encoder_memory`; the given tensor has the position of the first token."""
        program.positions = 0
        encoded = self.encoder.describe(program, self.tokens.describe_source_embedding(program))
        self.decoder.describe_memory(program, encoded)

    def encode(self, source: Sequences) -> Tensor:
        """The encoder outputs, (B, S, D)."""
        if self.features is not None:
            return rms_norm(self.features(source))
        return cast(Tensor, self.encoder(self.tokens.embed_source(readable(source)), source.lengths))

    def encoder_memory(self, source: Sequences | None) -> EncoderMemory:
        """Keys and values of the source for the decoder."""
        given = self.require_source(source)
        if self.features is None:
            read = Sequences(readable(given), given.lengths)
            state = torch.zeros_like(given.lengths)
            if (found := self.decoder.compiled_memory(self, read, state, self._describe_source)) is not None:
                return found
        return self.decoder.encoder_memory(self.encode(given), given.lengths)

    @property
    def dropout_rate(self) -> float:
        """The current dropout rate of attention."""
        return self.config.dropout if self.training else 0.0

    def decode(self, batch: Batch, cross_attends: Sequence[CrossAttend]) -> Tensor:
        """Hidden vectors of whole targets, (B, T, D)."""
        inputs = shift_right(readable(batch.target), self.bos)
        length = inputs.shape[1]
        self.require_room(length)
        attention = CausalAttention(self.dropout_rate)
        return cast(
            Tensor,
            self.decoder(self.tokens.embed(inputs), slice(0, length), [attention] * len(cross_attends), cross_attends),
        )


class TransformerEncoder(nn.Module):
    """Bidirectional encoder of the source."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.positions = _positions(config)
        self.layers = nn.ModuleList(TransformerEncoderLayer(config) for _ in range(config.encoder_layers))
        self.dropout = Dropout(config.dropout)

    def forward(self, embedded: Tensor, lengths: Tensor) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        unread, state = compiled_encoder.unread(embedded, lengths), (embedded, torch.zeros_like(lengths))
        encoded = compiled_encoder.encode(self, unread, state, embedded.shape[2], self._describe)
        if encoded is not None:
            return encoded
        bias = padding_bias(lengths, embedded.shape[1], embedded.dtype)
        x, rotate = self.positions(embedded, slice(0, embedded.shape[1]))
        x = self.dropout(x)
        attend = BidirectionalAttention(bias, self.dropout.current_rate)
        for layer in self.layers:
            x = layer(x, rotate, attend)
        return rms_norm(x)

    def _describe(self, program: ProgramBuilder) -> None:
        """`forward` without dropout; the given tensors are the embedded tokens and the position of the first."""
        program.positions = 1
        program.copy(self.describe(program, program.given(0, program.outputs)), program.result())

    def describe(self, program: ProgramBuilder, embedded: Vector) -> Vector:
        """`forward` in a program, without dropout."""
        x = program.new(embedded.size)
        program.copy(self.positions.describe(program, embedded), x)
        for layer in cast(Iterable[TransformerEncoderLayer], self.layers):
            with program.scratch():
                layer.attention.describe(program, x, self.positions, None)
                layer.mlp.describe(program, program.rms_norm(x), add_to=x)
        return program.rms_norm(x, out=x)


class TransformerDecoder(nn.Module):
    """Decoder of the target, with cross-attention to the source."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.positions = _positions(config)
        self.layers = nn.ModuleList(TransformerDecoderLayer(config) for _ in range(config.decoder_layers))
        self.dropout = Dropout(config.dropout)

    def encoder_memory(self, encoded: Tensor, lengths: Tensor) -> EncoderMemory:
        """Keys and values of encoder outputs (B, S, D) for all layers."""
        unread = compiled_encoder.unread(encoded, lengths)
        if (found := self.compiled_memory(self, unread, encoded, self._describe_memory)) is not None:
            return found
        keys, values = zip(*(layer.cross_attention.key_values(encoded) for layer in self.stack), strict=True)
        return EncoderMemory(keys, values, lengths)

    def compiled_memory(
        self, module: nn.Module, source: Sequences, state: State, describe: Callable[[ProgramBuilder], None]
    ) -> EncoderMemory | None:
        """Keys and values by the program of a module that ends with `describe_memory`."""
        layers, cross_attention = len(self.stack), self.stack[0].cross_attention
        outputs = layers * cross_attention.key_value.weight.shape[0]
        found = compiled_encoder.encode(module, source, state, outputs, describe)
        if found is None:
            return None
        keys, values = compiled_encoder.keys_and_values(found, layers, cross_attention.heads)
        return EncoderMemory(keys, values, source.lengths)

    def _describe_memory(self, program: ProgramBuilder) -> None:
        """`encoder_memory`; the given tensor has the encoder outputs."""
        self.describe_memory(program, program.given(0, program.outputs // (2 * len(self.stack))))

    def describe_memory(self, program: ProgramBuilder, encoded: Vector) -> None:
        """Keys and values of each layer as the result."""
        for layer, out in zip(self.stack, program.split(program.result(), len(self.stack)), strict=True):
            layer.cross_attention.describe_key_values(program, encoded, out)

    def bidirectional(self, embedded: Tensor, lengths: Tensor, source: EncoderMemory) -> Tensor:
        """(B, K, D) to (B, K, D) without a causal mask, for non-autoregressive models."""
        unread, state = compiled_encoder.unread(embedded, lengths), (embedded, torch.zeros_like(lengths), source)
        found = compiled_encoder.encode(self, unread, state, embedded.shape[2], self._describe)
        if found is not None:
            return found
        length = embedded.shape[1]
        rate = self.dropout.current_rate
        attend = BidirectionalAttention(padding_bias(lengths, length, embedded.dtype), rate)
        return cast(Tensor, self(embedded, slice(0, length), [attend] * len(self.stack), source.cross_attention(rate)))

    def forward(
        self, embedded: Tensor, where: slice | Tensor, attends: Sequence[Attend], cross_attends: Sequence[CrossAttend]
    ) -> Tensor:
        """(B, K, D) at positions `where`, (K) or (B, K), to (B, K, D), with attention functions for each layer."""
        x, rotate = self.positions(embedded, where)
        x = self.dropout(x)
        for layer, attend, cross_attend in zip(self.stack, attends, cross_attends, strict=True):
            x = layer(x, rotate, attend, cross_attend)
        return rms_norm(x)

    def _describe(self, program: ProgramBuilder) -> None:
        """`bidirectional`; the given tensors are the embedded tokens, the position of the first, and the source."""
        program.positions = 1
        layers = len(self.stack)
        slots = [DecoderSlots((2 + layer, 2 + layers + layer, 2 + 2 * layers), None) for layer in range(layers)]
        embedded = program.new(program.outputs)
        program.copy(program.given(0, program.outputs), embedded)
        program.copy(self.describe(program, embedded, slots), program.result())

    def describe(self, program: ProgramBuilder, embedded: Vector, slots: Sequence[DecoderSlots]) -> Vector:
        """`forward` in a compiled step, without dropout."""
        x = self.positions.describe(program, embedded)
        for layer, (source, cache) in zip(self.stack, slots, strict=True):
            with program.scratch():
                layer.attention.describe(program, x, self.positions, cache)
                layer.cross_attention.describe(program, x, source)
                layer.mlp.describe(program, program.rms_norm(x), add_to=x)
        return program.rms_norm(x)

    @property
    def stack(self) -> Sequence[TransformerDecoderLayer]:
        return cast(Sequence[TransformerDecoderLayer], self.layers)


def _positions(config: TransformerConfig) -> Positions:
    return POSITIONS[config.positions](config.width, config.head_width, config.context)


class TransformerEncoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.mlp = SquaredReluMLP(config.width, config.mlp_ratio * config.width, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, rotate: Rotate, attend: Attend) -> Tensor:
        x = x + self.dropout(self.attention(rms_norm(x), rotate, attend))
        return x + cast(Tensor, self.dropout(self.mlp(rms_norm(x))))


class TransformerDecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.cross_attention = CrossAttention(config)
        self.mlp = SquaredReluMLP(config.width, config.mlp_ratio * config.width, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, rotate: Rotate, attend: Attend, cross_attend: CrossAttend) -> Tensor:
        x = x + self.dropout(self.attention(rms_norm(x), rotate, attend))
        x = x + self.dropout(self.cross_attention(rms_norm(x), cross_attend))
        return x + cast(Tensor, self.dropout(self.mlp(rms_norm(x))))


class SelfAttention(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query_key_value = input_projection(config.width, 3 * config.width)
        self.out = output_projection(config.width, config.width)

    def forward(self, x: Tensor, rotate: Rotate, attend: Attend) -> Tensor:
        projected = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key = rotate(rms_norm(projected[:, :, :2])).transpose(1, 3).unbind(2)  # (B, H, K, D/H) each
        value = projected[:, :, 2].transpose(1, 2)
        return cast(Tensor, self.out(attend(query, key, value).transpose(1, 2).flatten(2)))

    def describe(self, program: ProgramBuilder, x: Vector, positions: Positions, cache: CacheSlots | None) -> None:
        """`forward` of the normalised vector in a program, added to it; bidirectional without a cache."""

        def attend(query: Vector, key: Vector, value: Vector) -> Vector:
            if cache is None:
                return program.full_attention(query, key, value, self.heads)
            return program.self_attention(query, key, value, *cache, self.heads)

        self.describe_attention(program, x, positions.tables, attend)

    def describe_attention(
        self,
        program: ProgramBuilder,
        x: Vector,
        rotation: tuple[Tensor, Tensor] | None,
        attend: Callable[[Vector, Vector, Vector], Vector],
    ) -> None:
        """The same with any attention, and rotary positions or none."""
        projected = program.apply(self.query_key_value, program.rms_norm(x))
        query_key = program.part(projected, 0, 2 * x.size)
        program.rms_norm(query_key, groups=2 * self.heads, out=query_key)
        if rotation is not None:
            program.rotate(query_key, *rotation, 2 * self.heads)
        program.apply(self.out, attend(*program.split(projected, 3)), add_to=x)


class CrossAttention(nn.Module):
    """Cross-attention from target to source, without rotary positions: those of two languages are not comparable."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = input_projection(config.width, config.width)
        self.key_value = input_projection(config.width, 2 * config.width)
        self.out = output_projection(config.width, config.width)

    def key_values(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a source (B, S, D), (B, H, S, D/H) each, computed once per source."""
        key, value = self.key_value(encoded).unflatten(-1, (2, self.heads, -1)).transpose(1, 3).unbind(2)
        return rms_norm(key), value.contiguous()

    def describe_key_values(self, program: ProgramBuilder, encoded: Vector, out: Vector) -> None:
        """`key_values` of a source token in a program."""
        key, _ = program.split(program.apply(self.key_value, encoded, out=out), 2)
        program.rms_norm(key, groups=self.heads, out=key)

    def forward(self, x: Tensor, cross_attend: CrossAttend) -> Tensor:
        query = rms_norm(self.query(x).unflatten(-1, (self.heads, -1))).transpose(1, 2)
        return cast(Tensor, self.out(cross_attend(query).transpose(1, 2).flatten(2)))

    def describe(self, program: ProgramBuilder, x: Vector, source: SourceSlots) -> None:
        """`forward` of the normalised vector in a compiled step, added to it."""
        query = program.apply(self.query, program.rms_norm(x))
        program.rms_norm(query, groups=self.heads, out=query)
        program.apply(self.out, program.cross_attention(query, *source, self.heads), add_to=x)
