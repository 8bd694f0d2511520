"""The lattice of connectionist temporal classification against all paths, written out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.nn.ctc import NEVER, Language, Lattice, Ratio, Slot, Weights, search, spelt
from chainrule.types import Sequences

WORDS, SILENCE = 3, 3
TARGETS = [[1, 2, 0], [1, 1], [2], [0, 0, 0], []]
SLOTS = [5, 4, 1, 5, 2]


def slot_log_probs(rows: int, slots: int, seed: int = 0) -> Tensor:
    """(B, U, WORDS + 1), silence last."""
    logits = torch.randn(rows, slots, WORDS + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return logits.log_softmax(-1)


def lattice(log_probs: Tensor, targets: list[list[int]], slots: list[int]) -> Lattice:
    target = Sequences.pack(targets)
    spoken = log_probs.gather(2, target.ids[:, None].expand(-1, log_probs.shape[1], -1))
    return Lattice.of(spoken, log_probs[..., SILENCE], torch.tensor(slots), target)


def said(path: tuple[int, ...]) -> list[int]:
    """What a path spells, in the plainest way."""
    return [one for one, _ in itertools.groupby(path) if one != SILENCE]


def paths(log_probs: Tensor, target: list[int], slots: int) -> dict[tuple[int, ...], float]:
    """Every path that spells the target, with its nats."""
    return {
        path: sum(float(log_probs[slot, word]) for slot, word in enumerate(path))
        for path in itertools.product(range(WORDS + 1), repeat=slots)
        if said(path) == target
    }


def test_the_sum_is_over_all_paths_that_spell_the_target() -> None:
    log_probs = slot_log_probs(len(TARGETS), 5)
    found = lattice(log_probs, TARGETS, SLOTS).log_prob()
    for row, (target, slots) in enumerate(zip(TARGETS, SLOTS, strict=True)):
        expected = math.log(sum(math.exp(nats) for nats in paths(log_probs[row], target, slots).values()))
        assert float(found[row]) == pytest.approx(expected)


def test_the_best_path_is_the_likeliest_of_all() -> None:
    log_probs = slot_log_probs(len(TARGETS), 5, seed=1)
    found = lattice(log_probs, TARGETS, SLOTS).best(SILENCE)
    for row, (target, slots) in enumerate(zip(TARGETS, SLOTS, strict=True)):
        every = paths(log_probs[row], target, slots)
        assert tuple(found[row, :slots].tolist()) == max(every, key=lambda path: every[path])


def test_loss_and_gradient_are_those_of_torch() -> None:
    targets, slots = TARGETS[:3], SLOTS[:3]
    logits = torch.randn(3, 5, WORDS + 1, dtype=torch.float64, requires_grad=True)
    ours = lattice(logits.log_softmax(-1), targets, slots).log_prob().sum()
    lengths = torch.tensor([len(target) for target in targets])
    theirs = -F.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1),
        Sequences.pack(targets).ids,
        torch.tensor(slots),
        lengths,
        blank=SILENCE,
        reduction="sum",
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ours, theirs)))


def test_a_repeated_token_needs_a_slot_between() -> None:
    log_probs = slot_log_probs(3, 4).requires_grad_()
    tight = lattice(log_probs, [[1, 1], [1, 1], [1, 2]], [3, 2, 2])
    assert tight.possible.tolist() == [True, False, True]
    nats = tight.log_prob()
    assert float(nats[1].detach()) == NEVER
    [gradient] = torch.autograd.grad(nats.sum(), log_probs)
    assert gradient.isfinite().all()
    assert not gradient[1].any()


def test_spelling_drops_repetitions_silence_and_what_is_past_the_slots() -> None:
    path = torch.tensor([[3, 1, 1, 3, 1, 2], [2, 2, 0, 0, 1, 1], [3, 3, 3, 3, 3, 3]])
    assert spelt(path, torch.tensor([6, 4, 6]), SILENCE) == [[1, 1, 2], [2, 0], []]


@pytest.mark.parametrize("slots", [1, 1.5, 1.6, 2, 2.25, 3])
def test_every_slot_belongs_to_one_token_and_tokens_share_them_evenly(slots: float) -> None:
    ratio = Ratio.of(slots)
    origins = ratio.origins(20, torch.device("cpu"))
    assert len(origins) == math.ceil(20 * slots) == ratio.slots(20)
    tokens, ways = origins // ratio.most, origins % ratio.most
    assert tokens.tolist() == [math.floor(round(slot / slots, 9)) for slot in range(len(origins))]
    each = tokens.bincount(minlength=20)
    assert each.max() - each.min() <= 1
    assert all(ways[tokens == token].tolist() == list(range(int(each[token]))) for token in range(20))


FREE = Language(None, lambda token, memory: (0.0, None))
COUNT = 5  # slots of the searches


def slots_of(seed: int) -> tuple[list[Slot], torch.Tensor]:
    log_probs = slot_log_probs(1, COUNT, seed)
    chances = log_probs[0].exp().tolist()
    return [Slot(row[SILENCE], dict(enumerate(row[:WORDS]))) for row in chances], log_probs


def every_target() -> list[list[int]]:
    paths = itertools.product(range(WORDS + 1), repeat=COUNT)
    return [list(one) for one in dict.fromkeys(tuple(said(path)) for path in paths)]


def nats_of(log_probs: torch.Tensor, target: list[int]) -> float:
    return float(lattice(log_probs, [target], [COUNT]).log_prob())


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
