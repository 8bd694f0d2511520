"""Image runs: training, scoring and generation, in Python and on the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chainrule
from chainrule.errors import ConfigError, DataError, DecodingError, RunError
from chainrule.tasks import load
from chainrule.tasks.images import ImageRun
from chainrule.tasks.text import TextRun

TINY: dict[str, dict[str, Any]] = {
    "pixelcnn": {"layers": 1, "width": 4, "first_kernel": 3},
    "labelled_pixelcnn": {"layers": 1, "width": 8, "first_kernel": 3},
    "gpt": {"layers": 1, "width": 8, "heads": 2},
    "recurrent": {"layers": 1, "width": 8},
    "ngram": {},
    "neighbours": {},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark images of class 0 and bright ones of class 1: 3 rows, 4 columns, 4 levels."""
    random = np.random.default_rng(0)
    labels = np.arange(120) % 2
    noise = random.integers(2, size=(120, 3, 4))
    path = tmp_path_factory.mktemp("images") / "images.npz"
    np.savez(path, images=noise + 2 * labels[:, None, None], labels=labels)
    return path


def trained(family: str, data: Path, out: Path, *, steps: int = 2, **data_settings: object) -> ImageRun:
    settings = {"model": TINY[family], "train": {"batch_tokens": 240}, "data": data_settings}
    run = chainrule.train(family, data=str(data), steps=steps, out=out, settings=settings)
    assert isinstance(run, ImageRun)
    return run


@pytest.mark.parametrize("family", sorted(TINY))
def test_the_data_determines_that_a_run_models_images(family: str, data: Path, tmp_path: Path) -> None:
    run = trained(family, data, tmp_path / "run")
    assert run.form.shape == (1, 3, 4)
    found = load(tmp_path / "run", ImageRun).score(str(data))
    assert found.images == 120
    assert found.nats_per_image == pytest.approx(found.bits_per_dim * math.log(2) * 12)
    assert not found.protocol.eos
    assert run.draw(3).shape == (3, 3, 4, 1)
    card = (tmp_path / "run" / "card.md").read_text()
    assert "bits/dim" in card
    assert "bits_per_byte" not in card


def test_levels_can_be_fewer_than_in_the_data(data: Path, tmp_path: Path) -> None:
    run = trained("neighbours", data, tmp_path / "run", levels=2)
    assert run.model.vocabulary == 2
    assert run.draw(8).max() == 1


def test_a_generated_image_depends_only_on_its_seed(data: Path, tmp_path: Path) -> None:
    run = trained("pixelcnn", data, tmp_path / "run")
    together, alone = run.draw(3, seed=5), run.draw(1, seed=7)
    assert (together[2] == alone[0]).all()


def test_a_completed_image_keeps_its_upper_half(data: Path, tmp_path: Path) -> None:
    run = trained("pixelcnn", data, tmp_path / "run")
    given = run.example("1")
    for keep, rows in ((0.67, 2), (0.0, 0)):
        stages = list(run.drawing(2, complete=given, keep=keep))
        assert [stage.known for stage in stages] == list(range(4 * rows, 13))
        assert (stages[-1].levels[:, :rows] == given[:rows]).all()
    with pytest.raises(DataError, match="0 to 11"):
        run.example("12")


def test_generated_images_depend_on_the_label(data: Path, tmp_path: Path) -> None:
    run = trained("labelled_pixelcnn", data, tmp_path / "run", steps=150)
    dark, bright = (run.draw(4, label=label) for label in ("0", "1"))
    assert dark.mean() < 1 < 2 < bright.mean()
    in_turn = run.draw(4)
    assert (in_turn[0::2] == dark[0::2]).all()
    assert (in_turn[1::2] == bright[1::2]).all()
    with pytest.raises(DecodingError, match="no label '7'"):
        run.draw(1, label="7")


def test_a_label_is_refused_by_an_unconditional_model(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DecodingError, match="has no labels"):
        trained("neighbours", data, tmp_path / "run").draw(1, label="0")


def test_a_labelled_family_needs_labels(data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", images=np.zeros((20, 3, 4), np.uint8))
    with pytest.raises(DataError, match="no labels"):
        trained("labelled_pixelcnn", tmp_path / "plain.npz", tmp_path / "run")


def test_image_and_text_runs_refuse_data_of_the_other_kind(data: Path, text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="models images"):
        chainrule.train("pixelcnn", data=str(text_file), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot model images"):
        chainrule.train("nonautoregressive", data=str(data), out=tmp_path / "run")
    trained("neighbours", data, tmp_path / "run")
    with pytest.raises(RunError, match="chainrule draw"):
        load(tmp_path / "run", TextRun)


def test_a_stopped_image_run_is_resumed(data: Path, tmp_path: Path) -> None:
    settings = {"model": TINY["pixelcnn"], "train": {"batch_tokens": 240}}
    chainrule.train("pixelcnn", data=str(data), steps=2, out=tmp_path / "run", settings=settings)
    again = chainrule.train("pixelcnn", steps=4, out=tmp_path / "run", resume=True)
    assert again.outcome is not None
    assert again.outcome.step == 4


def test_image_runs_can_be_mixed(data: Path, tmp_path: Path) -> None:
    from chainrule.mixing import mix

    parts = [trained(family, data, tmp_path / family) for family in ("neighbours", "pixelcnn")]
    run = mix([tmp_path / "neighbours", tmp_path / "pixelcnn"], out=tmp_path / "mixed", gate="learned")
    assert isinstance(run, ImageRun)
    best = min(part.info()["validation"]["bits_per_dim"] for part in parts)
    assert run.info()["validation"]["bits_per_dim"] <= best + 1e-6
    assert run.draw(2).shape == (2, 3, 4, 1)


def test_draw_writes_a_grid_and_an_animation(data: Path, tmp_path: Path, chainrule: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    trained("pixelcnn", data, tmp_path / "run")
    grid, film, strip = (tmp_path / name for name in ("grid.png", "film.gif", "strip.png"))
    assert chainrule("draw", tmp_path / "run", "--num", 6, "--out", grid, "--grow", film).code == 0
    with image.open(grid) as found:
        assert found.size == (3 * (96 + 4) + 4, 2 * (72 + 4) + 4)  # 6 images of 4 × 3 pixels, enlarged 24 times
    with image.open(film) as found:
        assert found.n_frames == 13  # nothing, then 12 pixels
    assert chainrule("draw", tmp_path / "run", "--complete", 0, "--num", 1, "--out", grid, "--grow", strip).code == 0
    with image.open(grid) as found:
        assert found.size[0] == 2 * (96 + 4) + 4  # what was completed, and its completion
    with image.open(strip) as found:
        assert found.size[0] > found.size[1]


def test_a_grid_needs_an_image_file_name(data: Path, tmp_path: Path, chainrule: Any) -> None:
    pytest.importorskip("PIL.Image")
    trained("neighbours", data, tmp_path / "run")
    outcome = chainrule("draw", tmp_path / "run", "--num", 1, "--out", tmp_path / "grid.bmp")
    assert (outcome.code, ".png" in outcome.err) == (2, True)


def test_score_prints_the_metrics_of_images(data: Path, tmp_path: Path, chainrule: Any) -> None:
    trained("neighbours", data, tmp_path / "run")
    found = json.loads(chainrule("score", tmp_path / "run", "--data", data, "--json").out)
    assert {"nats_per_image", "bits_per_dim", "nats_per_token", "protocol"} <= set(found)
    assert "bits/dim" in chainrule("info", tmp_path / "run").out
    refused = chainrule("score", tmp_path / "run", "--text", "some text")
    assert (refused.code, "models images" in refused.err) == (2, True)
