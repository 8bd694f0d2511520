"""Training of the models of single texts that define their own objective."""

import numpy as np
import pytest
import torch

from chainrule.data.batching import Windows
from chainrule.data.corpus import Corpus
from chainrule.evaluation.objective import objective_score
from chainrule.families import build
from chainrule.interface.base import OwnObjective
from chainrule.testing.checks import resume_exactly, short_run
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeTargets
from chainrule.training.loop import Trainer
from chainrule.types import Batch, Sequences

VOCABULARY = 9
FORMS = {
    "bert": {"layers": 1, "width": 8, "heads": 2, "context": 8, "mask_rate": 0.3},
    "elmo": {"layers": 1, "width": 6},
}
UNUSED = {"elmo": {"mix.weights", "mix.scale"}, "bert": {"body.token_types"}}  # not or only partly used by the loss


def model_of(family: str) -> OwnObjective:
    torch.manual_seed(0)
    model = build(family, {"vocabulary": VOCABULARY, **FORMS[family]})
    assert isinstance(model, OwnObjective)
    return model


def corpus() -> Corpus:
    return Corpus.of_tokens(np.random.default_rng(0).integers(VOCABULARY, size=300), VOCABULARY)


def a_batch() -> Batch:
    ids = torch.randint(VOCABULARY, (5, 8), generator=torch.Generator().manual_seed(4))
    return Batch(Sequences(ids, torch.tensor([8, 3, 5, 1, 8])))


@pytest.mark.parametrize("family", FORMS)
def test_the_gradient_does_not_depend_on_the_number_of_micro_batches(family: str) -> None:
    gradients = []
    for pieces in (1, 3):
        model = model_of(family).double().eval()
        torch.manual_seed(5)
        WholeTargets(model, smoothing=0.1, pieces=pieces).gradient(a_batch())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.allclose(*gradients)


@pytest.mark.parametrize("family", FORMS)
def test_every_parameter_used_by_the_loss_has_a_gradient(family: str) -> None:
    model = model_of(family)
    with torch.no_grad():
        for parameter in model.parameters():  # residual branches are initialised to zero
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    WholeTargets(model).gradient(a_batch())
    idle = {name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert idle <= UNUSED[family]


@pytest.mark.parametrize("family", FORMS)
def test_a_resumed_run_is_the_uninterrupted_one(family: str) -> None:
    def start(folder: RunFolder, steps: int) -> Trainer:
        model = model_of(family)
        return short_run(model, WholeTargets(model), Windows(corpus(), rows=3, length=8, seed=0), folder, steps)

    resume_exactly(start)


@pytest.mark.parametrize("family", FORMS)
def test_validation_is_deterministic_and_does_not_touch_the_global_random_state(family: str) -> None:
    model = model_of(family).eval()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = objective_score(model, corpus(), length=8)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    assert objective_score(model, corpus(), length=8) == first
    assert first.tokens == 300
    assert objective_score(model, corpus(), length=8, tokens=100).tokens == 100


@pytest.mark.parametrize("family", FORMS)
def test_it_learns_to_predict_tokens_from_their_context(family: str) -> None:
    model = model_of(family)
    ids = torch.arange(VOCABULARY)[:, None].expand(-1, 8)  # each text repeats one token
    batch = Batch(Sequences.full(ids))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    learner = WholeTargets(model)
    losses = []
    for _ in range(120):
        loss = learner.gradient(batch)
        losses.append(loss.total / loss.tokens)
        optimizer.step()
        optimizer.zero_grad()
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
