"""`compare` on images: the same table, in bits per dim, and what the models draw."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from chainrule.comparison.subject import ImageSubject, TextSubject, subject_of

SMALL = ["pixelcnn.model.layers=1", "pixelcnn.model.width=8", "gpt.model.layers=1", "gpt.model.width=16"]


def test_families_of_images_are_not_compared_on_text() -> None:
    assert {"pixelcnn", "neighbours"} <= set(ImageSubject.families()) - set(TextSubject.families())
    assert not {"labelled_pixelcnn", "seq2seq"} & set(ImageSubject.families())
    assert ImageSubject.usual() == ["gpt", "neighbours", "pixelcnn"]
    assert subject_of("builtin:digits") is ImageSubject
    assert subject_of("builtin:prose") is TextSubject


def test_digits_are_compared_in_bits_per_dim(tmp_path: Path, chainrule: Any) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("PIL")
    words = ["compare", "--data", "builtin:digits", "--tokens", 6000, "--out", tmp_path / "c"]
    outcome = chainrule(*words, *(word for one in SMALL for word in ("--set", one)))
    assert outcome.code == 0, outcome.err
    assert "bits/dim" in outcome.out
    assert "nats/image" in outcome.out
    results = json.loads((tmp_path / "c" / "results.json").read_text())
    assert {row["name"] for row in results["rows"]} == {"neighbours", "pixelcnn", "gpt", "mixture"}
    assert results["best"] == "mixture"
    assert (results["unit"], results["values"]) == ("dim", 64)
    assert all(base64.b64decode(row["picture"]).startswith(b"\x89PNG") for row in results["rows"])
    page = (tmp_path / "c" / "report.html").read_text()
    assert page.count("data:image/png;base64") == 4
    assert "bits/dim" in page
    assert "bits/byte" not in page
