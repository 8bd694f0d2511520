"""Images, with their labels where a model asks for those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, final

from chainrule.config import DataConfig, ImageForm, RasterConfig, RunConfig
from chainrule.data.batching import Documents, Pairs
from chainrule.data.corpus import Corpus
from chainrule.data.images import ImageCorpus, PreparedImages
from chainrule.data.parallel import PairedCorpus
from chainrule.errors import ConfigError, DataError
from chainrule.families import family as family_named
from chainrule.interface.base import AutoregressiveModel, Model, NeuralModel, Trainable
from chainrule.interface.conditional import Conditional
from chainrule.material.base import HeldOut, Lessons, Material
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Record, Reporter

TASKS = ("image", "language", "translation")
"""What models do that can also be models of images: those of a language without a label, those of translation with."""


def settings_of(family: type[Model], form: ImageForm) -> dict[str, Any]:
    """The settings of a model of these images: an image is read whole, so it also decides the context."""
    found: dict[str, Any] = {"vocabulary": form.levels}
    if issubclass(family, Conditional):
        found["source_vocabulary"] = len(form.classes)
    if issubclass(family.Config, RasterConfig):
        found["shape"] = form.shape
    if "context" in family.Config.model_fields:
        found["context"] = form.size
    return found


@final
class ImageMaterial(Material):
    """Images to predict value by value, each from its own start."""

    unit: ClassVar[str] = "dim"

    def __init__(self, prepared: PreparedImages, config: RunConfig) -> None:
        family = family_named(config.family)
        if not issubclass(family, AutoregressiveModel) or family.task not in TASKS:
            raise ConfigError(
                f"{config.family} cannot predict an image value by value; choose another, such as pixelcnn"
            )
        self._family: type[Model] = family
        self._prepared = prepared
        self._labelled = issubclass(family, Conditional)
        if self._labelled and not prepared.form.classes:
            raise DataError(
                f"{config.family} predicts an image from its label, and {config.data.train!r} has no labels; give data "
                "that has, or train pixelcnn"
            )
        self.corpus, self.warnings = prepared.train.target, prepared.warnings
        splits = {"validation": prepared.valid, "test": prepared.test}
        self.held_out = {
            name: HeldOut(split.target, self._labels(split, name), prepared.config.named(name))
            for name, split in splits.items()
            if split is not None
        }
        self.watched = self.held_out["validation"]

    def _labels(self, images: ImageCorpus, name: str) -> Corpus | None:
        """What the images of a split are predicted from."""
        if not self._labelled:
            return None
        if images.labels is None:
            raise DataError(f"the {name} images have no labels, and the model needs them; give data that has")
        return images.labels

    @property
    def vocabularies(self) -> dict[str, Any]:
        return settings_of(self._family, self._prepared.form)

    def settings(self, config: DataConfig) -> DataConfig:
        return self._prepared.config

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        folder.create(config)

    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        assert isinstance(model, NeuralModel)
        images, tokens = self._prepared.train.target, config.train.batch_tokens
        labels = self._labels(self._prepared.train, "training")
        if labels is not None:
            return Lessons(Pairs(PairedCorpus(labels, images), tokens, config.seed), WholeSequences)
        return Lessons(Documents(images, tokens, None, config.seed), WholeSequences)

    def measure(self, model: Trainable, config: RunConfig) -> Callable[[], Record]:
        return dict

    def reversed(self) -> ImageMaterial:
        raise ConfigError("images are read from the top left to the bottom right; choose a model that reads forwards")
