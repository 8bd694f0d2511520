"""Hybrid-regressive translation: every k-th token autoregressively, then all other tokens in one parallel pass.

With a target padded to a multiple of k by repeating its last token, EOS, and z_j = y_jk every k-th token,

    P(y | s) = Π_j P(z_j | z_<j, s) · Π_{t not a multiple of k} P(y_t | z, s)

The first factor, Skip-AT, is a `transformer` over sequences k times shorter than the target: it takes 1/k of the steps
and decides where the target ends. The second, Skip-CMLM, is one pass of a bidirectional decoder over z with masks
between its tokens. Parallel translation repeats or drops words because neighbouring tokens are chosen independently
among several good translations; conditioned on z, neighbours are mostly determined.

Wang et al., 2022, "Hybrid-regressive paradigm for accurate and speed-robust neural machine translation", who share one
decoder. Here each has its own, with a shared encoder and embeddings, and both are trained in every step: the objective
is the likelihood itself. It is exact for padded targets. Targets that continue after EOS have positive probability, so
over real targets it sums to less than 1.

Shape letters: B rows, T target tokens, J = ⌈T / k⌉ tokens of Skip-AT, N positions of all rows, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.interface.base import readable
from chainrule.interface.conditional import DecodingBudget, ParallelModel, ParallelOutput, require_one_pass
from chainrule.models.transformer import EncoderMemory, Transformer, TransformerConfig, TransformerDecoder
from chainrule.types import Batch, Sequences, State

MAX_LENGTH_RATIO, LENGTH_MARGIN = 3, 50  # maximum number of target tokens per source token, plus this many


class HybridRegressiveConfig(TransformerConfig):
    """The defaults have 2.2M parameters besides the embeddings."""

    decoder_layers: int = Field(3, ge=1, description="blocks of each of the two decoders")
    chunk_size: int = Field(2, ge=2, description="k: every k-th token is generated autoregressively")

    @property
    def skip_at(self) -> TransformerConfig:
        return TransformerConfig.model_validate(self.model_dump(exclude={"chunk_size"}))


class HybridRegressive(ParallelModel):
    """Translation with every k-th token generated autoregressively and the tokens between in one parallel pass."""

    Config = HybridRegressiveConfig
    likelihood = "lower_bound"
    recipe: ClassVar[Mapping[str, Any]] = {"label_smoothing": 0.1}
    config: HybridRegressiveConfig

    def __init__(self, config: HybridRegressiveConfig) -> None:
        super().__init__(config)
        self.skip_at = Transformer(config.skip_at)
        self.skip_cmlm = TransformerDecoder(config)

    @property
    def context(self) -> int:
        """The largest multiple of `chunk_size` that fits, because targets are padded to one."""
        return self.config.context // self.config.chunk_size * self.config.chunk_size

    @property
    def source_context(self) -> int:
        return self.config.context

    @property
    def default_budget(self) -> DecodingBudget:
        return DecodingBudget()

    @property
    def fixed_schedule(self) -> str:
        return f"every {ordinal(self.config.chunk_size)} token"

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.skip_at.tables()

    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self.skip_at.init_output_bias(log_frequencies)

    def draw_noise(self, batch: Batch) -> Tensor:
        return torch.zeros(len(batch.target.ids), 0)  # the loss is deterministic

    def loss(self, batch: Batch, noise: Tensor, *, smoothing: float = 0.0) -> Tensor:
        return -self._log_probs(batch, smoothing).sum()

    def log_prob(self, batch: Batch) -> Tensor:
        return self._log_probs(batch).sum(1)

    def _log_probs(self, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """(B, k · J) nats of the tokens of padded targets."""
        self.require_room(batch.target.ids.shape[1])
        source = self.require_source(batch.source)
        target = self._padded(batch.target)
        anchors = Sequences(
            target.ids[:, self.config.chunk_size - 1 :: self.config.chunk_size],
            target.lengths // self.config.chunk_size,
        )
        memories = self._encode(source)
        cross_attention = memories.skip_at.cross_attention(self.skip_at.dropout_rate)
        at_anchors = self.skip_at.decode(Batch(anchors, source), cross_attention)
        hidden = torch.cat([self._between(anchors, memories.skip_cmlm), at_anchors[:, :, None]], 2).flatten(1, 2)
        real = target.mask
        ids = target.ids[real][:, None]
        nats = self.skip_at.tokens.log_probs(hidden[real], ids, smoothing=smoothing)[:, 0]
        return nats.new_zeros(real.shape).masked_scatter(real, nats)  # not of the type of `hidden`

    @torch.inference_mode()
    def generate(
        self, source: Sequences, budget: DecodingBudget, *, eos: int = 0, suppress: Sequence[int] = ()
    ) -> list[ParallelOutput]:
        require_one_pass(budget)
        memories = self._encode(self.require_source(source))
        anchors, nats = self._decode_anchors(memories.skip_at, eos, suppress)
        hidden = self._between(anchors, memories.skip_cmlm)
        ids, log_probs = self.skip_at.tokens.most_likely(hidden, suppress)  # (B, J, k − 1)
        targets = torch.cat([ids, anchors.ids[..., None]], 2).flatten(1)
        nats = nats + log_probs.sum(2)
        total = nats.masked_fill(~anchors.mask, 0.0).sum(1)
        found = zip(targets.tolist(), (self.config.chunk_size * anchors.lengths).tolist(), total.tolist(), strict=True)
        return [ParallelOutput(ids[:length], nats, nats / length) for ids, length, nats in found]

    def _decode_anchors(self, memory: EncoderMemory, eos: int, suppress: Sequence[int]) -> tuple[Sequences, Tensor]:
        """Every k-th token by greedy decoding, up to the first EOS, and their nats (B, J)."""
        limits = (MAX_LENGTH_RATIO * memory.lengths + LENGTH_MARGIN).clamp(max=self.context) // self.config.chunk_size
        state: State = self.skip_at.begin(memory)
        token = torch.full_like(memory.lengths, self.skip_at.bos)
        ids, nats = [], []
        ended = torch.full_like(memory.lengths, int(limits.max()))  # (B,) number of tokens
        for count in range(1, int(limits.max()) + 1):
            hidden, state = self.skip_at.advance(token[:, None], state)
            token, log_prob = (part[:, 0] for part in self.skip_at.tokens.most_likely(hidden, suppress))
            ids.append(token)
            nats.append(log_prob)
            ended = torch.where((token == eos) | (count == limits), ended.clamp(max=count), ended)
            if count >= int(ended.max()):
                break
        return Sequences(torch.stack(ids, 1), ended), torch.stack(nats, 1)

    def _encode(self, source: Sequences) -> DecoderMemories:
        encoded = self.skip_at.encode(source)
        return DecoderMemories(
            self.skip_at.decoder.encoder_memory(encoded, source.lengths),
            self.skip_cmlm.encoder_memory(encoded, source.lengths),
        )

    def _between(self, anchors: Sequences, memory: EncoderMemory) -> Tensor:
        """(B, J, k − 1, D): hidden vectors of the tokens between the anchors."""
        size = self.config.chunk_size
        ids = torch.full((*anchors.ids.shape, size), self.skip_at.bos, device=anchors.ids.device)
        ids[..., -1] = readable(anchors)
        hidden = self.skip_cmlm.bidirectional(self.skip_at.tokens.embed(ids.flatten(1)), size * anchors.lengths, memory)
        return hidden.view(*ids.shape, -1)[:, :, :-1]

    def _padded(self, target: Sequences) -> Sequences:
        """Each row padded to a multiple of k by repeating its last token."""
        size = self.config.chunk_size
        lengths = (target.lengths + size - 1) // size * size
        positions = torch.arange(int(lengths.max()), device=lengths.device)
        ids = target.ids.gather(1, torch.minimum(positions, target.lengths[:, None] - 1))
        return Sequences(ids, lengths)


class DecoderMemories(NamedTuple):
    """The keys and values of the source for the two decoders."""

    skip_at: EncoderMemory
    skip_cmlm: EncoderMemory


def ordinal(number: int) -> str:
    """2 as 2nd."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"
