from __future__ import annotations

import math

import numpy as np
import pytest

from chainrule.comparison.analysis import END, EXCERPT_CHARACTERS, analyse, count_words, interval, paired_difference
from chainrule.errors import DataError
from chainrule.tokenizers.bytes import Bytes
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.words import Words

TEXT = "the cat saw the dog, the dog saw the unicorn "


def dependent(count: int, draw: np.random.Generator) -> np.ndarray:
    """(N,) an autoregressive process around 1: x_t = 0.8 x_{t−1} + noise."""
    noise = draw.normal(size=count + 200)
    values = np.zeros_like(noise)
    for index in range(1, len(noise)):
        values[index] = 0.8 * values[index - 1] + noise[index]
    return 1.0 + values[200:]


def test_the_interval_covers_the_true_mean_of_autocorrelated_surprisals_about_95_percent_of_the_time() -> None:
    draw = np.random.default_rng(0)
    truth = 1 / math.log(2)
    intervals = [interval(dependent(4000, draw), 4000, resamples=300, seed=trial) for trial in range(200)]
    covered = np.mean([low <= truth <= high for low, high in intervals])
    assert 0.88 <= covered <= 0.99  # resampling single tokens would cover it half the time


def test_the_interval_is_in_bits_per_byte_and_contains_the_score() -> None:
    nats = np.random.default_rng(1).gamma(2.0, size=5000)
    score = nats.sum() / math.log(2) / 12_345
    low, high = interval(nats, 12_345)
    assert low < score < high
    assert high - low < 0.2 * score
    assert interval(nats, 2 * 12_345) == pytest.approx((low / 2, high / 2))


def test_the_interval_is_determined_by_the_seed() -> None:
    nats = np.random.default_rng(1).gamma(2.0, size=500)
    assert interval(nats, 500, seed=3) == interval(nats, 500, seed=3) != interval(nats, 500, seed=4)


@pytest.mark.parametrize("count", [1, 2, 9, 63, 64, 65, 201])
def test_a_text_of_any_length_has_an_interval(count: int) -> None:
    low, high = interval(np.full(count, math.log(2)), count)
    assert (low, high) == pytest.approx((1.0, 1.0))


def test_an_empty_text_has_no_interval() -> None:
    with pytest.raises(DataError, match="no tokens"):
        interval(np.zeros(0), 1)


def test_models_with_overlapping_intervals_can_differ_significantly() -> None:
    better = np.random.default_rng(2).gamma(0.5, size=4000)
    worse = better + 0.02
    assert interval(better, 4000)[1] > interval(worse, 4000)[0]
    low, high = paired_difference(better, worse, 4000)
    assert low == pytest.approx(-0.02 / math.log(2))
    assert high < 0


@pytest.fixture
def chars() -> Chars:
    return Chars.train(None, lambda: [TEXT + "\n长安月"])


def test_characters_are_grouped_into_words_and_punctuation_marks(chars: Chars) -> None:
    assert count_words(chars.encode(TEXT), chars) == {"the": 4, "cat": 1, "saw": 2, "dog": 2, ",": 1, "unicorn": 1}


def test_each_ideograph_is_a_word_unless_the_tokenizer_joins_them(chars: Chars) -> None:
    assert count_words(chars.encode("长安长"), chars) == {"长": 2, "安": 1}
    words = Words.train(None, lambda: ["长安 月"])
    assert count_words(words.encode("长安 月 长安"), words) == {"长安": 2, "月": 1}


def test_a_word_of_several_tokens_is_one_word() -> None:
    tokenizer = Bytes.train(None, lambda: ["é"])
    assert count_words(tokenizer.encode("café café"), tokenizer) == {"café": 2}


def test_words_end_at_document_boundaries(chars: Chars) -> None:
    ids = np.concatenate([chars.encode("cat"), [chars.eos], chars.encode("dog")])
    assert count_words(ids, chars) == {"cat": 1, "dog": 1}


def test_tokens_are_grouped_by_the_training_frequency_of_their_word(chars: Chars) -> None:
    ids = chars.encode("the dog a\ncat!")
    ids[-1] = 1  # outside the vocabulary
    training = {"the": 1234, "dog": 7, "cat": 10}
    nats = np.arange(1, len(ids) + 1) * math.log(2)
    buckets = analyse({"gpt": nats}, ids, chars, training).by_frequency
    assert [(bucket.label, bucket.tokens) for bucket in buckets] == [
        ("unseen", 1),
        ("1–9", 3),
        ("10–99", 3),
        ("1k–10k", 3),
        ("white space", 3),
        ("out of vocabulary", 1),
    ]
    assert buckets[0].bits_per_token["gpt"] == pytest.approx(9.0)  # the a
    assert buckets[1].bits_per_token["gpt"] == pytest.approx(6.0)  # d, o, g


def test_positions_count_from_the_start_of_the_stream(chars: Chars) -> None:
    ids = np.full(4000, 5)
    nats = np.where(np.arange(4000) < 100, 2.0, 1.0) * math.log(2)
    buckets = analyse({"gpt": nats}, ids, chars, {}).by_position
    assert [bucket.label for bucket in buckets] == ["0–99", "100–299", "300–999", "1k–3k", "3k on"]
    assert [bucket.bits_per_token["gpt"] for bucket in buckets] == [2.0, 1.0, 1.0, 1.0, 1.0]
    assert sum(bucket.tokens for bucket in buckets) == 4000


def test_positions_count_from_the_start_of_each_document(chars: Chars) -> None:
    ids = np.full(1000, 5)
    offsets = np.arange(0, 1001, 20)
    nats = np.where(np.arange(1000) % 20 < 10, 2.0, 1.0) * math.log(2)
    buckets = analyse({"gpt": nats}, ids, chars, {}, offsets=offsets).by_position
    assert [(bucket.label, bucket.tokens) for bucket in buckets] == [("0–9", 500), ("10 on", 500)]
    assert [bucket.bits_per_token["gpt"] for bucket in buckets] == [2.0, 1.0]


def test_excerpts_are_the_start_and_the_largest_gains_of_each_model(chars: Chars) -> None:
    text = TEXT * 100
    ids = chars.encode(text)
    first, second = np.ones((2, len(ids)))
    first[1000:1200] = 0.1  # here the first model is better,
    second[3000:3200] = 0.1  # and here the second
    excerpts = analyse({"gpt": first, "ngram": second}, ids, chars, {}).excerpts
    assert [excerpt.title for excerpt in excerpts] == [
        "Start of the held-out text",
        "Largest gain of gpt over ngram",
        "Largest gain of ngram over gpt",
    ]
    assert text.startswith("".join(excerpts[0].tokens))
    for excerpt in excerpts:
        shown = "".join(excerpt.tokens)
        assert shown in text
        assert EXCERPT_CHARACTERS <= len(shown) < EXCERPT_CHARACTERS + 30
        assert f" {shown} ".replace("  ", " ") in f" {text}"  # whole words
    assert sum(excerpts[1].bits["gpt"]) < 0.3 * sum(excerpts[1].bits["ngram"])


def test_identical_models_have_only_the_excerpt_of_the_start(chars: Chars) -> None:
    ids = chars.encode(TEXT * 20)
    same = np.ones(len(ids))
    assert len(analyse({"gpt": same, "ngram": same}, ids, chars, {}).excerpts) == 1


def test_a_text_shorter_than_an_excerpt_is_shown_whole(chars: Chars) -> None:
    ids = chars.encode("the cat")
    [excerpt] = analyse({"gpt": np.ones(7), "ngram": np.arange(7.0)}, ids, chars, {}).excerpts
    assert "".join(excerpt.tokens) == "the cat"


def test_the_bytes_of_a_character_are_displayed_as_one_token_with_their_total_bits() -> None:
    tokenizer = Bytes.train(None, lambda: ["é"])
    ids = np.concatenate([tokenizer.encode("né"), [tokenizer.eos]])
    nats = np.array([1.0, 2.0, 4.0, 8.0]) * math.log(2)
    [excerpt] = analyse({"gpt": nats}, ids, tokenizer, {}).excerpts
    assert excerpt.tokens == ["n", "é", END]
    assert excerpt.bits["gpt"] == pytest.approx([1.0, 6.0, 8.0])
