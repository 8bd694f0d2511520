"""Self-regressive language models; properties of every family are in tests/testing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.models.self_regressive import SelfRegressive, SelfRegressiveConfig
from chainrule.types import Batch, Sequences, tensors

VOCABULARY = 7
WIDTH = 8


def model_of(**settings: object) -> SelfRegressive:
    """With perturbed parameters, because W and the gate are initialised to zero."""
    torch.manual_seed(0)
    config = SelfRegressiveConfig.parse({"vocabulary": VOCABULARY, "width": WIDTH, **settings})
    model = SelfRegressive(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.4)
    return model


def text(rows: int = 3, length: int = 10) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_the_model_computes_its_equations() -> None:
    """Token by token, following the docstring."""
    model, ids = model_of(), text(rows=1)
    table = model.embedding.weight
    directions = F.normalize(table, dim=-1) * WIDTH**0.5
    w, u = model.joined.weight.t().split(WIDTH)
    first, second = model.first.initial(1), model.second.initial(1)
    predictions = []
    for token in [VOCABULARY, *ids[0, :-1].tolist()]:  # BOS, then all but the last
        previous = first[0]
        first = model.first.cell(directions[token][None], first, model.first.recurrent_weight)
        z = previous @ w + first[0] @ u
        p1 = (z @ table[:-1].t() + model.first_bias).softmax(-1)
        expected = p1 @ directions[:-1]
        inputs = torch.cat([expected, first[0]], dim=-1)
        second = model.second.cell(inputs, second, model.second.recurrent_weight)
        p2 = (second[0] @ table[:-1].t() + model.second_bias).softmax(-1)
        gamma = torch.sigmoid(torch.cat([first[0], second[0]], dim=-1) @ model.gate_weight + model.gate_bias)
        predictions.append(gamma * p1 + (1 - gamma) * p2)
    found = model.logits(Batch(Sequences.full(ids))).exp()
    torch.testing.assert_close(found[0], torch.cat(predictions), rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("candidates", [1, 3, VOCABULARY])
def test_the_expectation_is_over_the_most_likely_tokens(candidates: int) -> None:
    model = model_of(candidates=candidates)
    first = torch.randn(4, 2, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logits = first @ model.embedding.weight[:-1].t() + model.first_bias
    least = logits.sort(dim=-1, descending=True).values[..., candidates - 1 : candidates]
    kept = logits.masked_fill(logits < least, -torch.inf).softmax(-1)
    directions = F.normalize(model.embedding.weight[:-1], dim=-1) * WIDTH**0.5
    torch.testing.assert_close(model.expected(first), kept @ directions, rtol=1e-5, atol=1e-6)


def test_large_vocabularies_take_the_expectation_over_a_few_candidates() -> None:
    sizes = [SelfRegressiveConfig(vocabulary=size).expected_over for size in (5, 1000, 1001, 33_000)]
    assert sizes == [5, 1000, 32, 32]
    assert SelfRegressiveConfig(vocabulary=33_000, candidates=33_000).expected_over == 33_000


@torch.no_grad()
def test_the_mixture_lies_between_the_predictions_of_the_two_stages() -> None:
    model, batch = model_of(), Batch(Sequences.full(text()))
    hidden = model.hidden(batch)
    mixed = model.readout(hidden).exp()
    torch.testing.assert_close(mixed.sum(-1), torch.ones(3, 10, dtype=torch.float64))
    stages = []
    for gate in (40.0, -40.0):
        hidden[..., -1] = gate
        stages.append(model.readout(hidden).exp())
    assert bool((mixed <= torch.maximum(*stages) + 1e-12).all())
    assert bool((mixed >= torch.minimum(*stages) - 1e-12).all())
    assert not torch.allclose(*stages)


@torch.no_grad()
def test_the_state_does_not_grow_with_the_text() -> None:
    model = model_of()
    short, long = (model.extend(text(length=length), model.start(batch_size=3).state).state for length in (2, 200))
    sizes = [[tuple(tensor.shape) for tensor in tensors(state)] for state in (short, long)]
    assert sizes[0] == sizes[1] == [(3, WIDTH)] * 4


def test_both_stages_get_gradients_from_the_mixture() -> None:
    model = model_of()
    (-model.log_prob(Batch(Sequences.full(text())))).sum().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters())
