"""Images: models of raster sequences, with class labels as the source if a family asks for them."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from chainrule.config import DataConfig, ImageForm, RasterConfig, RunConfig, Settings
from chainrule.data.batching import Documents, Pairs
from chainrule.data.corpus import Corpus, Report
from chainrule.data.image_files import Pixels, beside, read_images
from chainrule.data.images import ImageCorpus, PreparedImages, brightness, encode, prepare_images
from chainrule.data.parallel import PairedCorpus
from chainrule.data.pictures import grid, png
from chainrule.data.token_files import token_type
from chainrule.decoding import Sampling, stream_tokens
from chainrule.errors import ConfigError, DataError, DecodingError, nearest
from chainrule.evaluation.images import ImageScore
from chainrule.evaluation.likelihood import Score, score
from chainrule.families import family as family_named
from chainrule.families import single_families
from chainrule.interface.base import AutoregressiveModel, Model, NeuralModel
from chainrule.interface.conditional import Conditional
from chainrule.metrics import score_rows
from chainrule.tasks.base import HeldOut, require
from chainrule.tasks.pixels import PixelRun, PixelTask, require_images
from chainrule.tasks.scoring import ScoreReport, ScoreRequest
from chainrule.tasks.sequences import SequenceComparison, SequenceRun, SequenceSplits, SpeedPrompt
from chainrule.tasks.training_data import LikelihoodData, TrainingBatches
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Fraction, Reporter, shown_fraction
from chainrule.types import Sequences

SAMPLE_IMAGES = 12  # of a comparison
PIXEL_TASKS = ("images", "text", "translation")
"""Tasks whose families can model images: those of text without a label, those of translation with one."""


# Runs


class Drawing(NamedTuple):
    """Images in the course of sampling."""

    levels: Pixels  # (N, H, W, C); 0 where nothing is drawn yet
    known: int  # number of values of each image that are drawn


@dataclass(frozen=True, kw_only=True, repr=False)
class ImageRun(PixelRun[AutoregressiveModel], SequenceRun):
    """A model of images of one size and a known number of levels."""

    model_type = AutoregressiveModel
    does = "models images"
    use = "chainrule draw {run} --out grid.png"

    @property
    def labelled(self) -> bool:
        """Whether the model is conditioned on a class label."""
        return isinstance(self.model, Conditional)

    def score(self, data: str, *, progress: Fraction | bool | None = True) -> ImageScore:
        """Score the images of a data spec. The result is also stored in scores.jsonl."""
        images = self.corpus(data)
        if self.labelled and images.labels is None:
            raise DataError(f"{data!r} has no labels, but {self.config.family} needs them; give labelled data")
        with shown_fraction(progress, "scoring") as report:
            found = score(self.model, images.target, source=images.labels if self.labelled else None, progress=report)
        self.keep_score(found, images.target, data)
        return ImageScore.of(found, self.form)

    def evaluate(self, request: ScoreRequest, progress: Callable[[float], None] | None = None) -> ScoreReport:
        if request.picture is not None:
            raise ConfigError("--picture draws a confusion matrix; it is for classifiers and taggers only")
        if request.data is None or request.given("text", "source", "references", "stride", "per_token"):
            raise ConfigError(f"{str(self.path)!r} models images; give the images to score with --data, and no other")
        values = self.score(request.data, progress=progress).model_dump(mode="json")
        return ScoreReport(values, score_rows(values))

    def keep_score(self, result: Settings, corpus: Corpus, name: str, *, split: str | None = None) -> None:
        found = ImageScore.of(result, self.form) if isinstance(result, Score) else result
        super().keep_score(found, corpus, name, split=split)

    @property
    def autoregressive(self) -> AutoregressiveModel:
        if self.labelled:
            raise DecodingError(
                f"{str(self.path)!r} is a {self.config.family}, which needs a label; give a run of an unconditional "
                "family, such as pixelcnn"
            )
        return self.model

    @property
    def vocabulary(self) -> object:
        return self.form.model_dump(exclude={"classes"})

    def splits(self, config: DataConfig, progress: Report | None = None) -> SequenceSplits:
        prepared = prepare_images(config, progress)
        test = None if prepared.test is None else prepared.test.target
        return SequenceSplits(prepared.train.target, prepared.valid.target, test)

    def encode(self, config: DataConfig, spec: str) -> Corpus:
        return encode(read_images(spec, config.shape), self.form, spec).target

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        folder.create(config)

    def example(self, which: str) -> Pixels:
        """(H, W, C) in levels: the image of a file, or the validation image with a number."""
        if which.isdigit():
            images = prepare_images(self.config.data).valid
            if int(which) >= len(images):
                raise DataError(f"there is no image {which}; the validation images are 0 to {len(images) - 1}")
            chosen = int(which)
        else:
            images, chosen = self.corpus(which), 0
        flat = images.target.tokens[chosen * self.form.size : (chosen + 1) * self.form.size]
        image: Pixels = self._unflattened(flat)[0]
        return image

    def draw(self, num: int = 16, **options: Any) -> Pixels:
        """(N, H, W, C) in levels; options are those of `drawing`."""
        [last] = deque(self.drawing(num, **options), maxlen=1)
        return last.levels

    def drawing(
        self,
        num: int = 16,
        *,
        label: str | None = None,
        complete: Pixels | None = None,
        keep: float = 0.5,
        seed: int = 0,
        **sampling: Any,
    ) -> Iterator[Drawing]:
        """Sample images value by value, image i with seed + i, and yield them after every value.

        With a `label` (default: all labels in turn) if the model is conditional. With an image to `complete`, (H, W, C)
        in levels, the upper fraction `keep` of its rows is given. `sampling` is that of `decoding.Sampling`.
        """
        source = self._source(num, label)
        canvas: Pixels = np.zeros((num, self.form.size), token_type(self.form.levels))
        known = 0
        if complete is not None:
            if not 0 <= keep < 1:
                raise DecodingError(f"the fraction of rows to keep must be in [0, 1), got {keep:g}")
            known = round(self.form.height * keep) * self.form.width * self.form.channels
            canvas[:, :known] = complete.reshape(-1)[:known]
        yield Drawing(self._unflattened(canvas), known)
        prompts: Sequence[list[int]] = canvas[:, :known].tolist()
        for tokens in stream_tokens(
            self.model,
            prompts,
            length=self.form.size - known,
            sampling=Sampling.parse(sampling),
            seeds=[seed + number for number in range(num)],
            source=source,
        ):
            images = [[token.id for token in tokens if token.row == row] for row in range(num)]
            for values in zip(*images, strict=True):  # several of every image may come at once
                canvas[:, known] = values
                known += 1
                yield Drawing(self._unflattened(canvas), known)

    def visible(self, levels: Pixels) -> npt.NDArray[np.uint8]:
        """Levels as brightness from 0 to 255."""
        return brightness(levels, self.form)

    def _source(self, num: int, label: str | None) -> Sequences | None:
        classes = self.form.classes
        if not self.labelled:
            if label is not None:
                raise DecodingError(
                    f"{str(self.path)!r} is a {self.config.family}, which has no labels; remove the label, or "
                    "train labelled_pixelcnn"
                )
            return None
        if label is not None and label not in classes:
            raise DecodingError(f"the model has no label {label!r}; {nearest(label, classes)}")
        numbers = [index % len(classes) if label is None else classes.index(label) for index in range(num)]
        return Sequences.pack([[number] for number in numbers])

    def _unflattened(self, values: npt.NDArray[Any]) -> Pixels:
        return values.reshape(-1, self.form.height, self.form.width, self.form.channels).copy()

    def about(self) -> dict[str, Any]:
        form = self.form
        colours = "grey" if form.channels == 1 else "red, green, blue"
        known = f", {len(form.classes)} classes" if form.classes else ""
        return {
            "tokenizer": "levels of brightness",
            "tokenizer_note": f"{form.width}×{form.height} pixels in {colours}{known}",
            "classes": ", ".join(form.classes) or None,
        }


# Data


def image_settings(family: type[Model], form: ImageForm) -> dict[str, Any]:
    """The settings of a model of these images; an image is one sequence, so it also determines the context."""
    found: dict[str, Any] = {"vocabulary": form.levels}
    if issubclass(family, Conditional):
        found["source_vocabulary"] = len(form.classes)
    if issubclass(family.Config, RasterConfig):
        found["shape"] = form.shape
    if "context" in family.Config.model_fields:
        found["context"] = form.size
    return found


@final
class ImageData(LikelihoodData[NeuralModel, ImageRun]):
    """Images as raster sequences, each read from its own start."""

    model_type = NeuralModel
    run_type = ImageRun
    unit = "dim"

    def __init__(self, prepared: PreparedImages, config: RunConfig) -> None:
        family = family_named(config.family)
        if not issubclass(family, AutoregressiveModel) or family.task not in PIXEL_TASKS:
            raise ConfigError(f"{config.family} cannot model images; choose another family, such as pixelcnn")
        self._family: type[Model] = family
        self._prepared = prepared
        self._labelled = issubclass(family, Conditional)
        if self._labelled and not prepared.form.classes:
            raise DataError(
                f"{config.family} is conditioned on a label, but {config.data.train!r} has no labels; give labelled "
                "data, or train pixelcnn"
            )
        self.corpus, self.warnings = prepared.train.target, prepared.warnings
        splits = {"validation": prepared.valid, "test": prepared.test}
        self.held_out = {
            name: HeldOut(split.target, self._labels(split, name), prepared.config.named(name))
            for name, split in splits.items()
            if split is not None
        }
        self.monitored = self.held_out["validation"]

    def _labels(self, images: ImageCorpus, name: str) -> Corpus | None:
        """The source of the images of a split."""
        if not self._labelled:
            return None
        if images.labels is None:
            raise DataError(f"the {name} images have no labels, but the model needs them; give labelled data")
        return images.labels

    @property
    def model_settings(self) -> dict[str, Any]:
        return image_settings(self._family, self._prepared.form)

    def data_settings(self, config: DataConfig) -> DataConfig:
        return self._prepared.config

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        folder.create(config)

    def batches(self, model: NeuralModel, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        images, tokens = self._prepared.train.target, config.train.batch_tokens
        labels = self._labels(self._prepared.train, "training")
        if labels is not None:
            return TrainingBatches(Pairs(PairedCorpus(labels, images), tokens, config.seed), WholeSequences)
        return TrainingBatches(Documents(images, tokens, None, config.seed), WholeSequences)

    def reversed(self) -> ImageData:
        raise ConfigError("images are read from top left to bottom right; choose a left-to-right model")


# Comparison


@final
class ImageComparison(SequenceComparison):
    """Images of one size, as raster sequences of pixel values."""

    task = "images"
    unit = "dim"
    neural_cache = None  # recent pixels matter by their position, which a cache ignores

    def __init__(self, config: DataConfig, tokenizer: str, progress: Report) -> None:
        prepared = prepare_images(config, progress)
        assert prepared.test is not None
        self.train, self.valid = prepared.train.target, prepared.valid.target
        self.test = prepared.test.target
        self.form, self._config, self.warnings = prepared.form, prepared.config, prepared.warnings
        self.vocabulary, self.tokens_per_image = self.form.levels, self.form.size

    @classmethod
    def own_test(cls, config: DataConfig) -> str | None:
        return beside(config.train, "test")

    @classmethod
    def families(cls) -> list[str]:
        return [
            name
            for name, kind in single_families().items()
            if kind.task in ("text", cls.task)
            and issubclass(kind, AutoregressiveModel)
            and not issubclass(kind, Conditional)
        ]

    def data_config(self, config: DataConfig) -> DataConfig:
        return self._config

    def model_settings(self, name: str) -> Mapping[str, Any]:
        return image_settings(family_named(name), self.form)

    def speed_prompt(self) -> SpeedPrompt:
        return SpeedPrompt([], self.form.size)

    def sample(self, run: SequenceRun, seed: int, longest: int | None = None) -> dict[str, str]:
        drawer = require(run, ImageRun)
        images = SAMPLE_IMAGES if longest is None else max(1, min(SAMPLE_IMAGES, 6 * longest // self.form.size))
        picture = png(grid(drawer.visible(drawer.draw(images, seed=seed)), columns=6))
        return {"picture": base64.b64encode(picture).decode("ascii")}


class ImagesTask(PixelTask):
    """P(x_t | x_<t, label) of pixel values in raster order."""

    run = ImageRun
    missing_data = (
        "no training data was given; name images with --data: idx, .npz, a folder of PNG or JPEG, or builtin:digits"
    )

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> ImageData:
        require_images(config, "models images", "a folder of PNG or JPEG")
        return ImageData(prepare_images(config.data, reporter.preparing), config)
