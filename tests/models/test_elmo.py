import itertools

import pytest
import torch

from chainrule.models.elmo import ELMo, ELMoConfig
from chainrule.types import Batch, Sequences

VOCABULARY, WIDTH = 4, 6


def elmo(**settings: object) -> ELMo:
    torch.manual_seed(0)
    model = ELMo(ELMoConfig.parse({"vocabulary": VOCABULARY, "layers": 2, "width": WIDTH, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.4)
    return model.double().eval()


def test_forward_vectors_do_not_depend_on_the_future_nor_backward_vectors_on_the_past() -> None:
    model = elmo()
    ids = torch.randint(VOCABULARY, (1, 8), generator=torch.Generator().manual_seed(1))
    plain = model.layers(Sequences.full(ids))[1:]
    for position in range(8):
        changed = ids.clone()
        changed[0, position] = (ids[0, position] + 1) % VOCABULARY
        found = model.layers(Sequences.full(changed))[1:]
        forward, backward = (half.abs().sum((0, 1, 3)) for half in (found - plain).split(WIDTH, dim=-1))
        assert not forward[:position].any()
        assert forward[position:].all()
        assert not backward[position + 1 :].any()
        assert backward[: position + 1].all()


def test_both_language_models_are_normalised() -> None:
    model = elmo()
    every = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=3)))
    assert torch.allclose(model.log_probs(Sequences.full(every)).exp().sum(1), torch.ones(2, dtype=torch.float64))


def test_the_backward_model_is_a_forward_model_of_the_reversed_text() -> None:
    model = elmo()
    model.backwards.load_state_dict(model.forwards.state_dict())
    with torch.no_grad():
        model.tokens.matrix[-1] = model.tokens.matrix[-2]  # the start symbols
    ids = torch.randint(VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(2))
    lengths = torch.tensor([7, 3, 5])
    reversed_ids = torch.stack(
        [torch.cat([row[:length].flip(0), row[length:]]) for row, length in zip(ids, lengths, strict=True)]
    )
    forward, backward = model.log_probs(Sequences(ids, lengths))
    assert torch.allclose(model.log_probs(Sequences(reversed_ids, lengths)), torch.stack([backward, forward]))


@torch.no_grad()
def test_the_loss_is_the_mean_of_both_surprisals() -> None:
    model = elmo()
    batch = Batch(Sequences(torch.randint(VOCABULARY, (3, 6)), torch.tensor([6, 1, 4])))
    expected = -float(model.log_probs(batch.target).sum()) / 2
    assert float(model.loss(batch, model.draw_noise(batch))) == pytest.approx(expected, rel=1e-9)


def test_padding_changes_nothing() -> None:
    model = elmo()
    ids = torch.randint(VOCABULARY, (1, 4))
    padded = Sequences(torch.cat([ids, torch.full((1, 3), 99)], 1), torch.tensor([4]))
    assert torch.allclose(model.embed(padded)[:, :4], model.embed(Sequences.full(ids)))
    assert torch.allclose(model.log_probs(padded), model.log_probs(Sequences.full(ids)))


def test_a_vector_is_a_weighted_mean_of_all_layers_times_a_scale() -> None:
    model = elmo()
    texts = Sequences.full(torch.randint(VOCABULARY, (2, 5)))
    layers = model.layers(texts)
    assert layers.shape == (3, 2, 5, 2 * WIDTH)
    assert torch.equal(layers[0, ..., :WIDTH], layers[0, ..., WIDTH:])  # the embedding, twice
    with torch.no_grad():
        model.mix.weights.copy_(torch.tensor([0.0, 2.0, 4.0]).log())
        model.mix.scale.fill_(3.0)
    assert torch.allclose(model.embed(texts), 3 * (2 * layers[1] + 4 * layers[2]) / 6)
    model.embed(texts).square().sum().backward()
    assert model.mix.weights.grad is not None
    assert model.mix.scale.grad is not None


def test_a_vector_may_be_the_embedding_and_both_last_layers_side_by_side() -> None:
    model = elmo(vectors="concatenate")
    texts = Sequences.full(torch.randint(VOCABULARY, (2, 5)))
    layers = model.layers(texts)
    vectors = model.embed(texts)
    assert vectors.shape[-1] == model.embedding_width == 3 * WIDTH
    assert torch.equal(vectors, torch.cat([layers[0, ..., :WIDTH], layers[2]], -1))


def test_upper_layers_are_residual() -> None:
    model = elmo()
    for direction in (model.forwards, model.backwards):
        for parameter in direction.layers[1].parameters():
            torch.nn.init.zeros_(parameter)  # so that its output is zero
    layers = model.layers(Sequences.full(torch.randint(VOCABULARY, (2, 5))))
    assert torch.equal(layers[2], layers[1])


def test_an_untrained_mix_weights_all_layers_equally() -> None:
    torch.manual_seed(0)
    model = ELMo(ELMoConfig(vocabulary=VOCABULARY, width=WIDTH)).eval()
    texts = Sequences.full(torch.randint(VOCABULARY, (2, 5)))
    assert torch.allclose(model.embed(texts), model.layers(texts).mean(0), atol=1e-6)
