"""Sequence taggers; properties of every family are in tests/testing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import chainrule
from chainrule.models.tagger import WordEncoder, WordSpans
from chainrule.tasks import load
from chainrule.tasks.tags import TagRun
from chainrule.testing.tiny import tiny_model
from chainrule.types import Batch, Sequences

SENTENCES = Sequences(
    torch.tensor([[3, 4, 0, 5, 0, 0], [3, 4, 0, 4, 3, 1], [5, 0, 0, 0, 9, 9]]), torch.tensor([5, 6, 2])
)


def test_words_end_at_separators_or_at_the_end_of_the_sentence() -> None:
    spans = WordSpans.find(SENTENCES, separator=0)
    assert spans.counts.tolist() == [2, 2, 1]
    assert spans.words.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 1, 1, 1], [0, 0, 2, 2, 2, 2]]
    assert spans.offsets[:2].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 0, 1, 2]]


def test_equal_words_have_equal_fingerprints_and_others_do_not() -> None:
    found = WordSpans.find(SENTENCES, separator=0).fingerprints(SENTENCES, 0)
    assert found[0, 0] == found[1, 0]  # (3, 4)
    assert found[0, 1] == found[2, 0]  # (5,)
    assert len({*found[0].tolist(), *found[1].tolist()}) == 3  # (3, 4), (5,) and (4, 3, 1)


def word_encoder(words: int) -> WordEncoder:
    torch.manual_seed(0)
    return WordEncoder(
        6, separator=0, words=words, word_width=3, char_width=4, char_filters=5, char_kernel=3, word_dropout=0.0
    ).eval()


def test_a_known_word_has_its_own_embedding_and_unknown_words_share_one() -> None:
    encoder = word_encoder(1)
    encoder.set_known_words(Sequences.full(torch.tensor([[3, 4]])))
    vectors, counts = encoder(SENTENCES)
    assert counts.tolist() == [2, 2, 1]
    embeddings = vectors[..., :3]
    torch.testing.assert_close(embeddings[0, 0], encoder.table[1])
    torch.testing.assert_close(embeddings[1, 0], encoder.table[1])
    torch.testing.assert_close(embeddings[0, 1], encoder.table[0])
    torch.testing.assert_close(embeddings[1, 1], encoder.table[0])
    assert not vectors[2, 1:].any()


def test_unknown_words_differ_by_their_characters() -> None:
    vectors, _ = word_encoder(0)(SENTENCES)
    assert not torch.allclose(vectors[0, 1, 3:], vectors[1, 1, 3:])


def test_past_the_last_word_tags_depend_on_previous_tags_only() -> None:
    model = tiny_model("tagger")
    target = Sequences.full(torch.tensor([[1, 2, 3, 4]]))
    other = Sequences.full(torch.tensor([[2, 1, 0]]))
    one, two = (model.logits(Batch(target, source)) for source in (other, Sequences.full(torch.tensor([[3, 3, 0]]))))
    assert not torch.allclose(one[:, 0], two[:, 0])  # the only word
    torch.testing.assert_close(one[:, 1:], two[:, 1:])


def test_the_order_determines_which_previous_tags_matter() -> None:
    source = Sequences.full(torch.tensor([[1, 0, 2, 0, 3, 0]]))
    for variant, far in (("first order", False), ("recurrent", True)):
        model = tiny_model("tagger", variant)
        assert model.receptive_field == (None if far else 1)
        one, two = (
            model.logits(Batch(Sequences.full(torch.tensor([[first, 2, 0]])), source))[:, 2] for first in (0, 1)
        )
        assert torch.allclose(one, two) != far


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    """Made-up words whose ending decides their tag, but for "that": a determiner before a noun, else a pronoun."""
    chance = random.Random(0)
    letters = "bcdfglmnprst"

    def word(ending: str) -> str:
        return "".join(chance.choices(letters, k=3)) + ending

    lines = []
    for _ in range(150):
        for _ in range(chance.randint(1, 3)):
            lines.append("that\tDET")
            lines.append(f"{word('o')}\tNOUN")
            lines.append(f"{word('as')}\tVERB")
        lines += ["that\tPRON", f"{word('as')}\tVERB", ""]
    path = tmp_path / "made-up.tsv"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("order", [1, "recurrent"])
def test_tags_of_unknown_words_are_predicted_from_their_characters(
    treebank: Path, tmp_path: Path, order: object
) -> None:
    settings = {
        "model": {"width": 16, "word_width": 4, "char_width": 8, "char_filters": 16, "order": order, "dropout": 0.1},
        "train": {"learning_rate": 0.01, "batch_tokens": 400},
    }
    run = chainrule.train("tagger", data=str(treebank), out=tmp_path / "run", steps=60, settings=settings, seed=2)
    assert isinstance(run, TagRun)
    assert run.info()["validation"]["accuracy"] > 0.98
    [found] = load(tmp_path / "run", TagRun).tag([["that", "zzzo", "ffras", "that", "bbbas"]])
    assert found is not None
    assert found.tags == ("DET", "NOUN", "VERB", "PRON", "VERB")
