"""Connectionist temporal classification (CTC): the sum over all alignments of a target, and beam search.

Each frame emits a token or the blank. A path of frames collapses to a target: repetitions of a token in adjacent frames
are merged, then blanks are removed. A token that occurs twice in a row in the target needs a blank frame in between.
With e_u(·) the log-probabilities of frame u, independent of the other frames,

    P(y) = Σ over the paths π that collapse to y of  Π_u exp e_u(π_u)

is a distribution over all sequences. It is computed in one pass over the frames, over the states of a lattice

    blank, y_1, blank, y_2, …, y_T, blank

where a path stays in a state, moves to the next, or skips a blank between two different tokens (Graves et al., 2006).
The same pass with a maximum in place of the sum finds the best path.

`prefix_beam_search` adds a language model by shallow fusion (Graves et al., 2006; Hannun et al., 2014). Frames are
independent, so the best path may combine parts of different sentences. The search extends prefixes y of the target
frame by frame. For each it keeps the probability that the frames so far collapse to y, separately for paths that end in
a blank and for paths that end in the last token of y, and ranks prefixes by

    log P(frames collapse to y) + w log P_L(y) + b |y|

with a language model P_L. Paths with the same prefix are merged by summing their probabilities. Only tokens whose
probability is close to that of the frame's best choice are tried. The search handles one sequence at a time: most
frames have few candidates, so dispatching tensor operations would cost more than the work itself. With the tables of
an n-gram model it is compiled (`kernels.prefix_beams`), and gives the same.

Shape letters: B rows, U frames, T target tokens, L = 2T + 1 states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.types import Sequences, length_mask

LOG_ZERO = -1e9  # in place of −∞, whose gradient would be NaN
TINY = 1e-300  # keeps logarithms finite; every prefix in the beam has a larger probability

Count = TypeVar("Count", int, Tensor)


class FrameRatio(NamedTuple):
    """Frames per source token, as a fraction: frame u belongs to token ⌊u · denominator / numerator⌋."""

    numerator: int
    denominator: int

    @classmethod
    def of(cls, frames_per_token: float) -> Self:
        """The nearest fraction with a denominator of at most 100."""
        return cls(*Fraction(frames_per_token).limit_denominator(100).as_integer_ratio())

    @property
    def max_frames(self) -> int:
        """The maximum number of frames of one token."""
        return self.frames(1)

    def frames(self, tokens: Count) -> Count:
        """The number of frames of this many tokens, rounded up."""
        return -(-tokens * self.numerator // self.denominator)

    def origins(self, tokens: int, device: torch.device) -> Tensor:
        """(U,): the index of each frame in a layout where every token has `max_frames` frames."""
        frame = torch.arange(self.frames(tokens), device=device)
        token = frame * self.denominator // self.numerator
        return token * self.max_frames + frame - self.frames(token)


@dataclass(slots=True)
class Lattice:
    """The states that collapse to the target of each row, and the emission log-probabilities of each frame."""

    emissions: Tensor  # (B, U, L) nats
    frames: Tensor  # (B,) number of frames of each row
    target: Sequences  # (B, T)
    skippable: Tensor  # (B, L) bool: whether a path may enter the state from two states before it

    @classmethod
    def of(cls, token_log_probs: Tensor, blank_log_probs: Tensor, frames: Tensor, target: Sequences) -> Self:
        """From the log-probabilities of each target token, (B, U, T), and of the blank, (B, U), in each frame."""
        blank = blank_log_probs[..., None]
        pairs = torch.stack([blank.expand_as(token_log_probs), token_log_probs], -1).flatten(2)
        emissions = torch.cat([pairs, blank], -1)
        changes = target.ids[:, 1:] != target.ids[:, :-1]  # (B, T − 1)
        skippable = torch.zeros(len(frames), emissions.shape[2], dtype=torch.bool, device=frames.device)
        skippable[:, 3::2] = changes
        return cls(emissions, frames, target, skippable)

    @property
    def feasible(self) -> Tensor:
        """(B,): whether a row has enough frames: one per token, and one between two equal tokens."""
        repeated = self.target.mask[:, 1:] & ~self.skippable[:, 3::2]
        return self.target.lengths + repeated.sum(1) <= self.frames

    def log_prob(self) -> Tensor:
        """(B,) nats; LOG_ZERO without a gradient where a row has too few frames."""
        alpha = self._initial()
        for frame in range(1, self.emissions.shape[1]):
            summed = self._predecessors(alpha).logsumexp(0) + self.emissions[:, frame]
            alpha = torch.where((frame < self.frames)[:, None], summed, alpha)
        total = torch.logaddexp(*self._final(alpha))
        return torch.where(self.feasible, total, LOG_ZERO)

    @torch.no_grad()
    def best_path(self, blank: int) -> Tensor:
        """(B, U): the token, or `blank`, of each frame on the best path; undefined past the frames of a row."""
        delta = self._initial()
        steps = []  # (B, L) each: how many states back the previous frame was
        for frame in range(1, self.emissions.shape[1]):
            best, step = self._predecessors(delta).max(0)
            real = (frame < self.frames)[:, None]
            delta = torch.where(real, best + self.emissions[:, frame], delta)
            steps.append(torch.where(real, step, 0))
        in_blank, in_token = self._final(delta)
        state = 2 * self.target.lengths - (in_token > in_blank).long()
        path = [state]
        for step in reversed(steps):
            state = state - step.gather(1, state[:, None])[:, 0]
            path.append(state)
        states = torch.stack(path[::-1], 1)  # (B, U)
        tokens = self.target.ids.gather(1, (states // 2).clamp(max=self.target.ids.shape[1] - 1))
        return torch.where(states % 2 == 1, tokens, blank)

    def _initial(self) -> Tensor:
        """(B, L): the first frame emits a blank or the first token."""
        states = torch.arange(self.emissions.shape[2], device=self.emissions.device)
        return torch.where(states < 2, self.emissions[:, 0], LOG_ZERO)

    def _predecessors(self, alpha: Tensor) -> Tensor:
        """(3, B, L): the values of the predecessors of each state: itself, the one before, the one before a blank."""
        before = F.pad(alpha, (2, 0), value=LOG_ZERO)
        return torch.stack([alpha, before[:, 1:-1], torch.where(self.skippable, before[:, :-2], LOG_ZERO)])

    def _final(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The values of both final states, blank and last token. An empty target has only the first."""
        last = 2 * self.target.lengths[:, None]
        in_blank, in_token = (alpha.gather(1, state)[:, 0] for state in (last, (last - 1).clamp(min=0)))
        return in_blank, torch.where(self.target.lengths > 0, in_token, LOG_ZERO)


def collapse(path: Tensor, frames: Tensor, blank: int) -> list[list[int]]:
    """The targets of paths (B, U): repetitions are merged, then blanks are removed."""
    new = F.pad(path[:, 1:] != path[:, :-1], (1, 0), value=True)
    emitted = new & length_mask(frames, path.shape[1]) & (path != blank)
    return [row[kept].tolist() for row, kept in zip(path, emitted, strict=True)]


class FusionModel(NamedTuple):
    """A language model for shallow fusion, evaluated one token at a time."""

    initial_state: Any
    score: Callable[[int, Any], tuple[float, Any]]  # (token, state) -> (log-probability, next state)


class FusionWeights(NamedTuple):
    """Weights of the language model and of the length in shallow fusion."""

    language_model: float  # w
    length_bonus: float  # b


class FrameCandidates(NamedTuple):
    """The choices of one frame that the search considers."""

    blank: float  # probability
    tokens: dict[int, float]  # token -> probability


class CandidatesOfRows(NamedTuple):
    """The choices of all frames, row by row, that the search considers."""

    blanks: npt.NDArray[np.float64]  # (F,) probability of the blank in each frame
    counts: npt.NDArray[np.int64]  # (F,) number of tokens
    tokens: npt.NDArray[np.int64]  # (M,) those of all frames
    probs: npt.NDArray[np.float64]  # (M,) their probabilities
    frames: npt.NDArray[np.int64]  # (B,) number of frames of each row

    def rows(self) -> Iterator[list[FrameCandidates]]:
        tokens, probs = iter(self.tokens.tolist()), iter(self.probs.tolist())
        frames = (
            FrameCandidates(blank, dict(zip(islice(tokens, count), islice(probs, count), strict=True)))
            for blank, count in zip(self.blanks.tolist(), self.counts.tolist(), strict=True)
        )
        for number in self.frames.tolist():
            yield list(islice(frames, number))


class FusedTarget(NamedTuple):
    """The result of a beam search with shallow fusion."""

    ids: list[int]
    log_prob: float  # nats, summed over the alignments that the search kept
    score: float


class BeamPrefix:
    """A prefix of the target in the beam."""

    __slots__ = ("blank", "children", "frame", "fusion", "parent", "score", "state", "token", "token_end")

    def __init__(self, parent: BeamPrefix | None, token: int, state: Any, fusion: float) -> None:
        self.parent = parent
        self.token = token  # the last one
        self.state = state  # of the language model
        self.fusion = fusion  # w log P_L + b |y|
        self.children: dict[int, BeamPrefix] = {}
        self.frame = -1  # the last frame in which the prefix was reached
        self.blank = self.token_end = 0.0  # probability of the paths that end in a blank, or in the last token
        self.score = 0.0

    def ids(self) -> list[int]:
        ids, prefix = [], self
        while prefix.parent is not None:
            ids.append(prefix.token)
            prefix = prefix.parent
        return ids[::-1]


def prefix_beam_search(
    frames: Sequence[FrameCandidates], model: FusionModel, weights: FusionWeights, width: int
) -> FusedTarget:
    """The best target, with at most `width` prefixes kept after every frame."""
    root = BeamPrefix(None, -1, model.initial_state, 0.0)
    root.blank = 1.0
    beam, log_scale = [root], 0.0  # probabilities are rescaled in every frame to avoid underflow
    for number, frame in enumerate(frames):
        beam = _extended(beam, number, frame, model, weights)
        for prefix in beam:
            prefix.score = math.log(prefix.blank + prefix.token_end + TINY) + prefix.fusion
        if len(beam) > width:
            beam = nlargest(width, beam, key=attrgetter("score"))
        largest = max(prefix.blank + prefix.token_end for prefix in beam)
        log_scale += math.log(largest)
        for prefix in beam:
            prefix.blank /= largest
            prefix.token_end /= largest
    best = max(beam, key=attrgetter("score"))
    nats = math.log(best.blank + best.token_end) + log_scale
    return FusedTarget(best.ids(), nats, nats + best.fusion)


def _extended(
    beam: Sequence[BeamPrefix], number: int, frame: FrameCandidates, model: FusionModel, weights: FusionWeights
) -> list[BeamPrefix]:
    """All prefixes reached from those of the beam by one more frame."""
    blank_prob, tokens = frame
    before = [(prefix, prefix.blank, prefix.token_end) for prefix in beam]
    for prefix in beam:
        prefix.blank = prefix.token_end = 0.0
        prefix.frame = number
    reached = list(beam)
    for prefix, blank, token_end in before:
        total, last = blank + token_end, prefix.token
        prefix.blank += total * blank_prob
        for token, prob in tokens.items():
            if token == last:
                prefix.token_end += token_end * prob  # a repetition is merged
                source = blank  # a second token of the same id must follow a blank
            else:
                source = total
            if not source:
                continue
            child = prefix.children.get(token)
            if child is None:
                nats, state = model.score(token, prefix.state)
                fusion = prefix.fusion + weights.language_model * nats + weights.length_bonus
                child = prefix.children[token] = BeamPrefix(prefix, token, state, fusion)
            if child.frame != number:  # not in the previous beam
                child.frame, child.blank, child.token_end = number, 0.0, 0.0
                reached.append(child)
            child.token_end += source * prob
    return reached
