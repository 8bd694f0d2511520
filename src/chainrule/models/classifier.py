"""Text classifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.features.encoders import EncoderConfig, EncoderModel
from chainrule.interface.base import Advance, Table, TabledReadout
from chainrule.interface.conditional import HasAttention
from chainrule.nn.attention import AttentionPooling
from chainrule.nn.dropout import Dropout
from chainrule.types import Batch, Sequences, State


class ClassifierConfig(EncoderConfig):
    """Settings of the classifier."""

    labels: tuple[str, ...] = Field((), description="names of the labels; taken from the data")
    heads: int = Field(4, ge=1, description="attention heads of the pooling layer")
    attention_width: int = Field(64, ge=1, description="width of the hidden layer of the attention scores")
    hidden: int = Field(128, ge=1, description="width of the hidden layer before the labels")

    @model_validator(mode="after")
    def _every_label_is_named(self) -> Self:
        if self.labels and len(self.labels) != self.vocabulary:
            raise ValueError(
                f"there are {len(self.labels)} labels but vocabulary is {self.vocabulary}; leave one of them out"
            )
        return self


class ClassifierState(NamedTuple):
    text: Tensor  # (B, D)
    positions: Tensor  # (B,) tokens read so far, including BOS


class Classifier(EncoderModel, HasAttention, TabledReadout):
    """Text classifier, P(label | text): a choice of encoders, attention pooling and an MLP.

    A label is a target of one token. With m the encoder outputs of the text s (see `features.encoders`) and c their
    attention pooling (see `nn.attention`),

        h = ReLU(V c + v),    P(y | s) = softmax(W h + b)

    After the notes' model of answers about COVID-19: features of a pretrained BERT, attention, fully connected layers.
    There is no EOS; no token can follow the label.
    """

    Config = ClassifierConfig
    task = "labels"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "states_can_be_merged_and_selected": "a target is one label, so rows have no different positions to merge"
    }
    tokenizer = "words"
    recipe: ClassVar[Mapping[str, Any]] = {
        "optimizer": "adamw",
        "learning_rate": 0.001,
        "betas": (0.9, 0.999),
        "weight_decay": 0.01,
    }
    config: ClassifierConfig

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__(config)
        self.pooling = AttentionPooling(self.encoder.width, config.attention_width, config.heads)
        self.inner = nn.Linear(config.heads * self.encoder.width, config.hidden)
        self.readout_weight = nn.Parameter(torch.randn(config.vocabulary, config.hidden) * 0.02)
        self.readout_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = Dropout(config.dropout)

    @property
    def context(self) -> int:
        """One token, the label."""
        return 1

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.encoder.tables()
        yield self.readout_weight

    def readout_table(self) -> Table:
        return Table(self.readout_weight, self.readout_bias)

    def hidden(self, batch: Batch) -> Tensor:
        length = batch.target.ids.shape[1]
        self.require_room(length)
        return self._read(self.require_source(batch.source))[:, None].expand(-1, length, -1)

    def initial(self, source: Sequences | None, batch_size: int) -> ClassifierState:
        given = self.require_source(source)
        return ClassifierState(self._read(given), torch.zeros_like(given.lengths))

    def advance(self, tokens: Tensor, state: State) -> Advance:
        text, positions = cast(ClassifierState, state)
        count = tokens.shape[1]
        self.require_room(int(positions.max()) + count)
        return Advance(text[:, None].expand(-1, count, -1), ClassifierState(text, positions + count))

    def attention_maps(self, batch: Batch) -> Tensor:
        source = self.require_source(batch.source)
        weights = self.pooling.weights(self.encoder(source), source.mask).mean(1, keepdim=True)
        return weights.expand(-1, batch.target.ids.shape[1], -1)

    def _read(self, source: Sequences) -> Tensor:
        """(B, S) to (B, D)."""
        pooled = self.pooling(self.dropout(self.encoder(source)), source.mask)
        return cast(Tensor, self.dropout(F.relu(self.inner(pooled))))
