"""The recurrent encoder–decoder; properties of every family are in tests/testing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chainrule.errors import ConfigError, DataError, DecodingError
from chainrule.models.seq2seq import Seq2Seq, Seq2SeqConfig
from chainrule.types import Batch, Sequences, tensors
from tests.models.copying import exact_matches, learn, pairs

VOCABULARY, SOURCE_VOCABULARY = 7, 9


def model_of(**settings: Any) -> Seq2Seq:
    torch.manual_seed(0)
    values = {"vocabulary": VOCABULARY, "source_vocabulary": SOURCE_VOCABULARY, "width": 8, **settings}
    model = Seq2Seq(Seq2SeqConfig.parse(values)).double().eval()
    for table in model.tables():
        torch.nn.init.normal_(table)
    return model


def sources(lengths: list[int]) -> Sequences:
    random = torch.Generator().manual_seed(2)
    return Sequences(
        torch.randint(SOURCE_VOCABULARY, (len(lengths), max(lengths)), generator=random), torch.tensor(lengths)
    )


def targets(rows: int, length: int = 5) -> Sequences:
    return Sequences.full(torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("attention", ["dot", "bahdanau", "none"])
@torch.no_grad()
def test_source_padding_is_ignored(attention: str) -> None:
    model, target, source = model_of(attention=attention, bidirectional=True), targets(2), sources([5, 2])
    noisy = source.ids.clone()
    noisy[1, 2:4], noisy[1, 4:] = -100, 10**6
    clean, dirty = (model.log_prob(Batch(target, Sequences(ids, source.lengths))) for ids in (source.ids, noisy))
    torch.testing.assert_close(clean, dirty, rtol=0, atol=0)


@torch.no_grad()
def test_without_attention_the_decoder_state_does_not_grow_with_the_source() -> None:
    model = model_of(attention="none")
    short, long = (sum(part.numel() for part in tensors(model.start(sources([n])).state)) for n in (2, 20))
    assert short == long
    with pytest.raises(DecodingError, match="a model without attention has no attention maps"):
        model.attention_maps(Batch(targets(1), sources([3])))


@torch.no_grad()
def test_the_decoder_starts_from_the_final_encoder_state() -> None:
    model, source = model_of(attention="none", layers=2), sources([4])
    embedded = model.tokens.embed_source(source.ids.t())
    for layer, initial in zip(model.encoder.forward_layers, model.initial(source, 1).layers, strict=True):
        embedded, final = layer(embedded, layer.initial(1))
        for part, expected in zip(initial, final, strict=True):
            torch.testing.assert_close(part, expected)


@torch.no_grad()
def test_in_the_order_of_bahdanau_the_previous_state_attends_and_the_context_is_an_input() -> None:
    model, target, source = model_of(layers=1, attention="bahdanau"), targets(1, 3), sources([4])
    state = model.initial(source, 1)
    vectors, before = state.source.vectors[0], state.layers[0]
    [layer] = model.layers
    expected, weights = [], []
    for token in [VOCABULARY, *target.ids[0, :-1].tolist()]:
        alpha = torch.softmax(vectors @ before[0][0], 0)
        inputs = torch.cat([model.tokens.embed(torch.tensor([[token]]))[0, 0], alpha @ vectors])
        before = layer.cell(inputs[None], before, layer.recurrent_weight)
        expected.append(before[0])
        weights.append(alpha)
    batch = Batch(target, source)
    torch.testing.assert_close(model.hidden(batch)[0], torch.cat(expected))
    torch.testing.assert_close(model.attention_maps(batch)[0], torch.stack(weights))


@torch.no_grad()
def test_attention_is_that_of_luong() -> None:
    model, target, source = model_of(layers=1), targets(1, 1), sources([3])
    state = model.initial(source, 1)
    vectors = state.source.vectors[0]  # (S, D)
    (hidden,) = model._decode(torch.tensor([[model.bos]]), state)[0][0]
    context = torch.softmax(vectors @ hidden, 0) @ vectors
    combined = torch.tanh(model.combine(torch.cat([context, hidden])))
    torch.testing.assert_close(model.logits(Batch(target, source))[0, 0], model.readout(combined[None])[0])
    torch.testing.assert_close(model.attention_maps(Batch(target, source))[0, 0], torch.softmax(vectors @ hidden, 0))


@torch.no_grad()
def test_attention_maps_are_distributions_over_unpadded_source_tokens() -> None:
    maps = model_of().attention_maps(Batch(targets(2, 6), sources([5, 2])))
    assert maps.shape == (2, 6, 5)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 6, dtype=torch.float64))
    assert not maps[1, :, 2:].any()


def test_the_encoder_is_bidirectional_by_default_only_with_attention() -> None:
    assert len(model_of().encoder.backward_layers) == 2
    assert len(model_of(bidirectional=False).encoder.backward_layers) == 0
    assert len(model_of(attention="none").encoder.backward_layers) == 0
    assert len(model_of(attention="none", bidirectional=True).encoder.backward_layers) == 2


def test_bad_settings_and_missing_sources_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"width 7 is odd.*try 8"):
        model_of(width=7)
    assert model_of(width=7, bidirectional=False).config.width == 7
    with pytest.raises(ConfigError, match="got 9 source and 7 target tokens"):
        model_of(shared_embeddings=True)
    with pytest.raises(DataError, match="needs a source, but none was given"):
        model_of().start()


def test_it_learns_to_reverse_a_sequence() -> None:
    model = small_learner()
    learn(model, reverse=True, steps=150)
    assert exact_matches(model, reverse=True) > 0.9


def test_a_model_that_copies_attends_to_the_copied_token() -> None:
    model = small_learner()
    learn(model, reverse=False, steps=150)
    assert exact_matches(model, reverse=False) > 0.9
    batch = pairs(model, 64, reverse=False, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        attended = model.attention_maps(batch).argmax(-1)  # (B, T)
    positions = torch.arange(attended.shape[1]).expand_as(attended)
    assert (attended == positions)[batch.target.mask].float().mean() > 0.9


def test_without_attention_it_learns_to_copy_more_slowly() -> None:
    attentive, plain = small_learner(), small_learner(attention="none")
    for model in (attentive, plain):
        learn(model, reverse=False, steps=100)
    assert exact_matches(plain, reverse=False) < exact_matches(attentive, reverse=False)


def small_learner(**settings: Any) -> Seq2Seq:
    torch.manual_seed(0)
    sizes = {"vocabulary": 12, "source_vocabulary": 12, "layers": 1, "width": 64, "dropout": 0.0}
    return Seq2Seq(Seq2SeqConfig.parse({**sizes, **settings}))
