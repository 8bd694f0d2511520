"""A model that remembers the words of the text it reads."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from chainrule.compose.recall import Recall, fit_recall
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError
from chainrule.testing.tiny import tiny_model
from chainrule.types import Batch, Sequences


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def by_hand(model: Recall, ids: list[int]) -> torch.Tensor:
    """The equations of the docstring, one prediction and one entry at a time: (T, V) probabilities."""
    inner = model.model
    hidden = inner.hidden(Batch(Sequences.full(torch.tensor([ids]))))[0]
    found = []
    for t in range(len(ids)):
        own = inner.readout(hidden[t]).softmax(-1)
        entries = range(max(0, t - model.memory), t)
        if not entries:
            found.append(own)
            continue
        scores = []
        for i in entries:
            similar = torch.dot(hidden[t], hidden[i]) / hidden[t].norm() / hidden[i].norm()
            scores.append(model.sharpness * similar - model.fading * math.log(t - i))
        scores = torch.stack(scores)
        share = torch.sigmoid(model.familiarity * scores.logsumexp(0) + model.bias)
        recalled = torch.zeros_like(own)
        for i, weight in zip(entries, scores.softmax(0), strict=True):
            recalled[ids[i]] += weight
        found.append((1 - share) * own + share * recalled)
    return torch.stack(found)


@pytest.mark.parametrize("memory", [3, 50])
def test_it_computes_its_equations(memory):
    model = Recall.of(tiny_model("recurrent", "lstm"), memory=memory)
    ids = torch.randint(5, (17,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        model.bias.fill_(0.3)
        found = model.logits(Batch(Sequences.full(torch.tensor([ids])))).softmax(-1)[0]
        torch.testing.assert_close(found, by_hand(model, ids))


def test_a_word_that_came_before_is_expected_to_come_again():
    """Words of a text that repeats itself cost less with a memory that was fitted to such a text."""
    random = np.random.default_rng(0)
    pages = [np.tile(random.integers(20, size=12), 5) for _ in range(60)]  # each page has a vocabulary of its own
    corpus = Corpus.of_tokens(np.concatenate(pages), vocabulary=20)
    model = Recall.of(tiny_model("recurrent", "gru", vocabulary=20), memory=40)
    fit = fit_recall(model, corpus)
    assert fit.after < fit.before - 0.5
    assert fit.predictions == len(corpus) - 1
    with torch.no_grad():
        ids = torch.from_numpy(corpus.tokens.astype(np.int64))[None]
        exact = -model.token_log_probs(Batch(Sequences.full(ids)))[0, 1:].mean()
    assert float(exact) == pytest.approx(fit.after, abs=1e-6)


def test_the_model_within_stays_as_it_is():
    inner = tiny_model("recurrent", "lstm")
    before = {name: value.clone() for name, value in inner.state_dict().items()}
    tokens = np.random.default_rng(2).integers(5, size=300)
    fit_recall(Recall.of(inner, memory=20), Corpus.of_tokens(tokens, vocabulary=5))
    assert all(torch.equal(value, before[name]) for name, value in inner.state_dict().items())


@pytest.mark.parametrize("family", ["ngram", "gpt"])
def test_what_cannot_recall_is_refused(family):
    with pytest.raises(ConfigError, match=f"'{family}' cannot recall"):
        Recall.of(tiny_model(family))
