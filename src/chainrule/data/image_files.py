"""Images from files: idx, NumPy arrays, folders of PNG and JPEG, and the digits that come with scikit-learn."""

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

from chainrule.errors import DataError, MissingExtra, nearest

Pixels: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Split: TypeAlias = Literal["train", "valid", "test"]
Progress: TypeAlias = Callable[[int, int], None]

DIGITS = "builtin:digits"
ARRAYS = (".npz", ".npy")
PICTURES = (".png", ".jpg", ".jpeg")
LOOKED_AT = 1000  # files of a folder, to see whether it is one of images
GREY, COLOURED = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")  # modes of Pillow's
BYTES = 256  # values of a byte
IDX_BYTES = b"\x00\x00\x08"  # how an idx file of bytes begins; the number of axes follows


class Images(NamedTuple):
    """Images as they stand in the data."""

    pixels: Pixels  # (N, H, W, C)
    depth: int | None  # values that a channel can have; None where the file does not tell
    labels: npt.NDArray[np.int64] | None  # (N,) indices of `classes`
    classes: tuple[str, ...]  # () where there are no labels

    @property
    def form(self) -> tuple[int, ...]:
        """Rows, columns, channels."""
        return self.pixels.shape[1:]

    def part(self, begin: int, end: int) -> Images:
        """Some of them."""
        labels = None if self.labels is None else self.labels[begin:end]
        return self._replace(pixels=self.pixels[begin:end], labels=labels)


def is_images(spec: str) -> bool:
    """Whether a data spec names images and not text."""
    if spec == DIGITS:
        return True
    if spec == "-" or spec.startswith(("builtin:", "hub:")):
        return False
    path, _ = _path_and_key(spec)
    if path.is_dir():
        pictures = [is_picture(file) for file in islice(_files(path), LOOKED_AT)]
        return 2 * sum(pictures) > len(pictures)  # a book may have a few
    return path.suffix in ARRAYS or is_picture(path) or (path.is_file() and _is_idx(path))


def read_images(spec: str, shape: Sequence[int] | None = None, progress: Progress | None = None) -> Images:
    """All images that a spec names; of a .npz with several arrays the training ones, unless `FILE.npz:KEY` says."""
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
        raise DataError(f"{spec!r} holds no images; check the data")
    return found


def beside(spec: str, split: Split) -> str | None:
    """The spec of the validation or test images that come in the same file as the training ones, if they do."""
    path, key = _path_and_key(spec)
    if path.suffix != ".npz" or key is not None or not path.is_file():
        return None
    found = _image_key(split, _load(path))
    return None if found is None else f"{spec}:{found}"


def _path_and_key(spec: str) -> tuple[Path, str | None]:
    """`FILE.npz:KEY` taken apart."""
    path, colon, key = spec.rpartition(":")
    if colon and path.endswith(".npz"):
        return Path(path).expanduser(), key
    return Path(spec).expanduser(), None


# idx: the form of MNIST


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
    """Big-endian: two zeros, the type, the number of axes, the size of each axis, the values."""
    try:
        with _opened(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{str(path)!r} is damaged: {error}; fetch it again") from None
    if content[:3] != IDX_BYTES or len(content) < 4 or len(content) < 4 + 4 * content[3]:
        raise DataError(f"{str(path)!r} is no idx file of bytes, nor any other form of images; see docs/images.md")
    start = 4 + 4 * content[3]
    sizes = np.frombuffer(content, ">u4", count=content[3], offset=4).tolist()
    values = np.frombuffer(content, np.uint8, offset=start)
    if len(values) != math.prod(sizes):
        raise DataError(
            f"{str(path)!r} is damaged: it says {'×'.join(map(str, sizes))} values and holds {len(values):,}; "
            "fetch it again"
        )
    return values.reshape(sizes)


def _read_idx_images(path: Path) -> Images:
    pixels = _with_channels(_read_idx(path), str(path))
    labels = None
    if (beside_it := _labels_file(path)) is not None:
        labels = _read_idx(beside_it)
    return _labelled(pixels, None, labels, str(beside_it))


def _labels_file(path: Path) -> Path | None:
    """train-images-idx3-ubyte has its labels in train-labels-idx1-ubyte, either of them perhaps packed."""
    name = path.name.removesuffix(".gz").replace("images", "labels")
    for axes in "34":
        name = name.replace(f"idx{axes}", "idx1")
    both = [path.with_name(name + ending) for ending in ("", ".gz")]
    return next((file for file in both if file != path and file.is_file()), None)


# NumPy


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Every array of a file, by name; that of a .npy has none."""
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
"""What a split is called in the names of arrays."""


def _image_key(split: Split, arrays: Mapping[str, Any]) -> str | None:
    for name in SPLITS[split]:
        for key in (name, f"x_{name}", f"{name}_images"):
            if key in arrays:
                return key
    return None


def _label_key(key: str, arrays: Mapping[str, Any]) -> str | None:
    """The labels of `train` are in y_train or train_labels, those of `images` in labels."""
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
            f"{str(path)!r} holds the arrays {names}; name the one that is meant: {path}:{next(iter(arrays), '')}"
        )
    if key not in arrays:
        raise DataError(f"{str(path)!r} has no array {key!r}; {nearest(key, arrays)}")
    where = f"{path}:{key}" if key else str(path)
    pixels, depth = _of_array(arrays[key], shape, where)
    labels = _label_key(key, arrays)
    return _labelled(pixels, depth, None if labels is None else arrays[labels], f"{path}:{labels}")


def _of_array(array: npt.NDArray[Any], shape: Sequence[int] | None, where: str) -> tuple[Pixels, int | None]:
    """An array of numbers as pixels, and the values that a channel can have, where the type of the numbers tells."""
    depth = None
    if array.dtype == np.bool_:
        array, depth = array.astype(np.uint8), 2
    elif np.issubdtype(array.dtype, np.floating):
        if not array.size or not 0 <= array.min() <= array.max() <= 1:
            raise DataError(
                f"{where!r} holds fractions that are not all from 0 to 1; scale them, or save whole numbers"
            )
        array, depth = np.rint(array * (BYTES - 1)).astype(np.uint8), BYTES
    elif not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{where!r} holds {array.dtype}, which are no brightnesses; save whole numbers from 0 up")
    elif array.size and not 0 <= array.min() <= array.max() < 1 << 16:
        raise DataError(f"{where!r} holds {array.min()} to {array.max()}; brightnesses are from 0 to 65535")
    if array.ndim == 2:
        array, packed = _unflattened(array, shape, where)
        depth = 2 if packed else depth
    kind = np.uint8 if array.dtype == np.uint8 or not array.size or array.max() < BYTES else np.uint16
    return _with_channels(array.astype(kind, copy=False), where), depth


def _unflattened(array: npt.NDArray[Any], shape: Sequence[int] | None, where: str) -> tuple[npt.NDArray[Any], bool]:
    """Flat rows, one an image, in their shape. As many bytes as the pixels fill as bits are such bits (np.packbits)."""
    length = array.shape[1]
    if shape is None:
        side = math.isqrt(length * 8 if math.isqrt(length) ** 2 != length else length)
        raise DataError(
            f"{where!r} has {length} numbers an image and no rows and columns; say what they are, "
            f"for example --set data.shape=[{side},{side}]"
        )
    size = math.prod(shape)
    if length == size:
        return array.reshape(-1, *shape), False
    if array.dtype == np.uint8 and length == -(-size // 8):
        return np.unpackbits(array, axis=1)[:, :size].reshape(-1, *shape), True
    raise DataError(
        f"{where!r} has {length} numbers an image; data.shape={list(shape)} makes {size}, or {-(-size // 8)} bytes of "
        "packed bits; correct it"
    )


def _with_channels(array: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """(N, H, W, C) of (N, H, W), (N, H, W, C) or (N, C, H, W)."""
    if array.ndim == 3:
        return array[..., None]
    if array.ndim == 4 and array.shape[3] in (1, 3):
        return array
    if array.ndim == 4 and array.shape[1] in (1, 3):
        return array.transpose(0, 2, 3, 1)
    raise DataError(
        f"{where!r} has the shape {array.shape}; images are (number, height, width), and perhaps 1 or 3 channels"
    )


def _labelled(pixels: Pixels, depth: int | None, labels: npt.NDArray[Any] | None, where: str) -> Images:
    """With labels that are whole numbers from 0 up, whose names are those numbers."""
    if labels is None:
        return Images(pixels, depth, None, ())
    labels = labels.reshape(len(labels), -1)[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1 or len(labels) != len(pixels):
        raise DataError(
            f"{where!r} has labels of the shape {labels.shape} for {len(pixels):,} images; give one for each"
        )
    if not np.issubdtype(labels.dtype, np.integer) or (len(labels) and labels.min() < 0):
        raise DataError(f"{where!r} holds labels that are not whole numbers from 0 up; number the classes")
    count = int(labels.max()) + 1 if len(labels) else 0
    return Images(pixels, depth, labels.astype(np.int64), tuple(map(str, range(count))))


# Pictures


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place) / name for name in sorted(names) if not name.startswith("."))


def _read_folder(folder: Path, progress: Progress | None) -> Images:
    """All pictures below a folder; if each lies in a folder of its own kind, that is its class.

    They come in an order that has nothing to do with their names, so that a share cut from the end has all classes.
    """
    files = [file.relative_to(folder) for file in _files(folder) if is_picture(file)]
    if not files:
        raise DataError(f"the folder {str(folder)!r} holds no PNG or JPEG; check the path")
    files.sort(key=lambda file: hashlib.blake2b(str(file).encode(), digest_size=8).digest())
    kinds = [file.parts[0] for file in files] if all(len(file.parts) > 1 for file in files) else None
    return _stacked([folder / file for file in files], kinds, progress)


def _stacked(files: Sequence[Path], kinds: Sequence[str] | None, progress: Progress | None) -> Images:
    """Pictures of one size; if one has colours, all of them get three channels."""
    arrays: list[npt.NDArray[np.uint8]] = []
    for done, file in enumerate(files, start=1):
        arrays.append(_read_picture(file))
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            (height, width), (other_height, other_width) = arrays[0].shape[:2], arrays[-1].shape[:2]
            raise DataError(
                f"{str(files[0])!r} has {width}×{height} pixels and {str(file)!r} {other_width}×{other_height}; "
                "bring all images to one size"
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
    """(H, W, C) bytes of a picture that the user names."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("reading PNG and JPEG", "images") from None
    try:
        with Image.open(path) as picture:
            if picture.mode not in (*GREY, *COLOURED):
                raise DataError(f"{str(path)!r} has the mode {picture.mode}; save it with 8 bits a channel")
            array = np.asarray(picture.convert("L" if picture.mode in GREY else "RGB"))
    except UnidentifiedImageError:
        raise DataError(f"{str(path)!r} is not an image, whatever its name says; remove it") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{str(path)!r} is a damaged image: {error}; remove it or fetch it again") from None
    return array.reshape(*array.shape[:2], -1)


# What comes with a package


def _digits() -> Images:
    """1,797 handwritten digits of 8 × 8 pixels and 17 levels (Alpaydin & Kaynak, 1998), as scikit-learn brings them."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra(f"{DIGITS!r}, which comes with scikit-learn,", "images") from None
    found = load_digits()
    return _labelled(found.images.astype(np.uint8)[..., None], 17, found.target, DIGITS)
