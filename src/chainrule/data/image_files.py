"""Image files: idx, NumPy arrays, folders of PNG and JPEG; and the digits of scikit-learn."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from chainrule.data.splits import Part
from chainrule.errors import DataError, MissingExtra, nearest

Pixels: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Split: TypeAlias = Literal["train", "valid", "test"]
Progress: TypeAlias = Callable[[int, int], None]

DIGITS = "builtin:digits"
ARRAYS = (".npz", ".npy")
PICTURES = (".png", ".jpg", ".jpeg")
INSPECTED = 1000  # files of a folder that are inspected to tell whether it contains images
GREY, COLOURED = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")  # modes of Pillow
BYTES = 256  # values of a byte
IDX_BYTES = b"\x00\x00\x08"  # header of an idx file of bytes; the number of axes follows


class Images(NamedTuple):
    """Images as read from files."""

    pixels: Pixels  # (N, H, W, C)
    depth: int | None  # number of values of a channel; None if the file does not define it
    labels: npt.NDArray[np.int64] | None  # (N,) indices of `classes`
    classes: tuple[str, ...]  # () if there are no labels

    @property
    def form(self) -> tuple[int, ...]:
        """Height, width, channels."""
        return self.pixels.shape[1:]

    def part(self, part: Part) -> Images:
        """Return some of the images; a single range is not copied."""
        if len(part.spans) == 1:
            chosen: Any = slice(*part.spans[0])
        else:
            chosen = np.concatenate([np.arange(*span) for span in part.spans])
        labels = None if self.labels is None else self.labels[chosen]
        return self._replace(pixels=self.pixels[chosen], labels=labels)


def is_images(spec: str) -> bool:
    """Whether a data spec is one of images, not text."""
    if spec == DIGITS:
        return True
    if spec == "-" or spec.startswith(("builtin:", "hub:")):
        return False
    path, _ = _path_and_key(spec)
    if path.is_dir():
        pictures = [is_picture(file) for file in islice(_files(path), INSPECTED)]
        return 2 * sum(pictures) > len(pictures)  # a folder of text may contain a few
    return path.suffix in ARRAYS or is_picture(path) or (path.is_file() and _is_idx(path))


def read_images(spec: str, shape: Sequence[int] | None = None, progress: Progress | None = None) -> Images:
    """Read all images of a spec; from a .npz with several arrays the training images, or those of `FILE.npz:KEY`."""
    path, key = _path_and_key(spec)
    if spec == DIGITS:
        found = _digits()
    elif path.is_dir():
        found = _read_folder(path, progress)
    elif not path.is_file():
        raise DataError(f"there are no images at {spec!r}; check the path")
    elif path.suffix in ARRAYS:
        found = _read_arrays(path, key, shape)
    elif is_picture(path):
        found = _stacked([path], None, progress)
    else:
        found = _read_idx_images(path)
    if not len(found.pixels):
        raise DataError(f"{spec!r} contains no images; check the data")
    return found


def beside(spec: str, split: Split) -> str | None:
    """Return the spec of the validation or test images in the same .npz file, if there are any."""
    path, key = _path_and_key(spec)
    if path.suffix != ".npz" or key is not None or not path.is_file():
        return None
    found = _image_key(split, _load(path))
    return None if found is None else f"{spec}:{found}"


def _path_and_key(spec: str) -> tuple[Path, str | None]:
    """Split `FILE.npz:KEY`."""
    path, colon, key = spec.rpartition(":")
    if colon and path.endswith(".npz"):
        return Path(path).expanduser(), key
    return Path(spec).expanduser(), None


# idx: the format of MNIST


def _is_idx(path: Path) -> bool:
    try:
        with _opened(path) as file:
            start = file.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return start[:3] == IDX_BYTES and len(start) == 4 and start[3] in (3, 4)


def _opened(path: Path) -> Any:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read big-endian: two zeros, the type, the number of axes, the size of each axis, the values."""
    try:
        with _opened(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{str(path)!r} is damaged: {error}; download it again") from None
    if content[:3] != IDX_BYTES or len(content) < 4 or len(content) < 4 + 4 * content[3]:
        raise DataError(
            f"{str(path)!r} is not an idx file of bytes or another supported image format; see docs/draw.md"
        )
    start = 4 + 4 * content[3]
    sizes = np.frombuffer(content, ">u4", count=content[3], offset=4).tolist()
    values = np.frombuffer(content, np.uint8, offset=start)
    if len(values) != math.prod(sizes):
        raise DataError(
            f"{str(path)!r} is damaged: it has {len(values):,} values instead of {'×'.join(map(str, sizes))}; "
            "download it again"
        )
    return values.reshape(sizes)


def _read_idx_images(path: Path) -> Images:
    pixels = _with_channels(_read_idx(path), str(path))
    labels = None
    if (beside_it := _labels_file(path)) is not None:
        labels = _read_idx(beside_it)
    return _labelled(pixels, None, labels, str(beside_it))


def _labels_file(path: Path) -> Path | None:
    """The labels of train-images-idx3-ubyte are in train-labels-idx1-ubyte; either may be compressed."""
    name = path.name.removesuffix(".gz").replace("images", "labels")
    for axes in "34":
        name = name.replace(f"idx{axes}", "idx1")
    both = [path.with_name(name + ending) for ending in ("", ".gz")]
    return next((file for file in both if file != path and file.is_file()), None)


# NumPy


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return every array of a file by name; the array of a .npy has an empty name."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {"": found}
        with found:
            return dict(found)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{str(path)!r} cannot be read as arrays: {reason}; save it with numpy.savez") from None


SPLITS: Mapping[Split, tuple[str, ...]] = {
    "train": ("train",),
    "valid": ("valid", "validation", "val"),
    "test": ("test",),
}
"""Names of the splits in array names."""


def _image_key(split: Split, arrays: Mapping[str, Any]) -> str | None:
    for name in SPLITS[split]:
        for key in (name, f"x_{name}", f"{name}_images"):
            if key in arrays:
                return key
    return None


def _label_key(key: str, arrays: Mapping[str, Any]) -> str | None:
    """Return the name of the labels: y_train or train_labels for `train`, labels for `images`."""
    name = key.removeprefix("x_").removesuffix("_images")
    wanted = ("labels",) if name == "images" else (f"y_{name}", f"{name}_labels", f"{key}_labels")
    return next((one for one in wanted if one in arrays), None)


def _read_arrays(path: Path, key: str | None, shape: Sequence[int] | None) -> Images:
    arrays = _load(path)
    if key is None:
        key = _image_key("train", arrays) or ("images" if "images" in arrays else None)
        if key is None and len(arrays) == 1:
            [key] = arrays
    if key is None:
        names = ", ".join(arrays)
        raise DataError(
            f"{str(path)!r} contains the arrays {names}; choose one, for example {path}:{next(iter(arrays), '')}"
        )
    if key not in arrays:
        raise DataError(f"{str(path)!r} has no array {key!r}; {nearest(key, arrays)}")
    where = f"{path}:{key}" if key else str(path)
    pixels, depth = _of_array(arrays[key], shape, where)
    labels = _label_key(key, arrays)
    return _labelled(pixels, depth, None if labels is None else arrays[labels], f"{path}:{labels}")


def _of_array(array: npt.NDArray[Any], shape: Sequence[int] | None, where: str) -> tuple[Pixels, int | None]:
    """Return an array as pixels, and the number of values of a channel if its dtype determines it."""
    depth = None
    if array.dtype == np.bool_:
        array, depth = array.astype(np.uint8), 2
    elif np.issubdtype(array.dtype, np.floating):
        if not array.size or not 0 <= array.min() <= array.max() <= 1:
            raise DataError(f"{where!r} contains floats outside [0, 1]; scale them, or save integers")
        array, depth = np.rint(array * (BYTES - 1)).astype(np.uint8), BYTES
    elif not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{where!r} contains {array.dtype}, which are not pixel values; save non-negative integers")
    elif array.size and not 0 <= array.min() <= array.max() < 1 << 16:
        raise DataError(f"{where!r} contains {array.min()} to {array.max()}; pixel values must be from 0 to 65535")
    if array.ndim == 2:
        array, packed = _unflattened(array, shape, where)
        depth = 2 if packed else depth
    kind = np.uint8 if array.dtype == np.uint8 or not array.size or array.max() < BYTES else np.uint16
    return _with_channels(array.astype(kind, copy=False), where), depth


def _unflattened(array: npt.NDArray[Any], shape: Sequence[int] | None, where: str) -> tuple[npt.NDArray[Any], bool]:
    """Reshape flat rows, one per image; rows of size / 8 bytes are unpacked as bits (np.packbits)."""
    length = array.shape[1]
    if shape is None:
        side = math.isqrt(length * 8 if math.isqrt(length) ** 2 != length else length)
        raise DataError(
            f"{where!r} has {length} values per image and no height and width; set them, "
            f"for example --set data.shape=[{side},{side}]"
        )
    size = math.prod(shape)
    if length == size:
        return array.reshape(-1, *shape), False
    if array.dtype == np.uint8 and length == -(-size // 8):
        return np.unpackbits(array, axis=1)[:, :size].reshape(-1, *shape), True
    raise DataError(
        f"{where!r} has {length} values per image; data.shape={list(shape)} has {size}, or {-(-size // 8)} bytes of "
        "packed bits; correct data.shape"
    )


def _with_channels(array: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Convert (N, H, W), (N, H, W, C) or (N, C, H, W) to (N, H, W, C)."""
    if array.ndim == 3:
        return array[..., None]
    if array.ndim == 4 and array.shape[3] in (1, 3):
        return array
    if array.ndim == 4 and array.shape[1] in (1, 3):
        return array.transpose(0, 2, 3, 1)
    raise DataError(
        f"{where!r} has shape {array.shape}; images are (number, height, width), optionally with 1 or 3 channels"
    )


def _labelled(pixels: Pixels, depth: int | None, labels: npt.NDArray[Any] | None, where: str) -> Images:
    """Add labels that are integers from 0 on; the class names are these numbers."""
    if labels is None:
        return Images(pixels, depth, None, ())
    labels = labels.reshape(len(labels), -1)[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1 or len(labels) != len(pixels):
        raise DataError(
            f"{where!r} has labels of shape {labels.shape} for {len(pixels):,} images; give one label per image"
        )
    if not np.issubdtype(labels.dtype, np.integer) or (len(labels) and labels.min() < 0):
        raise DataError(f"{where!r} contains labels that are not non-negative integers; number the classes")
    count = int(labels.max()) + 1 if len(labels) else 0
    return Images(pixels, depth, labels.astype(np.int64), tuple(map(str, range(count))))


# PNG and JPEG


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent) / name for name in sorted(names) if not name.startswith("."))


def _read_folder(folder: Path, progress: Progress | None) -> Images:
    """Read all images below a folder; if all are in subfolders, the name of the top subfolder is the class.

    Their order is a hash of their names, so that a fraction split off the end contains all classes.
    """
    files = [file.relative_to(folder) for file in _files(folder) if is_picture(file)]
    if not files:
        raise DataError(f"folder {str(folder)!r} contains no PNG or JPEG; check the path")
    files.sort(key=lambda file: hashlib.blake2b(str(file).encode(), digest_size=8).digest())
    kinds = [file.parts[0] for file in files] if all(len(file.parts) > 1 for file in files) else None
    return _stacked([folder / file for file in files], kinds, progress)


def _stacked(files: Sequence[Path], kinds: Sequence[str] | None, progress: Progress | None) -> Images:
    """Read images of one size; if one has colours, all are converted to three channels."""
    arrays: list[npt.NDArray[np.uint8]] = []
    for done, file in enumerate(files, start=1):
        arrays.append(_read_picture(file))
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            (height, width), (other_height, other_width) = arrays[0].shape[:2], arrays[-1].shape[:2]
            raise DataError(
                f"{str(files[0])!r} has {width}×{height} pixels and {str(file)!r} {other_width}×{other_height}; "
                "resize all images to one size"
            )
        if progress is not None:
            progress(done, len(files))
    channels = max(array.shape[2] for array in arrays)
    pixels = np.stack([np.broadcast_to(array, (*array.shape[:2], channels)) for array in arrays])
    if kinds is None:
        return Images(pixels, BYTES, None, ())
    classes = sorted(set(kinds))
    labels = np.array([classes.index(kind) for kind in kinds], dtype=np.int64)
    return Images(pixels, BYTES, labels, tuple(classes))


def _read_picture(path: Path) -> npt.NDArray[np.uint8]:
    """Return the (H, W, C) bytes of an image file."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("reading PNG and JPEG", "images") from None
    try:
        with Image.open(path) as picture:
            if picture.mode not in (*GREY, *COLOURED):
                raise DataError(f"{str(path)!r} has mode {picture.mode}; save it with 8 bits per channel")
            array = np.asarray(picture.convert("L" if picture.mode in GREY else "RGB"))
    except UnidentifiedImageError:
        raise DataError(f"{str(path)!r} is not an image despite its name; remove it") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{str(path)!r} is a damaged image: {error}; remove it or download it again") from None
    return array.reshape(*array.shape[:2], -1)


# Builtin


def _digits() -> Images:
    """Return the digits of scikit-learn: 1,797 images of 8 × 8 pixels and 17 levels (Alpaydin & Kaynak, 1998)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra(f"{DIGITS!r}, which comes with scikit-learn,", "images") from None
    found = load_digits()
    return _labelled(found.images.astype(np.uint8)[..., None], 17, found.target, DIGITS)
