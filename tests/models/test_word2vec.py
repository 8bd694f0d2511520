"""word2vec: loss, gradient steps and nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from chainrule.data.batching import Chunks, Position
from chainrule.data.corpus import Corpus
from chainrule.models.word2vec import END, UpdateStep, Word2Vec, Word2VecConfig, compiled_step, matrix_step
from chainrule.nn.negative_sampling import SampledWindows, hidden_vectors, sampling_loss
from chainrule.types import Batch, Sequences

RATE = 0.1
SMALL_RATE = 0.002  # at which nothing is held back
ALGORITHMS = ["skip_gram", "cbow"]


def tiny(algorithm: str, *, block: int = 4, vocabulary: int = 12, subsample: float = 0.0) -> Word2Vec:
    """A model whose vectors are all in use: ids 0 and 1 are an end and the unknown word."""
    torch.manual_seed(1)
    model = Word2Vec(
        Word2VecConfig(
            vocabulary=vocabulary,
            width=6,
            window=2,
            negatives=3,
            noise=2,
            block=block,
            algorithm=algorithm,
            subsample=subsample,
            unknown=1,
            ends=(0,),
        )
    )
    model.init_output_bias(torch.linspace(0, 2, vocabulary))
    with torch.no_grad():
        model.inputs.copy_(torch.randn(vocabulary, 6))
        model.outputs.copy_(torch.randn(vocabulary, 6))
    return model


def some_windows(model: Word2Vec, count: int = 30) -> SampledWindows:
    random = np.random.default_rng(0)
    return model.sample_windows(random.integers(0, model.vocabulary, count), random.random((count, 4)))


def slow_loss(model: Word2Vec, windows: SampledWindows, only: int | None = None) -> torch.Tensor:
    """Word by word and pair by pair, from the formula alone."""
    config, v, u = model.config, model.inputs, model.outputs
    total = torch.zeros(())
    for place, word in enumerate(windows.words):
        if only not in (None, place):
            continue
        near = range(place - int(windows.left[place]), place + int(windows.right[place]) + 1)
        context = [int(windows.words[other]) for other in near if other != place]
        begin = place // config.block * config.block
        noise = windows.noise[begin : begin + config.block].flatten().tolist()
        if not context:
            continue
        if config.algorithm == "cbow":
            predictions = [(torch.stack([v[other] for other in context]).mean(0), int(word))]
        else:
            predictions = [(v[int(word)], other) for other in context]
        for hidden, right in predictions:
            total = total - torch.sigmoid(u[right] @ hidden).log()
            wrong = torch.stack([torch.sigmoid(-u[other] @ hidden).log() for other in noise])
            total = total - config.negatives * wrong.mean()
    return total


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_loss_is_that_of_the_formula(algorithm: str) -> None:
    model = tiny(algorithm)
    windows, blocks = some_windows(model), model.blocks(some_windows(model))
    scores = hidden_vectors(model.inputs, blocks) @ model.outputs[blocks.scored].mT
    assert len(windows.words) % model.config.block, "the last block should not be full"
    assert sampling_loss(scores, blocks).item() == pytest.approx(slow_loss(model, windows).item(), rel=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_matrix_step_is_a_gradient_step(algorithm: str) -> None:
    model, reference = tiny(algorithm), tiny(algorithm)
    windows = some_windows(model)
    loss = slow_loss(reference, windows)
    loss.backward()
    assert matrix_step(model)(windows, SMALL_RATE) == pytest.approx(float(loss.detach()), rel=1e-5)
    for moved, table in zip(model.tables(), reference.tables(), strict=True):
        assert table.grad is not None
        torch.testing.assert_close(moved.detach(), table.detach() - SMALL_RATE * table.grad)


def test_a_matrix_step_does_not_overshoot() -> None:
    model = tiny("skip_gram", vocabulary=4)  # two words that meet 2,000 times in one step
    random = np.random.default_rng(0)
    windows = model.sample_windows(random.integers(2, 4, 400), random.random((400, 4)))
    losses = [matrix_step(model)(windows, 0.5) for _ in range(20)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_compiled_step_is_a_gradient_step_for_each_word_in_turn(algorithm: str) -> None:
    pytest.importorskip("numba")
    model, reference = tiny(algorithm), tiny(algorithm)
    windows = some_windows(model)
    total = 0.0
    for place in range(len(windows.words)):
        loss = slow_loss(reference, windows, only=place)
        total += loss.item()
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, list(reference.tables()))
            with torch.no_grad():
                for table, gradient in zip(reference.tables(), gradients, strict=True):
                    table -= RATE * gradient
    assert compiled_step(model)(windows, RATE) == pytest.approx(total, rel=1e-4)
    for moved, table in zip(model.tables(), reference.tables(), strict=True):
        torch.testing.assert_close(moved, table, rtol=1e-4, atol=1e-5)


def test_threads_split_the_windows() -> None:
    pytest.importorskip("numba")
    model, windows = tiny("skip_gram"), some_windows(tiny("skip_gram"))
    halves = [windows.part(0, len(windows.words) // 2), windows.part(len(windows.words) // 2, len(windows.words))]
    expected = sum(slow_loss(model, half).item() for half in halves)
    assert compiled_step(model, threads=2)(windows, 0.0) == pytest.approx(expected, rel=1e-4)


def test_the_loss_of_large_scores_does_not_overflow() -> None:
    pytest.importorskip("numba")
    model = tiny("skip_gram")
    with torch.no_grad():
        model.inputs *= 8
        model.outputs *= 8
    windows = some_windows(model)
    assert compiled_step(model)(windows, 0.0) == pytest.approx(matrix_step(model)(windows, 0.0), rel=1e-4)


def test_windows_do_not_cross_ends_and_skip_unknown_words() -> None:
    model = tiny("skip_gram")
    ids = np.array([5, 1, 6, 0, 7, 8, 9, END, 10])
    windows = model.sample_windows(ids, np.full((9, 4), 0.99))  # everything is kept, every window as large as it can be
    assert windows.words.tolist() == [5, 6, 7, 8, 9, 10]
    assert windows.left.tolist() == [0, 1, 0, 1, 2, 0]
    assert windows.right.tolist() == [1, 0, 2, 1, 0, 0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_text_without_words_has_no_loss(algorithm: str) -> None:
    model = tiny(algorithm)
    nothing = model.sample_windows(np.array([1, 1, 0]), np.zeros((3, 4)))
    before = [table.detach().clone() for table in model.tables()]
    assert matrix_step(model)(nothing, RATE) == 0.0
    if find_spec("numba") is not None:
        assert compiled_step(model)(nothing, RATE) == 0.0
    assert all(torch.equal(*pair) for pair in zip(before, model.tables(), strict=True))
    assert model.loss(Batch(Sequences.full(torch.ones(1, 3, dtype=torch.int64))), torch.zeros(1, 3, 4)).item() == 0.0


def test_frequent_words_are_subsampled_by_the_formula() -> None:
    model = tiny("skip_gram", subsample=0.01)
    frequency = float(model.get_buffer("frequencies")[11])
    ids = np.full(20_000, 11)
    kept = len(model.sample_windows(ids, np.random.default_rng(0).random((len(ids), 4))).words) / len(ids)
    assert kept == pytest.approx(math.sqrt(0.01 / frequency) + 0.01 / frequency, abs=0.02)


def test_noise_follows_the_frequencies_to_the_power_of_three_quarters() -> None:
    model = tiny("skip_gram")
    ids = np.full(60_000, 5)
    noise = model.sample_windows(ids, np.random.default_rng(0).random((len(ids), 4))).noise
    expected = model.get_buffer("frequencies").double().numpy() ** 0.75
    assert not set(noise.flatten().tolist()) & {0, 1}
    np.testing.assert_allclose(
        np.bincount(noise.flatten(), minlength=12) / noise.size, expected / expected.sum(), atol=0.01
    )


def test_the_loss_of_a_batch_is_that_of_its_rows() -> None:
    model = tiny("skip_gram")
    ids = torch.randint(2, 12, (3, 9), generator=torch.Generator().manual_seed(0))
    batch = Batch(Sequences(ids, torch.tensor([9, 4, 7])))
    noise = torch.rand(3, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    one = model.sample_windows(
        np.append(ids[1, :4].numpy(), END), np.append(noise[1, :4].numpy(), np.zeros((1, 4)), axis=0)
    )
    alone = model.loss(Batch(Sequences(ids[1:2], torch.tensor([4]))), noise[1:2])
    assert alone.item() == pytest.approx(slow_loss(model, one).item(), rel=1e-5)
    assert model.loss(batch, noise).item() > alone.item()


def company(pairs: int = 6, sentences: int = 3000) -> np.ndarray:
    """A language in which words 2 + 2i and 3 + 2i stand in the same company: words of their own that no other has."""
    random = np.random.default_rng(0)
    text = []
    for topic in random.integers(0, pairs, sentences):
        companions = 2 + 2 * pairs + 4 * topic + random.permutation(4)
        word = 2 + 2 * topic + random.integers(2)
        text += [*companions[:2].tolist(), int(word), *companions[2:].tolist(), 0]
    return np.array(text)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("make_step", [matrix_step, compiled_step])
def test_words_in_the_same_contexts_become_neighbours(
    algorithm: str, make_step: Callable[[Word2Vec], UpdateStep]
) -> None:
    if make_step is compiled_step:
        pytest.importorskip("numba")
    torch.manual_seed(0)
    corpus = Corpus.of_tokens(company(), 38)
    model = Word2Vec(
        Word2VecConfig(vocabulary=38, width=16, window=3, algorithm=algorithm, subsample=0.0, unknown=1, ends=(0,))
    )
    model.init_output_bias(torch.from_numpy(np.log(corpus.counts(38) + 1.0)))
    step, feed = make_step(model), Chunks(corpus, 4096, model.noise_width, seed=0)
    positions = [Position(epoch, index) for epoch in range(3) for index in range(feed.batches_per_epoch(epoch))]
    losses = [step(model.sample_windows(*feed.batch(position)), 0.05) for position in positions]
    assert losses[-2] < losses[0]
    directions = torch.nn.functional.normalize(model.inputs.detach()[2:14], dim=1)
    likest = (directions @ directions.T - 2 * torch.eye(12)).argmax(1)
    assert likest.tolist() == [place ^ 1 for place in range(12)]


def test_the_embedding_of_a_token_is_that_of_its_word() -> None:
    model = tiny("cbow")
    texts = Sequences(torch.tensor([[5, 6, 7], [7, 5, 99]]), torch.tensor([3, 2]))
    vectors = model.embed(texts)
    assert vectors.shape == (2, 3, model.embedding_width)
    torch.testing.assert_close(vectors[0, 0], vectors[1, 1])
    torch.testing.assert_close(vectors[0, 2], model.inputs[7])
