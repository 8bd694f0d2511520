"""Finite-memory language models; properties of every family are in tests/testing."""

from __future__ import annotations

import pytest
import torch

from chainrule.errors import ConfigError
from chainrule.models.finite_memory import FiniteMemory, FiniteMemoryConfig
from chainrule.types import Batch, Sequences, tensors

VOCABULARY = 7


def model_of(**settings: object) -> FiniteMemory:
    """A small model in float64 with random values for all parameters, also those initialised to zero."""
    torch.manual_seed(0)
    values = {"vocabulary": VOCABULARY, "memory": 3, "layers": 2, "width": 8}
    model = FiniteMemory(FiniteMemoryConfig.parse(values | settings)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def text(rows: int = 3, length: int = 12) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(2))


def after(model: FiniteMemory, ids: torch.Tensor) -> torch.Tensor:
    """The prediction after all of the ids, (B, V)."""
    return model.extend(ids, model.start(batch_size=len(ids)).state).logits[:, -1]


@pytest.mark.parametrize("memory", [1, 2, 5])
@torch.no_grad()
def test_a_prediction_depends_on_exactly_the_last_k_tokens(memory: int) -> None:
    model, ids = model_of(memory=memory), text()
    expected = after(model, ids)
    for back in range(1, ids.shape[1] + 1):
        changed = ids.clone()
        changed[:, -back] = (changed[:, -back] + 1) % VOCABULARY
        same = torch.equal(after(model, changed), expected)
        assert same == (back > memory), f"the token {back} places back"


@torch.no_grad()
def test_a_memory_of_one_token_is_a_markov_chain() -> None:
    model, ids = model_of(memory=1), text(rows=1, length=60)
    transitions = after(model, torch.arange(VOCABULARY)[:, None])  # (V, V)
    logits = model.logits(Batch(Sequences.full(ids)))[0]
    torch.testing.assert_close(logits[1:], transitions[ids[0, :-1]])


@torch.no_grad()
def test_predictions_are_position_independent_except_near_bos() -> None:
    model, phrase = model_of(memory=3), torch.tensor([[4, 2, 5]])
    later = after(model, torch.cat([text(rows=1), phrase], dim=1))
    torch.testing.assert_close(after(model, phrase), later)
    assert not torch.allclose(after(model, phrase[:, 1:]), after(model, torch.cat([text(1), phrase[:, 1:]], dim=1)))


@torch.no_grad()
def test_the_state_is_the_last_tokens_with_padding_before_bos() -> None:
    model, ids = model_of(memory=4), text()
    state = model.start(batch_size=3).state
    assert state.tolist() == [[model.padding, model.padding, model.bos]] * 3
    for chunk in ids.split(5, dim=1):
        state = model.extend(chunk, state).state
    (tensor,) = tensors(state)
    assert torch.equal(tensor, ids[:, -3:])


@torch.no_grad()
def test_single_row_decoding_equals_batched_decoding() -> None:
    model, ids = model_of(), text()
    whole = model.logits(Batch(Sequences.full(ids)))
    step = model.start()
    for t, token in enumerate(ids[0]):
        torch.testing.assert_close(step.logits[:, -1], whole[:1, t])
        step = model.step(token[None], step.state)


def test_gradients_do_not_depend_on_segment_boundaries() -> None:
    model, ids = model_of(), text()
    state = model.start(batch_size=3).state
    chunks = []
    for chunk in ids[:, :-1].split(4, dim=1):
        logits, state = model.extend(chunk, state)
        chunks.append(logits)
    whole = model.logits(Batch(Sequences.full(ids)))[:, 1:]
    parameters = list(model.parameters())
    found, expected = (
        torch.autograd.grad(logits.square().sum(), parameters) for logits in (torch.cat(chunks, dim=1), whole)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("tied", "tables"), [(True, [(VOCABULARY + 2, 8)]), (False, [(VOCABULARY, 8), (VOCABULARY + 2, 8)])]
)
def test_bos_and_padding_are_inputs_but_never_predicted(tied: bool, tables: list[tuple[int, int]]) -> None:
    model = model_of(tied=tied)
    assert (model.bos, model.padding) == (VOCABULARY, VOCABULARY + 1)
    assert after(model, text()).shape == (3, VOCABULARY)
    assert [table.shape for table in model.tables()] == tables


def test_it_learns_to_repeat_the_token_k_positions_back() -> None:
    torch.manual_seed(0)
    model = FiniteMemory(FiniteMemoryConfig(vocabulary=VOCABULARY, memory=4, layers=1, width=16))
    ids = text(rows=16, length=4).repeat(1, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        loss = -model.token_log_probs(Batch(Sequences.full(ids)))[:, 4:].mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_a_memory_of_zero_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="'memory' got 0"):
        model_of(memory=0)
