"""What models are compared on, a text or images: all that a comparison must know of the difference."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, final

from chainrule.comparison.analysis import Surprisals, analyse, by_position, count_words
from chainrule.comparison.results import Analysis
from chainrule.config import DataConfig
from chainrule.data.corpus import Corpus, Report, prepare
from chainrule.data.image_files import is_images
from chainrule.data.images import prepare_images
from chainrule.data.pictures import grid, png
from chainrule.families import family, single_families
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.conditional import Conditional
from chainrule.material.images import settings_of
from chainrule.runs import ImageRun, SequenceRun, TextRun, require

PROMPT = 64  # tokens of a text that are read before the clock starts
LONGEST = 1000  # tokens written at most
NEURAL_CACHE = 2000  # tokens in the neural cache of each part of a mixture that supports one
SAMPLE_BYTES = 400
SAMPLED = 12  # images
ON_IMAGES = ("neighbours", "pixelcnn", "gpt")


class Beginning(NamedTuple):
    """What a model goes on from when its speed is measured, and how far."""

    prompt: list[int]
    length: int


class Subject(ABC):
    """The data of a comparison: `train` to learn from, `test` for the figures."""

    unit: ClassVar[Literal["byte", "dim"]]
    neural_cache: ClassVar[int | None]  # size of the neural cache of a mixture's parts
    vocabulary: int
    values: int | None = None  # of images: tokens of each
    train: Corpus
    valid: Corpus
    test: Corpus

    @abstractmethod
    def __init__(self, config: DataConfig, tokenizer: str, progress: Report) -> None: ...

    @classmethod
    @abstractmethod
    def families(cls) -> list[str]:
        """Those that can be compared on it."""

    @classmethod
    @abstractmethod
    def usual(cls) -> list[str]:
        """Those that are, where nobody says which."""

    @abstractmethod
    def settings(self, config: DataConfig) -> DataConfig:
        """The settings with all that was found out about the data."""

    @abstractmethod
    def sizes(self, name: str) -> Mapping[str, Any]:
        """The settings of a family that follow from the data."""

    @abstractmethod
    def beginning(self) -> Beginning:
        """Where the measurement of speed starts."""

    @abstractmethod
    def analyse(self, nats: Surprisals, leading: Sequence[str]) -> Analysis:
        """Where the models differ; `nats` of every token of `test`, best model first."""

    @abstractmethod
    def sample(self, run: SequenceRun, seed: int) -> dict[str, str]:
        """What a model makes by itself, as fields of a row."""


@final
class TextSubject(Subject):
    """A text, or many."""

    unit = "byte"
    neural_cache = NEURAL_CACHE

    def __init__(self, config: DataConfig, tokenizer: str, progress: Report) -> None:
        prepared = prepare(config, tokenizer, progress=progress)
        assert prepared.test is not None
        self.train, self.valid, self.test = prepared.train, prepared.valid, prepared.test
        self.tokenizer = prepared.tokenizer
        self.vocabulary = prepared.tokenizer.vocabulary

    @classmethod
    def families(cls) -> list[str]:
        return [name for name, kind in single_families().items() if kind.task == "language"]

    @classmethod
    def usual(cls) -> list[str]:
        return cls.families()

    def settings(self, config: DataConfig) -> DataConfig:
        return config.model_copy(update={"unit": self.train.unit})

    def sizes(self, name: str) -> Mapping[str, Any]:
        return {"vocabulary": self.vocabulary}

    def beginning(self) -> Beginning:
        return Beginning([int(token) for token in self.valid.tokens[:PROMPT]], LONGEST)

    def analyse(self, nats: Surprisals, leading: Sequence[str]) -> Analysis:
        words = count_words(self.train.tokens, self.tokenizer)
        return analyse(nats, self.test.tokens, self.tokenizer, words, offsets=self.test.offsets, leading=leading)

    def sample(self, run: SequenceRun, seed: int) -> dict[str, str]:
        """A few lines of the model's own."""
        length = max(16, round(SAMPLE_BYTES / self.test.bytes_per_token))
        [text] = require(run, TextRun).generate("", length=length, temperature=0.8, seed=seed)
        return {"sample": text.text}


@final
class ImageSubject(Subject):
    """Images of one size."""

    unit = "dim"
    neural_cache = None  # recent pixels matter by their position, which a cache ignores

    def __init__(self, config: DataConfig, tokenizer: str, progress: Report) -> None:
        prepared = prepare_images(config, progress)
        assert prepared.test is not None
        self.train, self.valid = prepared.train.target, prepared.valid.target
        self.test = prepared.test.target
        self.form, self._config = prepared.form, prepared.config
        self.vocabulary, self.values = self.form.levels, self.form.size

    @classmethod
    def families(cls) -> list[str]:
        return [
            name
            for name, kind in single_families().items()
            if kind.task in ("language", "image")
            and issubclass(kind, AutoregressiveModel)
            and not issubclass(kind, Conditional)
        ]

    @classmethod
    def usual(cls) -> list[str]:
        return [name for name in cls.families() if name in ON_IMAGES]

    def settings(self, config: DataConfig) -> DataConfig:
        return self._config

    def sizes(self, name: str) -> Mapping[str, Any]:
        return settings_of(family(name), self.form)

    def beginning(self) -> Beginning:
        return Beginning([], self.form.size)

    def analyse(self, nats: Surprisals, leading: Sequence[str]) -> Analysis:
        return Analysis(by_position=by_position(nats, len(self.test), self.test.offsets), by_frequency=[], excerpts=[])

    def sample(self, run: SequenceRun, seed: int) -> dict[str, str]:
        """A few images of the model's own."""
        drawer = require(run, ImageRun)
        picture = png(grid(drawer.visible(drawer.draw(SAMPLED, seed=seed)), columns=6))
        return {"picture": base64.b64encode(picture).decode("ascii")}


def subject_of(data: str) -> type[Subject]:
    """What a data spec names."""
    return ImageSubject if is_images(data) else TextSubject
