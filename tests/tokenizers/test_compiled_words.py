"""Long texts are encoded and counted by compiled code: with the same result as short ones, by regular expressions."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter

import numpy as np
import pytest

from chainrule.data import token_files
from chainrule.tokenizers import words
from chainrule.tokenizers.compiled_words import CountedWords, WordIndex
from chainrule.tokenizers.words import Words

WHITE_SPACE = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
ODD = [
    "\x00",
    "\x1b",
    "\x7f",
    "\x80",
    "\u200b",
    "\u180e",
    "\ufeff",
    "\u2060",
    "\u205e",
    "\u3001",
    "\U0001f600",
    "Σ",
    "İ",
]
LETTERS = [*"aB,.'-\"()3", "é", "\u4e2d", "\u0e01", "\U0001f600", "Σ", "İ", *ODD]
UNSPACED = "\u4e2d\u6587\u0e01\u3042\U00020000" * 500 + "\n"


def odd_text(seed: int, length: int) -> str:
    choose = random.Random(seed)
    return "".join(
        choose.choice(choose.choice([LETTERS, LETTERS, LETTERS, WHITE_SPACE, ["\n"]])) for _ in range(length)
    )


def test_words_are_the_matches_of_the_regular_expression_for_every_character():
    text = "".join(f"a{chr(code)}b\n" for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    index = WordIndex()
    numbers = index.numbers(text, grow=True)
    known = np.array(index.words(), dtype=object)
    assert known[numbers].tolist() == re.findall(r"\n|\S+", text)


def test_an_index_that_does_not_grow_marks_other_words():
    index = WordIndex(["one", "\n", "three"])
    assert index.numbers("three two\none", grow=False).tolist() == [2, -1, 1, 0]
    assert index.words() == ["one", "\n", "three"]


def test_an_index_keeps_its_words_when_it_grows():
    listed = [f"word{number}" for number in range(50_000)]
    index = WordIndex(listed)
    assert index.words() == listed
    assert index.words(49_998) == listed[49_998:]
    assert index.numbers(" ".join(reversed(listed)), grow=True).tolist() == list(reversed(range(50_000)))


def test_counts_are_those_of_all_texts():
    texts = [odd_text(seed, 2000) for seed in range(3)]
    counted = CountedWords()
    for text in texts:
        counted.add(text)
    assert counted.counts() == Counter(word for text in texts for word in re.findall(r"\n|\S+", text))


@pytest.mark.parametrize("spec", [None, "punctuation", "whitespace", "lower", "min=2,punctuation,lower"])
def test_long_texts_have_the_ids_of_short_ones(monkeypatch: pytest.MonkeyPatch, spec: str | None):
    training, other = odd_text(1, 20_000), odd_text(2, 20_000)
    expected = Words.train(spec, lambda: [training, other[:3000]])
    ids = [expected.encode(text).tolist() for text in (training, other)]

    monkeypatch.setattr(words, "LONG", 1)
    compiled = Words.train(spec, lambda: [training, other[:3000]])
    assert compiled.to_json() == expected.to_json()
    assert [compiled.encode(text).tolist() for text in (training, other)] == ids
    assert 1 in ids[1]  # <unk>


def test_ids_are_computed_again_when_too_many_words_were_seen(monkeypatch: pytest.MonkeyPatch):
    texts = [odd_text(seed, 3000) for seed in range(4)]
    tokenizer = Words.train("punctuation", lambda: texts[:2])
    expected = [tokenizer.encode(text).tolist() for text in texts]
    monkeypatch.setattr(words, "LONG", 1)
    monkeypatch.setattr("chainrule.tokenizers.compiled_words.WORDS_HELD", 100)
    fresh = Words.from_json(tokenizer.to_json())
    assert [fresh.encode(text).tolist() for text in texts] == expected


@pytest.mark.parametrize("unit", ["stream", "documents"])
@pytest.mark.parametrize(
    "text", [odd_text(3, 5000), "\u4e2d\u6587\u0e01\u3042\U00020000" * 500 + "\n", "plain words\n" * 99]
)
def test_words_of_long_pieces_are_counted_as_those_of_short_ones(
    monkeypatch: pytest.MonkeyPatch, text: str, unit: token_files.Unit
):
    expected = token_files.words_of(text, text.encode(), unit)
    monkeypatch.setattr(token_files, "LONG", 1)
    assert token_files.words_of(text, text.encode(), unit) == expected
