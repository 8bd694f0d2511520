"""Spans of passages: the most probable ones, and the one that is expected to agree with most."""

from __future__ import annotations

import itertools

import pytest
import torch

from chainrule.decoding.structured import highest_expected_f1, top_spans
from chainrule.models.reader import SpanReader
from chainrule.testing.tiny import tiny_model
from chainrule.types import Batch, Sequences

ASKED = Sequences(torch.tensor([[1, 2, 0, 3, 4, 5], [1, 0, 2, 0, 0, 0]]), torch.tensor([6, 3]))


@torch.no_grad()
def test_with_all_starts_and_ends_every_span_is_found_with_its_probability() -> None:
    model = tiny_model("reader")
    assert isinstance(model, SpanReader)
    count = model.vocabulary - 1
    for row, spans in enumerate(top_spans(model, ASKED, starts=count, ends=count)):
        length = int(ASKED.lengths[row]) - 1 - int((ASKED.ids[row] == 0).int().argmax())
        assert {one[:2] for one in spans} == set(itertools.combinations_with_replacement(range(1, length + 1), 2))
        assert [one.log_prob for one in spans] == sorted((one.log_prob for one in spans), reverse=True)
        for one in spans:
            batch = Batch(
                Sequences.full(torch.tensor([[one.first, one.last]])), Sequences(ASKED.ids[[row]], ASKED.lengths[[row]])
            )
            assert one.log_prob == pytest.approx(float(model.log_prob(batch)), abs=1e-5)
        none = spans[0].log_no_answer
        assert sum(torch.tensor([one.log_prob for one in spans]).exp()) == pytest.approx(
            1 - float(torch.tensor(none).exp()), abs=1e-5
        )


def test_a_span_that_agrees_with_many_is_preferred_to_the_most_probable_one() -> None:
    begins, ends = (0, 100, 102, 104), (10, 110, 112, 114)
    assert highest_expected_f1(begins, ends, [0.0, -0.5, -0.5, -0.5]) == 2
    assert highest_expected_f1(begins, ends, [3.0, -0.5, -0.5, -0.5]) == 0


def test_the_expected_f1_weighs_precision_against_recall() -> None:
    """A short span inside a long one: the short one if it is likely enough."""
    assert highest_expected_f1((0, 0), (10, 4), [0.0, 0.1]) == 1
    assert highest_expected_f1((0, 0), (10, 4), [0.1, 0.0]) == 0
    assert highest_expected_f1((7,), (9,), [-3.0]) == 0
