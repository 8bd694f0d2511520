"""The encoder–decoder Transformer; properties of every family are in tests/testing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chainrule.errors import ConfigError, DataError
from chainrule.models.transformer import INITIAL_CAPACITY, Transformer, TransformerConfig
from chainrule.types import Batch, Sequences, merge, select
from tests.models.copying import exact_matches, learn, pairs

VOCABULARY, SOURCE_VOCABULARY = 11, 13
POSITIONS = ("rotary", "added", "concatenated")

every_position = pytest.mark.parametrize("positions", POSITIONS)


def tiny(**settings: Any) -> Transformer:
    """A small model in float64 with random values for all parameters, also those initialised to zero."""
    torch.manual_seed(0)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "width": 16, "heads": 2, "context": 64}
    values = {"vocabulary": VOCABULARY, "source_vocabulary": SOURCE_VOCABULARY, **sizes, **settings}
    model = Transformer(TransformerConfig.parse(values)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def tokens(rows: int, length: int, vocabulary: int = VOCABULARY, seed: int = 1) -> torch.Tensor:
    return torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def sources(lengths: list[int]) -> Sequences:
    return Sequences(tokens(len(lengths), max(lengths), SOURCE_VOCABULARY, seed=2), torch.tensor(lengths))


@every_position
@pytest.mark.parametrize("chunks", [[1] * 40, [40], [3, 20, 1, 16]])
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass_also_when_the_cache_grows(positions: str, chunks: list[int]) -> None:
    model, ids, source = tiny(positions=positions), tokens(3, 41), sources([5, 1, 4])
    assert INITIAL_CAPACITY < 40
    step = model.start(source)
    predictions = [step.logits]
    for chunk in ids[:, :40].split(chunks, dim=1):
        step = model.extend(chunk, step.state)
        predictions.append(step.logits)
    torch.testing.assert_close(torch.cat(predictions, 1), model.logits(Batch(Sequences.full(ids), source)))


@every_position
@torch.no_grad()
def test_rows_with_different_positions_and_source_lengths_extend_together(positions: str) -> None:
    model, following = tiny(positions=positions), tokens(3, 2, seed=5)
    prompts, lengths = [tokens(1, 30), tokens(1, 1), tokens(1, 17)], [2, 9, 5]
    alone, states = [], []
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        state = model.extend(prompt, model.start(sources([length])).state).state
        states.append(select(state, torch.tensor([0])))
        alone.append(model.extend(following[row : row + 1], state).logits)
    together = model.extend(following, merge(states)).logits
    torch.testing.assert_close(together, torch.cat(alone))


@torch.no_grad()
def test_source_padding_is_ignored() -> None:
    model, target, source = tiny(), Sequences.full(tokens(2, 6)), sources([5, 2])
    scribbled = source.ids.clone()
    scribbled[1, 2:4], scribbled[1, 4:] = -100, 10**6
    clean, dirty = (model.log_prob(Batch(target, Sequences(ids, source.lengths))) for ids in (source.ids, scribbled))
    torch.testing.assert_close(clean, dirty, rtol=0, atol=0)


@every_position
@torch.no_grad()
def test_the_order_of_the_source_matters(positions: str) -> None:
    model, target, source = tiny(positions=positions), Sequences.full(tokens(1, 6)), sources([6])
    flipped = Sequences(source.ids.flip(1), source.lengths)
    assert not torch.allclose(model.log_prob(Batch(target, source)), model.log_prob(Batch(target, flipped)))


@torch.no_grad()
def test_attention_maps_are_distributions_over_unpadded_source_tokens() -> None:
    model, source = tiny(), sources([5, 2])
    maps = model.attention_maps(Batch(Sequences.full(tokens(2, 7)), source))
    assert maps.shape == (2, 7, 5)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 7, dtype=torch.float64))
    assert not maps[1, :, 2:].any()


def test_a_model_with_shared_embeddings_has_one_table() -> None:
    shared = tiny(shared_embeddings=True, source_vocabulary=VOCABULARY)
    assert len(list(shared.tables())) == 1
    apart = tiny(shared_embeddings=False, source_vocabulary=VOCABULARY, tied=False)
    assert len(list(apart.tables())) == 3


def test_inconsistent_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 13 source and 11 target tokens.; use a joint tokenizer"):
        tiny(shared_embeddings=True)
    with pytest.raises(ConfigError, match="width 18 is not divisible by heads 4; try 16 or 20"):
        tiny(width=18, heads=4)
    with pytest.raises(ConfigError, match="need heads of an even width"):
        tiny(width=9, heads=3, positions="rotary")


def test_invalid_sources_and_targets_are_refused() -> None:
    model = tiny(context=8)
    with pytest.raises(DataError, match="9 tokens does not fit into the context of 8"):
        model.logits(Batch(Sequences.full(tokens(1, 9)), sources([4])))
    with pytest.raises(DataError, match="a source of 9 tokens does not fit into the context of 8"):
        model.start(sources([9]))
    with pytest.raises(DataError, match="needs a source, but none was given"):
        model.start()
    with pytest.raises(DataError, match="a source has no tokens"):
        model.start(Sequences(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([0])))


def test_it_learns_to_reverse_a_sequence() -> None:
    model = small_learner(heads=2)
    learn(model, reverse=True, steps=250)
    assert exact_matches(model, reverse=True) > 0.9


def test_a_model_that_copies_attends_to_the_copied_token() -> None:
    model = small_learner(heads=1)
    learn(model, reverse=False, steps=200)
    assert exact_matches(model, reverse=False) > 0.9
    batch = pairs(model, 64, reverse=False, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        attended = model.attention_maps(batch).argmax(-1)  # (B, T)
    places = torch.arange(attended.shape[1]).expand_as(attended)
    assert (attended == places)[batch.target.mask].float().mean() > 0.9


def small_learner(*, heads: int) -> Transformer:
    torch.manual_seed(0)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "width": 64, "heads": heads, "context": 16, "dropout": 0.0}
    return Transformer(TransformerConfig.parse({"vocabulary": 12, "source_vocabulary": 12, **sizes}))


@pytest.mark.parametrize("positions", ["added", "rotary", "concatenated"])
def test_the_compiled_encoder_equals_the_modules(positions: str) -> None:
    """Modules compute it with gradients, a program without."""
    torch.manual_seed(0)
    config = {"width": 8, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "context": 32, "positions": positions}
    model = Transformer(TransformerConfig(vocabulary=9, source_vocabulary=9, **config)).double().eval()  # type: ignore[arg-type]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    source = Sequences.full(torch.tensor([[3, 1, 4, 1, 5, 0]]))
    expected = model.encode(source)
    assert expected.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(model.encode(source), expected.detach())
        inputs = torch.randn(1, 5, 8, dtype=torch.float64)
        found = model.decoder.bidirectional(inputs, torch.tensor([5]), model.encoder_memory(source))
    torch.testing.assert_close(
        found, model.decoder.bidirectional(inputs, torch.tensor([5]), model.encoder_memory(source)).detach()
    )
