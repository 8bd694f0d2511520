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


def test_fifteen_percent_of_the_tokens_are_targets_and_most_of_them_are_masked() -> None:
    model = bert(vocabulary=1000, context=100)
    given = texts(400, 100, vocabulary=1000)
    ids, targets = model.mask_tokens(given, torch.rand(400, 300, generator=torch.Generator().manual_seed(2)))
    assert (targets.sum(1) == 15).all()
    masked = ids[targets] == model.special.mask_id
    same = ids[targets] == given.ids[targets]
    assert masked.double().mean() == pytest.approx(0.8, abs=0.02)
    assert same.double().mean() == pytest.approx(0.1, abs=0.015)
    assert (~masked & ~same).double().mean() == pytest.approx(0.1, abs=0.015)
    assert torch.equal(ids[~targets], given.ids[~targets])
    frequency = targets.double().mean(0)
    assert frequency.min() > 0.05  # all positions are selected
    assert frequency.max() < 0.25


def test_every_text_has_a_target_and_padding_has_none() -> None:
    model = bert()
    given = Sequences(texts(3, 9).ids, torch.tensor([9, 1, 4]))
    _, targets = model.mask_tokens(given, torch.rand(3, 27))
    assert (targets.sum(1) == 1).all()
    assert not (targets & ~given.mask).any()


def test_special_tokens_are_never_targets() -> None:
    model = bert(cls_id=1, sep_id=2, mask_id=3, mask_rate=1.0)
    given = Sequences.full(torch.tensor([[5, 1, 6, 2, 3, 7]]))
    _, targets = model.mask_tokens(given, torch.rand(1, 18))
    assert targets[0].tolist() == [True, False, True, False, False, True]


def test_predictions_do_not_depend_on_masked_tokens() -> None:
    model = bert(mask_rate=0.5)
    given, noise = texts(5, 12), torch.rand(5, 36, generator=torch.Generator().manual_seed(3))
    ids, targets = model.mask_tokens(given, noise)
    hidden = targets & (noise[:, 12:24] < 0.9)  # masked or replaced by a random token
    assert hidden.any()
    others = Sequences.full(torch.where(hidden, (given.ids + 1) % VOCABULARY, given.ids))
    assert torch.equal(model.mask_tokens(others, noise).ids, ids)
    assert torch.equal(model.predict(given, hidden), model.predict(others, hidden))
    assert not torch.allclose(model.predict(given, hidden), model.predict(others, hidden.roll(1, 1)))


def test_a_prediction_depends_on_both_sides() -> None:
    model = bert()
    hidden = torch.zeros(1, 7, dtype=torch.bool)
    hidden[0, 3] = True
    given = texts(1, 7)
    plain = model.predict(given, hidden)
    for position in (0, 2, 4, 6):
        ids = given.ids.clone()
        ids[0, position] = (ids[0, position] + 1) % VOCABULARY
        assert not torch.allclose(model.predict(Sequences.full(ids), hidden), plain)


@torch.no_grad()
def test_the_loss_is_the_mean_surprisal_of_the_targets_times_the_length() -> None:
    model = bert()
    given = Sequences(texts(3, 12).ids, torch.tensor([12, 5, 7]))
    noise = model.draw_noise(Batch(given)).double()
    ids, targets = model.mask_tokens(given, noise)
    total = 0.0
    for row, length in enumerate(given.lengths.tolist()):
        vectors = model.embed(Sequences.full(ids[row : row + 1, :length]))  # of the masked text
        assert model.head is not None
        logits = model.head(vectors[0]) @ model.body.words[:VOCABULARY].t() + model.head.bias
        log_probs = logits.log_softmax(-1)
        positions = targets[row].nonzero()[:, 0]
        total -= length * float(log_probs[positions, given.ids[row, positions]].mean())
    assert float(model.loss(Batch(given), noise)) == pytest.approx(total, rel=1e-9)


def test_padding_changes_nothing() -> None:
    model = bert()
    long = texts(2, 12)
    short = Sequences(torch.cat([long.ids[1:, :4], torch.full((1, 8), 99)], 1), torch.tensor([4]))
    together = Sequences(torch.cat([long.ids[:1], short.ids]), torch.tensor([12, 4]))
    unpadded = model.embed(Sequences.full(long.ids[1:, :4]))
    assert torch.allclose(model.embed(together)[1, :4], unpadded[0])


def test_the_last_layer_is_the_embedding_and_layer_zero_is_context_free() -> None:
    model = bert()
    given = texts(2, 6)
    layers = model.layers(given)
    assert layers.shape == (3, 2, 6, 8)
    assert torch.equal(layers[-1], model.embed(given))
    changed = Sequences.full(torch.cat([given.ids[:, :-1], (given.ids[:, -1:] + 1) % VOCABULARY], 1))
    assert torch.equal(model.layers(changed)[0, :, :-1], layers[0, :, :-1])
    assert not torch.allclose(model.layers(changed)[1, :, :-1], layers[1, :, :-1])


def test_a_text_that_ends_with_sep_gets_no_second_one() -> None:
    model = bert(cls_id=1, sep_id=2, mask_id=3)
    open_, closed = (Sequences.full(torch.tensor([ids])) for ids in ([5, 6, 7], [5, 6, 7, 2]))
    assert torch.allclose(model.embed(open_), model.embed(closed)[:, :3])


def test_special_ids_past_the_vocabulary_are_never_predicted() -> None:
    model = bert()
    assert model.special == (VOCABULARY, VOCABULARY + 1, VOCABULARY + 2)
    assert model.predict(texts(1, 3), torch.tensor([[True, False, True]])).shape == (2, VOCABULARY)


def test_a_text_longer_than_the_context_is_refused() -> None:
    with pytest.raises(DataError, match="13 tokens does not fit into the context of 12"):
        bert().embed(texts(1, 13))


def test_without_a_head_it_embeds_and_refuses_to_predict() -> None:
    model = bert(head=False)
    assert model.embed(texts(1, 3)).shape == (1, 3, 8)
    with pytest.raises(ConfigError, match="imported without a masked-LM head"):
        model.predict(texts(1, 3), torch.ones(1, 3, dtype=torch.bool))
