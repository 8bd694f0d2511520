"""Runs of images: how likely is one, and what does the model draw?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from chainrule.config import DataConfig, ImageForm, RunConfig, Settings
from chainrule.data.corpus import Corpus, Report, token_type
from chainrule.data.image_files import Pixels, read_images
from chainrule.data.images import ImageCorpus, brightness, encode, prepare_images
from chainrule.decoding import Sampling, stream_tokens
from chainrule.errors import DataError, DecodingError, nearest
from chainrule.evaluation.images import ImageScore
from chainrule.evaluation.likelihood import Score, score
from chainrule.interface.base import AutoregressiveModel, Model
from chainrule.interface.conditional import Conditional
from chainrule.runs.base import SequenceRun, Splits
from chainrule.training.checkpoint import RunFolder
from chainrule.training.loop import Outcome
from chainrule.types import Sequences


class Drawing(NamedTuple):
    """Images on their way."""

    levels: Pixels  # (N, H, W, C); of values that are not drawn yet, 0
    known: int  # values of each image that are drawn


@dataclass(frozen=True, kw_only=True)
class ImageRun(SequenceRun):
    """A model of images, of one size and with known levels."""

    does = "models images"
    use = "chainrule draw {run} --out grid.png"

    model: AutoregressiveModel

    @classmethod
    def of(cls, folder: RunFolder, config: RunConfig, model: Model, outcome: Outcome | None) -> Self:
        assert isinstance(model, AutoregressiveModel)
        return cls(folder=folder, config=config, model=model, outcome=outcome)

    @property
    def form(self) -> ImageForm:
        """What the images are."""
        assert self.config.data.image is not None
        return self.config.data.image

    @property
    def labelled(self) -> bool:
        """Whether the model predicts an image from its label."""
        return isinstance(self.model, Conditional)

    def score(self, data: str, *, progress: Callable[[float], None] | None = None) -> ImageScore:
        """Score the images that a data spec names. The result is also kept in scores.jsonl."""
        images = self.corpus(data)
        if self.labelled and images.labels is None:
            raise DataError(f"{data!r} has no labels, and {self.config.family} needs them; give data that has")
        found = score(self.model, images.target, source=images.labels if self.labelled else None, progress=progress)
        self.keep_score(found, images.target, data)
        return ImageScore.of(found, self.form)

    def keep_score(self, result: Settings, corpus: Corpus, name: str, *, split: str | None = None) -> None:
        found = ImageScore.of(result, self.form) if isinstance(result, Score) else result
        super().keep_score(found, corpus, name, split=split)

    def corpus(self, data: str) -> ImageCorpus:
        """Other images, in the levels of this run."""
        return encode(read_images(data, self.config.data.shape), self.form, data)

    @property
    def autoregressive(self) -> AutoregressiveModel:
        if self.labelled:
            raise DecodingError(
                f"{str(self.path)!r} is a {self.config.family}, which needs a label; give a run of a family without, "
                "such as pixelcnn"
            )
        return self.model

    @property
    def vocabulary(self) -> object:
        return self.form.model_dump(exclude={"classes"})

    def splits(self, config: DataConfig, progress: Report | None = None) -> Splits:
        prepared = prepare_images(config, progress)
        test = None if prepared.test is None else prepared.test.target
        return Splits(prepared.train.target, prepared.valid.target, test)

    def encode(self, config: DataConfig, spec: str) -> Corpus:
        return encode(read_images(spec, config.shape), self.form, spec).target

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        folder.create(config)

    def example(self, which: str) -> Pixels:
        """(H, W, C) in levels: the image of a file, or the validation image of a number."""
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

    def draw(self, num: int = 16, **how: Any) -> Pixels:
        """(N, H, W, C) in levels; see `drawing` for what can be said about them."""
        [last] = deque(self.drawing(num, **how), maxlen=1)
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
        """Draw images value by value, image i with seed + i, and tell how they look after each of them.

        With a `label`, or labels in turn, where the model knows them. With an image to `complete`, (H, W, C) in levels,
        the upper part of it, a share `keep` of its rows, is given. `sampling` is that of `decoding.Sampling`.
        """
        source = self._source(num, label)
        canvas: Pixels = np.zeros((num, self.form.size), token_type(self.form.levels))
        known = 0
        if complete is not None:
            if not 0 <= keep < 1:
                raise DecodingError(f"the share of rows to keep is {keep:g}; give one from 0 to just below 1")
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
            for token in tokens:
                canvas[token.row, known] = token.id
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
                    f"{str(self.path)!r} is a {self.config.family}, which knows no labels; leave the label out, or "
                    "train labelled_pixelcnn"
                )
            return None
        if label is not None and label not in classes:
            raise DecodingError(f"the model knows no label {label!r}; {nearest(label, classes)}")
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
