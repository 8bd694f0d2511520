"""The autoregressive transformer; properties of every family are in tests/testing."""

from __future__ import annotations

import torch

from chainrule.models.autoregressive_transformer import AutoregressiveTransformer, AutoregressiveTransformerConfig
from chainrule.nn.layers import rms_norm
from chainrule.types import Batch, Sequences, tensors
from tests.models.copying import exact_matches, learn

VOCABULARY, SOURCE_VOCABULARY, WIDTH = 7, 9, 8


def model_of(**settings: object) -> AutoregressiveTransformer:
    torch.manual_seed(0)
    sizes = {"vocabulary": VOCABULARY, "source_vocabulary": SOURCE_VOCABULARY, "width": WIDTH, "attention_width": 6}
    return AutoregressiveTransformer(AutoregressiveTransformerConfig.parse({**sizes, **settings})).double().eval()


def batch() -> Batch:
    random = torch.Generator().manual_seed(2)
    target = torch.randint(VOCABULARY, (3, 6), generator=random)
    source = torch.randint(SOURCE_VOCABULARY, (3, 5), generator=random)
    return Batch(Sequences.full(target), Sequences(source, torch.tensor([5, 3, 1])))


@torch.no_grad()
def test_the_model_computes_its_equations() -> None:
    """Token by token, following the docstring; here P and p are applied to the context, not to the source."""
    model, (target, source) = model_of(), batch()
    assert model.tokens.embedding is not None
    assert model.tokens.source is not None
    directions, sources = rms_norm(model.tokens.embedding), rms_norm(model.tokens.source)
    lstm = model.encoder.forward_layers[0]
    for row, length in enumerate(source.lengths.tolist()):
        embedded = sources[source.ids[row, :length]]
        vectors = lstm.naive(embedded[:, None], lstm.initial(1), lstm.recurrent_weight)[0][:, 0]  # (S, D)
        hidden = vectors[-1]
        for time, token in enumerate([VOCABULARY, *target.ids[row, :-1].tolist()]):
            e = directions[token]
            summed = model.score_hidden(hidden) + model.score_source(vectors) + model.score_token(e)
            weights = (summed.relu() @ model.score_weight).softmax(0)
            hidden = model.mlp(e * model.project_context(weights @ vectors)).relu()
            expected = hidden @ model.tokens.matrix.t() + model.tokens.bias
            torch.testing.assert_close(model.logits(batch())[row, time], expected)
            torch.testing.assert_close(model.attention_maps(batch())[row, time, :length], weights)


@torch.no_grad()
def test_attention_maps_are_distributions_over_unpadded_source_tokens() -> None:
    maps, (_, source) = model_of().attention_maps(batch()), batch()
    torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps[..., 0]))
    assert not maps.masked_select(~source.mask[:, None]).any()


@torch.no_grad()
def test_the_decoder_state_is_one_vector_besides_the_source() -> None:
    model = model_of()
    step = model.start(batch().source)
    sizes = set()
    for token in batch().target.ids.t():
        sizes.add(sum(tensor[0].numel() for tensor in tensors(step.state)))
        step = model.step(token, step.state)
    assert sizes == {WIDTH + 5 * (6 + WIDTH) + 1}  # h, source keys and values, source length


def test_it_learns_to_copy() -> None:
    torch.manual_seed(0)
    sizes = {"vocabulary": 6, "source_vocabulary": 6, "width": 32, "attention_width": 32, "dropout": 0.0}
    model = AutoregressiveTransformer(AutoregressiveTransformerConfig.parse(sizes))
    learn(model, reverse=False, steps=400)
    assert exact_matches(model, reverse=False) > 0.9
