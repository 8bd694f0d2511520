"""The text of a request while it grows."""

from __future__ import annotations

import random

import pytest

from chainrule.serving.registry import Registry
from chainrule.serving.requests import Token
from chainrule.serving.texts import GrowingText
from chainrule.tasks.text import TextRun

SENTENCE = "the cat — 猫 — sat on the mat 🐈 naïve "


def grown(run: TextRun, ids: list[int], rng: random.Random) -> str:
    """The pieces of a text whose tokens arrive a few at a time."""
    text, pieces, first = GrowingText(run, []), [], 0
    while first < len(ids):
        end = min(len(ids), first + rng.choice([1, 1, 2, 5]))
        tokens = [Token(one, -1.0, "length" if index == len(ids) - 1 else None) for index, one in enumerate(ids)]
        pieces.append(text.add(tokens[first:end]))
        first = end
    return "".join(pieces)


@pytest.mark.parametrize("name", ["gpt", "pieces"])
@pytest.mark.parametrize("seed", range(5))
def test_the_pieces_of_a_text_join_to_the_whole(registry: Registry, name: str, seed: int) -> None:
    """Also if its bytes are no characters, as those of a model that has not learned much."""
    rng = random.Random(seed)
    run = registry.get(name)
    assert isinstance(run, TextRun)
    ids = [rng.randrange(1, run.model.vocabulary) for _ in range(80)]
    assert grown(run, ids, rng) == run.tokenizer.decode(ids)


def test_a_character_of_several_tokens_is_sent_when_it_is_whole(registry: Registry) -> None:
    run = registry.get("pieces")
    assert isinstance(run, TextRun)
    ids = run.tokenizer.encode(SENTENCE * 3).tolist()
    text = GrowingText(run, [])
    pieces = [text.add([Token(one, -1.0, None)]) for one in ids]
    assert "".join(pieces) == SENTENCE * 3
    assert not any("\ufffd" in piece for piece in pieces)
    assert "猫" in pieces
