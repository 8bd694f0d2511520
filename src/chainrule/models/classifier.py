"""Text classifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.features.encoders import EncoderConfig, EncoderModel
from chainrule.interface.base import Table
from chainrule.interface.conditional import HasAttention
from chainrule.nn.attention import AttentionPooling
from chainrule.nn.dropout import Dropout
from chainrule.nn.label_model import LabelConfig, LabelModel
from chainrule.types import Batch, Sequences


class ClassifierConfig(EncoderConfig, LabelConfig):
    """Settings of the classifier."""

    heads: int = Field(4, ge=1, description="attention heads of the pooling layer")
    attention_width: int = Field(64, ge=1, description="width of the hidden layer of the attention scores")
    hidden: int = Field(128, ge=1, description="width of the hidden layer before the labels")


class Classifier(EncoderModel, HasAttention, LabelModel):
    """Text classifier, P(label | text): a choice of encoders, attention pooling and an MLP.

    A label is a target of one token. With m the encoder outputs of the text s (see `features.encoders`) and c their
    attention pooling (see `nn.attention`),

        h = ReLU(V c + v),    P(y | s) = softmax(W h + b)

    After the notes' model of answers about COVID-19: features of a pretrained BERT, attention, fully connected layers.
    There is no EOS; no token can follow the label.
    """

    Config = ClassifierConfig
    task = "labels"
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

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.encoder.tables()
        yield self.readout_weight

    def readout_table(self) -> Table:
        return Table(self.readout_weight, self.readout_bias)

    def attention_maps(self, batch: Batch) -> Tensor:
        source = self.require_source(batch.source)
        weights = self.pooling.weights(self.encoder(source), source.mask).mean(1, keepdim=True)
        return weights.expand(-1, batch.target.ids.shape[1], -1)

    def read(self, source: Sequences) -> Tensor:
        """(B, S) to (B, D)."""
        pooled = self.pooling(self.dropout(self.encoder(source)), source.mask)
        return cast(Tensor, self.dropout(F.relu(self.inner(pooled))))
