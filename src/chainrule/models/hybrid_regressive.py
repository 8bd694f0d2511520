"""Every k-th token one after the other, then all of the rest at once.

With a target padded to a multiple of k by its last token, EOS, and z_j = y_jk its every k-th token,

    P(y | s) = Π_j P(z_j | z_<j, s) · Π_{t not a multiple of k} P(y_t | z, s)

The first factor, the leader, is a `transformer` of sequences k times shorter than the target, so that it takes 1/k of
the steps; it decides what is said, and where the target ends. The second, the filler, is one pass of a decoder that
sees masks between the tokens of z, and all of them at once. What makes parallel translations stutter, that neighbours
do not know of each other's choice among several good ones, hardly happens between tokens that are settled.

Wang et al., 2022, "Hybrid-regressive paradigm for accurate and speed-robust neural machine translation", who share one
decoder between the two. Here each has its own, beside the shared encoder and embeddings, and both learn in every step:
the objective is the likelihood itself. It is exact for padded targets; of targets that go on after an EOS nobody asks,
so over real targets it sums to less than 1.

Shape letters: B rows, T target tokens, J = ⌈T / k⌉ tokens of the leader, N positions of all rows, D width.
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

GROWTH, SLACK = 3, 50  # a target has at most so many tokens for each source token, and this many more


class HybridRegressiveConfig(TransformerConfig):
    """The defaults have 2.2M parameters besides the embeddings."""

    decoder_layers: int = Field(3, ge=1, description="blocks of the leader, and as many of the filler")
    chunk_size: int = Field(2, ge=2, description="k: every k-th token is generated autoregressively")

    @property
    def leader(self) -> TransformerConfig:
        return TransformerConfig.model_validate(self.model_dump(exclude={"chunk_size"}))


class HybridRegressive(ParallelModel):
    """Every k-th token by an autoregressive pass, all tokens between them by one parallel pass."""

    Config = HybridRegressiveConfig
    likelihood = "lower_bound"
    recipe: ClassVar[Mapping[str, Any]] = {"label_smoothing": 0.1}
    config: HybridRegressiveConfig

    def __init__(self, config: HybridRegressiveConfig) -> None:
        super().__init__(config)
        self.leader = Transformer(config.leader)
        self.filler = TransformerDecoder(config)

    @property
    def context(self) -> int:
        """Padded to a multiple of `every`, it still has to fit."""
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
        yield from self.leader.tables()

    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self.leader.init_output_bias(log_frequencies)

    def draw_noise(self, batch: Batch) -> Tensor:
        return torch.zeros(len(batch.target.ids), 0)  # nothing is left to it

    def loss(self, batch: Batch, noise: Tensor, *, smoothing: float = 0.0) -> Tensor:
        return -self._log_probs(batch, smoothing).sum()

    def log_prob(self, batch: Batch) -> Tensor:
        return self._log_probs(batch).sum(1)

    def _log_probs(self, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """(B, k · J) nats of the tokens of padded targets."""
        self.require_room(batch.target.ids.shape[1])
        source = self.require_source(batch.source)
        target = self._padded(batch.target)
        led = Sequences(
            target.ids[:, self.config.chunk_size - 1 :: self.config.chunk_size],
            target.lengths // self.config.chunk_size,
        )
        read = self._read(source)
        leading = self.leader.read(Batch(led, source), read.leader.cross_attention(self.leader.rate))
        hidden = torch.cat([self._fill(led, read.filler), leading[:, :, None]], 2).flatten(1, 2)
        real = target.mask
        nats = hidden.new_zeros(real.shape)
        ids = target.ids[real][:, None]
        nats[real] = self.leader.tokens.log_probs(hidden[real], ids, smoothing=smoothing)[:, 0]
        return nats

    @torch.inference_mode()
    def generate(
        self, source: Sequences, budget: DecodingBudget, *, eos: int = 0, suppress: Sequence[int] = ()
    ) -> list[ParallelOutput]:
        require_one_pass(budget)
        read = self._read(self.require_source(source))
        led, nats = self._lead(read.leader, eos, suppress)
        ids, log_probs = self.leader.tokens.most_likely(self._fill(led, read.filler), suppress)  # (B, J, k − 1)
        written = torch.cat([ids, led.ids[..., None]], 2).flatten(1)
        nats = nats + log_probs.sum(2)
        total = nats.masked_fill(~led.mask, 0.0).sum(1)
        found = zip(written.tolist(), (self.config.chunk_size * led.lengths).tolist(), total.tolist(), strict=True)
        return [ParallelOutput(ids[:length], nats, nats / length) for ids, length, nats in found]

    def _lead(self, memory: EncoderMemory, eos: int, suppress: Sequence[int]) -> tuple[Sequences, Tensor]:
        """Every k-th token, greedily, up to the first EOS; and (B, J) their nats."""
        limits = (GROWTH * memory.lengths + SLACK).clamp(max=self.context) // self.config.chunk_size
        state: State = self.leader.begin(memory)
        token = torch.full_like(memory.lengths, self.leader.bos)
        ids, nats = [], []
        ended = torch.full_like(memory.lengths, int(limits.max()))  # (B,) how many tokens a row has
        for count in range(1, int(limits.max()) + 1):
            hidden, state = self.leader.advance(token[:, None], state)
            token, log_prob = (part[:, 0] for part in self.leader.tokens.most_likely(hidden, suppress))
            ids.append(token)
            nats.append(log_prob)
            ended = torch.where((token == eos) | (count == limits), ended.clamp(max=count), ended)
            if count >= int(ended.max()):
                break
        return Sequences(torch.stack(ids, 1), ended), torch.stack(nats, 1)

    def _read(self, source: Sequences) -> Read:
        encoded = self.leader.encode(source)
        return Read(
            self.leader.decoder.encoder_memory(encoded, source.lengths),
            self.filler.encoder_memory(encoded, source.lengths),
        )

    def _fill(self, led: Sequences, memory: EncoderMemory) -> Tensor:
        """(B, J, k − 1, D): what stands before each token of the leader."""
        every = self.config.chunk_size
        ids = torch.full((*led.ids.shape, every), self.leader.bos, device=led.ids.device)
        ids[..., -1] = readable(led)
        hidden = self.filler.at_once(self.leader.tokens.embed(ids.flatten(1)), every * led.lengths, memory)
        return hidden.view(*ids.shape, -1)[:, :, :-1]

    def _padded(self, target: Sequences) -> Sequences:
        """Each row with its last token repeated, up to a multiple of k."""
        every = self.config.chunk_size
        lengths = (target.lengths + every - 1) // every * every
        places = torch.arange(int(lengths.max()), device=lengths.device)
        ids = target.ids.gather(1, torch.minimum(places, target.lengths[:, None] - 1))
        return Sequences(ids, lengths)


class Read(NamedTuple):
    """What the two decoders see of the source."""

    leader: EncoderMemory
    filler: EncoderMemory


def ordinal(number: int) -> str:
    """2 as 2nd."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"
