"""Labels of images: one class for each image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, final

import numpy as np
import numpy.typing as npt
import torch

from chainrule.config import DataConfig, ImageForm, RunConfig
from chainrule.data.batching import Pairs
from chainrule.data.corpus import Corpus
from chainrule.data.images import ImageCorpus, PreparedImages, prepare_images
from chainrule.data.parallel import PairedCorpus
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.labels import LabelScore
from chainrule.models.image_classifier import ImageClassifier
from chainrule.nn.label_model import ImageLabelModel
from chainrule.tasks.base import HeldOut, refuse_pairs
from chainrule.tasks.examples import embedder_settings
from chainrule.tasks.labels import Probabilities, accuracy_of, label_report, label_score_of
from chainrule.tasks.pixels import PixelRun, PixelTask, require_images
from chainrule.tasks.scoring import ScoreReport, ScoreRequest
from chainrule.tasks.training_data import LikelihoodData, TrainingBatches
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Fraction, Record, Reporter, shown_fraction
from chainrule.types import Sequences

IMAGES_AT_ONCE = 256  # of one forward pass


# Runs


class ImageLabelPrediction(NamedTuple):
    """The prediction for an image."""

    label: str  # the most probable
    probability: float
    probabilities: dict[str, float]  # of all labels


@dataclass(frozen=True, kw_only=True, repr=False)
class ImageLabelRun(PixelRun[ImageLabelModel]):
    """A model of labels given images of one size."""

    model_type = ImageLabelModel
    does = "labels images"
    use = "chainrule predict {run} --data images.npz"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the target ids."""
        return tuple(self.config.model["labels"])

    def predict(self, data: str) -> Iterator[ImageLabelPrediction]:
        """The label of each image of a data spec, in order."""
        for found in self.probabilities(self.corpus(data).target):
            named = dict(zip(self.labels, found.tolist(), strict=True))
            yield ImageLabelPrediction(self.labels[int(found.argmax())], float(found.max()), named)

    def probabilities(self, images: Corpus, *, progress: Callable[[float], None] | None = None) -> Probabilities:
        """(N, V): P(label | image)."""
        return self.label_pixels(np.asarray(images.tokens).reshape(-1, self.form.size), progress=progress)

    @torch.inference_mode()
    def label_pixels(
        self, pixels: npt.NDArray[Any], *, progress: Callable[[float], None] | None = None
    ) -> Probabilities:
        """(N, V): P(label | image) of images in levels, (N, size) in raster order."""
        found = []
        for begin in range(0, len(pixels), IMAGES_AT_ONCE):
            rows = torch.from_numpy(pixels[begin : begin + IMAGES_AT_ONCE].astype(np.int64))
            logits = self.model.start(Sequences.full(rows.to(self.model.device))).logits[:, 0]
            found.append(logits.double().softmax(-1).cpu().numpy())
            if progress is not None:
                progress((begin + len(rows)) / len(pixels))
        return np.concatenate(found)

    def score(self, data: str, *, progress: Fraction | bool | None = True) -> LabelScore:
        """Compare predictions with the labels of the data. The result is also stored in scores.jsonl."""
        pairs = labelled(self.corpus(data), data)
        with shown_fraction(progress, "scoring") as report:
            result = self.score_pairs(pairs, progress=report)
        self.keep_score(result, pairs.target, data)
        return result

    def score_pairs(self, pairs: PairedCorpus, *, progress: Callable[[float], None] | None = None) -> LabelScore:
        """The score on encoded images with their labels."""
        found = label_score_of(self.probabilities(pairs.source, progress=progress), pairs, self.labels)
        return found.model_copy(update={"texts": None, "images": found.texts})

    def evaluate(self, request: ScoreRequest, progress: Callable[[float], None] | None = None) -> ScoreReport:
        if request.data is None or request.given("text", "source", "references", "stride", "per_token"):
            raise ConfigError(f"{str(self.path)!r} {self.does}; give labelled images with --data, and nothing else")
        return label_report(self.score(request.data, progress=progress), request.picture)

    def about(self) -> dict[str, Any]:
        form = self.form
        colours = "grey" if form.channels == 1 else "red, green, blue"
        return {
            "tokenizer": "labels of images",
            "tokenizer_note": f"{form.width}×{form.height} pixels in {colours}, {form.levels} levels",
            "labels": ", ".join(self.labels),
        }


# Data


def labelled(images: ImageCorpus, name: str) -> PairedCorpus:
    """Images as sources and their labels as targets."""
    if images.labels is None:
        raise DataError(
            f"{name!r} has no labels; give labelled images: folders of PNG by class, idx with its labels, or .npz with "
            "an array of labels"
        )
    return PairedCorpus(images.target, images.labels)


@final
class ImageLabelData(LikelihoodData[ImageLabelModel, ImageLabelRun]):
    """Labels to predict from images."""

    model_type = ImageLabelModel
    run_type = ImageLabelRun

    def __init__(self, prepared: PreparedImages, embedder: Mapping[str, Any]) -> None:
        self._prepared, self.embedder, self.warnings = prepared, embedder, prepared.warnings
        config = prepared.config
        self.pairs = labelled(prepared.train, config.train)
        self.corpus = self.pairs.target
        held_out = {"validation": prepared.valid, "test": prepared.test}
        self.splits = {
            split: labelled(images, config.named(split)) for split, images in held_out.items() if images is not None
        }
        self.held_out = {
            split: HeldOut(pairs.target, pairs.source, config.named(split)) for split, pairs in self.splits.items()
        }
        self.monitored = self.held_out["validation"]

    @property
    def bytes_per_token(self) -> None:
        """Labels are not text."""
        return

    @property
    def model_settings(self) -> dict[str, Any]:
        form = self._prepared.form
        return {
            "vocabulary": len(form.classes),
            "source_vocabulary": form.levels,
            "labels": form.classes,
            "shape": form.shape,
            **self.embedder,
        }

    def data_settings(self, config: DataConfig) -> DataConfig:
        return self._prepared.config

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        folder.create(config)

    def batches(self, model: ImageLabelModel, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        """A batch has `train.batch_tokens` labels, hence as many images."""
        if self.embedder and isinstance(model, ImageClassifier):
            RunFolder(Path(config.model["encoder_run"])).read_weights(model.encoder)
        values = config.train.batch_tokens * self._prepared.form.size
        return TrainingBatches(Pairs(self.pairs, values, config.seed), WholeSequences)

    def validation_metrics(self, model: ImageLabelModel, config: RunConfig) -> Callable[[], Record]:
        return accuracy_of(model, self.monitored, config)

    def score_split(self, run: ImageLabelRun, split: str, progress: Callable[[float], None]) -> LabelScore:
        return run.score_pairs(self.splits[split], progress=progress)

    def reversed(self) -> NoReturn:
        raise ConfigError("labels are not read from right to left; remove the direction")


class ImageLabelsTask(PixelTask):
    """P(label | image)."""

    run = ImageLabelRun
    default_data = "builtin:digits"
    missing_data = (
        "no training data was given; name labelled images with --data: idx with its labels, .npz, folders of PNG or "
        "JPEG by class, or builtin:digits"
    )

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> ImageLabelData:
        refuse_pairs(config)
        require_images(config, "labels images", "folders of PNG or JPEG by class")
        data, embedder = config.data, {} if stored is not None else embedder_settings(config)
        if embedder:
            data = data.model_copy(update={"levels": _form_of_run(config.model["encoder_run"]).levels})
        prepared = prepare_images(data, reporter.preparing)
        if embedder and prepared.form.shape != (shape := _form_of_run(config.model["encoder_run"]).shape):
            raise DataError(
                f"{data.train!r} has images of the shape {prepared.form.shape}, but {config.model['encoder_run']!r} "
                f"models images of the shape {shape} (channels, height, width); give a run of the same kind of images"
            )
        return ImageLabelData(prepared, embedder)


def _form_of_run(run: str) -> ImageForm:
    """The images that the run of an encoder models."""
    form = RunFolder(Path(run)).config().data.image
    if form is None:
        raise ConfigError(f"{run!r} is no model of images; give a run of pixelcnn as model.encoder_run")
    return form
