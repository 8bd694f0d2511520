"""Mixtures and ensembles combine the predictions of their components with weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from chainrule.compose.blend import Blend
from chainrule.compose.ensemble import Ensemble
from chainrule.compose.fit import fit_gate
from chainrule.compose.gate import running_means
from chainrule.compose.mixture import Mixture
from chainrule.compose.reverse import Reverse
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.likelihood import score
from chainrule.families import build
from chainrule.interface.base import AutoregressiveModel
from chainrule.models.gpt import GPT
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.testing import tiny_model
from chainrule.training.checkpoint import RunFolder
from chainrule.types import Batch, Sequences

KINDS = (Mixture, Ensemble)


def batch(vocabulary: int = 5, length: int = 20) -> Batch:
    ids = torch.randint(vocabulary, (3, length), generator=torch.Generator().manual_seed(2))
    return Batch(Sequences(ids, torch.tensor([length, length // 2, 1])))


def language(seed: int, length: int, vocabulary: int = 6) -> np.ndarray:
    """Text of a Markov chain, which one part can have learnt and another not."""
    random = np.random.default_rng(seed)
    chances = np.random.default_rng(0).dirichlet(np.full(vocabulary, 0.3), size=vocabulary)
    ids = [0]
    for _ in range(length - 1):
        ids.append(int(random.choice(vocabulary, p=chances[ids[-1]])))
    return np.array(ids)


def counted(order: int, tokens: np.ndarray, vocabulary: int = 6) -> NGram:
    model = NGram(NGramConfig(vocabulary=vocabulary, order=order))
    model.observe(Sequences.full(torch.from_numpy(tokens)[None]))
    model.estimate()
    return model.eval()


def parts() -> list[AutoregressiveModel]:
    """A unigram model, a bigram model of a short text, and a bigram model of another text."""
    return [
        counted(1, language(1, 3000)),
        counted(2, language(2, 60)),
        counted(2, np.random.default_rng(3).integers(6, size=500)),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate", ["fixed", "learned", "context"])
@torch.no_grad()
def test_a_blend_of_one_model_equals_that_model(kind: type[Blend], gate: str) -> None:
    for name in ("ngram", "recurrent", "gpt"):
        part = tiny_model(name)
        found = kind.of([part], gate=gate).token_log_probs(batch(length=16))  # type: ignore[arg-type]
        torch.testing.assert_close(found, part.token_log_probs(batch(length=16)))


@torch.no_grad()
def test_a_mixture_is_the_weighted_sum_and_an_ensemble_the_weighted_product() -> None:
    one, other = tiny_model("ngram"), tiny_model("recurrent")
    probabilities = [part.logits(batch()).softmax(-1) for part in (one, other)]
    mixture = Mixture.of([one, other], gate="fixed", weights=[1, 3]).logits(batch()).exp()
    torch.testing.assert_close(mixture, 0.25 * probabilities[0] + 0.75 * probabilities[1])
    product = probabilities[0] ** 0.6 * probabilities[1] ** 0.7
    ensemble = Ensemble.of([one, other], gate="fixed", weights=[0.6, 0.7]).logits(batch()).exp()
    torch.testing.assert_close(ensemble, product / product.sum(-1, keepdim=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate", ["fixed", "learned", "context"])
@torch.no_grad()
def test_a_token_that_is_impossible_under_one_component_leaves_the_blend_finite(kind: type[Blend], gate: str) -> None:
    unigram, gpt = counted(1, np.array([0, 1, 2, 3, 4, 0]), vocabulary=5), tiny_model("gpt")
    unigram.get_buffer("log_probs_1")[2] = -torch.inf
    assert bool((unigram.logits(batch(length=12))[..., 2] == -torch.inf).all())
    second = gpt.logits(batch(length=12)).softmax(-1)
    for weights in ([0.0, 1.0], [0.5, 0.5], [1.0, 0.0]):
        blend = kind.of([unigram, gpt], gate=gate, weights=weights)  # type: ignore[arg-type]
        logits = blend.logits(batch(length=12))
        assert bool(logits.isfinite().all())
        found = logits.softmax(-1)
        if weights[0] == 0.0:
            torch.testing.assert_close(found, second)
        else:
            expected = weights[1] * second[..., 2] if kind is Mixture else torch.zeros_like(second[..., 2])
            torch.testing.assert_close(found[..., 2], expected, rtol=1e-5, atol=1e-9)


def test_running_means_follow_their_recurrence() -> None:
    values = torch.randn(2, 600, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = torch.full((2, 3, 2), -2.0, dtype=torch.float64)
    decays = torch.tensor([0.9, 0.99], dtype=torch.float64)
    found = running_means(values, mean, decays)
    for step in range(600):
        mean = decays * mean + (1 - decays) * values[:, step, :, None]
        torch.testing.assert_close(found[:, step], mean)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fitted_blend_is_at_least_as_good_as_its_best_part_in_sample(kind: type[Blend]) -> None:
    corpus = Corpus.of_tokens(language(5, 3000), vocabulary=6)
    alone = [score(part, corpus).nats_per_token for part in parts()]
    found = {}
    for gate in ("learned", "context"):
        model = kind.of(parts(), gate=gate)  # type: ignore[arg-type]
        fit = fit_gate(model, corpus)
        found[gate] = score(model, corpus).nats_per_token
        assert fit.parts == pytest.approx(alone, abs=1e-5)
        assert fit.after == pytest.approx(found[gate], abs=1e-5)
        assert fit.after <= fit.before
        assert found[gate] <= min(alone) + 1e-6
    assert found["context"] <= found["learned"] + 1e-6


def test_the_learned_weights_of_a_mixture_are_those_of_expectation_maximisation() -> None:
    corpus = Corpus.of_tokens(language(5, 2000), vocabulary=6)
    target = Batch(Sequences.full(torch.from_numpy(corpus.tokens.astype(np.int64))[None]))
    likelihoods = torch.stack([part.token_log_probs(target)[0].double().exp() for part in parts()], dim=-1)
    shares = torch.full((3,), 1 / 3, dtype=torch.float64)
    for _ in range(2000):
        posterior = shares * likelihoods
        shares = (posterior / posterior.sum(-1, keepdim=True)).mean(0)
    model = Mixture.of(parts(), gate="learned")
    assert fit_gate(model, corpus).weights == pytest.approx(shares.tolist(), abs=2e-3)


def test_a_context_gate_learns_which_part_is_right_where() -> None:
    """Two alternating languages: a constant weight is a compromise, a context gate can switch."""
    known = [counted(2, language(1, 4000)), counted(2, 5 - language(1, 4000))]
    turns = [language(seed, 200) if seed % 2 else 5 - language(seed, 200) for seed in range(10, 40)]
    fitted, unseen = (Corpus.of_tokens(np.concatenate(half), vocabulary=6) for half in (turns[:22], turns[22:]))
    nats = {}
    for gate in ("learned", "context"):
        model = Mixture.of(known, gate=gate)  # type: ignore[arg-type]
        fit = fit_gate(model, fitted)
        nats[gate] = score(model, unseen).nats_per_token
    assert nats["context"] < nats["learned"] - 0.1
    assert fit.gain is not None
    assert fit.gain > 0.1


def test_a_context_gate_stays_constant_on_independent_tokens() -> None:
    alike = [counted(1, language(seed, 300)) for seed in (1, 2)]
    corpus = Corpus.of_tokens(np.random.default_rng(0).integers(6, size=200), vocabulary=6)
    model = Mixture.of(alike, gate="context")
    fit = fit_gate(model, corpus)
    assert (fit.passes, fit.gain) == (0, 0.0)
    constant = Mixture.of(alike, gate="learned")
    fit_gate(constant, corpus)
    torch.testing.assert_close(model.logits(batch(vocabulary=6)), constant.logits(batch(vocabulary=6)))


def test_each_document_is_read_from_bos() -> None:
    lengths = [40, 1, 25, 90, 7] * 6
    tokens = np.concatenate(
        [np.append(language(seed, size - 1), 0) if size > 1 else [0] for seed, size in enumerate(lengths)]
    )
    corpus = Corpus(
        tokens=tokens.astype(np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        bytes=len(tokens),
        characters=len(tokens),
        words=len(tokens),
        unknown=0,
        fingerprint="",
    )
    for kind in KINDS:
        model = kind.of(parts(), gate="context")
        assert fit_gate(model, corpus).after == pytest.approx(score(model, corpus).nats_per_token, abs=1e-5)


def test_fitting_is_reproducible_by_its_seed() -> None:
    corpus = Corpus.of_tokens(language(5, 1500), vocabulary=6)
    models = [Ensemble.of(parts(), gate="context") for _ in range(2)]
    torch.manual_seed(7)
    first = fit_gate(models[0], corpus, seed=1)
    torch.manual_seed(8)  # the global random state must not matter
    assert fit_gate(models[1], corpus, seed=1) == first
    for one, same in zip(models[0].gate.parameters(), models[1].gate.parameters(), strict=True):
        assert torch.equal(one, same)


def test_the_shortlist_of_a_large_vocabulary_approximates_the_sum() -> None:
    random = np.random.default_rng(0)
    text = random.zipf(1.3, size=6000).clip(max=999)
    corpus = Corpus.of_tokens(text[5000:], vocabulary=1000)
    model = Ensemble.of([counted(order, text[:5000], vocabulary=1000) for order in (1, 3)], gate="learned")
    uniform = score(model, corpus).nats_per_token
    fit = fit_gate(model, corpus)
    assert fit.before == pytest.approx(uniform, abs=1e-4)  # exact where the weights are equal
    assert fit.after == pytest.approx(score(model, corpus).nats_per_token, abs=0.01)
    assert score(model, corpus).nats_per_token < uniform


def test_fitting_a_fixed_gate_or_too_little_text_is_refused() -> None:
    corpus = Corpus.of_tokens(language(5, 1000), vocabulary=6)
    with pytest.raises(ConfigError, match="no parameters to fit"):
        fit_gate(Mixture.of(parts(), gate="fixed"), corpus)
    with pytest.raises(DataError, match="too few"):
        fit_gate(Mixture.of(parts()), Corpus.of_tokens([1, 2, 3], vocabulary=6))


def test_incompatible_parts_are_refused() -> None:
    one = tiny_model("gpt")
    assert isinstance(one, GPT)
    with pytest.raises(ConfigError, match="given twice"):
        Mixture.of([one, one])
    with pytest.raises(ConfigError, match="vocabularies of 5 and 6"):
        Mixture.of([one, tiny_model("gpt", vocabulary=6)])
    with pytest.raises(ConfigError, match="right-to-left"):
        Mixture.of([Reverse.of(one), tiny_model("ngram")])


@torch.no_grad()
def test_a_nested_mixture_is_saved_and_loaded_bit_for_bit(tmp_path: object) -> None:
    from pathlib import Path

    inner = Ensemble.of([tiny_model("ngram"), tiny_model("gpt")], gate="context")
    model = Mixture.of([inner, tiny_model("recurrent"), tiny_model("ngram", seed=1)], gate="context")
    fit_gate(model, Corpus.of_tokens(np.random.default_rng(0).integers(5, size=400), vocabulary=5))
    folder = RunFolder(Path(str(tmp_path)))
    folder.write_weights(model)
    again = build("mixture", model.config.model_dump(mode="json", exclude_none=True)).eval()
    folder.read_weights(again)
    assert torch.equal(again.logits(batch()), model.logits(batch()))


@torch.no_grad()
def test_a_blend_of_models_with_limited_context_is_unlimited() -> None:
    model = Mixture.of([tiny_model("gpt"), tiny_model("ngram")])
    assert model.context is None
    assert math.isfinite(float(model.log_prob(batch(length=100))[0]))
