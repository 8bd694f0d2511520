from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chainrule.data.batching import Documents, Feed, Lanes, Pairs, Position, Windows, cut_batches, cut_documents
from chainrule.data.corpus import Corpus
from chainrule.data.parallel import PairedCorpus
from chainrule.errors import ConfigError, DataError
from chainrule.tokenizers import train_tokenizer
from chainrule.types import Batch


def stream(length: int) -> Corpus:
    """Return a stream whose tokens are their positions."""
    tokens = np.arange(length, dtype=np.uint32)
    return Corpus(tokens=tokens, offsets=None, bytes=length, characters=length, words=1, unknown=0, fingerprint="")


def collection(lengths: list[int]) -> Corpus:
    """Return documents whose tokens are their positions."""
    offsets = np.cumsum([0, *lengths])
    total = int(offsets[-1])
    tokens = np.arange(total, dtype=np.uint32)
    return Corpus(tokens=tokens, offsets=offsets, bytes=total, characters=total, words=1, unknown=0, fingerprint="")


LENGTHS = [int(length) for length in np.random.default_rng(0).integers(1, 60, size=500)]
SOURCES = [max(1, length + number % 9 - 4) for number, length in enumerate(LENGTHS)]

FEEDS = {
    "windows": lambda **sharing: Windows(stream(1003), rows=6, length=8, seed=3, **sharing),
    "lanes": lambda **sharing: Lanes(stream(1003), rows=6, length=8, seed=3, contiguous=100, **sharing),
    "documents": lambda **sharing: Documents(collection(LENGTHS), batch_tokens=256, longest=40, seed=3, **sharing),
    "pairs": lambda **sharing: Pairs(pairs(), batch_tokens=320, seed=3, **sharing),
}


def pairs() -> PairedCorpus:
    """Targets and sources of similar length."""
    return PairedCorpus(source=collection(SOURCES), target=collection(LENGTHS))


@pytest.fixture(params=FEEDS)
def feed(request):
    """Return one of the four feeds, for one process of one or several."""
    return FEEDS[request.param]


START = Position()


def positions(feed: Feed, count: int, position: Position = START) -> list[Position]:
    found = [position]
    while len(found) < count:
        found.append(feed.next(found[-1]))
    return found


def rows(batch) -> list[tuple[int, ...]]:
    """The real tokens of each row."""
    if hasattr(batch, "target"):
        ids, lengths = batch.target
        return [tuple(row[:length].tolist()) for row, length in zip(ids, lengths, strict=True)]
    return [tuple(pair.tolist()) for pair in torch.stack([batch.inputs, batch.targets], -1).flatten(1)]


def epoch_rows(feed: Feed, epoch: int) -> list[tuple[int, ...]]:
    return [row for index in range(feed.batches_per_epoch(epoch)) for row in rows(feed.batch(Position(epoch, index)))]


def test_two_feeds_with_one_seed_give_the_same_batches(feed):
    one, other = feed(), feed()
    for position in positions(one, 60):
        assert rows(one.batch(position)) == rows(other.batch(position))


def test_batches_depend_only_on_the_position(feed):
    continuous = feed()
    places = positions(continuous, 70)
    assert places[-1].epoch > 0
    batches = [rows(continuous.batch(place)) for place in places]
    for start in (0, 1, 23, 69):
        resumed = feed()
        for place, batch in zip(positions(resumed, 70 - start, places[start]), batches[start:], strict=True):
            assert rows(resumed.batch(place)) == batch


@pytest.mark.parametrize("world", [2, 3])
def test_the_shards_of_all_processes_are_the_whole_batch(feed, world):
    whole = feed()
    shards = [feed(rank=rank, world=world) for rank in range(world)]
    for position in positions(whole, 40):
        parts = [rows(shard.batch(position)) for shard in shards]
        expected = rows(whole.batch(position))
        assert [parts[index % world][index // world] for index in range(len(expected))] == expected
        assert sum(map(len, parts)) == len(expected)
        assert {shard.tokens(position) for shard in shards} == {whole.tokens(position)}
        assert {shard.next(position) for shard in shards} == {whole.next(position)}


def test_epochs_differ(feed):
    assert epoch_rows(feed(), 0) != epoch_rows(feed(), 1)


def test_another_seed_gives_another_order():
    assert epoch_rows(Windows(stream(500), 4, 8, seed=0), 0) != epoch_rows(Windows(stream(500), 4, 8, seed=1), 0)


def test_the_number_of_tokens_is_that_of_the_batch(feed):
    whole = feed()
    for position in positions(whole, 40):
        batch = whole.batch(position)
        count = batch.target.lengths.sum() if hasattr(batch, "target") else batch.targets.numel()
        assert whole.tokens(position) == count


def test_ids_are_int64(feed):
    batch = feed().batch(START)
    for tensor in batch.target if hasattr(batch, "target") else batch[:2]:
        assert tensor.dtype == torch.int64


@given(st.integers(1, 400), st.integers(1, 9), st.integers(1, 20), st.integers(0, 5))
@settings(deadline=None)
def test_an_epoch_of_windows_contains_every_token_at_most_once_and_drops_few(length, count, width, epoch):
    assume(length >= width)
    feed = Windows(stream(length), rows=count, length=width, seed=0)
    found = epoch_rows(feed, epoch)
    tokens = Counter(token for row in found for token in row)
    assert set(tokens.values()) == {1}
    assert all(row == tuple(range(row[0], row[0] + width)) for row in found)
    assert length - len(tokens) < 2 * width + feed.rows * width


def test_the_offset_of_windows_varies_by_epoch():
    feed = Windows(stream(1000), rows=4, length=16, seed=0)
    assert len({epoch_rows(feed, epoch)[0][0] % 16 for epoch in range(20)}) > 5


def test_the_order_of_windows_varies_by_epoch():
    feed = Windows(stream(1000), rows=4, length=16, seed=0)
    orders = {tuple(row[0] // 16 for row in epoch_rows(feed, epoch)[:8]) for epoch in range(10)}
    assert len(orders) == 10


def test_a_batch_of_a_short_text_contains_all_its_windows():
    feed = Windows(stream(40), rows=64, length=8, seed=0)
    assert feed.rows == 4
    assert feed.batch(START).target.ids.shape == (4, 8)


@given(st.integers(2, 400), st.integers(1, 9), st.integers(1, 20), st.integers(0, 5), st.integers(1, 100))
@settings(deadline=None)
def test_lanes_read_contiguous_pieces_and_contain_every_target_once(length, count, width, epoch, contiguous):
    assume(length > width)
    feed = Lanes(stream(length), rows=count, length=width, seed=0, contiguous=contiguous)
    segments = [feed.batch(Position(epoch, index)) for index in range(feed.batches_per_epoch(epoch))]
    assert segments[0].fresh
    for segment in segments:
        assert torch.equal((segment.inputs + 1) % length, segment.targets)
    for before, after in pairwise(segments):
        assert after.fresh or torch.equal(before.targets[:, -1], after.inputs[:, 0])
    widths = [segment.targets.shape[1] for segment in segments]
    assert max(widths) <= min(widths) + 1
    assert max(widths) <= 1.5 * width + 1
    targets = Counter(torch.cat([segment.targets for segment in segments], 1).flatten().tolist())
    assert set(targets.values()) == {1}
    pieces = feed.rows * sum(segment.fresh for segment in segments)
    assert length - len(targets) < pieces
    assert pieces <= max(feed.rows, length // contiguous)


def test_lanes_continue_elsewhere_in_a_random_order_in_every_epoch():
    feed = Lanes(stream(100_000), rows=4, length=50, seed=0, contiguous=1000)
    starts = [
        [
            batch.inputs[:, 0].tolist()
            for index in range(feed.batches_per_epoch(epoch))
            if (batch := feed.batch(Position(epoch, index))).fresh
        ]
        for epoch in (0, 1)
    ]
    assert len(starts[0]) == 25  # of 1,000 tokens each in every lane
    steps = Counter(
        (after - before) % 100_000 for lane in zip(*starts[0], strict=True) for before, after in pairwise(lane)
    )
    assert steps[1000] < 10  # only some pieces follow their neighbours
    distances = [[(start - epoch[0][0]) % 100_000 for turn in epoch for start in turn] for epoch in starts]
    assert distances[0] != distances[1]


def test_a_small_text_is_read_from_start_to_end():
    feed = Lanes(stream(4000), rows=2, length=50, seed=0, contiguous=2000)
    assert sum(feed.batch(Position(0, index)).fresh for index in range(feed.batches_per_epoch(0))) == 1


def test_a_short_text_has_fewer_lanes():
    assert Lanes(stream(40), rows=64, length=8, seed=0, contiguous=40).rows == 5


@pytest.mark.parametrize("longest", [None, 40, 7, 1])
def test_an_epoch_of_documents_is_every_document_in_pieces(longest):
    corpus = collection(LENGTHS)
    feed = Documents(corpus, batch_tokens=256, longest=longest, seed=0)
    limit = longest or max(LENGTHS)
    expected = [
        tuple(range(begin, min(begin + limit, end)))
        for start, end in pairwise(corpus.offsets.tolist())
        for begin in range(start, end, limit)
    ]
    for epoch in (0, 1):
        assert sorted(epoch_rows(feed, epoch)) == expected


def test_batches_of_documents_respect_the_budget_and_have_little_padding():
    feed = Documents(collection(LENGTHS), batch_tokens=256, longest=None, seed=0)
    sizes = [feed.batch(Position(0, index)).target.ids.numel() for index in range(feed.batches_per_epoch(0))]
    assert max(sizes) <= 256
    assert sum(sizes) < 1.1 * sum(LENGTHS)
    assert feed.batches_per_epoch(0) < 1.3 * sum(LENGTHS) / 256


def test_batches_of_documents_are_not_ordered_by_length():
    feed = Documents(collection(LENGTHS), batch_tokens=256, longest=None, seed=0)
    widths = [feed.batch(Position(0, index)).target.ids.shape[1] for index in range(feed.batches_per_epoch(0))]
    assert sum(after < before for before, after in pairwise(widths)) > 0.3 * len(widths)
    assert sum(after > before for before, after in pairwise(widths)) > 0.3 * len(widths)


def test_a_document_beyond_the_budget_is_a_batch_of_its_own():
    feed = Documents(collection([1000, 3, 3]), batch_tokens=16, longest=None, seed=0)
    assert sorted(map(len, epoch_rows(feed, 0))) == [3, 3, 1000]
    assert feed.batches_per_epoch(0) == 2


def test_a_process_without_a_row_is_idle_and_gets_the_first_row():
    feed = Documents(collection([5]), batch_tokens=16, longest=None, seed=0, rank=1, world=2)
    batch = feed.batch(START)
    assert feed.idle(START)
    assert not feed.of_process(0, 2).idle(START)
    assert batch.target.ids.tolist() == feed.of_process(0, 2).batch(START).target.ids.tolist()
    assert feed.tokens(START) == 5


def test_an_epoch_of_pairs_is_every_target_with_its_own_source():
    corpus = pairs()
    feed = Pairs(corpus, batch_tokens=256, seed=0)
    for epoch in (0, 1):
        found = []
        for index in range(feed.batches_per_epoch(epoch)):
            batch = feed.batch(Position(epoch, index))
            found += zip(rows(Batch(batch.source)), rows(batch), strict=True)
        assert sorted(found) == [(tuple(source.tolist()), tuple(target.tolist())) for source, target in corpus.ids()]


def test_batches_of_pairs_respect_the_budget_on_both_sides_and_have_little_padding():
    feed = Pairs(pairs(), batch_tokens=256, seed=0)
    batches = [feed.batch(Position(0, index)) for index in range(feed.batches_per_epoch(0))]
    assert max(max(batch.source.ids.numel(), batch.target.ids.numel()) for batch in batches) <= 256
    assert sum(batch.target.ids.numel() for batch in batches) < 1.3 * sum(LENGTHS)
    assert sum(batch.source.ids.numel() for batch in batches) < 1.3 * sum(SOURCES)


def test_pairs_longer_than_the_context_are_dropped_and_counted():
    feed = Pairs(pairs(), batch_tokens=256, seed=0, longest=(40, 50))
    fitting = [target for source, target in zip(SOURCES, LENGTHS, strict=True) if source <= 40 and target <= 50]
    assert sorted(map(len, epoch_rows(feed, 0))) == sorted(fitting)
    assert feed.left_out == len(LENGTHS) - len(fitting) > 0
    with pytest.raises(DataError, match=r"all 500 pairs are longer than the context of the model; raise model.context"):
        Pairs(pairs(), batch_tokens=256, seed=0, longest=(0, None))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 60), st.integers(1, 100))
def test_cut_batches_equals_a_loop_over_rows(lengths, pool, budget):
    lengths = [n for start in range(0, len(lengths), pool) for n in sorted(lengths[start : start + pool], reverse=True)]
    expected = []
    for index, _ in enumerate(lengths):
        full = expected and (index - expected[-1] + 1) * lengths[expected[-1]] > budget
        if index % pool == 0 or full:
            expected.append(index)
    assert cut_batches(np.array(lengths), pool, budget).tolist() == [*expected, len(lengths)]


def test_documents_are_cut_into_consecutive_pieces():
    starts, lengths = cut_documents(np.array([0, 5, 6, 10]), 2)
    assert starts.tolist() == [0, 2, 4, 5, 6, 8]
    assert lengths.tolist() == [2, 2, 1, 1, 2, 2]


def test_the_error_for_a_text_shorter_than_a_row_names_the_setting():
    with pytest.raises(DataError, match=r"has 10 tokens, but a row needs 16; set model.context to at most 10"):
        Windows(stream(10), rows=1, length=16, seed=0)
    with pytest.raises(DataError, match=r"has 16 tokens, but a row needs 17; set train.segment to at most 15"):
        Lanes(stream(16), rows=1, length=16, seed=0, contiguous=16)
    with pytest.raises(DataError, match="give more text"):
        Lanes(stream(1), rows=1, length=16, seed=0, contiguous=16)


def test_a_stream_has_no_documents():
    with pytest.raises(DataError, match=r"set data.unit=documents"):
        Documents(stream(10), batch_tokens=8, longest=None, seed=0)


def test_more_processes_than_rows_are_refused():
    with pytest.raises(DataError, match="too few for 3 processes"):
        Windows(stream(100), rows=2, length=8, seed=0, world=3)
    with pytest.raises(ConfigError, match="rank 2 is not one of 2 processes"):
        Windows(stream(100), rows=2, length=8, seed=0, rank=2, world=2)


def test_a_memory_mapped_corpus_feeds_batches(tmp_path, source):
    (tmp_path / "a.txt").write_text("abcdefgh" * 50)
    tokenizer = train_tokenizer("chars", lambda: ["abcdefgh"])
    corpus = Corpus.build(source(tmp_path / "a.txt"), tokenizer)
    batch = Windows(corpus, rows=2, length=8, seed=0).batch(START)
    assert isinstance(corpus.tokens, np.memmap)
    assert sorted(tokenizer.decode(batch.target.ids[0].tolist())) == list("abcdefgh")
