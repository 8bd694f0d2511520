"""Images as sequences in raster order: rows from top to bottom, pixels from left to right, then channels.

The brightness levels are the vocabulary. All images of a run have the same size, so their sequences have the same
length and need no EOS. A label is a source of one token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.config import DataConfig, ImageForm
from chainrule.data.corpus import Corpus, shared_origins
from chainrule.data.image_files import BYTES, Images, Pixels, beside, read_images
from chainrule.data.splits import TRAINING, fractions_of, hold_out
from chainrule.data.token_files import token_type
from chainrule.errors import DataError, nearest

Report = Callable[[str, int, int], None]
"""A progress callback with the name of the stage, the amount done and the total."""


@dataclass(frozen=True)
class ImageCorpus:
    """Images as tokens, with their labels if any; a channel of a pixel counts as a byte."""

    target: Corpus
    labels: Corpus | None

    def __len__(self) -> int:
        assert self.target.offsets is not None
        return len(self.target.offsets) - 1


class PreparedImages(NamedTuple):
    """The encoded splits for training and evaluation."""

    config: DataConfig  # completed by what was found in the data
    form: ImageForm
    train: ImageCorpus
    valid: ImageCorpus
    test: ImageCorpus | None
    warnings: tuple[str, ...]


def prepare_images(config: DataConfig, progress: Report | None = None) -> PreparedImages:
    """Read and encode the images of all splits.

    Validation and test images are those of the settings, or those in the same file, or a fraction of the training
    images, taken as for a text. `config.image`, set in a resumed run, determines the format.
    """

    def read(stage: str, spec: str) -> Images:
        return read_images(spec, config.shape, None if progress is None else partial(progress, stage))

    train = read("training images", config.train)
    form = config.image or form_of(train, config.levels)
    valid = config.valid or beside(config.train, "valid")
    test = config.test or (beside(config.train, "test") if config.test_fraction is None else None)
    config = config.model_copy(update={"valid": valid, "test": test, "unit": "documents", "image": form})
    given = {name: spec for name, spec in (("validation", valid), ("test", test)) if spec is not None}
    warnings = [
        warning
        for name, spec in given.items()
        for warning in shared_origins(frozenset({config.train}), frozenset({spec}), name)
    ]
    parts = {name: read(f"{name} images", spec) for name, spec in given.items()}
    train, cut = cut_off(train, config)
    encoded = {name: encode(images, form, given.get(name, config.train)) for name, images in {**parts, **cut}.items()}
    return PreparedImages(
        config,
        form,
        encode(train, form, config.train),
        encoded["validation"],
        encoded.get("test"),
        tuple(warnings),
    )


def form_of(images: Images, levels: int | None) -> ImageForm:
    """Return the format of images, with the given number of levels or that of the data."""
    height, width, channels = images.form
    largest = int(images.pixels.max())
    # A value in the upper half of a byte means 256 levels; smaller values may be fewer levels, such as 0 and 1.
    depth = images.depth or (BYTES if BYTES // 2 <= largest < BYTES else max(2, largest + 1))
    if levels is not None and levels > depth:
        raise DataError(f"data.levels is {levels}, but the images have {depth} levels; set at most {depth}")
    assert channels in (1, 3)
    return ImageForm(
        channels=channels,
        height=height,
        width=width,
        depth=depth,
        levels=levels or depth,
        classes=images.classes,
    )


def cut_off(images: Images, config: DataConfig) -> tuple[Images, dict[str, Images]]:
    """Return the remaining training images, and the splits taken from them."""
    given = [name for name, spec in (("validation", config.valid), ("test", config.test)) if spec is not None]
    if not (fractions := fractions_of(config, given)):
        return images, {}
    parts = hold_out(len(images.pixels), fractions, config.valid_from, what="images", spec=config.train)
    training = images.part(parts.pop(TRAINING))
    return training, {name: images.part(part) for name, part in parts.items()}


def encode(images: Images, form: ImageForm, name: str) -> ImageCorpus:
    """Encode images of a given format as tokens."""
    levels = in_levels(images, form, name)
    rows = levels.reshape(len(levels), -1)
    target = replace(Corpus.of_rows(list(rows), form.levels), words=len(rows), closed=False)
    labels = None
    if form.classes and images.labels is not None:
        known = _known_classes(images, form, name)
        labels = replace(Corpus.of_rows(list(known[:, None]), len(form.classes)), closed=False)
    return ImageCorpus(target, labels)


def in_levels(images: Images, form: ImageForm, name: str) -> Pixels:
    """Quantise pixels to the levels of the model, (N, H, W, C), in equal intervals; two levels are a threshold."""
    pixels = images.pixels
    if images.form == (form.height, form.width, 1) and form.channels == 3:
        pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3))
    if pixels.shape[1:] != (form.height, form.width, form.channels):
        raise DataError(
            f"{name!r} has images of {_size_text(images.form)}, but the model expects images of "
            f"{_size_text((form.height, form.width, form.channels))}; convert them"
        )
    depth = images.depth or form.depth
    if pixels.max() >= depth:
        raise DataError(
            f"{name!r} contains the pixel value {pixels.max()}, but the maximum of the training images is {depth - 1}; "
            "scale it in the same way"
        )
    kind = token_type(form.levels)
    return pixels if depth == form.levels else (pixels.astype(np.uint32) * form.levels // depth).astype(kind)


def brightness(levels: Pixels, form: ImageForm) -> npt.NDArray[np.uint8]:
    """Return levels as 8-bit pixels for display: black is the lowest level, white the highest."""
    shades: npt.NDArray[np.uint8] = np.rint(levels * (255 / (form.levels - 1))).astype(np.uint8)
    return shades


def _known_classes(images: Images, form: ImageForm, name: str) -> npt.NDArray[np.int64]:
    """Return the labels (N,) as class indices of the training data."""
    assert images.labels is not None
    numbers = []
    for one in images.classes:
        if one not in form.classes:
            raise DataError(
                f"{name!r} has the class {one!r}, not found in the training data; {nearest(one, form.classes)}"
            )
        numbers.append(form.classes.index(one))
    return np.array(numbers, dtype=np.int64)[images.labels]


def _size_text(form: tuple[int, ...]) -> str:
    height, width, channels = form
    return f"{width}×{height} pixels in {'grey' if channels == 1 else 'colour'}"
