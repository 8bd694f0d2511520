"""Character, byte and word tokenizers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import TokenizerError
from chainrule.tokenizers import Tokenizer, train_tokenizer
from chainrule.tokenizers.base import decode_bytes

Trained = Callable[[str], Tokenizer]


def words(text: str, spec: str = "words") -> Tokenizer:
    return train_tokenizer(spec, lambda: [text])


def test_characters_are_numbered_by_code_point_after_the_special_ones() -> None:
    tokenizer = train_tokenizer("chars", lambda: ["ba", "😀\n"])
    assert tokenizer.vocabulary == 6
    assert tokenizer.pieces(range(6)) == ["", "\ufffd", "\n", "a", "b", "😀"]
    assert tokenizer.encode("ab\n😀").tolist() == [3, 4, 2, 5]


def test_an_unseen_character_is_unknown_and_its_neighbours_are_not() -> None:
    tokenizer = train_tokenizer("chars", lambda: ["ab"])
    assert tokenizer.encode("aéb\U0010ffff").tolist() == [2, 1, 3, 1]
    assert tokenizer.decode([2, 1, 3]) == "a\ufffdb"


def test_a_byte_is_its_value_plus_one(trained: Trained) -> None:
    tokenizer = trained("bytes")
    assert tokenizer.vocabulary == 257
    assert tokenizer.encode("A\0é").tolist() == [66, 1, 0xC3 + 1, 0xA9 + 1]


def test_bytes_that_are_not_text_decode_to_replacement_characters(trained: Trained) -> None:
    assert trained("bytes").decode([0xC3 + 1, 66, 0xFF + 1]) == "\ufffdA\ufffd"


@given(st.lists(st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)))
def test_decoding_bytes_in_pieces_equals_decoding_them_at_once(parts: list[bytes]) -> None:
    if parts:
        assert "".join(decode_bytes(parts)) == b"".join(parts).decode("utf-8", errors="replace")


def test_a_character_is_shown_with_the_byte_that_completes_it(trained: Trained) -> None:
    tokenizer = trained("bytes")
    assert tokenizer.pieces(tokenizer.encode("a中b")) == ["a", "", "", "中", "b"]


def test_penn_treebank_lines_are_words_and_line_ends() -> None:
    text = " aer banknote berlitz \n pierre <unk> N years old \n"
    tokenizer = words(text)
    assert tokenizer.pieces(tokenizer.encode(" aer banknote berlitz \n")) == ["aer", " banknote", " berlitz", "\n"]
    assert tokenizer.decode(tokenizer.encode(text)) == "aer banknote berlitz\npierre \ufffd N years old\n"


def test_unk_in_the_data_is_the_unknown_word() -> None:
    tokenizer = words("a <unk> b <unk> <unk>")
    assert tokenizer.vocabulary == 4
    assert tokenizer.encode("a <unk> c").tolist() == [2, 1, 1]


def test_eos_in_the_data_is_a_word_like_any_other() -> None:
    tokenizer = words("a <eos> b")
    assert 0 not in tokenizer.encode("a <eos>")
    assert tokenizer.decode(tokenizer.encode("a <eos> b")) == "a <eos> b"


def test_words_are_numbered_by_frequency_then_alphabet() -> None:
    assert words("b b c a\n").pieces([2, 3, 4, 5]) == ["b", "\n", "a", " c"]


def test_a_vocabulary_size_keeps_the_most_frequent_words() -> None:
    tokenizer = words("a a a b b c", "words:4")
    assert tokenizer.vocabulary == 4
    assert tokenizer.decode(tokenizer.encode("a b c")) == "a b \ufffd"


def test_words_that_are_too_rare_are_unknown() -> None:
    assert words("a a a b b c", "words:min=2").pieces([2, 3]) == ["a", " b"]
    assert words("a a a b b c c", "words:3,min=2").vocabulary == 3
    with pytest.raises(TokenizerError, match="no word of the text occurs 9 times"):
        words("a a b", "words:min=9")
    for wrong in ("words:min=x", "words:max=3", "words:min=0", "words:9,", "words:few"):
        with pytest.raises(TokenizerError, match=r"try words:30000"):
            words("a a b", wrong)


RAW = """He said, "come (now), King!" Don't--3.5% of 1,000 is well-known...
"What?" said the King.
"""


def test_punctuation_is_split_from_the_words_of_raw_text_and_restored() -> None:
    tokenizer = words(RAW)
    found = [piece.strip(" ") for piece in tokenizer.pieces(tokenizer.encode(RAW))]
    assert found[:11] == ["He", "said", ",", '"', "come", "(", "now", ")", ",", "King", "!"]
    assert {"Don't", "--", "3.5", "%", "1,000", "well-known", "...", "King", "\n"} <= set(found)
    assert tokenizer.decode(tokenizer.encode(RAW)) == RAW
    assert "punctuation is split from words" in tokenizer.note


@pytest.mark.parametrize(
    "text",
    ["no it was n't black monday , <unk> said.\n", "a well @-@ known king , he said .\n", "plain words only\n"],
    ids=["unk", "spaces", "none"],
)
def test_text_that_was_tokenized_before_is_split_at_white_space_only(text: str) -> None:
    tokenizer = words(text)
    assert sorted(tokenizer.words) == sorted({*text.split(), "\n"} - {"<unk>"})
    assert "at white space only" in tokenizer.note


def test_splitting_punctuation_and_case_folding_are_options_that_combine_with_limits() -> None:
    assert words("The off, the off,", "words:whitespace").words == ["off,", "The", "the"]
    assert words("a , b <unk> c,", "words:punctuation").words == [",", "a", "b", "c"]
    tokenizer = words("The off, the OFF, x", "words:min=2,lower")
    assert tokenizer.words == [",", "off", "the"]
    assert tokenizer.decode(tokenizer.encode("THE off,")) == "the off,"
    assert "lower case" in tokenizer.note
    assert words("The off, the OFF, x", "words:4,lower,whitespace").words == ["off,", "the"]


def test_marks_are_spaced_as_the_training_text_spaces_them() -> None:
    french = "Quoi ? Non ! Oui, non.\n"
    assert words(french).decode(words(french).encode(french)) == french
    chinese = "春眠不觉晓，处处闻啼鸟。\n"
    assert words(chinese).decode(words(chinese).encode(chinese)) == chinese
    hindi = words("हिन्दी में, लिखा।\n")  # vowel signs are no letters for Python, and no marks
    assert "हिन्दी" in hindi.words


@given(st.lists(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1)))
def test_words_with_single_spaces_are_restored(lines: list[list[str]]) -> None:
    text = "\n".join(" ".join(line) for line in lines)
    tokenizer = words("one two three\n")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_training_on_pieces_equals_training_on_the_whole_text() -> None:
    whole = "x y\ny z\n" * 50
    pieces = [whole[start : start + 8] for start in range(0, len(whole), 8)]
    for spec in ("chars", "words"):
        assert train_tokenizer(spec, lambda: pieces).to_json() == train_tokenizer(spec, lambda: [whole]).to_json()


def test_an_empty_training_text_is_an_error() -> None:
    for spec in ("chars", "words", "bpe:300", "unigram:300", "sentencepiece:300", "sentencepiece:char"):
        with pytest.raises(TokenizerError, match="the text is empty"):
            train_tokenizer(spec, lambda: ["", ""])


def test_characters_are_encoded_without_a_loop_in_python() -> None:
    text = "to be or not to be\n" * 50_000
    tokenizer = train_tokenizer("chars", lambda: [text])

    def seconds(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    looped = min(seconds(lambda: [ord(character) for character in text]) for _ in range(3))
    assert min(seconds(lambda: tokenizer.encode(text)) for _ in range(3)) < looped
