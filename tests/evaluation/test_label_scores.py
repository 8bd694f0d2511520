"""Accuracy, F1 and confusion on examples that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.errors import DataError
from chainrule.evaluation.answers import best_match, exact_match, f1, normalised_answer
from chainrule.evaluation.labels import draw_confusion, label_score


def test_metrics_follow_their_definitions() -> None:
    score = label_score([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 1], ["a", "b", "c", "d"], texts=6)
    assert score.confusion == ((2, 1, 0, 0), (0, 1, 1, 0), (0, 1, 0, 0), (0, 0, 0, 0))
    assert score.accuracy == pytest.approx(3 / 6)
    assert score.majority == pytest.approx(3 / 6)
    assert score.f1 == pytest.approx({"a": 4 / 5, "b": 2 / 5, "c": 0.0, "d": 0.0})
    assert score.macro_f1 == pytest.approx((4 / 5 + 2 / 5 + 0) / 3)  # d does not occur


def test_empty_or_unequal_labels_are_refused() -> None:
    with pytest.raises(DataError, match="no labels to score"):
        label_score([], [], ["a", "b"], texts=0)
    with pytest.raises(DataError, match="got 1 predicted labels for 2 correct ones"):
        label_score([0, 1], [0], ["a", "b"], texts=2)


def test_the_confusion_matrix_is_plotted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    score = label_score([0, 1, 1], [0, 1, 0], ["no", "yes"], texts=3)
    draw_confusion(score, tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match="cannot write the plot"):
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


def test_the_best_matching_correct_answer_counts() -> None:
    assert best_match(f1, "grey cat", ["dog", "the cat", "a grey cat"]) == 1
    assert best_match(exact_match, "cat", []) == 0
    assert normalised_answer("  The  U.S.A. ") == "usa"
