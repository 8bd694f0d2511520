"""Readers: where in a passage the answer to a question begins and ends, if it is there at all."""

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
"""A logit whose probability underflows to 0. Finite, so that a target that cannot be has a loss like any other."""


class ReaderConfig(EncoderConfig):
    """Settings of the reader; `vocabulary` is the number of places in a passage, and one for "not here"."""

    separator: int = Field(0, ge=0, description="the token between question and passage; taken from the tokenizer")
    width: int = Field(128, ge=2, multiple_of=2, description="width of every layer after the encoder")
    layers: int = Field(1, ge=1, description="recurrent layers that read the passage both ways, knowing the question")
    max_distance: int = Field(64, ge=1, description="end − start is clipped to this distance, in tokens")


class Asked(NamedTuple):
    """A source, taken apart."""

    question: Sequences  # closed by the separator
    passage: Sequences
    places: Tensor  # (B,) tokens of the passage that may be pointed at


class ReaderState(NamedTuple):
    passage: Tensor  # (B, P, D) its tokens, as the question makes them look
    places: Tensor  # (B,)
    starts: Tensor  # (B, V) logits of where the answer begins
    positions: Tensor  # (B,) tokens read so far, BOS among them


class SpanReader(EncoderModel):
    """P(start | question, passage) P(end | start, question, passage), with place 0 for "no answer here".

    A target of two tokens, which are places in the passage, counted from 1 (pointers: Vinyals et al., 2015; Wang &
    Jiang, 2017). With q and p the encoder's vectors of question and passage, read apart so that a passage is read once
    for all questions, u = pooling(q), f_j whether token j stands in the question (the last three as in Chen et al.,
    2017),

        a_j = Σ_n softmax_n(W p_j · W q_n) q_n,    h = BiLSTM(ReLU(C [p_j; a_j; p_j ∘ a_j; u ∘ p_j; f_j] + c))
        P(start = j | s) ∝ exp(v · ReLU(A h_j + B u)),    P(start = 0 | s) ∝ exp(w · ReLU(M [u; max_j h_j]))
        P(end = j | start = i, s) ∝ exp(v' · ReLU(A' h_j + B' h_i + d_{j−i})) for j ≥ i

    An answer that is not here ends where it begins, at 0: P(end = 0 | start = 0) = 1. So P is normalised over all spans
    and "not here", and 1 − P(start = 0) tells whether this passage answers this question.
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
        """Places have no frequencies worth knowing."""

    def readout(self, hidden: Tensor) -> Tensor:
        return hidden

    def initial(self, source: Sequences | None, batch_size: int) -> ReaderState:
        question, passage, places = self._apart(self.require_source(source))
        asked, read = (self.dropout(self.narrow(self.encoder(text))) for text in (question, passage))
        topic = self.pooling(asked, question.mask)  # u
        vectors = self._looked_at(asked, read, topic, question, passage)
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

    def _apart(self, source: Sequences) -> Asked:
        """Cut every source behind its first separator; without one, all of it is passage."""
        separator, width = self.config.separator, source.ids.shape[1]
        is_edge = (source.ids == separator) & source.mask
        asked = torch.where(is_edge.any(1), is_edge.long().argmax(1) + 1, 0)  # (B,) tokens, the separator among them
        left = source.lengths - asked
        where = asked[:, None] + torch.arange(max(1, int(left.max())), device=asked.device)
        passage = source.ids.gather(1, where.clamp(max=width - 1))
        question = source.ids[:, : max(1, int(asked.max()))]
        # A side without tokens is read as a lone separator, which nothing points at.
        question = question.masked_fill((asked == 0)[:, None], separator)
        passage = passage.masked_fill((left == 0)[:, None], separator)
        return Asked(
            Sequences(question, asked.clamp(min=1)),
            Sequences(passage, left.clamp(min=1)),
            left.clamp(max=self.vocabulary - 1),
        )

    def _looked_at(self, asked: Tensor, read: Tensor, topic: Tensor, question: Sequences, passage: Sequences) -> Tensor:
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
        """(B, V) logits."""
        scores = self.start_out(F.relu(self.start_place(vectors) + self.start_question(topic)[:, None]))[..., 0]
        real = length_mask(places, vectors.shape[1])
        highest = vectors.masked_fill(~real[..., None], -1.0).amax(1)  # outputs of an LSTM lie above −1
        return self._over_places(self.nowhere(torch.cat([topic, highest], -1)), scores.masked_fill(~real, IMPOSSIBLE))

    def _ends(self, vectors: Tensor, places: Tensor, starts: Tensor) -> Tensor:
        """(B, V) logits, given where the answers begin, (B,)."""
        numbers = torch.arange(1, vectors.shape[1] + 1, device=places.device)  # (P,)
        begin = gather_positions(vectors, (starts - 1).clamp(min=0)[:, None])[:, 0]
        ahead = (numbers - starts[:, None]).clamp(0, self.config.max_distance)
        inner = self.end_place(vectors) + self.end_start(begin)[:, None] + F.embedding(ahead, self.end_distance)
        scores = self.end_out(F.relu(inner))[..., 0]
        nowhere = starts[:, None] == 0
        possible = (numbers <= places[:, None]) & (numbers >= starts[:, None]) & ~nowhere
        none = torch.where(nowhere, 0.0, IMPOSSIBLE).to(scores)
        return self._over_places(none, scores.masked_fill(~possible, IMPOSSIBLE))

    def _over_places(self, nowhere: Tensor, scores: Tensor) -> Tensor:
        """Logits of no place (B, 1) and of those there are (B, P) as logits of all, (B, V)."""
        missing = self.vocabulary - 1 - scores.shape[1]
        return torch.cat([nowhere, F.pad(scores, (0, max(0, missing)), value=IMPOSSIBLE)], 1)[:, : self.vocabulary]
