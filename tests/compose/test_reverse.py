"""Right-to-left models: scores are those of the reversed text, and texts are in reading order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import chainrule
from chainrule.compose.mixture import Mixture
from chainrule.compose.reverse import Reverse, reversed_corpus, reversed_sequences
from chainrule.data.corpus import Corpus
from chainrule.interface.base import NeuralModel
from chainrule.interface.capabilities import is_right_to_left
from chainrule.tasks.base import Run
from chainrule.testing import tiny_model
from chainrule.types import Batch, Sequences

ROWS = Sequences(torch.tensor([[1, 2, 3, 4], [3, 1, 0, 0], [2, 9, 9, 9]]), torch.tensor([4, 2, 1]))


def neural(name: str) -> NeuralModel:
    model = tiny_model(name)
    assert isinstance(model, NeuralModel)
    return model


def test_rows_are_reversed_within_their_lengths() -> None:
    assert reversed_sequences(ROWS).ids.tolist() == [[4, 3, 2, 1], [1, 3, 0, 0], [2, 9, 9, 9]]
    assert reversed_sequences(reversed_sequences(ROWS)).ids.tolist() == ROWS.ids.tolist()


@torch.no_grad()
def test_the_probability_of_a_text_is_that_of_the_reversed_text() -> None:
    model = neural("recurrent")
    found = Reverse.of(model).text_log_prob(Batch(ROWS))
    expected = [float(model.log_prob(Batch(Sequences.pack([row])))) for row in ([4, 3, 2, 1], [1, 3], [2])]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_documents_keep_eos_at_their_end() -> None:
    corpus = Corpus.of_tokens([1, 2, 3, 0, 4, 0, 0], vocabulary=5)
    documents = Corpus(**{**vars(corpus), "offsets": np.array([0, 4, 6, 7])})
    assert reversed_corpus(corpus).tokens.tolist() == [0, 0, 4, 0, 3, 2, 1]
    assert reversed_corpus(documents).tokens.tolist() == [3, 2, 1, 0, 4, 0, 0]


def test_reversed_twice_is_left_to_right_and_a_blend_has_the_direction_of_its_parts() -> None:
    once = Reverse.of(neural("gpt"))
    assert is_right_to_left(once)
    assert not is_right_to_left(Reverse.of(once))
    assert is_right_to_left(Mixture.of([once, Reverse.of(neural("recurrent"))]))
    assert not is_right_to_left(tiny_model("gpt"))


@pytest.fixture
def run(text_file: Path, tmp_path: Path) -> Run:
    small = {"family": "gpt", "layers": 1, "width": 32, "heads": 2, "context": 32}
    settings = {"model": {"model": small}, "train": {"batch_tokens": 512}}
    return chainrule.train("reverse", data=str(text_file), out=tmp_path / "run", steps=200, settings=settings)


def test_a_reversed_run_is_trained_scored_and_decoded_as_text(run: Run) -> None:
    opened = chainrule.load(run.path)
    words = "the early bird catches the worm"
    assert opened.score(words).nats_per_token < opened.score(words[::-1]).nats_per_token - 1
    pieces = opened.tokenizer.pieces([one.token for one in opened.token_scores(words)])
    assert "".join(pieces) == words
    [text] = opened.generate(" sat on the mat", length=8, greedy=True)
    assert text.text.endswith(" cat")  # what comes before the prompt
    shown: list[str] = []
    [streamed] = list(opened.stream(" sat on the mat", length=8, greedy=True, show=shown.append))
    assert "".join(shown) == streamed.text == text.text


def test_a_stop_string_ends_a_text_that_grows_to_the_left(run: Run) -> None:
    [text] = run.generate(" cat sat on the mat", length=60, greedy=True, stop=["\n"])
    assert text.finished == "stop"
    assert text.text == "the"
