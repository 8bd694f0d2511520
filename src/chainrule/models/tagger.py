"""Sequence taggers: a tag for each word of a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.interface.base import RECURRENT_RECIPE, Advance, Table, TabledReadout
from chainrule.interface.conditional import Conditional, TranslationConfig
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.recurrent import LSTM, LayerState
from chainrule.nn.recurrent_encoder import RecurrentEncoder, gather_positions
from chainrule.types import Sequences, State, length_mask


class TaggerConfig(TranslationConfig):
    """Settings of the tagger; `source_vocabulary` is that of characters."""

    labels: tuple[str, ...] = Field((), description="names of the tags; taken from the data")
    separator: int = Field(0, ge=0, description="id of the character that ends a word; taken from the tokenizer")
    words: int = Field(0, ge=0, description="number of known words; those that occur at least twice in training")
    order: Literal[1, "recurrent"] = Field(
        1, description="previous tags that a tag depends on; 1: the last one; recurrent: all of them"
    )
    width: int = Field(256, ge=2, multiple_of=2, description="width of the BiLSTM")
    layers: int = Field(1, ge=1, description="layers of the BiLSTM")
    word_width: int = Field(100, ge=1, description="width of the word embeddings")
    char_width: int = Field(32, ge=1, description="width of the character embeddings")
    char_filters: int = Field(128, ge=1, description="filters of the character convolution")
    char_kernel: int = Field(5, ge=1, description="kernel size of the character convolution; odd")
    tag_width: int = Field(32, ge=1, description="width of the tag embeddings")
    word_dropout: float = Field(0.1, ge=0, lt=1, description="fraction of words whose embedding is dropped")
    dropout: float = Field(0.4, ge=0, lt=1, description="dropout on words, between layers and before the readout")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.labels and len(self.labels) != self.vocabulary:
            raise ValueError(
                f"there are {len(self.labels)} tags but vocabulary is {self.vocabulary}; leave one of them out"
            )
        if self.char_kernel % 2 == 0:
            raise ValueError(f"char_kernel must be odd, got {self.char_kernel}; try {self.char_kernel + 1}")
        return self


class TaggerState(NamedTuple):
    words: Tensor  # (B, W, D) contextual word vectors; zeros past the last word
    positions: Tensor  # (B,) tags read so far, including BOS
    history: LayerState  # of the LSTM over tags; empty for order 1


class Tagger(Conditional, TabledReadout):
    """Sequence tagger, P(tags | words): BiLSTM over words and characters; a tag depends on the previous tags.

    With w_n the word vectors, character-level features included (see `WordEncoder`), and BiLSTM that of Graves &
    Schmidhuber (2005), as in Huang et al. (2015),

        v = BiLSTM(w_1 … w_N),    h_t = ReLU(A v_t + B g_t + a),    P(y_t | y_<t, s) = softmax(W h_t + b)

    where g_t is the embedding of y_{t−1} (order 1: the sequence-labelling model of the notes), or the output of an LSTM
    over all tags before t (recurrent). For order 1, Viterbi decoding is exact (see `decoding.structured`).

    A sentence has as many tags as words, and no EOS. Past the last word v_t is zero and a tag depends on the previous
    tags only, so P is normalised over the tag sequences of every length.
    """

    Config = TaggerConfig
    task = "tags"
    recipe: ClassVar[Mapping[str, Any]] = {**RECURRENT_RECIPE, "batch_tokens": 4096}  # characters: some 50 sentences
    config: TaggerConfig

    def __init__(self, config: TaggerConfig) -> None:
        super().__init__(config)
        self.word_encoder = WordEncoder(
            config.source_vocabulary,
            separator=config.separator,
            words=config.words,
            word_width=config.word_width,
            char_width=config.char_width,
            char_filters=config.char_filters,
            char_kernel=config.char_kernel,
            word_dropout=config.word_dropout,
        )
        width = config.width
        self.widen = nn.Linear(self.word_encoder.width, width)
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
        yield from (self.word_encoder.characters, self.word_encoder.table, self.tags, self.readout_weight)

    def readout_table(self) -> Table:
        return Table(self.readout_weight, self.readout_bias)

    def initial(self, source: Sequences | None, batch_size: int) -> TaggerState:
        given = self.require_source(source)
        words, counts = self.word_encoder(given)
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
        hidden = F.relu(self.from_word(gather_positions(words, where)) + self.from_tags(tags))
        hidden = self.dropout(hidden.transpose(0, 1)).transpose(0, 1)  # it expects time first
        return Advance(hidden, TaggerState(words, positions + count, history))


# The word encoder. A sentence is a row of character ids in which every word is terminated by a separator, so the model
# needs no word-level tokenizer, and an unknown word still has its characters. Shape letters: L characters, W words of
# the longest sentence.

MULTIPLIER = 6364136223846793005  # of Knuth's MMIX; its powers spread over all 64 bits


class WordSpans(NamedTuple):
    """The word boundaries of a batch of sentences."""

    words: Tensor  # (B, L) index of the word that a character, or its separator, belongs to; W past the end of a row
    offsets: Tensor  # (B, L) position of a character in its word
    counts: Tensor  # (B,) number of words in each row; the last one need not be terminated

    @classmethod
    def find(cls, sentences: Sequences, separator: int) -> WordSpans:
        ends = (sentences.ids == separator) & sentences.mask
        words = ends.long().cumsum(1) - ends.long()
        counts = words.gather(1, sentences.lengths[:, None] - 1)[:, 0] + 1
        words = words.masked_fill(~sentences.mask, int(counts.max()))
        positions = torch.arange(words.shape[1], device=words.device).expand_as(words)
        starts = F.pad(ends[:, :-1], (1, 0), value=True)
        return cls(words, positions - torch.where(starts, positions, 0).cummax(1).values, counts)

    @property
    def max_words(self) -> int:
        return int(self.counts.max())

    def fingerprints(self, sentences: Sequences, separator: int) -> Tensor:
        """(B, W): a 64-bit hash of each word's characters, Σ_k (c_k + 1) Mᵏ, with overflow."""
        powers = torch.full((sentences.ids.shape[1],), MULTIPLIER, device=sentences.ids.device).cumprod(0)
        ids = (sentences.ids + 1).masked_fill(sentences.ids == separator, 0)
        hashes = torch.zeros(len(ids), self.max_words + 1, dtype=torch.int64, device=ids.device)
        return hashes.scatter_add_(1, self.words, ids * powers[self.offsets])[:, :-1].contiguous()


class WordEncoder(nn.Module):
    """A vector for each word of a sentence: its word embedding, if it is known, and character-level features.

        w_n = [E[word n]; max_l ReLU(K ∗ e(c))_l]        l over the characters of word n and its separator

    The convolution with max-pooling over the characters of a word detects prefixes and suffixes such as "-ing" (Ma &
    Hovy, 2016). Words that occur less than twice in the training data share the embedding of unknown words. In
    training, so does a random fraction of the others (word dropout).
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        separator: int,
        words: int,
        word_width: int,
        char_width: int,
        char_filters: int,
        char_kernel: int,
        word_dropout: float,
    ) -> None:
        super().__init__()
        self.separator, self.word_dropout = separator, word_dropout
        self.characters = nn.Parameter(torch.randn(vocabulary, char_width) * 0.3)
        self.convolution = nn.Conv1d(char_width, char_filters, char_kernel, padding=char_kernel // 2)
        self.table = nn.Parameter(torch.randn(words + 1, word_width) * 0.1)  # row 0 is that of unknown words
        self.known: Tensor
        self.register_buffer("known", torch.zeros(words, dtype=torch.int64))  # fingerprints, ascending
        self.width = word_width + char_filters

    def set_known_words(self, words: Sequences) -> None:
        """Set the known words: one row of characters per word, with or without its separator."""
        hashes = WordSpans.find(words, self.separator).fingerprints(words, self.separator)[:, 0]
        self.known.copy_(hashes.sort().values)

    def forward(self, sentences: Sequences) -> tuple[Tensor, Tensor]:
        """Word vectors (B, W, D), zeros past the last word of a row, and the number of words (B,)."""
        spans = WordSpans.find(sentences, self.separator)
        vectors = torch.cat([self._word_vectors(sentences, spans), self._character_vectors(sentences, spans)], -1)
        real = length_mask(spans.counts, spans.max_words)
        return vectors * real[..., None], spans.counts

    def _word_vectors(self, sentences: Sequences, spans: WordSpans) -> Tensor:
        hashes = spans.fingerprints(sentences, self.separator)
        if not len(self.known):
            return F.embedding(torch.zeros_like(hashes), self.table)
        indices = torch.searchsorted(self.known, hashes).clamp(max=len(self.known) - 1)
        ids = torch.where(self.known[indices] == hashes, indices + 1, 0)
        if self.training and self.word_dropout:
            ids = ids * (torch.rand(ids.shape, device=ids.device) >= self.word_dropout)
        return F.embedding(ids, self.table)

    def _character_vectors(self, sentences: Sequences, spans: WordSpans) -> Tensor:
        ids = sentences.ids.masked_fill(~sentences.mask, 0)
        embedded = F.embedding(ids, self.characters) * sentences.mask[..., None]  # (B, L, ·)
        features = F.relu(self.convolution(embedded.transpose(1, 2)).transpose(1, 2))[:, : ids.shape[1]]
        words = spans.words[..., None].expand_as(features)
        empty = features.new_zeros(len(ids), spans.max_words + 1, features.shape[-1])
        return empty.scatter_reduce(1, words, features, "amax")[:, :-1]
