"""Word vectors in the file formats of word2vec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chainrule.errors import ConfigError, DataError
from chainrule.interop.exchange import export_word2vec, import_word2vec
from chainrule.interop.word2vec import NamedVectors, read_word2vec, write_word2vec
from chainrule.models.word2vec import Word2Vec, Word2VecConfig
from chainrule.tokenizers.words import Words

NAMED = NamedVectors(["the", "Zürich", "漢字", "'s"], np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32))


@pytest.mark.parametrize("binary", [False, True])
def test_vectors_are_read_back_bit_for_bit(tmp_path: Path, binary: bool) -> None:
    write_word2vec(NAMED, tmp_path / "file", binary=binary)
    back = read_word2vec(tmp_path / "file")
    assert back.words == NAMED.words
    np.testing.assert_array_equal(back.vectors, NAMED.vectors)


@pytest.mark.parametrize("binary", [False, True])
def test_files_are_exchanged_with_gensim_in_both_directions(tmp_path: Path, binary: bool) -> None:
    keyed = pytest.importorskip("gensim.models").KeyedVectors
    write_word2vec(NAMED, tmp_path / "ours", binary=binary)
    theirs = keyed.load_word2vec_format(str(tmp_path / "ours"), binary=binary)
    assert theirs.index_to_key == NAMED.words
    np.testing.assert_array_equal(theirs.vectors, NAMED.vectors)
    theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    back = read_word2vec(tmp_path / "theirs")
    assert back.words == NAMED.words
    np.testing.assert_allclose(back.vectors, NAMED.vectors, rtol=1e-6)


def test_special_tokens_are_not_exported_and_the_model_is_imported_again(tmp_path: Path) -> None:
    tokenizer = Words(["\n", "the", "cat"])
    model = Word2Vec(Word2VecConfig(vocabulary=5, width=3, unknown=1, ends=(0, 2)))
    files = export_word2vec(model, tokenizer, tmp_path)
    assert [file.name for file in files] == ["vectors.txt", "vectors.bin"]
    for file in files:
        name, back, words = import_word2vec(file)
        assert name == "word2vec"
        assert isinstance(words, Words)
        assert words.words == ["the", "cat"]
        assert isinstance(back, Word2Vec)
        np.testing.assert_array_equal(back.inputs.detach()[2:], model.inputs.detach()[3:])


def test_the_unknown_word_of_a_file_is_used_for_words_outside_the_vocabulary(tmp_path: Path) -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    write_word2vec(NamedVectors(["a", "<unk>", "b"], vectors), tmp_path / "file", binary=False)
    _, model, tokenizer = import_word2vec(tmp_path / "file")
    assert isinstance(model, Word2Vec)
    assert tokenizer.encode("a b c").tolist() == [2, 3, 1]
    assert model.inputs.detach().tolist() == [[0, 0], [2, 3], [0, 1], [4, 5]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"the cat sat", "number of words and the width"),
        (b"2 3\na 1 2 3\nb 1 2\n", "line 3: expected a word and 3 numbers"),
        (b"2 3\na 1 2 3\n", "line 3"),
        (b"2 2\nab " + bytes(8) + b"\ncd " + bytes(3), "ends after 1 of 2 words"),
    ],
)
def test_a_damaged_file_is_refused_with_the_line_or_word_count(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_word2vec(tmp_path / "file")


def test_tokens_with_white_space_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tokenizer words"):
        write_word2vec(NamedVectors(["a b"], np.zeros((1, 2), np.float32)), tmp_path / "file", binary=False)
    assert not (tmp_path / "file").exists()
