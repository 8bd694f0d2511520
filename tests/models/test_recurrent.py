"""Recurrent language models; properties of every family are in tests/testing."""

from __future__ import annotations

import pytest
import torch

from chainrule.errors import ConfigError
from chainrule.interface.base import Recomputed
from chainrule.models.recurrent import Recurrent, RecurrentConfig
from chainrule.nn.recurrent import CELLS
from chainrule.types import Batch, Sequences, detach, merge, select, tensors

VOCABULARY = 7

every_cell = pytest.mark.parametrize("cell", CELLS)


def model_of(cell: str = "lstm", **settings: object) -> Recurrent:
    torch.manual_seed(0)
    return (
        Recurrent(RecurrentConfig.parse({"vocabulary": VOCABULARY, "cell": cell, "width": 8, **settings}))
        .double()
        .eval()
    )


def text(rows: int = 3, length: int = 12) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(2))


@every_cell
@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 1, 6], [0, 3, 9]])
@torch.no_grad()
def test_extending_in_chunks_equals_logits_on_the_whole(cell: str, sizes: list[int]) -> None:
    model, ids = model_of(cell), text()
    step = model.start(batch_size=3)
    logits = [step.logits]
    for chunk in ids.split(sizes, dim=1):
        step = model.extend(chunk, step.state)
        logits.append(step.logits)
    found = torch.cat(logits, dim=1)
    torch.testing.assert_close(found[:, :-1], model.logits(Batch(Sequences.full(ids))))
    slow = Recomputed(model)
    torch.testing.assert_close(found[:, 1:], slow.extend(ids, slow.start(batch_size=3).state).logits)


@every_cell
@torch.no_grad()
def test_rows_of_a_state_can_be_selected_and_merged(cell: str) -> None:
    model, ids = model_of(cell), text()
    state = model.extend(ids, model.start(batch_size=3).state).state
    rows = torch.tensor([2, 0, 2])
    following = torch.tensor([[1], [4], [6]])
    chosen = model.extend(following, select(state, rows)).logits
    merged = merge([select(state, row[None]) for row in rows])
    torch.testing.assert_close(model.extend(following, merged).logits, chosen)
    for index, row in enumerate(rows.tolist()):
        single = model.extend(ids[row : row + 1], model.start().state).state
        torch.testing.assert_close(model.extend(following[index : index + 1], single).logits[0], chosen[index])


@every_cell
def test_gradients_flow_through_a_carried_state_until_it_is_detached(cell: str) -> None:
    model, ids = model_of(cell), text()
    first, second = ids.split(6, dim=1)

    def gradient_at_the_first_token(*, detached: bool) -> torch.Tensor:
        before = tuple(tuple(part.requires_grad_() for part in layer) for layer in model.initial(None, 3))
        state = model.extend(first, before).state
        loss = model.extend(second, detach(state) if detached else state).logits.square().sum()
        gradients = torch.autograd.grad(loss, list(tensors(before)), allow_unused=True)
        return torch.stack([torch.zeros(3, 8) if gradient is None else gradient for gradient in gradients])

    assert gradient_at_the_first_token(detached=False).abs().max() > 0
    assert gradient_at_the_first_token(detached=True).abs().max() == 0


def test_the_tied_readout_is_the_embedding_table_without_bos() -> None:
    model = model_of(tied=True)
    model.readout(torch.ones(1, 8, dtype=torch.float64)).sum().backward()
    gradient = model.embedding.weight.grad
    assert gradient is not None
    assert torch.equal(gradient[:VOCABULARY], torch.ones(VOCABULARY, 8, dtype=torch.float64))
    assert torch.equal(gradient[VOCABULARY], torch.zeros(8, dtype=torch.float64))
    assert model.logits(Batch(Sequences.full(text()))).shape == (3, 12, VOCABULARY)


def test_the_untied_readout_has_its_own_table() -> None:
    tied, untied = model_of(tied=True), model_of(tied=False)
    assert [table.shape[0] for table in tied.tables()] == [VOCABULARY + 1]
    assert [table.shape[0] for table in untied.tables()] == [VOCABULARY + 1, VOCABULARY]
    untied.readout(torch.ones(1, 8, dtype=torch.float64)).sum().backward()
    assert untied.embedding.weight.grad is None


def test_hidden_matrices_are_the_only_matrices_outside_the_tables() -> None:
    model = model_of("lstm_peephole", layers=1)
    tables = {id(table) for table in model.tables()}
    matrices = {name for name, value in model.named_parameters() if value.ndim == 2 and id(value) not in tables}
    assert matrices == {"layers.0.input_weight", "layers.0.recurrent_weight"}


def test_dropout_is_active_in_training_only() -> None:
    model, batch = model_of(dropout=0.5, recurrent_dropout=0.5), Batch(Sequences.full(text()))
    assert torch.equal(model.logits(batch), model.logits(batch))
    model.train()
    assert not torch.equal(model.logits(batch), model.logits(batch))


def test_one_dropout_mask_covers_the_whole_segment() -> None:
    model = model_of(dropout=0.5, width=64).train()
    dropped = model.hidden(Batch(Sequences.full(text()))) == 0  # (B, T, D); an LSTM's output is never exactly 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert 0.3 < dropped.double().mean() < 0.7


def test_padding_is_ignored() -> None:
    model, ids = model_of(), text()
    lengths = torch.tensor([12, 5, 1])
    noisy = ids.masked_fill(~Sequences(ids, lengths).mask, 10**6)
    clean, dirty = (model.log_prob(Batch(Sequences(values, lengths))) for values in (ids, noisy))
    torch.testing.assert_close(dirty, clean)


@every_cell
def test_every_cell_learns_to_remember_a_token(cell: str) -> None:
    """A row repeats its first token after a gap; without memory the loss cannot fall below log 7."""
    model = model_of(cell, layers=1, width=24, dropout=0.0).float().train()
    first = torch.arange(VOCABULARY)[:, None]
    ids = torch.cat([first, torch.zeros(VOCABULARY, 4, dtype=torch.int64), first], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        loss = -model.token_log_probs(Batch(Sequences.full(ids)))[:, -1].mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_the_segment_of_truncated_back_propagation_is_a_setting() -> None:
    assert model_of(segment=35).segment == 35


def test_an_unknown_cell_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"'cell'.*'lstn'"):
        model_of("lstn")
