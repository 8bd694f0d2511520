"""Viterbi search of first-order models, and the best span of a passage."""

from __future__ import annotations

import itertools

import pytest
import torch

from chainrule.decoding.beam import beam_search
from chainrule.decoding.structured import top_spans, viterbi
from chainrule.errors import DecodingError
from chainrule.models.tagger import Tagger
from chainrule.testing.tiny import tiny_model
from chainrule.types import Batch, Sequences

SOURCE = Sequences(torch.tensor([[1, 2, 0, 3, 0, 4], [5, 0, 1, 0, 0, 0], [2, 3, 4, 5, 1, 0]]), torch.tensor([6, 3, 6]))


@torch.no_grad()
def unequal(seed: int) -> Tagger:
    """A tagger with strong transitions, so that greedy choices can be wrong."""
    model = tiny_model("tagger", "first order", seed=seed)
    assert isinstance(model, Tagger)
    model.from_tags.weight.mul_(4)
    model.readout_weight.mul_(4)
    return model


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_viterbi_equals_exhaustive_search(seed: int) -> None:
    model = unequal(seed)
    lengths = [4, 1, 3]
    found = viterbi(model, lengths, source=SOURCE)
    for row, (length, best) in enumerate(zip(lengths, found, strict=True)):
        every = torch.tensor(list(itertools.product(range(model.vocabulary), repeat=length)))
        own = Sequences(SOURCE.ids[[row] * len(every)], SOURCE.lengths[[row] * len(every)])
        scores = model.log_prob(Batch(Sequences.full(every), own))
        assert best.ids == every[scores.argmax()].tolist()
        assert best.log_prob == pytest.approx(float(scores.max()), abs=1e-4)


def test_greedy_decoding_can_be_worse_than_viterbi() -> None:
    model = unequal(1)
    random = torch.Generator().manual_seed(0)
    source = Sequences.full(torch.randint(6, (40, 9), generator=random))
    lengths = [6] * 40
    exact = viterbi(model, lengths, source=source)
    greedy = [one for one, *_ in beam_search(model, [[]] * 40, width=1, length=lengths, source=source)]
    assert all(one.log_prob >= other.log_prob - 1e-5 for one, other in zip(exact, greedy, strict=True))
    assert any(one.log_prob > other.log_prob + 0.01 for one, other in zip(exact, greedy, strict=True))


@torch.no_grad()
def test_viterbi_works_for_any_first_order_model() -> None:
    model = tiny_model("finite_memory", "markov")
    [best] = viterbi(model, [4])
    every = torch.tensor(list(itertools.product(range(model.vocabulary), repeat=4)))
    scores = model.log_prob(Batch(Sequences.full(every)))
    assert best.ids == every[scores.argmax()].tolist()


@pytest.mark.parametrize(
    ("family", "variant"), [("tagger", "recurrent"), ("recurrent", "lstm"), ("finite_memory", "several")]
)
def test_a_longer_receptive_field_is_refused(family: str, variant: str) -> None:
    source = SOURCE if family == "tagger" else None
    with pytest.raises(DecodingError, match="needs a first-order model"):
        viterbi(tiny_model(family, variant), [2] * 3, source=source)


@torch.no_grad()
def test_the_best_span_equals_exhaustive_search() -> None:
    model = tiny_model("reader", "words", vocabulary=7, seed=3)
    source = Sequences(torch.tensor([[1, 2, 0, 3, 5, 4], [5, 0, 1, 0, 0, 0]]), torch.tensor([6, 3]))
    found = [spans[0] for spans in top_spans(model, source, starts=6)]
    places = list(itertools.product(range(7), repeat=2))
    for row, span in enumerate(found):
        own = Sequences(source.ids[[row] * len(places)], source.lengths[[row] * len(places)])
        scores = model.log_prob(Batch(Sequences.full(torch.tensor(places)), own))
        here = [score if first > 0 else -torch.inf for score, (first, _) in zip(scores.tolist(), places, strict=True)]
        assert (span.first, span.last) == places[int(torch.tensor(here).argmax())]
        assert span.log_prob == pytest.approx(max(here), abs=1e-4)
        assert span.log_no_answer == pytest.approx(float(scores[places.index((0, 0))]), abs=1e-4)
