import itertools
import math

import pytest
import torch

from chainrule.data.spans import Corruption
from chainrule.decoding.filling import FillSearch, fill
from chainrule.errors import DecodingError
from chainrule.models.bert import BERT, BERTConfig
from chainrule.models.t5 import T5
from chainrule.testing import tiny_model
from chainrule.types import Batch, Sequences

VOCABULARY = 5


@pytest.fixture
def bert() -> BERT:
    torch.manual_seed(0)
    model = BERT(BERTConfig(vocabulary=VOCABULARY, layers=1, width=8, heads=2, context=9))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.4)
    return model.double().eval()


def test_the_tokens_of_one_gap_are_those_of_the_model_and_sum_to_one(bert: BERT) -> None:
    found = fill(bert, [[1, 2], [3]], FillSearch(beam=VOCABULARY), eos=0)
    hidden = torch.tensor([[False, False, True, False]])
    expected = bert.predict(Sequences.full(torch.tensor([[1, 2, 0, 3]])), hidden).log_softmax(-1)[0]
    assert {one.spans[0][0]: pytest.approx(one.log_prob) for one in found} == dict(enumerate(expected.tolist()))
    assert sum(math.exp(one.log_prob) for one in found) == pytest.approx(1.0)
    assert [one.log_prob for one in found] == sorted((one.log_prob for one in found), reverse=True)


@torch.no_grad()
def test_gaps_are_filled_from_left_to_right_given_earlier_ones(bert: BERT) -> None:
    found = fill(bert, [[1], [2], []], FillSearch(beam=VOCABULARY**2), eos=0)
    assert len(found) == VOCABULARY**2
    best = found[0]
    both = torch.tensor([[False, True, False, True]])
    first = bert.predict(Sequences.full(torch.tensor([[1, 0, 2, 0]])), both).log_softmax(-1)[0]
    (left,), (right,) = best.spans
    second = bert.predict(
        Sequences.full(torch.tensor([[1, left, 2, 0]])), torch.tensor([[False, False, False, True]])
    ).log_softmax(-1)[0]
    assert best.log_prob == pytest.approx(float(first[left] + second[right]))
    assert sum(math.exp(one.log_prob) for one in found) == pytest.approx(1.0)


def test_a_suppressed_token_is_never_generated(bert: BERT) -> None:
    found = fill(bert, [[1], [2]], FillSearch(beam=VOCABULARY, suppress=(0, 3)), eos=0)
    assert {one.spans[0][0] for one in found} == {1, 2, 4}


@torch.no_grad()
def spelt(model: T5, corruption: Corruption, parts: list[list[int]], spans: tuple[tuple[int, ...], ...]) -> float:
    """log P of the target after its first sentinel."""
    source = Sequences.pack([corruption.source(parts)])
    target = corruption.target(spans)
    nats = model.token_log_probs(Batch(Sequences.pack([target]), source))[0]
    return float(nats[1:].sum())


def test_a_wide_enough_beam_searches_spans_exhaustively() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = tiny_model("t5")
    finally:
        torch.set_default_dtype(torch.float32)
    assert isinstance(model, T5)
    tokens = (1, 2)  # 0 is EOS; 3 and 4 are sentinels
    assert list(model.sentinels) == [3, 4]
    corruption = Corruption(sentinels=model.sentinels, eos=0)
    parts = [[1], [2, 2], [1]]
    found = fill(model, parts, FillSearch(beam=200, longest=3), eos=0)
    short = [span for size in (0, 1, 2) for span in itertools.product(tokens, repeat=size)]
    expected = {both: spelt(model, corruption, parts, both) for both in itertools.product(short, repeat=2)}
    assert {one.spans: pytest.approx(one.log_prob) for one in found} == expected
    assert found[0].log_prob == pytest.approx(max(expected.values()))


def test_a_text_without_a_gap_is_refused(bert: BERT) -> None:
    with pytest.raises(DecodingError, match="has no gap; mark each with <>"):
        fill(bert, [[1, 2]], FillSearch(), eos=0)


def test_a_model_that_cannot_fill_gaps_is_refused() -> None:
    with pytest.raises(DecodingError, match="GPT cannot fill gaps; use a run of bert or t5"):
        fill(tiny_model("gpt"), [[1], [2]], FillSearch(), eos=0)
