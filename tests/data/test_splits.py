"""Held-out data: from the end, from the start, or spread over the data."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.config import DataConfig
from chainrule.data.corpus import prepare
from chainrule.data.images import prepare_images
from chainrule.data.labelled import prepare_labelled
from chainrule.data.source import split
from chainrule.data.splits import Part, Span, hold_out
from chainrule.errors import DataError

FRACTIONS = {"test": 0.2, "validation": 0.1}


def spans(parts):
    return sorted((span, name) for name, part in parts.items() for span in part.spans)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(30, 5000),
    valid_from=st.sampled_from(["end", "start", "spread"]),
    block=st.integers(1, 50),
    most=st.integers(1, 100),
)
def test_every_item_is_in_exactly_one_split_and_sizes_do_not_depend_on_where_they_are_taken(
    size, valid_from, block, most
):
    parts = hold_out(size, FRACTIONS, valid_from, what="items", spec="x", block=block, most=most)
    items = [index for part in parts.values() for index in part.choose(range(size))]
    assert sorted(items) == list(range(size))
    at_end = hold_out(size, FRACTIONS, "end", what="items", spec="x")
    assert {name: part.size for name, part in parts.items()} == {name: part.size for name, part in at_end.items()}
    assert all(part.size >= len(part.spans) * min(block, part.size) for name, part in parts.items())


def test_spread_documents_come_from_all_of_the_data():
    parts = hold_out(1000, {"validation": 0.1}, "spread", what="documents", spec="x")
    assert parts["validation"].spans == tuple(Span(10 * n + 9, 10 * n + 10) for n in range(100))


def test_a_part_of_several_ranges_is_chosen_in_order():
    assert list(Part((Span(1, 3), Span(5, 6))).choose("abcdefg")) == ["b", "c", "f"]


@pytest.fixture
def lines(tmp_path):
    rng = random.Random(0)
    found = [f"{number} " + "word " * rng.randrange(1, 12) for number in range(3000)]
    (tmp_path / "lines.txt").write_text("\n".join(found) + "\n")
    return found


def decoded(prepared):
    return [prepared.tokenizer.decode(corpus.tokens.tolist()) for corpus in prepared[1:4]]


def test_blocks_of_a_spread_stream_are_whole_lines(tmp_path, lines, source):
    config = DataConfig(train=str(tmp_path / "lines.txt"), valid_from="spread", test_fraction=0.1)
    parts = decoded(prepare(config, "bytes"))
    found = [part.removesuffix("\n").split("\n") for part in parts]
    assert sorted(itertools.chain(*found)) == sorted(lines)
    valid = [lines.index(line) for line in found[1]]
    assert {index * 10 // len(lines) for index in valid} >= set(range(1, 10))
    again = split(source(tmp_path / "lines.txt"), {"test": 0.1, "validation": 0.1}, "spread")  # from the cache
    assert [part.size for part in again.values()] == [len(parts[0]), len(parts[2]), len(parts[1])]


def test_blocks_of_one_long_line_are_cut_anywhere(tmp_path, source):
    (tmp_path / "dna.txt").write_text("".join(random.Random(0).choices("ACGT", k=50_000)))
    parts = split(source(tmp_path / "dna.txt"), {"validation": 0.1}, "spread")
    assert parts["validation"].size == 5000
    assert len(parts["validation"].spans) == 5


def test_spread_documents_are_whole(tmp_path, lines):
    config = DataConfig(train=str(tmp_path / "lines.txt"), unit="documents", valid_from="spread", test_fraction=0.1)
    prepared = prepare(config, "bytes")
    documents = [prepared.tokenizer.decode(ids[:-1].tolist()) for corpus in prepared[1:4] for ids in corpus.documents()]
    assert sorted(documents) == sorted(lines)
    assert prepared.config.named("test").endswith("lines.txt, spread evenly")


def test_spread_labels_come_from_every_class_of_a_sorted_file(tmp_path):
    rows = [f"text {number}\t{label}" for label in "xyz" for number in range(40)]
    (tmp_path / "a.tsv").write_text("\n".join(rows) + "\n")
    with pytest.raises(DataError, match=r"the label 'z', not found in the training data; .*data.valid_from=spread"):
        prepare_labelled(DataConfig(train=str(tmp_path / "a.tsv"), valid_fraction=0.34), "chars")
    (warning,) = prepare_labelled(DataConfig(train=str(tmp_path / "a.tsv"), valid_fraction=0.3), "chars").warnings
    assert "has no example of 'x'; if the examples are sorted, --set data.valid_from=spread" in warning
    spread = prepare_labelled(DataConfig(train=str(tmp_path / "a.tsv"), valid_from="spread"), "chars")
    assert set(spread.held_out["validation"].target.tokens.tolist()) == {0, 1, 2}


def test_spread_images_keep_their_labels(tmp_path):
    labels = np.arange(100) // 10
    images = np.broadcast_to(labels[:, None, None], (100, 2, 2)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    prepared = prepare_images(DataConfig(train=str(tmp_path / "a.npz"), valid_from="spread"))
    values = prepared.valid.target.tokens.reshape(10, 4)
    assert values[:, 0].tolist() == list(range(10))
    assert prepared.valid.labels.tokens.tolist() == list(range(10))
