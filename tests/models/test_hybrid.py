"""The hybrid translation and language models; properties of every family are in tests/testing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import chainrule
from chainrule.errors import ConfigError, RunError
from chainrule.models.hybrid import Hybrid, HybridConfig, HybridModel
from chainrule.models.hybrid_language import HybridLanguage, HybridLanguageConfig
from chainrule.nn.pretrained_encoders import BertEncoder
from chainrule.objectives import BranchLikelihood, Likelihood, Objective
from chainrule.testing import check_model
from chainrule.types import Batch, Sequences, detach
from tests.features.folders import PIECES, write_bert, write_small_gpt2
from tests.models.copying import exact_matches, pairs

VOCABULARY, SOURCE_VOCABULARY, CHUNK = 7, 9, 4


def translator(**settings: Any) -> Hybrid:
    torch.manual_seed(0)
    values = {
        "vocabulary": VOCABULARY,
        "source_vocabulary": SOURCE_VOCABULARY,
        "width": 8,
        "layers": 1,
        "heads": 2,
        **settings,
    }
    return perturbed(Hybrid(HybridConfig.parse(values)))


def language_model(**settings: Any) -> HybridLanguage:
    torch.manual_seed(0)
    values = {"vocabulary": VOCABULARY, "width": 8, "layers": 2, "chunk": CHUNK, "window": 6, **settings}
    return perturbed(HybridLanguage(HybridLanguageConfig.parse(values)))


def perturbed(model: HybridModel) -> Any:
    """With parameters away from zero, so that every path contributes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.double().eval()


def sequences(rows: int, length: int, vocabulary: int = VOCABULARY, seed: int = 1) -> Sequences:
    random = torch.Generator().manual_seed(seed)
    return Sequences.full(torch.randint(vocabulary, (rows, length), generator=random))


def pair(rows: int = 2, length: int = 5, source: int = 4) -> Batch:
    return Batch(sequences(rows, length), sequences(rows, source, SOURCE_VOCABULARY, seed=2))


# The mixture


@torch.no_grad()
@pytest.mark.parametrize("gate", ["fixed", "learned", "gated"])
def test_a_prediction_is_the_mixture_of_both_branches(gate: str) -> None:
    model, batch = translator(gate=gate, gamma=0.3), pair()
    hidden = model.hidden(batch)
    first, second = model.branch_log_probs(hidden).exp()
    gamma = model.shares(hidden)[..., None]
    expected = (1 - gamma) * first + gamma * second
    torch.testing.assert_close(model.logits(batch).exp(), expected)
    torch.testing.assert_close(expected.sum(-1), torch.ones_like(expected[..., 0]))
    assert (gamma > 0.01).all()


@torch.no_grad()
def test_a_fixed_gamma_is_reduced_only_at_positions_with_little_mass() -> None:
    model = translator(gate="fixed", gamma=0.3, min_mass=0.0)
    torch.testing.assert_close(model.shares(model.hidden(pair())), torch.full((2, 5), 0.3, dtype=torch.float64))
    sparse = translator(gate="fixed", gamma=0.3, min_mass=100.0)  # more than any position has
    mass = sparse.plan(pair().source).mass  # type: ignore[arg-type]
    torch.testing.assert_close(sparse.shares(sparse.hidden(pair())), 0.3 * mass[:, :5] / 100)
    torch.testing.assert_close(mass.sum(1), torch.full((2,), 4, dtype=torch.float64))


@torch.no_grad()
def test_a_gamma_of_zero_or_one_selects_a_branch() -> None:
    model, batch = translator(), pair()
    before = model.logits(batch)
    branches = model.branch_log_probs(model.hidden(batch))
    for gamma, branch in ((0.0, 0), (1.0, 1)):
        torch.testing.assert_close(model.with_gamma(gamma).logits(batch), branches[branch])
    assert torch.equal(model.logits(batch), before)  # the model itself is unchanged


@torch.no_grad()
def test_the_non_autoregressive_branch_depends_on_the_source_only() -> None:
    model, (target, source) = translator(), pair(length=6)
    drafts = model.branch_log_probs(model.hidden(Batch(target, source)))[1]
    other = model.branch_log_probs(model.hidden(Batch(sequences(2, 3, seed=9), source)))[1]
    assert torch.equal(other, drafts[:, :3])
    other_source = Sequences.full((source.ids + 1) % SOURCE_VOCABULARY)  # type: ignore[union-attr]
    assert not torch.allclose(model.branch_log_probs(model.hidden(Batch(target, other_source)))[1], drafts)


@torch.no_grad()
def test_past_the_planned_positions_only_the_autoregressive_branch_predicts() -> None:
    model = translator(length_ratio=0.5, length_margin=1, gate="fixed", gamma=0.9)
    source = sequences(1, 4, SOURCE_VOCABULARY)
    assert model.plan(source).drafts.shape[1] == 3
    batch = Batch(sequences(1, 6), source)
    hidden = model.hidden(batch)
    shares = model.shares(hidden)[0]
    assert (shares[:3] > 0.1).all()
    assert (shares[3:] < 1e-300).all()
    torch.testing.assert_close(model.logits(batch)[:, 3:], model.branch_log_probs(hidden)[0][:, 3:])


@torch.no_grad()
def test_attention_maps_are_distributions_over_unpadded_source_tokens() -> None:
    source = Sequences(sequences(2, 5, SOURCE_VOCABULARY).ids, torch.tensor([5, 2]))
    maps = translator().attention_maps(Batch(sequences(2, 6), source))
    assert maps.shape == (2, 6, 5)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 6, dtype=torch.float64))
    assert not maps[1, :, 2:].any()


# Training


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_training_loss_includes_that_of_each_branch(smoothing: float) -> None:
    model, batch = translator(), pair()
    hidden, targets = model.hidden(batch).flatten(0, 1), batch.target.ids.flatten()
    predictions = (model.readout(hidden), *model.branch_log_probs(hidden))
    parts = [F.cross_entropy(one, targets, reduction="sum", label_smoothing=smoothing) for one in predictions]
    found = BranchLikelihood(0.5, smoothing)(model, hidden, targets)
    torch.testing.assert_close(found, parts[0] + 0.5 * parts[1] + 0.5 * parts[2])
    metrics = BranchLikelihood(0.5).metrics(model, hidden)
    assert metrics == {"gamma": pytest.approx(float(model.shares(hidden).detach().mean()))}


def test_the_second_branch_may_be_trained_on_a_sample_of_the_pairs() -> None:
    batch = pair(rows=400)
    targets = batch.target.ids.flatten()

    def second_gradient(share: float) -> tuple[torch.Tensor, torch.Tensor]:
        model = translator(branch_share=share, dropout=0.0).train()
        hidden = model.hidden(batch).flatten(0, 1)
        BranchLikelihood(1e6, share=share)(model, hidden, targets).backward()  # the losses of the branches count
        gradient = model.parallel.lstm.forward_layers[0].input_weight.grad
        assert isinstance(gradient, torch.Tensor)
        return gradient, model.has_second(hidden).double().mean()

    (expected, every), (found, some) = second_gradient(1.0), second_gradient(0.25)
    assert every == 1
    assert 0.15 < some < 0.35
    assert F.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.8
    assert 0.6 < found.norm() / expected.norm() < 1.7
    model = translator(branch_share=0.25)  # in evaluation all are computed
    assert model.has_second(model.hidden(batch)).all()


def test_the_second_branch_of_a_text_may_be_trained_in_a_sample_of_the_steps() -> None:
    batch = Batch(sequences(2, 5 * CHUNK))
    model = language_model(branch_share=0.25).train()
    chosen = torch.stack([model.has_second(model.hidden(batch)) for _ in range(200)])  # (steps, B, T)
    assert torch.equal(chosen.any((1, 2)), chosen.all((1, 2)))
    assert 0.15 < chosen.double().mean() < 0.35
    assert model.eval().has_second(model.hidden(batch)).all()


def learner(**settings: Any) -> Hybrid:
    torch.manual_seed(0)
    sizes = {
        "vocabulary": 12,
        "source_vocabulary": 12,
        "layers": 1,
        "encoder_layers": 1,
        "width": 64,
        "dropout": 0.0,
        "branch_share": 1.0,
    }
    return Hybrid(HybridConfig.parse({**sizes, **settings}))


def learn(model: Hybrid, objective: Objective, steps: int) -> None:
    """Train on reversing sequences."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.005, weight_decay=0.0)
    for _ in range(steps):
        batch = pairs(model, 32, reverse=True, generator=generator)
        real = batch.target.mask
        loss = objective(model, model.hidden(batch)[real], batch.target.ids[real]) / real.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def test_both_branches_learn_to_reverse_a_sequence() -> None:
    model = learner()
    learn(model, BranchLikelihood(0.5), steps=200)
    assert exact_matches(model, reverse=True) > 0.9
    for gamma in (0.0, 1.0):
        assert exact_matches(model.with_gamma(gamma), reverse=True) > 0.8


def test_without_branch_losses_the_non_autoregressive_branch_does_not_learn() -> None:
    model = learner()
    learn(model, Likelihood(), steps=200)
    assert exact_matches(model.with_gamma(0.0), reverse=True) > 0.6
    assert exact_matches(model.with_gamma(1.0), reverse=True) < 0.3


def test_the_output_bias_sets_the_initial_predictions() -> None:
    torch.manual_seed(0)
    model = Hybrid(HybridConfig(vocabulary=VOCABULARY, source_vocabulary=SOURCE_VOCABULARY, width=8))
    frequencies = torch.rand(VOCABULARY).softmax(0)
    model.eval().init_output_bias(frequencies.log())
    with torch.no_grad():
        found = model.logits(pair()).softmax(-1)
    assert (found - frequencies).abs().max() < 0.05


# The language model


@torch.no_grad()
def test_the_plan_of_a_chunk_depends_on_the_previous_chunk_only() -> None:
    def drafts_of(text: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model.branch_log_probs(model.hidden(Batch(Sequences.full(text))))[1]
        return found[0, 1:].view(4, CHUNK, -1)  # the first token is in a chunk with BOS

    model, text = language_model(), sequences(1, 1 + 4 * CHUNK).ids
    drafts = drafts_of(text)
    for chunk in range(4):
        other = text.clone()
        other[:, 1:].view(4, CHUNK)[chunk] += 1
        found = drafts_of(other % VOCABULARY)
        changed = [not torch.equal(one, two) for one, two in zip(found, drafts, strict=True)]
        assert changed == [before == chunk for before in range(-1, 3)]


@torch.no_grad()
def test_the_autoregressive_branch_sees_the_whole_text() -> None:
    model, text = language_model(), sequences(1, 4 * CHUNK).ids
    other = text.clone()
    other[0, 0] = (other[0, 0] + 1) % VOCABULARY
    last = [model.branch_log_probs(model.hidden(Batch(Sequences.full(ids))))[0][0, -1] for ids in (text, other)]
    assert not torch.allclose(*last, atol=1e-9)


def test_gradients_reach_the_source_of_a_chunk_started_in_the_previous_segment() -> None:
    model, text = language_model(), sequences(2, CHUNK + 3).ids
    with torch.no_grad():
        state = model.extend(text[:, : CHUNK + 1], model.start(batch_size=2).state).state
    hidden, _ = model.advance(text[:, CHUNK + 1 :], detach(state))
    model.branch_log_probs(hidden)[1].square().sum().backward()
    assert model.encoder.forward_layers[0].input_weight.grad.abs().sum() > 0  # type: ignore[union-attr,index]


# Pretrained features


@pytest.mark.parametrize("fine_tune", [False, True])
@pytest.mark.parametrize("write", [write_bert, write_small_gpt2])
def test_a_translator_with_pretrained_features_passes_every_check(tmp_path: Path, write: Any, fine_tune: bool) -> None:
    write(tmp_path)
    findings = check_model(
        lambda: translator(source_vocabulary=PIECES, features=str(tmp_path), fine_tune=fine_tune, width=8)
    )
    passed = {finding.check for finding in findings if finding.status == "passed"}
    assert {"predictions ignore the future", "no gradient reaches the future", "the source matters"} < passed


@pytest.mark.parametrize("write", [write_bert, write_small_gpt2])
def test_a_language_model_with_pretrained_features_is_causal(tmp_path: Path, write: Any) -> None:
    write(tmp_path)
    findings = check_model(lambda: language_model(vocabulary=PIECES, features=str(tmp_path), width=8))
    passed = {finding.check for finding in findings if finding.status == "passed"}
    assert {
        "predictions ignore the future",
        "chunked decoding equals the full pass",
        "saving and loading is bit exact",
    } < passed


@torch.no_grad()
def test_features_of_the_training_sources_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bert(tmp_path / "bert")
    model = translator(source_vocabulary=PIECES, features=str(tmp_path / "bert")).float()
    source = sequences(3, 5, PIECES)
    expected = model.log_prob(Batch(sequences(3, 4), source))
    model.fit_statistics([(row, row) for row in source.ids.tolist()])

    def refuse(*_: object) -> None:
        raise AssertionError("the pretrained model was run again")

    monkeypatch.setattr(BertEncoder, "forward", refuse)
    torch.testing.assert_close(model.log_prob(Batch(sequences(3, 4), source)), expected)


def test_a_run_with_frozen_features_does_not_store_them(tmp_path: Path) -> None:
    folder, pairs = tmp_path / "bert", tmp_path / "pairs.tsv"
    write_bert(folder)
    pairs.write_text("cat sat\tKatze sitzt\ndog sat\tHund sitzt\ncat\tKatze\ndog cat\tHund Katze\n" * 5)
    run = chainrule.train(
        "hybrid",
        data=str(pairs),
        source_tokenizer=f"huggingface:{folder}",
        steps=2,
        out=tmp_path / "run",
        settings={
            "model": {"width": 8, "layers": 1, "heads": 2, "features": str(folder)},
            "data": {"duplicates": "keep"},
            "train": {"validate_bleu": False},
        },
    )
    text = {"text": "Hund sitzt", "source": "dog sat"}
    again = chainrule.load(tmp_path / "run")
    assert again.score(**text).nats_per_token == run.score(**text).nats_per_token
    assert not [name for name in load_file(tmp_path / "run" / "model.safetensors") if name.startswith("pretrained")]
    write_bert(folder, seed=1)
    with pytest.raises(RunError, match="is not the one that this model was trained with"):
        chainrule.load(tmp_path / "run")


def test_another_pretrained_model_or_vocabulary_is_refused(tmp_path: Path) -> None:
    write_bert(tmp_path)
    model = translator(source_vocabulary=PIECES, features=str(tmp_path))
    settings = model.config.model_dump()
    assert settings["features_fingerprint"]
    Hybrid(HybridConfig.parse(settings))
    write_bert(tmp_path, seed=1)
    with pytest.raises(RunError, match="is not the one that this model was trained with"):
        Hybrid(HybridConfig.parse(settings))
    with pytest.raises(ConfigError, match=rf"9 tokens, and the pretrained model one of {PIECES}; .*use_tokenizer"):
        translator(features=str(tmp_path)).log_prob(pair())


def test_bad_settings_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="gamma 0 has no gradient, so gate 'learned' cannot learn"):
        translator(gate="learned", gamma=0)
    with pytest.raises(ConfigError, match="multiple of 2"):
        translator(width=7)


@pytest.mark.parametrize(
    ("family", "tokenizer"), [("hybrid", "chars"), ("hybrid", "words"), ("hybrid_language", "chars")]
)
def test_pretrained_features_work_with_any_tokenizer(tmp_path: Path, family: str, tokenizer: str) -> None:
    write_bert(tmp_path / "bert")
    data = tmp_path / ("text.txt" if family == "hybrid_language" else "pairs.tsv")
    data.write_text("cat sat\tKatze sitzt\ndog sat\tHund sitzt\ncat\tKatze\ndog cat\tHund Katze\n" * 5)
    run = chainrule.train(
        family,
        data=str(data),
        tokenizer=tokenizer,
        steps=2,
        out=tmp_path / "run",
        settings={
            "model": {"width": 8, "layers": 1, "heads": 2, "features": str(tmp_path / "bert")},
            "data": {"duplicates": "keep"} if family == "hybrid" else {},
        },
    )
    text = (
        {"text": "Hund sitzt", "source": "dog sat"} if family == "hybrid" else {"text": "dog sat\tHund sitzt, cat sat"}
    )
    again = chainrule.load(tmp_path / "run").score(**text).nats_per_token
    assert again == pytest.approx(run.score(**text).nats_per_token)
