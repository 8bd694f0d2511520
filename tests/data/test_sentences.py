"""Sentences of a text, and what they share with a question."""

from __future__ import annotations

import numpy as np
import pytest

from chainrule.data.sentences import Sentences, likeliest_sentence

TEXT = "The virus spreads fast. The virus was found in bats!\nIs the virus in camels? Yes, the virus is."


def test_sentences_cover_the_text_in_order() -> None:
    found = Sentences.of(TEXT)
    assert [one.text for one in found.all] == [
        "The virus spreads fast.",
        "The virus was found in bats!",
        "Is the virus in camels?",
        "Yes, the virus is.",
    ]
    for number, sentence in enumerate(found.all):
        assert TEXT[sentence.begin :].startswith(sentence.text)
        assert found.at(sentence.begin) == found.at(sentence.begin + len(sentence.text) - 1) == number


def test_a_rare_word_counts_more_than_one_that_the_whole_text_has() -> None:
    shares = Sentences.of(TEXT).shares("virus bats?")
    assert shares.argmax() == 1
    assert shares[1] == pytest.approx(1)
    assert shares[[0, 2, 3]].max() < 0.2


def test_a_question_that_shares_nothing_prefers_no_sentence() -> None:
    np.testing.assert_array_equal(Sentences.of(TEXT).shares("when?"), np.zeros(4))
    np.testing.assert_array_equal(Sentences.of(TEXT).shares(""), np.zeros(4))


def test_the_baseline_is_the_first_sentence_that_shares_most_words() -> None:
    assert likeliest_sentence("Which virus is in camels?", TEXT) == "Is the virus in camels?"
    assert likeliest_sentence("virus", TEXT) == "The virus spreads fast."
    assert likeliest_sentence("virus", " \n") == ""
