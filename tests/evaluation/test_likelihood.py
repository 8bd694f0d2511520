from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError, NotANumber
from chainrule.evaluation.likelihood import score
from chainrule.evaluation.protocol import protocol_for
from chainrule.evaluation.token_scores import token_scores
from chainrule.interface.base import AutoregressiveModel
from chainrule.testing import tiny_model
from chainrule.tokenizers import train_tokenizer
from chainrule.training.distributed import Processes, acting_as
from chainrule.types import Batch, Sequences


def tokens(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(5, size=count)


def surprisal(model: AutoregressiveModel, ids: np.ndarray) -> float:
    """Nats of the last token given the others, by the model's interface."""
    batch = Batch(Sequences.full(torch.from_numpy(ids.astype(np.int64))[None]))
    with torch.no_grad():
        return -float(model.token_log_probs(batch)[0, -1])


class OneOfTwo(Processes):
    """A process whose other one has scored the rest."""

    world = 2

    def sum_arrays(self, *arrays: npt.NDArray[Any]) -> None:
        arrays[-1][:] = True


def test_scoring_is_complete_when_all_processes_have_scored_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainrule.evaluation.predictions.MAX_BATCH_TOKENS", 16)
    shares: list[float] = []
    with acting_as(OneOfTwo()):
        score(tiny_model("gpt"), Corpus.of_tokens(tokens(100), 5), progress=shares.append)
    assert 0.3 < shares[-2] < 0.7
    assert shares[-1] == 1


@pytest.mark.parametrize("family", ["ngram", "recurrent"])
def test_a_carried_stream_is_scored_as_one_sequence(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainrule.evaluation.predictions.MAX_BATCH_TOKENS", 16)
    model, ids = tiny_model(family), tokens(100)
    result = score(model, Corpus.of_tokens(ids, 5))
    with torch.no_grad():
        expected = -float(model.log_prob(Batch(Sequences.full(torch.from_numpy(ids)[None])))) / 100
    assert result.nats_per_token == pytest.approx(expected, rel=1e-5)
    assert result.protocol.method == "carried"
    assert result.protocol.carry_over
    assert result.tokens == 100


@pytest.mark.parametrize("stride", [1, 5, 8, 16])
def test_each_window_scores_the_tokens_that_earlier_ones_have_not(stride: int) -> None:
    model, ids = tiny_model("gpt"), tokens(43)  # its context is 16
    corpus = Corpus.of_tokens(ids, 5)
    total, done = 0.0, 0
    while done < 43:
        end = min(43, done + (16 if done == 0 else stride))
        begin = max(0, end - 16)
        total += sum(surprisal(model, ids[begin : place + 1]) for place in range(done, end))
        done = end
    result = score(model, corpus, protocol_for(model, corpus, stride=stride))
    assert result.nats_per_token == pytest.approx(total / 43, rel=1e-5)
    assert (result.protocol.context, result.protocol.stride) == (16, stride)


def test_the_stride_is_in_the_protocol_and_changes_the_score() -> None:
    model, corpus = tiny_model("gpt"), Corpus.of_tokens(tokens(60), 5)
    wide, narrow = (score(model, corpus, protocol_for(model, corpus, stride=stride)) for stride in (1, 16))
    assert wide.nats_per_token != narrow.nats_per_token
    assert wide.protocol != narrow.protocol


def three_documents() -> tuple[np.ndarray, Corpus]:
    ids = np.array([2, 3, 0, 4, 0, 2, 2, 3, 0])
    corpus = Corpus(
        tokens=ids.astype(np.uint8), offsets=np.array([0, 3, 5, 9]), bytes=6, characters=6, words=6, unknown=0,
        fingerprint="",
    )  # fmt: skip
    return ids, corpus


def test_each_document_is_scored_from_bos_to_eos() -> None:
    model = tiny_model("recurrent")
    ids, corpus = three_documents()
    documents = Sequences.pack([ids[0:3], ids[3:5], ids[5:9]])
    with torch.no_grad():
        expected = -float(model.log_prob(Batch(documents)).sum())
    result = score(model, corpus)
    assert result.nats_per_token * 9 == pytest.approx(expected, rel=1e-5)
    assert result.protocol.eos
    assert result.bits_per_byte == pytest.approx(expected / math.log(2) / 6, rel=1e-5)


def test_a_limit_on_the_tokens_may_lie_within_a_document() -> None:
    model = tiny_model("recurrent")
    ids, corpus = three_documents()
    with torch.no_grad():
        expected = -float(model.log_prob(Batch(Sequences.pack([ids[0:3], ids[3:5], ids[5:7]]))).sum())
    result = score(model, corpus, protocol_for(model, corpus, tokens=7))
    assert result.tokens == 7
    assert result.nats_per_token * 7 == pytest.approx(expected, rel=1e-5)


def test_metrics_follow_from_the_nats() -> None:
    tokenizer = train_tokenizer("chars", lambda: ["abc d\n"])
    model = tiny_model("ngram", vocabulary=tokenizer.vocabulary)
    corpus = Corpus.of_text("dab é\n", tokenizer)
    result = score(model, corpus)
    nats = result.nats_per_token * 6
    assert result.perplexity == pytest.approx(math.exp(nats / 6))
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / 7)  # é takes two bytes
    assert result.word_perplexity == pytest.approx(math.exp(nats / 3))  # two words and a line end
    assert result.unknown == 1


def test_bits_per_byte_of_a_uniform_model_do_not_depend_on_the_tokenizer() -> None:
    """A model that gives all texts of a length equal probability has the same score with characters and bytes."""
    text = "ab" * 20
    for spec in ("chars", "bytes"):
        tokenizer = train_tokenizer(spec, lambda: [text])
        model = tiny_model("gpt", vocabulary=tokenizer.vocabulary)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        result = score(model, Corpus.of_text(text, tokenizer))
        assert result.bits_per_byte == pytest.approx(math.log2(tokenizer.vocabulary), rel=1e-5)


def test_each_token_has_its_surprisal_its_rank_and_the_alternatives() -> None:
    model, ids = tiny_model("gpt"), tokens(30)
    corpus = Corpus.of_tokens(ids, 5)
    found = token_scores(model, corpus, alternatives=3)
    assert [entry.token for entry in found] == ids.tolist()
    assert sum(entry.surprisal for entry in found) / 30 == pytest.approx(score(model, corpus).nats_per_token, rel=1e-5)
    for entry in found:
        probabilities = [other.probability for other in entry.alternatives]
        assert probabilities == sorted(probabilities, reverse=True)
        assert (entry.rank == 1) == (entry.alternatives[0].token == entry.token)
        if entry.rank <= 3:
            assert math.exp(-entry.surprisal) == pytest.approx(probabilities[entry.rank - 1], rel=1e-4)


def test_a_stride_beyond_the_context_is_refused() -> None:
    model = tiny_model("gpt")
    with pytest.raises(ConfigError, match="1 to 16"):
        protocol_for(model, Corpus.of_tokens(tokens(20), 5), stride=17)
    with pytest.raises(ConfigError, match="unlimited context"):
        protocol_for(tiny_model("recurrent"), Corpus.of_tokens(tokens(20), 5), stride=4)


def test_a_model_that_predicts_nan_has_no_score() -> None:
    model = tiny_model("recurrent")
    next(model.parameters()).data.fill_(math.nan)
    with pytest.raises(NotANumber, match="its weights are damaged or its training diverged"):
        score(model, Corpus.of_tokens(tokens(40), 5))
