"""Training objectives: sampled objectives have the same optimum as the likelihood."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import chainrule
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError
from chainrule.interface.base import TabledReadout
from chainrule.models.gpt import GPT, GPTConfig
from chainrule.models.recurrent import Recurrent, RecurrentConfig
from chainrule.objectives import (
    AliasTable,
    Likelihood,
    Noise,
    NoiseContrastive,
    NoiseObjective,
    NoiseSample,
    Objective,
    SampledSoftmax,
)
from chainrule.testing import tiny_model
from chainrule.testing.checks import float64
from chainrule.training.learner import WholeSequences
from chainrule.types import Batch, Sequences

VOCABULARY = 12
WIDTH = 6
COUNTS = np.array([400, 200, 100, 60, 40, 30, 20, 10, 5, 3, 1, 0])

both = pytest.mark.parametrize("kind", [NoiseContrastive, SampledSoftmax])


def recurrent(**settings: Any) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(RecurrentConfig(vocabulary=VOCABULARY, width=WIDTH, layers=1, dropout=0.0, **settings))


def rows(count: int, *, width: int = WIDTH, different: bool = True) -> tuple[Tensor, Tensor]:
    """Hidden vectors and their target tokens."""
    random = torch.Generator().manual_seed(5)
    hidden = torch.randn(count if different else 1, width, generator=random, dtype=torch.float64)
    return hidden.float().expand(count, width), torch.randint(VOCABULARY, (count,), generator=random)


def gradient(objective: Objective, model: TabledReadout, hidden: Tensor, targets: Tensor) -> Tensor:
    model.zero_grad()
    objective(model, hidden, targets).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


# Sampling noise


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(lambda weights: sum(weights) > 1e-3))
def test_the_columns_of_an_alias_table_hold_exactly_the_distribution(weights: list[float]) -> None:
    probabilities = np.array(weights) / np.sum(weights)
    table = AliasTable(probabilities)
    mass = table.heights / len(weights)
    mass = mass.index_add(0, table.others, (1 - table.heights) / len(weights))
    np.testing.assert_allclose(mass.numpy(), probabilities, atol=1e-12)


def test_noise_is_sampled_with_the_right_frequencies() -> None:
    noise = Noise(COUNTS)
    draws = noise.table.draw(400_000, generator=torch.Generator().manual_seed(1))
    found = np.bincount(draws.numpy(), minlength=VOCABULARY) / 400_000
    deviation = np.sqrt(noise.probabilities / 400_000)
    assert (abs(found - noise.probabilities) < 4.5 * deviation).all()


def test_noise_is_the_add_one_smoothed_unigram_distribution() -> None:
    noise = Noise(Corpus.of_tokens([3, 3, 0, 1, 3], vocabulary=5).counts(5))
    np.testing.assert_allclose(noise.probabilities, np.array([2, 2, 1, 4, 1]) / 10)


def test_uniform_noise_draws_every_word_equally_often() -> None:
    np.testing.assert_allclose(Noise.uniform(5).probabilities, np.full(5, 0.2))


def test_repeated_noise_words_are_merged_with_their_counts() -> None:
    sample = Noise(COUNTS).draw(500)
    assert len(sample.ids) == len(set(sample.ids.tolist())) <= VOCABULARY
    assert int(sample.counts.sum()) == 500


# Logits of selected words


@pytest.mark.parametrize(
    "model",
    [
        recurrent(tied=True),
        recurrent(tied=False),
        GPT(GPTConfig(vocabulary=VOCABULARY, width=WIDTH, heads=1, layers=1)),
        GPT(GPTConfig(vocabulary=VOCABULARY, width=WIDTH, heads=1, layers=1, tied=True)),
        GPT(GPTConfig(vocabulary=VOCABULARY, width=WIDTH, heads=1, layers=1, layout="gpt2")),
    ],
)
def test_logits_of_selected_words_are_those_of_the_readout(model: TabledReadout) -> None:
    hidden, own = rows(9)
    shared = torch.tensor([7, 0, 11])
    bias = model.readout_table().bias
    if bias is not None:
        torch.nn.init.normal_(bias)
    logits = model.readout(hidden)
    scores = model.scores(hidden, own, shared)
    torch.testing.assert_close(scores.own, logits.gather(1, own[:, None])[:, 0])
    torch.testing.assert_close(scores.shared, logits[:, shared])


@both
def test_a_model_without_a_linear_readout_is_refused(kind: type[NoiseObjective]) -> None:
    model = tiny_model("self_regressive", vocabulary=VOCABULARY)
    with pytest.raises(ConfigError, match=r"SelfRegressive has no linear readout.*set train\.objective=likelihood"):
        kind(Noise(COUNTS), 10)(model, torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.int64))  # type: ignore[arg-type]


# The optimum is that of the likelihood


def test_the_gradient_of_nce_approaches_that_of_the_likelihood_as_noise_grows() -> None:
    with float64():
        model = recurrent()
        hidden, targets = rows(40, different=False)
        hidden = hidden.double()
        with torch.no_grad():  # where the normaliser is 1: elsewhere NCE also has a gradient towards that
            model.readout_bias += math.log(VOCABULARY) - model.readout(hidden)[0].logsumexp(-1)
        exact = gradient(Likelihood(), model, hidden, targets)
        torch.manual_seed(2)
        noise = Noise(COUNTS)
        distances = [
            float((gradient(NoiseContrastive(noise, count), model, hidden, targets) - exact).norm() / exact.norm())
            for count in (1, 100, 10_000, 1_000_000)
        ]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.3
    assert distances[-1] < 0.03


def test_a_sampled_softmax_over_all_words_is_the_softmax() -> None:
    with float64():
        model = recurrent()
        hidden, targets = rows(20)
        hidden = hidden.double()
        torch.manual_seed(0)
        sampled = SampledSoftmax(Noise(np.ones(VOCABULARY)), 1_000)
        assert len(sampled.noise.draw(1_000).ids) == VOCABULARY
        torch.testing.assert_close(sampled(model, hidden, targets), Likelihood()(model, hidden, targets))
        found, exact = (gradient(objective, model, hidden, targets) for objective in (sampled, Likelihood()))
        torch.testing.assert_close(found, exact)


def test_a_target_among_the_noise_words_is_counted_once() -> None:
    model = recurrent()
    hidden, targets = rows(VOCABULARY)
    objective = SampledSoftmax(Noise(COUNTS), 4)
    objective.sample = NoiseSample(torch.tensor([2, 5]), torch.tensor([1, 1]))
    logits = model.readout(hidden).detach() - objective.log_inclusion
    expected = sum(
        float(logits[row, sorted({2, 5, int(target)})].logsumexp(0) - logits[row, target])
        for row, target in enumerate(targets)
    )
    assert float(objective(model, hidden, targets).detach()) == pytest.approx(expected, rel=1e-5)


@both
def test_noise_objectives_learn_a_known_bigram_distribution(kind: type[NoiseObjective]) -> None:
    """With four noise words per step; NCE ends with a normaliser near 1."""
    random = torch.Generator().manual_seed(3)
    truth = torch.distributions.Dirichlet(torch.full((VOCABULARY,), 0.5)).sample((VOCABULARY,))
    first = torch.randint(VOCABULARY, (40_000,), generator=random)
    second = torch.multinomial(truth[first], 1, generator=random)[:, 0]
    counts = np.bincount(second.numpy(), minlength=VOCABULARY)
    torch.manual_seed(0)
    model = Recurrent(RecurrentConfig(vocabulary=VOCABULARY, width=VOCABULARY, tied=False))
    contexts = torch.nn.Parameter(torch.eye(VOCABULARY))
    objective = kind(Noise(counts), 4)
    model.init_output_bias(objective.noise.unigram_logits)
    optimizer = torch.optim.Adam([contexts, *model.parameters()], lr=0.02)
    for step in range(600):
        chosen = torch.randint(len(first), (256,), generator=random)
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / 600)
        optimizer.zero_grad()
        (objective(model, contexts[first[chosen]], second[chosen]) / 256).backward()
        optimizer.step()
    with torch.no_grad():
        found = model.readout(contexts).log_softmax(-1)
        divergence = (truth * (truth.clamp_min(1e-9).log() - found)).sum(-1)
        assert float(divergence.mean()) < 0.03
        if isinstance(objective, NoiseContrastive):
            assert abs(objective.metrics(model, contexts)["log_normaliser"]) < 0.1


def test_a_model_with_unigram_output_bias_has_a_normaliser_of_one() -> None:
    model = recurrent()
    objective = NoiseContrastive(Noise(COUNTS), 8)
    model.init_output_bias(objective.noise.unigram_logits)
    nothing = torch.zeros(1, WIDTH)
    found = model.readout(nothing).softmax(-1)[0].detach().numpy()
    np.testing.assert_allclose(found, objective.noise.probabilities, rtol=1e-5)
    assert objective.metrics(model, nothing)["log_normaliser"] == pytest.approx(0.0, abs=1e-5)


# In training


@both
def test_all_micro_batches_of_a_step_share_their_noise(kind: type[NoiseObjective]) -> None:
    gradients = []
    with float64():
        for pieces in (1, 3):
            model = recurrent()
            ids = torch.randint(VOCABULARY, (5, 8), generator=torch.Generator().manual_seed(4))
            batch = Batch(Sequences(ids, torch.tensor([8, 3, 5, 1, 8])))
            torch.manual_seed(7)
            WholeSequences(model, kind(Noise(COUNTS), 6), pieces=pieces).gradient(batch)
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[1], gradients[0])


SMALL = {
    "gpt": {"layers": 1, "width": 16, "heads": 2, "context": 32},
    "recurrent": {"layers": 1, "width": 16, "segment": 16, "dropout": 0.1},
}


def train(family: str, objective: str, text: Path, out: Path, **options: Any) -> chainrule.Run:
    settings = {
        "model": SMALL[family],
        "train": {
            "objective": objective,
            "noise_samples": 16,
            "batch_tokens": 128,
            "log_every": 5,
            "validate_every": 10,
        },
    }
    return chainrule.train(family, data=str(text), out=out, settings=settings, **options)


def metrics(run: chainrule.Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("objective", ["nce", "sampled"])
def test_every_objective_trains(family: str, objective: str, text_file: Path, tmp_path: Path) -> None:
    run = train(family, objective, text_file, tmp_path / "run", steps=200)
    values = [line["valid_nats_per_token"] for line in metrics(run) if "valid_nats_per_token" in line]
    assert values[-1] < 0.85 * values[0]


def test_the_normaliser_is_reported_and_the_loss_is_not_called_bits(text_file: Path, tmp_path: Path) -> None:
    contrastive = metrics(train("recurrent", "nce", text_file, tmp_path / "nce", steps=20))
    assert not any("bits_per_byte" in line for line in contrastive)
    reported = [line["log_normaliser"] for line in contrastive if "valid_nats_per_token" in line]
    assert len(reported) == 2
    assert all(abs(value) < 1 for value in reported)
    plain = metrics(train("recurrent", "likelihood", text_file, tmp_path / "likelihood", steps=20))
    assert any("bits_per_byte" in line for line in plain)
    assert not any("log_normaliser" in line for line in plain)


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("objective", ["nce", "sampled"])
def test_a_resumed_run_samples_the_noise_of_an_uninterrupted_one(
    family: str, objective: str, text_file: Path, tmp_path: Path
) -> None:
    constant = ["train.schedule=constant", "train.warmup=0"]  # a learning rate that does not depend on the budget
    whole = train(family, objective, text_file, tmp_path / "whole", steps=20, overrides=constant)
    for steps in (10, 20):
        halves = train(family, objective, text_file, tmp_path / "halves", steps=steps, resume=True, overrides=constant)
    first, second = (run.path / "model.safetensors" for run in (whole, halves))
    assert first.read_bytes() == second.read_bytes()


def test_label_smoothing_and_noise_objectives_exclude_each_other(text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"label_smoothing 0\.1 needs the whole vocabulary.*objective=likelihood"):
        train("gpt", "nce", text_file, tmp_path / "run", steps=1, overrides=["train.label_smoothing=0.1"])


def test_a_family_without_a_linear_readout_is_refused_before_anything_is_saved(text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.objective=likelihood"):
        chainrule.train(
            "self_regressive",
            data=str(text_file),
            out=tmp_path / "run",
            steps=1,
            settings={"train": {"objective": "nce"}, "model": {"width": 8}},
        )
    assert not (tmp_path / "run").exists()
