"""What holds for every neural family and is not among the checks of `check_model`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from chainrule.families import FAMILIES, build
from chainrule.interface.base import AutoregressiveModel, NeuralModel, TabledReadout
from chainrule.interface.conditional import Conditional
from chainrule.testing.tiny import SOURCE_VOCABULARY, TINY, VOCABULARY, tiny_model, variants
from chainrule.types import Batch, Sequences

NEURAL = [(name, variant) for name, variant in variants() if issubclass(FAMILIES[name], NeuralModel)]
TABLED = [(name, variant) for name, variant in NEURAL if issubclass(FAMILIES[name], TabledReadout)]
AUTOREGRESSIVE = [(name, variant) for name, variant in variants() if issubclass(FAMILIES[name], AutoregressiveModel)]


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def random_batch(model: AutoregressiveModel, rows: int = 3) -> Batch:
    length = min(10, model.context or 10)
    generator = torch.Generator().manual_seed(2)
    target = Sequences.full(torch.randint(model.vocabulary, (rows, length), generator=generator))
    if not isinstance(model, Conditional):
        return Batch(target)
    width = min(6, model.source_context or 6)
    return Batch(target, Sequences.full(torch.randint(model.source_vocabulary, (rows, width), generator=generator)))


def neural(name: str, variant: str) -> NeuralModel:
    model = tiny_model(name, variant)
    assert isinstance(model, NeuralModel)
    return model


@pytest.mark.parametrize(("name", "variant"), TABLED)
@torch.no_grad()
def test_the_readout_is_its_table(name: str, variant: str) -> None:
    model = neural(name, variant)
    assert isinstance(model, TabledReadout)
    hidden = model.hidden(random_batch(model))
    weight, bias = model.readout_table()
    expected = hidden @ weight[: model.vocabulary].T
    torch.testing.assert_close(model.readout(hidden), expected if bias is None else expected + bias)


@pytest.mark.parametrize(("name", "variant"), AUTOREGRESSIVE)
@torch.no_grad()
def test_logits_at_a_mask_are_the_logits_there(name: str, variant: str) -> None:
    model = tiny_model(name, variant)
    assert isinstance(model, AutoregressiveModel)
    batch = random_batch(model)
    mask = torch.rand(batch.target.ids.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    expected = model.logits(batch)[mask]
    torch.testing.assert_close(model.logits_at(batch, mask), expected)
    chunks = list(model.logits_in_chunks(batch, mask, chunk_size=4))
    assert [len(chunk) for chunk in chunks[:-1]] == [4] * (len(chunks) - 1)
    torch.testing.assert_close(torch.cat(chunks), expected)
    assert model.logits_at(batch, torch.zeros_like(mask)).shape == (0, model.vocabulary)


@pytest.mark.parametrize("name", list(dict(NEURAL)))
def test_dropout_acts_in_training_only(name: str) -> None:
    sizes = {"vocabulary": VOCABULARY, **next(iter(TINY[name].values())), "dropout": 0.5}
    if issubclass(FAMILIES[name], Conditional):
        sizes.setdefault("source_vocabulary", SOURCE_VOCABULARY)
    torch.manual_seed(0)
    model = build(name, sizes).eval()
    assert isinstance(model, NeuralModel)
    for parameter in model.parameters():  # zeros would hide what is dropped before them
        torch.nn.init.normal_(parameter, std=0.5)
    batch = random_batch(model)
    assert torch.equal(model.logits(batch), model.logits(batch))
    model.train()
    assert not torch.equal(model.logits(batch), model.logits(batch))
    torch.testing.assert_close(model.logits(batch).softmax(-1).sum(-1), torch.ones(batch.target.ids.shape))


@pytest.mark.parametrize(("name", "variant"), NEURAL)
@torch.no_grad()
def test_an_untrained_model_predicts_almost_uniformly(name: str, variant: str) -> None:
    """The cross-entropy with the uniform distribution over the N tokens that are possible is about log N."""
    torch.manual_seed(0)
    sizes = (
        {"vocabulary": 65, "source_vocabulary": 65} if issubclass(FAMILIES[name], Conditional) else {"vocabulary": 65}
    )
    model = build(name, {**TINY[name][variant], **sizes}).eval()
    assert isinstance(model, NeuralModel)
    log_probs = model.logits(random_batch(model)).log_softmax(-1)
    possible = log_probs > -1000  # a pointer past the end of its passage has a logit of −10,000
    counts = possible.sum(-1)
    excess = -log_probs.where(possible, 0.0).sum(-1) / counts - counts.log()
    assert excess.mean().item() < 0.3
    assert counts.max() > 1


@pytest.mark.parametrize(("name", "variant"), NEURAL)
def test_gradients_through_extend_equal_those_through_logits(name: str, variant: str) -> None:
    model = neural(name, variant)
    batch = random_batch(model)
    step = model.start(batch.source, batch_size=3)
    logits = [step.logits]
    for chunk in batch.target.ids[:, :-1].split(4, dim=1):
        step = model.extend(chunk, step.state)
        logits.append(step.logits)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = torch.arange(1.0, model.vocabulary + 1)  # equal ones would not tell logits from logits plus a constant
    chunked = torch.autograd.grad((torch.cat(logits, dim=1).square() * weights).sum(), parameters, allow_unused=True)
    whole = torch.autograd.grad((model.logits(batch).square() * weights).sum(), parameters, allow_unused=True)
    for found, expected in zip(chunked, whole, strict=True):
        torch.testing.assert_close(found, expected)
