"""Causal convolutional language models; properties of every family are in tests/testing."""

from __future__ import annotations

import pytest
import torch

from chainrule.errors import ConfigError
from chainrule.models.causal_conv import CausalConv, CausalConvConfig
from chainrule.types import Batch, Sequences, detach, merge, select, tensors

VOCABULARY = 7


def model_of(**settings: object) -> CausalConv:
    """A small model in float64 with random values for all parameters, also those initialised to zero."""
    torch.manual_seed(0)
    values = {"vocabulary": VOCABULARY, "layers": 3, "width": 8, "kernel": 2, "cycle": 3}
    model = CausalConv(CausalConvConfig.parse(values | settings)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def text(rows: int = 3, length: int = 30) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("shape", "field"),
    [
        ({"layers": 1, "kernel": 2}, 2),
        ({"layers": 3, "kernel": 2}, 8),
        ({"layers": 3, "kernel": 3}, 15),
        ({"layers": 4, "kernel": 3, "cycle": 2}, 13),
    ],
)
@torch.no_grad()
def test_a_prediction_depends_on_exactly_the_receptive_field(shape: dict[str, int], field: int) -> None:
    model, ids = model_of(**shape), text()
    assert model.receptive_field == field
    expected = model.extend(ids, model.start(batch_size=3).state).logits[:, -1]
    reached = set()
    for back in range(1, ids.shape[1] + 1):
        changed = ids.clone()
        changed[:, -back] = (changed[:, -back] + 1) % VOCABULARY
        if not torch.equal(model.extend(changed, model.start(batch_size=3).state).logits[:, -1], expected):
            reached.add(back)
    assert reached == set(range(1, field + 1))


def test_dilations_double_and_restart() -> None:
    assert CausalConvConfig(vocabulary=5, layers=7, cycle=3).dilations == [1, 2, 4, 1, 2, 4, 1]


def test_the_state_does_not_grow_with_the_text() -> None:
    model = model_of()
    assert model.context is None
    sizes = set()
    with torch.no_grad():
        step = model.start()
        for _ in range(50):
            step = model.extend(text(rows=1), step.state)
            sizes.add(sum(tensor.numel() for tensor in tensors(step.state)))
    assert sizes == {(1 + 2 + 4) * 8 + 1}  # a ring of each dilation, and the position


@torch.no_grad()
def test_single_steps_after_a_long_text_equal_the_full_pass() -> None:
    model, ids = model_of(), text(rows=2, length=40)
    whole = model.logits(Batch(Sequences.full(ids)))
    for rows in (2, 1):  # batched by torch, a single row by NumPy
        step = model.extend(ids[:rows, :30], model.start(batch_size=rows).state)
        for t in range(30, 40):
            torch.testing.assert_close(step.logits[:, -1], whole[:rows, t])
            step = model.step(ids[:rows, t], step.state)


@torch.no_grad()
def test_rows_at_different_ring_positions_extend_together() -> None:
    model, ids = model_of(), text()
    states = [model.extend(ids[:1, :n], model.start().state).state for n in (3, 10, 4)]
    more = text(length=6)
    merged = select(merge(states), torch.tensor([2, 0, 1]))
    for t in range(6):
        together = model.step(more[:, t], merged)
        merged = together.state
    for row, read in enumerate((4, 3, 10)):
        alone = torch.cat([ids[:1, :read], more[row : row + 1]], dim=1)
        expected = model.extend(alone, model.start().state).logits[0, -1]
        torch.testing.assert_close(together.logits[row, 0], expected)


def test_gradients_through_extend_are_those_through_logits_until_the_state_is_detached() -> None:
    model, ids = model_of(), text()
    parameters = list(model.parameters())

    def gradients(*, cut: bool) -> tuple[torch.Tensor, ...]:
        step = model.start(batch_size=3)
        logits = [step.logits]
        for chunk in ids[:, :-1].split([9, 1, 19], dim=1):
            step = model.extend(chunk, detach(step.state) if cut else step.state)
            logits.append(step.logits)
        return torch.autograd.grad(torch.cat(logits, dim=1).square().sum(), parameters)

    whole = torch.autograd.grad(model.logits(Batch(Sequences.full(ids))).square().sum(), parameters)
    torch.testing.assert_close(gradients(cut=False), whole)
    assert not torch.allclose(gradients(cut=True)[1], whole[1])  # of the embeddings


def test_all_parameters_but_the_tables_and_bias_are_hidden_matrices() -> None:
    model = model_of(layers=1)
    tables = {id(table) for table in model.tables()}
    matrices = {name for name, value in model.named_parameters() if value.ndim == 2 and id(value) not in tables}
    assert matrices == {"layers.0.value.weight", "layers.0.gate.weight", "layers.0.out.weight"}
    assert {name for name, value in model.named_parameters() if value.ndim != 2} == {"tokens.bias"}


def test_it_learns_to_remember_a_token_within_its_receptive_field() -> None:
    """A row repeats its first token after a gap; without memory the loss cannot fall below log 7."""
    torch.manual_seed(0)
    model = CausalConv(CausalConvConfig(vocabulary=VOCABULARY, layers=3, width=16, kernel=2, cycle=3))
    first = torch.arange(VOCABULARY)[:, None]
    ids = torch.cat([first, torch.zeros(VOCABULARY, 5, dtype=torch.int64), first], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        loss = -model.token_log_probs(Batch(Sequences.full(ids)))[:, -1].mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_a_kernel_of_one_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="'kernel' got 1"):
        model_of(kernel=1)
