"""Arrays of pixels as pictures: a grid of images, and an image that grows, as PNG or GIF."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from chainrule.errors import ConfigError, MissingExtra
from chainrule.files import require_parent, whole_file

if TYPE_CHECKING:
    from PIL.Image import Image

Canvas: TypeAlias = npt.NDArray[np.uint8]  # (H, W, 3)

SMALLEST = 96  # pixels on the longer side of an image, which is enlarged to that by a whole number
GAP = 4  # pixels between two images
PAPER = 128  # brightness between images
UNKNOWN = (48, 64, 112)  # colour of pixels that are not drawn yet
FRAME = 60  # milliseconds
PAUSE = 1500  # milliseconds that the last frame stays


def enlarged(image: npt.NDArray[np.uint8]) -> Canvas:
    """(H, W, C) as a canvas on which single pixels can be seen."""
    factor = max(1, math.ceil(SMALLEST / max(image.shape[:2])))
    colours = np.broadcast_to(image, (*image.shape[:2], 3))
    return colours.repeat(factor, axis=0).repeat(factor, axis=1)


def grid(images: npt.NDArray[np.uint8], columns: int | None = None) -> Canvas:
    """(N, H, W, C) side by side and below each other, about as many rows as columns unless `columns` says."""
    cells = [enlarged(image) for image in images]
    columns = min(len(cells), columns or math.ceil(math.sqrt(len(cells))))
    rows = -(-len(cells) // columns)
    height, width, _ = cells[0].shape
    paper = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, 3), PAPER, np.uint8)
    for number, cell in enumerate(cells):
        top, left = GAP + number // columns * (height + GAP), GAP + number % columns * (width + GAP)
        paper[top : top + height, left : left + width] = cell
    return paper


def unfinished(image: npt.NDArray[np.uint8], known: int) -> npt.NDArray[np.uint8]:
    """(H, W, 3) of (H, W, C), of whose values only the first `known` are there."""
    height, width, channels = image.shape
    seen = (np.arange(height * width) < known // channels).reshape(height, width, 1)
    return np.where(seen, image, np.array(UNKNOWN, np.uint8)).astype(np.uint8)


def write_png(path: Path, canvas: Canvas) -> None:
    """Write a picture, whole or not at all."""
    _require_suffix(path, (".png",))
    _write(path, png(canvas))


def png(canvas: Canvas) -> bytes:
    buffer = io.BytesIO()
    _picture(canvas).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def write_growing(path: Path, frames: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Frames (H, W, C), one after the other in a GIF, or side by side in a PNG."""
    _require_suffix(path, (".gif", ".png"))
    if path.suffix == ".png":
        return write_png(path, grid(np.stack(frames), columns=len(frames)))
    pictures = [_picture(enlarged(frame)) for frame in frames]
    buffer = io.BytesIO()
    durations = [FRAME] * (len(pictures) - 1) + [PAUSE]
    pictures[0].save(buffer, format="GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0)
    return _write(path, buffer.getvalue())


def _picture(canvas: npt.NDArray[Any]) -> Image:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("drawing pictures", "images") from None
    return Image.fromarray(np.ascontiguousarray(canvas))


def _require_suffix(path: Path, known: Sequence[str]) -> None:
    if path.suffix not in known:
        raise ConfigError(f"{str(path)!r} should end in {' or '.join(known)}; give it such a name")


def _write(path: Path, content: bytes) -> None:
    require_parent(path)
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
