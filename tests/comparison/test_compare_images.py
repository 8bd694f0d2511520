"""`compare` on images: the same table, in bits per dim, and generated images."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainrule.comparison.plan import comparable_task
from chainrule.tasks import COMPARISONS
from chainrule.tasks.images import ImageComparison
from chainrule.tasks.text_comparison import TextComparison

SMALL = ["pixelcnn.model.layers=1", "pixelcnn.model.width=8", "gpt.model.layers=1", "gpt.model.width=16"]


def test_image_families_are_not_compared_on_text() -> None:
    assert {"pixelcnn", "neighbours"} <= set(ImageComparison.families()) - set(TextComparison.families())
    assert not {"labelled_pixelcnn", "seq2seq"} & set(ImageComparison.families())
    assert ImageComparison.default_families() == ["gpt", "neighbours", "pixelcnn"]
    assert COMPARISONS[comparable_task("builtin:digits", {}, None)] is ImageComparison
    assert COMPARISONS[comparable_task("builtin:prose", {}, None)] is TextComparison


def test_images_are_compared_in_bits_per_dim(tmp_path: Path, chainrule: Any) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    pytest.importorskip("PIL")
    digits = datasets.load_digits().images[:400, ::2, ::2]
    np.save(tmp_path / "digits.npy", digits.astype(np.uint8))
    options = ["compare", "--data", tmp_path / "digits.npy", "--tokens", 3000, "--out", tmp_path / "c"]
    outcome = chainrule(*options, *(option for one in SMALL for option in ("--set", one)))
    assert outcome.code == 0, outcome.err
    assert "bits/dim" in outcome.out
    assert "nats/image" in outcome.out
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert {row["name"] for row in results["rows"]} == {"neighbours", "pixelcnn", "gpt", "mixture"}
    assert results["best"] == "mixture"
    assert (results["unit"], results["tokens_per_image"]) == ("dim", 16)
    assert all(base64.b64decode(row["picture"]).startswith(b"\x89PNG") for row in results["rows"])
    page = (tmp_path / "c" / "report.html").read_text()
    assert page.count("data:image/png;base64") == 4
    assert "bits/dim" in page
    assert "bits/byte" not in page
