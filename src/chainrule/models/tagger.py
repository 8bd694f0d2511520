"""Taggers: a tag for each word of a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.interface.base import STEP_AFTER_STEP, Advance, Table, TabledReadout, readable, shift_right
from chainrule.interface.conditional import Conditional, TranslationConfig
from chainrule.nn.branches import at
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.recurrent import LSTM, LayerState
from chainrule.nn.recurrent_encoder import RecurrentEncoder
from chainrule.nn.spelling import SpelledWords
from chainrule.types import Batch, Sequences, State


class TaggerConfig(TranslationConfig):
    """Settings of the tagger; `source_vocabulary` is that of characters."""

    labels: tuple[str, ...] = Field((), description="the tags that the ids stand for; taken from the data")
    separator: int = Field(0, ge=0, description="the character that ends a word; taken from the tokenizer")
    words: int = Field(0, ge=0, description="words that are known; those that stand in the training data twice")
    order: Literal[1, "recurrent"] = Field(
        1, description="what a tag depends on beside the words: 1: the tag before it; recurrent: all tags before it"
    )
    width: int = Field(256, ge=2, multiple_of=2, description="width of the vectors that words in their sentence have")
    layers: int = Field(1, ge=1, description="recurrent layers that read the sentence both ways")
    embedding: int = Field(100, ge=1, description="width of the vector of a known word")
    characters: int = Field(32, ge=1, description="width of the vector of a character")
    spelling: int = Field(128, ge=1, description="width of what the spelling of a word tells")
    kernel: int = Field(5, ge=1, description="characters that are met at once; an odd number")
    tag_width: int = Field(32, ge=1, description="width of the vector of a tag")
    word_dropout: float = Field(0.1, ge=0, lt=1, description="share of words that are known by their spelling alone")
    dropout: float = Field(0.4, ge=0, lt=1, description="on words, between layers and before the readout")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.labels and len(self.labels) != self.vocabulary:
            raise ValueError(f"{len(self.labels)} tags are named and vocabulary is {self.vocabulary}; leave one out")
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel {self.kernel} is even and has no middle; try {self.kernel + 1}")
        return self


class TaggerState(NamedTuple):
    words: Tensor  # (B, W, D) words in their sentence; zeros past its last
    positions: Tensor  # (B,) tags read so far, BOS among them
    history: LayerState  # of the tags, where all of them matter


class Tagger(Conditional, TabledReadout):
    """P(tags | words): a sentence read both ways, and tags that follow from the words and from the tags before.

    With w_n the vectors of the words, spelling included (see `nn.spelling`), and BiLSTM that of Graves & Schmidhuber
    (2005), as in Huang et al. (2015),

        v = BiLSTM(w_1 … w_N),    h_t = ReLU(A v_t + B g_t + a),    P(y_t | y_<t, s) = softmax(W h_t + b)

    where g_t is the embedding of y_{t−1} (order 1: the sequence-labelling model of the notes), or what an LSTM makes of
    all tags before t (recurrent). A first-order model has an exact best sequence (see `decoding.viterbi`).

    A sentence has as many tags as words, and no EOS. The chain rule itself knows no end: past the last word v_t is zero
    and tags follow from tags alone, so P is normalised over the tag sequences of every length.
    """

    Config = TaggerConfig
    task = "tagging"
    recipe: ClassVar[Mapping[str, Any]] = {**STEP_AFTER_STEP, "batch_tokens": 4096}  # characters: some 50 sentences
    config: TaggerConfig

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__(config)
        self.spelled = SpelledWords(
            config.source_vocabulary,
            separator=config.separator,
            words=config.words,
            embedding=config.embedding,
            characters=config.characters,
            spelling=config.spelling,
            kernel=config.kernel,
            word_dropout=config.word_dropout,
        )
        width = config.width
        self.widen = nn.Linear(self.spelled.width, width)
        self.encoder = RecurrentEncoder("lstm", config.layers, width, bidirectional=True, dropout=config.dropout)
        self.tags = nn.Parameter(torch.randn(config.vocabulary + 1, config.tag_width) * 0.1)
        self.memory = None if config.order == 1 else LSTM(config.tag_width, config.tag_width)
        self.from_word = nn.Linear(width, width)
        self.from_tags = nn.Linear(config.tag_width, width, bias=False)
        self.readout_weight = nn.Parameter(torch.randn(config.vocabulary, width) * 0.02)
        self.readout_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = VariationalDropout(config.dropout)

    @property
    def receptive_field(self) -> int | None:
        return 1 if self.config.order == 1 else None

    def tables(self) -> Iterator[nn.Parameter]:
        yield from (self.spelled.characters, self.spelled.table, self.tags, self.readout_weight)

    def readout_table(self) -> Table:
        return Table(self.readout_weight, self.readout_bias)

    def hidden(self, batch: Batch) -> Tensor:
        tokens = shift_right(readable(batch.target), bos=self.bos)
        return self.advance(tokens, self.initial(batch.source, len(tokens))).hidden

    def initial(self, source: Sequences | None, batch_size: int) -> TaggerState:
        given = self.require_source(source)
        words, counts = self.spelled(given)
        embedded = self.dropout(self.widen(self.dropout(words.transpose(0, 1))))  # (W, B, D): time first
        vectors = self.encoder(embedded, counts).outputs.transpose(0, 1)
        history = () if self.memory is None else self.memory.initial(len(counts))
        return TaggerState(vectors.contiguous(), torch.zeros_like(counts), history)

    def advance(self, tokens: Tensor, state: State) -> Advance:
        words, positions, history = cast(TaggerState, state)
        count = tokens.shape[1]
        where = positions[:, None] + torch.arange(count, device=tokens.device)  # (B, K)
        tags = F.embedding(tokens, self.tags)
        if self.memory is not None:
            read, history = self.memory(tags.transpose(0, 1), history)
            tags = read.transpose(0, 1)
        hidden = F.relu(self.from_word(at(words, where)) + self.from_tags(tags))
        hidden = self.dropout(hidden.transpose(0, 1)).transpose(0, 1)  # which takes time first
        return Advance(hidden, TaggerState(words, positions + count, history))
