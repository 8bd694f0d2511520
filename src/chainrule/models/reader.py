"""Extractive question answering: the start and end of the answer in a passage, or no answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.features.encoders import EncoderConfig, EncoderModel
from chainrule.features.stored import TokenRow
from chainrule.interface.base import RECURRENT_RECIPE, Advance
from chainrule.nn.attention import AttentionPooling
from chainrule.nn.dropout import Dropout
from chainrule.nn.recurrent_encoder import RecurrentEncoder, gather_positions
from chainrule.types import Sequences, State, length_mask

IMPOSSIBLE = -1e4
"""A logit whose probability underflows to 0; finite, so that the loss of an impossible target is finite."""


class ReaderConfig(EncoderConfig):
    """Settings of the reader; `vocabulary` is the number of positions in a passage plus one for "no answer"."""

    separator: int = Field(
        0, ge=0, description="id of the separator between question and passage; taken from the tokenizer"
    )
    width: int = Field(128, ge=2, multiple_of=2, description="width of all layers after the encoder")
    layers: int = Field(1, ge=1, description="bidirectional LSTM layers over the passage")
    max_distance: int = Field(64, ge=1, description="end − start is clipped to this distance, in tokens")


class SplitSource(NamedTuple):
    """A source, split into question and passage."""

    question: Sequences  # including the separator
    passage: Sequences
    positions: Tensor  # (B,) number of passage tokens that can be selected


class ReaderState(NamedTuple):
    passage: Tensor  # (B, P, D) question-aware vectors of the passage
    places: Tensor  # (B,) number of passage tokens that can be selected
    starts: Tensor  # (B, V) logits of the start
    positions: Tensor  # (B,) tokens read so far, including BOS


class SpanReader(EncoderModel):
    """Extractive question answering: P(start, end | question, passage), including "no answer".

    A target has two tokens, which are positions in the passage counted from 1, or 0 for "no answer" (pointer networks:
    Vinyals et al., 2015; Wang & Jiang, 2017). With q and p the encoder outputs of question and passage, encoded
    separately so that a passage is encoded once for all questions, u = pooling(q), and f_j whether token j occurs in
    the question (the last three as in Chen et al., 2017),

        a_j = Σ_n softmax_n(W p_j · W q_n) q_n,    h = BiLSTM(ReLU(C [p_j; a_j; p_j ∘ a_j; u ∘ p_j; f_j] + c))
        P(start = j | s) ∝ exp(v · ReLU(A h_j + B u)),    P(start = 0 | s) ∝ exp(w · ReLU(M [u; max_j h_j]))
        P(end = j | start = i, s) ∝ exp(v' · ReLU(A' h_j + B' h_i + d_{j−i})) for j ≥ i

    P(end = 0 | start = 0) = 1, so P is normalised over all spans and "no answer". 1 − P(start = 0) is the probability
    that the passage answers the question.
    """

    Config = ReaderConfig
    task = "answers"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "states_can_be_merged_and_selected": "a target is two tokens, too short for rows at three positions"
    }
    tokenizer = "words"
    recipe: ClassVar[Mapping[str, Any]] = {**RECURRENT_RECIPE, "learning_rate": 0.001, "batch_tokens": 4096}
    config: ReaderConfig

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__(config)
        width = config.width
        self.narrow = nn.Linear(self.encoder.width, width)
        self.align = nn.Linear(width, width)
        self.pooling = AttentionPooling(width, width, heads=1)
        self.combine = nn.Linear(4 * width + 1, width)
        self.read = RecurrentEncoder("lstm", config.layers, width, bidirectional=True, dropout=config.dropout)
        self.start_place, self.start_question = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.start_out = nn.Linear(width, 1, bias=False)
        self.nowhere = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.end_place, self.end_start = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.end_distance = nn.Parameter(torch.randn(config.max_distance + 1, width) * 0.1)
        self.end_out = nn.Linear(width, 1, bias=False)
        self.dropout = Dropout(config.dropout)

    @property
    def context(self) -> int:
        """A start and an end."""
        return 2

    @property
    def receptive_field(self) -> int:
        """An end depends on its start."""
        return 1

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.encoder.tables()
        yield self.end_distance

    def init_output_bias(self, log_frequencies: Tensor) -> None:
        """Positions have no useful frequencies."""

    def readout(self, hidden: Tensor) -> Tensor:
        return hidden

    def initial(self, source: Sequences | None, batch_size: int) -> ReaderState:
        question, passage, places = self._split(self.require_source(source))
        asked, read = (self.dropout(self.narrow(self.encoder(text))) for text in (question, passage))
        topic = self.pooling(asked, question.mask)  # u
        vectors = self._question_aware(asked, read, topic, question, passage)
        return ReaderState(vectors, places, self._starts(vectors, topic, places), torch.zeros_like(places))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        vectors, places, starts, positions = cast(ReaderState, state)
        count = tokens.shape[1]
        self.require_room(int(positions.max()) + count)
        logits = [
            torch.where((positions + number == 0)[:, None], starts, self._ends(vectors, places, tokens[:, number]))
            for number in range(count)
        ]
        found = torch.stack(logits, 1) if logits else starts.new_zeros(len(tokens), 0, self.vocabulary)
        return Advance(found, ReaderState(vectors, places, starts, positions + count))

    def encoder_inputs(self, source: TokenRow) -> Iterable[TokenRow]:
        ids = np.asarray(source)
        edge = int(np.argmax(ids == self.config.separator)) + 1
        return [text for text in (ids[:edge], ids[edge:]) if len(text)]

    def _split(self, source: Sequences) -> SplitSource:
        """Split every source after its first separator; without one, all of it is the passage."""
        separator, width = self.config.separator, source.ids.shape[1]
        is_edge = (source.ids == separator) & source.mask
        asked = torch.where(is_edge.any(1), is_edge.long().argmax(1) + 1, 0)  # (B,) tokens, including the separator
        left = source.lengths - asked
        where = asked[:, None] + torch.arange(max(1, int(left.max())), device=asked.device)
        passage = source.ids.gather(1, where.clamp(max=width - 1))
        question = source.ids[:, : max(1, int(asked.max()))]
        # An empty side is replaced by a separator, which cannot be selected.
        question = question.masked_fill((asked == 0)[:, None], separator)
        passage = passage.masked_fill((left == 0)[:, None], separator)
        return SplitSource(
            Sequences(question, asked.clamp(min=1)),
            Sequences(passage, left.clamp(min=1)),
            left.clamp(max=self.vocabulary - 1),
        )

    def _question_aware(
        self, asked: Tensor, read: Tensor, topic: Tensor, question: Sequences, passage: Sequences
    ) -> Tensor:
        """h, (B, P, D)."""
        scores = self.align(read) @ self.align(asked).mT  # (B, P, Q)
        aligned = scores.masked_fill(~question.mask[:, None], -torch.inf).softmax(-1) @ asked.masked_fill(
            ~question.mask[..., None], 0.0
        )
        same = (passage.ids[..., None] == question.ids[:, None]) & question.mask[:, None]
        found = torch.cat(
            [read, aligned, read * aligned, read * topic[:, None], same.any(-1, keepdim=True).to(read)], -1
        )
        vectors = self.dropout(F.relu(self.combine(found)))
        return cast(Tensor, self.read(vectors.transpose(0, 1), passage.lengths).outputs).transpose(0, 1).contiguous()

    def _starts(self, vectors: Tensor, topic: Tensor, places: Tensor) -> Tensor:
        """(B, V) logits of the start."""
        scores = self.start_out(F.relu(self.start_place(vectors) + self.start_question(topic)[:, None]))[..., 0]
        real = length_mask(places, vectors.shape[1])
        highest = vectors.masked_fill(~real[..., None], -1.0).amax(1)  # outputs of an LSTM lie above −1
        return self._all_logits(self.nowhere(torch.cat([topic, highest], -1)), scores.masked_fill(~real, IMPOSSIBLE))

    def _ends(self, vectors: Tensor, places: Tensor, starts: Tensor) -> Tensor:
        """(B, V) logits of the end, given the starts (B,)."""
        numbers = torch.arange(1, vectors.shape[1] + 1, device=places.device)  # (P,)
        begin = gather_positions(vectors, (starts - 1).clamp(min=0)[:, None])[:, 0]
        ahead = (numbers - starts[:, None]).clamp(0, self.config.max_distance)
        inner = self.end_place(vectors) + self.end_start(begin)[:, None] + F.embedding(ahead, self.end_distance)
        scores = self.end_out(F.relu(inner))[..., 0]
        nowhere = starts[:, None] == 0
        possible = (numbers <= places[:, None]) & (numbers >= starts[:, None]) & ~nowhere
        none = torch.where(nowhere, 0.0, IMPOSSIBLE).to(scores)
        return self._all_logits(none, scores.masked_fill(~possible, IMPOSSIBLE))

    def _all_logits(self, nowhere: Tensor, scores: Tensor) -> Tensor:
        """Logits (B, V) from those of "no answer" (B, 1) and of the positions of the passage (B, P)."""
        missing = self.vocabulary - 1 - scores.shape[1]
        return torch.cat([nowhere, F.pad(scores, (0, max(0, missing)), value=IMPOSSIBLE)], 1)[:, : self.vocabulary]
