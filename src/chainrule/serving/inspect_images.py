"""Images: sampled value by value, or completed around values that are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from chainrule.data.images import brightness
from chainrule.decoding.inpainting import inpaint
from chainrule.decoding.sampling import Sampling
from chainrule.errors import DataError, DecodingError
from chainrule.tasks.image_labels import ImageLabelRun
from chainrule.tasks.images import ImageRun
from chainrule.types import Sequences

FRAMES = 60  # of a growing image
PARTICLES = 16


class Canvas(BaseModel):
    """The form of the images of a run."""

    width: int
    height: int
    channels: int
    levels: int
    classes: list[str] = Field(description="the labels of a conditional model; empty without")
    brightness: list[int] = Field(description="of each level, from 0 to 255")


class Frame(BaseModel):
    """Images in the course of sampling."""

    known: int = Field(description="number of values that are drawn, in raster order")
    images: list[list[int]] = Field(description="levels in raster order; 0 where nothing is drawn yet")


def canvas(run: ImageRun | ImageLabelRun) -> Canvas:
    """Size, levels and labels of a run's images."""
    form = run.form
    levels = np.arange(form.levels, dtype=np.uint16).reshape(1, -1, 1, 1)
    labelled = isinstance(run, ImageRun) and run.labelled
    return Canvas(
        width=form.width,
        height=form.height,
        channels=form.channels,
        levels=form.levels,
        classes=list(form.classes) if labelled else [],
        brightness=brightness(levels, form).reshape(-1).tolist(),
    )


def example(run: ImageRun | ImageLabelRun, number: int) -> list[int]:
    """A validation image in levels; the number counts from 0 and starts again after the last."""
    if isinstance(run, ImageLabelRun):
        raise DataError("examples are images of a model that draws; choose one")
    try:
        found = run.example(str(number))
    except DataError as error:
        if "there is no image" not in str(error):
            raise
        found = run.example("0")
    levels: list[int] = found.reshape(-1).tolist()
    return levels


def draw(
    run: ImageRun, *, num: int, label: str | None, seed: int, sampling: Sampling, given: Sequence[int | None] | None
) -> Iterator[Frame]:
    """Sample images, or complete one of which some values are given: at most 60 frames, the last one complete."""
    size = run.form.size
    if given is not None:
        yield from _completed(run, given, label=label, seed=seed, sampling=sampling)
        return
    every = max(1, size // FRAMES)
    for drawing in run.drawing(num, label=label, seed=seed, **sampling.model_dump(exclude_defaults=True)):
        if drawing.known % every == 0 or drawing.known == size:
            yield Frame(known=drawing.known, images=drawing.levels.reshape(num, -1).tolist())


def _completed(
    run: ImageRun, given: Sequence[int | None], *, label: str | None, seed: int, sampling: Sampling
) -> Iterator[Frame]:
    """By a particle filter, since a model in raster order does not look ahead to values that are known further on."""
    size, levels = run.form.size, run.form.levels
    if len(given) != size:
        raise DecodingError(f"the image has {len(given)} values and the model draws {size}; give as many")
    if any(value is not None and not 0 <= value < levels for value in given):
        raise DecodingError(f"a value is outside the levels 0 to {levels - 1}; correct it")
    source = None
    if run.labelled:
        classes = run.form.classes
        if label is None or label not in classes:
            raise DecodingError(f"the model needs one of its labels; give one of {', '.join(classes)}")
        source = Sequences.pack([[classes.index(label)]], run.model.device)
    every = max(1, size // FRAMES)
    for found in inpaint(run.model, given, particles=PARTICLES, sampling=sampling, seed=seed, source=source):
        if found.position % every == 0 or found.position == size:
            yield Frame(known=found.position, images=[found.ids[found.best].tolist()])


def image_labels(run: ImageLabelRun, levels: Sequence[int]) -> dict[str, float]:
    """P(label | image) of an image in levels."""
    if len(levels) != run.form.size or not all(0 <= value < run.form.levels for value in levels):
        raise DecodingError(
            f"the image must have {run.form.size} values from 0 to {run.form.levels - 1}; draw it in that size"
        )
    pixels: npt.NDArray[np.int64] = np.asarray(levels, np.int64)
    return dict(zip(run.labels, run.label_pixels(pixels[None])[0].tolist(), strict=True))
