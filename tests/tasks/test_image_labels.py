"""Labels of images: vit and image_classifier, in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Command

import chainrule as package
from chainrule.errors import ConfigError, DataError
from chainrule.tasks import load
from chainrule.tasks.image_labels import ImageLabelRun
from chainrule.tasks.images import ImageRun

VIT: dict[str, Any] = {"patch": 2, "layers": 1, "width": 16, "heads": 2, "shift": 0, "dropout": 0.0}


def write_bars(path: Path, count: int = 160) -> None:
    """Images of 6 by 6 pixels with a bright row or a bright column somewhere, and some noise."""
    random = np.random.default_rng(0)
    images = random.integers(2, size=(count, 6, 6))
    labels = np.arange(count) % 2
    for image, label, where in zip(images, labels, random.integers(6, size=count), strict=True):
        image[(where, slice(None)) if label else (slice(None), where)] = 7
    np.savez(path, images=images, labels=labels)


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bars") / "bars.npz"
    write_bars(path)
    return path


@pytest.fixture(scope="module")
def vit(bars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "vit"
    settings = {"model": VIT, "train": {"batch_tokens": 32}}
    package.train("vit", data=str(bars), out=out, steps=60, settings=settings, seed=1, progress=False)
    return out


def test_vit_learns_what_depends_on_patches_far_apart(vit: Path, bars: Path) -> None:
    run = load(vit, ImageLabelRun)
    found = run.score(str(bars))
    assert found.images == found.examples
    assert found.texts is None
    assert found.accuracy > 0.95
    assert found.majority == 0.5
    assert sum(sum(row) for row in found.confusion) == 160
    assert run.labels == ("0", "1")


def test_predictions_are_those_that_the_score_counts(vit: Path, bars: Path, chainrule: Command) -> None:
    run = load(vit, ImageLabelRun)
    predicted = list(run.predict(str(bars)))
    right = np.load(bars)["labels"].astype(str)
    assert np.mean([one.label == label for one, label in zip(predicted, right, strict=True)]) == pytest.approx(
        run.score(str(bars)).accuracy
    )
    assert sum(predicted[0].probabilities.values()) == pytest.approx(1)
    lines = chainrule("predict", str(vit), "--data", str(bars)).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [one.label for one in predicted]
    records = [
        json.loads(line) for line in chainrule("predict", str(vit), "--data", str(bars), "--json").out.split("\n")[:-1]
    ]
    assert records[3]["probabilities"] == pytest.approx(predicted[3].probabilities)


def test_images_are_given_with_data_and_texts_on_standard_input(vit: Path, chainrule: Command) -> None:
    outcome = chainrule("predict", str(vit))
    assert outcome.code != 0
    assert "labels images; name them with --data" in outcome.err


def test_score_draws_the_confusion_matrix(vit: Path, bars: Path, chainrule: Command, tmp_path: Path) -> None:
    outcome = chainrule("score", str(vit), "--data", str(bars), "--picture", str(tmp_path / "c.png"))
    assert outcome.code == 0
    assert "accuracy" in outcome.out
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((30, 4, 4), np.uint8))
    with pytest.raises(DataError, match="has no labels; give labelled images"):
        package.train("vit", data=str(tmp_path / "x.npz"), out=tmp_path / "run", steps=1, settings={"model": VIT})
    assert not (tmp_path / "run").exists()


def test_digits_are_the_default_data_of_models_that_label_images(tmp_path: Path) -> None:
    run = package.train("vit", out=tmp_path / "run", steps=1, settings={"model": VIT}, scored=False, progress=False)
    assert run.config.data.train == "builtin:digits"
    assert isinstance(run, ImageLabelRun)
    assert len(run.labels) == 10


@pytest.fixture(scope="module")
def pixels(bars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "pixels"
    settings = {"model": {"layers": 2, "width": 8, "first_kernel": 3}, "train": {"batch_tokens": 576}}
    run = package.train("pixelcnn", data=str(bars), out=out, steps=30, settings=settings, progress=False)
    assert isinstance(run, ImageRun)  # of the same data, another task
    return out


def test_a_classifier_over_pixelcnn_features_keeps_them_and_learns(bars: Path, pixels: Path, tmp_path: Path) -> None:
    settings = {"model": {"encoder_run": str(pixels), "hidden": 16, "dropout": 0.0}, "train": {"batch_tokens": 32}}
    run = package.train("image_classifier", data=str(bars), out=tmp_path / "run", steps=60, settings=settings, seed=1)
    assert isinstance(run, ImageLabelRun)
    assert run.info()["validation"]["accuracy"] > 0.9
    encoder = load(pixels, ImageRun).model.state_dict()
    kept = load(tmp_path / "run").model.state_dict()
    assert all(np.array_equal(kept[f"encoder.{name}"], value) for name, value in encoder.items())


def test_a_classifier_of_images_needs_a_run_of_images_of_the_same_shape(pixels: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"name its run with --set model\.encoder_run=RUN"):
        package.train("image_classifier", out=tmp_path / "run", steps=1)
    settings = {"model": {"encoder_run": str(pixels)}}
    with pytest.raises(DataError, match=r"shape \(1, 8, 8\), but .* models images of the shape \(1, 6, 6\)"):
        package.train("image_classifier", out=tmp_path / "run", steps=1, settings=settings)
