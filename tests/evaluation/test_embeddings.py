"""Neighbours, analogies and similarities of vectors with known answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.embeddings import (
    WordVectors,
    is_analogies,
    ranks,
    read_analogies,
    read_similarities,
    score_analogies,
    score_similarities,
    spearman,
)

WORDS = ["man", "woman", "king", "queen", "Apple", "apple", "pear"]
FRUIT = [0.0, 0.0, 1.0]


@pytest.fixture
def vectors() -> WordVectors:
    """The first axis is royalty, the second gender, the third fruit; 'apple' is a little to the side of 'Apple'."""
    rows = [[0, -1, 0.1], [0, 1, 0.1], [1, -1, 0.1], [1, 1, 0.1], FRUIT, [0.1, 0, 1], [0, 0.2, 1]]
    return WordVectors(WORDS, np.array(rows, dtype=np.float32))


def test_the_nearest_words_come_first_and_a_word_is_not_its_own_neighbour(vectors: WordVectors) -> None:
    near = vectors.nearest("Apple", 3)
    assert [one.word for one in near] == ["apple", "pear", near[2].word]
    assert near[0].similarity == pytest.approx(1 / np.sqrt(1.01), abs=1e-6)
    assert len(vectors.nearest("king", 100)) == len(WORDS) - 1


def test_king_minus_man_plus_woman_is_queen(vectors: WordVectors) -> None:
    assert vectors.analogy("man", "king", "woman", 1)[0].word == "queen"


def test_an_unknown_word_is_refused_with_similar_spellings(vectors: WordVectors) -> None:
    with pytest.raises(ConfigError, match=r"'quen' is not in the vocabulary of 7 words; did you mean 'queen'\?"):
        vectors.nearest("quen")
    with pytest.raises(ConfigError, match="choose a word that occurs in the training text"):
        vectors.nearest("zzzzzz")


def test_a_word_that_differs_in_case_only_is_suggested_first() -> None:
    vectors = WordVectors(["taking", "kings", "King"], np.eye(3))
    with pytest.raises(ConfigError, match=r"did you mean 'King'"):
        vectors.nearest("king")


def test_a_map_preserves_the_distances_of_points_on_a_plane() -> None:
    angles = np.linspace(0, 1, 6)
    rows = np.stack([np.cos(angles), np.sin(angles), 0 * angles, 0 * angles], axis=1).astype(np.float32)
    names, points = WordVectors(list("abcdef"), rows).around("a", 5)
    assert names[0] == "a"
    assert points.shape == (6, 2)
    order = ["abcdef".index(name) for name in names]
    expected = np.linalg.norm(rows[order][:, None] - rows[order][None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(points[:, None] - points[None], axis=-1), expected, atol=1e-5)


def test_analogies_are_counted_by_section_and_those_with_unknown_words_are_not_answered(
    vectors: WordVectors, tmp_path: Path
) -> None:
    file = tmp_path / "questions.txt"
    file.write_text(": royals\nMan King Woman Queen\nman king woman pear\nman king girl queen\n: none\nx y z w\n")
    assert is_analogies(file)
    found = score_analogies(vectors, read_analogies(file))
    assert found.sections["royals"].model_dump() == {"correct": 1, "answered": 2, "questions": 3}
    assert found.sections["none"].accuracy is None
    assert found.total.model_dump() == {"correct": 1, "answered": 2, "questions": 4}


def test_a_restricted_vocabulary_leaves_out_rare_words(vectors: WordVectors, tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_text(": royals\nman king woman queen\n: fruit\nman woman apple pear\n")
    found = score_analogies(vectors, read_analogies(file), restricted=4)
    assert found.restricted == 4
    assert [one.answered for one in found.sections.values()] == [1, 0]


def test_similarities_correlate_with_judgements_and_unknown_pairs_are_counted(
    vectors: WordVectors, tmp_path: Path
) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("# a comment\nword 1\tword 2\tHuman\napple\tpear\t9.0\nking\tqueen\t5\nman\twoman\t1\nking\tx\t3\n")
    assert not is_analogies(file)
    found = score_similarities(vectors, read_similarities(file))
    assert found.spearman == pytest.approx(1.0)
    assert (found.pairs, found.unknown) == (3, 1)


def test_folding_case_keeps_the_most_frequent_spelling(vectors: WordVectors) -> None:
    folded = vectors.first(7, fold_case=True)
    assert list(folded.words) == ["man", "woman", "king", "queen", "apple", "pear"]
    np.testing.assert_array_equal(folded.vectors[4], FRUIT)


def test_ties_get_their_mean_rank() -> None:
    assert ranks(np.array([10.0, 20.0, 10.0, 5.0])).tolist() == [2.5, 4.0, 2.5, 1.0]
    assert spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 16.0])) == pytest.approx(1.0)
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([3.0, 1.0, 2.0])) == pytest.approx(-0.5)
    assert spearman(np.array([1.0, 1.0]), np.array([1.0, 2.0])) is None


@pytest.mark.parametrize(
    ("content", "read", "message"),
    [
        (": section\na b c\n", read_analogies, "line 2: expected four words"),
        ("a b c d\n", read_analogies, "line 1"),
        (": section\n", read_analogies, "no analogies"),
        ("tiger cat 7\ntiger cat\n", read_similarities, "line 2: expected two words and a number"),
        ("", read_similarities, "no pairs"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(tmp_path: Path, content: str, read: object, message: str) -> None:
    file = tmp_path / "file.txt"
    file.write_text(content)
    with pytest.raises(DataError, match=message):
        read(file)  # type: ignore[operator]


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        read_similarities(tmp_path / "nowhere")
