"""CTC: the lattice and the prefix beam search against an enumeration of all paths."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.nn.ctc import (
    LOG_ZERO,
    FrameCandidates,
    FrameRatio,
    FusionModel,
    FusionWeights,
    Lattice,
    collapse,
    prefix_beam_search,
)
from chainrule.types import Sequences

WORDS, BLANK = 3, 3
TARGETS = [[1, 2, 0], [1, 1], [2], [0, 0, 0], []]
FRAMES = [5, 4, 1, 5, 2]


def frame_log_probs(rows: int, frames: int, seed: int = 0) -> Tensor:
    """(B, U, WORDS + 1), blank last."""
    logits = torch.randn(rows, frames, WORDS + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return logits.log_softmax(-1)


def lattice(log_probs: Tensor, targets: list[list[int]], frames: list[int]) -> Lattice:
    target = Sequences.pack(targets)
    tokens = log_probs.gather(2, target.ids[:, None].expand(-1, log_probs.shape[1], -1))
    return Lattice.of(tokens, log_probs[..., BLANK], torch.tensor(frames), target)


def collapsed(path: tuple[int, ...]) -> list[int]:
    """The target of a path, by definition."""
    return [one for one, _ in itertools.groupby(path) if one != BLANK]


def paths(log_probs: Tensor, target: list[int], frames: int) -> dict[tuple[int, ...], float]:
    """Every path that collapses to the target, with its log-probability."""
    return {
        path: sum(float(log_probs[frame, word]) for frame, word in enumerate(path))
        for path in itertools.product(range(WORDS + 1), repeat=frames)
        if collapsed(path) == target
    }


def test_the_log_probability_sums_over_all_paths_that_collapse_to_the_target() -> None:
    log_probs = frame_log_probs(len(TARGETS), 5)
    found = lattice(log_probs, TARGETS, FRAMES).log_prob()
    for row, (target, frames) in enumerate(zip(TARGETS, FRAMES, strict=True)):
        expected = math.log(sum(math.exp(nats) for nats in paths(log_probs[row], target, frames).values()))
        assert float(found[row]) == pytest.approx(expected)


def test_the_best_path_is_the_likeliest_of_all_paths() -> None:
    log_probs = frame_log_probs(len(TARGETS), 5, seed=1)
    found = lattice(log_probs, TARGETS, FRAMES).best_path(BLANK)
    for row, (target, frames) in enumerate(zip(TARGETS, FRAMES, strict=True)):
        every = paths(log_probs[row], target, frames)
        assert tuple(found[row, :frames].tolist()) == max(every, key=lambda path: every[path])


def test_loss_and_gradient_equal_those_of_torch() -> None:
    targets, frames = TARGETS[:3], FRAMES[:3]
    logits = torch.randn(3, 5, WORDS + 1, dtype=torch.float64, requires_grad=True)
    ours = lattice(logits.log_softmax(-1), targets, frames).log_prob().sum()
    lengths = torch.tensor([len(target) for target in targets])
    theirs = -F.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1),
        Sequences.pack(targets).ids,
        torch.tensor(frames),
        lengths,
        blank=BLANK,
        reduction="sum",
    )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ours, theirs)))


def test_a_repeated_token_needs_a_blank_frame_in_between() -> None:
    log_probs = frame_log_probs(3, 4).requires_grad_()
    tight = lattice(log_probs, [[1, 1], [1, 1], [1, 2]], [3, 2, 2])
    assert tight.feasible.tolist() == [True, False, True]
    nats = tight.log_prob()
    assert float(nats[1].detach()) == LOG_ZERO
    [gradient] = torch.autograd.grad(nats.sum(), log_probs)
    assert gradient.isfinite().all()
    assert not gradient[1].any()


def test_collapsing_removes_repetitions_blanks_and_padding() -> None:
    path = torch.tensor([[3, 1, 1, 3, 1, 2], [2, 2, 0, 0, 1, 1], [3, 3, 3, 3, 3, 3]])
    assert collapse(path, torch.tensor([6, 4, 6]), BLANK) == [[1, 1, 2], [2, 0], []]


@pytest.mark.parametrize("frames", [1, 1.5, 1.6, 2, 2.25, 3])
def test_every_frame_belongs_to_one_token_and_tokens_have_equally_many_up_to_one(frames: float) -> None:
    ratio = FrameRatio.of(frames)
    origins = ratio.origins(20, torch.device("cpu"))
    assert len(origins) == math.ceil(20 * frames) == ratio.frames(20)
    tokens, offsets = origins // ratio.max_frames, origins % ratio.max_frames
    assert tokens.tolist() == [math.floor(round(frame / frames, 9)) for frame in range(len(origins))]
    each = tokens.bincount(minlength=20)
    assert each.max() - each.min() <= 1
    assert all(offsets[tokens == token].tolist() == list(range(int(each[token]))) for token in range(20))


FREE = FusionModel(None, lambda token, memory: (0.0, None))
SEARCH_FRAMES = 5


def candidates(seed: int) -> tuple[list[FrameCandidates], torch.Tensor]:
    log_probs = frame_log_probs(1, SEARCH_FRAMES, seed)
    probs = log_probs[0].exp().tolist()
    return [FrameCandidates(row[BLANK], dict(enumerate(row[:WORDS]))) for row in probs], log_probs


def every_target() -> list[list[int]]:
    paths = itertools.product(range(WORDS + 1), repeat=SEARCH_FRAMES)
    return [list(one) for one in dict.fromkeys(tuple(collapsed(path)) for path in paths)]


def nats_of(log_probs: torch.Tensor, target: list[int]) -> float:
    return float(lattice(log_probs, [target], [SEARCH_FRAMES]).log_prob())


@pytest.mark.parametrize("seed", range(8))
def test_a_beam_wide_enough_for_all_prefixes_finds_the_likeliest_target(seed: int) -> None:
    frames, log_probs = candidates(seed)
    found = prefix_beam_search(frames, FREE, FusionWeights(1.0, 0.0), width=10_000)
    every = {tuple(target): nats_of(log_probs, target) for target in every_target()}
    assert tuple(found.ids) == max(every, key=lambda target: every[target])
    assert found.log_prob == pytest.approx(every[tuple(found.ids)])
    assert found.score == pytest.approx(found.log_prob)


def bigrams(seed: int) -> FusionModel:
    """A bigram model with random log-probabilities."""
    table = torch.randn(WORDS + 1, WORDS, generator=torch.Generator().manual_seed(seed)).log_softmax(-1).tolist()
    return FusionModel(WORDS, lambda token, last: (table[last][token], token))


@pytest.mark.parametrize("seed", range(8))
def test_shallow_fusion_adds_the_language_model_and_the_length_bonus(seed: int) -> None:
    frames, log_probs = candidates(seed)
    language, weights = bigrams(seed), FusionWeights(0.7, 0.9)

    def score(target: list[int]) -> float:
        tokens, last = 0.0, language.initial_state
        for token in target:
            nats, last = language.score(token, last)
            tokens += nats
        return nats_of(log_probs, target) + 0.7 * tokens + 0.9 * len(target)

    found = prefix_beam_search(frames, language, weights, width=10_000)
    assert found.ids == max(every_target(), key=score)
    assert found.score == pytest.approx(score(found.ids))


def test_a_narrow_beam_never_overstates_the_probability_of_its_target() -> None:
    for seed in range(20):
        frames, log_probs = candidates(seed)
        found = prefix_beam_search(frames, bigrams(seed), FusionWeights(0.5, 1.0), width=2)
        assert found.log_prob <= nats_of(log_probs, found.ids) + 1e-9


def test_frames_without_candidates_emit_blanks() -> None:
    blanks = [FrameCandidates(1.0, {})] * 3
    assert prefix_beam_search(blanks, FREE, FusionWeights(1.0, 0.0), width=2).ids == []
    word = FrameCandidates(0.1, {2: 0.9})
    tokens = prefix_beam_search([*blanks, word, *blanks, word, word], FREE, FusionWeights(1.0, 0.0), width=4)
    assert tokens.ids == [2, 2]
    assert tokens.log_prob == pytest.approx(math.log(0.9 * (0.9 * 0.9 + 2 * 0.9 * 0.1)))


def test_a_thousand_frames_do_not_underflow() -> None:
    found = prefix_beam_search(
        [FrameCandidates(0.3, {1: 0.4, 2: 0.3})] * 1000, bigrams(0), FusionWeights(0.5, 2.0), width=3
    )
    assert math.isfinite(found.score)
    assert len(found.ids) > 300
