"""Images from idx files, arrays and folders: encoding, splits and errors."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chainrule.config import DataConfig
from chainrule.data.image_files import is_images, read_images
from chainrule.data.images import brightness, encode, form_of, prepare_images
from chainrule.errors import ChainruleError, ConfigError, DataError
from tests.conftest import RealData

RANDOM = np.random.default_rng(0)


def idx(path: Path, array: np.ndarray) -> Path:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def picture(path: Path, array: np.ndarray, mode: str | None = None) -> Path:
    image = pytest.importorskip("PIL.Image").fromarray(array.astype(np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    (image if mode is None else image.convert(mode)).save(path)
    return path


def pixels(*shape: int, levels: int = 256) -> np.ndarray:
    return RANDOM.integers(levels, size=shape, dtype=np.uint8)


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"])
@pytest.mark.parametrize("labels", ["train-labels-idx1-ubyte", "train-labels-idx1-ubyte.gz"])
def test_idx_labels_are_read_from_the_file_beside_the_images(tmp_path: Path, name: str, labels: str) -> None:
    array = pixels(4, 3, 5)
    spec = str(idx(tmp_path / name, array))
    assert read_images(spec).classes == ()
    idx(tmp_path / labels, np.array([2, 0, 1, 2]))
    found = read_images(spec)
    assert is_images(spec)
    assert (found.pixels[..., 0] == array).all()
    assert found.classes == ("0", "1", "2")
    assert found.labels is not None
    assert found.labels.tolist() == [2, 0, 1, 2]


@pytest.mark.parametrize("keys", [("train", "valid", "test"), ("x_train", "x_val", "x_test"), ("images", None, None)])
def test_an_npz_file_may_contain_all_splits(tmp_path: Path, keys: tuple[str, ...]) -> None:
    parts = {key: pixels(size, 2, 2) for key, size in zip(keys, (20, 5, 3), strict=True) if key}
    found = prepare_images(DataConfig(train=str(saved(tmp_path / "all.npz", **parts))))
    if keys[1] is None:
        assert (len(found.train), len(found.valid), found.test) == (18, 2, None)
    else:
        assert found.test is not None
        assert (len(found.train), len(found.valid), len(found.test)) == (20, 5, 3)


def test_one_array_of_many_can_be_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.npz", train=pixels(5, 2, 2), other=pixels(3, 4, 4))
    assert read_images(f"{path}:other").form == (4, 4, 1)
    with pytest.raises(DataError, match="did you mean 'other'"):
        read_images(f"{path}:othr")


def test_packed_bits_are_detected_by_their_size(tmp_path: Path) -> None:
    bits = pixels(6, 3, 5, levels=2)
    path = saved(tmp_path / "bits.npz", train=np.packbits(bits.reshape(6, -1), axis=1))
    found = read_images(str(path), shape=(3, 5))
    assert (found.pixels[..., 0] == bits).all()
    assert found.depth == 2
    with pytest.raises(DataError, match=r"data\.shape"):
        read_images(str(path))
    with pytest.raises(DataError, match="packed bits"):
        read_images(str(path), shape=(4, 5))


@pytest.mark.parametrize("last", [True, False])
def test_channels_may_be_the_first_or_the_last_axis(tmp_path: Path, last: bool) -> None:
    array = pixels(4, 5, 6, 3)
    np.save(tmp_path / "x.npy", array if last else array.transpose(0, 3, 1, 2))
    assert (read_images(str(tmp_path / "x.npy")).pixels == array).all()


def test_an_image_is_a_sequence_of_rows_columns_and_channels(tmp_path: Path) -> None:
    array = pixels(1, 2, 2, 3)
    path = saved(tmp_path / "x.npz", train=array)
    found = read_images(str(path))
    tokens = encode(found, form_of(found._replace(depth=256), None), "x").target.tokens
    assert tokens.tolist() == [*array[0, 0, 0], *array[0, 0, 1], *array[0, 1, 0], *array[0, 1, 1]]


def test_subfolders_are_the_classes_of_images(tmp_path: Path) -> None:
    for number in range(12):
        picture(tmp_path / ("cat", "dog")[number % 2] / f"{number}.png", np.full((3, 4), number))
    found = read_images(str(tmp_path))
    assert found.classes == ("cat", "dog")
    assert found.labels is not None
    assert all(label == value % 2 for label, value in zip(found.labels, found.pixels[:, 0, 0, 0], strict=True))
    assert len(set(found.labels[-4:].tolist())) == 2  # a share cut from the end has both


def test_a_folder_is_of_images_if_most_of_its_files_are(tmp_path: Path) -> None:
    picture(tmp_path / "cover.png", np.zeros((2, 2)))
    assert is_images(str(tmp_path))
    for chapter in range(2):
        (tmp_path / f"{chapter}.txt").write_text("Once upon a time")
    assert not is_images(str(tmp_path))


def test_one_coloured_image_makes_all_images_three_channel(tmp_path: Path) -> None:
    picture(tmp_path / "grey.png", np.full((2, 2), 7))
    picture(tmp_path / "red.jpg", np.full((2, 2, 3), (200, 0, 0)))
    found = read_images(str(tmp_path))
    assert found.form == (2, 2, 3)
    assert [7, 7, 7] in found.pixels[:, 0, 0].tolist()


def test_levels_are_equal_intervals_of_brightness(tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    found = read_images(str(saved(tmp_path / "x.npz", train=ramp)))
    halves, quarters = (encode(found, form_of(found, levels), "x").target.tokens for levels in (2, 4))
    assert halves.tolist() == [0] * 128 + [1] * 128
    assert np.bincount(quarters).tolist() == [64] * 4
    assert brightness(np.array([0, 1, 3], np.uint8), form_of(found, 4)).tolist() == [0, 85, 255]


def test_held_out_images_have_the_levels_of_training(tmp_path: Path) -> None:
    """Even if they contain no bright pixel."""
    path = saved(tmp_path / "x.npz", train=np.full((10, 2, 2), 16), test=np.full((2, 2, 2), 3))
    found = prepare_images(DataConfig(train=str(path), levels=2, valid_fraction=0.5))
    assert found.form.depth == 17
    assert found.test is not None
    assert set(found.test.target.tokens.tolist()) == {0}


def test_splits_follow_the_settings(tmp_path: Path) -> None:
    array = np.arange(20, dtype=np.uint8).reshape(20, 1, 1).repeat(2, axis=2)
    spec = str(saved(tmp_path / "x.npz", images=array))
    config = DataConfig(train=spec, valid_fraction=0.25, test_fraction=0.2, valid_from="start")
    found = prepare_images(config)
    assert found.test is not None
    firsts = [split.target.tokens[::2].tolist() for split in (found.valid, found.train, found.test)]
    assert firsts == [list(range(4)), list(range(4, 16)), list(range(16, 20))]


def test_digits_need_no_download() -> None:
    pytest.importorskip("sklearn")
    found = prepare_images(DataConfig(train="builtin:digits"))
    assert (found.form.shape, found.form.levels, len(found.form.classes)) == ((1, 8, 8), 17, 10)
    assert not is_images("builtin:prose")


def test_binarised_mnist_is_read_as_bits(real_data: RealData) -> None:
    file = real_data("binarized-mnist") / "binarized_mnist_packed.npz"
    found = read_images(f"{file}:test", shape=(28, 28))
    assert found.pixels.shape == (10_000, 28, 28, 1)
    assert found.pixels.max() == 1


def mixed_sizes(folder: Path) -> str:
    picture(folder / "a.png", np.zeros((2, 3)))
    picture(folder / "b.png", np.zeros((3, 3)))
    return str(folder)


def not_an_image(folder: Path) -> str:
    picture(folder / "a.png", np.zeros((2, 3)))
    (folder / "b.png").write_text("no picture at all")
    return str(folder)


def half_an_image(folder: Path) -> str:
    path = picture(folder / "a.png", pixels(40, 40))
    path.write_bytes(path.read_bytes()[:200])
    return str(folder)


def truncated_idx(folder: Path) -> str:
    path = idx(folder / "t-images-idx3-ubyte", pixels(3, 4, 4))
    path.write_bytes(path.read_bytes()[:-5])
    return str(path)


def truncated_gzip(folder: Path) -> str:
    path = idx(folder / "t-images-idx3-ubyte.gz", pixels(30, 9, 9))
    path.write_bytes(path.read_bytes()[:-50])
    return str(path)


def no_archive(folder: Path) -> str:
    (folder / "x.npz").write_text("nothing of the kind")
    return str(folder / "x.npz")


def several_arrays(folder: Path) -> str:
    return str(saved(folder / "x.npz", first=pixels(3, 2, 2), second=pixels(3, 2, 2)))


def fewer_labels(folder: Path) -> str:
    return str(saved(folder / "x.npz", train=pixels(3, 2, 2), train_labels=np.array([0, 1])))


def negative(folder: Path) -> str:
    return str(saved(folder / "x.npz", train=np.full((3, 2, 2), -1)))


def unscaled(folder: Path) -> str:
    return str(saved(folder / "x.npz", train=np.full((3, 2, 2), 7.5)))


def two_channels(folder: Path) -> str:
    return str(saved(folder / "x.npz", train=pixels(3, 4, 5, 2)))


def empty_folder(folder: Path) -> str:
    return str(folder)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (mixed_sizes, "one size"),
        (not_an_image, "not an image"),
        (half_an_image, "damaged image"),
        (truncated_idx, "damaged"),
        (truncated_gzip, "damaged"),
        (no_archive, "cannot be read as arrays"),
        (several_arrays, "first, second"),
        (fewer_labels, "one label per image"),
        (negative, "pixel values"),
        (unscaled, r"outside \[0, 1\]"),
        (two_channels, "1 or 3 channels"),
        (empty_folder, "no PNG or JPEG"),
    ],
)
def test_errors_in_images_are_one_line(tmp_path: Path, make: Callable[[Path], str], said: str) -> None:
    with pytest.raises(ChainruleError, match=said) as caught:
        read_images(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_images_of_another_size_or_class_are_refused(tmp_path: Path) -> None:
    train = read_images(str(saved(tmp_path / "a.npz", train=pixels(4, 2, 2), y_train=np.array([0, 1, 0, 1]))))
    form = form_of(train, None)
    larger = read_images(str(saved(tmp_path / "b.npz", train=pixels(4, 3, 2))))
    with pytest.raises(DataError, match="2×3 pixels in grey"):
        encode(larger, form, "b")
    stranger = read_images(str(saved(tmp_path / "c.npz", train=pixels(1, 2, 2), y_train=np.array([2]))))
    with pytest.raises(DataError, match="class '2'"):
        encode(stranger, form, "c")


def test_more_levels_than_in_the_data_are_refused(tmp_path: Path) -> None:
    spec = str(saved(tmp_path / "a.npz", train=pixels(9, 2, 2, levels=4)))
    with pytest.raises(DataError, match="at most"):
        prepare_images(DataConfig(train=spec, levels=300))
    with pytest.raises(ConfigError, match="levels"):
        DataConfig.parse({"train": spec, "levels": 1})
