"""The neural cache: its equations, its fit, and which models support it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from chainrule.compose.neural_cache import NeuralCache, fit_neural_cache
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError
from chainrule.testing.tiny import tiny_model
from chainrule.types import Batch, Sequences


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def by_hand(model: NeuralCache, ids: list[int]) -> torch.Tensor:
    """The equations of the docstring, one prediction and one entry at a time: (T, V) probabilities."""
    inner = model.model
    hidden = inner.hidden(Batch(Sequences.full(torch.tensor([ids]))))[0]
    found = []
    for t in range(len(ids)):
        own = inner.readout(hidden[t]).softmax(-1)
        entries = range(max(0, t - model.size), t)
        if not entries:
            found.append(own)
            continue
        scores = []
        for i in entries:
            similar = torch.dot(hidden[t], hidden[i]) / hidden[t].norm() / hidden[i].norm()
            scores.append(model.inverse_temperature * similar - model.age_decay * math.log(t - i))
        scores = torch.stack(scores)
        weight = torch.sigmoid(model.match_slope * scores.logsumexp(0) + model.bias)
        cached = torch.zeros_like(own)
        for i, attention in zip(entries, scores.softmax(0), strict=True):
            cached[ids[i]] += attention
        found.append((1 - weight) * own + weight * cached)
    return torch.stack(found)


@pytest.mark.parametrize("size", [3, 50])
def test_it_computes_its_equations(size):
    model = NeuralCache.of(tiny_model("recurrent", "lstm"), size=size)
    ids = torch.randint(5, (17,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        model.bias.fill_(0.3)
        found = model.logits(Batch(Sequences.full(torch.tensor([ids])))).softmax(-1)[0]
        torch.testing.assert_close(found, by_hand(model, ids))


def test_a_fitted_cache_lowers_the_loss_on_repetitive_text():
    random = np.random.default_rng(0)
    pages = [np.tile(random.integers(20, size=12), 5) for _ in range(60)]  # each page has a vocabulary of its own
    corpus = Corpus.of_tokens(np.concatenate(pages), vocabulary=20)
    model = NeuralCache.of(tiny_model("recurrent", "gru", vocabulary=20), size=40)
    fit = fit_neural_cache(model, corpus)
    assert fit.after < fit.before - 0.5
    assert fit.predictions == len(corpus) - 1
    with torch.no_grad():
        ids = torch.from_numpy(corpus.tokens.astype(np.int64))[None]
        exact = -model.token_log_probs(Batch(Sequences.full(ids)))[0, 1:].mean()
    assert float(exact) == pytest.approx(fit.after, abs=1e-6)


def test_fitting_leaves_the_cached_model_unchanged():
    inner = tiny_model("recurrent", "lstm")
    before = {name: value.clone() for name, value in inner.state_dict().items()}
    tokens = np.random.default_rng(2).integers(5, size=300)
    fit_neural_cache(NeuralCache.of(inner, size=20), Corpus.of_tokens(tokens, vocabulary=5))
    assert all(torch.equal(value, before[name]) for name, value in inner.state_dict().items())


@pytest.mark.parametrize("family", ["ngram", "gpt"])
def test_families_without_unlimited_hidden_states_are_refused(family):
    with pytest.raises(ConfigError, match=f"'{family}' does not support a neural cache"):
        NeuralCache.of(tiny_model(family))
