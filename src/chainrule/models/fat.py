"""The Fast Autoregressive Transformer (FAT): slow-attention encoder, decoder with a gated linear recurrence.

    source   x⁰ = E_s[s] + p      h = x + W_o (σ(G u) ∘ Σ_j α_ij v_j)        u = norm(x),  v = V u
                                  α_ij = softmax_j ‖ReLU(A u_i + B u_j + b)‖₂ / √d
                                  x' = h + MLP(norm(h))                      m = norm(xᴸ)
    target   y⁰ = E_t[y_<t]       h_t = a_t ∘ h_{t−1} + (1 − a_t) ∘ C u_t    u = norm(y),  a = σ(F u + f)
                                  β_tn = softmax_n(Q(norm(h_t)) · K(m_n) / √D + U_{t−n}),   c_t = Σ_n β_tn V'(m_n)
                                  y' = y + MLP([u; norm(h); c])
    P(y_t | y_<t, s) = softmax(W norm(yᴸ) + b)

After the notes; the equations show one head. *Slow multi-head attention* passes queries and keys through two linear
maps each, which are equivalent to one (A, B); its scores are in `nn.slow_attention`. *Fast fully connected softmax*
attends to the source with the recurrent state h, which is a scan over the whole target in training (`nn.scan`) and
one vector per layer in decoding, independent of the length. The notes give a second form of its weights, tanh of the
scores divided by a sum: with attention_weights=tanh, β_tn = tanh(e_tn) / Σ_j |tanh(e_tj)|, which may be negative.
Index t here counts from the last input token, so the notes' h_{t−1} is this h_t. Their bias in the softmax is
constant over n and cancels, so it is omitted. The notes' MLP reads E(y_{t−1}) and the context; here it reads h as
well, since earlier target tokens would otherwise only affect the attention.
What is not in the notes (pre-norm, squared ReLU, branches initialised to zero) is as in `transformer`.

U is a learned bias for each relative position t − n, clipped to a maximum distance: translations are mostly monotone,
and unlike a table over t and n, relative positions work at any length. For right-to-left targets, n is counted from the
end of the source.

With `features`, m = norm(W f + w) for the hidden vectors f of a pretrained BERT or GPT-2, in place of the encoder.

Shape letters: B rows, T positions, K tokens in a chunk, S source tokens, V vocabulary, D width, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.config import Settings
from chainrule.errors import ConfigError
from chainrule.features.source import FeaturesConfig, SourceFeatures
from chainrule.interface.base import Advance, readable, shift_right
from chainrule.interface.capabilities import Directed, FitsStatistics, TokenPairs
from chainrule.interface.conditional import Conditional, EmbeddingConfig, HasAttention
from chainrule.kernels.instructions import SIGMOID, SourceSlots, Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.nn import compiled_encoder, slow_attention
from chainrule.nn.attention import CrossAttend, RecordingAttention, SourceAttention, padding_bias, require_heads
from chainrule.nn.dropout import Dropout, apply_dropout
from chainrule.nn.layers import input_projection, output_projection, rms_norm
from chainrule.nn.mlp import SquaredReluMLP
from chainrule.nn.positions import sinusoids
from chainrule.nn.scan import scan
from chainrule.nn.shortlist import Shortlist, Shortlisted, Shortlists, partners_of
from chainrule.nn.tokens import PairTable, TokenReadout
from chainrule.types import Batch, Progress, Sequences, State


class SkipConfig(Settings):
    """The hybrid forward pass: rare source tokens are skipped."""

    threshold: float = Field(
        0.0,
        ge=0,
        description="skip source tokens with a count below this times the source vocabulary; 0: none",
    )


class ShortlistConfig(Settings):
    """Vocabulary shortlist for decoding; see `nn.shortlist`."""

    partners: int = Field(0, ge=0, description="rare target tokens per source token on the shortlist; 0: no shortlist")
    threshold: float | None = Field(
        None, ge=0, description="tokens with a count below this times the vocabulary are rare; none: skip.threshold"
    )


class FATConfig(FeaturesConfig, EmbeddingConfig):
    """The defaults have 1.5M parameters besides the embeddings: minutes of training on a few cores.

    Most of them are in the encoder, which runs once and in parallel; the decoder runs once for every target token, so a
    shallow one is fast (Kasai et al., 2021).
    """

    encoder_layers: int = Field(6, ge=1, description="encoder blocks of slow attention and MLP")
    decoder_layers: int = Field(1, ge=1, description="decoder blocks of recurrence, fast softmax and MLP")
    width: int = Field(128, ge=1, description="width of the hidden vectors")
    heads: int = Field(4, ge=1, description="attention heads per block")
    key_width: int = Field(16, ge=1, description="features per head of slow attention; its cost is proportional to it")
    mlp_ratio: int = Field(4, ge=1, description="width of the MLP's hidden layer divided by width")
    context: int = Field(512, ge=1, description="maximum number of source tokens; targets have no limit")
    max_distance: int = Field(32, ge=1, description="relative positions t − n are clipped to this distance")
    attention_weights: Literal["softmax", "tanh"] = Field(
        "softmax", description="cross-attention weights from scores e: softmax, or tanh(e_n) / Σ_j |tanh(e_j)|"
    )
    direction: Literal["left_to_right", "right_to_left"] = Field(
        "left_to_right", description="the order in which target tokens are generated"
    )
    skip: SkipConfig = SkipConfig()
    shortlist: ShortlistConfig = ShortlistConfig()
    dropout: float = Field(0.2, ge=0, lt=1, description="dropout on embeddings, attention and residual branches")

    @property
    def rare_below(self) -> float:
        """The count below which a target token is scored only if it is on the shortlist."""
        own = self.shortlist.threshold
        return (self.skip.threshold if own is None else own) * self.vocabulary

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require_heads(self.width, self.heads)
        if self.skip.threshold and self.features is not None:
            raise ValueError(
                f"skip.threshold {self.skip.threshold:g} drops source tokens, and a pretrained encoder (features) "
                "reads all of them; set one of the two"
            )
        if self.shortlist.partners and not self.rare_below:
            raise ValueError(
                f"shortlist.partners {self.shortlist.partners} needs a threshold above 0, else no token is "
                "rare; set skip.threshold or shortlist.threshold, for example to 0.001"
            )
        return self


class FATSource(NamedTuple):
    """Keys and values of the kept source tokens for the cross-attention of each decoder layer."""

    keys: tuple[Tensor, ...]  # (B, H, S, D/H) each
    values: tuple[Tensor, ...]
    positions: Tensor  # (B, S), or (1, S) if the same for all rows
    lengths: Tensor  # (B,)


class FATState(NamedTuple):
    source: FATSource
    memories: tuple[Tensor, ...]  # (B, D) h of each layer
    positions: Tensor  # (B,) tokens read so far, including BOS


class KeptTokens(NamedTuple):
    """The source tokens that are not skipped, moved together."""

    ids: Tensor  # (B, N)
    indices: Tensor  # (B, N) or (1, N): their index in the source
    positions: Tensor  # the same, counted from the end of the source for right-to-left targets
    lengths: Tensor  # (B,)


class FAT(Conditional, HasAttention, Directed, FitsStatistics, Shortlists, TokenReadout, Compilable):
    """Fast Autoregressive Transformer: decoder with a gated linear recurrence, trained in parallel by a scan."""

    Config = FATConfig
    task = "translation"
    recipe: ClassVar[Mapping[str, Any]] = {"label_smoothing": 0.1}
    config: FATConfig
    tokens: PairTable
    sinusoids: Tensor  # (context, D); not part of checkpoints
    source_frequency: Tensor  # (source vocabulary,) counts in the training data; ∞ if not counted

    def __init__(self, config: FATConfig) -> None:
        super().__init__(config)
        self.features = SourceFeatures.of(config, config.source_vocabulary, config.width)
        if self.features is not None:
            self.config = config.model_copy(update=self.features.settings)
        self.tokens = PairTable.of(config, config.width, with_source=self.features is None)
        layers = config.encoder_layers if self.features is None else 0
        self.encoder = nn.ModuleList(FATEncoderLayer(config) for _ in range(layers))
        self.decoder = nn.ModuleList(FATDecoderLayer(config) for _ in range(config.decoder_layers))
        self.dropout = Dropout(config.dropout)
        self.register_buffer("sinusoids", sinusoids(config.width, config.context), persistent=False)
        self.register_buffer("source_frequency", torch.full((config.source_vocabulary,), math.inf))
        partners = config.shortlist.partners
        self.shortlist = Shortlist(config.source_vocabulary, config.vocabulary, partners) if partners else None

    @property
    def source_context(self) -> int | None:
        return self.config.context if self.features is None else self.features.context

    @property
    def right_to_left(self) -> bool:
        return self.config.direction == "right_to_left"

    def tables(self) -> Iterator[nn.Parameter]:
        yield from super().tables()
        yield from (layer.distances for layer in self._decoder_layers)

    # Token statistics

    def fit_statistics(self, train: TokenPairs, *, held_out: TokenPairs = (), progress: Progress | None = None) -> None:
        """Count the tokens of both sides if the settings need it, and compute frozen features."""
        config = self.config
        if self.features is not None:
            train = list(train)
            self.features.precompute(train, progress)
        if not config.skip.threshold and self.shortlist is None:
            return
        seen = list(train)
        self.set_source_frequency(_counts((source for source, _ in seen), config.source_vocabulary))
        if self.shortlist is not None:
            rare = _counts((target for _, target in seen), config.vocabulary) < config.rare_below
            partners = partners_of(seen, rare.numpy(), config.source_vocabulary, config.shortlist.partners)
            self.shortlist.set(~rare, partners)

    def set_source_frequency(self, counts: Tensor) -> None:
        """Set the counts of source tokens in the training data, (source vocabulary,)."""
        self.source_frequency.copy_(counts)

    def shortlisted(self) -> Shortlisted:
        """The same model for decoding with its shortlist."""
        if self.shortlist is None:
            raise ConfigError("this model was trained without a shortlist; train one with model.shortlist.partners=20")
        return Shortlisted(self, self.shortlist)

    # Encoder and decoder

    def hidden(self, batch: Batch) -> Tensor:
        source = self._encode(batch.source)
        inputs = shift_right(readable(batch.target), self.bos)
        return self._decode(inputs, self._memories(len(inputs)), self._cross_attention(source, _steps(inputs)))[0]

    def attention_maps(self, batch: Batch) -> Tensor:
        kept = self._keep(batch.source)
        inputs = shift_right(readable(batch.target), self.bos)
        source = self._encode(batch.source)
        layers = [RecordingAttention(layer) for layer in self._cross_attention(source, _steps(inputs))]
        self._decode(inputs, self._memories(len(inputs)), layers)
        weights = torch.stack([weights for layer in layers for weights in layer.recorded]).mean((0, 2))  # (B, T, N)
        width = self.require_source(batch.source).ids.shape[1]
        return weights.new_zeros(*inputs.shape, width).scatter_add_(
            2, kept.indices[:, None].expand_as(weights), weights
        )

    def initial(self, source: Sequences | None, batch_size: int) -> FATState:
        encoded = self._encode(source)
        rows = len(encoded.lengths)
        encoded = encoded._replace(positions=encoded.positions.expand(rows, -1))
        return FATState(encoded, self._memories(rows), torch.zeros(rows, dtype=torch.int64, device=self.device))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        before = cast(FATState, state)
        cross_attends = self._cross_attention(before.source, before.positions[:, None] + _steps(tokens))
        hidden, memories = self._decode(tokens, before.memories, cross_attends)
        return Advance(hidden, FATState(before.source, memories, before.positions + tokens.shape[1]))

    def _keep(self, source: Sequences | None) -> KeptTokens:
        """The hybrid forward pass: drop rare tokens before the encoder; the last token of a source is always kept."""
        given = self.require_source(source)
        ids, lengths = readable(given), given.lengths
        index = torch.arange(ids.shape[1], device=ids.device)[None]
        if self.config.skip.threshold:
            common = self.source_frequency[ids] >= self.config.skip.threshold * self.source_vocabulary
            kept = given.mask & (common | (index == given.lengths[:, None] - 1))
            lengths = kept.sum(1)
            index = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(lengths.max())]
            ids = ids.gather(1, index)
        positions = (given.lengths[:, None] - 1 - index).clamp_min_(0) if self.right_to_left else index
        return KeptTokens(ids, index, positions, lengths)

    def _encode(self, source: Sequences | None) -> FATSource:
        kept = self._keep(source)
        if self.features is not None:
            x = self.features(self.require_source(source))
        else:
            x = self.dropout(self.tokens.embed_source(kept.ids) + self.sinusoids[kept.positions])
            if (encoded := self._compiled_source(x, kept)) is not None:
                return encoded
            padding = padding_bias(kept.lengths, kept.ids.shape[1], x.dtype)
            for layer in self.encoder:
                x = layer(x, padding)
        keys, values = zip(*(layer.key_values(rms_norm(x)) for layer in self._decoder_layers), strict=True)
        return FATSource(keys, values, kept.positions, kept.lengths)

    def _compiled_source(self, x: Tensor, kept: KeptTokens) -> FATSource | None:
        """The keys and values of embedded source tokens (B, S, D) by a program."""
        layers = self.config.decoder_layers
        outputs = 2 * layers * self.config.width
        unread = compiled_encoder.unread(x, kept.lengths)
        found = compiled_encoder.encode(self, unread, x, outputs, self._describe_source)
        if found is None:
            return None
        keys, values = compiled_encoder.keys_and_values(found, layers, self.config.heads)
        return FATSource(keys, values, kept.positions, kept.lengths)

    def _describe_source(self, program: ProgramBuilder) -> None:
        """The encoder, and the keys and values of each decoder layer; the given tensor has the embedded tokens."""
        x = program.new(self.config.width)
        program.copy(program.given(0, x.size), x)
        for encoder in cast(Iterable[FATEncoderLayer], self.encoder):
            with program.scratch():
                encoder.describe(program, x)
        program.rms_norm(x, out=x)
        parts = program.split(program.result(), self.config.decoder_layers)
        for layer, out in zip(self._decoder_layers, parts, strict=True):
            program.apply(layer.key_value, x, out=out)

    def _decode(
        self, tokens: Tensor, memories: Sequence[Tensor], cross_attends: Sequence[CrossAttend]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(B, K) to hidden vectors (B, K, D) and the recurrent states after them."""
        y = self.dropout(self.tokens.embed(tokens))
        after = []
        for layer, memory, cross_attend in zip(self._decoder_layers, memories, cross_attends, strict=True):
            y, memory = layer(y, memory, cross_attend)
            after.append(memory)
        return rms_norm(y), tuple(after)

    @property
    def has_program(self) -> bool:
        return self.config.attention_weights == "softmax"

    def describe_step(self, program: ProgramBuilder) -> None:
        self.tokens.describe_readout(program, self.describe_hidden(program))

    def describe_hidden(self, program: ProgramBuilder) -> Vector:
        layers = self.config.decoder_layers
        program.positions = 3 * layers + 2
        y = self.tokens.describe_embedding(program)
        for slot, layer in enumerate(self._decoder_layers):
            with program.scratch():
                source = (slot, layers + slot, 2 * layers + 1)
                layer.describe(program, y, source, positions=2 * layers, memory=2 * layers + 2 + slot)
        return program.rms_norm(y)

    def _cross_attention(self, source: FATSource, positions: Tensor) -> list[SourceAttention]:
        """The cross-attention function of each decoder layer for target positions (B, K) or (1, K)."""
        offsets = self._offsets(source.positions[:, None], positions[..., None])  # (B, K, S) or (1, K, S)
        padding = padding_bias(source.lengths, offsets.shape[-1], source.keys[0].dtype)
        rate = self.config.dropout if self.training else 0.0
        attention = SourceAttention if self.config.attention_weights == "softmax" else TanhSourceAttention
        cross_attends = []
        for layer, keys, values in zip(self._decoder_layers, source.keys, source.values, strict=True):
            bias = F.embedding(offsets, layer.distances).permute(0, 3, 1, 2)  # (B, H, K, S) U
            cross_attends.append(attention(keys, values, bias if padding is None else bias + padding, rate))
        return cross_attends

    def _offsets(self, source: Tensor, target: Tensor) -> Tensor:
        """The row of `distances` for t − n."""
        return (target - source).clamp_(-self.config.max_distance, self.config.max_distance) + self.config.max_distance

    def _memories(self, rows: int) -> tuple[Tensor, ...]:
        return tuple(self.tokens.matrix.new_zeros(rows, self.config.width) for _ in self.decoder)

    @property
    def _decoder_layers(self) -> Iterable[FATDecoderLayer]:
        return cast(Iterable[FATDecoderLayer], self.decoder)


class TanhSourceAttention(SourceAttention):
    """Signed weights whose absolute values sum to 1: tanh(e_n) / Σ_j |tanh(e_j)|."""

    def __call__(self, query: Tensor) -> Tensor:
        return apply_dropout(self._signed(query), self.dropout) @ self.values

    def weights(self, query: Tensor) -> Tensor:
        return self._signed(query).abs()

    def _signed(self, query: Tensor) -> Tensor:
        scores = query.shape[-1] ** -0.5 * query @ self.keys.mT
        if self.bias is not None:
            scores = scores + self.bias
        values = scores.tanh().masked_fill(scores == -torch.inf, 0.0)
        return F.normalize(values, p=1.0, dim=-1)


class FATEncoderLayer(nn.Module):
    """Slow multi-head attention with an output gate, then an MLP."""

    def __init__(self, config: FATConfig) -> None:
        super().__init__()
        self.heads = config.heads
        # A and B with b
        self.query_key = input_projection(config.width, 2 * config.heads * config.key_width, bias=True)
        self.value_gate = input_projection(config.width, 2 * config.width)  # V and G
        self.out = output_projection(config.width, config.width)
        self.mlp = SquaredReluMLP(config.width, config.mlp_ratio * config.width, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        x = x + self.dropout(self.attention(rms_norm(x), padding))
        return x + cast(Tensor, self.dropout(self.mlp(rms_norm(x))))

    def attention(self, x: Tensor, padding: Tensor | None) -> Tensor:
        rows, length, width = x.shape
        projected = self.query_key(x.flatten(0, 1)).view(rows, length, 2, self.heads, -1).to(x.dtype)
        query, key = projected.transpose(1, 3).unbind(2)  # (B, H, S, d) each
        scores = slow_attention.scores(query, key)
        weights = self.dropout((scores if padding is None else scores + padding).softmax(-1))
        value, gate = self.value_gate(x).split(width, -1)
        found = weights @ value.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, S, D/H)
        return cast(Tensor, self.out(found.transpose(1, 2).flatten(2) * gate.sigmoid()))

    def describe(self, program: ProgramBuilder, x: Vector) -> None:
        """`forward` in a program, in place."""
        u = program.rms_norm(x)
        query, key = program.split(program.apply(self.query_key, u), 2)
        value, gate = program.split(program.apply(self.value_gate, u), 2)
        found = program.slow_attention(query, key, value, self.heads)
        program.multiply(found, program.activate(gate, SIGMOID), out=found)
        program.apply(self.out, found, add_to=x)
        self.mlp.describe(program, program.rms_norm(x), add_to=x)


class FATDecoderLayer(nn.Module):
    """Gated linear recurrence, fast fully connected softmax over the source, and an MLP over both."""

    def __init__(self, config: FATConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.gates = input_projection(width, 2 * width, bias=True)  # F and C
        bias = cast(Tensor, self.gates.bias).detach()
        bias[:width] = torch.linspace(0, 4, width)  # half-lives from 1 to 38 steps
        self.query = input_projection(width, width)  # Q
        self.key_value = input_projection(width, 2 * width)  # K and V'
        self.distances = nn.Parameter(torch.zeros(2 * config.max_distance + 1, config.heads))  # U
        self.mlp = SquaredReluMLP(3 * width, config.mlp_ratio * width, width)
        self.dropout = Dropout(config.dropout)

    def key_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a source (B, S, D), (B, H, S, D/H) each, computed once per source."""
        key, value = self.key_value(source).unflatten(-1, (2, self.heads, -1)).transpose(1, 3).unbind(2)
        return key.contiguous(), value.contiguous()

    def forward(self, y: Tensor, memory: Tensor, cross_attend: CrossAttend) -> tuple[Tensor, Tensor]:
        """(B, K, D) and the state (B, D) to the same."""
        u = rms_norm(y)
        gates = self.gates(u.flatten(0, 1)).view(*u.shape[:2], -1).to(memory.dtype)
        forget, candidate = gates.transpose(0, 1).chunk(2, -1)  # (K, B, D) each
        decay = forget.sigmoid()
        h = scan(decay, (1 - decay) * candidate, memory)
        known = rms_norm(h.transpose(0, 1))
        query = self.query(known).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, K, D/H)
        context = cross_attend(query).transpose(1, 2).flatten(2)
        y = y + self.dropout(self.mlp(torch.cat([u, known, context], -1)))
        return y, h[-1] if len(h) else memory

    def describe(self, program: ProgramBuilder, y: Vector, source: SourceSlots, *, positions: int, memory: int) -> None:
        """`forward` in a compiled step, in place."""
        joined = program.new(3 * y.size)
        u, known, context = program.split(joined, 3)
        program.rms_norm(y, out=u)
        decay, candidate = program.split(program.apply(self.gates, u), 2)
        state = program.state(memory, y.size)
        program.interpolate(candidate, state, program.activate(decay, SIGMOID), out=state)
        program.rms_norm(state, out=known)
        query = program.apply(self.query, known)
        found = program.cross_attention(query, *source, self.heads, distances=(self.distances, positions))
        program.copy(found, context)
        self.mlp.describe(program, joined, add_to=y)


def _steps(tokens: Tensor) -> Tensor:
    """(1, K): 0, 1, …"""
    return torch.arange(tokens.shape[1], device=tokens.device)[None]


def _counts(rows: Iterable[Sequence[int] | npt.NDArray[np.integer]], vocabulary: int) -> Tensor:
    """(V,): the count of each token in the rows."""
    total = np.zeros(vocabulary, dtype=np.int64)
    for row in rows:
        np.add.at(total, np.asarray(row, dtype=np.int64), 1)
    return torch.from_numpy(total)
