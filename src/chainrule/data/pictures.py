"""Image output: a grid of images as PNG, and the generation of an image as PNG or GIF."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from chainrule.errors import MissingExtra
from chainrule.files import require_parent, require_suffix, whole_file

if TYPE_CHECKING:
    from PIL.Image import Image

Canvas: TypeAlias = npt.NDArray[np.uint8]  # (H, W, 3)

SMALLEST = 96  # minimum pixels of the longer side; smaller images are enlarged by an integer factor
GAP = 4  # pixels between two images
BACKGROUND = 128  # brightness between images
UNKNOWN = (48, 64, 112)  # colour of pixels that are not generated yet
FRAME = 60  # milliseconds per frame
PAUSE = 1500  # milliseconds of the last frame


def enlarged(image: npt.NDArray[np.uint8]) -> Canvas:
    """Enlarge an image (H, W, C) so that single pixels are visible."""
    factor = max(1, math.ceil(SMALLEST / max(image.shape[:2])))
    colours = np.broadcast_to(image, (*image.shape[:2], 3))
    return colours.repeat(factor, axis=0).repeat(factor, axis=1)


def grid(images: npt.NDArray[np.uint8], columns: int | None = None) -> Canvas:
    """Arrange images (N, H, W, C) in a grid, by default about square."""
    cells = [enlarged(image) for image in images]
    columns = min(len(cells), columns or math.ceil(math.sqrt(len(cells))))
    rows = -(-len(cells) // columns)
    height, width, _ = cells[0].shape
    canvas = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, 3), BACKGROUND, np.uint8)
    for number, cell in enumerate(cells):
        top, left = GAP + number // columns * (height + GAP), GAP + number % columns * (width + GAP)
        canvas[top : top + height, left : left + width] = cell
    return canvas


def unfinished(image: npt.NDArray[np.uint8], known: int) -> npt.NDArray[np.uint8]:
    """Return an image (H, W, 3) of which only the first `known` values are generated."""
    height, width, channels = image.shape
    seen = (np.arange(height * width) < known // channels).reshape(height, width, 1)
    return np.where(seen, image, np.array(UNKNOWN, np.uint8)).astype(np.uint8)


def write_png(path: Path, canvas: Canvas) -> None:
    """Write a PNG file atomically."""
    require_suffix(path, (".png",))
    _write(path, png(canvas))


def png(canvas: Canvas) -> bytes:
    buffer = io.BytesIO()
    _picture(canvas).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def write_growing(path: Path, frames: Sequence[npt.NDArray[np.uint8]]) -> None:
    """Write frames (H, W, C) as an animated GIF, or side by side as PNG."""
    require_suffix(path, (".gif", ".png"))
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


def require_pillow() -> None:
    """Raise MissingExtra if pictures cannot be written, before anything is computed for one."""
    _picture(np.zeros((1, 1, 3), np.uint8))


def _write(path: Path, content: bytes) -> None:
    require_parent(path)
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
