import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.data.batching import Documents, Position, Windows
from chainrule.data.corpus import Corpus
from chainrule.data.permutation import draw
from chainrule.data.spans import Corrupted, CorruptedPair, Corruption
from chainrule.errors import DataError

EOS, WORDS = 0, 50
CORRUPTION = Corruption(sentinels=range(WORDS, WORDS + 8), eos=EOS)


def text_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, WORDS, size=length)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 300), seed=st.integers(0, 99), rate=st.floats(0.01, 0.99), mean=st.floats(1, 9))
def test_restoring_a_corrupted_text_gives_the_original(length: int, seed: int, rate: float, mean: float) -> None:
    corruption = Corruption(sentinels=range(WORDS, WORDS + 8), eos=EOS, rate=rate, mean=mean)
    text = text_of(length, seed)
    pair = corruption.corrupt(text, draw(seed, 0, "test"))
    assert np.array_equal(corruption.restore(pair), text)
    assert pair.source[-1] == pair.target[-1] == EOS


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 300), seed=st.integers(0, 99))
def test_spans_are_never_adjacent_and_have_the_requested_number_of_tokens(length: int, seed: int) -> None:
    spans = CORRUPTION.spans(length, draw(seed, 0, "test"))
    cut, count = CORRUPTION.counts(length)
    assert len(spans) == count
    assert sum(span.stop - span.start for span in spans) == cut
    assert all(span.stop > span.start for span in spans)
    assert all(left.stop < right.start for left, right in itertools.pairwise(spans))
    assert spans[0].start >= 0
    assert spans[-1].stop <= length


def test_fifteen_percent_of_tokens_are_removed_in_spans_of_three() -> None:
    assert CORRUPTION.counts(100) == (15, 5)
    lengths = [span.stop - span.start for seed in range(200) for span in CORRUPTION.spans(100, draw(seed, 0, "test"))]
    assert np.mean(lengths) == pytest.approx(3.0)
    assert {1, 2, 3, 4, 5} <= set(lengths)


@pytest.mark.parametrize(
    ("rate", "mean"),
    [
        (0.4, 1),  # two of five tokens that do not touch
        (0.6, 1.5),  # a span of one and a span of two, in either order, at three places
    ],
)
def test_all_choices_of_spans_are_equally_likely(rate: float, mean: float) -> None:
    corruption = Corruption(sentinels=range(WORDS, WORDS + 8), eos=EOS, rate=rate, mean=mean)
    ways = Counter(
        tuple((span.start, span.stop) for span in corruption.spans(5, draw(seed, 0, "test"))) for seed in range(3000)
    )
    assert len(ways) == 6
    assert min(ways.values()) > 400


def test_source_and_target_share_their_sentinels_in_order() -> None:
    pair = CORRUPTION.corrupt(text_of(40), 5)
    gaps = [[int(token) for token in side if token >= WORDS] for side in pair]
    assert gaps[0] == gaps[1] == [WORDS, WORDS + 1]


def test_a_text_that_ends_with_eos_gets_no_second_eos() -> None:
    text = text_of(20)
    closed = CORRUPTION.corrupt([*text, EOS], 5)
    assert all(np.array_equal(one, other) for one, other in zip(closed, CORRUPTION.corrupt(text, 5), strict=True))


def test_more_gaps_than_sentinels_are_refused() -> None:
    with pytest.raises(DataError, match="9 gaps, and the model has 8 sentinels"):
        CORRUPTION.source([[1]] * 10)


def feed(rank: int = 0, world: int = 1) -> Corrupted:
    corpus = Corpus.of_tokens(text_of(400), WORDS)
    return Corrupted(Windows(corpus, rows=5, length=32, seed=3), CORRUPTION, 3, rank, world)


def test_a_batch_follows_from_seed_and_position_and_differs_by_epoch() -> None:
    one, other = feed().batch(Position(0, 1)), feed().batch(Position(0, 1))
    assert torch.equal(one.target.ids, other.target.ids)
    assert one.source is not None
    assert other.source is not None
    assert torch.equal(one.source.ids, other.source.ids)
    assert not torch.equal(feed().batch(Position(1, 1)).target.ids, one.target.ids)
    assert feed().tokens(Position(0, 1)) == int(one.target.lengths.sum())


def test_each_row_is_its_window_with_gaps() -> None:
    position = Position(0, 1)
    windows, batch = feed().texts.batch(position).target.ids, feed().batch(position)
    assert batch.source is not None
    for window, target, length, source, size in zip(windows, *batch.target, *batch.source, strict=True):
        pair = CorruptedPair(source[: int(size)].numpy(), target[: int(length)].numpy())
        assert np.array_equal(CORRUPTION.restore(pair), window.numpy())


def test_processes_share_the_rows_of_a_batch() -> None:
    whole = feed().batch(Position(0, 0)).target
    for rank in range(2):
        part = feed(rank, 2).batch(Position(0, 0)).target
        for row, length, expected in zip(part.ids, part.lengths, whole.ids[rank::2], strict=True):
            assert torch.equal(row[:length], expected[:length])


def test_documents_are_corrupted_independently() -> None:
    rows = [[*text_of(size, seed=size), EOS] for size in (3, 17, 9, 1)]
    documents = Documents(Corpus.of_rows(rows, WORDS), 100, None, 0)
    batch = Corrupted(documents, CORRUPTION, 0).batch(Position(0, 0))
    assert batch.source is not None
    found = [
        tuple(CORRUPTION.restore(CorruptedPair(source[: int(size)].numpy(), target[: int(length)].numpy())).tolist())
        for target, length, source, size in zip(*batch.target, *batch.source, strict=True)
    ]
    assert set(found) == {tuple(map(int, row[:-1])) for row in rows}
