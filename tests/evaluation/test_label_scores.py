"""Accuracy, F1 and confusion, by numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.errors import DataError
from chainrule.evaluation.labels import draw_confusion, label_score
from chainrule.evaluation.reading import exact_match, f1, nearest_answer, normalised_answer


def test_scores_are_those_of_their_definitions() -> None:
    score = label_score([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 1], ["a", "b", "c", "d"], texts=6)
    assert score.confusion == ((2, 1, 0, 0), (0, 1, 1, 0), (0, 1, 0, 0), (0, 0, 0, 0))
    assert score.accuracy == pytest.approx(3 / 6)
    assert score.majority == pytest.approx(3 / 6)
    assert score.f1 == pytest.approx({"a": 4 / 5, "b": 2 / 5, "c": 0.0, "d": 0.0})
    assert score.macro_f1 == pytest.approx((4 / 5 + 2 / 5 + 0) / 3)  # d does not occur


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        label_score([], [], ["a", "b"], texts=0)
    with pytest.raises(DataError, match="1 labels came with 2 right ones"):
        label_score([0, 1], [0], ["a", "b"], texts=2)


def test_a_picture_of_the_confusion_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    score = label_score([0, 1, 1], [0, 1, 0], ["no", "yes"], texts=3)
    draw_confusion(score, tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match="cannot be written"):
        draw_confusion(score, tmp_path / "nowhere" / "confusion.png")


@pytest.mark.parametrize(
    ("found", "right", "match", "words"),
    [
        ("The Spo0A protein.", "spo0a  protein", 1, 1),
        ("an apple", "apple pie", 0, 2 / 3),
        ("a cat, a cat", "cat", 0, 2 / 3),
        ("dog", "cat", 0, 0),
        ("", "", 1, 1),
        ("", "cat", 0, 0),
    ],
)
def test_answers_are_compared_as_squad_does(found: str, right: str, match: float, words: float) -> None:
    assert exact_match(found, right) == match
    assert f1(found, right) == pytest.approx(words)


def test_the_nearest_right_answer_counts() -> None:
    assert nearest_answer(f1, "grey cat", ["dog", "the cat", "a grey cat"]) == 1
    assert nearest_answer(exact_match, "cat", []) == 0
    assert normalised_answer("  The  U.S.A. ") == "usa"
