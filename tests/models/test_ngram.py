from __future__ import annotations

import gzip
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from chainrule.errors import ConfigError, DataError, TrainingError
from chainrule.models import ngram
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.nn import backoff
from chainrule.types import Batch, Sequences, State
from tests.conftest import RealData

BOS = -1


@pytest.fixture(autouse=True, scope="module")
def _double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Reference:
    """Interpolated modified Kneser–Ney with dictionaries, following Chen & Goodman (1998)."""

    def __init__(self, documents: Sequence[Sequence[int]], order: int, vocabulary: int) -> None:
        self.order, self.vocabulary = order, vocabulary
        counts: Counter[tuple[int, ...]] = Counter()
        for document in documents:
            text = (BOS, *document)
            for length in range(1, order + 1):
                counts.update(text[end - length : end] for end in range(length, len(text) + 1))
        del counts[(BOS,)]
        before: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for gram in counts:
            before[gram[1:]].add(gram[0])
        self.adjusted = {
            gram: count if len(gram) == order or gram[0] == BOS else len(before[gram]) for gram, count in counts.items()
        }
        self.followers: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for gram in counts:
            self.followers[gram[:-1]].append(gram[-1])
        self.fell_back: list[bool] = []
        self.discounts = [self._discounts(length) for length in range(1, order + 1)]

    def _discounts(self, length: int) -> list[float]:
        n = Counter(count for gram, count in self.adjusted.items() if len(gram) == length)
        if n[1] and n[2] and n[3] and n[4]:
            y = n[1] / (n[1] + 2 * n[2])
            found = [1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3]]
            if min(found) > 0:
                self.fell_back.append(False)
                return found
        self.fell_back.append(True)
        return [0.5, 1.0, 1.5]

    def probability(self, token: int, context: tuple[int, ...]) -> float:
        context = context[max(0, len(context) - self.order + 1) :]
        lower = self.probability(token, context[1:]) if context else 1 / self.vocabulary
        if context not in self.followers:
            return lower
        discounts = self.discounts[len(context)]
        total = sum(self.adjusted[(*context, follower)] for follower in self.followers[context])
        taken = sum(discounts[min(self.adjusted[(*context, follower)], 3) - 1] for follower in self.followers[context])
        count = self.adjusted.get((*context, token), 0)
        own = count - discounts[min(count, 3) - 1] if count else 0.0
        return own / total + taken / total * lower

    def log_probs(self, document: Sequence[int]) -> list[float]:
        text = (BOS, *document)
        return [math.log(self.probability(text[end], text[:end])) for end in range(1, len(text))]


def words(seed: int, length: int, vocabulary: int = 12) -> list[int]:
    """Text of a random source in which some words are common, some rare, and some follow others."""
    rng = random.Random(seed)
    text = [0]
    while len(text) < length:
        text.append((text[-1] * 3 + 1) % vocabulary if rng.random() < 0.5 else int(rng.random() ** 3 * vocabulary))
    return text[:length]


def trained(documents: Sequence[Sequence[int]], order: int, vocabulary: int = 12) -> NGram:
    model = NGram(NGramConfig(vocabulary=vocabulary, order=order))
    model.observe(Sequences.pack(documents))
    model.estimate()
    return model


def stream(text: Sequence[int]) -> Sequences:
    return Sequences.full(torch.tensor([list(text)], dtype=torch.int64))


@pytest.mark.parametrize("order", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("documents", [1, 7])
def test_probabilities_equal_an_independent_implementation(order: int, documents: int) -> None:
    text = words(seed=order, length=900)
    train = [text[index::documents] for index in range(documents)]
    reference, model = Reference(train, order, vocabulary=12), trained(train, order)
    unseen = [*words(seed=99, length=60), 11, 11, 11, 10, 10, 11]
    expected = [
        [math.log(reference.probability(token, (BOS, *unseen[:end]))) for token in range(12)]
        for end in range(len(unseen))
    ]
    torch.testing.assert_close(model.logits(Batch(stream(unseen)))[0], torch.tensor(expected), rtol=0, atol=1e-10)


def test_the_comparison_covers_both_estimated_and_fallback_discounts() -> None:
    text = words(seed=5, length=900)
    assert set(Reference([text], 5, vocabulary=12).fell_back) == {True, False}


def test_keys_stay_exact_where_the_vocabulary_to_the_order_exceeds_64_bits() -> None:
    text = [token * 2749 + 13 for token in words(seed=3, length=400)]
    model = trained([text], order=12, vocabulary=33_000)
    held_out = [*text[100:140], 32_999, 1, *text[7:30]]
    scores, *_ = model.score_tokens(stream(held_out))
    expected = Reference([text], 12, vocabulary=33_000).log_probs(held_out)
    torch.testing.assert_close(scores[0], torch.tensor(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_predictions_sum_to_one_after_seen_and_unseen_contexts(order: int) -> None:
    model = trained([words(seed=1, length=300)], order)
    contexts = torch.randint(12, (4, 50), generator=torch.Generator().manual_seed(0))
    total = model.logits(Batch(Sequences.full(contexts))).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12)


def test_an_unseen_context_backs_off_to_the_shorter_one() -> None:
    model = trained([[1, 2, 3, 1, 2, 4, 2, 3]], order=3, vocabulary=6)
    after = model.logits(Batch(Sequences.pack([[5, 2, 0], [1, 5, 2]])))
    alone = model.extend(torch.tensor([[5, 5, 2]]), model.start().state).logits[0, 2]
    torch.testing.assert_close(after[0, 2], alone)  # "5 2" was never seen, so only "2" counts
    nothing = model.extend(torch.tensor([[5]]), model.start().state).logits[0, 0]
    torch.testing.assert_close(after[1, 2], nothing)  # neither "1 5" nor "5" was: the unigrams remain


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_observing_in_chunks_equals_observing_at_once(data: st.DataObject) -> None:
    order = data.draw(st.integers(1, 5))
    text = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=60))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    whole = trained([text, text[::-1]], order, vocabulary=5)
    pieces = NGram(NGramConfig(vocabulary=5, order=order))
    rows = torch.tensor([text, text[::-1]])
    state: State | None = None
    with mock.patch.object(ngram, "PENDING", data.draw(st.sampled_from([1, 20, 1 << 20]))):
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            state = pieces.observe(Sequences.full(rows[:, begin:end]), state)
    pieces.estimate()
    expected = whole.state_dict()
    assert pieces.state_dict().keys() == expected.keys()
    for name, tensor in pieces.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_documents_in_a_padded_batch_count_like_separate_documents() -> None:
    documents = [words(seed, length) for seed, length in enumerate([9, 1, 30, 4, 17])]
    together, single = NGram(NGramConfig(vocabulary=12, order=4)), NGram(NGramConfig(vocabulary=12, order=4))
    batch = Sequences.pack(documents)
    together.observe(Sequences(batch.ids.masked_fill(~batch.mask, 777), batch.lengths))
    for document in documents:
        single.observe(stream(document))
    together.estimate()
    single.estimate()
    assert all(torch.equal(one, other) for one, other in zip(together.buffers(), single.buffers(), strict=True))


def test_more_text_can_be_observed_after_estimating() -> None:
    text = words(seed=8, length=200)
    model = NGram(NGramConfig(vocabulary=12, order=3))
    state = model.observe(stream(text[:120]))
    model.estimate()
    model.observe(stream(text[120:]), state)
    model.estimate()
    whole = trained([text], order=3)
    assert all(torch.equal(one, other) for one, other in zip(model.buffers(), whole.buffers(), strict=True))


@pytest.mark.parametrize("order", [1, 4])
@pytest.mark.parametrize("chunks", [[25], [1] * 25, [3, 0, 20, 2]])
def test_extend_in_chunks_equals_logits(order: int, chunks: list[int]) -> None:
    model = trained([words(seed=1, length=300)], order)
    text = torch.tensor([words(seed=2, length=25), words(seed=3, length=25)])
    step = model.start(batch_size=2)
    predictions, state = [step.logits], step.state
    for tokens in text.split(chunks, dim=1):
        step = model.extend(tokens, state)
        predictions.append(step.logits)
        state = step.state
    assert torch.equal(torch.cat(predictions, dim=1)[:, :-1], model.logits(Batch(Sequences.full(text))))


@pytest.mark.parametrize("order", [1, 4])
def test_sparse_scores_equal_dense_ones_and_continue_from_a_state(order: int) -> None:
    model = trained([words(seed=1, length=300)], order)
    rows = Sequences.pack([words(seed=2, length=30), words(seed=3, length=12)])
    dense = model.token_log_probs(Batch(rows))
    sparse, _, state = model.score_tokens(Sequences(rows.ids.masked_fill(~rows.mask, 777), rows.lengths))
    torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-12)
    more, *_ = model.score_tokens(Sequences.pack([[5, 6], [7, 8]]), state)
    longer = Sequences.pack([[*words(seed=2, length=30), 5, 6], [*words(seed=3, length=12), 7, 8]])
    whole, *_ = model.score_tokens(longer)
    torch.testing.assert_close(more, torch.stack([whole[0, 30:32], whole[1, 12:14]]))


def test_predictions_do_not_depend_on_the_batch_size() -> None:
    model = trained([words(seed=1, length=300)], order=4)
    batch = Batch(Sequences.full(torch.tensor([words(seed=2, length=25), words(seed=3, length=25)])))
    whole = model.logits(batch)
    with mock.patch.object(backoff, "BLOCK", 40):
        assert torch.equal(model.logits(batch), whole)


def test_a_text_of_one_symbol_leaves_the_others_possible() -> None:
    model = trained([[3] * 50], order=5, vocabulary=6)
    prediction = model.logits(Batch(stream([3, 3, 3, 3, 3, 3]))).exp()[0, -1]
    assert prediction.argmax() == 3
    assert prediction[3] > 0.9
    assert (prediction > 0).all()


def test_a_vocabulary_of_one_token_is_certain() -> None:
    model = trained([[0, 0, 0]], order=3, vocabulary=1)
    torch.testing.assert_close(model.logits(Batch(stream([0, 0, 0, 0]))), torch.zeros(1, 4, 1))


def test_a_text_shorter_than_the_order_is_enough() -> None:
    model = trained([[2]], order=6, vocabulary=4)
    assert model.sizes == [4, 1, 0, 0, 0, 0]
    total = model.logits(Batch(stream([2, 1, 3, 2, 2]))).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_a_saved_model_predicts_the_same_without_storing_counts(tmp_path: Path) -> None:
    model = trained([words(seed=1, length=300)], order=4)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = NGram(model.config)
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"))
    batch = Batch(stream(words(seed=2, length=80)))
    assert torch.equal(loaded.logits(batch), model.logits(batch))
    assert loaded.sizes == model.sizes
    assert len(model.state_dict()) == 3 + 4 + 3  # keys, log-probabilities, back-off weights


def test_loading_tables_of_another_order_or_vocabulary_is_refused() -> None:
    saved = trained([words(seed=1, length=300)], order=4).state_dict()
    with pytest.raises(RuntimeError, match="Missing key"):
        NGram(NGramConfig(vocabulary=12, order=5)).load_state_dict(saved)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        NGram(NGramConfig(vocabulary=12, order=3)).load_state_dict(saved)
    with pytest.raises(RuntimeError, match="size mismatch for log_probs_1"):
        NGram(NGramConfig(vocabulary=11, order=4)).load_state_dict(saved)


def test_tables_have_the_default_dtype_and_can_be_converted() -> None:
    torch.set_default_dtype(torch.float32)
    try:
        model = trained([words(seed=1, length=300)], order=3)
    finally:
        torch.set_default_dtype(torch.float64)
    batch = Batch(stream(words(seed=2, length=80)))
    single = model.logits(batch)
    assert single.dtype == torch.float32
    double = model.double().logits(batch)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double, single.double(), rtol=0, atol=1e-5)


def test_predicting_before_estimating_is_refused() -> None:
    model = NGram(NGramConfig(vocabulary=5, order=3))
    batch = Batch(stream([1, 2]))
    for ask in (lambda: model.logits(batch), lambda: model.start(), lambda: model.score_tokens(batch.target)):
        with pytest.raises(TrainingError, match="observe a text, estimate, or load a run"):
            ask()
    with pytest.raises(TrainingError, match="counted no token"):
        model.estimate()
    model.observe(Sequences(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([0])))
    with pytest.raises(TrainingError, match="counted no token"):
        model.estimate()


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(DataError, match="range from 0 to 5, but the vocabulary has 5 tokens"):
        NGram(NGramConfig(vocabulary=5)).observe(stream([0, 5]))


def test_an_order_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="order"):
        NGramConfig.parse({"vocabulary": 5, "order": 0})


def test_tiny_shakespeare_characters_at_order_seven(real_data: RealData) -> None:
    text = np.frombuffer((real_data("tinyshakespeare") / "input.txt").read_bytes(), dtype=np.uint8)
    cut = len(text) * 9 // 10
    symbols, train = np.unique(text[:cut], return_inverse=True)
    model = trained([train + 2], order=7, vocabulary=len(symbols) + 2)
    scores, *_ = model.score_tokens(stream(np.searchsorted(symbols, text[cut:]) + 2))
    assert -scores.mean() <= 1.52


def test_penn_treebank_words_at_order_five(real_data: RealData) -> None:
    folder = real_data("ptb")

    def read(part: str) -> list[str]:
        with gzip.open(folder / f"ptb.{part}.txt.gz", "rt", encoding="utf-8") as file:
            return file.read().replace("\n", " <line> ").split()

    train = read("train")
    ids = {word: index for index, word in enumerate(dict.fromkeys(["<eos>", "<unk>", *train]))}
    model = trained([[ids[word] for word in train]], order=5, vocabulary=len(ids))
    scores, *_ = model.score_tokens(stream([ids[word] for word in read("test")]))
    assert math.exp(-scores.mean()) == pytest.approx(141, abs=1.5)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_scores_for_shallow_fusion_equal_those_of_the_whole_text(order: int) -> None:
    model = trained([[0, 1, 2, 0, 1, 3, 0, 1, 2, 2, 2]], order)
    text = [0, 1, 2, 3, 3, 0, 1, 1, 2]
    expected = model.token_log_probs(Batch(stream(text)))[0].tolist()
    language_model = model.fusion_model()
    state, found = language_model.initial_state, []
    for token in text:
        nats, state = language_model.score(token, state)
        found.append(nats)
    assert found == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_the_longest_repetition_is_found(tokens: list[int]) -> None:
    def repeats(length: int) -> bool:
        windows = [tuple(tokens[at : at + length]) for at in range(len(tokens) - length + 1)]
        return len(set(windows)) < len(windows)

    expected = max((length for length in range(1, len(tokens)) if repeats(length)), default=0)
    assert ngram.longest_repetition(np.array(tokens), 1000) == expected


def test_a_high_order_that_does_not_fit_into_memory_is_refused() -> None:
    """A text of one repeated line has long repetitions, so only memory bounds the order."""
    line = np.random.default_rng(0).integers(0, 20, 500)
    model = NGram(NGramConfig(vocabulary=20, order=400))
    model.require_countable(np.tile(line, 4), memory=1 << 30)
    with pytest.raises(
        ConfigError, match=r"model.order 400 on 2,000 tokens takes about 48.0 MB .* set model.order to 83 or"
    ):
        model.require_countable(np.tile(line, 4), memory=10_000_000)
