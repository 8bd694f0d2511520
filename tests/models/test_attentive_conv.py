"""Attentive convolutions as language model and encoder; properties of every family are in tests/testing."""

from __future__ import annotations

import pytest
import torch

from chainrule.errors import ConfigError, DataError
from chainrule.models.attentive_conv import AttentiveBlock, AttentiveConv, AttentiveConvConfig
from chainrule.types import Batch, Sequences, merge, select, tensors

VOCABULARY = 7


def model_of(**settings: object) -> AttentiveConv:
    """A small model in float64 with random values for all parameters, also those initialised to zero."""
    torch.manual_seed(0)
    values = {"vocabulary": VOCABULARY, "layers": 2, "width": 8, "kernel": 3, "heads": 2, "context": 16}
    model = AttentiveConv(AttentiveConvConfig.parse(values | settings)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def text(rows: int = 3, length: int = 12) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(2))


def seen(model: AttentiveConv, ids: torch.Tensor) -> set[int]:
    """The distances of the tokens that the last prediction depends on."""
    expected = model.extend(ids, model.start(batch_size=len(ids)).state).logits[:, -1]
    found = set()
    for back in range(1, ids.shape[1] + 1):
        changed = ids.clone()
        changed[:, -back] = (changed[:, -back] + 1) % VOCABULARY
        if not torch.equal(model.extend(changed, model.start(batch_size=len(ids)).state).logits[:, -1], expected):
            found.add(back)
    return found


@torch.no_grad()
def test_convolutions_are_local_and_attention_is_global() -> None:
    model, ids = model_of(), text()
    assert seen(model, ids) == set(range(1, 13))
    for block in model.blocks:
        assert isinstance(block, AttentiveBlock)
        block.attentive.attention_out.weight.zero_()
    assert seen(model, ids) == set(range(1, 6))  # two layers of kernel 3


@torch.no_grad()
def test_a_block_without_convolutions_cannot_match_adjacent_tokens() -> None:
    """A single attention layer compares tokens; the convolution lets it compare phrases."""
    model = model_of(layers=1)
    (block,) = model.blocks
    assert isinstance(block, AttentiveBlock)
    features: list[torch.Tensor] = []
    block.attentive.query_key_value.register_forward_hook(lambda _, inputs, __: features.append(inputs[0]))
    same_token_after = torch.tensor([[1, 2, 5], [3, 4, 5]])
    for convolution in (True, False):
        if not convolution:
            block.local.out.weight.zero_()
        model.embed(Sequences.full(same_token_after))
        last = features.pop().view(2, 4, 8)[:, -1]
        assert torch.allclose(last[0], last[1]) == (not convolution)


@torch.no_grad()
def test_embeddings_are_the_hidden_vectors_that_predict_the_next_token() -> None:
    model, ids = model_of(), text()
    features = model.embed(Sequences.full(ids))
    assert features.shape == (3, 12, 8)
    found = model.readout(features)
    torch.testing.assert_close(found[:, :-1], model.logits(Batch(Sequences.full(ids)))[:, 1:])
    torch.testing.assert_close(found, model.extend(ids, model.start(batch_size=3).state).logits)


@torch.no_grad()
def test_embeddings_do_not_depend_on_padding() -> None:
    model, ids = model_of(), text()
    lengths = torch.tensor([12, 5, 9])
    spoilt = ids.masked_fill(~Sequences(ids, lengths).mask, 10**6)
    found = model.embed(Sequences(spoilt, lengths))
    torch.testing.assert_close(found[1:2, :5], model.embed(Sequences.full(ids[1:2, :5])))


@torch.no_grad()
def test_without_a_mask_every_vector_depends_on_the_whole_text_and_not_on_padding() -> None:
    model, ids = model_of(), text(rows=1)
    plain = model.embed_bidirectional(Sequences.full(ids))
    for position in range(ids.shape[1]):
        changed = ids.clone()
        changed[0, position] = (ids[0, position] + 1) % model.vocabulary
        assert (model.embed_bidirectional(Sequences.full(changed)) != plain).any(-1).all()
    padded = Sequences(torch.cat([ids, torch.full((1, 3), 10**6)], 1), torch.tensor([ids.shape[1]]))
    torch.testing.assert_close(model.embed_bidirectional(padded)[:, : ids.shape[1]], plain)


@torch.no_grad()
def test_without_attention_and_mask_a_vector_depends_on_the_neighbours_within_the_kernel_on_both_sides() -> None:
    model, ids = model_of(layers=1), text(rows=1)
    for block in model.blocks:
        block.attentive.attention_out.weight.zero_()
    plain = model.embed_bidirectional(Sequences.full(ids))
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % model.vocabulary
    moved = (model.embed_bidirectional(Sequences.full(changed)) != plain).any(-1)[0]
    assert moved.nonzero()[:, 0].tolist() == [4, 5, 6]


def test_embeddings_have_gradients_for_all_parameters_but_the_readout() -> None:
    model = model_of()
    model.embed(Sequences.full(text())).square().mul(torch.arange(8)).sum().backward()
    without = {name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()}
    assert without == {"tokens.matrix", "tokens.bias"}


@torch.no_grad()
def test_rows_at_different_positions_extend_together() -> None:
    model, ids = model_of(), text()
    states = [model.extend(ids[:1, :n], model.start().state).state for n in (3, 8, 1)]
    more = text(length=4)
    merged = select(merge(states), torch.tensor([2, 0, 1]))
    for t in range(4):
        together = model.step(more[:, t], merged)
        merged = together.state
    for row, read in enumerate((1, 3, 8)):
        alone = torch.cat([ids[:1, :read], more[row : row + 1]], dim=1)
        expected = model.extend(alone, model.start().state).logits[0, -1]
        torch.testing.assert_close(together.logits[row, 0], expected)


@torch.no_grad()
def test_the_state_has_the_size_of_the_context_from_the_start() -> None:
    model = model_of()
    step = model.start()
    sizes = set()
    for token in text(rows=1)[0]:
        sizes.add(sum(tensor.numel() for tensor in tensors(step.state)))
        step = model.step(token[None], step.state)
    assert sizes == {2 * 2 * 8 + 2 * 2 * 16 * 8 + 1}  # rings, keys and values, the position


@torch.no_grad()
def test_a_sequence_longer_than_the_context_is_refused() -> None:
    model = model_of()
    refused = pytest.raises(DataError, match="17 tokens does not fit into the context of 16")
    with refused:
        model.logits(Batch(Sequences.full(text(1, 17))))
    with refused:
        model.embed(Sequences.full(text(1, 16)))  # plus BOS
    for rows in (1, 2):
        full = model.extend(text(rows, 15), model.start(batch_size=rows).state).state
        with refused:
            model.step(torch.zeros(rows, dtype=torch.int64), full)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 130, "heads": 4}, "width 130 is not divisible by heads 4; try 128 or 132"),
        ({"width": 12, "heads": 4}, "need heads of an even width (got 3)"),
        ({"kernel": 1}, "'kernel' got 1"),
        ({"kernels": 3}, "did you mean 'kernel'?"),
    ],
)
def test_inconsistent_settings_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        model_of(**settings)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
