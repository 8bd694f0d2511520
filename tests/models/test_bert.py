import pytest
import torch

from chainrule.errors import ConfigError, DataError
from chainrule.models.bert import BERT, BERTConfig
from chainrule.types import Batch, Sequences

VOCABULARY = 11
SIZES = {"vocabulary": VOCABULARY, "layers": 2, "width": 8, "heads": 2}


def bert(**settings: object) -> BERT:
    torch.manual_seed(0)
    model = BERT(BERTConfig.parse({**SIZES, "context": 12, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.4)
    return model.double().eval()


def texts(rows: int, width: int, *, vocabulary: int = VOCABULARY) -> Sequences:
    ids = torch.randint(vocabulary, (rows, width), generator=torch.Generator().manual_seed(1))
    return Sequences.full(ids)


def test_of_a_text_fifteen_percent_is_chosen_and_most_of_that_is_masked() -> None:
    model = bert(vocabulary=1000, context=100)
    given = texts(400, 100, vocabulary=1000)
    shown, chosen = model.lesson(given, torch.rand(400, 300, generator=torch.Generator().manual_seed(2)))
    assert (chosen.sum(1) == 15).all()
    masked = shown[chosen] == model.special.mask
    same = shown[chosen] == given.ids[chosen]
    assert masked.double().mean() == pytest.approx(0.8, abs=0.02)
    assert same.double().mean() == pytest.approx(0.1, abs=0.015)
    assert (~masked & ~same).double().mean() == pytest.approx(0.1, abs=0.015)
    assert torch.equal(shown[~chosen], given.ids[~chosen])
    places = chosen.double().mean(0)
    assert places.min() > 0.05  # every place is chosen at times
    assert places.max() < 0.25


def test_every_text_has_something_to_tell_and_padding_nothing() -> None:
    model = bert()
    given = Sequences(texts(3, 9).ids, torch.tensor([9, 1, 4]))
    _, chosen = model.lesson(given, torch.rand(3, 27))
    assert (chosen.sum(1) == 1).all()
    assert not (chosen & ~given.mask).any()


def test_tokens_that_are_no_text_are_never_chosen() -> None:
    model = bert(start=1, end=2, mask=3, share=1.0)
    given = Sequences.full(torch.tensor([[5, 1, 6, 2, 3, 7]]))
    _, chosen = model.lesson(given, torch.rand(1, 18))
    assert chosen[0].tolist() == [True, False, True, False, False, True]


def test_what_is_hidden_cannot_be_read_from_what_is_shown() -> None:
    model = bert(share=0.5)
    given, chance = texts(5, 12), torch.rand(5, 36, generator=torch.Generator().manual_seed(3))
    shown, chosen = model.lesson(given, chance)
    hidden = chosen & (chance[:, 12:24] < 0.9)  # masked, or replaced by some other token
    assert hidden.any()
    others = Sequences.full(torch.where(hidden, (given.ids + 1) % VOCABULARY, given.ids))
    assert torch.equal(model.lesson(others, chance).shown, shown)
    assert torch.equal(model.predict(given, hidden), model.predict(others, hidden))
    assert not torch.allclose(model.predict(given, hidden), model.predict(others, hidden.roll(1, 1)))


def test_a_prediction_sees_both_sides() -> None:
    model = bert()
    hidden = torch.zeros(1, 7, dtype=torch.bool)
    hidden[0, 3] = True
    given = texts(1, 7)
    plain = model.predict(given, hidden)
    for place in (0, 2, 4, 6):
        ids = given.ids.clone()
        ids[0, place] = (ids[0, place] + 1) % VOCABULARY
        assert not torch.allclose(model.predict(Sequences.full(ids), hidden), plain)


@torch.no_grad()
def test_the_loss_is_that_of_the_mean_chosen_token_for_each_token() -> None:
    model = bert()
    given = Sequences(texts(3, 12).ids, torch.tensor([12, 5, 7]))
    chance = model.draw_noise(Batch(given)).double()
    shown, chosen = model.lesson(given, chance)
    total = 0.0
    for row, length in enumerate(given.lengths.tolist()):
        # Shown as it is, a text is one in which nothing more is hidden: its own vectors are what predictions are from.
        vectors = model.embed(Sequences.full(shown[row : row + 1, :length]))
        assert model.head is not None
        logits = model.head(vectors[0]) @ model.body.words[:VOCABULARY].t() + model.head.bias
        log_probs = logits.log_softmax(-1)
        places = chosen[row].nonzero()[:, 0]
        total -= length * float(log_probs[places, given.ids[row, places]].mean())
    assert float(model.loss(Batch(given), chance)) == pytest.approx(total, rel=1e-9)


def test_padding_changes_nothing() -> None:
    model = bert()
    long = texts(2, 12)
    short = Sequences(torch.cat([long.ids[1:, :4], torch.full((1, 8), 99)], 1), torch.tensor([4]))
    together = Sequences(torch.cat([long.ids[:1], short.ids]), torch.tensor([12, 4]))
    alone = model.embed(Sequences.full(long.ids[1:, :4]))
    assert torch.allclose(model.embed(together)[1, :4], alone[0])


def test_the_last_layer_is_the_embedding_and_layer_zero_knows_no_context() -> None:
    model = bert()
    given = texts(2, 6)
    layers = model.layers(given)
    assert layers.shape == (3, 2, 6, 8)
    assert torch.equal(layers[-1], model.embed(given))
    changed = Sequences.full(torch.cat([given.ids[:, :-1], (given.ids[:, -1:] + 1) % VOCABULARY], 1))
    assert torch.equal(model.layers(changed)[0, :, :-1], layers[0, :, :-1])
    assert not torch.allclose(model.layers(changed)[1, :, :-1], layers[1, :, :-1])


def test_a_text_that_ends_with_its_end_is_not_closed_twice() -> None:
    model = bert(start=1, end=2, mask=3)
    open_, closed = (Sequences.full(torch.tensor([ids])) for ids in ([5, 6, 7], [5, 6, 7, 2]))
    assert torch.allclose(model.embed(open_), model.embed(closed)[:, :3])


def test_special_ids_past_the_vocabulary_are_never_predicted() -> None:
    model = bert()
    assert model.special == (VOCABULARY, VOCABULARY + 1, VOCABULARY + 2)
    assert model.predict(texts(1, 3), torch.tensor([[True, False, True]])).shape == (2, VOCABULARY)


def test_a_longer_text_than_the_context_is_refused() -> None:
    with pytest.raises(DataError, match="13 tokens does not fit into the context of 12"):
        bert().embed(texts(1, 13))


def test_without_its_head_it_embeds_and_says_why_it_cannot_predict() -> None:
    model = bert(head=False)
    assert model.embed(texts(1, 3)).shape == (1, 3, 8)
    with pytest.raises(ConfigError, match="came without the head"):
        model.predict(texts(1, 3), torch.ones(1, 3, dtype=torch.bool))
