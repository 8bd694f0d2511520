"""Labels of images from the features of a model of images.

    h_t = the hidden vector of the image model that predicts value t,    g = [mean of h over each cell of a grid]
    P(label | image) = softmax(W ReLU(V norm(g) + v) + b)

The image model is a run of pixelcnn or of another neural family, trained to predict images without their labels; its
weights are saved with those of the classifier and stay as they are, unless `fine_tune` is set. h_t depends on the
values before t, so a mean over a cell summarises what the model expected there and had seen above it.

Shape letters: B images, T values of an image, D width of the features, G cells along a side of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.families import build
from chainrule.interface.base import NeuralModel, Table, readable
from chainrule.interface.conditional import Conditional
from chainrule.nn.dropout import Dropout
from chainrule.nn.label_model import ImageLabelConfig, ImageLabelModel
from chainrule.nn.layers import rms_norm
from chainrule.types import Batch, Sequences


class ImageClassifierConfig(ImageLabelConfig):
    """Settings of the classifier."""

    encoder_run: str | None = Field(None, description="the folder of a trained model of images, such as pixelcnn")
    embedder: dict[str, Any] | None = Field(None, description="the settings of that model; set by training")
    fine_tune: bool = Field(False, description="train the model of images, too")
    grid: int = Field(4, ge=1, description="features are averaged over this many cells along each side of an image")
    hidden: int = Field(128, ge=1, description="width of the hidden layer before the labels")
    dropout: float = Field(0.2, ge=0, lt=1, description="on the features and on the hidden layer")


class ImageClassifier(ImageLabelModel):
    """Image classifier, P(label | image): pooled features of a run of pixelcnn or another image model, and an MLP."""

    Config = ImageClassifierConfig
    task = "image_labels"
    recipe: ClassVar[Mapping[str, Any]] = {
        "batch_tokens": 128,
        "best_by": "accuracy",
        "optimizer": "adamw",
        "learning_rate": 0.002,
        "weight_decay": 0.01,
    }
    config: ImageClassifierConfig

    def __init__(self, config: ImageClassifierConfig) -> None:
        super().__init__(config)
        if config.embedder is None:
            raise ConfigError(
                "image_classifier reads the features of a model of images; name its run with "
                "--set model.encoder_run=RUN, or train vit"
            )
        settings = {**config.embedder, "vocabulary": config.source_vocabulary}
        family = settings.pop("family")
        encoder = build(family, settings)
        if not isinstance(encoder, NeuralModel) or isinstance(encoder, Conditional):
            raise ConfigError(f"{config.encoder_run!r} is a {family}, which has no features; use a run of pixelcnn")
        self.encoder = encoder
        with torch.no_grad():
            width = encoder.eval().hidden(Batch(Sequences.full(torch.zeros(1, 1, dtype=torch.int64)))).shape[-1]
        self.inner = nn.Linear(config.grid**2 * width, config.hidden)
        self.readout_weight = nn.Parameter(torch.randn(config.vocabulary, config.hidden) * 0.02)
        self.readout_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = Dropout(config.dropout)
        if not config.fine_tune:
            self.encoder.requires_grad_(False)

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.encoder.tables()
        yield self.readout_weight

    def readout_table(self) -> Table:
        return Table(self.readout_weight, self.readout_bias)

    def read(self, source: Sequences) -> Tensor:
        pooled = self.dropout(rms_norm(self._features(source)))
        return cast(Tensor, self.dropout(F.relu(self.inner(pooled))))

    def _features(self, source: Sequences) -> Tensor:
        """(B, S) to (B, G² D): the mean of the features in each cell."""
        channels, height, width = self.config.shape
        ids = F.pad(readable(source), (0, self.config.size - source.ids.shape[1]))
        with torch.set_grad_enabled(self.config.fine_tune and torch.is_grad_enabled()):
            hidden = self.encoder.hidden(Batch(Sequences.full(ids)))  # (B, T, D)
        maps = hidden.view(len(ids), height, width, channels, -1).mean(3).permute(0, 3, 1, 2)
        return F.adaptive_avg_pool2d(maps, self.config.grid).flatten(1)

    def train(self, mode: bool = True) -> Self:
        """A frozen model of images stays in evaluation mode."""
        super().train(mode)
        if not self.config.fine_tune:
            self.encoder.eval()
        return self
