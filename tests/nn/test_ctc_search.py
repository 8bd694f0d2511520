"""Prefix search over slots against every target that they can spell, written out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.nn.test_ctc import SILENCE, WORDS, lattice, said, slot_log_probs

from chainrule.nn.ctc_search import Language, Slot, Weights, search

FREE = Language(None, lambda token, memory: (0.0, None))
SLOTS = 5


def slots_of(seed: int) -> tuple[list[Slot], torch.Tensor]:
    log_probs = slot_log_probs(1, SLOTS, seed)
    chances = log_probs[0].exp().tolist()
    return [Slot(row[SILENCE], dict(enumerate(row[:WORDS]))) for row in chances], log_probs


def every_target() -> list[list[int]]:
    paths = itertools.product(range(WORDS + 1), repeat=SLOTS)
    return [list(one) for one in dict.fromkeys(tuple(said(path)) for path in paths)]


def nats_of(log_probs: torch.Tensor, target: list[int]) -> float:
    return float(lattice(log_probs, [target], [SLOTS]).log_prob())


@pytest.mark.parametrize("seed", range(8))
def test_with_room_for_all_prefixes_the_likeliest_target_is_found(seed: int) -> None:
    slots, log_probs = slots_of(seed)
    found = search(slots, FREE, Weights(1.0, 0.0), width=10_000)
    every = {tuple(target): nats_of(log_probs, target) for target in every_target()}
    assert tuple(found.ids) == max(every, key=lambda target: every[target])
    assert found.log_prob == pytest.approx(every[tuple(found.ids)])
    assert found.score == pytest.approx(found.log_prob)


def bigrams(seed: int) -> Language:
    """Made-up nats of a token after another."""
    table = torch.randn(WORDS + 1, WORDS, generator=torch.Generator().manual_seed(seed)).log_softmax(-1).tolist()
    return Language(WORDS, lambda token, last: (table[last][token], token))


@pytest.mark.parametrize("seed", range(8))
def test_the_language_and_the_length_have_their_say(seed: int) -> None:
    slots, log_probs = slots_of(seed)
    language, weights = bigrams(seed), Weights(0.7, 0.9)

    def score(target: list[int]) -> float:
        spoken, last = 0.0, language.beginning
        for token in target:
            nats, last = language.follow(token, last)
            spoken += nats
        return nats_of(log_probs, target) + 0.7 * spoken + 0.9 * len(target)

    found = search(slots, language, weights, width=10_000)
    assert found.ids == max(every_target(), key=score)
    assert found.score == pytest.approx(score(found.ids))


def test_a_narrow_beam_finds_something_that_is_as_likely_as_it_says() -> None:
    for seed in range(20):
        slots, log_probs = slots_of(seed)
        found = search(slots, bigrams(seed), Weights(0.5, 1.0), width=2)
        assert found.log_prob <= nats_of(log_probs, found.ids) + 1e-9


def test_slots_that_have_nothing_to_say_are_silent() -> None:
    nothing = [Slot(1.0, {})] * 3
    assert search(nothing, FREE, Weights(1.0, 0.0), width=2).ids == []
    word = Slot(0.1, {2: 0.9})
    spoken = search([*nothing, word, *nothing, word, word], FREE, Weights(1.0, 0.0), width=4)
    assert spoken.ids == [2, 2]
    assert spoken.log_prob == pytest.approx(math.log(0.9 * (0.9 * 0.9 + 2 * 0.9 * 0.1)))


def test_a_thousand_slots_do_not_underflow() -> None:
    found = search([Slot(0.3, {1: 0.4, 2: 0.3})] * 1000, bigrams(0), Weights(0.5, 2.0), width=3)
    assert math.isfinite(found.score)
    assert len(found.ids) > 300
